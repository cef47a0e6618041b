"""Regression for low rank plus a diagonal: exact where the target is, near the best member elsewhere, and a whole product."""

import numpy as np
import pytest
import scipy.special

import qbvi
from libraries import on_eager_libraries
from qbvi.arrays import to_numpy
from qbvi.families import Gaussian, LowRankGaussian
from qbvi.families.low_rank import Form, Spikes, worth
from qbvi.protocol import Values
from qbvi.regression.low_rank import LowRankRules
from qbvi.regression.stars import Effort, Surrogate, observed, regress, star_points
from sweeps import sweep


class Target:
    """A Gaussian log-likelihood whose covariance, or precision, is D + FF'."""

    def __init__(self, d, rank, kind, seed=7):
        rng = np.random.default_rng(seed)
        F = rng.standard_normal((d, rank))
        matrix = np.diag(np.exp(rng.uniform(-1, 1, d))) + F @ F.T
        self.cov = matrix if kind == "covariance" else np.linalg.inv(matrix)
        self.precision = np.linalg.inv(self.cov)
        self.mean = rng.standard_normal(d)
        self._root = np.linalg.cholesky(self.precision)

    def __call__(self, theta):
        return -0.5 * np.sum(((theta - self.mean) @ self._root) ** 2, axis=1)

    def kl(self, fit):
        cov, shift = fit.family.cov(fit.q), fit.family.mean(fit.q) - self.mean
        product = cov @ self.precision
        return 0.5 * (np.trace(product) - len(shift) - np.linalg.slogdet(product)[1] + shift @ self.precision @ shift)


def fitted(target, rank, **options):
    given = {"family": qbvi.LowRank(rank=rank), "vectorized": True, "seed": 1} | options
    return qbvi.fit(target, qbvi.Flat(shape=len(target.mean)), **given)


@pytest.fixture(scope="module")
def recovered():
    target = Target(30, 2, "covariance")
    return target, fitted(target, 2)


def test_a_covariance_of_low_rank_is_recovered(recovered):
    target, fit = recovered
    assert fit.converged
    assert target.kl(fit) < 0.01  # the tolerance


def test_a_precision_of_low_rank_is_recovered():
    target = Target(30, 2, "precision")
    fit = fitted(target, 2)
    assert fit.converged
    assert target.kl(fit) < 0.01


@pytest.mark.parametrize("size", sweep([(20, 5), (50, None), (200, None)], first=1))
def test_the_rank_follows_from_the_data(size):
    """Two directions are found of those that may be; others that are used have hardly any effect."""
    d, most = size
    target = Target(d, 2, "covariance")
    fit = fitted(target, most)
    assert fit.converged
    assert target.kl(fit) < 0.02
    assert np.sum(worth(fit.family.open(fit.q)[1].lam) > 0.5) == 2


def test_a_posterior_without_correlations_uses_no_direction():
    fit = qbvi.fit(
        lambda x: -0.5 * np.sum(x**2, axis=1), qbvi.Normal(0, 1, shape=20), family="low-rank", vectorized=True, seed=1
    )
    assert fit.converged
    assert np.all(fit.family.open(fit.q)[1].lam == 1)
    np.testing.assert_allclose(fit.sd, np.sqrt(0.5), rtol=0.02)


def stars_of(f, family, q, rng, m):
    points = star_points(family, q, *rng.standard_normal((2, m, family.dim)))
    return observed(family, q, points, f(points))


def nothing(d, p):
    return Surrogate(np.zeros(d), np.zeros(d), Form(np.zeros(d), np.eye(d, p), np.zeros(p)))


def test_every_point_of_a_star_is_a_draw_from_q(rng):
    d, m = 3, 40_000
    family = LowRankGaussian(d, 1)
    spikes = Spikes(np.array([1.0, 2.0, 0.5]), np.full((d, 1), d**-0.5), np.array([0.1]))
    q = family.member(np.array([1.0, -1.0, 0.0]), spikes)
    points = star_points(family, q, *rng.standard_normal((2, m, d)))
    moved = points[m:].reshape(m, d, d)
    assert np.all(np.sum(moved != points[:m, None, :], axis=2) == 1)
    for i in range(d):
        z = family.whiten(q, moved[:, i, :])
        # Means and covariances of m normals: six standard errors.
        np.testing.assert_allclose(z.mean(axis=0), 0, atol=6 / np.sqrt(m))
        np.testing.assert_allclose(np.cov(z.T), np.eye(d), atol=6 * np.sqrt(2 / m))


@pytest.mark.parametrize(("d", "rank", "m"), [(40, 2, 12), (100, 4, 18)])
def test_a_quadratic_of_few_directions_is_found_from_few_stars(d, rank, m, rng):
    target = Target(d, rank, "covariance")
    family = LowRankGaussian(d, rank)
    stars = stars_of(target, family, family.start(np.zeros(d), np.ones(d)), rng, m)
    found = nothing(d, rank + 2)
    for _ in range(6):
        found = regress(stars, found, Effort(np.array(rank + 2), 2, 8, 30))
    np.testing.assert_allclose(found.T.apply(np.eye(d)), -target.precision, atol=1e-2)
    np.testing.assert_allclose(found.g, target.precision @ target.mean, atol=1e-2)
    new = stars_of(target, family, family.start(np.zeros(d), np.ones(d)), rng, 1)
    assert found.missed(new)[1] < 1e-3


def test_slopes_without_a_value_do_not_count(rng):
    target, family = Target(20, 1, "covariance"), LowRankGaussian(20, 1)
    failing = lambda x: np.where(rng.uniform(size=len(x)) < 0.1, -np.inf, target(x))
    stars = stars_of(failing, family, family.start(np.zeros(20), np.ones(20)), rng, 20)
    assert np.mean(stars.weight == 0) > 0.1
    found = nothing(20, 3)
    for _ in range(4):
        found = regress(stars, found, Effort(np.array(3), 2, 8, 30))
    np.testing.assert_allclose(found.T.apply(np.eye(20)), -target.precision, atol=1e-2)


def test_stars_estimate_the_expected_hessian_of_any_function(rng):
    """Of f = sum x^4 + x_0^2 x_1^2 under N(0, I): 12 on the diagonal, and 2 more for the pair, with no gradient."""
    d = 6
    family = LowRankGaussian(d, 1)
    f = lambda x: np.sum(x**4, axis=1) + x[:, 0] ** 2 * x[:, 1] ** 2
    stars = stars_of(f, family, family.start(np.zeros(d), np.ones(d)), rng, 20_000)
    found = regress(stars, nothing(d, d), Effort(np.array(d), 2, 2, 15))
    expected = np.diag([14.0, 14.0, 12.0, 12.0, 12.0, 12.0])
    np.testing.assert_allclose(found.T.apply(np.eye(d)), expected, atol=1.0)  # the standard errors are 0.2
    np.testing.assert_allclose(found.g, 0, atol=1.0)


def test_a_logistic_regression_comes_near_the_best_member(rng):
    """The posterior is nearly the full Gaussian, and the member nearest to that has a known divergence from it."""
    n, d = 200, 6
    x = rng.standard_normal((n, 3)) @ rng.standard_normal((3, d)) + 0.3 * rng.standard_normal((n, d))
    y = (x @ np.full(d, 0.3) + rng.logistic(size=n) > 0).astype(float)
    f = lambda beta: np.sum((beta @ x.T) * y + scipy.special.log_expit(-(beta @ x.T)), axis=1)
    prior, options = qbvi.Normal(0, 1, shape=d), {"vectorized": True, "seed": 1, "max_evals": 6000}
    full = qbvi.fit(f, prior, family="full", **options)
    fit = qbvi.fit(f, prior, family=qbvi.LowRank(rank=1), **options)
    best = fit.family.from_moments(*full.unconstrained)
    missing = Gaussian(d).kl(fit.family.full(best), full.q)
    assert fit.elbo - full.elbo > -missing - 0.15  # the largest tolerance is 0.1 nats, and the bounds have errors
    assert missing > 1  # so that there is something to see


def test_the_product_knows_the_family(recovered, tmp_path):
    target, fit = recovered
    assert "rank 2 plus a diagonal" in repr(fit)
    np.testing.assert_allclose(fit.sd, np.sqrt(np.diag(target.cov)), rtol=0.05)
    draws = fit.sample(20_000, seed=3)
    np.testing.assert_allclose(draws.std(axis=0), fit.sd, rtol=0.05)
    fit.save(tmp_path / "fit.npz")
    loaded = qbvi.load(tmp_path / "fit.npz")
    assert loaded.family == fit.family
    np.testing.assert_array_equal(loaded.q, fit.q)
    np.testing.assert_allclose(loaded.log_prob(draws[:5]), fit.log_prob(draws[:5]))
    assert fit.khat < 0.7
    assert fit.missing < 0.05
    assert "theta[29]" in str(fit.summary())


def test_an_interrupted_fit_goes_on_from_its_checkpoint(tmp_path):
    target, path = Target(10, 1, "covariance"), tmp_path / "run.ckpt"
    whole = fitted(target, 1)
    fitted(target, 1, checkpoint=path, max_evals=whole.n_evals // 3)
    assert target.kl(fitted(target, 1, checkpoint=path)) < 0.01


def test_a_loop_of_the_user_gives_the_same_fit():
    target = Target(10, 1, "covariance")
    ask = qbvi.Ask(qbvi.Flat(shape=10), family=qbvi.LowRank(rank=1), seed=1)
    while not ask.done:
        points = ask.ask()
        ask.tell(points, target(np.asarray(list(points))))
    np.testing.assert_array_equal(ask.fit().q, fitted(target, 1).q)


def test_the_same_seed_gives_the_same_bits(recovered):
    target, fit = recovered
    again = fitted(target, 2)
    np.testing.assert_array_equal(again.q, fit.q)
    assert (again.elbo, again.n_evals) == (fit.elbo, fit.n_evals)


def test_noise_that_the_function_returns_leaves_the_steps_as_they_are():
    """As the docstring says: only k-hat and the missing nats use it."""
    target = Target(10, 1, "covariance")
    plain = fitted(target, 1, max_evals=1500)
    stated = lambda x: (target(x), np.full(len(x), 0.1))
    stated.mean = target.mean
    np.testing.assert_array_equal(fitted(stated, 1, max_evals=1500).q, plain.q)


@on_eager_libraries
def test_iterations_are_the_same_on_every_array_library(xp):
    """Whole fits, and JAX, are in tests/backends: they take long to compile."""
    target, family = Target(5, 1, "covariance"), LowRankGaussian(5, 1)
    rules = LowRankRules(turns=2, products=5)
    method = qbvi.LowRankRegression(n_samples=80, n_remembered=160, low_rank_rules=rules)

    def after_two_iterations(library):
        rng = np.random.default_rng(1)
        q = family.start(library.zeros(5), library.ones(5))
        state = method.init(family, q)
        for _ in range(2):
            theta = method.ask(family, state, rng)
            f = library.asarray(target(to_numpy(theta)))
            values = Values(f, f, library.isfinite(f), 0 * f)
            state, info = method.tell(family, library.zeros(1), state, theta, values)
        return [to_numpy(part) for part in (family.mean(state.q), family.cov(state.q), info.bound)]

    here = after_two_iterations(np)
    for there, same in zip(after_two_iterations(xp), here, strict=True):
        np.testing.assert_allclose(there, same, rtol=1e-6, atol=1e-6)
    assert np.max(np.abs(here[0])) > 0.01  # it has moved


def test_failures_and_constrained_parameters_are_as_with_any_family():
    f = lambda p: np.where(
        p["tau"] > 8.0, np.nan, -0.5 * np.sum(p["beta"] ** 2, axis=1) / p["tau"] - 2 * np.log(p["tau"]) - 3 / p["tau"]
    )
    prior = {"beta": qbvi.Normal(0, 3, shape=4), "tau": qbvi.LogNormal(0, 0.5)}
    fit = qbvi.fit(f, prior, family="low-rank", vectorized=True, seed=1, on_failure="exclude", max_evals=5_000)
    assert fit.mean["tau"] > 0
    assert np.isfinite(fit.elbo)


@pytest.mark.soak
def test_noise_slows_a_fit_and_does_not_break_it(rng):
    target = Target(10, 1, "covariance")
    noisy = lambda x: target(x) + 0.3 * rng.standard_normal(len(x))
    given = {"family": qbvi.LowRank(rank=1), "vectorized": True, "seed": 1, "max_evals": 6_000}
    fit = qbvi.fit(noisy, qbvi.Normal(0, 10, shape=10), **given)
    assert target.kl(fit) < 0.5


@pytest.mark.parametrize("method", ["regression", "ridge", "mgvb"])
def test_methods_that_expect_an_exponential_family_refuse_it(method):
    with pytest.raises(TypeError, match=r"'low-rank' or a qbvi\.QBVI"):
        qbvi.fit(lambda x: 0.0, qbvi.Normal(0, 1, shape=3), family="low-rank", method=method)


def test_the_method_refuses_other_families():
    with pytest.raises(TypeError, match="must go with family='low-rank'"):
        qbvi.fit(lambda x: 0.0, qbvi.Normal(0, 1, shape=3), family="full", method="low-rank")


def test_mini_batches_take_the_residual_estimator(rng):
    y = rng.standard_normal((200, 3)) + np.array([1.0, 2.0, 3.0])
    f = lambda m, rows: -0.5 * np.sum((rows - m) ** 2)
    fit = qbvi.fit(
        f, qbvi.Normal(0, 5, shape=3), data=y, batch_size=50, family=qbvi.LowRank(rank=1), seed=1, max_evals=2_000
    )
    np.testing.assert_allclose(fit.mean, y.mean(axis=0), atol=0.2)


@pytest.mark.parametrize("wrong", [0, 1.5, "many"])
def test_a_wrong_rank_is_refused(wrong):
    with pytest.raises((TypeError, ValueError), match="`rank` must be"):
        qbvi.LowRank(rank=wrong)


def test_a_batch_that_holds_no_star_is_refused():
    with pytest.raises(ValueError, match="`n_samples` must be at least 39"):
        fitted(Target(30, 1, "covariance"), 1, method=qbvi.LowRankRegression(n_samples=38))


def test_a_batch_may_have_any_other_size():
    target = Target(10, 1, "covariance")
    fit = fitted(target, 1, method=qbvi.LowRankRegression(n_samples=37))
    assert fit.converged
    assert target.kl(fit) < 0.02


def test_a_full_covariance_comes_near_the_nearest_member(rng):
    d = 8
    A = rng.standard_normal((d, 2 * d))
    precision, mean = A @ A.T / d, rng.standard_normal(d)
    root = np.linalg.cholesky(precision)
    f = lambda x: -0.5 * np.sum(((x - mean) @ root) ** 2, axis=1)
    fit = qbvi.fit(f, qbvi.Flat(shape=d), family=qbvi.LowRank(rank=2), vectorized=True, seed=1)
    full = Gaussian(d).from_moments(mean, np.linalg.inv(precision))
    nearest = fit.family.from_moments(mean, np.linalg.inv(precision))
    missing = [Gaussian(d).kl(fit.family.full(q), full) for q in (fit.q, nearest)]
    assert missing[0] < missing[1] + 0.05  # three sweeps of alternations leave up to 0.04


@pytest.mark.soak
def test_a_thousand_dimensions_of_rank_ten():
    target = Target(1000, 10, "precision")
    fit = fitted(target, 10, max_evals=100_000)
    assert target.kl(fit) < 0.1


@pytest.mark.soak
def test_directions_a_thousand_times_as_wide_are_found_or_the_fit_says_that_they_are_not():
    target = Target(1000, 10, "covariance")
    fit = fitted(target, 10, max_evals=100_000)
    assert target.kl(fit) < 0.1 or not fit.converged
