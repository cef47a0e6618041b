"""A log-likelihood given by its terms: one number for each observation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.evaluate.batches import WithData
from qbvi.evaluate.calls import ShapeError

__all__ = ["Summed", "Totals", "as_terms", "terms_of"]

Floats = NDArray[np.float64]

_SHOWN = 3  # terms that a message names


class Totals(np.ndarray[Any, np.dtype[np.float64]]):
    """Sums of terms, with a sentence about each one that is not finite."""

    why: dict[int, str]

    @classmethod
    def of(cls, terms: Floats) -> Totals:
        """Sum over the last axis: (m,) to a number, (S, m) to (S,)."""
        with np.errstate(invalid="ignore"):  # infinities of both signs have no sum
            totals = np.asarray(terms.sum(axis=-1)).view(cls)
        bad = np.flatnonzero(~np.isfinite(np.atleast_1d(totals)))
        rows = np.atleast_2d(terms)
        totals.why = {int(i): _described(rows[i]) for i in bad}
        return totals


@dataclass(frozen=True)
class Summed:
    """The sum of the terms that a user's function returns.

    Parameters
    ----------
    terms
        The function: it returns (m,) at one point or, if ``vectorized``, (S, m) at S points. A
        pair of terms and a number is read as that, with the standard deviation of the noise.
    vectorized
        Whether it takes many points.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([1.0, 2.0])
    >>> Summed(lambda m: -0.5 * (y - m) ** 2)(0.0)
    Totals(-2.5)
    """

    terms: Callable[..., Any]
    vectorized: bool = False

    def __call__(self, points: Any, *batch: Any) -> Any:
        """The sum at one point, or sums at many, and the noise if it is returned."""
        returned = self.terms(points, *batch)
        if isinstance(returned, tuple) and len(returned) == 2:
            return Totals.of(as_terms(returned[0], self.vectorized)), returned[1]
        return Totals.of(as_terms(returned, self.vectorized))


def as_terms(value: Any, vectorized: bool) -> Floats:
    """What a function returned as an array of terms: (m,), or (S, m)."""
    array = value.astype(np.float64).filled(np.nan) if np.ma.is_masked(value) else np.asarray(value)
    if array.dtype.kind not in "fiu":
        msg = f"`log_likelihood` must return real numbers, got {type(value).__name__} of dtype {array.dtype}"
        raise ShapeError(msg)
    if array.ndim != 1 + bool(vectorized) or not array.shape[-1]:
        rule = "(points, observations)" if vectorized else "(observations,)"
        way_out = "leave pointwise=True out if it returns their sum" if array.ndim <= vectorized else "ravel them"
        msg = (
            f"`log_likelihood` must return its terms with pointwise=True, an array of shape {rule}, got shape "
            f"{array.shape}; {way_out}"
        )
        raise ShapeError(msg)
    return array.astype(np.float64)


def terms_of(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """The function that returns the terms, if a fit was given one."""
    if isinstance(function, Summed):
        return function.terms
    if isinstance(function, WithData) and isinstance(function.function, Summed):
        return WithData(function.function.terms, function.data)
    return None


def _described(terms: Floats) -> str:
    """Which terms are not finite: those that spoil the sum before those that make it -inf."""
    spoilt = np.flatnonzero(np.isnan(terms) | (terms == np.inf))
    bad = spoilt if len(spoilt) else np.flatnonzero(terms == -np.inf)
    if not len(bad):
        return "the terms are finite, but their sum overflows"
    shown = ", ".join(f"{i} ({terms[i]})" for i in bad[:_SHOWN])
    return f"{len(bad)} of {len(terms)} terms are not finite: {shown}{' ...' if len(bad) > _SHOWN else ''}"
