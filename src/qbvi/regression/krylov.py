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

import numpy as np

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

    def counted(self) -> Weighted:
        """Without the points that have hardly any weight, where shapes may vary: on the host."""
        if not isinstance(self.weight, np.ndarray):
            return self
        is_there = self.weight > np.finfo(self.weight.dtype).eps * np.max(self.weight, initial=0.0)
        return Weighted(self.z[is_there], self.h[is_there], self.weight[is_there])


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

    # (m, d, d) symmetric matrices with trace zero, orthonormal by <A, B> = tr(AB) / 2.
    basis: Array
    tridiagonal: Array  # (m, m) matrix of the normal equations in this basis
    right_norm: Array  # () norm of their right-hand side, a multiple of the first basis matrix
    free: Array  # (d + 2,) free coefficients of the residuals alone
    free_basis: Array  # (m, d + 2) free coefficients of z'Bz / 2 for each basis matrix B

    def solve(self, ridges: Array) -> Quadratic:
        """The solution for each ridge (r,)."""
        xp = array_namespace(ridges)
        m = self.basis.shape[0]
        eye = xp.eye(m, dtype=ridges.dtype, device=device(ridges))
        system = self.tridiagonal + ridges[:, None, None] * eye
        rhs = xp.broadcast_to(self.right_norm * eye[:, :1], (ridges.shape[0], m, 1))
        coefficients = xp.linalg.solve(system, rhs)[:, :, 0]
        return Quadratic(self.free - coefficients @ self.free_basis, xp.tensordot(coefficients, self.basis, axes=1))


def krylov(points: Weighted, m: int) -> Krylov:
    """Build the Krylov space of m dimensions.

    Examples
    --------
    With two more points than coefficients and no ridge, a quadratic is found exactly:

    >>> import numpy as np
    >>> z = np.random.default_rng(1).standard_normal((8, 2))
    >>> points = Weighted(z, 3 + z[:, 0] - z[:, 1] ** 2, np.ones(8))
    >>> found = krylov(points, m=2).solve(np.asarray([0.0]))
    >>> found.bound.round(3), found.b.round(3) + 0.0, found.curvature.round(3) + 0.0
    (array([2.]), array([[1., 0.]]), array([[[ 0.,  0.],
            [ 0., -2.]]]))
    """
    xp = array_namespace(points.z)
    d, dtype, where = points.z.shape[1], points.z.dtype, device(points.z)
    normal = _NormalEquations.of(points)
    products, right = normal.right(points.h)
    norm = _norm(right)
    start = right / xp.maximum(norm, xp.ones_like(norm) * xp.finfo(dtype).smallest_normal)
    numbers = xp.arange(m, device=where)

    def extend(i: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        """One Lanczos step, orthogonalised against all directions, as rounding makes necessary."""
        basis, alpha, beta, free, v = state
        here = xp.astype(numbers == i, dtype)
        basis = basis + here[:, None] * v
        found, u = normal(xp.reshape(v, (d, d)))
        u = xp.reshape(u, (d * d,))
        diagonal = 0.5 * xp.sum(u * v)
        for _ in range(_SWEEPS):
            u = u - (0.5 * (basis @ u)) @ basis
        off = _norm(u)
        # An exhausted space stays as it is: its next direction would be rounding.
        goes_on = off > _EXHAUSTED * xp.finfo(dtype).eps * xp.abs(diagonal)
        off = xp.where(goes_on, off, xp.zeros_like(off))
        u = xp.where(goes_on, u, xp.zeros_like(u)) / xp.where(goes_on, off, xp.ones_like(off))
        return basis, alpha + here * diagonal, beta + here * off, free + here[:, None] * found, u

    empty, nothing = (xp.zeros((m, size), dtype=dtype, device=where) for size in (d * d, d + 2))
    first = empty, empty[:, 0], empty[:, 0], nothing, xp.reshape(start, (d * d,))
    basis, alpha, beta, found, _ = repeat(m, extend, first)
    free, free_basis = products @ normal.gram, found @ normal.gram
    return Krylov(xp.reshape(basis, (m, d, d)), _tridiagonal(alpha, beta), norm, free, free_basis)


class _NormalEquations(NamedTuple):
    """Normal equations of C without the free features: a linear map of symmetric matrices.

    The quadratic of the identity is a free feature. So the map is restricted to matrices with trace
    zero, whose quadratics are z'Cz / 2.
    """

    z: Array
    weight: Array
    features: Array  # (n, d + 2) without a prior
    gram: Array  # (d + 2, d + 2) inverse of their weighted Gram matrix
    explained: Array  # (n, d + 2) features @ gram

    @classmethod
    def of(cls, points: Weighted) -> _NormalEquations:
        """For these points."""
        features, gram = free_features(points.z), _inverse_gram(points)
        return cls(points.z, points.weight, features, gram, features @ gram)

    def __call__(self, C: Array) -> tuple[Array, Array]:
        """`right` of the quadratic of a symmetric matrix (d, d)."""
        return self.right(0.5 * array_namespace(C).sum((self.z @ C) * self.z, axis=-1))

    def right(self, values: Array) -> tuple[Array, Array]:
        """Project the free features out of values (n,), then apply the adjoint of `_quadratic`.

        The adjoint is the one for <A, B> = tr(AB) / 2. The results are the products of values and
        free features (d + 2,), and the adjoint (d, d).
        """
        products = (self.weight * values) @ self.features
        rest = self.weight * (values - self.explained @ products)
        adjoint = (self.z.T * rest) @ self.z
        xp, d = array_namespace(adjoint), adjoint.shape[0]
        eye = xp.eye(d, dtype=adjoint.dtype, device=device(adjoint))
        return products, adjoint - xp.linalg.trace(adjoint) / d * eye


def _quadratic(z: Array, C: Array) -> Array:
    """(z'Cz - tr C) / 2 at each point: (..., d, d) -> (..., n)."""
    xp = array_namespace(z)
    return 0.5 * (xp.sum((z @ C) * z, axis=-1) - xp.linalg.trace(C)[..., None])


def _tridiagonal(alpha: Array, beta: Array) -> Array:
    """The symmetric matrix with diagonal alpha (m,) and beta (m,), but its last, beside it."""
    xp, m = array_namespace(alpha), alpha.shape[0]
    above = beta[:, None] * xp.eye(m, k=1, dtype=alpha.dtype, device=device(alpha))
    return alpha * xp.eye(m, dtype=alpha.dtype, device=device(alpha)) + above + above.T


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
