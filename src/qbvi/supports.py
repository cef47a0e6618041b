r"""Supports of parameters: maps from R^k to the sets where constrained values live.

The sets are the real line, half lines, intervals, simplexes, ordered vectors, positive definite
matrices, and sets given by a user's own map. A support maps an unconstrained ``u (n, k)`` to
constrained values ``x (n, *shape)``. It also gives the inverse map and, for each row,

.. math:: \log |\partial x / \partial u|

The maps saturate instead of overflowing: for every ``u``, ``x`` is finite and in the closed
support. Whole numbers are not an image of R^k, so `WholeNumbers` refuses to map.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import helmert

from qbvi.arrays import Array, array_namespace, call_traced, device, is_traced, to_numpy

__all__ = [
    "SUPPORTS",
    "Bijection",
    "Interval",
    "Ordered",
    "Positive",
    "PositiveDefinite",
    "Real",
    "Simplex",
    "Support",
    "UserDefinedError",
    "WholeNumbers",
    "support_from_spec",
]

Shape = tuple[int, ...]
Function = Callable[[NDArray[np.float64]], Any]


class UserDefinedError(ValueError):
    """A saved specification needs a Python function, and files do not hold functions."""


class Support(ABC):
    """A set of constrained values, as the image of R^k under a smooth one-to-one map."""

    is_discrete: ClassVar[bool] = False
    holds_code: ClassVar[bool] = False  # whether it holds functions of the user's, which `to_spec` cannot describe

    @abstractmethod
    def unconstrained_size(self, shape: Shape) -> int:
        """Number k of unconstrained numbers that one constrained value of ``shape`` needs."""

    @abstractmethod
    def constrain(self, u: Array, shape: Shape) -> Array:
        """Map to the support: (n, k) -> ``(n, *shape)``."""

    @abstractmethod
    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """Map back: ``(n, *shape)`` -> (n, k). Values on the boundary give large finite numbers."""

    @abstractmethod
    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """Log of the absolute Jacobian determinant of `constrain`: (n, k) -> (n,)."""

    @abstractmethod
    def contains(self, x: ArrayLike, *, strict: bool = False) -> bool:
        """Whether every host value lies in the closed support; with ``strict``, in its interior."""

    def constrained_shape(self, shape: Shape) -> Shape:
        """Shape of the constrained value that belongs to an unconstrained array of ``shape``."""
        return shape

    def to_spec(self) -> dict[str, Any]:
        """Describe this support as plain data, for `support_from_spec`."""
        return {"kind": type(self).__name__}


class Elementwise(Support):
    """A support that treats each entry separately, between ``low`` and ``high``."""

    @abstractmethod
    def bounds(self, shape: Shape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of every entry, infinite where there is none: two arrays (k,)."""

    def unconstrained_size(self, shape: Shape) -> int:
        return math.prod(shape)

    def contains(self, x: ArrayLike, *, strict: bool = False) -> bool:
        x = np.asarray(x, dtype=np.float64)
        low, high = (np.reshape(end, np.shape(x)) for end in self.bounds(x.shape))
        inside = (x > low) & (x < high) if strict else (x >= low) & (x <= high)
        return bool(np.all(inside & np.isfinite(x)))


@dataclass(frozen=True)
class Real(Elementwise):
    """The real line: the identity map.

    Examples
    --------
    >>> import numpy as np
    >>> Real().constrain(np.array([[1.0, 2.0]]), (2,))
    array([[1., 2.]])
    """

    def bounds(self, shape: Shape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of every entry: two arrays (k,)."""
        return np.full(math.prod(shape), -np.inf), np.full(math.prod(shape), np.inf)

    def constrain(self, u: Array, shape: Shape) -> Array:
        """``x = u``, reshaped."""
        return _shaped(u, shape)

    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """``u = x``, flattened."""
        return _flat(x, shape)

    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """Zero."""
        return _row_sum(array_namespace(u).zeros_like(u))


@dataclass(frozen=True)
class Positive(Elementwise):
    """Positive numbers: ``x = exp(u)``.

    Examples
    --------
    >>> import numpy as np
    >>> Positive().constrain(np.array([[0.0]]), ())
    array([1.])
    >>> Positive().log_jacobian(np.array([[0.5]]), ())
    array([0.5])
    """

    def bounds(self, shape: Shape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of every entry: two arrays (k,)."""
        return np.zeros(math.prod(shape)), np.full(math.prod(shape), np.inf)

    def constrain(self, u: Array, shape: Shape) -> Array:
        """``x = exp(u)``."""
        return _shaped(bounded_exp(u), shape)

    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """``u = log(x)``."""
        return bounded_log(_flat(x, shape))

    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """``sum(u)``."""
        return _row_sum(u)


@dataclass(frozen=True)
class Interval(Elementwise):
    """Numbers between ``low`` and ``high``; either end, or both, may be infinite.

    - ``x = low + (high - low) / (1 + exp(-u))`` if both ends are finite,
    - ``x = low + exp(u)`` if only ``low`` is,
    - ``x = high - exp(u)`` if only ``high`` is.

    Parameters
    ----------
    low, high : float or array_like
        The ends; arrays broadcast against the parameter's shape.

    Examples
    --------
    >>> import numpy as np
    >>> Interval(-1.0, 3.0).constrain(np.array([[-800.0, 0.0, 800.0]]), (3,))
    array([[-1.,  1.,  3.]])
    """

    low: Any
    high: Any

    def __post_init__(self) -> None:
        low, high = np.asarray(self.low, dtype=np.float64), np.asarray(self.high, dtype=np.float64)
        both = np.isfinite(low) & np.isfinite(high)
        if not np.all(low < high) or np.any(both & (high / 2 - low / 2 > np.finfo(np.float64).max / 4)):
            msg = (
                f"`low` must be below `high`, at a distance that a float can hold, got low={self.low}, high={self.high}"
            )
            raise ValueError(msg)
        # Nested tuples instead of arrays, so that supports can be compared and hashed.
        object.__setattr__(self, "low", _as_tuples(low.tolist()))
        object.__setattr__(self, "high", _as_tuples(high.tolist()))

    def bounds(self, shape: Shape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of every entry: two arrays (k,)."""
        low, high = (_broadcast_end(end, shape) for end in (self.low, self.high))
        return low, high

    def constrain(self, u: Array, shape: Shape) -> Array:
        """The map of the class docstring, entry by entry."""
        xp = array_namespace(u)
        low, high, above, below = self._ends(u, shape)
        tail = xp.exp(-xp.abs(u))
        # sigmoid(-|u|), the distance from the nearer end: rounding cannot carry x across it.
        part = tail / (1 + tail)
        between = xp.where(u > 0, high - (high - low) * part, low + (high - low) * part)
        half = xp.where(above, low + bounded_exp(u), xp.where(below, high - bounded_exp(u), u))
        return _shaped(xp.where(above & below, between, half), shape)

    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """``log(x - low) - log(high - x)``, or one of the two if only one end is finite."""
        xp = array_namespace(x)
        x = _flat(x, shape)
        low, high, above, below = self._ends(x, shape)
        from_low, from_high = bounded_log(x - low), bounded_log(high - x)
        half = xp.where(above, from_low, xp.where(below, from_high, x))
        return xp.where(above & below, from_low - from_high, half)

    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """Log-Jacobian of the map: (n, k) -> (n,).

        ``sum(log(high - low) - softplus(u) - softplus(-u))`` if both ends are finite; ``sum(u)``
        if only one is.
        """
        xp = array_namespace(u)
        low, high, above, below = self._ends(u, shape)
        width = xp.where(above & below, high - low, xp.ones_like(u))
        between = xp.log(width) - softplus(u) - softplus(-u)
        return _row_sum(xp.where(above & below, between, xp.where(above | below, u, xp.zeros_like(u))))

    def to_spec(self) -> dict[str, Any]:
        """Describe this support as plain data; infinite ends become strings, as JSON requires."""
        return {"kind": "Interval", "low": _to_json(self.low), "high": _to_json(self.high)}

    def _ends(self, u: Array, shape: Shape) -> tuple[Array, Array, Array, Array]:
        """Ends with zero for infinity, and whether each is finite; four arrays (k,) like ``u``."""
        xp = array_namespace(u)
        low, high = self.bounds(shape)
        above, below = np.isfinite(low), np.isfinite(high)
        ends = (like(u, np.where(finite, end, 0.0)) for end, finite in ((low, above), (high, below)))
        return *ends, xp.asarray(above, device=device(u)), xp.asarray(below, device=device(u))


@dataclass(frozen=True)
class Simplex(Support):
    """Non-negative numbers that sum to one along the last axis: K of them, from K - 1.

    ``x = softmax(H' u)``. The rows of ``H`` are an orthonormal basis of the vectors that sum to
    zero. This is the isometric log-ratio of compositional data. It treats all categories alike.
    The coordinates of a symmetric Dirichlet are uncorrelated, so a diagonal posterior loses little.

    Examples
    --------
    >>> import numpy as np
    >>> Simplex().constrain(np.zeros((1, 3)), (4,))
    array([[0.25, 0.25, 0.25, 0.25]])
    """

    def unconstrained_size(self, shape: Shape) -> int:
        """``K - 1`` for every vector along the last axis."""
        if not shape or shape[-1] < 2:
            msg = f"a Simplex needs `shape` to end in 2 or more categories, got {shape}"
            raise ValueError(msg)
        return math.prod(shape[:-1]) * (shape[-1] - 1)

    def constrain(self, u: Array, shape: Shape) -> Array:
        """``x = softmax(H' u)``."""
        return array_namespace(u).exp(self.log_constrain(u, shape))

    def log_constrain(self, u: Array, shape: Shape) -> Array:
        """Logarithm of `constrain`, exact also if that underflows: (n, k) -> ``(n, *shape)``."""
        xp = array_namespace(u)
        u = xp.reshape(u, (u.shape[0], *shape[:-1], shape[-1] - 1))
        logits = u @ like(u, helmert(shape[-1]))
        logits = logits - xp.max(logits, axis=-1, keepdims=True)
        return logits - xp.log(xp.sum(xp.exp(logits), axis=-1, keepdims=True))

    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """``u = H log(x)``."""
        return self.unconstrain_log(bounded_log(x), shape)

    def unconstrain_log(self, log_x: Array, shape: Shape) -> Array:
        """`unconstrain` from ``log x``, given up to a constant: ``(n, *shape)`` -> (n, k)."""
        u = log_x @ like(log_x, helmert(shape[-1]).T)
        return array_namespace(u).reshape(u, (u.shape[0], self.unconstrained_size(shape)))

    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """Log-Jacobian of the first K - 1 entries: ``sum(log x) + log(K) / 2``.

        The Dirichlet density is a density of the same K - 1 entries.
        """
        constant = math.prod(shape[:-1]) * math.log(shape[-1]) / 2
        return _row_sum(_flat(self.log_constrain(u, shape), shape)) + constant

    def contains(self, x: ArrayLike, *, strict: bool = False) -> bool:
        """Whether entries are non-negative and sum to one within 1e-6."""
        x = np.asarray(x, dtype=np.float64)
        inside = x > 0 if strict else x >= 0
        return bool(np.all(inside) and np.all(np.abs(np.sum(x, axis=-1) - 1) <= 1e-6))

    def constrained_shape(self, shape: Shape) -> Shape:
        """One category more along the last axis."""
        return (*shape[:-1], shape[-1] + 1) if shape else (2,)


@dataclass(frozen=True)
class Ordered(Support):
    """Numbers that increase along the last axis: the first is free, each later one adds ``exp(u)``.

    Examples
    --------
    >>> import numpy as np
    >>> Ordered().constrain(np.array([[-1.0, 0.0, 0.0]]), (3,))
    array([[-1.,  0.,  1.]])
    """

    def unconstrained_size(self, shape: Shape) -> int:
        """One per entry."""
        if not shape:
            msg = "an Ordered support needs a `shape` with a last axis to be ordered along, got ()"
            raise ValueError(msg)
        return math.prod(shape)

    def constrain(self, u: Array, shape: Shape) -> Array:
        """``x_1 = u_1, x_k = x_{k-1} + exp(u_k)``."""
        xp = array_namespace(u)
        u = _shaped(u, shape)
        return xp.cumulative_sum(xp.concat([u[..., :1], bounded_exp(u[..., 1:])], axis=-1), axis=-1)

    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """``u_1 = x_1, u_k = log(x_k - x_{k-1})``."""
        xp = array_namespace(x)
        increments = bounded_log(x[..., 1:] - x[..., :-1])
        return _flat(xp.concat([x[..., :1], increments], axis=-1), shape)

    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """Sum of all ``u`` but the first along the last axis."""
        increments = _shaped(u, shape)[..., 1:]
        return _row_sum(_flat(increments, (*shape[:-1], shape[-1] - 1)))

    def contains(self, x: ArrayLike, *, strict: bool = False) -> bool:
        """Whether the entries never decrease along the last axis; with ``strict``, increase."""
        x = np.asarray(x, dtype=np.float64)
        steps = np.diff(x, axis=-1)
        return bool(np.all(np.isfinite(x)) and np.all(steps > 0 if strict else steps >= 0))


@dataclass(frozen=True)
class PositiveDefinite(Support):
    """Symmetric positive definite matrices along the last two axes: ``x = L L'``.

    The unconstrained numbers are the entries of ``L`` on and below the diagonal, row by row, with
    those on the diagonal on the log scale.

    Examples
    --------
    >>> import numpy as np
    >>> PositiveDefinite().constrain(np.array([[0.0, 2.0, 0.0]]), (2, 2))
    array([[[1., 2.],
            [2., 5.]]])
    """

    def unconstrained_size(self, shape: Shape) -> int:
        """``p (p + 1) / 2`` for every matrix."""
        if len(shape) < 2 or shape[-1] != shape[-2]:
            msg = f"a PositiveDefinite support needs `shape` to end in (p, p), got {shape}"
            raise ValueError(msg)
        return math.prod(shape[:-1]) * (shape[-1] + 1) // 2

    def constrain(self, u: Array, shape: Shape) -> Array:
        """``x = L L'``."""
        xp = array_namespace(u)
        factor = self.factor(u, shape)
        x = factor @ xp.matrix_transpose(factor)
        return x / 2 + xp.matrix_transpose(x) / 2  # symmetric to the last digit

    def factor(self, u: Array, shape: Shape) -> Array:
        """The lower triangular ``L``: (n, k) -> ``(n, *shape)``."""
        xp = array_namespace(u)
        p = shape[-1]
        rows = xp.reshape(u, (u.shape[0], *shape[:-2], p * (p + 1) // 2))
        padded = xp.concat([rows, xp.zeros_like(rows[..., :1])], axis=-1)
        entries = xp.take(padded, xp.asarray(_lower_positions(p), device=device(u)), axis=-1)
        entries = xp.reshape(entries, (u.shape[0], *shape))
        on_diagonal = xp.asarray(np.eye(p, dtype=bool), device=device(u))
        return xp.where(on_diagonal, xp.sqrt(bounded_exp(2 * entries)), entries)

    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """The Cholesky factor, computed from eigenvalues so that singular matrices have one too."""
        xp = array_namespace(x)
        p, tiny = shape[-1], float(xp.finfo(x.dtype).smallest_normal)
        sd = xp.sqrt(xp.clip(xp.linalg.diagonal(x), tiny, None))
        values, vectors = xp.linalg.eigh(x / (sd[..., :, None] * sd[..., None, :]))
        half = xp.sqrt(xp.clip(values, float(xp.finfo(x.dtype).eps), None))[..., :, None] * xp.matrix_transpose(vectors)
        # half' half = factor factor', up to signs.
        factor = xp.matrix_transpose(xp.linalg.qr(half)[1])
        factor = factor * xp.sign(xp.linalg.diagonal(factor))[..., None, :] * sd[..., :, None]
        on_diagonal = xp.asarray(np.eye(p, dtype=bool), device=device(x))
        flat = xp.reshape(xp.where(on_diagonal, bounded_log(factor), factor), (x.shape[0], *shape[:-2], p * p))
        row, column = np.tril_indices(p)
        lower = xp.take(flat, xp.asarray(row * p + column, device=device(x)), axis=-1)
        return xp.reshape(lower, (x.shape[0], self.unconstrained_size(shape)))

    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """Log-Jacobian of the entries on and below the diagonal: (n, k) -> (n,).

        ``p log 2 + sum((p - i + 2) u_ii)`` for each matrix, with i counted from one.
        """
        p = shape[-1]
        row, column = np.tril_indices(p)
        weights = np.where(row == column, p - row + 1.0, 0.0)
        matrices = math.prod(shape[:-2])
        return u @ like(u, np.tile(weights, matrices)) + matrices * p * math.log(2)

    def contains(self, x: ArrayLike, *, strict: bool = False) -> bool:
        """Whether each matrix is symmetric and positive semidefinite; with ``strict``, definite."""
        x = np.asarray(x, dtype=np.float64)
        return x.ndim >= 2 and x.shape[-1] == x.shape[-2] and bool(np.all(self.holds(x, strict=strict)))

    @staticmethod
    def holds(x: Array, *, strict: bool = False) -> Array:
        """`contains` for each matrix: (..., p, p) -> (...).

        The eigenvalues are those of the matrix with its diagonal scaled to one.
        """
        xp = array_namespace(x)
        finite = xp.all(xp.isfinite(x), axis=(-2, -1))
        x = xp.where(finite[..., None, None], x, xp.zeros_like(x))
        sd = xp.sqrt(xp.clip(xp.abs(xp.linalg.diagonal(x)), float(xp.finfo(x.dtype).smallest_normal), None))
        with np.errstate(over="ignore"):
            scaled = xp.clip(x / sd[..., :, None] / sd[..., None, :], -2.0, 2.0)
        symmetric = xp.all(xp.abs(scaled - xp.matrix_transpose(scaled)) <= 1e-6, axis=(-2, -1))
        smallest = xp.linalg.eigvalsh(scaled)[..., 0]
        definite = smallest > 1e-14 if strict else smallest >= -1e-8
        return finite & symmetric & definite

    def constrained_shape(self, shape: Shape) -> Shape:
        """Shape of the matrices whose lower triangles have their entries along the last axis."""
        k = shape[-1] if shape else 1
        p = (math.isqrt(8 * k + 1) - 1) // 2
        if p * (p + 1) // 2 != k:
            msg = f"a PositiveDefinite support needs 1, 3, 6, 10 ... numbers along the last axis, got {k}"
            raise ValueError(msg)
        return (*shape[:-1], p, p)


@dataclass(frozen=True)
class WholeNumbers(Elementwise):
    """Whole numbers from ``low`` to ``high``, both included. No map from R reaches them.

    A parameter on this support needs a family of whole numbers.

    Examples
    --------
    >>> WholeNumbers(0, 1).contains([0, 1, 1])
    True
    >>> WholeNumbers().contains(0.5)
    False
    """

    low: float = 0.0
    high: float = math.inf

    is_discrete: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", float(self.low))
        object.__setattr__(self, "high", float(self.high))
        whole = self.low.is_integer() and (self.high.is_integer() or self.high == math.inf)
        if not whole or self.low > self.high:
            msg = (
                f"`low` and `high` must be whole numbers, `low` not above `high`, got low={self.low}, high={self.high}"
            )
            raise ValueError(msg)

    def bounds(self, shape: Shape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of every entry: two arrays (k,)."""
        return np.full(math.prod(shape), self.low), np.full(math.prod(shape), self.high)

    def constrain(self, u: Array, shape: Shape) -> NoReturn:
        """Raise an error: there is no such map."""
        self._refuse()

    def unconstrain(self, x: Array, shape: Shape) -> NoReturn:
        """Raise an error: there is no such map."""
        self._refuse()

    def log_jacobian(self, u: Array, shape: Shape) -> NoReturn:
        """Raise an error: there is no such map."""
        self._refuse()

    def contains(self, x: ArrayLike, *, strict: bool = False) -> bool:
        """Whether every value is a whole number from ``low`` to ``high``, both included."""
        x = np.asarray(x, dtype=np.float64)
        return super().contains(x) and bool(np.all(x == np.round(x)))

    def to_spec(self) -> dict[str, Any]:
        """Describe this support as plain data."""
        return {"kind": "WholeNumbers", "low": _to_json(self.low), "high": _to_json(self.high)}

    def _refuse(self) -> NoReturn:
        msg = f"{self!r} is discrete: give it a family of its own, e.g. family={{...: 'bernoulli'}}, not a Gaussian one"
        raise ValueError(msg)


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


SUPPORTS: dict[str, type[Support]] = {
    kind.__name__: kind
    for kind in (Real, Positive, Interval, Simplex, Ordered, PositiveDefinite, WholeNumbers, Bijection)
}


def support_from_spec(spec: Mapping[str, Any]) -> Support:
    """Rebuild a support from the output of `Support.to_spec`.

    Examples
    --------
    >>> support_from_spec(Interval(0.0, float("inf")).to_spec())
    Interval(low=0.0, high=inf)
    """
    kind = spec.get("kind")
    if kind not in SUPPORTS:
        msg = f"`kind` of a support must be one of {', '.join(SUPPORTS)}, got {kind!r}"
        raise ValueError(msg)
    if kind == "Bijection":
        msg = "the map is user-defined and files hold no code"
        raise UserDefinedError(msg)
    return SUPPORTS[kind](**{name: _from_json(value) for name, value in spec.items() if name != "kind"})


def like(u: Array, host: ArrayLike) -> Array:
    """Copy host numbers to the namespace, dtype and device of ``u``."""
    numbers = np.asarray(host)
    if not numbers.flags.writeable:
        numbers = numbers.copy()  # PyTorch shares memory with it, and warns if it is read-only
    return array_namespace(u).asarray(numbers, dtype=u.dtype, device=device(u))


def bounded_exp(v: Array) -> Array:
    """``exp(v)``, clipped so that sums of thousands of such numbers stay finite in the dtype."""
    xp = array_namespace(v)
    limit = -math.log(float(xp.finfo(v.dtype).smallest_normal)) - 8.0
    return xp.exp(xp.clip(v, -limit, limit))


def bounded_log(v: Array) -> Array:
    """``log(v)``, with ``v`` raised to at least the smallest normal number of the dtype."""
    xp = array_namespace(v)
    return xp.log(xp.clip(v, float(xp.finfo(v.dtype).smallest_normal), None))


def softplus(v: Array) -> Array:
    """``log(1 + exp(v))`` without overflow; ``-softplus(-v)`` is the log of the sigmoid."""
    xp = array_namespace(v)
    return xp.logaddexp(v, xp.zeros_like(v))


def _check_callable(name: str, function: object, *, optional: bool) -> None:
    if not callable(function) and not (optional and function is None):
        msg = f"`{name}` must be a function{' or None' if optional else ''}, got {function!r}"
        raise TypeError(msg)


def _shaped(u: Array, shape: Shape) -> Array:
    return array_namespace(u).reshape(u, (u.shape[0], *shape))


def _flat(x: Array, shape: Shape) -> Array:
    return array_namespace(x).reshape(x, (x.shape[0], math.prod(shape)))


def _row_sum(terms: Array) -> Array:
    return array_namespace(terms).sum(terms, axis=-1)


def _lower_positions(p: int) -> NDArray[np.int64]:
    """Index of each matrix entry in the lower triangle; above the diagonal, p (p + 1) / 2."""
    position = np.full((p, p), p * (p + 1) // 2, dtype=np.int64)
    position[np.tril_indices(p)] = np.arange(p * (p + 1) // 2)
    return position.reshape(-1)


def _broadcast_end(end: Any, shape: Shape) -> NDArray[np.float64]:
    try:
        return np.broadcast_to(np.asarray(end, dtype=np.float64), shape).reshape(-1)
    except ValueError:
        msg = f"the ends of an Interval must broadcast to the parameter's shape {shape}, got shape {np.shape(end)}"
        raise ValueError(msg) from None


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list) else value


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return value if math.isfinite(value) else str(value)


def _from_json(value: Any) -> Any:
    return [_from_json(item) for item in value] if isinstance(value, list) else float(value)
