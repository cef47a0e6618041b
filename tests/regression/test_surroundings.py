"""Points far from the result: the mass around them counts, not their height."""

from __future__ import annotations

import numpy as np
import pytest

from qbvi.ending import Stop, StopKind
from qbvi.families import Gaussian
from qbvi.protocol import Values
from qbvi.random import orthogonal_pairs
from qbvi.regression.rules import SurroundingsRule
from qbvi.regression.store import Store
from qbvi.regression.surroundings import curvature, log_density_around
from qbvi.verdict import Look, Past, Verdict

D = 6
FAMILY = Gaussian(D)
SETTLED = Stop.of(StopKind.GAP, tol=0.01)
HERE, THERE = np.zeros(D), np.full(D, 10.0)


def normal(mean: np.ndarray, sd: np.ndarray | float, log_mass: float = 0.0):
    """The log density of independent normals with this mass."""
    sd = np.broadcast_to(sd, (D,))
    level = log_mass - np.sum(np.log(sd)) - 0.5 * D * np.log(2 * np.pi)
    return lambda theta: level - 0.5 * np.sum(((theta - mean) / sd) ** 2, axis=1)


def gaussian(mean: np.ndarray, sd: np.ndarray | float) -> np.ndarray:
    return FAMILY.start(mean, np.broadcast_to(sd, (D,)).copy())


def store_of(log_joint, *batches: np.ndarray, noise: float = 0.0) -> Store:
    """Four sets of mirror pairs for each batch."""
    rng, store = np.random.default_rng(1), Store.empty(D)
    for q in batches:
        theta = FAMILY.transport(q, np.concatenate([orthogonal_pairs(rng, 2 * D, D) for _ in range(4)]))
        y = log_joint(theta) + noise * rng.standard_normal(len(theta))
        store = store.add(FAMILY, q, theta, y, np.zeros(len(theta)))
    return store


def verdict(log_joint, result: np.ndarray, *batches: np.ndarray) -> StopKind:
    """The verdict on a result, after these batches."""
    theta = FAMILY.draw(result, np.random.default_rng(2), 400)
    y = log_joint(theta)
    values = Values(y, y, np.ones(400, dtype=bool), np.zeros(400))
    look = Look(FAMILY, result, FAMILY.residual(result, theta, y)[None], 0.0, (theta, values))
    store = store_of(log_joint, *batches)
    around = lambda points: log_density_around(FAMILY, store, points, SurroundingsRule())
    return Verdict().on_points(SETTLED, look, Past(store.theta, store.y, 0.0, around)).kind


def two_modes(sd: float, log_mass: float):
    """A standard normal at one place and another normal elsewhere."""
    here, there = normal(HERE, 1.0), normal(THERE, sd, log_mass)
    return lambda theta: np.logaddexp(here(theta), there(theta))


@pytest.mark.parametrize("log_mass", [10.0, 0.0, -2.0])
@pytest.mark.parametrize("width", [1.0, 0.6, 0.01])
def test_a_mode_of_which_points_were_evaluated_takes_a_convergence_back(log_mass, width):
    """Whether its batch was as wide as the mode, somewhat narrower, or a narrow start."""
    sd = 0.5
    kind = verdict(two_modes(sd, log_mass), gaussian(HERE, 1.0), gaussian(THERE, width * sd))
    assert kind is StopKind.ELSEWHERE


def test_a_point_on_the_flank_of_a_heavier_mode_takes_a_convergence_back():
    batch = gaussian(THERE + np.r_[2.5, np.zeros(D - 1)], 1.0)
    assert verdict(two_modes(1.0, 6.0), gaussian(HERE, 1.0), batch) is StopKind.ELSEWHERE


def test_a_high_needle_without_mass_does_not():
    """Its top is 13 nats above the top of the result, but its mass is 1e-8 of it."""
    log_joint = two_modes(sd=0.01, log_mass=np.log(1e-8))
    top = float(log_joint(THERE[None])[0] - log_joint(HERE[None])[0])
    assert top > 9.0
    assert verdict(log_joint, gaussian(HERE, 1.0), gaussian(THERE, 0.01)) is StopKind.GAP
    # Without a batch as wide as the needle, the volume is not known, and the height decides.
    assert verdict(log_joint, gaussian(HERE, 1.0), gaussian(THERE, 0.0002)) is StopKind.ELSEWHERE


def test_the_neck_of_a_funnel_does_not():
    """With v standard normal, the mass below -6 is 1e-9; the log joint there is far higher."""

    def funnel(theta):
        v, x = theta[:, 0], theta[:, 1:]
        return -0.5 * v**2 - 0.5 * np.sum(x**2, axis=1) * np.exp(-2 * v) - (D - 1) * v - 0.5 * D * np.log(2 * np.pi)

    v = -6.0
    neck = gaussian(np.r_[v, np.zeros(D - 1)], np.r_[0.3, np.full(D - 1, np.exp(v))])
    result = gaussian(np.zeros(D), np.r_[0.4, np.full(D - 1, 0.8)])
    assert funnel(np.r_[v, np.zeros(D - 1)][None])[0] > funnel(np.zeros((1, D)))[0] + 10
    assert verdict(funnel, result, neck) is StopKind.GAP


def test_the_curvature_is_that_along_the_batch():
    store = store_of(normal(HERE, 2.0), gaussian(HERE, 1.0))
    found, error = curvature(FAMILY, store, store.past[0])
    np.testing.assert_allclose(found, 0.25, rtol=1e-9)
    assert error < 1e-9


def test_noise_does_not_pass_for_curvature():
    rule = SurroundingsRule()
    flat = lambda theta: np.zeros(len(theta))
    for width in (0.01, 0.1, 1.0):
        store = store_of(flat, gaussian(HERE, width), noise=3.0)
        found, error = curvature(FAMILY, store, store.past[0])
        assert not found - rule.errors * error > rule.least_curvature


def test_points_that_are_no_mirror_pairs_tell_nothing(rng):
    theta = rng.standard_normal((40, D))
    store = Store.empty(D).add(FAMILY, gaussian(HERE, 1.0), theta, normal(HERE, 1.0)(theta), np.zeros(40))
    assert np.isnan(curvature(FAMILY, store, store.past[0])).all()
    assert np.isnan(log_density_around(FAMILY, store, theta, SurroundingsRule())).all()
