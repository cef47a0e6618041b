"""Four ways to run the GARCH(1,1) variance recursion over many draws, in milliseconds for 815 returns.

Run from the repository: ``python benchmarks/garch_recursion.py``.
"""

from __future__ import annotations

import timeit
from itertools import pairwise

import numpy as np
from scipy.signal import lfilter

from qbvi.models.garch import recursion


def loop(inputs, decay):
    """One step of time after the other, all draws at once."""
    x = inputs.copy()
    rows = list(x)
    for before, row in pairwise(rows):
        row += decay * before
    return x


def filtered(inputs, decay):
    """One linear filter for each draw."""
    return np.stack([lfilter([1.0], [1.0, -b], column) for b, column in zip(decay, inputs.T, strict=True)], axis=1)


def doubled(inputs, decay):
    """Reach back twice as far in each pass over the whole array."""
    x, reach, power = inputs.copy(), 1, decay
    while reach < len(x):
        x[reach:] += power * x[:-reach]
        reach, power = 2 * reach, power**2
    return x


def main():
    """Print the table."""
    rng = np.random.default_rng(1)
    ways = {
        "loop over time": loop,
        "lfilter per draw": filtered,
        "doubling": doubled,
        "two-level scan (used)": recursion,
    }
    print("| draws | " + " | ".join(ways) + " |")
    print("| ---: |" + " ---: |" * len(ways))
    for draws in (1, 10, 100, 1000):
        inputs, decay = rng.random((815, draws)), rng.uniform(0.5, 0.99, draws)
        expected = loop(inputs, decay)
        cells = []
        for way in ways.values():
            np.testing.assert_allclose(way(inputs, decay), expected, rtol=1e-9)
            timer = timeit.Timer(lambda way=way: way(inputs, decay))  # noqa: B023 - used before the next turn
            repeats = max(1, int(0.2 / timer.timeit(1)))
            cells.append(1000 * min(timer.repeat(5, repeats)) / repeats)
        print(f"| {draws} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
