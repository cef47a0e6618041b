"""Which entries of a fit to plot, and values to plot beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import probability
from qbvi.marginals import Block
from qbvi.naming import nearest
from qbvi.plots.style import MARKS
from qbvi.random import systematic
from qbvi.results import Fit
from qbvi.summary import decimals_of
from qbvi.supports import Elementwise, Interval, PositiveDefinite, Simplex
from qbvi.weighted import WeightedDraws

__all__ = [
    "Entry",
    "Floats",
    "Names",
    "Points",
    "block_of",
    "bounds_of",
    "flatten",
    "is_discrete",
    "marked_points",
    "median_and_interval",
    "reference_draws",
    "select",
]

Floats = NDArray[np.float64]
Names = Sequence[str] | Mapping[str, str] | None
Points = Mapping[str, Any]

_REFERENCE_DRAWS = 8000  # of a reference that is not a sample


class Entry(NamedTuple):
    """One number of the posterior, and its title in the figure."""

    place: int  # index among the labels
    title: str


def select(fit: Fit, names: Names, limit: int) -> list[Entry]:
    """Entries selected by the names of parameters or entries, in the given order."""
    labels = {label: i for i, label in enumerate(fit.labels)}
    places = {block.name: list(range(block.entries.start, block.entries.stop)) for block in fit.blocks}
    renamed = dict(names) if isinstance(names, Mapping) else {}
    asked = [names] if isinstance(names, str) else list(labels if names is None else names)
    chosen = []
    for name in asked:
        if name not in labels and name not in places:
            msg = f"`names` must be parameters or entries of the fit, got {name!r}{nearest(name, {**places, **labels})}"
            raise ValueError(msg)
        found = [labels[name]] if name in labels else places[name]
        titles = [renamed.get(name, fit.labels[i]) if len(found) == 1 else fit.labels[i] for i in found]
        chosen += [Entry(i, title) for i, title in zip(found, titles, strict=True)]
    if not 0 < len(chosen) <= limit:
        msg = f"a legible figure has between 1 and {limit} entries, got {len(chosen)}; choose with names={list(labels)[:2]}"
        raise ValueError(msg)
    return chosen


def flatten(fit: Fit, values: Any, batched: bool) -> Floats:
    """Values in the prior's structure as (n, p); NaN for missing parameters, no rows for None."""
    if values is None:
        return np.empty((0, len(fit.labels)))
    named = fit.model.by_name(values)
    unknown = set(named) - {block.name for block in fit.blocks}
    if unknown:
        msg = f"values must have the parameters' names {[b.name for b in fit.blocks]}, got {sorted(unknown)} as well"
        raise ValueError(msg)
    arrays = {name: np.asarray(value, dtype=np.float64)[... if batched else None] for name, value in named.items()}
    flat = np.full((max(len(array) for array in arrays.values()), len(fit.labels)), np.nan)
    for block in fit.blocks:
        if block.name in arrays:
            flat[:, block.entries] = _checked(arrays[block.name], block.name, block.shape)
    return flat


def reference_draws(fit: Fit, reference: Any) -> Floats:
    """Draws of a reference as (n, p): of a sample, of weighted draws, or of another fit."""
    if isinstance(reference, Fit):
        reference = reference.sample(_REFERENCE_DRAWS, seed=0)
    if not isinstance(reference, WeightedDraws):
        return flatten(fit, reference, batched=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(systematic(rng, reference.weights, _REFERENCE_DRAWS))
    return np.asarray(flatten(fit, reference.draws, batched=True)[order])


def median_and_interval(fit: Fit, place: int, interval: float) -> str:
    """Median and equal-tailed interval of one entry, such as ``1.23 [1.01, 1.45]``."""
    interval = probability("interval", interval)
    low, median, high = fit.entry_quantiles(place, np.array([(1 - interval) / 2, 0.5, (1 + interval) / 2]))
    decimals = 0 if is_discrete(fit, place) else decimals_of((high - low) / 4, 2)
    is_long = decimals > 6 or max(abs(low), abs(high)) >= 1e7
    numbers = [f"{x:.3g}" if is_long else f"{x:.{decimals}f}" for x in (median, low, high)]
    text = "{} [{}, {}]".format(*numbers)
    return text.replace("-", "\N{MINUS SIGN}")


def _checked(array: Floats, name: str, shape: tuple[int, ...]) -> Floats:
    if array.shape[1:] != shape:
        msg = f"values of {name!r} must have shape {shape} each, got {array.shape[1:]}; draws go along the first axis"
        raise ValueError(msg)
    return array.reshape(len(array), -1)


def marked_points(fit: Fit, points: Points | None) -> dict[str, Floats]:
    """Values to mark, by label: (p,) each, NaN for missing parameters."""
    if points is not None and len(points) > len(MARKS):
        msg = f"`points` must hold at most {len(MARKS)} labels to stay legible, got {len(points)}"
        raise ValueError(msg)
    return {label: flatten(fit, values, batched=False)[0] for label, values in (points or {}).items()}


def block_of(fit: Fit, place: int) -> Block:
    """The parameter that an entry belongs to."""
    return next(block for block in fit.blocks if block.entries.start <= place < block.entries.stop)


def bounds_of(fit: Fit, place: int) -> Interval:
    """Bounds of one entry, as far as they are known."""
    if place in fit.marginals:
        return fit.marginals[place].support
    block = block_of(fit, place)
    support, j = block.prior.support, place - block.entries.start
    if isinstance(support, Elementwise):
        low, high = support.bounds(block.shape)
        return Interval(float(low[j]), float(high[j]))
    is_variance = isinstance(support, PositiveDefinite) and j % (block.shape[-1] ** 2) % (block.shape[-1] + 1) == 0
    if is_variance or isinstance(support, Simplex):
        return Interval(0.0, 1.0 if isinstance(support, Simplex) else math.inf)
    return Interval(-math.inf, math.inf)


def is_discrete(fit: Fit, place: int) -> bool:
    """Whether an entry is a whole number."""
    return block_of(fit, place).prior.support.is_discrete
