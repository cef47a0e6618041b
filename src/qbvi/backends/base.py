"""What qbvi needs of an array library: a device and dtype, mapped functions, readable errors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import shown
from qbvi.arrays import Array, array_namespace
from qbvi.points import count, sliced

__all__ = ["Backend", "BackendError", "Inspected", "leaves", "mapped_tree"]

Tree = Any  # arrays in tuples, named tuples, lists and dicts


class BackendError(ValueError):
    """A user's argument does not suit the backend.

    Examples are arrays of another library, another device, and code that cannot be compiled.
    """


class Inspected(NamedTuple):
    """What a backend that compiles can say about a function without compiling it."""

    # A name for what it computes now. It changes when something that the function reads besides its
    # arguments changes. It is empty if nothing is compiled.
    version: str = ""
    most_bytes: float = math.inf  # more memory than the intermediate results of a call need


@dataclass(frozen=True)
class Backend(ABC):
    """An array library with a device and a dtype; two are equal if all three agree.

    A new library needs one file with a subclass, and one line in the table of `qbvi.backends`.

    Parameters
    ----------
    device
        The device, as the library represents it.
    dtype
        ``"float64"`` or ``"float32"``.
    """

    name: ClassVar[str]
    is_host: ClassVar[bool] = False
    is_compiled: ClassVar[bool] = False  # whether many steps can run as one program

    device: Any
    dtype: str

    @classmethod
    @abstractmethod
    def find(cls, device: Any, dtype: str) -> Backend:
        """The backend for a device as a user writes it; None is the library's default.

        Raises ImportError if the library is missing.
        """

    @classmethod
    def no_such_device(cls, device: Any, known: Sequence[Any]) -> BackendError:
        """The error for a device that does not exist."""
        listed = ", ".join(repr(str(one)) for one in known)
        return BackendError(f"`device` must be one that {cls.name} finds here ({listed}), got {shown(device)}")

    @property
    @abstractmethod
    def namespace(self) -> Any:
        """The library's functions, named as in the array API standard."""

    @abstractmethod
    def owns(self, value: Any) -> bool:
        """Whether this is an array of the library."""

    @abstractmethod
    def device_of(self, array: Array) -> Any:
        """Device of an array of the library; None inside compiled code, where it is unknown."""

    @abstractmethod
    def upload(self, array: NDArray[Any]) -> Array:
        """Copy a NumPy array to the device, unchanged."""

    @abstractmethod
    def to_host(self, array: Array) -> NDArray[Any]:
        """Copy an array of the library to a NumPy array, unchanged."""

    @abstractmethod
    def mapped(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Turn a function of one point into one of many points along a first axis."""

    def active(self) -> AbstractContextManager[Any]:
        """Context for all computation on the backend: library settings that qbvi needs."""
        return nullcontext()

    def asarray(self, value: Any) -> Array:
        """Copy numbers to the device: floats in the backend's dtype, others unchanged."""
        if self.owns(value):
            return value
        array = np.asarray(value)
        return self.upload(array.astype(self.dtype) if array.dtype.kind == "f" else array)

    def put(self, tree: Tree) -> Tree:
        """Copy all NumPy arrays of a tree to the device."""
        with self.active():
            return mapped_tree(self.asarray, tree)

    def put_rows(self, data: Tree) -> Tree:
        """Copy the arrays of the user's data to the device, or to the devices that share rows."""
        return self.put(data)

    def shared(self, points: Any, batch: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Distribute the arguments of the function over several devices, if there are several.

        The points may then be followed by further ones, whose values are ignored.
        """
        return points, batch

    def fetch(self, tree: Tree) -> Tree:
        """Copy all arrays of a tree to the host."""
        with self.active():
            return mapped_tree(lambda leaf: self.to_host(leaf) if self.owns(leaf) else leaf, tree)

    def compiled(self, owner: Any, name: str) -> Callable[..., Any]:
        """A pure method of a hashable object, compiled if possible; equal objects share it."""
        method: Callable[..., Any] = getattr(owner, name)
        return method

    @classmethod
    def forget(cls) -> None:
        """Release everything that was compiled."""
        return

    def shaped(self, owner: Any, name: str, *arguments: Any) -> Any:
        """What a pure method of a hashable object returns, or its shapes and dtypes."""
        return getattr(owner, name)(*arguments)

    def in_blocks(self, function: Callable[[Any], Any], points: Any, block: int) -> Any:
        """Call ``function`` on one block of points after another, and join the results."""
        n = count(points)
        parts = [function(sliced(points, start, min(start + block, n))) for start in range(0, n, block)]
        return tuple(array_namespace(*part).concat(part) for part in map(list, zip(*parts, strict=True)))

    def bytes_per_point(self, function: Callable[..., Any], points: Any, batch: tuple[Any, ...]) -> float:
        """Memory per point for the intermediate results of a call.

        It is zero if the need is known only when memory runs out.
        """
        return 0.0

    def repeated(
        self,
        step: Callable[[Any, Array], tuple[Any, Any]],
        goes_on: Callable[[Any, Array], Array],
        carry: Any,
        length: int,
    ) -> tuple[Any, Any]:
        """Apply ``step(carry, i)`` for i = 0 to ``length`` - 1, while ``goes_on(carry, i)``.

        Returns the last carry, and the outputs of the steps along a first axis. Only compiled
        backends implement it.
        """
        raise NotImplementedError

    def inspected(self, function: Callable[..., Any], points: Any, batch: tuple[Any, ...]) -> Inspected:
        """What is known of a function before it is compiled."""
        return Inspected()

    def free_bytes(self) -> float:
        """Memory available for intermediate results."""
        return math.inf

    def is_out_of_memory(self, error: Exception) -> bool:
        """Whether an exception says that the device is out of memory."""
        return False

    def explain(self, error: Exception) -> str | None:
        """Advice on an exception of the library, raised by the function; None if it needs none."""
        return None

    @contextmanager
    def explained(self) -> Any:
        """Turn cryptic exceptions of the library into `BackendError`."""
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
    """Apply a function to all leaves of a tree, except numbers, strings and None.

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
    """Bytes of memory that the machine has available."""
    try:
        with open("/proc/meminfo") as lines:
            return next(1024.0 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return math.inf


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]
