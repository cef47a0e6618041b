r"""A look for needles: modes much narrower than the prior in a coordinate, above a broad mode.

Where a model has a signal of unknown place, such as the period of a planet, the posterior has a
broad mode in which there is no signal, and the place is as free as in the prior. The mode of the
signal is a needle: no line leads to it, and few draws of the broad mode are near it. But these are
better than the others predict: in a small amplitude, the log-likelihood is about linear.

So a look has two parts. Points are spread, each with some coordinates from the prior and the others
from the posterior so far. Then climbs begin at the best of all points, old and new, that exceed
what the surrogate expects from the others. Where the best of them ends, Laplace's approximation
tells whether it is worth a search for a Gaussian.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.free.ascent import Ascents
from qbvi.free.rules import NeedleRule
from qbvi.random import Sobol, drawn_generator
from qbvi.regression.look import PriorScale

__all__ = ["Hill", "Needles", "outstanding", "spread"]

Floats = NDArray[np.float64]


class Hill(NamedTuple):
    """A hill that a climb has shown."""

    mean: Floats  # (d,)
    cov: Floats  # (d, d)
    log_mass: float

    def square(self, theta: Floats) -> Floats:
        """Squared distances of points (n, d), in standard deviations: (n,)."""
        apart = theta - self.mean
        return np.asarray(np.sum(apart * np.linalg.solve(self.cov, apart.T).T, axis=1))


class Needles(NamedTuple):
    """The points of a look that are evaluated next."""

    points: Floats  # (m, d) that are spread; empty when they are known ...
    climbs: Ascents | None  # ... and the climbs begin
    n_climbs: int  # how many begin

    @property
    def is_over(self) -> bool:
        """Whether the climbs have ended."""
        return self.climbs is not None and self.climbs.is_over

    def ask(self, prior: PriorScale, rule: NeedleRule) -> Floats:
        """The next points (n, d)."""
        if self.climbs is None:
            return self.points
        return np.asarray(np.asarray(prior.loc) + np.asarray(prior.scale) * self.climbs.ask(rule))

    def ends(self, prior: PriorScale) -> list[Hill]:
        """The hills at which the last climbs have ended, the one with most mass first."""
        assert self.climbs is not None
        loc, scale = np.asarray(prior.loc), np.asarray(prior.scale)
        parts = zip(self.climbs.z, self.climbs.inverse, self.climbs.log_mass, strict=True)
        found = [Hill(loc + scale * z, C * np.outer(scale, scale), float(m + np.log(scale).sum())) for z, C, m in parts]
        return sorted(found, key=lambda hill: -hill.log_mass)


def spread(draws: Floats, sd: Floats, prior: PriorScale, n: int, rng: np.random.Generator) -> Floats:
    """Points (n, d): each is a draw from the posterior, with some coordinates from the prior.

    A coordinate that is free in the posterior, with a standard deviation ``sd`` (d,) near that of
    the prior, is free at a needle too. Others may have another value there, but nobody knows which
    or how many: so each point has its own share of coordinates that are from the prior.
    """
    d, scale = draws.shape[1], np.asarray(prior.scale)
    fresh = np.asarray(prior.loc) + scale * Sobol().normal(drawn_generator(rng), n + n % 2, d)[:n]
    share = np.maximum(rng.random((n, 1)), np.minimum(sd / scale, 1.0))
    return np.where(rng.random((n, d)) < share, fresh, draws[rng.integers(len(draws), size=n)])


def outstanding(z: Floats, y: Floats, surprise: Floats, n: int, rule: NeedleRule) -> NDArray[np.int64]:
    """Rows of the n best points z (N, d), apart, that exceed what others predict by ``surprise``.

    Examples
    --------
    >>> z, y = np.array([[0.0], [0.01], [1.0], [2.0]]), np.array([5.0, 4.0, 3.0, 2.0])
    >>> outstanding(z, y, np.array([2.0, 2.0, 0.0, 2.0]), 2, NeedleRule())
    array([0, 3])
    """
    rows: list[int] = []
    near = rule.apart * math.sqrt(z.shape[1])
    for i in np.argsort(-y, kind="stable"):
        if len(rows) == n or not np.isfinite(y[i]):
            break
        if surprise[i] > rule.surprising and np.all(np.linalg.norm(z[rows] - z[i], axis=1) > near):
            rows.append(int(i))
    return np.array(rows, dtype=np.int64)
