"""Climbs: up the slope, and not across a valley."""

import numpy as np
from numpy.testing import assert_allclose

from qbvi.free.climb import Climb
from qbvi.free.rules import SurveyRule

RULE = SurveyRule(climbs=(0.5, 1.0, 2.0))


def climbed(function, start, scale):
    """Where climbs from starts (k, d) end, and the values there."""
    start, scale = np.array(start, dtype=float), np.array(scale, dtype=float)
    climb = Climb.begin(start, function(start), 1e-4 * np.broadcast_to(scale, start.shape), scale)
    slopes = climb.ask(RULE)
    assert slopes.shape == (start.size, start.shape[1])
    climb = climb.sloped(function(slopes))
    return climb.ended(function(climb.ask(RULE)), RULE)


def test_a_climb_follows_the_slope_in_units_of_the_prior():
    scale = np.array([1.0, 100.0])
    end, y = climbed(lambda u: -np.sum((u / scale) ** 2, axis=1), [[-3.0, 0.0], [0.0, 300.0]], scale)
    # The lengths are 0.5, 1 and 2 times the root of two.
    assert_allclose(end, [[-3 + 8**0.5, 0], [0, 300 - 100 * 8**0.5]], atol=0.1)
    assert_allclose(y, -np.sum((end / scale) ** 2, axis=1))


def test_a_climb_ends_before_the_first_fall():
    def ridge(u):
        return np.where(u[:, 0] < 0.8, u[:, 0], 10 * u[:, 0] - 9)

    end, _ = climbed(ridge, [[0.0]], [1.0])
    assert_allclose(end, [[2.0]])
    end, y = climbed(lambda u: np.where(u[:, 0] < 0.8, u[:, 0], 10 * u[:, 0] - 10.5), [[0.0]], [1.0])
    assert_allclose(end, [[0.5]])
    assert_allclose(y, [0.5])


def test_failures_and_flat_places_stay_where_they_are():
    end, y = climbed(lambda u: np.where(u[:, 0] == 0, -5.0, -np.inf), [[0.0, 1.0]], [1.0, 1.0])
    assert_allclose(end, [[0, 1]])
    assert_allclose(y, [-5])
