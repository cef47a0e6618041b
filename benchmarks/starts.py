"""Does a fit find the right mode? Posteriors whose nearest mode need not be the best, as users write them.

For every problem: how many seeds end within two nats of the best bound that any fit reached, how many say converged elsewhere, and
the median number of evaluations; with one start (``n_starts=1``) and with the default (``n_starts="auto"``), which looks at the
prior once the log joint has proved not to be log-concave. Log-concave problems are in the list to see that they pay nothing.

Run: ``python benchmarks/starts.py [--seeds 10] [--only line]``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import odeint
from scipy.special import logsumexp
from scipy.stats import norm, t

import qbvi

NEAR = 2.0  # nats from the best bound


class Problem(NamedTuple):
    """A log-likelihood and a prior, and a point in the right mode, from which the best bound is found."""

    name: str
    function: Callable[[Any], float]
    prior: Any
    truth: Any


def problems() -> Iterator[Problem]:
    """All of them: not log-concave first, then log-concave."""
    yield from (underestimated_errors(seed) for seed in (1, 2, 3))
    yield mixture()
    yield two_decays()
    yield predators()
    yield dose_response()
    yield hidden_markov()
    yield outliers()
    yield unequal_modes()
    yield ring_segment()
    yield from (logistic(d) for d in (3, 8))
    yield far_gaussian()
    yield poisson()


def underestimated_errors(seed: int) -> Problem:
    """A straight line whose error bars are too small by an unknown share of the model."""
    rng = np.random.default_rng(seed)
    x, error = np.sort(10 * rng.random(50)), 0.1 + 0.5 * rng.random(50)
    truth = -0.96 * x + 4.29
    y = truth + np.abs(0.534 * truth) * rng.standard_normal(50) + error * rng.standard_normal(50)

    def log_likelihood(p):
        model = p["m"] * x + p["b"]
        variance = error**2 + (model * np.exp(p["log_f"])) ** 2
        return -0.5 * np.sum((y - model) ** 2 / variance + np.log(variance))

    prior = {"m": qbvi.Uniform(-5, 0.5), "b": qbvi.Uniform(0, 10), "log_f": qbvi.Uniform(-10, 1)}
    return Problem(f"line with error bars, data {seed}", log_likelihood, prior, {"m": -0.96, "b": 4.29, "log_f": -0.6})


def mixture() -> Problem:
    """Two Gaussians of unequal weight and width."""
    rng = np.random.default_rng(5)
    y = np.r_[rng.normal(-2, 0.5, 30), rng.normal(3, 1.5, 70)]

    def log_likelihood(p):
        parts = [
            np.log(p["w"]) + norm.logpdf(y, p["m1"], p["s1"]),
            np.log1p(-p["w"]) + norm.logpdf(y, p["m2"], p["s2"]),
        ]
        return float(logsumexp(parts, axis=0).sum())

    scale = qbvi.LogNormal(0, 1)
    prior = {"w": qbvi.Uniform(0, 1), "m1": qbvi.Normal(0, 5), "m2": qbvi.Normal(0, 5), "s1": scale, "s2": scale}
    truth = {"w": 0.3, "m1": -2.0, "m2": 3.0, "s1": 0.5, "s2": 1.5}
    return Problem("mixture of two", log_likelihood, prior, truth)


def two_decays() -> Problem:
    """A sum of two exponentials: amplitudes and rates that can change places."""
    rng = np.random.default_rng(6)
    x = np.linspace(0, 10, 40)
    y = 5 * np.exp(-2 * x) + 3 * np.exp(-0.2 * x) + 0.1 * rng.standard_normal(40)

    def log_likelihood(p):
        model = p["a"] * np.exp(-p["k"] * x) + p["b"] * np.exp(-p["l"] * x)
        return norm.logpdf(y, model, p["s"]).sum()

    wide = qbvi.LogNormal(0, 2)
    prior = {"a": wide, "k": wide, "b": wide, "l": wide, "s": qbvi.HalfNormal(1)}
    return Problem("two decays", log_likelihood, prior, {"a": 5.0, "k": 2.0, "b": 3.0, "l": 0.2, "s": 0.1})


def predators() -> Problem:
    """Lotka-Volterra from 20 noisy counts of hares and lynx."""
    rng = np.random.default_rng(7)
    times = np.arange(20.0)

    def path(a, b, c, d):
        with np.errstate(all="ignore"):
            rates = lambda y, _: [a * y[0] - b * y[0] * y[1], -c * y[1] + d * y[0] * y[1]]
            return odeint(rates, [30.0, 4.0], times, mxstep=2000, printmessg=False)

    y = path(0.55, 0.028, 0.8, 0.024) * np.exp(0.2 * rng.standard_normal((20, 2)))

    def log_likelihood(p):
        model = np.maximum(path(p["a"], p["b"], p["c"], p["d"]), 1e-9)
        return norm.logpdf(np.log(y), np.log(model), p["s"]).sum()

    rate, coupling = qbvi.LogNormal(-0.5, 0.7), qbvi.LogNormal(-3.5, 0.7)
    prior = {"a": rate, "b": coupling, "c": rate, "d": coupling, "s": qbvi.LogNormal(-1, 1)}
    return Problem("Lotka-Volterra", log_likelihood, prior, {"a": 0.55, "b": 0.028, "c": 0.8, "d": 0.024, "s": 0.2})


def dose_response() -> Problem:
    """A four-parameter logistic curve of dose."""
    rng = np.random.default_rng(8)
    dose = np.geomspace(0.01, 100, 9).repeat(3)
    y = 10 + 80 / (1 + (3 / dose) ** 1.5) + 4 * rng.standard_normal(27)

    def log_likelihood(p):
        model = p["low"] + (p["high"] - p["low"]) / (1 + (p["half"] / dose) ** p["slope"])
        return norm.logpdf(y, model, p["s"]).sum()

    prior = {
        "low": qbvi.Normal(0, 50),
        "high": qbvi.Normal(50, 50),
        "half": qbvi.LogNormal(0, 3),
        "slope": qbvi.LogNormal(0, 1),
        "s": qbvi.HalfCauchy(5),
    }
    truth = {"low": 10.0, "high": 90.0, "half": 3.0, "slope": 1.5, "s": 4.0}
    return Problem("dose and response", log_likelihood, prior, truth)


def hidden_markov() -> Problem:
    """Two hidden states with Gaussian emissions."""
    rng = np.random.default_rng(9)
    state, y = 0, []
    for _ in range(150):
        state = state if rng.random() < 0.9 else 1 - state
        y.append(rng.normal((0.0, 3.0)[state], (1.0, 0.5)[state]))
    y = np.array(y)

    def log_likelihood(p):
        emit = norm.logpdf(y[:, None], [p["m1"], p["m2"]], [p["s1"], p["s2"]])
        stay = np.log([[p["p1"], 1 - p["p1"]], [1 - p["p2"], p["p2"]]])
        alpha = emit[0] - np.log(2)
        for row in emit[1:]:
            alpha = np.logaddexp(alpha[0] + stay[0], alpha[1] + stay[1]) + row
        return float(np.logaddexp(*alpha))

    mean, scale, stay = qbvi.Normal(0, 5), qbvi.LogNormal(0, 1), qbvi.Uniform(0, 1)
    prior = {"m1": mean, "m2": mean, "s1": scale, "s2": scale, "p1": stay, "p2": stay}
    truth = {"m1": 0.0, "m2": 3.0, "s1": 1.0, "s2": 0.5, "p1": 0.9, "p2": 0.9}
    return Problem("hidden Markov model", log_likelihood, prior, truth)


def outliers() -> Problem:
    """A location with two clusters of observations under a Student t: one mode at each."""
    y = np.r_[np.linspace(-1, 1, 12), np.linspace(9, 10, 9)]
    prior = {"m": qbvi.Normal(4, 10), "s": qbvi.LogNormal(0, 1)}
    return Problem("two clusters", lambda p: t.logpdf(y, 2, p["m"], p["s"]).sum(), prior, {"m": 0.0, "s": 1.0})


def unequal_modes() -> Problem:
    """A broad mode near the centre of the prior, and one with most of the mass further out."""

    def log_likelihood(x):
        return float(np.logaddexp(-0.5 * np.sum((x - 4) ** 2) / 0.5, -8 - 0.5 * np.sum((x + 0.5) ** 2) / 1.5))

    return Problem("unequal modes, d = 3", log_likelihood, qbvi.Normal(0, 4, shape=3), np.full(3, 4.0))


def ring_segment() -> Problem:
    """One mode, but far from log-concave: part of a ring."""

    def log_likelihood(x):
        return float(-0.5 * ((np.hypot(*x) - 4) / 0.3) ** 2 - 0.5 * ((x[1] - 4) / 1.5) ** 2)

    return Problem("part of a ring", log_likelihood, qbvi.Normal(0, 4, shape=2), np.array([0.1, 4.0]))


def logistic(d: int) -> Problem:
    """Logistic regression: log-concave."""
    rng = np.random.default_rng(d)
    X = rng.standard_normal((200, d))
    beta = rng.standard_normal(d)
    y = (rng.random(200) < 1 / (1 + np.exp(-X @ beta))).astype(float)
    log_likelihood = lambda b: y @ (X @ b) - np.logaddexp(0, X @ b).sum()
    return Problem(f"logistic regression, d = {d}", log_likelihood, qbvi.Normal(0, 5**0.5, shape=d), beta)


def far_gaussian() -> Problem:
    """A Gaussian far out in a wide prior: log-concave."""
    A = np.random.default_rng(11).standard_normal((12, 6))
    log_likelihood = lambda x: -5 * float(np.sum((A @ (x - 8)) ** 2))
    return Problem("far Gaussian, d = 6", log_likelihood, qbvi.Normal(0, 10, shape=6), np.full(6, 8.0))


def poisson() -> Problem:
    """Poisson regression: log-concave."""
    rng = np.random.default_rng(12)
    X = np.c_[np.ones(100), rng.standard_normal((100, 3))]
    y = rng.poisson(np.exp(X @ [1.0, 0.5, -0.5, 0.2]))
    log_likelihood = lambda b: float(y @ (X @ b) - np.exp(np.minimum(X @ b, 700)).sum())
    return Problem(
        "Poisson regression, d = 4", log_likelihood, qbvi.Normal(0, 3, shape=4), np.array([1.0, 0.5, -0.5, 0.2])
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="", help="part of a problem's name")
    options = parser.parse_args()
    print(
        f"{options.seeds} seeds each; 'right' ends within {NEAR:g} nats of the best bound, 'false' says converged elsewhere"
    )
    print(f"{'':28s}{'best':>9s} |{'one start':>11s}{'':12s} |{'auto':>8s}")
    print(
        f"{'problem':28s}{'bound':>9s} |{'right':>6s}{'false':>6s}{'evals':>8s}   |{'right':>6s}{'false':>6s}{'evals':>8s}"
    )
    for problem in problems():
        if options.only not in problem.name:
            continue
        fits = {starts: [fitted(problem, starts, seed) for seed in range(options.seeds)] for starts in (1, "auto")}
        known = qbvi.fit(
            problem.function, problem.prior, init=problem.truth, seed=1, progress=False, on_failure="exclude"
        )
        best = max(known.elbo, *(fit.elbo for some in fits.values() for fit in some))
        cells = "   |".join(cell(some, best) for some in fits.values())
        print(f"{problem.name:28s}{best:9.2f} |{cells}", flush=True)


def fitted(problem: Problem, n_starts: Any, seed: int) -> qbvi.Fit:
    """One fit with nothing set but the starts and the seed."""
    with np.errstate(all="ignore"):
        return qbvi.fit(
            problem.function, problem.prior, n_starts=n_starts, seed=seed, progress=False, on_failure="exclude"
        )


def cell(fits: list[qbvi.Fit], best: float) -> str:
    """How many are right, how many say converged elsewhere, and the median cost."""
    right = [fit.elbo > best - NEAR for fit in fits]
    false = sum(fit.converged and not ok for fit, ok in zip(fits, right, strict=True))
    return f"{sum(right):6d}{false:6d}{np.median([fit.n_evals for fit in fits]):8.0f}"


if __name__ == "__main__":
    main()
