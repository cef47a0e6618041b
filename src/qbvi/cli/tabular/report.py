"""What the commands print: rich tables on a terminal if rich is installed, else plain text."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from qbvi.cli.tabular.posterior import SavedPosterior
from qbvi.cli.tabular.recipe import Scores

__all__ = ["exit_status", "one_line", "print_posterior", "print_table", "printable"]

Cells = Sequence[Sequence[str]]  # rows of equal length, the header first


def print_posterior(posterior: SavedPosterior, interval: float, stream: TextIO | None = None) -> None:
    """Print the model, the diagnostics, the table of parameters and the scores."""
    stream = sys.stdout if stream is None else stream
    summary = posterior.summary(interval)
    if posterior.recipe is not None:
        title = f"{posterior.recipe.title}: {posterior.n_rows:,} rows of {posterior.data}"
        print(printable(title), file=stream)
    if _draws_tables(stream):
        print(printable("\n".join(summary.header)), file=stream)
        print_table(summary.cells(), stream)
        print(printable("".join(f"Note: {note}\n" for note in summary.notes)), end="", file=stream)
    else:
        print(printable(str(summary)), file=stream)
    if posterior.scores:
        print(file=stream)
        print_table(_score_cells(posterior.scores), stream)


def print_table(cells: Cells, stream: TextIO) -> None:
    """Print a table, with the first column left-aligned and the others right-aligned."""
    cells = [[printable(cell) for cell in row] for row in cells]
    if _draws_tables(stream):
        importlib.import_module("rich.console").Console(file=stream).print(_rich_table(cells))
    else:
        print("\n".join(_plain(cells)), file=stream)


def exit_status(command: str, work: Callable[[], object]) -> int:
    """Do the work of a command. Return 0 if it was done, and 2 if the request is invalid.

    The reason of an invalid request is printed on the standard error.

    A reader that has closed the pipe, such as ``head``, is no error: further output is discarded.
    """
    try:
        work()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"qbvi {command}: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


def one_line(error: BaseException) -> str:
    """The message of an error, in one line."""
    return printable(" ".join(str(error).split())) or type(error).__name__


def printable(text: str) -> str:
    r"""Escape control characters, so that names and notes from a file cannot control the terminal.

    Examples
    --------
    >>> printable("age\x1b[2J")
    'age?[2J'
    """
    return "".join(mark if mark.isprintable() or mark == "\n" else "?" for mark in text)


def _draws_tables(stream: TextIO) -> bool:
    """Whether the stream is a terminal and rich is installed; files and pipes get plain text."""
    return stream.isatty() and importlib.util.find_spec("rich") is not None


def _rich_table(cells: Cells) -> Any:
    """Build a table in which cells are text, not markup: ``age[yes]`` is not a style."""
    table = importlib.import_module("rich.table").Table(box=importlib.import_module("rich.box").SIMPLE_HEAD)
    text = importlib.import_module("rich.text").Text
    head, *body = cells
    for place, title in enumerate(head):
        table.add_column(text(title), justify="right" if place else "left", overflow="fold")
    for row in body:
        table.add_row(*map(text, row))
    return table


def _plain(cells: Cells) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _score_cells(scores: Mapping[str, Scores]) -> list[list[str]]:
    measures = list(dict.fromkeys(name for told in scores.values() for name in told))
    body = [[name, *(_number(name, told.get(name)) for told in scores.values())] for name in measures]
    return [["", *scores], *body]


def _number(measure: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if measure == "rows" else f"{value:.4g}"
