"""The public surface under fuzz: no raw exception, and nothing paid for an argument that is wrong.

What counts as ours is said in `surface`. Here every seventh case runs; `make soak` runs all of them.
"""

import multiprocessing
import sys

import numpy as np
import pytest

import qbvi
import surface
from qbvi.progress import Progress

EVERY = 21
calls = 0


def counted(theta, rows=None):
    global calls
    calls += 1
    return surface.quadratic(theta)


def part(cases, share):
    """Every so many cases, another part for each kind of value."""
    return [case for i, case in enumerate(cases) if i % EVERY == share]


def raw_exceptions(cases):
    """One line for each raw exception, and for each refusal that came after an evaluation."""
    global calls
    found = []
    for name, argument, text, call in cases:
        calls = 0
        error = surface.exception_of(call)
        why = surface.why_raw(error, argument)
        # That a function is not vectorised shows only when it is called.
        late = error is not None and calls > 0 and argument not in ("vectorized", "data")
        if why or late:
            found.append(f"{name}({argument}={text}): {why or f'{calls} evaluations before: {error}'}")
    return found


SHARES = [pytest.param(share, marks=[pytest.mark.soak] * (share > 0)) for share in range(EVERY)]


@pytest.mark.parametrize("share", SHARES)
def test_descriptions(tmp_path, monkeypatch, share):
    monkeypatch.chdir(tmp_path)
    assert raw_exceptions(part(surface.constructor_cases(), share)) == []


@pytest.mark.parametrize("share", SHARES)
def test_fits(tmp_path, monkeypatch, share):
    monkeypatch.chdir(tmp_path)
    assert raw_exceptions(part(surface.fit_cases(counted), share)) == []


@pytest.mark.parametrize("share", SHARES)
def test_results(tmp_path, monkeypatch, share):
    monkeypatch.chdir(tmp_path)
    fit = qbvi.fit(surface.quadratic, qbvi.Normal(0, 1, shape=2), seed=1)
    assert raw_exceptions(part(surface.result_cases(fit, tmp_path), share)) == []


# --- what the fuzz of signatures does not reach


@pytest.fixture(scope="module")
def fit():
    return qbvi.fit(surface.quadratic, qbvi.Normal(0, 1, shape=2), seed=1)


def test_one_quantile_and_a_float_number_of_draws(fit):
    np.testing.assert_array_equal(fit.quantiles(0.5), fit.quantiles([0.5])[0])
    assert fit.sample(1e3, seed=1).shape == (1000, 2)


@pytest.mark.parametrize(
    ("argument", "value"), [("callback", 3), ("data", 3), ("checkpoint", 3), ("progress", "yes"), ("init", "x")]
)
def test_a_wrong_argument_costs_nothing(argument, value):
    global calls
    calls = 0
    with pytest.raises(TypeError, match=f"`{argument}` must be"):
        qbvi.fit(counted, qbvi.Normal(0, 1, shape=2), **{argument: value})
    assert calls == 0


def test_progress_without_a_console(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert Progress(True).shown is False
    assert qbvi.fit(surface.quadratic, qbvi.Normal(0, 1), progress=True, seed=1).converged


class Unreadable(Exception):
    def __str__(self):
        msg = "no text"
        raise RuntimeError(msg)


def test_an_exception_without_a_text_is_a_failure_like_any_other():
    def function(theta):
        if theta > 1:
            raise Unreadable
        return -float(theta**2)

    fit = qbvi.fit(function, qbvi.Normal(0, 1), on_failure="exclude", init=1.0 - 1e-3, seed=1)
    assert fit.failures[0].message == "Unreadable: (its text cannot be read)"
    with pytest.raises(qbvi.EvaluationError, match="Unreadable"):
        qbvi.fit(function, qbvi.Normal(0, 1), init=1.0 - 1e-3, seed=1)


def test_processes_in_a_daemon_process_are_refused(monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    with pytest.raises(ValueError, match="`executor=2` needs processes of its own"):
        qbvi.fit(counted, qbvi.Normal(0, 1), executor=2)
    with pytest.raises(ValueError, match="`timeout` needs processes of its own"):
        qbvi.fit(counted, qbvi.Normal(0, 1), timeout=5)


# --- numbers at the edge


@pytest.mark.parametrize("sd", [float("nan"), -1.0, float("inf")])
@pytest.mark.parametrize("vectorized", [False, True])
def test_a_standard_deviation_that_makes_no_sense_is_a_failure(sd, vectorized):
    def function(theta):
        values = -np.sum(np.square(theta), axis=-1)
        return (values, np.full(values.shape, sd)) if vectorized else (float(values), sd)

    with pytest.raises(qbvi.EvaluationError, match=r"returned the standard deviation (nan|-1\.0|inf) with its value"):
        qbvi.fit(function, qbvi.Normal(0, 1, shape=2), vectorized=vectorized, seed=1)


def test_what_a_mask_hides_is_not_a_value():
    def function(theta):
        return np.ma.masked_array([-float(theta**2)], mask=[theta > 0])

    with pytest.raises(qbvi.EvaluationError, match="nan"):
        qbvi.fit(function, qbvi.Normal(0, 1), seed=1)
    masked = np.ma.masked_array([0.0, 1.0, 0.0], mask=[False, True, False])
    for build in (lambda: qbvi.Normal(masked, 1), lambda: qbvi.models.Logistic([[1.0], [2.0], [4.0]], masked)):
        with pytest.raises(ValueError, match="must have no masked entries, got 1"):
            build()


@pytest.mark.parametrize("scale", [1e100, 1e300])
def test_values_of_any_size_end_in_a_fit_or_in_our_words(scale):
    def call():
        qbvi.fit(lambda theta: -scale * float(np.sum(theta**2)), qbvi.Normal(0, 1, shape=2), seed=1, max_evals=400)

    assert surface.why_raw(surface.exception_of(call), "log_likelihood") == ""


@pytest.mark.soak
def test_a_constant_function_under_a_flat_prior():  # q grows until its numbers overflow, after about 1,000 evaluations
    def call():
        qbvi.fit(lambda theta: 0.0, qbvi.Flat(2), seed=1, max_evals=2000)

    assert surface.why_raw(surface.exception_of(call), "log_likelihood") == ""


def test_ridge_needs_fresh_draws():
    with pytest.raises(ValueError, match="`n_fresh` must be at least 1, got 0"):
        qbvi.Ridge(n_fresh=0)
