"""One fit from start to end: the only loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.algorithm import Algorithm, Info, Values
from qbvi.arrange import KnownPrior
from qbvi.arrays import Array, to_numpy
from qbvi.diagnostics import objection_to, pareto_khat, still_to_gain
from qbvi.evaluate import Batches, BlackBox, EvaluationError
from qbvi.families import Family
from qbvi.model import Model
from qbvi.progress import Progress
from qbvi.random import Independent
from qbvi.results import Fit, Report, Trace
from qbvi.stopping import Budget, History, Stop

__all__ = ["DomainError", "Iterate", "Run", "Unconstrained"]

Floats = NDArray[np.float64]

_DARKEST = 10  # steps in a row without one finite value after which to give up
_MOST_FAILED = 0.02  # share of failed draws up to which a fit that left them out is called converged
_SUSPICION = (0.02, 0.01)  # nats, and chance of a false alarm, at which fresh draws are worth another turn of the loop
_PROOF = (0.05, 1e-4)  # the same, at which a fit is not called converged
_MOST_SECOND_LOOKS = 5
_DISAGREEMENT = 5.0  # standard errors between the last bound and a fresh one that chance does not explain


class DomainError(RuntimeError):
    """A plain step left the set of positive definite covariances; ``fit`` holds the posterior before that step."""

    fit: Fit | None = None


class Unconstrained(NamedTuple):
    """A start on the unconstrained scale."""

    u: Floats  # (d,)


class Iterate(NamedTuple):
    """What a callback is given after each step: the present posterior on the unconstrained scale."""

    n_evals: int
    elbo: float  # estimate of the bound at the posterior before the step
    gap: float  # nats still to be gained, as the method predicts it
    mean: Floats  # (d,)
    cov: Floats  # (d, d)


class _Turn(NamedTuple):
    """One step as the loop sees it: the q that was left, the q that was reached, and what the draws said."""

    left: Array
    reached: Array
    info: Info


class _Look(NamedTuple):
    """Fresh draws from a q, and what the function says there."""

    q: Array
    theta: Array  # (n, d)
    values: list[Values]  # one for all of them or, with mini-batches, one for each of as many groups
    h: Floats  # (groups, n / groups) residuals
    failed: float  # share of the draws at which the function failed


class _Kept(NamedTuple):
    """A q, and residuals at draws from it: (n,), or (batches, n) where each row has its own mini-batch."""

    q: Array
    h: Floats


@dataclass
class Run:
    """Model, family, black box and method, put together; calling it runs the loop to its end."""

    model: Model
    family: Family
    black_box: BlackBox
    batches: Batches | None
    algorithm: Algorithm
    budget: Budget
    seed: int
    callback: Callable[[Iterate], bool | None] | None = None

    def __post_init__(self) -> None:
        # Streams of their own, so that how many numbers one part draws changes nothing for the others.
        streams = np.random.SeedSequence(self.seed).spawn(3)
        self._draws, self._rows, self._fresh = (np.random.default_rng(stream) for stream in streams)
        self._prior = KnownPrior(self.model, self.family)
        self._history = History(self.algorithm.window)
        self._notes: tuple[str, ...] = ()
        self._dark = 0  # steps in a row without one finite value
        self._kept: _Kept | None = None
        self._look: _Look | None = None  # the newest look with fresh draws at a q that seemed to have settled
        self._second_looks = 0
        self._start = time.perf_counter()

    def __call__(self, init: Any, progress: Progress) -> Fit:
        """Turn until a rule, the budget, the user or an error ends it."""
        try:
            reached, stop = self._loop(init, progress)
        except KeyboardInterrupt:
            if self._kept is None:
                raise
            stop = Stop(False, "interrupted (Ctrl-C) before the fit settled")
            progress.close(self._history, stop.reason)
            return self._freeze(self._kept, stop)
        except (EvaluationError, DomainError) as error:
            if self._kept is not None:
                error.fit = self._freeze(self._kept, Stop(False, f"ended by an error: {error}"))
            raise
        progress.close(self._history, stop.reason)
        if self._kept is None or self.algorithm.keep == "last":
            h = np.full(2, np.nan) if self._kept is None else self._kept.h
            return self._finish(_Kept(reached, h), stop)
        return self._finish(self._kept, stop)

    def _loop(self, init: Any, progress: Progress) -> tuple[Array, Stop]:
        for turn in self._turns(self._first(init)):
            self._record(turn)
            self._keep(turn)
            progress.update(self._history)
            asked = self._called_back(turn)
            stop = self._stop() or asked
            if stop and not (stop.converged and self._goes_on(turn.reached)):
                return turn.reached, stop
            _check_domain(turn)
        msg = "the turns never end by themselves"
        raise AssertionError(msg)

    def _keep(self, turn: _Turn) -> None:
        """Remember the q that would be returned now, with residuals at draws from it."""
        h = to_numpy(turn.info.h)
        if h.size > 1 and (self.algorithm.keep == "last" or self._history.best == len(self._history) - 1):
            self._kept = _Kept(turn.left, h)

    def _turns(self, q: Array) -> Iterator[_Turn]:
        """Yield each step after it was made, for ever: ask, evaluate, tell."""
        state = self.algorithm.init(self.family, q)
        while True:
            theta, values = self._asked(state)
            left = state.q
            with np.errstate(all="ignore"):  # a step that overflows is refused in `tell`
                state, info = self.algorithm.tell(self.family, self._prior.eta, state, theta, values)
            self._notes = self.algorithm.notes(state)
            yield _Turn(left, state.q, info)

    def _asked(self, state: Any) -> tuple[Array, Values]:
        """What the method asks for, or the fresh draws that have just contradicted it."""
        if self._look is not None and self._look.q is state.q:
            return self._look.theta, self._look.values[0]
        theta = self.algorithm.ask(self.family, state, self._draws)
        return theta, self._evaluate(theta, self._rows)

    def _goes_on(self, q: Array) -> bool:
        """Whether fresh draws from a q that seemed to have settled speak against it; they are then told to the method."""
        fresh = self.algorithm.fresh_draws(self.black_box.n_evals)
        can_go_on = self.algorithm.keep == "last" and not self._is_partial and self._second_looks < _MOST_SECOND_LOOKS
        if not can_go_on or self._left() < 3 * fresh:
            return False
        self._look = look = self._look_at(q, fresh)
        self._second_looks += 1
        return not look.failed and self._gain(look, *_SUSPICION) > 0

    def _evaluate(self, theta: Array, rows: np.random.Generator) -> Values:
        points = self.model.constrain(theta)
        batch: tuple[Any, ...] = ()
        scale = 1.0
        if self.batches is not None:
            drawn, scale = self.batches.draw(rows)
            batch = (drawn,)
        likelihood, ok, noise_sd = self.black_box(points, *batch, scale=scale)
        self._dark = 0 if ok.any() else self._dark + 1
        if self._dark >= _DARKEST:
            last = self.black_box.failures[-1]
            msg = (
                f"none of the points of the last {_DARKEST} steps gave a finite log-likelihood; the last: {last!r}; "
                "start where it is finite with `init`, or give the parameters a support that keeps them there"
            )
            raise EvaluationError(msg, last)
        log_prior = self.model.log_prior(theta)
        return Values(likelihood + self._prior.remaining(theta), likelihood + log_prior, ok, noise_sd)

    def _first(self, init: Any) -> Array:
        loc, scale = self.model.initial()
        if isinstance(init, Fit):
            mean, cov = init.unconstrained
            if len(mean) != self.family.dim:
                msg = f"`init` must be a fit of {self.family.dim} coordinates, as the prior has, got one of {len(mean)}"
                raise ValueError(msg)
            return self.family.from_moments(mean, cov)
        if isinstance(init, Unconstrained):
            loc = init.u
        elif init is not None:
            loc = self.model.unconstrain(init)
        # A narrow start tells differences; whole numbers have none that are small.
        scale = np.where(self.model.is_discrete, scale, self.algorithm.start_scale(scale))
        return self.family.start(loc, scale)

    def _record(self, turn: _Turn) -> None:
        self._history.append(
            elbo=float(turn.info.bound),
            n_evals=self.black_box.n_evals,
            step=float(turn.info.step),
            grad_norm=float(turn.info.grad_norm),
            seconds=time.perf_counter() - self._start,
            mean=to_numpy(self.family.mean(turn.left)),
            sd=to_numpy(self.family.sd(turn.left)),
            gap=float(turn.info.gap),
        )

    def _stop(self) -> Stop | None:
        rules = (*self.algorithm.stop, self.budget)
        return next((stop for stop in (rule(self._history) for rule in rules) if stop), None)

    def _called_back(self, turn: _Turn) -> Stop | None:
        if self.callback is None:
            return None
        mean, cov = to_numpy(self.family.mean(turn.reached)), to_numpy(self.family.cov(turn.reached))
        past = self._history
        if self.callback(Iterate(past.n_evals[-1], past.elbo[-1], past.gap[-1], mean, cov)):
            return Stop(False, "stopped by the callback")
        return None

    def _finish(self, kept: _Kept, stop: Stop) -> Fit:
        """Draw afresh from the chosen q, so that the reported bound is not the luck of the best step."""
        look = self._look
        if look is None or look.q is not kept.q:
            n = int(min(self.algorithm.fresh_draws(self.black_box.n_evals), self._left()))
            if n < 2:
                return self._freeze(kept, stop)
            look = self._look_at(kept.q, n)
        if stop.converged and len(look.h) == 1 and not look.failed:
            stop = self._contradicted(stop, self._gain(look, *_PROOF))
        return self._freeze(_Kept(kept.q, look.h), self._doubted(stop, look.h, look.failed))

    def _look_at(self, q: Array, n: int) -> _Look:
        groups = min(10, n // 2) if self._is_partial else 1
        failed = len(self.black_box.failures)
        z = Independent().normal(self._fresh, groups * (n // groups), self.family.dim)
        theta = self.family.transport(q, z)
        parts = np.split(np.arange(len(z)), groups)
        values = [self._evaluate(theta[rows], self._fresh) for rows in parts]
        h = [self.family.residual(q, theta[rows], v.log_joint) for rows, v in zip(parts, values, strict=True)]
        share = (len(self.black_box.failures) - failed) / len(z)
        return _Look(q, theta, values, np.stack([to_numpy(row) for row in h]), share)

    def _gain(self, look: _Look, worth: float, chance: float) -> float:
        """Nats that the fresh draws prove to be missing, beyond what was predicted; asked only where they are enough to tell."""
        if look.h.size < 4 * (1 + self.family.size):
            return 0.0
        expected = self._history.gap[-1]
        features = to_numpy(self.family.features(look.q, look.theta))
        return still_to_gain(features, look.h[0], np.fmax(worth, 2 * expected), chance)

    def _left(self) -> float:
        """Evaluations left of the budget."""
        return math.inf if self.budget.max_evals is None else self.budget.max_evals - self.black_box.n_evals

    @property
    def _is_partial(self) -> bool:
        return self.batches is not None and self.batches.is_partial

    def _contradicted(self, stop: Stop, gain: float) -> Stop:
        if not gain:
            return stop
        return Stop(False, f"{stop.reason}, but fresh draws show that about {gain:.2g} nats are still to be gained")

    def _doubted(self, stop: Stop, h: Floats, failed: float) -> Stop:
        """Take a convergence back where fresh draws fail, or put the bound well below what the fit said."""
        if stop.converged and failed > _MOST_FAILED:
            return Stop(False, f"{stop.reason}, but the function fails at {failed:.0%} of fresh draws from the result")
        said, mean, se = self._history.elbo_smooth[-1], float(h.mean()), float(h.std(ddof=1)) / np.sqrt(h.size)
        if not stop.converged or mean > said - _DISAGREEMENT * se - 0.1:
            return stop
        return Stop(
            False, f"fresh draws put the bound at {mean:.4g}, below the {said:.4g} of the fit: more draws are needed"
        )

    def _freeze(self, kept: _Kept, stop: Stop) -> Fit:
        h = np.atleast_2d(kept.h)
        one_batch = len(h) == 1
        # With mini-batches the draws of one batch share its error: the spread is that of the batches' means.
        means = h[0] if one_batch else h.mean(axis=1)
        khat, notes = pareto_khat(h[0]) if one_batch else (float("nan"), ("k-hat is not told from mini-batches",))
        objection = objection_to(khat, h[0]) if stop.converged else ""
        report = Report(
            elbo=float(h.mean()),
            elbo_se=float(means.std(ddof=1) / np.sqrt(means.size)),
            khat=khat,
            khat_draws=int(h[0].size),
            converged=stop.converged and not objection,
            stop_reason=stop.reason + objection,
            n_evals=self.black_box.n_evals,
            n_iterations=len(self._history),
            failures=tuple(self.black_box.failures),
            trace=_trace(self._history),
            seconds=time.perf_counter() - self._start,
            seed=self.seed,
            method=repr(self.algorithm),
            notes=(*self._notes, *notes),
        )
        return Fit(self.model, self.family, to_numpy(kept.q), report)


def _check_domain(turn: _Turn) -> None:
    if not bool(turn.info.inside):
        msg = (
            "the plain step left the domain: the new covariance would not be positive definite; take "
            'step="bounded-rate", "exponential" or "retraction", a smaller learning_rate, or more draws'
        )
        raise DomainError(msg)


def _trace(history: History) -> Trace:
    return Trace(**{name: np.asarray(values) for name, values in vars(history).items() if name != "window"})
