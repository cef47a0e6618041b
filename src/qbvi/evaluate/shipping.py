"""Pickling for other processes, with an error that names the part that cannot be pickled."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import pickle
import types
from collections.abc import Iterator
from typing import Any

__all__ = ["has_cloudpickle", "packed"]

_DEEPEST = 6  # levels to look for what cannot be pickled


def packed(thing: Any, name: str = "log_likelihood") -> bytes:
    """Pickle with cloudpickle if it is installed. An error names the part that cannot be pickled.

    Examples
    --------
    >>> import threading
    >>> class Model:
    ...     def __init__(self):
    ...         self.guard = threading.Lock()
    >>> packed(Model(), "model")
    Traceback (most recent call last):
    ...
    TypeError: `model` must be picklable to be sent to other processes, but `model.guard` (lock) ...
    """
    try:
        return _dumps(thing)
    except Exception as error:
        where, part, why = _culprit(thing, name, error)
        msg = (
            f"`{name}` must be picklable to be sent to other processes, but `{where}` ({type(part).__name__}) is not: {why}; "
            f"{_way_out()}, or pass a concurrent.futures.ThreadPoolExecutor as `executor`"
        )
        raise TypeError(msg) from error


def has_cloudpickle() -> bool:
    """Whether functions can be pickled by value."""
    return importlib.util.find_spec("cloudpickle") is not None


def _dumps(thing: Any) -> bytes:
    if has_cloudpickle():
        import cloudpickle

        return bytes(cloudpickle.dumps(thing))
    return pickle.dumps(thing)


def _way_out() -> str:
    if has_cloudpickle():
        return "make or open it inside the function"
    return "define functions at the top level of a module, or: pip install 'qbvi[parallel]', which can send lambdas too"


def _culprit(thing: Any, where: str, error: Exception, depth: int = 0) -> tuple[str, Any, Exception]:
    """Find the innermost part that cannot be pickled by itself."""
    for name, part in _parts(thing, where) if depth < _DEEPEST else ():
        try:
            _dumps(part)
        except Exception as inner:  # noqa: BLE001 - any exception means that pickling failed
            return _culprit(part, name, inner, depth + 1)
    return where, thing, error


def _parts(thing: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, functools.partial):
        yield from ((f"{where} argument {i}", part) for i, part in enumerate((thing.func, *thing.args)))
        yield from ((f"{where} argument {name}", part) for name, part in thing.keywords.items())
    elif isinstance(thing, types.MethodType):
        yield f"{where}.__self__", thing.__self__
    elif isinstance(thing, types.FunctionType):
        used = inspect.getclosurevars(thing)
        yield from used.nonlocals.items()
        yield from used.globals.items()
    elif isinstance(thing, dict):
        yield from ((f"{where}[{name!r}]", part) for name, part in thing.items())
    elif isinstance(thing, list | tuple):
        yield from ((f"{where}[{i}]", part) for i, part in enumerate(thing))
    else:  # a wrapper of ours holds the user's function under this name
        parts = getattr(thing, "__dict__", {}).items()
        yield from ((where if name == "function" else f"{where}.{name}", part) for name, part in parts)
