"""A support given by a user's own map."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qbvi.arrays import Array, array_namespace, call_traced, is_traced, to_numpy
from qbvi.supports.base import Shape, Support
from qbvi.supports.maps import like

__all__ = ["Bijection"]

Function = Callable[[NDArray[np.float64]], Any]


@dataclass(frozen=True, init=False, repr=False)
class Bijection(Support):
    """A user's own map from R^k.

    The functions use NumPy. They use jax.numpy if JAX compiles the fit.

    Parameters
    ----------
    forward : callable
        ``u (k,) -> x``, an array of the parameter's shape.
    inverse : callable, optional
        ``x -> u (k,)``. Needed only to map constrained values back, such as starting values.
    log_jacobian : callable, optional
        ``u (k,) -> float``, the log absolute determinant of the derivative of ``forward``. Without
        it, central differences cost 2 k calls of ``forward`` per point. They give about ten digits
        where ``forward`` is smooth at unit scale, fewer in flat tails. They need a map between
        equal dimensions.
    unconstrained_size : int, optional
        The number k. By default the number of entries of the parameter.
    vectorized : bool
        Whether the functions take and return arrays with a leading axis of n points.

    Examples
    --------
    The paper's GARCH(1, 1) parameters: ``omega`` in (0, 1), ``alpha`` and ``beta`` positive with a
    sum below one.

    >>> import numpy as np
    >>> from scipy.special import expit, logit
    >>> def forward(psi):
    ...     s1, s2, s3 = expit(psi)
    ...     return np.array([s1, s2 * (1 - s3), s2 * s3])
    >>> def inverse(x):
    ...     omega, alpha, beta = x
    ...     return logit([omega, alpha + beta, beta / (alpha + beta)])
    >>> def log_jacobian(psi):
    ...     s = expit(psi)
    ...     return np.log(s * (1 - s)).sum() + np.log(s[1])
    >>> garch = Bijection(forward, inverse, log_jacobian)
    >>> garch.constrain(np.array([[-2.0, 3.0, 2.0]]), (3,)).round(3)
    array([[0.119, 0.114, 0.839]])
    """

    holds_code = True

    forward: Function
    inverse: Function | None
    log_jacobian_function: Function | None
    size: int | None
    vectorized: bool

    def __init__(
        self,
        forward: Function,
        inverse: Function | None = None,
        log_jacobian: Function | None = None,
        unconstrained_size: int | None = None,
        vectorized: bool = False,
    ) -> None:
        for name, function in (("forward", forward), ("inverse", inverse), ("log_jacobian", log_jacobian)):
            _check_callable(name, function, optional=name != "forward")
        values = (forward, inverse, log_jacobian, unconstrained_size, vectorized)
        for field, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, field.name, value)

    def __repr__(self) -> str:
        return f"Bijection({getattr(self.forward, '__qualname__', type(self.forward).__name__)})"

    def unconstrained_size(self, shape: Shape) -> int:
        """The given size, by default the number of entries."""
        return math.prod(shape) if self.size is None else self.size

    def constrain(self, u: Array, shape: Shape) -> Array:
        """The user's ``forward``, through NumPy."""
        return self._call("forward", self.forward, u, shape)

    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """The user's ``inverse``, through NumPy."""
        if self.inverse is None:
            msg = f"{self!r} has no `inverse`, so constrained values cannot be mapped back; give Bijection(inverse=...)"
            raise ValueError(msg)
        return self._call("inverse", self.inverse, x, (self.unconstrained_size(shape),))

    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """The user's ``log_jacobian``, or central differences of ``forward``."""
        if self.log_jacobian_function is None:
            return self._numerical_log_jacobian(u, shape)
        return self._call("log_jacobian", self.log_jacobian_function, u, ())

    def contains(self, x: ArrayLike, *, strict: bool = False) -> bool:
        """Whether the values are finite; only the user knows which of them ``forward`` reaches."""
        return bool(np.all(np.isfinite(np.asarray(x, dtype=np.float64))))

    def constrained_shape(self, shape: Shape) -> Shape:
        """Shape of ``forward`` at the origin."""
        origin = np.zeros(math.prod(shape))
        return np.shape(self.forward(origin[None]))[1:] if self.vectorized else np.shape(self.forward(origin))

    def to_spec(self) -> dict[str, Any]:
        """A marker: functions are not stored."""
        return {"kind": "Bijection", "user_defined": True}

    def _call(self, name: str, function: Function, points: Array, shape: Shape) -> Array:
        """Apply a user's function to all points, and check the shape that it returns."""
        if is_traced(points):
            values = call_traced(f"`{name}` of {self!r}", function, points, vectorized=self.vectorized)
        else:
            values = like(points, self._on_the_host(function, to_numpy(points)))
        if values.shape != (points.shape[0], *shape):
            msg = (
                f"`{name}` of {self!r} must return shape {shape} per point, got {values.shape[1:]}; "
                "for a function of many points at once pass vectorized=True"
            )
            raise ValueError(msg)
        return values

    def _on_the_host(self, function: Function, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values at the points, which the function may overwrite."""
        values = function(points) if self.vectorized else [function(point) for point in points]
        return np.asarray(values, dtype=np.float64)

    def _numerical_log_jacobian(self, u: Array, shape: Shape) -> Array:
        xp = array_namespace(u)
        n, k = u.shape
        if k != math.prod(shape):
            msg = f"{self!r} maps {k} numbers to shape {shape}: give `log_jacobian`, a map between unequal sizes has no determinant"
            raise ValueError(msg)
        step = float(xp.finfo(u.dtype).eps) ** (1 / 3) * xp.clip(xp.abs(u), 1.0, None)
        shift = step[:, :, None] * like(u, np.eye(k))  # (point, direction, coordinate)
        ends = [xp.reshape(u[:, None, :] + sign * shift, (n * k, k)) for sign in (1.0, -1.0)]
        ahead, behind = (xp.reshape(self._call("forward", self.forward, end, shape), (n, k, k)) for end in ends)
        return xp.linalg.slogdet((ahead - behind) / (2 * step[:, :, None]))[1]


def _check_callable(name: str, function: object, *, optional: bool) -> None:
    if not callable(function) and not (optional and function is None):
        msg = f"`{name}` must be a function{' or None' if optional else ''}, got {function!r}"
        raise TypeError(msg)
