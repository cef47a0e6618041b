"""The best member of a variational family, in closed form or by quadrature.

Every estimate is compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln

import qbvi
from qbvi.exact import ExactBound, GaussianPrior, Noise, Point, hermite

__all__ = ["Best", "LogisticBound", "MeanFieldBest", "MeanFieldBound", "best_gaussian", "gaussian_bound"]

Floats = NDArray[np.float64]

_SETTLED = 1e-9  # norm of gradient and last change below which the optimum counts as found


class Best(NamedTuple):
    """A Gaussian and its lower bound."""

    mean: Floats  # (d,)
    cov: Floats  # (d, d)
    bound: float


@dataclass(frozen=True, eq=False)
class LogisticBound:
    r"""Lower bound of logistic regression under any Gaussian.

    It is a sum of one-dimensional integrals, computed as by ``method="exact"``:

    .. math::
        \mathcal{L} = -\sum_i E[\mathrm{softplus}(b_i)] - KL(q \| N(0, v I)), \quad
        b_i \sim N(s_i x_i'\mu,\, x_i' S x_i), \; s_i = 1 - 2 y_i

    Parameters
    ----------
    design : array (n, d)
        Design matrix, including the column of ones.
    y : array (n,)
        Zeros and ones.
    prior_variance : float
        Prior variance v of every coefficient.

    Examples
    --------
    >>> problem = LogisticBound(np.array([[1.0], [1.0], [-2.0]]), np.array([1.0, 0.0, 0.0]), 5.0)
    >>> best = problem.best()
    >>> best.bound > problem(best.mean + 0.1, best.cov)
    True
    """

    design: Floats
    y: Floats
    prior_variance: float

    def __call__(self, mean: Floats, cov: Floats) -> float:
        """The bound of N(mean, cov)."""
        return self._exact.at(mean, np.asarray(np.linalg.inv(cov))).bound

    def best(self, diagonal: bool = False) -> Best:
        """The Gaussian with the highest bound."""
        point = _highest(self._exact, diagonal)
        return Best(point.mean, _inverse(point.precision), point.bound)

    @cached_property
    def _exact(self) -> ExactBound:
        model = qbvi.models.Logistic(self.design, self.y, intercept=False)
        return ExactBound(model, _independent(self.design.shape[1], self.prior_variance))


class MeanFieldBest(NamedTuple):
    """A mean-field posterior and its lower bound.

    The coefficients have N(mean, cov), and the noise variance has InverseGamma(alpha, beta).
    """

    mean: Floats  # (d,)
    cov: Floats  # (d, d)
    alpha: float
    beta: float
    bound: float


@dataclass(frozen=True, eq=False)
class MeanFieldBound:
    """Lower bound of linear regression under a Gaussian times an inverse gamma, in closed form.

    Given one factor, the best other factor has a closed form too.

    Parameters
    ----------
    design : array (n, d)
    y : array (n,)
    prior_variance : float
        Prior variance of every coefficient.
    alpha, beta : float
        Parameters of the inverse-gamma prior of the noise variance.

    Examples
    --------
    >>> x = np.arange(6.0)
    >>> design, y = np.column_stack([np.ones(6), x]), 1 + x + 0.1 * (-1) ** x
    >>> problem = MeanFieldBound(design, y, 5.0, 3.0, 1.0)
    >>> problem.best().alpha  # the prior's alpha plus half the number of rows
    6.0
    """

    design: Floats
    y: Floats
    prior_variance: float
    alpha: float
    beta: float

    def __call__(self, mean: Floats, cov: Floats, alpha: float, beta: float) -> float:
        """The bound of N(mean, cov) x InverseGamma(alpha, beta)."""
        n, d = self.design.shape
        v, precision, log_variance = self.prior_variance, alpha / beta, math.log(beta) - digamma(alpha)
        likelihood = -0.5 * n * (math.log(2 * math.pi) + log_variance) - 0.5 * precision * self._squares(mean, cov)
        log_ratio = d * math.log(v) - np.linalg.slogdet(cov)[1]
        divergence = 0.5 * ((np.trace(cov) + mean @ mean) / v - d + log_ratio)
        prior = self.alpha * math.log(self.beta) - gammaln(self.alpha) - (self.alpha + 1) * log_variance
        entropy = alpha + math.log(beta) + gammaln(alpha) - (1 + alpha) * digamma(alpha)
        return float(likelihood - divergence + prior - self.beta * precision + entropy)

    def best(self, diagonal: bool = False) -> MeanFieldBest:
        """The best member of the family."""
        model = qbvi.models.Linear(self.design, self.y, intercept=False)
        prior = _independent(self.design.shape[1], self.prior_variance)
        point = _highest(ExactBound(model, prior, Noise(self.alpha, self.beta)), diagonal)
        assert point.noise is not None
        return MeanFieldBest(point.mean, _inverse(point.precision), *point.noise, point.bound)

    def _squares(self, mean: Floats, cov: Floats) -> float:
        """Expected sum of squared residuals."""
        residual = self.y - self.design @ mean
        return float(residual @ residual + np.sum((self.design @ cov) * self.design))


def best_gaussian(
    log_joint: Callable[[Floats], Floats], mean: Floats, cov: Floats, *, diagonal: bool = False, nodes: int = 9
) -> Best:
    r"""Find the best Gaussian for a smooth density of few dimensions, by quadrature.

    The grid has ``nodes ** d`` points. One iteration, with ``h`` = log joint - log q, is

    .. math::
        b = E[z h], \quad C = E[(z z' - I) h], \quad
        \mu \mathrel{+}= \tfrac12 L (I - C)^{-1} b, \quad
        S^{-1} = L^{-T} (I - \tfrac12 C) L^{-1}

    Parameters
    ----------
    log_joint
        The log joint density: (n, d) -> (n,).
    mean, cov
        A start near the optimum, such as a fit.
    diagonal
        Whether the covariance is diagonal. Then only the diagonal of the new precision is used.
    nodes
        Number of nodes in each direction.

    Examples
    --------
    >>> best = best_gaussian(lambda x: -0.5 * (x[:, 0] - 1) ** 2, np.zeros(1), np.eye(1) / 2)
    >>> best.mean.round(6), best.cov.round(6)
    (array([1.]), array([[1.]]))
    """
    z, weights = _grid(nodes, len(mean))
    cov = np.diag(np.diag(cov)) if diagonal else cov
    for _ in range(200):
        L = _factor(cov)
        h = _residual(log_joint, mean, L, z)
        centred = weights * (h - weights @ h)
        b, C = centred @ z, (z.T * centred) @ z
        if np.linalg.norm(b) + np.linalg.norm(np.diag(C) if diagonal else C) < 1e-8:
            return Best(mean, cov, float(weights @ h))
        # Half steps, because full steps oscillate around the optimum of a skewed density.
        mean = mean + 0.5 * L @ np.linalg.solve(np.eye(len(mean)) - C, b)
        new = np.eye(len(mean)) - 0.5 * C
        cov = L @ _inverse(np.diag(new) if diagonal else new) @ L.T
    raise RuntimeError(_NOT_SETTLED)


def gaussian_bound(log_joint: Callable[[Floats], Floats], mean: Floats, cov: Floats, nodes: int = 9) -> float:
    """The lower bound of N(mean, cov), by the quadrature of `best_gaussian`.

    Examples
    --------
    The bound of the exact posterior is the log evidence, here log 2 pi:

    >>> log_joint = lambda x: -0.5 * np.sum(x**2, axis=1)
    >>> round(gaussian_bound(log_joint, np.zeros(2), np.eye(2)), 6)
    1.837877
    """
    z, weights = _grid(nodes, len(mean))
    return float(weights @ _residual(log_joint, mean, _factor(cov), z))


_NOT_SETTLED = "the exact optimum was not reached: give a start nearer to it, or rescale the columns of the data"


def _residual(log_joint: Callable[[Floats], Floats], mean: Floats, L: Floats, z: Floats) -> Floats:
    """The residual log p(y, theta) - log q(theta) at theta = mean + L z."""
    log_q = -0.5 * np.sum(z**2, axis=1) - np.sum(np.log(np.diag(L))) - 0.5 * len(mean) * math.log(2 * math.pi)
    return np.asarray(log_joint(mean + z @ L.T) - log_q)


def _highest(bound: ExactBound, diagonal: bool) -> Point:
    """Search to the last digits, beyond the tolerance of ``method="exact"``."""
    search = bound.start(np.zeros(bound.regression.data[0].shape[1]), diagonal)
    for _ in range(500):
        point = search.point
        away = np.linalg.norm(point.gradient) + np.linalg.norm(_inverse(point.target) - _inverse(point.precision))
        if away < _SETTLED:
            return point
        search = bound.step(search)
    raise RuntimeError(_NOT_SETTLED)


def _independent(d: int, variance: float) -> GaussianPrior:
    """Independent normal priors around zero."""
    return GaussianPrior(np.zeros(d), np.full(d, 1 / variance), -0.5 * d * math.log(2 * math.pi * variance))


def _inverse(precision: Floats) -> Floats:
    """The covariance (d, d) of a precision, (d, d) or a diagonal (d,)."""
    return np.asarray(np.diag(1 / precision) if precision.ndim == 1 else np.linalg.inv(precision))


def _factor(cov: Floats) -> Floats:
    return np.asarray(np.linalg.cholesky(cov), dtype=np.float64)


def _grid(nodes: int, d: int) -> tuple[Floats, Floats]:
    """Points (nodes^d, d) and weights (nodes^d,) of the standard normal in d dimensions."""
    z, weights = hermite(nodes)
    points = np.array(list(product(z, repeat=d)))
    return points, np.prod(np.array(list(product(weights, repeat=d))), axis=1)
