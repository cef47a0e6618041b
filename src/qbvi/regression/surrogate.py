r"""Regression of the residual ``h = log p(y, theta) - log q(theta)`` on the whitened draws.

.. math:: h(z) = a + b'z + \tfrac12 (z'Cz - \mathrm{tr}\, C) + \text{degrees 3 and 4} + \text{noise}

Every coefficient of an orthonormal Hermite polynomial of degree two and more has a Gaussian prior, one variance a degree; the
constant, the linear terms and the radius are free. Under q all terms but ``a`` have mean zero, so ``a`` is the lower bound,
``(b, C)`` the natural gradient in whitened coordinates, and half the posterior variance of ``(b, C)`` the nats that their error costs.
Large noise gives the score-function estimator back, none the least-squares fit (DESIGN: ridge regression spans the range).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack, solve_triangular

from qbvi.families.base import Family
from qbvi.regression.hermite import Kernels, free_features, kernels

__all__ = ["Hyper", "Points", "Surrogate", "regress"]

Floats = NDArray[np.float64]

_JITTER = 1e-9  # relative nugget: bounds the condition number, so that leave-out residuals can be believed


class Hyper(NamedTuple):
    """Prior variances relative to that of degrees three and four together, all found from the draws."""

    omega: float = 0.3  # degree four against degree three
    quadratic: float = 1e2  # all of degree two
    noise: float = 1e-3  # of one draw


class Points(NamedTuple):
    """What is regressed on: the last points of z, whose pairs are numbered by ``pair``, are those to be predicted."""

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
    unpredicted: float  # root mean square of the left-out residuals
    scale: float  # variance of degrees three and four
    hyper: Hyper
    n: int


def regress(points: Points, start: Hyper, family: Family, tries: int) -> Surrogate:
    """Find the prior variances by prediction of left-out pairs, then the posterior of the coefficients.

    Parameters
    ----------
    points
        Draws, residuals and what is known of their noise.
    start
        Prior variances to search from: those of the step before.
    family
        Says which quadratic coefficients can be followed.
    tries
        Number of variances tried.

    Examples
    --------
    A quadratic is found exactly:

    >>> import numpy as np
    >>> from qbvi.families import Gaussian
    >>> from qbvi.random import orthogonal_pairs
    >>> z = orthogonal_pairs(np.random.default_rng(1), 12, 2)
    >>> h = 3.0 + z[:, 0] - (z[:, 1] ** 2 - 1)
    >>> s = regress(Points(z, h, np.ones(12), np.arange(12) // 2, 1e-20), Hyper(), Gaussian(2), 20)
    >>> round(s.bound, 3), s.b.round(3) + 0.0, s.C.round(3) + 0.0
    (3.0, array([1., 0.]), array([[ 0.,  0.],
           [ 0., -2.]]))
    """
    centre = float(np.median(points.h))  # keeps digits where the log-likelihood is large
    system = _System(points._replace(h=points.h - centre), kernels(points.z), free_features(points.z))
    hyper = _search(system, start, tries)
    return _posterior(system, hyper, family, centre)


@dataclass(frozen=True)
class _System:
    points: Points
    kernels: Kernels
    features: Floats

    def solve(self, hyper: Hyper) -> _Solved:
        """Factor the covariance and project the free features out."""
        covariance = hyper.quadratic * self.kernels.second + self.kernels.tail(hyper.omega)
        covariance[np.diag_indices_from(covariance)] += hyper.noise * self.points.growth
        factor = _cholesky(covariance)
        whitened = solve_triangular(
            factor, np.column_stack([self.features, self.points.h]), lower=True, check_finite=False
        )
        Q, R = np.linalg.qr(whitened[:, :-1])
        rest = whitened[:, -1] - Q @ (Q.T @ whitened[:, -1])
        back = solve_triangular(factor, np.column_stack([Q, rest]), lower=True, trans=1, check_finite=False)
        return _Solved(factor, R, back[:, :-1], back[:, -1])


class _Solved(NamedTuple):
    factor: Floats  # (n, n) lower Cholesky factor of the covariance V, up to scale
    R: Floats  # (k, k) of the whitened free features
    H: Floats  # (n, k): P = V^-1 - H H' projects them out
    alpha: Floats  # (n,) P h


class _LeftOut(NamedTuple):
    residuals: Floats  # (m,)
    square: float  # their sum of squares in units of their own variances
    log_det: float  # log determinant of those variances


def _posterior(system: _System, hyper: Hyper, family: Family, centre: float) -> Surrogate:
    solved = system.solve(hyper)
    left_out = _leave_pairs_out(solved, system.points.pair)
    scale = _scale(left_out, hyper, system.points)
    z, alpha, d = system.points.z, solved.alpha, family.dim
    free = solve_triangular(solved.R, solved.H.T @ system.points.h, check_finite=False)
    free_variance = np.sum(solve_triangular(solved.R, np.eye(d + 2), check_finite=False) ** 2, axis=1)
    one = hyper.quadratic / (d * (d + 1) / 2)  # prior variance of one quadratic coefficient
    C = one * ((z.T * alpha) @ z - np.sum(alpha) * np.eye(d)) + free[-1] * np.sqrt(2 / d) * np.eye(d)
    explained = one * _projected_sum(solved, family.quadratic_kernel(z))
    quadratic = max(one * (family.n_quadratic - explained) + free_variance[-1] - 2 * one, 0.0)
    return Surrogate(
        bound=centre + float(free[0]),
        bound_se=float(np.sqrt(scale * free_variance[0])),
        b=free[1:-1],
        C=0.5 * (C + C.T),
        b_variance=scale * free_variance[1:-1],
        quadratic_variance=scale * quadratic,
        curvature_sd=float(np.sqrt(scale * quadratic / family.n_quadratic)),
        unpredicted=float(np.sqrt(np.mean(left_out.residuals**2))),
        scale=scale,
        hyper=hyper,
        n=len(z),
    )


def _scale(left_out: _LeftOut, hyper: Hyper, points: Points) -> float:
    """Variance of degrees three and four: from the predictions, but never with less noise than the floor."""
    return max(left_out.square / len(points.pair), points.floor / hyper.noise)


def _leave_pairs_out(solved: _Solved, pair: NDArray[np.int64]) -> _LeftOut:
    """Predict the last points from all others, each mirror pair left out together.

    With S the block of a pair, its residual is ``P_SS^-1 alpha_S`` and the variance of it ``P_SS^-1``; a point whose mirror image
    failed stands alone.
    """
    m = len(pair)
    inverse = solve_triangular(solved.factor[-m:, -m:], np.eye(m), lower=True, check_finite=False)
    H, alpha = solved.H[-m:], solved.alpha[-m:]
    full = np.sum(inverse**2, axis=0)
    diagonal = np.maximum(full - np.sum(H**2, axis=1), 1e-12 * full + 1e-300)
    first = np.flatnonzero(np.r_[True, pair[1:] != pair[:-1]])
    second = np.minimum(first + 1, m - 1)
    both = (second > first) & (pair[second] == pair[first])
    p1, a1 = diagonal[first], alpha[first]
    p2, a2 = np.where(both, diagonal[second], 1.0), np.where(both, alpha[second], 0.0)
    cross = np.sum(inverse[:, first] * inverse[:, second], axis=0) - np.sum(H[first] * H[second], axis=1)
    off = np.where(both, cross, 0.0)
    det = np.maximum(p1 * p2 - off**2, 1e-12 * p1 * p2)
    e1, e2 = (p2 * a1 - off * a2) / det, (p1 * a2 - off * a1) / det
    return _LeftOut(np.r_[e1, e2[both]], float(a1 @ e1 + a2 @ e2), -float(np.sum(np.log(det))))


def _projected_sum(solved: _Solved, kernel: Floats) -> float:
    """Sum over all entries of P times the kernel, without forming P."""
    inverse = np.tril(lapack.dpotri(solved.factor, lower=1)[0]) * kernel
    return float(2 * np.sum(inverse) - np.trace(inverse) - np.sum(solved.H * (kernel @ solved.H)))


_BOUNDS = np.log([[0.02, 2.0], [1e-6, 1e12], [1e-10, 1e4]])
_WEAK_PRIOR = np.log([0.3, 1e2, 1e-2]), np.array([1.0, 6.0, 4.0])  # centre and width of each logarithm


def _search(system: _System, start: Hyper, tries: int) -> Hyper:
    """Pattern search over the logarithms of the three variances: fixed tries, no derivatives to go wrong."""

    def badness(x: Floats) -> float:
        hyper = Hyper(*np.exp(x))
        left_out = _leave_pairs_out(system.solve(hyper), system.points.pair)
        scale, m = _scale(left_out, hyper, system.points), len(system.points.pair)
        misfit = left_out.log_det + m * np.log(scale) + left_out.square / scale
        return float(misfit + np.sum(((x - _WEAK_PRIOR[0]) / _WEAK_PRIOR[1]) ** 2))

    x = np.clip(np.log(start), *_BOUNDS.T)
    best, stride, used = badness(x), np.array([0.7, 2.3, 2.3]), 1
    while used < tries and stride.max() > 0.4:
        before = best
        for i in (1, 2, 0):  # the most telling one first
            for trial in _neighbours(x, i, stride[i]):
                value, used = badness(trial), used + 1
                if value < best - 1e-3:
                    best, x = value, trial
                    break
        if best == before:
            stride = stride / 2
    return Hyper(*(float(value) for value in np.exp(x)))


def _neighbours(x: Floats, i: int, stride: float) -> list[Floats]:
    trials = []
    for sign in (1, -1):
        moved = np.clip(x[i] + sign * stride, *_BOUNDS[i])
        if moved != x[i]:
            trials.append(np.r_[x[:i], moved, x[i + 1 :]])
    return trials


def _cholesky(covariance: Floats) -> Floats:
    """Lower factor after scaling to a unit diagonal; LAPACK tells by number, not exception, when more nugget is needed."""
    sd = np.sqrt(np.diag(covariance))
    correlation = covariance / (sd[:, None] * sd[None, :])
    for jitter in _JITTER * 10.0 ** np.arange(8):
        correlation[np.diag_indices_from(correlation)] = 1 + jitter
        factor, failed = lapack.dpotrf(correlation, lower=1, clean=1)
        if not failed:
            break
    scaled: Floats = factor * sd[:, None]
    return scaled
