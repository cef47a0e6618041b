"""`qbvi fit`, `predict` and `show`: the same fits as in Python, predictions by direct computation, and errors in one line."""

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, logsumexp, softmax
from scipy.stats import norm

import qbvi
from qbvi import models
from qbvi.cli import fit as fit_command
from qbvi.cli import main
from qbvi.cli.tabular import RegressionRecipe, SavedPosterior, read_posterior, recipe, save_posterior
from qbvi.cli.tabular.report import print_posterior
from qbvi.storage import read_facts, save
from sweeps import sweep

pd = pytest.importorskip("pandas", reason="pandas is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

DOCS = Path(__file__).parents[2] / "docs"
FEATURES = ["age", "income"]
SPANS = (1, 5, 22)


def people(n, seed):
    rng = np.random.default_rng(seed)
    age, income = rng.normal(40, 10, n), rng.normal(3, 1, n)
    eta = -3 + 0.06 * age + 0.3 * income
    trials, years = rng.integers(1, 20, n), rng.uniform(0.5, 3, n)
    return pd.DataFrame(
        {
            "age": age,
            "income": income,
            "city": rng.choice(["Rome", "Oslo"], n),
            "bought": (rng.random(n) < expit(eta)).astype(int),
            "size": np.array(["low", "mid", "top"])[np.digitize(eta + rng.logistic(size=n), [-0.5, 0.5])],
            "claims": rng.poisson(years * np.exp(0.02 * age - 1)),
            "years": years,
            "log_years": np.log(years),
            "trials": trials,
            "wins": rng.binomial(trials, expit(eta)),
            "wage": 2 * eta + rng.normal(size=n),
        }
    )


def days(n, seed):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"vol": np.exp(0.3 * rng.normal(size=n)), "ret": 0.1 + rng.normal(size=n)})


GAUSSIAN = ["--family", "full"]  # quicker than the default, which the Poisson model has
# one line for each model: its options, and the same in Python
CASES = {
    "logistic": (
        ["--model", "logistic", "--target", "bought", "--features", "age,income", "--prior-scale", "2", *GAUSSIAN],
        lambda d, s: (models.Logistic(d[FEATURES], d["bought"]), 2.0),
    ),
    "multinomial": (
        ["--model", "multinomial", "--target", "size", "--features", "age,income", "--standardise", *GAUSSIAN],
        lambda d, s: (models.MultinomialLogistic(standardised(d), d["size"]), None),
    ),
    "linear": (
        ["--model", "linear", "--target", "wage", "--features", "age,income", "--no-intercept", *GAUSSIAN],
        lambda d, s: (models.Linear(d[FEATURES], d["wage"], intercept=False), None),
    ),
    "poisson": (
        ["--model", "poisson", "--target", "claims", "--features", "age", "--exposure", "years"],
        lambda d, s: (models.Poisson(d[["age"]], d["claims"], exposure=d["years"]), None),
    ),
    "binomial": (
        ["--model", "binomial", "--target", "wins", "--features", "age,income", "--trials", "trials", *GAUSSIAN],
        lambda d, s: (models.Binomial(d[FEATURES], d["wins"], trials=d["trials"]), None),
    ),
    "har": (["--model", "har", "--target", "vol", *GAUSSIAN], lambda d, s: (models.HAR(s["vol"]), None)),
    "garch": (
        ["--model", "garch", "--target", "ret", "--demean", *GAUSSIAN],
        lambda d, s: (models.GARCH(s["ret"] - s["ret"].mean()), None),
    ),
}


def standardised(frame):
    return (frame[FEATURES] - TRAIN[FEATURES].mean()) / TRAIN[FEATURES].std(ddof=0)


def as_read(frame):
    """A frame as pandas brings it back from a CSV file: some versions miss the last bit."""
    return pd.read_csv(io.StringIO(frame.to_csv(index=False)))


TRAIN, NEW, SERIES, LATER = map(as_read, (people(200, 1), people(7, 2), days(120, 3), days(5, 4)))


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    for name, frame in {"train": TRAIN, "new": NEW, "series": SERIES, "later": LATER}.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


SAVED_FOR_REAL = {name: getattr(fit_command, name) for name in ("_save_picture", "_save_arviz")}


@pytest.fixture(scope="module", autouse=True)
def sketched():
    """Writes no pictures and no draws for ArviZ: they take longer than the fits, and one test is of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_command, "_save_picture", lambda draw, path: path.write_bytes(b"a sketch"))
        patch.setattr(fit_command, "_save_arviz", lambda posterior, path, seed: path.write_bytes(b"a sketch"))
        yield


@pytest.fixture(scope="module")
def fitted(here):
    """The folder of a fit by the command, made once for each model."""
    made = {}

    def fit(name):
        if name not in made:
            data = "series.csv" if name in ("har", "garch") else "train.csv"
            assert main(["fit", "--data", str(here / data), "--out", str(here / name), *CASES[name][0]]) == 0
            made[name] = here / name
        return made[name]

    return fit


def refused(capsys, *argv):
    """What is said of a request that makes no sense: one line on the standard error."""
    capsys.readouterr()
    try:
        status = main([str(word) for word in argv])
    except SystemExit as end:
        status = end.code
    out, error = capsys.readouterr()
    assert status == 2
    assert error.count("\n") == 1
    assert error.startswith("qbvi")
    assert not out
    return error


def predicted(here, folder, data, *options):
    out = here / "predictions.csv"
    assert main(["predict", str(folder), "--data", str(here / data), "--out", str(out), *options]) == 0
    return pd.read_csv(out)


def draws_of(folder, n=1000, seed=0):
    fit = read_posterior(str(folder)).fit
    draws = fit.sample(n, seed)
    return draws if isinstance(draws, np.ndarray) else np.column_stack(list(draws.values()))


def same_posterior(ours, theirs):
    # Columns of a frame lie otherwise in memory than ours, so that sums over them may be rounded otherwise.
    assert_allclose(ours.q, theirs.q, rtol=1e-7, atol=1e-9)


def noise(seed=0):
    return np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])


def check(table, **columns):
    for name, values in columns.items():
        assert_allclose(table[name], values, rtol=1e-12, err_msg=name)


# ---------------------------------------------------------------- fit


@pytest.mark.parametrize("name", CASES)
def test_the_command_finds_the_posterior_that_python_finds(fitted, name):
    model, scale = CASES[name][1](TRAIN, SERIES)
    prior = model.prior if scale is None else model.normal_prior(scale)
    family = "full" if "--family" in CASES[name][0] else "auto"
    direct = model.fit(prior, family=family, seed=0, on_failure="exclude")
    saved = read_posterior(str(fitted(name)))
    same_posterior(saved.fit, direct)
    assert saved.fit.elbo == pytest.approx(direct.elbo, rel=1e-9)
    assert tuple(saved.labels.values()) == model.names


def test_an_offset_is_the_logarithm_of_an_exposure(here, fitted):
    case = ["--model", "poisson", "--target", "claims", "--features", "age", "--offset", "log_years"]
    assert main(["fit", "--data", str(here / "train.csv"), "--out", str(here / "offset"), *case]) == 0
    ours, theirs = read_posterior(str(here / "offset")).fit, read_posterior(str(fitted("poisson"))).fit
    assert_allclose(ours.mean["age"], theirs.mean["age"], rtol=1e-6)
    check(predicted(here, here / "offset", "new.csv"), mean=predicted(here, fitted("poisson"), "new.csv")["mean"])


def test_counts_without_an_exposure(here, tmp_path):
    case = ["--model", "poisson", "--target", "claims", "--features", "age", "--out", str(tmp_path)]
    assert main(["fit", "--data", str(here / "train.csv"), *case]) == 0
    same_posterior(
        read_posterior(str(tmp_path)).fit,
        models.Poisson(TRAIN[["age"]], TRAIN["claims"]).fit(seed=0, on_failure="exclude"),
    )
    draws = draws_of(tmp_path)
    rate = np.exp(draws[:, :1] + draws[:, 1:] @ NEW[["age"]].to_numpy().T)
    check_means_and_outcomes(predicted(here, tmp_path, "new.csv"), rate, noise().poisson(rate))


def test_what_is_saved(here, tmp_path, monkeypatch):
    for name, function in SAVED_FOR_REAL.items():
        monkeypatch.setattr(fit_command, name, function)
    if "dask" in sys.modules:  # a cluster of another test, closed since, may still be the default of xarray
        monkeypatch.delitem(sys.modules["dask"].config.config, "scheduler", raising=False)
    folder = tmp_path / "logistic"
    assert main(["fit", "--data", str(here / "train.csv"), "--out", str(folder), *CASES["logistic"][0]]) == 0
    names = {"posterior.npz", "summary.csv", "trace.png", "marginals.png", "pairs.png", "posterior.nc"}
    assert {path.name for path in folder.iterdir()} == names
    assert all((folder / name).stat().st_size > 10_000 for name in names if name.endswith(".png"))
    summary = pd.read_csv(folder / "summary.csv", index_col="parameter")
    fit = qbvi.load(folder / "posterior.npz")  # an ordinary file of a fit
    assert_allclose(summary["mean"], list(fit.mean.values()), rtol=1e-12)
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    with xarray.open_dataset(folder / "posterior.nc", group="posterior") as posterior:
        assert set(posterior.data_vars) == set(fit.labels)


def test_all_columns_of_numbers_explain_by_default(here, capsys, tmp_path):
    frame = TRAIN[["age", "income", "city", "bought"]].assign(constant=3.0)
    frame.to_csv(tmp_path / "with_index.csv")
    assert main(["fit", "--model", "logistic", "--data", str(tmp_path / "with_index.csv"), "--target", "bought", *GAUSSIAN, "--out", str(tmp_path)]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert "Logistic regression of bought on age, income, city: 200 rows of with_index.csv" in out
    assert "left out: Unnamed: 0 (no name" in out
    assert "city: compared with 'Oslo' (--base chooses)" in out
    assert "constant (the same in every row)" in out


def test_rows_with_empty_cells_are_left_out_on_request(here, capsys, tmp_path):
    holes = TRAIN.copy()
    holes.loc[[3, 50], "age"] = np.nan
    holes.loc[7, "city"] = None  # no column of the model
    holes.to_parquet(tmp_path / "holes.parquet")
    case = ["fit", "--data", tmp_path / "holes.parquet", "--out", tmp_path / "out", *CASES["logistic"][0]]
    holes.assign(age=np.nan).to_csv(tmp_path / "none.csv", index=False)
    error = refused(capsys, *case, "--drop-missing", "--test", tmp_path / "none.csv")
    assert "none.csv: every row has an empty cell in one of the columns bought, age, income" in error
    error = refused(capsys, *case)
    assert "'age' is empty, NaN or NA in 2 of 200 rows (row 4, 51)" in error
    assert main([str(word) for word in [*case, "--drop-missing"]]) == 0
    assert "rows left out because of empty cells: 2 of 200" in capsys.readouterr().out
    direct = models.Logistic(TRAIN.drop([3, 50])[FEATURES], TRAIN.drop([3, 50])["bought"])
    fit = direct.fit(direct.normal_prior(2.0), family="full", seed=0, on_failure="exclude")
    same_posterior(read_posterior(str(tmp_path / "out")).fit, fit)


def test_options_reach_the_fit(here, tmp_path):
    case = ["--family", "diagonal", "--max-evals", "150", "--tol", "0.5", "--seed", "3"]
    assert main(["fit", "--data", str(here / "train.csv"), "--out", str(tmp_path), *CASES["logistic"][0], *case]) == 0
    fit = qbvi.load(tmp_path / "posterior.npz")
    model = CASES["logistic"][1](TRAIN, SERIES)[0]
    direct = model.fit(model.normal_prior(2.0), family="diagonal", max_evals=150, tol=0.5, seed=3, on_failure="exclude")
    same_posterior(fit, direct)
    assert fit.seed == 3


# ---------------------------------------------------------------- scores


def test_scores_of_rows_that_were_kept_away(here, tmp_path):
    case = [*CASES["logistic"][0], "--test-share", "0.25", "--out", str(tmp_path), "--seed", "5"]
    assert main(["fit", "--data", str(here / "train.csv"), *case]) == 0
    scores = read_posterior(str(tmp_path)).scores
    order = np.random.default_rng(5).permutation(200)
    for part, rows in {"train": order[:150], "test": order[150:]}.items():
        frame = TRAIN.iloc[np.sort(rows)]
        draws, y = draws_of(tmp_path, seed=5), frame["bought"].to_numpy()
        p = expit(draws[:, :1] + draws[:, 1:] @ frame[FEATURES].to_numpy().T)
        density = np.log(np.where(y == 1, p, 1 - p).mean(axis=0))
        said = p.mean(axis=0) > 0.5
        assert scores[part]["rows"] == len(rows)
        assert scores[part]["log density per row"] == pytest.approx(density.mean(), rel=1e-10)
        assert scores[part]["accuracy"] == np.mean(said == y)
        assert scores[part]["precision"] == pytest.approx(np.mean(y[said]))
        assert scores[part]["recall"] == pytest.approx(np.mean(said[y == 1]))


@pytest.mark.parametrize("name", ["har", "garch"])
def test_scores_of_the_days_after_a_series(here, fitted, tmp_path, name):
    case = [*CASES[name][0], "--out", str(tmp_path), "--data", str(here / "series.csv")]
    assert main(["fit", *case, "--test", str(here / "later.csv")]) == 0
    draws, scores = draws_of(tmp_path), read_posterior(str(tmp_path)).scores
    mean, sd, later = (har_days if name == "har" else garch_days)(draws)
    density = logsumexp(norm.logpdf(later, mean[:, :-1], sd[:, :-1]), axis=0) - np.log(1000)
    assert scores["test"]["log density per row"] == pytest.approx(density.mean(), rel=1e-10)
    assert scores["test"]["rows"] == 5
    assert scores["train"]["rows"] == (98 if name == "har" else 120)
    if name == "har":
        assert scores["test"]["root mean square error"] == pytest.approx(
            np.sqrt(np.mean((later - mean[:, :-1].mean(axis=0)) ** 2))
        )


def test_the_last_days_of_a_series_are_kept(here, tmp_path):
    case = [*CASES["garch"][0], "--out", str(tmp_path), "--data", str(here / "series.csv"), "--test-share", "0.1"]
    assert main(["fit", *case]) == 0
    first = SERIES["ret"].to_numpy()[:108]
    kept = read_posterior(str(tmp_path)).recipe
    assert_array_equal(kept.series, first - first.mean())
    assert kept.centre == first.mean()


# ---------------------------------------------------------------- predict


def har_days(draws):
    """Means and standard deviations of the five later days and the next one, given the draws; and what came."""
    both = np.concatenate([SERIES["vol"], LATER["vol"]])
    rows = [[1.0, *(np.log(both[t - span : t].mean()) for span in SPANS)] for t in range(120, 126)]
    mean = draws[:, :-1] @ np.array(rows).T
    return mean, np.sqrt(draws[:, -1:]) * np.ones_like(mean), np.log(LATER["vol"].to_numpy())


def garch_days(draws):
    centre = SERIES["ret"].mean()
    returns = np.concatenate([SERIES["ret"], LATER["ret"]]) - centre
    omega, alpha, beta = draws.T
    variance = np.full(len(draws), np.mean(returns[:120] ** 2))
    found = []
    for value in returns:
        found.append(variance)
        variance = omega + alpha * value**2 + beta * variance
    found.append(variance)
    sd = np.sqrt(np.stack(found, axis=1)[:, 120:])
    return np.zeros_like(sd), sd, returns[120:]


def test_predicted_probabilities(here, fitted):
    table = predicted(here, fitted("logistic"), "new.csv", "--interval", "0.8", "--draws", "500", "--seed", "3")
    draws = draws_of(fitted("logistic"), 500, 3)
    p = expit(draws[:, :1] + draws[:, 1:] @ NEW[FEATURES].to_numpy().T)
    lower, upper = np.quantile(p, [0.1, 0.9], axis=0)
    check(table, row=np.arange(1, 8), probability=p.mean(axis=0), lower=lower, upper=upper)


def test_predicted_classes(here, fitted):
    table, draws = predicted(here, fitted("multinomial"), "new.csv"), draws_of(fitted("multinomial"))
    x = np.column_stack([np.ones(7), standardised(NEW)])
    eta = np.stack([np.zeros((1000, 7)), draws[:, :3] @ x.T, draws[:, 3:] @ x.T], axis=-1)
    p = softmax(eta, axis=-1)
    for j, label in enumerate(("low", "mid", "top")):
        lower, upper = np.quantile(p[:, :, j], [0.05, 0.95], axis=0)
        check(
            table,
            **{f"probability[{label}]": p[:, :, j].mean(axis=0), f"lower[{label}]": lower, f"upper[{label}]": upper},
        )
    assert table["class"].tolist() == np.array(["low", "mid", "top"])[p.mean(axis=0).argmax(axis=1)].tolist()


def test_predicted_numbers(here, fitted):
    table, draws = predicted(here, fitted("linear"), "new.csv"), draws_of(fitted("linear"))
    eta = draws[:, :-1] @ NEW[FEATURES].to_numpy().T
    check_means_and_outcomes(table, eta, eta + np.sqrt(draws[:, -1:]) * noise().standard_normal(eta.shape))


def test_predicted_counts(here, fitted):
    table, draws = predicted(here, fitted("poisson"), "new.csv"), draws_of(fitted("poisson"))
    rate = NEW["years"].to_numpy() * np.exp(draws[:, :1] + draws[:, 1:] @ NEW[["age"]].to_numpy().T)
    check_means_and_outcomes(table, rate, noise().poisson(rate))


def test_predicted_successes(here, fitted):
    table, draws = predicted(here, fitted("binomial"), "new.csv"), draws_of(fitted("binomial"))
    p, trials = expit(draws[:, :1] + draws[:, 1:] @ NEW[FEATURES].to_numpy().T), NEW["trials"].to_numpy()
    check_means_and_outcomes(table, trials * p, noise().binomial(trials, p))
    check(table, probability=p.mean(axis=0))


def check_means_and_outcomes(table, expected, outcomes):
    mean_lower, mean_upper = np.quantile(expected, [0.05, 0.95], axis=0)
    lower, upper = np.quantile(outcomes, [0.05, 0.95], axis=0)
    check(table, mean=expected.mean(axis=0), mean_lower=mean_lower, mean_upper=mean_upper, lower=lower, upper=upper)


def test_predicted_volatility_and_the_day_after_the_last(here, fitted):
    table = predicted(here, fitted("har"), "later.csv")
    mean, sd, _ = har_days(draws_of(fitted("har")))
    check(table, row=np.arange(1, 7), log_mean=mean.mean(axis=0))
    outcomes = mean[:, :5] + sd[:, :5] * noise().standard_normal((1000, 5))
    lower, median, upper = np.exp(np.quantile(outcomes, [0.05, 0.5, 0.95], axis=0))
    assert_allclose(table["lower"][:5], lower)
    assert_allclose(table["upper"][:5], upper)
    # the median of an even number of draws lies between two, and so does its exponential
    assert_allclose(table["median"][:5], median, rtol=1e-4)


def test_predicted_variances_and_the_day_after_the_last(here, fitted):
    table = predicted(here, fitted("garch"), "later.csv")
    _, sd, _ = garch_days(draws_of(fitted("garch")))
    lower, upper = np.quantile(sd**2, [0.05, 0.95], axis=0)
    check(table, row=np.arange(1, 7), variance=np.mean(sd**2, axis=0), variance_lower=lower, variance_upper=upper)
    outcomes = sd[:, :5] * noise().standard_normal((1000, 5)) + SERIES["ret"].mean()
    assert_allclose(table["upper"][:5], np.quantile(outcomes, 0.95, axis=0))


def test_volatility_on_its_own_scale(here, tmp_path):
    case = ["--model", "har", "--target", "vol", "--no-log", *GAUSSIAN, "--out", str(tmp_path)]
    assert main(["fit", "--data", str(here / "series.csv"), *case]) == 0
    draws, both = draws_of(tmp_path), np.concatenate([SERIES["vol"], LATER["vol"]])
    rows = [[1.0, *(both[t - span : t].mean() for span in SPANS)] for t in range(120, 126)]
    check(predicted(here, tmp_path, "later.csv"), mean=np.mean(draws[:, :-1] @ np.array(rows).T, axis=0))


def test_returns_with_a_mean_are_remarked_upon(here, capsys, tmp_path):
    (SERIES["ret"] + 1).to_csv(tmp_path / "up.csv", index=False)
    case = ["--model", "garch", "--target", "ret", "--prior-scale", "2", *GAUSSIAN, "--out", str(tmp_path)]
    assert main(["fit", "--data", str(tmp_path / "up.csv"), *case]) == 0
    assert "the returns have a mean of 1" in capsys.readouterr().out
    direct = models.GARCH(SERIES["ret"] + 1)
    fit = direct.fit(direct.normal_prior(2.0), family="full", seed=0, on_failure="exclude")
    same_posterior(read_posterior(str(tmp_path)).fit, fit)
    assert main(["show", str(tmp_path)]) == 0


def test_a_series_needs_no_new_data(fitted, capsys):
    capsys.readouterr()
    assert main(["predict", str(fitted("garch"))]) == 0
    table = pd.read_csv(io.StringIO(capsys.readouterr().out))
    _, sd, _ = garch_days(draws_of(fitted("garch")))
    check(table, row=[1], variance=[np.mean(sd[:, 0] ** 2)])


def test_rows_keep_their_numbers_and_parquet_its_types(here, fitted, tmp_path, capsys):
    holes = NEW.assign(age=NEW["age"].where(NEW.index != 2))
    holes.to_parquet(tmp_path / "holes.parquet")
    case = [str(fitted("logistic")), "--data", str(tmp_path / "holes.parquet"), "--out", str(tmp_path / "p.parquet")]
    assert "row 3" in refused(capsys, "predict", *case)
    assert main(["predict", *case, "--drop-missing"]) == 0
    assert "1 of 7" in capsys.readouterr().err
    table, whole = pd.read_parquet(tmp_path / "p.parquet"), predicted(here, fitted("logistic"), "new.csv")
    assert table["row"].tolist() == [1, 2, 4, 5, 6, 7]
    assert_allclose(table["probability"], whole["probability"].drop(2), rtol=1e-12)


def test_many_rows_are_predicted_in_portions(here, fitted, monkeypatch):
    whole = predicted(here, fitted("multinomial"), "new.csv")
    scores = read_posterior(str(fitted("multinomial"))).scores["train"]
    monkeypatch.setattr(recipe, "_CELLS", 6000)  # two rows at a time
    assert list(recipe.portions(7, 3000)) == [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 7)]
    pd.testing.assert_frame_equal(predicted(here, fitted("multinomial"), "new.csv"), whole, rtol=1e-12)
    saved = read_posterior(str(fitted("multinomial")))
    from qbvi.cli.tabular import Spread, read_table

    again = saved.recipe.scores(saved.fit, read_table(str(here / "train.csv")), Spread())
    assert again == pytest.approx(scores, rel=1e-10)


@pytest.mark.parametrize("name", sweep(["garch", "logistic"], first=1))
def test_the_training_data_are_not_needed_and_nothing_runs(here, fitted, tmp_path, name):
    """A process of its own, in another folder, with the posterior and the new rows alone."""
    copy = tmp_path / f"{name}.npz"
    copy.write_bytes((fitted(name) / "posterior.npz").read_bytes())
    (tmp_path / "new.csv").write_bytes((here / ("later.csv" if name == "garch" else "new.csv")).read_bytes())
    command = [sys.executable, "-m", "qbvi", "predict", copy.name, "--data", "new.csv"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = predicted(here, fitted(name), "later.csv" if name == "garch" else "new.csv")
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(done.stdout)), expected)


# ---------------------------------------------------------------- show


@pytest.mark.parametrize("name", ["logistic", "garch"])
def test_show_prints_what_fit_printed(here, fitted, capsys, tmp_path, name):
    data = "series.csv" if name == "garch" else "train.csv"
    capsys.readouterr()
    assert main(["fit", "--data", str(here / data), "--out", str(tmp_path), *CASES[name][0]]) == 0
    said = capsys.readouterr().out
    assert main(["show", str(tmp_path / "posterior.npz")]) == 0
    shown = capsys.readouterr().out
    assert said.startswith(shown)
    for words in (
        "converged",
        "missing",
        "ELBO",
        "log density per row",
        "97.5 %",
        *read_posterior(str(tmp_path)).labels.values(),
    ):
        assert words in shown


def test_report_writes_one_page_with_the_names_of_the_columns(here, fitted, capsys, tmp_path, monkeypatch):
    # The pictures themselves are tested elsewhere, and take longer than the rest of the page.
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, file, **_: file.write(b"a sketch"))
    shutil.copytree(fitted("logistic"), tmp_path / "fit")
    assert main(["report", str(tmp_path / "fit")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "fit" / "report.html")
    page = (tmp_path / "fit" / "report.html").read_text()
    assert all(f"<th>{row.parameter}</th>" in page for row in read_posterior(str(tmp_path / "fit")).summary())
    assert page.count("<img ") == 3
    assert main(["report", str(tmp_path / "fit"), "--out", str(tmp_path / "a.html"), "--title", "Ours & theirs"]) == 0
    assert "<h1>Ours &amp; theirs</h1>" in (tmp_path / "a.html").read_text()
    assert "cannot be written" in refused(capsys, "report", tmp_path / "fit", "--out", tmp_path / "no" / "a.html")


def test_show_takes_any_saved_fit_and_predict_does_not(tmp_path, capsys):
    fit = qbvi.fit(lambda m: -0.5 * (m - 1) ** 2, prior=qbvi.Normal(0, 1), seed=1)
    fit.save(tmp_path / "fit.npz")
    assert main(["show", str(tmp_path / "fit.npz"), "--interval", "0.8"]) == 0
    assert capsys.readouterr().out == f"{fit.summary(0.8)}\n"
    assert "has no model to predict with" in refused(capsys, "predict", tmp_path / "fit.npz", "--data", "x.csv")


def test_a_terminal_gets_tables_and_names_are_no_markup(fitted):
    pytest.importorskip("rich", reason="rich is not installed")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    print_posterior(read_posterior(str(fitted("multinomial"))), 0.95, screen)
    table = screen.getvalue().split("─", maxsplit=1)[1]
    assert "age[mid]" in table


def test_a_file_gives_no_orders_to_the_terminal(fitted, capsys, tmp_path):
    path = fitted("logistic") / "posterior.npz"
    facts = read_facts(path)["table_fit"]
    save(qbvi.load(path), tmp_path / "odd.npz", facts={"table_fit": facts | {"data": "x\x1b[2J\x07"}})
    capsys.readouterr()
    assert main(["show", str(tmp_path / "odd.npz")]) == 0
    out = capsys.readouterr().out
    assert "rows of x?[2J?\n" in out
    assert "\x1b" not in out


# ---------------------------------------------------------------- refusals


FILES = {
    "semicolons.csv": "a;b;c\n1;2;3\n",
    "long.csv": "a,b\n1,2,3\n4,5,6\n",
    "twins.csv": "a,a\n1,2\n",
    "empty.csv": "",
    "headonly.csv": "a,b\n",
    "latin.csv": "a,b\n\xe9,1\n",
    "two.csv": "x,y\n1,0\n2,1\n3,2\n",
    "half.csv": "x,y\n1,0.5\n2,1\n3,2\n",
    "text.csv": "x,y\n1,yes\n2,no\n",
    "flat.csv": "x,y\n1,3\n2,3\n4,3\n",
    "infinite.csv": "x,y\n1,3\ninf,4\n",
    "parameter.csv": "sigma2,y\n1,3\n2,4\n",
    "trials.csv": "x,y,n\n1,3,4\n2,5,4\n",
    "labels.csv": "city,y\nRome,1\nOslo,0\n",
    "days.csv": "v\n" + "1.5\n" * 30 + "-1\n",
    "broken.parquet": "no parquet",
}
REFUSED = [
    ("logistic", "nope.csv", ["y"], "nope.csv: no such file"),
    ("logistic", "http://localhost/x.csv", ["y"], "no such file"),
    ("linear", "semicolons.csv", ["b"], "--separator ';'"),
    ("linear", "long.csv", ["b"], "rows have more cells than the first line"),
    ("linear", "twins.csv", ["a"], "'a' more than once"),
    ("linear", "empty.csv", ["a"], "the file is empty"),
    ("linear", "headonly.csv", ["a"], "no rows"),
    ("linear", "latin.csv", ["a"], "cannot be read as CSV"),
    ("linear", "broken.parquet", ["a"], "cannot be read as Parquet"),
    ("linear", "train.csv", ["Wage"], "no column 'Wage'; did you mean 'wage'?"),
    ("linear", "train.csv", ["wage", "--features", "age,incom"], "no column 'incom'; did you mean 'income'?"),
    ("linear", "train.csv", ["wage", "--features", "age,wage"], "'wage' is used already"),
    ("linear", "train.csv", ["wage", "--features", "age,age"], "'age' is listed twice"),
    ("linear", "train.csv", ["wage", "--features", "age,,"], "column names separated by commas"),
    ("linear", "train.csv", ["wage", "--trials", "trials"], "--trials is not an option of --model linear"),
    ("linear", "train.csv", ["wage", "--test-share", "0.001"], "must leave rows to fit and rows to test"),
    ("linear", "train.csv", ["wage", "--test-share", "2"], "must lie between 0 and 1, got '2'"),
    ("linear", "train.csv", ["wage", "--tol", "-1"], "--tol: must be a positive number, got '-1'"),
    ("linear", "train.csv", ["wage", "--seed", "x"], "whole number from 0, got 'x'"),
    ("linear", "train.csv", ["wage", "--separator", "ab"], "one character"),
    ("linear", "train.csv", ["wage", "--method", "regression", "--max-evals", "3"], "`max_evals`"),
    ("linear", "train.csv", ["wage", "--test", "two.csv"], "two.csv: no column 'wage'"),
    ("logistic", "two.csv", ["y"], "column 'y' must hold zeros and ones only, got 2 in row 3"),
    ("logistic", "train.csv", ["size", "--features", "age"], "must hold zeros and ones, or two labels, got 3: 'low', 'mid', 'top'; more labels are for --model multinomial"),
    ("logistic", "labels.csv", ["y"], "no numeric column beside 'y' to explain it with; left out: city (2 different texts; --categories takes them all)"),
    ("poisson", "half.csv", ["y"], "column 'y' must hold counts, whole numbers from 0, got 0.5 in row 1"),
    ("poisson", "train.csv", ["claims", "--exposure", "years", "--offset", "log_years"], "give one of --exposure and --offset"),
    ("poisson", "train.csv", ["claims", "--exposure", "log_years"], "column 'log_years' must be positive"),
    ("binomial", "train.csv", ["wins"], "needs --trials COLUMN"),
    ("binomial", "trials.csv", ["y", "--trials", "n"], "not exceed the trials in column 'n', got 5 in row 2"),
    ("linear", "flat.csv", ["y"], "flat.csv: column 'y' must vary"),
    ("linear", "flat.csv", ["x", "--features", "y"], "column 'y' is the same in every row"),
    ("linear", "flat.csv", ["x", "--features", "y", "--standardise", "--no-intercept"], "cannot be standardised"),
    ("linear", "infinite.csv", ["y"], "column 'x' must be finite, got inf in row 2"),
    ("linear", "parameter.csv", ["y"], "column 'sigma2' has the name of a parameter"),
    ("multinomial", "train.csv", ["age"], "column 'age' must hold two classes or more"),
    ("har", "days.csv", ["v"], "column 'v' must be positive, as its logarithm is taken (else --no-log), got -1 in row 31"),
    ("har", "two.csv", ["x"], "column 'x' must be a series of at least 24 numbers"),
    ("har", "series.csv", ["vol", "--test", "series.csv"], "its first 120 rows are those of the fit"),
    ("garch", "series.csv", ["ret", "--features", "vol"], "--features is not an option of --model garch"),
    ("probit", "series.csv", ["ret"], "--model: invalid choice: 'probit'"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "data", "options", "words"), REFUSED, ids=[words[-1][:40] for words in REFUSED])
def test_fit_refuses(here, capsys, monkeypatch, model, data, options, words):
    monkeypatch.chdir(here)
    if data in FILES:
        (here / data).write_bytes(FILES[data].encode("latin-1"))
    for name in FILES.keys() & set(options):
        (here / name).write_bytes(FILES[name].encode("latin-1"))
    error = refused(capsys, "fit", "--model", model, "--data", data, "--out", "none", "--target", *options)
    assert words in error
    assert not (here / "none" / "posterior.npz").exists()


def test_unknown_classes_of_a_test_file_are_refused_before_the_fit(here, capsys, tmp_path):
    NEW.assign(size="huge").to_csv(tmp_path / "huge.csv", index=False)
    case = ["--data", here / "train.csv", "--test", tmp_path / "huge.csv", "--out", tmp_path / "out"]
    error = refused(capsys, "fit", *CASES["multinomial"][0], *case)
    assert "must hold the classes of the fit, low, mid, top, got 'huge' in row 1" in error
    assert not (tmp_path / "out").exists()


def test_predict_refuses(here, fitted, capsys, monkeypatch):
    monkeypatch.chdir(here)
    fitted("logistic"), fitted("har"), fitted("poisson")
    NEW.drop(columns=["age", "years"]).to_csv(here / "less.csv", index=False)
    (here / "foreign.npz").write_text("no posterior")
    for words, *case in [
        ("less.csv: no column 'age'; ", "logistic", "--data", "less.csv"),
        ("less.csv: no column 'age', 'years'; ", "poisson", "--data", "less.csv"),
        ("--data is needed: a table with the columns age, income", "logistic"),
        ("its first 120 rows are those of the fit", "har", "--data", "series.csv"),
        ("foreign.npz' is not a file written by qbvi", "foreign.npz", "--data", "new.csv"),
        ("nothing.npz: cannot be read", "nothing.npz", "--data", "new.csv"),
        ("must not be one of the input files", "logistic", "--data", "new.csv", "--out", "./new.csv"),
        ("must be in an existing folder", "logistic", "--data", "new.csv", "--out", "no/where.csv"),
    ]:
        assert words in refused(capsys, "predict", *case)
    assert "cannot be read" in refused(capsys, "show", here / "nothing")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "tree"},
        {"recipe": {}},
        {"recipe": {"features": ["age"]}},
        {"recipe": {"features": 3}},
        {"recipe": {"model": "os.system"}},
        {"recipe": {"weight_kind": "exposure", "weight": "age"}},
        {"recipe": {"centres": [1.0], "scales": [2.0, 3.0]}},
        {"scores": {"train": 3}},
        {"scores": None},
    ],
    ids=str,
)
def test_files_that_were_tampered_with_are_refused(here, fitted, capsys, tmp_path, change):
    path = fitted("logistic") / "posterior.npz"
    facts = read_facts(path)["table_fit"]
    kept = {} if change == {"recipe": {}} else facts["recipe"] | change.get("recipe", {})
    save(qbvi.load(path), tmp_path / "odd.npz", facts={"table_fit": facts | change | {"recipe": kept}})
    assert "odd.npz" in refused(capsys, "predict", tmp_path / "odd.npz", "--data", here / "new.csv")


def test_a_posterior_without_a_recipe_is_not_saved_as_one(fitted):
    with pytest.raises(ValueError, match="must have a recipe"):
        save_posterior(SavedPosterior(qbvi.load(fitted("logistic") / "posterior.npz"), None), "x.npz")
    with pytest.raises(ValueError, match="`model` must be one of"):
        RegressionRecipe.from_facts(json.loads(json.dumps(RegressionRecipe("har", "y").to_facts())))


# ---------------------------------------------------------------- around them


def test_what_is_not_installed_is_said(here, tmp_path):
    """A process without matplotlib, ArviZ and rich fits all the same; one without pandas says what to install."""
    code = "import sys; sys.modules.update(dict.fromkeys({missing!r})); from qbvi.cli import main; sys.exit(main({argv!r}))"
    argv = ["fit", "--data", str(here / "train.csv"), "--out", str(tmp_path), *CASES["logistic"][0]]

    def without(*missing):
        command = [sys.executable, "-c", code.format(missing=missing, argv=argv)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = without("matplotlib", "arviz", "arviz_base", "rich")
    assert done.returncode == 0
    assert f"saved in {tmp_path}: posterior.npz, summary.csv\n" in done.stdout
    assert 'not saved: trace.png, marginals.png, pairs.png (plots need matplotlib, which is not installed: pip install "qbvi[plots]")' in done.stdout  # fmt: skip
    assert 'not saved: posterior.nc (export to ArviZ needs a package that is not installed: pip install "qbvi[arviz]"' in done.stdout  # fmt: skip
    done = without("pandas")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "qbvi fit: tables need pandas, which is not installed: pip install 'qbvi[cli]'\n"


def test_a_reader_that_goes_away_is_no_error(fitted):
    command = f"{sys.executable} -m qbvi show {fitted('logistic')} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_tells_every_option_and_no_other(capsys):
    page = (DOCS / "commands.md").read_text()
    known = set()
    for command in ("fit", "predict", "show", "compare", "report"):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        known |= set(re.findall(r"--[a-z]+(?:-[a-z]+)*", capsys.readouterr().out))
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", page)) == known - {"--help"}
    assert all(f"`{model}`" in page for model in fit_command.MODELS)
    links = re.findall(r"\]\((?!http)([^)#]+)\)", page)
    assert links
    assert all((DOCS / link).exists() for link in links)


@pytest.mark.parametrize("command", ["fit", "predict", "show", "compare", "report"])
def test_help_has_examples(capsys, command):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"  qbvi {command} " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert f"    {command} " in capsys.readouterr().out
