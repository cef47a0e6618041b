"""CuPy: NumPy's interface on CUDA, one step after another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat.cupy
import cupy
import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.backends.base import Backend, BackendError

__all__ = ["OnCupy"]


@dataclass(frozen=True)
class OnCupy(Backend):
    """CuPy on one GPU; ``device`` is its number."""

    name: ClassVar[str] = "cupy"

    @classmethod
    def find(cls, device: Any, dtype: str) -> OnCupy:
        """A GPU by its number, or as ``"cuda"`` or ``"cuda:1"``. By default the current one."""
        try:
            there = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            msg = f"`backend` 'cupy' needs a working GPU, got none ({error}); use backend='numpy'"
            raise BackendError(msg) from None
        kind, _, number = str(cupy.cuda.Device().id if device is None else device).rpartition(":")
        number = "0" if (kind, number) == ("", "cuda") else number
        if kind not in ("", "cuda") or not number.isdigit() or int(number) >= there:
            raise cls.no_such_device(device, [f"cuda:{i}" for i in range(there)])
        return cls(int(number), dtype)

    @property
    def namespace(self) -> Any:
        """CuPy, with names as in the array API standard."""
        return array_api_compat.cupy

    def active(self) -> AbstractContextManager[Any]:
        """Make the device the current one."""
        current: AbstractContextManager[Any] = cupy.cuda.Device(self.device)
        return current

    def owns(self, value: Any) -> bool:
        """Whether it is a CuPy array."""
        return isinstance(value, cupy.ndarray)

    def device_of(self, array: Array) -> Any:
        """The number of its GPU."""
        return array.device.id

    def upload(self, array: NDArray[Any]) -> Array:
        """Copy it to the GPU."""
        return cupy.asarray(array)

    def to_host(self, array: Array) -> NDArray[Any]:
        """Copy it from the GPU."""
        return np.asarray(cupy.asnumpy(array))

    def mapped(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Raise an error: CuPy cannot map a function."""
        msg = "backend='cupy' needs a `log_likelihood` of many points along a first axis: CuPy cannot map a function of one point; rewrite it and pass vectorized=True"
        raise BackendError(msg)

    def is_out_of_memory(self, error: Exception) -> bool:
        """Whether the GPU is out of memory."""
        return isinstance(error, cupy.cuda.memory.OutOfMemoryError)

    def explain(self, error: Exception) -> str | None:
        """Explain arrays on several devices, and NumPy arrays."""
        text = str(error)
        if "Array device must be same" in text:
            return f"`log_likelihood` and `data` must have all their arrays on GPU {self.device}, where the fit runs: copy them there, or pass `device`"
        if isinstance(error, TypeError) and "numpy.ndarray" in text:
            return "`log_likelihood` must compute with CuPy when backend='cupy', but mixes in arrays of NumPy: make them cupy.asarray(...), or leave `backend` out"
        return None

    def __str__(self) -> str:
        return f"{self.name} on cuda:{self.device}, {self.dtype}"
