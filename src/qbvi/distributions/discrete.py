"""Priors of whole numbers: switches, categories and counts.

On the unconstrained scale the probability of a whole number is spread over its cell; see
`qbvi.WholeNumbers`.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from qbvi.arrays import Array, to_numpy
from qbvi.distributions.base import (
    Distribution,
    InFamily,
    Spec,
    as_shape,
    brief,
    broadcast_shape,
    check_probability,
    finite_numbers,
)
from qbvi.supports import Elementwise, Shape, WholeNumbers, like

__all__ = ["Bernoulli", "Categorical", "NegativeBinomial", "Poisson"]

Floats = NDArray[np.float64]


class Discrete(Distribution):
    """Independent whole numbers; subclasses give log-probabilities and draws."""

    support: Elementwise

    @property
    def can_sample(self) -> bool:
        """True: these priors are proper."""
        return True

    @abstractmethod
    def _log_mass(self, x: Floats) -> Floats:
        """Log-probability of each entry, given whole numbers in the support: (n, k) -> (n, k)."""

    @abstractmethod
    def _numbers(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """Draw: (n, k)."""

    def log_prob(self, x: Array) -> Array:
        """Log-probability, minus infinity outside the support: ``(n, *shape)`` -> (n,)."""
        flat = to_numpy(x).reshape(x.shape[0], self.dim)
        low, high = self.support.bounds(self.shape)
        inside = (flat >= low) & (flat <= high) & (flat == np.round(flat))
        terms = np.where(inside, self._log_mass(np.where(inside, flat, low)), -np.inf)
        return like(x, np.sum(np.where(np.isnan(flat), np.nan, terms), axis=-1))

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """Draw ``n`` values: ``(n, *shape)``."""
        return self._numbers(rng, n).astype(np.float64).reshape(n, *self.shape)


class Bernoulli(InFamily, Discrete):
    """Zero or one, such as whether a variable is in a regression.

    Parameters
    ----------
    p : array_like
        Probability of one.
    shape : int or tuple of int, optional
        Shape of the parameter. By default that of ``p``.

    Examples
    --------
    >>> Bernoulli(0.25).log_prob(np.array([0.0, 1.0])).round(6)
    array([-0.287682, -1.386294])
    """

    p: Floats

    def __init__(self, p: ArrayLike = 0.5, shape: int | Shape | None = None) -> None:
        super().__init__(WholeNumbers(0, 1), shape, {"p": p})
        check_probability("p", self._given["p"])

    def _log_mass(self, x: Floats) -> Floats:
        p = self._flat["p"]
        return np.asarray(scipy.special.xlogy(x, p) + scipy.special.xlog1py(1 - x, -p))

    def _numbers(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        return (rng.random((n, self.dim)) < self._flat["p"]).astype(np.int64)


class Poisson(InFamily, Discrete):
    """Counts of independent events.

    Parameters
    ----------
    rate : array_like
        Mean, positive.
    shape : int or tuple of int, optional
        Shape of the parameter. By default that of ``rate``.

    Examples
    --------
    >>> Poisson(2.0).log_prob(np.array([0.0]))
    array([-2.])
    """

    rate: Floats

    def __init__(self, rate: ArrayLike, shape: int | Shape | None = None) -> None:
        super().__init__(WholeNumbers(), shape, {"rate": rate}, positive=("rate",))

    def _log_mass(self, x: Floats) -> Floats:
        return np.asarray(
            scipy.special.xlogy(x, self._flat["rate"]) - scipy.special.gammaln(x + 1) - self._flat["rate"]
        )

    def _numbers(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        return rng.poisson(self._flat["rate"], (n, self.dim))


class NegativeBinomial(InFamily, Discrete):
    """Failures before ``count`` successes, each with probability ``p``, as in SciPy's ``nbinom``.

    Parameters
    ----------
    count : array_like of int
        Number of successes, at least one. It is fixed: the posterior has the same count.
    p : array_like
        Probability of a success, above zero. The mean is ``count * (1 - p) / p``.
    shape : int or tuple of int, optional
        Shape of the parameter. By default the broadcast shape of the others.

    Examples
    --------
    >>> NegativeBinomial(3, 0.25).log_prob(np.array([0.0])).round(6)
    array([-4.158883])
    """

    count: Floats
    p: Floats

    def __init__(self, count: ArrayLike, p: ArrayLike, shape: int | Shape | None = None) -> None:
        super().__init__(WholeNumbers(), shape, {"count": count, "p": p}, positive=("p",))
        check_probability("p", self._given["p"])
        counts = self._given["count"]
        if not np.all((counts >= 1) & (counts == np.round(counts))):
            msg = f"`count` must be a whole number of at least 1, got {brief(counts)}"
            raise ValueError(msg)

    def _log_mass(self, x: Floats) -> Floats:
        count, p = self._flat["count"], self._flat["p"]
        coefficient = scipy.special.gammaln(x + count) - scipy.special.gammaln(x + 1) - scipy.special.gammaln(count)
        return np.asarray(coefficient + count * np.log(p) + scipy.special.xlog1py(x, -p))

    def _numbers(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        return rng.negative_binomial(self._flat["count"], self._flat["p"], (n, self.dim))


class Categorical(Discrete):
    """One of 0, ..., K - 1, as one whole number.

    Parameters
    ----------
    probs : array_like (..., K)
        Probabilities, which sum to one along the last axis; K is at least 2.
    shape : int or tuple of int, optional
        Shape of the parameter. By default that of ``probs`` without its last axis.

    Examples
    --------
    >>> prior = Categorical([0.2, 0.3, 0.5])
    >>> prior.shape, prior.support
    ((), WholeNumbers(low=0.0, high=2.0))
    """

    holds_code = False

    def __init__(self, probs: ArrayLike, shape: int | Shape | None = None) -> None:
        self.probs = finite_numbers("probs", probs)
        _check_simplex(self.probs)
        leading = {"probs without its last axis": self.probs[..., 0]}
        self.shape = broadcast_shape(None if shape is None else as_shape(shape), leading)
        k = self.probs.shape[-1]
        self.support = WholeNumbers(0, k - 1)
        self._flat = np.broadcast_to(self.probs, (*self.shape, k)).reshape(-1, k)

    def parameters(self) -> dict[str, Floats]:
        """Probabilities (copies, K)."""
        return {"probs": self._flat.copy()}

    def to_spec(self) -> Spec:
        """Describe this prior as plain data."""
        return {"kind": "Categorical", "probs": self.probs.tolist(), "shape": list(self.shape)}

    def __repr__(self) -> str:
        shape = "" if self.shape == self.probs.shape[:-1] else f", shape={self.shape}"
        return f"Categorical(probs={brief(self.probs)}{shape})"

    def _log_mass(self, x: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            logs = np.log(self._flat)
        return logs[np.arange(self.dim), x.astype(np.int64)]

    def _numbers(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        cumulative = np.cumsum(self._flat, axis=-1)[:, :-1]
        return np.asarray(np.sum(rng.random((n, self.dim, 1)) > cumulative, axis=-1))


def _check_simplex(probs: Floats) -> None:
    if probs.ndim == 0 or probs.shape[-1] < 2:
        msg = f"`probs` must have 2 or more categories along its last axis, got shape {probs.shape}"
        raise ValueError(msg)
    check_probability("probs", probs)
    totals = np.sum(probs, axis=-1)
    off = np.abs(totals - 1)
    if np.max(off) > 1e-6:
        msg = f"`probs` must sum to one along its last axis, got {float(totals.flat[np.argmax(off)]):.6g}; divide by the sum"
        raise ValueError(msg)
