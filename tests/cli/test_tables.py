"""Tables as analysts have them: labels, categories, dates, formulas, weights, splits by a column."""

import io
import json

import numpy as np
import pytest

pd = pytest.importorskip("pandas")

from qbvi import models
from qbvi.cli import main
from qbvi.cli.tabular import read_posterior

N = 160
RNG = np.random.default_rng(11)
DAYS = np.datetime64("2023-12-01") + RNG.integers(0, 60, N)
FRAME = pd.DataFrame(
    {
        "age": RNG.normal(40, 10, N).round(3),
        "job": RNG.choice(["cook", "smith", "clerk"], N),
        "zone": RNG.choice([1, 2, 3], N),
        "day": DAYS.astype(str),
        "count": RNG.integers(1, 4, N),
        "part": np.where(RNG.random(N) < 0.25, "test", "train"),
        "name": [f"n{i}" for i in range(N)],
    }
)
ETA = 0.05 * (FRAME["age"] - 40) + (FRAME["job"] == "smith")
FRAME["answer"] = np.where(RNG.random(N) < 1 / (1 + np.exp(-ETA)), "yes", "no")
FRAME["wage"] = ETA + 0.02 * (DAYS - DAYS.min()).astype(float) + 0.3 * RNG.standard_normal(N)
FRAME["wage"] = FRAME["wage"].round(4)


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qbvi.cli.fit._save_more", lambda *args: [])  # pictures take seconds
    FRAME.to_csv("table.csv", index=False)
    return FRAME


def fitted(*options, data="table.csv"):
    assert main(["fit", "--data", data, "--out", "out", *options]) == 0
    return read_posterior("out")


def refused(capsys, *options):
    capsys.readouterr()
    assert main(["fit", "--data", "table.csv", "--out", "out", *options]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def indicator(column, level):
    return (FRAME[column] == level).astype(float)


def test_two_labels_are_zero_and_one_and_the_output_says_which(table, capsys):
    options = ("--model", "logistic", "--target", "answer", "--features", "age")
    posterior = fitted(*options)
    assert "answer: 'yes' is one, 'no' is zero (--positive chooses)" in capsys.readouterr().out
    own = models.Logistic(FRAME[["age"]], FRAME["answer"] == "yes").fit(seed=0)
    assert posterior.fit.mean["age"] == pytest.approx(own.mean["age"])
    other = fitted(*options, "--positive", "no")
    assert other.fit.mean["age"] == pytest.approx(-own.mean["age"])
    assert "('no' is one)" in capsys.readouterr().out
    assert "--positive must be one of the labels of 'answer', 'no' or 'yes', got 'maybe'" in refused(
        capsys, *options, "--positive", "maybe"
    )


def test_text_is_a_category_with_a_base_level(table, capsys):
    options = ("--model", "linear", "--target", "wage", "--features", "age,job")
    posterior = fitted(*options, "--base", "job=smith")
    assert "job: compared with 'smith'" in capsys.readouterr().out
    design = pd.DataFrame(
        {"age": FRAME["age"], "job[clerk]": indicator("job", "clerk"), "job[cook]": indicator("job", "cook")}
    )
    own = models.Linear(design, FRAME["wage"]).fit(seed=0)
    assert posterior.fit.labels == own.labels
    assert posterior.fit.mean["job[cook]"] == pytest.approx(own.mean["job[cook]"])
    assert "--base must name a level of 'job', clerk, cook, smith, got 'baker'" in refused(
        capsys, *options, "--base", "job=baker"
    )
    assert "--base must name categories of the model, got 'age'" in refused(capsys, *options, "--base", "age=3")


def test_predictions_take_text_and_refuse_levels_that_the_fit_has_not_seen(table, capsys):
    posterior = fitted("--model", "linear", "--target", "wage", "--features", "age,job")
    FRAME[["age", "job"]].head(4).to_csv("new.csv", index=False)
    capsys.readouterr()
    assert main(["predict", "out", "--data", "new.csv"]) == 0
    predicted = pd.read_csv(io.StringIO(capsys.readouterr().out))
    mean, jobs = posterior.fit.mean, FRAME["job"].head(4)
    effects = jobs.map({"clerk": 0.0, "cook": mean["job[cook]"], "smith": mean["job[smith]"]})
    expected = mean["intercept"] + mean["age"] * FRAME["age"].head(4) + effects
    # The mean over 1,000 draws has an error of 1/30 of their spread, which is about 0.05.
    np.testing.assert_allclose(predicted["mean"], expected, atol=0.02)
    pd.DataFrame({"age": [30.0, 31.0], "job": ["cook", "pilot"]}).to_csv("new.csv", index=False)
    assert main(["predict", "out", "--data", "new.csv"]) == 2
    said = capsys.readouterr().err
    assert "column 'job' must hold levels of the fit, clerk, cook, smith, got 'pilot' in row 2" in said


def test_numbers_are_categories_on_request_and_texts_of_many_values_are_left_out(table, capsys):
    options = ("--model", "linear", "--target", "wage", "--categories", "zone")
    posterior = fitted(*options)
    out = capsys.readouterr().out
    assert "name (160 different texts; --categories takes them all)" in out
    assert "day (dates: name it in --features for a trend)" in out
    assert {"zone[2]", "zone[3]", "job[cook]", "job[smith]", "age"} <= set(posterior.fit.labels)


def test_dates_are_days(table, capsys):
    posterior = fitted("--model", "linear", "--target", "wage", "--features", "day")
    first = DAYS.min()
    assert f"day: in days since {first}" in capsys.readouterr().out
    own = models.Linear(pd.DataFrame({"day": (DAYS - first).astype(float)}), FRAME["wage"]).fit(seed=0)
    assert posterior.fit.mean["day"] == pytest.approx(own.mean["day"])


def test_a_formula_has_products(table, capsys):
    pytest.importorskip("formulaic")
    options = ("--model", "linear", "--target", "wage", "--formula")
    posterior = fitted(*options, "wage ~ age * job - 1")
    assert posterior.fit.labels == ("age", "job[cook]", "job[smith]", "age:job[cook]", "age:job[smith]", "sigma2")
    product = FRAME["age"] * indicator("job", "cook")
    at = posterior.fit.labels.index("age:job[cook]")
    np.testing.assert_allclose(posterior.recipe.encoding.values(read(FRAME))[:, at], product)
    assert "--formula must have the parts of age:job too, as a category is among them: write age*job" in refused(
        capsys, *options, "age:job"
    )
    assert "add a column to the table for it" in refused(capsys, *options, "log(age)")
    assert "no column 'agee'; did you mean 'age'?" in refused(capsys, *options, "agee + job")
    assert "--formula must be columns joined by +" in refused(capsys, *options, "age + + *")


def test_weights_count_rows(table, capsys):
    options = ("--model", "logistic", "--target", "answer", "--features", "age", "--weights")
    posterior = fitted(*options, "count")
    again = np.repeat(np.arange(N), FRAME["count"])
    own = models.Logistic(FRAME[["age"]].to_numpy()[again], (FRAME["answer"] == "yes").to_numpy()[again]).fit(seed=0)
    assert posterior.fit.mean["age"] == pytest.approx(own.mean["x1"], abs=2e-4 * own.sd["x1"])
    assert "weights count" in posterior.recipe.title
    FRAME.assign(count=0).to_csv("table.csv", index=False)
    assert "column 'count' must be positive, as it weights the rows, got 0 in row 1" in refused(
        capsys, *options, "count"
    )


def test_rows_to_test_on_are_chosen_by_a_column(table, capsys):
    options = ("--model", "linear", "--target", "wage", "--features", "age,job")
    posterior = fitted(*options, "--test-where", "part=test")
    assert posterior.scores["test"]["rows"] == (FRAME["part"] == "test").sum()
    posterior = fitted(*options, "--test-from", "day=2024-01-15")
    assert posterior.scores["test"]["rows"] == (FRAME["day"] >= "2024-01-15").sum()
    posterior = fitted(*options, "--test-from", "age=45")
    assert posterior.scores["test"]["rows"] == (FRAME["age"] >= 45).sum()
    assert "must leave rows to fit and rows to test, got 'part=none': 0 of 160" in refused(
        capsys, *options, "--test-where", "part=none"
    )
    assert "--test-from must have a date such as 2024-01-31" in refused(capsys, *options, "--test-from", "day=soon")


def test_a_column_that_splits_is_no_feature_by_default(table):
    posterior = fitted("--model", "linear", "--target", "wage", "--test-where", "part=test")
    assert not any("part" in label for label in posterior.fit.labels)


def test_standardising_leaves_indicators_as_they_are(table):
    recipe = fitted("--model", "linear", "--target", "wage", "--features", "age,job", "--standardise").recipe
    assert recipe.scales[0] == pytest.approx(FRAME["age"].std(ddof=0))
    assert recipe.scales[1:] == (1.0, 1.0)


def test_recipes_of_earlier_versions_can_be_read(table):
    recipe = fitted("--model", "linear", "--target", "wage", "--features", "age").recipe
    later = ("sources", "levels", "origins", "terms", "outcomes", "row_weights")
    facts = {name: value for name, value in json.loads(json.dumps(recipe.to_facts())).items() if name not in later}
    assert type(recipe).from_facts(facts).encoding == recipe.encoding


def read(frame):
    from qbvi.cli.tabular.table import Table

    return Table("table.csv", frame, np.arange(1, len(frame) + 1))


def test_posteriors_of_the_same_rows_are_compared_by_evidence(table, capsys):
    for name, features in (("small", "age"), ("large", "age,job")):
        assert main(["fit", "--data", "table.csv", "--model", "linear", "--target", "wage", "--features", features, "--out", name]) == 0  # fmt: skip
    capsys.readouterr()
    assert main(["compare", "small", "large"]) == 0
    lines = capsys.readouterr().out.splitlines()
    evidences = {name: read_posterior(name).fit.evidence for name in ("small", "large")}
    best = max(evidences, key=evidences.get)
    assert lines[1].split()[:2] == [best, f"{evidences[best]:.4f}"]
    assert "small: Linear regression of wage on age" in lines
    assert main(["compare", "small"]) == 2
    assert "give two posteriors or more, each once, got small" in capsys.readouterr().err


def test_posteriors_of_other_rows_are_not_compared(table, capsys):
    options = ["--data", "table.csv", "--model", "linear", "--target", "wage", "--features", "age"]
    assert main(["fit", *options, "--out", "all"]) == 0
    assert main(["fit", *options, "--out", "part", "--test-where", "part=test"]) == 0
    capsys.readouterr()
    assert main(["compare", "all", "part"]) == 2
    said = capsys.readouterr().err
    assert "only for the same target in the same rows, got all of 'wage' in 160 rows of table.csv; part of" in said


def test_draws_of_predictions_are_a_table(table, capsys):
    fitted("--model", "linear", "--target", "wage", "--features", "age,job")
    capsys.readouterr()
    assert main(["predict", "out", "--data", "table.csv", "--draws", "50", "--draws-out", "draws.csv"]) == 0
    predicted, draws = pd.read_csv(io.StringIO(capsys.readouterr().out)), pd.read_csv("draws.csv")
    assert len(draws) == 50 * N
    np.testing.assert_allclose(draws.groupby("row")["expected"].mean(), predicted["mean"], rtol=1e-6)
    assert draws["outcome"].std() > draws["expected"].std()
