"""Calls spread over a Dask cluster (the extra ``dask``)."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

from distributed import Client, Future, KilledWorker, as_completed, get_worker

from qbvi.evaluate.calls import Calls, working_as
from qbvi.evaluate.executors import Delivery, Report, run_chunk
from qbvi.evaluate.shipping import packed
from qbvi.evaluate.tasks import BlockOutcomes, Ledger, Loss, Pace, Task, chunked
from qbvi.points import Points

__all__ = ["LOST", "OnDask", "lost_of", "scattered"]

# A result that was lost with its worker.
LOST = (KilledWorker, CancelledError, asyncio.CancelledError)
_ROUND_TRIP = 4e-3  # seconds that a task costs the scheduler and both ends
_REFRESH = 5.0  # seconds between looks at the size of the cluster
_MOST_TRIES = 20  # to send data to a cluster whose workers are dying
# Times that a call may be lost, first among others and then alone, before it is given up.
_MOST_LOSSES = 2


class OnDask:
    """A Dask client of the user's. The function goes to all workers once; tasks carry points.

    Workers may come and go. Dask repeats tasks that were lost with a worker. If workers keep dying,
    the calls in question are sent one by one, which finds the call that is to blame.
    """

    def __init__(self, calls: Calls, client: Client) -> None:
        self._client, self._blame = client, calls.blame
        self._token = uuid.uuid4().hex
        self._payload = packed(calls)
        self._function = self._scattered()
        self._last_width = (-_REFRESH, 1)
        self._pace = Pace(self._width(), _ROUND_TRIP)

    def run(self, blocks: Sequence[Points], batch: tuple[Any, ...]) -> Iterator[BlockOutcomes]:
        """Yield the number and the outcomes of each block as they arrive."""
        ledger = Ledger(blocks)
        self._pace.workers = self._width()
        first = list(chunked(ledger.tasks, self._pace.chunk_size(len(blocks))))
        chunks = dict(zip(self._submitted(first, batch), first, strict=True))
        suspects: deque[Task] = deque()
        try:
            arriving = as_completed(list(chunks), loop=self._client.loop, with_results=True, raise_errors=False)
            for future, result in arriving:
                yield from self._completed(ledger, chunks.pop(future), result, suspects)
            while suspects:  # one at a time: only the call that runs can be to blame
                task = suspects.popleft()
                yield from self._completed(ledger, [task], _result(*self._submitted([[task]], batch)), suspects)
        finally:  # an error in the middle of a step: the rest is not needed
            self._client.cancel(list(chunks))

    def _scattered(self) -> Future:
        return scattered(self._client, self._payload, broadcast=True)

    def _width(self) -> int:
        """Number of threads of the cluster, looked up every few seconds, as it may grow."""
        looked_up, width = self._last_width
        if time.monotonic() - looked_up > _REFRESH:
            width = max(1, sum(self._client.nthreads().values()))
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
        if not went_with_worker:
            msg = f"the Dask workers cannot run `log_likelihood`: {error!r}; they need the packages and modules that it uses"
            raise RuntimeError(msg) from error
        if lost_of(self._client, [self._function]):  # every worker that held it is gone
            self._function = self._scattered()
        return self._repeat_lost(ledger, chunk, str(error), suspects)

    def _repeat_lost(
        self, ledger: Ledger, chunk: list[Task], message: str, suspects: deque[Task]
    ) -> list[BlockOutcomes]:
        complete = []
        for task in chunk:
            if task.losses >= _MOST_LOSSES and (task.is_alone or not self._blame):
                complete += ledger.fail(task, Loss("died", message, 0.0, "Dask"))
            else:
                pieces = ledger.one_by_one(task) if self._blame else [task]
                suspects.extend(piece._replace(losses=task.losses + 1) for piece in pieces)
        return complete


def scattered(client: Client, data: Any, broadcast: bool = False) -> Any:
    """Put data, or a list of data, on workers.

    It waits for a first worker, as a cluster may grow on demand, and tries again where workers die.
    """
    for _ in range(_MOST_TRIES):
        try:
            client.submit(_nothing, pure=False).result()
            return client.scatter(data, broadcast=broadcast, hash=False)
        except (OSError, *LOST):  # a worker died meanwhile; the scheduler will notice soon
            time.sleep(0.1)
    msg = "the Dask cluster has no worker that stays alive long enough to be sent anything"
    raise RuntimeError(msg)


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
