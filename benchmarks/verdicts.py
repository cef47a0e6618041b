"""Whether a fit knows how good it is: the battery of random posteriors with known answers, one fit per row.

A row has evaluations, what the fit says of itself, MMTV (mean over the marginals of the total variation; `floor` is that of
two exact samples), the true gap to the best Gaussian, what is missing to the evidence, and errors of moments and evidence.
The tables at the end count verdicts that are wrong and group the errors by shape. The first run computes the references of
about a hundred problems, for about half an hour, and stores them in benchmarks/battery/cache.

Run: ``python benchmarks/verdicts.py [--half A] [--seeds 1] [--jobs 2] [--only curved] [--out rows.jsonl]``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import battery
import numpy as np
from battery import references

import qbvi

TOL = 0.01  # of the default fit
FALSE, WITHIN = 0.1, 0.01  # nats: a false "converged" misses more; a fit within should say so


def one_fit(task: tuple[str, int, dict]) -> dict:
    """Fit one problem with one seed, with nothing set but budgets, and score it."""
    name, seed, options = task
    problem = battery.problems(only=name)[0]
    row = {"problem": name, "shape": problem.shape, "half": problem.half, "d": problem.d, "seed": seed}
    path: list[tuple[int, np.ndarray, np.ndarray]] = []
    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = qbvi.fit(
                problem.f,
                problem.prior,
                vectorized=True,
                seed=seed,
                progress=False,
                callback=lambda now: path.append((now.n_evals, now.mean, now.cov)),
                **(problem.options | options),
            )
    except Exception as error:  # noqa: BLE001 - a fit that raises is a row of the table
        return row | {"error": f"{type(error).__name__}: {error}"[:300], "seconds": time.process_time() - start}
    row |= {"n_evals": fit.n_evals, "seconds": time.process_time() - start, "converged": bool(fit.converged)}
    row |= {"khat": float(fit.khat), "elbo": float(fit.elbo), "says_missing": _number(fit, "missing")}
    row |= {"predicted_gap": float(fit.trace.gap[-1]) if len(fit.trace) else math.nan, "why": fit.stop_reason}
    return row | asdict(battery.score(fit, problem)) | {"first_below": first_below(problem, fit, path)}


def first_below(problem: battery.Problem, fit: qbvi.Fit, path: list[tuple[int, np.ndarray, np.ndarray]]) -> float:
    """Evaluations at which the gap to the best Gaussian first was below the tolerance; infinite if never.

    NaN where the best is not known, and where the posterior keeps the prior's own law: its path is on another scale.
    """
    best = problem.reference.best
    has_own_law = any(parameter.is_native for parameter in fit.model.parameters)
    if best is None or has_own_law or any(np.shape(mean) != (problem.d,) for _, mean, _ in path):
        return math.nan
    for n_evals, mean, cov in path[:: max(1, len(path) // 200)]:
        if references.gap(problem.log_joint, best, mean, cov, log2_points=5) < TOL:
            return n_evals
    return math.inf


def rows(tasks: list[tuple[str, int, dict]], jobs: int) -> Iterator[dict]:
    """The rows of all fits, each as soon as it is there."""
    if jobs == 1:
        yield from map(one_fit, tasks)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(one_fit, tasks)


def line(row: dict) -> str:
    """One row to read."""
    head = f"{row['problem']:22s}{row['d']:3d} {row['seed']:2d} |"
    if "error" in row:
        return f"{head} {row['error'][:120]}"
    says = "yes" if row["converged"] else "no"
    return (
        f"{head}{row['n_evals']:6d}{row['first_below']:7.0f} {says:>4s} |{row['gap']:9.4f}{row['predicted_gap']:9.4f}"
        f"{row['missing']:9.3f} |{row['mmtv']:6.3f}{row['floor']:6.3f}{row['mean_error']:7.2f}{row['log_sd_ratio']:7.2f} |"
        f"{row['evidence_error']:7.3f}{row['evidence_z']:6.1f} |{row['khat']:5.2f}{row['forbidden']:6.2f}{row['seconds']:6.1f}s"
    )


HEAD = (
    f"{'problem':22s}{'d':>3s} {'s':>2s} |{'evals':>6s}{'below':>7s} {'says':>4s} |{'gap':>9s}{'predicted':>9s}"
    f"{'missing':>9s} |{'mmtv':>6s}{'floor':>6s}{'mean':>7s}{'sd':>7s} |{'logZ':>7s}{'z':>6s} |{'khat':>5s}{'-inf':>6s}"
)


GROUPS = (
    f"{'shape':12s}{'fits':>5s}{'raised':>7s}{'conv.':>6s} |{'evals':>7s} |{'mmtv':>7s}{'worst':>7s} |{'gap':>9s}{'worst':>9s} |"
    f"{'missing':>9s} |{'logZ':>8s}"
)


def closing(found: list[dict]) -> str:
    """The tables: wrong verdicts, and errors by shape."""
    done = [row for row in found if "error" not in row]
    known = [row for row in done if not math.isnan(row["gap"])]
    false = [row for row in known if row["converged"] and row["gap"] > FALSE]
    within = [row for row in known if row["gap"] < WITHIN]
    silent = [row for row in within if not row["converged"]]
    far = [row for row in done if row["converged"] and row["mmtv"] > FALSE]
    ratios = [row["n_evals"] / row["first_below"] for row in known if math.isfinite(row["first_below"])]
    tested = [abs(row["evidence_z"]) for row in done if not math.isnan(row["evidence_z"])]
    lines = [
        "",
        f"fits {len(found)}, raised {len(found) - len(done)}, converged {sum(row['converged'] for row in done)}",
        f"converged with more than {FALSE} nats missing from the best Gaussian: {len(false)} of {len(known)} ({_names(false)})",
        f"within {WITHIN} nats of the best Gaussian and not called converged: {len(silent)} of {len(within)} ({_names(silent)})",
        f"converged with MMTV above {FALSE}: {len(far)} ({_names(far)})",
        f"evaluations at stop over those when the gap first was below {TOL}: {_quartiles(ratios)}",
        f"true gap more than 0.01 above twice the predicted one: {_optimistic(known)}",
        f"truth within three standard errors of the evidence: {sum(z < 3 for z in tested)} of {len(tested)}",
        "",
        GROUPS,
    ]
    return "\n".join(lines + [_group(shape, found) for shape in dict.fromkeys(row["shape"] for row in found)])


def _group(shape: str, found: list[dict]) -> str:
    mine = [row for row in found if row["shape"] == shape]
    done = [row for row in mine if "error" not in row]

    def of(column: str, reduce=np.nanmedian) -> float:
        numbers = [row[column] for row in done if not math.isnan(row[column])]
        return float(reduce(numbers)) if numbers else math.nan

    absolute = [abs(row["evidence_error"]) for row in done if not math.isnan(row["evidence_error"])]
    return (
        f"{shape:12s}{len(mine):5d}{len(mine) - len(done):7d}{sum(row['converged'] for row in done):6d} |{of('n_evals'):7.0f} |"
        f"{of('mmtv'):7.3f}{of('mmtv', np.max):7.3f} |{of('gap'):9.4f}{of('gap', np.max):9.4f} |{of('missing'):9.3f} |"
        f"{np.median(absolute) if absolute else math.nan:8.3f}"
    )


def _number(fit: qbvi.Fit, name: str) -> float:
    found = getattr(fit, name, None)
    return (
        math.nan if found is None else float(found[0] if isinstance(found, tuple) else getattr(found, "value", found))
    )


def _names(found: Iterable[dict]) -> str:
    return " ".join(dict.fromkeys(row["problem"] for row in found)) or "none"


def _optimistic(known: list[dict]) -> str:
    predicted = [row for row in known if math.isfinite(row["predicted_gap"])]
    return f"{sum(row['gap'] > 2 * row['predicted_gap'] + 0.01 for row in predicted)} of {len(predicted)}"


def _quartiles(ratios: list[float]) -> str:
    if not ratios:
        return "none got there"
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return f"median {middle:.2f}, quartiles {low:.2f} and {high:.2f}, worst {max(ratios):.1f} ({len(ratios)} fits)"


def main() -> None:
    """Fit, print and store the rows, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--half", choices=("A", "B"), default=None)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=None, help="names of problems, families or shapes")
    parser.add_argument("--max-evals", type=int, default=6000)
    parser.add_argument("--max-time", type=float, default=60.0, help="seconds a fit may take")
    parser.add_argument("--kwargs", type=json.loads, default={}, help="further arguments of qbvi.fit, as JSON")
    parser.add_argument("--out", default=None, help="file that gets a line of JSON per row")
    chosen = parser.parse_args()
    options = {"max_evals": chosen.max_evals, "max_time": chosen.max_time} | chosen.kwargs
    names = [problem.name for problem in battery.problems(chosen.half, chosen.only)]
    found = []
    print(HEAD)
    for row in rows([(name, seed, options) for name in names for seed in range(chosen.seeds)], chosen.jobs):
        found.append(row)
        print(line(row), flush=True)
        if chosen.out:
            with open(chosen.out, "a") as file:
                file.write(json.dumps(row) + "\n")
    print(closing(found))


if __name__ == "__main__":
    main()
