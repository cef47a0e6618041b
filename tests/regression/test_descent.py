"""The slope of the deviance in the prior variances, and the step down it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qbvi.random import orthogonal_pairs
from qbvi.regression import descent
from qbvi.regression.descent import improved
from qbvi.regression.rules import VarianceSearch
from qbvi.regression.surrogate import HermiteRegression, Sample, Slope, Variances

N, D = 60, 3


def sample(rng, **changes):
    """Points of a function with degrees one to four, of which the last 40 are held out."""
    z = orthogonal_pairs(rng, N, D)
    h = 5 * np.tanh(z @ [0.5, 0.3, -0.4]) + 2 * z[:, 0] * z[:, 1] + 0.1 * rng.standard_normal(N)
    return Sample(z, h, rng.uniform(1, 3, N), np.arange(N - 40, N) // 2, 1e-20)._replace(**changes)


def slopes_of(regression, variances):
    """The slopes that a step would use."""
    regression.stepped = lambda _, slopes: slopes
    return improved(regression, variances)


def differences(regression, variances, step=1e-3):
    """Central differences of the deviance in the logarithms."""

    def at(name, sign):
        return regression.misfit(variances._replace(**{name: getattr(variances, name) * math.exp(sign * step)}))

    return {name: (at(name, 1) - at(name, -1)) / (2 * step) for name in Variances._fields}


CASES = {
    "pairs": {},
    "some points without their mirror image": {"pair": np.r_[0, 1, 1, 2, 3, 3, 4, 4, 5]},
    "a scale at its floor": {"floor": 10.0},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("variances", [Variances(0.3, 50.0, 0.05), Variances(1.0, 2.0, 1e-3)])
def test_the_slope_is_that_of_the_deviance(rng, monkeypatch, name, variances):
    """A mean over 1,000 combinations has a relative error of at most sqrt(2 / 1000); three of these are allowed."""
    monkeypatch.setattr(descent, "_COMBINED", 1000)
    regression = HermiteRegression(sample(rng, **CASES[name]))
    found, exact = slopes_of(regression, variances), differences(regression, variances)
    assert set(found) == set(Variances._fields)
    for field, (slope, curvature) in found.items():
        assert slope == pytest.approx(exact[field], abs=0.14 * curvature + 1e-3)


def test_the_slope_with_given_features(rng, monkeypatch):
    """The kernels of a product of families are others, and its features have no radius."""
    monkeypatch.setattr(descent, "_COMBINED", 1000)
    points = sample(rng)
    regression, variances = HermiteRegression(points, np.ones((N, 1))), Variances(0.3, 5.0, 0.05)
    found, exact = slopes_of(regression, variances), differences(regression, variances)
    for field, (slope, curvature) in found.items():
        assert slope == pytest.approx(exact[field], abs=0.14 * curvature + 1e-3)


def test_repeated_steps_end_where_the_deviance_is_low(rng):
    """Within one unit, half a standard deviation, of what a thorough search finds."""
    regression, variances = HermiteRegression(sample(rng)), Variances(0.3, 1e4, 1.0)
    searched = regression.search(variances, VarianceSearch().plan(100, 0))
    first = regression.misfit(variances)
    for _ in range(25):
        variances = improved(regression, variances)
    assert regression.misfit(variances) < min(regression.misfit(searched) + 1, first - 10)


def test_a_step_is_at_most_as_long_as_the_rules_say_and_stays_within_the_bounds(rng):
    rule = VarianceSearch()
    regression, start = HermiteRegression(sample(rng)), Variances(0.3, 50.0, rule.highest[2])
    steep = {"quadratic": Slope(1e6, 1.0), "noise": Slope(-1e6, 1.0)}
    moved = regression.stepped(start, steep)
    assert moved.omega == pytest.approx(start.omega)
    assert math.log(moved.quadratic / start.quadratic) == pytest.approx(-rule.longest[1])
    assert moved.noise == pytest.approx(rule.highest[2])


def test_many_points_descend_after_a_first_search():
    rule = VarianceSearch()
    assert [rule.is_descent(rule.descent, 100, turn) for turn in (1, 3, 4)] == [False, False, True]
    assert not rule.is_descent(rule.descent - 1, 100, 9)
    assert not rule.thorough().is_descent(6000, 100, 9)


def test_fewer_points_descend_if_they_determine_all_coefficients():
    rule, n = VarianceSearch(), 40 * 43 // 2
    assert [rule.is_descent(m, 40, 9) for m in (n - 1, n)] == [False, True]
    assert [rule.is_descent(m, 8, 9) for m in (rule.pause - 1, rule.pause)] == [False, True]
