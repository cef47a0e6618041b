"""Where does a regression stop to pay? The default method and the residual estimator from 250 to 2,000 dimensions.

Three log-concave problems, whose best Gaussian is known exactly: a linear regression with known noise (its posterior is Gaussian and
nearly round), a rotated Gaussian of condition 100, and a logistic regression. For each dimension, family, budget and method: nats
below the best member of the family, evaluations, seconds of CPU, and whether the fit says that it converged.

Run: ``python benchmarks/dimensions.py [--dimensions 300 600] [--budgets 5000 20000] [--seconds 120]``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import qbvi
from qbvi.methods import many_dimensional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from oracles import GaussianTarget, LogisticRegression, gaussian_kl


class Problem(NamedTuple):
    """A vectorised log-likelihood under N(0, variance I), and the exact bound of any Gaussian."""

    name: str
    function: Callable[[Any], Any]
    variance: float
    elbo: Callable[[Any, Any], float]
    best: dict[str, float]  # by family


def problems(d: int) -> Iterator[Problem]:
    """The three of them in ``d`` dimensions."""
    rng = np.random.default_rng(d)
    design, weights = rng.standard_normal((2 * d, d)), rng.standard_normal(d)
    precision = design.T @ design + np.eye(d)
    mean = np.linalg.solve(precision, design.T @ (design @ weights + rng.standard_normal(2 * d)))
    yield _gaussian("linear", GaussianTarget(mean, np.linalg.inv(precision)))
    yield _gaussian("condition 100", GaussianTarget.random(rng, d, 100.0))
    rows = rng.standard_normal((5 * d, d)) / np.sqrt(d)
    logistic = LogisticRegression(rows, (rng.random(5 * d) < 1 / (1 + np.exp(-3 * rows @ weights))).astype(float), 5.0)
    best = {kind: logistic.best_gaussian(kind == "diagonal").elbo for kind in ("full", "diagonal")}
    yield Problem("logistic", logistic.log_likelihood, 5.0, logistic.exact_elbo, best)


def _gaussian(name: str, target: GaussianTarget) -> Problem:
    half = np.linalg.cholesky(np.linalg.inv(target.cov))
    best = {kind: target.best_gaussian(kind == "diagonal").elbo for kind in ("full", "diagonal")}
    constant = 0.5 * np.linalg.slogdet(target.cov)[1]

    def function(theta: Any) -> Any:  # the target over the prior N(0, I)
        return -0.5 * (((theta - target.mean) @ half) ** 2).sum(1) + 0.5 * (theta**2).sum(1) - constant

    return Problem(
        name, function, 1.0, lambda mean, cov: target.log_scale - gaussian_kl(mean, cov, target.mean, target.cov), best
    )


def main() -> None:
    """Print one row for each fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[300, 600, 1000])
    parser.add_argument("--budgets", type=int, nargs="+", default=[2_000, 5_000, 20_000, 100_000])
    parser.add_argument("--families", nargs="+", default=["full", "diagonal"])
    parser.add_argument("--only", nargs="+", default=None)
    parser.add_argument("--methods", nargs="+", default=["regression", "residual"])
    parser.add_argument("--seconds", type=float, default=120.0)
    args = parser.parse_args()
    print("| problem | d | family | budget | method | nats off | evaluations | CPU s | converged |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for d in args.dimensions:
        for problem in problems(d):
            if args.only is None or problem.name in args.only:
                _rows(problem, d, args)


def _rows(problem: Problem, d: int, args: argparse.Namespace) -> None:
    methods = {"regression": qbvi.Regression(), "residual": many_dimensional(d)}
    for family in args.families:
        for budget in args.budgets:
            for name in args.methods:
                print(_row(problem, (d, family, budget, args.seconds), name, methods[name]), flush=True)


def _row(problem: Problem, case: tuple[int, str, int, float], name: str, method: Any) -> str:
    d, family, budget, seconds = case
    start = time.process_time()
    try:
        fit = qbvi.fit(
            problem.function,
            qbvi.Normal(0, problem.variance**0.5, shape=d),
            vectorized=True,
            family=family,
            method=method,
            max_evals=budget,
            max_time=seconds,
            seed=1,
        )
    except ValueError as error:
        return f"| {problem.name} | {d} | {family} | {budget:,} | {name} | {str(error)[:60]} | | | |"
    took = time.process_time() - start
    off = problem.best[family] - problem.elbo(fit.mean, fit.cov_matrix)
    told = "yes" if fit.converged else "no"
    return f"| {problem.name} | {d} | {family} | {budget:,} | {name} | {off:,.3f} | {fit.n_evals:,} | {took:.0f} | {told} |"


if __name__ == "__main__":
    main()
