"""The closing verdict: what fresh draws from the result must show before a fit is called converged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array, to_numpy
from qbvi.diagnostics import is_khat_bad, left_open, missing_nats, still_to_gain
from qbvi.families import Family
from qbvi.protocol import Values
from qbvi.stopping import Stop, StopKind

__all__ = ["Look", "Verdict"]

Floats = NDArray[np.float64]

_DRAWS_PER_COEFFICIENT = 4  # from which on least squares on fresh draws tells something


@dataclass(frozen=True, eq=False)
class Look:
    """Fresh draws from a q, and the function's values there."""

    family: Family
    q: Array
    h: Floats  # (groups, n) residuals: one group or, with mini-batches, one for each of several
    failed: float  # share of the draws at which the function failed
    draws: tuple[Array, Values] | None = None  # the draws (n, d) and their values, where they were made at once

    @property
    def is_whole(self) -> bool:
        """Whether all values are there and all from the same data."""
        return len(self.h) == 1 and not self.failed

    @cached_property
    def features(self) -> Floats | None:
        """Statistics of the draws, orthonormal under q (n, k); None where the draws are too few to use them."""
        if self.draws is None or self.h.size < _DRAWS_PER_COEFFICIENT * (1 + self.family.size):
            return None
        return np.asarray(self.family.features(to_numpy(self.q), to_numpy(self.draws[0])))


@dataclass(frozen=True)
class Verdict:
    """Whether fresh draws confirm that a fit has settled.

    `doubts` is asked while the fit can still go on: the draws then join the others and the fit continues.
    `judge` is asked at the end: it needs more evidence, and takes the convergence back.

    Examples
    --------
    A result at whose draws log p / q varies by ten nats is not the posterior:

    >>> import numpy as np
    >>> from qbvi.families import Gaussian
    >>> look = Look(Gaussian(1), np.zeros(3), np.linspace(-17, 17, 100)[None], failed=0.0)
    >>> Verdict().judge(Stop.own(True, "settled"), look, gap=0.001, fitted=0.0, khat=0.1).kind
    <StopKind.FAR_OFF: 'far-off'>
    """

    most_looks: int = 5  # with fresh draws, at which a fit may be sent back to go on
    suspicious_gain: float = 0.02  # nats, and the chance of a false alarm, at which a fit goes on ...
    suspicious_chance: float = 0.01
    proven_gain: float = 0.05  # ... and at which it is not called converged
    proven_chance: float = 1e-4
    predicted: float = 2.0  # times the predicted gap is no news
    open_nats: float = 0.25  # that fresh draws may leave open: half of what no fit may be off and say converged
    uneven: float = 6.0  # times what they would leave open if all weighed the same; a quadratic residual comes to three
    most_failed: float = 0.02  # share of failed draws up to which a fit that left them out is called converged
    bound_errors: float = 5.0  # standard errors between the last bound and the fresh one that chance does not explain
    bound_nats: float = 0.1  # and nats that do not matter
    far_off: float = 6.0  # nats: standard deviation of log p / q beyond which draws prove nothing about the bound
    khat_nats: float = 0.05  # missing nats below which k-hat describes rounding errors

    def doubts(self, look: Look, gap: float) -> bool:
        """Whether the draws are worth another turn of the loop, where ``gap`` nats were predicted to be missing."""
        if look.failed:
            return False
        gain = self._gain(look, gap, self.suspicious_gain, self.suspicious_chance)
        return gain > 0 or self._open(look) > 0

    def judge(self, stop: Stop, look: Look, gap: float, fitted: float, khat: float) -> Stop:
        """Take a convergence back where the draws speak against it.

        Parameters
        ----------
        stop
            How the loop ended.
        look
            Fresh draws from the result.
        gap, fitted
            Missing nats as the method predicted them, and its last bound.
        khat
            Pareto k-hat of the draws; NaN where there is none.
        """
        stop = self._on_gain(stop, look, gap) if look.is_whole else stop
        stop = self.on_failures(stop, look.failed, "fresh draws from the result")
        return self.on_ratios(self._on_bound(stop, look.h, fitted), look.h, khat)

    def on_failures(self, stop: Stop, share: float, draws: str) -> Stop:
        """Do not call a fit converged that left out much of the mass."""
        if not stop.converged or share <= self.most_failed:
            return stop
        return stop.but(StopKind.FAILURES, share=share, draws=draws)

    def on_ratios(self, stop: Stop, h: Floats, khat: float) -> Stop:
        """Do not call a fit converged whose importance ratios say that it is not the posterior.

        k-hat counts only where it is above its limit beyond its own error, and where the ratios say that
        enough nats are missing.
        """
        first = np.atleast_2d(h)[0]
        if not stop.converged:
            return stop
        if first.std() > self.far_off:
            return stop.but(StopKind.FAR_OFF, nats=first.std())
        if khat == math.inf:
            return stop.but(StopKind.ONE_RATIO)
        if math.isfinite(khat) and missing_nats(first) >= self.khat_nats and is_khat_bad(khat, first.size):
            return stop.but(StopKind.KHAT, khat=khat)
        return stop

    def _on_gain(self, stop: Stop, look: Look, gap: float) -> Stop:
        if not stop.converged:
            return stop
        gain = self._gain(look, gap, self.proven_gain, self.proven_chance)
        if gain:
            return stop.but(StopKind.STILL_TO_GAIN, nats=gain)
        unknown = self._open(look)
        return stop.but(StopKind.LEFT_OPEN, nats=unknown) if unknown else stop

    def _on_bound(self, stop: Stop, h: Floats, fitted: float) -> Stop:
        """Do not call a fit converged whose fresh bound is well below what it said."""
        fresh, se = float(h.mean()), float(h.std(ddof=1)) / np.sqrt(h.size)
        if not stop.converged or fresh > fitted - self.bound_errors * se - self.bound_nats:
            return stop
        return stop.but(StopKind.BOUND_BELOW, fresh=fresh, fitted=fitted)

    def _gain(self, look: Look, gap: float, worth: float, chance: float) -> float:
        """Nats that the draws prove to be missing, beyond what was predicted."""
        if look.features is None:
            return 0.0
        return still_to_gain(look.features, look.h[0], float(np.fmax(worth, self.predicted * gap)), chance)

    def _open(self, look: Look) -> float:
        """Nats that the draws leave open; zero where that is little."""
        if look.features is None:
            return 0.0
        unknown = left_open(look.features, look.h[0])
        even = 0.5 * look.family.size * float(look.h[0].var()) / look.h.size  # were all draws to weigh the same
        return unknown if unknown > max(self.open_nats, self.uneven * even) else 0.0
