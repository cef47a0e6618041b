"""Climbs to the top of a hill: as exact as Newton's method, and given up early where there is none."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from qbvi.free.ascent import Ascents
from qbvi.free.rules import NeedleRule

RULE = NeedleRule()


def climbed(function, starts, goal=-np.inf, groups=None):
    """The climbs when they have ended, and their number of evaluations."""
    z, n = np.array(starts, dtype=float), 0
    groups = np.zeros(len(z), dtype=int) if groups is None else np.array(groups)
    climbs = Ascents.begin(z, function(z), groups, goal)
    while not climbs.is_over:
        points = climbs.ask(RULE)
        climbs, n = climbs.tell(function(points), RULE), n + len(points)
    return climbs, n


def needle(precision, top):
    """A Gaussian hill of height 50."""
    return lambda z: 50 - 0.5 * np.einsum("ni,ij,nj->n", z - top, precision, z - top)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_a_climb_finds_the_top_and_the_mass_of_a_narrow_hill(correlation):
    sd, top = np.array([0.003, 0.1, 1.0]), np.array([0.3, -0.2, 0.7])
    cov = np.outer(sd, sd) * (correlation * np.ones((3, 3)) + (1 - correlation) * np.eye(3))
    start = top + 4 * sd * [1, -1, 0.5]
    climbs, n = climbed(needle(np.linalg.inv(cov), top), [start])
    # A climb ends when two steps gain less than half a nat each: it is that near, and the BFGS
    # estimate of three curvatures is right to a factor of about two.
    assert climbs.y[0] > 49.0
    assert_allclose(climbs.log_mass[0], 50 + 0.5 * np.linalg.slogdet(2 * np.pi * cov)[1], atol=2.0)
    assert n <= 6 + 3 + RULE.most_steps * (3 + 3)


def test_of_several_climbs_the_highest_goes_on():
    def hills(z):
        return np.logaddexp(30 - 50 * (z[:, 0] - 1) ** 2, 10 - 50 * (z[:, 0] + 1) ** 2)

    climbs, _ = climbed(hills, [[0.8], [-0.8], [-0.9], [-0.7]])
    assert_allclose(climbs.z, [[1.0]], atol=0.05)
    both, _ = climbed(hills, [[0.8], [-0.8]], groups=[0, 1])
    assert_allclose(both.z, [[1.0], [-1.0]], atol=0.05)


def test_a_climb_ends_at_once_if_its_steps_do_not_lead_to_the_goal():
    slope = lambda z: -20 + np.tanh(z[:, 0])
    climbs, n = climbed(slope, [[0.0, 0.0]], goal=0.0)
    assert not len(climbs.y)
    assert n == 2 * 2 + 3


def test_zero_likelihood_and_failures_end_no_climb():
    def walled(z):
        return np.where(z[:, 0] > 1.5, -np.inf, -0.5 * (z[:, 0] - 1) ** 2 / 0.01)

    climbs, _ = climbed(walled, [[0.0]])
    assert_allclose(climbs.z, [[1.0]], atol=0.1)
