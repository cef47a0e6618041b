"""A network of a million weights with a diagonal posterior on one GPU: what a step costs beside the forward passes, against its floor.

The step draws all weights (n, d) and writes them for the function to read. When the values are there it reads them again, for log q and for
the natural gradient, whose weights depend on all of log q. Of a mirror pair it reads one draw. So the update cannot do with fewer than one write
of n x d numbers and two reads of half of them. The floor with all draws read twice is printed beside it.

Run: ``python benchmarks/gpu/network.py [--draws 64] [--rows 1024]``.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
from rates import measure, seconds

import qbvi
from qbvi.families import DiagonalGaussian
from qbvi.protocol import Values
from qbvi.random import Stream

LAYERS = (784, 1000, 200, 10)
SIZES = [(a + 1) * b for a, b in itertools.pairwise(LAYERS)]


def forward(weights, x):
    """Logits of a network with step activations: weights (d,), x (rows, 784) -> (rows, 10)."""
    start = 0
    for i, (a, b) in enumerate(itertools.pairwise(LAYERS)):
        matrix = jnp.reshape(weights[start : start + a * b], (a, b))
        x = x @ matrix + weights[start + a * b : start + (a + 1) * b]
        x = jnp.where(x > 0, 1.0, 0.0) if i < len(LAYERS) - 2 else x
        start += (a + 1) * b
    return x


def log_likelihood(weights, batch):
    """Log-probability of the labels: weights (S, d) -> (S,)."""
    x, labels = batch
    logits = jax.vmap(forward, (0, None))(weights, x)
    return jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[None, :, None], axis=2), axis=(1, 2))


def update_alone(method: qbvi.QBVI, draws: int, rates) -> None:
    """Time ask and tell without the function."""
    family = DiagonalGaussian(sum(SIZES))
    state = method.init(
        family, family.start(jnp.zeros(family.dim, jnp.float32), jnp.full(family.dim, 0.05, jnp.float32))
    )
    eta = jnp.zeros(family.size, jnp.float32)

    def ask(state, t):
        return method.ask(family, state, Stream(jnp.asarray([1, 2], jnp.int32), t, jnp.float32))

    def tell(state, theta, y):
        return method.tell(family, eta, state, theta, Values(y, y, jnp.isfinite(y), 0 * y))[0]

    theta = jax.jit(ask)(state, jnp.asarray(0, jnp.int32))
    drawn, told = seconds(ask, state, jnp.asarray(0, jnp.int32)), seconds(tell, state, theta, theta[:, 0])
    bytes_ = 4 * draws * family.dim
    floors = bytes_ / rates.bytes, bytes_ / rates.bytes
    both = drawn + told
    print(
        f"{family.dim:,} weights, {draws} draws: ask {1e3 * drawn:.3f} ms (floor {1e3 * floors[0]:.3f}, {floors[0] / drawn:.0%}), tell {1e3 * told:.3f} ms (floor {1e3 * floors[1]:.3f}, {floors[1] / told:.0%}), both {sum(floors) / both:.0%} of the floor, {1.5 * sum(floors) / both:.0%} of the one with all draws read twice"
    )


def whole_fit(method: qbvi.QBVI, rows: int) -> None:
    """Time a fit, and its forward passes alone."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50_000, LAYERS[0])).astype(np.float32)
    labels = np.argmax(x[:, :10] + 0.5 * x[:, 10:20], axis=1).astype(np.int32)
    d = sum(SIZES)
    weights = 0.05 * jax.random.normal(jax.random.key(1), (method.n_samples, d), jnp.float32)
    alone = seconds(log_likelihood, weights, (jnp.asarray(x[:rows]), jnp.asarray(labels[:rows])))
    options = {
        "prior": qbvi.Normal(0, 0.05, shape=d), "family": "diagonal", "vectorized": True, "backend": "jax", "dtype": "float32",
        "data": (x, labels), "batch_size": rows, "method": method, "seed": 1, "progress": False,
    }  # fmt: skip
    qbvi.fit(log_likelihood, **options)
    start = time.perf_counter()
    fit = qbvi.fit(log_likelihood, **options)
    spent = time.perf_counter() - start
    step = float(np.median(np.diff(fit.trace.seconds)))
    print(
        f"a step of a fit {1e3 * step:.2f} ms, forward passes alone {1e3 * alone:.2f} ms; {len(fit.trace.elbo)} steps in {spent:.2f} s, bound from {fit.trace.elbo[0]:.0f} to {fit.trace.elbo[-1]:.0f}"
    )


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1024)
    options = parser.parse_args()
    rates = measure()
    method = qbvi.QBVI(
        n_samples=options.draws, stop=qbvi.MaxIterations(200), learning_rate=0.05, keep="last", n_fresh=options.draws
    )
    update_alone(method, options.draws, rates)
    whole_fit(method, options.rows)
    print(f"peak memory {(jax.devices()[0].memory_stats() or {}).get('peak_bytes_in_use', math.nan) / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
