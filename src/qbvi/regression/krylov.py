r"""Weighted ridge regression on all quadratics, without forming one of them.

.. math:: h(z) = a + b'z + c\,(|z|^2 - d) / \sqrt{2d} + \tfrac12 (z'Cz - \mathrm{tr}\, C) + \text{noise}

The d (d + 1) / 2 coefficients of C have a common prior variance, the d + 2 others none and are projected out exactly. A symmetric matrix is applied
to n points in O(n d^2), and so is the adjoint; a Krylov space of those two (Lanczos) holds the solutions for every ridge at once. Memory is O(n d).
"""

from __future__ import annotations

from typing import NamedTuple

from qbvi.arrays import Array, array_namespace, device, repeat

__all__ = ["Krylov", "Quadratic", "Weighted", "krylov"]


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
        return self.free @ _free_features(z).T + _quadratic(z, self.C)

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
    length: Array  # () of their right-hand side, which is along the first

    def solve(self, ridges: Array) -> Quadratic:
        """The regression for each ridge (r,)."""
        xp = array_namespace(ridges)
        m = self.basis.shape[0]
        eye = xp.eye(m, dtype=ridges.dtype, device=device(ridges))
        system = self.tridiagonal + ridges[:, None, None] * eye
        rhs = xp.broadcast_to(self.length * eye[:, :1], (ridges.shape[0], m, 1))
        coefficients = xp.linalg.solve(system, rhs)[:, :, 0]
        C = xp.tensordot(coefficients, self.basis, axes=1)
        rest = self.points.weight * (self.points.h - _quadratic(self.points.z, C))
        return Quadratic(rest @ _free_features(self.points.z) @ self.gram, C)


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
    z, h, weight = points
    xp = array_namespace(z)
    gram = _inverse_gram(z, weight)
    features = _free_features(z)

    def project(values: Array) -> Array:
        return values - features @ (gram @ (features.T @ (weight * values)))

    def apply(C: Array) -> Array:
        return _adjoint(z, weight * project(_quadratic(z, C)))

    first = _adjoint(z, weight * project(h))
    length = _norm(first)
    tiny = xp.finfo(z.dtype).smallest_normal
    d, start = z.shape[1], first / xp.maximum(length, xp.ones_like(length) * tiny)
    numbers = xp.arange(m, device=device(z))
    empty = xp.zeros((m, d * d), dtype=z.dtype, device=device(z))

    def extend(i: Array, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        """One step of Lanczos, orthogonalised twice against all before, since rounding would undo it."""
        basis, alpha, beta, v = state
        here = xp.astype(numbers == i, z.dtype)
        basis = basis + here[:, None] * xp.reshape(v, (1, d * d))
        u = xp.reshape(apply(v), (d * d,))
        diagonal = 0.5 * xp.sum(u * xp.reshape(v, (d * d,)))
        for _ in range(2):
            u = u - (0.5 * (basis @ u)) @ basis
        size = (0.5 * xp.sum(u * u)) ** 0.5
        # A space that is exhausted is left as it is: its next direction is rounding.
        goes_on = size > 100 * xp.finfo(z.dtype).eps * xp.abs(diagonal)
        u = xp.where(goes_on, u / xp.where(goes_on, size, xp.ones_like(size)), xp.zeros_like(u))
        off = xp.where(goes_on, size, xp.zeros_like(size))
        return basis, alpha + here * diagonal, beta + here * off, xp.reshape(u, (d, d))

    none = xp.zeros(m, dtype=z.dtype, device=device(z))
    basis, alpha, beta, _ = repeat(m, extend, (empty, none, none, start))
    above = beta[:, None] * xp.eye(m, k=1, dtype=z.dtype, device=device(z))
    tridiagonal = alpha * xp.eye(m, dtype=z.dtype, device=device(z)) + above + above.T
    return Krylov(points, gram, xp.reshape(basis, (m, d, d)), tridiagonal, length)


def _free_features(z: Array) -> Array:
    """What has no prior: a constant, z, and the centred squared radius: (n, d) -> (n, d + 2)."""
    xp = array_namespace(z)
    d = z.shape[1]
    radial = (xp.sum(z**2, axis=1, keepdims=True) - d) / (2 * d) ** 0.5
    return xp.concat([xp.ones_like(radial), z, radial], axis=1)


def _quadratic(z: Array, C: Array) -> Array:
    """(z'Cz - tr C) / 2 at each point: (..., d, d) -> (..., n)."""
    xp = array_namespace(z)
    return 0.5 * (xp.sum((z @ C) * z, axis=-1) - xp.linalg.trace(C)[..., None])


def _adjoint(z: Array, values: Array) -> Array:
    """Of `_quadratic`, by <A, B> = tr(AB) / 2: (n,) -> (d, d)."""
    xp = array_namespace(z)
    eye = xp.eye(z.shape[1], dtype=z.dtype, device=device(z))
    return (z.T * values) @ z - xp.sum(values) * eye


def _norm(matrix: Array) -> Array:
    return (0.5 * array_namespace(matrix).sum(matrix**2)) ** 0.5


def _inverse_gram(z: Array, weight: Array) -> Array:
    """Inverse of F' W F, scaled to a unit diagonal first; a nugget bounds it where fewer points than features count."""
    xp = array_namespace(z)
    features = _free_features(z)
    gram = (features.T * weight) @ features
    tiny = xp.finfo(z.dtype).smallest_normal
    scale = xp.maximum(xp.linalg.diagonal(gram), xp.ones_like(gram[0, :]) * tiny) ** -0.5
    eye = xp.eye(gram.shape[0], dtype=z.dtype, device=device(z))
    nugget = 1e3 * xp.finfo(z.dtype).eps
    return scale[:, None] * xp.linalg.inv(gram * scale[:, None] * scale + nugget * eye) * scale
