"""Mean and covariance of a multivariate normal.

The posterior is q(mu) Gaussian times q(Sigma) inverse Wishart, which `family` asks for. Without it
all parameters would share one Gaussian. This is the second worked example of mean-field QBVI in the
paper (Appendix C). Coordinate ascent in closed form gives the best member of the family. The table
compares it with what `qbvi.fit` finds from values of the log-likelihood alone.

Run: ``python examples/multivariate_normal.py --out demo``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import qbvi

PRIOR_VARIANCE, DF = 10.0, 5.0


def data() -> np.ndarray:
    """A hundred draws of three correlated numbers."""
    rng = np.random.default_rng(11)
    return np.array([1.0, -2.0, 0.5]) + rng.standard_normal((100, 3)) @ np.array(
        [[1.0, 0.6, 0.0], [0.0, 0.8, -0.5], [0.0, 0.0, 0.7]]
    )


def optimum(y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    """Mean and covariance of q(mu), degrees of freedom and scale of q(Sigma): coordinate ascent."""
    n, p = y.shape
    df, scale = DF + n, np.eye(p)
    for _ in range(500):
        precision = df * np.linalg.inv(scale)  # E Sigma^-1
        S = np.linalg.inv(np.eye(p) / PRIOR_VARIANCE + n * precision)
        m = S @ (precision @ y.sum(0))
        scale = np.eye(p) + (y - m).T @ (y - m) + n * S
    return m, S, df, scale


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for the picture, which needs the extra qbvi[plots]")
    return parser.parse_args()


def main() -> None:
    """Fit, print and draw."""
    out = arguments().out
    y = data()
    n, p = y.shape
    prior = {
        "mu": qbvi.Normal(0, np.sqrt(PRIOR_VARIANCE), shape=p),
        "Sigma": qbvi.InverseWishart(DF, np.eye(p)),
    }

    def log_likelihood(point):  # of one point: mu (3,), Sigma (3, 3)
        rest = y - point["mu"]
        return -0.5 * n * np.linalg.slogdet(2 * np.pi * point["Sigma"])[1] - 0.5 * np.sum(
            rest * np.linalg.solve(point["Sigma"], rest.T).T
        )

    fit = qbvi.fit(log_likelihood, prior, family={"mu": "full", "Sigma": "inverse-wishart"}, seed=1)
    m, S, df, scale = optimum(y)
    law = fit.factors["Sigma"]
    print(fit.summary())
    print(f"\n{'':28s}{'qbvi':>10s}{'exact':>10s}")
    for label, ours, exact in (
        *((f"mean of mu[{i}]", fit.mean["mu"][i], m[i]) for i in range(p)),
        *((f"sd of mu[{i}]", fit.sd["mu"][i], np.sqrt(S[i, i])) for i in range(p)),
        ("degrees of freedom", float(law.df), df),
        *((f"scale[{i}, {j}]", law.scale[i, j], scale[i, j]) for i in range(p) for j in range(i + 1)),
    ):
        print(f"{label:28s}{ours:10.4f}{exact:10.4f}")
    if out:
        out.mkdir(parents=True, exist_ok=True)
        means = {"mu": m, "Sigma": scale / (df - p - 1)}
        picture = fit.plot_marginals(points={"mean of the exact optimum": means})
        picture.savefig(out / "marginals.png", dpi=200)


if __name__ == "__main__":
    main()
