"""Leave-one-out and pointwise log-likelihoods, against answers in closed form and by quadrature."""

import concurrent.futures
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

import oracles
import qbvi
from qbvi.evaluate.terms import Summed
from qbvi.families import Gaussian
from qbvi.loo import PointwiseDraws, evaluated_terms, loo_of

Y = np.random.default_rng(5).normal(1.0, 1.0, 30)
PRIOR = qbvi.Normal(0, 3)


def normal_terms(m):
    return stats.norm.logpdf(Y, m, 1.0)


def exact_loo(y, prior_sd):
    """log p(y_i | y_-i) of a normal mean with known variance one."""
    n = len(y) - 1
    var = 1 / (1 / prior_sd**2 + n)
    return stats.norm.logpdf(y, var * (y.sum() - y), np.sqrt(1 + var))


@pytest.fixture(scope="module")
def fit():
    return qbvi.fit(normal_terms, PRIOR, pointwise=True, family="full", seed=1)


def test_the_fit_is_that_of_the_sum(fit):
    other = qbvi.fit(lambda m: float(normal_terms(m).sum()), PRIOR, family="full", seed=1)
    assert fit.elbo == other.elbo
    assert_array_equal(fit.q, other.q)


def test_leave_one_out_of_a_normal_mean(fit):
    loo = fit.loo(4000)
    assert_allclose(loo.pointwise, exact_loo(Y, 3.0), atol=0.01)
    assert abs(loo.elpd - exact_loo(Y, 3.0).sum()) < 4 * loo.mcse + 1e-3
    assert loo.n_bad == 0
    assert len(loo) == 30
    full = stats.norm.logpdf(Y, fit.mean, np.sqrt(1 + fit.sd**2))  # the data are not left out
    assert abs(loo.p_loo - np.sum(full - exact_loo(Y, 3.0))) < 0.1
    assert "k-hat is below" in repr(loo)


def test_the_error_by_the_number_of_draws(fit):
    """Over 40 samples the errors are those that `mcse` says: chi-square with 40 degrees of freedom.

    The draws of q, which is exact here, are independent in this test.
    """
    z = []
    for seed in range(40):
        m = np.random.default_rng(seed).normal(fit.mean, fit.sd, 200)
        terms = normal_terms(m[:, None])
        loo = loo_of(PointwiseDraws(m[:, None], terms, -terms.sum(axis=1)))
        z.append((loo.elpd - exact_loo(Y, 3.0).sum()) / loo.mcse)
    assert stats.chi2.ppf(1e-4, 40) < np.sum(np.square(z)) < stats.chi2.ppf(1 - 1e-4, 40)


def test_importance_weights_correct_an_approximation(fit):
    """A q that is moved by half a standard deviation, and one and a half times as wide."""
    mean, cov = fit.unconstrained
    wrong = replace(fit, family=Gaussian(1), q=Gaussian(1).start(mean + 0.5 * cov[0] ** 0.5, 1.5 * cov[0] ** 0.5))
    drawn = evaluated_terms(wrong, 4000)
    assert_allclose(loo_of(drawn).pointwise, exact_loo(Y, 3.0), atol=0.01)
    uncorrected = loo_of(PointwiseDraws(drawn.unconstrained, drawn.terms, -drawn.terms.sum(axis=1)))
    assert np.abs(uncorrected.pointwise - exact_loo(Y, 3.0)).max() > 0.1


def test_an_observation_that_is_impossible_at_some_draws():
    """Uniform data on (0, w): without the largest one, the width may be smaller than it."""
    y = np.array([0.2, 0.5, 0.9])
    terms = lambda w: np.where(y < w, -np.log(w), -np.inf)
    fit = qbvi.fit(terms, qbvi.Uniform(0, 3), pointwise=True, on_failure="exclude", seed=1)
    u = fit.model.unconstrain(np.linspace(0.3, 2.9, 4000), batched=True)
    w = fit.model.constrain(u)
    with np.errstate(divide="ignore"):
        table = np.where(y < w[:, None], -np.log(w)[:, None], -np.inf)
    grid = PointwiseDraws(u, table, np.zeros(4000))
    # Without 0.9, w is above 0.5 with density 1 / w^2; 0.9 is possible above 0.9.
    inside = w > 0.5
    exact = np.sum((w > 0.9) / w**3) / np.sum(inside / w**2)
    h = grid.log_ratios_without(2)
    assert_array_equal(np.isfinite(h), inside)
    assert abs(math.exp(loo_of(grid).pointwise[2]) - exact) < 0.02


def labour_terms(beta):
    x, y = oracles.labour().X, oracles.labour().y
    eta = beta @ x.T
    return eta * y - np.logaddexp(0, eta)


@pytest.mark.parametrize(("family", "draws"), [("full", 2048), pytest.param("auto", 10_000, marks=pytest.mark.soak)])
def test_labour_against_exact_leave_one_out(family, draws):
    """564 rows and 8 coefficients. The exact answer is an integral by 2^13 scrambled Sobol points around the mode.

    Its error is 0.004 (four scrambles); four rows agree with integrals around their own modes to 3e-4.
    """
    exact = oracles.labour().leave_one_out()
    prior = qbvi.Normal(0, 5**0.5, shape=8)
    fit = qbvi.fit(labour_terms, prior, vectorized=True, pointwise=True, family=family, seed=1)
    loo = fit.loo(draws)
    assert abs(loo.elpd - exact.sum()) < 0.1
    assert_allclose(loo.pointwise, exact, atol=0.02)
    az = pytest.importorskip("arviz")
    found = az.loo(fit.to_arviz("inferencedata", draws=draws), pointwise=True)
    assert abs(float(found.elpd_loo) - exact.sum()) < 0.1
    assert abs(float(found.p_loo) - loo.p_loo) < 0.1


class TestForms:
    def test_vectorized_executors_and_data(self):
        def terms(m, y):
            return stats.norm.logpdf(y, np.asarray(m)[:, None], 1.0)

        options = {"data": Y, "vectorized": 8, "pointwise": True, "family": "full", "seed": 1}
        here = qbvi.fit(terms, PRIOR, **options)
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            there = qbvi.fit(terms, PRIOR, **options, executor=threads)
            assert_array_equal(here.q, there.q)
            assert_array_equal(here.loo(100).pointwise, there.loo(100).pointwise)

    def test_terms_are_kept_for_a_second_use(self):
        calls = []

        def terms(m):
            calls.append(m)
            return normal_terms(m)

        fit = qbvi.fit(terms, PRIOR, pointwise=True, seed=1)
        before = len(calls)
        first = fit.loo(50)
        fit.to_arviz(draws=50)
        assert fit.loo(50).elpd == first.elpd
        assert len(calls) == before + 50
        fit.loo(50, seed=9)
        assert len(calls) == before + 100

    def test_a_loaded_fit_is_given_the_terms(self, fit):
        loaded = pickle.loads(pickle.dumps(fit))
        with pytest.raises(ValueError, match="`log_likelihood` must be given"):
            loaded.loo()
        given = loaded.loo(100, lambda m, y: stats.norm.logpdf(y, m, 1.0), data=Y)
        assert given.elpd == fit.loo(100).elpd

    def test_noise_is_returned_beside_the_terms(self):
        assert Summed(lambda m: (normal_terms(m), 0.5))(1.0)[1] == 0.5

    def test_models_know_their_terms(self):
        model = qbvi.models.Poisson(np.arange(20.0)[:, None] / 20, np.arange(20), exposure=2.0)
        fit = model.fit(seed=1)
        draws = fit.sample(5, seed=1)
        assert_array_equal(fit._source.terms(draws), model.log_likelihood_terms(draws))
        assert len(fit.loo(100)) == 20

    def test_failed_draws_are_left_out_if_the_fit_does(self):
        def terms(m):
            if m > 1.0:
                raise ArithmeticError("no root")
            return normal_terms(m)

        fit = qbvi.fit(terms, PRIOR, pointwise=True, on_failure="exclude", init=0.9, seed=1)
        assert 25 < fit.loo(400).n_draws < 400


class TestMistakes:
    @pytest.mark.parametrize(
        ("terms", "options", "message"),
        [
            (lambda m: -float(m**2), {}, r"must return its terms with pointwise=True, .* \(observations,\), got shape \(\); leave pointwise=True out"),
            (lambda m: np.zeros((2, 3)), {}, r"got shape \(2, 3\); ravel them"),
            (lambda m: np.zeros(len(m)), {"vectorized": True}, r"shape \(points, observations\), got shape"),
            (lambda m: ["a"], {}, "must return real numbers"),
            (lambda m: np.zeros(0), {}, r"got shape \(0,\)"),
        ],
    )  # fmt: skip
    def test_shapes(self, terms, options, message):
        with pytest.raises(ValueError, match=message):
            qbvi.fit(terms, PRIOR, pointwise=True, seed=1, **options)

    def test_nan_and_infinite_terms_are_named(self):
        def terms(m):
            found = normal_terms(m)
            found[[3, 7]] = np.nan, np.inf
            return found

        with pytest.raises(
            qbvi.EvaluationError, match=r"returned nan: 2 of 30 terms are not finite: 3 \(nan\), 7 \(inf\)"
        ):
            qbvi.fit(terms, PRIOR, pointwise=True, seed=1)
        with pytest.raises(qbvi.EvaluationError, match=r"2 of 30 terms are not finite: 3 \(nan\), 7"):
            qbvi.fit(lambda m: np.stack([terms(one) for one in m]), PRIOR, pointwise=True, vectorized=True, seed=1)

    def test_zero_likelihood_is_a_value(self):
        def terms(m):
            found = normal_terms(m)
            return np.where(m > 1.5, -np.inf, found)

        fit = qbvi.fit(terms, PRIOR, pointwise=True, init=0.5, seed=1)
        assert fit.failures[0].kind == "-inf"
        assert "30 of 30 terms" in fit.failures[0].message
        assert np.isfinite(fit.loo(200).elpd)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"data": Y, "batch_size": 5}, "`pointwise` must be left out with mini-batches"),
            ({"pointwise": 3}, "`pointwise` must be True or False"),
            ({"backend": "array_api_strict"}, "backend"),
        ],
    )
    def test_options(self, options, message):
        with pytest.raises((ValueError, TypeError), match=message):
            qbvi.fit(lambda m, y=Y: stats.norm.logpdf(y, m, 1.0), PRIOR, **{"pointwise": True, **options})

    def test_too_few_draws(self, fit):
        with pytest.raises(ValueError, match="`n` must be at least 25"):
            fit.loo(10)

    def test_nan_at_a_draw(self, fit):
        with pytest.raises(ValueError, match="must return numbers or -inf, got nan as term 0"):
            fit.loo(100, lambda m: np.full(3, np.nan))
