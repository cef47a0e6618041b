"""Results as tables, with one row per entry of the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.points import items

__all__ = ["side_by_side", "table"]

Floats = NDArray[np.float64]


def side_by_side(point: Any) -> Floats:
    """The entries of one point, in the order of its labels: (p,).

    Examples
    --------
    >>> side_by_side({"a": np.array([1.0, 2.0]), "b": np.array(3.0)})
    array([1., 2., 3.])
    """
    return np.concatenate([np.ravel(array) for _, array in items(point)])


def table(head: str, labels: Sequence[str], columns: dict[str, Floats]) -> str:
    """A line of text, then one row per label.

    Examples
    --------
    >>> print(table("Numbers", ["a"], {"mean": np.array([1.5])}))
    Numbers
                     mean
            a         1.5
    """
    width = max(9, *(len(label) for label in labels))
    rows = [
        f"{label:>{width}}" + "".join(f"  {value:>10.4g}" for value in row)
        for label, row in zip(labels, zip(*columns.values(), strict=True), strict=True)
    ]
    return "\n".join([head, " " * width + "".join(f"  {name:>10}" for name in columns), *rows])
