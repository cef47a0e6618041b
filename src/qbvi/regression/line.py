r"""Steps of a Gaussian along its natural gradient, in whitened coordinates.

The Gaussian with the best bound under the regression, subject to KL(new || old) at most r, lies on
the natural-gradient line: its whitened precision is :math:`P = I - \beta C` and its mean
:math:`\beta P^{-1} b` for some :math:`\beta \le 1`. All quantities are functions of the eigenvalues
of C. All functions work on arrays of any library. The host searches for :math:`\beta` by bisection,
a compiled loop on a grid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from qbvi.arrays import Array, array_namespace, device, eigh
from qbvi.families.base import GaussianFamily
from qbvi.regression.hermite import tail_variance
from qbvi.regression.rules import TrustRegion

__all__ = ["Gradient", "LinePoint", "NaturalLine", "WhitenedStep", "longest_by_bisection", "repeated_share"]


class Gradient(NamedTuple):
    """The natural gradient at q as a regression estimates it, and its errors."""

    b: Array  # (d,) linear part
    C: Array  # (d, d) quadratic part
    curvature_sd: Array  # () standard error of one coefficient of C
    tail: Array  # () variance, under q, of the part of the residual that is not quadratic
    omega: Array  # () variance of degree four in it, relative to degree three


class LinePoint(NamedTuple):
    """One step along the line, or several along a first axis."""

    share: Array  # (...) length of the step, relative to the full step
    shift: Array  # (..., d) new mean, in the axes of C
    precision: Array  # (..., d) new precision, in the axes of the family's part of C
    kl: Array  # (...) KL(new || old)
    gain: Array  # (...) predicted rise of the bound


class WhitenedStep(NamedTuple):
    """A step along the natural gradient, in whitened coordinates."""

    shift: Array  # (d,) new mean
    axes: Array  # (d, d) eigenvectors of the new precision
    precision: Array  # (d,) eigenvalues of the new precision
    share: Array  # () length of the step, relative to the full step
    kl: Array  # () KL(new || old)
    gain: Array  # () predicted rise of the bound
    left_behind: Array  # () nats lost in directions of small stiffness, where the step is limited
    is_restricted: Array  # () whether a rule limited its length, its mean or its precision
    upward: Array  # () largest curvature of the log joint, in standard errors: positive where it curves upward

    @property
    def growth(self) -> Array:
        """Change of the whitened covariance (d, d)."""
        return (self.axes * (1 / self.precision - 1)) @ self.axes.T

    def apply(self, family: GaussianFamily, q: Array) -> Array:
        """The member of the family that the step leads to from q."""
        root = self.precision**0.5
        return family.deform(q, self.shift, (self.axes / root) @ self.axes.T, (self.axes * root) @ self.axes.T)


class NaturalLine:
    """All steps along the natural gradient of a Gaussian family.

    The mean uses all of C. The precision uses the part of C that the family can represent. The
    error of C limits how far a precision may fall.

    Parameters
    ----------
    gradient
        b and C, with their errors.
    family
        The Gaussian family; it decides which part of C the precision uses.
    rules
        Bounds on the precision, and the rule for a believable gain.

    Examples
    --------
    The q is a standard normal. The log joint has its maximum at one and unit curvature:

    >>> import numpy as np
    >>> from qbvi.families import Gaussian
    >>> zero = np.float64(0.0)
    >>> gradient = Gradient(np.ones(1), np.zeros((1, 1)), zero, zero, zero)
    >>> line = NaturalLine(gradient, Gaussian(1), TrustRegion())
    >>> line.at(np.float64(1.0)).shift
    array([1.])
    """

    def __init__(self, gradient: Gradient, family: GaussianFamily, rules: TrustRegion) -> None:
        xp = array_namespace(gradient.b)
        self._gradient, self._d, self._rules = gradient, family.dim, rules
        followed = family.restrict(gradient.C)
        if followed is gradient.C:
            self._c, self._mean_axes = self._r, self._axes = eigh(gradient.C)
        else:
            values, axes = xp.linalg.eigh(xp.stack([gradient.C, followed]))
            self._c, self._r, self._mean_axes, self._axes = values[0, :], values[1, :], axes[0, :, :], axes[1, :, :]
        self._b = self._mean_axes.T @ gradient.b
        self._smallest = rules.smallest_precision(gradient.curvature_sd, family.dim)

    def at(self, share: Array) -> LinePoint:
        """The step of this length, relative to the full step, or steps of several lengths (m,)."""
        xp = array_namespace(self._b)
        b, c, r, some = self._b, self._c, self._r, xp.asarray(share)[..., None]
        smallest = self._smallest * xp.ones_like(c)
        stiffness, precision = xp.maximum(1 - some * c, smallest), xp.maximum(1 - some * r, smallest)
        shift = some * b / stiffness
        kl = 0.5 * (xp.sum(1 / precision - 1 + xp.log(precision), axis=-1) + xp.sum(shift**2, axis=-1))
        bend = xp.sum(c * shift**2, axis=-1) + xp.sum(r * (1 / precision - 1), axis=-1)
        gain = xp.sum(b * shift, axis=-1) + 0.5 * bend - kl
        return LinePoint(share, shift, precision, kl, gain)

    def is_allowed(self, point: LinePoint, radius: Array) -> Array:
        """Whether KL is within the radius and the predicted gain is believable.

        A gain is believable if one of these holds:

        - it is at least the added standard deviation, at the new place, of degrees three and four,
        - the new q reaches hardly farther than the old one (`TrustRegion.near`).
        """
        xp = array_namespace(self._b)
        reach = xp.sum(point.shift**2, axis=-1) + xp.sum(1 / point.precision, axis=-1)
        variance = self._gradient.tail * (tail_variance(reach, self._d, self._gradient.omega) - 1)
        is_believable = xp.maximum(variance, 0 * variance) ** 0.5 <= point.gain
        return (point.kl <= radius) & (is_believable | (reach < self._rules.near * self._d))

    def first_allowed(self, shares: Array, radius: Array) -> LinePoint:
        """The step with the first of the shares (m,) that is allowed; with the first if none is."""
        xp = array_namespace(shares)
        points = self.at(shares)
        first = xp.argmax(xp.astype(self.is_allowed(points, radius), xp.int32))
        return LinePoint(*(xp.take(part, xp.reshape(first, (1,)), axis=0)[0, ...] for part in points))

    def step(self, point: LinePoint, longest: Array) -> WhitenedStep:
        """Turn a point of the line into a step; ``longest`` is the intended share."""
        xp = array_namespace(self._b)
        b, c, ones = self._b, self._c, xp.ones_like(self._c)
        # Nats lost because the stiffness used for the step is bounded from below.
        soft = xp.maximum(1 - c, self._rules.softest * ones)
        stiffness = xp.maximum(1 - point.share * c, self._smallest * ones)
        left_behind = 0.5 * xp.sum(soft * (b / stiffness - b / soft) ** 2)
        is_restricted = (point.share < longest) | (xp.min(1 - self._r) < self._smallest) | (xp.max(c) >= 1)
        shift = self._mean_axes @ point.shift
        error = xp.maximum(self._gradient.curvature_sd * self._d**0.5, self._rules.softest * ones[0])
        ending = point.share, point.kl, point.gain, left_behind, is_restricted, (xp.max(c) - 1) / error
        return WhitenedStep(shift, self._axes, point.precision, *ending)


Point = TypeVar("Point")

_SMALLEST_SHARE = 1e-150  # of the full step: below, squares underflow


def longest_by_bisection(
    at: Callable[[float], Point], is_allowed: Callable[[Point], bool], longest: float, halvings: int
) -> Point:
    """The longest allowed step up to the share ``longest`` of the full one.

    If no share down to ``2**-halvings`` is allowed, the search continues below that. A gradient in
    the units of the data may exceed the radius by any number of decades.
    """
    whole = at(longest)
    if is_allowed(whole):
        return whole
    low, high = 0.0, longest
    while low == 0.0 and high > _SMALLEST_SHARE:
        for _ in range(max(1, halvings)):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if is_allowed(at(middle)) else (low, middle)
    return at(low)


def repeated_share(family: GaussianFamily, q: Array, previous: Array, step: WhitenedStep) -> Array:
    """Share of the last step, from ``previous`` to q, that the next step repeats.

    It is the projection of the next step on the last one; negative if the next step goes back. It
    is zero if there was no last step, because it was rejected.
    """
    xp = array_namespace(q)
    eye = xp.eye(family.dim, dtype=q.dtype, device=device(q))
    frame = xp.concat([xp.zeros_like(eye[:1, :]), eye])
    was = family.whiten(q, family.transport(previous, frame))  # the previous q, whitened by q
    axes = was[1:, :] - was[:1, :]
    shift, growth = -was[0, :], eye - axes.T @ axes
    length = xp.sum(shift**2) + 0.5 * xp.sum(growth**2)
    along = xp.sum(step.shift * shift) + 0.5 * xp.sum(step.growth * growth)
    is_step = (length > 0) & ~xp.all(q == previous)  # the length alone may be rounding
    return xp.where(is_step, along / xp.where(is_step, length, xp.ones_like(length)), 0 * length)
