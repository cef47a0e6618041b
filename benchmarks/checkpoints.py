"""What a checkpoint costs: the time of a fit with one over that without, and the size of its files.

    python benchmarks/checkpoints.py

Each line is the median of several fits of a correlated quartic in d dimensions, with a function that takes next to no time (the worst case
for a checkpoint) or about a millisecond.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

import qbvi

CASES = [
    ("auto, d = 2", 2, {}, 0.0),
    ("auto, d = 10", 10, {"max_evals": 1500}, 0.0),
    ("auto, d = 30", 30, {"max_evals": 3000}, 0.0),
    ("auto, d = 10, 1 ms a call", 10, {"max_evals": 1500}, 1e-3),
    ("paper, 100 x 200, d = 10", 10, {"method": qbvi.paper(stop=qbvi.MaxIterations(200))}, 0.0),
]


def target(d, seconds):
    """A log-likelihood of d dimensions that takes some time."""
    precision = np.eye(d) + 0.5

    def function(theta):
        if seconds:
            time.sleep(seconds)
        return -0.5 * theta @ precision @ theta - 0.05 * np.sum(theta**4)

    return function


def timed(function, d, options, checkpoint=None):
    """Seconds of one fit, and its number of evaluations and steps."""
    start = time.perf_counter()
    fit = qbvi.fit(function, qbvi.Normal(0, 2, shape=d), seed=1, checkpoint=checkpoint, **options)
    return time.perf_counter() - start, fit


def main():
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print(
        f"{'fit':28} {'evaluations':>11} {'steps':>6} {'without':>9} {'with':>9} {'more':>8} {'per value':>10} {'file':>9}"
    )
    for name, d, options, seconds in CASES:
        function = target(d, seconds)
        timed(function, d, options)  # warm
        without, with_one = [], []
        for _ in range(repeats):
            without.append(timed(function, d, options)[0])
            with tempfile.TemporaryDirectory() as folder:
                took, fit = timed(function, d, options, Path(folder) / "run")
                with_one.append(took)
                size = os.path.getsize(Path(folder) / "run")
        a, b = np.median(without), np.median(with_one)
        print(
            f"{name:28} {fit.n_evals:11,} {fit.report.n_iterations:6,} {a:7.3f} s {b:7.3f} s {100 * (b / a - 1):6.1f} % "
            f"{1e6 * (b - a) / fit.n_evals:7.1f} us {size / 1e3:6.0f} kB",
            flush=True,
        )


if __name__ == "__main__":
    main()
