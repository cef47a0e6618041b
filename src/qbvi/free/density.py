"""The free posterior as a density that a fit can hold: one flat array describes a member."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.families.base import Density
from qbvi.free.base import Base
from qbvi.free.cells import Cells
from qbvi.free.pool import resampled
from qbvi.free.proposal import Proposal
from qbvi.free.rules import Caution, Integration
from qbvi.free.surface import PLAIN, Coordinates, Points, Surface
from qbvi.free.symmetry import Symmetry
from qbvi.free.warp import Warp

__all__ = ["FreeDensity", "Member"]

Floats = NDArray[np.float64]


class Member(NamedTuple):
    """Everything that defines one free posterior."""

    points: Points
    base: Base
    shape: Floats  # (4,) or (6,) of the kernel
    proposal: Proposal
    warp: Warp
    log_z: float  # log of the integral of the claimed density
    mean: Floats  # (d,)
    cov: Floats  # (d, d)


@dataclass(frozen=True)
class FreeDensity(Density):
    """Densities of any shape: the exponential of a surrogate that was fitted to evaluated points.

    Parameters
    ----------
    dim
        Number of coordinates.
    n_points, n_forbidden
        Numbers of points with a finite value, and with a likelihood of zero.
    n_components, n_centres
        Numbers of Gaussians in the base, and of kernels in the proposal.
    n_given, n_functions
        Numbers of coordinates, and of functions of them, in the change of coordinates.
    caution, integration
        The rules by which the surrogate becomes a density, and by which draws are made.
    cells
        The coordinates that stand for whole numbers.
    jumping
        The coordinates along which the log joint may jump.
    symmetries
        What leaves the log joint unchanged.
    is_folded
        Whether the scale of the kernel is that of one of the copies.
    """

    dim: int
    n_points: int
    n_forbidden: int
    n_components: int
    n_centres: int
    n_given: int = 0
    n_functions: int = 0
    caution: Caution = field(default_factory=Caution)
    integration: Integration = field(default_factory=Integration)
    cells: Cells = field(default_factory=Cells)
    jumping: tuple[int, ...] = ()
    symmetries: tuple[Symmetry, ...] = ()
    is_folded: bool = False

    @classmethod
    def holding(
        cls,
        member: Member,
        caution: Caution,
        integration: Integration,
        coordinates: Coordinates = PLAIN,
    ) -> FreeDensity:
        """The family of densities with as many points as this member."""
        n, d = member.points.theta.shape
        sizes = n, len(member.points.forbidden), len(member.base.weights), len(member.proposal.centres)
        warp = len(member.warp.given), len(member.warp.linear)
        cells, _, jumping, symmetries, is_folded = coordinates
        return cls(d, *sizes, *warp, caution, integration, cells, jumping, symmetries, is_folded)

    @property
    def n_stored(self) -> int:
        """Length of the array that describes a member."""
        return sum(prod(shape) for shape in self._shapes)

    def pack(self, member: Member) -> Floats:
        """The array that describes a member."""
        points, base, shape, proposal, warp, *rest = member
        parts = (*points, *base, shape, *proposal, *warp, *rest)
        return np.concatenate([np.ravel(np.asarray(part, dtype=np.float64)) for part in parts])

    def unpack(self, q: Array) -> Member:
        """Undo `pack`."""
        ends = np.cumsum([0, *(prod(shape) for shape in self._shapes)]).tolist()
        flat = np.asarray(q, dtype=np.float64)
        parts = [flat[i:j].reshape(shape) for (i, j), shape in zip(pairwise(ends), self._shapes, strict=True)]
        points, base, shape = Points(*parts[:4]), Base(*parts[4:7]), parts[7]
        proposal = Proposal(parts[8], parts[9], parts[10], parts[11], float(parts[12]))
        warp = Warp(*parts[13:22])
        return Member(points, base, shape, proposal, warp, float(parts[22]), parts[23], parts[24])

    def coordinates(self, warp: Warp) -> Coordinates:
        """The coordinates of the surrogate, with this change of them."""
        return Coordinates(self.cells, warp, self.jumping, self.symmetries, self.is_folded)

    def surface(self, q: Array) -> Surface:
        """The surrogate of a member."""
        return _surface(self, np.asarray(q, dtype=np.float64).tobytes())

    def draw(self, q: Array, rng: np.random.Generator, n: int) -> Floats:
        """Draws: (n, d)."""
        return resampled(self.surface(q), self.unpack(q).proposal, rng, n, self.integration)

    def log_prob(self, q: Array, theta: Array) -> Floats:
        """Log density at each draw: (n, d) -> (n,)."""
        return np.asarray(self.surface(q)(np.asarray(theta, dtype=np.float64)).low - self.unpack(q).log_z)

    def mean(self, q: Array) -> Floats:
        """Mean (d,)."""
        return self.unpack(q).mean

    def cov(self, q: Array) -> Floats:
        """Covariance (d, d)."""
        return self.unpack(q).cov

    def sd(self, q: Array) -> Floats:
        """Standard deviations (d,)."""
        return np.asarray(np.sqrt(np.diagonal(self.unpack(q).cov)))

    @property
    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        n, d, k, one = self.n_points, self.dim, self.n_components, ()
        points = (n, d), (n,), (n,), (self.n_forbidden, d)
        base = (k,), (k, d), (k, d, d)
        proposal = (self.n_centres, d), (d,), (d, d), (d, d), one
        g, f, m = self.n_given, self.n_functions, d - self.n_given
        warp = (g,), (g,), (d,), (d,), (g,), (g,), (f, m), (f, m, m), one
        return (*points, *base, (6 if self.cells or self.jumping else 4,), *proposal, *warp, one, (d,), (d, d))


@lru_cache(maxsize=4)
def _surface(density: FreeDensity, q: bytes) -> Surface:
    """The surrogate of a member, kept because its factorisation costs the cube of its points."""
    member = density.unpack(np.frombuffer(q))
    coordinates = density.coordinates(member.warp)
    return Surface(member.points, member.base, member.shape, density.caution, coordinates)
