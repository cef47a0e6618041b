"""Probabilities: beta and Dirichlet distributions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.families.exponential import ExponentialFamily
from qbvi.families.gamma import bounded_log, log_gamma_quantile

__all__ = ["Beta", "Dirichlet"]

Floats = NDArray[np.float64]

_TINY = np.finfo(np.float64).tiny
_ALMOST_ONE = np.nextafter(1.0, 0.0)


@dataclass(frozen=True)
class _Concentrations(ExponentialFamily):
    """Logarithms of probabilities as statistics: ``lam = c - 1`` for concentrations c."""

    def one_log_normaliser(self, lam: Floats) -> Floats:
        """Log of the multivariate beta function."""
        c = lam + 1
        return np.asarray(np.sum(scipy.special.gammaln(c), axis=-1) - scipy.special.gammaln(np.sum(c, axis=-1)))

    def one_mean_parameter(self, lam: Floats) -> Floats:
        """digamma(c) - digamma(sum of c)."""
        c = lam + 1
        return np.asarray(scipy.special.digamma(c) - scipy.special.digamma(np.sum(c, axis=-1, keepdims=True)))

    def one_fisher(self, lam: Floats) -> Floats:
        """diag(trigamma(c)) - trigamma(sum of c)."""
        c = lam + 1
        total = scipy.special.polygamma(1, np.sum(c, axis=-1))
        return np.asarray(np.eye(c.shape[-1]) * scipy.special.polygamma(1, c)[..., None] - total[..., None, None])

    def one_is_inside(self, lam: Floats) -> NDArray[np.bool_]:
        """Whether the concentrations are positive."""
        return np.asarray(np.all(lam > -1, axis=-1))

    def one_way_out(self, lam: Floats, update: Floats) -> Floats:
        """Concentrations must stay positive."""
        return np.asarray(np.max(-update / (lam + 1), axis=-1))


@dataclass(frozen=True)
class Beta(_Concentrations):
    r"""Beta: :math:`\phi = (\log x, \log(1 - x))`, :math:`\lambda = (\alpha - 1, \beta - 1)`.

    Examples
    --------
    >>> family = Beta()
    >>> family.mean(family.member({"alpha": 1.0, "beta": 3.0}))
    array([0.25])
    """

    parameter_names: ClassVar[tuple[str, ...]] = ("alpha", "beta")

    @property
    def n_statistics(self) -> int:
        """Two."""
        return 2

    def one_statistics(self, x: Floats) -> Floats:
        """(log x, log(1 - x))."""
        x = np.clip(x, _TINY, _ALMOST_ONE)
        return np.concatenate([np.log(x), np.log1p(-x)], axis=-1)

    def one_draw(self, lam: Floats, z: Floats) -> Floats:
        """Beta quantiles at the probabilities of the normals, kept off 0 and 1."""
        alpha, beta = lam[..., :1] + 1, lam[..., 1:] + 1
        lower, upper = (
            scipy.special.betaincinv(alpha, beta, scipy.special.ndtr(z)),
            scipy.special.betainccinv(alpha, beta, scipy.special.ndtr(-z)),
        )
        return np.asarray(np.clip(np.where(z > 0, upper, lower), _TINY, _ALMOST_ONE))

    def one_moments(self, lam: Floats) -> tuple[Floats, Floats]:
        """``alpha / s`` and ``alpha beta / (s^2 (s + 1))``, where ``s = alpha + beta``."""
        alpha, beta = lam[..., :1] + 1, lam[..., 1:] + 1
        s = alpha + beta
        return alpha / s, ((alpha / s) * (beta / s) / (s + 1))[..., None]

    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """The beta distribution with this mean and, if possible, this standard deviation."""
        s = _total(mean, sd)
        return np.concatenate([s * mean, s * (1 - mean)], axis=-1) - 1

    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """(alpha - 1, beta - 1)."""
        alpha, beta = np.broadcast_arrays(parameters["alpha"], parameters["beta"])
        return np.stack([alpha - 1.0, beta - 1.0], axis=-1)

    def one_parameters(self, lam: Floats) -> dict[str, Floats]:
        """Alpha and beta."""
        return {"alpha": lam[..., 0] + 1, "beta": lam[..., 1] + 1}


@dataclass(frozen=True)
class Dirichlet(_Concentrations):
    r"""Dirichlet over ``k`` probabilities: :math:`\phi_i = \log x_i`, :math:`\lambda_i = c_i - 1`.

    A value holds all ``k`` probabilities. Its density is that of the first ``k - 1``.

    Parameters
    ----------
    k
        Number of probabilities, at least two.

    Examples
    --------
    >>> family = Dirichlet(k=3)
    >>> family.mean(family.member({"concentration": [1.0, 2.0, 5.0]}))
    array([0.125, 0.25 , 0.625])
    """

    k: int = 2
    event_axes: ClassVar[int] = 1
    parameter_names: ClassVar[tuple[str, ...]] = ("concentration",)

    @property
    def n_coordinates(self) -> int:
        """All k probabilities."""
        return self.k

    @property
    def n_statistics(self) -> int:
        """One per probability."""
        return self.k

    def one_statistics(self, x: Floats) -> Floats:
        """``log x``."""
        return bounded_log(x)

    def one_draw(self, lam: Floats, z: Floats) -> Floats:
        """Gamma quantiles over their sum, on the log scale so that none underflows."""
        log_gamma = log_gamma_quantile(lam + 1, z)
        return np.asarray(
            np.maximum(np.exp(log_gamma - scipy.special.logsumexp(log_gamma, axis=-1, keepdims=True)), _TINY)
        )

    def one_moments(self, lam: Floats) -> tuple[Floats, Floats]:
        """Mean ``c / s`` and covariance ``(diag(mean) - mean mean') / (s + 1)``, ``s = sum(c)``."""
        total = np.sum(lam + 1, axis=-1, keepdims=True)
        mean = (lam + 1) / total
        cov = mean[..., :, None] * (np.eye(self.k) - mean[..., None, :]) / (total[..., None] + 1)
        return mean, cov

    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """The distribution with this mean; the sds of the entries give the total concentration."""
        mean = mean / np.sum(mean, axis=-1, keepdims=True)
        return np.median(_total(mean, sd), axis=-1, keepdims=True) * mean - 1

    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """``c - 1``."""
        return np.asarray(parameters["concentration"], dtype=np.float64) - 1

    def one_parameters(self, lam: Floats) -> dict[str, Floats]:
        """The concentration."""
        return {"concentration": lam + 1}

    def one_textbook(self, lam: Floats) -> Floats:
        """The concentration."""
        return lam + 1

    def one_from_textbook(self, xi: Floats) -> Floats:
        """``c - 1``."""
        return xi - 1

    @classmethod
    def one_fields(cls, parameters: Mapping[str, Any]) -> dict[str, int]:
        """The number of probabilities."""
        return {"k": np.shape(parameters["concentration"])[-1]}


def _total(mean: Floats, sd: Floats) -> Floats:
    """Total concentration for which a probability has this mean and sd; at least 0.01."""
    return np.maximum(mean * (1 - mean) / sd**2 - 1, 1e-2)
