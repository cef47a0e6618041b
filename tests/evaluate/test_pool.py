"""Processes of our own: nothing lost, nothing hung, nothing left behind."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from faults import Faulty, Target, is_alive, wait_until_gone
from qbvi.evaluate import BlackBox, EvaluationError
from qbvi.evaluate.calls import Calls
from qbvi.evaluate.pool import Processes
from qbvi.evaluate.shipping import packed
from qbvi.evaluate.tasks import Pace

POINTS = np.random.default_rng(3).standard_normal((40, 3))
BLOCKS = [POINTS[i : i + 1] for i in range(len(POINTS))]


def bad_rows(function):
    return [i for i, theta in enumerate(POINTS) if function.is_bad(theta)]


@pytest.mark.parametrize("workers", [1, 3])
def test_values_are_those_of_this_process_to_the_last_bit(workers):
    here = BlackBox(Target())(POINTS)
    with Processes(Calls(Target()), workers) as pool:
        box = BlackBox(Target(), runner=pool)
        for _ in range(3):  # chunks change as the pace becomes known
            np.testing.assert_array_equal(box(POINTS).values, here.values)


@pytest.mark.parametrize(("what", "message"), [("abort", "SIGABRT"), ("exit", "exit code 3")])
def test_a_crash_loses_the_point_that_crashed_and_no_other(what, message):
    function = Faulty(what, percent=10)
    with Processes(Calls(function), 2) as pool:
        for _ in range(2):  # the second time in longer chunks
            box = BlackBox(function, on_failure="exclude", runner=pool)
            result = box(POINTS)
            assert list(np.flatnonzero(~result.ok)) == bad_rows(function) != []
            assert {failure.kind for failure in box.failures} == {"died"}
            assert all(message in failure.message and failure.worker.startswith("pid ") for failure in box.failures)
            good = result.ok
            np.testing.assert_array_equal(result.values[good], [Target()(theta) for theta in POINTS[good]])
            pool._pace.add(10_000, 1e-3)


def test_a_hang_is_ended_by_killing_its_worker():
    function = Faulty("hang", percent=10)
    with Processes(Calls(function), 2, timeout=2.0) as pool:  # a busy machine may stop a process for half a second
        box = BlackBox(function, on_failure="exclude", runner=pool)
        result = box(POINTS)
        assert list(np.flatnonzero(~result.ok)) == bad_rows(function) != []
        assert {failure.kind for failure in box.failures} == {"timeout"}
        assert all(failure.seconds >= 2.0 for failure in box.failures)
        hung = [int(failure.worker.removeprefix("pid ")) for failure in box.failures]
        assert not wait_until_gone(hung)


def test_a_vectorised_call_that_dies_or_hangs_is_repeated_point_by_point():
    bad = POINTS[5, 0]

    def vector(theta):
        if np.any(theta[:, 0] == bad):
            os.abort() if len(theta) % 2 else time.sleep(1000)
        return -theta[:, 0]

    with Processes(Calls(vector, vectorized=True), 2, timeout=2.0) as pool:
        box = BlackBox(vector, vectorized=8, on_failure="exclude", runner=pool)
        result = box(POINTS)
    assert list(np.flatnonzero(~result.ok)) == [5]
    np.testing.assert_array_equal(result.values[result.ok], -POINTS[result.ok, 0])
    assert box.n_evals == len(POINTS) + 8


def test_a_worker_killed_from_outside_costs_nothing_but_time():
    def slow(theta):
        time.sleep(0.05)
        return -theta[0]

    with Processes(Calls(slow), 2) as pool:
        victim = pool._workers[0].process.pid
        threading.Timer(0.2, os.kill, (victim, signal.SIGKILL)).start()
        box = BlackBox(slow, runner=pool)
        np.testing.assert_array_equal(box(POINTS).values, -POINTS[:, 0])
        assert victim not in {worker.process.pid for worker in pool._workers}


def test_outcomes_are_told_as_they_arrive_and_known_rows_stay_at_home(tmp_path):
    told, log = [], tmp_path / "calls"
    function = Faulty("nan", 0, str(log))
    with Processes(Calls(function), 2) as pool:
        box = BlackBox(function, runner=pool)
        whole = {}
        box(POINTS, on_done=whole.__setitem__)
        log.unlink()
        box(POINTS, known={i: whole[i] for i in range(30)}, on_done=lambda i, _: told.append(i))
    assert sorted(told) == list(range(30, 40))
    assert len(log.read_text().split()) == 10


def test_leaving_in_the_middle_of_a_step_leaves_no_stale_answers():
    def slow(theta):
        time.sleep(0.01)
        return -theta[0]

    def give_up(i, outcome):
        raise KeyboardInterrupt

    with Processes(Calls(slow), 2) as pool:
        box = BlackBox(slow, runner=pool)
        with pytest.raises(KeyboardInterrupt):
            box(POINTS, on_done=give_up)
        np.testing.assert_array_equal(box(POINTS[::-1]).values, -POINTS[::-1, 0])


def test_nothing_is_left_after_the_end_and_after_an_error(tmp_path):
    log = tmp_path / "pids"
    for what in ("nan", "raise"):
        function = Faulty(what, 10, str(log))
        with pytest.raises(EvaluationError), Processes(Calls(function), 2) as pool:
            BlackBox(function, runner=pool)(POINTS)
    pids = {int(pid) for pid in log.read_text().split()}
    assert len(pids) >= 2
    assert not wait_until_gone(pids)


# The workers share one pipe for their output. `print` writes a line in pieces there, and the pieces of two
# workers can mix; a single short write of the system cannot.
SCRIPT = """
import os, subprocess, sys, time, numpy as np, qbvi
def say(line):
    os.write(1, f"{{line}}\\n".encode())
def slow(theta):
    child = subprocess.Popen(["sleep", "1000"])
    say(f"{{os.getpid()}} {{child.pid}}")
    time.sleep({seconds})
    child.kill(); child.wait()
    return -0.5 * theta @ theta
fit = qbvi.fit(slow, qbvi.Normal(0, 2, shape=2), executor=2, seed=1, callback=lambda it: say("step"))
say(fit.stop_reason)
"""


@contextlib.contextmanager
def script(seconds):
    code = [sys.executable, "-c", textwrap.dedent(SCRIPT.format(seconds=seconds))]
    process = subprocess.Popen(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_returns_the_fit_so_far_and_ends_the_workers():
    with script(seconds=0.02) as process:
        lines = []
        while not lines or lines[-1] != "step\n":
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert "interrupted (Ctrl-C)" in out
    pids = [int(pid) for line in (*lines, *out.splitlines()) if line[:1].isdigit() for pid in line.split()]
    assert not wait_until_gone(pids)


def test_workers_and_what_they_started_do_not_outlive_a_fit_that_was_killed():
    with script(seconds=1000) as process:
        pids = [int(pid) for _ in range(2) for pid in process.stdout.readline().split()]
        assert len(pids) == 4
        assert all(map(is_alive, pids))
        process.kill()
        process.wait()
        assert not wait_until_gone(pids)


def test_a_script_needs_no_guard_and_does_its_work_once(tmp_path):
    path = tmp_path / "study.py"
    path.write_text(
        "print('once')\nimport numpy as np, qbvi\n"
        "f = lambda theta: -0.5 * theta @ theta\n"
        "print(qbvi.fit(f, qbvi.Normal(0, 2, shape=2), executor=2, seed=1).converged)\n"
    )
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["once", "True"]


def test_workers_run_with_one_blas_thread_unless_told_otherwise(monkeypatch):
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    for name in names:
        monkeypatch.delenv(name, raising=False)

    def threads(theta):
        import threadpoolctl

        return max(pool["num_threads"] for pool in threadpoolctl.threadpool_info())

    with Processes(Calls(threads), 1) as pool:
        assert BlackBox(threads, runner=pool)(POINTS[:1]).values[0] == 1
    assert not any(name in os.environ for name in names)


# ---------------------------------------------------------------- what cannot travel


def test_what_cannot_be_pickled_is_named_before_anything_runs(tmp_path):
    handle = open(tmp_path / "x", "w")  # noqa: SIM115
    calls = []
    function = lambda theta: calls.append(1) or handle.write("x")
    with handle, pytest.raises(TypeError, match=r"`log_likelihood` must be picklable .* `handle` \(TextIOWrapper\)"):
        Processes(Calls(function), 1)
    assert not calls


def test_the_culprit_is_found_inside_of_objects_and_partials():
    lock = threading.Lock()

    class Model:
        def __init__(self):
            self.settings = {"guard": [1, lock]}

        def __call__(self, theta):
            return 0.0

    with pytest.raises(TypeError, match=r"`log_likelihood.settings\['guard'\]\[1\]` \(lock\) is not"):
        packed(Calls(Model()))
    with pytest.raises(TypeError, match=r"`log_likelihood.__self__.settings\['guard'\]\[1\]`"):
        packed(Model().__call__)


def test_without_cloudpickle_a_lambda_is_refused_with_the_extra_named(monkeypatch):
    monkeypatch.setattr("qbvi.evaluate.shipping.has_cloudpickle", lambda: False)
    with pytest.raises(TypeError, match=r"pip install 'qbvi\[parallel\]'"):
        packed(lambda theta: 0.0)
    assert pickle.loads(packed(np.sum)) is np.sum


def test_a_function_that_cannot_be_loaded_there_is_an_error_not_a_hang():
    with pytest.raises(RuntimeError, match=r"(?s)cannot be loaded there.*no such thing here"):
        Processes(Calls(Unloadable()), 2)


def test_workers_that_die_before_they_are_ready_are_an_error_not_a_hang():
    with pytest.raises(RuntimeError, match=r"end before they are ready \(its process ended with exit code 3\)"):
        Processes(Calls(Deadly()), 1)


class Unloadable:
    def __call__(self, theta):
        return 0.0

    def __reduce__(self):
        return eval, (
            "1 / 0 if __import__('multiprocessing').parent_process() is None else exec('raise OSError(\"no such thing here\")')",
        )


class Deadly:
    def __call__(self, theta):
        return 0.0

    def __reduce__(self):
        return os._exit, (3,)


# ---------------------------------------------------------------- pace


@pytest.mark.parametrize(
    ("seconds", "n", "size"), [(1e-6, 100, 100), (1e-4, 100, 50), (1e-3, 100, 5), (1e-2, 100, 1), (10.0, 3, 1)]
)
def test_quick_calls_travel_together_and_slow_ones_alone(seconds, n, size):
    pace = Pace(workers=2, round_trip=2e-4)
    pace.add(10, 10 * seconds)
    assert pace.chunk_size(n) == size
