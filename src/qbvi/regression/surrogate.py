r"""Regression of the residual ``h = log p(y, theta) - log q(theta)`` on the whitened draws.

.. math:: h(z) = a + b'z + \tfrac12 (z'Cz - \mathrm{tr}\, C) + \text{degrees 3 and 4} + \text{noise}

Every coefficient of an orthonormal Hermite polynomial of degree two and more has a Gaussian prior, one variance a degree; the
constant, the linear terms and the radius are free. Under q all terms but ``a`` have mean zero, so ``a`` is the lower bound,
``(b, C)`` the natural gradient in whitened coordinates, and half the posterior variance of ``(b, C)`` the nats that their error costs.
Large noise gives the score-function estimator back, none the least-squares fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack, qr, solve_triangular

from qbvi.families.base import GaussianFamily
from qbvi.regression.hermite import free_features, kernels
from qbvi.regression.rules import SearchPlan, VarianceSearch

__all__ = ["HermiteRegression", "Sample", "Surrogate", "Variances"]

Floats = NDArray[np.float64]

_ROWS = 64  # of the covariance are made at a time, the part right of the diagonal: they stay in the cache
_CANCELLED = 1e-12  # share that is left of a difference of equal numbers: it is never less
_TINY = 1e-300
_DEPENDENT = 1e-7  # relative size below which a free feature is a combination of others
_SIGNS = 100  # random combinations of the quadratic features stand for all of them


class Variances(NamedTuple):
    """Prior variances relative to that of degrees three and four together, all found from the draws."""

    omega: float = 0.3  # degree four against degree three
    quadratic: float = 1e2  # all of degree two
    noise: float = 1e-3  # of one draw


class Sample(NamedTuple):
    """What is regressed on; the last points, whose mirror pairs are numbered by ``pair``, are held out in turn."""

    z: Floats  # (n, d) whitened draws
    h: Floats  # (n,) residuals
    growth: Floats  # (n,) relative noise variance: more for points far out or crowded
    pair: NDArray[np.int64]  # (m,) mirror pairs among the last m points; pairs are next to each other
    floor: float  # smallest variance of the noise: rounding, or what is known of the function


@dataclass(frozen=True)
class Surrogate:
    """The regression's answer."""

    bound: float  # a, the lower bound at q
    bound_se: float
    b: Floats  # (d,) linear part of the natural gradient
    C: Floats  # (d, d) quadratic part
    b_variance: Floats  # (d,) posterior variance of b
    quadratic_variance: float  # sum over the coefficients of C that the family follows
    curvature_sd: float  # root mean posterior variance of one quadratic coefficient
    white: float  # what b and C would cost, times the number of draws, were all that is unpredictable white noise
    scale: float  # variance of degrees three and four
    variances: Variances
    errors: Floats  # (m,) by how much the left-out points were mispredicted


class HermiteRegression:
    """The regression of one set of points: find the prior variances, then the posterior of the coefficients.

    Parameters
    ----------
    points
        Draws, residuals and what is known of their noise.
    features
        What is fitted without a prior (n, p); by default a constant, z and the squared radius.
    rules
        How the prior variances are searched.

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
        self._centre = float(np.median(points.h))  # keeps digits where the log-likelihood is large
        self.points = points._replace(h=points.h - self._centre)
        self._triangle = [
            (at, kernels(points.z[at : at + _ROWS], points.z[at:])) for at in range(0, len(points.z), _ROWS)
        ]
        self._features = free_features(points.z) if features is None else features
        # Of the user's own some may say the same, as a switch that was never drawn the other way.
        self._kept = slice(None) if features is None else _independent(features)
        self._features = self._features[:, self._kept]
        self._bounds = np.log([self._rules.lowest, self._rules.highest]).T
        if points.z.shape[1] == 1:
            # In one dimension the radius is all there is of degree two, and it is free: a prior would say nothing.
            self._bounds[1, 1] = self._bounds[1, 0]

    def search(self, start: Variances, plan: SearchPlan) -> Variances:
        """Variances that predict left-out pairs best: a pattern search over logarithms, no derivatives to go wrong."""
        starts = [np.clip(np.log(x), *self._bounds.T) for x in (start, *(self._rules.corners if plan.restart else ()))]
        if not plan.tries:
            return _variances(starts[0])
        workspace = self._workspace()
        tries = _Tries(lambda x: self._badness(x, workspace), starts, plan.tries, self._rules.improvement)
        stride = np.array(self._rules.strides)
        while tries.left > 0 and stride.max() > self._rules.finest:
            before = tries.best
            for i in np.roll((1, 2, 0), plan.turn):  # the most telling one first, then the others' turn
                if not tries.walk(self._bounds, int(i), stride[i], plan.leap):
                    tries.walk(self._bounds, int(i), -stride[i], plan.leap)
            if tries.best == before:
                stride = stride / 2
        return _variances(tries.x)

    def boldest(self, variances: Variances) -> Variances:
        """The largest prior variance of C that the draws do not refute: what is not known of C then counts in full."""
        workspace = self._workspace()
        limit, bold = self._misfit(variances, workspace) + self._rules.slack, variances
        for _ in range(self._rules.boldest):
            trial = bold._replace(quadratic=min(self._rules.bolder * bold.quadratic, float(np.exp(self._bounds[1, 1]))))
            if trial == bold or self._misfit(trial, workspace) > limit:
                break
            bold = trial
        return bold

    def posterior(self, variances: Variances, family: GaussianFamily) -> Surrogate:
        """Posterior of the coefficients; ``family`` says which of degree two it follows."""
        solved = self.solve(variances)
        left_out = leave_pairs_out(solved, self.points.pair)
        scale = self.scale(left_out, variances)
        z, alpha, d = self.points.z, solved.alpha, family.dim
        free = solve_triangular(solved.R, solved.H.T @ self.points.h, check_finite=False)
        free_variance = np.sum(solve_triangular(solved.R, np.eye(d + 2), check_finite=False) ** 2, axis=1)
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
        """The regression at other points: z (m, d), with their free features (m, p) -> (m,)."""
        between = kernels(z, self.points.z)
        free = solve_triangular(solved.R, solved.H.T @ self.points.h, check_finite=False)
        smooth = (variances.quadratic * between.second + between.tail(variances.omega)) @ solved.alpha
        prediction: Floats = self._centre + features[:, self._kept] @ free + smooth
        return prediction

    def curvature(self, variances: Variances, solved: Solved, columns: NDArray[np.bool_]) -> Floats:
        """Degree two of the smooth part along some of the coordinates: the matrix C of ``z'Cz / 2``."""
        z, d = self.points.z[:, columns], self.points.z.shape[1]
        one = variances.quadratic / (d * (d + 1) / 2)
        C: Floats = one * ((z.T * solved.alpha) @ z - np.sum(solved.alpha) * np.eye(z.shape[1]))
        return C

    def solve(self, variances: Variances, workspace: Floats | None = None) -> Solved:
        """Factor the covariance and project the free features out; ``workspace`` (n, n) is memory that may be overwritten."""
        factor = self._factor(variances, workspace)
        whitened = solve_triangular(
            factor, np.column_stack([self._features, self.points.h]), lower=True, check_finite=False
        )
        Q, R = np.linalg.qr(whitened[:, :-1])
        rest = whitened[:, -1] - Q @ (Q.T @ whitened[:, -1])
        back = solve_triangular(factor, np.column_stack([Q, rest]), lower=True, trans=1, check_finite=False)
        return Solved(factor, R, back[:, :-1], back[:, -1])

    def _factor(self, variances: Variances, workspace: Floats | None) -> Floats:
        """Lower factor of the covariance, in the workspace if there is one; what is above the diagonal is not part of it."""
        workspace = self._workspace() if workspace is None else workspace
        for nugget in self._rules.nuggets:
            for at, block in self._triangle:
                block.mix(variances.quadratic, variances.omega, out=workspace[at : at + _ROWS, at:])
            diagonal = np.einsum("ii->i", workspace)
            diagonal += variances.noise * self.points.growth
            diagonal *= 1 + nugget
            factor: Floats
            factor, failed = lapack.dpotrf(workspace.T, lower=1, clean=0, overwrite_a=1)
            if not failed:  # LAPACK tells by number, not exception, when more nugget is needed
                break
        return factor

    def _workspace(self) -> Floats:
        n = len(self.points.h)
        return np.empty((n, n))

    def _misfit(self, variances: Variances, workspace: Floats) -> float:
        """Minus twice the log predictive density of the left-out pairs."""
        left_out = leave_pairs_out(self.solve(variances, workspace), self.points.pair)
        scale = self.scale(left_out, variances)
        return float(left_out.log_det + len(self.points.pair) * np.log(scale) + left_out.square / scale)

    def _badness(self, x: Floats, workspace: Floats) -> float:
        """What a search makes small: misfit, and a weak prior of the logarithms."""
        return self._misfit(_variances(x), workspace) + float(
            np.sum(((x - np.log(self._rules.centre)) / self._rules.width) ** 2)
        )

    def scale(self, left_out: LeftOut, variances: Variances) -> float:
        """Variance of degrees three and four: from the predictions, but never with less noise than the floor."""
        return max(left_out.square / len(self.points.pair), self.points.floor / variances.noise)


class _Tries:
    """The best of a number of tries."""

    def __init__(self, badness: Callable[[Floats], float], starts: list[Floats], most: int, improvement: float) -> None:
        self._improvement = improvement
        self._badness, values = badness, [badness(x) for x in starts]
        self.x, self.best, self.left = starts[int(np.argmin(values))], min(values), most - len(values)

    def walk(self, bounds: Floats, i: int, stride: float, leap: bool) -> bool:
        """Go along one axis, in leaps as long as it gets better; whether it did at all."""
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
    R: Floats  # (k, k) of the whitened free features
    H: Floats  # (n, k): P = V^-1 - H H' projects them out
    alpha: Floats  # (n,) P h


class LeftOut(NamedTuple):
    """How well left-out pairs are predicted from all other points."""

    residuals: Floats  # (m,) in the order of the points
    even: float  # mean square of the part that a pair has in common
    odd: float  # and of the part that changes sign
    square: float  # their sum of squares in units of their own variances
    log_det: float  # log determinant of those variances


def leave_pairs_out(solved: Solved, pair: NDArray[np.int64]) -> LeftOut:
    """Predict the last points from all others, each mirror pair left out together.

    With S the block of a pair, its residual is ``P_SS^-1 alpha_S`` and the variance of it ``P_SS^-1``; a point whose mirror image
    failed stands alone.
    """
    m = len(pair)
    inverse = solve_triangular(solved.factor[-m:, -m:], np.eye(m), lower=True, check_finite=False)
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
    """Trace of I - one F'PF for the quadratic features F that the family follows: what the draws do not tell of their coefficients. The radius is free, and left out.

    It is the sum of u'u - one (Fu)'P(Fu) over an orthonormal basis u. Where that would be large, its mean over random signs u does: give or take a seventh at
    worst, where all is known but a single coefficient.
    """
    d = z.shape[1]
    rows, columns = np.nonzero(np.tril(family.restrict(np.ones((d, d)))))
    p, on_diagonal = len(rows), rows == columns
    u = np.eye(p) if p <= _SIGNS else np.random.default_rng(0).choice([-1.0, 1.0], (_SIGNS, p)) / np.sqrt(_SIGNS)
    u[:, on_diagonal] -= u[:, on_diagonal].mean(axis=1, keepdims=True)
    forms = np.zeros((len(u), d, d))
    forms[:, rows, columns] = u * np.where(on_diagonal, np.sqrt(0.5), 1.0)
    features = np.stack([np.sum(z @ form * z, axis=1) for form in forms], axis=1)
    whitened = solve_triangular(solved.factor, features, lower=True, check_finite=False)
    return float(np.sum(u**2) - one * (np.sum(whitened**2) - np.sum((solved.H.T @ features) ** 2)))


def _variances(x: Floats) -> Variances:
    return Variances(*(float(value) for value in np.exp(x)))


def _independent(features: Floats) -> NDArray[np.int64]:
    """Columns that are linearly independent of those before them in order of size."""
    _, R, columns = qr(features, mode="economic", pivoting=True, check_finite=False)
    size = np.abs(np.diag(R))
    return np.sort(columns[: len(size)][size > _DEPENDENT * size[0]])
