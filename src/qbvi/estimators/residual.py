"""The residual form: noise that vanishes as the fit improves."""

from __future__ import annotations

from dataclasses import dataclass

from qbvi.arrays import Array
from qbvi.estimators.base import Batch, leave_group_out
from qbvi.families.base import Family

__all__ = ["Residual"]


@dataclass(frozen=True)
class Residual:
    r"""The whole natural gradient of the bound from the residual ``h = log p(y, theta) - log q(theta)``.

    .. math:: \hat g = \frac1n \sum_s \nabla_m \log q(\theta_s)\, (h_s - \bar h_{-s})

    Its expectation is that of the likelihood-only form, :math:`\eta - \lambda` included, but ``h`` is constant at a
    perfect fit, so the noise goes to zero where the other estimators keep a floor.

    Examples
    --------
    >>> import qbvi
    >>> qbvi.QBVI(estimator="residual").estimator
    Residual()
    """

    def init(self, family: Family, q: Array) -> tuple[()]:
        """Nothing to remember."""
        return ()

    def __call__(self, family: Family, q: Array, batch: Batch, memory: tuple[()]) -> tuple[Array, tuple[()]]:
        """Average against the baseline."""
        centred = batch.h - leave_group_out(batch.h, batch.group_size)
        return family.mean_score(q, batch.theta, centred), memory
