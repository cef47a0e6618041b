"""What parallel calls gain and cost: two processes of qbvi's own, and two Dask workers, beside calls made one after the other.

The function sleeps, so that other work on the machine matters less, and the quickest step counts; a call's own time is measured, as a sleep of 0.1 ms takes longer. Efficiency is
the ideal time (serial / 2) over the time taken, steps of 40 points. Run: ``python benchmarks/parallel.py``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from qbvi.evaluate import BlackBox
from qbvi.evaluate.calls import Calls
from qbvi.evaluate.executors import open_runner

WORKERS = 2
POINTS = np.random.default_rng(1).standard_normal((40, 20))
CALL_SECONDS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)


class Sleeps:
    """A log-likelihood that takes a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, theta: np.ndarray) -> float:
        """Sleep, then give a value."""
        if self.seconds:
            time.sleep(self.seconds)
        return -0.5 * float(theta @ theta)


@contextlib.contextmanager
def dask_client() -> Iterator[Any]:
    """A cluster on loopback, or None where the extra is not installed."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        yield None
        return
    options = {"n_workers": WORKERS, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        yield client


def seconds_per_step(function: Sleeps, executor: Any) -> float:
    """Time of the quickest step after one to warm up; the start of the workers is not in it."""
    steps = 5 if function.seconds >= 0.1 else 20
    with open_runner(Calls(function), executor) as runner:
        box = BlackBox(function, runner=runner)
        times = []
        for _ in range(steps + 1):
            start = time.perf_counter()
            box(POINTS)
            times.append(time.perf_counter() - start)
    return min(times[1:])


def main() -> None:
    """Print the table."""
    n = len(POINTS)
    print(
        f"{n} points per step, {WORKERS} workers; milliseconds per call, efficiency against ideal, overhead per evaluation"
    )
    print(
        f"{'call':>9s}{'serial':>10s} | {'processes':>10s}{'efficiency':>12s}{'overhead':>11s} | {'Dask':>8s}{'efficiency':>12s}{'overhead':>11s}"
    )
    with dask_client() as client:
        for seconds in CALL_SECONDS:
            serial = seconds_per_step(Sleeps(seconds), None)
            line = f"{1e3 * seconds:6.1f} ms{1e3 * serial / n:10.3f}"
            for executor, width in ((WORKERS, 10), (client, 8)):
                if executor is None:
                    continue
                taken = seconds_per_step(Sleeps(seconds), executor)
                ideal = serial / WORKERS
                line += f" | {1e3 * taken / n:{width}.3f}{ideal / taken:11.0%} {1e6 * (taken - ideal) / n:8.0f} us"
            print(line, flush=True)
    start = time.perf_counter()
    with open_runner(Calls(Sleeps(0.0)), WORKERS):
        print(f"start of {WORKERS} processes, the second time in a program: {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
