"""Many steps in one compiled program: how many of them, what they need, and which points failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.core import Core, Engine, Inputs, Iteration
from qbvi.evaluate import DeviceBatches, DeviceBox
from qbvi.stopping import History, Rule

__all__ = ["Chunk", "CompiledSteps", "Replay"]

_LONGEST = 64  # steps of a chunk
_CHUNK_BYTES = 2**26  # of all that a chunk keeps of its steps
_CHUNK_SECONDS = 0.5  # that a chunk may take: in between are progress, Ctrl-C and the clock


class Chunk(NamedTuple):
    """Some steps, made at once."""

    before: Any  # state before the first of them
    state: Any  # and after the last
    iterations: list[Iteration]  # on the host, but for the q that each one left
    raw: NDArray[Any]  # (steps, n) what the function returned
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
        Rows of the data, where the function is given any.
    state
        The run's first state: its shapes are those of the program.
    most
        Steps after which the loop must look in any case, as a callback wants it after each.
    """

    def __init__(
        self, engine: Engine, box: DeviceBox, batches: DeviceBatches | None, state: Any, most: int = _LONGEST
    ) -> None:
        self._engine, self._box, self._batches = engine, box, batches
        self._core, self.n = self._planned(state, most)
        self._most = 1  # steps of the next chunk, as far as the clock allows

    def make(self, state: Any, history: History, rules: tuple[Rule, ...]) -> Chunk:
        """Make as many steps as no rule can apply before, and as the clock allows."""
        steps = max(1, min(self._most, *(rule.soonest(history) for rule in rules)))
        inputs = self._inputs(steps, len(history))
        backend = self._engine.backend
        with backend.active():
            reached, iterations, raw, end = self._advance(state, steps, inputs)
            on_host, raw, end = backend.fetch((iterations._replace(left=None), raw, end))
            made = [_at(on_host, i)._replace(left=iterations.left[i, ...]) for i in range(int(end))]
        return Chunk(state, reached, made, raw[: len(made)], inputs)

    def pace(self, seconds: float) -> None:
        """Choose the length of the next chunk by what a step took."""
        self._most = min(2 * self._most, self._core.most_steps, max(1, int(_CHUNK_SECONDS / seconds)))

    def replay(self, chunk: Chunk) -> Replay:
        """A way to the points of the steps of a chunk."""
        return Replay(self._engine, self._advance, chunk)

    def _planned(self, state: Any, most: int) -> tuple[Core, int]:
        """Choose how many points go into a call, and how many steps into a chunk."""
        engine, batches, core = self._engine, self._batches, self._engine.core
        backend, stop = engine.backend, core.algorithm.stop
        with backend.active():
            theta = backend.shaped(core.ask, state, engine.key, engine.number(0))
            self._box.plan(backend.shaped(core.points, theta), () if batches is None else (batches.example,))
        each = (core.family.n_stored + 2 * theta.shape[0]) * np.dtype(backend.dtype).itemsize
        pause = max(rule.pause_below for rule in stop)
        most = max(1, min(most, _LONGEST, _CHUNK_BYTES // each, *(rule.soonest(History()) for rule in stop)))
        if batches is not None and batches.is_partial and pause > -np.inf:
            most = 1  # rows are drawn ahead: a chunk that ended early would have drawn too many
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

    def _advance(self, state: Any, steps: int, inputs: Inputs) -> tuple[Any, Iteration, Array, Array]:
        with self._engine.backend.explained():
            made: tuple[Any, Iteration, Array, Array] = self._engine.call(
                self._core, "advance", state, self._engine.number(steps), inputs
            )
        return made


class Replay:
    """The points of single steps of a chunk, for naming those that failed: the steps before are made again."""

    def __init__(self, engine: Engine, advance: Callable[[Any, int, Inputs], tuple[Any, ...]], chunk: Chunk) -> None:
        self._engine, self._advance, self._inputs = engine, advance, chunk.inputs
        self._state, self._made = chunk.before, 0

    def points(self, i: int) -> Any:
        """What the function was given in step ``i``; steps must be named in their order."""
        self._state, *_ = self._advance(self._state, i - self._made, self._from(self._made))
        self._made = i
        theta = self._engine.call(self._engine.core, "ask", self._state, self._inputs.key, self._from(i).t)
        return self._engine.points(theta)

    def _from(self, i: int) -> Inputs:
        """The inputs as step ``i`` of the chunk sees them."""
        rows = self._inputs.rows
        later = None if rows is None else self._engine.backend.namespace.roll(rows, -i, axis=0)
        return self._inputs._replace(t=self._inputs.t + i, rows=later)


def _at(iterations: Iteration, i: int) -> Iteration:
    """One of stacked iterations."""
    info = type(iterations.info)(*(part[i] for part in iterations.info))
    return Iteration(info, None, iterations.mean[i], iterations.sd[i])
