"""What an approximating family implements, and the methods that follow from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from qbvi.arrays import Array, array_namespace, device
from qbvi.random import FIXED_SEED, Independent, matched_normals

__all__ = ["Curve", "Density", "Family", "GaussianFamily", "Part", "bounded_curve"]

Curve = Callable[[Array], tuple[Array, Array]]
r"""How far a step goes along each whitened direction of curvature.

It maps the eigenvalues ``c`` of the change to ``(rho, t)``. ``rho(c)`` replaces ``1 - c`` as the
factor of the precision, and ``t`` scales the move of the mean; see `qbvi.steps`.
"""


class Density(ABC):
    """Densities over flat ``theta`` of length `dim`: what a fit needs of its posterior.

    A member is a flat array ``q`` that only its own class can interpret.
    """

    dim: int

    @property
    @abstractmethod
    def n_stored(self) -> int:
        """Length of ``q``: how many numbers describe a member."""

    @abstractmethod
    def draw(self, q: Array, rng: np.random.Generator, n: int) -> Array:
        """Independent draws from ``q``: (n, d)."""

    def fixed_draws(self, q: Array, n: int) -> Array:
        """A sample of ``q`` (n, d) that is the same at every call."""
        return self.draw(q, np.random.default_rng(FIXED_SEED), n)

    @abstractmethod
    def log_prob(self, q: Array, theta: Array) -> Array:
        """Log density at each draw: (n, d) -> (n,)."""

    @abstractmethod
    def mean(self, q: Array) -> Array:
        """Mean (d,)."""

    @abstractmethod
    def cov(self, q: Array) -> Array:
        """Covariance (d, d)."""

    @abstractmethod
    def sd(self, q: Array) -> Array:
        """Standard deviations (d,)."""

    @property
    def independent_parts(self) -> tuple[Part, ...]:
        """The exponential families that it is a product of; none if it is not."""
        return ()

    def members(self, q: Array) -> list[Array]:
        """The member of every part, in the order of `independent_parts`."""
        return []


class Family(Density):
    r"""An exponential family over flat ``theta`` of length `dim`, with `size` natural parameters.

    .. math:: q(\theta) = h(\theta) \exp(\phi(\theta) \cdot \lambda - A(\lambda))

    A member is a flat array ``q`` that only its family can interpret. Directions are flat arrays
    of length `size` in natural coordinates.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of natural parameters."""

    @abstractmethod
    def start(self, loc: Array, scale: Array) -> Array:
        """Return the member with mean ``loc (d,)`` and independent entries of sd ``scale (d,)``."""

    @abstractmethod
    def from_moments(self, mean: Array, cov: Array) -> Array:
        """Return the member nearest to this mean (d,) and positive definite covariance (d, d)."""

    @abstractmethod
    def transport(self, q: Array, z: Array) -> Array:
        """Transform standard normal draws ``z (n, d)`` to draws from ``q``."""

    def draw(self, q: Array, rng: np.random.Generator, n: int) -> Array:
        """Independent draws from ``q``: (n, d)."""
        return self.transport(q, Independent().normal(rng, n, self.dim))

    def fixed_draws(self, q: Array, n: int) -> Array:
        """A quasi-random sample of ``q`` (n, d).

        Its mean and covariance are exactly those of a Gaussian ``q``.
        """
        return self.transport(q, matched_normals(n, self.dim))

    @abstractmethod
    def entropy(self, q: Array) -> Array:
        """Entropy in nats."""

    @abstractmethod
    def natural(self, q: Array) -> Array:
        """Natural parameter lam (k,)."""

    @abstractmethod
    def mean_parameter(self, q: Array) -> Array:
        """Mean parameter m = grad A(lam) = E phi (k,)."""

    @abstractmethod
    def log_normaliser(self, lam: Array) -> Array:
        """``A(lam)``."""

    @abstractmethod
    def statistics(self, theta: Array) -> Array:
        """Sufficient statistics phi at each draw: (n, d) -> (n, k)."""

    @abstractmethod
    def score(self, q: Array, theta: Array) -> Array:
        r"""Natural gradient of ``log q`` at each draw: (n, d) -> (n, k).

        .. math:: \nabla_m \log q(\theta) = I(\lambda)^{-1} (\phi(\theta) - m)
        """

    def mean_score(self, q: Array, theta: Array, weights: Array) -> Array:
        """Mean over the draws of score times weight: (n, d), (n,) -> (k,)."""
        return array_namespace(q, theta).mean(weights[:, None] * self.score(q, theta), axis=0)

    @abstractmethod
    def score_variance(self, q: Array) -> Array:
        """Variance under q of each entry of `score` (k,): the diagonal of I(lam)^-1."""

    @abstractmethod
    def features(self, q: Array, theta: Array) -> Array:
        """Statistics that are orthonormal under q, one per natural parameter: (n, d) -> (n, k)."""

    @property
    def n_free(self) -> int:
        """Number of free parameters of a member."""
        return self.size

    def changes(self, q: Array, theta: Array) -> Array:
        """Features along which q can change within its family: all, unless the family is curved."""
        return self.features(q, theta)

    @abstractmethod
    def coordinates(self, q: Array, theta: Array) -> Array:
        """Whitened coordinates, with mean 0 and covariance I under q: (n, d) -> (n, n_whitened)."""

    @property
    @abstractmethod
    def n_whitened(self) -> int:
        """Number of whitened coordinates."""

    def defensive(self, q: Array) -> Array:
        """The member to draw from when estimating ``q``.

        It is ``q`` itself, unless draws from ``q`` would miss some values.
        """
        return q

    @abstractmethod
    def log_base(self, theta: Array) -> Array:
        """Log of the base measure h at each draw, up to a constant: (n, d) -> (n,)."""

    @abstractmethod
    def scale_parts(self, q: Array, direction: Array, mean_rate: float, precision_rate: float) -> Array:
        """Scale the parts of a direction that move the mean and the precision separately."""

    @abstractmethod
    def move(self, q: Array, update: Array, curve: Curve) -> tuple[Array, Array]:
        """Move by ``update`` (k,) along ``curve``.

        Also return whether the plain update ``lam + update`` stays inside the domain.
        """

    @abstractmethod
    def move_factor(self, q: Array, update: Array, limit: float) -> Array:
        """Move the Cholesky factor, with its diagonal on the log scale (paper, Appendix D).

        An update with whitened entries above ``limit`` is shortened to ``limit``.
        """

    @abstractmethod
    def move_parameters(self, q: Array, update: Array, delta: float) -> Array:
        """Move the textbook parameters (paper, Appendix C, ii-b).

        A step covers at most the fraction ``delta`` of the distance to the boundary.
        """

    @abstractmethod
    def euclidean(self, q: Array, direction: Array) -> Array:
        """Euclidean gradient of the textbook parameters from a natural one (Appendix C, iii)."""

    def residual(self, q: Array, theta: Array, log_joint: Array) -> Array:
        """``log p(y, theta) - log q(theta)`` at each draw; its mean is the lower bound."""
        return log_joint - self.log_prob(q, theta)

    def divergence(self, q: Array, other: Array) -> Array:
        r"""KL(q || other) + KL(other || q): :math:`(\lambda - \lambda') \cdot (m - m')`."""
        xp = array_namespace(q, other)
        return xp.sum((self.natural(q) - self.natural(other)) * (self.mean_parameter(q) - self.mean_parameter(other)))

    def kl(self, q: Array, other: Array) -> Array:
        r"""KL(q || other).

        .. math:: \mathrm{KL} = (\lambda - \lambda') \cdot m - A(\lambda) + A(\lambda')
        """
        xp = array_namespace(q, other)
        lam, lam_other = self.natural(q), self.natural(other)
        gap = xp.sum((lam - lam_other) * self.mean_parameter(q))
        return gap - self.log_normaliser(lam) + self.log_normaliser(lam_other)

    @property
    def independent_parts(self) -> tuple[Part, ...]:
        """The independent factors of a product that is not all Gaussian.

        Any other family is its own only part.
        """
        return (Part(self, tuple(range(self.dim))),)

    def members(self, q: Array) -> list[Array]:
        """The member of every part, in the order of `independent_parts`."""
        return [q]


class Part(NamedTuple):
    """A family over some of the coordinates, independent of the others."""

    family: Family
    columns: tuple[int, ...]  # of theta


class GaussianFamily(Family):
    """Gaussian families: they whiten draws, and move mean and covariance in those coordinates."""

    @abstractmethod
    def whiten(self, q: Array, theta: Array) -> Array:
        """Undo `transport`: map draws ``theta (n, d)`` to standard normals."""

    @abstractmethod
    def embed(self, linear: Array, precision: Array) -> Array | None:
        """Natural coordinates of ``linear . u - u' precision u / 2``; None if there are none."""

    @abstractmethod
    def restrict(self, curvature: Array) -> Array:
        """Project a symmetric matrix (d, d) in whitened coordinates to the family's precisions."""

    @abstractmethod
    def quadratic_kernel(self, z: Array) -> Array:
        """Sum of products of the family's orthonormal quadratic features: (n, d) -> (n, n)."""

    @abstractmethod
    def deform(self, q: Array, shift: Array, root: Array, inverse_root: Array) -> Array:
        """Shift by ``shift`` (d,) and scale by ``root`` (d, d), both in whitened coordinates."""

    def mirrored_mean_score(self, q: Array, theta: Array, weights: Array, mirrored: Array) -> Array:
        """`mean_score` of draws (n, d) and their mirror images ``2 mu - theta``: (k,).

        ``weights`` (n,) are for the draws, ``mirrored`` (n,) for the images.
        """
        xp = array_namespace(q, theta)
        both = xp.concat([theta, 2 * self.mean(q) - theta])
        return self.mean_score(q, both, xp.concat([weights, mirrored]))

    def log_peak(self, q: Array) -> Array:
        """Log density at the mean ()."""
        return self.log_prob(q, self.mean(q)[None, :])[0]

    def deformed_peak(self, moved: Array, peak: Array, log_volume: Array) -> Array:
        """Log density at the mean of ``moved``.

        ``moved`` was deformed by a root with the log-determinant ``log_volume``, from a member with
        log density ``peak`` at its mean. Where `log_peak` takes time, that is enough to know.
        """
        return self.log_peak(moved)

    @abstractmethod
    def coefficients(self, w: Array) -> tuple[Array, Array]:
        """Coefficients of the features as the quadratic function ``b'z + (z'Cz - tr C) / 2``.

        Returns ``b (d,)`` and the symmetric ``C (d, d)``.
        """

    @property
    def is_curved(self) -> bool:
        """Whether the members are a curved subset of an exponential family.

        A step along the natural gradient then leads out of the family, and back to the nearest
        member. Only some methods expect that.
        """
        return False

    @property
    def n_quadratic(self) -> int:
        """Number of quadratic features of the family."""
        return self.size - self.dim

    @property
    def n_whitened(self) -> int:
        """One per coordinate."""
        return self.dim

    def coordinates(self, q: Array, theta: Array) -> Array:
        """The standard normals that `whiten` gives."""
        return self.whiten(q, theta)

    def divergence(self, q: Array, other: Array) -> Array:
        """KL(q || other) + KL(other || q), computed in whitened coordinates.

        No digits are lost far from the origin.
        """
        xp = array_namespace(q, other)
        eye = xp.eye(self.dim, dtype=q.dtype, device=device(q))
        frame = xp.concat([xp.zeros_like(eye[:1, :]), eye])
        there = self.whiten(other, self.transport(q, frame))
        back = self.whiten(q, self.transport(other, frame))
        spread = sum(xp.sum((seen[1:, :] - seen[:1, :]) ** 2) for seen in (there, back))
        return 0.5 * (spread - 2 * self.dim + xp.sum(there[0, :] ** 2) + xp.sum(back[0, :] ** 2))

    def log_base(self, theta: Array) -> Array:
        """Zero: the base measure is constant."""
        return 0.0 * theta[:, 0]


def bounded_curve(delta: float) -> Curve:
    r"""Cover at most the fraction ``delta`` of the distance to a singular precision.

    .. math:: \rho(c) = 1 - t c, \quad t = \min(1, \delta / \max c)
    """

    def curve(c: Array) -> tuple[Array, Array]:
        xp = array_namespace(c)
        t = delta / xp.maximum(xp.max(c), delta * xp.max(xp.ones_like(c)))
        return 1 - t * c, t

    return curve
