r"""The noise of the function, and how it changes with the distance from q.

A simulator is often much noisier far from the posterior than in it. Points that are evaluated twice
measure the noise where they are. Half a squared difference of two values has the noise variance as
its mean. The law that is fitted to these, with r the whitened distance from q in d coordinates, is

.. math:: v(r) = v_q \left(\frac{1 + r^2 / (d + 2)}{1 + d / (d + 2)}\right)^p, \quad p \ge 0

For a Gaussian posterior, half of :math:`r^2` is the depth below the mode. The standard deviation of
a synthetic likelihood grows in proportion to that depth: p is then two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.families.base import Family
from qbvi.regression.rules import NoiseCheck

__all__ = ["NoiseLaw", "Repeats", "law_around"]

Floats = NDArray[np.float64]

_SPARE = 2  # added to d in the scale of the squared distance


class Repeats(NamedTuple):
    """Points that were evaluated twice."""

    theta: Floats  # (m, d)
    variance: Floats  # (m,) half the squared difference of the two values; zero if it is rounding

    @classmethod
    def none(cls, d: int) -> Repeats:
        """No point yet."""
        return cls(np.empty((0, d)), np.empty(0))

    def add(self, theta: Floats, first: Floats, second: Floats, rule: NoiseCheck) -> Repeats:
        """Add points with their two values, where both are finite.

        Examples
        --------
        >>> import numpy as np
        >>> first, second = np.array([1.0, 5.0]), np.array([3.0, 5.0])
        >>> Repeats.none(1).add(np.zeros((2, 1)), first, second, NoiseCheck()).variance
        array([2., 0.])
        """
        both = np.isfinite(first) & np.isfinite(second)
        difference = (first - second)[both]
        rounding = rule.rounding_margin * rule.rounding * np.abs(first[both])
        is_noisy = bool(np.any(np.abs(difference) > rounding))
        variance = difference**2 / 2 if is_noisy else np.zeros(len(difference))
        return Repeats(np.concatenate([self.theta, theta[both]]), np.concatenate([self.variance, variance]))

    @classmethod
    def among(cls, theta: Floats, values: Floats, rule: NoiseCheck) -> Repeats:
        """The points (n, d) that occur twice, with their values (n,).

        Examples
        --------
        >>> import numpy as np
        >>> theta, values = np.array([[0.0], [1.0], [0.0]]), np.array([1.0, 7.0, 3.0])
        >>> Repeats.among(theta, values, NoiseCheck())
        Repeats(theta=array([[0.]]), variance=array([2.]))
        """
        _, group = np.unique(theta, axis=0, return_inverse=True)
        order = np.argsort(group.ravel(), kind="stable")
        same = np.flatnonzero(np.diff(group.ravel()[order]) == 0)
        first, second = order[same], order[same + 1]
        return cls.none(theta.shape[1]).add(theta[first], values[first], values[second], rule)


class NoiseLaw(NamedTuple):
    """Noise variance as a function of the squared whitened distance from q."""

    level: float  # variance at a typical draw from q
    power: float
    d: int  # whitened coordinates

    def at(self, squares: Floats) -> Floats:
        """Variances at squared distances (n,)."""
        return np.asarray(self.level * np.exp(self.power * _log_growth(squares, self.d)))


def law_around(family: Family, q: Floats, repeats: Repeats, rule: NoiseCheck) -> NoiseLaw:
    """The law that fits the repeated points best, around q.

    The squared differences are chi-squared with one degree of freedom. No law holds everywhere, so
    points near q have more weight for the level: it is a weighted mean, given the power. The power
    has the highest likelihood, with a weak prior at zero, so that points in one place imply the
    same noise everywhere.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import Gaussian
    >>> family, z = Gaussian(1), np.array([[1.0], [1.0], [9.0], [9.0]])
    >>> q = family.start(np.zeros(1), np.ones(1))
    >>> law = law_around(family, q, Repeats(z, np.array([0.9, 1.1, 450.0, 430.0])), NoiseCheck())
    >>> law.power, bool(0.5 < law.level < 2)
    (2.0, True)
    """
    if not np.any(repeats.variance > 0):
        return NoiseLaw(0.0, 0.0, family.n_whitened)
    squares = np.sum(family.coordinates(q, repeats.theta) ** 2, axis=1)
    growth = _log_growth(squares, family.n_whitened)
    powers = np.arange(0.0, rule.steepest + rule.power_step / 2, rule.power_step)
    relative = repeats.variance * np.exp(-np.outer(powers, growth))
    levels = np.average(relative, axis=1, weights=np.exp(-rule.near_power * growth))
    deviance = np.sum(np.log(levels)[:, None] + np.outer(powers, growth) + relative / levels[:, None], axis=1)
    best = int(np.argmin(deviance + (powers / rule.power_width) ** 2))
    return NoiseLaw(float(levels[best]), float(powers[best]), family.n_whitened)


def _log_growth(squares: Floats, d: int) -> Floats:
    """Logarithm of the growth from a typical draw of q to squared distances (n,)."""
    return np.asarray(np.log1p(squares / (d + _SPARE)) - np.log1p(d / (d + _SPARE)))
