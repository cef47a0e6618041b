"""Export to ArviZ, both generations for real."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import qbvi
from qbvi import export
from qbvi.distributions import Flat, HalfNormal, Normal, Uniform
from qbvi.export import to_arviz
from qbvi.families import Gaussian
from qbvi.model import Model
from qbvi.results import Fit, Report

PRIOR = {"beta": Normal(0, 5, shape=(2, 3)), "sigma": HalfNormal(1.0), "rho": Uniform(-1, 1)}


def make_fit(prior):
    model = Model(prior)
    q = Gaussian(model.dim).start(np.linspace(-1, 1, model.dim), np.full(model.dim, 0.3))
    report = Report(
        elbo=-3.5,
        elbo_se=0.1,
        evidence=-3.4,
        evidence_se=0.2,
        missing=0.1,
        missing_se=0.3,
        khat=0.2,
        converged=True,
        stop_reason="done",
        n_evals=640,
        seconds=1.5,
    )
    return Fit(model, Gaussian(model.dim), q, report)


@pytest.fixture(params=["inferencedata", "datatree"])
def kind(request):
    if request.param == "inferencedata":
        if not export._has_old_arviz():
            pytest.skip("needs ArviZ before 1.0, which has InferenceData")
    else:
        pytest.importorskip("arviz_base")
    return request.param


def test_names_shapes_and_draws(kind):
    fit = make_fit(PRIOR)
    data = to_arviz(fit, kind=kind, draws=50, seed=4)
    assert type(data).__name__ == {"inferencedata": "InferenceData", "datatree": "DataTree"}[kind]
    assert data.posterior["beta"].shape == (1, 50, 2, 3)
    assert data.posterior["sigma"].dims == ("chain", "draw")
    assert_array_equal(data.posterior["beta"].values[0], fit.sample(50, seed=4)["beta"])
    assert data.prior["beta"].shape == (1, 50, 2, 3)
    assert np.all(np.abs(data.prior["rho"].values) <= 1)


def test_lp_is_the_log_density_of_the_posterior(kind):
    fit = make_fit(PRIOR)
    data = to_arviz(fit, kind=kind, draws=20, seed=4)
    assert_allclose(data.sample_stats["lp"].values[0], fit.log_prob(fit.sample(20, seed=4), batched=True))


class Grouped:
    """A log-likelihood that knows the groups of its parameters, as those of other packages do."""

    def __call__(self, values):
        return -0.5 * float(np.sum(values["x"] ** 2))

    def described(self, values):
        return export.Described(
            variables={**values, "total": values["x"].sum(axis=-1)},
            coords={"group": np.array(["a", "b"])},
            dims={"x": ["group"]},
            observed={"y": np.arange(3.0)},
        )


def test_a_function_may_describe_its_draws(kind):
    fit = qbvi.fit(Grouped(), {"x": Normal(0, 1, shape=2)}, seed=1)
    data = to_arviz(fit, kind=kind, draws=7, seed=4)
    assert data.posterior["x"].dims == ("chain", "draw", "group")
    assert data.posterior["group"].values.tolist() == ["a", "b"]
    assert_allclose(data.posterior["total"], data.posterior["x"].sum("group"))
    assert_array_equal(data.observed_data["y"], np.arange(3.0))
    assert data.sample_stats["lp"].shape == (1, 7)


def test_attributes(kind):
    attributes = to_arviz(make_fit(PRIOR), kind=kind, draws=5).posterior.attrs
    expected = {"elbo": -3.5, "elbo_se": 0.1, "evidence": -3.4, "evidence_se": 0.2, "missing": 0.1, "missing_se": 0.3}
    expected |= {"khat": 0.2, "n_evals": 640, "converged": 1}
    assert {name: attributes[name] for name in expected} == expected
    assert attributes["inference_library"] == "qbvi"
    assert attributes["inference_library_version"] == qbvi.__version__


def test_unnamed_and_improper(kind):
    data = to_arviz(make_fit(Flat(2)), kind=kind, draws=5, seed=1)
    assert data.posterior["theta"].shape == (1, 5, 2)
    assert not hasattr(data, "prior")


def test_auto_takes_what_is_installed(monkeypatch):
    fit = make_fit(Normal(0, 1))
    monkeypatch.setattr(export, "_has_old_arviz", lambda: False)
    assert type(fit.to_arviz(draws=5)).__name__ == "DataTree"
    with pytest.raises(ImportError, match=r'needs ArviZ before 1\.0.*kind="datatree"'):
        fit.to_arviz(kind="inferencedata")
    monkeypatch.setitem(sys.modules, "arviz_base", None)
    with pytest.raises(ImportError, match=r'pip install "qbvi\[arviz\]"'):
        fit.to_arviz()


@pytest.mark.skipif(not export._has_old_arviz(), reason="needs ArviZ before 1.0, which has InferenceData")
def test_auto_is_inference_data_before_arviz_1():
    assert type(make_fit(Normal(0, 1)).to_arviz(draws=5)).__name__ == "InferenceData"


@pytest.mark.parametrize(("installed", "old"), [("0.23.4", True), ("1.0.0", False), ("1.2.dev0", False)])
def test_generation_is_told_from_the_version(monkeypatch, installed, old):
    monkeypatch.setattr(export.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(export, "version", lambda name: installed)
    assert export._has_old_arviz() is old


def test_unknown_kind():
    with pytest.raises(ValueError, match=r"`kind` must be one of .*; did you mean 'datatree'?"):
        to_arviz(make_fit(Normal(0, 1)), kind="data-tree")


Y = np.random.default_rng(2).normal(0.5, 1.0, 25)


def pointwise_fit(family="auto"):
    prior = {"mu": Normal(0, 2), "sigma": HalfNormal(2.0)}
    terms = lambda p: -0.5 * ((Y - p["mu"]) / p["sigma"]) ** 2 - np.log(p["sigma"])
    return qbvi.fit(terms, prior, pointwise=True, family=family, seed=1)


def test_log_likelihood_predictions_and_data(kind):
    fit = pointwise_fit()
    simulate = lambda p, rng: {"y": rng.normal(p["mu"], p["sigma"], len(Y))}
    coords = {"observation": np.arange(100, 125)}
    data = fit.to_arviz(kind, draws=200, seed=1, predictive=simulate, observed={"y": Y}, coords=coords)
    assert data.log_likelihood["y"].dims == ("chain", "draw", "observation")
    assert data.posterior_predictive["y"].shape == (1, 200, 25)
    assert_array_equal(data.observed_data["y"].values, Y)
    assert_array_equal(data.log_likelihood["y"].observation.values, coords["observation"])
    mu, sigma = data.posterior["mu"].values[0], data.posterior["sigma"].values[0]
    terms = -0.5 * ((Y - mu[:, None]) / sigma[:, None]) ** 2 - np.log(sigma)[:, None]
    assert_allclose(data.log_likelihood["y"].values[0], terms)
    # Draws and new data belong together: the standardised noise is standard normal.
    noise = (data.posterior_predictive["y"].values[0] - mu[:, None]) / sigma[:, None]
    assert abs(noise.std() - 1) < 5 / np.sqrt(2 * noise.size)


def test_arviz_compares_and_checks():
    az = pytest.importorskip("arviz")
    if not export._has_old_arviz():
        pytest.skip("needs ArviZ before 1.0")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    x = np.linspace(-1, 1, 40)[:, None]
    y = np.random.default_rng(1).poisson(np.exp(0.5 + x[:, 0]))
    full, none = (qbvi.models.Poisson(z, y).fit(seed=1) for z in (x, np.cos(9 * x)))
    exported = {"full": full.to_arviz(seed=1), "none": none.to_arviz(seed=1)}
    table = az.compare(exported)
    own = qbvi.compare({"full": full, "none": none})
    assert list(table.index) == [row.model for row in own] == ["full", "none"]
    assert abs(table.loc["none", "elpd_diff"] + own["none"].elpd_difference) < 0.3
    assert_array_equal(exported["full"].observed_data["y"].values, y)
    assert exported["full"].posterior_predictive["y"].shape == (1, 1000, 40)
    az.plot_ppc(exported["full"], num_pp_samples=10)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")  # of single rows; both agree on them
def test_loo_of_the_new_arviz():
    stats = pytest.importorskip("arviz_stats")
    pytest.importorskip("arviz_base")
    fit = pointwise_fit()
    found = stats.loo(fit.to_arviz("datatree", draws=1000, seed=3))
    assert abs(float(found.elpd) - fit.loo(1000, seed=3).elpd) < 0.1


def test_draws_are_resampled_by_importance_weights(kind):
    """Light tails: the best Gaussian has an sd of 0.501."""
    fit = qbvi.fit(lambda x: np.array([-(x**4)]), Normal(0, 1), pointwise=True, family="full", seed=1)
    data = fit.to_arviz(kind, draws=4000, seed=1)
    assert data.posterior.attrs["importance_resampled"] == 1
    assert abs(fit.sd - 0.501) < 0.005
    assert abs(data.posterior["theta"].values.std() - 0.528) < 0.01  # by quadrature


def test_bad_weights_are_not_used(kind):
    """A normal approximation that is far too narrow: k-hat says so."""
    fit = qbvi.fit(lambda x: np.array([-0.5 * x**2]), Normal(0, 1), pointwise=True, family="full", seed=1)
    narrow = replace(fit, q=Gaussian(1).start(np.zeros(1), np.array([0.2])))
    data = narrow.to_arviz(kind, draws=1000, seed=1)
    assert data.posterior.attrs["importance_resampled"] == 0
    assert abs(data.posterior["theta"].values.std() - 0.2) < 0.02


def test_many_rows_are_left_out(kind, monkeypatch):
    monkeypatch.setattr(export, "_MOST", 1000)
    fit = qbvi.models.Linear(np.arange(20.0)[:, None], np.arange(20.0) + np.tile([1, -1], 10)).fit(seed=1)
    data = fit.to_arviz(kind, draws=100, seed=1)
    assert not hasattr(data, "log_likelihood")
    assert hasattr(fit.to_arviz(kind, draws=50, seed=1), "log_likelihood")


def test_wrong_coordinates():
    with pytest.raises(TypeError, match="`coords` and `dims` must be dicts"):
        make_fit(Normal(0, 1)).to_arviz(coords=3)
    with pytest.raises(TypeError, match="`predictive` must be a function"):
        make_fit(Normal(0, 1)).to_arviz(predictive=3)
