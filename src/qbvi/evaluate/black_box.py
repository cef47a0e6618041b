"""The one place where the user's function is called: counted, checked, and its failures kept."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from qbvi.evaluate.failures import Failure
from qbvi.naming import pick

__all__ = ["BlackBox", "EvaluationError", "Evaluations"]

Floats = NDArray[np.float64]
_Raw = tuple[Floats, Floats]  # values and their standard deviations, as they came
_PROGRAMMING_ERRORS = (TypeError, NameError, AttributeError)


class EvaluationError(RuntimeError):
    """The log-likelihood failed at a point and `on_failure` says to raise.

    Attributes
    ----------
    failure
        Where and why: a `qbvi.Failure`.
    fit
        The fit as it was before the failing step, or None where no step had been made.
    """

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.fit: Any = None


class Evaluations(NamedTuple):
    """Values of the log-likelihood at n points, finite everywhere, and which of them the function really gave."""

    values: Floats  # (n,)
    ok: NDArray[np.bool_]  # (n,)
    noise_sd: Floats  # (n,) standard deviation of each value, where the function returns it; else zero


@dataclass
class BlackBox:
    """The user's log-likelihood as a function of stacked constrained values.

    Parameters
    ----------
    function
        The user's log-likelihood.
    vectorized
        Whether it takes all points of a step at once.
    on_failure
        What a NaN, an infinity or an exception becomes: ``"raise"`` an `EvaluationError`; ``"exclude"`` the point from the step (it stays in
        every denominator); ``"floor"`` to a value below all others of its step by their range, a nat at least; or a function that is given the
        `Failure` and returns a number.

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
    vectorized: bool = False
    on_failure: str | Callable[[Failure], float] = "raise"
    n_evals: int = 0
    failures: list[Failure] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not callable(self.function):
            msg = f"`log_likelihood` must be a function, got {type(self.function).__name__}"
            raise TypeError(msg)
        if not (isinstance(self.on_failure, str) or callable(self.on_failure)):
            msg = f"`on_failure` must be 'raise', 'exclude', 'floor' or a function, got {self.on_failure!r}"
            raise TypeError(msg)
        pick("on_failure", self.on_failure, dict.fromkeys(("raise", "exclude", "floor")))

    def __call__(self, points: Any, *batch: Any, scale: float = 1.0) -> Evaluations:
        """Evaluate at stacked constrained ``points``, on a batch of data where there is one, times ``scale``."""
        is_first = self.n_evals == 0
        n = _count(points)
        call = self._all_at_once if self.vectorized else self._one_by_one
        (raw, noise_sd), failures = call(points, batch, is_first)
        self.n_evals += n
        ok = np.isfinite(raw)
        for i in np.flatnonzero(~ok):
            failures.setdefault(int(i), _not_a_number(raw[i], _row(points, int(i))))
        if is_first:
            _warn_if_not_a_log(raw[ok])
        return self._settle(Evaluations(raw * scale, ok, noise_sd * scale), failures)

    def _one_by_one(self, points: Any, batch: tuple[Any, ...], is_first: bool) -> tuple[_Raw, dict[int, Failure]]:
        n, failures = _count(points), {}
        raw, noise_sd = np.full(n, np.nan), np.zeros(n)
        for i in range(n):
            # A fresh copy each time: what the function does to its argument is its own affair.
            start = time.perf_counter()
            try:
                value, sd = _value_and_sd(self.function(_row(points, i), *batch))
                raw[i], noise_sd[i] = _one_number(value), _one_number(sd)
            except Exception as error:  # noqa: BLE001 - whatever the user's code raises is a result
                _raise_if_programming_error(error, is_first)
                failures[i] = _from_exception(error, _row(points, i), time.perf_counter() - start)
        return (raw, noise_sd), failures

    def _all_at_once(self, points: Any, batch: tuple[Any, ...], is_first: bool) -> tuple[_Raw, dict[int, Failure]]:
        n = _count(points)
        try:
            value, sd = _value_and_sd(self.function(_copy(points), *batch))
            return (_one_number_each(value, n), _one_number_each(np.broadcast_to(sd, (n,)), n)), {}
        except Exception as error:
            _raise_if_programming_error(error, is_first)
            if self.on_failure == "raise":
                failure = _from_exception(error, _row(points, 0), 0.0)
                msg = f"the log-likelihood raised {failure.message} for a step of {n} points; {_WAYS_OUT}"
                raise EvaluationError(msg, failure) from error
        # Some point of the step is to blame; one at a time, the others are not lost with it.
        self.n_evals += n
        stacked = BlackBox(lambda point, *rest: self.function(_stack(point), *rest))
        return stacked._one_by_one(points, batch, is_first)

    def _settle(self, evaluated: Evaluations, failures: dict[int, Failure]) -> Evaluations:
        if not failures:
            return evaluated
        values, ok, noise_sd = evaluated
        self.failures.extend(failures.values())
        first = next(iter(failures.values()))
        if self.on_failure == "raise":
            way_out = _WRONG_PRIOR.format(_shapes(first.parameters)) if _always_raises(failures, ok) else _WAYS_OUT
            error = EvaluationError(f"the log-likelihood gave {first!r}; {way_out}", first)
            if first.traceback:
                error.add_note(f"where it was raised:\n{first.traceback}")
            raise error
        if callable(self.on_failure):
            for i, failure in failures.items():
                values[i] = _one_number(self.on_failure(failure))
            ok = np.isfinite(values)
        if (
            not ok.any()
        ):  # nothing to fill in from: the method looks elsewhere, and `Run` gives up if that does not help
            return Evaluations(np.full(ok.shape, np.nan), ok, noise_sd)
        spread = max(float(np.ptp(values[ok])), 1.0)
        floored = self.on_failure == "floor"
        # An excluded point takes the others' mean: it pulls nowhere and stays in the denominator.
        filled = values[ok].min() - spread if floored else values[ok].mean()
        return Evaluations(np.where(ok, values, filled), ok | floored, noise_sd)


_WAYS_OUT = (
    'pass on_failure="exclude" or "floor" to go on without such points, or keep the parameters where the function is finite '
    "with a support (qbvi.Positive, qbvi.Interval ...)"
)


_WRONG_PRIOR = "it raised at every point of the step: does it expect what the prior gives it, {}?"


def _always_raises(failures: dict[int, Failure], ok: NDArray[np.bool_]) -> bool:
    return not ok.any() and all(failure.kind == "exception" for failure in failures.values())


def _shapes(point: Any) -> str:
    if isinstance(point, dict):
        return "a dict of " + ", ".join(f"{name!r} of shape {np.shape(value)}" for name, value in point.items())
    return f"an array of shape {np.shape(point)}"


def _raise_if_programming_error(error: Exception, is_first: bool) -> None:
    """A misspelt name is no property of a point: never hide it as a failure."""
    if isinstance(error, _ShapeError) or (is_first and isinstance(error, _PROGRAMMING_ERRORS)):
        raise error


class _ShapeError(ValueError):
    """The function returned something that is not one number per point."""


def _value_and_sd(returned: Any) -> tuple[Any, Any]:
    """A pair is a value and the standard deviation of its noise; anything else a value without noise."""
    if isinstance(returned, tuple) and len(returned) == 2:
        return returned
    return returned, 0.0


def _one_number(value: Any) -> float:
    array = _numeric(value)
    if array.size != 1:
        msg = (
            f"`log_likelihood` must return one number for each point, got an array of shape {array.shape}; "
            "sum over the observations, or pass vectorized=True if it takes many points at once"
        )
        raise _ShapeError(msg)
    return float(array.reshape(()))


def _one_number_each(values: Any, n: int) -> Floats:
    array = _numeric(values)
    if array.shape != (n,):
        msg = (
            f"`log_likelihood` must return shape ({n},) for {n} points, got {array.shape}; "
            "sum over the observations only, or pass vectorized=False for a function of one point"
        )
        raise _ShapeError(msg)
    return array


def _numeric(value: Any) -> Floats:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        msg = f"`log_likelihood` must return real numbers, got {type(value).__name__} of dtype {array.dtype}"
        raise _ShapeError(msg)
    return array.astype(np.float64)


def _warn_if_not_a_log(values: Floats) -> None:
    if values.size > 1 and np.all((values > 0) & (values < 1)):
        msg = (
            f"all {values.size} values of the first step lie between 0 and 1: is `log_likelihood` a likelihood? "
            "qbvi needs its logarithm"
        )
        warnings.warn(msg, UserWarning, stacklevel=2)


def _not_a_number(value: float, point: Any) -> Failure:
    kind = "nan" if np.isnan(value) else "+inf" if value > 0 else "-inf"
    return Failure(point, kind, f"returned {value}")


def _from_exception(error: Exception, point: Any, seconds: float) -> Failure:
    message = f"{type(error).__name__}: {error}"
    return Failure(point, "exception", message, "".join(traceback.format_exception(error)), seconds)


def _count(points: Any) -> int:
    return len(next(iter(points.values())) if isinstance(points, dict) else points)


def _row(points: Any, i: int) -> Any:
    if isinstance(points, dict):
        return {name: np.array(value[i])[()] for name, value in points.items()}
    return np.array(points[i])[()]


def _copy(points: Any) -> Any:
    if isinstance(points, dict):
        return {name: np.array(value) for name, value in points.items()}
    return np.array(points)


def _stack(point: Any) -> Any:
    if isinstance(point, dict):
        return {name: np.asarray(value)[None] for name, value in point.items()}
    return cast(Floats, np.asarray(point)[None])
