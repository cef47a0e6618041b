"""The surrogate of a log joint: what it says at its points, between them, far away, and where none is allowed."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from qbvi.free.base import Base
from qbvi.free.rules import Caution, ShapeSearch
from qbvi.free.surface import Coordinates, Points, Squash, Surface


def no_points(d):
    return np.empty((0, d))


def banana(u):
    return -((u[:, 0] ** 2 - u[:, 1]) ** 2) - 0.1 * (u[:, 0] - 1) ** 2


def make(rng, n=40, forbidden=None, noise=0.0):
    theta = rng.normal(size=(n, 2)) * [1.2, 1.5] + [0.3, 1.0]
    forbidden = no_points(2) if forbidden is None else forbidden
    points = Points(theta, banana(theta) - 100, np.full(n, noise), forbidden)
    base = Base.one(np.array([0.3, 1.0]), np.diag([1.4, 2.2]))
    return Surface.searched(points, base, None, Caution(), ShapeSearch())


# --- the squash


def test_the_squash_changes_nothing_above_its_depth():
    y = np.linspace(-10, 0, 11)
    assert_array_equal(Squash(0.0, 10.0)(y), y)
    assert_array_equal(Squash(0.0, 10.0).inverse(y), y)


def test_the_squash_is_undone_by_its_inverse():
    squash = Squash(-3.0, 12.0)
    y = -3 - np.geomspace(1e-3, 1e12, 200)
    assert_allclose(squash.inverse(squash(y)), y, rtol=1e-10)
    assert np.all(np.diff(squash(y)) < 0)


def test_the_squash_is_smooth_at_its_depth():
    squash = Squash(0.0, 10.0)
    y = np.array([-10.0 - 1e-5, -10.0, -10.0 + 1e-5])
    assert_allclose(np.diff(squash(y)), 1e-5, rtol=1e-5)


def test_the_inverse_of_the_squash_never_overflows():
    assert np.isfinite(Squash(0.0, 10.0).inverse(np.array([-1e300]))).all()


# --- the surrogate


def test_noiseless_values_are_interpolated(rng):
    surface = make(rng)
    high = surface.points.y > surface.points.y.max() - 5  # lower values may be missed a little
    seen = surface(surface.points.theta)
    assert_allclose(seen.low[high], surface.points.y[high], atol=0.05)
    assert_allclose(seen.high[high], surface.points.y[high], atol=0.1)


def test_between_its_points_it_follows_the_function(rng):
    surface = make(rng, n=80)
    u = rng.normal(size=(200, 2)) * 0.5 + [0.3, 0.8]
    assert np.sqrt(np.mean((surface(u).low - banana(u) + 100) ** 2)) < 0.1


def test_what_is_claimed_is_below_what_is_possible(rng):
    surface = make(rng)
    seen = surface(rng.normal(size=(300, 2)) * 4)
    assert np.all(seen.low <= seen.high)
    assert np.all(seen.variance > 0)


def test_far_away_it_has_the_tail_of_its_base(rng):
    surface, caution = make(rng), Caution()
    u = np.array([[600.0, 500.0], [-700.0, 800.0], [-500.0, -500.0]])
    # The kernel is zero there: on the scale of the squash, a constant is all that is added to the base.
    squash, base = surface._squash, surface.base.log_prob(u, caution.base)
    apart = squash(surface(u).high) - squash(base + surface._offset)
    assert_allclose(apart, apart[0], rtol=1e-9)
    assert surface(u).low.max() < -1e4


def test_the_claim_is_lowered_where_all_points_are_far_away(rng):
    surface, caution = make(rng), Caution()
    bold = Surface(surface.points, surface.base, surface.shape, replace(caution, lowered=0.0))
    assert_allclose(surface(surface.points.theta).low, bold(surface.points.theta).low)
    u = np.array([[60.0, 50.0]])
    distance = np.min(np.linalg.norm(surface.whitened(u) - surface.whitened(surface.points.theta), axis=1))
    excess = distance / (caution.remote * surface._usual) - 1
    assert_allclose(bold(u).low - surface(u).low, caution.lowered * excess**2, rtol=1e-6)
    assert_allclose(bold(u).high, surface(u).high)


def test_large_inputs_in_blocks_are_the_same_as_one_by_one(rng, monkeypatch):
    surface = make(rng)
    u = rng.normal(size=(50, 2))
    whole = surface(u)
    monkeypatch.setattr("qbvi.free.surface._BLOCK", 7 * len(surface.points.y))
    for part, other in zip(surface(u), whole, strict=True):
        assert_allclose(part, other, rtol=1e-7, atol=1e-10)  # sums in another order


def test_noisy_values_are_smoothed(rng):
    theta = rng.normal(size=(200, 1)) * 1.2
    clean = -0.5 * theta[:, 0] ** 2
    y = clean + 0.5 * rng.normal(size=200)
    base = Base.one(np.zeros(1), np.eye(1))
    surface = Surface.searched(Points(theta, y, np.full(200, 0.25), no_points(1)), base, None, Caution(), ShapeSearch())
    u = np.linspace(-1.5, 1.5, 30)[:, None]
    error = surface(u).low + 0.5 * u[:, 0] ** 2
    assert np.sqrt(np.mean(error**2)) < 0.25  # the values themselves are off by 0.5


def test_one_value_far_below_does_not_bend_the_rest(rng):
    plain = make(rng)
    theta = np.vstack([plain.points.theta, [[6.0, -6.0]]])
    y = np.append(plain.points.y, -1e9)
    points = Points(theta, y, np.zeros(len(y)), no_points(2))
    surface = Surface.searched(points, plain.base, None, Caution(), ShapeSearch())
    u = rng.normal(size=(100, 2)) * 0.3 + [0.3, 0.8]
    assert np.max(np.abs(surface(u).low - plain(u).low)) < 0.3


# --- where the likelihood is zero


def test_a_point_nearest_to_a_forbidden_one_is_forbidden(rng):
    forbidden = np.array([[5.0, 5.0], [6.0, 5.0]])
    surface = make(rng, forbidden=forbidden)
    seen = surface(np.array([[5.1, 5.1], [0.3, 1.0]]))
    assert seen.low[0] == seen.high[0] == -np.inf
    assert np.isfinite([seen.low[1], seen.high[1]]).all()


def test_an_evaluated_point_is_never_forbidden(rng):
    surface = make(rng, forbidden=rng.normal(size=(30, 2)))
    assert np.isfinite(surface(surface.points.theta).low).all()


@pytest.mark.parametrize("shift", [0.0, -1e5])
def test_a_constant_in_the_function_is_one_in_the_surrogate(shift, rng):
    plain = make(np.random.default_rng(1))
    points = plain.points._replace(y=plain.points.y + shift)
    surface = Surface(points, plain.base, plain.shape, Caution())
    u = rng.normal(size=(40, 2))
    assert_allclose(surface(u).low, plain(u).low + shift, atol=1e-5)


def test_values_so_large_that_a_nat_is_lost_in_them(rng):
    theta = rng.normal(size=(20, 2))
    points = Points(theta, np.full(20, 1e300), np.zeros(20), no_points(2))
    surface = Surface.searched(points, Base.one(np.zeros(2), np.eye(2)), None, Caution(), ShapeSearch())
    assert np.isfinite(surface(theta).low).all()


def test_only_points_above_the_depth_are_near(rng):
    surface = make(rng)
    far = rng.normal(size=(30, 2)) + 40.0
    theta = np.concatenate([surface.points.theta, far])
    y = np.concatenate([surface.points.y, np.full(30, -1e5)])
    more = Surface(Points(theta, y, np.zeros(len(y)), no_points(2)), surface.base, surface.shape, Caution())
    assert more.n_near == surface.n_near > 30


# --- where mass may be


def test_the_possible_density_is_the_expected_one(rng):
    surface = make(rng, n=15)
    u = rng.normal(size=(200, 2))
    low, high, variance = surface(u)
    # Near the points no limit applies, and above the squash's depth the scale is that of the log joint.
    plain = (variance < 0.5) & (high > -105) & (high < np.max(surface.points.y) + 1.9)
    assert plain.sum() > 20
    assert_allclose((high - low)[plain], variance[plain], atol=1e-6)


def test_beyond_a_steep_wall_no_mass_is_expected(rng):
    def walled(u):  # half a Gaussian, with a wall of fifty nats for each standard deviation beyond
        return -0.5 * np.sum(u**2, axis=1) + 50 * np.minimum(u[:, 0], 0.0)

    theta = rng.normal(size=(150, 3)) * 1.3
    points = Points(theta, walled(theta), np.zeros(150), no_points(3))
    base = Base.one(np.array([0.8, 0.0, 0.0]), np.diag([0.4, 1.0, 1.0]))
    surface = Surface.searched(points, base, None, Caution(), ShapeSearch())
    far = rng.normal(size=(2000, 3))
    far *= 7 / np.linalg.norm(far, axis=1)[:, None]
    # The base is 25 nats below its centre there, or more, and the points exceed it by few nats.
    assert np.max(surface(far).high) < -8


def test_mass_may_be_up_to_the_nearest_forbidden_point():
    theta = np.linspace(-2, 0.5, 12)[:, None]
    points = Points(theta, -0.5 * theta[:, 0] ** 2, np.zeros(12), np.array([[1.5]]))
    surface = Surface.searched(points, Base.one(np.zeros(1), np.eye(1)), None, Caution(), ShapeSearch())
    low, high, _ = surface(np.array([[0.9], [1.1], [1.4], [1.6]]))
    assert_array_equal(np.isfinite(low), [True, False, False, False])
    assert_array_equal(np.isfinite(high), [True, True, True, False])


# --- which points matter


def test_a_low_value_matters_where_no_other_point_says_so():
    theta = np.array([[-1.0], [-0.5], [0.0], [0.5], [1.0], [2.5], [-3.0], [-3.1], [-3.2]])
    y = np.where(np.abs(theta[:, 0]) > 2, -15.0, -0.5 * theta[:, 0] ** 2)
    points = Points(theta, y, np.zeros(len(y)), no_points(1))
    surface = Surface(points, Base.one(np.zeros(1), np.eye(1)), np.array([-0.5, -10.0, 0.0, 0.0]), Caution())
    worth = surface.worth()
    assert np.all(worth >= y - 1e-9)  # a high value always matters
    assert worth[5] > worth[7] + 2  # the only low one on its side, and one among three


def test_points_at_astronomic_distances_do_not_matter(rng):
    """The first points of a fit may be a billion standard deviations away, and close to each other."""
    surface = make(rng)
    near, y = surface.points.theta, surface.points.y
    far = 1e9 + 1e3 * rng.normal(size=(20, 2))
    points = Points(np.concatenate([near, far]), np.append(y, np.full(20, -1e18)), np.zeros(60), no_points(2))
    with_far = Surface.searched(points, surface.base, None, Caution(), ShapeSearch())
    u = rng.normal(size=(50, 2))
    assert_allclose(with_far(u).low, surface(u).low, atol=0.5)


def test_no_more_is_claimed_than_is_possible():
    """Points in a heavy tail raise the constant of the regression, to which it falls back between far points."""
    theta = np.concatenate([np.linspace(-9, 12, 40), [-18, 18, 25, -66, -110, 55, 75, 88, 105, 150]])[:, None]
    y = -5 * np.log1p(((theta[:, 0] - 2) / 5) ** 2)
    points = Points(theta, y, np.zeros(len(y)), no_points(1))
    surface = Surface.searched(points, Base.one(np.array([2.0]), np.eye(1) * 9), None, Caution(), ShapeSearch())
    u = np.linspace(-200, 200, 2001)[:, None]
    seen = surface(u)
    assert np.all(seen.low <= seen.high)
    mass = np.exp(seen.low - np.max(seen.low))
    assert np.sum(mass[np.abs(u[:, 0] - 2) > 25]) < 0.01 * np.sum(mass)


# --- jumps


def test_a_surrogate_that_may_jump_along_a_coordinate_predicts_steps_better(rng):
    """One coordinate has a step of a nat every third of a standard deviation, the other is smooth."""
    theta = rng.normal(size=(200, 2))
    y = -0.5 * np.sum(theta**2, axis=1) + np.sin(5 * np.floor(3 * theta[:, 0])) + np.sin(theta[:, 1])
    points, base = Points(theta, y, np.zeros(200), no_points(2)), Base.one(np.zeros(2), np.eye(2))
    smooth, first, second, both = (
        Surface.searched(points, base, None, Caution(), ShapeSearch(), Coordinates(jumping=columns))
        for columns in ((), (0,), (1,), (0, 1))
    )
    assert min(smooth, first, second, both, key=lambda surface: surface.process.misfit) is first
    assert first.unexplained < smooth.unexplained / 2
    assert first.jumping == (0,)
    assert_allclose(first(theta[:5]).low, y[:5], atol=0.1)


@pytest.mark.parametrize("columns", [(0,), (2,), (0, 1, 2)])
def test_coordinates_along_which_it_jumps_are_not_mixed(columns, rng):
    """A jump stays at one value of its coordinate in the frame of the kernel, whatever the correlations."""
    theta = rng.multivariate_normal(np.zeros(3), 0.3 * np.eye(3) + 0.7, size=60)
    points = Points(theta, -np.sum(theta**2, axis=1), np.zeros(60), no_points(3))
    base = Base.one(np.zeros(3), np.cov(theta.T))
    surface = Surface.searched(points, base, None, Caution(), ShapeSearch(), Coordinates(jumping=columns))
    z = surface.whitened(theta)
    for i in columns:
        assert abs(np.corrcoef(z[:, i], theta[:, i])[0, 1]) > 1 - 1e-9
