"""The README and the guide run word for word, one namespace each, as a reader would type them."""

import re
from pathlib import Path

import matplotlib as mpl
import pytest

import qbvi

ROOT = Path(__file__).resolve().parents[2]
README, GUIDE, MODELS = ROOT / "README.md", ROOT / "docs" / "guide.md", ROOT / "docs" / "models.md"
FAMILIES, PREDICT = ROOT / "docs" / "families.md", ROOT / "docs" / "predict.md"
SKLEARN = ROOT / "docs" / "from" / "scikit-learn.md"
MOST_EVALUATIONS = (
    350  # enough for every line to run, and for the first step of each; what the fits find is tested elsewhere
)


def blocks(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


def run(path, namespace):
    code = blocks(path)
    assert code
    for block in code:
        exec(compile(block, path.name, "exec"), namespace)  # noqa: S102 - our own text


@pytest.mark.filterwarnings("ignore")
def test_every_python_block_runs(tmp_path, monkeypatch, capsys):
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    real = qbvi.fit

    def short(*args, **options):  # the methods that need many more end early
        return real(*args, **options | {"max_evals": min(options.get("max_evals", MOST_EVALUATIONS), MOST_EVALUATIONS)})

    for module in ("qbvi", "qbvi.models.base"):
        monkeypatch.setattr(f"{module}.fit", short)
    for name in ("arviz", "emcee", "matplotlib", "pandas"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    run(README, {})
    assert "limit" in capsys.readouterr().out
    guide = {}
    run(GUIDE, guide)
    assert "theta[0]" in capsys.readouterr().out
    models = {name: guide[name] for name in ("np", "qbvi", "rng", "x", "y", "log_likelihood")}
    run(FAMILIES, dict(models))
    run(MODELS, models)
    assert "intercept" in capsys.readouterr().out
    run(PREDICT, {})
    assert "r-hat" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_the_page_of_scikit_learn_runs():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    namespace = {}
    run(SKLEARN, namespace)
    assert namespace["sd"].shape == (2,)


@pytest.mark.parametrize("path", [README, GUIDE, MODELS, FAMILIES, PREDICT, SKLEARN], ids=lambda p: p.name)
def test_local_links_lead_somewhere(path):
    links = re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text())
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []
