"""The one-dimensional integrals, against brute force."""

import numpy as np
import pytest
from scipy.special import expit

from qbvi.exact import expected_softplus, hermite
from qbvi.models import Binomial, Linear, Logistic, Poisson

RNG = np.random.default_rng(1)
X = RNG.standard_normal((40, 2))
ETA = X @ [1.0, -0.5]
MODELS = {
    "logistic": Logistic(X, (ETA > 0) * 1.0),
    "binomial": Binomial(X, RNG.binomial(9, expit(ETA)), 9),
    "poisson": Poisson(X, RNG.poisson(np.exp(ETA)), exposure=RNG.uniform(0.5, 2, 40)),
    "linear": Linear(X, ETA),
}


def brute_force(function, mean, sd):
    """Expectation by a fine trapezoidal rule over 24 standard deviations."""
    z = np.linspace(-12, 12, 24_001)
    weights = np.exp(-0.5 * z**2)
    return function(mean[:, None] + sd * z) @ (weights / weights.sum())


@pytest.mark.parametrize("sd", [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 1.0, 1.01, 3.0, 30.0, 100.0])
def test_expectations_of_softplus_are_exact_for_every_spread(sd):
    mean = np.concatenate([np.linspace(-5, 5, 41), [-1e3, -40.0, 40.0, 1e3]])
    found = expected_softplus(mean, np.full_like(mean, sd**2))
    functions = (lambda b: np.logaddexp(0, b), expit, lambda b: expit(b) * expit(-b))
    for values, function in zip(found, functions, strict=True):
        exact = brute_force(function, mean, sd)
        # the trapezoidal rule itself is good to 1e-12 of the size of the values
        np.testing.assert_allclose(values, exact, atol=4e-12 * max(1.0, np.abs(exact).max()))


def test_rows_of_all_spreads_may_come_together():
    mean, sd = RNG.standard_normal(200), 10 ** RNG.uniform(-3, 2, 200)
    together = expected_softplus(mean, sd**2)
    for i in range(0, 200, 7):
        alone = expected_softplus(mean[[i]], sd[[i]] ** 2)
        np.testing.assert_allclose([part[i] for part in together], [part[0] for part in alone], rtol=1e-14)


@pytest.mark.parametrize("name", MODELS)
def test_expectations_of_every_model_are_those_of_its_likelihood(name):
    """128 nodes integrate functions like these to 1e-10 under standard deviations below one."""
    model = MODELS[name]
    mean, sd = RNG.standard_normal(40), RNG.uniform(0.1, 0.8, 40)
    z, weights = hermite(128)
    eta = mean + np.multiply.outer(z, sd)
    rest = [*model.data[1:], *([np.ones((128, 1))] if name == "linear" else [])]
    found = model.expected_of(mean, sd**2, *model.data[1:])
    np.testing.assert_allclose(found.value, weights @ model.terms_of(eta, *rest), rtol=1e-9)
    slopes = model.slope_of(eta, *rest)
    np.testing.assert_allclose(found.slope, weights @ slopes, rtol=1e-9, atol=1e-9)
    # the second derivative by Stein's identity
    np.testing.assert_allclose(found.curvature, weights @ (z[:, None] * slopes) / sd, rtol=1e-8, atol=1e-8)
