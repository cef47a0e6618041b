"""Worker processes of our own, which can be killed one by one.

`concurrent.futures.ProcessPoolExecutor` cannot end a single call, and is unusable after a worker
dies. Here each worker has a pipe of its own and workers share nothing, so a killed worker leaves no
lock held and no queue damaged.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import types
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from qbvi.evaluate.black_box import EvaluationError
from qbvi.evaluate.calls import Calls, Outcome, working_as
from qbvi.evaluate.deadlines import is_over, seconds_until
from qbvi.evaluate.shipping import has_cloudpickle, packed
from qbvi.evaluate.tasks import BlockOutcomes, Ledger, Loss, Pace, Task, chunked
from qbvi.points import Points

__all__ = ["Processes"]

_ROUND_TRIP = 2e-4  # seconds that a message and its answer cost
_REPLY_EVERY = 2e-3  # seconds for which a worker collects results, to send several together
_SECONDS_TO_LEAVE = 2.0  # that an idle worker has to end by itself
_MOST_LOSSES = 2  # workers that may die during one call before it is given up
_MOST_FAILED_STARTS = 3  # workers that may die before they are ready, one after the other
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_HELLO, _READY = "hello", "ready"

Waiting = deque[list[Task]]


class Processes:
    """Processes that hold the user's function and receive points.

    Parameters
    ----------
    calls
        What a worker does with a block of points. It is pickled once, and sent to each worker as it
        starts.
    workers
        Number of processes.
    timeout
        Seconds after which a call is ended by killing its worker; None for no limit.
    deadline
        When to give up if no worker is ready by then; see `qbvi.evaluate.deadlines`.

    Examples
    --------
    >>> import math, numpy as np
    >>> with Processes(Calls(math.sqrt), workers=1) as pool:
    ...     dict(pool.run([np.array([4.0]), np.array([9.0])], ()))[1]
    [Outcome(value=3.0, noise_sd=0.0, failure=None)]
    """

    def __init__(self, calls: Calls, workers: int, timeout: float | None = None, deadline: float | None = None) -> None:
        self.timeout = timeout
        self._deadline = deadline
        self._blame = calls.blame
        self._payload = packed(calls)
        self._pace = Pace(workers, _ROUND_TRIP)
        self._failed_starts = 0
        self._workers: list[_Worker] = []
        try:
            self._workers += [self._new_worker() for _ in range(workers)]
            while not any(worker.is_ready for worker in self._workers):
                if is_over(deadline):
                    raise EvaluationError(_NOT_LOADED)
                for worker in self._due_workers():
                    self._attend(worker, Ledger([]), deque())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, blocks: Sequence[Points], batch: tuple[Any, ...], deadline: float | None = None
    ) -> Iterator[BlockOutcomes]:
        """Yield the number and the outcomes of each block as they arrive.

        Calls that are under way at the deadline are ended by killing their workers.
        """
        self._deadline = deadline
        ledger = Ledger(blocks)
        waiting = deque(chunked(ledger.tasks, self._pace.chunk_size(len(blocks))))
        try:
            while ledger.n_incomplete and not is_over(deadline):
                self._hand_out(waiting, batch)
                for worker in self._due_workers():
                    yield from self._attend(worker, ledger, waiting)
        finally:  # an error or Ctrl-C in the middle of a step: the rest is not needed
            for worker in [worker for worker in self._workers if worker.tasks]:
                self._replace(worker)

    def close(self) -> None:
        """End all processes: idle ones end by themselves, the others are killed."""
        for worker in self._workers:
            worker.dismiss()
        for worker in self._workers:
            worker.end(_SECONDS_TO_LEAVE)
        self._workers.clear()

    def _new_worker(self) -> _Worker:
        return _Worker(reply_every=_REPLY_EVERY if self.timeout is None else 0.0)

    def _replace(self, worker: _Worker) -> None:
        worker.end()
        self._workers[self._workers.index(worker)] = self._new_worker()

    def _hand_out(self, waiting: Waiting, batch: tuple[Any, ...]) -> None:
        for worker in self._workers:
            if waiting and worker.is_ready and not worker.tasks:
                worker.give(waiting.popleft(), batch)

    def _due_workers(self) -> list[_Worker]:
        """Wait for workers that sent a message, died, or exceeded the timeout; return them."""
        limits = [self._time_left(worker) for worker in self._workers] + [seconds_until(self._deadline)]
        limit = min((seconds for seconds in limits if seconds is not None), default=None)
        events = {event: worker for worker in self._workers for event in (worker.connection, worker.process.sentinel)}
        ready = {events[event] for event in wait(list(events), None if limit is None else max(0.0, limit))}
        return [worker for worker in self._workers if worker in ready or self._is_late(worker)]

    def _time_left(self, worker: _Worker) -> float | None:
        """Seconds that the call of a worker may still take; None without a limit or a call."""
        if self.timeout is None or not worker.tasks:
            return None
        return worker.since + self.timeout - time.monotonic()

    def _is_late(self, worker: _Worker) -> bool:
        left = self._time_left(worker)
        return left is not None and left <= 0

    def _attend(self, worker: _Worker, ledger: Ledger, waiting: Waiting) -> list[BlockOutcomes]:
        """Receive the messages of a worker.

        If it died or is late, replace it and repeat or give up its calls.
        """
        is_dead = worker.is_dead()  # first, so that all messages of a dead worker are read below
        complete = [block for task, outcomes in self._results_of(worker) for block in ledger.enter(task, outcomes)]
        if is_dead or worker.is_lost:
            return complete + self._repeat_lost(worker, ledger, waiting)
        if self._is_late(worker):
            return complete + self._end_late(worker, ledger, waiting)
        return complete

    def _results_of(self, worker: _Worker) -> Iterator[tuple[Task, list[Outcome]]]:
        for message in worker.messages():
            if message == _HELLO:
                worker.send_bytes(self._payload)
            elif message == _READY:
                worker.is_ready, self._failed_starts = True, 0
            elif isinstance(message, str):
                msg = f"`log_likelihood` was sent to a worker process but cannot be loaded there:\n{message}"
                raise EvaluationError(msg)
            else:
                seconds, answers = message
                self._pace.add(len(answers), seconds)
                yield from worker.answered(answers)

    def _repeat_lost(self, worker: _Worker, ledger: Ledger, waiting: Waiting) -> list[BlockOutcomes]:
        """Repeat the lost calls one at a time. Give up a call during which workers keep dying."""
        tasks, was_ready = list(worker.tasks), worker.is_ready
        self._replace(worker)
        self._failed_starts += not was_ready
        if self._failed_starts >= _MOST_FAILED_STARTS:
            raise EvaluationError(_NOT_READY.format(worker.how_it_ended()))
        complete = []
        for task in reversed([task._replace(losses=task.losses + 1) for task in tasks]):
            if task.losses >= _MOST_LOSSES and len(tasks) == 1 and (task.is_alone or not self._blame):
                complete += ledger.fail(task, worker.loss("died", worker.how_it_ended()))
            else:
                waiting.extendleft([piece] for piece in reversed(self._pieces(ledger, task)))
        return complete

    def _end_late(self, worker: _Worker, ledger: Ledger, waiting: Waiting) -> list[BlockOutcomes]:
        """Kill a worker whose call takes too long.

        Other workers get the calls that it had not begun.
        """
        late, *others = worker.tasks
        loss = worker.loss("timeout", f"no answer within {self.timeout:g} s; the process was killed")
        self._replace(worker)
        waiting.extendleft([task] for task in reversed(others))
        if late.is_alone or not self._blame:
            return ledger.fail(late, loss)
        waiting.extendleft([piece] for piece in reversed(self._pieces(ledger, late)))
        return []

    def _pieces(self, ledger: Ledger, task: Task) -> list[Task]:
        return [piece._replace(losses=task.losses) for piece in ledger.one_by_one(task)] if self._blame else [task]


class _Worker:
    """One process, its pipe, and its unanswered calls in order."""

    def __init__(self, reply_every: float) -> None:
        context = _context()
        self.connection, theirs = context.Pipe()
        limit_threads = not any(name in os.environ for name in _THREADS)
        with _starting(limit_threads):
            self.process = context.Process(target=_serve, args=(theirs, reply_every, limit_threads), daemon=True)
            _start(self.process)
        theirs.close()
        self.tasks: deque[Task] = deque()
        self.since = 0.0  # when the first of them began
        self.is_ready = False
        self.is_lost = False  # whether its end of the pipe is closed
        self.name = f"pid {self.process.pid}"

    def give(self, tasks: Sequence[Task], batch: tuple[Any, ...]) -> None:
        self.tasks.extend(tasks)
        self.since = time.monotonic()
        self.send_bytes(pickle.dumps(([task.points for task in tasks], batch)))

    def send_bytes(self, message: bytes) -> None:
        try:
            self.connection.send_bytes(message)
        except OSError:
            self.is_lost = True

    def messages(self) -> Iterator[Any]:
        try:
            while self.connection.poll():
                yield self.connection.recv()
        except (EOFError, OSError):
            self.is_lost = True

    def answered(self, answers: Sequence[list[Outcome]]) -> list[tuple[Task, list[Outcome]]]:
        self.since = time.monotonic()
        return [(self.tasks.popleft(), working_as(self.name, outcomes)) for outcomes in answers]

    def is_dead(self) -> bool:
        return bool(wait([self.process.sentinel], 0))

    def loss(self, kind: str, message: str) -> Loss:
        return Loss(kind, message, time.monotonic() - self.since, self.name)

    def how_it_ended(self) -> str:
        code = self.process.exitcode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"

    def dismiss(self) -> None:
        if self.is_ready and not self.tasks:
            self.send_bytes(b"")

    def end(self, patience: float = 0.0) -> None:
        """End the process and all processes that it started."""
        if patience and self.is_ready and not self.tasks:
            self.process.join(patience)
        # Also after its own death, as what it started lives on. And a worker whose forkserver was
        # killed looks dead but is not.
        _kill(self.process.pid)
        if not self.is_dead():
            self.process.kill()
        self.process.join()
        self.connection.close()


_NOT_READY = (
    "the worker processes end before they are ready ({}); a script that is run by itself needs its calls under "
    "`if __name__ == \"__main__\":`, or: pip install 'qbvi[parallel]', with which it does not"
)


_NOT_LOADED = (
    "`max_time` is over and no worker process is ready: Python and `log_likelihood` take longer than that to load there; "
    "give more time, or make the function smaller"
)
_NOT_STARTED = (
    "a worker process could not be started ({}): the server from which Python forks them was killed, "
    "or the system allows no more processes; start the fit again"
)


# Seconds before another try to start a process: Python replaces the server only once the system has
# ended it.
_PAUSES = (0.01, 0.1, 1.0)


def _start(process: Any) -> None:
    """Start a process, again if the server that forks it was just killed."""
    for pause in (*_PAUSES, None):
        try:
            process.start()
        except (OSError, EOFError) as error:
            if pause is None:
                raise EvaluationError(_NOT_STARTED.format(f"{type(error).__name__}: {error}")) from error
            time.sleep(pause)
        else:
            return


def _context() -> Any:
    # Not fork: a copy of a process with threads, such as those of BLAS, can hang at its first lock.
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # A killed worker is then replaced in milliseconds.
    context.set_forkserver_preload([__name__])
    return context


@contextlib.contextmanager
def _starting(limit_threads: bool) -> Iterator[None]:
    """The environment in which a process starts: one BLAS thread, and no script to run again.

    The number of threads has to be set before NumPy is loaded.

    With cloudpickle, functions of the script are sent by value. Without a ``__main__``,
    multiprocessing does not run the script in each worker, so the script needs no guard.
    """
    main = sys.modules["__main__"]
    if limit_threads:
        os.environ.update(dict.fromkeys(_THREADS, "1"))
    if has_cloudpickle():
        sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name in _THREADS if limit_threads else ():
            os.environ.pop(name, None)


def _kill(pid: int | None) -> None:
    """Kill the whole process group of a worker, with any simulator that it started."""
    if pid is not None and hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _serve(connection: Connection, reply_every: float, limit_threads: bool) -> None:
    """The main function of a worker.

    Receive the function, then points, until an empty message or the end of the pipe.
    """
    _follow_the_fit()
    with contextlib.suppress(EOFError, OSError):  # the fit has ended
        connection.send(_HELLO)
        payload = connection.recv_bytes()
        try:
            calls = pickle.loads(payload)
        except Exception:  # noqa: BLE001 - whatever loading raises is reported
            connection.send(traceback.format_exc())
            return
        _limit_threads(limit_threads)
        connection.send(_READY)
        while message := connection.recv_bytes():
            _answer(connection, calls, pickle.loads(message), reply_every)


def _answer(connection: Connection, calls: Calls, message: tuple[list[Points], Any], reply_every: float) -> None:
    blocks, batch = message
    answers: list[list[Outcome]] = []
    start = time.monotonic()
    for block in blocks:
        answers.append(calls(block, batch))
        now = time.monotonic()
        if now - start >= reply_every:
            connection.send((now - start, answers))
            answers, start = [], now
    if answers:
        connection.send((time.monotonic() - start, answers))


def _follow_the_fit() -> None:
    """Ignore Ctrl-C, which the fit handles, and end when the process of the fit ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    threading.Thread(target=_end_with_the_fit, daemon=True).start()


def _end_with_the_fit() -> None:
    fit = multiprocessing.parent_process()
    if fit is not None:
        fit.join()
        _kill(os.getpid())
        os._exit(1)


def _limit_threads(limit_threads: bool) -> None:
    if limit_threads and importlib.util.find_spec("threadpoolctl") is not None:
        from threadpoolctl import threadpool_limits

        threadpool_limits(1)
