"""The survey of the prior: silent where a function is log-concave, and a second hill is not missed."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from qbvi.free.rules import SurveyRule
from qbvi.free.survey import Survey
from qbvi.regression.look import PriorScale

RULE = SurveyRule()


def surveyed(function, mode, cov, prior, seed=1):
    """Both rounds of a survey around a mode that is known."""
    rng, d = np.random.default_rng(seed), len(mode)
    top = float(function(mode[None])[0])
    survey = Survey.begin(d)
    theta = survey.ask(prior, mode, RULE, rng)
    apart = theta - mode
    expected = top - 0.5 * np.sum(apart * np.linalg.solve(cov, apart.T).T, axis=1)
    survey = survey.drawn(theta, function(theta), function(theta) - expected, RULE)
    if survey.is_over:
        return survey
    theta = survey.ask(prior, mode, RULE, rng)
    return survey.walked(theta, function(theta), top, RULE)


def walked(lines, ends, along, top=0.0):
    """The starts of lines in one dimension from ``lines`` to a mode at zero, with values ``along`` them."""
    survey = Survey(np.array(lines)[:, None], np.array(ends), np.empty((0, 1)), False)
    theta = survey.ask(None, np.zeros(1), RULE, None)
    done = survey.walked(theta, np.array(along, dtype=float).ravel(), top, RULE)
    assert done.is_over
    return done.starts[:, 0]


CONCAVE = {
    "gaussian": lambda u: -0.5 * np.sum(u**2, axis=1),
    "flat": lambda u: np.zeros(len(u)),
    "quartic": lambda u: -np.sum(u**4, axis=1),
    "logistic": lambda u: -np.sum(np.logaddexp(0, u) + np.logaddexp(0, -u), axis=1),
    "log-gamma": lambda u: np.sum(u - np.exp(u), axis=1),
}


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("name", CONCAVE)
def test_a_log_concave_function_gives_no_further_start(name, d):
    for seed in range(5):
        survey = surveyed(CONCAVE[name], np.zeros(d), np.eye(d), PriorScale(np.zeros(d), np.full(d, 4.0)), seed)
        assert survey.is_over
        assert len(survey.starts) == 0


@pytest.mark.parametrize("d", [1, 2, 4])
def test_a_second_hill_gives_a_start_on_it(d):
    other = np.full(d, 9 / math.sqrt(d))

    def two(u):
        left = -0.5 * np.sum((u + other) ** 2, axis=1)
        return np.logaddexp(left, -0.5 * np.sum((u - other) ** 2, axis=1))

    found = 0
    for seed in range(5):
        survey = surveyed(two, -other, np.eye(d), PriorScale(np.zeros(d), np.full(d, 9.0)), seed)
        found += any(start @ other > 0 for start in survey.starts)
    assert found == 5


def test_points_are_spread_over_the_prior():
    prior = PriorScale(np.array([100.0, -5.0]), np.array([10.0, 0.1]))
    theta = Survey.begin(2).ask(prior, np.zeros(2), RULE, np.random.default_rng(1))
    assert len(theta) == RULE.size(2)
    z = (theta - prior.loc) / prior.scale
    # Two Sobol sequences of four points each: every half of a coordinate has two points of each.
    assert np.all(np.sum(z > 0, axis=0) >= 4)
    assert np.all(np.sum(z < 0, axis=0) >= 4)
    assert 0.7 < z.std() < 1.4


def test_lines_lead_from_the_best_and_the_most_surprising_points():
    theta = np.arange(6.0)[:, None]
    y = np.array([-9.0, -1.0, -7.0, -5.0, -np.inf, -3.0])
    surprise = np.array([2.0, 9.0, 5.0, 1.0, -np.inf, 0.0])
    survey = Survey.begin(1).drawn(theta, y, surprise, RULE)
    # One line from the best point, which is not chosen again, and two from the most surprising others.
    assert_allclose(survey.lines[:, 0], [1, 2, 0])
    assert_allclose(survey.ends, [-1, -7, -9])
    assert not survey.is_over


def test_lines_lead_from_the_points_to_the_mode():
    mode = np.array([1.0, 2.0])
    survey = Survey(np.array([[7.0, 2.0], [1.0, -4.0]]), np.zeros(2), np.empty((0, 2)), False)
    got = survey.ask(None, mode, RULE, None)
    assert_allclose(got, [[6, 2], [5, 2], [4, 2], [3, 2], [2, 2], [1, -3], [1, -2], [1, -1], [1, 0], [1, 1]])


# --- what counts as another hill; the lines below begin at 6, and their points are 5, 4, 3, 2, 1


def test_the_start_is_the_best_point_on_the_other_hill():
    # The point nearest to the mode is better, but beyond the valley: it is on the hill that is known.
    assert_allclose(walked([6.0], [-9.0], [-6, -4, -20, -8, -1]), [4.0])


def test_a_fall_that_is_no_larger_than_the_rule_is_no_valley():
    assert len(walked([6.0], [-4.0], [-4 - RULE.valley, -4, -3, -2, -1])) == 0
    assert len(walked([6.0], [-4.0], [-4 - 1.01 * RULE.valley, -4, -3, -2, -1])) == 1


def test_a_hill_that_the_line_passes_by_is_a_bend_downward_and_then_upward():
    # Steps of 10, 2, 2, 10, 1, 1: the line never falls, but it flattens on the other hill before it rises again.
    # The start is the point before the line bends upward.
    assert_allclose(walked([6.0], [-26.0], [-16, -14, -12, -2, -1]), [4.0])


def test_a_bend_upward_and_then_downward_is_no_other_hill():
    # Steps of 1, 1, 10, 10, 3, 1: heavy tails, which rise slowly far from the only hill.
    assert len(walked([6.0], [-26.0], [-25, -24, -14, -4, -1])) == 0


def test_an_impossible_stretch_on_the_way_is_a_valley():
    assert_allclose(walked([6.0], [-2.0], [-1, -np.inf, -np.inf, -1, -1]), [5.0])


def test_a_prior_without_a_finite_value_ends_the_survey():
    theta = np.zeros((6, 2))
    survey = Survey.begin(2).drawn(theta, np.full(6, -np.inf), np.full(6, -np.inf), RULE)
    assert survey.is_over
    assert len(survey.starts) == 0


def test_the_best_start_comes_first():
    valley = np.full((3, RULE.on_line), -50.0)
    assert_allclose(walked([1.0, 2.0, 3.0], [-9.0, -1.0, -5.0], valley), [2.0, 3.0, 1.0])
