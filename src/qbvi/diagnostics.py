"""May this posterior be trusted? Pareto k-hat of the importance ratios."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

__all__ = ["is_khat_bad", "khat_error", "left_open", "missing_nats", "pareto_khat", "still_to_gain"]

KHAT_LIMIT = 0.7  # up to which importance weighting works (Vehtari, Simpson, Gelman, Yao and Gabry, 2024)
KHAT_ERRORS = 1.5  # standard errors of k-hat by which it must be above that to count
_FEWEST = 25  # below this the tail that k-hat is fitted to holds fewer than five ratios
_CONSTANT = 1e-9  # nats: ratios within this are constant, q is the posterior, and there is no tail to fit
_OUTWEIGHED = 30.0  # nats by which one ratio outweighs all others beyond rounding: worse than any number
_TAIL = 0.2, 3.0  # the tail is a fifth of n ratios, or 3 sqrt(n) of them if that is fewer (the same source)
_DRAWS_PER_COEFFICIENT = 4  # that least squares needs
_ALONE = 1e-3  # share of its residual that a draw alone in its place has, at least


def pareto_khat(h: NDArray[np.float64]) -> tuple[float, tuple[str, ...]]:
    """Pareto k-hat of ``exp(h)``, ``h = log p(y, theta) - log q(theta)`` at independent draws from q, and what to note of it.

    Below 0.5 importance weighting would correct q at once, up to 0.7 with many draws; above, q misses mass of the posterior.

    Examples
    --------
    >>> import numpy as np
    >>> khat, notes = pareto_khat(np.zeros(100))
    >>> khat < 0.5
    True
    """
    if h.size < _FEWEST:
        return float("nan"), (f"k-hat was not computed: {h.size} draws are too few",)
    if np.ptp(h) < _CONSTANT:
        return float("-inf"), ()
    if np.sort(h)[-2] < h.max() - _OUTWEIGHED:
        return float("inf"), ()
    # imported here: it takes longer than the rest of qbvi together
    from arviz_stats.base import array_stats

    try:
        # It takes minus the logarithm of the ratios, as leave-one-out does.
        with np.errstate(all="ignore"):
            _, khat = array_stats.psislw(h.max() - h)
    except ValueError:  # the largest ratios are all equal, as those of whole numbers often are: no tail to fit
        return float("nan"), ("k-hat could not be computed: the largest importance ratios are equal",)
    return float(np.nan_to_num(khat, nan=np.inf)), ()


def khat_error(khat: float, n: int) -> float:
    """About the standard error of a k-hat that was told from n draws: ``(1 + k) / sqrt(m)`` for a tail of m ratios.

    Examples
    --------
    >>> round(khat_error(1.0, 100), 2)
    0.45
    """
    return float((1 + khat) / np.sqrt(min(_TAIL[0] * n, _TAIL[1] * np.sqrt(n))))


def is_khat_bad(khat: float, n: int) -> bool:
    """Whether k-hat is above its limit by more than its own error explains: the rule, told once.

    Examples
    --------
    >>> is_khat_bad(1.1, 100), is_khat_bad(1.1, 10_000)
    (False, True)
    """
    return bool(khat - KHAT_ERRORS * khat_error(khat, n) > KHAT_LIMIT)


def missing_nats(h: NDArray[np.float64]) -> float:
    """Nats between q and the posterior, as importance ratios ``exp(h)`` at draws from q tell them.

    ``log mean exp(h) - mean h`` is an estimate of KL(q || posterior) from the draws alone.

    Examples
    --------
    >>> import numpy as np
    >>> missing_nats(np.full(10, -3.0))
    0.0
    """
    return float(np.log(np.mean(np.exp(h - h.max()))) + h.max() - h.mean())


def still_to_gain(
    features: NDArray[np.float64], h: NDArray[np.float64], worth: float = 0.05, chance: float = 1e-4
) -> float:
    """Nats that a step would still gain, as far as independent draws from q prove it beyond chance; zero where they do not.

    At the best member of a family the residual ``h`` (n,) is uncorrelated with the ``features`` (n, k), its statistics made orthonormal under q
    (`Family.features`). Least squares of ``h`` on them, with a variance that allows for unequal noise, tests just that; it
    needs four draws for each coefficient and says nothing with fewer. Gains below ``worth`` nats are not told; ``chance`` is that of a false
    alarm, were the draws Gaussian.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import Gaussian
    >>> z, family = np.random.default_rng(1).standard_normal((200, 1)), Gaussian(1)
    >>> features = family.features(family.start(np.zeros(1), np.ones(1)), z)
    >>> round(still_to_gain(features, 0.5 * z[:, 0]), 3)
    0.125
    """
    if not _is_enough(features):
        return 0.0
    w, cov = _least_squares(features, h)
    statistic = float(w @ np.linalg.lstsq(cov, w, rcond=1e-12)[0])
    variances, axes = np.linalg.eigh(cov)
    # Direction by direction: what is known well of one is not drowned by the noise of another.
    gain = 0.5 * float(np.sum(np.maximum((axes.T @ w) ** 2 - variances, 0.0)))
    return gain if gain > worth and chi2.sf(statistic, len(w)) < chance else 0.0


def left_open(features: NDArray[np.float64], h: NDArray[np.float64]) -> float:
    """Nats by which the same draws cannot tell what a step would gain: half the variance of the least-squares coefficients.

    Where a few draws in the tails outweigh all others, nothing is proven against a fit, but nothing in favour of it either. With too few draws for the least
    squares it is zero: they were not asked.

    Examples
    --------
    >>> import numpy as np
    >>> z = np.random.default_rng(1).standard_normal((200, 1))
    >>> round(left_open(z, np.exp(2 * z[:, 0])), 1)  # its mean lives on rare draws
    14.8
    """
    return 0.5 * float(np.trace(_least_squares(features, h)[1])) if _is_enough(features) else 0.0


def _is_enough(features: NDArray[np.float64]) -> bool:
    n, k = features.shape
    return bool(n >= _DRAWS_PER_COEFFICIENT * (1 + k))


def _least_squares(
    features: NDArray[np.float64], h: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coefficients of the features (k,), beside a constant, and their covariance (k, k) that allows for unequal noise."""
    design = np.column_stack([np.ones(len(h)), features])
    inverse = np.linalg.pinv(design.T @ design, hermitian=True)
    w = inverse @ (design.T @ h)
    # A draw alone in its place tells only of itself: its residual says little about the noise.
    left = np.maximum(1 - np.sum(design @ inverse * design, axis=1), _ALONE)
    spread = (design * ((h - design @ w) / left)[:, None]) @ inverse
    return w[1:], (spread.T @ spread)[1:, 1:]
