"""``qbvi show``: print a saved posterior (docs/commands.md)."""

from __future__ import annotations

import argparse
from typing import Any

from qbvi.cli.options import share

__all__ = ["add_to", "run"]


def add_to(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "show",
        help="print a saved posterior and its diagnostics",
        description="Print a posterior that `qbvi fit`, `qbvi serve` or Fit.save wrote: parameters, diagnostics and scores.",
        epilog="example:\n  qbvi show qbvi-fit --interval 0.8\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("posterior", metavar="POSTERIOR", help="the file, or the folder of a fit")
    parser.add_argument(
        "--interval", type=share, default=0.95, metavar="P", help="probability of the intervals (default: %(default)s)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print; returns 0 if there is a posterior, 2 if there is none."""
    from qbvi.cli.tabular import read_posterior
    from qbvi.cli.tabular.report import exit_status, print_posterior

    return exit_status("show", lambda: print_posterior(read_posterior(args.posterior), args.interval))
