"""``qbvi report``: a saved posterior as a page to read and to send (docs/commands.md)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

__all__ = ["add_to", "run"]


def add_to(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="write a saved posterior as one HTML page",
        description="Write one HTML page: the verdict in words, parameters, figures, failed evaluations, and how to cite.",
        epilog="example:\n  qbvi report qbvi-fit --out report.html\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("posterior", metavar="POSTERIOR", help="the file, or the folder of a fit")
    parser.add_argument("--out", metavar="FILE", help="the page (default: report.html beside the posterior)")
    parser.add_argument("--title", metavar="TEXT", help="its heading (default: the model)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the page; returns 0 if it is written, 2 if there is no posterior."""
    from qbvi.cli.tabular.report import exit_status

    return exit_status("report", lambda: _report(args))


def _report(args: argparse.Namespace) -> None:
    from qbvi.cli.tabular import TableError, read_posterior

    posterior, place = read_posterior(args.posterior), Path(args.posterior)
    folder = place if place.is_dir() else place.parent
    out = Path(args.out) if args.out else folder / "report.html"
    title = args.title or (None if posterior.recipe is None else posterior.recipe.title)
    try:
        posterior.fit.report(out, title=title, names=posterior.labels)
    except OSError as error:
        msg = f"{out}: cannot be written: {error.strerror or error}"
        raise TableError(msg) from error
    print(out)
