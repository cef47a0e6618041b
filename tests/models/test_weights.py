"""Weights of rows: a row of weight w counts as w rows."""

import numpy as np
import pytest

from qbvi.models import Binomial, Linear, Logistic, MultinomialLogistic, Poisson

RNG = np.random.default_rng(3)
X = RNG.standard_normal((40, 2))
ETA = X @ [1.0, -0.5]
TIMES = RNG.integers(1, 4, 40)
EXPOSURE = RNG.uniform(0.5, 2.0, 40)
MODELS = {
    "logistic": (Logistic, RNG.random(40) < 1 / (1 + np.exp(-ETA)), {}),
    "linear": (Linear, ETA + RNG.standard_normal(40), {}),
    "poisson": (Poisson, RNG.poisson(EXPOSURE * np.exp(ETA)), {"exposure": EXPOSURE}),
    "binomial": (Binomial, RNG.binomial(5, 1 / (1 + np.exp(-ETA))), {"trials": np.full(40, 5)}),
    "multinomial": (MultinomialLogistic, np.digitize(ETA + RNG.standard_normal(40), [-0.5, 0.5]), {}),
}


@pytest.fixture(params=MODELS)
def pair(request):
    """A model with weights, and the same with its rows repeated."""
    build, y, columns = MODELS[request.param]
    repeated = {name: np.repeat(values, TIMES) for name, values in columns.items()}
    return build(X, y, weights=TIMES, **columns), build(np.repeat(X, TIMES, axis=0), np.repeat(y, TIMES), **repeated)


def test_weighted_rows_are_repeated_rows(pair):
    weighted, repeated = pair
    point = RNG.uniform(0.2, 0.8, (3, len(weighted.names)))
    np.testing.assert_allclose(weighted.log_likelihood(point), repeated.log_likelihood(point), rtol=1e-12)
    np.testing.assert_allclose(weighted.gradient(point), repeated.gradient(point), rtol=1e-9, atol=1e-9)
    assert weighted.total_weight == repeated.total_weight == TIMES.sum()


def test_default_priors_follow_the_weights(pair):
    weighted, repeated = (model.prior for model in pair)
    for name, prior in weighted.items():
        # The parameters of a prior are compared through its density at two points.
        at = np.array([0.3, 1.7])
        np.testing.assert_allclose(prior.log_prob(at), repeated[name].log_prob(at), rtol=1e-10)


@pytest.mark.parametrize("name", ["logistic", "linear", "poisson", "binomial"])
def test_exact_fits_follow_the_weights(name):
    build, y, columns = MODELS[name]
    repeated = {column: np.repeat(values, TIMES) for column, values in columns.items()}
    weighted = build(X, y, weights=TIMES, **columns).fit(seed=1)
    other = build(np.repeat(X, TIMES, axis=0), np.repeat(y, TIMES), **repeated).fit(seed=1)
    # Both fits end within 1e-8 nats of the optimum, a ten-thousandth of a standard deviation.
    for parameter in weighted.mean:
        assert abs(weighted.mean[parameter] - other.mean[parameter]) < 2e-4 * other.sd[parameter]
        assert weighted.sd[parameter] == pytest.approx(other.sd[parameter], rel=2e-4)
    assert weighted.elbo == pytest.approx(other.elbo, abs=1e-7)


def test_weights_must_be_positive():
    with pytest.raises(ValueError, match=r"`weights` must be positive .* got 0 in row 1"):
        Logistic(X[:3], [0, 1, 1], weights=[1, 0, 2])
