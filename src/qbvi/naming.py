"""Parts given by name, and the error for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from qbvi.arguments import shown

__all__ = ["is_no_text", "nearest", "pick", "works_as"]


def pick(argument: str, value: Any, table: Mapping[str, Any], is_part: Callable[[Any], bool] | None = None) -> Any:
    """Return ``table[value]`` if ``value`` is a string, else ``value`` itself.

    ``is_part`` says which other values may stand for themselves; by default all do.

    Examples
    --------
    >>> pick("step", "plane", {"plain": 1})
    Traceback (most recent call last):
    ...
    ValueError: `step` must be one of 'plain' (or such an object), got 'plane';
    did you mean 'plain'?
    """
    if isinstance(value, str) and value in table:
        return table[value]
    if not isinstance(value, str) and (is_part is None or is_part(value)):
        return value
    known = ", ".join(repr(name) for name in table)
    close = nearest(value, table) if isinstance(value, str) else ""
    msg = f"`{argument}` must be one of {known} (or such an object), got {shown(value)}{close}"
    raise ValueError(msg) if isinstance(value, str) else TypeError(msg)


def works_as(*methods: str) -> Callable[[Any], bool]:
    """A test for parts: instances, not classes, that have these methods."""
    return lambda value: not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in methods)


def is_no_text(value: Any) -> bool:
    """A test that nothing passes: only the names are allowed."""
    return False


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name closest to ``name``, as the end of a sentence; empty if none is."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
