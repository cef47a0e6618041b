"""Every support obeys the same laws; adding one is adding a line to CASES."""

import json
import math
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import quad
from scipy.special import expit, logit

from libraries import on_eager_libraries
from qbvi.arrays import to_numpy
from qbvi.supports import (
    SUPPORTS,
    Bijection,
    Interval,
    Ordered,
    Periodic,
    Positive,
    PositiveDefinite,
    Real,
    Simplex,
    UnitCube,
    UserDefinedError,
    WholeNumbers,
    bounded_exp,
    bounded_log,
    softplus,
    support_from_spec,
)

INF = math.inf


def garch_forward(psi):
    s1, s2, s3 = expit(psi)
    return np.array([s1, s2 * (1 - s3), s2 * s3])


def garch_inverse(x):
    omega, alpha, beta = x
    return logit([omega, alpha + beta, beta / (alpha + beta)])


def garch_log_jacobian(psi):
    s = expit(psi)
    return np.log(s * (1 - s)).sum() + np.log(s[1])


GARCH = Bijection(garch_forward, garch_inverse, garch_log_jacobian)
CASES = [
    (Real(), (2, 3)),
    (Real(), ()),
    (Positive(), (3,)),
    (Positive(), ()),
    (Interval(-1.0, 3.0), (4,)),
    (Interval(0.1, 0.3), (2, 2)),
    (Interval(2.0, INF), (3,)),
    (Interval(-INF, 5.0), (3,)),
    (Interval(-INF, INF), (2,)),
    (Interval([0.0, 1.0, -INF, -INF], [1.0, INF, 2.0, INF]), (4,)),
    (Interval([[0.0], [1.0]], 5.0), (2, 3)),
    (Periodic(20.0, -10.0), (3,)),
    (Periodic([20.0, 30.0], [-10.0, -12.0]), (2,)),
    (Simplex(), (2,)),
    (Simplex(), (5,)),
    (Simplex(), (2, 3)),
    (Ordered(), (1,)),
    (Ordered(), (4,)),
    (Ordered(), (2, 3)),
    (PositiveDefinite(), (1, 1)),
    (PositiveDefinite(), (3, 3)),
    (PositiveDefinite(), (2, 2, 2)),
]
DISCRETE = [(WholeNumbers(), (3,)), (WholeNumbers(0, 1), (2, 2)), (WholeNumbers(-3, 4), ())]
WITH_BIJECTION = [*CASES, (GARCH, (3,)), (UnitCube(garch_forward, 3), (3,))]


def draws(support, shape, n=6, scale=1.3):
    return scale * np.random.default_rng(0).standard_normal((n, support.unconstrained_size(shape)))


def free_entries(x, support, shape):
    """The entries that carry the density: all but the last of a simplex, those on and below the diagonal of a matrix."""
    x = x[..., :-1] if isinstance(support, Simplex) else x
    if isinstance(support, PositiveDefinite):
        x = x[(..., *np.tril_indices(shape[-1]))]
    return x.reshape(len(x), -1)


def finite_difference_log_jacobian(support, shape, u, h=1e-5):
    columns = []
    for j in range(u.shape[1]):
        e = h * np.eye(u.shape[1])[j]
        ahead, behind = (free_entries(support.constrain(u + sign * e, shape), support, shape) for sign in (1, -1))
        columns.append((ahead - behind) / (2 * h))
    return np.linalg.slogdet(np.stack(columns, axis=-1))[1]


@pytest.mark.parametrize(("support", "shape"), CASES)
def test_log_jacobian_is_that_of_the_map(support, shape, xp):
    check_log_jacobian(support, shape, xp)


@pytest.mark.parametrize(("support", "shape"), CASES)
def test_round_trip(support, shape, xp):
    check_round_trip(support, shape, xp)


@on_eager_libraries
def test_the_laws_of_a_users_map(xp):
    check_log_jacobian(GARCH, (3,), xp)
    check_round_trip(GARCH, (3,), xp)


def test_the_laws_of_a_users_map_compiled(jax):
    """The same functions in the language of JAX, without a Jacobian of their own."""
    xp = jax.numpy

    def forward(psi):
        s1, s2, s3 = jax.nn.sigmoid(psi)
        return xp.stack([s1, s2 * (1 - s3), s2 * s3])

    def inverse(x):
        omega, alpha, beta = x
        return jax.scipy.special.logit(xp.stack([omega, alpha + beta, beta / (alpha + beta)]))

    support, u = Bijection(forward, inverse), draws(GARCH, (3,))
    x = jax.jit(lambda u: support.constrain(u, (3,)))(u)
    np.testing.assert_allclose(x, GARCH.constrain(u, (3,)), rtol=1e-14)
    np.testing.assert_allclose(jax.jit(lambda x: support.unconstrain(x, (3,)))(x), u, atol=1e-10)
    log_jacobian = jax.jit(lambda u: support.log_jacobian(u, (3,)))(u)
    np.testing.assert_allclose(log_jacobian, GARCH.log_jacobian(u, (3,)), atol=1e-7)  # by central differences


def check_log_jacobian(support, shape, xp):
    u = draws(support, shape)
    expected = finite_difference_log_jacobian(support, shape, u)
    got = support.log_jacobian(xp.asarray(u), shape)
    assert got.shape == (6,)
    np.testing.assert_allclose(to_numpy(got), expected, rtol=0, atol=1e-7)


def check_round_trip(support, shape, xp):
    u = draws(support, shape)
    x = support.constrain(xp.asarray(u), shape)
    assert x.shape == (6, *shape)
    assert all(support.contains(row, strict=True) for row in to_numpy(x))
    back = support.unconstrain(x, shape)
    assert back.shape == u.shape
    np.testing.assert_allclose(to_numpy(back), u, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("support", "shape"), CASES)
@pytest.mark.parametrize("size", [30.0, 700.0, 1e4])
def test_extreme_values_stay_in_the_closed_support_without_warnings(support, shape, xp, size):
    k = support.unconstrained_size(shape)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], size=(20, k))
    u = xp.asarray(size * np.concatenate([signs, np.ones((1, k)), -np.ones((1, k))]))
    with warnings.catch_warnings(), np.errstate(all="warn", under="ignore"):
        warnings.simplefilter("error")
        x = support.constrain(u, shape)
        log_jacobian = to_numpy(support.log_jacobian(u, shape))
        back = to_numpy(support.unconstrain(x, shape))
    assert all(support.contains(row) for row in to_numpy(x))
    assert np.all(np.isfinite(log_jacobian))
    assert np.all(np.isfinite(back))


@pytest.mark.parametrize(("support", "shape"), CASES)
def test_float32_stays_float32_and_in_the_support(support, shape):
    u = (1e3 * draws(support, shape)).astype(np.float32)
    x = support.constrain(u, shape)
    assert x.dtype == support.log_jacobian(u, shape).dtype == np.float32
    assert np.all(np.isfinite(x))
    assert np.all(np.isfinite(support.log_jacobian(u, shape)))


@pytest.mark.parametrize(("support", "shape"), [*CASES, *DISCRETE])
def test_spec_round_trip_through_json(support, shape):
    text = json.dumps(support.to_spec(), allow_nan=False)
    assert support_from_spec(json.loads(text)) == support
    assert hash(support_from_spec(json.loads(text))) == hash(support)


def test_registry_is_complete_and_closed():
    assert {type(support).__name__ for support, _ in [*WITH_BIJECTION, *DISCRETE]} == set(SUPPORTS)
    with pytest.raises(ValueError, match=r"one of Real.*got 'os.system'"):
        support_from_spec({"kind": "os.system"})
    with pytest.raises(UserDefinedError, match="user-defined"):
        support_from_spec(GARCH.to_spec())


@pytest.mark.parametrize(
    ("support", "inside", "boundary", "outside"),
    [
        (Real(), 3.0, None, np.nan),
        (Positive(), 2.0, 0.0, -1e-9),
        (Interval(0.0, 1.0), 0.5, 1.0, 1.1),
        (Interval(-INF, 1.0), -50.0, 1.0, INF),
        (Simplex(), [0.3, 0.7], [0.0, 1.0], [0.5, 0.6]),
        (Ordered(), [1.0, 2.0], [1.0, 1.0], [2.0, 1.0]),
        (PositiveDefinite(), [[2.0, 1.0], [1.0, 2.0]], [[1.0, 1.0], [1.0, 1.0]], [[1.0, 2.0], [2.0, 1.0]]),
        (PositiveDefinite(), [[2e-9, 1.0], [1.0, 2e9]], [[0.0, 0.0], [0.0, 1.0]], [[1.0, 0.2], [0.0, 1.0]]),
        (WholeNumbers(0, 3), 3.0, None, 4.0),
        (WholeNumbers(), [0.0, 1e9], None, 1.5),
    ],
)
def test_contains(support, inside, boundary, outside):
    assert support.contains(inside)
    assert support.contains(inside, strict=True)
    assert not support.contains(outside)
    if boundary is not None:
        assert support.contains(boundary)
        assert not support.contains(boundary, strict=True)


@pytest.mark.parametrize(("support", "shape"), DISCRETE)
def test_whole_numbers_are_images_of_cells(support, shape):
    assert support.is_discrete
    assert not Real().is_discrete
    assert support.unconstrained_size(shape) == math.prod(shape)
    x = np.arange(support.low, min(support.high, 30) + 1)
    u = support.unconstrain(np.tile(x[:, None], math.prod(shape)).reshape(-1, *shape), shape)
    assert_array_equal(support.constrain(u, shape).reshape(len(x), -1), np.tile(x[:, None], math.prod(shape)))
    low, high = support.cell(x)
    assert_array_equal(low[1:], high[:-1])
    assert low[0] == -INF
    assert (high[-1] == INF) == (x[-1] == support.high)
    assert_array_equal(support.constrain(low[1:, None] + 1e-9, ()), x[1:])
    assert_array_equal(support.constrain(high[:-1, None] - 1e-9, ()), x[:-1])


@pytest.mark.parametrize("support", [WholeNumbers(0, 1), WholeNumbers(3, 9), WholeNumbers()])
def test_the_density_in_each_cell_integrates_to_one(support):
    for low, high in zip(*support.cell(np.arange(support.low, min(support.high, 6) + 1)), strict=True):
        density = lambda u: math.exp(support.log_jacobian(np.array([[u]]), ())[0])
        assert_allclose(quad(density, max(low, -40), min(high, 40))[0], 1.0, rtol=1e-7)


@pytest.mark.parametrize(("low", "high"), [(0.5, 2), (0, 2.5), (3, 2), (-INF, 0), (0, math.nan)])
def test_whole_numbers_refuse_bad_ends(low, high):
    with pytest.raises(ValueError, match="must be whole numbers"):
        WholeNumbers(low, high)


def test_a_singular_matrix_is_unconstrained_to_finite_numbers():
    singular = np.array([[[1.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]], [[1.0, 2.0], [2.0, 4.0]]])
    u = PositiveDefinite().unconstrain(singular, (2, 2))
    assert np.all(np.isfinite(u))
    np.testing.assert_allclose(PositiveDefinite().constrain(u, (2, 2)), singular, atol=1e-12)


def test_matrices_of_very_different_units_survive_the_round_trip():
    x = np.array([[[1e12, 0.3], [0.3, 1e-12]]])
    back = PositiveDefinite().constrain(PositiveDefinite().unconstrain(x, (2, 2)), (2, 2))
    np.testing.assert_allclose(back, x, rtol=1e-12)


def test_real_does_not_contain_infinity():
    assert not Real().contains([0.0, INF])


def test_unconstrained_sizes():
    assert Simplex().unconstrained_size((2, 4)) == 6
    assert Ordered().unconstrained_size((2, 4)) == 8
    assert Simplex().constrained_shape((2, 3)) == (2, 4)
    with pytest.raises(ValueError, match=r"2 or more categories, got \(1,\)"):
        Simplex().unconstrained_size((1,))
    with pytest.raises(ValueError, match="last axis"):
        Ordered().unconstrained_size(())
    assert PositiveDefinite().unconstrained_size((2, 3, 3)) == 12
    assert PositiveDefinite().constrained_shape((2, 6)) == (2, 3, 3)
    with pytest.raises(ValueError, match=r"end in \(p, p\), got \(2, 3\)"):
        PositiveDefinite().unconstrained_size((2, 3))
    with pytest.raises(ValueError, match="along the last axis, got 4"):
        PositiveDefinite().constrained_shape((4,))


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (INF, INF), (-1.7e308, 1.7e308)])
def test_interval_refuses_bad_ends(low, high):
    with pytest.raises(ValueError, match="`low` must be below `high`"):
        Interval(low, high)


def test_interval_ends_must_fit_the_shape():
    with pytest.raises(ValueError, match=r"broadcast to the parameter's shape \(3,\), got shape \(2,\)"):
        Interval([0.0, 1.0], 2.0).constrain(np.zeros((1, 3)), (3,))


def test_interval_keeps_digits_near_both_ends():
    x = Interval(0.0, 1.0).constrain(np.array([[-40.0, 40.0]]), (2,))
    np.testing.assert_allclose(x[0, 0], math.exp(-40.0), rtol=1e-14)
    assert x[0, 1] == 1.0


def test_symmetric_simplex_has_no_favoured_category():
    """A permutation of the categories is an isometry of the unconstrained space."""
    x = np.random.default_rng(0).dirichlet(np.ones(5), size=4)
    norms = np.linalg.norm(Simplex().unconstrain(x, (5,)), axis=1)
    permuted = np.linalg.norm(Simplex().unconstrain(x[:, [3, 0, 4, 1, 2]], (5,)), axis=1)
    np.testing.assert_allclose(norms, permuted, rtol=1e-12)


def test_bijection_numerical_jacobian_matches_the_formula():
    u = draws(GARCH, (3,))
    numerical = Bijection(garch_forward).log_jacobian(u, (3,))
    np.testing.assert_allclose(numerical, GARCH.log_jacobian(u, (3,)), rtol=0, atol=1e-8)


def test_bijection_vectorized_agrees_with_the_loop():
    def forward(psi):
        s = expit(psi)
        return np.stack([s[:, 0], s[:, 1] * (1 - s[:, 2]), s[:, 1] * s[:, 2]], axis=-1)

    u = draws(GARCH, (3,))
    vectorized = Bijection(forward, vectorized=True)
    np.testing.assert_array_equal(vectorized.constrain(u, (3,)), GARCH.constrain(u, (3,)))
    np.testing.assert_allclose(vectorized.log_jacobian(u, (3,)), GARCH.log_jacobian(u, (3,)), atol=1e-8)
    assert vectorized.constrained_shape((3,)) == GARCH.constrained_shape((3,)) == (3,)


def test_bijection_survives_functions_that_write_into_their_argument():
    def forward(psi):
        psi *= 2
        return psi

    u = np.ones((2, 3))
    np.testing.assert_array_equal(Bijection(forward).constrain(u, (3,)), np.full((2, 3), 2.0))
    np.testing.assert_allclose(Bijection(forward).log_jacobian(u, (3,)), 3 * math.log(2), rtol=1e-9)
    np.testing.assert_array_equal(u, np.ones((2, 3)))


def test_bijection_errors():
    with pytest.raises(TypeError, match="`forward` must be a function, got 3"):
        Bijection(3)
    with pytest.raises(TypeError, match="`inverse` must be a function or None"):
        Bijection(np.exp, 3)
    with pytest.raises(ValueError, match="no `inverse`"):
        Bijection(np.exp).unconstrain(np.ones((1, 2)), (2,))
    with pytest.raises(ValueError, match=r"`forward` .* must return shape \(2,\) per point, got \(3,\)"):
        Bijection(lambda u: np.ones(3)).constrain(np.ones((1, 2)), (2,))
    with pytest.raises(ValueError, match="unequal sizes"):
        Bijection(lambda u: np.append(u, 0.0), unconstrained_size=2).log_jacobian(np.ones((1, 2)), (3,))


def test_bounded_functions_are_exact_inside_their_range(xp):
    v = np.array([-700.0, -1.0, 0.0, 1.0, 700.0])
    np.testing.assert_allclose(to_numpy(bounded_exp(xp.asarray(v))), np.exp(v), rtol=4e-16)
    np.testing.assert_allclose(to_numpy(bounded_log(xp.asarray(np.exp(v)))), v, atol=1e-12)
    np.testing.assert_allclose(to_numpy(softplus(xp.asarray(v))), np.logaddexp(0, v))


def test_a_circle_has_no_ends():
    clock = Periodic(24.0)
    u = np.array([[-1.0], [0.0], [23.5], [24.0], [47.0]])
    np.testing.assert_allclose(clock.constrain(u, ())[:], [23.0, 0.0, 23.5, 0.0, 23.0])
    assert clock.contains(0.0, strict=True)
    assert not clock.contains(25.0)
    # Three copies are alike; beyond them the density falls off, so that it can be normalised.
    assert clock.log_jacobian(np.array([[-23.0], [12.0], [47.0]]), ()).tolist() == [0.0, 0.0, 0.0]
    assert clock.log_jacobian(np.array([[-48.0]]), ())[0] < -7.9
    with pytest.raises(ValueError, match="`period` must be positive"):
        Periodic(0.0)
