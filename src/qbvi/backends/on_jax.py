"""JAX: many steps in one compiled program, on CPU, GPU or TPU."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.backends.base import Backend, BackendError, Inspected, host_memory
from qbvi.backends.jax_cache import keep_programs, kept
from qbvi.points import count, mapped, sliced

__all__ = ["OnJax"]

_SHARE = 0.4  # fraction of the free memory for the intermediate results of one call


@dataclass(frozen=True)
class OnJax(Backend):
    """JAX on one of its devices.

    Double precision applies only inside `active`, so the user's own settings do not change.
    """

    name: ClassVar[str] = "jax"
    is_compiled: ClassVar[bool] = True

    @classmethod
    def find(cls, device: Any, dtype: str) -> OnJax:
        """One of ``jax.devices()``, or its name: ``"cpu"``, ``"gpu"``, ``"gpu:1"``.

        A list or a mesh gives several devices.
        """
        keep_programs()
        if isinstance(device, list | tuple | jax.sharding.Mesh):
            from qbvi.backends.on_mesh import OnMesh

            return OnMesh.of(device, dtype)
        if device is None or isinstance(device, jax.Device):
            return cls(device or jax.devices()[0], dtype)
        platform, _, number = str(device).partition(":")
        try:
            found = jax.devices(platform)
            return cls(found[int(number or 0)], dtype)
        except (RuntimeError, ValueError, IndexError):
            raise cls.no_such_device(device, _names()) from None

    @property
    def namespace(self) -> Any:
        """``jax.numpy``."""
        return jnp

    def active(self) -> AbstractContextManager[Any]:
        """Enable 64 bits if ``dtype`` needs them, and place new arrays on the device."""
        return active_on(self.device, self.dtype)

    def owns(self, value: Any) -> bool:
        """Whether it is a JAX array, or stands for one during compilation."""
        return isinstance(value, jax.Array)

    def device_of(self, array: Array) -> Any:
        """Its device; None if it only stands for an array."""
        if isinstance(array, jax.core.Tracer):
            return None
        devices = list(array.devices())
        return devices[0] if len(devices) == 1 else self.device

    def upload(self, array: NDArray[Any]) -> Array:
        """Copy it to the device."""
        return jax.device_put(array, self._place)

    def to_host(self, array: Array) -> NDArray[Any]:
        """Wait for the values and copy them."""
        return np.asarray(array)

    def mapped(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """``jax.vmap``."""
        mapped: Callable[[Any], Any] = jax.vmap(function)
        return mapped

    def in_blocks(self, function: Callable[[Any], Any], points: Any, block: int) -> Any:
        """``lax.map`` over whole blocks, and one call for the rest."""
        n = count(points)
        whole = n // block * block
        stacked = mapped(lambda x: jnp.reshape(x[:whole], (whole // block, block, *x.shape[1:])), points)
        parts = [jnp.reshape(part, (whole,)) for part in jax.lax.map(function, stacked)]
        if whole == n:
            return tuple(parts)
        rest = function(sliced(points, whole, n))
        return tuple(jnp.concatenate(pair) for pair in zip(parts, rest, strict=True))

    def bytes_per_point(self, function: Callable[..., Any], points: Any, batch: tuple[Any, ...]) -> float:
        """Memory that the compiler plans for the intermediate results of a call."""
        plan = _Compiled(function, self._place).lower(points, batch).compile().memory_analysis()
        return float(plan.temp_size_in_bytes) / count(points) if plan is not None else 0.0

    def inspected(self, function: Callable[..., Any], points: Any, batch: tuple[Any, ...]) -> Inspected:
        """Hash of the traced code and of the values that it captured; sizes of all its results.

        Code compiled with other captured values must not be reused.
        """
        traced = jax.make_jaxpr(function)(points, batch)
        digest = hashlib.blake2b(str(traced.jaxpr).encode(), digest_size=16)
        digest.update(repr(jax.config.jax_default_matmul_precision).encode())
        for captured in traced.consts:  # JAX's own arrays never change, so their identity suffices
            is_own = isinstance(captured, jax.Array)
            digest.update(str(id(captured)).encode() if is_own else np.ascontiguousarray(captured).data)
        return Inspected(digest.hexdigest(), _most_bytes(traced.jaxpr))

    def free_bytes(self) -> float:
        """A fraction of the device's free memory; for a CPU, of the machine's."""
        stats = self.device.memory_stats() or {}
        left = stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else host_memory()
        return _SHARE * left

    def explain(self, error: Exception) -> str | None:
        """Explain NumPy arrays, and branches on values."""
        if isinstance(error, jax.errors.TracerArrayConversionError):
            return (
                "`log_likelihood` must compute with jax.numpy when backend='jax', but passes its argument to NumPy; replace np. by jnp., or leave "
                "`backend` out: plain Python functions need none"
            )
        if isinstance(error, jax.errors.ConcretizationTypeError):
            return (
                "`log_likelihood` must not branch on values when backend='jax', where it is compiled: take jnp.where or jax.lax.cond in place of `if`, "
                "or leave `backend` out"
            )
        return None

    def repeated(
        self,
        step: Callable[[Any, Array], tuple[Any, Any]],
        goes_on: Callable[[Any, Array], Array],
        carry: Any,
        length: int,
    ) -> tuple[Any, Any]:
        """``lax.while_loop``; the step is traced once."""
        traced, shapes = jax.make_jaxpr(step, return_shape=True)(carry, jnp.zeros((), jnp.int32))
        made = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), shapes[1])

        def turn(state: tuple[Array, Any, Any]) -> tuple[Array, Any, Any]:
            i, carry, made = state
            results = jaxpr_as_fun(traced)(*jax.tree.leaves((carry, i)))
            carry, new = jax.tree.unflatten(jax.tree.structure(shapes), results)
            return i + 1, carry, jax.tree.map(lambda all_, x: all_.at[i].set(x), made, new)

        start = jnp.zeros((), jnp.int32), carry, made
        _, carry, made = jax.lax.while_loop(
            lambda state: (state[0] < length) & goes_on(state[1], state[0]), turn, start
        )
        return carry, made

    def compiled(self, owner: Any, name: str) -> Callable[..., Any]:
        """``jax.jit``; recent functions are kept, so that a second fit compiles nothing."""
        return _jitted(owner, name, self._place)

    @classmethod
    def forget(cls) -> None:
        """Release everything that was compiled."""
        _jitted.cache_clear()
        _shapes.cache_clear()

    def shaped(self, owner: Any, name: str, *arguments: Any) -> Any:
        """``jax.eval_shape``: nothing is computed or compiled, and recent results are kept."""
        flat, structure = jax.tree.flatten(arguments)
        shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in flat)
        return _shapes(owner, name, structure, shapes, jax.config.jax_enable_x64)

    def fetch(self, tree: Any) -> Any:
        """Copy all arrays of a tree to the host; the copies run at the same time."""
        for leaf in jax.tree.leaves(tree):
            if self.owns(leaf):
                leaf.copy_to_host_async()
        return super().fetch(tree)

    @property
    def _place(self) -> Any:
        """Where arrays are: a device, or a sharding."""
        return self.device


_MOST_FUNCTIONS = 96  # compiled ones kept; each keeps the user's function and its arrays alive
_LARGE = 2**20  # bytes above which a captured array is an argument of the program, not a constant


@lru_cache(maxsize=_MOST_FUNCTIONS)
def _jitted(owner: Any, name: str, place: Any) -> _Compiled:
    """A method, compiled for a device or a sharding, where its results stay."""
    return _Compiled(getattr(owner, name), place)


@lru_cache(maxsize=4 * _MOST_FUNCTIONS)
def _shapes(owner: Any, name: str, structure: Any, shapes: tuple[Any, ...], is_double: bool) -> Any:
    """Shapes and dtypes of the results of a method."""
    return jax.eval_shape(getattr(owner, name), *jax.tree.unflatten(structure, shapes))


class _Compiled:
    """``jax.jit``, with large captured arrays as arguments of the program.

    They are neither copied nor compiled.
    """

    def __init__(self, function: Callable[..., Any], place: Any) -> None:
        self._function, self._place = function, place
        self._made: dict[Any, tuple[Any, list[Any], Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        known = len(self._made)
        program, large, structure = self._program(arguments)
        with kept() if len(self._made) > known else nullcontext():
            results = program(large, jax.tree.leaves(arguments))
        return jax.tree.unflatten(structure, results)

    def lower(self, *arguments: Any) -> Any:
        """The input of the compiler; arguments need only have shapes."""
        program, large, _ = self._program(arguments)
        return program.lower(large, jax.tree.leaves(arguments))

    def _program(self, arguments: tuple[Any, ...]) -> tuple[Any, list[Any], Any]:
        flat, structure = jax.tree.flatten(arguments)
        key = structure, tuple((x.shape, x.dtype) for x in flat), jax.config.jax_enable_x64
        if key not in self._made:
            self._made[key] = self._traced(arguments)
        return self._made[key]

    def _traced(self, arguments: tuple[Any, ...]) -> tuple[Any, list[Any], Any]:
        traced, shapes = jax.make_jaxpr(self._function, return_shape=True)(*arguments)
        for array in traced.consts:
            self._check(array)
        is_large = [array.nbytes >= _LARGE for array in traced.consts]

        def program(large: list[Any], flat: list[Any]) -> Any:
            rest = iter(large)
            captured = [next(rest) if out else array for array, out in zip(traced.consts, is_large, strict=True)]
            return jaxpr_as_fun(ClosedJaxpr(traced.jaxpr, captured))(*flat)

        program.__name__ = f"qbvi_{getattr(self._function, '__name__', 'call').strip('_')}"  # in JAX's logs and caches
        large = [array for array, out in zip(traced.consts, is_large, strict=True) if out]
        options: dict[str, Any] = {"compiler_options": _compiler_options(self._place)}
        if isinstance(self._place, jax.sharding.Sharding):
            options["out_shardings"] = self._place
        return jax.jit(program, **options), jax.device_put(large, self._place), jax.tree.structure(shapes)

    def _check(self, array: Any) -> None:
        here = getattr(self._place, "device_set", {self._place})
        if isinstance(array, jax.Array) and array.committed and not here & array.devices():
            there = ", ".join(map(str, array.devices()))
            msg = (
                f"`log_likelihood` must have all its arrays on {', '.join(sorted(map(str, here)))}, where the fit runs, got one on {there}: "
                "move it with jax.device_put, or pass `device`"
            )
            raise BackendError(msg)


def _compiler_options(place: Any) -> dict[str, Any] | None:
    """On a GPU, no search for the best of many kernels for each matrix product.

    The libraries' own products are as fast in our programs, and the search takes ten seconds for
    each program with a large product. ``XLA_FLAGS`` that mention the option decide instead.
    """
    devices = getattr(place, "device_set", {place})
    is_gpu = all(device.platform in ("gpu", "cuda") for device in devices)
    is_decided = _TRITON in os.environ.get("XLA_FLAGS", "")
    return {_TRITON: False} if is_gpu and not is_decided else None


_TRITON = "xla_gpu_enable_triton_gemm"


def _most_bytes(jaxpr: Any) -> float:
    """Bytes of all results of all operations: more than the intermediate results ever need."""
    total = 0.0
    for equation in jaxpr.eqns:
        total += sum(math.prod(x.aval.shape) * x.aval.dtype.itemsize for x in equation.outvars)
        inner = [part for part in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr) if _is_jaxpr(part)]
        total += sum(_most_bytes(getattr(part, "jaxpr", part)) for part in inner)
    return total


def _is_jaxpr(value: Any) -> bool:
    return isinstance(value, Jaxpr | ClosedJaxpr)


@contextmanager
def active_on(device: Any, dtype: str) -> Iterator[None]:
    """Enable 64 bits if ``dtype`` needs them, and place new arrays on the device."""
    precision = jax.enable_x64(True) if dtype == "float64" else nullcontext()
    with precision, jax.default_device(device):
        yield


def _names() -> list[str]:
    """All devices, as a user may write them."""
    found = [jax.devices(platform) for platform in {device.platform for device in jax.devices()} | {"cpu"}]
    return [f"{device.platform}:{i}" for devices in found for i, device in enumerate(devices)]
