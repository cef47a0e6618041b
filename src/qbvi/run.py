"""One fit from start to end: the only loop, as a generator that asks for values and is sent them."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.algorithm import Algorithm, Info, Values
from qbvi.arrange import KnownPrior
from qbvi.arrays import Array, to_numpy
from qbvi.diagnostics import left_open, objection_to, pareto_khat, still_to_gain
from qbvi.evaluate import Batches, BlackBox, EvaluationError, Evaluations, Failure
from qbvi.families import Family
from qbvi.model import Model
from qbvi.progress import Progress
from qbvi.random import Independent
from qbvi.results import Fit, Report, Trace
from qbvi.stopping import Budget, History, Stop
from qbvi.threads import one_blas_thread

__all__ = ["Conversation", "DomainError", "Iterate", "Request", "Run", "Snapshot", "Unconstrained", "drive"]

Floats = NDArray[np.float64]

_DARKEST = 10  # steps in a row without one finite value after which to give up
_MOST_FAILED = 0.02  # share of failed draws up to which a fit that left them out is called converged
_SUSPICION = (0.02, 0.01)  # nats, and chance of a false alarm, at which fresh draws are worth another turn of the loop
_PROOF = (0.05, 1e-4)  # the same, at which a fit is not called converged
_OPEN = 0.25  # nats that fresh draws may leave open of what a step would gain: half of what no fit may be off and say converged
_MOST_LOOKS = 5
_DISAGREEMENT = 5.0  # standard errors between the last bound and a fresh one that chance does not explain


class DomainError(RuntimeError):
    """A plain step left the set of positive definite covariances; ``fit`` holds the posterior before that step."""

    fit: Fit | None = None


class Unconstrained(NamedTuple):
    """A start on the unconstrained scale."""

    u: Floats  # (d,)
    cov: Floats | None = None  # (d, d); by default the method's


class Iterate(NamedTuple):
    """What a callback is given after each step: the present posterior on the unconstrained scale."""

    n_evals: int
    elbo: float  # estimate of the bound at the posterior before the step
    gap: float  # nats still to be gained, as the method predicts it
    mean: Floats  # (d,)
    cov: Floats  # (d, d)


@dataclass(frozen=True, eq=False)
class Request:
    """Points at which the function is wanted: what the loop asks for."""

    number: int  # of the requests of a run, from zero
    points: Any  # stacked constrained values: (n, *shape), or a dict of them
    batch: tuple[Any, ...] = ()  # rows of the data, where there are any
    scale: float = 1.0  # by which the values make up for the rows left out

    @property
    def size(self) -> int:
        """Number of points."""
        return len(next(iter(self.points.values())) if isinstance(self.points, dict) else self.points)

    @cached_property
    def digest(self) -> bytes:
        """A name for these points: the same only where all are equal to the last bit."""
        digest = hashlib.blake2b(digest_size=16)
        for name, array in self.points.items() if isinstance(self.points, dict) else [("", self.points)]:
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(array, dtype=np.float64).data)
        return digest.digest()


Conversation = Generator[Request, Evaluations, Fit]


class Kept(NamedTuple):
    """A q, and residuals at draws from it: (n,), or (batches, n) where each row has its own mini-batch."""

    q: Array
    h: Floats


class _Look(NamedTuple):
    """Fresh draws from a q, and what the function says there."""

    q: Array
    theta: Array  # (n, d)
    values: list[Values]  # one for all of them or, with mini-batches, one for each of as many groups
    h: Floats  # (groups, n / groups) residuals
    failed: float  # share of the draws at which the function failed


class Snapshot(NamedTuple):
    """All that a run needs to go on as if it had never stopped: plain data and arrays."""

    number: int  # of the next request
    state: Any  # of the method; None before the first step
    generators: tuple[dict[str, Any], ...]
    history: dict[str, NDArray[Any]]
    kept: Kept | None
    dark: int
    looks: int
    n_evals: int
    failures: tuple[Failure, ...]
    seconds: float


class _Turn(NamedTuple):
    """One step as the loop sees it: the q that was left, the q that was reached, and what the draws said."""

    left: Array
    reached: Array
    info: Info


@dataclass
class Run:
    """Model, family, black box and method, put together.

    `requests` is the loop: it yields each `Request`, is sent the function's `Evaluations` there, and returns the `Fit`. `drive` answers from
    the black box.

    Parameters
    ----------
    on_turn
        Called before the first step and after each one, with whether it was the last: where a checkpoint takes its `snapshot`.
    """

    model: Model
    family: Family
    black_box: BlackBox
    batches: Batches | None
    algorithm: Algorithm
    budget: Budget
    seed: int
    callback: Callable[[Iterate], bool | None] | None = None
    on_turn: Callable[[bool], None] | None = None

    def __post_init__(self) -> None:
        # Streams of their own, so that how many numbers one part draws changes nothing for the others.
        streams = np.random.SeedSequence(self.seed).spawn(3)
        self._draws, self._rows, self._fresh = (np.random.default_rng(stream) for stream in streams)
        self._prior = KnownPrior(self.model, self.family)
        self._history = History(self.algorithm.window)
        self._state: Any = None
        self.number = 0
        self._dark = 0  # steps in a row without one finite value
        self._kept: Kept | None = None
        self._looks = 0  # with fresh draws at a q that seemed to have settled
        self._look: _Look | None = None  # the newest of them
        self._remarks: list[str] = []
        self._start = time.perf_counter()

    def requests(self, init: Any, progress: Progress) -> Conversation:
        """Turn until a rule, the budget, the user or an error ends it."""
        stop = None
        try:
            reached, stop = yield from self._loop(init, progress)
            progress.close(self._history, stop.reason)
            return (yield from self._finish(self._chosen(reached), stop))
        except KeyboardInterrupt as interruption:
            if self._kept is None:
                raise
            by = f"interrupted ({str(interruption) or 'Ctrl-C'})"
            reason = (
                f"{by} before the fit settled" if stop is None else f"{stop.reason}, but {by} during the last draws"
            )
            progress.close(self._history, reason)
            return self._freeze(self._kept, Stop(False, reason))
        except (EvaluationError, DomainError) as error:
            if self._kept is not None:
                error.fit = self._freeze(self._kept, Stop(False, f"ended by an error: {error}"))
            raise

    def evaluate(self, request: Request) -> Evaluations:
        """Answer a request from the black box."""
        return self.black_box(request.points, *request.batch, scale=request.scale)

    def snapshot(self) -> Snapshot:
        """What `restore` needs; to be taken in ``on_turn``, where nothing is under way."""
        history = {name: np.asarray(values) for name, values in vars(self._history).items() if name != "window"}
        generators = tuple(dict(rng.bit_generator.state) for rng in (self._draws, self._rows, self._fresh))
        return Snapshot(
            number=self.number,
            state=self._state,
            generators=generators,
            history=history,
            kept=self._kept,
            dark=self._dark,
            looks=self._looks,
            n_evals=self.black_box.n_evals,
            failures=tuple(self.black_box.failures),
            seconds=self._seconds(),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to where a snapshot was taken."""
        for rng, state in zip((self._draws, self._rows, self._fresh), snapshot.generators, strict=True):
            rng.bit_generator.state = state
        for name in (name for name in vars(self._history) if name != "window"):
            values = snapshot.history[name]
            setattr(self._history, name, values.tolist() if values.ndim == 1 else list(values))
        self.number, self._state, self._kept, self._dark = (
            snapshot.number,
            snapshot.state,
            snapshot.kept,
            snapshot.dark,
        )
        self._looks = snapshot.looks
        self.black_box.n_evals = snapshot.n_evals
        self.black_box.failures[:] = snapshot.failures
        self._start = time.perf_counter() - snapshot.seconds

    def remark(self, note: str) -> None:
        """Add a sentence to the notes of the fit."""
        self._remarks.append(note)

    def so_far(self, reason: str) -> Fit | None:
        """The posterior as it is now, not converged for the ``reason`` given; None before the first step."""
        return None if self._kept is None else self._freeze(self._kept, Stop(False, reason))

    def _loop(self, init: Any, progress: Progress) -> Generator[Request, Evaluations, tuple[Array, Stop]]:
        if self._state is None:
            self._state = self.algorithm.init(self.family, self._first(init))
        stop = self._stop() if len(self._history) else None  # a finished run that was restored ends at once
        while True:
            while not stop:
                self._turned(is_last=False)
                before = self._draws.bit_generator.state
                theta = self.algorithm.ask(self.family, self._state, self._draws)
                stop = self._unaffordable(len(theta))
                if stop:
                    self._draws.bit_generator.state = (
                        before  # with a larger budget the run goes on as if it had not ended
                    )
                    break
                stop = self._take(theta, (yield from self._values(theta, self._rows)), progress)
            self._turned(is_last=True)
            if not (stop.converged and (yield from self._is_contradicted())):
                return self._state.q, stop
            assert self._look is not None
            stop = self._take(self._look.theta, self._look.values[0], progress)

    def _take(self, theta: Array, values: Values, progress: Progress) -> Stop | None:
        """Make one step, and say whether it was the last."""
        turn = self._tell(theta, values)
        self._record(turn)
        self._keep(turn)
        progress.update(self._history)
        asked = self._called_back(turn)
        stop = self._stop() or asked
        if not stop:
            _check_domain(turn)
        return stop

    def _is_contradicted(self) -> Generator[Request, Evaluations, bool]:
        """Whether fresh draws from a q that seemed to have settled speak against it; they are then told to the method."""
        fresh = self.algorithm.fresh_draws(self.black_box.n_evals)
        can_go_on = self.algorithm.keep == "last" and not self._is_partial and self._looks < _MOST_LOOKS
        if not can_go_on or self._left() < 3 * fresh:
            return False
        self._look = yield from self._look_at(self._state.q, fresh + fresh % 2)  # methods think in pairs
        self._looks += 1
        return not self._look.failed and (self._gain(self._look, *_SUSPICION) > 0 or self._open(self._look) > 0)

    def _turned(self, is_last: bool) -> None:
        if self.on_turn is not None:
            self.on_turn(is_last)

    def _tell(self, theta: Array, values: Values) -> _Turn:
        left = self._state.q
        with one_blas_thread(), np.errstate(all="ignore"):  # a step that overflows is refused in `tell`
            self._state, info = self.algorithm.tell(self.family, self._prior.eta, self._state, theta, values)
        return _Turn(left, self._state.q, info)

    def _unaffordable(self, n: int) -> Stop | None:
        """Budgets are never overrun: not by a step larger than the last one, and not by the first."""
        most, spent = self.budget.max_evals, self.black_box.n_evals
        if most is None or spent + n <= most:
            return None
        if not spent:
            msg = f"`max_evals` must allow for the {n} evaluations of the first step, got {most} for this start"
            raise ValueError(msg)
        return self.budget.spent()

    def _keep(self, turn: _Turn) -> None:
        """Remember the q that would be returned now, with residuals at draws from it."""
        h = to_numpy(turn.info.h)
        if h.size > 1 and (self.algorithm.keep == "last" or self._history.best == len(self._history) - 1):
            self._kept = Kept(turn.left, h)

    def _chosen(self, reached: Array) -> Kept:
        """The q to return at a proper end."""
        if self._kept is None or self.algorithm.keep == "last":
            return Kept(reached, np.full(2, np.nan) if self._kept is None else self._kept.h)
        return self._kept

    def _values(self, theta: Array, rows: np.random.Generator) -> Generator[Request, Evaluations, Values]:
        batch, scale = ((), 1.0) if self.batches is None else _listed(self.batches.draw(rows))
        request = Request(self.number, self.model.constrain(theta), batch, scale)
        likelihood, ok, noise_sd = yield request
        self.number += 1
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
        if isinstance(init, Unconstrained) and init.cov is not None:
            return self.family.from_moments(init.u, init.cov)
        if isinstance(init, Unconstrained):
            loc = init.u
        elif init is not None:
            loc = self.model.unconstrain(init)
        # A narrow start tells differences; whole numbers have none that are small.
        scale = np.where(self.model.is_discrete, scale, self.algorithm.start_scale(scale))
        return self.family.start(loc, np.minimum(scale, 0.5 * self.model.room(loc)))

    def _record(self, turn: _Turn) -> None:
        self._history.append(
            elbo=float(turn.info.bound),
            n_evals=self.black_box.n_evals,
            step=float(turn.info.step),
            grad_norm=float(turn.info.grad_norm),
            seconds=self._seconds(),
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

    def _seconds(self) -> float:
        return time.perf_counter() - self._start

    def _finish(self, kept: Kept, stop: Stop) -> Conversation:
        """Draw afresh from the chosen q, so that the reported bound is not the luck of the best step."""
        look = self._look
        if look is None or look.q is not kept.q:
            n = int(min(self.algorithm.fresh_draws(self.black_box.n_evals), self._left()))
            if n < 2:  # nothing left for fresh draws: the draws so far must do
                return self._freeze(
                    kept,
                    self._failing(stop, len(self.black_box.failures) / max(self.black_box.n_evals, 1), "all draws"),
                )
            look = yield from self._look_at(kept.q, n)
        if stop.converged and len(look.h) == 1 and not look.failed:
            stop = self._contradicted(stop, self._gain(look, *_PROOF), self._open(look))
        return self._freeze(Kept(kept.q, look.h), self._doubted(stop, look.h, look.failed))

    def _failing(self, stop: Stop, share: float, draws: str) -> Stop:
        """Tell the mass that was left out, and do not call a fit converged that left out much."""
        if share:
            self.remark(f"the function failed at {share:.2g} of {draws}, which were left out or filled in")
        if not stop.converged or share <= _MOST_FAILED:
            return stop
        return Stop(False, f"{stop.reason}, but the function fails at {share:.0%} of {draws}")

    def _look_at(self, q: Array, n: int) -> Generator[Request, Evaluations, _Look]:
        groups = min(10, n // 2) if self._is_partial else 1
        failed = len(self.black_box.failures)
        z = Independent().normal(self._fresh, groups * (n // groups), self.family.dim)
        theta = self.family.transport(q, z)
        values, h = [], []
        for rows in np.split(np.arange(len(z)), groups):
            values.append((yield from self._values(theta[rows], self._fresh)))
            h.append(to_numpy(self.family.residual(q, theta[rows], values[-1].log_joint)))
        share = (len(self.black_box.failures) - failed) / len(z)
        return _Look(q, theta, values, np.stack(h), share)

    def _gain(self, look: _Look, worth: float, chance: float) -> float:
        """Nats that the fresh draws prove to be missing, beyond what was predicted; asked only where they are enough to tell."""
        if look.h.size < 4 * (1 + self.family.size):
            return 0.0
        expected = self._history.gap[-1]
        features = to_numpy(self.family.features(look.q, look.theta))
        return still_to_gain(features, look.h[0], np.fmax(worth, 2 * expected), chance)

    def _open(self, look: _Look) -> float:
        """Nats that the fresh draws leave open; zero where that is little."""
        features = to_numpy(self.family.features(look.q, look.theta))
        missing = left_open(features, look.h[0])
        return missing if missing > _OPEN else 0.0

    def _left(self) -> float:
        """Evaluations left of the budget."""
        return math.inf if self.budget.max_evals is None else self.budget.max_evals - self.black_box.n_evals

    @property
    def _is_partial(self) -> bool:
        return self.batches is not None and self.batches.is_partial

    def _contradicted(self, stop: Stop, gain: float, unknown: float) -> Stop:
        if unknown and not gain:
            return Stop(
                False, f"{stop.reason}, but fresh draws leave open about {unknown:.2g} nats: a few outweigh all others"
            )
        if not gain:
            return stop
        return Stop(False, f"{stop.reason}, but fresh draws show that about {gain:.2g} nats are still to be gained")

    def _doubted(self, stop: Stop, h: Floats, failed: float) -> Stop:
        """Take a convergence back where fresh draws fail, or put the bound well below what the fit said."""
        stop = self._failing(stop, failed, "fresh draws from the result")
        said, mean, se = self._history.elbo_smooth[-1], float(h.mean()), float(h.std(ddof=1)) / np.sqrt(h.size)
        if not stop.converged or mean > said - _DISAGREEMENT * se - 0.1:
            return stop
        return Stop(
            False, f"fresh draws put the bound at {mean:.4g}, below the {said:.4g} of the fit: more draws are needed"
        )

    def _said(self) -> tuple[str, ...]:
        return () if self._state is None else self.algorithm.notes(self._state)

    def _freeze(self, kept: Kept, stop: Stop) -> Fit:
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
            seconds=self._seconds(),
            seed=self.seed,
            method=repr(self.algorithm),
            notes=(*self._said(), *self._remarks, *notes),
        )
        return Fit(self.model, self.family, to_numpy(kept.q), report)


def drive(conversation: Conversation, answer: Callable[[Request], Evaluations]) -> Fit:
    """Answer every request of a conversation, and return what it comes to; an error in the answer is the run's to handle."""
    try:
        request = next(conversation)
        while True:
            try:
                evaluations = answer(request)
            except BaseException as error:  # noqa: BLE001 - Ctrl-C too: the run returns what it has
                request = conversation.throw(error)
            else:
                request = conversation.send(evaluations)
    except StopIteration as end:
        fit: Fit = end.value
        return fit


def _listed(drawn: tuple[Any, float]) -> tuple[tuple[Any, ...], float]:
    rows, scale = drawn
    return (rows,), scale


def _check_domain(turn: _Turn) -> None:
    if not bool(turn.info.inside):
        msg = (
            "the plain step left the domain: the new covariance would not be positive definite; take "
            'step="bounded-rate", "exponential" or "retraction", a smaller learning_rate, or more draws'
        )
        raise DomainError(msg)


def _trace(history: History) -> Trace:
    return Trace(**{name: np.asarray(values) for name, values in vars(history).items() if name != "window"})
