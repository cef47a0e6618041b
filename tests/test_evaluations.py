"""Every point that a fit pays for is kept, and a later fit starts from it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import qbvi
from qbvi import Evaluations, storage
from qbvi.arrange import arrange
from qbvi.clusters import clusters, hills, log_density
from qbvi.earlier import Agreement, Earlier, Probed
from qbvi.evaluations import record as records
from qbvi.families import Gaussian
from qbvi.protocol import Known, Part
from qbvi.regression.rules import Rules, VarianceSearch
from qbvi.regression.store import Store

D = 3
X = np.random.default_rng(7).standard_normal((40, D)) @ np.array([[1, 0.6, 0], [0, 1, -0.5], [0, 0, 1]])
Y = X @ np.array([1.0, -2.0, 0.5]) + np.random.default_rng(8).standard_normal(40)
PRECISION = X.T @ X + np.eye(D)  # of the posterior with a standard normal prior and unit noise
MEAN = np.linalg.solve(PRECISION, X.T @ Y)
PRIOR = qbvi.Normal(0, 1, shape=D)
quick_fit = partial(qbvi.fit, family="full")  # the shape of the posterior does not matter here


def linear(beta):
    """A log-likelihood whose posterior is exactly N(MEAN, PRECISION^-1)."""
    return -0.5 * float(np.sum((Y - X @ beta) ** 2))


def skewed(beta):
    """Not Gaussian, so that a fit makes several steps."""
    return linear(beta) - float(np.sum(np.exp(0.7 * beta)))


NAMED = {"beta": qbvi.Normal(0, 2, shape=2), "sigma": qbvi.LogNormal(0, 1)}


def named(point):
    residual = (Y - X[:, :2] @ point["beta"]) / point["sigma"]
    return -0.5 * float(np.sum(residual**2)) - len(Y) * float(np.log(point["sigma"]))


class Counted:
    """A function that remembers where it was called."""

    def __init__(self, function):
        self.function, self.points = function, []

    def __call__(self, point):
        self.points.append(point.copy())
        return self.function(point)


def same(a, b):
    """Whether two tables agree to the last bit."""
    columns = ("points", "values", "noise_sd", "unconstrained", "log_prior", "stage", "batch")
    assert a.labels == b.labels
    for name in columns:
        assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


@pytest.fixture(scope="module")
def first():
    return quick_fit(skewed, PRIOR, seed=1)


def random_walk(log_density, start, n, seed=0):
    """An old chain: random-walk Metropolis, with the repeated points that rejections leave."""
    rng, at, factor = np.random.default_rng(seed), np.array(start), np.linalg.cholesky(np.linalg.inv(PRECISION))
    value, points, values = log_density(at), [], []
    for _ in range(n):
        proposal = at + factor @ rng.standard_normal(D)
        other = log_density(proposal)
        if np.log(rng.random()) < other - value:
            at, value = proposal, other
        points.append(at)
        values.append(value)
    return np.array(points), np.array(values)


# --- what a fit keeps


@pytest.mark.parametrize(("family", "stages"), [("full", {"step", "fresh"}), ("auto", {"step", "search"})])
def test_every_call_is_in_the_table_in_order(family, stages):
    function = Counted(skewed)
    fit = quick_fit(function, PRIOR, seed=1, family=family)
    table = fit.evaluations
    assert len(table) == fit.n_evals == len(function.points)
    assert_array_equal(table.points, function.points)
    assert_array_equal(table.log_likelihood, [skewed(point) for point in function.points])
    assert set(table.stage) == stages
    assert np.all(np.diff(table.batch) >= 0)
    assert table.ok.all()


def test_both_scales_and_names():
    fit = quick_fit(named, NAMED, seed=1)
    table = fit.evaluations
    assert table.labels == ("beta[0]", "beta[1]", "sigma")
    assert table.parameters["beta"].shape == (len(table), 2)
    assert_array_equal(table.parameters["sigma"], table.points[:, 2])
    assert_allclose(np.log(table.parameters["sigma"]), table.unconstrained[:, 2], rtol=1e-12)
    # The standard log-normal prior of sigma is a standard normal one of its logarithm.
    u = table.unconstrained
    expected = -0.5 * np.sum((u[:, :2] / 2) ** 2, axis=1) - 0.5 * u[:, 2] ** 2 - 1.5 * np.log(2 * np.pi) - 2 * np.log(2)
    assert_allclose(table.log_prior, expected, rtol=1e-12)
    assert_array_equal(table.log_joint, table.log_likelihood + table.log_prior)


def test_columns_cannot_be_overwritten(first):
    with pytest.raises(ValueError, match="read-only"):
        first.evaluations.points[0] = 0


def test_the_same_table_by_ask_and_by_an_executor(first):
    ask = qbvi.Ask(PRIOR, family="full", seed=1)
    while not ask.done:
        points = ask.ask()
        ask.tell(points[::-1], [skewed(point) for point in points[::-1]])
    same(ask.fit().evaluations, first.evaluations)
    with ThreadPoolExecutor(3) as pool:
        same(quick_fit(skewed, PRIOR, seed=1, executor=pool).evaluations, first.evaluations)


def test_a_search_of_the_prior_has_its_stage():
    """Between two modes the prior is searched; the evaluations of that fit start in the mode."""
    two_modes = lambda x: float(np.logaddexp(-0.5 * (x - 3) ** 2, -0.5 * (x + 3) ** 2 - 1))
    fit = qbvi.fit(two_modes, qbvi.Normal(0, 6), seed=1)
    assert "search" in fit.evaluations.stage
    assert len(fit.evaluations) == fit.n_evals
    again = qbvi.fit(two_modes, qbvi.Normal(0, 6), seed=4, evaluations=fit)
    assert "search" not in again.evaluations.stage


def test_failures_keep_what_the_function_returned():
    holes = lambda beta: np.nan if beta[0] > MEAN[0] + 0.2 else -np.inf if beta[1] > MEAN[1] + 0.3 else linear(beta)
    fit = quick_fit(holes, PRIOR, seed=1, on_failure="floor", max_evals=200)
    values = fit.evaluations.values
    assert np.isnan(values).any()
    assert np.isneginf(values).any()
    assert np.sum(~fit.evaluations.ok) == fit.n_failed
    assert_array_equal(values, [holes(point) for point in fit.evaluations.points])


def test_an_error_brings_the_points_of_the_failing_step():
    function = Counted(lambda beta: skewed(beta) if len(function.points) < 40 else np.nan)
    with pytest.raises(qbvi.EvaluationError) as caught:
        quick_fit(function, PRIOR, seed=1)
    assert_array_equal(caught.value.fit.evaluations.points, function.points)
    assert np.isnan(caught.value.fit.evaluations.values[-1])


def test_starts_are_joined():
    fit = quick_fit(skewed, PRIOR, seed=1, n_starts=2)
    assert len(fit.evaluations) == fit.n_evals
    again = quick_fit(skewed, PRIOR, seed=2, n_starts=2, evaluations=fit)
    assert np.sum(again.evaluations.stage == "given") == fit.n_evals
    assert len(again.evaluations) == fit.n_evals + again.n_evals


def test_noise_is_kept():
    rng = np.random.default_rng(1)
    fit = quick_fit(lambda b: (linear(b) + 0.3 * rng.standard_normal(), 0.3), PRIOR, seed=1, max_evals=300)
    assert_array_equal(fit.evaluations.noise_sd, np.full(fit.n_evals, 0.3))


def test_mini_batches_have_no_table():
    fit = qbvi.fit(
        lambda beta, rows: -0.5 * float(np.sum((rows[1] - rows[0] @ beta) ** 2)),
        PRIOR,
        data=(X, Y),
        batch_size=10,
        method=qbvi.QBVI(stop=qbvi.MaxIterations(3)),
        seed=1,
    )
    assert fit.evaluations is None
    with pytest.raises(ValueError, match="pass init=fit"):
        qbvi.fit(linear, PRIOR, evaluations=fit)


@pytest.mark.backends
def test_a_loop_on_a_device_has_no_table_but_takes_one(first):
    torch = pytest.importorskip("torch")
    x, y = torch.tensor(X), torch.tensor(Y)
    likelihood = lambda b: -0.5 * torch.sum((y - x @ b) ** 2) - torch.sum(torch.exp(0.7 * b))
    fit = qbvi.fit(likelihood, PRIOR, backend="torch", seed=1, evaluations=first)
    assert fit.evaluations is None
    assert any("Ridge uses them for its start" in note for note in fit.notes)
    assert_allclose(fit.mean, first.mean, atol=0.1 * first.sd.min())


def test_memory_is_limited_to_the_newest(monkeypatch, first):
    monkeypatch.setattr(records, "_MOST_NUMBERS", 50 * D)
    fit = quick_fit(skewed, PRIOR, seed=1, method=qbvi.Regression(n_fresh=20))
    kept, n = fit.evaluations, len(fit.evaluations)
    assert n <= 50
    assert kept.stage[-1] == "fresh"
    assert f"the oldest {fit.n_evals - n:,} points" in " ".join(fit.notes)


# --- interruptions


class Dies(Counted):
    """Interrupted at one of its calls."""

    def __init__(self, function, at):
        super().__init__(function)
        self.at = at

    def __call__(self, point):
        if len(self.points) == self.at:
            self.at = -1
            raise KeyboardInterrupt
        return super().__call__(point)


@pytest.mark.parametrize("at", [1, 30, 60, 100])
@pytest.mark.parametrize("is_given", [False, True])
def test_a_resumed_run_has_the_same_table(tmp_path, first, at, is_given):
    given = {"evaluations": first} if is_given else {}
    whole = quick_fit(skewed, PRIOR, seed=5, **given)
    function = Dies(skewed, at)
    for _ in range(3):
        try:
            fit = quick_fit(function, PRIOR, seed=5, checkpoint=tmp_path / "run", on_mismatch="keep", **given)
        except KeyboardInterrupt:
            continue
    same(fit.evaluations, whole.evaluations)
    assert_array_equal(fit.q, whole.q)
    assert fit.n_evals == whole.n_evals == len(function.points)
    assert fit.notes[:1] == whole.notes[:1]


def test_a_checkpoint_knows_its_evaluations(tmp_path, first):
    quick_fit(skewed, PRIOR, seed=5, checkpoint=tmp_path / "run", evaluations=first)
    with pytest.raises(qbvi.CheckpointError, match="evaluations"):
        quick_fit(skewed, PRIOR, seed=5, checkpoint=tmp_path / "run", evaluations=first.evaluations[:50])


@pytest.mark.parametrize("at", [0, 1, 2, 7])
def test_ask_with_evaluations_goes_on_from_its_file(tmp_path, first, at):
    whole = quick_fit(skewed, PRIOR, seed=5, evaluations=first)
    ask, made, told, is_saved = qbvi.Ask(PRIOR, family="full", seed=5, evaluations=first), 0, 0, False
    while not ask.done:
        points = ask.ask()
        if made <= at < made + len(points) and not is_saved:
            is_saved = True
            told += ask.tell(points[: at - made], [skewed(point) for point in points[: at - made]])
            ask.save(tmp_path / "half")
            ask = qbvi.Ask.load(tmp_path / "half")
            points = ask.ask()
        told += ask.tell(points, [skewed(point) for point in points])
        made = int(points.ids.max()) + 1
    assert told == whole.n_evals
    same(ask.fit().evaluations, whole.evaluations)
    assert ask.fit().notes == whole.notes


# --- files


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
def test_files_keep_every_bit(tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    table = quick_fit(named, NAMED, seed=1).evaluations
    table.save(tmp_path / f"table{suffix}")
    same(Evaluations.load(tmp_path / f"table{suffix}"), table)


def test_failures_survive_a_csv(tmp_path):
    table = Evaluations.from_arrays([[0.0, 1.0], [2.0, 3.0], [1.0, 1.0]], [-1.5, np.nan, -np.inf], noise_sd=0.1)
    table.save(tmp_path / "t.csv")
    read = Evaluations.load(tmp_path / "t.csv")
    assert_array_equal(read.values, table.values)
    assert_array_equal(read.noise_sd, np.full(3, 0.1))


def test_a_frame_and_back(first):
    pandas = pytest.importorskip("pandas")
    frame = first.evaluations.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns[:3]) == ["theta[0]", "theta[1]", "theta[2]"]
    assert frame["log_joint"].iloc[5] == first.evaluations.log_joint[5]
    same(Evaluations.from_frame(frame), first.evaluations)


def test_without_pandas_the_error_names_the_extra(first, monkeypatch):
    import importlib

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"qbvi\[cli\]"):
        first.evaluations.to_frame()


def test_a_saved_fit_holds_its_evaluations(tmp_path, first, monkeypatch):
    first.save(tmp_path / "fit.npz")
    same(qbvi.load(tmp_path / "fit.npz").evaluations, first.evaluations)
    monkeypatch.setattr(storage, "_MOST_NUMBERS", 10)
    first.save(tmp_path / "fit.npz")
    read = qbvi.load(tmp_path / "fit.npz")
    assert read.evaluations is None
    assert "were not saved" in read.notes[-1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "'log_likelihood'"),
        ("a,log_likelihood\n", "one line for each point"),
        ("a,a,log_likelihood\n1,2,3\n", "'a' twice"),
        ("a,log_likelihood\n1,2,3\n", "3 values in line 2"),
        ("log_likelihood\n-1\n", "no parameter"),
    ],
)
def test_a_csv_that_is_no_table(tmp_path, content, message):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        Evaluations.load(tmp_path / "t.csv")


def test_a_file_of_something_else(tmp_path, first):
    first.save(tmp_path / "fit.npz")
    with pytest.raises(ValueError, match=r"qbvi\.load"):
        Evaluations.load(tmp_path / "fit.npz")
    with pytest.raises(ValueError, match=r"\.csv, \.parquet or \.npz"):
        Evaluations.load(tmp_path / "fit.txt")
    with pytest.raises(FileNotFoundError, match="existing file"):
        Evaluations.load(tmp_path / "none.csv")


def test_a_parameter_with_the_name_of_a_column(tmp_path):
    table = Evaluations.from_arrays({"batch": np.arange(3.0)}, np.zeros(3))
    with pytest.raises(ValueError, match=r"\.npz"):
        table.save(tmp_path / "t.csv")
    table.save(tmp_path / "t.npz")
    assert Evaluations.load(tmp_path / "t.npz").labels == ("batch",)


# --- what a later fit does with them


def assert_exact(fit, tol=0.03):
    """The exact posterior: a shift of 0.03 standard deviations costs 5e-4 nats, far below tol."""
    sd = np.sqrt(np.diag(np.linalg.inv(PRECISION)))
    assert_allclose(fit.mean, MEAN, atol=tol * sd.min())
    assert_allclose(fit.sd, sd, rtol=tol)


def test_the_second_fit_is_cheap_and_right(first):
    second = quick_fit(skewed, PRIOR, seed=2, evaluations=first)
    # Two points again, one batch of eight, and twenty fresh draws.
    assert second.n_evals <= 2 + 2 * 8 + 20 < first.n_evals
    assert second.converged
    assert_allclose(second.mean, first.mean, atol=0.05 * first.sd.min())
    assert_allclose(second.sd, first.sd, rtol=0.05)
    assert np.sum(second.evaluations.stage == "given") == first.n_evals
    assert np.sum(second.evaluations.stage == "check") == 2
    assert f"{first.n_evals:,} earlier evaluations" in " ".join(second.notes)
    third = quick_fit(skewed, PRIOR, seed=2, evaluations=first)
    same(third.evaluations, second.evaluations)
    assert_array_equal(third.q, second.q)


@pytest.mark.soak
def test_many_dimensions():
    """Twenty dimensions: 1,148 evaluations before, at most half of them again."""
    rng = np.random.default_rng(0)
    x, b = rng.standard_normal((200, 20)), rng.standard_normal(20) / np.sqrt(20)
    y = rng.random(200) < 1 / (1 + np.exp(-x @ b))
    logistic = lambda t: float(np.sum(y * (x @ t) - np.logaddexp(0, x @ t)))
    prior = qbvi.Normal(0, 5, shape=20)
    earlier = quick_fit(logistic, prior, seed=1)
    fit = quick_fit(logistic, prior, seed=2, evaluations=earlier)
    assert fit.n_evals < 0.5 * earlier.n_evals
    assert_allclose(fit.mean, earlier.mean, atol=0.1 * earlier.sd.min())


@pytest.mark.parametrize("kind", ["table", "csv", "pair", "dict", "frame"])
def test_every_form_of_evaluations(tmp_path, first, kind):
    table = first.evaluations
    if kind == "frame":
        pytest.importorskip("pandas")
    table.save(tmp_path / "t.csv")
    given = {
        "table": lambda: table,
        "csv": lambda: str(tmp_path / "t.csv"),
        "pair": lambda: (table.points, table.values),
        "dict": lambda: {"theta": table.points, "log_likelihood": table.values},
        "frame": lambda: table.to_frame(),
    }[kind]()
    fit = quick_fit(skewed, PRIOR, seed=2, evaluations=given)
    assert fit.n_evals < first.n_evals
    assert_allclose(fit.mean, first.mean, atol=0.05 * first.sd.min())
    assert_allclose(fit.sd, first.sd, rtol=0.05)


@pytest.mark.parametrize("constant", [0.0, 37.5])
def test_a_chain_with_log_densities(tmp_path, constant):
    """The sampler's density may lack a constant, such as that of the prior."""
    points, values = random_walk(lambda b: linear(b) - 0.5 * b @ b + constant, MEAN, 600)
    function = Counted(linear)
    fit = quick_fit(function, PRIOR, seed=1, evaluations=Evaluations.from_arrays(points, values, with_prior=True))
    assert_exact(fit)
    assert fit.n_evals == len(function.points) <= 3 + 2 * 8 + 100
    exact = [linear(b) for b in points]
    given = fit.evaluations[fit.evaluations.stage == "given"]
    assert_allclose(given.log_likelihood, exact, atol=1e-9)
    by_name = quick_fit(linear, PRIOR, seed=1, evaluations={"theta": points, "log_density": values})
    assert_array_equal(by_name.q, fit.q)


def test_a_csv_of_another_program_may_have_more_columns(tmp_path):
    points, values = random_walk(lambda b: linear(b) - 0.5 * b @ b, MEAN, 100)
    lines = [
        f"{i},red,{','.join(map(str, b.tolist()))},{v}" for i, (b, v) in enumerate(zip(points, values, strict=True))
    ]
    (tmp_path / "chain.csv").write_text("\n".join(["iteration,colour,theta[2],theta[0],theta[1],log_density", *lines]))
    table = Evaluations.load(tmp_path / "chain.csv")
    assert table.labels == ("iteration", "theta[2]", "theta[0]", "theta[1]")
    shifted = points[:, [1, 2, 0]]  # the columns of the file are theta[2], theta[0], theta[1]
    function = lambda b: linear(b[[2, 0, 1]])
    assert_array_equal(table.points[:, [2, 3, 1]], shifted)
    fit = quick_fit(function, PRIOR, seed=1, evaluations=tmp_path / "chain.csv")
    assert np.sum(fit.evaluations.stage == "given") == 100


def test_a_failed_call_may_return_any_noise():
    odd = lambda b: (np.nan, np.nan) if b[0] > MEAN[0] + 0.3 else (linear(b), 0.1)
    fit = quick_fit(odd, PRIOR, seed=1, on_failure="exclude", max_evals=150)
    assert np.isfinite(fit.evaluations.noise_sd).all()


def test_the_trace_of_an_optimiser():
    from scipy.optimize import minimize

    trace = Counted(linear)
    minimize(lambda b: -trace(b) + 0.5 * b @ b, np.zeros(D), method="Nelder-Mead")
    fit = quick_fit(linear, PRIOR, seed=1, evaluations=(np.array(trace.points), [linear(b) for b in trace.points]))
    assert_exact(fit)


def two_hills(theta):
    """Weights 0.7 and 0.3; under the prior `WIDE` the evidence is known."""
    left, right = -0.5 * np.sum((theta + 3) ** 2), -0.5 * np.sum((theta - 3) ** 2)
    return float(np.logaddexp(np.log(0.7) + left, np.log(0.3) + right))


WIDE = qbvi.Normal(0, 4, shape=4)
# Each hill times the prior, in four independent coordinates.
EVIDENCE = -2 * np.log(1 + 4**2) - 4 * 0.5 * 9 / (1 + 4**2)


def assert_both(fit):
    assert fit.converged
    assert abs(fit.evidence - EVIDENCE) < max(0.05, 3 * fit.evidence_se)
    assert abs(np.mean(fit.sample(2000, seed=1)[:, 0] < 0) - 0.7) < 0.06  # 0.01 by chance


def test_the_trace_of_an_optimiser_does_not_hide_another_mode():
    from scipy.optimize import minimize

    trace = Counted(two_hills)
    minimize(lambda x: -trace(x) + 0.5 * x @ x / 16, np.array([4.0, 3, 2, 2]), method="BFGS")
    given = np.array(trace.points), [two_hills(x) for x in trace.points]
    assert_both(qbvi.fit(two_hills, WIDE, seed=1, evaluations=given))


def test_a_chain_over_two_modes_keeps_both():
    rng = np.random.default_rng(1)
    exact = 3 * 16 / 17 * np.where(rng.random((300, 1)) < 0.7, -1, 1) + np.sqrt(16 / 17) * rng.standard_normal((300, 4))
    fit = qbvi.fit(two_hills, WIDE, seed=1, evaluations=(exact, [two_hills(x) for x in exact]))
    assert_both(fit)
    assert any("sample of the posterior" in note for note in fit.notes)
    assert fit.n_evals < 40


@pytest.mark.parametrize("kind", ["fit", "table"])
def test_a_second_fit_keeps_two_modes_and_is_cheap(kind):
    one = qbvi.fit(two_hills, WIDE, seed=1)
    assert_both(one)
    two = qbvi.fit(two_hills, WIDE, seed=2, evaluations=one if kind == "fit" else one.evaluations)
    assert_both(two)
    assert two.n_evals < one.n_evals / 3


def test_the_modes_of_several_starts_are_those_of_the_points():
    one = qbvi.fit(two_hills, WIDE, seed=1, n_starts=4)
    assert not Earlier.of(one, one.model).components
    assert len(Earlier.of(one, one.model).known(Agreement(0.0, 0.0)).components) == 2
    assert_both(qbvi.fit(two_hills, WIDE, seed=2, evaluations=one))


def test_ask_begins_with_the_modes_of_an_earlier_fit_and_goes_on_from_its_file(tmp_path):
    one = qbvi.fit(two_hills, WIDE, seed=1)
    two = qbvi.fit(two_hills, WIDE, seed=2, evaluations=one)
    ask = qbvi.Ask(WIDE, seed=2, evaluations=one)
    while not ask.done:
        points = ask.ask()
        ask.tell(points, [two_hills(point) for point in points])
        ask.save(tmp_path / "half")
        ask = qbvi.Ask.load(tmp_path / "half")
    same(ask.fit().evaluations, two.evaluations)
    assert ask.fit().evidence == two.evidence


def test_a_second_fit_under_a_wider_prior_looks_at_all_of_it():
    def far(theta):  # the right hill is outside of the first prior
        return float(np.logaddexp(-0.5 * np.sum(theta**2), -0.5 * np.sum((theta - 8) ** 2)))

    one = qbvi.fit(far, qbvi.Normal(0, 1, shape=2), seed=1)
    two = qbvi.fit(far, qbvi.Normal(4, 8, shape=2), seed=1, evaluations=one)
    assert abs(np.mean(two.sample(2000, seed=1)[:, 0] < 4) - 0.5) < 0.06


def test_hills_are_divided_by_valleys():
    rng = np.random.default_rng(1)
    centres = np.array([[0.0, 0], [6, 0], [0, 9]])
    z = np.concatenate([c + rng.standard_normal((60, 2)) for c in centres])
    y = np.logaddexp.reduce([-0.5 * np.sum((z - c) ** 2, axis=1) for c in centres])
    found = hills(z, y, valley=2.0)
    assert [len(rows) for rows in found] == [60, 60, 60]
    assert sorted(np.concatenate(found).tolist()) == list(range(180))
    assert y[found[0]].max() == y.max()


def test_few_points_give_the_location_only():
    fit = quick_fit(linear, PRIOR, seed=1, evaluations=([MEAN, MEAN + 0.1], [linear(MEAN), linear(MEAN + 0.1)]))
    assert_exact(fit)


def test_log_likelihoods_serve_under_another_prior():
    """The values do not depend on the prior, so the second posterior is exact too."""
    earlier = quick_fit(linear, qbvi.Normal(0.5, 3, shape=D), seed=1)
    fit = quick_fit(linear, PRIOR, seed=2, evaluations=earlier)
    assert_exact(fit)
    assert fit.n_evals <= 2 + 3 * 8 + 100


def test_constrained_parameters_by_name():
    earlier = quick_fit(named, NAMED, seed=1)
    table = earlier.evaluations
    given = {**table.parameters, "log_likelihood": table.values}
    fit = quick_fit(named, NAMED, seed=2, evaluations=given)
    assert fit.n_evals < earlier.n_evals
    assert_allclose(fit.mean["sigma"], earlier.mean["sigma"], rtol=0.01)


def test_a_product_of_families():
    prior = {"beta": qbvi.Normal(0, 2, shape=2), "sigma": qbvi.Gamma(2, 1)}
    earlier = quick_fit(named, prior, seed=1, family={"sigma": "gamma"})
    fit = quick_fit(named, prior, seed=2, family={"sigma": "gamma"}, evaluations=earlier)
    assert fit.trace.n_evals[-1] < earlier.trace.n_evals[-1]  # without fresh draws
    assert_allclose(fit.mean["sigma"], earlier.mean["sigma"], rtol=0.02)
    # The same points on another scale: sigma is then unconstrained.
    full = quick_fit(named, prior, seed=2, evaluations=earlier)
    assert_allclose(full.mean["sigma"], earlier.mean["sigma"], rtol=0.05)


def test_points_that_occur_again_are_not_called():
    method = qbvi.QBVI(n_samples=20, stop=qbvi.MaxIterations(5))
    fits = {}
    for name in ("first", "second"):
        function = Counted(linear)
        given = {"evaluations": fits["first"]} if name == "second" else {}
        fits[name] = quick_fit(function, PRIOR, init=np.zeros(D), method=method, seed=4, **given)
    assert len(function.points) == fits["second"].n_evals == 2
    assert_array_equal(fits["second"].q, fits["first"].q)
    assert any("QBVI uses them for its start" in note for note in fits["second"].notes)


def test_init_goes_before_the_start_of_the_evaluations(first):
    fit = quick_fit(skewed, PRIOR, seed=2, init=np.full(D, 0.5), evaluations=first)
    assert_array_equal(fit.trace.mean[0], np.full(D, 0.5))


# --- are they values of this function?


def test_a_changed_function_is_noticed(first):
    function = Counted(lambda beta: skewed(beta) + 0.01 * beta[0])
    with pytest.raises(qbvi.EvaluationError, match="must be values of this function"):
        quick_fit(function, PRIOR, evaluations=first)
    assert len(function.points) <= 4


def test_a_change_that_is_not_a_constant_is_noticed():
    points, values = random_walk(lambda b: linear(b) - 0.5 * b @ b, MEAN, 100)
    given = Evaluations.from_arrays(points, values, with_prior=True)
    with pytest.raises(qbvi.EvaluationError, match="apart from a constant"):
        quick_fit(lambda b: 1.1 * linear(b), PRIOR, evaluations=given)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_function_that_fails_where_it_did_not(first, value):
    with pytest.raises(qbvi.EvaluationError, match="must be values of this function"):
        quick_fit(lambda beta: value, PRIOR, evaluations=first, on_failure="exclude")


def test_ask_refuses_values_of_another_function(first):
    ask = qbvi.Ask(PRIOR, evaluations=first, seed=1)
    changed = lambda points: [skewed(point) - 1 for point in points]
    ask.tell(ask.ask(), changed(ask.ask()))  # may be noise
    with pytest.raises(qbvi.EvaluationError, match="must be values of this function"):
        ask.tell(ask.ask(), changed(ask.ask()))
    assert ask.done


@pytest.mark.parametrize("is_known", [True, False])
def test_noise_is_no_change(is_known):
    rng = np.random.default_rng(3)

    def noisy(beta):
        value = linear(beta) + 0.2 * rng.standard_normal()
        return (value, 0.2) if is_known else value

    points = MEAN + 0.2 * np.random.default_rng(4).standard_normal((60, D))
    values = [linear(b) + 0.2 * rng.standard_normal() for b in points]
    given = Evaluations.from_arrays(points, values, noise_sd=0.2 if is_known else 0.0)
    fit = quick_fit(noisy, PRIOR, seed=1, evaluations=given, max_evals=400)
    assert np.sum(fit.evaluations.stage == "check") == (2 if is_known else 4)
    assert any("noisy" in note for note in fit.notes)
    with pytest.raises(qbvi.EvaluationError, match="must be values of this function"):
        quick_fit(lambda b: (noisy(b)[0] - 5, 0.2) if is_known else linear(b) - 5, PRIOR, evaluations=given)


def test_noise_in_an_earlier_fit_is_known():
    """The repeated points of the first batch tell how noisy the function is: no second look."""
    rng = np.random.default_rng(3)
    noisy = lambda beta: linear(beta) + 0.2 * rng.standard_normal()
    first = quick_fit(noisy, PRIOR, seed=1, max_evals=300)
    fit = quick_fit(noisy, PRIOR, seed=2, evaluations=first, max_evals=300)
    assert np.sum(fit.evaluations.stage == "check") == 2


def test_false_alarms_are_rare():
    """Values of the same noisy function: at most one of 300 comparisons may refuse them."""
    rng, (model, _) = np.random.default_rng(5), arrange(PRIOR, "auto")
    points = MEAN + 0.2 * rng.standard_normal((30, D))
    exact, refused = np.array([linear(b) for b in points]), 0
    for _ in range(300):
        earlier = Earlier.of((points, exact + 0.5 * rng.standard_normal(30)), model)
        truth = exact[earlier.probes] + earlier.log_prior[earlier.probes]
        once, twice = (truth + 0.5 * rng.standard_normal(2) for _ in range(2))
        try:
            earlier.compare(Probed(once, np.zeros(2)), twice)
        except qbvi.EvaluationError:
            refused += 1
    assert refused <= 1


def test_rounded_values_of_a_text_file_are_no_change():
    points = np.round(MEAN + 0.2 * np.random.default_rng(4).standard_normal((60, D)), 6)
    values = np.round([linear(b) for b in points], 4)
    assert_exact(quick_fit(linear, PRIOR, seed=1, evaluations=(points, values)))


# --- what is refused before anything is paid


WRONG = {
    "a number": (3, TypeError, "qbvi.Fit, a qbvi.Evaluations, a file"),
    "too few columns": ((np.zeros((4, 2)), np.zeros(4)), ValueError, "missing 'theta"),
    "lengths": ((np.zeros((4, D)), np.zeros(5)), ValueError, "one entry for each of the 4 points"),
    "not finite": ((np.full((4, D), np.inf), np.zeros(4)), ValueError, "`points` must be finite"),
    "text": ((np.zeros((4, D)), ["a"] * 4), ValueError, "could not convert"),
    "no finite value": ((np.zeros((4, D)), np.full(4, np.nan)), ValueError, "a finite value"),
    "no values": ({"theta": np.zeros((4, D))}, ValueError, "'log_likelihood'"),
    "no point": ({"theta": np.zeros((3, D)), "log_likelihood": np.zeros(4)}, ValueError, "each of the 4 points"),
    "no file": ("nowhere.csv", FileNotFoundError, "existing file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_evaluations_are_refused_before_any_call(case):
    given, kind, message = WRONG[case]
    function = Counted(linear)
    with pytest.raises(kind, match=message):
        quick_fit(function, PRIOR, evaluations=given)
    assert not function.points


def test_wrong_tables():
    with pytest.raises(ValueError, match="`noise_sd` must be zero or positive"):
        Evaluations.from_arrays(np.zeros(3), np.zeros(3), noise_sd=-1.0)
    with pytest.raises(ValueError, match="same first axis"):
        Evaluations.from_arrays({"a": np.zeros(3), "b": np.zeros(4)}, np.zeros(3))
    with pytest.raises(ValueError, match="a column for each label"):
        Evaluations(("a", "b"), np.zeros((3, 1)), np.zeros(3))
    with pytest.raises(ValueError, match="`stage` must be one of"):
        Evaluations(("a",), np.zeros((1, 1)), np.zeros(1), stage=np.array(["lunch"]))
    density = Evaluations.from_arrays(np.zeros(3), np.zeros(3), with_prior=True)
    with pytest.raises(AttributeError, match="prior times likelihood"):
        _ = density.log_likelihood
    with pytest.raises(AttributeError, match="do not come from a fit"):
        _ = Evaluations.from_arrays(np.zeros(3), np.zeros(3)).log_joint


def test_points_outside_of_the_support():
    given = {"beta": np.zeros((4, 2)), "sigma": [1.0, 2.0, -1.0, 3.0], "log_likelihood": np.zeros(4)}
    with pytest.raises(ValueError, match="`evaluations`: values of 'sigma'"):
        quick_fit(named, NAMED, evaluations=given)
    del given["sigma"]
    with pytest.raises(ValueError, match="missing 'sigma'"):
        quick_fit(named, NAMED, evaluations=given)


def test_mini_batches_cannot_take_them(first):
    with pytest.raises(ValueError, match="left out with mini-batches"):
        quick_fit(lambda b, rows: 0.0, PRIOR, data=X, batch_size=5, evaluations=first)


def test_the_budget_includes_the_check(first):
    function = Counted(skewed)
    with pytest.raises(ValueError, match="`max_evals` must allow"):
        quick_fit(function, PRIOR, evaluations=first, max_evals=9)
    assert not function.points
    assert quick_fit(function, PRIOR, evaluations=first, max_evals=40, seed=1).n_evals <= 40


# --- the density of points of unknown origin


def test_clusters_find_the_density_of_a_gaussian():
    """200 draws of one Gaussian stay together; its log density is found within a third of a nat."""
    rng = np.random.default_rng(2)
    theta = rng.standard_normal((200, 2)) @ np.array([[2.0, 0.0], [1.5, 0.3]]).T
    found = clusters(theta, np.zeros(200, dtype=int), np.ones(2))
    assert len(found) == 1
    precision = np.linalg.inv(np.array([[2.0, 0.0], [1.5, 0.3]]) @ np.array([[2.0, 0.0], [1.5, 0.3]]).T)
    exact = np.log(200) - 0.5 * np.sum(theta @ precision * theta, axis=1) - np.log(2 * np.pi * 0.6)
    assert np.abs(log_density(found, theta) - exact).mean() < 0.33


def test_clusters_hold_every_point_once():
    rng = np.random.default_rng(2)
    theta = np.concatenate([rng.standard_normal((50, 3)), 1e-3 * rng.standard_normal((30, 3)) + 4])
    for batch in (np.zeros(80, dtype=int), np.arange(80) // 8, np.arange(80)):
        found = clusters(theta, batch, np.ones(3))
        assert_array_equal(np.sort(np.concatenate([c.rows for c in found])), np.arange(80))
        assert all(np.linalg.eigvalsh(c.cov).min() > 0 for c in found)
    assert len(clusters(np.zeros((9, 3)), np.zeros(9, dtype=int), np.ones(3))) == 1


def test_the_first_search_for_variances_is_thorough(first):
    """With many points most iterations do not search; the first one with given points must."""
    rules = replace(Rules(), search=replace(VarianceSearch(), pause=10, every=10**6))
    method, (model, family) = qbvi.Regression(rules=rules), arrange(PRIOR, "auto")
    start = method.init(family, first.q)
    state = method.knowing(family, start, Earlier.of(first, model).known(Agreement(0.0, 0.0)))
    assert state.variances != start.variances
    assert state.noise == 0.0
    assert state.n_before == len(state.store.past)


def test_a_store_that_holds_earlier_points_equals_one_that_added_them():
    """With the moments of the true q, the density of the past draws is the same."""
    family, rng = Gaussian(2), np.random.default_rng(1)
    moments = [(np.zeros(2), np.eye(2)), (np.ones(2), np.diag([4.0, 0.5]))]
    draws = [rng.multivariate_normal(*m, size=6) for m in moments]
    added = Store.empty(2)
    for m, theta in zip(moments, draws, strict=True):
        added = added.add(family, family.from_moments(*m), theta, np.zeros(6), np.zeros(6))
    parts = tuple(Part(*m, 6 * i, 6 * i + 6) for i, m in enumerate(moments))
    held = Store.holding(family, Known(np.concatenate(draws), np.zeros(12), np.zeros(12), parts, 0.0))
    for name in ("theta", "y", "noise", "log_mixture"):
        assert_allclose(getattr(held, name), getattr(added, name), rtol=1e-12)
    assert [(b.start, b.stop) for b in held.past] == [(b.start, b.stop) for b in added.past]


def by_value(values):
    """A record of one point for each value."""
    record = records.Record(1)
    record.add(np.arange(len(values))[:, None] * 1.0, np.array(values), np.zeros(len(values)), "step")
    return record


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([-1e10, -5.0, -1e10, -1e10], [1, 0, 1, 1]),
        ([-9999.0, -5.0, -np.inf, -9999.0, -9999.0], [1, 0, 0, 1, 1]),
        ([-1e5, -1e5, -1e5], [1, 1, 1]),  # nothing else is known
        ([-1e10, -5.0, -1e10], [0, 0, 0]),  # twice: a symmetry
        ([-1e10, -2e10, -3e10, -5.0], [0, 0, 0, 0]),  # a function that varies
        ([-100.0, -5.0, -100.0, -100.0], [0, 0, 0, 0]),  # a plateau that may have mass
        ([-1e6, -3e6, -1e6, -1e6], [0, 0, 0, 0]),  # the best value of all
        ([0.0, 0.0, 0.0], [0, 0, 0]),  # a constant
        ([np.nan, -np.inf, np.nan], [0, 0, 0]),
    ],
)
def test_a_number_that_recurs_far_below_all_others_stands_for_minus_infinity(values, expected):
    record = by_value(values)
    assert_array_equal(record.stand_ins(len(values)), np.array(expected, dtype=bool))
    assert record.recurring == tuple(sorted({v for v, e in zip(values, expected, strict=True) if e}))


def test_a_point_that_is_evaluated_again_is_no_recurrence():
    record = records.Record(1)
    record.add(np.array([[0.0], [1.0], [0.0], [0.0]]), np.array([-1e10, -1.0, -1e10, -1e10]), np.zeros(4), "step")
    assert not record.stand_ins(4).any()


@pytest.mark.parametrize("number", [-1e5, -1e10])
def test_a_number_in_place_of_minus_infinity_gives_the_same_fit(number):
    """Also with noise, which a start in the region of zero likelihood would hide."""

    def fit(zero):
        noise = np.random.default_rng(1)

        def log_likelihood(x):
            if x[0] < 1:  # at the start
                return zero
            return -0.5 * ((x[0] - 5) / 0.7) ** 2 - 0.5 * ((x[1] - 3) / 0.5) ** 2 + 0.8 * noise.standard_normal()

        return qbvi.fit(log_likelihood, qbvi.Normal(0, 5, shape=2), seed=1, max_evals=300)

    told, true = fit(number), fit(-np.inf)
    assert true.converged
    assert told.converged
    assert_array_equal(told.sample(10, seed=1), true.sample(10, seed=1))
    assert told.n_failed == true.n_failed > 0
    assert any(f"returned {number:.6g} at several points" in note for note in told.notes)
    assert {failure.kind for failure in told.failures} == {"-inf"}
