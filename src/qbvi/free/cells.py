r"""Whole numbers on the real line: coordinates whose value only matters by the cell they are in.

The coordinate u of a whole number x has density :math:`p(x)\,|dv/du|` (see `qbvi.WholeNumbers`).
Within a cell only the known factor varies. So the surrogate sees the middle of the cell, and a
density there is extended to the whole cell by that factor. Its integral over u is then a sum over
the whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.families import Gaussian
from qbvi.model import Model
from qbvi.supports import WholeNumbers

__all__ = ["NONE", "Cells"]

Floats = NDArray[np.float64]

_START = 0.1  # standard deviation of a search when it starts, relative to the prior


@dataclass(frozen=True)
class Cells:
    """Which coordinates stand for whole numbers.

    Parameters
    ----------
    columns
        Their places among the d coordinates.
    supports
        The whole numbers of each.

    Examples
    --------
    >>> import numpy as np
    >>> cells = Cells((1,), (WholeNumbers(0, 9),))
    >>> cells.middle(np.array([[0.3, 0.1], [0.3, 0.2]]))
    array([[0.3       , 0.2006707],
           [0.3       , 0.2006707]])
    """

    columns: tuple[int, ...] = ()
    supports: tuple[WholeNumbers, ...] = ()

    @classmethod
    def of(cls, model: Model) -> Self:
        """The whole numbers of a model that do not have a family of their own."""
        found: list[tuple[int, WholeNumbers]] = []
        for p in model.parameters:
            if isinstance(p.distribution.support, WholeNumbers) and not p.is_native:
                found += [(column, p.distribution.support) for column in range(p.columns.start, p.columns.stop)]
        return cls(tuple(column for column, _ in found), tuple(support for _, support in found))

    def __bool__(self) -> bool:
        return bool(self.columns)

    def __iter__(self) -> Iterator[tuple[int, WholeNumbers]]:
        return zip(self.columns, self.supports, strict=True)

    def middle(self, u: Floats) -> Floats:
        """The points (n, d) with these coordinates moved to the middle of their cells."""
        if not self:
            return u
        moved = np.array(u, dtype=np.float64)
        for column, support in self:
            moved[:, column] = support.unconstrain(support.constrain(moved[:, [column]], ()), ())[:, 0]
        return moved

    def start_scale(self, loc: Floats, narrow: Floats, prior: Floats) -> Floats:
        """Standard deviations to start a search with at a point (d,), each (d,).

        ``narrow`` are those of other coordinates, which measure slopes by small differences. Whole
        numbers have no small differences: a tenth of the prior's, and one cell at least.
        """
        scale = np.array(narrow, dtype=np.float64)
        for column, support in self:
            x = support.constrain(loc[None, [column]], ())
            ends = np.clip(np.array([x - 1, x + 1]), support.low, support.high)
            cell = np.ptp(support.unconstrain(ends.reshape(-1), ())) / (ends[1] - ends[0])
            scale[column] = max(_START * prior[column], float(cell[0]))
        return scale

    def slope(self, u: Floats) -> Floats:
        """Log of the known factor ``|dv/du|`` at points (n, d): (n,)."""
        total = np.zeros(len(u))
        for column, support in self:
            total += support.log_jacobian(u[:, [column]], ())
        return total

    def log_prob(self, family: Gaussian, q: Floats, u: Floats) -> Floats:
        """Log density that a Gaussian gives to the cells of points u (n, d), at their middle: (n,).

        This is the probability of the cells, given the other coordinates, times the density of
        those. In each cell it is spread as the prior is.
        """
        mean, cov, w = np.asarray(family.mean(q)), np.asarray(family.cov(q)), np.array(self.columns)
        c = np.setdiff1d(np.arange(family.dim), w)
        log_q, centre, spread = np.zeros(len(u)), np.tile(mean[w], (len(u), 1)), cov[np.ix_(w, w)]
        if len(c):
            rest = Gaussian(len(c))
            log_q = np.asarray(rest.log_prob(rest.from_moments(mean[c], cov[np.ix_(c, c)]), u[:, c]))
            slope = np.linalg.solve(cov[np.ix_(c, c)], cov[np.ix_(c, w)])
            centre, spread = centre + (u[:, c] - mean[c]) @ slope, spread - cov[np.ix_(w, c)] @ slope
        x = [s.constrain(u[:, [i]], ()) for i, s in self]
        ends = [s.cell(one) for s, one in zip(self.supports, x, strict=True)]
        low, high = (np.stack(side, axis=1) for side in zip(*ends, strict=True))
        return log_q + _log_box(low - centre, high - centre, spread) + self.slope(u)


NONE = Cells()  # no coordinate stands for a whole number


def _log_box(low: Floats, high: Floats, cov: Floats) -> Floats:
    """Log probability of boxes (n, m) under a Gaussian around zero: (n,)."""
    if len(cov) > 1:
        boxes = zip(low, high, strict=True)
        normal = scipy.stats.multivariate_normal(cov=cov, seed=0)
        with np.errstate(divide="ignore"):
            return np.log([max(normal.cdf(to, lower_limit=since), 0.0) for since, to in boxes])
    low, high = low[:, 0] / np.sqrt(cov[0, 0]), high[:, 0] / np.sqrt(cov[0, 0])
    is_above = low > 0  # the other tail is exact there
    low, high = np.where(is_above, -high, low), np.where(is_above, -low, high)
    log_low, log_high = scipy.special.log_ndtr(low), scipy.special.log_ndtr(high)
    with np.errstate(divide="ignore"):
        return np.asarray(log_high + np.log1p(-np.exp(log_low - log_high)))
