r"""The default method for products of families: regress, integrate, advance.

As `qbvi.Regression`, with a few changes that make it work for any exponential family. The residual is regressed on the *whitened coordinates*: standard
normals for a Gaussian factor, orthonormal statistics for any other, in which a conjugate log-likelihood is a plane. And since these
are not all Gaussian, the natural gradient is not read off the regression's coefficients but integrated: the surrogate costs nothing to evaluate, so its
projection on the features of the family,

.. math:: w = E_q[\psi \hat h], \quad \psi = I^{-1/2}(\phi - m),

is taken over thousands of draws from q. Draws that the surrogate did not see correct ``w`` where it is wrong.
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

from qbvi.algorithm import Info, Values
from qbvi.arrays import Array
from qbvi.families.base import Family, GaussianFamily
from qbvi.families.exponential import ExponentialFamily
from qbvi.families.product import Product
from qbvi.random import Sobol, orthogonal_pairs
from qbvi.regression.correction import believed
from qbvi.regression.hermite import tail_variance
from qbvi.regression.method import (
    MARGIN,
    Regressed,
    Regression,
    State,
    creep,
    drowned,
    enough,
    nothing_learnt,
    received,
    regress,
    returned,
    twice,
)
from qbvi.regression.store import Store
from qbvi.regression.surrogate import Hyper, leave_pairs_out
from qbvi.regression.trust_region import Promise
from qbvi.stopping import GapBelow, Rule

__all__ = ["MeanFieldRegression"]

Floats = NDArray[np.float64]

_SMALLEST = 1 / 64  # factor by which a step may shrink a precision
_SOFTEST = 1e-3  # smallest whitened stiffness of the log joint that a step of the mean believes
_PUSH = 0.7  # length of the step off a saddle: a quarter of a nat in KL
_NODES = 2048  # draws from q over which the surrogate is integrated, at least; eight for each natural parameter


class _Answer(NamedTuple):
    """What is known of the bound and its natural gradient."""

    bound: float
    bound_se: float
    w: Floats  # (k,) coefficients of the family's features
    C: Floats  # (d, d) curvature along all Gaussian coordinates, whether the family follows it or not
    coupling: Floats  # (k, k) coefficients of products of features of different groups
    surrogate: Callable[[Floats], Floats]  # of whitened coordinates (n, n_whitened) -> (n,)
    error: float  # nats that the error of w is expected to cost
    scale: float  # variance of what no member of the family follows
    hyper: Hyper
    alike: float  # number of draws, those unlike q's counting less


class _Move(NamedTuple):
    """How far to go along w."""

    q: Array  # where it leads
    kl: float  # KL(new || old)
    gain: float  # rise of the bound that the surrogate predicts
    is_inside: bool
    beta: float = 0.0
    is_bound: bool = False  # whether something held it back


@dataclass(frozen=True)
class MeanFieldRegression(Regression):
    """The default for products of families: exact in one step where the factors are conjugate, few evaluations elsewhere.

    Parameters
    ----------
    tol, n_samples, initial_scale, n_fresh
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
        """Stop in nats; the parameters of a law are read by people, and 0.01 nats leave a shape parameter open by a fifth of its value."""
        return (GapBelow(self.tol, finest=self.tol / 100),)

    def init(self, family: Family, q: Array) -> State:
        """Nothing evaluated yet."""
        most = min(max(400, round(4 * family.size * max(1.0, 0.01 / self.tol))), 6000)
        radius = 2.0 * family.n_whitened
        return State(q, Store.empty(family.dim), Hyper(), most, radius, None, None, 1.0, 0.0)

    def ask(self, family: Family, state: State, rng: np.random.Generator) -> Array:
        """Draws from q made of mirror pairs of normals."""
        z = orthogonal_pairs(rng, self._batch(family.n_whitened, state.alike), family.dim)
        return twice(state, family.transport(family.defensive(state.q), z))

    def tell(self, family: Family, eta: Array, state: State, theta: Array, values: Values) -> tuple[State, Info]:
        """Add the values to what is known, and move."""
        state, h = received(family, state, theta, values)
        if not enough(family, state, h):
            return (state if state.before is None else returned(state)), nothing_learnt(h)
        if state.before is None and drowned(h, state):
            wider = family.start(family.mean(state.q), 10 * family.sd(state.q))
            return state._replace(q=wider), nothing_learnt(h)
        known = _answer(family, state)
        promise = state.before
        if promise is not None:
            if promise.is_broken(known.bound, known.bound_se):
                state = returned(state)
                known = _answer(family, state)
            else:
                state = state._replace(radius=promise.new_radius(state.radius, known.bound, known.bound_se))
        repeated = _repeated(family, state, known.w)
        longest = 1 / (1 - repeated) if repeated < 0 else 1.0  # back and forth: the zero in between, by the secant rule
        move = _longest(family, state, known, longest)
        gap = self._gap(known, move, repeated)
        escape = _escape(family, state.q, known, 10 * self.tol) if gap < self.tol else None
        if escape is not None:  # settled on a saddle: leave it
            move, gap = escape, math.inf
        return _moved(state, known, move), _info(known, move, gap, h)

    def _gap(self, known: _Answer, move: _Move, repeated: float) -> float:
        """Nats that will be missing after the step; infinite while it is not the last one."""
        if move.is_bound or move.kl > 0.3:
            return math.inf
        return max(MARGIN * known.error + 0.25 * move.kl, creep(move.kl, repeated))


def _answer(family: Family, state: State) -> _Answer:
    """Regress on what is known, integrate the surrogate, and correct it by what it did not see."""
    found = regress(family, state, lambda x: _free(family, x))
    system, hyper = found.system, found.hyper
    solved = system.solve(hyper)
    left_out = leave_pairs_out(solved, found.pair)

    def surrogate(x: Floats) -> Floats:
        return system.predict(hyper, solved, x, _free(family, x))

    projection = _projection(family, state.q, surrogate, float(np.max(np.sum(system.points.z**2, axis=1))))
    correction, noise = _unseen(family, state, found, left_out.residuals)
    keep = believed(float(correction @ correction), noise, family.size)
    variance = float(_weights(family, state, found, len(left_out.residuals)) @ left_out.residuals**2)
    return _Answer(
        bound=projection.bound,
        bound_se=math.sqrt(variance / found.alike),
        w=projection.w + keep * correction,
        coupling=projection.coupling,
        surrogate=surrogate,
        C=system.curvature(hyper, solved, _is_gaussian(family)),
        error=0.5 * (family.size * variance / found.alike + keep * noise),
        scale=system.scale(left_out, hyper),
        hyper=hyper,
        alike=found.alike,
    )


def _weights(family: Family, state: State, found: Regressed, m: int) -> Floats:
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
    known = np.sum(x**2, axis=1) <= 1.5 * farthest  # polynomials say nothing beyond the points they were fitted to
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
    return (first, second) if len(first) <= n // 4 else (first[:0], second[:0])


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


def _escape(family: Family, q: Array, known: _Answer, worth: float) -> _Move | None:
    """A step off a saddle, where q has settled on one: each group alone is at its best, but two together are not.

    The coupling of groups tells where to look, and the surrogate whether the bound rises there by more than ``worth`` nats.
    """
    strength, axes = np.linalg.eigh(known.coupling)
    if strength[-1] < 1:
        return None
    moves = [_at(family, q, known._replace(w=sign * _PUSH * axes[:, -1]), 1.0) for sign in (1, -1)]
    tried = [move._replace(gain=_rise(family, q, known, move)) for move in moves if move.is_inside]
    best = max(tried, key=lambda move: move.gain, default=None)
    return best if best is not None and best.gain > worth else None


def _rise(family: Family, q: Array, known: _Answer, move: _Move) -> float:
    """Rise of the bound from q to where a step leads, as the surrogate sees it."""
    there = family.transport(move.q, _normals(family))
    heights = known.surrogate(family.coordinates(family.defensive(q), there))
    return float(np.mean(heights)) - known.bound - move.kl


def _unseen(family: Family, state: State, found: Regressed, errors: Floats) -> tuple[Floats, float]:
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
        columns.append((np.sum(gaussian**2, axis=1) - gaussian.shape[1]) / math.sqrt(2 * gaussian.shape[1]))
    return np.column_stack(columns)


def _factors(family: Family) -> tuple[Family, ...]:
    """Independent factors, all that are Gaussian in one where there are no others."""
    return family.factors if isinstance(family, Product) and not isinstance(family, GaussianFamily) else (family,)


def _is_gaussian(family: Family) -> NDArray[np.bool_]:
    """Which whitened coordinates are standard normal: (n_whitened,)."""
    factors = _factors(family)
    return np.repeat([isinstance(f, GaussianFamily) for f in factors], [f.n_whitened for f in factors])


def _normals(family: Family) -> Floats:
    """Fixed normals to make draws from any q of: the same at every step, so that two steps differ by q alone."""
    return _sobol(1 << math.ceil(math.log2(max(_NODES, 8 * family.size))), family.dim)


@lru_cache(maxsize=8)
def _sobol(n: int, d: int) -> Floats:
    return Sobol().normal(np.random.default_rng(0), n, d)


def _longest(family: Family, state: State, known: _Answer, longest: float) -> _Move:
    """The longest step inside of the domain, within the radius, and with a gain that is above the surrogate's own doubt of it."""

    def is_allowed(move: _Move) -> bool:
        within = move.is_inside and move.kl <= state.radius
        return within and _doubt(family, state.q, known, move) <= move.gain

    whole = _at(family, state.q, known, longest)
    if is_allowed(whole):
        return whole
    low, high = 0.0, longest
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if is_allowed(_at(family, state.q, known, middle)) else (low, middle)
    return _at(family, state.q, known, low)._replace(is_bound=True)


def _at(family: Family, q: Array, known: _Answer, beta: float) -> _Move:
    """The step with the share ``beta`` of the whole: natural gradients, but all Gaussian means together follow all of the curvature."""
    factors = _factors(family)
    members = family.members(q) if isinstance(family, Product) and factors[0] is not family else [q]
    parts = np.split(known.w, np.cumsum([f.size for f in factors])[:-1])
    gaussian = [i for i, f in enumerate(factors) if isinstance(f, GaussianFamily)]
    moved, kl, gain, is_inside, is_bound = list(members), 0.0, 0.0, True, False
    for i, factor in enumerate(factors):
        if isinstance(factor, ExponentialFamily):
            advance = factor.advance(members[i], parts[i], beta)
            moved[i], is_inside = advance.q, is_inside and bool(advance.is_inside)
            kl, gain = kl + float(advance.kl), gain + float(advance.gain)
    if gaussian:
        block = _gaussian_step([factors[i] for i in gaussian], [parts[i] for i in gaussian], known.C, beta)  # type: ignore[misc]
        kl, gain, is_bound = kl + block.kl, gain + block.gain, block.is_bound
        for i, deformation in zip(gaussian, block.deformations, strict=True):
            moved[i] = factors[i].deform(members[i], *deformation)  # type: ignore[attr-defined]
    return _Move(np.concatenate(moved), kl, gain, is_inside, beta, is_bound)


class _GaussianStep(NamedTuple):
    """What becomes of the Gaussian factors: for each its shift, the root of its whitened covariance, and the inverse of that."""

    deformations: list[tuple[Floats, Floats, Floats]]
    kl: float
    gain: float
    is_bound: bool


def _gaussian_step(factors: list[GaussianFamily], parts: list[Floats], C: Floats, beta: float) -> _GaussianStep:
    found = [f.coefficients(part) for f, part in zip(factors, parts, strict=True)]
    b = np.concatenate([part for part, _ in found])
    ends = np.cumsum([0, *(f.dim for f in factors)])
    blocks = [slice(start, stop) for start, stop in pairwise(ends)]
    followed = block_diag(*(block for _, block in found))
    C = np.where(block_diag(*(f.restrict(np.ones((f.dim, f.dim))) for f in factors)) != 0, followed, C)
    c, axes = np.linalg.eigh(C)
    shift = axes @ (beta * (axes.T @ b) / np.maximum(1 - beta * c, _SOFTEST))
    eigen = [np.linalg.eigh(block) for _, block in found]
    precision = [np.maximum(1 - beta * r, _SMALLEST) for r, _ in eigen]
    deformations = [
        (shift[at], (U / np.sqrt(p)) @ U.T, (U * np.sqrt(p)) @ U.T)
        for at, p, (_, U) in zip(blocks, precision, eigen, strict=True)
    ]
    r, p = np.concatenate([r for r, _ in eigen]), np.concatenate(precision)
    kl = 0.5 * float(np.sum(1 / p - 1 + np.log(p)) + shift @ shift)
    gain = float(b @ shift + 0.5 * (shift @ C @ shift + np.sum(r * (1 / p - 1)))) - kl
    return _GaussianStep(deformations, kl, gain, bool(np.max(r) > 1 - _SMALLEST))


def _doubt(family: Family, q: Array, known: _Answer, move: _Move) -> float:
    """Standard deviation of what no member of the family follows, at the new place; none at all where that is still at home."""
    there = family.coordinates(family.defensive(q), family.transport(move.q, _normals(family)[:64]))
    reach, home = float(np.mean(np.sum(there**2, axis=1))), family.n_whitened
    if reach < 1.5 * home:
        return -math.inf
    return math.sqrt(max(known.scale * (tail_variance(reach, home, known.hyper.omega) - 1), 0.0))


def _repeated(family: Family, state: State, w: Floats) -> float:
    """Share of the last step that this one repeats; negative where it goes back."""
    if state.before is None:
        return 0.0
    last = -np.mean(family.features(state.q, family.transport(state.before.q, _normals(family))), axis=0)
    length = float(last @ last)
    return float(w @ last) / length if length > 0 else 0.0


def _moved(state: State, known: _Answer, move: _Move) -> State:
    before = Promise(state.q, known.bound, known.bound_se, move.gain, move.kl, move.is_bound)
    explained = (state.noise or 0.0) / (known.hyper.noise * known.scale)
    misfit = float(np.clip(1 - explained, 1e-3, 1.0))
    return state._replace(q=move.q, hyper=known.hyper, before=before, misfit=misfit, alike=known.alike)


def _info(known: _Answer, move: _Move, gap: float, h: Floats) -> Info:
    return Info(known.bound, h[np.isfinite(h)], gap, float(np.linalg.norm(known.w)), move.beta, True, False)
