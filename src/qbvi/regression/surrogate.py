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

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.families.base import GaussianFamily
from qbvi.regression.hermite import Kernels, free_features, kernels
from qbvi.regression.rules import SearchPlan, VarianceSearch

__all__ = ["HermiteRegression", "Sample", "Surrogate", "Variances"]

Floats = NDArray[np.float64]

_ROWS = 64  # rows of the covariance computed at a time, from the diagonal on: they fit the cache
_CANCELLED = 1e-12  # least relative value of a difference that rounding may cancel
_TINY = 1e-300  # keeps a zero out of a denominator
_DEPENDENT = 1e-7  # relative size below which a free feature depends linearly on others
_SIGNS = 100  # random combinations that estimate a trace over many quadratic features


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
        self._equal = features is not None  # the coordinates of a product of families are not normal
        self._triangle = [
            (at, self._kernels(slice(at, at + _ROWS), slice(at, None))) for at in range(0, len(points.z), _ROWS)
        ]
        self._features = self._free_features(points.z) if features is None else features
        # Given features may be linearly dependent: a discrete parameter may have one value so far.
        self._kept = slice(None) if features is None else _independent(features)
        self._features = self._features[:, self._kept]
        self._bounds = np.log([self._rules.lowest, self._rules.highest]).T
        if points.z.shape[1] == 1:
            # In one dimension the squared radius is all of degree two. It has no prior, so the
            # prior variance of degree two has no effect and is fixed.
            self._bounds[1, 1] = self._bounds[1, 0]

    def _kernels(self, rows: slice, columns: slice) -> Kernels:
        """Prior covariances between some of the points and others."""
        return kernels(self.points.z[rows], self.points.z[columns], equal=self._equal)

    def _free_features(self, z: Floats) -> Floats:
        features: Floats = free_features(z)
        return features

    def search(self, start: Variances, plan: SearchPlan) -> Variances:
        """Variances that best predict left-out pairs, by a pattern search over their logarithms."""
        starts = [np.clip(np.log(x), *self._bounds.T) for x in (start, *(self._rules.corners if plan.restart else ()))]
        if not plan.tries:
            return _variances(starts[0])
        workspace = self._workspace()
        tries = _Tries(lambda x: self._badness(x, workspace), starts, plan.tries, self._rules.improvement)
        stride = np.array(self._rules.strides)
        while tries.left > 0 and stride.max() > self._rules.finest:
            before = tries.best
            # Degree two matters most and comes first; later searches begin with another by turns.
            for i in np.roll((1, 2, 0), plan.turn):
                if not tries.walk(self._bounds, int(i), stride[i], plan.leap):
                    tries.walk(self._bounds, int(i), -stride[i], plan.leap)
            if tries.best == before:
                stride = stride / 2
        return _variances(tries.x)

    def boldest(self, variances: Variances) -> Variances:
        """The variances with the largest variance of degree two that the draws do not refute.

        With it, the posterior variance of C is at its largest.
        """
        workspace = self._workspace()
        limit, bold = self._misfit(variances, workspace) + self._rules.slack, variances
        for _ in range(self._rules.boldest):
            trial = bold._replace(quadratic=min(self._rules.bolder * bold.quadratic, float(np.exp(self._bounds[1, 1]))))
            if trial == bold or self._misfit(trial, workspace) > limit:
                break
            bold = trial
        return bold

    def boldest_posterior(self, variances: Variances, family: GaussianFamily) -> Surrogate:
        """The posterior with the variance of `boldest`."""
        return self.posterior(self.boldest(variances), family)

    def posterior(self, variances: Variances, family: GaussianFamily) -> Surrogate:
        """Posterior of the coefficients; ``family`` decides which of degree two count."""
        solved = self.solve(variances)
        left_out = leave_pairs_out(solved, self.points.pair)
        scale = self.scale(left_out, variances)
        z, alpha, d = self.points.z, solved.alpha, family.dim
        free = scipy.linalg.solve_triangular(solved.R, solved.H.T @ self.points.h, check_finite=False)
        free_variance = np.sum(scipy.linalg.solve_triangular(solved.R, np.eye(d + 2), check_finite=False) ** 2, axis=1)
        one = variances.quadratic / (d * (d + 1) / 2)  # prior variance of one quadratic coefficient
        C = one * ((z.T * alpha) @ z - np.sum(alpha) * np.eye(d)) + free[-1] * np.sqrt(2 / d) * np.eye(d)
        quadratic = max(one * _unexplained(solved, z, family, one) + free_variance[-1] - one, 0.0)
        return Surrogate(
            bound=self._centre + float(free[0]),
            bound_se=float(np.sqrt(scale * free_variance[0])),
            b=free[1:-1],
            C=0.5 * (C + C.T),
            b_variance=scale * free_variance[1:-1],
            quadratic_variance=scale * quadratic,
            curvature_sd=float(np.sqrt(scale * quadratic / family.n_quadratic)),
            white=d * left_out.odd + family.n_quadratic * left_out.even,
            scale=scale,
            variances=variances,
            errors=left_out.residuals,
        )

    def predict(self, variances: Variances, solved: Solved, z: Floats, features: Floats) -> Floats:
        """Predictions at other points z (m, d) with free features (m, p): (m,)."""
        between = kernels(z, self.points.z, equal=self._equal)
        free = scipy.linalg.solve_triangular(solved.R, solved.H.T @ self.points.h, check_finite=False)
        smooth = (variances.quadratic * between.second + between.tail(variances.omega)) @ solved.alpha
        prediction: Floats = self._centre + features[:, self._kept] @ free + smooth
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
        factor = self._factor(variances, workspace)
        whitened = scipy.linalg.solve_triangular(
            factor, np.column_stack([self._features, self.points.h]), lower=True, check_finite=False
        )
        Q, R = np.linalg.qr(whitened[:, :-1])
        rest = whitened[:, -1] - Q @ (Q.T @ whitened[:, -1])
        back = scipy.linalg.solve_triangular(
            factor, np.column_stack([Q, rest]), lower=True, trans=1, check_finite=False
        )
        return Solved(factor, R, back[:, :-1], back[:, -1])

    def _factor(self, variances: Variances, workspace: Floats | None) -> Floats:
        """Lower Cholesky factor of the covariance, in the workspace if there is one.

        The entries above the diagonal are not part of it and not zero.
        """
        workspace = self._workspace() if workspace is None else workspace
        for nugget in self._rules.nuggets:
            for at, block in self._triangle:
                block.mix(variances.quadratic, variances.omega, out=workspace[at : at + _ROWS, at:])
            diagonal = np.einsum("ii->i", workspace)
            diagonal += variances.noise * self.points.growth
            diagonal *= 1 + nugget
            factor: Floats
            factor, failed = scipy.linalg.lapack.dpotrf(workspace.T, lower=1, clean=0, overwrite_a=1)
            if not failed:  # LAPACK raises no exception if a larger nugget is needed
                break
        return factor

    def _workspace(self) -> Floats:
        n = len(self.points.h)
        return np.empty((n, n))

    def misfit(self, variances: Variances) -> float:
        """Minus twice the log predictive density of the left-out pairs."""
        return self._misfit(variances, self._workspace())

    def _misfit(self, variances: Variances, workspace: Floats) -> float:
        """Minus twice the log predictive density of the left-out pairs."""
        left_out = leave_pairs_out(self.solve(variances, workspace), self.points.pair)
        scale = self.scale(left_out, variances)
        return float(left_out.log_det + len(self.points.pair) * np.log(scale) + left_out.square / scale)

    def _badness(self, x: Floats, workspace: Floats) -> float:
        """What a search minimises: misfit, plus minus twice a weak log prior of the logarithms."""
        return self._misfit(_variances(x), workspace) + float(
            np.sum(((x - np.log(self._rules.centre)) / self._rules.width) ** 2)
        )

    def scale(self, left_out: LeftOut, variances: Variances) -> float:
        """Variance of degrees three and four, from the errors; noise is at least the floor."""
        return max(left_out.square / len(self.points.pair), self.points.floor / variances.noise)


class _Tries:
    """The best of a limited number of tries."""

    def __init__(self, badness: Callable[[Floats], float], starts: list[Floats], most: int, improvement: float) -> None:
        self._improvement = improvement
        self._badness, values = badness, [badness(x) for x in starts]
        self.x, self.best, self.left = starts[int(np.argmin(values))], min(values), most - len(values)

    def walk(self, bounds: Floats, i: int, stride: float, leap: bool) -> bool:
        """Search along one axis while the value improves; return whether it did.

        Each stride is twice the one before. Without ``leap`` there is only one.
        """
        start = self.best
        while self.left > 0:
            x = self.x.copy()
            x[i] = np.clip(x[i] + stride, *bounds[i])
            if x[i] == self.x[i]:
                break
            value, self.left, stride = self._badness(x), self.left - 1, 2 * stride
            if not value < self.best - self._improvement:
                break
            self.best, self.x = value, x
            if not leap:
                break
        return self.best < start


class Solved(NamedTuple):
    """A factored regression."""

    factor: Floats  # (n, n) lower Cholesky factor of the covariance V, up to scale
    R: Floats  # (k, k) of the QR decomposition of the whitened free features
    H: Floats  # (n, k): P = V^-1 - H H' projects the free features out
    alpha: Floats  # (n,) P h


class LeftOut(NamedTuple):
    """Prediction errors of left-out mirror pairs."""

    residuals: Floats  # (m,) in the order of the points
    even: float  # mean square of the part that the two points of a pair share
    odd: float  # mean square of the part with opposite signs
    square: float  # sum of squared errors, in units of their predicted variances
    log_det: float  # log determinant of those variances


def leave_pairs_out(solved: Solved, pair: NDArray[np.int64]) -> LeftOut:
    """Predict each of the last mirror pairs from all other points.

    With S the two rows of a pair, its residual is ``P_SS^-1 alpha_S``, with variance ``P_SS^-1``. A
    point whose mirror image failed is left out alone.
    """
    m = len(pair)
    inverse = scipy.linalg.solve_triangular(solved.factor[-m:, -m:], np.eye(m), lower=True, check_finite=False)
    H, alpha = solved.H[-m:], solved.alpha[-m:]
    full = np.sum(inverse**2, axis=0)
    diagonal = np.maximum(full - np.sum(H**2, axis=1), _CANCELLED * full + _TINY)
    first = np.flatnonzero(np.r_[True, pair[1:] != pair[:-1]])
    second = np.minimum(first + 1, m - 1)
    both = (second > first) & (pair[second] == pair[first])
    p1, a1 = diagonal[first], alpha[first]
    p2, a2 = np.where(both, diagonal[second], 1.0), np.where(both, alpha[second], 0.0)
    cross = np.sum(inverse[:, first] * inverse[:, second], axis=0) - np.sum(H[first] * H[second], axis=1)
    off = np.where(both, cross, 0.0)
    det = np.maximum(p1 * p2 - off**2, _CANCELLED * p1 * p2)
    e1, e2 = (p2 * a1 - off * a2) / det, (p1 * a2 - off * a1) / det
    even = np.where(both, 0.5 * (e1 + e2), e1 / np.sqrt(2))
    odd = np.where(both, 0.5 * (e1 - e2), e1 / np.sqrt(2))
    residuals = np.empty(m)
    residuals[second[both]], residuals[first] = e2[both], e1
    return LeftOut(
        residuals,
        float(np.mean(even**2)),
        float(np.mean(odd**2)),
        float(a1 @ e1 + a2 @ e2),
        -float(np.sum(np.log(det))),
    )


def _unexplained(solved: Solved, z: Floats, family: GaussianFamily, one: float) -> float:
    """Number of the family's quadratic coefficients that the draws do not determine.

    It is the trace of I - one F'PF, with ``one`` the prior variance of a coefficient and F the
    quadratic features that the family has. The squared radius has no prior and is left out. The
    trace is the sum of u'u - one (Fu)'P(Fu) over an orthonormal basis u. If the basis is large, the
    mean over random signs estimates it. The relative error is at most about a seventh, when all but
    one coefficient are known.
    """
    d = z.shape[1]
    rows, columns = np.nonzero(np.tril(family.restrict(np.ones((d, d)))))
    p, on_diagonal = len(rows), rows == columns
    u = np.eye(p) if p <= _SIGNS else np.random.default_rng(0).choice([-1.0, 1.0], (_SIGNS, p)) / np.sqrt(_SIGNS)
    u[:, on_diagonal] -= u[:, on_diagonal].mean(axis=1, keepdims=True)
    forms = np.zeros((len(u), d, d))
    forms[:, rows, columns] = u * np.where(on_diagonal, np.sqrt(0.5), 1.0)
    features = np.stack([np.sum(z @ form * z, axis=1) for form in forms], axis=1)
    whitened = scipy.linalg.solve_triangular(solved.factor, features, lower=True, check_finite=False)
    return float(np.sum(u**2) - one * (np.sum(whitened**2) - np.sum((solved.H.T @ features) ** 2)))


def _variances(x: Floats) -> Variances:
    return Variances(*(float(value) for value in np.exp(x)))


def _independent(features: Floats) -> NDArray[np.int64]:
    """Linearly independent columns, chosen by a pivoted QR decomposition."""
    _, R, columns = scipy.linalg.qr(features, mode="economic", pivoting=True, check_finite=False)
    size = np.abs(np.diag(R))
    return np.sort(columns[: len(size)][size > _DEPENDENT * size[0]])
