"""The default method for Gaussians: the regression's coefficients are the natural gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.families.base import Family, GaussianFamily
from qbvi.model import Model
from qbvi.protocol import Info, Values
from qbvi.regression.base import Answer, Move, RegressionMethod, finite_or_zero, is_returned
from qbvi.regression.correction import LeftOutDraws, corrected
from qbvi.regression.ladder import Ladder
from qbvi.regression.line import Gradient, NaturalLine, WhitenedStep, longest_by_bisection, repeated_share
from qbvi.regression.look import Path, PriorLook, PriorScale, reach_of
from qbvi.regression.regress import RegressionState, regress
from qbvi.regression.ridge import Ridge
from qbvi.regression.rules import TrustRegion, secant_share
from qbvi.regression.shrink import Shrink
from qbvi.regression.structure import Finding
from qbvi.regression.surrogate import HermiteRegression, Surrogate
from qbvi.regression.surroundings import log_density_around
from qbvi.regression.width import Width, slopes

__all__ = ["Regression", "longest_step"]

Floats = NDArray[np.float64]

_THERE = 1e-6  # standard deviations between the mean of q and a point, below which they are the same

_LONG = 2.0  # seconds of its own after which a fit has advice on how to take fewer ...
_CHEAP = 0.05  # ... if the function takes less than this share of them

_NOTHING = Finding()


@dataclass(frozen=True, eq=False)
class _Answer(Answer):
    regression: HermiteRegression
    surrogate: Surrogate
    is_credible: bool = True  # whether the bound agrees with the plain mean of the newest draws
    finding: Finding = _NOTHING  # which parameters interact, as far as is known


@dataclass(frozen=True)
class Regression(RegressionMethod):
    """The default method: it needs few evaluations and no tuning, and stops by itself.

    Each iteration

    - draws mirror pairs along orthogonal directions from the current q,
    - regresses the residual of all points so far on Hermite polynomials of the whitened draws,
    - moves q along the natural gradient as far as a trust region allows,
    - predicts from the variance of the natural gradient how many nats are still missing.

    Parameters
    ----------
    tol
        Stop when fewer nats than this are predicted to be missing.
    n_samples
        Draws of one iteration. The default is two for each dimension, at least eight, and more once
        the effective sample size is large.
    initial_scale
        Standard deviations of the start, relative to those of the prior. The start is narrow
        because differences over short distances measure gradients, if the function has no noise.
    n_fresh
        Least number of fresh draws from the result, for its lower bound and k-hat. A tenth of all
        evaluations is used if that is more.
    window, keep
        As for `qbvi.QBVI`.
    prior
        Centre and spread of the prior, which is searched for a better start if the log joint is
        not log-concave. `qbvi.fit` sets it.
    rules
        The numbers behind all decisions, see `qbvi.regression.rules`.

    Examples
    --------
    >>> import qbvi
    >>> prior, method = qbvi.Normal(0, 1, shape=2), qbvi.Regression(tol=0.1)
    >>> fit = qbvi.fit(lambda x: -(x**4).sum(), prior, method=method, seed=1)
    >>> fit.n_evals < 300
    True
    """

    prior: PriorScale | None = field(default=None, repr=False)
    # Distance that a search over orders of magnitude may go, for each coordinate.
    reach: tuple[float, ...] | None = field(default=None, repr=False)

    def fits(self, family: Family) -> bool:
        """Gaussian families only."""
        return isinstance(family, GaussianFamily) and not family.is_curved

    def for_model(self, model: Model) -> Self:
        """The method that knows how far out this model's prior makes sense."""
        return replace(self, reach=reach_of(model, self.rules.ladder))

    def looking_at(self, model: Model, max_evals: int | None, *, has_start: bool = False) -> Self:
        """The method that searches this model's prior if the log joint is not log-concave.

        It does so only with a budget of several times the longest look, and without a start.
        """
        if has_start:
            return self
        is_affordable = max_evals is None or max_evals >= self.rules.look.least_budget(model.dim)
        return replace(self, prior=PriorScale.of(model)) if is_affordable else self

    def log_density_around(self, family: GaussianFamily, state: RegressionState, theta: Array) -> Array:
        """By the batches of earlier iterations."""
        return log_density_around(family, state.store, theta, self.rules.surroundings)

    def is_exploring(self, state: RegressionState) -> bool:
        """Whether the next points are a search for a better start."""
        is_climbing = state.ladder is not None and not state.ladder.is_over
        is_widening = state.width is not None and not state.width.is_over
        is_shrinking = state.shrink is not None and not state.shrink.is_over
        return is_climbing or is_widening or is_shrinking or (state.look is not None and not state.look.is_over)

    def ask(self, family: GaussianFamily, state: RegressionState, rng: np.random.Generator) -> Array:
        """Draw mirror pairs from q or, during a search for a start, the points of the search."""
        if state.ridge is not None:
            return self._ridge(family.dim, state).ask(family, state.ridge, rng)
        if state.width is not None and not state.width.is_over:
            return state.width.ask(self.rules.width)
        if state.shrink is not None and not state.shrink.is_over:
            return state.shrink.ask()
        if state.ladder is not None and not state.ladder.is_over:
            return state.ladder.ask(self.rules.ladder)
        if state.look is None or self.prior is None or state.look.is_over:
            return super().ask(family, state, rng)
        return state.look.ask(self.prior, self.rules.look, rng)

    def tell(
        self, family: GaussianFamily, eta: Array, state: RegressionState, theta: Array, values: Values
    ) -> tuple[RegressionState, Info]:
        """Make one iteration, or one round of a search for a better start."""
        if state.ridge is not None:
            return self._ridged(family, eta, state, theta, values)
        if state.width is not None and not state.width.is_over:
            return self._widths(family, state, finite_or_zero(values)), _searching(state)
        if state.shrink is not None and not state.shrink.is_over:
            return self._shrunk(family, state, finite_or_zero(values)), _searching(state)
        if state.ladder is not None and not state.ladder.is_over:
            ladder = state.ladder.tell(finite_or_zero(values), self.rules.ladder)
            return self._climbed(family, state._replace(ladder=ladder)), _searching(state)
        if state.look is None or self.prior is None or state.look.is_over:
            width = self._width(family, state, np.asarray(theta), finite_or_zero(values))
            state, info = super().tell(family, eta, state, theta, values)
            if width is not None and not state.noise:
                return state._replace(width=width), info
            state = self._climbing(family, self._looking(self._counted(state, info.h), float(info.gap)))
            return self._handed_over(family, state, float(info.gap)), info
        path = Path(np.asarray(family.mean(state.q)), float(np.max(state.store.y)))
        state = state._replace(look=state.look.tell(theta, finite_or_zero(values), self.rules.look, path))
        return self._restarted(family, state, self.prior), _searching(state)

    def advice(self, family: GaussianFamily, state: RegressionState, own: float, function: float) -> tuple[str, ...]:
        """Name `Ridge` if the function takes next to no time: the same seed must give the same fit.

        So times do not choose the method. Ridge regression is no better if there is a structure.
        """
        is_cheap = own > _LONG and function < _CHEAP * own
        is_dense = family.dim >= self.rules.structure.fewest and state.finding.structure is None
        if not is_cheap or not is_dense or state.ridge is not None or state.noise:
            return ()
        took = f"the function took {function:.2g} s and the method {own:.2g} s"
        return (f'{took}: for so quick a function, method="ridge" takes more evaluations and less time',)

    def _ridge(self, d: int, state: RegressionState) -> Ridge:
        """The method for more points than one regression can hold.

        Evaluations count here, not calls, so a batch is half of what `Ridge` has by itself.
        """
        ridge = Ridge(tol=self.tol, n_fresh=self.n_fresh, rules=self.rules)
        rules = replace(ridge.ridge_rules, single=True)
        # The variances are those of the last regression before.
        if self.rules.effort.is_quadratic(state.variances):
            rules = rules.of_quadratic()
        n_samples = max(ridge.n_draws(d) // 2, rules.fewest_draws // 2)
        return replace(ridge, n_samples=n_samples, ridge_rules=rules)

    def _handed_over(self, family: GaussianFamily, state: RegressionState, gap: float) -> RegressionState:
        """Go on by ridge regression if the coefficients need more points than can be factored.

        Not if few of the parameters interact: then few points are enough. But if they seemed to,
        and further ones are found to interact as well, this is the time. Not if the noise of the
        function has to be measured, which `Ridge` does not do.
        """
        n, d, last, rule = len(state.store.y), family.dim, state.last_step, self.rules.structure
        if last is None or not self.rules.effort.is_for_ridge(n, d, last, state.variances):
            return state
        is_full = family.n_quadratic == family.dim * (family.dim + 1) // 2
        is_over = gap < self.tolerance(state) or self.is_exploring(state) or (state.noise and not is_returned(state))
        is_structured = state.finding.is_promising(rule) or rule.is_soon_due(n, d, state.finding.due)
        if not is_full or is_over or is_structured or self.n_samples is not None:
            return state
        return state._replace(ridge=self._ridge(d, state).starting(family, state.q, state.store))

    def _ridged(
        self, family: GaussianFamily, eta: Array, state: RegressionState, theta: Array, values: Values
    ) -> tuple[RegressionState, Info]:
        """One iteration of the ridge regression."""
        assert state.ridge is not None
        ridge, info = self._ridge(family.dim, state).tell(family, eta, state.ridge, theta, values)
        noise = np.asarray(values.noise_sd) ** 2
        store = state.store.add(family, state.q, np.asarray(theta), finite_or_zero(values), noise)
        return state._replace(q=ridge.q, ridge=ridge, store=store, last_step=ridge.last_step), info

    def _width(self, family: GaussianFamily, state: RegressionState, theta: Floats, y: Floats) -> Width | None:
        """A search for the width of the start, if it sees no slope where the prior is flat."""
        if state.store.past or self.reach is None or not np.isinf(self.reach).any():
            return None
        n = len(y) - self._n_repeated(family, state)
        found = slopes(np.asarray(family.whiten(state.q, theta[:n])), y[:n])
        # In a start so narrow, terms of degree three are about so large beside those of degree two.
        cubic = self.initial_scale * float(np.ptp(y[:n:2] + y[1:n:2])) / 2
        # Without any slope, the start is at the centre of a symmetric function: nothing is wrong.
        least = self.rules.width.rounding * (1 + float(np.max(np.abs(y[:n]))))
        is_flat = self.rules.width.is_flat(np.abs(found), np.isinf(self.reach), cubic) & (np.abs(found) > least)
        if not is_flat.any():
            return None
        unit = np.sqrt(np.diag(family.cov(state.q))) / self.initial_scale
        return Width.begin(np.asarray(family.mean(state.q)), unit, is_flat)

    def _widths(self, family: GaussianFamily, state: RegressionState, y: Floats) -> RegressionState:
        """Start again with the width that was found, if it is another."""
        assert state.width is not None
        width = state.width.told(y, self.rules.width)
        state, factors = state._replace(width=width), width.widening
        if not width.is_over or np.all(factors == 1):
            return state
        first = state.store.past[0].q
        wider = family.deform(first, np.zeros(family.dim), np.diag(factors), np.diag(1 / factors))
        return self.restarted(family, state, wider)

    def _shrinking(self, family: GaussianFamily, state: RegressionState, q: Array | None = None) -> RegressionState:
        """Begin a search for a narrower start than q, around its mean or the best point."""
        q = state.q if q is None else q
        centre, sd = np.asarray(family.mean(q)), np.sqrt(np.diag(family.cov(q)))
        best = int(np.argmax(state.store.y))
        return state._replace(shrink=Shrink.begin(centre, sd, state.store.theta[best], float(state.store.y[best])))

    def _shrunk(self, family: GaussianFamily, state: RegressionState, y: Floats) -> RegressionState:
        """Go on with that search, and start again with what it found.

        Points with values on another scale are not used any more.
        """
        assert state.shrink is not None
        shrink = state.shrink.told(y, self.rules.shrink)
        state = state._replace(shrink=shrink)
        if not shrink.is_over:
            return state
        if not shrink.is_found:
            return self._retreated(family, state)
        q, (points, ends) = family.start(shrink.origin, shrink.lengths), shrink.points()
        top = max(shrink.y, float(np.max(state.store.y)))
        store = state.store._replace(y=np.where(state.store.y > top - self.rules.ladder.wild, state.store.y, -np.inf))
        if len(ends):  # in some coordinate a step was small enough
            store = store.add(family, q, points, ends, 0 * ends)
        return self.restarted(family, state._replace(store=store), q)

    def _may_shrink(self, state: RegressionState) -> bool:
        """Whether this is the first start of a path, of a function without noise."""
        return state.last_step is None and state.shrink is None and not state.noise

    def _counted(self, state: RegressionState, h: Array) -> RegressionState:
        """Count the batches on a wrong scale, by the range of the residuals ``h`` of each.

        One step that was too long may lead to such a batch from any scale.
        """
        is_wild = np.size(h) > 1 and np.ptp(h) > self.rules.ladder.wild and state.n_limited > 0
        return state._replace(n_wild=state.n_wild + 1 if is_wild else 0)

    def _climbing(self, family: GaussianFamily, state: RegressionState) -> RegressionState:
        """Begin a search over orders of magnitude if steps on a wrong scale lead nowhere.

        If q is too wide, it is one for a narrower start, else one for a better place.
        """
        rule, last = self.rules.ladder, state.last_step
        if last is None or state.n_wild < rule.patience:
            return state
        # Steps on a wrong scale may have led anywhere, so the draws of the start tell too.
        first, newest = state.store.past[state.n_before], state.store.past[-1]
        is_wide = any(_is_steep_on_both_sides(state.store.y[b.start : b.stop], rule.wild) for b in (first, newest))
        if state.shrink is None and not state.noise and is_wide:
            return self._shrinking(family, state._replace(n_limited=0, n_wild=0), first.q)
        origin = state.store.theta[int(np.argmax(state.store.y))]
        shift = family.mean(state.q) - family.mean(last.q)
        # Not wider than the first q, or a slope without an end would be climbed for ever.
        sd = np.sqrt(np.minimum(*(np.diag(family.cov(q)) for q in (last.q, state.store.past[0].q))))
        if not np.any(shift):
            return state
        far = None if self.reach is None else np.asarray(self.reach)
        ladder = Ladder.begin(origin, float(np.max(state.store.y)), shift, sd, rule, far)
        return state._replace(ladder=ladder, n_limited=0, n_wild=0)

    def _climbed(self, family: GaussianFamily, state: RegressionState) -> RegressionState:
        """Start again at the best point of a search over orders of magnitude, if it is better.

        The q has the shape of the first one. Points with values on another scale are not used any
        more: they would hide everything that matters now.
        """
        assert state.ladder is not None
        rule, store = self.rules.ladder, state.store
        if not state.ladder.is_over or not state.ladder.is_better(rule):
            return state
        point, top = state.ladder.best()
        eye, first = np.eye(family.dim), store.past[0].q
        shift = family.whiten(first, point[None])[0]
        store = store._replace(y=np.where(store.y > top - rule.wild, store.y, -np.inf))
        return self.restarted(family, state._replace(store=store), family.deform(first, shift, eye, eye))

    def _looking(self, state: RegressionState, gap: float) -> RegressionState:
        """Begin a look where the log joint is not log-concave and the fit is not about to end."""
        if self.prior is None or state.is_concave or gap < self.tolerance(state):
            return state
        n, d = state.store.theta.shape
        is_due = state.look is None or state.look.is_due_again(n, self.rules.look)
        return state._replace(look=PriorLook.begin(d, n)) if is_due else state

    def _restarted(self, family: GaussianFamily, state: RegressionState, prior: PriorScale) -> RegressionState:
        """Start again at the best point of a look, if it is better than all points of the path."""
        assert state.look is not None
        point, top = state.look.top
        least = self.rules.look.better + self.rules.look.noise_errors * math.sqrt(state.noise or 0.0)
        if not state.look.is_over or not top > float(np.max(state.store.y)) + least:
            return state
        return self.restarted(family, state, family.start(point, self.start_scale(np.asarray(prior.scale))))

    def restarted(self, family: GaussianFamily, state: RegressionState, q: Array) -> RegressionState:
        """Start again at q, with all points so far."""
        fresh = self.init(family, q)
        return state._replace(
            q=q,
            variances=fresh.variances,
            radius=fresh.radius,
            last_step=None,
            n_limited=0,
            n_wild=0,
            misfit=1.0,
            n_effective=0.0,
            n_before=len(state.store.past),
            finding=Finding(),
            ridge=None,
        )

    def _moved(self, state: RegressionState, answer: Answer, move: Move) -> RegressionState:
        """The state after a step, which remembers whether the log joint may be log-concave."""
        state = super()._moved(state, answer, move)
        n_limited = state.n_limited + 1 if move.is_restricted else 0
        assert isinstance(answer, _Answer)
        is_concave = state.is_concave and not move.is_upward
        return state._replace(is_concave=is_concave, n_limited=n_limited, finding=answer.finding)

    def _n_coefficients(self, family: GaussianFamily) -> int:
        """All of b and C, for every family: the step of the mean uses all of C."""
        return family.dim * (family.dim + 3) // 2

    def _answer(self, family: GaussianFamily, state: RegressionState) -> _Answer:
        found = regress(family, state, self.rules)
        surrogate = found.regression.posterior(found.variances, family)
        m = len(found.pair)
        draws = LeftOutDraws(found.regression.points.z[-m:], found.weights[-m:], found.pair)
        surrogate = corrected(surrogate, draws, self.rules.holdout.spread)
        return _Answer(
            bound=surrogate.bound,
            bound_se=surrogate.bound_se,
            gradient_norm=math.sqrt(float(np.sum(surrogate.b**2) + 0.5 * np.sum(surrogate.C**2))),
            variances=found.variances,
            following=found.following,
            tail=surrogate.scale,
            n_effective=found.n_effective,
            regression=found.regression,
            surrogate=surrogate,
            finding=found.finding,
        )

    def _curvature(self, family: GaussianFamily, state: RegressionState) -> Floats:
        return self._answer(family, state).surrogate.C

    def _checked(self, answer: _Answer, h: Floats) -> _Answer:
        """Limit the bound by the plain mean over the mirror pairs just drawn from the same q.

        Polynomials that overfit predict too much. A bound too far from the plain mean is replaced
        by the nearest value that is not. (The method for products cannot do this: it draws from a
        wider member than q, whose plain mean is another.)
        """
        rule = self.rules.credibility
        pairs = 0.5 * (h[::2] + h[1::2])
        pairs = pairs[np.isfinite(pairs)]
        if pairs.size < rule.fewest_pairs:
            return answer
        error = float(pairs.std(ddof=1)) / math.sqrt(pairs.size)
        reach = rule.mean_errors * error + rule.bound_errors * answer.bound_se
        bound = float(np.clip(answer.bound, pairs.mean() - reach, pairs.mean() + reach))
        if bound == answer.bound:
            return answer
        return replace(answer, bound=bound, is_credible=False)

    def _move(self, family: GaussianFamily, state: RegressionState, answer: _Answer) -> tuple[Move, float]:
        """One step or, near the optimum and in many dimensions, several on the same points.

        Each step costs a regression, but no evaluations. So the method steps again as long as steps
        are worth more than the errors of the regression, and than nats that nobody misses.
        """
        found, origin = self._step(family, state, answer), state.q
        move = found.move
        patient = replace(self, rules=replace(self.rules, search=self.rules.search.resting()))
        least = self.rules.gap.negligible * self.tolerance(state)
        for _ in range(self.rules.gap.further_steps(family.dim)):
            if math.isinf(found.gap) or found.ahead <= max(found.error, least):
                break
            further = self._moved(state, answer, found.move)
            later = patient._answer(family, further)
            step = self._step(family, further, later)
            if math.isinf(step.gap):  # far from the points: new ones are needed
                break
            state, answer, found = further, later, step
            kl = np.float64(0.5 * family.divergence(found.move.q, origin))
            move = found.move._replace(kl=kl, gain=move.gain + found.move.gain)
        return move, self._cautious_gap(family, state, answer, found)

    def _step(self, family: GaussianFamily, state: RegressionState, answer: _Answer) -> _Step:
        """The next step, and what is missing after it."""
        rule, repeated = self.rules.trust_region, np.float64(0.0)
        if state.noise:
            found = answer.surrogate
            answer = replace(answer, surrogate=replace(found, C=rule.supported(found.C, found.curvature_sd)))
        step = whole = longest_step(answer.surrogate, family, state.radius, rule)
        if state.last_step is not None:
            repeated = repeated_share(family, state.q, state.last_step.q, whole)
        if repeated < 0:
            step = longest_step(answer.surrogate, family, state.radius, rule, longest=float(secant_share(repeated)))
        # A step back is a sign of noise of its full length, so the gap uses the full step.
        gap, rest = self._predicted_gap(family, state, answer, whole)
        ahead = float(self.rules.gap.still_to_come(step.kl, repeated))
        error = (gap - self.rules.gap.kl_share * float(whole.kl)) / self.rules.gap.margin
        taken = self._taken(family, state.q, answer, step)
        return _Step(taken, max(gap, ahead), rest, max(float(step.kl), ahead), error)

    def _taken(self, family: GaussianFamily, q: Array, answer: _Answer, step: WhitenedStep) -> Move:
        # With fewer points than coefficients, C is mostly its prior, and so is its error.
        is_determined = len(answer.regression.points.h) > self._n_coefficients(family)
        is_upward = is_determined and bool(step.upward > self.rules.look.convex_errors)
        ending = step.kl, step.gain, step.share, bool(step.is_restricted), is_upward
        return Move(step.apply(family, q), *ending)

    def _predicted_gap(
        self, family: GaussianFamily, state: RegressionState, answer: _Answer, step: WhitenedStep
    ) -> tuple[float, float]:
        """Nats that will be missing after the step, and those of them that errors of C do not cost.

        They are infinite if it cannot be the last step.
        """
        rule = self.rules.gap
        if step.is_restricted or step.kl > rule.settled_kl or not answer.is_credible:
            return math.inf, math.inf
        cost = self._cost_of_error(answer.surrogate)
        rest = float(step.left_behind) + rule.kl_share * float(step.kl) + cost.mean
        white = answer.surrogate.white / answer.n_effective
        return rule.margin_for(state.misfit) * max(rule.curvature * cost.precision, white) + rest, rest

    def _cautious_gap(self, family: GaussianFamily, state: RegressionState, answer: _Answer, found: _Step) -> float:
        """The gap; before a fit ends, that for the largest plausible variance of C."""
        if not found.gap < self.tolerance(state):
            return found.gap
        bold = self._cost_of_error(answer.regression.boldest_posterior(answer.variances, family))
        return max(found.gap, self.rules.gap.margin_for(state.misfit) * bold.precision + found.rest)

    def _cost_of_error(self, surrogate: Surrogate) -> _Cost:
        """Expected loss, in nats, from the error of the estimated gradient."""
        c, axes = np.linalg.eigh(surrogate.C)
        along = (axes**2).T @ surrogate.b_variance
        stiffness = np.maximum(1 - c, self.rules.trust_region.softest)
        return _Cost(0.5 * float(np.sum(along / stiffness)), 0.5 * surrogate.quadratic_variance)

    def _widened(self, family: GaussianFamily, q: Array, factor: float) -> Array:
        eye = np.eye(family.dim)
        return family.deform(q, np.zeros(family.dim), factor * eye, eye / factor)

    def _retreated(self, family: GaussianFamily, state: RegressionState) -> RegressionState:
        """With few finite values, return to the last good q, or try another start.

        - Before the first step: if no value is finite, or those that are show a wrong scale, search
          for a narrower start. Else start again around the best point so far, if the prior is
          proper. If the start is there already, change its scale, wider and narrower by turns, but
          never wider than the prior. With an improper prior the start is the user's choice, and
          only its scale changes.
        - After a step of some length: return to where it began, and step again with a smaller
          radius.
        - After a short step: start again, narrower, around the best point so far.
        """
        rule, newest = self.rules.retreat, state.store.y[state.store.past[-1].start :]
        finite = newest[np.isfinite(newest)]
        if self._may_shrink(state) and (not len(finite) or np.ptp(finite) > self.rules.ladder.wild):
            return self._shrinking(family, state)
        if state.last_step is None:
            turn = len(state.store.past) - state.n_before
            scale, tried = (rule.scale(n, self.initial_scale) for n in (turn, turn - 1))
            is_proper = self.reach is not None and math.isfinite(max(self.reach))
            q = self._around_best(family, state) if is_proper else None
            if q is None:
                return state._replace(q=self._widened(family, state.q, scale / tried))
            first = rule.scale(0, self.initial_scale)
            return state._replace(q=self._widened(family, q, first / tried), n_before=len(state.store.past))
        if state.last_step.kl > rule.small_kl:
            state = self._returned(state)
            answer = self._answer(family, state)
            step = longest_step(answer.surrogate, family, state.radius, self.rules.trust_region)
            return self._moved(state, answer, self._taken(family, state.q, answer, step))
        around = self._around_best(family, state)
        narrower = self._widened(family, state.q if around is None else around, rule.narrowing)
        return state._replace(q=narrower, last_step=None, n_before=len(state.store.past))

    def _narrowed(
        self, family: GaussianFamily, state: RegressionState, answer: _Answer, h: Floats
    ) -> RegressionState | None:
        """A narrower start around the best point, without the points on another scale.

        It is due if the newest residuals ``h`` range over orders of magnitude, and no quadratic
        follows them. An exponential on the wrong scale does so, and so does a function with zero
        likelihood among them. A quadratic does not, however steep. With few points a quadratic
        follows anything, but not a fall on one side of the mean alone. At the first start, a search
        tells how narrow.
        """
        rule, finite = self.rules.ladder, h[np.isfinite(h)]
        width = np.diag(family.cov(state.q)) / np.diag(family.cov(state.store.past[0].q))
        if state.noise or len(finite) < 2 or np.max(width) < rule.narrowest**2:
            return None
        spread = float(np.ptp(finite))
        is_torn = len(finite) < len(h) or math.sqrt(answer.tail) > rule.unexplained * spread
        is_torn = is_torn or _is_steep_on_one_side(h, rule.one_sided)
        if not (spread > rule.wild and is_torn):
            return None
        if self._may_shrink(state):
            return self._shrinking(family, state)
        around = self._around_best(family, state)
        q = self._widened(family, state.q if around is None else around, rule.narrowing)
        y = np.where(state.store.y > np.max(state.store.y) - rule.wild, state.store.y, -np.inf)
        return self.restarted(family, state._replace(store=state.store._replace(y=y)), q)

    def _around_best(self, family: GaussianFamily, state: RegressionState) -> Array | None:
        """A q of the same shape around the best point so far; None if there is no other one."""
        best = int(np.argmax(state.store.y))
        z = family.whiten(state.q, state.store.theta[[best]])[0]
        if not np.isfinite(state.store.y[best]) or np.max(np.abs(z)) < _THERE:
            return None
        eye = np.eye(family.dim)
        return family.deform(state.q, z, eye, eye)


def _is_steep_on_both_sides(y: Floats, wild: float) -> bool:
    """Whether the log joint falls by ``wild`` nats on both sides of the mean in some directions.

    Of the values (n,) of mirror pairs, one after the other, the even parts then differ by more than
    any odd part is large. A start that is far away sees a slope: large odd parts.
    """
    even, odd = 0.5 * (y[::2] + y[1::2]), 0.5 * (y[::2] - y[1::2])
    range_ = float(np.ptp(even)) if np.isfinite(even).all() else 0.0
    return range_ > max(wild, float(np.max(np.abs(odd))))


def _is_steep_on_one_side(y: Floats, one_sided: float) -> bool:
    """Whether the log joint falls far on one side of the mean, and changes little on the other.

    Of the values (n,) of mirror pairs, one after the other, the pair with the lowest value tells.
    Its even part is then as far below that of the best pair as its odd part is large.
    """
    even, odd = 0.5 * (y[::2] + y[1::2]), 0.5 * np.abs(y[::2] - y[1::2])
    pair = int(np.argmin(y)) // 2
    return bool(abs(np.max(even) - even[pair] - odd[pair]) < one_sided * np.ptp(y))


def _searching(state: RegressionState) -> Info:
    """The report of a round of a search for a start."""
    bound = math.nan if state.last_step is None else state.last_step.bound
    return Info(bound, np.empty(0), math.inf, math.nan, 0.0, True, True)


class _Step(NamedTuple):
    """A step, and the nats that are missing after it."""

    move: Move
    gap: float  # predicted; infinite if it cannot be the last step
    rest: float  # of it, what errors of C do not cost
    ahead: float  # nats that another step may gain
    error: float  # nats that errors of the regression cost


class _Cost(NamedTuple):
    """Expected loss, in nats, from the error of an estimated gradient."""

    mean: float  # half the variance of b, over the stiffness of the log joint in each direction
    precision: float  # half the variance of C


def longest_step(
    surrogate: Surrogate, family: GaussianFamily, radius: float, rules: TrustRegion, longest: float = 1.0
) -> WhitenedStep:
    """The longest step within the trust region and with a believable gain.

    ``longest`` bounds its length, relative to the full step.
    """
    errors = np.float64(surrogate.curvature_sd), np.float64(surrogate.scale), surrogate.variances.omega
    line = NaturalLine(Gradient(surrogate.b, surrogate.C, *errors), family, rules)
    point = longest_by_bisection(line.at, lambda p: bool(line.is_allowed(p, radius)), longest, rules.halvings)
    return line.step(point, longest)
