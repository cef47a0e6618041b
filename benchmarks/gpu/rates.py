"""What this GPU can do, measured: bytes copied, matrix products and softplus; and how long a compiled function takes.

Run as a script it prints the ceilings that the other scripts of this folder compare with.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import jax
import jax.numpy as jnp

PRECISIONS = {"float32": "highest", "tf32": "default", "float64": "highest"}


@dataclass(frozen=True)
class Rates:
    """Measured ceilings, in units per second."""

    bytes: float
    flops: dict[str, float]  # of matrix products, by precision
    softplus: float  # float32 numbers, with their sum


def measure() -> Rates:
    """Take the ceilings of the first device."""
    key = jax.random.key(0)
    long = jax.random.normal(key, (1 << 28,), jnp.float32)
    copied = 2 * 4 * long.size / seconds(lambda x: x + 1, long)
    soft = long.size / seconds(lambda x: jnp.sum(jax.nn.softplus(x)), long)
    flops = {}
    for name, precision in PRECISIONS.items():
        dtype = jnp.float64 if name == "float64" else jnp.float32
        with jax.enable_x64(name == "float64"):
            square = jax.random.normal(key, (8192, 8192), dtype)
            flops[name] = 2 * 8192**3 / seconds(lambda x, p=precision: jnp.matmul(x, x, precision=p), square)
    return Rates(copied, flops, soft)


def seconds(function, *arguments, repetitions: int = 5, calls: int = 8) -> float:
    """Median time of a compiled call, after two that do not count.

    Several calls are queued before the host waits: to start a single one, and to wait for it, takes 0.1 ms.
    """
    compiled = jax.jit(function)
    for _ in range(2):
        jax.block_until_ready(compiled(*arguments))
    return median(_timed(compiled, arguments, calls) for _ in range(repetitions)) / calls


def _timed(function, arguments, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls - 1):
        function(*arguments)
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


def main() -> None:
    """Print the ceilings."""
    rates = measure()
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}")
    print(f"copy {rates.bytes / 1e12:.2f} TB/s, softplus and sum {rates.softplus / 1e9:.0f} G numbers/s")
    print("matrix products: " + ", ".join(f"{name} {rate / 1e12:.0f} TFLOP/s" for name, rate in rates.flops.items()))


if __name__ == "__main__":
    main()
