"""``qbvi serve``: fit a program in any language, over JSON lines on a pipe (docs/serve.md)."""

from __future__ import annotations

import _thread
import argparse
import contextlib
import json
import math
import os
import queue
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from qbvi.cli.streams import complain, silence

if TYPE_CHECKING:
    from qbvi.ask import Ask
    from qbvi.conversation import Iterate
    from qbvi.results import Fit

__all__ = ["add_to", "run"]

PROTOCOL = 1
_LONGEST_LINE = 2**20  # bytes; a value takes less than a hundred
_LONGEST_TEXT = 2000  # characters that are kept of a message of the other program
_LEAST_WAITING = 1000  # messages that may wait to be taken, at least
_OPTIONS = ("method", "family", "tol", "seed", "max_evals", "on_failure", "init")


def add_to(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help="fit a program that answers on a pipe",
        description="Request values on stdout and read them from stdin, as JSON lines.",
    )
    parser.add_argument(
        "--prior", required=True, metavar="FILE", help="TOML file with one table per parameter, and [fit]"
    )
    parser.add_argument(
        "--out", default="posterior.npz", metavar="FILE", help="file for the posterior (default: %(default)s)"
    )
    parser.add_argument(
        "--evaluations", metavar="FILE", help="earlier evaluations of the same program: .csv, .parquet or .npz"
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="save the run here, and resume it if the file exists")
    parser.add_argument(
        "--on-mismatch",
        default="raise",
        choices=("raise", "keep", "re-evaluate"),
        help="what to do if the checkpoint has another prior (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve one fit.

    Returns 0 if there is a posterior, 1 if there is none, and 2 if the request is invalid.
    """
    from qbvi.signals import terminated_as_interrupted

    try:
        server = _Server(args, _Out(_opened("output", sys.stdout)), _Inbox(_opened("input", sys.stdin)))
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        complain(f"qbvi serve: {error}")
        return 2
    with server.opt:
        try:
            with terminated_as_interrupted():
                return server.finish(_reason(server))
        except KeyboardInterrupt:
            complain("qbvi serve: interrupted again before the posterior was saved")
            return 1


def _reason(server: _Server) -> str:
    """Converse to the end; return why the fit ended early, or an empty string."""
    try:
        return server.converse()
    except KeyboardInterrupt as interruption:
        return f"interrupted ({str(interruption) or 'Ctrl-C'}) before the fit settled"
    except _StreamError as error:
        complain(f"qbvi serve: {error}")
        return f"{error} before the fit settled"


def _opened(name: str, stream: TextIO | None) -> TextIO:
    if stream is None:
        msg = f"the standard {name} is closed, and the fit needs it for its values"
        raise ValueError(msg)
    return stream


class _StreamError(Exception):
    """The pipe cannot be read or written any more."""


class _Server:
    """The fit, with the input and output of the pipe."""

    def __init__(self, args: argparse.Namespace, say: _Out, inbox: _Inbox) -> None:
        from qbvi.ask import Ask
        from qbvi.cli.priors import read_prior
        from qbvi.points import mapped

        prior, options = read_prior(args.prior, _OPTIONS)
        if not os.path.isdir(os.path.dirname(os.path.abspath(args.out))):
            msg = f"--out must be in an existing folder, got {args.out!r}"
            raise ValueError(msg)
        self._say, self._inbox = say, inbox
        self._out: str = args.out
        self._shapes = mapped(lambda distribution: list(distribution.shape), prior)
        self.opt: Ask = Ask(
            prior,
            **{"on_failure": "exclude", **options},
            callback=self._progress,
            evaluations=args.evaluations,
            checkpoint=args.checkpoint,
            on_mismatch=args.on_mismatch,
        )

    def converse(self) -> str:
        """Request and read values until the fit is done or the input ends.

        Returns why the fit ended early, or an empty string.
        """
        self._say(type="hello", protocol=PROTOCOL, parameters=self._shapes)
        self._inbox.open()
        wanted = self._ask()
        for number, message in enumerate(self._inbox, start=1):
            if message.get("type") == "stop":
                return "stopped by the other program before the fit settled"
            try:
                self._take(message)
                wanted.discard(message["id"])
            # Whatever is raised inside a step: the fit has ended, which is no fault of the line.
            except Exception as error:  # noqa: BLE001
                if self.opt.done or not isinstance(error, ValueError):
                    return f"ended by an error: {error}"
                self._say(type="error", line=number, message=str(error))
            if self.opt.done:
                return ""
            wanted = wanted or self._ask()
        return "" if self.opt.done else "the input ended before the fit settled"

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "bad":
            raise ValueError(message["why"])
        self.opt.tell(message["id"], [message["value"]], message["noise_sd"])

    def finish(self, reason: str) -> int:
        """Save the posterior and send the last message."""
        fit = self._result(reason)
        report = {"converged": False, "stop_reason": reason} if fit is None else _report(fit)
        posterior = None if fit is None else self._saved(fit)
        with contextlib.suppress(_StreamError):  # the posterior is saved, and who wanted to know has gone
            self._say(type="done", **report, posterior=posterior)
        return 1 if posterior is None else 0

    def _saved(self, fit: Fit) -> str | None:
        """Save the posterior and return its file; if writing fails, report it and return None."""
        try:
            fit.save(self._out)
        except OSError as error:
            complain(f"qbvi serve: the posterior could not be saved: {error}")
            return None
        return str(os.path.abspath(self._out))

    def _result(self, reason: str) -> Fit | None:
        from qbvi.ending import Stop
        from qbvi.results import Fit

        try:
            fit = self.opt.fit()
        except RuntimeError:
            return None
        if not reason:
            return fit
        return Fit(fit.model, fit.family, fit.q, fit.record.ended(Stop.own(False, reason)))

    def _ask(self) -> set[int]:
        from qbvi.points import mapped

        points = self.opt.ask()
        # The other program may answer all of them, and twice, before the last one is written.
        self._inbox.allow(2 * len(points))
        for number, point in zip(points.ids.tolist(), points, strict=True):
            self._say(type="ask", id=number, parameters=mapped(lambda value: value.tolist(), point))
        return set(points.ids.tolist())

    def _progress(self, now: Iterate) -> None:
        self._say(type="progress", n_evals=now.n_evals, elbo=now.elbo, gap=now.gap)


class _Out:
    """Write one JSON object per line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, **words: Any) -> None:
        try:
            self._stream.write(json.dumps(_plain(words), allow_nan=False) + "\n")
            self._stream.flush()
        except OSError as error:
            silence(self._stream)
            msg = f"the output cannot be written ({error})"
            raise _StreamError(msg) from error


class _Inbox:
    """The messages of the other program.

    A thread reads ahead, so that the other program may answer while requests are still written. It
    reads as many messages as are allowed, and then waits.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # This queue is written in C. A signal inside `get` of the other kind may find its lock in a
        # state that raises a further error.
        self._waiting: queue.SimpleQueue[dict[str, Any] | OSError | None] = queue.SimpleQueue()
        self._room, self._most = threading.Semaphore(_LEAST_WAITING), _LEAST_WAITING

    def open(self) -> None:
        """Begin to read."""
        # `threading.Thread.start` waits on a lock written in Python, where a second signal raises
        # an error that is no interruption. This does not wait, and what it starts is a daemon.
        _thread.start_new_thread(self._read, ())

    def allow(self, n: int) -> None:
        """Let at least n messages wait."""
        if n > self._most:
            self._room.release(n - self._most)
            self._most = n

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield messages as they arrive."""
        while (message := self._waiting.get()) is not None:
            if isinstance(message, OSError):
                msg = f"the input cannot be read ({message})"
                raise _StreamError(msg)
            self._room.release()
            yield message

    def _read(self) -> None:
        try:
            for line in _lines(self._stream.fileno()):
                if line.strip():
                    self._room.acquire()
                    self._waiting.put(_parsed(line))
            self._waiting.put(None)
        except OSError as error:
            self._waiting.put(error)


def _lines(file: int) -> Iterator[bytes]:
    """Yield lines as they arrive; of one that is too long, a part that shows that it is."""
    line = bytearray()
    while chunk := os.read(file, 65536):
        first, *others = chunk.split(b"\n")
        line += first[: _LONGEST_LINE + 1 - len(line)]
        for other in others:
            yield bytes(line)
            line = bytearray(other)
    if line:
        yield bytes(line)


def _parsed(line: bytes) -> dict[str, Any]:
    """The message of a line, or a message of type "bad" that says what is wrong with it."""
    try:
        return _message(line)
    except ValueError as error:
        return {"type": "bad", "why": _shortened(str(error))}


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ..."


def _message(line: bytes) -> dict[str, Any]:
    """Parse one line of input, or raise a ValueError that says what is wrong with it."""
    if len(line) > _LONGEST_LINE:
        msg = f"a line must have at most {_LONGEST_LINE:,} bytes, got more"
        raise ValueError(msg)
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        msg = f'not a JSON object: {error}; write numbers that JSON lacks as strings, "nan" or "-inf"'
        raise ValueError(msg) from error
    if not isinstance(message, dict) or message.get("type", "tell") not in ("tell", "stop"):
        msg = 'a line must be {"type": "tell", "id": ..., "value": ...}, with "error" in place of "value" if it failed, or {"type": "stop"}'
        raise ValueError(msg)
    if message.get("type") == "stop":
        return {"type": "stop"}
    if type(message.get("id")) is not int or ("value" in message) == ("error" in message):
        msg = 'a tell must have a whole number as "id", and either "value" or "error"'
        raise ValueError(msg)
    value = (
        RuntimeError(_shortened(str(message["error"]))) if "error" in message else _number("value", message["value"])
    )
    return {
        "type": "tell",
        "id": message["id"],
        "value": value,
        "noise_sd": _number("noise_sd", message.get("noise_sd", 0.0)),
    }


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        msg = f'"{name}" must be a number, "nan", "inf", "-inf" or null, got {value!r}'
        raise ValueError(msg) from None


def _report(fit: Fit) -> dict[str, Any]:
    summary = {
        row.parameter: {"mean": row.mean, "sd": row.sd, "lower": row.lower, "upper": row.upper} for row in fit.summary()
    }
    ending = ("converged", "stop_reason", "n_evals", "n_failed", "seed")
    figures = ("elbo", "elbo_se", "evidence", "evidence_se", "missing", "missing_se", "khat")
    return {**{name: getattr(fit, name) for name in (*ending, *figures)}, "notes": list(fit.notes), "summary": summary}


def _plain(value: Any) -> Any:
    """Make a value serialisable: numbers that JSON does not have become strings."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
