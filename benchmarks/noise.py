"""Likelihoods with noise whose exact expectation is known: what a fit costs, and whether it is honest.

    python benchmarks/noise.py            # all problems, three seeds
    python benchmarks/noise.py --half A   # the half that the rules were chosen on
    python benchmarks/noise.py --only synthetic --seeds 5

The columns: evaluations at the end, also divided by d + 2; whether the fit says converged; nats to the best Gaussian (or
product, if that is the family), by the exact function: negative if the posterior is better than that; error of the bound and
of the evidence, in nats and in their standard errors; missing nats, as reported and true; k-hat and what is said about it.
"""

from __future__ import annotations

import argparse
import math
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

import qbvi
from qbvi.diagnostics import judge_khat
from qbvi.random import Sobol

Floats = NDArray[np.float64]
_NODES = 2**13  # quasi-random draws for integrals under a Gaussian


@dataclass(frozen=True, eq=False)
class Problem:
    """A noisy function and its exact expectation, both at one point x (d,); the prior is N(0, prior^2) for each parameter."""

    name: str
    half: str
    d: int
    mean: Callable[[Floats], Floats]  # exact expectation at points (n, d)
    noisy: Callable[[Floats, np.random.Generator], Any]  # at one point: a value, or a value and its standard deviation
    prior: float = 3.0
    options: dict[str, Any] = field(default_factory=dict)

    def log_joint(self, x: Floats) -> Floats:
        """Exact log joint at points (n, d)."""
        prior = -0.5 * np.sum((x / self.prior) ** 2, axis=1) - self.d * math.log(self.prior * math.sqrt(2 * math.pi))
        return np.asarray(self.mean(x) + prior)


def bound(problem: Problem, mean: Floats, cov: Floats) -> tuple[float, float]:
    """Lower bound of N(mean, cov) and log evidence by importance sampling from a wider Student-t around it."""
    z = Sobol().normal(np.random.default_rng(1), _NODES, problem.d)
    z = np.concatenate([z, -z])
    L = np.linalg.cholesky(cov)
    log_det = float(np.sum(np.log(np.diag(L))))
    log_q = -0.5 * np.sum(z**2, axis=1) - log_det - 0.5 * problem.d * math.log(2 * math.pi)
    elbo = float(np.mean(problem.log_joint(mean + z @ L.T) - log_q))
    rng, wide = np.random.default_rng(2), 1.3
    t = scipy.stats.multivariate_t(np.zeros(problem.d), np.eye(problem.d), df=7, seed=rng)
    u = np.reshape(t.rvs(200_000), (-1, problem.d))
    h = problem.log_joint(mean + wide * u @ L.T) - t.logpdf(u) + log_det + problem.d * math.log(wide)
    return elbo, float(scipy.special.logsumexp(h) - math.log(len(h)))


def exact_bound(problem: Problem, fit: qbvi.Fit) -> float:
    """Lower bound of a fit by the exact function, with 20,000 draws from it."""
    draws = np.asarray(fit.sample(20_000, seed=1)).reshape(-1, problem.d)
    return float(np.mean(problem.log_joint(draws) - fit.log_prob(draws)))


def best(problem: Problem) -> tuple[Floats, Floats]:
    """The Gaussian of highest bound, by a fit of the exact function with a small tolerance."""
    exact = lambda x: problem.mean(np.asarray(x)[None])[0]
    fit = qbvi.fit(
        exact, qbvi.Normal(0, problem.prior, shape=problem.d), family="full", seed=1, max_evals=20_000, tol=1e-4
    )
    return fit.unconstrained


# ---------------------------------------------------------------- targets


def gaussian(d: int) -> Callable[[Floats], Floats]:
    """A correlated Gaussian log-likelihood, off the centre of the prior."""
    rng = np.random.default_rng(d)
    A = rng.standard_normal((d, d)) / math.sqrt(d) + np.eye(d)
    centre = 1.5 * rng.standard_normal(d)
    return lambda x: -2.0 * np.sum(((x - centre) @ A.T) ** 2, axis=1)


def skewed(d: int) -> Callable[[Floats], Floats]:
    """A log-likelihood of Poisson counts with log rates that are linear in x: moderately skewed."""
    rng = np.random.default_rng(100 + d)
    X = rng.standard_normal((6 * d, d)) / math.sqrt(d)
    y = rng.poisson(np.exp(X @ rng.standard_normal(d)))
    return lambda x: np.sum((X @ x.T) * y[:, None] - np.exp(np.minimum(X @ x.T, 30.0)), axis=0)


def with_noise(
    mean: Callable[[Floats], Floats], least: float, slope: float, says: bool = False
) -> Callable[[Floats, np.random.Generator], Any]:
    """Normal noise with standard deviation ``least + slope * depth``, the depth below the mode."""
    d = next(d for d in range(1, 20) if _takes(mean, d))
    top = -float(
        scipy.optimize.minimize(
            lambda x: -mean(x[None])[0], np.zeros(d), method="Nelder-Mead", options={"maxiter": 20_000, "fatol": 1e-6}
        ).fun
    )

    def noisy(x: Floats, rng: np.random.Generator) -> Any:
        value = float(mean(np.asarray(x)[None])[0])
        sd = least + slope * max(top - value, 0.0)
        value += sd * rng.standard_normal()
        return (value, sd) if says else value

    return noisy


def _takes(mean: Callable[[Floats], Floats], d: int) -> bool:
    try:
        return bool(np.isfinite(mean(np.zeros((1, d)))).all())
    except ValueError:
        return False


@dataclass(frozen=True, eq=False)
class Synthetic:
    """A synthetic likelihood: Gaussian statistics, whose mean and covariance are estimated from simulations.

    The statistics of n observations N(m(x), exp(2 s)) on a design are least-squares coefficients and a log standard
    deviation. They are drawn as normal, so that the expectation of the log synthetic likelihood is known exactly.
    """

    d: int  # coefficients, and one log standard deviation
    n_simulations: int
    says: bool = False

    def _law(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Observed statistics, mean and standard deviation of simulated ones at x (d,)."""
        rng = np.random.default_rng(self.d)
        observed = np.append(1.2 * rng.standard_normal(self.d - 1), -1.0)
        scale = np.exp(np.clip(x[-1], -20, 20)) / math.sqrt(40)
        return observed, np.asarray(x), np.append(np.full(self.d - 1, scale), 1 / math.sqrt(80))

    def noisy(self, x: Floats, rng: np.random.Generator) -> Any:
        """The estimate from one set of simulations."""
        observed, mean, sd = self._law(np.asarray(x))
        k, n = self.d, self.n_simulations
        draws = mean + sd * rng.standard_normal((n, k))
        centre, S = draws.mean(axis=0), np.atleast_2d(np.cov(draws.T))
        apart = observed - centre
        square = float(apart @ np.linalg.solve(S, apart))
        value = -0.5 * square - 0.5 * np.linalg.slogdet(S)[1]
        if not self.says:
            return value
        return value, math.sqrt(k / (2 * n) + square / n + square**2 / (2 * n))

    def mean(self, x: Floats) -> Floats:
        """Its expectation, from the moments of a Wishart matrix."""
        k, n = self.d, self.n_simulations
        observed, _, _ = self._law(np.zeros(k))
        scale = np.exp(np.clip(x[:, -1:], -20, 20)) / math.sqrt(40)
        sd = np.concatenate([np.repeat(scale, k - 1, axis=1), np.full((len(x), 1), 1 / math.sqrt(80))], axis=1)
        log_det = np.sum(scipy.special.digamma((n - 1 - np.arange(k)) / 2)) + k * math.log(2 / (n - 1))
        log_det = log_det + 2 * np.sum(np.log(sd), axis=1)
        square = (n - 1) / (n - k - 2) * (np.sum(((observed - x) / sd) ** 2, axis=1) + k / n)
        return np.asarray(-0.5 * (square + log_det))


def problems() -> list[Problem]:
    """All problems: the rules were chosen on half A."""
    made = []

    def add(name: str, half: str, d: int, mean: Any, noisy: Any, **rest: Any) -> None:
        made.append(Problem(name, half, d, mean, noisy, **rest))

    for half, d, least, slope in [
        ("A", 2, 0.5, 0), ("A", 5, 1, 0), ("A", 3, 3, 0), ("A", 8, 0.5, 0.1),
        ("B", 1, 1, 0), ("B", 6, 3, 0), ("B", 4, 0.5, 0), ("B", 3, 0.5, 0.1),
    ]:  # fmt: skip
        add(f"gaussian-{least:g}{'+' if slope else ''}", half, d, gaussian(d), with_noise(gaussian(d), least, slope))
    for half, d, least, slope in [
        ("A", 2, 1, 0),
        ("A", 3, 0.5, 0.1),
        ("B", 4, 0.5, 0),
        ("B", 5, 0.5, 0.1),
        ("B", 2, 3, 0),
    ]:
        add(f"skewed-{least:g}{'+' if slope else ''}", half, d, skewed(d), with_noise(skewed(d), least, slope))
    add("returned-0.3+", "A", 4, gaussian(4), with_noise(gaussian(4), 0.3, 0.1, says=True))
    add("returned-1+", "B", 3, skewed(3), with_noise(skewed(3), 1, 0.05, says=True))
    for half, d, n, says in [("A", 2, 100, False), ("B", 4, 50, False), ("A", 3, 50, True), ("B", 3, 200, False)]:
        model = Synthetic(d, n, says)
        add(f"synthetic-{n}{'-returned' if says else ''}", half, d, model.mean, model.noisy)
    for half, d, least, slope in [("A", 3, 1, 0), ("B", 4, 0.5, 0.1)]:
        rest: dict[str, Any] = {"options": {"method": "regression"}}
        add(
            f"regression-{least:g}{'+' if slope else ''}",
            half,
            d,
            skewed(d),
            with_noise(skewed(d), least, slope),
            **rest,
        )
    for half, d, least, slope, says in [("A", 3, 1, 0, False), ("B", 3, 0.5, 0.1, False), ("A", 4, 0.3, 0.1, True)]:
        name = f"ridge-{least:g}{'+' if slope else ''}{'-returned' if says else ''}"
        add(name, half, d, gaussian(d), with_noise(gaussian(d), least, slope, says), options={"method": "ridge"})
    for half, d, least, slope in [("A", 3, 1, 0), ("B", 2, 0.5, 0.1)]:
        rest = {"options": {"family": "diagonal", "method": "mean-field"}}
        add(
            f"product-{least:g}{'+' if slope else ''}",
            half,
            d,
            gaussian(d),
            with_noise(gaussian(d), least, slope),
            **rest,
        )
    return made


def run(problem: Problem, seed: int) -> dict[str, Any]:
    """One fit and its figures."""
    rng = np.random.default_rng([seed, problem.d, zlib.crc32(problem.name.encode())])
    start = time.perf_counter()
    prior, options = (
        qbvi.Normal(0, problem.prior, shape=problem.d),
        {"max_evals": 1000 * (problem.d + 2), **problem.options},
    )
    fit = qbvi.fit(lambda x: problem.noisy(x, rng), prior, seed=seed, **options)
    seconds = time.perf_counter() - start
    mean, cov = (np.asarray(part) for part in fit.unconstrained)
    evidence = bound(problem, mean, cov)[1]
    elbo = exact_bound(problem, fit)
    top = bound(problem, *best_of(problem, options))[0]
    return {
        "evals": fit.n_evals, "each": fit.n_evals / (problem.d + 2), "converged": fit.converged, "gap": top - elbo,
        "elbo": fit.elbo - elbo, "elbo_z": (fit.elbo - elbo) / fit.elbo_se, "elbo_se": fit.elbo_se,
        "evidence": fit.evidence - evidence, "evidence_se": fit.evidence_se, "missing": fit.missing,
        "true": evidence - elbo, "predicted": fit.trace.gap[-1], "khat": fit.khat,
        "said": judge_khat(fit.khat, fit.record.khat_draws, fit.missing).name, "seconds": seconds,
        "reason": fit.stop_reason, "notes": fit.notes,
    }  # fmt: skip


_BEST: dict[str, tuple[Floats, Floats]] = {}


def best_of(problem: Problem, options: dict[str, Any]) -> tuple[Floats, Floats]:
    """The best member of the problem's family, computed once."""
    key = f"{problem.name} {problem.d}"
    if key not in _BEST:
        _BEST[key] = best(problem)
        if options.get("family") == "diagonal":  # of a Gaussian: the same mean and the diagonal of the precision
            mean, cov = _BEST[key]
            _BEST[key] = mean, np.diag(1 / np.diag(np.linalg.inv(cov)))
    return _BEST[key]


def main() -> None:
    """Print one line for each fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    print(
        "problem              d seed evals /(d+2) conv     gap  pred. | bound err (z)    | evidence err +- se  | missing true  | khat"
    )
    for problem in problems():
        if arguments.half not in ("", problem.half) or arguments.only not in problem.name:
            continue
        for seed in range(arguments.seeds):
            r = run(problem, seed)
            print(
                f"{problem.half} {problem.name:<18} {problem.d} {seed:>4} {r['evals']:>5} {r['each']:>6.0f} {'yes' if r['converged'] else 'no ':>4} "
                f"{r['gap']:7.4f} {r['predicted']:6.3f} | {r['elbo']:7.3f} ({r['elbo_z']:5.1f}) | {r['evidence']:7.3f} +- {r['evidence_se']:7.3f} | "
                f"{r['missing']:6.3f} {r['true']:6.3f} | {r['khat']:5.2f} {r['said']:<10} {r['seconds']:4.1f}s",
                flush=True,
            )
            if arguments.verbose or not r["converged"]:
                print("     ", r["reason"], *r["notes"], sep=" / ")


if __name__ == "__main__":
    main()
