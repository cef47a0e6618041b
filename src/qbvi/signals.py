"""SIGTERM as a polite request to end: for the length of a fit it interrupts as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Terminated", "terminated_as_interrupted"]


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM."""


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM inside of the block; in the main thread, and where the program has no handler of its own.

    Examples
    --------
    >>> import os
    >>> try:
    ...     with terminated_as_interrupted():
    ...         os.kill(os.getpid(), signal.SIGTERM)
    ... except KeyboardInterrupt as interruption:
    ...     print(interruption)
    SIGTERM
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    own = os.getpid()

    def interrupt(number: int, _: object) -> None:
        if os.getpid() == own:
            raise Terminated(signal.Signals(number).name)
        signal.signal(number, signal.SIG_DFL)  # a worker forked meanwhile ends as it would have
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
