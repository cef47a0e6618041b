r"""Several climbs to the top of a hill at the same time, of which half are given up at each step.

A climb is a quasi-Newton search (BFGS) without gradients: d differences for the slope g, then three
points along the step H g, where H estimates the inverse of minus the Hessian. Its first estimate is
diagonal, from second differences: a needle may be a thousand times as narrow along one coordinate
as along the others. After each step the lower half of the climbs ends (successive halving).

Where a climb ends, H tells the volume of the hill, so its mass is known by Laplace's approximation.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.free.rules import NeedleRule

__all__ = ["Ascents"]

Floats = NDArray[np.float64]

_TINY = 1e-12


class Ascents(NamedTuple):
    """Climbs from k points at the same time, in units in which the prior has unit spread.

    Examples
    --------
    >>> hill = lambda z: -0.5 * np.sum(((z - 2) / [0.01, 1]) ** 2, axis=1)
    >>> start, rule = np.array([[2.02, 1.0], [2.5, 0.0]]), NeedleRule()
    >>> climbs = Ascents.begin(start, hill(start), np.zeros(2, dtype=int), 0.0)
    >>> while not climbs.is_over:
    ...     climbs = climbs.tell(hill(climbs.ask(rule)), rule)
    >>> climbs.z.round(3), bool(abs(climbs.log_mass[0] - np.log(2 * np.pi * 0.01)) < 0.1)
    (array([[2., 2.]]), True)
    """

    z: Floats  # (k, d) where the climbs are
    y: Floats  # (k,) log joints there
    slope: Floats  # (k, d); empty before it is known
    inverse: Floats  # (k, d, d) inverse of minus the Hessian
    length: Floats  # (k,) of the steps, relative to the quasi-Newton step
    moved: Floats  # (k, d) the last steps
    idle: NDArray[np.int64]  # (k,) last steps in a row that gained next to nothing
    is_sloped: bool  # whether the slopes at z are known
    n_steps: int
    is_over: bool
    group: NDArray[np.int64]  # (k,) climbs of one group compete with each other
    goal: float  # a log joint that a hill must have to matter

    @classmethod
    def begin(cls, z: Floats, y: Floats, group: NDArray[np.int64], goal: float) -> Ascents:
        """Climbs from points (k, d) with log joints (k,)."""
        k, d = z.shape
        none, ones, still, zero = np.empty((k, 0)), np.ones(k), np.zeros((k, d)), np.zeros(k, dtype=np.int64)
        return cls(z, y, none, np.empty((k, 0, 0)), ones, still, zero, False, 0, k == 0, group, goal)

    def without(self, is_known: NDArray[np.bool_]) -> Ascents:
        """The climbs without those (k,) that arrived at a known hill."""
        rest = np.flatnonzero(~is_known)
        kept = self._replace(
            z=self.z[rest],
            y=self.y[rest],
            slope=self.slope[rest],
            inverse=self.inverse[rest],
            length=self.length[rest],
            moved=self.moved[rest],
            idle=self.idle[rest],
            group=self.group[rest],
        )
        return kept._replace(is_over=self.is_over or not len(rest))

    @property
    def log_mass(self) -> Floats:
        """Logs of the masses of the hills (k,), by Laplace's approximation."""
        d = self.z.shape[1]
        if not self.inverse.size:
            return np.full(len(self.y), -np.inf)
        return np.asarray(self.y + 0.5 * (d * math.log(2 * math.pi) + np.linalg.slogdet(self.inverse)[1]))

    def ask(self, rule: NeedleRule) -> Floats:
        """The next points: for the slopes, or along the steps."""
        d = self.z.shape[1]
        if self.is_sloped:
            along = np.array(rule.along)[:, None] * self._steps(rule)[:, None]
            return np.asarray((self.z[:, None] + along).reshape(-1, d))
        ahead = self._differences(rule)[:, :, None] * np.eye(d)
        both = ahead if self.slope.size else np.concatenate([ahead, -ahead], axis=1)
        return np.asarray((self.z[:, None] + both).reshape(-1, d))

    def tell(self, y: Floats, rule: NeedleRule) -> Ascents:
        """The climbs that know the values of these points."""
        rise = y.reshape(len(self.y), -1) - self.y[:, None]
        rise = np.where(np.isfinite(rise), rise, -rule.cliff)
        if self.is_sloped:
            return self._stepped(rise, rule)
        return self._begun(rise, rule) if not self.slope.size else self._turned(rise, rule)

    def _differences(self, rule: NeedleRule) -> Floats:
        """Lengths of the differences (k, d): a part of the standard deviation of the hill."""
        if not self.slope.size:
            return np.full(self.z.shape, rule.first)
        return np.asarray(rule.difference * np.sqrt(np.diagonal(self.inverse, axis1=1, axis2=2)))

    def _steps(self, rule: NeedleRule) -> Floats:
        """The quasi-Newton steps (k, d), none longer than the spread of the prior."""
        step = np.einsum("kij,kj->ki", self.inverse, self.slope) * self.length[:, None]
        longest = np.max(np.abs(step), axis=1, keepdims=True) * max(rule.along)
        return np.asarray(step / np.maximum(longest / rule.longest, 1.0))

    def _begun(self, rise: Floats, rule: NeedleRule) -> Ascents:
        """Slopes and curvatures along each coordinate, from differences to both sides."""
        ahead, back = np.split(rise, 2, axis=1)
        curvature = np.abs(ahead + back) / rule.first**2
        variances = 1 / np.maximum(curvature, 1.0)  # the prior's own curvature is one
        inverse = variances[:, :, None] * np.eye(self.z.shape[1])
        return self._replace(slope=(ahead - back) / (2 * rule.first), inverse=inverse, is_sloped=True)

    def _turned(self, rise: Floats, rule: NeedleRule) -> Ascents:
        """New slopes, and what their change tells of the Hessian."""
        slope = rise / self._differences(rule)
        inverse = np.stack(
            [_updated(*parts) for parts in zip(self.inverse, self.moved, self.slope - slope, strict=True)]
        )
        return self._replace(slope=slope, inverse=inverse, is_sloped=True)

    def _stepped(self, rise: Floats, rule: NeedleRule) -> Ascents:
        """Go to the best point along each step; only the better half of the climbs goes on."""
        k, n_steps = np.arange(len(self.y)), self.n_steps + 1
        steps, best = self._steps(rule), np.argmax(rise, axis=1)
        gain = np.maximum(rise[k, best], 0.0)
        moved = np.where(gain > 0, np.array(rule.along)[best], 0.0)[:, None] * steps
        # Without a rise, the step was too long by far.
        length, idle = (
            np.where(gain > 0, 1.0, rule.shorter * self.length),
            np.where(gain < rule.least_gain, self.idle + 1, 0),
        )
        y, group, is_moving = self.y + gain, self.group, idle < rule.idle
        # Several steps like the last one must lead to a hill that matters.
        is_hopeful = (y + rule.steps * gain >= self.goal) | (is_moving & (gain <= 0))
        is_kept = is_hopeful & np.isin(k, np.concatenate([_better_half(y, group == one) for one in np.unique(group)]))
        is_final = np.count_nonzero(is_kept) == len(np.unique(group[is_kept]))
        is_over = is_final and (n_steps >= rule.most_steps or not is_moving[is_kept].any())
        is_still = bool(is_kept.any()) and not gain[is_kept].any()
        state = self._replace(z=self.z + moved, y=y, length=length, moved=moved, idle=idle)
        return state._replace(is_sloped=is_still, n_steps=n_steps, is_over=is_over).without(~is_kept)


def _better_half(y: Floats, is_in: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Rows of the higher half of the climbs of a group, one at least."""
    rows = np.flatnonzero(is_in)
    return np.asarray(rows[np.argsort(-y[rows], kind="stable")[: max(len(rows) // 2, 1)]])


def _updated(inverse: Floats, step: Floats, fall: Floats) -> Floats:
    """The inverse (d, d) after the slope fell by ``fall`` (d,) along a step (d,), by BFGS.

    Without a fall the log joint is not concave there, and nothing is learnt.
    """
    product = float(step @ fall)
    if product <= _TINY:
        return inverse
    left = np.eye(len(step)) - np.outer(step, fall) / product
    return np.asarray(left @ inverse @ left.T + np.outer(step, step) / product)
