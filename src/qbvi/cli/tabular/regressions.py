"""Regressions from a table: a target and the columns that explain it, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.cli.tabular.encoding import Encoding, level_of
from qbvi.cli.tabular.recipe import (
    Columns,
    Recipe,
    Scores,
    Spread,
    ends,
    named_by_column,
    portions,
)
from qbvi.cli.tabular.table import Table, TableError
from qbvi.models import Binomial, Linear, Logistic, MultinomialLogistic, Poisson, Prediction
from qbvi.models.design import DesignModel
from qbvi.models.inputs import Columns as Covariates
from qbvi.models.scores import inside_interval, log_density, root_mean_square
from qbvi.results import Fit

__all__ = ["REGRESSIONS", "RegressionRecipe"]

Floats = NDArray[np.float64]
Weights = dict[str, Floats]  # trials or exposures, by the name of the model's argument


@dataclass(frozen=True)
class RegressionRecipe(Recipe):
    """A regression of one column on others.

    Attributes
    ----------
    features : tuple of str
        The explanatory columns, in the order of their coefficients.
    intercept : bool
        Whether the model has an intercept.
    centres, scales : tuple of float
        Numbers subtracted from each feature, and those it is then divided by; empty if features
        are not standardised.
    weight_kind, weight : str
        ``"trials"``, ``"exposure"`` or ``"offset"`` (the logarithm of an exposure), and the column;
        empty if there is none.
    classes : tuple
        Labels of the target; the first is the reference class.
    outcomes : tuple of str
        Labels that mean zero and one; empty if the target has the numbers themselves.
    row_weights : str
        Column that says how often each row of the fit counts; empty if there is none.
    sources, levels, origins, terms
        Those of the `Encoding`; empty if the features are columns of numbers.
    """

    features: tuple[str, ...] = ()
    intercept: bool = True
    centres: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    weight_kind: str = ""
    weight: str = ""
    classes: tuple[str | int | float, ...] = ()
    outcomes: tuple[str, ...] = ()
    row_weights: str = ""
    sources: tuple[str, ...] = ()
    levels: tuple[tuple[str, ...], ...] = ()
    origins: tuple[str, ...] = ()
    terms: tuple[tuple[str, ...], ...] = ()

    kinds: ClassVar[Mapping[str, Any]]

    def __post_init__(self) -> None:
        if len(self.centres) != len(self.scales) or len(self.scales) not in (0, len(self.features)):
            msg = f"`centres` and `scales` must be one for each feature or none, got {len(self.centres)} and {len(self.scales)}"
            raise ValueError(msg)
        if self.weight and self.weight_kind not in self._kind.weight_kinds:
            msg = f"`weight_kind` must be one of those of {self.model}, got {self.weight_kind!r}"
            raise ValueError(msg)
        if self.encoding.names != self.features:
            msg = f"`features` must be those of the sources, got {', '.join(self.features[:8])}"
            raise ValueError(msg)

    @property
    def encoding(self) -> Encoding:
        """How columns of the table become the features."""
        if not self.sources:
            return Encoding.of_numbers(self.features)
        return Encoding(self.sources, self.levels, self.origins, self.terms)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns behind the features, and the column of trials or exposures."""
        sources = self.encoding.sources
        return (*sources, self.weight) if self.weight else sources

    @property
    def title(self) -> str:
        """The model, target and features in one line."""
        weight = f", {self.weight_kind} {self.weight}" if self.weight else ""
        how = " (standardised)" if self.scales else ""
        outcome = f" ({self.outcomes[1]!r} is one)" if self.outcomes else ""
        by = f", weights {self.row_weights}" if self.row_weights else ""
        on = ", ".join(":".join(term) for term in self.encoding.terms)
        return f"{self._kind.title} of {self.target}{outcome} on {on}{how}{weight}{by}"

    def trained(self, table: Table) -> DesignModel:
        """The model with its data."""
        covariates, y, weights = self._covariates(table), self._kind.target(self, table), self._weights(table)
        by = {"weights": self._row_weights(table)} if self.row_weights else {}
        with named_by_column(table, self.target, "y"):
            model: DesignModel = self._kind.build(covariates, y, **weights, **by, intercept=self.intercept)
            return model

    def bare(self) -> DesignModel:
        """The model without its data."""
        further = {"classes": self.classes} if self.classes else {}
        model: DesignModel = self._kind.build.without_data(self.features, self.intercept, **further)
        return model

    def check(self, table: Table) -> None:
        """Refuse targets, features, trials or exposures that do not suit the model."""
        table.require((self.target, *self.columns))
        self._covariates(table)
        self._weights(table)
        self._kind.target(self, table)

    def predictions(self, fit: Fit, table: Table | None, spread: Spread) -> Columns:
        """One row per row of the table."""
        if table is None:
            msg = f"--data is needed: a table with the columns {', '.join(self.columns)}"
            raise TableError(msg)
        parts = [
            self._kind.shown(self, prediction, weights, spread.interval)
            for _, prediction, weights in self._portions(fit, table, spread)
        ]
        return {"row": table.rows} | {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def draws(self, fit: Fit, table: Table | None, spread: Spread) -> Columns:
        """One row per row of the table and draw: expectation and new target given the draw."""
        if table is None or self.classes:
            msg = "--draws-out needs --data, and a model with one number for each row, not --model multinomial"
            raise TableError(msg)
        parts = list(self._portions(fit, table, spread))
        expected, outcomes = (
            np.concatenate([getattr(prediction, name) for _, prediction, _ in parts], axis=1).T.ravel()
            for name in ("expected", "outcomes")
        )
        draws = np.tile(np.arange(1, spread.n_draws + 1), len(table))
        return {"row": np.repeat(table.rows, spread.n_draws), "draw": draws, "expected": expected, "outcome": outcomes}

    def scores(self, fit: Fit, table: Table, spread: Spread) -> Scores:
        """Quality of the predictions of a table's targets."""
        y, model = self._numbered_target(table), self.bare()
        design, flat = model.design_of(self._covariates(table).values), self._draws(fit, spread)
        density, mean, covered = [], [], []
        for rows, prediction, weights in self._portions(fit, table, spread):
            density.append(log_density(model.terms(flat, design[rows], y[rows], *weights.values())))
            mean.append(prediction.mean)
            covered.append(inside_interval(y[rows], prediction.outcomes, spread.interval))
        told = {"rows": float(len(y)), "log density per row": float(np.concatenate(density).mean())}
        of_intervals = {f"inside {spread.interval:.4g} interval": float(np.concatenate(covered).mean())}
        return told | self._kind.judged(y, np.concatenate(mean), of_intervals)

    @property
    def _kind(self) -> _Kind:
        kind: _Kind = self.kinds[self.model]
        return kind

    def _covariates(self, table: Table) -> Covariates:
        table.require(self.columns)
        values = self.encoding.values(table)
        if self.scales:
            values = (values - np.array(self.centres)) / np.array(self.scales)
        return Covariates(values, self.features)

    def _numbered_target(self, table: Table) -> Floats:
        """The target, with classes as indices."""
        y = self._kind.target(self, table)
        return np.array([self.classes.index(label) for label in y], dtype=float) if self.classes else np.asarray(y)

    def _row_weights(self, table: Table) -> Floats:
        values = table.numbers(self.row_weights)
        table.refuse(self.row_weights, "be positive, as it weights the rows", values, values <= 0)
        return values

    def _weights(self, table: Table) -> dict[str, Floats]:
        """Trials or exposures by the name of the model's argument."""
        if not self.weight:
            return {"exposure": np.ones(len(table))} if "exposure" in self._kind.weight_kinds else {}
        values = table.numbers(self.weight)
        if self.weight_kind == "trials":
            table.refuse(self.weight, "hold whole numbers from 1", values, (values < 1) | (values % 1 != 0))
            return {"trials": values}
        if self.weight_kind == "offset":
            table.refuse(self.weight, "be a logarithm within 700 of zero", values, np.abs(values) > 700)
            return {"exposure": np.exp(values)}
        table.refuse(self.weight, "be positive", values, values <= 0)
        return {"exposure": values}

    def _portions(self, fit: Fit, table: Table, spread: Spread) -> Iterator[tuple[slice, Prediction, Weights]]:
        """Predictions of the rows, in parts that fit in memory, all with the same draws."""
        model: Any = self.bare()  # its `predict` takes its own kind of weights
        flat = self._draws(fit, spread)
        covariates, weights = self._covariates(table).values, self._weights(table)
        for part, rows in enumerate(portions(len(table), spread.n_draws * max(1, len(self.classes)))):
            own = {name: weight[rows] for name, weight in weights.items()}
            yield rows, model.predict(flat, covariates[rows], seed=spread.seed + part, **own), own

    def _draws(self, fit: Fit, spread: Spread) -> Floats:
        draws = fit.sample(spread.n_draws, spread.seed)
        return np.column_stack([draws[name] for name in self.bare().names])


class _Kind(NamedTuple):
    """A model, with its rules for targets, predictions and scores."""

    title: str
    build: Any  # the class of the model
    target: Callable[[RegressionRecipe, Table], Any]
    shown: Callable[[RegressionRecipe, Prediction, Weights, float], Columns]
    judged: Callable[[Floats, Floats, Scores], Scores]
    weight_kinds: tuple[str, ...] = ()
    needs_weight: bool = False


def _zeros_and_ones(recipe: RegressionRecipe, table: Table) -> Floats:
    if recipe.outcomes:
        return _two_labels(recipe, table)
    values = table.numbers(recipe.target)
    table.refuse(recipe.target, "hold zeros and ones only", values, (values != 0) & (values != 1))
    return values


def _two_labels(recipe: RegressionRecipe, table: Table) -> Floats:
    """One where the target has the second of its two labels."""
    labels = np.array([level_of(label) for label in table.labels(recipe.target)])
    unknown = ~np.isin(labels, recipe.outcomes)
    if unknown.any():
        at, both = int(np.argmax(unknown)), " and ".join(map(repr, recipe.outcomes))
        msg = (
            f"{table.path}: column {recipe.target!r} must hold {both}, got {str(labels[at])!r} in row {table.rows[at]}"
        )
        raise TableError(msg)
    return np.asarray(labels == recipe.outcomes[1], dtype=np.float64)


def _labels(recipe: RegressionRecipe, table: Table) -> list[Any]:
    labels = table.labels(recipe.target)
    unknown = [i for i, label in enumerate(labels) if recipe.classes and label not in recipe.classes]
    if unknown:
        at = unknown[0]
        msg = (
            f"{table.path}: column {recipe.target!r} must hold the classes of the fit, {', '.join(map(str, recipe.classes))}, "
            f"got {labels[at]!r} in row {table.rows[at]}"
        )
        raise TableError(msg)
    return labels


def _counts(recipe: RegressionRecipe, table: Table) -> Floats:
    values = table.numbers(recipe.target)
    table.refuse(recipe.target, "hold counts, whole numbers from 0", values, (values < 0) | (values % 1 != 0))
    return values


def _successes(recipe: RegressionRecipe, table: Table) -> Floats:
    values, trials = _counts(recipe, table), table.numbers(recipe.weight)
    table.refuse(recipe.target, f"not exceed the trials in column {recipe.weight!r}", values, values > trials)
    return values


def _any_numbers(recipe: RegressionRecipe, table: Table) -> Floats:
    return table.numbers(recipe.target)


def _probability(recipe: RegressionRecipe, prediction: Prediction, weights: Weights, interval: float) -> Columns:
    """Probability of a one, with an interval for the probability.

    A single zero or one has no useful interval.
    """
    lower, upper = ends(prediction.expected, interval)
    return {"probability": prediction.mean, "lower": lower, "upper": upper}


def _class_probabilities(
    recipe: RegressionRecipe, prediction: Prediction, weights: Weights, interval: float
) -> Columns:
    lower, upper = ends(prediction.expected, interval)
    shown: Columns = {"class": np.array(recipe.classes)[prediction.mean.argmax(axis=1)]}
    for j, label in enumerate(recipe.classes):
        shown |= {
            f"probability[{label}]": prediction.mean[:, j],
            f"lower[{label}]": lower[:, j],
            f"upper[{label}]": upper[:, j],
        }
    return shown


def _mean_and_outcome(recipe: RegressionRecipe, prediction: Prediction, weights: Weights, interval: float) -> Columns:
    mean_lower, mean_upper = ends(prediction.expected, interval)
    lower, upper = ends(prediction.outcomes, interval)
    return {
        "mean": prediction.mean,
        "mean_lower": mean_lower,
        "mean_upper": mean_upper,
        "lower": lower,
        "upper": upper,
    }


def _share_and_outcome(recipe: RegressionRecipe, prediction: Prediction, weights: Weights, interval: float) -> Columns:
    share = {"probability": prediction.mean / weights["trials"]}
    return share | _mean_and_outcome(recipe, prediction, weights, interval)


def _two_classes(y: Floats, probability: Floats, of_intervals: Scores) -> Scores:
    """Accuracy, precision, recall and F1; those that would divide by zero are left out."""
    said = probability > 0.5
    hits, called, ones = float(np.sum(said & (y == 1))), float(said.sum()), float(y.sum())
    scores = {"accuracy": float(np.mean(said == y))}
    scores |= {"precision": hits / called} if called else {}
    scores |= {"recall": hits / ones} if ones else {}
    return scores | ({"F1": 2 * hits / (called + ones)} if called + ones else {})


def _many_classes(y: Floats, probability: Floats, of_intervals: Scores) -> Scores:
    return {"accuracy": float(np.mean(probability.argmax(axis=1) == y))}


def _errors(y: Floats, mean: Floats, of_intervals: Scores) -> Scores:
    return {"root mean square error": root_mean_square(y - mean)} | of_intervals


REGRESSIONS: dict[str, _Kind] = {
    "logistic": _Kind("Logistic regression", Logistic, _zeros_and_ones, _probability, _two_classes),
    "multinomial": _Kind(
        "Multinomial logistic regression", MultinomialLogistic, _labels, _class_probabilities, _many_classes
    ),
    "linear": _Kind("Linear regression", Linear, _any_numbers, _mean_and_outcome, _errors),
    "poisson": _Kind("Poisson regression", Poisson, _counts, _mean_and_outcome, _errors, ("exposure", "offset")),
    "binomial": _Kind("Binomial regression", Binomial, _successes, _share_and_outcome, _errors, ("trials",), True),
}
RegressionRecipe.kinds = REGRESSIONS
