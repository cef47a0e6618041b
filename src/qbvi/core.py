"""One step as a function of arrays alone: ask, evaluate, tell. What the loop calls step by step, and what is compiled into many steps."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from qbvi.algorithm import Algorithm, Values
from qbvi.arrange import KnownPrior
from qbvi.arrays import Array, array_namespace, device
from qbvi.backends import Backend
from qbvi.evaluate.on_device import DeviceFunction, Identity, taken
from qbvi.evaluate.policy import replace_failed
from qbvi.families import Family
from qbvi.model import Model, Parameter
from qbvi.random import Stream

__all__ = ["LARGEST_TRACED", "Core", "Fresh", "Inputs", "Made", "Told"]

LARGEST_TRACED = 10_000  # dimensions up to which mean and standard deviations are kept for every step


class Told(NamedTuple):
    """What there is to read about a step."""

    left: Array  # the q that was left
    h: Array  # (n,) residuals at the draws from it
    numbers: Array  # (5,) bound, gap, norm of the gradient, step, and 1 where the step ended inside the domain
    mean: Array  # (d,) of the q that was left; empty in very many dimensions
    sd: Array  # (d,) likewise


class Made(NamedTuple):
    """A compiled step: what there is to read, and what the function returned."""

    told: Told
    raw: Array  # (n,)


class Inputs(NamedTuple):
    """What a compiled chunk of steps reads: arrays that change from fit to fit, or from chunk to chunk."""

    key: Array  # (2,) of the draws
    t: Array  # () number of the first step
    eta: Array  # (k,) what the natural parameter has of the prior
    data: Any  # None, or a tree of arrays
    rows: Array | None  # (length, M) rows of the mini-batch of each step
    scale: Array  # () that makes up for the rows left out


@dataclass(frozen=True, eq=False)
class Core:
    """Model, family and method on a backend; equal where the same program would be compiled.

    Parameters
    ----------
    model, family, algorithm, backend
        As for `qbvi.run.Run`.
    likelihood
        The user's function, where steps are compiled with it inside.
    on_failure
        ``"raise"``, ``"exclude"`` or ``"floor"``, likewise.
    length
        Most steps of a compiled chunk.
    pause_below
        Nats of a predicted gap below which a chunk ends.
    """

    model: Model
    family: Family
    algorithm: Algorithm
    backend: Backend
    likelihood: DeviceFunction | None = None
    on_failure: str = "raise"
    length: int = 1
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
        """The part of the prior that the family takes up in closed form, on the backend."""
        return self.backend.put(self._prior.eta)

    def ask(self, state: Any, key: Array, t: Array) -> Array:
        """The points of step ``t``: (n, d)."""
        return self.algorithm.ask(self.family, state, self._stream(key, t))

    def points(self, theta: Array) -> Any:
        """What the function is given: stacked constrained values."""
        return self.model.constrain(theta)

    def values(self, theta: Array, likelihood: Array, ok: Array, noise_sd: Array) -> Values:
        """Add the prior to the function's values (n,)."""
        log_joint = likelihood + self.model.log_prior(theta)
        return Values(likelihood + self._prior.remaining(theta), log_joint, ok, noise_sd)

    def tell(self, eta: Array, state: Any, theta: Array, values: Values) -> tuple[Any, Told]:
        """The next state, and what there is to read."""
        left = state.q
        state, info = self.algorithm.tell(self.family, eta, state, theta, values)
        xp = array_namespace(left)
        numbers = (info.bound, info.gap, info.grad_norm, info.step, info.inside)
        mean, sd = self.family.mean(left), self.family.sd(left)
        if self.family.dim > LARGEST_TRACED:
            mean, sd = mean[:0], sd[:0]
        return state, Told(
            left, info.h, xp.stack([xp.asarray(x, dtype=left.dtype, device=device(left)) for x in numbers]), mean, sd
        )

    def residual(self, q: Array, theta: Array, log_joint: Array) -> Array:
        """``log p(y, theta) - log q(theta)``: (n,)."""
        return self.family.residual(q, theta, log_joint)

    def advance(self, state: Any, steps: Array, inputs: Inputs) -> tuple[Any, Made, Array]:
        """Make up to ``steps`` of `length` steps: the state, what was made, stacked and empty after those, and their number.

        A step that predicts a gap below `pause_below` is the last, for the rules to look at.
        """

        def turn(carry: tuple[Any, Array], i: Array) -> tuple[tuple[Any, Array], Made]:
            state, end = carry
            state, made = self._step(state, i, inputs)
            is_small = made.told.numbers[1] < self.pause_below
            return (state, array_namespace(end).where(is_small, i + 1, end)), made

        (state, end), made = self.backend.repeated(turn, lambda carry, i: i < carry[1], (state, steps), self.length)
        return state, made, end

    def _step(self, state: Any, i: Array, inputs: Inputs) -> tuple[Any, Made]:
        assert self.likelihood is not None
        theta = self.ask(state, inputs.key, inputs.t + i)
        xp = array_namespace(theta)
        raw, noise_sd = self.likelihood(self.points(theta), self._batch(i, inputs))
        likelihood, ok = replace_failed(self.on_failure, raw * inputs.scale, xp.isfinite(raw))
        values = self.values(theta, likelihood, ok, noise_sd * inputs.scale)
        state, told = self.tell(inputs.eta, state, theta, values)
        return state, Made(told, raw)

    def _batch(self, i: Array, inputs: Inputs) -> tuple[Any, ...]:
        if inputs.data is None:
            return ()
        return (inputs.data if inputs.rows is None else taken(inputs.data, inputs.rows[i]),)

    def _stream(self, key: Array, t: Array) -> Stream:
        return Stream(key, t, getattr(self.backend.namespace, self.backend.dtype))

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        priors = tuple(_prior_key(p) for p in self.model.parameters)
        parts = Identity(self.algorithm), self.family, self.likelihood, self.backend, self.on_failure
        return priors, self.model.is_named, *parts, self.length, self.pause_below


@dataclass(frozen=True)
class Fresh:
    """Draws from a q that are no step: (n, d) standard normals, turned into draws from it."""

    core: Core
    n: int

    def draw(self, q: Array, key: Array, t: Array) -> Array:
        """The draws of look ``t``: (n, d)."""
        z = self.core._stream(key, t).standard_normal((self.n, self.core.family.dim))
        return self.core.family.transport(q, z)


def _prior_key(parameter: Parameter) -> tuple[Any, ...]:
    """A prior by its numbers, or as the same object where it holds a function."""
    spec = json.dumps(parameter.distribution.to_spec(), sort_keys=True, default=repr)
    own = id(parameter.distribution) if parameter.distribution.holds_code else None
    return parameter.name, parameter.is_native, spec, own
