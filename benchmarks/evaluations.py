"""Evaluations to the best Gaussian, and whether the method knows when it is there; peers beside it in the same run.

For every problem and seed: evaluations until the exact gap to the best Gaussian is below 0.1 and 0.01 nats and stays there, evaluations until
it stopped by itself (the fresh draws of the final check included), gap and k-hat then, false alarms, library time. ``--peers`` adds what is
installed of emcee, PyVBMC, CMA-ES, NumPyro and, with SciPy alone, BFGS on finite differences with a Laplace approximation. Fits have
``family="full"``: by default a posterior in few dimensions takes any shape, and its moments are not those of the best Gaussian.

Run: ``python benchmarks/evaluations.py [--seeds 20] [--only labour] [--method ridge] [--peers]``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
import peers
from problems import Problem, everything

import qbvi

LEVELS = (0.1, 0.01)
# What we aim for: evaluations to 0.1 and to 0.01 nats.
TARGETS = {"labour": (150, 250), "credit": (1200, 2500), "gaussian-d30-condition1e+04": (1200, 1200)}


@dataclass
class Result:
    """One fit: evaluations to each level (infinite if never), and how it ended."""

    reached: tuple[float, ...]
    n_evals: int
    gap: float
    khat: float
    converged: bool
    seconds: float  # spent in the library


def run(problem: Problem, seed: int, method: str = "auto") -> Result:
    """Fit a Gaussian with nothing else set but the seed, or also the method."""
    spent, path = [0.0], []

    def timed(function):
        def call(theta):
            start = time.perf_counter()
            value = function(theta)
            spent[0] += time.perf_counter() - start
            return value

        return call

    def watch(now):
        path.append((now.n_evals, now.mean, now.cov))

    if problem.prior_scale is None:
        function, prior = problem.log_joint, qbvi.Flat(shape=problem.d)
    else:
        function, prior = problem.log_likelihood, qbvi.Normal(0, problem.prior_scale, shape=problem.d)
    start = time.perf_counter()
    options = {"family": "full", "vectorized": True, "on_failure": "exclude", "callback": watch, "progress": False}
    fit = qbvi.fit(timed(function), prior, method=qbvi.Ridge() if method == "ridge" else method, seed=seed, **options)
    seconds = time.perf_counter() - start - spent[0]
    return Result(
        first_below(problem, path),
        fit.n_evals,
        problem.gap(*fit.unconstrained).nats,
        fit.khat,
        fit.converged,
        seconds,
    )


def first_below(problem: Problem, path: list[tuple[int, np.ndarray, np.ndarray]]) -> tuple[float, ...]:
    """Evaluations from which on the gap stays below each level; looked for from the end, as a gap can take longer than a step."""
    first = dict.fromkeys(LEVELS, np.inf)
    open_levels = set(LEVELS)
    for n_evals, mean, cov in reversed(path):
        gap = problem.gap(mean, cov).nats
        open_levels = {level for level in open_levels if gap < level}
        if not open_levels:
            break
        first.update(dict.fromkeys(open_levels, n_evals))
    return tuple(first[level] for level in LEVELS)


def target(problem: Problem) -> str:
    """What the median evaluations to 0.1 (and 0.01) nats should stay below."""
    if problem.name in TARGETS:
        return "/".join(f"{n:,}" for n in TARGETS[problem.name])
    if problem.kl is not None and problem.kl < 0.3:
        return f"{60 * problem.d + problem.d * (problem.d + 3):,}"
    return "-"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="", help="part of a problem's name")
    parser.add_argument("--largest", type=int, default=100, help="largest dimension")
    parser.add_argument("--method", choices=("auto", "ridge"), default="auto")
    parser.add_argument("--peers", action="store_true")
    options = parser.parse_args()
    print(f"medians and worst of {options.seeds} seeds; 'false' counts fits that say converged more than 0.5 nats away")
    print(
        f"{'problem':42s}{'d':>4s} |{'0.1 nats':>9s}{'worst':>7s} |{'0.01':>7s}{'worst':>7s} |{'at stop':>8s}{'worst':>7s} |"
        f"{'gap':>9s}{'worst':>9s} |{'k-hat':>6s} |{'good':>5s}{'false':>6s} |{'ms/eval':>8s} |{'target':>12s}"
    )
    for problem in everything():
        if options.only not in problem.name or problem.d > options.largest:
            continue
        results = [run(problem, seed, options.method) for seed in range(options.seeds)]
        print(row(problem, results), flush=True)
        if options.peers and (problem.name in TARGETS or options.only):
            for line in peers.rows(problem):
                print(line, flush=True)


def row(problem: Problem, results: list[Result]) -> str:
    """One line of the table."""
    tenth, hundredth = np.array([r.reached for r in results]).T
    evals, gaps = np.array([r.n_evals for r in results]), np.array([r.gap for r in results])
    good = sum(r.converged and r.gap < 0.05 for r in results)
    false = sum(r.converged and not r.gap < 0.5 for r in results)
    ms = 1e3 * np.median([r.seconds / r.n_evals for r in results])
    return (
        f"{problem.name:42s}{problem.d:4d} |{np.median(tenth):9.0f}{tenth.max():7.0f} |{np.median(hundredth):7.0f}{hundredth.max():7.0f} |"
        f"{np.median(evals):8.0f}{evals.max():7.0f} |{np.median(gaps):9.4f}{gaps.max():9.4f} |{np.median([r.khat for r in results]):6.2f} |"
        f"{good:5d}{false:6d} |{ms:8.2f} |{target(problem):>12s}"
    )


if __name__ == "__main__":
    main()
