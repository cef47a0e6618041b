"""Statistical models with random data, as users write them: rates, proportions, regressions, groups, edges, switches.

Each function makes one random instance of its family, ``i`` of them. The posterior is exact where conjugacy or a
one- or two-dimensional integral gives it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit, gammaln, log_ndtr, logsumexp

import qbvi

from .constructed import DECADES
from .problem import Exact, Problem

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))

from oracles import LogisticRegression

Array = NDArray[np.float64]
Generator = np.random.Generator


def make(prior, likelihood, exact: Exact | None = None, **kwargs) -> Problem:
    """A problem that `battery.problems` has yet to name."""
    return Problem("", "", "", prior, likelihood, exact, **kwargs)


# --- few counts ----------------------------------------------------------------------------------------------------


def rates(rng: Generator, i: int) -> Problem:
    """Poisson rates from few events: gamma priors, whose posterior is exact, or log-normal ones."""
    d = (1, 2, 3, 1, 4, 2)[i % 6]
    unit = DECADES[i % 7]
    time = rng.uniform(0.5, 3, d) / unit
    y = rng.poisson(rng.uniform(0, 3, d))

    def likelihood(x: Array) -> Array:
        return np.sum(y * np.log(x * time) - x * time - gammaln(y + 1), axis=1)

    if i % 2:
        return make(qbvi.LogNormal(np.log(unit), 2.0, shape=d), likelihood, near=np.full(d, np.log(unit)))
    a, b = rng.uniform(0.5, 2), 1 / unit
    terms = a * np.log(b) - gammaln(a) + gammaln(a + y) - (a + y) * np.log(b + time) + y * np.log(time) - gammaln(y + 1)

    def draw(rng: Generator, n: int) -> Array:
        return log_gammas(rng, a + y, n) - np.log(b + time)

    return make(qbvi.Gamma(a, b, shape=d), likelihood, Exact(float(terms.sum()), draw))


def proportions(rng: Generator, i: int) -> Problem:
    """Shares of which nearly all or nearly none were seen."""
    d = (1, 2, 1, 3)[i % 4]
    n = rng.integers(3, 60, d)
    k = np.where(rng.uniform(size=d) < 0.5, rng.integers(0, 2, d), n - rng.integers(0, 2, d))
    prior, a, b = (qbvi.Uniform(0.0, 1.0, shape=d), 1.0, 1.0) if i % 2 else (qbvi.Beta(0.5, 0.5, shape=d), 0.5, 0.5)

    def log_beta(a: Array, b: Array) -> Array:
        return gammaln(a) + gammaln(b) - gammaln(a + b)

    def likelihood(p: Array) -> Array:
        p = np.clip(p, 1e-300, 1 - 1e-16)
        return np.sum(k * np.log(p) + (n - k) * np.log1p(-p), axis=1)

    def draw(rng: Generator, size: int) -> Array:
        return log_gammas(rng, a + k, size) - log_gammas(rng, b + n - k, size)

    return make(prior, likelihood, Exact(float(np.sum(log_beta(a + k, b + n - k) - log_beta(a, b))), draw))


def cauchy(rng: Generator, i: int) -> Problem:
    """Location, or location and scale, of a few Cauchy observations."""
    y = 3.0 * rng.standard_cauchy((5, 8, 6, 12)[i % 4])
    y = y[np.abs(y) < 100]
    wide = 10.0 ** rng.uniform(1, 3)

    def log_density(m: Array, s: Array) -> Array:
        z = (y - m[:, None]) / s[:, None]
        return -np.sum(np.log1p(z**2) + np.log(np.pi * s[:, None]), axis=1)

    if i % 2:
        prior = {"m": qbvi.Normal(0.0, wide), "s": qbvi.HalfCauchy(10.0)}
        return make(prior, lambda p: log_density(p["m"], p["s"]), near=np.array([np.median(y), 1.0]))
    return make(qbvi.Normal(0.0, wide), lambda m: log_density(m, np.full(len(m), 3.0)), near=np.array([np.median(y)]))


# --- groups --------------------------------------------------------------------------------------------------------


def schools(rng: Generator, i: int) -> Problem:
    """Effects of a few groups with known errors, centred or not."""
    j, unit = (8, 5, 10, 8, 6, 12)[i % 6], DECADES[i % 7]
    s = unit * rng.uniform(8, 18, j)
    y = unit * (5 + rng.choice([0.5, 6.0]) * rng.standard_normal(j)) + s * rng.standard_normal(j)
    centred = i % 2 == 0
    scale = qbvi.HalfCauchy(5.0 * unit) if i % 3 else qbvi.HalfNormal(10.0 * unit)
    law = stats.halfcauchy(0, 5.0 * unit) if i % 3 else stats.halfnorm(0, 10.0 * unit)
    prior = {"mu": qbvi.Normal(0.0, 5.0 * unit), "tau": scale}
    prior |= {"theta": qbvi.Flat(shape=j)} if centred else {"eta": qbvi.Normal(0.0, 1.0, shape=j)}

    def likelihood(p) -> Array:
        mu, tau = p["mu"][:, None], p["tau"][:, None]
        if not centred:
            return normal(y, mu + tau * p["eta"], s)
        return normal(y, p["theta"], s) + normal(p["theta"], mu, tau)

    grid = np.log(unit) + np.linspace(-18, 12, 6001)
    tau = np.exp(grid)
    evidence, centre, spread = _integrated_mean(y, s**2 + tau[:, None] ** 2, 5.0 * unit)
    logs = evidence + law.logpdf(tau) + grid

    def draw(rng: Generator, n: int) -> Array:
        at, log_tau = _from_grid(rng, grid, logs, n)
        mu = centre[at] + spread[at] * rng.standard_normal(n)
        return np.column_stack([mu, log_tau, _effects(rng, y, s**2, mu, np.exp(log_tau), centred)])

    return make(prior, likelihood, Exact(float(logsumexp(logs) + np.log(grid[1] - grid[0])), draw))


def intercepts(rng: Generator, i: int) -> Problem:
    """Group means with an unknown spread and an unknown error: 10 to 40 groups."""
    j = (10, 12, 20, 15, 40, 30)[i % 6]
    sizes = rng.integers(2, 7, j)
    group = np.repeat(np.arange(j), sizes)
    y = 3 + rng.uniform(0.1, 1.5) * rng.standard_normal(j)[group] + rng.standard_normal(len(group))
    means = np.bincount(group, y) / sizes
    within = float(np.sum((y - means[group]) ** 2))
    centred = i % 2 == 0
    prior = {"mu": qbvi.Normal(0.0, 10.0), "tau": qbvi.HalfNormal(2.0), "sigma": qbvi.HalfNormal(2.0)}
    prior |= {"alpha": qbvi.Flat(shape=j)} if centred else {"z": qbvi.Normal(0.0, 1.0, shape=j)}

    def likelihood(p) -> Array:
        mu, tau, sigma = p["mu"][:, None], p["tau"][:, None], p["sigma"]
        alpha = p["alpha"] if centred else mu + tau * p["z"]
        value = -0.5 * (np.sum(sizes * (means - alpha) ** 2, axis=1) + within) / sigma**2
        value -= len(y) * (np.log(sigma) + 0.5 * np.log(2 * np.pi))
        return value + normal(alpha, mu, tau) if centred else value

    axes = np.linspace(-12, 3, 601), np.linspace(-1.5, 1.5, 121)
    log_tau, log_sigma = (part.ravel() for part in np.meshgrid(*axes, indexing="ij"))
    tau, sigma = np.exp(log_tau), np.exp(log_sigma)
    law = stats.halfnorm(0, 2.0)
    evidence, centre, spread = _integrated_mean(means, tau[:, None] ** 2 + sigma[:, None] ** 2 / sizes, 10.0)
    inner = (
        -(len(y) - j) * (log_sigma + 0.5 * np.log(2 * np.pi)) - 0.5 * within / sigma**2 - 0.5 * np.sum(np.log(sizes))
    )
    logs = evidence + inner + law.logpdf(tau) + log_tau + law.logpdf(sigma) + log_sigma
    cell = (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])

    def draw(rng: Generator, n: int) -> Array:
        at = rng.choice(len(logs), n, p=np.exp(logs - logsumexp(logs)))
        lt = log_tau[at] + (axes[0][1] - axes[0][0]) * rng.uniform(-0.5, 0.5, n)
        ls = log_sigma[at] + (axes[1][1] - axes[1][0]) * rng.uniform(-0.5, 0.5, n)
        mu = centre[at] + spread[at] * rng.standard_normal(n)
        effects = _effects(rng, means, np.exp(2 * ls)[:, None] / sizes, mu, np.exp(lt), centred)
        return np.column_stack([mu, lt, ls, effects])

    return make(prior, likelihood, Exact(float(logsumexp(logs) + np.log(cell)), draw))


def _integrated_mean(y: Array, variances: Array, wide: float) -> tuple[Array, Array, Array]:
    """Log density of y given the variances (n, j) with the common mean ~ N(0, wide^2) integrated out; its moments."""
    weights = 1 / variances
    precision = weights.sum(axis=1) + 1 / wide**2
    centre = (weights @ y) / precision
    square = weights @ y**2 - centre**2 * precision
    log_det = np.sum(np.log(variances), axis=1) + np.log(precision * wide**2)
    return -0.5 * (square + log_det + len(y) * np.log(2 * np.pi)), centre, precision**-0.5


def _effects(rng: Generator, y: Array, variances: Array, mu: Array, tau: Array, centred: bool) -> Array:
    """Effects of the groups given everything else: (n, j)."""
    # In units of tau, the effect has prior N(0, 1) and the observation variance / tau^2.
    ratio = tau[:, None] ** 2 / (variances + tau[:, None] ** 2)
    eta = ratio * (y - mu[:, None]) / tau[:, None] + np.sqrt(1 - ratio) * rng.standard_normal((len(mu), len(y)))
    return mu[:, None] + tau[:, None] * eta if centred else eta


def _from_grid(rng: Generator, grid: Array, logs: Array, n: int) -> tuple[Array, Array]:
    """Indices, and values anywhere in their cells."""
    at = rng.choice(len(grid), n, p=np.exp(logs - logsumexp(logs)))
    return at, grid[at] + (grid[1] - grid[0]) * rng.uniform(-0.5, 0.5, n)


# --- regressions ---------------------------------------------------------------------------------------------------


def linear(rng: Generator, i: int) -> Problem:
    """Least squares in raw units with flat priors over coefficients and log sigma: the start is far away."""
    k = (2, 3, 4, 2, 3, 5)[i % 6]
    n, unit = int(rng.integers(12, 200)), (1e4, 1e-6, 1.0, 1e6, 1e-3, 1e2)[i % 6]
    columns = [
        np.ones(n),
        rng.normal(67, 4, n),
        rng.normal(2000, 8, n),
        rng.normal(0.004, 0.001, n),
        rng.normal(1e5, 3e4, n),
    ]
    x = np.column_stack(columns[:k])
    slopes = unit * rng.standard_normal(k) / np.maximum(x.std(axis=0), 1e-12)
    slopes[0] = unit * rng.normal(0, 5)
    y = x @ slopes + unit * rng.standard_normal(n)
    gram = x.T @ x
    hat = np.linalg.lstsq(x, y)[0]
    rest = float(np.sum((y - x @ hat) ** 2))
    root = np.linalg.inv(np.linalg.qr(x, mode="r"))

    def likelihood(t: Array) -> Array:
        residual = np.sum((y - t[:, :k] @ x.T) ** 2, axis=1)
        return -n * t[:, k] - 0.5 * residual * np.exp(-2 * t[:, k])

    def draw(rng: Generator, size: int) -> Array:
        log_sigma = -0.5 * np.log(rng.gamma((n - k) / 2, 2 / rest, size))
        return np.column_stack(
            [hat + np.exp(log_sigma)[:, None] * (rng.standard_normal((size, k)) @ root.T), log_sigma]
        )

    evidence = 0.5 * k * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(gram)[1]
    evidence += gammaln((n - k) / 2) - np.log(2) - 0.5 * (n - k) * np.log(rest / 2)
    return make(qbvi.Flat(shape=k + 1), likelihood, Exact(float(evidence), draw))


def raw_units(rng: Generator, i: int) -> Problem:
    """A line in raw units with wide proper priors."""
    n, unit = int(rng.integers(20, 100)), (1e3, 1e-3, 1e5, 1.0)[i % 4]
    x = rng.normal(170, 9, n)
    a, b, s = unit * rng.normal(0, 3), unit * rng.normal(0, 0.2), unit * rng.uniform(0.3, 2)
    y = a + b * x + s * rng.standard_normal(n)
    prior = {"a": qbvi.Normal(0.0, 1e3 * unit), "b": qbvi.Normal(0.0, 100 * unit), "s": qbvi.HalfCauchy(10 * unit)}

    def likelihood(p) -> Array:
        return normal(y, p["a"][:, None] + p["b"][:, None] * x, p["s"][:, None])

    return make(prior, likelihood, near=np.array([a, b, np.log(s)]))


def logistic(rng: Generator, i: int) -> Problem:
    """Small logistic regressions; every third is separable."""
    n, k = (12, 30, 20, 40, 60, 25)[i % 6], (2, 4, 3, 6, 8, 5)[i % 6]
    x = np.column_stack([np.ones(n), rng.standard_normal((n, k - 1))])
    true = rng.normal(0, 1.5, k)
    chance = (x @ true > 0) if i % 3 == 2 else rng.uniform(size=n) < expit(x @ true)
    sign = 2.0 * chance - 1
    wide = (2.5, 10.0, 5.0)[i % 3]

    def likelihood(t: Array) -> Array:
        return -np.sum(np.logaddexp(0.0, -(t @ x.T) * sign), axis=1)

    return make(qbvi.Normal(0.0, wide, shape=k), likelihood, near=np.zeros(k))


def many_columns(rng: Generator, i: int) -> Problem:
    """Logistic regressions with 12 to 35 coefficients; the bound of a Gaussian is a sum of one-dimensional integrals."""
    n, k = ((150, 12), (300, 20), (200, 25), (750, 35))[i % 4]
    x = np.column_stack([np.ones(n), rng.standard_normal((n, k - 1))])
    y = (rng.uniform(size=n) < expit(x @ rng.normal(0, 0.5, k))).astype(np.float64)
    wide = (1.0, 2.5, 5.0, 2.5)[i % 4]
    regression = LogisticRegression(x, y, wide**2)

    def best() -> tuple[Array, Array]:
        return regression.best_gaussian().mean, regression.best_gaussian().cov

    return make(qbvi.Normal(0.0, wide, shape=k), regression.log_likelihood, best=best)


def probit(rng: Generator, i: int) -> Problem:
    """Small probit regressions with columns of different units."""
    n, k = (15, 25, 40, 12)[i % 4], (2, 3, 4, 2)[i % 4]
    units = 10.0 ** rng.integers(-2, 3, k - 1)
    z = rng.standard_normal((n, k - 1))
    sign = 2.0 * (0.3 + z @ rng.normal(0, 1, k - 1) + rng.standard_normal(n) > 0) - 1
    x = np.column_stack([np.ones(n), z * units])
    scale = np.r_[3.0, 3.0 / units]

    def likelihood(t: Array) -> Array:
        return np.sum(log_ndtr((t @ x.T) * sign), axis=1)

    return make(qbvi.Normal(0.0, scale), likelihood, near=np.zeros(k))


def poisson_regression(rng: Generator, i: int) -> Problem:
    """Small Poisson regressions with a log link."""
    n, k = (10, 25, 40, 15)[i % 4], (2, 4, 5, 3)[i % 4]
    x = np.column_stack([np.ones(n), rng.standard_normal((n, k - 1))])
    true = np.r_[rng.uniform(-0.5, 1.5), rng.normal(0, 0.5, k - 1)]
    y = rng.poisson(np.exp(np.minimum(x @ true, 5)))

    def likelihood(t: Array) -> Array:
        eta = t @ x.T
        return eta @ y - np.sum(np.exp(np.minimum(eta, 600)), axis=1) - np.sum(gammaln(y + 1))

    return make(qbvi.Normal(0.0, (2.5, 10.0)[i % 2], shape=k), likelihood, near=true)


def line(rng: Generator, i: int) -> Problem:
    """A line whose stated errors are too small by an unknown share: uniform priors, most of which fit badly."""
    n = (50, 20, 30, 60)[i % 4]
    slope, offset, share = rng.uniform(-2, 0.3), rng.uniform(2, 8), rng.uniform(0.1, 0.8)
    x = np.sort(10 * rng.uniform(size=n))
    error = 0.1 + 0.5 * rng.uniform(size=n)
    mean = slope * x + offset
    y = mean + np.abs(share * mean) * rng.standard_normal(n) + error * rng.standard_normal(n)
    prior = {"slope": qbvi.Uniform(-5.0, 0.5), "offset": qbvi.Uniform(0.0, 10.0), "log_share": qbvi.Uniform(-10.0, 1.0)}

    def likelihood(p) -> Array:
        mean = p["slope"][:, None] * x + p["offset"][:, None]
        return normal(y, mean, np.sqrt(error**2 + mean**2 * np.exp(2 * p["log_share"][:, None])))

    near = [logit((slope + 5) / 5.5), logit(offset / 10), logit((np.log(share) + 10) / 11)]
    return make(prior, likelihood, near=np.array(near))


def michaelis(rng: Generator, i: int) -> Problem:
    """A saturating curve seen well below saturation: a ridge of two parameters."""
    s = np.repeat(np.geomspace(1, 30, (6, 5, 8, 4)[i % 4]), 2)
    vmax, km, noise = rng.uniform(50, 200), rng.uniform(30, 120), rng.uniform(1, 4)
    y = vmax * s / (km + s) + noise * rng.standard_normal(len(s))
    prior = {"vmax": qbvi.LogNormal(5.0, 1.5), "km": qbvi.LogNormal(4.0, 1.5), "sigma": qbvi.HalfNormal(5.0)}

    def likelihood(p) -> Array:
        return normal(y, p["vmax"][:, None] * s / (p["km"][:, None] + s), p["sigma"][:, None])

    return make(prior, likelihood, near=np.log([vmax, km, noise]))


def decay(rng: Generator, i: int) -> Problem:
    """A sum of two exponential decays, rates in order or free to change places."""
    t = np.linspace(0.1, 5, (12, 20, 30, 16)[i % 4])
    size, rate, noise = (
        rng.uniform(1, 4, 2),
        np.array([rng.uniform(0.2, 0.6), rng.uniform(1.5, 4)]),
        rng.uniform(0.02, 0.2),
    )
    y = np.exp(-np.outer(t, rate)) @ size + noise * rng.standard_normal(len(t))
    centre = np.log([0.4, 2.5]) if i % 2 else np.log([1.0, 1.0])
    prior = {
        "size": qbvi.LogNormal(0.7, 1.0, shape=2),
        "rate": qbvi.LogNormal(centre, 0.7),
        "sigma": qbvi.HalfNormal(0.3),
    }

    def likelihood(p) -> Array:
        curve = np.einsum("nk,nkt->nt", p["size"], np.exp(-p["rate"][:, :, None] * t))
        return normal(y, curve, p["sigma"][:, None])

    near = np.log(np.r_[size, rate, noise])
    return make(prior, likelihood, near=near if i % 2 else np.stack([near, near[[1, 0, 3, 2, 4]]]))


def labels(rng: Generator, i: int) -> Problem:
    """A mixture of two normals whose labels can change places."""
    n, apart = (30, 60, 40, 25)[i % 4], rng.uniform(2.0, 5.0)
    which = rng.uniform(size=n) < 0.4
    y = np.where(which, apart / 2, -apart / 2) + rng.standard_normal(n)
    prior = {"m": qbvi.Normal(0.0, 4.0, shape=2)} | ({"w": qbvi.Beta(2.0, 2.0)} if i % 2 else {})

    def likelihood(p) -> Array:
        share = p["w"][:, None] if i % 2 else 0.5
        parts = [np.log(w) - 0.5 * (y - p["m"][:, k, None]) ** 2 for k, w in enumerate((share, 1 - share))]
        return np.sum(np.logaddexp(*parts), axis=1) - 0.5 * n * np.log(2 * np.pi)

    near = np.array([[apart / 2, -apart / 2], [-apart / 2, apart / 2]])
    return make(prior, likelihood, near=np.column_stack([near, [-0.4, 0.4]]) if i % 2 else near)


# --- edges and steps -----------------------------------------------------------------------------------------------


def ends(rng: Generator, i: int) -> Problem:
    """Ends of a uniform distribution under flat priors: the likelihood is zero inside of the data."""
    n, unit = (5, 12, 25, 8)[i % 4], DECADES[i % 7]
    y = unit * rng.uniform(-2, 3, n)
    low, high = y.min(), y.max()

    def likelihood(t: Array) -> Array:
        inside = (t[:, 0] < low) & (t[:, 1] > high)
        return np.where(inside, -n * np.log(np.where(inside, t[:, 1] - t[:, 0], 1.0)), -np.inf)

    def draw(rng: Generator, size: int) -> Array:
        beyond = (high - low) * rng.gamma(2, size=size) / rng.gamma(n - 2, size=size)
        share = rng.uniform(size=size)
        return np.column_stack([low - beyond * share, high + beyond * (1 - share)])

    evidence = -(n - 2) * np.log(high - low) - np.log((n - 1) * (n - 2))
    start = np.array([low - 0.3 * (high - low), high + 0.3 * (high - low)])
    exact, options = Exact(float(evidence), draw), {"init": start}  # a flat prior needs a start of non-zero likelihood
    return make(qbvi.Flat(shape=2), likelihood, exact, has_best=False, options=options)


def step(rng: Generator, i: int) -> Problem:
    """A level that changes at an unknown time: the likelihood is a staircase in that time."""
    n, span, wide = (12, 25, 40, 16)[i % 4], DECADES[i % 7], 5.0
    t, at = np.sort(rng.uniform(0, span, n)), rng.uniform(0.3, 0.7) * span
    y = np.where(t < at, *rng.normal(0, 2, 2)) + rng.standard_normal(n)
    prior = {"at": qbvi.Uniform(0.0, span), "level": qbvi.Normal(0.0, wide, shape=2)}

    def likelihood(p) -> Array:
        before = t < p["at"][:, None]
        return normal(y, np.where(before, p["level"][:, :1], p["level"][:, 1:]), 1.0)

    sides = [(np.arange(n + 1), np.r_[0.0, np.cumsum(y)])]
    sides.append((n - sides[0][0], y.sum() - sides[0][1]))
    precisions = [count + wide**-2 for count, _ in sides]
    centres = [total / p for (_, total), p in zip(sides, precisions, strict=True)]
    logs = np.log(np.diff(np.r_[0.0, t, span]) / span) - 0.5 * (np.sum(y**2) + n * np.log(2 * np.pi))
    for centre, p in zip(centres, precisions, strict=True):
        logs = logs + 0.5 * centre**2 * p - 0.5 * np.log(p * wide**2)
    edges = np.r_[0.0, t, span]

    def draw(rng: Generator, size: int) -> Array:
        k = rng.choice(n + 1, size, p=np.exp(logs - logsumexp(logs)))
        share = np.clip(rng.uniform(edges[k], edges[k + 1]) / span, 1e-12, 1 - 1e-12)
        levels = [c[k] + rng.standard_normal(size) / np.sqrt(p[k]) for c, p in zip(centres, precisions, strict=True)]
        return np.column_stack([logit(share), *levels])

    return make(prior, likelihood, Exact(float(logsumexp(logs)), draw))


def switch(rng: Generator, i: int) -> Problem:
    """Yearly counts whose rate changes after an unknown year: a whole number and two rates."""
    n = (15, 40, 110, 25)[i % 4]
    at = int(n * rng.uniform(0.3, 0.7))
    y = rng.poisson(np.where(np.arange(n) < at, *rng.uniform(0.5, 4, 2)))
    chances = np.full(n, 1 / n)
    prior = {"year": qbvi.Categorical(chances), "early": qbvi.Exponential(1.0), "late": qbvi.Exponential(1.0)}

    def likelihood(p) -> Array:
        before = np.arange(n) < np.asarray(p["year"]).reshape(-1, 1)
        rate = np.where(before, p["early"][:, None], p["late"][:, None])
        return np.sum(y * np.log(rate) - rate - gammaln(y + 1), axis=1)

    years = np.arange(n)
    first = np.r_[0, np.cumsum(y)][:n]
    sides = [(first + 1.0, years + 1.0), (y.sum() - first + 1.0, n - years + 1.0)]
    logs = sum(gammaln(a) - a * np.log(b) for a, b in sides) - np.log(n) - np.sum(gammaln(y + 1))

    def draw(rng: Generator, size: int) -> Array:
        k = rng.choice(n, size, p=np.exp(logs - logsumexp(logs)))
        return np.column_stack([k, *(np.log(rng.gamma(a[k]) / b[k]) for a, b in sides)])

    return make(prior, likelihood, Exact(float(logsumexp(logs)), draw), has_best=False)


def robust(rng: Generator, i: int) -> Problem:
    """Regression with Laplace errors: the log-likelihood has a kink at every observation."""
    n, k = (9, 15, 30, 12)[i % 4], (1, 2, 3, 2)[i % 4]
    x = np.column_stack([np.ones(n), rng.standard_normal((n, k - 1))])
    true = rng.normal(0, 2, k)
    y = x @ true + rng.laplace(size=n)

    def likelihood(t: Array) -> Array:
        return -np.sum(np.abs(y - t @ x.T), axis=1) - n * np.log(2)

    return make(qbvi.Normal(0.0, 10.0, shape=k), likelihood, near=true)


# --- shared --------------------------------------------------------------------------------------------------------


def normal(y: Array, mean: Array, sd: Array | float) -> Array:
    """Log density of all of y, summed over the last axis."""
    return np.sum(-0.5 * ((y - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi), axis=-1)


def log_gammas(rng: Generator, shape: Array, n: int) -> Array:
    """Logarithms of gamma variables, also where the variable itself would underflow."""
    shape = np.asarray(shape)
    size = (n, *shape.shape)
    return np.log(rng.gamma(shape + 1, size=size)) + np.log(rng.uniform(size=size)) / shape


def logit(p: Array | float) -> Array:
    """log(p / (1 - p))."""
    return np.log(p) - np.log1p(-np.asarray(p))


FAMILIES = {
    rates: ("skewed", 6),
    proportions: ("skewed", 4),
    cauchy: ("heavy", 4),
    schools: ("funnel", 6),
    intercepts: ("funnel", 6),
    linear: ("raw units", 6),
    raw_units: ("raw units", 4),
    logistic: ("regression", 6),
    many_columns: ("regression", 4),
    probit: ("regression", 4),
    poisson_regression: ("regression", 4),
    line: ("regression", 4),
    michaelis: ("curved", 4),
    decay: ("curved", 4),
    labels: ("multimodal", 4),
    ends: ("edged", 4),
    step: ("kink", 4),
    robust: ("kink", 4),
    switch: ("discrete", 4),
}
