r"""Where else the log joint may be high: a regression of the order of magnitude of its depth.

Over a prior, log joints differ by thousands of nats, and nearly all of them mean the same: no mass.
What leads to other modes is how deep a value is below the best one, by order of magnitude:

.. math:: t = -\log \left(1 + \frac{\max y - y}{s}\right)

A Gaussian process regression on all points so far predicts t everywhere, with an error. A value at
z tells something about a mode of height c only if it is uncertain on which side of c it is. The
points are those where this uncertainty is largest,

.. math:: E \max(t - c, 0) - \max(E t - c, 0)

one after the other, each as if the prediction at those before it were exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.free.kernel import squared_distances
from qbvi.free.rules import SurveyRule
from qbvi.random import Sobol, drawn_generator

__all__ = ["Depth", "promising"]

Floats = NDArray[np.float64]

_LENGTHS = (0.3, 0.6, 1.2, 2.4, 4.8)  # that are tried, for each root of the dimension ...
_USUAL, _WIDTH = 1.2, 0.7  # ... prior median, and standard deviation of the logarithm
_NUGGET = 1e-4  # relative variance of what the kernel does not follow
_SAME = 0.02  # points nearer than this are one: the batches of a path begin narrow
_TINY = 1e-12


def promising(
    z: Floats,
    y: Floats,
    is_known: Callable[[Floats], NDArray[np.bool_]],
    rule: SurveyRule,
    rng: np.random.Generator,
    n: int,
) -> Floats:
    """The n points (n, d) at which another mode is most likely to show.

    Points z (N, d) are in units of the prior, with log joints y (N,), of which one at least is
    finite. ``is_known`` tells which of some points (m, d) belong to a mode that was found.

    Examples
    --------
    A hill around one is known, and nothing was evaluated to the left of zero:

    >>> z = np.linspace(0, 2, 15)[:, None]
    >>> y = -50 * (z[:, 0] - 1) ** 2
    >>> is_known = lambda z: np.abs(z[:, 0] - 1) < 0.3
    >>> points = promising(z, y, is_known, SurveyRule(), np.random.default_rng(1), 2)
    >>> bool(points.min() < 0)
    True
    """
    t = -np.log1p((np.max(y) - y) / rule.nats)
    # Zero likelihood is as deep as the deepest value: how much deeper would say nothing.
    t = np.where(np.isfinite(y), t, np.min(t[np.isfinite(y)]))
    z, t = _distinct(z, t, rule.most_regressed)
    candidates = _candidates(z, t, rule, rng)
    unknown = candidates[~is_known(candidates)]
    candidates = unknown if len(unknown) > n else candidates
    depth, chosen = Depth.of(z, t), []
    for i in range(n):
        told = depth.information(candidates, rule.heights[i % len(rule.heights)])
        chosen.append(candidates[int(np.argmax(told))])
        depth = depth.believing(chosen[-1])
    return np.stack(chosen)


class Depth(NamedTuple):
    """The regression of t: a Matern kernel of one length, and a free constant.

    Examples
    --------
    >>> z = np.linspace(-2, 2, 9)[:, None]
    >>> mean, sd = Depth.of(z, -np.abs(z[:, 0]))(np.array([[0.25], [9.0]]))
    >>> bool(abs(mean[0] + 0.25) < 0.1), bool(sd[1] > 5 * sd[0])
    (True, True)
    """

    z: Floats  # (n, d)
    t: Floats  # (n,) less the constant
    factor: Floats  # (n, n) lower Cholesky factor of the covariance, up to the variance
    solved: Floats  # (n,) t over that factor
    length: float
    constant: float
    variance: float

    @classmethod
    def of(cls, z: Floats, t: Floats) -> Depth:
        """The regression with the most likely length, given points (n, d) and values (n,)."""
        lengths = np.array(_LENGTHS) * math.sqrt(z.shape[1])
        return max((cls._with_length(z, t, float(length)) for length in lengths), key=cls.log_density)

    @classmethod
    def _with_length(cls, z: Floats, t: Floats, length: float) -> Depth:
        factor = _factor(z, length)
        ones, solved = _over(factor, np.ones(len(t))), _over(factor, t)
        constant = float(ones @ solved / (ones @ ones))
        rest = solved - constant * ones
        return cls(z, t - constant, factor, rest, length, constant, max(float(rest @ rest) / len(t), _TINY))

    def log_density(self) -> float:
        """Log density of the values, with the best variance, and of the length."""
        n, d = self.z.shape
        unusual = math.log(self.length / math.sqrt(d) / _USUAL) / _WIDTH
        log_det = float(np.sum(np.log(np.diagonal(self.factor))))
        return float(-0.5 * n * math.log(self.variance) - log_det - 0.5 * unusual**2)

    def __call__(self, z: Floats) -> tuple[Floats, Floats]:
        """Predictions of t at points (m, d) and their standard deviations: (m,) each."""
        k = _over(self.factor, _matern(self.z, z, self.length))
        left = np.maximum(1 - np.sum(k * k, axis=0), _TINY)
        return self.constant + self.solved @ k, np.sqrt(self.variance * left)

    def information(self, z: Floats, height: float) -> Floats:
        """What values at points (m, d) would tell of modes of a height: (m,).

        It is zero where it is certain that t is below the height, or above it.
        """
        mean, sd = self(z)
        x = np.abs(mean - height) / sd
        return np.asarray(sd * (np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi) - x * scipy.special.ndtr(-x)))

    def believing(self, point: Floats) -> Depth:
        """The regression as if the prediction at a point (d,) were exact."""
        mean, _ = self(point[None])
        z, t = np.concatenate([self.z, point[None]]), np.append(self.t, mean[0] - self.constant)
        factor = _factor(z, self.length)
        return self._replace(z=z, t=t, factor=factor, solved=_over(factor, t))


def _candidates(z: Floats, t: Floats, rule: SurveyRule, rng: np.random.Generator) -> Floats:
    """Places over the prior, and around the best points: (m, d)."""
    best = z[np.argsort(-t, kind="stable")[: rule.near_best]]
    near = best[rng.integers(len(best), size=rule.candidates // 2)]
    near = near + rule.near_scale * rng.standard_normal(near.shape)
    places = np.concatenate([Sobol().normal(drawn_generator(rng), rule.candidates, z.shape[1]), near])
    return np.asarray(places[np.max(np.abs(places), axis=1) < rule.farthest])


def _distinct(z: Floats, t: Floats, most: int) -> tuple[Floats, Floats]:
    """The best of the points, without those that are as good as the same."""
    _, rows = np.unique(np.round(z / _SAME), axis=0, return_index=True)
    rows = rows[np.argsort(-t[rows], kind="stable")[:most]]
    return z[rows], t[rows]


def _matern(a: Floats, b: Floats, length: float) -> Floats:
    """The Matern kernel of two derivatives between points (n, d) and (m, d)."""
    r = np.sqrt(5 * np.maximum(squared_distances(a, b), 0.0)) / length
    return np.asarray((1 + r + r * r / 3) * np.exp(-r))


def _factor(z: Floats, length: float) -> Floats:
    return np.asarray(np.linalg.cholesky(_matern(z, z, length) + _NUGGET * np.eye(len(z))), dtype=np.float64)


def _over(factor: Floats, columns: Floats) -> Floats:
    return np.asarray(scipy.linalg.solve_triangular(factor, columns, lower=True, check_finite=False))
