"""Tables of evaluations in files: CSV, Parquet, and qbvi's own ``.npz``."""

from __future__ import annotations

import csv
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qbvi import archive
from qbvi.evaluations.table import STAGES, default_labels

if TYPE_CHECKING:
    from qbvi.evaluations.table import Evaluations

__all__ = ["from_columns", "pandas", "read", "to_columns", "write"]

Columns = dict[str, NDArray[Any]]

_FORMAT, _SCHEMA = "qbvi-evaluations", 1
_VALUES = {"log_likelihood": False, "log_density": True}  # and whether they include the prior
_U = "unconstrained"
_RESERVED = (*_VALUES, "log_prior", "log_joint", "noise_sd", "ok", "stage", "batch")
_ARRAYS = ("points", "values", "noise_sd", "unconstrained", "log_prior", "batch")


def write(table: Evaluations, path: archive.PathLike) -> None:
    """Write a table, in the format of the file's suffix."""
    suffix = _suffix(path)
    if suffix == ".csv":
        _write_csv(to_columns(table), path)
    elif suffix == ".parquet":
        _try_parquet(lambda: pandas("Parquet files").DataFrame(to_columns(table)).to_parquet(os.fspath(path)))
    else:
        codes = np.array([STAGES.index(stage) for stage in table.stage], dtype=np.int8)
        arrays = {name: held for name in _ARRAYS if (held := getattr(table, name)) is not None}
        header = {"format": _FORMAT, "schema": _SCHEMA, "labels": list(table.labels), "with_prior": table.with_prior}
        archive.write(path, header, arrays | {"stage": codes})


def read(path: archive.PathLike) -> dict[str, Any]:
    """Read a table: the arguments of `Evaluations`."""
    suffix = _suffix(path)
    if not Path(path).is_file():
        msg = f"`evaluations` must be an existing file, got {os.fspath(path)!r}"
        raise FileNotFoundError(msg)
    if suffix == ".npz":
        return _read_npz(path)
    if suffix == ".csv":
        return from_columns(_read_csv(path), os.fspath(path))
    frame = _try_parquet(lambda: pandas("Parquet files").read_parquet(os.fspath(path)))
    return from_columns({str(name): frame[name].to_numpy() for name in frame.columns}, os.fspath(path))


def to_columns(table: Evaluations) -> Columns:
    """The columns of a data frame or a CSV file."""
    u = None if table.unconstrained is None else table.unconstrained
    placed = [] if u is None else default_labels(u.shape[1:], _U)
    taken = sorted({*table.labels} & {*_RESERVED, *placed})
    if taken:
        msg = f"a table with one column for each entry has {taken[0]!r} already: save evaluations with such a parameter as .npz"
        raise ValueError(msg)
    columns: Columns = dict(zip(table.labels, table.points.T, strict=True))
    columns |= {} if u is None else dict(zip(placed, u.T, strict=True))
    columns[next(name for name, has_prior in _VALUES.items() if has_prior == table.with_prior)] = table.values
    if table.log_prior is not None:
        columns |= {"log_prior": table.log_prior, "log_joint": table.log_joint}
    return columns | {"noise_sd": table.noise_sd, "ok": table.ok, "stage": table.stage, "batch": table.batch}


def from_columns(columns: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The arguments of `Evaluations`, from columns by name.

    A parameter may be one array with further axes, or one column for each entry.
    """
    values = [name for name in _VALUES if name in columns]
    if not values:
        msg = (
            f"{source} must have the log-likelihood of each point as 'log_likelihood', or the log density of prior times "
            f"likelihood as 'log_density', got the names {', '.join(map(str, columns))}"
        )
        raise ValueError(msg)
    n = len(np.atleast_1d(np.asarray(columns[values[0]])))
    numbers = {name: x for name, column in columns.items() if (x := _numbers(column)) is not None}
    u = [label for i in range(len(numbers)) if (label := f"{_U}[{i}]") in numbers]
    parts = {name: x for name, x in numbers.items() if name not in _RESERVED and name not in u}
    wrong = [f"{name!r} of shape {x.shape}" for name, x in parts.items() if x.shape[:1] != (n,)]
    if wrong or not parts:
        msg = f"{source} must have one value of each parameter for each of the {n} points, got {', '.join(wrong) or 'no parameter'}"
        raise ValueError(msg)
    found: dict[str, Any] = {
        "labels": [label for name, x in parts.items() for label in default_labels(x.shape[1:], name)],
        "points": np.concatenate([x.reshape(n, -1) for x in parts.values()], axis=1),
        "values": numbers.get(values[0], np.asarray(columns[values[0]])),
        "with_prior": _VALUES[values[0]],
        "stage": columns.get("stage"),
    }
    found |= {name: numbers[name] for name in ("noise_sd", "batch") if name in numbers}
    if u and "log_prior" in numbers:
        found |= {_U: np.stack([numbers[label] for label in u], axis=1), "log_prior": numbers["log_prior"]}
    return found


def pandas(what: str) -> Any:
    """The package pandas, or an error that says how to install it."""
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        msg = f"{what} needs the package pandas, which is not installed: pip install 'qbvi[cli]'; CSV and .npz files need nothing"
        raise ImportError(msg) from error


def _suffix(path: archive.PathLike) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in (".csv", ".parquet", ".npz"):
        msg = f"the file of a table of evaluations must end in .csv, .parquet or .npz, got {os.fspath(path)!r}; pass a saved fit as qbvi.load(path)"
        raise ValueError(msg)
    return suffix


def _read_npz(path: archive.PathLike) -> dict[str, Any]:
    msg = f"{os.fspath(path)!r} is no table of evaluations; pass a saved fit as qbvi.load(path), and other arrays as a dict"
    try:
        header, arrays = archive.read(path)
    except archive.ForeignFileError as error:
        raise ValueError(msg) from error
    if header.get("format") != _FORMAT:
        raise ValueError(msg)
    try:
        stage = np.array(STAGES)[arrays.pop("stage")]
        return {"labels": header["labels"], "with_prior": bool(header["with_prior"]), **arrays, "stage": stage}
    except (KeyError, IndexError, TypeError) as error:
        msg = f"{os.fspath(path)!r} is a table of evaluations, but its contents do not fit together: {error}"
        raise ValueError(msg) from error


def _read_csv(path: archive.PathLike) -> Columns:
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    if len(rows) < 2:
        msg = f"{os.fspath(path)!r} must have a line of column names and one line for each point, got {len(rows)} lines"
        raise ValueError(msg)
    names = [name.strip() for name in rows[0]]
    twice = sorted({name for name in names if names.count(name) > 1})
    bad = next((i for i, row in enumerate(rows, start=1) if len(row) != len(names)), None)
    if twice or bad is not None:
        what = f"{twice[0]!r} twice" if twice else f"{len(rows[(bad or 1) - 1])} values in line {bad}"
        msg = f"{os.fspath(path)!r} must have {len(names)} columns of different names, got {what}"
        raise ValueError(msg)
    return {name: np.array(column) for name, column in zip(names, zip(*rows[1:], strict=True), strict=True)}


def _write_csv(columns: Columns, path: archive.PathLike) -> None:
    # `tolist` gives Python floats, whose text keeps every bit.
    partial = Path(path).with_name(f".{Path(path).name}.partial")
    try:
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _numbers(column: Any) -> NDArray[np.float64] | None:
    """A column as floats; None if it holds text."""
    try:
        return np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        return None


def _try_parquet(act: Any) -> Any:
    try:
        return act()
    except ImportError as error:
        msg = f"Parquet files need pandas and pyarrow: pip install 'qbvi[cli]', or use .csv or .npz ({error})"
        raise ImportError(msg) from error
