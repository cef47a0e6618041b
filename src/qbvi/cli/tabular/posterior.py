"""The file of a fit from a table: the posterior, and its recipe as JSON. It contains no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qbvi.cli.tabular.recipe import Recipe, Scores
from qbvi.cli.tabular.regressions import RegressionRecipe
from qbvi.cli.tabular.series import SeriesRecipe
from qbvi.cli.tabular.table import TableError
from qbvi.results import Fit
from qbvi.storage import load, read_facts, save
from qbvi.summary import Summary

__all__ = ["POSTERIOR", "SavedPosterior", "read_posterior", "save_posterior"]

POSTERIOR = "posterior.npz"  # in the folder of a fit
_KEY = "table_fit"
_RECIPES: dict[str, type[Recipe]] = {"regression": RegressionRecipe, "series": SeriesRecipe}


@dataclass(frozen=True, eq=False)
class SavedPosterior:
    """A posterior with its recipe and its scores.

    Attributes
    ----------
    fit : Fit
        The posterior.
    recipe : Recipe, optional
        None for a posterior that was not fitted from a table.
    data : str
        Name of the file of the table.
    n_rows : int
        Number of its rows used by the fit.
    scores : dict
        Quality of predictions for the rows of the fit (``"train"``) and for held-out rows
        (``"test"``).
    """

    fit: Fit
    recipe: Recipe | None
    data: str = ""
    n_rows: int = 0
    scores: dict[str, Scores] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """Names of the entries, by the posterior's own labels."""
        names = self.fit.labels if self.recipe is None else self.recipe.bare().names
        return dict(zip(self.fit.labels, names, strict=True))

    def summary(self, interval: float = 0.95) -> Summary:
        """The table of the posterior, with entries under their names."""
        table, names = self.fit.summary(interval), self.labels
        rows = tuple(row._replace(parameter=names[row.parameter]) for row in table)
        return Summary(rows, interval, table.header, table.notes)


def save_posterior(posterior: SavedPosterior, path: str) -> None:
    """Write posterior and recipe to one file, which `qbvi.load` can read too."""
    if posterior.recipe is None:
        msg = "`posterior` must have a recipe to be saved with, got None; Fit.save saves a posterior alone"
        raise ValueError(msg)
    kind = next(name for name, recipe in _RECIPES.items() if isinstance(posterior.recipe, recipe))
    facts = {"kind": kind, "recipe": posterior.recipe.to_facts(), "scores": posterior.scores}
    save(posterior.fit, path, facts={_KEY: facts | {"data": posterior.data, "n_rows": posterior.n_rows}})


def read_posterior(path: str) -> SavedPosterior:
    """Read a file of `save_posterior` or `qbvi.Fit.save`; in a folder, that of ``qbvi fit``."""
    path = str(Path(path) / POSTERIOR) if Path(path).is_dir() else path
    try:
        facts = read_facts(path)
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror or error}"
        raise TableError(msg) from error
    if _KEY not in facts:
        return SavedPosterior(load(path), None)
    try:
        return _rebuilt(path, facts[_KEY])
    except Exception as error:
        msg = f"{path}: its description of the model is inconsistent ({error}); it may be damaged"
        raise TableError(msg) from error


def _rebuilt(path: str, facts: Mapping[str, Any]) -> SavedPosterior:
    recipe = _RECIPES[facts["kind"]].from_facts(facts["recipe"])
    # The map of GARCH's parameters is a function, which files do not hold; the model has it.
    prior = recipe.prior_of(recipe.bare()) if recipe.model == "garch" else None
    fit = load(path, prior)
    names = recipe.bare().names
    if len(names) != len(fit.labels) or (fit.model.is_named and names != fit.labels):
        msg = f"the model has the parameters {', '.join(names)}, the posterior {', '.join(fit.labels)}"
        raise ValueError(msg)
    scores = {str(part): {str(k): float(v) for k, v in told.items()} for part, told in facts["scores"].items()}
    return SavedPosterior(fit, recipe, str(facts["data"]), int(facts["n_rows"]), scores)
