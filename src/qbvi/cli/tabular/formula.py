"""Formulas of columns, such as ``age * job``, read by formulaic; nothing in them is evaluated."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from qbvi.cli.tabular.table import Table, TableError

__all__ = ["Terms", "refuse_missing_parts", "terms_of"]

_SYNTAX = "columns joined by + (and), : (product), * (both, and their product), - and parentheses"


class Terms(NamedTuple):
    """Products of columns, and whether there is an intercept."""

    products: tuple[tuple[str, ...], ...]
    intercept: bool


def terms_of(formula: str, table: Table, target: str) -> Terms:
    """The products of columns that a formula means.

    ``target ~`` may precede it. Functions are not allowed: a saved posterior holds no code.

    Parameters
    ----------
    formula
        As in R; a name with spaces goes between backticks.
    table
        The columns.
    target
        The column to explain.
    """
    left, _, right = formula.rpartition("~")
    if left.strip().strip("`") not in ("", target):
        msg = f"--formula must explain --target {target!r}, got {left.strip()!r} on the left of ~"
        raise TableError(msg)
    parsed = [tuple(factor for factor in term.factors if not _is_one(factor)) for term in _parsed(right)]
    terms = [tuple(map(_name, factors)) for factors in parsed]
    table.require(sorted({name for term in terms for name in term}))
    if any(target in term for term in terms):
        msg = f"--formula must not explain {target!r} by itself, got {formula!r}"
        raise TableError(msg)
    products = tuple(term for term in terms if term)
    if not products:
        msg = f"--formula must have at least one column, got {formula!r}"
        raise TableError(msg)
    return Terms(products, intercept=() in terms)


def refuse_missing_parts(terms: Sequence[tuple[str, ...]], categories: Sequence[str]) -> None:
    """Refuse products with a category whose shorter products are not terms themselves.

    The indicators of all levels but one describe a category only beside them.
    """
    known = {frozenset(term) for term in terms}
    for term in terms:
        shorter = [frozenset(term) - {name} for name in term if len(term) > 1 and set(term) & set(categories)]
        if any(part not in known for part in shorter):
            msg = f"--formula must have the parts of {':'.join(term)} too, as a category is among them: write {'*'.join(term)}"
            raise TableError(msg)


def _parsed(right: str) -> Any:
    try:
        formulaic = importlib.import_module("formulaic")
    except ImportError as error:
        msg = "--formula needs formulaic, which is not installed: pip install 'qbvi[formula]'"
        raise ImportError(msg) from error
    try:
        return list(formulaic.Formula(right.strip()))
    except Exception as error:  # formulaic has its own exceptions, which need not be importable
        msg = f"--formula must be {_SYNTAX}, got {right.strip()!r}"
        raise TableError(msg) from error


def _is_one(factor: Any) -> bool:
    return bool(factor.eval_method.value == "literal" and str(factor.expr) == "1")


def _name(factor: Any) -> str:
    """The column of a factor."""
    if factor.eval_method.value != "lookup":
        msg = f"--formula must be {_SYNTAX}, got {factor.expr!r}; add a column to the table for it"
        raise TableError(msg)
    return str(factor.expr)
