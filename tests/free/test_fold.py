"""Functions with symmetries: kernels, copies and proposals, against closed forms."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import qbvi
from qbvi.free.base import Base
from qbvi.free.fold import Copies, Folded, Spread
from qbvi.free.kernel import Kernel, Symmetric
from qbvi.free.pool import integrated
from qbvi.free.process import Observations, Process
from qbvi.free.proposal import Copied, Proposal
from qbvi.free.rules import Caution, FreeRules, Integration, ShapeSearch, SurveyRule
from qbvi.free.search import Mode, Search, SearchState
from qbvi.free.surface import Coordinates, Points, Surface
from qbvi.free.symmetry import Group, Symmetry, exact_part, proposed
from qbvi.model import Model

SHAPE = np.array([0.9, -9.0, 0.3, -0.4])
EXCHANGE = Symmetry((1, 0), (1, 1), "x and y are exchanged")
PAIR = Group.of(2, (EXCHANGE,))
THREE = Model({"share": qbvi.Dirichlet(np.ones(3)), "mu": qbvi.Normal(0, 5, shape=3), "z": qbvi.Normal(1, 1)})
ORDERS = proposed(THREE)[:2]


def no_points(d):
    return np.empty((0, d))


def three(u):
    """Some function of the images of each point together."""
    return np.sum(np.sin(Group.of(6, ORDERS).images(u)).reshape(len(u), 6, -1) ** 2, axis=(1, 2)) - np.sum(u**2, axis=1)


def test_one_image_of_each_point_is_worth_all_of_them(rng):
    """With weights, whose exchange is a rotation of their coordinates."""
    group = Group.of(6, ORDERS)
    frame = group.whitening(group.cov_of(np.cov(rng.standard_normal((9, 6)).T) + np.eye(6))).T
    u, at = rng.standard_normal((20, 6)), rng.standard_normal((4, 6))
    one = Process(
        Observations(u @ frame, three(u), np.zeros(20), symmetric=lambda k: Symmetric(k, group.exchanged)), SHAPE, 1.0
    )
    images = group.images(u)
    every = Process(Observations(images @ frame, three(images), np.zeros(120)), SHAPE, 1.0)
    assert_allclose(one(at @ frame).mean, every(at @ frame).mean, atol=1e-6)
    assert_allclose(one(group.images(at) @ frame).mean, np.repeat(one(at @ frame).mean, 6), atol=1e-9)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_variances_are_those_of_the_kernel(rng, d):
    z, kernel = rng.standard_normal((15, d)), Kernel(1.3, 0.2, 0.3)
    b = rng.standard_normal((15, d))
    assert_allclose(kernel.pairwise(z, b), np.diagonal(kernel(z, b)), atol=1e-12)
    maps = Group.of(d, (Symmetry(tuple(range(d)), (-1,) * d, "all signs change"),))
    near = Copies(maps, Base.one(np.full(d, 0.3), np.eye(d)))
    for symmetric in (Symmetric(kernel, maps.exchanged), Folded(kernel, lambda z: Spread(*near.spread(z, 1.0)))):
        K = symmetric(z, z)
        assert_allclose(symmetric.variances(z), np.diagonal(K), atol=1e-12)
        assert_allclose(K, K.T, atol=1e-12)
        assert np.min(np.linalg.eigvalsh(K)) > -1e-9
        assert_allclose(symmetric(-z, b), symmetric(z, b), atol=1e-12)


def test_the_kernel_of_all_images_is_the_sum_over_them(rng):
    """Also for so many points that exponentials are products, with some of them far out."""
    group, kernel = Group.of(6, ORDERS), Kernel(1.4, 0.3, 0.4)
    a, b = rng.standard_normal((9, 7)), rng.standard_normal((80, 7))
    b[:3, 2:5] *= 40
    exact = sum(kernel(a, image) for image in group.exchanged(b))
    assert_allclose(Symmetric(kernel, group.exchanged)(a, b), exact, atol=1e-8)


def test_the_shares_of_all_images_add_up_to_one(rng):
    copies = Copies.of(PAIR, Base.one(np.array([1.0, -0.5]), np.diag([1.0, 3.0])))
    _, begin, root = copies.spread(rng.standard_normal((30, 2)), 1.5)
    assert_allclose(np.add.reduceat(root**2, begin), 1, atol=1e-7)


def test_copies_that_are_apart_are_those_of_one_of_them(rng):
    """The process is then that of the points, mapped to one side."""
    mean, L = np.array([30.0, -30.0]), np.array([[1.0, 0.0], [0.7, 0.4]])
    base = Base(np.full(2, 0.5), np.stack([mean, mean[::-1]]), np.stack([L @ L.T, (L @ L.T)[::-1, ::-1]]))
    theta = mean + rng.standard_normal((25, 2)) @ L.T
    y = np.cos(theta @ [0.6, 0.2])
    sides = np.where(rng.random((25, 1)) < 0.5, theta, theta[:, ::-1])
    plain, symmetries = Base.one(mean, L @ L.T), Coordinates(symmetries=(EXCHANGE,), is_folded=True)
    one = Surface(Points(theta, y, np.zeros(25), no_points(2)), plain, SHAPE, Caution())
    both = Surface(Points(sides, y, np.zeros(25), no_points(2)), base, SHAPE, Caution(), symmetries)
    at = mean + 0.7 * rng.standard_normal((6, 2)) @ L.T
    for images in (at, at[:, ::-1]):
        assert_allclose(both(images).low, one(at).low, atol=1e-6)
        assert_allclose(both(images).variance, one(at).variance, atol=1e-9)


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_surrogate_is_the_same_at_all_images(rng, is_folded):
    u, base = rng.standard_normal((60, 6)), Base.one(np.full(6, 0.2), np.diag(np.arange(1.0, 7.0)))
    coordinates = Coordinates(symmetries=ORDERS, is_folded=is_folded)
    points = Points(u, three(u), np.zeros(60), no_points(6))
    surface = Surface(points, base, SHAPE, Caution(), coordinates)
    at = rng.standard_normal((5, 6))
    for part in surface(Group.of(6, ORDERS).images(at)):
        assert np.ptp(part.reshape(5, 6), axis=1).max() < 1e-7


def test_a_mode_that_is_its_own_image_is_replaced_by_those_on_both_sides(rng):
    """Draws of two Gaussians, and the saddle between them that a path ended at."""
    mean, cov = np.array([2.5, -2.5]), np.diag([1.0, 0.25])
    w = rng.multivariate_normal(mean, cov, size=2000)
    w[::2] = w[::2, ::-1]
    saddle = Copies.of(PAIR, Base.one(np.zeros(2), np.cov(w.T)))
    log_density = np.logaddexp(
        *(stats.multivariate_normal(m, np.diag(v)).logpdf(w) for m, v in ((mean, [1, 0.25]), (-mean, [0.25, 1])))
    )
    base = saddle.parted(w, np.full(2000, 1 / 2000), log_density, SurveyRule())
    assert_allclose(base.weights, 0.5)
    # The standard errors of means and variances are 0.022 and 0.032.
    assert_allclose(base.means[np.argmax(base.means[:, 0])], mean, atol=0.11)
    assert_allclose(base.covs[np.argmax(base.means[:, 0])], cov, atol=0.16)
    # The halves of one Gaussian are 2.7 of their standard deviations apart.
    w = rng.standard_normal((2000, 2))
    one = Copies.of(PAIR, Base.one(np.zeros(2), np.eye(2)))
    assert one.parted(w, np.full(2000, 1 / 2000), -0.5 * np.sum(w**2, axis=1), SurveyRule()) is None


def test_one_copy_has_each_mode_once_with_the_weight_of_its_images():
    """One mode has two images, and the other, at the place that the exchange leaves, has one."""
    base = Base(np.array([0.3, 0.4, 0.3]), np.array([[4.0, 0.0], [0.0, 0.0], [0.0, 4.0]]), np.stack([np.eye(2)] * 3))
    one = Copies.of(PAIR, base).one
    assert_allclose(np.sort(one.weights), [0.4, 0.6])
    u = np.array([[0.3, 1.0], [3.0, -1.0]])
    both = np.logaddexp.reduce(Copies(PAIR, one).parts(u), axis=1) - math.log(2)
    assert_allclose(both, base.log_prob(u))


def test_a_proposal_for_one_copy_draws_all_of_them(rng):
    mean = np.array([3.0, -4.0])
    proposal = Proposal.around(mean + rng.standard_normal((50, 2)), mean, np.eye(2), np.eye(2), 50.0)
    both, rules = Copied(proposal, PAIR), Integration()
    u = both.draw(rng, 4000, rules)
    assert abs(np.mean(u[:, 0] > u[:, 1]) - 0.5) < 0.04  # five standard errors
    density = np.exp(proposal.log_prob(u, rules)) / 2 + np.exp(proposal.log_prob(u[:, ::-1], rules)) / 2
    assert_allclose(both.log_prob(u, rules), np.log(density), atol=1e-9)


def test_the_integral_over_all_copies_from_points_at_one(rng):
    mean, cov = np.array([6.0, -6.0]), np.array([[1.0, 0.9], [0.9, 4.0]])
    one, other = stats.multivariate_normal(mean, cov), stats.multivariate_normal(mean[::-1], cov[::-1, ::-1])
    theta = rng.multivariate_normal(mean, 2 * cov, size=60)
    points = Points(theta, np.logaddexp(one.logpdf(theta), other.logpdf(theta)), np.zeros(60), no_points(2))
    base = Base(np.full(2, 0.5), np.stack([mean, mean[::-1]]), np.stack([cov, cov[::-1, ::-1]]))
    coordinates = Coordinates(symmetries=(EXCHANGE,), is_folded=True)
    surface = Surface.searched(points, base, None, Caution(), ShapeSearch(), coordinates)
    start = Proposal.around(rng.multivariate_normal(mean, cov, size=300), mean, cov, cov, 300.0)
    pool = integrated(surface, start, Integration())
    assert abs(pool.log_z - math.log(2)) < 0.05
    assert pool.n_effective > 1000


def test_maps_that_do_not_turn_points_or_keep_the_prior_have_no_such_kernel():
    ratio = Symmetry((1, 0, 2), (1, 1, 1), "", added=((2, 0, -1), (2, 1, 1)), keeps_prior=True)
    assert PAIR.is_orthogonal
    assert not Group.of(3, (ratio,)).is_orthogonal
    assert not Group.of(2, (EXCHANGE._replace(keeps_prior=False),)).is_orthogonal


def test_a_surrogate_has_as_many_symmetries_as_their_group_allows():
    """All signs and orders of three coordinates are 48 maps, and their signs are 8."""
    signs = tuple(Symmetry((0, 1, 2), tuple(np.where(np.arange(3) == i, -1, 1).tolist()), "") for i in range(3))
    orders = tuple(Symmetry(order, (1, 1, 1), "") for order in ((1, 0, 2), (0, 2, 1)))
    assert exact_part(3, orders) == orders
    assert exact_part(3, (*signs, *orders)) == (*signs, orders[0])
    assert len(Group.of(3, (*signs, orders[0]))) == 16
    assert exact_part(3, (*signs, orders[0]._replace(keeps_prior=False))) == ()


def test_modes_beside_a_saddle_take_its_place_in_the_search():
    cov, means = np.eye(2), np.array([[3.0, 0.0], [0.0, 3.0]])
    saddle, low = Mode(np.ones(2), cov, -5.0, 0.0, -4.0, 30), Mode(np.full(2, 40.0), cov, -50.0, 0.0, -49.0, 20)
    search = Search(qbvi.Regression(), None, FreeRules())
    state = SearchState(None, None, (saddle, low), np.empty((0, 2)), 0, 0, False)
    state = search.parted(state, Base(np.full(2, 0.5), means, np.stack([cov, cov])))
    assert_allclose([mode.mean for mode in state.modes[:2]], means)
    assert [(mode.bound, mode.n_evals) for mode in state.modes] == [(-5.0, 30), (-5.0, 0), (-50.0, 20)]


def test_a_fit_and_its_file_have_the_symmetry_to_the_last_digits(tmp_path):
    def loglike(x):
        parts = [-0.5 * np.sum(((order - [3.0, -2.0]) / [0.5, 0.8]) ** 2) for order in (x, x[::-1])]
        return np.logaddexp(*parts) + 0.3 * np.cos(x).sum()

    fit = qbvi.fit(loglike, qbvi.Uniform(-20, 20, shape=2), seed=1)
    assert fit.converged
    assert fit.family.n_points <= fit.n_evals  # images need no points
    mean, cov = fit.unconstrained
    assert_allclose([mean, *cov], [mean[::-1], *cov[::-1, ::-1]], rtol=1e-9)
    assert np.sum(fit.sample(600, seed=1)[:, 0] > 0.5) == 300
    fit.save(tmp_path / "fit.qbvi")
    for one in (fit, qbvi.load(tmp_path / "fit.qbvi")):
        at = np.asarray(one.sample(50, seed=2))
        assert_allclose(one.log_prob(at[:, ::-1]), one.log_prob(at), atol=1e-6)
