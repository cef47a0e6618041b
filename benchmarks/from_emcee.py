"""The line of emcee's tutorial, by emcee and by qbvi: calls, seconds, means and standard deviations.

``python benchmarks/from_emcee.py`` prints the table of docs/from/emcee.md. With ``--points`` it
prints how many evaluations fits from chains take, by the number of points that they use.
"""

from __future__ import annotations

import argparse

import emcee
import line
import numpy as np
from coming_from import Counted, Row, Watch, show

import qbvi
import qbvi.earlier


def sampled(log_prob, start, steps, vectorize=False):
    """A sampler of emcee that has run, with 32 walkers."""
    d = np.shape(start)[-1]
    walkers = start + 1e-4 * np.random.default_rng(1).standard_normal((32, d))
    sampler = emcee.EnsembleSampler(32, d, log_prob, vectorize=vectorize)
    sampler.random_state = np.random.RandomState(1).get_state()
    sampler.run_mcmc(walkers, steps)
    return sampler


def compare() -> None:
    """The table of the page."""
    counted, watch = Counted(line.log_prob), Watch()
    sampler = sampled(counted, line.START, 5000)
    seconds, calls = watch.seconds, counted.calls
    chain = sampler.get_chain(discard=500, flat=True)
    problem = qbvi.from_log_prob(line.log_prob, line.START, names=line.NAMES)
    rows = [
        Row("emcee, 32 walkers, 5,000 steps", calls, seconds, chain.mean(0), chain.std(0)),
        Row.of("`qbvi.from_log_prob`", problem),
        Row.of("the same, `evaluations=sampler`", problem, evaluations=sampler),
    ]
    show(line.NAMES, rows)


def banana(theta):
    """The second coordinate is near the square of the first."""
    return -0.5 * (theta[..., 0] ** 2 + ((theta[..., 1] - theta[..., 0] ** 2) / 0.5) ** 2)


def funnel(theta):
    """The first coordinate is the log of the variance of the others."""
    inner = (theta[..., 1] ** 2 + theta[..., 2] ** 2) * np.exp(-theta[..., 0])
    return -0.5 * (theta[..., 0] ** 2 / 2.25 + inner) - theta[..., 0]


def sweep() -> None:
    """Evaluations of fits from chains, by the number of points for each dimension."""
    stacked = np.vectorize(line.log_prob, signature="(d)->()")
    problems = {"line": (stacked, line.START), "banana": (banana, np.zeros(2)), "funnel": (funnel, np.zeros(3))}
    chosen = qbvi.earlier._FOR_A_SURFACE
    for name, (log_prob, start) in problems.items():
        table = qbvi.Evaluations.from_sampler(sampled(log_prob, start, 600, vectorize=True))[6400:]
        problem = qbvi.from_log_prob(lambda theta, f=log_prob: float(f(theta)), start)
        print(f"{name}: {[problem.fit(seed=s).n_evals for s in range(3)]} evaluations without a chain")
        for points in (5, 10, 15, 25, 50):
            qbvi.earlier._FOR_A_SURFACE = points
            fits = [problem.fit(seed=s, evaluations=table, max_evals=2000) for s in range(3)]
            print(
                f"  {points:3d} points: {[fit.n_evals for fit in fits]}, {sum(fit.converged for fit in fits)} converged"
            )
    qbvi.earlier._FOR_A_SURFACE = chosen


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", action="store_true")
    (sweep if parser.parse_args().points else compare)()
