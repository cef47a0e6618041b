"""Turn users' data into arrays of floats, or raise an error that says what is wrong and where."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import array_of, shown

__all__ = [
    "Columns",
    "as_classes",
    "as_columns",
    "as_series",
    "as_target",
    "as_varying_target",
    "as_weights",
    "drawn_classes",
    "matching_columns",
    "refuse",
]

Floats = NDArray[np.float64]


class Columns(NamedTuple):
    """Covariates (n, k) and the names of their columns."""

    values: Floats
    names: tuple[str, ...]


def as_columns(X: Any, *, argument: str = "X") -> Columns:
    """Covariates with names: those of a frame or of `Columns`, else ``x1, x2 ...``.

    Examples
    --------
    >>> as_columns([[1.0, 2.0], [3.0, 5.0]]).names
    ('x1', 'x2')
    """
    if isinstance(X, Columns):
        return Columns(_numbers(argument, X.values), X.names)
    values = _numbers(argument, X)
    if values.ndim != 2 or 0 in values.shape:
        msg = (
            f"`{argument}` must have shape (rows, columns), got {values.shape}; one column is X[:, None] or X[['name']]"
        )
        raise ValueError(msg)
    names = tuple(map(str, X.columns)) if hasattr(X, "columns") else tuple(f"x{j + 1}" for j in range(values.shape[1]))
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        msg = f"`{argument}` must have unique column names, got {twice!r} more than once"
        raise ValueError(msg)
    return Columns(values, names)


def as_target(y: Any, n: int, *, argument: str = "y") -> Floats:
    """A target with one number per row of X."""
    values = _numbers(argument, y)
    if values.shape != (n,):
        msg = f"`{argument}` must have shape ({n},), one number for each row of `X`, got {values.shape}"
        raise ValueError(msg)
    return values


def as_varying_target(y: Any, n: int) -> Floats:
    """A target for regression, which must not be constant."""
    values = as_target(y, n)
    if np.ptp(values) == 0:
        msg = f"`y` must vary, got {values[0]:g} in every row"
        raise ValueError(msg)
    return values


def as_weights(weights: Any, n: int) -> Floats:
    """Positive weights of the rows."""
    values = as_target(weights, n, argument="weights")
    refuse("weights", "be positive (leave rows of weight zero out)", values, values <= 0)
    return values


def as_classes(y: Any, n: int) -> tuple[tuple[Any, ...], Floats]:
    """The sorted labels, and the index of each row's label."""
    if np.ma.is_masked(y):
        array_of("y", y)
    try:
        labels = np.asarray(y)
    except ValueError:
        msg = f"`y` must have one label for each row of `X`, got {shown(y)}"
        raise TypeError(msg) from None
    if labels.shape != (n,):
        msg = f"`y` must have shape ({n},), one label for each row of `X`, got {labels.shape}"
        raise ValueError(msg)
    missing = np.array([label is None or (isinstance(label, float) and math.isnan(label)) for label in labels.tolist()])
    if missing.any():
        msg = (
            f"`y` must have a label in every row; {missing.sum()} are missing, the first in row {int(missing.argmax())}"
        )
        raise ValueError(msg)
    classes, positions = np.unique(labels, return_inverse=True)
    if len(classes) < 2 or len(classes) > max(2, n // 2):
        msg = (
            f"`y` must hold two classes or more, at most one for every two rows, got {len(classes)} classes in {n} rows"
        )
        raise ValueError(msg)
    return tuple(classes.tolist()), positions.astype(np.float64)


def as_known_classes(y: Any, n: int, classes: Sequence[Any]) -> Floats:
    """The index of each row's label among known ones."""
    labels = np.asarray(y).tolist()
    if np.shape(y) != (n,):
        msg = f"`y` must have shape ({n},), one label for each row of `X`, got {np.shape(y)}"
        raise ValueError(msg)
    places = {label: i for i, label in enumerate(classes)}
    unknown = next((label for label in labels if label not in places), None)
    if unknown is not None:
        msg = f"`y` must hold the classes of the model, {', '.join(map(str, classes))}, got {unknown!r}"
        raise ValueError(msg)
    return np.array([places[label] for label in labels], dtype=np.float64)


def drawn_classes(probability: Floats, rng: np.random.Generator) -> Floats:
    """Draw a class for every row of every draw: (S, n, classes) -> (S, n), as indices."""
    below = np.cumsum(probability[..., :-1], axis=-1) < rng.random(probability.shape[:2])[..., None]
    return np.asarray(below.sum(axis=-1), dtype=np.float64)


def as_series(series: Any, least: int, *, argument: str) -> Floats:
    """A series in time order with at least ``least`` entries."""
    values = _numbers(argument, series)
    if values.ndim != 1 or len(values) < least:
        msg = f"`{argument}` must be a series of at least {least} numbers in time order, got shape {values.shape}"
        raise ValueError(msg)
    return values


def refuse_targets_of_series(y_new: Any, weights: Mapping[str, Any]) -> None:
    """Refuse targets and weights of a model whose new rows are the days that follow."""
    if y_new is not None or weights:
        what = "y_new" if y_new is not None else ", ".join(weights)
        msg = f"`{what}` must be left out for a series: give the days that follow as `X_new`"
        raise TypeError(msg)


def matching_columns(X: Any, names: Sequence[str]) -> Floats:
    """New covariates in the order of ``names``: a frame by its names, an array by position."""
    if hasattr(X, "columns"):
        missing = [name for name in names if name not in set(map(str, X.columns))]
        if missing:
            msg = f"`X_new` must have the columns of `X`, {', '.join(names)}; missing {', '.join(missing)}"
            raise ValueError(msg)
        by_name = {str(column): column for column in X.columns}
        return as_columns(X[[by_name[name] for name in names]], argument="X_new").values
    values = as_columns(X, argument="X_new").values
    if values.shape[1] != len(names):
        msg = f"`X_new` must have the {len(names)} columns of `X`, {', '.join(names)}, got {values.shape[1]}"
        raise ValueError(msg)
    return values


def refuse(argument: str, rule: str, values: Floats, bad: NDArray[np.bool_]) -> None:
    """Raise an error for the first bad value, with its row."""
    if np.any(bad):
        row = int(np.argmax(bad))
        msg = f"`{argument}` must {rule}, got {values[row]:g} in row {row}"
        raise ValueError(msg)


def _numbers(argument: str, data: Any) -> Floats:
    """A copy as floats, without missing values."""
    if np.ma.is_masked(data):
        array_of(argument, data)
    try:
        values = np.array(data, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"`{argument}` must hold numbers only ({error}); turn categories into indicator columns first"
        raise TypeError(msg) from error
    if not np.all(np.isfinite(values)):
        at_least_one = np.atleast_1d(values)
        rows = np.flatnonzero(~np.isfinite(at_least_one).reshape(len(at_least_one), -1).all(axis=1))
        shown = ", ".join(map(str, rows[:5])) + (" ..." if len(rows) > 5 else "")
        msg = f"`{argument}` must be finite; {len(rows)} of {len(at_least_one)} rows have NaN or infinity (row {shown}): drop or impute them"
        raise ValueError(msg)
    values.flags.writeable = False
    return values
