"""One line on a terminal that shows the progress of a fit.

It needs no progress library, which would be the heaviest dependency.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

import numpy as np

from qbvi.stopping import History

__all__ = ["Count", "Progress", "evaluations_to_go"]

# The trend of the predicted gap: from at most so many iterations, and at least so many ...
_MOST_POINTS, _FEWEST_POINTS = 10, 4
_CLEAR = 3.0  # ... if its slope is so many standard errors below zero ...
_EVERY = 0.1  # seconds between two lines
_REACH = 3.0  # ... and no further ahead than so many times the evaluations so far


def evaluations_to_go(history: History, tol: float) -> int | None:
    """Evaluations until the predicted gap falls below ``tol`` nats, if its trend tells.

    The gap is extrapolated as a power of the number of evaluations, since most of it is the error
    of a regression. None if there is no clear trend, or if it reaches the tolerance only far ahead.

    Examples
    --------
    >>> history = History()
    >>> history.n_evals, history.gap = [10, 20, 30, 40, 50], [5.0, 2.5, 1.667, 1.25, 1.0]
    >>> evaluations_to_go(history, tol=0.5)
    50
    """
    gap = np.array(history.gap[-_MOST_POINTS:], dtype=np.float64)
    n_evals = np.array(history.n_evals[-_MOST_POINTS:], dtype=np.float64)
    known = np.isfinite(gap) & (gap > 0)
    if known.sum() < _FEWEST_POINTS or not known[-1] or np.ptp(n_evals[known]) == 0:
        return None
    (slope, intercept), covariance = np.polyfit(np.log(n_evals[known]), np.log(gap[known]), 1, cov=True)
    if not slope < -_CLEAR * math.sqrt(covariance[0, 0]):
        return None
    growth = (math.log(tol) - intercept) / slope - math.log(n_evals[-1])
    return round(n_evals[-1] * math.expm1(growth)) if 0 < growth < math.log1p(_REACH) else None


@dataclass
class Progress:
    """Evaluations, bound, step, and what is left, rewritten at most ten times a second.

    Parameters
    ----------
    shown
        Whether to write at all; None means only if ``stream`` is a terminal.
    max_iterations, max_evals, max_time
        Limits from which the time left is computed; None if unknown.
    tol
        Predicted gap, in nats, at which the fit ends; None if it has no such rule.

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
    tol: float | None = None
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
        if self.shown and time.monotonic() - self._last > _EVERY:
            self.show(self.line(history))

    def show(self, line: str, end: str = "") -> None:
        """Write a line over the last one, unless that is recent; one with an ``end`` always."""
        if self.shown and (end or time.monotonic() - self._last > _EVERY):
            self._write(line, end)
            self._last = time.monotonic()

    def count(self, history: History, n_evals: int, check: tuple[int, int] | None = None) -> None:
        """Rewrite the line between two iterations, unless it is recent.

        Parameters
        ----------
        history
            The iterations so far.
        n_evals
            Evaluations so far, with those since the last iteration.
        check
            If they are fresh draws that check the result: how many are made, and of how many.
        """
        if self.shown and time.monotonic() - self._last > _EVERY:
            self.show(self.line(history, n_evals, check))

    def close(self, history: History, ending: str, n_evals: int | None = None) -> None:
        """Write the last line; ``n_evals`` are all evaluations, with those of the closing check."""
        if self.shown:
            self.show(f"{self.line(history, n_evals)} | {ending}", end="\n")

    def line(self, history: History, n_evals: int | None = None, check: tuple[int, int] | None = None) -> str:
        """Describe the progress of the fit."""
        n_evals = n_evals if n_evals is not None else history.n_evals[-1] if len(history) else 0
        count = f"{n_evals:,} evaluations" if n_evals else ""
        if not len(history):
            return f"qbvi: starting | {count}" if count else "starting"
        checked = None if check is None else "checking the result: {:,} of {:,} fresh draws".format(*check)
        ahead = [checked] if checked else self._ahead(history)
        parts = [
            f"iteration {len(history):,}",
            count,
            f"bound {history.elbo_smooth[-1]:,.3f}",
            f"step {history.step[-1]:.2g}",
            *ahead,
        ]
        return "qbvi: " + " | ".join(part for part in parts if part)

    def _ahead(self, history: History) -> list[str]:
        """What is left until the tolerance or a limit is reached."""
        left = self._seconds_left(history)
        to_go = None if self.tol is None else evaluations_to_go(history, self.tol)
        return [
            "" if to_go is None else f"about {_rounded(to_go):,} to go",
            "" if left is None else f"at most {_clock(left)} left",
        ]

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


@dataclass
class Count:
    """How many of a known number of calls are done, rewritten at most ten times a second.

    Parameters
    ----------
    what
        What the calls are for.
    total
        Their number.
    shown, stream
        As for `Progress`.

    Examples
    --------
    >>> Count("predict", 1000, shown=False).line(250, seconds=2.0)
    'qbvi: predict | 250 of 1,000 | about 6 s left'
    """

    what: str
    total: int
    shown: bool | None = None
    stream: TextIO | None = field(default_factory=lambda: sys.stderr)

    def __post_init__(self) -> None:
        self._start, self._done = time.monotonic(), 0
        self._line = Progress(self.shown, stream=self.stream)

    def update(self, done: int) -> None:
        """Rewrite the line, unless it is recent."""
        self._done = done
        self._line.show(self.line(done, time.monotonic() - self._start))

    def close(self) -> None:
        """Write the last line."""
        self._line.show(self.line(self._done, time.monotonic() - self._start), end="\n")

    def line(self, done: int, seconds: float) -> str:
        """Describe how far the calls are."""
        left = f" | about {_clock(seconds / done * (self.total - done))} left" if 0 < done < self.total else ""
        return f"qbvi: {self.what} | {done:,} of {self.total:,}{left}"


def _rounded(number: int) -> int:
    """To one significant digit: an extrapolation knows no more."""
    return round(number, 1 - len(str(number)))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"
