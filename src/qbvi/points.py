"""Points as the user's function sees them: one array, or a dict of arrays by name.

A *point* holds one value of every parameter: an array of the parameter's shape, or a dict of such
arrays where the parameters have names. *Stacked* points share a first axis: their arrays have shape
``(n, *shape)``. Only the functions here ask which of the two forms a value has.

`count`, `sliced`, `mapped` and `items` take arrays of any library. `row`, `rows`, `copied` and
`stacked` make copies, which are NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["Points", "copied", "count", "is_named", "items", "mapped", "row", "rows", "sliced", "stacked"]

Points = Any  # one array, or a dict of arrays by name


def is_named(points: Points) -> bool:
    """Whether the arrays have names."""
    return isinstance(points, Mapping)


def items(points: Points, unnamed: str = "") -> list[tuple[str, Any]]:
    """All arrays with their names; a single array goes by the name ``unnamed``.

    Examples
    --------
    >>> items({"a": 1.0, "b": 2.0}), items(3.0)
    ([('a', 1.0), ('b', 2.0)], [('', 3.0)])
    """
    return list(points.items()) if is_named(points) else [(unnamed, points)]


def mapped(function: Callable[[Any], Any], points: Points) -> Points:
    """Apply a function to every array, and keep the names.

    Examples
    --------
    >>> mapped(abs, {"a": -1.0, "b": 2.0})
    {'a': 1.0, 'b': 2.0}
    """
    return {name: function(array) for name, array in points.items()} if is_named(points) else function(points)


def count(points: Points) -> int:
    """Number of stacked points.

    Examples
    --------
    >>> count({"a": np.zeros((5, 2)), "b": np.zeros(5)})
    5
    """
    _, array = items(points)[0]
    return int(array.shape[0])


def row(points: Points, i: int) -> Any:
    """Point ``i`` of stacked ones, as a copy; single numbers are NumPy scalars.

    Examples
    --------
    >>> row({"a": np.array([[1.0, 2.0], [3.0, 4.0]]), "b": np.array([5.0, 6.0])}, 1)
    {'a': array([3., 4.]), 'b': np.float64(6.0)}
    """
    return mapped(lambda array: np.array(array[i])[()], points)


def rows(points: Points, chosen: Sequence[int]) -> Points:
    """Some of the stacked points, as a copy."""
    return mapped(lambda array: np.asarray(array)[list(chosen)], points)


def sliced(points: Points, start: int, stop: int) -> Points:
    """Points ``start`` to ``stop`` of stacked ones; arrays stay in their library."""
    return mapped(lambda array: array[start:stop, ...], points)


def copied(points: Points) -> Points:
    """A copy of a point, or of stacked points, that its receiver may overwrite."""
    return mapped(lambda array: np.array(array)[()], points)


def stacked(points: Sequence[Any]) -> Points:
    """Stack points along a new first axis; the inverse of taking every `row`.

    Examples
    --------
    >>> stacked([{"a": 1.0}, {"a": 2.0}])
    {'a': array([1., 2.])}
    """
    if is_named(points[0]):
        return {name: np.stack([np.asarray(point[name]) for point in points]) for name in points[0]}
    return np.stack([np.asarray(point) for point in points])
