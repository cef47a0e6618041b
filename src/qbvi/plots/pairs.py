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
from qbvi.plots.entries import (
    Entry,
    Floats,
    Names,
    Points,
    bounds_of,
    marked_points,
    median_and_interval,
    reference_draws,
    select,
)
from qbvi.plots.marginals import draw_panel
from qbvi.plots.style import (
    BLUE,
    INK,
    MARKS,
    ONE_COLUMN,
    TWO_COLUMNS,
    handles,
    new_figure,
    note_below,
    subtitle,
    tidy,
)
from qbvi.results import Fit
from qbvi.supports import Interval

__all__ = ["plot_pairs"]
_REGIONS = {0.95: 0.15, 0.5: 0.3}  # credible level: opacity
_CLOUD = 1000  # reference draws shown in a pair
_FEWEST_DRAWS = 200  # of a reference, to draw its regions
_BINS = 60
_SMOOTH_BINS, _SMOOTH_DRAWS = 2.0, 8192  # width of the smoothing kernel for so many draws
_NARROW = 1.2  # inches: panels below have small labels, and no room for numbers


def plot_pairs(
    fit: Fit,
    names: Names = None,
    points: Points | None = None,
    reference: Any = None,
    max_parameters: int = 10,
    interval: float = 0.95,
) -> Figure:
    """Plot every pair of entries: 50 % and 95 % credible regions, with marginals on the diagonal.

    A reference sample lies under them: its draws as dots, its regions of the same probabilities as
    dashed lines, and its histograms. Above each marginal, where there is room, are the median and
    the credible interval.

    If the parameters' maps act entry by entry, the regions are images of the Gaussian's ellipses
    and have exactly these probabilities. Otherwise they are highest-density regions of smoothed
    draws.

    Parameters
    ----------
    fit : Fit
        The fit.
    names, points, reference, interval
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
    marks, draws = marked_points(fit, points), reference_draws(fit, reference)
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
    if side / k >= _NARROW:
        _write_numbers(figure, fit, dict(zip(entries, np.diagonal(grid), strict=True)), interval)
    _legend_in_corner(figure)
    return figure


def _write_numbers(figure: Figure, fit: Fit, diagonal: Mapping[Entry, Axes], interval: float) -> None:
    """Write median and interval above each marginal."""
    for entry, ax in diagonal.items():
        subtitle(ax, median_and_interval(fit, entry.place, interval), size=6.5)
    note_below(figure, f"above each marginal: median [{100 * interval:.4g} % interval]")


def _pair_limits(fit: Fit, place: int, marked: Sequence[float]) -> tuple[float, float]:
    """`visible_range`, widened to include the outer region."""
    reach = fit.entry_quantiles(place, np.array([0.005, 0.995]))
    return visible_range(*posterior_density(fit, place), [*marked, *reach])


def _draw_pair(ax: Axes, fit: Fit, pair: tuple[int, int], marks: Mapping[str, Floats], draws: Floats) -> None:
    _draw_reference(ax, draws[:, list(pair)], [bounds_of(fit, place) for place in pair])
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


def _draw_reference(ax: Axes, draws: Floats, supports: Sequence[Interval]) -> None:
    """Some reference draws (n, 2) as dots and, if they are enough, the regions of all."""
    draws = draws[np.isfinite(draws).all(axis=1)]
    some = draws[:_CLOUD]
    ax.plot(some[:, 0], some[:, 1], ".", color="#9A9A9A", ms=2, mew=0, alpha=0.5, rasterized=True, zorder=0)
    if len(draws) < _FEWEST_DRAWS or not np.ptp(draws, axis=0).all():
        return
    is_inside = all(bool(np.all((s.low < x) & (x < s.high))) for s, x in zip(supports, draws.T, strict=True))
    centres, mass, heights = _smoothed_mass(draws, supports if is_inside else [Interval(-np.inf, np.inf)] * 2)
    dashes: Any = [(0, (4, 2))]
    ax.contour(*centres, mass.T, levels=sorted(set(heights)), colors=[INK], linewidths=0.8, linestyles=dashes, zorder=3)


def _draw_regions(ax: Axes, draws: Floats, supports: Sequence[Interval]) -> None:
    """Images of highest-density regions of a smoothed histogram: draws (n, 2)."""
    centres, mass, heights = _smoothed_mass(draws, supports)
    for height, alpha in zip(heights, _REGIONS.values(), strict=True):
        ax.contourf(*centres, mass.T, levels=[height, 2 * mass.max()], colors=[BLUE], alpha=alpha)
        ax.contour(*centres, mass.T, levels=[height], colors=[BLUE], linewidths=0.9)


def _smoothed_mass(draws: Floats, supports: Sequence[Interval]) -> tuple[list[Floats], Floats, list[float]]:
    """A smoothed histogram of draws (n, 2): middles of its bins, heights, and levels of regions.

    The histogram is made on the unconstrained scale. The width of its kernel falls with the sixth
    root of the number of draws, which is optimal in two dimensions.
    """
    u = np.concatenate([support.unconstrain(draws[:, i], ()) for i, support in enumerate(supports)], axis=1)
    ends = np.quantile(u, [0.0005, 0.9995], axis=0)
    margin = 0.15 * (ends[1] - ends[0])
    edges = [np.linspace(low, high, _BINS + 1) for low, high in zip(ends[0] - margin, ends[1] + margin, strict=True)]
    width = _SMOOTH_BINS * (_SMOOTH_DRAWS / len(u)) ** (1 / 6)
    mass = gaussian_filter(np.histogram2d(u[:, 0], u[:, 1], bins=edges)[0], width)
    bins = [np.clip(np.searchsorted(edge, u[:, i]) - 1, 0, _BINS - 1) for i, edge in enumerate(edges)]
    centres = [support.constrain((e[1:] + e[:-1])[:, None] / 2, ()) for support, e in zip(supports, edges, strict=True)]
    # The draws set the level, so that the region has its probability whatever the smoothing.
    return centres, mass, [float(np.quantile(mass[bins[0], bins[1]], 1 - level)) for level in _REGIONS]


def _correlation(fit: Fit, pair: tuple[int, int]) -> float:
    """Correlation of two entries on the unconstrained scale."""
    columns = [fit.marginals[i].column for i in pair]
    block = fit.unconstrained[1][np.ix_(columns, columns)]
    return float(np.clip(block[0, 1] / math.sqrt(block[0, 0] * block[1, 1]), -1, 1))


def _corner_axes(ax: Axes, entries: Sequence[Entry], place: tuple[int, int], side: float) -> None:
    """Label the outer axes only, in lines that fit beside a panel of ``side`` inches."""
    row, column = place
    last, small = len(entries) - 1, side < _NARROW
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
