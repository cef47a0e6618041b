"""The proposal for importance sampling: Gaussian kernels at many centres, and one wide law."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.free.kernel import squared_distances
from qbvi.free.rules import Integration
from qbvi.free.symmetry import Group

__all__ = ["Copied", "Proposal"]

Floats = NDArray[np.float64]

_FEWEST = 10.0  # effective draws behind a bandwidth, at least
# Dimensions from which the centres move towards the mean. Kernels are wide there, and would spread
# the proposal beyond the density (West, 1993).
_MANY = 13
_RIDGE = 1e-10  # relative, keeps a covariance positive definite


class Proposal(NamedTuple):
    """Kernels of one shape at centres (m, d), mixed with a Student-t around the mean.

    The kernels have the shape of one mode, the Student-t that of all modes together. With modes far
    apart, kernels of that shape would hardly have any mass in the modes.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> centres = rng.standard_normal((100, 2))
    >>> proposal = Proposal.around(centres, np.zeros(2), np.eye(2), np.eye(2), 100.0)
    >>> u = proposal.draw(rng, 20000, Integration())
    >>> weights = np.exp(-0.5 * (u**2).sum(axis=1) - proposal.log_prob(u, Integration()))
    >>> bool(abs(np.mean(weights) / (2 * np.pi) - 1) < 0.05)
    True
    """

    centres: Floats  # (m, d)
    mean: Floats  # (d,)
    factor: Floats  # (d, d) Cholesky factor of the covariance ...
    within: Floats  # ... and of that within one mode (d, d)
    bandwidth: float  # scale of the kernels, relative to the covariance within one mode

    @classmethod
    def around(cls, centres: Floats, mean: Floats, cov: Floats, within: Floats, n_effective: float) -> Proposal:
        """The proposal for a density that these centres (m, d) are draws of.

        ``cov`` is the covariance of the density, and ``within`` that within one of its modes.

        The bandwidth is the normal reference rule (Silverman, 1986, section 4.3).
        """
        m, d = centres.shape
        n = min(max(n_effective, _FEWEST), m)
        bandwidth = float((4 / (d + 2) / n) ** (1 / (d + 4)))
        if d >= _MANY:
            centres = mean + math.sqrt(max(1 - bandwidth**2, 0.0)) * (centres - mean)
        return cls(centres, mean, _factor(cov), _factor(within), bandwidth)

    def draw(self, rng: np.random.Generator, n: int, rules: Integration) -> Floats:
        """Independent draws: (n, d)."""
        d = len(self.mean)
        is_wide = np.arange(n)[:, None] < rules.wide * n
        centre = np.where(is_wide, self.mean, self.centres[rng.integers(len(self.centres), size=n)])
        tail = np.sqrt(rules.wide_freedom / rng.chisquare(rules.wide_freedom, n))[:, None]
        z = rng.standard_normal((n, d))
        wide, narrow = rules.wide_scale * tail * (z @ self.factor.T), self.bandwidth * (z @ self.within.T)
        return np.asarray(centre + np.where(is_wide, wide, narrow))

    def log_prob(self, u: Floats, rules: Integration) -> Floats:
        """Log density at points u (n, d): (n,)."""
        d, mean = len(self.mean), self.mean
        narrow, broad = self.bandwidth * self.within, rules.wide_scale * self.factor
        exponents = -0.5 * squared_distances(_whitened(narrow, u - mean), _whitened(narrow, self.centres - mean))
        top = exponents.max(axis=1)
        kernels = top + np.log(np.mean(np.exp(exponents - top[:, None]), axis=1))
        kernels -= 0.5 * d * math.log(2 * math.pi) + _log_volume(narrow)
        wide = _log_student(_whitened(broad, u - mean), rules.wide_freedom) - _log_volume(broad)
        return np.asarray(np.logaddexp(math.log1p(-rules.wide) + kernels, math.log(rules.wide) + wide))


class Copied(NamedTuple):
    """A proposal for one of several copies, at a random one of them."""

    one: Proposal
    group: Group

    def draw(self, rng: np.random.Generator, n: int, rules: Integration) -> Floats:
        """Independent draws: (n, d)."""
        return self.group.scattered(self.one.draw(rng, n, rules), rng)

    def log_prob(self, u: Floats, rules: Integration) -> Floats:
        """Log density at points u (n, d), the mean over all images: (n,)."""
        parts = self.one.log_prob(self.group.images(u), rules).reshape(len(u), -1)
        return np.asarray(np.logaddexp.reduce(parts, axis=1) - math.log(len(self.group)))


def _factor(cov: Floats) -> Floats:
    """Cholesky factor of a covariance (d, d)."""
    ridge = _RIDGE * np.diag(np.diagonal(cov))
    return np.asarray(np.linalg.cholesky(cov + ridge), dtype=np.float64)


def _whitened(factor: Floats, apart: Floats) -> Floats:
    """Differences (n, d) on the scale of a Cholesky factor (d, d)."""
    return np.asarray(scipy.linalg.solve_triangular(factor, apart.T, lower=True, check_finite=False).T)


def _log_volume(factor: Floats) -> float:
    return float(np.log(np.diagonal(factor)).sum())


def _log_student(z: Floats, freedom: float) -> Floats:
    """Log density of a standard Student-t in d dimensions: (n, d) -> (n,)."""
    d = z.shape[1]
    constant = math.lgamma((freedom + d) / 2) - math.lgamma(freedom / 2) - 0.5 * d * math.log(freedom * math.pi)
    return np.asarray(constant - 0.5 * (freedom + d) * np.log1p(np.sum(z**2, axis=1) / freedom))
