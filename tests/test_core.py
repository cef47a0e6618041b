"""The core as a whole, a few steps of ask and tell: on every array library the numbers of NumPy, on JAX from compiled code."""

import numpy as np
import pytest

import qbvi
from laws import FAMILIES
from qbvi.algorithm import ESTIMATORS, STEPS, Values
from qbvi.arrays import array_namespace, to_numpy
from qbvi.updates import ClipByNorm, Euclidean, LearningRate, Momentum, SeparateRates

# every estimator, step and update at least once
METHODS = {
    "default": qbvi.QBVI(n_samples=8),
    "paper": qbvi.paper(n_samples=8),
    "literal": qbvi.paper("literal", n_samples=8),
    "centred": qbvi.QBVI(estimator="control-variate-centred", draws="independent", n_samples=8, step="retraction"),
    "naive": qbvi.QBVI(estimator="score-function", n_samples=8, step="plain", learning_rate=1e-3),
    "leave-one-out": qbvi.QBVI(estimator="leave-one-out", draws="sobol", n_samples=8, step="cholesky-log"),
    "separate": qbvi.QBVI(n_samples=8, updates=(SeparateRates(0.1, 0.05, 2),), learning_rate=None, step="parameters"),
    "euclidean": qbvi.QBVI(
        n_samples=8, updates=(ClipByNorm(50.0, 5.0, 1), Momentum(0.3), Euclidean()), learning_rate=LearningRate(1e-3, 2)
    ),
}
PAIRS = [("full-4", method) for method in METHODS] + [("diagonal-3", "paper"), ("blocks", "default")]


def test_every_part_of_the_method_is_among_these():
    used = METHODS.values()
    assert {method.estimator for method in used} == set(ESTIMATORS.values())
    assert {type(method.step) for method in used} == {type(step) for step in STEPS.values()}


def told(theta):
    """Values at the draws: a density with tails and a bend, neither Gaussian nor symmetric."""
    xp = array_namespace(theta)
    f = -xp.sum(xp.log1p((theta - 1) ** 2), axis=-1) - 0.1 * theta[:, 0] ** 2 * theta[:, -1]
    log_joint = f - 0.5 * xp.sum(theta**2, axis=-1)
    return Values(f, log_joint, xp.isfinite(f), xp.zeros_like(f))


def steps(method, family, xp, n=4, dtype=None):
    """The state and what is told of it, after each of n steps."""
    q = xp.asarray(family.start(0.3 * np.arange(family.dim), np.full(family.dim, 0.8)), dtype=dtype)
    eta = xp.asarray(family.embed(np.zeros(family.dim), np.ones(family.dim)), dtype=dtype)
    state, rng = method.init(family, q), np.random.default_rng(4)
    for _ in range(n):
        theta = method.ask(family, state, rng)
        state, info = method.tell(family, eta, state, theta, told(theta))
        yield state, info


@pytest.mark.parametrize(("family", "method"), PAIRS)
def test_steps_are_those_of_numpy(family, method, xp):
    family, method = FAMILIES[family], METHODS[method]
    for (state, info), (state_here, info_here) in zip(
        steps(method, family, np), steps(method, family, xp), strict=True
    ):
        np.testing.assert_allclose(to_numpy(state_here.q), state.q, rtol=1e-9, atol=1e-9)
        for name, expected, got in zip(info._fields, info, info_here, strict=True):
            np.testing.assert_allclose(to_numpy(got), expected, rtol=1e-8, atol=1e-8, err_msg=name)


def test_float32_stays_float32_and_loses_no_more_than_its_digits(xp):
    family, method = FAMILIES["full-4"], METHODS["default"]
    *_, (exact, _) = steps(method, family, np)
    *_, (state, info) = steps(method, family, xp, dtype=xp.float32)
    numbers = [state.q, state.t, *info[:5]]
    assert all(part.dtype == xp.float32 for part in numbers)
    np.testing.assert_allclose(to_numpy(state.q), exact.q, atol=1e-4)


def test_a_step_that_is_not_finite_is_refused(xp):
    family, method = FAMILIES["full-4"], METHODS["default"]
    (state, _), (expected, _) = steps(method, family, xp, n=2)
    theta = method.ask(family, state, np.random.default_rng(5))
    values = told(theta)
    broken = values._replace(log_joint=xp.full_like(values.log_joint, xp.nan))
    after, info = method.tell(family, xp.zeros(family.size), state, theta, broken)
    assert bool(info.is_refused)
    np.testing.assert_array_equal(to_numpy(after.q), to_numpy(state.q))
    assert not np.array_equal(to_numpy(expected.q), to_numpy(state.q))


def test_a_second_step_of_the_same_shapes_compiles_nothing(jax):
    """Families, methods and their parts compare by value: built anew they are the same constants to the compiler."""
    compiles = []

    def one(family, method, q, theta):
        compiles.append(family)
        eta = jax.numpy.zeros(family.size)
        return method.tell(family, eta, method.init(family, q), theta, told(theta))[0].q

    step = jax.jit(one, static_argnums=(0, 1))
    for seed in range(3):
        family, rng = qbvi.families.Gaussian(3), np.random.default_rng(seed)
        step(family, qbvi.paper(n_samples=6), family.start(np.zeros(3), np.ones(3)), rng.standard_normal((6, 3)))
    assert len(compiles) == 1
