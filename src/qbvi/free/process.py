r"""Gaussian process regression of the residual, with a free constant.

The residual t at n points has covariance ``a (K + D)``. K is a `Kernel`, D holds the noise relative
to ``a``, the variance of the function. The kernel is chosen by the predictive density of each point
from all others, which has a closed form: with V the inverse of K + D, the constant projected out,
the error at point i is ``(V t)_i / V_ii`` with variance ``a / V_ii``.

Without noise, the best ``a`` is the mean of these squared errors, each divided by ``1 / V_ii``.
Noise of a known size hides the size of the function. Then a few steps of the fixed-point iteration
of MacKay (1992) find the ``a`` at which the evidence has its maximum:

.. math:: a \leftarrow a \, \frac{\alpha^T K \alpha}{\mathrm{tr}(V K)}, \quad \alpha = V t
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.free.fold import Folded
from qbvi.free.kernel import Kernel, Symmetric
from qbvi.free.rules import ShapeSearch

__all__ = ["LeftOut", "Observations", "Predicted", "Process", "search"]

Floats = NDArray[np.float64]

_SMALL_NOISE = 0.04  # noise variance, in squared nats, from which a point counts less in the choice
_NOISY = 0.01  # least noise variance of all points from which the function is noisy ...
_REFINEMENTS = 10  # ... and its own variance is found by so many steps, at most, ...
_SETTLED = 0.05  # ... until its logarithm changes by less than this
_TINY = 1e-300
_FLAT = 1e-12  # least variance of the function


class Observations(NamedTuple):
    """Residuals at points, in the frame of the surrogate."""

    z: Floats  # (n, d)
    t: Floats  # (n,)
    noise: Floats  # (n,) variances
    rough: tuple[int, ...] = ()  # coordinates of which the function may be rough
    # What makes a kernel that of functions with some symmetries; None without any.
    symmetric: Callable[[Kernel], Folded | Symmetric] | None = None


class LeftOut(NamedTuple):
    """The regression of values on a kernel, and each value predicted from all others.

    The error at a point is ``alpha / diagonal``, and its variance is in proportion to
    ``1 / diagonal``.
    """

    inverse: Floats  # (n, n) of the Cholesky factor of the covariance
    ones: Floats  # (n,) covariance solved for ones ...
    total: float  # ... and their sum
    constant: float
    alpha: Floats  # (n,) weights of the points in a prediction
    diagonal: Floats  # (n,) of the inverse covariance, the constant projected out

    @classmethod
    def of(cls, K: Floats, t: Floats) -> LeftOut:
        """The regression of values t (n,) with covariance K (n, n), noise included."""
        inverse, _ = scipy.linalg.lapack.dtrtri(np.linalg.cholesky(K), lower=1)
        ones = inverse.T @ (inverse @ np.ones(len(t)))
        total = float(ones.sum())
        solved = inverse.T @ (inverse @ t)
        constant = float(solved.sum()) / total
        diagonal = np.einsum("ij,ij->j", inverse, inverse) - ones**2 / total
        return cls(inverse, ones, total, constant, solved - constant * ones, np.maximum(diagonal, _TINY))


class Predicted(NamedTuple):
    """Prediction at m points, and the parts that covariances between them need."""

    mean: Floats  # (m,)
    variance: Floats  # (m,)
    explained: Floats  # (m, n) whitened covariances with the observations
    constant: Floats  # (m,) weight of the free constant's error


class Process:
    """The regression for one kernel.

    Parameters
    ----------
    data
        The residuals.
    shape
        Log length, log noise, and the log ratios of the kernel's parts: (4,). If there are
        coordinates of which the function may be rough, log odds and log length of such functions
        too: (6,).
    variance
        A guess of the variance of the function, to which the noise is compared.

    Examples
    --------
    >>> import numpy as np
    >>> z = np.linspace(-2, 2, 12)[:, None]
    >>> data = Observations(z, np.sin(z[:, 0]), np.zeros(12))
    >>> process = Process(data, np.array([0.5, -16.0, 0.0, 0.0]), 1.0)
    >>> bool(abs(process(np.array([[0.3]])).mean[0] - np.sin(0.3)) < 1e-3)
    True
    """

    def __init__(self, data: Observations, shape: Floats, variance: float) -> None:
        self._data, self._jitter, n = data, math.exp(shape[1]), len(data.t)
        self.kernel = _kernel(shape, data)
        self._with_data = self.kernel.against(data.z)
        K = self._with_data(data.z)
        K[np.diag_indices(n)] += self._jitter
        self._centre = float(np.median(data.t))
        t, least = data.t - self._centre, float(np.min(data.noise))
        is_noisy = least > _NOISY
        found, variance = _solved_with_noise(K, t, data.noise, variance, _REFINEMENTS if is_noisy else 0)
        self._inverse, self._ones, self._total, self._constant, self._alpha, self._diagonal = found
        # Points that are known less well than others count less.
        counts = (least * is_noisy + _SMALL_NOISE) / (data.noise + _SMALL_NOISE)
        squares = self._alpha**2 / self._diagonal
        self.variance = variance if is_noisy else max(float(counts @ squares / counts.sum()), _FLAT)
        # Minus twice the log predictive density of the points that count, up to a constant.
        self.misfit = float(counts @ (math.log(self.variance) - np.log(self._diagonal)))
        if is_noisy:
            self.misfit += float(counts @ (squares / self.variance - 1))

    def __call__(self, z: Floats) -> Predicted:
        """Predict the residual at points z (m, d)."""
        k = self._with_data(z)
        explained = k @ self._inverse.T
        constant = 1 - k @ self._ones
        left = self.kernel.variances(z) - np.einsum("ij,ij->i", explained, explained) + constant**2 / self._total
        mean = self._centre + self._constant + k @ self._alpha
        return Predicted(mean, self.variance * np.maximum(left, _FLAT), explained, constant)

    @property
    def jitter(self) -> float:
        """Variance of what the kernel does not follow: noise beyond that which is known."""
        return self.variance * self._jitter

    def from_others(self) -> tuple[Floats, Floats]:
        """Each residual as all others predict it: means (n,) and variances (n,)."""
        return self._data.t - self._alpha / self._diagonal, self.variance / self._diagonal

    def covariance(self, z: Floats, at: Predicted) -> Floats:
        """Covariance of the prediction errors at points z (m, d): (m, m)."""
        C = self.kernel(z, z) - at.explained @ at.explained.T + np.outer(at.constant, at.constant) / self._total
        return np.asarray(self.variance * C)


def search(data: Observations, start: Floats, rules: ShapeSearch) -> Floats:
    """The shape of the kernel that best predicts each point from all others: (4,) or (6,).

    A pattern search from ``start`` and from the prior medians.
    """
    d, is_rough = data.z.shape[1], bool(data.rough)
    low, high = rules.bounds(d, is_rough)
    guess = [max(float(np.var(data.t)), _FLAT)]

    def badness(x: Floats) -> float:
        process = Process(data, x, guess[0])
        guess[0] = process.variance
        return process.misfit + rules.penalty(x, d, is_rough)

    starts = [np.clip(start, low, high), rules.start(d, is_rough)]
    values = [badness(x) for x in starts]
    x, best = starts[int(np.argmin(values))], min(values)
    stride, left = np.array(rules.strides), rules.tries + is_rough * rules.more_tries
    # In one or two dimensions the kernel has fewer parts.
    used = [*range({1: 2, 2: 3}.get(d, 4)), *range(4, len(x))]
    while left > 0 and stride[0] > rules.finest:
        before = best
        for i in used:
            for sign in (1, -1):
                trial = x.copy()
                trial[i] = np.clip(x[i] + sign * stride[i], low[i], high[i])
                if trial[i] == x[i]:
                    continue
                value, left = badness(trial), left - 1
                if value < best - rules.improvement:
                    x, best = trial, value
                    break
        if best == before:
            stride = stride / 2
    return x


def _solved_with_noise(K: Floats, t: Floats, noise: Floats, variance: float, steps: int) -> tuple[LeftOut, float]:
    """The regression of values t (n,) with noise variances (n,), and the variance of the function.

    The latter is as given, or improved by at most so many ``steps``.
    """
    diagonal = np.diagonal(K).copy()
    for step in range(steps + 1):
        relative = noise / variance
        K[np.diag_indices(len(t))] = diagonal + relative
        found = LeftOut.of(K, t)
        if step == steps:
            break
        explained = found.alpha @ t - relative @ found.alpha**2  # alpha is orthogonal to the constant
        ratio = max(float(explained), _FLAT) / variance / max(len(t) - 1 - float(relative @ found.diagonal), _FLAT)
        if abs(math.log(ratio)) < _SETTLED:
            break
        variance = max(variance * ratio, _FLAT)
    return found, variance


def _kernel(shape: Floats, data: Observations) -> Kernel | Folded | Symmetric:
    ratios = np.exp([shape[2], shape[3], 0.0])
    one, two, _ = ratios / ratios.sum()
    parts = float(math.exp(shape[0])), float(one), float(two)
    if data.symmetric is not None:
        return data.symmetric(Kernel(*parts))
    if not data.rough:
        return Kernel(*parts)
    return Kernel(*parts, data.rough, float(scipy.special.expit(shape[4])), float(math.exp(shape[5])))
