r"""Weighted ridge regression on quadratics of low rank plus a diagonal, in O(n d p).

.. math::

    h = a + b'z + \tfrac12 \sum_j g_j (z_j^2 - 1)
        + \sum_k \left((B_k'z)(W_k'z) - B_k'W_k\right) + \text{noise}

Here z are whitened points and B (d, p) are p orthonormal directions. For given B the model is
linear in all other numbers, of which there are d (p + 2) + 1, not d (d + 3) / 2. So it takes
evaluations in proportion to d, not to its square.

A diagonal in the units of the parameters is none in whitened coordinates, but the difference is a
sum of terms :math:`(U_k'z)(\cdot'z)` with the directions U of q. B contains them. So the model has
all changes of q within its family, and new directions beside.

B is found by turns, each of which regresses what the turns before have left. The first are the
directions of q, and the leading eigenvectors of the residuals' mean of :math:`e (zz' - I)`. The
next are the leading eigenvectors of the solution, which has twice as many directions. This is
alternating least squares for the recovery of a matrix of low rank.

One product with the design or its adjoint is a product of the points with p vectors. A Krylov space
of such products (Lanczos) contains the solutions for all ridges, as in `qbvi.regression.krylov`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from qbvi.arrays import Array, array_namespace, device, repeat
from qbvi.families.low_rank import Form, Spikes

__all__ = ["Directions", "Sample", "Solution", "bounded_precision", "in_scales", "regress"]

_SQRT2 = math.sqrt(2)
_EXHAUSTED = 100.0  # machine epsilons below which a new direction of the Krylov space is rounding
_SWEEPS = 2  # orthogonalisations of a new direction: "twice is enough" (Kahan)
_POWERS = 2  # products of the residuals' matrix with the directions that are sought


class Directions(NamedTuple):
    """How many directions are sought, and how."""

    number: int  # p
    krylov: int  # dimensions of the Krylov space
    turns: int  # regressions with better and better directions
    supported: Array  # () directions that the number of points supports
    known: Array  # (d, p) those of the last regression; zero if there was none


class Sample(NamedTuple):
    """Points of a regression."""

    z: Array  # (n, d) whitened
    h: Array  # (n,) residuals
    weight: Array  # (n,) zero for points that do not take part
    is_held_out: Array  # (n,) points that choose the ridge instead


class Solution(NamedTuple):
    """The quadratic function that was found, in whitened coordinates: ``b'z + z'Cz / 2``."""

    b: Array  # (d,)
    C: Form
    unexplained: Array  # () mean squared error at the points held out
    ridge: Array  # () relative to the sum of the weights
    leading: Array  # (d, p) directions of C beside those of q, the first to try next time


def regress(sample: Sample, spikes: Spikes, ridges: Array, directions: Directions) -> Solution:
    """Regress residuals at the points of a q with these spikes; the best of the ridges is taken.

    Examples
    --------
    A quadratic of one direction and no noise:

    >>> import numpy as np
    >>> z = np.random.default_rng(1).standard_normal((400, 20))
    >>> u = np.full(20, 20**-0.5)
    >>> sample = Sample(z, 3 * z[:, 0] + (z @ u) ** 2, np.ones(400), np.arange(400) > 300)
    >>> spikes = Spikes(np.ones(20), np.eye(20, 1), np.ones(1))
    >>> directions = Directions(2, 60, 4, np.array(2), np.zeros((20, 2)))
    >>> found = regress(sample, spikes, np.array([1e-8]), directions)
    >>> bool(np.allclose(u @ found.C.apply(np.eye(20)) @ u, 2.0, atol=0.01))
    True
    """
    xp = array_namespace(sample.z)
    design = _Design.of(sample)
    radial, residuals = design.radial(sample.h)
    is_known = xp.any(directions.known != 0)
    first = xp.where(is_known, directions.known, _steepest(design, residuals, directions.number))
    B = _basis(spikes, first, directions.number)
    is_supported = xp.astype(xp.arange(directions.number, device=device(B)) < directions.supported, B.dtype)
    b = xp.zeros_like(design.z[0, :])
    C = Form(b + radial, B[:, :0], B[0, :0])
    for _ in range(directions.turns):
        found = _solved(design.towards(B * is_supported), residuals, ridges, directions.krylov)
        b, C, residuals = b + found.b, C.plus(found.C), residuals - found.values
        leading = _leading(spikes, C, directions.number)
        B = _basis(spikes, leading, directions.number)
    return Solution(b, C, found.unexplained, found.ridge, leading)


def bounded_precision(C: Form, share: Array, smallest: Array, noise: Array) -> Spikes:
    """The precision ``I - share C`` in whitened coordinates, with bounds that keep it definite.

    Diagonal and eigenvalues are at least ``smallest``. Eigenvalues of the part of C with low rank
    that are below ``noise`` are left out.
    """
    xp = array_namespace(C.t)
    floor = smallest * xp.ones_like(C.t)
    s = xp.maximum(1 - share * C.t, floor) ** -0.5
    U, change = Form(C.t, C.K * s[:, None], -share * C.w).compressed()
    is_noise = xp.abs(change) < noise * share * xp.mean(s**2)
    change = xp.where(is_noise, xp.zeros_like(change), change)
    return Spikes(s, U, xp.maximum(1 + change, smallest * xp.ones_like(change)))


def in_scales(form: Form, spikes: Spikes) -> Form:
    """A form of whitened coordinates as one of coordinates in units of the scales of q."""
    xp = array_namespace(form.t)
    # A diagonal between two roots is that diagonal, plus a few directions.
    A = spikes.U * (spikes.lam**0.5 - 1)
    tU = form.t[:, None] * spikes.U
    H = tU + 0.5 * A @ (spikes.U.T @ tU)
    ones = xp.ones_like(spikes.lam)
    diagonal = Form(form.t, xp.concat([A + H, A - H], axis=1), 0.5 * xp.concat([ones, -ones]))
    return diagonal.plus(Form(xp.zeros_like(form.t), spikes.power(form.K.T, 0.5).T, form.w))


class _Design(NamedTuple):
    """The linear map from coefficients to values, and its adjoint."""

    z: Array  # (n, d)
    squares: Array  # (n, d) with mean zero and variance one
    weight: Array  # (n,) of the points that take part
    is_held_out: Array  # (n,)
    B: Array  # (d, p)
    along: Array  # (n, p) coordinates along B

    @classmethod
    def of(cls, sample: Sample) -> _Design:
        """The design without directions."""
        xp, z = array_namespace(sample.z), sample.z
        seen = xp.where(sample.is_held_out, xp.zeros_like(sample.weight), sample.weight)
        return cls(z, (z**2 - 1) / _SQRT2, seen, sample.is_held_out, z[:0, :].T, z[:, :0])

    def towards(self, B: Array) -> _Design:
        """The design with these directions."""
        return self._replace(B=B, along=self.z @ B)

    def radial(self, h: Array) -> tuple[Array, Array]:
        """Coefficient of ``|z|^2 / 2``, and the residuals without this term and their mean."""
        xp = array_namespace(h)
        length, total = xp.sum(self.z**2, axis=1), xp.sum(self.weight)
        centred = length - xp.sum(self.weight * length) / total
        square = xp.sum(self.weight * centred**2)
        slope = xp.sum(self.weight * centred * h) / xp.maximum(square, xp.ones_like(square) * _tiny(h))
        rest = h - slope * length
        return 2 * slope, rest - xp.sum(self.weight * rest) / total

    def __call__(self, v: Array) -> Array:
        """Values (n,) of the coefficients."""
        xp, d = array_namespace(v), self.z.shape[1]
        W = xp.reshape(v[1 + 2 * d :], self.B.shape)
        # One product for linear part and directions: reading the points takes most of the time.
        seen = self.z @ xp.concat([W, v[1 : 1 + d, None]], axis=1)
        bent = xp.sum(self.along * seen[:, :-1], axis=1) - xp.sum(self.B * W)
        return v[0] + seen[:, -1] + self.squares @ v[1 + d : 1 + 2 * d] + bent

    def adjoint(self, e: Array) -> Array:
        """The adjoint map, of values (n,)."""
        xp = array_namespace(e)
        total = xp.sum(e)
        seen = self.z.T @ xp.concat([e[:, None] * self.along, e[:, None]], axis=1)
        W = seen[:, :-1] - total * self.B
        return xp.concat([xp.reshape(total, (1,)), seen[:, -1], e @ self.squares, xp.reshape(W, (-1,))])

    def opened(self, v: Array) -> tuple[Array, Form]:
        """The linear part, and the matrix C."""
        xp, d = array_namespace(v), self.z.shape[1]
        W = xp.reshape(v[1 + 2 * d :], self.B.shape)
        ones = xp.ones_like(self.B[0, :])
        pairs = xp.concat([self.B + W, self.B - W], axis=1)
        C = Form(_SQRT2 * v[1 + d : 1 + 2 * d], pairs, 0.5 * xp.concat([ones, -ones]))
        return v[1 : 1 + d], C


def _basis(spikes: Spikes, more: Array, count: int) -> Array:
    """Orthonormal directions: those that q uses, then more of them, then those q does not use."""
    xp = array_namespace(more)
    ones = xp.ones_like(spikes.lam)
    place = xp.concat([xp.where(spikes.lam == 1, ones, -ones), xp.zeros_like(more[0, :])])
    both = xp.take(xp.concat([spikes.U, more], axis=1), xp.argsort(place, stable=True), axis=1)
    return xp.linalg.qr(both[:, :count])[0]


def _steepest(design: _Design, residuals: Array, count: int) -> Array:
    """Leading directions of the residuals' mean of ``e (zz' - I)``, by the power method."""
    xp = array_namespace(residuals)
    total = xp.sum(design.weight)
    e = design.weight * residuals
    odd, even = e @ design.z / total, e @ design.squares / total
    e = e - design.weight * (design.z @ odd + design.squares @ even)
    Y = _spread(design.z.shape[1], count, residuals)
    for _ in range(_POWERS):
        Y = xp.linalg.qr(design.z.T @ (e[:, None] * (design.z @ Y)) - xp.sum(e) * Y)[0]
    return Y


def _spread(d: int, count: int, like: Array) -> Array:
    """Vectors (d, count) without structure, the same in every fit: cosines of squares."""
    xp = array_namespace(like)
    i = xp.arange(1, d + 1, dtype=like.dtype, device=device(like))[:, None]
    k = xp.arange(1, count + 1, dtype=like.dtype, device=device(like))
    return xp.cos(i**2 * (k + 0.5) * math.sqrt(0.5) + i * k)


def _leading(spikes: Spikes, C: Form, count: int) -> Array:
    """Leading eigenvectors of the part of C beside the directions that q uses."""
    xp = array_namespace(C.t)
    used = spikes.U * xp.astype(spikes.lam != 1, C.t.dtype)
    beside = Form(C.t, C.K - used @ (used.T @ C.K), C.w)
    vectors, values = beside.compressed()
    return xp.take(vectors, xp.argsort(-xp.abs(values))[:count], axis=1)


class _Turn(NamedTuple):
    """One regression."""

    b: Array  # (d,)
    C: Form
    values: Array  # (n,) at all points
    unexplained: Array  # () mean squared error at the points held out
    ridge: Array  # () the best one


def _solved(design: _Design, h: Array, ridges: Array, m: int) -> _Turn:
    """The solution with the ridge that best predicts the points held out."""
    xp = array_namespace(h)
    basis, values, tridiagonal, norm = _krylov(design, h, m)
    eye = xp.eye(m, dtype=h.dtype, device=device(h))
    ridged = tridiagonal + (xp.sum(design.weight) * ridges)[:, None, None] * eye
    right = xp.broadcast_to(norm * eye[:, :1], (ridges.shape[0], m, 1))
    coefficients = xp.linalg.solve(ridged, right)[:, :, 0]
    held_out = xp.astype(design.is_held_out, h.dtype)
    errors = (coefficients @ values - h) ** 2 @ held_out / xp.sum(held_out)
    errors = xp.where(xp.isnan(errors), xp.ones_like(errors) * math.inf, errors)
    best = xp.reshape(xp.argmin(errors), (1,))
    chosen = xp.take(coefficients, best, axis=0)
    b, C = design.opened((chosen @ basis)[0, :])
    return _Turn(b, C, (chosen @ values)[0, :], xp.take(errors, best)[0], xp.take(ridges, best)[0])


def _krylov(design: _Design, h: Array, m: int) -> tuple[Array, Array, Array, Array]:
    """Orthonormal coefficients (m, k), their values (m, n), the tridiagonal matrix, the norm."""
    xp = array_namespace(h)
    right = design.adjoint(design.weight * h)
    norm = xp.linalg.vector_norm(right)
    start = right / xp.maximum(norm, xp.ones_like(norm) * _tiny(h))
    numbers = xp.arange(m, device=device(h))

    def extend(i: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        basis, values, alpha, beta, v = state
        here = xp.astype(numbers == i, h.dtype)
        seen = design(v)
        basis, values = basis + here[:, None] * v, values + here[:, None] * seen
        u = design.adjoint(design.weight * seen)
        diagonal = xp.sum(u * v)
        for _ in range(_SWEEPS):
            u = u - (basis @ u) @ basis
        off = xp.linalg.vector_norm(u)
        goes_on = off > _EXHAUSTED * xp.finfo(h.dtype).eps * xp.abs(diagonal)
        off = xp.where(goes_on, off, xp.zeros_like(off))
        u = xp.where(goes_on, u, xp.zeros_like(u)) / xp.where(goes_on, off, xp.ones_like(off))
        return basis, values, alpha + here * diagonal, beta + here * off, u

    zeros = xp.zeros((m, right.shape[0] + h.shape[0]), dtype=h.dtype, device=device(h))
    empty = zeros[:, : right.shape[0]], zeros[:, right.shape[0] :], zeros[:, 0], zeros[:, 0]
    basis, values, alpha, beta, _ = repeat(m, extend, (*empty, start))
    eye = xp.eye(m, dtype=h.dtype, device=device(h))
    above = beta[:, None] * xp.eye(m, k=1, dtype=h.dtype, device=device(h))
    return basis, values, alpha * eye + above + above.T, norm


def _tiny(like: Array) -> float:
    return float(array_namespace(like).finfo(like.dtype).smallest_normal)
