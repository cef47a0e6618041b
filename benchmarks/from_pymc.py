"""PyMC's example of a black-box likelihood: qbvi beside PyMC's own samplers.

A line with unknown slope and intercept through ten points, whose likelihood is an Op without
gradients. Prints a row for each method: calls of the Op, seconds, means, standard deviations and
the log evidence. The first row is exact.

    python benchmarks/from_pymc.py
"""

import time
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph import Apply, Op

import qbvi

X = np.linspace(0.0, 9.0, 10)
Y = 0.4 * X + 3.0 + np.random.default_rng(716743).normal(size=10)


class LogLikelihood(Op):
    """Log density of each point, by a function that PyMC cannot differentiate."""

    calls = 0

    def make_node(self, *inputs):
        """One vector from any inputs."""
        return Apply(self, [pt.as_tensor(value) for value in inputs], [pt.vector()])

    def perform(self, node, inputs, outputs):
        """Call the function."""
        type(self).calls += 1
        m, c, data = inputs
        outputs[0][0] = np.asarray(-0.5 * (data - m * X - c) ** 2 - 0.5 * np.log(2 * np.pi))


def line():
    """The model."""
    op = LogLikelihood()
    with pm.Model() as model:
        m = pm.Uniform("m", -10.0, 10.0)
        c = pm.Uniform("c", -10.0, 10.0)
        pm.CustomDist("y", m, c, observed=Y, logp=lambda data, m, c: op(m, c, data))
    return model


def exact():
    """Mean, sd and log evidence; the walls of the prior are 11 standard deviations away."""
    design = np.column_stack([X, np.ones(10)])
    precision = design.T @ design
    mean = np.linalg.solve(precision, design.T @ Y)
    log_z = -0.5 * np.sum((Y - design @ mean) ** 2) - 5 * np.log(2 * np.pi)
    log_z += np.log(2 * np.pi) - np.linalg.slogdet(precision)[1] / 2 - 2 * np.log(20.0)
    return mean, np.sqrt(np.diag(np.linalg.inv(precision))), f"{log_z:.3f}"


def by_qbvi():
    """The default fit."""
    fit = qbvi.from_pymc(line()).fit(seed=1)
    return *moments(fit.to_arviz(draws=4000, seed=1)), f"{fit.evidence:.3f} ± {fit.evidence_se:.3f}"


def by_slices():
    """What pm.sample chooses for this model, with the settings of the example."""
    with line():
        found = pm.sample(3000, tune=1000, chains=4, cores=1, random_seed=1, progressbar=False)
    return *moments(found), ""


def by_smc():
    """PyMC's sampler with an evidence."""
    with line():
        found = pm.sample_smc(2000, chains=4, cores=1, random_seed=1, progressbar=False)
    log_z = [float(np.asarray(chain)[-1]) for chain in found.sample_stats["log_marginal_likelihood"].values.tolist()]
    return *moments(found), f"{np.mean(log_z):.3f} ± {np.std(log_z, ddof=1) / 2:.3f}"


def moments(found):
    """Mean and sd of slope and intercept."""
    draws = np.stack([np.ravel(found.posterior[name]) for name in ("m", "c")])
    return draws.mean(axis=1), draws.std(axis=1)


def main():
    """Print the table."""
    warnings.simplefilter("ignore")
    print("| method | calls | seconds | m | c | log evidence |")
    print("| --- | ---: | ---: | --- | --- | --- |")
    for name, method in {"exact": exact, "qbvi": by_qbvi, "pm.sample": by_slices, "pm.sample_smc": by_smc}.items():
        LogLikelihood.calls, begin = 0, time.perf_counter()
        mean, sd, log_z = method()
        seconds = "" if name == "exact" else f"{time.perf_counter() - begin:.1f}"
        cells = [f"{a:.3f} ± {b:.3f}" for a, b in zip(mean, sd, strict=True)]
        print("|", " | ".join([name, f"{LogLikelihood.calls:,}" if seconds else "", seconds, *cells, log_z]), "|")


if __name__ == "__main__":
    main()
