r"""Euclidean coordinates of a Gaussian: mean and Cholesky factor with a log diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.arrays import Array, to_numpy
from qbvi.families.base import GaussianFamily

__all__ = ["FactorCoordinates"]

Floats = NDArray[np.float64]


class Opened(NamedTuple):
    """Mean (d,) and lower triangular factor (d, d)."""

    mu: Floats
    L: Floats


@dataclass(frozen=True)
class FactorCoordinates:
    r"""The vector ``x = (mu, log diag L, L below the diagonal)`` of a Gaussian, :math:`S = L L'`.

    Entries of L that the family keeps at zero are left out: all below the diagonal for a diagonal
    covariance, those between groups for a block-diagonal one. Every family then is a plain
    Euclidean space.

    Examples
    --------
    >>> from qbvi.families import DiagonalGaussian, Gaussian
    >>> [FactorCoordinates(family).size for family in (Gaussian(3), DiagonalGaussian(3))]
    [9, 6]
    """

    family: GaussianFamily

    @property
    def size(self) -> int:
        """Length of ``x``."""
        return 2 * self.family.dim + len(self._below[0])

    def coordinates(self, q: Array) -> Floats:
        """The coordinates of a member of the family."""
        mu, cov = to_numpy(self.family.mean(q)), to_numpy(self.family.cov(q))
        sd = np.sqrt(np.diag(cov))  # scaled by it, the factor is accurate in any units
        L = sd[:, None] * np.linalg.cholesky(cov / np.outer(sd, sd))
        return np.concatenate([mu, np.log(np.diag(L)), L[self._below]])

    def open(self, x: Floats) -> Opened:
        """Mean and factor for these coordinates."""
        d = self.family.dim
        L = np.diag(np.exp(x[d : 2 * d]))
        L[self._below] = x[2 * d :]
        return Opened(x[:d], L)

    def member(self, x: Floats) -> Array:
        """The member of the family with these coordinates."""
        mu, L = self.open(x)
        standard = self.family.start(np.zeros(len(mu)), np.ones(len(mu)))
        return self.family.deform(standard, mu, L, scipy.linalg.solve_triangular(L, np.eye(len(mu)), lower=True))

    def score(self, x: Floats, theta: Floats) -> Floats:
        r"""Gradient of ``log q`` at each draw: (n, d) -> (n, size).

        .. math::
            \nabla_\mu = v, \quad \nabla_L = \mathrm{tril}(v z') - \mathrm{diag}(L)^{-1}, \quad
            z = L^{-1}(\theta - \mu), \; v = L^{-T} z
        """
        mu, L = self.open(x)
        z = scipy.linalg.solve_triangular(L, (theta - mu).T, lower=True).T
        v = scipy.linalg.solve_triangular(L, z.T, lower=True, trans="T").T
        i, j = self._below
        return np.concatenate([v, v * z * np.diag(L) - 1, v[:, i] * z[:, j]], axis=1)

    def gradient(self, x: Floats, by_mean: Floats, by_factor: Floats) -> Floats:
        """Combine gradients by mu (..., d) and by L (..., d, d) to one by ``x`` (..., size)."""
        by_log = np.diagonal(by_factor, axis1=-2, axis2=-1) * np.exp(x[self.family.dim : 2 * self.family.dim])
        i, j = self._below
        return np.concatenate([by_mean, by_log, by_factor[..., i, j]], axis=-1)

    @cached_property
    def _below(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        free = np.tril(to_numpy(self.family.restrict(np.ones((self.family.dim, self.family.dim)))), -1)
        i, j = np.nonzero(free)
        return i, j
