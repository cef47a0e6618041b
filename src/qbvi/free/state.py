"""What the default method in few dimensions remembers from one iteration to the next."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.free.base import Base
from qbvi.free.check import Check
from qbvi.free.density import FreeDensity
from qbvi.free.needles import Looks
from qbvi.free.search import SearchState

__all__ = ["Confirmed", "Current", "Exploring", "FreeState", "Paused", "Settled"]

Floats = NDArray[np.float64]


class Exploring(NamedTuple):
    """The points of a round that extend the posterior."""

    points: Floats  # (n, d) chosen where it may miss mass
    # Of these, the first ones are draws from where mass may be, each there so many times (k,) ...
    counts: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    log_z: float = 0.0  # ... and the log of the integral of that density, ...
    log_z_error: float = 0.0  # ... with its standard error


class Current(NamedTuple):
    """The posterior so far, and the points to evaluate next."""

    density: FreeDensity
    member: Floats  # (n_stored,) of the density
    draws: Floats  # (m, d) from it
    exploring: Exploring
    error: float  # nats by which the surrogate expects to be wrong
    change: float  # nats from the posterior of the round before
    hope: float  # nats of mass that may be where there are few points
    log_z_error: float  # standard error of the log of the surrogate's integral ...
    sampling_error: float  # ... of which so much is that of importance sampling
    gaussian: float  # nats between it and the nearest Gaussian ...
    nearest: Floats  # ... which is this member of the family
    base: Base  # of the next surrogate, in its coordinates
    rows: NDArray[np.int64]  # points of the surrogate ...
    n_points: int  # ... among so many
    n_searched: int  # points when the kernel was last searched for ...
    n_warped: int  # ... and when the search was for coordinates too


class Confirmed(NamedTuple):
    """The posterior of the best round so far, and what its draws showed."""

    current: Current
    check: Check
    bound: float  # lower bound by these draws ...
    bound_se: float  # ... and its standard error


class Settled(NamedTuple):
    """A posterior that was about to be the result, when the search went on with what it found."""

    best: Confirmed
    checks: tuple[Check, ...]
    q: Array
    n_modes: int  # that the search knew when it went on; minus one if it is to find another one for sure
    symmetries: tuple[int, ...]  # likewise

    def holds(self, search: SearchState) -> bool:
        """Whether the search found nothing more."""
        return len(search.modes) <= self.n_modes and search.symmetries == self.symmetries

    def restored(self, state: FreeState) -> FreeState:
        """The state with this posterior."""
        return state._replace(current=self.best.current, checks=self.checks, best=self.best, q=self.q)


class Paused(NamedTuple):
    """Rounds that go on if a path to another mode finds none."""

    current: Current
    n_modes: int  # that the search knew


class FreeState(NamedTuple):
    """The state of the search for Gaussians, all points, and the state of the rounds."""

    q: Floats  # the Gaussian of the search, then the one with the posterior's moments
    search: SearchState
    theta: Floats  # (N, d) all points
    y: Floats  # (N,) log joint: minus infinity at zero likelihood, NaN where the function failed
    noise: Floats  # (N,) noise variances
    current: Current | None
    checks: tuple[Check, ...]
    best: Confirmed | None = None
    n_tried: int = 0  # points when a structure was last searched for in vain
    n_stuck: int = 0  # rounds without improvement, with as many points as a surrogate can have
    n_lost: int = 0  # consecutive rounds whose surrogate was not believed
    n_began: int = 0  # points when the rounds began
    settled: Settled | None = None  # the posterior with which the search went on, if it did
    looks: Looks = Looks()  # for needles
    paused: Paused | None = None  # the rounds, while a path leads from a hill that a look has found
