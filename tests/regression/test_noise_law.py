"""Noise that changes from place to place: its law, and fits of functions whose exact expectation is known."""

import numpy as np
import pytest

import qbvi
from qbvi.families import Gaussian
from qbvi.protocol import Values
from qbvi.regression.noise import Repeats, law_around
from qbvi.regression.rules import NoiseCheck
from sweeps import sweep

RULE = NoiseCheck()
FAMILY = Gaussian(3)
Q = FAMILY.start(np.zeros(3), np.ones(3))


def repeats_of(variance, theta, rng):
    """Points that were evaluated twice, with normal noise of these variances."""
    noise = np.sqrt(variance) * rng.standard_normal((2, len(theta)))
    return Repeats.none(theta.shape[1]).add(theta, *noise, RULE)


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_law_is_found(power, rng):
    """2,000 differences know a variance to 3 %, so the level is within 15 % and the power within a step."""
    theta = rng.standard_normal((2000, 3)) * rng.choice([1.0, 10.0], size=(2000, 1))
    variance = 0.7 * ((1 + np.sum(theta**2, axis=1) / 5) / (1 + 3 / 5)) ** power
    law = law_around(FAMILY, Q, repeats_of(variance, theta, rng), RULE)
    assert law.power == pytest.approx(power, abs=0.25)
    assert law.level == pytest.approx(0.7, rel=0.15)
    np.testing.assert_allclose(law.at(np.array([3.0])), law.level)


def test_points_far_away_do_not_decide_the_level(rng):
    """Noise of a million nats at 30 standard deviations: no power follows that, and the level at q stays."""
    near, far = rng.standard_normal((100, 3)), 30 + rng.standard_normal((100, 3))
    variance = np.r_[np.full(100, 0.25), np.full(100, 1e12)]
    law = law_around(FAMILY, Q, repeats_of(variance, np.concatenate([near, far]), rng), RULE)
    assert law.power == RULE.steepest
    # At the steepest power the level weights the near points unevenly, so it is good to a factor of two or three.
    assert 0.1 < law.level < 0.8


def test_without_differences_there_is_no_noise():
    same = Repeats.none(3).add(np.ones((4, 3)), np.ones(4), np.ones(4), RULE)
    assert law_around(FAMILY, Q, same, RULE).level == 0
    failed = Repeats.none(3).add(np.ones((4, 3)), np.full(4, -np.inf), np.ones(4), RULE)
    assert len(failed.variance) == 0
    assert law_around(FAMILY, Q, failed, RULE).level == 0


def test_the_upper_limit_covers_the_variance(rng):
    """A limit that one in ten samples exceeds: of 4,000 samples, 10 % +- 2 %."""
    estimates = np.mean(rng.standard_normal((4000, 6)) ** 2, axis=1)
    missed = np.mean([RULE.upper_limit(v, 6) < 1 for v in estimates])
    assert missed == pytest.approx(RULE.chance, abs=0.02)


class Distant:
    """A Gaussian log-likelihood, 200 nats down at the start, with noise that grows with the depth below its mode.

    Under N(0, 3^2) for each of two parameters, and with the likelihood -2 |x - c|^2, posterior and evidence are exact.
    """

    centre = np.array([6.0, -8.0])
    variance = 1 / (4 + 1 / 9)
    mean = 4 * centre * variance
    # Log of the integral of exp(-2 |x - c|^2) N(x; 0, 9 I).
    evidence = float(np.log(1 / (1 + 36)) - np.sum(centre**2) / (2 * (9 + 0.25)))

    def __init__(self, seed, returns=False):
        self.rng, self.returns = np.random.default_rng(seed), returns

    def __call__(self, x):
        depth = 2 * np.sum((x - self.centre) ** 2)
        sd = 0.3 + 0.1 * depth
        value = -depth + sd * self.rng.standard_normal()
        return (value, sd) if self.returns else value


@pytest.mark.parametrize(
    ("returns", "options"),
    [
        (False, {}),
        (True, {}),
        (False, {"method": "regression"}),
        (False, {"family": "diagonal", "method": "mean-field"}),
        (True, {"method": "ridge"}),
    ],
    ids=["default", "returned", "regression", "mean-field", "ridge"],
)
def test_noise_that_falls_by_a_hundred_on_the_way_is_followed(returns, options):
    fit = qbvi.fit(Distant(3, returns), qbvi.Normal(0, 3, shape=2), seed=3, **options)
    mean, cov = fit.unconstrained
    apart = (mean - Distant.mean) / np.sqrt(Distant.variance)
    whitened = cov / Distant.variance
    gap = 0.5 * (apart @ apart + np.trace(whitened) - 2 - np.linalg.slogdet(whitened)[1])
    assert fit.converged
    assert gap < 0.15  # three times the tolerance
    assert fit.evidence_se < 0.5
    assert abs(fit.evidence - Distant.evidence) < 4 * fit.evidence_se
    assert fit.missing < 4 * fit.missing_se + gap + 1e-9
    if options.get("method") != "ridge":
        assert fit.n_evals < 200 * (2 + 2)


def test_noise_is_measured_where_there_is_a_likelihood():
    """At the start it is zero, and zero is the same each time. The fit took the function for one without noise."""
    rng, wall = np.random.default_rng(1), 0.5

    def noisy(x):
        return -2 * np.sum((x - 3) ** 2) + rng.standard_normal() if np.min(x) > wall else -np.inf

    fit = qbvi.fit(noisy, qbvi.Normal(0, 3, shape=2), seed=1)
    exact = np.log(1 / 37) - 2 * 9 / (2 * 9.25)  # the wall is five standard deviations from the mode
    assert any("noisy" in note for note in fit.notes)
    assert fit.converged
    assert fit.n_evals < 200 * (2 + 2)
    assert abs(fit.evidence - exact) < 4 * fit.evidence_se


def test_a_function_without_noise_is_evaluated_twice_at_four_points_only():
    fit = qbvi.fit(lambda x: -np.sum(x**4), qbvi.Normal(0, 1, shape=2), family="full", seed=1)
    assert fit.n_evals - len(np.unique(fit.evaluations.unconstrained, axis=0)) == RULE.repeated


@pytest.mark.parametrize("family", sweep(["full", "auto"], first=1))
def test_noise_of_six_nats_is_no_misfit(family):
    rng, prior = np.random.default_rng(5), qbvi.Normal(0, 3, shape=2)
    fit = qbvi.fit(lambda x: -2 * np.sum((x - 1) ** 2) + 6 * rng.standard_normal(), prior, family=family, seed=5)
    assert np.isnan(fit.khat)
    if family == "full":
        assert any("k-hat is not known: noise" in note for note in fit.notes)
    assert fit.converged
    exact = np.log(1 / 37) - 2 / (2 * 9.25)
    assert abs(fit.evidence - exact) < 4 * fit.evidence_se
    checked = fit.check(200)
    assert np.isnan(checked.khat)
    assert abs(checked.evidence - exact) < 4 * checked.evidence_se


def test_ridge_gives_less_weight_to_draws_with_more_noise(rng):
    family, method = Gaussian(1), qbvi.Ridge(n_samples=16, n_remembered=16)
    q = family.start(np.zeros(1), np.ones(1))
    theta = method.ask(family, method.init(family, q), rng)
    sd = np.where(np.arange(16) < 8, 1.0, 3.0)
    weights = []
    for noise_sd in (np.zeros(16), sd):
        values = Values(np.zeros(16), np.zeros(16), np.ones(16, dtype=bool), noise_sd)
        state, _ = method.tell(family, q, method.init(family, q), theta, values)
        peak = family.log_prob(q, np.zeros((1, 1)))[0]
        weights.append(method._weighted(family, q, peak, state)[0].weight)
    # The mean variance is five, so the variances of nine count 9/5 times as much.
    np.testing.assert_allclose(weights[1][:8], weights[0][:8])
    np.testing.assert_allclose(weights[1][8:], weights[0][8:] * 5 / 9)
