"""Gaussians of low rank plus a diagonal: the members are exact, and projections are the nearest ones."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from qbvi.arrays import to_numpy
from qbvi.families import Gaussian, LowRankGaussian
from qbvi.families.low_rank import Form, Spikes, nearest, worth

SHAPES = [(1, 1), (4, 1), (6, 2), (7, 5), (40, 3)]


def spikes_of(rng, d, r, xp=np):
    """A generic precision: wide directions and narrow ones."""
    U = np.linalg.qr(rng.standard_normal((d, r)))[0]
    return Spikes(*map(xp.asarray, (np.exp(rng.standard_normal(d)), U, np.exp(2 * rng.standard_normal(r)))))


def member(rng, d, r, xp=np):
    family = LowRankGaussian(d, r)
    return family, family.member(xp.asarray(rng.standard_normal(d)), spikes_of(rng, d, r, xp))


def divergence(cov, precision):
    """KL between Gaussians of the same mean."""
    product = cov @ precision
    return 0.5 * (np.trace(product) - len(cov) - np.linalg.slogdet(product)[1])


@pytest.mark.parametrize(("d", "r"), SHAPES)
def test_density_draws_and_moments_are_those_of_the_full_gaussian(d, r, rng, xp):
    family, q = member(rng, d, r, xp)
    _, spikes = family.open(q)
    s, U, lam = map(to_numpy, spikes)
    cov = s[:, None] * (np.eye(d) + (U * (1 / lam - 1)) @ U.T) * s
    np.testing.assert_allclose(to_numpy(family.cov(q)), cov, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(to_numpy(family.sd(q)), np.sqrt(np.diag(cov)), rtol=1e-10)
    law = scipy.stats.multivariate_normal(to_numpy(family.mean(q)), cov)
    z = rng.standard_normal((5, d))
    theta = family.transport(q, xp.asarray(z))
    np.testing.assert_allclose(to_numpy(family.log_prob(q, theta)), law.logpdf(to_numpy(theta)), rtol=1e-8)
    np.testing.assert_allclose(float(family.entropy(q)), law.entropy(), rtol=1e-9)
    np.testing.assert_allclose(to_numpy(family.whiten(q, theta)), z, atol=1e-9)
    root = to_numpy(family.transport(q, xp.asarray(np.eye(d)))) - to_numpy(family.mean(q))
    np.testing.assert_allclose(root.T @ root, cov, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("d", "r"), SHAPES)
def test_kl_and_natural_parameters_are_those_of_the_full_gaussian(d, r, rng, xp):
    (family, q), (_, other) = member(rng, d, r, xp), member(rng, d, r, xp)
    full = Gaussian(d)
    pair = family.full(q), family.full(other)
    np.testing.assert_allclose(float(family.kl(q, other)), float(full.kl(*pair)), rtol=1e-7)
    np.testing.assert_allclose(float(family.divergence(q, other)), float(full.divergence(*pair)), rtol=1e-7)
    np.testing.assert_allclose(to_numpy(family.natural(q)), to_numpy(full.natural(pair[0])), rtol=1e-12)
    assert abs(float(family.kl(q, q))) < 1e-9


def test_a_member_takes_memory_in_proportion_to_dimension_and_rank():
    family = LowRankGaussian(1000, rank=10)
    assert family.start(np.zeros(1000), np.ones(1000)).shape == (family.n_stored,) == (12_010,)


@pytest.mark.parametrize("kind", ["covariance", "precision"])
def test_a_matrix_of_the_family_is_its_own_nearest_member(kind, rng):
    """Of a covariance D + FF' and of a precision D + FF', both of rank 2."""
    d, r = 30, 2
    F = rng.standard_normal((d, r))
    matrix = np.diag(np.exp(rng.standard_normal(d))) + F @ F.T
    cov = matrix if kind == "covariance" else np.linalg.inv(matrix)
    family = LowRankGaussian(d, r)
    q = family.from_moments(np.ones(d), cov)
    assert divergence(family.cov(q), np.linalg.inv(cov)) < 1e-6  # alternating steps converge linearly


def test_of_diagonal_plus_low_rank_the_nearest_member_is_exact_at_once(rng):
    K, w = rng.standard_normal((20, 3)), np.array([2.0, -0.01, 0.5])
    form = Form(np.exp(rng.standard_normal(20)), K, w)
    found = nearest(form, rank=3, sweeps=1)
    np.testing.assert_allclose(found.solve(form.apply(np.eye(20))), np.eye(20), atol=1e-10)


@pytest.mark.parametrize(("d", "r"), [(8, 1), (12, 3)])
def test_the_nearest_member_is_the_best_by_gradient_ascent(d, r, rng):
    """KL over all diagonals and factors, by BFGS from the projection; also from other starts it finds none better."""
    factor = rng.standard_normal((d, 2 * d))
    precision = factor @ factor.T / d
    family = LowRankGaussian(d, r)
    q = family.from_moments(np.zeros(d), np.linalg.inv(precision))
    _, (s, U, lam) = family.open(q)
    signs = np.sign(lam - 1)

    def kl(x):
        F = x[d:].reshape(d, r)
        ours = np.diag(np.exp(x[:d])) + (F * signs) @ F.T
        if np.linalg.eigvalsh(ours)[0] <= 0:
            return 1e6
        return divergence(np.linalg.inv(ours), precision)

    start = np.concatenate([-2 * np.log(s), (U / s[:, None] * np.sqrt(np.abs(lam - 1))).reshape(-1)])
    best = scipy.optimize.minimize(kl, start, method="BFGS").fun
    here, diagonal = divergence(family.cov(q), precision), divergence(np.diag(1 / np.diag(precision)), precision)
    assert best <= here + 1e-9
    assert here - best < 0.03 * (diagonal - best)  # the alternations leave three per cent at most


def test_a_step_moves_the_full_gaussian_and_returns_to_the_family(rng):
    family, q = member(rng, 8, 2)
    moved = family.deform(q, rng.standard_normal(8), 1.1 * np.eye(8), np.eye(8) / 1.1)
    assert divergence(family.cov(moved), np.linalg.inv(1.21 * family.cov(q))) < 1e-3
    same = family.deform(q, np.zeros(8), np.eye(8), np.eye(8))
    np.testing.assert_allclose(family.cov(same), family.cov(q), rtol=1e-8, atol=1e-10)


def test_a_direction_that_is_like_the_others_is_worth_nothing():
    assert worth(np.array(1.0)) == 0
    np.testing.assert_allclose(worth(np.array(2.0)), divergence(np.eye(1), np.array([[2.0]])))


@pytest.mark.parametrize("rank", [0, 4])
def test_a_rank_is_between_one_and_the_number_of_coordinates(rank):
    with pytest.raises(ValueError, match="`rank` must be"):
        LowRankGaussian(3, rank)


def test_a_sum_of_squares_is_that_of_the_matrix(rng):
    form = Form(rng.standard_normal(6), rng.standard_normal((6, 2)), np.array([1.5, -0.5]))
    np.testing.assert_allclose(form.square, np.sum(form.apply(np.eye(6)) ** 2), rtol=1e-12)


@pytest.mark.parametrize(("d", "r"), [(1, 1), (6, 2), (5, 5)])
def test_changes_within_the_family_are_orthonormal_features(d, r, rng):
    """And they span the derivatives of log q by mean, scales, directions and precisions."""
    family, q = member(rng, d, r)
    theta = family.draw(q, rng, 100_000)
    features = family.changes(q, theta)
    assert features.shape[1] <= family.n_free
    # Products of four normals have variance below 15: six standard errors.
    gram = features.T @ features / len(features)
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=6 * np.sqrt(15 / len(features)))
    few, step = theta[:400], 1e-5
    for i in [0, d, 2 * d]:  # a mean, a scale, an entry of a direction
        moved = q + step * np.eye(len(q))[i]
        derivative = (family.log_prob(moved, few) - family.log_prob(q, few)) / step
        basis = np.column_stack([np.ones(400), family.changes(q, few)])
        left = derivative - basis @ np.linalg.lstsq(basis, derivative, rcond=None)[0]
        assert np.std(left) < 1e-3 * np.std(derivative)
