"""Calls spread over a Dask cluster (the extra ``dask``)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from distributed import Client, Future, KilledWorker, as_completed, get_worker

from qbvi.evaluate.black_box import AbandonedError, EvaluationError
from qbvi.evaluate.calls import Calls, working_as
from qbvi.evaluate.deadlines import is_over, seconds_until, within
from qbvi.evaluate.executors import Delivery, Report, run_chunk
from qbvi.evaluate.shipping import packed
from qbvi.evaluate.tasks import BlockOutcomes, Ledger, Loss, Pace, Task, chunked
from qbvi.points import Points

__all__ = ["CLUSTER", "LOST", "OnDask", "lost_of", "scattered"]

_T = TypeVar("_T")

CLUSTER = "the Dask cluster"  # as errors call it
# A result that was lost with its worker.
LOST = (KilledWorker, CancelledError, asyncio.CancelledError)
_ROUND_TRIP = 4e-3  # seconds that a task costs the scheduler and both ends
_REFRESH = 5.0  # seconds between looks at the size of the cluster
_LOOK_EVERY = 30.0  # seconds without an answer after which to see whether there are workers
_SECONDS_TO_CANCEL = 2.0  # that the scheduler has to take calls back
_MOST_TRIES = 20  # to send data to a cluster whose workers are dying
# Times that a call may be lost, first among others and then alone, before it is given up.
_MOST_LOSSES = 2


class OnDask:
    """A Dask client of the user's. The function goes to all workers once; tasks carry points.

    Workers may come and go. Dask repeats tasks that were lost with a worker. If workers keep dying,
    the calls in question are sent one by one, which finds the call that is to blame.

    Dask cannot end a call. At the deadline, calls that no worker has yet are taken back, and the
    others are waited for a little.
    """

    def __init__(self, calls: Calls, client: Client, deadline: float | None = None) -> None:
        self._client, self._blame = client, calls.blame
        self._deadline = deadline
        self._token = uuid.uuid4().hex
        self._payload = packed(calls)
        self._pace = Pace(1, _ROUND_TRIP)
        self._last_width = (-_REFRESH, 1)
        with _explained(client):
            self._function = self._scattered()
            self._pace.workers = self._width()

    def run(
        self, blocks: Sequence[Points], batch: tuple[Any, ...], deadline: float | None = None
    ) -> Iterator[BlockOutcomes]:
        """Yield the number and the outcomes of each block as they arrive."""
        self._deadline = deadline
        ledger = Ledger(blocks)
        chunks: dict[Future, list[Task]] = {}
        suspects: deque[Task] = deque()
        try:
            with _explained(self._client):
                self._pace.workers = self._width()
                first = list(chunked(ledger.tasks, self._pace.chunk_size(len(blocks))))
                chunks.update(zip(self._submitted(first, batch), first, strict=True))
                for future, result in self._arriving(chunks):
                    yield from self._completed(ledger, chunks.pop(future), result, suspects)
                while suspects and not is_over(deadline):  # one at a time: only the call that runs can be to blame
                    task = suspects.popleft()
                    (future,) = self._submitted([[task]], batch)
                    chunks[future] = [task]
                    result = self._limited(functools.partial(_result, future))
                    yield from self._completed(ledger, chunks.pop(future), result, suspects)
        finally:  # an error in the middle of a step, or no time left: the rest is not needed
            self._cancel(list(chunks))

    def _arriving(self, chunks: dict[Future, list[Task]]) -> Iterator[tuple[Future, Any]]:
        """Yield futures and results until the deadline; then wait for those that a worker has."""
        while chunks and not is_over(self._deadline):
            left = seconds_until(self._deadline)
            try:
                yield from self._as_completed(chunks, _LOOK_EVERY if left is None else min(left, _LOOK_EVERY))
            except TimeoutError:
                self._warn_if_no_worker()
        if not chunks:
            return
        begun = {str(key) for keys in self._limited(self._client.processing).values() for key in keys}
        waiting = [future for future in chunks if str(future.key) not in begun]
        self._cancel(waiting)
        for future in waiting:
            del chunks[future]
        try:
            yield from self._as_completed(chunks, self._pace.grace)
        except TimeoutError:
            raise self._abandoned(len(chunks)) from None

    def _as_completed(self, chunks: dict[Future, list[Task]], seconds: float) -> Iterator[tuple[Future, Any]]:
        yield from as_completed(
            list(chunks), loop=self._client.loop, with_results=True, raise_errors=False, timeout=seconds
        )

    def _limited(self, act: Callable[[], _T]) -> _T:
        """Make a request to the scheduler, which may not answer, or wait for one call."""
        seconds = None if self._deadline is None else seconds_until(self._deadline + self._pace.grace)
        try:
            return within(seconds, act)
        except TimeoutError:
            raise self._abandoned(1) from None

    def _abandoned(self, n: int) -> AbandonedError:
        return AbandonedError(CLUSTER, n, self._pace.grace)

    def _cancel(self, futures: list[Future]) -> None:
        if futures:
            with contextlib.suppress(Exception):  # a closed client, a scheduler that does not answer: nothing to cancel
                within(_SECONDS_TO_CANCEL, lambda: self._client.cancel(futures))

    def _warn_if_no_worker(self) -> None:
        if not self._limited(self._client.nthreads):
            msg = "the Dask cluster has no workers, and the fit waits for one; `max_time` limits how long"
            warnings.warn(msg, RuntimeWarning, stacklevel=2)

    def _scattered(self) -> Future:
        return scattered(self._client, self._payload, broadcast=True, deadline=self._deadline)

    def _width(self) -> int:
        """Number of threads of the cluster, looked up every few seconds, as it may grow."""
        looked_up, width = self._last_width
        if time.monotonic() - looked_up > _REFRESH:
            width = max(1, sum(self._limited(self._client.nthreads).values()))
            self._last_width = (time.monotonic(), width)
        return width

    def _submitted(self, chunks: list[list[Task]], batch: tuple[Any, ...]) -> list[Future]:
        points = [[task.points for task in chunk] for chunk in chunks]
        each = ([thing] * len(chunks) for thing in (self._token, self._function, batch))
        # One map: the scheduler receives all tasks in one message.
        return list(self._client.map(_run_there, *each, points, pure=False))

    def _completed(self, ledger: Ledger, chunk: list[Task], result: Any, suspects: deque[Task]) -> list[BlockOutcomes]:
        """Return the blocks that are complete now.

        Calls that were lost with their worker become suspects.
        """
        if isinstance(result, Report):
            self._pace.add(len(chunk), result.seconds)
            answers = zip(chunk, result.outcomes or [], strict=True)
            return [block for task, outcomes in answers for block in ledger.enter(task, outcomes)]
        error = result[1] if isinstance(result, tuple) else result
        went_with_worker = isinstance(error, LOST)
        if went_with_worker and self._client.status != "running":
            raise EvaluationError(_CLOSED)
        if not went_with_worker:
            msg = f"the Dask workers cannot run `log_likelihood`: {error!r}; they need the packages and modules that it uses"
            raise EvaluationError(msg) from error
        if self._limited(lambda: lost_of(self._client, [self._function])):  # every worker that held it is gone
            self._function = self._scattered()
        return self._repeat_lost(ledger, chunk, suspects)

    def _repeat_lost(self, ledger: Ledger, chunk: list[Task], suspects: deque[Task]) -> list[BlockOutcomes]:
        complete = []
        for task in chunk:
            if task.losses >= _MOST_LOSSES and (task.is_alone or not self._blame):
                complete += ledger.fail(task, Loss("died", _KILLER, 0.0, "Dask"))
            else:
                pieces = ledger.one_by_one(task) if self._blame else [task]
                suspects.extend(piece._replace(losses=task.losses + 1) for piece in pieces)
        return complete


_KILLER = (
    "the Dask workers that made this call died, each time it was tried: the function crashes or needs too much memory "
    "here; the logs of the workers may say more"
)
_CLOSED = "the Dask client given as `executor` is closed, so no calls can be made; keep it open until the fit ends"
_NO_WORKER = (
    "`max_time` is over and no Dask worker could be sent the function: the cluster has none, or they do not answer; "
    "start workers before the fit, or give it more time"
)


@contextlib.contextmanager
def _explained(client: Client) -> Iterator[None]:
    """Turn the errors of a client that was closed into ours."""
    try:
        yield
    except EvaluationError:
        raise
    except Exception as error:
        if client.status == "running":
            raise
        raise EvaluationError(_CLOSED) from error


def scattered(client: Client, data: Any, broadcast: bool = False, deadline: float | None = None) -> Any:
    """Put data, or a list of data, on workers.

    It waits for a first worker, as a cluster may grow on demand, and tries again where workers die.
    """

    def sent() -> Any:
        client.submit(_nothing, pure=False).result()
        return client.scatter(data, broadcast=broadcast, hash=False)

    for _ in range(_MOST_TRIES):
        try:
            return within(seconds_until(deadline), sent)
        except (OSError, *LOST):  # a worker died meanwhile; the scheduler will notice soon
            if is_over(deadline):
                raise EvaluationError(_NO_WORKER) from None
            if client.status != "running":
                raise EvaluationError(_CLOSED) from None
            time.sleep(0.1)
    msg = "the Dask cluster has no worker that stays alive long enough to be sent anything"
    raise EvaluationError(msg)


def lost_of(client: Client, futures: Sequence[Future]) -> list[int]:
    """Which futures no worker holds any more, by the records of the scheduler.

    The client itself learns of it late.
    """
    holders = client.who_has()
    return [k for k, future in enumerate(futures) if not holders.get(future.key)]


def _result(future: Future) -> Any:
    """The result, or the exception, as `as_completed` returns it."""
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - the caller handles it
        return error


def _run_there(token: str, payload: bytes, batch: tuple[Any, ...], blocks: list[Points]) -> Report:
    seconds, outcomes = run_chunk(Delivery(token, payload, blocks, batch))
    name = str(get_worker().name)
    return Report(seconds, [working_as(name, block) for block in outcomes or []])


def _nothing() -> None:
    """A task that makes the cluster start a worker."""
