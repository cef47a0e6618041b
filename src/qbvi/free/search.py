"""The search for Gaussians: one for the mode that is found first, and one for each further mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.free.base import Base, squares
from qbvi.free.cells import NONE, Cells
from qbvi.free.climb import Climb
from qbvi.free.explore import promising
from qbvi.free.roles import correlated
from qbvi.free.rules import FreeRules, SurveyRule
from qbvi.free.survey import Survey, bent, falls, line
from qbvi.free.symmetry import Group, LogPrior, Symmetry, is_equal
from qbvi.protocol import Info, Known, Values
from qbvi.regression.base import finite_or_zero
from qbvi.regression.gaussian import Regression
from qbvi.regression.look import PriorScale
from qbvi.regression.regress import RegressionState
from qbvi.regression.rules import Weighting
from qbvi.regression.shrink import Shrink
from qbvi.regression.store import Store

__all__ = ["Mode", "Search", "SearchState", "Trial"]

Floats = NDArray[np.float64]

_HALFWAY = 2  # stage of the last test of a symmetry


class Mode(NamedTuple):
    """A Gaussian that was found."""

    mean: Floats  # (d,)
    cov: Floats  # (d, d)
    bound: float  # lower bound before the step that led to it ...
    gain: float  # ... which was predicted to rise by so much
    top: float  # best log joint on the path to it
    n_evals: int  # evaluations of that path; zero if it is an image of another mode

    @property
    def is_copy(self) -> bool:
        """Whether it is an image of another mode."""
        return self.n_evals == 0

    @property
    def expected(self) -> float:
        """Lower bound after that step."""
        return self.bound + self.gain

    @property
    def peak(self) -> float:
        """Log joint at the mean, if it is quadratic: then the bound is the log of its integral."""
        return self.expected - 0.5 * float(np.linalg.slogdet(2 * math.pi * self.cov)[1])

    def square(self, theta: Floats) -> Floats:
        """Squared distances of points (n, d), in standard deviations: (n,)."""
        return squares(theta, self.mean, self.cov)


class Trial(NamedTuple):
    """A symmetry that the likelihood may have, which is tested at the image of a point.

    First the image of the best point has the same log-likelihood, then that of the second best one.
    Last, the log-likelihood halfway between that and its image is another one: where the function
    does not depend on what changes, equal values say nothing.
    """

    which: int  # number of the symmetry
    y: float  # log joint that is expected at the image, or at last the log-likelihood there
    stage: int  # of these three


class SearchState(NamedTuple):
    """The present path, the survey of the prior, and the modes so far."""

    path: RegressionState
    survey: Survey | None  # None if there is none
    modes: tuple[Mode, ...]
    starts: Floats  # (m, d) points on other hills that are still to be tried
    n_path: int  # evaluations of the present path
    n_aimed: int  # modes when lines were last chosen
    is_over: bool
    trials: tuple[Trial, ...] = ()  # of the last points that the survey evaluates next
    symmetries: tuple[int, ...] = ()  # numbers of those that the log joint has
    tested: tuple[int, ...] = ()  # numbers of those that were tested
    best: Floats = np.empty(0)  # (d,) the best point of all; empty before the first iteration ...
    best_y: float = -math.inf  # ... and its log joint
    tried: float = -math.inf  # log joint of the last best point at which a path began
    n_further: int = 0  # paths after the first mode
    climb: Climb | None = None  # from points that may be on other hills
    seen: Floats = np.empty((0, 0))  # (N, d + 1) all points and their log joints
    n_explored: int = 0  # modes when other places were last explored
    has_valley: bool = False  # whether the log joint fell on the way from a place to a mode
    is_climbed: bool = False  # whether the lines of the survey lead from the ends of a climb
    bounds: tuple[float, ...] = ()  # lower bounds at the steps of the present path
    home: RegressionState | None = None  # the path to the first mode, where it ended
    n_reopened: int = 0  # times that the rounds found a mode which the search goes on with
    is_postponed: bool = False  # whether other modes are looked for when the rounds have settled
    is_sample: bool = False  # whether earlier points were a sample of the posterior
    is_thorough: bool = False  # whether the path goes on until its bound is nearly its best
    is_climbed_hill: bool = False  # whether a climb has shown that the present path is on a hill


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
    cells
        The coordinates that stand for whole numbers.
    symmetries
        Symmetries that the likelihood may have.
    log_prior
        Log prior density of points (n, d); None if all symmetries leave it unchanged.
    """

    method: Regression
    prior: PriorScale | None
    rules: FreeRules
    cells: Cells = NONE
    symmetries: tuple[Symmetry, ...] = ()
    log_prior: LogPrior | None = None

    def group(self, state: SearchState) -> Group:
        """The maps that leave the likelihood unchanged."""
        return Group.of(state.starts.shape[1], [self.symmetries[i] for i in state.symmetries])

    def init(self, family: Any, q: Array) -> SearchState:
        """State before the first iteration."""
        survey = None if self.prior is None else Survey.begin(np.asarray(family.mean(q)))
        return SearchState(self.method.init(family, q), survey, (), np.empty((0, family.dim)), 0, 0, False)

    def knowing(self, family: Any, state: SearchState, known: Known) -> SearchState:
        """Add earlier points to the path and to the survey.

        If they are spread over the prior, there is no exploring for the first mode. If they are
        draws of the posterior, or of a converged fit, its modes are known.
        """
        state = state._replace(path=self.method.knowing(family, state.path, known))
        theta, y = np.asarray(known.theta), np.asarray(known.log_joint)
        if not np.isfinite(y).any():
            return state
        state = _with_best(state, theta, np.where(np.isfinite(y), y, -np.inf))
        if state.survey is not None and self.prior is not None:
            survey = state.survey.knowing(theta, y, self.prior, self.rules.survey)
            state = state._replace(survey=survey, n_explored=survey.n_spread)
        if not known.components:
            return state
        modes = tuple(Mode(*component, 0.0, float(y.max()), n_evals=1) for component in known.components)
        # The symmetries were tested before, or the points show all copies.
        state = state._replace(modes=modes, is_over=True, tested=tuple(range(len(self.symmetries))))
        if known.is_sample:  # the sampler has looked for modes itself
            return self.unsurveyed(state)._replace(is_sample=True)
        return self.postponed(state) if state.survey is not None and not state.survey.n_spread else state

    def is_exploring(self, state: SearchState) -> bool:
        """Whether the next points are those of a survey, or of a search for a start."""
        return _is_surveying(state) or self._path(state).is_exploring(state.path)

    def ask(self, family: Any, state: SearchState, rng: np.random.Generator) -> Array:
        """The next points: (n, d)."""
        if state.climb is not None:
            return state.climb.ask(self.rules.survey)
        if state.survey is not None and self.prior is not None and _is_surveying(state):
            if state.survey.is_exploring:
                return self._explored(state, self.prior, rng)
            return state.survey.ask(self._areas(state, self.prior), self.rules.survey, rng)
        theta = self._path(state).ask(family, state.path, rng)
        return np.concatenate([theta, self._probe(family, state)])

    def tell(
        self, family: Any, eta: Array, state: SearchState, theta: Array, values: Values
    ) -> tuple[SearchState, Info]:
        """Make one iteration of the path, or one round of the survey."""
        state = _with_best(state, np.asarray(theta), finite_or_zero(values))
        if _is_surveying(state):
            bound = state.modes[0].bound if state.modes else math.nan
            info = Info(np.float64(bound), np.empty(0), math.inf, math.nan, 0.0, True, True)
            return self._surveyed(family, state, np.asarray(theta), values), info
        n = len(values.ok) - len(self._probe(family, state))
        probed = finite_or_zero(values)[n:]
        values = Values(*(None if part is None else part[:n] for part in values))
        path, info = self._path(state).tell(family, eta, state.path, theta[:n], values)
        before, state = state, state._replace(path=path, n_path=state.n_path + len(probed) + n)
        is_late = state.n_path > self.rules.survey.behind * (family.dim + 1)
        if (
            is_late
            and not self._path(state).is_exploring(path)
            and self._is_better_elsewhere(state, float(np.max(path.store.y, initial=-math.inf)))
        ):
            return self._begin(family, state, state.best), info
        if math.isfinite(float(info.bound)) and not self._path(state).is_exploring(path):
            state = state._replace(bounds=(*state.bounds, float(info.bound)))
            if self._is_stalled(state, values):
                return self._begin(family, state, state.best), info
        if len(probed) and self._is_captured(family, before, probed, float(info.bound)):
            return self._next(family, state._replace(starts=state.starts[:0])), info
        return self._judged(family, state, values, info), info

    def base(self, state: SearchState) -> Base:
        """The mixture of all modes that matter, with weights by their bounds."""
        modes = self.worthy(state)
        weights = np.exp(np.array([mode.bound for mode in modes]) - max(mode.bound for mode in modes))
        means, covs = np.stack([mode.mean for mode in modes]), np.stack([mode.cov for mode in modes])
        return Base(weights / weights.sum(), means, covs)

    def worthy(self, state: SearchState) -> list[Mode]:
        """The modes that matter, in the order in which they were found."""
        best = max((mode.bound for mode in state.modes), default=0.0)
        return [mode for mode in state.modes if mode.bound >= best - self.rules.survey.worth]

    def resumed(self, family: Any, state: SearchState, theta: Floats, y: Floats) -> SearchState | None:
        """The search that goes on at the best of new points (n, d), if it refutes all modes.

        A path may end on a plateau that is wide but not the posterior. A survey would tell, so this
        is for priors without one. None if no point is far above the modes, or if that was often so.
        """
        rule, row = self.rules.survey, int(np.argmax(np.nan_to_num(y, nan=-np.inf)))
        top = max(mode.top for mode in state.modes) + rule.worth + rule.noisy * math.sqrt(state.path.most_noise)
        has_survey = state.survey is not None and not state.is_postponed
        if has_survey or not y[row] > top or state.n_further >= rule.most_resumed:
            return None
        first, eye = state.path.store.past[0].q, np.eye(family.dim)
        start = family.deform(first, np.asarray(family.whiten(first, theta[[row]]))[0], eye, eye)
        path = self.method.restarted(family, state.path, start)
        n_further = state.n_further + 1
        return state._replace(path=path, modes=(), is_over=False, n_path=0, n_further=n_further, bounds=())

    def further(self, state: SearchState) -> SearchState | None:
        """The search that goes on along the path to its only mode; None if there are others.

        The path may have ended early, at a Gaussian that is too poor to begin rounds from.
        """
        if state.home is None or sum(not mode.is_copy for mode in state.modes) != 1:
            return None
        on = state._replace(path=state.home, modes=(), is_over=False, bounds=(), starts=state.starts[:0], home=None)
        return on if on.is_postponed else self.unsurveyed(on)

    def outgrown(self, family: Any, state: SearchState, q: Array, theta: Floats, y: Floats) -> SearchState | None:
        """The search that goes on from q, around which there are new points (n, d).

        It is the Gaussian of rounds that left the only mode behind: the path to it ended early. A
        short step does not end it again. None if there are several modes or copies, with noise, or
        if that was often so.
        """
        finite, is_spent = np.isfinite(y), state.n_reopened >= self.rules.survey.most_resumed
        if len(state.modes) != 1 or state.path.noise or is_spent or np.count_nonzero(finite) < 2:
            return None
        path = state.path if state.home is None else state.home
        store = path.store.add(family, q, theta[finite], y[finite], np.zeros(np.count_nonzero(finite)))
        path = self.method.restarted(family, path._replace(store=store), q)
        on = state._replace(path=path, modes=(), is_over=False, bounds=(), n_path=0, starts=state.starts[:0], home=None)
        on = on if on.is_postponed else self.unsurveyed(on)
        return on._replace(is_thorough=True, n_reopened=state.n_reopened + 1)

    def reopened(self, family: Any, state: SearchState, mode: Mode, theta: Floats, y: Floats) -> SearchState | None:
        """The search that goes on with a mode that the rounds found, and all points (n, d).

        The first path may end at a saddle, such as where two components of a mixture are equal. A
        saddle is its own image, so no exchange is tested there, and no line to it shows a valley.
        None if all symmetries that move the mode were tested.
        """
        survey, rule = state.survey, self.rules.survey
        is_here = np.isfinite(y) & (mode.square(theta) < rule.apart**2 * family.dim)
        if survey is None or np.count_nonzero(is_here) < 2 or state.path.noise or state.n_reopened >= rule.most_resumed:
            return None
        q = family.from_moments(mode.mean, mode.cov)
        store = Store.empty(family.dim).add(family, q, theta[is_here], y[is_here], np.zeros(np.count_nonzero(is_here)))
        known = state.path
        path = self.method.init(family, q)._replace(
            store=store, shrink=known.shrink, noise=known.noise, most_noise=known.most_noise, repeats=known.repeats
        )
        opened = state._replace(
            path=path, survey=survey._replace(is_over=False), is_over=False, n_reopened=state.n_reopened + 1
        )
        opened = self._with(opened, mode._replace(top=float(np.max(store.y))))
        if not opened.trials:
            return None
        is_new = self._is_apart(mode, state.modes)
        opened = self._next(family, opened if is_new else opened._replace(modes=state.modes))
        return None if opened.is_over else opened

    def parted(self, state: SearchState, base: Base) -> SearchState:
        """The search that knows the modes of a base, not the saddles at which paths ended."""
        worthy, modes, saddles = self.worthy(state), list[Mode](), list[Mode]()
        for mean, cov in zip(base.means, base.covs, strict=True):
            saddle = self._nearest(state, mean)
            is_copy = any(one is saddle for one in saddles)
            saddles.append(saddle)
            modes.append(saddle._replace(mean=mean, cov=cov, n_evals=0 if is_copy else saddle.n_evals))
        others = [mode for mode in state.modes if not any(mode is one for one in worthy)]
        return state._replace(modes=(*modes, *others))

    def unsurveyed(self, state: SearchState) -> SearchState:
        """The search that goes on without a survey: to a first mode, and no further."""
        is_over = state.is_over or bool(state.modes)
        return state._replace(survey=None, climb=None, trials=(), is_over=is_over)

    def postponed(self, state: SearchState) -> SearchState:
        """The search that waits until the rounds have settled.

        Before that, a path that is already above all modes goes on to its end.
        """
        is_above = bool(state.bounds) and state.bounds[-1] > max(mode.expected for mode in state.modes)
        return state._replace(is_postponed=True, is_over=not is_above)

    def continued(self, state: SearchState) -> SearchState:
        """The search that goes on where it was postponed."""
        return state._replace(is_postponed=False, is_over=False)

    def is_full(self, state: SearchState) -> bool:
        """Whether there are so many modes that the search does not go on."""
        return len(self.worthy(state)) >= self.rules.survey.most_modes * len(self.group(state))

    def from_hill(self, family: Any, state: SearchState, mean: Floats, cov: Floats) -> SearchState:
        """The search that goes on from a hill (mean and covariance), which a climb has shown.

        Of the survey, only tests of symmetries follow.
        """
        survey, known = state.survey, state.path
        path = self.method.init(family, family.from_moments(mean, cov))._replace(
            shrink=known.shrink, noise=known.noise, most_noise=known.most_noise, repeats=known.repeats
        )
        if survey is not None:
            survey = survey._replace(lines=survey.lines[:0], ends=survey.ends[:0], across=survey.across[:0])
            survey = survey._replace(is_over=False, is_spreading=False, n_exploring=0)
        on = state._replace(path=path, survey=survey, climb=None, starts=state.starts[:0], n_path=0, bounds=())
        return on._replace(is_over=False, is_postponed=False, is_climbed_hill=True)

    def exploring(self, state: SearchState) -> SearchState | None:
        """The search that looks once more for other modes, with all that is known now.

        None if it does not look for any.
        """
        if state.survey is None or not state.modes or state.path.noise or self.is_full(state):
            return None
        survey = state.survey._replace(n_exploring=self.rules.survey.further_explorations, is_over=False)
        return state._replace(survey=survey, is_over=False, n_explored=len(state.modes))

    def _path(self, state: SearchState) -> Regression:
        """The method of the present path.

        It looks at the prior by itself only if it takes long to the first mode, since the survey
        does so anyway.
        """
        d = state.starts.shape[1]
        is_surveyed = d <= self.rules.rounds.most_dimensions
        may_look = not state.modes and not (is_surveyed and state.n_path <= self.rules.survey.hurry * (d + 1))
        return self.method if may_look else replace(self.method, prior=None)

    def _is_stalled(self, state: SearchState, values: Values) -> bool:
        """Whether the first path no longer rises, with its newest draws far below the best point.

        Draws from a Gaussian around that point would be as good as `_is_near` says.
        """
        rule, near, b = self.rules.survey, self.rules.rounds, state.bounds
        y, k = values.log_joint[values.ok], rule.stalled
        if state.modes or not len(y) or len(b) <= k or max(b[-k:]) > max(b[:-k]) + rule.valley:
            return False
        return self._is_better_elsewhere(state, float(y.mean()) + near.near_each * len(state.best) + near.near)

    def _is_near(self, state: SearchState, values: Values) -> bool:
        """Whether the last step was short, and the newest draws are as good as they should be.

        That is, as good as draws from a Gaussian around the best point. A short step says so only
        if it rests on as many points as a quadratic has coefficients. Points of a long way to here
        do not count: with few others the step is short because next to nothing is known.
        """
        rule, path, y = self.rules.rounds, state.path, values.log_joint[values.ok]
        if self._path(state).is_exploring(path) or path.last_step is None or not len(y):
            return False
        if state.is_thorough:
            return state.n_path > self.rules.survey.patience * (len(state.best) + 1)
        d = len(state.best)
        is_high = float(np.max(path.store.y) - y.mean()) < rule.near_each * d + rule.near
        short = rule.short_limited if path.n_limited else rule.short
        return bool(is_high and path.last_step.kl < short and path.n_effective > (d + 1) * (d + 2) // 2)

    def _is_rising(self, state: SearchState, bound: float) -> bool:
        """Whether a further path, below the best mode, was to rise by over a nat at its last step.

        A further mode gets draws in proportion to its bound, so one that ends too early may get
        next to none, and its mass is not seen. That is worth only so many evaluations.
        """
        step, rule = state.path.last_step, self.rules.survey
        is_long = state.n_path > rule.unhurried * (len(state.best) + 1)
        if not state.modes or step is None or is_long:
            return False
        return bool(step.gain > rule.valley and bound < max(mode.bound for mode in state.modes) - rule.valley)

    def _judged(self, family: Any, state: SearchState, values: Values, info: Info) -> SearchState:
        """End the path if it has arrived, or if it takes too long."""
        is_near = self._is_near(state, values) and not self._is_rising(state, float(info.bound))
        is_there = float(info.gap) < self.rules.rounds.begin or is_near
        if is_there and math.isfinite(float(info.bound)):
            path = state.path
            q, top = path.q, float(np.max(path.store.y))
            gain = 0.0 if path.last_step is None else float(path.last_step.gain)
            moments = np.asarray(family.mean(q)), np.asarray(family.cov(q))
            mode = Mode(*moments, float(info.bound), gain, top, state.n_path)
            home = state.home if state.modes else path
            state = state._replace(starts=state.starts[:0], home=home)
            return self._next(family, self._with(state, mode) if self._is_new(mode, state.modes) else state)
        if not state.modes or not self._is_hopeless(family, state, float(info.bound)):
            return state
        # The other starts may lead elsewhere. With several modes, their lines have led to one.
        is_single = len(state.modes) == len(self.group(state))
        return self._next(family, state if is_single else state._replace(starts=state.starts[:0]))

    def _with(self, state: SearchState, mode: Mode) -> SearchState:
        """Add a new mode and its copies; the next points are opposite to it, or test symmetries.

        Where the image is at the same mode, a symmetry changes nothing, and is not tested yet. The
        first mode may be such a one: where two components are equal, or where a term is zero, there
        often is a saddle or a lower mode, with the modes that matter on both sides.
        """
        survey = state.survey
        state = state._replace(modes=self._copied(self.group(state), (*state.modes, mode)))
        if survey is None or self.prior is None:
            return state
        state = state._replace(
            survey=survey.opposite(mode.mean, np.sqrt(np.diag(mode.cov)), self.prior, self.rules.survey)
        )
        if state.path.noise:
            return state
        rule, best = self.rules.survey, state.path.store.theta[int(np.argmax(state.path.store.y))]
        known = {image.key for image in self.group(state).maps}
        usual = [i for i, image in enumerate(self.symmetries) if not image.correlated and image.key not in known]
        due = [
            i
            for i in (*usual, *correlated(self.symmetries, mode.cov))
            for image in [self.symmetries[i]]
            if i not in state.tested
            and mode.square(image(best)[None])[0] > rule.apart**2
            # Else the prior leaves the image no mass, or less than the fit may miss anyway.
            and self._rise(image, best) > -(rule.role if image.correlated else rule.worth)
        ]
        y = float(state.path.store.y.max())
        trials = [Trial(i, y + self._rise(self.symmetries[i], best), 0) for i in due]
        return self._tested(state._replace(tested=(*state.tested, *due)), trials)

    def _rise(self, image: Symmetry, point: Floats) -> float:
        """How much the log joint rises from a point (d,) to its image, by the prior."""
        if image.keeps_prior or self.log_prior is None:
            return 0.0
        here, there = self.log_prior(np.stack([point, image(point)]))
        return float(there - here) if math.isfinite(here) else -math.inf

    def _copied(self, group: Group, modes: tuple[Mode, ...]) -> tuple[Mode, ...]:
        """The modes and all their images."""
        for mode in modes:
            for image in group.maps[1:]:
                moments, rise = (image(mode.mean), image.of_covariance(mode.cov)), self._rise(image, mode.mean)
                copy = Mode(*moments, mode.bound + rise, mode.gain, mode.top + rise, n_evals=0)
                modes = (*modes, copy) if self._is_new(copy, modes) else modes
        return modes

    def _is_new(self, mode: Mode, modes: tuple[Mode, ...]) -> bool:
        """Whether a mode is apart from all others, or clearly better than those near to it."""
        least = mode.expected - self.rules.survey.valley
        return self._is_apart(mode, [other for other in modes if other.expected > least])

    def _is_apart(self, mode: Mode, modes: Sequence[Mode]) -> bool:
        """Whether a mode is several standard deviations from all others."""
        near = self.rules.survey.apart**2
        return all(min(mode.square(other.mean[None])[0], other.square(mode.mean[None])[0]) > near for other in modes)

    def _tested(self, state: SearchState, trials: Sequence[Trial]) -> SearchState:
        """Evaluate next the points that test symmetries."""
        assert state.survey is not None
        store = state.path.store
        best = store.theta[np.argsort(-store.y, kind="stable")[:2]]
        points = []
        for trial in trials:
            point = best[min(trial.stage, 1)]
            image = self.symmetries[trial.which](point)
            points.append((point + image) / 2 if trial.stage == _HALFWAY else image)
        across = np.concatenate([state.survey.across, np.reshape(points, (-1, best.shape[1]))])
        return state._replace(survey=state.survey._replace(across=across), trials=tuple(trials))

    def _judged_symmetries(self, state: SearchState, y: Floats, f: Floats) -> SearchState:
        """Judge the symmetries by the last ones of the log joints y and log-likelihoods f (n,)."""
        trials, survey = state.trials, state.survey
        if not trials or survey is None:
            return state
        y, f = y[-len(trials) :], f[-len(trials) :]
        second, store = int(np.argsort(-state.path.store.y, kind="stable")[1]), state.path.store
        is_halfway = np.array([trial.stage == _HALFWAY for trial in trials])
        is_same = np.array([is_equal(t.y, f[i] if is_halfway[i] else y[i]) for i, t in enumerate(trials)])
        confirmed = [t.which for i, t in enumerate(trials) if is_halfway[i] and not is_same[i]]
        at_second = [float(store.y[second]) + self._rise(self.symmetries[t.which], store.theta[second]) for t in trials]
        further = [
            Trial(t.which, at_second[i] if t.stage == 0 else float(f[i]), t.stage + 1)
            for i, t in enumerate(trials)
            if is_same[i] and not is_halfway[i]
        ]
        # The images are at copies of the mode. No line should lead from there, or from between.
        is_used = survey.is_used.copy()
        # Nor from the many exchanges of roles that are far from what they would be at another mode.
        is_role = np.array([bool(self.symmetries[trial.which].correlated) for trial in trials])
        is_low = is_role & (y < np.array([trial.y for trial in trials]) - self.rules.survey.worth)
        is_used[len(is_used) - len(trials) :] |= is_same | is_halfway | is_low
        state = state._replace(survey=survey._replace(is_used=is_used), trials=())
        state = state._replace(symmetries=(*state.symmetries, *confirmed))
        state = state._replace(modes=self._copied(self.group(state), state.modes)) if confirmed else state
        return self._tested(state, further) if further else state

    def _is_hopeless(self, family: Any, state: SearchState, bound: float) -> bool:
        """Whether a further path will not lead to a mode that matters.

        That is, it takes long, or it is so far below the best mode that even several steps like the
        last ones do not lead there: neither with the gain that was predicted for the last one, nor
        with what the last two did gain. Far from a mode predictions are too high by orders.
        """
        rule, path = self.rules.survey, state.path
        best, top = max(mode.top for mode in state.modes), float(np.max(path.store.y, initial=-math.inf))
        is_long = state.n_path > rule.patience * (family.dim + 1) and top < best + rule.valley
        if path.last_step is None or len(path.store.past) < rule.unprobed:
            return is_long
        gain, b = (rule.growth if path.n_limited else 1.0) * path.last_step.gain, state.bounds
        if len(b) > 2:
            gain = min(gain, (b[-1] - b[-3]) / 2)
        return is_long or bound + rule.steps * gain < max(mode.bound for mode in state.modes) - rule.worth

    def _probe(self, family: Any, state: SearchState) -> Floats:
        """Points on the line from the best point of a further path to the nearest mode (n, d).

        The mean of q, which no one has evaluated, may be off by a step that was too long, even
        across the valley.
        """
        rule, none = self.rules.survey, np.empty((0, family.dim))
        is_young = len(state.path.store.past) < rule.unprobed
        if (
            state.is_climbed_hill
            or state.survey is None
            or not state.modes
            or is_young
            or self._path(state).is_exploring(state.path)
        ):
            return none
        best, _ = self._own_best(family, state)
        return line(best, self._nearest(state, best).mean, rule.on_probe)[1:]

    def _is_captured(self, family: Any, state: SearchState, probed: Floats, bound: float) -> bool:
        """Whether a further path is at a mode, or the log joint rises all the way to it.

        The ``probed`` values are on the line from its best point. A path with a higher bound than
        that of the mode is not captured: the mode is no maximum, or another one.

        A line from far below may pass above the valley: only a valley whose floor is above its
        first point shows on it. Then the line bends upward where it leaves the slope of the other
        hill, so a path that is too low for a mode that matters goes on if it does.
        """
        rule, (best, y) = self.rules.survey, self._own_best(family, state)
        mode = self._nearest(state, best)
        if bound > mode.expected + rule.valley:
            return False
        assert state.survey is not None
        here, there = (self._expected(state, theta) for theta in (state.survey.theta, best[None]))
        if state.survey.is_above(np.array([y]), there, here, rule)[0]:
            return False
        is_there = float(mode.square(best[None])[0]) < rule.apart**2 * family.dim
        along = np.array([y, *probed, mode.top])
        is_low = bound < max(mode.bound for mode in state.modes) - rule.worth
        may_rise = len(falls(along, rule)) > 0 or (is_low and len(bent(along, rule)) > 0)
        return is_there or not may_rise

    def _own_best(self, family: Any, state: SearchState) -> tuple[Floats, float]:
        """The best point (d,) near q of a further path, and its log joint.

        It is at no known mode if possible: some draws from a wide q are across the valley. If no
        point is near q, its last step was too long, and all points of the path count.
        """
        store, usual = state.path.store, Weighting().usual_square(family.dim)
        to_modes = np.min([mode.square(store.theta) for mode in state.modes], axis=0)
        is_own = to_modes > self.rules.survey.apart**2 * family.dim
        is_near = np.sum(np.asarray(family.whiten(state.path.q, store.theta)) ** 2, axis=1) < usual
        chosen = next((part for part in (is_own & is_near, is_near, is_own) if part.any()), ~is_own)
        row = int(np.argmax(np.where(chosen, store.y, -np.inf)))
        return store.theta[row], float(store.y[row])

    def _expected(self, state: SearchState, theta: Floats) -> Floats:
        """What the Gaussians around the modes expect at points (n, d), if they are exact: (n,)."""
        return np.asarray(np.max([mode.peak - 0.5 * mode.square(theta) for mode in state.modes], axis=0))

    def _nearest(self, state: SearchState, theta: Floats) -> Mode:
        return min(state.modes, key=lambda mode: float(mode.square(theta[None])[0]))

    def _surveyed(self, family: Any, state: SearchState, theta: Floats, values: Values) -> SearchState:
        """Make one round of the survey."""
        y, survey = finite_or_zero(values), state.survey
        assert survey is not None
        if state.climb is not None:
            return self._climbing(family, state, state.climb, y)
        if len(survey.lines):
            return self._walked(family, state, theta, y)
        is_across, survey = survey.is_across, survey.drawn(theta, y)
        state = state._replace(survey=survey)
        if state.modes:
            f = np.where(np.isfinite(y), values.f, -np.inf)
            return self._aimed(family, self._judged_symmetries(state, y, f) if is_across else state)
        if np.isfinite(state.path.store.y).any():
            return state
        if not math.isfinite(state.best_y):
            return state._replace(survey=survey.blind())
        return self._begin(family, state, state.best)

    def _explored(self, state: SearchState, prior: PriorScale, rng: np.random.Generator) -> Floats:
        """Points where another mode is expected most."""
        loc, scale, d = np.asarray(prior.loc), np.asarray(prior.scale), state.starts.shape[1]
        apart = self.rules.survey.apart**2 * d

        def is_known(z: Floats) -> NDArray[np.bool_]:
            return np.asarray(np.min([mode.square(loc + scale * z) for mode in state.modes], axis=0) < apart)

        z, n = (state.seen[:, :-1] - loc) / scale, 2 * ((d + 3) // 2)
        return loc + scale * promising(z, state.seen[:, -1], is_known, self.rules.survey, rng, n)

    def _walked(self, family: Any, state: SearchState, theta: Floats, y: Floats) -> SearchState:
        """Judge the lines of the survey; climb from points that may be on other hills.

        Noise would hide the slope of a climb.
        """
        assert state.survey is not None
        assert self.prior is not None
        rule = self.rules.survey
        survey, hills = state.survey.walked(theta, y, rule, bends=not state.is_climbed)
        may_climb = not state.is_climbed and not state.path.noise
        has_valley = state.has_valley or hills.n_beyond > 0
        state = state._replace(survey=survey, is_climbed=False, has_valley=has_valley)
        if not may_climb or not len(hills.places):
            return self._next(family, state._replace(starts=hills.places))
        n, scale = rule.climbed, np.asarray(self.prior.scale)
        places = hills.places[:n]
        steps = [self.cells.start_scale(point, self.method.start_scale(scale), scale) for point in places]
        return state._replace(climb=Climb.begin(places, hills.y[:n], np.stack(steps), scale))

    def _climbing(self, family: Any, state: SearchState, climb: Climb, y: Floats) -> SearchState:
        """Go on with a climb, or draw lines from where it ends."""
        if not climb.is_sloped:
            return state._replace(climb=climb.sloped(y))
        assert state.survey is not None
        places, heights = climb.ended(y, self.rules.survey)
        modes = [self._nearest(state, place) for place in places]
        lines = np.stack([places, np.stack([mode.mean for mode in modes])], axis=1)
        survey = state.survey.along(lines, np.column_stack([heights, [mode.top for mode in modes]]))
        return state._replace(survey=survey, climb=None, is_climbed=True)

    def _next(self, family: Any, state: SearchState) -> SearchState:
        """Start from the next point on another hill, or choose lines to a new mode, or end."""
        survey, rule = state.survey, self.rules.survey
        if state.is_climbed_hill:
            return self._arrived(state)
        if survey is None or state.is_postponed or self.is_full(state) or state.n_further >= rule.most_paths:
            return state._replace(is_over=True)
        is_aimed = state.n_aimed == len(state.modes)
        if is_aimed and self._is_better_elsewhere(state, max(mode.peak for mode in state.modes)):
            return self._begin(family, state, state.best)
        if len(state.starts):
            return self._begin(family, state._replace(starts=state.starts[1:]), state.starts[0])
        if is_aimed:
            first, *others = [mode for mode in state.modes if not mode.is_copy]
            is_rugged = any(not rule.rival < first.expected - mode.expected < rule.worth for mode in others)
            # A valley shows that there is another hill, also if no path has led to its top.
            survey = survey.ended(is_rugged or state.has_valley, self._spreading(state))
            return state._replace(survey=survey, is_over=survey.is_over, n_explored=0)
        return self._aimed(family, state)

    def _aimed(self, family: Any, state: SearchState) -> SearchState:
        """Choose points on other hills, or lines to the modes; the search is over without them."""
        assert state.survey is not None
        if state.is_climbed_hill:
            return self._arrived(state)
        if not state.survey.n_spread or state.survey.is_due:  # there are points to evaluate first
            return state
        modes, theta, rule = state.modes, state.survey.theta, self.rules.survey
        means, tops = np.stack([mode.mean for mode in modes]), np.array([mode.top for mode in modes])
        expected = self._expected(state, theta)
        # Noise would pass for other hills. Where Gaussians predict everything, any point shows one.
        if state.n_explored != len(modes) and not state.path.noise and not state.survey.is_exact(expected, rule):
            is_first = not state.n_explored and state.survey.n_spread == 1
            n = rule.explorations if is_first else rule.further_explorations
            return state._replace(survey=state.survey._replace(n_exploring=n), n_explored=len(modes))
        survey, starts = state.survey.exceptions(expected, rule)
        if len(starts):
            return self._next(family, state._replace(survey=survey, starts=starts))
        predicted = np.stack([mode.top - 0.5 * mode.square(theta) for mode in modes])
        survey = survey.aimed(means, tops, predicted, self._spreading(state))
        return state._replace(survey=survey, n_aimed=len(modes), is_over=survey.is_over)

    def _arrived(self, state: SearchState) -> SearchState:
        """The end of a path from a hill that a climb has shown, when its symmetries are tested.

        Such a look is better at finding further modes than lines to this one.
        """
        survey = state.survey
        if survey is not None and len(survey.across):
            return state
        survey = None if survey is None else survey._replace(is_over=True)
        return state._replace(survey=survey, is_over=True, is_climbed_hill=False)

    def _spreading(self, state: SearchState) -> SurveyRule:
        """The rules of the survey: for each rival of the best mode, points are spread once more."""
        rule, best = self.rules.survey, max(mode.expected for mode in state.modes)
        n_rivals = sum(not mode.is_copy and mode.expected > best - rule.rival for mode in state.modes) - 1
        return replace(rule, spreads=rule.spreads + max(n_rivals, 0))

    def _areas(self, state: SearchState, prior: PriorScale) -> tuple[PriorScale, ...]:
        """Where points are spread: over the prior, and around the modes if there are several."""
        assert state.survey is not None
        modes, rule = self.worthy(state), self.rules.survey
        if not state.survey.n_spread or len(modes) < 2:
            return (prior,)
        means, variances = (np.stack(part) for part in zip(*((m.mean, np.diag(m.cov)) for m in modes), strict=True))
        wide = rule.around * np.sqrt(means.var(axis=0) + variances.mean(axis=0))
        centre, scale = means.mean(axis=0), np.minimum(wide, prior.scale)
        around = PriorScale(tuple(centre.tolist()), tuple(scale.tolist()), prior.is_walled)
        return (prior, around) if state.survey.n_spread < rule.spreads else (around,)

    def _is_better_elsewhere(self, state: SearchState, here: float) -> bool:
        """Whether the best point of all is well above the log joint ``here``, and at no mode.

        If so, it refutes what was found, and a path should begin there, but only once.
        """
        rule, noise = self.rules.survey, math.sqrt(state.path.most_noise)
        if not state.best_y > max(here + rule.worth, state.tried + rule.valley) + rule.noisy * noise:
            return False
        near = rule.apart**2 * len(state.best)
        is_apart = all(float(mode.square(state.best[None])[0]) > near for mode in state.modes)
        return is_apart and self.prior is not None

    def _begin(self, family: Any, state: SearchState, point: Floats) -> SearchState:
        """Begin a path at a point (d,)."""
        known, shrink = state.path, state.path.shrink
        if shrink is not None and not (shrink.is_over and shrink.is_found):
            shrink = None
        path = self.method.init(family, self._start(family, point, shrink))._replace(
            noise=known.noise, most_noise=known.most_noise, repeats=known.repeats, shrink=shrink
        )
        state = state._replace(tried=state.best_y) if point is state.best else state
        if not state.modes:  # still the first path: the evaluations before count
            return state._replace(path=path, bounds=())
        return state._replace(path=path, n_path=0, n_further=state.n_further + 1, bounds=())

    def _start(self, family: Any, point: Floats, shrink: Shrink | None) -> Array:
        """A narrow Gaussian around a point (d,), no wider than one that had to be narrowed."""
        assert self.prior is not None
        scale = np.asarray(self.prior.scale)
        scale = self.cells.start_scale(point, self.method.start_scale(scale), scale)
        return family.start(point, scale if shrink is None else np.minimum(scale, shrink.lengths))


def _with_best(state: SearchState, theta: Floats, y: Floats) -> SearchState:
    """The state that knows the best of its points so far, and of new ones (n, d)."""
    row = int(np.argmax(y))
    new = np.column_stack([theta, y])
    state = state._replace(seen=np.concatenate([state.seen, new]) if state.seen.size else new)
    return state._replace(best=theta[row], best_y=float(y[row])) if y[row] > state.best_y else state


def _is_surveying(state: SearchState) -> bool:
    """Whether the survey is due: after the first iteration, so that there is always a result."""
    is_due = state.survey is not None and (state.survey.is_due or state.climb is not None)
    return is_due and not state.is_postponed and (state.n_path > 0 or bool(state.modes))
