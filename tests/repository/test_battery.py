"""References of benchmarks/battery agree between two independent ways, and scores are what they say."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import norm

import qbvi
from oracles import LogisticRegression

BENCHMARKS = Path(qbvi.__file__).resolve().parents[2] / "benchmarks"
if not BENCHMARKS.exists():
    pytest.skip("the benchmarks are not part of an installed package", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))
import battery
from battery import references, scores


def problem_named(name):
    (found,) = battery.problems(only=name)
    return found


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    """References are computed here, not read from an earlier run."""
    monkeypatch.setattr(references, "FOLDER", tmp_path)


# One of each kind of construction, in one and two dimensions where a grid is exact to many digits.
SMALL = ["log_gamma-0", "skew_normal-0", "student-0", "twisted-1", "modes-1", "mirrored-1", "ring-1"]
SMALL += ["laplace-1", "wall-1", "plateau-1", "rates-0", "proportions-1", "gaussian-0", "cut-1", "box-1", "ends-2"]


@pytest.mark.parametrize("name", SMALL)
def test_closed_form_agrees_with_a_grid(name):
    problem = problem_named(name)
    draws = problem.exact.draw(np.random.default_rng(0), 20_000)
    low, high = np.quantile(draws, [0.0, 1.0], axis=0)
    width = high - low
    size = 20_000 if problem.d == 1 else (1500 if problem.family == "ends" else 500)
    log_evidence, mean, _ = references.grid(problem.log_joint, low - 0.3 * width, high + 0.3 * width, size)
    # Hard edges lose up to a cell, and heavy tails reach beyond the box, by less than one in a hundred.
    assert log_evidence == pytest.approx(problem.exact.log_evidence, abs=0.02)
    # 20,000 draws: five standard errors
    assert np.all(
        np.abs(draws.mean(axis=0) - mean) < 5 * draws.std(axis=0) / np.sqrt(20_000) + 0.002 * draws.std(axis=0)
    )


@pytest.mark.parametrize("name", ["step-1", "schools-1", "linear-1", "intercepts-1", "gaussian-4"])
def test_closed_form_agrees_with_importance_weights_of_its_own_draws(name):
    """One over the mean of g / joint over exact draws is the evidence, for any density g with tails thinner than theirs."""
    problem = problem_named(name)
    log_evidence, draw = problem.exact
    u = draw(np.random.default_rng(1), 16_000)
    first, second = u[:8000], u[8000:]
    inner = narrower(first)
    logs = inner(second) - problem.log_joint(second)
    scaled = np.exp(logs - logs.max())
    se = scaled.std() / scaled.mean() / np.sqrt(len(scaled))
    assert se < 0.2  # the test has power
    assert -(logs.max() + np.log(scaled.mean())) == pytest.approx(log_evidence, abs=5 * se)


def narrower(u):
    """Log density of a Gaussian at the draws' median with half their covariance."""
    centre, sd = np.median(u, axis=0), u.std(axis=0)
    factor = np.linalg.cholesky(np.cov(u / sd, rowvar=False) / 2)
    constant = np.sum(np.log(np.diagonal(factor) * sd)) + 0.5 * len(sd) * np.log(2 * np.pi)
    return lambda x: -0.5 * np.sum(np.linalg.solve(factor, ((x - centre) / sd).T) ** 2, axis=0) - constant


@pytest.mark.parametrize("name", ["cauchy-1", "labels-0"])
def test_importance_sampling_agrees_with_a_grid(name, monkeypatch):
    monkeypatch.setattr(references, "ESS_WANTED", 5000)
    monkeypatch.setattr(references, "ROUND", 10_000)
    problem = problem_named(name)
    rng = np.random.default_rng(2)
    found = references.importance_sample(problem.log_joint, references.starts(problem, rng), rng, rounds=4)
    width = np.ptp(found.draws, axis=0)
    low, high = found.draws.min(axis=0) - 0.3 * width, found.draws.max(axis=0) + 0.3 * width
    log_evidence, mean, cov = references.grid(problem.log_joint, low, high, 500)
    assert abs(found.log_evidence - log_evidence) < 5 * found.log_evidence_se + 0.002
    sd = np.sqrt(np.diagonal(cov))
    assert np.all(np.abs(found.draws.mean(axis=0) - mean) < 5 * sd / np.sqrt(4000))


def test_best_gaussian_of_log_gammas_is_the_closed_form():
    """For u = log of a gamma variable of shape a: exp(m + s^2 / 2) = a / rate and s^2 = 1 / a."""
    problem = problem_named("rates-0")
    draws = problem.exact.draw(np.random.default_rng(3), 4000)
    mean = np.exp(draws).mean(axis=0)
    a = mean**2 / np.exp(draws).var(axis=0)
    shape = np.round(2 * a * 100) / 200  # only to find the exact one: count plus the prior's shape
    best = problem.reference.best
    a = 1 / best.cov[0, 0]
    assert a == pytest.approx(shape[0], rel=0.1)
    missing = gammaln(a) - a * np.log(a) + a + 0.5 * np.log(a) - 0.5 * np.log(2 * np.pi)
    assert problem.exact.log_evidence - best.elbo == pytest.approx(missing, abs=3 * best.se + 1e-3)


def test_best_gaussian_agrees_with_one_dimensional_integrals():
    rng = np.random.default_rng(4)
    regression = LogisticRegression(rng.standard_normal((30, 3)), rng.integers(0, 2, 30).astype(float), 5.0)
    best = regression.best_gaussian()
    near = rng.multivariate_normal(best.mean + 0.3, 2 * best.cov, 2000)
    found = references.best_gaussian(regression.log_joint, near)
    assert found.elbo == pytest.approx(best.elbo, abs=3 * found.se + 1e-4)
    assert references.gap(regression.log_joint, found, best.mean, best.cov) == pytest.approx(0, abs=1e-4)


def test_total_variation_of_two_shifted_normals():
    a, b = np.random.default_rng(5).standard_normal((2, 4000))
    assert scores.total_variation(a, b) < 0.05
    assert scores.total_variation(a, b + 1) == pytest.approx(2 * norm.cdf(0.5) - 1, abs=0.03)
    assert scores.total_variation(a, b + 100) == pytest.approx(1, abs=1e-6)


def test_a_fit_of_a_gaussian_scores_at_the_floor():
    problem = problem_named("gaussian-1")
    fit = qbvi.fit(problem.f, problem.prior, vectorized=True, seed=0)
    found = battery.score(fit, problem)
    assert abs(found.gap) < 1e-3
    assert abs(found.missing) < 1e-3
    assert found.mmtv < 0.04  # two exact samples are 0.02 to 0.03 apart
    assert found.forbidden == 0


def test_both_halves_have_every_family_and_the_same_noise_every_time():
    halves = [battery.problems(half) for half in "AB"]
    assert (
        {p.family for p in halves[0]} == {p.family for p in halves[1]} == {make.__name__ for make in battery.families()}
    )
    assert len(halves[0]) + len(halves[1]) >= 200
    noisy = next(p for p in halves[0] if p.noise is not None)
    x = np.zeros((3, noisy.d))
    f = noisy.f
    first, second = f(x), f(x)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, noisy.f(x))
