r"""Functions that are the same at all images of a point, from points on one of several copies.

Where a posterior consists of copies of its modes, the maps of a `Group` exchange them. The base of
the surrogate is then a mean over all images,

.. math:: b(\theta) = \frac{1}{m} \sum_g b_1(g \theta)

with b_1 the modes of one copy. The share of this copy at a point is

.. math:: r(\theta) = b_1(\theta) / \sum_g b_1(g \theta)

and the shares of all images of a point add up to one. With f a smooth function on the scale of one
copy, the Gaussian process is

.. math:: \sum_g \sqrt{r(g \theta)} \, f(g \theta)

It has the same value at all images. Where copies are apart, one share is one, and the others are
zero: the process is folded onto one copy. Where copies meet, the shares change from one to the
other over the distance over which both have mass, and so does the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from qbvi.free.base import Base
from qbvi.free.kernel import Kernel
from qbvi.free.rules import SurveyRule
from qbvi.free.symmetry import Group

__all__ = ["Copies", "Folded", "Spread"]

Floats = NDArray[np.float64]

_NONE = 1e-8  # share of a copy that counts as none: its root is below the error of the kernel
_FEWEST = 4.0  # effective draws for each dimension that show a side of a mode
_FOLDINGS = 5  # times that draws are mapped to the side of their mean
_RIDGE = 1e-9  # relative, keeps a covariance positive definite
_SAME = 1e-3  # squared standard deviations between images of one mode, by rounding at most


class Copies(NamedTuple):
    """The modes of one copy, and the maps to all others.

    Examples
    --------
    >>> from qbvi.free.symmetry import Symmetry
    >>> exchange = Group.of(1, (Symmetry((0,), (-1,), "a sign changes"),))
    >>> base = Base(np.full(2, 0.5), np.array([[3.0], [-3.0]]), np.ones((2, 1, 1)))
    >>> copies = Copies.of(exchange, base)
    >>> copies.one.means
    array([[3.]])
    >>> copies.folded(np.array([[2.0], [-2.5]]))
    array([[2. ],
           [2.5]])
    """

    group: Group
    one: Base  # the modes of one copy

    @classmethod
    def of(cls, group: Group, base: Base) -> Self:
        """The copies in a base, which has all of them or only one of some modes.

        The first copy has the heaviest mode, and of each other one the image nearest to that. Each
        mode has the weight of all its images.
        """
        if len(group) == 1:
            return cls(group, base)
        metric = np.linalg.inv(group.cov_of(base.within))
        weights, means, covs = list[float](), list[Floats](), list[Floats]()
        for k in np.argsort(-base.weights, kind="stable"):
            apart = group.images(base.means[k : k + 1]) - np.array([*means, base.means[k]])[:, None]
            squares = np.sum(apart @ metric * apart, axis=2)  # from the modes of this copy: (k, m)
            same = int(np.argmin(squares.min(axis=1)[: len(means)])) if means else 0
            if means and squares[same].min() < _SAME:
                weights[same] += float(base.weights[k])
                continue
            image = group.maps[int(np.argmin(squares[0]))]
            weights.append(float(base.weights[k]))
            means.append(image(base.means[k]))
            covs.append(image.of_covariance(base.covs[k]))
        return cls(group, Base(np.array(weights) / sum(weights), np.array(means), np.array(covs)))

    def parts(self, w: Floats, widened: float = 1.0) -> Floats:
        """Log density of the one copy at all images of points (n, d): (n, m)."""
        return self.one.log_prob(self.group.images(w), widened).reshape(len(w), -1)

    def folded(self, w: Floats) -> Floats:
        """The image of each point (n, d) that is at the one copy."""
        if len(self.group) == 1:
            return w
        images = self.group.images(w).reshape(len(w), len(self.group), -1)
        return np.asarray(images[np.arange(len(w)), np.argmax(self.parts(w), axis=1)])

    def scattered(self, w: Floats, rng: np.random.Generator) -> Floats:
        """A random image of each point (n, d), as many at each copy."""
        return self.group.scattered(self.folded(w), rng)

    def spread(self, w: Floats, widened: float) -> tuple[Floats, NDArray[np.int64], Floats]:
        """The images (k, d) of points (n, d) that have a share of the process.

        Those of a point are together. The other results are where they begin (n,), and the roots of
        their shares (k,).
        """
        parts = self.parts(w, widened)
        shares = np.exp(parts - np.logaddexp.reduce(parts, axis=1)[:, None])
        counts = shares > _NONE
        images = self.group.images(w).reshape(len(w), len(self.group), -1)[counts]
        begin = np.cumsum(counts.sum(axis=1)) - counts.sum(axis=1)
        return images, begin, np.sqrt(shares[counts])

    def parted(self, w: Floats, weights: Floats, log_density: Floats, rule: SurveyRule) -> Base | None:
        """The base of all copies, with each mode that is its own image replaced by modes beside it.

        The search may end at a saddle, such as where two components are equal, and the modes are on
        both sides of it. The draws w (n, d), with these ``weights``, show them: they are mapped to
        the side of the best one. That is the side of a mode if its images are apart. None if
        nothing changes.
        """
        draws = self.folded(w)
        of = np.argmax(self.one.log_parts(draws), axis=0)
        rows = [np.flatnonzero(of == k) for k in range(len(self.one.weights))]
        sides = [self._side(k, draws[own], weights[own], log_density[own], rule) for k, own in enumerate(rows)]
        if all(side is None for side in sides):
            return None
        found = [Base(weight, mean, cov) for weight, mean, cov in zip(*self.one, strict=True)]
        modes = [
            (weight / len(means), mean, cov)
            for mode, side in zip(found, sides, strict=True)
            for weight, (means, covs) in [(mode.weights, self._orbit(*(side or mode[1:]), rule.apart))]
            for mean, cov in zip(means, covs, strict=True)
        ]
        parts = (np.array(part) for part in zip(*modes, strict=True))
        return Base(*parts)

    def _orbit(self, mean: Floats, cov: Floats, apart: float) -> tuple[list[Floats], list[Floats]]:
        """Means and covariances of the images of a Gaussian that are apart from each other."""
        means, covs = [mean], [cov]
        for image in self.group.maps[1:]:
            other, its_cov = image(mean), image.of_covariance(cov)
            if min(_square(other - one, its_cov) for one in means) > apart**2:
                means.append(other)
                covs.append(its_cov)
        return means, covs

    def _side(
        self, k: int, draws: Floats, weights: Floats, log_density: Floats, rule: SurveyRule
    ) -> tuple[Floats, Floats] | None:
        """Mean and covariance of the draws (n, d) of mode k on the side of the best one.

        None if the mode has little mass, if it is apart from its images, or if the sides are not.
        """
        mean, cov, mass = self.one.means[k], self.one.covs[k], weights.sum()
        is_known = mass > rule.counts and mass**2 > _FEWEST * len(mean) * np.sum(weights**2)
        if not is_known or len(self._orbit(mean, cov, rule.apart)[0]) == len(self.group):
            return None
        images = self.group.images(draws).reshape(len(draws), len(self.group), -1)
        mean, weights = draws[np.argmax(log_density)], weights / mass
        for _ in range(_FOLDINGS):
            differences = images - mean
            nearest = np.argmin(np.sum(differences @ np.linalg.inv(cov) * differences, axis=2), axis=1)
            here = images[np.arange(len(draws)), nearest]
            mean = weights @ here
            cov = ((here - mean).T * weights) @ (here - mean) + _RIDGE * cov
        others = self.group.images(np.delete(self.one.means, k, axis=0))
        is_new = all(_square(other - mean, cov) > rule.apart**2 for other in others)
        return (mean, cov) if is_new and len(self._orbit(mean, cov, rule.apart)[0]) == len(self.group) else None


def _square(difference: Floats, cov: Floats) -> float:
    """Squared length of a difference (d,), in standard deviations."""
    return float(difference @ np.linalg.solve(cov, difference))


class Spread(NamedTuple):
    """Images of points at which the process takes part in their values."""

    z: Floats  # (k, d) in the frame of the kernel, those of a point together
    begin: NDArray[np.int64]  # (n,) where those of each point begin
    root: Floats  # (k,) roots of the shares


class Folded(NamedTuple):
    """The kernel of that process, given the kernel of f."""

    kernel: Kernel
    spread: Callable[[Floats], Spread]

    def __call__(self, a: Floats, b: Floats) -> Floats:
        """Covariance between points a (n, d) and b (m, d): (n, m)."""
        return self.against(b)(a)

    def against(self, b: Floats) -> Callable[[Floats], Floats]:
        """The covariance of any points (n, d) with points b (m, d), as a function."""
        there = self.spread(b)
        one = self.kernel.against(there.z)

        def covariance(a: Floats) -> Floats:
            here = self.spread(a)
            total = one(here.z)
            total *= here.root[:, None] * there.root
            total = total if len(here.z) == len(a) else np.add.reduceat(total, here.begin, axis=0)
            return total if len(there.z) == len(b) else np.add.reduceat(total, there.begin, axis=1)

        return covariance

    def variances(self, a: Floats) -> Floats:
        """Variance at each point (n, d): one where it has one image only."""
        z, begin, root = self.spread(a)
        number = np.diff(np.append(begin, len(z)))
        total = np.add.reduceat(root**2, begin)
        for i in range(1, int(number.max())):
            for j in range(i):
                first = begin[number > i]
                one, other = first + i, first + j
                total[number > i] += 2 * root[one] * root[other] * self.kernel.pairwise(z[one], z[other])
        return total
