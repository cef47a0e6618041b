r"""Whole numbers on the real line: coordinates whose value only matters by the cell they are in.

The coordinate u of a whole number x has density :math:`p(x)\,|dv/du|` (see `qbvi.WholeNumbers`).
Within a cell only the known factor varies. So the surrogate sees the middle of the cell, and a
density there is extended to the whole cell by that factor. Its integral over u is then a sum over
the whole numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.model import Model
from qbvi.supports import WholeNumbers

__all__ = ["Cells"]

Floats = NDArray[np.float64]


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

    def middle(self, u: Floats) -> Floats:
        """The points (n, d) with these coordinates moved to the middle of their cells."""
        if not self:
            return u
        moved = np.array(u, dtype=np.float64)
        for column, support in zip(self.columns, self.supports, strict=True):
            moved[:, column] = support.unconstrain(support.constrain(moved[:, [column]], ()), ())[:, 0]
        return moved

    def slope(self, u: Floats) -> Floats:
        """Log of the known factor at points (n, d): (n,)."""
        total = np.zeros(len(u))
        for column, support in zip(self.columns, self.supports, strict=True):
            total += support.log_jacobian(u[:, [column]], ())
        return total
