"""Posteriors of many shapes beside PyVBMC, nautilus and emcee: how near, after how many evaluations, in how much time.

A row has the evaluations, the CPU seconds outside of the function, MMTV (mean over the marginals of the total variation to
reference draws, on the unconstrained scale), the error of the log evidence, and whether the method calls itself converged.
The time of the function is that of all that a user writes: for the peers also prior, Jacobian and prior transform.

Every method has the settings that its documentation starts with:

- *qbvi*: `qbvi.fit(f, prior)` with a budget of 20,000 evaluations, which only fits that do not converge use up.
- *PyVBMC*: all options at their defaults; the log joint density of the unconstrained parameters with its Jacobian; the
  plausible box is the central 68 % of the prior, as its documentation advises, and the start is the prior median. It takes
  no minus infinity, so it gets -10,000 in its place. Its evidence is its lower bound.
- *nautilus*: all options at their defaults (2,000 live points, 10,000 effective draws) in the unit cube of the prior.
- *emcee*: the stretch move with 20 walkers (2 d if that is more), 1,000 steps, the first half dropped. The walkers start
  at draws of the prior where the density is not zero. It has no evidence.

Where the prior is flat, box and walkers come from the mean and scale that `qbvi.fit` starts with, and nautilus is left out.
PyVBMC and emcee are left out where a parameter is discrete. A fit that takes longer than `--limit` is stopped without a
result.

The problems come from a folder, `--wild DIR` or the environment variable QBVI_WILD, with `problems.py` (`PROBLEMS`),
`score.py` (`scores`) and `reference` (draws, and the evidence in `checks.json`). `--battery` takes those of
`benchmarks/battery` instead, without the noisy ones; nautilus then needs a prior that is Gaussian in u.
`--beside rows.jsonl` shows the rows of an earlier run in the table at the end, so that one method can be measured again
alone.

Run: ``python benchmarks/posterior.py --wild DIR [--only banana2] [--methods qbvi emcee] [--seeds 1] [--out rows.jsonl]``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

import qbvi
from qbvi.model import Model

Array = NDArray[np.float64]

N_DRAWS = 4000
MAX_EVALS = 20_000  # of qbvi
FLOOR = -1e4  # what PyVBMC gets in place of minus infinity
WALKERS, STEPS = 20, 1000  # of emcee


@dataclass(frozen=True, eq=False)
class Target:
    """One posterior, in the form that every method can be given.

    Attributes
    ----------
    name
        Its name in the table.
    f, prior, is_vectorized
        What `qbvi.fit` gets.
    log_evidence
        The reference.
    distance
        MMTV of draws, in the form that `f` sees, to the reference draws.
    transform
        Unit cube (d,) -> constrained values side by side (d,); None where the prior has none.
    options
        Further arguments of `qbvi.fit`.
    """

    name: str
    f: Callable[[Any], Any]
    prior: Any
    is_vectorized: bool
    log_evidence: float
    distance: Callable[[Any], float]
    transform: Callable[[Array], Array] | None
    options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def model(self) -> Model:
        """The map between u and the values that `f` sees. Discrete parameters stay as they are."""
        discrete = [p.name for p in Model(self.prior).parameters if p.distribution.support.is_discrete]
        return Model(self.prior, native=discrete)

    def log_likelihood(self, values: Any) -> float:
        """`f` at one point, given as a batch of one."""
        if self.is_vectorized:
            found = np.asarray(self.f(values))[0]
        else:
            found = self.f({k: v[0] for k, v in values.items()} if isinstance(values, dict) else values[0])
        return -math.inf if np.isnan(found) else float(found)

    def log_joint(self, u: Array) -> float:
        """Log density of one unconstrained point (d,), up to the evidence."""
        batch = np.reshape(u, (1, -1))
        with np.errstate(all="ignore"):
            return self.log_likelihood(self.model.constrain(batch)) + float(self.model.log_prior(batch)[0])

    def log_likelihood_of_row(self, x: Array) -> float:
        """`f` at constrained values side by side (d,)."""
        with np.errstate(all="ignore"):
            return self.log_likelihood(self.model.unflatten(np.reshape(x, (1, -1))))

    def starts(self, n: int, seed: int) -> Array:
        """Draws of the prior, unconstrained (n, d); of the start of `qbvi.fit` where the prior is flat."""
        rng, columns = np.random.default_rng(seed), []
        for p in self.model.parameters:
            if p.distribution.can_sample:
                columns.append(p.unconstrain(p.distribution.sample(rng, n)))
            else:
                location, scale = p.initial()
                columns.append(location + scale * rng.standard_normal((n, len(location))))
        return np.column_stack(columns)


class Answer(NamedTuple):
    """What a method says: draws in the form that the function sees, log evidence, and whether it says converged."""

    draws: Any
    log_evidence: float = math.nan
    log_evidence_se: float = math.nan
    converged: bool | None = None


class Metered:
    """A function that counts its calls and the CPU seconds in them."""

    def __init__(self, function: Callable) -> None:
        self.function, self.calls, self.seconds = function, 0, 0.0

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        self.calls += 1
        start = time.process_time()
        try:
            return self.function(*args)
        finally:
            self.seconds += time.process_time() - start


class Meter:
    """The metered functions of one fit. Only the one with the likelihood counts evaluations."""

    def __init__(self) -> None:
        self.parts: list[Metered] = []

    def __call__(self, function: Callable) -> Metered:
        """Meter one more function."""
        self.parts.append(Metered(function))
        return self.parts[-1]

    @property
    def evals(self) -> int:
        """Calls of the function that was metered first."""
        return self.parts[0].calls if self.parts else 0

    @property
    def seconds(self) -> float:
        """CPU seconds in all of them."""
        return sum(part.seconds for part in self.parts)


def ours(target: Target, meter: Meter, seed: int, options: dict) -> Answer:
    """`qbvi.fit` with nothing set but the budget."""
    f = meter(target.f)
    settings = {"max_evals": MAX_EVALS, "vectorized": target.is_vectorized} | target.options | options
    fit = qbvi.fit(f, target.prior, seed=seed, progress=False, **settings)
    f.calls = fit.n_evals  # a vectorised call has many points
    return Answer(fit.sample(N_DRAWS, seed=1), fit.evidence, fit.evidence_se, bool(fit.converged))


def vbmc(target: Target, meter: Meter, seed: int, options: dict) -> Answer:
    """PyVBMC on the unconstrained scale."""
    from pyvbmc import VBMC

    _refuse_discrete(target)
    log_joint = meter(target.log_joint)
    low, start, high = np.quantile(target.starts(100_000, seed), [ndtr(-1), 0.5, ndtr(1)], axis=0)

    def finite(u: Array) -> float:
        value = log_joint(u)
        return value if math.isfinite(value) else FLOOR

    settings = {"display": "off"} | options
    posterior, found = VBMC(finite, start[None], None, None, low[None], high[None], settings, seed=seed).optimize()
    draws = posterior.sample(N_DRAWS)[0]
    return Answer(target.model.constrain(draws), found["elbo"], found["elbo_sd"], bool(found["success_flag"]))


def nested(target: Target, meter: Meter, seed: int, options: dict) -> Answer:
    """The nested importance sampler nautilus in the unit cube of the prior."""
    from nautilus import Sampler

    if target.transform is None:
        raise NotImplementedError("its prior has no transform from the unit cube")
    likelihood, transform = meter(target.log_likelihood_of_row), meter(target.transform)
    sampler = Sampler(transform, likelihood, n_dim=target.model.dim, seed=seed, **options)
    sampler.run()
    points, log_weights, _ = sampler.posterior()
    weights = np.exp(log_weights - log_weights.max())
    chosen = np.random.default_rng(seed).choice(len(points), N_DRAWS, p=weights / weights.sum())
    return Answer(target.model.unflatten(points[chosen]), float(sampler.log_z), float(sampler.n_eff) ** -0.5)


def ensemble(target: Target, meter: Meter, seed: int, options: dict) -> Answer:
    """The stretch move of emcee on the unconstrained scale."""
    import emcee

    _refuse_discrete(target)
    settings = {"walkers": max(WALKERS, 2 * target.model.dim), "steps": STEPS} | options
    log_joint = meter(target.log_joint)
    inside = (u for u in target.starts(100_000, seed) if math.isfinite(log_joint(u)))
    start = np.array(list(islice(inside, settings["walkers"])))
    sampler = emcee.EnsembleSampler(len(start), target.model.dim, log_joint)
    sampler.random_state = np.random.RandomState(seed).get_state()
    sampler.run_mcmc(start, settings["steps"])
    draws = sampler.get_chain(discard=settings["steps"] // 2, flat=True)
    return Answer(target.model.constrain(np.random.default_rng(seed).choice(draws, N_DRAWS, replace=False)))


METHODS: dict[str, tuple[str, Callable[[Target, Meter, int, dict], Answer]]] = {
    "qbvi": ("qbvi", ours),
    "PyVBMC": ("pyvbmc", vbmc),
    "nautilus": ("nautilus", nested),
    "emcee": ("emcee", ensemble),
}


def _refuse_discrete(target: Target) -> None:
    if target.model.is_discrete.any():
        raise NotImplementedError("a parameter is discrete")


def wild(folder: Path, only: list[str] | None) -> Iterator[Target]:
    """The problems of a folder outside of this repository."""
    sys.path.insert(0, str(folder))  # before that of this script, which has a `problems` of its own
    made, scores = importlib.import_module("problems").PROBLEMS, importlib.import_module("score").scores
    checks = json.loads((folder / "reference" / "checks.json").read_text())
    unknown = set(only or ()) - set(made)
    if unknown:
        sys.exit(f"--only must name problems of {', '.join(made)}; got {', '.join(sorted(unknown))}.")

    def target(name: str) -> Target:
        problem, exact = made[name](), np.load(folder / "reference" / f"{name}.npz")["u"].astype(float)
        return Target(
            name=name,
            f=problem.f,
            prior=problem.prior,
            is_vectorized=False,
            log_evidence=checks[name]["log_evidence"],
            distance=lambda draws: scores(problem.u(draws), exact)["mmtv"],
            transform=problem.transform if problem.proper else None,
        )

    return map(target, only or made)


def own(only: list[str] | None) -> Iterator[Target]:
    """The problems without noise of the battery of this repository; references that are not stored are computed."""
    import battery
    from battery.scores import mmtv

    def target(problem: battery.Problem) -> Target:
        fold, exact = problem.fold or (lambda u: u), problem.reference

        def distance(draws: Any) -> float:
            return mmtv(fold(problem.model.unconstrain(draws, batched=True)), fold(exact.draws))

        return Target(
            name=problem.name,
            f=problem.f,
            prior=problem.prior,
            is_vectorized=True,
            log_evidence=exact.log_evidence,
            distance=distance,
            transform=gaussian_transform(problem.model),
            options=problem.options,
        )

    chosen = [problem for problem in battery.problems(only=only) if problem.noise is None]
    if not chosen:
        sys.exit(
            f"--only must name families, shapes or problems of benchmarks/battery without noise; got {' '.join(only or ())}."
        )
    return map(target, chosen)


def gaussian_transform(model: Model) -> Callable[[Array], Array] | None:
    """The transform from the unit cube of a prior that is Gaussian in u; None for all others."""
    if not all(p.distribution.can_sample and p.quadratic() is not None for p in model.parameters):
        return None
    linear, precision = model.quadratic_prior()
    covariance = np.diag(1 / precision) if precision.ndim == 1 else np.linalg.inv(precision)
    root, mean = np.linalg.cholesky(covariance), covariance @ linear

    def transform(cube: Array) -> Array:
        return model.flatten(model.constrain((mean + root @ ndtri(cube))[None]))[0]

    return transform


class OutOfTimeError(BaseException):
    """The time of a fit is up. Not an `Exception`, so that no method takes it for a failure of the function."""


def one_fit(target: Target, method: str, seed: int, options: dict, limit: float) -> dict:
    """Fit one problem with one method, and score it."""
    row = {"problem": target.name, "d": target.model.dim, "method": method, "seed": seed}
    meter, start = Meter(), time.process_time()
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = METHODS[method][1](target, meter, seed, options)
    except NotImplementedError as reason:
        return row | {"error": f"left out, {reason}"}
    except OutOfTimeError:
        return row | {"error": f"no result in {limit:.0f} s of CPU", "evals": meter.evals}
    except Exception as error:  # noqa: BLE001 - a method that fails is a row of the table
        return row | {"error": f"{type(error).__name__}: {error}"[:300], "evals": meter.evals}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - start
    row |= {"evals": meter.evals, "outside": seconds - meter.seconds, "inside": meter.seconds}
    row |= {"mmtv": float(target.distance(answer.draws)), "converged": answer.converged}
    error = float(answer.log_evidence) - target.log_evidence
    return row | {"evidence_error": error, "evidence_se": float(answer.log_evidence_se)}


def _stop(*_: object) -> None:
    raise OutOfTimeError


HEAD = f"{'problem':22s}{'d':>3s} {'s':>2s} {'method':10s}|{'evals':>8s}{'outside':>9s} |{'mmtv':>7s} |{'logZ':>8s}{'se':>7s} | says"


def line(row: dict) -> str:
    """One row to read."""
    head = f"{row['problem']:22s}{row['d']:3d} {row['seed']:2d} {row['method']:10s}|"
    if "error" in row:
        return f"{head} {row['error'][:150]}"
    says = {True: "converged", False: "not converged", None: ""}[row["converged"]]
    return (
        f"{head}{row['evals']:8,d}{row['outside']:8.1f}s |{row['mmtv']:7.3f} |"
        f"{row['evidence_error']:8.3f}{row['evidence_se']:7.3f} | {says}"
    )


def table(found: list[dict]) -> str:
    """All rows as a Markdown table, with medians over the seeds: a row per problem, a column per method."""
    methods = [name for name in METHODS if any(row["method"] == name for row in found)]
    lines = [
        "\nMMTV at evaluations; CPU seconds outside of the function; error of the log evidence\n",
        f"| problem | d | {' | '.join(methods)} |",
        f"| --- | --- |{' --- |' * len(methods)}",
    ]
    for name, d in dict.fromkeys((row["problem"], row["d"]) for row in found):
        cells = [_cell([row for row in found if (row["problem"], row["method"]) == (name, m)]) for m in methods]
        lines.append(f"| {name} | {d} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(mine: list[dict]) -> str:
    done = [row for row in mine if "error" not in row]
    if not done:
        return mine[0]["error"].split("\n")[0][:80] if mine else ""
    evals, outside, mmtv = (float(np.median([row[key] for row in done])) for key in ("evals", "outside", "mmtv"))
    error = float(np.median([abs(row["evidence_error"]) for row in done]))
    failed = f" ({len(mine) - len(done)} of {len(mine)} failed)" if len(done) < len(mine) else ""
    evidence = "" if math.isnan(error) else f"; {error:.3f}"
    return f"{mmtv:.3f} at {evals:,.0f}; {outside:.1f} s{evidence}{failed}"


def chosen_targets(arguments: argparse.Namespace) -> Iterator[Target]:
    """The problems that the command line asks for."""
    if arguments.battery:
        return own(arguments.only)
    if arguments.wild is None:
        sys.exit(
            "Name the folder of the problems with --wild DIR or QBVI_WILD, or pass --battery for those of this project."
        )
    folder = Path(arguments.wild).resolve()
    if not (folder / "problems.py").is_file():
        sys.exit(f"--wild must be a folder with problems.py, score.py and reference; got {folder}.")
    return wild(folder, arguments.only)


def installed(methods: list[str]) -> list[str]:
    """Those methods whose package is here, imported so that no fit pays for it; the others are named."""
    found = []
    for name in methods:
        if importlib.util.find_spec(METHODS[name][0]) is None:
            print(f"{name}: {METHODS[name][0]} is not installed")
        else:
            importlib.import_module(METHODS[name][0])
            found.append(name)
    return found


def key(row: dict) -> tuple[str, str, int]:
    """What a row is of."""
    return row["problem"], row["method"], row["seed"]


def main() -> None:
    """Fit, print and store the rows, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--wild", default=os.environ.get("QBVI_WILD"), help="folder of the problems")
    parser.add_argument("--battery", action="store_true", help="the problems of benchmarks/battery")
    parser.add_argument("--only", nargs="*", default=None, help="names of problems")
    parser.add_argument("--methods", nargs="*", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=240.0, help="CPU seconds that a fit may take")
    parser.add_argument(
        "--kwargs", type=json.loads, default={}, help='settings by method, as JSON: {"qbvi": {"tol": 0.1}}'
    )
    parser.add_argument("--out", default=None, help="file that gets a line of JSON per row")
    parser.add_argument("--beside", default=None, help="rows of an earlier run, for the table at the end")
    chosen = parser.parse_args()
    targets, methods = chosen_targets(chosen), installed(chosen.methods)
    earlier = Path(chosen.beside).read_text().splitlines() if chosen.beside else []
    found = {key(row): row for row in map(json.loads, earlier)}
    print(HEAD)
    for target in targets:
        for method, seed in ((method, seed) for method in methods for seed in range(chosen.seeds)):
            row = one_fit(target, method, seed, chosen.kwargs.get(method, {}), chosen.limit)
            found[key(row)] = row
            print(line(row), flush=True)
            if chosen.out:
                with open(chosen.out, "a") as file:
                    file.write(json.dumps(row) + "\n")
    print(table(list(found.values())))


if __name__ == "__main__":
    main()
