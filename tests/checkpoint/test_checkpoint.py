"""Checkpoints: the same fit to the last bit whatever ended it, nothing paid twice, and nothing believed that a file says."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import types
import zipfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import qbvi
from clocks import standing_still
from comparison import assert_same
from hostile import Hostile
from qbvi import archive
from qbvi.checkpoint import journal, read_saved
from qbvi.checkpoint.fingerprint import fingerprint
from qbvi.checkpoint.tree import Reader, Writer
from qbvi.conversation import Snapshot
from qbvi.regression.rules import Effort, Rules
from qbvi.starts import starting_points
from qbvi.stopping import Budget
from sweeps import sweep

PRIOR = qbvi.Normal(0, 2, shape=3)
QUICK = qbvi.QBVI(n_samples=20, stop=qbvi.MaxIterations(6), n_fresh=30)
METHODS = {
    "regression": qbvi.Regression(),
    "handed over": qbvi.Regression(
        rules=Rules(effort=Effort(most_points=60, fewest_points=60, fewest_for_coefficient=7))
    ),
    "qbvi": QUICK,
    "paper": qbvi.paper(stop=qbvi.MaxIterations(4), n_samples=30),
    "sobol": qbvi.QBVI(n_samples=32, draws="sobol", stop=qbvi.MaxIterations(6), n_fresh=40),
}


def density(theta):
    return -np.sum((theta - 1) ** 2) - 0.1 * np.sum(theta**4) - 0.3 * theta[0] * theta[1] ** 2


calls = 0
left = -1  # evaluations until the function ends the fit; never if negative


class Stopped(BaseException):
    """Ends a fit as nothing that qbvi handles."""


def counted(theta):
    global calls, left
    if left == 0:
        raise Stopped
    left -= 1
    calls += 1
    return density(theta)


@pytest.fixture(autouse=True)
def fresh_count():
    global calls, left
    calls, left = 0, -1


def die_after(evaluations, path, function=counted, **options):
    """Run until so many evaluations were made, and then no more."""
    global calls, left
    left = evaluations
    with pytest.raises(Stopped):
        qbvi.fit(function, checkpoint=path, **{"prior": PRIOR, "seed": 3, "family": "full", **options})
    calls, left = 0, -1


def fit(path=None, function=counted, **options):
    return qbvi.fit(function, checkpoint=path, **{"prior": PRIOR, "seed": 3, "family": "full", **options})


# --- resumed bit for bit, and nothing paid twice


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_changes_nothing_and_a_finished_one_costs_nothing(tmp_path, method):
    plain = fit(method=METHODS[method])
    assert_same(fit(tmp_path / "run", method=METHODS[method]), plain)
    before = calls
    assert_same(fit(tmp_path / "run", method=METHODS[method]), plain)
    assert calls == before
    assert sorted(os.listdir(tmp_path)) == ["run", "run.journal"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("share", sweep([0.0, 0.5, 0.99, 0.13], first=3))
@pytest.mark.parametrize("states", [0.0, 1e9], ids=["journal", "states"])
def test_a_run_that_died_goes_on_where_it_was(tmp_path, monkeypatch, method, share, states):
    monkeypatch.setattr("qbvi.checkpoint.file._STATES", states)  # no state after the first, or one after every step
    whole = fit(method=METHODS[method])
    paid = int(share * whole.n_evals)
    die_after(paid, tmp_path / "run", method=METHODS[method])
    assert_same(fit(tmp_path / "run", method=METHODS[method]), whole)
    assert calls == whole.n_evals - paid


def bent(theta, rows=None):
    """A banana: fresh draws contradict the first convergence, and all portions of them are needed."""
    counted(theta)
    return -2 * theta[0] ** 2 - 2 * (theta[1] - 2 * theta[0] ** 2) ** 2 - theta[2] ** 2


CLOSINGS = {
    "full": {},
    "diagonal": {"family": "diagonal"},
    "two starts": {"n_starts": 2, "max_evals": 500},
    "mini-batches": {"method": QUICK, "data": np.arange(30.0), "batch_size": 10},
}


@pytest.mark.parametrize(
    ("case", "ending"),
    # A start that its share of the time ends is not settled: its draws are not those of a longer one.
    [pair for pair in product(CLOSINGS, ["killed", "Ctrl-C", "max_time"]) if pair != ("two starts", "max_time")],
)
@pytest.mark.parametrize("states", sweep([0.0, 1e9], first=1))
def test_ended_again_and_again_among_the_closing_draws(tmp_path, monkeypatch, case, ending, states):
    """In each portion of them, and between any two; each value is paid for once."""
    monkeypatch.setattr("qbvi.checkpoint.file._STATES", states)
    options = {"function": bent, "on_mismatch": "keep", **CLOSINGS[case]}
    whole = fit(**options)
    paid = calls

    def until(left):
        """The function, until so many calls are made in all."""

        def function(theta, rows=None):
            if calls == left and ending == "killed":
                raise Stopped
            if calls == left and ending == "Ctrl-C":
                raise KeyboardInterrupt
            clock.now += 1.0
            return bent(theta, rows)

        return function

    with standing_still() as clock:
        for life in [*range(paid - 110, paid, 10), paid]:
            limit = {"max_time": life - 0.5} if ending == "max_time" else {}
            with contextlib.suppress(Stopped, KeyboardInterrupt):
                fit(tmp_path / "run", **{**options, "function": until(paid + life), **limit})
    assert_same(fit(tmp_path / "run", **options), whole)
    assert calls == 2 * paid


@pytest.mark.parametrize("method", sweep(["regression", "mini-batches", "qbvi"], first=2))
def test_killed_at_twenty_moments(tmp_path, method):
    script = Path(__file__).parents[1] / "helpers" / "killed.py"
    done = subprocess.run([sys.executable, script, method, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    came_out = json.loads(done.stdout)
    assert came_out["kills"] == 20
    assert came_out["ended"]
    assert came_out["same"]
    assert len(set(came_out["n_evals"])) == 1
    assert came_out["never paid"] == came_out["but not in flight"] == 0  # only what was in flight may be paid twice


@pytest.mark.parametrize("died_in", sweep([2, 1, 3], first=1))
def test_each_start_has_a_file_of_its_own(tmp_path, died_in):
    whole = fit(n_starts=3)
    died = int((died_in - 0.5) / 3 * whole.n_evals)
    die_after(died, tmp_path / "run", n_starts=3)
    assert_same(fit(tmp_path / "run", n_starts=3), whole)
    assert calls == whole.n_evals - died
    assert {"run", "run.2", "run.3"} < set(os.listdir(tmp_path))


def test_a_vectorised_call_counts_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr("qbvi.checkpoint.file._STATES", 0.0)  # all is in the journal
    global left
    sizes = []

    def function(points):
        global left
        left -= 1
        if left == 0:
            raise Stopped
        sizes.append(len(points))
        return np.array([density(theta) for theta in points])

    options = {"vectorized": True, "method": QUICK, "on_mismatch": "keep"}
    whole = fit(function=function, **options)
    left = 4
    with pytest.raises(Stopped):
        fit(tmp_path / "run", function, **options)
    journal = (tmp_path / "run.journal").read_bytes()
    (tmp_path / "run.journal").write_bytes(journal[:-100])  # of the third call, the last records are lost
    left = -1
    sizes.clear()
    assert_same(fit(tmp_path / "run", function, **options), whole)
    assert sizes == [20, 20, 20, 20, 30]


def test_the_executor_is_used_again(tmp_path):
    whole = fit(method=QUICK)
    die_after(70, tmp_path / "run", method=QUICK)
    before = calls
    assert_same(fit(tmp_path / "run", method=QUICK, executor=2), whole)
    assert calls == before  # they were made in other processes


def test_failures_come_back_with_all_that_is_known_of_them(tmp_path):
    def function(theta):
        if theta[0] > 1.5:
            raise ArithmeticError("too far")
        return np.nan if theta[1] > 1.5 else counted(theta)

    options = {"on_failure": "exclude", "method": QUICK}
    whole = fit(function=function, **options)
    assert {failure.kind for failure in whole.failures} == {"nan", "exception"}
    die_after(33, tmp_path / "run", function, **options)
    resumed = fit(tmp_path / "run", function, **options)
    assert_same(resumed, whole)
    for one, other in zip(resumed.failures, whole.failures, strict=True):
        assert_array_equal(one.parameters, other.parameters)
        assert (one.kind, one.message, one.types) == (other.kind, other.message, other.types)


def test_a_failure_that_ended_the_run_is_tried_again_and_nothing_else(tmp_path):
    asked, broken = [], True

    def function(theta):
        asked.append(theta)
        if len(asked) == 50 and broken:
            raise MemoryError("for once")
        return density(theta)

    with pytest.raises(qbvi.EvaluationError, match="for once"):
        fit(tmp_path / "run", function, method=QUICK)
    paid, broken = len(asked), False
    resumed = fit(tmp_path / "run", function, method=QUICK, on_mismatch="keep")
    assert_same(resumed, fit(method=QUICK))
    assert len(asked) == resumed.n_evals + 1
    assert_array_equal(asked[paid], asked[49])


@pytest.mark.parametrize("foreseen", [True, False])
def test_a_larger_budget_goes_on_as_if_it_had_been_there_from_the_start(tmp_path, monkeypatch, foreseen):
    if not foreseen:  # a step may turn out larger than the rule expects
        monkeypatch.setattr(Budget, "__call__", lambda self, history: None)
    method = qbvi.QBVI(n_samples=20, stop=qbvi.MaxIterations(1000), n_fresh=30)
    whole = fit(max_evals=400, method=method)
    first = fit(tmp_path / "run", max_evals=150, method=method)
    assert first.n_evals <= 150
    assert "150 evaluations" in first.stop_reason
    resumed = fit(tmp_path / "run", max_evals=400, method=method)
    assert_same(resumed, whole)
    assert any(
        "evaluations of the checkpoint were for points that are not needed again" in note for note in resumed.notes
    )


def test_time_already_spent_counts(tmp_path):
    method = qbvi.QBVI(n_samples=20, stop=qbvi.MaxIterations(10**6), n_fresh=30)
    first = fit(tmp_path / "run", method=method, max_time=0.2)
    assert "0.2 seconds" in first.stop_reason
    before = calls
    assert_same(fit(tmp_path / "run", method=method, max_time=0.2), first)
    assert calls == before


def test_time_before_the_first_step_counts_once(tmp_path, monkeypatch):
    """A run that was cut while a step was evaluated has no time left, however long it took to begin."""
    method = qbvi.QBVI(n_samples=20, stop=qbvi.MaxIterations(10**6), n_fresh=30)
    with standing_still() as clock:

        def slow_start(*arguments):
            clock.now += 3.0
            return starting_points(*arguments)

        def taking_time(theta):
            clock.now += 0.1
            return counted(theta)

        monkeypatch.setattr(sys.modules["qbvi.fit"], "starting_points", slow_start)
        options = {"function": taking_time, "method": method, "on_mismatch": "keep", "max_time": 10.0}
        first = fit(tmp_path / "run", **options)
        assert first.stop_kind.value == "seconds"
        before = calls
        assert_same(fit(tmp_path / "run", **options), first)
        assert calls == before


def test_time_since_the_last_state_of_a_killed_run_counts(tmp_path, monkeypatch):
    monkeypatch.setattr("qbvi.checkpoint.file._STATES", 0.0)  # the only state is from before the first step
    die_after(60, tmp_path / "run", method=QUICK)
    last = os.stat(tmp_path / "run").st_mtime + 1000.0
    os.utime(tmp_path / "run.journal", (last, last))
    resumed = fit(tmp_path / "run", method=QUICK, max_time=900.0)
    assert resumed.stop_kind.value == "seconds"
    assert resumed.seconds > 1000
    assert calls == 0


def test_the_seed_is_the_checkpoints(tmp_path):
    first = fit(tmp_path / "run", seed=None)
    assert_same(fit(tmp_path / "run", seed=None), first)


@pytest.mark.parametrize("path", ["run", "a b.c.qbvi"])
def test_paths_are_kept_as_they_are(tmp_path, path):
    fit(str(tmp_path / path), method=QUICK)
    assert sorted(os.listdir(tmp_path)) == sorted([path, path + ".journal"])


# --- something else was given


SHIFT, HELPED = np.zeros(3), 1.0


def helper(theta):
    return HELPED * density(theta)


def with_globals(theta):
    return helper(theta - SHIFT)


def with_closure(y):
    return lambda theta: density(theta - y)


def differing(path, **options):
    with pytest.raises(qbvi.CheckpointError, match="what differs: ") as caught:
        fit(path, **options)
    return str(caught.value).split("what differs: ")[1].split(". To go on")[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"function": lambda theta: density(theta)}, "function"),
        ({"prior": qbvi.Normal(0, 2.5, shape=3)}, "prior"),
        ({"method": qbvi.Regression(tol=0.5)}, "method"),
        ({"family": "diagonal"}, "family"),
        ({"family": "auto"}, "method"),  # a family by name is fitted by another method
        ({"seed": 4}, "seed"),
        ({"init": np.ones(3)}, "init"),
        ({"data": np.ones(3)}, "data"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_differs_is_said_and_nothing_is_evaluated(tmp_path, change, said):
    fit(tmp_path / "run")
    before = [calls, *((tmp_path / name).read_bytes() for name in ("run", "run.journal"))]
    assert differing(tmp_path / "run", **change).startswith(said)
    assert before == [calls, *((tmp_path / name).read_bytes() for name in ("run", "run.journal"))]


def test_arrays_that_the_function_reads_are_part_of_it(tmp_path, monkeypatch):
    fit(tmp_path / "closure", with_closure(np.zeros(3)))
    fit(tmp_path / "closure", with_closure(np.zeros(3)))
    assert differing(tmp_path / "closure", function=with_closure(np.ones(3))) == "function, its variable y"
    fit(tmp_path / "globals", with_globals)
    monkeypatch.setitem(globals(), "HELPED", 2.0)
    monkeypatch.setitem(globals(), "SHIFT", np.ones(3))
    told = differing(tmp_path / "globals", function=with_globals)
    assert told == "function, its variable SHIFT; function, its variable HELPED"


def test_data_are_known_by_their_content(tmp_path):
    pd = pytest.importorskip("pandas")

    def function(theta, rows):
        return density(theta) - np.sum(np.asarray(rows["x"], dtype=float)) * theta[0]

    frame = pd.DataFrame({"x": [1.0, 2.0], "name": ["a", "b"]})
    fit(tmp_path / "run", function, data=frame)
    fit(tmp_path / "run", function, data=frame.copy())
    for other in (frame.assign(x=[1.0, 2.1]), frame.assign(name=["a", "c"]), frame.astype({"x": "float32"})):
        assert differing(tmp_path / "run", function=function, data=other) == "data"


def test_keep_goes_on_with_what_was_paid(tmp_path):
    die_after(40, tmp_path / "run", method=QUICK)

    def other(theta):  # its code differs, its values do not
        return counted(theta) + 0.0

    resumed = fit(tmp_path / "run", other, method=QUICK, on_mismatch="keep")
    assert calls == resumed.n_evals - 40
    assert_same(fit(tmp_path / "run", other, method=QUICK), resumed)  # the file is the new function's now


def test_keep_cannot_turn_one_state_into_another(tmp_path):
    fit(tmp_path / "run")
    for change in ({"family": "diagonal"}, {"method": QUICK}, {"prior": qbvi.Normal(0, 1, shape=2)}):
        with pytest.raises(qbvi.CheckpointError, match=r"another family or method.*re-evaluate"):
            fit(tmp_path / "run", on_mismatch="keep", **change)


def test_re_evaluate_starts_from_the_posterior_and_pays_for_every_point(tmp_path):
    first = fit(tmp_path / "run")
    before = calls
    again = fit(tmp_path / "run", lambda theta: counted(theta), on_mismatch="re-evaluate", family="diagonal")
    assert calls - before == again.n_evals > 0
    assert abs(again.trace.elbo[0] - first.elbo) < 1  # a start from the prior is 10 nats off
    assert_same(fit(tmp_path / "run", lambda theta: counted(theta), family="diagonal", on_mismatch="keep"), again)
    with pytest.raises(qbvi.CheckpointError, match="3 coordinates, the prior has 2"):
        fit(tmp_path / "run", prior=qbvi.Normal(0, 1, shape=2), on_mismatch="re-evaluate")


def test_on_mismatch_is_one_of_three(tmp_path):
    with pytest.raises(ValueError, match="`on_mismatch` must be one of 'raise', 'keep', 're-evaluate'"):
        fit(tmp_path / "run", on_mismatch="ignore")


def test_what_cannot_be_told_apart_is_said_in_the_notes(tmp_path):
    lock = __import__("threading").Lock()

    def function(theta):
        with lock:
            return density(theta)

    assert fit(tmp_path / "run", function).notes == (
        "whether the function's variable lock (lock) is the same when the checkpoint is resumed cannot be told",
    )


# --- fingerprints


def digests(value):
    return fingerprint("it", value).digests


def test_moving_a_function_or_documenting_around_it_changes_nothing():
    sources = ("def f(x):\n    return x + 1\n", "# more\n\n\ndef g(x):\n    pass\n\ndef f(x):\n    return x + 1\n")
    programs = [compile(source, f"file{i}", "exec") for i, source in enumerate(sources)]
    functions = [types.FunctionType(program.co_consts[-2], {}) for program in programs]
    assert functions[0].__code__.co_name == functions[1].__code__.co_name == "f"
    assert digests(functions[0]) == digests(functions[1])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, 1.0),
        (0.0, -0.0),
        (np.zeros(2), np.zeros(2, dtype="f4")),
        (np.zeros((2, 1)), np.zeros((1, 2))),
        ((1, (2, 3)), ((1, 2), 3)),
        ({"a": 1}, {"b": 1}),
        (qbvi.Normal(0, 1), qbvi.Normal(0, 2)),
        (qbvi.Normal(0, 1), qbvi.LogNormal(0, 1)),
        (qbvi.LogPrior(lambda x: -(x**2), shape=()), qbvi.LogPrior(lambda x: -(x**4), shape=())),
        (qbvi.paper(), qbvi.paper(n_samples=50)),
        (np.array(["a", "b"], dtype=object), np.array(["a", "c"], dtype=object)),
    ],
)
def test_fingerprints_tell_things_apart_and_only_those(one, other):
    assert digests(one) == digests(one) != digests(other)


def test_a_method_is_known_again_after_it_was_used():
    program = """
import qbvi
from qbvi.checkpoint.fingerprint import fingerprint

method = qbvi.QBVI(n_samples=4, stop=(qbvi.MaxIterations(2),), n_fresh=4)
before = fingerprint("method", method)
qbvi.fit(lambda x: -x * x, qbvi.Normal(0, 1), method=method, seed=1)
print(before == fingerprint("method", method))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "True"


def test_the_set_in_a_function_has_no_order():
    program = "from qbvi.checkpoint.fingerprint import fingerprint\nprint(fingerprint('f', lambda x: x in {'a', 'b', 'c', 'd'}).digests)"
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in "12"]
    told = {
        subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout
        for env in environments
    }
    assert len(told) == 1


# --- disks that fail


def test_a_disk_that_fills_up_costs_one_warning_and_nothing_else(tmp_path, monkeypatch):
    whole, real = fit(method=QUICK), journal._write_at
    before = calls

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def filling(file, at, content):
        if calls - before < 50:
            return real(file, at, content)
        real(file, at, content[: len(content) // 2])  # part of it still fits
        return full()

    monkeypatch.setattr(journal, "_write_at", filling)
    monkeypatch.setattr("qbvi.checkpoint.file._STATES", 0.0)  # no state after the first
    with pytest.warns(RuntimeWarning, match="could not be written") as warned:
        resumed = fit(tmp_path / "run", method=QUICK)
    assert len(warned) == 1
    assert_same(resumed, whole)
    assert any("could not be written" in note for note in resumed.notes)


def test_after_a_full_disk_the_last_good_file_is_there_and_what_waited_is_written(tmp_path, monkeypatch):
    whole, real = fit(method=QUICK), journal._write_at
    start = calls

    def filling(file, at, content):
        if 30 <= calls - start < 45:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, at, content)

    monkeypatch.setattr(journal, "_write_at", filling)
    global left
    left = 60
    with pytest.warns(RuntimeWarning, match="could not be written"), pytest.raises(Stopped):
        fit(tmp_path / "run", method=QUICK)
    left, before = -1, calls
    assert_same(fit(tmp_path / "run", method=QUICK), whole)
    assert calls - before == whole.n_evals - 60


def test_states_that_cannot_be_written_leave_the_last_one(tmp_path, monkeypatch):
    whole = fit(method=QUICK)
    real, states = np.savez, []

    def once(file, **arrays):
        states.append(1)
        if len(states) == 1:
            return real(file, **arrays)
        file.write(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", once)
    with pytest.warns(RuntimeWarning, match="could not be written"):
        fit(tmp_path / "run", method=QUICK)
    monkeypatch.undo()
    before = calls
    assert sorted(os.listdir(tmp_path)) == ["run", "run.journal"]
    assert_same(fit(tmp_path / "run", method=QUICK), whole)  # all from the journal
    assert calls == before


def test_a_real_disk_that_is_full(tmp_path):
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48k", "none", tmp_path], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting a small file system needs rights that are not here")
    try:
        with pytest.warns(RuntimeWarning, match="No space left on device") as warned:
            resumed = fit(tmp_path / "run", method=qbvi.paper(stop=qbvi.MaxIterations(20), n_fresh=1000))
        assert len(warned) == 1
        assert_same(resumed, fit(method=qbvi.paper(stop=qbvi.MaxIterations(20), n_fresh=1000)))
        read_saved(tmp_path / "run").read("snapshot", Snapshot)  # the last state that fitted is whole, whichever it was
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_place_that_cannot_be_written_is_said_before_anything_is_paid(tmp_path):
    with pytest.raises(FileNotFoundError):
        fit(tmp_path / "nowhere" / "run")
    if Path("/dev/full").exists():
        (tmp_path / "run.journal").symlink_to("/dev/full")
        with pytest.raises(OSError, match=r"No space left|Invalid argument"):
            fit(tmp_path / "run")
    assert calls == 0


def test_two_processes_do_not_share_a_checkpoint(tmp_path):
    program = f"import sys; sys.path[:0] = {sys.path!r}; import test_checkpoint as t; t.fit({str(tmp_path / 'run')!r})"
    refused = []

    def function(theta):
        if not refused:
            refused.append(
                subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr
            )
        return density(theta)

    fit(tmp_path / "run", function)
    assert "is in use by another process" in refused[0]


# --- files that are damaged, or mean harm


def test_a_torn_journal_counts_up_to_the_tear(tmp_path):
    whole = fit(method=QUICK)
    die_after(19, tmp_path / "run", method=QUICK)
    state, journal = (tmp_path / "run").read_bytes(), (tmp_path / "run.journal").read_bytes()
    record = (len(journal) - 16) // 19
    for cut in (0, 5, 16, 17, 16 + record - 1, 16 + record, 16 + 7 * record + 3, len(journal) - 1):
        (tmp_path / "run").write_bytes(state)
        (tmp_path / "run.journal").write_bytes(journal[:cut])
        before = calls
        assert_same(fit(tmp_path / "run", method=QUICK), whole)
        assert calls - before == whole.n_evals - max(0, (cut - 16) // record)


RECORD = 48  # bytes of a record without a failure; the name of the run before them takes 16
FLIPS = {"name": 3, "length": 16 + 9 * RECORD + 1, "value": 16 + 9 * RECORD + 39, "last": 16 + 18 * RECORD + 39}


@pytest.mark.parametrize("place", FLIPS)
def test_a_flipped_bit_in_a_journal_costs_one_record_and_is_said(tmp_path, place):
    whole = fit(method=QUICK)
    die_after(19, tmp_path / "run", method=QUICK)
    content = bytearray((tmp_path / "run.journal").read_bytes())
    assert len(content) == 16 + 19 * RECORD
    content[FLIPS[place]] ^= 1
    (tmp_path / "run.journal").write_bytes(content)
    resumed = fit(tmp_path / "run", method=QUICK)
    assert_same(resumed, whole)
    lost = 0 if place == "name" else 1
    assert calls == whole.n_evals - 19 + lost
    assert [f"48 bytes of the journal {str(tmp_path / 'run.journal')!r} are damaged" in n for n in resumed.notes] == [
        True
    ] * lost


def test_a_stretch_of_a_journal_that_is_overwritten_costs_no_more_than_that(tmp_path):
    whole = fit(method=QUICK)
    die_after(19, tmp_path / "run", method=QUICK)
    content = bytearray((tmp_path / "run.journal").read_bytes())
    content[16 + 5 * RECORD + 7 : 16 + 9 * RECORD + 2] = np.random.default_rng(1).bytes(4 * RECORD - 5)
    (tmp_path / "run.journal").write_bytes(content)
    resumed = fit(tmp_path / "run", method=QUICK)
    assert_same(resumed, whole)
    assert calls == whole.n_evals - 19 + 5
    assert any("up to 5 evaluations are lost" in note for note in resumed.notes)


def test_a_journal_made_to_be_searched_for_long_is_given_up(monkeypatch):
    monkeypatch.setattr(journal, "_MOST_SEARCHED", 10_000)
    checked = []
    monkeypatch.setattr(journal.zlib, "crc32", lambda record: checked.append(len(record)) or -1)
    found = journal.Answers().read((1000).to_bytes(4, "little") * 5000)
    assert sum(checked) < 12_000
    assert (found.end, found.lost) == (0, 20_000)


@pytest.mark.parametrize("state", ["other", "none"])
def test_the_journal_of_another_run_is_refused_and_left_alone(tmp_path, state):
    die_after(19, tmp_path / "one", method=QUICK)
    die_after(7, tmp_path / "other", method=QUICK)
    foreign = (tmp_path / "one.journal").read_bytes()
    if state == "none":
        (tmp_path / "other").unlink()
    (tmp_path / "other.journal").write_bytes(foreign)
    with pytest.raises(qbvi.CheckpointError, match=r"holds 19 evaluations of another run.*remove it"):
        fit(tmp_path / "other", method=QUICK)
    assert calls == 0
    assert (tmp_path / "other.journal").read_bytes() == foreign


def test_two_threads_do_not_share_a_checkpoint(tmp_path):
    refused = []

    def function(theta):
        if not refused:
            with pytest.raises(qbvi.CheckpointError, match="is in use by another fit of this process") as error:
                fit(tmp_path / "." / "run", method=QUICK)
            refused.append(error)
        return density(theta)

    first = fit(tmp_path / "run", function, method=QUICK)
    assert refused
    assert_same(fit(tmp_path / "run", function, method=QUICK, on_mismatch="keep"), first)  # free again


def test_what_killed_writers_left_is_removed(tmp_path):
    stale, fresh = tmp_path / ".run.0123abcd.partial", tmp_path / ".run.89abcdef.partial"
    other = tmp_path / ".run.2.0123abcd.partial"
    for path in (stale, fresh, other):
        path.write_bytes(b"half of it")
    for path in (stale, other):
        os.utime(path, (1, 1))
    fit(tmp_path / "run", method=QUICK)
    assert [path.exists() for path in (stale, fresh, other)] == [False, True, True]


@pytest.mark.parametrize("size", [0, 3, 100, 0.5, -10])
def test_a_truncated_state_is_refused_and_left_alone(tmp_path, size):
    fit(tmp_path / "run")
    content = (tmp_path / "run").read_bytes()
    cut = content[: int(size * len(content)) if isinstance(size, float) else size]
    (tmp_path / "run").write_bytes(cut)
    before = calls
    with pytest.raises(qbvi.CheckpointError, match=r"cannot be read|is not a checkpoint of qbvi"):
        fit(tmp_path / "run")
    assert calls == before
    assert (tmp_path / "run").read_bytes() == cut


def test_other_files_are_not_taken_for_checkpoints(tmp_path):
    fit().save(tmp_path / "fit.npz")
    (tmp_path / "text").write_text("my notes\n")
    for name in ("fit.npz", "text"):
        content = (tmp_path / name).read_bytes()
        with pytest.raises(qbvi.CheckpointError, match="is not a checkpoint of qbvi"):
            fit(tmp_path / name)
        assert (tmp_path / name).read_bytes() == content
    assert sorted(os.listdir(tmp_path)) == ["fit.npz", "text"]


def changed(path, change):
    """Write a checkpoint again with another header, or with other arrays."""
    header, arrays = archive.read(path)
    change(header, arrays)
    archive.write(path, header, arrays)


def set_class(name):
    def change(header, _):
        header["tree"]["snapshot"]["fields"]["state"] = {"class": name, "fields": {}}

    return change


def nested(header, _):
    tree: Any = 1
    for _ in range(300):
        tree = {"tuple": [tree]}
    header["tree"]["snapshot"] = tree


@pytest.mark.parametrize(
    "change",
    [
        set_class("subprocess:Popen"),
        set_class("os:system"),
        set_class("qbvi.run:Run.requests"),
        set_class("test_checkpoint:Trap"),
        set_class("qbvi.model:Model"),
        set_class("not.there:Thing"),
        nested,
        lambda header, _: header["tree"].update(snapshot=[1, 2]),
        lambda header, _: header["tree"].update(snapshot={"array": "float64", "at": -5, "shape": [3]}),
        lambda header, _: header["tree"].update(snapshot={"array": "float64", "at": 0, "shape": [10**15]}),
        lambda header, _: header["tree"].update(snapshot={"array": "float64", "at": 0, "shape": [-1]}),
        lambda header, _: header["tree"].update(snapshot={"tuple": 5}),
        lambda header, _: header["tree"]["snapshot"]["fields"].pop("dark"),
        lambda header, _: header.update(tree=None),
        lambda header, _: header.update(seed="one"),
        lambda header, _: header.update(schema=99),
        lambda header, _: header.pop("run_id"),
        lambda _, arrays: arrays.pop("answers"),
    ],
)
def test_a_checkpoint_that_makes_no_sense_is_refused(tmp_path, change):
    fit(tmp_path / "run")
    changed(tmp_path / "run", change)
    before = calls
    with pytest.raises(qbvi.CheckpointError, match=r"do not fit together|damaged|this version reads"):
        fit(tmp_path / "run")
    assert calls == before


@dataclass
class Trap:
    """Does harm when it is made or copied."""

    def __post_init__(self):
        os.mkdir("hacked")

    __setstate__ = __reduce__ = __post_init__


def test_no_code_runs_from_a_hostile_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit("run")
    with np.load("run") as held:
        arrays = dict(held)
    for place in ("header", "numbers_float64", "answers"):
        np.savez("hostile.npz", **{**arrays, place: np.array([Hostile()], dtype=object)})
        with pytest.raises(qbvi.CheckpointError, match="holds Python objects"):
            fit("hostile.npz")
    assert not Path("hacked").exists()


def npy(shape, content=b"", dtype="<f8"):
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


def test_sizes_that_a_file_declares_are_not_believed(tmp_path):
    bomb = tmp_path / "bomb"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("header.npy", npy((10**8,), bytes(10**8), "|u1"))
    with pytest.raises(qbvi.CheckpointError, match="is compressed"):
        fit(bomb)
    for array in (npy((10**14,), bytes(80)), npy((-(2**40), -(2**40)), bytes(80)), npy((10**14,), b"", "|V0")):
        with zipfile.ZipFile(bomb, "w") as stored:
            stored.writestr("header.npy", array)
        with pytest.raises(qbvi.CheckpointError, match="cannot be read"):
            fit(bomb)
    content = bytearray(bomb.read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 20 : entry + 28] = (2**31).to_bytes(4, "little") * 2  # two gigabytes in a file of some bytes
    bomb.write_bytes(content)
    with pytest.raises(qbvi.CheckpointError, match=r"declares 2,147,483,648 bytes"):
        fit(bomb)


@pytest.mark.parametrize("header", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 10**5, b"NaN"])
def test_headers_that_are_no_json_objects(tmp_path, header):
    np.savez(tmp_path / "file.npz", header=np.frombuffer(header, dtype=np.uint8))
    with pytest.raises(qbvi.CheckpointError, match="is not a checkpoint of qbvi"):
        fit(tmp_path / "file.npz")


# --- states as plain data


class Inner(NamedTuple):
    a: Any
    b: Any = None


@dataclass(frozen=True)
class Outer:
    inner: Inner
    numbers: Any


def through_json(value):
    writer = Writer()
    tree = json.loads(json.dumps(writer.write(value), allow_nan=False))
    return Reader(writer.arrays(), ("test_checkpoint",)).read(tree)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 2**200, -0.0, 0.1, float("-inf"), "text", (), [], {}, (1, [2, (3,)]),
        np.float64(0.1), np.int64(7), np.bool_(True), np.array(1.5), np.zeros((0, 3)), np.arange(6).reshape(2, 3).T,
        np.array([np.nan, np.inf, -0.0]), np.arange(3, dtype="f4"), np.array([1 + 2j]),
        Inner(np.ones(2), Inner(None)), Outer(Inner(1.5), {"x": np.ones(1), "array": 3, "tuple": [1]}),
    ],
    ids=repr,
)  # fmt: skip
def test_values_survive_as_they_are(value):
    back = through_json(value)
    assert type(back) is type(value)
    assert repr(back) == repr(value)


def test_nan_survives_and_shared_arrays_are_written_once():
    assert np.isnan(through_json(float("nan")))
    shared, writer = np.ones(1000), Writer()
    writer.write([shared, {"again": shared}, (shared,)])
    assert writer.arrays()["float64"].size == 1000


def test_states_with_code_in_them_are_refused():
    class Local(NamedTuple):
        a: int

    for value in (len, object(), {1: 2}, np.array([None]), Local(1)):
        with pytest.raises(TypeError, match="to be saved"):
            Writer().write(value)


# --- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_polite_end_returns_the_fit_so_far_and_the_run_can_go_on(tmp_path, number):
    asked = []

    def function(theta):
        asked.append(theta)
        if len(asked) == 70:
            os.kill(os.getpid(), number)
        return density(theta)

    before = signal.getsignal(number)
    first = fit(tmp_path / "run", function, method=QUICK)
    name = "SIGTERM" if number == signal.SIGTERM else "Ctrl-C"
    assert first.stop_reason == f"interrupted ({name}) before the fit settled"
    assert signal.getsignal(number) is before
    whole = fit(method=QUICK)
    assert_same(fit(tmp_path / "run", function, method=QUICK, on_mismatch="keep"), whole)
    # the signal ends the call during which it comes: that one may be made again
    assert whole.n_evals <= len(asked) <= whole.n_evals + 1


KILLED = """
import os, signal
import qbvi

def density(x):
    os.kill(os.getpid(), signal.SIGTERM)
    return -x * x

qbvi.fit(density, qbvi.Normal(0, 2), seed=1)
"""


def test_without_a_checkpoint_sigterm_means_what_it_always_did():
    assert subprocess.run([sys.executable, "-c", KILLED], check=False).returncode == -signal.SIGTERM


def test_a_handler_of_the_programs_own_is_left_alone(tmp_path):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        seen = set()
        fit(tmp_path / "run", callback=lambda now: seen.add(signal.getsignal(signal.SIGTERM)), method=QUICK)
        assert seen == {signal.SIG_IGN}
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_interruption_during_the_last_draws_keeps_the_posterior():
    def function(theta):
        global calls
        calls += 1
        if calls == 130:
            raise KeyboardInterrupt
        return density(theta)

    result = fit(function=function, method=QUICK)
    assert result.stop_reason.endswith("but interrupted (Ctrl-C) during the last draws")
    assert not result.converged
