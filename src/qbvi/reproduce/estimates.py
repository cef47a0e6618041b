"""The columns of the tables: the result and the cost of every method on one problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import qbvi
from qbvi.reproduce import figures
from qbvi.reproduce.settings import Effort
from qbvi.reproduce.tables import Cell, Row

__all__ = [
    "Estimate",
    "beside_published",
    "cost_rows",
    "gaussian_methods",
    "heading",
    "marginal_paths",
    "published_row",
    "row_of",
    "stopping",
]

Floats = NDArray[np.float64]

PRIOR_VARIANCE = 5.0  # paper, table of hyper-parameters
DEFAULT = "default"  # our own method for a black box, as qbvi.fit chooses it
PUBLISHED = ", as published"  # end of the name of a column with the paper's own numbers


@dataclass(frozen=True, eq=False)
class Estimate:
    """The result of one method: moments of the parameters, lower bound and cost.

    Attributes
    ----------
    mean, variance : array (p,)
    bound, bound_se : float
        An estimate from fresh draws of the result, and its standard error.
    exact_bound, best : float
        The exact bound of the result, and that of the best member of its family; NaN if unknown.
    n_evals : int or None
        Evaluations of the log-likelihood.
    fit : Fit or None
        The posterior itself.
    """

    mean: Floats
    variance: Floats
    bound: float = math.nan
    bound_se: float = math.nan
    exact_bound: float = math.nan
    best: float = math.nan
    n_evals: int | None = None
    seconds: float = math.nan
    fit: qbvi.Fit | None = None

    @property
    def gap(self) -> float:
        """Nats below the best of the family."""
        return self.best - self.exact_bound

    @property
    def best_smoothed(self) -> float:
        """The largest smoothed bound, which is what the paper reports."""
        return math.nan if self.fit is None else float(np.nanmax(self.fit.trace.elbo_smooth))


def gaussian_methods(gradient: Callable[..., Any], effort: Effort) -> dict[str, tuple[Any, str]]:
    """Method and family of each column of the paper, and our default.

    The paper's loop occurs twice. "QBVI" is the reading nearest to the published tables. "QBVI
    literal" has the control variate as printed.

    Examples
    --------
    >>> from qbvi.reproduce.settings import QUICK
    >>> list(gaussian_methods(len, QUICK))
    ['QBVI diagonal', 'QBVI', 'QBVI literal', 'BBVI', 'CGVB', 'MGVB', 'default']
    """
    stop = stopping(effort.iterations)
    nearest = qbvi.paper(stop=stop)
    return {
        "QBVI diagonal": (nearest, "diagonal"),
        "QBVI": (nearest, "full"),
        "QBVI literal": (qbvi.paper("literal", stop=stop), "full"),
        "BBVI": (qbvi.baselines.BBVI(stop=stop), "full"),
        "CGVB": (qbvi.baselines.CGVB(gradient=gradient, vectorized=True, stop=stop), "full"),
        "MGVB": (qbvi.baselines.MGVB(stop=stop), "full"),
        DEFAULT: ("regression", "full"),
    }


def marginal_paths(
    names: Mapping[int, str], trace: Any, columns: Mapping[str, Estimate], draws: Floats
) -> list[figures.Path]:
    """What to plot of each parameter, for the columns with these numbers.

    That is: its moments along the trace, its marginal by each method, and ``draws`` (n, p).
    """
    prior = (0.0, math.sqrt(PRIOR_VARIANCE))
    return [
        figures.Path(
            name,
            trace.mean[:, j],
            trace.sd[:, j] ** 2,
            {label: (float(e.mean[j]), math.sqrt(e.variance[j])) for label, e in columns.items()},
            draws[:, j],
            prior,
        )
        for j, name in names.items()
    ]


def stopping(iterations: int) -> tuple[Any, ...]:
    """The paper's rules: a patience of 500 iterations, and at most ``iterations`` in all."""
    return qbvi.Patience(500), qbvi.MaxIterations(iterations)


def beside_published(ours: Mapping[str, Estimate], paper: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Our columns, each followed by the published one of the same method if there is one.

    Examples
    --------
    >>> one = Estimate(np.zeros(1), np.ones(1))
    >>> list(beside_published({"QBVI": one, "ML": one}, {"QBVI": one}))
    ['QBVI', 'QBVI, as published', 'ML']
    """
    columns: dict[str, Estimate] = {}
    for name, estimate in ours.items():
        columns[name] = estimate
        if name in paper:
            columns[name + PUBLISHED] = paper[name]
    return columns


def heading(name: str, columns: Mapping[str, Estimate]) -> str:
    """The heading of a column; beside its published counterpart ours is called "this reading".

    Examples
    --------
    >>> one = Estimate(np.zeros(1), np.ones(1))
    >>> [heading(name, {"QBVI": one, "QBVI, as published": one}) for name in ("QBVI", "ML")]
    ['QBVI (this reading)', 'ML']
    """
    return f"{name} (this reading)" if name + PUBLISHED in columns else name


def row_of(label: str, values: Sequence[float | str | None], decimals: int = 3) -> Row:
    """A row without published numbers."""
    return Row(label, tuple(Cell(value) for value in values), decimals)


def published_row(label: str, ours: Mapping[str, float], paper: Mapping[str, float], decimals: int = 3) -> Row:
    """A row with one cell for each column: our number and, if there is one, the published one."""
    return Row(label, tuple(Cell(value, paper.get(name)) for name, value in ours.items()), decimals)


def cost_rows(columns: Mapping[str, Estimate], bounds: Mapping[str, float]) -> tuple[Row, ...]:
    """The last rows of a parameter table: the bound, its distance from the best, and the cost."""
    every = columns.values()
    lower = published_row("lower bound", {name: e.bound for name, e in columns.items()}, bounds)
    rows = [lower, row_of("  standard error", [e.bound_se for e in every])]
    smoothed = [math.nan if name == DEFAULT else e.best_smoothed for name, e in columns.items()]
    rows.append(row_of("best smoothed bound", smoothed))
    if any(math.isfinite(e.best) for e in every):
        rows.append(row_of("best of the family", [e.best for e in every]))
    if any(math.isfinite(e.gap) for e in every):
        rows.append(row_of("nats below it", [e.gap for e in every], 4))
    evaluations = row_of("evaluations", [None if e.n_evals is None else float(e.n_evals) for e in every], 0)
    return (*rows, evaluations, row_of("seconds", [e.seconds for e in every], 1))
