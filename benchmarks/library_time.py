"""Time per iteration spent outside the user's function, 100 draws, beside the Credit-sized likelihood itself.

The likelihood is a vectorised logistic regression of 750 rows, as Credit's. Run: ``python benchmarks/library_time.py``.
"""

from __future__ import annotations

import time

import numpy as np

import qbvi
from qbvi.stopping import MaxIterations

ITERATIONS = 300
DRAWS = 100
ROWS = 750
PAPER_SECONDS = 0.0473  # the paper's MATLAB, full covariance, one iteration on Credit


class Timed:
    """A logistic log-likelihood that knows how long it ran."""

    def __init__(self, d: int) -> None:
        rng = np.random.default_rng(d)
        self.x = rng.standard_normal((ROWS, d)) / np.sqrt(d)
        self.y = (rng.random(ROWS) < 0.5).astype(float)
        self.seconds = 0.0

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        """Log-likelihood at each row of theta."""
        start = time.perf_counter()
        eta = theta @ self.x.T
        value = eta @ self.y - np.logaddexp(0, eta).sum(axis=1)
        self.seconds += time.perf_counter() - start
        return value


def measure(d: int, family: str) -> tuple[float, float]:
    """Seconds per iteration of the library and of the likelihood."""
    likelihood = Timed(d)
    method = qbvi.QBVI(n_samples=DRAWS, stop=(MaxIterations(ITERATIONS),), n_fresh=2)
    fit = qbvi.fit(likelihood, qbvi.Normal(0, 2, shape=d), vectorized=True, method=method, family=family, seed=1)
    spent = fit.trace.seconds[-1]
    return (spent - likelihood.seconds) / ITERATIONS, likelihood.seconds / ITERATIONS


def main() -> None:
    """Print the table."""
    print(f"milliseconds per iteration, {DRAWS} draws, {ITERATIONS} iterations")
    print(f"{'d':>4s} {'family':10s}{'library':>10s}{'likelihood':>12s}{'ratio':>8s}")
    for d in (8, 25, 100):
        for family in ("full", "diagonal"):
            library, likelihood = min(measure(d, family) for _ in range(3))
            print(
                f"{d:4d} {family:10s}{1e3 * library:10.3f}{1e3 * likelihood:12.3f}{library / likelihood:8.2f}",
                flush=True,
            )
    print(f"the paper's MATLAB took {1e3 * PAPER_SECONDS:.0f} ms for one iteration at d = 25, full covariance")


if __name__ == "__main__":
    main()
