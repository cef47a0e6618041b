"""One call of the user's function, in this process or in a worker, and its outcome."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import text_of
from qbvi.evaluate.failures import Failure, failure_of_value, full_name
from qbvi.points import Points, copied, count, row, rows

__all__ = ["Calls", "Outcome", "ShapeError", "blocks_of", "number_of", "outcome_of_exception", "working_as"]

Floats = NDArray[np.float64]


class Outcome(NamedTuple):
    """What the function gave at one point, before any scaling."""

    value: float  # as the function returned it; NaN where it returned nothing
    # Standard deviation of the value's noise, where the function returns it; else zero.
    noise_sd: float
    failure: Failure | None  # why the value cannot be used


class ShapeError(ValueError):
    """The function returned something that is not one number per point."""


@dataclass(frozen=True)
class Calls:
    """The user's function as a map from a block of stacked points to outcomes.

    Workers receive this object.

    Parameters
    ----------
    function
        The user's log-likelihood.
    vectorized
        Whether the function takes a whole block at once; otherwise it is called once for each
        point.
    blame
        Whether to repeat a call for many points that raised, one point at a time. Only the points
        that fail by themselves are then lost.

    Examples
    --------
    >>> import numpy as np
    >>> Calls(lambda x: -0.5 * x @ x)(np.array([[1.0, 1.0]]))
    [Outcome(value=-1.0, noise_sd=0.0, failure=None)]
    """

    function: Callable[..., Any]
    vectorized: bool = False
    blame: bool = True

    def __call__(
        self, block: Points, batch: tuple[Any, ...] = (), let_through: tuple[type[Exception], ...] = ()
    ) -> list[Outcome]:
        """Return the outcome at each point of the block.

        Exceptions become failures, except those in ``let_through``.
        """
        if self.vectorized:
            return self._at_once(block, batch, let_through)
        return [self._alone(row(block, i), batch, let_through) for i in range(count(block))]

    def _alone(self, point: Any, batch: tuple[Any, ...], let_through: tuple[type[Exception], ...]) -> Outcome:
        start = time.perf_counter()
        try:
            # A copy, because the function may overwrite its argument.
            value, sd = _value_and_sd(self.function(copied(point), *batch))
            seconds = time.perf_counter() - start
            return _explained(_outcome(point, number_of(value), number_of(sd), seconds), value)
        except let_through:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises is a result
            return Outcome(np.nan, 0.0, _from_exception(error, point, time.perf_counter() - start))

    def _at_once(
        self, block: Points, batch: tuple[Any, ...], let_through: tuple[type[Exception], ...]
    ) -> list[Outcome]:
        n, start = count(block), time.perf_counter()
        try:
            value, sd = _value_and_sd(self.function(copied(block), *batch))
            values, sds = _one_number_each(value, n), _one_number_each(np.broadcast_to(sd, (n,)), n)
        except let_through:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            if self.blame and n > 1 and not isinstance(error, ShapeError):
                return [outcome for i in range(n) for outcome in self._at_once(rows(block, [i]), batch, let_through)]
            failure = _from_exception(error, row(block, 0), time.perf_counter() - start)
            return [Outcome(np.nan, 0.0, replace(failure, parameters=row(block, i))) for i in range(n)]
        seconds = time.perf_counter() - start
        outcomes = [Outcome(value, sd, None) for value, sd in zip(values.tolist(), sds.tolist(), strict=True)]
        # Only failures need a copy of their point.
        for i in np.flatnonzero(~(np.isfinite(values) & np.isfinite(sds) & (sds >= 0))).tolist():
            outcome = _outcome(row(block, i), outcomes[i].value, outcomes[i].noise_sd, seconds)
            outcomes[i] = _explained(outcome, value, i)
        return outcomes


def blocks_of(n: int, vectorized: bool | int) -> list[range]:
    """Divide n rows into the blocks of one call each.

    The blocks depend on ``vectorized`` alone, not on who makes the calls, so that rounding does not
    either.

    Examples
    --------
    >>> blocks_of(5, vectorized=2)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    size = int(vectorized) if vectorized is not True else n
    return [range(i, min(i + max(size, 1), n)) for i in range(0, n, max(size, 1))]


def working_as(worker: str, outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Write the worker's name into the failures."""
    return [o if o.failure is None else o._replace(failure=replace(o.failure, worker=worker)) for o in outcomes]


def number_of(value: Any, name: str = "log_likelihood") -> float:
    """Return a single real number as a float.

    The error for anything else names the function ``name``.
    """
    array = _numeric(value, name)
    if array.size != 1:
        msg = (
            f"`{name}` must return one number for each point, got an array of shape {array.shape}; "
            "sum over the observations, or pass vectorized=True if it takes many points at once"
        )
        raise ShapeError(msg)
    return float(array.reshape(()))


def _outcome(point: Any, value: float, sd: float, seconds: float) -> Outcome:
    """The outcome of a call; a value whose standard deviation makes no sense is no value."""
    failure = failure_of_value(point, value, seconds)
    if failure is None and not 0 <= sd < math.inf:
        message = f"returned the standard deviation {sd} with its value, which must be finite and at least 0"
        return Outcome(math.nan, 0.0, Failure(point, "nan", message, seconds=seconds))
    return Outcome(value, sd if failure is None else 0.0, failure)


def _explained(outcome: Outcome, value: Any, i: int = 0) -> Outcome:
    """The outcome with what its value says about itself, as sums of terms do."""
    why = getattr(value, "why", {}).get(i)
    if outcome.failure is None or why is None:
        return outcome
    return outcome._replace(failure=replace(outcome.failure, message=f"{outcome.failure.message}: {why}"))


def _value_and_sd(returned: Any) -> tuple[Any, Any]:
    """Split a pair into a value and the standard deviation of its noise, zero for a value alone."""
    if isinstance(returned, tuple) and len(returned) == 2:
        return returned
    return returned, 0.0


def _one_number_each(values: Any, n: int) -> Floats:
    array = _numeric(values, "log_likelihood")
    if array.shape != (n,):
        msg = (
            f"`log_likelihood` must return shape ({n},) for {n} points, got {array.shape}; "
            "sum over the observations only, or pass vectorized=False for a function of one point"
        )
        raise ShapeError(msg)
    return array


def _numeric(value: Any, name: str) -> Floats:
    # What a mask hides is not a value: NaN, a failure.
    array = value.astype(np.float64).filled(np.nan) if np.ma.is_masked(value) else np.asarray(value)
    if array.dtype.kind not in "fiu":
        msg = f"`{name}` must return real numbers, got {type(value).__name__} of dtype {array.dtype}"
        raise ShapeError(msg)
    return array.astype(np.float64)


def outcome_of_exception(error: Exception, point: Any, seconds: float) -> Outcome:
    """The outcome of a call that raised."""
    return Outcome(np.nan, 0.0, _from_exception(error, point, seconds))


def _from_exception(error: Exception, point: Any, seconds: float) -> Failure:
    message = f"{type(error).__name__}: {text_of(error)}"
    types = tuple(full_name(one) for one in type(error).__mro__ if issubclass(one, BaseException))
    return Failure(point, "exception", message, "".join(traceback.format_exception(error)), seconds, types=types)
