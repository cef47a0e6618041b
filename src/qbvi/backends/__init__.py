"""Array libraries that a fit can run on: one file each, and one line in the table below."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from qbvi.arguments import shown
from qbvi.backends.base import Backend, BackendError
from qbvi.backends.host import HOST
from qbvi.naming import pick

__all__ = ["BACKENDS", "HOST", "Backend", "BackendError", "find_backend", "forget_compiled"]

# The class of each backend, and what to install if its library is missing.
BACKENDS: dict[str, tuple[str, str, str]] = {
    "numpy": ("qbvi.backends.host", "Host", "numpy"),
    "jax": ("qbvi.backends.on_jax", "OnJax", "qbvi[jax]"),
    "torch": ("qbvi.backends.on_torch", "OnTorch", "qbvi[torch]"),
    "cupy": ("qbvi.backends.on_cupy", "OnCupy", "qbvi[cupy]"),
}

_DTYPES = dict.fromkeys(("float64", "float32"))


def find_backend(backend: str = "numpy", device: Any = None, dtype: Any = "float64") -> Backend:
    """Find the backend for ``backend``, ``device`` and ``dtype``, or raise an error.

    Examples
    --------
    >>> str(find_backend("numpy"))
    'numpy on cpu, float64'
    >>> find_backend("pytorch")
    Traceback (most recent call last):
    ...
    ValueError: `backend` must be one of 'numpy', 'jax', 'torch', 'cupy' (or such an object),
    got 'pytorch'; did you mean 'torch'?
    """
    if isinstance(backend, Backend):
        return backend
    if not isinstance(backend, str):
        msg = f"`backend` must be one of {', '.join(map(repr, BACKENDS))}, got {type(backend).__name__}"
        raise TypeError(msg)
    module, name, extra = pick("backend", backend, BACKENDS)
    named = _name_of(dtype)
    try:
        kind: type[Backend] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        msg = f"`backend` {backend!r} needs a library that is not installed ({error}): pip install '{extra}'"
        raise ImportError(msg) from error
    return kind.find(device, named)


def forget_compiled() -> None:
    """Release everything that any backend has compiled."""
    for module, name, _ in BACKENDS.values():
        if module in sys.modules:
            getattr(sys.modules[module], name).forget()


def _name_of(dtype: Any) -> str:
    """Name of a dtype of any library: ``torch.float64`` and ``"float64"`` give ``"float64"``."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", getattr(dtype, "__name__", None)) or shown(dtype)
    name = str(name).rpartition(".")[2]
    if name not in _DTYPES:
        msg = f"`dtype` must be 'float64' or 'float32', got {name!r}: parameters are real numbers"
        raise ValueError(msg)
    return str(name)
