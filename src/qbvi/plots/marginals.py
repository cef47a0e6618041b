"""The posterior density of every entry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from qbvi.plots.densities import posterior_density, prior_density, prior_draws, visible_range
from qbvi.plots.entries import (
    Floats,
    Names,
    Points,
    is_discrete,
    marked_points,
    median_and_interval,
    reference_draws,
    select,
)
from qbvi.plots.style import (
    BLUE,
    DASHES,
    INK,
    MARKS,
    ONE_COLUMN,
    TWO_COLUMNS,
    legend_above,
    new_figure,
    note_below,
    subtitle,
    tidy,
)
from qbvi.results import Fit

__all__ = ["draw_panel", "plot_marginals"]

_MAX_PANELS = 24


def plot_marginals(
    fit: Fit,
    names: Names = None,
    prior: bool = True,
    points: Points | None = None,
    reference: Any = None,
    interval: float = 0.95,
) -> Figure:
    """Plot the posterior density of every entry on its own scale.

    Above each density are the median and the credible interval.

    Densities are exact if the parameter's map acts entry by entry (real, positive, interval).
    Otherwise they are kernel estimates from draws.

    Parameters
    ----------
    fit : Fit
        The fit.
    names : sequence or dict of str, optional
        What to plot: parameters (``"beta"``, all its entries) or entries (``"beta[2]"``). A dict
        also renames them, as in ``{"beta[2]": "age"}``. By default all entries.
    prior : bool
        Whether to add the prior density over the range of the posterior, if it is proper.
    points : dict, optional
        Values to mark, by label: ``{"maximum likelihood": values}``. Each has the structure of the
        prior; parameters with names may be missing.
    reference : dict of arrays, array, WeightedDraws or Fit, optional
        Draws to compare with, along the first axis, such as those of a long MCMC run. Or the
        weighted draws of a checked fit (``fit.check(1000).weighted_draws()``), or another fit.
    interval : float
        Posterior probability of the equal-tailed interval.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import qbvi
    >>> prior = {"beta": qbvi.Normal(0, 1, shape=2)}
    >>> fit = qbvi.fit(lambda theta: -float(theta["beta"] @ theta["beta"]), prior, seed=1)
    >>> truth = {"beta": [0.1, 0.2]}
    >>> figure = plot_marginals(fit, names={"beta[1]": "age"}, points={"truth": truth})
    >>> [ax.get_title() for ax in figure.axes]
    ['age']
    """
    entries = select(fit, names, _MAX_PANELS)
    marks, draws = marked_points(fit, points), reference_draws(fit, reference)
    columns = min(len(entries), 4)
    rows = math.ceil(len(entries) / columns)
    figure = new_figure(ONE_COLUMN if columns <= 2 else TWO_COLUMNS, 1.55 * rows + 0.5)
    for place, entry in enumerate(entries):
        ax = figure.add_subplot(rows, columns, place + 1)
        draw_panel(ax, fit, entry.place, (marks, draws), prior)
        ax.set_title(entry.title, fontsize=8.5, color=INK, pad=13)
        subtitle(ax, median_and_interval(fit, entry.place, interval))
    note_below(figure, f"above each density: median [{100 * interval:.4g} % interval]")
    legend_above(figure, *figure.axes)
    return figure


def draw_panel(
    ax: Axes,
    fit: Fit,
    place: int,
    others: tuple[Mapping[str, Floats], Floats],
    prior: bool,
    limits: tuple[float, float] | None = None,
) -> None:
    """Draw the marginal of one entry, with marked points and reference draws.

    ``limits`` are those of the axis, by default the range in which something is visible.
    """
    marks, draws = others
    if is_discrete(fit, place):
        _draw_bars(ax, fit, place, prior)
        _draw_lines(ax, marks, place)
        return
    x, density = posterior_density(fit, place)
    _draw_density(ax, x, density, draws[:, place])
    if prior:
        _draw_prior(ax, fit, place, visible_range(x, density))
    _draw_lines(ax, marks, place)
    if limits is None:
        limits = visible_range(x, density, [values[place] for values in marks.values()])
    _frame_density(ax, density, limits)


def _draw_density(ax: Axes, x: Floats, density: Floats, reference: Floats) -> None:
    ax.plot(x, density, color=BLUE, lw=1.4, label="posterior")
    held = reference[np.isfinite(reference)]
    if len(held):
        ends = np.quantile(held, [0.001, 0.999])
        bins = np.linspace(ends[0], ends[1], int(np.clip(2 * len(held) ** (1 / 3), 12, 40)))
        # Compute the heights here, because draws beyond the bins count too.
        heights = np.histogram(held, bins)[0] / len(held) / np.diff(bins)
        ax.stairs(heights, bins, fill=True, color="#D4D4D4", zorder=0, label="reference")
    else:
        ax.fill_between(x, density, color=BLUE, alpha=0.15, lw=0)


def _draw_bars(ax: Axes, fit: Fit, place: int, prior: bool) -> None:
    """Probabilities of whole numbers as bars, and those of the prior as dots."""
    draws = fit.fixed_draws[:, place]
    x, counts = np.unique(draws, return_counts=True)
    heights = counts / len(draws)
    ax.bar(x, heights, width=0.7, color=BLUE, alpha=0.6, lw=0, label="posterior")
    low, high = (0.0, 1.0) if x.max() <= 1 else (x.min(), x.max())
    at = np.arange(low, high + 1)
    if prior:
        sample = prior_draws(fit, place)
        shares = [float(np.mean(sample == value)) for value in at]
        ax.plot(at, shares, "o", color=INK, ms=2.5, label="prior")
        heights = np.append(heights, shares)
    _frame_density(ax, heights, (low - 0.7, high + 0.7))
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _draw_prior(ax: Axes, fit: Fit, place: int, limits: tuple[float, float]) -> None:
    x = np.linspace(*limits, 301)[1:-1]  # the ends may lie on the boundary of the support
    density = prior_density(fit, place, x)
    if density is not None:
        ax.plot(x, density, color=INK, lw=0.9, ls=DASHES[0], label="prior")


def _draw_lines(ax: Axes, marks: Mapping[str, Floats], place: int) -> None:
    for (label, values), (colour, marker) in zip(marks.items(), MARKS, strict=False):
        if np.isfinite(values[place]):
            x = [values[place]] * 2
            across = ax.get_xaxis_transform()
            ax.plot(
                x, [0, 0.96], color=colour, lw=1.1, marker=marker, ms=3.5, markevery=[1], transform=across, label=label
            )


def _frame_density(ax: Axes, density: Floats, limits: tuple[float, float]) -> None:
    ax.set(xlim=limits, ylim=(0, 1.15 * density.max()), yticks=[])
    ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    tidy(ax)
    ax.spines["left"].set_visible(False)
