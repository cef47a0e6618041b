"""Fit, Report, Trace and Summary, against closed forms."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate, stats

from qbvi import results
from qbvi.distributions import (
    Dirichlet,
    Flat,
    HalfNormal,
    InverseGamma,
    LogNormal,
    LogPrior,
    Normal,
    Transformed,
    Uniform,
)
from qbvi.evaluate.failures import Failure
from qbvi.families import DiagonalGaussian, Gaussian, GaussianProduct
from qbvi.model import Model
from qbvi.results import Fit, Report, Row, Summary, Trace
from qbvi.summary import diagnostic_lines
from qbvi.supports import Bijection, Interval, Ordered

COV = np.array([[0.04, 0.03, -0.01], [0.03, 0.09, 0.02], [-0.01, 0.02, 0.25]])
LOC = np.array([1.0, -2.0, 0.3])
NAMED = {"beta": Normal(0, 5, shape=2), "sigma": LogNormal(0, 1)}
Z_BOUND = stats.norm.isf(1e-6 / 2)


def make_trace(n=5, d=3):
    ramp = np.arange(1.0, n + 1)
    return Trace(100 * ramp, -9 / ramp, -8 / ramp, ramp, ramp, ramp, np.ones((n, d)), np.ones((n, d)))


def make_fit(prior=None, family=None, loc=LOC, cov=COV, report=None):
    model = Model(NAMED if prior is None else prior)
    family = Gaussian(model.dim) if family is None else family
    return Fit(model, family, family.from_moments(loc, cov), Report() if report is None else report)


def one(prior, loc=0.4, scale=0.7):
    return make_fit(prior, loc=np.array([loc]), cov=np.array([[scale**2]]))


class TestMoments:
    def test_real_parameters_are_exact(self):
        fit = make_fit(Normal(0, 1, shape=3))
        assert_array_equal(fit.mean, LOC)
        assert_allclose(fit.sd, np.sqrt(np.diag(COV)), rtol=1e-14)
        assert_allclose(fit.cov, COV, rtol=1e-13)
        assert_array_equal(fit.cov, fit.cov_matrix)

    def test_lognormal_moments_of_a_positive_parameter(self):
        fit = make_fit()
        mean = np.exp(0.3 + 0.25 / 2)
        assert_allclose(fit.mean["sigma"], mean, rtol=2e-4)
        assert_allclose(fit.sd["sigma"], mean * np.sqrt(np.expm1(0.25)), rtol=5e-3)
        # Cov(x, exp(y)) = Cov(x, y) E exp(y)
        assert_allclose(fit.cov_matrix[:2, 2], COV[:2, 2] * mean, rtol=5e-3)

    def test_real_parameters_stay_exact_beside_others(self):
        fit = make_fit()
        assert_array_equal(fit.mean["beta"], LOC[:2])
        assert_allclose(fit.cov["beta"], COV[:2, :2], rtol=1e-13)
        assert fit.cov["sigma"].shape == (1, 1)

    def test_joint_covariance_is_positive_definite(self):
        tight = np.array([[1.0, 1 - 1e-7], [1 - 1e-7, 1.0]])
        fit = make_fit({"a": Normal(0, 1), "b": LogNormal(0, 1)}, loc=np.zeros(2), cov=tight)
        assert np.linalg.eigvalsh(fit.cov_matrix)[0] > 0

    def test_uniform_marginal_through_the_interval(self):
        # logit-normal moments by quadrature
        fit = one(Uniform(-1.0, 3.0))
        value = lambda u: -1 + 4 / (1 + np.exp(-u))
        density = stats.norm(0.4, 0.7).pdf
        mean = integrate.quad(lambda u: value(u) * density(u), -8, 8)[0]
        square = integrate.quad(lambda u: value(u) ** 2 * density(u), -8, 8)[0]
        assert_allclose([fit.mean, fit.sd], [mean, np.sqrt(square - mean**2)], rtol=1e-4)

    def test_simplex_has_singular_covariance_that_sums_to_zero(self):
        fit = make_fit(Dirichlet(np.ones(4)))
        assert fit.mean.shape == (4,)
        assert_allclose(fit.mean.sum(), 1)
        assert_allclose(fit.cov.sum(axis=0), 0, atol=1e-15)

    @pytest.mark.parametrize("shape", [(), (3,), (1, 3)])
    def test_unnamed_structure(self, shape):
        d = int(np.prod(shape))
        fit = make_fit(Normal(0, 1, shape=shape), loc=LOC[:d], cov=COV[:d, :d])
        assert np.shape(fit.mean) == np.shape(fit.sd) == shape
        assert fit.cov.shape == (d, d)
        assert np.shape(fit.sample(4, seed=0)) == (4, *shape)

    def test_same_at_every_call_and_safe_to_change(self):
        fit = make_fit()
        first = fit.mean
        first["beta"][:] = 0
        fit.cov_matrix[:] = 0
        fit.cov["beta"][:] = 0
        assert_array_equal(fit.mean["beta"], LOC[:2])
        assert fit.cov["beta"][0, 0] > 0
        assert_array_equal(make_fit().mean["sigma"], fit.mean["sigma"])
        with pytest.raises(ValueError, match="read-only"):
            fit.q[0] = 1

    @pytest.mark.parametrize(
        "family",
        [DiagonalGaussian(3), GaussianProduct((Gaussian(1), Gaussian(2)), ((2,), (0, 1)))],
        ids=["diagonal", "blocks"],
    )
    def test_other_families(self, family):
        fit = make_fit(family=family)
        assert_allclose(fit.sd["beta"], np.sqrt(np.diag(COV)[:2]), rtol=1e-13)
        assert_allclose(fit.cov_matrix[:2, 2], 0, atol=1e-3)
        assert_allclose(fit.quantiles([0.975])["sigma"][0], np.exp(0.3 + 0.5 * stats.norm.isf(0.025)))

    def test_more_dimensions_than_the_sample_can_match(self, monkeypatch):
        monkeypatch.setattr(results, "_DRAWS", 64)
        d = 40
        fit = Fit(Model(LogNormal(0, 1, shape=d)), DiagonalGaussian(d), np.r_[np.zeros(d), np.full(d, 0.1)], Report())
        assert_allclose(fit.mean, np.exp(0.005), rtol=0.01)


class TestSample:
    def test_moments_and_structure(self):
        n = 20_000
        draws = make_fit().sample(n, seed=3)
        u = np.column_stack([draws["beta"], np.log(draws["sigma"])])
        assert np.abs((u.mean(0) - LOC) / np.sqrt(np.diag(COV) / n)).max() < Z_BOUND
        # Wishart: Var(S_ij) = (c_ii c_jj + c_ij^2) / n
        error = np.sqrt((np.outer(np.diag(COV), np.diag(COV)) + COV**2) / n)
        assert np.abs((np.cov(u.T) - COV) / error).max() < Z_BOUND

    def test_seed_repeats_and_generator_goes_on(self):
        fit = make_fit()
        assert_array_equal(fit.sample(5, seed=1)["beta"], fit.sample(5, seed=1)["beta"])
        rng = np.random.default_rng(1)
        assert_array_equal(fit.sample(5, seed=rng)["beta"], fit.sample(5, seed=1)["beta"])
        assert not np.array_equal(fit.sample(5, seed=rng)["beta"], fit.sample(5, seed=1)["beta"])

    def test_refuses_no_draws(self):
        with pytest.raises(ValueError, match="`n` must be at least 1, got 0"):
            make_fit().sample(0)


class TestLogProb:
    @pytest.mark.parametrize(
        "prior",
        [
            Normal(0, 1),
            HalfNormal(1.0),
            Uniform(-1.0, 3.0),
            Flat((), Interval(-np.inf, 2.0)),
            Flat((), Interval(5.0, np.inf)),
        ],
        ids=["real", "positive", "interval", "below", "above"],
    )
    def test_integrates_to_one(self, prior):
        fit = one(prior)
        x = np.sort(fit.model.constrain(np.linspace(-5, 6, 4001)[:, None]))
        total = integrate.simpson(np.exp(fit.log_prob(x, batched=True)), x=x)
        assert_allclose(total, 1, atol=1e-6)
        assert_allclose(fit.log_prob(x[77]), fit.log_prob(x, batched=True)[77])

    def test_lognormal_closed_form(self):
        fit = make_fit()
        theta = {"beta": np.array([1.1, -1.7]), "sigma": 2.0}
        expected = stats.multivariate_normal(LOC, COV).logpdf([1.1, -1.7, np.log(2.0)]) - np.log(2.0)
        assert_allclose(fit.log_prob(theta), expected)
        assert isinstance(fit.log_prob(theta), float)

    def test_minus_infinity_outside(self):
        fit = one(HalfNormal(1.0))
        assert fit.log_prob(-1.0) == -np.inf
        both = fit.log_prob(np.array([-1.0, 1.0]), batched=True)
        assert both[0] == -np.inf
        assert both[1] == fit.log_prob(1.0)

    def test_errors_are_not_swallowed(self):
        fit = make_fit()
        with pytest.raises(ValueError, match="shape"):
            fit.log_prob({"beta": np.ones(3), "sigma": -1.0})
        with pytest.raises(ValueError, match="finite"):
            fit.log_prob({"beta": np.ones(2), "sigma": np.nan})
        with pytest.raises(ValueError, match="missing 'sigma'"):
            fit.log_prob({"beta": np.ones(2)})
        one_way = Transformed(Normal(0, 1, shape=2), Bijection(lambda u: u**3, log_jacobian=lambda u: 0.0))
        with pytest.raises(ValueError, match="no `inverse`"):
            make_fit(one_way, loc=np.zeros(2), cov=np.eye(2)).log_prob(np.ones(2))


class TestSummary:
    def test_closed_forms(self):
        table = make_fit().summary(interval=0.9)
        z = stats.norm.isf(0.05)
        assert [row.parameter for row in table] == ["beta[0]", "beta[1]", "sigma"]
        assert_allclose(table["beta[1]"][1:], [-2, 0.3, -2 - 0.3 * z, -2 + 0.3 * z])
        assert_allclose(table["sigma"][3:], np.exp([0.3 - 0.5 * z, 0.3 + 0.5 * z]))
        assert len(table) == 3
        assert table[0] is table.rows[0]

    def test_decreasing_map_keeps_the_order(self):
        row = one(Flat((), Interval(-np.inf, 2.0)), loc=0.0, scale=1.0).summary()[0]
        assert_allclose([row.lower, row.upper], 2 - np.exp([1.959964, -1.959964]), rtol=1e-6)

    def test_quantiles_without_a_closed_form(self):
        fit = make_fit(Flat(3, Ordered()))
        assert_allclose(fit.quantiles([0.025, 0.975])[:, 0], 1 + 0.2 * stats.norm.ppf([0.025, 0.975]), atol=5e-3)

    def test_text(self):
        failure = Failure(LOC, "nan", "returned nan")
        report = Report(
            -358.2712, 0.0213, 0.31, True, "it settled", 12_400, 124, (failure,), notes=("Try more draws.",)
        )
        text = str(make_fit(report=report).summary())
        for words in (
            "ELBO         -358.271 ± 0.021",
            "k-hat        0.31 (good, below 0.7)",
            "12,400 in 124",
            "1 failed",
        ):
            assert words in text
        for words in ("converged    yes: it settled", "2.5 %  97.5 %", "Note: Try more draws."):
            assert words in text
        lines = [line for line in text.splitlines() if line.startswith(("beta", "sigma"))]
        assert lines[0].split() == ["beta[0]", "1.000", "0.200", "0.608", "1.392"]

    @pytest.mark.parametrize(
        ("missing", "se", "words"),
        [
            # By Pinsker's inequality: the root of (0.58 + 0.14) / 2 is 0.6.
            (0.58, 0.14, "0.58 ± 0.14 nats of the posterior: probabilities are off by at most about 0.60"),
            (0.004, 0.004, "0.004 ± 0.004 nats of the posterior: probabilities are off by at most about 0.06"),
            (-0.01, 0.0, "0.000 ± 0.000 nats of the posterior: probabilities are off by at most about 0.01"),
            (3.2, 0.5, "3.20 ± 0.50 nats of the posterior: probabilities may be far off"),
            (0.58, np.inf, "about 0.58 nats of the posterior or more: the draws do not determine it"),
        ],
    )
    def test_missing_nats_in_one_sentence(self, missing, se, words):
        report = Report(-4.0, 0.02, evidence=missing - 4, evidence_se=se, missing=missing, missing_se=se)
        lines = diagnostic_lines(report)
        assert f"missing      {words}" in lines
        known = "-3.42 ± 0.14" if np.isfinite(se) else "about -3.4 or more: the draws do not determine it"
        assert missing != 0.58 or f"log evidence {known}" in lines

    def test_what_is_not_known_has_no_line(self):
        labels = [line.split("  ")[0] for line in diagnostic_lines(Report(-4.0, 0.02))]
        assert labels == ["ELBO", "evaluations", "converged"]

    def test_extreme_numbers_stay_readable(self):
        rows = (
            Row("tiny", 1e-12, 1e-13, 8e-13, 1.2e-12),
            Row("huge", 1e12, 1e9, 9e11, 1.1e12),
            Row("point", 1.0, 0.0, 1.0, 1.0),
        )
        text = repr(Summary(rows, 0.95))
        assert "1e-12" in text
        assert "1e+12" in text
        assert max(len(line) for line in text.splitlines()) < 80

    def test_pandas_and_html(self, monkeypatch):
        table = make_fit(prior={"a<b": Normal(0, 1, shape=3)}).summary()
        frame = table.to_pandas()
        assert list(frame.columns) == ["mean", "sd", "lower", "upper"]
        assert frame.loc["a<b[1]", "mean"] == -2.0
        assert "<th>a&lt;b[0]</th>" in table._repr_html_()
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(ImportError, match="pip install pandas"):
            table.to_pandas()

    @pytest.mark.parametrize("interval", [0.0, 1.0, 95, -0.5])
    def test_refuses_what_is_no_probability(self, interval):
        with pytest.raises(ValueError, match="`interval` must be a probability between 0 and 1"):
            make_fit().summary(interval)

    def test_unknown_entry(self):
        with pytest.raises(KeyError, match="no entry is called 'gamma'"):
            make_fit().summary()["gamma"]


class TestFit:
    def test_attributes_come_from_the_report(self):
        report = Report(
            -3.0, 0.1, 0.4, True, "done", 500, 5, (Failure(LOC, "-inf", "returned -inf"),), make_trace(), 2.5, 7
        )
        fit = make_fit(report=report)
        assert (fit.elbo, fit.elbo_se, fit.khat, fit.converged, fit.stop_reason) == (-3.0, 0.1, 0.4, True, "done")
        assert (fit.n_evals, fit.n_failed, fit.seconds, fit.seed, fit.notes) == (500, 1, 2.5, 7, ())
        assert fit.failures == report.failures
        assert fit.trace is report.trace

    def test_repr_is_short(self):
        wide = make_fit(Normal(0, 1, shape=3), report=Report(trace=make_trace()))
        lines = repr(wide).splitlines()
        assert 6 <= len(lines) <= 10
        assert "theta (3,)" in lines[0]
        assert "full covariance" in lines[0]
        assert "NO: nothing was fitted" in repr(wide)

    def test_unconstrained(self):
        mean, cov = make_fit().unconstrained
        assert_array_equal(mean, LOC)
        assert_allclose(cov, COV, rtol=1e-13)

    def test_refuses_a_q_of_another_family(self):
        with pytest.raises(ValueError, match=r"`q` must have shape \(6,\) and the family 3 dimensions, got \(5,\)"):
            Fit(Model(NAMED), DiagonalGaussian(3), np.zeros(5), Report())

    def test_a_prior_that_is_only_a_function(self):
        fit = one(LogPrior(lambda x: -abs(x), shape=()))
        assert_allclose([fit.mean, fit.sd], [0.4, 0.7])


class TestReport:
    @pytest.mark.parametrize(
        ("khat", "draws", "word"),
        [
            (0.69, None, "good"),
            (0.69, 1000, "doubtful"),
            (0.66, 1000, "good"),
            (0.69, 10_000, "good"),
            (0.71, 10_000, "doubtful"),
            (1.2, 10_000, "bad"),
            (-np.inf, 100, "good"),
            (np.nan, None, "unknown"),
            (np.inf, 100, "bad"),
            (0.5, 2, "doubtful"),
        ],
    )
    def test_khat_in_words(self, khat, draws, word):
        assert Report(khat=khat, khat_draws=draws).khat_verdict.startswith(word)

    def test_khat_does_not_count_where_next_to_nothing_is_missing(self):
        assert Report(khat=3.54, khat_draws=1000, missing=0.01).khat_verdict.startswith("of no consequence")

    def test_is_frozen(self):
        with pytest.raises(AttributeError):
            Report().elbo = 1.0
        assert replace(Report(), elbo=1.0).elbo == 1.0


class TestTrace:
    def test_reads_by_name(self):
        trace = make_trace()
        assert len(trace) == 5
        assert_array_equal(trace["n_evals"], [100, 200, 300, 400, 500])
        assert trace["n_evals"].dtype == np.int64
        assert "5 iterations, 500 evaluations: elbo from -9 to -1.8" in repr(trace)
        with pytest.raises(KeyError, match="got 'loss'"):
            trace["loss"]

    def test_refuses_ragged_arrays(self):
        with pytest.raises(ValueError, match="`sd` must have one entry for each of the 5 iterations"):
            replace(make_trace(), sd=np.ones((4, 3)))

    def test_no_iterations(self):
        assert len(Trace.empty()) == 0
        assert repr(Trace.empty()) == "Trace of 0 iterations"

    def test_is_read_only(self):
        with pytest.raises(ValueError, match="read-only"):
            make_trace().elbo[0] = 0


def test_failure_prints_where_and_why():
    text = repr(Failure({"sigma": np.array(0.5), "w": np.zeros(100)}, "exception", "ValueError: no", "", 0.25))
    assert text.startswith("Failure(exception after 0.25 s at sigma=0.5, w=[0.")
    assert text.endswith(": ValueError: no)")
    assert len(text) < 120


def test_inverse_gamma_prior_has_positive_support():
    assert "sigma2" in one({"sigma2": InverseGamma(3, 1)}).mean
