"""The figures: drawn without pyplot, in the palette of the other plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "INK",
    "ORANGE",
    "PINK",
    "VERMILION",
    "Curve",
    "Path",
    "bound_panel",
    "curves",
    "log_scale",
    "new_figure",
    "paths",
]

Floats = NDArray[np.float64]

# Okabe and Ito's palette: readers with any colour vision can distinguish these colours.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PINK, INK, GREY = "#CC79A7", "#333333", "#8C8C8C"
_CYCLE = (BLUE, VERMILION, GREEN, PINK)


class Curve(NamedTuple):
    """Values over iterations."""

    label: str
    values: Floats
    dashed: bool = False


class Path(NamedTuple):
    """One parameter: its moments over the iterations, and its final density by each method."""

    name: str
    mean: Floats  # (T,)
    variance: Floats  # (T,)
    moments: Mapping[str, tuple[float, float]]  # mean and standard deviation of Gaussian marginals, by method
    draws: Floats  # from the posterior itself
    prior: tuple[float, float]


def new_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure and its axes (rows, columns)."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        msg = "the figures need matplotlib: pip install 'qbvi[reproduce]'"
        raise ImportError(msg) from error
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8, colors=INK)
        ax.set_axisbelow(True)
        ax.ticklabel_format(useOffset=False)
        ax.grid(alpha=0.25, linewidth=0.5)
    return figure, axes


def bound_panel(ax: Any, smooth: Floats, best: float | None, window: int = 30) -> None:
    """Draw the smoothed bound, its maximum as a red triangle, and the best of the family.

    The steep first part is outside the axes.
    """
    full = np.arange(len(smooth)) >= min(window, len(smooth) - 1)  # before, the average is over fewer bounds
    steps = np.arange(1, len(smooth) + 1)
    ax.plot(steps, smooth, color=BLUE, linewidth=1.2, label="smoothed bound")
    top = int(np.argmax(np.where(full, smooth, -np.inf)))
    ax.plot(steps[top], smooth[top], marker="^", color="#C00000", markersize=6, linestyle="none", label="its maximum")
    if best is not None:
        ax.axhline(best, color=INK, linewidth=0.9, linestyle="--", label="best of the family")
    settled = smooth[len(smooth) // 4 :]
    high = max(float(settled.max()), smooth[top], -math.inf if best is None else best)
    margin = max(high - float(np.quantile(settled, 0.05)), 1e-3)
    ax.set_ylim(high - 2.5 * margin, high + 0.35 * margin)
    _label(ax, "Lower bound")


def curves(ax: Any, lines: Sequence[Curve], title: str, legend: bool = True) -> None:
    """Draw curves over iterations.

    A dashed curve has the colour of the curve before it, to show training and test as a pair.
    """
    number = -1
    for line in lines:
        number += 0 if line.dashed else 1
        style = "--" if line.dashed else "-"
        steps = np.arange(1, len(line.values) + 1)
        colour = _CYCLE[number % len(_CYCLE)]
        ax.plot(steps, line.values, style, color=colour, linewidth=1.1, label=line.label)
    late = np.concatenate(
        [line.values[min(5, len(line.values) - 1) :] for line in lines]
    )  # the first steps are far off
    margin = max(0.12 * float(np.ptp(late)), 1e-9)
    ax.set_ylim(float(late.min()) - margin, float(late.max()) + margin)
    _label(ax, title, legend)


def log_scale(ax: Any) -> None:
    """A logarithmic vertical axis with plain numbers on it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_yscale("log")
    low, high = ax.get_ylim()
    subs = (1.0, 2.0, 5.0) if high / low < 1e3 else (1.0,)
    ax.yaxis.set_major_locator(LogLocator(subs=subs))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def paths(parameters: Sequence[Path], columns: int = 4) -> Any:
    """Draw means and variances over iterations above the marginals, for each parameter."""
    blocks = math.ceil(len(parameters) / columns)
    figure, axes = new_figure(2 * blocks, columns, (11.0, 4.3 * blocks))
    for number in range(blocks * columns):
        above, below = (
            axes[2 * (number // columns), number % columns],
            axes[2 * (number // columns) + 1, number % columns],
        )
        if number < len(parameters):
            _path(above, parameters[number])
            _marginal(below, parameters[number])
        else:
            above.set_visible(False)
            below.set_visible(False)
    handles, labels = axes[1, 0].get_legend_handles_labels()
    top = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        [*top[0], *handles],
        [*top[1], *labels],
        loc="outside lower center",
        ncols=len(labels) + 2,
        fontsize=9,
        frameon=False,
    )
    return figure


def _path(ax: Any, parameter: Path) -> None:
    steps = np.arange(1, len(parameter.mean) + 1)
    ax.plot(steps, parameter.mean, color=BLUE, linewidth=1.0, label="mean (left axis)")
    ax.plot([], [], color=VERMILION, linewidth=1.0, label="variance (right axis)")
    other = ax.twinx()
    other.plot(steps, parameter.variance, color=VERMILION, linewidth=1.0)
    log_scale(other)
    other.spines[["top"]].set_visible(False)
    other.tick_params(labelsize=7, colors=VERMILION, which="both")
    ax.tick_params(axis="y", colors=BLUE)
    ax.set_title(parameter.name, fontsize=10)


def _marginal(ax: Any, parameter: Path) -> None:
    low, high = np.quantile(parameter.draws, [0.001, 0.999])
    margin = 0.15 * (high - low)
    grid = np.linspace(low - margin, high + margin, 300)
    ax.hist(parameter.draws, bins=50, density=True, color=ORANGE, alpha=0.45, label="MCMC")
    styles = zip(parameter.moments.items(), (BLUE, GREEN, INK), ("-", "--", ":"), strict=False)
    for (name, (mean, sd)), colour, dash in styles:
        ax.plot(grid, _normal(grid, mean, sd), dash, color=colour, linewidth=1.4, label=name)
    ax.plot(grid, _normal(grid, *parameter.prior), color="#C00000", linewidth=1.0, label="prior")
    ax.set_xlim(grid[0], grid[-1])
    ax.locator_params(axis="x", nbins=5)
    ax.set_yticks([])
    ax.spines[["left"]].set_visible(False)


def _normal(x: Floats, mean: float, sd: float) -> Floats:
    return np.asarray(np.exp(-0.5 * ((x - mean) / sd) ** 2) / (sd * math.sqrt(2 * math.pi)))


def _label(ax: Any, title: str, legend: bool = True) -> None:
    ax.set_title(title, fontsize=10)
    ax.set_xlabel("iteration", fontsize=9)
    if legend:
        ax.legend(fontsize=7.5, frameon=False)
