"""Ready-made regressions by exact integrals: passes over the data and seconds, for tables of many sizes.

The columns are standard normal and correlated with their neighbours; the coefficients are standard normal over the root
of their number. Seconds are CPU time: first of the passes (a fit without evaluations), then of all else, which is mainly
the fresh draws that judge the result. Peak memory beyond the table itself is measured by tracemalloc, in a run of its
own. Run on one core: ``OMP_NUM_THREADS=1 python benchmarks/exact.py`` (``--largest 1e6`` for smaller tables only).
"""

from __future__ import annotations

import argparse
import time
import tracemalloc

import numpy as np

import qbvi

SIZES = (
    ("logistic", 753, 8),
    ("logistic", 2_000, 200),
    ("logistic", 2_000, 900),
    ("logistic", 100_000, 20),
    ("logistic", 1_000_000, 20),
    ("logistic", 200, 10_000),
    ("poisson", 2_000, 200),
    ("poisson", 1_000_000, 20),
    ("linear", 2_000, 200),
    ("linear", 1_000_000, 20),
)


def table(kind: str, rows: int, columns: int) -> qbvi.models.StatisticalModel:
    """A model with simulated data."""
    rng = np.random.default_rng(rows + columns)
    x = rng.standard_normal((rows, columns))
    x[:, 1:] += 0.5 * x[:, :-1]
    eta = x @ rng.standard_normal(columns) / np.sqrt(columns)
    if kind == "logistic":
        return qbvi.models.Logistic(x, rng.random(rows) < 1 / (1 + np.exp(-eta)))
    if kind == "poisson":
        return qbvi.models.Poisson(x, rng.poisson(np.exp(eta)))
    return qbvi.models.Linear(x, eta + rng.standard_normal(rows))


def seconds(model: qbvi.models.StatisticalModel, **options: int) -> tuple[float, qbvi.Fit]:
    """CPU time of a fit, and the fit."""
    start = time.process_time()
    fit = model.fit(seed=1, **options)
    return time.process_time() - start, fit


def peak(model: qbvi.models.StatisticalModel) -> float:
    """Megabytes that a fit needs at its peak, beside the model."""
    tracemalloc.start()
    model.fit(seed=1)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=float, default=1e9, help="most numbers in a table")
    largest = parser.parse_args().largest
    qbvi.models.Logistic(np.eye(3)[:, :2], [0, 1, 1]).fit(seed=1)  # loads SciPy
    print(
        f"{'model':10s}{'rows':>10s}{'columns':>9s}{'passes':>8s}{'s':>8s}{'fresh draws':>13s}{'s':>8s}"
        f"{'peak MB':>9s}{'missing':>10s}  converged"
    )
    for kind, rows, columns in SIZES:
        if rows * columns > largest:
            continue
        model = table(kind, rows, columns)
        (passes, _), (whole, fit) = seconds(model, max_evals=1), seconds(model)
        print(
            f"{kind:10s}{rows:10,}{columns:9,}{fit.notes[0].split()[0]:>8s}{passes:8.2f}{fit.n_evals:13,}"
            f"{whole - passes:8.2f}{peak(model):9.0f}{fit.missing:10.2g}  {'yes' if fit.converged else 'no'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
