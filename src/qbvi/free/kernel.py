r"""The kernel of the residual: smooth functions of one, of two, and of all coordinates together.

Exponentials take most of the time of a surrogate. Those of one coordinate are products of matrices
instead, which take a third of it: for points x and y, in units of the length,

.. math:: e^{-(x - y)^2 / 2} = \sqrt{2 / \pi} \int e^{-(x - t)^2} e^{-(y - t)^2} dt

and the trapezoidal rule with steps of h has an error of :math:`2 e^{-\pi^2 / 2 h^2}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Kernel", "squared_distances"]

Floats = NDArray[np.float64]

_STEP = 0.45  # of the trapezoidal rule: an error below 1e-10 ...
_MARGIN = 11  # ... as is the integrand so many steps from a point
_FEW = 150  # points, below which exponentials take less time, ...
_WIDEST = 8.0  # ... as for points so many lengths from the median: they would need many nodes


class Kernel(NamedTuple):
    r"""A bounded kernel with unit variance, the sum of three parts.

    With :math:`k_i = \exp(-(x_i - y_i)^2 d / 2 l^2)` they are

    - the mean of all :math:`k_i`: functions of one coordinate, added up,
    - the mean of all :math:`k_i k_j`: functions of two coordinates, added up,
    - :math:`\exp(-|x - y|^2 / 2 l^2)`: functions of all coordinates.

    For a coordinate that stands for a whole number, or along which the log joint jumps,
    :math:`\exp(-r^2 / 2)` of the difference r in lengths is mixed with :math:`\exp(-|r| / c)`. The
    latter is the kernel of rough functions, such as the log-likelihood of a change after each of
    many years, which is a sum of noisy terms.

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
    roughened: tuple[int, ...] = ()  # coordinates of which the function may be rough
    rough: float = 0.0  # share of rough functions of these
    reach: float = 1.0  # length of these functions, relative to that of others

    def __call__(self, a: Floats, b: Floats) -> Floats:
        """Covariance between points a (n, d) and b (m, d): (n, m)."""
        return self.against(b)(a)

    def against(self, b: Floats) -> Callable[[Floats], Floats]:
        """The covariance of any points (n, d) with points b (m, d), as a function."""
        d = b.shape[1]
        if d == 1:
            return lambda a: self._joint(a, b)
        smooth = [i for i in range(d) if i not in self.roughened]
        length = self.length / math.sqrt(d)
        if d == 2:  # two coordinates are all coordinates
            one = _kernels_of_one(b[:, smooth], length)
            return lambda a: self._added(a, b, one(a[:, smooth]), None)
        both = _with_squares(b[:, smooth], length)
        return lambda a: self._added(a, b, *both(a[:, smooth]))

    def _added(self, a: Floats, b: Floats, one: Floats, squares: Floats | None) -> Floats:
        """The sum of all parts, given those of the smooth coordinates; overwrites them."""
        d, length = a.shape[1], self.length / math.sqrt(a.shape[1])
        for i in self.roughened:
            one_rough = self._of_rough(a[:, i] / length, b[:, i] / length)
            one += one_rough
            if squares is not None:
                squares += one_rough * one_rough
        total = self._joint(a, b)
        total *= 1 - self.one - (0.0 if squares is None else self.two)
        if squares is not None:
            np.subtract(one * one, squares, out=squares)
            squares *= self.two / (d * (d - 1))
            total += squares
        one *= self.one / d
        total += one
        return total

    def _joint(self, a: Floats, b: Floats) -> Floats:
        """The kernel of all coordinates: (n, m)."""
        smooth = [i for i in range(a.shape[1]) if i not in self.roughened]
        joint = squared_distances(a[:, smooth], b[:, smooth])
        joint *= -0.5 / self.length**2
        np.exp(joint, out=joint)
        for i in self.roughened:
            joint *= self._of_rough(a[:, i] / self.length, b[:, i] / self.length)
        return joint

    def _of_rough(self, x: Floats, y: Floats) -> Floats:
        """The kernel of such a coordinate between x (n,) and y (m,) in lengths: (n, m).

        Few values of a whole number are different, so it is computed once for each pair of them.
        """
        (x, of_x), (y, of_y) = (np.unique(values, return_inverse=True) for values in (x, y))
        r = np.subtract.outer(x, y)
        rough = self.rough * np.exp(np.abs(r) / -self.reach)
        table = (1 - self.rough) * _smooth(r) + rough
        return np.asarray(table[:, of_y][of_x])


def _kernels_of_one(b: Floats, length: float) -> Callable[[Floats], Floats]:
    """The sum over coordinates of the kernels of one, with points b (m, k)."""
    return _by_trapezoids(b, length) if len(b) >= _FEW else lambda a: _added_up(a / length, b / length)[0]


def _with_squares(b: Floats, length: float) -> Callable[[Floats], tuple[Floats, Floats]]:
    """That sum, and the sum of the squares, which are kernels of another length."""
    if len(b) < _FEW:
        return lambda a: _added_up(a / length, b / length)
    one, squares = (_by_trapezoids(b, each) for each in (length, length / math.sqrt(2)))
    return lambda a: (one(a), squares(a))


def _added_up(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Both sums for points in lengths, one coordinate after the other: (n, m) each."""
    total, squares = np.zeros((len(a), len(b))), np.zeros((len(a), len(b)))
    for x, y in zip(a.T, b.T, strict=True):
        one = _smooth(np.subtract.outer(x, y))
        total += one
        one *= one
        squares += one
    return total, squares


def _by_trapezoids(b: Floats, length: float) -> Callable[[Floats], Floats]:
    """The sum of the kernels by the trapezoidal rule, except for a few points far out."""
    b, k = b / length, b.shape[1]
    is_far = np.abs(b - np.median(b, axis=0)) > _WIDEST
    around = np.arange(-_MARGIN, _MARGIN + 1)
    steps = [np.unique(np.round(b[~is_far[:, i], i] / _STEP)) for i in range(k)]
    nodes = [_STEP * np.unique(np.add.outer(some, around)) for some in steps]
    of = np.repeat(np.arange(k), [len(part) for part in nodes])
    t = np.concatenate([*nodes, np.empty(0)])
    at_b = _bumps(b[:, of] - t) * ~is_far[:, of]
    far = [(i, np.flatnonzero(is_far[:, i])) for i in np.flatnonzero(is_far.any(axis=0))]

    def summed(a: Floats) -> Floats:
        a = a / length
        total = _bumps(a[:, of] - t) @ at_b.T
        for i, rows in far:
            total[:, rows] += _smooth(np.subtract.outer(a[:, i], b[rows, i]))
        return np.asarray(total)

    return summed


def _bumps(r: Floats) -> Floats:
    """Terms of the trapezoidal rule for differences r (n, m) in lengths: overwrites r."""
    r *= r
    np.negative(r, out=r)
    np.exp(r, out=r)
    r *= math.sqrt(_STEP * math.sqrt(2 / math.pi))
    return r


def _smooth(r: Floats) -> Floats:
    """The kernel of one coordinate for differences r (n, m) in lengths: overwrites r."""
    r *= r
    r *= -0.5
    return np.exp(r, out=r)


def squared_distances(a: Floats, b: Floats) -> Floats:
    """Squared distances between points a (n, d) and b (m, d): (n, m)."""
    squares, products = np.add.outer(np.sum(a**2, axis=1), np.sum(b**2, axis=1)), a @ b.T
    products *= 2
    squares -= products
    return np.asarray(np.maximum(squares, 0.0, out=squares))
