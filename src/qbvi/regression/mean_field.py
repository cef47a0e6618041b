r"""The default method for products of families: regress, integrate, advance.

As `qbvi.Regression`, with two changes that make it work for any exponential family.

- The residual is regressed on *whitened coordinates*: standard normals for a Gaussian factor, orthonormal
  statistics for any other. In these a conjugate log-likelihood is a plane.
- They are not all Gaussian, so the natural gradient is not read off the coefficients but integrated. The
  regression costs nothing to evaluate, so its projection on the features of the family,

.. math:: w = E_q[\psi \hat h], \quad \psi = I^{-1/2}(\phi - m),

is taken over thousands of draws from q. Draws that the regression did not see correct ``w`` where it is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from qbvi.arrays import Array
from qbvi.families.base import Family, GaussianFamily
from qbvi.families.exponential import ExponentialFamily
from qbvi.random import Sobol
from qbvi.regression.base import Move, RegressionMethod
from qbvi.regression.correction import kept_share
from qbvi.regression.hermite import radial_feature, tail_variance
from qbvi.regression.line import longest_by_bisection
from qbvi.regression.regress import Regressed, RegressionState, regress
from qbvi.regression.rules import TrustRegion, secant_share
from qbvi.regression.surrogate import Variances, leave_pairs_out
from qbvi.stopping import GapBelow, Rule

__all__ = ["MeanFieldRegression"]

Floats = NDArray[np.float64]

_NODES = 2048  # draws from q over which the regression is integrated, at least ...
_NODES_EACH = 8  # ... and for each natural parameter
_DOUBT_NODES = 64  # draws over which a mean radius is taken
_FINEST = 100  # the tolerance, divided by this, is where digits that cost one step each are no longer bought
_POINTS_PER_PAIR = 4  # draws that each coefficient of a coupling needs, to be fitted at all


class _Answer(NamedTuple):
    """What is known of the bound and its natural gradient."""

    bound: float
    bound_se: float
    w: Floats  # (k,) coefficients of the family's features
    C: Floats  # (d, d) curvature along all Gaussian coordinates, whether the family follows it or not
    coupling: Floats  # (k, k) coefficients of products of features of different groups
    surrogate: Callable[[Floats], Floats]  # of whitened coordinates (n, n_whitened) -> (n,)
    error: float  # nats that the error of w is expected to cost
    tail: float  # variance of what no member of the family follows
    variances: Variances
    n_effective: float

    @property
    def gradient_norm(self) -> float:
        return float(np.linalg.norm(self.w))


class _Proposal(NamedTuple):
    """A step of some share of the full one, and whether it stays inside the domain."""

    move: Move
    is_inside: bool


@dataclass(frozen=True)
class MeanFieldRegression(RegressionMethod):
    """The default for products of families: exact in one step where the factors are conjugate, few evaluations elsewhere.

    Parameters
    ----------
    tol, n_samples, initial_scale, n_fresh, window, keep, rules
        As for `qbvi.Regression`.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> y = np.array([3, 5, 4, 6])
    >>> fit = qbvi.fit(
    ...     lambda rate: np.sum(y * np.log(rate) - rate), qbvi.Gamma(2.0, 1.0), seed=1
    ... )  # the exact posterior is Gamma(20, 5)
    >>> posterior = fit.factors["theta"]
    >>> posterior.alpha.round(6), posterior.beta.round(6)
    (np.float64(20.0), np.float64(5.0))
    """

    @property
    def stop(self) -> tuple[Rule, ...]:
        """Stop in nats, but not too early.

        People read the parameters of a law, and 0.01 nats leave a shape parameter open by a fifth.
        """
        return (GapBelow(self.tol, finest=self.tol / _FINEST),)

    def _n_coefficients(self, family: Family) -> int:
        return family.size

    def _answer(self, family: Family, state: RegressionState) -> _Answer:
        """Regress on what is known, integrate the regression, and correct it by draws that it did not see."""
        found = regress(family, state, self.rules, lambda x: _free(family, x))
        regression, variances = found.regression, found.variances
        solved = regression.solve(variances)
        left_out = leave_pairs_out(solved, found.pair)

        def surrogate(x: Floats) -> Floats:
            return regression.predict(variances, solved, x, _free(family, x))

        farthest = float(np.max(np.sum(regression.points.z**2, axis=1)))
        projection = _projection(family, state.q, surrogate, self.rules.trust_region.near * farthest)
        correction, noise = _unseen(family, state, found, left_out.residuals)
        keep = kept_share(float(correction @ correction), noise, family.size, self.rules.holdout.spread)
        variance = float(_weights(family, state, found, len(left_out.residuals)) @ left_out.residuals**2)
        return _Answer(
            bound=projection.bound,
            bound_se=math.sqrt(variance / found.n_effective),
            w=projection.w + keep * correction,
            coupling=projection.coupling,
            surrogate=surrogate,
            C=regression.curvature(variances, solved, _is_gaussian(family)),
            error=0.5 * (family.size * variance / found.n_effective + keep * noise),
            tail=regression.scale(left_out, variances),
            variances=variances,
            n_effective=found.n_effective,
        )

    def _move(self, family: Family, state: RegressionState, answer: _Answer) -> tuple[Move, float]:
        repeated = _repeated(family, state, answer.w)
        move = self._longest(family, state, answer, float(secant_share(repeated)))
        gap = self._predicted_gap(answer, move, repeated)
        off_saddle = self._escape(family, state.q, answer) if gap < self.tol else None
        return (move, gap) if off_saddle is None else (off_saddle, math.inf)

    def _predicted_gap(self, answer: _Answer, move: Move, repeated: np.float64) -> float:
        """Nats that will be missing after the step; infinite while it is not the last one."""
        rule = self.rules.gap
        if move.is_restricted or move.kl > rule.settled_kl:
            return math.inf
        gap = rule.margin * answer.error + rule.kl_share * move.kl
        return max(gap, float(rule.still_to_come(np.float64(move.kl), repeated)))

    def _longest(self, family: Family, state: RegressionState, answer: _Answer, longest: float) -> Move:
        """The longest step inside of the domain, within the radius, with a gain above the regression's own doubt."""
        rule = self.rules.trust_region

        def is_allowed(proposal: _Proposal) -> bool:
            move = proposal.move
            is_within = proposal.is_inside and bool(move.kl <= state.radius)
            return is_within and _doubt(family, state.q, answer, move, rule.near) <= move.gain

        def at(share: float) -> _Proposal:
            return _at(family, state.q, answer, share, rule)

        move = longest_by_bisection(at, is_allowed, longest, rule.halvings).move
        return move if move.share == longest else move._replace(is_restricted=True)

    def _escape(self, family: Family, q: Array, answer: _Answer) -> Move | None:
        """A step off a saddle, where q has settled on one: each group alone is at its best, but two together are not.

        The coupling of groups says where to look, and the regression whether the bound rises there.
        """
        rule = self.rules.escape
        strength, axes = np.linalg.eigh(answer.coupling)
        if strength[-1] < rule.coupling:
            return None
        pushes = (answer._replace(w=sign * rule.push * axes[:, -1]) for sign in (1, -1))
        proposals = [_at(family, q, push, 1.0, self.rules.trust_region) for push in pushes]
        moves = [p.move._replace(gain=_rise(family, q, answer, p.move)) for p in proposals if p.is_inside]
        best = max(moves, key=lambda move: move.gain, default=None)
        return best if best is not None and best.gain > rule.worth * self.tol else None

    def _widened(self, family: Family, q: Array, factor: float) -> Array:
        return family.start(family.mean(q), factor * family.sd(q))


def _weights(family: Family, state: RegressionState, found: Regressed, m: int) -> Floats:
    """Weights, adding up to one, with which the last m points stand for draws from q."""
    theta = state.store.theta[found.rows[-m:]]
    ratio = np.exp(family.log_prob(state.q, theta) - family.log_prob(family.defensive(state.q), theta))
    weights = found.weights[-m:] * ratio
    return np.asarray(weights / np.sum(weights))


class _Projection(NamedTuple):
    bound: float
    w: Floats  # (k,)
    coupling: Floats  # (k, k)


def _projection(family: Family, q: Array, surrogate: Callable[[Floats], Floats], farthest: float) -> _Projection:
    """Mean of the surrogate under q, and its coefficients on the features of the family: least squares over many draws.

    Products of features of different groups take part too. They are orthogonal to what is wanted, so they change nothing but the error: what they explain
    does not disturb. Their coefficients are how the groups are coupled.
    """
    reference = family.defensive(q)
    nodes = family.transport(reference, _normals(family))
    x, psi = family.coordinates(reference, nodes), family.features(q, nodes)
    known = np.sum(x**2, axis=1) <= farthest  # polynomials say nothing beyond the points they were fitted to
    first, second = _pairs(family, len(psi))
    design = np.column_stack([np.ones(len(psi)), psi, psi[:, first] * psi[:, second], _unfollowed(family, x)])[known]
    root = np.exp(0.5 * (family.log_prob(q, nodes) - family.log_prob(reference, nodes)))[known]
    found = np.linalg.lstsq(root[:, None] * design, root * surrogate(x[known]), rcond=None)[0]
    coupling = np.zeros((family.size, family.size))
    coupling[first, second] = coupling[second, first] = found[1 + family.size : 1 + family.size + len(first)]
    return _Projection(float(found[0]), found[1 : 1 + family.size], coupling)


def _pairs(family: Family, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Features of different independent groups, pair by pair; none where they would be too many for n draws."""
    sizes = [size for f in _factors(family) for size in _groups(f)]
    group = np.repeat(np.arange(len(sizes)), sizes)
    first, second = np.nonzero(group[:, None] < group[None, :])
    return (first, second) if len(first) <= n // _POINTS_PER_PAIR else (first[:0], second[:0])


def _groups(factor: Family) -> list[int]:
    """Sizes of its independent groups of features: one for a Gaussian, one for each copy of a law."""
    if isinstance(factor, ExponentialFamily):
        return [factor.n_statistics] * factor.copies
    return [factor.size]


def _unfollowed(family: Family, x: Floats) -> Floats:
    """Products of Gaussian coordinates that the family does not follow: (n, n_whitened) -> (n, m)."""
    factors = _factors(family)
    places = np.split(np.arange(x.shape[1]), np.cumsum([f.n_whitened for f in factors])[:-1])
    columns = [np.empty((len(x), 0))]
    for factor, at in zip(factors, places, strict=True):
        if isinstance(factor, GaussianFamily):
            missing = np.tril(factor.restrict(np.ones((factor.dim, factor.dim))) == 0)
            z = x[:, at]
            columns.append((z[:, :, None] * z[:, None, :])[:, missing])
    return np.concatenate(columns, axis=1)


def _rise(family: Family, q: Array, answer: _Answer, move: Move) -> float:
    """Rise of the bound from q to where a step leads, as the surrogate sees it."""
    there = family.transport(move.q, _normals(family))
    heights = answer.surrogate(family.coordinates(family.defensive(q), there))
    return float(np.mean(heights)) - answer.bound - move.kl


def _unseen(family: Family, state: RegressionState, found: Regressed, errors: Floats) -> tuple[Floats, float]:
    r"""The surrogate's error :math:`E[\psi e]` as draws that it did not see tell it (k,), and the variance of that."""
    m = len(errors)
    share = _weights(family, state, found, m)
    psi = family.features(state.q, state.store.theta[found.rows[-m:]])
    starts = np.flatnonzero(np.r_[True, found.pair[1:] != found.pair[:-1]])
    parts = np.add.reduceat((share * (errors - share @ errors))[:, None] * psi, starts)
    return parts.sum(axis=0), float(np.sum(parts**2))


def _free(family: Family, x: Floats) -> Floats:
    """What is fitted without a prior: a constant, the coordinates, and the squared radius of the Gaussian ones."""
    gaussian = x[:, _is_gaussian(family)]
    columns = [np.ones(len(x)), x]
    if gaussian.shape[1]:
        columns.append(radial_feature(gaussian))
    return np.column_stack(columns)


def _factors(family: Family) -> tuple[Family, ...]:
    return tuple(part.family for part in family.independent_parts)


def _is_gaussian(family: Family) -> NDArray[np.bool_]:
    """Which whitened coordinates are standard normal: (n_whitened,)."""
    factors = _factors(family)
    return np.repeat([isinstance(f, GaussianFamily) for f in factors], [f.n_whitened for f in factors])


def _normals(family: Family) -> Floats:
    """Fixed normals to make draws from any q of: the same at every step, so that two steps differ by q alone."""
    return _sobol(1 << math.ceil(math.log2(max(_NODES, _NODES_EACH * family.size))), family.dim)


@lru_cache(maxsize=8)
def _sobol(n: int, d: int) -> Floats:
    return Sobol().normal(np.random.default_rng(0), n, d)


def _at(family: Family, q: Array, answer: _Answer, share: float, rules: TrustRegion) -> _Proposal:
    """The step of this share of the full one: natural gradients, but all Gaussian means together follow all of C."""
    factors = _factors(family)
    members = family.members(q)
    parts = np.split(answer.w, np.cumsum([f.size for f in factors])[:-1])
    gaussian = [i for i, f in enumerate(factors) if isinstance(f, GaussianFamily)]
    moved, kl, gain, is_inside, is_restricted = list(members), 0.0, 0.0, True, False
    for i, factor in enumerate(factors):
        if isinstance(factor, ExponentialFamily):
            advance = factor.advance(members[i], parts[i], share)
            moved[i], is_inside = advance.q, is_inside and bool(advance.is_inside)
            kl, gain = kl + float(advance.kl), gain + float(advance.gain)
    if gaussian:
        some: list[GaussianFamily] = [factors[i] for i in gaussian]  # type: ignore[misc]
        block = _gaussian_step(some, [parts[i] for i in gaussian], answer.C, share, rules)
        kl, gain, is_restricted = kl + block.kl, gain + block.gain, block.is_restricted
        for i, deformation in zip(gaussian, block.deformations, strict=True):
            moved[i] = factors[i].deform(members[i], *deformation)  # type: ignore[attr-defined]
    return _Proposal(Move(np.concatenate(moved), kl, gain, share, is_restricted), is_inside)


class _GaussianStep(NamedTuple):
    """What becomes of the Gaussian factors."""

    deformations: list[tuple[Floats, Floats, Floats]]  # shift, root of the whitened covariance, inverse of that
    kl: float
    gain: float
    is_restricted: bool


def _gaussian_step(
    factors: list[GaussianFamily], parts: list[Floats], C: Floats, share: float, rules: TrustRegion
) -> _GaussianStep:
    found = [f.coefficients(part) for f, part in zip(factors, parts, strict=True)]
    b = np.concatenate([part for part, _ in found])
    ends = np.cumsum([0, *(f.dim for f in factors)])
    blocks = [slice(start, stop) for start, stop in pairwise(ends)]
    followed = block_diag(*(block for _, block in found))
    C = np.where(block_diag(*(f.restrict(np.ones((f.dim, f.dim))) for f in factors)) != 0, followed, C)
    c, axes = np.linalg.eigh(C)
    shift = axes @ (share * (axes.T @ b) / np.maximum(1 - share * c, rules.softest))
    eigen = [np.linalg.eigh(block) for _, block in found]
    precision = [np.maximum(1 - share * r, rules.product_precision) for r, _ in eigen]
    deformations = [
        (shift[at], (U / np.sqrt(p)) @ U.T, (U * np.sqrt(p)) @ U.T)
        for at, p, (_, U) in zip(blocks, precision, eigen, strict=True)
    ]
    r, p = np.concatenate([r for r, _ in eigen]), np.concatenate(precision)
    kl = 0.5 * float(np.sum(1 / p - 1 + np.log(p)) + shift @ shift)
    gain = float(b @ shift + 0.5 * (shift @ C @ shift + np.sum(r * (1 / p - 1)))) - kl
    return _GaussianStep(deformations, kl, gain, bool(np.max(r) > 1 - rules.product_precision))


def _doubt(family: Family, q: Array, answer: _Answer, move: Move, near: float) -> float:
    """Standard deviation, at the new place, of what no member of the family follows; none where that is near."""
    nodes = _normals(family)[:_DOUBT_NODES]
    there = family.coordinates(family.defensive(q), family.transport(move.q, nodes))
    reach, home = float(np.mean(np.sum(there**2, axis=1))), family.n_whitened
    if reach < near * home:
        return -math.inf
    return math.sqrt(max(answer.tail * (tail_variance(reach, home, answer.variances.omega) - 1), 0.0))


def _repeated(family: Family, state: RegressionState, w: Floats) -> np.float64:
    """Share of the last step that this one repeats; negative where it goes back."""
    if state.last_step is None:
        return np.float64(0.0)
    last = -np.mean(family.features(state.q, family.transport(state.last_step.q, _normals(family))), axis=0)
    length = float(last @ last)
    return np.float64(float(w @ last) / length if length > 0 else 0.0)
