"""The user's function on a backend: arrays of one library, in calls that fit into memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array, array_namespace
from qbvi.backends import HOST, Backend, BackendError, forget_compiled
from qbvi.backends.base import leaves, mapped_tree
from qbvi.evaluate.batches import Batches, mapped_parts
from qbvi.evaluate.black_box import BlackBox, Evaluated, warn_if_not_a_log
from qbvi.evaluate.calls import Outcome, ShapeError
from qbvi.evaluate.failures import Failure, failure_of_value
from qbvi.evaluate.policy import replace_failed
from qbvi.points import Points, count, mapped, row

__all__ = ["DeviceBatches", "DeviceBox", "DeviceFunction", "FromHost", "Identity", "clear_cache"]


class Identity:
    """An object as a key of compiled programs.

    Two are equal if the objects are, or, for objects without a hash, if they are the same object.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        try:
            self._hash = hash(value)
            self._by_value = True
        except TypeError:
            self._hash, self._by_value = id(value), False

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity) or self._by_value != other._by_value:
            return False
        return self.value is other.value or (self._by_value and bool(self.value == other.value))


@dataclass(frozen=True)
class DeviceFunction:
    """A log-likelihood of stacked points on a backend: values and noise of n points, with checks.

    Parameters
    ----------
    function
        The user's function.
    vectorized
        Whether it takes stacked points; otherwise the backend maps it over them.
    backend
        The library of its arguments and of its results.
    block
        The most points of one call; None for no limit.
    version
        A name for what the function computes now; see `qbvi.backends.base.Inspected`.
    """

    function: Identity
    vectorized: bool
    backend: Backend
    block: int | None = None
    version: str = ""

    def __call__(self, points: Any, batch: tuple[Any, ...]) -> tuple[Array, Array]:
        """Values (n,) and the standard deviations of their noise (n,)."""
        if self.block is None or count(points) <= self.block:
            return self.at_once(points, batch)
        values, noise_sd = self.backend.in_blocks(lambda part: self.at_once(part, batch), points, self.block)
        return values, noise_sd

    def at_once(self, points: Any, batch: tuple[Any, ...]) -> tuple[Array, Array]:
        """The same in one call, for any number of points."""
        call, n = self.function.value, count(points)
        with self.backend.explained():
            points, batch = self.backend.shared(points, batch)
            if self.vectorized:
                values, noise_sd = self._numbers(call(points, *batch), (count(points),))
            else:
                values, noise_sd = self.backend.mapped(lambda point: self._numbers(call(point, *batch), ()))(points)
            return values[:n], noise_sd[:n]

    def _numbers(self, returned: Any, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """A value, or a value and the standard deviation of its noise, as arrays of the backend."""
        value, sd = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
        array = self._checked(value, shape)
        xp = array_namespace(array)
        return array, xp.zeros_like(array) if sd is None else self._checked(sd, shape)

    def _checked(self, value: Any, shape: tuple[int, ...]) -> Array:
        if isinstance(value, float):
            value = self.backend.asarray(np.full(shape, value))
        if not self.backend.owns(value):
            raise ShapeError(_another_library(self.backend, value))
        if not ("float" in str(value.dtype)):
            msg = f"`log_likelihood` must return floating-point numbers, got {value.dtype}; a sum of integers or of truth values is no log-likelihood yet"
            raise ShapeError(msg)
        xp = array_namespace(value)
        if shape == () and math.prod(value.shape) == 1:
            value = xp.reshape(value, ())
        if tuple(value.shape) != shape:
            raise ShapeError(_wrong_shape(tuple(value.shape), shape))
        return xp.astype(value, getattr(xp, self.backend.dtype))


@dataclass
class DeviceBox(BlackBox):
    """A `BlackBox` whose points and values stay on a backend.

    Only failures are copied to the host.
    """

    backend: Backend = HOST

    def __post_init__(self) -> None:
        super().__post_init__()
        self.likelihood = DeviceFunction(Identity(self.function), bool(self.vectorized), self.backend)
        self._most = math.inf if isinstance(self.vectorized, bool) else self.vectorized
        # Bytes that a call needs for each of its points; None before they are measured.
        self._each = None if self._most == math.inf else 0.0
        self._planned = 0  # points of the call that was planned last

    def plan(self, points: Any, batch: tuple[Any, ...]) -> None:
        """Choose how many points a call may have. Of ``points`` only the shapes matter."""
        self._planned = n = count(points)
        if self._each is None and self._surely_fits(points, batch):
            self.likelihood = replace(self.likelihood, block=None)
            return
        if self._each is None:
            self._each = self._measured(points, batch)
        fitting = math.floor(self.backend.free_bytes() / self._each) if self._each else n
        # A power of two, so that changes of the free memory rarely mean another compilation.
        fitting = n if fitting >= n else 2 ** (max(fitting, 1).bit_length() - 1)
        block = int(min(fitting, self._most))
        self.likelihood = replace(self.likelihood, block=block if block < n else None)

    def __call__(
        self,
        points: Points,
        *batch: Any,
        scale: float = 1.0,
        known: Mapping[int, Outcome] | None = None,
        on_done: Callable[[int, Outcome], None] | None = None,
    ) -> Evaluated:
        """Evaluate at stacked points of the backend; the results are arrays of the backend."""
        with self.backend.active():
            return self._answered(points, batch, scale)

    def _answered(self, points: Points, batch: tuple[Any, ...], scale: float) -> Evaluated:
        raw, noise_sd = self.raw(points, batch)
        on_host = self.backend.to_host(raw)
        ok = self.backend.asarray(np.isfinite(on_host))
        # An operation outside compiled code is a program of its own.
        values, noise_sd = (raw, noise_sd) if scale == 1.0 else (raw * scale, noise_sd * scale)
        self.count_evaluations(on_host)
        if np.isfinite(on_host).all():
            return Evaluated(values, ok, noise_sd)
        failures = self.failures_at(points, on_host)
        if not isinstance(self.on_failure, str):
            evaluated = Evaluated(on_host * scale, np.isfinite(on_host), self.backend.to_host(noise_sd))
            replaced = self._replace_failed(evaluated, failures, scale)
            values, ok, noise_sd = (self.backend.asarray(part) for part in replaced[:3])
            return Evaluated(
                values, ok, noise_sd, None if replaced.zero is None else self.backend.asarray(replaced.zero)
            )
        self.record(failures, np.isfinite(on_host))
        return Evaluated(replace_failed(self.on_failure, values, ok), ok, noise_sd)

    def count_evaluations(self, raw: NDArray[Any]) -> None:
        """Count the evaluations of a step, and warn if the first ones look like densities."""
        if self.n_evals == 0:
            warn_if_not_a_log(raw[np.isfinite(raw)])
        self.n_evals += len(raw)

    def failures_at(self, points: Any, raw: NDArray[Any]) -> dict[int, Failure]:
        """The failures among n points, by row."""
        host = self.backend.fetch(points)
        found = {i: failure_of_value(row(host, i), float(raw[i])) for i in np.flatnonzero(~np.isfinite(raw)).tolist()}
        return {i: failure for i, failure in found.items() if failure is not None}

    def record(self, failures: Mapping[int, Failure], ok: NDArray[np.bool_]) -> None:
        """Keep failures; raise the first one that the policy says to raise."""
        self.failures.extend(failures.values())
        raised = next((failure for failure in failures.values() if self.treatment(failure) == "raise"), None)
        if raised is not None:
            raise self._error(raised, dict(failures), ok)

    def raw(self, points: Any, batch: tuple[Any, ...]) -> tuple[Array, Array]:
        """Values (n,) and noise (n,) as the function returns them.

        A call that does not fit into the memory of the device is halved until it does; later calls
        keep that size.
        """
        if not self.backend.is_compiled:  # the function may overwrite its argument
            points = mapped(lambda x: array_namespace(x).asarray(x, copy=True), points)
        if count(points) != self._planned:
            self.plan(points, batch)
        while True:
            try:
                with self.backend.explained():
                    values, noise_sd = self.backend.compiled(self.likelihood, "__call__")(points, batch)
                return values, noise_sd
            except Exception as error:
                half = (self.likelihood.block or count(points)) // 2
                if not self.backend.is_out_of_memory(error) or half < 1:
                    raise
                self._most = half
                self.likelihood = replace(self.likelihood, block=half)

    def _surely_fits(self, points: Any, batch: tuple[Any, ...]) -> bool:
        """Whether a call fits into memory for sure; it also updates the version of the function.

        Otherwise it has to be measured, for which backends that compile must compile.
        """
        try:
            with self.backend.explained():
                found = self.backend.inspected(self.likelihood.at_once, points, batch)
        except ShapeError:  # the call itself will raise it, with its own number of points
            return False
        self.likelihood = replace(self.likelihood, version=found.version)
        return found.most_bytes <= self.backend.free_bytes()

    def _measured(self, points: Any, batch: tuple[Any, ...]) -> float:
        """Bytes that a call needs for each point."""
        try:
            with self.backend.explained():
                return _bytes_per_point(self.likelihood, points, batch)
        except ShapeError:  # likewise
            return 0.0


class FromHost:
    """A function on a backend for a loop on the host: NumPy arrays in and out, stacked.

    Compiled calls get points padded to one of a few sizes, so that steps of many sizes do not need
    as many compilations.
    """

    def __init__(self, function: Callable[..., Any], vectorized: bool | int, backend: Backend) -> None:
        self._box = DeviceBox(function, vectorized, backend=backend)
        self._backend = backend

    def __call__(self, points: Any, *batch: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Values (n,) and the standard deviations of their noise (n,)."""
        n = count(points)
        with self._backend.active():
            padded = mapped(lambda x: np.concatenate([x, np.repeat(x[-1:], self._size(n) - n, axis=0)]), points)
            values, noise_sd = self._box.raw(self._backend.put(padded), batch)
            return self._backend.to_host(values)[:n], self._backend.to_host(noise_sd)[:n]

    def _size(self, n: int) -> int:
        """The next of 1, 2, 3, 4, 6, 8, 12, 16 ..."""
        if not self._backend.is_compiled:
            return n
        power = 1 << (n - 1).bit_length()
        return power * 3 // 4 if power > 3 and n <= power * 3 // 4 else power


@dataclass(frozen=True)
class DeviceBatches:
    """The data on a backend, whole or in mini-batches.

    Row numbers are drawn on the host, so that they are the same on every backend.

    Parameters
    ----------
    batches
        The user's data and the size of a batch.
    backend
        Where the data go.
    """

    batches: Batches
    backend: Backend

    @property
    def is_partial(self) -> bool:
        """Whether a batch is less than all data."""
        return self.batches.is_partial

    @property
    def scale(self) -> float:
        """The factor N / M."""
        size = self.batches.batch_size if self.is_partial else None
        return 1.0 if size is None else self.batches.n_rows / size

    @cached_property
    def data(self) -> Any:
        """The data on the backend."""
        data = mapped_parts(_array, self.batches.data)
        for part in leaves(data):
            self._check(part)
        return self.backend.put_rows(data)

    @property
    def example(self) -> Any:
        """A batch with the shapes of any step."""
        if not self.is_partial:
            return self.data
        assert self.batches.batch_size is not None
        with self.backend.active():
            return mapped_tree(lambda part: part[: self.batches.batch_size, ...], self.data)

    def draw(self, rng: np.random.Generator) -> tuple[Any, float]:
        """Return the rows for one step, and the factor N / M."""
        if not self.is_partial:
            return self.data, self.scale
        with self.backend.active():
            return taken(self.data, self.backend.upload(self.rows(rng))), self.scale

    def rows(self, rng: np.random.Generator) -> NDArray[np.int32]:
        """Row numbers of one step, the same that `Batches.draw` draws."""
        assert self.batches.batch_size is not None
        return rng.choice(self.batches.n_rows, self.batches.batch_size, replace=False).astype(np.int32)

    def _check(self, part: Any) -> None:
        if self.backend.owns(part) and self.backend.device_of(part) not in (self.backend.device, None):
            there = self.backend.device_of(part)
            msg = f"`data` must be where the fit is, on {self.backend.device}, got an array on {there}: pass device={str(there)!r}, or move the data"
            raise BackendError(msg)
        if not self.backend.owns(part) and not hasattr(part, "__array__"):
            raise BackendError(
                _another_library(self.backend, part).replace("`log_likelihood` must return", "`data` must be")
            )


def taken(data: Any, rows: Array) -> Any:
    """Some rows of arrays in a tree."""
    return mapped_tree(lambda part: array_namespace(part).take(part, rows, axis=0), data)


# Bytes for each point, by function and shapes, for backends that compile to measure.
_MEASURED: dict[Any, float] = {}
_MOST_MEASURED = 64


def clear_cache() -> None:
    """Release all programs compiled for earlier fits, with the functions and arrays that they hold.

    Examples
    --------
    >>> import qbvi
    >>> qbvi.clear_cache()
    """
    _MEASURED.clear()
    forget_compiled()


def _bytes_per_point(function: DeviceFunction, points: Any, batch: tuple[Any, ...]) -> float:
    if not function.backend.is_compiled:
        return function.backend.bytes_per_point(function.at_once, points, batch)
    key = function, tuple((tuple(x.shape), str(x.dtype)) for x in leaves((points, batch)))
    if key not in _MEASURED:
        if len(_MEASURED) >= _MOST_MEASURED:
            del _MEASURED[next(iter(_MEASURED))]
        _MEASURED[key] = function.backend.bytes_per_point(function.at_once, points, batch)
    return _MEASURED[key]


def _array(part: Any) -> Any:
    """A part of the data; a frame, a series or a list of numbers becomes an array."""
    if hasattr(part, "iloc"):
        return part.to_numpy()
    return np.asarray(part) if isinstance(part, list | tuple) else part


def _another_library(backend: Backend, value: Any) -> str:
    kind = type(value)
    return (
        f"`log_likelihood` must return arrays of {backend.name}, which is what it is given, got {kind.__module__.partition('.')[0]}.{kind.__name__}; "
        f"compute with {backend.name} throughout, or leave `backend` out for a function of NumPy arrays"
    )


def _wrong_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    if expected == ():
        return (
            f"`log_likelihood` must return one number for each point, got an array of shape {shape}; "
            "sum over the observations, or pass vectorized=True if it takes many points at once"
        )
    return (
        f"`log_likelihood` must return shape {expected} for {expected[0]} points, got {shape}; "
        "sum over the observations only, or pass vectorized=False for a function of one point"
    )
