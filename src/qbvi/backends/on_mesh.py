"""JAX on several devices, which share draws, rows of the data, or both, in one program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qbvi.arrays import Array
from qbvi.backends.base import BackendError, leaves, mapped_tree
from qbvi.backends.on_jax import OnJax, active_on
from qbvi.points import count, mapped

__all__ = ["OnMesh"]


@dataclass(frozen=True)
class OnMesh(OnJax):
    """JAX on a mesh of devices, with axes named ``"draws"`` and ``"data"`` for what they share.

    Small arrays, such as members of the family, are on every device. The function's arguments are
    not: each device has its part of the draws or of the rows, and the compiler adds up the results.

    Examples
    --------
    >>> import jax
    >>> str(OnMesh.of(jax.devices("cpu")[:1], "float64"))
    'jax on 1 device (cpu) sharing draws, float64'
    """

    SHARED: ClassVar[tuple[str, ...]] = ("draws", "data")

    @classmethod
    def of(cls, devices: Mesh | Sequence[Any], dtype: str) -> OnMesh:
        """On a mesh, or on devices that share the draws."""
        if not isinstance(devices, Mesh):
            listed = [OnJax.find(device, dtype).device for device in devices]
            if not listed or len(set(listed)) < len(listed):
                msg = f"`device` must be a device or a list of different devices, got {devices!r}"
                raise BackendError(msg)
            devices = Mesh(np.array(listed), ("draws",))
        if not devices.axis_names or not set(devices.axis_names) <= set(cls.SHARED):
            msg = (
                f"`device` must be a mesh with axes named 'draws', 'data' or both, for what its devices share, got {devices.axis_names}; "
                "write for example jax.make_mesh((4,), ('data',))"
            )
            raise BackendError(msg)
        elsewhere = [device for device in devices.devices.flat if device.process_index != jax.process_index()]
        if elsewhere:
            msg = f"`device` must have only devices of this process, got {elsewhere[0]} of process {elsewhere[0].process_index}: several hosts are not supported"
            raise BackendError(msg)
        # A new mesh leaves all other decisions to the compiler, whatever the user's own mesh says.
        return cls(Mesh(devices.devices, devices.axis_names), dtype)

    def active(self) -> AbstractContextManager[Any]:
        """Enable 64 bits if ``dtype`` needs them; new arrays start on one device."""
        return active_on(self.device.devices.flat[0], self.dtype)

    def device_of(self, array: Array) -> Any:
        """The mesh, for an array on its devices; None for what stands for an array."""
        if isinstance(array, jax.core.Tracer):
            return None
        elsewhere = array.devices() - set(self.device.devices.flat)
        return min(elsewhere, key=str) if elsewhere else self.device

    def put_rows(self, data: Any) -> Any:
        """Copy arrays to the devices; if rows are shared, each device gets its part of them."""
        if self._shares("data") == 1:
            return self.put(data)
        with self.active():
            return mapped_tree(lambda part: jax.device_put(self.asarray(self._rows(part)), self._split("data")), data)

    def shared(self, points: Any, batch: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Give each device its part of the points and of the rows.

        The last point is repeated until all parts are equal.
        """
        missing = -count(points) % self._shares("draws")
        points = mapped(lambda x: jnp.concatenate([x, jnp.repeat(x[-1:], missing, axis=0)]), points)
        if self._shares("data") > 1:
            if not batch:
                msg = "`device` shares data, but `fit` has none: pass `data`; arrays that the function holds itself are on every device"
                raise BackendError(msg)
            batch = self._constrained(mapped_tree(self._rows, batch), "data")
        return self._constrained(points, "draws"), batch

    def free_bytes(self) -> float:
        """Memory of the device that has least: the program plans for one device."""
        return min(OnJax(device, self.dtype).free_bytes() for device in self.device.devices.flat)

    def __str__(self) -> str:
        devices = list(self.device.devices.flat)
        number = f"{len(devices)} device{'s' * (len(devices) > 1)} ({devices[0].platform})"
        return f"{self.name} on {number} sharing {' and '.join(self.device.axis_names)}, {self.dtype}"

    @property
    def _place(self) -> NamedSharding:
        """All devices, so that results are where the next call expects them."""
        return NamedSharding(self.device, PartitionSpec())

    def _split(self, what: str) -> NamedSharding:
        """Sharding along the first axis."""
        return NamedSharding(self.device, PartitionSpec(what))

    def _shares(self, what: str) -> int:
        return int(dict(self.device.shape).get(what, 1))

    def _constrained(self, tree: Any, what: str) -> Any:
        if self._shares(what) == 1 or not leaves(tree):
            return tree
        return mapped_tree(lambda x: jax.lax.with_sharding_constraint(x, self._split(what)), tree)

    def _rows(self, part: Any) -> Any:
        """Check that the rows of an array can be shared evenly."""
        shares = self._shares("data")
        if np.ndim(part) == 0 or np.shape(part)[0] % shares:
            msg = (
                f"rows of `data`, and of a mini-batch, must be a multiple of the {shares} devices that share them, got shape {np.shape(part)}; leave out "
                f"{math.prod(np.shape(part)[:1]) % shares} rows, or share draws: device=jax.devices()"
            )
            raise BackendError(msg)
        return part
