r"""The default method for products of families: regress, integrate, step.

The method is `qbvi.Regression` with two changes, which make it work for any exponential family.

- The residual is regressed on *whitened coordinates*: standard normals for a Gaussian factor,
  orthonormal statistics for any other. A conjugate log-likelihood is linear in them.
- These coordinates are not all Gaussian, so the coefficients are not the natural gradient. It is
  the projection of the regression :math:`\hat h` on the features of the family,

.. math:: w = E_q[\psi \hat h], \quad \psi = I^{-1/2}(\phi - m).

The expectation is taken over thousands of draws from q, as the regression costs almost nothing to
evaluate. Left-out draws correct ``w`` where the regression is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.families.base import Family, GaussianFamily
from qbvi.families.exponential import ExponentialFamily
from qbvi.random import Sobol
from qbvi.regression.base import Answer, Move, RegressionMethod
from qbvi.regression.correction import kept_share
from qbvi.regression.hermite import radial_feature, tail_variance
from qbvi.regression.line import longest_by_bisection
from qbvi.regression.regress import Regressed, RegressionState, regress
from qbvi.regression.rules import TrustRegion, secant_share
from qbvi.regression.surrogate import leave_pairs_out
from qbvi.stopping import GapBelow, Rule

__all__ = ["MeanFieldRegression"]

Floats = NDArray[np.float64]

_NODES = 2048  # least number of draws from q over which the regression is integrated ...
_NODES_EACH = 8  # ... and least number for each natural parameter
_DOUBT_NODES = 64  # draws for the mean squared radius of a new q
_FINEST = 100  # while each step halves the gap, continue down to the tolerance divided by this
_POINTS_PER_PAIR = 4  # least number of draws for each coefficient of the coupling


@dataclass(frozen=True, eq=False)
class _Answer(Answer):
    w: Floats  # (k,) natural gradient: coefficients of the family's features
    C: Floats  # (d, d) curvature along all Gaussian coordinates, in the family or not
    coupling: Floats  # (k, k) coefficients of products of features of different groups
    surrogate: Callable[[Floats], Floats]  # of whitened coordinates (n, n_whitened) -> (n,)
    error: float  # expected loss, in nats, from the error of w


class _Proposal(NamedTuple):
    """A step, and whether it stays inside the domain."""

    move: Move
    is_inside: bool


@dataclass(frozen=True)
class MeanFieldRegression(RegressionMethod):
    """The default method for products of families.

    One step is exact if the factors are conjugate. Otherwise the method needs few evaluations.

    Parameters
    ----------
    tol, n_samples, initial_scale, n_fresh, window, keep, rules
        As for `qbvi.Regression`.

    Examples
    --------
    Poisson counts with a gamma prior. The exact posterior is Gamma(20, 5):

    >>> import numpy as np, qbvi
    >>> y = np.array([3, 5, 4, 6])
    >>> log_likelihood = lambda rate: np.sum(y * np.log(rate) - rate)
    >>> fit = qbvi.fit(log_likelihood, qbvi.Gamma(2.0, 1.0), family={"theta": "gamma"}, seed=1)
    >>> posterior = fit.factors["theta"]
    >>> posterior.alpha.round(6), posterior.beta.round(6)
    (np.float64(20.0), np.float64(5.0))
    """

    @property
    def stop(self) -> tuple[Rule, ...]:
        """Stop when the gap is below the tolerance, but continue while each step halves it.

        Users read the parameters of a distribution, and with a gap of 0.01 nats a shape parameter
        can still be off by a fifth.
        """
        return (GapBelow(self.tol, finest=self.tol / _FINEST),)

    def _n_coefficients(self, family: Family) -> int:
        return family.size

    def _answer(self, family: Family, state: RegressionState) -> _Answer:
        """Regress on the points so far, integrate, and correct the result by left-out draws."""
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
        w = projection.w + keep * correction
        return _Answer(
            bound=projection.bound,
            bound_se=math.sqrt(variance / found.n_effective),
            gradient_norm=float(np.linalg.norm(w)),
            w=w,
            coupling=projection.coupling,
            surrogate=surrogate,
            C=regression.curvature(variances, solved, _is_gaussian(family)),
            error=0.5 * (family.size * variance / found.n_effective + keep * noise),
            tail=regression.scale(left_out, variances),
            variances=variances,
            following=found.following,
            n_effective=found.n_effective,
        )

    def _curvature(self, family: Family, state: RegressionState) -> Floats:
        found = regress(family, state, self.rules, lambda x: _free(family, x))
        columns = np.ones(family.n_whitened, dtype=bool)
        return found.regression.curvature(found.variances, found.regression.solve(found.variances), columns)

    def _move(self, family: Family, state: RegressionState, answer: _Answer) -> tuple[Move, float]:
        repeated = _repeated(family, state, answer.w)
        move = self._longest(family, state, answer, float(secant_share(repeated)))
        gap = self._predicted_gap(answer, move, repeated)
        off_saddle = self._escape(family, state.q, answer) if gap < self.tolerance(state) else None
        return (move, gap) if off_saddle is None else (off_saddle, math.inf)

    def _predicted_gap(self, answer: _Answer, move: Move, repeated: np.float64) -> float:
        """Nats that will be missing after the step; infinite if it cannot be the last step."""
        rule = self.rules.gap
        if move.is_restricted or move.kl > rule.settled_kl:
            return math.inf
        gap = rule.margin * answer.error + rule.kl_share * move.kl
        return max(gap, float(rule.still_to_come(np.float64(move.kl), repeated)))

    def _longest(self, family: Family, state: RegressionState, answer: _Answer, longest: float) -> Move:
        """The longest step inside the domain, within the radius and with a believable gain."""
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
        """A step off a saddle, if q is at one: each group is optimal alone, but not jointly.

        The coupling of the groups gives the direction. The step is made if the regression predicts
        a rise of the bound there.
        """
        rule = self.rules.escape
        strength, axes = np.linalg.eigh(answer.coupling)
        if strength[-1] < rule.coupling:
            return None
        pushes = (replace(answer, w=sign * rule.push * axes[:, -1]) for sign in (1, -1))
        proposals = [_at(family, q, push, 1.0, self.rules.trust_region) for push in pushes]
        moves = [p.move._replace(gain=_rise(family, q, answer, p.move)) for p in proposals if p.is_inside]
        best = max(moves, key=lambda move: move.gain, default=None)
        return best if best is not None and best.gain > rule.worth * self.tol else None

    def _widened(self, family: Family, q: Array, factor: float) -> Array:
        return family.start(family.mean(q), factor * family.sd(q))


def _weights(family: Family, state: RegressionState, found: Regressed, m: int) -> Floats:
    """Importance weights of the last m points for q; their sum is one."""
    theta = state.store.theta[found.rows[-m:]]
    ratio = np.exp(family.log_prob(state.q, theta) - family.log_prob(family.defensive(state.q), theta))
    weights = found.weights[-m:] * ratio
    return np.asarray(weights / np.sum(weights))


class _Projection(NamedTuple):
    bound: float
    w: Floats  # (k,)
    coupling: Floats  # (k, k)


def _projection(family: Family, q: Array, surrogate: Callable[[Floats], Floats], farthest: float) -> _Projection:
    """Mean of the surrogate under q and its coefficients on the features, by least squares.

    The design also has products of features of different groups. They are orthogonal to the
    features, so they do not change the expected coefficients, but they reduce the variance. Their
    own coefficients are the coupling of the groups.
    """
    reference = family.defensive(q)
    nodes = family.transport(reference, _normals(family))
    x, psi = family.coordinates(reference, nodes), family.features(q, nodes)
    known = np.sum(x**2, axis=1) <= farthest  # polynomials do not extrapolate
    first, second = _pairs(family, len(psi))
    design = np.column_stack([np.ones(len(psi)), psi, psi[:, first] * psi[:, second], _unfollowed(family, x)])[known]
    root = np.exp(0.5 * (family.log_prob(q, nodes) - family.log_prob(reference, nodes)))[known]
    found = np.linalg.lstsq(root[:, None] * design, root * surrogate(x[known]), rcond=None)[0]
    coupling = np.zeros((family.size, family.size))
    coupling[first, second] = coupling[second, first] = found[1 + family.size : 1 + family.size + len(first)]
    return _Projection(float(found[0]), found[1 : 1 + family.size], coupling)


def _pairs(family: Family, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All pairs of features of different groups; none if they are too many for n draws."""
    sizes = [size for f in _factors(family) for size in _groups(f)]
    group = np.repeat(np.arange(len(sizes)), sizes)
    first, second = np.nonzero(group[:, None] < group[None, :])
    return (first, second) if len(first) <= n // _POINTS_PER_PAIR else (first[:0], second[:0])


def _groups(factor: Family) -> list[int]:
    """Sizes of a factor's groups of features: one group for a Gaussian, else one for each copy."""
    if isinstance(factor, ExponentialFamily):
        return [factor.n_statistics] * factor.copies
    return [factor.size]


def _unfollowed(family: Family, x: Floats) -> Floats:
    """Products of Gaussian coordinates that the family does not have: (n, n_whitened) -> (n, m)."""
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
    """Rise of the bound that the surrogate predicts for a step from q."""
    there = family.transport(move.q, _normals(family))
    heights = answer.surrogate(family.coordinates(family.defensive(q), there))
    return float(np.mean(heights)) - answer.bound - move.kl


def _unseen(family: Family, state: RegressionState, found: Regressed, errors: Floats) -> tuple[Floats, float]:
    r"""The surrogate's error :math:`E[\psi e]` from left-out draws (k,), and its variance."""
    m = len(errors)
    share = _weights(family, state, found, m)
    psi = family.features(state.q, state.store.theta[found.rows[-m:]])
    starts = np.flatnonzero(np.r_[True, found.pair[1:] != found.pair[:-1]])
    parts = np.add.reduceat((share * (errors - share @ errors))[:, None] * psi, starts)
    return parts.sum(axis=0), float(np.sum(parts**2))


def _free(family: Family, x: Floats) -> Floats:
    """Features without a prior: a constant, x, and the squared radius of its Gaussian part."""
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
    """Fixed normals for draws from any q: two steps then differ only by their q."""
    return _sobol(1 << math.ceil(math.log2(max(_NODES, _NODES_EACH * family.size))), family.dim)


@lru_cache(maxsize=8)
def _sobol(n: int, d: int) -> Floats:
    return Sobol().normal(np.random.default_rng(0), n, d)


def _at(family: Family, q: Array, answer: _Answer, share: float, rules: TrustRegion) -> _Proposal:
    """The step of length ``share``, relative to the full step.

    Each factor follows its natural gradient, except that the Gaussian means together use all of C.
    """
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
    """The step of all Gaussian factors."""

    # For each factor: shift, root of the whitened covariance, and the inverse of that root.
    deformations: list[tuple[Floats, Floats, Floats]]
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
    followed = scipy.linalg.block_diag(*(block for _, block in found))
    C = np.where(scipy.linalg.block_diag(*(f.restrict(np.ones((f.dim, f.dim))) for f in factors)) != 0, followed, C)
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
    """Added standard deviation, at the new place, of degrees three and four.

    Minus infinity if the new q reaches hardly farther than the old one (`TrustRegion.near`).
    """
    nodes = _normals(family)[:_DOUBT_NODES]
    there = family.coordinates(family.defensive(q), family.transport(move.q, nodes))
    reach, home = float(np.mean(np.sum(there**2, axis=1))), family.n_whitened
    if reach < near * home:
        return -math.inf
    return math.sqrt(max(answer.tail * (tail_variance(reach, home, answer.variances.omega, equal=True) - 1), 0.0))


def _repeated(family: Family, state: RegressionState, w: Floats) -> np.float64:
    """Share of the last step that the next step repeats; negative if it goes back."""
    if state.last_step is None:
        return np.float64(0.0)
    last = -np.mean(family.features(state.q, family.transport(state.last_step.q, _normals(family))), axis=0)
    length = float(last @ last)
    return np.float64(float(w @ last) / length if length > 0 else 0.0)
