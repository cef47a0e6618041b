"""How wide a start is where the prior says nothing: a search over orders of magnitude, outwards.

The effects of a hierarchical model in dollars have a flat prior and a spread of thousands. A start
that is a hundredth of a unit wide sees no slope in them, so nothing tells how wide the posterior
is. Meanwhile their scale shrinks towards zero, since all effects are equal there: a path into the
neck of a funnel, from which it takes hundreds of evaluations to return.

Such coordinates have a flat prior and next to no slope in the first batch. One point for each order
of magnitude, with all of them moved at once, shows up to where the log joint stays the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.regression.rules import WidthRule

__all__ = ["Width", "slopes"]

Floats = NDArray[np.float64]


class Width(NamedTuple):
    """A search in progress.

    Examples
    --------
    A parabola that is 5,000 units wide:

    >>> rule = WidthRule()
    >>> width = Width.begin(np.zeros(2), 0.0, np.ones(2), np.array([True, True]))
    >>> while not width.is_over:
    ...     width = width.told(-0.5 * np.sum((width.ask(rule) / 5000) ** 2, axis=1), rule)
    >>> width.factors().tolist()
    [1000.0, 1000.0]
    """

    origin: Floats  # (d,) mean of the start
    y: float  # log joint there
    ray: Floats  # (d,) the coordinates that are flat, with signs by turns, in units of the start
    widening: float  # factor by which the start may be wider in these coordinates
    n_told: int  # lengths so far
    is_over: bool

    @classmethod
    def begin(cls, origin: Floats, y: float, unit: Floats, is_flat: NDArray[np.bool_]) -> Width:
        """A search from ``origin`` (d,) with log joint y, in flat coordinates with these units."""
        ray = np.zeros(len(origin))
        ray[is_flat] = unit[is_flat] * (-1.0) ** np.arange(np.count_nonzero(is_flat))
        return cls(origin, y, ray, 1.0, 0, is_over=False)

    def ask(self, rule: WidthRule) -> Floats:
        """The point of the next order of magnitude: (1, d).

        It is one at a time, as the function may be costly far out, and the surrogate misled.
        """
        return np.asarray(self.origin + self._length(rule) * self.ray)[None]

    def told(self, y: Floats, rule: WidthRule) -> Width:
        """The search with the log joint of its last point (1,): it is over at the first change.

        If the log joint never changes, nothing is known, and the start stays as it is.
        """
        n_told = self.n_told + 1
        if not abs(y[0] - self.y) < rule.change * np.count_nonzero(self.ray):
            return self._replace(n_told=n_told, is_over=True)
        if n_told == rule.rungs:
            return self._replace(n_told=n_told, widening=1.0, is_over=True)
        return self._replace(n_told=n_told, widening=self._length(rule))

    def _length(self, rule: WidthRule) -> float:
        """Length of the next point, in units of the start."""
        return float(rule.factor**self.n_told)

    def factors(self) -> Floats:
        """By how much the start should be wider in each coordinate (d,)."""
        return np.where(self.ray != 0, self.widening, 1.0)


def slopes(z: Floats, y: Floats) -> Floats:
    """Slope of values y (n,) at mirror pairs z (n, d), one after the other: (d,).

    Differences within a pair have no even part. Not a number if a value is not finite.
    """
    odd = 0.5 * (y[::2] - y[1::2])
    if not np.isfinite(odd).all():
        return np.full(z.shape[1], np.nan)
    return np.asarray(np.linalg.lstsq(z[::2], odd, rcond=None)[0])
