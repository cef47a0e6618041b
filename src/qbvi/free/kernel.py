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

__all__ = ["Kernel", "Symmetric", "squared_distances"]

Floats = NDArray[np.float64]

_STEP = 0.45  # of the trapezoidal rule: an error below 1e-10 ...
_MARGIN = 11  # ... as is the integrand so many steps from a point
_BLOCK = 2**22  # most covariances with images of points that are computed at a time
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
            return lambda a: self.joint(a, b)
        smooth = [i for i in range(d) if i not in self.roughened]
        length = self.length / math.sqrt(d)
        if d == 2:  # two coordinates are all coordinates
            one = _kernels_of_one(b[:, smooth], length)
            return lambda a: self._added(a, b, one(a[:, smooth]), None)
        both = _with_squares(b[:, smooth], length)
        return lambda a: self._added(a, b, *both(a[:, smooth]))

    def pairwise(self, a: Floats, b: Floats) -> Floats:
        """Covariance of each point a (n, d) with that of the same row of b (n, d): (n,).

        No function is rough.
        """
        d, squares = a.shape[1], (a - b) ** 2
        joint = np.exp(np.sum(squares, axis=1) / (-2 * self.length**2))
        if d == 1:
            return np.asarray(joint)
        k = np.exp(squares * (d / (-2 * self.length**2)))
        one = k.sum(axis=1)
        both = (one**2 - np.sum(k**2, axis=1)) / (d * (d - 1)) if d > 2 else joint
        return np.asarray((1 - self.one - self.two) * joint + self.one / d * one + self.two * both)

    def variances(self, a: Floats) -> Floats:
        """Variance at each point (n, d): (n,)."""
        return np.ones(len(a))

    def _added(self, a: Floats, b: Floats, one: Floats, squares: Floats | None) -> Floats:
        """The sum of all parts, given those of the smooth coordinates; overwrites them."""
        d, length = a.shape[1], self.length / math.sqrt(a.shape[1])
        for i in self.roughened:
            one_rough = self._of_rough(a[:, i] / length, b[:, i] / length)
            one += one_rough
            if squares is not None:
                squares += one_rough * one_rough
        total = self.joint(a, b)
        total *= 1 - self.one - (0.0 if squares is None else self.two)
        if squares is not None:
            np.subtract(one * one, squares, out=squares)
            squares *= self.two / (d * (d - 1))
            total += squares
        one *= self.one / d
        total += one
        return total

    def joint(self, a: Floats, b: Floats) -> Floats:
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


class Symmetric(NamedTuple):
    r"""The kernel of functions that have the same value at all images of a point.

    If f has kernel k, the sum of f over all images of a point has

    .. math:: \sum_{g, h} k(g x, h y) = m \sum_g k(x, g y)

    with m maps g, which form a group. The second form needs a k that is the same if both points are
    mapped: here it is, since the maps exchange entries and change their signs. Observing f at x is
    then observing it at all images, which need no points of their own.
    """

    kernel: Kernel
    images: Callable[[Floats], Floats]  # all images of points (n, d): (m, n, d)

    def __call__(self, a: Floats, b: Floats) -> Floats:
        """Covariance between points a (n, d) and b (m, d): (n, m)."""
        return self.against(b)(a)

    def against(self, b: Floats) -> Callable[[Floats], Floats]:
        """The covariance of any points (n, d) with points b (m, d), as a function."""
        one = self._against(b)
        rows = max(1, _BLOCK // max(len(self.images(b)) * len(b), 1))
        return lambda a: np.concatenate([one(a[i : i + rows]) for i in range(0, max(len(a), 1), rows)])

    def _against(self, b: Floats) -> Callable[[Floats], Floats]:
        """That function, for a few points at a time."""
        images = self.images(b)
        m, n, d = images.shape
        k, all_b = self.kernel, images.reshape(-1, d)
        if d < 3 or len(all_b) < _FEW:
            one = k.against(all_b)
            return lambda a: np.asarray(one(a).reshape(len(a), m, n).sum(axis=1))
        length = k.length / math.sqrt(d)
        of_one, squares = _by_trapezoids(all_b, length), _by_trapezoids(all_b, length / math.sqrt(2), m)

        def covariance(a: Floats) -> Floats:
            """The sum of all parts; the squares of a point's images are added up first."""
            total, one = k.joint(a, all_b), of_one(a)
            total *= 1 - k.one - k.two
            total += (k.one / d) * one
            one *= one
            one *= k.two / (d * (d - 1))
            total += one
            return np.asarray(total.reshape(len(a), m, n).sum(axis=1) - k.two / (d * (d - 1)) * squares(a))

        return covariance

    def variances(self, a: Floats) -> Floats:
        """Variance at each point (n, d): one where all its images are far, up to their number."""
        return np.asarray(sum(self.kernel.pairwise(a, image) for image in self.images(a)))


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


def _by_trapezoids(b: Floats, length: float, m: int = 1) -> Callable[[Floats], Floats]:
    """The sum of the kernels by the trapezoidal rule, except for a few points far out.

    If the points are m images of others, one after the other, it is also the sum over the images.
    """
    b, k = b / length, b.shape[1]
    is_far = np.abs(b - np.median(b, axis=0)) > _WIDEST
    around = np.arange(-_MARGIN, _MARGIN + 1)
    steps = [np.unique(np.round(b[~is_far[:, i], i] / _STEP)) for i in range(k)]
    nodes = [_STEP * np.unique(np.add.outer(some, around)) for some in steps]
    of = np.repeat(np.arange(k), [len(part) for part in nodes])
    t = np.concatenate([*nodes, np.empty(0)])
    at_b = _bumps(b[:, of] - t) * ~is_far[:, of]
    n = len(b) // m
    at_b = at_b if m == 1 else at_b.reshape(m, n, -1).sum(axis=0)
    far = [(i, np.flatnonzero(is_far[:, i])) for i in np.flatnonzero(is_far.any(axis=0))]
    far = [(i, rows[np.argsort(rows % n, kind="stable")]) for i, rows in far]
    ends = [np.unique(rows % n, return_index=True) for _, rows in far]

    def summed(a: Floats) -> Floats:
        a = a / length
        total = _bumps(a[:, of] - t) @ at_b.T
        for (i, rows), (to, begin) in zip(far, ends, strict=True):
            exact = _smooth(np.subtract.outer(a[:, i], b[rows, i]))
            # Several images of a point may be far out.
            total[:, to] += exact if len(to) == len(rows) else np.add.reduceat(exact, begin, axis=1)
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
