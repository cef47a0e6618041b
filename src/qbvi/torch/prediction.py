"""Posterior predictions: one per draw of the parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Prediction"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Posterior predictions of new rows.

    Attributes
    ----------
    draws : array (S, rows, ...)
        One prediction per draw of the parameters. Its spread is the uncertainty about them.

    Examples
    --------
    >>> Prediction(np.array([[[0.2], [0.9]], [[0.4], [0.9]]])).mean
    array([[0.3],
           [0.9]])
    """

    draws: Floats

    @property
    def mean(self) -> Floats:
        """Mean over the draws: (rows, ...)."""
        return np.asarray(self.draws.mean(axis=0))

    @property
    def sd(self) -> Floats:
        """Standard deviation over the draws: (rows, ...)."""
        return np.asarray(self.draws.std(axis=0, ddof=1))

    def interval(self, probability: float = 0.9) -> Floats:
        """Equal-tailed interval over the draws: (2, rows, ...)."""
        if not 0 < probability < 1:
            msg = f"`probability` must lie between 0 and 1, got {probability}"
            raise ValueError(msg)
        return np.quantile(self.draws, [(1 - probability) / 2, (1 + probability) / 2], axis=0)

    def __repr__(self) -> str:
        return f"Prediction of {self.draws.shape[1]} rows from {len(self.draws)} draws: draws, mean, sd, interval()"
