r"""The lower bound of a multinomial logistic regression under a Gaussian.

Each row has one predictor for every class except the first, :math:`\eta_i = B x_i`. Under a
Gaussian of the coefficients they are jointly Gaussian, so a row's expected log-likelihood is an
integral over as many dimensions as there are predictors:

.. math::
    E\,\ell_i = m_{i y_i} - E \log\Big(1 + \sum_c e^{\eta_{ic}}\Big), \qquad \eta_i \sim N(m_i, V_i)

A fixed set of nodes approximates it, with the same nodes for its first two derivatives by
:math:`m_i`: the class indicators less the expected probabilities, and minus the expected
:math:`\mathrm{diag}(p) - p p'`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Self

import numpy as np
from numpy.typing import NDArray

from qbvi.exact.bound import ExactBound, GaussianPrior, Noise, Regression, Seen, Spread
from qbvi.exact.quadrature import hermite
from qbvi.random import matched_normals

__all__ = ["MultinomialBound"]

Floats = NDArray[np.float64]

_CHUNK = 2**20  # numbers of a chunk of rows: 8 MB for each temporary array
# Gauss-Hermite nodes for each predictor, by the number of predictors; beyond, fixed draws.
_NODES = {1: 32, 2: 16, 3: 9}
_DRAWS = 512


@dataclass(frozen=True, eq=False)
class MultinomialBound(ExactBound):
    """The lower bound of `qbvi.models.MultinomialLogistic`; coefficients are ordered by class."""

    is_exact = False

    @classmethod
    def centred(cls, regression: Regression, prior: GaussianPrior, noise: Noise | None = None) -> Self:
        """The bound itself: every class has an intercept of its own, so no column is special."""
        return cls(regression, prior, noise)

    def _pass(self, mean: Floats, spread: Spread) -> Seen:
        d = len(mean)
        value, trace, slope, curvature = 0.0, 0.0, np.zeros(d), np.zeros((d, d))
        factor = np.diag(spread.factor) if spread.is_diagonal else spread.factor
        for design, is_class, weights in self._rows(d):
            found = _Expectations.of(design, is_class, mean, factor)
            value += float(weights @ found.value)
            slope += ((weights[:, None] * found.slope).T @ design).ravel()
            weighted = weights[:, None, None] * found.curvature
            trace += float(np.sum(weighted * found.variance))
            curvature += _blocks(weighted, design)
        return Seen(value, slope, curvature, trace, np.empty(0))

    def _rows(self, d: int) -> Iterator[tuple[Floats, Floats, Floats]]:
        """Design, indicators of the classes except the first, and weights, in parts."""
        design, y, *rest = self.regression.data
        classes = d // design.shape[1]
        weights = rest[0] if rest else np.ones(len(design))
        size = max(1, _CHUNK // (classes * (len(_rule(classes)[1]) + d)))
        for first in range(0, len(design), size):
            rows = slice(first, first + size)
            yield design[rows], (y[rows, None] == np.arange(1, classes + 1)).astype(float), weights[rows]


@dataclass(frozen=True, eq=False)
class _Expectations:
    """Expected log-likelihood of every row, and its derivatives by the means of its predictors."""

    value: Floats  # (n,)
    slope: Floats  # (n, c)
    curvature: Floats  # (n, c, c), minus the second derivative
    variance: Floats  # (n, c, c) of the predictors

    @classmethod
    def of(cls, design: Floats, is_class: Floats, mean: Floats, factor: Floats) -> Self:
        """For coefficients (c k,) with this mean and a factor (c k, c k) of their covariance."""
        classes, k = is_class.shape[1], design.shape[1]
        centre = design @ mean.reshape(classes, k).T
        spread = np.einsum("nk,ckd->ncd", design, factor.reshape(classes, k, -1), optimize=True)
        variance = spread @ np.swapaxes(spread, 1, 2)
        nodes, weights = _rule(classes)
        eta = centre[..., None] + _root(variance) @ nodes.T  # (n, c, nodes)
        top = np.maximum(eta.max(axis=1), 0.0)
        odds = np.exp(eta - top[:, None])
        total = np.exp(-top) + odds.sum(axis=1)
        p = odds / total[:, None]
        expected = p @ weights
        second = (weights * p) @ np.swapaxes(p, 1, 2)
        value = np.sum(is_class * centre, axis=1) - (np.log(total) + top) @ weights
        curvature = expected[:, :, None] * np.eye(classes) - second
        return cls(value, is_class - expected, curvature, variance)


def _blocks(weights: Floats, design: Floats) -> Floats:
    """The sum over rows of the Kronecker products of ``weights`` (c, c) with x x': (c k, c k)."""
    classes, k = weights.shape[1], design.shape[1]
    found = np.empty((classes, k, classes, k))
    for a, b in product(range(classes), repeat=2):
        found[a, :, b] = design.T @ (weights[:, a, b, None] * design)
    return found.reshape(classes * k, classes * k)


def _root(variance: Floats) -> Floats:
    """A factor of each variance matrix, also where it is singular."""
    values, vectors = np.linalg.eigh(variance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[:, None])


@lru_cache
def _rule(classes: int) -> tuple[Floats, Floats]:
    """Nodes (m, c) of standard normal predictors, and their weights (m,)."""
    if classes not in _NODES:
        return matched_normals(_DRAWS, classes), np.full(_DRAWS, 1 / _DRAWS)
    z, weights = hermite(_NODES[classes])
    nodes = np.array(list(product(z, repeat=classes)))
    return nodes, np.prod(list(product(weights, repeat=classes)), axis=1)
