"""Regressions in raw units: dollars and kilometres, priors that know nothing of them, starts at zero.

- *Counts, durations and shares* (Poisson, negative binomial, gamma, Weibull, logistic) with a log or logit link, on an income of
  tens of thousands and on kilometres. Coefficients are about 1e-5, and priors have standard deviations of 0.01 to 100: the first
  draws have predictors of thousands. The function is as a user writes it, and overflows there, or returns minus infinity if a
  predictor exceeds 500 (``guarded``). The log evidence is by importance sampling from a Student-t at the mode.
- *Groups*: salaries of groups of two to eight people, with a slope, in units of 1 and 10,000: effects around their mean
  (``centred``), standardised ones (``not-centred``), and centred ones with flat priors of mean and slope (``flat``). The log evidence
  is by quadrature: given both scales the outcomes are normal.

Each cell has the evaluations of the median seed, how many converged, and the largest error of the log evidence in nats.

Run: ``python benchmarks/raw_units.py [--only counts groups] [--seeds 3] [--seconds 60]``.
"""

from __future__ import annotations

import argparse
import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import gammaln

import qbvi

Array = NDArray[np.float64]

TRUE = np.array([0.5, 1.2e-5, -0.003])  # intercept, and slopes of income and kilometres
KINDS = ("Poisson", "negative binomial", "gamma", "Weibull", "logistic")
SHAPE = 3.0  # of the outcomes that have one
LARGEST = 500.0  # predictor beyond which a guarded function returns minus infinity


class Case(NamedTuple):
    """A log-likelihood, its prior, and the log evidence."""

    name: str
    f: Callable[[dict[str, Any]], float]
    prior: dict[str, Any]
    log_evidence: float


def terms(kind: str, y: Array, eta: Array, k: float) -> Array:
    """Log-likelihood of each outcome, as a user writes it: it may overflow."""
    if kind == "Poisson":
        return y * eta - np.exp(eta) - gammaln(y + 1)
    if kind == "negative binomial":
        mean = np.exp(eta)
        return gammaln(y + k) - gammaln(k) - gammaln(y + 1) - k * np.log1p(mean / k) + y * (eta - np.log(k + mean))
    if kind == "gamma":
        return k * np.log(k) - k * eta + (k - 1) * np.log(y) - gammaln(k) - k * y * np.exp(-eta)
    if kind == "Weibull":
        return np.log(k) - k * eta + (k - 1) * np.log(y) - (y * np.exp(-eta)) ** k
    return y * eta - np.logaddexp(0, eta)


def outcomes(kind: str, eta: Array, rng: np.random.Generator) -> Array:
    """Outcomes (n,) of these predictors."""
    draw: dict[str, Callable[[], Any]] = {
        "Poisson": lambda: rng.poisson(np.exp(eta)),
        "negative binomial": lambda: rng.negative_binomial(SHAPE, SHAPE / (SHAPE + np.exp(eta))),
        "gamma": lambda: rng.gamma(SHAPE, np.exp(eta) / SHAPE),
        "Weibull": lambda: np.exp(eta) * rng.weibull(SHAPE, len(eta)),
        "logistic": lambda: rng.random(len(eta)) < 1 / (1 + np.exp(-eta)),
    }
    return np.asarray(draw[kind](), dtype=float)


def counts(kind: str, width: float, *, is_guarded: bool) -> Case:
    """A regression with a log or logit link, and a prior of this width."""
    rng = np.random.default_rng([0, 7])
    x = np.column_stack([np.ones(120), rng.lognormal(10.8, 0.5, 120), rng.uniform(0, 500, 120)])
    y, has_shape = outcomes(kind, x @ TRUE, rng), kind not in ("Poisson", "logistic")

    def log_likelihood(p: dict[str, Any]) -> float:
        eta = p["b0"] + p["income"] * x[:, 1] + p["km"] * x[:, 2]
        if is_guarded and np.any(np.abs(eta) > LARGEST):
            return -np.inf
        with np.errstate(all="ignore"):
            value = float(np.sum(terms(kind, y, eta, p.get("shape", 1.0))))
        return -np.inf if np.isnan(value) else value

    sd = np.array([5.0, width, width])
    prior: dict[str, Any] = dict(zip(("b0", "income", "km"), (qbvi.Normal(0, s) for s in sd), strict=True))
    prior |= {"shape": qbvi.Exponential(0.1)} if has_shape else {}

    def log_joint(u: Array) -> float:
        """Of coefficients in units of the columns, and the log of the shape."""
        beta, shape = u[:3] / unit, float(np.exp(u[3])) if has_shape else 1.0
        value = float(np.sum(terms(kind, y, x @ beta, shape))) - np.log(unit).sum()
        value -= float(np.sum(0.5 * (beta / sd) ** 2 + np.log(sd))) + 1.5 * np.log(2 * np.pi)
        return value + (np.log(0.1) - 0.1 * shape + u[3] if has_shape else 0.0)

    unit = x.std(axis=0) + (x.std(axis=0) == 0)
    start = np.append(TRUE * unit, [np.log(SHAPE)] if has_shape else [])
    name = f"{kind}, prior {width:g}{', guarded' if is_guarded else ''}"
    return Case(name, log_likelihood, prior, sampled_evidence(log_joint, start))


def sampled_evidence(log_joint: Callable[[Array], float], start: Array, n: int = 20_000) -> float:
    """The log evidence by importance sampling from a Student-t at the mode."""
    found = scipy.optimize.minimize(lambda u: -log_joint(u), start, method="BFGS", options={"gtol": 1e-4})
    d, rng, freedom = len(start), np.random.default_rng(0), 5
    factor = 1.2 * np.linalg.cholesky(found.hess_inv)
    z = rng.standard_normal((n, d)) * np.sqrt(freedom / rng.chisquare(freedom, n))[:, None]
    log_q = scipy.stats.multivariate_t(shape=np.eye(d), df=freedom).logpdf(z) - np.log(np.diag(factor)).sum()
    with np.errstate(all="ignore"):
        ratios = np.nan_to_num([log_joint(found.x + factor @ one) for one in z], nan=-np.inf) - log_q
    return float(np.logaddexp.reduce(ratios) - np.log(n))


def groups(kind: str, n_groups: int, unit: float) -> Case:
    """Salaries of groups, in these units."""
    rng = np.random.default_rng([0, n_groups])
    g = np.repeat(np.arange(n_groups), rng.integers(2, 9, n_groups))
    x = rng.uniform(0, 30, len(g))
    effect = rng.normal(0, 0.8, n_groups)
    y = unit * (4 + 0.12 * x + effect[g] + rng.standard_normal(len(g)))
    scales: dict[str, Any] = {"tau": qbvi.HalfNormal(2 * unit), "sigma": qbvi.HalfNormal(3 * unit)}
    flat = {"mu": qbvi.Flat(()), "b": qbvi.Flat(())}
    top = flat if kind == "flat" else {"mu": qbvi.Normal(0, 10 * unit), "b": qbvi.Normal(0, unit)}

    def normal(r: Array, sd: float) -> float:
        return float(np.sum(-0.5 * (r / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)))

    def centred(p: dict[str, Any]) -> float:
        return normal(y - p["a"][g] - p["b"] * x, p["sigma"]) + normal(p["a"] - p["mu"], p["tau"])

    def not_centred(p: dict[str, Any]) -> float:
        return normal(y - p["mu"] - p["tau"] * p["z"][g] - p["b"] * x, p["sigma"])

    is_centred = kind != "not-centred"
    rest = {"a": qbvi.Flat(n_groups)} if is_centred else {"z": qbvi.Normal(0, 1, shape=n_groups)}
    sd = None if kind == "flat" else np.array([10 * unit, unit])
    evidence = evidence_of_groups(y, np.column_stack([np.ones(len(y)), x]), g, unit, sd)
    name = f"{kind}, {n_groups} groups, unit {unit:g}"
    return Case(name, centred if is_centred else not_centred, top | scales | rest, evidence)


def evidence_of_groups(y: Array, W: Array, g: NDArray[np.int64], unit: float, sd: Array | None) -> float:
    """By quadrature over the logs of both scales; flat priors of the coefficients if ``sd`` is None."""
    Z = (g[:, None] == np.arange(g.max() + 1)).astype(float)
    grid = np.log(unit) + np.linspace(-7, 3, 160)

    def given(log_tau: float, log_sigma: float) -> float:
        tau, sigma = np.exp(log_tau), np.exp(log_sigma)
        V = sigma**2 * np.eye(len(y)) + tau**2 * Z @ Z.T
        V += 0.0 if sd is None else (W * sd**2) @ W.T
        L = np.linalg.cholesky(V)
        r = np.linalg.solve(L, y)
        value = -0.5 * r @ r - np.log(np.diag(L)).sum() - 0.5 * len(y) * np.log(2 * np.pi)
        if sd is None:
            Q, R = np.linalg.qr(np.linalg.solve(L, W))
            value += 0.5 * np.sum((Q.T @ r) ** 2) - np.log(np.abs(np.diag(R))).sum() + np.log(2 * np.pi)
        for scale, width in ((tau, 2 * unit), (sigma, 3 * unit)):
            value += 0.5 * np.log(2 / np.pi) - np.log(width) - 0.5 * (scale / width) ** 2 + np.log(scale)
        return float(value)

    values = np.array([[given(t, s) for s in grid[60:]] for t in grid])
    return float(np.logaddexp.reduce(values, axis=None) + 2 * np.log(grid[1] - grid[0]))


def cases(only: list[str]) -> Iterator[Case]:
    """All cases of these parts."""
    if "counts" in only:
        for kind in KINDS:
            for width in (0.01, 1.0, 100.0):
                yield from (counts(kind, width, is_guarded=is_guarded) for is_guarded in (False, True))
    if "groups" in only:
        for kind in ("centred", "not-centred", "flat"):
            yield from (groups(kind, n, unit) for n in (6, 9) for unit in (1.0, 1e4))


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=["counts", "groups"], choices=["counts", "groups"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    print("| regression | evaluations | converged | largest error of the log evidence |")
    print("| --- | --- | --- | --- |")
    for case in cases(options.only):
        evals, n_converged, errors = [], 0, []
        for seed in range(options.seeds):
            try:
                fit = qbvi.fit(case.f, case.prior, seed=seed, max_time=options.seconds, progress=False)
            except qbvi.EvaluationError:
                errors.append(np.inf)
                continue
            evals.append(fit.n_evals)
            n_converged += fit.converged
            errors.append(abs(fit.evidence - case.log_evidence))
        median = f"{np.median(evals):,.0f}" if evals else ""
        print(f"| {case.name} | {median} | {n_converged} of {options.seeds} | {max(errors):.2f} |", flush=True)


if __name__ == "__main__":
    main()
