"""What is kept of a call to the user's function that gave no usable number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["KINDS", "Failure"]

KINDS = ("nan", "+inf", "-inf", "exception")


@dataclass(frozen=True, eq=False)
class Failure:
    """One failed evaluation: where, why, and how long it took.

    Attributes
    ----------
    parameters
        What the function was given: a dict of arrays, or one array.
    kind
        ``"nan"``, ``"+inf"``, ``"-inf"`` or ``"exception"``.
    message
        The exception's message, or what was returned.
    traceback
        The exception's traceback; empty where none was raised.
    seconds
        Time spent in the call.

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

    def __repr__(self) -> str:
        return f"Failure({self.kind} after {self.seconds:.3g} s at {_where(self.parameters)}: {self.message})"


def _where(parameters: Any) -> str:
    if isinstance(parameters, dict):
        return ", ".join(f"{name}={_short(value)}" for name, value in parameters.items())
    return _short(parameters)


def _short(value: Any) -> str:
    return np.array2string(np.asarray(value), precision=4, threshold=6, edgeitems=2, separator=", ").replace("\n", "")
