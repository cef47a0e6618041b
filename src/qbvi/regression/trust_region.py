r"""How far to go on an estimated natural gradient: as far as KL(new || old) and the surrogate's own doubt allow.

The exact solution of "best bound under the surrogate, KL(new || old) at most r" lies on the natural-gradient line: for some
:math:`\beta \le 1`, whitened precision :math:`P = I - \beta C` and mean :math:`\beta P^{-1} b`. Everything is a function of the eigenvalues of C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.families.base import GaussianFamily
from qbvi.regression.hermite import tail_variance
from qbvi.regression.surrogate import Surrogate

__all__ = ["Cost", "Promise", "Step", "cost_of_error", "take_step"]

Floats = NDArray[np.float64]

_SOFTEST = 1e-3  # smallest whitened stiffness of the log joint that is believed


@dataclass(frozen=True)
class Step:
    """A step along the natural gradient, in whitened coordinates."""

    shift: Floats  # (d,) new mean
    axes: Floats  # (d, d) eigenvectors of the new precision
    precision: Floats  # (d,) its eigenvalues
    beta: float  # share of the full step
    kl: float  # KL(new || old)
    gain: float  # rise of the bound that the surrogate predicts
    left_behind: float  # nats of directions too soft to be trusted to their end
    is_bound: bool  # whether something held it back

    @property
    def growth(self) -> Floats:
        """Change of the whitened covariance (d, d)."""
        change: Floats = (self.axes * (1 / self.precision - 1)) @ self.axes.T
        return change

    def apply(self, family: GaussianFamily, q: Array) -> Array:
        """The member it leads to."""
        root = np.sqrt(self.precision)
        return family.deform(q, self.shift, (self.axes / root) @ self.axes.T, (self.axes * root) @ self.axes.T)


def take_step(surrogate: Surrogate, family: GaussianFamily, radius: float, longest: float = 1.0) -> Step:
    """The longest step, up to the share ``longest`` of the whole, whose KL is within ``radius`` and whose gain is believable.

    Believable: the standard deviation of what degrees three and four do at the new place is below the gain. The mean follows all of
    C; the precision what the family can follow of it, and no variance grows by more than the error of C warrants.
    """
    d = family.dim
    followed = family.restrict(surrogate.C)
    c, mean_axes = np.linalg.eigh(surrogate.C)
    r, axes = np.linalg.eigh(followed)
    b = mean_axes.T @ surrogate.b
    smallest = float(np.clip(5 * surrogate.curvature_sd * np.sqrt(d), 1e-3, 1 / 16))

    def at(beta: float) -> Step:
        stiffness, precision = np.maximum(1 - beta * c, smallest), np.maximum(1 - beta * r, smallest)
        shift = beta * b / stiffness
        kl = 0.5 * float(np.sum(1 / precision - 1 + np.log(precision)) + np.sum(shift**2))
        gain = float(b @ shift + 0.5 * (np.sum(c * shift**2) + np.sum(r * (1 / precision - 1)))) - kl
        # Soft directions that were not trusted to their end leave something behind.
        soft = np.maximum(1 - c, _SOFTEST)
        left_behind = 0.5 * float(np.sum(soft * (b / stiffness - b / soft) ** 2))
        is_bound = beta < longest or bool(np.min(1 - r) < smallest) or bool(np.max(c) >= 1)
        return Step(mean_axes @ shift, axes, precision, beta, kl, gain, left_behind, is_bound)

    def is_allowed(step: Step) -> bool:
        reach = float(np.sum(step.shift**2) + np.sum(1 / step.precision))
        doubt = np.sqrt(max(surrogate.scale * (tail_variance(reach, d, surrogate.hyper.omega) - 1), 0.0))
        return step.kl <= radius and (doubt <= step.gain or reach < 1.5 * d)

    return _longest(at, is_allowed, longest)


class Promise(NamedTuple):
    """Where the last step came from and what it promised."""

    q: Array
    bound: float
    bound_se: float
    gain: float
    kl: float
    is_bound: bool

    def is_broken(self, bound: float, bound_se: float) -> bool:
        """Whether the step lost more than its noise and a tenth of what it promised."""
        noise = 2 * math.hypot(self.bound_se, bound_se)
        return bound < self.bound - noise - 0.1 * self.gain - 0.05

    def new_radius(self, radius: float, bound: float, bound_se: float) -> float:
        """Compare what the step brought with what it promised."""
        ratio = (bound - self.bound) / max(self.gain, 1e-300)
        if self.gain > 2 * math.hypot(self.bound_se, bound_se):
            error = abs(ratio - 1)
            if ratio < 0.25:
                radius = max(self.kl / 3, 0.1)
            elif ratio > 0.5 and self.is_bound:
                radius = max(radius, self.kl * (100 if error < 0.02 else 9 if error < 0.1 else 3))
        return radius if self.is_bound else min(radius, max(4 * self.kl, 1.0))


class Cost(NamedTuple):
    """Nats that the error of an estimated gradient is expected to lose."""

    mean: float  # half the variance of b, over the stiffness of the log joint in each direction
    precision: float  # half the variance of C


def cost_of_error(surrogate: Surrogate) -> Cost:
    """Nats that the error of the estimated gradient is expected to lose."""
    c, axes = np.linalg.eigh(surrogate.C)
    along = (axes**2).T @ surrogate.b_variance
    return Cost(0.5 * float(np.sum(along / np.maximum(1 - c, _SOFTEST))), 0.5 * surrogate.quadratic_variance)


def _longest(at: Callable[[float], Step], is_allowed: Callable[[Step], bool], longest: float) -> Step:
    step = at(longest)
    if is_allowed(step):
        return step
    low, high = 0.0, longest
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if is_allowed(at(middle)) else (low, middle)
    return at(low)
