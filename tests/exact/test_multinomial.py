"""The bound of a multinomial regression: against one predictor, differences, and a black-box fit."""

import numpy as np
import pytest

from qbvi.exact import GaussianPrior, MultinomialBound
from qbvi.models import Logistic, MultinomialLogistic

RNG = np.random.default_rng(8)
X = RNG.standard_normal((120, 2))
SCORES = X @ RNG.standard_normal((2, 5)) + RNG.gumbel(size=(120, 5))
TWO, THREE, FIVE = (SCORES[:, :k].argmax(axis=1) for k in (2, 3, 5))


def test_two_classes_are_a_logistic_regression():
    one, several = Logistic(X, TWO).fit(seed=1), MultinomialLogistic(X, TWO).fit(seed=1)
    mean, sd = (np.array(list(part.values())) for part in (one.mean, one.sd))
    # Both stop within 1e-8 nats, and the integrals of narrow Gaussians are exact to 1e-10.
    np.testing.assert_allclose(list(several.mean.values()), mean, atol=2e-4 * sd.min())
    np.testing.assert_allclose(list(several.sd.values()), sd, rtol=2e-4)


@pytest.mark.parametrize("y", [THREE, FIVE], ids=["three", "five"])
def test_gradient_and_curvature_are_derivatives_of_the_bound(y):
    model = MultinomialLogistic(X, y, weights=RNG.uniform(0.5, 2.0, 120))
    d = len(model.names)
    bound = MultinomialBound(model, GaussianPrior(np.zeros(d), np.ones(d), 0.0))
    mean, precision, step = 0.3 * RNG.standard_normal(d), 20.0 * np.eye(d), 1e-4
    here = bound.at(mean, precision)
    ahead, behind = ([bound.at(mean + sign * step * e, precision) for e in np.eye(d)] for sign in (1, -1))
    # Central differences have an error of step^2 times third derivatives of a few hundred rows.
    slopes = [(a.bound - b.bound) / (2 * step) for a, b in zip(ahead, behind, strict=True)]
    np.testing.assert_allclose(slopes, here.gradient, atol=1e-5)
    curvature = [(b.gradient - a.gradient) / (2 * step) for a, b in zip(ahead, behind, strict=True)]
    np.testing.assert_allclose(curvature, here.target, atol=1e-4)


def test_the_bound_is_that_of_fresh_draws_and_the_fit_the_best_gaussian():
    model = MultinomialLogistic(X, THREE)
    exact = model.fit(method="exact", seed=1)
    black_box = model.fit(method="regression", family="full", tol=1e-3, seed=1)
    assert exact.converged
    assert exact.elbo_se > 0  # the nodes have an error, so the bound of the draws is reported
    # The black box is within 0.001 nats of the best Gaussian, 0.05 standard deviations.
    for name, sd in black_box.sd.items():
        assert abs(exact.mean[name] - black_box.mean[name]) < 0.1 * sd
        assert exact.sd[name] == pytest.approx(sd, rel=0.05)
    assert abs(exact.elbo - black_box.elbo) < 4 * np.hypot(exact.elbo_se, black_box.elbo_se)
