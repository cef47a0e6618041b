"""The record of a call that gave no usable number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.points import items

__all__ = ["KINDS", "Failure", "failure_of_value", "full_name"]

KINDS = ("nan", "+inf", "-inf", "exception", "timeout", "died")


@dataclass(frozen=True, eq=False)
class Failure:
    """One failed evaluation: where, why, how long it took, and in which process.

    Attributes
    ----------
    parameters
        The point: a dict of arrays, or one array.
    kind
        One of ``"nan"``, ``"+inf"``, ``"-inf"``, ``"exception"``, ``"timeout"`` (the call was ended
        after ``timeout`` seconds) and ``"died"`` (the process of the call ended: a crash, or no
        memory left).
    message
        The exception's message, or the value that the function returned.
    traceback
        The exception's traceback; empty if there was no exception.
    seconds
        Time spent in the call.
    worker
        Name of the process or cluster worker that made the call; empty for a call in the process of
        the fit.
    types
        Full names of the exception's class and its bases; empty if there was no exception.

    Examples
    --------
    >>> import numpy as np
    >>> Failure({"sigma": np.array(0.5)}, "exception", "ValueError: no root", "", 0.2)
    Failure(exception after 0.2 s at sigma=0.5: ValueError: no root)
    """

    parameters: NDArray[np.float64] | dict[str, NDArray[np.float64]]
    kind: str
    message: str
    traceback: str = ""
    seconds: float = 0.0
    worker: str = ""
    types: tuple[str, ...] = ()

    def is_a(self, error: type[BaseException]) -> bool:
        """Whether it is an exception of this class, or of one derived from it."""
        return full_name(error) in self.types

    def __repr__(self) -> str:
        by = f" in {self.worker}" if self.worker else ""
        return f"Failure({self.kind} after {self.seconds:.3g} s{by} at {_where(self.parameters)}: {self.message})"


def failure_of_value(point: Any, value: float, seconds: float = 0.0) -> Failure | None:
    """The failure of a call that returned ``value`` at a point; None where the value is finite.

    Examples
    --------
    >>> failure_of_value(np.array(0.5), float("-inf"))
    Failure(-inf after 0 s at 0.5: returned -inf)
    """
    if np.isfinite(value):
        return None
    kind = "nan" if np.isnan(value) else "+inf" if value > 0 else "-inf"
    return Failure(point, kind, f"returned {value}", seconds=seconds)


def full_name(error: type[BaseException]) -> str:
    """Name of a class with its module. Workers send this name in place of the exception's type."""
    return f"{error.__module__}.{error.__qualname__}"


def _where(parameters: Any) -> str:
    return ", ".join(f"{name}={_short(value)}" if name else _short(value) for name, value in items(parameters))


def _short(value: Any) -> str:
    return np.array2string(np.asarray(value), precision=4, threshold=6, edgeitems=2, separator=", ").replace("\n", "")
