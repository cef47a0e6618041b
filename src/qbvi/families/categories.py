"""One of finitely many values: Bernoulli and categorical distributions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.families.bounds import LARGEST_LOG_ODDS, covered
from qbvi.families.exponential import ExponentialFamily
from qbvi.families.own_statistic import OwnStatistic

__all__ = ["Bernoulli", "Categorical"]

Floats = NDArray[np.float64]

_CERTAIN = 25.0  # log odds beyond which a value counts as certain


@dataclass(frozen=True)
class Bernoulli(OwnStatistic):
    r"""Zero or one: :math:`\phi = x`, :math:`\lambda = \log(p / (1 - p))`.

    Examples
    --------
    >>> family = Bernoulli()
    >>> family.entropy(family.member({"p": 0.5})).round(6)
    np.float64(0.693147)
    """

    parameter_names: ClassVar[tuple[str, ...]] = ("p",)
    is_discrete: ClassVar[bool] = True

    def one_log_normaliser(self, lam: Floats) -> Floats:
        """``log(1 + exp(lam))``."""
        return np.logaddexp(0.0, lam[..., 0])

    def one_mean_parameter(self, lam: Floats) -> Floats:
        """``p``."""
        return np.asarray(scipy.special.expit(lam))

    def one_centred(self, lam: Floats, x: Floats) -> Floats:
        """``1 - p`` or ``-p``; near one, ``x - p`` would round to zero."""
        return np.asarray(np.where(x > 0.5, scipy.special.expit(-lam), -scipy.special.expit(lam)))

    def one_fisher(self, lam: Floats) -> Floats:
        """``p (1 - p)``."""
        return np.asarray(scipy.special.expit(lam) * scipy.special.expit(-lam))[..., None]

    def one_entropy(self, lam: Floats) -> Floats:
        """Entropy, computed from the log-odds of the rarer value so that no digits are lost."""
        rarer = -np.abs(lam[..., 0])
        return np.asarray(np.log1p(np.exp(rarer)) - rarer * scipy.special.expit(rarer))

    def one_draw(self, lam: Floats, z: Floats) -> Floats:
        """Whether Phi(z) exceeds 1 - p, computed in the nearer tail."""
        is_one = np.where(
            lam < 0,
            scipy.special.ndtr(-z) < scipy.special.expit(lam),
            scipy.special.ndtr(z) > scipy.special.expit(-lam),
        )
        return np.asarray(is_one.astype(np.float64))

    def one_is_inside(self, lam: Floats) -> NDArray[np.bool_]:
        """Whether double precision can hold the log-odds."""
        return np.asarray(np.all(np.abs(lam) <= LARGEST_LOG_ODDS, axis=-1))

    def one_way_out(self, lam: Floats, update: Floats) -> Floats:
        """Fraction of the distance to the bound on the log-odds."""
        return covered(lam, update, -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)

    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """The distribution with this mean."""
        return np.asarray(np.clip(scipy.special.logit(mean), -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS))

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
        log_odds = scipy.special.logit(np.asarray(parameters["p"], dtype=np.float64))[..., None]
        return np.asarray(np.clip(log_odds, -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS))

    def one_parameters(self, lam: Floats) -> dict[str, Floats]:
        """``p``."""
        return {"p": np.asarray(scipy.special.expit(lam[..., 0]))}

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
        return np.asarray(scipy.special.logsumexp(_logits(lam), axis=-1))

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
        exceeds = np.where(below < 0.5, scipy.special.ndtr(z) > below, scipy.special.ndtr(-z) < above)
        return np.asarray(np.sum(exceeds, axis=-1, keepdims=True).astype(np.float64))

    def one_is_inside(self, lam: Floats) -> NDArray[np.bool_]:
        """Whether double precision can hold the log-odds."""
        return np.asarray(np.all(np.abs(lam) <= LARGEST_LOG_ODDS, axis=-1))

    def one_way_out(self, lam: Floats, update: Floats) -> Floats:
        """Fraction of the distance to the bound on the log-odds."""
        return covered(lam, update, -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)

    def one_moments(self, lam: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of the category's number."""
        probs, number = _probabilities(lam), np.arange(self.k)
        mean = np.sum(probs * number, axis=-1, keepdims=True)
        return mean, np.sum(probs * (number - mean) ** 2, axis=-1)[..., None, None]

    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """Probabilities proportional to a normal density with this mean and standard deviation."""
        number = np.arange(1, self.k)
        return np.clip(number * (mean - number / 2) / sd**2, -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)

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
        logs = np.maximum(logs, -LARGEST_LOG_ODDS)
        return np.asarray(np.clip(logs[..., 1:] - logs[..., :1], -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS))

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
