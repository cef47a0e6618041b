"""bilby's linear regression: qbvi beside dynesty, both through ``bilby.run_sampler``.

Prints a row for each: calls of the likelihood, seconds, means, standard deviations and the log
evidence. The first row is exact.

    python benchmarks/from_bilby.py
"""

import tempfile
import time
import warnings

import bilby
import numpy as np

TIME = np.arange(0.0, 10.0, 0.1)
DATA = 0.5 * TIME + 0.2 + np.random.default_rng(123).normal(size=100)


class Line(bilby.Likelihood):
    """A line with unit noise."""

    calls = 0

    def log_likelihood(self, parameters):
        """Count, and compute."""
        type(self).calls += 1
        line = parameters["m"] * TIME + parameters["c"]
        return -0.5 * np.sum((DATA - line) ** 2) - 50 * np.log(2 * np.pi)


def exact():
    """Mean, sd and log evidence; the walls of the prior are 8 standard deviations away or more."""
    design = np.column_stack([TIME, np.ones(100)])
    precision = design.T @ design
    mean = np.linalg.solve(precision, design.T @ DATA)
    log_z = Line().log_likelihood(dict(zip("mc", mean, strict=True)))
    log_z += np.log(2 * np.pi / 20) - np.linalg.slogdet(precision)[1] / 2
    return mean, np.sqrt(np.diag(np.linalg.inv(precision))), f"{log_z:.3f}"


def run(sampler, **options):
    """One run of bilby."""
    priors = {"m": bilby.core.prior.Uniform(0, 5), "c": bilby.core.prior.Uniform(-2, 2)}
    with tempfile.TemporaryDirectory() as folder:
        result = bilby.run_sampler(Line(), priors, sampler=sampler, outdir=folder, save=False, **options)
    draws = result.posterior[["m", "c"]].to_numpy()
    return draws.mean(axis=0), draws.std(axis=0), f"{result.log_evidence:.3f} ± {result.log_evidence_err:.3f}"


def main():
    """Print the table."""
    warnings.simplefilter("ignore")
    bilby.core.utils.logger.setLevel("ERROR")
    methods = {
        "exact": exact,
        'sampler="qbvi"': lambda: run("qbvi", seed=1),
        'sampler="dynesty", nlive=250': lambda: run("dynesty", nlive=250, seed=1, print_method="interval-1000"),
    }
    print("| method | calls | seconds | m | c | log evidence |")
    print("| --- | ---: | ---: | --- | --- | --- |")
    for name, method in methods.items():
        Line.calls, begin = 0, time.perf_counter()
        mean, sd, log_z = method()
        seconds = "" if name == "exact" else f"{time.perf_counter() - begin:.1f}"
        cells = [f"{a:.4f} ± {b:.4f}" for a, b in zip(mean, sd, strict=True)]
        print("|", " | ".join([name, f"{Line.calls:,}" if seconds else "", seconds, *cells, log_z]), "|")


if __name__ == "__main__":
    main()
