"""A survey of the prior, for other modes than those that were found.

A few points are spread over the prior when the search begins. When a mode is found, straight
lines lead to it from some of them: from the best one, and from those where the log joint is highest
above what the Gaussians around the known modes predict. If these predict most points badly, any
point may be chosen. If the log joint falls on the way to the mode before it rises, or bends upward,
there may be another hill, and the search for a Gaussian starts again there. A log-concave function
never does so. If that leads to a new mode, more lines follow.

If all points are as predicted, no line is needed, and more points are spread instead. More points
are spread also before the survey ends, if there are other hills: there may be more. If the
Gaussians are right about nearly all points, the others are on other hills without more ado.

A mode near one end of a uniform prior has one more point, near the other end: the parameter may be
an angle, or another one that is periodic.

Points that were evaluated before the fit take part: the tops of the hills that they show, and those
farthest apart, which may be a survey already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.clusters import hills
from qbvi.free.rules import SurveyRule
from qbvi.random import Sobol, drawn_generator
from qbvi.regression.look import PriorScale

__all__ = ["Hills", "Survey", "bent", "falls", "line"]

Floats = NDArray[np.float64]


class Hills(NamedTuple):
    """Points that may be on other hills."""

    places: Floats  # (m, d)
    y: Floats  # (m,) log joints there
    n_beyond: int  # how many are beyond a valley; they come first


class Survey(NamedTuple):
    """The points of a survey, and where to start from next."""

    theta: Floats  # (n, d) the start of the path, and points spread over the prior
    y: Floats  # (n,) log joints there; empty before they are evaluated
    is_used: NDArray[np.bool_]  # (n,) whether a line led from there
    lines: Floats  # (k, 2, d) first and last points of the lines; empty if none is due
    ends: Floats  # (k, 2) log joints there
    n_spread: int  # how often points were spread
    is_spreading: bool  # whether points are to be spread next
    across: Floats  # (k, d) opposite ends, and images that test symmetries: to be evaluated next
    is_over: bool
    n_exploring: int = 0  # iterations still to come that look for other modes

    @classmethod
    def begin(cls, start: Floats) -> Survey:
        """Nothing evaluated yet."""
        none = np.empty(0)
        lines, ends = np.empty((0, 2, len(start))), np.empty((0, 2))
        return cls(start[None], none, none.astype(bool), lines, ends, 0, True, start[None][:0], False)

    def knowing(self, theta: Floats, y: Floats, prior: PriorScale, rule: SurveyRule) -> Survey:
        """The survey that has points (n, d) with log joints (n,) from before the fit."""
        theta, y = theta[np.isfinite(y)], y[np.isfinite(y)]
        if not len(y):
            return self
        z, n = (theta - np.asarray(prior.loc)) / np.asarray(prior.scale), rule.size(theta.shape[1])
        apart = _farthest_apart(z, int(np.argmax(y)), n + 1)
        tops = [rows[np.argmax(y[rows])] for rows in hills(z, y, rule.valley)]
        chosen = np.unique([*apart, *[i for i in tops if y[i] > y.max() - rule.worth]])
        is_spread = len(apart) > n and bool(np.all(z[apart].std(axis=0) > rule.spread))
        return self._replace(
            theta=theta[chosen],
            y=y[chosen],
            is_used=np.zeros(len(chosen), dtype=bool),
            n_spread=int(is_spread),
            is_spreading=not is_spread,
        )

    @property
    def is_due(self) -> bool:
        """Whether points of the survey are to be evaluated next."""
        is_drawing = self.is_spreading or self.n_exploring > 0
        return not self.is_over and (is_drawing or len(self.across) > 0 or len(self.lines) > 0)

    @property
    def is_across(self) -> bool:
        """Whether the next points are opposite ends and images."""
        return not self.is_spreading and len(self.across) > 0

    @property
    def is_exploring(self) -> bool:
        """Whether the next points are those where another mode is expected most."""
        return not self.is_spreading and not len(self.across) and self.n_exploring > 0

    def ask(self, areas: Sequence[PriorScale], rule: SurveyRule, rng: np.random.Generator) -> Floats:
        """The start and points over the areas, an equal number in each, or points on lines."""
        d = self.theta.shape[1]
        if self.is_spreading:
            n = rule.size(d) if not self.n_spread else self._further(rule)
            spread = Sobol().normal(drawn_generator(rng), n, d)
            parts = zip(areas, np.array_split(spread, len(areas)), strict=True)
            points = np.concatenate([np.asarray(area.loc) + np.asarray(area.scale) * part for area, part in parts])
            return points if len(self.y) else np.concatenate([self.theta, points])
        if len(self.across):
            return self.across
        return np.concatenate([line(first, last, rule.on_line)[1:] for first, last in self.lines])

    def drawn(self, theta: Floats, y: Floats) -> Survey:
        """Add the values of points over the prior, of those in ``across``, or of explored ones."""
        n_spread, n_exploring = self.n_spread + self.is_spreading, self.n_exploring - self.is_exploring
        if len(self.y):
            theta, y = np.concatenate([self.theta, theta]), np.concatenate([self.y, y])
        is_used = np.concatenate([self.is_used, ~np.isfinite(y[len(self.is_used) :])])
        across = self.across if self.is_spreading else self.across[:0]
        survey = self._replace(n_spread=n_spread, is_spreading=False, across=across, n_exploring=n_exploring)
        return survey._replace(theta=theta, y=y, is_used=is_used)

    def opposite(self, mode: Floats, sd: Floats, prior: PriorScale, rule: SurveyRule) -> Survey:
        """The survey that evaluates a new mode (d,) at the opposite ends of the prior.

        A mode that an end cuts in two has its mean away from there, but it reaches the end. One
        that reaches both ends has no other side.
        """
        centre, scale = np.asarray(prior.loc), np.asarray(prior.scale)
        away = np.abs(mode - centre)
        is_at_end = np.asarray(prior.is_walled) & (away + rule.reach * sd > rule.at_end * scale)
        is_at_end &= 2 * away > rule.apart * sd
        across = [np.where(np.arange(len(mode)) == i, 2 * centre - mode, mode) for i in np.flatnonzero(is_at_end)]
        return self._replace(across=np.concatenate([self.across, np.reshape(across, (-1, len(mode)))]))

    def ended(self, is_rugged: bool, rule: SurveyRule) -> Survey:
        """The survey without further lines: over, or with more points if there are other hills."""
        is_due = is_rugged and self.n_spread < rule.spreads
        return self._replace(is_spreading=is_due, is_over=not is_due)

    def blind(self) -> Survey:
        """The survey that spreads more points, because the likelihood was zero at all of them."""
        return self._replace(is_spreading=True)

    def _further(self, rule: SurveyRule) -> int:
        """Points to spread over the prior after the first ones."""
        d, is_blind = self.theta.shape[1], not np.isfinite(self.y).any()
        pairs = rule.size(d) // 2 * (rule.blind**self.n_spread if is_blind else rule.further)
        return 2 * int(pairs)

    def exceptions(self, expected: Floats, rule: SurveyRule) -> tuple[Survey, Floats]:
        """Points on other hills (m, d), the best one first, by what the Gaussians expect (n,)."""
        chosen = np.flatnonzero(~self.is_used & self.is_above(self.y, expected, expected, rule))
        chosen = chosen[np.argsort(-self.y[chosen], kind="stable")]
        is_used = self.is_used.copy()
        is_used[chosen] = True
        return self._replace(is_used=is_used), self.theta[chosen]

    def is_above(self, y: Floats, expected: Floats, here: Floats, rule: SurveyRule) -> NDArray[np.bool_]:
        """Whether values y (k,) are on other hills than the Gaussians, which expect ``expected``.

        What they expect of the points of the survey is ``here`` (n,). If they are right about most
        of them, far ones too, the log joint is as good as quadratic, and a value well above what is
        expected is on another hill. Otherwise that is not known.
        """
        top = np.max(here, initial=-np.inf)
        limit = rule.valley + rule.unusual * self._error(here, top) * (top - expected)
        return np.isfinite(y) & (y - expected > limit) & self.is_exact(here, rule)

    def is_exact(self, expected: Floats, rule: SurveyRule) -> bool:
        """Whether the Gaussians, which expect ``expected`` (n,), are right about most points."""
        return self._error(expected, np.max(expected, initial=-np.inf)) < rule.exact

    def _error(self, expected: Floats, top: float) -> float:
        """Median error of what is expected of the points (n,), relative to their depth."""
        finite = np.isfinite(self.y)
        errors = np.abs(self.y - expected)[finite] / (1 + top - expected[finite])
        return float(np.median(errors)) if errors.size else np.inf

    def aimed(self, modes: Floats, tops: Floats, predicted: Floats, rule: SurveyRule) -> Survey:
        """Choose lines to the modes (m, d), with log joints ``tops`` (m,).

        ``predicted`` is what the Gaussian around each mode says of each point: (m, n). If all
        points are as predicted, more points are due.
        """
        nearest, expected, top = np.argmax(predicted, axis=0), np.max(predicted, axis=0), np.max(tops)
        surprise = self.y - expected - rule.valley - rule.inexact * (top - expected)
        # Gaussians that predict most points badly cannot say which of them are as they should be.
        free = np.flatnonzero(~self.is_used & ((surprise > 0) | (self._error(expected, top) > rule.poor)))
        best = free[np.argsort(-self.y[free], kind="stable")[: rule.best]]
        others = free[np.argsort(-surprise[free], kind="stable")]
        chosen = np.array([*best, *[i for i in others if i not in best][: rule.surprising]], dtype=int)
        is_used = self.is_used.copy()
        is_used[chosen] = True
        to = nearest[chosen]
        return self._replace(
            is_used=is_used,
            lines=np.stack([self.theta[chosen], modes[to]], axis=1),
            ends=np.column_stack([self.y[chosen], tops[to]]),
            is_spreading=not len(chosen) and self.n_spread < rule.spreads,
            is_over=not len(chosen) and self.n_spread >= rule.spreads,
        )

    def walked(self, theta: Floats, y: Floats, rule: SurveyRule, *, bends: bool = True) -> tuple[Survey, Hills]:
        """Judge the values along the lines: points that may be on other hills.

        Those beyond a valley come first, then those where the log joint bends upward, if ``bends``
        count. Of each kind the best one comes first.
        """
        k, d = len(self.lines), theta.shape[1]
        along = np.column_stack([self.ends[:, 0], y.reshape(k, -1), self.ends[:, 1]])
        at = np.concatenate([self.lines[:, :1], theta.reshape(k, -1, d)], axis=1)
        hills = [
            (not len(falls(values, rule)), -values[j], where[j])
            for values, where in zip(along, at, strict=True)
            if (j := _hill(values, rule, bends=bends)) >= 0
        ]
        hills.sort(key=lambda hill: hill[:2])
        places = np.array([where for *_, where in hills]).reshape(-1, d)
        found = Hills(places, -np.array([value for _, value, _ in hills]), sum(not is_bend for is_bend, *_ in hills))
        return self._replace(lines=self.lines[:0], ends=self.ends[:0]), found

    def along(self, lines: Floats, ends: Floats) -> Survey:
        """The survey that walks along lines (k, 2, d), with log joints (k, 2) at their ends."""
        return self._replace(lines=lines, ends=ends)


def _farthest_apart(z: Floats, first: int, n: int) -> list[int]:
    """Up to n rows of z (N, d), each as far as possible from those before it."""
    rows, square = [first], np.full(len(z), np.inf)
    while len(rows) < min(n, len(z)):
        square = np.minimum(square, np.sum((z - z[rows[-1]]) ** 2, axis=1))
        rows.append(int(np.argmax(square)))
    return rows


def line(first: Floats, last: Floats, n: int) -> Floats:
    """The first point and n points between it and the last one: (n + 1, d)."""
    shares = np.linspace(0, 1, n + 2)[:-1, None]
    return np.asarray(first + shares * (last - first))


def falls(y: Floats, rule: SurveyRule) -> NDArray[np.int64]:
    """Where the log joint along a line (n,), which leads to a mode, is below an earlier value.

    The earlier value may itself be far below the mode. Then the function varies by many nats, and a
    fall by few of them is no valley.
    """
    highest = np.maximum.accumulate(y)
    return np.flatnonzero(highest - y > rule.valley + rule.shallow * np.maximum(y[-1] - highest, 0.0))


def bent(y: Floats, rule: SurveyRule) -> NDArray[np.int64]:
    """Where the log joint along a line (n,) begins to bend upward."""
    rise = np.diff(y)
    return np.flatnonzero(np.diff(rise) > rule.valley + rule.shallow * np.abs(rise[1:]))


def _hill(y: Floats, rule: SurveyRule, *, bends: bool) -> int:
    """The best point on another hill along a line to the mode (n,); -1 if there is none.

    There is another hill if the log joint falls on the way. There may be one if it bends upward:
    the far part of the line is then on the slope of a hill that it passes by, or in a heavy tail.
    """
    y = np.where(np.isfinite(y), y, np.min(y[np.isfinite(y)]) - 2 * rule.valley)
    if np.max(y) > y[-1] + rule.valley:  # no hill but a better one: the end is no mode
        return int(np.argmax(y))
    fallen = falls(y, rule)
    if len(fallen):
        return int(np.argmax(y[: fallen[0]]))
    if not bends:
        return -1
    up = bent(y, rule)
    return int(up[-1]) if len(up) else -1
