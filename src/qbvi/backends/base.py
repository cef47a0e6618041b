"""What qbvi asks of an array library: to hold arrays of one dtype on one device, to map a function, and to say what went wrong."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array, array_namespace
from qbvi.points import count, sliced

__all__ = ["Backend", "BackendError", "leaves", "mapped_tree"]

Tree = Any  # arrays in tuples, named tuples, lists and dicts


class BackendError(ValueError):
    """What a user gave does not go together with the backend: another library's arrays, another device, code that cannot be compiled."""


@dataclass(frozen=True)
class Backend(ABC):
    """An array library with a device and a dtype; equal where all three are.

    A new library is one file with a class derived from this one, and a line in the table of `qbvi.backends`.

    Parameters
    ----------
    device
        As the library has it.
    dtype
        ``"float64"`` or ``"float32"``.
    """

    name: ClassVar[str]
    is_host: ClassVar[bool] = False
    is_compiled: ClassVar[bool] = False  # whether many steps can run as one program, without the host

    device: Any
    dtype: str

    @classmethod
    @abstractmethod
    def find(cls, device: Any, dtype: str) -> Backend:
        """The backend on what a user writes as device, None for the library's default; ImportError where the library is missing."""

    @classmethod
    def no_such_device(cls, device: Any, known: Sequence[Any]) -> BackendError:
        """The error for a device that is not there."""
        listed = ", ".join(repr(str(one)) for one in known)
        return BackendError(f"`device` must be one that {cls.name} finds here ({listed}), got {str(device)!r}")

    @property
    @abstractmethod
    def namespace(self) -> Any:
        """The library's functions by the names of the array API standard."""

    @abstractmethod
    def owns(self, value: Any) -> bool:
        """Whether this is an array of the library."""

    @abstractmethod
    def device_of(self, array: Array) -> Any:
        """Where an array of the library is; None where that cannot be told, inside compiled code."""

    @abstractmethod
    def upload(self, array: NDArray[Any]) -> Array:
        """Copy a NumPy array to the device as it is."""

    @abstractmethod
    def to_host(self, array: Array) -> NDArray[Any]:
        """Copy an array of the library to a NumPy array as it is."""

    @abstractmethod
    def mapped(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A function of one point as a function of points stacked along a first axis, all at once."""

    def active(self) -> AbstractContextManager[Any]:
        """Around everything that computes on the backend: settings of the library that our arithmetic needs."""
        return nullcontext()

    def asarray(self, value: Any) -> Array:
        """Bring numbers to the device: floating-point ones in the backend's dtype, others as they are."""
        if self.owns(value):
            return value
        array = np.asarray(value)
        return self.upload(array.astype(self.dtype) if array.dtype.kind == "f" else array)

    def put(self, tree: Tree) -> Tree:
        """Bring all NumPy arrays of a tree to the device."""
        with self.active():
            return mapped_tree(self.asarray, tree)

    def put_rows(self, data: Tree) -> Tree:
        """Bring the arrays of the user's data to the device, or to the devices that share their rows."""
        return self.put(data)

    def shared(self, points: Any, batch: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """What the function is given, spread over several devices where there are; there may then be more points, to be ignored."""
        return points, batch

    def fetch(self, tree: Tree) -> Tree:
        """Copy all arrays of a tree to the host."""
        with self.active():
            return mapped_tree(lambda leaf: self.to_host(leaf) if self.owns(leaf) else leaf, tree)

    def compiled(self, owner: Any, name: str) -> Callable[..., Any]:
        """A method of a hashable object that is pure, compiled where the library can; equal objects share what was compiled."""
        method: Callable[..., Any] = getattr(owner, name)
        return method

    @classmethod
    def forget(cls) -> None:
        """Let go of all that was compiled."""
        return

    def shaped(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What ``function`` would return, at least by its shapes and dtypes."""
        return function(*arguments)

    def in_blocks(self, function: Callable[[Any], Any], points: Any, block: int) -> Any:
        """Call ``function`` for ``block`` stacked points after the other, and join the arrays that it returns."""
        n = count(points)
        parts = [function(sliced(points, start, min(start + block, n))) for start in range(0, n, block)]
        return tuple(array_namespace(*part).concat(part) for part in map(list, zip(*parts, strict=True)))

    def bytes_per_point(self, function: Callable[..., Any], points: Any, batch: tuple[Any, ...]) -> float:
        """Memory that a call needs for its intermediate results, for each of its points; zero where that shows only when it runs out."""
        return 0.0

    def repeated(
        self,
        step: Callable[[Any, Array], tuple[Any, Any]],
        goes_on: Callable[[Any, Array], Array],
        carry: Any,
        length: int,
    ) -> tuple[Any, Any]:
        """Apply ``step(carry, i)`` for i from 0 to ``length`` - 1 as long as ``goes_on(carry, i)``: the last carry, and what each step made, stacked.

        Asked only of backends that are compiled.
        """
        raise NotImplementedError

    def version(self, function: Callable[..., Any], points: Any, batch: tuple[Any, ...]) -> str:
        """A name for what a function computes now; others where what it read besides its arguments has changed. Empty where nothing is compiled."""
        return ""

    def free_bytes(self) -> float:
        """Memory that there is for intermediate results."""
        return math.inf

    def is_out_of_memory(self, error: Exception) -> bool:
        """Whether an exception says that the device has no memory left."""
        return False

    def explain(self, error: Exception) -> str | None:
        """What a user can do about an exception of the library's own that came out of the function; None where it speaks for itself."""
        return None

    @contextmanager
    def explained(self) -> Any:
        """Turn exceptions of the library that users cannot read into `BackendError`."""
        try:
            yield
        except BackendError:
            raise
        except Exception as error:
            remedy = self.explain(error)
            if remedy is None:
                raise
            raise BackendError(f"{remedy} ({type(error).__name__}: {_first_line(error)})") from error  # noqa: EM102

    def __str__(self) -> str:
        return f"{self.name} on {self.device}, {self.dtype}"


def mapped_tree(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Apply a function to all leaves of a tree that are no numbers, strings or None.

    Examples
    --------
    >>> mapped_tree(lambda x: x + 1, (np.ones(1), {"a": np.zeros(2)}))
    (array([2.]), {'a': array([1., 1.])})
    """
    if isinstance(tree, dict):
        return {name: mapped_tree(function, leaf) for name, leaf in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped_tree(function, leaf) for leaf in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(mapped_tree(function, leaf) for leaf in tree)
    return tree if isinstance(tree, bool | int | float | str | type(None)) else function(tree)


def leaves(tree: Tree) -> Iterable[Any]:
    """All leaves of a tree."""
    found: list[Any] = []
    mapped_tree(found.append, tree)
    return found


def host_memory() -> float:
    """Bytes that the machine could still give."""
    try:
        with open("/proc/meminfo") as lines:
            return next(1024.0 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return math.inf


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]
