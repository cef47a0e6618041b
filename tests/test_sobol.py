"""Scrambled Sobol points against SciPy's: the same bits from the same generator."""

import warnings

import numpy as np
import pytest
from scipy.stats import qmc

from qbvi.sobol import MOST_DIMENSIONS, scrambled_sobol


@pytest.mark.parametrize("d", [1, 2, 7, 20, MOST_DIMENSIONS, MOST_DIMENSIONS + 1])
@pytest.mark.parametrize("n", [1, 2, 37, 256])
def test_the_points_are_those_of_scipy(n, d):
    rng, other = np.random.default_rng(n + d), np.random.default_rng(n + d)
    for _ in range(2):  # the second sequence of a generator has a scramble of its own
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            expected = qmc.Sobol(d, scramble=True, rng=other).random(n)
        assert np.array_equal(scrambled_sobol(rng, n, d), expected)
    assert rng.random() == other.random()


@pytest.mark.parametrize("j", range(MOST_DIMENSIONS))
def test_each_coordinate_fills_every_interval_once(j):
    points = scrambled_sobol(np.random.default_rng(j), 64, MOST_DIMENSIONS)[:, j]
    assert np.array_equal(np.sort(np.floor(64 * points)), np.arange(64))
