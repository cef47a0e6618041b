"""Densities with exact draws and a known integral: the likelihood is the density divided by the prior's.

Each function makes one random instance of its family. ``i`` runs over the instances: dimensions and difficulty follow it,
everything else is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import gammaln, logsumexp

import qbvi

from .problem import Exact, Problem

Array = NDArray[np.float64]
Generator = np.random.Generator
DECADES = (1.0, 1e-3, 1e3, 1e-1, 1e1, 1e-2, 1e2)  # unit of the parameters of instance i


class Target:
    """A normalised density on R^d: log density (n, d) -> (n,), and draws."""

    def __init__(self, d: int, log_prob: Callable[[Array], Array], draw: Callable[[Generator, int], Array]) -> None:
        self.d, self.log_prob, self.draw = d, log_prob, draw

    def moved(self, shift: Array, matrix: Array) -> Target:
        """The law of shift + matrix @ x."""
        inverse, log_det = np.linalg.inv(matrix), np.linalg.slogdet(matrix)[1]
        return Target(
            self.d,
            lambda u: self.log_prob((u - shift) @ inverse.T) - log_det,
            lambda rng, n: shift + self.draw(rng, n) @ matrix.T,
        )


def problem(target: Target, prior, log_evidence: float, **kwargs) -> Problem:
    """A problem over real parameters with this posterior and this log evidence."""
    names = {"name": "", "family": "", "shape": ""}
    flat = isinstance(prior, qbvi.Flat)

    def likelihood(x: Array) -> Array:
        value = target.log_prob(x) + log_evidence
        return value if flat else value - prior.log_prob(x)

    return Problem(**names, prior=prior, likelihood=likelihood, exact=Exact(log_evidence, target.draw), **kwargs)


def placed(target: Target, rng: Generator, i: int, rotate: bool = True, flat: bool | None = None) -> Problem:
    """The target in some unit, turned and shifted; every second time under a Gaussian prior wide enough to hold it."""
    d, unit = target.d, DECADES[i % len(DECADES)]
    spread = np.abs(np.quantile(target.draw(rng, 2000), [0.02, 0.98])).max()
    turn = rotation(rng, d) if rotate else np.eye(d)
    shift = unit * spread * rng.uniform(-1, 1, d)
    wide = unit * spread * rng.uniform(2, 6)
    is_flat = bool(i % 2) if flat is None else flat
    prior = qbvi.Flat(shape=d) if is_flat else qbvi.Normal(0.0, wide, shape=d)
    return problem(target.moved(shift, unit * turn), prior, float(rng.uniform(-100, 20)))


def rotation(rng: Generator, d: int) -> Array:
    """A random rotation."""
    q, r = np.linalg.qr(rng.standard_normal((d, d)))
    return q * np.sign(np.diagonal(r))


def gaussian(rng: Generator, i: int) -> Problem:
    """A Gaussian likelihood and a Gaussian or flat prior; condition 1 to 1e8, d 1 to 50."""
    d = (1, 2, 3, 5, 8, 12, 20, 30, 50, 4)[i % 10]
    condition = 10 ** rng.uniform(0, 8)
    unit, turn = DECADES[i % 7], rotation(rng, d)
    scales = unit * condition ** (-0.5 * np.linspace(0, 1, d))
    precision = (turn / scales**2) @ turn.T
    centre, top = unit * 5 * rng.standard_normal(d), float(rng.uniform(-200, 0))
    width = np.inf if i % 3 == 1 else unit * 10 ** rng.uniform(-0.5, 3)
    whole = precision + np.eye(d) / width**2
    cov = np.linalg.inv(whole)
    cov = 0.5 * (cov + cov.T)
    mean = cov @ precision @ centre
    prior = qbvi.Flat(shape=d) if np.isinf(width) else qbvi.Normal(0.0, width, shape=d)

    def likelihood(x: Array) -> Array:
        return top - 0.5 * np.sum(((x - centre) @ turn / scales) ** 2, axis=1)

    constant = 0.0 if np.isinf(width) else -d * np.log(width) - 0.5 * d * np.log(2 * np.pi)
    away = centre - mean
    loss = 0.5 * away @ precision @ away + (0.0 if np.isinf(width) else 0.5 * mean @ mean / width**2)
    evidence = top + constant - loss + 0.5 * np.linalg.slogdet(cov)[1] + 0.5 * d * np.log(2 * np.pi)
    root = np.linalg.cholesky(cov)
    exact = Exact(float(evidence), lambda rng, n: mean + rng.standard_normal((n, d)) @ root.T)
    return Problem("", "", "", prior, likelihood, exact, best=lambda: (mean, cov))


def log_gamma(rng: Generator, i: int) -> Problem:
    """Logarithms of gamma variables of small shape, turned."""
    d = (1, 2, 3, 4, 6, 2)[i % 6]
    a = rng.uniform(0.5, 4, d)

    def log_prob(x: Array) -> Array:
        return np.sum(a * x - np.exp(np.minimum(x, 500)) - gammaln(a), axis=1)

    def draw(rng: Generator, n: int) -> Array:
        return np.log(rng.gamma(a + 1, size=(n, d))) + np.log(rng.uniform(size=(n, d))) / a

    return placed(Target(d, log_prob, draw), rng, i, rotate=i % 3 > 0)


def skew_normal(rng: Generator, i: int) -> Problem:
    """Skew normal marginals, correlated."""
    d = (2, 5, 1, 8, 3, 4)[i % 6]
    alpha = rng.uniform(-8, 8, d)

    def log_prob(x: Array) -> Array:
        return np.sum(np.log(2) - 0.5 * x**2 - 0.5 * np.log(2 * np.pi) + stats.norm.logcdf(alpha * x), axis=1)

    def draw(rng: Generator, n: int) -> Array:
        x, z = rng.standard_normal((2, n, d))
        return np.where(z < alpha * x, x, -x)

    return placed(Target(d, log_prob, draw), rng, i)


def student(rng: Generator, i: int) -> Problem:
    """Product of Student t distributions."""
    d = (1, 2, 4, 6, 3, 10)[i % 6]
    df = rng.uniform(2.5, 12)
    scales = rng.uniform(0.3, 3, d)

    def log_prob(x: Array) -> Array:
        return np.sum(stats.t.logpdf(x / scales, df) - np.log(scales), axis=1)

    return placed(Target(d, log_prob, lambda rng, n: scales * rng.standard_t(df, (n, d))), rng, i, flat=True)


def elliptical(rng: Generator, i: int) -> Problem:
    """Multivariate Student t, correlated."""
    d = (2, 5, 8, 3, 12, 4)[i % 6]
    df = rng.uniform(3, 15)
    constant = gammaln((df + d) / 2) - gammaln(df / 2) - 0.5 * d * np.log(df * np.pi)

    def log_prob(x: Array) -> Array:
        return constant - 0.5 * (df + d) * np.log1p(np.sum(x**2, axis=1) / df)

    def draw(rng: Generator, n: int) -> Array:
        return rng.standard_normal((n, d)) / np.sqrt(rng.chisquare(df, n) / df)[:, None]

    stretched = Target(d, log_prob, draw).moved(np.zeros(d), np.diag(10 ** rng.uniform(-1, 1, d)))
    return placed(stretched, rng, i, flat=True)


def twisted(rng: Generator, i: int) -> Problem:
    """Bananas: each even coordinate is bent by the square of the one before it."""
    d = (2, 2, 3, 4, 6, 8)[i % 6]
    bend, thin = rng.uniform(0.15, 1.0), rng.uniform(0.3, 1.0)
    odd = np.arange(1, d, 2)

    def straight(x: Array) -> Array:
        y = x.copy()
        y[:, odd] = (x[:, odd] - bend * (x[:, odd - 1] ** 2 - 1)) / thin
        return y

    def log_prob(x: Array) -> Array:
        return -0.5 * np.sum(straight(x) ** 2, axis=1) - 0.5 * d * np.log(2 * np.pi) - len(odd) * np.log(thin)

    def draw(rng: Generator, n: int) -> Array:
        x = rng.standard_normal((n, d))
        x[:, odd] = thin * x[:, odd] + bend * (x[:, odd - 1] ** 2 - 1)
        return x

    return placed(Target(d, log_prob, draw), rng, i, rotate=i % 2 > 0)


def chain(rng: Generator, i: int) -> Problem:
    """Each coordinate bent by the one before it: curvature on curvature."""
    d = (2, 3, 4, 5, 3, 2)[i % 6]
    bend = rng.uniform(0.3, 0.9)

    def log_prob(x: Array) -> Array:
        inner = x.copy()
        inner[:, 1:] -= bend * np.sin(2 * x[:, :-1])
        inner[:, 1:] /= 0.4
        return -0.5 * np.sum(inner**2, axis=1) - 0.5 * d * np.log(2 * np.pi) - (d - 1) * np.log(0.4)

    def draw(rng: Generator, n: int) -> Array:
        x = rng.standard_normal((n, d))
        for j in range(1, d):
            x[:, j] = 0.4 * x[:, j] + bend * np.sin(2 * x[:, j - 1])
        return x

    return placed(Target(d, log_prob, draw), rng, i, rotate=i % 2 > 0)


def modes(rng: Generator, i: int) -> Problem:
    """Two to five Gaussian modes, touching or well apart."""
    d, k = (1, 2, 3, 5, 2, 1)[i % 6], (2, 3, 2, 2, 5, 3)[i % 6]
    apart = (3.0, 5.0, 4.0, 6.0, 5.0, 8.0)[i % 6]
    centres = _apart(rng, k, d, apart)
    weights, scales = rng.dirichlet(np.full(k, 3.0)), rng.uniform(0.6, 1.3, k)
    return placed(_mixture(weights, centres, scales), rng, i, flat=False)


def mirrored(rng: Generator, i: int) -> Problem:
    """Two modes that are mirror images, as from a parameter whose sign the likelihood cannot see."""
    d = (1, 2, 4, 3)[i % 4]
    centre = rng.uniform(2.0, 5.0) * np.eye(d)[0] + np.r_[0.0, rng.normal(0, 1, d - 1)]
    other = centre * np.r_[-1.0, np.ones(d - 1)]
    scale = DECADES[i % 7]
    target = _mixture(np.array([0.5, 0.5]), np.stack([centre, other]), np.ones(2)).moved(np.zeros(d), scale * np.eye(d))
    return problem(target, qbvi.Normal(0.0, scale * 8.0, shape=d), float(rng.uniform(-50, 0)))


def ring(rng: Generator, i: int) -> Problem:
    """A ring or a part of one, with Gaussian coordinates beside it."""
    d = (2, 2, 3, 4)[i % 4]
    radius, thick = rng.uniform(3, 8), rng.uniform(0.3, 0.7)
    kappa = (0.0, 2.0, 0.5, 0.0)[i % 4]

    def log_prob(x: Array) -> Array:
        r = np.maximum(np.hypot(x[:, 0], x[:, 1]), 1e-300)
        angle = stats.vonmises.logpdf(np.arctan2(x[:, 1], x[:, 0]), kappa) if kappa else -np.log(2 * np.pi)
        rest = -0.5 * np.sum(x[:, 2:] ** 2, axis=1) - 0.5 * (d - 2) * np.log(2 * np.pi)
        return stats.norm.logpdf(r, radius, thick) - np.log(r) + angle + rest

    def draw(rng: Generator, n: int) -> Array:
        x = rng.standard_normal((n, d))
        r, angle = radius + thick * x[:, 0], rng.vonmises(0, kappa, n) if kappa else rng.uniform(-np.pi, np.pi, n)
        x[:, 0], x[:, 1] = r * np.cos(angle), r * np.sin(angle)
        return x

    return placed(Target(d, log_prob, draw), rng, i, flat=False)


def funnel(rng: Generator, i: int) -> Problem:
    """A log scale, and coordinates with that scale."""
    d, s = (2, 3, 5, 9)[i % 4], rng.uniform(0.5, 1.5)

    def log_prob(x: Array) -> Array:
        v, rest = x[:, 0], x[:, 1:]
        inner = -0.5 * np.sum(rest**2, axis=1) * np.exp(-2 * v) - (d - 1) * v
        return inner - 0.5 * (v / s) ** 2 - np.log(s) - 0.5 * d * np.log(2 * np.pi)

    def draw(rng: Generator, n: int) -> Array:
        x = rng.standard_normal((n, d))
        x[:, 0] *= s
        x[:, 1:] *= np.exp(x[:, :1])
        return x

    return problem(Target(d, log_prob, draw), qbvi.Flat(shape=d), float(rng.uniform(-50, 0)))


def laplace(rng: Generator, i: int) -> Problem:
    """Densities with a kink at the top."""
    d = (1, 2, 4, 6)[i % 4]

    def log_prob(x: Array) -> Array:
        return -np.sum(np.abs(x), axis=1) - d * np.log(2)

    return placed(Target(d, log_prob, lambda rng, n: rng.laplace(size=(n, d))), rng, i)


def cut(rng: Generator, i: int) -> Problem:
    """A Gaussian that is zero on one side of a plane: the function returns minus infinity there."""
    d, at = (1, 2, 3, 5)[i % 4], rng.uniform(-1.5, 0.5)
    inside = stats.truncnorm(at, np.inf)

    def log_prob(x: Array) -> Array:
        whole = -0.5 * np.sum(x**2, axis=1) - 0.5 * d * np.log(2 * np.pi) - stats.norm.logsf(at)
        return np.where(x[:, 0] > at, whole, -np.inf)

    def draw(rng: Generator, n: int) -> Array:
        x = rng.standard_normal((n, d))
        x[:, 0] = inside.rvs(n, random_state=rng)
        return x

    made = placed(Target(d, log_prob, draw), rng, i, flat=False)
    return _without_best(made)


def box(rng: Generator, i: int) -> Problem:
    """A posterior that is uniform in a box inside a larger one, and zero elsewhere."""
    d = (1, 2, 3, 2)[i % 4]
    unit = DECADES[i % 7]
    low = unit * rng.uniform(-1, 0.2, d)
    high = low + unit * rng.uniform(0.3, 1.0, d)
    prior = qbvi.Uniform(-1.5 * unit, 1.5 * unit, shape=d)

    def likelihood(x: Array) -> Array:
        return np.where(np.all((x > low) & (x < high), axis=1), 0.0, -np.inf)

    def draw(rng: Generator, n: int) -> Array:
        p = (rng.uniform(low, high, (n, d)) / unit + 1.5) / 3
        return np.log(p) - np.log1p(-p)

    evidence = float(np.sum(np.log((high - low) / (3 * unit))))
    return Problem("", "", "", prior, likelihood, Exact(evidence, draw), has_best=False)


def wall(rng: Generator, i: int) -> Problem:
    """A Gaussian likelihood whose centre lies at or beyond the wall of a uniform prior."""
    d = (1, 2, 4, 3)[i % 4]
    centre, sd = rng.uniform(0.7, 1.3, d), rng.uniform(0.05, 0.6, d)
    unit = DECADES[i % 7]
    prior = qbvi.Uniform(0.0, unit, shape=d)
    law = stats.truncnorm(-centre / sd, (1 - centre) / sd, centre, sd)

    def likelihood(x: Array) -> Array:
        return -0.5 * np.sum(((x / unit - centre) / sd) ** 2, axis=1)

    def draw(rng: Generator, n: int) -> Array:
        p = np.clip(law.rvs((n, d), random_state=rng), 1e-15, 1 - 1e-15)
        return np.log(p) - np.log1p(-p)

    mass = np.log(stats.norm.cdf((1 - centre) / sd) - stats.norm.cdf(-centre / sd))
    return Problem(
        "", "", "", prior, likelihood, Exact(float(np.sum(mass + np.log(sd) + 0.5 * np.log(2 * np.pi))), draw)
    )


def plateau(rng: Generator, i: int) -> Problem:
    """A likelihood that saturates: a bump on a floor under a wide Gaussian prior."""
    d = (1, 2, 3, 2)[i % 4]
    height, width = rng.uniform(3, 9), 1.0
    centre, wide = rng.uniform(-3, 3, d), rng.uniform(4, 12)
    spread = width**2 * wide**2 / (width**2 + wide**2)
    # likelihood 1 + e^height exp(-|x - c|^2 / 2 w^2): the posterior is a mixture of the prior and a narrow Gaussian
    bump = height + 0.5 * d * np.log(spread / wide**2) - 0.5 * centre @ centre / (width**2 + wide**2)
    evidence = float(np.logaddexp(0.0, bump))

    def likelihood(x: Array) -> Array:
        return np.logaddexp(0.0, height - 0.5 * np.sum((x - centre) ** 2, axis=1) / width**2)

    def draw(rng: Generator, n: int) -> Array:
        narrow = rng.uniform(size=n) < np.exp(bump - evidence)
        z = rng.standard_normal((n, d))
        return np.where(narrow[:, None], centre * spread / width**2 + np.sqrt(spread) * z, wide * z)

    return Problem("", "", "", qbvi.Normal(0.0, wide, shape=d), likelihood, Exact(evidence, draw))


def _apart(rng: Generator, k: int, d: int, apart: float) -> Array:
    """Centres (k, d) with no two closer than ``apart``."""
    while True:
        centres = rng.uniform(-1, 1, (k, d)) * apart * k ** (1 / d)
        far = np.linalg.norm(centres[:, None] - centres[None], axis=2) + 1e9 * np.eye(k)
        if far.min() > apart:
            return centres


def _mixture(weights: Array, centres: Array, scales: Array) -> Target:
    k, d = centres.shape

    def log_prob(x: Array) -> Array:
        square = np.sum((x[:, None] - centres) ** 2, axis=2) / scales**2
        return logsumexp(np.log(weights) - 0.5 * square - d * np.log(scales), axis=1) - 0.5 * d * np.log(2 * np.pi)

    def draw(rng: Generator, n: int) -> Array:
        which = rng.choice(k, n, p=weights)
        return centres[which] + scales[which, None] * rng.standard_normal((n, d))

    return Target(d, log_prob, draw)


def _without_best(made: Problem) -> Problem:
    return replace(made, has_best=False)


FAMILIES = {
    gaussian: ("gaussian", 10),
    log_gamma: ("skewed", 6),
    skew_normal: ("skewed", 6),
    student: ("heavy", 6),
    elliptical: ("heavy", 6),
    twisted: ("curved", 6),
    chain: ("curved", 4),
    modes: ("multimodal", 6),
    mirrored: ("multimodal", 4),
    ring: ("ring", 4),
    funnel: ("funnel", 4),
    laplace: ("kink", 4),
    cut: ("edged", 4),
    box: ("edged", 4),
    wall: ("edged", 4),
    plateau: ("saturating", 4),
}
