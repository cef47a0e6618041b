r"""The kernel of the residual: smooth functions of one, of two, and of all coordinates together."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Kernel", "squared_distances"]

Floats = NDArray[np.float64]


class Kernel(NamedTuple):
    r"""A bounded kernel with unit variance, the sum of three parts.

    With :math:`k_i = \exp(-(x_i - y_i)^2 d / 2 l^2)` they are

    - the mean of all :math:`k_i`: functions of one coordinate, added up,
    - the mean of all :math:`k_i k_j`: functions of two coordinates, added up,
    - :math:`\exp(-|x - y|^2 / 2 l^2)`: functions of all coordinates.

    For a coordinate that stands for a whole number, :math:`\exp(-r^2 / 2)` of the difference r in
    lengths is mixed with :math:`\exp(-|r| / c)`. The latter is the kernel of rough functions, such
    as the log-likelihood of a change after each of many years, which is a sum of noisy terms.

    A log density is often nearly a sum of functions of few coordinates, and such functions take far
    fewer points to learn. Far away from all points the kernel is zero. Polynomials would grow there
    and, as a density, diverge.

    Examples
    --------
    >>> import numpy as np
    >>> k = Kernel(length=2.0, one=0.2, two=0.3)
    >>> k(np.zeros((1, 3)), np.zeros((1, 3)))
    array([[1.]])
    """

    length: float
    one: float  # share of the functions of one coordinate
    two: float  # share of the functions of two coordinates
    wholes: tuple[int, ...] = ()  # coordinates that stand for whole numbers
    rough: float = 0.0  # share of rough functions of a whole number
    reach: float = 1.0  # length of these functions, relative to that of others

    def __call__(self, a: Floats, b: Floats) -> Floats:
        """Covariance between points a (n, d) and b (m, d): (n, m)."""
        d = a.shape[1]
        joint = self._joint(a, b)
        if d == 1:
            return joint
        one, squares = self._of_one(a, b, self.length / math.sqrt(d))
        if d == 2:  # two coordinates are all coordinates
            return np.asarray((1 - self.one) * joint + self.one / d * one)
        two = (one * one - squares) / (d * (d - 1))
        return np.asarray((1 - self.one - self.two) * joint + self.one / d * one + self.two * two)

    def _joint(self, a: Floats, b: Floats) -> Floats:
        """The kernel of all coordinates: (n, m)."""
        smooth = [i for i in range(a.shape[1]) if i not in self.wholes]
        joint = np.exp(-0.5 / self.length**2 * squared_distances(a[:, smooth], b[:, smooth]))
        for i in self.wholes:
            joint *= self._of_whole(a[:, i] / self.length, b[:, i] / self.length)
        return joint

    def _of_one(self, a: Floats, b: Floats, length: float) -> tuple[Floats, Floats]:
        """Sums over coordinates of the kernels of one coordinate, and of their squares: (n, m)."""
        total, squares = np.zeros((len(a), len(b))), np.zeros((len(a), len(b)))
        for i, (x, y) in enumerate(zip(a.T / length, b.T / length, strict=True)):
            one = self._of_whole(x, y) if i in self.wholes else _smooth(np.subtract.outer(x, y))
            total += one
            one *= one
            squares += one
        return total, squares

    def _of_whole(self, x: Floats, y: Floats) -> Floats:
        """The kernel of a whole number between x (n,) and y (m,) in lengths: (n, m).

        Few values are different, so it is computed once for each pair of them.
        """
        (x, of_x), (y, of_y) = (np.unique(values, return_inverse=True) for values in (x, y))
        r = np.subtract.outer(x, y)
        rough = self.rough * np.exp(np.abs(r) / -self.reach)
        table = (1 - self.rough) * _smooth(r) + rough
        return np.asarray(table[:, of_y][of_x])


def _smooth(r: Floats) -> Floats:
    """The kernel of one coordinate for differences r (n, m) in lengths: overwrites r."""
    r *= r
    r *= -0.5
    return np.exp(r, out=r)


def squared_distances(a: Floats, b: Floats) -> Floats:
    """Squared distances between points a (n, d) and b (m, d): (n, m)."""
    squares = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1)[None, :] - 2 * (a @ b.T)
    return np.asarray(np.maximum(squares, 0.0, out=squares))
