"""Integrals over a surrogate of a known Gaussian, and the choice of further points."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from qbvi.free.base import Base
from qbvi.free.pool import Pool, integrated, most_informative, resampled
from qbvi.free.proposal import Proposal
from qbvi.free.rules import Caution, Integration, ShapeSearch
from qbvi.free.surface import Points, Surface
from qbvi.free.symmetry import Group, Symmetry

RULES = Integration()
MEAN = np.array([0.5, -1.0])
COV = np.array([[1.0, 0.6], [0.6, 2.0]])
LEVEL = -30.0


def log_gaussian(u):
    """The log density, times exp(LEVEL): its integral is exp(LEVEL)."""
    apart = u - MEAN
    exponent = -0.5 * np.sum(apart * np.linalg.solve(COV, apart.T).T, axis=1)
    return LEVEL + exponent - math.log(2 * math.pi) - 0.5 * math.log(np.linalg.det(COV))


def surface_of(function, theta, mean=MEAN, cov=COV):
    points = Points(theta, function(theta), np.zeros(len(theta)), np.empty((0, theta.shape[1])))
    return Surface.searched(points, Base.one(mean, cov), None, Caution(), ShapeSearch())


@pytest.fixture(scope="module")
def surface():
    rng = np.random.default_rng(3)
    return surface_of(log_gaussian, rng.multivariate_normal(MEAN, 2 * COV, size=60))


@pytest.fixture(scope="module")
def pool(surface):
    centres = np.random.default_rng(4).multivariate_normal(MEAN, COV, size=300)
    return integrated(surface, Proposal.around(centres, MEAN, COV, COV, 300.0), RULES)


def test_the_integral_and_the_moments_are_those_of_the_gaussian(pool):
    # A weighted sample of about 1,500 effective draws: five standard errors are 0.13.
    assert pool.n_effective > 1000
    assert_allclose(pool.log_z, LEVEL, atol=0.05)
    mean = pool.weights @ pool.u
    assert np.all(np.abs(mean - MEAN) < 0.13 * np.sqrt(np.diagonal(COV)))
    assert_allclose(np.cov(pool.u.T, aweights=pool.weights), COV, atol=0.3)


def test_a_poor_proposal_is_adapted_until_enough_draws_are_effective(surface):
    """Centres in one corner: each further pool follows what those before it found."""
    rules = replace(RULES, passes=0)
    centres = MEAN + 2.5 + 0.2 * np.random.default_rng(1).normal(size=(300, 2))
    poor = Proposal.around(centres, centres.mean(axis=0), 0.1 * COV, 0.1 * COV, 300.0)
    once = integrated(surface, poor, replace(rules, repeats=0))
    assert once.n_effective < RULES.enough
    pool = integrated(surface, poor, rules)
    assert pool.n_effective > RULES.enough
    assert_allclose(pool.log_z, LEVEL, atol=4 * pool.log_z_error)
    closing = integrated(surface, poor, rules, is_closing=True)
    assert closing.n_effective > RULES.enough_to_close
    assert_allclose(closing.log_z, LEVEL, atol=0.07)  # 0.02, and as much by the surrogate


def test_pools_are_joined_without_bias():
    """The centres of each proposal are draws of the pool before: their densities must not be mixed."""
    d, function = 6, lambda u: -0.5 * np.sum(u**2, axis=1) - 3 * math.log(2 * math.pi)
    rules = replace(RULES, passes=0, closing=600, enough=10**6)  # all repeats
    start = Proposal.around(np.zeros((50, d)), np.zeros(d), 0.7 * np.eye(d), 0.7 * np.eye(d), 10.0)
    errors = []
    for seed in range(10):
        theta = 1.4 * np.random.default_rng(seed).standard_normal((60 + seed, d))
        errors.append(integrated(surface_of(function, theta, np.zeros(d), np.eye(d)), start, rules).log_z)
    # Ten errors of about 0.04: their mean has a standard error of 0.013.
    assert abs(np.mean(errors)) < 0.05


def test_the_weights_have_sum_one(pool):
    assert_allclose([pool.weights.sum(), pool.hopeful.sum()], 1)


def test_a_bad_start_is_adapted(surface):
    centres = 20 + 0.01 * np.random.default_rng(1).normal(size=(300, 2))
    narrow = 1e-4 * np.eye(2)
    far = integrated(surface, Proposal.around(centres, centres.mean(axis=0), narrow, narrow, 300.0), RULES)
    assert_allclose(far.log_z, LEVEL, atol=0.1)


def test_modes_far_apart_have_their_weights():
    d, shares, apart = 4, np.array([0.2, 0.8]), 60.0
    means = np.stack([np.zeros(d), np.full(d, apart / np.sqrt(d))])
    base = Base(shares, means, np.stack([np.eye(d), np.eye(d)]))
    rng = np.random.default_rng(5)
    theta = np.concatenate([rng.normal(mean, 1.3, size=(60, d)) for mean in means])
    points = Points(theta, base.log_prob(theta), np.zeros(len(theta)), np.empty((0, d)))
    surface = Surface.searched(points, base, None, Caution(), ShapeSearch())
    centres = means[rng.choice(2, size=300, p=[0.5, 0.5])] + rng.normal(size=(300, d))
    pool = integrated(surface, Proposal.around(centres, base.mean, base.cov, base.within, 300.0), RULES)
    # The share of a mode is known to about a hundredth by 1,000 effective draws.
    assert pool.n_effective > 1000
    assert abs(pool.weights @ (pool.u[:, 0] < apart / 4) - shares[0]) < 0.05
    assert abs(pool.log_z) < 0.1


def test_a_copy_of_a_mode_that_the_proposal_has_lost_is_found_again():
    apart = 60.0
    means = np.array([[0.0, apart], [apart, 0.0]])
    base = Base(np.full(2, 0.5), means, np.stack([np.eye(2), np.eye(2)]))
    rng = np.random.default_rng(5)
    theta = np.concatenate([rng.normal(mean, 1.3, size=(60, 2)) for mean in means])
    points = Points(theta, base.log_prob(theta), np.zeros(len(theta)), np.empty((0, 2)))
    surface = Surface.searched(points, base, None, Caution(), ShapeSearch())
    lost = Proposal.around(means[0] + rng.normal(size=(300, 2)), means[0], np.eye(2), np.eye(2), 300.0)
    exchange = Group.of(2, [Symmetry((1, 0), (1, 1), "an exchange")])
    assert integrated(surface, lost, RULES).log_z < math.log(0.6)
    pool = integrated(surface, lost, RULES, exchange)
    assert abs(pool.log_z) < 0.1
    assert abs(pool.weights @ (pool.u[:, 0] < apart / 2) - 0.5) < 0.05


def test_the_same_surface_gives_the_same_pool(surface, pool):
    again = integrated(surface, pool.proposal, RULES)
    for part, other in zip(again[1:], integrated(surface, pool.proposal, RULES)[1:], strict=True):
        np.testing.assert_array_equal(part, other)


def test_the_divergence_between_two_gaussians_is_the_closed_form(pool):
    wider = 1.5
    other = -0.5 / wider * np.sum((pool.u - MEAN) * np.linalg.solve(COV, (pool.u - MEAN).T).T, axis=1)
    closed = [wider**-s + s * math.log(wider) - 1 for s in (1, -1)]  # d = 2: half the trace is one
    assert_allclose(pool.divergence(other), max(closed), rtol=0.15)
    assert abs(pool.divergence(log_gaussian(pool.u) + 77)) < 0.01  # its constant does not matter


def test_a_density_that_is_zero_somewhere_has_a_finite_divergence(pool):
    cut = np.where(pool.u[:, 0] > MEAN[0], log_gaussian(pool.u), -np.inf)
    assert 0.3 < pool.divergence(cut) < 3.0
    blocked = pool._replace(low=np.where(pool.u[:, 0] > MEAN[0], pool.low, -np.inf))
    assert 0.3 < blocked.divergence(log_gaussian(pool.u)) < 3.0
    assert abs(blocked.divergence(cut)) < 0.05


def test_a_thinned_pool_has_the_divergence_of_the_whole(pool):
    few = pool.thinned(100)
    assert 80 < few.n_effective < 250 < pool.n_effective
    mine, all_ = (one.divergence(one.low - 0.1 * one.u[:, 0] ** 2) for one in (few, pool))
    # A hundred effective draws know a mean to a tenth of its standard deviation.
    np.testing.assert_allclose(mine, all_, rtol=0.4)


def test_nothing_found_gives_equal_weights(pool):
    empty = pool._replace(low=np.full(len(pool.u), -np.inf))
    assert_allclose(empty.weights, 1 / len(pool.u))


def test_resampled_draws_are_draws_of_the_gaussian(surface, pool, rng):
    u = resampled(surface, pool.proposal, rng, 2000, RULES)
    z = np.linalg.solve(np.linalg.cholesky(COV), (u - MEAN).T)
    # Five standard errors of a mean and a variance of 2,000 draws.
    assert_allclose(z.mean(axis=1), 0, atol=0.11)
    assert_allclose(np.cov(z), np.eye(2), atol=0.16)
    half = len(u) // 2
    assert abs(np.corrcoef(u[:half, 0], u[half:, 0])[0, 1]) < 0.16  # the order is random


def everywhere(pool):
    return np.ones(len(pool.u), dtype=bool)


def test_no_informative_point_is_where_none_makes_sense(surface, pool):
    chosen = most_informative(surface, pool, 8, 600, pool.u[:, 0] > MEAN[0])
    assert np.all(chosen[:, 0] > MEAN[0])


def test_the_most_informative_points_are_where_mass_may_be_unseen():
    theta = np.random.default_rng(2).uniform(-3, 0, size=(25, 1))  # the right half was never seen
    surface = surface_of(lambda u: -0.5 * u[:, 0] ** 2, theta, np.zeros(1), np.eye(1))
    u = np.linspace(-4, 4, 400)[:, None]
    pool = Pool(None, u, np.zeros(400), *surface(u))
    chosen = most_informative(surface, pool, 4, 400, everywhere(pool))
    assert chosen.shape == (4, 1)
    assert np.mean(chosen > 0) >= 0.75
    assert chosen.max() < 3.9  # and not where nothing can be


def test_the_most_informative_points_differ(surface, pool):
    chosen = most_informative(surface, pool, 8, 600, everywhere(pool))
    apart = np.linalg.norm(chosen[:, None] - chosen, axis=2)[np.triu_indices(8, 1)]
    assert apart.min() > 0


def test_each_point_takes_account_of_those_chosen_before(surface, pool, rng):
    few, more = (most_informative(surface, pool, n, 600, everywhere(pool)) for n in (2, 5))
    np.testing.assert_array_equal(few, more[:2])
    # By the formula for all points at once, the possible density is then known better than with others.
    others = [pool.u[rng.choice(len(pool.u), 5, replace=False, p=pool.hopeful)] for _ in range(20)]
    assert left_with(more, surface, pool) < min(left_with(some, surface, pool) for some in others)


def left_with(added, surface, pool):
    """Mean variance of the prediction, under the possible density, after some points were added."""
    n, weights = len(added), pool.hopeful[::60]
    u = np.vstack([added, pool.u[::60]])
    C = surface.process.covariance(surface.whitened(u), surface.predicted(u))
    noise = (1e-4 + 1e-6 * surface.process.variance) * np.eye(n)
    left = C[n:, n:] - C[n:, :n] @ np.linalg.solve(C[:n, :n] + noise, C[:n, n:])
    return weights @ np.diagonal(left)


def test_draws_from_the_possible_density_are_as_many_as_their_weights_say(pool):
    everywhere = np.ones(len(pool.u), dtype=bool)
    drawn = pool.possible(np.random.default_rng(1), 40, everywhere)
    assert drawn.counts.sum() == 40
    assert len(drawn.u) == len(drawn.counts)
    assert_allclose(drawn.log_z, pool.log_integral(pool.high))
    heavy = int(np.argmax(pool.hopeful))
    one = pool.possible(np.random.default_rng(1), 40, everywhere & (np.arange(len(pool.u)) == heavy))
    assert_allclose(one.u, pool.u[[heavy]])
    assert one.counts.tolist() == [40]
    assert one.log_z_error > 0.9  # one effective draw
    assert drawn.log_z_error < 0.1
