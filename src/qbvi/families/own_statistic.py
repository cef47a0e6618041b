r"""Numbers that are their own sufficient statistic: :math:`\phi(x) = x`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qbvi.families.exponential import ExponentialFamily

__all__ = ["OwnStatistic"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class OwnStatistic(ExponentialFamily):
    """One number ``x`` with ``phi = x``, so that its moments are the derivatives of A."""

    @property
    def n_statistics(self) -> int:
        """One."""
        return 1

    def one_statistics(self, x: Floats) -> Floats:
        """``x``."""
        return x

    def one_moments(self, lam: Floats) -> tuple[Floats, Floats]:
        """Mean and variance: gradient and Hessian of A."""
        return self.one_mean_parameter(lam), self.one_fisher(lam)
