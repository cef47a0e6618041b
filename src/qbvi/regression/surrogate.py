r"""Regression of the residual ``h = log p(y, theta) - log q(theta)`` on the whitened draws.

.. math:: h(z) = a + b'z + \tfrac12 (z'Cz - \mathrm{tr}\, C) + \text{degrees 3 and 4} + \text{noise}

The coefficients of the orthonormal Hermite polynomials of degree two, three and four have Gaussian
priors, with one variance for each degree. The constant, the linear terms and the squared radius
have no prior. Under q all terms but ``a`` have mean zero. Therefore

- ``a`` is the lower bound,
- ``(b, C)`` is the natural gradient in whitened coordinates,
- half the posterior variance of ``(b, C)`` is the expected cost of its error in nats.

With large noise this is the score-function estimator, without noise the least-squares fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.families.base import GaussianFamily
from qbvi.regression.hermite import Covariance, free_features, kernels
from qbvi.regression.memory import square
from qbvi.regression.rules import SearchPlan, VarianceSearch

__all__ = ["HermiteRegression", "Pairing", "Predicted", "Sample", "Slope", "Solved", "Surrogate", "Variances", "whiten"]

Floats = NDArray[np.float64]
Logarithms = tuple[float, float, float]  # of the variances, in their order

_CANCELLED = 1e-12  # least relative value of a difference that rounding may cancel
_TINY = 1e-300  # keeps a zero out of a denominator
_DEPENDENT = 1e-7  # relative size below which a free feature depends linearly on others
_SIGNS = 100  # random combinations that estimate a trace over many quadratic features
_KEPT = 2  # factored regressions that are kept
_LAPACK_BLOCK = 64  # columns that LAPACK's blocked algorithms treat at a time


class Variances(NamedTuple):
    """Prior variances, relative to that of degrees three and four; the draws choose them."""

    omega: float = 0.3  # variance of degree four, relative to degree three
    quadratic: float = 1e2  # variance of degree two
    noise: float = 1e-3  # variance of the noise of one draw


class Sample(NamedTuple):
    """The points of a regression; the last m of them are held out, one mirror pair at a time."""

    z: Floats  # (n, d) whitened draws
    h: Floats  # (n,) residuals
    growth: Floats  # (n,) relative noise variance: larger for points far out or close together
    pair: NDArray[np.int64]  # (m,) number of the mirror pair; pairs are next to each other
    floor: float  # least variance of the noise: rounding, or what is known of the function


@dataclass(frozen=True)
class Surrogate:
    """The result of the regression."""

    bound: float  # a, the lower bound at q
    bound_se: float  # its standard error
    b: Floats  # (d,) linear part of the natural gradient
    C: Floats  # (d, d) quadratic part
    b_variance: Floats  # (d,) posterior variance of b
    quadratic_variance: float  # posterior variance of C, summed over the family's coefficients
    curvature_sd: float  # root mean posterior variance of one quadratic coefficient
    # Cost of the errors of b and C, times the number of draws, if all errors were white noise.
    white: float
    scale: float  # variance of degrees three and four
    variances: Variances
    errors: Floats  # (m,) prediction errors of the left-out points


class Quadratic(NamedTuple):
    """Posterior of the quadratic part, up to the variance of degrees three and four."""

    C: Floats  # (d, d)
    variance: float  # summed over the family's coefficients
    n_uncertain: float  # coefficients among which that variance is divided
    n_determined: float  # coefficients that the draws, not the prior, determine: noise is in these


class Slope(NamedTuple):
    """Derivative of the deviance in the logarithm of a variance, and about its curvature."""

    slope: float
    curvature: float


class PriorCovariance(Protocol):
    """Prior covariance of the polynomials of degree two to four at the points of a regression."""

    def write(self, quadratic: float, omega: float, out: Floats) -> None:
        """Write it into ``out`` (n, n); entries below the diagonal may be left as they are."""


class HermiteRegression:
    """The regression of one set of points: prior variances, then posterior of the coefficients.

    Parameters
    ----------
    points
        Draws, residuals and their relative noise.
    features
        Features without a prior (n, p). The default is a constant, z and the squared radius.
    rules
        The search for the prior variances.

    Examples
    --------
    A quadratic is found exactly:

    >>> import numpy as np
    >>> from qbvi.families import Gaussian
    >>> from qbvi.random import orthogonal_pairs
    >>> z = orthogonal_pairs(np.random.default_rng(1), 12, 2)
    >>> h = 3.0 + z[:, 0] - (z[:, 1] ** 2 - 1)
    >>> regression = HermiteRegression(Sample(z, h, np.ones(12), np.arange(12) // 2, 1e-20))
    >>> found = regression.posterior(regression.search(Variances(), SearchPlan()), Gaussian(2))
    >>> round(found.bound, 3), found.b.round(3) + 0.0, found.C.round(3) + 0.0
    (3.0, array([1., 0.]), array([[ 0.,  0.],
           [ 0., -2.]]))
    """

    def __init__(self, points: Sample, features: Floats | None = None, rules: VarianceSearch | None = None) -> None:
        self._rules = VarianceSearch() if rules is None else rules
        self._centre = float(np.median(points.h))  # keeps precision if the log-likelihood is large
        self.points = points._replace(h=points.h - self._centre)
        self.pairing = Pairing.of(points.pair)
        self._equal = features is not None  # the coordinates of a product of families are not normal
        self._covariance = self._prior()
        free = self._free_features() if features is None else features
        # Given features may be linearly dependent: a discrete parameter may have one value so far.
        self._kept = slice(None) if features is None else _independent(features)
        self._known = np.asfortranarray(np.column_stack([free[:, self._kept], self.points.h]))
        self._factored: dict[Variances, tuple[Solved, Floats]] = {}  # with the memory that holds them
        self._misfits: dict[Variances, float] = {}
        self._bounds = [tuple(map(math.log, x)) for x in zip(self._rules.lowest, self._rules.highest, strict=True)]
        if points.z.shape[1] == 1:
            # In one dimension the squared radius is all of degree two. It has no prior, so the
            # prior variance of degree two has no effect and is fixed.
            self._bounds[1] = self._bounds[1][0], self._bounds[1][0]

    def _prior(self) -> PriorCovariance:
        """The prior of the smooth part at the points."""
        return Covariance(self.points.z, equal=self._equal)

    def _free_features(self) -> Floats:
        """Features without a prior (n, p): a constant and z come first."""
        features: Floats = free_features(self.points.z)
        return features

    def search(self, start: Variances, plan: SearchPlan) -> Variances:
        """Variances that best predict left-out pairs, by a pattern search over their logarithms."""
        if not plan.tries:
            return _variances(self._logarithms(start))
        corners = self._rules.starts(*self.points.z.shape, restart=plan.restart)
        starts = [self._logarithms(x) for x in (start, *corners)]
        tries = _Tries(self._badness, starts, plan.tries, self._rules.improvement)
        strides, first = self._rules.strides, plan.turn % 3
        while tries.left > 0 and max(strides) > self._rules.finest:
            before = tries.best
            # Degree two matters most and comes first; later searches begin with another by turns.
            for i in ((1, 2, 0) * 2)[3 - first : 6 - first]:
                if not tries.walk(self._bounds, i, strides[i], plan.leap):
                    tries.walk(self._bounds, i, -strides[i], plan.leap)
            if tries.best == before:
                strides = (strides[0] / 2, strides[1] / 2, strides[2] / 2)
        return _variances(tries.x)

    def left_out_at(self, variances: Variances) -> tuple[Solved, Predicted, float]:
        """The factored regression, the errors of the left-out pairs, and their scale."""
        solved = self._solved(variances)
        predicted = predicted_pairs(solved, self.pairing)
        return solved, predicted, self._scale(predicted.square, variances)

    def degree_four(self) -> Floats:
        """The kernel of degree four at the points (n, n); only the lower triangle is filled."""
        n = len(self.points.h)
        kernel = square(n)
        Covariance(self.points.z, equal=self._equal).write_sum(np.array([0.0, 0.0, 1.0]), kernel)
        return kernel.T

    def stepped(self, variances: Variances, slopes: Mapping[str, Slope]) -> Variances:
        """The variances after a step down the slopes of the deviance, by the name of a variance.

        The logarithms have the weak prior of a search. A step is at most as long as the rules say.
        """
        rules, x = self._rules, dict(zip(Variances._fields, self._logarithms(variances), strict=True))
        for i, name in enumerate(Variances._fields):
            if name not in slopes:
                continue
            slope, curvature = slopes[name]
            stiffness = 2 / rules.width[i] ** 2
            step = -(slope + stiffness * (x[name] - math.log(rules.centre[i]))) / (curvature + stiffness)
            low, high = self._bounds[i]
            x[name] = min(max(x[name] + min(max(step, -rules.longest[i]), rules.longest[i]), low), high)
        return _variances((x["omega"], x["quadratic"], x["noise"]))

    def boldest_posterior(self, variances: Variances, family: GaussianFamily) -> Surrogate:
        """The posterior with the largest prior variance that the draws do not refute."""
        return self.posterior(self.boldest(variances), family)

    def boldest(self, variances: Variances) -> Variances:
        """The variances with the largest variance of degree two that the draws do not refute.

        With it, the posterior variance of C is at its largest. The deviance grows with the variance
        from here on. So a bisection finds the largest of the tried factors, and where the draws
        determine C, the first try is enough.
        """
        limit, highest = self.misfit(variances) + self._rules.slack, math.exp(self._bounds[1][1])
        factors = self._rules.bolder ** np.arange(1, self._rules.boldest + 1)
        trials = [variances._replace(quadratic=min(float(f) * variances.quadratic, highest)) for f in factors]
        n = n_not_refuted(len(trials), lambda i: self.misfit(trials[i]) > limit)
        return trials[n - 1] if n else variances

    def posterior(self, variances: Variances, family: GaussianFamily) -> Surrogate:
        """Posterior of the coefficients; ``family`` decides which of degree two count."""
        solved = self._solved(variances)
        left_out = _left_out(solved, self.pairing)
        self._misfits[variances] = self._deviance(left_out.square, left_out.log_det, variances)
        scale, free, d = self.scale(left_out, variances), solved.free, family.dim
        free_variance = np.sum(np.triu(scipy.linalg.lapack.dtrtri(solved.R)[0]) ** 2, axis=1)
        quadratic = self._quadratic(solved, variances, family, free_variance)
        return Surrogate(
            bound=self._centre + float(free[0]),
            bound_se=float(np.sqrt(scale * free_variance[0])),
            b=free[1 : d + 1],
            C=0.5 * (quadratic.C + quadratic.C.T),
            b_variance=scale * free_variance[1 : d + 1],
            quadratic_variance=scale * quadratic.variance,
            curvature_sd=float(np.sqrt(scale * quadratic.variance / quadratic.n_uncertain)),
            white=d * left_out.odd + quadratic.n_determined * left_out.even,
            scale=scale,
            variances=variances,
            errors=left_out.residuals,
        )

    def _quadratic(
        self, solved: Solved, variances: Variances, family: GaussianFamily, free_variance: Floats
    ) -> Quadratic:
        """Posterior of degree two, for free features with these posterior variances (p,)."""
        z, d, n = self.points.z, family.dim, family.n_quadratic
        one = variances.quadratic / (d * (d + 1) / 2)  # prior variance of one quadratic coefficient
        C = one * ((z.T * solved.alpha) @ z - np.sum(solved.alpha) * np.eye(d))
        C += solved.free[-1] * np.sqrt(2 / d) * np.eye(d)
        variance = max(one * _unexplained(solved, z, family, one) + free_variance[-1] - one, 0.0)
        return Quadratic(C, variance, n, n)

    def predict(self, variances: Variances, solved: Solved, z: Floats, features: Floats) -> Floats:
        """Predictions at other points z (m, d) with free features (m, p): (m,)."""
        between = kernels(z, self.points.z, equal=self._equal)
        smooth = (variances.quadratic * between.second + between.tail(variances.omega)) @ solved.alpha
        prediction: Floats = self._centre + features[:, self._kept] @ solved.free + smooth
        return prediction

    def curvature(self, variances: Variances, solved: Solved, columns: NDArray[np.bool_]) -> Floats:
        """The matrix C of ``z'Cz / 2`` in the smooth part, for some of the coordinates."""
        z, d = self.points.z[:, columns], self.points.z.shape[1]
        one = variances.quadratic / (d * (d + 1) / 2)
        C: Floats = one * ((z.T * solved.alpha) @ z - np.sum(solved.alpha) * np.eye(z.shape[1]))
        return C

    def solve(self, variances: Variances, workspace: Floats | None = None) -> Solved:
        """Factor the covariance and project the free features out.

        ``workspace`` (n, n) is memory that is overwritten.
        """
        n = len(self.points.h)
        factor = self._factor(variances, square(n) if workspace is None else workspace)
        whitened = whiten(factor, self._known)
        Q, R = _qr(whitened[:, :-1])
        along = Q.T @ whitened[:, -1]
        return Solved(factor, Q, R, along, whitened[:, -1] - Q @ along)

    def _solved(self, variances: Variances) -> Solved:
        """The same, in memory that is used again; the two best so far are kept.

        The best variances of a search are then factored once.
        """
        if variances not in self._factored:
            n, memory = len(self.points.h), None
            if len(self._factored) == _KEPT:
                worst = max(self._factored, key=lambda tried: self._misfits.get(tried, -math.inf))
                _, memory = self._factored.pop(worst)
            memory = square(n) if memory is None else memory
            self._factored[variances] = self.solve(variances, memory), memory
        return self._factored[variances][0]

    def _factor(self, variances: Variances, workspace: Floats) -> Floats:
        """Lower Cholesky factor of the covariance, in the workspace.

        The entries above the diagonal are not part of it and not zero.
        """
        for nugget in self._rules.nuggets:
            self._covariance.write(variances.quadratic, variances.omega, out=workspace)
            diagonal = np.einsum("ii->i", workspace)
            diagonal += variances.noise * self.points.growth
            diagonal *= 1 + nugget
            factor: Floats
            factor, failed = scipy.linalg.lapack.dpotrf(workspace.T, lower=1, clean=0, overwrite_a=1)
            if not failed:  # LAPACK raises no exception if a larger nugget is needed
                break
        return factor

    def misfit(self, variances: Variances) -> float:
        """Minus twice the log predictive density of the left-out pairs."""
        if variances not in self._misfits:
            predicted = predicted_pairs(self._solved(variances), self.pairing)
            self._misfits[variances] = self._deviance(predicted.square, predicted.log_det, variances)
        return self._misfits[variances]

    def _deviance(self, square: float, log_det: float, variances: Variances) -> float:
        scale = self._scale(square, variances)
        return log_det + self.pairing.m * math.log(scale) + square / scale

    def _badness(self, x: Logarithms) -> float:
        """What a search minimises: misfit, plus minus twice a weak log prior of the logarithms."""
        prior = zip(x, self._rules.centre, self._rules.width, strict=True)
        return self.misfit(_variances(x)) + sum(((a - math.log(centre)) / width) ** 2 for a, centre, width in prior)

    def _logarithms(self, variances: tuple[float, float, float]) -> Logarithms:
        """Logarithms of the variances, moved to within the bounds."""
        omega, quadratic, noise = (
            min(max(math.log(x), low), high) for x, (low, high) in zip(variances, self._bounds, strict=True)
        )
        return omega, quadratic, noise

    def scale(self, left_out: LeftOut, variances: Variances) -> float:
        """Variance of degrees three and four, from the errors; noise is at least the floor."""
        return self._scale(left_out.square, variances)

    def _scale(self, square: float, variances: Variances) -> float:
        return max(square / self.pairing.m, self.points.floor / variances.noise)


class _Tries:
    """The best of a limited number of tries."""

    def __init__(
        self, badness: Callable[[Logarithms], float], starts: list[Logarithms], most: int, improvement: float
    ) -> None:
        self._improvement = improvement
        self._badness, values = badness, [badness(x) for x in starts]
        self.best = min(values)
        self.x, self.left = starts[values.index(self.best)], most - len(values)

    def walk(self, bounds: list[tuple[float, ...]], i: int, stride: float, leap: bool) -> bool:
        """Search along one axis while the value improves; return whether it did.

        Each stride is twice the one before. Without ``leap`` there is only one.
        """
        start = self.best
        low, high = bounds[i]
        while self.left > 0:
            moved = min(max(self.x[i] + stride, low), high)
            if moved == self.x[i]:
                break
            omega, quadratic, noise = (moved if j == i else value for j, value in enumerate(self.x))
            x = omega, quadratic, noise
            value, self.left, stride = self._badness(x), self.left - 1, 2 * stride
            if not value < self.best - self._improvement:
                break
            self.best, self.x = value, x
            if not leap:
                break
        return self.best < start


@dataclass(frozen=True, eq=False)
class Solved:
    """A factored regression. Whitened vectors are multiplied by the inverse of the factor."""

    factor: Floats  # (n, n) lower Cholesky factor of the covariance V, up to scale
    Q: Floats  # (n, k) orthonormal basis of the whitened free features
    R: Floats  # (k, k) upper triangle: the whitened features in this basis
    along: Floats  # (k,) part of the whitened residuals in this basis ...
    rest: Floats  # (n,) ... and the rest of them

    @cached_property
    def free(self) -> Floats:
        """Coefficients of the free features (k,)."""
        return np.asarray(scipy.linalg.lapack.dtrtrs(self.R, self.along)[0]).ravel()

    @cached_property
    def alpha(self) -> Floats:
        """The residuals, with the free features projected out, over the covariance (n,)."""
        return np.asarray(scipy.linalg.blas.dtrsv(self.factor, self.rest, lower=1, trans=1))


class LeftOut(NamedTuple):
    """Prediction errors of left-out mirror pairs."""

    residuals: Floats  # (m,) in the order of the points
    even: float  # mean square of the part that the two points of a pair share
    odd: float  # mean square of the part with opposite signs
    square: float  # sum of squared errors, in units of their predicted variances
    log_det: float  # log determinant of those variances


class Pairing(NamedTuple):
    """Which of the left-out points are mirror images of each other."""

    m: int  # number of points
    first: NDArray[np.int64] | slice  # (pairs,) first point of each pair
    second: NDArray[np.int64] | slice  # (pairs,) second point, or another if there is none
    both: NDArray[np.bool_] | None  # (pairs,) whether there is a second point; None if all have one

    @classmethod
    def of(cls, pair: NDArray[np.int64]) -> Pairing:
        """The pairing of points with these numbers (m,)."""
        m = len(pair)
        first = np.flatnonzero(np.r_[True, pair[1:] != pair[:-1]])
        if m == 2 * len(first) and np.array_equal(pair[::2], pair[1::2]):
            return cls(m, slice(0, m, 2), slice(1, m, 2), None)
        second = np.minimum(first + 1, m - 1)
        return cls(m, first, second, (second > first) & (pair[second] == pair[first]))


class Predicted(NamedTuple):
    """Errors of the two points of each pair, predicted without it, and their joint density."""

    first: Floats  # (pairs,)
    second: Floats  # (pairs,) zero if there is no second point
    square: float
    log_det: float
    # (pairs,) each: entries of P at the first point, at the second, between them; determinant
    precision: tuple[Floats, Floats, Floats, Floats]


def leave_pairs_out(solved: Solved, pair: NDArray[np.int64]) -> LeftOut:
    """Predict each of the last mirror pairs from all other points.

    With S the two rows of a pair, its residual is ``P_SS^-1 alpha_S``, with variance ``P_SS^-1``. A
    point whose mirror image failed is left out alone.
    """
    return _left_out(solved, Pairing.of(pair))


def _left_out(solved: Solved, pairing: Pairing) -> LeftOut:
    e1, e2, square, log_det, _ = predicted_pairs(solved, pairing)
    even, odd = 0.5 * (e1 + e2), 0.5 * (e1 - e2)
    if pairing.both is not None:
        even, odd = (np.where(pairing.both, part, e1 / math.sqrt(2)) for part in (even, odd))
    residuals = np.empty(pairing.m)
    residuals[pairing.second] = e2
    residuals[pairing.first] = e1  # after the second ones, of which some may not exist
    return LeftOut(residuals, float(even @ even) / len(e1), float(odd @ odd) / len(e1), square, log_det)


def predicted_pairs(solved: Solved, pairing: Pairing) -> Predicted:
    m, first, second, both = pairing
    # The last rows of P = V^-1 - H H' and of alpha depend only on the last block of the factor.
    inverse = whiten(solved.factor[-m:, -m:], np.eye(m))
    H, alpha = inverse.T @ solved.Q[-m:], solved.rest[-m:] @ inverse
    full = np.einsum("ij,ij->j", inverse, inverse)
    diagonal = np.maximum(full - np.einsum("ij,ij->i", H, H), _CANCELLED * full + _TINY)
    p1, p2, a1, a2 = diagonal[first], diagonal[second], alpha[first], alpha[second]
    off = np.einsum("ij,ij->j", inverse[:, first], inverse[:, second]) - np.einsum("ij,ij->i", H[first], H[second])
    if both is not None:
        p2, a2, off = np.where(both, p2, 1.0), np.where(both, a2, 0.0), np.where(both, off, 0.0)
    product = p1 * p2
    det = np.maximum(product - off * off, _CANCELLED * product)
    e1, e2 = (p2 * a1 - off * a2) / det, (p1 * a2 - off * a1) / det
    return Predicted(e1, e2, float(a1 @ e1 + a2 @ e2), -float(np.log(det).sum()), (p1, p2, off, det))


def _unexplained(solved: Solved, z: Floats, family: GaussianFamily, one: float) -> float:
    """Number of the family's quadratic coefficients that the draws do not determine.

    It is the trace of I - one F'PF, with ``one`` the prior variance of a coefficient and F the
    quadratic features that the family has. The squared radius has no prior and is left out. The
    trace is the sum of u'u - one (Fu)'P(Fu) over an orthonormal basis u. If the basis is large, the
    mean over random combinations estimates it.
    """
    total, features = _combined(z, np.tril(family.restrict(np.ones((z.shape[1], z.shape[1])))))
    return total - one * explained(solved, features)


def explained(solved: Solved, features: Floats) -> float:
    """The sum of ``f'Pf`` over features f, the columns (n, k)."""
    whitened = whiten(solved.factor, features)
    along = solved.Q.T @ whitened
    return float(np.vdot(whitened, whitened) - np.vdot(along, along))


def _combined(z: Floats, pattern: Floats) -> tuple[float, Floats]:
    """Combinations Fu of the quadratic features at z (n, d), and the sum of u'u over all of them.

    ``pattern`` (d, d) is lower triangular, not zero where the family has a coefficient. With few
    coefficients, the combinations are an orthonormal basis. Otherwise they are random: that of
    ``z_i z_j`` is the product of two random signs, and so all are uncorrelated. The sum over a pair
    of coordinates is then a square of one over coordinates, which takes d operations, not d^2.
    """
    rows, columns = np.nonzero(pattern)
    is_square, d = rows == columns, z.shape[1]
    if len(rows) <= _SIGNS:
        u = np.eye(len(rows))
        u[:, is_square] -= u[:, is_square].mean(axis=1, keepdims=True)
        values = z[:, rows] * z[:, columns] * np.where(is_square, math.sqrt(0.5), 1.0)
        return float(np.sum(u**2)), values @ u.T
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (2, _SIGNS, d)) / _SIGNS**0.25
    squares = signs[1] / _SIGNS**0.25
    squares -= squares.mean(axis=1, keepdims=True)
    crossed = np.tril(pattern != 0, -1)
    if np.sum(crossed) == d * (d - 1) // 2:
        products = 0.5 * ((z @ signs[0].T) ** 2 - np.sum(z**2, axis=1, keepdims=True) / math.sqrt(_SIGNS))
    else:
        products = np.stack([np.sum((z * r) @ crossed * (z * r), axis=1) for r in signs[0]], axis=1)
    total = float(np.sum(crossed)) + float(np.sum(squares**2))
    return total, products + math.sqrt(0.5) * (z**2 @ squares.T)


def whiten(factor: Floats, columns: Floats) -> Floats:
    """Multiply columns (n, k) by the inverse of a lower triangular factor."""
    return np.asarray(scipy.linalg.blas.dtrsm(1.0, factor, columns, lower=1))


def _qr(columns: Floats) -> tuple[Floats, Floats]:
    """The QR decomposition of columns (n, k), n >= k, without the checks of NumPy."""
    k = columns.shape[1]
    packed, tau, _, _ = scipy.linalg.lapack.dgeqrf(columns, lwork=_LAPACK_BLOCK * k)
    R = packed[:k].copy(order="F")  # the entries below its diagonal are never read
    Q, _, _ = scipy.linalg.lapack.dorgqr(packed, tau, lwork=_LAPACK_BLOCK * k, overwrite_a=1)
    return Q, R


def n_not_refuted(n: int, is_refuted: Callable[[int], bool]) -> int:
    """How many of n trials, from the first on, are not refuted: by bisection from the last."""
    low, high, middle = 0, n, n
    while low < high:
        low, high = (low, middle - 1) if is_refuted(middle - 1) else (middle, high)
        middle = (low + high + 1) // 2
    return low


def _variances(x: Logarithms) -> Variances:
    return Variances(math.exp(x[0]), math.exp(x[1]), math.exp(x[2]))


def _independent(features: Floats) -> NDArray[np.int64]:
    """Linearly independent columns, chosen by a pivoted QR decomposition."""
    _, R, columns = scipy.linalg.qr(features, mode="economic", pivoting=True, check_finite=False)
    size = np.abs(np.diag(R))
    return np.sort(columns[: len(size)][size > _DEPENDENT * size[0]])
