"""The numbers that stand for failed points."""

import numpy as np
import pytest

from qbvi.evaluate.policy import excluded_value, floor_value, replace_failed

VALUES = np.array([-3.0, np.nan, -1.0, -np.inf, -2.5])


def test_an_excluded_point_leaves_the_mean_where_it_was():
    ok = np.isfinite(VALUES)
    values = replace_failed("exclude", VALUES, ok)
    assert np.mean(values) == pytest.approx(np.mean(VALUES[ok]), rel=1e-15)
    assert excluded_value(VALUES, ok) == pytest.approx(np.mean(VALUES[ok]), rel=1e-15)


@pytest.mark.parametrize(("values", "expected"), [([-3.0, -1.0], -5.0), ([-3.0, -2.9], -4.0), ([7.0], 6.0)])
def test_a_floored_point_lies_below_by_the_range_and_by_a_nat_at_least(values, expected):
    assert floor_value(np.array([*values, np.nan]), np.array([*(True for _ in values), False])) == expected
