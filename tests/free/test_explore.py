"""Exploring: points go where another mode may be, not where the answer is known."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from qbvi.free.explore import Depth, promising
from qbvi.free.rules import SurveyRule

RULE = SurveyRule()


def nothing(z):
    return np.zeros(len(z), dtype=bool)


def test_the_regression_interpolates_and_is_uncertain_elsewhere():
    z = np.random.default_rng(1).standard_normal((40, 2))
    t = np.sin(z[:, 0]) + z[:, 1]
    mean, sd = Depth.of(z, t)(np.concatenate([z, [[9.0, 9.0]]]))
    assert_allclose(mean[:-1], t, atol=0.02)
    assert sd[-1] > 20 * np.max(sd[:-1])


def test_a_value_that_is_certain_tells_nothing_on_either_side():
    z = np.linspace(-2, 2, 21)[:, None]
    depth = Depth.of(z, -np.abs(z[:, 0]))
    far = np.max(depth.information(np.array([[6.0]]), 0.0))
    assert np.max(depth.information(z, -1.05)) < 0.01 * far


def test_information_is_an_expectation():
    """E max(t - c, 0) - max(E t - c, 0) by a fine sum over the predictive distribution."""
    z = np.array([[0.0], [1.0], [3.0]])
    depth = Depth.of(z, np.array([0.0, -1.0, -0.5]))
    at, x = np.array([[2.0]]), np.linspace(-9, 9, 200001)
    (mean,), (sd,) = depth(at)
    density = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi) * (x[1] - x[0])
    for height in (-1.5, -0.3, 0.4):
        expected = np.sum(density * np.maximum(mean + sd * x - height, 0)) - max(mean - height, 0)
        assert_allclose(depth.information(at, height), expected, rtol=1e-6)


def test_the_points_are_different_and_within_reach():
    rng = np.random.default_rng(2)
    z = rng.standard_normal((30, 3))
    points = promising(z, -100 * np.sum(z**2, axis=1), nothing, RULE, rng, 6)
    assert points.shape == (6, 3)
    assert len(np.unique(points, axis=0)) == 6
    assert np.max(np.abs(points)) < RULE.farthest


def test_known_modes_are_left_out_unless_they_are_everywhere():
    rng = np.random.default_rng(3)
    z = rng.standard_normal((30, 2))
    y = -np.sum(z**2, axis=1)
    points = promising(z, y, lambda z: z[:, 0] > 0, RULE, rng, 4)
    assert np.all(points[:, 0] <= 0)
    assert promising(z, y, lambda z: np.ones(len(z), dtype=bool), RULE, rng, 4).shape == (4, 2)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_zero_likelihood_is_deep(share):
    rng = np.random.default_rng(4)
    z = rng.uniform(-2, 2, (40, 2))
    y = np.where(z[:, 0] < 2 - 4 * share, -10 * np.sum(z**2, axis=1), -np.inf)
    assert np.isfinite(promising(z, y, nothing, RULE, rng, 4)).all()
