"""The line of dynesty's examples, by nested samplers and by qbvi: calls, seconds, moments, evidence.

``python benchmarks/from_dynesty.py`` prints the table of docs/from/dynesty.md. It needs dynesty. With
``--nautilus`` it prints the line of nautilus too.
"""

from __future__ import annotations

import argparse

import dynesty
import line
import numpy as np
from coming_from import Counted, Row, Watch, show

import qbvi


def by_dynesty() -> tuple[Row, object]:
    """Dynesty with its defaults."""
    counted, watch = Counted(line.log_likelihood), Watch()
    sampler = dynesty.NestedSampler(counted, line.prior_transform, 3, rstate=np.random.default_rng(1))
    sampler.run_nested(print_progress=False)
    seconds, results = watch.seconds, sampler.results
    mean, cov = dynesty.utils.mean_and_cov(results.samples, results.importance_weights())
    evidence = float(results.logz[-1]), float(results.logzerr[-1])
    row = Row("dynesty, `NestedSampler`", counted.calls, seconds, mean, np.sqrt(np.diag(cov)), evidence)
    return row, results


def by_nautilus() -> Row:
    """Nautilus with its defaults."""
    import nautilus

    counted, watch = Counted(line.log_likelihood), Watch()
    sampler = nautilus.Sampler(line.prior_transform, counted, n_dim=3, pass_dict=False, seed=1)
    sampler.run()
    points, log_w, _ = sampler.posterior()
    weights = np.exp(log_w - log_w.max())
    mean = np.average(points, axis=0, weights=weights)
    sd = np.sqrt(np.average((points - mean) ** 2, axis=0, weights=weights))
    evidence = float(sampler.log_z), float(1 / np.sqrt(sampler.n_eff))
    return Row("nautilus, `Sampler`", counted.calls, watch.seconds, mean, sd, evidence)


def main(with_nautilus: bool) -> None:
    """The table of the page."""
    first, results = by_dynesty()
    rows = [first]
    if with_nautilus:
        rows.append(by_nautilus())
    problem = qbvi.from_cube(line.prior_transform, line.log_likelihood, 3, names=line.NAMES)
    rows.append(Row.of("`qbvi.from_cube`", problem))
    rows.append(Row.of("the same, `evaluations=results`", problem, evaluations=results))
    show(line.NAMES, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nautilus", action="store_true")
    main(parser.parse_args().nautilus)
