"""The width of a start where the prior is flat: found outwards, and left alone where something tells it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import qbvi
from qbvi.random import orthogonal_pairs
from qbvi.regression.rules import WidthRule
from qbvi.regression.width import Width, slopes

RULE = WidthRule()


def found(function, d=3, is_flat=None):
    """Factors by which a start at zero, with a unit of one, should be wider."""
    is_flat = np.ones(d, dtype=bool) if is_flat is None else np.array(is_flat)
    width = Width.begin(np.zeros(d), np.ones(d), is_flat)
    while not width.is_over:
        width = width.told(function(width.ask(RULE)), RULE)
    assert width.n_told <= RULE.rungs
    return width.widening


def test_slopes_are_those_of_the_linear_part():
    z = orthogonal_pairs(np.random.default_rng(1), 8, 3)
    slope = np.array([0.5, -2.0, 0.0])
    assert_allclose(slopes(z, z @ slope + np.sum(z**2, axis=1) + 7), slope, atol=1e-12)
    assert np.isnan(slopes(z, np.where(np.arange(8) == 3, -np.inf, 0.0))).all()


@pytest.mark.parametrize("sd", [3.0, 300.0, 3e7])
def test_the_width_is_within_an_order_of_magnitude(sd):
    factors = found(lambda u: -0.5 * np.sum((u / sd) ** 2, axis=1))
    assert np.all((sd / 10 < factors) & (factors <= sd))


def test_only_flat_coordinates_are_widened():
    factors = found(lambda u: -0.5 * np.sum((u / 500) ** 2, axis=1), is_flat=[True, False, True])
    assert_allclose(factors, [100, 1, 100])


def test_small_slopes_count_as_flat_if_they_are_common():
    """Cubic terms of steep coordinates hide slopes of a millionth; of many slopes some are small by chance."""
    is_flat_prior = np.array([False, True, True, True, True])
    raw = np.array([50.0, 2e-3, 8e-3, 1e-2, 9.0])
    np.testing.assert_array_equal(RULE.is_flat(raw, is_flat_prior, 0.0), [False, True, True, True, False])
    by_chance = np.array([50.0, 2e-3, 0.8, 1.3, 9.0])
    assert not RULE.is_flat(by_chance, is_flat_prior, 0.0).any()
    np.testing.assert_array_equal(
        RULE.is_flat(by_chance * [1, 1e-2, 1, 1, 1], is_flat_prior, 0.0), [False, True, *[False] * 3]
    )


def test_slopes_within_the_cubic_terms_count_as_flat():
    """A slope is known no better than terms of degree three allow; one above them is one."""
    slopes, is_flat_prior = np.array([80.0, 0.2, 0.5, 0.4, 30.0]), np.array([False, True, True, True, True])
    assert not RULE.is_flat(slopes, is_flat_prior, 0.1).any()
    np.testing.assert_array_equal(RULE.is_flat(slopes, is_flat_prior, 1.6), [False, True, True, True, False])


def test_effects_beside_a_slope_in_raw_units_are_widened():
    """The slope of a column of twenty under a wide prior: its square times a log scale hides those of the effects."""
    rng = np.random.default_rng(54)
    group, x = np.repeat(np.arange(10), 5), rng.uniform(0, 20, 50)
    y = rng.normal(900, 300, 10)[group] + 40 * x + rng.normal(0, 250, 50)

    def log_likelihood(p):
        z = (y - p["a"][group] - p["b"] * x) / p["s"]
        effects = (p["a"] - p["mu"]) / p["tau"]
        return -0.5 * (z @ z + effects @ effects) - 50 * np.log(p["s"]) - 10 * np.log(p["tau"])

    wide, scale = qbvi.Normal(0, 1e4), qbvi.HalfCauchy(1000.0)
    prior = {"mu": wide, "tau": scale, "a": qbvi.Flat(10), "b": wide, "s": scale}
    for seed in (1, 2, 3):
        fit = qbvi.fit(log_likelihood, prior, family="full", seed=seed, max_evals=100, progress=False)
        u = fit.evaluations.unconstrained[:60]
        # All effects are moved together, further each time: a start of a hundredth moves them by less than one.
        assert np.abs(u[:, 2:12]).min(axis=1).max() >= 10


def test_each_coordinate_is_widened_up_to_its_own_end():
    """The slope of a column in the tens beside effects that vary by thousands."""
    sd = np.array([3e5, 40.0, 5e3, 5e3])
    factors = found(lambda u: -0.5 * np.sum((u / sd) ** 2, axis=1), d=4)
    assert np.all((sd / 20 < factors) & (factors <= sd))


@pytest.mark.parametrize(
    "function",
    [
        lambda u: np.zeros(len(u)),  # improper: nothing is known
        lambda u: 1e6 * u[:, 0],  # a slope: the start is elsewhere, not too narrow
        lambda u: np.where(np.any(u, axis=1), -np.inf, 0.0),
    ],
)
def test_without_an_end_of_the_flat_region_the_start_stays(function):
    assert_allclose(found(function), 1)


def schools(unit):
    """Eight schools in other units, centred; effects have a flat prior."""
    y = unit * np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    sd = unit * np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def log_likelihood(p):
        z = (p["theta"] - p["mu"][:, None]) / p["tau"][:, None]
        prior = -0.5 * np.sum(z**2, axis=1) - 8 * np.log(p["tau"])
        return prior - 0.5 * np.sum(((y - p["theta"]) / sd) ** 2, axis=1)

    prior = {"mu": qbvi.Normal(0, 5 * unit), "tau": qbvi.HalfCauchy(5 * unit), "theta": qbvi.Flat(8)}
    return log_likelihood, prior


def test_effects_in_other_units_start_at_their_own_width():
    """In units of a thousandth the start was 100,000 times too narrow, and ran into the neck of the funnel."""
    log_likelihood, prior = schools(1000.0)
    fit = qbvi.fit(log_likelihood, prior, vectorized=True, family="full", seed=1, max_evals=2000, progress=False)
    usual = qbvi.fit(*schools(1.0), vectorized=True, family="full", seed=1, max_evals=2000, progress=False)
    # A change of units by the factor k changes the log joint of 8 effects by no more than a constant.
    constant = fit.elbo - usual.elbo
    n = [len(each.trace) for each in (fit, usual)]
    # It was 27 nats. One Gaussian on a funnel has heavy ratios: its bound by fresh draws varies by
    # half a nat between seeds (1.1 to 1.6 for four of them).
    assert abs(constant) < 1.0
    assert n[0] < 1.5 * n[1] + 5


def test_a_start_on_the_scale_of_its_problem_pays_nothing():
    def gaussian(u):
        return -0.5 * np.sum((u - 1) ** 2, axis=1)

    n = [
        qbvi.fit(gaussian, qbvi.Flat(3), vectorized=True, family="full", seed=1, method=method, progress=False).n_evals
        for method in (qbvi.Regression(), qbvi.Regression(rules=without_widening()))
    ]
    assert n[0] == n[1]


def without_widening():
    rules = qbvi.Regression().rules
    return type(rules)(width=WidthRule(flat=0.0))
