"""Block and Marginal: where each parameter stands, and entries with a closed-form density."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.distributions import Distribution
from qbvi.supports import Interval

__all__ = ["Block", "Marginal"]

Floats = NDArray[np.float64]

_LARGEST_LOG = 300.0  # of a density: one concentrated at a boundary stays finite


class Block(NamedTuple):
    """Position of one parameter: its columns of ``u`` and its entries among the labels."""

    name: str
    shape: tuple[int, ...]
    prior: Distribution
    columns: slice
    entries: slice
    is_native: bool = False  # whether q describes it on its own scale


class Marginal(NamedTuple):
    """An entry that is Gaussian in ``u`` and has its own map, so all results are closed forms."""

    column: int  # of u
    loc: float
    scale: float
    support: Interval

    def at(self, z: Floats) -> Floats:
        """Constrained values at standardised unconstrained ones: (n,) -> (n,)."""
        u = self.loc + self.scale * z
        if math.isinf(self.support.low) and math.isinf(self.support.high):
            return u  # the real line needs no map: quick for thousands of entries
        return np.asarray(self.support.constrain(u[:, None], ()))

    def quantile(self, levels: Floats) -> Floats:
        """Quantiles on the constrained scale: (n,) -> (n,)."""
        # The map to an interval with only an upper end is decreasing.
        falling = math.isinf(self.support.low) and math.isfinite(self.support.high)
        return self.at(-scipy.special.ndtri(levels) if falling else scipy.special.ndtri(levels))

    def density(self, x: Floats) -> Floats:
        """Density at constrained values inside the support: (n,) -> (n,)."""
        return self.density_at((self.support.unconstrain(x, ())[:, 0] - self.loc) / self.scale)

    def density_at(self, z: Floats) -> Floats:
        """`density` at the values ``at(z)``, without rounding errors of the map: (n,) -> (n,)."""
        log_q = -0.5 * z**2 - math.log(self.scale) - 0.5 * math.log(2 * math.pi)
        stretch = self.support.log_jacobian((self.loc + self.scale * z)[:, None], ())
        return np.asarray(np.exp(np.minimum(log_q - stretch, _LARGEST_LOG)))
