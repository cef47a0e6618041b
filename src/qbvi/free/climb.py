"""Short climbs from points that may be on other hills, before a search for a Gaussian begins there.

A line to a mode that falls, or bends upward, passes by another hill or not: curved ridges and flat
regions do the same. A path to a Gaussian would tell, at several batches of draws. A climb takes d
differences for the slope, and a few points along it. From where it ends, another line leads to the
mode. Only if the log joint falls on that line, too, is there another hill.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.free.rules import SurveyRule

__all__ = ["Climb"]

Floats = NDArray[np.float64]


class Climb(NamedTuple):
    """Climbs from k points at the same time, in units in which the prior has unit spread.

    Examples
    --------
    >>> hill = lambda theta: -50 * np.sum((theta - 2) ** 2, axis=1)
    >>> start, scale = np.array([[0.0, 0.5]]), np.ones(2)
    >>> climb = Climb.begin(start, hill(start), 0.01 * np.ones((1, 2)), scale)
    >>> climb = climb.sloped(hill(climb.ask(SurveyRule())))
    >>> end, y = climb.ended(hill(climb.ask(SurveyRule())), SurveyRule())
    >>> bool(y[0] > hill(start)[0] / 2)
    True
    """

    start: Floats  # (k, d)
    y: Floats  # (k,) log joints there
    step: Floats  # (k, d) differences of the coordinates that measure the slope
    scale: Floats  # (d,) spread of the prior
    direction: Floats  # (k, d) of the slope, of length one in those units; empty before it is known

    @classmethod
    def begin(cls, start: Floats, y: Floats, step: Floats, scale: Floats) -> Climb:
        """Nothing evaluated yet but the starts."""
        return cls(start, y, step, scale, np.empty((0, start.shape[1])))

    @property
    def is_sloped(self) -> bool:
        """Whether the slope is known."""
        return len(self.direction) > 0

    def ask(self, rule: SurveyRule) -> Floats:
        """Points for the slope (k d, d), or along it (k n, d)."""
        d = self.start.shape[1]
        if not self.is_sloped:
            return np.asarray((self.start[:, None] + self.step[:, None] * np.eye(d)).reshape(-1, d))
        return np.asarray((self.start[:, None] + self._along(rule) * self.scale).reshape(-1, d))

    def sloped(self, y: Floats) -> Climb:
        """The climbs with the directions of steepest ascent, from the values at their points."""
        rise = y.reshape(self.start.shape) - self.y[:, None]
        slope = np.where(np.isfinite(rise), rise, 0.0) / self.step * self.scale
        length = np.linalg.norm(slope, axis=1, keepdims=True)
        return self._replace(direction=slope / np.maximum(length, np.finfo(float).tiny))

    def ended(self, y: Floats, rule: SurveyRule) -> tuple[Floats, Floats]:
        """Where the climbs end (k, d), and the log joints there (k,).

        That is before the log joint falls for the first time: beyond may be another hill.
        """
        k, d = self.start.shape
        values = np.column_stack([self.y, y.reshape(k, -1)])
        places = np.concatenate([self.start[:, None], self.ask(rule).reshape(k, -1, d)], axis=1)
        rises = np.cumprod(np.diff(values, axis=1) > 0, axis=1)
        top = np.sum(rises, axis=1)
        return places[np.arange(k), top], values[np.arange(k), top]

    def _along(self, rule: SurveyRule) -> Floats:
        """Vectors along the slope, of growing length: (k, n, d)."""
        lengths = np.array(rule.climbs) * np.sqrt(self.start.shape[1])
        return np.asarray(self.direction[:, None] * lengths[:, None])
