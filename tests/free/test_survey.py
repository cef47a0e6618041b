"""The survey of the prior: silent where a function is log-concave, and a second hill is not missed."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import qbvi
from qbvi.free.rules import SurveyRule
from qbvi.free.survey import Survey, falls
from qbvi.regression.look import PriorScale

RULE = SurveyRule()
FINE = replace(RULE, on_line=5)


def surveyed(function, mode, cov, prior, seed=1):
    """Starts on other hills that a survey around a mode finds."""
    rng, d = np.random.default_rng(seed), len(mode)
    tops = function(mode[None])
    survey = Survey.begin(np.zeros(d))
    theta = survey.ask((prior,), RULE, rng)
    apart = theta - mode
    expected = tops[0] - 0.5 * np.sum(apart * np.linalg.solve(cov, apart.T).T, axis=1)
    survey = survey.drawn(theta, function(theta)).aimed(mode[None], tops, expected[None], RULE)
    if not len(survey.lines):
        return np.empty((0, d))
    theta = survey.ask((prior,), RULE, rng)
    return survey.walked(theta, function(theta), RULE)[1].places


def on_lines(lines, ends, top=0.0):
    """A survey with lines in one dimension that lead from ``lines`` to a mode at zero."""
    lines = np.stack([np.array(lines), np.zeros(len(lines))], axis=1)[:, :, None]
    return Survey.begin(np.zeros(1))._replace(
        y=np.zeros(1), lines=lines, ends=np.column_stack([ends, np.full(len(ends), top)]), is_spreading=False
    )


def walked(lines, ends, along, top=0.0):
    """The starts of lines in one dimension from ``lines`` to a mode at zero, with values ``along`` them."""
    survey = on_lines(lines, ends, top)
    theta = survey.ask((), FINE, None)
    done, hills = survey.walked(theta, np.array(along, dtype=float).ravel(), FINE)
    assert not done.is_due
    return hills.places[:, 0]


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
        starts = surveyed(
            CONCAVE[name], np.zeros(d), np.eye(d), PriorScale(np.zeros(d), np.full(d, 4.0), np.zeros(d, bool)), seed
        )
        assert len(starts) == 0


@pytest.mark.parametrize("d", [1, 2, 4])
def test_a_second_hill_gives_a_start_on_it(d):
    other = np.full(d, 9 / math.sqrt(d))

    def two(u):
        left = -0.5 * np.sum((u + other) ** 2, axis=1)
        return np.logaddexp(left, -0.5 * np.sum((u - other) ** 2, axis=1))

    found = 0
    for seed in range(5):
        starts = surveyed(two, -other, np.eye(d), PriorScale(np.zeros(d), np.full(d, 9.0), np.zeros(d, bool)), seed)
        found += any(start @ other > 0 for start in starts)
    assert found == 5


def test_the_start_and_points_that_are_spread_over_the_prior():
    prior = PriorScale(np.array([100.0, -5.0]), np.array([10.0, 0.1]), np.zeros(2, bool))
    theta = Survey.begin(np.array([3.0, 4.0])).ask((prior,), RULE, np.random.default_rng(1))
    assert len(theta) == 1 + RULE.size(2)
    assert_allclose(theta[0], [3, 4])
    z = (theta[1:] - prior.loc) / prior.scale
    # Two Sobol sequences of four points each: every half of a coordinate has two points of each.
    assert np.all(np.sum(z > 0, axis=0) >= 4)
    assert np.all(np.sum(z < 0, axis=0) >= 4)
    assert 0.7 < z.std() < 1.4


def aimed(y, predicted, modes=((0.0,),), tops=(0.0,)):
    """A survey of the points 1, 2, ... with values y, with lines to these modes."""
    survey = Survey.begin(np.zeros(1)).drawn(np.arange(1.0, len(y) + 1)[:, None], np.array(y))
    return survey.aimed(np.array(modes), np.array(tops), np.array(predicted, dtype=float), RULE)


def test_lines_lead_from_the_best_and_the_most_surprising_points():
    y = [-9.0, -1.0, -7.0, -5.0, -np.inf, -6.0, -8.0, -8.5, -8.9]
    survey = aimed(y, [[-90, -10, -99, -25, -1, -40, -80, -70, -60]])
    # One line from the best point, which is not chosen again, and two from the most surprising others.
    assert_allclose(survey.lines[:, 0, 0], [2, 3, 1])
    assert_allclose(survey.ends[:, 0], [-1, -7, -9])
    assert survey.is_due


def test_points_that_are_as_expected_need_no_line():
    # Lower than the Gaussian is no hill, nor is higher by less than a tenth of the depth and a nat.
    assert not len(aimed([-30.0, -100.0], [[-20, -109.0]]).lines)
    assert len(aimed([-30.0, -97.0], [[-20, -109.0]]).lines)


def test_lines_lead_from_any_points_if_most_are_not_as_expected():
    # All points are lower than expected, which alone is no reason for a line ...
    assert not len(aimed([-30.0, -40.0, -50.0], [[-25, -39, -41.0]]).lines)
    # ... but an expectation that is wrong by more than half of the depth says nothing.
    assert_allclose(aimed([-90.0, -40.0, -50.0], [[-25, -19, -21.0]]).lines[:, 0, 0], [2, 3, 1])


def test_more_points_are_spread_once_if_all_are_as_expected():
    survey = aimed([-30.0, -100.0], [[-20, -109.0]])
    assert survey.is_spreading
    more = survey.ask((PriorScale(np.zeros(1), np.ones(1), np.zeros(1, bool)),), RULE, np.random.default_rng(1))
    assert len(more) == RULE.further * RULE.size(1)
    survey = survey.drawn(more, np.full(len(more), -50.0))
    assert len(survey.theta) == len(survey.y) == len(survey.is_used) == 2 + len(more)
    again = survey.aimed(np.zeros((1, 1)), np.zeros(1), np.full((1, 2 + len(more)), -50.0), RULE)
    assert len(again.lines)  # the first two points are 20 above and 50 below that
    assert survey.aimed(np.zeros((1, 1)), np.zeros(1), np.full((1, 2 + len(more)), -34.0), RULE).is_over


def test_a_line_leads_to_the_mode_that_predicts_most():
    survey = aimed([-5.0, -5.0], [[-50, -60], [-70, -40]], modes=[[0.0], [9.0]], tops=[0.0, -1.0])
    assert_allclose(survey.lines[:, 1, 0], [0, 9])
    assert_allclose(survey.ends[:, 1], [0, -1])


def test_no_second_line_leads_from_the_same_point():
    n = RULE.best + RULE.surprising + 1
    survey, expected = aimed([-5.0] * n, [[-50] * n]), np.full((1, n), -50.0)
    again = survey.aimed(np.zeros((1, 1)), np.zeros(1), expected, RULE)
    assert_allclose(again.lines[:, 0, 0], [n])
    assert not len(again.aimed(np.zeros((1, 1)), np.zeros(1), expected, RULE).lines)


def test_lines_lead_from_the_points_to_the_mode():
    lines = np.array([[[7.0, 2.0], [1.0, 2.0]], [[1.0, -4.0], [1.0, 2.0]]])
    survey = Survey.begin(np.zeros(2))._replace(y=np.zeros(1), lines=lines, ends=np.zeros((2, 2)), is_spreading=False)
    got = survey.ask((), FINE, None)
    assert_allclose(got, [[6, 2], [5, 2], [4, 2], [3, 2], [2, 2], [1, -3], [1, -2], [1, -1], [1, 0], [1, 1]])


# --- what counts as another hill; the lines below begin at 6, and their points are 5, 4, 3, 2, 1


def test_the_start_is_the_best_point_on_the_other_hill():
    # The point nearest to the mode is better, but beyond the valley: it is on the hill that is known.
    assert_allclose(walked([6.0], [-9.0], [-6, -4, -20, -8, -1]), [4.0])


def test_a_fall_that_is_no_larger_than_the_rule_is_no_valley():
    least = RULE.valley + RULE.shallow * 4
    assert not len(falls(np.array([-4, -4 - 0.99 * least, -4, -2, 0]), RULE))
    assert len(falls(np.array([-4, -4 - 1.01 * least, -4, -2, 0]), RULE))


def test_far_below_the_mode_a_shallow_fall_is_no_valley():
    assert not len(falls(np.array([-1000.0, -1020, -800, -400, -100, -10, 0]), RULE))


def test_a_point_that_is_better_than_the_mode_is_a_start():
    assert_allclose(walked([6.0], [-90.0], [-50, -20, 5, -1, 0], top=-2.0), [3.0])


def test_a_hill_that_the_line_passes_by_is_a_bend_upward():
    # Steps of 10, 2, 2, 10, 1, 1: the line never falls, but it flattens on the other hill before it rises again.
    # The start is the point before the line bends upward.
    assert_allclose(walked([6.0], [-26.0], [-16, -14, -12, -2, -1]), [4.0])


def test_the_slope_of_another_hill_at_the_far_end_is_a_bend_upward():
    # Steps of 40, 51, 41, 29, 17, 6: near the mode they shrink by 12 each, as for a Gaussian. The first one is too
    # small for that, because another Gaussian is larger there.
    assert_allclose(walked([6.0], [-191.0], [-151, -100, -59, -30, -13], top=-7.0), [6.0])


def test_a_small_bend_upward_is_no_hill():
    # A tail of a Student-t, which rises slowly far from the only hill.
    y = -2 * np.log1p(np.arange(6.0, 0, -1) ** 2)
    assert not len(walked([6.0], y[:1], y[1:]))


def test_an_impossible_stretch_on_the_way_is_a_valley():
    assert_allclose(walked([6.0], [-2.0], [-1, -np.inf, -np.inf, -1, -1]), [5.0])


def test_a_prior_without_a_finite_value_ends_the_survey():
    survey = aimed([-np.inf, -np.inf], [[-5, -9]]).drawn(np.zeros((1, 1)), np.full(1, -np.inf))
    assert survey.aimed(np.zeros((1, 1)), np.zeros(1), np.zeros((1, 3)), RULE).is_over


def test_the_best_start_comes_first():
    valley = np.full((3, FINE.on_line), -50.0)
    assert_allclose(walked([1.0, 2.0, 3.0], [-9.0, -1.0, -5.0], valley), [2.0, 3.0, 1.0])


def test_a_start_beyond_a_valley_comes_before_a_better_one_at_a_bend():
    bend, valley = [-16, -14, -12, -2, -1], [-40, -60, -50, -9, -1]
    assert_allclose(walked([6.0, 12.0], [-26.0, -30.0], [bend, valley]), [12.0, 4.0])


def test_more_points_are_spread_each_time_while_the_likelihood_is_zero(rng):
    prior, survey, sizes = PriorScale((0.0, 0.0), (1.0, 1.0), (False, False)), Survey.begin(np.zeros(2)), []
    for _ in range(5):
        theta = survey.ask((prior,), RULE, rng)
        sizes.append(len(theta))
        survey = survey.drawn(theta, np.full(len(theta), -np.inf)).blind()
    assert sizes == [9, 12, 18, 26, 40]


def test_a_mode_near_one_end_of_a_uniform_prior_is_evaluated_near_the_other():
    prior = PriorScale((0.0, 1.0, 0.0), (1.5, 2.0, 1.5), (True, True, False))
    survey = Survey.begin(np.zeros(3)).drawn(np.zeros((4, 3)), np.full(4, -5.0))
    sd = np.full(3, 0.01)
    assert not len(survey.opposite(np.array([1.7, -1.3, 9.0]), sd, prior, RULE).across)
    survey = survey.opposite(np.array([-3.0, 6.0, 9.0]), sd, prior, RULE)
    assert survey.is_due
    # One end at a time; the third coordinate has no ends.
    assert_allclose(survey.ask((prior,), RULE, None), [[3, 6, 9], [-3, -4, 9]])
    survey = survey.drawn(survey.across, np.array([-1.0, -9.0]))
    assert not survey.is_due
    assert_allclose(survey.theta[-2:], [[3, 6, 9], [-3, -4, 9]])
    assert_allclose(survey.y[-3:], [-5, -1, -9])
    assert survey.n_spread == 1


def test_a_wide_mode_that_reaches_an_end_is_evaluated_near_the_other_one():
    prior = PriorScale((0.0,), (1.0,), (True,))
    survey = Survey.begin(np.zeros(1)).drawn(np.zeros((4, 1)), np.full(4, -5.0))
    mode, narrow, wide = np.array([-1.0]), np.array([0.05]), np.array([0.15])
    assert not len(survey.opposite(mode, narrow, prior, RULE).across)  # reaches 1.1 of 1.2
    assert_allclose(survey.opposite(mode, wide, prior, RULE).across, [[1.0]])  # reaches 1.3


def test_a_mode_that_is_found_before_the_prior_is_surveyed_waits_for_the_survey():
    prior = PriorScale((0.0,), (1.0,), (True,))
    survey = Survey.begin(np.zeros(1)).opposite(np.array([4.0]), np.ones(1), prior, RULE)
    spread = survey.ask((prior,), RULE, np.random.default_rng(1))
    assert len(spread) == 1 + RULE.size(1)
    assert_allclose(survey.drawn(spread, np.zeros(len(spread))).ask((prior,), RULE, None), [[-4.0]])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_a_phase_that_is_declared_as_a_plain_number_keeps_its_larger_part(seed):
    """Evidence of a sine wave whose phase is near the end of its prior, by a sum over a fine grid."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 4, 60)
    wave = rng.normal(1.3 * np.sin(2 * np.pi * 0.8 * t + 0.6), 0.7)

    def loglike(x):
        model = x["size"] * np.sin(2 * np.pi * x["frequency"] * t + x["phase"])
        return -0.5 * np.sum((wave - model) ** 2) / 0.49

    size, frequency, phase = np.linspace(0, 4, 81), np.linspace(0.1, 2, 1501), np.linspace(0, 2 * np.pi, 361)
    angle = 2 * np.pi * np.multiply.outer(frequency, t)
    total = []
    for phi in phase:
        form = np.sin(angle + phi)
        linear, square = form @ wave, np.sum(form**2, axis=1)
        total.append(
            np.logaddexp.reduce(
                -0.5 * (wave @ wave - 2 * size[:, None] * linear + size[:, None] ** 2 * square) / 0.49, axis=None
            )
        )
    truth = np.logaddexp.reduce(total) - math.log(len(size) * len(frequency) * len(phase))
    uniform = {"size": qbvi.Uniform(0, 4), "frequency": qbvi.Uniform(0.1, 2), "phase": qbvi.Uniform(0, 2 * np.pi)}
    fit = qbvi.fit(loglike, uniform, seed=seed)
    assert fit.converged
    # A part that is missed would be several nats; the tolerance of a fit is 0.05.
    assert abs(fit.evidence - truth) < 3 * fit.evidence_se + 0.05


def exceptions(error, depth, used=()):
    """The points 0, 1, ... whose values exceed what is expected by ``error``, ``depth`` below the top."""
    expected = -np.array(depth, dtype=float)
    survey = Survey.begin(np.zeros(1)).drawn(np.arange(float(len(depth)))[:, None], expected + np.array(error))
    survey.is_used[list(used)] = True
    return survey.exceptions(expected, RULE)[1][:, 0].tolist()


def test_where_gaussians_are_right_about_nearly_all_points_the_others_are_on_other_hills():
    depth = [0, 50, 100, 200, 300]
    assert exceptions([0.0, 0.01, 0.02, 2.5, 0.05], depth) == [3]
    assert exceptions([0.0, 0.01, 0.02, 0.5, 0.05], depth) == []
    assert exceptions([0.0, 1.5, 0.02, 2.5, 0.05], depth) == [1, 3]  # the best value comes first
    assert exceptions([0.0, 1.5, 0.02, 2.5, 0.05], depth, used=[1]) == [3]


def test_where_gaussians_are_wrong_about_most_points_no_point_is_an_exception():
    # A heavy tail: all values are above a Gaussian, by a fifth of their depth.
    assert exceptions([0.0, 10.0, 20.0, 90.0, 60.0], [0, 50, 100, 200, 300]) == []


def test_an_exception_exceeds_the_usual_error_many_times():
    # The usual error is a four-hundredth of the depth, so that 4 nats at a depth of 200 are no surprise.
    assert exceptions([0.0, 0.125, 0.25, 4.0, 0.75], [0, 50, 100, 200, 300]) == []
    assert exceptions([0.0, 0.125, 0.25, 8.0, 0.75], [0, 50, 100, 200, 300]) == [3]


def test_more_points_are_spread_before_the_end_if_there_are_several_modes():
    survey = Survey.begin(np.zeros(1)).drawn(np.zeros((4, 1)), np.zeros(4))
    assert survey.ended(False, RULE).is_over
    assert survey.ended(True, RULE).is_spreading
    assert survey._replace(n_spread=RULE.spreads).ended(True, RULE).is_over


def test_a_hill_that_is_hardly_seen_from_the_points_of_the_survey():
    """The second part of a mixture exceeds what the first predicts at one point of 38, by 2.6 nats."""
    means = np.array([[-0.62, 1.6, -0.88, 0.42, 1.58], [0.81, 0.15, -0.19, 0.43, 0.93]])
    sds = np.array([[0.16, 0.12, 0.15, 0.1, 0.12], [0.19, 0.17, 0.13, 0.1, 0.11]])

    def loglike(x):
        parts = np.log([0.4, 0.6]) - np.log(sds).sum(axis=1) - 0.5 * np.sum(((x - means) / sds) ** 2, axis=1)
        return np.logaddexp.reduce(parts) + 0.5 * x @ x

    fit = qbvi.fit(loglike, qbvi.Normal(0, 1, shape=5), seed=1)
    assert fit.converged
    assert abs(fit.evidence) < 0.05
    assert len(fit.starts) == 2


def test_a_bend_is_no_hill_if_only_valleys_count():
    survey, y = on_lines([4.0, 4.0], [-100.0, -20.0]), [[-90.0, -70, -40, -9, -1], [-25.0, -30, -20, -9, -1]]
    theta = survey.ask((), FINE, None)
    _, hills = survey.walked(theta, np.ravel(y), FINE)
    assert_allclose(hills.y, [-20, -100], atol=60)
    assert hills.n_beyond == 1
    _, hills = survey.walked(theta, np.ravel(y), FINE, bends=False)
    assert_allclose(hills.places, [[4.0]])
    assert_allclose(hills.y, [-20])


def test_explored_points_come_after_opposite_ends_and_are_counted():
    survey = Survey.begin(np.zeros(1)).drawn(np.zeros((4, 1)), np.zeros(4))._replace(n_exploring=2)
    survey = survey._replace(across=np.array([[1.0]]))
    assert survey.is_across
    assert not survey.is_exploring
    survey = survey.drawn(survey.across, np.zeros(1))
    assert survey.is_exploring
    assert survey.drawn(np.ones((3, 1)), np.zeros(3)).n_exploring == 1
    assert survey.n_spread == 1
