"""``qbvi fit``: fit a ready-made model to a table (docs/commands.md)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qbvi.cli.options import positive, seed_number, separator, share, whole

if TYPE_CHECKING:
    from qbvi.cli.tabular import SavedPosterior, Table
    from qbvi.cli.tabular.choices import Choice

__all__ = ["add_to", "run"]

MODELS = ("logistic", "multinomial", "linear", "poisson", "binomial", "har", "garch")
METHODS = ("auto", "exact", "free", "regression", "mean-field", "ridge")
_MOST_MARGINALS, _MOST_PAIRS = 24, 10  # most entries of a legible figure

_EXAMPLES = """\
models:
  logistic     binary target, 0 or 1, or two labels
  multinomial  target of class labels, text or numbers
  linear       numeric target
  poisson      target of counts; --exposure or --offset
  binomial     target of successes; --trials
  har          a column of realized volatility, one row per day, oldest first
  garch        a column of returns, oldest first

examples:
  qbvi fit --model logistic --data loans.csv --target default --test-share 0.25
  qbvi fit --model logistic --data bank.csv --target y --positive yes --formula 'age * job + balance' --base job=student
  qbvi fit --model linear --data sales.csv --target units --features price,shop,day --test-from day=2024-01-01
  qbvi fit --model poisson --data claims.csv --target claims --exposure years --features age,power
  qbvi fit --model garch --data prices.parquet --target return --demean --out garch-fit
"""


def add_to(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "fit",
        help="fit a ready-made model to a CSV or Parquet file",
        description="Fit a ready-made model to a table. Prints the posterior and saves it, with plots, under --out.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_data(parser.add_argument_group("data"))
    _add_model(parser.add_argument_group("model"))
    _add_fitting(parser.add_argument_group("fit and output"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fit, print and save.

    Returns 0 if there is a posterior, 1 if the fit failed, and 2 if the request is invalid.
    """
    from qbvi.cli.tabular.report import exit_status, one_line

    try:
        return exit_status("fit", lambda: _run(args))  # it saves everything before it prints anything
    except RuntimeError as error:  # from the likelihood, at some point of the fit
        print(f"qbvi fit: the fit failed: {one_line(error)}", file=sys.stderr)
        return 1


def _run(args: argparse.Namespace) -> None:
    from qbvi.cli.tabular import POSTERIOR, SavedPosterior, Spread, save_posterior
    from qbvi.cli.tabular.report import print_posterior, printable

    choice, test = _tables(args)
    folder = _folder(args.out)
    recipe, model = choice.recipe, choice.recipe.trained(choice.table)
    options = {
        "method": args.method,
        "family": args.family,
        "tol": args.tol,
        "max_evals": args.max_evals,
        "seed": args.seed,
    }
    fit = model.fit(recipe.prior_of(model), on_failure="exclude", **options)
    tables = {"train": choice.table} | ({} if test is None else {"test": test})
    scores = {part: recipe.scores(fit, table, Spread(seed=args.seed)) for part, table in tables.items()}
    posterior = SavedPosterior(fit, recipe, Path(args.data).name, len(choice.table), scores)
    save_posterior(posterior, str(folder / POSTERIOR))
    told = (*choice.notes, *_save_more(posterior, folder, args))
    print_posterior(posterior, args.interval)
    print("", *map(printable, told), sep="\n", flush=True)


def _add_data(group: Any) -> None:
    group.add_argument(
        "--data", required=True, metavar="FILE", help="CSV (with column names in the first line) or Parquet"
    )
    group.add_argument("--target", required=True, metavar="COLUMN", help="the column to explain")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--features", metavar="A,B,C", help="columns that explain it (default: all others with numbers or few labels)"
    )
    which.add_argument(
        "--formula", metavar="TERMS", help="the same with products, such as 'age * job + income' (needs qbvi[formula])"
    )
    group.add_argument("--categories", metavar="A,B", help="features of numbers that are labels; text always is")
    group.add_argument(
        "--base",
        action="append",
        metavar="COLUMN=LEVEL",
        help="level that the others of a category are compared with (default: the first in order); may be repeated",
    )
    group.add_argument("--weights", metavar="COLUMN", help="regressions: how often each row of the fit counts")
    group.add_argument(
        "--separator", type=separator, default=",", metavar="MARK", help="separator of a CSV file (default: ,)"
    )
    group.add_argument(
        "--drop-missing", action="store_true", help="drop rows with empty cells; otherwise they are an error"
    )
    test = group.add_mutually_exclusive_group()
    test.add_argument(
        "--test-share",
        type=share,
        metavar="SHARE",
        help="fraction of the rows to hold out for testing: random rows, or the last days of a series",
    )
    test.add_argument("--test", metavar="FILE", help="file of rows to test on")
    test.add_argument("--test-where", metavar="COLUMN=VALUE", help="test on the rows with this value, fit the others")
    test.add_argument(
        "--test-from", metavar="COLUMN=START", help="test on the rows from this date or number on, fit those before"
    )


def _add_model(group: Any) -> None:
    group.add_argument(
        "--model", required=True, choices=MODELS, metavar="MODEL", help=f"one of {', '.join(MODELS)}; see below"
    )
    group.add_argument(
        "--positive", metavar="LABEL", help="logistic: the label of two that is the one (default: yes, true, 1 ...)"
    )
    group.add_argument("--no-intercept", action="store_true", help="regressions: fit without an intercept")
    group.add_argument(
        "--standardise", action="store_true", help="regressions: scale features to mean 0 and standard deviation 1"
    )
    group.add_argument("--trials", metavar="COLUMN", help="binomial: number of trials")
    group.add_argument("--exposure", metavar="COLUMN", help="poisson: time or population at risk")
    group.add_argument("--offset", metavar="COLUMN", help="poisson: logarithm of the exposure")
    group.add_argument("--no-log", action="store_true", help="har: explain the volatility, not its logarithm")
    group.add_argument("--demean", action="store_true", help="garch: subtract the mean of the returns")
    group.add_argument(
        "--prior-scale",
        type=positive,
        metavar="SD",
        help="standard deviation of the normal priors around zero (default: from the units of the data)",
    )


def _add_fitting(group: Any) -> None:
    families = ("auto", "full", "diagonal", "low-rank")
    group.add_argument("--family", default="auto", choices=families, help="posterior covariance (default: %(default)s)")
    group.add_argument(
        "--method",
        default="auto",
        choices=METHODS,
        help="how to fit: exact integrals, or one of the methods for black boxes (default: auto, which is exact for all "
        "except garch)",
    )
    group.add_argument(
        "--tol",
        type=positive,
        metavar="NATS",
        help="stop when fewer nats than this are missing (default: 1e-8 to the best Gaussian with exact integrals; "
        "otherwise 0.05 of the posterior with --family auto, and 0.01 to the best Gaussian)",
    )
    group.add_argument("--max-evals", type=whole, metavar="N", help="largest number of likelihood evaluations")
    group.add_argument("--seed", type=seed_number, default=0, metavar="N", help="random seed (default: %(default)s)")
    group.add_argument(
        "--interval", type=share, default=0.95, metavar="P", help="probability of the intervals (default: %(default)s)"
    )
    group.add_argument(
        "--out", default="qbvi-fit", metavar="DIR", help="output folder; replaces older files (default: %(default)s)"
    )


def _tables(args: argparse.Namespace) -> tuple[Choice, Table | None]:
    """Read and check the rows to fit and, if any, the rows to test on."""
    from qbvi.cli.tabular import read_table
    from qbvi.cli.tabular.choices import Wishes, choose

    table, split = read_table(args.data, args.separator), args.test_where or args.test_from
    table, test = _apart(args, table)
    wishes = Wishes(
        **{part.name: getattr(args, part.name) for part in fields(Wishes) if part.name != "split"},
        split=split.partition("=")[0].strip() if split else None,
    )
    choice = choose(wishes, table, args.drop_missing)
    if test is not None and args.drop_missing:
        test = test.without_missing((choice.recipe.target, *choice.recipe.columns))
    if test is not None:
        choice.recipe.check(test)
    return choice, test


def _apart(args: argparse.Namespace, table: Table) -> tuple[Table, Table | None]:
    """The rows to fit and, if any, the rows to test on."""
    from qbvi.cli.tabular import read_table
    from qbvi.cli.tabular.split import split_from, split_where

    if args.test_share is not None:
        return _split(table, args.test_share, None if args.model in ("har", "garch") else args.seed)
    if args.test_where is not None:
        return split_where(table, args.test_where)
    if args.test_from is not None:
        return split_from(table, args.test_from)
    return table, None if args.test is None else read_table(args.test, args.separator)


def _folder(out: str) -> Path:
    if Path(out).exists() and not Path(out).is_dir():
        msg = f"--out must be a folder, got the file {out!r}"
        raise ValueError(msg)
    Path(out).mkdir(parents=True, exist_ok=True)
    return Path(out)


def _split(table: Table, share: float, seed: int | None) -> tuple[Table, Table]:
    """Hold out a fraction of the rows: random ones or, without a seed, the last ones."""
    import numpy as np

    n = len(table)
    n_test = round(share * n)
    if not 0 < n_test < n:
        msg = f"--test-share must leave rows to fit and rows to test, got {share:g} of {n} rows"
        raise ValueError(msg)
    order = np.arange(n) if seed is None else np.random.default_rng(seed).permutation(n)
    return table.take(np.sort(order[: n - n_test])), table.take(np.sort(order[n - n_test :]))


def _save_more(posterior: SavedPosterior, folder: Path, args: argparse.Namespace) -> list[str]:
    """Save summary, plots and draws, each separately; return what was saved, and what was not."""
    from qbvi.cli.tabular import POSTERIOR
    from qbvi.cli.tabular.report import one_line

    makers: dict[str, Callable[[Path], None]] = {
        "summary.csv": lambda path: _save_summary(posterior, args.interval, path),
        **{name: partial(_save_picture, figure) for name, figure in _pictures(posterior).items()},
        "posterior.nc": lambda path: _save_arviz(posterior, path, args.seed),
    }
    saved, missing = [POSTERIOR], dict[str, list[str]]()
    for name, make in makers.items():
        try:
            make(folder / name)
            saved.append(name)
        except (ImportError, ValueError, TypeError, OSError, RuntimeError) as error:
            missing.setdefault(one_line(error), []).append(name)
    return [
        f"saved in {folder}: {', '.join(saved)}",
        *(f"not saved: {', '.join(names)} ({why})" for why, names in missing.items()),
    ]


def _save_summary(posterior: SavedPosterior, interval: float, path: Path) -> None:
    from qbvi.cli.tabular import write_columns

    rows = posterior.summary(interval).rows
    columns = {name: [getattr(row, name) for row in rows] for name in rows[0]._fields}
    write_columns(columns, str(path), None)


def _pictures(posterior: SavedPosterior) -> dict[str, Callable[[], Any]]:
    fit, names = posterior.fit, list(posterior.labels.items())
    pictures: dict[str, Callable[[], Any]] = {
        "trace.png": fit.plot_trace,
        "marginals.png": lambda: fit.plot_marginals(dict(names[:_MOST_MARGINALS])),
    }
    return pictures | ({"pairs.png": lambda: fit.plot_pairs(dict(names[:_MOST_PAIRS]))} if len(names) > 1 else {})


def _save_picture(draw: Callable[[], Any], path: Path) -> None:
    draw().savefig(path, dpi=200)


def _save_arviz(posterior: SavedPosterior, path: Path, seed: int) -> None:
    posterior.fit.to_arviz(seed=seed).to_netcdf(str(path))
