"""``qbvi predict``: predict new rows with a saved posterior (docs/commands.md)."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from qbvi.cli.options import seed_number, separator, share, whole

if TYPE_CHECKING:
    from qbvi.cli.tabular import Recipe, Table

__all__ = ["add_to", "run"]

_EXAMPLES = """\
output, one row per row of --data:
  logistic        probability of a one, with an interval
  multinomial     the most probable class; probability and interval of each class
  linear, poisson mean with an interval (mean_lower, mean_upper), and an interval of new data (lower, upper)
  binomial        probability, then mean and intervals of the successes
  har             the following days, each from those before it, and the day after the last
  garch           the same: variance with an interval, and an interval of the return

examples:
  qbvi predict qbvi-fit --data new.csv --out predictions.csv
  qbvi predict garch-fit                 (the day after the last of the fit)
"""


def add_to(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "predict",
        help="predict new rows with a posterior that `qbvi fit` saved",
        description="Predict new rows with a posterior that `qbvi fit` saved. The training data are not needed.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("posterior", metavar="POSTERIOR", help="the folder of a fit, or its posterior.npz")
    parser.add_argument(
        "--data", metavar="FILE", help="CSV or Parquet with the columns of the fit; optional for har and garch"
    )
    parser.add_argument("--out", metavar="FILE", help="CSV or Parquet to write (default: CSV on the standard output)")
    parser.add_argument(
        "--interval", type=share, default=0.9, metavar="P", help="probability of the intervals (default: %(default)s)"
    )
    parser.add_argument("--draws", type=whole, default=1000, metavar="N", help="posterior draws (default: %(default)s)")
    parser.add_argument(
        "--draws-out", metavar="FILE", help="also write every draw: row, draw, expected target and new target"
    )
    parser.add_argument("--seed", type=seed_number, default=0, metavar="N", help="random seed (default: %(default)s)")
    parser.add_argument(
        "--separator", type=separator, default=",", metavar="MARK", help="separator of a CSV file (default: ,)"
    )
    parser.add_argument(
        "--drop-missing", action="store_true", help="drop rows with empty cells; otherwise they are an error"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predict; returns 0 if predictions were written, 2 if the request is invalid."""
    from qbvi.cli.tabular.report import exit_status

    return exit_status("predict", lambda: _predict(args))


def _predict(args: argparse.Namespace) -> None:
    from qbvi.cli.tabular import Spread, TableError, read_posterior, write_columns

    _refuse_bad_places(args)
    posterior = read_posterior(args.posterior)
    if posterior.recipe is None:
        msg = f"{args.posterior}: a posterior that `qbvi fit` did not save has no model to predict with; qbvi show prints it"
        raise TableError(msg)
    table = _rows(args, posterior.recipe)
    spread = Spread(args.draws, args.seed, args.interval)
    write_columns(posterior.recipe.predictions(posterior.fit, table, spread), args.out, sys.stdout)
    if args.draws_out is not None:
        write_columns(posterior.recipe.draws(posterior.fit, table, spread), args.draws_out, None)


def _rows(args: argparse.Namespace, recipe: Recipe) -> Table | None:
    from qbvi.cli.tabular import read_table

    if args.data is None:
        return None
    table = read_table(args.data, args.separator)
    table.require(recipe.columns)
    kept = table.without_missing(recipe.columns) if args.drop_missing else table
    if len(kept) < len(table):
        print(f"rows left out because of empty cells: {len(table) - len(kept):,} of {len(table):,}", file=sys.stderr)
    return kept


def _refuse_bad_places(args: argparse.Namespace) -> None:
    """Refuse to overwrite an input file, and an output folder that does not exist."""
    for option, out in (("--out", args.out), ("--draws-out", args.draws_out)):
        for given in (args.data, args.posterior):
            if out and given and os.path.realpath(given) == os.path.realpath(out):
                msg = f"{option} must not be one of the input files, got {out!r}"
                raise ValueError(msg)
        if not os.path.isdir(os.path.dirname(os.path.abspath(out or ""))):
            msg = f"{option} must be in an existing folder, got {out!r}"
            raise ValueError(msg)
