"""Colours, sizes and legends that the plots share."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = [
    "BLUE",
    "DASHES",
    "GREY",
    "INK",
    "MARKS",
    "ONE_COLUMN",
    "TWO_COLUMNS",
    "VERMILION",
    "handles",
    "legend_above",
    "new_figure",
    "note_below",
    "subtitle",
    "tidy",
]

ONE_COLUMN, TWO_COLUMNS = 3.4, 7.0  # inches
# Okabe and Ito's palette, which readers with any colour vision can tell apart.
BLUE, VERMILION, INK, GREY = "#0072B2", "#D55E00", "#333333", "#8C8C8C"
MARKS = (("#D55E00", "D"), ("#009E73", "o"), ("#CC79A7", "s"), ("#E69F00", "^"))
DASHES = ((0, (4, 2)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)))


class _Picture(Figure):
    """A figure that IPython displays without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=160)
        return buffer.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches."""
    figure = _Picture(figsize=(width, height), dpi=160, layout="constrained", facecolor="white")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.03, h_pad=0.03, hspace=0.02, wspace=0.02)
    return figure


def tidy(ax: Axes, xlabel: str = "", ylabel: str = "") -> None:
    """Remove lines that carry no information."""
    ax.spines[["top", "right"]].set_visible(False)
    for spine in ax.spines.values():
        spine.set(linewidth=0.6, color=GREY)
    ax.tick_params(labelsize=7.5, width=0.6, length=3, pad=2, color=GREY, labelcolor=INK)
    ax.set_xlabel(xlabel, fontsize=8.5, color=INK)
    ax.set_ylabel(ylabel, fontsize=8.5, color=INK)


def subtitle(ax: Axes, text: str, size: float = 7.0) -> None:
    """Small text between the axes and their title."""
    where: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "center", "va": "bottom"}
    ax.annotate(text, (0.5, 1), xytext=(0, 3), fontsize=size, color=INK, annotation_clip=False, **where)


def note_below(figure: Figure, text: str) -> None:
    """One line at the foot of the figure."""
    figure.supxlabel(text, fontsize=7, color=GREY)


def handles(*axes: Axes) -> dict[str, Any]:
    """One handle per label, in order of first appearance."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found


def legend_above(figure: Any, *axes: Axes) -> None:
    """Place one legend for all axes above them, in as many columns as fit."""
    found = handles(*axes)
    width = sum(len(label) + 6 for label in found)  # in letters; a column holds about fifty
    columns = len(found) if width < 15 * figure.get_figwidth() else 3 if figure.get_figwidth() > 4 else 2
    spacing = {"handlelength": 1.8, "columnspacing": 1.4}
    place = {"loc": "outside upper center", "ncols": columns}
    figure.legend(found.values(), found.keys(), frameon=False, fontsize=7.5, labelcolor=INK, **place, **spacing)
