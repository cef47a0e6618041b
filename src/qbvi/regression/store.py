"""All points evaluated so far, and the choice of those that are useful for the current q."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.families.base import Family
from qbvi.protocol import Known
from qbvi.regression.rules import Thinning

__all__ = ["Batch", "Chosen", "Store"]

Floats = NDArray[np.float64]

# Any run of consecutive multiples of it, modulo one, fills the unit interval evenly.
_GOLDEN = (math.sqrt(5) - 1) / 2
_SMALLEST_UNIFORM = 1e-12  # added because the first multiple is zero, which has no logarithm


class Batch(NamedTuple):
    """One batch of draws: the q they came from and the rows of the store that hold them."""

    q: Array
    start: int
    stop: int


class Chosen(NamedTuple):
    """The points of one regression."""

    rows: NDArray[np.int64]  # (n,) of the store
    x: Floats  # (n, n_whitened) their whitened coordinates
    squares: Floats  # (n,) squared radii
    log_density: Floats  # (n,) log density of q, relative to that of the past draws

    @property
    def weights(self) -> Floats:
        """Density of q over that of the past draws, at most one."""
        return np.exp(np.minimum(self.log_density, 0.0))


class Store(NamedTuple):
    """All points so far, oldest first, mirror pairs next to each other."""

    theta: Floats  # (N, d)
    y: Floats  # (N,) log joint, -inf where the function failed
    noise: Floats  # (N,) noise variances, zero if the function does not return them
    log_mixture: Floats  # (N,) log of the sum over batches of n_b q_b(theta): density of past draws
    past: tuple[Batch, ...]

    @classmethod
    def empty(cls, d: int) -> Store:
        """A store without points."""
        none = np.empty(0)
        return cls(np.empty((0, d)), none, none, none, ())

    @classmethod
    def holding(cls, family: Family, known: Known) -> Store:
        """A store of points whose origin is known only by the moments of their parts."""
        past = tuple(Batch(family.from_moments(p.mean, p.cov), p.start, p.stop) for p in known.parts)
        mixture = np.logaddexp.reduce([math.log(b.stop - b.start) + family.log_prob(b.q, known.theta) for b in past])
        return cls(known.theta, known.log_joint, known.noise_sd**2, np.asarray(mixture), past)

    def add(self, family: Family, q: Array, theta: Floats, y: Floats, noise: Floats) -> Store:
        """Add a batch drawn from ``q``, and update the density of the past draws at all points."""
        n = len(self.y)
        old = (
            np.logaddexp(self.log_mixture, math.log(len(y)) + family.log_prob(q, self.theta)) if n else self.log_mixture
        )
        past = (*self.past, Batch(q, n, n + len(y)))
        new = np.logaddexp.reduce([math.log(b.stop - b.start) + family.log_prob(b.q, theta) for b in past])
        return Store(
            np.concatenate([self.theta, theta]),
            np.concatenate([self.y, y]),
            np.concatenate([self.noise, noise]),
            np.concatenate([old, new]),
            past,
        )

    def choose(self, family: Family, q: Array, most: int, rules: Thinning) -> Chosen:
        """The points that are useful for q.

        They have finite values, are not extremely far away, and not so low that no quadratic could
        explain them. If the effective sample size is large, or there are more than ``most`` of
        them, a sample is taken.
        """
        x = family.coordinates(q, self.theta)
        squares = np.sum(x**2, axis=1)
        density = family.log_prob(q, self.theta) - self.log_mixture + math.log(len(self.y))
        near = squares < rules.far * (family.n_whitened + 2)
        is_known = np.isfinite(self.y) & near & np.isfinite(density)
        rows = np.flatnonzero(is_known & (self.y > rules.lowest(self.y, squares, is_known, family.n_whitened)))
        is_enough = np.sum(np.exp(np.minimum(density[rows], 0))) > rules.enough * family.size
        if is_enough or len(rows) > most:
            rows, accepted = _thinned(rows, density, most, -math.log(rules.certain) if is_enough else math.inf)
            return Chosen(rows, x[rows], squares[rows], density[rows] - accepted)
        return Chosen(rows, x[rows], squares[rows], density[rows])


def _thinned(rows: NDArray[np.int64], density: Floats, most: int, limit: float) -> tuple[NDArray[np.int64], Floats]:
    """Accept mirror pairs with a probability proportional to their density, by rejection sampling.

    The probability is the density times exp(limit), at most one. ``limit`` is lowered if more than
    ``most`` points would be accepted. Also returns the log of the probability of each accepted
    point.

    To drop the points with the lowest density instead would cut off the tails of q. A pair keeps
    its uniform number, so that the sample changes little as q moves.
    """
    pair = rows // 2
    mean_density = np.logaddexp(density[2 * pair], density[np.minimum(2 * pair + 1, len(density) - 1)]) - math.log(2)
    uniform = (pair * _GOLDEN) % 1.0 + _SMALLEST_UNIFORM
    needed = np.log(uniform) - mean_density  # least limit with which a pair is accepted
    limit = min(limit, float(np.partition(needed, most - 1)[most - 1]) if len(rows) > most else math.inf)
    accepted = needed <= limit
    return rows[accepted], np.minimum(mean_density[accepted] + limit, 0.0)
