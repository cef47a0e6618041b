"""Posterior and prior densities of one entry."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import beta, gaussian_kde

from qbvi.arrays import to_numpy
from qbvi.distributions import Dirichlet, Distribution
from qbvi.distributions.base import Independent
from qbvi.marginals import Marginal
from qbvi.plots.entries import Floats, block_of, bounds_of
from qbvi.results import Fit
from qbvi.supports import Interval

__all__ = ["posterior_density", "prior_density", "prior_draws", "visible_range"]

_PRIOR_DRAWS = 20_000
_FINEST = 1e-9  # smallest relative difference that an axis can show


def posterior_density(fit: Fit, place: int) -> tuple[Floats, Floats]:
    """Values and posterior density of one entry: (n,), (n,)."""
    if place in fit.marginals:
        z = np.linspace(-4.5, 4.5, 601)
        return fit.marginals[place].at(z), fit.marginals[place].density_at(z)
    draws, support = fit.fixed_draws[:, place], bounds_of(fit, place)
    u = support.unconstrain(draws, ())[:, 0]
    margin = 0.1 * np.ptp(u)
    x = np.asarray(support.constrain(np.linspace(u.min() - margin, u.max() + margin, 401)[:, None], ()))
    return x, _smoothed(draws, support, x)


def prior_density(fit: Fit, place: int, x: Floats) -> Floats | None:
    """Prior density of one entry at x (n,), or None if the prior is improper."""
    block = block_of(fit, place)
    prior, j, support = block.prior, place - block.entries.start, bounds_of(fit, place)
    if not prior.can_sample:
        return None
    if math.prod(block.shape) == 1:
        return np.exp(to_numpy(prior.log_prob(x.reshape(-1, *block.shape))))
    if isinstance(prior, Dirichlet):
        return _dirichlet_density(prior, j, x)
    if place in fit.marginals and prior.quadratic() is not None:
        return _gaussian_prior(prior, j, fit.marginals[place]).density(x)
    if isinstance(prior, Independent):
        return _independent_density(prior, j, support, x)
    return _smoothed(prior_draws(fit, place), support, x)


def prior_draws(fit: Fit, place: int) -> Floats:
    """Draws of one entry from its prior: (n,), the same at every call."""
    block = block_of(fit, place)
    draws = block.prior.sample(np.random.default_rng(0), _PRIOR_DRAWS).reshape(_PRIOR_DRAWS, -1)
    return to_numpy(draws[:, place - block.entries.start])


def visible_range(x: Floats, density: Floats, marked: Sequence[float] = ()) -> tuple[float, float]:
    """Range in which the density is visible, widened to include the marked points."""
    visible = x[density > 0.005 * density.max()]
    ends = np.array([visible.min(), visible.max(), *(value for value in marked if np.isfinite(value))])
    margin = max(0.03 * np.ptp(ends), _FINEST * np.abs(ends).max())
    # A marked point needs space beside it; a density that ends at its own bound does not.
    piled_up = np.ptp(ends) < margin
    low = ends.min() - (margin if piled_up or ends.min() < visible.min() else 0)
    high = ends.max() + (margin if piled_up or ends.max() > visible.max() else 0)
    return float(low), float(high)


def _dirichlet_density(prior: Dirichlet, j: int, x: Floats) -> Floats:
    """Density of one entry of a Dirichlet, which is Beta distributed."""
    c = prior.concentration
    rest = (c.sum(axis=-1, keepdims=True) - c).reshape(-1)
    return to_numpy(beta.pdf(x, c.reshape(-1)[j], rest[j]))


def _gaussian_prior(prior: Distribution, j: int, posterior: Marginal) -> Marginal:
    linear, precision = prior.quadratic()  # type: ignore[misc]
    cov = np.linalg.inv(precision) if precision.ndim == 2 else np.diag(1 / precision)
    return posterior._replace(loc=float((cov @ linear)[j]), scale=float(cov[j, j] ** 0.5))


def _independent_density(prior: Independent, j: int, support: Interval, x: Floats) -> Floats:
    u = np.zeros((len(x), prior.dim))
    u[:, [j]] = support.unconstrain(x, ())
    entries = prior.log_prob_entries(u)
    return to_numpy(np.exp(entries[:, j] - support.log_jacobian(u[:, [j]], ())))


def _smoothed(draws: Floats, support: Interval, x: Floats) -> Floats:
    """Kernel density estimate at x, made on the unconstrained scale."""
    u, at = support.unconstrain(draws, ())[:, 0], support.unconstrain(x, ())
    kernel = gaussian_kde(u, bw_method=lambda k: 1.6 * k.scotts_factor())
    return to_numpy(kernel(at[:, 0]) / np.exp(support.log_jacobian(at, ())))
