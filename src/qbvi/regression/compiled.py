"""What the regressions for compiled functions have in common: `Ridge` and `LowRankRegression`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from qbvi.arguments import instance_of, number, positive_number, whole_number
from qbvi.arrays import Array, array_namespace
from qbvi.protocol import Algorithm
from qbvi.regression.rules import LastStep, Rules, TrustRegion

__all__ = ["CompiledRegression", "Trusted"]

_EVALS_PER_FRESH = 10  # evaluations for each fresh draw at the end


@dataclass(frozen=True)
class CompiledRegression(Algorithm):
    """A regression whose shapes are fixed, with no branch that depends on a value.

    Each of its batches has many draws. The subclasses describe the options.
    """

    tol: float = 0.01
    n_samples: int | None = None
    n_remembered: int | None = None
    initial_scale: float = 0.01
    n_fresh: int = 1000
    rules: Rules = field(default_factory=Rules, repr=False)

    def __post_init__(self) -> None:
        instance_of("rules", self.rules, Rules, "a qbvi.regression.rules.Rules")
        for name in ("tol", "initial_scale"):
            number(name, positive_number(name, getattr(self, name)), most=1e6)
        object.__setattr__(self, "n_fresh", whole_number("n_fresh", self.n_fresh))
        for name in ("n_samples", "n_remembered"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name)))

    @property
    def keep(self) -> str:
        """The last iterate: steps that lowered the bound have been rejected."""
        return "last"

    @property
    def is_array_api(self) -> bool:
        """It runs on every array library."""
        return True

    def fresh_draws(self, n_evals: int) -> int:
        """About a tenth of all evaluations, as `n_fresh` times a power of two.

        Few different numbers occur that way, and each of them is compiled once.
        """
        tenth = max(n_evals, 1) / (_EVALS_PER_FRESH * self.n_fresh)
        return int(self.n_fresh * 2 ** max(0, round(math.log2(tenth))))

    def start_scale(self, scale: Array) -> Array:
        """A fraction of the prior's standard deviations."""
        return self.initial_scale * scale


class Trusted(NamedTuple):
    """Where the next step begins, after the last one was accepted or rejected."""

    base: LastStep
    radius: Array  # () bound on KL(new || old)
    is_rejected: Array  # ()

    @classmethod
    def of(cls, rule: TrustRegion, last: LastStep, radius: Array, here: LastStep) -> Trusted:
        """Judge the last step by the bound ``here``, with the radius that it had."""
        xp = array_namespace(here.q)
        is_rejected = rule.rejects(last, here.bound, here.bound_se)
        radius = rule.next_radius(radius, last, here.bound, here.bound_se)
        radius = xp.where(is_rejected, rule.radius_after_return(last), radius)
        base = LastStep(*(xp.where(is_rejected, old, new) for old, new in zip(last, here, strict=True)))
        return cls(base, radius, is_rejected)
