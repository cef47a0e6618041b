"""Low rank plus a diagonal beside the diagonal and the full covariance: evaluations, seconds, nats.

The target is a Gaussian of low rank plus a diagonal, so KL(q || target) is known exactly:

- ``decades``: scales over two decades, directions 2 to 50 times as wide as them, a mean three
  standard deviations off,
- ``covariance`` or ``precision``: that matrix is D + FF' with normal F.

Run with ``python benchmarks/low_rank.py [--dims 20 50 100] [--rank 3] [--kind decades] [--seed 1]``.
Seconds are CPU time outside of the function. With ``--backend jax``, or another array library, they
are those of a second fit by the clock, with the function.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import qbvi


class Target:
    """A Gaussian log-likelihood in any array library; it times its calls."""

    def __init__(self, d: int, rank: int, kind: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        if kind == "decades":
            s = 10 ** rng.uniform(-1, 1, d)
            F = np.linalg.qr(rng.standard_normal((d, rank)))[0] * np.geomspace(2, 50, rank) ** 0.5
            matrix, mean = s[:, None] * (np.eye(d) + F @ F.T) * s, 3 * s * rng.standard_normal(d)
        else:
            F = rng.standard_normal((d, rank))
            matrix, mean = np.diag(np.exp(rng.uniform(-1, 1, d))) + F @ F.T, rng.standard_normal(d)
        self.precision = matrix if kind == "precision" else np.linalg.inv(matrix)
        self.mean, self.seconds = mean, 0.0
        self.data = {"mean": mean, "root": np.linalg.cholesky(self.precision)}

    def __call__(self, theta: Any, data: dict[str, Any]) -> Any:
        """Values at points (n, d)."""
        begin = time.process_time()
        values = -0.5 * (((theta - data["mean"]) @ data["root"]) ** 2).sum(axis=1)
        self.seconds += time.process_time() - begin
        return values

    def kl(self, fit: qbvi.Fit) -> float:
        """KL(q || target)."""
        mean, cov = fit.unconstrained
        product, shift = cov @ self.precision, mean - self.mean
        gap = np.trace(product) - len(shift) - np.linalg.slogdet(product)[1] + shift @ self.precision @ shift
        return float(0.5 * gap)


def timed(target: Target, prior: Any, **options: Any) -> tuple[qbvi.Fit, float]:
    """A fit, and its seconds: on the host outside of the function, elsewhere without compilation."""
    if options["backend"] != "numpy":
        qbvi.fit(target, prior, **options)
        begin = time.perf_counter()
        fit = qbvi.fit(target, prior, **options)
        return fit, time.perf_counter() - begin
    begin = time.process_time()
    fit = qbvi.fit(target, prior, **options)
    return fit, time.process_time() - begin - target.seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=int, nargs="+", default=[20, 50, 100])
    parser.add_argument("--rank", type=int, default=3)
    parser.add_argument("--kind", choices=("decades", "covariance", "precision"), default="decades")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--families", nargs="+", default=["rank", "low-rank", "full"])
    parser.add_argument("--max-evals", type=int)
    parser.add_argument("--backend", default="numpy")
    args = parser.parse_args()
    print("|   d | family   | evaluations | seconds | nats missing | converged |")
    print("| --- | -------- | ----------- | ------- | ------------ | --------- |")
    for d in args.dims:
        for name in args.families:
            target = Target(d, args.rank, args.kind, args.seed)
            family = qbvi.LowRank(rank=args.rank) if name == "rank" else name
            options = {"vectorized": True, "seed": args.seed, "max_evals": args.max_evals, "data": target.data}
            fit, seconds = timed(target, qbvi.Flat(shape=d), family=family, backend=args.backend, **options)
            label = f"rank {args.rank}" if name == "rank" else name
            counts = f"{fit.n_evals:11,} | {seconds:7.1f} | {target.kl(fit):12.2g} | {fit.converged!s:9}"
            print(f"| {d:3} | {label:8} | {counts} |", flush=True)


if __name__ == "__main__":
    main()
