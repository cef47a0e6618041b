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
    return survey if survey.is_over else survey.walked(function(survey.ask(prior, mode, RULE, rng)), top, RULE)


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
    # Two Sobol sequences of five points each: every half of a coordinate has at least two points of each.
    assert np.all(np.sum(z > 0, axis=0) >= 4)
    assert np.all(np.sum(z < 0, axis=0) >= 4)
    assert 0.7 < z.std() < 1.4


def test_lines_lead_from_the_points_to_the_mode():
    mode = np.array([1.0, 2.0])
    ends = np.array([[5.0, 2.0], [1.0, -2.0]])
    survey = Survey(ends, np.zeros(2), np.empty((0, 2)), False)
    got = survey.ask(None, mode, RULE, None)
    assert_allclose(got, [[4, 2], [3, 2], [2, 2], [1, -1], [1, 0], [1, 1]])


def test_an_impossible_stretch_on_the_way_is_a_valley():
    survey = Survey(np.array([[4.0]]), np.array([-1.0]), np.empty((0, 1)), False)
    assert len(survey.walked(np.array([-np.inf, -np.inf, -1.0]), 0.0, RULE).starts) == 1


def test_a_prior_without_a_finite_value_ends_the_survey():
    theta = np.zeros((6, 2))
    survey = Survey.begin(2).drawn(theta, np.full(6, -np.inf), np.full(6, -np.inf), RULE)
    assert survey.is_over
    assert len(survey.starts) == 0


def test_the_best_start_comes_first():
    lines = np.array([[1.0], [2.0], [3.0]])
    survey = Survey(lines, np.array([-9.0, -1.0, -5.0]), np.empty((0, 1)), False)
    valley = np.tile([-50.0, -50.0, -50.0], 3)
    assert_allclose(survey.walked(valley, 0.0, RULE).starts[:, 0], [2.0, 3.0, 1.0])
