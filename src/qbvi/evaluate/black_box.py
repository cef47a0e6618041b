"""The user's function as the rest of qbvi sees it, with a count of calls and a list of failures."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import a_function, shown
from qbvi.evaluate.calls import Calls, Outcome, ShapeError, blocks_of, number_of
from qbvi.evaluate.deadlines import is_over, limited_to
from qbvi.evaluate.failures import Failure
from qbvi.evaluate.policy import (
    ZERO,
    OnFailure,
    Treatment,
    check_on_failure,
    excluded_value,
    floor_value,
    treatment_of,
    tries_of,
)
from qbvi.points import Points, count, is_named, items, row, rows

__all__ = [
    "AbandonedError",
    "BlackBox",
    "Evaluated",
    "EvaluationError",
    "Runner",
    "calls_of",
    "check_function",
    "warn_if_not_a_log",
]

Floats = NDArray[np.float64]
_NONE_KNOWN: Mapping[int, Outcome] = MappingProxyType({})
_PROGRAMMING_ERRORS = (TypeError, NameError, AttributeError)


class EvaluationError(RuntimeError):
    """The function could not be evaluated, or not used, and the fit ended.

    - It failed at a point, and `on_failure` says to raise.
    - The workers, the cluster or the time that its calls need are gone.
    - No step can be computed from its values.

    Also raised if values given as `evaluations` are not those of this log-likelihood.

    Attributes
    ----------
    failure
        Where and why it failed: a `qbvi.Failure`; None for the other reasons.
    fit
        The fit as it was before the failing step, or None where no step had been made.
    """

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.fit: Any = None


class AbandonedError(EvaluationError):
    """Time is over, and calls that cannot be ended have not ended by themselves."""

    def __init__(self, where: str, n: int, grace: float) -> None:
        calls = "one call" if n == 1 else f"{n} calls"
        msg = (
            f"`max_time` is over and {calls} in {where} did not end within another {grace:.2g} s. What cannot be "
            "ended from here was abandoned. `error.fit` holds the fit so far, if there is one. Calls in processes of "
            "qbvi's own (`executor` as a number) are ended in time"
        )
        super().__init__(msg)


class Evaluated(NamedTuple):
    """Finite values of the log-likelihood at n points, and which of them came from the function."""

    values: Any  # (n,) floats; arrays of NumPy, or of the backend that the loop computes on
    ok: Any  # (n,) truth values
    noise_sd: Any  # (n,) standard deviation of each value, where the function returns it; else zero
    zero: Any = None  # (n,) truth values: where the likelihood is zero; None if it is nowhere
    # Rows of the request that were evaluated before the time was over; None for all of them.
    rows: NDArray[np.int64] | None = None


class Runner(Protocol):
    """Makes the calls in place of this process; see `qbvi.evaluate.executors.open_runner`."""

    def run(
        self, blocks: Sequence[Points], batch: tuple[Any, ...], deadline: float | None = None
    ) -> Iterator[tuple[int, list[Outcome]]]:
        """Yield the number and the outcomes of each block as they arrive, in any order.

        No call begins after the ``deadline``, so that the last blocks may be missing. Calls that
        cannot be ended and do not end raise an `EvaluationError`.
        """
        ...


@dataclass
class BlackBox:
    """The user's log-likelihood as a function of stacked constrained values.

    Parameters
    ----------
    function
        The user's log-likelihood.
    vectorized
        Whether it takes all points of a step at once; a number for that many points a call.
    on_failure
        What to do with a failure:

        - ``"raise"`` an `EvaluationError`;
        - ``"exclude"`` the point from the step; it still counts in every denominator;
        - ``"floor"``: give the point a value below all others of its step, by their range and by
          one nat at least;
        - ``"retry"``: make the call again, up to three calls in all, and then exclude the point; a
          `Retry` has other numbers;
        - a function that takes the `Failure` and returns a number;
        - a dict of these by kind of failure or exception type. Failures that are not listed raise.
    runner
        Makes the calls; by default this process does.

    Examples
    --------
    >>> import numpy as np
    >>> box = BlackBox(lambda x: -0.5 * x @ x)
    >>> box(np.array([[1.0, 1.0], [2.0, 0.0]])).values
    array([-1., -2.])
    >>> box.n_evals
    2
    """

    function: Callable[..., Any]
    vectorized: bool | int = False
    on_failure: OnFailure = "raise"
    n_evals: int = 0
    failures: list[Failure] = field(default_factory=list)
    runner: Runner | None = None
    is_lenient: bool = False  # whether failures that would raise are excluded: for points nobody depends on
    deadline: float | None = None  # on the clock time.monotonic: no call begins after it
    # Called with the rows that were evaluated, with their values as the function returned them, and
    # with their noise.
    on_returned: Callable[[NDArray[np.int64], Floats, Floats], None] | None = None
    # Called after that with their number: which of these values (n,) stand for minus infinity.
    stand_ins: Callable[[int], NDArray[np.bool_]] | None = None
    # Called as each evaluation arrives, with how many of the points have a value by then.
    on_evaluated: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        self.calls = calls_of(self.function, self.vectorized, self.on_failure)

    def __call__(
        self,
        points: Points,
        *batch: Any,
        scale: float = 1.0,
        known: Mapping[int, Outcome] = _NONE_KNOWN,
        on_done: Callable[[int, Outcome], None] | None = None,
    ) -> Evaluated:
        """Evaluate at stacked constrained points, on a batch of data where there is one.

        Parameters
        ----------
        points
            Stacked along a first axis: an array (n, ...), or a dict of them.
        *batch
            Further arguments of the function.
        scale
            Factor by which the values are multiplied.
        known
            Outcomes by row that are known already and not computed again. They count as evaluations
            all the same.
        on_done
            Called in this process with the row and the outcome of each new evaluation as it
            arrives.

        Returns
        -------
        Evaluated
            Values at all points or, if the deadline passed, at some: ``rows`` then says at which.
            The others were not evaluated. They are no failures and do not count.
        """
        is_first = self.n_evals == 0
        outcomes = dict(known)
        for i, outcome in self._settled(points, batch, known, is_first):
            outcomes[i] = outcome
            if on_done is not None:
                on_done(i, outcome)
            if self.on_evaluated is not None:
                self.on_evaluated(len(outcomes))
        made = np.array(sorted(outcomes), dtype=np.int64)
        ordered = [outcomes[i] for i in made.tolist()]
        self.n_evals += len(ordered) + self._repeated(outcomes, count(points))
        raw, noise_sd = (np.array([outcome[k] for outcome in ordered], dtype=np.float64) for k in (0, 1))
        failures = {i: outcome.failure for i, outcome in enumerate(ordered) if outcome.failure is not None}
        if self.on_returned is not None:
            self.on_returned(made, raw, noise_sd)
        if self.stand_ins is not None:
            for i in np.flatnonzero(self.stand_ins(len(raw))).tolist():
                failures[i] = Failure(row(points, int(made[i])), ZERO, f"returned {raw[i]:.6g}, as at other points")
                raw[i] = -np.inf
        if is_first:
            warn_if_not_a_log(raw[np.isfinite(raw)])
        evaluated = Evaluated(raw * scale, np.isfinite(raw), noise_sd * scale)
        filled = self._replace_failed(evaluated, failures, scale)
        return filled if len(made) == count(points) else filled._replace(rows=made)

    @property
    def _calls(self) -> Calls:
        """The calls in this process; while the box is lenient, one bad point spoils no other."""
        return replace(self.calls, blame=True) if self.is_lenient and self.runner is None else self.calls

    def treatment(self, failure: Failure) -> Treatment:
        """What `on_failure` says about a point without a value, after all tries.

        Nothing raises while the box is lenient.
        """
        treatment = treatment_of(failure, self.on_failure)
        return "exclude" if self.is_lenient and treatment == "raise" else treatment

    def tries(self, failure: Failure) -> int:
        """How many calls `on_failure` allows at a point that fails in this way."""
        return tries_of(failure, self.on_failure)

    def _settled(
        self, points: Points, batch: tuple[Any, ...], known: Mapping[int, Outcome], is_first: bool
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield row and outcome of every point that is not known, after as many tries as allowed.

        Failed calls are made again together, after all others. Those for which there is no time
        then are not settled.
        """
        settled, turn = set(known), 1
        while len(settled) < count(points) and not is_over(self.deadline):
            for i, outcome in self._evaluated(points, batch, settled.copy(), is_first):
                if outcome.failure is None or turn >= self.tries(outcome.failure):
                    settled.add(i)
                    yield i, outcome
            turn += 1

    def _evaluated(
        self, points: Points, batch: tuple[Any, ...], known: Collection[int], is_first: bool
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield row and outcome of every point that is not known."""
        all_rows = [[i for i in block if i not in known] for block in blocks_of(count(points), self.vectorized)]
        wanted = [block for block in all_rows if block]
        blocks = [rows(points, block) for block in wanted]
        for j, outcomes in self._run(blocks, batch, is_first):
            for i, outcome in zip(wanted[j], outcomes, strict=True):
                if outcome.failure is not None:
                    _raise_if_bug(outcome.failure, is_first)
                yield i, outcome

    def _run(
        self, blocks: Sequence[Points], batch: tuple[Any, ...], is_first: bool
    ) -> Iterator[tuple[int, list[Outcome]]]:
        if self.runner is not None:
            yield from self.runner.run(blocks, batch, self.deadline)
            return
        # In this process a bug is raised as it is, so that a debugger finds its frame.
        let_through = (ShapeError, AbandonedError, *(_PROGRAMMING_ERRORS if is_first else ()))
        for j, block in enumerate(blocks):
            if is_over(self.deadline):
                return
            with limited_to(self.deadline):
                outcomes = self._calls(block, batch, let_through)
            yield j, outcomes

    def _repeated(self, outcomes: Mapping[int, Outcome], n: int) -> int:
        """How many points were evaluated again, alone, to find the one that made a call fail."""
        if not self._calls.blame:
            return 0
        blocks = [block for block in blocks_of(n, self.vectorized) if len(block) > 1]
        lost = {i for i, outcome in outcomes.items() if _was_lost(outcome.failure)}
        return sum(len(block) for block in blocks if not lost.isdisjoint(block))

    def _replace_failed(self, evaluated: Evaluated, failures: dict[int, Failure], scale: float) -> Evaluated:
        if not failures:
            return evaluated
        values, ok, noise_sd = evaluated[:3]
        self.failures.extend(failures.values())
        treatments = {i: self.treatment(failure) for i, failure in failures.items()}
        for i, treatment in treatments.items():
            if treatment == "raise":
                raise self._error(failures[i], failures, ok)
            if callable(treatment):
                values[i] = scale * _replacement(treatment, failures[i])
                ok[i] = np.isfinite(values[i])
        # There is no value to replace them by. The method goes elsewhere, and `Run` ends the fit if
        # that never helps.
        if not ok.any():
            return Evaluated(np.full(ok.shape, np.nan), ok, noise_sd, self._zeros(treatments, failures, ok))
        floored = [i for i, treatment in treatments.items() if treatment == "floor"]
        fine = values[ok], ok[ok]
        filled = np.where(ok, values, excluded_value(*fine))
        filled[floored] = floor_value(*fine)
        return Evaluated(filled, ok, noise_sd, self._zeros(treatments, failures, ok))

    @staticmethod
    def _zeros(
        treatments: dict[int, Treatment], failures: dict[int, Failure], ok: NDArray[np.bool_]
    ) -> NDArray[np.bool_] | None:
        """Excluded points whose likelihood is zero (n,); None if there are none."""
        rows = [i for i, failure in failures.items() if failure.kind == ZERO and treatments[i] == "exclude"]
        zero = np.zeros(ok.shape, dtype=bool)
        zero[rows] = True
        return zero if rows else None

    def _error(self, failure: Failure, failures: dict[int, Failure], ok: NDArray[np.bool_]) -> EvaluationError:
        everywhere = not ok.any() and all(other.kind == "exception" for other in failures.values())
        way_out = _WAYS_OUT
        if everywhere and not self.vectorized:
            way_out = f"it raised at every point of the step: does it expect what the prior gives it, {_shapes(failure.parameters)}?"
        if everywhere and self.vectorized:
            way_out = f"the call was for all {len(ok)} points of a step, any of which may be to blame; {_WAYS_OUT}"
        error = EvaluationError(f"the log-likelihood gave {failure!r}; {way_out}", failure)
        if failure.traceback:
            error.add_note(f"where it was raised:\n{failure.traceback}")
        return error


def calls_of(function: Callable[..., Any], vectorized: bool | int, on_failure: OnFailure) -> Calls:
    """The function as it is called here or in workers, after a check of all three arguments."""
    check_function(function, vectorized)
    check_on_failure(on_failure)
    return Calls(function, bool(vectorized), blame=on_failure != "raise")


_WAYS_OUT = (
    'pass on_failure="exclude" or "floor" to go on without such points, "retry" if they fail by chance, or keep the parameters where the function is finite '
    "with a support (qbvi.Positive, qbvi.Interval ...)"
)


def check_function(function: Any, vectorized: Any, name: str = "log_likelihood") -> None:
    """Refuse what cannot be called, and a ``vectorized`` that is no number of points."""
    a_function(name, function)
    is_number = isinstance(vectorized, Real) and float(vectorized).is_integer() and float(vectorized) >= 1
    if not isinstance(vectorized, bool | np.bool_) and not is_number:
        msg = f"`vectorized` must be True, False, or the number of points of one call, got {shown(vectorized)}"
        raise ValueError(msg)


def _was_lost(failure: Failure | None) -> bool:
    return failure is not None and failure.kind in ("exception", "timeout", "died")


def _shapes(point: Any) -> str:
    if is_named(point):
        return "a dict of " + ", ".join(f"{name!r} of shape {np.shape(value)}" for name, value in items(point))
    return f"an array of shape {np.shape(point)}"


def _raise_if_bug(failure: Failure | None, is_first: bool) -> None:
    """Raise a wrong shape or a misspelt name: a bug of the function, not a failure at a point."""
    bugs = (ShapeError, *(_PROGRAMMING_ERRORS if is_first else ()))
    bug = next((kind for kind in bugs if failure is not None and failure.is_a(kind)), None)
    if failure is None or bug is None:
        return
    error = bug(failure.message.partition(": ")[2])
    error.add_note(f"where it was raised, in {failure.worker}:\n{failure.traceback}")
    raise error


def _replacement(treatment: Callable[[Failure], float], failure: Failure) -> float:
    try:
        return number_of(treatment(failure), "on_failure")
    except ShapeError as error:
        msg = f"the function given as {error}, at {failure!r}; return -numpy.inf or NaN to leave the point out"
        raise TypeError(msg) from None


def warn_if_not_a_log(values: Floats) -> None:
    """Warn if the values of the first step look like densities."""
    if values.size > 1 and np.all((values > 0) & (values < 1)):
        msg = (
            f"all {values.size} values of the first step lie between 0 and 1: is `log_likelihood` a likelihood? "
            "qbvi needs its logarithm"
        )
        warnings.warn(msg, UserWarning, stacklevel=2)
