"""Pareto-smoothed weights against ArviZ's: the same bits."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

from qbvi.pareto import pareto_smoothed


@pytest.mark.parametrize("n", [25, 100, 225, 226, 1000, 4096])
@pytest.mark.parametrize("scale", [1e-6, 0.3, 1.0, 4.0, 30.0])
def test_weights_and_khat_are_those_of_arviz(n, scale):
    h = scale * np.random.default_rng(n).standard_normal(n)
    with np.errstate(all="ignore"):
        weights, khat = pareto_smoothed(h)
        expected, expected_khat = array_stats.psislw(h.max() - h)
    assert np.array_equal(weights, expected, equal_nan=True)
    assert khat == expected_khat or (np.isnan(khat) and np.isnan(expected_khat))


def test_a_tail_of_equal_ratios_is_refused():
    h = np.zeros(100)
    h[:50] = -1.0
    with pytest.raises(ValueError, match="no tail"):
        pareto_smoothed(h)
