r"""Gaussian posteriors whose covariance is a diagonal plus a matrix of low rank.

A member has a scale s for each coordinate and r orthonormal directions U with precisions
:math:`\lambda`, in units of these scales:

.. math::

    S^{-1} = \tfrac1s \left(I + U (\lambda - 1) U'\right) \tfrac1s, \qquad
    S = s \left(I + U (1/\lambda - 1) U'\right) s

So both covariance and precision are a diagonal plus a matrix of rank r. A direction with
:math:`\lambda < 1` is wide, as in factor analysis, where a few common factors add variance. A
direction with :math:`\lambda > 1` is narrow: the data determine a few combinations of the
parameters, and the prior the others. The family contains both. A direction with
:math:`\lambda = 1` is not used, so every member of lower rank is a member too.

The symmetric root :math:`s (I + U (\lambda^{-1/2} - 1) U')` maps standard normals to draws. A draw,
a density and an inverse cost O(d r).

The members are no exponential family, but a curved subset of one: the Gaussians with full
covariance. Natural and mean parameters, statistics and features are those of the full Gaussian. A
step along its natural gradient leaves the subset, and `nearest` leads back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from qbvi.arguments import whole_number
from qbvi.arrays import Array, array_namespace, device, repeat
from qbvi.families.base import Curve
from qbvi.families.gaussian import Gaussian
from qbvi.families.one_gaussian import OneGaussian

__all__ = ["Form", "LowRankGaussian", "Spikes", "best_directions", "nearest", "worth"]

_SWEEPS = 60  # alternations of directions and scales for a dense covariance
_SMALLEST = 1e-12  # least precision of a direction, relative to the scales: a member stays regular
_TIE = 1e-6  # twice the nats by which another start must be better: rounding does not decide
_MOST_CHANGE = 4.0  # factor of a variance within one sweep
_SMALL_SQUARE = 1e-6  # variance of a combination of squares that changes q along its directions alone


class Spikes(NamedTuple):
    """A positive definite matrix, ``(I + U (lam - 1) U')`` between two diagonals ``1 / s``."""

    s: Array  # (d,)
    U: Array  # (d, r) orthonormal columns
    lam: Array  # (r,)

    def power(self, z: Array, power: float) -> Array:
        """Multiply rows (n, d) by a power of the matrix between the diagonals."""
        return z + ((z @ self.U) * (self.lam**power - 1)) @ self.U.T

    @property
    def form(self) -> Form:
        """The matrix."""
        return Form(self.s**-2, self.U / self.s[:, None], self.lam - 1)

    @property
    def inverse_diagonal(self) -> Array:
        """Diagonal of the inverse (d,): the variances."""
        xp = array_namespace(self.s)
        return self.s**2 * (1 + xp.sum(self.U**2 * (1 / self.lam - 1), axis=1))

    def solve(self, v: Array) -> Array:
        """Multiply rows (n, d) by the inverse."""
        return self.power(v * self.s, -1.0) * self.s

    def log_det(self) -> Array:
        """Log-determinant."""
        xp = array_namespace(self.s)
        return xp.sum(xp.log(self.lam)) - 2 * xp.sum(xp.log(self.s))


class Form(NamedTuple):
    """A symmetric matrix ``diag(t) + K diag(w) K'``."""

    t: Array  # (d,)
    K: Array  # (d, m)
    w: Array  # (m,)

    @property
    def diagonal(self) -> Array:
        """Its diagonal (d,)."""
        return self.t + array_namespace(self.t).sum(self.K**2 * self.w, axis=1)

    def apply(self, v: Array) -> Array:
        """Multiply rows (n, d)."""
        return v * self.t + ((v @ self.K) * self.w) @ self.K.T

    def between(self, s: Array) -> Form:
        """The matrix between two diagonals s."""
        return Form(self.t * s**2, self.K * s[:, None], self.w)

    def plus(self, other: Form) -> Form:
        """The sum."""
        xp = array_namespace(self.t)
        return Form(self.t + other.t, xp.concat([self.K, other.K], axis=1), xp.concat([self.w, other.w]))

    def times(self, factor: Array) -> Form:
        """A multiple."""
        return Form(self.t * factor, self.K, self.w * factor)

    def compressed(self) -> tuple[Array, Array]:
        """Eigenvectors (d, k), k at most m, and eigenvalues (k,) of the part of low rank."""
        xp = array_namespace(self.t)
        Q, R = xp.linalg.qr(self.K)
        middle = (R * self.w) @ R.T
        values, vectors = xp.linalg.eigh(0.5 * (middle + middle.T))
        return Q @ vectors, values

    @property
    def square(self) -> Array:
        """Sum of its squared entries."""
        xp = array_namespace(self.t)
        inner = self.K.T @ self.K
        few = xp.sum((inner * self.w) * (inner * self.w).T)
        return xp.sum(self.t * (2 * self.diagonal - self.t)) + few

    def trace_with(self, spikes: Spikes) -> Array:
        """Trace of the product with the inverse of ``spikes``."""
        return array_namespace(self.t).sum(self._diagonal_with(spikes))

    def _diagonal_with(self, spikes: Spikes) -> Array:
        """Diagonal (d,) of the product of the inverse of ``spikes`` with this matrix."""
        xp = array_namespace(self.t)
        return spikes.inverse_diagonal * self.t + xp.sum(spikes.solve(self.K.T).T * self.K * self.w, axis=1)


def worth(precision: Array) -> Array:
    r"""Nats that a direction of this precision is worth: :math:`(\lambda - 1 - \log\lambda) / 2`.

    It is KL(q || p) for a Gaussian p with this precision along the direction and a q without it.
    """
    return 0.5 * (precision - 1 - array_namespace(precision).log(precision))


def nearest(
    form: Form, rank: int, s: Array | None = None, smallest: Array | float = _SMALLEST, sweeps: int = 3
) -> Spikes:
    r"""The precision of the family that is nearest to T = ``form``, by KL(q || N(., T^-1)).

    For given scales s, the best directions are eigenvectors of :math:`sTs`, with its eigenvalues m
    as precisions. Of these the family takes the r that are worth most nats,
    :math:`(m - 1 - \log m) / 2` each. For given directions, the gradient by log s vanishes if

    .. math:: (S T)_{ii} = 1 \quad\text{for all } i.

    The two conditions are met by turns, from several starts, of which the best end is returned. One
    is :math:`s = t^{-1/2}`. If the part of low rank has at most r directions, its first turn is
    exact. Another is :math:`s = T_{ii}^{-1/2}`. It avoids directions along an axis, which belong
    into the diagonal. The last is the given ``s``, if any: the scales of a member nearby.
    Eigenvectors are sought in the span of ``sK``, so a sweep costs O(d m^2).

    Examples
    --------
    >>> import numpy as np
    >>> form = Form(np.array([4.0, 1.0, 1.0]), np.array([[2.0], [1.0], [0.0]]), np.array([3.0]))
    >>> found = nearest(form, rank=1)
    >>> found.s, found.lam.round(6)
    (array([0.5, 1. , 1. ]), array([7.]))
    """
    xp = array_namespace(form.t)
    total = xp.where(form.diagonal > 0, form.diagonal, form.t)
    starts = [form.t**-0.5, total**-0.5] + ([] if s is None else [s])
    best, *others = (_alternated(form, start, rank, smallest, sweeps) for start in starts)
    for other in others:
        is_better = _distance(form, other) < _distance(form, best) - _TIE
        best = Spikes(*(xp.where(is_better, new, old) for new, old in zip(other, best, strict=True)))
    return best


def _distance(form: Form, spikes: Spikes) -> Array:
    """Twice KL(q || N(., T^-1)), up to a constant."""
    return form.trace_with(spikes) + spikes.log_det()


def _alternated(form: Form, s: Array, rank: int, smallest: Array | float, sweeps: int) -> Spikes:
    """The two conditions of `nearest` by turns, from the scales s."""
    xp = array_namespace(s)
    limits = xp.ones_like(s) / _MOST_CHANGE, xp.ones_like(s) * _MOST_CHANGE

    def sweep(i: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        spikes = Spikes(*state)
        excess = xp.minimum(xp.maximum(form._diagonal_with(spikes), limits[0]), limits[1])
        return tuple(best_directions(form, spikes.s * excess**-0.5, rank, smallest))

    return Spikes(*repeat(sweeps - 1, sweep, tuple(best_directions(form, s, rank, smallest)), unrolled=1))


def best_directions(form: Form, s: Array, rank: int, smallest: Array | float = _SMALLEST) -> Spikes:
    """The best directions for given scales, in the span of ``sK``."""
    xp = array_namespace(s)
    seen = form.between(s)
    Q, R = xp.linalg.qr(seen.K)
    middle = (R * seen.w) @ R.T + (Q.T * seen.t) @ Q
    m, vectors = xp.linalg.eigh(0.5 * (middle + middle.T))
    m = xp.maximum(m, smallest * xp.ones_like(m))
    best = xp.argsort(-worth(m))[:rank]
    U = Q @ xp.take(vectors, best, axis=1)
    # The sign of a direction does not matter, but it should not depend on the library.
    sign = xp.where(xp.sum(U, axis=0) < 0, -xp.ones_like(U[0, :]), xp.ones_like(U[0, :]))
    return Spikes(s, sign * U, xp.take(m, best))


class _Opened(NamedTuple):
    mu: Array  # (d,)
    spikes: Spikes


@dataclass(frozen=True)
class LowRankGaussian(OneGaussian):
    """N(mu, S) with S a diagonal plus a matrix of rank r; see `qbvi.families.low_rank`.

    Stored are mu and s (d each), U (d, r) and the r precisions.

    Examples
    --------
    >>> import numpy as np
    >>> family = LowRankGaussian(3, rank=1)
    >>> cov = np.diag([1.0, 2.0, 3.0]) + np.outer([1.0, 1.0, -1.0], [1.0, 1.0, -1.0])
    >>> family.cov(family.from_moments(np.zeros(3), cov)).round(4)
    array([[ 2.,  1., -1.],
           [ 1.,  3., -1.],
           [-1., -1.,  4.]])
    """

    rank: int = 1

    def __post_init__(self) -> None:
        if not 1 <= whole_number("rank", self.rank) <= self.dim:
            msg = f"`rank` must be at least 1 and at most the number of coordinates, {self.dim}, got {self.rank}"
            raise ValueError(msg)

    @property
    def is_curved(self) -> bool:
        """A step along the natural gradient leaves the family."""
        return True

    @property
    def size(self) -> int:
        """``d (d + 3) / 2``, the natural parameters of the full Gaussian."""
        return self._full.size

    @property
    def n_free(self) -> int:
        """Free numbers of a member: mean, scales, directions and their precisions."""
        return self.dim * (2 + self.rank) - self.rank * (self.rank - 1) // 2

    @property
    def n_stored(self) -> int:
        """Mean, scales, directions and their precisions: (2 + r) d + r."""
        return self.dim * (2 + self.rank) + self.rank

    def start(self, loc: Array, scale: Array) -> Array:
        """Return N(loc, diag(scale^2))."""
        xp = array_namespace(loc, scale)
        U = xp.eye(self.dim, self.rank, dtype=loc.dtype, device=device(loc))
        return self.member(loc, Spikes(scale, U, xp.ones_like(U[0, :])))

    def member(self, mean: Array, precision: Spikes) -> Array:
        """Return the Gaussian with this mean and precision."""
        xp = array_namespace(mean)
        return xp.concat([mean, precision.s, xp.reshape(precision.U, (-1,)), precision.lam])

    def open(self, q: Array) -> tuple[Array, Spikes]:
        """Mean (d,) and precision."""
        xp = array_namespace(q)
        d, r = self.dim, self.rank
        U = xp.reshape(q[2 * d : (2 + r) * d], (d, r))
        return _Opened(q[:d], Spikes(q[d : 2 * d], U, q[(2 + r) * d :]))

    def from_moments(self, mean: Array, cov: Array) -> Array:
        """Return the member nearest to N(mean, cov), see `nearest`."""
        full = self._full
        return self.nearest(full.from_moments(mean, cov))

    def nearest(self, full: Array, s: Array | None = None) -> Array:
        """Return the member nearest to a member of `Gaussian`, see `nearest`.

        The search begins at the scales ``s``. Without them it begins at the conditional standard
        deviations.
        """
        xp = array_namespace(full)
        mu, _, K = self._full._open(full)
        s = xp.linalg.vector_norm(K, axis=0) ** -1 if s is None else s
        eye = xp.eye(self.dim, dtype=full.dtype, device=device(full))
        scaled = (K * s).T @ (K * s)
        w, axes = xp.linalg.eigh(0.5 * (scaled + scaled.T) - eye)
        # If no direction is left out, the first turn is exact.
        sweeps = _SWEEPS if self.rank < self.dim else 1
        found = nearest(Form(xp.ones_like(s), axes, w), self.rank, sweeps=sweeps)
        return self.member(mu, Spikes(found.s * s, found.U, found.lam))

    def full(self, q: Array) -> Array:
        """The same Gaussian as a member of `Gaussian`, in O(d^2)."""
        xp = array_namespace(q)
        mu, spikes = self.open(q)
        eye = xp.eye(self.dim, dtype=q.dtype, device=device(q))
        L, K = (spikes.power(eye, power) for power in (-0.5, 0.5))
        return self._full.from_factor(mu, spikes.s[:, None] * L, K / spikes.s)

    def transport(self, q: Array, z: Array) -> Array:
        """``theta = mu + s (z + U (lam^-1/2 - 1) U'z)``."""
        mu, spikes = self.open(q)
        return mu + spikes.s * spikes.power(z, -0.5)

    def whiten(self, q: Array, theta: Array) -> Array:
        """``z = x + U (lam^1/2 - 1) U'x`` with ``x = (theta - mu) / s``."""
        mu, spikes = self.open(q)
        return spikes.power((theta - mu) / spikes.s, 0.5)

    def log_det(self, q: Array) -> Array:
        """``sum(log s) - sum(log lam) / 2``."""
        return -0.5 * self.open(q)[1].log_det()

    def mean(self, q: Array) -> Array:
        """Mean mu (d,)."""
        return q[: self.dim]

    def cov(self, q: Array) -> Array:
        """Covariance (d, d)."""
        xp = array_namespace(q)
        _, spikes = self.open(q)
        return spikes.solve(xp.eye(self.dim, dtype=q.dtype, device=device(q)))

    def sd(self, q: Array) -> Array:
        """Standard deviations (d,), in O(d r)."""
        return self.open(q)[1].inverse_diagonal ** 0.5

    def divergence(self, q: Array, other: Array) -> Array:
        """KL(q || other) + KL(other || q), in O(d r^2)."""
        return self.kl(q, other) + self.kl(other, q)

    def kl(self, q: Array, other: Array) -> Array:
        r"""KL(q || other), in O(d r^2).

        .. math::
            \tfrac12 \left(\mathrm{tr}(S \Lambda') - d - \log|S \Lambda'|
            + (\mu - \mu')'\Lambda'(\mu - \mu')\right)
        """
        xp = array_namespace(q, other)
        (mu, spikes), (mu_other, theirs) = self.open(q), self.open(other)
        shift = theirs.power(((mu - mu_other) / theirs.s)[None, :], 0.5)
        spread = theirs.form.trace_with(spikes) - self.dim
        return 0.5 * (spread - theirs.log_det() + spikes.log_det() + xp.sum(shift**2))

    def natural(self, q: Array) -> Array:
        """(S^-1 mu, -S^-1 / 2)."""
        return self._full.natural(self.full(q))

    def mean_parameter(self, q: Array) -> Array:
        """(mu, S + mu mu')."""
        return self._full.mean_parameter(self.full(q))

    def log_normaliser(self, lam: Array) -> Array:
        """That of the full Gaussian."""
        return self._full.log_normaliser(lam)

    def statistics(self, theta: Array) -> Array:
        """Those of the full Gaussian."""
        return self._full.statistics(theta)

    def score(self, q: Array, theta: Array) -> Array:
        """That of the full Gaussian."""
        return self._full.score(self.full(q), theta)

    def _mean_score(self, q: Array, theta: Array, odd: Array, even: Array) -> Array:
        """That of the full Gaussian."""
        return self._full._mean_score(self.full(q), theta, odd, even)

    def score_variance(self, q: Array) -> Array:
        """That of the full Gaussian."""
        return self._full.score_variance(self.full(q))

    def embed(self, linear: Array, precision: Array) -> Array | None:
        """``(linear, -precision / 2)``."""
        return self._full.embed(linear, precision)

    def scale_parts(self, q: Array, direction: Array, mean_rate: float, precision_rate: float) -> Array:
        """As for the full Gaussian."""
        return self._full.scale_parts(self.full(q), direction, mean_rate, precision_rate)

    def move(self, q: Array, update: Array, curve: Curve) -> tuple[Array, Array]:
        """Move the full Gaussian, and return the member nearest to it."""
        moved, is_inside = self._full.move(self.full(q), update, curve)
        return self.nearest(moved, self.open(q)[1].s), is_inside

    def move_factor(self, q: Array, update: Array, limit: float) -> Array:
        """Move the triangular factor of the full Gaussian, and return the member nearest to it."""
        triangular = self._full.from_moments(self.mean(q), self.cov(q))
        return self.nearest(self._full.move_factor(triangular, update, limit), self.open(q)[1].s)

    def features(self, q: Array, theta: Array) -> Array:
        """Those of the full Gaussian, in the coordinates that `whiten` gives."""
        return self._full.features(self.full(q), theta)

    def changes(self, q: Array, theta: Array) -> Array:
        r"""Orthonormal features that change q within its family: (n, d) -> (n, k).

        With :math:`y = U'z` and x the coordinates of z beside U, these are z, all quadratics of y,
        the products of y and x, and the squares of :math:`z - Uy` made orthonormal.
        """
        xp, r = array_namespace(q, theta), self.rank
        z, U = self.whiten(q, theta), self.open(q)[1].U
        axes = xp.linalg.qr(U, mode="complete")[0]
        inside = z @ axes
        y, x = inside[:, :r], inside[:, r:]
        upper = [(i, j) for i in range(r) for j in range(i, r)]
        within = [(y[:, i] * y[:, j] - (i == j)) * 2 ** (-0.5 * (i == j)) for i, j in upper]
        cross = [y[:, i : i + 1] * x for i in range(r)]
        beside = axes[:, r:] @ axes[:, r:].T
        values, vectors = xp.linalg.eigh(beside**2)
        kept = vectors[:, values > _SMALL_SQUARE] * values[values > _SMALL_SQUARE] ** -0.5
        squares = ((x @ axes[:, r:].T) ** 2 - xp.linalg.diagonal(beside)) @ kept * 2**-0.5
        return xp.concat([z, xp.stack(within, axis=1), *cross, squares], axis=1)

    def coefficients(self, w: Array) -> tuple[Array, Array]:
        """Undo the scaling of `features`."""
        return self._full.coefficients(w)

    def euclidean(self, q: Array, direction: Array) -> Array:
        """As for the full Gaussian."""
        return self._full.euclidean(self.full(q), direction)

    def restrict(self, curvature: Array) -> Array:
        """The whole matrix: every entry may differ from zero."""
        return curvature

    def quadratic_kernel(self, z: Array) -> Array:
        """That of the full Gaussian."""
        return self._full.quadratic_kernel(z)

    def deform(self, q: Array, shift: Array, root: Array, inverse_root: Array) -> Array:
        """Deform the full Gaussian, and return the member nearest to it."""
        return self.nearest(self._full.deform(self.full(q), shift, root, inverse_root), self.open(q)[1].s)

    @property
    def _full(self) -> Gaussian:
        return Gaussian(self.dim)
