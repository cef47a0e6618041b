"""Coordinates in which funnels and bent ridges are straight: exact inverses, exact structure, and where it is absent."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import qbvi
from qbvi.free.base import Base
from qbvi.free.density import FreeDensity, Member
from qbvi.free.pool import integrated
from qbvi.free.proposal import Proposal
from qbvi.free.rules import Caution, Integration, ShapeSearch, WarpSearch
from qbvi.free.surface import Coordinates, Points, Surface
from qbvi.free.warp import Sample, fitted, found

RULES = WarpSearch()
OFFSET = np.array([1.0, -2.0, 0.5])


def gaussian(theta):
    P = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 1.5]])
    return -0.5 * np.sum((theta - OFFSET) * ((theta - OFFSET) @ P), axis=1)


def banana(theta):
    return -((theta[:, 1] - theta[:, 0] ** 2) ** 2) - 0.5 * theta[:, 0] ** 2 - 0.5 * theta[:, 2] ** 2


def effects(theta):
    """Two effects around a mean of zero, with the log of their scale, and a likelihood for each."""
    u, v = theta[:, 0], theta[:, 1:]
    likelihood = -0.5 * np.sum((v - OFFSET[1:]) ** 2, axis=1)
    return likelihood - 0.5 * np.sum(v**2, axis=1) * np.exp(-2 * u) - 2 * u - 0.5 * (u / 1.5) ** 2


def sample_of(function, n=120, seed=1):
    theta = np.random.default_rng(seed).normal([0.3, 0.0, 0.2], 1.2, size=(n, 3))
    return theta, Sample.of(theta, function(theta), theta.mean(axis=0), np.cov(theta.T))


# --- the structure


def test_a_gaussian_has_no_structure():
    _, sample = sample_of(gaussian)
    assert found(sample, RULES) == ()


def test_the_bend_of_a_banana_is_seen():
    _, sample = sample_of(banana)
    assert found(sample, RULES) == ((0, 0.0),)


def test_the_log_scale_of_effects_is_seen():
    _, sample = sample_of(effects)
    ((column, rate),) = found(sample, RULES)
    assert column == 0
    assert rate > 0  # rates of one and two both have exp(-2 u)


def standardised(theta):
    """Two standardised effects, the logs of their scale and of the noise, and three outcomes of each."""
    s, t, z = theta[:, 0], theta[:, 1], theta[:, 2:]
    apart = OFFSET[1:] - np.exp(s)[:, None] * z
    likelihood = -1.5 * np.sum(apart**2, axis=1) * np.exp(-2 * t) - 6 * t
    return likelihood - 0.5 * np.sum(z**2, axis=1) - 0.5 * s**2 - 0.5 * (t / 0.5) ** 2


def four_of(function, n, seed=1):
    theta = np.random.default_rng(seed).normal([0.0, 0.3, -0.8, 0.3], [0.7, 0.4, 0.9, 0.9], size=(n, 4))
    return theta, Sample.of(theta, function(theta), theta.mean(axis=0), np.cov(theta.T))


def test_two_scales_are_seen_together():
    """The precision of a standardised effect has the square of its scale over that of the noise."""
    _, sample = four_of(standardised, 200)
    assert set(found(sample, RULES)) == {(0, -1.0), (1, 2.0)}


def test_standardised_effects_are_normal_given_both_scales(rng):
    _, sample = four_of(standardised, 200)
    warp = fitted(sample, ((0, -1.0), (1, 2.0)), RULES)
    theta = np.concatenate([np.tile([0.2, 0.1], (20, 1)), rng.normal(size=(20, 2))], axis=1)
    w, log_jacobian = warp.straight(theta)
    level = standardised(theta) - log_jacobian + 0.5 * np.sum(w[:, 2:] ** 2, axis=1)
    assert_allclose(level, level[0], atol=0.02)  # the noise of the regression, as above


def test_scales_are_seen_beside_a_slope_of_the_year(rng):
    """Intercepts of three groups and a slope of years near 2005, correlated to 0.9999.

    A structure that is exact gained 0.7 nats a point with coefficients that are alike in the coordinates as they are.
    """
    group, year = np.repeat(np.arange(3), 6), rng.uniform(1990, 2020, 18)
    y = rng.normal(size=3)[group] + 0.05 * (year - 2005) + 0.3 * rng.normal(size=18)

    def log_joint(theta):
        log_tau, log_sigma, slope, effect = theta[:, :1], theta[:, 1:2], theta[:, 2:3], theta[:, 3:]
        rest = (y - slope * year - effect[:, group]) * np.exp(-log_sigma)
        likelihood = -0.5 * np.sum(rest**2, axis=1) - 18 * log_sigma[:, 0]
        apart = (effect - effect.mean(axis=1, keepdims=True)) * np.exp(-log_tau)
        return likelihood - 0.5 * np.sum(apart**2, axis=1) - 2 * log_tau[:, 0] - 0.5 * np.sum(theta[:, :2] ** 2, axis=1)

    columns = np.column_stack([year, np.eye(3)[group]])
    cov = np.diag([0.3, 0.03, 0, 0, 0, 0])
    cov[2:, 2:] = 0.1 * np.linalg.inv(columns.T @ columns)
    mean = np.concatenate([[0.0, -1.1], np.linalg.solve(columns.T @ columns, columns.T @ y)])
    theta = rng.multivariate_normal(mean, 1.5 * cov, 300)
    values = log_joint(theta)
    best = np.argsort(-values)
    assert {column for column, _ in found(Sample.of(theta[best], values[best], mean, cov), RULES)} == {0, 1}


def test_a_rough_function_has_no_structure(rng):
    theta, sample = sample_of(gaussian)
    assert found(sample._replace(y=rng.normal(size=len(theta))), RULES) == ()


# --- the coordinates


@pytest.mark.parametrize(("function", "given"), [(banana, ((0, 0.0),)), (effects, ((0, 2.0),))])
def test_the_others_are_standard_normal_given_s(function, given, rng):
    _, sample = sample_of(function)
    warp = fitted(sample, given, RULES)
    theta = np.concatenate([np.full((20, 1), 0.4), rng.normal(size=(20, 2))], axis=1)  # the same s
    w, log_jacobian = warp.straight(theta)
    level = function(theta) - log_jacobian + 0.5 * np.sum(w[:, 1:] ** 2, axis=1)
    # The functions are in the class exactly. What is left is the noise of 1e-8 in the regression.
    assert_allclose(level, level[0], atol=0.01)


@pytest.mark.parametrize("function", [gaussian, banana, effects])
@pytest.mark.parametrize("given", [((0, 0.0),), ((1, -1.0),), ((0, 2.0), (2, 1.0))])
def test_bent_undoes_straight_whatever_the_structure(function, given, rng):
    _, sample = sample_of(function)
    warp = fitted(sample, given, RULES)
    theta = 3 * rng.normal(size=(50, 3))
    w, log_jacobian = warp.straight(theta)
    back, same = warp.bent(w)
    assert_allclose(back, theta, rtol=1e-6, atol=1e-6)
    assert_allclose(same, log_jacobian)


def test_the_jacobian_is_that_of_finite_differences(rng):
    _, sample = sample_of(effects)
    warp = fitted(sample, ((0, 2.0),), RULES)
    h = 1e-6
    for theta in rng.normal(size=(5, 3)):
        steps = np.concatenate([theta + h * np.eye(3), theta - h * np.eye(3)])
        w, _ = warp.straight(steps)
        numerical = np.linalg.slogdet((w[:3] - w[3:]) / (2 * h))[1]
        assert_allclose(warp.straight(theta[None])[1][0], numerical, atol=1e-5)


def test_no_structure_leaves_the_points_as_they_are(rng):
    theta, sample = sample_of(gaussian)
    warp = fitted(sample, (), RULES)
    assert not warp
    w, log_jacobian = warp.straight(theta)
    assert_array_equal(w, theta)
    assert_array_equal(warp.bent(w)[0], theta)
    assert_array_equal(log_jacobian, 0.0)


def test_far_out_the_precision_stays_positive():
    _, sample = sample_of(effects)
    warp = fitted(sample, ((0, 2.0),), RULES)
    far = np.array([[-40.0, 1.0, 1.0], [40.0, 1.0, 1.0]])
    w, log_jacobian = warp.straight(far)
    assert np.isfinite(w).all()
    assert np.isfinite(log_jacobian).all()


# --- the surrogate in these coordinates


def test_the_density_integrates_to_one():
    def funnel(theta):
        return -0.5 * theta[:, 0] ** 2 - 0.5 * theta[:, 1] ** 2 * np.exp(-2 * theta[:, 0]) - theta[:, 0]

    theta = np.random.default_rng(2).normal(size=(80, 2)) * [1.0, 2.0]
    sample = Sample.of(theta, funnel(theta), theta.mean(axis=0), np.cov(theta.T))
    warp = fitted(sample, ((0, 2.0),), RULES)
    points = Points(theta, funnel(theta), np.zeros(80), np.empty((0, 2)))
    base, rules = Base.standard(2), Integration()
    surface = Surface.searched(points, base, None, Caution(), ShapeSearch(), Coordinates(warp=warp))
    centres = np.random.default_rng(3).normal(size=(300, 2))
    pool = integrated(surface, Proposal.around(centres, base.mean, base.cov, base.within, 300.0), rules)
    mean = pool.weights @ pool.u
    member = Member(
        points, base, surface.shape, pool.proposal, warp, pool.log_z, mean, np.cov(pool.u.T, aweights=pool.weights)
    )
    density = FreeDensity.holding(member, Caution(), rules)
    q = density.pack(member)
    s, x = np.linspace(-6, 6, 400), np.sinh(np.linspace(-7, 7, 500))
    grid = np.stack(np.meshgrid(s, x, indexing="ij"), axis=-1).reshape(-1, 2)
    values = np.exp(density.log_prob(q, grid)).reshape(400, 500)
    total = np.trapezoid(np.trapezoid(values, x, axis=1), s)
    # log Z is by importance sampling, with an error of about 0.01.
    assert_allclose(total, 1, atol=5 * pool.log_z_error + 0.01)
    assert_array_equal(density.unpack(q).warp.precision, warp.precision)
    # The log of the scale is standard normal, and the integral of the function is 2 pi.
    assert_allclose(pool.log_z, math.log(2 * math.pi), atol=0.1)


def test_a_hierarchical_model_has_its_evidence_and_its_scale():
    y, s = np.array([4.1, 7.9, 2.2, 5.0]), 1.5

    def log_joint(p):
        apart = (p["theta"] - p["mu"]) / p["tau"]
        return -0.5 * np.sum(((y - p["theta"]) / s) ** 2) - 0.5 * np.sum(apart**2) - len(y) * np.log(p["tau"])

    prior = {"mu": qbvi.Normal(0, 10), "tau": qbvi.HalfNormal(5), "theta": qbvi.Flat(shape=4)}
    fit = qbvi.fit(log_joint, prior, seed=2)
    # Given tau, everything is Gaussian; tau is integrated on a grid of its logarithm.
    log_tau = np.linspace(-9, 4, 4001)
    tau = np.exp(log_tau)
    variance = tau**2 + s**2
    n, mean = len(y), y.mean()
    log_p = -0.5 * np.sum((y - mean) ** 2) / variance - 0.5 * mean**2 / (variance / n + 100)
    log_p += -0.5 * (n - 1) * np.log(variance) - 0.5 * np.log(variance / n + 100) - 0.5 * math.log(n)
    log_p += 0.5 * n * math.log(2 * math.pi) + n * math.log(s)
    log_p += math.log(math.sqrt(2 / math.pi) / 5) - 0.5 * (tau / 5) ** 2 + log_tau
    weights = np.exp(log_p - log_p.max())
    evidence = log_p.max() + math.log(weights.sum() * (log_tau[1] - log_tau[0]))
    weights /= weights.sum()
    exact = weights @ log_tau
    sd = math.sqrt(weights @ (log_tau - exact) ** 2)
    assert fit.converged
    assert abs(fit.evidence - evidence) < 0.1
    draws = np.sort(np.log(fit.sample(4000, seed=1)["tau"]))
    apart = np.interp(draws, log_tau, np.cumsum(weights)) - np.arange(len(draws)) / len(draws)
    # With 0.05 nats missing, probabilities may be off by the root of half of that (Pinsker); 4,000
    # draws add three standard errors. Most is missing in the lower tail of the scale.
    assert np.max(np.abs(apart)) < math.sqrt(0.05 / 2) + 1.5 / math.sqrt(len(draws))
    assert abs(draws.mean() - exact) < 0.15 * sd


def test_the_best_points_are_those_of_the_density_in_the_new_coordinates():
    """In the old ones the density is highest in the neck of the funnel, where there is no mass."""
    theta, sample = sample_of(effects)
    warp, y = fitted(sample, ((0, 2.0),), RULES), effects(theta)
    points = Points(theta, y, np.zeros(len(y)), np.empty((0, 3)))
    shape = ShapeSearch().start(3)
    surface = Surface(points, Base.standard(3), shape, Caution(), Coordinates(warp=warp))
    w, log_jacobian = warp.straight(theta)
    order = np.argsort(log_jacobian - y)
    assert_array_equal(surface.best(5), w[order[:5]])
    assert not np.array_equal(order[:5], np.argsort(-y)[:5])


def test_where_both_coordinates_are_extrapolated_no_width_is_beyond_the_points():
    """P falls along the diagonal alone: it vanishes at two corners, and not on the way out along an axis."""
    rng = np.random.default_rng(1)
    s, v = rng.uniform(-3, 3, (400, 2)), 3 * rng.standard_normal((400, 1))
    precision = 1 - 0.06 * s[:, :1] * s[:, 1:]
    y = -0.5 * (precision * v**2)[:, 0] - 0.5 * np.sum(s**2, axis=1)
    sample = Sample.of(np.column_stack([s, v]), y, np.zeros(3), np.eye(3))
    warp = fitted(sample, ((0, 0.0), (1, 0.0)), WarpSearch())
    corners = np.array([[a, b, w] for a in (-6.0, 6.0) for b in (-6.0, 6.0) for w in (-1.0, 1.0)])
    theta, _ = warp.bent(corners)
    assert np.all(np.abs(theta[:, 2]) <= 2 * np.max(np.abs(v)))
    # Inside the points nothing is limited.
    theta, _ = warp.bent(np.array([[1.0, 1.0, 1.0], [1.5, -1.5, 1.0]]))
    assert_allclose(theta[:, 2], [0.94**-0.5, 1.135**-0.5], rtol=0.02)
