"""The three pictures of a fit: the bound over evaluations, the marginals, and the pairs.

Figures are made without pyplot, so none accumulates and no window opens; they show themselves in a notebook and are written by
``figure.savefig("name.pdf")``. Sizes are those of one column (3.4 inches) or two (7 inches) of a journal.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.special import chdtri
from scipy.stats import gaussian_kde

from qbvi.distributions.base import Distribution, Independent
from qbvi.naming import nearest
from qbvi.results import Fit, Marginal

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator
except ImportError as error:
    _MSG = 'plots need matplotlib, which is not installed: pip install "qbvi[plots]"'
    raise ImportError(_MSG) from error

__all__ = ["plot_marginals", "plot_pairs", "plot_trace"]

Floats = NDArray[np.float64]
Names = Sequence[str] | Mapping[str, str] | None
Points = Mapping[str, Any]

_ONE_COLUMN, _TWO_COLUMNS = 3.4, 7.0  # inches
_MAX_PANELS = 24
# Okabe and Ito's palette, told apart by readers with any colour vision.
_BLUE, _VERMILION, _INK, _GREY = "#0072B2", "#D55E00", "#333333", "#8C8C8C"
_MARKS = (("#D55E00", "D"), ("#009E73", "o"), ("#CC79A7", "s"), ("#E69F00", "^"))
_LEVELS = (0.5, 0.95)
_PRIOR_DRAWS = 20_000
_CLOUD = 1000  # reference draws shown in a pair
_BINS = 60


def plot_trace(fit: Fit, reference: float | Mapping[str, float] | None = None, ax: Axes | None = None) -> Figure:
    """Draw the lower bound over evaluations, with the final estimate from fresh draws as a band of two standard errors.

    The axis is cut to where the fit settles; where that leaves out the beginning, an inset shows the whole run.

    Parameters
    ----------
    fit : Fit
        The fit.
    reference : float or dict of str to float, optional
        A value to compare with, such as the exact optimum, or several by their labels.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure of one column unless given.

    Returns
    -------
    matplotlib.figure.Figure
    """
    trace = fit.trace
    if not len(trace):
        msg = "`fit` must have made at least one iteration to have a trace, got 0"
        raise ValueError(msg)
    figure = _figure(_ONE_COLUMN, 2.5) if ax is None else ax.figure
    ax = figure.add_subplot() if ax is None else ax
    references = reference if isinstance(reference, Mapping) else {} if reference is None else {"reference": reference}
    _draw_bound(ax, fit, legend=True)
    for (label, value), dashes in zip(references.items(), _dashes(len(references)), strict=True):
        ax.axhline(value, color=_INK, lw=0.9, ls=dashes, label=label, zorder=4)
    low, high = _settled_range(fit, list(references.values()))
    ax.set_ylim(low, high)
    _tidy(ax, "evaluations of the log-likelihood", "lower bound (nats)")
    if np.nanmin(trace.elbo_smooth) < low - 4 * (high - low):
        _draw_whole_run(ax, fit)
    _legend_above(figure, ax)
    return figure


def plot_marginals(
    fit: Fit,
    names: Names = None,
    prior: bool = True,
    points: Points | None = None,
    reference: Any = None,
) -> Figure:
    """Draw the posterior density of every entry on its own scale.

    Densities are exact where the parameter's map acts entry by entry (real, positive, interval); the others are smoothed draws.

    Parameters
    ----------
    fit : Fit
        The fit.
    names : sequence or dict of str, optional
        Which to draw: parameters (``"beta"``, all its entries) or entries (``"beta[2]"``). A dict also renames, ``{"beta[2]": "age"}``.
        All unless given.
    prior : bool
        Whether to add the prior density, where it is proper, over the range of the posterior.
    points : dict, optional
        Values to mark, by label: ``{"maximum likelihood": values}``, each with the structure of the prior. Named parameters may be
        left out.
    reference : dict of arrays or array, optional
        Draws to compare with, along the first axis, such as those of a long MCMC run.

    Returns
    -------
    matplotlib.figure.Figure
    """
    entries = _select(fit, names, _MAX_PANELS)
    marks, draws = _marks(fit, points), _flatten(fit, reference, batched=True)
    columns = min(len(entries), 4)
    rows = math.ceil(len(entries) / columns)
    figure = _figure(_ONE_COLUMN if columns <= 2 else _TWO_COLUMNS, 1.4 * rows + 0.35)
    for place, entry in enumerate(entries):
        ax = figure.add_subplot(rows, columns, place + 1)
        x, density = _density(fit, entry.index)
        _draw_reference(ax, draws[:, entry.index])
        _draw_density(ax, x, density)
        _draw_prior(ax, fit, entry.index, prior)
        _draw_lines(ax, marks, entry.index)
        _frame_density(ax, x, density, [values[entry.index] for values in marks.values()])
        ax.set_title(entry.title, fontsize=8.5, color=_INK, pad=3)
    _legend_above(figure, *figure.axes)
    return figure


def plot_pairs(
    fit: Fit,
    names: Names = None,
    points: Points | None = None,
    reference: Any = None,
    max_parameters: int = 10,
) -> Figure:
    """Draw every pair of entries: credible regions of 50 % and 95 %, and the marginals on the diagonal.

    Regions are images of the Gaussian's ellipses under the parameters' maps, which have exactly those probabilities, where the
    maps act entry by entry; the others are regions of highest density of smoothed draws.

    Parameters
    ----------
    fit : Fit
        The fit.
    names, points, reference
        As in `plot_marginals`.
    max_parameters : int
        The most entries to draw; more are refused, so that a figure stays legible.

    Returns
    -------
    matplotlib.figure.Figure
    """
    entries = _select(fit, names, max_parameters)
    if len(entries) < 2:
        msg = f"`names` must give at least two entries to pair, got {len(entries)}; plot_marginals draws one"
        raise ValueError(msg)
    marks, draws = _marks(fit, points), _flatten(fit, reference, batched=True)
    k = len(entries)
    side = max(_ONE_COLUMN, min(_TWO_COLUMNS, 1.3 * k))
    figure = _figure(side, side)
    grid = figure.subplots(k, k, squeeze=False)
    limits = [
        _limits(*_density(fit, entry.index), [values[entry.index] for values in marks.values()]) for entry in entries
    ]
    for row, column in np.ndindex(k, k):
        ax = grid[row, column]
        if column > row:
            ax.remove()
            continue
        if column == row:
            _draw_diagonal(ax, fit, entries[row].index, marks, draws)
        else:
            _draw_pair(ax, fit, (entries[column].index, entries[row].index), marks, draws)
            ax.set_ylim(limits[row])
        ax.set_xlim(limits[column])
        _corner_axes(ax, entries, (row, column))
    figure.align_labels()
    _legend_in_corner(figure, grid[-1, 0], grid[0, 0])
    return figure


class _Entry(NamedTuple):
    index: int
    title: str


class _Picture(Figure):
    """A figure that IPython shows without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=160)
        return buffer.getvalue()


def _figure(width: float, height: float) -> Figure:
    figure = _Picture(figsize=(width, height), dpi=160, layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03, hspace=0.02, wspace=0.02)
    return figure


def _select(fit: Fit, names: Names, limit: int) -> list[_Entry]:
    """Entries by the names of parameters or of entries, in the order asked for."""
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
        chosen += [_Entry(i, title) for i, title in zip(found, titles, strict=True)]
    if not 0 < len(chosen) <= limit:
        msg = f"a legible figure has between 1 and {limit} entries, got {len(chosen)}; choose with names={list(labels)[:2]}"
        raise ValueError(msg)
    return chosen


def _flatten(fit: Fit, values: Any, batched: bool) -> Floats:
    """Values with the structure of the prior as (n, p), NaN for parameters that are left out; no rows for None."""
    if values is None:
        return np.empty((0, len(fit.labels)))
    named = values if fit.model.is_named else {fit.blocks[0].name: values}
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


def _checked(array: Floats, name: str, shape: tuple[int, ...]) -> Floats:
    if array.shape[1:] != shape:
        msg = f"values of {name!r} must have shape {shape} each, got {array.shape[1:]}; draws go along the first axis"
        raise ValueError(msg)
    return array.reshape(len(array), -1)


def _marks(fit: Fit, points: Points | None) -> dict[str, Floats]:
    if points is not None and len(points) > len(_MARKS):
        msg = f"`points` must hold at most {len(_MARKS)} labels to stay legible, got {len(points)}"
        raise ValueError(msg)
    return {label: _flatten(fit, values, batched=False)[0] for label, values in (points or {}).items()}


def _density(fit: Fit, index: int) -> tuple[Floats, Floats]:
    """Values and posterior density of one entry: (n,), (n,)."""
    marginal = fit.marginals.get(index)
    if marginal is not None:
        return marginal.density(np.linspace(-4.5, 4.5, 601))
    draws = fit.fixed_draws[:, index]
    margin = 0.1 * np.ptp(draws)
    x = np.linspace(draws.min() - margin, draws.max() + margin, 401)
    return x, gaussian_kde(draws)(x)


def _prior_density(fit: Fit, index: int, x: Floats) -> Floats | None:
    """Prior density of one entry at x (n,), or None where the prior is improper or has no mass near x."""
    block = next(b for b in fit.blocks if b.entries.start <= index < b.entries.stop)
    prior, j = block.prior, index - block.entries.start
    if not prior.can_sample:
        return None
    if math.prod(block.shape) == 1:
        return np.exp(np.asarray(prior.log_prob(x.reshape(-1, *block.shape))))
    if isinstance(prior, Independent):
        return np.exp(prior.log_prob_entry(x, j))
    return _smoothed(prior.sample(np.random.default_rng(0), _PRIOR_DRAWS).reshape(_PRIOR_DRAWS, -1)[:, j], x)


def _smoothed(draws: Floats, x: Floats) -> Floats | None:
    """Kernel estimate at x from the draws near x, so that far outliers do not widen the kernel."""
    near = draws[np.abs(draws - np.mean(x[[0, -1]])) <= 2 * np.ptp(x)]
    return gaussian_kde(near)(x) * (len(near) / len(draws)) if len(near) >= 100 else None


def _limits(x: Floats, density: Floats, marked: Sequence[float]) -> tuple[float, float]:
    """Where the density is visible, widened to hold what is marked."""
    visible = x[density > 0.005 * density.max()]
    ends = np.array([visible.min(), visible.max(), *(value for value in marked if np.isfinite(value))])
    margin = 0.03 * np.ptp(ends)
    # A marked point needs room beside it; a density that ends at its own bound does not.
    low = ends.min() - (margin if ends.min() < visible.min() else 0)
    high = ends.max() + (margin if ends.max() > visible.max() else 0)
    return float(low), float(high)


def _draw_density(ax: Axes, x: Floats, density: Floats) -> None:
    ax.fill_between(x, density, color=_BLUE, alpha=0.15, lw=0)
    ax.plot(x, density, color=_BLUE, lw=1.4, label="posterior")


def _draw_prior(ax: Axes, fit: Fit, index: int, wanted: bool) -> None:
    low, high = _limits(*_density(fit, index), [])
    x = np.linspace(low, high, 301)[1:-1]
    density = _prior_density(fit, index, x) if wanted else None
    if density is not None:
        ax.plot(x, density, color=_INK, lw=0.9, ls=(0, (4, 2)), label="prior")


def _draw_reference(ax: Axes, draws: Floats) -> None:
    draws = draws[np.isfinite(draws)]
    if len(draws):
        ends = np.quantile(draws, [0.001, 0.999])
        bins = np.linspace(*ends, int(np.clip(len(draws) ** (1 / 3) * 2, 12, 50)))
        inside = draws[(draws >= ends[0]) & (draws <= ends[1])]
        ax.hist(inside, bins=bins, density=True, color="#D9D9D9", lw=0, label="reference")


def _draw_lines(ax: Axes, marks: Mapping[str, Floats], index: int) -> None:
    for (label, values), (colour, marker) in zip(marks.items(), _MARKS, strict=False):
        if np.isfinite(values[index]):
            ax.axvline(values[index], color=colour, lw=1.1, ymax=0.97, zorder=3)
            ax.plot(
                values[index],
                0.97,
                transform=ax.get_xaxis_transform(),
                color=colour,
                marker=marker,
                ms=3.5,
                lw=1.1,
                label=label,
            )


def _frame_density(ax: Axes, x: Floats, density: Floats, marked: Sequence[float]) -> None:
    ax.set_xlim(_limits(x, density, marked))
    bars = [patch.get_height() for patch in ax.patches]
    ax.set_ylim(0, 1.12 * max(density.max(), *bars, 0))
    ax.set_yticks([])
    ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    _tidy(ax)
    ax.spines["left"].set_visible(False)


def _draw_diagonal(ax: Axes, fit: Fit, index: int, marks: Mapping[str, Floats], draws: Floats) -> None:
    x, density = _density(fit, index)
    _draw_reference(ax, draws[:, index])
    _draw_density(ax, x, density)
    for (_, values), (colour, _) in zip(marks.items(), _MARKS, strict=False):
        if np.isfinite(values[index]):
            ax.axvline(values[index], color=colour, lw=1.0)
    _frame_density(ax, x, density, [])


def _draw_pair(ax: Axes, fit: Fit, pair: tuple[int, int], marks: Mapping[str, Floats], draws: Floats) -> None:
    cloud = draws[:_CLOUD, list(pair)]
    if np.isfinite(cloud).all() and len(cloud):
        ax.plot(*cloud.T, ".", color="#A6A6A6", ms=1.6, mew=0, alpha=0.5, rasterized=True, label="reference")
    both = [fit.marginals.get(i) for i in pair]
    if None not in both:
        _draw_ellipses(ax, both, _correlation(fit, pair))  # type: ignore[arg-type]
    else:
        _draw_regions(ax, fit.fixed_draws[:, list(pair)])
    for (label, values), (colour, marker) in zip(marks.items(), _MARKS, strict=False):
        at = values[list(pair)]
        if np.isfinite(at).all():
            ax.plot(*at, marker, color=colour, ms=3.5, mew=0, label=label)


def _draw_ellipses(ax: Axes, both: Sequence[Marginal], correlation: float) -> None:
    """Images of the Gaussian's ellipses of probability p, of squared radius -2 log(1 - p)."""
    angle = np.linspace(0, 2 * np.pi, 241)
    first, second = np.cos(angle), correlation * np.cos(angle) + math.sqrt(1 - correlation**2) * np.sin(angle)
    for level, alpha in zip(_LEVELS, (0.35, 0.15), strict=True):
        radius = math.sqrt(-2 * math.log1p(-level))
        x, y = both[0].at(radius * first), both[1].at(radius * second)
        ax.fill(x, y, facecolor=_BLUE, alpha=alpha, lw=0)
        ax.plot(x, y, color=_BLUE, lw=0.9)


def _draw_regions(ax: Axes, draws: Floats) -> None:
    """Regions of highest density of a smoothed histogram of draws (n, 2)."""
    ends = np.quantile(draws, [0.0005, 0.9995], axis=0)
    margin = 0.1 * (ends[1] - ends[0])
    edges = [np.linspace(low, high, _BINS + 1) for low, high in zip(ends[0] - margin, ends[1] + margin, strict=True)]
    mass = gaussian_filter(np.histogram2d(*draws.T, bins=edges)[0], _BINS / 25)
    ordered = np.sort(mass.ravel())[::-1]
    held = np.cumsum(ordered) / ordered.sum()
    heights = [ordered[np.searchsorted(held, level)] for level in reversed(_LEVELS)]
    centres = [(edge[1:] + edge[:-1]) / 2 for edge in edges]
    ax.contourf(*centres, mass.T, levels=[*heights, mass.max()], colors=[_BLUE, _BLUE], alpha=0.2)
    ax.contour(*centres, mass.T, levels=heights, colors=[_BLUE], linewidths=0.9)


def _correlation(fit: Fit, pair: tuple[int, int]) -> float:
    """Of two entries on the unconstrained scale."""
    columns = [fit.marginals[i].column for i in pair]
    block = fit.unconstrained[1][np.ix_(columns, columns)]
    return float(np.clip(block[0, 1] / math.sqrt(block[0, 0] * block[1, 1]), -1, 1))


def _corner_axes(ax: Axes, entries: Sequence[_Entry], place: tuple[int, int]) -> None:
    """Name the outer axes only."""
    row, column = place
    last = len(entries) - 1
    _tidy(ax, entries[column].title if row == last else "", entries[row].title if 0 == column < row else "")
    ax.xaxis.set_major_locator(MaxNLocator(3, prune="both"))
    ax.tick_params(axis="x", labelrotation=45, labelbottom=row == last, labelsize=7)
    if row == column:
        ax.spines["left"].set_visible(False)
        return
    ax.yaxis.set_major_locator(MaxNLocator(3, prune="both"))
    ax.tick_params(axis="y", labelleft=column == 0, labelsize=7)


def _draw_bound(ax: Axes, fit: Fit, legend: bool) -> None:
    trace = fit.trace
    ax.plot(trace.n_evals, trace.elbo, color=_BLUE, alpha=0.35, lw=0.6, label="each iteration")
    ax.plot(trace.n_evals, trace.elbo_smooth, color=_BLUE, lw=1.4, label="smoothed")
    if legend and math.isfinite(fit.elbo):
        spread = 2 * fit.elbo_se if math.isfinite(fit.elbo_se) else 0.0
        ax.axhspan(fit.elbo - spread, fit.elbo + spread, color=_VERMILION, alpha=0.3, lw=0)
        ax.axhline(fit.elbo, color=_VERMILION, lw=0.9, label="final estimate ± 2 s.e.")


def _settled_range(fit: Fit, references: Sequence[float]) -> tuple[float, float]:
    """Limits that show the second half of the run, the final estimate and the references, with room below for the rise."""
    late = fit.trace.elbo[len(fit.trace) // 2 :]
    late = late[np.isfinite(late)]
    held = [*np.quantile(late, [0.02, 0.98])] if len(late) else []
    held += [v for v in (fit.elbo - 3 * fit.elbo_se, fit.elbo + 3 * fit.elbo_se, *references) if math.isfinite(v)]
    low, high = (min(held), max(held)) if held else (0.0, 1.0)
    span = max(high - low, 1e-3 * max(1.0, abs(high)))
    return low - 0.8 * span, high + 0.15 * span


def _draw_whole_run(ax: Axes, fit: Fit) -> None:
    inset = ax.inset_axes((0.56, 0.14, 0.41, 0.3))
    _draw_bound(inset, fit, legend=False)
    _tidy(inset)
    inset.set_title("whole run", fontsize=6.5, color=_INK, pad=2)
    inset.tick_params(labelsize=6, length=2, pad=1.5)
    inset.xaxis.set_major_locator(MaxNLocator(2))
    inset.yaxis.set_major_locator(MaxNLocator(2))
    inset.xaxis.set_major_formatter(FuncFormatter(_thousands))
    inset.yaxis.set_major_formatter(FuncFormatter(_thousands))


def _thousands(value: float, _position: int) -> str:
    return (
        f"{value:,.0f}".replace("-", "\N{MINUS SIGN}")
        if value == round(value)
        else f"{value:g}".replace("-", "\N{MINUS SIGN}")
    )


def _dashes(count: int) -> list[tuple[int, tuple[float, ...]]]:
    patterns: list[tuple[int, tuple[float, ...]]] = [(0, (4, 2)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5))]
    return [patterns[i % len(patterns)] for i in range(count)]


def _tidy(ax: Axes, xlabel: str = "", ylabel: str = "") -> None:
    """Only the lines that carry information."""
    ax.spines[["top", "right"]].set_visible(False)
    for spine in ax.spines.values():
        spine.set(linewidth=0.6, color=_GREY)
    ax.tick_params(labelsize=7.5, width=0.6, length=3, pad=2, color=_GREY, labelcolor=_INK)
    ax.set_xlabel(xlabel, fontsize=8.5, color=_INK)
    ax.set_ylabel(ylabel, fontsize=8.5, color=_INK)


def _handles(*axes: Axes) -> dict[str, Any]:
    """One handle for each label, in the order they first appear."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found


def _legend_above(figure: Any, *axes: Axes) -> None:
    found = _handles(*axes)
    columns = min(len(found), 5 if figure.get_figwidth() > 4 else 2)
    options = {
        "frameon": False,
        "fontsize": 7.5,
        "labelcolor": _INK,
        "ncols": columns,
        "handlelength": 1.8,
        "columnspacing": 1.4,
    }
    figure.legend(found.values(), found.keys(), loc="outside upper center", **options)


def _legend_in_corner(figure: Any, *axes: Axes) -> None:
    """Use the empty half of a corner plot."""
    found = _handles(*axes)
    figure.legend(found.values(), found.keys(), loc="upper right", frameon=False, fontsize=8, labelcolor=_INK)
