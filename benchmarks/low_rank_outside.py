"""Low rank plus a diagonal where the posterior is outside the family: nats below the best member.

Two posteriors in 50 dimensions: a Gaussian with full covariance, and a logistic regression of 400
rows. The bound of a member is exact for the first, and by quadrature for the second. The best
member is the best of several runs of L-BFGS on this bound, over mean, scales and factors.

Run with ``python benchmarks/low_rank_outside.py [--rank 3] [--seeds 1 2]``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.special
from numpy.typing import NDArray

import qbvi

D = 50
Floats = NDArray[np.float64]


class Expected(NamedTuple):
    """Expectation of the log joint under N(mu, S), and its derivatives by mu and S."""

    value: float
    by_mean: Floats  # (d,)
    by_cov: Floats  # (d, d)


class FullGaussian:
    """A Gaussian posterior whose precision has no structure."""

    name, prior = "Gaussian, full covariance", qbvi.Flat(shape=D)

    def __init__(self, rng: np.random.Generator) -> None:
        factor = rng.standard_normal((D, 2 * D))
        self._precision, self._mean = factor @ factor.T / D, rng.standard_normal(D)
        self._root = np.linalg.cholesky(self._precision)

    def __call__(self, theta: Floats) -> Floats:
        """Log-likelihood at points (n, d)."""
        return -0.5 * np.sum(((theta - self._mean) @ self._root) ** 2, axis=1)

    def expected(self, mean: Floats, cov: Floats) -> Expected:
        """In closed form."""
        slope = self._precision @ (self._mean - mean)
        value = -0.5 * (np.sum(self._precision * cov) + (self._mean - mean) @ slope)
        return Expected(value, slope, -0.5 * self._precision)


class Logistic:
    """A logistic regression with correlated columns and a standard normal prior."""

    name, prior = "logistic regression, 400 rows", qbvi.Normal(0, 1, shape=D)

    def __init__(self, rng: np.random.Generator) -> None:
        n, few = 400, 4
        common = rng.standard_normal((n, few)) @ rng.standard_normal((few, D))
        self._x = 0.5 * common + 0.7 * rng.standard_normal((n, D))
        self._y = (self._x @ (0.2 * rng.standard_normal(D)) + rng.logistic(size=n) > 0).astype(float)
        self._nodes, weights = np.polynomial.hermite_e.hermegauss(40)
        self._weights = weights / weights.sum()

    def __call__(self, theta: Floats) -> Floats:
        """Log-likelihood at points (n, d)."""
        eta = theta @ self._x.T
        return eta @ self._y - np.sum(np.logaddexp(0, eta), axis=1)

    def expected(self, mean: Floats, cov: Floats) -> Expected:
        """By quadrature over the linear predictor of each row, which is normal."""
        x, centre = self._x, self._x @ mean
        eta = centre[:, None] + np.sqrt(np.sum(x @ cov * x, axis=1))[:, None] * self._nodes
        p = scipy.special.expit(eta)
        slope, bend = self._y - p @ self._weights, -(p * (1 - p)) @ self._weights
        prior = -0.5 * (mean @ mean + np.trace(cov) + D * np.log(2 * np.pi))
        value = self._y @ centre - np.sum(np.logaddexp(0, eta) @ self._weights) + prior
        return Expected(value, x.T @ slope - mean, 0.5 * ((x.T * bend) @ x - np.eye(D)))


@dataclass(frozen=True)
class Members:
    """Gaussians with covariance ``diag(s^2) + F diag(signs) F'``, as vectors (mu, log s, F)."""

    signs: Floats  # (r,)

    def bound(self, expected: Callable[[Floats, Floats], Expected], x: Floats) -> tuple[float, Floats]:
        """The lower bound and its gradient; minus infinity outside the positive definite ones."""
        mean, log_s, F = x[:D], x[D : 2 * D], x[2 * D :].reshape(D, -1)
        cov = np.diag(np.exp(2 * log_s)) + (F * self.signs) @ F.T
        if np.linalg.eigvalsh(cov)[0] <= 0:
            return -np.inf, np.zeros_like(x)
        of_f = expected(mean, cov)
        by_cov = of_f.by_cov + 0.5 * np.linalg.inv(cov)
        by_scale, by_factor = 2 * np.exp(2 * log_s) * np.diag(by_cov), 2 * by_cov @ F * self.signs
        return of_f.value + entropy(cov), np.concatenate([of_f.by_mean, by_scale, by_factor.ravel()])

    def best(self, expected: Callable[[Floats, Floats], Expected], rng: np.random.Generator) -> float:
        """The largest bound that L-BFGS finds from small random factors."""

        def minus(x: Floats) -> tuple[float, Floats]:
            value, gradient = self.bound(expected, x)
            return (-value, -gradient) if np.isfinite(value) else (1e8, gradient)

        start = np.concatenate([np.zeros(D), -np.ones(D), 0.02 * rng.standard_normal(D * len(self.signs))])
        options = {"maxiter": 3000, "maxfun": 4000, "ftol": 1e-14, "gtol": 1e-7}
        return -float(scipy.optimize.minimize(minus, start, jac=True, method="L-BFGS-B", options=options).fun)


def entropy(cov: Floats) -> float:
    """Entropy of a Gaussian."""
    return float(0.5 * (np.linalg.slogdet(cov)[1] + D * (1 + np.log(2 * np.pi))))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    print("| posterior | seed | evaluations | nats below the best member | nats missing | k-hat | converged |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for posterior in (FullGaussian(np.random.default_rng(5)), Logistic(np.random.default_rng(5))):
        rng = np.random.default_rng(0)
        wide = [np.where(np.arange(args.rank) < k, 1.0, -1.0) for k in range(args.rank + 1)]
        best = max(Members(signs).best(posterior.expected, rng) for signs in wide for _ in range(2))
        for seed in args.seeds:
            family = qbvi.LowRank(rank=args.rank)
            fit = qbvi.fit(posterior, posterior.prior, family=family, vectorized=True, seed=seed)
            mean, cov = fit.unconstrained
            below = best - posterior.expected(mean, cov).value - entropy(cov)
            counts = f"{fit.n_evals:,} | {below:.3f} | {fit.missing:.2f} | {fit.khat:.2f} | {fit.converged}"
            print(f"| {posterior.name} | {seed} | {counts} |", flush=True)


if __name__ == "__main__":
    main()
