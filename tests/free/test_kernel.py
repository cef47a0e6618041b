"""The kernel of the residual: its formula, term by term, and that it is a covariance."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose

from qbvi.free.kernel import Kernel, squared_distances

KERNEL = Kernel(length=1.7, one=0.25, two=0.35)


def by_the_formula(kernel, x, y):
    """The sum of three parts as the docstring has it, one pair of points at a time."""
    d = len(x)
    k = np.exp(-((x - y) ** 2) * d / (2 * kernel.length**2))
    joint = np.exp(-np.sum((x - y) ** 2) / (2 * kernel.length**2))
    if d == 1:
        return joint
    if d == 2:
        return (1 - kernel.one) * joint + kernel.one * k.mean()
    pairs = np.mean([k[i] * k[j] for i, j in itertools.combinations(range(d), 2)])
    return (1 - kernel.one - kernel.two) * joint + kernel.one * k.mean() + kernel.two * pairs


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_every_entry_is_the_formula(d, rng):
    a, b = rng.normal(size=(4, d)), rng.normal(size=(6, d))
    expected = [[by_the_formula(KERNEL, x, y) for y in b] for x in a]
    assert_allclose(KERNEL(a, b), expected, rtol=1e-12)


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("length", [0.8, 6.0])
def test_many_points_give_the_formula_too(d, length, rng):
    """Then matrix products take the place of exponentials, except for points far out."""
    kernel, a, b = KERNEL._replace(length=length), 2 * rng.normal(size=(30, d)), rng.normal(size=(200, d))
    b[:5] *= 30.0
    a[:5] = b[:5] + 0.1
    expected = [[by_the_formula(kernel, x, y) for y in b] for x in a]
    assert_allclose(kernel(a, b), expected, atol=1e-9)
    K = kernel(b, b)
    assert np.linalg.eigvalsh(K).min() > -1e-8  # the noise of a surrogate is at least ten times that


def test_many_points_with_whole_numbers_give_the_sum_over_few_at_a_time(rng):
    kernel = Kernel(length=2.0, one=0.3, two=0.3, roughened=(1,), rough=0.4, reach=2.0)
    a, b = rng.normal(size=(10, 3)), rng.normal(size=(200, 3))
    a[:, 1], b[:, 1] = np.round(a[:, 1]), np.round(b[:, 1])
    few = np.concatenate([kernel(a, b[i : i + 50]) for i in range(0, 200, 50)], axis=1)
    assert_allclose(kernel(a, b), few, atol=1e-9)


@pytest.mark.parametrize("d", [1, 2, 3, 6, 12])
@pytest.mark.parametrize("shares", [(0.0, 0.0), (0.9, 0.05), (0.05, 0.9), (0.3, 0.3)])
def test_a_covariance_with_unit_variance(d, shares, rng):
    z = rng.normal(size=(40, d)) * 2
    K = Kernel(2.0, *shares)(z, z)
    # Squared distances come from a difference of squares: the diagonal has a rounding error.
    assert_allclose(np.diagonal(K), 1, atol=1e-12)
    assert_allclose(K, K.T, atol=1e-12)
    assert np.linalg.eigvalsh(K).min() > -1e-12


def test_nothing_is_shared_with_points_far_away(rng):
    z = rng.normal(size=(5, 3))
    assert KERNEL(z, z + 1e3).max() == 0


def test_squared_distances_are_never_negative(rng):
    a = 1e6 + rng.normal(size=(30, 4))
    got = squared_distances(a, a)
    assert got.min() >= 0
    b = rng.normal(size=(7, 4))
    assert_allclose(squared_distances(b, b[:3]), np.sum((b[:, None] - b[:3]) ** 2, axis=2), atol=1e-12)
