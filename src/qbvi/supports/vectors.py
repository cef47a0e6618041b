"""Vectors whose entries depend on each other: simplexes and ordered vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from qbvi.arrays import Array, array_namespace
from qbvi.supports.base import Shape, Support
from qbvi.supports.maps import bounded_exp, bounded_log, flat, like, row_sum, shaped

__all__ = ["Ordered", "Simplex"]


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
        logits = u @ like(u, scipy.linalg.helmert(shape[-1]))
        logits = logits - xp.max(logits, axis=-1, keepdims=True)
        return logits - xp.log(xp.sum(xp.exp(logits), axis=-1, keepdims=True))

    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """``u = H log(x)``."""
        return self.unconstrain_log(bounded_log(x), shape)

    def unconstrain_log(self, log_x: Array, shape: Shape) -> Array:
        """`unconstrain` from ``log x``, given up to a constant: ``(n, *shape)`` -> (n, k)."""
        u = log_x @ like(log_x, scipy.linalg.helmert(shape[-1]).T)
        return array_namespace(u).reshape(u, (u.shape[0], self.unconstrained_size(shape)))

    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """Log-Jacobian of the first K - 1 entries: ``sum(log x) + log(K) / 2``.

        The Dirichlet density is a density of the same K - 1 entries.
        """
        constant = math.prod(shape[:-1]) * math.log(shape[-1]) / 2
        return row_sum(flat(self.log_constrain(u, shape), shape)) + constant

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
        u = shaped(u, shape)
        return xp.cumulative_sum(xp.concat([u[..., :1], bounded_exp(u[..., 1:])], axis=-1), axis=-1)

    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """``u_1 = x_1, u_k = log(x_k - x_{k-1})``."""
        xp = array_namespace(x)
        increments = bounded_log(x[..., 1:] - x[..., :-1])
        return flat(xp.concat([x[..., :1], increments], axis=-1), shape)

    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """Sum of all ``u`` but the first along the last axis."""
        increments = shaped(u, shape)[..., 1:]
        return row_sum(flat(increments, (*shape[:-1], shape[-1] - 1)))

    def contains(self, x: ArrayLike, *, strict: bool = False) -> bool:
        """Whether the entries never decrease along the last axis; with ``strict``, increase."""
        x = np.asarray(x, dtype=np.float64)
        steps = np.diff(x, axis=-1)
        return bool(np.all(np.isfinite(x)) and np.all(steps > 0 if strict else steps >= 0))
