"""Targets on which a method may settle in the wrong place: needles, side modes, a comb, jumps, a drift.

A fit is falsely converged if it says `converged` and its evidence is a nat or more below the true one. Where no evaluated point
came near the mass that is missing, no method can know better, and products are not judged by points elsewhere: docs/reliability.md
names both limits, and the table counts them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

import qbvi
from attacks import Limit, attack
from qbvi.families import DiagonalGaussian

WRONG = 1.0  # nats by which the evidence of a fit may be wrong
SD = 10.0  # of the prior, in both coordinates
SIDE = np.linspace(-40.0, 40.0, 1601)  # of a grid, by which the evidence is computed


@dataclass(frozen=True)
class Hostile:
    """A function of points (n, 2), a start, and which points show the mass that a fit at a given mean may miss."""

    function: Any
    init: Any
    shows: Any

    @property
    def evidence(self):
        """By quadrature; the narrowest target has a standard deviation of ten steps of the grid."""
        grid = np.stack(np.meshgrid(SIDE, SIDE), axis=-1).reshape(-1, 2)
        log_joint = self.function(grid) - 0.5 * np.sum(grid**2, axis=1) / SD**2 - np.log(2 * np.pi * SD**2)
        return np.logaddexp.reduce(log_joint) + 2 * np.log(SIDE[1] - SIDE[0])


def needle(rng):
    """A narrow peak on a floor, anywhere under the prior; the first is that of a report."""
    centre = rng.uniform(-15, 15, size=2)
    return Hostile(
        lambda x: np.maximum(-2 * np.sum((x - centre) ** 2, axis=-1), -30.0),
        None,
        lambda x, mean: np.sum((x - centre) ** 2, axis=1) < 13.5,  # 3 nats above the floor
    )


def side_mode(rng):
    """A small mode near the start, and one with more mass at some distance."""
    small = rng.uniform(-5, 5, size=2)
    angle, distance = rng.uniform(0, 2 * np.pi), rng.uniform(6, 12)
    large = small + distance * np.array([np.cos(angle), np.sin(angle)])

    def function(x):
        near = -0.5 * np.sum((x - small) ** 2, axis=-1) / 0.5**2 - 4
        return np.logaddexp(near, -0.5 * np.sum((x - large) ** 2, axis=-1))

    return Hostile(function, small, lambda x, mean: np.sum((x - large) ** 2, axis=1) < 9)


def sinusoid(rng):
    """A comb of teeth, whose highest is not where the fit starts."""
    centre, phase, period = rng.uniform(-8, 8, size=2), rng.uniform(0, 2 * np.pi), rng.uniform(3, 6)

    def function(x):
        wave = 4 * np.sin(2 * np.pi * x[..., 0] / period + phase)
        return wave - 0.5 * np.sum((x - centre) ** 2, axis=-1) / 3**2

    def shows(x, mean):
        """A point in another tooth, at most three nats lower than the middle of this one."""
        return (np.abs(x[:, 0] - mean[0]) > period / 2) & (function(x) > function(mean) - 3)

    return Hostile(function, None, shows)


def complaint_of(hostile, fit):
    """What is wrong with a fit: it is converged and far off, or says two opposite words."""
    if fit.converged and "(bad" in repr(fit):
        return f"two opposite words:\n{fit!r}"
    if not fit.converged or not hostile.evidence > fit.evidence + WRONG:
        return ""
    if isinstance(fit.family, DiagonalGaussian):
        return Limit("converged elsewhere; a product is not judged by points far from it")
    if not hostile.shows(np.asarray(fit.evaluations.unconstrained), fit.mean).any():
        return Limit("converged elsewhere, and no evaluated point came near")
    return f"converged with a log evidence of {fit.evidence:.2f}, which is {hostile.evidence:.2f}"


def row(name, make, family):
    is_quick = family != "default"

    @attack(f"verdict: {name}, {family}", short=int(is_quick), long=20 if is_quick else 5)
    def trial(rng, folder):
        hostile = make(rng)
        seed = int(rng.integers(1000))
        fit = qbvi.fit(hostile.function, qbvi.Normal(0, SD, shape=2), init=hostile.init, seed=seed, **FAMILIES[family])
        return complaint_of(hostile, fit)


FAMILIES = {"default": {}, "one Gaussian": {"family": "full"}, "a product": {"family": "diagonal"}}
for family in FAMILIES:
    row("a needle on a floor", needle, family)
    row("a start near a small mode", side_mode, family)
    row("a comb", sinusoid, family)


def base(x, centre):
    return -0.5 * np.sum((x - centre) ** 2)


@attack("verdict: a function that jumps, one Gaussian", short=0, long=20)
def jumps(rng, folder):
    """3 sign(sin(50 x)): the best Gaussian covers all cells, the nearest local optimum only one."""
    centre = rng.normal(size=2)
    fit = qbvi.fit(
        lambda x: base(x, centre) + 3 * np.sign(np.sin(50 * x[0])),
        qbvi.Normal(0, 3, shape=2),
        family="full",
        seed=int(rng.integers(1000)),
        max_evals=1000,
    )
    if not fit.converged or fit.sd[0] > 0.5:
        return ""
    outside = np.abs(fit.evaluations.unconstrained[:, 0] - fit.mean[0]) > 0.07
    is_high = fit.evaluations.values > np.median(fit.evaluations.values[-100:]) - 3
    return "one cell" if (outside & is_high).any() else Limit("one cell, and no high point outside it")


@attack("verdict: a function that drifts, one Gaussian", short=1, long=20)
def drifts(rng, folder):
    """Each call adds 0.01 nats, or takes them away."""
    centre, calls, step = rng.normal(size=2), [], float(rng.choice([-0.01, 0.01]))

    def function(x):
        calls.append(1)
        return base(x, centre) + step * len(calls)

    fit = qbvi.fit(function, qbvi.Normal(0, 3, shape=2), family="full", seed=int(rng.integers(1000)), max_evals=600)
    return "converged" if fit.converged else ""


@attack("verdict: independent noise is not accused, one Gaussian", short=1, long=100)
def noisy(rng, folder):
    centre, sd = rng.normal(size=2), float(rng.choice([0.01, 0.1, 0.5, 1.0]))
    fit = qbvi.fit(
        lambda x: base(x, centre) + sd * rng.standard_normal(),
        qbvi.Normal(0, 3, shape=2),
        family="full",
        seed=int(rng.integers(1000)),
        max_evals=500,
    )
    return fit.stop_reason if fit.stop_kind.value in ("order", "elsewhere", "one-ratio") else ""
