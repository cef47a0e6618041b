"""The search for Gaussians: one for the mode that is found first, and one for each further mode."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.free.base import Base
from qbvi.free.rules import FreeRules
from qbvi.free.survey import Survey
from qbvi.protocol import Info, Values
from qbvi.regression.gaussian import Regression
from qbvi.regression.look import PriorScale
from qbvi.regression.regress import RegressionState

__all__ = ["Mode", "Search", "SearchState"]

Floats = NDArray[np.float64]


class Mode(NamedTuple):
    """A Gaussian that was found."""

    mean: Floats  # (d,)
    cov: Floats  # (d, d)
    bound: float  # lower bound there
    n_evals: int  # evaluations of the path to it


class SearchState(NamedTuple):
    """The present path, the survey of the prior, and the modes so far."""

    path: RegressionState
    survey: Survey | None  # None before it begins, or if there is none
    modes: tuple[Mode, ...]
    starts: Floats  # (m, d) points on other hills that are still to be tried
    n_path: int  # evaluations of the present path
    is_over: bool


@dataclass(frozen=True)
class Search:
    """Regression to the nearest mode, a survey of the prior, and regression to others.

    Parameters
    ----------
    method
        What finds a Gaussian from a start.
    prior
        Centre and spread of the prior; None for no survey.
    rules
        The rules of the survey, and when a Gaussian is near enough to its best.
    """

    method: Regression
    prior: PriorScale | None
    rules: FreeRules

    def init(self, family: Any, q: Array) -> SearchState:
        """State before the first iteration."""
        none = np.empty((0, family.dim))
        return SearchState(self.method.init(family, q), None, (), none, 0, False)

    def is_exploring(self, state: SearchState) -> bool:
        """Whether the next points are those of a survey, or of a look at the prior."""
        is_surveying = state.survey is not None and not state.survey.is_over
        return is_surveying or self.method.is_exploring(state.path)

    def ask(self, family: Any, state: SearchState, rng: np.random.Generator) -> Array:
        """The next points: (n, d)."""
        if state.survey is not None and self.prior is not None and not state.survey.is_over:
            return state.survey.ask(self.prior, state.modes[0].mean, self.rules.survey, rng)
        return self.method.ask(family, state.path, rng)

    def tell(
        self, family: Any, eta: Array, state: SearchState, theta: Array, values: Values
    ) -> tuple[SearchState, Info]:
        """Make one iteration of the path, or one round of the survey."""
        if state.survey is not None and not state.survey.is_over:
            info = Info(np.float64(state.modes[0].bound), np.empty(0), math.inf, math.nan, 0.0, True, True)
            return self._surveyed(family, state, np.asarray(theta), values), info
        path, info = self.method.tell(family, eta, state.path, theta, values)
        state = state._replace(path=path, n_path=state.n_path + len(values.ok))
        return self._judged(family, state, info), info

    def base(self, state: SearchState) -> Base:
        """The mixture of all modes that matter, with weights by their bounds."""
        modes = self.worthy(state)
        weights = np.exp(np.array([mode.bound for mode in modes]) - max(mode.bound for mode in modes))
        means, covs = np.stack([mode.mean for mode in modes]), np.stack([mode.cov for mode in modes])
        return Base(weights / weights.sum(), means, covs)

    def worthy(self, state: SearchState) -> list[Mode]:
        """The modes that matter, in the order in which they were found."""
        best = max((mode.bound for mode in state.modes), default=0.0)
        return [mode for mode in state.modes if mode.bound > best - self.rules.survey.worth]

    def _judged(self, family: Any, state: SearchState, info: Info) -> SearchState:
        """End the path if it has arrived, or if it takes too long."""
        rule, is_first = self.rules, not state.modes
        if not self.method.is_exploring(state.path) and float(info.gap) < rule.rounds.begin:
            q = state.path.q
            mode = Mode(np.asarray(family.mean(q)), np.asarray(family.cov(q)), float(info.bound), state.n_path)
            is_new = all(
                min(_apart(mode.mean, other), _apart(other.mean, mode)) > rule.survey.apart for other in state.modes
            )
            state = state._replace(modes=(*state.modes, mode) if is_new else state.modes)
            if is_first:
                survey = None if self.prior is None else Survey.begin(len(mode.mean))
                return state._replace(survey=survey, is_over=survey is None)
            return self._next(family, state if is_new else state._replace(starts=state.starts[:0]))
        is_long = state.n_path > rule.survey.patience * (family.dim + 1)
        if not is_first and (is_long or self._is_captured(family, state)):
            return self._next(family, state._replace(starts=state.starts[:0]))
        return state

    def _is_captured(self, family: Any, state: SearchState) -> bool:
        """Whether a further path leads to a mode that is known."""
        mean = np.asarray(family.mean(state.path.q))
        limit = self.rules.survey.apart * math.sqrt(len(mean))
        return any(_apart(mean, mode) < limit for mode in state.modes)

    def _surveyed(self, family: Any, state: SearchState, theta: Floats, values: Values) -> SearchState:
        """Make one round of the survey."""
        y = np.where(values.ok & np.isfinite(values.log_joint), values.log_joint, -np.inf)
        mode, rule = state.modes[0], self.rules.survey
        assert state.survey is not None
        top = float(np.max(state.path.store.y))
        if not len(state.survey.ends):
            apart = theta - mode.mean
            expected = top - 0.5 * np.sum(apart * np.linalg.solve(mode.cov, apart.T).T, axis=1)
            survey = state.survey.drawn(theta, y, y - expected, rule)
        else:
            survey = state.survey.walked(theta, y, top, rule)
        state = state._replace(survey=survey, starts=survey.starts)
        return self._next(family, state) if survey.is_over else state

    def _next(self, family: Any, state: SearchState) -> SearchState:
        """Start from the next point on another hill; the search is over if there is none."""
        if not len(state.starts) or len(state.modes) >= self.rules.survey.most_modes or self.prior is None:
            return state._replace(is_over=True)
        q = family.start(state.starts[0], self.method.start_scale(np.asarray(self.prior.scale)))
        path = self.method.init(family, q)._replace(noise=state.path.noise)
        return state._replace(path=path, starts=state.starts[1:], n_path=0)


def _apart(mean: Floats, mode: Mode) -> float:
    """Distance of a point (d,) from a mode, in the mode's standard deviations."""
    apart = mean - mode.mean
    return float(np.sqrt(apart @ np.linalg.solve(mode.cov, apart)))
