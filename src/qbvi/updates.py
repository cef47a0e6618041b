r"""Transformations of a natural gradient before it becomes a step: each is ``init`` and one call.

They are listed in the order in which they apply. The paper's order is clip, average, scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple, Protocol

from qbvi.arguments import number, positive_number, shown, whole_number
from qbvi.arrays import Array, array_namespace
from qbvi.families.base import Family
from qbvi.naming import works_as

__all__ = ["Chain", "ClipByNorm", "Euclidean", "LearningRate", "Momentum", "SeparateRates", "Update", "Where"]


class Where(NamedTuple):
    """Where a direction was computed: the family, its current member, and the steps so far."""

    family: Family
    q: Array
    t: Array


class Update(Protocol):
    """Anything that maps a direction to another, with a memory from step to step."""

    def init(self, direction: Array) -> Any:
        """Return the memory before the first step; only shape and type of ``direction`` matter."""
        ...

    def __call__(self, direction: Array, memory: Any, where: Where) -> tuple[Array, Any]:
        """Return the transformed direction and the memory for the next step."""
        ...


@dataclass(frozen=True)
class Chain:
    """Apply transformations one after the other.

    Examples
    --------
    >>> import numpy as np
    >>> chain = Chain((ClipByNorm(1.0), LearningRate(0.1)))
    >>> g = np.array([3.0, 4.0])
    >>> chain(g, chain.init(g), Where(None, None, np.asarray(0.0)))[0]
    array([0.06, 0.08])
    """

    parts: tuple[Update, ...]

    def init(self, direction: Array) -> tuple[Any, ...]:
        """Memories of the parts."""
        return tuple(part.init(direction) for part in self.parts)

    def __call__(self, direction: Array, memory: tuple[Any, ...], where: Where) -> tuple[Array, tuple[Any, ...]]:
        """Apply the parts from left to right."""
        kept = []
        for part, remembered in zip(self.parts, memory, strict=True):
            direction, after = part(direction, remembered, where)
            kept.append(after)
        return direction, tuple(kept)


@dataclass(frozen=True)
class ClipByNorm:
    r"""Shorten a direction that is longer than ``max_norm`` (paper, "Gradient clipping").

    .. math:: g \leftarrow g \min(1, l_{\max} / \|g\|)

    Parameters
    ----------
    max_norm
        The bound :math:`l_{\max}` on the Euclidean norm in natural coordinates.
    first_norm, first_steps
        Another bound for the first steps, when control variates have no draws to learn from.

    Examples
    --------
    >>> import numpy as np
    >>> clip = ClipByNorm(1.0)
    >>> clip(np.array([0.0, 2.0]), clip.init(None), Where(None, None, np.asarray(0.0)))[0]
    array([0., 1.])
    """

    max_norm: float
    first_norm: float | None = None
    first_steps: int = 10

    def __post_init__(self) -> None:
        positive_number("max_norm", self.max_norm)
        _positive("first_norm", self.first_norm)
        object.__setattr__(self, "first_steps", whole_number("first_steps", self.first_steps, least=0))

    def init(self, direction: Array) -> tuple[()]:
        """No memory."""
        return ()

    def __call__(self, direction: Array, memory: tuple[()], where: Where) -> tuple[Array, tuple[()]]:
        """Shorten the direction."""
        xp = array_namespace(direction)
        norm = xp.linalg.vector_norm(direction)
        early = where.t < self.first_steps
        first = self.max_norm if self.first_norm is None else self.first_norm
        bound = xp.where(early, first * xp.ones_like(norm), self.max_norm * xp.ones_like(norm))
        return direction * (bound / xp.maximum(norm, bound)), memory


@dataclass(frozen=True)
class Momentum:
    r"""Average directions over time (paper, "Momentum and adaptive learning rate").

    .. math:: \bar g_t = \gamma \bar g_{t-1} + (1 - \gamma) g_t, \qquad \bar g_0 = g_0

    Examples
    --------
    >>> import numpy as np
    >>> momentum = Momentum(0.4)
    >>> g = np.array([1.0])
    >>> g1, memory = momentum(g, momentum.init(g), Where(None, None, np.asarray(0.0)))
    >>> momentum(0 * g, memory, Where(None, None, np.asarray(1.0)))[0]
    array([0.4])
    """

    gamma: float

    def __post_init__(self) -> None:
        if not 0 <= number("gamma", self.gamma) < 1:
            msg = f"`gamma` must lie in [0, 1), got {self.gamma}; 0 is no momentum, the paper takes 0.4"
            raise ValueError(msg)

    def init(self, direction: Array) -> Array:
        """No past directions."""
        return array_namespace(direction).zeros_like(direction)

    def __call__(self, direction: Array, memory: Array, where: Where) -> tuple[Array, Array]:
        """Average with past directions."""
        xp = array_namespace(direction)
        gamma = xp.where(where.t > 0, self.gamma * xp.ones_like(direction), xp.zeros_like(direction))
        average = gamma * memory + (1 - gamma) * direction
        return average, average


@dataclass(frozen=True)
class LearningRate:
    r"""Scale the direction, with a rate that falls after ``decay_after`` steps.

    .. math:: \beta_t = \min(\beta, \beta\, t' / t)

    Parameters
    ----------
    rate
        The rate :math:`\beta`.
    decay_after
        The step :math:`t'` after which the rate falls. By default it never falls.

    Examples
    --------
    >>> import numpy as np
    >>> rate = LearningRate(0.1, decay_after=800)
    >>> rate(np.array([1.0]), (), Where(None, None, np.asarray(1599.0)))[0]
    array([0.05])
    """

    rate: float
    decay_after: float | None = None

    def __post_init__(self) -> None:
        number("rate", positive_number("rate", self.rate))
        _positive("decay_after", self.decay_after)

    def init(self, direction: Array) -> tuple[()]:
        """No memory."""
        return ()

    def __call__(self, direction: Array, memory: tuple[()], where: Where) -> tuple[Array, tuple[()]]:
        """Scale the direction."""
        return direction * _decayed(self.rate, self.decay_after, direction, where.t), memory


@dataclass(frozen=True)
class SeparateRates:
    r"""Scale the move of the mean and the move of the precision by different rates.

    .. math::
        S^{-1} \leftarrow S^{-1} + \beta_S\, (\ldots), \qquad
        \mu \leftarrow \mu + \beta_\mu\, S\, (\ldots)

    Parameters
    ----------
    mean, precision
        The two rates.
    decay_after
        As in `LearningRate`.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import DiagonalGaussian
    >>> family = DiagonalGaussian(1)
    >>> where = Where(family, family.start(np.ones(1), np.ones(1)), np.asarray(0.0))
    >>> SeparateRates(mean=0.5, precision=0.0)(np.array([1.0, 0.0]), (), where)[0]
    array([0.5, 0. ])
    """

    mean: float
    precision: float
    decay_after: float | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "precision"):
            number(name, getattr(self, name), least=0.0)
        _positive("decay_after", self.decay_after)

    def init(self, direction: Array) -> tuple[()]:
        """No memory."""
        return ()

    def __call__(self, direction: Array, memory: tuple[()], where: Where) -> tuple[Array, tuple[()]]:
        """Scale both parts."""
        scaled = where.family.scale_parts(where.q, direction, self.mean, self.precision)
        return scaled * _decayed(1.0, self.decay_after, direction, where.t), memory


@dataclass(frozen=True)
class Euclidean:
    r"""Replace the natural gradient by the Euclidean one of the textbook parameters :math:`\xi`.

    .. math:: g \leftarrow J J' I(\lambda)\, g, \qquad J = \partial\lambda / \partial\xi

    This is plain black-box variational inference, for comparison (paper, Appendix C, iii). The
    length of a step then depends on the units of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import Exponential
    >>> family = Exponential()
    >>> where = Where(family, family.member({"rate": 2.0}), np.asarray(0.0))
    >>> Euclidean()(np.array([1.0]), (), where)[0]
    array([0.25])
    """

    def init(self, direction: Array) -> tuple[()]:
        """No memory."""
        return ()

    def __call__(self, direction: Array, memory: tuple[()], where: Where) -> tuple[Array, tuple[()]]:
        """Transform the direction."""
        return where.family.euclidean(where.q, direction), memory


def _decayed(rate: float, decay_after: float | None, direction: Array, t: Array) -> Array:
    xp = array_namespace(direction)
    if decay_after is None:
        return rate * xp.ones_like(direction)
    return rate * decay_after / xp.maximum((t + 1) * xp.ones_like(direction), decay_after * xp.ones_like(direction))


def as_updates(value: Any) -> tuple[Update, ...]:
    """Check the argument ``updates``: one update, or a sequence of them."""
    updates = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    for update in updates:
        if not works_as("init", "__call__")(update):
            msg = f"`updates` must hold updates such as qbvi.Momentum(0.4), got {shown(update)}"
            raise TypeError(msg)
    return updates


def as_rate(value: Any, optional: bool = False) -> Any:
    """Check the argument ``learning_rate``, and turn a number into a `LearningRate`."""
    if optional and value is None:
        return None
    if works_as("init", "__call__")(value):
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        msg = f"`learning_rate` must be a number or a qbvi.LearningRate, got {shown(value)}"
        raise TypeError(msg)
    return LearningRate(number("learning_rate", positive_number("learning_rate", value)))


def _positive(name: str, value: float | None) -> None:
    if value is not None:
        positive_number(name, value)
