"""Whole numbers, which no map from R reaches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qbvi.arguments import instance_of
from qbvi.arrays import Array
from qbvi.supports.base import Elementwise, Shape, to_json

__all__ = ["WholeNumbers"]


@dataclass(frozen=True)
class WholeNumbers(Elementwise):
    """Whole numbers from ``low`` to ``high``, both included. No map from R reaches them.

    A parameter on this support needs a family of whole numbers.

    Examples
    --------
    >>> WholeNumbers(0, 1).contains([0, 1, 1])
    True
    >>> WholeNumbers().contains(0.5)
    False
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

    def bounds(self, shape: Shape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of every entry: two arrays (k,)."""
        return np.full(math.prod(shape), self.low), np.full(math.prod(shape), self.high)

    def constrain(self, u: Array, shape: Shape) -> NoReturn:
        """Raise an error: there is no such map."""
        self._refuse()

    def unconstrain(self, x: Array, shape: Shape) -> NoReturn:
        """Raise an error: there is no such map."""
        self._refuse()

    def log_jacobian(self, u: Array, shape: Shape) -> NoReturn:
        """Raise an error: there is no such map."""
        self._refuse()

    def contains(self, x: ArrayLike, *, strict: bool = False) -> bool:
        """Whether every value is a whole number from ``low`` to ``high``, both included."""
        x = np.asarray(x, dtype=np.float64)
        return super().contains(x) and bool(np.all(x == np.round(x)))

    def to_spec(self) -> dict[str, Any]:
        """Describe this support as plain data."""
        return {"kind": "WholeNumbers", "low": to_json(self.low), "high": to_json(self.high)}

    def _refuse(self) -> NoReturn:
        msg = f"{self!r} is discrete: give it a family of its own, e.g. family={{...: 'bernoulli'}}, not a Gaussian one"
        raise ValueError(msg)
