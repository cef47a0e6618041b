"""The README and the guide run word for word, one namespace each, as a reader would type them."""

import re
from functools import partial
from pathlib import Path

import matplotlib as mpl
import pytest

import qbvi

ROOT = Path(__file__).resolve().parents[2]
README, GUIDE, MODELS = ROOT / "README.md", ROOT / "docs" / "guide.md", ROOT / "docs" / "models.md"
FAMILIES, PREDICT = ROOT / "docs" / "families.md", ROOT / "docs" / "predict.md"
SKLEARN = ROOT / "docs" / "from" / "scikit-learn.md"
# Enough for every line to run, and for the first step of each fit; what the fits find is tested elsewhere.
MOST_EVALUATIONS = {"qbvi": 350, "qbvi.models.base": 150}
FEW_STEPS = {"n_steps": 60, "warmup": 20}
FEW_DRAWS = 500


def blocks(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


def run(path, namespace):
    code = blocks(path)
    assert code
    for block in code:
        exec(compile(block, path.name, "exec"), namespace)  # noqa: S102 - our own text


def short(fit, most, *args, **options):
    return fit(*args, **options | {"max_evals": min(options.get("max_evals", most), most)})


@pytest.mark.filterwarnings("ignore")
def test_every_python_block_runs(tmp_path, monkeypatch, capsys):
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    real = qbvi.fit
    for module, most in MOST_EVALUATIONS.items():
        monkeypatch.setattr(f"{module}.fit", partial(short, real, most))
    for name in ("arviz", "emcee", "matplotlib", "pandas"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    ensemble, chains = qbvi.baselines.mcmc, qbvi.Fit.mcmc
    monkeypatch.setattr(qbvi.baselines, "mcmc", lambda *args, **options: ensemble(*args, **options | FEW_STEPS))
    monkeypatch.setattr(qbvi.Fit, "mcmc", lambda fit, n, **options: chains(fit, min(n, FEW_DRAWS), **options))
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
def test_the_page_of_scikit_learn_runs(monkeypatch):
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    X, y = datasets.load_breast_cancer(return_X_y=True, as_frame=True)
    monkeypatch.setattr(
        datasets, "load_breast_cancer", lambda **_: (X.iloc[::3, :6], y[::3])
    )  # the page fits it 27 times
    namespace = {}
    run(SKLEARN, namespace)
    assert namespace["sd"].shape == (2,)


@pytest.mark.parametrize("path", [README, GUIDE, MODELS, FAMILIES, PREDICT, SKLEARN], ids=lambda p: p.name)
def test_local_links_lead_somewhere(path):
    links = re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text())
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []
