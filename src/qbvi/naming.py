"""Parts given by name, and the error for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

__all__ = ["nearest", "pick"]


def pick(argument: str, value: Any, table: Mapping[str, Any]) -> Any:
    """Return ``table[value]`` if ``value`` is a string, else ``value`` itself.

    Examples
    --------
    >>> pick("step", "plane", {"plain": 1})
    Traceback (most recent call last):
    ...
    ValueError: `step` must be one of 'plain' (or such an object), got 'plane';
    did you mean 'plain'?
    """
    if not isinstance(value, str):
        return value
    if value in table:
        return table[value]
    known = ", ".join(repr(name) for name in table)
    msg = f"`{argument}` must be one of {known} (or such an object), got {value!r}{nearest(value, table)}"
    raise ValueError(msg)


def nearest(name: str, known: Mapping[str, Any]) -> str:
    """Suggest the known name closest to ``name``, as the end of a sentence; empty if none is."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
