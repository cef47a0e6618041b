"""Fingerprints of the arguments of a fit.

They show whether function, prior and data are still those of a checkpoint.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from array_api_compat import is_torch_array

from qbvi.arrays import to_numpy
from qbvi.distributions import Distribution
from qbvi.supports import Support

__all__ = ["Fingerprint", "fingerprint"]

_NUMBERS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
_DEEPEST = 50  # levels of nested data
_OWN = str(Path(__file__).parents[1])  # an installed package for our purposes, also in a checkout
_INSTALLED = {_OWN, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))}


@dataclass(frozen=True)
class Fingerprint:
    """Digests, by name, of a value and the variables it reads; names of those without a digest."""

    digests: dict[str, str]
    unknown: tuple[str, ...]


def fingerprint(name: str, value: Any) -> Fingerprint:
    """Take the fingerprint of any argument of a fit.

    - A function: its code, its defaults and the variables that it reads from outside. Functions
      that it calls are followed, except those of installed packages.
    - An array or a pandas object: type, shape and content.
    - Code of an installed package: its name.
    - Any other object: its class and attributes.

    Parameters
    ----------
    name
        Its name in messages.
    value
        The function, prior, data, ...

    Examples
    --------
    >>> def density(x, scale=1.0):
    ...     return -((x / scale) ** 2)
    >>> before = fingerprint("function", density)
    >>> density.__defaults__ = (2.0,)
    >>> after = fingerprint("function", density)
    >>> [name for name in after.digests if after.digests[name] != before.digests[name]]
    ['function, its default scale']
    """
    walk = _Walk(name)
    walk.top(value)
    return Fingerprint(walk.digests, tuple(sorted(walk.unknown)))


@dataclass
class _Walk:
    """One walk through a value and everything that it refers to."""

    name: str
    digests: dict[str, str] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    _seen: set[int] = field(default_factory=set)
    _place: str = ""

    def top(self, value: Any) -> None:
        function = _unwrapped(value)
        if isinstance(function, types.FunctionType) and not _is_library(function):
            self._function(function)
        else:
            self.digests[self.name] = self._digest(value)

    def _function(self, function: types.FunctionType) -> None:
        """Enter the code of a function, and each variable that it reads, under their names."""
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        key = self.name if not self.digests else f"{self.name}, its function {function.__qualname__}"
        self.digests[key] = _hashed(f"{function.__module__}.{function.__qualname__}", _code(function.__code__))
        for kind, name, value in _read_by(function):
            self._variable(f"{self.name}, its {kind} {name}", value)

    def _variable(self, place: str, value: Any) -> None:
        target = _unwrapped(value)
        if isinstance(target, types.FunctionType) and not _is_library(target):
            self._function(target)
        elif place not in self.digests:
            self._place = place.replace(", its ", "'s ")
            self.digests[place] = self._digest(value)

    def _digest(self, value: Any, depth: int = 0) -> str:
        if isinstance(value, _NUMBERS):
            return _hashed(type(value).__name__, value.hex() if isinstance(value, float) else repr(value))
        if isinstance(value, np.ndarray | np.generic):
            return self._array(np.asarray(value), depth)
        if is_torch_array(value):
            return _hashed(str(value.dtype), self._array(to_numpy(value), depth))
        if depth > _DEEPEST or id(value) in self._seen:
            return "again"
        self._seen.add(id(value))
        try:
            return _hashed(*self._parts(value, depth + 1))
        finally:
            self._seen.discard(id(value))

    def _parts(self, value: Any, depth: int) -> Iterator[str]:
        kind = type(value)
        yield f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(value, Mapping):
            yield from (self._digest(part, depth) for item in value.items() for part in item)
        elif isinstance(value, tuple | list):
            yield from (self._digest(item, depth) for item in value)
        elif isinstance(value, set | frozenset):
            yield from sorted(self._digest(item, depth) for item in value)
        elif isinstance(value, types.FunctionType):
            yield from self._called(value, depth)
        elif isinstance(value, types.ModuleType | types.BuiltinFunctionType | type | np.ufunc):
            yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
        elif isinstance(value, types.MethodType | functools.partial):
            yield from (self._digest(part, depth) for part in _components(value))
        elif kind.__module__.split(".")[0] == "pandas":
            yield from self._frame(value, depth)
        else:
            yield from self._object(value, depth)

    def _called(self, function: types.FunctionType, depth: int) -> Iterator[str]:
        yield f"{function.__module__}.{function.__qualname__}"
        if not _is_library(function):
            yield _code(function.__code__)
            for kind, name, value in _read_by(function):
                yield f"{kind} {name}"
                yield self._digest(value, depth)

    def _array(self, array: np.ndarray[Any, Any], depth: int) -> str:
        if array.dtype.hasobject:
            return _hashed(str(array.shape), self._digest(array.tolist(), depth + 1))
        return _hashed(array.dtype.str, str(array.shape), np.ascontiguousarray(array).data)

    def _frame(self, value: Any, depth: int) -> Iterator[str]:
        """Labels and columns of a pandas object."""
        if hasattr(value, "columns"):
            yield self._digest(value.index.to_numpy(), depth)
            for name, column in value.items():
                yield self._digest((name, str(column.dtype), column.to_numpy()), depth)
        elif hasattr(value, "to_numpy"):
            yield self._digest((str(value.dtype), value.to_numpy()), depth)
        else:
            yield repr(value)

    def _object(self, value: Any, depth: int) -> Iterator[str]:
        """Class and attributes of an object, and the code of its ``__call__`` if it has one."""
        if isinstance(value, Distribution | Support) and not value.holds_code:
            yield self._digest(value.to_spec(), depth)
            return
        if type(value).__module__.startswith("scipy.stats"):
            yield self._digest(_of_scipy(value), depth)
            return
        held = _attributes(value)
        if held is None:
            self.unknown.add(f"{self._place or self.name} ({type(value).__name__})")
            return
        call = getattr(type(value), "__call__", None)  # noqa: B004 - the function itself is wanted
        if isinstance(call, types.FunctionType):
            yield self._digest(call, depth)
        for name, part in sorted(held.items()):
            yield name
            yield self._digest(part, depth)


def _read_by(function: types.FunctionType) -> Iterator[tuple[str, str, Any]]:
    """Yield kind, name and value of what a function reads from outside and does not write."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if name not in _written(code):
            yield "variable", name, _content(cell)
    positional = inspect.signature(function).parameters if function.__defaults__ or function.__kwdefaults__ else {}
    for name, parameter in positional.items():
        if parameter.default is not parameter.empty:
            yield "default", name, parameter.default
    for name in sorted(_names(code) & function.__globals__.keys() - _written(code)):
        yield from _global(name, function.__globals__[name], code)


def _global(name: str, value: Any, code: types.CodeType) -> Iterator[tuple[str, str, Any]]:
    """Yield a global variable, and the attributes that the code uses of a module of the user's."""
    yield "variable", name, value
    if isinstance(value, types.ModuleType) and not _is_installed(value.__name__):
        for part in sorted(_attribute_names(code) & vars(value).keys()):
            yield "variable", f"{name}.{part}", vars(value)[part]


def _attribute_names(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(*(_attribute_names(inner) for inner in _inner(code)))


def _is_library(function: types.FunctionType) -> bool:
    """Whether a function comes with Python or with an installed package."""
    return _is_installed_file(function.__code__.co_filename)


def _is_installed(module: str) -> bool:
    """Whether a module comes with Python or with an installed package."""
    package = module.split(".")[0]
    if package in sys.stdlib_module_names:
        return package != "__main__"
    return _is_installed_file(getattr(sys.modules.get(package), "__file__", None) or "")


def _is_installed_file(path: str) -> bool:
    return path.startswith("<frozen") or any(Path(path).is_relative_to(folder) for folder in _INSTALLED)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None


def _names(code: types.CodeType) -> set[str]:
    """Global names that the code reads, and the functions within it."""
    own = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*(_names(inner) for inner in _inner(code)))


def _written(code: types.CodeType) -> set[str]:
    own = {i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_GLOBAL", "STORE_DEREF")}
    return own.union(*(_written(inner) for inner in _inner(code)))


def _inner(code: types.CodeType) -> list[types.CodeType]:
    return [const for const in code.co_consts if isinstance(const, types.CodeType)]


def _code(code: types.CodeType) -> str:
    """Digest of what code does, without its line numbers: a function may move within its file."""
    constants = (_code(const) if isinstance(const, types.CodeType) else _constant(const) for const in code.co_consts)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return _hashed(code.co_code, code.co_exceptiontable, *constants, *(repr(part) for part in names))


def _constant(const: Any) -> str:
    """A constant as text; the elements of a set are sorted, as they have no order."""
    return repr(sorted(map(_constant, const))) if isinstance(const, frozenset) else repr(const)


def _attributes(value: Any) -> dict[str, Any] | None:
    """The attributes of an object without cached properties; None if it does not show them."""
    kind = type(value)
    if not hasattr(value, "__dict__") or (_is_installed(kind.__module__) and not kind.__module__.startswith("qbvi.")):
        return None
    return {
        name: part
        for name, part in vars(value).items()
        if not isinstance(getattr(kind, name, None), functools.cached_property)
    }


def _unwrapped(value: Any) -> Any:
    """The Python function behind a decorated or compiled one."""
    compiled = getattr(value, "py_func", None)
    if isinstance(compiled, types.FunctionType):
        return compiled
    return inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value


def _components(value: Any) -> tuple[Any, ...]:
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    return value.func, value.args, value.keywords


def _of_scipy(value: Any) -> tuple[Any, ...]:
    """Name and frozen parameters of a distribution of SciPy."""
    distribution = getattr(value, "dist", value)
    name = getattr(distribution, "name", type(distribution).__name__)
    return name, getattr(value, "args", ()), getattr(value, "kwds", {})


def _hashed(*parts: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        size = content.nbytes if isinstance(content, memoryview) else len(content)
        digest.update(size.to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()
