"""The mixture of Gaussians: its moments by SciPy, and its step of the EM algorithm by the textbook."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal

from qbvi.free.base import Base

WEIGHTS = np.array([0.3, 0.7])
MEANS = np.array([[-2.0, 0.5], [1.0, -1.0]])
COVS = np.array([[[1.0, 0.3], [0.3, 0.5]], [[0.4, -0.1], [-0.1, 0.8]]])
BASE = Base(WEIGHTS, MEANS, COVS)


def parts(u, widened=1.0):
    laws = zip(WEIGHTS, MEANS, COVS, strict=True)
    return np.stack([w * multivariate_normal(m, widened * C).pdf(u) for w, m, C in laws])


def test_the_density_is_that_of_the_mixture(rng):
    u = rng.normal(size=(20, 2)) * 3
    assert_allclose(BASE.log_prob(u), np.log(parts(u).sum(axis=0)), rtol=1e-10)
    assert_allclose(BASE.log_prob(u, 1.5), np.log(parts(u, 1.5).sum(axis=0)), rtol=1e-10)


def test_far_away_the_density_does_not_underflow():
    assert np.isfinite(BASE.log_prob(np.full((1, 2), 1e4))).all()


def test_the_moments_are_those_of_the_mixture():
    mean = WEIGHTS @ MEANS
    second = np.einsum("k,kij->ij", WEIGHTS, COVS + MEANS[:, :, None] * MEANS[:, None, :])
    assert_allclose(BASE.mean, mean)
    assert_allclose(BASE.cov, second - np.outer(mean, mean))
    assert_allclose(BASE.within, 0.3 * COVS[0] + 0.7 * COVS[1])


def test_one_gaussian_has_its_own_moments():
    base = Base.one(MEANS[0], COVS[0])
    assert_array_equal(base.mean, MEANS[0])
    assert_array_equal(base.cov, COVS[0])


def test_an_update_is_one_step_of_the_em_algorithm(rng):
    u, w = rng.normal(size=(300, 2)) * 2, rng.uniform(size=300)
    w /= w.sum()
    got = BASE.updated(u, w)
    share = parts(u) / parts(u).sum(axis=0) * w
    for k in range(2):
        mean = share[k] @ u / share[k].sum()
        cov = np.cov(u.T, aweights=share[k], bias=True)
        assert_allclose(got.means[k], mean, rtol=1e-10)
        assert_allclose(got.covs[k], cov, rtol=1e-6)  # a ridge of 1e-9 is added
    assert_allclose(got.weights, share.sum(axis=1))


def test_an_update_raises_the_likelihood_of_the_draws(rng):
    u, w = rng.normal(size=(400, 2)) * [2, 0.3] + [0.5, -1], np.full(400, 1 / 400)
    base, before = BASE, -np.inf
    for _ in range(5):
        now = float(w @ base.log_prob(u))
        assert now > before
        base, before = base.updated(u, w), now


def test_a_component_without_draws_keeps_its_place(rng):
    u = MEANS[1] + 0.1 * rng.normal(size=(200, 2))
    far = Base(np.array([0.5, 0.5]), np.array([[-50.0, 0.0], MEANS[1]]), COVS)
    got = far.updated(u, np.full(200, 1 / 200))
    assert_array_equal(got.means[0], far.means[0])
    assert_array_equal(got.covs[0], far.covs[0])
    assert got.weights[0] < 1e-12
    assert np.isfinite(got.log_prob(u)).all()
