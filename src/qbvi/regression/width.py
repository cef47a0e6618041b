"""How wide a start is where the prior says nothing: a search over orders of magnitude, outwards.

The effects of a hierarchical model in dollars have a flat prior and a spread of thousands. A start
that is a hundredth of a unit wide sees no slope in them, so nothing tells how wide the posterior
is. Meanwhile their scale shrinks towards zero, since all effects are equal there: a path into the
neck of a funnel, from which it takes hundreds of evaluations to return.

Such coordinates have a flat prior and next to no slope in the first batch. One point for each order
of magnitude, with all of them moved at once, shows up to where the log joint stays the same. There,
each is moved alone: a slope of a column in the thousands ends before the effects do, and these are
then moved on without it.
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
    >>> width = Width.begin(np.zeros(2), np.ones(2), np.array([True, True]))
    >>> while not width.is_over:
    ...     width = width.told(-0.5 * np.sum((width.ask(rule) / 5000) ** 2, axis=1), rule)
    >>> width.widening.tolist()
    [1000.0, 1000.0]
    """

    origin: Floats  # (d,) mean of the start
    y: float  # log joint there; not a number before it is evaluated
    ray: Floats  # (d,) the coordinates that are flat, with signs by turns, in units of the start
    widening: Floats  # (d,) factors by which the start may be wider
    is_active: NDArray[np.bool_]  # (d,) coordinates of which the end was not found yet
    is_alone: bool  # whether the next points move them one by one
    n_told: int  # lengths so far
    is_over: bool

    @classmethod
    def begin(cls, origin: Floats, unit: Floats, is_flat: NDArray[np.bool_]) -> Width:
        """A search from ``origin`` (d,), in flat coordinates with these units."""
        ray = np.zeros(len(origin))
        ray[is_flat] = unit[is_flat] * (-1.0) ** np.arange(np.count_nonzero(is_flat))
        return cls(origin, np.nan, ray, np.ones(len(origin)), ray != 0, is_alone=False, n_told=0, is_over=False)

    def ask(self, rule: WidthRule) -> Floats:
        """The origin, the point of the next order of magnitude, or one for each coordinate: (n, d).

        It is one length at a time, as the function may be costly far out, and the surrogate misled.
        """
        if np.isnan(self.y):
            return self.origin[None]
        step = self._length(rule) * np.where(self.is_active, self.ray, 0.0)
        return np.asarray(self.origin + (np.diag(step)[self.is_active] if self.is_alone else step[None]))

    def told(self, y: Floats, rule: WidthRule) -> Width:
        """The search with the log joints of its last points (n,).

        A coordinate is at its end at its first change. If the log joint never changes, nothing is
        known, and the start stays as it is.
        """
        if np.isnan(self.y):
            return self._replace(y=float(y[0]), is_over=not np.isfinite(y[0]))
        is_same = np.abs(y - self.y) < rule.change * (1 if self.is_alone else np.count_nonzero(self.is_active))
        if self.is_alone:
            is_active = self.is_active.copy()
            is_active[self.is_active] = is_same
            return self._replace(is_active=is_active, is_alone=False, is_over=not is_same.any() or bool(is_same.all()))
        if not is_same[0]:
            is_one = np.count_nonzero(self.is_active) == 1
            return self._replace(is_alone=not is_one, is_over=is_one)
        n_told = self.n_told + 1
        is_endless = n_told == rule.rungs
        length = 1.0 if is_endless else self._length(rule)
        widening = np.where(self.is_active, length, self.widening)
        return self._replace(n_told=n_told, widening=widening, is_over=is_endless)

    def _length(self, rule: WidthRule) -> float:
        """Length of the next point, in units of the start."""
        return float(rule.factor**self.n_told)


def slopes(z: Floats, y: Floats) -> Floats:
    """Slope of values y (n,) at mirror pairs z (n, d), one after the other: (d,).

    Differences within a pair have no even part. Not a number if a value is not finite.
    """
    odd = 0.5 * (y[::2] - y[1::2])
    if not np.isfinite(odd).all():
        return np.full(z.shape[1], np.nan)
    return np.asarray(np.linalg.lstsq(z[::2], odd, rcond=None)[0])
