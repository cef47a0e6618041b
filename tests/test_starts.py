"""Several starts: which fits are of the same mode, and how modes are combined."""

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import qbvi
from qbvi.ending import StopKind
from qbvi.families import Gaussian, Mixture
from qbvi.model import Model
from qbvi.results import Fit, Report
from qbvi.starts import combined

mpl.use("Agg")
PRIOR = qbvi.Normal(0, 10, shape=2)


def one(mean, sd=(1.0, 1.0), evidence=-5.0, converged=True, **report):
    family, kind = Gaussian(2), StopKind.GAP if converged else StopKind.EVALUATIONS
    q = family.start(np.array(mean, dtype=float), np.array(sd, dtype=float))
    figures = {"elbo": evidence - 0.1, "elbo_se": 0.01, "evidence": evidence, "evidence_se": 0.01, "missing": 0.1}
    figures |= {"missing_se": 0.01, "khat": 0.3, "khat_draws": 100, "n_evals": 50, "stop_kind": kind}
    report = Report(**figures | {"converged": converged, "stop_reason": "it ended"} | report)
    return Fit(Model(PRIOR), family, q, report)


def test_weights_are_those_of_the_evidence():
    fit = combined([one([0, 0], evidence=-7.0), one([30, 0], evidence=-5.0), one([30, 0.1], evidence=-5.0)])
    assert isinstance(fit.family, Mixture)
    weights, _ = fit.family.unpack(fit.q)
    assert_allclose(weights, np.array([1, np.exp(-2)]) / (1 + np.exp(-2)))
    assert fit.evidence == pytest.approx(np.logaddexp(-5, -7))
    assert fit.missing == pytest.approx(0.1)
    assert fit.elbo == pytest.approx(fit.evidence - 0.1)
    assert 0.007 < fit.evidence_se < 0.01
    assert fit.n_evals == 150
    assert fit.converged
    assert "3 starts: 3 converged; 2 modes are combined" in fit.notes[0]


def test_a_mode_far_below_does_not_matter():
    fit = combined([one([0, 0], evidence=-16.0), one([30, 0], evidence=-5.0)])
    assert isinstance(fit.family, Gaussian)
    assert_array_equal(fit.mean, [30, 0])
    assert "1 of them where this one did (bound -5.10), 1 elsewhere" in fit.notes[0]


def test_all_that_matter_must_have_converged():
    others = [one([30, 0]), one([30.1, 0], converged=False, evidence=-4.9)]
    assert combined(others).converged  # a second look at the same mode takes nothing back
    fit = combined([*others, one([-30, 0], converged=False, evidence=-8.0)])
    assert not fit.converged
    assert fit.stop_kind is StopKind.STARTS_DISAGREE
    assert "-8.10" in fit.stop_reason
    assert combined([*others, one([-30, 0], converged=False, evidence=-30.0)]).converged


def test_a_far_better_start_that_did_not_settle_wins():
    fit = combined([one([0, 0], evidence=-60.0), one([30, 0], evidence=-5.0, converged=False)])
    assert not fit.converged
    assert_array_equal(fit.mean, [30, 0])


def test_a_fit_of_two_modes_is_not_counted_twice():
    both = combined([one([0, 0]), one([30, 0])])
    again = combined([both, one([0, 0], evidence=-5.3), one([30, 0], evidence=-5.3)])
    assert again.evidence == both.evidence
    assert_array_equal(again.q, both.q)


def test_copies_are_named_as_such():
    def notes(*fits):
        return [note for note in combined(fits).notes if "copies" in note]

    first = one([-3, 30], sd=[1, 2])
    (note,) = notes(first, one([30, -3], sd=[2.1, 1.05], evidence=-5.02))
    assert note.startswith("2 of the modes look like copies of each other")
    assert not notes(first, one([30, -3], sd=[2, 1], evidence=-5.5))
    assert not notes(first, one([30, -3], sd=[3, 1]))
    (note,) = notes(first, one([30, -3], sd=[2, 1]), one([-30, -3], sd=[2, 1]), one([50, 50], sd=[9, 9]))
    assert note.startswith("3 of")


def test_an_evidence_that_is_not_known_is_replaced_by_the_bound():
    fit = combined([one([0, 0]), one([30, 0], evidence_se=np.inf)])
    assert_allclose(fit.family.unpack(fit.q)[0], np.array([1, np.exp(-0.1)]) / (1 + np.exp(-0.1)))
    assert fit.evidence_se == np.inf


def test_bounds_that_are_not_numbers():
    fit = combined([one([0, 0], elbo=np.nan, evidence=np.nan, converged=False), one([30, 0])])
    assert_array_equal(fit.mean, [30, 0])
    assert not combined([one([0, 0], elbo=np.nan, evidence=np.nan, converged=False)]).converged


def test_a_mixture_is_saved_drawn_checked_and_continued(tmp_path):
    fit = combined([one([0, 0]), one([30, 0], sd=[2, 1], evidence=-6)])
    fit.save(tmp_path / "fit.qbvi")
    loaded = qbvi.load(tmp_path / "fit.qbvi")
    assert loaded.family == fit.family
    assert_array_equal(loaded.sample(50, seed=1), fit.sample(50, seed=1))
    assert "a mixture of 2 modes" in repr(fit)
    lower, upper = fit.quantiles(np.array([0.1, 0.9]))
    assert lower[0] < 1
    assert upper[0] > 29
    fit.plot_marginals()
    fit.plot_pairs()
    assert fit.to_arviz(draws=20) is not None

    def two(x):
        a, b = np.logaddexp.reduce([-0.5 * np.sum(x**2), -1 - 0.5 * ((x[0] - 30) / 2) ** 2 - 0.5 * x[1] ** 2]), 0.01
        return a + 0.5 * b * float(x @ x)  # without the prior

    checked = replace(fit, record=replace(fit.record, seed=1)).check(500, two)
    # Component two has twice the volume: e^-1 * 2 against 1.
    assert checked.missing < 0.2
    assert np.isnan(checked.khat)  # unknown: the ratios have two values, one for each component
    assert checked.converged


def test_the_table_says_where_each_start_ended(tmp_path):
    fits = [
        one([0, 0], evidence=-7.0),
        one([30, 0], evidence=-5.0, n_evals=70),
        one([30.2, 0], evidence=-5.5, converged=False),
        one([-90, 0], evidence=-40.0),
    ]
    fit = combined(fits)
    assert [start.mode for start in fit.starts] == [1, 0, 0, 2]
    assert fit.starts.n_modes == 3
    assert [start.converged for start in fit.starts] == [True, True, False, True]
    assert [start.n_evals for start in fit.starts] == [50, 70, 50, 50]
    assert_allclose([start.bound for start in fit.starts], [-7.1, -5.1, -5.6, -40.1])
    high = 1 / (1 + np.exp(-2))
    assert_allclose([start.weight for start in fit.starts], [1 - high, high, high, 0])
    assert_allclose(fit.starts[2].mean, [30.2, 0])
    fit.save(tmp_path / "fit.qbvi")
    loaded = qbvi.load(tmp_path / "fit.qbvi")
    assert repr(loaded.starts) == repr(fit.starts)
    assert type(loaded.starts[0].mode) is int
    frame = fit.starts.to_pandas()
    assert list(frame.columns) == ["mode", "bound", "weight", "n_evals", "converged", "theta[0]", "theta[1]"]


def test_one_start_is_a_table_of_one_row():
    fit = one([3, 4])
    (start,) = fit.starts
    assert (start.mode, start.weight, start.bound) == (0, 1.0, fit.elbo)
    assert_array_equal(start.mean, [3, 4])


def test_modes_of_a_search_are_starts_on_the_users_scale():
    def unequal(theta):
        x = np.log(theta)
        apart = [0.5 * np.sum((x - 3) ** 2), 0.5 * np.sum(((x + 3) / 0.7) ** 2)]
        return float(np.logaddexp(np.log(0.7) - apart[0], np.log(0.3) - 4 * np.log(0.7) - apart[1]))

    fit = qbvi.fit(unequal, qbvi.LogNormal(0, 5, shape=4), seed=1)
    assert fit.starts.n_modes == 2
    high, low = sorted(fit.starts, key=lambda start: start.mode)
    assert high.bound > low.bound
    # Modes of the joint density on the log scale: the prior draws them towards zero.
    assert_allclose(np.log(high.mean), 3 / 1.04, atol=0.1)
    assert_allclose(np.log(low.mean), -3 / (1 + 0.49 / 25), atol=0.1)
    assert high.weight + low.weight == pytest.approx(1)
    assert high.weight == pytest.approx(0.69, abs=0.1)  # exp(-7.57) against exp(-8.39)
    assert 0 < high.n_evals + low.n_evals < fit.n_evals


def test_exchangeable_means_have_two_copies():
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(-2, 0.7, 40), rng.normal(2, 0.7, 40)])

    def mixture(m):
        return float(np.logaddexp(*(-0.5 * ((y - at) / 0.7) ** 2 for at in m)).sum() - 80 * np.log(1.4))

    fit = qbvi.fit(mixture, qbvi.Normal(0, 3, shape=2), n_starts=4, seed=1)
    assert fit.converged
    assert_allclose(fit.mean[0], fit.mean[1], atol=0.1)
    assert any("2 of the modes look like copies" in note for note in fit.notes)
