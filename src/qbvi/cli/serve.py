"""``qbvi serve``: fit a program in any language, over JSON lines on a pipe (docs/serve.md)."""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from qbvi.ask import Ask
    from qbvi.conversation import Iterate
    from qbvi.results import Fit

__all__ = ["add_to", "run"]

PROTOCOL = 1
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

    line = _Out(sys.stdout)
    try:
        server = _Server(args, line)
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        print(f"qbvi serve: {error}", file=sys.stderr)
        return 2
    with terminated_as_interrupted(), server.opt:
        try:
            reason = server.converse(_lines(sys.stdin.fileno()))
        except KeyboardInterrupt as interruption:
            reason = f"interrupted ({str(interruption) or 'Ctrl-C'}) before the fit settled"
        return server.finish(reason)


class _Server:
    """The fit, with the input and output of the pipe."""

    def __init__(self, args: argparse.Namespace, say: _Out) -> None:
        from qbvi.ask import Ask
        from qbvi.cli.priors import read_prior

        prior, options = read_prior(args.prior, _OPTIONS)
        if not os.path.isdir(os.path.dirname(os.path.abspath(args.out))):
            msg = f"--out must be in an existing folder, got {args.out!r}"
            raise ValueError(msg)
        self._say = say
        self._out: str = args.out
        self._shapes = {name: list(distribution.shape) for name, distribution in prior.items()}
        self.opt: Ask = Ask(
            prior,
            **{"on_failure": "exclude", **options},
            callback=self._progress,
            evaluations=args.evaluations,
            checkpoint=args.checkpoint,
            on_mismatch=args.on_mismatch,
        )

    def converse(self, lines: Iterator[bytes]) -> str:
        """Request and read values until the fit is done or the input ends.

        Returns why the fit ended early, or an empty string.
        """
        from qbvi.evaluate import EvaluationError
        from qbvi.run import DomainError

        self._say(type="hello", protocol=PROTOCOL, parameters=self._shapes)
        wanted = self._ask()
        for number, line in enumerate(lines, start=1):
            try:
                message = _message(line)
                if message["type"] == "stop":
                    return "stopped by the other program before the fit settled"
                self.opt.tell(message["id"], [message["value"]], message["noise_sd"])
                wanted.discard(message["id"])
            except (EvaluationError, DomainError) as error:
                return f"ended by an error: {error}"
            except ValueError as error:
                self._say(type="error", line=number, message=str(error))
            if self.opt.done:
                return ""
            wanted = wanted or self._ask()
        return "" if self.opt.done else "the input ended before the fit settled"

    def finish(self, reason: str) -> int:
        """Save the posterior and send the last message."""
        fit = self._result(reason)
        report = {"converged": False, "stop_reason": reason} if fit is None else _report(fit)
        posterior = None if fit is None else self._saved(fit)
        self._say(type="done", **report, posterior=posterior)
        return 1 if posterior is None else 0

    def _saved(self, fit: Fit) -> str | None:
        """Save the posterior and return its file; if writing fails, report it and return None."""
        try:
            fit.save(self._out)
        except OSError as error:
            print(f"qbvi serve: the posterior could not be saved: {error}", file=sys.stderr)
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
        return Fit(fit.model, fit.family, fit.q, fit.report.ended(Stop.own(False, reason)))

    def _ask(self) -> set[int]:
        points = self.opt.ask()
        for number, point in zip(points.ids.tolist(), points, strict=True):
            self._say(type="ask", id=number, parameters={name: value.tolist() for name, value in point.items()})
        return set(points.ids.tolist())

    def _progress(self, now: Iterate) -> None:
        self._say(type="progress", n_evals=now.n_evals, elbo=now.elbo, gap=now.gap)


class _Out:
    """Write one JSON object per line; if the reader has gone, go on without it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, **words: Any) -> None:
        try:
            self._stream.write(json.dumps(_plain(words), allow_nan=False) + "\n")
            self._stream.flush()
        except BrokenPipeError:
            self._silence()

    def _silence(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def _lines(file: int) -> Iterator[bytes]:
    """Yield lines as they arrive.

    A thread reads ahead, so that the other program may answer while requests are still written.
    """
    waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def read() -> None:
        rest = b""
        while chunk := os.read(file, 65536):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                waiting.put(line)
        if rest:
            waiting.put(rest)
        waiting.put(None)

    threading.Thread(target=read, daemon=True).start()
    return (line for line in iter(waiting.get, None) if line.strip())


def _message(line: bytes) -> dict[str, Any]:
    """Parse one line of input, or raise a ValueError that says what is wrong with it."""
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
    value = RuntimeError(str(message["error"])) if "error" in message else _number("value", message["value"])
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
