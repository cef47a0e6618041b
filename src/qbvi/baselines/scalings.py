"""Step sizes per coordinate, which Euclidean gradients need; used like `qbvi.updates`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.updates import Where

__all__ = ["AdaGrad", "RMSProp"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class AdaGrad:
    r"""Divide by the root of the sum of all squared gradients so far (Duchi et al., 2011).

    .. math:: G_t = G_{t-1} + g_t^2, \qquad g_t \leftarrow g_t / \sqrt{G_t}

    Steps fall as one over the square root of their number, which meets the conditions of Robbins
    and Monro.

    Examples
    --------
    >>> import numpy as np
    >>> scaling, where = AdaGrad(), Where(None, None, np.asarray(0.0))
    >>> g = np.array([3.0, -4.0])
    >>> scaling(g, scaling.init(g), where)[0]
    array([ 1., -1.])
    """

    def init(self, direction: Floats) -> Floats:
        """No squares yet."""
        return np.zeros_like(direction)

    def __call__(self, direction: Floats, memory: Floats, where: Where) -> tuple[Floats, Floats]:
        """Add the squares and divide."""
        total = memory + direction**2
        return _divided(direction, total), total


class _Averages(NamedTuple):
    gradient: Floats
    square: Floats


@dataclass(frozen=True)
class RMSProp:
    r"""Divide an average of the gradients by the root of an average of their squares.

    .. math::
        \bar g_t = \gamma \bar g_{t-1} + (1 - \gamma) g_t, \quad
        v_t = \delta v_{t-1} + (1 - \delta) g_t^2, \quad
        g_t \leftarrow \bar g_t / \sqrt{v_t}

    Both averages start at the first gradient and its square. With ``momentum`` this is the adaptive
    rate of Tran et al. (2021, "A practical tutorial on variational Bayes"). To settle, it needs a
    `qbvi.LearningRate` that falls.

    Parameters
    ----------
    decay
        Weight :math:`\delta` of the past squares.
    momentum
        Weight :math:`\gamma` of the past gradients.

    Examples
    --------
    >>> import numpy as np
    >>> scaling, where = RMSProp(), Where(None, None, np.asarray(0.0))
    >>> g = np.array([3.0, -4.0])
    >>> scaling(g, scaling.init(g), where)[0]
    array([ 1., -1.])
    """

    decay: float = 0.9
    momentum: float = 0.9

    def __post_init__(self) -> None:
        for name in ("decay", "momentum"):
            if not 0 <= getattr(self, name) < 1:
                msg = f"`{name}` must lie in [0, 1), got {getattr(self, name)}; 0 forgets the past"
                raise ValueError(msg)

    def init(self, direction: Floats) -> _Averages:
        """No averages yet."""
        return _Averages(np.zeros_like(direction), np.zeros_like(direction))

    def __call__(self, direction: Floats, memory: _Averages, where: Where) -> tuple[Floats, _Averages]:
        """Average and divide."""
        delta, gamma = (self.decay, self.momentum) if where.t > 0 else (0.0, 0.0)
        gradient = gamma * memory.gradient + (1 - gamma) * direction
        square = delta * memory.square + (1 - delta) * direction**2
        return _divided(gradient, square), _Averages(gradient, square)


def _divided(direction: Floats, square: Floats) -> Floats:
    """Divide; a coordinate that never had a gradient does not move."""
    return direction / np.sqrt(np.where(square > 0, square, 1.0))
