"""Evaluations where most parameters do not interact: varying intercepts of many groups, beside dense posteriors.

For each model and seed: evaluations at the end, whether the fit says that it converged, nats below the best Gaussian with their
standard error, and seconds of CPU. The best Gaussian of a hierarchical model comes from its exact gradients and Hessians at 2^12
draws of the Gaussian, which the fits do not have.

Run: ``python benchmarks/structure.py [--only normal-40 bernoulli-40] [--seeds 3] [--seconds 600]``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

import qbvi

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from problems import _normals, sampled_gap

from oracles import GaussianTarget, LogisticRegression

Array = NDArray[np.float64]
HYPER = ("mu", "log_tau", "log_sigma", "slope", "of_groups")
PRIOR_SD = {"mu": 5.0, "log_tau": 1.0, "log_sigma": 1.0, "slope": 2.0, "of_groups": 2.0}


class Case(NamedTuple):
    """A vectorised log joint or log-likelihood with its prior, and the gap of any Gaussian in nats."""

    name: str
    function: Callable[..., Any]
    prior: Any
    gap: Callable[[Array, Array], tuple[float, float]]
    d: int


@dataclass(frozen=True)
class VaryingIntercepts:
    """Outcomes of groups whose intercepts vary: ``mean = intercept[group] + slope x``.

    The intercepts are N(mu + of_groups w[group], tau^2). If the model is not centred, the parameters are their standardised
    values. An observation, or a prior term, depends on at most six parameters: this is the structure.
    """

    groups: int
    sizes: tuple[int, ...]
    is_normal: bool = True
    is_centred: bool = True
    tau: float = 1.0
    sigma: float = 1.0
    has_group_predictor: bool = False
    seed: int = 0

    @cached_property
    def data(self) -> tuple[Array, Array, NDArray[np.int64], Array]:
        """Outcomes, predictor, group of each, and predictor of the groups."""
        rng = np.random.default_rng(self.seed)
        group = np.repeat(np.arange(self.groups), self.sizes)
        x, w = rng.standard_normal(len(group)), rng.standard_normal(self.groups)
        intercept = 0.5 + 0.7 * w * self.has_group_predictor + self.tau * rng.standard_normal(self.groups)
        eta = intercept[group] + 0.8 * x
        noisy = eta + self.sigma * rng.standard_normal(len(x))
        return noisy if self.is_normal else (rng.random(len(x)) < expit(eta)).astype(float), x, group, w

    @property
    def hyper(self) -> tuple[str, ...]:
        """Names of the parameters that groups share."""
        is_there = {"log_sigma": self.is_normal, "of_groups": self.has_group_predictor}
        return tuple(name for name in HYPER if is_there.get(name, True))

    @property
    def d(self) -> int:
        """Number of parameters."""
        return len(self.hyper) + self.groups

    @property
    def prior(self) -> dict[str, Any]:
        """Independent priors; that of centred intercepts is part of the function."""
        top = {name: qbvi.Normal(0, PRIOR_SD[name]) for name in self.hyper}
        return top | {"effect": qbvi.Flat(self.groups) if self.is_centred else qbvi.Normal(0, 1, shape=self.groups)}

    def log_likelihood(self, p: dict[str, Array]) -> Array:
        """Of each draw (S,), with the density of centred intercepts."""
        y, x, group, w = self.data
        get = lambda name: np.asarray(p.get(name, np.zeros(len(p["mu"])))).reshape(-1, 1)
        centre = get("mu") + get("of_groups") * w
        tau, effect = np.exp(get("log_tau")), np.asarray(p["effect"])
        z = (effect - centre) / tau if self.is_centred else effect
        intercept = effect if self.is_centred else centre + tau * effect
        eta = intercept[:, group] + get("slope") * x
        if self.is_normal:
            s = get("log_sigma")
            value = (-s - 0.5 * ((y - eta) * np.exp(-s)) ** 2).sum(1)
        else:
            value = (y * eta - np.logaddexp(0, eta)).sum(1)
        return value + ((-0.5 * z**2 - get("log_tau")).sum(1) if self.is_centred else 0.0)

    def named(self, theta: Array) -> dict[str, Array]:
        """Columns of the flat parameters by name."""
        k = len(self.hyper)
        return {name: theta[:, i] for i, name in enumerate(self.hyper)} | {"effect": theta[:, k:]}

    def log_joint(self, theta: Array) -> Array:
        """Log joint of flat parameters (S, d), up to the constants of the priors."""
        p = self.named(theta)
        prior = -0.5 * sum((p[name] / PRIOR_SD[name]) ** 2 for name in self.hyper)
        return self.log_likelihood(p) + prior - (0.0 if self.is_centred else 0.5 * (p["effect"] ** 2).sum(1))

    def expected_derivatives(self, theta: Array) -> tuple[Array, Array]:
        """Means over the draws (S, d) of gradient (d,) and Hessian (d, d) of the log joint."""
        k, d = len(self.hyper), self.d
        g, H = np.zeros(d), np.zeros((d, d))
        mean = theta.mean(0)
        for i, name in enumerate(self.hyper):
            g[i] -= mean[i] / PRIOR_SD[name] ** 2
            H[i, i] -= PRIOR_SD[name] ** -2
        if not self.is_centred:
            g[k:] -= mean[k:]
            H[range(k, d), range(k, d)] -= 1.0
        for local_g, local_H, group in self._local(
            theta
        ):  # (k + 1, m) and (k + 1, k + 1, m) for m terms of these groups
            g[:k] += local_g[:k].sum(1)
            np.add.at(g, k + group, local_g[k])
            H[:k, :k] += local_H[:k, :k].sum(2)
            for i in range(k):
                row = np.bincount(group, local_H[i, k], minlength=self.groups)
                H[i, k:] += row
                H[k:, i] += row
            H[range(k, d), range(k, d)] += np.bincount(group, local_H[k, k], minlength=self.groups)
        return g, H

    def _local(self, theta: Array) -> Iterator[tuple[Array, Array, Array]]:
        """Mean derivatives of each term in the parameters that it depends on: the shared ones and one effect."""
        if self.is_centred:
            yield *self._prior_terms(theta), np.arange(self.groups)
        n = len(self.data[0])
        parts = np.array_split(theta, max(1, len(theta) * n // 4_000_000))
        sums = [self._outcome_terms(part) for part in parts]
        weights = [len(part) / len(theta) for part in parts]
        g, H = (sum(w * x[i] for w, x in zip(weights, sums, strict=True)) for i in (0, 1))
        yield g, H, self.data[2]

    def _prior_terms(self, theta: Array) -> tuple[Array, Array]:
        """Mean gradient (k + 1, groups) and Hessian of the log density of each centred effect."""
        p, at, k, w = self.named(theta), {n: i for i, n in enumerate(self.hyper)}, len(self.hyper), self.data[3]
        tau, of_groups = np.exp(p["log_tau"])[:, None], p.get("of_groups", np.zeros(len(theta)))[:, None]
        z = (p["effect"] - p["mu"][:, None] - of_groups * w) / tau
        one = np.ones_like(z)
        slopes = {at["mu"]: -one / tau, at["log_tau"]: -z, k: one / tau}
        if "of_groups" in at:
            slopes[at["of_groups"]] = -w / tau
        g, H = np.zeros((k + 1, self.groups)), np.zeros((k + 1, k + 1, self.groups))
        for i, a in slopes.items():
            g[i] += (-z * a).mean(0)
            for j, b in slopes.items():
                second = -a if j == at["log_tau"] else -b if i == at["log_tau"] else 0.0
                H[i, j] += (-a * b - z * second).mean(0)
        g[at["log_tau"]] -= 1.0
        return g, H

    def _outcome_terms(self, theta: Array) -> tuple[Array, Array]:
        """Mean gradient (k + 1, n) and Hessian of the log density of each outcome."""
        y, k, at = self.data[0], len(self.hyper), {n: i for i, n in enumerate(self.hyper)}
        eta, slopes, bends = self._predictor(self.named(theta))
        g, H = np.zeros((k + 1, len(y))), np.zeros((k + 1, k + 1, len(y)))
        if self.is_normal:
            scale, s = np.exp(-2 * self.named(theta)["log_sigma"])[:, None], at["log_sigma"]
            first, second, square = scale * (y - eta), -scale * np.ones_like(eta), scale * (y - eta) ** 2
            g[s] += (square - 1).mean(0)
            H[s, s] -= 2 * square.mean(0)
            for i, a in slopes.items():
                H[i, s] = H[s, i] = -2 * (first * a).mean(0)
        else:
            first, second = y - expit(eta), -expit(eta) * expit(-eta)
        for i, a in slopes.items():
            g[i] += (first * a).mean(0)
            for j, b in slopes.items():
                H[i, j] += (second * a * b + first * bends.get((i, j), 0.0)).mean(0)
        return g, H

    def _predictor(self, p: dict[str, Array]) -> tuple[Array, dict[int, Array], dict[tuple[int, int], Array]]:
        """The predictor of each outcome, with its first and second derivatives by parameter."""
        _, x, group, w = self.data
        at, k = {n: i for i, n in enumerate(self.hyper)}, len(self.hyper)
        eta = p["effect"][:, group] + p["slope"][:, None] * x
        one = np.ones_like(eta)
        slopes = {at["slope"]: one * x, k: one}
        if self.is_centred:
            return eta, slopes, {}
        tau, t = np.exp(p["log_tau"])[:, None], at["log_tau"]
        shift = tau * p["effect"][:, group]
        eta = p["mu"][:, None] + shift + p["slope"][:, None] * x
        slopes |= {k: one * tau, at["mu"]: one, t: shift}
        if "of_groups" in at:
            eta = eta + p["of_groups"][:, None] * w[group]
            slopes[at["of_groups"]] = one * w[group]
        return eta, slopes, {(t, t): shift, (t, k): one * tau, (k, t): one * tau}

    def best(self, steps: int = 200) -> tuple[Array, Array]:
        """Mean and covariance of the best Gaussian, by its natural gradient from exact derivatives."""
        z = _normals(self.d)
        mean, cov = np.zeros(self.d), 0.01 * np.eye(self.d)
        for step in range(steps):
            draws = mean + (z if step > 30 else z[:256]) @ np.linalg.cholesky(cov).T
            g, H = self.expected_derivatives(draws)
            rate = min(0.6, 0.1 * 1.15**step)  # a full step may overshoot by as much as it gains
            precision = np.linalg.inv(cov)
            lowest = np.linalg.eigvalsh(-H).min()
            target = -H if lowest > 0 else -H + (1e-3 - lowest) * np.eye(self.d)
            precision += rate * (target - precision)
            cov = np.linalg.inv(precision)
            move = rate * cov @ g
            length = np.sqrt(move @ precision @ move)
            mean = mean + move * min(1.0, 2.0 * np.sqrt(self.d) / length)
            if step > 40 and length < 1e-5:
                break
        return mean, cov

    def case(self, name: str) -> Case:
        """The model as a case of the benchmark."""
        best = self.best()
        return Case(
            name, self.log_likelihood, self.prior, lambda m, S: tuple(sampled_gap(self.log_joint, best, m, S)), self.d
        )


def _uneven(groups: int, mean: float, seed: int) -> tuple[int, ...]:
    """Sizes of groups from one to many, as in a survey."""
    rng = np.random.default_rng(seed)
    return tuple(int(n) for n in 1 + rng.poisson(rng.gamma(0.8, (mean - 1) / 0.8, groups)))


def hierarchical(seed: int) -> dict[str, VaryingIntercepts]:
    """The hierarchical models; the seed draws their data."""
    return {
        "normal-12": VaryingIntercepts(12, (10,) * 12, seed=seed),
        "normal-20": VaryingIntercepts(20, (10,) * 20, seed=seed),
        "normal-40": VaryingIntercepts(40, (10,) * 40, seed=seed),
        "uneven-40": VaryingIntercepts(40, _uneven(40, 8.0, seed), tau=0.5, seed=seed),
        "bernoulli-40": VaryingIntercepts(40, (20,) * 40, is_normal=False, seed=seed),
        "not-centred-40": VaryingIntercepts(40, (5,) * 40, is_centred=False, tau=0.5, seed=seed),
        "bernoulli-not-centred-40": VaryingIntercepts(
            40, (10,) * 40, is_normal=False, is_centred=False, tau=0.7, seed=seed
        ),
        "radon-85": VaryingIntercepts(
            85, _uneven(85, 10.8, seed), tau=0.3, sigma=0.75, has_group_predictor=True, seed=seed
        ),
        "normal-200": VaryingIntercepts(200, (10,) * 200, seed=seed),
        "bernoulli-200": VaryingIntercepts(200, (20,) * 200, is_normal=False, seed=seed),
    }


def dense(seed: int) -> dict[str, Callable[[], Case]]:
    """Posteriors without structure, where it must not cost anything."""
    return {
        "logistic-25": lambda: _logistic(25, 1000, seed),
        "logistic-35": lambda: _logistic(35, 750, seed),
        "logistic-50": lambda: _logistic(50, 3000, seed),
        "gaussian-30": lambda: _gaussian(30, seed),
        "gaussian-60": lambda: _gaussian(60, seed),
    }


def _logistic(d: int, n: int, seed: int) -> Case:
    rng = np.random.default_rng([seed, d, n])
    X = np.column_stack(
        [
            np.ones(n),
            rng.standard_normal((n, d - 1)) @ (np.eye(d - 1) + 0.5 / np.sqrt(d) * rng.standard_normal((d - 1, d - 1))),
        ]
    )
    y = (rng.random(n) < expit(X @ rng.standard_normal(d) / np.sqrt(d) * 1.5)).astype(float)
    model = LogisticRegression(X, y, 5.0)
    best = model.best_gaussian().elbo
    return Case(
        f"logistic-{d}",
        model.log_likelihood,
        qbvi.Normal(0, 5.0**0.5, shape=d),
        lambda m, S: (best - model.exact_elbo(m, S), 0.0),
        d,
    )


def _gaussian(d: int, seed: int) -> Case:
    target = GaussianTarget.random(np.random.default_rng([seed, d]), d, 100.0)
    prior = lambda theta: -0.5 * (theta**2).sum(1) - 0.5 * d * np.log(2 * np.pi)
    function = lambda theta: target.log_density(theta) - prior(theta)
    return Case(
        f"gaussian-{d}",
        function,
        qbvi.Normal(0, 1, shape=d),
        lambda m, S: (target.log_scale - target.exact_elbo(m, S), 0.0),
        d,
    )


def cases(names: list[str] | None, seed: int) -> Iterator[Case]:
    """The cases of these names, or all."""
    for name, model in hierarchical(seed).items():
        if names is None or name in names:
            yield model.case(name)
    for name, make in dense(seed).items():
        if names is None or name in names:
            yield make()


def moments(fit: Any) -> tuple[Array, Array]:
    """Mean (d,) and covariance (d, d) of the Gaussian that a fit ends with."""
    family, q = fit.family, fit.q
    return np.asarray(family.mean(q)), np.asarray(family.cov(q))


def main() -> None:
    """Print one row for each fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--budget", type=int, default=None)
    args = parser.parse_args()
    print("| case | d | seed | evaluations | converged | nats off | error | CPU s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for seed in args.seeds:
        for case in cases(args.only, seed):
            print(_row(case, seed, args), flush=True)


def _row(case: Case, seed: int, args: argparse.Namespace) -> str:
    start = time.process_time()
    fit = qbvi.fit(case.function, case.prior, vectorized=True, seed=seed, max_time=args.seconds, max_evals=args.budget)
    took = time.process_time() - start
    nats, error = case.gap(*moments(fit))
    said = "yes" if fit.converged else "no"
    return f"| {case.name} | {case.d} | {seed} | {fit.n_evals:,} | {said} | {nats:.4f} | {error:.4f} | {took:.1f} |"


if __name__ == "__main__":
    main()
