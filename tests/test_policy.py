"""One meaning of `on_failure`, for the black box on the host and for steps without branches on a device."""

import numpy as np
import pytest

from qbvi.evaluate import BlackBox
from qbvi.evaluate.policy import excluded_value, floor_value, replace_failed

VALUES = np.array([-3.0, np.nan, -1.0, -np.inf, -2.5])


@pytest.mark.parametrize("policy", ["exclude", "floor"])
@pytest.mark.parametrize("values", [VALUES, np.full(4, np.nan), VALUES[[0, 2]]], ids=["some", "all", "none"])
def test_host_and_device_replace_alike(policy, values):
    found = BlackBox(lambda _: values, vectorized=True, on_failure=policy)(np.zeros((len(values), 1)))
    replaced, ok = replace_failed(policy, values, np.isfinite(values))
    np.testing.assert_allclose(found.values, replaced, rtol=1e-15)  # sums of a few numbers in another order
    np.testing.assert_array_equal(found.ok, ok)


def test_an_excluded_point_leaves_the_mean_where_it_was():
    values, ok = replace_failed("exclude", VALUES, np.isfinite(VALUES))
    assert np.mean(values) == pytest.approx(np.mean(VALUES[ok]), rel=1e-15)
    assert excluded_value(VALUES, ok) == pytest.approx(np.mean(VALUES[ok]), rel=1e-15)


@pytest.mark.parametrize(("values", "expected"), [([-3.0, -1.0], -5.0), ([-3.0, -2.9], -4.0), ([7.0], 6.0)])
def test_a_floored_point_lies_below_by_the_range_and_by_a_nat_at_least(values, expected):
    assert floor_value(np.array([*values, np.nan]), np.array([*(True for _ in values), False])) == expected
