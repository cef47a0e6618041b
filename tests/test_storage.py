"""Save and load: bit for bit, whole or not at all, and no code from a file."""

import io
import json
import os
import pickle
import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import stats

from hostile import Hostile
from hostile_files import declared, hostile_files
from qbvi import storage
from qbvi.distributions import (
    Dirichlet,
    Flat,
    InverseGamma,
    LogPrior,
    MultivariateNormal,
    Normal,
    SciPyPrior,
    Transformed,
    Uniform,
)
from qbvi.evaluate.failures import Failure
from qbvi.families import DiagonalGaussian, Gaussian, GaussianProduct
from qbvi.model import Model
from qbvi.results import Fit, Report, Trace
from qbvi.storage import load, save
from qbvi.supports import Bijection, Ordered, UserDefinedError
from surface import exception_of
from sweeps import sweep

PRIOR = {
    "beta": Normal([0.0, 1.0], 5),
    "sigma2": InverseGamma(3, 1),
    "rho": Uniform(-1, 1),
    "w": Dirichlet(np.ones(3)),
    "cut": Flat(2, Ordered()),
    "mu": MultivariateNormal([0.0, 1.0], [[2.0, 0.5], [0.5, 1.0]]),
    "shape": SciPyPrior(stats.weibull_min(1.5)),
}


def make_fit(prior=None, kind="full", **changes):
    model = Model(PRIOR if prior is None else prior)
    d, rng = model.dim, np.random.default_rng(5)
    half = d // 2
    families = {
        "full": Gaussian(d),
        "diagonal": DiagonalGaussian(d),
        "blocks": GaussianProduct(
            (Gaussian(d - half), DiagonalGaussian(half)), (tuple(range(half, d)), tuple(range(half)))
        ),
    }
    factor = rng.normal(size=(d, d)) / 3
    q = families[kind].from_moments(rng.normal(size=d), factor @ factor.T + np.eye(d) / 9)
    steps = rng.normal(size=(6, 7))
    trace = Trace(np.arange(1, 8), *steps[:5], rng.normal(size=(7, d)), rng.uniform(size=(7, d)))
    points = model.unflatten(rng.uniform(size=(2, len(model.labels))))
    point = {name: value[0] for name, value in points.items()} if model.is_named else points[0]
    failures = (
        Failure(point, "exception", "ValueError: né", "Traceback ...", 0.1, "pid 7", ("builtins.ValueError",)),
        Failure(point, "-inf", "returned -inf"),
    )
    words = {"stop_reason": "it settled — at last", "method": "auto", "notes": ("One.", "Two."), "seed": 2**100 + 1}
    numbers = {"elbo": -1 / 3, "elbo_se": 0.1, "khat": -np.inf, "converged": True, "n_evals": 77, "n_iterations": 7}
    numbers |= {"evidence": -0.25, "evidence_se": np.inf, "missing": 1 / 12, "missing_se": 0.01}
    report = Report(
        **{**words, **numbers, "failures": failures, "trace": trace, "seconds": 0.3, "khat_draws": 500, **changes}
    )
    return Fit(model, families[kind], q, report)


def assert_same(one, other):
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_array_equal(one[name], other[name])
    else:
        assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["full", "diagonal", "blocks"])
@pytest.mark.parametrize("prior", [None, Normal(0, 1, shape=(2, 2))], ids=["named", "unnamed"])
def test_round_trip_bit_for_bit(tmp_path, kind, prior):
    fit = make_fit(prior, kind)
    fit.save(tmp_path / "fit.npz")
    back = load(tmp_path / "fit.npz")
    assert back.family == fit.family
    assert_array_equal(back.q, fit.q)
    for name in ("mean", "sd", "cov", "cov_matrix"):
        assert_same(getattr(back, name), getattr(fit, name))
    assert_same(back.sample(9, seed=3), fit.sample(9, seed=3))
    assert_array_equal(
        back.log_prob(fit.sample(9, seed=3), batched=True), fit.log_prob(fit.sample(9, seed=3), batched=True)
    )
    assert str(back.summary()) == str(fit.summary())
    assert repr(back) == repr(fit)
    u = np.random.default_rng(0).normal(size=(4, fit.model.dim))
    assert_array_equal(back.model.log_prior(u), fit.model.log_prior(u))


def test_report_comes_back_whole(tmp_path):
    fit = make_fit()
    save(fit, tmp_path / "fit")
    back = load(tmp_path / "fit")
    for name in Trace.names():
        assert_array_equal(back.trace[name], fit.trace[name])
        assert back.trace[name].dtype == fit.trace[name].dtype
    for name in (*storage._NUMBERS, *storage._WORDS):
        assert getattr(back.record, name) == getattr(fit.record, name)
        assert type(getattr(back.record, name)) is type(getattr(fit.record, name))
    for ours, theirs in zip(fit.failures, back.failures, strict=True):
        assert_same(ours.parameters, theirs.parameters)
        for name in ("kind", "message", "traceback", "seconds", "worker", "types"):
            assert getattr(ours, name) == getattr(theirs, name)


def test_nan_and_nothing(tmp_path):
    fit = make_fit(
        Normal(0, 1), "full", khat=np.nan, seed=None, failures=(), trace=Trace.empty(), notes=(), khat_draws=None
    )
    save(fit, tmp_path / "fit")
    back = load(tmp_path / "fit")
    assert np.isnan(back.khat)
    assert (back.seed, back.failures, len(back.trace), back.notes) == (None, (), 0, ())


@pytest.mark.parametrize("name", ["fit.npz", "fit", "my.fit.v2", "fit.qbvi"])
def test_path_is_kept_and_replaced_whole(tmp_path, name):
    path = tmp_path / name
    save(make_fit(elbo=-1.0), str(path))
    save(make_fit(elbo=-2.0), path)
    assert os.listdir(tmp_path) == [name]
    assert load(str(path)).elbo == -2.0


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "fit"
    save(make_fit(elbo=-1.0), path)

    def full_disk(file, **arrays):
        file.write(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(storage.np, "savez", full_disk)
    with pytest.raises(OSError, match="no space"):
        save(make_fit(elbo=-2.0), path)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["fit"]
    assert load(path).elbo == -1.0


def squash(u):
    return np.tanh(u)


def test_user_defined_map_needs_the_prior_again(tmp_path):
    bounded = Transformed(Normal(0, 1, shape=2), Bijection(squash, np.arctanh))
    fit = make_fit({"a": Normal(0, 1), "b": bounded})
    save(fit, tmp_path / "fit")
    with pytest.raises(UserDefinedError, match=r"'b' has a user-defined map.*pass `prior=` to load"):
        load(tmp_path / "fit")
    for prior in ({"b": bounded}, {"a": Normal(0, 1), "b": bounded}):
        assert_same(load(tmp_path / "fit", prior=prior).sample(5, seed=1), fit.sample(5, seed=1))
    with pytest.raises(ValueError, match="must have the stored shape"):
        load(tmp_path / "fit", prior={"b": Normal(0, 1, shape=3)})


def test_user_defined_density_is_needed_only_to_evaluate_it(tmp_path):
    fit = make_fit(LogPrior(lambda x: -np.abs(x).sum(), shape=3))
    save(fit, tmp_path / "fit")
    back = load(tmp_path / "fit")
    assert_same(back.mean, fit.mean)
    with pytest.raises(UserDefinedError, match="pass `prior=` when loading"):
        back.model.log_prior(np.zeros((1, 3)))


@pytest.mark.parametrize("place", ["header", "q", "extra"])
def test_no_code_runs_from_a_hostile_file(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    save(make_fit(), "fit")
    with np.load("fit") as archive:
        arrays = dict(archive)
    np.savez("hostile.npz", **{**arrays, place: np.array([Hostile()], dtype=object)})
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(Hostile()))
    for path in ("hostile.npz", "pickle.npz"):
        with pytest.raises(ValueError, match=r"not written by qbvi.save|not a file written by"):
            load(path)
    assert not (tmp_path / "hacked").exists()


def test_truncated_file(tmp_path):
    save(make_fit(), tmp_path / "fit")
    whole = (tmp_path / "fit").read_bytes()
    for size in (1, 100, len(whole) // 2, len(whole) - 10):
        (tmp_path / "cut").write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"'.*cut' (cannot be read|is not a file written by)"):
            load(tmp_path / "cut")


def test_flipped_bits_are_noticed(tmp_path):
    save(make_fit(), tmp_path / "fit")
    with np.load(tmp_path / "fit") as archive:
        q = archive["q"].tobytes()
    whole = bytearray((tmp_path / "fit").read_bytes())
    whole[whole.index(q) + 5] ^= 1
    (tmp_path / "fit").write_bytes(whole)
    with pytest.raises(ValueError, match=r"cannot be read.*CRC"):
        load(tmp_path / "fit")


def archive_of(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def as_header(content):
    return np.frombuffer(json.dumps(content).encode(), dtype=np.uint8)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello, world",
        archive_of(x=np.ones(3)),
        archive_of(header=np.ones(3)),
        archive_of(header=as_header({"format": "other"})),
        archive_of(header=as_header([1, 2])),
    ],
    ids=["empty", "text", "npz", "numbers", "other", "list"],
)
def test_not_a_qbvi_file(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=r"file' is not a file written by qbvi.save"):
        load(tmp_path / "file")


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing")


def test_newer_schema(tmp_path):
    header = {"format": "qbvi-fit", "schema": 99, "written_by": "9.0"}
    (tmp_path / "file").write_bytes(archive_of(header=as_header(header)))
    with pytest.raises(ValueError, match=r"schema 99, written by qbvi 9\.0; this version reads schema 1: update qbvi"):
        load(tmp_path / "file")


@pytest.mark.parametrize("missing", ["q", "numbers", "trace_elbo", "failure_seconds"])
def test_contents_that_do_not_fit_together(tmp_path, missing):
    save(make_fit(), tmp_path / "fit")
    with np.load(tmp_path / "fit") as archive:
        arrays = dict(archive)
    for damaged in ({k: v for k, v in arrays.items() if k != missing}, {**arrays, missing: np.ones((3, 3))}):
        (tmp_path / "damaged").write_bytes(archive_of(**damaged))
        with pytest.raises(ValueError, match="its contents do not fit together"):
            load(tmp_path / "damaged")


def test_facts_are_kept_beside_a_fit_and_do_not_touch_it(tmp_path):
    fit, facts = make_fit(), {"rows": 12, "names": ["a", "é"], "scale": 0.1, "none": None}
    save(fit, tmp_path / "with.npz", facts=facts)
    save(fit, tmp_path / "without.npz")
    assert storage.read_facts(tmp_path / "with.npz") == facts
    assert storage.read_facts(tmp_path / "without.npz") == {}
    assert_array_equal(load(tmp_path / "with.npz").q, fit.q)
    with pytest.raises(TypeError, match="JSON"):
        save(fit, tmp_path / "code.npz", facts={"f": print})
    assert not (tmp_path / "code.npz").exists()


@pytest.mark.parametrize("shape", [[10**9], [10**5, 10**5], [10**30], [30]])
def test_a_file_cannot_declare_more_than_it_holds(tmp_path, shape):
    save(make_fit(), tmp_path / "fit")
    (tmp_path / "fit").write_bytes(declared((tmp_path / "fit").read_bytes(), beta=shape))
    tracemalloc.start()
    try:
        with pytest.raises(
            ValueError, match=r"do not fit together: its priors declare [\d,]+ values, its arrays have 12"
        ):
            load(tmp_path / "fit")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


# By seed, 100 files each: five kinds of changes to words, arrays and bytes.
@pytest.mark.parametrize("seed", sweep(range(30), first=1))
def test_a_hostile_file_is_refused_in_our_words_or_gives_a_fit_that_works(tmp_path, monkeypatch, seed):
    monkeypatch.chdir(tmp_path)
    save(make_fit(), "fit")
    refused = 0
    for name, content in hostile_files((tmp_path / "fit").read_bytes(), 100, seed):
        (tmp_path / "changed").write_bytes(content)
        error = exception_of(lambda: load("changed"))
        if error is not None:
            assert isinstance(error, ValueError), (name, error)
            assert str(error).startswith("'changed' "), name
            refused += 1
            continue
        fit = load("changed")
        with np.errstate(all="ignore"):  # numbers of 1e308 are no damage
            assert repr(fit), name
            assert str(fit.summary()), name
            assert repr(fit.failures), name
            assert repr(fit.trace), name
            fit.sample(3, seed=1)
            fit.save("again")
    assert refused > 70
    assert not (tmp_path / "hacked").exists()
