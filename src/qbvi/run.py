"""One fit from start to end: the only loop, as a generator that asks for values and is sent them."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.algorithm import Algorithm, Values
from qbvi.arrays import Array, to_numpy
from qbvi.backends import HOST, Backend
from qbvi.core import LARGEST_TRACED, Core, Fresh, Inputs, Made, Told
from qbvi.diagnostics import left_open, objection_to, pareto_khat, still_to_gain
from qbvi.evaluate import Batches, BlackBox, DeviceBatches, DeviceBox, EvaluationError, Evaluations, Failure
from qbvi.families import Family
from qbvi.model import Model
from qbvi.points import count, items
from qbvi.progress import Progress
from qbvi.random import Independent, Streams, seed_words
from qbvi.results import Fit, Report, Trace
from qbvi.stopping import Budget, History, ParameterChange, Stop
from qbvi.threads import one_blas_thread

__all__ = ["Conversation", "DomainError", "Iterate", "Request", "Run", "Snapshot", "Unconstrained", "drive"]

Floats = NDArray[np.float64]

_DARKEST = 10  # steps in a row without one finite value after which to give up
_MOST_FAILED = 0.02  # share of failed draws up to which a fit that left them out is called converged
_SUSPICION = (0.02, 0.01)  # nats, and chance of a false alarm, at which fresh draws are worth another turn of the loop
_PROOF = (0.05, 1e-4)  # the same, at which a fit is not called converged
_OPEN = 0.25  # nats that fresh draws may leave open of what a step would gain: half of what no fit may be off and say converged
_UNEVEN = 6.0  # times what they would leave open if none outweighed the others; a residual that is all quadratic comes to three
_MOST_LOOKS = 5
_LOOK_NUMBERS, _MOST_PARTS = 2**25, 2**12  # fresh draws times dimensions that are made at once, and how often
_LONGEST = 64  # steps of a compiled chunk
_CHUNK_BYTES = 2**26  # of all that a chunk keeps of its steps
_CHUNK_SECONDS = 0.5  # that a chunk may take: in between are progress, Ctrl-C and the clock
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
        return count(self.points)

    @cached_property
    def digest(self) -> bytes:
        """A name for these points: the same only where all are equal to the last bit."""
        digest = hashlib.blake2b(digest_size=16)
        for name, array in items(self.points):
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
    h: Floats  # (groups, n) residuals: one group or, with mini-batches, one for each of several
    failed: float  # share of the draws at which the function failed
    draws: tuple[Array, Values] | None  # the draws (n, d) and their values, where they were made at once


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
    """One step as the loop sees it, on the host but for the q that was left."""

    left: Callable[[], Array]  # taken out of its chunk only if it is wanted
    h: Floats  # (n,)
    bound: float
    gap: float
    grad_norm: float
    step: float
    is_inside: bool
    mean: Floats
    sd: Floats
    seconds: float  # since the start of the run

    @classmethod
    def of(cls, left: Callable[[], Array], told: Told, seconds: float) -> _Turn:
        """A step by what was told of it, already on the host."""
        bound, gap, grad_norm, step, inside = (float(x) for x in told.numbers)
        h, mean, sd = (to_numpy(x) for x in (told.h, told.mean, told.sd))
        return cls(left, h, bound, gap, grad_norm, step, inside > 0, mean, sd, seconds)


@dataclass
class Run:
    """Model, family, black box and method, put together.

    `requests` is the loop: it yields each `Request`, is sent the function's `Evaluations` there, and returns the `Fit`. `drive` answers from
    the black box. On a backend that compiles, steps are made in chunks for which nothing is asked; what is booked of them is the same.

    Parameters
    ----------
    on_turn
        Called before the first step and after each one, or each chunk of them, with whether it was the last: where a checkpoint takes its
        `snapshot`.
    backend
        Whose arrays the loop computes with; with another one than NumPy, ``black_box`` is a `DeviceBox` and ``batches`` are `DeviceBatches`.
    where
        What the report says of it.
    """

    model: Model
    family: Family
    black_box: BlackBox
    batches: Batches | DeviceBatches | None
    algorithm: Algorithm
    budget: Budget
    seed: int
    callback: Callable[[Iterate], bool | None] | None = None
    on_turn: Callable[[bool], None] | None = None
    backend: Backend = HOST
    where: str = ""

    def __post_init__(self) -> None:
        if self.family.dim > LARGEST_TRACED and any(isinstance(rule, ParameterChange) for rule in self.algorithm.stop):
            msg = f"`stop` can hold ParameterChange up to {LARGEST_TRACED:,} dimensions, beyond which no means are kept, got {self.family.dim:,}; take Patience"
            raise ValueError(msg)
        # Streams of their own, so that how many numbers one part draws changes nothing for the others.
        streams = np.random.SeedSequence(self.seed).spawn(3)
        self._draws, self._rows, self._fresh = (np.random.default_rng(stream) for stream in streams)
        self._core = Core(self.model, self.family, self.algorithm, self.backend)
        self._keys = tuple(self.backend.put(seed_words(streams[i])) for i in (0, 2))
        self._streams = Streams(self._keys[0], getattr(self.backend.namespace, self.backend.dtype))
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
        history = {name: np.asarray(values) for name, values in self._history.recorded().items()}
        generators = tuple(dict(rng.bit_generator.state) for rng in (self._draws, self._rows, self._fresh))
        return Snapshot(
            number=self.number,
            state=self.backend.fetch(self._state),
            generators=generators,
            history=history,
            kept=self.backend.fetch(self._kept),
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
        for name in self._history.recorded():
            values = snapshot.history[name]
            setattr(self._history, name, values.tolist() if values.ndim == 1 else list(values))
        self.number, self._dark = snapshot.number, snapshot.dark
        self._state = self.backend.put(snapshot.state)
        self._kept = None if snapshot.kept is None else Kept(self.backend.put(snapshot.kept.q), snapshot.kept.h)
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
            with self.backend.active():
                self._state = self.algorithm.init(self.family, self.backend.asarray(self._first(init)))
        stop = self._stop() if len(self._history) else None  # a finished run that was restored ends at once
        chunks = self._chunks() if stop is None else None
        while True:
            while not stop:
                self._turned(is_last=False)
                stop = (yield from self._step(progress)) if chunks is None else chunks.advance(self, progress)
            self._turned(is_last=True)
            if not (stop.converged and (yield from self._is_contradicted())):
                return self._state.q, stop
            assert self._look is not None
            assert self._look.draws is not None
            stop = self._take(*self._look.draws, progress)

    def _step(self, progress: Progress) -> Generator[Request, Evaluations, Stop | None]:
        """Ask for the points of one step, and take it; say whether it was the last."""
        before = self._draws.bit_generator.state
        theta = self._ask()
        stop = self._unaffordable(len(theta))
        if stop:
            self._draws.bit_generator.state = before  # with a larger budget the run goes on as if it had not ended
            return stop
        return self._take(theta, (yield from self._values(theta, self._rows)), progress)

    def _ask(self) -> Array:
        t = len(self._history)
        if not getattr(self.algorithm, "is_array_api", False) or getattr(self.algorithm, "draws_on_host", False):
            with self.backend.active():
                return self.algorithm.ask(self.family, self._state, self._draws)
        if not self.backend.is_compiled:
            with self.backend.active():
                return self.algorithm.ask(self.family, self._state, self._streams.at(t))
        return self._do(self._core, "ask", self._state, self._keys[0], self.backend.put(np.asarray(t, dtype=np.int32)))

    def _do(self, owner: Any, name: str, *arguments: Any) -> Any:
        """Call a pure method, compiled where the backend can."""
        with self.backend.active():
            return self.backend.compiled(owner, name)(*arguments)

    def _take(self, theta: Array, values: Values, progress: Progress) -> Stop | None:
        """Make one step, and say whether it was the last."""
        turn = self._tell(theta, values)
        self._book(turn, progress)
        return self._settle(turn)

    def _book(self, turn: _Turn, progress: Progress) -> None:
        """Write down what happened in a step."""
        self._record(turn)
        self._keep(turn)
        progress.update(self._history)

    def _settle(self, turn: _Turn) -> Stop | None:
        """Hear callback and rules after a step."""
        asked = self._called_back()
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

    def _chunks(self) -> _Chunks | None:
        """Compiled steps, where the backend, the method and what is to happen to failures allow for them."""
        box, policy = self.black_box, self.black_box.on_failure
        on_host = getattr(self.algorithm, "draws_on_host", False)
        if not self.backend.is_compiled or on_host or not isinstance(box, DeviceBox) or not isinstance(policy, str):
            return None
        return _Chunks.of(self, box)

    def _turned(self, is_last: bool) -> None:
        if self.on_turn is not None:
            self.on_turn(is_last)

    def _tell(self, theta: Array, values: Values) -> _Turn:
        with one_blas_thread(), np.errstate(all="ignore"):  # a step that overflows is refused in `tell`
            self._state, told = self._do(self._core, "tell", self._core.eta, self._state, theta, values)
        return _Turn.of(lambda: told.left, self.backend.fetch(told._replace(left=None)), self._seconds())

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
        if turn.h.size > 1 and (self.algorithm.keep == "last" or self._history.best == len(self._history) - 1):
            self._kept = Kept(turn.left(), turn.h)

    def _chosen(self, reached: Array) -> Kept:
        """The q to return at a proper end."""
        if self._kept is None or self.algorithm.keep == "last":
            return Kept(reached, np.full(2, np.nan) if self._kept is None else self._kept.h)
        return self._kept

    def _values(self, theta: Array, rows: np.random.Generator) -> Generator[Request, Evaluations, Values]:
        batch, scale = ((), 1.0) if self.batches is None else _listed(self.batches.draw(rows))
        request = Request(self.number, self._do(self._core, "points", theta), batch, scale)
        evaluations = yield request
        self.number += 1
        self._count_dark_steps(bool(to_numpy(evaluations.ok).any()))
        values: Values = self._do(self._core, "values", theta, *evaluations)
        return values

    def _count_dark_steps(self, is_some: bool) -> None:
        """Give up after too many steps in a row without one finite value."""
        self._dark = 0 if is_some else self._dark + 1
        if self._dark >= _DARKEST:
            last = self.black_box.failures[-1]
            msg = (
                f"none of the points of the last {_DARKEST} steps gave a finite log-likelihood; the last: {last!r}; "
                "start where it is finite with `init`, or give the parameters a support that keeps them there"
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
            elbo=turn.bound,
            n_evals=self.black_box.n_evals,
            step=turn.step,
            grad_norm=turn.grad_norm,
            seconds=turn.seconds,
            mean=turn.mean,
            sd=turn.sd,
            gap=turn.gap,
        )

    def _stop(self) -> Stop | None:
        rules = (*self.algorithm.stop, self.budget)
        return next((stop for stop in (rule(self._history) for rule in rules) if stop), None)

    def _called_back(self) -> Stop | None:
        if self.callback is None:
            return None
        q = to_numpy(self._state.q)
        mean, cov = self.family.mean(q), self.family.cov(q)
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
        """Fresh draws from ``q``: one group with all data or, with mini-batches, some groups with a batch each; no more at a time than fit into memory."""
        fewest = min(10, n // 2) if self._is_partial else 1
        parts = min(max(fewest, -(-n * self.family.dim // _LOOK_NUMBERS)), n, _MOST_PARTS)
        failed, size, h = len(self.black_box.failures), n // parts, []
        for part in range(parts):
            theta = self._fresh_draws(q, size, part)
            values = yield from self._values(theta, self._fresh)
            h.append(to_numpy(self._do(self._core, "residual", q, theta, values.log_joint)))
        share = (len(self.black_box.failures) - failed) / (parts * size)
        groups = np.stack(h) if self._is_partial else np.concatenate(h)[None]
        return _Look(q, groups, share, (theta, values) if parts == 1 else None)

    def _fresh_draws(self, q: Array, n: int, part: int) -> Array:
        if not getattr(self.algorithm, "is_array_api", False):
            return self.family.transport(q, Independent().normal(self._fresh, n, self.family.dim))
        t = self.backend.put(np.asarray(self._looks * _MOST_PARTS + part, dtype=np.int32))
        return self._do(Fresh(self._core, n), "draw", q, self._keys[1], t)

    def _gain(self, look: _Look, worth: float, chance: float) -> float:
        """Nats that the fresh draws prove to be missing, beyond what was predicted; asked only where they are enough to tell."""
        if not self._is_enough(look):
            return 0.0
        return still_to_gain(self._features(look), look.h[0], np.fmax(worth, 2 * self._history.gap[-1]), chance)

    def _open(self, look: _Look) -> float:
        """Nats that the fresh draws leave open; zero where that is little, or where they are not enough to tell."""
        missing = left_open(self._features(look), look.h[0]) if self._is_enough(look) else 0.0
        even = 0.5 * self.family.size * float(look.h[0].var()) / look.h.size  # were all draws to weigh the same
        return missing if missing > max(_OPEN, _UNEVEN * even) else 0.0

    def _is_enough(self, look: _Look) -> bool:
        return look.draws is not None and look.h.size >= 4 * (1 + self.family.size)

    def _features(self, look: _Look) -> Floats:
        assert look.draws is not None
        return self.family.features(to_numpy(look.q), to_numpy(look.draws[0]))  # type: ignore[no-any-return]

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
            backend=self.where or str(self.backend),
        )
        return Fit(self.model, self.family, to_numpy(kept.q), report)


class _Chunks:
    """Many steps in one compiled program: how many, and what is booked of them."""

    def __init__(self, core: Core, box: DeviceBox, batches: DeviceBatches | None, n: int) -> None:
        self._core, self._box, self._batches, self._n = core, box, batches, n
        self._most = 1  # steps of the next chunk, as far as the clock allows

    @classmethod
    def of(cls, run: Run, box: DeviceBox) -> _Chunks:
        """Choose how many points go into a call, and how many steps into a chunk."""
        backend, core, zero = run.backend, run._core, np.asarray(0, dtype=np.int32)
        batches = run.batches if isinstance(run.batches, DeviceBatches) else None
        with backend.active():
            theta = backend.shaped(core.ask, run._state, run._keys[0], backend.put(zero))
            points = backend.shaped(core.points, theta)
            box.plan(points, () if batches is None else (batches.example,))
        each = (run.family.length + 2 * theta.shape[0]) * np.dtype(backend.dtype).itemsize
        alone = run.callback is not None or not all(hasattr(rule, "soonest") for rule in run.algorithm.stop)
        length = 1 if alone else max(1, min(_LONGEST, _CHUNK_BYTES // each))
        assert isinstance(box.on_failure, str)
        parts = run.model, run.family, run.algorithm, backend
        pause = max((getattr(rule, "pause_below", -math.inf) for rule in run.algorithm.stop), default=-math.inf)
        if batches is not None and batches.is_partial and pause > -math.inf:
            length = 1  # rows are drawn ahead: a chunk that ended early would have drawn too many
        return cls(Core(*parts, box.likelihood, box.on_failure, length, pause), box, batches, int(theta.shape[0]))

    def advance(self, run: Run, progress: Progress) -> Stop | None:
        """Make a chunk of steps, and say whether its last step was the last of all."""
        stop = run._unaffordable(self._n)
        if stop:
            return stop
        with run.backend.active():
            turn = self._taken(run, self._steps(run), progress)
        return run._settle(turn)

    def _taken(self, run: Run, steps: int, progress: Progress) -> _Turn:
        """Make the steps and book them; return the last."""
        before, t, start = run._state, len(run._history), run._seconds()
        inputs = self._inputs(run, steps, t)
        reached, made, end = self._made(run, before, steps, inputs)
        told, end = run.backend.fetch((made._replace(told=made.told._replace(left=None)), end))
        steps = int(end)
        pace = (run._seconds() - start) / steps
        self._most = min(2 * self._most, self._core.length, max(1, int(_CHUNK_SECONDS / pace)))
        replay = _Replay(run, self, before, inputs)
        for i in range(steps):
            self._box.count_evaluations(told.raw[i])
            replay.name(i, told.raw[i])
            run._count_dark_steps(bool(np.isfinite(told.raw[i]).any()))
            turn = _Turn.of(partial(_row, made.told.left, i), _at(told.told, i), start + (i + 1) * pace)
            if i == steps - 1:
                run._state = reached
            run._book(turn, progress)
            if i < steps - 1:
                _check_domain(turn)
        return turn

    def _steps(self, run: Run) -> int:
        """As many as no rule can speak before, and as the clock allows."""
        rules = (*run.algorithm.stop, run.budget)
        soonest = min(getattr(rule, "soonest", _at_once)(run._history) for rule in rules)
        return max(1, min(self._most, soonest))

    def _inputs(self, run: Run, steps: int, t: int) -> Inputs:
        rows = None
        if self._batches is not None and self._batches.is_partial:
            drawn = [self._batches.rows(run._rows) for _ in range(steps)]
            rows = np.stack(drawn + drawn[-1:] * (self._core.length - steps))
        scale = np.asarray(1.0 if self._batches is None else self._batches.scale)
        there = run.backend.put((np.asarray(t, dtype=np.int32), rows, scale))
        data = None if self._batches is None else self._batches.data
        return Inputs(run._keys[0], there[0], run._core.eta, data, there[1], there[2])

    def _made(self, run: Run, state: Any, steps: int, inputs: Inputs) -> tuple[Any, Made, Any]:
        number = run.backend.put(np.asarray(steps, dtype=np.int32))
        with run.backend.explained():
            made: tuple[Any, Made, Any] = run._do(self._core, "advance", state, number, inputs)
        return made


class _Replay:
    """Names the points of failed evaluations of a chunk, by making its steps again up to the one that asked for them."""

    def __init__(self, run: Run, chunks: _Chunks, state: Any, inputs: Inputs) -> None:
        self._run, self._chunks, self._inputs = run, chunks, inputs
        self._state, self._made = state, 0

    def name(self, i: int, raw: NDArray[Any]) -> None:
        """Keep the failures of step ``i``, or raise the first, as the policy says."""
        ok = np.isfinite(raw)
        if ok.all():
            return
        run, box = self._run, self._chunks._box
        self._state, _, _ = self._chunks._made(run, self._state, i - self._made, self._from(self._made))
        self._made = i
        theta = run._do(run._core, "ask", self._state, self._inputs.key, self._from(i).t)
        box.record(box.failures_at(run._do(run._core, "points", theta), raw), ok)

    def _from(self, i: int) -> Inputs:
        """The inputs as step ``i`` of the chunk sees them."""
        rows = self._inputs.rows
        later = None if rows is None else self._run.backend.namespace.roll(rows, -i, axis=0)
        return self._inputs._replace(t=self._inputs.t + i, rows=later)


def _at(told: Told, i: int) -> Told:
    return Told(None, *(part[i] for part in told[1:]))


def _row(stacked: Array, i: int) -> Array:
    return stacked[i, ...]


def _at_once(_: History) -> int:
    return 1


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
    if not turn.is_inside:
        msg = (
            "the plain step left the domain: the new covariance would not be positive definite; take "
            'step="bounded-rate", "exponential" or "retraction", a smaller learning_rate, or more draws'
        )
        raise DomainError(msg)


def _trace(history: History) -> Trace:
    return Trace(**{name: np.asarray(values) for name, values in history.recorded().items()})
