"""How far the paper's settings end from the best Gaussian: exact gaps in nats, ten seeds.

The library's own `qbvi.paper` in both readings, and the same hyper-parameters with a centred
control variate and with the residual estimator. `paper_readings.py` tries what else the text
allows. Run: ``python benchmarks/paper_settings.py [--seeds 10]``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import qbvi

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
import oracles

METHODS = {
    "paper, literal": qbvi.paper("literal"),
    "paper, nearest": qbvi.paper(),
    "paper, centred control variate": qbvi.paper(estimator="control-variate-centred"),
    "paper, residual estimator": qbvi.paper(estimator="residual"),
}


def gaps(problem: oracles.LogisticRegression, method: qbvi.QBVI, family: str, seeds: int) -> np.ndarray:
    """Exact gap of each seed's posterior to the best member of the family."""
    best = problem.best_gaussian(diagonal=family == "diagonal").elbo
    prior = qbvi.Normal(0, problem.prior_variance**0.5, shape=problem.d)
    fits = [
        qbvi.fit(
            problem.log_likelihood, prior, vectorized=True, method=method, family=family, seed=seed, progress=False
        )
        for seed in range(seeds)
    ]
    return np.array([best - problem.exact_elbo(*fit.unconstrained) for fit in fits])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    problems = {"Labour": oracles.labour(), "Credit": oracles.credit()}
    print(f"exact gap to the best Gaussian of the family in nats, {seeds} seeds: smallest, median, largest")
    for name, problem in problems.items():
        if problem is None:
            print(f"{name}: no data file; set QBVI_DATA to the folder that holds it")
            continue
        for family in ("full", "diagonal"):
            for label, method in METHODS.items():
                low, middle, high = np.quantile(gaps(problem, method, family, seeds), [0, 0.5, 1])
                print(f"{name:8s}{family:10s}{label:36s}{low:10.3f}{middle:10.3f}{high:10.3f}", flush=True)


if __name__ == "__main__":
    main()
