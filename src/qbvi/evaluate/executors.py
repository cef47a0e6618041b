"""Where calls are made: in this process, in our own worker processes, or in the user's executor."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import pickle
import threading
import time
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral
from typing import Any, NamedTuple, Self

from qbvi.arguments import shown
from qbvi.evaluate.black_box import EvaluationError, Runner
from qbvi.evaluate.calls import Calls, Outcome, working_as
from qbvi.evaluate.pool import Processes
from qbvi.evaluate.shipping import packed
from qbvi.evaluate.tasks import BlockOutcomes, Ledger, Pace, Task, chunked
from qbvi.points import Points

__all__ = ["Delivery", "Executor", "Report", "open_runner", "run_chunk", "warn_if_nothing_to_share"]

Executor = Any  # None, a number of processes, a Dask client, or anything with `submit` or `map`

_ROUND_TRIP = 1e-3  # seconds that a task of the user's executor costs, at most, on one machine
_MOST_PROCESSES = 4096  # more is a slip: each is an interpreter of its own
_MOST_LOADED = 4  # functions that a worker keeps: a pool of the user's may serve many fits


@contextlib.contextmanager
def open_runner(calls: Calls, executor: Executor, timeout: float | None = None) -> Iterator[Runner | None]:
    """Give a `Runner` for the argument ``executor``; None if this process makes the calls.

    On exit, processes that were started for it end.

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
        with Processes(calls, _number(executor), timeout) as processes:
            yield processes
    elif _is_dask(executor):
        from qbvi.evaluate.dask import OnDask

        yield OnDask(calls, executor)
    elif isinstance(executor, type):
        msg = f"`executor` must be an executor, not its class, got {shown(executor)}"
        raise TypeError(msg)
    else:
        with _Borrowed(calls, executor) as borrowed:
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

    def __init__(self, calls: Calls, executor: Any) -> None:
        self._start = _submitter(executor)
        self._pace = Pace(_width(executor), _ROUND_TRIP)
        self._token = uuid.uuid4().hex
        _HERE[self._token] = (os.getpid(), calls)
        try:
            shared = next(self._start([Delivery(self._token, None, [], ())]))[1].outcomes is not None
            self._payload = None if shared else packed(calls)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        _HERE.pop(self._token, None)

    def run(self, blocks: Sequence[Points], batch: tuple[Any, ...]) -> Iterator[BlockOutcomes]:
        ledger = Ledger(blocks)
        waiting = list(chunked(ledger.tasks, self._pace.chunk_size(len(blocks))))
        loaded = 0  # messages that carry the function: none at first, then one for each worker
        while waiting:
            without_function = []
            for i, report in self._start(self._deliveries(waiting, batch, loaded)):
                if report.outcomes is None:
                    without_function.append(waiting[i])
                    continue
                self._pace.add(len(report.outcomes), report.seconds)
                for task, outcomes in zip(waiting[i], report.outcomes, strict=True):
                    yield from ledger.enter(task, outcomes)
            waiting, loaded = without_function, self._pace.workers

    def _deliveries(self, chunks: list[list[Task]], batch: tuple[Any, ...], loaded: int) -> list[Delivery]:
        points = [[task.points for task in chunk] for chunk in chunks]
        return [
            Delivery(self._token, self._payload if i < loaded else None, blocks, batch)
            for i, blocks in enumerate(points)
        ]


_Start = Callable[[list[Delivery]], Iterator[tuple[int, Report]]]


def _submitter(executor: Any) -> _Start:
    """How to start tasks on the executor: by its `submit`, else its `map`, else by calling it."""
    if hasattr(executor, "submit"):
        return functools.partial(_by_submit, executor)
    # `imap` yields results as they arrive; a multiprocessing.Pool has both.
    for name in ("imap", "map"):
        if hasattr(executor, name):
            return functools.partial(_by_map, getattr(executor, name))
    if callable(executor):
        return functools.partial(_by_map, executor)
    msg = (
        "`executor` must be a number of processes, a concurrent.futures executor, a Dask client, or something with `submit` or `map`, "
        f"got {type(executor).__name__}"
    )
    raise TypeError(msg)


def _by_submit(executor: Any, deliveries: list[Delivery]) -> Iterator[tuple[int, Report]]:
    futures: dict[Any, int] = {}
    try:
        for i, delivery in enumerate(deliveries):
            futures[executor.submit(run_chunk, delivery)] = i
        for future in _as_completed(futures):
            yield futures[future], future.result()
    except concurrent.futures.BrokenExecutor as error:
        msg = (
            f"a worker of `executor` died, and a {type(executor).__name__} cannot be used after that ({error}); pass a number of processes instead: "
            "they are replaced, and only the point that they died over is lost"
        )
        raise EvaluationError(msg) from error
    finally:
        for future in futures:
            future.cancel()


def _as_completed(futures: Iterable[Any]) -> Iterator[Any]:
    if all(isinstance(future, concurrent.futures.Future) for future in futures):
        return concurrent.futures.as_completed(futures)
    return iter(list(futures))  # futures of another class: in order


def _by_map(mapper: Callable[..., Iterable[Any]], deliveries: list[Delivery]) -> Iterator[tuple[int, Report]]:
    reports = mapper(run_chunk, deliveries)
    if not isinstance(reports, Iterable):
        msg = f"`executor` must return one result for each call, as the built-in map does, got {shown(reports)}"
        raise TypeError(msg)
    yield from enumerate(reports)


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
