"""Parts of the data on the workers of a Dask cluster (the extra ``dask``)."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import dask
from distributed import Client, Future, get_client, wait

from qbvi.evaluate.calls import Points
from qbvi.evaluate.sharded import PartFunction, Selection, value_on_part
from qbvi.evaluate.shipping import packed

__all__ = ["OnWorkers"]

_MOST_ROUNDS = 5  # times that parts which were lost are brought back and asked again in one step


class OnWorkers:
    """Parts that stay on the workers; a step is one task for each.

    All that a task needs can be had again when a worker dies: the function and the points are tasks themselves, Dask parts have their recipe, and parts that
    came from this process are sent again.
    """

    def __init__(self, function: PartFunction, parts: Any, client: Client | None) -> None:
        self._client = client or _current_client()
        payload = packed(function, "function")
        self._token = uuid.uuid4().hex
        self._function = self._client.submit(_unchanged, payload, key=f"qbvi-function-{self._token}")
        self._own, self._parts = _placed(self._client, parts)

    def __len__(self) -> int:
        return len(self._parts)

    def values(self, points: Points, selection: Selection) -> list[Any]:
        """Return f(points, part) for each selected part, in order."""
        there = self._client.submit(_unchanged, points, pure=False)
        futures = {k: self._asked(k, there, selection) for k in selection.parts}
        for _ in range(_MOST_ROUNDS):
            wait(list(futures.values()))
            lost = [k for k, future in futures.items() if future.status in ("cancelled", "lost")]
            if not lost:
                break
            for k in lost:
                self._bring_back(k)
                futures[k] = self._asked(k, there, selection)
        return list(self._client.gather(list(futures.values())))

    def _asked(self, k: int, points: Future, selection: Selection) -> Future:
        alone = Selection((k,), selection.rows_per_part, selection.seed)
        return self._client.submit(_value_there, self._token, self._function, points, self._parts[k], alone, pure=False)

    def _bring_back(self, k: int) -> None:
        if self._own is not None and self._parts[k].status != "finished":
            self._parts[k] = self._client.scatter(self._own[k], hash=False)


def _placed(client: Client, parts: Any) -> tuple[Sequence[Any] | None, list[Future]]:
    """Put the parts on the workers; return those that can only come from here, and the futures of all."""
    if isinstance(parts, list | tuple) and all(isinstance(part, Future) for part in parts):
        return None, list(parts)
    if hasattr(parts, "to_delayed"):
        return None, client.compute(_delayed(parts))
    if isinstance(parts, list | tuple) and all(dask.is_dask_collection(part) for part in parts):
        return None, client.compute(list(parts))
    own = list(parts)
    return own, client.scatter(own, hash=False)


def _delayed(collection: Any) -> list[Any]:
    if getattr(collection, "ndim", 1) > 1 and hasattr(collection, "chunks"):
        collection = collection.rechunk({axis: -1 for axis in range(1, collection.ndim)})  # a part has whole rows
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


def _value_there(token: str, payload: bytes, points: Points, part: Any, selection: Selection) -> Any:
    return value_on_part(_loaded(token, payload), points, part, selection.parts[0], selection)


_LOADED: dict[str, Callable[..., Any]] = {}


def _loaded(token: str, payload: bytes) -> Callable[..., Any]:
    """Unpickle once per process; a worker keeps the functions of the last few likelihoods."""
    if token not in _LOADED:
        for old in list(_LOADED)[:-3]:
            del _LOADED[old]
        _LOADED[token] = pickle.loads(payload)
    return _LOADED[token]
