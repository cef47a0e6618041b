"""The rule book: each rule on numbers written by hand, the same on every array library."""

import dataclasses

import numpy as np
import pytest

import qbvi
from qbvi.arrays import to_numpy
from qbvi.families import Gaussian
from qbvi.regression.line import Gradient, NaturalLine, longest_by_bisection
from qbvi.regression.rules import (
    Effort,
    GapPrediction,
    LastStep,
    Rules,
    TrustRegion,
    VarianceSearch,
    Weighting,
    secant_share,
)
from sweeps import sweep

RULE = TrustRegion()


def last_step(xp, bound=-10.0, se=0.0, gain=1.0, kl=0.5, is_restricted=True):
    numbers = (xp.asarray(x, dtype=xp.float64) for x in (bound, se, gain, kl))
    return LastStep(xp.zeros(2), *numbers, xp.asarray(is_restricted))


def number(xp, value):
    return xp.asarray(value, dtype=xp.float64)


@pytest.mark.parametrize(
    ("bound", "se", "is_rejected"),
    [
        (-9.0, 0.0, False),  # it rose
        (-10.14, 0.0, False),  # a tenth of the predicted gain and 0.05 nats are tolerated
        (-10.16, 0.0, True),
        (-10.5, 0.2, False),  # within two standard errors and what is tolerated
        (-10.6, 0.2, True),
    ],
)
def test_a_step_is_rejected_where_the_bound_fell_by_more_than_noise(xp, bound, se, is_rejected):
    assert bool(RULE.rejects(last_step(xp), number(xp, bound), number(xp, se))) == is_rejected


@pytest.mark.parametrize(
    ("bound", "is_restricted", "radius"),
    [
        (-9.0, True, 50.0),  # exactly as predicted: a hundred times the KL
        (-9.05, True, 4.5),  # close: nine times
        (-9.4, True, 2.0),  # good: three times the KL, and never less than before
        (-9.6, True, 2.0),  # neither good nor poor
        (-9.9, True, 1 / 6),  # poor: a third of the KL
        (-9.0, False, 2.0),  # nothing restricted it: at most four times the KL
    ],
)
def test_the_radius_follows_the_ratio_of_actual_to_predicted_gain(xp, bound, is_restricted, radius):
    last = last_step(xp, is_restricted=is_restricted)
    found = RULE.next_radius(number(xp, 2.0), last, number(xp, bound), number(xp, 0.0))
    np.testing.assert_allclose(to_numpy(found), radius, rtol=1e-12)


def test_a_gain_below_its_noise_says_nothing_about_the_radius(xp):
    last = last_step(xp, se=0.4)
    found = RULE.next_radius(number(xp, 2.0), last, number(xp, -9.99), number(xp, 0.4))
    np.testing.assert_allclose(to_numpy(found), 2.0)


def test_before_the_first_step_nothing_is_judged(xp):
    first = last_step(xp, bound=-np.inf, gain=0.0, kl=0.0, is_restricted=False)
    assert not bool(RULE.rejects(first, number(xp, -1e9), number(xp, 0.0)))
    found = RULE.next_radius(number(xp, 7.0), first, number(xp, -5.0), number(xp, 0.1))
    np.testing.assert_allclose(to_numpy(found), 7.0)


def test_a_rejected_step_shrinks_the_radius_to_a_quarter_of_its_length(xp):
    np.testing.assert_allclose(to_numpy(RULE.radius_after_return(last_step(xp))), 0.125)
    np.testing.assert_allclose(to_numpy(RULE.radius_after_return(last_step(xp, kl=1e-9))), RULE.return_radius)


def test_steps_that_repeat_each_other_are_a_geometric_series(xp):
    """Half of each step again: the means of the rest add up to one more step."""
    gap = GapPrediction()
    np.testing.assert_allclose(to_numpy(gap.still_to_come(number(xp, 0.3), number(xp, 0.5))), 0.3)
    assert float(gap.still_to_come(number(xp, 0.3), number(xp, -2.0))) == 0
    np.testing.assert_allclose(to_numpy(secant_share(number(xp, -1.0))), 0.5)  # straight back: half the way
    np.testing.assert_allclose(to_numpy(secant_share(number(xp, 0.7))), 1.0)


def test_the_usual_ball_holds_its_share_of_standard_normal_draws(rng):
    rule = Weighting()
    squares = np.sum(rng.standard_normal((100_000, 5)) ** 2, axis=1)
    # four standard errors of a share of 0.99 from 1e5 draws
    assert abs(np.mean(squares < rule.usual_square(5)) - rule.usual) < 4 * np.sqrt(0.99 * 0.01 / 1e5)
    np.testing.assert_allclose(rule.far(np.array([1.0, 2 * rule.usual_square(5)]), 5), [1, 16])


def test_a_line_on_the_grid_ends_within_a_step_of_the_bisection():
    family, rng = Gaussian(3), np.random.default_rng(4)
    for _ in range(20):
        root = rng.standard_normal((3, 3))
        gradient = Gradient(3 * rng.standard_normal(3), root + root.T, np.float64(1e-3), np.float64(0.1), 0.3)
        line, radius = NaturalLine(gradient, family, RULE), np.float64(0.5)
        exact = longest_by_bisection(line.at, lambda p: bool(line.is_allowed(p, radius)), 1.0, RULE.halvings)  # noqa: B023
        shares = 1 - np.arange(1000) / 1000
        found = line.first_allowed(shares, radius)
        assert 0 <= float(exact.share) - float(found.share) <= 1.01e-3


def test_tries_become_fewer_as_they_become_dearer():
    plans = [VarianceSearch().plan(n, 0).tries for n in (50, 200, 1000, 3000)]
    assert plans == sorted(plans, reverse=True)
    assert VarianceSearch().plan(1000, turn=1).tries == 0


def test_with_many_points_every_second_search_uses_the_corners():
    rule = VarianceSearch()
    assert [rule.plan(300, turn).restart for turn in range(4)] == [True] * 4
    assert [rule.plan(n, turn).restart for n in (1000, 5000) for turn in (0, 3, 6)] == [True, False, True] * 2


def test_a_batch_is_a_sixth_of_the_draws_that_count():
    rule = Effort()
    assert rule.batch(5, 0.0) == 10
    assert rule.batch(1, 0.0) == 8
    assert rule.batch(5, 600.0) == 100


def test_every_number_of_the_rule_book_can_be_changed_for_one_fit():
    """A tenth of the first radius: the same answer, by other steps."""
    prior, target = qbvi.Normal(0, 10, shape=2), lambda x: -0.5 * np.sum((x - 3) ** 2)
    usual = qbvi.fit(target, prior, method="regression", seed=1)
    rules = Rules(trust_region=dataclasses.replace(RULE, first_radius=0.01))
    short = qbvi.fit(target, prior, method=qbvi.Regression(rules=rules), seed=1)
    assert short.converged
    assert short.record.n_iterations > usual.record.n_iterations
    np.testing.assert_allclose(short.mean, usual.mean, atol=1e-3)


def test_the_rule_book_is_plain_data():
    """Frozen, hashable, without arrays: methods stay comparable, and a checkpoint can tell two of them apart."""
    rules = Rules()
    assert hash(rules) == hash(Rules())
    for part in dataclasses.fields(rules):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(getattr(rules, part.name), dataclasses.fields(getattr(rules, part.name))[0].name, 0)


@pytest.mark.parametrize("unit", sweep([1e-3, 1.0, 1e3, 1e-9], first=1))
@pytest.mark.parametrize("method", ["regression", "ridge"])
def test_a_regression_in_any_units_is_found_from_zero(method, unit):
    """A line with unknown noise, a flat prior: far from the start, the gradient exceeds the radius by many decades."""
    rng = np.random.default_rng(3)
    X = np.c_[np.ones(60), rng.standard_normal((60, 2)) * [3, 0.1]]
    y = X @ (unit * np.array([2.0, -1.0, 5.0])) + 0.1 * unit * rng.standard_normal(60)

    def log_joint(t):
        return -60 * t[:, 3] - 0.5 * np.sum((y - t[:, :3] @ X.T) ** 2, axis=1) * np.exp(-2 * t[:, 3])

    fit = qbvi.fit(log_joint, qbvi.Flat(shape=4), vectorized=True, method=method, seed=1)
    assert fit.converged, fit.stop_reason
    best, square, *_ = np.linalg.lstsq(X, y, rcond=None)
    sd = np.sqrt(square[0] / 60 * np.diag(np.linalg.inv(X.T @ X)))
    assert np.max(np.abs(fit.mean[:3] - best) / sd) < 0.1


def test_a_step_may_be_shorter_than_any_number_of_halvings():
    allowed = 1e-30
    found = longest_by_bisection(lambda share: share, lambda share: share <= allowed, 1.0, RULE.halvings)
    assert 0.9 * allowed < found <= allowed
    assert longest_by_bisection(lambda share: share, lambda share: False, 1.0, RULE.halvings) == 0.0
