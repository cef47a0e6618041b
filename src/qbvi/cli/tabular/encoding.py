"""Columns of a table as numbers: categories as indicators, dates as days, and their products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from qbvi.cli.tabular.table import Table, TableError

__all__ = ["Encoding", "level_of"]

Floats = NDArray[np.float64]
Named = dict[str, Floats]  # columns of numbers, by the name of their coefficient

_SHOWN = 8  # most levels in an error
_DAY = np.timedelta64(1, "D")


@dataclass(frozen=True)
class Encoding:
    """How columns of a table become columns of numbers.

    Attributes
    ----------
    sources : tuple of str
        Columns of the table.
    levels : tuple of tuples of str
        For each source its levels, the base level first; empty for numbers and dates.
    origins : tuple of str
        For each source its day zero as an ISO date; empty for all but dates.
    terms : tuple of tuples of str
        Sources whose product explains the target; one source alone is a product too.

    Examples
    --------
    >>> coding = Encoding(("age", "job"), ((), ("cook", "smith")), ("", ""), (("age",), ("job",)))
    >>> coding.names
    ('age', 'job[smith]')
    """

    sources: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    origins: tuple[str, ...]
    terms: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        lengths = {len(self.sources), len(self.levels), len(self.origins)}
        unknown = {name for term in self.terms for name in term} - set(self.sources)
        if len(lengths) != 1 or unknown:
            msg = f"`levels` and `origins` must be one for each source, and `terms` of sources, got {lengths} and {unknown}"
            raise ValueError(msg)

    @classmethod
    def of_numbers(cls, sources: Sequence[str]) -> Self:
        """Columns that are numbers already."""
        return cls(tuple(sources), ((),) * len(sources), ("",) * len(sources), tuple((name,) for name in sources))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of numbers, in order."""
        return tuple(name for term in self.terms for name, _ in self._columns(term))

    @property
    def is_indicator(self) -> tuple[bool, ...]:
        """For each column of numbers, whether a category is part of it."""
        return tuple(is_indicator for term in self.terms for _, is_indicator in self._columns(term))

    @property
    def notes(self) -> tuple[str, ...]:
        """The base level of every category, and the day zero of every date."""
        told = zip(self.sources, self.levels, self.origins, strict=True)
        return tuple(
            f"{name}: compared with {levels[0]!r} (--base chooses)" if levels else f"{name}: in days since {origin}"
            for name, levels, origin in told
            if levels or origin
        )

    def values(self, table: Table) -> Floats:
        """The columns of numbers of a table: (n, k)."""
        table.require(self.sources)
        own = {name: self._numbers(table, j) for j, name in enumerate(self.sources)}
        columns = [reduce(np.multiply, parts) for term in self.terms for parts in self._products(term, own)]
        return np.column_stack(columns)

    def _products(self, term: tuple[str, ...], own: Mapping[str, Named]) -> list[tuple[Floats, ...]]:
        return list(product(*(own[name].values() for name in term)))

    def _columns(self, term: tuple[str, ...]) -> list[tuple[str, bool]]:
        """Name of each column of a term, and whether a category is part of it."""
        parts = [self._named(self.sources.index(name)) for name in term]
        has_category = any(self.levels[self.sources.index(name)] for name in term)
        return [(":".join(names), has_category) for names in product(*parts)]

    def _named(self, j: int) -> list[str]:
        name, levels = self.sources[j], self.levels[j]
        return [f"{name}[{level}]" for level in levels[1:]] if levels else [name]

    def _numbers(self, table: Table, j: int) -> Named:
        name, levels = self.sources[j], self.levels[j]
        if levels:
            return dict(zip(self._named(j), _indicators(table, name, levels), strict=True))
        return {name: table.days(name, self.origins[j]) if self.origins[j] else table.numbers(name)}


def level_of(label: Any) -> str:
    """A label as text: whole numbers without a point."""
    return str(label)


def _indicators(table: Table, name: str, levels: tuple[str, ...]) -> Floats:
    """One column of zeros and ones for each level except the first."""
    labels = np.array([level_of(label) for label in table.labels(name)])
    unknown = ~np.isin(labels, levels)
    if unknown.any():
        at = int(np.argmax(unknown))
        shown = ", ".join(levels[:_SHOWN]) + (f" and {len(levels) - _SHOWN} more" if len(levels) > _SHOWN else "")
        msg = (
            f"{table.path}: column {name!r} must hold levels of the fit, {shown}, got {str(labels[at])!r} in row "
            f"{table.rows[at]} ({unknown.sum()} such rows): leave them out"
        )
        raise TableError(msg)
    return np.asarray(labels == np.array(levels[1:])[:, None], dtype=np.float64)
