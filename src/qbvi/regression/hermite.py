r"""Kernels of the orthonormal Hermite polynomials: all of one degree at once, in O(n^2 d).

A kernel is the prior covariance of a random polynomial of one degree. It depends only on x.y, |x|^2
and |y|^2, because no direction is preferred. Its expectation on the diagonal is one under N(0, I).

- Degree two: the coefficients of all Hermite polynomials have the same variance.
- Degrees three and four: the polynomial is :math:`\mathrm{He}_m(u \cdot z)` with a random direction
  u, uniform on the sphere, or a sum of such terms. A term of a log-likelihood is often a function
  of one direction: an observation depends on one linear predictor.

With equal variances instead, degree three would be nearly free of the polynomials
:math:`z_i (|z|^2 - d - 2)`. Their share of the variance would be 6 / ((d + 1) (d + 2)); that of a
function of one direction is 3 / (d + 2). These polynomials are the ones most easily taken for
linear terms, because the length of a draw hardly varies in many dimensions. So the natural gradient
would be biased, by far more than its own variance says.
"""

from __future__ import annotations

from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array, array_namespace

__all__ = ["Covariance", "Kernels", "free_features", "kernels", "radial_feature", "tail_variance"]

Floats = NDArray[np.float64]

_FEW = 256  # points up to which the kernels of all pairs are kept: 1.5 MB
_ROWS, _COLUMNS = 64, 256  # of the tiles in which a covariance is computed: they fit the cache


class Kernels(NamedTuple):
    """Prior covariances of random polynomials of degree two, three and four."""

    second: Floats  # (n, n)
    third: Floats  # (n, n)
    fourth: Floats  # (n, n)

    def tail(self, omega: float) -> Floats:
        """Degree three, and four with relative variance ``omega``: what no Gaussian can fit."""
        return (self.third + omega * self.fourth) / (1 + omega)


def kernels(z: Floats, other: Floats | None = None, *, equal: bool = False) -> Kernels:
    r"""Kernels between whitened points z (n, d) and themselves, or others (m, d).

    With :math:`g = x \cdot y` and the normalised :math:`\mathrm{he}_m = \mathrm{He}_m / \sqrt{m!}`,

    .. math::

        k_2 = \frac{g^2 + d - |x|^2 - |y|^2}{d (d + 1)}, \quad
        k_m = E_u [\mathrm{he}_m(u \cdot x) \, \mathrm{he}_m(u \cdot y)], \quad m = 3, 4

    With ``equal``, all polynomials of degree three, and all of degree four, have the same variance.
    That is the prior for whitened coordinates that are not normal: directions that mix them mean
    nothing.

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
    parts = z @ other.T, squares[:, None], other_squares[None, :]
    return Kernels(*(_equal(*parts, d) if equal else _by_degree(*parts, d)))


class Covariance:
    r"""Prior covariance of the polynomials of degree two to four at some points.

    With :math:`g = x \cdot y` and the squared lengths of both points, all three kernels are

    .. math:: \sum_{m=0}^{4} g^m \sum_{i,j=0}^{2} M_{mij} |x|^{2i} |y|^{2j}

    Their sum is again such a polynomial, with coefficients that depend only on the dimension and on
    the prior variances. So the covariance is one pass over the inner products, whatever the
    variances are.

    Parameters
    ----------
    z
        Whitened points (n, d).
    equal
        As for `kernels`.

    Examples
    --------
    >>> import numpy as np
    >>> z, out = np.array([[0.5, 1.0], [2.0, -1.0]]), np.empty((2, 2))
    >>> Covariance(z).write(quadratic=10.0, omega=0.3, out=out)
    >>> bool(np.allclose(out, 10.0 * kernels(z).second + kernels(z).tail(0.3)))
    True
    """

    def __init__(self, z: Floats, *, equal: bool = False) -> None:
        self._z, self._n = z, len(z)
        self._kernels: Floats | None = None
        if self._n <= _FEW:
            self._kernels = np.stack(kernels(z, equal=equal)).reshape(3, -1)
            return
        squares = np.einsum("ij,ij->i", z, z)
        self._powers = np.stack([np.ones_like(squares), squares, squares**2], axis=1)
        self._coefficients = (_equal_coefficients if equal else _coefficients)(z.shape[1])
        self._tiles = np.empty((3, _ROWS * _COLUMNS))

    def write(self, quadratic: float, omega: float, out: Floats) -> None:
        """Write degree two with variance ``quadratic``, plus the tail, into ``out`` (n, n).

        With many points, the entries below the blocks of the diagonal are left as they are.
        """
        weights = np.array([quadratic, 1 / (1 + omega), omega / (1 + omega)])
        if self._kernels is not None:
            np.dot(weights, self._kernels, out=out.reshape(-1))
            return
        M = np.tensordot(weights, self._coefficients, axes=1)
        factors = [self._powers @ M[m] for m in range(3)]  # (n, 3), one for each power of g
        for row in range(0, self._n, _ROWS):
            for column in range(row, self._n, _COLUMNS):
                tile = slice(row, row + _ROWS), slice(column, column + _COLUMNS)
                out[tile] = self._tile(*tile, factors, (M[3, 0, 0], M[4, 0, 0]))

    def _tile(self, rows: slice, columns: slice, factors: list[Floats], highest: tuple[float, float]) -> Floats:
        """One tile of the covariance, by Horner's rule in the inner products."""
        left, right = self._z[rows], self._z[columns].T
        shape = len(left), right.shape[1]
        g, value, term = (part[: shape[0] * shape[1]].reshape(shape) for part in self._tiles)
        np.dot(left, right, out=g)
        np.multiply(g, highest[1], out=value)
        value += highest[0]
        powers = self._powers[columns].T
        for factor in reversed(factors):
            value *= g
            value += np.dot(factor[rows], powers, out=term)
        return value


def tail_variance(square: Array, d: int, omega: float, *, equal: bool = False) -> Array:
    """Prior variance of degrees three and four at a squared radius, with mean one under N(0, I)."""
    _, third, fourth = (_equal if equal else _by_degree)(square, square, square, d)
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


def _by_degree(g: Array, x: Array, y: Array, d: int) -> tuple[Array, Array, Array]:
    """The three kernels from the inner product g and the squared lengths x and y.

    Those of degree three and four are expectations over u, of products of powers of s = u.x and
    t = u.y. Each line is one such product.
    """
    two, three, four = d * (d + 2), d * (d + 2) * (d + 4), d * (d + 2) * (d + 4) * (d + 6)
    square, product, total = g * g, x * y, x + y
    second = (square + d - total) / (d * (d + 1))
    third = g * (
        (6 * square + 9 * product) / three  # s^3 t^3
        - 9 * total / two  # -3 (s^3 t + s t^3)
        + 9 / d  # 9 s t
    )
    fourth = (
        (24 * square * square + 72 * square * product + 9 * product * product) / four  # s^4 t^4
        - (72 * square + 18 * product) * total / three  # -6 (s^4 t^2 + s^2 t^4)
        + (72 * square + 36 * product) / two  # 36 s^2 t^2
        + 9 * (total * total - 2 * product) / two  # 3 (s^4 + t^4)
        - 18 * total / d  # -18 (s^2 + t^2)
        + 9
    )
    return second, third / 6, fourth / 24


def _equal(g: Array, x: Array, y: Array, d: int) -> tuple[Array, Array, Array]:
    """The three kernels if all polynomials of a degree have the same variance."""
    square, s = g * g, d - x - y
    second = (square + s) / (d * (d + 1))
    third = g * (square + 3 * (s + 2)) / (6 * comb(d + 2, 3))
    fourth = (square * (square + 6 * s + 24) + 3 * (s * (s + 4) - 2 * d)) / (24 * comb(d + 3, 4))
    return second, third, fourth


def _coefficients(d: int) -> Floats:
    """Coefficients of `_by_degree` (3, 5, 3, 3): degree, power of g, of |x|^2, of |y|^2."""
    two, three, four = d * (d + 2), d * (d + 2) * (d + 4), d * (d + 2) * (d + 4) * (d + 6)
    M = np.zeros((3, 5, 3, 3))
    M[0] = _second(d)
    M[1, 3, 0, 0] = 6 / three
    M[1, 1] = _symmetric({(1, 1): 9 / three, (0, 1): -9 / two, (0, 0): 9 / d})
    M[2, 4, 0, 0] = 24 / four
    M[2, 2] = _symmetric({(1, 1): 72 / four, (0, 1): -72 / three, (0, 0): 72 / two})
    constant = {(2, 2): 9 / four, (1, 2): -18 / three, (1, 1): 36 / two, (0, 2): 9 / two, (0, 1): -18 / d, (0, 0): 9.0}
    M[2, 0] = _symmetric(constant)
    return np.asarray(M / np.array([1, 6, 24])[:, None, None, None])


def _equal_coefficients(d: int) -> Floats:
    """Coefficients of `_equal`, in the same form."""
    M = np.zeros((3, 5, 3, 3))
    M[0] = _second(d)
    M[1, 3, 0, 0] = 1
    M[1, 1] = _symmetric({(0, 1): -3, (0, 0): 3 * (d + 2)})
    M[2, 4, 0, 0] = 1
    M[2, 2] = _symmetric({(0, 1): -6, (0, 0): 6 * d + 24})
    # 3 (s (s + 4) - 2 d) with s = d - x - y
    M[2, 0] = _symmetric({(0, 2): 3, (1, 1): 6, (0, 1): -6 * d - 12, (0, 0): 3 * d * (d + 2)})
    return np.asarray(M / np.array([1, 6 * comb(d + 2, 3), 24 * comb(d + 3, 4)])[:, None, None, None])


def _second(d: int) -> Floats:
    """Coefficients of degree two (5, 3, 3)."""
    M = np.zeros((5, 3, 3))
    M[2, 0, 0] = 1
    M[0] = _symmetric({(0, 1): -1, (0, 0): d})
    return M / (d * (d + 1))


def _symmetric(entries: dict[tuple[int, int], float]) -> Floats:
    M = np.zeros((3, 3))
    for (i, j), value in entries.items():
        M[i, j] = M[j, i] = value
    return M
