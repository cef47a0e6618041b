"""Variable selection: a posterior over zeros and ones, which have no gradient.

Each parameter is a switch that puts one of twelve variables into a linear regression. The
log-likelihood of a subset is that of the regression with its coefficients integrated out. The
posterior is a product of Bernoullis, found from a few hundred of the 4,096 subsets. With twelve
variables all subsets can still be enumerated, so the table shows the exact inclusion
probabilities too.

Run: ``python examples/variable_selection.py --out demo``.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import numpy as np

import qbvi

TRUE = np.array([1.5, 0.0, -1.0, 0.0, 0.6, 0.0, 0.0, 0.35, 0.0, 0.0, 0.0, 0.25])


def data() -> tuple[np.ndarray, np.ndarray]:
    """Eighty rows of twelve variables, five of which matter."""
    rng = np.random.default_rng(21)
    X = rng.standard_normal((80, len(TRUE)))
    return X, X @ TRUE + rng.standard_normal(80)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for the picture, which needs the extra qbvi[plots]")
    return parser.parse_args()


def main() -> None:
    """Fit, enumerate, print and draw."""
    out = arguments().out
    X, y = data()
    n, d = X.shape

    def log_likelihood(included):  # included (12,) of zeros and ones; coefficients N(0, 1), noise N(0, 1)
        chosen = X[:, included > 0.5]
        inner = np.eye(chosen.shape[1]) + chosen.T @ chosen
        fitted = chosen.T @ y
        explained = fitted @ np.linalg.solve(inner, fitted)
        return -0.5 * (n * np.log(2 * np.pi) + y @ y - explained + np.linalg.slogdet(inner)[1])

    fit = qbvi.fit(log_likelihood, qbvi.Bernoulli(0.3, shape=d), seed=1)
    subsets = np.array(list(product([0.0, 1.0], repeat=d)))
    size = subsets.sum(axis=1)
    weight = np.array([log_likelihood(s) for s in subsets]) + size * np.log(0.3) + (d - size) * np.log(0.7)
    exact = np.exp(weight - weight.max()) @ subsets / np.exp(weight - weight.max()).sum()
    verdict = "converged" if fit.converged else "not converged"
    print(f"{fit.n_evals} of {len(subsets):,} subsets evaluated; {verdict}: {fit.stop_reason}\n")
    print(f"{'variable':>8s}{'true':>8s}{'qbvi':>8s}{'exact':>8s}   probability that it is included")
    for j in range(d):
        print(f"{j:8d}{TRUE[j]:8.2f}{fit.mean[j]:8.3f}{exact[j]:8.3f}")
    if out:
        out.mkdir(parents=True, exist_ok=True)
        picture(fit.mean, exact, out / "inclusion.png")


def picture(ours: np.ndarray, exact: np.ndarray, path: Path) -> None:
    """Draw the inclusion probabilities of the fit as bars and the exact ones as points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.8), layout="constrained")
    panel = figure.subplots()
    panel.bar(range(len(ours)), ours, color=["#0072B2" if effect else "#BBBBBB" for effect in TRUE], label="qbvi")
    panel.plot(exact, "o", color="black", markersize=5, label="exact, from all subsets")
    panel.set(xticks=range(len(ours)), xlabel="variable (blue: its true coefficient is not zero)")
    panel.set(ylabel="inclusion probability", ylim=(0, 1.08))
    figure.legend(loc="outside upper right", ncols=2, frameon=False)
    figure.savefig(path, dpi=200)


if __name__ == "__main__":
    main()
