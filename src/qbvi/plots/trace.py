"""The lower bound and the predicted gap over evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, ScalarFormatter
from numpy.typing import NDArray

from qbvi.plots.style import BLUE, DASHES, INK, ONE_COLUMN, VERMILION, legend_above, new_figure, tidy
from qbvi.results import Fit

__all__ = ["plot_trace"]

_TALL = 8.0  # times the range of the end: an axis with a larger range does not show the end
_SETTLED = 1.0  # nats: the end of a run begins where its bound stays so close to the final estimate
_SETTLED_ERRORS = 5.0  # the same in standard errors, if these are larger
_FEWEST = 4  # least iterations of the end


def plot_trace(fit: Fit, reference: float | Mapping[str, float] | None = None, ax: Axes | None = None) -> Figure:
    """Plot the lower bound over evaluations, and its final estimate plus or minus two s.e.

    The final estimate uses fresh draws. The end of the run is always visible:

    - if the axis shows the range in which the fit settles, an inset shows the whole run,
    - if the axis shows the whole run, a second panel enlarges its end.

    The last panel has, on a log axis, the nats that the method expected to gain (the gap), if it
    made such predictions.

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
    references = reference if isinstance(reference, Mapping) else {} if reference is None else {"reference": reference}
    frame = _frame(fit, list(references.values()))
    figure, ax, end, below = _axes(fit, ax, frame.hides_end)
    for panel in filter(None, (ax, end)):
        _draw_bound(panel, fit)
        _draw_final(panel, fit)
        for (label, value), dashes in zip(references.items(), cycle(DASHES), strict=False):
            panel.axhline(value, color=INK, lw=0.9, ls=dashes, label=label, zorder=4)
    _frame_bound(ax, fit, frame)
    if end is not None:
        _frame_end(end, fit, frame)
    if below is not None:
        _draw_gap(below, fit)
        ax.set_xlabel("")
        ax.tick_params(labelbottom=False)
        figure.align_ylabels()
    legend_above(figure, ax)
    return cast("Figure", figure)


class _Frame(NamedTuple):
    """Which part of the bound the axes show."""

    limits: tuple[float, float]  # of the bound's axis
    has_inset: bool  # whether the beginning is cut off
    first: int  # iteration at which the end begins
    end: tuple[float, float]  # range of the end

    @property
    def hides_end(self) -> bool:
        """Whether the end looks like a flat line."""
        return self.limits[1] - self.limits[0] > _TALL * (self.end[1] - self.end[0])


def _axes(fit: Fit, ax: Axes | None, zoomed: bool) -> tuple[Any, Axes, Axes | None, Axes | None]:
    """The figure, the axes of the bound, those of its end, and those of the gap; None if absent."""
    if ax is not None:
        return ax.figure, ax, None, None
    has_gap = bool(_gaps(fit)[0].size)
    heights = [1.8] + [0.9] * has_gap + [1.2] * zoomed
    figure: Any = new_figure(ONE_COLUMN, 0.7 + sum(heights))
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    # The gap is directly below the bound, because they have one axis of evaluations.
    below = axes[1] if has_gap else None
    if below is not None:
        axes[0].sharex(below)
    return figure, axes[0], axes[-1] if zoomed else None, below


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


def _frame(fit: Fit, references: Sequence[float]) -> _Frame:
    """Show the second half of the run in full; an inset shows a high rise before it."""
    low, high = _settled_range(fit, references)
    smooth = np.where(np.isfinite(fit.trace.elbo_smooth), fit.trace.elbo_smooth, low)
    span, start = high - low, smooth.min()
    settled_early = np.mean(smooth < low - span) < 0.4
    inset = bool(start < low - 5 * span and settled_early)
    bottom = low - (1.3 if inset else 0.6) * span if settled_early else smooth[len(smooth) // 8]
    limits = float(max(bottom, start - 0.05 * span)), float(high + 0.12 * span)
    return _Frame(limits, inset, *_end(fit))


def _end(fit: Fit) -> tuple[int, tuple[float, float]]:
    """First iteration of the settled end of the run, and the range of the bound there."""
    errors = _SETTLED_ERRORS * fit.elbo_se if math.isfinite(fit.elbo_se) else 0.0
    smooth = np.where(np.isfinite(fit.trace.elbo_smooth), fit.trace.elbo_smooth, np.nan)
    final = fit.elbo if math.isfinite(fit.elbo) else smooth[-1]
    away = np.flatnonzero(~(np.abs(smooth - final) <= max(_SETTLED, errors)))
    after = int(away[-1]) + 1 if len(away) else 0
    first = max(0, min(after, len(fit.trace) - _FEWEST))
    held = [*fit.trace.elbo[first:], fit.elbo - 3 * fit.elbo_se, fit.elbo + 3 * fit.elbo_se]
    held = [value for value in held if math.isfinite(value)] or [0.0]
    return first, (float(min(held)), float(max(max(held), min(held) + 1e-5 * max(1.0, abs(min(held))))))


def _frame_bound(ax: Axes, fit: Fit, frame: _Frame) -> None:
    ax.set_ylim(*frame.limits)
    _label_bound(ax, fit)
    if frame.has_inset:
        _draw_whole_run(ax, fit)


def _frame_end(ax: Axes, fit: Fit, frame: _Frame) -> None:
    costs, (low, high) = _costs(fit), frame.end
    ax.set_ylim(low - 0.15 * (high - low), high + 0.15 * (high - low))
    ax.set_xlim(*(costs[frame.first], costs[-1]) if costs[-1] > costs[frame.first] else ax.get_xlim())
    _label_bound(ax, fit)
    ax.set_ylabel("bound (nats)")
    ax.yaxis.set_major_locator(MaxNLocator(4))
    ax.set_title("the end of the run, enlarged", fontsize=7.5, color=INK, pad=3)


def _label_bound(ax: Axes, fit: Fit) -> None:
    tidy(ax, _cost_label(fit), "lower bound (nats)")
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(_thousands))
    ax.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))


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
