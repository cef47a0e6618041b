"""What all tables share: their form in notebooks, and data frames where pandas is installed."""

from __future__ import annotations

import html
import importlib
from collections.abc import Sequence
from typing import Any

__all__ = ["html_table", "import_pandas"]


def html_table(cells: Sequence[Sequence[str]]) -> str:
    """Cells of text, header first, as an HTML table; the first cell of a row is its name.

    Examples
    --------
    >>> page = html_table([("", "mean"), ("a < b", "1.0")])
    >>> "<th>a &lt; b</th><td>1.0</td>" in page
    True
    """
    head, *rows = cells
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr><th>{html.escape(name)}</th>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in rest) + "</tr>"
        for name, *rest in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def import_pandas() -> Any:
    """The module pandas, for a method `to_pandas`."""
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        msg = "`to_pandas` needs the package pandas, which is not installed: pip install pandas"
        raise ImportError(msg) from error
