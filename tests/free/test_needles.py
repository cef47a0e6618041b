"""Needles: a look finds a mode that is much narrower than the prior, above a broad one."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp

import qbvi
from qbvi.free.ascent import Ascents
from qbvi.free.base import Base
from qbvi.free.needles import Hill, Looks, Needles, climbs, spread
from qbvi.free.rules import Caution, NeedleRule, ShapeSearch
from qbvi.free.surface import Points, Surface
from qbvi.regression.look import PriorScale

RULE = NeedleRule()
PRIOR = PriorScale((0.0, 10.0), (1.0, 2.0), (False, False))


def test_free_coordinates_are_from_the_prior_and_known_ones_from_the_posterior(rng):
    draws = np.array([[0.5, 12.0], [0.6, 13.0]])
    points = spread(draws, np.array([1.0, 0.0]), PRIOR, 200, rng, is_wide=False)
    assert not np.isin(points[:, 0], draws[:, 0]).any()
    assert set(points[:, 1]) == {12.0, 13.0}
    # In a wide look, each point has its own share of known coordinates from the prior: half on average.
    wide = spread(draws, np.array([1.0, 0.0]), PRIOR, 200, rng, is_wide=True)
    assert 50 < np.isin(wide[:, 1], draws[:, 1]).sum() < 150


def test_climbs_begin_inside_and_outside_of_modes_but_nowhere_twice():
    theta = np.column_stack([np.arange(6.0), np.full(6, 10.0)])
    y, surprise = -np.arange(6.0), np.array([0.5, 2.0, 2.0, 2.0, 2.0, 2.0])
    looks = Looks(now=Needles(theta[:0], None, n_climbs=4), starts=(theta[1],))
    begun = climbs((theta, y, surprise), np.arange(6) < 4, looks, PRIOR, RULE)
    assert_array_equal(begun.z[:, 0], [2, 3, 4, 5])
    assert_array_equal(begun.group, [0, 0, 1, 1])
    assert begun.goal == 0.0


def test_a_climb_to_a_known_hill_ends():
    climb = Ascents.begin(np.zeros((2, 2)), np.zeros(2), np.zeros(2, dtype=int), 0.0)
    now = Needles(np.empty((0, 2)), climb._replace(z=np.array([[0.0, 0.0], [5.0, 0.0]])), 2)
    hill = Hill(np.array([0.1, 10.0]), np.eye(2), 0.0)
    left = now.without(np.zeros(2, dtype=bool), (hill,), PRIOR, RULE)
    assert left.climbs is not None
    assert_array_equal(left.climbs.z, [[5.0, 0.0]])


def signal(width, strength):
    """A signal of unknown place in two dimensions, its prior, and the exact log evidence.

    The log-likelihood is a quadratic of the amplitude, so the evidence is a sum over places.
    """
    place = np.array([13.3, 22.1])

    def seen(x):
        return strength * np.exp(-0.5 * np.sum((x - place) ** 2, axis=-1) / width**2)

    def log_likelihood(theta):
        return theta[0] * seen(theta[1:]) - 0.5 * theta[0] ** 2

    at = np.linspace(0, 30, 601)[:-1] + 0.025
    s = seen(np.stack(np.meshgrid(at, at), axis=-1))
    evidence = logsumexp(s**2 / (2 * 1.01)) - math.log(s.size) - 0.5 * math.log(101)
    return log_likelihood, [qbvi.Normal(0, 10), qbvi.Uniform(0, 30), qbvi.Uniform(0, 30)], evidence


@pytest.mark.parametrize("seed", [0, 3])
def test_a_signal_of_unknown_place_is_found(seed):
    """Without a look, seed 0 settles where there is no signal: 15.5 nats are missing."""
    function, prior, evidence = signal(1.0, 7.0)
    fit = qbvi.fit(function, prior, seed=seed, progress=False)
    assert fit.converged
    # The error that a converged fit may have is 0.05 nats; the mode without the signal is e^-15.
    assert_allclose(fit.evidence, evidence, atol=0.2)


def test_a_quadratic_log_joint_has_no_look_unless_the_data_say_nothing_of_a_coordinate():
    def evaluations(sd):
        function = lambda x: -0.5 * (x[0] / 0.1) ** 2 - 0.5 * (x[1] / sd) ** 2
        fit = qbvi.fit(function, qbvi.Normal(0, 1, shape=2), seed=1, progress=False)
        assert fit.converged
        assert_allclose(fit.evidence, -0.5 * math.log(101) - 0.5 * math.log(1 + sd**-2), atol=0.02)
        return fit.n_evals

    # Half of the prior's standard deviation, and all of it.
    assert evaluations(1e6) >= evaluations(0.57) + RULE.fewest_spread


def test_a_surrogate_exceeds_nothing_at_no_points(rng):
    """A look may have no points left: all climbs have ended, or the function has failed at all."""
    theta = rng.standard_normal((30, 2))
    points = Points(theta, -0.5 * np.sum(theta**2, axis=1), np.zeros(30), theta[:0])
    surface = Surface.searched(points, Base.one(np.zeros(2), np.eye(2)), None, Caution(), ShapeSearch())
    assert surface.excess(theta[:0], theta[:0, 0]).shape == (0,)
