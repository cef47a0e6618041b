"""Laws of exponential families, each over the registry and on every backend."""

import numpy as np
import pytest
import scipy.stats

from laws import FAMILIES, members
from qbvi.arrays import pack_symmetric, to_numpy, unpack_symmetric
from qbvi.families import DiagonalGaussian, Gaussian, GaussianProduct
from qbvi.steps import BoundedRate, CholeskyLog, ExponentialMap, Plain, Retraction

NAMES = list(FAMILIES)


@pytest.fixture(params=NAMES)
def case(request, xp, rng):
    """One family with a generic member: (family, q)."""
    return next((family, q) for name, family, q in members(xp, rng) if name == request.param)


def draws(family, q, rng, xp, n):
    return family.transport(q, xp.asarray(rng.standard_normal((n, family.dim))))


def numerical_gradient(function, at, step=1e-5):
    eye = np.eye(at.size)
    return np.stack([(function(at + step * e) - function(at - step * e)) / (2 * step) for e in eye])


def fisher(family, q):
    """Derivative of the mean parameter by the natural one, along plain steps (which add to it, as a test below shows)."""
    q = to_numpy(q)
    mean_at = lambda change: family.mean_parameter(Plain()(family, q, change)[0])
    return numerical_gradient(mean_at, np.zeros(family.size))


def test_hessian_of_the_log_normaliser_is_the_fisher_information(case):
    family, q = case
    lam = to_numpy(family.natural(q))
    hessian = numerical_gradient(lambda at: numerical_gradient(family.log_normaliser, at, 1e-4), lam, 1e-4)
    np.testing.assert_allclose(hessian, fisher(family, q), rtol=1e-3, atol=1e-3 * np.abs(hessian).max())


def test_gradient_of_the_log_normaliser_is_the_mean_parameter(case):
    family, q = case
    gradient = numerical_gradient(family.log_normaliser, to_numpy(family.natural(q)))
    np.testing.assert_allclose(gradient, to_numpy(family.mean_parameter(q)), rtol=1e-6, atol=1e-7)


def test_score_is_the_inverse_fisher_information_times_the_centred_statistics(case, rng, xp):
    family, q = case
    theta = draws(family, q, rng, xp, 7)
    centred = to_numpy(family.statistics(theta)) - to_numpy(family.mean_parameter(q))
    expected = np.linalg.solve(fisher(family, q), centred.T).T
    np.testing.assert_allclose(to_numpy(family.score(q, theta)), expected, rtol=1e-4, atol=1e-4)


def test_score_variance_is_its_definition(case):
    """The variance of I^-1 (phi - m) is the diagonal of I^-1 I I^-1."""
    family, q = case
    expected = np.diag(np.linalg.inv(fisher(family, q)))
    np.testing.assert_allclose(to_numpy(family.score_variance(q)), expected, rtol=1e-4)


def test_score_variance_agrees_with_draws(case, rng, xp):
    family, q = case
    score = to_numpy(family.score(q, draws(family, q, rng, xp, 20_000)))
    squares = score**2
    z = (squares.mean(0) - to_numpy(family.score_variance(q))) / (squares.std(0, ddof=1) / np.sqrt(len(squares)))
    assert np.abs(z).max() < scipy.stats.norm.isf(1e-6 / 2 / z.size)


def test_score_has_mean_zero(case, rng, xp):
    family, q = case
    score = to_numpy(family.score(q, draws(family, q, rng, xp, 20_000)))
    z = score.mean(0) / (score.std(0, ddof=1) / np.sqrt(len(score)))
    assert np.abs(z).max() < scipy.stats.norm.isf(1e-6 / 2 / z.size)


def test_score_times_a_function_of_the_statistics_gives_its_coefficients(case, rng, xp):
    family, q = case
    theta = draws(family, q, rng, xp, 20_000)
    exact = rng.standard_normal(family.size)
    terms = to_numpy(family.score(q, theta)) * (to_numpy(family.statistics(theta)) @ exact)[:, None]
    z = (terms.mean(0) - exact) / (terms.std(0, ddof=1) / np.sqrt(len(terms)))
    assert np.abs(z).max() < scipy.stats.norm.isf(1e-6 / 2 / z.size)


def test_density_entropy_and_moments_agree_with_scipy(case, rng, xp):
    family, q = case
    law = scipy.stats.multivariate_normal(to_numpy(family.mean(q)), to_numpy(family.cov(q)))
    theta = draws(family, q, rng, xp, 5)
    np.testing.assert_allclose(to_numpy(family.log_prob(q, theta)), law.logpdf(to_numpy(theta)), rtol=1e-10)
    np.testing.assert_allclose(float(family.entropy(q)), law.entropy(), rtol=1e-12)
    np.testing.assert_allclose(to_numpy(family.sd(q)) ** 2, np.diag(to_numpy(family.cov(q))), rtol=1e-12)


def test_density_is_the_exponential_family_form(case, rng, xp):
    family, q = case
    theta = draws(family, q, rng, xp, 5)
    lam = family.natural(q)
    form = (
        to_numpy(family.statistics(theta) @ lam)
        - float(family.log_normaliser(lam))
        - family.dim / 2 * np.log(2 * np.pi)
    )
    np.testing.assert_allclose(to_numpy(family.log_prob(q, theta)), form, rtol=1e-9, atol=1e-9)


def test_transport_and_whiten_are_inverse(case, rng, xp):
    family, q = case
    z = rng.standard_normal((6, family.dim))
    np.testing.assert_allclose(to_numpy(family.whiten(q, family.transport(q, xp.asarray(z)))), z, atol=1e-12)


def test_kl_agrees_with_draws_and_vanishes_at_itself(case, rng, xp):
    family, q = case
    other = family.start(xp.asarray(rng.standard_normal(family.dim)), xp.asarray(np.full(family.dim, 1.5)))
    theta = draws(family, q, rng, xp, 20_000)
    terms = to_numpy(family.log_prob(q, theta) - family.log_prob(other, theta))
    z = (terms.mean() - float(family.kl(q, other))) / (terms.std(ddof=1) / np.sqrt(terms.size))
    assert abs(z) < scipy.stats.norm.isf(1e-6 / 2)
    assert abs(float(family.kl(q, q))) < 1e-10


def test_embed_carries_a_quadratic_form(case, rng, xp):
    family, _ = case
    linear, precision = rng.standard_normal(family.dim), rng.uniform(0.5, 2, family.dim)
    eta = family.embed(xp.asarray(linear), xp.asarray(precision))
    theta = rng.standard_normal((5, family.dim))
    expected = theta @ linear - 0.5 * theta**2 @ precision
    np.testing.assert_allclose(to_numpy(family.statistics(xp.asarray(theta)) @ eta), expected, rtol=1e-10)


@pytest.mark.parametrize("family", [DiagonalGaussian(2), GaussianProduct((Gaussian(1), Gaussian(1)), ((0,), (1,)))])
def test_embed_says_when_a_family_cannot_carry_a_coupling(family):
    coupled = np.array([[2.0, 1.0], [1.0, 2.0]])
    assert family.embed(np.zeros(2), coupled) is None
    assert family.embed(np.zeros(2), np.diag(np.diag(coupled))) is not None


def small_update(family, rng, xp, size=0.05):
    return xp.asarray(size * rng.standard_normal(family.size))


def test_a_plain_step_adds_to_the_natural_parameter(case, rng, xp):
    family, q = case
    update = small_update(family, rng, xp)
    moved, inside = Plain()(family, q, update)
    assert bool(inside)
    np.testing.assert_allclose(
        to_numpy(family.natural(moved)), to_numpy(family.natural(q) + update), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(
    "step", [BoundedRate(), ExponentialMap(), Retraction(), CholeskyLog()], ids=lambda s: type(s).__name__
)
def test_every_step_agrees_with_the_plain_one_to_first_order(case, step, rng, xp):
    family, q = case
    update = small_update(family, rng, xp, size=1e-6)
    moved, _ = step(family, q, update)
    change = to_numpy(family.natural(moved) - family.natural(q))
    np.testing.assert_allclose(change, to_numpy(update), atol=1e-9)


@pytest.mark.parametrize(
    "step", [BoundedRate(), ExponentialMap(), Retraction(), CholeskyLog()], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize("size", [1.0, 30.0, 1e4])
def test_every_step_but_the_plain_one_stays_inside_for_any_update(case, step, size, rng, xp):
    family, q = case
    for _ in range(20):
        moved, inside = step(family, q, small_update(family, rng, xp, size))
        assert bool(inside)
        z = family.whiten(moved, family.transport(moved, xp.eye(family.dim)))
        np.testing.assert_allclose(to_numpy(z), np.eye(family.dim), atol=1e-8)  # the factor is regular


def test_a_plain_step_out_of_the_domain_is_told_and_not_taken(case):
    family, q = case
    _, inside = Plain()(family, q, 3.0 * family.natural(q))  # the precision grows fourfold
    assert bool(inside)
    moved, inside = Plain()(family, q, -3.0 * family.natural(q))  # it would turn negative
    assert not bool(inside)
    np.testing.assert_allclose(to_numpy(moved), to_numpy(q), atol=1e-12)


def test_bounded_rate_is_the_plain_step_where_that_is_well_inside(case, rng, xp):
    family, q = case
    update = small_update(family, rng, xp)
    plain, bounded = Plain()(family, q, update)[0], BoundedRate(0.9)(family, q, update)[0]
    np.testing.assert_allclose(to_numpy(bounded), to_numpy(plain), rtol=1e-12, atol=1e-12)


def test_the_factor_and_its_inverse_stay_inverse_over_many_noisy_steps(rng):
    """Scales from 1e-6 to 1e6 and 3000 steps, each pulled to a target and shaken."""
    family, target = Gaussian(6), Gaussian(6).start(np.ones(6), 10.0 ** np.arange(-6.0, 6.0, 2.0))
    q = family.start(np.zeros(6), 10.0 ** np.arange(-6.0, 6.0, 2.0))
    for _ in range(3000):
        noise = family.score(q, family.transport(q, rng.standard_normal((1, 6))))[0]
        q, _ = ExponentialMap()(family, q, 0.1 * (family.natural(target) - family.natural(q) + noise))
    z = rng.standard_normal((5, 6))
    np.testing.assert_allclose(family.whiten(q, family.transport(q, z)), z, atol=1e-10)
    assert 0.01 < (family.sd(q) / family.sd(target)).min() < (family.sd(q) / family.sd(target)).max() < 100


def test_separate_rates_scale_about_the_present_mean(case, rng, xp):
    family, q = case
    direction = small_update(family, rng, xp)
    same = family.scale_parts(q, direction, 0.3, 0.3)
    np.testing.assert_allclose(to_numpy(same), 0.3 * to_numpy(direction), atol=1e-14)
    only_scale = Plain()(family, q, family.scale_parts(q, direction, 0.0, 0.5))[0]
    np.testing.assert_allclose(to_numpy(family.mean(only_scale)), to_numpy(family.mean(q)), atol=1e-12)
    only_mean = Plain()(family, q, family.scale_parts(q, direction, 0.5, 0.0))[0]
    np.testing.assert_allclose(to_numpy(family.cov(only_mean)), to_numpy(family.cov(q)), atol=1e-12)


def test_packing_keeps_inner_products(rng, xp):
    a, b = (m + m.swapaxes(-1, -2) for m in rng.standard_normal((2, 3, 5, 5)))
    packed = pack_symmetric(xp.asarray(a)), pack_symmetric(xp.asarray(b))
    np.testing.assert_allclose(to_numpy(packed[0] * packed[1]).sum(-1), (a * b).sum((-2, -1)), rtol=1e-12)
    np.testing.assert_allclose(to_numpy(unpack_symmetric(packed[0], 5)), a, rtol=1e-14)


def test_a_product_of_one_block_is_that_block(rng):
    one, product_ = Gaussian(3), GaussianProduct((Gaussian(3),), ((0, 1, 2),))
    cov = np.cov(rng.standard_normal((3, 9)))
    np.testing.assert_allclose(product_.cov(product_.from_moments(np.ones(3), cov)), cov, rtol=1e-12)
    update = 0.01 * rng.standard_normal(one.size)
    moves = [ExponentialMap()(family, family.from_moments(np.ones(3), cov), update)[0] for family in (one, product_)]
    np.testing.assert_array_equal(*moves)


def test_a_product_keeps_its_blocks_of_a_covariance_in_the_order_of_theta(rng):
    family = FAMILIES["blocks"]
    cov = np.cov(rng.standard_normal((5, 12)))
    kept = family.cov(family.from_moments(np.arange(5.0), cov))
    owner = np.array([0, 2, 2, 0, 1])
    np.testing.assert_allclose(kept, np.where(owner[:, None] == owner[None, :], cov, 0), atol=1e-12)
