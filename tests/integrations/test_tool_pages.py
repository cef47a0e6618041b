"""The pages for users of PyMC, bilby and Cobaya: their code runs as it stands, in order."""

import re
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]

PAGES = Path(__file__).parents[2] / "docs" / "from"


def run_page(name, folder, monkeypatch):
    """Run all Python of a page in one namespace and in an empty folder."""
    monkeypatch.chdir(folder)
    variables = {"__name__": "__main__"}
    for code in re.findall(
        r"^```python\n(.*?)^```", (PAGES / f"{name}.md").read_text(), flags=re.DOTALL | re.MULTILINE
    ):
        exec(compile(code, f"{name}.md", "exec"), variables)  # noqa: S102 - our own page
    return variables


def test_pymc(tmp_path, monkeypatch):
    pytest.importorskip("pymc")
    import pytensor

    # In one process with bilby, the C compiler of PyTensor finds two versions of distutils.
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        page = run_page("pymc", tmp_path, monkeypatch)
    assert page["fit"].mean["m"] == pytest.approx(0.390, abs=0.01)
    assert float(page["data"]["posterior"]["at_nine"].mean()) == pytest.approx(6.76, abs=0.1)


def test_bilby(tmp_path, monkeypatch):
    pytest.importorskip("bilby")
    result = run_page("bilby", tmp_path, monkeypatch)["result"]
    assert len(result.posterior) == 10_000
    assert result.posterior["m"].mean() == pytest.approx(0.490, abs=0.003)


def test_cobaya(tmp_path, monkeypatch):
    pytest.importorskip("cobaya")
    from cobaya.run import run
    from cobaya.yaml import yaml_load

    products = run_page("cobaya", tmp_path, monkeypatch)["products"]
    assert products["logZ"] == pytest.approx(-2.276, abs=4 * products["logZstd"])
    whole, options = re.findall(
        r"^```yaml\n(.*?)^```", (PAGES / "cobaya.md").read_text(), flags=re.DOTALL | re.MULTILINE
    )
    chain = run({**yaml_load(whole), **yaml_load(options)})[1].products()["sample"]
    assert len(chain) == 500
    assert np.isfinite(chain["derived_b"]).all()
    assert (tmp_path / "chains" / "gaussian.1.txt").exists()
