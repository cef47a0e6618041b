"""Symmetric positive definite matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qbvi.arrays import Array, array_namespace, device
from qbvi.supports.base import Shape, Support
from qbvi.supports.maps import bounded_exp, bounded_log, like

__all__ = ["PositiveDefinite"]


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


def _lower_positions(p: int) -> NDArray[np.int64]:
    """Index of each matrix entry in the lower triangle; above the diagonal, p (p + 1) / 2."""
    position = np.full((p, p), p * (p + 1) // 2, dtype=np.int64)
    position[np.tril_indices(p)] = np.arange(p * (p + 1) // 2)
    return position.reshape(-1)
