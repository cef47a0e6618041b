"""Budgets and hangs: slow, hung and dying calls, workers and clusters."""

import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import qbvi
from attacks import attack
from clocks import standing_still
from faults import Target, wait_until_gone
from qbvi.evaluate.calls import Calls
from qbvi.evaluate.executors import open_runner
from qbvi.evaluate.pool import Processes

PRIOR = qbvi.Normal(1, 2, shape=3)
METHODS = (
    "auto",
    "ridge",
    "paper",
    qbvi.QBVI(n_samples=10, stop=(), n_fresh=50),
)


@attack("max_time: calls that take random times", short=5, long=100)
def slow_calls(rng, folder):
    """At most one call begins before the deadline and ends after it, and none begins after it."""
    most, max_time = float(rng.uniform(0.01, 2.0)), float(rng.uniform(1.0, 100.0))
    method = METHODS[rng.integers(len(METHODS))]
    with standing_still() as clock:
        function = clock.costing(Target(), lambda number: most * rng.random())
        began = clock.now
        try:
            fit = qbvi.fit(function, PRIOR, method=method, max_time=max_time, max_evals=2000, seed=1)
            if fit.n_evals != function.n_calls:
                return f"{fit.n_evals} evaluations counted, {function.n_calls} made"
        except qbvi.EvaluationError as error:
            if "must allow for the first step" not in str(error):
                raise
    late = clock.now - began - max_time
    return f"{late:.3g} s late, the longest call takes {most:.3g} s" if late > most else ""


@attack("max_time: a run cut anywhere resumes to the same bits", short=2, long=40)
def cut_and_resumed(rng, folder):
    options = {"method": qbvi.QBVI(n_samples=10, stop=qbvi.MaxIterations(8), n_fresh=20), "seed": 1}
    target, plain = Target(), Target.__call__
    whole = qbvi.fit(target, PRIOR, **options)

    def call(self, theta):
        time.monotonic.__self__.now += 0.2
        time.monotonic.__self__.points.append(theta.tobytes())
        return plain(self, theta)

    with standing_still() as clock:
        Target.__call__ = call
        try:
            for max_time in (*np.sort(rng.uniform(2.5, 15.0, size=3)).tolist(), 1e6):
                fit = qbvi.fit(target, PRIOR, max_time=max_time, checkpoint=folder / "run", **options)
        finally:
            Target.__call__ = plain
    if not np.array_equal(fit.q, whole.q) or fit.elbo != whole.elbo:
        return "another result than without the cuts"
    return "" if len(set(clock.points)) == len(clock.points) else "points were evaluated twice"


@attack("max_time: hung calls in processes of our own", short=1, long=15)
def hung_processes(rng, folder):
    hung = set(rng.choice(12, size=int(rng.integers(1, 4)), replace=False).tolist())

    def function(x):
        if int(x[0]) in hung:
            time.sleep(1000)
        return x[0]

    blocks = [np.array([[float(i)]]) for i in range(12)]
    with Processes(Calls(function), workers=2) as pool:
        made = dict(pool.run(blocks, (), time.monotonic() + 0.5))
        again = dict(pool.run([block for i, block in enumerate(blocks) if i not in hung], ()))
    if hung & set(made):
        return f"hung calls gave values: {hung & set(made)}"
    return "" if len(again) == 12 - len(hung) else "the workers were not replaced"


@attack("workers that die leave no children", short=1, long=15)
def orphans(rng, folder):
    n, log = int(rng.integers(1, 4)), str(folder / "children")

    def function(x):
        for _ in range(n):
            child = subprocess.Popen(["sleep", "1000"])
            with open(log, "a") as file:
                file.write(f"{child.pid}\n")
        os.kill(os.getpid(), signal.SIGKILL)

    with Processes(Calls(function), workers=1) as pool:
        ((_, (outcome,)),) = pool.run([np.ones((1, 1))], ())
    if outcome.failure.kind != "died":
        return repr(outcome.failure)
    with open(log) as file:
        left = wait_until_gone([int(line) for line in file])
    return f"{len(left)} children left" if left else ""


@attack("max_time: hung calls in threads", short=1, long=20)
def hung_threads(rng, folder):
    release = threading.Event()
    hung = int(rng.integers(5))

    def function(x):
        if x[0] == hung:
            release.wait(1000)
        return x[0]

    with ThreadPoolExecutor(2) as threads, open_runner(Calls(function), threads) as runner:
        try:
            made = list(runner.run([np.array([[float(i)]]) for i in range(5)], (), time.monotonic() + 0.2))
            return f"{len(made)} values, and no error"
        except qbvi.EvaluationError as error:
            return "" if "abandoned" in str(error) else repr(error)
        finally:
            release.set()


@attack("Ask: values and noise of any size", short=4, long=200)
def extreme_values(rng, folder):
    """Ask always has a point to ask for, which is finite, or is done."""
    sizes = (1.0, 1e10, 1e150, 1e300, 1.7e308, np.inf, np.nan)
    noises = (0.0, 0.0, 0.1, 1e10, 1e300, np.inf, np.nan)
    size, noise = sizes[rng.integers(len(sizes))], noises[rng.integers(len(noises))]
    first = int(rng.integers(0, 80))  # the value from which on they are extreme
    opt = qbvi.Ask(qbvi.Normal(0, 2, shape=2), max_evals=200, seed=1, on_failure="exclude")
    told = 0
    while not opt.done:
        points = opt.ask()
        if not len(points):
            return "nothing to ask for, and not done"
        if not np.isfinite(points.values).all():
            return "asked for a point that is not finite"
        values = -0.5 * np.sum((points.values - 1) ** 2, axis=1)
        is_extreme = told + np.arange(len(points)) >= first
        told += len(points)
        try:
            with np.errstate(all="ignore"):
                values = np.where(is_extreme, size * rng.standard_normal(len(points)), values)
                opt.tell(points, values, np.where(is_extreme, noise, 0.0))
        except qbvi.EvaluationError:
            if not opt.done:
                return "an error inside a step, and not done"
    return "" if len(opt.ask()) == 0 else "done, with points to ask for"
