r"""Kernels of the orthonormal Hermite polynomials: all of one degree at once, in O(n^2 d).

Under z ~ N(0, I) the multivariate Hermite polynomials are orthonormal. The sum over all of degree m
of :math:`\mathrm{He}_\alpha(x) \mathrm{He}_\alpha(y)` depends only on x.y, |x|^2 and |y|^2. Each
kernel here is the mean of these products, so that its expectation on the diagonal is one.
"""

from __future__ import annotations

from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array, array_namespace

__all__ = ["Kernels", "free_features", "kernels", "radial_feature", "tail_variance"]

Floats = NDArray[np.float64]


class Kernels(NamedTuple):
    """Mean products of the orthonormal Hermite polynomials of degree two, three and four."""

    second: Floats  # (n, n)
    third: Floats  # (n, n)
    fourth: Floats  # (n, n)

    def tail(self, omega: float) -> Floats:
        """Degree three, and four with relative variance ``omega``: what no Gaussian can fit."""
        return (self.third + omega * self.fourth) / (1 + omega)

    def mix(self, quadratic: float, omega: float, out: Floats) -> None:
        """Write degree two with variance ``quadratic``, plus the tail, into ``out``."""
        np.multiply(self.second, quadratic, out=out)
        out += self.third * (1 / (1 + omega))
        out += self.fourth * (omega / (1 + omega))


def kernels(z: Floats, other: Floats | None = None) -> Kernels:
    r"""Kernels between whitened points z (n, d) and themselves, or others (m, d).

    With :math:`g = x \cdot y` and :math:`s = d - |x|^2 - |y|^2` they are, up to constant factors,

    .. math::

        k_2 = g^2 + s, \quad k_3 = g (g^2 + 3 s + 6), \quad
        k_4 = g^4 + 6 g^2 (s + 4) + 3 s (s + 4) - 6 d

    Examples
    --------
    >>> import numpy as np
    >>> z = np.array([[0.5], [2.0]])
    >>> he3 = (z[:, 0] ** 3 - 3 * z[:, 0]) / 6**0.5
    >>> bool(np.allclose(kernels(z).third, np.outer(he3, he3)))
    True
    """
    d = z.shape[1]
    other = z if other is None else other
    squares, other_squares = np.sum(z**2, axis=1), np.sum(other**2, axis=1)
    return Kernels(*_by_degree(z @ other.T, d - squares[:, None] - other_squares[None, :], d))


def tail_variance(square: Array, d: int, omega: float) -> Array:
    """Prior variance of degrees three and four at a squared radius, with mean one under N(0, I)."""
    _, third, fourth = _by_degree(square, d - 2 * square, d)
    return (third + omega * fourth) / (1 + omega)


def free_features(z: Array) -> Array:
    """Features without a prior: a constant, z, and the squared radius: (n, d) -> (n, d + 2)."""
    xp = array_namespace(z)
    radius = radial_feature(z)
    return xp.concat([xp.ones_like(radius), z, radius], axis=1)


def radial_feature(z: Array) -> Array:
    """The squared radius, scaled to mean zero and variance one under N(0, I): (n, d) -> (n, 1)."""
    xp = array_namespace(z)
    d = z.shape[1]
    return (xp.sum(z**2, axis=1, keepdims=True) - d) / (2 * d) ** 0.5


def _by_degree(g: Array, s: Array, d: int) -> tuple[Array, Array, Array]:
    square = g * g
    second = (square + s) / (d * (d + 1))
    third = g * (square + 3 * (s + 2)) / (6 * comb(d + 2, 3))
    fourth = (square * (square + 6 * s + 24) + 3 * (s * (s + 4) - 2 * d)) / (24 * comb(d + 3, 4))
    return second, third, fourth
