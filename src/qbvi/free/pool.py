"""Integrals over the surrogate by importance sampling, and the points that teach it most."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.free.proposal import Proposal
from qbvi.free.rules import Integration
from qbvi.free.surface import Surface
from qbvi.free.symmetry import Group
from qbvi.random import matched_normals, systematic

__all__ = ["Pool", "integrated", "most_informative", "near_gaussian_moments", "resampled"]

Floats = NDArray[np.float64]

_LARGEST = 3.0  # nats between two densities at one point that count in their divergence
_FLOOR = 1e-4  # least variance of a proposal, relative to the base


class Pool(NamedTuple):
    """Draws from a proposal, with the surrogate there."""

    proposal: Proposal
    u: Floats  # (n, d)
    log_proposal: Floats  # (n,)
    low: Floats  # (n,) log density that is claimed, not normalised
    high: Floats  # (n,) log density that is possible
    variance: Floats  # (n,) of the prediction

    @property
    def log_z(self) -> float:
        """Log of the integral of the claimed density."""
        return self.log_integral(self.low)

    @property
    def log_z_error(self) -> float:
        """Standard error of the log of that integral, by importance sampling."""
        return _log_error(self.weights)

    def level_error(self, surface: Surface, rules: Integration) -> float:
        """Standard error of that log by the errors of the prediction, which neighbours share.

        It is the square root of their mean covariance, by some of the draws. With noise, the level
        of all predictions together is the least certain.
        """
        rows = systematic(np.random.default_rng(0), self.weights, rules.compared)
        C = surface.process.covariance(surface.whitened(self.u[rows]), surface.predicted(self.u[rows]))
        return math.sqrt(max(float(C.mean()), 0.0))

    def log_integral(self, log_density: Floats) -> float:
        """Log of the integral of another density, given at the draws (n,)."""
        return _log_mean(log_density - self.log_proposal)

    @property
    def hope(self) -> float:
        """Nats by which the possible density has more mass than the claimed one."""
        return self.log_integral(self.high) - self.log_z

    @property
    def weights(self) -> Floats:
        """Weights of the draws for the claimed density, with sum one."""
        return _normalised(self.low - self.log_proposal)

    @property
    def hopeful(self) -> Floats:
        """Weights of the draws for the possible density, with sum one."""
        return _normalised(self.high - self.log_proposal)

    def possible(self, rng: np.random.Generator, n: int, makes_sense: NDArray[np.bool_]) -> Possible:
        """Draws from the possible density, restricted to where it ``makes_sense`` (m,) to call."""
        high = np.where(makes_sense, self.high, -np.inf)
        weights = _normalised(high - self.log_proposal)
        rows, counts = np.unique(systematic(rng, weights, n), return_counts=True)
        return Possible(self.u[rows], counts, self.log_integral(high), _log_error(weights))

    @property
    def n_effective(self) -> float:
        """Effective sample size for the claimed density."""
        return float(1 / np.sum(self.weights**2))

    def thinned(self, n: int) -> Pool:
        """Every so many-th draw, so that about n effective ones are left."""
        every = max(1, int(self.n_effective) // n)
        return Pool(self.proposal, *(part[::every] for part in self[1:]))

    def divergence(self, log_density: Floats) -> float:
        """The larger of the two KL divergences to another density, given at the draws (n,).

        Its normalising constant is found here.
        """
        mine, other = self.weights, _normalised(log_density - self.log_proposal)
        with np.errstate(invalid="ignore"):
            ratio = (self.low - self.log_z) - (log_density - self.log_integral(log_density))
        # Where only one of them is zero, the divergence would be infinite: how large the place is
        # should count instead.
        ratio = np.clip(np.nan_to_num(ratio, nan=0.0), -_LARGEST, _LARGEST)
        return max(float(mine @ ratio), float(other @ -ratio))


class Possible(NamedTuple):
    """Draws from the possible density. One with a large weight is there several times."""

    u: Floats  # (k, d)
    counts: NDArray[np.int64]  # (k,)
    log_z: float  # log of the integral of that density ...
    log_z_error: float  # ... and its standard error


def integrated(
    surface: Surface, start: Proposal, rules: Integration, group: Group | None = None, *, is_closing: bool = False
) -> Pool:
    """Adapt a proposal to the claimed density, and draw the pool from it.

    If the proposal is poor, it is adapted again, by all draws so far, and more are drawn from it.
    If the fit is about to end, ``is_closing``, the error of the integral must be small too.

    The density is the same at all images of a point, so the proposal follows the images of its
    draws too. Else it may lose a copy of a mode: while the posterior moves a long way from round to
    round, a copy with fewer draws falls behind, and no draw shows what is missing.

    The random numbers are fixed by the number of points, so that the result is a function of the
    surface alone.
    """
    rng, proposal, warp = np.random.default_rng(len(surface.points.y)), start, surface.warp
    for _ in range(rules.passes):
        sampler = surface.sampled_by(proposal)
        w = sampler.draw(rng, rules.draws, rules)
        u, log_jacobian = warp.bent(w)
        weights = _normalised(surface(u).low - log_jacobian - sampler.log_prob(w, rules))
        n_effective = float(1 / np.sum(weights**2))
        # Coordinates of a funnel have no images, and a surrogate that has them itself needs none.
        if group is not None and not warp and not surface.symmetries:
            w, weights = group.images(w), np.repeat(weights, len(group)) / len(group)
        proposal = _adapted(surface, w, weights, n_effective, rng, rules)
    enough = rules.enough_to_close if is_closing else rules.enough
    pool = _drawn(surface, proposal, rng, rules)
    for _ in range(rules.repeats):
        if pool.n_effective >= enough:
            break
        w, _ = warp.straight(pool.u)
        proposal = _adapted(surface, w, pool.weights, pool.n_effective, rng, rules)
        pool = _joined(pool, _drawn(surface, proposal, rng, rules))
    return pool


def _joined(pool: Pool, more: Pool) -> Pool:
    """The draws of both, each pool with a share in proportion to its effective sample size.

    A draw keeps the density of the proposal that it came from. In the density of their mixture, the
    earlier draws would be too likely: the centres of the later kernels are among them.
    """
    n = np.array([len(pool.u), len(more.u)])
    share = np.array([pool.n_effective, more.n_effective])
    ahead = np.repeat(np.log(n / n.sum()) - np.log(share / share.sum()), n)
    parts = (np.concatenate(pair) for pair in zip(pool[1:], more[1:], strict=True))
    joined = Pool(more.proposal, *parts)
    return joined._replace(log_proposal=joined.log_proposal + ahead)


def _adapted(
    surface: Surface, w: Floats, weights: Floats, n_effective: float, rng: np.random.Generator, rules: Integration
) -> Proposal:
    """The proposal for a density of which there are weighted draws w (n, d).

    If the surrogate has symmetries, it is one for the one copy.
    """
    w, base = surface.copies.folded(w), surface.copies.one
    centres = w[systematic(rng, weights, rules.centres)]
    if n_effective < rules.fewest * w.shape[1]:
        # The proposal misses the density: continue from the best points that were evaluated.
        centres = np.concatenate([centres[::2], surface.best(rules.centres // 2)])
        weights, w = np.full(len(centres), 1 / len(centres)), centres
    mean = weights @ w
    cov = ((w - mean).T * weights) @ (w - mean)
    floor = _FLOOR * base.within
    within = cov if len(base.weights) == 1 else base.updated(w, weights).within
    return Proposal.around(centres, mean, cov + floor, within + floor, n_effective)


def _drawn(surface: Surface, proposal: Proposal, rng: np.random.Generator, rules: Integration) -> Pool:
    """A pool of draws from a proposal."""
    sampler = surface.sampled_by(proposal)
    w = sampler.draw(rng, rules.closing, rules)
    u, log_jacobian = surface.warp.bent(w)
    return Pool(proposal, u, sampler.log_prob(w, rules) + log_jacobian, *surface(u))


def near_gaussian_moments(surface: Surface, mean: Floats, cov: Floats, rules: Integration) -> tuple[Floats, Floats]:
    """Mean (d,) and covariance (d, d) of a claimed density that is nearly a Gaussian with these.

    Importance sampling from that Gaussian, by a sample with exactly its moments: what is left of
    the sampling noise is in proportion to how far the weights are from equal.
    """
    z = matched_normals(rules.matched, len(mean))
    for _ in range(rules.polishes):
        u = mean + z @ np.linalg.cholesky(cov).T
        weights = _normalised(surface(u).low + 0.5 * np.sum(z**2, axis=1))
        mean = weights @ u
        cov = ((u - mean).T * weights) @ (u - mean)
    return mean, cov


def resampled(surface: Surface, proposal: Proposal, rng: np.random.Generator, n: int, rules: Integration) -> Floats:
    """Draws from the claimed density: (n, d).

    They are resampled from several proposals each. Where the proposal has next to no mass and the
    density has a little, a single draw may have so much weight that it would be there hundreds of
    times. Then the proposal is adapted to these weights, and drawn from anew.
    """
    best = 0.0
    for _ in range(1 + rules.passes):
        sampler = surface.sampled_by(proposal)
        w = sampler.draw(rng, max(rules.candidates * n, rules.draws), rules)
        u, log_jacobian = surface.warp.bent(w)
        weights = _normalised(surface(u).low - log_jacobian - sampler.log_prob(w, rules))
        n_effective = float(1 / np.sum(weights**2))
        if n_effective > best:
            best, chosen = n_effective, (u, weights)
        if n_effective >= n:
            break
        proposal = _adapted(surface, w, weights, n_effective, rng, rules)
    u, weights = chosen
    u = u[rng.permutation(systematic(rng, weights, n))]
    return surface.copies.scattered(u, rng)


def most_informative(surface: Surface, pool: Pool, n: int, most: int, makes_sense: NDArray[np.bool_]) -> Floats:
    """Points (n, d) whose values take most variance from the possible density.

    ``makes_sense`` tells which draws of the pool (m,) may be evaluated at all.

    They are chosen one after the other among ``most`` draws of the pool: each reduces the mean
    variance of the prediction, under the possible density, by as much as one point can, given those
    chosen before it. Where there is a border, half of them are draws from the possible density near
    it instead, because the surrogate knows nothing about its place.
    """
    some = slice(None, None, max(1, len(pool.u) // most))
    u, weights, is_sensible = pool.u[some], pool.hopeful[some], makes_sense[some]
    if np.count_nonzero(is_sensible) > n:
        u, weights = u[is_sensible], weights[is_sensible]
    u = surface.cells.middle(u)
    if surface.border is not None:
        allowed = surface.border.possibly(u)
        at_border = _distinct(weights * allowed * (1 - allowed), n // 2, len(surface.points.y))
        return np.concatenate([u[at_border], _most_informative(surface, u, weights, n - len(at_border))])
    return _most_informative(surface, u, weights, n)


def _distinct(weights: Floats, n: int, seed: int) -> NDArray[np.int64]:
    """Up to n different indices, drawn in proportion to their weights."""
    possible = int(np.count_nonzero(weights))
    if not possible:
        return np.empty(0, dtype=np.int64)
    rng = np.random.default_rng(seed)
    return rng.choice(len(weights), size=min(n, possible), replace=False, p=weights / weights.sum())


def _most_informative(surface: Surface, u: Floats, weights: Floats, n: int) -> Floats:
    """The n among points u (m, d), with these weights, that take most variance."""
    C = surface.process.covariance(surface.whitened(u), surface.predicted(u))
    noise = surface.noise_near + 1e-4 + 1e-6 * surface.process.variance
    chosen: list[int] = []
    for _ in range(n):
        variance = np.maximum(np.diagonal(C), 0.0) + noise
        gain = (weights @ (C * C)) / variance
        gain[chosen] = -1.0  # a second call at the same point is wasted on a function without noise
        j = int(np.argmax(gain))
        chosen.append(j)
        C = C - np.outer(C[:, j], C[j]) / variance[j]
    return np.asarray(u[chosen])


def _log_mean(x: Floats) -> float:
    return float(np.logaddexp.reduce(x)) - math.log(len(x))


def _log_error(weights: Floats) -> float:
    """Standard error of the log of an integral, by importance weights with sum one."""
    return math.sqrt(max(float(np.sum(weights**2)) - 1 / len(weights), 0.0))


def _normalised(log_weights: Floats) -> Floats:
    top = np.max(log_weights)
    if not np.isfinite(top):  # nothing was found: all draws are equally good
        return np.full(len(log_weights), 1 / len(log_weights))
    weights = np.exp(log_weights - top)
    return np.asarray(weights / weights.sum())
