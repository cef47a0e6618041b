"""One array, or a dict of arrays: both forms of points go through the same functions."""

import array_api_strict
import numpy as np
import pytest

from qbvi import points

ARRAY = np.arange(6.0).reshape(3, 2)
NAMED = {"a": ARRAY, "b": np.array([7.0, 8.0, 9.0])}


@pytest.mark.parametrize("both", [ARRAY, NAMED], ids=["array", "dict"])
def test_rows_stacked_again_are_the_points(both):
    again = points.stacked([points.row(both, i) for i in range(points.count(both))])
    assert points.is_named(again) == points.is_named(both)
    for (name, array), (same, expected) in zip(points.items(again), points.items(both), strict=True):
        assert name == same
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    "taken",
    [
        lambda both: points.row(both, 1),
        lambda both: points.rows(both, [0, 2]),
        lambda both: points.copied(both),
    ],
    ids=["row", "rows", "copied"],
)
@pytest.mark.parametrize("form", ["array", "dict"])
def test_what_is_taken_may_be_overwritten(taken, form):
    both = ARRAY.copy() if form == "array" else {"a": ARRAY.copy()}
    for _, array in points.items(taken(both)):
        array[...] = -1.0
    for _, array in points.items(both):
        np.testing.assert_array_equal(array, ARRAY)


def test_a_single_number_of_a_row_is_a_scalar():
    one = points.row(NAMED, 2)
    assert isinstance(one["b"], np.float64)
    assert one["b"] == 9.0


def test_no_rows_keep_their_shapes():
    none = points.rows(NAMED, [])
    assert {name: array.shape for name, array in none.items()} == {"a": (0, 2), "b": (0,)}
    assert points.count(none) == 0


def test_an_array_without_a_name_gets_the_one_that_is_asked_for():
    assert [name for name, _ in points.items(ARRAY, unnamed="theta")] == ["theta"]
    assert [name for name, _ in points.items(NAMED, unnamed="theta")] == ["a", "b"]


def test_arrays_of_another_library_stay_in_it():
    named = {"a": array_api_strict.asarray(ARRAY), "b": array_api_strict.asarray(NAMED["b"])}
    part = points.sliced(named, 1, 3)
    assert points.count(named) == 3
    assert points.count(part) == 2
    assert all(isinstance(array, type(named["a"])) for _, array in points.items(part))
    doubled = points.mapped(lambda array: 2 * array, part)
    np.testing.assert_array_equal(np.from_dlpack(doubled["b"]), [16.0, 18.0])
