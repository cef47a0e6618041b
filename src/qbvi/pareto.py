"""Pareto-smoothed importance weights: the tail of the ratios as a generalised Pareto distribution.

The formulas are those of the two papers named below. `arviz_stats` has them too, and a test
compares the results, but its import takes several times as long as that of qbvi.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import NDArray

__all__ = ["TAIL", "pareto_smoothed", "tail_size"]

# The tail is a fifth of the n ratios or, if that is fewer, 3 sqrt(n) of them (Vehtari, Simpson,
# Gelman, Yao and Gabry, "Pareto smoothed importance sampling", 2024).
TAIL = 0.2, 3.0
_FIFTH_UP_TO = 225  # draws at which the two agree
_CANDIDATES = 30  # values of b, plus the root of the number of tail ratios
_SPREAD = 3  # of the candidates, in first quartiles of the tail
_PRIOR_K, _PRIOR_WEIGHT = 0.5, 10  # mean of the prior of k, and the ratios that it is worth
_NEGLIGIBLE = 10 * np.finfo(np.float64).eps  # weight of a candidate that is left out


def pareto_smoothed(h: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Log weights with smoothed tail, normalised, and k-hat, from log ratios ``h`` (n,), n >= 25.

    The largest ratios are replaced by quantiles of the generalised Pareto distribution that is
    fitted to them. The weights are NaN if its scale is not positive.

    Raises
    ------
    ValueError
        If all ratios of the tail are equal.

    Examples
    --------
    >>> import numpy as np
    >>> log_weights, khat = pareto_smoothed(np.random.default_rng(1).standard_normal(1000))
    >>> round(khat, 1), round(float(np.exp(log_weights).sum()), 6)
    (0.3, 1.0)
    """
    n = len(h)
    m = tail_size(n)
    log_weights = h - np.max(h)
    order = np.argsort(log_weights)
    below, tail = order[n - m - 1], order[n - m :]
    if log_weights[tail[-1]] - log_weights[tail[0]] < np.finfo(np.float64).tiny:
        msg = "`h` must differ among its largest values, got equal ones: they have no tail"
        raise ValueError(msg)
    cutoff = np.exp(log_weights[below])
    khat, sigma = _generalised_pareto(np.exp(log_weights[tail]) - cutoff)
    if math.isfinite(khat):
        smoothed = np.log(_quantiles(m, khat, sigma, cutoff))
        log_weights[tail] = np.minimum(smoothed, log_weights[tail[-1]])
    return np.asarray(log_weights - scipy.special.logsumexp(log_weights)), khat


def tail_size(n: int) -> int:
    """Number of ratios in the tail of n.

    Examples
    --------
    >>> tail_size(100), tail_size(10000)
    (20, 300)
    """
    return math.floor(TAIL[1] * n**0.5 if n > _FIFTH_UP_TO else n / 5)


def _generalised_pareto(x: NDArray[np.float64]) -> tuple[float, float]:
    r"""Shape k and scale sigma from exceedances x (m,), sorted.

    The parameters are ``b = -k / sigma`` and k. Given b, the best k is ``mean(log1p(-b x))``. So
    the estimate of b is its posterior mean over candidates with an empirical prior (Zhang and
    Stephens, "A new and efficient estimation method for the generalized Pareto distribution",
    2009). A prior on k with the weight of a few ratios steadies small tails.
    """
    m = len(x)
    n_candidates = _CANDIDATES + int(m**0.5)
    j = np.arange(1, n_candidates + 1, dtype=np.float64)
    quartile = x[int(m / 4 + 0.5) - 1]
    b = (1 - np.sqrt(n_candidates / (j - 0.5))) / (_SPREAD * quartile) + 1 / x[-1]
    k = np.mean(np.log1p(-b[:, None] * x), axis=1)
    log_likelihood = m * (np.log(-b / k) - k - 1)
    weights = np.exp(log_likelihood - scipy.special.logsumexp(log_likelihood))
    kept = weights >= _NEGLIGIBLE
    weights = weights[kept] / weights[kept].sum()
    mean_b = np.sum(b[kept] * weights)
    best_k = np.mean(np.log1p(-mean_b * x))
    shrunk = (m * best_k + _PRIOR_WEIGHT * _PRIOR_K) / (m + _PRIOR_WEIGHT)
    return float(shrunk), float(-best_k / mean_b)


def _quantiles(m: int, k: float, sigma: float, cutoff: float) -> NDArray[np.float64]:
    if sigma <= 0:
        return np.full(m, np.nan)
    exponential = -np.log1p(-(np.arange(0.5, m) / m))
    excess = sigma * exponential if k == 0 else sigma * np.expm1(k * exponential) / k
    return np.asarray(cutoff + excess)
