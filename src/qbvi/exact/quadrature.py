"""One-dimensional integrals under a Gaussian."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

__all__ = ["Expected", "expected_softplus", "hermite"]

Floats = NDArray[np.float64]

# Gauss-Hermite nodes that are enough up to a standard deviation: the error is below 2e-12. The
# nearest singularity of softplus is at i pi, so wider Gaussians need more and more nodes.
_NODES = ((0.02, 3), (0.1, 5), (0.4, 12), (1.0, 32))
# For wider Gaussians, the trapezoidal rule on a grid of b. Its error is exp(-2 pi^2 / step) for the
# singularities at +-i pi, and exp(-30) for the ends of the grid.
_STEP, _END = 0.5, 30.0
_PROBIT = 1.7017  # expit(b) differs from the normal distribution function of b / 1.7017 by < 0.01


class Expected(NamedTuple):
    """Expectation of a function of b ~ N(mean, var), and of its first two derivatives: (n,) each.

    They are also the value of the expectation and its first two derivatives by the mean.
    """

    value: Floats
    slope: Floats
    curvature: Floats


@lru_cache
def hermite(nodes: int) -> tuple[Floats, Floats]:
    """Nodes and weights of the Gauss-Hermite rule for the standard normal distribution.

    Examples
    --------
    >>> z, weights = hermite(3)
    >>> round(float(weights @ z**4), 12)  # the fourth moment
    3.0
    """
    z, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    for array in (z, weights):
        array.flags.writeable = False  # they are computed once, and every caller has the same
    return z, weights


def expected_softplus(mean: Floats, var: Floats) -> Expected:
    r"""Expectation of softplus(b) = log(1 + exp b), of expit(b) and of expit'(b).

    Here :math:`b \sim N(\mathrm{mean}, \mathrm{var})`. The error is below 2e-12, relative to one or
    to the mean if that is larger, for all means and variances.

    Up to a standard deviation of one, the rule is that of Gauss and Hermite. Beyond, the integrand
    varies faster than the Gaussian. Then softplus is compared with the integral of the normal
    distribution function, whose expectation has a closed form. With :math:`c = 1.7017`,

    .. math::
        g(b) = b\,\Phi(b / c) + c\,\varphi(b / c), \quad
        E\,g(b) = g_t(\mathrm{mean}), \quad t^2 = c^2 + \mathrm{var},

    where :math:`g_t` has t in place of c. The difference is smooth and decays like exp(-|b|), so
    the trapezoidal rule converges exponentially.

    Examples
    --------
    >>> expected_softplus(np.zeros(2), np.array([0.0, 1e4])).value.round(3)  # log 2, and large
    array([ 0.693, 39.901])
    """
    sd = np.sqrt(var)
    found = Expected(*(np.empty_like(sd) for _ in range(3)))
    below = np.zeros(sd.shape, dtype=bool)
    for largest, nodes in _NODES:
        rows = np.flatnonzero((sd <= largest) & ~below)
        below[rows] = True
        _put(found, rows, _by_hermite(mean[rows], sd[rows], nodes))
    rows = np.flatnonzero(~below)
    _put(found, rows, _by_trapezoids(mean[rows], sd[rows]))
    return found


def _put(found: Expected, rows: NDArray[np.intp], part: Expected) -> None:
    for whole, values in zip(found, part, strict=True):
        whole[rows] = values


def _by_hermite(mean: Floats, sd: Floats, nodes: int) -> Expected:
    z, weights = hermite(nodes)
    return Expected(*(part @ weights for part in _softplus(mean[:, None] + sd[:, None] * z)))


def _by_trapezoids(mean: Floats, sd: Floats) -> Expected:
    b, difference = _difference()
    t = np.sqrt(_PROBIT**2 + sd**2)
    weights = _STEP * _density((b - mean[:, None]) / sd[:, None]) / sd[:, None]
    return Expected(*(weights @ part + closed for part, closed in zip(difference, _smooth(mean, t), strict=True)))


@lru_cache(maxsize=1)
def _difference() -> tuple[Floats, Expected]:
    """The grid, and on it the differences of softplus, expit and expit' from their likenesses."""
    b = np.arange(-_END, _END + _STEP / 2, _STEP)
    pairs = zip(_softplus(b), _smooth(b, np.full_like(b, _PROBIT)), strict=True)
    return b, Expected(*(exact - like for exact, like in pairs))


def _softplus(b: Floats) -> Expected:
    """softplus(b), expit(b) and expit'(b), from one exponential."""
    small = np.exp(-np.abs(b))
    above = 1 / (1 + small)  # expit(|b|)
    below = small * above
    return Expected(np.maximum(b, 0) + np.log1p(small), np.where(b >= 0, above, below), above * below)


def _smooth(b: Floats, t: Floats) -> Expected:
    """b Phi(b / t) + t phi(b / t), and its first two derivatives."""
    below, density = scipy.special.ndtr(b / t), _density(b / t)
    return Expected(b * below + t * density, below, density / t)


def _density(z: Floats) -> Floats:
    return np.asarray(np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi))
