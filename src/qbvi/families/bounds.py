"""Bounds for natural parameters whose domain has none.

The natural parameters of distributions of whole numbers have no boundary on at least one side, but
double precision cannot represent members far out. The bound below acts as the boundary: beyond it
the square of a probability underflows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["LARGEST_LOG_ODDS", "covered"]

Floats = NDArray[np.float64]

LARGEST_LOG_ODDS = 300.0  # exp(-600), the square of the smallest probability, is still a normal number


def covered(lam: Floats, update: Floats, low: float, high: float) -> Floats:
    """Largest fraction of the distance to the bound, in the update's direction, that it covers."""
    distance = np.where(update > 0, high - lam, lam - low)
    with np.errstate(divide="ignore", over="ignore"):  # at the bound the distance is zero
        shares = np.abs(update) / np.where(update == 0, 1.0, distance)
    return np.asarray(np.max(shares, axis=-1))
