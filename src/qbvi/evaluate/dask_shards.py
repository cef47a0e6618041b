"""Parts of the data on the workers of a Dask cluster (the extra ``dask``)."""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import dask
from distributed import Client, Future, get_client

from qbvi.evaluate.black_box import AbandonedError
from qbvi.evaluate.dask import CLUSTER, LOST, lost_of, scattered
from qbvi.evaluate.deadlines import current_deadline, seconds_until, within
from qbvi.evaluate.sharded import PartFunction, Selection, value_on_part
from qbvi.evaluate.shipping import packed
from qbvi.points import Points

__all__ = ["OnWorkers"]

# Attempts at one step when workers die; in each, Dask itself tries several workers.
_MOST_ROUNDS = 3
_LEAST_GRACE = 1.0  # seconds after the deadline for which a step is waited for


class OnWorkers:
    """Parts that stay on the workers; a step is one task for each part.

    When a worker dies, everything that its tasks need can be restored: the function and the points
    are results of tasks, Dask recomputes its own parts, and this process sends its parts again.
    """

    def __init__(self, function: PartFunction, parts: Any, client: Client | None) -> None:
        self._client = client or _current_client()
        self._payload = (uuid.uuid4().hex, packed(function, "function"))
        self._function = self._sent_function()
        # Parts that only this process can send again, if any.
        self._own, self._parts = _placed(self._client, parts)
        self._longest = 0.0  # seconds of the longest step so far

    def __len__(self) -> int:
        return len(self._parts)

    def values(self, points: Points, selection: Selection) -> list[Any]:
        """Return f(points, part) for each selected part, in order."""
        for _ in range(_MOST_ROUNDS - 1):
            try:
                return self._gathered(points, selection)
            except LOST:
                self._restore()
        return self._gathered(points, selection)

    def _gathered(self, points: Points, selection: Selection) -> list[Any]:
        """Values from the workers; those that are not there soon after the deadline never come."""
        deadline = current_deadline()
        grace = max(_LEAST_GRACE, self._longest)
        start, futures = time.monotonic(), self._submitted(points, selection)
        try:
            seconds = None if deadline is None else seconds_until(deadline + grace)
            values = list(within(seconds, lambda: self._client.gather(futures)))
        except TimeoutError:
            raise AbandonedError(CLUSTER, len(futures), grace) from None
        self._longest = max(self._longest, time.monotonic() - start)
        return values

    def _submitted(self, points: Points, selection: Selection) -> list[Future]:
        chosen, rows = selection.parts, selection._replace(parts=())
        there = self._client.submit(_unchanged, points, pure=False)
        each = ([thing] * len(chosen) for thing in (self._function, there, rows))
        # One map: the scheduler receives all tasks in one message.
        return list(self._client.map(_value_there, *each, chosen, [self._parts[k] for k in chosen], pure=False))

    def _restore(self) -> None:
        """Send again what was lost and cannot be recomputed."""
        if self._function.status != "finished":
            self._function = self._sent_function()
        gone = lost_of(self._client, self._parts)
        if self._own is not None:
            for k in gone:
                self._parts[k] = scattered(self._client, self._own[k])
        elif any(self._parts[k].status in ("cancelled", "lost") for k in gone):  # Dask recomputes the others
            msg = f"parts {gone} are gone with their workers and cannot be made again: give `parts` as delayed values, which can"
            raise RuntimeError(msg)

    def _sent_function(self) -> Future:
        return self._client.submit(_unchanged, self._payload, pure=False)


def _placed(client: Client, parts: Any) -> tuple[Sequence[Any] | None, list[Future]]:
    """Put the parts on the workers.

    Return those that only this process has, if any, and the futures of all.
    """
    if isinstance(parts, list | tuple) and all(isinstance(part, Future) for part in parts):
        return None, list(parts)
    if hasattr(parts, "to_delayed"):
        return None, client.compute(_delayed(parts))
    if isinstance(parts, list | tuple) and all(dask.is_dask_collection(part) for part in parts):
        return None, client.compute(list(parts))
    own = list(parts)
    return own, scattered(client, own)


def _delayed(collection: Any) -> list[Any]:
    if getattr(collection, "ndim", 1) > 1 and hasattr(collection, "chunks"):
        # A part has whole rows.
        collection = collection.rechunk({axis: -1 for axis in range(1, collection.ndim)})
    delayed = collection.to_delayed()
    return list(delayed.ravel() if hasattr(delayed, "ravel") else delayed)


def _current_client() -> Client:
    try:
        return get_client()
    except ValueError as error:
        msg = "`parts` lie in Dask, which needs workers to hold them: start a distributed.Client first, or pass client="
        raise ValueError(msg) from error


def _unchanged(thing: Any) -> Any:
    return thing


def _value_there(payload: tuple[str, bytes], points: Points, selection: Selection, k: int, part: Any) -> Any:
    return value_on_part(_loaded(*payload), points, part, k, selection)


_LOADED: dict[str, Callable[..., Any]] = {}


def _loaded(token: str, payload: bytes) -> Callable[..., Any]:
    """Unpickle once per process. A worker keeps the functions of the last few likelihoods."""
    if token not in _LOADED:
        for old in list(_LOADED)[:-3]:
            del _LOADED[old]
        _LOADED[token] = pickle.loads(payload)
    return _LOADED[token]
