"""What the regression methods on the host share: settings, state, and one iteration."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import instance_of, number, one_of, positive_number, whole_number
from qbvi.arrays import Array
from qbvi.evaluate import EvaluationError
from qbvi.families.base import Family
from qbvi.model import Model
from qbvi.noise import NO_NOISE, Noise
from qbvi.protocol import Algorithm, Info, Known, Twice, Values
from qbvi.random import orthogonal_pairs
from qbvi.regression.left_out import is_product, left_out
from qbvi.regression.memory import release
from qbvi.regression.noise import Repeats, law_around
from qbvi.regression.regress import RegressionState
from qbvi.regression.rules import LastStep, Rules
from qbvi.regression.store import Store
from qbvi.regression.surrogate import Variances
from qbvi.stopping import GapBelow, Rule

__all__ = ["Answer", "Move", "RegressionMethod", "finite_or_zero", "is_returned"]

Floats = NDArray[np.float64]
_LARGEST_SETTING = 1e6  # of a tolerance or a scale; more is a slip

_LARGEST = 1e100  # nats: a log joint further below zero is minus infinity for every purpose


@dataclass(frozen=True, eq=False)
class Answer:
    """What a regression estimates at q."""

    bound: float  # lower bound
    bound_se: float  # its standard error
    gradient_norm: float  # length of the natural gradient in orthonormal coordinates
    variances: Variances  # prior variances of the regression ...
    following: Variances  # ... and those with which the next one starts
    tail: float  # variance, at q, of what no member of the family follows
    n_effective: float  # effective sample size


class Move(NamedTuple):
    """Where a step leads, and what the regression predicts for it."""

    q: Array
    kl: float  # KL(new || old)
    gain: float  # predicted rise of the bound
    share: float  # length of the step, relative to the full step
    is_restricted: bool  # whether a rule limited its length, its mean or its precision
    is_upward: bool = False  # whether the log joint was seen to curve upward: it is not log-concave


@dataclass(frozen=True)
class RegressionMethod(Algorithm):
    """Regress on all points so far, and step as far as the regression can be trusted.

    One iteration has five parts:

    1. Store the new values.
    2. Regress (`_answer`).
    3. Accept or reject the last step by the new bound.
    4. Make the next step (`_move`).
    5. Predict the nats that are still missing.

    Subclasses define the parts that depend on the family.
    """

    tol: float = 0.01
    n_samples: int | None = None
    initial_scale: float = 0.01
    n_fresh: int = 100
    window: int = 1
    keep: str = "last"
    rules: Rules = field(default_factory=Rules, repr=False)

    def __post_init__(self) -> None:
        instance_of("rules", self.rules, Rules, "a qbvi.regression.rules.Rules")
        for name in ("tol", "initial_scale"):
            number(name, positive_number(name, getattr(self, name)), most=_LARGEST_SETTING)
        for name in ("n_fresh", "window"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        one_of("keep", self.keep, "best", "last")
        least = self.rules.noise.repeated
        if self.n_samples is None:
            return
        object.__setattr__(self, "n_samples", whole_number("n_samples", self.n_samples))
        if self.n_samples < least or self.n_samples % 2:
            msg = f"`n_samples` must be even, as draws come in mirror pairs, and at least {least}, got {self.n_samples}"
            raise ValueError(msg)

    @property
    def stop(self) -> tuple[Rule, ...]:
        """Stop when the predicted gap is below the tolerance."""
        return (GapBelow(self.tol),)

    def stop_at(self, state: RegressionState) -> tuple[Rule, ...]:
        """With much noise, a larger tolerance: what noise leaves at a reasonable cost."""
        return tuple(
            replace(rule, tol=self.tolerance(state)) if isinstance(rule, GapBelow) else rule for rule in self.stop
        )

    def tolerance(self, state: RegressionState) -> float:
        """Nats that may be missing."""
        return max(self.tol, state.finest)

    def fresh_draws(self, n_evals: int) -> int:
        """A tenth of all evaluations, at least `n_fresh`."""
        return max(self.n_fresh, n_evals // self.rules.effort.fresh)

    def first_draws(self, n: int) -> int:
        """A part of the fresh draws, in pairs."""
        rule = self.rules.effort
        return min(n, 2 * (max(rule.fewest_first, n // rule.first) // 2))

    def default_budget(self, d: int) -> int:
        """Evaluations after which a fit that has not converged ends."""
        return self.rules.effort.default_budget(d)

    def start_scale(self, scale: Array) -> Array:
        """A fraction of the prior's standard deviations."""
        return self.initial_scale * scale

    def notes(self, state: RegressionState) -> tuple[str, ...]:
        """Report the noise of the function, if it has any."""
        if not state.noise:
            return ()
        return (f"the log-likelihood is noisy, with a standard deviation of about {math.sqrt(state.noise):.2g}",)

    def notes_on_family(self, model: Model, family: Any, state: RegressionState, q: Array) -> tuple[str, ...]:
        """Name the correlations that a product leaves out, if they cost more than the tolerance.

        Before the steps are short, cross terms show the way to the best product, not its shortfall.
        """
        is_settled = state.last_step is not None and state.last_step.kl <= self.rules.gap.settled_kl
        state = state._replace(q=q)
        if not (is_settled and is_product(family) and self._is_enough(family, state, np.zeros(1))):
            return ()
        found = left_out(family, q, self._curvature(family, state), model.is_discrete)
        return (found.sentence(model),) if found.nats > self.tol else ()

    def close(self) -> None:
        """Free the memory of the regressions."""
        release()

    def repeated_draws(self, state: RegressionState, n: int) -> int:
        """A part of them if the function has much noise, and does not return it."""
        rule = self.rules.noise
        is_worth = not is_returned(state) and math.sqrt(state.most_noise) > rule.little
        return n // rule.fresh if is_worth else 0

    def noise_at(
        self, family: Any, state: RegressionState, q: Array, theta: Array, again: Twice | None = None
    ) -> Noise:
        """The law that all points imply which were evaluated twice."""
        rule, repeats = self.rules.noise, state.repeats
        if not state.noise or is_returned(state):
            return NO_NOISE
        if again is not None:
            repeats = (repeats or Repeats.none(family.dim)).add(again.theta, again.first, again.second, rule)
        if repeats is None:
            return Noise(np.full(len(theta), state.noise), 1.0)
        reference = family.defensive(q)
        law = law_around(family, reference, repeats, rule)
        squares = np.sum(family.coordinates(reference, theta) ** 2, axis=1)
        return Noise(law.at(squares), rule.relative_error(self._n_near(family, q, repeats)))

    def measuring(self, family: Any, state: RegressionState, q: Array, again: Twice) -> RegressionState:
        """The state around q that knows further points which were evaluated twice."""
        repeats = state.repeats or Repeats.none(family.dim)
        repeats = repeats.add(again.theta, again.first, again.second, self.rules.noise)
        state = state._replace(q=q, repeats=repeats)
        noise = self._noise_now(family, state, np.zeros(1)) or 0.0
        state = state._replace(noise=noise, most_noise=self._noise_limit(family, state, noise))
        return self._with_finest(family, state)

    def init(self, family: Any, q: Array) -> RegressionState:
        """State before the first iteration."""
        most = self.rules.effort.most(self._n_coefficients(family), self.tol)
        radius = np.float64(self.rules.trust_region.first_radius * family.n_whitened)
        return RegressionState(q, Store.empty(family.dim), Variances(), most, radius, None, None, 1.0, 0.0)

    @property
    def uses_earlier(self) -> bool:
        """Every point informs the regression, whoever evaluated it."""
        return True

    def knowing(self, family: Any, state: RegressionState, known: Known) -> RegressionState:
        """Store earlier points. Their noise is known, so the first batch repeats no point."""
        store = Store.holding(family, known)
        most = max(state.most, self.rules.effort.noisy_points) if known.noise else state.most
        state = state._replace(store=store, noise=known.noise, most=most, n_before=len(store.past))
        chosen = store.choose(family, family.defensive(state.q), most, self.rules.thinning)
        if np.sum(chosen.weights) < family.n_whitened + self.rules.retreat.spare:
            return state  # none of the points is near
        thorough = replace(self, rules=replace(self.rules, search=self.rules.search.thorough()))
        return state._replace(variances=thorough._answer(family, state).variances)

    def ask(self, family: Any, state: RegressionState, rng: np.random.Generator) -> Array:
        """Draw mirror pairs along orthogonal directions.

        The first batch repeats some points, to find out whether the function is noisy. If it is,
        later batches repeat some where this decides what is noise.
        """
        n = self.n_samples or self.rules.effort.batch(self._n_directions(family, state), state.n_effective)
        theta = family.transport(family.defensive(state.q), orthogonal_pairs(rng, n, family.dim))
        return np.concatenate([theta, theta[: self._n_repeated(family, state)]])

    def _n_directions(self, family: Any, state: RegressionState) -> int:
        """Directions that one batch covers."""
        rule, d = self.rules.structure, int(family.n_whitened)
        return d // rule.turns if state.finding.is_used and state.n_effective >= rule.enough * d else d

    def tell(
        self, family: Any, eta: Array, state: RegressionState, theta: Array, values: Values
    ) -> tuple[RegressionState, Info]:
        """Make one iteration.

        Raises a `qbvi.EvaluationError` if the values are too large or too alike for arithmetic.
        """
        try:
            return self._iteration(family, state, theta, values)
        except (ArithmeticError, ValueError) as error:
            msg = (
                f"the values of `log_likelihood`, from {np.min(values.log_joint):.3g} to {np.max(values.log_joint):.3g} with the "
                f"prior, cannot be regressed on in double precision ({error}); rescale the function or its parameters, give "
                "the parameters a proper prior, or start elsewhere with `init`"
            )
            raise EvaluationError(msg) from error

    def _iteration(
        self, family: Any, state: RegressionState, theta: Array, values: Values
    ) -> tuple[RegressionState, Info]:
        state, h = self._received(family, state, theta, values)
        if not self._is_enough(family, state, h):
            return self._retreated(family, state), nothing_learnt(h)
        if state.last_step is None and self._is_hidden(state, h):
            wider = self._widened(family, state.q, self.rules.noise.widening)
            return state._replace(q=wider), nothing_learnt(h)
        answer = self._checked(self._answer(family, state), h)
        narrower = self._narrowed(family, state, answer, h)
        if narrower is not None and not self._is_returnable(state):
            return narrower, nothing_learnt(h)
        state, answer = self._judged(family, state, answer, is_too_wide=narrower is not None)
        move, gap = self._move(family, state, answer)
        state = self._with_finest(family, state)
        if self.tolerance(state) < gap < math.inf:
            state = state._replace(most=self.rules.effort.more(state.most, len(state.store.y)))
        info = Info(answer.bound, h[np.isfinite(h)], gap, answer.gradient_norm, move.share, True, False)
        return self._moved(state, answer, move), info

    @abstractmethod
    def _n_coefficients(self, family: Any) -> int:
        """Number of coefficients that a step is computed from."""

    @abstractmethod
    def _answer(self, family: Any, state: RegressionState) -> Any:
        """Regress on the points so far: an `Answer`."""

    @abstractmethod
    def _curvature(self, family: Any, state: RegressionState) -> Floats:
        """Coefficients of ``x'Cx / 2`` in whitened coordinates, those outside the family too."""

    def _checked(self, answer: Any, h: Floats) -> Any:
        """Compare the answer with the newest residuals; some methods correct it."""
        return answer

    @abstractmethod
    def _move(self, family: Any, state: RegressionState, answer: Any) -> tuple[Move, float]:
        """The next step, and the gap predicted after it; infinite if it cannot be the last step."""

    @abstractmethod
    def _widened(self, family: Any, q: Array, factor: float) -> Array:
        """The same mean with standard deviations ``factor`` times as large."""

    def _narrowed(self, family: Any, state: RegressionState, answer: Any, h: Floats) -> RegressionState | None:
        """A narrower start, if the function is far from quadratic over q; else None.

        Some methods can find out.
        """
        return None

    def _retreated(self, family: Any, state: RegressionState) -> RegressionState:
        """With too few finite values to regress on, return to where the last step began."""
        return state if state.last_step is None else self._returned(state)

    def _received(
        self, family: Family, state: RegressionState, theta: Floats, values: Values
    ) -> tuple[RegressionState, Floats]:
        """Store a batch, and return its residuals (n,) with the new state.

        The repeated points measure the noise of the function. Until it is known whether there is
        any, they are left out of the store: without noise they would be the same points twice.
        """
        y, known, n = finite_or_zero(values), np.asarray(values.noise_sd) ** 2, self._n_repeated(family, state)
        # Fresh draws from the result repeat no point.
        is_repeated = n > 0 and np.array_equal(theta[:n], theta[-n:])
        is_first = state.noise is None
        if is_repeated:
            repeats = state.repeats or Repeats.none(family.dim)
            state = state._replace(repeats=repeats.add(theta[:n], y[:n], y[-n:], self.rules.noise))
        noise = self._noise_now(family, state, known)
        limit = noise if np.any(known > 0) or not noise else self._noise_limit(family, state, noise)
        state = state._replace(noise=noise, most_noise=limit or 0.0)
        if is_first and is_repeated:
            most = max(state.most, self.rules.effort.noisy_points) if state.noise else state.most
            state = state._replace(most=most)
            theta, y, known = theta[:-n], y[:-n], known[:-n]
        store = state.store.add(family, family.defensive(state.q), theta, y, known)
        return state._replace(store=store), family.residual(state.q, theta, y)

    def _with_finest(self, family: Family, state: RegressionState) -> RegressionState:
        """The state with the nats that noise leaves, or a regression that is full."""
        noise = self.rules.noise.finest(state.noise or 0.0, family.size, family.dim, self.tol)
        return state._replace(finest=max(noise, self.rules.effort.finest(self.tol, family.dim, state.n_effective)))

    def _n_repeated(self, family: Family, state: RegressionState) -> int:
        """Points of the next batch to evaluate twice.

        All of these must hold for later batches:

        - the function is noisy and does not return its noise,
        - few points near q were evaluated twice so far,
        - the steps are short, or the regression fits better than the noise allows.
        """
        rule = self.rules.noise
        if state.noise is None:
            return rule.repeated
        if not state.noise or is_returned(state) or state.last_step is None:
            return 0
        is_settling = state.last_step.kl < self.rules.gap.settled_kl
        if not (is_settling or state.misfit <= rule.least_misfit):
            return 0
        n_near = 0 if state.repeats is None else self._n_near(family, state.q, state.repeats)
        return rule.repeated if n_near < rule.wanted(state.n_effective) else 0

    def _n_near(self, family: Family, q: Array, repeats: Repeats) -> int:
        """Repeated points where draws from q usually are."""
        squares = np.sum(family.coordinates(family.defensive(q), repeats.theta) ** 2, axis=1)
        return int(np.sum(squares < self.rules.weighting.usual_square(family.n_whitened)))

    def _noise_limit(self, family: Family, state: RegressionState, noise: float) -> float:
        """Upper confidence limit of the noise variance at q; a law is not extrapolated to zero."""
        rule = self.rules.noise
        if state.repeats is None:
            return noise
        n_near = self._n_near(family, state.q, state.repeats)
        far = float(np.mean(state.repeats.variance)) if n_near < rule.repeated else 0.0
        return rule.upper_limit(max(noise, far), n_near)

    def _noise_now(self, family: Family, state: RegressionState, known: Floats) -> float | None:
        """Noise variance at q: what the function returns, or what repeated points imply.

        It is not known if the likelihood is zero at the points that were repeated so far.
        """
        n_repeated = 0 if state.repeats is None else len(state.repeats.variance)
        if state.noise is None and n_repeated < self.rules.noise.fewest and not np.any(known > 0):
            return None
        measured = state.noise or 0.0
        if state.repeats is not None and (state.noise is None or state.noise > 0):
            measured = law_around(family, family.defensive(state.q), state.repeats, self.rules.noise).level
        if not np.any(known > 0):
            return measured
        if state.noise is None:
            return max(measured, float(np.mean(known)))
        squares = np.sum(family.coordinates(family.defensive(state.q), state.store.theta) ** 2, axis=1)
        near = squares < self.rules.weighting.usual_square(family.n_whitened)
        return float(np.mean(np.concatenate([known, state.store.noise[near]])))

    def _is_enough(self, family: Family, state: RegressionState, h: Floats) -> bool:
        """Whether enough values are finite to regress on and the last step is in the support."""
        rule = self.rules.retreat
        if state.last_step is not None and np.mean(np.isfinite(h)) < rule.fewest_finite:
            return False
        chosen = state.store.choose(family, family.defensive(state.q), state.most, self.rules.thinning)
        return len(chosen.rows) >= family.n_whitened + rule.spare

    def _is_hidden(self, state: RegressionState, h: Floats) -> bool:
        """Whether the first q is so narrow that noise hides the function."""
        rule = self.rules.noise
        if not state.noise or len(state.store.past) - state.n_before >= rule.most_widenings:
            return False
        finite = h[np.isfinite(h)]
        scale = self.initial_scale * rule.widening ** (len(state.store.past) - state.n_before)
        is_wide = scale > self.rules.retreat.widest  # there is nothing to be seen beyond the prior
        return not is_wide and len(finite) > 0 and float(np.var(finite)) < rule.hidden * state.noise

    def _is_returnable(self, state: RegressionState) -> bool:
        """Whether the last step began where the bound was known well enough to return there."""
        return state.last_step is not None and state.last_step.bound_se < self.rules.ladder.wild

    def _judged(
        self, family: Any, state: RegressionState, answer: Any, *, is_too_wide: bool
    ) -> tuple[RegressionState, Any]:
        """Accept the last step and update the radius, or reject it and return to where it began."""
        last, rule = state.last_step, self.rules.trust_region
        if last is None:
            return state, answer
        bound = np.float64(answer.bound), np.float64(answer.bound_se)
        if is_too_wide or rule.rejects(last, *bound):
            state = self._returned(state)
            return state, self._answer(family, state)
        return state._replace(radius=rule.next_radius(state.radius, last, *bound)), answer

    def _returned(self, state: RegressionState) -> RegressionState:
        """Return to where the last step began, with a smaller radius; its points are kept."""
        assert state.last_step is not None
        radius = self.rules.trust_region.radius_after_return(state.last_step)
        return state._replace(q=state.last_step.q, radius=radius)

    def _moved(self, state: RegressionState, answer: Answer, move: Move) -> RegressionState:
        bound, bound_se, gain, kl = (np.float64(x) for x in (answer.bound, answer.bound_se, move.gain, move.kl))
        last = LastStep(state.q, bound, bound_se, gain, kl, np.bool_(move.is_restricted))
        explained = (state.noise or 0.0) / (answer.variances.noise * answer.tail)
        misfit = float(np.clip(1 - explained, self.rules.noise.least_misfit, 1.0))
        return state._replace(
            q=move.q, variances=answer.following, last_step=last, misfit=misfit, n_effective=answer.n_effective
        )


def is_returned(state: RegressionState) -> bool:
    """Whether the function returns the standard deviation of its noise."""
    return len(state.store.noise) > 0 and bool(state.store.noise[-1] > 0)


def finite_or_zero(values: Values) -> Floats:
    """Log joints (n,), minus infinity where there is none, or where its square is too large."""
    is_there = values.ok & (np.abs(values.log_joint) < _LARGEST)
    return np.where(is_there, values.log_joint, -np.inf)


def nothing_learnt(h: Floats) -> Info:
    """The report of an iteration without a regression and step."""
    finite = h[np.isfinite(h)]
    bound = float(finite.mean()) if finite.size else math.nan
    return Info(bound, finite, math.inf, math.nan, 0.0, True, True)
