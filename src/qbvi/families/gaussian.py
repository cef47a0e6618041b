"""Gaussian posteriors with full covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from qbvi.arrays import Array, array_namespace, device, pack_symmetric, unpack_symmetric
from qbvi.families.base import Curve
from qbvi.families.one_gaussian import SQRT_HALF, OneGaussian

__all__ = ["Gaussian"]


class _Opened(NamedTuple):
    mu: Array  # (d,)
    L: Array  # (d, d) any factor of S = L L'
    K: Array  # (d, d) its inverse, carried along so that no linear system is ever solved


@dataclass(frozen=True)
class Gaussian(OneGaussian):
    """N(mu, S) with full covariance, stored as mu, a factor L of S = L L', and K = L^-1.

    Examples
    --------
    >>> import numpy as np
    >>> family = Gaussian(2)
    >>> q = family.start(np.zeros(2), np.ones(2))
    >>> family.log_prob(q, np.zeros((1, 2)))
    array([-1.83787707])
    """

    @property
    def size(self) -> int:
        """``d (d + 3) / 2``."""
        return self.dim * (self.dim + 3) // 2

    @property
    def n_stored(self) -> int:
        """Mean, factor and inverse factor: d + 2 d^2."""
        return self.dim + 2 * self.dim**2

    def start(self, loc: Array, scale: Array) -> Array:
        """Return N(loc, diag(scale^2))."""
        xp = array_namespace(loc, scale)
        eye = xp.eye(self.dim, dtype=loc.dtype, device=device(loc))
        return _close(_Opened(loc, eye * scale, eye / scale))

    def from_moments(self, mean: Array, cov: Array) -> Array:
        """Return N(mean, cov)."""
        xp = array_namespace(mean, cov)
        # Equilibrate first: the factor stays accurate if scales differ by orders of magnitude.
        sd = xp.sqrt(xp.linalg.diagonal(cov))
        factor = xp.linalg.cholesky(cov / (sd[:, None] * sd[None, :]))
        return _close(_Opened(mean, sd[:, None] * factor, xp.linalg.inv(factor) / sd[None, :]))

    def from_factor(self, mean: Array, factor: Array, inverse: Array) -> Array:
        """Return N(mean, L L'), given any factor L and its inverse."""
        return _close(_Opened(mean, factor, inverse))

    def transport(self, q: Array, z: Array) -> Array:
        """``theta = mu + L z``."""
        mu, L, _ = self._open(q)
        return mu + z @ L.T

    def whiten(self, q: Array, theta: Array) -> Array:
        """``z = L^-1 (theta - mu)``."""
        mu, _, K = self._open(q)
        return (theta - mu) @ K.T

    def log_det(self, q: Array) -> Array:
        """``log|L|``. The rows of ``L`` are scaled first, so the determinant cannot overflow."""
        xp = array_namespace(q)
        L = self._open(q).L
        rows = xp.linalg.vector_norm(L, axis=1)
        return xp.linalg.slogdet(L / rows[:, None])[1] + xp.sum(xp.log(rows))

    def mean(self, q: Array) -> Array:
        """Mean mu (d,)."""
        return self._open(q).mu

    def cov(self, q: Array) -> Array:
        """Covariance S = L L' (d, d)."""
        L = self._open(q).L
        return L @ L.T

    def sd(self, q: Array) -> Array:
        """Square roots of the diagonal of S (d,)."""
        L = self._open(q).L
        return array_namespace(q).linalg.vector_norm(L, axis=1)

    def natural(self, q: Array) -> Array:
        """(S^-1 mu, -S^-1 / 2)."""
        mu, _, K = self._open(q)
        return array_namespace(q).concat([K.T @ (K @ mu), pack_symmetric(-0.5 * (K.T @ K))])

    def mean_parameter(self, q: Array) -> Array:
        """(mu, S + mu mu')."""
        mu, L, _ = self._open(q)
        return array_namespace(q).concat([mu, pack_symmetric(L @ L.T + mu[:, None] * mu[None, :])])

    def log_normaliser(self, lam: Array) -> Array:
        r"""``A(lam)``, less the constant ``d/2 log 2 pi``.

        .. math::
            A(\lambda) = -\tfrac14 \lambda_1' \lambda_2^{-1} \lambda_1 - \tfrac12 \log|-2 \lambda_2|
        """
        xp = array_namespace(lam)
        precision = -2 * unpack_symmetric(lam[self.dim :], self.dim)
        linear = lam[: self.dim]
        return 0.5 * xp.sum(linear * xp.linalg.solve(precision, linear)) - 0.5 * xp.linalg.slogdet(precision)[1]

    def statistics(self, theta: Array) -> Array:
        """(theta, theta theta'), packed: (n, d) -> (n, k)."""
        return array_namespace(theta).concat([theta, pack_symmetric(theta[:, :, None] * theta[:, None, :])], axis=-1)

    def score(self, q: Array, theta: Array) -> Array:
        r"""Natural gradient of ``log q`` (paper, Proposition 2): (n, d) -> (n, k).

        .. math::
            \nabla_{m_1} = S^{-1}\theta - v v'\mu, \quad \nabla_{m_2} = -\tfrac12 (S^{-1} - v v'),
            \quad v = S^{-1}(\theta - \mu)
        """
        xp = array_namespace(q, theta)
        mu, _, K = self._open(q)
        v = self.whiten(q, theta) @ K
        first = v + K.T @ (K @ mu) - v * (v @ mu)[:, None]
        second = 0.5 * (v[:, :, None] * v[:, None, :] - K.T @ K)
        return xp.concat([first, pack_symmetric(second)], axis=-1)

    def _mean_score(self, q: Array, theta: Array, odd: Array, even: Array) -> Array:
        r"""From moments with one weight for the linear part, and one for the quadratic.

        .. math::
            b = \sum w_1 z, \quad C = \sum w_2 (z z' - I), \quad
            g_2 = \tfrac12 L^{-T} C L^{-1}, \quad g_1 = L^{-T} b - 2 g_2 \mu
        """
        xp = array_namespace(q, theta)
        mu, _, K = self._open(q)
        z = self.whiten(q, theta)
        C = (even[:, None] * z).T @ z - xp.sum(even) * xp.eye(self.dim, dtype=q.dtype, device=device(q))
        second = 0.5 * (K.T @ C @ K)
        return xp.concat([K.T @ (odd @ z) - 2 * second @ mu, pack_symmetric(0.5 * (second + second.T))])

    def score_variance(self, q: Array) -> Array:
        r"""Closed-form variances of the score (paper, "Variance of the gradients") in O(d^2).

        .. math::
            \mathrm{Var}\,\nabla_{m_1}
                = \mathrm{diag}\left((1 + \mu'S^{-1}\mu) S^{-1} + S^{-1}\mu\mu'S^{-1}\right) \\
            \mathrm{Var}\,\nabla_{m_2}
                = \tfrac14 (S^{-1} \circ S^{-1} + s s'), \quad s = \mathrm{diag}(S^{-1})
        """
        xp = array_namespace(q)
        mu, _, K = self._open(q)
        precision = K.T @ K
        s = xp.linalg.diagonal(precision)
        first = (1 + xp.sum((K @ mu) ** 2)) * s + (precision @ mu) ** 2
        second = 0.25 * (precision**2 + s[:, None] * s[None, :])
        # Packing scales off-diagonal entries by sqrt 2, so their variances by 2: pack twice.
        scales = pack_symmetric(xp.ones_like(precision))
        return xp.concat([first, pack_symmetric(second) * scales])

    def embed(self, linear: Array, precision: Array) -> Array | None:
        """``(linear, -precision / 2)``; a diagonal precision may be a vector."""
        xp = array_namespace(linear, precision)
        full = (
            xp.eye(self.dim, dtype=linear.dtype, device=device(linear)) * precision
            if precision.ndim == 1
            else precision
        )
        return xp.concat([linear, pack_symmetric(-0.5 * full)])

    def scale_parts(self, q: Array, direction: Array, mean_rate: float, precision_rate: float) -> Array:
        """Scale the two parts of a direction about the current mean, whatever the origin."""
        mu = self._open(q).mu
        force, change = self._split(q, direction)
        scaled = precision_rate * change
        return array_namespace(q).concat([mean_rate * force - 2 * scaled @ mu, pack_symmetric(scaled)])

    def move(self, q: Array, update: Array, curve: Curve) -> tuple[Array, Array]:
        r"""Move by a change of the natural parameter, in whitened coordinates.

        .. math::
            P = U \rho(c) U', \quad \mu \leftarrow \mu + t L P^{-1} b, \quad
            S^{-1} \leftarrow L^{-T} P L^{-1}

        where :math:`b = L'(\Delta_1 + 2 \Delta_2 \mu)` and :math:`C = 2 L' \Delta_2 L = U c U'`.
        """
        xp = array_namespace(q, update)
        mu, L, K = self._open(q)
        b, C = self._whitened(q, update)
        c, U = xp.linalg.eigh(C)
        rho, t = curve(c)
        root = xp.sqrt(rho)
        shift = t * (L @ (U @ ((U.T @ b) / rho)))
        factor, inverse = (L @ U / root) @ U.T, U @ (root[:, None] * (U.T @ K))
        return _close(_Opened(mu + shift, factor, _refined(inverse, factor))), xp.max(c) < 1

    def move_factor(self, q: Array, update: Array, limit: float) -> Array:
        r"""Natural gradient step in the coordinates (mu, L), the diagonal of L on the log scale.

        Let :math:`\Delta` be lower triangular with :math:`\Delta + \Delta' = C`. Below the
        diagonal, :math:`L_{ij} \mathrel{+}= (L\Delta)_{ij}`; on it,
        :math:`\log L_{ii} \mathrel{+}= \Delta_{ii}`; and :math:`\mu \mathrel{+}= L b`.
        """
        xp = array_namespace(q, update)
        mu, L, _ = self._open(q)
        b, C = self._whitened(q, update)
        t = limit / xp.maximum(xp.max(xp.abs(C)), limit * xp.ones_like(C[0, 0]))
        eye = xp.eye(self.dim, dtype=q.dtype, device=device(q))
        delta = t * xp.tril(C) * (1 - 0.5 * eye)
        diagonal = xp.linalg.diagonal(L) * xp.exp(xp.linalg.diagonal(delta))
        factor = xp.tril(L + L @ delta, k=-1) + eye * diagonal
        # Scale the rows first: the inverse then does not depend on the units of the parameters.
        inverse = xp.linalg.inv(factor / diagonal[:, None]) / diagonal[None, :]
        return _close(_Opened(mu + t * (L @ b), factor, _refined(inverse, factor)))

    def features(self, q: Array, theta: Array) -> Array:
        """(z, (z_i^2 - 1) / sqrt 2, z_i z_j): (n, d) -> (n, k)."""
        xp = array_namespace(q, theta)
        z = self.whiten(q, theta)
        eye = xp.eye(self.dim, dtype=q.dtype, device=device(q))
        return xp.concat([z, pack_symmetric(z[:, :, None] * z[:, None, :] - eye) * SQRT_HALF], axis=-1)

    def coefficients(self, w: Array) -> tuple[Array, Array]:
        """Undo the scaling of `features`."""
        return w[: self.dim], unpack_symmetric(w[self.dim :], self.dim) / SQRT_HALF

    def euclidean(self, q: Array, direction: Array) -> Array:
        r"""Gradients of mean and covariance, as a direction in natural coordinates.

        They are :math:`L^{-T} b` for the mean and :math:`\tfrac12 L^{-T} C L^{-1}` for the
        covariance.
        """
        mu, _, K = self._open(q)
        b, C = self._whitened(q, direction)
        metric = K @ K.T
        change = 0.25 * (K.T @ metric @ C @ metric @ K)
        return array_namespace(q).concat([K.T @ (metric @ b) - 2 * change @ mu, pack_symmetric(change)])

    def restrict(self, curvature: Array) -> Array:
        """The whole matrix."""
        return curvature

    def quadratic_kernel(self, z: Array) -> Array:
        """((z . z')^2 - |z|^2 - |z'|^2 + d) / 2."""
        xp = array_namespace(z)
        inner = z @ z.T
        squares = xp.linalg.diagonal(inner)
        return 0.5 * (inner**2 - squares[:, None] - squares[None, :] + self.dim)

    def deform(self, q: Array, shift: Array, root: Array, inverse_root: Array) -> Array:
        """Mean ``mu + L shift``, factor ``L root``."""
        mu, L, K = self._open(q)
        factor = L @ root
        return _close(_Opened(mu + L @ shift, factor, _refined(inverse_root @ K, factor)))

    def deformed_peak(self, moved: Array, peak: Array, log_volume: Array) -> Array:
        """Without a determinant."""
        return peak - log_volume

    def _open(self, q: Array) -> _Opened:
        xp = array_namespace(q)
        d = self.dim
        matrices = xp.reshape(q[d:], (2, d, d))
        return _Opened(q[:d], matrices[0, :, :], matrices[1, :, :])

    def _split(self, q: Array, direction: Array) -> tuple[Array, Array]:
        """The linear part about the mean, and the matrix by which ``-S^-1 / 2`` changes."""
        change = unpack_symmetric(direction[self.dim :], self.dim)
        return direction[: self.dim] + 2 * change @ self._open(q).mu, change

    def _whitened(self, q: Array, update: Array) -> tuple[Array, Array]:
        L = self._open(q).L
        force, change = self._split(q, update)
        C = 2 * (L.T @ change @ L)
        return L.T @ force, 0.5 * (C + C.T)


def _refined(inverse: Array, factor: Array) -> Array:
    """One Newton-Schulz step, so that rounding errors of the inverse do not accumulate."""
    return 2 * inverse - inverse @ (factor @ inverse)


def _close(opened: _Opened) -> Array:
    xp = array_namespace(*opened)
    return xp.concat([opened.mu, xp.reshape(opened.L, (-1,)), xp.reshape(opened.K, (-1,))])
