"""Effective draws per evaluation of fit.mcmc, beside emcee's own moves from the same starting points.

Run: ``python benchmarks/handover.py``. Needs the extras ``qbvi[mcmc,demo]``. Takes about two minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import qbvi

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
import oracles

N = 10_000


def banana(u: np.ndarray) -> np.ndarray:
    """A curved posterior."""
    return -0.5 * ((u[..., 0] / 1.5) ** 2 + ((u[..., 1] + 0.5 * u[..., 0] ** 2) / 0.5) ** 2)


def schools(p: dict) -> np.ndarray:
    """Eight schools, centred: a funnel of nine coordinates given one."""
    y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    sd = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    theta, mu, tau = p["theta"], p["mu"][..., None], p["tau"][..., None]
    prior = -0.5 * ((theta - mu) / tau) ** 2 - np.log(tau)
    return np.sum(prior - 0.5 * ((y - theta) / sd) ** 2, axis=-1)


PROBLEMS = {
    "Labour, 8 coefficients": (lambda b: oracles.labour().log_likelihood(b), qbvi.Normal(0, 5**0.5, shape=8)),
    "banana, 2 parameters": (banana, qbvi.Normal(0, 3, shape=2)),
    "eight schools, 10 parameters": (
        schools,
        {"mu": qbvi.Normal(0, 5), "tau": qbvi.HalfCauchy(5.0), "theta": qbvi.Flat(8)},
    ),
}


def main() -> None:
    """Print the table of docs/predict.md."""
    print(f"{'':30s}{'fit':>8s}{'fit.mcmc':>26s}{'moves of emcee alone':>26s}")
    print(
        f"{'':30s}{'evals':>8s}{'evals':>10s}{'least ess':>10s}{'/100':>6s}{'evals':>10s}{'least ess':>10s}{'/100':>6s}"
    )
    for name, (function, prior) in PROBLEMS.items():
        fit = qbvi.fit(function, prior, vectorized=True, seed=1)
        own = fit.mcmc(N, seed=1)
        steps = own.n_steps
        other = qbvi.baselines.mcmc(
            function,
            prior,
            vectorized=True,
            init=fit,
            n_walkers=own.n_walkers,
            n_steps=steps,
            warmup=steps // 5,
            seed=1,
        )
        cells = [(run.n_evals, float(np.min(run.ess))) for run in (own, other)]
        shown = "".join(f"{evals:10,d}{ess:10,.0f}{100 * ess / evals:6.1f}" for evals, ess in cells)
        print(f"{name:30s}{fit.n_evals:8,d}{shown}", flush=True)


if __name__ == "__main__":
    main()
