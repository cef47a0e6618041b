"""How good predictions are: log score, and measures that suit the kind of target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.arguments import interval_ends

__all__ = [
    "Scores",
    "brier_score",
    "continuous_ranked_probability",
    "inside_interval",
    "log_density",
    "root_mean_square",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Scores:
    """Scores of predictions; `log_score` is better if higher, errors are better if lower.

    Attributes
    ----------
    log_scores : array (n,)
        Log predictive density of each row, averaged over the draws inside the logarithm.
    measures : dict of str to float
        Means over the rows.

        - For two classes and for many: ``"brier"`` and ``"accuracy"``.
        - For numbers and counts: ``"rmse"``, ``"crps"`` (continuous ranked probability score), and
          the share of rows inside the predictive interval.

    Examples
    --------
    >>> Scores(np.log([0.5, 0.25]), {"accuracy": 0.5})
    Scores of 2 rows: log score -1.040, accuracy 0.500
    """

    log_scores: Floats
    measures: Mapping[str, float] = field(default_factory=dict)

    @property
    def log_score(self) -> float:
        """Mean of `log_scores`: the log predictive density per row."""
        return float(np.mean(self.log_scores))

    def __getitem__(self, name: str) -> float:
        if name not in self.measures:
            msg = f"there is no score {name!r}; there are {', '.join(self.measures)}"
            raise KeyError(msg)
        return self.measures[name]

    def __len__(self) -> int:
        return len(self.log_scores)

    def __repr__(self) -> str:
        shown = "".join(f", {name} {value:.3f}" for name, value in self.measures.items())
        return f"Scores of {len(self):,} rows: log score {self.log_score:.3f}{shown}"


def log_density(terms: Floats) -> Floats:
    """Log predictive density of every row, averaged over the draws: (S, n) -> (n,)."""
    return np.asarray(scipy.special.logsumexp(terms, axis=0) - np.log(len(terms)))


def brier_score(y: Floats, probability: Floats) -> float:
    """Mean square error of probabilities: of a one (n,), or summed over classes (n, classes).

    Examples
    --------
    >>> brier_score(np.array([1.0, 0.0]), np.array([0.5, 0.0]))
    0.125
    """
    if probability.ndim == 1:
        return float(np.mean((probability - y) ** 2))
    happened = y[:, None] == np.arange(probability.shape[1])
    return float(np.mean(np.sum((probability - happened) ** 2, axis=1)))


def continuous_ranked_probability(y: Floats, outcomes: Floats) -> Floats:
    r"""Continuous ranked probability score of each row from draws (S, n): lower is better.

    .. math:: E |Y - y| - \tfrac{1}{2} E |Y - Y'|

    Examples
    --------
    >>> continuous_ranked_probability(np.array([1.0]), np.array([[0.0], [1.0], [2.0]]))
    array([0.2222...])
    """
    ordered, n = np.sort(outcomes, axis=0), len(outcomes)
    # The mean difference of two draws, from their ranks.
    rank = 2 * np.arange(1, n + 1) - n - 1
    return np.asarray(np.abs(outcomes - y).mean(axis=0) - rank @ ordered / n**2)


def inside_interval(y: Floats, outcomes: Floats, interval: float) -> Floats:
    """Whether each row lies in its equal-tailed predictive interval, from draws (S, n)."""
    lower, upper = np.quantile(outcomes, interval_ends("interval", interval), axis=0)
    return np.asarray((lower <= y) & (y <= upper), dtype=np.float64)


def root_mean_square(errors: Floats) -> float:
    """Root mean square of errors."""
    return float(np.sqrt(np.mean(errors**2)))
