"""Log ratios with noise: figures against exact values, and what is said of k-hat."""

import numpy as np
import pytest

from qbvi.diagnostics import Judged, pareto_khat
from qbvi.ending import Stop, StopKind
from qbvi.families import Gaussian
from qbvi.noise import Noise
from qbvi.protocol import Values
from qbvi.verdict import Look, Past, Verdict

SETTLED = Stop.of(StopKind.GAP, tol=0.01)


@pytest.mark.parametrize(("signal", "noise"), [(0.0, 3.0), (0.3, 1.0), (0.5, 0.1), (1.0, 0.5)])
def test_evidence_and_missing_nats_are_those_of_the_signal(signal, noise):
    """Normal log ratios of variance s^2 miss s^2 / 2 nats, whatever the noise."""
    n, z = 4000, []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        h = -2.0 + signal * rng.standard_normal(n) + noise * rng.standard_normal(n)
        found = Noise(np.full(n, noise**2)).figures(h)
        z.append([(found.evidence - (-2.0 + signal**2 / 2)) / found.evidence_se])
        assert found.missing >= 0
        assert abs(found.missing - signal**2 / 2) < 5 * found.missing_se + 1e-9
    # Missing nats are cut off at zero, which biases the evidence by less than half a standard error.
    assert abs(np.mean(z)) < 0.5 + 4 / np.sqrt(40)
    assert 0.5 < np.std(z) < 1.5


def test_variances_that_differ_between_draws_are_used_one_by_one():
    rng = np.random.default_rng(1)
    r, sd = rng.standard_normal(20_000), rng.choice([0.1, 1.0], size=20_000)
    found = Noise(sd**2).figures(r + sd * rng.standard_normal(20_000))
    assert abs(found.evidence - 0.5) < 4 * found.evidence_se
    assert found.evidence_se < 0.05


def test_an_uncertain_noise_makes_the_evidence_uncertain():
    h = 2.0 * np.random.default_rng(1).standard_normal(400)
    known, guessed = (Noise(np.full(400, 4.0), error).figures(h) for error in (0.0, 0.5))
    assert known.evidence_se < 0.3
    assert guessed.evidence_se == pytest.approx(np.hypot(known.evidence_se, 1.0))  # half of four, times a half


def test_noise_that_hides_the_ratios_leaves_khat_unknown_and_the_fit_converged():
    h = 6.0 * np.random.default_rng(2).standard_normal(100)
    assert pareto_khat(h)[0] > 1
    judged = Judged.by(h, Noise(np.full(100, 36.0), 0.3))
    assert np.isnan(judged.khat)
    assert Verdict().on_ratios(SETTLED, judged.ratios, judged.khat, judged.proven) == SETTLED
    without = Judged.by(h, Noise(np.zeros(100)))
    assert not Verdict().on_ratios(SETTLED, without.ratios, without.khat, without.proven).converged


def test_a_misfit_above_the_noise_is_still_seen():
    rng = np.random.default_rng(3)
    h = 5.0 * rng.standard_normal(400) + rng.standard_normal(400)
    judged = Judged.by(h, Noise(np.ones(400), 0.2))
    assert not Verdict().on_ratios(SETTLED, judged.ratios, judged.khat, judged.proven).converged


def test_a_high_point_counts_only_where_its_own_noise_does_not_explain_it():
    family, z = Gaussian(1), np.random.default_rng(1).standard_normal((100, 1))
    q = family.start(np.zeros(1), np.ones(1))
    log_joint = -0.5 * z[:, 0] ** 2
    look = Look(
        family, q, np.zeros((1, 100)), 0.0, (z, Values(log_joint, log_joint, np.ones(100, bool), np.zeros(100)))
    )
    points = np.array([[0.0], [20.0]])
    for noise, is_kept in [(np.array([0.0, 100.0]), True), (np.array([100.0, 0.0]), False)]:
        assert (Verdict().on_points(SETTLED, look, Past(points, np.array([0.0, 3.0]), noise)) == SETTLED) is is_kept
