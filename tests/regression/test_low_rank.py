"""Regression for low rank plus a diagonal: exact where the target is, near the best member elsewhere, and a whole product."""

import numpy as np
import pytest
import scipy.special

import qbvi
from qbvi.families import Gaussian, LowRankGaussian
from qbvi.families.low_rank import Form, Spikes, worth
from qbvi.regression.few_directions import Directions, Sample, bounded_precision, in_scales, regress
from qbvi.regression.low_rank import tangent_kernel
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


def test_the_regression_finds_a_quadratic_of_few_directions(rng):
    d, n = 40, 3000
    B = np.linalg.qr(rng.standard_normal((d, 2)))[0]
    C = np.diag(rng.uniform(-0.5, 0.5, d)) + (B * [-4.0, 0.8]) @ B.T
    b, z = rng.standard_normal(d), rng.standard_normal((n, d))
    h = z @ b + 0.5 * np.sum((z @ C) * z, axis=1)
    spikes = Spikes(np.ones(d), np.eye(d, 2), np.ones(2))
    sample = Sample(z, h, np.ones(n), np.arange(n) >= n - 200)
    found = regress(sample, spikes, np.array([1e-8, 1e-4]), Directions(4, 30, 5, np.array(4.0), np.zeros((d, 4))))
    np.testing.assert_allclose(found.b, b, atol=1e-3)
    np.testing.assert_allclose(found.C.apply(np.eye(d)), C, atol=1e-2)
    assert found.unexplained < 1e-4


def test_points_that_are_held_out_or_without_weight_do_not_count(rng):
    z = rng.standard_normal((400, 10))
    h = np.where(np.arange(400) < 300, z[:, 0], 1e3)
    weight = np.where((np.arange(400) >= 300) & (np.arange(400) < 350), 0.0, 1.0)
    sample = Sample(z, h, weight, np.arange(400) >= 350)
    spikes = Spikes(np.ones(10), np.eye(10, 1), np.ones(1))
    found = regress(sample, spikes, np.array([1e-8]), Directions(2, 30, 2, np.array(2.0), np.zeros((10, 2))))
    np.testing.assert_allclose(found.b, np.eye(10)[0], atol=1e-3)


def test_a_precision_in_scales_is_the_same_matrix(rng):
    d = 8
    spikes = Spikes(np.ones(d), np.linalg.qr(rng.standard_normal((d, 2)))[0], np.array([0.1, 5.0]))
    C = Form(rng.uniform(-0.3, 0.3, d), rng.standard_normal((d, 2)), np.array([-0.5, 0.05]))
    precision = bounded_precision(C, np.array(0.7), np.array(1e-3), np.array(0.0))
    dense = np.eye(d) - 0.7 * C.apply(np.eye(d))
    np.testing.assert_allclose(precision.form.apply(np.eye(d)), dense, atol=1e-10)
    root = spikes.power(np.eye(d), 0.5)
    np.testing.assert_allclose(in_scales(precision.form, spikes).apply(np.eye(d)), root @ dense @ root, atol=1e-10)


def test_a_precision_that_would_be_negative_is_bounded():
    C = Form(np.array([3.0, 0.0]), np.array([[0.0], [1.0]]), np.array([5.0]))
    precision = bounded_precision(C, np.array(1.0), np.array(0.1), np.array(0.0))
    assert np.all(np.linalg.eigvalsh(precision.form.apply(np.eye(2))) > 0)


def test_the_tangent_kernel_is_the_projection_on_changes_within_the_family(rng):
    """Its expectation on the diagonal is the number of free parameters, up to (r / d)^2 for each pair."""
    d, r = 60, 2
    family = LowRankGaussian(d, r)
    spikes = Spikes(np.ones(d), np.linalg.qr(rng.standard_normal((d, r)))[0], np.ones(r))
    q = family.member(np.zeros(d), spikes)
    diagonal = np.concatenate([np.diag(tangent_kernel(family, q, rng.standard_normal((500, d)))) for _ in range(8)])
    error = diagonal.std() / np.sqrt(diagonal.size)
    assert abs(diagonal.mean() - (family.n_free + r)) < 5 * error + 0.05 * family.n_free


def test_a_logistic_regression_comes_near_the_best_member(rng):
    """The posterior is nearly the full Gaussian, and the member nearest to that has a known divergence from it."""
    n, d = 200, 8
    x = rng.standard_normal((n, 3)) @ rng.standard_normal((3, d)) + 0.3 * rng.standard_normal((n, d))
    y = (x @ np.full(d, 0.3) + rng.logistic(size=n) > 0).astype(float)
    f = lambda beta: np.sum((beta @ x.T) * y + scipy.special.log_expit(-(beta @ x.T)), axis=1)
    prior, options = qbvi.Normal(0, 1, shape=d), {"vectorized": True, "seed": 1, "max_evals": 6000}
    full = qbvi.fit(f, prior, family="full", **options)
    fit = qbvi.fit(f, prior, family=qbvi.LowRank(rank=2), **options)
    best = fit.family.from_moments(*full.unconstrained)
    missing = Gaussian(d).kl(fit.family.full(best), full.q)
    assert fit.elbo - full.elbo > -missing - 0.3  # the largest tolerance is 0.25 nats, and the bounds have errors
    assert missing > 0.3  # so that there is something to see


def test_the_product_knows_the_family(recovered, tmp_path):
    target, fit = recovered
    assert "rank 2 plus a diagonal" in repr(fit)
    np.testing.assert_allclose(fit.sd, np.sqrt(np.diag(target.cov)), rtol=0.05)
    draws = fit.sample(20_000, seed=3)
    np.testing.assert_allclose(draws.std(axis=0), fit.sd, rtol=0.05)
    loaded = qbvi.load(fit.save(tmp_path / "fit.npz") or tmp_path / "fit.npz")
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
    assert target.kl(ask.fit()) < 0.01


def test_failures_and_constrained_parameters_are_as_with_any_family():
    f = lambda p: np.where(
        p["tau"] > 8.0, np.nan, -0.5 * np.sum(p["beta"] ** 2, axis=1) / p["tau"] - 2 * np.log(p["tau"]) - 3 / p["tau"]
    )
    prior = {"beta": qbvi.Normal(0, 3, shape=4), "tau": qbvi.LogNormal(0, 0.5)}
    fit = qbvi.fit(f, prior, family="low-rank", vectorized=True, seed=1, on_failure="exclude", max_evals=20_000)
    assert fit.mean["tau"] > 0
    assert np.isfinite(fit.elbo)


def test_noise_slows_a_fit_and_does_not_break_it(rng):
    target = Target(10, 1, "covariance")
    noisy = lambda x: target(x) + 0.3 * rng.standard_normal(len(x))
    given = {"family": qbvi.LowRank(rank=1), "vectorized": True, "seed": 1, "max_evals": 20_000}
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


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["covariance", "precision"])
def test_a_thousand_dimensions_of_rank_ten(kind):
    target = Target(1000, 10, kind)
    fit = fitted(target, 10)
    assert target.kl(fit) < 0.05
