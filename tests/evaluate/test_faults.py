"""Faults injected into a function whose posterior is known: the answer stays right, and nothing is lost without being told."""

import time
from functools import partial

import numpy as np
import pytest

import qbvi
from faults import FailsOnce, Faulty, LateFault, Target
from oracles import gaussian_kl
from qbvi.evaluate import BlackBox, EvaluationError
from qbvi.regression.rules import Effort, Rules

PRIOR = qbvi.Normal(1, 2, shape=3)
EXACT = Target()
# The shape of the posterior does not matter here. All fresh draws are evaluated, so that some fail.
quick_fit = partial(qbvi.fit, family="full", method=qbvi.Regression(rules=Rules(effort=Effort(first=1))))


def gap(fit):
    """KL(q || exact posterior), the gap in nats."""
    return gaussian_kl(*fit.unconstrained, EXACT.mean, EXACT.cov)


def assert_nothing_lost(fit, function, kind):
    """Every failure is a point that had to fail, of the right kind, and all that were asked are counted."""
    assert fit.n_failed == len(fit.failures) > 0
    assert {failure.kind for failure in fit.failures} == {kind}
    assert all(function.is_bad(failure.parameters) for failure in fit.failures)
    assert fit.n_evals >= fit.trace.n_evals[-1]


@pytest.mark.parametrize("executor", [None, 2])
@pytest.mark.parametrize("percent", [1, 10, 50])
def test_nan_at_random_points(percent, executor, tmp_path):
    log = tmp_path / "calls"
    function = Faulty("nan", percent, str(log))
    many = qbvi.Regression(n_fresh=600)  # enough for some of them to fail
    fit = quick_fit(function, PRIOR, method=many, on_failure="exclude", executor=executor, seed=2)
    assert gap(fit) < 0.02
    assert len(log.read_text().split()) == fit.n_evals  # each point once, each call counted
    assert_nothing_lost(fit, function, "nan")
    assert f"{fit.n_failed} failed ({fit.n_failed / fit.n_evals:.1%})" in repr(fit)
    assert fit.converged  # the failed points are scattered, so no place is missing


def test_failures_beyond_an_edge_forbid_a_convergence():
    # One standard deviation out: a sixth of the draws fail, all on one side.
    edge = EXACT.mean[0] - np.sqrt(EXACT.cov[0, 0])
    fit = qbvi.fit(lambda theta: EXACT(theta) if theta[0] > edge else np.nan, PRIOR, on_failure="exclude", seed=1)
    assert not fit.converged
    assert "fails at" in fit.stop_reason


@pytest.mark.parametrize("policy", ["exclude", "floor"])
def test_crashes_at_random_cost_no_evaluations(policy):
    whole = quick_fit(EXACT, PRIOR, seed=3)
    fit = quick_fit(Faulty("nan", 4), PRIOR, on_failure=policy, seed=3)
    assert fit.converged
    assert gap(fit) < 0.02
    assert fit.n_evals < 1.3 * whole.n_evals  # a failed point may cost another batch


class Flaky:
    """Fails at every eleventh call, wherever it is."""

    def __init__(self, failing=lambda number: number % 11 == 0):
        self.failing, self.calls = failing, 0

    def __call__(self, theta):
        self.calls += 1
        if self.failing(self.calls):
            msg = "node lost"
            raise ConnectionError(msg)
        return EXACT(theta)


@pytest.mark.parametrize("policy", ["retry", {ConnectionError: "retry"}, {"exception": qbvi.Retry(5)}], ids=str)
def test_a_call_that_is_made_again_leaves_no_trace(policy):
    flaky, whole = Flaky(), quick_fit(EXACT, PRIOR, seed=1)
    fit = quick_fit(flaky, PRIOR, on_failure=policy, seed=1)
    assert fit.elbo == whole.elbo
    assert fit.n_evals == whole.n_evals < flaky.calls
    assert fit.n_failed == 0


@pytest.mark.parametrize(("tries", "expected"), [(1, 1), (2, 2), (4, 4)])
def test_a_point_gets_as_many_calls_as_the_policy_says(tries, expected):
    flaky = Flaky(lambda number: True)
    result = BlackBox(flaky, on_failure=qbvi.Retry(tries))(np.zeros((3, 3)))
    assert flaky.calls == 3 * expected
    assert not result.ok.any()


def test_only_failed_calls_are_made_again_in_blocks_and_by_workers():
    for vectorized in (False, 2, True):
        seen = []

        def once(x, seen=seen):
            new = [row for row in np.atleast_2d(x).tolist() if row not in seen]
            seen.extend(new)
            values = [np.nan if row in new and row[0] == 2 else -row[0] for row in np.atleast_2d(x).tolist()]
            return np.array(values) if np.ndim(x) == 2 else values[0]

        box = BlackBox(once, vectorized, on_failure="retry")
        assert box(np.array([[1.0], [2.0], [3.0]])).values.tolist() == [-1, -2, -3]
        assert box.failures == []
        assert box.n_evals == 3


def test_after_all_tries_the_policy_says_what_to_do():
    flaky = Flaky(lambda number: True)
    with pytest.raises(qbvi.EvaluationError, match="node lost"):
        BlackBox(flaky, on_failure=qbvi.Retry(2, then="raise"))(np.zeros((1, 3)))
    with pytest.raises(ValueError, match="did you mean 'exclude'"):
        qbvi.Retry(then="exlude")
    with pytest.raises(ValueError, match="`tries` must be at least 1"):
        qbvi.Retry(0)


def test_minus_infinity_is_a_value_that_is_not_asked_for_again():
    calls = []
    box = BlackBox(lambda x: calls.append(1) or (-np.inf if x[0] else 0.0), on_failure="retry")
    assert box(np.array([[0.0], [1.0]])).ok.tolist() == [True, False]
    assert len(calls) == 2


def test_processes_make_failed_calls_again(tmp_path):
    fit = quick_fit(FailsOnce(str(tmp_path)), PRIOR, on_failure="retry", executor=2, seed=1)
    assert fit.elbo == quick_fit(EXACT, PRIOR, seed=1).elbo
    assert fit.n_failed == 0


@pytest.mark.parametrize("on_failure", ["exclude", "floor"])
def test_a_half_space_without_likelihood(on_failure):
    # Three standard deviations out: the posterior without the half space is the one with it to 0.002 nats.
    edge = EXACT.mean[0] - 3 * np.sqrt(EXACT.cov[0, 0])
    failed = []

    def half(theta):
        if theta[0] < edge:
            failed.append(theta[0])
            return -np.inf
        return EXACT(theta)

    fit = qbvi.fit(half, PRIOR, on_failure=on_failure, seed=1)
    assert gap(fit) < 0.05
    assert {failure.kind for failure in fit.failures} <= {"-inf"}
    assert fit.n_failed == len(failed)


@pytest.mark.parametrize("executor", [None, 2])
def test_listed_exceptions_are_left_out_and_others_raise(executor):
    function = Faulty("raise", 10)
    fit = quick_fit(function, PRIOR, on_failure={ValueError: "exclude"}, executor=executor, seed=1)
    assert gap(fit) < 0.02
    assert_nothing_lost(fit, function, "exception")
    assert all("raise_value_error" in failure.traceback for failure in fit.failures)
    assert all(bool(failure.worker) == (executor is not None) for failure in fit.failures)
    with pytest.raises(EvaluationError, match="ValueError: no root") as caught:
        quick_fit(function, PRIOR, on_failure={KeyError: "exclude", "nan": "exclude"}, executor=executor, seed=1)
    assert function.is_bad(caught.value.failure.parameters)
    assert "raise_value_error" in caught.value.__notes__[0]


@pytest.mark.parametrize(("what", "kind", "options"), [("abort", "died", {}), ("hang", "timeout", {"timeout": 0.3})])
def test_points_that_kill_or_stop_their_process(what, kind, options):
    function = Faulty(what, 4)
    fit = quick_fit(function, PRIOR, on_failure={kind: "exclude"}, executor=2, seed=1, **options)
    assert gap(fit) < 0.02
    assert_nothing_lost(fit, function, kind)
    same = quick_fit(Faulty("nan", 4), PRIOR, on_failure="exclude", seed=1)
    np.testing.assert_array_equal(fit.q, same.q)  # how a point fails makes no difference to the rest
    assert fit.n_evals == same.n_evals


@pytest.mark.parametrize("what", ["abort", "hang"])
def test_raise_comes_with_the_point_and_the_fit_so_far(what):
    late = LateFault(what)
    with pytest.raises(EvaluationError, match=r"died|timeout") as caught:
        quick_fit(late, PRIOR, executor=2, timeout=0.5, seed=1)
    assert late.is_bad(caught.value.failure.parameters)
    assert len(caught.value.fit.trace) >= 1
    assert np.isfinite(caught.value.fit.mean).all()


def test_a_slow_tail_changes_nothing_but_the_time():
    def slow(theta):
        if Faulty("nan", 10).is_bad(theta):
            time.sleep(0.05)
        return EXACT(theta)

    fit = quick_fit(slow, PRIOR, executor=2, seed=1)
    np.testing.assert_array_equal(fit.q, quick_fit(EXACT, PRIOR, seed=1).q)
    assert fit.n_failed == 0


@pytest.mark.parametrize("executor", [None, 2])
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (np.zeros(7), r"one number for each point, got an array of shape \(7,\)"),
        ("a", "must return real numbers, got str"),
        (None, "must return real numbers, got NoneType"),
    ],
)
def test_a_wrong_shape_is_an_error_whatever_the_policy(returned, message, executor):
    with pytest.raises(ValueError, match=message):
        quick_fit(lambda theta: returned, PRIOR, on_failure="exclude", executor=executor, seed=1)


@pytest.mark.parametrize("error", [TypeError, NameError, AttributeError])
@pytest.mark.parametrize("on_failure", ["exclude", {"exception": "floor"}, lambda failure: 0.0])
def test_a_bug_in_a_worker_is_raised_as_what_it_is(error, on_failure):
    def broken(theta):
        raise error("typo")

    with pytest.raises(error, match="typo") as caught:
        quick_fit(broken, PRIOR, on_failure=on_failure, executor=2, seed=1)
    assert "in broken" in caught.value.__notes__[0]


@pytest.mark.parametrize("executor", [None, 2])
def test_single_precision_is_taken_as_it_comes(executor):
    fit = quick_fit(lambda theta: np.float32(EXACT(theta)), PRIOR, executor=executor, seed=1)
    assert gap(fit) < 0.02


@pytest.mark.parametrize("executor", [None, 2])
def test_a_function_that_overwrites_its_input_changes_nothing(executor):
    def overwrites(theta):
        value = EXACT(theta)
        theta[:] = np.nan
        return value

    fit = quick_fit(overwrites, PRIOR, executor=executor, seed=1)
    np.testing.assert_array_equal(fit.q, quick_fit(EXACT, PRIOR, seed=1).q)


@pytest.mark.parametrize("vectorized", [False, True])
def test_a_failure_has_the_point_as_it_was_given(vectorized):
    def overwrites_and_raises(theta):
        theta *= 0
        msg = "no root"
        raise ValueError(msg)

    box = BlackBox(overwrites_and_raises, vectorized, on_failure="exclude")
    box(POINTS)
    np.testing.assert_array_equal([failure.parameters for failure in box.failures], POINTS)


@pytest.mark.parametrize("executor", [None, 2])
def test_a_function_that_is_never_the_same_is_noticed_and_averaged(executor):
    def noisy(theta):
        return EXACT(theta) + 0.1 * np.random.default_rng().standard_normal()

    fit = qbvi.fit(noisy, PRIOR, executor=executor, max_evals=2000, seed=1)
    assert any("nois" in note for note in fit.notes)
    assert gap(fit) < 0.05  # about 0.01 nats remain from noise of 0.1 nats at this budget
    assert fit.n_evals <= 2000


# ---------------------------------------------------------------- the policy itself

POINTS = np.array([[1.0], [2.0], [3.0], [4.0]])


def mixed(x):
    if x[0] == 2:
        msg = "singular"
        raise np.linalg.LinAlgError(msg)
    return {3.0: np.nan, 4.0: -np.inf}.get(x[0], -x[0])


def test_each_kind_has_its_own_treatment():
    box = BlackBox(mixed, on_failure={np.linalg.LinAlgError: lambda f: -20.0, "nan": "exclude", "-inf": "floor"})
    result = box(POINTS, scale=2.0)
    # The replacement stands for a value of the function, so it is scaled as one; the mean of -2 and -40 is -21, and their range is 38.
    np.testing.assert_array_equal(result.values, [-2.0, -40.0, -21.0, -78.0])
    np.testing.assert_array_equal(result.ok, [True, True, False, False])
    assert [failure.kind for failure in box.failures] == ["exception", "nan", "-inf"]


@pytest.mark.parametrize(
    "on_failure",
    [
        {ValueError: "exclude", "nan": "exclude", "-inf": "exclude"},  # LinAlgError is a ValueError
        {Exception: "raise", np.linalg.LinAlgError: "exclude", "nan": "exclude", "-inf": "exclude"},  # closest first
        {"exception": "exclude", "nan": "exclude", "-inf": "exclude"},
    ],
)
def test_exception_types_are_matched_by_their_closest_base(on_failure):
    np.testing.assert_array_equal(BlackBox(mixed, on_failure=on_failure)(POINTS).ok, [True, False, False, False])


def test_what_is_not_listed_raises():
    with pytest.raises(EvaluationError, match="nan"):
        BlackBox(mixed, on_failure={ValueError: "exclude", "-inf": "exclude"})(POINTS)


@pytest.mark.parametrize("returned", [None, "x", np.zeros(2)])
def test_a_policy_that_returns_no_number_is_blamed_itself(returned):
    with pytest.raises(TypeError, match="`on_failure` must return") as caught:
        BlackBox(mixed, on_failure=lambda failure: returned)(POINTS)
    assert "log_likelihood" not in str(caught.value)


def test_a_policy_may_leave_the_point_out():
    result = BlackBox(mixed, on_failure=lambda failure: -np.inf)(POINTS)
    np.testing.assert_array_equal(result.ok, [True, False, False, False])


@pytest.mark.parametrize(
    ("on_failure", "kind", "message"),
    [
        (3, TypeError, "`on_failure` must be 'raise', 'exclude', 'floor', 'retry', a qbvi.Retry, a function"),
        ({"nann": "exclude"}, ValueError, "did you mean 'nan'"),
        ({"nan": "exlude"}, ValueError, "did you mean 'exclude'"),
        ({"nan": None}, TypeError, "`on_failure` must be"),
        ({3: "exclude"}, TypeError, "exception types as keys, got 3"),
        ({KeyboardInterrupt: "exclude"}, TypeError, "exception types as keys"),
    ],
)
def test_what_is_no_policy_is_refused(on_failure, kind, message):
    with pytest.raises(kind, match=message):
        quick_fit(EXACT, PRIOR, on_failure=on_failure)
