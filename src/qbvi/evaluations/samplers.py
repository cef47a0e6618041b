"""Points and values that samplers of other packages hold, found by what their objects offer."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

__all__ = ["from_sampler"]

Floats = NDArray[np.float64]


def from_sampler(given: Any) -> dict[str, Any] | None:
    """The arguments of `Evaluations` from a sampler or its results; None if it is neither."""
    return next((found for read in (_ensemble, _nested, _nautilus) if (found := read(given)) is not None), None)


def _ensemble(given: Any) -> dict[str, Any] | None:
    """A backend or sampler of emcee: all steps of all walkers, as prior times likelihood."""
    if not _offers(given, "get_chain", "get_log_prob"):
        return None
    try:
        points, values = given.get_chain(flat=True), given.get_log_prob(flat=True)
    except (AttributeError, KeyError, OSError) as error:
        msg = f"`evaluations` must be a sampler that has run, got a {type(given).__name__} without a chain: {error}"
        raise ValueError(msg) from error
    return _table(given, points, values, with_prior=True)


def _nested(given: Any) -> dict[str, Any] | None:
    """Results of dynesty, or its sampler: all points, with their places in the unit cube."""
    results = _attribute(given, "results") if _attribute(given, "logl") is None else given
    points, values = _attribute(results, "samples"), _attribute(results, "logl")
    if points is None or values is None:
        return None
    cube = _attribute(results, "samples_u")
    found = _table(given, points, values, with_prior=False)
    if cube is not None and np.shape(cube) == np.shape(points):
        found["unconstrained"] = scipy.special.ndtri(np.asarray(cube, dtype=np.float64))
    return found


def _nautilus(given: Any) -> dict[str, Any] | None:
    """A sampler of nautilus: all points of all shells."""
    if not (_offers(given, "posterior", "run") and hasattr(given, "log_l")):
        return None
    points, _, values = given.posterior()
    return _table(given, points, values, with_prior=False)


def _table(given: Any, points: Any, values: Any, *, with_prior: bool) -> dict[str, Any]:
    points, values = np.asarray(points, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if points.ndim != 2 or len(points) == 0:
        msg = f"`evaluations` must be a sampler that has run, got a {type(given).__name__} with {len(points)} points"
        raise ValueError(msg)
    labels = tuple(f"theta[{i}]" for i in range(points.shape[1]))
    return {"labels": labels, "points": points, "values": values, "with_prior": with_prior}


def _offers(given: Any, *methods: str) -> bool:
    return not isinstance(given, type) and all(callable(getattr(given, name, None)) for name in methods)


def _attribute(given: Any, name: str) -> Any:
    """An attribute, or None; some samplers raise errors of their own before they have run."""
    try:
        return getattr(given, name, None)
    except (ValueError, RuntimeError, KeyError, TypeError):
        return None
