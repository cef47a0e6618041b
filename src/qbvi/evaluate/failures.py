"""What is kept of a call that gave no usable number, and what is done about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.naming import pick
from qbvi.points import items

__all__ = ["KINDS", "Failure", "OnFailure", "Treatment", "check_on_failure", "treatment_of"]

KINDS = ("nan", "+inf", "-inf", "exception", "timeout", "died")


@dataclass(frozen=True, eq=False)
class Failure:
    """One failed evaluation: where, why, how long it took, and who made it.

    Attributes
    ----------
    parameters
        What the function was given: a dict of arrays, or one array.
    kind
        ``"nan"``, ``"+inf"``, ``"-inf"``, ``"exception"``, ``"timeout"`` (the call was ended after ``timeout`` seconds) or ``"died"`` (its process
        was lost: a crash, or no memory left).
    message
        The exception's message, or what was returned.
    traceback
        The exception's traceback; empty where none was raised.
    seconds
        Time spent in the call.
    worker
        Name of the process or cluster worker that made the call; empty for a call in the process of the fit.
    types
        Full names of the exception's class and its bases; empty where none was raised.

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
        """Whether it was an exception of this class, or of one derived from it."""
        return full_name(error) in self.types

    def __repr__(self) -> str:
        by = f" in {self.worker}" if self.worker else ""
        return f"Failure({self.kind} after {self.seconds:.3g} s{by} at {_where(self.parameters)}: {self.message})"


Treatment = str | Callable[[Failure], float]  # "raise", "exclude", "floor", or a function that gives a value instead
OnFailure = Treatment | Mapping[str | type[BaseException], Treatment]

_TREATMENTS = dict.fromkeys(("raise", "exclude", "floor"))


def check_on_failure(on_failure: Any) -> None:
    """Refuse what is no policy."""
    if not isinstance(on_failure, Mapping):
        _check_treatment(on_failure)
        return
    for key, treatment in on_failure.items():
        if not isinstance(key, str) and not (isinstance(key, type) and issubclass(key, Exception)):
            msg = (
                f"`on_failure` must have kinds of failure ({', '.join(KINDS)}) or exception types as keys, got {key!r}"
            )
            raise TypeError(msg)
        pick("on_failure", key, dict.fromkeys(KINDS))
        _check_treatment(treatment)


def treatment_of(failure: Failure, on_failure: OnFailure) -> Treatment:
    """Look up what is to be done: one treatment for all, or by exception type (the closest base first), then by kind; else raise.

    Examples
    --------
    >>> import numpy as np
    >>> failure = Failure(
    ...     np.zeros(2), "exception", "ValueError: no root", types=("builtins.ValueError", "builtins.Exception")
    ... )
    >>> treatment_of(failure, {ValueError: "exclude", "nan": "floor"})
    'exclude'
    >>> treatment_of(failure, {"nan": "floor"})
    'raise'
    """
    if not isinstance(on_failure, Mapping):
        return on_failure
    by_type = {full_name(key): treatment for key, treatment in on_failure.items() if isinstance(key, type)}
    listed = [by_type[name] for name in failure.types if name in by_type]
    return listed[0] if listed else on_failure.get(failure.kind, "raise")


def full_name(error: type[BaseException]) -> str:
    """Name of a class with its module: what remains of an exception's type on the way back from another process."""
    return f"{error.__module__}.{error.__qualname__}"


def _check_treatment(treatment: Any) -> None:
    if not (isinstance(treatment, str) or callable(treatment)):
        msg = (
            "`on_failure` must be 'raise', 'exclude', 'floor', a function, or a dict of these by kind of failure "
            f"({', '.join(KINDS)}) or exception type, got {treatment!r}"
        )
        raise TypeError(msg)
    pick("on_failure", treatment, _TREATMENTS)


def _where(parameters: Any) -> str:
    return ", ".join(f"{name}={_short(value)}" if name else _short(value) for name, value in items(parameters))


def _short(value: Any) -> str:
    return np.array2string(np.asarray(value), precision=4, threshold=6, edgeitems=2, separator=", ").replace("\n", "")
