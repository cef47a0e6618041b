"""Mixtures of densities: the laws that every density must keep."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate, stats

from qbvi.families import Bernoulli, DiagonalGaussian, Gaussian, Mixture, Product


def members(d, rng):
    """A mixture of three unequal Gaussians of two kinds."""
    families = (Gaussian(d), DiagonalGaussian(d), Gaussian(d))
    mixture, parts = Mixture(families), []
    for k, family in enumerate(families):
        factor = rng.normal(size=(d, d)) / 2
        parts.append(family.from_moments(rng.normal(size=d) + 2 * k, factor @ factor.T + 0.3 * np.eye(d)))
    return mixture, mixture.pack([1.0, 2.0, 5.0], parts)


@pytest.fixture(params=[1, 2, 4])
def case(request):
    return members(request.param, np.random.default_rng(request.param))


@pytest.mark.parametrize("d", [1, 2])
def test_the_density_integrates_to_one(d):
    mixture, q = members(d, np.random.default_rng(d))
    axis = np.linspace(-9, 13, 1201 if d == 1 else 601)
    grid = np.stack(np.meshgrid(*[axis] * d, indexing="ij"), axis=-1)
    density = np.exp(mixture.log_prob(q, grid.reshape(-1, d))).reshape(grid.shape[:-1])
    for _ in range(d):
        density = integrate.trapezoid(density, axis, axis=-1)
    assert density == pytest.approx(1, abs=1e-6)


def test_draws_have_the_moments_and_the_density(case):
    mixture, q = case
    rng, n = np.random.default_rng(2), 40_000
    u = mixture.draw(q, rng, n)
    cov = mixture.cov(q)
    assert np.all(np.abs(u.mean(axis=0) - mixture.mean(q)) < 5 * mixture.sd(q) / np.sqrt(n))
    # Squares have a kurtosis below six here, so their standard error is below sqrt(6 / n).
    assert_allclose(np.cov(u, rowvar=False).reshape(cov.shape), cov, atol=5 * np.sqrt(6 / n) * np.diag(cov).max())
    assert_allclose(mixture.sd(q) ** 2, np.diag(cov))
    # The mean of q' / q under q is one for every density q' on the same support.
    other = stats.multivariate_normal(mixture.mean(q), cov * 0.8)
    ratio = np.exp(other.logpdf(u).ravel() - mixture.log_prob(q, u))
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / np.sqrt(n)


def test_draws_are_in_no_order(case):
    mixture, q = case
    u = mixture.draw(q, np.random.default_rng(3), 4000)[:, 0]
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 5 / np.sqrt(4000)


@pytest.mark.parametrize("n", [7, 512, 8192])
def test_fixed_draws_are_the_same_at_every_call(case, n):
    mixture, q = case
    u = mixture.fixed_draws(q, n)
    assert u.shape == (n, mixture.dim)
    assert_array_equal(u, mixture.fixed_draws(q, n))
    if n == 8192:
        # Each component has its own moments; only the numbers of draws are rounded.
        assert_allclose(u.mean(axis=0), mixture.mean(q), atol=0.002)


def test_a_member_is_one_array_and_comes_back(case):
    mixture, q = case
    weights, parts = mixture.unpack(q)
    assert len(q) == mixture.n_stored
    assert_allclose(weights, [0.125, 0.25, 0.625])
    assert_array_equal(mixture.pack(weights, parts), q)


def test_products_with_whole_numbers():
    family = Product((Gaussian(1), Bernoulli()), ((0,), (1,)))
    parts = [family.from_moments(np.array([at, p]), np.diag([1.0, p * (1 - p)])) for at, p in ((-5.0, 0.1), (5.0, 0.8))]
    mixture = Mixture((family, family))
    q = mixture.pack([0.25, 0.75], parts)
    assert_allclose(mixture.mean(q), [2.5, 0.625], rtol=1e-6)
    u = mixture.draw(q, np.random.default_rng(1), 4000)
    assert abs(u[u[:, 0] > 0, 1].mean() - 0.8) < 0.04


def test_a_component_without_weight_is_not_there():
    family = Gaussian(1)
    parts = [family.start(np.array([at]), np.ones(1)) for at in (0.0, 50.0)]
    mixture = Mixture((family, family))
    q = mixture.pack([1.0, 0.0], parts)
    at = np.array([[0.3], [50.0]])
    assert_allclose(mixture.log_prob(q, at), stats.norm.logpdf(at[:, 0]))
    assert mixture.draw(q, np.random.default_rng(1), 500).max() < 10


def test_errors_name_the_rule():
    with pytest.raises(ValueError, match="`components` must be one or more densities of one dimension"):
        Mixture((Gaussian(1), Gaussian(2)))
    with pytest.raises(ValueError, match="`components` must be"):
        Mixture(())
    mixture, q = members(1, np.random.default_rng(1))
    for weights in ([1.0], [1.0, -1.0, 1.0], [0.0, 0.0, 0.0]):
        with pytest.raises(ValueError, match="`weights` must be 3 numbers"):
            mixture.pack(weights, mixture.unpack(q)[1])
