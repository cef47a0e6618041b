"""``qbvi compare``: saved posteriors of the same data, by their evidence (docs/commands.md)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qbvi.cli.tabular import SavedPosterior

__all__ = ["add_to", "run"]


def add_to(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "compare",
        help="compare saved posteriors of the same data by their evidence",
        description="Compare posteriors of the same data: log evidence and differences to the best, with standard errors.",
        epilog="example:\n  qbvi compare small-fit large-fit\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("posteriors", nargs="+", metavar="POSTERIOR", help="folders of fits, or their files")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a table; returns 0 if there is one, 2 if the posteriors cannot be compared."""
    from qbvi.cli.tabular.report import exit_status

    return exit_status("compare", lambda: _compare(args))


def _compare(args: argparse.Namespace) -> None:
    from qbvi.cli.tabular import TableError, read_posterior
    from qbvi.cli.tabular.report import print_table, printable
    from qbvi.compare import compare

    if len(args.posteriors) < 2 or len(set(args.posteriors)) < len(args.posteriors):
        msg = f"give two posteriors or more, each once, got {' '.join(args.posteriors)}"
        raise TableError(msg)
    read = dict(zip(_names(args.posteriors), map(read_posterior, args.posteriors), strict=True))
    _refuse_other_data(read)
    table = compare({name: posterior.fit for name, posterior in read.items()})
    print_table(table.cells(), sys.stdout)
    for note in (*_models(read), *table.notes):
        print(printable(note))


def _names(paths: list[str]) -> list[str]:
    """The last part of each path, or the whole paths if those are not unique."""
    short = [Path(path).name or path for path in paths]
    return short if len(set(short)) == len(short) else paths


def _models(read: Mapping[str, SavedPosterior]) -> list[str]:
    """What each posterior is of."""
    return [f"{name}: {posterior.recipe.title}" for name, posterior in read.items() if posterior.recipe is not None]


def _refuse_other_data(read: Mapping[str, SavedPosterior]) -> None:
    """Refuse posteriors of other rows or targets: their evidences are of different data."""
    from qbvi.cli.tabular import TableError

    data = {
        name: (posterior.recipe.target, posterior.n_rows, posterior.data)
        for name, posterior in read.items()
        if posterior.recipe is not None
    }
    if len(set(data.values())) > 1:
        told = "; ".join(
            f"{name} of {target!r} in {rows:,} rows of {file}" for name, (target, rows, file) in data.items()
        )
        msg = f"evidences can be compared only for the same target in the same rows, got {told}"
        raise TableError(msg)
