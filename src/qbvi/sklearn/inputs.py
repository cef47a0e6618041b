"""Data and seeds as scikit-learn passes them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, validate_data

from qbvi.results import Fit

__all__ = ["checked", "checked_weights", "new_rows", "seed_of", "warn_unless_converged"]

Floats = NDArray[np.float64]


def checked(estimator: Any, X: Any, y: Any, numeric: bool = True) -> tuple[Floats, Any]:
    """Training rows, checked by scikit-learn, which also keeps their names and number."""
    refuse_text(X)
    X, y = validate_data(estimator, X, y, dtype=np.float64, y_numeric=numeric, ensure_min_samples=2)
    return X, y.astype(np.float64) if numeric else y


def new_rows(estimator: Any, X: Any) -> Floats:
    """Rows to predict, which must have the columns of the training rows."""
    refuse_text(X)
    rows: Floats = validate_data(estimator, X, dtype=np.float64, reset=False)
    return rows


def checked_weights(sample_weight: Any, X: Floats) -> Floats | None:
    """One weight for each row, or None if they are all one."""
    if sample_weight is None:
        return None
    weights: Floats = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not np.any(weights > 0):
        msg = "`sample_weight` must be positive in at least one row, got zeros only"
        raise ValueError(msg)
    return None if np.all(weights == 1) else weights


def refuse_text(X: Any) -> None:
    """Refuse a frame with columns of text, and name what turns them into numbers.

    scikit-learn's own message names one value, but neither its column nor the way out.
    """
    if not (hasattr(X, "columns") and hasattr(X, "dtypes")):
        return
    text = [str(name) for name in X.columns if _is_text(X[name])]
    if text:
        msg = (
            f"`X` must hold numbers, got text in {', '.join(map(repr, text))}; put a ColumnTransformer with a OneHotEncoder "
            "for these columns before this estimator in a Pipeline"
        )
        raise ValueError(msg)


def seed_of(random_state: Any) -> int:
    """A seed from scikit-learn's ``random_state``: a number, None or a generator."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def warn_unless_converged(fit: Fit) -> None:
    """Warn as scikit-learn does about a fit that did not converge."""
    if not fit.converged:
        msg = f"the fit did not converge: {fit.stop_reason}; see `fit_.summary()`"
        warnings.warn(msg, ConvergenceWarning, stacklevel=3)


def _is_text(column: Any) -> bool:
    if getattr(column.dtype, "kind", "O") in "biufc":
        return False
    try:
        np.asarray(column, dtype=np.float64)
    except ValueError:
        return True
    except TypeError:  # not text either: scikit-learn says what it is
        return False
    return False
