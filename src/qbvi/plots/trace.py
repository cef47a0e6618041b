"""The lower bound and the predicted gap over evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, ScalarFormatter
from numpy.typing import NDArray

from qbvi.plots.style import BLUE, DASHES, INK, ONE_COLUMN, VERMILION, legend_above, new_figure, tidy
from qbvi.results import Fit

__all__ = ["plot_trace"]


def plot_trace(fit: Fit, reference: float | Mapping[str, float] | None = None, ax: Axes | None = None) -> Figure:
    """Plot the lower bound over evaluations, and its final estimate plus or minus two s.e.

    The final estimate uses fresh draws. The axis shows the range in which the fit settles. If this
    cuts off the beginning, an inset shows the whole run. Below, on a log axis, are the nats that
    the method expected to gain (the gap), if it made such predictions.

    Parameters
    ----------
    fit : Fit
        The fit.
    reference : float or dict of str to float, optional
        A value to compare with, such as the exact optimum, or several values by label.
    ax : matplotlib.axes.Axes, optional
        Where to plot the bound, without the gap. By default a new figure one column wide.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import qbvi
    >>> prior = {"beta": qbvi.Normal(0, 1, shape=2)}
    >>> fit = qbvi.fit(lambda theta: -float(theta["beta"] @ theta["beta"]), prior, seed=1)
    >>> plot_trace(fit, reference={"exact": -np.log(3.0)}).axes[0].get_ylabel()
    'lower bound (nats)'
    """
    trace = fit.trace
    if not len(trace):
        msg = "`fit` must have made at least one iteration to have a trace, got 0"
        raise ValueError(msg)
    figure, ax, below = _axes(fit, ax)
    references = reference if isinstance(reference, Mapping) else {} if reference is None else {"reference": reference}
    _draw_bound(ax, fit)
    _draw_final(ax, fit)
    for (label, value), dashes in zip(references.items(), cycle(DASHES), strict=False):
        ax.axhline(value, color=INK, lw=0.9, ls=dashes, label=label, zorder=4)
    _frame_bound(ax, fit, list(references.values()))
    if below is not None:
        _draw_gap(below, fit)
        ax.set_xlabel("")
        ax.tick_params(labelbottom=False)
        figure.align_ylabels()
    legend_above(figure, ax)
    return cast("Figure", figure)


def _axes(fit: Fit, ax: Axes | None) -> tuple[Any, Axes, Axes | None]:
    """The figure, the axes of the bound, and those of the gap if there is one to show."""
    if ax is not None:
        return ax.figure, ax, None
    if not _gaps(fit)[0].size:
        figure: Any = new_figure(ONE_COLUMN, 2.5)
        return figure, figure.add_subplot(), None
    figure = new_figure(ONE_COLUMN, 3.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    return figure, above, below


def _gaps(fit: Fit) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Evaluations, or iterations, and predicted gaps of the iterations with a prediction."""
    known = np.isfinite(fit.trace.gap) & (fit.trace.gap > 0)
    return _costs(fit)[known], fit.trace.gap[known]


def _costs(fit: Fit) -> NDArray[np.int64]:
    """Evaluations so far or, if the iterations make none, their numbers: (T,)."""
    return fit.trace.n_evals if fit.trace.n_evals.any() else np.arange(1, len(fit.trace) + 1)


def _cost_label(fit: Fit) -> str:
    return "evaluations of the log-likelihood" if fit.trace.n_evals.any() else "iterations"


def _draw_gap(ax: Axes, fit: Fit) -> None:
    n_evals, gap = _gaps(fit)
    ax.plot(n_evals, gap, color=BLUE, lw=1.4, marker="o", ms=3)
    ax.set_yscale("log")
    # Whole decades, so that there are always two labels to read the scale from.
    ax.set_ylim(*(10.0 ** np.array([np.floor(np.log10(gap.min() / 1.1)), np.ceil(np.log10(gap.max() * 1.1))])))
    tidy(ax, _cost_label(fit), "gap (nats)")
    ax.yaxis.set_major_locator(LogLocator(numticks=4))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _draw_bound(ax: Axes, fit: Fit) -> None:
    # With a window of one there is no smooth line to draw, so the points stand out.
    if np.array_equal(fit.trace.elbo, fit.trace.elbo_smooth):
        ax.plot(_costs(fit), fit.trace.elbo, color=BLUE, lw=1.4, marker="o", ms=3, label="each iteration")
        return
    ax.plot(_costs(fit), fit.trace.elbo, color=BLUE, alpha=0.35, lw=0.6, label="each iteration")
    ax.plot(_costs(fit), fit.trace.elbo_smooth, color=BLUE, lw=1.4, label="smoothed")


def _draw_final(ax: Axes, fit: Fit) -> None:
    if math.isfinite(fit.elbo):
        spread = 2 * fit.elbo_se if math.isfinite(fit.elbo_se) else 0.0
        ax.axhspan(fit.elbo - spread, fit.elbo + spread, color=VERMILION, alpha=0.3, lw=0)
        ax.axhline(fit.elbo, color=VERMILION, lw=0.9, label="final estimate ± 2 s.e.")


def _frame_bound(ax: Axes, fit: Fit, references: Sequence[float]) -> None:
    """Show the second half of the run in full; an inset shows a high rise before it."""
    low, high = _settled_range(fit, references)
    smooth = np.where(np.isfinite(fit.trace.elbo_smooth), fit.trace.elbo_smooth, low)
    span, start = high - low, smooth.min()
    settled_early = np.mean(smooth < low - span) < 0.4
    inset = start < low - 5 * span and settled_early
    bottom = low - (1.3 if inset else 0.6) * span if settled_early else smooth[len(smooth) // 8]
    ax.set_ylim(max(bottom, start - 0.05 * span), high + 0.12 * span)
    tidy(ax, _cost_label(fit), "lower bound (nats)")
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(_thousands))
    ax.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    if inset:
        _draw_whole_run(ax, fit)


def _settled_range(fit: Fit, references: Sequence[float]) -> tuple[float, float]:
    """Range that the axis must show: the second half of the run, final estimate and references."""
    late = fit.trace.elbo[len(fit.trace) // 2 :]
    late = late[np.isfinite(late)]
    held = [*np.quantile(late, [0.01, 0.99])] if len(late) else []
    held += [v for v in (fit.elbo - 3 * fit.elbo_se, fit.elbo + 3 * fit.elbo_se, *references) if math.isfinite(v)]
    low, high = (min(held), max(held)) if held else (0.0, 1.0)
    return low, max(high, low + 1e-5 * max(1.0, abs(low)))


def _draw_whole_run(ax: Axes, fit: Fit) -> None:
    inset = ax.inset_axes((0.56, 0.14, 0.41, 0.27))
    _draw_bound(inset, fit)
    tidy(inset)
    inset.set_title("whole run", fontsize=6.5, color=INK, pad=2)
    inset.tick_params(labelsize=6, length=2, pad=1.5)
    for axis in (inset.xaxis, inset.yaxis):
        axis.set_major_locator(MaxNLocator(2))
        axis.set_major_formatter(FuncFormatter(_thousands))


def _thousands(value: float, _position: int) -> str:
    text = f"{value:,.0f}" if value == round(value) else f"{value:g}"
    return text.replace("-", "\N{MINUS SIGN}")
