"""The free posterior as a density: it integrates to one, its draws and moments agree with it, and one array holds it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import cumulative_trapezoid, quad
from scipy.stats import kstest

from qbvi.free.base import Base
from qbvi.free.density import FreeDensity, Member
from qbvi.free.pool import integrated
from qbvi.free.proposal import Proposal
from qbvi.free.rules import Caution, Integration, ShapeSearch
from qbvi.free.surface import Points, Surface

CAUTION, INTEGRATION = Caution(), Integration()


def skewed(u):
    """A log-gamma in every coordinate: skewed, and its tails differ."""
    return np.sum(2 * u - np.exp(u), axis=1) - 50


def curved(u):
    return -0.5 * u[:, 0] ** 2 - 2 * (u[:, 1] - 0.5 * u[:, 0] ** 2) ** 2


def member_of(function, d, n, forbidden):
    rng = np.random.default_rng(9)
    theta = rng.normal(size=(n, d)) * 1.3 + 0.4
    points = Points(theta, function(theta), np.zeros(n), forbidden)
    base = Base.one(np.full(d, 0.4), np.eye(d))
    surface = Surface.searched(points, base, None, CAUTION, ShapeSearch())
    start = Proposal.around(rng.normal(size=(300, d)) + 0.4, base.mean, base.cov, base.within, 300.0)
    pool = integrated(surface, start, INTEGRATION)
    mean = pool.weights @ pool.u
    cov = np.atleast_2d(np.cov(pool.u.T, aweights=pool.weights, bias=True))
    return Member(points, base, surface.shape, pool.proposal, surface.warp, pool.log_z, mean, cov)


CASES = {
    "skewed-1": (skewed, 1, 25, np.empty((0, 1))),
    "edge-1": (skewed, 1, 25, np.array([[-3.0], [-2.5]])),
    "skewed-2": (skewed, 2, 50, np.empty((0, 2))),
    "curved-2": (curved, 2, 60, np.empty((0, 2))),
    "curved-3": (curved, 3, 60, np.empty((0, 3))),
}


def law_of(name):
    member = member_of(*CASES[name])
    density = FreeDensity.holding(member, CAUTION, INTEGRATION)
    return density, density.pack(member), member


@pytest.fixture(scope="module", params=CASES)
def law(request):
    return law_of(request.param)


@pytest.fixture(scope="module", params=[name for name in CASES if not name.endswith("3")])
def on_a_grid(request):
    """A law in one or two dimensions, with its density on a grid."""
    density, q, _ = law_of(request.param)
    return density, q, *grid_of(density, q)


def grid_of(density, q):
    """Points of a fine grid over all the mass (in one or two dimensions), its cell, and the density there."""
    half = {1: 4000, 2: 200}[density.dim]
    axes = [np.linspace(m - 9 * s, m + 9 * s, half) for m, s in zip(density.mean(q), density.sd(q), strict=True)]
    u = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, density.dim)
    return u, np.prod([axis[1] - axis[0] for axis in axes]), np.exp(density.log_prob(q, u))


def test_the_density_integrates_to_one(on_a_grid):
    _, _, _, cell, p = on_a_grid
    # The constant is from importance sampling with some 1,500 effective draws.
    assert_allclose(p.sum() * cell, 1, atol=0.06)


def test_mean_and_covariance_are_those_of_the_density(on_a_grid):
    density, q, u, _, p = on_a_grid
    w = p / p.sum()
    mean = w @ u
    cov = (u - mean).T * w @ (u - mean)
    assert_allclose(density.mean(q), mean, atol=0.13 * density.sd(q).max())
    assert_allclose(density.cov(q), cov, atol=0.2 * np.diagonal(cov).max())
    assert_array_equal(density.sd(q), np.sqrt(np.diagonal(density.cov(q))))


def test_draws_agree_with_the_density(on_a_grid, rng):
    density, q, u, _, p = on_a_grid
    draws = density.draw(q, rng, 1000)
    assert draws.shape == (1000, density.dim)
    for i in range(density.dim):
        axis, where = np.unique(u[:, i], return_inverse=True)
        marginal = np.bincount(where, weights=p)
        cdf = cumulative_trapezoid(marginal, axis, initial=0)
        # Resampled draws are not quite independent: a level of 1e-5 leaves room for that.
        test = kstest(draws[:, i], lambda x, axis=axis, cdf=cdf: np.interp(x, axis, cdf / cdf[-1]))
        assert test.pvalue > 1e-5


def test_draws_have_the_moments(law, rng):
    density, q, _ = law
    draws = density.draw(q, rng, 1500)
    # Five standard errors of 1,500 draws are 0.13; the stored moments have an error of their own.
    assert_allclose(draws.mean(axis=0), density.mean(q), atol=0.15 * density.sd(q).max())
    assert_allclose(np.atleast_2d(np.cov(draws.T)), density.cov(q), atol=0.25 * density.sd(q).max() ** 2)


def test_the_density_follows_the_function(law):
    density, q, member = law
    function = next(case[0] for case in CASES.values() if np.array_equal(case[0](member.points.theta), member.points.y))
    u = density.draw(q, np.random.default_rng(3), 500)
    r = function(u) - density.log_prob(q, u)
    # The missing nats are about half the variance of log p / q.
    assert r.std() < 0.5


def test_the_same_generator_gives_the_same_draws(law):
    density, q, _ = law
    one, other = (density.draw(q, np.random.default_rng(5), 30) for _ in range(2))
    assert_array_equal(one, other)
    assert_array_equal(density.fixed_draws(q, 30), density.fixed_draws(q, 30))


def test_unpack_undoes_pack(law):
    density, q, member = law
    assert q.shape == (density.n_stored,)
    again = density.unpack(q)
    assert_array_equal(density.pack(again), q)
    for part, other in zip(again.points + again.base, member.points + member.base, strict=True):
        assert_array_equal(part, other)
    for part, other in zip(again.proposal, member.proposal, strict=True):
        assert_array_equal(part, other)
    assert again.log_z == member.log_z
    assert_array_equal(again.shape, member.shape)


def test_two_members_are_not_confused(rng):
    member = member_of(*CASES["skewed-1"])
    density = FreeDensity.holding(member, CAUTION, INTEGRATION)
    shifted = member._replace(points=member.points._replace(y=member.points.y + 1.0))
    u = rng.normal(size=(5, 1))
    first = density.log_prob(density.pack(member), u)
    assert_allclose(density.log_prob(density.pack(shifted), u), first + 1.0, atol=1e-6)
    assert_array_equal(density.log_prob(density.pack(member), u), first)


def test_a_forbidden_side_has_no_mass():
    member = member_of(*CASES["edge-1"])
    density = FreeDensity.holding(member, CAUTION, INTEGRATION)
    q = density.pack(member)
    edge = density.draw(q, np.random.default_rng(1), 500).min()
    assert edge > -2.5
    assert np.isneginf(density.log_prob(q, np.array([[-2.6]]))).all()
    below, _ = quad(lambda x: np.exp(density.log_prob(q, np.array([[x]]))[0]), -20, -2.5)
    assert below == 0
