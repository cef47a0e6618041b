"""A look at the prior: a search for a better start if the log joint may have several modes.

A log-concave function has one mode, so the path to it may begin anywhere. The regression may find a
direction in which the log joint curves upward, by more than the error of the curvature. Then the
log joint is not log-concave, and the nearest mode may be one of several.

The method then searches the whole prior by the cross-entropy method (Rubinstein, 1999). The first
points are spread over the prior. Each further round is drawn from a Gaussian with the mean and the
standard deviations of the best points so far. The look ends when these are about equally good.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.model import Model
from qbvi.random import Sobol
from qbvi.regression.rules import LadderRule, LookRule
from qbvi.supports import Real

__all__ = ["Path", "PriorLook", "PriorScale", "reach_of"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PriorScale:
    """Centre and spread of the prior on the unconstrained scale.

    They are tuples of numbers, so that methods which hold them can be compared and hashed.
    """

    loc: tuple[float, ...]
    scale: tuple[float, ...]
    is_walled: tuple[bool, ...]  # whether a coordinate stands for a number between two ends

    @classmethod
    def of(cls, model: Model) -> PriorScale | None:
        """Centre and spread of a model's prior.

        None if a part of the prior is improper, or if a parameter has a non-Gaussian posterior
        family, which is not on the unconstrained scale.
        """
        if any(p.is_native or not p.distribution.can_sample for p in model.parameters):
            return None
        loc, scale = model.initial()
        return cls(tuple(loc.tolist()), tuple(scale.tolist()), tuple(model.is_walled.tolist()))


def reach_of(model: Model, rule: LadderRule) -> tuple[float, ...]:
    """How far from a start each coordinate may reasonably be moved (d,).

    Examples
    --------
    >>> from qbvi.distributions import Flat, LogNormal
    >>> from qbvi.supports import Positive
    >>> prior = {"a": LogNormal(0, 2), "b": Flat(1), "c": Flat(1, Positive())}
    >>> reach_of(Model(prior), LadderRule())
    (12.0, inf, 50.0)
    """
    far: list[float] = []
    for parameter in model.parameters:
        scale = parameter.initial()[1]
        if parameter.distribution.can_sample:
            far.extend((rule.proper * scale).tolist())
        else:
            is_free = isinstance(parameter.distribution.support, Real)
            far.extend([math.inf if is_free else rule.constrained] * len(scale))
    return tuple(far)


class Path(NamedTuple):
    """Where the path is."""

    mean: Floats  # (d,) of q
    top: float  # best log joint so far


class PriorLook(NamedTuple):
    """The points of a look so far, and their log joints."""

    theta: Floats  # (N, d)
    y: Floats  # (N,) minus infinity where the function failed
    n_rounds: int
    n_before: int  # evaluations of the fit before the look
    is_over: bool

    @classmethod
    def begin(cls, d: int, n_before: int) -> PriorLook:
        """Nothing evaluated yet."""
        return cls(np.empty((0, d)), np.empty(0), 0, n_before, False)

    def ask(self, prior: PriorScale, rule: LookRule, rng: np.random.Generator) -> Floats:
        """The next points: spread over the prior, then around the best (n, d)."""
        d, n = len(prior.loc), rule.batch(len(prior.loc))
        if not self.n_rounds:
            return np.asarray(prior.loc) + np.asarray(prior.scale) * Sobol().normal(rng, rule.first * n, d)
        best = self.theta[self._best(rule)]
        return np.asarray(best.mean(axis=0) + best.std(axis=0) * rng.standard_normal((n, d)))

    def tell(self, theta: Floats, y: Floats, rule: LookRule, path: Path) -> PriorLook:
        """Add the values of a round.

        The look is over when the best points are about equally good, when they close in on the
        place where the path is, when too few values are finite, or after the last round.
        """
        d = theta.shape[1]
        look = self._replace(
            theta=np.concatenate([self.theta, theta]),
            y=np.concatenate([self.y, y]),
            n_rounds=self.n_rounds + 1,
        )
        best = look.y[look._best(rule)]
        is_blind = not np.all(np.isfinite(best))
        is_level = not is_blind and float(np.ptp(best)) < rule.level * d
        is_over = is_blind or is_level or look.n_rounds >= rule.most_rounds or look._is_known(rule, path)
        return look._replace(is_over=is_over)

    def _is_known(self, rule: LookRule, path: Path) -> bool:
        """Whether the best points surround the place where the path is, and none is better."""
        best = self.theta[self._best(rule)]
        is_around = bool(np.all(np.abs(best.mean(axis=0) - path.mean) < best.std(axis=0)))
        return self.n_rounds >= rule.fewest_rounds and is_around and self.top[1] < path.top

    def is_due_again(self, n_evals: int, rule: LookRule) -> bool:
        """Whether the evaluations have grown enough since the last look for another one."""
        return self.is_over and n_evals > rule.again * (self.n_before + len(self.y))

    @property
    def top(self) -> tuple[Floats, float]:
        """The best point (d,), and its log joint."""
        i = int(np.argmax(self.y))
        return self.theta[i], float(self.y[i])

    def _best(self, rule: LookRule) -> NDArray[np.int64]:
        return np.argsort(-self.y, kind="stable")[: rule.elite(self.theta.shape[1])]
