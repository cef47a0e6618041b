"""Bytes and seconds of a step of `qbvi.ShardedLikelihood` on a Dask cluster on this machine, a model of them, and what it says for a large cluster.

A step sends S points of d numbers to P parts, which hold N rows of d + 1 numbers, and brings back S numbers from each part. The model:

    bytes   = points S d 8 (1 + W)  +  parts P (S 8 + b)
    seconds = a + c P + r N S / W

with W workers; b is a median, a, c and r are least-squares estimates from the measurements. Bytes are counted on the loopback device, where other programs may talk too: the median of
the steps is taken. Other work on the machine only adds to the seconds: the quickest step counts. Run: ``python benchmarks/sharded.py``.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import dask
import numpy as np
import psutil
from distributed import Client, LocalCluster

import qbvi

WORKERS = 2
STEPS = 15
GRID = [  # points, dimensions, parts, rows in all
    (10, 5, 4, 4_000),
    (40, 5, 4, 4_000),
    (160, 5, 4, 4_000),
    (40, 50, 4, 4_000),
    (40, 5, 16, 16_000),
    (40, 5, 64, 64_000),
    (40, 5, 256, 256_000),
    (10, 5, 4, 1_000_000),
    (40, 5, 4, 1_000_000),
    (40, 5, 16, 4_000_000),
]


class Cost(NamedTuple):
    """What one step took."""

    s: int
    d: int
    parts: int
    rows: int
    bytes: float
    seconds: float


def log_likelihood(theta: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Gaussian regression, a thousand rows at a time."""
    total = np.zeros(len(theta))
    for rows in np.array_split(part, max(1, len(part) // 1000)):
        total -= 0.5 * ((rows[:, -1] - theta @ rows[:, :-1].T) ** 2).sum(axis=1)
    return total


def made(k: int, rows: int, d: int) -> np.ndarray:
    """Rows of a part, made where it lies."""
    return np.random.default_rng(k).standard_normal((rows, d + 1))


def measure(client: Client, s: int, d: int, parts: int, rows: int) -> Cost:
    """Median bytes and least seconds of a step."""
    lie = client.map(made, range(parts), rows=rows // parts, d=d, pure=False)
    likelihood = qbvi.ShardedLikelihood(log_likelihood, lie, client=client)
    theta = np.random.default_rng(1).standard_normal((s, d))
    likelihood(theta)
    seen = []
    for _ in range(STEPS):
        before, start = psutil.net_io_counters(pernic=True)["lo"].bytes_sent, time.perf_counter()
        likelihood(theta)
        seen.append((psutil.net_io_counters(pernic=True)["lo"].bytes_sent - before, time.perf_counter() - start))
    volumes, seconds = zip(*seen, strict=True)
    return Cost(s, d, parts, rows, float(np.median(volumes)), min(seconds))


def payload(cost: Cost, workers: int) -> int:
    """Bytes of the numbers themselves."""
    return 8 * cost.s * cost.d * (1 + workers) + 8 * cost.s * cost.parts


def fitted(costs: list[Cost]) -> tuple[float, np.ndarray]:
    """Bytes b that go with a part, and the coefficients a, c, r of the seconds."""
    per_part = np.median([(cost.bytes - payload(cost, WORKERS)) / cost.parts for cost in costs if cost.parts >= 16])
    design = np.array([[1.0, cost.parts, cost.rows * cost.s / WORKERS] for cost in costs])
    seconds = np.array([cost.seconds for cost in costs])
    weights = 1 / seconds  # relative errors
    return float(per_part), np.linalg.lstsq(design * weights[:, None], seconds * weights, rcond=None)[0]


def main() -> None:
    """Print the measurements, the model, and the projection."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    options = {"n_workers": WORKERS, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    still = dask.config.set({"distributed.scheduler.work-stealing": False})  # no part moves while we count
    with still, LocalCluster(**options) as cluster, Client(cluster) as client:
        costs = [measure(client, *row) for row in GRID]
    per_part, (a, c, r) = fitted(costs)
    print(f"{'S':>5s}{'d':>5s}{'parts':>7s}{'rows':>12s}{'kB/step':>10s}{'model':>9s}{'ms/step':>10s}{'model':>9s}")
    for cost in costs:
        volume = payload(cost, WORKERS) + per_part * cost.parts
        seconds = a + c * cost.parts + r * cost.rows * cost.s / WORKERS
        print(
            f"{cost.s:5d}{cost.d:5d}{cost.parts:7d}{cost.rows:12,d}{cost.bytes / 1e3:10.1f}{volume / 1e3:9.1f}"
            f"{1e3 * cost.seconds:10.1f}{1e3 * seconds:9.1f}"
        )
    print(
        f"b = {per_part:,.0f} bytes per part, a = {1e3 * a:.1f} ms, c = {1e3 * c:.2f} ms per part, r = {1e9 * r:.2f} ns per row and point"
    )
    print("projected, not measured:")
    for workers, parts, rows in ((10, 40, 10**8), (100, 200, 10**9), (1000, 1000, 10**9)):
        cost = Cost(40, 5, parts, rows, 0.0, 0.0)
        volume = payload(cost, workers) + per_part * parts
        seconds = (a, c * parts, r * rows * cost.s / workers)
        shares = ", ".join(
            f"{name} {value:.3g} s" for name, value in zip(("fixed", "scheduling", "computing"), seconds, strict=True)
        )
        print(
            f"  {workers:5,d} workers, {parts:5,d} parts, {rows:.0e} rows, S = 40, d = 5: {volume / 1e6:.2f} MB, {sum(seconds):.3g} s ({shares})"
        )


if __name__ == "__main__":
    main()
