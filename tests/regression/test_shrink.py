"""How narrow a start must be: found inwards in each coordinate, and regressions with a log link in raw units."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.special import gammaln

import qbvi
from qbvi.regression.gaussian import _is_steep_on_both_sides, _is_steep_on_one_side
from qbvi.regression.rules import LadderRule, ShrinkRule
from qbvi.regression.shrink import Shrink

RULE = ShrinkRule()


def searched(function, centre, lengths, **best):
    shrink, asked = Shrink.begin(centre, lengths, **best), []
    while not shrink.is_over:
        points = shrink.ask()
        asked.append(points)
        shrink = shrink.told(function(points), RULE)
    return shrink, np.concatenate(asked)


def exponentials(rates):
    """Zero likelihood where one of them overflows."""

    def log_density(u):
        x = u * rates
        return np.where(np.any(x > 700, axis=1), -np.inf, np.sum(x - np.exp(np.minimum(x, 700)), axis=1))

    return log_density


@pytest.mark.parametrize("rates", [(1.0, 1e3), (1e-2, 1e8), (5.0, 5.0), (1e6, 1e-6)])
def test_each_coordinate_has_its_own_length(rates):
    rates = np.array(rates)
    shrink, asked = searched(exponentials(rates), np.zeros(2), np.ones(2))
    # exp(x) - x - 1 is 5 nats at x = 2, and a step is at most 33 times shorter than the one before.
    assert np.all(shrink.lengths <= np.maximum(2.1 / rates, 1e-12))
    assert np.all(shrink.lengths >= np.minimum(1.0, 0.03 / rates))
    assert len(asked) <= 1 + 4 * RULE.rounds


def test_the_ends_of_the_last_steps_are_known():
    function = exponentials(np.array([10.0, 1e4]))
    shrink, _ = searched(function, np.zeros(2), np.ones(2))
    points, y = shrink.points()
    assert points.shape == (4, 2)
    assert_allclose(y, function(points))
    assert_allclose(points[0] + points[1], 2 * shrink.origin)  # mirror pairs
    assert np.max(np.abs(y - shrink.y)) <= RULE.change


def test_the_search_is_around_the_better_of_centre_and_best_point():
    function, far = exponentials(np.array([3.0])), np.array([-2.0])
    worse, _ = searched(function, np.zeros(1), np.ones(1), best=far, best_y=float(function(far[None])[0]))
    assert worse.origin == 0.0
    better, _ = searched(function, np.array([5.0]), np.ones(1), best=far, best_y=float(function(far[None])[0]))
    assert better.origin == far


def test_without_any_likelihood_one_call_ends_the_search():
    shrink, asked = searched(lambda u: np.full(len(u), -np.inf), np.zeros(3), np.ones(3))
    assert len(asked) == 1
    assert not shrink.is_found


def counts(is_guarded):
    """A Poisson regression on an income of tens of thousands and on kilometres, as users write it."""
    rng = np.random.default_rng([0, 7])
    x = np.column_stack([np.ones(120), rng.lognormal(10.8, 0.5, 120), rng.uniform(0, 500, 120)])
    y = rng.poisson(np.exp(x @ [0.5, 1.2e-5, -0.003]))

    def log_likelihood(p):
        eta = p["b0"] + p["income"] * x[:, 1] + p["km"] * x[:, 2]
        if is_guarded and np.any(eta > 500):
            return -math.inf
        with np.errstate(over="ignore"):
            value = np.sum(y * eta - np.exp(eta) - gammaln(y + 1))
        return float(value)

    return log_likelihood, x, y


def mode(x, y, sd):
    """Mode of the posterior and its curvature, by Newton's method in units of the columns."""
    unit = x.std(axis=0) + (x.std(axis=0) == 0)
    z, prior = x / unit, 1 / (sd * unit) ** 2
    beta = np.zeros(3)
    for _ in range(50):
        rate = np.exp(z @ beta)
        precision = (z.T * rate) @ z + np.diag(prior)
        beta = beta + np.linalg.solve(precision, z.T @ (y - rate) - prior * beta)
    return beta / unit, np.sqrt(np.diag(np.linalg.inv(precision))) / unit


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize("width", [1.0, 100.0])
def test_counts_in_raw_units_settle(width, is_guarded):
    """Half of the first draws overflow; before, such fits spent their budgets."""
    log_likelihood, x, y = counts(is_guarded)
    sd = np.array([5.0, width, width])
    prior = dict(zip(("b0", "income", "km"), (qbvi.Normal(0, s) for s in sd), strict=True))
    fit = qbvi.fit(log_likelihood, prior, seed=1, max_evals=600)
    assert fit.converged
    assert fit.n_evals < 300
    # 120 counts: the posterior is nearly Gaussian, a tenth of a standard deviation from its mode.
    best, curvature = mode(x, y, sd)
    found = np.array([[fit.mean[name], fit.sd[name]] for name in prior])
    assert np.all(np.abs(found[:, 0] - best) < 0.25 * curvature)
    assert_allclose(found[:, 1], curvature, rtol=0.1)


def test_one_gaussian_settles_there_too():
    log_likelihood, x, y = counts(is_guarded=True)
    prior = {"b0": qbvi.Normal(0, 5), "income": qbvi.Normal(0, 1), "km": qbvi.Normal(0, 1)}
    fit = qbvi.fit(log_likelihood, prior, family="full", seed=1, max_evals=400)
    best, curvature = mode(x, y, np.array([5.0, 1.0, 1.0]))
    assert fit.converged
    assert np.all(np.abs(np.array([fit.mean[name] for name in prior]) - best) < 0.25 * curvature)


def test_a_start_that_is_too_wide_in_some_columns_is_narrowed():
    """A regression on dollars, years, shares and areas under wide normal priors; its evidence is by quadrature."""
    rng, n = np.random.default_rng(61), 80
    columns = rng.lognormal(10.8, 0.5, n), rng.integers(18, 80, n), rng.uniform(1950, 2020, n), rng.random(n)
    x = np.column_stack([np.ones(n), *columns, rng.uniform(500, 4000, n), rng.standard_normal(n)])
    y = x @ [-2e5, 1.2, -300, 100, 4e4, 60, 2e3] + rng.normal(0, 2e4, n)

    def log_likelihood(p):
        r = (y - x @ p["beta"]) / p["sigma"]
        return -0.5 * r @ r - n * np.log(p["sigma"])

    def given(log_sigma):
        precision = x.T @ x * np.exp(-2 * log_sigma) + np.eye(7) / 1e12
        mean = np.linalg.solve(precision, x.T @ y) * np.exp(-2 * log_sigma)
        square = y @ y * np.exp(-2 * log_sigma) - mean @ precision @ mean
        log_det = np.linalg.slogdet(precision)[1] + 14 * np.log(1e6)
        log_prior = np.log(2 / (np.pi * 1e5)) - np.log1p((np.exp(log_sigma) / 1e5) ** 2) + log_sigma
        return -0.5 * (square + log_det) - n * log_sigma + log_prior

    grid = np.linspace(9, 11, 401)
    log_p = np.array([given(one) for one in grid])
    exact = float(np.logaddexp.reduce(log_p) + np.log(grid[1] - grid[0]))
    prior = {"beta": qbvi.Normal(0, 1e6, shape=7), "sigma": qbvi.HalfCauchy(1e5)}
    fit = qbvi.fit(log_likelihood, prior, family="full", seed=1, max_evals=900, progress=False)
    assert fit.converged
    assert exact - 0.1 < fit.elbo < exact + 0.02


def test_where_changes_of_a_few_nats_are_rounding_nothing_is_narrowed():
    shrink, asked = searched(lambda u: -1e22 - u[:, 0], np.zeros(1), np.ones(1))
    assert not shrink.is_found
    assert len(asked) == 1


def test_a_start_that_is_far_away_is_not_too_wide():
    """It sees a slope on both sides of its mean, however steep; a wide one sees a fall."""
    z = np.array([[1.0], [-1.0], [2.0], [-2.0]])
    far, wide = (-0.5 * (1e3 * z[:, 0] - shift) ** 2 for shift in (1e7, 10.0))
    assert not _is_steep_on_both_sides(far, 1e4)
    assert _is_steep_on_both_sides(wide, 1e4)
    assert not _is_steep_on_both_sides(np.where(np.arange(4) == 1, -np.inf, wide), 1e4)


def test_an_exponential_falls_on_one_side_alone():
    """A line, a quadratic that is far away, and one that is too narrow change on both sides."""
    z = np.repeat([[2.0, 0.1], [0.2, 1.0], [0.1, -0.5]], 2, axis=0) * np.tile([[1.0], [-1.0]], (3, 1))
    steep = {
        "exponential": (-np.exp(30 * z[:, 0]) + z[:, 1], True),
        "line": (1e6 * z[:, 0] - z[:, 1], False),
        "far": (-0.5 * (1e3 * z[:, 0] - 1e7) ** 2, False),
        "narrow": (-0.5 * (1e4 * z[:, 0] - 30) ** 2 - z[:, 1] ** 2, False),
    }
    for y, is_one_sided in steep.values():
        assert _is_steep_on_one_side(y, LadderRule().one_sided) == is_one_sided


@pytest.mark.parametrize("seed", [4, 5])
def test_counts_whose_logarithm_is_piecewise_linear_far_out_settle(seed):
    """The negative binomial does not overflow, so steps led away from a start that was too wide.

    At the start the log joint falls on both sides, and after a step on one.
    """
    rng = np.random.default_rng(103)
    income, age = rng.lognormal(10.5, 0.5, 120), rng.uniform(18, 80, 120)
    x = np.column_stack([np.ones(120), income, age])
    y = rng.poisson(rng.gamma(2.2, np.exp(x @ [-0.4, 1.5e-5, 0.02]) / 2.2))
    unit = np.array([1.0, 1e-5, 1e-2, 1.0])

    def log_likelihood(v):
        eta, size = x @ v[:3], np.exp(v[3])
        both = np.logaddexp(v[3], eta)
        counts = gammaln(y + size) - gammaln(size) - gammaln(y + 1)
        return float(np.sum(counts + size * (v[3] - both) + y * (eta - both)))

    fit = qbvi.fit(log_likelihood, qbvi.Normal(0, 10, shape=4), seed=seed, max_evals=500)
    assert fit.converged
    best = minimize(lambda t: -log_likelihood(t * unit) + 0.5 * np.sum((t * unit / 10) ** 2), [0, 0, 0, 0.0])
    # 120 counts: the posterior is nearly Gaussian.
    assert np.all(np.abs(fit.mean - best.x * unit) < 0.4 * fit.sd)
