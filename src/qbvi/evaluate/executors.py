"""Where calls are made: in this process, in our own worker processes, or in the user's executor."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import pickle
import queue
import threading
import time
import uuid
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple, Self, TypeVar

from qbvi.arguments import shown
from qbvi.evaluate.black_box import AbandonedError, EvaluationError, Runner
from qbvi.evaluate.calls import Calls, Outcome, working_as
from qbvi.evaluate.deadlines import arriving, is_over, seconds_until
from qbvi.evaluate.pool import Processes
from qbvi.evaluate.shipping import packed
from qbvi.evaluate.tasks import BlockOutcomes, Ledger, Pace, Task, chunked
from qbvi.points import Points

__all__ = ["Delivery", "Executor", "Report", "open_runner", "run_chunk", "warn_if_nothing_to_share"]

_T = TypeVar("_T")
Executor = Any  # None, a number of processes, a Dask client, or anything with `submit` or `map`

_ROUND_TRIP = 1e-3  # seconds that a task of the user's executor costs, at most, on one machine
_MOST_PROCESSES = 4096  # more is a slip: each is an interpreter of its own
_MOST_LOADED = 4  # functions that a worker keeps: a pool of the user's may serve many fits
_MESSAGES_EACH = 2  # messages that each worker of a multiprocessing.Pool has at a time
_LOOK_EVERY = 0.5  # seconds between looks at the processes of a multiprocessing.Pool


@contextlib.contextmanager
def open_runner(
    calls: Calls, executor: Executor, timeout: float | None = None, deadline: float | None = None
) -> Iterator[Runner | None]:
    """Give a `Runner` for the argument ``executor``; None if this process makes the calls.

    The workers must be ready by the ``deadline``. On exit, processes that were started for it end.

    Examples
    --------
    >>> import numpy as np
    >>> threads = concurrent.futures.ThreadPoolExecutor(2)
    >>> with threads, open_runner(Calls(np.sum), threads) as runner:
    ...     sorted(runner.run([np.ones((1, 2)), np.ones((1, 3))], ()))[1]
    (1, [Outcome(value=3.0, noise_sd=0.0, failure=None)])
    """
    _check_timeout(executor, timeout)
    if executor is None and timeout is None:
        yield None
    elif executor is None or isinstance(executor, Integral):
        _refuse_in_daemon(executor)
        with Processes(calls, _number(executor), timeout, deadline) as processes:
            yield processes
    elif _is_dask(executor):
        from qbvi.evaluate.dask import OnDask

        yield OnDask(calls, executor, deadline)
    elif isinstance(executor, type) and executor is not map:
        msg = f"`executor` must be an executor, not its class, got {shown(executor)}"
        raise TypeError(msg)
    else:
        with _Borrowed(calls, executor, deadline) as borrowed:
            yield borrowed


def warn_if_nothing_to_share(executor: Executor, vectorized: bool | int) -> None:
    """Warn that one call for all points keeps only one worker busy."""
    is_one = isinstance(executor, Integral) and executor == 1
    if executor is not None and not is_one and vectorized is True:
        msg = (
            "`executor` has nothing to share out: with vectorized=True all points of a step go into one call; pass the number of points "
            "that one call should have, such as vectorized=16"
        )
        warnings.warn(msg, UserWarning, stacklevel=3)


class Delivery(NamedTuple):
    """A message to a worker: points, and the function only if the worker lacks it."""

    token: str
    payload: bytes | None
    blocks: list[Points]
    batch: tuple[Any, ...]


class Report(NamedTuple):
    """The reply of a worker; without outcomes if it lacks the function."""

    seconds: float
    outcomes: list[list[Outcome]] | None


def run_chunk(delivery: Delivery) -> Report:
    """Make the calls of one message, in any process.

    The function is unpickled once in each process.
    """
    calls, worker = _found(delivery)
    if calls is None:
        return Report(0.0, None)
    start = time.monotonic()
    outcomes = [working_as(worker, calls(block, delivery.batch)) for block in delivery.blocks]
    return Report(time.monotonic() - start, outcomes)


# Functions of the fits of this process, with its id: threads share them, processes forked from it
# do not.
_HERE: dict[str, tuple[int, Calls]] = {}
_LOADED: OrderedDict[str, Calls] = OrderedDict()  # functions received from another process


def _found(delivery: Delivery) -> tuple[Calls | None, str]:
    """Return the function, if it is here, and the name of the worker."""
    pid = os.getpid()
    owner, calls = _HERE.get(delivery.token, (0, None))
    if owner == pid:
        return calls, threading.current_thread().name
    if delivery.token not in _LOADED and delivery.payload is not None:
        _LOADED[delivery.token] = pickle.loads(delivery.payload)
        if len(_LOADED) > _MOST_LOADED:
            _LOADED.popitem(last=False)
    return _LOADED.get(delivery.token), f"pid {pid}"


class _Borrowed:
    """An executor of the user's.

    We never shut it down, and send the function at most once to each worker.

    A task carries points and a token for the function. A worker that does not know the token says
    so; its task is sent again, with the function.
    """

    def __init__(self, calls: Calls, executor: Any, deadline: float | None = None) -> None:
        self._executor = executor
        self._start = _submitter(executor)
        self._pace = Pace(_width(executor), _ROUND_TRIP)
        self._payload: bytes | None = None
        self._token = uuid.uuid4().hex
        _HERE[self._token] = (os.getpid(), calls)
        try:
            probe = [report for _, report in self._start([Delivery(self._token, None, [], ())], self._clock(deadline))]
            if not probe:
                raise AbandonedError(_name(executor), 1, 0.0)
            self._payload = packed(calls) if probe[0].outcomes is None else None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        _HERE.pop(self._token, None)

    def run(
        self, blocks: Sequence[Points], batch: tuple[Any, ...], deadline: float | None = None
    ) -> Iterator[BlockOutcomes]:
        ledger = Ledger(blocks)
        waiting = list(chunked(ledger.tasks, self._pace.chunk_size(len(blocks))))
        loaded = 0  # messages that carry the function: none at first, then one for each worker
        while waiting and not is_over(deadline):
            without_function = []
            for i, report in self._start(self._deliveries(waiting, batch, loaded), self._clock(deadline)):
                if report.outcomes is None:
                    without_function.append(waiting[i])
                    continue
                self._pace.add(len(report.outcomes), report.seconds)
                for task, outcomes in zip(waiting[i], report.outcomes, strict=True):
                    yield from ledger.enter(task, outcomes)
            waiting, loaded = without_function, self._pace.workers

    def _clock(self, deadline: float | None) -> _Clock:
        return _Clock(deadline, self._pace, self._payload is None)

    def _deliveries(self, chunks: list[list[Task]], batch: tuple[Any, ...], loaded: int) -> list[Delivery]:
        points = [[task.points for task in chunk] for chunk in chunks]
        return [
            Delivery(self._token, self._payload if i < loaded else None, blocks, batch)
            for i, blocks in enumerate(points)
        ]


class _Clock(NamedTuple):
    """How long to wait: until the deadline for all messages, then a little for those under way."""

    deadline: float | None
    pace: Pace
    is_here: bool = True  # whether the calls are made in this process

    @property
    def seconds(self) -> float | None:
        """Seconds until the deadline."""
        return seconds_until(self.deadline)

    @property
    def seconds_with_grace(self) -> float | None:
        """Seconds until calls that are under way are abandoned."""
        return None if self.deadline is None else seconds_until(self.deadline + self.pace.grace)


_Start = Callable[[list[Delivery], _Clock], Iterator[tuple[int, Report]]]


def _submitter(executor: Any) -> _Start:
    """How to start tasks on the executor: by its `submit`, else its `map`, else by calling it.

    Each yields reports until the deadline. After it, messages that were not begun are not sent or
    taken back, and those under way are waited for a little.
    """
    if hasattr(executor, "submit"):
        return functools.partial(_by_submit, executor)
    if hasattr(executor, "apply_async") and hasattr(executor, "_pool"):
        return functools.partial(_by_pool, executor)
    for name in ("imap", "map"):  # `imap` yields results as they arrive
        if hasattr(executor, name):
            return functools.partial(_by_map, executor, getattr(executor, name))
    if callable(executor):
        return functools.partial(_by_map, executor, executor)
    msg = (
        "`executor` must be a number of processes, a concurrent.futures executor, a Dask client, or something with `submit` or `map`, "
        f"got {type(executor).__name__}"
    )
    raise TypeError(msg)


def _by_submit(executor: Any, deliveries: list[Delivery], clock: _Clock) -> Iterator[tuple[int, Report]]:
    futures: dict[Any, int] = {}
    try:
        for i, delivery in enumerate(deliveries):
            futures[executor.submit(run_chunk, delivery)] = i
        is_standard = all(isinstance(future, concurrent.futures.Future) for future in futures)
        collect = _standard_futures if is_standard else _foreign_futures
        for future, report in collect(executor, futures, clock):
            yield futures[future], report
    except concurrent.futures.BrokenExecutor as error:
        msg = (
            f"a worker of `executor` died, and a {type(executor).__name__} cannot be used after that ({error}); pass a number of processes instead: "
            "they are replaced, and only the point that they died over is lost"
        )
        raise EvaluationError(msg) from error
    finally:
        for future in futures:
            future.cancel()


def _standard_futures(executor: Any, futures: Mapping[Any, int], clock: _Clock) -> Iterator[tuple[Any, Report]]:
    pending = set(futures)
    try:
        for future in concurrent.futures.as_completed(futures, clock.seconds):
            pending.discard(future)
            yield future, future.result()
    except TimeoutError:
        pass
    under_way = [future for future in pending if not future.cancel()]
    try:
        for future in concurrent.futures.as_completed(under_way, clock.seconds_with_grace):
            yield future, future.result()
    except TimeoutError:
        late = sum(not future.done() for future in under_way)
        raise AbandonedError(_name(executor), late, clock.pace.grace) from None


def _foreign_futures(executor: Any, futures: Mapping[Any, int], clock: _Clock) -> Iterator[tuple[Any, Report]]:
    """Futures of another class: in order."""
    results = ((future, future.result()) for future in futures)
    yield from _in_time(executor, lambda: results, clock, len(futures))


def _in_time(executor: Any, items: Callable[[], Iterable[_T]], clock: _Clock, n: int) -> Iterator[_T]:
    """Yield up to n items, which arrive one by one. Those that come too late are abandoned."""
    if clock.deadline is None:
        yield from items()
        return
    is_alive = False  # whether calls still ended after the deadline, so that the others are only waiting
    try:
        for item in arriving(items, lambda: clock.seconds_with_grace):
            n, is_alive = n - 1, is_over(clock.deadline)
            yield item
    except TimeoutError:
        if not is_alive:
            raise AbandonedError(_name(executor), n, clock.pace.grace) from None


def _by_pool(pool: Any, deliveries: list[Delivery], clock: _Clock) -> Iterator[tuple[int, Report]]:
    """Tasks on a ``multiprocessing.Pool``, which keeps quiet about workers that died."""
    waiting, under_way, workers = deque(enumerate(deliveries)), 0, _pids(pool)
    arrived: queue.SimpleQueue[tuple[int, Report] | BaseException] = queue.SimpleQueue()
    while True:
        # A few at a time, as a pool cannot take back what it was given.
        while waiting and under_way < _MESSAGES_EACH * clock.pace.workers and not is_over(clock.deadline):
            _send(pool, *waiting.popleft(), arrived)
            under_way += 1
        if not under_way:
            return
        left = clock.seconds_with_grace
        if left == 0.0:
            raise AbandonedError(_name(pool), under_way, clock.pace.grace)
        try:
            answer = arrived.get(timeout=_LOOK_EVERY if left is None else min(_LOOK_EVERY, left))
        except queue.Empty:
            _raise_if_died(pool, workers)
            continue
        if isinstance(answer, BaseException):
            raise answer
        under_way -= 1
        yield answer


def _send(pool: Any, i: int, delivery: Delivery, arrived: queue.SimpleQueue[Any]) -> None:
    pool.apply_async(
        run_chunk, (delivery,), callback=lambda report: arrived.put((i, report)), error_callback=arrived.put
    )


def _pids(pool: Any) -> set[int]:
    """The processes of a pool; none for a pool of threads."""
    return {process.pid for process in list(getattr(pool, "_pool", ())) if hasattr(process, "pid")}


def _raise_if_died(pool: Any, before: set[int]) -> None:
    """Raise if a process of the pool is gone, unless the pool replaces processes by itself."""
    if before <= _pids(pool) or getattr(pool, "_maxtasksperchild", None) is not None:
        return
    msg = (
        "a worker of the multiprocessing.Pool died, and its call is lost without a trace; pass a number of processes as "
        "`executor` instead: they are replaced, and only the point that they died over is lost"
    )
    raise EvaluationError(msg)


def _by_map(
    executor: Any, mapper: Callable[..., Iterable[Any]], deliveries: list[Delivery], clock: _Clock
) -> Iterator[tuple[int, Report]]:
    """Tasks on anything with a `map`; with a deadline, one for each worker at a time."""
    size = len(deliveries) if clock.deadline is None else clock.pace.workers
    for first in range(0, len(deliveries), size):
        if is_over(clock.deadline):
            return
        portion = deliveries[first : first + size]
        if clock.is_here:  # a lazy map in this process, perhaps: no other thread may make its calls
            yield from enumerate(_mapped(mapper, portion), first)
        else:
            reports = functools.partial(_mapped, mapper, portion)
            yield from enumerate(_in_time(executor, reports, clock, len(portion)), first)


def _mapped(mapper: Callable[..., Iterable[Any]], deliveries: list[Delivery]) -> Iterable[Report]:
    reports = mapper(run_chunk, deliveries)
    if not isinstance(reports, Iterable):
        msg = f"`executor` must return one result for each call, as the built-in map does, got {shown(reports)}"
        raise TypeError(msg)
    return reports


def _name(executor: Any) -> str:
    return f"the {type(executor).__name__}"


def _width(executor: Any) -> int:
    """Number of workers, if the executor has it as an attribute; else the number of processors."""
    widths = (getattr(executor, name, None) for name in ("_max_workers", "num_workers", "_processes"))
    return next((width for width in widths if isinstance(width, int) and width > 0), os.cpu_count() or 1)


def _number(executor: Any) -> int:
    if executor is None:
        return 1
    if isinstance(executor, bool) or not 1 <= executor <= _MOST_PROCESSES:
        msg = (
            f"`executor` must be from 1 to {_MOST_PROCESSES:,} where it is a number of processes, got {executor!r}; "
            "leave it out for no processes"
        )
        raise ValueError(msg)
    return int(executor)


def _refuse_in_daemon(executor: Any) -> None:
    if multiprocessing.current_process().daemon:
        what = "`timeout`" if executor is None else f"`executor={executor}`"
        msg = (
            f"{what} needs processes of its own, which a daemon process such as a worker of multiprocessing.Pool must not start; "
            "leave it out there, or run the fit in a process of concurrent.futures.ProcessPoolExecutor"
        )
        raise ValueError(msg)


def _is_dask(executor: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "distributed" for kind in type(executor).__mro__)


def _check_timeout(executor: Executor, timeout: float | None) -> None:
    if timeout is not None and not timeout > 0:
        msg = f"`timeout` must be a positive number of seconds, got {timeout!r}"
        raise ValueError(msg)
    if timeout is not None and executor is not None and not isinstance(executor, Integral):
        msg = (
            "`timeout` must go with processes of qbvi's own, which can be killed one by one: pass a number as `executor`, "
            f"got {type(executor).__name__}"
        )
        raise ValueError(msg)
