"""Does the search find every mode that matters, and at what cost? Random posteriors with one mode or several.

Only the search of `qbvi.Free` runs, not its rounds: paths, the survey of the prior, lines and climbs. The true modes are local optima of
the log joint from many starts, with Laplace's approximation of their mass. A search is right if each mode with a share of at
least a twentieth of the mass was found: a local optimisation from the means of the modes that the search returns leads to it.
Half A is for choosing rules, half B for checking them.

Run: ``python benchmarks/modes.py [--half A] [--only sine mixture] [--n 20] [--seeds 1] [--out rows.jsonl]``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np
from scipy import optimize, stats
from scipy.special import expit, logsumexp

import qbvi
from qbvi.free.method import Free, FreeState
from qbvi.free.rules import FreeRules, SurveyRule
from qbvi.model import Model

HEAVY = 0.05  # share of the mass from which a mode matters
STARTS = 120  # of the local optimisations that find the true modes
CACHE = Path(__file__).resolve().parent / "battery" / "cache"


class Posterior(NamedTuple):
    """A log-likelihood of stacked points (n, d), its prior, and points near some of its modes."""

    f: Callable[[np.ndarray], np.ndarray]
    prior: Any
    near: list[list[float]]


def line(rng: np.random.Generator) -> Posterior:
    """A straight line whose error bars are too small by a share of the model."""
    n = int(rng.integers(20, 60))
    slope, at_zero, share = rng.uniform(-2, 0.3), rng.uniform(1, 9), rng.uniform(0.2, 0.8)
    x, sd = np.sort(10 * rng.random(n)), 0.1 + 0.5 * rng.random(n)
    true = slope * x + at_zero
    y = true + np.abs(share * true) * rng.standard_normal(n) + sd * rng.standard_normal(n)

    def f(theta: np.ndarray) -> np.ndarray:
        m, b, log_f = (column[:, None] for column in theta.T)
        variance = sd**2 + (m * x + b) ** 2 * np.exp(2 * log_f)
        return -0.5 * np.sum((y - m * x - b) ** 2 / variance + np.log(2 * np.pi * variance), axis=1)

    prior = [qbvi.Uniform(-5, 0.5), qbvi.Uniform(0, 10), qbvi.Uniform(-10, 1)]
    return Posterior(f, prior, [[slope, at_zero, math.log(share)]])


def curve(model: Callable[..., np.ndarray], prior: list, truth: list, x: np.ndarray, sd: float, rng: Any) -> Posterior:
    """Observations of a curve with normal errors."""
    columns = [np.array([[value]]) for value in truth]
    y = model(x, *columns)[0] + sd * rng.standard_normal(len(x))

    def f(theta: np.ndarray) -> np.ndarray:
        found = model(x, *(column[:, None] for column in theta.T))
        return -0.5 * np.sum((y - found) ** 2, axis=1) / sd**2

    return Posterior(f, prior, [truth])


def sine(rng: np.random.Generator) -> Posterior:
    """A sine wave of unknown frequency and phase."""
    x = np.sort(rng.uniform(0, 10, int(rng.integers(15, 40))))
    prior = [qbvi.Uniform(0, 5), qbvi.Uniform(0.1, 1.0), qbvi.Uniform(0, 2 * np.pi)]
    truth = [rng.uniform(0.5, 4), rng.uniform(0.15, 0.9), rng.uniform(0.3, 6)]
    return curve(lambda t, a, v, p: a * np.sin(2 * np.pi * v * t + p), prior, truth, x, rng.uniform(0.3, 1.5), rng)


def peak(rng: np.random.Generator) -> Posterior:
    """One peak of unknown place, over a background with a second, smaller peak that the model lacks."""
    x = np.linspace(0, 10, 40)
    centre = rng.uniform(1, 9)
    other = (centre + rng.uniform(2, 7)) % 10
    found = curve(
        lambda t, c, w, a: a * np.exp(-0.5 * ((t - c) / np.exp(w)) ** 2),
        [qbvi.Uniform(0, 10), qbvi.Normal(-0.5, 0.7), qbvi.HalfNormal(5)],
        [centre, rng.normal(-0.5, 0.4), rng.uniform(2, 5)],
        x,
        1.0,
        rng,
    )
    height = rng.uniform(1, 4)
    extra = height * np.exp(-0.5 * ((x - other) / 0.5) ** 2)
    truth = found.near[0]
    y = truth[2] * np.exp(-0.5 * ((x - centre) / math.exp(truth[1])) ** 2) + extra + rng.standard_normal(len(x))

    def f(theta: np.ndarray) -> np.ndarray:
        c, w, a = (column[:, None] for column in theta.T)
        return -0.5 * np.sum((y - a * np.exp(-0.5 * ((x - c) / np.exp(w)) ** 2)) ** 2, axis=1)

    return Posterior(f, found.prior, [truth, [other, -0.7, height]])


def decays(rng: np.random.Generator) -> Posterior:
    """A sum of two exponential decays, whose labels may be exchanged."""
    x = np.linspace(0, 5, 25)
    prior = [qbvi.LogNormal(0, 1), qbvi.LogNormal(0, 1), qbvi.LogNormal(0, 1.2), qbvi.LogNormal(0, 1.2)]
    truth = [rng.uniform(0.5, 3), rng.uniform(0.5, 3), rng.uniform(0.2, 0.6), rng.uniform(1, 4)]
    model = lambda t, a, b, k, m: a * np.exp(-k * t) + b * np.exp(-m * t)
    found = curve(model, prior, truth, x, rng.uniform(0.02, 0.3), rng)
    a, b, k, m = truth
    return found._replace(near=[truth, [b, a, m, k]])


def step(rng: np.random.Generator) -> Posterior:
    """A smooth step of unknown place and width between two levels."""
    x = np.linspace(0, 10, 30)
    prior = [qbvi.Uniform(0, 10), qbvi.Normal(0, 1), qbvi.Normal(0, 3), qbvi.Normal(0, 3)]
    truth = [rng.uniform(1, 9), rng.normal(0, 0.7), rng.normal(0, 2), rng.normal(0, 2)]
    return curve(lambda t, c, w, a, b: a + b * np.tanh((t - c) / np.exp(w)), prior, truth, x, rng.uniform(0.2, 1), rng)


def damped(rng: np.random.Generator) -> Posterior:
    """A damped oscillation."""
    x = np.linspace(0, 10, 40)
    prior = [qbvi.HalfNormal(3), qbvi.LogNormal(-1, 0.7), qbvi.Uniform(0.5, 6), qbvi.Uniform(-3.14, 3.14)]
    truth = [rng.uniform(1, 4), rng.uniform(0.1, 0.6), rng.uniform(1, 5), rng.uniform(-2.5, 2.5)]
    model = lambda t, a, k, w, p: a * np.exp(-k * t) * np.cos(w * t + p)
    return curve(model, prior, truth, x, rng.uniform(0.2, 0.8), rng)


def growth(rng: np.random.Generator) -> Posterior:
    """Logistic growth: one mode, far from log-concave."""
    x = np.linspace(0, 10, 20)
    prior = [qbvi.LogNormal(2, 1), qbvi.LogNormal(0, 1), qbvi.LogNormal(1, 1)]
    truth = [rng.uniform(4, 15), rng.uniform(0.4, 2), rng.uniform(2, 6)]
    return curve(lambda t, k, r, c: k * expit(r * (t - c)), prior, truth, x, rng.uniform(0.2, 1), rng)


def kinetics(rng: np.random.Generator) -> Posterior:
    """Absorption and elimination of a drug: one mode and its flip-flop."""
    x = np.array([0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24])
    prior = [qbvi.LogNormal(0, 1), qbvi.LogNormal(-1, 1), qbvi.LogNormal(2, 1)]
    truth = [rng.uniform(0.7, 2.5), rng.uniform(0.08, 0.4), rng.uniform(4, 15)]

    def model(t: np.ndarray, ka: np.ndarray, ke: np.ndarray, v: np.ndarray) -> np.ndarray:
        return 100 / v * ka / (ka - ke + 1e-9) * (np.exp(-ke * t) - np.exp(-ka * t))

    return curve(model, prior, truth, x, rng.uniform(0.1, 0.6), rng)


def _components(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights (k,), means (k, d) and standard deviations (k, d), in units of the prior."""
    d, k = int(rng.integers(1, 7)), int(rng.integers(2, 5))
    weights = rng.dirichlet(np.full(k, 2.0))
    return (
        weights,
        rng.normal(0, 0.8, (k, d)),
        rng.uniform(0.03, 0.2, (k, 1)) * np.exp(0.3 * rng.standard_normal((k, d))),
    )


def mixture(rng: np.random.Generator) -> Posterior:
    """A mixture of two to four Gaussians."""
    weights, means, sds = _components(rng)

    def f(theta: np.ndarray) -> np.ndarray:
        z = (theta[:, None] - means) / sds
        return logsumexp(np.log(weights) - 0.5 * np.sum(z**2, axis=2) - np.sum(np.log(sds), axis=1), axis=1)

    return Posterior(f, qbvi.Normal(0, 1, shape=means.shape[1]), means.tolist())


def heavy(rng: np.random.Generator) -> Posterior:
    """A mixture of multivariate Student-t laws."""
    weights, means, sds = _components(rng)
    parts = [stats.multivariate_t(mean, np.diag(sd**2), df=4) for mean, sd in zip(means, sds, strict=True)]

    def f(theta: np.ndarray) -> np.ndarray:
        logs = [np.reshape(part.logpdf(theta), -1) for part in parts]
        return np.asarray(logsumexp(np.stack(logs, axis=1) + np.log(weights), axis=1))

    return Posterior(f, qbvi.Normal(0, 1, shape=means.shape[1]), means.tolist())


KINDS = {kind.__name__: kind for kind in (line, sine, peak, decays, step, damped, growth, kinetics, mixture, heavy)}


def posterior(kind: str, number: int) -> Posterior:
    """The posterior of a kind with a number; even numbers are half A."""
    return KINDS[kind](np.random.default_rng([sum(map(ord, kind)), number]))


class Ended(Exception):
    """The search is over."""

    def __init__(self, state: FreeState) -> None:
        super().__init__()
        self.state = state


def searched(problem: Posterior, seed: int, rule: SurveyRule) -> tuple[int, list[np.ndarray]]:
    """Evaluations of the search, and the means of its modes on the unconstrained scale."""

    def stop(self: Free, family: Any, state: FreeState, base: Any) -> FreeState:
        raise Ended(state)

    usual, Free._renewed = Free._renewed, stop  # type: ignore[method-assign]
    try:
        method, options = Free(rules=FreeRules(survey=rule)), {"vectorized": True, "seed": seed, "progress": False}
        fit = qbvi.fit(problem.f, problem.prior, method=method, max_evals=4000, **options)
    except Ended as ended:
        modes = ended.state.search.modes
        best = max((mode.bound for mode in modes), default=0.0)
        return len(ended.state.y), [mode.mean for mode in modes if mode.bound > best - 10]
    finally:
        Free._renewed = usual  # type: ignore[method-assign]
    return fit.n_evals, [fit.unconstrained[0]]


def true_modes(problem: Posterior, model: Model, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Local optima (k, d) on the unconstrained scale, and their shares of the mass (k,)."""
    file = CACHE / f"modes-{name}.npz"
    if file.exists():
        held = np.load(file)
        return held["modes"], held["shares"]
    rng = np.random.default_rng(0)
    starts = [model.unconstrain(np.array(point)) for point in problem.near]
    starts += list(np.atleast_2d(model.unconstrain(model.sample_prior(rng, STARTS), batched=True)))
    modes: list[np.ndarray] = []
    masses: list[float] = []
    for start in starts:
        u = polished(problem, model, np.asarray(start, dtype=float))
        if any(np.max(np.abs(u - other)) < 1e-2 for other in modes):
            continue
        mass = _laplace(lambda v: log_joint(problem, model, v), u)
        if math.isfinite(mass):
            modes.append(u)
            masses.append(mass)
    shares = np.exp(np.array(masses) - logsumexp(masses))
    CACHE.mkdir(parents=True, exist_ok=True)
    np.savez(file, modes=np.array(modes), shares=shares)
    return np.array(modes), shares


def log_joint(problem: Posterior, model: Model, u: np.ndarray) -> np.ndarray:
    """Log joint at points (n, d) of the unconstrained scale."""
    x = model.flatten(model.constrain(u)) if not isinstance(model.constrain(u), np.ndarray) else model.constrain(u)
    with np.errstate(all="ignore"):
        y = problem.f(np.asarray(x)) + np.asarray(model.log_prior(u))
    return np.where(np.isfinite(y), y, -1e10)


def polished(problem: Posterior, model: Model, u: np.ndarray) -> np.ndarray:
    """The local optimum of the log joint from u (d,)."""
    eye = 1e-5 * np.eye(len(u))

    def minus(v: np.ndarray) -> tuple[float, np.ndarray]:
        y = log_joint(problem, model, np.concatenate([v[None], v + eye, v - eye]))
        return -y[0], -(y[1 : 1 + len(u)] - y[1 + len(u) :]) / 2e-5

    found = optimize.minimize(minus, u, jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return np.asarray(optimize.minimize(minus, found.x, jac=True, method="BFGS", options={"maxiter": 50}).x)


def _laplace(f: Callable[[np.ndarray], np.ndarray], u: np.ndarray) -> float:
    """Log of the integral around an optimum; minus infinity if it is none."""
    d, h = len(u), 1e-3
    H = np.empty((d, d))
    eye = h * np.eye(d)
    for i in range(d):
        for j in range(i + 1):
            at = [u + eye[i] + eye[j], u + eye[i] - eye[j], u - eye[i] + eye[j], u - eye[i] - eye[j]]
            y = f(np.array(at))
            H[i, j] = H[j, i] = (y[0] - y[1] - y[2] + y[3]) / (4 * h * h)
    c = np.linalg.eigvalsh(-H)
    if np.min(c) < 1e-6:
        return -math.inf
    return float(f(u[None])[0] + 0.5 * d * math.log(2 * math.pi) - 0.5 * np.sum(np.log(c)))


def one(kind: str, number: int, seed: int, rule: SurveyRule) -> dict[str, Any]:
    """One row: evaluations of the search, and which share of the mass its modes hold."""
    problem, start = posterior(kind, number), time.process_time()
    n_evals, found = searched(problem, seed, rule)
    seconds = time.process_time() - start
    model = Model(problem.prior)
    modes, shares = true_modes(problem, model, f"{kind}-{number}")
    ends = [polished(problem, model, mean) for mean in found]
    # A polished mode may be anywhere on a flat ridge: half a standard deviation of the prior is the same place.
    scale = np.asarray(model.initial()[1])
    is_found = np.array([any(np.max(np.abs(mode - end) / scale) < 0.1 for end in ends) for mode in modes])
    heavy_ones = shares >= HEAVY
    return {
        "kind": kind,
        "number": number,
        "seed": seed,
        "d": modes.shape[1],
        "evals": n_evals,
        "modes": int(heavy_ones.sum()),
        "found": int((heavy_ones & is_found).sum()),
        "mass": float(shares[is_found].sum()),
        "seconds": seconds,
    }


def main() -> None:
    """Print a row for each search that is wrong, and a table by kind."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--half", choices=("A", "B"), default="A")
    parser.add_argument("--only", nargs="*", default=list(KINDS))
    parser.add_argument("--n", type=int, default=20, help="posteriors of each kind")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rules", type=json.loads, default={}, help="fields of `SurveyRule` to change, as JSON")
    parser.add_argument("--out", default=None)
    chosen = parser.parse_args()
    rule = SurveyRule(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in chosen.rules.items()}
    )
    table = defaultdict(list)
    for kind in chosen.only:
        for number in range("AB".index(chosen.half), 2 * chosen.n, 2):
            for seed in range(chosen.seeds):
                row = one(kind, number, seed, rule)
                table[kind].append(row)
                if row["found"] < row["modes"]:
                    print(
                        f"{kind}-{number} seed {seed}: {row['found']} of {row['modes']} modes, {row['mass']:.2f} of the mass, {row['evals']} evaluations",
                        flush=True,
                    )
                if chosen.out:
                    with open(chosen.out, "a") as file:
                        file.write(json.dumps(row) + "\n")
    print(
        f"\n{'kind':12s}{'searches':>9s}{'right':>7s}{'half':>6s}{'modes':>7s}{'evals: mean':>13s}{'median':>8s}{'worst':>7s}{'seconds':>9s}"
    )
    for kind, rows in [*table.items(), ("all", [row for group in table.values() for row in group])]:
        evals = [row["evals"] for row in rows]
        right = sum(row["found"] == row["modes"] for row in rows)
        half = sum(row["mass"] > 0.5 for row in rows)
        modes = np.mean([row["modes"] for row in rows])
        print(
            f"{kind:12s}{len(rows):9d}{right:7d}{half:6d}{modes:7.1f}{np.mean(evals):13.0f}{np.median(evals):8.0f}{max(evals):7d}"
            f"{np.sum([row['seconds'] for row in rows]):9.1f}"
        )


if __name__ == "__main__":
    main()
