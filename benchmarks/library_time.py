"""CPU time of whole fits outside of the user's function, peak memory, and the growth of both with the dimension.

Each fit runs in a process of its own, on one core, with nothing set but the seed and ``family="full"``:

- ``logistic``: a vectorised logistic regression with columns like those of Credit: an intercept, numbers, and indicators of
  which some are rare. The nats below the best Gaussian are exact.
- ``gaussian``: a rotated Gaussian with condition number 1,000. The best Gaussian is the posterior.
- ``free``: the logistic regression without ``family``, where the posterior may take any shape.

The exponent is that of d in the seconds, from one row of a kind to the next. Two further tables follow: start-up (import, and the
first fit of a process beside the second), and the time of one iteration of `qbvi.QBVI`. ``--previous`` measures an earlier version
in the same run: give the folder from which ``import qbvi`` finds it. ``--figure`` draws the seconds of the first table.

Run: ``python benchmarks/library_time.py [--only logistic] [--largest 100] [--previous ../older/src] [--figure library_time.png]``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ITERATIONS, DRAWS = 300, 100  # of the table of single iterations
PAPER_SECONDS = 0.0473  # the paper's MATLAB, full covariance, one iteration on Credit
PRIOR_SD = 2.0
CONDITION = 1e3
TARGETS = {8: 0.05, 25: 0.4, 50: 3.0, 100: 20.0, 200: 120.0}  # seconds of a whole fit that we aim for
HERE = Path(__file__).resolve()
SOURCE = HERE.parents[1] / "src"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Case(NamedTuple):
    """One fit to measure."""

    kind: str
    d: int
    rows: int = 0


CASES = [
    *(Case("free", d, 750) for d in (2, 4, 8)),
    *(Case("logistic", d, rows) for d, rows in ((8, 240), (25, 750), (50, 1500), (100, 3000), (200, 6000))),
    *(Case("gaussian", d) for d in (8, 25, 50, 100, 200)),
]


class Timed:
    """A function that knows how much CPU time it took."""

    def __init__(self, function) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        """Log-likelihood at each row of theta."""
        start = time.process_time()
        value = self.function(theta)
        self.seconds += time.process_time() - start
        return value


def regression_data(d: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns (rows, d) like those of Credit, and labels (rows,)."""
    rng = np.random.default_rng(d)
    X = np.ones((rows, d))
    n_numbers = max(1, d // 3)
    X[:, 1 : 1 + n_numbers] = rng.standard_normal((rows, n_numbers))[:, : d - 1]
    shares = rng.uniform(0.02, 0.3, d - 1 - n_numbers)
    X[:, 1 + n_numbers :] = rng.random((rows, len(shares))) < shares
    eta = X @ (rng.standard_normal(d) * 1.5 / math.sqrt(d))
    return X, (rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(float)


def gaussian_target(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean (d,) and precision (d, d) of the likelihood."""
    rng = np.random.default_rng(d)
    axes = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return rng.standard_normal(d), (axes * np.geomspace(1, CONDITION, d)) @ axes.T


def log_likelihood(case: Case) -> Timed:
    """The function to fit, of stacked points."""
    if case.kind == "gaussian":
        mean, precision = gaussian_target(case.d)
        return Timed(lambda theta: -0.5 * np.sum((theta - mean) @ precision * (theta - mean), axis=1))
    X, y = regression_data(case.d, case.rows)
    return Timed(lambda theta: (theta @ X.T) @ y - np.logaddexp(0, theta @ X.T).sum(axis=1))


def fit_here(case: Case, seed: int, target: str) -> dict[str, Any]:
    """Make one fit in this process; mean and covariance go to the file ``target``."""
    import qbvi

    family = {} if case.kind == "free" else {"family": "full"}
    options = {"vectorized": True, "progress": False, **family}
    # A first small fit loads what is loaded on use; the table of start-up shows how long that takes.
    qbvi.fit(lambda x: -np.sum(x**2, axis=1), qbvi.Normal(0, PRIOR_SD, shape=2), seed=1, **options)
    function = log_likelihood(case)
    start = time.process_time()
    fit = qbvi.fit(function, qbvi.Normal(0, PRIOR_SD, shape=case.d), seed=seed, **options)
    seconds = time.process_time() - start - function.seconds
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20 * (1 if sys.platform != "darwin" else 2**-10)
    mean, cov = fit.unconstrained
    np.savez(target, mean=mean, cov=cov)
    figures = {"seconds": seconds, "function": function.seconds, "memory": memory}
    return {**figures, "evals": fit.n_evals, "converged": bool(fit.converged), "iterations": len(fit.trace.seconds)}


def start_here() -> dict[str, Any]:
    """CPU seconds of the import, of the first fit of the process, and of the second."""
    times = [time.process_time()]
    import qbvi

    times.append(time.process_time())
    function = log_likelihood(Case("logistic", 8, 750))
    for _ in range(2):
        start, before = time.process_time(), function.seconds
        qbvi.fit(function, qbvi.Normal(0, PRIOR_SD, shape=8), vectorized=True, family="full", seed=1, progress=False)
        times.append(time.process_time() - start - (function.seconds - before))
    return {"import": times[1] - times[0], "first": times[2], "second": times[3], "modules": len(sys.modules)}


def iteration_here(d: int, family: str) -> dict[str, Any]:
    """Seconds of one iteration of `qbvi.QBVI`, of the library and of the likelihood."""
    import qbvi
    from qbvi.stopping import MaxIterations

    function = log_likelihood(Case("logistic", d, 750))
    method = qbvi.QBVI(n_samples=DRAWS, stop=(MaxIterations(ITERATIONS),), n_fresh=2)
    start = time.process_time()
    prior = qbvi.Normal(0, PRIOR_SD, shape=d)
    qbvi.fit(function, prior, vectorized=True, method=method, family=family, seed=1, progress=False)
    spent = time.process_time() - start - function.seconds
    return {"library": spent / ITERATIONS, "likelihood": function.seconds / ITERATIONS}


def in_process(source: Path, *task: Any) -> dict[str, Any]:
    """Run a task in a new process, with the qbvi of a folder, on one core."""
    environment = {**os.environ, "PYTHONPATH": str(source), **dict.fromkeys(THREADS, "1")}
    # An installed package has its byte code. A source tree writes it at its first run.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, str(HERE), "--task", json.dumps(task)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_task(name: str, *arguments: Any) -> dict[str, Any]:
    """The task of a process that `in_process` started."""
    if name == "fit":
        case, seed, target = arguments
        return fit_here(Case(*case), seed, target)
    return start_here() if name == "start" else iteration_here(*arguments)


def measure(case: Case, source: Path, seeds: int, repeats: int) -> dict[str, Any]:
    """Medians over seeds; of several runs of a fit the quickest counts, as others use the machine too."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder) / "q.npz")
        for seed in range(1, seeds + 1):
            runs = [in_process(source, "fit", case, seed, target) for _ in range(repeats)]
            q = np.load(target)
            best = {**min(runs, key=lambda run: run["seconds"]), "nats": missing_nats(case, q["mean"], q["cov"])}
            rows.append(best)
    return {key: float(np.median([row[key] for row in rows])) for key in rows[0]}


def missing_nats(case: Case, mean: np.ndarray, cov: np.ndarray) -> float:
    """Nats between N(mean, cov) and the best Gaussian; not a number for a posterior of any shape."""
    sys.path.insert(0, str(HERE.parents[1] / "tests" / "helpers"))
    from oracles import LogisticRegression, gaussian_kl

    if case.kind == "free":
        return math.nan
    if case.kind == "gaussian":
        loc, precision = gaussian_target(case.d)
        best = np.linalg.inv(precision + np.eye(case.d) / PRIOR_SD**2)
        return gaussian_kl(mean, cov, best @ precision @ loc, best)
    problem = LogisticRegression(*regression_data(case.d, case.rows), PRIOR_SD**2)
    return problem.best_gaussian().elbo - problem.exact_elbo(mean, cov)


def fits_table(cases: list[Case], previous: Path | None, seeds: int, repeats: int) -> list[dict[str, Any]]:
    """Print the table of whole fits, and return its rows."""
    print("CPU seconds outside of the function, whole fit on one core")
    head = f"{'kind':9s}{'d':>4s}{'rows':>7s}{'evals':>8s}{'seconds':>9s}{'aim':>7s}{'exponent':>9s}{'function':>9s}{'GB':>6s}{'conv':>6s}{'nats':>9s}"
    print(head + (f"   {'before':>9s}{'ratio':>7s}{'evals':>8s}{'GB':>6s}{'nats':>9s}" if previous else ""))
    table: list[dict[str, Any]] = []
    for case in cases:
        row = {**case._asdict(), **measure(case, SOURCE, seeds, repeats)}
        last = table[-1] if table and table[-1]["kind"] == case.kind else None
        row["exponent"] = growth(last, row) if last else math.nan
        line = f"{case.kind:9s}{case.d:4d}{case.rows:7d}{row['evals']:8.0f}{row['seconds']:9.3f}{TARGETS.get(case.d, math.nan):7.2f}"
        line += (
            f"{row['exponent']:9.1f}{row['function']:9.3f}{row['memory']:6.2f}{row['converged']:6.2g}{row['nats']:9.4f}"
        )
        if previous:
            row["before"] = before = measure(case, previous, seeds, repeats)
            line += f"   {before['seconds']:9.3f}{before['seconds'] / row['seconds']:7.1f}{before['evals']:8.0f}"
            line += f"{before['memory']:6.2f}{before['nats']:9.4f}"
        print(line, flush=True)
        table.append(row)
    return table


def growth(before: dict[str, Any], row: dict[str, Any]) -> float:
    """Exponent of d in the seconds, between two rows."""
    return math.log(row["seconds"] / before["seconds"]) / math.log(row["d"] / before["d"])


def start_table(sources: dict[str, Path]) -> None:
    """Print how long the import and the first fit take."""
    print("\nstart-up, CPU seconds, d = 8")
    print(f"{'version':10s}{'import':>8s}{'first fit':>11s}{'second':>8s}{'modules':>9s}")
    for name, source in sources.items():
        runs = [in_process(source, "start") for _ in range(3)]
        best = {key: min(run[key] for run in runs) for key in runs[0]}
        print(
            f"{name:10s}{best['import']:8.3f}{best['first']:11.3f}{best['second']:8.3f}{best['modules']:9d}", flush=True
        )


def iterations_table() -> None:
    """Print the time of one iteration of `qbvi.QBVI`."""
    print(f"\nqbvi.QBVI, milliseconds per iteration, {DRAWS} draws, {ITERATIONS} iterations, 750 rows")
    print(f"{'d':>4s} {'family':10s}{'library':>10s}{'likelihood':>12s}{'ratio':>8s}")
    for d in (8, 25, 100):
        for family in ("full", "diagonal"):
            runs = [in_process(SOURCE, "iteration", d, family) for _ in range(3)]
            library, likelihood = (1e3 * min(run[key] for run in runs) for key in ("library", "likelihood"))
            print(f"{d:4d} {family:10s}{library:10.3f}{likelihood:12.3f}{library / likelihood:8.2f}", flush=True)
    print(f"the paper's MATLAB took {1e3 * PAPER_SECONDS:.0f} ms for one iteration at d = 25, full covariance")


def draw(table: list[dict[str, Any]], target: Path) -> None:
    """Draw the seconds of the first table."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    colours = {"logistic": "#0072B2", "gaussian": "#D55E00", "free": "#009E73"}  # Okabe and Ito
    for kind, colour in colours.items():
        rows = [row for row in table if row["kind"] == kind]
        axes.loglog([r["d"] for r in rows], [r["seconds"] for r in rows], "o-", color=colour, label=kind)
        old = [row for row in rows if "before" in row]
        if old:
            seconds = [r["before"]["seconds"] for r in old]
            axes.loglog([r["d"] for r in old], seconds, "o--", color=colour, alpha=0.45, label=f"{kind}, before")
    ticks = sorted({row["d"] for row in table})
    aims = {d: seconds for d, seconds in TARGETS.items() if d <= ticks[-1]}
    axes.loglog(list(aims), list(aims.values()), "k:", label="aim")
    axes.set_xticks(ticks, [str(d) for d in ticks])
    axes.minorticks_off()
    axes.set_xlabel("dimensions d")
    axes.set_ylabel("CPU seconds outside of the function")
    axes.legend(frameon=False)
    figure.savefig(target, dpi=150)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("free", "logistic", "gaussian"), help="fits of one kind alone")
    parser.add_argument("--largest", type=int, default=100, help="largest dimension (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=int, default=1, help="seeds of each fit, with medians printed (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats", type=int, default=1, help="runs of each fit, the quickest counts (default: %(default)s)"
    )
    parser.add_argument("--previous", type=Path, help="folder with an earlier qbvi, for a column of ratios")
    parser.add_argument("--figure", type=Path, help="file for a picture")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        print(json.dumps(run_task(*json.loads(arguments.task))))
        return
    cases = [case for case in CASES if case.d <= arguments.largest and arguments.only in (None, case.kind)]
    table = fits_table(cases, arguments.previous, arguments.seeds, arguments.repeats)
    if arguments.figure:
        draw(table, arguments.figure)
    if arguments.only is None:
        start_table({"this": SOURCE} | ({"before": arguments.previous} if arguments.previous else {}))
        iterations_table()


if __name__ == "__main__":
    main()
