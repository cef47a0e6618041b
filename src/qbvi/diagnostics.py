"""Checks of a posterior by fresh draws: Pareto k-hat, and the possible gain of further steps."""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.noise import Figures, Noise
from qbvi.pareto import TAIL, pareto_smoothed, tail_size

__all__ = [
    "Judged",
    "Khat",
    "change_with_order",
    "effective_draws",
    "failures_depend_on_place",
    "judge_khat",
    "khat_error",
    "khat_limit",
    "left_open",
    "log_evidence",
    "missing_error",
    "missing_nats",
    "pareto_khat",
    "smoothed",
    "smoothed_weights",
    "still_to_gain",
]

# Up to this k-hat importance weighting works (Vehtari, Simpson, Gelman, Yao and Gabry, 2024).
KHAT_LIMIT = 0.7
KHAT_ERRORS = 1.5  # standard errors by which k-hat must exceed that limit to count as bad
# Effective sample size of importance ratios below which a few outweigh all others, if there are so
# many of them at least.
FEWEST_EFFECTIVE = 2.0
FEWEST_RATIOS = 10
# Nats that must be missing for k-hat to count. Below, the tail of the ratios is that of rounding
# errors and small differences, and no probability is off by more than 0.16 (Pinsker).
KHAT_NATS = 0.05
_NOISE_ERRORS = 3.0  # standard errors by which missing nats must exceed zero if there is noise
_FEWEST = 25  # draws; with fewer, the tail that k-hat is fitted to has less than five ratios
# Nats: ratios that differ by less are constant. Then q is the posterior and has no tail to fit.
_CONSTANT = 1e-9
_TIED = 1e-6  # a gap between two ratios, relative to their range, below which they are equal
_OUTWEIGHED = 30.0  # nats by which one ratio exceeds all others: k-hat is then infinite
_DRAWS_PER_COEFFICIENT = 4  # fewest draws for least squares
_SUBSETS = 2000  # random subsets of draws: chances of a per mille are then seen
_FEWEST_FINE = 2  # draws at which a function did not fail, to compare with those at which it did
_ALONE = 1e-3  # least value of one minus the leverage of a draw


def pareto_khat(h: NDArray[np.float64]) -> tuple[float, tuple[str, ...]]:
    """Pareto k-hat of the importance ratios ``exp(h)``, and notes for the user.

    ``h = log p(y, theta) - log q(theta)`` (n,) is taken at independent draws from q. Below 0.5
    importance weighting corrects q with few draws, up to 0.7 with many. Above, q misses part of the
    posterior.

    Examples
    --------
    >>> import numpy as np
    >>> khat, notes = pareto_khat(np.zeros(100))
    >>> khat < 0.5
    True
    """
    return _pareto(h)[1:]


def smoothed_weights(h: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pareto-smoothed importance weights of draws from q, with sum one.

    ``h = log p(y, theta) - log q(theta)`` (n,), minus infinity where the posterior is zero. The
    largest ratios are replaced by quantiles of a generalised Pareto distribution that is fitted to
    them. They are left as they are if they are too few for such a fit, or constant.

    Examples
    --------
    >>> import numpy as np
    >>> smoothed_weights(np.array([0.0, 0.0, -np.inf]))
    array([0.5, 0.5, 0. ])
    """
    return smoothed(h)[0]


def smoothed(h: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """The weights of `smoothed_weights` and the k-hat of `pareto_khat`, from one fit of a tail."""
    finite = np.isfinite(h)
    if not finite.any():
        msg = "`h` must be finite for at least one draw: the posterior is zero at all of them"
        raise ValueError(msg)
    log_weights, khat, _ = _pareto(h[finite])
    weights = np.zeros(h.shape)
    weights[finite] = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum()), khat


def _pareto(h: NDArray[np.float64]) -> tuple[NDArray[np.float64], float, tuple[str, ...]]:
    """Smoothed log weights, or ``h`` itself where no tail can be fitted; k-hat; notes."""
    if np.ptp(h) < _CONSTANT:
        return h, float("-inf"), ()
    if h.size < _FEWEST:
        is_slight = h.var() < KHAT_NATS  # half of it is missing, and k-hat would not count
        return h, float("nan"), () if is_slight else (f"k-hat was not computed: {h.size} draws are too few",)
    ordered = np.sort(h)
    if ordered[-2] < ordered[-1] - _OUTWEIGHED:
        return h, float("inf"), ()
    if _is_tied(ordered):
        return h, float("nan"), ("k-hat is unknown: importance ratios at the cut-off of its tail are equal",)
    with np.errstate(all="ignore"):
        smoothed, khat = pareto_smoothed(h)
    weights = smoothed if np.isfinite(smoothed).any() else h
    return weights, float(np.nan_to_num(khat, nan=np.inf)), ()


def _is_tied(ordered: NDArray[np.float64]) -> bool:
    """Whether the smallest ratio of the tail equals the next smaller one, up to rounding.

    The tail is then not a tail. A function with few different values, or with a floor, has such
    ratios.
    """
    cut = len(ordered) - tail_size(len(ordered))
    gap = ordered[cut] - ordered[cut - 1]
    return bool(gap < min(_CONSTANT, _TIED * (ordered[-1] - ordered[0])))


def effective_draws(h: NDArray[np.float64]) -> float:
    """Effective sample size of importance ratios ``exp(h)``: between one and their number.

    Examples
    --------
    >>> import numpy as np
    >>> effective_draws(np.zeros(10)), effective_draws(np.array([99.0, 0.0, 0.0]))
    (10.0, 1.0)
    """
    ratios = np.exp(h - h.max())
    return float(ratios.sum() ** 2 / np.sum(ratios**2))


def log_evidence(h: NDArray[np.float64], khat: float) -> tuple[float, float]:
    """Log evidence by importance sampling from draws of q, and its standard error.

    ``h = log p(y, theta) - log q(theta)`` (n,). The error is infinite if k-hat is above its limit,
    or if one ratio outweighs all others: the largest ratios are then still to come.

    Examples
    --------
    >>> import numpy as np
    >>> log_evidence(np.array([-3.0, -3.0, -3.0]), khat=-np.inf)
    (-3.0, 0.0)
    """
    finite = h[np.isfinite(h)]
    if not finite.size:
        return float("nan"), float("nan")
    ratios = np.exp(finite - finite.max())
    value = float(finite.max() + np.log(ratios.sum() / h.size))
    error = float(ratios.std(ddof=1) / (ratios.mean() * np.sqrt(finite.size))) if finite.size > 1 else np.inf
    is_open = khat > KHAT_LIMIT or (finite.size >= FEWEST_RATIOS and effective_draws(finite) < FEWEST_EFFECTIVE)
    return value, float("inf") if is_open else error


class Judged(NamedTuple):
    """What log importance ratios say about q, after the noise of the function is removed."""

    khat: float
    notes: tuple[str, ...]
    figures: Figures
    ratios: NDArray[np.float64]  # (n,) logarithms, without the variance of the noise
    proven: float  # nats that are missing for certain

    @classmethod
    def by(cls, h: NDArray[np.float64], noise: Noise) -> Judged:
        """Judge log ratios h (n,) at draws from q.

        Examples
        --------
        A right posterior, and a function with noise of six nats:

        >>> import numpy as np
        >>> h = -3.0 + 6.0 * np.random.default_rng(1).standard_normal(100)
        >>> found = Judged.by(h, Noise(np.full(100, 36.0), error=0.2))
        >>> bool(np.isnan(found.khat)), found.proven, found.notes
        (True, 0.0, ('k-hat is not known: noise hides the shape of the importance ratios',))
        """
        if not noise.mean or h.size < 2:
            khat, notes = pareto_khat(h)
            evidence, se = log_evidence(h, khat)
            missing = evidence - float(h.mean())
            return cls(khat, notes, Figures(evidence, se, missing, se), h, missing)
        figures, ratios = noise.figures(h), noise.removed(h)
        hidden = float("nan"), ("k-hat is not known: noise hides the shape of the importance ratios",)
        khat, notes = hidden if noise.dominates(h) else pareto_khat(ratios)
        proven = max(0.0, figures.missing - _NOISE_ERRORS * figures.missing_se)
        if khat > KHAT_LIMIT:
            figures = figures._replace(evidence_se=float("inf"), missing_se=float("inf"))
        return cls(khat, notes, figures, ratios, proven)

    @classmethod
    def unknown(cls, h: NDArray[np.float64]) -> Judged:
        """Residuals of mini-batches say nothing about q."""
        nothing = float("nan")
        return cls(nothing, ("k-hat is not computed from mini-batches",), Figures(*4 * (nothing,)), h[0], nothing)


def missing_error(h: NDArray[np.float64]) -> float:
    """Standard error of the missing nats, ``log mean exp(h) - mean(h)``.

    Examples
    --------
    >>> import numpy as np
    >>> missing_error(np.array([-3.0, -3.0, -3.0]))
    0.0
    """
    ratios = np.exp(h - h.max())
    return float((ratios / ratios.mean() - h).std(ddof=1) / np.sqrt(h.size))


def khat_error(khat: float, n: int) -> float:
    """Approximate standard error of k-hat from n draws: ``(1 + k) / sqrt(m)`` for m tail ratios.

    Examples
    --------
    >>> round(khat_error(1.0, 100), 2)
    0.45
    """
    return float((1 + khat) / np.sqrt(min(TAIL[0] * n, TAIL[1] * np.sqrt(n))))


def khat_limit(n: int | None) -> float:
    """Largest good k-hat of n draws: 0.7, and less with fewer than about 2,200 draws."""
    return KHAT_LIMIT if n is None else min(1 - 1 / math.log10(max(n, 11)), KHAT_LIMIT)


class Khat(Enum):
    """What k-hat says about a posterior. A fit whose k-hat is `BAD` has not converged."""

    UNKNOWN = "it was not computed, or the draws are too few to determine it"
    GOOD = "importance weighting corrects the posterior"
    NEGLIGIBLE = "it is large, but too few nats are missing to matter"
    DOUBTFUL = "the tails of the posterior are not matched"
    BAD = "means and intervals may be far off"


def judge_khat(khat: float, n: int | None, missing: float) -> Khat:
    """The one rule for k-hat, for the verdict on a fit and for the words of its summary.

    Parameters
    ----------
    khat
        Pareto k-hat; NaN if it is not known.
    n
        Number of draws behind it; None if it has no standard error.
    missing
        Nats that are missing of the posterior; NaN if not known.

    Examples
    --------
    >>> judge_khat(1.1, 100, 0.3), judge_khat(1.1, 10_000, 0.3), judge_khat(1.1, 10_000, 0.01)
    (<Khat.UNKNOWN: ...>, <Khat.BAD: ...>, <Khat.NEGLIGIBLE: ...>)
    """
    if math.isnan(khat):
        return Khat.UNKNOWN
    if khat < khat_limit(n):
        return Khat.GOOD
    if missing < KHAT_NATS:
        return Khat.NEGLIGIBLE
    error = 0.0 if n is None or khat == math.inf else khat_error(khat, n)
    if khat - KHAT_ERRORS * error > KHAT_LIMIT:
        return Khat.BAD
    return Khat.DOUBTFUL if khat < 1 else Khat.UNKNOWN


def missing_nats(h: NDArray[np.float64]) -> float:
    """Nats between q and the posterior, from importance ratios ``exp(h)`` at draws from q.

    ``log mean exp(h) - mean h`` estimates KL(q || posterior) from the draws alone.

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
    """Nats that a step would gain, if independent draws from q prove them; else zero.

    At the best member of a family the residual ``h`` (n,) is uncorrelated with the features, the
    family's statistics made orthonormal under q (`Family.features`): (n, k). This function tests
    that by least squares of ``h`` on the features, with a covariance for heteroscedastic noise.

    Parameters
    ----------
    features, h
        Features and residuals at the draws. With fewer than four draws for each coefficient the
        result is zero.
    worth
        Smallest gain that counts, in nats.
    chance
        Probability of a false alarm if the coefficients are Gaussian.

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
    # One direction at a time, so that noise in one does not hide a clear gain in another.
    gain = 0.5 * float(np.sum(np.maximum((axes.T @ w) ** 2 - variances, 0.0)))
    return gain if gain > worth and scipy.special.chdtrc(len(w), statistic) < chance else 0.0


def left_open(features: NDArray[np.float64], h: NDArray[np.float64]) -> float:
    """Uncertainty, in nats, of the gain in `still_to_gain`: half the variance of its coefficients.

    If a few draws in the tails outweigh all others, the draws neither contradict the fit nor
    confirm it. The result is zero if the draws are too few for least squares.

    Examples
    --------
    A function whose mean depends on rare draws:

    >>> import numpy as np
    >>> z = np.random.default_rng(1).standard_normal((200, 1))
    >>> round(left_open(z, np.exp(2 * z[:, 0])), 1)
    14.8
    """
    return 0.5 * float(np.trace(_least_squares(features, h)[1])) if _is_enough(features) else 0.0


def change_with_order(h: NDArray[np.float64], chance: float = 1e-4, fewest: int = _FEWEST) -> float:
    """Nats by which ``h`` rises from the first to the last of independent draws, if that is proven.

    Independent draws are exchangeable, and so are their values: of a function without a memory,
    also if independent noise is added. The test is Spearman's rank correlation with the order. The
    result is zero if it is within what happens by chance, or with fewer than ``fewest`` draws.

    Examples
    --------
    >>> import numpy as np
    >>> h = np.random.default_rng(1).standard_normal(100)
    >>> change_with_order(h), round(change_with_order(h + 0.05 * np.arange(100)), 1)
    (0.0, 4.8)
    """
    n = len(h)
    if n < fewest or np.ptp(h) < _CONSTANT:
        return 0.0
    time = np.arange(n) - (n - 1) / 2
    rho = float(np.corrcoef(time, _ranks(h))[0, 1])
    is_proven = 2 * scipy.special.ndtr(-abs(rho) * math.sqrt(n - 1)) < chance
    return float(time @ h / (time @ time)) * (n - 1) if is_proven else 0.0


def _ranks(h: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks (n,); equal values have the mean of theirs."""
    _, where, counts = np.unique(h, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[where])


def failures_depend_on_place(
    whitened: NDArray[np.float64], coordinates: NDArray[np.float64], failed: NDArray[np.bool_], chance: float = 0.01
) -> bool:
    """Whether a function fails in some places rather than others, from draws from q.

    If failures come by chance, those that failed are a random subset of the draws. Three
    statistics compare them with random subsets of the same size:

    - the length of their whitened mean: an edge in any direction,
    - the largest of their standardised mean coordinates: a bound of one parameter,
    - their mean whitened radius, high or low: the tails, or the centre.

    Parameters
    ----------
    whitened, coordinates
        The draws, whitened by q (n, k) and as they are (n, d).
    failed
        Which of them failed (n,).
    chance
        Probability of a false alarm if failures come by chance.

    Examples
    --------
    >>> import numpy as np
    >>> z = np.random.default_rng(1).standard_normal((100, 2))
    >>> failures_depend_on_place(z, z, z[:, 0] > 1.5)
    True
    >>> failures_depend_on_place(z, z, np.arange(100) % 20 == 0)
    False
    """
    n, m = len(failed), int(np.sum(failed))
    if m == 0 or n - m < _FEWEST_FINE:  # no failure, or no draws to compare with
        return m > 0
    radius = np.linalg.norm(whitened, axis=1, keepdims=True)
    columns = np.column_stack([whitened - whitened.mean(axis=0), _standardised(coordinates), _standardised(radius)])
    rng = np.random.default_rng(0)
    subsets = [np.flatnonzero(failed), *(rng.choice(n, m, replace=False) for _ in range(_SUBSETS))]
    means = np.array([columns[rows].mean(axis=0) for rows in subsets])
    parts = np.split(means, [whitened.shape[1], means.shape[1] - 1], axis=1)
    statistics = [np.sum(parts[0] ** 2, axis=1), np.max(np.abs(parts[1]), axis=1), np.abs(parts[2][:, 0])]
    # Share of the random subsets, with the true one, that are at least as extreme.
    tails = [float(np.mean(statistic >= statistic[0])) for statistic in statistics]
    return len(tails) * min(tails) < chance


def _standardised(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns with mean zero and unit variance; constant ones become zero."""
    sd = columns.std(axis=0)
    return np.asarray((columns - columns.mean(axis=0)) / np.where(sd > 0, sd, 1.0))


def _is_enough(features: NDArray[np.float64]) -> bool:
    n, k = features.shape
    return bool(n >= _DRAWS_PER_COEFFICIENT * (1 + k))


def _least_squares(
    features: NDArray[np.float64], h: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coefficients of the features (k,), next to a constant, and their covariance (k, k).

    The covariance is the jackknife one for heteroscedastic noise: residuals are divided by one
    minus the leverage of their draw.
    """
    design = np.column_stack([np.ones(len(h)), features])
    inverse = np.linalg.pinv(design.T @ design, hermitian=True)
    w = inverse @ (design.T @ h)
    # A draw with much leverage pulls the fit towards itself, so its residual understates the noise.
    left = np.maximum(1 - np.sum(design @ inverse * design, axis=1), _ALONE)
    spread = (design * ((h - design @ w) / left)[:, None]) @ inverse
    return w[1:], (spread.T @ spread)[1:, 1:]
