"""NumPy: the default, and the only library that qbvi requires."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array, array_namespace
from qbvi.backends.base import Backend, BackendError, Tree

__all__ = ["HOST", "Host"]


@dataclass(frozen=True)
class Host(Backend):
    """NumPy in this process.

    Examples
    --------
    >>> str(Host.find(None, "float64"))
    'numpy on cpu, float64'
    """

    name: ClassVar[str] = "numpy"
    is_host: ClassVar[bool] = True

    @classmethod
    def find(cls, device: Any, dtype: str) -> Host:
        """NumPy in float64 on the CPU, the only choice."""
        if device is not None and not (isinstance(device, str) and device == "cpu"):
            raise cls.no_such_device(device, ["cpu"])
        if dtype != "float64":
            msg = f"`dtype` must be 'float64' with backend='numpy', got {dtype!r}; for single precision use backend='jax' or 'torch'"
            raise BackendError(msg)
        return cls("cpu", dtype)

    @property
    def namespace(self) -> Any:
        """NumPy."""
        return array_namespace(np.empty(0))

    def owns(self, value: Any) -> bool:
        """Whether it is a NumPy array or scalar."""
        return isinstance(value, np.ndarray | np.generic)

    def device_of(self, array: Array) -> str:
        """The CPU."""
        return "cpu"

    def upload(self, array: NDArray[Any]) -> Array:
        """Return the array itself."""
        return array

    def to_host(self, array: Array) -> NDArray[Any]:
        """Return the array itself."""
        return np.asarray(array)

    def put(self, tree: Tree) -> Tree:
        """Return the tree itself."""
        return tree

    def fetch(self, tree: Tree) -> Tree:
        """Return the tree itself."""
        return tree

    def mapped(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Call the function for one point after another."""
        return lambda points: np.stack([function(point) for point in points])


HOST = Host("cpu", "float64")
