"""Fits from tables: files of columns, the models for them, and recipes to predict with later."""

from qbvi.cli.tabular.posterior import POSTERIOR, SavedPosterior, read_posterior, save_posterior
from qbvi.cli.tabular.recipe import Recipe, Spread
from qbvi.cli.tabular.regressions import REGRESSIONS, RegressionRecipe
from qbvi.cli.tabular.series import SERIES, SeriesRecipe
from qbvi.cli.tabular.table import Table, TableError, read_table, write_columns

__all__ = [
    "POSTERIOR",
    "REGRESSIONS",
    "SERIES",
    "Recipe",
    "RegressionRecipe",
    "SavedPosterior",
    "SeriesRecipe",
    "Spread",
    "Table",
    "TableError",
    "read_posterior",
    "read_table",
    "save_posterior",
    "write_columns",
]
