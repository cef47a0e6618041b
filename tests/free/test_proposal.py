"""The proposal for importance sampling: its density integrates to one, and its draws follow it."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad

from qbvi.free.proposal import Proposal
from qbvi.free.rules import Integration

RULES = Integration()


def make(d, rng):
    A = rng.normal(size=(d, d))
    centres = rng.normal(size=(20, d)) @ A.T + 1
    cov = np.atleast_2d(np.cov(centres.T))
    return Proposal.around(centres, centres.mean(axis=0), cov, 0.3 * cov + 0.1 * np.eye(d), 20.0)


def test_the_density_integrates_to_one_in_one_dimension(rng):
    proposal = make(1, rng)
    total, _ = quad(lambda x: np.exp(proposal.log_prob(np.array([[x]]), RULES)[0]), -np.inf, np.inf, limit=400)
    assert_allclose(total, 1, atol=1e-6)


def test_the_density_integrates_to_one_in_two_dimensions(rng):
    proposal = make(2, rng)
    # The substitution x = sinh(s) makes the grid dense in the middle and takes it far into the tails.
    s = np.linspace(-9, 9, 500)
    x, jacobian = np.sinh(s), np.cosh(s)
    grid = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    u = proposal.mean + grid @ proposal.factor.T
    density = np.exp(proposal.log_prob(u, RULES)).reshape(500, 500)
    total = jacobian @ density @ jacobian * (s[1] - s[0]) ** 2 * np.prod(np.diagonal(proposal.factor))
    assert_allclose(total, 1, atol=1e-4)


def test_draws_have_the_density(rng):
    proposal = make(1, rng)
    u = proposal.draw(rng, 20_000, RULES)
    edges = np.linspace(-3, 5, 9)
    for low, high in pairwise(edges):
        mass, _ = quad(lambda x: np.exp(proposal.log_prob(np.array([[x]]), RULES)[0]), low, high)
        # Five standard errors of a share among 20,000 draws.
        error = 5 * np.sqrt(mass * (1 - mass) / 20_000) + 1e-9
        assert abs(np.mean((u > low) & (u <= high)) - mass) < error


@pytest.mark.parametrize("d", [1, 3])
def test_the_wide_part_has_its_share_and_its_spread(d, rng):
    proposal = make(d, rng)._replace(bandwidth=1e-9)
    u = proposal.draw(rng, 10_000, RULES)
    nearest = np.min(np.linalg.norm(u[:, None] - proposal.centres, axis=2), axis=1)
    assert_allclose(np.mean(nearest > 1e-6), RULES.wide, atol=1e-4)
    wide = np.linalg.solve(proposal.factor, (u[nearest > 1e-6] - proposal.mean).T).T
    variance = RULES.wide_scale**2 * RULES.wide_freedom / (RULES.wide_freedom - 2)
    # Heavy tails: the standard error of a variance among 2,000 draws is 0.06 of it at five degrees of freedom.
    assert_allclose(wide.var(axis=0), variance, rtol=0.3)


def test_the_bandwidth_is_the_normal_reference_rule(rng):
    centres = rng.normal(size=(100, 2))
    at = {n: Proposal.around(centres, np.zeros(2), np.eye(2), np.eye(2), n).bandwidth for n in (1.0, 10.0, 50.0, 1e9)}
    assert_allclose(at[50.0], 50 ** (-1 / 6))
    assert at[1.0] == at[10.0]  # never fewer than ten
    assert_allclose(at[1e9], 100 ** (-1 / 6))  # and never more than there are centres
