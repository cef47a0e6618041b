"""The only place where numbers are drawn: how the draws of one step relate to each other.

Draws are made on the host by a NumPy generator, so that a seed means the same fit on every backend.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtri
from scipy.stats import qmc

__all__ = ["Antithetic", "Draws", "Independent", "Sobol", "orthogonal_pairs"]


class Draws(ABC):
    """Standard normal draws; rows ``s`` and ``s + n / group_size`` (and so on) depend on each other."""

    @abstractmethod
    def normal(self, rng: np.random.Generator, n: int, d: int) -> NDArray[np.float64]:
        """Draw (n, d) standard normals, each row with the right marginal law."""

    @abstractmethod
    def group_size(self, n: int) -> int:
        """How many of n draws belong to one group of dependent draws; groups are independent of each other."""

    def check(self, n: int) -> None:
        """Refuse a number of draws from which no independent baseline can be made."""
        if n < 2:
            msg = f"`n_samples` must be at least 2, got {n}; the baseline of one draw comes from the others"
            raise ValueError(msg)


@dataclass(frozen=True)
class Independent(Draws):
    """Every draw on its own.

    Examples
    --------
    >>> import numpy as np
    >>> Independent().normal(np.random.default_rng(1), 3, 2).shape
    (3, 2)
    """

    def normal(self, rng: np.random.Generator, n: int, d: int) -> NDArray[np.float64]:
        """Draw (n, d) independent standard normals."""
        return rng.standard_normal((n, d))

    def group_size(self, n: int) -> int:
        """One."""
        return 1


@dataclass(frozen=True)
class Antithetic(Draws):
    """Pairs ``z, -z``: odd and even parts of the integrand no longer disturb each other.

    Examples
    --------
    >>> import numpy as np
    >>> z = Antithetic().normal(np.random.default_rng(1), 4, 2)
    >>> bool(np.all(z[:2] == -z[2:]))
    True
    """

    def normal(self, rng: np.random.Generator, n: int, d: int) -> NDArray[np.float64]:
        """Draw n / 2 standard normals and mirror them."""
        half = rng.standard_normal((n // 2, d))
        return np.concatenate([half, -half])

    def group_size(self, n: int) -> int:
        """Two."""
        return 2

    def check(self, n: int) -> None:
        """Refuse an odd number of draws, or a single pair."""
        if n % 2 or n < 4:
            msg = f"`n_samples` must be even and at least 4 for antithetic draws, got {n}; try {max(4, n + n % 2)}"
            raise ValueError(msg)


@dataclass(frozen=True)
class Sobol(Draws):
    """Two independently scrambled Sobol sequences, interleaved.

    Two, so that each half has a baseline it does not depend on.

    Examples
    --------
    >>> import numpy as np
    >>> z = Sobol().normal(np.random.default_rng(1), 128, 3)
    >>> bool(np.all(np.abs(z.mean(axis=0)) < 0.02))
    True
    """

    def normal(self, rng: np.random.Generator, n: int, d: int) -> NDArray[np.float64]:
        """Draw n / 2 points from each of two scrambled sequences, as normals."""
        halves = [_sobol_normal(rng, n // 2, d) for _ in range(2)]
        return np.stack(halves, axis=1).reshape(n, d)

    def group_size(self, n: int) -> int:
        """Half of the draws share one scramble."""
        return n // 2

    def check(self, n: int) -> None:
        """Refuse what cannot be split into two halves."""
        if n % 2 or n < 4:
            msg = f"`n_samples` must be even and at least 4 for Sobol draws, got {n}; a power of two is best"
            raise ValueError(msg)


def orthogonal_pairs(rng: np.random.Generator, n: int, d: int) -> NDArray[np.float64]:
    """Draw n (even) standard normals as mirror pairs ``z, -z``, next to each other, along orthogonal directions.

    The radii are stratified. A design for regression: linear and quadratic terms do not disturb each other, and d pairs
    span all directions. All draws depend on each other.

    Examples
    --------
    >>> import numpy as np
    >>> z = orthogonal_pairs(np.random.default_rng(1), 6, 3)
    >>> np.abs(z[::2] @ z[::2].T - np.diag(np.sum(z[::2] ** 2, axis=1))).max() < 1e-12
    np.True_
    """
    m = n // 2
    blocks = [np.linalg.qr(rng.standard_normal((d, d)))[0].T for _ in range(-(-m // d))]
    strata = (rng.permutation(m) + rng.uniform(size=m)) / m
    radii = np.sqrt(2 * gammaincinv(d / 2, strata))
    z = np.concatenate(blocks)[:m] * radii[:, None]
    return np.stack([z, -z], axis=1).reshape(n, d)


_SMALLEST_UNIFORM = 2.0**-33  # half the grid of a 32-bit Sobol point: keeps ndtri finite at both ends


def _sobol_normal(rng: np.random.Generator, n: int, d: int) -> NDArray[np.float64]:
    points = qmc.Sobol(d, scramble=True, rng=rng)
    with warnings.catch_warnings():  # SciPy warns when n is no power of two: less balanced, still valid
        warnings.simplefilter("ignore", UserWarning)
        uniform = points.random(n)
    normal: NDArray[np.float64] = ndtri(np.clip(uniform, _SMALLEST_UNIFORM, 1 - _SMALLEST_UNIFORM))
    return normal
