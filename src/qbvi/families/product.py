"""Products of independent factors: the paper's block-diagonal posterior, and mean field."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from qbvi.arrays import Array, array_namespace, device
from qbvi.families.base import Curve, Family, GaussianFamily, Part

__all__ = ["GaussianProduct", "Product", "product"]


@dataclass(frozen=True)
class Product(Family):
    """Independent factors, each over its own columns of theta.

    Natural parameters are concatenated.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import Gaussian
    >>> family = Product((Gaussian(1), Gaussian(2)), ((2,), (0, 1)))
    >>> q = family.start(np.array([1.0, 2.0, 3.0]), np.ones(3))
    >>> family.mean(q)
    array([1., 2., 3.])
    """

    factors: tuple[Family, ...]
    columns: tuple[tuple[int, ...], ...]

    @property
    def dim(self) -> int:  # type: ignore[override]
        """Number of coordinates of all factors."""
        return sum(factor.dim for factor in self.factors)

    @property
    def size(self) -> int:
        """Number of natural parameters of all factors."""
        return sum(factor.size for factor in self.factors)

    @property
    def n_stored(self) -> int:
        """Length of the factors' members, concatenated."""
        return sum(factor.n_stored for factor in self.factors)

    def start(self, loc: Array, scale: Array) -> Array:
        """Start every factor."""
        return self._join([f.start(self._pick(loc, c), self._pick(scale, c)) for f, c in self._parts()])

    def from_moments(self, mean: Array, cov: Array) -> Array:
        """Keep the factors' blocks of the covariance."""
        blocks = [
            # Pick the rows, then the columns.
            f.from_moments(self._pick(mean, c), self._pick(self._pick(cov, c).T, c).T)
            for f, c in self._parts()
        ]
        return self._join(blocks)

    def transport(self, q: Array, z: Array) -> Array:
        """Transform standard normal draws to draws from every factor."""
        return self._columnwise(lambda f, part, block: f.transport(part, block), q, z)

    def log_prob(self, q: Array, theta: Array) -> Array:
        """Sum over the factors: (n, d) -> (n,)."""
        return sum(
            f.log_prob(part, self._pick(theta, c)) for (f, c), part in zip(self._parts(), self._split(q), strict=True)
        )

    def entropy(self, q: Array) -> Array:
        """Sum over the factors."""
        return sum(f.entropy(part) for f, part in zip(self.factors, self._split(q), strict=True))

    def mean(self, q: Array) -> Array:
        """Mean (d,), in the order of theta."""
        return self._scatter([f.mean(part) for f, part in zip(self.factors, self._split(q), strict=True)])

    def sd(self, q: Array) -> Array:
        """Standard deviations (d,), in the order of theta."""
        return self._scatter([f.sd(part) for f, part in zip(self.factors, self._split(q), strict=True)])

    def cov(self, q: Array) -> Array:
        """Covariance (d, d), zero between factors."""
        xp = array_namespace(q)
        rows = []
        for i, (factor, part) in enumerate(zip(self.factors, self._split(q), strict=True)):
            block = factor.cov(part)
            zeros = [xp.zeros((factor.dim, f.dim), dtype=q.dtype, device=device(q)) for f in self.factors]
            rows.append(self._scatter([block if i == j else zero for j, zero in enumerate(zeros)]))
        return self._scatter([row.T for row in rows])

    def natural(self, q: Array) -> Array:
        """Natural parameters of the factors, concatenated."""
        return self._join([f.natural(part) for f, part in zip(self.factors, self._split(q), strict=True)])

    def mean_parameter(self, q: Array) -> Array:
        """Mean parameters of the factors, concatenated."""
        return self._join([f.mean_parameter(part) for f, part in zip(self.factors, self._split(q), strict=True)])

    def log_normaliser(self, lam: Array) -> Array:
        """Sum over the factors."""
        return sum(f.log_normaliser(part) for f, part in zip(self.factors, self._directions(lam), strict=True))

    def statistics(self, theta: Array) -> Array:
        """Statistics of the factors, concatenated: (n, d) -> (n, k)."""
        return self._join([f.statistics(self._pick(theta, c)) for f, c in self._parts()])

    def score(self, q: Array, theta: Array) -> Array:
        """Scores of the factors, concatenated: (n, d) -> (n, k)."""
        parts = zip(self._parts(), self._split(q), strict=True)
        return self._join([f.score(part, self._pick(theta, c)) for (f, c), part in parts])

    def mean_score(self, q: Array, theta: Array, weights: Array) -> Array:
        """Mean scores of the factors, concatenated: (n, d), (n,) -> (k,)."""
        return self._join(self._by_factor(lambda f, part, block: f.mean_score(part, block, weights), q, theta))

    def score_variance(self, q: Array) -> Array:
        """Variances of the factors' scores, concatenated."""
        return self._join([f.score_variance(part) for f, part in zip(self.factors, self._split(q), strict=True)])

    def scale_parts(self, q: Array, direction: Array, mean_rate: float, precision_rate: float) -> Array:
        """Scale the parts of a direction, factor by factor."""
        parts = zip(self.factors, self._split(q), self._directions(direction), strict=True)
        return self._join([f.scale_parts(part, move, mean_rate, precision_rate) for f, part, move in parts])

    def move(self, q: Array, update: Array, curve: Curve) -> tuple[Array, Array]:
        """Move every factor; the result is inside the domain only if all factors are."""
        xp = array_namespace(q, update)
        parts = zip(self.factors, self._split(q), self._directions(update), strict=True)
        moved = [f.move(part, change, curve) for f, part, change in parts]
        return self._join([part for part, _ in moved]), xp.all(xp.stack([inside for _, inside in moved]))

    def move_factor(self, q: Array, update: Array, limit: float) -> Array:
        """Move the Cholesky factor of every factor."""
        parts = zip(self.factors, self._split(q), self._directions(update), strict=True)
        return self._join([f.move_factor(part, change, limit) for f, part, change in parts])

    def features(self, q: Array, theta: Array) -> Array:
        """Features of the factors, concatenated: (n, d) -> (n, k)."""
        return self._join(self._by_factor(lambda f, part, block: f.features(part, block), q, theta))

    def coordinates(self, q: Array, theta: Array) -> Array:
        """Whitened coordinates of the factors, concatenated: (n, d) -> (n, n_whitened)."""
        return self._join(self._by_factor(lambda f, part, block: f.coordinates(part, block), q, theta))

    @property
    def n_whitened(self) -> int:
        """Sum over the factors."""
        return sum(factor.n_whitened for factor in self.factors)

    def defensive(self, q: Array) -> Array:
        """Defensive members of the factors, concatenated."""
        return self._join([f.defensive(part) for f, part in zip(self.factors, self._split(q), strict=True)])

    def log_base(self, theta: Array) -> Array:
        """Sum over the factors: (n, d) -> (n,)."""
        return sum(f.log_base(self._pick(theta, c)) for f, c in self._parts())

    def move_parameters(self, q: Array, update: Array, delta: float) -> Array:
        """Move the textbook parameters of every factor."""
        parts = zip(self.factors, self._split(q), self._directions(update), strict=True)
        return self._join([f.move_parameters(part, change, delta) for f, part, change in parts])

    def euclidean(self, q: Array, direction: Array) -> Array:
        """Euclidean gradients, factor by factor."""
        parts = zip(self.factors, self._split(q), self._directions(direction), strict=True)
        return self._join([f.euclidean(part, change) for f, part, change in parts])

    @property
    def independent_parts(self) -> tuple[Part, ...]:
        """The factors, each with its columns."""
        return tuple(Part(factor, columns) for factor, columns in self._parts())

    def members(self, q: Array) -> list[Array]:
        """The members of the factors."""
        return self._split(q)

    def _parts(self) -> Iterator[tuple[Family, tuple[int, ...]]]:
        return zip(self.factors, self.columns, strict=True)

    def _split(self, q: Array) -> list[Array]:
        return _cut(q, [f.n_stored for f in self.factors])

    def _directions(self, direction: Array) -> list[Array]:
        return _cut(direction, [f.size for f in self.factors])

    def _join(self, parts: list[Array]) -> Array:
        return array_namespace(*parts).concat(parts, axis=-1)

    def _pick(self, array: Array, columns: tuple[int, ...]) -> Array:
        xp = array_namespace(array)
        return xp.take(array, xp.asarray(columns, device=device(array)), axis=-1)

    def _block(self, precision: Array, columns: tuple[int, ...]) -> Array:
        if precision.ndim == 1:
            return self._pick(precision, columns)
        return self._pick(self._pick(precision, columns).T, columns).T

    def _scatter(self, parts: list[Array]) -> Array:
        """Put the factors' columns back in the order of theta, along the last axis."""
        order = np.argsort(np.concatenate([np.asarray(c) for c in self.columns]))
        return self._pick(self._join(parts), tuple(int(i) for i in order))

    def _by_factor(self, apply: Callable[[Family, Array, Array], Array], q: Array, draws: Array) -> list[Array]:
        return [
            apply(f, part, self._pick(draws, c)) for (f, c), part in zip(self._parts(), self._split(q), strict=True)
        ]

    def _columnwise(self, apply: Callable[[Family, Array, Array], Array], q: Array, draws: Array) -> Array:
        parts = zip(self._parts(), self._split(q), strict=True)
        return self._scatter([apply(f, part, self._pick(draws, c)) for (f, c), part in parts])


@dataclass(frozen=True)
class GaussianProduct(Product, GaussianFamily):
    """Independent Gaussians: a block-diagonal covariance.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import Gaussian
    >>> family = GaussianProduct((Gaussian(1), Gaussian(1)), ((0,), (1,)))
    >>> family.restrict(np.ones((2, 2)))
    array([[1., 0.],
           [0., 1.]])
    """

    factors: tuple[GaussianFamily, ...]

    @property
    def independent_parts(self) -> tuple[Part, ...]:
        """Itself: methods treat all Gaussian coordinates together."""
        return (Part(self, tuple(range(self.dim))),)

    def members(self, q: Array) -> list[Array]:
        """The one member."""
        return [q]

    def mirrored_mean_score(self, q: Array, theta: Array, weights: Array, mirrored: Array) -> Array:
        """Mean scores of the factors, concatenated."""
        return self._join(
            self._by_factor(lambda f, part, block: f.mirrored_mean_score(part, block, weights, mirrored), q, theta)  # type: ignore[attr-defined]
        )

    def whiten(self, q: Array, theta: Array) -> Array:
        """Undo `transport`."""
        return self._columnwise(lambda f, part, block: f.coordinates(part, block), q, theta)

    def coordinates(self, q: Array, theta: Array) -> Array:
        """The standard normals, in the order of theta."""
        return self.whiten(q, theta)

    def embed(self, linear: Array, precision: Array) -> Array | None:
        """Embed block by block; None if the quadratic form couples two factors."""
        if precision.ndim == 2 and self._couples(precision):
            return None
        parts = [f.embed(self._pick(linear, c), self._block(precision, c)) for f, c in self._parts()]
        return None if any(part is None for part in parts) else self._join(parts)

    def restrict(self, curvature: Array) -> Array:
        """The blocks of the factors."""
        xp = array_namespace(curvature)
        rows = []
        for i, (factor, columns) in enumerate(self._parts()):
            block = factor.restrict(self._block(curvature, columns))
            zeros = [
                xp.zeros((factor.dim, f.dim), dtype=curvature.dtype, device=device(curvature)) for f in self.factors
            ]
            rows.append(self._scatter([block if i == j else zero for j, zero in enumerate(zeros)]))
        return self._scatter([row.T for row in rows])

    def quadratic_kernel(self, z: Array) -> Array:
        """Sum over the factors."""
        return sum(f.quadratic_kernel(self._pick(z, c)) for f, c in self._parts())

    def deform(self, q: Array, shift: Array, root: Array, inverse_root: Array) -> Array:
        """Deform every factor by its block."""
        parts = [
            f.deform(part, self._pick(shift, c), self._block(root, c), self._block(inverse_root, c))
            for (f, c), part in zip(self._parts(), self._split(q), strict=True)
        ]
        return self._join(parts)

    def coefficients(self, w: Array) -> tuple[Array, Array]:
        """Coefficients of the factors, in the order of theta; C is zero between factors."""
        xp = array_namespace(w)
        found = [f.coefficients(part) for f, part in zip(self.factors, self._directions(w), strict=True)]
        rows = []
        for i, (_, block) in enumerate(found):
            zeros = [xp.zeros((block.shape[0], f.dim), dtype=w.dtype, device=device(w)) for f in self.factors]
            rows.append(self._scatter([block if i == j else zero for j, zero in enumerate(zeros)]))
        return self._scatter([b for b, _ in found]), self._scatter([row.T for row in rows])

    def _parts(self) -> Iterator[tuple[GaussianFamily, tuple[int, ...]]]:
        return zip(self.factors, self.columns, strict=True)

    def _couples(self, precision: Array) -> bool:
        xp = array_namespace(precision)
        owner = np.empty(self.dim, dtype=int)
        for i, columns in enumerate(self.columns):
            owner[list(columns)] = i
        apart = xp.asarray(owner[:, None] != owner[None, :], device=device(precision))
        return bool(xp.any(apart & (precision != 0)))


def product(factors: tuple[Family, ...], columns: tuple[tuple[int, ...], ...]) -> Product:
    """The product of independent factors; a Gaussian family if all factors are Gaussian."""
    if all(isinstance(factor, GaussianFamily) for factor in factors):
        return GaussianProduct(factors, columns)  # type: ignore[arg-type]
    return Product(factors, columns)


def _cut(array: Array, lengths: list[int]) -> list[Array]:
    ends = np.cumsum([0, *lengths])
    return [array[int(a) : int(b)] for a, b in pairwise(ends)]
