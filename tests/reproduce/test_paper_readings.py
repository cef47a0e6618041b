"""The batched loop of benchmarks/paper_readings.py takes the same steps as the library's own."""

import sys
from pathlib import Path

import numpy as np
import pytest

import qbvi
from qbvi.algorithm import Values
from qbvi.families import DiagonalGaussian, Gaussian
from qbvi.reproduce import exact

BENCHMARKS = Path(qbvi.__file__).resolve().parents[2] / "benchmarks"
if not BENCHMARKS.exists():
    pytest.skip("the benchmarks are not part of an installed package", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))
import paper_readings as readings

D, TAU = 3, 0.2
METHODS = {
    "literal": (readings.PRINTED, qbvi.paper("literal")),
    "centred": (
        readings.replace(readings.PRINTED, variance="centred"),
        qbvi.paper(estimator="control-variate-centred"),
    ),
    "nearest": (readings.NEAREST, qbvi.paper()),
}


@pytest.fixture
def problem(rng):
    design = rng.standard_normal((40, D))
    y = (rng.random(40) < 0.5).astype(float)
    bound = exact.LogisticBound(design, y, 1 / TAU)
    flipped = (1 - 2 * y)[:, None] * design

    def f(theta):
        return -np.logaddexp(0, theta @ flipped.T).sum(axis=1)

    return f, bound


@pytest.mark.parametrize("family", ["full", "diagonal"])
@pytest.mark.parametrize("name", list(METHODS))
def test_its_steps_are_those_of_the_library(problem, name, family):
    f, bound = problem
    reading, method = METHODS[name]
    given = readings.Problem(family, D, f, np.full(D, TAU), np.zeros(D), bound, bound.best(family == "diagonal"))
    runs = readings.iterate(given, reading, seeds=2, iterations=6)

    law = Gaussian(D) if family == "full" else DiagonalGaussian(D)
    eta = law.embed(np.zeros(D), np.full(D, TAU))
    seed = 1
    rng = np.random.default_rng([seed, 2022])
    rng.standard_normal(D)  # the start of the mean, which these readings do not use
    state = method.init(law, law.start(np.zeros(D), np.full(D, 0.1**0.5)))
    for t in range(6):
        mean, cov = law.mean(state.q), law.cov(state.q)
        np.testing.assert_allclose(runs.mean[t, seed], mean, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(readings._covariance(runs.precision[t, seed]), cov, rtol=1e-7, atol=1e-9)
        theta = mean + rng.standard_normal((readings.DRAWS, D)) @ np.linalg.cholesky(cov).T
        prior = 0.5 * D * np.log(TAU / (2 * np.pi)) - 0.5 * TAU * np.sum(theta**2, axis=1)
        values = Values(f(theta), f(theta) + prior, np.ones(len(theta), bool), np.zeros(len(theta)))
        state, info = method.tell(law, eta, state, theta, values)
        assert runs.bound[t, seed] == pytest.approx(float(info.bound), rel=1e-9)
    assert not runs.lost.any()
