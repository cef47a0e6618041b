"""Intervals of many entries below each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from qbvi.arguments import probability
from qbvi.plots.entries import Entry, Floats, Names, Points, marked_points, reference_draws, select
from qbvi.plots.style import BLUE, GREY, INK, MARKS, ONE_COLUMN, legend_above, new_figure, tidy
from qbvi.results import Fit

__all__ = ["plot_forest"]

_MAX_ROWS = 100
_INNER = 0.5  # probability of the thick part


def plot_forest(
    fit: Fit,
    names: Names = None,
    points: Points | None = None,
    reference: Any = None,
    interval: float = 0.95,
) -> Figure:
    """Plot median, 50 % interval and credible interval of every entry, one below the other.

    All entries have one axis, so it suits entries of one scale: the coefficients of a regression,
    or the groups of a hierarchical model. Choose them with ``names``.

    Parameters
    ----------
    fit : Fit
        The fit.
    names, points, reference, interval
        As in `plot_marginals`. The intervals of the reference are below those of the fit.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import qbvi
    >>> prior = {"beta": qbvi.Normal(0, 1, shape=3)}
    >>> fit = qbvi.fit(lambda theta: -float(theta["beta"] @ theta["beta"]), prior, seed=1)
    >>> figure = plot_forest(fit, points={"least squares": {"beta": [0.1, 0.0, -0.1]}})
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['beta[0]', 'beta[1]', 'beta[2]']
    """
    entries = select(fit, names, _MAX_ROWS)
    marks, draws = marked_points(fit, points), reference_draws(fit, reference)
    tail = (1 - probability("interval", interval)) / 2
    levels = np.array([tail, (1 - _INNER) / 2, 0.5, (1 + _INNER) / 2, 1 - tail])
    figure = new_figure(ONE_COLUMN, 0.75 + 0.19 * len(entries))
    ax = figure.add_subplot()
    shift = 0.16 if len(draws) else 0.0
    labels = f"posterior: median, 50 % and {100 * interval:.4g} %", "reference"
    _draw_rows(ax, _quantiles_of(fit, entries, levels), -shift, BLUE, labels[0])
    if len(draws):
        _draw_rows(
            ax, np.nanquantile(draws[:, [entry.place for entry in entries]], levels, axis=0), shift, GREY, labels[1]
        )
    for (label, values), (colour, marker) in zip(marks.items(), MARKS, strict=False):
        ax.plot(
            [values[e.place] for e in entries], range(len(entries)), marker, color=colour, ms=3.5, mew=0, label=label
        )
    _frame_rows(ax, entries)
    legend_above(figure, ax)
    return figure


def _quantiles_of(fit: Fit, entries: list[Entry], levels: Floats) -> Floats:
    return np.stack([fit.entry_quantiles(entry.place, levels) for entry in entries], axis=1)


def _draw_rows(ax: Axes, quantiles: Floats, shift: float, colour: str, label: str) -> None:
    """Draw one line per entry from its quantiles (5, k)."""
    low, inner_low, median, inner_high, high = quantiles
    y = np.arange(quantiles.shape[1]) + shift
    ax.hlines(y, low, high, color=colour, lw=0.9)
    ax.hlines(y, inner_low, inner_high, color=colour, lw=2.6)
    ax.plot(median, y, "o", color=colour, ms=4, mec="white", mew=0.7, label=label)


def _frame_rows(ax: Axes, entries: list[Entry]) -> None:
    low, high = ax.get_xlim()
    if low < 0 < high:
        ax.axvline(0.0, color=GREY, lw=0.6, zorder=0)
    ax.set_ylim(len(entries) - 0.4, -0.6)  # the first entry is on top
    tidy(ax)
    ax.set_yticks(range(len(entries)), [entry.title for entry in entries], color=INK)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
