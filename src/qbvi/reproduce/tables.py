"""Tables of our numbers beside the published ones: on a terminal, as CSV, Markdown and HTML."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Cell", "Row", "Table"]

Value = float | str | None


class Cell(NamedTuple):
    """One of our numbers and, if there is one, the published number."""

    ours: Value = None
    paper: Value = None


@dataclass(frozen=True)
class Row:
    """One row of a table, and the number of decimals to show."""

    label: str
    cells: tuple[Cell, ...]
    decimals: int = 3


@dataclass(frozen=True)
class Table:
    """A table with its title and notes for the reader.

    Examples
    --------
    >>> table = Table("t", "Means", ("QBVI", "ML"), (Row("a", (Cell(0.6754, 0.675), Cell(0.7))),))
    >>> print(table.markdown())
    **Means**
    <BLANKLINE>
    | | QBVI | ML |
    | --- | ---: | ---: |
    | a | 0.675 (0.675) | 0.700 |
    <BLANKLINE>
    In parentheses: the paper's.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                msg = f"row {row.label!r} of table {self.name!r} must have {len(self.columns)} cells, got {len(row.cells)}"
                raise ValueError(msg)

    @property
    def is_compared(self) -> bool:
        """Whether the table has any published number."""
        return any(cell.paper is not None for row in self.rows for cell in row.cells)

    def csv(self) -> str:
        """The table as CSV: full precision, published numbers in columns of their own."""
        has_paper = [any(row.cells[j].paper is not None for row in self.rows) for j in range(len(self.columns))]
        names = [(name, f"{name}, paper") for name in self.columns]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["", *_kept(names, has_paper)])
        for row in self.rows:
            writer.writerow([row.label, *map(_raw, _kept(row.cells, has_paper))])
        return text.getvalue()

    def markdown(self) -> str:
        """The table as Markdown: published numbers in parentheses."""
        lines = [
            f"**{self.title}**",
            "",
            f"| | {' | '.join(self.columns)} |",
            f"| --- |{' ---: |' * len(self.columns)}",
        ]
        lines += [
            f"| {row.label} | {' | '.join(_in_line(cell, row.decimals) for cell in row.cells)} |" for row in self.rows
        ]
        return "\n".join([*lines, *(["", self.reading] if self.reading else [])])

    def html(self) -> str:
        """The table as HTML: published numbers below ours."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            f"<tr><th>{html.escape(row.label)}</th>{''.join(_as_html(cell, row.decimals) for cell in row.cells)}</tr>\n"
            for row in self.rows
        )
        note = f"<p class='note'>{html.escape(self.reading)}</p>" if self.reading else ""
        caption = f"<caption>{html.escape(self.title)}</caption>"
        table = f"<table>{caption}<thead><tr><th></th>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
        return f"<div class='wide'>{table}</div>{note}"

    def terminal(self, width: int) -> list[Any]:
        """The table as one or more tables of rich, none wider than ``width``."""
        from rich.table import Table as RichTable

        tables = []
        for number, chosen in enumerate(self._portions(width)):
            title = self.title if number == 0 else f"{self.title} (continued)"
            table = RichTable(title=title, title_justify="left", title_style="bold", header_style="bold")
            table.add_column("", no_wrap=True)
            for j in chosen:
                table.add_column(self.columns[j], justify="right", no_wrap=True)
            for row in self.rows:
                table.add_row(row.label, *(_stacked(row.cells[j], row.decimals) for j in chosen))
            tables.append(table)
        return tables

    @property
    def reading(self) -> str:
        """Notes for the reader."""
        where = "In parentheses: the paper's." if self.is_compared else ""
        return " ".join(part for part in (self.note, where) if part)

    def _portions(self, width: int) -> list[list[int]]:
        """Groups of columns; each group fits into the width, together with the labels."""
        label = 3 + max(len(row.label) for row in self.rows)
        portions: list[list[int]] = [[]]
        used = label
        for j, name in enumerate(self.columns):
            cells = [len(shown(value, row.decimals)) for row in self.rows for value in row.cells[j]]
            need = 3 + max(len(name), *(2 + size for size in cells))
            if portions[-1] and used + need > width - 1:
                portions.append([])
                used = label
            portions[-1].append(j)
            used += need
        return portions


def shown(value: Value, decimals: int) -> str:
    """A number as text, with digits grouped. Text stays as it is; None and NaN become empty.

    Examples
    --------
    >>> shown(1234.5678, 2), shown(None, 2), shown("stopped", 2)
    ('1,234.57', '', 'stopped')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value if isinstance(value, str) else f"{value:,.{decimals}f}"


def _kept(pairs: Sequence[tuple[Any, Any]], has_paper: Sequence[bool]) -> list[Any]:
    """Flatten pairs; the second entry is kept only if its column has a published number."""
    return [item for pair, both in zip(pairs, has_paper, strict=True) for item in (pair if both else pair[:1])]


def _raw(value: Value) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return "" if math.isnan(value) else f"{value:.10g}"


def _in_line(cell: Cell, decimals: int) -> str:
    ours, paper = shown(cell.ours, decimals), shown(cell.paper, decimals)
    return f"{ours} ({paper})".strip() if paper else ours


def _stacked(cell: Cell, decimals: int) -> Any:
    from rich.text import Text

    ours, paper = shown(cell.ours, decimals), shown(cell.paper, decimals)
    return Text.assemble(ours, (f"\n({paper})", "dim")) if paper else Text(ours)


def _as_html(cell: Cell, decimals: int) -> str:
    ours, paper = shown(cell.ours, decimals), shown(cell.paper, decimals)
    below = f"<span class='paper'>({html.escape(paper)})</span>" if paper else ""
    return f"<td>{html.escape(ours)}{below}</td>"
