"""Choose a recipe from options and a table: the columns, their scale, and what to leave out."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np

from qbvi.cli.tabular.categories import MOST_LEVELS, encoded, two_labels
from qbvi.cli.tabular.formula import terms_of
from qbvi.cli.tabular.recipe import Recipe
from qbvi.cli.tabular.regressions import REGRESSIONS, RegressionRecipe
from qbvi.cli.tabular.series import SeriesRecipe
from qbvi.cli.tabular.table import Table, TableError

__all__ = ["Choice", "Wishes", "choose"]

_OF_REGRESSIONS = ("features", "formula", "categories", "base", "weights", "no_intercept", "standardise")
_RESERVED = {"linear": ("sigma2",)}


@dataclass(frozen=True)
class Wishes:
    """Options of ``qbvi fit`` about the model; None and False mean that an option is not given."""

    model: str
    target: str
    features: str | None = None
    formula: str | None = None
    categories: str | None = None
    base: Sequence[str] | None = None
    positive: str | None = None
    weights: str | None = None
    split: str | None = None  # a column that says which rows are for testing
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
    >>> choice.recipe.title
    'Logistic regression of y on age'
    >>> choice.notes
    ('left out: city (2 different texts; --categories takes them all)',)
    """
    _refuse_foreign_options(wishes)
    table.require([wishes.target])
    if wishes.model in REGRESSIONS:
        return _regression(wishes, table, drop_missing)
    return _series(wishes, table, drop_missing)


def _regression(wishes: Wishes, table: Table, drop_missing: bool) -> Choice:
    kind, weight = _weight(wishes)
    taken = tuple(name for name in (wishes.target, weight, wishes.weights) if name)
    table.require(taken)
    chosen = _chosen(wishes, table, taken)
    sources = tuple(dict.fromkeys(name for term in chosen.terms for name in term))
    table, dropped = _kept(table, (*taken, *sources), drop_missing)
    coding = encoded(chosen.terms, table, wishes.categories, wishes.base or ())
    recipe = RegressionRecipe(
        wishes.model,
        wishes.target,
        wishes.prior_scale,
        coding.names,
        chosen.intercept and not wishes.no_intercept,
        weight_kind=kind,
        weight=weight,
        row_weights=wishes.weights or "",
        **asdict(coding),
    )
    _refuse_names(recipe, table)
    recipe = _standardised(recipe, table) if wishes.standardise else recipe
    _refuse_constants(recipe, table)
    recipe, told = _with_labels(recipe, wishes, table)
    return Choice(recipe, (*chosen.notes, *coding.notes, *told, *dropped), table)


class _Chosen(NamedTuple):
    """Products of columns, whether there is an intercept, and notes for the reader."""

    terms: tuple[tuple[str, ...], ...]
    intercept: bool = True
    notes: tuple[str, ...] = ()


def _chosen(wishes: Wishes, table: Table, taken: Sequence[str]) -> _Chosen:
    if wishes.formula is not None:
        products, intercept = terms_of(wishes.formula, table, wishes.target)
        return _Chosen(products, intercept)
    if wishes.features is not None:
        return _Chosen(tuple((name,) for name in _named_features(wishes.features, table, taken)))
    also = _names("--categories", wishes.categories, table)
    features, notes = _all_features(table, (*taken, *((wishes.split,) if wishes.split else ())), also)
    return _Chosen(tuple((name,) for name in features), notes=notes)


def _with_labels(recipe: RegressionRecipe, wishes: Wishes, table: Table) -> tuple[RegressionRecipe, tuple[str, ...]]:
    """The recipe with the labels of its target, and a note on which of two is the one."""
    if wishes.model == "multinomial":
        return replace(recipe, classes=tuple(sorted(set(table.labels(wishes.target))))), ()
    if wishes.model != "logistic":
        return recipe, ()
    is_plain = table.not_a_number(wishes.target) is None and wishes.positive is None
    if is_plain:
        return recipe, ()
    outcomes = two_labels(table, wishes.target, wishes.positive)
    note = f"{wishes.target}: {outcomes[1]!r} is one, {outcomes[0]!r} is zero (--positive chooses)"
    return replace(recipe, outcomes=outcomes), () if wishes.positive else (note,)


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
    allowed = {*_OF_REGRESSIONS, *weights} if is_regression else set()
    allowed |= {"har": {"no_log"}, "garch": {"demean"}, "logistic": {"positive"}}.get(wishes.model, set())
    names = (*_OF_REGRESSIONS, "positive", "trials", "exposure", "offset", "no_log", "demean")
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
    """Columns by name, none of them twice or taken already."""
    names = _names("--features", words, table)
    for name in names:
        if name in taken or names.count(name) > 1:
            why = "is used already" if name in taken else "is listed twice"
            msg = f"--features must name each column once, and not the target, trials, exposure or weights: {name!r} {why}"
            raise TableError(msg)
    return names


def _names(option: str, words: str | None, table: Table) -> tuple[str, ...]:
    """Columns by name, separated by commas; a name that contains a comma is quoted."""
    if words is None:
        return ()
    names = [name.strip() for name in next(csv.reader([words], skipinitialspace=True), [])]
    if not all(names) or not names:
        msg = f"{option} must be column names separated by commas, got {words!r}"
        raise TableError(msg)
    table.require(names)
    return tuple(names)


def _all_features(
    table: Table, taken: Sequence[str], categories: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All other columns of numbers or of few labels, and a note on those left out."""
    others = [name for name in table.names if name not in taken]
    reasons = {name: "" if name in categories else _why_not(table, name) for name in others}
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
    if name in table.finite_columns:
        return "the same in every row" if np.ptp(table.finite_columns[name]) == 0 else ""
    if table.frame[name].isna().all():
        return "empty"
    if table.frame[name].nunique(dropna=False) == 1:
        return "the same in every row"
    if table.not_a_number(name) is None:
        return ""
    if table.is_date(name):
        return "dates: name it in --features for a trend"
    n = table.frame[name].nunique()
    few = min(MOST_LEVELS, len(table) // 4)
    return f"{n} different texts; --categories takes them all" if n > few else ""


def _kept(table: Table, columns: Sequence[str], drop_missing: bool) -> tuple[Table, tuple[str, ...]]:
    if not drop_missing:
        return table, ()
    kept = table.without_missing(columns)
    n = len(table) - len(kept)
    return kept, (f"rows left out because of empty cells: {n:,} of {len(table):,}",) if n else ()


def _refuse_names(recipe: RegressionRecipe, table: Table) -> None:
    """Refuse columns with the name of a parameter, or of each other."""
    twice = next((name for name in recipe.features if recipe.features.count(name) > 1), None) if recipe.levels else None
    if twice:
        msg = f"{table.path}: two coefficients would have the name {twice!r}; rename one of the columns"
        raise TableError(msg)
    reserved = (("intercept",) if recipe.intercept else ()) + _RESERVED.get(recipe.model, ())
    taken = [name for name in recipe.features if name in reserved]
    if taken:
        msg = f"{table.path}: column {taken[0]!r} has the name of a parameter of the model; rename it or leave it out of --features"
        raise TableError(msg)


def _standardised(recipe: RegressionRecipe, table: Table) -> RegressionRecipe:
    columns = list(recipe.encoding.values(table).T)
    constant = [name for name, values in zip(recipe.features, columns, strict=True) if np.ptp(values) == 0]
    if constant:
        msg = f"{table.path}: column {constant[0]!r} is the same in every row and cannot be standardised; leave it out of --features"
        raise TableError(msg)
    # Indicators keep their zeros and ones: the effect of a level is that of the level.
    pairs = zip(columns, recipe.encoding.is_indicator, strict=True)
    moments = [(0.0, 1.0) if is_indicator else (float(x.mean()), float(x.std())) for x, is_indicator in pairs]
    return replace(recipe, centres=tuple(m for m, _ in moments), scales=tuple(s for _, s in moments))


def _refuse_constants(recipe: RegressionRecipe, table: Table) -> None:
    spreads = np.ptp(recipe.encoding.values(table), axis=0)
    constant = [name for name, spread in zip(recipe.features, spreads, strict=True) if spread == 0]
    if constant and (recipe.intercept or len(constant) > 1):
        way_out = "leave it out of the model" + (", or pass --no-intercept" if len(constant) == 1 else "")
        msg = f"{table.path}: column {constant[0]!r} is the same in every row, so its coefficient and the intercept are not identified; {way_out}"
        raise TableError(msg)
