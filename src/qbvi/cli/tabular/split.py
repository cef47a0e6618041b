"""Which rows of a table are for testing, by the value of a column."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qbvi.cli.tabular.encoding import level_of
from qbvi.cli.tabular.table import Table, TableError

__all__ = ["split_from", "split_where"]


def split_where(table: Table, rule: str) -> tuple[Table, Table]:
    """The rows to fit, and those where a column has a value: ``COLUMN=VALUE``."""
    column, value = _pair("--test-where", rule)
    labels = np.array([level_of(label) for label in table.labels(column)])
    return _apart("--test-where", rule, table, labels == value)


def split_from(table: Table, rule: str) -> tuple[Table, Table]:
    """The rows to fit, and those from a date or a number on: ``COLUMN=START``."""
    column, start = _pair("--test-from", rule)
    table.require([column])
    if table.is_date(column):
        try:
            first = float((np.datetime64(start, "us") - np.datetime64("1970-01-01", "us")) / np.timedelta64(1, "D"))
        except ValueError:
            msg = f"--test-from must have a date such as 2024-01-31 for the column {column!r}, got {start!r}"
            raise TableError(msg) from None
        return _apart("--test-from", rule, table, table.days(column) >= first)
    try:
        least = float(start)
    except ValueError:
        msg = f"--test-from must have a number for the column {column!r}, which has no dates, got {start!r}"
        raise TableError(msg) from None
    return _apart("--test-from", rule, table, table.numbers(column) >= least)


def _pair(option: str, rule: str) -> tuple[str, str]:
    column, mark, value = rule.partition("=")
    if not mark or not column.strip() or not value.strip():
        msg = f"{option} must be COLUMN=VALUE, got {rule!r}"
        raise TableError(msg)
    return column.strip(), value.strip()


def _apart(option: str, rule: str, table: Table, is_test: NDArray[np.bool_]) -> tuple[Table, Table]:
    if is_test.all() or not is_test.any():
        msg = f"{option} must leave rows to fit and rows to test, got {rule!r}: {is_test.sum():,} of {len(table):,} rows to test"
        raise TableError(msg)
    return table.take(np.flatnonzero(~is_test)), table.take(np.flatnonzero(is_test))
