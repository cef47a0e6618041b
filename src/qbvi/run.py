"""One fit from start to end: the only loop, a generator that yields points and receives values."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array, to_numpy
from qbvi.backends import HOST, Backend
from qbvi.chunks import CompiledSteps, Replay
from qbvi.conversation import Conversation, Iterate, Kept, Request, Snapshot, Unconstrained
from qbvi.core import LARGEST_TRACED, Core, Engine, Iteration
from qbvi.diagnostics import Judged, Khat, judge_khat, missing_error
from qbvi.earlier import Earlier, Probed
from qbvi.ending import Stop, StopKind
from qbvi.evaluate import Batches, BlackBox, DeviceBatches, DeviceBox, Evaluated, EvaluationError
from qbvi.evaluate.deadlines import is_over
from qbvi.evaluations import Record
from qbvi.families import Family
from qbvi.free.cells import Cells
from qbvi.model import Model
from qbvi.noise import NO_NOISE, Noise
from qbvi.paths import Start
from qbvi.progress import Progress
from qbvi.protocol import Algorithm, Outcome, Twice, Values
from qbvi.results import Fit, Report, Trace
from qbvi.stopping import Budget, History, ParameterChange, Rule
from qbvi.threads import one_blas_thread
from qbvi.verdict import Look, Past, Verdict, is_ok

__all__ = ["DomainError", "OutOfTimeError", "Run"]

Floats = NDArray[np.float64]

_DARKEST = 10  # consecutive steps without a finite value after which the fit gives up
# Fresh draws are made in parts: most numbers (draws times dimensions) of a part, and most parts.
_LOOK_NUMBERS, _MOST_PARTS = 2**25, 2**12
_BATCHES = 10  # mini-batches among which fresh draws are divided, to see how much they differ
_RESERVED_LOOKS = 3  # looks that the remaining budget must allow for before one is made
# Largest standard deviation of a periodic parameter, in periods: 0.3 % of q are then farther from
# the mean than half a period, and count twice.
_NARROW = 1 / 6
_INSIDE = 0.5  # largest initial standard deviation, as a share of the distance to the edge


class OutOfTimeError(EvaluationError):
    """The time was over before the first step was complete."""


class DomainError(RuntimeError):
    """A plain step left the set of positive definite covariances.

    The attribute ``fit`` holds the posterior before that step.
    """

    fit: Fit | None = None


class _Counts(NamedTuple):
    """Evaluations and failures so far, and points in the record."""

    evals: int = 0
    failures: int = 0
    recorded: int = 0

    def less(self, other: _Counts) -> _Counts:
        """The differences."""
        return _Counts(self.evals - other.evals, self.failures - other.failures, self.recorded - other.recorded)


@dataclass
class Run:
    """Model, family, black box and method, put together.

    `requests` is the loop. It yields each `Request`, receives what was `Evaluated` there,
    and returns the `Fit`. `drive` answers the requests from the black box. On a backend that
    compiles, steps are made in chunks that evaluate the function themselves and yield no requests.
    The history is the same.

    Parameters
    ----------
    on_turn
        Called before the first step, and after each step or chunk of steps. The argument is whether
        that was the last. A checkpoint takes its `snapshot` there.
    backend
        Array library of the loop. Unless it is NumPy, ``black_box`` is a `DeviceBox` and
        ``batches`` are `DeviceBatches`.
    where
        Words for backend and device in the report; by default those of ``backend``.
    note
        A sentence for the report, known before the fit begins.
    verdict
        The rules by which fresh draws confirm a convergence.
    earlier
        Evaluations that were made before.
    """

    model: Model
    family: Family
    black_box: BlackBox
    batches: Batches | DeviceBatches | None
    algorithm: Algorithm
    budget: Budget
    seed: int
    verdict: Verdict  # without a default: whoever makes a run must choose it
    callback: Callable[[Iterate], bool | None] | None = None
    on_turn: Callable[[bool], None] | None = None
    backend: Backend = HOST
    where: str = ""
    note: str = ""
    earlier: Earlier | None = None

    def __post_init__(self) -> None:
        if self.family.dim > LARGEST_TRACED and any(isinstance(rule, ParameterChange) for rule in self.algorithm.stop):
            msg = (
                f"`stop` can hold ParameterChange up to {LARGEST_TRACED:,} dimensions, beyond which no means are kept, "
                f"got {self.family.dim:,}; take Patience"
            )
            raise ValueError(msg)
        if not self.algorithm.asks:  # its bound is exact, however much the draws vary
            self.verdict = replace(self.verdict, far_off=math.inf)
        self._engine = Engine(Core(self.model, self.family, self.algorithm, self.backend), self.seed)
        self._history = History(self.algorithm.window)
        self._state: Any = None
        self.number = 0
        self._dark = 0  # consecutive steps without a finite value
        self._kept: Kept | None = None  # the q that would be returned now
        self._looks = 0  # how often fresh draws have checked a convergence
        self._look: Look | None = None  # the newest of these checks
        # Points that stay on a device, and values of different data, are not recorded.
        self._evaluations = Record(self.model.dim) if self.backend.is_host and not self._is_partial else None
        self._remarks: list[str] = [self.note] if self.note else []
        self._is_cut = False  # whether the time was over in a step, or before fresh draws
        self._again = _Counts()  # what a resumed run will count again
        # Evaluations before the fresh draws that are being made, and the number of these draws.
        self._check: tuple[int, int] | None = None
        self._start = time.perf_counter()
        self._seconds_of_function = 0.0  # until requests were answered

    def requests(self, init: Any, progress: Progress) -> Conversation:
        """Run the loop until a stopping rule, the budget, the user or an error ends it."""
        stop = None
        self._set_deadline()
        self.black_box.on_evaluated = partial(self._show, progress)
        try:
            reached, stop = yield from self._loop(init, progress)
            fit = yield from self._finish(self._chosen(reached), stop)
            progress.close(self._history, fit.stop_reason, fit.n_evals)
            return fit
        except KeyboardInterrupt as interruption:
            if self._kept is None:
                raise
            by = str(interruption) or "Ctrl-C"
            if stop is None:
                stop = Stop.of(StopKind.INTERRUPTED, by=by)
            else:
                stop = stop.but(StopKind.INTERRUPTED_AT_END, by=by)
            progress.close(self._history, stop.reason)
            return self._freeze(self._kept, stop)
        except (EvaluationError, DomainError) as error:
            if self._kept is not None:
                error.fit = self._freeze(self._kept, Stop.of(StopKind.ERROR, error=error))
            raise
        finally:
            self.algorithm.close()

    def _show(self, progress: Progress, done: int) -> None:
        """Show how many evaluations there are, of which ``done`` belong to the current request."""
        n_evals = self.black_box.n_evals + done
        check = None if self._check is None else (n_evals - self._check[0], self._check[1])
        progress.count(self._history, n_evals, check)

    def evaluate(self, request: Request) -> Evaluated:
        """Answer a request from the black box."""
        return self.black_box(request.points, *request.batch, scale=request.scale)

    def snapshot(self) -> Snapshot:
        """What `restore` needs; take it in ``on_turn``, between two steps."""
        history = {name: np.asarray(values) for name, values in self._history.recorded().items()}
        generators = tuple(dict(rng.bit_generator.state) for rng in self._engine.generators)
        counts = self._counts().less(self._again)
        return Snapshot(
            number=self.number,
            state=self.backend.fetch(self._state),
            generators=generators,
            history=history,
            kept=self.backend.fetch(self._kept),
            dark=self._dark,
            looks=self._looks,
            n_evals=counts.evals,
            failures=tuple(self.black_box.failures[: counts.failures]),
            seconds=self._seconds(),
            recorded=None if self._evaluations is None else self._evaluations.recorded(self._again.recorded),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to where a snapshot was taken."""
        for rng, state in zip(self._engine.generators, snapshot.generators, strict=True):
            rng.bit_generator.state = state
        for name in self._history.recorded():
            values = snapshot.history[name]
            setattr(self._history, name, values.tolist() if values.ndim == 1 else list(values))
        self.number, self._dark = snapshot.number, snapshot.dark
        self._state = self.backend.put(snapshot.state)
        self._kept = None if snapshot.kept is None else Kept(self.backend.put(snapshot.kept.q), snapshot.kept.h)
        self._looks = snapshot.looks
        self.black_box.n_evals = snapshot.n_evals
        self.black_box.failures[:] = snapshot.failures
        if self._evaluations is not None and snapshot.recorded is not None:
            self._evaluations.restore(snapshot.recorded)
        self._start = time.perf_counter() - snapshot.seconds
        self._seconds_of_function = math.nan  # how much of the time before, nobody knows

    def count_time(self, seconds: float) -> None:
        """Add time that was spent before, and that the restored snapshot does not know of."""
        self._start -= seconds

    def remark(self, note: str) -> None:
        """Add a sentence to the notes of the fit."""
        self._remarks.append(note)

    def so_far(self, stop: Stop | None = None) -> Fit | None:
        """The fit at this point, unfinished unless ``stop`` says more; None before a first step."""
        return None if self._kept is None else self._freeze(self._kept, stop or Stop.of(StopKind.UNFINISHED))

    def _loop(self, init: Any, progress: Progress) -> Generator[Request, Evaluated, tuple[Array, Stop]]:
        if self._state is None:
            self._state = self._engine.start(self._first(init))
        # A restored run that had already finished stops here.
        stop = self._stop() if len(self._history) else None
        compiled = self._compiled() if stop is None else None
        while True:
            while not stop:
                self._turned(is_last=False)
                if self.earlier is not None and not self._is_informed:
                    yield from self._take_in(self.earlier)
                    self._turned(is_last=False)
                stop = (yield from self._step(progress)) if compiled is None else self._steps(compiled, progress)
            self._turned(is_last=True)
            if not stop.converged or self._outcome() or not (yield from self._is_doubted()):
                return self._state.q, stop
            assert self._look is not None
            assert self._look.draws is not None
            stop = self._take(*self._look.draws, progress, is_fresh=True)

    def _step(self, progress: Progress) -> Generator[Request, Evaluated, Stop | None]:
        """Request the values of one step and make it; return a stop if it was the last."""
        if not self.algorithm.asks:
            return self._take(np.empty((0, self.family.dim)), _NO_VALUES, progress)
        before = self._engine.draws.bit_generator.state, self._engine.rows.bit_generator.state, self._counts()
        theta = self._engine.ask(self._state, len(self._history))
        stop = self._unaffordable(len(theta) - len(self._given_at(theta)))
        if stop:
            # Undo the draws: a run resumed with a larger budget continues as if it had not ended.
            self._engine.draws.bit_generator.state = before[0]
            return stop
        stage = "search" if self.algorithm.is_exploring(self._state) else "step"
        evaluated, values = yield from self._values(theta, self._engine.rows, stage)
        if len(evaluated) < len(theta):  # likewise
            self._engine.draws.bit_generator.state, self._engine.rows.bit_generator.state, counts = before
            self._again = self._since(counts)
            return self._cut_short(len(evaluated), len(theta))
        return self._take(theta, values, progress)

    def _cut_short(self, n: int, size: int) -> Stop:
        """The stop of a fit whose time was over in the middle of a step; an error in the first."""
        self._is_cut = True
        if len(self._history):
            return Stop.of(StopKind.SECONDS, seconds=self.budget.max_time)
        msg = (
            f"`max_time` must allow for the first step, got {self.budget.max_time:g} s for this start, in which {n} of its "
            f"{size} points were evaluated; give more time, or faster calls (`executor`, `vectorized`)"
        )
        raise OutOfTimeError(msg)

    def _take_in(self, earlier: Earlier) -> Generator[Request, Evaluated, None]:
        """Compare earlier evaluations with the function, and pass them to the method."""
        before = self._engine.draws.bit_generator.state
        n = len(earlier.probes) + len(self._engine.ask(self._state, 0))
        self._engine.draws.bit_generator.state = before
        self._unaffordable(n)
        theta = self.backend.asarray(earlier.theta[earlier.probes])
        first = yield from self._probed(theta)
        seen = Probed(_log_joint(first), to_numpy(first.noise_sd), self.backend.dtype)
        agreement = earlier.compare(seen)
        if agreement is None:
            again = yield from self._probed(theta)
            agreement = earlier.compare(seen, _log_joint(again))
        assert agreement is not None
        if self._evaluations is not None:
            self._evaluations.give(earlier.recorded(agreement))
        with one_blas_thread(), np.errstate(all="ignore"):
            self._state = self.algorithm.knowing(self.family, self._state, earlier.known(agreement))

    def _probed(self, theta: Array) -> Generator[Request, Evaluated, Values]:
        """Values at points of earlier evaluations; an error if there is no time for all of them."""
        evaluated, values = yield from self._values(theta, self._engine.rows, "check")
        if len(evaluated) < len(theta):
            self._cut_short(len(evaluated), len(theta))
        return values

    def _take(self, theta: Array, values: Values, progress: Progress, is_fresh: bool = False) -> Stop | None:
        """Make one step, maybe with fresh draws; return a stop if it was the last."""
        # `tell` rejects a step that overflows, unless the values are beyond all bounds.
        with one_blas_thread(), np.errstate(all="ignore"), _explained("the values of a step"):
            self._state, iteration = self._engine.tell(self._state, theta, values, is_fresh)
        self._record(iteration, self._seconds(), progress)
        return self._ending(iteration)

    def _steps(self, compiled: CompiledSteps, progress: Progress) -> Stop | None:
        """Make a chunk of steps; return a stop if the fit ends with it."""
        stop = self._unaffordable(compiled.n)
        if stop:
            return stop
        start = self._seconds()
        chunk = compiled.make(self._state, self._history, self._rules)
        pace = (self._seconds() - start) / len(chunk.iterations)
        compiled.pace(pace)
        replay, last = compiled.replay(chunk), len(chunk.iterations) - 1
        for i, iteration in enumerate(chunk.iterations):
            self._count(chunk.raw[i], replay, i)
            if i == last:
                self._state = chunk.state
            self._record(iteration, start + (i + 1) * pace, progress)
            if i < last:
                _check_domain(iteration)
        return self._ending(chunk.iterations[last])

    def _count(self, raw: NDArray[Any], replay: Replay, i: int) -> None:
        """Count the evaluations of compiled step ``i``; handle failures as `on_failure` says."""
        box, ok = self.black_box, np.isfinite(raw)
        assert isinstance(box, DeviceBox)
        box.count_evaluations(raw)
        if not ok.all():
            box.record(box.failures_at(replay.points(i), raw), ok)
        self._count_dark_steps(bool(ok.any()))

    def _record(self, iteration: Iteration, seconds: float, progress: Progress) -> None:
        """Add a step to the history, and remember the q that would be returned now."""
        info = iteration.info
        h = to_numpy(info.h)
        self._history.append(
            elbo=float(info.bound),
            n_evals=self.black_box.n_evals,
            step=float(info.step),
            grad_norm=float(info.grad_norm),
            seconds=seconds,
            mean=to_numpy(iteration.mean),
            sd=to_numpy(iteration.sd),
            gap=float(info.gap),
        )
        if not self.algorithm.asks:  # the step is exact, so its result is better than its start
            self._kept = Kept(self._state.q, h)
        elif h.size > 1 and (self.algorithm.keep == "last" or self._history.best == len(self._history) - 1):
            self._kept = Kept(iteration.left, h)
        progress.update(self._history)

    def _ending(self, iteration: Iteration) -> Stop | None:
        """How the run ends after this step, by a rule or the callback; None if it continues."""
        asked = self._called_back()
        stop = self._stop() or asked
        if not stop:
            _check_domain(iteration)
        return stop

    def _is_doubted(self) -> Generator[Request, Evaluated, bool]:
        """Whether fresh draws from a q that seems to have converged give a reason to continue.

        They are drawn only if all of these hold:

        - the method returns its last iterate, and the values are not from mini-batches,
        - fewer than `Verdict.most_looks` such checks have been made,
        - the budget has room for several more.
        """
        fresh = self.algorithm.fresh_draws(self.black_box.n_evals)
        can_go_on = self.algorithm.keep == "last" and self.algorithm.asks and not self._is_partial
        if not can_go_on or self._looks >= self.verdict.most_looks or self._left() < _RESERVED_LOOKS * fresh:
            return False
        # Methods need pairs of draws.
        self._look = yield from self._look_at(self._state.q, fresh + fresh % 2)
        self._looks += 1
        self._is_cut = self._look is None
        if self._look is None or self._look.draws is None:  # the time was over before all were evaluated
            return False
        with np.errstate(all="ignore"), _explained("the values at fresh draws"):
            return self.verdict.doubts(self._look, self._history.gap[-1])

    def _compiled(self) -> CompiledSteps | None:
        """Compiled steps, if the backend, the method and ``on_failure`` allow them."""
        box, batches = self.black_box, self.batches
        can_compile = self.backend.is_compiled and not self.algorithm.draws_on_host
        if not can_compile or not isinstance(box, DeviceBox) or not isinstance(box.on_failure, str):
            return None
        rows = batches if isinstance(batches, DeviceBatches) else None
        most = {"most": 1} if self.callback is not None else {}
        return CompiledSteps(self._engine, box, rows, self._state, **most)

    def _turned(self, is_last: bool) -> None:
        if self.on_turn is not None:
            self.on_turn(is_last)

    def _unaffordable(self, n: int) -> Stop | None:
        """A stop if n more evaluations exceed the budget; an error if the first step does."""
        most, spent = self.budget.max_evals, self.black_box.n_evals
        if most is None or spent + n <= most:
            return None
        if not spent:
            msg = f"`max_evals` must allow for the {n} evaluations of the first step, got {most} for this start"
            raise ValueError(msg)
        return self.budget.spent()

    def _chosen(self, reached: Array) -> Kept:
        """The q to return when a stopping rule or the budget has ended the run."""
        if self._kept is None or self.algorithm.keep == "last":
            return Kept(reached, np.full(2, np.nan) if self._kept is None else self._kept.h)
        return self._kept

    def _values(
        self, theta: Array, rows: np.random.Generator, stage: str
    ) -> Generator[Request, Evaluated, tuple[Array, Values]]:
        """Request values at all points where none was given.

        Returns the points that were evaluated before the time was over, and their values.
        """
        if self.backend.is_host and not np.isfinite(theta).all():
            msg = f"the next points are not finite: the fit left the numbers that a computer has; {_EXTREME}"
            raise EvaluationError(msg)
        given = self._given_at(theta)
        if given:
            evaluated = yield from self._added_to(given, theta, rows, stage)
        else:
            evaluated = yield from self._evaluated(theta, rows, stage)
        theta = theta if evaluated.rows is None else theta[evaluated.rows]
        if not len(theta):  # a prior of the user's may not take no points
            return theta, Values(evaluated.values, *evaluated[:4])
        return theta, self._engine.values(theta, evaluated)

    def _added_to(
        self, given: dict[int, float], theta: Array, rows: np.random.Generator, stage: str
    ) -> Generator[Request, Evaluated, Evaluated]:
        """Request values at the points where none was given, and add them to those that were."""
        values = np.array([given.get(i, math.nan) for i in range(len(theta))])
        ok, noise_sd, zero = np.isfinite(values), np.zeros(len(theta)), np.zeros(len(theta), dtype=bool)
        made = new = np.flatnonzero(~ok)
        if len(new):
            evaluated = yield from self._evaluated(theta[new], rows, stage)
            made = new if evaluated.rows is None else new[evaluated.rows]
            values[made], ok[made], noise_sd[made] = evaluated[:3]
            zero[made] = False if evaluated.zero is None else evaluated.zero
        kept = np.sort([*given, *made])
        return Evaluated(
            values[kept],
            ok[kept],
            noise_sd[kept],
            zero[kept] if zero.any() else None,
            None if len(made) == len(new) else kept,
        )

    def _evaluated(
        self, theta: Array, rows: np.random.Generator, stage: str
    ) -> Generator[Request, Evaluated, Evaluated]:
        batch, scale = ((), 1.0) if self.batches is None else _listed(self.batches.draw(rows))
        request = Request(self.number, self._engine.points(theta), batch, scale)
        record = self._evaluations
        self.black_box.is_lenient = stage == "search"
        if record is not None:
            self.black_box.on_returned = lambda made, values, noise_sd: record.add(theta[made], values, noise_sd, stage)
            self.black_box.stand_ins = record.stand_ins
        start = self._seconds()
        evaluated = yield request
        self._seconds_of_function += self._seconds() - start
        if evaluated.rows is None:  # otherwise the same request comes again if the run is resumed
            self.number += 1
            self._count_dark_steps(bool(to_numpy(evaluated.ok).any()))
        return evaluated

    @property
    def _is_informed(self) -> bool:
        """Whether the method has received the earlier evaluations, maybe before an interruption."""
        return len(self._history) > 0 or (self._evaluations is not None and self._evaluations.n_given > 0)

    def _given_at(self, theta: Array) -> dict[int, float]:
        """Values that were given at some of the points, by row."""
        return {} if self._evaluations is None else self._evaluations.known(theta)

    def _count_dark_steps(self, is_some: bool) -> None:
        """Raise an error after too many consecutive steps without a finite value."""
        self._dark = 0 if is_some else self._dark + 1
        if self._dark >= _DARKEST:
            last = self.black_box.failures[-1]
            msg = (
                f"none of the points of the last {_DARKEST} steps gave a finite log-likelihood; the last: {last!r}; "
                "use `init` to start where it is finite, or give the parameters a support that keeps them there"
            )
            raise EvaluationError(msg, last)

    def _first(self, init: Any) -> Array:
        loc, scale = self.model.initial()
        if isinstance(init, Fit):
            mean, cov = init.unconstrained
            if len(mean) != self.family.dim:
                msg = f"`init` must be a fit of {self.family.dim} coordinates, as the prior has, got one of {len(mean)}"
                raise ValueError(msg)
            return self.family.from_moments(mean, cov)
        if init is None and self.earlier is not None:
            init = Unconstrained(*self.earlier.start)
        if isinstance(init, Unconstrained) and init.cov is not None:
            return self.family.from_moments(init.u, init.cov)
        if isinstance(init, Unconstrained):
            loc = init.u
        elif init is not None:
            loc = self.model.unconstrain(init)
        # A narrow start measures slopes by small differences, which whole numbers do not have.
        narrow = np.where(self.model.is_discrete, scale, self.algorithm.start_scale(scale))
        scale = Cells.of(self.model).start_scale(loc, narrow, scale)
        return self.family.start(loc, np.minimum(scale, _INSIDE * self.model.distance_to_edge(loc)))

    @property
    def _rules(self) -> tuple[Rule, ...]:
        return (*self.algorithm.stop_at(self._state), self.budget)

    def _stop(self) -> Stop | None:
        return next((stop for stop in (rule(self._history) for rule in self._rules) if stop), None)

    def _called_back(self) -> Stop | None:
        if self.callback is None:
            return None
        q = to_numpy(self._state.q)
        mean, cov = self.family.mean(q), self.family.cov(q)
        past = self._history
        if self.callback(Iterate(past.n_evals[-1], past.elbo[-1], past.gap[-1], mean, cov)):
            return Stop.of(StopKind.CALLBACK)
        return None

    def _seconds(self) -> float:
        return time.perf_counter() - self._start

    def _finish(self, kept: Kept, stop: Stop) -> Conversation:
        """Estimate the bound from fresh draws: the best of many noisy estimates is too high."""
        outcome = self._outcome()
        if outcome is not None:
            return self._checked(outcome, stop)
        self._remark_left_out(kept.q)
        look = self._look
        if look is None or look.q is not kept.q:
            n = 0 if self._is_cut else int(min(self.algorithm.fresh_draws(self.black_box.n_evals), self._left()))
            look = (yield from self._look_at(kept.q, n)) if n >= 2 else None
        if look is None:  # the budget is spent: use the draws of the steps
            share = len(self.black_box.failures) / max(self.black_box.n_evals, 1)
            self._remark_failures(share, "all draws")
            return self._freeze(kept, self.verdict.on_failures(stop, share, "all draws"))
        self._remark_failures(look.failed, "fresh draws from the result")
        with _explained("the values at fresh draws"):
            return self._freeze(Kept(kept.q, look.h), stop, look)

    def _remark_left_out(self, q: Array) -> None:
        with one_blas_thread(), np.errstate(all="ignore"):
            for note in self.algorithm.notes_on_family(self.model, self.family, self._state, q):
                self.remark(note)

    def _remark_failures(self, share: float, draws: str) -> None:
        if share:
            self.remark(f"the function failed at {share:.2g} of {draws}, which were left out or filled in")

    def _look_at(self, q: Array, n: int) -> Generator[Request, Evaluated, Look | None]:
        """Evaluate up to n fresh draws from ``q``, in parts.

        With mini-batches, each part has its own batch and is a group of its own. If the time is
        over before all are evaluated, the look has those that are; None if they are too few.
        """
        sizes, is_kept = self._parts(n)
        drawn: list[tuple[Array, Values]] = []
        h: list[Floats] = []
        before = self._counts(), self.number, self._engine.fresh.bit_generator.state
        made, is_cut = 0, False
        for part, size in enumerate(sizes):
            self._check = self.black_box.n_evals - made, made + size
            theta = self._engine.fresh_draws(q, size, self._looks * _MOST_PARTS + part)
            theta, values = yield from self._values(theta, self._engine.fresh, "fresh")
            made, is_cut = made + len(theta), len(theta) < size
            drawn += [(theta, values)] if is_kept else []
            if not is_cut or (len(theta) and not self._is_partial):
                h.append(_where_ok(self._engine.residual(q, theta, values.log_joint), values))
            if is_cut:
                self._cut_look(made, sum(sizes), before)
            if is_cut or (is_kept and len(h[0]) == size and self.verdict.is_decided(h[0])):
                break
        self._check = None
        if not h or made < 2:
            return None
        share = self._since(before[0]).failures / made
        fewest = min(map(len, h))
        groups = np.stack([part[:fewest] for part in h]) if self._is_partial else np.concatenate(h)[None]
        if not is_kept:
            return Look(self.family, q, groups, share)
        theta, values = _joined(drawn)
        noise = yield from self._noise_at(q, theta, values)
        return Look(self.family, q, groups, share, None if is_cut else (theta, values), noise)

    def _parts(self, n: int) -> tuple[list[int], bool]:
        """Sizes of the parts of n fresh draws, and whether all draws can be kept together.

        Otherwise each part is as large as the memory allows, or has its own mini-batch.
        """
        fewest = min(_BATCHES, n // 2) if self._is_partial else 1
        parts = min(max(fewest, -(-n * self.family.dim // _LOOK_NUMBERS)), n, _MOST_PARTS)
        if parts > 1:
            return parts * [n // parts], False
        first = self.algorithm.first_draws(n) if self.backend.is_host else n
        return ([first, n - first] if first < n else [n]), True

    def _noise_at(self, q: Array, theta: Array, values: Values) -> Generator[Request, Evaluated, Noise]:
        """The function's noise at fresh draws; a noisy one is called again at some of them."""
        returned, ok = to_numpy(values.noise_sd) ** 2, is_ok(values)
        if np.any(returned > 0):
            return Noise(returned[ok])
        m, again = int(min(self.algorithm.repeated_draws(self._state, len(theta)), self._left())), None
        if m:
            repeated, second = yield from self._values(theta[:m], self._engine.fresh, "fresh")
            if len(repeated) == m:  # otherwise the time was over
                again = Twice(theta[:m], *(_log_joint(part)[:m] for part in (values, second)))
        noise = self.algorithm.noise_at(self.family, self._state, q, theta, again)
        return noise._replace(variance=noise.variance[ok]) if noise.variance.size else noise

    def _cut_look(self, made: int, wanted: int, before: tuple[_Counts, int, Any]) -> None:
        """Go back to before fresh draws for which there was no time, for a resumed run."""
        self.remark(f"`max_time` ended the fresh draws from the result: {made} of {wanted} were evaluated")
        counts, self.number, self._engine.fresh.bit_generator.state = before
        self._again = self._since(counts)
        self._turned(is_last=True)

    def _counts(self) -> _Counts:
        recorded = 0 if self._evaluations is None else self._evaluations.n_own
        return _Counts(self.black_box.n_evals, len(self.black_box.failures), recorded)

    def _since(self, counts: _Counts) -> _Counts:
        return self._counts().less(counts)

    def _set_deadline(self) -> None:
        """Limit the calls to the time of the budget, of which a resumed run has spent a part."""
        if self.budget.max_time is not None:
            own = time.monotonic() + self.budget.max_time - self._seconds()
            self.black_box.deadline = min(own, self.black_box.deadline or own)
            # The time before the run began counts too: a resumed run must not have it once more.
            self._start -= own - self.black_box.deadline

    def _ended(self, stop: Stop, q: Array) -> Stop:
        """Take a convergence back for reasons that no draws from q show."""
        n = 0 if self._evaluations is None else self._evaluations.n_constant
        return stop.but(StopKind.CONSTANT, n=n) if stop.converged and n else self._on_wrapping(stop, q)

    def _on_points(self, stop: Stop, look: Look) -> Stop:
        """Take a convergence back if a point of an earlier iteration contradicts it."""
        if self._evaluations is None or not stop.converged:
            return stop
        points = self._evaluations.recorded()
        log_joint = points.value + to_numpy(self.model.log_prior(points.theta))
        implied = self.algorithm.noise_at(self.family, self._state, look.q, points.theta).variance
        noise = np.maximum(points.noise_sd**2, implied if implied.size else 0.0)
        around = partial(self.algorithm.log_density_around, self.family, self._state)
        return self.verdict.on_points(stop, look, Past(points.theta, log_joint, noise, around))

    def _on_wrapping(self, stop: Stop, q: Array) -> Stop:
        """Take a convergence back if q is too wide for a periodic parameter."""
        periods = self.model.periods
        if not stop.converged or not np.isfinite(periods).any():
            return stop
        is_wide = to_numpy(self.family.sd(q)) > _NARROW * periods
        names = [repr(p.name) for p in self.model.parameters if is_wide[p.columns].any()]
        return stop.but(StopKind.WRAPPED, names=", ".join(names)) if names else stop

    def _left(self) -> float:
        """Evaluations that the budget still allows."""
        if not self.backend.is_host and is_over(self.black_box.deadline):  # on the host, the box sees to it
            return 0
        return math.inf if self.budget.max_evals is None else self.budget.max_evals - self.black_box.n_evals

    @property
    def _is_partial(self) -> bool:
        return self.batches is not None and self.batches.is_partial

    def _outcome(self) -> Outcome | None:
        """The posterior of a method that has checked it itself."""
        return None if self._state is None else self.algorithm.outcome(self.family, self._state)

    def _record_notes(self) -> tuple[str, ...]:
        """What the user should know about earlier evaluations, and about those of this fit."""
        notes = []
        n = 0 if self.earlier is None else len(self.earlier.values)
        n = n or (0 if self._evaluations is None else self._evaluations.n_given)
        if n and self.algorithm.uses_earlier:
            notes.append(f"{n:,} earlier evaluations were given, and are not counted")
        elif n:
            name = type(self.algorithm).__name__
            notes.append(f"{n:,} earlier evaluations were given; {name} uses them for its start, not for its steps")
        if self._evaluations is not None and self._evaluations.n_dropped:
            notes.append(
                f"fit.evaluations leaves out the oldest {self._evaluations.n_dropped:,} points, to save memory"
            )
        if self._evaluations is not None and (numbers := self._evaluations.recurring):
            named = " and ".join(f"{number:.6g}" for number in numbers)
            notes.append(f"the function returned {named} at several points: this stands for a likelihood of zero")
        return tuple(notes)

    @np.errstate(all="ignore")  # values may be too large to square: their standard error is infinite
    def _freeze(self, kept: Kept, stop: Stop, look: Look | None = None) -> Fit:
        outcome = self._outcome()
        if outcome is not None:
            return self._checked(outcome, stop)
        if stop.kind is StopKind.MISSING:  # a method that checks itself, but has not: in its family
            stop = Stop.of(StopKind.GAP, tol=self.algorithm.stop_at(self._state)[0].tol)
        h = np.atleast_2d(kept.h)
        is_one_batch = len(h) == 1
        # Draws of one mini-batch share its error: the standard error is that of the batch means.
        means = h[0] if is_one_batch else h.mean(axis=1)
        judged = Judged.by(h[0], self._noise(kept, look)) if is_one_batch else Judged.unknown(h)
        if look is not None:
            look = look if self.algorithm.asks else look.without_draws()
            stop = self.verdict.judge(stop, look, self._history.gap[-1], self._history.elbo_smooth[-1])
            stop = self._on_points(stop, look)
        stop = self.verdict.on_ratios(stop, judged.ratios, judged.khat, judged.proven)
        stop = self._ended(stop, kept.q)
        report = self._report(stop, judged.notes)
        figures = replace(
            report,
            elbo=float(h.mean()),
            elbo_se=float(means.std(ddof=1) / np.sqrt(means.size)),
            khat=judged.khat,
            khat_draws=int(h[0].size),
            **judged.figures._asdict(),
        )
        return Fit(self.model, self.family, to_numpy(kept.q), self._with_exact_bound(figures, h[0]))

    def _with_exact_bound(self, report: Report, h: Floats) -> Report:
        """Replace the estimate of the bound where the method knows it.

        The draws then have to estimate the missing nats only, and the evidence is their sum.
        """
        bound = None if self._state is None else self.algorithm.exact_bound(self._state)
        if bound is None:
            return report
        is_slight = judge_khat(report.khat, report.khat_draws, report.missing) is Khat.NEGLIGIBLE
        error = missing_error(h) if is_slight or math.isfinite(report.evidence_se) else report.evidence_se
        evidence = bound + report.missing
        return replace(report, elbo=bound, elbo_se=0.0, evidence=evidence, evidence_se=error, missing_se=error)

    def _noise(self, kept: Kept, look: Look | None) -> Noise:
        """The noise of the residuals that the figures are from."""
        if look is not None or self._state is None:
            return NO_NOISE if look is None else look.noise
        # The budget is spent, so these are residuals of draws from the last q.
        centre = np.asarray(to_numpy(self.family.mean(kept.q)))
        noise = self.algorithm.noise_at(self.family, self._state, kept.q, centre[None])
        return Noise(np.full(np.size(kept.h), noise.mean), noise.error) if noise.variance.size else noise

    def _checked(self, outcome: Outcome, stop: Stop) -> Fit:
        """The fit of a method that has checked its posterior itself."""
        self._remark_failures(outcome.failed, "draws that checked the result")
        stop = self.verdict.on_failures(stop, outcome.failed, "draws that checked the result")
        report = replace(
            self._report(self._ended(stop, self._state.q)),
            elbo=outcome.elbo,
            elbo_se=outcome.elbo_se,
            khat_draws=outcome.n_draws,
            evidence=outcome.evidence,
            evidence_se=outcome.evidence_se,
            missing=outcome.missing,
            missing_se=outcome.missing_se,
            starts=self._starts(outcome, stop),
        )
        return Fit(self.model, outcome.density, to_numpy(outcome.q), report)

    def _starts(self, outcome: Outcome, stop: Stop) -> tuple[Start, ...]:
        """The modes that the method's search found, if there are several, on the users' scale."""
        if len(outcome.modes) < 2:
            return ()
        means = self.model.flatten(self.model.constrain(np.stack([mode.mean for mode in outcome.modes])))
        order = np.argsort([-mode.bound for mode in outcome.modes], kind="stable").tolist()
        return tuple(
            Start(order.index(i), mode.bound, mode.weight, mode.n_evals, stop.converged, to_numpy(means)[i])
            for i, mode in enumerate(outcome.modes)
        )

    def _report(self, stop: Stop, notes: tuple[str, ...] = ()) -> Report:
        """How the fit went, without the figures of its posterior."""
        said = () if self._state is None else self.algorithm.notes(self._state)
        function = self._seconds_of_function
        own = self._seconds() - function
        advice = () if self._state is None else self.algorithm.advice(self.family, self._state, own, function)
        return Report(
            converged=stop.converged,
            stop_reason=stop.reason,
            stop_kind=stop.kind,
            n_evals=self.black_box.n_evals,
            n_iterations=len(self._history),
            failures=tuple(self.black_box.failures),
            trace=Trace(**{name: np.asarray(values) for name, values in self._history.recorded().items()}),
            seconds=self._seconds(),
            seed=self.seed,
            method=repr(self.algorithm),
            notes=(*said, *self._record_notes(), *self._remarks, *notes, *advice),
            backend=self.where or str(self.backend),
            evaluations=None if self._evaluations is None else self._evaluations.table(self.model),
        )


_NO_VALUES = Values(*(np.empty(0) for _ in range(4)))  # for methods that ask for none


def _joined(drawn: list[tuple[Array, Values]]) -> tuple[Array, Values]:
    """All draws of some parts, and their values."""
    if len(drawn) == 1:
        return drawn[0]
    theta, parts = zip(*drawn, strict=True)
    values = (None if field[0] is None else np.concatenate(field) for field in zip(*parts, strict=True))
    return np.concatenate(theta), Values(*values)


def _log_joint(values: Values) -> Floats:
    """Log joints, NaN where the function failed."""
    return np.where(to_numpy(values.ok), to_numpy(values.log_joint), np.nan)


def _where_ok(h: Floats, values: Values) -> Floats:
    """Residuals at the draws at which the function did not fail; all if there are hardly any."""
    ok = is_ok(values)
    return h[ok] if np.sum(ok) > 1 else h


_EXTREME = (
    "its values or their noise are too large or too small, or infinite; return a log-likelihood of moderate size, "
    "or None, NaN or -inf where there is none"
)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn the errors of arithmetic into ours."""
    try:
        yield
    except (ArithmeticError, ValueError) as error:  # LinAlgError is a ValueError
        if type(error) is ValueError and "infs or NaNs" not in str(error):
            raise  # what a user's own function or rule raises is for the user
        msg = f"nothing can be computed from {what} ({type(error).__name__}: {error}); {_EXTREME}"
        raise EvaluationError(msg) from error


def _listed(drawn: tuple[Any, float]) -> tuple[tuple[Any, ...], float]:
    rows, scale = drawn
    return (rows,), scale


def _check_domain(iteration: Iteration) -> None:
    if not iteration.info.is_inside:
        msg = (
            "the plain step left the domain: the new covariance would not be positive definite; take "
            'step="bounded-rate", "exponential" or "retraction", a smaller learning_rate, or more draws'
        )
        raise DomainError(msg)
