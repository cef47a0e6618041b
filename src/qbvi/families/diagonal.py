"""Gaussian posteriors with diagonal covariance."""

from __future__ import annotations

from dataclasses import dataclass

from qbvi.arrays import Array, array_namespace, device
from qbvi.families.base import Curve
from qbvi.families.one_gaussian import SQRT_HALF, OneGaussian

__all__ = ["DiagonalGaussian"]


@dataclass(frozen=True)
class DiagonalGaussian(OneGaussian):
    """N(mu, diag(s^2)), stored as mu and s.

    Examples
    --------
    >>> import numpy as np
    >>> family = DiagonalGaussian(2)
    >>> q = family.start(np.zeros(2), np.array([1.0, 2.0]))
    >>> family.cov(q)
    array([[1., 0.],
           [0., 4.]])
    """

    @property
    def size(self) -> int:
        """``2 d``."""
        return 2 * self.dim

    @property
    def n_stored(self) -> int:
        """Mean and standard deviations: 2 d."""
        return 2 * self.dim

    def start(self, loc: Array, scale: Array) -> Array:
        """Return N(loc, diag(scale^2))."""
        return array_namespace(loc, scale).concat([loc, scale])

    def from_moments(self, mean: Array, cov: Array) -> Array:
        """Return N(mean, diag(cov)): the marginals of N(mean, cov)."""
        xp = array_namespace(mean, cov)
        return self.start(mean, xp.sqrt(xp.linalg.diagonal(cov)))

    def transport(self, q: Array, z: Array) -> Array:
        """``theta = mu + s z``."""
        mu, s = self._open(q)
        return mu + s * z

    def whiten(self, q: Array, theta: Array) -> Array:
        """``z = (theta - mu) / s``."""
        mu, s = self._open(q)
        return (theta - mu) * (1 / s)  # one division for each coordinate, not for each number

    def log_det(self, q: Array) -> Array:
        """``sum(log s)``."""
        xp = array_namespace(q)
        return xp.sum(xp.log(self.sd(q)))

    def mean(self, q: Array) -> Array:
        """Mean mu (d,)."""
        return q[: self.dim]

    def cov(self, q: Array) -> Array:
        """diag(s^2) (d, d)."""
        xp = array_namespace(q)
        return xp.eye(self.dim, dtype=q.dtype, device=device(q)) * self.sd(q) ** 2

    def sd(self, q: Array) -> Array:
        """Standard deviations s (d,)."""
        return q[self.dim :]

    def natural(self, q: Array) -> Array:
        """(mu / s^2, -1 / (2 s^2))."""
        mu, s = self._open(q)
        return array_namespace(q).concat([mu / s**2, -0.5 / s**2])

    def mean_parameter(self, q: Array) -> Array:
        """(mu, s^2 + mu^2)."""
        mu, s = self._open(q)
        return array_namespace(q).concat([mu, s**2 + mu**2])

    def log_normaliser(self, lam: Array) -> Array:
        """Sum over coordinates of -lam1^2 / (4 lam2) - log(-2 lam2) / 2."""
        xp = array_namespace(lam)
        first, second = lam[: self.dim], lam[self.dim :]
        return xp.sum(-0.25 * first**2 / second - 0.5 * xp.log(-2 * second))

    def statistics(self, theta: Array) -> Array:
        """(theta, theta^2): (n, d) -> (n, 2 d)."""
        return array_namespace(theta).concat([theta, theta**2], axis=-1)

    def score(self, q: Array, theta: Array) -> Array:
        r"""Natural gradient of ``log q`` (paper, Proposition 2, element-wise): (n, d) -> (n, 2 d).

        .. math::
            g_2 = \tfrac12 (v^2 - s^{-2}), \quad g_1 = v - 2 \mu g_2, \quad v = (\theta - \mu) / s^2
        """
        mu, s = self._open(q)
        v = (theta - mu) / s**2
        second = 0.5 * (v**2 - 1 / s**2)
        return array_namespace(q, theta).concat([v - 2 * mu * second, second], axis=-1)

    def _mean_score(self, q: Array, theta: Array, odd: Array, even: Array) -> Array:
        xp = array_namespace(q, theta)
        mu, s = self._open(q)
        z = self.whiten(q, theta)
        first, second = _sum(odd[:, None] * z), 0.5 * (_sum(even[:, None] * z**2) - xp.sum(even)) / s**2
        return xp.concat([first / s - 2 * mu * second, second])

    def score_variance(self, q: Array) -> Array:
        """Closed-form variances of the score: (1/s^2 + 2 mu^2/s^4, 1/(2 s^4))."""
        mu, s = self._open(q)
        return array_namespace(q).concat([1 / s**2 + 2 * mu**2 / s**4, 0.5 / s**4])

    def embed(self, linear: Array, precision: Array) -> Array | None:
        """``(linear, -precision / 2)`` if the precision is diagonal, else None."""
        xp = array_namespace(linear, precision)
        if precision.ndim == 2:
            diagonal = xp.linalg.diagonal(precision)
            if xp.any(precision != xp.eye(self.dim, dtype=precision.dtype) * diagonal):
                return None
            precision = diagonal
        return xp.concat([linear, -0.5 * precision])

    def scale_parts(self, q: Array, direction: Array, mean_rate: float, precision_rate: float) -> Array:
        """Scale the two parts of a direction about the current mean, whatever the origin."""
        mu = self.mean(q)
        force, change = self._split(q, direction)
        scaled = precision_rate * change
        return array_namespace(q).concat([mean_rate * force - 2 * scaled * mu, scaled])

    def move(self, q: Array, update: Array, curve: Curve) -> tuple[Array, Array]:
        """`Gaussian.move`, on vectors of diagonals."""
        xp = array_namespace(q, update)
        mu, s = self._open(q)
        force, change = self._split(q, update)
        c = 2 * s**2 * change
        rho, t = curve(c)
        return xp.concat([mu + t * s**2 * force / rho, s / xp.sqrt(rho)]), xp.max(c) < 1

    def move_factor(self, q: Array, update: Array, limit: float) -> Array:
        """Natural gradient step in the coordinates (mu, log s)."""
        xp = array_namespace(q, update)
        mu, s = self._open(q)
        force, change = self._split(q, update)
        c = 2 * s**2 * change
        t = limit / xp.maximum(xp.max(xp.abs(c)), limit * xp.ones_like(c[0]))
        return xp.concat([mu + t * s**2 * force, s * xp.exp(0.5 * t * c)])

    def features(self, q: Array, theta: Array) -> Array:
        """(z, (z^2 - 1) / sqrt 2): (n, d) -> (n, 2 d)."""
        z = self.whiten(q, theta)
        return array_namespace(q, theta).concat([z, SQRT_HALF * (z**2 - 1)], axis=-1)

    def coefficients(self, w: Array) -> tuple[Array, Array]:
        """Undo the scaling of `features`."""
        xp = array_namespace(w)
        return w[: self.dim], xp.eye(self.dim, dtype=w.dtype, device=device(w)) * (w[self.dim :] / SQRT_HALF)

    def euclidean(self, q: Array, direction: Array) -> Array:
        """`Gaussian.euclidean`, element-wise."""
        mu, s = self._open(q)
        force, change = self._split(q, direction)
        scaled = 0.5 * change / s**4
        return array_namespace(q).concat([force / s**2 - 2 * scaled * mu, scaled])

    def restrict(self, curvature: Array) -> Array:
        """The diagonal."""
        xp = array_namespace(curvature)
        eye = xp.eye(self.dim, dtype=curvature.dtype, device=device(curvature))
        return eye * xp.linalg.diagonal(curvature)

    def quadratic_kernel(self, z: Array) -> Array:
        """Sum over coordinates of (z^2 - 1)(z'^2 - 1) / 2."""
        return 0.5 * (z**2 - 1) @ (z**2 - 1).T

    def deform(self, q: Array, shift: Array, root: Array, inverse_root: Array) -> Array:
        """Mean ``mu + s shift``, standard deviations ``s root``."""
        xp = array_namespace(q)
        mu, s = self._open(q)
        return xp.concat([mu + s * shift, s * xp.linalg.diagonal(root)])

    def _open(self, q: Array) -> tuple[Array, Array]:
        return q[: self.dim], q[self.dim :]

    def _split(self, q: Array, direction: Array) -> tuple[Array, Array]:
        change = direction[self.dim :]
        return direction[: self.dim] + 2 * change * self.mean(q), change


_WIDE, _AT_ONCE = 2**16, 8


def _sum(x: Array) -> Array:
    """Sum over the first axis.

    Of long rows, a few are added at a time. A GPU then reads them once and in order; its sums of
    columns take twice as long.
    """
    xp, n = array_namespace(x), x.shape[0]
    if x.shape[1] < _WIDE:
        return xp.sum(x, axis=0)
    parts = [xp.sum(x[i : i + _AT_ONCE, :], axis=0) for i in range(0, n, _AT_ONCE)]
    return sum(parts[1:], start=parts[0])
