"""Bands of a function of the parameters over x, with the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qbvi.arguments import array_of, interval_ends
from qbvi.plots.entries import Floats
from qbvi.plots.style import BLUE, GREY, INK, ONE_COLUMN, VERMILION, legend_above, new_figure, tidy
from qbvi.points import is_named
from qbvi.predict import Predictive, predict
from qbvi.results import Fit

__all__ = ["plot_predictive"]

_DARKEST, _LIGHTEST = 0.45, 0.25  # opacity of the narrowest and of the widest band


def plot_predictive(  # noqa: PLR0913 - what to draw, and how to call the function
    fit: Fit,
    x: Any,
    function: Callable[..., Any] | Predictive,
    data: tuple[Any, Any] | None = None,
    *,
    outcomes: Callable[..., Any] | Predictive | None = None,
    probabilities: Sequence[float] = (0.5, 0.9),
    n: int | None = None,
    vectorized: bool | int = False,
    executor: Any = None,
    seed: int | np.random.Generator | None = 0,
    labels: tuple[str, str] = ("", ""),
    ax: Axes | None = None,
) -> Figure:
    """Plot the posterior median of a curve with its intervals, and the data.

    Parameters
    ----------
    fit : Fit
        The fit.
    x : array (m,)
        Where to draw the curve.
    function
        The curve: ``function(point, x)`` returns (m,). It may also be the result of
        `qbvi.Fit.predict` at these x.
    data : pair of arrays, optional
        x and y of the observations.
    outcomes
        New data, likewise: a function of ``(point, x)`` that simulates them with an argument
        ``rng``. The interval of the largest probability is drawn in grey.
    probabilities : sequence of float
        Posterior probabilities of the bands.
    n, vectorized, executor, seed
        As for `qbvi.Fit.predict`.
    labels : pair of str
        Labels of the axes.
    ax : matplotlib.axes.Axes, optional
        Axes to draw in; by default those of a new figure.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> t = np.linspace(0, 3, 20)
    >>> y = 2 * np.exp(-t)
    >>> f = lambda rate: -50 * np.sum((y - 2 * np.exp(-rate * t)) ** 2)
    >>> fit = qbvi.fit(f, qbvi.LogNormal(0, 1), seed=1)
    >>> curve = lambda rate, t: 2 * np.exp(-rate * t)
    >>> figure = plot_predictive(fit, np.linspace(0, 4, 50), curve, data=(t, y), n=200)
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['median', '50 %', '90 %', 'data']
    """
    grid = array_of("x", x)
    if grid.ndim != 1 or len(grid) < 2:
        msg = f"`x` must be one axis of two numbers or more, got shape {grid.shape}"
        raise ValueError(msg)
    shares = sorted(np.atleast_1d(array_of("probabilities", probabilities)).tolist())
    ends = [interval_ends("probabilities", share) for share in shares]
    how = {"data": grid, "n": n, "vectorized": vectorized, "executor": executor, "seed": seed}
    curves = _curves("function", function, fit, how)
    figure = new_figure(ONE_COLUMN, 2.5) if ax is None else ax.figure
    panel = figure.add_subplot() if ax is None else ax
    order = np.argsort(grid, kind="stable")
    if outcomes is not None:
        low, high = _curves("outcomes", outcomes, fit, how).quantiles(ends[-1])
        around = f"{100 * shares[-1]:.4g} % of new data"
        panel.fill_between(grid[order], low[order], high[order], color=GREY, alpha=0.25, lw=0, label=around)
    _draw_bands(panel, grid[order], curves, (shares, ends), order)
    if data is not None:
        panel.plot(*_observed(data), "o", color=VERMILION, ms=2.2, mew=0, alpha=0.8, label="data")
    tidy(panel, *labels)
    if ax is None:
        legend_above(figure, panel)
    return figure  # type: ignore[return-value]


def _draw_bands(ax: Axes, x: Floats, curves: Predictive, bands: tuple[list[float], list[Floats]], order: Any) -> None:
    ax.plot(x, curves.quantiles(0.5)[order], color=BLUE, lw=1.1, label="median")
    opacity = np.linspace(_DARKEST, _LIGHTEST, len(bands[0])).tolist()
    for share, ends, alpha in zip(*bands, opacity, strict=True):
        low, high = curves.quantiles(ends)
        ax.fill_between(x, low[order], high[order], color=BLUE, alpha=alpha, lw=0, label=f"{100 * share:.4g} %")
    ax.margins(x=0.02)
    ax.tick_params(labelcolor=INK)


def _curves(name: str, given: Any, fit: Fit, how: dict[str, Any]) -> Predictive:
    """Draws of a curve at all x: (n, m)."""
    found = given if isinstance(given, Predictive) else predict(fit, given, progress=False, **how)
    m = len(how["data"])
    if is_named(found.draws) or found.draws.shape[1:] != (m,):
        got = "a dict" if is_named(found.draws) else f"shape {found.draws.shape[1:]}"
        msg = f"`{name}` must give one number for each of the {m} values of `x` at each draw, got {got}"
        raise ValueError(msg)
    return found


def _observed(data: Any) -> tuple[Floats, Floats]:
    if not isinstance(data, tuple | list) or len(data) != 2:
        msg = "`data` must be a pair of arrays, x and y of the observations"
        raise TypeError(msg)
    x, y = (array_of("data", part) for part in data)
    if x.shape != y.shape or x.ndim != 1:
        msg = f"`data` must be two arrays of one length, got shapes {x.shape} and {y.shape}"
        raise ValueError(msg)
    return x, y
