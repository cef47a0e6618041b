"""Stopping rules on histories written by hand."""

import numpy as np
import pytest

from qbvi.ending import Stop, StopKind
from qbvi.stopping import Budget, GapBelow, History, MaxIterations, ParameterChange, Patience, Plateau, as_rule


def history(elbo, window=1, n_evals=None, mean=None, sd=None, seconds=None):
    past = History(window)
    for t, bound in enumerate(elbo):
        past.append(
            elbo=bound,
            n_evals=10 * (t + 1) if n_evals is None else n_evals[t],
            step=0.1,
            grad_norm=1.0,
            seconds=0.5 * t if seconds is None else seconds[t],
            mean=np.zeros(1) if mean is None else mean[t],
            sd=np.ones(1) if sd is None else sd[t],
        )
    return past


def test_the_smoothed_bound_averages_the_last_window_of_bounds():
    past = history([1.0, 2.0, 3.0, 6.0], window=3)
    np.testing.assert_allclose(past.elbo_smooth, [1.0, 1.5, 2.0, 11 / 3])


def test_the_best_step_is_that_of_the_smoothed_bound_and_a_nan_is_never_best():
    assert history([0.0, 9.0, 0.0, 5.0, 5.0, 5.0], window=3).best == 5
    assert history([0.0, np.nan, 1.0], window=1).best == 2


def test_patience_counts_from_the_best_step():
    assert Patience(3)(history([0.0, 5.0, 1.0, 1.0])) is None
    assert Patience(3)(history([0.0, 5.0, 1.0, 1.0, 1.0])).converged


def test_a_plateau_is_a_rise_within_the_noise(rng):
    """Two quarters of 600 steps with unit noise: their means differ by 0.12 or less two times in three."""
    noise, steps = rng.standard_normal(600), np.arange(600)
    assert Plateau(errors=3.0)(history(noise)).kind is StopKind.PLATEAU
    assert Plateau(errors=3.0)(history(noise + 0.01 * steps)) is None  # 1.5 nats more in the last quarter
    assert Plateau(errors=3.0)(history(noise - 0.01 * steps)).converged
    assert Plateau(errors=3.0)(history([np.nan] * 600)) is None


def test_a_plateau_is_looked_for_once_in_a_while():
    rule = Plateau(fewest=500, every=100)
    assert [rule.soonest(history([0.0] * n)) for n in (0, 499, 500, 501, 599)] == [500, 1, 100, 99, 1]
    assert [rule(history([0.0] * n)) is None for n in (499, 500, 501, 600)] == [True, False, True, False]


def test_parameter_change_looks_at_means_and_standard_deviations_in_their_own_units():
    rule, still = ParameterChange(tol=0.1, steps=2), [np.zeros(1)] * 4
    assert rule(history([0.0] * 4, mean=still)).converged
    assert rule(history([0.0] * 4, mean=[np.array([x]) for x in (0.0, 0.0, 0.0, 0.2)])) is None
    assert rule(history([0.0] * 4, sd=[np.array([x]) for x in (1.0, 1.0, 1.0, 1.2)])) is None
    wide = [np.array([100.0])] * 4
    assert rule(history([0.0] * 4, mean=[np.array([x]) for x in (0.0, 0.0, 0.0, 0.2)], sd=wide)).converged


def test_the_budget_leaves_room_for_the_next_step_and_the_reserve():
    past = history([0.0, 0.0], n_evals=[40, 80])
    assert Budget(max_evals=120)(past) is None
    stop = Budget(max_evals=119)(past)
    assert not stop.converged
    assert "119 evaluations" in stop.reason
    assert Budget(max_evals=150, reserve=31)(past) is not None
    assert "the default budget (max_evals) of 119 evaluations" in Budget(max_evals=119, is_default=True)(past).reason


def test_seconds_run_out():
    past = history([0.0, 0.0], seconds=[1.0, 2.5])
    assert Budget(max_time=2.6)(past) is None
    assert "2.5 seconds" in Budget(max_time=2.5)(past).reason


@pytest.mark.parametrize("rule", [MaxIterations(3), Patience(3), ParameterChange(), Budget(max_evals=10), GapBelow()])
def test_no_rule_speaks_before_the_first_step(rule):
    assert rule(History()) is None


@pytest.mark.parametrize(
    ("predicted", "stops"),
    [
        ([0.009], False),  # the first one below may be luck
        ([0.009, 0.009], True),
        ([0.009, 0.02, 0.009], True),
        ([0.009, 0.009, 0.02], False),  # the last one must be below too
        ([np.inf, 0.002], True),  # well below, once
        ([0.009, 0.02, 0.02, 0.009], False),
        ([np.nan, np.nan], False),  # a method that predicts nothing
    ],
)
def test_the_predicted_gap_must_be_below_in_two_of_three_steps(predicted, stops):
    past = history([0.0] * len(predicted))
    past.gap.extend(predicted)
    assert (GapBelow(0.01)(past) is not None) == stops


def test_the_last_iteration_is_counted():
    assert MaxIterations(3)(history([0.0, 0.0])) is None
    assert not MaxIterations(3)(history([0.0, 0.0, 0.0])).converged


def test_what_a_rule_of_the_users_returns_is_checked():
    with pytest.raises(TypeError, match=r"Stop\.own"):
        as_rule(lambda past: len(past) > 0)(history([0.0]))
    stop = as_rule(lambda past: Stop.own(True, "enough"))(history([0.0]))
    assert stop.converged
    assert stop.kind is StopKind.OWN_RULE


@pytest.mark.parametrize("kind", list(StopKind), ids=lambda kind: kind.value)
def test_every_kind_has_a_key_and_a_sentence(kind):
    assert StopKind.named(kind.value) is kind
    assert kind.sentence
