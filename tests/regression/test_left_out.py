"""Correlations that a product leaves out: their cost against KL(q || p), which is known for normals, by sums and by quadrature."""

import math
import re
from itertools import product as every

import numpy as np
import pytest
import scipy.stats

import qbvi
from qbvi.families import Bernoulli, DiagonalGaussian, Gaussian, product
from qbvi.model import Model
from qbvi.regression.left_out import LeftOut, is_product, left_out

BLOCKS = product((Gaussian(2), Gaussian(1)), ((0, 2), (1,)))
CONTINUOUS = np.zeros(3, dtype=bool)


def correlated(rng, d=3):
    root = rng.standard_normal((d, d + 1))
    return root @ root.T


def best_product(family, cov):
    """The best member of a block-diagonal family for N(0, cov), and C of the residual in its whitened coordinates."""
    precision = np.linalg.inv(cov)
    kept = family.restrict(np.ones_like(cov)) != 0
    q = family.from_moments(np.zeros(len(cov)), np.linalg.inv(np.where(kept, precision, 0.0)))
    root = family.transport(q, np.eye(len(cov))) - family.mean(q)
    return q, np.eye(len(cov)) - root @ precision @ root.T


@pytest.mark.parametrize("family", [DiagonalGaussian(3), BLOCKS], ids=["diagonal", "blocks"])
def test_the_cost_is_exact_for_a_normal(family, rng):
    cov = correlated(rng)
    q, C = best_product(family, cov)
    found = left_out(family, q, C, CONTINUOUS)
    ratio = np.linalg.solve(cov, family.cov(q))
    kl = 0.5 * (np.trace(ratio) - 3 - np.linalg.slogdet(ratio)[1])
    sd = np.sqrt(np.diag(cov))
    apart = family.restrict(np.ones((3, 3))) == 0
    assert kl > 0.1
    np.testing.assert_allclose(found.nats, kl, rtol=1e-9)
    np.testing.assert_allclose(found.correlation, np.where(apart, cov / np.outer(sd, sd), 0.0), atol=1e-9)
    np.testing.assert_allclose(found.stretch, sd / family.sd(q), rtol=1e-9)


def test_to_second_order_it_is_half_the_sum_of_squared_cross_terms():
    """The next order is a third of tr C^3 / 2: relative to the second, of the size of C."""
    family = DiagonalGaussian(3)
    C = 0.01 * np.array([[0.0, 1.0, -2.0], [1.0, 0.0, 0.5], [-2.0, 0.5, 0.0]])
    found = left_out(family, family.start(np.zeros(3), np.ones(3)), C, CONTINUOUS)
    np.testing.assert_allclose(found.nats, 0.5 * np.sum(np.triu(C) ** 2), rtol=0.02)


def test_terms_within_a_block_do_not_count():
    q = BLOCKS.start(np.zeros(3), np.ones(3))
    within = np.zeros((3, 3))
    within[0, 2] = within[2, 0] = 0.9  # columns 0 and 2 share a block
    assert left_out(BLOCKS, q, within, CONTINUOUS).nats == pytest.approx(0, abs=1e-12)


def test_which_families_are_products():
    assert not is_product(Gaussian(3))
    assert not is_product(Bernoulli())
    assert is_product(Bernoulli(copies=2))
    assert is_product(DiagonalGaussian(2))
    assert is_product(BLOCKS)


def test_a_coupling_that_no_density_has_costs_a_finite_number():
    family = DiagonalGaussian(2)
    C = np.array([[0.0, 1.5], [1.5, 0.0]])
    found = left_out(family, family.start(np.zeros(2), np.ones(2)), C, np.zeros(2, dtype=bool))
    assert 2 < found.nats < 4


def cost(fit):
    """Nats in the note of a fit."""
    found = [re.search(r"which costs about (\S+) nats", note) for note in fit.notes]
    return float(next(match for match in found if match).group(1))


def test_two_switches_against_a_sum_over_their_states():
    """Rare switches, which are drawn from a flatter member; the third order is a tenth of the cost here."""
    f = lambda z: 1.2 * z[0] * z[1] - 1.5 * z[0] - 1.2 * z[1]
    fit = qbvi.fit(f, qbvi.Bernoulli(0.5, shape=2), seed=1)
    states = np.array(list(every([0.0, 1.0], repeat=2)))
    joint = np.array([f(z) for z in states]) + 2 * math.log(0.5)
    log_q = states @ np.log(fit.mean) + (1 - states) @ np.log1p(-fit.mean)
    kl = np.log(np.sum(np.exp(joint))) - np.exp(log_q) @ (joint - log_q)
    np.testing.assert_allclose(cost(fit), kl, rtol=0.2)


def test_a_switch_that_shifts_a_normal():
    """Given a fair switch s, x is N(0.8 s, 1): the residual is 0.4 z (2 s - 1), whose cost of 0.4^2 / 2 is exact."""
    f = lambda p: -0.5 * (p["x"] - 0.8 * p["s"]) ** 2
    fit = qbvi.fit(f, {"x": qbvi.Flat(shape=()), "s": qbvi.Bernoulli(0.5)}, seed=1)
    np.testing.assert_allclose(cost(fit), 0.08, rtol=0.02)
    (note,) = [note for note in fit.notes if "correlations" in note]
    assert "x and s" in note
    assert "default family" not in note  # which leaves them out too
    assert note in repr(fit.summary())


def line(rng, n=30):
    """A straight line far from its intercept: level and slope, both positive, are strongly correlated."""
    x = rng.uniform(1, 5, n)
    y = 3.0 + 1.5 * x + 0.1 * rng.standard_normal(n)
    prior = {"level": qbvi.Gamma(2.0, 0.5), "slope": qbvi.Gamma(2.0, 1.0)}

    def log_likelihood(p):
        level, slope = (np.asarray(p[name])[..., None] for name in prior)
        return -0.5 * np.sum((y - level - slope * x) ** 2, axis=-1) / 0.1**2

    return log_likelihood, prior


def by_quadrature(log_likelihood):
    """Standard deviations, correlation and log evidence of the line, on a grid that spans ten standard deviations."""
    a, b = np.meshgrid(np.linspace(2.5, 3.5, 401), np.linspace(1.35, 1.65, 401), indexing="ij")
    log_joint = log_likelihood({"level": a, "slope": b})
    log_joint = log_joint + scipy.stats.gamma(2, scale=2).logpdf(a) + scipy.stats.gamma(2).logpdf(b)
    top = log_joint.max()
    w = np.exp(log_joint - top)
    evidence = top + math.log(w.sum() * (a[1, 0] - a[0, 0]) * (b[0, 1] - b[0, 0]))
    cov = np.cov(np.stack([a.ravel(), b.ravel()]), aweights=w.ravel())
    return np.sqrt(np.diag(cov)), cov[0, 1] / math.sqrt(cov[0, 0] * cov[1, 1]), evidence


def test_gamma_priors_do_not_make_parameters_independent(rng):
    """On the log scale the posterior is close to normal, so a joint Gaussian has the right widths, and the product less than half."""
    f, prior = line(rng)
    sd, correlation, evidence = by_quadrature(f)
    assert correlation < -0.9
    joint = qbvi.fit(f, prior, vectorized=True, seed=1)
    assert joint.converged
    assert not any("correlations" in note for note in joint.notes)
    # The posterior is 2 % of its mean wide. Its ridge curves on the log scale, which narrows the best Gaussian by about 1 %.
    np.testing.assert_allclose([joint.sd["level"], joint.sd["slope"]], sd, rtol=0.02)
    assert evidence - joint.elbo < 0.05
    asked = qbvi.fit(f, prior, vectorized=True, family={name: "gamma" for name in prior}, seed=1)
    assert asked.sd["level"] < 0.5 * sd[0]
    np.testing.assert_allclose(cost(asked), -0.5 * math.log(1 - correlation**2), rtol=0.1)
    assert any("level and slope (-0.9" in note and "default family" in note for note in asked.notes)


@pytest.mark.parametrize("family", ["diagonal", [["level"], ["slope"]]], ids=["diagonal", "blocks"])
def test_gaussians_without_correlations_say_so_too(rng, family):
    f, prior = line(rng)
    _, correlation, _ = by_quadrature(f)
    fit = qbvi.fit(f, prior, vectorized=True, family=family, seed=1)
    np.testing.assert_allclose(cost(fit), -0.5 * math.log(1 - correlation**2), rtol=0.1)


def test_no_note_before_the_steps_are_short(rng):
    """After one iteration the cross terms are those of a start that is far too narrow."""
    f, prior = line(rng)
    fit = qbvi.fit(f, prior, vectorized=True, family="diagonal", seed=1, callback=lambda now: True)
    assert not any("correlations" in note for note in fit.notes)


def test_the_sentence_names_the_strongest_pairs():
    model = Model({"a": qbvi.Normal(0, 1), "b": qbvi.Normal(0, 1, shape=2), "p": qbvi.Dirichlet([1.0, 1.0, 1.0])})
    r = np.zeros((5, 5))
    for i, j, value in ((0, 1, 0.5), (0, 2, -0.9), (0, 3, 0.3), (1, 2, 0.2), (1, 3, 0.05)):
        r[i, j] = r[j, i] = value
    said = LeftOut(1.234, r, np.array([2.5, 1.0, 1.0, 1.0, 1.0])).sentence(model)
    assert "about 1.2 nats or more: a and b[1] (-0.90), a and b[0] (0.50), a and p (0.30), 1 more;" in said
    assert "standard deviation of a is about 2.5 times" in said
    assert "all of them small" in LeftOut(0.02, 0.01 * r, np.ones(5)).sentence(model)
