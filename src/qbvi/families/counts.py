"""Counts: Poisson and negative binomial distributions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.families.bounds import LARGEST_LOG_ODDS, covered
from qbvi.families.gamma import gamma_quantile
from qbvi.families.own_statistic import OwnStatistic

__all__ = ["NegativeBinomial", "Poisson"]

Floats = NDArray[np.float64]
_Distribution = Callable[[Floats], Floats]

_LOG_COUNT = 53 * np.log(2.0)  # double precision does not hold all whole numbers above 2^53
_LARGE_RATE = 1e3  # above it, five terms of the asymptotic Poisson entropy are exact to 1e-13
_STIRLING_STEP = 0.1  # step of the trapezoidal rule below; its error is about exp(-10 / step)


@dataclass(frozen=True)
class Poisson(OwnStatistic):
    r"""Poisson: :math:`\phi = x`, :math:`\lambda = \log \mathrm{rate}`, :math:`h = 1 / x!`.

    Examples
    --------
    >>> family = Poisson()
    >>> family.sd(family.member({"rate": 4.0}))
    array([2.])
    """

    parameter_names: ClassVar[tuple[str, ...]] = ("rate",)
    is_discrete: ClassVar[bool] = True

    def one_log_base(self, x: Floats) -> Floats:
        """``-log x!``."""
        return np.asarray(-scipy.special.gammaln(x[..., 0] + 1))

    def one_log_normaliser(self, lam: Floats) -> Floats:
        """The rate."""
        return np.exp(lam[..., 0])

    def one_mean_parameter(self, lam: Floats) -> Floats:
        """The rate."""
        return np.exp(lam)

    def one_fisher(self, lam: Floats) -> Floats:
        """The rate."""
        return np.exp(lam)[..., None]

    def one_entropy(self, lam: Floats) -> Floats:
        """``rate (1 - log rate) + E log x!``.

        For large rates the two terms cancel, and an asymptotic series replaces them.
        """
        log_rate = lam[..., 0]
        small = np.minimum(log_rate, np.log(_LARGE_RATE))
        exact = np.exp(small) * (1 - small) + _mean_log_factorial(np.exp(small))
        r = np.exp(-np.maximum(log_rate, np.log(_LARGE_RATE)))  # one over the rate
        series = (1 + np.log(2 * np.pi) + log_rate) / 2 - r / 12 - r**2 / 24 - 19 * r**3 / 360
        return np.asarray(np.where(log_rate < np.log(_LARGE_RATE), exact, series))

    def one_draw(self, lam: Floats, z: Floats) -> Floats:
        """Poisson quantiles at the probabilities of the normals."""
        rate = np.exp(lam)
        guess = rate + np.sqrt(rate) * z + (z**2 - 1) / 6  # Cornish-Fisher, from three moments
        return _quantile(
            lambda x: scipy.special.gammaincc(x + 1, rate), lambda x: scipy.special.gammainc(x + 1, rate), z, guess
        )

    def one_is_inside(self, lam: Floats) -> NDArray[np.bool_]:
        """Whether double precision can hold the rate, and the counts exactly."""
        return np.asarray(np.all((lam >= -LARGEST_LOG_ODDS) & (lam <= _LOG_COUNT), axis=-1))

    def one_way_out(self, lam: Floats, update: Floats) -> Floats:
        """Fraction of the distance to the bound on the log rate."""
        return covered(lam, update, -LARGEST_LOG_ODDS, _LOG_COUNT)

    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """The distribution with this mean."""
        return np.clip(np.log(np.where(mean >= 0, mean, np.nan)), -LARGEST_LOG_ODDS, _LOG_COUNT)

    def one_defensive(self, lam: Floats) -> Floats:
        """Raise the mean to at least 0.5, so that values other than zero occur."""
        return np.maximum(lam, np.log(0.5))

    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """``log rate``."""
        rate = np.asarray(parameters["rate"], dtype=np.float64)[..., None]
        with np.errstate(divide="ignore"):
            return np.maximum(np.log(np.where(rate >= 0, rate, np.nan)), -LARGEST_LOG_ODDS)

    def one_parameters(self, lam: Floats) -> dict[str, Floats]:
        """The rate."""
        return {"rate": np.exp(lam[..., 0])}

    def one_jacobian(self, lam: Floats) -> Floats:
        """1 / rate."""
        return np.exp(-lam)[..., None]


@dataclass(frozen=True)
class NegativeBinomial(OwnStatistic):
    r"""Failures before ``count`` successes with probability p, as in SciPy's ``nbinom``.

    :math:`\phi = x` and :math:`\lambda = \log(1 - p)`. The base measure is the binomial
    coefficient of ``x + count - 1`` over ``x``.

    Parameters
    ----------
    count
        The fixed number of successes, a whole number of at least one.

    Examples
    --------
    >>> family = NegativeBinomial(count=3)
    >>> family.mean(family.member({"p": 0.25}))
    array([9.])
    """

    count: int = 1
    parameter_names: ClassVar[tuple[str, ...]] = ("p",)
    is_discrete: ClassVar[bool] = True

    def one_log_base(self, x: Floats) -> Floats:
        """Log of the binomial coefficient."""
        x = x[..., 0]
        return np.asarray(
            scipy.special.gammaln(x + self.count) - scipy.special.gammaln(x + 1) - scipy.special.gammaln(self.count)
        )

    def one_log_normaliser(self, lam: Floats) -> Floats:
        """``-count log p``."""
        return -self.count * np.log(-np.expm1(lam[..., 0]))

    def one_mean_parameter(self, lam: Floats) -> Floats:
        """``count (1 - p) / p``."""
        return self.count / np.expm1(-lam)

    def one_fisher(self, lam: Floats) -> Floats:
        """``count (1 - p) / p^2``."""
        return (self.count / (np.expm1(-lam) * -np.expm1(lam)))[..., None]

    def one_entropy(self, lam: Floats) -> Floats:
        """``A - lam m``, less the mean of the log binomial coefficient."""
        log_failure = lam[..., 0]
        regular = self.one_log_normaliser(lam) - log_failure * self.one_mean_parameter(lam)[..., 0]
        return regular - _mean_log_binomial(log_failure, self.count)

    def one_draw(self, lam: Floats, z: Floats) -> Floats:
        """Negative binomial quantiles at the probabilities of the normals."""
        p = -np.expm1(lam)
        guess = gamma_quantile(self.count * np.exp(lam), z) / p  # gamma with this mean and variance
        return _quantile(
            lambda x: scipy.special.betainc(self.count, x + 1, p),
            lambda x: scipy.special.betaincc(self.count, x + 1, p),
            z,
            guess,
        )

    def one_is_inside(self, lam: Floats) -> NDArray[np.bool_]:
        """Whether p lies between zero and one, as far as double precision can hold it."""
        return np.asarray(np.all((lam < 0) & (lam >= -LARGEST_LOG_ODDS), axis=-1))

    def one_way_out(self, lam: Floats, update: Floats) -> Floats:
        """Fraction of the distance to the bounds on ``log(1 - p)``."""
        return covered(lam, update, -LARGEST_LOG_ODDS, 0.0)

    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """The distribution with this mean."""
        return np.maximum(-np.log1p(self.count / np.where(mean >= 0, mean, np.nan)), -LARGEST_LOG_ODDS)

    def one_defensive(self, lam: Floats) -> Floats:
        """Raise the mean to at least 0.5, so that values other than zero occur."""
        return np.asarray(np.maximum(lam, -np.log1p(2.0 * self.count)))

    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """``log(1 - p)``, within the bound of double precision."""
        p = np.asarray(parameters["p"], dtype=np.float64)[..., None]
        with np.errstate(divide="ignore"):
            return np.maximum(np.log1p(-np.where(p <= 1, p, np.nan)), -LARGEST_LOG_ODDS)

    def one_parameters(self, lam: Floats) -> dict[str, Floats]:
        """``p``."""
        return {"p": -np.expm1(lam[..., 0])}

    def one_jacobian(self, lam: Floats) -> Floats:
        """-1 / (1 - p)."""
        return -np.exp(-lam)[..., None]

    @classmethod
    def one_fields(cls, parameters: Mapping[str, Any]) -> dict[str, int]:
        """The number of successes, which all copies share."""
        counts = np.unique(parameters["count"])
        if len(counts) != 1:
            msg = f"`count` must be the same for all copies of a NegativeBinomial, got {counts.tolist()}; make them separate parameters"
            raise ValueError(msg)
        return {"count": int(counts[0])}


def _quantile(cdf: _Distribution, tail: _Distribution, z: Floats, guess: Floats) -> Floats:
    """Smallest whole number whose distribution function reaches Phi(z), in the nearer tail.

    The result never decreases with z.
    """

    def reached(x: Floats) -> NDArray[np.bool_]:
        return np.asarray(
            np.where(z > 0, tail(x) <= scipy.special.ndtr(-z), cdf(x) >= scipy.special.ndtr(z)) & (x >= 0)
        )

    high = np.maximum(np.floor(guess), 0.0)
    low, stride = high - 1, 1.0
    while np.any(beyond := reached(low)):
        low, high = np.where(beyond, np.maximum(low - stride, -1.0), low), np.where(beyond, low, high)
        stride *= 2
    stride = 1.0
    while not np.all(enough := reached(high)):
        low, high = np.where(enough, low, high), np.where(enough, high, high + stride)
        stride *= 2
    while np.any(high - low > 1):
        middle = np.floor((low + high) / 2)
        enough = reached(middle)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def _mean_log_factorial(rate: Floats) -> Floats:
    r"""E log x! for Poisson rates (...), by an integral for log x! in which only E s^x is needed.

    .. math::
        \log x! = \int_0^1 \Big(\frac{1 - s^x}{1 - s} - x\Big) \frac{ds}{\log s}, \qquad
        E s^x = e^{-\mathrm{rate} (1 - s)}
    """
    t, weight = _log_grid()
    v = rate[..., None] * -np.expm1(-t)
    series = v / 2 * (1 - v / 3 * (1 - v / 4 * (1 - v / 5)))
    excess = np.where(v < 1e-3, series, (v + np.expm1(-v)) / np.where(v > 0, v, 1.0))
    mean: Floats = rate * np.sum(weight * np.exp(-t) * excess, axis=-1)
    return mean


def _mean_log_binomial(log_failure: Floats, count: int) -> Floats:
    r"""Mean of the log binomial coefficient of negative binomials (...), by a similar integral.

    .. math::
        \log \frac{\Gamma(x + r)}{\Gamma(r)\, x!}
            = \int_0^1 \frac{1 - s^x}{1 - s} \frac{s^{r - 1} - 1}{\log s} ds, \qquad
        E s^x = \Big(1 + \frac{1 - p}{p} (1 - s)\Big)^{-r}
    """
    t, weight = _log_grid()
    u = -np.expm1(-t)
    lost = -np.expm1(-count * np.log1p(u / np.expm1(-log_failure)[..., None]))  # 1 - E s^x
    mean: Floats = np.sum(weight * np.exp(-t) * lost / u * -np.expm1(-(count - 1) * t), axis=-1)
    return mean


def _log_grid() -> tuple[Floats, float]:
    """Points t = -log s, and the weight of dt / t: the trapezoidal rule in log t.

    It converges exponentially for these integrands.
    """
    return np.exp(np.arange(-80.0, 4.5, _STIRLING_STEP)), _STIRLING_STEP
