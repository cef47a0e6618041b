"""The base of the surrogate: a mixture of Gaussians, one for each mode that was found."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

__all__ = ["Base", "squares"]

Floats = NDArray[np.float64]

_FEWEST = 4.0  # effective draws for each dimension behind a new covariance, at least
_RIDGE = 1e-9  # relative, keeps a covariance positive definite


class Base(NamedTuple):
    """A mixture of Gaussians.

    Examples
    --------
    >>> import numpy as np
    >>> base = Base(np.array([0.5, 0.5]), np.array([[-3.0], [3.0]]), np.ones((2, 1, 1)))
    >>> base.mean, base.cov
    (array([0.]), array([[10.]]))
    """

    weights: Floats  # (k,)
    means: Floats  # (k, d)
    covs: Floats  # (k, d, d)

    @classmethod
    def one(cls, mean: Floats, cov: Floats) -> Base:
        """A single Gaussian."""
        return cls(np.ones(1), mean[None], cov[None])

    @classmethod
    def standard(cls, d: int) -> Base:
        """The standard Gaussian in d dimensions."""
        return cls.one(np.zeros(d), np.eye(d))

    def log_prob(self, u: Floats, widened: float = 1.0) -> Floats:
        """Log density at u (n, d), with covariances ``widened`` times as large: (n,)."""
        return np.asarray(np.logaddexp.reduce(self.log_parts(u, widened), axis=0))

    @property
    def mean(self) -> Floats:
        """Mean (d,)."""
        return np.asarray(self.weights @ self.means)

    @property
    def cov(self) -> Floats:
        """Covariance (d, d)."""
        apart = self.means - self.mean
        return np.asarray(self.within + (apart.T * self.weights) @ apart)

    @property
    def within(self) -> Floats:
        """Mean covariance of the components (d, d)."""
        return np.asarray(np.tensordot(self.weights, self.covs, axes=1))

    def is_connected(self, apart: float) -> bool:
        """Whether no two components are ``apart``, in standard deviations of the wider one.

        Examples
        --------
        >>> wide = Base(np.full(2, 0.5), np.array([[0.0], [4.0]]), np.array([[[1.0]], [[4.0]]]))
        >>> wide.is_connected(3.0), wide._replace(covs=np.ones((2, 1, 1))).is_connected(3.0)
        (True, False)
        """
        between = self.means - self.means[:, None]
        solved = np.linalg.solve(self.covs, between.transpose(0, 2, 1)).transpose(0, 2, 1)
        squares = np.sum(between * solved, axis=2)
        return bool(np.max(np.minimum(squares, squares.T)) < apart**2)

    def updated(self, u: Floats, weights: Floats) -> Base:
        """One step of the EM algorithm towards weighted draws u (n, d).

        A component that too few draws belong to keeps its mean and covariance.
        """
        parts = self.log_parts(u)
        shares = np.exp(parts - np.logaddexp.reduce(parts, axis=0)) * weights
        mass = shares.sum(axis=1)
        means, covs = self.means.copy(), self.covs.copy()
        for k, share in enumerate(shares):
            if mass[k] <= 0 or mass[k] ** 2 < _FEWEST * u.shape[1] * np.sum(share**2):
                continue
            means[k] = share @ u / mass[k]
            apart = u - means[k]
            cov = (apart.T * share) @ apart / mass[k]
            covs[k] = cov + _RIDGE * self.covs[k]
        return Base(mass / mass.sum(), means, covs)

    def log_parts(self, u: Floats, widened: float = 1.0) -> Floats:
        """Log of weight times density of every component: (k, n)."""
        d = u.shape[1]
        parts = np.empty((len(self.weights), len(u)))
        for k, (weight, mean, cov) in enumerate(zip(*self, strict=True)):
            factor = np.linalg.cholesky(widened * cov)
            z = scipy.linalg.solve_triangular(factor, (u - mean).T, lower=True, check_finite=False)
            constant = math.log(max(weight, 1e-300)) - 0.5 * d * math.log(2 * math.pi)
            parts[k] = constant - np.log(np.diagonal(factor)).sum() - 0.5 * np.sum(z**2, axis=0)
        return parts


def squares(theta: Floats, mean: Floats, cov: Floats) -> Floats:
    """Squared distances of points (n, d) from a mean, in standard deviations: (n,)."""
    apart = theta - mean
    return np.asarray(np.sum(apart * np.linalg.solve(cov, apart.T).T, axis=1))
