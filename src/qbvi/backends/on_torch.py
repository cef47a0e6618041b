"""PyTorch: one step after another, on CPU or CUDA."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat.torch
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qbvi.arrays import Array
from qbvi.backends.base import Backend, host_memory
from qbvi.points import count, mapped, sliced

__all__ = ["OnTorch"]

_SHARE = 0.4  # fraction of the free memory for the intermediate results of one call


@dataclass(frozen=True)
class OnTorch(Backend):
    """PyTorch on one of its devices, without gradients."""

    name: ClassVar[str] = "torch"

    @classmethod
    def find(cls, device: Any, dtype: str) -> OnTorch:
        """Any available ``torch.device``, or its name. By default that of new tensors."""
        try:
            made = torch.empty(0, device=device).device
        except (RuntimeError, AssertionError, NotImplementedError, TypeError):
            raise cls.no_such_device(device, _names()) from None
        if made.type == "meta":
            raise cls.no_such_device(device, _names())
        return cls(made, dtype)

    @property
    def namespace(self) -> Any:
        """torch, with names as in the array API standard."""
        return array_api_compat.torch

    def active(self) -> AbstractContextManager[Any]:
        """Disable gradients."""
        without: AbstractContextManager[Any] = torch.no_grad()
        return without

    def owns(self, value: Any) -> bool:
        """Whether it is a tensor."""
        return isinstance(value, torch.Tensor)

    def device_of(self, array: Array) -> Any:
        """Its device."""
        return array.device

    def upload(self, array: NDArray[Any]) -> Array:
        """Copy it to the device."""
        return torch.tensor(np.asarray(array), device=self.device)

    def to_host(self, array: Array) -> NDArray[Any]:
        """Copy it from the device."""
        host: NDArray[Any] = array.detach().cpu().numpy()
        return host

    def mapped(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """``torch.vmap``."""
        mapped: Callable[[Any], Any] = torch.vmap(function)
        return mapped

    def bytes_per_point(self, function: Callable[..., Any], points: Any, batch: tuple[Any, ...]) -> float:
        """Bytes that operations allocate for two points, less those for one; only on a CPU.

        A CPU cannot recover from running out of memory.
        """
        if self.device.type != "cpu" or count(points) < 2:
            return 0.0
        made = []
        for n in (1, 2):
            own = mapped(torch.clone, sliced(points, 0, n))  # the function may overwrite what it is given
            with _AllocatedBytes() as one:
                function(own, batch)
            made.append(one.bytes)
        return float(max(made[1] - made[0], 0))

    def free_bytes(self) -> float:
        """A fraction of the machine's memory; infinite for a GPU, whose limit shows by trying."""
        return _SHARE * host_memory() if self.device.type == "cpu" else math.inf

    def is_out_of_memory(self, error: Exception) -> bool:
        """Whether a GPU is out of memory."""
        return isinstance(error, torch.cuda.OutOfMemoryError)

    def explain(self, error: Exception) -> str | None:
        """Explain tensors on several devices, NumPy arrays, and branches on values."""
        text = str(error)
        if "same device" in text or "expected device" in text:
            return (
                f"`log_likelihood` and `data` must have all their tensors on {self.device}, where the fit runs: move them with .to({str(self.device)!r}), "
                "or pass `device`"
            )
        if "data-dependent control flow" in text or "vmap: It looks like you're calling .item()" in text:
            return (
                "`log_likelihood` must not branch on values when it is mapped over the points by torch.vmap: take torch.where in place of `if`, or pass "
                "vectorized=True for a function of stacked points"
            )
        by_numpy = ("numpy", "unexpected keyword argument 'axis'", "cannot access data pointer")
        if isinstance(error, TypeError | RuntimeError) and any(sign in text.lower() for sign in by_numpy):
            return (
                "`log_likelihood` must compute with torch when backend='torch', but mixes in arrays of NumPy: make them tensors with torch.as_tensor, or leave "
                "`backend` out"
            )
        if "same dtype" in text or "expected scalar type" in text:
            return f"`log_likelihood` must compute in {self.dtype}, the dtype of its argument: convert its own tensors with .to(torch.{self.dtype}), or pass `dtype`"
        return None


class _AllocatedBytes(TorchDispatchMode):  # type: ignore[misc]
    """Add up the bytes of all results of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        self.bytes += sum(x.numel() * x.element_size() for x in tree_leaves(returned) if isinstance(x, torch.Tensor))
        return returned


def _names() -> list[str]:
    return ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
