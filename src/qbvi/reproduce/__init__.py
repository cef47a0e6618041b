"""The paper's experiments, with our numbers beside the published ones.

The command is ``qbvi reproduce``, and docs/reproduce.md describes it. The experiments use only
public names of qbvi, so everything can be repeated by hand.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from qbvi.reproduce.data import DataError, MissingDataError
from qbvi.reproduce.report import Report, page, show, write
from qbvi.reproduce.settings import FULL, QUICK, Effort, Settings

__all__ = [
    "EXPERIMENTS",
    "FULL",
    "QUICK",
    "DataError",
    "Effort",
    "MissingDataError",
    "Report",
    "Settings",
    "page",
    "run",
    "show",
    "write",
]

EXPERIMENTS = ("labour", "credit", "har", "garch", "minibatch", "control-variates", "timing")


def run(name: str, settings: Settings) -> Report:
    """Run one experiment.

    Parameters
    ----------
    name
        One of `EXPERIMENTS`.
    settings
        Seed, effort and the folder of the data.

    Examples
    --------
    >>> run("moon", Settings())
    Traceback (most recent call last):
    ...
    ValueError: `name` must be one of labour, credit, har, ..., timing, got 'moon'
    """
    if name not in EXPERIMENTS:
        msg = f"`name` must be one of {', '.join(EXPERIMENTS)}, got {name!r}"
        raise ValueError(msg)
    module: Any = import_module(f"qbvi.reproduce.{name.replace('-', '_')}")
    with _one_thread():
        report: Report = module.run(settings)
    return report


def _one_thread() -> AbstractContextManager[Any]:
    """Linear algebra in one thread: on matrices as small as these, more are slower."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    limits: AbstractContextManager[Any] = threadpool_limits(1)
    return limits
