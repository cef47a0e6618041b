"""Labels in a table: which columns are categories, their base levels, and two-valued targets."""

from __future__ import annotations

import csv
from collections.abc import Sequence

import numpy as np

from qbvi.cli.tabular.encoding import Encoding, level_of
from qbvi.cli.tabular.formula import refuse_missing_parts
from qbvi.cli.tabular.table import Table, TableError

__all__ = ["MOST_LEVELS", "encoded", "two_labels"]

MOST_LEVELS = 20  # of a column of text that is a feature without being named
_ONES = ("1", "yes", "true", "y", "t", "positive", "success")  # labels that mean one


def encoded(terms: tuple[tuple[str, ...], ...], table: Table, categories: str | None, bases: Sequence[str]) -> Encoding:
    """How the columns of these terms become numbers.

    Columns of text are categories, and so are those named in ``categories``. Dates are days since
    their first. The base level of a category is its first in order, or that of ``COLUMN=LEVEL``.
    """
    sources = tuple(dict.fromkeys(name for term in terms for name in term))
    named = _among("--categories", next(csv.reader([categories or ""], skipinitialspace=True), []), sources)
    chosen = dict(_pair(base, sources) for base in bases)
    dates = {name for name in sources if name not in named and table.is_date(name)}
    is_category = {
        name: name in named or (name not in dates and table.not_a_number(name) is not None) for name in sources
    }
    levels = tuple(_levels(table, name, chosen.pop(name, None)) if is_category[name] else () for name in sources)
    if chosen:
        msg = f"--base must name categories of the model, got {next(iter(chosen))!r}, which holds numbers or dates"
        raise TableError(msg)
    refuse_missing_parts(terms, [name for name in sources if is_category[name]])
    return Encoding(sources, levels, tuple(_first_day(table, name) if name in dates else "" for name in sources), terms)


def two_labels(table: Table, column: str, positive: str | None) -> tuple[str, str]:
    """The labels of a two-valued target: that of zero, and that of one.

    One is ``positive``, or a word such as ``yes``, or else the second in order.
    """
    labels = sorted({level_of(label) for label in table.labels(column)})
    if len(labels) != 2:
        shown = ", ".join(map(repr, labels[:5])) + (" ..." if len(labels) > 5 else "")
        msg = (
            f"{table.path}: column {column!r} must hold zeros and ones, or two labels, got {len(labels)}: {shown}; "
            "more labels are for --model multinomial"
        )
        raise TableError(msg)
    if positive is None:
        words = [label for label in labels if label.casefold() in _ONES]
        positive = words[0] if len(words) == 1 else labels[1]
    if positive not in labels:
        msg = f"--positive must be one of the labels of {column!r}, {labels[0]!r} or {labels[1]!r}, got {positive!r}"
        raise TableError(msg)
    return (labels[0] if positive == labels[1] else labels[1]), positive


def _levels(table: Table, name: str, base: str | None) -> tuple[str, ...]:
    labels = sorted(set(table.labels(name)))
    levels = [level_of(label) for label in labels]
    if len(levels) < 2:
        msg = (
            f"{table.path}: column {name!r} must hold two levels or more, got {levels[0]!r} in every row; leave it out"
        )
        raise TableError(msg)
    if base is not None and base not in levels:
        shown = ", ".join(levels[:8]) + (" ..." if len(levels) > 8 else "")
        msg = f"--base must name a level of {name!r}, {shown}, got {base!r}"
        raise TableError(msg)
    return tuple(levels) if base is None else (base, *(level for level in levels if level != base))


def _first_day(table: Table, name: str) -> str:
    first = np.floor(table.days(name).min()).astype(int)
    return str(np.datetime64("1970-01-01") + np.timedelta64(first, "D"))


def _pair(text: str, sources: Sequence[str]) -> tuple[str, str]:
    name, mark, level = text.partition("=")
    if not mark:
        msg = f"--base must be COLUMN=LEVEL, got {text!r}"
        raise TableError(msg)
    return _among("--base", [name], sources)[0], level.strip()


def _among(option: str, names: Sequence[str], sources: Sequence[str]) -> list[str]:
    names = [name.strip() for name in names if name.strip()]
    unknown = [name for name in names if name not in sources]
    if unknown:
        msg = f"{option} must name features, {', '.join(sources)}, got {unknown[0]!r}"
        raise TableError(msg)
    return names
