"""A survey of the prior, for other modes than the one that was found.

A few points are spread over the prior. Straight lines lead from some of them to the mode: from the
best ones, and from those that the Gaussian around the mode predicts worst. A log-concave function
is concave along every line. Where it is not, the point may belong to another hill, and the search
for a Gaussian starts again there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.free.rules import SurveyRule
from qbvi.random import Sobol
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
            return np.asarray(prior.loc) + np.asarray(prior.scale) * Sobol().normal(rng, rule.size(d), d)
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

    def walked(self, y: Floats, top: float, rule: SurveyRule) -> Survey:
        """Judge the values along the lines; ``top`` is the log joint at the mode."""
        k = len(self.lines)
        along = np.column_stack([self.ends, y.reshape(k, -1), np.full(k, top)])
        with np.errstate(invalid="ignore"):
            bend = along[:, :-2] - 2 * along[:, 1:-1] + along[:, 2:]
        upward = np.max(np.where(np.isnan(bend), np.inf, bend), axis=1)
        order = np.argsort(-self.ends, kind="stable")
        starts = self.lines[[i for i in order if upward[i] > rule.bend]]
        return self._replace(starts=starts, is_over=True)
