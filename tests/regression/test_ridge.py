"""Ridge: its solver against explicit features, its gap against the exact one, its fits against quadrature, the same on every library."""

import numpy as np
import pytest

import qbvi
from oracles import GaussianTarget, LogisticRegression, gaussian_kl, labour
from qbvi.arrays import to_numpy
from qbvi.families import DiagonalGaussian, Gaussian
from qbvi.protocol import Values
from qbvi.regression.krylov import Weighted, krylov
from qbvi.regression.ridge import Ridge, RidgeRules, _in_single, judged
from sweeps import sweep


def explicit(z, h, weight, ridge):
    """The same regression with all its features written out: a, b, radius without a ridge, C with it."""
    n, d = z.shape
    free = np.column_stack([np.ones(n), z, (np.sum(z**2, axis=1) - d) / np.sqrt(2 * d)])
    rows, columns = np.triu_indices(d)
    scale = np.where(rows == columns, np.sqrt(0.5), 1.0)  # coefficients of orthonormal features
    quadratic = (z[:, rows] * z[:, columns] - (rows == columns)) * scale
    design = np.column_stack([free, quadratic]) * np.sqrt(weight)[:, None]
    penalty = np.diag(np.r_[np.zeros(d + 2), np.full(len(rows), ridge)])
    w = np.linalg.lstsq(design.T @ design + penalty, design.T @ (np.sqrt(weight) * h), rcond=None)[0]
    C = np.zeros((d, d))
    C[rows, columns] = w[d + 2 :] * scale
    C = C + C.T
    return w[: d + 2], C


@pytest.mark.parametrize("size", [1.0, 1e60])
def test_single_precision_leaves_the_regression_as_it_is(rng, size):
    """The Gram matrix of the free features has a nugget of 1,000 machine epsilons, which decides the error.

    The ridges are at least one: a smaller one divides the rounding of the products by itself.
    """
    z = rng.standard_normal((400, 10))
    h = size * np.sum(z @ rng.standard_normal((10, 10)) * z, axis=1)
    points, ridges = Weighted(z, h, rng.uniform(0.5, 1.0, 400)), np.asarray([1.0, 100.0])
    double, single = krylov(points, 24).solve(ridges), _in_single(points, 24, ridges)
    error = 4000 * np.finfo(np.float32).eps
    np.testing.assert_allclose(single.C, double.C, atol=error * np.max(np.abs(double.C)))
    np.testing.assert_allclose(single.free, double.free, atol=error * np.max(np.abs(double.free)))


def test_draws_of_another_q_count_by_their_density_in_few_dimensions_and_alike_for_a_quadratic():
    rule = RidgeRules()
    assert [rule.density_power(d) for d in (1, 6, 60)] == [1.0, 1.0, 0.1]
    assert rule.of_quadratic().density_power(60) == 0.0


@pytest.mark.parametrize("ridge", [0.1, 10.0])
def test_the_krylov_space_holds_the_regression_on_all_features(rng, ridge):
    z, h, weight = rng.standard_normal((60, 4)), rng.standard_normal(60), rng.uniform(0.1, 1, 60)
    free, C = explicit(z, h, weight, ridge)
    found = krylov(Weighted(z, h, weight), m=10).solve(np.asarray([1.0, ridge]))
    np.testing.assert_allclose(found.C[1], C, atol=1e-10)
    np.testing.assert_allclose(found.free[1], free, atol=1e-10)
    np.testing.assert_allclose(found(z)[1], free[0] + z @ free[1:-1] + quadratic(z, found.curvature[1]), atol=1e-10)


def quadratic(z, C):
    return 0.5 * (np.sum((z @ C) * z, axis=1) - np.trace(C))


def test_a_space_that_is_exhausted_does_no_harm(rng):
    """Two coefficients of degree two, forty dimensions asked for: the rest is empty, not rounding blown up."""
    z = rng.standard_normal((30, 2))
    found = krylov(Weighted(z, 1 + z[:, 0] * z[:, 1], np.ones(30)), m=40).solve(np.asarray([1e-9]))
    np.testing.assert_allclose(found.curvature[0], [[0, 1], [1, 0]], atol=1e-7)


def test_points_without_weight_do_not_count(rng):
    z, weight = rng.standard_normal((50, 3)), np.r_[np.ones(40), np.zeros(10)]
    h = 2 * z[:, 0] + np.r_[np.zeros(40), np.full(10, 1e6)]
    found = krylov(Weighted(z, h, weight), m=6).solve(np.asarray([1e-6]))
    np.testing.assert_allclose(found.b[0], [2, 0, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("family", "mirrored"),
    [
        pytest.param(Gaussian(3), True, id="full-mirrored"),
        pytest.param(DiagonalGaussian(3), False, id="diagonal-independent"),
        pytest.param(Gaussian(3), False, id="full-independent", marks=pytest.mark.soak),
        pytest.param(DiagonalGaussian(3), True, id="diagonal-mirrored", marks=pytest.mark.soak),
    ],
)
def test_the_gap_of_fresh_draws_is_unbiased(family, mirrored):
    """Half the squared length of the projection on the family's features; its mean over 2,000 batches, within four of its errors."""
    rng = np.random.default_rng(3)
    b, C = np.array([0.3, -0.2, 0.1]), np.array([[0.2, 0.1, 0.0], [0.1, -0.3, 0.0], [0.0, 0.0, 0.1]])
    exact = 0.5 * (b @ b + 0.5 * np.sum(family.restrict(C) ** 2))
    gaps, told = [], []
    for _ in range(2000):
        half = rng.standard_normal((16, 3))
        z = np.stack([half, -half if mirrored else rng.standard_normal((16, 3))], axis=1).reshape(32, 3)
        h = 5 + z @ b + quadratic(z, C) + 0.05 * (z[:, 0] ** 3 - 3 * z[:, 0])
        fresh = judged(family, z, h, np.ones(32, dtype=bool), Ridge())
        gaps.append(fresh.gap)
        told.append(fresh.gap_se)
    error = np.std(gaps) / np.sqrt(len(gaps))
    assert abs(np.mean(gaps) - exact) < 4 * error
    assert error < 0.05 * exact  # it would see a bias of a fifth
    assert 0.5 < np.sqrt(np.mean(np.square(told))) / np.std(gaps) < 2


def test_failed_draws_bias_neither_bound_nor_gap(rng):
    family = Gaussian(2)
    z = np.repeat(rng.standard_normal((64, 2)), 2, axis=0) * np.tile([[1.0], [-1.0]], (64, 1))
    ok = rng.random(128) > 0.2
    flat = np.where(ok, 3.0, np.nan)
    fresh = judged(family, z, flat, ok, Ridge())
    assert abs(fresh.bound - 3) < 1e-12
    assert abs(fresh.gap) < 1e-12
    assert not fresh.is_dark
    dark = judged(family, z, np.full(128, np.nan), np.zeros(128, dtype=bool), Ridge())
    assert dark.is_dark
    assert dark.bound == -np.inf


def test_values_beyond_squaring_are_known_to_be_bad():
    family = Gaussian(1)
    z = np.linspace(-1, 1, 16)[:, None]
    h = -1e200 * (1 + z[:, 0] ** 2)
    with np.errstate(over="ignore", invalid="ignore"):
        fresh = judged(family, z, h, np.ones(16, dtype=bool), Ridge())
    assert 1e198 < fresh.se < 1e200


# ---------------------------------------------------------------- fits


@pytest.mark.parametrize("seed", sweep(range(5), first=2))
def test_labour_with_full_covariance(seed):
    problem = labour()
    fit = qbvi.fit(problem.log_likelihood, qbvi.Normal(0, 5**0.5, shape=8), vectorized=True, method=Ridge(), seed=seed)
    assert fit.converged
    assert problem.best_gaussian().elbo - problem.exact_elbo(*fit.unconstrained) < 0.01
    assert fit.n_evals < 2500


def test_labour_with_a_diagonal_one_and_blocks():
    problem = labour()
    options = {"vectorized": True, "method": Ridge(), "seed": 1}
    diagonal, blocks = (
        qbvi.fit(problem.log_likelihood, qbvi.Normal(0, 5**0.5, shape=8), family=family, **options)
        for family in ("diagonal", [[0, 1, 2, 3], [4, 5, 6, 7]])
    )
    best, least = (problem.best_gaussian(diagonal=which).elbo for which in (False, True))
    assert diagonal.converged
    assert blocks.converged
    assert least - problem.exact_elbo(*diagonal.unconstrained) < 0.01
    assert least < problem.exact_elbo(*blocks.unconstrained) < best


@pytest.mark.parametrize("condition", [1.0, 1e4, 1e8])
def test_gaussians_of_any_condition_far_away(condition):
    rng = np.random.default_rng(5)
    target = GaussianTarget.random(rng, 6, condition)
    target = GaussianTarget(1e3 * np.linalg.cholesky(target.cov) @ rng.standard_normal(6), target.cov)
    fit = qbvi.fit(target.log_density, qbvi.Flat(shape=6), vectorized=True, method=Ridge(), seed=1)
    assert fit.converged
    assert gaussian_kl(*fit.unconstrained, target.mean, target.cov) < 0.01


@pytest.mark.parametrize("seed", sweep(range(8), first=1))
def test_no_fit_says_converged_that_is_far_off(seed):
    """Small logistic regressions with much skewness; what says converged is within 0.05 nats of the exact optimum."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((60, 3)) * [2, 1, 0.5]
    problem = LogisticRegression(x, (rng.random(60) < 1 / (1 + np.exp(-x @ [1, -1, 1]))).astype(float), 5.0)
    fit = qbvi.fit(problem.log_likelihood, qbvi.Normal(0, 5**0.5, shape=3), vectorized=True, method=Ridge(), seed=seed)
    assert fit.converged, fit.stop_reason
    assert problem.best_gaussian().elbo - problem.exact_elbo(*fit.unconstrained) < 0.05


def test_a_start_in_the_dark_finds_a_scale_where_there_is_light():
    """Finite only within a millionth of the start's scale: narrower and wider by turns until most values are there."""
    width = 1e-6
    fit = qbvi.fit(
        lambda t: np.where(np.all(np.abs(t) < 3e-3, axis=1), -0.5 * np.sum((t / width) ** 2, axis=1), np.nan),
        qbvi.Normal(0, 1, shape=3), vectorized=True, on_failure="exclude", method=Ridge(), seed=1,
    )  # fmt: skip
    assert fit.converged
    np.testing.assert_allclose(fit.sd, width, rtol=1e-3)


def test_a_start_where_few_values_are_finite_goes_on_from_those():
    """One orthant of eight around the start: the regression of what is there leads into it."""
    fit = qbvi.fit(
        lambda t: np.where(np.all(t > 0, axis=1), -50 * np.sum((t - 1) ** 2, axis=1), np.nan),
        qbvi.Normal(0, 1, shape=3), vectorized=True, on_failure="exclude", method=Ridge(), seed=1,
    )  # fmt: skip
    assert fit.converged, fit.stop_reason
    np.testing.assert_allclose(fit.mean, 100 / 101, atol=0.01)


def test_more_fresh_draws_than_are_remembered_may_be_told(rng):
    family, method = Gaussian(2), Ridge(n_samples=16, n_remembered=64)
    state = method.init(family, family.start(np.zeros(2), np.ones(2)))
    for _ in range(3):
        theta = family.transport(state.q, rng.standard_normal((200, 2)))
        y = -0.5 * np.sum((theta - 3) ** 2, axis=1) / 0.25
        state, _ = method.tell(family, None, state, theta, Values(y, y, np.ones(200, dtype=bool), 0 * y))
    np.testing.assert_allclose(family.mean(state.q), 3, atol=1e-6)
    np.testing.assert_allclose(family.sd(state.q), 0.5, atol=1e-6)


@pytest.mark.parametrize("family", [Gaussian(3), DiagonalGaussian(3)], ids=["full", "diagonal"])
def test_the_log_density_at_the_mean_follows_the_steps(family):
    """Six steps that are accepted, rejected or, without finite values, change the scale: exact up to rounding."""
    rng, method = np.random.default_rng(2), Ridge(n_samples=16, n_remembered=64)
    state = method.init(family, family.start(np.zeros(3), np.full(3, 0.1)))
    values = [np.full(16, np.nan), *[None] * 4, np.full(16, -1e9)]
    for given in values:
        theta = method.ask(family, state, rng)
        y = -np.sum((theta - 1) ** 4, axis=1) - theta[:, 0] * theta[:, 1] if given is None else given
        with np.errstate(all="ignore"):
            state, _ = method.tell(family, None, state, theta, Values(y, y, np.isfinite(y), 0 * theta[:, 0]))
        np.testing.assert_allclose(state.peak, family.log_peak(state.q), atol=1e-12)
        np.testing.assert_allclose(state.last_peak, family.log_peak(state.last_step.q), atol=1e-12)


def test_a_posterior_that_is_cut_off_is_told():
    fit = qbvi.fit(
        lambda t: np.where(t[:, 0] > 0.5, -0.5 * np.sum((t - 1) ** 2, axis=1), -np.inf),
        qbvi.Flat(shape=4), vectorized=True, on_failure="exclude", method=Ridge(), seed=1,
    )  # fmt: skip
    assert not fit.converged
    assert "fail" in fit.stop_reason


def test_an_improper_posterior_is_not_called_converged():
    fit = qbvi.fit(
        lambda t: t[:, 0] - 0.5 * t[:, 1] ** 2,
        qbvi.Flat(shape=2),
        vectorized=True,
        method=Ridge(),
        max_evals=4000,
        seed=1,
    )
    assert not fit.converged
    assert np.all(np.isfinite(fit.mean))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": 0.0}, "`tol` must be positive"),
        ({"n_samples": 20}, "multiple of 8"),
        ({"n_samples": 8}, "at least 16"),
        ({"n_remembered": 64, "n_samples": 128}, "at least `n_samples`"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Ridge(**options)


# ---------------------------------------------------------------- every library


def test_steps_are_the_same_on_every_library(xp):
    """Five steps on a quartic, compiled where the library compiles, within 1e-9 of NumPy's."""
    mine, other = five_steps(xp), five_steps(np)
    np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-9)


def five_steps(xp):
    family, method = Gaussian(2), Ridge(n_samples=32, n_remembered=96)
    state = method.init(family, family.start(xp.asarray(np.array([1.0, -1.0])), xp.asarray(np.array([0.3, 0.3]))))
    for t in range(5):
        theta = method.ask(family, state, np.random.default_rng(t))
        y = -xp.sum(theta**4 + theta[:, :1] * theta, axis=1)
        state, info = method.tell(family, None, state, theta, Values(y, y, xp.isfinite(y), 0.0 * y))
    return np.r_[to_numpy(state.q), to_numpy(info.gap), to_numpy(info.bound)]
