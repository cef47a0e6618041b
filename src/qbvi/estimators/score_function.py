"""The naive estimator: the score times the log-likelihood."""

from __future__ import annotations

from dataclasses import dataclass

from qbvi.arrays import Array
from qbvi.estimators.base import Batch, known, mean_score
from qbvi.families.base import Family

__all__ = ["ScoreFunction"]


@dataclass(frozen=True)
class ScoreFunction:
    r"""Plain Monte Carlo (paper, Algorithm 1, line 6).

    .. math:: \hat g = \eta - \lambda + \frac1n \sum_s \nabla_m \log q(\theta_s)\, f_s

    It is unbiased. Its noise is proportional to the size of ``f``. The other estimators are
    compared with it.

    Examples
    --------
    >>> import qbvi
    >>> qbvi.QBVI(estimator="score-function").estimator
    ScoreFunction()
    """

    def init(self, family: Family, q: Array) -> tuple[()]:
        """No memory."""
        return ()

    def __call__(self, family: Family, q: Array, batch: Batch, memory: tuple[()]) -> tuple[Array, tuple[()]]:
        """Average score times log-likelihood."""
        return known(family, q, batch) + mean_score(family, q, batch, batch.f), memory
