"""States as plain data: the structure in JSON, the numbers in one vector for each dtype.

A class is written by its name and looked up among the classes of modules that are already loaded.
Its fields are set without calling it, so reading a tree runs no code, whoever wrote it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Reader", "Writer"]

_PLAIN = (bool, str, type(None))
_KINDS = "biufc"  # kinds of dtype that arrays may have: numbers and truth values


@dataclass
class Writer:
    """Turns values into JSON and collects their arrays.

    Examples
    --------
    >>> writer = Writer()
    >>> tree = writer.write((np.arange(2.0), float("inf")))
    >>> tree
    {'tuple': [{'array': 'float64', 'at': 0, 'shape': [2]}, {'float': 'inf'}]}
    >>> Reader(writer.arrays()).read(tree)
    (array([0., 1.]), inf)
    """

    _parts: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    _filled: dict[str, int] = field(default_factory=dict)
    # Where an array is written, by its id: one that occurs twice is written once.
    _places: dict[int, tuple[Any, dict[str, Any]]] = field(default_factory=dict)

    def write(self, value: Any) -> Any:
        """Return what `Reader.read` turns back into ``value``, bit for bit."""
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value)
        if isinstance(value, _PLAIN) or type(value) is int:
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, Mapping):
            return {"dict": {_name(key): self.write(item) for key, item in value.items()}}
        if is_dataclass(value) or hasattr(value, "_fields"):
            return {
                "class": _path(type(value)),
                "fields": {name: self.write(getattr(value, name)) for name in _fields(type(value))},
            }
        if isinstance(value, tuple | list):
            return {type(value).__name__: [self.write(item) for item in value]}
        msg = f"a state to be saved must be made of numbers, strings, arrays, tuples, dicts and dataclasses, got {type(value)}"
        raise TypeError(msg)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All numbers by dtype."""
        return {dtype: np.concatenate(parts) for dtype, parts in self._parts.items()}

    def _array(self, value: Any) -> dict[str, Any]:
        if id(value) not in self._places:
            array = np.asarray(value)
            if array.dtype.kind not in _KINDS:
                msg = f"arrays to be saved must hold numbers, got dtype {array.dtype}"
                raise TypeError(msg)
            dtype = array.dtype.newbyteorder("=").name
            start = self._filled.get(dtype, 0)
            self._parts.setdefault(dtype, []).append(array.reshape(-1).astype(dtype))
            self._filled[dtype] = start + array.size
            place = {"array": dtype, "at": start, "shape": list(array.shape)}
            self._places[id(value)] = value, place | ({"scalar": True} if isinstance(value, np.generic) else {})
        return self._places[id(value)][1]


@dataclass(frozen=True)
class Reader:
    """Turns JSON and arrays back into values.

    Parameters
    ----------
    arrays
        The result of `Writer.arrays`.
    packages
        Names of the packages whose classes may be rebuilt.
    """

    arrays: Mapping[str, NDArray[Any]]
    packages: Collection[str] = ("qbvi",)

    def read(self, tree: Any) -> Any:
        """Rebuild one value; raise a ValueError for what `Writer.write` does not produce."""
        if not isinstance(tree, dict | list):
            return tree
        kinds = {
            "array": self._array,
            "float": self._float,
            "dict": self._dict,
            "class": self._instance,
            "tuple": self._tuple,
            "list": self._list,
        }
        kind = next((kind for kind in kinds if kind in tree), None)
        if kind is None or isinstance(tree, list):
            raise ValueError(_damaged(tree))
        try:
            return kinds[kind](tree)
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(_damaged(tree)) from error

    def _float(self, tree: dict[str, Any]) -> float:
        return float(tree["float"])

    def _tuple(self, tree: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(self.read(item) for item in tree["tuple"])

    def _list(self, tree: dict[str, Any]) -> list[Any]:
        return [self.read(item) for item in tree["list"]]

    def _dict(self, tree: dict[str, Any]) -> dict[str, Any]:
        return {name: self.read(item) for name, item in tree["dict"].items()}

    def _array(self, tree: dict[str, Any]) -> Any:
        vector, start, shape = self.arrays[tree["array"]], tree["at"], tuple(tree["shape"])
        stop = start + math.prod(shape)
        if not all(isinstance(n, int) and n >= 0 for n in (start, *shape)) or stop > vector.size:
            raise ValueError(_damaged(tree))
        array = vector[start:stop].reshape(shape).copy()
        return array[()] if tree.get("scalar") else array

    def _instance(self, tree: dict[str, Any]) -> Any:
        kind = _found(str(tree["class"]), self.packages)
        values = {name: self.read(item) for name, item in tree["fields"].items()}
        if tuple(values) != _fields(kind):
            msg = f"{tree['class']} has the fields {', '.join(_fields(kind))}, the file has {', '.join(values)}: it comes from another version"
            raise ValueError(msg)
        if issubclass(kind, tuple):
            return tuple.__new__(kind, values.values())
        instance = object.__new__(kind)
        for name, value in values.items():
            object.__setattr__(instance, name, value)
        return instance


def _fields(kind: type) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind)) if is_dataclass(kind) else tuple(kind._fields)  # type: ignore[attr-defined]


def _path(kind: type) -> str:
    if "." in kind.__qualname__:
        msg = f"a state to be saved must be made of classes that modules hold by name, got {kind.__qualname__}; define it at the top of a module"
        raise TypeError(msg)
    return f"{kind.__module__}:{kind.__qualname__}"


def _found(path: str, packages: Collection[str]) -> type:
    """Look up a class among those that are loaded.

    Nothing is imported, and only data classes are found.
    """
    module, _, name = path.partition(":")
    held = vars(sys.modules[module]) if module.split(".")[0] in packages and module in sys.modules else {}
    kind = held.get(name)
    if not isinstance(kind, type) or not (is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))):
        msg = f"{path!r} is no class of qbvi or of the method's own package that holds data"
        raise ValueError(msg)
    return kind


def _name(key: Any) -> str:
    if not isinstance(key, str):
        msg = f"dicts to be saved must have strings as keys, got {key!r}"
        raise TypeError(msg)
    return key


def _damaged(tree: Any) -> str:
    return f"{str(tree)[:80]!r} describes no value"
