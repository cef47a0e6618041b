r"""Weighted ridge regression on all quadratics, without forming one of them.

.. math:: h(z) = a + b'z + c\,(|z|^2 - d) / \sqrt{2d} + \tfrac12 (z'Cz - \mathrm{tr}\, C) + \text{noise}

The d (d + 1) / 2 coefficients of C have a common prior variance, the d + 2 others none and are projected out exactly. A symmetric matrix is applied
to n points in O(n d^2), and so is the adjoint; a Krylov space of those two (Lanczos) holds the solutions for every ridge at once. Memory is O(n d).
"""

from __future__ import annotations

from typing import NamedTuple

from qbvi.arrays import Array, array_namespace, device, repeat
from qbvi.regression.hermite import free_features

__all__ = ["Krylov", "Quadratic", "Weighted", "krylov"]

_EXHAUSTED = 100.0  # units of rounding below which a new direction of the Krylov space is rounding alone
_SWEEPS = 2  # orthogonalisations of a new direction: "twice is enough" (Kahan; Parlett, section 6.9)
_NUGGET = 1e3  # units of rounding added to the free features' unit diagonal, so that too few points do not matter


class Weighted(NamedTuple):
    """What is regressed on."""

    z: Array  # (n, d) whitened points
    h: Array  # (n,) residuals
    weight: Array  # (n,) zero where a point tells nothing


class Quadratic(NamedTuple):
    """A quadratic function of z, or several along a first axis."""

    free: Array  # (..., d + 2) a, b and c
    C: Array  # (..., d, d)

    def __call__(self, z: Array) -> Array:
        """Its values: (n, d) -> (..., n)."""
        return self.free @ free_features(z).T + _quadratic(z, self.C)

    @property
    def bound(self) -> Array:
        """Mean under a standard normal."""
        return self.free[..., 0]

    @property
    def b(self) -> Array:
        """Linear part (..., d)."""
        return self.free[..., 1:-1]

    @property
    def curvature(self) -> Array:
        """The matrix of all of degree two, the free radius included: (..., d, d)."""
        xp = array_namespace(self.C)
        d = self.C.shape[-1]
        eye = xp.eye(d, dtype=self.C.dtype, device=device(self.C))
        return self.C + (2 / d) ** 0.5 * self.free[..., -1, None, None] * eye


class Krylov(NamedTuple):
    """A regression reduced to its Krylov space."""

    points: Weighted
    gram: Array  # (d + 2, d + 2) inverse of that of the free features
    basis: Array  # (m, d, d) symmetric, orthonormal by <A, B> = tr(AB) / 2
    tridiagonal: Array  # (m, m) the normal equations in it
    right_norm: Array  # () length of their right-hand side, which is along the first

    def solve(self, ridges: Array) -> Quadratic:
        """The regression for each ridge (r,)."""
        xp = array_namespace(ridges)
        m = self.basis.shape[0]
        eye = xp.eye(m, dtype=ridges.dtype, device=device(ridges))
        system = self.tridiagonal + ridges[:, None, None] * eye
        rhs = xp.broadcast_to(self.right_norm * eye[:, :1], (ridges.shape[0], m, 1))
        coefficients = xp.linalg.solve(system, rhs)[:, :, 0]
        C = xp.tensordot(coefficients, self.basis, axes=1)
        rest = self.points.weight * (self.points.h - _quadratic(self.points.z, C))
        return Quadratic(rest @ free_features(self.points.z) @ self.gram, C)


def krylov(points: Weighted, m: int) -> Krylov:
    """Build the Krylov space of m dimensions.

    Examples
    --------
    Two points more than coefficients, and no ridge: a quadratic is found exactly.

    >>> import numpy as np
    >>> z = np.random.default_rng(1).standard_normal((8, 2))
    >>> found = krylov(Weighted(z, 3 + z[:, 0] - z[:, 1] ** 2, np.ones(8)), m=3).solve(np.asarray([0.0]))
    >>> found.bound.round(3), found.b.round(3) + 0.0, found.curvature.round(3) + 0.0
    (array([2.]), array([[1., 0.]]), array([[[ 0.,  0.],
            [ 0., -2.]]]))
    """
    xp = array_namespace(points.z)
    d, dtype, where = points.z.shape[1], points.z.dtype, device(points.z)
    normal = _NormalEquations(points.z, points.weight, free_features(points.z), _inverse_gram(points))
    right = normal.right(points.h)
    norm = _norm(right)
    start = right / xp.maximum(norm, xp.ones_like(norm) * xp.finfo(dtype).smallest_normal)
    numbers = xp.arange(m, device=where)

    def extend(i: Array, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        """One step of Lanczos, orthogonalised against all before, since rounding would undo it."""
        basis, alpha, beta, v = state
        here = xp.astype(numbers == i, dtype)
        basis = basis + here[:, None] * v
        u = xp.reshape(normal(xp.reshape(v, (d, d))), (d * d,))
        diagonal = 0.5 * xp.sum(u * v)
        for _ in range(_SWEEPS):
            u = u - (0.5 * (basis @ u)) @ basis
        off = _norm(u)
        # A space that is exhausted stays as it is: its next direction would be rounding.
        goes_on = off > _EXHAUSTED * xp.finfo(dtype).eps * xp.abs(diagonal)
        off = xp.where(goes_on, off, xp.zeros_like(off))
        u = xp.where(goes_on, u, xp.zeros_like(u)) / xp.where(goes_on, off, xp.ones_like(off))
        return basis, alpha + here * diagonal, beta + here * off, u

    empty = xp.zeros((m, d * d), dtype=dtype, device=where)
    basis, alpha, beta, _ = repeat(m, extend, (empty, empty[:, 0], empty[:, 0], xp.reshape(start, (d * d,))))
    above = beta[:, None] * xp.eye(m, k=1, dtype=dtype, device=where)
    tridiagonal = alpha * xp.eye(m, dtype=dtype, device=where) + above + above.T
    return Krylov(points, normal.gram, xp.reshape(basis, (m, d, d)), tridiagonal, norm)


class _NormalEquations(NamedTuple):
    """Those of C, with the free features projected out: a map from symmetric matrices to symmetric matrices."""

    z: Array
    weight: Array
    features: Array  # (n, d + 2) without a prior
    gram: Array  # (d + 2, d + 2)

    def __call__(self, C: Array) -> Array:
        """Apply them."""
        return self.right(_quadratic(self.z, C))

    def right(self, values: Array) -> Array:
        """Adjoint of `_quadratic`, by <A, B> = tr(AB) / 2, of what the free features leave of the values: (n,) -> (d, d)."""
        xp = array_namespace(self.z)
        free = self.gram @ (self.features.T @ (self.weight * values))
        rest = self.weight * (values - self.features @ free)
        eye = xp.eye(self.z.shape[1], dtype=self.z.dtype, device=device(self.z))
        return (self.z.T * rest) @ self.z - xp.sum(rest) * eye


def _quadratic(z: Array, C: Array) -> Array:
    """(z'Cz - tr C) / 2 at each point: (..., d, d) -> (..., n)."""
    xp = array_namespace(z)
    return 0.5 * (xp.sum((z @ C) * z, axis=-1) - xp.linalg.trace(C)[..., None])


def _norm(matrix: Array) -> Array:
    return (0.5 * array_namespace(matrix).sum(matrix**2)) ** 0.5


def _inverse_gram(points: Weighted) -> Array:
    """Inverse of F' W F, scaled to a unit diagonal first; a nugget bounds it where fewer points than features count."""
    xp = array_namespace(points.z)
    features = free_features(points.z)
    gram = (features.T * points.weight) @ features
    limits = xp.finfo(gram.dtype)
    scale = xp.maximum(xp.linalg.diagonal(gram), xp.ones_like(gram[0, :]) * limits.smallest_normal) ** -0.5
    eye = xp.eye(gram.shape[0], dtype=gram.dtype, device=device(gram))
    return scale[:, None] * xp.linalg.inv(gram * scale[:, None] * scale + _NUGGET * limits.eps * eye) * scale
