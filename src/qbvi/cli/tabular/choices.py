"""Choose a recipe from options and a table: the columns, their scale, and what to leave out."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from qbvi.cli.tabular.recipe import Recipe
from qbvi.cli.tabular.regressions import REGRESSIONS, RegressionRecipe
from qbvi.cli.tabular.series import SeriesRecipe
from qbvi.cli.tabular.table import Table, TableError

__all__ = ["Choice", "Wishes", "choose"]

_RESERVED = {"linear": ("sigma2",)}


@dataclass(frozen=True)
class Wishes:
    """Options of ``qbvi fit`` about the model; None and False mean that an option is not given."""

    model: str
    target: str
    features: str | None = None
    no_intercept: bool = False
    standardise: bool = False
    prior_scale: float | None = None
    trials: str | None = None
    exposure: str | None = None
    offset: str | None = None
    no_log: bool = False
    demean: bool = False


class Choice(NamedTuple):
    """A recipe, notes for the reader, and the rows to fit."""

    recipe: Recipe
    notes: tuple[str, ...]
    table: Table


def choose(wishes: Wishes, table: Table, drop_missing: bool = False) -> Choice:
    r"""Decide which columns of a table to use, and how.

    Examples
    --------
    >>> import tempfile
    >>> from qbvi.cli.tabular.table import read_table
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write("age,city,y\n31,Rome,0\n45,Oslo,1\n")
    ...     file.flush()
    ...     table = read_table(file.name)
    >>> choice = choose(Wishes("logistic", "y"), table)
    >>> choice.recipe.title, choice.notes
    ('Logistic regression of y on age', ("left out: city ('Rome' in row 1 is not a number)",))
    """
    _refuse_foreign_options(wishes)
    table.require([wishes.target])
    if wishes.model in REGRESSIONS:
        return _regression(wishes, table, drop_missing)
    return _series(wishes, table, drop_missing)


def _regression(wishes: Wishes, table: Table, drop_missing: bool) -> Choice:
    kind, weight = _weight(wishes)
    taken = (wishes.target, weight) if weight else (wishes.target,)
    table.require(taken)
    if wishes.features is None:
        features, notes = _all_features(table, taken)
    else:
        features, notes = _named_features(wishes.features, table, taken), ()
    table, dropped = _kept(table, (*taken, *features), drop_missing)
    recipe = RegressionRecipe(
        wishes.model,
        wishes.target,
        wishes.prior_scale,
        features,
        not wishes.no_intercept,
        weight_kind=kind,
        weight=weight,
    )
    _refuse_names(recipe, table)
    recipe = _standardised(recipe, table) if wishes.standardise else recipe
    _refuse_constants(recipe, table)
    if wishes.model == "multinomial":
        recipe = replace(recipe, classes=tuple(sorted(set(table.labels(wishes.target)))))
    return Choice(recipe, (*notes, *dropped), table)


def _series(wishes: Wishes, table: Table, drop_missing: bool) -> Choice:
    table, dropped = _kept(table, (wishes.target,), drop_missing)
    values = table.numbers(wishes.target)
    mean = float(values.mean())
    recipe = SeriesRecipe(
        wishes.model, wishes.target, wishes.prior_scale, log=not wishes.no_log, centre=mean if wishes.demean else 0.0
    )
    recipe = replace(recipe, series=tuple(recipe.days(table).tolist()))
    error = float(values.std()) / np.sqrt(len(values))
    if wishes.model == "garch" and not wishes.demean and abs(mean) > 3 * error:
        note = f"the returns have a mean of {mean:.3g} ± {error:.1g}, but the model says zero: --demean subtracts it"
        return Choice(recipe, (*dropped, note), table)
    return Choice(recipe, dropped, table)


def _refuse_foreign_options(wishes: Wishes) -> None:
    """Refuse options that do not apply to the model."""
    is_regression = wishes.model in REGRESSIONS
    weights = REGRESSIONS[wishes.model].weight_kinds if is_regression else ()
    allowed = {"features", "no_intercept", "standardise", *weights} if is_regression else set()
    allowed |= {"har": {"no_log"}, "garch": {"demean"}}.get(wishes.model, set())
    names = ("features", "no_intercept", "standardise", "trials", "exposure", "offset", "no_log", "demean")
    foreign = [name for name in names if getattr(wishes, name) and name not in allowed]
    if foreign:
        msg = f"--{foreign[0].replace('_', '-')} is not an option of --model {wishes.model}"
        raise TableError(msg)


def _weight(wishes: Wishes) -> tuple[str, str]:
    """Kind and column of trials or exposures."""
    kind = REGRESSIONS[wishes.model]
    given = [(name, getattr(wishes, name)) for name in kind.weight_kinds if getattr(wishes, name)]
    if len(given) > 1:
        msg = f"give one of --{given[0][0]} and --{given[1][0]}, got both"
        raise TableError(msg)
    if not given and kind.needs_weight:
        msg = f"--model {wishes.model} needs --{kind.weight_kinds[0]} COLUMN, the number of trials of each row"
        raise TableError(msg)
    return given[0] if given else ("", "")


def _named_features(words: str, table: Table, taken: Sequence[str]) -> tuple[str, ...]:
    """Columns by name, separated by commas; a name that contains a comma is quoted."""
    names = [name.strip() for name in next(csv.reader([words], skipinitialspace=True), [])]
    if not all(names) or not names:
        msg = f"--features must be column names separated by commas, got {words!r}"
        raise TableError(msg)
    table.require(names)
    for name in names:
        if name in taken or names.count(name) > 1:
            why = "is used already" if name in taken else "is listed twice"
            msg = f"--features must name each column once, and not the target, trials or exposure: {name!r} {why}"
            raise TableError(msg)
    return tuple(names)


def _all_features(table: Table, taken: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All other numeric columns, and a note on those left out."""
    others = [name for name in table.names if name not in taken]
    reasons = {name: _why_not(table, name) for name in others}
    features = tuple(name for name in others if not reasons[name])
    left_out = [f"{name} ({why})" for name, why in reasons.items() if why]
    if not features:
        told = f"; left out: {', '.join(left_out)}" if left_out else ""
        msg = f"{table.path}: no numeric column beside {', '.join(map(repr, taken))} to explain it with{told}"
        raise TableError(msg)
    return features, (f"left out: {', '.join(left_out)}",) if left_out else ()


def _why_not(table: Table, name: str) -> str:
    if not name or name.startswith("Unnamed: "):
        return "no name: row numbers?"
    offender = table.not_a_number(name)
    if offender is not None:
        return f"{offender} is not a number" if " in row " in offender else offender
    if name in table.finite_columns:
        return "the same in every row" if np.ptp(table.finite_columns[name]) == 0 else ""
    if table.frame[name].isna().all():
        return "empty"
    return "the same in every row" if table.frame[name].nunique(dropna=False) == 1 else ""


def _kept(table: Table, columns: Sequence[str], drop_missing: bool) -> tuple[Table, tuple[str, ...]]:
    if not drop_missing:
        return table, ()
    kept = table.without_missing(columns)
    n = len(table) - len(kept)
    return kept, (f"rows left out because of empty cells: {n:,} of {len(table):,}",) if n else ()


def _refuse_names(recipe: RegressionRecipe, table: Table) -> None:
    """Refuse columns with the name of a parameter."""
    reserved = (("intercept",) if recipe.intercept else ()) + _RESERVED.get(recipe.model, ())
    taken = [name for name in recipe.features if name in reserved]
    if taken:
        msg = f"{table.path}: column {taken[0]!r} has the name of a parameter of the model; rename it or leave it out of --features"
        raise TableError(msg)


def _standardised(recipe: RegressionRecipe, table: Table) -> RegressionRecipe:
    columns = [table.numbers(name) for name in recipe.features]
    constant = [name for name, values in zip(recipe.features, columns, strict=True) if np.ptp(values) == 0]
    if constant:
        msg = f"{table.path}: column {constant[0]!r} is the same in every row and cannot be standardised; leave it out of --features"
        raise TableError(msg)
    centres, scales = tuple(float(x.mean()) for x in columns), tuple(float(x.std()) for x in columns)
    return replace(recipe, centres=centres, scales=scales)


def _refuse_constants(recipe: RegressionRecipe, table: Table) -> None:
    constant = [name for name in recipe.features if np.ptp(table.numbers(name)) == 0]
    if constant and (recipe.intercept or len(constant) > 1):
        way_out = "leave it out of --features" + (", or pass --no-intercept" if len(constant) == 1 else "")
        msg = f"{table.path}: column {constant[0]!r} is the same in every row, so its coefficient and the intercept are not identified; {way_out}"
        raise TableError(msg)
