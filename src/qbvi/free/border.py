"""Where the likelihood is zero: bounds that separate allowed from forbidden points.

Most users return minus infinity where a parameter leaves its bounds, or where parameters are out of
order: the border is flat. So the border is first sought among bounds on single coordinates, and on
sums and differences of two: as few as leave no forbidden point inside. A bound lies half way
between the allowed and the forbidden points next to it. If no such bounds separate them, a point is
of the kind of the nearest evaluated one.

A few points may be separated in several ways, and the one with fewest bounds need not be right. So
for each of its bounds there is another way that does without. Where these ways differ, points are
evaluated, and the mass there may be missing.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

__all__ = ["Border", "Bounds", "Nearest", "border_between"]

Floats = NDArray[np.float64]


class Bounds(NamedTuple):
    """A flat border: ``directions @ u`` below some value is allowed, above another forbidden."""

    directions: Floats  # (k, d)
    inner: Floats  # (k,) largest value of an allowed point
    outer: Floats  # (k,) smallest value of a forbidden one
    others: tuple[Bounds, ...] = ()  # which separate the points too, each without one of these

    def __call__(self, u: Floats) -> Floats:
        """Probability that points u (m, d) are allowed: (m,). It falls linearly in between."""
        shares = (self.outer - u @ self.directions.T) / (self.outer - self.inner)
        return np.asarray(np.prod(np.clip(shares, 0.0, 1.0), axis=1))

    def possibly(self, u: Floats) -> Floats:
        """The same, as the mean over all these ways to separate the points."""
        return np.asarray(np.mean([self(u), *(other(u) for other in self.others)], axis=0))


class Nearest:
    """A border of any shape: a point is of the kind of the nearest evaluated one."""

    def __init__(self, allowed: Floats, forbidden: Floats, scale: Floats) -> None:
        self._scale = scale
        self._trees = [scipy.spatial.cKDTree(points / scale) for points in (allowed, forbidden)]

    def __call__(self, u: Floats) -> Floats:
        """Probability that points u (m, d) are allowed: (m,)."""
        to_allowed, to_forbidden = (tree.query(u / self._scale)[0] for tree in self._trees)
        return np.where(to_allowed < to_forbidden, 1.0, 0.0)

    possibly = __call__


Border = Bounds | Nearest


def border_between(allowed: Floats, forbidden: Floats, scale: Floats) -> Border:
    """The border between points (n, d) and (m, d), in coordinates with these scales (d,).

    Examples
    --------
    >>> import numpy as np
    >>> u = np.random.default_rng(1).standard_normal((200, 2))
    >>> is_ordered = u[:, 0] < u[:, 1]
    >>> border = border_between(u[is_ordered], u[~is_ordered], np.ones(2))
    >>> border.directions
    array([[ 1., -1.]])
    """
    return _bounds(allowed, forbidden) or Nearest(allowed, forbidden, scale)


def _bounds(allowed: Floats, forbidden: Floats) -> Bounds | None:
    """Bounds that separate the points, and the other ways to do so."""
    directions = _directions(allowed.shape[1])
    inner = np.max(allowed @ directions.T, axis=0)
    beyond = forbidden @ directions.T - inner  # (m, k)

    def bounds(chosen: list[int]) -> Bounds:
        outer = np.array([_nearest_beyond(beyond[:, chosen], i) for i in range(len(chosen))])
        return Bounds(directions[chosen], inner[chosen], inner[chosen] + outer)

    most = 2 * allowed.shape[1]
    first = _separating(beyond > 0, most)
    if first is None:
        return None
    others = (_separating((beyond > 0) & (np.arange(len(directions)) != k), most) for k in first)
    return bounds(first)._replace(others=tuple(bounds(other) for other in others if other is not None))


def _separating(excludes: NDArray[np.bool_], most: int) -> list[int] | None:
    """As few bounds as possible that exclude all points, one after the other; None if none do.

    ``excludes`` (m, k) tells which bounds exclude which points.
    """
    chosen: list[int] = []
    left = np.ones(len(excludes), dtype=bool)
    while left.any():
        counts = excludes[left].sum(axis=0)
        best = int(np.argmax(counts))  # the first of equals: single coordinates come first
        if counts[best] == 0 or len(chosen) >= most:
            return None
        chosen.append(best)
        left &= ~excludes[:, best]
    return chosen


def _nearest_beyond(beyond: Floats, i: int) -> float:
    """Distance from the i-th of some bounds to the nearest point that it alone excludes."""
    excluded = beyond[:, i] > 0
    alone = excluded & (np.sum(beyond > 0, axis=1) == 1)
    return float(np.min(beyond[alone if alone.any() else excluded, i]))


def _directions(d: int) -> Floats:
    """Both signs of each coordinate, then of the differences and sums of two: (k, d)."""
    eye = np.eye(d)
    pairs = [eye[i] + sign * eye[j] for i, j in combinations(range(d), 2) for sign in (-1, 1)]
    return np.concatenate([sign * np.reshape(part, (-1, d)) for part in (eye, pairs) for sign in (1, -1)])
