"""A line with error bars that are too small by an unknown factor: the tutorials of emcee and dynesty fit one."""

from __future__ import annotations

import numpy as np

NAMES = ["m", "b", "log_f"]
LOW, HIGH = np.array([-5.0, 0.0, -10.0]), np.array([0.5, 10.0, 1.0])
START = np.array([-1.0, 4.5, -0.7])

_rng = np.random.default_rng(7)
X = np.sort(10 * _rng.random(40))
SD = 0.1 + 0.4 * _rng.random(40)
_TRUE = 4.2 - 0.9 * X
Y = _TRUE + np.abs(0.5 * _TRUE) * _rng.standard_normal(40) + SD * _rng.standard_normal(40)


def log_likelihood(theta: np.ndarray) -> float:
    """Log-likelihood of slope, intercept, and the log of the share of the line that the errors miss."""
    m, b, log_f = theta
    line = m * X + b
    variance = SD**2 + line**2 * np.exp(2 * log_f)
    return -0.5 * float(np.sum((Y - line) ** 2 / variance + np.log(2 * np.pi * variance)))


def prior_transform(u: np.ndarray) -> np.ndarray:
    """Uniform priors, from the unit cube."""
    return LOW + (HIGH - LOW) * u


def log_prob(theta: np.ndarray) -> float:
    """Log of prior times likelihood; minus infinity outside of the bounds."""
    if np.any(theta < LOW) or np.any(theta > HIGH):
        return -np.inf
    return log_likelihood(theta) - float(np.sum(np.log(HIGH - LOW)))
