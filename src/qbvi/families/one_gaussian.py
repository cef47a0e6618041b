r"""What the Gaussians with full and with diagonal covariance share.

Natural coordinates are :math:`\lambda = (S^{-1}\mu, -\tfrac12 S^{-1})`, statistics
:math:`\phi = (\theta, \theta\theta')`, and mean parameters :math:`m = (\mu, S + \mu\mu')`.
`qbvi.arrays.pack_symmetric` packs the matrices. A member stores a factor ``L`` of the covariance,
``S = L L'``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

from qbvi.arrays import Array, array_namespace
from qbvi.families.base import GaussianFamily, bounded_curve

__all__ = ["SQRT_HALF", "OneGaussian"]

SQRT_HALF = math.sqrt(0.5)  # scales (z^2 - 1) to unit variance

_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class OneGaussian(GaussianFamily):
    """A Gaussian that is not a product of others: its density follows from the determinant."""

    dim: int

    @abstractmethod
    def log_det(self, q: Array) -> Array:
        """Log-determinant of the factor ``L`` of the covariance."""

    @abstractmethod
    def _mean_score(self, q: Array, theta: Array, odd: Array, even: Array) -> Array:
        """Mean score with weights ``odd`` for its linear and ``even`` for its quadratic part."""

    def mean_score(self, q: Array, theta: Array, weights: Array) -> Array:
        """Mean score, from weighted moments of the whitened draws, without the (n, k) scores."""
        w = weights / weights.shape[0]
        return self._mean_score(q, theta, w, w)

    def mirrored_mean_score(self, q: Array, theta: Array, weights: Array, mirrored: Array) -> Array:
        """The linear part has the differences of the weights, the quadratic part their sums."""
        n = 2 * weights.shape[0]
        return self._mean_score(q, theta, (weights - mirrored) / n, (weights + mirrored) / n)

    def log_prob(self, q: Array, theta: Array) -> Array:
        """-1/2 |z|^2 - log|L| - d/2 log 2 pi."""
        xp = array_namespace(q, theta)
        z = self.whiten(q, theta)
        return -0.5 * xp.sum(z**2, axis=-1) - self.log_det(q) - 0.5 * self.dim * _LOG_2PI

    def entropy(self, q: Array) -> Array:
        """log|L| + d/2 (1 + log 2 pi)."""
        return self.log_det(q) + 0.5 * self.dim * (1 + _LOG_2PI)

    def move_parameters(self, q: Array, update: Array, delta: float) -> Array:
        """The move along the natural parameter, the paper's closed form (i)."""
        return self.move(q, update, bounded_curve(delta))[0]
