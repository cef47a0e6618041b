"""The prior for log joints in which most parameters do not interact."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import qbvi
from qbvi.families import Gaussian
from qbvi.random import orthogonal_pairs
from qbvi.regression.regress import regress
from qbvi.regression.rules import Rules, StructureRule
from qbvi.regression.structure import (
    Finding,
    Frame,
    Structure,
    StructuredRegression,
    find_structure,
    first_rows,
    local_kernels,
    pair_variances,
    quadratic_kernel,
    update_structure,
)
from qbvi.regression.surrogate import Sample, Variances

HUBS = 3
EAGER = Rules(structure=StructureRule(points=8, wins=1))  # an early search, whose result is used at once


def arrow(rng: np.random.Generator, d: int, coupling: float = 0.4) -> np.ndarray:
    """A precision matrix in which the first parameters interact with all, and the others with these only."""
    P = np.diag(rng.uniform(1.0, 3.0, d))
    P[:HUBS, HUBS:] = rng.uniform(-coupling, coupling, (HUBS, d - HUBS))
    P[HUBS:, :HUBS] = P[:HUBS, HUBS:].T
    P[:HUBS, :HUBS] += 0.3 * d * np.eye(HUBS)
    return P


def dense(rng: np.random.Generator, d: int) -> np.ndarray:
    """A precision matrix in which all parameters interact."""
    X = rng.standard_normal((2 * d, d))
    return X.T @ X / d + 0.1 * np.eye(d)


def frame_of(rng: np.random.Generator, d: int) -> tuple[Frame, np.ndarray]:
    """The frame of a random Gaussian, and the factor of its covariance."""
    factor = np.tril(rng.standard_normal((d, d)) / np.sqrt(d)) + np.eye(d)
    q = Gaussian(d).from_factor(np.zeros(d), factor, np.linalg.inv(factor))
    return Frame.of(Gaussian(d), q), factor


def structure_of(rows: np.ndarray, **changes: object) -> Structure:
    hubs = rows > 0.1 * rows.max()
    return Structure(rows, 1.0, 0.01, hubs, 0.5, 0.5, Variances(0.3, 10.0, 1e-3))._replace(**changes)


def sample(rng: np.random.Generator, n: int, d: int, h: object) -> Sample:
    z = np.concatenate([orthogonal_pairs(rng, 2 * d, d) for _ in range(-(-n // (2 * d)))])[:n]
    return Sample(z, h(z), np.ones(n), np.arange(n)[-2 * d :] // 2, 1e-20)


def structure_in(points: Sample, frame: Frame) -> Structure:
    first = first_rows(points, frame, StructureRule())
    assert first is not None
    found = find_structure(points, frame, StructureRule(), first)
    assert found is not None
    return found


def residual(P: np.ndarray, factor: np.ndarray, slope: np.ndarray):
    """The residual of q = N(0, factor factor') for a Gaussian log joint, and its natural gradient."""
    C = np.eye(len(P)) - factor.T @ P @ factor
    return (lambda z: 7.0 + z @ slope + 0.5 * (np.sum(z @ C * z, axis=1) - np.trace(C))), C


def test_the_quadratic_kernel_is_that_of_its_features(rng):
    frame, _ = frame_of(rng, 5)
    structure = structure_of(rng.uniform(0.1, 1.0, 5))
    t = rng.standard_normal((8, 5))
    rows, columns = np.tril_indices(5)
    features = t[:, rows] * t[:, columns] - frame.rho[rows, columns]
    variance = pair_variances(structure)[rows, columns] * np.where(rows == columns, 0.5, 1.0)
    np.testing.assert_allclose(
        quadratic_kernel(t, structure, frame.rho),
        (features * variance) @ features.T,
        rtol=1e-10,
        atol=1e-12,
    )


@pytest.mark.parametrize("degree", [3, 4])
def test_a_local_kernel_is_that_of_its_hermite_polynomials(rng, degree):
    x = rng.standard_normal((7, 2)), rng.standard_normal((7, 3))
    z, k = np.column_stack(x), 2
    he = [
        np.ones_like(z),
        z,
        (z**2 - 1) / 2**0.5,
        (z**3 - 3 * z) / 6**0.5,
        (z**4 - 6 * z**2 + 3) / 24**0.5,
    ]
    powers = itertools.product(range(degree + 1), repeat=5)
    powers = [p for p in powers if sum(p) == degree and sum(a > 0 for a in p[k:]) <= 1]
    features = np.stack([np.prod([he[a][:, i] for i, a in enumerate(p)], axis=0) for p in powers], axis=1)
    kernel = local_kernels(*x)[degree - 3]
    np.testing.assert_allclose(kernel, features @ features.T / len(powers), rtol=1e-9, atol=1e-12)


def test_the_upper_blocks_of_many_points_are_those_of_the_whole_kernels(rng):
    n, d = 700, 5
    frame, _ = frame_of(rng, d)
    structure = structure_of(rng.uniform(0.1, 1.0, d))
    t = rng.standard_normal((n, d))
    upper = np.triu_indices(n)
    whole, parts = (quadratic_kernel(t, structure, frame.rho, upper=is_upper) for is_upper in (False, True))
    np.testing.assert_allclose(parts[upper], whole[upper], rtol=1e-12, atol=1e-12)
    whole, parts = (local_kernels(t[:, :2], t[:, 2:], upper=is_upper) for is_upper in (False, True))
    for name in ("third", "fourth"):
        np.testing.assert_allclose(getattr(parts, name)[upper], getattr(whole, name)[upper], rtol=1e-12)


def test_a_function_of_hubs_and_one_other_parameter_has_structured_degrees(rng):
    """The prior gives degrees three and four of a funnel to polynomials of its hub and one other."""
    d = 30
    frame, scale = Frame(np.eye(d), np.eye(d)), 0.3

    def h(z):
        log_joint = -0.5 * np.exp(-2 * scale * z[:, 0]) * np.sum((1 + z[:, 1:]) ** 2, axis=1) - 0.5 * z[:, 0] ** 2
        return log_joint + 0.5 * np.sum(z**2, axis=1)

    found = structure_in(sample(rng, 20 * d, d, h), frame)
    assert found.hubs[0]
    assert found.cubic > 0.9
    assert found.quartic > 0.9


def test_the_frame_gives_coordinates_that_are_white_and_depend_on_hubs_and_one_parameter(rng):
    d = 6
    factor = np.linalg.cholesky(np.linalg.inv(arrow(rng, d)))
    frame = Frame.of(Gaussian(d), Gaussian(d).from_factor(np.zeros(d), factor, np.linalg.inv(factor)))
    hubs, others = frame.conditional(np.eye(d), np.arange(d) < HUBS)
    turned = np.column_stack([hubs, others])  # as functions of z: rows
    np.testing.assert_allclose(turned.T @ turned, np.eye(d), atol=1e-9)
    of_theta = np.linalg.solve(factor.T, others)  # derivative in theta
    off = of_theta[HUBS:] - np.diag(np.diag(of_theta[HUBS:]))
    np.testing.assert_allclose(off, 0.0, atol=1e-9)


def test_the_hubs_of_an_arrow_are_found_whatever_the_correlations_of_q(rng):
    d = 30
    P = arrow(rng, d)
    frame, factor = frame_of(rng, d)
    h, _ = residual(P, factor, np.ones(d))
    found = structure_in(sample(rng, 8 * d, d, h), frame)
    assert np.flatnonzero(found.hubs).tolist() == list(range(HUBS))


def test_an_update_does_not_make_hubs_of_many_parameters(rng):
    """Points of a dense matrix would do so; a new arrow has new hubs."""
    d, rule = 30, StructureRule()
    frame, factor = frame_of(rng, d)
    rows = np.where(np.arange(d) < HUBS, 1.0, 1e-4)
    h, _ = residual(dense(rng, d), factor, np.ones(d))
    points, flat = sample(rng, 8 * d, d, h), structure_of(np.ones(d), hubs=rows > 0.5)
    assert np.flatnonzero(update_structure(points, frame, rule, flat).hubs).tolist() == list(range(HUBS))
    one = structure_of(rows, hubs=np.arange(d) == 7)
    assert np.flatnonzero(update_structure(points, frame, rule, one).hubs).tolist() == list(range(HUBS))


def test_an_arrow_takes_fewer_points_than_a_quadratic_has_coefficients(rng):
    d = 30
    P = arrow(rng, d)
    frame, factor = frame_of(rng, d)
    slope = rng.standard_normal(d)
    h, C = residual(P, factor, slope)
    points = sample(rng, 8 * d, d, h)  # 240; the quadratic has 495 coefficients
    found = structure_in(points, frame)
    answer = StructuredRegression(points, frame, found).posterior(found.variances, Gaussian(d))
    assert 0.25 * np.sum((answer.C - C) ** 2) < 1e-3 * 0.25 * np.sum(C**2)
    np.testing.assert_allclose(answer.b, slope, atol=1e-3)
    assert answer.bound == pytest.approx(7.0, abs=1e-3)


def test_a_wrong_structure_is_overruled_by_the_points(rng):
    d = 8
    frame, factor = frame_of(rng, d)
    slope = rng.standard_normal(d)
    h, C = residual(dense(rng, d), factor, slope)
    wrong = structure_of(np.where(np.arange(d) < 2, 1.0, 1e-4))
    answer = StructuredRegression(sample(rng, 160, d, h), frame, wrong).posterior(
        Variances(0.3, 1e6, 1e-6), Gaussian(d)
    )
    np.testing.assert_allclose(answer.C, C, atol=1e-3)
    np.testing.assert_allclose(answer.b, slope, atol=1e-3)
    assert answer.bound == pytest.approx(7.0, abs=1e-3)


def test_the_posterior_variance_is_that_of_the_linear_model(rng):
    d, n = 4, 30
    frame, _ = frame_of(rng, d)
    structure, variances = structure_of(np.array([1.0, 0.2, 0.01, 0.02])), Variances(0.3, 10.0, 0.1)
    points = sample(rng, n, d, lambda z: np.sin(z).sum(1))
    regression = StructuredRegression(points, frame, structure)
    answer = regression.posterior(variances, Gaussian(d))
    # The prior covariance of the orthonormal coefficients of z, from those of W, one by one.
    rows, columns = np.tril_indices(d)
    root = np.where(rows == columns, np.sqrt(0.5), 1.0)
    to_z = []
    for i, j in zip(rows, columns, strict=True):
        W = np.zeros((d, d))
        W[i, j] = W[j, i] = 1.0
        to_z.append((frame.A.T @ W @ frame.A)[rows, columns] * root)
    B = np.array(to_z).T
    w = pair_variances(structure)[rows, columns] * np.where(rows == columns, 2.0, 1.0)
    prior = variances.quadratic * ((B * w) @ B.T + structure.dense / len(rows) * np.eye(len(rows)))
    z = points.z
    features = (z[:, rows] * z[:, columns] - (rows == columns)) * np.where(rows == columns, np.sqrt(0.5), 1.0)
    solved = regression.solve(variances)
    V = np.tril(solved.factor) @ np.tril(solved.factor).T
    H = np.linalg.solve(np.tril(solved.factor).T, solved.Q)
    P = np.linalg.inv(V) - H @ H.T
    exact = np.trace(prior - prior @ features.T @ P @ features @ prior)
    assert answer.quadratic_variance == pytest.approx(answer.scale * exact, rel=1e-6)


def state_after(function, d: int, n: int, rng: np.random.Generator):
    """The state of a method with n draws from a standard normal q."""
    method, family = qbvi.Regression(), Gaussian(d)
    q = family.start(np.zeros(d), np.ones(d))
    state = method.init(family, q)
    store = state.store
    for _ in range(n // (2 * d)):
        theta = orthogonal_pairs(rng, 2 * d, d)
        store = store.add(family, q, theta, function(theta), np.zeros(2 * d))
    return family, state._replace(store=store, noise=0.0)


def curved(P: np.ndarray):
    """A log joint with this curvature at zero, and cubic and quartic terms of each parameter."""
    return lambda theta: -0.5 * np.sum(theta @ P * theta, axis=1) + 0.1 * np.sum(np.tanh(theta) ** 3, axis=1)


def test_an_arrow_is_used_and_a_dense_matrix_is_not():
    d, rng = 40, np.random.default_rng(1)
    used = []
    for P in (arrow(rng, d, coupling=0.8), dense(rng, d)):
        family, state = state_after(curved(P), d, 12 * d, rng)
        found = regress(family, state, EAGER)
        assert found.finding.due > len(state.store.y)
        used.append(found.finding.is_used)
        assert isinstance(found.regression, StructuredRegression) == used[-1]
    assert used == [True, False]


def test_below_thirty_dimensions_no_structure_is_looked_for(rng):
    family, state = state_after(curved(arrow(rng, 29)), 29, 580, rng)
    assert regress(family, state, Rules()).finding == Finding()


def test_without_a_structure_the_regression_is_the_dense_one(rng):
    """A search in vain changes nothing, and the next one waits until the points have grown."""
    d = 30
    family, state = state_after(curved(dense(rng, d)), d, 10 * d, rng)
    rules, never = EAGER, Rules(structure=StructureRule(fewest=100))
    found, plain = regress(family, state, rules), regress(family, state, never)
    assert found.variances == plain.variances
    np.testing.assert_array_equal(
        found.regression.posterior(found.variances, family).C, plain.regression.posterior(plain.variances, family).C
    )
    rule, n = rules.structure, len(state.store.y)
    assert found.finding == Finding(2 * n)
    assert [rule.is_due(m, d, 2 * d, 2 * n, is_known=False) for m in (n, 2 * n)] == [False, True]


def test_a_structure_is_used_after_three_wins_in_a_row():
    rule, structure = StructureRule(), structure_of(np.ones(40))
    finding = Finding(400)
    for is_used in (False, False, True):
        finding = finding.compared(structure, 41.0, rule)
        assert finding.is_used is is_used
    assert Finding(400, structure, 2).compared(structure, 39.0, rule) == Finding()


def test_a_structure_in_use_is_given_up_after_three_losses_in_a_row():
    rule, structure = StructureRule(), structure_of(np.ones(40))
    finding = Finding(400, structure, 3, 0, is_used=True)
    assert finding.compared(structure, -3.0, rule).is_used
    for _ in range(2):
        finding = finding.compared(structure, -5.0, rule)
        assert not finding.is_used
        assert finding.structure is structure
    assert finding.compared(structure, -3.0, rule).is_used
    assert finding.compared(structure, -5.0, rule) == Finding()


def test_as_many_near_points_as_coefficients_need_no_structure():
    rule, d = StructureRule(), 40
    assert rule.is_due(2000, d, d * (d + 3) // 2 - 1, 0, is_known=False)
    assert not rule.is_due(2000, d, d * (d + 3) // 2, 0, is_known=False)


def test_a_fit_of_many_groups_settles_within_its_tolerance():
    d = 40
    rng = np.random.default_rng(3)
    P = arrow(rng, d)
    mean = rng.standard_normal(d)
    fit = qbvi.fit(
        lambda theta: -0.5 * np.sum((theta - mean) @ P * (theta - mean), axis=1) + 0.5 * np.sum(theta**2, axis=1),
        qbvi.Normal(0, 1, shape=d),
        method=qbvi.Regression(rules=EAGER),
        vectorized=True,
        seed=1,
    )
    cov = np.linalg.inv(P)
    ratio = np.linalg.solve(cov, fit.cov_matrix)
    off = fit.mean - mean
    missing = 0.5 * (np.trace(ratio) - d - np.linalg.slogdet(ratio)[1] + off @ P @ off)
    assert fit.converged
    assert missing < 0.01
    assert fit.n_evals < 800  # a dense regression takes 1,146


def test_ridge_regression_waits_for_a_search_and_for_a_structure_that_leaves_out_little():
    rule, structure = StructureRule(), SimpleNamespace(dense=0.001, rows=np.ones(40))
    first = rule.points * 40
    # before the first search, shortly before the next one, long before it, and where none is due
    cases = [(first - 1, 0), (1000, 1200), (1000, 2000), (1000, 900)]
    assert [rule.is_soon_due(n, 40, due) for n, due in cases] == [True, True, False, False]
    found, used = Finding(structure=structure, n_won=1), Finding(structure=structure, n_won=rule.wins)
    poor = used._replace(structure=SimpleNamespace(dense=2 * rule.partial))
    assert [finding.is_promising(rule) for finding in (Finding(), found, used, poor)] == [False, True, True, False]
