"""The interface of a support, and of one that treats each entry separately."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qbvi.arrays import Array
from qbvi.supports.maps import Shape

__all__ = ["Elementwise", "Shape", "Support", "UserDefinedError", "from_json", "to_json"]


class UserDefinedError(ValueError):
    """A saved specification needs a Python function, and files do not hold functions."""


class Support(ABC):
    """A set of constrained values, as the image of R^k under a smooth one-to-one map."""

    is_discrete: ClassVar[bool] = False
    holds_code: ClassVar[bool] = False  # whether it holds functions of the user's, which `to_spec` cannot describe

    @abstractmethod
    def unconstrained_size(self, shape: Shape) -> int:
        """Number k of unconstrained numbers that one constrained value of ``shape`` needs."""

    @abstractmethod
    def constrain(self, u: Array, shape: Shape) -> Array:
        """Map to the support: (n, k) -> ``(n, *shape)``."""

    @abstractmethod
    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """Map back: ``(n, *shape)`` -> (n, k). Values on the boundary give large finite numbers."""

    @abstractmethod
    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """Log of the absolute Jacobian determinant of `constrain`: (n, k) -> (n,)."""

    @abstractmethod
    def contains(self, x: ArrayLike, *, strict: bool = False) -> bool:
        """Whether every host value lies in the closed support; with ``strict``, in its interior."""

    @property
    def entry_names(self) -> tuple[str, ...]:
        """Names of the entries of a vector, if they have names of their own."""
        return ()

    def constrained_shape(self, shape: Shape) -> Shape:
        """Shape of the constrained value that belongs to an unconstrained array of ``shape``."""
        return shape

    def to_spec(self) -> dict[str, Any]:
        """Describe this support as plain data, for `support_from_spec`."""
        return {"kind": type(self).__name__}


class Elementwise(Support):
    """A support that treats each entry separately, between ``low`` and ``high``."""

    @abstractmethod
    def bounds(self, shape: Shape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of every entry, infinite where there is none: two arrays (k,)."""

    def unconstrained_size(self, shape: Shape) -> int:
        """One per entry."""
        return math.prod(shape)

    def contains(self, x: ArrayLike, *, strict: bool = False) -> bool:
        """Whether every host value is finite and between its ends; ``strict`` excludes the ends."""
        x = np.asarray(x, dtype=np.float64)
        low, high = (np.reshape(end, np.shape(x)) for end in self.bounds(x.shape))
        inside = (x > low) & (x < high) if strict else (x >= low) & (x <= high)
        return bool(np.all(inside & np.isfinite(x)))


def to_json(value: Any) -> Any:
    """Numbers in nested tuples as JSON holds them: lists, and infinities as strings."""
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    return value if math.isfinite(value) else str(value)


def from_json(value: Any) -> Any:
    """Undo `to_json`, up to lists."""
    return [from_json(item) for item in value] if isinstance(value, list) else float(value)
