"""Attacks on qbvi: one row of a table for each, with the number of trials and how many qbvi survived.

A trial is a function of a random generator and an empty folder. It returns what went wrong, in words, or nothing; an exception
is something that went wrong too. A module of this package is a part of the table: `attack` in it adds a row.

    @attack("a file cut anywhere", short=20, long=2000)
    def cut_file(rng, folder):
        ...
        return "" if isinstance(error, ValueError) else f"{error!r} is not ours"

`short` trials run in `make test`, `long` ones in `make soak`. A trial must end by itself: what may hang goes through `ended`.
"""

import contextlib
import importlib
import os
import pkgutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SEED = 20260
Trial = Callable[[np.random.Generator, Path], str | None]
_CASES: dict[str, "Case"] = {}


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    trial: Trial
    short: int
    long: int
    marks: tuple = ()


@dataclass
class Tally:
    """What came of the trials of a case."""

    tried: int = 0
    limits: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def survived(self):
        return self.tried - self.limits - len(self.complaints)


class Limit(str):
    """What went wrong in a trial for a reason that docs/reliability.md names: not survived, and no failure of a test."""

    __slots__ = ()


def attack(name, *, short, long, marks=()):
    """Add a trial to the table, with its number of runs in `make test` (0 for none) and in `make soak`."""

    def added(trial):
        _CASES[name] = Case(name, trial, short, long, tuple(marks))
        return trial

    return added


def cases():
    """All rows, from all modules of this package."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return list(_CASES.values())


def tallied(case, numbers, folder):
    """Run the trials with these numbers; a trial depends on its number alone."""
    tally = Tally()
    for k in numbers:
        own = folder / str(k)
        own.mkdir()
        try:
            complaint = case.trial(np.random.default_rng([SEED, k]), own)
        except Exception:  # noqa: BLE001 - the table counts it
            complaint = traceback.format_exc()
        tally.tried += 1
        if isinstance(complaint, Limit):
            tally.limits += 1
        elif complaint:
            tally.complaints.append(f"trial {k}: {complaint}")
    return tally


# ---------------------------------------------------------------- for trials that may hang

LIMIT = 120.0  # seconds: far more than any trial takes on a busy machine, far less than for ever


def ended(command, **options):
    """Run a command to its end; return its exit status and both streams, or None if it did not end."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options
    )
    try:
        out, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end_group(process)
    return process.returncode, out, errors


def end_group(process):
    """Kill a process that was started in a session of its own, with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def complaint_of(outcome, statuses, words=""):
    """What is wrong with the end of a command: it hangs, shows a traceback, or has another exit status."""
    if outcome is None:
        return f"no end within {LIMIT:g} s"
    status, out, errors = outcome
    if "Traceback" in errors or "Exception ignored" in errors:
        return f"a traceback:\n{errors}"
    if status not in statuses:
        return f"exit status {status}, not one of {statuses}; {errors}"
    return "" if words in out + errors else f"no word of {words!r} in {out[-500:]!r} or {errors[-500:]!r}"


PYTHON = sys.executable


def show_table(terminal):
    """Write the table of the trials that a run of pytest made: case, tried, survived."""
    rows = {}
    for report in (report for reports in terminal.stats.values() for report in reports):
        for kind, value in getattr(report, "user_properties", ()):
            if kind == "attack" and report.when == "call":
                name, *counts = value
                rows[name] = tuple(map(sum, zip(rows.get(name, (0, 0, 0)), counts, strict=True)))
    if not rows:
        return
    width = max(map(len, rows))
    terminal.section("attacks")
    terminal.write_line(f"{'case':{width}}  tried  survived")
    for name, (tried, survived, limits) in sorted(rows.items()):
        note = f"  {limits} wrong by a limit that docs/reliability.md names" if limits else ""
        terminal.write_line(f"{name:{width}}  {tried:5}  {survived:8}{note}")
