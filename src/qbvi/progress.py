"""One line on a terminal that shows the progress of a fit.

It needs no progress library, which would be the heaviest dependency.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

from qbvi.stopping import History

__all__ = ["Progress"]


@dataclass
class Progress:
    """Evaluations, smoothed bound, step and time left, rewritten at most ten times a second.

    Parameters
    ----------
    shown
        Whether to write at all; None means only if ``stream`` is a terminal.
    max_iterations, max_evals, max_time
        Limits from which the time left is computed; None if unknown.

    Examples
    --------
    >>> progress = Progress(shown=False)
    >>> progress.line(History())
    'starting'
    """

    shown: bool | None = None
    max_iterations: int | None = None
    max_evals: int | None = None
    max_time: float | None = None
    stream: TextIO | None = field(default_factory=lambda: sys.stderr)
    _last: float = 0.0
    _width: int = 0

    def __post_init__(self) -> None:
        if self.stream is None:  # a program without a console has no stderr
            self.shown = False
        elif self.shown is None:
            self.shown = self.stream.isatty()

    def update(self, history: History) -> None:
        """Rewrite the line, unless it is recent."""
        if self.shown and time.monotonic() - self._last > 0.1:
            self._write(self.line(history))
            self._last = time.monotonic()

    def close(self, history: History, ending: str) -> None:
        """Write the last line."""
        if self.shown:
            self._write(f"{self.line(history)} | {ending}", end="\n")

    def line(self, history: History) -> str:
        """Describe the progress of the fit."""
        if not len(history):
            return "starting"
        left = self._seconds_left(history)
        parts = [
            f"iteration {len(history):,}",
            f"{history.n_evals[-1]:,} evaluations",
            f"bound {history.elbo_smooth[-1]:,.3f}",
            f"step {history.step[-1]:.2g}",
            "" if left is None else f"at most {_clock(left)} left",
        ]
        return "qbvi: " + " | ".join(part for part in parts if part)

    def _seconds_left(self, history: History) -> float | None:
        seconds = history.seconds[-1]
        shares = [
            len(history) / self.max_iterations if self.max_iterations else 0.0,
            history.n_evals[-1] / self.max_evals if self.max_evals else 0.0,
            seconds / self.max_time if self.max_time else 0.0,
        ]
        share = max(shares)
        return max(0.0, seconds / share - seconds) if share > 0 else None

    def _write(self, line: str, end: str = "") -> None:
        if self.stream is not None:
            self.stream.write("\r" + line.ljust(self._width) + end)
            self.stream.flush()
        self._width = len(line)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"
