"""Points as the user's function sees them: one array, or a dict of arrays by name.

A *point* holds one value of every parameter: an array of the parameter's shape, or a dict of such
arrays where the parameters have names. The dicts may be nested. *Stacked* points share a first
axis: their arrays have shape ``(n, *shape)``. Only the functions here ask which form a value has.

`count`, `sliced`, `mapped` and `items` take arrays of any library. `row`, `rows`, `copied` and
`stacked` make copies, which are NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = [
    "Points",
    "copied",
    "count",
    "is_named",
    "items",
    "mapped",
    "nested",
    "paths_of",
    "row",
    "rows",
    "sliced",
    "stacked",
]

Points = Any  # one array, or a dict of arrays by name, which may be nested
DOT = "."  # between the names of a path


def is_named(points: Points) -> bool:
    """Whether the arrays have names."""
    return isinstance(points, Mapping)


def items(points: Points, unnamed: str = "") -> list[tuple[str, Any]]:
    """All arrays with their names; a single array goes by the name ``unnamed``.

    Names in nested dicts are joined by dots.

    Examples
    --------
    >>> items({"a": 1.0, "b": {"c": 2.0}}), items(3.0)
    ([('a', 1.0), ('b.c', 2.0)], [('', 3.0)])
    """
    if not is_named(points):
        return [(unnamed, points)]
    found: list[tuple[str, Any]] = []
    for name, one in points.items():
        found += [(f"{name}{DOT}{inner}", array) for inner, array in items(one)] if is_named(one) else [(name, one)]
    return found


def mapped(function: Callable[[Any], Any], points: Points) -> Points:
    """Apply a function to every array, and keep the names.

    Examples
    --------
    >>> mapped(abs, {"a": -1.0, "b": {"c": 2.0}})
    {'a': 1.0, 'b': {'c': 2.0}}
    """
    return {name: mapped(function, one) for name, one in points.items()} if is_named(points) else function(points)


def nested(arrays: Mapping[str, Any], paths: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Arrays in nested dicts, by the path of each.

    Examples
    --------
    >>> nested({"a": 1.0, "b.c": 2.0, "b.d": 3.0}, [["a"], ["b", "c"], ["b", "d"]])
    {'a': 1.0, 'b': {'c': 2.0, 'd': 3.0}}
    """
    found: dict[str, Any] = {}
    for *outer, last in paths:
        inner = found
        for name in outer:
            inner = inner.setdefault(name, {})
        inner[last] = arrays[DOT.join((*outer, last))]
    return found


def paths_of(points: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The path to each array in nested dicts.

    Examples
    --------
    >>> paths_of({"a": 1.0, "b": {"c": 2.0}})
    [('a',), ('b', 'c')]
    """
    empty = next((name for name, one in points.items() if is_named(one) and not one), None)
    if empty is not None:
        msg = f"nested dicts must have at least one parameter each, but {empty!r} is an empty dict"
        raise ValueError(msg)
    below = {name: paths_of(one) if is_named(one) else [()] for name, one in points.items()}
    return [(name, *path) for name, found in below.items() for path in found]


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
        return {name: stacked([point[name] for point in points]) for name in points[0]}
    return np.stack([np.asarray(point) for point in points])
