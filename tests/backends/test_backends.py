"""The same fit on every array library: same draws, same steps, same bookkeeping; and a clear error for what does not go there."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

import qbvi
import qbvi.chunks
import qbvi.run
from qbvi.arrays import array_namespace
from qbvi.backends import BACKENDS, BackendError, find_backend
from qbvi.chunks import CompiledSteps
from qbvi.evaluate.on_device import DeviceBox, DeviceFunction, Identity
from qbvi.evaluate.policy import replace_failed

pytestmark = pytest.mark.backends

PAGE = Path(__file__).resolve().parents[2] / "docs" / "backends.md"
SHORT = qbvi.QBVI(n_samples=20, stop=qbvi.MaxIterations(12), n_fresh=50)
RNG = np.random.default_rng(3)
X = RNG.standard_normal((60, 3))
Y = (X @ np.array([1.0, -1.0, 0.5]) + RNG.logistic(size=60) > 0) * 1.0


def library(name):
    """The backend, or a skip with the reason."""
    try:
        return find_backend(name)
    except (ImportError, BackendError) as error:
        pytest.skip(str(error))


@pytest.fixture(params=["jax", "torch", "cupy"])
def backend(request):
    library(request.param)
    return request.param


@pytest.fixture
def on_jax():
    return library("jax")


def like(theta, *arrays):
    xp = array_namespace(theta)
    return [
        xp.asarray(a, dtype=theta.dtype, device=None if xp.__name__ == "jax.numpy" else theta.device) for a in arrays
    ]


def softplus(eta):
    xp = array_namespace(eta)
    return xp.log(1 + xp.exp(-xp.abs(eta))) + xp.where(eta > 0, eta, 0 * eta)


def logistic(beta):
    x, y = like(beta, X.T, Y)
    eta = beta @ x
    return array_namespace(beta).sum(eta * y - softplus(eta), axis=-1)


def stacked_logistic(beta):
    return logistic(beta)


def scaled_regression(p):
    """Named and constrained: coefficients with a spread of their own, and a positive scale."""
    x, y = like(p["beta"], X.T, Y)
    xp = array_namespace(p["beta"])
    residual = (y - p["beta"] @ x) / p["sigma"][..., None]
    return -0.5 * xp.sum(residual**2, axis=-1) - 60 * xp.log(p["sigma"])


def rowwise_logistic(beta, rows):
    eta = beta @ rows["x"].T
    return array_namespace(beta).sum(eta * rows["y"] - softplus(eta), axis=-1)


NORMAL = qbvi.Normal(0, 5**0.5, shape=3)
CASES = {
    "residual, full, mapped": (logistic, {"prior": NORMAL, "vectorized": False}),
    "control variate, diagonal, stacked": (
        stacked_logistic,
        {
            "prior": NORMAL,
            "family": "diagonal",
            "vectorized": True,
            "method": qbvi.paper(n_samples=20, stop=qbvi.MaxIterations(12), n_fresh=50),
        },
    ),
    "named, constrained, blocks": (
        scaled_regression,
        {
            "prior": {"beta": qbvi.Normal(0, 2, shape=3), "sigma": qbvi.LogNormal(0, 1)},
            "family": [["beta"], ["sigma"]],
            "vectorized": False,
        },
    ),
    "low rank": (
        stacked_logistic,
        {
            "prior": NORMAL,
            "family": qbvi.LowRank(rank=1),
            "vectorized": True,
            "method": qbvi.LowRankRegression(n_samples=64, n_remembered=256, n_fresh=50),
            "max_evals": 600,
        },
    ),
    "mini-batches": (
        rowwise_logistic,
        {"prior": NORMAL, "data": {"x": X, "y": Y}, "batch_size": 20, "vectorized": True},
    ),
}


def fitted(function, **options):
    return qbvi.fit(function, **{"method": SHORT, "seed": 4, "vectorized": True} | options)


def assert_same(one, other, rtol=1e-8):
    """Posterior, bound and every step."""
    np.testing.assert_allclose(one.q, other.q, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(one.trace.elbo, other.trace.elbo, rtol=rtol)
    np.testing.assert_allclose(one.elbo, other.elbo, rtol=rtol)
    np.testing.assert_array_equal(one.trace.n_evals, other.trace.n_evals)
    assert (one.n_evals, len(one.trace), one.stop_reason) == (other.n_evals, len(other.trace), other.stop_reason)


# The same fit everywhere.


LONG = {"low rank"}  # compilation takes up to half a minute


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.soak] * (case in LONG)) for case in CASES])
def test_a_fit_is_the_same_on_every_backend(case, backend):
    function, options = CASES[case]
    if backend == "cupy":
        options = options | {"vectorized": True}
    # NumPy takes one point at a time where the others map: the function of stacked points is the same one here.
    there = fitted(function, backend=backend, **options)
    # Eigenvectors of nearly equal eigenvalues differ between libraries, and with them the rounding errors.
    assert_same(there, fitted(function, **options), rtol=1e-6 if case == "low rank" else 1e-8)
    assert there.record.backend == str(find_backend(backend))


def test_sobol_points_come_from_the_host_and_the_steps_run_on_the_backend(backend):
    method = qbvi.QBVI(draws="sobol", n_samples=16, stop=qbvi.MaxIterations(4), n_fresh=50)
    options = {"prior": NORMAL, "method": method}
    assert_same(fitted(logistic, backend=backend, **options), fitted(logistic, **options))


def test_the_host_method_asks_a_function_on_the_backend(backend):
    options = {"prior": NORMAL, "method": qbvi.Regression(tol=0.1)}
    there = fitted(logistic, backend=backend, **options)
    np.testing.assert_allclose(there.mean, fitted(logistic, **options).mean, rtol=1e-6)
    assert there.record.backend.endswith("for the function, the loop on the host: Regression computes there")


def test_a_prior_of_scipy_keeps_the_loop_on_the_host(on_jax):
    prior = scipy.stats.skewnorm(2.0)
    options = {
        "prior": prior,
        "vectorized": False,
        "method": qbvi.QBVI(n_samples=10, stop=qbvi.MaxIterations(3), n_fresh=20),
    }
    there = fitted(lambda x: -(x**2), backend="jax", **options)
    np.testing.assert_allclose(there.q, fitted(lambda x: -(x**2), **options).q, rtol=1e-8)
    assert "the loop on the host: the prior computes there" in there.record.backend


def test_single_precision_loses_no_more_than_its_digits(backend):
    """Twelve steps of arithmetic with seven digits: the posterior moves by less than a thousandth of its width."""
    double = fitted(logistic, backend=backend, prior=NORMAL)
    single = fitted(logistic, backend=backend, dtype="float32", prior=NORMAL)
    assert single.record.backend.endswith("float32")
    np.testing.assert_allclose(single.mean, double.mean, atol=1e-3 * double.sd.min())
    np.testing.assert_allclose(single.sd, double.sd, rtol=1e-3)
    assert abs(single.elbo - double.elbo) < 1e-2


def test_a_dtype_may_be_the_librarys_own():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert (
        find_backend("torch", dtype=torch.float32).dtype == find_backend("torch", dtype=np.float32).dtype == "float32"
    )


def test_noise_is_told_on_the_backend(backend):
    def noisy(beta):
        value = logistic(beta)
        return value, 0 * value + 2.0

    assert_same(fitted(noisy, backend=backend, prior=NORMAL), fitted(logistic, prior=NORMAL))


def test_a_function_may_overwrite_its_argument_on_torch():
    library("torch")

    def careless(beta):
        value = logistic(beta)
        beta.zero_()
        return value

    assert_same(fitted(careless, backend="torch", prior=NORMAL), fitted(logistic, prior=NORMAL))


def test_very_many_dimensions_leave_no_trace_of_mean_and_sd():
    method = qbvi.QBVI(n_samples=4, stop=qbvi.MaxIterations(2), n_fresh=4)
    wide = qbvi.fit(
        lambda x: -0.5 * np.sum(x**2, -1),
        qbvi.Normal(0, 1, shape=10_001),
        family="diagonal",
        vectorized=True,
        method=method,
        seed=1,
    )
    assert wide.trace.mean.shape == wide.trace.sd.shape == (2, 0)


# Compiled chunks.


@pytest.mark.parametrize("longest", [1, 5])
def test_the_length_of_chunks_changes_nothing(longest, on_jax, monkeypatch):
    whole = fitted(logistic, backend="jax", prior=NORMAL)
    monkeypatch.setattr("qbvi.chunks._LONGEST", longest)
    assert_same(fitted(logistic, backend="jax", prior=NORMAL), whole, rtol=1e-12)


def test_chunks_and_single_steps_come_to_the_same(on_jax):
    """What is done about failures by a dict is the host's business, so that each step comes back."""
    stepped = fitted(logistic, backend="jax", prior=NORMAL, on_failure={"nan": "exclude"})
    assert_same(stepped, fitted(logistic, backend="jax", prior=NORMAL), rtol=1e-10)


@pytest.mark.parametrize(
    ("stop", "max_evals"),
    [(qbvi.Patience(5), None), (qbvi.ParameterChange(0.2, steps=9), None), (qbvi.MaxIterations(300), 733)],
    ids=["patience", "parameter change", "budget"],
)
def test_rules_stop_a_compiled_loop_where_they_stop_a_stepped_one(stop, max_evals, on_jax):
    method = qbvi.QBVI(n_samples=20, window=10, n_fresh=50, stop=stop)
    options = {"prior": NORMAL, "method": method, "max_evals": max_evals}
    assert_same(fitted(logistic, backend="jax", **options), fitted(logistic, **options))


def compilations(jax):
    """A list that grows by one name with every program that XLA compiles."""
    counted = []

    def listen(event, _, **__):
        if event == "/jax/core/compile/backend_compile_duration":
            counted.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return counted


def test_large_arrays_that_a_function_captured_are_not_compiled_into_it(on_jax):
    import jax

    with on_jax.active():
        x = jax.numpy.arange(2.0**18)
        function = DeviceFunction(Identity(lambda b: b[:, 0] * x[-1]), True, on_jax)
        points = on_jax.put(np.ones((2, 1)))
        compiled = on_jax.compiled(function, "__call__")
        assert len(compiled.lower(points, ()).as_text()) < 5000
        np.testing.assert_array_equal(compiled(points, ())[0], 2.0**18 - 1)


def test_a_second_fit_begins_with_long_chunks(on_jax, monkeypatch):
    """The first one has measured a step; its own chunks double in length."""
    advance, lengths = CompiledSteps._advance, []

    def watched(self, state, steps, inputs):
        lengths.append(steps)
        return advance(self, state, steps, inputs)

    monkeypatch.setattr(CompiledSteps, "_advance", watched)
    monkeypatch.setattr(qbvi.chunks, "_PACES", {})
    monkeypatch.setattr(qbvi.chunks, "_CHUNK_SECONDS", 1e3)
    first, second = (fitted(logistic, backend="jax", prior=NORMAL) for _ in range(2))
    assert lengths[:4] == [1, 2, 4, 5]
    assert sum(lengths[4:]) == 12
    assert max(lengths[4:]) > 8
    np.testing.assert_array_equal(second.trace.elbo, first.trace.elbo)


def test_a_second_fit_compiles_nothing(on_jax):
    import jax

    options = {"prior": {"beta": qbvi.Normal(0, 2, shape=3)}, "backend": "jax", "batch_size": 20}
    counted = compilations(jax)
    fitted(lambda_of_names, data={"x": X, "y": Y}, **options)
    first = len(counted)
    fitted(lambda_of_names, data={"x": X + 1, "y": Y}, **options | {"seed": 7, "max_evals": 150})
    assert first > 0
    assert len(counted) == first


def lambda_of_names(p, rows):
    return rowwise_logistic(p["beta"], rows)


def test_nothing_goes_to_the_host_inside_a_chunk(on_jax, monkeypatch):
    import jax

    advance, programs = CompiledSteps._advance, []

    def guarded(self, state, steps, inputs):
        program = self._engine.backend.compiled(self._core, "advance")
        there = self._engine.number(steps)
        programs.append(program.lower(state, there, inputs).as_text())
        with jax.transfer_guard("disallow_explicit"):
            program(state, there, inputs)
        return advance(self, state, steps, inputs)

    monkeypatch.setattr(CompiledSteps, "_advance", guarded)
    fitted(logistic, backend="jax", prior=NORMAL)
    assert "while" in programs[0]
    assert not any(
        word in program for program in programs for word in ("callback", "infeed", "outfeed", "host_compute")
    )


def test_the_flag_for_double_precision_is_left_alone(on_jax):
    import jax

    seen = []

    def watched(beta):
        seen.append(beta.dtype)
        return logistic(beta)

    fitted(watched, backend="jax", prior=NORMAL)
    assert {str(dtype) for dtype in seen} == {"float64"}
    assert str(jax.numpy.ones(1).dtype) == "float32"
    assert not jax.config.jax_enable_x64


def test_a_callback_hears_of_every_step(on_jax):
    heard, other = [], []
    fitted(logistic, backend="jax", prior=NORMAL, callback=heard.append)
    fitted(logistic, prior=NORMAL, callback=other.append)
    np.testing.assert_allclose([i.mean for i in heard], [i.mean for i in other], rtol=1e-8)
    assert len(heard) == 12


def test_an_interruption_returns_what_there_is(on_jax, monkeypatch):
    advance, calls = CompiledSteps._advance, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return advance(self, *arguments)

    monkeypatch.setattr(CompiledSteps, "_advance", interrupted)
    monkeypatch.setattr(qbvi.chunks, "_PACES", {})  # short chunks first: no earlier fit has measured a step
    fit = fitted(logistic, backend="jax", prior=NORMAL)
    assert fit.stop_reason == "interrupted (Ctrl-C) before the fit settled"
    assert 3 <= len(fit.trace) < 12
    expected = fitted(logistic, prior=NORMAL).trace.elbo[: len(fit.trace)]
    np.testing.assert_allclose(fit.trace.elbo, expected, rtol=1e-8)


def test_a_time_limit_ends_a_compiled_loop(on_jax):
    endless = qbvi.QBVI(n_samples=20, stop=qbvi.MaxIterations(10**6), n_fresh=20)
    fit = fitted(logistic, backend="jax", prior=NORMAL, method=endless, max_time=1.0)
    assert "the time limit of" in fit.stop_reason


# Checkpoints.


@pytest.mark.parametrize("batch_size", [None, 20])
def test_a_run_that_was_interrupted_goes_on_to_the_same_result(backend, batch_size, tmp_path, monkeypatch):
    options = {"backend": backend, "prior": NORMAL, "data": {"x": X, "y": Y}, "batch_size": batch_size}
    whole = fitted(rowwise_logistic, **options)
    record, recorded = qbvi.run.Run._record, []

    def interrupted(self, *arguments):
        recorded.append(1)
        if len(recorded) == 6:
            raise KeyboardInterrupt
        record(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(qbvi.run.Run, "_record", interrupted)
        part = fitted(rowwise_logistic, checkpoint=tmp_path / "run", **options)
    assert len(part.trace) < 12
    assert_same(fitted(rowwise_logistic, checkpoint=tmp_path / "run", **options), whole, rtol=1e-13)


# Failures.


def failing(beta):
    """NaN at about one point in six."""
    xp = array_namespace(beta)
    return xp.where(beta[..., 0] > 1.8, xp.nan * beta[..., 0], logistic(beta))


@pytest.mark.parametrize("policy", ["exclude", "floor", {"nan": "floor"}], ids=str)
def test_failures_are_left_out_or_filled_in_as_on_the_host(policy, backend):
    there = fitted(failing, backend=backend, prior=NORMAL, on_failure=policy)
    here = fitted(failing, prior=NORMAL, on_failure=policy)
    assert_same(there, here)
    assert there.n_failed == here.n_failed > 0
    for one, other in zip(there.failures, here.failures, strict=True):
        assert one.kind == other.kind == "nan"
        np.testing.assert_allclose(one.parameters, other.parameters, rtol=1e-8)


def test_the_first_failure_is_named_and_the_fit_before_it_kept(backend):
    def late(beta):
        xp = array_namespace(beta)
        return xp.where(xp.abs(beta[..., 0] - 1.5) < 0.002, xp.inf * (1 + beta[..., 0] ** 2), logistic(beta))

    errors = {}
    for name in ("numpy", backend):
        with pytest.raises(qbvi.EvaluationError, match=r"gave Failure\(\+inf after .* on_failure") as caught:
            fitted(late, backend=name, prior=NORMAL, method=qbvi.QBVI(n_samples=20, stop=qbvi.MaxIterations(60)))
        errors[name] = caught.value
    assert len(errors["numpy"].fit.trace) > 3
    assert len(errors["numpy"].fit.trace) == len(errors[backend].fit.trace)
    np.testing.assert_allclose(errors["numpy"].failure.parameters, errors[backend].failure.parameters, rtol=1e-8)
    np.testing.assert_allclose(errors["numpy"].fit.q, errors[backend].fit.q, rtol=1e-8)


def test_a_function_that_is_finite_nowhere_ends_the_fit(backend):
    with pytest.raises(qbvi.EvaluationError, match="none of the points of the last 10 steps"):
        fitted(lambda b: logistic(b) * float("nan"), backend=backend, prior=NORMAL, on_failure="exclude")


@pytest.mark.parametrize("policy", ["exclude", "floor"])
@pytest.mark.parametrize("failed", [[1], [0, 2], [0, 1, 2]])
def test_failed_points_are_replaced_on_a_device_as_on_the_host(policy, failed, xp):
    from qbvi.evaluate import BlackBox

    values = np.array([-1.0, -4.0, -2.0])
    values[failed] = np.nan
    box = BlackBox(lambda x: x[:, 0], vectorized=True, on_failure=policy)
    expected = box(values[:, None])
    filled = replace_failed(policy, xp.asarray(values), xp.isfinite(xp.asarray(values)))
    np.testing.assert_allclose(np.asarray(filled), expected.values)
    np.testing.assert_array_equal(expected.ok, np.isfinite(values))


def test_a_step_out_of_the_domain_ends_a_compiled_loop_as_a_stepped_one(on_jax):
    method = qbvi.QBVI(step="plain", learning_rate=0.9, n_samples=20, stop=qbvi.MaxIterations(40))
    ends = []
    for name in ("numpy", "jax"):
        with pytest.raises(qbvi.DomainError) as caught:
            fitted(logistic, backend=name, prior=NORMAL, method=method)
        ends.append(len(caught.value.fit.trace))
    assert ends[0] == ends[1]


# Memory.


@pytest.mark.parametrize("vectorized", [True, False])
def test_draws_are_split_so_that_a_call_fits_into_memory(backend, vectorized, monkeypatch):
    if backend == "cupy":
        pytest.skip("CuPy says so itself when it has no memory left")
    sizes = []

    def watched(beta):
        sizes.append(beta.shape)
        return logistic(beta)

    box = DeviceBox(watched, vectorized, backend=find_backend(backend))
    with box.backend.active():
        points = box.backend.put(np.zeros((20, 3)))
        box.plan(points, ())
        assert box.likelihood.block is None
        monkeypatch.setattr(type(box.backend), "free_bytes", lambda _: 8 * 60 * 13.0)  # predictors of a few points
        box.plan(points, ())
    assert 1 <= box.likelihood.block < 20
    values = box(points).values
    np.testing.assert_allclose(box.backend.to_host(values), logistic(np.zeros((20, 3))))
    if vectorized:
        assert max(shape[0] for shape in sizes[-2:]) <= box.likelihood.block


def test_fresh_draws_are_made_in_parts_where_they_are_many(monkeypatch):
    """Three parts of sixteen draws in place of fifty at once; the bound is that of all of them."""
    whole = fitted(logistic, prior=NORMAL)
    monkeypatch.setattr(qbvi.run, "_LOOK_NUMBERS", 60)
    sizes = []

    def watched(beta):
        sizes.append(len(beta))
        return logistic(beta)

    parted = fitted(watched, prior=NORMAL)
    assert sizes[-3:] == [16, 16, 16]
    assert parted.record.khat_draws == 48
    np.testing.assert_array_equal(parted.q, whole.q)
    assert abs(parted.elbo - whole.elbo) < 5 * np.hypot(parted.elbo_se, whole.elbo_se)


def test_a_device_without_memory_is_asked_for_less_and_less():
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def greedy(beta):
        if beta.shape[0] > 6:
            raise torch.cuda.OutOfMemoryError
        return logistic(beta)

    box = DeviceBox(greedy, True, backend=find_backend("torch"))
    assert box(torch.zeros((20, 3), dtype=torch.float64)).values.shape == (20,)
    assert box.likelihood.block == 5
    assert box.n_evals == 20


def test_a_number_of_points_for_each_call_is_kept_to(backend):
    sizes = set()

    def watched(beta):
        sizes.add(beta.shape[0])
        return logistic(beta)

    assert_same(fitted(watched, backend=backend, prior=NORMAL, vectorized=8), fitted(logistic, prior=NORMAL))
    assert max(sizes) == 8


# What does not go there.


def test_an_unknown_backend_suggests_the_nearest():
    with pytest.raises(
        ValueError, match=r"`backend` must be one of 'numpy', 'jax', 'torch', 'cupy'.*did you mean 'torch'\?"
    ):
        fitted(logistic, prior=NORMAL, backend="pytorch")
    with pytest.raises(TypeError, match=r"`backend` must be one of .* got int"):
        fitted(logistic, prior=NORMAL, backend=3)


@pytest.mark.parametrize("name", ["jax", "torch", "cupy"])
def test_a_missing_library_names_what_to_install(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, BACKENDS[name][0], raising=False)
    with pytest.raises(ImportError, match=rf"`backend` '{name}' needs a library .*pip install 'qbvi\[{name}\]'"):
        fitted(logistic, prior=NORMAL, backend=name)


def test_a_device_that_is_not_there_lists_those_that_are(backend):
    with pytest.raises(
        BackendError, match=rf"`device` must be one that {backend} finds here \('\w+(:\d)?'.*got 'abacus:7'"
    ):
        fitted(logistic, prior=NORMAL, backend=backend, device="abacus:7")


def test_numpy_has_one_device_and_one_precision():
    with pytest.raises(BackendError, match="`device` must be one that numpy finds here"):
        fitted(logistic, prior=NORMAL, device="cuda")
    with pytest.raises(BackendError, match="`dtype` must be 'float64' with backend='numpy'"):
        fitted(logistic, prior=NORMAL, dtype="float32")


@pytest.mark.parametrize("dtype", ["int32", "complex128", np.int64])
def test_parameters_are_real_numbers(dtype):
    with pytest.raises(ValueError, match="`dtype` must be 'float64' or 'float32', got"):
        fitted(logistic, prior=NORMAL, backend="jax", dtype=dtype)


@pytest.mark.parametrize("vectorized", [True, False])
def test_another_librarys_array_is_refused(backend, vectorized):
    if backend == "cupy" and not vectorized:
        pytest.skip("CuPy maps nothing")

    def foreign(beta):
        return np.zeros(beta.shape[:-1])

    with pytest.raises(ValueError, match=rf"`log_likelihood` must return arrays of {backend}.*got numpy"):
        fitted(foreign, prior=NORMAL, backend=backend, vectorized=vectorized)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda b: logistic(b)[:5], r"must return shape \(20,\) for 20 points, got \(5,\)"),
        (lambda b: b, r"must return shape \(20,\) for 20 points, got \(20, 3\)"),
        (lambda b: logistic(b) > 0, "must return floating-point numbers, got"),
        (
            lambda b: array_namespace(b).astype(logistic(b), array_namespace(b).int32),
            "must return floating-point numbers, got",
        ),
    ],
    ids=["too few", "not summed", "truth values", "integers"],
)
def test_what_a_function_returns_is_one_number_for_each_point(wrong, message, backend):
    with pytest.raises(ValueError, match=f"`log_likelihood` {message}"):
        fitted(wrong, prior=NORMAL, backend=backend)


def test_one_point_gives_one_number(backend):
    if backend == "cupy":
        with pytest.raises(BackendError, match=r"CuPy cannot map a function of one point.*vectorized=True"):
            fitted(logistic, prior=NORMAL, backend=backend, vectorized=False)
        return
    with pytest.raises(ValueError, match=r"must return one number for each point, got an array of shape \(3,\)"):
        fitted(lambda b: b, prior=NORMAL, backend=backend, vectorized=False)


def test_numpy_inside_of_a_compiled_function_is_explained(on_jax):
    with pytest.raises(BackendError, match=r"`log_likelihood` must compute with jax.numpy .* replace np\. by jnp"):
        fitted(lambda b: np.sum(np.exp(b)), prior=NORMAL, backend="jax", vectorized=False)


def test_decisions_by_values_are_explained(backend):
    if backend == "cupy":
        pytest.skip("CuPy neither maps nor compiles")

    def decides(beta):
        return logistic(beta) if beta[0] > 0 else 2 * logistic(beta)

    with pytest.raises(BackendError, match=r"`log_likelihood` must not branch on values .*where"):
        fitted(decides, prior=NORMAL, backend=backend, vectorized=False)


def test_tensors_on_another_device_are_explained():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    elsewhere = torch.ones(3, dtype=torch.float64, device="meta")
    with pytest.raises(BackendError, match=r"must have all their tensors on cpu.*\.to\('cpu'\)"):
        fitted(lambda b: torch.sum(b * elsewhere, -1), prior=NORMAL, backend="torch")
    with pytest.raises(BackendError, match="`data` must be where the fit is, on cpu, got an array on meta"):
        fitted(lambda b, _: b[:, 0], prior=NORMAL, backend="torch", data=elsewhere)


def test_tensors_of_another_precision_are_explained():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.ones((3, 3), dtype=torch.float32)
    with pytest.raises(BackendError, match=r"must compute in float64.*\.to\(torch.float64\)"):
        fitted(lambda b: torch.sum(b @ x, -1), prior=NORMAL, backend="torch")


def test_arrays_of_numpy_between_tensors_are_explained():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(BackendError, match=r"must compute with torch .* mixes in arrays of NumPy"):
        fitted(lambda b: torch.sum(torch.matmul(b, X.T), -1), prior=NORMAL, backend="torch")


def test_arrays_on_another_jax_device_are_explained(on_jax):
    """Needs two devices, which a CPU has only in a process that was started so."""
    script = """
        import jax, qbvi
        here, there = jax.devices()
        x = jax.device_put(jax.numpy.ones(3), there)
        method = qbvi.QBVI(n_samples=4, stop=qbvi.MaxIterations(1), n_fresh=4)
        for function, data in ((lambda b: jax.numpy.sum(b * x, -1), None), (lambda b, y: b @ y, x)):
            try:
                qbvi.fit(function, qbvi.Normal(0, 1, shape=3), vectorized=True, data=data, method=method, backend="jax", device="cpu:0")
            except qbvi.BackendError as error:
                print(error)
        print(qbvi.fit(lambda b: b @ x, qbvi.Normal(0, 1, shape=3), vectorized=True, method=method, backend="jax", device="cpu:1").record.backend)
    """
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=env, capture_output=True, text=True, check=False
    )
    captured, data, fine = done.stdout.splitlines() or [done.stderr] * 3
    assert "`log_likelihood` must have all its arrays on" in captured
    assert "`data` must be where the fit is" in data
    assert fine.startswith("jax on")
    assert "1, float64" in fine


@pytest.mark.parametrize("limit", [{"executor": 2}, {"timeout": 1.0}])
def test_other_processes_do_not_go_with_a_device(limit, backend):
    with pytest.raises(ValueError, match=rf"`{next(iter(limit))}` must not be combined with backend='{backend}'"):
        fitted(logistic, prior=NORMAL, backend=backend, **limit)


def test_values_that_look_like_densities_are_remarked_on(backend):
    with pytest.warns(UserWarning, match="is `log_likelihood` a likelihood"):
        fitted(lambda b: array_namespace(b).exp(-array_namespace(b).sum(b**2, axis=-1)), prior=NORMAL, backend=backend)


def test_what_is_compiled_goes_by_equality_where_there_is_one():
    assert Identity((1, 2)) == Identity((1, 2))
    assert Identity([1]) != Identity([1])
    function = logistic
    one, other = (DeviceFunction(Identity(function), True, find_backend("numpy")) for _ in range(2))
    assert hash(one) == hash(other)
    assert one == other


def test_the_page_about_backends_runs_word_for_word(capsys):
    for name in ("jax", "torch"):
        library(name)
    namespace = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), namespace)  # noqa: S102 - our own text
    assert capsys.readouterr().out.startswith("jax on")


# What a function reads besides its arguments.


def test_a_function_that_reads_other_numbers_is_compiled_again(on_jax):
    """A global that is set anew, and an array that is written to: the second fit is of the second data."""
    import jax.numpy as jnp

    seen = {"y": np.array([1.0, 2.0, 3.0])}
    held = np.array([1.0, 2.0, 3.0])

    def looked_up(theta):
        return -0.5 * jnp.sum((seen["y"] - theta) ** 2)

    def captured(theta):
        return -0.5 * jnp.sum((held - theta) ** 2)

    before = [fitted(f, prior=qbvi.Normal(0, 10), backend="jax", vectorized=False).mean for f in (looked_up, captured)]
    seen["y"] = seen["y"] + 5
    held += 5
    after = [fitted(f, prior=qbvi.Normal(0, 10), backend="jax", vectorized=False).mean for f in (looked_up, captured)]
    assert np.all(np.array(after) - np.array(before) > 3)


def test_an_exception_does_not_shrink_later_calls():
    torch = library("torch")
    assert torch
    sizes = []

    def shaky(beta):
        sizes.append(len(beta))
        if len(sizes) in (5, 6, 7):
            msg = "not today"
            raise RuntimeError(msg)
        return logistic(beta)

    options = {"prior": NORMAL, "method": qbvi.Regression(tol=0.1), "on_failure": "exclude"}
    fitted(shaky, backend="torch", **options)
    assert max(sizes[-3:]) >= 8


def test_parameter_change_needs_means():
    method = qbvi.QBVI(n_samples=4, stop=qbvi.ParameterChange(0.01, 3), n_fresh=4)
    with pytest.raises(ValueError, match="ParameterChange up to 10,000 dimensions"):
        qbvi.fit(
            lambda x: -np.sum(x**2, -1),
            qbvi.Normal(0, 1, shape=10_001),
            family="diagonal",
            method=method,
            vectorized=True,
        )


def test_what_was_compiled_can_be_let_go(on_jax):
    from qbvi.backends import on_jax as module

    fitted(logistic, prior=NORMAL, backend="jax", vectorized=False)
    assert module._jitted.cache_info().currsize
    qbvi.clear_cache()
    assert not module._jitted.cache_info().currsize
