"""Many steps in one compiled program: how many, with which inputs, and which points failed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.core import Core, Engine, Inputs, Iteration
from qbvi.evaluate import DeviceBatches, DeviceBox
from qbvi.stopping import History, Rule

__all__ = ["Chunk", "CompiledSteps", "Replay"]

_LONGEST = 64  # most steps of a chunk
_CHUNK_BYTES = 2**26  # most memory for the results of a chunk's steps
# Seconds that a chunk may take: progress, Ctrl-C and the time limit are handled between chunks.
_CHUNK_SECONDS = 0.5


# Seconds of a step of each program that is still in memory: a second fit begins with long chunks.
_PACES: WeakKeyDictionary[Core, float] = WeakKeyDictionary()


class Chunk(NamedTuple):
    """The result of one compiled chunk of steps."""

    before: Any  # state before the first step
    state: Any  # state after the last step
    iterations: list[Iteration]  # on the host, except the q before each step
    raw: NDArray[Any]  # (steps, n) values that the function returned
    inputs: Inputs


class CompiledSteps:
    """A program of many steps for one run.

    Parameters
    ----------
    engine
        Model, family and method on a backend that compiles.
    box
        The user's function on that backend.
    batches
        Rows of the data, if the function takes any.
    state
        The run's first state: it gives the shapes of the program.
    most
        Most steps of a chunk; one if a callback must run after each.
    """

    def __init__(
        self, engine: Engine, box: DeviceBox, batches: DeviceBatches | None, state: Any, most: int = _LONGEST
    ) -> None:
        self._engine, self._box, self._batches = engine, box, batches
        self._core, self.n = self._planned(state, most)
        known = _PACES.get(self._core)
        self._most = 1 if known is None else self._affordable(known)  # steps that the next chunk has time for

    def make(self, state: Any, history: History, rules: tuple[Rule, ...]) -> Chunk:
        """Make steps until a stopping rule may apply or the time of a chunk is over."""
        steps = max(1, min(self._most, *(rule.soonest(history) for rule in rules)))
        inputs = self._inputs(steps, len(history))
        backend = self._engine.backend
        with backend.active():
            reached, iterations, raw, end = self._advance(state, steps, inputs)
            on_host, raw, end = backend.fetch((iterations._replace(left=None), raw, end))
            made = [_at(on_host, i)._replace(left=self._left(iterations, i)) for i in range(int(end))]
        return Chunk(state, reached, made, raw[: len(made)], inputs)

    def pace(self, seconds: float) -> None:
        """Choose the length of the next chunk, given the time of one step."""
        _PACES[self._core] = seconds
        self._most = min(2 * self._most, self._affordable(seconds))

    def _affordable(self, seconds: float) -> int:
        """Steps of this duration that a chunk has time for."""
        return min(self._core.most_steps, max(1, int(_CHUNK_SECONDS / seconds)))

    def replay(self, chunk: Chunk) -> Replay:
        """Access to the points of the steps of a chunk."""
        return Replay(self._engine, self._advance, chunk)

    def _planned(self, state: Any, most: int) -> tuple[Core, int]:
        """Choose how many points go into a call, and how many steps into a chunk."""
        engine, batches, core = self._engine, self._batches, self._engine.core
        backend, stop = engine.backend, core.algorithm.stop
        with backend.active():
            theta = backend.shaped(core, "ask", state, engine.key, engine.number(0))
            self._box.plan(backend.shaped(core, "points", theta), () if batches is None else (batches.example,))
        each = (core.family.n_stored + 2 * theta.shape[0]) * np.dtype(backend.dtype).itemsize
        pause = max((rule.pause_below for rule in stop), default=-math.inf)
        most = max(1, min(most, _LONGEST, _CHUNK_BYTES // each, *(rule.soonest(History()) for rule in stop)))
        if batches is not None and batches.is_partial and pause > -math.inf:
            most = 1  # rows are drawn in advance: a chunk that ends early would have drawn too many
        assert isinstance(self._box.on_failure, str)
        parts = core.model, core.family, core.algorithm, backend
        return Core(*parts, self._box.likelihood, self._box.on_failure, most, pause), int(theta.shape[0])

    def _inputs(self, steps: int, t: int) -> Inputs:
        engine, batches, rows = self._engine, self._batches, None
        if batches is not None and batches.is_partial:
            drawn = [batches.rows(engine.rows) for _ in range(steps)]
            rows = np.stack(drawn + drawn[-1:] * (self._core.most_steps - steps))
        scale = np.asarray(1.0 if batches is None else batches.scale)
        there = engine.backend.put((np.asarray(t, dtype=np.int32), rows, scale))
        data = None if batches is None else batches.data
        return Inputs(engine.key, there[0], engine.core.eta, data, there[1], there[2])

    def _left(self, iterations: Iteration, i: int) -> Array:
        """The q before step ``i``, which stays on the device."""
        return self._engine.call(self._engine.core, "row", iterations.left, self._engine.number(i))

    def _advance(self, state: Any, steps: int, inputs: Inputs) -> tuple[Any, Iteration, Array, Array]:
        with self._engine.backend.explained():
            made: tuple[Any, Iteration, Array, Array] = self._engine.call(
                self._core, "advance", state, self._engine.number(steps), inputs
            )
        return made


class Replay:
    """Finds the points of single steps of a chunk, to report those that failed.

    A chunk does not keep its points, so the steps up to the one in question are made again.
    """

    def __init__(self, engine: Engine, advance: Callable[[Any, int, Inputs], tuple[Any, ...]], chunk: Chunk) -> None:
        self._engine, self._advance, self._inputs = engine, advance, chunk.inputs
        self._state, self._made = chunk.before, 0

    def points(self, i: int) -> Any:
        """The function's argument in step ``i``; calls must have increasing ``i``."""
        self._state, *_ = self._advance(self._state, i - self._made, self._from(self._made))
        self._made = i
        theta = self._engine.call(self._engine.core, "ask", self._state, self._inputs.key, self._from(i).t)
        return self._engine.points(theta)

    def _from(self, i: int) -> Inputs:
        """The inputs of a chunk that begins with step ``i``."""
        rows = self._inputs.rows
        later = None if rows is None else self._engine.backend.namespace.roll(rows, -i, axis=0)
        return self._inputs._replace(t=self._inputs.t + i, rows=later)


def _at(iterations: Iteration, i: int) -> Iteration:
    """Iteration ``i`` of a stack of them."""
    info = type(iterations.info)(*(part[i] for part in iterations.info))
    return Iteration(info, None, iterations.mean[i], iterations.sd[i])
