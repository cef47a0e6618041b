"""Positive variables: gamma, inverse gamma and exponential distributions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.families.exponential import ExponentialFamily
from qbvi.families.own_statistic import OwnStatistic

__all__ = ["Exponential", "Gamma", "InverseGamma"]

Floats = NDArray[np.float64]

_TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class Gamma(ExponentialFamily):
    r"""Gamma with a rate: :math:`\phi = (\log x, x)`, :math:`\lambda = (\alpha - 1, -\beta)`.

    Examples
    --------
    >>> family = Gamma()
    >>> q = family.member({"alpha": 3.0, "beta": 2.0})
    >>> family.mean(q), family.sd(q) ** 2
    (array([1.5]), array([0.75]))
    """

    parameter_names: ClassVar[tuple[str, ...]] = ("alpha", "beta")

    @property
    def n_statistics(self) -> int:
        """Two."""
        return 2

    def one_statistics(self, x: Floats) -> Floats:
        """(log x, x)."""
        return np.concatenate([bounded_log(x), x], axis=-1)

    def one_log_normaliser(self, lam: Floats) -> Floats:
        """``log Gamma(alpha) - alpha log beta``."""
        return _log_normaliser(lam[..., 0] + 1, -lam[..., 1])

    def one_mean_parameter(self, lam: Floats) -> Floats:
        """(digamma(alpha) - log beta, alpha / beta)."""
        alpha, beta = lam[..., 0] + 1, -lam[..., 1]
        return np.stack([scipy.special.digamma(alpha) - np.log(beta), alpha / beta], axis=-1)

    def one_fisher(self, lam: Floats) -> Floats:
        """((trigamma(alpha), 1 / beta), (1 / beta, alpha / beta^2))."""
        alpha, beta = lam[..., 0] + 1, -lam[..., 1]
        return _matrix(scipy.special.polygamma(1, alpha), 1 / beta, alpha / beta**2)

    def one_draw(self, lam: Floats, z: Floats) -> Floats:
        """Gamma quantiles at the probabilities of the normals."""
        return gamma_quantile(lam[..., :1] + 1, z) / -lam[..., 1:]

    def one_is_inside(self, lam: Floats) -> NDArray[np.bool_]:
        """Whether alpha and beta are positive."""
        inside: NDArray[np.bool_] = (lam[..., 0] > -1) & (lam[..., 1] < 0)
        return inside

    def one_way_out(self, lam: Floats, update: Floats) -> Floats:
        """Alpha and beta must stay positive."""
        return np.maximum(-update[..., 0] / (lam[..., 0] + 1), update[..., 1] / -lam[..., 1])

    def one_moments(self, lam: Floats) -> tuple[Floats, Floats]:
        """``alpha / beta`` and ``alpha / beta^2``."""
        alpha, beta = lam[..., :1] + 1, -lam[..., 1:]
        return alpha / beta, (alpha / beta**2)[..., None]

    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """The gamma distribution with this mean and standard deviation."""
        alpha = (mean / sd) ** 2
        return np.concatenate([alpha - 1, -alpha / mean], axis=-1)

    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """(alpha - 1, -beta)."""
        alpha, beta = np.broadcast_arrays(parameters["alpha"], parameters["beta"])
        return np.stack([alpha - 1.0, -1.0 * beta], axis=-1)

    def one_parameters(self, lam: Floats) -> dict[str, Floats]:
        """Alpha and beta."""
        return {"alpha": lam[..., 0] + 1, "beta": -lam[..., 1]}

    def one_jacobian(self, lam: Floats) -> Floats:
        """diag(1, -1)."""
        return np.broadcast_to(np.diag([1.0, -1.0]), (*lam.shape, 2))


@dataclass(frozen=True)
class InverseGamma(ExponentialFamily):
    r"""Inverse gamma: :math:`\phi = (\log x, 1/x)`, :math:`\lambda = (-\alpha - 1, -\beta)`.

    Examples
    --------
    >>> family = InverseGamma()
    >>> q = family.member({"alpha": 3.0, "beta": 2.0})
    >>> family.mean(q), family.parameters(q)
    (array([1.]), {'alpha': array([3.]), 'beta': array([2.])})
    """

    parameter_names: ClassVar[tuple[str, ...]] = ("alpha", "beta")

    @property
    def n_statistics(self) -> int:
        """Two."""
        return 2

    def one_statistics(self, x: Floats) -> Floats:
        """(log x, 1 / x)."""
        return np.concatenate([bounded_log(x), 1 / x], axis=-1)

    def one_log_normaliser(self, lam: Floats) -> Floats:
        """``log Gamma(alpha) - alpha log beta``."""
        return _log_normaliser(-lam[..., 0] - 1, -lam[..., 1])

    def one_mean_parameter(self, lam: Floats) -> Floats:
        """(log beta - digamma(alpha), alpha / beta)."""
        alpha, beta = -lam[..., 0] - 1, -lam[..., 1]
        return np.stack([np.log(beta) - scipy.special.digamma(alpha), alpha / beta], axis=-1)

    def one_fisher(self, lam: Floats) -> Floats:
        """((trigamma(alpha), -1 / beta), (-1 / beta, alpha / beta^2)).

        The paper's natgrad_ig prints this matrix before its inversion.
        """
        alpha, beta = -lam[..., 0] - 1, -lam[..., 1]
        return _matrix(scipy.special.polygamma(1, alpha), -1 / beta, alpha / beta**2)

    def one_draw(self, lam: Floats, z: Floats) -> Floats:
        """``beta`` over a gamma quantile, mirrored so that x grows with z."""
        beta = -lam[..., 1:]
        # A quantile below beta times the smallest normal number would make the draw infinite.
        return beta / np.maximum(gamma_quantile(-lam[..., :1] - 1, -z), 4 * beta * _TINY)

    def one_is_inside(self, lam: Floats) -> NDArray[np.bool_]:
        """Whether alpha and beta are positive."""
        inside: NDArray[np.bool_] = (lam[..., 0] < -1) & (lam[..., 1] < 0)
        return inside

    def one_way_out(self, lam: Floats, update: Floats) -> Floats:
        """Alpha and beta must stay positive."""
        return np.maximum(update[..., 0] / (-lam[..., 0] - 1), update[..., 1] / -lam[..., 1])

    def one_moments(self, lam: Floats) -> tuple[Floats, Floats]:
        """``beta / (alpha - 1)`` and its square over ``alpha - 2``; infinite for small alpha."""
        alpha, beta = -lam[..., :1] - 1, -lam[..., 1:]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(alpha > 1, beta / (alpha - 1), np.inf)
            variance = np.where(alpha > 2, mean**2 / (alpha - 2), np.inf)
        return mean, variance[..., None]

    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """The inverse gamma distribution with this mean and standard deviation."""
        alpha = (mean / sd) ** 2 + 2
        return np.concatenate([-alpha - 1, -mean * (alpha - 1)], axis=-1)

    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """(-alpha - 1, -beta)."""
        alpha, beta = np.broadcast_arrays(parameters["alpha"], parameters["beta"])
        return np.stack([-1.0 - alpha, -1.0 * beta], axis=-1)

    def one_parameters(self, lam: Floats) -> dict[str, Floats]:
        """Alpha and beta."""
        return {"alpha": -lam[..., 0] - 1, "beta": -lam[..., 1]}

    def one_jacobian(self, lam: Floats) -> Floats:
        """Minus the identity."""
        return np.broadcast_to(-np.eye(2), (*lam.shape, 2))


@dataclass(frozen=True)
class Exponential(OwnStatistic):
    r"""Exponential: :math:`\phi = x`, :math:`\lambda = -\mathrm{rate}`.

    Examples
    --------
    >>> Exponential().mean(Exponential().member({"rate": 4.0}))
    array([0.25])
    """

    parameter_names: ClassVar[tuple[str, ...]] = ("rate",)

    def one_log_normaliser(self, lam: Floats) -> Floats:
        """-log rate."""
        return -np.log(-lam[..., 0])

    def one_mean_parameter(self, lam: Floats) -> Floats:
        """1 / rate."""
        return -1 / lam

    def one_fisher(self, lam: Floats) -> Floats:
        """1 / rate^2."""
        return (1 / lam**2)[..., None]

    def one_draw(self, lam: Floats, z: Floats) -> Floats:
        """-log(1 - Phi(z)) / rate."""
        return np.asarray(scipy.special.log_ndtr(-z) / lam)

    def one_is_inside(self, lam: Floats) -> NDArray[np.bool_]:
        """Whether the rate is positive."""
        inside: NDArray[np.bool_] = lam[..., 0] < 0
        return inside

    def one_way_out(self, lam: Floats, update: Floats) -> Floats:
        """The rate must stay positive."""
        return (update / -lam)[..., 0]

    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """The distribution with this mean; its standard deviation equals the mean."""
        return -1 / mean

    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """-rate."""
        return -1.0 * np.asarray(parameters["rate"])[..., None]

    def one_parameters(self, lam: Floats) -> dict[str, Floats]:
        """The rate."""
        return {"rate": -lam[..., 0]}

    def one_jacobian(self, lam: Floats) -> Floats:
        """-1."""
        return np.broadcast_to(-np.eye(1), (*lam.shape, 1))


def gamma_quantile(alpha: Floats, z: Floats) -> Floats:
    """Quantile of the unit-rate gamma distribution at Phi(z), accurate in both tails.

    Examples
    --------
    >>> float(gamma_quantile(np.array(1.0), np.array(0.0)).round(6))  # median, log 2
    0.693147
    """
    upper, lower = (
        scipy.special.gammainccinv(alpha, scipy.special.ndtr(-z)),
        scipy.special.gammaincinv(alpha, scipy.special.ndtr(z)),
    )
    # In the far lower tail of a small alpha the quantile underflows; a positive floor keeps
    # quotients by it finite.
    return np.asarray(np.maximum(np.where(z > 0, upper, lower), _TINY))


def log_gamma_quantile(alpha: Floats, z: Floats) -> Floats:
    """Logarithm of `gamma_quantile`, exact also where that underflows.

    Near zero the distribution function is ``x^alpha / Gamma(alpha + 1)`` to every digit.

    Examples
    --------
    >>> float(log_gamma_quantile(np.array(1e-3), np.array(0.0)).round(2))
    -693.72
    """
    quantile = gamma_quantile(alpha, z)
    near_zero = (scipy.special.log_ndtr(z) + scipy.special.gammaln(alpha + 1)) / alpha
    return np.where(quantile > 1e-200, np.log(quantile), near_zero)


def bounded_log(x: Floats) -> Floats:
    """``log x``, with ``x`` raised to at least the smallest normal number."""
    return np.log(np.maximum(x, _TINY))


def _log_normaliser(alpha: Floats, beta: Floats) -> Floats:
    normaliser: Floats = scipy.special.gammaln(alpha) - alpha * np.log(beta)
    return normaliser


def _matrix(first: Floats, cross: Floats, second: Floats) -> Floats:
    """Symmetric two-by-two matrices."""
    return np.stack([np.stack([first, cross], axis=-1), np.stack([cross, second], axis=-1)], axis=-2)
