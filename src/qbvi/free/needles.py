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

__all__ = ["Needles", "outstanding", "spread"]

Floats = NDArray[np.float64]


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

    def end(self, prior: PriorScale) -> tuple[Floats, Floats, float]:
        """Mean (d,) and covariance (d, d) of the best hill, and the log of its mass."""
        assert self.climbs is not None
        loc, scale, best = np.asarray(prior.loc), np.asarray(prior.scale), int(np.argmax(self.climbs.y))
        cov = self.climbs.inverse[best] * np.outer(scale, scale)
        mass = float(self.climbs.log_mass[best] + np.log(scale).sum())
        return loc + scale * self.climbs.z[best], cov, mass


def spread(
    draws: Floats, sd: Floats, prior: PriorScale, n: int, rng: np.random.Generator
) -> Floats:
    """Points (n, d): each is a draw from the posterior, with some coordinates from the prior.

    A coordinate is from the prior with a probability of its standard deviation ``sd`` (d,) relative
    to the prior's, and of 1 / d at least: what is free in the posterior is free at a needle too, and
    what is not may have another value there.
    """
    d, scale = draws.shape[1], np.asarray(prior.scale)
    fresh = np.asarray(prior.loc) + scale * Sobol().normal(drawn_generator(rng), n + n % 2, d)[:n]
    is_fresh = rng.random((n, d)) < np.clip(sd / scale, 1 / d, 1.0)
    return np.where(is_fresh, fresh, draws[rng.integers(len(draws), size=n)])


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
