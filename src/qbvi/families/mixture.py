"""A mixture of densities: one for each mode of a posterior, with their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array, to_numpy
from qbvi.families.base import Density
from qbvi.random import FIXED_SEED

__all__ = ["Mixture"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Mixture(Density):
    """Weighted sums of densities, which may be of different kinds.

    A member is the weights (k,), followed by the member of each component.

    Parameters
    ----------
    components
        The densities, all of the same dimension.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import Gaussian
    >>> family = Gaussian(1)
    >>> modes = [family.start(np.array([at]), np.ones(1)) for at in (-3.0, 3.0)]
    >>> mixture = Mixture((family, family))
    >>> q = mixture.pack([0.5, 0.5], modes)
    >>> mixture.mean(q), mixture.cov(q)
    (array([0.]), array([[10.]]))
    """

    components: tuple[Density, ...]

    def __post_init__(self) -> None:
        dims = {component.dim for component in self.components}
        if len(dims) != 1:
            msg = f"`components` must be one or more densities of one dimension, got dimensions {sorted(dims)}"
            raise ValueError(msg)

    @property
    def dim(self) -> int:  # type: ignore[override]
        """Number of coordinates."""
        return self.components[0].dim

    @property
    def n_stored(self) -> int:
        """Length of the array that describes a member."""
        return len(self.components) + sum(component.n_stored for component in self.components)

    def pack(self, weights: Sequence[float] | Floats, members: Sequence[Array]) -> Floats:
        """The array that describes a member; the weights are divided by their sum."""
        shares = np.asarray(weights, dtype=np.float64)
        if shares.shape != (len(self.components),) or not (np.all(shares >= 0) and shares.sum() > 0):
            msg = f"`weights` must be {len(self.components)} numbers, zero or positive, one for each component, got {weights}"
            raise ValueError(msg)
        return np.concatenate([shares / shares.sum(), *(to_numpy(member) for member in members)])

    def unpack(self, q: Array) -> tuple[Floats, list[Floats]]:
        """The weights (k,), and the member of each component."""
        flat, k = np.asarray(q, dtype=np.float64), len(self.components)
        ends = np.cumsum([k, *(component.n_stored for component in self.components)]).tolist()
        return flat[:k], [flat[i:j] for i, j in pairwise(ends)]

    def draw(self, q: Array, rng: np.random.Generator, n: int) -> Floats:
        """Independent draws: (n, d)."""
        weights, members = self.unpack(q)
        return self._drawn(members, rng.multinomial(n, weights), rng)

    def fixed_draws(self, q: Array, n: int) -> Floats:
        """A sample (n, d) that is the same at every call.

        Each component has its own fixed sample, of a size in proportion to its weight.
        """
        weights, members = self.unpack(q)
        pairs = -(-n // 2)  # fixed samples are made in pairs
        counts = 2 * np.diff(np.round(np.concatenate([[0.0], np.cumsum(weights)]) * pairs).astype(int))
        parts = zip(self.components, members, counts.tolist(), strict=True)
        drawn = np.concatenate([to_numpy(part.fixed_draws(member, m)) for part, member, m in parts if m])
        return np.asarray(np.random.default_rng(FIXED_SEED).permutation(drawn)[:n])

    def log_prob(self, q: Array, theta: Array) -> Floats:
        """Log density at each draw: (n, d) -> (n,)."""
        weights, members = self.unpack(q)
        with np.errstate(divide="ignore"):
            log_weights = np.log(weights)
        parts = [
            log_weight + to_numpy(component.log_prob(member, theta))
            for log_weight, component, member in zip(log_weights, self.components, members, strict=True)
        ]
        return np.asarray(np.logaddexp.reduce(parts, axis=0))

    def mean(self, q: Array) -> Floats:
        """Mean (d,)."""
        weights, members = self.unpack(q)
        return np.asarray(weights @ self._means(members))

    def cov(self, q: Array) -> Floats:
        """Covariance (d, d): the mean one of the components, and that of their means."""
        weights, members = self.unpack(q)
        means = self._means(members)
        apart = means - weights @ means
        covs = [to_numpy(part.cov(member)) for part, member in zip(self.components, members, strict=True)]
        return np.asarray(np.tensordot(weights, np.stack(covs), axes=1) + (apart.T * weights) @ apart)

    def sd(self, q: Array) -> Floats:
        """Standard deviations (d,)."""
        return np.asarray(np.sqrt(np.diagonal(self.cov(q))))

    def _means(self, members: Sequence[Floats]) -> Floats:
        return np.stack([to_numpy(part.mean(member)) for part, member in zip(self.components, members, strict=True)])

    def _drawn(self, members: Sequence[Floats], counts: NDArray[np.int64], rng: np.random.Generator) -> Floats:
        parts = zip(self.components, members, counts.tolist(), strict=True)
        drawn = np.concatenate([to_numpy(part.draw(member, rng, m)) for part, member, m in parts if m])
        return np.asarray(drawn[rng.permutation(len(drawn))])
