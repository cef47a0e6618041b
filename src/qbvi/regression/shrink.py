"""How narrow a start must be: a search over orders of magnitude, inwards, in each coordinate.

A Poisson regression on an income of 50,000 has a coefficient of about 1e-5. Under a prior with a
standard deviation of one, a start that is a hundredth as wide has predictors of plus and minus 500:
their exponentials overflow, and the log joint is minus infinity at one half of the points. The
other half shows a slope that leads away from the posterior.

Such a start is narrowed, in each coordinate alone, until the log joint is about the same on both
sides of its centre. So a coefficient of an income does not narrow the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.regression.rules import ShrinkRule

__all__ = ["Shrink"]

Floats = NDArray[np.float64]


class Shrink(NamedTuple):
    """A search in progress.

    Examples
    --------
    Exponentials that are a million times as steep in the second coordinate:

    >>> rule = ShrinkRule()
    >>> f = lambda u: np.sum(u * [1, 1e6] - np.exp(np.minimum(u * [1, 1e6], 700)), axis=1)
    >>> shrink = Shrink.begin(np.zeros(2), np.ones(2))
    >>> while not shrink.is_over:
    ...     shrink = shrink.told(f(shrink.ask()), rule)
    >>> np.log10(shrink.lengths).round().tolist()
    [0.0, -6.0]
    """

    origin: Floats  # (d,) mean of the start, or the best point so far if that is better
    y: float  # log joint there
    centre: Floats  # (d,) mean of the start, which is evaluated first
    lengths: Floats  # (d,) of the last steps from the origin ...
    ends: Floats  # (d, 2) ... and the log joints at both ends of those that are small enough
    is_known: NDArray[np.bool_]  # (d,) whether the length of a coordinate is small enough
    n_told: int  # rounds so far
    is_over: bool

    @classmethod
    def begin(cls, centre: Floats, lengths: Floats, best: Floats | None = None, best_y: float = -np.inf) -> Shrink:
        """A search around ``centre`` (d,) with the standard deviations of the start (d,).

        ``best`` is the best point so far, with its log joint.
        """
        origin = centre if best is None else best
        d = len(centre)
        return cls(origin, best_y, centre, lengths, np.full((d, 2), np.nan), np.zeros(d, dtype=bool), 0, is_over=False)

    @property
    def is_found(self) -> bool:
        """Whether a search that is over has found a start."""
        return bool(np.isfinite(self.y))

    def ask(self) -> Floats:
        """The centre, then both ends of each step that may be too long: (n, d)."""
        return self._steps(~self.is_known) if self.n_told else self.centre[None]

    def points(self) -> tuple[Floats, Floats]:
        """Both ends of each step that is small enough (n, d), and the log joints there (n,)."""
        return self._steps(self.is_known), self.ends[self.is_known].ravel()

    def _steps(self, chosen: NDArray[np.bool_]) -> Floats:
        steps = np.diag(self.lengths)[chosen]
        return np.stack([self.origin + steps, self.origin - steps], axis=1).reshape(-1, len(self.origin))

    def told(self, y: Floats, rule: ShrinkRule) -> Shrink:
        """The search with the log joints (n,) of its last points.

        It is over at once if there is no likelihood at the centre, and no better point, or if
        changes by a few nats are rounding there.
        """
        search = self._replace(n_told=self.n_told + 1)
        if not self.n_told:
            search = search._replace(origin=self.centre, y=float(y[0])) if y[0] >= self.y else search
            search = search if abs(search.y) * rule.rounding < rule.change else search._replace(y=-np.inf)
            return search._replace(is_over=not search.is_found)
        rows, ends = np.flatnonzero(~self.is_known), np.reshape(y, (-1, 2))
        change = np.max(np.abs(ends - self.y), axis=1)
        lengths, all_ends, is_known = self.lengths.copy(), self.ends.copy(), self.is_known.copy()
        lengths[rows] *= _factors(change, rule)
        all_ends[rows], is_known[rows] = ends, change <= rule.change
        is_over = bool(is_known.all()) or search.n_told > rule.rounds
        return search._replace(lengths=lengths, ends=all_ends, is_known=is_known, is_over=is_over)


def _factors(change: Floats, rule: ShrinkRule) -> Floats:
    """Factors of the next steps by the changes of the log joint (n,), as if in proportion."""
    with np.errstate(divide="ignore"):
        factors = np.clip(rule.change / change, rule.smallest, rule.largest)
    return np.where(change <= rule.change, 1.0, np.where(np.isfinite(change), factors, rule.blind))
