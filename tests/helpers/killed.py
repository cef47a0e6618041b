"""A fit that is killed with SIGKILL at twenty moments and resumed each time; run as a script, prints what came of it as JSON.

A script, and not part of a test, because it forks: that is quick and safe only in a process without threads.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

import qbvi
from qbvi.checkpoint import file

METHODS = {
    "regression": {"method": qbvi.Regression(tol=1e-6), "max_evals": 700},
    "qbvi": {"method": qbvi.QBVI(n_samples=40, stop=qbvi.MaxIterations(12), n_fresh=60)},
    "mini-batches": {
        "method": qbvi.QBVI(n_samples=40, stop=qbvi.MaxIterations(12), n_fresh=60),
        "data": np.arange(30.0),
        "batch_size": 10,
    },
}


lives_for = None  # evaluations of this process, after which it kills itself


class Logged:
    """A log-likelihood that writes a line for each evaluation it has finished."""

    def __init__(self, log):
        self.log = log

    def __call__(self, theta, rows=None):
        global lives_for
        if lives_for is not None:
            lives_for -= 1
            if lives_for < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.001)
        value = -np.sum((theta - 1) ** 2) - 0.1 * np.sum(theta**4) - 0.3 * theta[0] * theta[1] ** 2
        if rows is not None:
            value += 0.01 * np.sum(np.cos(rows) * theta[0])
        file = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, theta.tobytes().hex().encode() + b"\n")
        os.close(file)
        return value


def fit(function, options, **more):
    return qbvi.fit(function, qbvi.Normal(0, 2, shape=4), seed=3, **options, **more)


def live(folder, options, evaluations=None, seconds=None):
    """Run the fit in a child until it ends, kills itself, or is killed; return whether it ended."""
    global lives_for
    lives_for = evaluations
    # A life that is cut by count writes a state after every step, one that is cut by time as many as it may.
    file._STATES = 1e9 if evaluations is not None else 0.04
    child = os.fork()
    if not child:
        result = fit(Logged(folder / "log"), options, checkpoint=folder / "run.qbvi")
        result.save(folder / "result.npz")
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        return True
    return False


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def reported(result):
    return [result.elbo, result.elbo_se, result.khat]


def main(name, folder):
    folder, options, rng = Path(folder), METHODS[name], np.random.default_rng(11)
    whole = fit(Logged(folder / "whole"), options)
    kills, last_lines = 0, []
    for _ in range(10):
        for moment in ({"evaluations": int(rng.integers(0, 15))}, {"seconds": float(rng.uniform(0.002, 0.04))}):
            kills += not live(folder, options, **moment)
            if "seconds" in moment:
                last_lines += lines(folder / "log")[-1:]
    ended = live(folder, options)
    result = qbvi.load(folder / "result.npz")
    extra = Counter(lines(folder / "log")) - Counter(lines(folder / "whole"))
    same = all(
        np.array_equal(result.trace[key], whole.trace[key], equal_nan=True)
        for key in whole.trace.names()
        if key != "seconds"
    )
    print(
        json.dumps(
            {
                "kills": kills,
                "ended": ended,
                "same": same
                and np.array_equal(result.q, whole.q)
                and np.array_equal(reported(result), reported(whole), equal_nan=True),
                "n_evals": [result.n_evals, whole.n_evals, len(lines(folder / "whole"))],
                "paid twice": sum(extra.values()),
                "but not in flight": sum((extra - Counter(last_lines)).values()),
                "never paid": sum((Counter(lines(folder / "whole")) - Counter(lines(folder / "log"))).values()),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
