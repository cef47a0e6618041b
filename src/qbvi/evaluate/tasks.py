"""The calls of one step: which have no result yet, how many share a message, which were lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qbvi.evaluate.calls import Outcome
from qbvi.evaluate.failures import Failure
from qbvi.points import Points, count, row, rows

__all__ = ["BlockOutcomes", "Ledger", "Loss", "Pace", "Task", "chunked"]

BlockOutcomes = tuple[int, list[Outcome]]  # number of a block, and the outcomes at its points


class Task(NamedTuple):
    """One call: a block of points, or one row of a block that is repeated by itself."""

    block: int
    points: Points
    place: int | None = None  # number of the row in its block; None for a whole block
    losses: int = 0  # how many workers died during this call

    @property
    def is_alone(self) -> bool:
        """Whether the call has a single point, which is then the cause of any failure."""
        return count(self.points) == 1


class Loss(NamedTuple):
    """Why a call has no result."""

    kind: str  # "timeout" or "died"
    message: str
    seconds: float
    worker: str

    def at(self, point: Any) -> Outcome:
        """Return the outcome at a point that was lost."""
        return Outcome(np.nan, 0.0, Failure(point, self.kind, self.message, "", self.seconds, self.worker))


class Ledger:
    """Which blocks of a step still lack outcomes.

    Examples
    --------
    >>> ledger = Ledger([np.zeros((2, 3)), np.ones((1, 3))])
    >>> first, second = ledger.tasks
    >>> [number for number, outcomes in ledger.enter(second, [Outcome(-1.0, 0.0, None)])]
    [1]
    >>> ledger.n_incomplete
    1
    >>> [task.place for task in ledger.one_by_one(first)]
    [0, 1]
    """

    def __init__(self, blocks: Sequence[Points]) -> None:
        self.tasks = [Task(j, block) for j, block in enumerate(blocks)]
        self.n_incomplete = len(blocks)
        self._sizes = [count(block) for block in blocks]
        self._parts: dict[int, dict[int, Outcome]] = {}

    def enter(self, task: Task, outcomes: Sequence[Outcome]) -> list[BlockOutcomes]:
        """Enter the outcomes of a call. Return its block if it is complete now."""
        if task.place is None:
            self.n_incomplete -= 1
            return [(task.block, list(outcomes))]
        parts = self._parts.setdefault(task.block, {})
        parts[task.place] = outcomes[0]
        if len(parts) < self._sizes[task.block]:
            return []
        self.n_incomplete -= 1
        return [(task.block, [parts[i] for i in range(len(parts))])]

    def fail(self, task: Task, loss: Loss) -> list[BlockOutcomes]:
        """Enter a call that was given up: all its points are failures."""
        return self.enter(task, [loss.at(row(task.points, i)) for i in range(count(task.points))])

    def one_by_one(self, task: Task) -> list[Task]:
        """Split a lost call into its points, so that only the point that causes it is given up."""
        if task.is_alone:
            return [task]
        return [Task(task.block, rows(task.points, [i]), i) for i in range(count(task.points))]


class Pace:
    """How long a call takes, and how many calls to send in one message.

    Each message costs a ``round_trip`` of r seconds. With k workers, T seconds of work take about
    T / k + k r seconds, which is least at k = sqrt(T / r). So all calls of a quick function go to
    one worker, in one message. Each call of a slow function has its own message, so that no worker
    waits for another.

    Examples
    --------
    >>> pace = Pace(workers=4, round_trip=2e-4)
    >>> pace.chunk_size(100)  # nothing measured yet
    1
    >>> pace.add(calls=100, seconds=1e-4)
    >>> pace.chunk_size(100)  # a microsecond each: all to one worker
    100
    >>> pace.add(calls=100, seconds=10.0)
    >>> pace.chunk_size(100)
    1
    """

    def __init__(self, workers: int, round_trip: float) -> None:
        self.workers, self.round_trip = workers, round_trip
        self._calls, self._seconds, self._longest = 0, 0.0, 0.0

    def add(self, calls: int, seconds: float) -> None:
        """Add the time that a worker took for its calls."""
        self._calls += calls
        self._seconds += seconds
        self._longest = max(self._longest, seconds)

    @property
    def grace(self) -> float:
        """Seconds that calls which cannot be ended have to end by themselves, after the deadline.

        A worker may have a second message waiting, hence more than one.
        """
        return max(_LEAST_GRACE, _LONGEST_CALLS * self._longest)

    def chunk_size(self, n: int) -> int:
        """Number of calls, out of n, to send in one message."""
        if not self._calls:
            return 1
        each = max(self._seconds / self._calls, 1e-9)
        workers = min(self.workers, max(1, math.isqrt(int(n * each / self.round_trip))))
        longest = max(1, round(_ROUND_TRIPS * self.round_trip / each))
        rounds = math.ceil(n / (workers * longest))
        return math.ceil(n / (workers * rounds))  # the same for each worker


_ROUND_TRIPS = 25  # work in one message, in round trips: sending the message adds 4 %
_LEAST_GRACE = 1.0  # seconds
_LONGEST_CALLS = 3.0  # the longest message so far, as often as a late one is waited for


def chunked(tasks: Sequence[Task], size: int) -> Iterable[list[Task]]:
    """Cut a list into pieces of a size."""
    return (list(tasks[i : i + size]) for i in range(0, len(tasks), size))
