"""Checks of a posterior by fresh draws, weighted draws and expectations, against closed forms."""

import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate

import qbvi
from qbvi.check import Ratios, Source
from qbvi.diagnostics import smoothed_weights
from qbvi.ending import StopKind
from qbvi.evaluate import EvaluationError
from qbvi.families import Gaussian
from qbvi.model import Model
from qbvi.results import Fit, Report, WeightedDraws

PRIOR = qbvi.Normal(0, 1)


def quartic(x):
    return -(x**4)


def exact(f):
    """Integral of f times the joint density of `quartic`."""
    return integrate.quad(lambda x: f(x) * np.exp(quartic(x) - x**2 / 2) / np.sqrt(2 * np.pi), -6, 6)[0]


@pytest.fixture(scope="module")
def fit():
    return qbvi.fit(quartic, PRIOR, family="full", seed=1)


@pytest.fixture(scope="module")
def checked(fit):
    return fit.check(2000)


class TestCheck:
    def test_figures_are_those_of_the_posterior(self, fit, checked):
        log_evidence = math.log(exact(np.ones_like))
        assert abs(checked.evidence - log_evidence) < 4 * checked.evidence_se
        mean, cov = fit.unconstrained
        q = Gaussian(1)
        member = q.from_moments(mean, cov)
        at = np.linspace(-4, 4, 4001)[:, None]
        log_q = np.asarray(q.log_prob(member, at))
        h = quartic(at[:, 0]) - at[:, 0] ** 2 / 2 - 0.5 * np.log(2 * np.pi) - log_q
        bound = integrate.trapezoid(np.exp(log_q) * h, at[:, 0])
        assert abs(checked.elbo - bound) < 4 * checked.elbo_se
        assert abs(checked.missing - (log_evidence - bound)) < 4 * checked.missing_se
        assert checked.missing_se < checked.evidence_se  # the errors of evidence and bound are alike
        assert checked.khat < 0.5

    def test_the_posterior_and_the_old_fit_stay_as_they_are(self, fit, checked):
        assert_array_equal(checked.q, fit.q)
        assert checked.n_evals == fit.n_evals + 2000
        assert len(checked.evaluations) == checked.n_evals
        assert (checked.evaluations.stage == "posterior").sum() == 2000
        assert not (fit.evaluations.stage == "posterior").any()

    def test_same_seed_same_bits_and_further_checks_add_new_draws(self, fit):
        first = fit.check(30)
        assert fit.check(30).evidence == first.evidence
        both = first.check(40)
        assert both.record.khat_draws == 70
        assert len(np.unique(both.weighted_draws().draws)) == 70
        assert sum("from a check" in note for note in both.notes) == 1

    def test_a_fit_without_its_function_asks_for_it(self, fit, tmp_path):
        fit.save(tmp_path / "fit.qbvi")
        copies = [qbvi.load(tmp_path / "fit.qbvi"), pickle.loads(pickle.dumps(fit))]
        for copy in copies:
            with pytest.raises(ValueError, match="`log_likelihood` must be given"):
                copy.check(10)
            assert copy.check(50, quartic).evidence == fit.check(50).evidence
            assert copy.check(50, lambda x: quartic(x), vectorized=True).evidence == fit.check(50).evidence

    def test_a_checked_fit_is_saved_with_its_draws(self, checked, tmp_path):
        checked.save(tmp_path / "fit.qbvi")
        loaded = qbvi.load(tmp_path / "fit.qbvi")
        assert loaded.expect(np.cos) == checked.expect(np.cos)

    def test_the_function_is_called_as_in_the_fit(self):
        seen = []

        def f(theta, y):
            seen.append(theta["m"].shape)
            return -0.5 * np.sum((y[:, None] - theta["m"]) ** 2, axis=0)

        y = np.array([1.0, 2.0, 0.5])
        options = {"family": "full", "seed": 1}
        fit = qbvi.fit(f, {"m": PRIOR}, data=y, vectorized=7, **options)
        plain = qbvi.fit(lambda t: f({"m": t["m"][None]}, y)[0], {"m": PRIOR}, **options)
        seen.clear()
        assert fit.check(20).evidence == plain.check(20).evidence
        assert seen[:3] == [(7,), (7,), (6,)]
        with ThreadPoolExecutor(2) as pool:
            shared = qbvi.fit(f, {"m": PRIOR}, data=y, vectorized=7, executor=pool, **options)
            assert shared.check(20).evidence == plain.check(20).evidence

    def test_mini_batches_have_no_values_to_compare(self):
        y = np.linspace(-1, 1, 20)
        options = {"data": y, "batch_size": 5, "max_evals": 2000, "seed": 1, "progress": False}
        fit = qbvi.fit(lambda m, y: -0.5 * np.sum((y - m) ** 2), PRIOR, **options)
        with pytest.raises(ValueError, match="this fit used mini-batches"):
            fit.check(10)
        checked = fit.check(100, lambda m: -0.5 * np.sum((y - m) ** 2))
        truth = -0.5 * np.sum(y**2) - 0.5 * np.log(21)
        assert abs(checked.evidence - truth) < 4 * checked.evidence_se + 1e-6

    def test_failures_are_treated_as_in_the_fit(self):
        def broken(x):
            return math.nan if x > 0.8 else quartic(x)

        fit = by_hand(0.0, 0.6)
        with pytest.raises(EvaluationError):
            fit.check(100, broken)
        checked = fit.check(400, broken, on_failure="exclude")
        assert 0 < checked.n_failed < 100
        assert checked.record.khat_draws == 400 - checked.n_failed
        assert len(checked.weighted_draws()) == 400 - checked.n_failed

    def test_zero_likelihood_is_part_of_the_evidence(self):
        fit = by_hand(0.0, 1.0)
        checked = fit.check(2000, lambda x: -math.inf if x > 0 else 0.0)
        # q is the prior, of which half is left: the divergence is that of this half, which is exact.
        assert abs(checked.evidence - math.log(0.5)) < 4 * checked.evidence_se
        assert checked.evidence_se == pytest.approx(math.sqrt(1 / 2000), rel=0.1)
        assert checked.missing == pytest.approx(0, abs=1e-9)
        assert checked.weighted_draws().mean == pytest.approx(-math.sqrt(2 / math.pi), abs=0.08)

    def test_told_noise_does_not_raise_the_evidence(self):
        rng = np.random.default_rng(3)
        fit = by_hand(0.0, 1.0)
        noisy = fit.check(4000, lambda x: (rng.normal(0.0, 1.0), 1.0))
        assert abs(noisy.evidence) < 4 * noisy.evidence_se  # 0.5 without the correction
        assert noisy.evidence_se < 0.03

    def test_a_complete_posterior_that_is_not_is_no_longer_converged(self):
        report = Report(converged=True, stop_kind=StopKind.MISSING, stop_reason="all there", seed=1)
        checked = replace(by_hand(0.7, 1.0), record=report).check(2000, lambda x: 0.0)
        assert not checked.converged
        assert checked.stop_kind is StopKind.CHECKED
        assert "about 0.2" in checked.stop_reason  # 0.7^2 / 2
        assert replace(by_hand(0.1, 1.0), record=report).check(2000, lambda x: 0.0).converged

    @pytest.mark.parametrize("n", [0, 2.5, "many"])
    def test_a_wrong_number_of_draws(self, fit, n):
        with pytest.raises((TypeError, ValueError), match="`n` must be"):
            fit.check(n)

    def test_free_posteriors_are_checked_too(self):
        fit = qbvi.fit(lambda x: -((x[0] ** 2 - x[1]) ** 2) - (x[0] - 1) ** 2 / 4, qbvi.Normal(0, 3, shape=2), seed=1)
        checked = fit.check(500)
        assert abs(checked.evidence - fit.evidence) < 4 * math.hypot(checked.evidence_se, fit.evidence_se)
        assert checked.missing < 0.1


class TestExpect:
    def test_weights_correct_the_approximation(self, fit, checked):
        second = exact(np.square) / exact(np.ones_like)
        found = checked.expect(np.square)
        assert abs(found.value - second) < 4 * found.se
        assert found.is_weighted
        plain = fit.expect(np.square)
        assert not plain.is_weighted
        assert plain.value == pytest.approx(fit.sd**2, rel=1e-6)
        assert abs(plain.value - second) > 0.02

    def test_arrays_and_stacked_points(self, checked):
        one = checked.expect(lambda x: np.array([[x, x**2]]))
        many = checked.expect(lambda x: np.stack([x, x**2], axis=1)[:, None], vectorized=True)
        assert_allclose(one.value, many.value)
        assert_allclose(one.se, many.se)
        assert one.value.shape == (1, 2)
        with pytest.raises(ValueError, match="`f` must return one value for each"):
            checked.expect(np.sum, vectorized=True)

    def test_the_error_is_that_of_repeated_checks(self, fit):
        found = [fit.check(300, seed=seed).expect(np.square) for seed in range(40)]
        spread = np.std([one.value for one in found], ddof=1)
        # The sd of 40 values is known to 11 %: four standard errors.
        assert spread == pytest.approx(np.mean([one.se for one in found]), rel=0.45)

    def test_weighted_draws_need_a_check(self, fit):
        with pytest.raises(ValueError, match="`check` buys some"):
            fit.weighted_draws()

    def test_named_draws_keep_the_structure_of_the_prior(self):
        prior = {"a": qbvi.Normal(0, 1, shape=2), "s": qbvi.HalfNormal(1)}
        fit = qbvi.fit(lambda t: -float(t["a"] @ t["a"]) - float(t["s"]), prior, family="full", seed=1).check(200)
        draws = fit.weighted_draws()
        assert {name: x.shape for name, x in draws.draws.items()} == {"a": (200, 2), "s": (200,)}
        assert draws.mean["a"].shape == (2,)
        assert draws.sd["s"] > 0
        assert 0 < draws.ess <= 200
        assert fit.expect(lambda t: t["a"][0] + t["s"]).ess == draws.ess


class TestWeights:
    def test_smoothing_tames_the_largest(self):
        h = 2.0 * np.random.default_rng(1).standard_normal(1000)
        raw, smooth = np.exp(h) / np.exp(h).sum(), smoothed_weights(h)
        assert smooth.sum() == pytest.approx(1)
        assert np.array_equal(np.argsort(raw), np.argsort(smooth))
        assert smooth.max() < raw.max()

    def test_zeros_and_few_draws(self):
        assert_allclose(smoothed_weights(np.array([0.0, math.log(3), -math.inf])), [0.25, 0.75, 0])
        with pytest.raises(ValueError, match="`h` must be finite"):
            smoothed_weights(np.full(3, -math.inf))

    def test_a_draw_of_weight_zero_may_be_anything(self):
        draws = WeightedDraws(np.array([1.0, -1.0]), np.array([1.0, 0.0]))
        with np.errstate(invalid="ignore"):
            assert draws.expect(np.log).value == 0

    def test_rounding_errors_have_no_tail(self):
        h = 1e-5 * np.random.default_rng(1).standard_t(1, size=500)
        assert Ratios.of(h, np.zeros(500)).figures()["khat"] == -math.inf


def by_hand(mean, sd):
    family = Gaussian(1)
    q = family.from_moments(np.array([mean]), np.array([[sd**2]]))
    return Fit(Model(PRIOR), family, q, Report(seed=1))


def test_the_source_is_no_part_of_the_fit(fit):
    assert isinstance(fit._source, Source)
    assert "_source" not in fit.__getstate__()
    assert "quartic" not in repr(fit)
