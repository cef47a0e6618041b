r"""Positive definite matrices: Wishart and inverse Wishart distributions.

Both have a number :math:`a = \mathrm{df} / 2` and a positive definite matrix :math:`M` as
parameters. Their natural parameters are linear in both, and their log-normaliser is

.. math:: A = \log \Gamma_p(a) - a \log |M|

A value is a flattened ``p x p`` matrix. As in SciPy, its density is that of the
``p (p + 1) / 2`` entries on and below the diagonal.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.arrays import pack_symmetric, unpack_symmetric
from qbvi.families.exponential import ExponentialFamily, safe_cholesky
from qbvi.families.gamma import gamma_quantile

__all__ = ["InverseWishart", "Wishart"]

Floats = NDArray[np.float64]

_TINY = np.finfo(np.float64).tiny
_EPS = np.finfo(np.float64).eps
_SMALLEST_CHI_SQUARE = 1e-200  # one over it, times any usual scale, is still finite


class _Shape(NamedTuple):
    a: Floats  # (...) half the degrees of freedom
    M: Floats  # (..., p, p) half the inverse scale (Wishart) or half the scale (inverse Wishart)


@dataclass(frozen=True)
class _MatrixLaw(ExponentialFamily):
    """What the two distributions share; they differ in the sign of ``a`` and the statistic of X."""

    event_axes: ClassVar[int] = 2
    p: int = 1
    parameter_names: ClassVar[tuple[str, ...]] = ("df", "scale")
    sign: ClassVar[float]

    @property
    def n_coordinates(self) -> int:
        """All entries of the matrix."""
        return self.p**2

    @property
    def n_statistics(self) -> int:
        """The log-determinant, and the entries on and below the diagonal."""
        return 1 + self.p * (self.p + 1) // 2

    def one_log_normaliser(self, lam: Floats) -> Floats:
        """``log Gamma_p(a) - a log|M|``."""
        a, M = self._shape(lam)
        return np.asarray(_log_multivariate_gamma(a, self.p) - a * np.linalg.slogdet(M)[1])

    def one_mean_parameter(self, lam: Floats) -> Floats:
        """(+-(digamma_p(a) - log|M|), a M^-1)."""
        a, M = self._shape(lam)
        log_det = self.sign * (np.sum(scipy.special.digamma(_below(a, self.p)), axis=-1) - np.linalg.slogdet(M)[1])
        return _join(log_det, a[..., None, None] * _inv(M))

    def one_fisher(self, lam: Floats) -> Floats:
        """((trigamma_p(a), +-M^-1), (+-M^-1, a M^-1 (x) M^-1))."""
        a, M = self._shape(lam)
        inverse = _inv(M)
        fisher = np.empty((*lam.shape, self.n_statistics))
        fisher[..., 0, 0] = np.sum(scipy.special.polygamma(1, _below(a, self.p)), axis=-1)
        fisher[..., 0, 1:] = fisher[..., 1:, 0] = self.sign * pack_symmetric(inverse)
        fisher[..., 1:, 1:] = a[..., None, None] * _symmetric_kronecker(inverse)
        return fisher

    def one_is_inside(self, lam: Floats) -> NDArray[np.bool_]:
        """Whether df exceeds p - 1 and the matrix is positive definite."""
        a, M = self._shape(lam)
        inside: NDArray[np.bool_] = (a > (self.p - 1) / 2) & (np.linalg.eigvalsh(_correlation(M)[0])[..., 0] > 0)
        return inside

    def one_way_out(self, lam: Floats, update: Floats) -> Floats:
        """The larger fraction of the distance to the boundary: of df, or of an eigenvalue of M."""
        a, M = self._shape(lam)
        freedom = -self.sign * update[..., 0] / (a - (self.p - 1) / 2)
        whitener = _inverse_root(M)
        change = whitener @ unpack_symmetric(update[..., 1:], self.p) @ np.swapaxes(whitener, -1, -2)
        return np.maximum(freedom, np.linalg.eigvalsh(change)[..., -1])

    @abstractmethod
    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """From ``df`` (...) and ``scale`` (..., p, p)."""

    def one_textbook(self, lam: Floats) -> Floats:
        """Degrees of freedom, and the packed scale."""
        parameters = self.one_parameters(lam)
        return _join(parameters["df"], parameters["scale"])

    def one_from_textbook(self, xi: Floats) -> Floats:
        """Undo `one_textbook`."""
        return self.one_natural({"df": xi[..., 0], "scale": unpack_symmetric(xi[..., 1:], self.p)})

    @classmethod
    def one_fields(cls, parameters: Mapping[str, Any]) -> dict[str, int]:
        """The size of the matrix."""
        return {"p": np.shape(parameters["scale"])[-1]}

    def _shape(self, lam: Floats) -> _Shape:
        a = self.sign * (lam[..., 0] + (self.p + 1) / 2)
        return _Shape(a, -unpack_symmetric(lam[..., 1:], self.p))

    def _matrix(self, x: Floats) -> Floats:
        return np.reshape(x, (*x.shape[:-1], self.p, self.p))

    def _flat(self, x: Floats) -> Floats:
        return np.reshape(x, (*x.shape[:-2], self.p**2))


@dataclass(frozen=True)
class Wishart(_MatrixLaw):
    r"""Wishart with scale V.

    :math:`\phi = (\log|X|, X)`,
    :math:`\lambda = (\tfrac12(\mathrm{df} - p - 1), -\tfrac12 V^{-1})`.

    Parameters
    ----------
    p
        The matrices are p by p.

    Examples
    --------
    >>> family = Wishart(p=2)
    >>> family.mean(family.member({"df": 5.0, "scale": [[1.0, 0.5], [0.5, 2.0]]}))
    array([ 5. ,  2.5,  2.5, 10. ])
    """

    sign: ClassVar[float] = 1.0

    def one_statistics(self, x: Floats) -> Floats:
        """(log|X|, X), packed."""
        X = self._matrix(x)
        return _join(_log_det(X), X)

    def one_draw(self, lam: Floats, z: Floats) -> Floats:
        """Bartlett's decomposition X = L B B' L', where V = L L'."""
        a, M = self._shape(lam)
        factor = _root(_inv(2 * M)) @ _bartlett(a, self._matrix(z))
        return self._flat(factor @ np.swapaxes(factor, -1, -2))

    def one_moments(self, lam: Floats) -> tuple[Floats, Floats]:
        """Mean ``df V`` and covariances ``Cov(X_ij, X_kl) = df (V_ik V_jl + V_il V_jk)``."""
        a, M = self._shape(lam)
        V = _inv(M) / 2
        df = 2 * a[..., None, None]
        cov = df * np.reshape(_exchanges(V), (*lam.shape[:-1], self.p**2, self.p**2))
        return self._flat(df * V), cov

    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """The distribution with this mean; df fits the standard deviations of the diagonal."""
        center, variance = self._matrix(mean), self._matrix(sd) ** 2
        df = np.maximum(2 * _typical(center, variance), self.p)
        return self.one_natural({"df": df, "scale": _definite(center) / np.where(df > 0, df, 1.0)[..., None, None]})

    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """((df - p - 1) / 2, -V^-1 / 2), packed."""
        df, V = (np.asarray(parameters[name], dtype=np.float64) for name in ("df", "scale"))
        return _join((df - self.p - 1) / 2, -_symmetric(_inv(V)) / 2)

    def one_parameters(self, lam: Floats) -> dict[str, Floats]:
        """Degrees of freedom and scale."""
        a, M = self._shape(lam)
        return {"df": 2 * a, "scale": _symmetric(_inv(M)) / 2}

    def one_jacobian(self, lam: Floats) -> Floats:
        """1/2 for the degrees of freedom, V^-1 (x) V^-1 / 2 for the scale."""
        return _block_diagonal(0.5, 0.5 * _symmetric_kronecker(2 * self._shape(lam).M))


@dataclass(frozen=True)
class InverseWishart(_MatrixLaw):
    r"""Inverse Wishart with scale Psi.

    :math:`\phi = (\log|X|, X^{-1})`,
    :math:`\lambda = (-\tfrac12(\mathrm{df} + p + 1), -\tfrac12 \Psi)`.

    Parameters
    ----------
    p
        The matrices are p by p.

    Examples
    --------
    >>> family = InverseWishart(p=2)
    >>> family.mean(family.member({"df": 5.0, "scale": [[1.0, 0.5], [0.5, 2.0]]}))
    array([0.5 , 0.25, 0.25, 1.  ])
    """

    sign: ClassVar[float] = -1.0

    def one_statistics(self, x: Floats) -> Floats:
        """(log|X|, X^-1), packed."""
        X = self._matrix(x)
        return _join(_log_det(X), _inverse(X))

    def one_draw(self, lam: Floats, z: Floats) -> Floats:
        """Inverses ``C B^-T B^-1 C'`` of Wishart draws, where ``Psi = C C'``.

        They are mirrored, so that X grows with the normals on the diagonal.
        """
        a, M = self._shape(lam)
        inverse = _inv(_bartlett(a, -self._matrix(z)))
        factor = _root(2 * M) @ np.swapaxes(inverse, -1, -2)
        return self._flat(factor @ np.swapaxes(factor, -1, -2))

    def one_moments(self, lam: Floats) -> tuple[Floats, Floats]:
        r"""Mean Psi / (df - p - 1), and covariance; infinite or NaN if df is too small.

        .. math::
            \mathrm{Cov}(X_{ij}, X_{kl})
                = \frac{2 m_{ij} m_{kl} + \nu (m_{ik} m_{jl} + m_{il} m_{jk})}{(\nu + 1)(\nu - 2)},
            \quad \nu = \mathrm{df} - p - 1
        """
        a, M = self._shape(lam)
        nu = (2 * a - self.p - 1)[..., None, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(nu > 0, 2 * M / nu, _undefined(self.p))
            flat = self._flat(mean)
            pairs = np.reshape(_exchanges(mean), (*flat.shape, self.p**2))
            cov = (2 * flat[..., :, None] * flat[..., None, :] + nu * pairs) / ((nu + 1) * (nu - 2))
        return flat, np.where(nu > 2, cov, _undefined(self.p**2))

    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """The distribution with this mean; df fits the standard deviations of the diagonal."""
        center, variance = self._matrix(mean), self._matrix(sd) ** 2
        nu = 2 + 2 * _typical(center, variance)
        return self.one_natural({"df": nu + self.p + 1, "scale": nu[..., None, None] * _definite(center)})

    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """(-(df + p + 1) / 2, -Psi / 2), packed."""
        df, scale = (np.asarray(parameters[name], dtype=np.float64) for name in ("df", "scale"))
        return _join(-(df + self.p + 1) / 2, -scale / 2)

    def one_parameters(self, lam: Floats) -> dict[str, Floats]:
        """Degrees of freedom and scale."""
        a, M = self._shape(lam)
        return {"df": 2 * a, "scale": 2 * M}

    def one_jacobian(self, lam: Floats) -> Floats:
        """Minus one half times the identity."""
        return np.broadcast_to(-0.5 * np.eye(self.n_statistics), (*lam.shape, self.n_statistics))


def _below(a: Floats, p: int) -> Floats:
    """a, a - 1/2, ..., a - (p - 1)/2: arguments of the multivariate gamma function's factors."""
    return a[..., None] - np.arange(p) / 2


def _log_multivariate_gamma(a: Floats, p: int) -> Floats:
    return np.asarray(p * (p - 1) / 4 * np.log(np.pi) + np.sum(scipy.special.gammaln(_below(a, p)), axis=-1))


def _bartlett(a: Floats, z: Floats) -> Floats:
    """Lower triangular B from p x p normals; B B' is Wishart with scale I: (..., p, p)."""
    p = z.shape[-1]
    chi_square = 2 * gamma_quantile(_below(a, p), np.diagonal(z, axis1=-2, axis2=-1))
    chi = np.sqrt(np.maximum(chi_square, _SMALLEST_CHI_SQUARE))
    return np.tril(z, -1) + chi[..., None] * np.eye(p)


def _join(number: Floats, matrix: Floats) -> Floats:
    packed: Floats = pack_symmetric(np.asarray(matrix))
    lead = np.broadcast_shapes(np.shape(number), packed.shape[:-1])
    parts = (
        np.broadcast_to(np.asarray(number)[..., None], (*lead, 1)),
        np.broadcast_to(packed, (*lead, packed.shape[-1])),
    )
    return np.concatenate(parts, axis=-1)


def _symmetric_kronecker(matrix: Floats) -> Floats:
    """The map E -> matrix E matrix of packed symmetric E: (..., p, p) -> (..., k, k).

    Here k = p (p + 1) / 2.
    """
    p = matrix.shape[-1]
    units = unpack_symmetric(np.eye(p * (p + 1) // 2), p)
    mapped: Floats = pack_symmetric(matrix[..., None, :, :] @ units @ matrix[..., None, :, :])
    return mapped


def _exchanges(V: Floats) -> Floats:
    """V_ik V_jl + V_il V_jk: (..., p, p) -> (..., p, p, p, p)."""
    return np.asarray(np.einsum("...ik,...jl->...ijkl", V, V) + np.einsum("...il,...jk->...ijkl", V, V))


def _block_diagonal(number: float, block: Floats) -> Floats:
    k = block.shape[-1] + 1
    matrix = np.zeros((*block.shape[:-2], k, k))
    matrix[..., 0, 0], matrix[..., 1:, 1:] = number, block
    return matrix


def _correlation(X: Floats) -> tuple[Floats, Floats]:
    """X scaled to a unit diagonal, and the square roots of its diagonal: units cost no digits.

    Entries of an indefinite X may be large. Clipped at two they remain indefinite and have
    eigenvalues.
    """
    sd = np.sqrt(np.maximum(np.abs(np.diagonal(X, axis1=-2, axis2=-1)), _TINY))
    with np.errstate(over="ignore"):
        scaled = _symmetric(X) / (sd[..., :, None] * sd[..., None, :])
    return np.clip(scaled, -2.0, 2.0), sd


def _eigen(X: Floats) -> tuple[Floats, Floats, Floats]:
    """Eigenvalues and vectors of the scaled X, and the scales.

    Eigenvalues that rounding made too small or negative are raised to machine epsilon.
    """
    scaled, sd = _correlation(X)
    values, vectors = np.linalg.eigh(scaled)
    return np.maximum(values, _EPS), vectors, sd


def _log_det(X: Floats) -> Floats:
    values, _, sd = _eigen(X)
    return np.asarray(np.sum(np.log(values) + 2 * np.log(sd), axis=-1))


def _inverse(X: Floats) -> Floats:
    values, vectors, sd = _eigen(X)
    half = vectors / np.sqrt(values)[..., None, :] / sd[..., :, None]
    return half @ np.swapaxes(half, -1, -2)


def _definite(X: Floats) -> Floats:
    """X, made positive definite if a rough guess is not."""
    scaled, sd = _correlation(X)
    values, vectors = np.linalg.eigh(scaled)
    half = sd[..., :, None] * vectors * np.sqrt(np.maximum(values, 1e-3))[..., None, :]
    return np.asarray(half @ np.swapaxes(half, -1, -2))


def _typical(mean: Floats, variance: Floats) -> Floats:
    """Median over the diagonal of squared mean over variance; NaN if any mean is not positive."""
    diagonal = np.diagonal(mean, axis1=-2, axis2=-1)
    ratios = diagonal**2 / np.diagonal(variance, axis1=-2, axis2=-1)
    return np.where(np.all(diagonal > 0, axis=-1), np.median(ratios, axis=-1), np.nan)


def _root(M: Floats) -> Floats:
    """Lower triangular C with C C' = M."""
    scaled, sd = _correlation(M)
    return np.asarray(sd[..., :, None] * safe_cholesky(scaled))


def _inverse_root(M: Floats) -> Floats:
    """K with K M K' = 1."""
    scaled, sd = _correlation(M)
    return np.asarray(_inv(safe_cholesky(scaled)) / sd[..., None, :])


def _undefined(p: int) -> Floats:
    return np.where(np.eye(p, dtype=bool), np.inf, np.nan)


def _symmetric(X: Floats) -> Floats:
    return (X + np.swapaxes(X, -1, -2)) / 2


def _inv(X: NDArray[np.floating[Any]]) -> Floats:
    return np.asarray(np.linalg.inv(X), dtype=np.float64)
