"""The residual form: its noise vanishes as the fit improves."""

from __future__ import annotations

from dataclasses import dataclass

from qbvi.arrays import Array
from qbvi.estimators.base import Batch, leave_group_out, mean_score
from qbvi.families.base import Family

__all__ = ["Residual"]


@dataclass(frozen=True)
class Residual:
    r"""Natural gradient of the bound from the residual ``h = log p(y, theta) - log q(theta)``.

    .. math:: \hat g = \frac1n \sum_s \nabla_m \log q(\theta_s)\, (h_s - \bar h_{-s})

    Its expectation equals that of the other estimators, including :math:`\eta - \lambda`. At a
    perfect fit ``h`` is constant, so the noise goes to zero. The noise of the others does not.

    Examples
    --------
    >>> import qbvi
    >>> qbvi.QBVI(estimator="residual").estimator
    Residual()
    """

    def init(self, family: Family, q: Array) -> tuple[()]:
        """No memory."""
        return ()

    def __call__(self, family: Family, q: Array, batch: Batch, memory: tuple[()]) -> tuple[Array, tuple[()]]:
        """Average with the baseline subtracted."""
        centred = batch.h - leave_group_out(batch.h, batch.group_size)
        return mean_score(family, q, batch, centred), memory
