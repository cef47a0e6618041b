r"""What the draws of a round show: the evidence, and the nats that are missing.

With r the log joint minus the surrogate's log density at draws from that density, and Z the
integral of the surrogate,

.. math:: \mathrm{KL} = \log E e^r - E r, \quad \log p(y) = \log Z + \log E e^r

Noise of the function is part of r. `qbvi.noise` takes it out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.noise import NO_NOISE, Figures, Noise

__all__ = ["Check", "Shown", "joined"]

Floats = NDArray[np.float64]

_TINY = 1e-6  # least standard error
_FEWEST = 2  # draws that have a variance


class Check(NamedTuple):
    """What one round showed."""

    # (n,) log joint minus the surrogate at draws from it: minus infinity at zero likelihood, NaN
    # where the function failed
    r: Floats
    log_z: float  # log of the surrogate's integral
    error: float  # nats by which the surrogate expects to be wrong
    change: float  # nats by which the posterior changed in this round
    hope: float  # nats of mass that may be where there are few points
    log_z_error: float = 0.0  # standard error of log_z
    noise: Noise = NO_NOISE  # of the function at the draws
    # (k,) log joint minus the possible density, normalised, at draws from that density
    hoped: Floats = np.empty(0)
    hoped_error: float = 0.0  # standard error of the log of that density's integral


class Shown(NamedTuple):
    """What the draws of some rounds show, each compared with the surrogate it was drawn from.

    A failure of the function says nothing about the density, and is left out. Draws of zero
    likelihood would make the missing nats infinite. Instead they count by the share of the mass
    that is lost there, which is the divergence the other way round.

    Examples
    --------
    >>> check = Check(np.array([0.1, -0.1, 0.0, 0.2]), log_z=-3.0, error=0.0, change=0.0, hope=0.0)
    >>> shown = Shown.by((check,))
    >>> round(shown.evidence, 2), round(shown.missing, 3), round(shown.bound, 2)
    (-2.94, 0.006, -2.95)
    """

    h: Floats  # (n_finite,) log joint minus log density, where it is finite
    n: int  # draws without a failure
    lost: float  # nats lost by draws of zero likelihood
    evidence: float
    evidence_se: float
    missing: float
    missing_se: float
    is_noisy: bool  # whether noise hides the shape of the log ratios
    # Nats by which draws from the possible density show more mass than those from the claimed one,
    # and their error; infinite if there are none.
    beyond: float = math.inf
    beyond_se: float = math.inf

    @classmethod
    def by(cls, checks: tuple[Check, ...]) -> Shown:
        """The evidence and the missing nats, by all draws together."""
        h = np.concatenate([check.r + check.log_z for check in checks])
        noise = np.concatenate(
            [check.noise.variance if check.noise.mean else np.zeros(len(check.r)) for check in checks]
        )
        finite = np.isfinite(h)
        n = int(np.count_nonzero(~np.isnan(h)))
        if not finite.any():
            return cls(h[finite], n, 0.0, -math.inf, math.inf, math.inf, math.inf, False)
        h, variance = h[finite], Noise(noise[finite], max(check.noise.error for check in checks))
        lost = math.log(n / len(h))
        if len(h) < _FEWEST:
            return cls(h, n, lost, -math.inf, math.inf, lost, math.inf, False)
        figures = variance.figures(h)
        beyond, beyond_se = _beyond(np.concatenate([check.hoped for check in checks]), figures)
        beyond_se = math.hypot(beyond_se, max(check.hoped_error for check in checks))
        return cls(
            h=h,
            n=n,
            lost=lost,
            evidence=figures.evidence,
            evidence_se=figures.evidence_se,
            missing=figures.missing + lost,
            missing_se=figures.missing_se,
            is_noisy=variance.dominates(h),
            beyond=beyond,
            beyond_se=beyond_se,
        )

    @property
    def n_finite(self) -> int:
        """Draws with a finite log joint."""
        return len(self.h)

    @property
    def least_beyond(self) -> float:
        """Nats that draws from the possible density show at least to be beyond the claimed one."""
        return self.beyond - self.beyond_se if math.isfinite(self.beyond) else 0.0

    @property
    def bound(self) -> float:
        """The lower bound."""
        return float(self.h.mean()) - self.lost if self.n_finite else -math.inf

    @property
    def bound_se(self) -> float:
        """Its standard error."""
        return float(self.h.std() / math.sqrt(self.n_finite)) if self.n_finite else math.inf


def _beyond(hoped: Floats, claimed: Figures) -> tuple[float, float]:
    """Nats by which log ratios (k,) to the possible density show more mass, and their error."""
    known = hoped[~np.isnan(hoped)]
    if len(known) < _FEWEST or not np.isfinite(known).any():
        return math.inf, math.inf
    ratios = np.exp(known - known.max())
    evidence = float(known.max() + np.log(ratios.mean()))
    se = float(ratios.std(ddof=1) / ratios.mean()) / math.sqrt(len(known))
    return max(evidence - claimed.evidence, 0.0), math.hypot(se, claimed.evidence_se)


def joined(seen: tuple[float, float], claimed: tuple[float, float]) -> tuple[float, float]:
    """The mean of two numbers with errors, by one over their variances, and its error.

    The two errors may have a cause in common, so they are added.

    Examples
    --------
    >>> joined((1.0, 0.1), (2.0, 0.1))
    (1.5, 0.1)
    """
    (a, a_error), (b, b_error) = seen, claimed
    if not math.isfinite(a):
        return a, a_error
    share = a_error**2 / max(a_error**2 + b_error**2, _TINY**2)
    return share * b + (1 - share) * a, share * b_error + (1 - share) * a_error
