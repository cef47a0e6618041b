"""What every number of the rule book is worth: each one halved and doubled in turn, the rest as it is.

For each number: evaluations at the stop relative to the default rules (geometric mean over problems and seeds), the worst gap
to the best Gaussian of the fits that say converged, and how many do not. Where neither column moves, the number is not
critical; where one does, the default was chosen by it.

Run: ``python benchmarks/rules.py [--seeds 2] [--only trust_region.poor] [--largest 12]``.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator

import numpy as np
from problems import Problem, everything

import qbvi
from qbvi.regression.rules import Rules

FACTORS = (0.5, 2.0)
# One of each kind: exact quadratics, regressions, and posteriors with skewness, curvature and several scales.
NAMES = (
    "gaussian-d2-condition1e+00",
    "gaussian-d10-condition1e+04",
    "labour",
    "arK-arK",
    "earnings-logearn_interaction",
    "gp_pois_regr-gp_regr",
    "low_dim_gauss_mix-low_dim_gauss_mix",
)


@dataclasses.dataclass
class Outcome:
    """Fits of all problems with one set of rules."""

    n_evals: np.ndarray
    worst: float  # gap of the fits that say converged
    unsettled: int


def variants(rules: Rules) -> Iterator[tuple[str, float, Rules]]:
    """Every number of every rule, halved and doubled: its name, the new value, and the rules with it."""
    for part in dataclasses.fields(rules):
        rule = getattr(rules, part.name)
        for item in dataclasses.fields(rule):
            value = getattr(rule, item.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            for factor in FACTORS:
                new = type(value)(round(value * factor)) if isinstance(value, int) else value * factor
                if new != value and new > 0:
                    changed = dataclasses.replace(rule, **{item.name: new})
                    yield f"{part.name}.{item.name}", new, dataclasses.replace(rules, **{part.name: changed})


def outcome(problems: list[Problem], rules: Rules, seeds: int) -> Outcome:
    """Fit every problem with every seed."""
    n_evals, gaps, unsettled = [], [0.0], 0
    for problem in problems:
        for seed in range(seeds):
            method = qbvi.Regression(rules=rules)
            prior = qbvi.Flat(shape=problem.d)
            options = {"vectorized": True, "seed": seed, "on_failure": "exclude", "progress": False, "max_evals": 5000}
            fit = qbvi.fit(problem.log_joint, prior, method=method, **options)
            n_evals.append(fit.n_evals)
            if fit.converged:
                gaps.append(problem.gap(*fit.unconstrained).nats)
            unsettled += not fit.converged
    return Outcome(np.array(n_evals), max(gaps), unsettled)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="", help="part of a number's name")
    parser.add_argument("--largest", type=int, default=12, help="largest dimension")
    options = parser.parse_args()
    problems = [p for p in everything() if p.name in NAMES and p.d <= options.largest]
    usual = outcome(problems, Rules(), options.seeds)
    print(f"{len(usual.n_evals)} fits with each set of rules: {', '.join(p.name for p in problems)}")
    print(f"{'number':38s}{'value':>10s}{'evaluations':>13s}{'worst gap':>11s}{'unsettled':>11s}")
    print(f"{'default':38s}{'':10s}{usual.n_evals.sum():13,d}{usual.worst:11.4f}{usual.unsettled:11d}", flush=True)
    for name, value, rules in variants(Rules()):
        if options.only in name:
            found = outcome(problems, rules, options.seeds)
            ratio = np.exp(np.mean(np.log(found.n_evals / usual.n_evals)))
            print(f"{name:38s}{value:10.3g}{ratio:13.2f}{found.worst:11.4f}{found.unsettled:11d}", flush=True)


if __name__ == "__main__":
    main()
