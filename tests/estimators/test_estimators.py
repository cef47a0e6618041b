"""Every estimator's expectation is the exact natural gradient, whatever the draws."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from oracles import LogisticRegression
from qbvi.algorithm import DRAWS, ESTIMATORS, QBVI
from qbvi.arrays import pack_symmetric, to_numpy
from qbvi.estimators import Batch, ControlVariate, Residual, ResidualControlVariate
from qbvi.estimators.base import leave_group_out
from qbvi.families import DiagonalGaussian, Gaussian
from qbvi.protocol import Values
from qbvi.random import Antithetic, Independent

N = 16  # few draws: a bias of order 1/n would show
REPEATS = 1500


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(3)
    return LogisticRegression(rng.standard_normal((12, 2)), (rng.random(12) < 0.5).astype(float), 5.0)


MEAN, COV = np.array([0.4, -0.7]), np.array([[0.5, 0.2], [0.2, 0.3]])


def exact_direction(problem, family, q):
    """Natural gradient of the bound: prior and entropy in closed form, the likelihood by quadrature."""
    cov = family.cov(q)
    gradient, hessian = problem.exact_natural_gradient(MEAN, cov)
    if isinstance(family, DiagonalGaussian):
        second = np.diag(hessian) / 2
        likelihood = np.concatenate([gradient - 2 * second * MEAN, second])
    else:
        likelihood = np.concatenate([gradient - hessian @ MEAN, pack_symmetric(hessian / 2)])
    return family.embed(np.zeros(2), np.full(2, 1 / 5.0)) - family.natural(q) + likelihood


def make_batch(problem, family, q, draws, rng):
    theta = family.transport(q, draws.normal(rng, N, 2))
    eta = family.embed(np.zeros(2), np.full(2, 1 / 5.0))
    h = family.residual(q, theta, problem.log_joint(theta))
    return Batch(theta, problem.log_likelihood(theta), h, eta, draws.group_size(N))


def settings_of():
    """Each estimator on a family with draws of a law. The sweep has all; the others leave out what is of the same code.

    Independent draws go with the full family. Pairs go with those that leave a group out, and the other family with one
    estimator of the likelihood and one of the residual, as it knows nothing of estimators.
    """
    pairs, other_family = {"leave-one-out", "residual"}, {"control-variate", "residual"}
    for estimator in ESTIMATORS:
        for family in (Gaussian(2), DiagonalGaussian(2)):
            is_full = isinstance(family, Gaussian)
            for draws in DRAWS:
                short = draws == "independent" if is_full else draws == "independent" and estimator in other_family
                short = short or (is_full and draws == "antithetic" and estimator in pairs)
                name = f"{estimator}-{type(family).__name__}-{draws}"
                yield pytest.param(estimator, family, draws, id=name, marks=[pytest.mark.soak] * (not short))


@pytest.mark.parametrize(("estimator", "family", "draws"), list(settings_of()))
def test_the_expectation_is_the_exact_natural_gradient(problem, family, draws, estimator):
    q = family.from_moments(MEAN, COV)
    rng, law, estimate = np.random.default_rng(11), DRAWS[draws], ESTIMATORS[estimator]
    directions = []
    for _ in range(REPEATS):
        memory = estimate.init(family, q)
        if not isinstance(memory, tuple):  # those without a memory have an empty one
            _, memory = estimate(
                family, q, make_batch(problem, family, q, law, rng), memory
            )  # what coefficients come from
        directions.append(estimate(family, q, make_batch(problem, family, q, law, rng), memory)[0])
    directions = np.stack(directions)
    z = (directions.mean(0) - exact_direction(problem, family, q)) / (directions.std(0, ddof=1) / np.sqrt(REPEATS))
    assert np.abs(z).max() < scipy.stats.norm.isf(1e-6 / 2 / z.size)


def test_the_residual_has_no_noise_at_a_perfect_fit(rng):
    family = Gaussian(3)
    q = family.from_moments(np.ones(3), np.cov(rng.standard_normal((3, 8))))
    theta = family.transport(q, rng.standard_normal((10, 3)))
    h = family.residual(q, theta, family.log_prob(q, theta) - 123.0)
    direction, _ = Residual()(family, q, Batch(theta, h, h, np.zeros(family.size), 1), ())
    np.testing.assert_allclose(direction, 0, atol=1e-9)


def test_the_control_variate_is_the_printed_formula(problem, rng):
    """Entry by entry, with loops, as the paper writes it."""
    family = Gaussian(2)
    q = family.from_moments(MEAN, COV)
    first, second = (make_batch(problem, family, q, DRAWS["independent"], rng) for _ in range(2))
    _, memory = ControlVariate()(family, q, first, ControlVariate().init(family, q))
    score, f = family.score(q, first.theta), first.f
    c = [np.cov(score[:, i] * f, score[:, i])[0, 1] / family.score_variance(q)[i] for i in range(family.size)]
    known = second.eta - family.natural(q)
    expected = known + np.mean(family.score(q, second.theta) * (second.f[:, None] - c), axis=0)
    np.testing.assert_allclose(ControlVariate()(family, q, second, memory)[0], expected, rtol=1e-10)


def test_centring_takes_a_constant_out_of_the_noise(problem, rng):
    """With log-likelihoods around -400 the printed coefficient is worse by about their size, the centred one is not."""
    family = Gaussian(2)
    q = family.from_moments(MEAN, COV)
    spread = {}
    for centred in (False, True):
        estimate, directions = ControlVariate(centred), []
        for _ in range(200):
            batches = [make_batch(problem, family, q, DRAWS["independent"], rng) for _ in range(2)]
            batches = [b._replace(f=b.f - 400) for b in batches]
            _, memory = estimate(family, q, batches[0], estimate.init(family, q))
            directions.append(estimate(family, q, batches[1], memory)[0])
        spread[centred] = np.std(directions, axis=0).mean()
    assert spread[True] < 0.1 * spread[False]


def test_the_residual_control_variate_is_its_formula(problem, rng):
    """Entry by entry, with loops; the coefficient is that of the draws before."""
    family, estimate = Gaussian(2), ResidualControlVariate()
    q = family.from_moments(MEAN, COV)
    first, second = (make_batch(problem, family, q, DRAWS["independent"], rng) for _ in range(2))
    _, memory = estimate(family, q, first, estimate.init(family, q))
    score = family.score(q, first.theta)
    moments = [np.cov(score[:, i] * first.h, score[:, i]) for i in range(family.size)]
    c = sum(m[0, 1] for m in moments) / sum(m[1, 1] for m in moments)
    expected = np.mean(family.score(q, second.theta) * (second.h - c)[:, None], axis=0)
    np.testing.assert_allclose(estimate(family, q, second, memory)[0], expected, rtol=1e-10)


def test_the_residual_control_variate_has_no_noise_at_a_perfect_fit(rng):
    """A constant residual is its own coefficient, whatever its size, from the second batch on."""
    family, estimate = Gaussian(3), ResidualControlVariate()
    q = family.from_moments(np.ones(3), np.cov(rng.standard_normal((3, 8))))
    memory = estimate.init(family, q)
    for _ in range(2):
        theta = family.transport(q, rng.standard_normal((10, 3)))
        h = family.residual(q, theta, family.log_prob(q, theta) - 400.0)
        direction, memory = estimate(family, q, Batch(theta, h, h, np.zeros(family.size), 1), memory)
    np.testing.assert_allclose(direction, 0, atol=1e-9)


@pytest.mark.parametrize("group_size", [1, 2, 4])
def test_a_baseline_leaves_out_its_whole_group(group_size, rng, xp):
    values = rng.standard_normal(8)
    baseline = to_numpy(leave_group_out(xp.asarray(values), group_size))
    group = np.arange(8) % (8 // group_size)
    expected = [values[group != g].mean() for g in group]
    np.testing.assert_allclose(baseline, expected, rtol=1e-12)


@pytest.mark.parametrize("estimator", list(ESTIMATORS))
def test_estimators_give_the_same_numbers_on_every_backend(problem, estimator, rng, xp):
    family, estimate = Gaussian(2), ESTIMATORS[estimator]
    q = family.from_moments(MEAN, COV)
    batch = make_batch(problem, family, q, DRAWS["independent"], rng)
    expected, _ = estimate(family, q, batch, estimate.init(family, q))
    other = Batch(*(xp.asarray(part) for part in batch[:4]), batch.group_size)
    direction, _ = estimate(family, xp.asarray(q), other, estimate.init(family, xp.asarray(q)))
    np.testing.assert_allclose(to_numpy(direction), expected, rtol=1e-10, atol=1e-10)


class ReadTwice(Antithetic):
    """Mirror pairs that do not say that they are."""

    is_mirrored = False


@pytest.mark.parametrize("estimator", ["residual", "leave-one-out", "score-function"])
@pytest.mark.parametrize("family", [Gaussian(3), DiagonalGaussian(3)], ids=["full", "diagonal"])
def test_a_step_reads_one_draw_of_each_mirror_pair(family, estimator, rng):
    """The same step as with both; and with fresh draws, which are no pairs, the step of independent ones."""
    method = QBVI(estimator=estimator, n_samples=8)
    state = method.init(family, family.start(np.array([1.0, -1.0, 0.5]), np.array([0.5, 1.0, 2.0])))
    theta = method.ask(family, state, rng)
    second = theta + np.where(np.arange(8) < 4, 0.0, np.nan)[:, None]

    def after(method, theta, theta_there):
        y = -np.sum((theta - 2) ** 2, axis=1) - theta[:, 0]
        values = Values(y, y - np.sum(theta**2, axis=1), np.ones(8, dtype=bool), 0 * y)
        return method.tell(family, np.zeros(family.size), state, theta_there, values)[0].q

    both = after(replace(method, draws=ReadTwice()), theta, theta)
    np.testing.assert_allclose(after(method, theta, second), both, rtol=1e-12)
    fresh = family.transport(state.q, rng.standard_normal((8, 3)))
    alone = after(replace(method, draws=Independent()), fresh, fresh)
    np.testing.assert_array_equal(after(method.for_independent_draws, fresh, fresh), alone)
