"""Every pair of entries: credible regions, with marginals on the diagonal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.ndimage import gaussian_filter

from qbvi.marginals import Marginal
from qbvi.plots.densities import posterior_density, visible_range
from qbvi.plots.entries import Entry, Floats, Names, Points, bounds_of, flatten, marked_points, select
from qbvi.plots.marginals import draw_panel
from qbvi.plots.style import BLUE, INK, MARKS, ONE_COLUMN, TWO_COLUMNS, handles, new_figure, tidy
from qbvi.results import Fit
from qbvi.supports import Interval

__all__ = ["plot_pairs"]
_REGIONS = {0.95: 0.15, 0.5: 0.3}  # credible level: opacity
_CLOUD = 1000  # reference draws shown in a pair
_BINS = 60


def plot_pairs(
    fit: Fit,
    names: Names = None,
    points: Points | None = None,
    reference: Any = None,
    max_parameters: int = 10,
) -> Figure:
    """Plot every pair of entries: 50 % and 95 % credible regions, with marginals on the diagonal.

    If the parameters' maps act entry by entry, the regions are images of the Gaussian's ellipses
    and have exactly these probabilities. Otherwise they are highest-density regions of smoothed
    draws.

    Parameters
    ----------
    fit : Fit
        The fit.
    names, points, reference
        As in `plot_marginals`.
    max_parameters : int
        Largest number of entries. A figure with more would be illegible, so it is refused.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import qbvi
    >>> prior = {"beta": qbvi.Normal(0, 1, shape=2)}
    >>> fit = qbvi.fit(lambda theta: -float(theta["beta"] @ theta["beta"]), prior, seed=1)
    >>> len(plot_pairs(fit).axes)
    3
    """
    entries = select(fit, names, max_parameters)
    if len(entries) < 2:
        msg = f"`names` must give at least two entries to pair, got {len(entries)}; plot_marginals draws one"
        raise ValueError(msg)
    marks, draws = marked_points(fit, points), flatten(fit, reference, batched=True)
    k = len(entries)
    side = max(ONE_COLUMN, min(TWO_COLUMNS, 1.3 * k))
    figure = new_figure(side, side)
    grid: Any = figure.subplots(k, k, squeeze=False)
    limits = [_pair_limits(fit, entry.place, [values[entry.place] for values in marks.values()]) for entry in entries]
    for row, column in np.ndindex(k, k):
        ax = grid[row, column]
        if column > row:
            ax.remove()
        elif column == row:
            draw_panel(ax, fit, entries[row].place, (marks, draws), False, limits[row])
        else:
            _draw_pair(ax, fit, (entries[column].place, entries[row].place), marks, draws)
            ax.set(xlim=limits[column], ylim=limits[row])
        if column <= row:
            _corner_axes(ax, entries, (row, column), side / k)
    figure.align_labels()
    _legend_in_corner(figure)
    return figure


def _pair_limits(fit: Fit, place: int, marked: Sequence[float]) -> tuple[float, float]:
    """`visible_range`, widened to include the outer region."""
    reach = fit.entry_quantiles(place, np.array([0.005, 0.995]))
    return visible_range(*posterior_density(fit, place), [*marked, *reach])


def _draw_pair(ax: Axes, fit: Fit, pair: tuple[int, int], marks: Mapping[str, Floats], draws: Floats) -> None:
    cloud = draws[:_CLOUD, list(pair)]
    if len(cloud) and np.isfinite(cloud).all():
        ax.plot(cloud[:, 0], cloud[:, 1], ".", color="#9A9A9A", ms=2, mew=0, alpha=0.5, rasterized=True)
    if all(place in fit.marginals for place in pair):
        _draw_ellipses(ax, [fit.marginals[place] for place in pair], _correlation(fit, pair))
    else:
        _draw_regions(ax, fit.fixed_draws[:, list(pair)], [bounds_of(fit, place) for place in pair])
    for values, (colour, marker) in zip(marks.values(), MARKS, strict=False):
        x, y = values[list(pair)]
        if np.isfinite(x + y):
            ax.plot(x, y, marker, color=colour, ms=3.5, mew=0)


def _draw_ellipses(ax: Axes, both: Sequence[Marginal], correlation: float) -> None:
    """Images of the Gaussian's ellipses with probability p, of squared radius -2 log(1 - p)."""
    angle = np.linspace(0, 2 * np.pi, 241)
    first, second = np.cos(angle), correlation * np.cos(angle) + math.sqrt(1 - correlation**2) * np.sin(angle)
    for level, alpha in _REGIONS.items():
        radius = math.sqrt(-2 * math.log1p(-level))
        x, y = both[0].at(radius * first), both[1].at(radius * second)
        ax.fill(x, y, facecolor=BLUE, alpha=alpha, lw=0)
        ax.plot(x, y, color=BLUE, lw=0.9)


def _draw_regions(ax: Axes, draws: Floats, supports: Sequence[Interval]) -> None:
    """Images of highest-density regions of a smoothed histogram: draws (n, 2).

    The histogram is made on the unconstrained scale.
    """
    u = np.concatenate([support.unconstrain(draws[:, i], ()) for i, support in enumerate(supports)], axis=1)
    ends = np.quantile(u, [0.0005, 0.9995], axis=0)
    margin = 0.15 * (ends[1] - ends[0])
    edges = [np.linspace(low, high, _BINS + 1) for low, high in zip(ends[0] - margin, ends[1] + margin, strict=True)]
    mass = gaussian_filter(np.histogram2d(u[:, 0], u[:, 1], bins=edges)[0], _BINS / 30)
    bins = [np.clip(np.searchsorted(edge, u[:, i]) - 1, 0, _BINS - 1) for i, edge in enumerate(edges)]
    centres = [support.constrain((e[1:] + e[:-1])[:, None] / 2, ()) for support, e in zip(supports, edges, strict=True)]
    for level, alpha in _REGIONS.items():
        # The draws set the level, so that the region has its probability whatever the smoothing.
        height = np.quantile(mass[bins[0], bins[1]], 1 - level)
        ax.contourf(*centres, mass.T, levels=[height, 2 * mass.max()], colors=[BLUE], alpha=alpha)
        ax.contour(*centres, mass.T, levels=[height], colors=[BLUE], linewidths=0.9)


def _correlation(fit: Fit, pair: tuple[int, int]) -> float:
    """Correlation of two entries on the unconstrained scale."""
    columns = [fit.marginals[i].column for i in pair]
    block = fit.unconstrained[1][np.ix_(columns, columns)]
    return float(np.clip(block[0, 1] / math.sqrt(block[0, 0] * block[1, 1]), -1, 1))


def _corner_axes(ax: Axes, entries: Sequence[Entry], place: tuple[int, int], side: float) -> None:
    """Label the outer axes only, in lines that fit beside a panel of ``side`` inches."""
    row, column = place
    last, small = len(entries) - 1, side < 1.2
    titles = [textwrap.fill(entry.title, max(6, int(side * 0.9 * 72 / 4.4))) for entry in entries]
    tidy(ax, titles[column] if row == last else "", titles[row] if 0 == column < row else "")
    ax.xaxis.set_major_locator(MaxNLocator(3 if side < 1.5 else 4, prune="both" if small else None))
    ax.tick_params(axis="x", labelrotation=45 if small else 0, labelbottom=row == last)
    if small:
        ax.xaxis.label.set_fontsize(7.5)
        ax.yaxis.label.set_fontsize(7.5)
        ax.tick_params(labelsize=6.5)
    if row != column:
        ax.yaxis.set_major_locator(MaxNLocator(3 if side < 1.5 else 4, prune="both" if small else None))
        ax.tick_params(axis="y", labelleft=column == 0)
    else:
        ax.spines["left"].set_visible(False)


def _legend_in_corner(figure: Any) -> None:
    """Place the legend in the empty half of a corner plot."""
    found = handles(*figure.axes)
    levels = ", ".join(f"{level:.0%}".replace("%", " %") for level in sorted(_REGIONS))
    labels = [f"{label} ({levels})" if label == "posterior" else label for label in found]
    figure.legend(found.values(), labels, loc="upper right", frameon=False, fontsize=7.5, labelcolor=INK)
