"""What the draws of some rounds show, with failures, zero likelihood and noise."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from qbvi.free.check import Check, Shown, joined
from qbvi.noise import Noise


def _check(r, log_z, noise=0.0):
    return Check(r, log_z, error=0.0, change=0.0, hope=0.0, noise=Noise(np.full(len(r), noise)))


def test_the_lower_bound_of_a_round_counts_draws_of_zero_likelihood():
    shown = Shown.by((_check(np.array([0.1, -0.1, -np.inf, np.nan]), 2.0),))
    # A failure counts for nothing.
    assert_allclose([shown.bound, shown.bound_se], [2 - math.log(1.5), 0.1 / math.sqrt(2)])
    assert_allclose(shown.h, [2.1, 1.9])
    assert (shown.n, shown.n_finite) == (3, 2)


def test_rounds_without_a_finite_draw_show_nothing():
    shown = Shown.by((_check(np.full(3, -np.inf), 2.0),))
    assert (shown.bound, shown.evidence, shown.missing) == (-math.inf, -math.inf, math.inf)


def test_each_draw_is_compared_with_its_own_surrogate():
    apart = Shown.by((_check(np.array([0.0, 0.2]), 1.0), _check(np.array([-1.0, -0.8]), 2.0)))
    together = Shown.by((_check(np.array([0.0, 0.2, 0.0, 0.2]), 1.0),))
    assert_allclose([apart.evidence, apart.missing], [together.evidence, together.missing])


@pytest.mark.parametrize(("signal", "noise"), [(0.0, 2.0), (0.5, 1.0), (1.0, 0.3)])
def test_noise_is_no_part_of_what_is_missing(signal, noise):
    """Normal log ratios of variance s^2 miss s^2 / 2 nats. The errors of 40 samples must agree with their spread."""
    n, z = 1000, []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        r = signal * rng.standard_normal(n) + noise * rng.standard_normal(n)
        shown = Shown.by((_check(r, -7.0, noise**2),))
        z.append((shown.evidence - (-7.0 + signal**2 / 2)) / shown.evidence_se)
        assert abs(shown.missing - signal**2 / 2) < 5 * shown.missing_se + 1e-9
    # Missing nats are cut off at zero, which biases the evidence by less than half a standard error.
    assert abs(np.mean(z)) < 0.5 + 4 / math.sqrt(40)


def test_two_numbers_are_joined_by_their_errors():
    assert_allclose(joined((1.0, 0.3), (4.0, 0.1)), (0.9 * 4 + 0.1 * 1, 0.9 * 0.1 + 0.1 * 0.3))
    assert joined((-math.inf, math.inf), (4.0, 0.1)) == (-math.inf, math.inf)
    assert joined((1.0, 0.0), (1.0, 0.0)) == (1.0, 0.0)


def test_draws_from_where_mass_may_be_show_how_much_is_there():
    """The claimed density has all of the mass, or half of it: the possible one has twice as much as is claimed."""
    rng = np.random.default_rng(1)
    right = Check(np.zeros(400), -3.0, error=0.0, change=0.0, hope=math.log(2))
    empty = np.where(rng.random(400) < 0.5, 0.0, -np.inf) - 3.0 + math.log(2)  # half of the draws find nothing
    nothing = Shown.by((right._replace(hoped=empty),))
    # A share of a half by 400 draws has a standard error of 0.025, which is 0.05 nats.
    assert nothing.beyond < 3 * nothing.beyond_se
    assert 0.03 < nothing.beyond_se < 0.07
    full = Shown.by((right._replace(hoped=np.full(400, -3.0 + math.log(2))),))
    assert_allclose(full.beyond, math.log(2))
    assert Shown.by((right,)).beyond == math.inf
    assert Shown.by((right._replace(hoped=np.full(4, -np.inf)),)).beyond == math.inf


def test_mass_that_draws_show_beyond_the_claimed_one_counts_if_errors_do_not_explain_it():
    rng = np.random.default_rng(1)
    right = Check(np.zeros(400), -3.0, error=0.0, change=0.0, hope=math.log(2))
    level = -3.0 + math.log(2)
    found = np.where(rng.random(400) < 0.75, level, -np.inf)  # half as much again as is claimed
    shown = Shown.by((right._replace(hoped=found),))
    assert_allclose(shown.least_beyond, math.log(1.5), atol=5 * shown.beyond_se)
    # Two in three of the posteriors in which nothing is beyond are within one standard error.
    none = [
        Shown.by((right._replace(hoped=np.where(rng.random(400) < 0.5, level, -np.inf)),)).least_beyond
        for _ in range(300)
    ]
    assert np.mean(np.array(none) > 0) < 0.16 + 3 * math.sqrt(0.16 * 0.84 / 300)
    assert Shown.by((right,)).least_beyond == 0.0  # not measured
