"""JAX: many steps in one compiled program, on CPU, GPU or TPU."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.backends.base import Backend, BackendError, host_memory
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

    def version(self, function: Callable[..., Any], points: Any, batch: tuple[Any, ...]) -> str:
        """Hash of the traced code and of the values that the function captured.

        Code compiled with other captured values must not be reused.
        """
        traced = jax.make_jaxpr(function)(points, batch)
        digest = hashlib.blake2b(str(traced.jaxpr).encode(), digest_size=16)
        digest.update(repr(jax.config.jax_default_matmul_precision).encode())
        for captured in traced.consts:  # JAX's own arrays never change, so their identity suffices
            is_own = isinstance(captured, jax.Array)
            digest.update(str(id(captured)).encode() if is_own else np.ascontiguousarray(captured).data)
        return digest.hexdigest()

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
        """``lax.scan`` over all steps; those after the last one cost nothing."""
        made = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(step, carry, jnp.zeros((), jnp.int32))[1]
        )

        def turn(carry: Any, i: Array) -> tuple[Any, Any]:
            return jax.lax.cond(goes_on(carry, i), lambda c: step(c, i), lambda c: (c, made), carry)  # type: ignore[no-any-return]

        return jax.lax.scan(turn, carry, jnp.arange(length, dtype=jnp.int32))  # type: ignore[no-any-return]

    def compiled(self, owner: Any, name: str) -> Callable[..., Any]:
        """``jax.jit``; recent functions are kept, so that a second fit compiles nothing."""
        return _jitted(owner, name, self._place)

    @classmethod
    def forget(cls) -> None:
        """Release everything that was compiled."""
        _jitted.cache_clear()

    def shaped(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``jax.eval_shape``: nothing is computed or compiled."""
        return jax.eval_shape(function, *arguments)

    @property
    def _place(self) -> Any:
        """Where arrays are: a device, or a sharding."""
        return self.device


_MOST_FUNCTIONS = 64  # compiled ones kept; each keeps the user's function and its arrays alive
_LARGE = 2**20  # bytes above which a captured array is an argument of the program, not a constant


@lru_cache(maxsize=_MOST_FUNCTIONS)
def _jitted(owner: Any, name: str, place: Any) -> _Compiled:
    """A method, compiled for a device or a sharding, where its results stay."""
    return _Compiled(getattr(owner, name), place)


class _Compiled:
    """``jax.jit``, with large captured arrays as arguments of the program.

    They are neither copied nor compiled.
    """

    def __init__(self, function: Callable[..., Any], place: Any) -> None:
        self._function, self._place = function, place
        self._made: dict[Any, tuple[Any, list[Any], Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        program, large, structure = self._program(arguments)
        return jax.tree.unflatten(structure, program(large, jax.tree.leaves(arguments)))

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

        large = [array for array, out in zip(traced.consts, is_large, strict=True) if out]
        options = {"out_shardings": self._place} if isinstance(self._place, jax.sharding.Sharding) else {}
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
