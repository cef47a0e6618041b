r"""Better prior variances from one factorisation: the slope of the deviance of left-out pairs.

A search that tries variances factors the covariance for each trial. With many points that is most
of the time of a fit. The slope of what the search minimises comes from the factor that the step
needs anyway, at a small part of its cost.

Let V be the covariance of the values, P its inverse with the free features projected out, S the
rows of a mirror pair and :math:`\alpha = P h`. The errors of the pair, predicted without it, are
:math:`e = P_{SS}^{-1} \alpha_S`. Their covariance is the scale s times :math:`\Sigma =
P_{SS}^{-1}`. The deviance is minus twice their log density. If V changes by dV, it changes by

.. math:: \sum_S \mathrm{tr} \left(\Sigma + \frac{e e'}{s}\right) (P \, dV P)_{SS}
    - \frac{2}{s} \, y_e' \, dV \alpha, \qquad y_e = \sum_S P_{\cdot S} \, e

The first sum is the expectation of :math:`y' dV y` for :math:`y = \sum_S P_{\cdot S} \, w_S`. The
random w have the covariance :math:`\Sigma + e e' / s` within a pair and none between pairs. So the
solution for a few right-hand sides gives the slope for every dV.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.regression.surrogate import HermiteRegression, Pairing, Predicted, Slope, Solved, Variances, whiten

__all__ = ["improved"]

Floats = NDArray[np.float64]

_COMBINED = 16  # random combinations of errors: the slope is then right to about a tenth


def improved(regression: HermiteRegression, variances: Variances, *, with_omega: bool = True) -> Variances:
    """The variances after one step down the slope of the deviance, for the next regression.

    Without ``with_omega``, the variance of degree four stays: its slope takes a covariance.

    Examples
    --------
    A quadratic has a large variance of degree two:

    >>> from qbvi.random import orthogonal_pairs
    >>> from qbvi.regression.surrogate import Sample
    >>> z = orthogonal_pairs(np.random.default_rng(1), 40, 2)
    >>> h = 9 * (z[:, 1] ** 2 - z[:, 0] ** 2)
    >>> points = Sample(z, h, np.ones(40), np.arange(40) // 2, 1e-20)
    >>> improved(HermiteRegression(points), Variances(quadratic=1.0)).quadratic > 1.5
    True
    """
    solved, predicted, scale = regression.left_out_at(variances)
    probes = _Probes.of(solved, regression.pairing, predicted, scale)
    quadratic = variances.quadratic * _degree_two(regression.points.z, probes)
    noise = _diagonal(variances.noise * regression.points.growth, probes)
    # A scale at its floor falls as the variance of the noise rises.
    excess = regression.pairing.m - predicted.square / scale
    slopes = {"quadratic": probes.slope(quadratic, quadratic), "noise": probes.slope(noise, noise)}
    slopes["noise"] = slopes["noise"]._replace(slope=slopes["noise"].slope - max(excess, 0.0))
    if with_omega:
        share = variances.omega / (1 + variances.omega)
        fourth = share * _products(regression.degree_four(), probes)
        third = probes.total - quadratic - noise - fourth  # degrees three and four are what is left
        slopes["omega"] = probes.slope((1 - share) * fourth - share * third, fourth)
    return regression.stepped(variances, slopes)


class _Probes(NamedTuple):
    """The combinations y, and with them alpha.

    The *products* of a part dV of the covariance (k,) are ``y' dV y`` for each random combination,
    and ``y_e' dV alpha``.
    """

    y: Floats  # (n, k): the random combinations, and y_e last
    other: Floats  # (n, k): the same with alpha in the place of y_e
    total: Floats  # (k,): the products of V
    scale: float

    @classmethod
    def of(cls, solved: Solved, pairing: Pairing, predicted: Predicted, scale: float) -> _Probes:
        m = pairing.m
        last = whiten(solved.factor[-m:, -m:], _weights(pairing, predicted, scale))
        u = -solved.Q @ (solved.Q[-m:].T @ last)
        u[-m:] += last
        y = np.asarray(scipy.linalg.blas.dtrsm(1.0, solved.factor, u, lower=1, trans_a=1))
        other, right = y.copy(), u.copy()
        other[:, -1], right[:, -1] = solved.alpha, solved.rest
        return cls(y, other, np.sum(u * right, axis=0), scale)

    def slope(self, change: Floats, part: Floats) -> Slope:
        """The slope for the products of a change of V; ``part`` are those of the part that changes.

        The products of all parts, without the last, sum to about twice the number of left-out
        points. Half of those of one part is the curvature of the deviance if only this part varied.
        """
        data = 2 * float(change[-1]) / self.scale
        return Slope(float(np.sum(change[:-1])) - data, 0.5 * float(np.sum(part[:-1])))


def _weights(pairing: Pairing, predicted: Predicted, scale: float) -> Floats:
    """The weights of the left-out points in each combination (m, k); the last has the errors."""
    _, p2, off, det = predicted.precision
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (3, len(p2), _COMBINED)) / _COMBINED**0.5
    root = np.sqrt(p2 / det)  # with the next line, the lower triangular root of the inverse of P_SS
    e1, e2 = predicted.first[:, None], predicted.second[:, None]
    first = root[:, None] * signs[0] + e1 * signs[2] / scale**0.5
    second = (-off / (det * root))[:, None] * signs[0] + p2[:, None] ** -0.5 * signs[1] + e2 * signs[2] / scale**0.5
    w = np.empty((pairing.m, _COMBINED + 1))
    w[pairing.second] = np.column_stack([second, e2])
    w[pairing.first] = np.column_stack([first, e1])  # after the second ones, of which some may not exist
    return w


def _degree_two(z: Floats, probes: _Probes) -> Floats:
    """The products of the kernel of degree two, without the kernel: 2 n d^2 operations each."""
    d, squares = z.shape[1], np.sum(z**2, axis=1)
    k, forms = probes.y.shape[1], []
    for j in range(k):
        y, other = probes.y[:, j], probes.other[:, j]
        left = (z.T * y) @ z
        right = left if j < k - 1 else (z.T * other) @ z
        lengths = np.sum(y) * (squares @ other) + np.sum(other) * (squares @ y)
        forms.append(np.vdot(left, right) + d * np.sum(y) * np.sum(other) - lengths)
    products: Floats = np.array(forms) / (d * (d + 1))
    return products


def _diagonal(diagonal: Floats, probes: _Probes) -> Floats:
    """The products of a diagonal matrix (n,)."""
    return np.asarray(diagonal @ (probes.y * probes.other))


def _products(lower: Floats, probes: _Probes) -> Floats:
    """The products of a symmetric matrix (n, n), of which the lower triangle is given."""
    return np.asarray(np.sum(scipy.linalg.blas.dsymm(1.0, lower, probes.y, lower=1) * probes.other, axis=0))
