"""What the variational baselines share: their settings, and the description of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from qbvi.algorithm import RULES
from qbvi.arguments import number, positive_number, whole_number
from qbvi.arrays import Array
from qbvi.families.base import Family, GaussianFamily
from qbvi.naming import is_no_text, pick
from qbvi.protocol import Algorithm, Info
from qbvi.stopping import Rule, as_rule
from qbvi.updates import LearningRate, Update, as_rate, as_updates

__all__ = ["Baseline", "TakenStep", "describe"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Baseline(Algorithm):
    """Settings that every baseline has, with names and meanings as in `qbvi.QBVI`."""

    n_samples: int = 100
    updates: Sequence[Update] = ()
    learning_rate: float | LearningRate = 0.1
    stop: Sequence[Rule | str] = ("patience", "max-iterations")
    window: int = 30
    keep: str = "best"
    initial_sd: float | None = math.sqrt(0.1)
    n_fresh: int = 1000

    def __post_init__(self) -> None:
        stop = cast(Any, self.stop)
        rules = stop if isinstance(stop, Sequence) and not isinstance(stop, str) else (stop,)
        self._set("learning_rate", as_rate(self.learning_rate))
        self._set("updates", as_updates(self.updates))
        self._set("stop", tuple(as_rule(pick("stop", rule, RULES)) for rule in rules))
        self._set("keep", pick("keep", self.keep, {"best": "best", "last": "last"}, is_no_text))
        for name, least in (("n_samples", 2), ("window", 1), ("n_fresh", 0)):
            self._set(name, whole_number(name, getattr(self, name), least))
        if self.initial_sd is not None:
            number("initial_sd", positive_number("initial_sd", self.initial_sd))

    def fits(self, family: Family) -> bool:
        """Gaussian families only."""
        return isinstance(family, GaussianFamily) and not family.is_curved

    def fresh_draws(self, n_evals: int) -> int:
        """A fixed number of fresh draws."""
        return self.n_fresh

    def start_scale(self, scale: Array) -> Array:
        """Standard deviations to start from, given those of the prior."""
        return scale if self.initial_sd is None else np.full_like(scale, self.initial_sd)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


class TakenStep(NamedTuple):
    """A proposed step, and whether it was taken."""

    direction: Floats
    update: Floats
    taken: bool


def describe(h: Floats, step: TakenStep) -> Info:
    """Describe a step to a person; a baseline has no estimate of the gap to the optimum."""
    norm = float(np.linalg.norm(step.direction))
    rate = float(np.linalg.norm(step.update)) / norm if norm > 0 else 0.0
    return Info(
        bound=np.mean(h),
        h=h,
        gap=np.nan,
        grad_norm=norm,
        step=rate,
        is_inside=np.True_,
        is_refused=np.bool_(not step.taken),
    )
