"""What the loop exchanges with those who answer it: requests, evaluations, starts, snapshots."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.evaluate import Evaluated, Failure
from qbvi.evaluations import Recorded
from qbvi.points import count, items
from qbvi.results import Fit

__all__ = ["Conversation", "Iterate", "Kept", "Request", "Snapshot", "Unconstrained", "drive"]

Floats = NDArray[np.float64]


class Unconstrained(NamedTuple):
    """A start on the unconstrained scale."""

    u: Floats  # (d,)
    cov: Floats | None = None  # (d, d); the default is the method's own


class Iterate(NamedTuple):
    """The argument of a callback: the posterior after a step, on the unconstrained scale."""

    n_evals: int
    elbo: float  # estimate of the bound at the posterior before the step
    gap: float  # predicted gain of further steps, in nats
    mean: Floats  # (d,)
    cov: Floats  # (d, d)


@dataclass(frozen=True, eq=False)
class Request:
    """Points at which the loop needs values of the function."""

    number: int  # of this request in its run, from zero
    points: Any  # stacked constrained values: (n, *shape), or a dict of them
    batch: tuple[Any, ...] = ()  # rows of the data, if there are any
    scale: float = 1.0  # factor of the values that makes up for the rows left out

    @property
    def size(self) -> int:
        """Number of points."""
        return count(self.points)

    @cached_property
    def digest(self) -> bytes:
        """A hash of these points: the same only if all are equal to the last bit."""
        digest = hashlib.blake2b(digest_size=16)
        for name, array in items(self.points):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(array, dtype=np.float64).data)
        return digest.digest()


Conversation = Generator[Request, Evaluated, Fit]


class Kept(NamedTuple):
    """A q, and residuals at draws from it: (n,) or, with mini-batches, (batches, n)."""

    q: Array
    h: Floats


class Snapshot(NamedTuple):
    """All that a run needs to continue as if it had never stopped: plain data and arrays."""

    number: int  # of the next request
    state: Any  # of the method; None before the first step
    generators: tuple[dict[str, Any], ...]  # states of the random number generators
    history: dict[str, NDArray[Any]]
    kept: Kept | None  # the q that would be returned now
    dark: int  # consecutive steps without a finite value
    looks: int  # how often fresh draws have checked a convergence
    n_evals: int
    failures: tuple[Failure, ...]
    seconds: float
    recorded: Recorded | None  # all points so far


def drive(conversation: Conversation, answer: Callable[[Request], Evaluated]) -> Fit:
    """Answer every request of a run, and return its fit.

    An error in ``answer`` is passed to the run, which may return the fit so far.
    """
    try:
        request = next(conversation)
        while True:
            try:
                evaluations = answer(request)
            except BaseException as error:  # noqa: BLE001 - Ctrl-C too: the run returns what it has
                request = conversation.throw(error)
            else:
                request = conversation.send(evaluations)
    except StopIteration as end:
        fit: Fit = end.value
        return fit
