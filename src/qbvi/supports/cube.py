"""A support given by the prior transform of a nested sampler: a map from the unit cube."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from qbvi.arrays import Array, to_numpy
from qbvi.supports.base import Shape, Support
from qbvi.supports.maps import like

__all__ = ["UnitCube"]

Floats = NDArray[np.float64]

# The largest float below one is 1 - 2^-53. Prior transforms are often infinite at 0 and 1.
_EDGE = 2.0**-53
# Step of the central differences: their error, step^2, is that of rounding 8 nats below the top.
_STEP = 1e-4
_PROBES = 3  # points at which the map is asked which coordinates it mixes
_MOST_HALVINGS = 200  # of an interval of 16 standard deviations, far more than a root needs


@dataclass(frozen=True, eq=False, repr=False)
class UnitCube(Support):
    r"""The image of the unit cube under a prior transform, reached from standard normals.

    .. math:: \theta = T(\Phi(z))

    If ``z`` is standard normal, ``Phi(z)`` is uniform, and ``theta`` has the prior of a nested
    sampler with this transform. A fit needs no Jacobian. The map may mix coordinates.

    Parameters
    ----------
    transform : callable
        ``T``: array (d,) of numbers between 0 and 1 -> array (d,).
    size : int
        The number d.
    inverse : callable, optional
        The inverse of ``T``: ``theta`` (d,) -> (d,) between 0 and 1. It is not needed if ``T`` can
        be inverted one coordinate after another: each entry of ``theta`` depends on one number of
        the cube, and on others that earlier entries determine.
    vectorized : bool
        Whether both functions take and return (n, d).
    names : tuple of str
        Names of the entries of ``theta``; none means ``theta[0]``, ``theta[1]`` and so on.

    Examples
    --------
    >>> support = UnitCube(lambda u: np.array([10 * u[0], 10 * u[0] + u[1]]), 2)
    >>> theta = support.constrain(np.array([[0.0, 1.0]]), (2,))
    >>> theta.round(3)
    array([[5.   , 5.841]])
    >>> support.unconstrain(theta, (2,)).round(6)
    array([[0., 1.]])
    """

    holds_code = True

    transform: Callable[[Floats], Any]
    size: int
    inverse: Callable[[Floats], Any] | None = None
    vectorized: bool = False
    names: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        return f"UnitCube({getattr(self.transform, '__qualname__', type(self.transform).__name__)}, {self.size})"

    @property
    def entry_names(self) -> tuple[str, ...]:
        """Names of the entries, or none."""
        return self.names

    def unconstrained_size(self, shape: Shape) -> int:
        """The number d."""
        return self.size

    def constrained_shape(self, shape: Shape) -> Shape:
        """One vector, (d,)."""
        return (self.size,)

    def constrain(self, u: Array, shape: Shape) -> Array:
        """The prior transform at ``Phi(u)``, through NumPy."""
        return like(u, self._theta(to_numpy(u)))

    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """The inverse of the prior transform, from the user or by solving for each coordinate."""
        theta = to_numpy(x)
        if self.inverse is not None:
            cube = self._called("inverse", self.inverse, theta)
            return like(x, scipy.special.ndtri(np.clip(cube, _EDGE, 1 - _EDGE)))
        return like(x, self._solved(theta))

    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """Central differences of the map."""
        z = to_numpy(u)
        n, d = z.shape
        if self._is_separable:
            slopes = (self._theta(z + _STEP) - self._theta(z - _STEP)) / (2 * _STEP)
            with np.errstate(divide="ignore"):
                return like(u, np.log(np.abs(slopes)).sum(axis=1))
        shift = _STEP * np.eye(d)
        ahead, behind = (self._theta((z[:, None] + sign * shift).reshape(n * d, d)) for sign in (1.0, -1.0))
        return like(u, np.linalg.slogdet((ahead - behind).reshape(n, d, d) / (2 * _STEP))[1])

    def contains(self, x: ArrayLike, *, strict: bool = False) -> bool:
        """Whether the prior transform reaches the values, as far as that can be found out."""
        theta = np.asarray(x, dtype=np.float64).reshape(-1, self.size)
        if not np.all(np.isfinite(theta)):
            return False
        if self.inverse is not None or self._order is None:
            return True
        try:
            self._solved(theta)
        except _OutsideError:
            return False
        return True

    def to_spec(self) -> dict[str, Any]:
        """A marker: functions are not stored."""
        return {"kind": "UnitCube", "user_defined": True}

    def _theta(self, z: Floats) -> Floats:
        return self._called("prior_transform", self.transform, np.clip(scipy.special.ndtr(z), _EDGE, 1 - _EDGE))

    def _called(self, name: str, function: Callable[[Floats], Any], points: Floats) -> Floats:
        """A user's function at all points, which it may overwrite: (n, d) -> (n, d)."""
        given = points.copy()
        values = function(given) if self.vectorized else [function(point) for point in given]
        try:
            found = np.array(values, dtype=np.float64).reshape(len(points), -1) if len(points) else points
        except (TypeError, ValueError):
            found = np.empty((0, 0))
        if found.shape != points.shape:
            per_point = np.shape(values) if self.vectorized else np.shape(values[0])
            wanted = f"({len(points)}, {self.size})" if self.vectorized else f"({self.size},)"
            msg = (
                f"`{name}` must return {self.size} numbers for a point, an array of shape {wanted}, got shape {per_point}; "
                "`d` is the number of parameters, and vectorized=True means one call for many points"
            )
            raise ValueError(msg)
        if not np.all(np.isfinite(found)):
            at = int(np.argmin(np.isfinite(found).all(axis=1)))
            msg = f"`{name}` must return finite numbers, got {found[at].tolist()} at {points[at].tolist()}"
            raise ValueError(msg)
        return found

    @cached_property
    def _depends(self) -> NDArray[np.bool_]:
        """Which entries of theta change with which coordinates: (d, d)."""
        rng = np.random.default_rng(0)
        depends = np.zeros((self.size, self.size), dtype=bool)
        for base, other in rng.uniform(-2.0, 2.0, (_PROBES, 2, self.size)):
            moved = np.where(np.eye(self.size, dtype=bool), other, base)
            theta = self._theta(np.vstack([base, moved]))
            depends |= (theta[1:] != theta[0]).T
        return depends

    @property
    def _is_separable(self) -> bool:
        return bool(np.array_equal(self._depends, np.eye(self.size, dtype=bool)))

    @cached_property
    def _order(self) -> list[list[tuple[int, int]]] | None:
        """Entries of theta, each with the coordinate that it determines, level after level.

        None if the map cannot be inverted one coordinate after another.
        """
        levels = list(_levels(self._depends))
        return levels if sum(map(len, levels)) == self.size else None

    def _solved(self, theta: Floats) -> Floats:
        """Coordinates (n, d) of values (n, d), level after level."""
        if self._order is None:
            msg = (
                f"the prior transform {self!r} mixes its coordinates, so points cannot be mapped back one coordinate after another; "
                "pass inverse=, the function from theta to the unit cube"
            )
            raise ValueError(msg)
        z = np.zeros_like(theta)
        for level in self._order:
            entries, columns = ([pair[k] for pair in level] for k in (0, 1))

            def distance(x: Floats, entries: list[int] = entries, columns: list[int] = columns) -> Floats:
                at = z.copy()
                at[:, columns] = x
                return np.asarray(self._theta(at)[:, entries] - theta[:, entries])

            z[:, columns] = _roots(distance, (len(theta), len(level)))
        return z


class _OutsideError(ValueError):
    """A value that the map does not reach."""


def _levels(depends: NDArray[np.bool_]) -> Iterator[list[tuple[int, int]]]:
    """Pairs (entry, coordinate) that can be solved for at once, given those before."""
    open_columns, open_entries = depends.copy(), np.ones(len(depends), dtype=bool)
    while True:
        ready = [int(i) for i in np.flatnonzero(open_entries & (open_columns.sum(axis=1) == 1))]
        pairs = {int(np.argmax(open_columns[i])): i for i in ready}
        if not pairs:
            return
        yield [(i, j) for j, i in pairs.items()]
        open_columns[:, list(pairs)] = False
        open_entries[list(pairs.values())] = False


def _roots(f: Callable[[Floats], Floats], shape: tuple[int, int]) -> Floats:
    """Zeros of monotone functions, all at once, by false position with halving (Illinois)."""
    edge = float(-scipy.special.ndtri(_EDGE))
    a, b = np.full(shape, -edge), np.full(shape, edge)
    fa, fb = f(a), f(b)
    if np.any(np.sign(fa) * np.sign(fb) > 0):
        msg = "the prior transform does not reach the values"
        raise _OutsideError(msg)
    for k in range(_MOST_HALVINGS):
        with np.errstate(divide="ignore", invalid="ignore"):
            x = b - fb * (b - a) / (fb - fa)
        x = np.where(np.isfinite(x) & (k % 3 != 2), x, (a + b) / 2)
        x = np.where(fb == 0, b, x)
        fx = f(x)
        crossed = np.sign(fx) * np.sign(fb) < 0
        # The end that stays for a second time counts half, so that it moves too.
        a, fa = np.where(crossed, b, a), np.where(crossed, fb, fa / 2)
        b, fb = x, fx
        if np.all((np.abs(b - a) <= 4e-16 * edge) | (fx == 0)):
            break
    return b
