"""Whole numbers: Bernoulli, categorical, Poisson and negative binomial distributions.

The natural parameters have no boundary on at least one side, but double precision cannot represent
members far out. The bounds below act as the boundary. Beyond them the square of a probability
underflows, or counts are no longer exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import (
    betainc,
    betaincc,
    expit,
    gammainc,
    gammaincc,
    gammaln,
    logit,
    logsumexp,
    ndtr,
)

from qbvi.families.exponential import ExponentialFamily
from qbvi.families.gamma import gamma_quantile

__all__ = ["Bernoulli", "Categorical", "NegativeBinomial", "Poisson"]

Floats = NDArray[np.float64]
_Distribution = Callable[[Floats], Floats]

_LOG_ODDS = 300.0  # exp(-600), the square of the smallest probability, is still a normal number
_CERTAIN = 25.0  # log odds beyond which a value counts as certain
_LOG_COUNT = 53 * np.log(2.0)  # double precision does not hold all whole numbers above 2^53
_LARGE_RATE = 1e3  # above it, five terms of the asymptotic Poisson entropy are exact to 1e-13
_STIRLING_STEP = 0.1  # step of the trapezoidal rule below; its error is about exp(-10 / step)


@dataclass(frozen=True)
class Bernoulli(ExponentialFamily):
    r"""Zero or one: :math:`\phi = x`, :math:`\lambda = \log(p / (1 - p))`.

    Examples
    --------
    >>> family = Bernoulli()
    >>> family.entropy(family.member({"p": 0.5})).round(6)
    np.float64(0.693147)
    """

    parameter_names: ClassVar[tuple[str, ...]] = ("p",)
    is_discrete: ClassVar[bool] = True

    @property
    def n_statistics(self) -> int:
        """One."""
        return 1

    def one_statistics(self, x: Floats) -> Floats:
        """``x``."""
        return x

    def one_log_normaliser(self, lam: Floats) -> Floats:
        """``log(1 + exp(lam))``."""
        return np.logaddexp(0.0, lam[..., 0])

    def one_mean_parameter(self, lam: Floats) -> Floats:
        """``p``."""
        return np.asarray(expit(lam))

    def one_centred(self, lam: Floats, x: Floats) -> Floats:
        """``1 - p`` or ``-p``; near one, ``x - p`` would round to zero."""
        return np.asarray(np.where(x > 0.5, expit(-lam), -expit(lam)))

    def one_fisher(self, lam: Floats) -> Floats:
        """``p (1 - p)``."""
        return np.asarray(expit(lam) * expit(-lam))[..., None]

    def one_entropy(self, lam: Floats) -> Floats:
        """Entropy, computed from the log-odds of the rarer value so that no digits are lost."""
        rarer = -np.abs(lam[..., 0])
        return np.asarray(np.log1p(np.exp(rarer)) - rarer * expit(rarer))

    def one_draw(self, lam: Floats, z: Floats) -> Floats:
        """Whether Phi(z) exceeds 1 - p, computed in the nearer tail."""
        is_one = np.where(lam < 0, ndtr(-z) < expit(lam), ndtr(z) > expit(-lam))
        return np.asarray(is_one.astype(np.float64))

    def one_is_inside(self, lam: Floats) -> NDArray[np.bool_]:
        """Whether double precision can hold the log-odds."""
        return np.asarray(np.all(np.abs(lam) <= _LOG_ODDS, axis=-1))

    def one_way_out(self, lam: Floats, update: Floats) -> Floats:
        """Fraction of the distance to the bound on the log-odds."""
        return _share(lam, update, -_LOG_ODDS, _LOG_ODDS)

    def one_moments(self, lam: Floats) -> tuple[Floats, Floats]:
        """``p`` and ``p (1 - p)``."""
        return self.one_mean_parameter(lam), self.one_fisher(lam)

    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """The distribution with this mean."""
        return np.asarray(np.clip(logit(mean), -_LOG_ODDS, _LOG_ODDS))

    def one_defensive(self, lam: Floats) -> Floats:
        """Give both values a probability of at least 0.1.

        Draws that all agree say nothing about the effect of the switch.
        """
        return np.clip(lam, -np.log(9.0), np.log(9.0))

    def one_saturated(self, lam: Floats) -> Floats:
        """Limit the log odds to 25: 1 in 7e10 counts as certain, and more is lost in rounding."""
        return np.clip(lam, -_CERTAIN, _CERTAIN)

    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """``logit(p)``, within the bound of double precision."""
        log_odds = logit(np.asarray(parameters["p"], dtype=np.float64))[..., None]
        return np.asarray(np.clip(log_odds, -_LOG_ODDS, _LOG_ODDS))

    def one_parameters(self, lam: Floats) -> dict[str, Floats]:
        """``p``."""
        return {"p": np.asarray(expit(lam[..., 0]))}

    def one_jacobian(self, lam: Floats) -> Floats:
        """1 / (p (1 - p))."""
        return 1 / self.one_fisher(lam)


@dataclass(frozen=True)
class Categorical(ExponentialFamily):
    r"""One of 0, ..., k - 1, as one whole number.

    For :math:`j \ge 1`, :math:`\phi_j = [x = j]` and :math:`\lambda_j = \log(p_j / p_0)`.

    Parameters
    ----------
    k
        Number of categories, at least two.

    Examples
    --------
    >>> family = Categorical(k=3)
    >>> q = family.member({"probs": [0.2, 0.3, 0.5]})
    >>> family.parameters(q)["probs"]
    array([[0.2, 0.3, 0.5]])
    >>> family.transport(q, np.array([[-2.0], [0.0], [2.0]]))
    array([[0.],
           [1.],
           [2.]])
    """

    k: int = 2
    parameter_names: ClassVar[tuple[str, ...]] = ("probs",)
    is_discrete: ClassVar[bool] = True

    @property
    def n_statistics(self) -> int:
        """One per category, except the first."""
        return self.k - 1

    def one_statistics(self, x: Floats) -> Floats:
        """Whether x is 1, 2, ..., k - 1."""
        return np.asarray((np.round(x) == np.arange(1, self.k)).astype(np.float64))

    def one_log_normaliser(self, lam: Floats) -> Floats:
        """log(1 + sum exp(lam))."""
        return np.asarray(logsumexp(_logits(lam), axis=-1))

    def one_mean_parameter(self, lam: Floats) -> Floats:
        """Probabilities of all categories except the first."""
        return _probabilities(lam)[..., 1:]

    def one_centred(self, lam: Floats, x: Floats) -> Floats:
        """``1 - p_j`` or ``-p_j``, with ``1 - p_j`` computed as the sum of the others."""
        probs = _probabilities(lam)
        others = probs @ (1 - np.eye(self.k))
        return np.where(self.one_statistics(x) > 0.5, others[..., 1:], -probs[..., 1:])

    def one_fisher(self, lam: Floats) -> Floats:
        """diag(p) - p p'."""
        probs = _probabilities(lam)
        others, p = (probs @ (1 - np.eye(self.k)))[..., 1:], probs[..., 1:]
        diagonal = np.eye(self.k - 1)
        return diagonal * (p * others)[..., None] - (1 - diagonal) * p[..., :, None] * p[..., None, :]

    def one_whitener(self, lam: Floats) -> Floats:
        r"""Closed form without differences, exact for probabilities near zero and one.

        Let :math:`r_j = p_0 + \sum_{i > j} p_i` be the probability that remains after category j.
        The features are :math:`[x = j] - p_j / r_{j-1} [x \notin \{1 .. j-1\}]`, divided by their
        standard deviations.
        """
        probs = _probabilities(lam)
        left = probs[..., :1] + _suffix_sums(probs[..., 1:])  # r_0, ..., r_{k-2}
        after = np.concatenate([left[..., 1:], probs[..., :1]], axis=-1)  # r_1, ..., r_{k-1} = p_0
        p = probs[..., 1:]
        earlier = np.tril(np.ones((self.k - 1, self.k - 1)), -1)
        rows = np.eye(self.k - 1) + earlier * (p / left)[..., None]
        return np.asarray(rows * np.sqrt(left / p / after)[..., None])

    def one_entropy(self, lam: Floats) -> Floats:
        """-sum p log p."""
        logs = _log_probabilities(lam)
        return np.asarray(-np.sum(np.exp(logs) * logs, axis=-1))

    def one_draw(self, lam: Floats, z: Floats) -> Floats:
        """Number of cumulative probabilities below Phi(z), each computed in its nearer tail."""
        probs = _probabilities(lam)
        below, above = np.cumsum(probs, axis=-1)[..., :-1], _suffix_sums(probs)[..., 1:]
        exceeds = np.where(below < 0.5, ndtr(z) > below, ndtr(-z) < above)
        return np.asarray(np.sum(exceeds, axis=-1, keepdims=True).astype(np.float64))

    def one_is_inside(self, lam: Floats) -> NDArray[np.bool_]:
        """Whether double precision can hold the log-odds."""
        return np.asarray(np.all(np.abs(lam) <= _LOG_ODDS, axis=-1))

    def one_way_out(self, lam: Floats, update: Floats) -> Floats:
        """Fraction of the distance to the bound on the log-odds."""
        return _share(lam, update, -_LOG_ODDS, _LOG_ODDS)

    def one_moments(self, lam: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of the category's number."""
        probs, number = _probabilities(lam), np.arange(self.k)
        mean = np.sum(probs * number, axis=-1, keepdims=True)
        return mean, np.sum(probs * (number - mean) ** 2, axis=-1)[..., None, None]

    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """Probabilities proportional to a normal density with this mean and standard deviation."""
        number = np.arange(1, self.k)
        return np.clip(number * (mean - number / 2) / sd**2, -_LOG_ODDS, _LOG_ODDS)

    def one_defensive(self, lam: Floats) -> Floats:
        """Mix with the uniform distribution, which gets weight 1/4."""
        return self.one_natural({"probs": 0.75 * _probabilities(lam) + 0.25 / self.k})

    def one_saturated(self, lam: Floats) -> Floats:
        """Keep every category within 25 in log odds of the most likely one."""
        logs = np.concatenate([np.zeros_like(lam[..., :1]), lam], axis=-1)
        logs = np.maximum(logs - np.max(logs, axis=-1, keepdims=True), -_CERTAIN)
        return np.asarray(logs[..., 1:] - logs[..., :1])

    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """``log(p_j / p_0)``, within the bound of double precision."""
        probs = np.asarray(parameters["probs"], dtype=np.float64)
        with np.errstate(divide="ignore"):
            logs = np.log(np.where(probs >= 0, probs, np.nan))
        logs = np.maximum(logs, -_LOG_ODDS)
        return np.asarray(np.clip(logs[..., 1:] - logs[..., :1], -_LOG_ODDS, _LOG_ODDS))

    def one_parameters(self, lam: Floats) -> dict[str, Floats]:
        """Probabilities of all categories."""
        return {"probs": _probabilities(lam)}

    def one_textbook(self, lam: Floats) -> Floats:
        """Probabilities of all categories except the first; they vary freely."""
        return _probabilities(lam)[..., 1:]

    def one_from_textbook(self, xi: Floats) -> Floats:
        """The first probability is one minus the others."""
        first = 1 - np.sum(xi, axis=-1, keepdims=True)
        return self.one_natural({"probs": np.concatenate([first, xi], axis=-1)})

    def one_jacobian(self, lam: Floats) -> Floats:
        """``diag(1 / p) + 1 / p_0``.

        It inverts the Fisher information: these textbook parameters are the mean parameters.
        """
        probs = _probabilities(lam)
        return np.eye(self.k - 1) / probs[..., None, 1:] + 1 / probs[..., :1, None]

    @classmethod
    def one_fields(cls, parameters: Mapping[str, Any]) -> dict[str, int]:
        """The number of categories."""
        return {"k": np.shape(parameters["probs"])[-1]}


@dataclass(frozen=True)
class Poisson(ExponentialFamily):
    r"""Poisson: :math:`\phi = x`, :math:`\lambda = \log \mathrm{rate}`, :math:`h = 1 / x!`.

    Examples
    --------
    >>> family = Poisson()
    >>> family.sd(family.member({"rate": 4.0}))
    array([2.])
    """

    parameter_names: ClassVar[tuple[str, ...]] = ("rate",)
    is_discrete: ClassVar[bool] = True

    @property
    def n_statistics(self) -> int:
        """One."""
        return 1

    def one_statistics(self, x: Floats) -> Floats:
        """``x``."""
        return x

    def one_log_base(self, x: Floats) -> Floats:
        """``-log x!``."""
        return np.asarray(-gammaln(x[..., 0] + 1))

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
        return _quantile(lambda x: gammaincc(x + 1, rate), lambda x: gammainc(x + 1, rate), z, guess)

    def one_is_inside(self, lam: Floats) -> NDArray[np.bool_]:
        """Whether double precision can hold the rate, and the counts exactly."""
        return np.asarray(np.all((lam >= -_LOG_ODDS) & (lam <= _LOG_COUNT), axis=-1))

    def one_way_out(self, lam: Floats, update: Floats) -> Floats:
        """Fraction of the distance to the bound on the log rate."""
        return _share(lam, update, -_LOG_ODDS, _LOG_COUNT)

    def one_moments(self, lam: Floats) -> tuple[Floats, Floats]:
        """The rate, twice."""
        return np.exp(lam), np.exp(lam)[..., None]

    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """The distribution with this mean."""
        return np.clip(np.log(np.where(mean >= 0, mean, np.nan)), -_LOG_ODDS, _LOG_COUNT)

    def one_defensive(self, lam: Floats) -> Floats:
        """Raise the mean to at least 0.5, so that values other than zero occur."""
        return np.maximum(lam, np.log(0.5))

    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """``log rate``."""
        rate = np.asarray(parameters["rate"], dtype=np.float64)[..., None]
        with np.errstate(divide="ignore"):
            return np.maximum(np.log(np.where(rate >= 0, rate, np.nan)), -_LOG_ODDS)

    def one_parameters(self, lam: Floats) -> dict[str, Floats]:
        """The rate."""
        return {"rate": np.exp(lam[..., 0])}

    def one_jacobian(self, lam: Floats) -> Floats:
        """1 / rate."""
        return np.exp(-lam)[..., None]


@dataclass(frozen=True)
class NegativeBinomial(ExponentialFamily):
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

    @property
    def n_statistics(self) -> int:
        """One."""
        return 1

    def one_statistics(self, x: Floats) -> Floats:
        """``x``."""
        return x

    def one_log_base(self, x: Floats) -> Floats:
        """Log of the binomial coefficient."""
        x = x[..., 0]
        return np.asarray(gammaln(x + self.count) - gammaln(x + 1) - gammaln(self.count))

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
        return _quantile(lambda x: betainc(self.count, x + 1, p), lambda x: betaincc(self.count, x + 1, p), z, guess)

    def one_is_inside(self, lam: Floats) -> NDArray[np.bool_]:
        """Whether p lies between zero and one, as far as double precision can hold it."""
        return np.asarray(np.all((lam < 0) & (lam >= -_LOG_ODDS), axis=-1))

    def one_way_out(self, lam: Floats, update: Floats) -> Floats:
        """Fraction of the distance to the bounds on ``log(1 - p)``."""
        return _share(lam, update, -_LOG_ODDS, 0.0)

    def one_moments(self, lam: Floats) -> tuple[Floats, Floats]:
        """``count (1 - p) / p`` and ``count (1 - p) / p^2``."""
        return self.one_mean_parameter(lam), self.one_fisher(lam)

    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """The distribution with this mean."""
        return np.maximum(-np.log1p(self.count / np.where(mean >= 0, mean, np.nan)), -_LOG_ODDS)

    def one_defensive(self, lam: Floats) -> Floats:
        """Raise the mean to at least 0.5, so that values other than zero occur."""
        return np.asarray(np.maximum(lam, -np.log1p(2.0 * self.count)))

    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """``log(1 - p)``, within the bound of double precision."""
        p = np.asarray(parameters["p"], dtype=np.float64)[..., None]
        with np.errstate(divide="ignore"):
            return np.maximum(np.log1p(-np.where(p <= 1, p, np.nan)), -_LOG_ODDS)

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


def _share(lam: Floats, update: Floats, low: float, high: float) -> Floats:
    """Largest fraction of the distance to the bound, in the update's direction, that it covers."""
    distance = np.where(update > 0, high - lam, lam - low)
    with np.errstate(divide="ignore", over="ignore"):  # at the bound the distance is zero
        shares = np.abs(update) / np.where(update == 0, 1.0, distance)
    return np.asarray(np.max(shares, axis=-1))


def _logits(lam: Floats) -> Floats:
    return np.concatenate([np.zeros_like(lam[..., :1]), lam], axis=-1)


def _log_probabilities(lam: Floats) -> Floats:
    """Log-probabilities of all categories, exact near zero and one: (..., k - 1) -> (..., k)."""
    shifted = _logits(lam)
    shifted = shifted - np.max(shifted, axis=-1, keepdims=True)
    is_largest = np.arange(shifted.shape[-1]) == np.argmax(shifted, axis=-1)[..., None]
    others = np.sum(np.where(is_largest, 0.0, np.exp(shifted)), axis=-1, keepdims=True)
    return np.asarray(shifted - np.log1p(others))


def _probabilities(lam: Floats) -> Floats:
    return np.exp(_log_probabilities(lam))


def _suffix_sums(p: Floats) -> Floats:
    return np.flip(np.cumsum(np.flip(p, axis=-1), axis=-1), axis=-1)


def _quantile(cdf: _Distribution, tail: _Distribution, z: Floats, guess: Floats) -> Floats:
    """Smallest whole number whose distribution function reaches Phi(z), in the nearer tail.

    The result never decreases with z.
    """

    def reached(x: Floats) -> NDArray[np.bool_]:
        return np.asarray(np.where(z > 0, tail(x) <= ndtr(-z), cdf(x) >= ndtr(z)) & (x >= 0))

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
