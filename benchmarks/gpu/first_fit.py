"""What a user waits for before the first step: programs and seconds of a first fit, of a second process, and of a second fit.

Each line is a process of its own: with JAX's cache on the disk turned off, with an empty one, and with the one that the second process filled.
Tracing, lowering and compiling are what JAX reports. "Rest" is the first fit less a second one of the same process, less these three.

Run: ``python benchmarks/gpu/first_fit.py [--rows 1000000] [--dim 100] [--draws 1024]``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict

PHASES = {
    "jaxpr_trace_duration": "traced",
    "jaxpr_to_mlir_module_duration": "lowered",
    "backend_compile_duration": "compiled",
}


def measure(rows: int, dim: int, draws: int) -> None:
    """Fit twice in this process, and print one line."""
    import jax
    import jax.numpy as jnp

    import qbvi

    x = jax.random.normal(jax.random.key(0), (rows, dim), jnp.float32)
    y = (jax.random.uniform(jax.random.key(1), (rows,)) < jax.nn.sigmoid(x[:, 0])).astype(jnp.float32)
    blocks, total = x.reshape(-1, min(rows, 100_000), dim), x.T @ y

    def log_likelihood(theta):
        def add(so_far, x):
            return so_far + jnp.sum(jax.nn.softplus(jnp.matmul(x, theta.T, precision="highest")), axis=0), None

        return theta @ total - jax.lax.scan(add, jnp.zeros_like(theta[:, 0]), blocks)[0]

    options = {
        "prior": qbvi.Normal(0, 5**0.5, shape=dim), "vectorized": True, "backend": "jax", "dtype": "float32",
        "method": qbvi.Ridge(n_samples=draws), "seed": 1, "progress": False, "max_evals": 40 * draws,
    }  # fmt: skip
    jax.block_until_ready((blocks, total))
    spent: dict[str, list[float]] = defaultdict(list)
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: spent[PHASES.get(event.rpartition("/")[2], "")].append(seconds)
    )
    times = []
    for _ in range(3):
        start = time.perf_counter()
        qbvi.fit(log_likelihood, **options)
        times.append(time.perf_counter() - start)
        if len(times) == 1:
            phases = {name: sum(spent[name]) for name in PHASES.values()}
            programs, longest = len(spent["compiled"]), sorted(spent["compiled"])[::-1][:5]
    rest = times[0] - min(times[1:]) - sum(phases.values())
    words = ", ".join(f"{name} {seconds:.2f}" for name, seconds in phases.items())
    print(
        f"first fit {times[0]:.2f} s, second {min(times[1:]):.3f} s, difference {times[0] - min(times[1:]):.2f} s: {words}, rest {rest:.2f}; {programs} programs, longest {' '.join(f'{t:.2f}' for t in longest)}"
    )


def main() -> None:
    """Print a line for each process."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--draws", type=int, default=1024)
    parser.add_argument("--here", action="store_true", help="measure this process alone")
    options = parser.parse_args()
    if options.here:
        measure(options.rows, options.dim, options.draws)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, cache in (("no cache", "off"), ("empty cache", folder), ("second process", folder)):
            print(f"{name:15s}", end=" ", flush=True)
            size = [f"--{key}={getattr(options, key)}" for key in ("rows", "dim", "draws")]
            subprocess.run(
                [sys.executable, __file__, "--here", *size], env=os.environ | {"QBVI_JAX_CACHE": cache}, check=True
            )


if __name__ == "__main__":
    main()
