"""Models of one column in time order: HAR and GARCH."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from qbvi.cli.tabular.recipe import (
    Columns,
    Recipe,
    Scores,
    Spread,
    ends,
    named_by_column,
)
from qbvi.cli.tabular.table import Table, TableError
from qbvi.models import GARCH, HAR, Prediction
from qbvi.models.scores import inside_interval, log_density, root_mean_square
from qbvi.points import is_named
from qbvi.results import Fit

__all__ = ["SERIES", "SeriesRecipe"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SeriesRecipe(Recipe):
    """A model of a series; the series is stored, because days are predicted from earlier days.

    Attributes
    ----------
    series : tuple of float
        All days of the fit, oldest first.
    log : bool
        Whether HAR explains the logarithm of the volatility.
    centre : float
        Number that was subtracted from the returns.
    """

    series: tuple[float, ...] = ()
    log: bool = True
    centre: float = 0.0

    kinds: ClassVar[Mapping[str, Any]]

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of the series."""
        return (self.target,)

    @property
    def title(self) -> str:
        """The model and its target in one line."""
        if self.model == "har":
            return f"HAR of {'the logarithm of ' if self.log else ''}{self.target}"
        return f"GARCH(1,1) of {self.target}" + (f" less its mean, {self.centre:.6g}" if self.centre else "")

    def trained(self, table: Table) -> HAR | GARCH:
        """The model of a table's days."""
        with named_by_column(table, self.target, "volatility" if self.model == "har" else "returns"):
            return self._model_of(self.days(table))

    def bare(self) -> HAR | GARCH:
        """The model of the stored days."""
        return self._model_of(np.array(self.series))

    def days(self, table: Table) -> Floats:
        """The checked series of a table, less the mean if the fit subtracted it."""
        values = table.numbers(self.target)
        if self.model == "har" and self.log:
            rule = "be positive, as its logarithm is taken (else --no-log)"
            table.refuse(self.target, rule, values, values <= 0)
        return values - self.centre

    def check(self, table: Table) -> None:
        """Refuse days that do not suit the model, and days that the fit already has."""
        days = self.days(table)
        common = min(len(days), len(self.series))
        if np.array_equal(days[:common], self.series[:common]):
            msg = f"{table.path}: its first {common} rows are those of the fit; give only the days that follow it"
            raise TableError(msg)

    def predictions(self, fit: Fit, table: Table | None, spread: Spread) -> Columns:
        """One row per day that follows, from the days before it, and one for the day after."""
        if table is not None:
            self.check(table)
        later = np.empty(0) if table is None else self.days(table)
        model, flat = self._model_of(np.concatenate([self.series, later])), self._draws(fit, spread)
        parts = [self.bare().predict(flat, later, seed=spread.seed)] if len(later) else []
        parts.append(model.forecast(flat, seed=spread.seed + 1))
        shown = [self._shown(part, spread.interval) for part in parts]
        numbers = np.empty(0, dtype=np.int64) if table is None else table.rows
        row = np.append(numbers, (numbers[-1] if len(numbers) else 0) + 1)
        return {"row": row} | {name: np.concatenate([part[name] for part in shown]) for name in shown[0]}

    def scores(self, fit: Fit, table: Table, spread: Spread) -> Scores:
        """Quality of one-day-ahead predictions, for the days of the fit or for later ones."""
        days, model, flat = self.days(table), self.bare(), self._draws(fit, spread)
        is_new = not np.array_equal(days, self.series)
        prediction = model.predict(flat, days if is_new else None, seed=spread.seed)
        whole = self._model_of(np.concatenate([self.series, days])) if is_new else model
        terms = whole.log_likelihood_terms(flat)[:, -prediction.outcomes.shape[1] :]
        y = self._explained(days)[-terms.shape[1] :]
        errors = {"root mean square error": root_mean_square(y - prediction.mean)} if self.model == "har" else {}
        density = {"rows": float(len(y)), "log density per row": float(log_density(terms).mean())}
        inside = float(inside_interval(y, prediction.outcomes, spread.interval).mean())
        return density | errors | {f"inside {spread.interval:.4g} interval": inside}

    def _model_of(self, days: Floats) -> HAR | GARCH:
        if self.model == "har":
            return HAR(days, log=self.log)
        # The first variance depends only on the days of the fit, whatever follows them.
        first = float(np.mean(np.array(self.series) ** 2)) if self.series else None
        return GARCH(days, first_variance=first)

    def _explained(self, days: Floats) -> Floats:
        return np.log(days) if self.model == "har" and self.log else days

    def _draws(self, fit: Fit, spread: Spread) -> Floats:
        draws = fit.sample(spread.n_draws, spread.seed)
        names = self.bare().names
        return np.column_stack([draws[name] for name in names]) if is_named(draws) else np.asarray(draws)

    def _shown(self, prediction: Prediction, interval: float) -> Columns:
        lower, upper = ends(prediction.outcomes, interval)
        if self.model == "garch":
            assert prediction.variances is not None
            variance_lower, variance_upper = ends(prediction.variances, interval)
            variance = {
                "variance": prediction.variance,
                "variance_lower": variance_lower,
                "variance_upper": variance_upper,
            }
            return variance | {"lower": lower + self.centre, "upper": upper + self.centre}
        if not self.log:
            return {"mean": prediction.mean, "lower": lower, "upper": upper}
        # The exponential of a quantile is a quantile; for means this does not hold.
        median = np.exp(np.median(prediction.outcomes, axis=0))
        return {"log_mean": prediction.mean, "median": median, "lower": np.exp(lower), "upper": np.exp(upper)}


SERIES = {"har": HAR, "garch": GARCH}
SeriesRecipe.kinds = SERIES
