"""The moment at which the time of a fit is over, and waiting that ends there.

A deadline is a moment on the clock `time.monotonic`; None stands for no limit.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

__all__ = ["arriving", "current_deadline", "deadline_in", "is_over", "limited_to", "seconds_until", "within"]

T = TypeVar("T")


def is_over(deadline: float | None) -> bool:
    """Whether the deadline has passed.

    Examples
    --------
    >>> is_over(None), is_over(time.monotonic() - 1.0), is_over(time.monotonic() + 60.0)
    (False, True, False)
    """
    return deadline is not None and time.monotonic() >= deadline


def deadline_in(seconds: float | None) -> float | None:
    """The deadline in so many seconds from now."""
    return None if seconds is None else time.monotonic() + seconds


def seconds_until(deadline: float | None) -> float | None:
    """Seconds that are left, zero at least; None without a deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def within(seconds: float | None, act: Callable[[], T]) -> T:
    """Return ``act()``; raise `TimeoutError` if that takes longer.

    With a limit, a thread of its own makes the call, and is left behind if it is late: for calls of
    a library that cannot be ended from outside.

    Examples
    --------
    >>> within(10.0, lambda: 3)
    3
    """
    if seconds is None:
        return act()
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(act())
        except BaseException as error:  # noqa: BLE001 - raised again, in the thread that waits
            done.set_exception(error)

    threading.Thread(target=work, name="qbvi-waits", daemon=True).start()
    return done.result(timeout=seconds)


def arriving(items: Callable[[], Iterable[T]], seconds: Callable[[], float | None]) -> Iterator[T]:
    """Yield items as they arrive; raise `TimeoutError` if the next one takes longer than allowed.

    A thread of its own iterates, and is left behind if it is late.

    Parameters
    ----------
    items
        Gives the items; called in that thread.
    seconds
        How long to wait for the next item, asked anew for each.

    Examples
    --------
    >>> list(arriving(lambda: map(abs, [-1, 2]), lambda: 10.0))
    [1, 2]
    """
    arrived: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def work() -> None:
        try:
            for item in items():
                arrived.put((True, item))
            arrived.put((False, None))
        except BaseException as error:  # noqa: BLE001 - raised again, in the thread that waits
            arrived.put((False, error))

    threading.Thread(target=work, name="qbvi-waits", daemon=True).start()
    while True:
        try:
            is_item, item = arrived.get(timeout=seconds())
        except queue.Empty:
            raise TimeoutError from None
        if is_item:
            yield item
        elif item is None:
            return
        else:
            raise item


_CURRENT: ContextVar[float | None] = ContextVar("_CURRENT", default=None)


@contextmanager
def limited_to(deadline: float | None) -> Iterator[None]:
    """Let `current_deadline` return this deadline inside the block.

    So a likelihood of qbvi's own, which the fit calls as it calls any function, knows its limit.

    Examples
    --------
    >>> with limited_to(12.0):
    ...     current_deadline()
    12.0
    """
    token = _CURRENT.set(deadline)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_deadline() -> float | None:
    """The deadline of the fit that makes the current call in this thread."""
    return _CURRENT.get()
