"""The border of the likelihood: exact bounds where they explain all points, the nearest point elsewhere."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from qbvi.free.border import Bounds, Nearest, border_between

FLAT = {
    "one bound": (lambda u: u[:, 0] > -0.3, 1),
    "box": (lambda u: (u[:, 0] > -0.5) & (u[:, 1] < 0.8), 2),
    "order": (lambda u: u[:, 0] < u[:, 1], 1),
    "sum": (lambda u: u[:, 0] + u[:, 1] < 1, 1),
}


def points(n, d, seed=1):
    return np.random.default_rng(seed).standard_normal((n, d))


@pytest.mark.parametrize("d", [2, 5])
@pytest.mark.parametrize("name", FLAT)
def test_flat_borders_are_found(name, d):
    is_allowed, n_bounds = FLAT[name]
    u = points(400, d)
    border = border_between(u[is_allowed(u)], u[~is_allowed(u)], np.ones(d))
    assert isinstance(border, Bounds)
    assert len(border.directions) == n_bounds
    # A bound lies between neighbours: of 400 points, so few of 4,000 others are on the wrong side.
    other = points(4000, d, seed=2)
    assert np.mean((border(other) > 0.5) != is_allowed(other)) < 0.01


def test_every_evaluated_point_is_classified_right():
    u = points(300, 3)
    for is_allowed in (u[:, 0] > 0.2, np.sum(u**2, axis=1) < 3, (u[:, 0] > 0) & (u[:, 1] + u[:, 2] < 0.5)):
        border = border_between(u[is_allowed], u[~is_allowed], np.ones(3))
        assert_allclose(border(u) > 0.5, is_allowed)


def test_the_probability_falls_between_the_nearest_points():
    border = border_between(np.array([[0.0], [1.0]]), np.array([[3.0], [5.0]]), np.ones(1))
    assert_allclose(border(np.array([[0.5], [1.0], [2.0], [2.5], [3.0], [9.0]])), [1, 1, 0.5, 0.25, 0, 0])


def test_only_points_that_a_bound_alone_excludes_show_its_place():
    # (0.1, 9) is beyond the second bound too, so it does not say how far the first one reaches.
    allowed, forbidden = np.array([[0.0, 0.0], [-1.0, -1.0]]), np.array([[0.1, 9.0], [2.0, -3.0], [-3.0, 4.0]])
    border = border_between(allowed, forbidden, np.ones(2))
    assert_allclose(border.outer[np.argsort(border.directions[:, 1])], [2, 4])


def test_a_border_inside_the_allowed_points_is_by_the_nearest_point():
    u = points(300, 2)
    is_allowed = np.sum(u**2, axis=1) > 0.5  # a forbidden disc
    border = border_between(u[is_allowed], u[~is_allowed], np.ones(2))
    assert isinstance(border, Nearest)
    other = points(2000, 2, seed=2)
    assert np.mean((border(other) > 0.5) != (np.sum(other**2, axis=1) > 0.5)) < 0.06


def test_distances_are_in_units_of_the_scales():
    border = Nearest(np.array([[0.0, 0.0]]), np.array([[1.0, 100.0]]), np.array([1.0, 100.0]))
    assert_allclose(border(np.array([[0.9, 0.0], [0.9, 60.0]])), [1, 0])


def test_a_single_forbidden_point_may_be_excluded_in_several_ways():
    border = border_between(np.array([[0.0, 0.0]]), np.array([[1.0, 1.0]]), np.ones(2))
    assert len(border.others) == 1
    u = np.array([[2.0, -3.0], [-3.0, 2.0], [2.0, 2.0], [-1.0, -1.0]])
    assert_allclose(border(u), [0, 1, 0, 1])  # a bound on the first coordinate
    assert_allclose(border.possibly(u), [0.5, 0.5, 0, 1])  # or on the second


def test_with_many_points_there_is_no_other_way(rng):
    u = rng.normal(size=(400, 2))
    is_ordered = u[:, 0] < u[:, 1]
    assert border_between(u[is_ordered], u[~is_ordered], np.ones(2)).others == ()
