"""Any scale: parameters and data in any units, flat and wide priors, from a start at zero.

The fits are full Gaussians, by regression, which is what the ladder belongs to.
"""

import numpy as np
import pytest

import qbvi
from qbvi.regression.ladder import Ladder
from qbvi.regression.rules import LadderRule

RULE = LadderRule()


def searched(function, shift, sd, top, reach=None):
    ladder = Ladder.begin(np.zeros(len(shift)), top, shift, sd, RULE, reach)
    while not ladder.is_over:
        ladder = ladder.tell(function(ladder.ask(RULE)), RULE)
    return ladder


@pytest.mark.parametrize("power", [-1, 0, 3, 8])
def test_a_parabola_is_followed_to_its_vertex_over_any_distance(power):
    centre = 10.0**power * np.array([3.0, -4.0])
    ladder = searched(lambda x: -0.5e8 * np.sum((x - centre) ** 2, axis=1), centre / 1e9, np.full(2, 0.01), -np.inf)
    np.testing.assert_allclose(ladder.best()[0], centre, rtol=1e-6)
    assert len(ladder.y) <= 52


def test_a_search_that_gains_nothing_ends_after_one_round():
    ladder = searched(lambda x: np.full(len(x), -np.inf), np.ones(2), np.ones(2), 0.0)
    assert ladder.n_rounds == 1
    assert not ladder.is_better(RULE)


def test_no_point_is_farther_out_than_the_prior_makes_sense():
    asked = []

    def rising(x):
        asked.append(x)
        return 1e6 * x[:, 0]

    searched(rising, np.ones(2), np.full(2, 0.01), 0.0, np.array([6.0, np.inf]))
    assert np.abs(np.concatenate(asked)[:, 0]).max() <= 6.0


def linear(y_unit, x_unit, n=50):
    """A linear regression in raw units, with its least squares and log residual sd."""
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(n), rng.standard_normal(n)])
    y = x @ rng.standard_normal(2) + 0.5 * rng.standard_normal(n)
    exact, rest = np.linalg.lstsq(x, y, rcond=None)[:2]
    unit = y_unit / np.array([1.0, x_unit])
    x, y = x * [1.0, x_unit], y * y_unit

    def log_likelihood(p):
        return -0.5 * np.sum(((y - x @ p["b"]) * np.exp(-p["log_sd"])) ** 2) - n * p["log_sd"]

    return log_likelihood, exact * unit, 0.5 * np.log(rest[0] / n) + np.log(y_unit)


@pytest.mark.parametrize(("y_unit", "x_unit"), [(1e9, 1.0), (1e9, 1e-9), (1e6, 1.0), (1e-9, 1.0), (1.0, 1e9)])
def test_a_regression_in_raw_units_with_flat_priors_settles(y_unit, x_unit):
    log_likelihood, b, log_sd = linear(y_unit, x_unit)
    fit = qbvi.fit(log_likelihood, {"b": qbvi.Flat(2), "log_sd": qbvi.Flat(())}, family="full", seed=1, max_evals=1500)
    assert fit.converged
    # The marginal posterior of b is a t distribution around least squares, that of log sd is skewed.
    np.testing.assert_array_less(np.abs(fit.mean["b"] - b) / fit.sd["b"], 0.15)
    assert abs(fit.mean["log_sd"] - log_sd) < 0.1


@pytest.mark.parametrize("width", [1e6, 1e12])
def test_a_regression_in_raw_units_with_wide_priors_settles(width):
    log_likelihood, b, _ = linear(1e6, 1.0)
    prior = {"b": qbvi.Normal(0, width, shape=2), "log_sd": qbvi.Normal(0, 10)}
    fit = qbvi.fit(log_likelihood, prior, family="full", seed=1, max_evals=1500)
    assert fit.converged
    shrunk = b * (1 - (fit.sd["b"] / width) ** 2)
    np.testing.assert_array_less(np.abs(fit.mean["b"] - shrunk) / fit.sd["b"], 0.15)


@pytest.mark.parametrize(("loc", "sd"), [(1e9, 1.0), (1.0, 1e-9), (1e9, 1e9), (-1e9, 1e3)])
def test_a_location_at_any_distance_is_found_exactly(loc, sd):
    fit = qbvi.fit(lambda x: -0.5 * ((x - loc) / sd) ** 2, qbvi.Flat(()), family="full", seed=0, max_evals=400)
    assert fit.converged
    np.testing.assert_allclose([(fit.mean - loc) / sd, fit.sd / sd], [0.0, 1.0], atol=1e-3)


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1e9])
def test_a_scale_parameter_of_any_size_is_found(scale):
    z = np.random.default_rng(0).standard_normal(30)
    prior = qbvi.Flat((), qbvi.Positive())
    fit = qbvi.fit(
        lambda s: -0.5 * np.sum((scale * z / s) ** 2) - 30 * np.log(s), prior, family="full", seed=0, max_evals=600
    )
    assert fit.converged
    # sigma^2 is inverse gamma with shape (30 - 1) / 2 under the flat prior
    np.testing.assert_allclose(fit.sd / fit.mean, 1 / np.sqrt(2 * 29), rtol=0.1)


def test_a_log_likelihood_beyond_all_squares_is_zero_likelihood():
    fit = qbvi.fit(lambda x: -0.5 * x**2 if x < 1 else -1e200, qbvi.Normal(0, 0.1), family="full", seed=1)
    assert fit.converged


@pytest.mark.parametrize(("scale", "seed"), [(1e-3, 1), (1e-3, 2), (1e-4, 1), (1e-4, 3)])
def test_an_exponential_on_a_far_smaller_scale_is_found(scale, seed):
    """The first draws range over tens of orders of magnitude, and no quadratic follows them."""
    shape, turn = np.array([1.0, 3.0]), np.array([[0.8, -0.6], [0.6, 0.8]])

    def log_density(theta):
        x = turn @ theta / scale - 4.0
        return np.sum(shape * x - np.exp(np.minimum(x, 500)))

    fit = qbvi.fit(log_density, qbvi.Flat(2), family="full", seed=seed, max_evals=1000)
    assert fit.converged
    # The integral has a closed form. The best Gaussian misses about a tenth of a nat of it.
    evidence = np.log(2.0) + 2 * np.log(scale)  # gamma(1) gamma(3)
    assert evidence - 0.2 < fit.elbo < evidence + 3 * fit.elbo_se


def test_a_steep_quadratic_is_not_taken_for_one_on_another_scale():
    """Its first draws range over 1e8 nats too, but the regression explains them."""
    fit = qbvi.fit(lambda x: -0.5 * np.sum((x / 1e-6) ** 2), qbvi.Flat(2), family="full", seed=0)
    assert fit.converged
    assert fit.n_evals < 80  # a narrower start would add a batch for each factor of a hundred


def test_one_step_that_was_too_long_is_no_wrong_scale(monkeypatch):
    """Centred effects of 30 groups: a step leads deep into the neck of the funnel, and is taken back.

    A search along the axis of the scale would find a high point in the neck, where there is no mass.
    """
    rng = np.random.default_rng(5)
    group, x = np.repeat(np.arange(30), 20), rng.standard_normal(600)
    eta = 0.5 + rng.standard_normal(30)[group] + 0.8 * x
    y = rng.random(600) < 1 / (1 + np.exp(-eta))

    def log_joint(theta):
        mu, log_tau, slope, effect = theta[:, [0]], theta[:, [1]], theta[:, [2]], theta[:, 3:]
        eta = effect[:, group] + slope * x
        effects = -0.5 * ((effect - mu) * np.exp(-log_tau)) ** 2 - log_tau
        top = -0.5 * (mu[:, 0] ** 2 / 25 + log_tau[:, 0] ** 2 + slope[:, 0] ** 2 / 4)
        return (y * eta - np.logaddexp(0, eta)).sum(axis=1) + effects.sum(axis=1) + top

    begun = []
    monkeypatch.setattr(Ladder, "begin", lambda *_: begun.append(1))
    qbvi.fit(log_joint, qbvi.Flat(33), vectorized=True, family="full", seed=1, max_evals=700)
    assert not begun
