r"""Weighted ridge regression on all quadratics, without forming the design matrix.

.. math::

    h(z) = a + b'z + c\,(|z|^2 - d) / \sqrt{2d} + \tfrac12 (z'Cz - \mathrm{tr}\, C) + \text{noise}

The d (d + 1) / 2 coefficients of C have a common prior variance. The d + 2 others have no prior and
are projected out exactly. To evaluate the quadratic of a symmetric matrix at n points costs
O(n d^2), and so does the adjoint. A Krylov space of the two (Lanczos) holds the solutions for all
ridges at once. Memory is O(n d).
"""

from __future__ import annotations

from typing import NamedTuple

from qbvi.arrays import Array, array_namespace, device, repeat
from qbvi.regression.hermite import free_features

__all__ = ["Krylov", "Quadratic", "Weighted", "krylov"]

# Machine epsilons below which a new direction of the Krylov space is nothing but rounding.
_EXHAUSTED = 100.0
# Orthogonalisations of a new direction: "twice is enough" (Kahan; Parlett, section 6.9).
_SWEEPS = 2
# Machine epsilons added to the unit diagonal of the free features' Gram matrix: it stays invertible
# with too few points.
_NUGGET = 1e3


class Weighted(NamedTuple):
    """The weighted points of a regression."""

    z: Array  # (n, d) whitened points
    h: Array  # (n,) residuals
    weight: Array  # (n,) zero for points that do not take part


class Quadratic(NamedTuple):
    """A quadratic function of z, or several along a first axis."""

    free: Array  # (..., d + 2) a, b and c
    C: Array  # (..., d, d)

    def __call__(self, z: Array) -> Array:
        """Values at points: (n, d) -> (..., n)."""
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
        """The matrix of all terms of degree two, the squared radius included: (..., d, d)."""
        xp = array_namespace(self.C)
        d = self.C.shape[-1]
        eye = xp.eye(d, dtype=self.C.dtype, device=device(self.C))
        return self.C + (2 / d) ** 0.5 * self.free[..., -1, None, None] * eye


class Krylov(NamedTuple):
    """A regression reduced to its Krylov space."""

    points: Weighted
    gram: Array  # (d + 2, d + 2) inverse Gram matrix of the free features
    basis: Array  # (m, d, d) symmetric matrices, orthonormal by <A, B> = tr(AB) / 2
    tridiagonal: Array  # (m, m) matrix of the normal equations in this basis
    right_norm: Array  # () norm of their right-hand side, a multiple of the first basis matrix

    def solve(self, ridges: Array) -> Quadratic:
        """The solution for each ridge (r,)."""
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
    With two more points than coefficients and no ridge, a quadratic is found exactly:

    >>> import numpy as np
    >>> z = np.random.default_rng(1).standard_normal((8, 2))
    >>> points = Weighted(z, 3 + z[:, 0] - z[:, 1] ** 2, np.ones(8))
    >>> found = krylov(points, m=3).solve(np.asarray([0.0]))
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
        """One Lanczos step, orthogonalised against all directions, as rounding makes necessary."""
        basis, alpha, beta, v = state
        here = xp.astype(numbers == i, dtype)
        basis = basis + here[:, None] * v
        u = xp.reshape(normal(xp.reshape(v, (d, d))), (d * d,))
        diagonal = 0.5 * xp.sum(u * v)
        for _ in range(_SWEEPS):
            u = u - (0.5 * (basis @ u)) @ basis
        off = _norm(u)
        # An exhausted space stays as it is: its next direction would be rounding.
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
    """Normal equations of C without the free features: a linear map of symmetric matrices."""

    z: Array
    weight: Array
    features: Array  # (n, d + 2) without a prior
    gram: Array  # (d + 2, d + 2) inverse of their weighted Gram matrix

    def __call__(self, C: Array) -> Array:
        """Apply the map to a symmetric matrix (d, d)."""
        return self.right(_quadratic(self.z, C))

    def right(self, values: Array) -> Array:
        """Project the free features out of values (n,), then apply the adjoint of `_quadratic`.

        The adjoint is the one for <A, B> = tr(AB) / 2. The result is (d, d).
        """
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
    """Inverse of F' W F for the free features F, after scaling to a unit diagonal.

    A nugget keeps it finite if there are fewer points than features.
    """
    xp = array_namespace(points.z)
    features = free_features(points.z)
    gram = (features.T * points.weight) @ features
    limits = xp.finfo(gram.dtype)
    scale = xp.maximum(xp.linalg.diagonal(gram), xp.ones_like(gram[0, :]) * limits.smallest_normal) ** -0.5
    eye = xp.eye(gram.shape[0], dtype=gram.dtype, device=device(gram))
    return scale[:, None] * xp.linalg.inv(gram * scale[:, None] * scale + _NUGGET * limits.eps * eye) * scale
