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
from typing import Any, ClassVar, NamedTuple, Protocol, Self, cast

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.exact.quadrature import Expected

__all__ = ["ExactBound", "GaussianPrior", "Noise", "Point", "Regression", "Search", "Seen", "Spread"]

Floats = NDArray[np.float64]

_LOG_2PI = math.log(2 * math.pi)
_CHUNK = 2**20  # numbers of a chunk of rows: 8 MB for each temporary array
_WIDEST = 128  # numbers that the quadrature of one row may need
# Most coefficients of a diagonal Gaussian for which Newton's equations are solved directly.
# Beyond, the matrix would cost more memory and time than conjugate gradients.
_MOST_DIRECT = 1_000
# Factors of the rate: after a step that went too far, and after any other. Full steps oscillate
# where the curvature depends on the spread, as for counts of zero.
_SHORTER, _LONGER = 0.5, 1.25
# With a noise variance, rates up to the second number if the gap shrinks by less than the first.
_QUICK, _LONGEST = 0.25, 4.0
_NEAR = 0.01  # gap in nats below which it decides, not the bound, whether a step was good
_ROUNDING = 1e-12  # relative error of the bound that a step may lose
_CG_TOLERANCE, _CG_MOST = 0.01, 500  # relative residual, and most products
_MOST_HALVINGS = 30  # of the spread at the start
_OVERFLOW = np.errstate(over="ignore", invalid="ignore")  # the bound is then minus infinity
_OVERFLOWS = (
    "the log-likelihood overflows at the start of the fit: give an `init` where it is finite, or a prior whose centre "
    "is nearer to the data"
)
_NOT_DETERMINED = (
    "the data do not determine all coefficients, and the prior does not either: columns of `X` are collinear; drop some "
    "of them, or give the coefficients a Normal prior"
)


class Regression(Protocol):
    """Rows that depend on linear predictors, as `qbvi.models.DesignModel` has them."""

    intercept: bool  # whether the first column is one everywhere

    @property
    def data(self) -> tuple[Floats, ...]:
        """The design (n, k), and what else belongs to the rows: (n,) each."""

    @property
    def total_weight(self) -> float:
        """Number of rows, each counted by its weight."""


class OnePredictor(Regression, Protocol):
    """Rows with one linear predictor each, as `qbvi.models.LinearPredictor` has them."""

    def expected_terms(self, mean: Floats, var: Floats, *data: Floats) -> Expected:
        """Expected log-likelihood of each row, given the moments of its predictor."""


class GaussianPrior(NamedTuple):
    """``log p(beta) = constant + linear . beta - beta' precision beta / 2``."""

    linear: Floats  # (k,)
    precision: Floats  # (k,) if diagonal, else (k, k)
    constant: float

    def centred(self, centre: Floats) -> GaussianPrior:
        """The prior of the coefficients of centred columns; ``centre`` begins with a zero.

        The first coefficient is then the old one plus ``centre . beta``.
        """
        matrix = np.diag(self.precision) if self.precision.ndim == 1 else self.precision
        half = matrix - matrix[:, :1] * centre
        return GaussianPrior(self.linear - centre * self.linear[0], half - centre[:, None] * half[:1], self.constant)

    def slope(self, mean: Floats) -> Floats:
        """Gradient at a point."""
        return self.linear - _product(self.precision, mean)

    def at(self, mean: Floats) -> float:
        """Log density at a point; a Gaussian's expectation is less by half of `trace`."""
        return float(self.constant + self.linear @ mean - 0.5 * mean @ _product(self.precision, mean))

    def trace(self, spread: Spread) -> float:
        """Trace of the precision times a covariance."""
        if spread.is_diagonal:
            return float(_diagonal(self.precision) @ spread.factor**2)
        if self.precision.ndim == 1:
            return float(self.precision @ _row_squares(spread.factor))
        return float(np.sum((self.precision @ spread.factor) * spread.factor))


class Noise(NamedTuple):
    """Inverse gamma distribution of a noise variance; the likelihood has the form of a normal."""

    alpha: float
    beta: float

    @property
    def precision(self) -> float:
        """Expectation of one over the variance."""
        return self.alpha / self.beta

    def updated(self, rows: float, squares: float) -> Noise:
        """The best factor beside a Gaussian with these expected squares of the residuals."""
        return Noise(self.alpha + rows / 2, self.beta + squares / 2)

    def log_evidence(self, prior: Noise, rows: float) -> float:
        """The part of the bound that depends on the variance, if this factor is the best one."""
        log_gammas = scipy.special.gammaln(self.alpha) - scipy.special.gammaln(prior.alpha)
        return float(
            log_gammas + prior.alpha * math.log(prior.beta) - self.alpha * math.log(self.beta) - rows / 2 * _LOG_2PI
        )


class Point(NamedTuple):
    """The bound at a Gaussian, and the next Gaussian of the iteration."""

    mean: Floats  # (k,)
    precision: Floats  # (k, k), or (k,) if diagonal
    spread: Spread
    bound: float  # minus infinity if it is not a number
    shift: Floats  # (k,) from the mean to the next one
    target: Floats  # the next precision
    gap: float  # divergence from the next Gaussian, in nats: the gain that the step promises
    gradient: Floats  # (k,) of the bound, by the mean
    noise: Noise | None  # the best factor of the noise variance beside this Gaussian
    passes: int  # over the data, that this point took

    @classmethod
    def outside(cls, mean: Floats, precision: Floats) -> Point:
        """A Gaussian that does not exist, or at which the expectations overflow."""
        none = Spread(precision, precision)
        return cls(mean, precision, none, -math.inf, 0 * mean, precision, math.inf, 0 * mean, None, 1)


class Search(NamedTuple):
    """Where a search for the highest bound is."""

    point: Point
    rate: float  # of the next step
    passes: int  # over the data so far


class Spread(NamedTuple):
    """The covariance of a Gaussian as a factor, ``S = L L'``, and ``L^-1``; vectors if diagonal."""

    factor: Floats  # (k, k) triangular, or (k,)
    inverse: Floats  # likewise

    @classmethod
    def of_precision(cls, precision: Floats) -> Spread:
        """The spread with this precision, full or diagonal; a LinAlgError if it has none."""
        if not np.all(_diagonal(precision) > 0):
            msg = "a precision must be positive definite"
            raise np.linalg.LinAlgError(msg)
        if precision.ndim == 1:
            return cls(1 / np.sqrt(precision), np.sqrt(precision))
        # Equilibrate first: the factor stays accurate if scales differ by orders of magnitude.
        unit = 1 / np.sqrt(np.diagonal(precision))
        root = np.linalg.cholesky(precision * unit[:, None] * unit)
        inverse, _ = scipy.linalg.lapack.dtrtri(root, lower=1)
        return cls(unit[:, None] * inverse.T, root.T / unit)

    @property
    def is_diagonal(self) -> bool:
        """Whether the covariance is diagonal."""
        return self.factor.ndim == 1

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


class Seen(NamedTuple):
    """What one pass over the data finds."""

    value: float  # expected log-likelihood
    slope: Floats  # (k,) its gradient X'g
    curvature: Floats  # X' diag(w) X: (k, k), or its diagonal (k,)
    trace: float  # of the curvature times the covariance: the sum of w times the variances
    weights: Floats  # (n,) the w; empty where the whole matrix is known


@dataclass(frozen=True, eq=False)
class ExactBound:
    """The lower bound of a regression under a Gaussian of its coefficients.

    Parameters
    ----------
    regression : OnePredictor
        Rows and their one-dimensional expectations.
    prior : GaussianPrior
        Prior of the coefficients.
    noise : Noise, optional
        Prior of the noise variance. The regression's expectations are then those with a variance of
        one, and every bound is that with the best inverse gamma distribution of the variance.
    centre : array (k,), optional
        What is subtracted from the rows of the design, zero for the intercept. The coefficients of
        ``prior`` and of all points are then those of the centred columns.

    Examples
    --------
    The bound of a linear regression with a known variance of one is its log evidence:

    >>> import qbvi
    >>> model = qbvi.models.Linear([[-1.0], [1.0]], [-2.0, 2.0], intercept=False)
    >>> bound = ExactBound(model, GaussianPrior(np.zeros(1), np.ones(1), -0.5 * np.log(2 * np.pi)))
    >>> point = bound.at(np.array([4 / 3]), np.array([[3.0]]))
    >>> round(point.bound, 6), round(point.gap, 6)
    (-3.720517, 0.0)
    """

    regression: Regression
    prior: GaussianPrior
    noise: Noise | None = None
    centre: Floats | None = None

    is_exact: ClassVar[bool] = True  # whether its integrals have no error that counts

    @classmethod
    def centred(cls, regression: Regression, prior: GaussianPrior, noise: Noise | None = None) -> Self:
        """The bound in other coordinates, if there is an intercept: with columns of mean zero.

        Columns far from zero are nearly collinear with the intercept, and digits would be lost.
        """
        design = regression.data[0]
        if not regression.intercept:
            return cls(regression, prior, noise)
        centre = np.append(0.0, design[:, 1:].mean(axis=0))
        return cls(regression, prior.centred(centre), noise, centre)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.regression.data[0])

    @_OVERFLOW
    def start(self, mean: Floats, is_diagonal: bool) -> Search:
        """Begin with the Gaussian at ``mean`` that has the curvature there."""
        none = np.zeros(len(mean)) if is_diagonal else np.zeros((len(mean), len(mean)))
        seen = self._pass(mean, Spread(none, none))
        precision = self._newton(seen, self._best_noise(seen))
        if not (math.isfinite(seen.value) and np.isfinite(precision).all()):
            raise ValueError(_OVERFLOWS)
        try:
            Spread.of_precision(precision)
        except np.linalg.LinAlgError:
            raise ValueError(_NOT_DETERMINED) from None
        passes, own = 1, _diagonal(precision) if is_diagonal else precision
        for halvings in range(_MOST_HALVINGS):  # of the spread: rates overflow under a wide Gaussian
            point = self.at(mean, 4.0**halvings * own)
            passes += point.passes
            if math.isfinite(point.bound):
                return Search(point, 1.0, passes)
        raise ValueError(_OVERFLOWS)

    def step(self, search: Search) -> Search:
        """Go towards the next Gaussian, and stay if the bound is lower there.

        The precision is a mixture of the present and the next one, with the rate as its weight.
        """
        here, rate = search.point, search.rate
        precision = here.target if rate == 1 else (1 - rate) * here.precision + rate * here.target
        there = self.at(here.mean + rate * here.shift, precision)
        is_better = _is_better(there, here)
        if there.gap > here.gap or not is_better:  # it went too far
            rate *= _SHORTER
        elif rate < 1:
            rate = min(1.0, _LONGER * rate)
        elif self.noise is not None and there.gap > _QUICK * here.gap:  # the variance lags behind
            rate = min(_LONGEST, _LONGER * rate)
        return Search(there if is_better else here, rate, search.passes + there.passes)

    @_OVERFLOW
    def at(self, mean: Floats, precision: Floats) -> Point:
        r"""The bound of N(mean, precision^-1), and a step of Newton and of the natural gradient.

        The next Gaussian has the precision T, or its diagonal, and the mean

        .. math:: \mu + T^{-1} \nabla_\mu \mathcal{L}

        Both parts of the step lead uphill. The divergence of q from the next Gaussian is the gain
        of the step if the bound is quadratic.
        """
        try:
            return self._at(mean, precision, Spread.of_precision(precision))
        except np.linalg.LinAlgError:  # also if one row outweighs the others by more digits than there are
            return Point.outside(mean, precision)

    def _at(self, mean: Floats, precision: Floats, spread: Spread) -> Point:
        seen = self._pass(mean, spread)
        noise = self._best_noise(seen)
        trace = self.prior.trace(spread)
        entropy = spread.log_det + 0.5 * len(mean) * (1 + _LOG_2PI)
        bound = self._log_likelihood(seen, noise) + self.prior.at(mean) - 0.5 * trace + entropy
        scale = 1.0 if noise is None else noise.precision
        gradient = scale * seen.slope + self.prior.slope(mean)
        newton = self._newton(seen, noise)
        if not (math.isfinite(bound) and np.isfinite(newton).all() and np.isfinite(gradient).all()):
            return Point.outside(mean, precision)
        target = newton if precision.ndim == 2 else _diagonal(newton)
        shift, log_det, products = self._solve(newton, seen.weights, noise, gradient)
        if target.ndim == 1:
            log_det = float(np.sum(np.log(target)))
        change = trace + scale * seen.trace - len(mean) - log_det - 2 * spread.log_det
        gap = 0.5 * float(gradient @ shift) + 0.5 * max(0.0, change)
        return Point(mean, precision, spread, bound, shift, target, gap, gradient, noise, 1 + products)

    def _log_likelihood(self, seen: Seen, noise: Noise | None) -> float:
        """Its expectation, with the prior and the entropy of the noise variance if there is one."""
        if noise is None or self.noise is None:
            return seen.value
        return noise.log_evidence(self.noise, self.regression.total_weight)

    def _best_noise(self, seen: Seen) -> Noise | None:
        if self.noise is None:
            return None
        rows = self.regression.total_weight
        return self.noise.updated(rows, -2 * seen.value - rows * _LOG_2PI)

    def _newton(self, seen: Seen, noise: Noise | None) -> Floats:
        """T = precision of the prior + X' diag(w) X, or its diagonal."""
        matrix = seen.curvature if noise is None else noise.precision * seen.curvature
        own = self.prior.precision
        if matrix.ndim == own.ndim:
            return matrix + own
        return matrix + np.diag(own) if matrix.ndim == 2 else matrix + np.diagonal(own)

    def _pass(self, mean: Floats, spread: Spread) -> Seen:
        k = len(mean)
        is_direct = not spread.is_diagonal or k <= _MOST_DIRECT
        value, trace, slope = 0.0, 0.0, np.zeros(k)
        curvature = np.zeros((k, k) if is_direct else k)
        weights = np.empty(0 if is_direct else self.rows)
        regression = cast("OnePredictor", self.regression)
        for rows, design, rest in self._chunks():
            variances = spread.variances(design)
            found = regression.expected_terms(design @ mean, variances, *rest)
            value += float(np.sum(found.value))
            trace -= float(found.curvature @ variances)
            slope += found.slope @ design
            if is_direct:
                scaled = np.sqrt(-found.curvature)[:, None] * design
                curvature += scaled.T @ scaled
            else:
                weights[rows] = -found.curvature
                curvature -= found.curvature @ design**2
        return Seen(value, slope, curvature, trace, weights)

    def _chunks(self) -> Iterator[tuple[slice, Floats, list[Floats]]]:
        """The rows in parts, so that memory does not grow with their number."""
        design, *rest = self.regression.data
        size = max(1, _CHUNK // max(design.shape[1], _WIDEST))
        for first in range(0, self.rows, size):
            rows = slice(first, first + size)
            part = design[rows] if self.centre is None else design[rows] - self.centre
            yield rows, part, [column[rows] for column in rest]

    def _solve(
        self, newton: Floats, weights: Floats, noise: Noise | None, gradient: Floats
    ) -> tuple[Floats, float, int]:
        """Newton's shift of the mean, the matrix's log-determinant, and passes that it took."""
        if newton.ndim == 2:
            return *_solved(newton, gradient), 0
        scale = 1.0 if noise is None else noise.precision

        def product(v: Floats) -> Floats:
            found = _product(self.prior.precision, v)
            for rows, design, _ in self._chunks():
                found += scale * ((weights[rows] * (design @ v)) @ design)
            return found

        shift, products = _conjugate_gradients(product, newton, gradient)
        return shift, math.nan, products


def _is_better(there: Point, here: Point) -> bool:
    """Whether the bound is higher or, near the optimum where that is rounding, the gap smaller."""
    if there.gap < here.gap < _NEAR:
        return True
    return there.bound >= here.bound - _ROUNDING * (1 + abs(here.bound))


def _solved(matrix: Floats, right: Floats) -> tuple[Floats, float]:
    """Solve a positive definite system, scaled, so that units do not matter; with the log-det."""
    unit = 1 / np.sqrt(np.diagonal(matrix))
    factor = scipy.linalg.cho_factor(matrix * unit[:, None] * unit, lower=True, check_finite=False)
    solution = unit * scipy.linalg.cho_solve(factor, unit * right, check_finite=False)
    return np.asarray(solution), 2 * float(np.sum(np.log(np.diagonal(factor[0]) / unit)))


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


def _product(precision: Floats, v: Floats) -> Floats:
    return np.asarray(precision * v if precision.ndim == 1 else precision @ v)


def _diagonal(matrix: Floats) -> Floats:
    return matrix if matrix.ndim == 1 else np.diagonal(matrix).copy()


def _row_squares(matrix: Floats) -> Floats:
    return np.asarray(np.einsum("ij,ij->i", matrix, matrix))
