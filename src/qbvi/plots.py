"""The three plots of a fit: the bound over evaluations, the marginals, and the pairs.

Figures do not use pyplot, so none accumulates and no window opens. Notebooks display them, and
``figure.savefig("name.pdf")`` writes them. They are as wide as one column (3.4 inches) or two
(7 inches) of a journal.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.stats import beta, gaussian_kde

from qbvi.arrays import to_numpy
from qbvi.distributions import Dirichlet, Distribution
from qbvi.distributions.base import Independent
from qbvi.naming import nearest
from qbvi.results import Block, Fit, Marginal
from qbvi.supports import Elementwise, Interval, PositiveDefinite, Simplex

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator, ScalarFormatter
except ImportError as error:
    _MSG = 'plots need matplotlib, which is not installed: pip install "qbvi[plots]"'
    raise ImportError(_MSG) from error

__all__ = ["plot_marginals", "plot_pairs", "plot_trace"]

Floats = NDArray[np.float64]
Names = Sequence[str] | Mapping[str, str] | None
Points = Mapping[str, Any]

_ONE_COLUMN, _TWO_COLUMNS = 3.4, 7.0  # inches
_MAX_PANELS = 24
# Okabe and Ito's palette, which readers with any colour vision can tell apart.
_BLUE, _VERMILION, _INK, _GREY = "#0072B2", "#D55E00", "#333333", "#8C8C8C"
_MARKS = (("#D55E00", "D"), ("#009E73", "o"), ("#CC79A7", "s"), ("#E69F00", "^"))
_REGIONS = {0.95: 0.15, 0.5: 0.3}  # credible level: opacity
_DASHES = ((0, (4, 2)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)))
_PRIOR_DRAWS = 20_000
_CLOUD = 1000  # reference draws shown in a pair
_BINS = 60
_FINEST = 1e-9  # smallest relative difference that an axis can show


def plot_trace(fit: Fit, reference: float | Mapping[str, float] | None = None, ax: Axes | None = None) -> Figure:
    """Plot the lower bound over evaluations, and its final estimate plus or minus two s.e.

    The final estimate uses fresh draws. The axis shows the range in which the fit settles. If this
    cuts off the beginning, an inset shows the whole run.

    Parameters
    ----------
    fit : Fit
        The fit.
    reference : float or dict of str to float, optional
        A value to compare with, such as the exact optimum, or several values by label.
    ax : matplotlib.axes.Axes, optional
        Where to plot. By default a new figure one column wide.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import qbvi
    >>> from qbvi.families import Gaussian
    >>> from qbvi.model import Model
    >>> from qbvi.results import Report, Trace
    >>> q = Gaussian(2).start(np.zeros(2), np.ones(2))
    >>> bound = -9.0 / np.arange(1, 6)
    >>> mean, sd = np.zeros((5, 2)), np.ones((5, 2))
    >>> trace = Trace(np.arange(1, 6), bound, bound, bound, bound, bound, mean, sd)
    >>> report = Report(elbo=-1.8, elbo_se=0.1, trace=trace)
    >>> fit = Fit(Model(qbvi.Normal(0, 1, shape=2)), Gaussian(2), q, report)
    >>> plot_trace(fit, reference={"optimum": -1.7}).axes[0].get_ylabel()
    'lower bound (nats)'
    """
    trace = fit.trace
    if not len(trace):
        msg = "`fit` must have made at least one iteration to have a trace, got 0"
        raise ValueError(msg)
    figure: Any = _figure(_ONE_COLUMN, 2.5) if ax is None else ax.figure
    ax = figure.add_subplot() if ax is None else ax
    references = reference if isinstance(reference, Mapping) else {} if reference is None else {"reference": reference}
    _draw_bound(ax, fit)
    _draw_final(ax, fit)
    for (label, value), dashes in zip(references.items(), cycle(_DASHES), strict=False):
        ax.axhline(value, color=_INK, lw=0.9, ls=dashes, label=label, zorder=4)
    _frame_bound(ax, fit, list(references.values()))
    _legend_above(figure, ax)
    return cast("Figure", figure)


def plot_marginals(
    fit: Fit,
    names: Names = None,
    prior: bool = True,
    points: Points | None = None,
    reference: Any = None,
) -> Figure:
    """Plot the posterior density of every entry on its own scale.

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
    reference : dict of arrays or array, optional
        Draws to compare with, along the first axis, such as those of a long MCMC run.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import qbvi
    >>> from qbvi.families import Gaussian
    >>> from qbvi.model import Model
    >>> from qbvi.results import Report, Trace
    >>> q = Gaussian(2).start(np.zeros(2), np.ones(2))
    >>> fit = Fit(Model({"beta": qbvi.Normal(0, 1, shape=2)}), Gaussian(2), q, Report())
    >>> truth = {"beta": [0.1, 0.2]}
    >>> figure = plot_marginals(fit, names={"beta[1]": "age"}, points={"truth": truth})
    >>> [ax.get_title() for ax in figure.axes]
    ['age']
    """
    entries = _select(fit, names, _MAX_PANELS)
    marks, draws = _marks(fit, points), _flatten(fit, reference, batched=True)
    columns = min(len(entries), 4)
    rows = math.ceil(len(entries) / columns)
    figure = _figure(_ONE_COLUMN if columns <= 2 else _TWO_COLUMNS, 1.4 * rows + 0.35)
    for place, entry in enumerate(entries):
        ax = figure.add_subplot(rows, columns, place + 1)
        if _is_discrete(fit, entry.place):
            _draw_bars(ax, fit, entry.place, prior)
            _draw_lines(ax, marks, entry.place)
        else:
            x, density = _density(fit, entry.place)
            _draw_density(ax, x, density, draws[:, entry.place])
            if prior:
                _draw_prior(ax, fit, entry.place, _limits(x, density))
            _draw_lines(ax, marks, entry.place)
            _frame_density(ax, density, _limits(x, density, [values[entry.place] for values in marks.values()]))
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
    >>> from qbvi.families import Gaussian
    >>> from qbvi.model import Model
    >>> from qbvi.results import Report, Trace
    >>> q = Gaussian(2).start(np.zeros(2), np.ones(2))
    >>> fit = Fit(Model({"beta": qbvi.Normal(0, 1, shape=2)}), Gaussian(2), q, Report())
    >>> len(plot_pairs(fit).axes)
    3
    """
    entries = _select(fit, names, max_parameters)
    if len(entries) < 2:
        msg = f"`names` must give at least two entries to pair, got {len(entries)}; plot_marginals draws one"
        raise ValueError(msg)
    marks, draws = _marks(fit, points), _flatten(fit, reference, batched=True)
    k = len(entries)
    side = max(_ONE_COLUMN, min(_TWO_COLUMNS, 1.3 * k))
    figure = _figure(side, side)
    grid: Any = figure.subplots(k, k, squeeze=False)
    limits = [_pair_limits(fit, entry.place, [values[entry.place] for values in marks.values()]) for entry in entries]
    for row, column in np.ndindex(k, k):
        ax = grid[row, column]
        if column > row:
            ax.remove()
        elif column == row:
            _draw_diagonal(ax, fit, entries[row].place, limits[row], (marks, draws))
        else:
            _draw_pair(ax, fit, (entries[column].place, entries[row].place), marks, draws)
            ax.set(xlim=limits[column], ylim=limits[row])
        if column <= row:
            _corner_axes(ax, entries, (row, column), side / k)
    figure.align_labels()
    _legend_in_corner(figure)
    return figure


class _Entry(NamedTuple):
    place: int  # index among the labels
    title: str


class _Picture(Figure):
    """A figure that IPython displays without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=160)
        return buffer.getvalue()


def _figure(width: float, height: float) -> Figure:
    figure = _Picture(figsize=(width, height), dpi=160, layout="constrained", facecolor="white")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.03, h_pad=0.03, hspace=0.02, wspace=0.02)
    return figure


def _select(fit: Fit, names: Names, limit: int) -> list[_Entry]:
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
        chosen += [_Entry(i, title) for i, title in zip(found, titles, strict=True)]
    if not 0 < len(chosen) <= limit:
        msg = f"a legible figure has between 1 and {limit} entries, got {len(chosen)}; choose with names={list(labels)[:2]}"
        raise ValueError(msg)
    return chosen


def _flatten(fit: Fit, values: Any, batched: bool) -> Floats:
    """Values in the prior's structure as (n, p); NaN for missing parameters, no rows for None."""
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


def _block(fit: Fit, place: int) -> Block:
    return next(block for block in fit.blocks if block.entries.start <= place < block.entries.stop)


def _support(fit: Fit, place: int) -> Interval:
    """Bounds of one entry, as far as they are known."""
    if place in fit.marginals:
        return fit.marginals[place].support
    block = _block(fit, place)
    support, j = block.prior.support, place - block.entries.start
    if isinstance(support, Elementwise):
        low, high = support.bounds(block.shape)
        return Interval(float(low[j]), float(high[j]))
    is_variance = isinstance(support, PositiveDefinite) and j % (block.shape[-1] ** 2) % (block.shape[-1] + 1) == 0
    if is_variance or isinstance(support, Simplex):
        return Interval(0.0, 1.0 if isinstance(support, Simplex) else math.inf)
    return Interval(-math.inf, math.inf)


def _is_discrete(fit: Fit, place: int) -> bool:
    return _block(fit, place).prior.support.is_discrete


def _density(fit: Fit, place: int) -> tuple[Floats, Floats]:
    """Values and posterior density of one entry: (n,), (n,)."""
    if place in fit.marginals:
        z = np.linspace(-4.5, 4.5, 601)
        return fit.marginals[place].at(z), fit.marginals[place].density_at(z)
    draws, support = fit.fixed_draws[:, place], _support(fit, place)
    u = support.unconstrain(draws, ())[:, 0]
    margin = 0.1 * np.ptp(u)
    x = np.asarray(support.constrain(np.linspace(u.min() - margin, u.max() + margin, 401)[:, None], ()))
    return x, _smoothed(draws, support, x)


def _prior_density(fit: Fit, place: int, x: Floats) -> Floats | None:
    """Prior density of one entry at x (n,), or None if the prior is improper."""
    block = _block(fit, place)
    prior, j, support = block.prior, place - block.entries.start, _support(fit, place)
    if not prior.can_sample:
        return None
    if math.prod(block.shape) == 1:
        return np.exp(to_numpy(prior.log_prob(x.reshape(-1, *block.shape))))
    if isinstance(prior, Dirichlet):
        return _dirichlet_density(prior, j, x)
    if place in fit.marginals and prior.quadratic() is not None:
        return _gaussian_prior(prior, j, fit.marginals[place]).density(x)
    if isinstance(prior, Independent):
        return _independent_density(prior, j, support, x)
    return _smoothed(prior.sample(np.random.default_rng(0), _PRIOR_DRAWS).reshape(_PRIOR_DRAWS, -1)[:, j], support, x)


def _dirichlet_density(prior: Dirichlet, j: int, x: Floats) -> Floats:
    """Density of one entry of a Dirichlet, which is Beta distributed."""
    c = prior.concentration
    rest = (c.sum(axis=-1, keepdims=True) - c).reshape(-1)
    return to_numpy(beta.pdf(x, c.reshape(-1)[j], rest[j]))


def _gaussian_prior(prior: Distribution, j: int, posterior: Marginal) -> Marginal:
    linear, precision = prior.quadratic()  # type: ignore[misc]
    cov = np.linalg.inv(precision) if precision.ndim == 2 else np.diag(1 / precision)
    return posterior._replace(loc=float((cov @ linear)[j]), scale=float(cov[j, j] ** 0.5))


def _independent_density(prior: Independent, j: int, support: Interval, x: Floats) -> Floats:
    u = np.zeros((len(x), prior.dim))
    u[:, [j]] = support.unconstrain(x, ())
    entries = prior.log_prob_entries(u)
    return to_numpy(np.exp(entries[:, j] - support.log_jacobian(u[:, [j]], ())))


def _smoothed(draws: Floats, support: Interval, x: Floats) -> Floats:
    """Kernel density estimate at x, made on the unconstrained scale."""
    u, at = support.unconstrain(draws, ())[:, 0], support.unconstrain(x, ())
    kernel = gaussian_kde(u, bw_method=lambda k: 1.6 * k.scotts_factor())
    return to_numpy(kernel(at[:, 0]) / np.exp(support.log_jacobian(at, ())))


def _limits(x: Floats, density: Floats, marked: Sequence[float] = ()) -> tuple[float, float]:
    """Range in which the density is visible, widened to include the marked points."""
    visible = x[density > 0.005 * density.max()]
    ends = np.array([visible.min(), visible.max(), *(value for value in marked if np.isfinite(value))])
    margin = max(0.03 * np.ptp(ends), _FINEST * np.abs(ends).max())
    # A marked point needs space beside it; a density that ends at its own bound does not.
    piled_up = np.ptp(ends) < margin
    low = ends.min() - (margin if piled_up or ends.min() < visible.min() else 0)
    high = ends.max() + (margin if piled_up or ends.max() > visible.max() else 0)
    return float(low), float(high)


def _pair_limits(fit: Fit, place: int, marked: Sequence[float]) -> tuple[float, float]:
    """`_limits`, widened to include the outer region."""
    reach = fit.quantiles(np.array([0.005, 0.995]))[:, place]
    return _limits(*_density(fit, place), [*marked, *reach])


def _draw_density(ax: Axes, x: Floats, density: Floats, reference: Floats) -> None:
    ax.plot(x, density, color=_BLUE, lw=1.4, label="posterior")
    held = reference[np.isfinite(reference)]
    if len(held):
        ends = np.quantile(held, [0.001, 0.999])
        bins = np.linspace(ends[0], ends[1], int(np.clip(2 * len(held) ** (1 / 3), 12, 40)))
        # Compute the heights here, because draws beyond the bins count too.
        heights = np.histogram(held, bins)[0] / len(held) / np.diff(bins)
        ax.stairs(heights, bins, fill=True, color="#D4D4D4", zorder=0, label="reference")
    else:
        ax.fill_between(x, density, color=_BLUE, alpha=0.15, lw=0)


def _draw_bars(ax: Axes, fit: Fit, place: int, prior: bool) -> None:
    """Probabilities of whole numbers as bars, and those of the prior as dots."""
    draws = fit.fixed_draws[:, place]
    x, counts = np.unique(draws, return_counts=True)
    heights = counts / len(draws)
    ax.bar(x, heights, width=0.7, color=_BLUE, alpha=0.6, lw=0, label="posterior")
    low, high = (0.0, 1.0) if x.max() <= 1 else (x.min(), x.max())
    at = np.arange(low, high + 1)
    if prior:
        block = _block(fit, place)
        sample = block.prior.sample(np.random.default_rng(0), _PRIOR_DRAWS).reshape(_PRIOR_DRAWS, -1)
        shares = [float(np.mean(sample[:, place - block.entries.start] == value)) for value in at]
        ax.plot(at, shares, "o", color=_INK, ms=2.5, label="prior")
        heights = np.append(heights, shares)
    _frame_density(ax, heights, (low - 0.7, high + 0.7))
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _draw_prior(ax: Axes, fit: Fit, place: int, limits: tuple[float, float]) -> None:
    x = np.linspace(*limits, 301)[1:-1]  # the ends may lie on the boundary of the support
    density = _prior_density(fit, place, x)
    if density is not None:
        ax.plot(x, density, color=_INK, lw=0.9, ls=_DASHES[0], label="prior")


def _draw_lines(ax: Axes, marks: Mapping[str, Floats], place: int) -> None:
    for (label, values), (colour, marker) in zip(marks.items(), _MARKS, strict=False):
        if np.isfinite(values[place]):
            x = [values[place]] * 2
            across = ax.get_xaxis_transform()
            ax.plot(
                x, [0, 0.96], color=colour, lw=1.1, marker=marker, ms=3.5, markevery=[1], transform=across, label=label
            )


def _frame_density(ax: Axes, density: Floats, limits: tuple[float, float]) -> None:
    ax.set(xlim=limits, ylim=(0, 1.15 * density.max()), yticks=[])
    ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    _tidy(ax)
    ax.spines["left"].set_visible(False)


def _draw_diagonal(
    ax: Axes, fit: Fit, place: int, limits: tuple[float, float], others: tuple[Mapping[str, Floats], Floats]
) -> None:
    marks, draws = others
    if _is_discrete(fit, place):
        _draw_bars(ax, fit, place, prior=False)
        _draw_lines(ax, marks, place)
        return
    x, density = _density(fit, place)
    _draw_density(ax, x, density, draws[:, place])
    _draw_lines(ax, marks, place)
    _frame_density(ax, density, limits)


def _draw_pair(ax: Axes, fit: Fit, pair: tuple[int, int], marks: Mapping[str, Floats], draws: Floats) -> None:
    cloud = draws[:_CLOUD, list(pair)]
    if len(cloud) and np.isfinite(cloud).all():
        ax.plot(cloud[:, 0], cloud[:, 1], ".", color="#9A9A9A", ms=2, mew=0, alpha=0.5, rasterized=True)
    if all(place in fit.marginals for place in pair):
        _draw_ellipses(ax, [fit.marginals[place] for place in pair], _correlation(fit, pair))
    else:
        _draw_regions(ax, fit.fixed_draws[:, list(pair)], [_support(fit, place) for place in pair])
    for values, (colour, marker) in zip(marks.values(), _MARKS, strict=False):
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
        ax.fill(x, y, facecolor=_BLUE, alpha=alpha, lw=0)
        ax.plot(x, y, color=_BLUE, lw=0.9)


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
        ax.contourf(*centres, mass.T, levels=[height, 2 * mass.max()], colors=[_BLUE], alpha=alpha)
        ax.contour(*centres, mass.T, levels=[height], colors=[_BLUE], linewidths=0.9)


def _correlation(fit: Fit, pair: tuple[int, int]) -> float:
    """Correlation of two entries on the unconstrained scale."""
    columns = [fit.marginals[i].column for i in pair]
    block = fit.unconstrained[1][np.ix_(columns, columns)]
    return float(np.clip(block[0, 1] / math.sqrt(block[0, 0] * block[1, 1]), -1, 1))


def _corner_axes(ax: Axes, entries: Sequence[_Entry], place: tuple[int, int], side: float) -> None:
    """Label the outer axes only, in lines that fit beside a panel of ``side`` inches."""
    row, column = place
    last, small = len(entries) - 1, side < 1.2
    titles = [textwrap.fill(entry.title, max(6, int(side * 0.9 * 72 / 4.4))) for entry in entries]
    _tidy(ax, titles[column] if row == last else "", titles[row] if 0 == column < row else "")
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


def _draw_bound(ax: Axes, fit: Fit) -> None:
    # With a window of one there is no smooth line to draw, so the points stand out.
    if np.array_equal(fit.trace.elbo, fit.trace.elbo_smooth):
        ax.plot(fit.trace.n_evals, fit.trace.elbo, color=_BLUE, lw=1.4, marker="o", ms=3, label="each iteration")
        return
    ax.plot(fit.trace.n_evals, fit.trace.elbo, color=_BLUE, alpha=0.35, lw=0.6, label="each iteration")
    ax.plot(fit.trace.n_evals, fit.trace.elbo_smooth, color=_BLUE, lw=1.4, label="smoothed")


def _draw_final(ax: Axes, fit: Fit) -> None:
    if math.isfinite(fit.elbo):
        spread = 2 * fit.elbo_se if math.isfinite(fit.elbo_se) else 0.0
        ax.axhspan(fit.elbo - spread, fit.elbo + spread, color=_VERMILION, alpha=0.3, lw=0)
        ax.axhline(fit.elbo, color=_VERMILION, lw=0.9, label="final estimate ± 2 s.e.")


def _frame_bound(ax: Axes, fit: Fit, references: Sequence[float]) -> None:
    """Show the second half of the run in full; an inset shows a high rise before it."""
    low, high = _settled_range(fit, references)
    smooth = np.where(np.isfinite(fit.trace.elbo_smooth), fit.trace.elbo_smooth, low)
    span, start = high - low, smooth.min()
    settled_early = np.mean(smooth < low - span) < 0.4
    inset = start < low - 5 * span and settled_early
    bottom = low - (1.3 if inset else 0.6) * span if settled_early else smooth[len(smooth) // 8]
    ax.set_ylim(max(bottom, start - 0.05 * span), high + 0.12 * span)
    _tidy(ax, "evaluations of the log-likelihood", "lower bound (nats)")
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
    _tidy(inset)
    inset.set_title("whole run", fontsize=6.5, color=_INK, pad=2)
    inset.tick_params(labelsize=6, length=2, pad=1.5)
    for axis in (inset.xaxis, inset.yaxis):
        axis.set_major_locator(MaxNLocator(2))
        axis.set_major_formatter(FuncFormatter(_thousands))


def _thousands(value: float, _position: int) -> str:
    text = f"{value:,.0f}" if value == round(value) else f"{value:g}"
    return text.replace("-", "\N{MINUS SIGN}")


def _tidy(ax: Axes, xlabel: str = "", ylabel: str = "") -> None:
    """Remove lines that carry no information."""
    ax.spines[["top", "right"]].set_visible(False)
    for spine in ax.spines.values():
        spine.set(linewidth=0.6, color=_GREY)
    ax.tick_params(labelsize=7.5, width=0.6, length=3, pad=2, color=_GREY, labelcolor=_INK)
    ax.set_xlabel(xlabel, fontsize=8.5, color=_INK)
    ax.set_ylabel(ylabel, fontsize=8.5, color=_INK)


def _handles(*axes: Axes) -> dict[str, Any]:
    """One handle per label, in order of first appearance."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found


def _legend_above(figure: Any, *axes: Axes) -> None:
    found = _handles(*axes)
    width = sum(len(label) + 6 for label in found)  # in letters; a column holds about fifty
    columns = len(found) if width < 15 * figure.get_figwidth() else 3 if figure.get_figwidth() > 4 else 2
    spacing = {"handlelength": 1.8, "columnspacing": 1.4}
    place = {"loc": "outside upper center", "ncols": columns}
    figure.legend(found.values(), found.keys(), frameon=False, fontsize=7.5, labelcolor=_INK, **place, **spacing)


def _legend_in_corner(figure: Any) -> None:
    """Place the legend in the empty half of a corner plot."""
    found = _handles(*figure.axes)
    levels = ", ".join(f"{level:.0%}".replace("%", " %") for level in sorted(_REGIONS))
    labels = [f"{label} ({levels})" if label == "posterior" else label for label in found]
    figure.legend(found.values(), labels, loc="upper right", frameon=False, fontsize=7.5, labelcolor=_INK)
