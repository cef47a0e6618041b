"""A search over orders of magnitude, for a start that is far from the scale of the problem.

A regression in dollars that starts at zero may be a billion standard deviations away from its
posterior. Its log joint there is about minus the square of that. Two things then fail:

- a trust region of a few nats needs too many steps,
- rounding hides the curvature, so that no longer step can be predicted.

Values alone still say which way is up. The search evaluates points at all orders of magnitude along
a few rays from the best point so far: the direction of the last step, and the axes along which that
step is longest. Then it refines the length along the best ray.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.regression.rules import LadderRule

__all__ = ["Ladder"]

Floats = NDArray[np.float64]


class Ladder(NamedTuple):
    """A search in progress: its rays, and the lengths tried on them.

    Examples
    --------
    The optimum is a million units away:

    >>> rule, shift, unit = LadderRule(), np.array([1e-3]), np.ones(1)
    >>> ladder = Ladder.begin(np.zeros(1), -5e11, shift, unit, rule)
    >>> while not ladder.is_over:
    ...     theta = ladder.ask(rule)
    ...     ladder = ladder.tell(-0.5 * (theta[:, 0] - 1e6) ** 2, rule)
    >>> ladder.best()[0].round(3).tolist(), len(ladder.y)
    ([1000000.0], 26)
    """

    origin: Floats  # (d,) the best point before the search
    top: float  # its log joint
    rays: Floats  # (m, d) directions, each one whitened unit long
    longest: Floats  # (m,) largest length on each ray, in these units
    ray: NDArray[np.int64]  # (n,) number of the ray of each point so far
    t: Floats  # (n,) its length
    y: Floats  # (n,) its log joint, minus infinity where the function failed
    n_rounds: int
    is_over: bool

    @classmethod
    def begin(
        cls, origin: Floats, top: float, shift: Floats, sd: Floats, rule: LadderRule, reach: Floats | None = None
    ) -> Ladder:
        """A search from ``origin`` along a ``shift`` and its longest axes.

        Parameters
        ----------
        origin, top
            The best point (d,), and its log joint.
        shift, sd
            Change of the mean in the last step (d,), and the unit of each coordinate (d,).
        rule
            The numbers of the search.
        reach
            Largest distance from the origin for each coordinate (d,); infinite by default.
        """
        z = shift / sd
        axes = np.argsort(-np.abs(z), kind="stable")[: rule.axes]
        along = np.sign(z[axes])[:, None] * np.eye(len(z))[axes]
        whitened = along if len(z) == 1 else np.concatenate([z[None] / np.linalg.norm(z), along])
        rays = whitened * sd
        far = np.full(len(z), np.inf) if reach is None else reach
        with np.errstate(divide="ignore"):
            longest = np.min(np.where(rays == 0, np.inf, far / np.abs(rays)), axis=1)
        none = np.empty(0)
        return cls(origin, top, rays, longest, none.astype(np.int64), none, none, 0, is_over=False)

    def ask(self, rule: LadderRule) -> Floats:
        """The next points (n, d)."""
        ray, t = self._next(rule)
        return np.asarray(self.origin + t[:, None] * self.rays[ray])

    def tell(self, y: Floats, rule: LadderRule) -> Ladder:
        """Add the log joints of a round."""
        ray, t = self._next(rule)
        now = self._replace(
            ray=np.concatenate([self.ray, ray]),
            t=np.concatenate([self.t, t]),
            y=np.concatenate([self.y, y]),
            n_rounds=self.n_rounds + 1,
        )
        return now._replace(is_over=not now.is_better(rule) or now.n_rounds >= rule.rounds)

    def is_better(self, rule: LadderRule) -> bool:
        """Whether the search has found a point that is clearly better than all before."""
        return bool(np.max(self.y, initial=-np.inf) > self.top + rule.better)

    def best(self) -> tuple[Floats, float]:
        """The best point (d,), and its log joint."""
        i = int(np.argmax(self.y))
        return self.origin + self.t[i] * self.rays[self.ray[i]], float(self.y[i])

    def _next(self, rule: LadderRule) -> tuple[NDArray[np.int64], Floats]:
        """Rays and lengths of the next points: all orders of magnitude, then between the best."""
        if self.n_rounds:
            best = int(self.ray[np.argmax(self.y)])
            t = self._refined(best, rule)
            return np.full(len(t), best), t
        rungs = rule.factor ** np.arange(rule.rungs)
        lengths = [rungs[rungs <= longest] for longest in self.longest]
        return np.repeat(np.arange(len(lengths)), [len(t) for t in lengths]), np.concatenate(lengths)

    def _refined(self, ray: int, rule: LadderRule) -> Floats:
        """Lengths between the neighbours of the best one, and the vertex of the parabola there."""
        on = self.ray == ray
        t, y = np.append(self.t[on], 0.0), np.append(self.y[on], self.top)
        order = np.argsort(t, kind="stable")
        t, y = t[order], y[order]
        i = int(np.argmax(y))
        low = t[i - 1] if t[i - 1] > 0 else t[i] / rule.factor
        high = t[i + 1] if i + 1 < len(t) else min(t[i] * rule.factor, self.longest[ray])
        between = np.geomspace(low, max(high, t[i]), rule.between + 2)[1:-1]
        if i + 1 < len(t):
            between = np.append(between, _vertex(t[i - 1 : i + 2], y[i - 1 : i + 2]))
        return np.unique(between)


def _vertex(t: Floats, y: Floats) -> Floats:
    """Where the parabola through three points has its maximum; nothing if that is unknown."""
    with np.errstate(all="ignore"):  # minus infinity where the function failed
        left, right = (y[1] - y[0]) / (t[1] - t[0]), (y[2] - y[1]) / (t[2] - t[1])
        bend = (right - left) / (t[2] - t[0])
    at = 0.5 * (t[0] + t[1] - left / bend) if np.isfinite(bend) and bend < 0 else np.nan
    return np.array([at]) if t[0] < at < t[2] else np.empty(0)
