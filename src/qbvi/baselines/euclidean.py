"""Gradient ascent in Euclidean coordinates of q: what BBVI and CGVB share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.baselines.base import Baseline, TakenStep, describe
from qbvi.baselines.factor import FactorCoordinates
from qbvi.baselines.scalings import AdaGrad, RMSProp
from qbvi.families.base import GaussianFamily
from qbvi.naming import pick, works_as
from qbvi.protocol import Info
from qbvi.updates import Chain, LearningRate, Update, Where

__all__ = ["Euclidean", "EuclideanState"]

Floats = NDArray[np.float64]

_RATE = LearningRate(0.01, decay_after=300)

SCALINGS: dict[str, Update | None] = {"adagrad": AdaGrad(), "rmsprop": RMSProp(), "none": None}


def _is_scaling(value: Any) -> bool:
    return value is None or works_as("init", "__call__")(value)


class EuclideanState(NamedTuple):
    """State for the next step."""

    q: Array
    t: int
    x: Floats  # coordinates of q
    carry: Any  # memory of the updates


@dataclass(frozen=True)
class Euclidean(Baseline):
    """A method that adds gradients, scaled by coordinate, to the mean and the Cholesky factor."""

    learning_rate: float | LearningRate = _RATE
    scaling: Update | str | None = "rmsprop"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("scaling", pick("scaling", self.scaling, SCALINGS, _is_scaling))

    def init(self, family: GaussianFamily, q: Array) -> EuclideanState:
        """State before the first step, given a starting member of the family."""
        coordinates = FactorCoordinates(family)
        x = coordinates.coordinates(q)
        return EuclideanState(coordinates.member(x), 0, x, self._updates.init(x))

    def climb(
        self, family: GaussianFamily, state: EuclideanState, gradient: Floats, h: Floats
    ) -> tuple[EuclideanState, Info]:
        """Take one step of gradient ascent, unless the result is not finite."""
        update, carry = self._updates(gradient, state.carry, Where(family, state.q, state.t))
        x = state.x + update
        # The scalings square the gradient, so its square must be finite too.
        finite = bool(np.isfinite(gradient @ gradient) and np.all(np.isfinite(x)))
        q = FactorCoordinates(family).member(x) if finite else state.q
        taken = bool(finite and np.all(np.isfinite(q)) and np.all(family.sd(q) > 0))
        moved = state._replace(q=q, x=x, carry=carry) if taken else state
        return moved._replace(t=state.t + 1), describe(h, TakenStep(gradient, update, taken))

    @property
    def _updates(self) -> Chain:
        scaling: Any = () if self.scaling is None else (self.scaling,)
        rate: Any = self.learning_rate
        return Chain((*self.updates, *scaling, rate))
