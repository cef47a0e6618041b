"""Sample: a posterior that is known by draws alone, such as those of a Markov chain."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.families.base import Density

__all__ = ["Sample"]

Floats = NDArray[np.float64]

_MOST_FIXED = 2**15  # draws that fixed samples have at most


@dataclass(frozen=True)
class Sample(Density):
    """Draws of several chains, each with the log joint density there.

    A member is the chains (chains, steps, d), followed by their log densities (chains, steps).

    Parameters
    ----------
    dim
        Number of coordinates.
    n_chains, n_steps
        Numbers of chains, and of draws of each.

    Examples
    --------
    >>> import numpy as np
    >>> chains = np.arange(12.0).reshape(2, 3, 2)
    >>> sample = Sample(2, 2, 3)
    >>> q = sample.pack(chains, np.zeros((2, 3)))
    >>> sample.mean(q), sample.draw(q, np.random.default_rng(1), 5).shape
    (array([5., 6.]), (5, 2))
    """

    dim: int
    n_chains: int
    n_steps: int

    @property
    def n_stored(self) -> int:
        """Length of the array that describes a member."""
        return self.n_chains * self.n_steps * (self.dim + 1)

    def pack(self, chains: Floats, log_joint: Floats) -> Floats:
        """The array that describes a member."""
        return np.concatenate([np.ravel(chains), np.ravel(log_joint)])

    def chains(self, q: Array) -> Floats:
        """The draws: (chains, steps, d)."""
        shape = (self.n_chains, self.n_steps, self.dim)
        return np.asarray(q, dtype=np.float64)[: prod(shape)].reshape(shape)

    def log_joint(self, q: Array) -> Floats:
        """Log prior plus log-likelihood at the draws: (chains, steps)."""
        shape = (self.n_chains, self.n_steps)
        return np.asarray(q, dtype=np.float64)[-prod(shape) :].reshape(shape)

    def draws(self, q: Array) -> Floats:
        """The draws of all chains: (n, d)."""
        return self.chains(q).reshape(-1, self.dim)

    def draw(self, q: Array, rng: np.random.Generator, n: int) -> Floats:
        """Some of the draws (n, d), each once unless there are too few."""
        held = self.draws(q)
        return np.asarray(held[rng.choice(len(held), n, replace=n > len(held))])

    def fixed_draws(self, q: Array, n: int) -> Floats:
        """All draws, or every so many of them if they are more than 2^15."""
        held = self.draws(q)
        return np.asarray(held[:: -(-len(held) // _MOST_FIXED)])

    def log_prob(self, q: Array, theta: Array) -> NoReturn:
        """Raise an error: draws have no density."""
        msg = "a posterior of `mcmc` is known by its draws and has no density: that of the fit it started from has one, as in chains.start.log_prob(...)"
        raise TypeError(msg)

    def mean(self, q: Array) -> Floats:
        """Mean of the draws (d,)."""
        return np.asarray(self.draws(q).mean(axis=0))

    def cov(self, q: Array) -> Floats:
        """Covariance of the draws (d, d)."""
        return np.atleast_2d(np.cov(self.draws(q), rowvar=False))

    def sd(self, q: Array) -> Floats:
        """Standard deviations of the draws (d,)."""
        return np.asarray(self.draws(q).std(axis=0, ddof=1))
