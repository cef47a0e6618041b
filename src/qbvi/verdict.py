"""The closing verdict: what fresh draws must show before a fit counts as converged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array, array_namespace, to_numpy
from qbvi.diagnostics import (
    FEWEST_EFFECTIVE,
    FEWEST_RATIOS,
    KHAT_NATS,
    Khat,
    change_with_order,
    effective_draws,
    failures_depend_on_place,
    judge_khat,
    left_open,
    still_to_gain,
)
from qbvi.ending import Stop, StopKind
from qbvi.families import Family, Gaussian
from qbvi.noise import NO_NOISE, Noise
from qbvi.protocol import Values

__all__ = ["Look", "Past", "Verdict", "is_ok"]

Floats = NDArray[np.float64]

_DRAWS_PER_COEFFICIENT = 4  # fewest fresh draws for least squares on them


def is_ok(values: Values) -> NDArray[np.bool_]:
    """Which values came from the function (n,): the others stand for failures."""
    return np.asarray(to_numpy(values.ok), dtype=bool)


@dataclass(frozen=True, eq=False)
class Look:
    """Fresh draws from a q, and the function's values there."""

    family: Family
    q: Array
    # (groups, n) residuals at the draws without failures: one group or, with mini-batches, one for
    # each batch.
    h: Floats
    failed: float  # share of the draws at which the function failed
    draws: tuple[Array, Values] | None = None  # draws (n, d) and values; None if made in parts
    noise: Noise = NO_NOISE  # at the draws without failures

    def without_draws(self) -> Look:
        """The same ratios, for a method that knows its optimum without them."""
        return replace(self, draws=None)

    @property
    def is_whole(self) -> bool:
        """Whether failures, if any, came by chance, and all values are from the same data."""
        return len(self.h) == 1 and not (self.failed and self.fails_in_places)

    @cached_property
    def fails_in_places(self) -> bool:
        """Whether failures depend on the point, or the draws do not show that they do not."""
        if self.draws is None:
            return True
        q, theta = to_numpy(self.q), to_numpy(self.draws[0])
        return failures_depend_on_place(np.asarray(self.family.coordinates(q, theta)), theta, ~is_ok(self.draws[1]))

    def rounding(self, value: float) -> float:
        """Largest distance between two numbers of this size, in the precision of the log joint."""
        like = self.h if self.draws is None else self.draws[1].log_joint
        return abs(value) * float(array_namespace(like).finfo(like.dtype).eps)

    @cached_property
    def features(self) -> Floats | None:
        """Statistics of the draws, orthonormal under q (n, k); None if the draws are too few."""
        if self.draws is None or self.h.size < _DRAWS_PER_COEFFICIENT * (1 + self.family.n_free):
            return None
        theta, values = self.draws
        return np.asarray(self.family.changes(to_numpy(self.q), to_numpy(theta)[is_ok(values)]))


def _unknown(theta: Floats) -> Floats:
    """NaN for each point (n,)."""
    return np.full(len(theta), np.nan)


class Past(NamedTuple):
    """All points that were evaluated."""

    theta: Floats  # (N, d)
    log_joint: Floats  # (N,)
    noise: Floats | float  # variances of the function's noise at these points (N,), or one for all
    # Log density, at some of the points, of a Gaussian with the shape of the log joint around them;
    # NaN where that is not known.
    log_density_around: Callable[[Floats], Floats] = _unknown


@dataclass(frozen=True)
class Verdict:
    """The rules by which fresh draws confirm a convergence, or take it back.

    - `doubts` applies while the fit can still continue. If it is true, the method receives the
      draws and the fit continues.
    - `judge` applies at the end. It needs stronger evidence, and decides whether the fit counts as
      converged.

    Examples
    --------
    If log p / q varies by ten nats between draws, the result is not the posterior:

    >>> import numpy as np
    >>> from qbvi.families import Gaussian
    >>> look = Look(Gaussian(1), np.zeros(3), np.linspace(-17, 17, 100)[None], failed=0.0)
    >>> Verdict().on_ratios(Stop.own(True, "settled"), look.h[0], khat=0.1, missing=9.0).kind
    <StopKind.FAR_OFF: 'far-off'>
    """

    most_looks: int = 5  # most checks with fresh draws after which a fit may continue
    # A fit continues if fresh draws show so many nats to gain, at this chance of a false alarm.
    suspicious_gain: float = 0.02
    suspicious_chance: float = 0.01
    # A fit does not count as converged if they show this gain, at this chance of a false alarm.
    proven_gain: float = 0.05
    proven_chance: float = 1e-4
    predicted: float = 2.0  # multiple of the predicted gap up to which a gain is no surprise
    # Nats that fresh draws may leave undecided: half of the error that a converged fit may have.
    open_nats: float = 0.25
    # The same, relative to draws of equal weight; a quadratic residual has a ratio of three.
    uneven: float = 6.0
    most_failed: float = 0.02  # largest share of failed draws with which a fit counts as converged
    # The fresh bound may be below the bound of the fit by so many standard errors (chance) ...
    bound_errors: float = 5.0
    bound_nats: float = 0.1  # ... plus so many nats (too few to matter) ...
    # ... and so many times the rounding of numbers of that size: in single precision, that is up to
    # 0.06 nats for a log joint of half a million, and a sum of many is rounded more than once.
    bound_roundings: float = 4.0
    # Nats: standard deviation of log p / q below which a few draws decide. The missing 0.02 nats
    # are below those at which k-hat counts, also if 20 draws understate them by half.
    slight: float = 0.2
    ordered_chance: float = 0.05  # ... unless they follow the order of the calls: of a false alarm
    # Nats: standard deviation of log p / q above which the draws do not determine the bound.
    far_off: float = 6.0
    # Effective sample size of the importance ratios below which a fit does not count as converged,
    # and the same as a share of the draws if k-hat is not known. If ratios are log-normal, a tenth
    # means that more than a nat is missing. Noise of the function counts as such, so both apply
    # only if nats are missing beyond it.
    fewest_effective: float = FEWEST_EFFECTIVE
    least_share: float = 0.1
    # Nats of the posterior that a converged fit may miss: infinite for a family by name.
    most_missing: float = math.inf
    order_nats: float = 0.05  # change with the order of the calls from which on it counts
    # A point elsewhere: so many standard deviations outside the typical distance of a draw, with a
    # log joint at most so many nats below that of a typical draw. Of a Gaussian posterior, such a
    # point would be 20 nats below. The estimate of the mass around it, which is rough, may be so
    # many nats below a share of the mass of q: to leave out one percent costs 0.01 nats.
    elsewhere_sd: float = 5.0
    elsewhere_nats: float = 3.0
    elsewhere_mass: float = 0.01
    noise_errors: float = 4.0  # standard deviations of the function's noise, added to that height
    fewest_ratios: int = FEWEST_RATIOS  # with fewer draws, one of them often outweighs the others

    def is_decided(self, h: Floats) -> bool:
        """Whether a few log ratios (n,) decide, so that no more draws are needed.

        No step in any family can gain more than half of their variance, to second order, and that
        is about what q misses of the posterior. Ratios that follow the order of the calls do not
        decide, because a function with a memory changes more over more calls.
        """
        with np.errstate(all="ignore"):  # values may be too large to square
            is_slight = h.std() < self.slight
        return bool(is_slight and not change_with_order(h, self.ordered_chance, fewest=2))

    def doubts(self, look: Look, gap: float) -> bool:
        """Whether the draws justify further iterations, given the ``gap`` that was predicted."""
        if not look.is_whole:
            return False
        gain = self._gain(look, gap, self.suspicious_gain, self.suspicious_chance)
        return gain > 0 or self._open(look) > 0

    def judge(self, stop: Stop, look: Look, gap: float, fitted: float) -> Stop:
        """Take a convergence back if the draws contradict it.

        Parameters
        ----------
        stop
            How the loop ended.
        look
            Fresh draws from the result.
        gap, fitted
            The gap that the method predicted, in nats, and its last smoothed bound.
        """
        if look.is_whole:
            stop = self._on_gain(self._on_order(stop, look), look, gap)
        if look.failed > self.most_failed and look.fails_in_places:
            stop = self.on_failures(stop, look.failed, "fresh draws from the result")
        return self._on_bound(stop, look, fitted)

    def on_failures(self, stop: Stop, share: float, draws: str) -> Stop:
        """Take a convergence back if many draws failed: the fit may miss part of the posterior."""
        if not stop.converged or share <= self.most_failed:
            return stop
        return stop.but(StopKind.FAILURES, share=share, draws=draws)

    def on_points(self, stop: Stop, look: Look, past: Past) -> Stop:
        """Take a convergence back if the region around a point far from q has mass.

        Draws from q cannot show what is far from it, but points of earlier iterations can. A point
        counts if all of these hold:

        - It is far from q.
        - Its log joint is not far below that of draws from q.
        - The mass around it is not far below that of q, as far as it is known. The height alone is
          no sign of mass: the neck of a funnel is high and has none.

        Only a Gaussian with full covariance is judged by them: a product is narrow by design where
        parameters are correlated.

        Parameters
        ----------
        stop, look
            As for `judge`.
        past
            All points that were evaluated.
        """
        if not stop.converged or look.draws is None or type(look.family) is not Gaussian:
            return stop
        theta, log_joint, noise = past.theta, past.log_joint, past.noise + np.zeros(len(past.theta))
        allowance = self.elsewhere_nats - self.noise_errors * np.sqrt(noise)
        is_high = log_joint > float(np.median(to_numpy(look.draws[1].log_joint))) - allowance
        theta, log_joint, allowance = theta[is_high], log_joint[is_high], allowance[is_high]
        distance = np.linalg.norm(to_numpy(look.family.whiten(to_numpy(look.q), theta)), axis=1)
        is_far = distance > math.sqrt(look.family.dim) + self.elsewhere_sd
        if not is_far.any():
            return stop
        log_mass = log_joint[is_far] - past.log_density_around(theta[is_far])
        least = float(look.h.mean()) + math.log(self.elsewhere_mass) - allowance[is_far]
        has_mass = ~(log_mass < least)  # true if it is not known
        return stop.but(StopKind.ELSEWHERE, distance=distance[is_far][has_mass].max()) if has_mass.any() else stop

    def on_ratios(self, stop: Stop, h: Floats, khat: float, missing: float) -> Stop:
        """Take a convergence back if the importance ratios show that q is not the posterior.

        Parameters
        ----------
        stop
            How the fit ended so far.
        h
            Logarithms of the ratios (n,).
        khat
            Their Pareto k-hat; NaN if it is not known.
        missing
            Nats that are missing of the posterior by these ratios.
        """
        if not stop.converged:
            return stop
        if h.std() > self.far_off:
            return stop.but(StopKind.FAR_OFF, nats=h.std())
        size = effective_draws(h)
        if h.size >= self.fewest_ratios and missing >= KHAT_NATS and size < self._fewest(h.size, khat):
            return stop.but(StopKind.ONE_RATIO, n=h.size, size=size)
        if judge_khat(khat, h.size, missing) is Khat.BAD:
            return stop.but(StopKind.KHAT, khat=khat)
        return stop.but(StopKind.FAMILY, nats=missing) if missing > self.most_missing else stop

    def _fewest(self, n: int, khat: float) -> float:
        """Least effective sample size of n draws."""
        return max(self.fewest_effective, self.least_share * n) if math.isnan(khat) else self.fewest_effective

    def _on_order(self, stop: Stop, look: Look) -> Stop:
        nats = abs(change_with_order(look.h[0], self.proven_chance))
        if not stop.converged or nats < self.order_nats:
            return stop
        return stop.but(StopKind.ORDER, nats=nats, n=look.h.size)

    def _on_gain(self, stop: Stop, look: Look, gap: float) -> Stop:
        if not stop.converged:
            return stop
        gain = self._gain(look, gap, self.proven_gain, self.proven_chance)
        if gain:
            return stop.but(StopKind.STILL_TO_GAIN, nats=gain)
        unknown = self._open(look)
        return stop.but(StopKind.LEFT_OPEN, nats=unknown) if unknown else stop

    def _on_bound(self, stop: Stop, look: Look, fitted: float) -> Stop:
        """Take a convergence back if the fresh bound is well below the fit's own estimate."""
        h = look.h
        below, se = fitted - float(h.mean()), float(h.std(ddof=1)) / np.sqrt(h.size)
        allowed = self.bound_errors * se + self.bound_nats + self.bound_roundings * look.rounding(fitted)
        if not stop.converged or below < allowed:
            return stop
        return stop.but(StopKind.BOUND_BELOW, nats=below)

    def _gain(self, look: Look, gap: float, worth: float, chance: float) -> float:
        """Nats that further steps would gain, if the draws prove more than predicted; else zero."""
        if look.features is None:
            return 0.0
        return still_to_gain(look.features, look.h[0], float(np.fmax(worth, self.predicted * gap)), chance)

    def _open(self, look: Look) -> float:
        """Nats that the draws leave undecided; zero if that is within the limits."""
        if look.features is None:
            return 0.0
        unknown = left_open(look.features, look.h[0])
        # The same if all draws had equal weight.
        even = 0.5 * look.family.n_free * float(look.h[0].var()) / look.h.size
        return unknown if unknown > max(self.open_nats, self.uneven * even) else 0.0
