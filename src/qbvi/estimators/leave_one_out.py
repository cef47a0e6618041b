"""The mean of the other draws as the baseline of each draw."""

from __future__ import annotations

from dataclasses import dataclass

from qbvi.arrays import Array
from qbvi.estimators.base import Batch, known, leave_group_out, mean_score
from qbvi.families.base import Family

__all__ = ["LeaveOneOut"]


@dataclass(frozen=True)
class LeaveOneOut:
    r"""Subtract from each log-likelihood the mean of those independent of it.

    .. math::
        \hat g = \eta - \lambda + \frac1n \sum_s \nabla_m \log q(\theta_s)\, (f_s - \bar f_{-s})

    The estimator is unbiased. It has nothing to tune and no memory.

    Examples
    --------
    >>> import qbvi
    >>> qbvi.QBVI(estimator="leave-one-out").estimator
    LeaveOneOut()
    """

    def init(self, family: Family, q: Array) -> tuple[()]:
        """No memory."""
        return ()

    def __call__(self, family: Family, q: Array, batch: Batch, memory: tuple[()]) -> tuple[Array, tuple[()]]:
        """Average with the baseline subtracted."""
        centred = batch.f - leave_group_out(batch.f, batch.group_size)
        return known(family, q, batch) + mean_score(family, q, batch, centred), memory
