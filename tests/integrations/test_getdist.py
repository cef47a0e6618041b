"""Samples for GetDist: names, labels, weights, bounds, and moments as GetDist computes them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import qbvi
from qbvi.families import Gaussian
from qbvi.getdist import _latex, _names, to_getdist
from qbvi.model import Model
from qbvi.results import Fit, Report


def by_hand(prior, sd=0.5):
    model = Model(prior)
    d = model.dim
    return Fit(model, Gaussian(d), Gaussian(d).start(np.zeros(d), np.full(d, sd)), Report())


def test_names_and_labels():
    assert _names(("beta[0]", "A[0,1]", "my rate*", "my rate?", "x.y")) == [
        "beta_0",
        "A_0_1",
        "my_rate",
        "my_rate__2",
        "x.y",
    ]
    assert _latex(("beta[0]", "rate", "n_0"), {}) == [r"\beta_{0}", r"\mathrm{rate}", r"\mathrm{n~0}"]
    with pytest.raises(ValueError, match="got 'betas'; did you mean 'beta'"):
        _latex(("beta",), {"betas": "x"})


def test_without_getdist(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "getdist", None)
    with pytest.raises(ImportError, match=r"pip install 'qbvi\[getdist\]'"):
        by_hand(qbvi.Normal(0, 1)).to_getdist()


@pytest.mark.integrations
class TestWithGetDist:
    @pytest.fixture(autouse=True)
    def _getdist(self):
        pytest.importorskip("getdist", reason="GetDist is not installed: pip install 'qbvi[getdist]'")

    def test_moments_names_and_bounds(self):
        fit = by_hand({"beta": qbvi.Normal(0, 1, shape=2), "s": qbvi.HalfNormal(1.0), "p": qbvi.Uniform(-1, 2)})
        samples = fit.to_getdist(20_000, seed=1, labels={"s": r"\sigma_8"}, label="qbvi")
        assert samples.getParamNames().list() == ["beta_0", "beta_1", "s", "p"]
        assert samples.getParamNames().labels() == [r"\beta_{0}", r"\beta_{1}", r"\sigma_8", r"\mathrm{p}"]
        # The error of a mean of 20,000 independent draws, five times.
        assert_allclose(samples.getMeans(), [*fit.mean["beta"], fit.mean["s"], fit.mean["p"]], atol=5 * 0.7 / 141)
        assert samples.ranges.getLower("s") == 0.0
        assert samples.ranges.getUpper("s") is None
        assert (samples.ranges.getLower("p"), samples.ranges.getUpper("p")) == (-1.0, 2.0)
        assert samples.getLabel() == "qbvi"
        assert_allclose(samples.loglikes, -fit.log_prob(fit.sample(20_000, seed=1), batched=True))
        assert samples.get1DDensity("s").Prob(-0.1) == 0  # the density ends at its bound

    def test_weights_of_a_check(self):
        def likelihood(x):
            return -0.5 * ((x - 1.0) / 0.5) ** 2

        exact = 1.0 / (1.0 + 0.25)  # conjugate: precision 4 at 1 and precision 1 at 0
        q = Gaussian(1).start(np.array([0.6]), np.array([0.6]))
        fit = Fit(Model(qbvi.Normal(0, 1)), Gaussian(1), q, Report()).check(4000, likelihood, seed=1)
        samples = to_getdist(fit)
        found = fit.weighted_draws()
        assert samples.samples.shape == (4000, 1)
        assert_allclose(samples.getMeans()[0], found.mean)
        assert abs(samples.getMeans()[0] - exact) < 0.04  # four standard errors; q has 0.6
