"""Whole numbers, each of which is the image of a cell of the real line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qbvi.arguments import instance_of
from qbvi.arrays import Array, array_namespace
from qbvi.supports.base import Elementwise, Shape, to_json
from qbvi.supports.elementwise import Interval

__all__ = ["WholeNumbers"]


@dataclass(frozen=True)
class WholeNumbers(Elementwise):
    """Whole numbers from ``low`` to ``high``, both included.

    The unconstrained number ``u`` is mapped to ``v`` between ``low - 1/2`` and ``high + 1/2``, as
    that of `Interval` is, and ``x`` is the whole number nearest to ``v``. So each whole number has
    a *cell* of values ``u``. A probability of ``x``, spread over its cell with density one in
    ``v``, is a density of ``u`` whose integral over the cell is that probability.

    Examples
    --------
    >>> WholeNumbers(0, 1).contains([0, 1, 1])
    True
    >>> WholeNumbers().contains(0.5)
    False
    >>> WholeNumbers(1, 6).constrain(np.array([[-9.0, -0.1, 0.1]]), (3,))
    array([[1., 3., 4.]])
    """

    low: float = 0.0
    high: float = math.inf

    is_discrete: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, float(instance_of(name, getattr(self, name), (int, float), "a number")))
        whole = self.low.is_integer() and (self.high.is_integer() or self.high == math.inf)
        if not whole or self.low > self.high:
            msg = (
                f"`low` and `high` must be whole numbers, `low` not above `high`, got low={self.low}, high={self.high}"
            )
            raise ValueError(msg)

    @property
    def n_values(self) -> float:
        """How many whole numbers there are; may be infinite."""
        return self.high - self.low + 1

    def bounds(self, shape: Shape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of every entry: two arrays (k,)."""
        return np.full(math.prod(shape), self.low), np.full(math.prod(shape), self.high)

    def constrain(self, u: Array, shape: Shape) -> Array:
        """The whole number whose cell ``u`` is in."""
        xp = array_namespace(u)
        high = None if math.isinf(self.high) else self.high
        return xp.clip(xp.floor(self._around.constrain(u, shape) + 0.5), self.low, high)

    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """The middle of the cell, where ``v = x``."""
        return self._around.unconstrain(x, shape)

    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """Log of the derivative of ``v``: the log density of ``u`` in the cell of ``x``."""
        return self._around.log_jacobian(u, shape)

    def cell(self, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Ends of the cells of whole numbers x (n,), infinite at the ends of the support."""
        below, above = (self._around.unconstrain(x + half, ())[:, 0] for half in (-0.5, 0.5))
        return np.where(x > self.low, below, -np.inf), np.where(x < self.high, above, np.inf)

    def contains(self, x: ArrayLike, *, strict: bool = False) -> bool:
        """Whether every value is a whole number from ``low`` to ``high``, both included."""
        x = np.asarray(x, dtype=np.float64)
        return super().contains(x) and bool(np.all(x == np.round(x)))

    def to_spec(self) -> dict[str, Any]:
        """Describe this support as plain data."""
        return {"kind": "WholeNumbers", "low": to_json(self.low), "high": to_json(self.high)}

    @cached_property
    def _around(self) -> Interval:
        """Where ``v`` is."""
        return Interval(self.low - 0.5, self.high + 0.5)
