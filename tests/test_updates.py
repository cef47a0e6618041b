"""Transformations of a direction: identities, order, and the paper's formulas."""

import numpy as np
import pytest

from qbvi.arrays import to_numpy
from qbvi.families import Gaussian, InverseGamma
from qbvi.steps import BoundedRate, InParameters, Plain
from qbvi.updates import Chain, ClipByNorm, Euclidean, LearningRate, Momentum, SeparateRates, Where


def at(t, xp=np, family=None, q=None):
    return Where(family, q, xp.asarray(float(t)))


def test_clipping_twice_is_clipping_once(rng, xp):
    clip, g = ClipByNorm(0.5), xp.asarray(rng.standard_normal(6))
    once, _ = clip(g, clip.init(g), at(0, xp))
    twice, _ = clip(once, clip.init(g), at(0, xp))
    np.testing.assert_allclose(to_numpy(once), to_numpy(twice), rtol=1e-14)
    assert np.isclose(np.linalg.norm(to_numpy(once)), 0.5)


def test_clipping_leaves_short_directions_alone_and_keeps_the_direction_of_long_ones(rng):
    g = rng.standard_normal(6)
    np.testing.assert_array_equal(ClipByNorm(100.0)(g, (), at(0))[0], g)
    clipped, _ = ClipByNorm(0.1)(g, (), at(0))
    np.testing.assert_allclose(clipped / np.linalg.norm(clipped), g / np.linalg.norm(g), rtol=1e-12)


def test_the_first_steps_have_their_own_bound():
    clip, g = ClipByNorm(1000.0, first_norm=10.0, first_steps=3), np.array([0.0, 500.0])
    assert [float(np.linalg.norm(clip(g, (), at(t))[0])) for t in range(5)] == [10.0, 10.0, 10.0, 500.0, 500.0]


def test_momentum_is_the_papers_recursion(rng, xp):
    momentum, directions = Momentum(0.4), rng.standard_normal((5, 3))
    memory, expected = momentum.init(xp.asarray(directions[0])), directions[0]
    for t, g in enumerate(directions):
        average, memory = momentum(xp.asarray(g), memory, at(t, xp))
        expected = g if t == 0 else 0.4 * expected + 0.6 * g
        np.testing.assert_allclose(to_numpy(average), expected, rtol=1e-12)


def test_the_rate_is_constant_and_then_falls_as_one_over_t(xp):
    rate = LearningRate(0.1, decay_after=800)
    applied = [float(rate(xp.ones(1), (), at(t, xp))[0][0]) for t in (0, 799, 1599)]
    np.testing.assert_allclose(applied, [0.1, 0.1, 0.05])
    assert float(LearningRate(0.3)(xp.ones(1), (), at(10_000, xp))[0][0]) == 0.3


def test_order_matters_and_is_the_one_written(rng):
    g = 10 * rng.standard_normal(4)
    clip_first = Chain((ClipByNorm(1.0), LearningRate(0.1)))
    rate_first = Chain((LearningRate(0.1), ClipByNorm(1.0)))
    lengths = [np.linalg.norm(chain(g, chain.init(g), at(0))[0]) for chain in (clip_first, rate_first)]
    np.testing.assert_allclose(lengths, [0.1, 1.0])


def test_separate_rates_decay_together(rng):
    family = Gaussian(2)
    q = family.start(np.ones(2), np.ones(2))
    g = rng.standard_normal(family.size)
    early, late = (SeparateRates(0.2, 0.2, decay_after=10)(g, (), at(t, np, family, q))[0] for t in (0, 99))
    np.testing.assert_allclose(early, 0.2 * g)
    np.testing.assert_allclose(late, 0.02 * g)


NATURAL, TEXTBOOK = BoundedRate(0.5), InParameters(0.5)


def steps_needed(target, step, updates, limit, close=1e-6):
    """How many steps one inverse gamma factor takes from alpha = 3, beta = 1 to within ``close`` nats of a conjugate posterior.

    The log-joint is ``phi . eta``, so the natural gradient ``eta - lam`` is known and nothing is random.
    """
    family = InverseGamma()
    eta, q = family.member(target), family.member({"alpha": 3.0, "beta": 1.0})
    for t in range(limit):
        if family.kl(q, eta) < close:
            return t
        direction, _ = updates(eta - q, updates.init(q), at(t, np, family, q))
        q, inside = step(family, q, direction)
        assert inside
    return limit


def test_the_three_updates_of_a_factor_have_one_fixed_point():
    """The paper's Appendix C: natural parameters (ii-a), textbook ones through their Fisher information (ii-b), Euclidean (iii)."""
    target = {"alpha": 6.0, "beta": 4.0}
    natural, euclidean = Chain((LearningRate(0.3),)), Chain((Euclidean(), LearningRate(0.3)))
    taken = [
        steps_needed(target, step, updates, 5000)
        for step, updates in [(NATURAL, natural), (TEXTBOOK, natural), (NATURAL, euclidean)]
    ]
    assert taken[0] == taken[1] < 40
    assert 10 * taken[0] < taken[2] < 5000
    family = InverseGamma()
    eta = family.member(target)
    for updates in (natural, euclidean):
        direction, _ = updates(eta - eta, updates.init(eta), at(0, np, family, eta))
        for step in (NATURAL, TEXTBOOK):
            np.testing.assert_allclose(step(family, eta, direction)[0], eta, rtol=1e-14)


def test_a_natural_step_does_not_know_units_and_a_euclidean_one_does():
    """The posterior of a variance of about 0.001, from 100 observations: beta lives on another scale than alpha."""
    target = {"alpha": 53.0, "beta": 0.05}
    natural = Chain((LearningRate(0.3),))
    assert steps_needed(target, NATURAL, natural, 100) < 60
    assert steps_needed(target, TEXTBOOK, natural, 100) < 60
    for rate in (0.3, 1e-3, 1e-5):  # too long in beta, or too short in alpha
        assert steps_needed(target, NATURAL, Chain((Euclidean(), LearningRate(rate))), 3000) == 3000


def test_moving_alpha_and_beta_by_the_inverted_fisher_information_is_the_natural_step(rng):
    """The paper prints the Fisher information of (alpha, beta); inverted and times the Euclidean gradient it gives the natural step."""
    family = InverseGamma()
    q = family.member({"alpha": 3.0, "beta": 2.0})
    c = 0.1 * rng.standard_normal(2)
    alpha_beta_gradient = -family.one_fisher(family._open(q))[0] @ c  # of E[phi . c], by the chain rule
    fisher = family.one_fisher(family._open(q))[0]
    change = np.linalg.solve(fisher, alpha_beta_gradient)
    moved, _ = TEXTBOOK(family, q, c)
    parameters = family.parameters(moved)
    moved_by = np.array([parameters["alpha"][0] - 3.0, parameters["beta"][0] - 2.0])
    np.testing.assert_allclose(moved_by, change, rtol=1e-12)
    np.testing.assert_allclose(moved, Plain()(family, q, c)[0], rtol=1e-12)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.2])
def test_the_share_of_the_way_out_is_a_share(delta):
    with pytest.raises(ValueError, match="`delta` must lie strictly between 0 and 1, got"):
        InParameters(delta)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClipByNorm(-1.0), "`max_norm` must be positive, got -1.0"),
        (lambda: Momentum(1.0), r"`gamma` must lie in \[0, 1\), got 1.0"),
        (lambda: LearningRate(0.0), "`rate` must be positive, got 0.0"),
    ],
)
def test_values_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
