"""Which variables belong into a regression? Switches have no gradient, and need none.

Every subset of twelve variables is a point; the log-likelihood of a subset is that of a linear regression with its coefficients integrated out. The posterior
is a product of Bernoullis, one for each variable, found from a few hundred of the 4,096 subsets. All of them are then enumerated, which twelve variables still
allow, to show the exact inclusion probabilities beside it.

Run: ``python examples/variable_selection.py``.
"""

from __future__ import annotations

from itertools import product

import numpy as np

import qbvi

TRUE = np.array([1.5, 0.0, -1.0, 0.0, 0.6, 0.0, 0.0, 0.35, 0.0, 0.0, 0.0, 0.25])


def data() -> tuple[np.ndarray, np.ndarray]:
    """Eighty rows of twelve variables, five of which matter."""
    rng = np.random.default_rng(21)
    X = rng.standard_normal((80, len(TRUE)))
    return X, X @ TRUE + rng.standard_normal(80)


def main() -> None:
    """Fit, enumerate and print."""
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
    print(f"{fit.n_evals} of {len(subsets):,} subsets evaluated; converged: {fit.stop_reason}\n")
    print(f"{'variable':>8s}{'true':>8s}{'qbvi':>8s}{'exact':>8s}   probability that it is included")
    for j in range(d):
        print(f"{j:8d}{TRUE[j]:8.2f}{fit.mean[j]:8.3f}{exact[j]:8.3f}")


if __name__ == "__main__":
    main()
