r"""The lower bound of a generalised linear model under a Gaussian, and where it rises fastest.

The log-likelihood is a sum over rows, :math:`\sum_i \ell_i(x_i'\beta)`. Under
:math:`q = N(\mu, S)` the predictor of a row is Gaussian, so each term is an integral over one
dimension:

.. math::
    \mathcal{L}(\mu, S) = \sum_i E\,\ell_i(b_i) + E_q \log p(\beta) + H(q), \qquad
    b_i \sim N(x_i'\mu,\; x_i' S x_i)

With :math:`g_i = E\,\ell_i'(b_i)`, :math:`w_i = -E\,\ell_i''(b_i)` and a prior
:math:`\log p(\beta) = c + \lambda'\beta - \tfrac12 \beta' \Lambda \beta`, the gradients are

.. math::
    \nabla_\mu \mathcal{L} = X'g + \lambda - \Lambda\mu, \qquad
    \nabla_S \mathcal{L} = \tfrac12 (S^{-1} - T), \quad T = \Lambda + X'\,\mathrm{diag}(w)\,X
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.exact.quadrature import Expected

__all__ = ["ExactBound", "GaussianPrior", "Noise", "Point", "Regression"]

Floats = NDArray[np.float64]

_LOG_2PI = math.log(2 * math.pi)
_CHUNK = 2**20  # numbers of a chunk of rows: 8 MB for each temporary array
_WIDEST = 128  # numbers that the quadrature of one row may need
# Most coefficients of a diagonal Gaussian for which Newton's equations are solved directly.
# Beyond, the matrix would cost more memory and time than conjugate gradients.
_MOST_DIRECT = 1_000
_CG_TOLERANCE, _CG_MOST = 0.01, 500  # relative residual, and most products


class Regression(Protocol):
    """Rows that depend on a linear predictor, as `qbvi.models.LinearPredictor` has them."""

    @property
    def data(self) -> tuple[Floats, ...]:
        """The design (n, k), and what else belongs to the rows: (n,) each."""

    def expected_of(self, mean: Floats, var: Floats, *data: Floats) -> Expected:
        """Expected log-likelihood of each row, given the moments of its predictor."""


class GaussianPrior(NamedTuple):
    """``log p(beta) = constant + linear . beta - beta' precision beta / 2``."""

    linear: Floats  # (k,)
    precision: Floats  # (k,) if diagonal, else (k, k)
    constant: float

    def slope(self, mean: Floats) -> Floats:
        """Gradient at a point."""
        return self.linear - _product(self.precision, mean)

    def expected(self, mean: Floats, spread: Spread) -> float:
        """Expectation under a Gaussian."""
        centre = self.constant + self.linear @ mean - 0.5 * mean @ _product(self.precision, mean)
        return float(centre) - 0.5 * spread.trace(self.precision)


class Noise(NamedTuple):
    """Inverse gamma distribution of a noise variance; the likelihood has the form of a normal."""

    alpha: float
    beta: float

    @property
    def precision(self) -> float:
        """Expectation of one over the variance."""
        return self.alpha / self.beta

    def updated(self, rows: int, squares: float) -> Noise:
        """The best factor beside a Gaussian with these expected squares of the residuals."""
        return Noise(self.alpha + rows / 2, self.beta + squares / 2)

    def log_evidence(self, prior: Noise, rows: int) -> float:
        """The part of the bound that depends on the variance, if this factor is the best one."""
        log_gammas = scipy.special.gammaln(self.alpha) - scipy.special.gammaln(prior.alpha)
        return float(
            log_gammas + prior.alpha * math.log(prior.beta) - self.alpha * math.log(self.beta) - rows / 2 * _LOG_2PI
        )


class Point(NamedTuple):
    """The bound at a Gaussian, and the next Gaussian of the iteration."""

    mean: Floats  # (k,)
    precision: Floats  # (k, k), or (k,) if diagonal
    bound: float  # minus infinity if it is not a number
    shift: Floats  # (k,) from the mean to the next one
    target: Floats  # the next precision
    gap: float  # divergence from the next Gaussian, in nats: the gain that the step promises
    gradient: Floats  # (k,) of the bound, by the mean
    noise: Noise | None  # the best factor of the noise variance beside this Gaussian
    passes: int  # over the data, that this point took


class Spread:
    """The covariance of a Gaussian as a factor, ``S = L L'``: (k, k), or its diagonal (k,)."""

    def __init__(self, factor: Floats) -> None:
        self.factor, self.is_diagonal = factor, factor.ndim == 1

    @classmethod
    def of_precision(cls, precision: Floats) -> Spread:
        """The spread with this precision, full or diagonal."""
        if precision.ndim == 1:
            return cls(1 / np.sqrt(precision))
        # Equilibrate first: the factor stays accurate if scales differ by orders of magnitude.
        unit = 1 / np.sqrt(np.diagonal(precision))
        root = np.linalg.cholesky(precision * unit[:, None] * unit)
        inverse = scipy.linalg.solve_triangular(root, np.eye(len(root)), lower=True)
        return cls(unit[:, None] * inverse.T)

    @property
    def log_det(self) -> float:
        """log |L|; the factor is triangular."""
        diagonal = self.factor if self.is_diagonal else np.diagonal(self.factor)
        return float(np.sum(np.log(diagonal)))

    def variances(self, design: Floats) -> Floats:
        """Variances of the predictors: (n, k) -> (n,)."""
        if self.is_diagonal:
            return np.asarray(design**2 @ self.factor**2)
        return _row_squares(design @ self.factor)

    def trace(self, matrix: Floats) -> float:
        """Trace of a matrix, (k, k) or a diagonal (k,), times the covariance."""
        variances = self.factor**2 if self.is_diagonal else _row_squares(self.factor)
        if matrix.ndim == 1 or self.is_diagonal:
            return float((matrix if matrix.ndim == 1 else np.diagonal(matrix)) @ variances)
        return float(np.sum((matrix @ self.factor) * self.factor))


class _Seen(NamedTuple):
    """What one pass over the data finds."""

    value: float  # expected log-likelihood
    slope: Floats  # (k,) its gradient X'g
    curvature: Floats  # X' diag(w) X: (k, k), or its diagonal (k,)
    weights: Floats  # (n,) the w; empty where the whole matrix is known


@dataclass(frozen=True, eq=False)
class ExactBound:
    """The lower bound of a regression under a Gaussian of its coefficients.

    Parameters
    ----------
    regression : Regression
        Rows and their one-dimensional expectations.
    prior : GaussianPrior
        Prior of the coefficients.
    noise : Noise, optional
        Prior of the noise variance. The regression's expectations are then those with a variance of
        one, and every bound is that with the best inverse gamma distribution of the variance.

    Examples
    --------
    The bound of a linear regression with a known variance of one is its log evidence:

    >>> import qbvi
    >>> model = qbvi.models.Linear([[-1.0], [1.0]], [-2.0, 2.0], intercept=False)
    >>> bound = ExactBound(model, GaussianPrior(np.zeros(1), np.ones(1), -0.5 * np.log(2 * np.pi)))
    >>> point = bound.at(np.array([4 / 3]), np.array([[3.0]]))
    >>> round(point.bound, 6), round(point.gap, 6)
    (-5.053849, 0.0)
    """

    regression: Regression
    prior: GaussianPrior
    noise: Noise | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.regression.data[0])

    @property
    def coefficients(self) -> int:
        """Number of coefficients."""
        return int(self.regression.data[0].shape[1])

    def start(self, mean: Floats, is_diagonal: bool) -> Point:
        """The Gaussian at ``mean`` with the curvature there: Laplace's at that point."""
        none = Spread(np.zeros(len(mean)) if is_diagonal else np.zeros((len(mean), len(mean))))
        seen = self._pass(mean, none)
        precision = self._newton(seen, self._best_noise(seen))
        if not (math.isfinite(seen.value) and np.isfinite(precision).all()):
            msg = (
                "the log-likelihood overflows at the start of the fit: give an `init` where it is finite, or a prior whose "
                "centre is nearer to the data"
            )
            raise ValueError(msg)
        return self.at(mean, _diagonal(precision) if is_diagonal else precision)

    def at(self, mean: Floats, precision: Floats) -> Point:
        r"""The bound of N(mean, precision^-1), and a step of Newton and of the natural gradient.

        The next Gaussian has the precision T, or its diagonal, and the mean

        .. math:: \mu + T^{-1} \nabla_\mu \mathcal{L}

        Both parts of the step lead uphill. The divergence of q from the next Gaussian is the gain
        of the step if the bound is quadratic.
        """
        spread = _spread(precision)
        seen = self._pass(mean, spread)
        noise = self._best_noise(seen)
        bound = self._bound(mean, spread, seen, noise)
        gradient = (1.0 if noise is None else noise.precision) * seen.slope + self.prior.slope(mean)
        newton = self._newton(seen, noise)
        if not (math.isfinite(bound) and np.isfinite(newton).all() and np.isfinite(gradient).all()):
            return Point(mean, precision, -math.inf, 0 * mean, precision, math.inf, gradient, noise, 1)
        target = newton if precision.ndim == 2 else _diagonal(newton)
        shift, products = self._solve(newton, seen.weights, noise, gradient)
        gap = 0.5 * float(gradient @ shift) + _divergence(spread, target)
        return Point(mean, precision, bound, shift, target, gap, gradient, noise, 1 + products)

    def value(self, mean: Floats, factor: Floats) -> float:
        """The bound of N(mean, L L'), with a triangular L or a vector of standard deviations."""
        spread = Spread(factor)
        seen = self._pass(mean, spread)
        return self._bound(mean, spread, seen, self._best_noise(seen))

    def _bound(self, mean: Floats, spread: Spread, seen: _Seen, noise: Noise | None) -> float:
        entropy = spread.log_det + 0.5 * len(mean) * (1 + _LOG_2PI)
        rest = self.prior.expected(mean, spread) + entropy
        if noise is None or self.noise is None:
            return seen.value + rest
        return noise.log_evidence(self.noise, self.rows) + rest

    def _best_noise(self, seen: _Seen) -> Noise | None:
        if self.noise is None:
            return None
        return self.noise.updated(self.rows, -2 * seen.value - self.rows * _LOG_2PI)

    def _newton(self, seen: _Seen, noise: Noise | None) -> Floats:
        """T = precision of the prior + X' diag(w) X, or its diagonal."""
        matrix = seen.curvature if noise is None else noise.precision * seen.curvature
        own = self.prior.precision
        if matrix.ndim == own.ndim:
            return matrix + own
        return matrix + np.diag(own) if matrix.ndim == 2 else matrix + np.diagonal(own)

    def _pass(self, mean: Floats, spread: Spread) -> _Seen:
        k = len(mean)
        is_direct = not spread.is_diagonal or k <= _MOST_DIRECT
        value, slope = 0.0, np.zeros(k)
        curvature = np.zeros((k, k) if is_direct else k)
        weights = np.empty(0 if is_direct else self.rows)
        for rows, design, rest in self._chunks():
            found = self.regression.expected_of(design @ mean, spread.variances(design), *rest)
            value += float(np.sum(found.value))
            slope += found.slope @ design
            if is_direct:
                scaled = np.sqrt(-found.curvature)[:, None] * design
                curvature += scaled.T @ scaled
            else:
                weights[rows] = -found.curvature
                curvature -= found.curvature @ design**2
        return _Seen(value, slope, curvature, weights)

    def _chunks(self) -> Iterator[tuple[slice, Floats, list[Floats]]]:
        """The rows in parts, so that memory does not grow with their number."""
        design, *rest = self.regression.data
        size = max(1, _CHUNK // max(self.coefficients, _WIDEST))
        for first in range(0, self.rows, size):
            rows = slice(first, first + size)
            yield rows, design[rows], [part[rows] for part in rest]

    def _solve(self, newton: Floats, weights: Floats, noise: Noise | None, gradient: Floats) -> tuple[Floats, int]:
        """Newton's shift of the mean, and the passes over the data that it took."""
        if newton.ndim == 2:
            return _solved(newton, gradient), 0
        scale = 1.0 if noise is None else noise.precision

        def product(v: Floats) -> Floats:
            found = _product(self.prior.precision, v)
            for rows, design, _ in self._chunks():
                found += scale * ((weights[rows] * (design @ v)) @ design)
            return found

        return _conjugate_gradients(product, newton, gradient)


def _spread(precision: Floats) -> Spread:
    try:
        return Spread.of_precision(precision)
    except np.linalg.LinAlgError:
        msg = (
            "the data do not determine all coefficients, and the prior does not either: columns of `X` are collinear; "
            "drop some of them, or give the coefficients a Normal prior"
        )
        raise ValueError(msg) from None


def _solved(matrix: Floats, right: Floats) -> Floats:
    """Solve a positive definite system; scaled, so that units do not matter."""
    unit = 1 / np.sqrt(np.diagonal(matrix))
    factor = scipy.linalg.cho_factor(matrix * unit[:, None] * unit, lower=True, check_finite=False)
    return np.asarray(unit * scipy.linalg.cho_solve(factor, unit * right, check_finite=False))


def _conjugate_gradients(product: Any, diagonal: Floats, right: Floats) -> tuple[Floats, int]:
    """Solve ``A x = right`` from products with A, preconditioned by its diagonal."""
    x, residual = np.zeros_like(right), right.copy()
    direction = conditioned = residual / diagonal
    size = first = float(residual @ conditioned)
    for n in range(_CG_MOST):
        if size <= _CG_TOLERANCE**2 * first:
            return x, n
        image = product(direction)
        step = size / float(direction @ image)
        x, residual = x + step * direction, residual - step * image
        conditioned = residual / diagonal
        before, size = size, float(residual @ conditioned)
        direction = conditioned + size / before * direction
    return x, _CG_MOST


def _divergence(spread: Spread, target: Floats) -> float:
    """KL(N(0, S) || N(0, target^-1))."""
    log_det = float(np.sum(np.log(target))) if target.ndim == 1 else float(np.linalg.slogdet(target)[1])
    k = len(spread.factor)
    return max(0.0, 0.5 * (spread.trace(target) - k - log_det - 2 * spread.log_det))


def _product(precision: Floats, v: Floats) -> Floats:
    return np.asarray(precision * v if precision.ndim == 1 else precision @ v)


def _diagonal(matrix: Floats) -> Floats:
    return matrix if matrix.ndim == 1 else np.diagonal(matrix).copy()


def _row_squares(matrix: Floats) -> Floats:
    return np.asarray(np.einsum("ij,ij->i", matrix, matrix))
