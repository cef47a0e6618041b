r"""The surrogate of the log joint: a base density, corrected by a Gaussian process.

.. math:: s(\theta) = T^{-1}\{T(\log b(\theta) + c) + g(z)\}

b is a mixture of Gaussians, c a constant, and g a Gaussian process on the whitened scale z with a
bounded kernel: far from all points the surrogate has the tail of its base. T is the identity down
to some depth below the best value, and logarithmic below. Without it, the values far below would
decide the shape of g, and they only say that there is no mass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.free.base import Base
from qbvi.free.border import Border, border_between
from qbvi.free.cells import NONE, Cells
from qbvi.free.fold import Copies, Folded, Spread
from qbvi.free.kernel import Kernel, Symmetric, squared_distances
from qbvi.free.process import Observations, Predicted, Process, search
from qbvi.free.proposal import Copied, Proposal
from qbvi.free.rules import Caution, ShapeSearch
from qbvi.free.symmetry import Group, Symmetry
from qbvi.free.warp import Warp

__all__ = ["PLAIN", "Coordinates", "Points", "Seen", "Squash", "Surface"]

Floats = NDArray[np.float64]

_BLOCK = 2**21  # most entries of a covariance between new points and old ones, computed at a time
_AS_LIKELY_AS_NOT = 0.5
_HIGH_QUANTILE = 0.9
_FARTHEST = 1e3  # whitened distance of a point: beyond, there is nothing but the base
_STEEPEST = 50.0  # largest exponent: below so low a depth, values are equal
_LUCK = 3.0  # standard deviations of the noise by which the highest value may be too high


class Points(NamedTuple):
    """Evaluated points, where the log joint is finite, and those where it is minus infinity."""

    theta: Floats  # (n, d)
    y: Floats  # (n,) log joint
    noise: Floats  # (n,) noise variances
    forbidden: Floats  # (m, d) points of zero likelihood


class Coordinates(NamedTuple):
    """How the coordinates of a point enter the surrogate."""

    cells: Cells = NONE  # those that stand for whole numbers: points are in the middle of cells
    warp: Warp | None = None  # the change of coordinates
    jumping: tuple[int, ...] = ()  # those along which the log joint may jump
    # What leaves the log joint unchanged. Then the points are known at all images, and so is it.
    symmetries: tuple[Symmetry, ...] = ()
    is_folded: bool = False  # whether the scale of the kernel is that of one of the copies


PLAIN = Coordinates()  # as they are


class Seen(NamedTuple):
    """The surrogate at some points."""

    low: Floats  # (m,) log density that is claimed
    high: Floats  # (m,) log density that is possible
    variance: Floats  # (m,) of the prediction


class Squash(NamedTuple):
    """Values as they are down to ``depth`` below ``top``, and by their logarithm below.

    Examples
    --------
    >>> import numpy as np
    >>> squash = Squash(top=0.0, depth=10.0)
    >>> squash(np.array([-5.0, -1e6])).round(1)
    array([  -5. , -125.1])
    >>> squash.inverse(squash(np.array([-5.0, -1e6]))).round(1)
    array([-5.e+00, -1.e+06])
    """

    top: float
    depth: float

    def __call__(self, y: Floats) -> Floats:
        """Squash log densities (n,)."""
        below = np.maximum(self.top - self.depth - y, 0.0)
        return np.where(below > 0, self.top - self.depth - self.depth * np.log1p(below / self.depth), y)

    def inverse(self, t: Floats) -> Floats:
        """Undo it (n,)."""
        below = np.minimum(np.maximum(self.top - self.depth - t, 0.0) / self.depth, _STEEPEST)
        return np.where(below > 0, self.top - self.depth - self.depth * np.expm1(below), t)


class Surface:
    """The surrogate of a log joint.

    Parameters
    ----------
    points
        The evaluated points.
    base
        What the surrogate falls back to.
    shape
        The kernel; see `qbvi.free.process.Process`. `searched` finds it.
    caution
        The rules that decide how far the surrogate is believed.
    coordinates
        The coordinates of the base and of the kernel.

    Examples
    --------
    >>> import numpy as np
    >>> theta = np.random.default_rng(1).standard_normal((30, 1)) * 2
    >>> points = Points(theta, -0.5 * theta[:, 0] ** 4, np.zeros(30), np.empty((0, 1)))
    >>> base = Base.one(np.zeros(1), np.eye(1))
    >>> surface = Surface.searched(points, base, None, Caution(), ShapeSearch())
    >>> bool(abs(surface(np.array([[0.5]])).low[0] + 0.5 * 0.5**4) < 0.1)
    True
    """

    def __init__(
        self, points: Points, base: Base, shape: Floats, caution: Caution, coordinates: Coordinates = PLAIN
    ) -> None:
        self.points, self.base, self.shape, self._caution = points, base, shape, caution
        self._frame(points, base, coordinates)
        self._data = self._observations(points)
        self.process = Process(self._data, shape, max(float(np.var(self._data.t)), 1e-12))
        self.border = self._border(points)
        self._usual = max(caution.near, self._spacing())
        lucky = _LUCK * np.sqrt(points.noise)
        self._excess = max(float(np.max((self._data.t - lucky)[self._is_near])), 0.0)  # above the base, in nats

    @classmethod
    def searched(
        cls,
        points: Points,
        base: Base,
        start: Floats | None,
        caution: Caution,
        rules: ShapeSearch,
        coordinates: Coordinates = PLAIN,
    ) -> Surface:
        """The surface with the kernel that predicts best; the search begins at ``start``."""
        first = cls.__new__(cls)
        first._caution = caution
        first._frame(points, base, coordinates)
        d = points.theta.shape[1]
        start = rules.start(d, bool(first._apart)) if start is None else start
        shape = search(first._observations(points), start, rules)
        return cls(points, base, shape, caution, coordinates)

    def __call__(self, u: Floats) -> Seen:
        """The surrogate at points u (m, d)."""
        rows = max(1, _BLOCK // max(len(self.points.y) * len(self._group), 1))
        middle = self.cells.middle(u)
        parts = [self._seen(middle[i : i + rows]) for i in range(0, len(u), rows)]
        low, high, variance = (np.concatenate(column) for column in zip(*parts, strict=True))
        rise = self.cells.slope(u) - self.cells.slope(middle)
        return Seen(low + rise, high + rise, variance)

    def whitened(self, u: Floats) -> Floats:
        """Points in the frame of the kernel: (m, d) -> (m, d)."""
        return self._local(self.warp.straight(u)[0])

    def predicted(self, u: Floats) -> Predicted:
        """The prediction of the Gaussian process at points u (m, d)."""
        return self.process(self.whitened(u))

    def _frame(self, points: Points, base: Base, coordinates: Coordinates) -> None:
        d, caution = points.theta.shape[1], self._caution
        self.coordinates = coordinates
        self.cells, self.jumping = coordinates.cells, coordinates.jumping
        self.symmetries, self._group = coordinates.symmetries, Group.of(d, coordinates.symmetries)
        self.is_folded, self.copies = coordinates.is_folded, Copies.of(self._group, base)
        self._apart = (*self.cells.columns, *self.jumping)
        self.warp = Warp.none(d) if coordinates.warp is None else coordinates.warp
        w, log_jacobian = self.warp.straight(points.theta)
        y = points.y - log_jacobian
        self._w, self._y = w, y
        self._base = base
        self._centre, within = self._scale(base)
        self._factor = np.linalg.cholesky(within)
        self._map = _whitening(within, self._apart) if self._apart else None
        if self.symmetries and not self.is_folded:
            self._map = self._group.whitening(within)
        # Of a noisy function, the highest value is one with lucky noise.
        lucky = _LUCK * np.sqrt(points.noise)
        best = int(np.argmax(y - lucky))
        self._luck = float(lucky[best])
        self._squash = Squash(float(y[best]) - self._luck, caution.depth(d))
        difference = y - self._log_base(w)
        self._offset = float(np.median(difference[y >= self._squash.top - d - 3]))

    def _scale(self, base: Base) -> tuple[Floats, Floats]:
        """Centre (d,) and covariance (d, d) of the frame of the kernel."""
        if not self.symmetries or self.is_folded:
            one = self.copies.one if self.symmetries else base
            return one.mean, self._caution.base * one.within
        return self._group.mean_of(base.mean), self._caution.base * self._group.cov_of(base.within)

    def _spread(self, z: Floats) -> Spread:
        """The images of points (n, d) that have a share, all in the frame of the kernel."""
        images, begin, root = self.copies.spread(z @ self._factor.T + self._centre, self._caution.base)
        return Spread(self._whitened(images), begin, root)

    def _observations(self, points: Points) -> Observations:
        caution, squash = self._caution, self._squash
        t = squash(self._y)
        below = np.maximum(squash.top - t - caution.blurred * squash.depth, 0.0)
        noise = points.noise + (caution.blur * below) ** 2
        z = self._local(self._w)
        # A first point may be a billion standard deviations away, where differences of squares of
        # distances are rounding. It is far from all others at any such distance.
        z *= np.minimum(1.0, _FARTHEST / np.maximum(np.linalg.norm(z, axis=1), 1.0))[:, None]
        return Observations(z, t - self._fallback(self._w), noise, self._apart, self._symmetric())

    def _symmetric(self) -> Callable[[Kernel], Folded | Symmetric] | None:
        """How a kernel becomes that of functions with the symmetries; None without any."""
        if not self.symmetries:
            return None
        return lambda one: Folded(one, self._spread) if self.is_folded else Symmetric(one, self._group.exchanged)

    def _local(self, w: Floats) -> Floats:
        """Points in the frame of the kernel (n, d), their images at the one copy if folded."""
        return self._whitened(self.copies.folded(w) if self.is_folded else w)

    def _whitened(self, w: Floats) -> Floats:
        if self._map is not None:
            return np.asarray((w - self._centre) @ self._map.T)
        return np.asarray(
            scipy.linalg.solve_triangular(self._factor, (w - self._centre).T, lower=True, check_finite=False).T
        )

    def _log_base(self, w: Floats) -> Floats:
        """Log density of the base (n,), the mean over all images."""
        if not self.symmetries:
            return self._base.log_prob(w, self._caution.base)
        parts = self.copies.parts(w, self._caution.base)
        return np.asarray(np.logaddexp.reduce(parts, axis=1) - math.log(len(self._group)))

    def _fallback(self, w: Floats) -> Floats:
        return self._squash(self._log_base(w) + self._offset)

    def _seen(self, u: Floats) -> Seen:
        caution, (w, log_jacobian) = self._caution, self.warp.straight(u)
        z = self._local(w)
        found = self.process(z)
        fallback = self._fallback(w)
        middle = fallback + found.mean
        low = self._squash.inverse(middle - found.variance / 2)
        rise = np.minimum(found.variance / 2, caution.most_hope)
        high = self._squash.inverse(np.minimum(middle + rise, fallback + self._excess + caution.most_hope))
        # Far from all points the prediction falls back to a constant, which points in heavy tails
        # may have raised: no more is claimed than is possible.
        high = np.minimum(high, self._squash.top + self._luck + caution.above)
        low = np.minimum(low, high)
        low, high = low - self._lowered(z) + log_jacobian, high + log_jacobian
        if self.border is not None:
            low = np.where(self.border(u) < _AS_LIKELY_AS_NOT, -np.inf, low)
            high = np.where(self.border.possibly(u) <= 0, -np.inf, high)
        return Seen(low, high, found.variance)

    def sampled_by(self, proposal: Proposal) -> Copied:
        """What draws from a proposal for this surrogate, which is one for the one copy."""
        return Copied(proposal, self._group)

    def worth(self) -> Floats:
        """Log density that would be possible at each point, were it not there, or that is (n,).

        Where it is low, the other points say too that there is no mass.
        """
        mean, variance = self.process.from_others()
        possible = mean + np.minimum(variance / 2, self._caution.most_hope)
        return np.asarray(self._fallback(self._w) + np.maximum(possible, self._data.t))

    @property
    def surprise(self) -> Floats:
        """How much each point exceeds what all others predict (n,)."""
        return np.asarray(self._data.t - self.process.from_others()[0])

    def excess(self, u: Floats, y: Floats) -> Floats:
        """How much log densities y (m,) at other points u (m, d) exceed the prediction: (m,)."""
        if not len(u):
            return np.empty(0)
        w, log_jacobian = self.warp.straight(u)
        expected = self._fallback(w) + self.process(self._local(w)).mean
        return np.asarray(self._squash(y - log_jacobian) - expected)

    @property
    def unexplained(self) -> float:
        """Mean squared error with which points of high density are predicted from all others."""
        return float(np.mean(self.surprise[self._is_near] ** 2))

    @property
    def usual_error(self) -> float:
        """Median error with which points of high density are predicted from all others."""
        return float(np.median(np.abs(self.surprise[self._is_near])))

    @property
    def n_near(self) -> int:
        """Number of points whose density is high enough to count as it is."""
        return int(np.count_nonzero(self._is_near))

    @property
    def noise_near(self) -> float:
        """Noise variance of the function where the density is high."""
        return float(np.median(self.points.noise[self._is_near]))

    def best(self, n: int) -> Floats:
        """The n points of the highest density, both in the coordinates of the base: (n, d).

        They are at the one copy, if there are several.
        """
        best = self._w[np.argsort(-self._y, kind="stable")[:n]]
        return self.copies.folded(best)

    @property
    def _is_near(self) -> NDArray[np.bool_]:
        return np.asarray(self._y >= self._squash.top - self._squash.depth)

    @property
    def _everywhere(self) -> Floats:
        """All points and their images, in the frame of the kernel."""
        z = self._data.z
        if not self.symmetries:
            return z
        return self._spread(z).z if self.is_folded else self._group.exchanged(z).reshape(-1, z.shape[1])

    def _spacing(self) -> float:
        """Distance between neighbouring points where the density is high, by a high quantile."""
        z, y, d = self._data.z, self._y, self._w.shape[1]
        if len(z) < 2:
            return 0.0
        squares = squared_distances(z[y >= self._squash.top - d - 3], self._everywhere)
        to_nearest = np.partition(squares, 1, axis=1)[:, 1]  # the very nearest is the point itself
        return float(np.sqrt(np.quantile(to_nearest, _HIGH_QUANTILE)))

    def _lowered(self, z: Floats) -> Floats:
        """Nats by which the claim is lowered at whitened points z (m, d), far from all others."""
        distance = np.sqrt(np.min(squared_distances(z, self._everywhere), axis=1))
        excess = np.maximum(distance / (self._caution.remote * self._usual) - 1, 0.0)
        return np.asarray(self._caution.lowered * excess**2)

    def _border(self, points: Points) -> Border | None:
        if not len(points.forbidden):
            return None
        sds = self.warp.scale if self.warp else np.sqrt(np.diagonal(self._base.within))
        return border_between(self._group.images(points.theta), self._group.images(points.forbidden), sds)


def _whitening(cov: Floats, apart: tuple[int, ...]) -> Floats:
    """The map (d, d) to coordinates of unit variance in which some are not mixed with others.

    Each of these is divided by its standard deviation. The others are whitened given them.
    """
    w = np.array(apart)
    c = np.setdiff1d(np.arange(len(cov)), w)
    whitening = np.zeros_like(cov)
    whitening[w, w] = 1 / np.sqrt(cov[w, w])
    if len(c):
        slope = np.linalg.solve(cov[np.ix_(w, w)], cov[np.ix_(w, c)]).T
        inverse = np.linalg.inv(np.linalg.cholesky(cov[np.ix_(c, c)] - slope @ cov[np.ix_(w, c)]))
        whitening[np.ix_(c, c)], whitening[np.ix_(c, w)] = inverse, -inverse @ slope
    return whitening
