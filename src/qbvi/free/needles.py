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
from qbvi.free.base import squares
from qbvi.free.rules import NeedleRule
from qbvi.random import Sobol, drawn_generator
from qbvi.regression.look import PriorScale

__all__ = ["Hill", "Looks", "Needles", "climbs", "outstanding", "spread"]

Floats = NDArray[np.float64]


class Hill(NamedTuple):
    """A hill that a climb has shown."""

    mean: Floats  # (d,)
    cov: Floats  # (d, d)
    log_mass: float

    def square(self, theta: Floats) -> Floats:
        """Squared distances of points (n, d), in standard deviations: (n,)."""
        return squares(theta, self.mean, self.cov)


class Needles(NamedTuple):
    """A look for needles: the points that are evaluated next."""

    points: Floats  # (m, d) that are spread; they are known when ...
    climbs: Ascents | None  # ... the climbs have begun
    n_climbs: int  # how many begin
    is_fine: bool = False  # whether small surprises count, and mirror images of some points come first ...
    n_before: int = 0  # ... and how many points were spread before these

    @property
    def is_over(self) -> bool:
        """Whether the climbs have ended."""
        return self.climbs is not None and self.climbs.is_over

    def ask(self, prior: PriorScale, rule: NeedleRule) -> Floats:
        """The next points (n, d)."""
        if self.climbs is None:
            return self.points
        return np.asarray(np.asarray(prior.loc) + np.asarray(prior.scale) * self.climbs.ask(rule))

    def climbed(self, y: Floats, rule: NeedleRule) -> Needles:
        """The look that knows the values (n,) of the last points."""
        assert self.climbs is not None
        return self._replace(climbs=self.climbs.tell(np.where(np.isnan(y), -np.inf, y), rule))

    def at(self, prior: PriorScale) -> tuple[Floats, Floats]:
        """Where the climbs are (k, d), and the log joints there (k,)."""
        assert self.climbs is not None
        return np.asarray(prior.loc) + np.asarray(prior.scale) * self.climbs.z, self.climbs.y

    def without(
        self, is_known: NDArray[np.bool_], hills: tuple[Hill, ...], prior: PriorScale, rule: NeedleRule
    ) -> Needles:
        """The look without climbs (k,) that are known, or have arrived at a hill that is."""
        assert self.climbs is not None
        near = [hill.square(self.at(prior)[0]) < rule.known**2 for hill in hills]
        return self._replace(climbs=self.climbs.without(np.any([is_known, *near], axis=0)))

    def ends(self, prior: PriorScale) -> tuple[Hill, ...]:
        """The hills at which the last climbs have ended, the one with most mass first."""
        assert self.climbs is not None
        loc, scale = np.asarray(prior.loc), np.asarray(prior.scale)
        parts = zip(self.climbs.z, self.climbs.inverse, self.climbs.log_mass, strict=True)
        found = [Hill(loc + scale * z, C * np.outer(scale, scale), float(m + np.log(scale).sum())) for z, C, m in parts]
        return tuple(sorted(found, key=lambda hill: -hill.log_mass))


class Looks(NamedTuple):
    """All looks of a fit."""

    now: Needles | None = None  # the one that is under way
    n_evals: int = 0  # evaluations of the fit at the end of the last one
    starts: tuple[Floats, ...] = ()  # points (d,) at which climbs began ...
    hills: tuple[Hill, ...] = ()  # ... and where they ended


def spread(draws: Floats, sd: Floats, prior: PriorScale, n: int, rng: np.random.Generator, *, is_wide: bool) -> Floats:
    """Points (n, d): each is a draw from the posterior, with some coordinates from the prior.

    A coordinate that is free in the posterior, with a standard deviation ``sd`` (d,) near that of
    the prior, is free at a needle too. If the look ``is_wide``, others may have another value
    there, but nobody knows which or how many: so each point has its own share of them from the
    prior.
    """
    d, scale = draws.shape[1], np.asarray(prior.scale)
    fresh = np.asarray(prior.loc) + scale * Sobol().normal(drawn_generator(rng), n + n % 2, d)[:n]
    share = np.maximum(is_wide * rng.random((n, 1)), np.minimum(sd / scale, 1.0))
    return np.where(rng.random((n, d)) < share, fresh, draws[rng.integers(len(draws), size=n)])


def climbs(
    at: tuple[Floats, Floats, Floats], is_inside: NDArray[np.bool_], looks: Looks, prior: PriorScale, rule: NeedleRule
) -> Ascents:
    """Climbs from the best points (n, d), with log joints (n,), that others do not predict.

    The third part of ``at`` is how surprising they are: above one (n,). Points inside of a known
    mode compete with each other, as do those outside. The former are higher, but a needle that is
    far from all modes shows among the latter only.
    """
    assert looks.now is not None
    theta, y, surprise = at
    z, n = (theta - np.asarray(prior.loc)) / np.asarray(prior.scale), max(looks.now.n_climbs // 2, 1)
    for start in looks.starts:
        apart = np.linalg.norm((theta - start) / np.asarray(prior.scale), axis=1)
        surprise = np.where(apart > rule.apart * math.sqrt(theta.shape[1]), surprise, -np.inf)
    parts = [np.flatnonzero(is_inside), np.flatnonzero(~is_inside)]
    rows = [part[outstanding(z[part], y[part], surprise[part], n, rule)] for part in parts]
    group, chosen = np.repeat(np.arange(2), [len(part) for part in rows]), np.concatenate(rows)
    return Ascents.begin(z[chosen], y[chosen], group, float(np.max(y)))


def outstanding(z: Floats, y: Floats, surprise: Floats, n: int, rule: NeedleRule) -> NDArray[np.int64]:
    """Rows of the n best points z (N, d), apart, with a ``surprise`` (N,) above one.

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
        if surprise[i] > 1 and np.all(np.linalg.norm(z[rows] - z[i], axis=1) > near):
            rows.append(int(i))
    return np.array(rows, dtype=np.int64)
