"""``qbvi reproduce``: the paper's experiments, with the published numbers (docs/reproduce.md)."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from qbvi.reproduce import EXPERIMENTS, FULL, QUICK, DataError, MissingDataError, Report, Settings, page, show, write
from qbvi.reproduce import run as run_experiment

__all__ = ["add_to", "run"]


def add_to(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "reproduce",
        help="run the paper's experiments and compare",
        description="Run an experiment of the paper; print its tables, and write tables, figures and an HTML page.",
    )
    parser.add_argument("experiment", choices=(*EXPERIMENTS, "all"), help="one of %(choices)s", metavar="EXPERIMENT")
    parser.add_argument("--out", default="reproduced", type=Path, metavar="DIR", help="folder (default: %(default)s)")
    parser.add_argument("--seed", default=1, type=_seed, metavar="N", help="seed of all fits (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="fewer iterations and runs: minutes for all experiments")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of german_credit.csv, spx_volatility.csv (default: $QBVI_DATA)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run and write; returns 0 when done, 2 if data or a package are missing."""
    try:
        from rich.console import Console
    except ImportError:
        print("qbvi reproduce: needs rich and matplotlib: pip install 'qbvi[reproduce]'", file=sys.stderr)
        return 2
    settings = Settings(args.seed, QUICK if args.quick else FULL, args.data)
    try:
        if args.experiment == "all":
            _all(settings, args.out, Console())
        else:
            _one(args.experiment, settings, args.out, Console())
    except (DataError, ImportError, OSError) as error:
        print(f"qbvi reproduce: {error}", file=sys.stderr)
        return 2
    return 0


def _seed(text: str) -> int:
    if not text.isdecimal():
        msg = f"must be a whole number, at least 0, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _one(name: str, settings: Settings, out: Path, console: Any) -> Report:
    start = time.perf_counter()
    with console.status(f"{name} ..."):
        report = run_experiment(name, settings)
    show(report, console)
    paths = write(report, out)
    seconds = time.perf_counter() - start
    console.print(
        f"\n{len(paths)} files in {out}, {seconds:.0f} s: see {out / name}.html\n", highlight=False, markup=False
    )
    return report


def _all(settings: Settings, out: Path, console: Any) -> None:
    """Run all experiments and write one page; without its data, one is listed as not run."""
    reports = []
    for name in EXPERIMENTS:
        try:
            reports.append(_one(name, settings, out, console))
        except MissingDataError as error:
            console.print(f"{name}: not run, {error}\n", highlight=False, markup=False)
            reports.append(Report(name, f"{name}: not run", (str(error),)))
    path = out / "index.html"
    path.write_text(page(reports, "The experiments of the QBVI paper, repeated"), encoding="utf-8")
    console.print(f"everything on one page: {path}", highlight=False, markup=False)
