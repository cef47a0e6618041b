"""Calls spread over a Dask cluster (the extra ``dask``)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from distributed import Client, Future, KilledWorker, as_completed, get_worker

from qbvi.evaluate.calls import Calls, Points, working_as
from qbvi.evaluate.executors import Delivery, Report, run_chunk
from qbvi.evaluate.shipping import packed
from qbvi.evaluate.tasks import Ledger, Loss, Pace, Settled, Task, chunked

__all__ = ["OnDask"]

_ROUND_TRIP = 2e-3  # seconds that a task costs the scheduler and both ends
_MOST_LOSSES = (
    2  # times that one call may be lost before it is given up; each time, Dask itself has tried it on several workers
)


class OnDask:
    """A Dask client of the user's: the function is scattered to all workers once, tasks carry points.

    Workers may come and go. Dask repeats what was lost with a worker; a call over which workers keep dying is found by sending its neighbours alone.
    """

    def __init__(self, calls: Calls, client: Client) -> None:
        self._client, self._blame = client, calls.blame
        self._token = uuid.uuid4().hex
        self._payload = packed(calls)
        self._function = self._scattered()
        self._pace = Pace(sum(client.nthreads().values()), _ROUND_TRIP)

    def run(self, blocks: Sequence[Points], batch: tuple[Any, ...]) -> Iterator[Settled]:
        """Yield each block's number and outcomes as they arrive."""
        ledger = Ledger(blocks)
        self._pace.workers = max(1, sum(self._client.nthreads().values()))
        first = chunked(ledger.tasks, self._pace.chunk_size(len(blocks)))
        chunks = {self._submitted(chunk, batch): chunk for chunk in first}
        arriving = as_completed(list(chunks), raise_errors=False)
        try:
            for future in arriving:
                chunk = chunks.pop(future)
                settled, again = self._taken_in(ledger, chunk, future)
                yield from settled
                more = {self._submitted(tasks, batch): tasks for tasks in again}
                chunks |= more
                arriving.update(list(more))
        finally:  # left in the middle of a step: nobody waits for the rest
            self._client.cancel(list(chunks))

    def _scattered(self) -> Future:
        self._client.submit(
            _nothing, pure=False
        ).result()  # a cluster that grows on demand has no worker before it has a task
        return self._client.scatter(self._payload, broadcast=True, hash=False)

    def _submitted(self, chunk: list[Task], batch: tuple[Any, ...]) -> Future:
        points = [task.points for task in chunk]
        return self._client.submit(_run_there, self._token, self._function, points, batch, pure=False)

    def _taken_in(self, ledger: Ledger, chunk: list[Task], future: Future) -> tuple[list[Settled], list[list[Task]]]:
        """Return the blocks that are complete now, and the calls to be sent again."""
        if future.status == "finished":
            report = future.result()
            self._pace.add(len(chunk), report.seconds)
            answers = zip(chunk, report.outcomes, strict=True)
            return [block for task, outcomes in answers for block in ledger.settle(task, outcomes)], []
        error = future.exception() if future.status == "error" else None
        if error is not None and not isinstance(error, KilledWorker):
            msg = f"the Dask workers cannot run `log_likelihood`: {error!r}; they need the packages and modules that it uses"
            raise RuntimeError(msg) from error
        if self._function.status != "finished":  # every worker that held it is gone
            self._function = self._scattered()
        return self._lost(ledger, [task._replace(losses=task.losses + 1) for task in chunk], str(error or "lost"))

    def _lost(self, ledger: Ledger, chunk: list[Task], message: str) -> tuple[list[Settled], list[list[Task]]]:
        alone = len(chunk) == 1 and (chunk[0].is_alone or not self._blame)
        if alone and chunk[0].losses >= _MOST_LOSSES:
            return ledger.fail(chunk[0], Loss("died", message, 0.0, "Dask")), []
        pieces = (ledger.one_by_one(task) if self._blame else [task] for task in chunk)
        return [], [
            [piece._replace(losses=task.losses)] for task, parts in zip(chunk, pieces, strict=True) for piece in parts
        ]


def _run_there(token: str, payload: bytes, blocks: list[Points], batch: tuple[Any, ...]) -> Report:
    seconds, outcomes = run_chunk(Delivery(token, payload, blocks, batch))
    name = str(get_worker().name)
    return Report(seconds, [working_as(name, block) for block in outcomes or []])


def _nothing() -> None:
    """A task to bring a worker up."""
