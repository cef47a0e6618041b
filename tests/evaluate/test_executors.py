"""Whoever makes the calls, the fit is the same to the last bit; and what is not ours is left as it was."""

import multiprocessing
import os
import pickle
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import qbvi
from faults import Faulty, Target
from qbvi.evaluate import BlackBox
from qbvi.evaluate.calls import Calls
from qbvi.evaluate.executors import open_runner
from qbvi.regression.rules import Effort, Rules

PRIOR = qbvi.Normal(1, 2, shape=3)
SPAWN = multiprocessing.get_context("spawn")
quick_fit = partial(qbvi.fit, family="full")  # the shape of the posterior does not matter here
ALL_FRESH = qbvi.Regression(rules=Rules(effort=Effort(first=1)))  # all fresh draws are evaluated, so that some fail


@pytest.fixture(scope="module")
def serial():
    return quick_fit(Target(), PRIOR, seed=1)


def assert_same(fit, serial):
    np.testing.assert_array_equal(fit.q, serial.q)
    np.testing.assert_array_equal((fit.elbo, fit.khat, fit.n_evals), (serial.elbo, serial.khat, serial.n_evals))
    np.testing.assert_array_equal(fit.trace.elbo, serial.trace.elbo)


@pytest.mark.parametrize("options", [{"executor": 1}, {"executor": 2}, {"executor": 8}, {"timeout": 60.0}])
def test_processes_of_ours(options, serial):
    assert_same(quick_fit(Target(), PRIOR, seed=1, **options), serial)


def test_the_default_method_is_the_same_too():
    assert_same(qbvi.fit(Target(), PRIOR, seed=1, executor=2), qbvi.fit(Target(), PRIOR, seed=1))


class Submits:
    """An executor of somebody's own: `submit` and futures that only have `result` and `cancel`, as of an MPI pool or a job queue."""

    class Ticket:
        def __init__(self, function, argument):
            self.function, self.argument = function, argument

        def result(self):
            return self.function(self.argument)

        def cancel(self):
            return False

    def submit(self, function, argument):
        return self.Ticket(function, pickle.loads(pickle.dumps(argument)))


class Maps:
    map = staticmethod(map)


EXECUTORS = {
    "threads": lambda: ThreadPoolExecutor(3),
    "forked processes": lambda: ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")),
    "spawned processes": lambda: ProcessPoolExecutor(2, mp_context=SPAWN),
    "multiprocessing.Pool": lambda: SPAWN.Pool(2),
}


@pytest.mark.parametrize("kind", EXECUTORS)
@pytest.mark.filterwarnings("ignore:.*fork.*")  # of a process with threads: Python and JAX warn
def test_executors_of_the_standard_library_are_used_and_left_open(kind, serial):
    with EXECUTORS[kind]() as executor:
        assert_same(quick_fit(Target(), PRIOR, seed=1, executor=executor), serial)
        assert_same(quick_fit(Target(), PRIOR, seed=1, executor=executor), serial)  # it still works


@pytest.mark.parametrize("executor", [map, Maps(), Submits()], ids=["a map", "has map", "has submit"])
def test_anything_that_maps_or_submits(executor, serial):
    assert_same(quick_fit(Target(), PRIOR, seed=1, executor=executor), serial)


def test_the_function_travels_once_to_each_worker_and_points_after_that():
    sizes = []

    class Weighs(ProcessPoolExecutor):
        def submit(self, function, argument):
            sizes.append(len(pickle.dumps(argument)))
            return super().submit(function, argument)

    rng = np.random.default_rng(1)
    ballast = rng.standard_normal(100_000)  # 800 kB

    def function(theta):
        return Target()(theta) + 0 * ballast[0]

    with Weighs(2, mp_context=SPAWN) as executor, open_runner(Calls(function), executor) as runner:
        box = BlackBox(function, runner=runner)
        for _ in range(10):
            box(rng.standard_normal((20, 3)))
    # The executor decides who gets a message. So a worker may be given the function twice while the other waits for it.
    assert 1 <= sum(size > 800_000 for size in sizes) < len(sizes) / 3
    assert len(sizes) > 20


@pytest.mark.parametrize("batch_size", [None, 5])
def test_data_travel_with_the_function_and_batches_as_row_numbers(batch_size):
    target = Target()
    data = (target.x, target.y)
    method = "auto" if batch_size is None else qbvi.QBVI(n_samples=20, stop=(qbvi.MaxIterations(15),), n_fresh=20)

    def function(theta, batch):
        x, y = batch
        return -0.5 * np.sum((y - x @ theta) ** 2)

    options = {"data": data, "batch_size": batch_size, "method": method, "seed": 1}
    assert_same(quick_fit(function, PRIOR, executor=2, **options), quick_fit(function, PRIOR, **options))


@pytest.mark.parametrize("executor", [None, 1, 3])
def test_a_vectorised_function_is_cut_the_same_way_whoever_calls_it(executor):
    sizes = []

    def vector(theta):
        sizes.append(len(theta))
        return -0.5 * np.sum(theta**2, axis=1)

    fit = quick_fit(vector, PRIOR, vectorized=3, executor=executor, seed=1)
    assert executor or max(sizes) == 3
    assert_same(fit, quick_fit(vector, PRIOR, vectorized=3, seed=1))


def test_a_call_for_all_points_has_nothing_to_share_out():
    vector = lambda theta: -0.5 * np.sum(theta**2, axis=1)
    with pytest.warns(UserWarning, match="vectorized=16"):
        quick_fit(vector, PRIOR, vectorized=True, executor=2, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick_fit(vector, PRIOR, vectorized=True, executor=1, seed=1)


def test_named_parameters_travel_too():
    def named(p):
        return -0.5 * np.sum((p["a"] - 1) ** 2) - p["s"]

    prior = {"a": qbvi.Normal(0, 1, shape=2), "s": qbvi.Gamma(2, 1)}
    assert_same(quick_fit(named, prior, executor=2, seed=1), quick_fit(named, prior, seed=1))


def test_several_starts_share_one_pool(tmp_path):
    log = tmp_path / "pids"
    function = Faulty("nan", 0, str(log))
    assert_same(
        quick_fit(function, PRIOR, n_starts=3, executor=2, seed=1), quick_fit(Target(), PRIOR, n_starts=3, seed=1)
    )
    assert len(set(log.read_text().split())) <= 2


def test_a_broken_executor_of_the_users_is_said_to_be_broken():
    said = pytest.raises(qbvi.EvaluationError, match=r"a worker of `executor` died.*pass a number of processes")
    with ProcessPoolExecutor(2, mp_context=SPAWN) as executor, said as caught:
        quick_fit(Faulty("abort", 2), PRIOR, on_failure="exclude", executor=executor, seed=1, method=ALL_FRESH)
    assert caught.value.fit is not None


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"executor": 0}, ValueError, "`executor` must be from 1 to 4,096"),
        ({"executor": True}, ValueError, "`executor` must be from 1 to 4,096 .* got True"),
        ({"executor": "two"}, TypeError, "`executor` must be a number of processes.*got str"),
        ({"timeout": 0}, ValueError, "`timeout` must be positive, got 0"),
        ({"timeout": "3"}, TypeError, "`timeout` must be a number, got '3'"),
        ({"timeout": 1.0, "executor": map}, ValueError, "`timeout` must go with processes of qbvi's own"),
    ],
)
def test_what_is_no_executor_or_no_timeout_is_refused_with_the_way_out(options, kind, message):
    with pytest.raises(kind, match=message):
        quick_fit(Target(), PRIOR, **options)


def test_failures_name_the_worker_that_met_them():
    with (
        ThreadPoolExecutor(1, thread_name_prefix="mine") as threads,
        open_runner(Calls(Faulty("nan", 100)), threads) as runner,
    ):
        ((_, (outcome,)),) = runner.run([np.zeros((1, 3))], ())
        assert outcome.failure.worker == "mine_0"
    assert BlackBox(Faulty("nan", 100)).calls(np.zeros((1, 3)))[0].failure.worker == ""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*")  # of a process with threads: Python and JAX warn
def test_failures_in_other_processes_name_their_numbers(method):
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, mp_context=context) as one, open_runner(Calls(Faulty("nan", 100)), one) as runner:
        ((_, (outcome,)),) = runner.run([np.zeros((1, 3))], ())
        assert outcome.failure.worker.startswith("pid ")
        assert outcome.failure.worker != f"pid {os.getpid()}"
