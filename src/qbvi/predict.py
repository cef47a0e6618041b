"""Predictions: draws of the posterior pushed through any function of a point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import as_seed, flag, interval_ends, quantile_levels, whole_number
from qbvi.evaluate.push import Push, pushed
from qbvi.points import count, is_named, items, mapped
from qbvi.progress import Count
from qbvi.results import Fit
from qbvi.summary import aligned
from qbvi.tables import import_pandas
from qbvi.weighted import WeightedDraws

__all__ = ["Predictive", "predict"]

Floats = NDArray[np.float64]

_DRAWS = 1000
_SHOWN = 8  # rows of a printed table


@dataclass(frozen=True, eq=False, repr=False)
class Predictive:
    """Draws of a function of the parameters, with means, standard deviations and quantiles.

    Numbers have the form of what the function returned: a number, an array, or a dict of them.

    Attributes
    ----------
    draws : array (n, ...) or dict of arrays
        Value of the function at each draw of the parameters.
    weights : array (n,)
        Weights of the draws, with sum one.
    levels : tuple of float
        Quantiles that tables show.
    is_weighted : bool
        Whether the weights are importance weights; otherwise all are equal.

    Examples
    --------
    >>> import numpy as np
    >>> draws = np.array([[0.0, 10.0], [1.0, 11.0], [2.0, 12.0], [3.0, 13.0]])
    >>> found = Predictive(draws, np.full(4, 0.25))
    >>> found.mean, found.quantiles(0.5)
    (array([ 1.5, 11.5]), array([ 1.5, 11.5]))
    >>> found
    Prediction from 4 draws
        mean     sd     5 %   50 %   95 %
    0   1.50   1.12   0.150   1.50   2.85
    1  11.5    1.12  10.2    11.5   12.8
    """

    draws: Any
    weights: Floats
    levels: tuple[float, ...] = (0.05, 0.5, 0.95)
    is_weighted: bool = False

    @property
    def mean(self) -> Any:
        """Posterior mean of the function."""
        return self._weighted.mean

    @property
    def sd(self) -> Any:
        """Posterior standard deviation of the function."""
        return self._weighted.sd

    @property
    def ess(self) -> float:
        """Effective sample size of the draws."""
        return self._weighted.ess

    def quantiles(self, levels: Any = None) -> Any:
        """Posterior quantiles of the function.

        One level gives the form of one value, m levels have a first axis of m. By default `levels`.
        """
        chosen = quantile_levels("levels", self.levels if levels is None else levels)
        return mapped(lambda x: self._quantile(x, chosen), self.draws)

    def interval(self, probability: float = 0.9) -> Any:
        """Equal-tailed interval: lower and upper ends along a first axis of two."""
        return self.quantiles(interval_ends("probability", probability))

    def to_pandas(self) -> Any:
        """The table as a pandas.DataFrame: one row for each number, with mean, sd and quantiles."""
        pd = import_pandas()
        columns = dict(zip(self._titles, self._table().T, strict=True))
        return pd.DataFrame(columns, index=pd.Index(self._labels, name="value"))

    def __len__(self) -> int:
        return count(self.draws)

    def __repr__(self) -> str:
        table = self._table()
        failed = sum(int(np.isnan(x).reshape(len(self), -1).any(axis=1).sum()) for _, x in items(self.draws))
        weighted = f", weighted (effective sample size {self.ess:,.0f})" if self.is_weighted else ""
        nan = f"; {failed:,} of them have NaN" if failed else ""
        head = f"Prediction from {len(self):,} draws{weighted}{nan}"
        rows = [
            (str(label), *(f"{x:#.3g}" for x in numbers)) for label, numbers in zip(self._labels, table, strict=True)
        ]
        more = [f"... {len(rows) - _SHOWN:,} more rows in to_pandas()"] if len(rows) > _SHOWN else []
        return "\n".join([head, *aligned(rows[:_SHOWN], ("", *self._titles)), *more])

    @property
    def _weighted(self) -> WeightedDraws:
        return WeightedDraws(self.draws, self.weights)

    @property
    def _titles(self) -> tuple[str, ...]:
        return ("mean", "sd", *(f"{100 * level:.4g} %" for level in self.levels))

    @property
    def _labels(self) -> list[Any]:
        """One label for each number: its name, and its place in the array."""
        labels: list[Any] = []
        for name, x in items(self.draws, unnamed=""):
            places = list(np.ndindex(x.shape[1:]))
            if not is_named(self.draws) and x.ndim == 2:
                labels += range(len(places))
            else:
                labels += [name + (f"[{','.join(map(str, place))}]" if place else "") for place in places]
        return labels

    def _table(self) -> Floats:
        """Mean, sd and quantiles of each number: (entries, 2 + levels)."""
        parts = [self.mean, self.sd, *(self.quantiles(level) for level in self.levels)]
        columns = [np.concatenate([np.ravel(x) for _, x in items(part)]) for part in parts]
        return np.stack(columns, axis=1)

    def _quantile(self, x: Floats, levels: Floats) -> Any:
        if not self.is_weighted:
            return np.quantile(x, levels, axis=0)
        # Only this method of NumPy takes weights: the smallest value that enough weight is below.
        return np.quantile(x, levels, axis=0, weights=self.weights, method="inverted_cdf")


def predict(  # noqa: PLR0913 - the arguments of qbvi.fit that say how to call a function
    fit: Fit,
    function: Callable[..., Any],
    *,
    data: Any = None,
    n: int | None = None,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    vectorized: bool | int = False,
    executor: Any = None,
    progress: bool | None = None,
    seed: int | np.random.Generator | None = None,
) -> Predictive:
    """Push draws from the posterior through any function of a point.

    Parameters
    ----------
    fit : Fit
        The posterior.
    function
        A function of one constrained point, as the log-likelihood takes it. It returns a number,
        an array, or a dict of them. If it has an argument ``rng``, it gets a NumPy generator, so
        that it can simulate new data: ``lambda p, rng: rng.normal(p["mu"], p["sigma"])``.
    data
        If given, the call is ``function(point, data)``.
    n : int, optional
        Number of draws; 1,000 by default. By default, a fit that was checked uses the weighted
        draws of its `qbvi.Fit.check`.
    quantiles : sequence of float
        Levels of the quantiles that the tables of the result show.
    vectorized, executor
        As for `qbvi.fit`.
    progress
        Whether to show a line of progress. The default shows it on a terminal only.
    seed
        Source of the draws and of ``rng``; None gives different draws at every call.

    Returns
    -------
    Predictive
        Draws, mean, sd, quantiles and intervals of what the function returns.

    Examples
    --------
    A straight line, and new data around it:

    >>> import numpy as np, qbvi
    >>> x = np.array([0.0, 1.0, 2.0, 3.0])
    >>> y = np.array([0.1, 0.9, 2.1, 2.9])
    >>> prior = {"slope": qbvi.Normal(0, 10), "sigma": qbvi.HalfNormal(1)}
    >>> def log_likelihood(p):
    ...     return np.sum(-0.5 * ((y - p["slope"] * x) / p["sigma"]) ** 2 - np.log(p["sigma"]))
    >>> fit = qbvi.fit(log_likelihood, prior, seed=1)
    >>> fit.predict(lambda p, x: p["slope"] * x, data=np.array([4.0, 5.0]), seed=1).mean.round(1)
    array([3.9, 4.9])
    >>> new = fit.predict(lambda p, rng: rng.normal(4 * p["slope"], p["sigma"]), seed=1)
    >>> new.interval(0.9).shape
    (2,)
    """
    levels = tuple(np.atleast_1d(quantile_levels("quantiles", quantiles)).tolist())
    drawn = _draws(fit, None if n is None else whole_number("n", n), seed)
    if progress is not None:
        flag("progress", progress)
    line = Count("predict", count(drawn.draws), progress)
    push = Push(function, () if data is None else (data,), vectorized, executor, as_seed(seed))
    values, _ = pushed(push, drawn.draws, line.update)
    line.close()
    return Predictive(values, drawn.weights, levels, drawn.is_weighted)


def _draws(fit: Fit, n: int | None, seed: Any) -> WeightedDraws:
    """Draws of the posterior: those of its check, or new ones."""
    if n is None and len(fit.log_ratios[0]):
        return fit.weighted_draws()
    n = _DRAWS if n is None else n
    return WeightedDraws(fit.sample(n, seed), np.full(n, 1 / n), is_weighted=False)
