"""The README and the guide run word for word, one namespace each, as a reader would type them."""

import re
from pathlib import Path

import matplotlib as mpl
import pytest

ROOT = Path(__file__).resolve().parents[1]
README, GUIDE = ROOT / "README.md", ROOT / "docs" / "guide.md"


def blocks(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore")
def test_every_python_block_runs(tmp_path, monkeypatch, capsys):
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    for name in ("arviz", "matplotlib", "pandas"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    namespace = {}
    code = [*blocks(README), *blocks(GUIDE)]
    for block in code:
        exec(compile(block, "README", "exec"), namespace)  # noqa: S102 - our own text
    assert len(code) >= 5
    assert "theta[0]" in capsys.readouterr().out


@pytest.mark.parametrize("path", [README, GUIDE], ids=lambda p: p.name)
def test_local_links_lead_somewhere(path):
    links = re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text())
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []
