"""Any function of a point at many points: whatever it returns, wherever the calls are made."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.evaluate.black_box import EvaluationError, check_function
from qbvi.evaluate.calls import Calls, Outcome, ShapeError, blocks_of, outcome_of_exception
from qbvi.evaluate.executors import open_runner
from qbvi.evaluate.failures import Failure
from qbvi.points import Points, copied, count, is_named, mapped, row, rows, stacked

__all__ = ["Push", "pushed"]

_RNG = "rng"  # an argument of this name gets a random generator
_STREAM = 0x9D5E  # keeps these random numbers apart from all others


@dataclass(frozen=True)
class Push:
    """A function to evaluate at draws, and how to call it.

    Parameters
    ----------
    function
        A function of one point or, if ``vectorized``, of stacked points. It returns a number, an
        array, or a dict of them.
    data
        Its second arguments; none if empty.
    vectorized, executor
        As for `qbvi.fit`.
    seed
        For functions with an argument ``rng``: each call gets a generator of its own, which
        depends on the seed and on the place of its first point alone.
    name
        What errors call the function.
    """

    function: Callable[..., Any]
    data: tuple[Any, ...] = ()
    vectorized: bool | int = False
    executor: Any = None
    seed: int = 0
    name: str = "function"


def pushed(
    push: Push,
    points: Points,
    on_done: Callable[[int], None] = lambda n: None,
    is_lenient: bool = False,
) -> tuple[Points, NDArray[np.int64]]:
    """Evaluate a function at stacked points.

    Parameters
    ----------
    push
        The function.
    points
        Stacked points.
    on_done
        Called with the number of points that are done, as they arrive.
    is_lenient
        Whether points at which the function raises are left out. Otherwise the first one raises.

    Returns
    -------
    values
        What the function returned: an array (n, ...), or a dict of them.
    places
        The points they belong to: all, unless some were left out.

    Examples
    --------
    >>> import numpy as np
    >>> pushed(Push(lambda x: {"square": x**2}), np.array([1.0, 2.0, 3.0]))[0]
    {'square': array([1., 4., 9.])}
    """
    check_function(push.function, push.vectorized, push.name)
    indexed = _Indexed(push, points, _takes_rng(push.function))
    numbers = np.arange(count(points), dtype=np.float64)
    blocks = [numbers[list(block)] for block in blocks_of(len(numbers), push.vectorized)]
    found: dict[int, Any] = {}
    done = 0
    for j, outcomes in _outcomes(push, indexed, blocks):
        for place, outcome in zip(blocks[j].astype(int).tolist(), outcomes, strict=True):
            if outcome.failure is None:
                found[place] = outcome.value
            elif not is_lenient:
                raise _error(push, replace(outcome.failure, parameters=row(points, place)), place, len(numbers))
        done += len(outcomes)
        on_done(done)
    places = sorted(found)
    return _stacked(push, [found[place] for place in places]), np.array(places, dtype=np.int64)


def _outcomes(push: Push, indexed: _Indexed, blocks: Sequence[Points]) -> Iterator[tuple[int, list[Outcome]]]:
    calls = _AnyCalls(indexed, bool(push.vectorized))
    with open_runner(calls, push.executor) as runner:
        if runner is not None:
            yield from runner.run(blocks, ())
            return
        for j, block in enumerate(blocks):
            yield j, calls(block)


@dataclass(frozen=True)
class _Indexed:
    """The function by the number of a draw: workers get all draws once, with the function."""

    push: Push
    points: Points
    takes_rng: bool

    def __call__(self, numbers: Any) -> Any:
        push, at = self.push, np.atleast_1d(numbers).astype(int)
        chosen = rows(self.points, at.tolist()) if push.vectorized else copied(row(self.points, int(at[0])))
        own = {_RNG: np.random.default_rng([_STREAM, push.seed, int(at[0])])} if self.takes_rng else {}
        return push.function(chosen, *push.data, **own)


@dataclass(frozen=True)
class _AnyCalls(Calls):
    """Calls of a function that may return anything: outcomes have it as their value."""

    def __call__(
        self, block: Points, batch: tuple[Any, ...] = (), let_through: tuple[type[Exception], ...] = ()
    ) -> list[Outcome]:
        if not self.vectorized:
            return [self._one(block[[i]], 1) for i in range(count(block))]
        outcome, n = self._one(block, count(block)), count(block)
        if outcome.failure is not None:
            return [outcome] * n
        return [Outcome(row(outcome.value, i), 0.0, None) for i in range(n)]

    def _one(self, block: Points, n: int) -> Outcome:
        start = time.perf_counter()
        try:
            value = mapped(_numbers, self.function(block))
            if self.vectorized:
                mapped(lambda x: _check_rows(x, n), value)
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises is a result
            return outcome_of_exception(error, block, time.perf_counter() - start)
        return Outcome(value, 0.0, None)


def _numbers(value: Any) -> NDArray[Any]:
    array = np.asarray(value)
    if array.dtype.kind not in "bfiu":
        msg = f"it must return numbers, arrays of numbers, or a dict of them, got {type(value).__name__}"
        raise ShapeError(msg)
    return array.astype(np.float64)


def _check_rows(x: NDArray[Any], n: int) -> None:
    if x.ndim == 0 or len(x) != n:
        msg = f"it must return arrays with a first axis of {n} for {n} points, got shape {x.shape}; pass vectorized=False for a function of one point"
        raise ShapeError(msg)


def _stacked(push: Push, values: list[Any]) -> Points:
    """Values of all draws along a first axis."""
    if not values:
        msg = f"`{push.name}` must return a value at one draw at least: it failed at all of them"
        raise EvaluationError(msg)
    shapes = {_form(value): None for value in values}
    if len(shapes) > 1:
        first, second = list(shapes)[:2]
        msg = f"`{push.name}` must return values of one form at all draws, got {first} and {second}"
        raise ValueError(msg)
    return stacked(values)


def _form(value: Any) -> str:
    if is_named(value):
        return ", ".join(f"{name!r} of shape {np.shape(x)}" for name, x in value.items())
    return f"shape {np.shape(value)}"


def _error(push: Push, failure: Failure, place: int, n: int) -> Exception:
    told = f"`{push.name}` failed at draw {place} of {n:,}: {failure!r}"
    if failure.is_a(ShapeError):
        return ShapeError(f"`{push.name}` failed: {failure.message.partition(': ')[2]}")
    error = EvaluationError(told, failure)
    if failure.traceback:
        error.add_note(f"where it was raised:\n{failure.traceback}")
    return error


def _takes_rng(function: Callable[..., Any]) -> bool:
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    except (TypeError, ValueError):  # functions of some compiled libraries have no signature
        return False
    return _RNG in parameters
