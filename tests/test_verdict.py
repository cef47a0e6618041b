"""The closing verdict: each doubt on draws made for it, and none where the draws confirm the fit."""

from dataclasses import replace

import numpy as np
import pytest

import qbvi
from qbvi.diagnostics import Khat, judge_khat, missing_nats, pareto_khat
from qbvi.ending import Stop, StopKind
from qbvi.families import Gaussian
from qbvi.protocol import Values
from qbvi.report import Report
from qbvi.verdict import Look, Past, Verdict

FAMILY = Gaussian(1)
Q = FAMILY.start(np.zeros(1), np.ones(1))
SETTLED = Stop.of(StopKind.GAP, tol=0.01)


def look_at(residual, n=400, fails=lambda z: z > np.inf, seed=1):
    """Fresh draws from a standard normal with these residuals, functions of z, as are failures."""
    z = np.random.default_rng(seed).standard_normal((n, 1))
    h, failed = residual(z[:, 0]), fails(z[:, 0])
    values = Values(h, h, ~failed, np.zeros(n))
    return Look(FAMILY, Q, h[None, ~failed], float(np.mean(failed)), (z, values))


def judged(look, gap=0.001, fitted=None, khat=0.1, stop=SETTLED):
    stop = Verdict().judge(stop, look, gap, look.h.mean() if fitted is None else fitted)
    return Verdict().on_ratios(stop, look.h[0], khat, missing_nats(look.h[0]))


def small(z):
    """What a Gaussian does not follow, and nothing else: a Hermite polynomial of degree three."""
    return 0.05 * (z**3 - 3 * z)


def needle(z):
    """A floor, and one draw of 400 that is 29 nats above it."""
    return np.where(z == z.max(), 29.0, 0.0)


def test_draws_that_confirm_a_fit_leave_it_as_it_is():
    assert judged(look_at(small)) == SETTLED
    assert not Verdict().doubts(look_at(small), 0.001)


@pytest.mark.parametrize(
    ("look", "options", "kind"),
    [
        (look_at(lambda z: 0.5 * z), {}, StopKind.STILL_TO_GAIN),  # a slope: an eighth of a nat
        (look_at(lambda z: np.where(z == z.min(), -40.0, 0.0), n=200), {}, StopKind.LEFT_OPEN),  # one draw decides
        (look_at(small, fails=lambda z: z > 1), {}, StopKind.FAILURES),
        (look_at(small), {"fitted": 1.0}, StopKind.BOUND_BELOW),
        (look_at(lambda z: 30 * z, n=8), {}, StopKind.FAR_OFF),  # too few for least squares
        (look_at(needle), {"khat": np.nan}, StopKind.ONE_RATIO),
        (look_at(lambda z: 0.12 * (z**3 - 3 * z), n=1000), {"khat": 1.5}, StopKind.KHAT),
    ],
    ids=lambda value: value.value if isinstance(value, StopKind) else "",
)
def test_each_doubt_takes_a_convergence_back_and_says_so(look, options, kind):
    stop = judged(look, **options)
    assert stop.kind is kind
    assert not stop.converged
    assert "but" in stop.reason


@pytest.mark.parametrize(("dtype", "is_rounding"), [(np.float32, True), (np.float64, False)])
def test_a_bound_that_differs_by_the_rounding_of_single_precision_confirms_the_fit(dtype, is_rounding):
    """Half a million has a rounding of up to 0.06 nats in single precision."""
    look = look_at(small)
    theta, values = look.draws
    values = values._replace(log_joint=values.log_joint.astype(dtype))
    look = replace(look, h=look.h - 5.2e5, draws=(theta, values))
    assert judged(look, fitted=float(look.h.mean()) + 0.2).converged is is_rounding


def test_failures_by_chance_neither_forbid_a_convergence_nor_hide_what_is_missing():
    def often(z):
        return np.arange(len(z)) % 3 == 0

    assert judged(look_at(small, fails=often)) == SETTLED
    assert not Verdict().doubts(look_at(small, fails=often), 0.001)
    missing = look_at(lambda z: 0.5 * z, fails=often)
    assert judged(missing).kind is StopKind.STILL_TO_GAIN
    assert Verdict().doubts(missing, 0.001)


def test_a_family_that_was_not_asked_for_must_match_the_posterior():
    """Log ratios with a standard deviation of 0.5 miss an eighth of a nat."""
    h = 0.5 * np.random.default_rng(1).standard_normal(1000)
    asked, default = Verdict(), Verdict(most_missing=0.05)
    assert asked.on_ratios(SETTLED, h, khat=0.2, missing=0.125) == SETTLED
    assert default.on_ratios(SETTLED, h, khat=0.2, missing=0.04) == SETTLED
    stop = default.on_ratios(SETTLED, h, khat=0.2, missing=0.125)
    assert stop.kind is StopKind.FAMILY
    assert "0.12 nats of the posterior are missing" in stop.reason


def test_what_was_predicted_is_no_news():
    """An eighth of a nat to be gained, where the method said that a tenth would be missing."""
    look = look_at(lambda z: 0.5 * z)
    assert judged(look, gap=0.1) == SETTLED
    assert not Verdict().doubts(look, 0.1)


def test_suspicion_sends_a_fit_on_before_there_is_proof():
    """0.03 nats: worth another turn of the loop, too little to take a convergence back."""
    look = look_at(lambda z: np.sqrt(0.06) * z)
    assert Verdict().doubts(look, 0.001)
    assert judged(look) == SETTLED


def test_khat_says_nothing_about_rounding_errors():
    assert judged(look_at(lambda z: 1e-4 * (z**3 - 3 * z)), khat=3.0) == SETTLED


def test_a_fit_that_did_not_settle_stays_that_way():
    spent = Stop.of(StopKind.EVALUATIONS, evaluations=100, budget="budget")
    assert judged(look_at(lambda z: 5 * z), stop=spent) == spent


def test_with_mini_batches_least_squares_is_not_asked():
    groups = np.stack([0.5 * np.random.default_rng(i).standard_normal(50) for i in range(4)])
    assert judged(Look(FAMILY, Q, groups, 0.0)) == SETTLED


def test_numbers_of_the_rule_are_its_own():
    look = look_at(lambda z: 0.5 * z)
    assert Verdict(proven_gain=0.2).judge(SETTLED, look, 0.001, look.h.mean()) == SETTLED


class TestOneRuleForKhat:
    """The verdict and the words of a summary follow from the same function of k-hat, draws and missing nats."""

    def test_no_fit_is_converged_and_bad(self):
        """Over all k-hats, numbers of draws and scales of the ratios: bad if and only if not converged for its k-hat."""
        rng = np.random.default_rng(1)
        for _ in range(300):
            h = rng.uniform(0.0, 2.0) * rng.standard_normal(int(rng.integers(30, 3000)))
            khat, missing = float(rng.choice([rng.uniform(-1, 5), np.nan, np.inf])), missing_nats(h)
            stop = Verdict().on_ratios(SETTLED, h, khat, missing)
            report = Report(khat=khat, khat_draws=len(h), missing=missing).ended(stop)
            assert report.khat_verdict.startswith("bad") <= (not report.converged)
            assert stop.converged <= (judge_khat(khat, len(h), missing) is not Khat.BAD)

    def test_ties_at_the_cut_off_are_unknown(self):
        for hits in (1, 3, 10):
            h = np.r_[np.zeros(100 - hits), np.linspace(20, 29, hits)]
            khat, notes = pareto_khat(h)
            assert np.isnan(khat)
            assert "unknown" in notes[0]
            assert not Verdict().on_ratios(SETTLED, h, khat, missing_nats(h)).converged

    def test_ties_alone_are_no_reproach(self):
        """Few different values, as whole numbers have them, none of which outweighs the others."""
        h = 0.1 * np.repeat(np.arange(4.0), 25)
        assert np.isnan(pareto_khat(h)[0])
        assert Verdict().on_ratios(SETTLED, h, np.nan, missing_nats(h)) == SETTLED

    def test_noise_that_explains_the_ratios_is_no_reproach(self):
        h = 2.5 * np.random.default_rng(1).standard_normal(100)
        assert not Verdict().on_ratios(SETTLED, h, np.nan, missing_nats(h)).converged
        assert Verdict().on_ratios(SETTLED, h, np.nan, missing_nats(h) - 2.5**2 / 2).converged


class TestOrderAndPlaces:
    def test_a_drift_is_named(self):
        look = look_at(small)
        drifting = replace(look, h=look.h + 0.01 * np.arange(400))
        stop = judged(drifting)
        assert stop.kind is StopKind.ORDER
        assert "order of the calls" in stop.reason

    def test_independent_noise_is_not_accused(self):
        for seed in range(300):
            h = np.random.default_rng(seed).standard_normal((1, 100))
            assert judged(Look(FAMILY, Q, h, 0.0)).kind is not StopKind.ORDER

    @pytest.mark.parametrize(
        ("place", "height", "is_taken_back"), [(8.0, -1.0, True), (8.0, -30.0, False), (2.0, -1.0, False)]
    )
    def test_a_high_point_far_away_takes_a_convergence_back(self, place, height, is_taken_back):
        look, points = look_at(small), np.array([[0.0], [place]])
        stop = Verdict().on_points(SETTLED, look, Past(points, np.array([0.0, height]), noise=0.0))
        assert (stop.kind is StopKind.ELSEWHERE) == is_taken_back

    def test_noise_may_have_raised_it(self):
        look, points = look_at(small), np.array([[8.0]])
        assert Verdict().on_points(SETTLED, look, Past(points, np.array([1.0]), noise=4.0)) == SETTLED


def f_of_the_report(x):
    """A needle on a floor; no draw from the prior at the first seeds of these families comes near."""
    return max(-2 * float(np.sum((x - np.array([12.0, -9.0])) ** 2)), -30.0)


@pytest.mark.parametrize("family", ["full", "diagonal", "auto"])
@pytest.mark.parametrize("seed", [0, 2])
def test_no_fit_is_converged_at_the_prior(family, seed):
    fit = qbvi.fit(f_of_the_report, qbvi.Normal(0, 10, shape=2), family=family, seed=seed)
    assert not fit.converged or fit.evidence > -8


def test_log_ratios_that_hardly_vary_decide(rng):
    assert Verdict().is_decided(0.15 * rng.standard_normal(20))
    assert not Verdict().is_decided(0.4 * rng.standard_normal(20))


def test_a_gaussian_posterior_needs_a_fifth_of_the_fresh_draws():
    fit = qbvi.fit(lambda x: -0.5 * float(x @ x), qbvi.Normal(0, 3, shape=2), family="full", seed=1)
    assert fit.converged
    assert fit.record.khat_draws == 20
    # The evidence of a Gaussian: by conjugacy the sum of two variances, for each coordinate.
    assert abs(fit.evidence - (np.log(2 * np.pi) - np.log(2 * np.pi * 10))) < 1e-6
    assert list(fit.evaluations.stage).count("fresh") == 20


def test_a_posterior_that_no_gaussian_follows_has_all_fresh_draws():
    fit = qbvi.fit(lambda x: float(np.sum(x - np.exp(x))), qbvi.Normal(0, 3, shape=2), family="full", seed=1)
    assert fit.record.khat_draws >= 100
    assert fit.missing > 0.01


def test_a_function_that_fails_at_some_of_the_first_draws_has_them_all():
    failing = lambda x: np.nan if x[0] > 1.2 else -0.5 * float(x @ x)
    fit = qbvi.fit(failing, qbvi.Normal(0, 3, shape=2), family="full", seed=1, on_failure="exclude", max_evals=600)
    assert not fit.converged
    assert fit.record.khat_draws > 20
