"""Seconds for ten iterations (paper, last rows of table par_credit)."""

from __future__ import annotations

import math
import platform
import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import qbvi
from qbvi.reproduce import data
from qbvi.reproduce.estimates import DEFAULT, PRIOR_VARIANCE, gaussian_methods
from qbvi.reproduce.published import RUN_TIME
from qbvi.reproduce.report import Report
from qbvi.reproduce.settings import Settings
from qbvi.reproduce.tables import Cell, Row, Table

__all__ = ["run"]

Floats = NDArray[np.float64]

_ITERATIONS = 10
_MCMC_DRAWS = 1000


def run(settings: Settings) -> Report:
    """Time every method on the Credit data or, if they are missing, on Labour."""
    name, split = data.credit_or_labour(settings.data)
    model = qbvi.models.Logistic(split.X, split.y)
    prior = qbvi.Normal(0.0, math.sqrt(PRIOR_VARIANCE), shape=split.X.shape[1] + 1)
    times = _all_times(model, prior, settings)
    other = "" if name == "Credit" else " (the paper: Credit, for which no file was given)"
    about = (
        (
            f"{name} data{other}: seconds for {_ITERATIONS} iterations of 100 draws (CGVB: 10), and for "
            f"{_MCMC_DRAWS:,} draws of MCMC; mean and standard deviation of {settings.effort.timing_runs} runs. Python "
            f"{platform.python_version()}, {platform.machine()}. The paper: MATLAB R2022a on a laptop, 50 runs."
        ),
    )
    return Report("timing", "Run time", about, (_table(times),), (), _findings(times))


def _all_times(model: Any, prior: Any, settings: Settings) -> dict[str, Floats]:
    runs = range(settings.effort.timing_runs)
    methods = gaussian_methods(model.gradient, settings.effort)
    del methods["QBVI literal"], methods[DEFAULT]
    times = {
        name: [_iterations(model, prior, method, family, seed) for seed in runs]
        for name, (method, family) in methods.items()
    }
    times["MCMC"] = [_mcmc(model, prior, seed) for seed in runs]
    whole = [_whole(model, prior, seed) for seed in range(min(5, len(runs)))]
    return {name: np.array(values) for name, values in (times | {DEFAULT: whole}).items()}


def _iterations(model: Any, prior: Any, method: Any, family: str, seed: int) -> float:
    """Seconds until the tenth iteration is done, without the fresh draws at the end."""
    short = replace(method, stop=(qbvi.MaxIterations(_ITERATIONS),), n_fresh=100)
    return float(model.fit(prior, method=short, family=family, seed=seed, progress=False).trace.seconds[-1])


def _mcmc(model: Any, prior: Any, seed: int) -> float:
    walkers = max(50, 2 * len(model.names))
    steps = _MCMC_DRAWS // walkers
    start = time.perf_counter()
    qbvi.baselines.mcmc(
        model.log_likelihood, prior, vectorized=True, n_walkers=walkers, n_steps=steps, warmup=0, seed=seed
    )
    return time.perf_counter() - start


def _whole(model: Any, prior: Any, seed: int) -> float:
    """Seconds of a whole fit by the default method, from start to stop."""
    return float(model.fit(prior, method="regression", family="full", seed=seed, progress=False).seconds)


def _table(times: dict[str, Floats]) -> Table:
    columns = tuple(f"{name}, whole fit" if name == DEFAULT else name for name in times)
    means = Row("mean", tuple(Cell(float(values.mean()), _published(name, 0)) for name, values in times.items()))
    spread = Row("sd", tuple(Cell(_sd(values), _published(name, 1)) for name, values in times.items()))
    return Table("timing-seconds", "Seconds (paper, table par_credit)", columns, (means, spread))


def _sd(values: Floats) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def _published(name: str, j: int) -> float | None:
    return RUN_TIME[name][j] if name in RUN_TIME else None


def _findings(times: dict[str, Floats]) -> tuple[str, ...]:
    ratios = {name: RUN_TIME[name][0] / values.mean() for name, values in times.items() if name in RUN_TIME}
    fast, slow = max(ratios, key=lambda name: ratios[name]), min(ratios, key=lambda name: ratios[name])
    as_iterations = _ITERATIONS * times[DEFAULT].mean() / times["QBVI"].mean()
    return (
        (
            f"Here the same number of iterations takes between {1 / ratios[slow]:.2f} ({slow}) and "
            f"{1 / ratios[fast]:.2f} ({fast}) of the paper's time; machines and languages differ, so only the order of "
            f"magnitude and the ranking mean something. A whole fit by our default takes {times[DEFAULT].mean():.2f} "
            f"s, as long as {as_iterations:,.0f} iterations of QBVI; the paper makes up to 1,000. Times depend on what "
            "else the machine does."
        ),
    )
