"""Record: what a run has evaluated so far, and what it was given."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import to_numpy
from qbvi.evaluations.table import STAGES, Evaluations
from qbvi.model import Model

__all__ = ["Record", "Recorded"]

Floats = NDArray[np.float64]

_GIVEN = STAGES.index("given")
# Most numbers (points times dimensions) that a record keeps of a run's own points: 128 MiB.
_MOST_NUMBERS = 2**24
# A number that the function returns at so many different points, so many nats below its best value,
# stands for minus infinity: a smooth function takes the same value twice only by a symmetry, and a
# plateau so low has no mass.
_FEWEST_EQUAL = 3
_FAR_BELOW = 1000.0


class Recorded(NamedTuple):
    """Points of a run as plain arrays, in order."""

    theta: Floats  # (N, d) unconstrained
    value: Floats  # (N,) as the function returned it
    noise_sd: Floats  # (N,)
    stage: NDArray[np.int8]  # (N,) place in `STAGES`
    batch: NDArray[np.int64]  # (N,) number of the request
    n_dropped: int  # older points that are not kept
    is_exact: bool  # whether the given values are those of a function without noise

    @classmethod
    def empty(cls, d: int) -> Recorded:
        """No points."""
        none = np.empty(0)
        return cls(np.empty((0, d)), none, none, np.empty(0, np.int8), np.empty(0, np.int64), 0, False)


_COLUMNS = Recorded._fields[:5]


class Record:
    """The points of a run, oldest first, those that were given to it before all others.

    Of its own points a run keeps the newest that fit into 128 MiB. Values that were given are
    looked up by the bytes of the point, so the function is not called there again.
    """

    def __init__(self, d: int) -> None:
        self._parts, self._n_dropped, self._size = [Recorded.empty(d)], 0, 0
        self._values: dict[bytes, float] = {}

    @property
    def n_given(self) -> int:
        """Number of points that were given."""
        return len(self._parts[0].value)

    @property
    def n_own(self) -> int:
        """Number of points that the run has evaluated, those that are not kept included."""
        return self._n_dropped + sum(len(part.value) for part in self._parts[1:])

    @property
    def n_dropped(self) -> int:
        """Number of older points that are not kept."""
        return self._n_dropped

    @property
    def n_constant(self) -> int:
        """Number of points, if the function had the same value at all of them; else zero."""
        parts = [part.value for part in self._parts if len(part.value)]
        first = parts[0][0] if parts else np.nan
        is_constant = bool(parts) and all(bool(np.all(values == first)) for values in parts)
        return sum(map(len, parts)) if is_constant else 0

    def stand_ins(self, newest: int) -> NDArray[np.bool_]:
        """Which of the newest values stand for a likelihood of zero, such as -1e10: (newest,).

        As long as the function has returned one number alone, this is compared with zero.

        Examples
        --------
        >>> record = Record(1)
        >>> theta, values = np.arange(5.0)[:, None], np.array([-1e10, -3.0, -1e10, -1e10, -2.0])
        >>> record.add(theta, values, np.zeros(5), "step")
        >>> record.stand_ins(3)
        array([ True,  True, False])
        """
        values = np.concatenate([part.value for part in self._parts])
        new = values[len(values) - newest :]
        return np.isin(new, self._recurring(values, new))

    @property
    def recurring(self) -> tuple[float, ...]:
        """All numbers that stand for a likelihood of zero."""
        values = np.concatenate([part.value for part in self._parts])
        return tuple(self._recurring(values, values))

    def _recurring(self, values: Floats, some: Floats) -> list[float]:
        """Those of some values that stand for minus infinity among all values (N,) so far."""
        finite = values[np.isfinite(values)]
        best = float(np.max(finite, initial=-np.inf))
        best = 0.0 if np.all(finite == best) else best
        low = np.unique(some[np.isfinite(some) & (some < best - _FAR_BELOW)]).tolist()
        if not low:
            return []
        theta = np.concatenate([part.theta for part in self._parts])
        return [value for value in low if len(np.unique(theta[values == value], axis=0)) >= _FEWEST_EQUAL]

    def give(self, given: Recorded) -> None:
        """Take the points that were given to the run."""
        self._parts[0] = given
        finite = np.flatnonzero(np.isfinite(given.value) & given.is_exact)
        self._values = {given.theta[i].tobytes(): float(given.value[i]) for i in finite}

    def add(self, theta: Floats, value: Floats, noise_sd: Floats, stage: str) -> None:
        """Add a batch that the function was evaluated at."""
        n = len(value)
        noise_sd = np.where(np.isfinite(noise_sd), np.abs(noise_sd), 0.0)  # a failed call may return anything
        code, batch = np.full(n, STAGES.index(stage), np.int8), np.full(n, self._next_batch(), np.int64)
        self._parts.append(Recorded(np.array(theta), np.array(value), noise_sd, code, batch, 0, False))
        self._size += self._parts[-1].theta.size
        while len(self._parts) > 2 and self._size > _MOST_NUMBERS:
            oldest = self._parts.pop(1)
            self._size -= oldest.theta.size
            self._n_dropped += len(oldest.value)

    def known(self, theta: Floats) -> dict[int, float]:
        """Given values at some of the points, by row."""
        if not self._values:
            return {}
        found = ((i, self._values.get(np.ascontiguousarray(point).tobytes())) for i, point in enumerate(theta))
        return {i: value for i, value in found if value is not None}

    def recorded(self, newest: int = 0) -> Recorded:
        """All points as plain arrays, without so many of the newest."""
        columns = {name: np.concatenate([getattr(part, name) for part in self._parts]) for name in _COLUMNS}
        kept = slice(len(columns["value"]) - newest)
        return Recorded(
            **{name: column[kept] for name, column in columns.items()},
            n_dropped=self._n_dropped,
            is_exact=self._parts[0].is_exact,
        )

    def restore(self, recorded: Recorded) -> None:
        """Continue the record of an interrupted run."""
        is_given = recorded.stage == _GIVEN
        self.give(_rows(recorded, is_given)._replace(is_exact=recorded.is_exact))
        own = recorded.batch[~is_given]
        self._parts[1:] = [_rows(recorded, ~is_given & (recorded.batch == number)) for number in np.unique(own)]
        self._size = sum(part.theta.size for part in self._parts[1:])
        self._n_dropped = recorded.n_dropped

    def table(self, model: Model) -> Evaluations:
        """The record on both scales."""
        held = self.recorded()
        return Evaluations(
            labels=tuple(model.labels),
            points=to_numpy(model.flatten(model.constrain(held.theta))),
            values=held.value,
            noise_sd=held.noise_sd,
            unconstrained=held.theta,
            log_prior=to_numpy(model.log_prior(held.theta)) if len(held.value) else np.empty(0),
            stage=np.array(STAGES)[held.stage],
            batch=held.batch,
        )

    def _next_batch(self) -> int:
        last = next((part.batch for part in reversed(self._parts) if len(part.batch)), None)
        return 0 if last is None else 1 + int(last.max())


def _rows(recorded: Recorded, which: NDArray[np.bool_]) -> Recorded:
    return Recorded(**{name: getattr(recorded, name)[which] for name in _COLUMNS}, n_dropped=0, is_exact=False)
