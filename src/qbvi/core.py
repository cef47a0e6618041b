"""One step as pure functions of arrays: ask, evaluate, tell.

The loop calls them step by step, or compiles many steps into one program.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrange import KnownPrior
from qbvi.arrays import Array, array_namespace, to_numpy
from qbvi.backends import Backend
from qbvi.evaluate import Evaluated
from qbvi.evaluate.on_device import DeviceFunction, Identity, taken
from qbvi.evaluate.policy import replace_failed
from qbvi.families import Family
from qbvi.model import Model, Parameter
from qbvi.protocol import Algorithm, Info, Values
from qbvi.random import Independent, Stream, Streams, seed_words

__all__ = ["LARGEST_TRACED", "Core", "Engine", "FreshDraws", "Inputs", "Iteration"]

LARGEST_TRACED = 10_000  # most dimensions for which every step keeps mean and standard deviations


class Iteration(NamedTuple):
    """One iteration: the method's report and the q before the step, on the backend or the host."""

    info: Info
    left: Array  # the q before the step
    mean: Array  # (d,) of that q; empty above `LARGEST_TRACED` dimensions
    sd: Array  # (d,) likewise


class Inputs(NamedTuple):
    """Inputs of a compiled chunk of steps: arrays that change between fits or between chunks."""

    key: Array  # (2,) of the random numbers
    t: Array  # () number of the first step
    eta: Array  # (k,) the prior's part of the natural parameter
    data: Any  # None, or a tree of arrays
    rows: Array | None  # (most_steps, M) rows of the mini-batch of each step
    scale: Array  # () factor of the values that makes up for the rows left out


@dataclass(frozen=True, eq=False)
class Core:
    """Model, family and method on a backend; two are equal if they compile to the same program.

    Parameters
    ----------
    model, family, algorithm, backend
        As for `qbvi.run.Run`.
    likelihood
        The user's function, if it is compiled into the steps.
    on_failure
        ``"raise"``, ``"exclude"`` or ``"floor"``: what a compiled step does with failed points.
    most_steps
        Most steps of a compiled chunk.
    pause_below
        A step that predicts a gap below this, in nats, ends its chunk.
    """

    model: Model
    family: Family
    algorithm: Algorithm
    backend: Backend
    likelihood: DeviceFunction | None = None
    on_failure: str = "raise"
    most_steps: int = 1
    pause_below: float = -math.inf
    _prior: KnownPrior = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_prior", KnownPrior(self.model, self.family))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Core) and self._key == other._key

    @cached_property
    def eta(self) -> Array:
        """The part of the prior that the family includes in closed form, on the backend."""
        return self.backend.put(self._prior.eta)

    def start(self, q: Array) -> Any:
        """The state before the first step."""
        return self.algorithm.init(self.family, q)

    def ask(self, state: Any, key: Array, t: Array) -> Array:
        """The points of step ``t``: (n, d)."""
        return self.algorithm.ask(self.family, state, self.stream(key, t))

    def points(self, theta: Array) -> Any:
        """The function's argument: stacked constrained values."""
        return self.model.constrain(theta)

    def values(self, theta: Array, evaluations: Evaluated) -> Values:
        """Add the prior to the function's values (n,)."""
        likelihood = evaluations.values
        log_joint = likelihood + self.model.log_prior(theta)
        f = likelihood + self._prior.remaining(theta)
        return Values(f, log_joint, evaluations.ok, evaluations.noise_sd, evaluations.zero)

    def tried(self, theta: Array) -> tuple[Any, Values]:
        """Points and values for any numbers: they show whether model and prior run on a backend."""
        some = theta[:, 0]
        return self.points(theta), self.values(theta, Evaluated(some, some == 0, some))

    def row(self, stacked: Array, i: Array) -> Array:
        """Entry ``i`` along the first axis."""
        return stacked[i, ...]

    def tell(self, eta: Array, state: Any, theta: Array, values: Values) -> tuple[Any, Iteration]:
        """The next state, and the iteration."""
        left = state.q
        state, info = self.algorithm.tell(self.family, eta, state, theta, values)
        mean, sd = self.family.mean(left), self.family.sd(left)
        if self.family.dim > LARGEST_TRACED:
            mean, sd = mean[:0], sd[:0]
        return state, Iteration(info, left, mean, sd)

    def residual(self, q: Array, theta: Array, log_joint: Array) -> Array:
        """``log p(y, theta) - log q(theta)``: (n,)."""
        return self.family.residual(q, theta, log_joint)

    def advance(self, state: Any, steps: Array, inputs: Inputs) -> tuple[Any, Iteration, Array, Array]:
        """Make up to ``steps`` steps, at most `most_steps`.

        A step that predicts a gap below `pause_below` is the last, so that the stopping rules can
        read it.

        Returns
        -------
        state, iterations, raw, end
            The new state; the iterations and the function's raw values, stacked along a first axis
            of length `most_steps`, of which the first ``end`` are filled; the number of steps made.
        """

        def turn(carry: tuple[Any, Array], i: Array) -> tuple[tuple[Any, Array], tuple[Iteration, Array]]:
            state, end = carry
            state, iteration, raw = self._step(state, i, inputs)
            is_small = iteration.info.gap < self.pause_below
            return (state, array_namespace(end).where(is_small, i + 1, end)), (iteration, raw)

        (state, end), (iterations, raw) = self.backend.repeated(
            turn, lambda carry, i: i < carry[1], (state, steps), self.most_steps
        )
        return state, iterations, raw, end

    def _step(self, state: Any, i: Array, inputs: Inputs) -> tuple[Any, Iteration, Array]:
        assert self.likelihood is not None
        theta = self.ask(state, inputs.key, inputs.t + i)
        xp = array_namespace(theta)
        raw, noise_sd = self.likelihood(self.points(theta), self._batch(i, inputs))
        ok = xp.isfinite(raw)
        likelihood = replace_failed(self.on_failure, raw * inputs.scale, ok)
        values = self.values(theta, Evaluated(likelihood, ok, noise_sd * inputs.scale))
        state, iteration = self.tell(inputs.eta, state, theta, values)
        return state, iteration, raw

    def _batch(self, i: Array, inputs: Inputs) -> tuple[Any, ...]:
        if inputs.data is None:
            return ()
        return (inputs.data if inputs.rows is None else taken(inputs.data, inputs.rows[i]),)

    def stream(self, key: Array, t: Array) -> Stream:
        """The random numbers of step ``t``."""
        return Stream(key, t, getattr(self.backend.namespace, self.backend.dtype))

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        priors = tuple(_prior_key(p) for p in self.model.parameters)
        parts = Identity(self.algorithm), self.family, self.likelihood, self.backend, self.on_failure
        return (
            priors,
            tuple(self.model.paths),
            self.model.is_named,
            self.model.is_vector,
            *parts,
            self.most_steps,
            self.pause_below,
        )


@dataclass(frozen=True)
class FreshDraws:
    """Draws from a q outside the steps: n standard normals (n, d), transformed to q."""

    core: Core
    n: int

    def draw(self, q: Array, key: Array, t: Array) -> Array:
        """The draws of look ``t``: (n, d)."""
        z = self.core.stream(key, t).standard_normal((self.n, self.core.family.dim))
        return self.core.family.transport(q, z)


class Engine:
    """The functions of a `Core` with the run's random numbers, compiled if the backend can.

    There are three independent streams of random numbers: for the draws of the steps, for the rows
    of mini-batches, and for fresh draws. How many numbers one of them uses does not change the
    others.
    """

    def __init__(self, core: Core, seed: int) -> None:
        self.core, self.backend = core, core.backend
        streams = np.random.SeedSequence(seed).spawn(3)
        self.draws, self.rows, self.fresh = (np.random.default_rng(stream) for stream in streams)
        self.key, self._fresh_key = (self.backend.put(seed_words(streams[i])) for i in (0, 2))
        self._streams = Streams(self.key, getattr(self.backend.namespace, self.backend.dtype))

    @property
    def generators(self) -> tuple[np.random.Generator, ...]:
        """NumPy's generators, whose states a checkpoint keeps."""
        return self.draws, self.rows, self.fresh

    def call(self, owner: Any, name: str, *arguments: Any) -> Any:
        """Call a pure method, compiled if the backend can."""
        with self.backend.active():
            return self.backend.compiled(owner, name)(*arguments)

    def number(self, n: int) -> Array:
        """A whole number on the device."""
        return self.backend.put(np.asarray(n, dtype=np.int32))

    def start(self, q: NDArray[np.float64]) -> Any:
        """The state before the first step."""
        return self.call(self.core, "start", self.backend.put(q))

    def ask(self, state: Any, t: int) -> Array:
        """The points of iteration ``t``: (n, d)."""
        algorithm, family = self.core.algorithm, self.core.family
        if not algorithm.draws_on_host and self.backend.is_compiled:
            return self.call(self.core, "ask", state, self.key, self.number(t))
        with self.backend.active():
            return algorithm.ask(family, state, self.draws if algorithm.draws_on_host else self._streams.at(t))

    def points(self, theta: Array) -> Any:
        """The function's argument: stacked constrained values."""
        return self.call(self.core, "points", theta)

    def values(self, theta: Array, evaluations: Evaluated) -> Values:
        """The function's values, with the prior."""
        values: Values = self.call(self.core, "values", theta, evaluations._replace(rows=None))
        return values

    def tell(self, state: Any, theta: Array, values: Values, is_fresh: bool = False) -> tuple[Any, Iteration]:
        """The next state, and the iteration, on the host except for the q before the step.

        Fresh draws are independent, and not those that the method asked for.
        """
        core = self.core
        core = replace(core, algorithm=core.algorithm.for_independent_draws) if is_fresh else core
        state, iteration = self.call(core, "tell", core.eta, state, theta, values)
        return state, self.backend.fetch(iteration._replace(left=None))._replace(left=iteration.left)

    def residual(self, q: Array, theta: Array, log_joint: Array) -> NDArray[np.float64]:
        """``log p(y, theta) - log q(theta)``, on the host: (n,)."""
        return to_numpy(self.call(self.core, "residual", q, theta, log_joint))

    def fresh_draws(self, q: Array, n: int, t: int) -> Array:
        """Independent draws from q for look ``t``: (n, d)."""
        if not self.core.algorithm.is_array_api:
            return self.core.family.transport(q, Independent().normal(self.fresh, n, self.core.family.dim))
        return self.call(FreshDraws(self.core, n), "draw", q, self._fresh_key, self.number(t))


def _prior_key(parameter: Parameter) -> tuple[Any, ...]:
    """What identifies a prior: its numbers and, if it holds a function, the object itself."""
    spec = json.dumps(parameter.distribution.to_spec(), sort_keys=True, default=repr)
    own = id(parameter.distribution) if parameter.distribution.holds_code else None
    return parameter.name, parameter.is_native, spec, own
