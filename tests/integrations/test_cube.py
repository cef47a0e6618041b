"""from_cube: the two functions of a nested sampler give the posterior and evidence of theta."""

import pickle

import numpy as np
import pytest
import scipy

import qbvi
from qbvi.supports import UnitCube

X = np.array([-1.0, 0.0, 1.0, 2.0])
Y = np.array([-0.8, 1.1, 2.9, 5.2])


def line_transform(u):
    """Independent priors: a normal slope, a normal intercept."""
    return np.array([2.0 * scipy.special.ndtri(u[0]), 1.0 + 3.0 * scipy.special.ndtri(u[1])])


def line_log_likelihood(theta):
    # Written out, and `scipy.stats` is imported where it is needed: each process that calls this imports the module.
    return float(np.sum(-0.5 * ((Y - theta[0] * X - theta[1]) / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi))))


def hierarchical_transform(u):
    """A conditional prior: the second parameter is normal around the first, with the third as sd."""
    centre, sd = 10 * u[0] - 5, -np.log(u[2])
    return np.array([centre, centre + sd * scipy.special.ndtri(u[1]), sd])


def hierarchical_log_likelihood(theta):
    return float(scipy.stats.norm.logpdf(2.0, theta[1], 0.3) + scipy.stats.norm.logpdf(theta[2], 1.0, 0.2))


def mixing_transform(u):
    """A rotation in the cube: no entry depends on one coordinate alone."""
    a, b = scipy.special.ndtri(u)
    return np.array([a + b, a - b])


@pytest.fixture(scope="module")
def line():
    return qbvi.from_cube(line_transform, line_log_likelihood, 2, names=["slope", "intercept"])


@pytest.fixture(scope="module")
def line_fit(line):
    return line.fit(seed=1)


def exact_line():
    """Mean, covariance and log evidence of the conjugate line."""
    design, prior_cov, centre = np.stack([X, np.ones(4)], 1), np.diag([4.0, 9.0]), np.array([0.0, 1.0])
    cov = np.linalg.inv(np.linalg.inv(prior_cov) + design.T @ design / 0.25)
    mean = cov @ (np.linalg.solve(prior_cov, centre) + design.T @ Y / 0.25)
    spread = design @ prior_cov @ design.T + 0.25 * np.eye(4)
    return mean, cov, scipy.stats.multivariate_normal.logpdf(Y, design @ centre, spread)


def test_posterior_of_a_line_is_the_exact_one(line_fit):
    mean, cov, evidence = exact_line()
    sd = np.sqrt(np.diag(cov))
    assert line_fit.converged
    # A missing of 0.05 nats allows means to be off by sqrt(2 * 0.05) = 0.3 sd at most; this target is Gaussian in z.
    np.testing.assert_allclose(line_fit.mean, mean, atol=0.03 * sd.max())
    np.testing.assert_allclose(line_fit.sd, sd, rtol=0.03)
    assert abs(line_fit.evidence - evidence) < 0.02 + 4 * line_fit.evidence_se


def test_names_are_the_labels_of_tables_quantiles_and_exports(line_fit):
    assert line_fit.labels == ("slope", "intercept")
    assert [row.parameter for row in line_fit.summary()] == ["slope", "intercept"]
    assert line_fit.quantiles([0.1, 0.9]).shape == (2, 2)
    exported = line_fit.to_arviz(kind="datatree", draws=50, seed=1)
    assert set(exported["posterior"].data_vars) == {"slope", "intercept"}


def test_log_prob_is_the_density_of_theta(line_fit):
    mean, cov, _ = exact_line()
    theta = line_fit.sample(5, seed=3)
    exact = scipy.stats.multivariate_normal.logpdf(theta, mean, cov)
    np.testing.assert_allclose(line_fit.log_prob(theta, batched=True), exact, atol=0.15)
    assert line_fit.log_prob(mean) == pytest.approx(scipy.stats.multivariate_normal.logpdf(mean, mean, cov), abs=0.1)


def test_log_prob_is_minus_infinity_where_the_transform_does_not_reach():
    fit = qbvi.from_cube(lambda u: 10 * u, lambda t: -0.5 * np.sum((t - 5) ** 2), 2).fit(seed=1)
    assert fit.log_prob([5.0, 11.0]) == -np.inf
    both = fit.log_prob([[5.0, 11.0], [5.0, 5.0]], batched=True)
    assert both[0] == -np.inf
    assert both[1] == pytest.approx(-np.log(2 * np.pi), abs=0.1)  # 0.05 nats may be missing


def test_conditional_priors_are_fitted_and_inverted():
    fit = qbvi.from_cube(hierarchical_transform, hierarchical_log_likelihood, 3).fit(seed=1)
    assert fit.converged
    density = scipy.stats.expon.pdf(s := np.linspace(0.01, 3, 400)) * scipy.stats.norm.pdf(s, 1.0, 0.2)
    # The first parameter is uniform on an interval much wider than sd: it leaves no term in s.
    expected = np.average(s, weights=density)
    assert abs(fit.mean[2] - expected) < 0.03
    theta = fit.sample(20, seed=2)
    u = fit.model.unconstrain(theta, batched=True)
    np.testing.assert_allclose(fit.model.constrain(u), theta, rtol=1e-9, atol=1e-9)
    assert np.isfinite(fit.log_prob(theta, batched=True)).all()


def test_mixed_coordinates_are_fitted_and_log_prob_says_what_it_needs():
    problem = qbvi.from_cube(mixing_transform, lambda t: -0.5 * float(t @ t), 2)
    fit = problem.fit(seed=1)
    np.testing.assert_allclose(fit.sd, np.sqrt(1 / (1 / 2 + 1)), rtol=0.03)
    with pytest.raises(ValueError, match="pass inverse="):
        fit.log_prob([0.0, 0.0])
    inverse = lambda t: scipy.special.ndtr(np.array([t[0] + t[1], t[0] - t[1]]) / 2)
    with_inverse = qbvi.from_cube(mixing_transform, lambda t: -0.5 * float(t @ t), 2, inverse=inverse).fit(seed=1)
    assert with_inverse.log_prob([0.0, 0.0]) == pytest.approx(-np.log(2 * np.pi * 2 / 3), abs=0.05)


def test_a_vectorized_pair_gives_the_same_posterior(line_fit):
    problem = qbvi.from_cube(
        lambda u: np.stack([2.0 * scipy.special.ndtri(u[:, 0]), 1.0 + 3.0 * scipy.special.ndtri(u[:, 1])], 1),
        lambda t: scipy.stats.norm.logpdf(Y, t[:, :1] * X + t[:, 1:], 0.5).sum(1),
        2,
        vectorized=True,
    )
    np.testing.assert_allclose(problem.fit(seed=1).mean, line_fit.mean, rtol=1e-6)


def test_a_transform_that_returns_a_dict_names_the_parameters(line_fit):
    problem = qbvi.from_cube(
        lambda u: dict(zip(("slope", "intercept"), line_transform(u), strict=True)),
        lambda p: line_log_likelihood([p["slope"], p["intercept"]]),
        2,
    )
    fit = problem.fit(seed=1)
    assert fit.labels == ("slope", "intercept")
    np.testing.assert_array_equal(fit.mean, line_fit.mean)


def test_same_seed_same_bits_in_processes_too(line, line_fit):
    again = qbvi.fit(line, seed=1)
    assert again.elbo == line_fit.elbo
    assert again.q.tobytes() == line_fit.q.tobytes()
    assert line.fit(seed=1, executor=2).q.tobytes() == line_fit.q.tobytes()
    assert pickle.loads(pickle.dumps(line_fit)).mean.tobytes() == line_fit.mean.tobytes()


def test_a_saved_fit_is_loaded_with_its_problem(line, line_fit, tmp_path):
    line_fit.save(tmp_path / "line.qbvi")
    loaded = qbvi.load(tmp_path / "line.qbvi", prior=line)
    assert loaded.mean.tobytes() == line_fit.mean.tobytes()
    assert loaded.labels == line_fit.labels
    with pytest.raises(ValueError, match="pass `prior=`"):
        qbvi.load(tmp_path / "line.qbvi")


def test_a_checkpoint_resumes_to_the_same_bits(line, line_fit, tmp_path):
    calls = []

    def interrupted_once(theta):
        calls.append(theta)
        if len(calls) == 15:
            raise KeyboardInterrupt
        return line_log_likelihood(theta)

    problem, path = qbvi.Problem(interrupted_once, line.prior), tmp_path / "run"
    assert not problem.fit(seed=1, checkpoint=path, on_mismatch="keep").converged
    resumed = problem.fit(seed=1, checkpoint=path, on_mismatch="keep")
    assert resumed.q.tobytes() == line_fit.q.tobytes()
    assert len(calls) == line_fit.n_evals + 1


def test_ask_gives_points_of_theta_and_the_same_fit(line, line_fit):
    opt = line.ask(seed=1)
    while not opt.done:
        points = opt.ask()
        for point, number in zip(points, points.ids, strict=True):
            opt.tell(number, line.log_likelihood(point))
    assert opt.fit().q.tobytes() == line_fit.q.tobytes()


def test_evaluations_of_an_earlier_fit_save_calls(line, line_fit):
    again = line.fit(evaluations=line_fit, seed=2)
    assert again.n_evals < line_fit.n_evals
    np.testing.assert_allclose(again.mean, line_fit.mean, atol=0.02)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda u: np.append(u, 1.0), r"must return 2 numbers.*got shape \(3,\)"),
        (lambda u: 0.5, r"must return 2 numbers.*got shape \(\)"),
        (lambda u: ["a", "b"], "must return 2 numbers"),
        (lambda u: u * np.nan, r"finite numbers, got \[nan, nan\] at \[0.5, 0.5\]"),
        (lambda u: {"a": u[0]}, "2 numbers by name, got 'a'"),
    ],
)
def test_wrong_transforms_are_refused_at_once(transform, message):
    with pytest.raises(ValueError, match=message):
        qbvi.from_cube(transform, line_log_likelihood, 2)


def test_a_transform_that_fails_in_the_tails_is_refused_with_the_place():
    problem = qbvi.from_cube(lambda u: np.where(u > 0.9, np.inf, u), lambda t: -float(t @ t), 2)
    with pytest.raises(ValueError, match="`prior_transform` must return finite numbers, got"):
        problem.fit(seed=1)


@pytest.mark.parametrize("names", [["a"], ["a", "a"], ["a", ""], ["a", 3], "ab"])
def test_wrong_names_are_refused(names):
    with pytest.raises(ValueError, match="`names` must be 2 different names"):
        qbvi.from_cube(line_transform, line_log_likelihood, 2, names=names)


def test_log_jacobian_is_that_of_the_densities():
    support = UnitCube(scipy.stats.cauchy.ppf, 3)
    z = np.random.default_rng(0).standard_normal((6, 3))
    theta = support.constrain(z, (3,))
    exact = (scipy.stats.norm.logpdf(z) - scipy.stats.cauchy.logpdf(theta)).sum(axis=1)
    # Central differences with steps of 1e-4 are exact to about the square of the step.
    np.testing.assert_allclose(support.log_jacobian(z, (3,)), exact, atol=1e-6)


@pytest.mark.integrations
def test_a_prior_of_nautilus_names_the_parameters():
    nautilus = pytest.importorskip("nautilus", reason="nautilus is not installed")
    prior = nautilus.Prior()
    prior.add_parameter("slope", dist=scipy.stats.norm(0.0, 2.0))
    prior.add_parameter("intercept", dist=scipy.stats.norm(1.0, 3.0))
    problem = qbvi.from_cube(
        prior.unit_to_dictionary,
        lambda p: line_log_likelihood([p["slope"], p["intercept"]]),
        prior.dimensionality(),
    )
    fit = problem.fit(seed=1)
    assert fit.labels == ("slope", "intercept")
    mean, cov, _ = exact_line()
    assert np.max(np.abs(fit.mean - mean) / np.sqrt(np.diag(cov))) < 0.1


def test_further_arguments_of_the_likelihood():
    def likelihood(theta, y):
        return -0.5 * float(np.sum((theta - y) ** 2))

    given = qbvi.from_cube(lambda u: 10 * u - 5, likelihood, 2, args=(np.array([1.0, 2.0]),)).fit(seed=1)
    bound = qbvi.from_cube(lambda u: 10 * u - 5, lambda theta: likelihood(theta, np.array([1.0, 2.0])), 2).fit(seed=1)
    assert given.q.tobytes() == bound.q.tobytes()
