"""What a checkpoint costs: its share of the time of a fit, and the size of its file.

    python benchmarks/checkpoints.py

The functions take next to no time, the worst case for a checkpoint, or about a millisecond. The time is that spent inside of the checkpoint, so
that other work on the machine does not count as its cost.
"""

import os
import tempfile
import time
from pathlib import Path

import numpy as np

import qbvi
from qbvi.checkpoint import Checkpoint

CASES = [
    ("auto, d = 2", 2, {}, 0.0),
    ("auto, d = 10", 10, {"max_evals": 1500}, 0.0),
    ("auto, d = 30", 30, {"max_evals": 3000}, 0.0),
    ("auto, d = 10, 1 ms a call", 10, {"max_evals": 1500}, 1e-3),
    ("paper, 200 steps, d = 10", 10, {"method": qbvi.paper(stop=qbvi.MaxIterations(200))}, 0.0),
]
spent = {"_turned": 0.0, "note": 0.0}  # seconds in states, and in the journal


def clocked(name):
    """Count the time of one of the checkpoint's methods."""
    method = getattr(Checkpoint, name)

    def timed(self, *arguments):
        start = time.perf_counter()
        try:
            return method(self, *arguments)
        finally:
            spent[name] += time.perf_counter() - start

    setattr(Checkpoint, name, timed)


def target(d, seconds):
    """A log-likelihood of d dimensions that takes some time."""
    precision = np.eye(d) + 0.5

    def function(theta):
        if seconds:
            time.sleep(seconds)
        return -0.5 * theta @ precision @ theta - 0.05 * np.sum(theta**4)

    return function


def main():
    """Print the table."""
    for name in spent:
        clocked(name)
    print(
        f"{'fit':26} {'evaluations':>11} {'steps':>6} {'seconds':>8} {'states':>8} {'journal':>8} {'a value':>8} {'file':>8}"
    )
    for name, d, options, seconds in CASES:
        qbvi.fit(target(d, 0.0), qbvi.Normal(0, 2, shape=d), seed=1, max_evals=500)  # warm
        spent.update(dict.fromkeys(spent, 0.0))
        with tempfile.TemporaryDirectory() as folder:
            path, start = Path(folder) / "run", time.perf_counter()
            fit = qbvi.fit(target(d, seconds), qbvi.Normal(0, 2, shape=d), seed=1, checkpoint=path, **options)
            took, size = time.perf_counter() - start, os.path.getsize(path)
        print(
            f"{name:26} {fit.n_evals:11,} {fit.record.n_iterations:6,} {took:8.2f} {100 * spent['_turned'] / took:6.1f} % "
            f"{100 * spent['note'] / took:6.1f} % {1e6 * spent['note'] / fit.n_evals:5.1f} us {size / 1e3:5.0f} kB",
            flush=True,
        )


if __name__ == "__main__":
    main()
