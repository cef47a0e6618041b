"""Many dimensions: the family and the method are chosen by size and budget, and what cannot be is refused with a count."""

import numpy as np
import pytest

import qbvi
from qbvi.arrange import arrange, size_note
from qbvi.cli.tabular.choices import Wishes, choose
from qbvi.cli.tabular.table import read_table
from qbvi.families import DiagonalGaussian, Gaussian
from qbvi.methods import Task, automatic
from qbvi.model import Model
from qbvi.results import Fit, Report


@pytest.mark.parametrize(("d", "kind"), [(1000, Gaussian), (1001, DiagonalGaussian)])
def test_the_size_chooses_the_covariance_and_a_note_says_so(d, kind):
    for prior in (qbvi.Normal(0, 1, shape=d), {f"x{j}": qbvi.Normal(0, 1) for j in range(d)}):
        _, family = arrange(prior, "auto")
        assert type(family) is kind
        assert ("1,001 coordinates has a diagonal covariance" in size_note("auto", family)) == (d > 1000)
    assert size_note("diagonal", DiagonalGaussian(2000)) == ""


def test_the_note_is_in_the_fit():
    fit = qbvi.fit(
        lambda theta: -np.sum(theta**2, axis=1), qbvi.Normal(0, 1, shape=1001), vectorized=True, max_evals=800
    )
    assert "diagonal covariance, as family='auto' chooses above 1,000" in fit.notes[0]


@pytest.mark.parametrize("family", ["full", [list(range(5001))]])
def test_a_covariance_that_does_not_fit_is_refused_with_a_count_and_a_way_out(family):
    with pytest.raises(ValueError, match=r"5,001 coordinates, which has 12,507,501 entries.*family='diagonal'"):
        arrange(qbvi.Normal(0, 1, shape=5001), family)


@pytest.mark.parametrize(
    ("family", "max_evals", "method"),
    [
        (Gaussian(250), None, qbvi.Regression),
        (Gaussian(400), None, qbvi.Regression),
        (Gaussian(400), 2399, qbvi.QBVI),
        (Gaussian(400), 2400, qbvi.Regression),
        (Gaussian(600), 10**6, qbvi.Regression),
        (Gaussian(601), None, qbvi.QBVI),
        (DiagonalGaussian(250), None, qbvi.Regression),
        (DiagonalGaussian(400), None, qbvi.QBVI),
        (DiagonalGaussian(400), 2400, qbvi.Regression),
        (DiagonalGaussian(400), 12_000, qbvi.Regression),
        (DiagonalGaussian(400), 12_001, qbvi.QBVI),
        (DiagonalGaussian(500), 10_000, qbvi.Regression),
        (DiagonalGaussian(501), 10_000, qbvi.QBVI),
    ],
)
def test_between_250_and_600_dimensions_the_budget_chooses_the_method(family, max_evals, method):
    assert type(automatic(Task(family, 0.01, max_evals=max_evals))) is method


def test_a_diagonal_posterior_of_many_entries_never_makes_their_covariance(monkeypatch):
    d = 1500
    family, model = DiagonalGaussian(d), Model(qbvi.Normal(0, 1, shape=d))
    monkeypatch.setattr(DiagonalGaussian, "cov", None)
    fit = Fit(model, family, family.start(np.arange(d) / d, np.full(d, 0.5)), Report())
    np.testing.assert_allclose(fit.mean, np.arange(d) / d)
    np.testing.assert_allclose(fit.sd, 0.5)
    assert len(fit.summary().rows) == d
    assert fit.sample(2, seed=1).shape == (2, d)


def test_a_wide_table_is_read_all_at_once(tmp_path, monkeypatch):
    wide, n = tmp_path / "wide.csv", 2000
    numbers = np.random.default_rng(0).integers(0, 9, size=(6, n))
    numbers[:, 7] = 3
    names = [f"c{j}" for j in range(n)]
    lines = [",".join([*names, "y"]), *(",".join(map(str, [*row, i % 2])) for i, row in enumerate(numbers))]
    wide.write_text("\n".join(lines) + "\n")
    table = read_table(str(wide))
    asked = []
    monkeypatch.setattr(type(table), "refuse_missing", lambda self, column: asked.append(column))
    choice = choose(Wishes("logistic", "y"), table)
    assert set(names) - set(choice.recipe.features) >= {"c7"}
    np.testing.assert_array_equal(table.numbers("c11"), numbers[:, 11])
    assert asked == []
