"""Packages that problems come from: imported on use, with an error that says how to get them."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["needed"]


def needed(module: str, name: str) -> Any:
    """Import a package that qbvi does not require, or say how to install it.

    Parameters
    ----------
    module : str
        Its name in Python, which is also the name of the extra of qbvi.
    name : str
        Its name in messages.

    Examples
    --------
    >>> needed("json", "JSON").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:  # the package is there, but one of its own requirements is not
            raise
        msg = f"{name} is not installed: pip install 'qbvi[{module}]'"
        raise ImportError(msg) from error
