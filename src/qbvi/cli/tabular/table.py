"""Columns of a CSV or Parquet file as arrays, or an error that names file, column and row."""

from __future__ import annotations

import importlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.naming import nearest

__all__ = ["Table", "TableError", "read_table", "write_columns"]

Floats = NDArray[np.float64]

_PARQUET = (".parquet", ".pq")
_SEPARATORS = {";": "';'", "\t": r"'\t'", "|": "'|'", " ": "' '"}
_SHOWN = 12  # most names in an error
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([ T].*)?$")
_LONGEST = 200  # most characters of another library's error


class TableError(ValueError):
    """A file, or one of its columns, is not as required."""


@dataclass(frozen=True, eq=False)
class Table:
    """A file of columns.

    Attributes
    ----------
    path : str
        The path as given; errors begin with it.
    frame : pandas.DataFrame
        Its columns.
    rows : array of int
        Number of each row in the file; the first is 1.
    """

    path: str
    frame: Any
    rows: NDArray[np.int64]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.frame.columns)

    @cached_property
    def finite_columns(self) -> dict[str, Floats]:
        """The columns that hold finite numbers only, all read at once.

        Tables may have thousands of columns, and pandas takes a millisecond for each.
        """
        dtypes = zip(self.names, self.frame.dtypes, strict=True)
        names = [name for name, dtype in dtypes if isinstance(dtype, np.dtype) and dtype.kind in "biuf"]
        values = np.asfortranarray(self.frame[names].to_numpy(dtype=np.float64))
        values.flags.writeable = False
        finite = np.isfinite(values).all(axis=0)
        return {name: values[:, j] for j, name in enumerate(names) if finite[j]}

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.names)

    def __len__(self) -> int:
        return len(self.rows)

    def require(self, columns: Iterable[str]) -> None:
        """Refuse the table unless it has all these columns."""
        missing = [name for name in columns if name not in self._known]
        if not missing:
            return
        listed = ", ".join(map(repr, missing))
        hint = self._nearest(missing[0]) or f"; it has {_listed(self.names)}"
        msg = f"{self.path}: no column {listed}{hint}{self._separator_hint()}"
        raise TableError(msg)

    def numbers(self, column: str) -> Floats:
        """One column as finite numbers."""
        if column in self.finite_columns:
            return self.finite_columns[column]
        self.require([column])
        offender = self.not_a_number(column)
        if offender is not None:
            msg = f"{self.path}: column {column!r} must hold numbers, got {offender}; --categories takes it for categories"
            raise TableError(msg)
        self.refuse_missing(column)
        values = np.asarray(self.frame[column], dtype=np.float64)
        self.refuse(column, "be finite", values, ~np.isfinite(values))
        return values

    def labels(self, column: str) -> list[Any]:
        """One column as class labels: whole numbers if all are, else text or numbers."""
        self.require([column])
        self.refuse_missing(column)
        values = self.frame[column]
        if not _is_numeric(values):
            return [str(label) for label in values.tolist()]
        numbers = np.asarray(values, dtype=np.float64)
        return [int(x) for x in numbers] if np.all(numbers % 1 == 0) else [float(x) for x in numbers]

    def is_date(self, column: str) -> bool:
        """Whether a column has dates: a type of dates, or texts such as 2024-01-31."""
        if column in self.finite_columns:
            return False
        values = self.frame[column].dropna()
        if values.dtype.kind == "M":
            return True
        is_text = not _is_numeric(values) and len(values) > 0
        return is_text and all(isinstance(x, str) and _DATE.match(x) is not None for x in values.tolist())

    def days(self, column: str, origin: str = "1970-01-01") -> Floats:
        """One column of dates as days since the origin, with fractions."""
        self.require([column])
        self.refuse_missing(column)
        if not self.is_date(column):
            msg = f"{self.path}: column {column!r} must hold dates such as 2024-01-31, got {self.frame[column].iloc[0]!r} in row {self.rows[0]}"
            raise TableError(msg)
        try:
            dates = _pandas().to_datetime(self.frame[column], format="ISO8601", utc=True).dt.tz_localize(None)
        except ValueError as error:
            msg = f"{self.path}: column {column!r} must hold dates such as 2024-01-31: {_short(error)}"
            raise TableError(msg) from error
        since = dates.to_numpy(dtype="datetime64[us]") - np.datetime64(origin, "us")
        return np.asarray(since / np.timedelta64(1, "D"), dtype=np.float64)

    def not_a_number(self, column: str) -> str | None:
        """Say which value of a column is not a number, and where; None if all are numbers."""
        if column in self.finite_columns:
            return None
        values = self.frame[column]
        if _is_numeric(values):
            return None
        for row, value in zip(self.rows, values.tolist(), strict=True):
            if not _reads_as_number(value):
                return f"{value!r} in row {row}"
        return f"values of type {values.dtype}"

    def refuse_missing(self, column: str) -> None:
        """Refuse empty cells."""
        missing = np.asarray(self.frame[column].isna())
        if missing.any():
            shown = ", ".join(map(str, self.rows[missing][:5])) + (" ..." if missing.sum() > 5 else "")
            msg = (
                f"{self.path}: column {column!r} is empty, NaN or NA in {missing.sum()} of {len(self)} rows "
                f"(row {shown}): fill them in, or leave such rows out with --drop-missing"
            )
            raise TableError(msg)

    def refuse(self, column: str, rule: str, values: Floats, bad: NDArray[np.bool_]) -> None:
        """Refuse the first bad value, naming its row."""
        if bad.any():
            at = int(np.argmax(bad))
            msg = f"{self.path}: column {column!r} must {rule}, got {values[at]:g} in row {self.rows[at]}"
            raise TableError(msg)

    def without_missing(self, columns: Sequence[str]) -> Table:
        """Drop the rows in which one of these columns is empty."""
        self.require(columns)
        kept = np.flatnonzero(np.asarray(self.frame[list(columns)].notna().all(axis=1)))
        if not len(kept):
            msg = f"{self.path}: every row has an empty cell in one of the columns {_listed(columns)}"
            raise TableError(msg)
        return self.take(kept)

    def take(self, positions: NDArray[np.int64]) -> Table:
        """Select rows by position."""
        return Table(self.path, self.frame.iloc[positions], self.rows[positions])

    def _nearest(self, name: str) -> str:
        same = [known for known in self.names if known.casefold() == name.casefold()]
        return f"; did you mean {same[0]!r}?" if same else nearest(name, dict.fromkeys(self.names))

    def _separator_hint(self) -> str:
        if len(self.names) != 1:
            return ""
        found = [shown for mark, shown in _SEPARATORS.items() if mark in self.names[0]]
        return f"; if its columns have another separator, pass --separator {found[0]}" if found else ""


def read_table(path: str, separator: str = ",") -> Table:
    r"""Read a CSV file or, if its name says so, a Parquet file.

    Parameters
    ----------
    path
        A local file; ``.parquet`` or ``.pq`` at the end means Parquet. The first line of a CSV
        file holds the column names.
    separator
        Separator of the columns of a CSV file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write("x,y\n1,0\n2,1\n")
    ...     file.flush()
    ...     table = read_table(file.name)
    >>> table.names, table.numbers("x")
    (('x', 'y'), array([1., 2.]))
    """
    if not Path(path).is_file():  # pandas would also open network addresses
        msg = f"{path}: no such file"
        raise TableError(msg)
    frame = _parquet(path) if Path(path).suffix.lower() in _PARQUET else _csv(path, separator)
    frame.columns = [str(name) for name in frame.columns]
    if not len(frame):
        msg = f"{path}: the file has no rows below the column names"
        raise TableError(msg)
    _refuse_twins(path, list(frame.columns))
    return Table(path, frame, np.arange(1, len(frame) + 1))


def write_columns(columns: Mapping[str, Any], path: str | None, stream: Any) -> None:
    """Write columns to a CSV or Parquet file; without a path, as CSV to a stream."""
    frame = _pandas().DataFrame(dict(columns))
    if path is None:
        frame.to_csv(stream, index=False)
    elif Path(path).suffix.lower() in _PARQUET:
        try:
            frame.to_parquet(path, index=False)
        except ImportError as error:
            raise ImportError(_needs("Parquet files need", "pyarrow")) from error
    else:
        frame.to_csv(path, index=False)


def _csv(path: str, separator: str) -> Any:
    pandas = _pandas()
    try:
        with warnings.catch_warnings():
            # If rows are longer than the first line, pandas only warns, and takes the additional
            # cells for an index.
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            first = pandas.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, keep_default_na=False)
            # pandas would rename columns with the same name.
            _refuse_twins(path, [name for name in first.iloc[0].tolist() if name])
            return pandas.read_csv(path, sep=separator, index_col=False, low_memory=False)
    except pandas.errors.EmptyDataError as error:
        msg = f"{path}: the file is empty"
        raise TableError(msg) from error
    except pandas.errors.ParserWarning as error:
        msg = f"{path}: rows have more cells than the first line has column names"
        raise TableError(msg) from error
    except (pandas.errors.ParserError, UnicodeDecodeError, OSError) as error:
        msg = f"{path}: cannot be read as CSV: {_short(error)}"
        raise TableError(msg) from error


def _parquet(path: str) -> Any:
    pandas = _pandas()
    try:
        return pandas.read_parquet(os.path.abspath(path)).reset_index(drop=True)
    except ImportError as error:
        raise ImportError(_needs("Parquet files need", "pyarrow")) from error
    except Exception as error:  # pyarrow has its own exceptions, which need not be importable
        msg = f"{path}: cannot be read as Parquet: {_short(error)}"
        raise TableError(msg) from error


def _pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise ImportError(_needs("tables need", "pandas")) from error


def _needs(what: str, package: str) -> str:
    return f"{what} {package}, which is not installed: pip install 'qbvi[cli]'"


def _is_numeric(values: Any) -> bool:
    types = _pandas().api.types
    return bool(types.is_numeric_dtype(values.dtype)) and not types.is_complex_dtype(values.dtype)


def _reads_as_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return value is None or value is _pandas().NA
    return True


def _refuse_twins(path: str, names: Sequence[str]) -> None:
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        msg = f"{path}: column names must be unique, got {twice[0]!r} more than once"
        raise TableError(msg)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:_LONGEST]
