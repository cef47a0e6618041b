"""Build hook and Griffe extension: formulas become MathML, which browsers draw without a script.

Docstrings write formulas as reStructuredText (``.. math::``, ``:math:``), pages with dollar signs.
The extension turns the first form into the second. Arithmatex marks all formulas, and the hook
translates them.
"""

from __future__ import annotations

import html
import re
import textwrap
from typing import Any

from griffe import Extension, Object
from latex2mathml.converter import convert

_DISPLAY = re.compile(r"^([ \t]*)\.\. math::[ \t]*(.*(?:\n(?:\1[ \t]+\S.*|[ \t]*(?=\n\1[ \t]+\S)))*)", re.MULTILINE)
_INLINE = re.compile(r":math:`([^`]+)`")
_MARKED = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


class DollarFormulas(Extension):
    """Write the formulas of docstrings with dollar signs."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = in_dollars(obj.docstring.value)


def in_dollars(text: str) -> str:
    """The same text with its formulas between dollar signs."""
    text = _DISPLAY.sub(lambda found: f"{found[1]}$$\n{_indented(found[2], found[1])}\n{found[1]}$$", text)
    return _INLINE.sub(lambda found: f"${' '.join(found[1].split())}$", text)


def _indented(formula: str, indent: str) -> str:
    lines = [line.strip() for line in formula.splitlines() if line.strip()]
    return textwrap.indent("\n".join(lines), indent)


def on_page_content(content: str, **_: Any) -> str:
    """Translate the marked formulas of a page."""
    return _MARKED.sub(lambda found: _mathml(found[2], found[1] == "div"), content)


def _mathml(marked: str, is_display: bool) -> str:
    formula = html.unescape(marked).strip()[2:-2].strip()  # without \( and \), or \[ and \]
    formula = re.sub(r"\\log\s+(?=[a-zA-Z\\])", r"\\log\\, ", formula)  # browsers set no space there
    drawn = convert(formula, display="block" if is_display else "inline")
    return f'<div class="formula">{drawn}</div>' if is_display else drawn
