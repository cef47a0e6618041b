"""The mean of the other draws as the baseline of each."""

from __future__ import annotations

from dataclasses import dataclass

from qbvi.arrays import Array
from qbvi.estimators.base import Batch, known, leave_group_out
from qbvi.families.base import Family

__all__ = ["LeaveOneOut"]


@dataclass(frozen=True)
class LeaveOneOut:
    r"""Each draw's log-likelihood less the mean of those independent of it; unbiased, nothing to tune or remember.

    .. math:: \hat g = \eta - \lambda + \frac1n \sum_s \nabla_m \log q(\theta_s)\, (f_s - \bar f_{-s})

    Examples
    --------
    >>> import qbvi
    >>> qbvi.QBVI(estimator="leave-one-out").estimator
    LeaveOneOut()
    """

    def init(self, family: Family, q: Array) -> tuple[()]:
        """Nothing to remember."""
        return ()

    def __call__(self, family: Family, q: Array, batch: Batch, memory: tuple[()]) -> tuple[Array, tuple[()]]:
        """Average against the baseline."""
        centred = batch.f - leave_group_out(batch.f, batch.group_size)
        return known(family, q, batch) + family.mean_score(q, batch.theta, centred), memory
