"""Standard streams that may be closed, full, or read by nobody."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

__all__ = ["complain", "flush_output", "silence"]


def complain(line: str) -> None:
    """Write a line to the standard error, if that is possible."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, flush=True)


def flush_output() -> None:
    """Write what is still buffered, so that an error comes now and not after the end."""
    if sys.stdout is not None:
        sys.stdout.flush()


def silence(stream: TextIO | None) -> None:
    """Send what is still buffered nowhere, so that Python does not fail over it when it ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)
