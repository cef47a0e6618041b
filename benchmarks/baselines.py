"""The baselines beside the default method on the paper's logistic regressions: nats missing from the exact best Gaussian.

Run from the repository: ``python benchmarks/baselines.py [--seeds 3]``. Credit needs QBVI_DATA, see tests/helpers/oracles.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import qbvi

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
from oracles import credit, labour


def methods(gradient):
    """What is compared, by label."""
    given = qbvi.baselines.CGVB(gradient=gradient, vectorized=True)
    return {"auto": "auto", "bbvi": "bbvi", "cgvb, gradient given": given, "cgvb, differences": "cgvb", "mgvb": "mgvb"}


def measure(problem, method, family, seeds):
    """Mean and largest gap, evaluations and seconds of a fit."""
    prior = qbvi.Normal(0, problem.prior_variance**0.5, shape=problem.d)
    best = problem.best_gaussian(diagonal=family == "diagonal").elbo
    rows = []
    for seed in range(1, seeds + 1):
        start = time.perf_counter()
        fit = qbvi.fit(problem.log_likelihood, prior, vectorized=True, method=method, family=family, seed=seed)
        rows.append((best - problem.exact_elbo(*fit.unconstrained), fit.n_evals, time.perf_counter() - start))
    gaps, evals, seconds = np.array(rows).T
    return gaps.mean(), gaps.max(), evals.mean(), seconds.mean()


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    print("| data | covariance | method | nats missing, mean | most | evaluations | seconds |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for name, problem in (("Labour", labour()), ("Credit", credit())):
        if problem is None:
            print(f"| {name} | not here: set QBVI_DATA |")
            continue
        model = qbvi.models.Logistic(problem.X[:, 1:], problem.y)
        for family in ("full", "diagonal"):
            for label, method in methods(model.gradient).items():
                mean, most, evals, seconds = measure(problem, method, family, seeds)
                print(
                    f"| {name} | {family} | {label} | {mean:.4f} | {most:.4f} | {evals:,.0f} | {seconds:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
