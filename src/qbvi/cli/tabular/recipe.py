"""Recipes: what is needed, besides a posterior from a table, to predict and to score it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self, get_type_hints

import numpy as np
from numpy.typing import NDArray

from qbvi.cli.tabular.table import Table, TableError
from qbvi.models import StatisticalModel
from qbvi.results import Fit

__all__ = [
    "Columns",
    "Recipe",
    "Scores",
    "Spread",
    "ends",
    "named_by_column",
    "portions",
]

Floats = NDArray[np.float64]
Columns = dict[str, Any]  # columns of a table of predictions, each an array
Scores = dict[str, float]

_CELLS = 4_000_000  # draws times rows held at once


class Spread(NamedTuple):
    """Settings of a prediction: draws, seed and probability of intervals."""

    n_draws: int = 1000
    seed: int = 0
    interval: float = 0.9


@dataclass(frozen=True)
class Recipe(ABC):
    """The name of a model and the columns it uses.

    Attributes
    ----------
    model : str
        Name of the model, as given to ``--model``.
    target : str
        The column to explain.
    prior_scale : float, optional
        Standard deviation of the normal priors. By default the model's own.
    """

    model: str
    target: str
    prior_scale: float | None = None

    kinds: ClassVar[Mapping[str, Any]]

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Undo `to_facts`; raises ValueError if the facts are not those of a recipe."""
        hints = get_type_hints(cls)
        # Files of earlier versions lack fields that have a default.
        known = [part for part in fields(cls) if part.name in facts or part.default is MISSING]
        words = {part.name: _as(hints[part.name], facts[part.name], part.name) for part in known}
        if words["model"] not in cls.kinds:
            msg = f"`model` must be one of {', '.join(cls.kinds)}, got {words['model']!r}"
            raise ValueError(msg)
        return cls(**words)

    def to_facts(self) -> dict[str, Any]:
        """Describe this recipe as plain data."""
        return asdict(self)

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Columns that a table must have for a prediction."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The model, target and features in one line."""

    @abstractmethod
    def trained(self, table: Table) -> StatisticalModel:
        """The model with its data."""

    @abstractmethod
    def bare(self) -> StatisticalModel:
        """The model without the table it was fitted to."""

    @abstractmethod
    def check(self, table: Table) -> None:
        """Refuse a table whose target or columns do not suit the model."""

    @abstractmethod
    def predictions(self, fit: Fit, table: Table | None, spread: Spread) -> Columns:
        """One row per row of the table: means, probabilities, and interval ends."""

    def draws(self, fit: Fit, table: Table | None, spread: Spread) -> Columns:
        """Every draw of every row's target; the models of series have none by rows."""
        msg = f"--draws-out is for regressions, got --model {self.model}"
        raise TableError(msg)

    @abstractmethod
    def scores(self, fit: Fit, table: Table, spread: Spread) -> Scores:
        """Quality of the predictions of a table's targets."""

    def prior_of(self, model: Any) -> Any:
        """The prior to fit the model with."""
        return model.prior if self.prior_scale is None else model.normal_prior(self.prior_scale)


@contextmanager
def named_by_column(table: Table, column: str, argument: str) -> Iterator[None]:
    """Make errors of a model name the file and the column in place of the argument."""
    try:
        yield
    except TableError:
        raise
    except (ValueError, TypeError) as error:
        msg = f"{table.path}: {str(error).replace(f'`{argument}`', f'column {column!r}')}"
        raise TableError(msg) from error


def portions(n: int, width: int) -> Iterator[slice]:
    """Slices of n rows, such that ``width`` numbers for each of their rows fit in memory."""
    length = max(1, _CELLS // width)
    return (slice(start, min(start + length, n)) for start in range(0, n, length))


def ends(draws: Floats, interval: float) -> tuple[Floats, Floats]:
    """Equal-tailed interval over the first axis."""
    lower, upper = np.quantile(draws, [(1 - interval) / 2, (1 + interval) / 2], axis=0)
    return lower, upper


_PLAIN: dict[Any, tuple[type, ...]] = {
    str: (str,),
    bool: (bool,),
    float: (float, int),
    float | None: (float, int, type(None)),
    str | None: (str, type(None)),
}
_ITEMS: dict[Any, tuple[type, ...]] = {
    tuple[str, ...]: (str,),
    tuple[float, ...]: (float, int),
    tuple[str | int | float, ...]: (str, int, float),
}


def _as(hint: Any, value: Any, name: str) -> Any:
    """A value from a file, checked to have the type of its field."""
    if hint in _PLAIN and isinstance(value, _PLAIN[hint]):
        return value
    if hint == tuple[tuple[str, ...], ...] and isinstance(value, list):
        return tuple(_as(tuple[str, ...], item, name) for item in value)
    if hint in _ITEMS and isinstance(value, list) and all(isinstance(item, _ITEMS[hint]) for item in value):
        return tuple(value)
    msg = f"`{name}` must be {hint}, got {value!r:.40}"
    raise ValueError(msg)
