"""Draws: right marginals, the promised dependence, the same numbers for the same seed."""

import numpy as np
import pytest
import scipy.stats

from qbvi.random import Antithetic, Independent, Sobol

KINDS = [Independent(), Antithetic(), Sobol()]


@pytest.mark.parametrize("draws", KINDS, ids=lambda d: type(d).__name__)
def test_every_draw_is_standard_normal(draws):
    """Rows 0 and 1 of many independent steps."""
    z = np.stack([draws.normal(np.random.default_rng(seed), 8, 2) for seed in range(2000)])
    for row in (0, 5):
        for column in range(2):
            assert scipy.stats.kstest(z[:, row, column], "norm").pvalue > 1e-4


@pytest.mark.parametrize("draws", KINDS, ids=lambda d: type(d).__name__)
def test_groups_are_independent_of_each_other(draws):
    n = 8
    z = np.stack([draws.normal(np.random.default_rng(seed), n, 1)[:, 0] for seed in range(4000)])
    correlation = np.corrcoef(z**2 + z, rowvar=False)
    group = np.arange(n) % (n // draws.group_size(n))
    apart = correlation[group[:, None] != group[None, :]]
    assert np.abs(apart).max() < 5 / np.sqrt(4000)


@pytest.mark.parametrize("draws", KINDS, ids=lambda d: type(d).__name__)
def test_same_seed_same_draws(draws):
    first, second = (draws.normal(np.random.default_rng(5), 10, 3) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_sobol_integrates_better_than_independent_draws():
    error = {}
    for draws in (Independent(), Sobol()):
        means = [np.mean(draws.normal(np.random.default_rng(s), 256, 2) ** 2) for s in range(50)]
        error[type(draws).__name__] = np.std(means)
    assert error["Sobol"] < error["Independent"] / 3


@pytest.mark.parametrize(("draws", "n"), [(Independent(), 1), (Antithetic(), 5), (Sobol(), 3)])
def test_a_number_of_draws_that_cannot_work_is_refused(draws, n):
    with pytest.raises(ValueError, match=rf"`n_samples` must be .* got {n}"):
        draws.check(n)
