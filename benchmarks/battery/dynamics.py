"""Differential equations and time series with random data, and likelihoods with noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

import qbvi

from . import constructed, models
from .models import logit, make, normal
from .problem import Problem

Array = NDArray[np.float64]
Generator = np.random.Generator


def growth(rng: Generator, i: int) -> Problem:
    """Logistic growth of a population in counts of any unit: capacity, rate, start and relative error."""
    t = np.linspace(0, 10, (8, 12, 6, 20)[i % 4])
    if i % 4 == 2:
        t *= 0.4  # the data end before the capacity shows
    unit = (1.0, 1e3, 1e6, 1e-3)[i % 4]
    capacity, rate, start, error = unit * rng.uniform(50, 150), rng.uniform(0.5, 1.2), unit * rng.uniform(1, 8), 0.15

    def curve(k: Array, r: Array, p: Array) -> Array:
        return k / (1 + (k / p - 1) * np.exp(-r * t))

    y = curve(capacity, rate, start) * np.exp(error * rng.standard_normal(len(t)))
    prior = {
        "capacity": qbvi.LogNormal(np.log(100 * unit), 1.5),
        "rate": qbvi.LogNormal(0.0, 1.0),
        "start": qbvi.LogNormal(np.log(5 * unit), 1.5),
        "error": qbvi.HalfNormal(0.5),
    }

    def likelihood(p) -> Array:
        mean = curve(*(p[name][:, None] for name in ("capacity", "rate", "start")))
        return normal(np.log(y), np.log(mean), p["error"][:, None])

    return make(prior, likelihood, near=np.log([capacity, rate, start, error]))


def epidemic(rng: Generator, i: int) -> Problem:
    """An epidemic with susceptible, infected and recovered; daily cases are Poisson or negative binomial."""
    days, people = (14, 10, 20, 8)[i % 4], 10.0 ** rng.uniform(2.5, 4)
    beta, gamma = rng.uniform(1.0, 2.0), rng.uniform(0.2, 0.5)
    infected = infected_curve(np.array([beta]), np.array([gamma]), people, days)[0]
    y = rng.poisson(np.maximum(infected, 0) * rng.gamma(20, 1 / 20, days))
    prior = {"beta": qbvi.LogNormal(0.0, 1.0), "gamma": qbvi.LogNormal(-1.0, 1.0)}
    if i % 2:
        prior["phi"] = qbvi.LogNormal(np.log(10), 1.5)

    def likelihood(p) -> Array:
        mean = np.maximum(infected_curve(p["beta"], p["gamma"], people, days), 1e-9)
        if i % 2 == 0:
            return np.sum(y * np.log(mean) - mean - gammaln(y + 1), axis=1)
        phi = p["phi"][:, None]
        log_share = np.log(phi) - np.log(phi + mean)
        counts = gammaln(y + phi) - gammaln(phi) - gammaln(y + 1)
        return np.sum(counts + phi * log_share + y * (np.log(mean) - np.log(phi + mean)), axis=1)

    return make(prior, likelihood, near=np.log([beta, gamma, 20.0][: 2 + i % 2]))


def predators(rng: Generator, i: int) -> Problem:
    """Lotka-Volterra from few observations of both species, with four rates and one relative error."""
    t = np.linspace(1, 12, (8, 12, 6, 20)[i % 4])
    true = np.array([0.6, 0.03, 0.8, 0.025]) * np.exp(0.15 * rng.standard_normal(4))
    begin, error = np.array([30.0, 5.0]), rng.uniform(0.1, 0.3)
    y = np.exp(np.log(populations(true[None], begin, t)[0]) + error * rng.standard_normal((len(t), 2)))
    prior = {"rates": qbvi.LogNormal(np.log([0.7, 0.04, 0.7, 0.04]), 0.7), "error": qbvi.HalfNormal(0.5)}

    def likelihood(p) -> Array:
        paths = np.log(np.maximum(populations(p["rates"], begin, t), 1e-12))
        return normal(np.log(y).ravel(), paths.reshape(len(paths), -1), p["error"][:, None])

    return make(prior, likelihood, near=np.log(np.r_[true, error]))


def arma(rng: Generator, i: int) -> Problem:
    """A series with one autoregressive and one moving-average term."""
    n = (30, 60, 100, 40)[i % 4]
    phi, theta, mean, sd = rng.uniform(0.2, 0.95), rng.uniform(-0.6, 0.6), rng.normal(0, 3), rng.uniform(0.5, 2)
    shocks = sd * rng.standard_normal(n)
    y = np.full(n, mean)
    for k in range(1, n):
        y[k] = mean + phi * (y[k - 1] - mean) + shocks[k] + theta * shocks[k - 1]
    prior = {"mean": qbvi.Normal(0.0, 10.0), "phi": qbvi.Uniform(-1.0, 1.0), "theta": qbvi.Uniform(-1.0, 1.0)}
    prior["sd"] = qbvi.HalfNormal(3.0)

    def likelihood(p) -> Array:
        residual, total = np.zeros(len(p["sd"])), 0.0
        for k in range(1, n):
            expected = p["mean"] + p["phi"] * (y[k - 1] - p["mean"]) + p["theta"] * residual
            residual = y[k] - expected
            total = total + residual**2
        return -0.5 * total / p["sd"] ** 2 - (n - 1) * (np.log(p["sd"]) + 0.5 * np.log(2 * np.pi))

    return make(prior, likelihood, near=np.array([mean, logit((1 + phi) / 2), logit((1 + theta) / 2), np.log(sd)]))


def garch(rng: Generator, i: int) -> Problem:
    """Returns with changing variance; every second one has the wall a + b < 1 as minus infinity."""
    n, (level, a, b) = (100, 200, 150, 250)[i % 4], (1.0, rng.uniform(0.05, 0.3), rng.uniform(0.4, 0.65))
    has_wall = i % 2 == 1
    y, variance = np.zeros(n), level
    for k in range(n):
        y[k] = np.sqrt(variance) * rng.standard_normal()
        variance = level * (1 - a - b) + a * y[k] ** 2 + b * variance

    def value(omega: Array, a: Array, b: Array) -> Array:
        variance, total = np.full(len(a), y.var()), 0.0
        for observed in y:
            total = total - 0.5 * (np.log(variance) + observed**2 / variance)
            variance = omega + a * observed**2 + b * variance
        return total - 0.5 * n * np.log(2 * np.pi)

    if not has_wall:  # persistence, and the share of it that is due to the last return
        prior = {"omega": qbvi.LogNormal(-1.5, 1.0), "persistence": qbvi.Uniform(0, 1), "share": qbvi.Uniform(0, 1)}

        def smooth(p) -> Array:
            return value(p["omega"], p["persistence"] * p["share"], p["persistence"] * (1 - p["share"]))

        return make(prior, smooth, near=np.array([np.log(1 - a - b), logit(a + b), logit(a / (a + b))]))
    prior = {"omega": qbvi.LogNormal(-1.5, 1.0), "a": qbvi.Uniform(0.0, 1.0), "b": qbvi.Uniform(0.0, 1.0)}

    def walled(p) -> Array:
        return np.where(p["a"] + p["b"] < 1, value(p["omega"], p["a"], p["b"]), -np.inf)

    return make(prior, walled, near=np.array([np.log(1 - a - b), logit(a), logit(b)]), has_best=False)


def hidden(rng: Generator, i: int) -> Problem:
    """A hidden Markov chain of two states that emit normal variables; every second one can change its labels."""
    n = (50, 80, 30, 120)[i % 4]
    stay, centre = rng.uniform(0.75, 0.95, 2), np.array([0.0, rng.uniform(1.5, 3.5)])
    state, y = 0, np.zeros(n)
    for k in range(n):
        state = state if rng.uniform() < stay[state] else 1 - state
        y[k] = centre[state] + rng.standard_normal()
    has_labels = i % 2 == 0
    centres = qbvi.Normal([-1.0, 3.0], 1.5) if has_labels else qbvi.Normal(1.0, 3.0, shape=2)
    prior = {"centre": centres, "stay": qbvi.Beta(4.0, 1.5, shape=2)}

    def likelihood(p) -> Array:
        keep, leave = np.log(p["stay"]), np.log1p(-np.minimum(p["stay"], 1 - 1e-16))
        emit = -0.5 * (y[:, None, None] - p["centre"]) ** 2 - 0.5 * np.log(2 * np.pi)
        logs = emit[0] - np.log(2)
        for row in emit[1:]:
            logs = row + np.logaddexp(logs + keep, (logs + leave)[:, ::-1])
        return logsumexp(logs, axis=1)

    near = np.r_[centre, logit(stay)]
    return make(prior, likelihood, near=near if has_labels else np.stack([near, near[[1, 0, 3, 2]]]))


def noisy_gaussian(rng: Generator, i: int) -> Problem:
    """A Gaussian posterior whose likelihood is only known with noise."""
    return _with_noise(constructed.gaussian(rng, (1, 2, 3, 9, 4, 1)[i % 6]), (0.5, 1.0, 2.0, 3.0, 1.0, 3.0)[i % 6])


def noisy_curve(rng: Generator, i: int) -> Problem:
    """A bent or skewed posterior with noise."""
    base = (constructed.twisted, constructed.log_gamma)[i % 2](rng, i)
    return _with_noise(base, (0.5, 1.0, 2.0, 1.0)[i % 4])


def noisy_model(rng: Generator, i: int) -> Problem:
    """A regression, an epidemic or a growth curve with noise that grows away from the best fit, as simulators have it."""
    base = (models.logistic, epidemic, growth, models.michaelis)[i % 4](rng, i)
    top = float(base.log_joint(np.atleast_2d(base.near)[:1])[0])
    quietest = (0.5, 1.0, 1.5, 2.0)[i % 4]
    return replace(base, noise=lambda value: np.sqrt(quietest**2 + 0.2 * np.clip(top - value, 0.0, 1e5)))


def _with_noise(base: Problem, sd: float) -> Problem:
    return replace(base, noise=lambda value: np.full(len(value), sd))


# --- cheap integrators, all points at once -------------------------------------------------------------------------


def infected_curve(beta: Array, gamma: Array, people: float, days: int) -> Array:
    """Infected at the end of each day, five Runge-Kutta steps a day: (n, days)."""

    def rhs(y: Array) -> Array:
        new = beta * y[0] * y[1]
        return np.stack([-new, new - gamma * y[1]])

    y = np.stack([np.full(len(beta), 1 - 1 / people), np.full(len(beta), 1 / people)])
    out = []
    for _ in range(days):
        for _ in range(5):
            y = runge_kutta(rhs, y, 0.2)
        out.append(people * y[1])
    return np.stack(out, axis=1)


def populations(rates: Array, begin: Array, t: Array) -> Array:
    """Prey and predators at the times: (n, len(t), 2); log populations keep them positive."""
    a, b, c, e = rates.T

    def rhs(logs: Array) -> Array:
        prey, predators = np.exp(np.clip(logs, -50, 12))
        return np.stack([a - b * predators, e * prey - c])

    y = np.repeat(np.log(begin)[:, None], len(rates), axis=1)
    out, now = [], 0.0
    for moment in t:
        steps = max(1, int(np.ceil((moment - now) / 0.2)))
        for _ in range(steps):
            y = np.clip(runge_kutta(rhs, y, (moment - now) / steps), -60, 15)
        out.append(np.exp(y.T))
        now = moment
    return np.stack(out, axis=1)


def runge_kutta(rhs: Callable[[Array], Array], y: Array, h: float) -> Array:
    """One step of the classical method."""
    k1 = rhs(y)
    k2 = rhs(y + 0.5 * h * k1)
    k3 = rhs(y + 0.5 * h * k2)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + rhs(y + h * k3))


FAMILIES = {
    growth: ("ode", 4),
    epidemic: ("ode", 4),
    predators: ("ode", 4),
    arma: ("series", 4),
    garch: ("series", 4),
    hidden: ("series", 4),
    noisy_gaussian: ("noisy", 6),
    noisy_curve: ("noisy", 4),
    noisy_model: ("noisy", 4),
}
