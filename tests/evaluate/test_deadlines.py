"""No call begins after the deadline, a call that hangs is ended or abandoned, and what was evaluated is kept."""

import multiprocessing
import multiprocessing.pool
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

import qbvi
from clocks import standing_still
from faults import Target, wait_until_gone
from qbvi.arrange import arrange
from qbvi.evaluate import BlackBox, Evaluated
from qbvi.evaluate.calls import Calls
from qbvi.evaluate.deadlines import arriving, within
from qbvi.evaluate.executors import open_runner
from qbvi.evaluate.pool import Processes
from qbvi.evaluate.tasks import Task
from qbvi.evaluations import Recorded
from qbvi.run import Run
from qbvi.stopping import Budget
from qbvi.verdict import Verdict

PRIOR = qbvi.Normal(1, 2, shape=3)
ENDLESS = qbvi.QBVI(n_samples=10, stop=(), n_fresh=100)  # only a budget ends it
SOON = 0.3  # seconds until a deadline that calls must wait for in earnest


def soon(seconds=SOON):
    return time.monotonic() + seconds


@pytest.fixture
def clock():
    with standing_still() as clock:
        yield clock


@contextmanager
def every_call_costing(seconds):
    """Calls of any target move the clock; gives the points. The target itself is the same, as a checkpoint checks it."""
    plain = Target.__call__

    def call(self, theta):
        clock = time.monotonic.__self__
        clock.now += seconds
        clock.points.append(theta.tobytes())
        return plain(self, theta)

    Target.__call__ = call
    try:
        yield time.monotonic.__self__.points
    finally:
        Target.__call__ = plain


def plain_run():
    model, family = arrange(PRIOR, "full")
    return Run(model, family, BlackBox(Target()), None, qbvi.Regression(), Budget(), seed=1, verdict=Verdict())


# ---------------------------------------------------------------- in this process


def test_points_after_the_deadline_are_not_evaluated_and_are_no_failures():
    points = np.arange(10.0).reshape(5, 2)

    def function(x):
        if x[0] == 4.0:
            box.deadline = time.monotonic()
        return x[0]

    box = BlackBox(function)
    result = box(points)
    np.testing.assert_array_equal(result.rows, [0, 1, 2])
    np.testing.assert_array_equal(result.values, [0.0, 2.0, 4.0])
    assert (box.n_evals, box.failures) == (3, [])
    assert box(points).rows.size == 0


def test_a_failed_call_that_there_is_no_time_to_repeat_is_no_failure():
    def function(x):
        if x[0] == 4.0:
            box.deadline = time.monotonic()
        return np.nan if x[0] == 2.0 else x[0]

    box = BlackBox(function, on_failure="retry")
    returned = []
    box.on_returned = lambda *columns: returned.append([column.tolist() for column in columns[:2]])
    result = box(np.arange(10.0).reshape(5, 2))
    np.testing.assert_array_equal(result.rows, [0, 2])
    assert (box.n_evals, box.failures) == (2, [])
    assert returned == [[[0, 2], [0.0, 4.0]]]


@pytest.mark.parametrize("vectorized", [False, 4])
@pytest.mark.parametrize("max_time", [3.0, 20.0])
def test_max_time_holds_over_steps_and_fresh_draws_but_for_one_call(clock, max_time, vectorized):
    function = clock.costing(np.vectorize(Target(), signature="(d)->()") if vectorized else Target(), 0.2)
    began = clock.now
    fit = qbvi.fit(function, PRIOR, method=ENDLESS, vectorized=vectorized, max_time=max_time, seed=1)
    assert clock.now - began <= max_time + 0.2
    assert fit.stop_kind.value == "seconds"
    assert np.isfinite(fit.elbo)


def test_time_is_kept_for_the_fresh_draws(clock):
    fit = qbvi.fit(clock.costing(Target(), 0.01), PRIOR, method=ENDLESS, max_evals=10_000, max_time=10.0, seed=1)
    assert not any("`max_time` ended" in note for note in fit.notes)
    assert fit.record.khat_draws >= 100


def test_a_step_that_time_cuts_is_left_out_and_the_fresh_draws_that_it_cuts_are_few(clock):
    function = clock.costing(Target(), lambda number: 0.01 if number <= 65 else 1.0)
    fit = qbvi.fit(function, PRIOR, method=ENDLESS, max_time=4.0, seed=1)
    assert fit.trace.n_evals[-1] == 60
    assert fit.n_evals == 69
    assert len(fit.evaluations) == 69
    assert fit.stop_kind.value == "seconds"


def test_no_time_for_the_first_step_is_an_error_that_counts(clock):
    with pytest.raises(
        qbvi.EvaluationError, match=r"`max_time` must allow for the first step, got 0.5 s .* in which 3 of its"
    ):
        qbvi.fit(clock.costing(Target(), 0.2), PRIOR, max_time=0.5, seed=1)


def test_no_time_to_compare_earlier_evaluations_is_the_same_error(clock):
    earlier = qbvi.fit(Target(), PRIOR, method="regression", seed=1).evaluations
    with pytest.raises(
        qbvi.EvaluationError, match=r"`max_time` must allow for the first step, .* in which 1 of its 2 points"
    ):
        qbvi.fit(clock.costing(Target(), 0.2), PRIOR, method="regression", evaluations=earlier, max_time=0.1, seed=2)


def test_values_that_were_given_are_used_with_those_that_there_was_time_for(clock):
    run, theta = plain_run(), np.arange(15.0).reshape(5, 3)
    given = Recorded.empty(3)._replace(theta=theta[[1, 4]], value=np.array([10.0, 40.0]), is_exact=True)
    run._evaluations.give(given)
    conversation = run._values(theta, run._engine.rows, "step")
    request = next(conversation)
    np.testing.assert_array_equal(request.points, theta[[0, 2, 3]])
    answer = Evaluated(
        np.array([0.0, 30.0]), np.array([True, False]), np.zeros(2), np.array([False, True]), np.array([0, 2])
    )
    with pytest.raises(StopIteration) as end:
        conversation.send(answer)
    points, values = end.value.value
    np.testing.assert_array_equal(points, theta[[0, 1, 3, 4]])
    np.testing.assert_array_equal(values.log_joint - run.model.log_prior(points), [0.0, 10.0, 30.0, 40.0])
    np.testing.assert_array_equal(values.ok, [True, True, False, True])
    np.testing.assert_array_equal(values.zero, [False, False, True, False])


def test_a_start_without_time_leaves_the_fits_of_the_others(clock):
    function = clock.costing(Target(), lambda number: 0.001 if number < 200 else 100.0)
    fit = qbvi.fit(function, PRIOR, n_starts=3, max_time=6.0, tol=1e-9, seed=1)
    assert any(note.startswith(("1 starts", "2 starts")) for note in fit.notes)


def test_a_run_that_time_cut_in_a_step_goes_on_to_the_same_bits_and_repeats_nothing(clock, tmp_path):
    options = {"method": qbvi.QBVI(n_samples=10, stop=qbvi.MaxIterations(9), n_fresh=20), "seed": 1}
    whole = qbvi.fit(Target(), PRIOR, **options)
    target, seen, made = Target(), [], []
    with every_call_costing(0.2) as calls:
        for max_time in (5.1, 5.1, 9.1, 1000.0):
            calls.clear()
            fit = qbvi.fit(target, PRIOR, max_time=max_time, checkpoint=tmp_path / "run", **options)
            made.append(len(calls))
            seen += calls
    np.testing.assert_array_equal(fit.q, whole.q)
    assert fit.elbo == whole.elbo
    assert len(set(seen)) == len(seen) == fit.n_evals
    assert made[:3] == [26, 0, 20]
    np.testing.assert_array_equal(fit.evaluations.points, whole.evaluations.points)
    np.testing.assert_array_equal(fit.evaluations.batch, whole.evaluations.batch)


def test_a_finished_run_whose_fresh_draws_time_cut_returns_the_same_again(clock, tmp_path):
    options = {"method": qbvi.QBVI(n_samples=10, stop=qbvi.MaxIterations(3), n_fresh=50), "max_time": 7.9, "seed": 1}
    target = Target()
    with every_call_costing(0.2) as calls:
        first = qbvi.fit(target, PRIOR, checkpoint=tmp_path / "run", **options)
        assert len(calls) == 40
        again = qbvi.fit(target, PRIOR, checkpoint=tmp_path / "run", **options)
    assert len(calls) == 40
    assert first.record.khat_draws == 10
    assert any("`max_time` ended the fresh draws from the result: 10 of 50" in note for note in first.notes)
    assert (again.elbo, again.n_evals) == (first.elbo, first.n_evals)


# ---------------------------------------------------------------- in processes of our own


def test_a_hung_call_is_ended_at_the_deadline_and_its_worker_replaced():
    def function(x):
        if x[0] < 0:
            time.sleep(1000)
        return x[0]

    good, bad = np.array([[1.0]]), np.array([[-1.0]])
    with Processes(Calls(function), workers=1) as pool:
        assert [j for j, _ in pool.run([good, bad, good], (), soon())] == [0]
        ((_, (outcome,)),) = pool.run([good], ())
    assert outcome.value == 1.0


class SlowToLoad:
    def __call__(self, x):
        return 0.0

    def __reduce__(self):
        return _slowly, ()


def _slowly():
    time.sleep(1000)


def test_a_function_that_does_not_load_in_time():
    with pytest.raises(qbvi.EvaluationError, match="no worker process is ready"):
        qbvi.fit(SlowToLoad(), PRIOR, executor=1, max_time=SOON)


def leaving_a_child(log, dies):
    def function(x):
        child = subprocess.Popen(["sleep", "1000"])
        with open(log, "a") as file:
            file.write(f"{child.pid}\n")
        if dies:
            os._exit(3)
        return x[0]

    return function


def test_the_children_of_a_worker_that_dies_by_itself_end_with_it(tmp_path):
    log = tmp_path / "children"
    with Processes(Calls(leaving_a_child(log, dies=True)), workers=1) as pool:
        (worker,) = pool._workers
        worker.give([Task(0, np.ones((1, 1)))], ())
        worker.process.join()  # until its death is known, after which nothing is left to kill but the child
        ((_, (outcome,)),) = pool.run([np.ones((1, 1))], ())
        assert outcome.failure.kind == "died"
        assert wait_until_gone([int(line) for line in log.read_text().split()]) == []


def test_the_children_of_calls_end_with_the_pool(tmp_path):
    log = tmp_path / "children"
    with Processes(Calls(leaving_a_child(log, dies=False)), workers=1) as pool:
        list(pool.run([np.ones((1, 1))] * 2, ()))
    assert wait_until_gone([int(line) for line in log.read_text().split()]) == []


@pytest.mark.skipif("forkserver" not in multiprocessing.get_all_start_methods(), reason="this system has no forkserver")
def test_a_killed_forkserver_costs_nothing_but_time():
    from multiprocessing import forkserver

    def function(x):
        return x[0]

    with Processes(Calls(function), workers=1) as pool:
        before = [worker.process.pid for worker in pool._workers]
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
        values = [outcomes[0].value for _, outcomes in pool.run([np.ones((1, 1))] * 3, ())]
        assert values == [1.0] * 3
        assert wait_until_gone([pid for pid in before if pid not in [w.process.pid for w in pool._workers]]) == []


# ---------------------------------------------------------------- in executors of the user's


class Hanging:
    """Returns the first coordinate; where it is negative, only once it is released."""

    def __init__(self):
        self.release = threading.Event()

    def __call__(self, x):
        if x[0] < 0:
            self.release.wait(1000)
        return x[0]


@pytest.mark.parametrize("make", [ThreadPoolExecutor, multiprocessing.pool.ThreadPool])
def test_calls_in_threads_are_taken_back_or_abandoned(make):
    function = Hanging()
    with make(1) as threads, open_runner(Calls(function), threads) as runner:
        good, bad = np.array([[1.0]]), np.array([[-1.0]])
        with pytest.raises(qbvi.EvaluationError, match=r"did not end within another 1 s\. .*`error.fit`"):
            list(runner.run([good, bad, good, good, good], (), soon()))
        function.release.set()
        assert len(list(runner.run([good], ()))) == 1


def test_calls_that_are_only_slow_end_without_an_error():
    with ThreadPoolExecutor(2) as threads, open_runner(Calls(lambda x: time.sleep(0.2) or x[0]), threads) as runner:
        made = list(runner.run([np.ones((1, 1))] * 20, (), soon()))
    assert 2 <= len(made) < 20


class ForeignFuture:
    """A future that is not one of concurrent.futures."""

    def __init__(self, future):
        self.result, self.done, self.cancel = future.result, future.done, future.cancel


def test_futures_of_another_class_are_abandoned_too():
    function = Hanging()
    with ThreadPoolExecutor(1) as threads:

        class Foreign:
            def submit(self, *arguments):
                return ForeignFuture(threads.submit(*arguments))

        with open_runner(Calls(function), Foreign()) as runner:
            with pytest.raises(qbvi.EvaluationError, match="in the Foreign did not end"):
                list(runner.run([np.array([[1.0]]), np.array([[-1.0]])], (), soon()))
            function.release.set()


def test_the_builtin_map_begins_no_call_after_the_deadline(clock):
    function = clock.costing(Target(), 1.0)
    with open_runner(Calls(function), map) as runner:
        assert len(list(runner.run([np.ones((1, 3))] * 64, (), clock.now + 3.0))) < 64


def test_a_fit_that_abandons_a_call_hands_over_what_it_has():
    target, release = Target(), threading.Event()

    def function(theta):
        if release.is_set():
            time.sleep(0.5)
            later.wait(1000)
        return target(theta)

    later = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(qbvi.EvaluationError, match="abandoned") as caught:
            qbvi.fit(
                function, PRIOR, executor=threads, max_time=1.0, tol=1e-9, seed=1, callback=lambda now: release.set()
            )
        later.set()
    assert caught.value.fit.record.n_iterations == 1
    assert caught.value.fit.stop_kind.value == "error"


def dying(x):
    os._exit(3)


def test_a_worker_of_a_multiprocessing_pool_that_dies_is_an_error_and_no_hang():
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    with (
        multiprocessing.get_context(method).Pool(1) as pool,
        open_runner(Calls(dying), pool) as runner,
        pytest.raises(qbvi.EvaluationError, match="Pool died"),
    ):
        list(runner.run([np.ones((1, 1))], ()))


# ---------------------------------------------------------------- waiting


def test_waiting_ends_when_time_does_and_errors_come_through():
    never = threading.Event()
    with pytest.raises(TimeoutError):
        within(0.01, lambda: never.wait(1000))
    with pytest.raises(ZeroDivisionError):
        within(10.0, lambda: 1 / 0)
    with pytest.raises(TimeoutError):
        list(arriving(lambda: map(never.wait, [1000]), lambda: 0.01))
    with pytest.raises(ZeroDivisionError):
        list(arriving(lambda: (1 / x for x in [0]), lambda: 10.0))
    never.set()


def test_no_point_at_all_in_time_with_a_bijection_of_the_user(clock):
    """A function of one point cannot be mapped over none."""
    support = qbvi.Bijection(
        lambda u: np.array([u[0], u[0] + np.exp(u[1])]), lambda x: np.array([x[0], np.log(x[1] - x[0])])
    )
    prior = qbvi.LogPrior(lambda x: -0.5 * np.sum(x**2), shape=2, support=support)
    function = clock.costing(lambda x: -0.5 * np.sum((x - 1) ** 2), lambda number: 0.01 if number < 30 else 1000.0)
    fit = qbvi.fit(function, prior, method=ENDLESS, max_time=500.0, init=np.array([0.0, 1.0]), seed=1)
    assert fit.n_evals == 30
