"""A survey of the prior, for other modes than the one that was found.

A few points are spread over the prior. Straight lines lead from some of them to the mode: from the
best ones, and from those that the Gaussian around the mode predicts worst. If the log joint falls
on the way to the mode before it rises, there is another hill, and the search for a Gaussian starts
again there. A log-concave function never does so.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.free.rules import SurveyRule
from qbvi.random import Sobol, drawn_generator
from qbvi.regression.look import PriorScale

__all__ = ["Survey"]

Floats = NDArray[np.float64]


class Survey(NamedTuple):
    """The points of a survey, and where to start from next."""

    lines: Floats  # (k, d) points from which lines lead to the mode; empty before the first round
    ends: Floats  # (k,) log joints there
    starts: Floats  # (m, d) points that may be on other hills
    is_over: bool

    @classmethod
    def begin(cls, d: int) -> Survey:
        """Nothing evaluated yet."""
        return cls(np.empty((0, d)), np.empty(0), np.empty((0, d)), False)

    def ask(self, prior: PriorScale, mode: Floats, rule: SurveyRule, rng: np.random.Generator) -> Floats:
        """Points over the prior, then on the lines to the mode (d,)."""
        d = len(mode)
        if not len(self.ends):
            return np.asarray(prior.loc) + np.asarray(prior.scale) * Sobol().normal(
                drawn_generator(rng), rule.size(d), d
            )
        shares = np.linspace(0, 1, rule.on_line + 2)[1:-1, None]
        return np.concatenate([mode + (1 - shares) * (point - mode) for point in self.lines])

    def drawn(self, theta: Floats, y: Floats, surprise: Floats, rule: SurveyRule) -> Survey:
        """Choose the lines among the points of the first round.

        ``surprise`` is the log joint minus what the Gaussian around the mode predicts: (n,).
        """
        fine = np.flatnonzero(np.isfinite(y))
        best = fine[np.argsort(-y[fine], kind="stable")[: rule.best]]
        others = fine[np.argsort(-surprise[fine], kind="stable")]
        chosen = [*best, *[i for i in others if i not in best][: rule.surprising]]
        return self._replace(lines=theta[chosen], ends=y[chosen], is_over=not chosen)

    def walked(self, theta: Floats, y: Floats, top: float, rule: SurveyRule) -> Survey:
        """Judge the values along the lines; ``top`` is the log joint at the mode."""
        k, d = self.lines.shape
        along = np.column_stack([self.ends, y.reshape(k, -1), np.full(k, top)])
        places = np.concatenate([self.lines[:, None], theta.reshape(k, -1, d)], axis=1)
        hills = [
            (values[j], where[j])
            for values, where in zip(along, places, strict=True)
            if (j := _hill(values, rule)) >= 0
        ]
        hills.sort(key=lambda hill: -hill[0])
        return self._replace(starts=np.array([where for _, where in hills]).reshape(-1, d), is_over=True)


def _hill(y: Floats, rule: SurveyRule) -> int:
    """The best point on another hill along a line to the mode (n,); -1 if there is none.

    There is another hill if the log joint falls on the way, or if it bends downward and later
    upward: it then lies on the far slope of a hill that the line passes by.
    """
    y = np.where(np.isfinite(y), y, np.min(y[np.isfinite(y)]) - 2 * rule.valley)
    falls = np.flatnonzero(np.maximum.accumulate(y) - y > rule.valley)
    if len(falls):
        return int(np.argmax(y[: falls[0]]))
    bend = y[:-2] - 2 * y[1:-1] + y[2:]
    down = np.flatnonzero(bend < -rule.valley)
    up = np.flatnonzero(bend > rule.valley)
    is_passed = len(down) and len(up) and up[-1] > down[0]
    return int(up[-1]) if is_passed else -1
