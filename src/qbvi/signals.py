"""During a fit, SIGTERM interrupts as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Terminated", "terminated_as_interrupted"]


class Terminated(KeyboardInterrupt):
    """SIGTERM asked the process to end."""


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM inside the block.

    This applies in the main thread, and only if the program has no handler of its own.

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
        signal.signal(number, signal.SIG_DFL)  # in a forked worker, SIGTERM has its default effect
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
