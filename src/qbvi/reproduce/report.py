"""The report of an experiment, and how it is printed and written."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from qbvi.reproduce.tables import Table

__all__ = ["Picture", "Report", "page", "show", "write"]


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure, the name of its files and what it shows."""

    name: str
    caption: str
    figure: Any  # of matplotlib

    @cached_property
    def png(self) -> bytes:
        """The figure as PNG, drawn once for its file and for all pages."""
        image = io.BytesIO()
        self.figure.savefig(image, format="png", dpi=150)
        return image.getvalue()

    @property
    def pdf(self) -> bytes:
        """The figure as PDF, without a date: the same numbers give the same file."""
        image = io.BytesIO()
        self.figure.savefig(image, format="pdf", metadata={"CreationDate": None})
        return image.getvalue()


@dataclass(frozen=True, eq=False)
class Report:
    """One experiment: what was done, its tables and figures, and the findings."""

    name: str
    title: str
    about: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    findings: tuple[str, ...] = ()


def show(report: Report, console: Any) -> None:
    """Print the tables and the findings on a console of rich."""
    console.rule(f"[bold]{report.title}")
    for text in report.about:
        console.print(text, highlight=False, markup=False)
    for table in report.tables:
        console.print()
        for part in table.terminal(console.width):
            console.print(part)
        if table.reading:
            console.print(table.reading, style="dim", highlight=False, markup=False)
    for text in report.findings:
        console.print()
        console.print(text, highlight=False, markup=False)


def write(report: Report, out: Path) -> list[Path]:
    """Write tables as CSV and Markdown, figures as PNG and PDF, and the page; return the paths."""
    out.mkdir(parents=True, exist_ok=True)
    texts = {f"{report.name}.html": page([report], report.title), f"{report.name}.md": _markdown(report)}
    for table in report.tables:
        texts[f"{table.name}.csv"] = table.csv()
        texts[f"{table.name}.md"] = table.markdown() + "\n"
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    images = {f"{p.name}.{kind}": getattr(p, kind) for p in report.pictures for kind in ("png", "pdf")}
    for name, image in images.items():
        (out / name).write_bytes(image)
    return [out / name for name in (*texts, *images)]


def page(reports: Sequence[Report], title: str) -> str:
    """All reports as one self-contained HTML page.

    Examples
    --------
    >>> report = Report("a", "An experiment", ("What was done.",), findings=("It agrees.",))
    >>> text = page([report], "Title")
    >>> "<h2>An experiment</h2>" in text, "http" in text
    (True, False)
    """
    links = "".join(f"<a href='#{report.name}'>{html.escape(report.title)}</a>" for report in reports)
    contents = f"<nav>{links}</nav>" if len(reports) > 1 else ""
    sections = "\n".join(_section(report, with_title=report.title != title) for report in reports)
    return _PAGE.format(title=html.escape(title), style=_STYLE, contents=contents, sections=sections)


def _section(report: Report, with_title: bool) -> str:
    title = f"<h2>{html.escape(report.title)}</h2>" if with_title else ""
    about = "".join(f"<p>{html.escape(text)}</p>" for text in report.about)
    tables = "\n".join(table.html() for table in report.tables)
    pictures = "\n".join(_figure(picture) for picture in report.pictures)
    findings = "".join(f"<p>{html.escape(text)}</p>" for text in report.findings)
    verdict = f"<div class='findings'><h3>What comes out</h3>{findings}</div>" if findings else ""
    return f"<section id='{report.name}'>{title}{about}\n{tables}\n{pictures}\n{verdict}</section>"


def _figure(picture: Picture) -> str:
    code, caption = base64.b64encode(picture.png).decode("ascii"), html.escape(picture.caption)
    return (
        f"<figure><img alt='{caption}' src='data:image/png;base64,{code}'><figcaption>{caption}</figcaption></figure>"
    )


def _markdown(report: Report) -> str:
    pictures = [f"![{picture.caption}]({picture.name}.png)\n\n{picture.caption}" for picture in report.pictures]
    parts = [f"# {report.title}", *report.about, *(table.markdown() for table in report.tables), *pictures]
    return "\n\n".join([*parts, *report.findings]) + "\n"


_STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; color: #222; background: #fff; margin: 0 auto; max-width: 1240px; padding: 1.5rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.35rem; border-bottom: 2px solid #0072B2; padding-bottom: .2rem; margin-top: 2.5rem; }
h3 { font-size: 1.05rem; margin: 0 0 .4rem; } p { max-width: 52rem; }
nav { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; } a { color: #0072B2; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; margin-top: 1.2rem; }
caption { text-align: left; white-space: nowrap; font-weight: 600; font-size: 1rem; padding-bottom: .4rem; }
th, td { padding: .22rem .6rem; text-align: right; vertical-align: top; white-space: nowrap; border-bottom: 1px solid #e4e4e4; }
tbody th, thead th:first-child { text-align: left; font-weight: 500; position: sticky; left: 0; background: #fff; }
thead th { border-bottom: 2px solid #888; } tbody tr:hover td { background: #f3f8fb; }
.paper { display: block; color: #777; font-size: .78rem; } .note { color: #555; font-size: .85rem; margin-top: .4rem; }
figure { margin: 1.5rem 0; } img { max-width: 100%; height: auto; } figcaption { color: #555; font-size: .88rem; max-width: 52rem; }
.findings { background: #f3f8fb; border-left: 4px solid #0072B2; padding: .8rem 1.1rem; margin-top: 1.5rem; } .findings p { margin: .4rem 0; }
@media print { section { break-inside: auto; } figure, table { break-inside: avoid; } }
"""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body><h1>{title}</h1>
{contents}
{sections}
</body></html>
"""
