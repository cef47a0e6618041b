"""The default method as init, ask and tell: regress on what is known, step as far as it can be trusted, stop in nats."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from qbvi.algorithm import Info, Values
from qbvi.arrays import Array
from qbvi.families.base import GaussianFamily
from qbvi.random import orthogonal_pairs
from qbvi.regression.correction import LeftOutDraws, corrected
from qbvi.regression.surrogate import Hyper, Points, Search, Surrogate, System, leave_pairs_out
from qbvi.regression.trust_region import Step, cost_of_error, take_step
from qbvi.stopping import GapBelow, Rule

__all__ = ["Regression"]

Floats = NDArray[np.float64]

_ROUNDING = 4e-16  # relative error of a value computed without noise
_TWICE = 4  # points of the first batch that are asked for twice
_FAR = 1e5  # squared whitened radius, per coordinate, beyond which a point tells nothing
_CREDIBLE = 5.0  # standard errors of the plain mean within which the surrogate's bound is believed
_MARGIN = 2.5  # on the predicted gap, which is an expectation: most fits are to end below it
_ALIKE = 0.2  # density of q relative to that of the past draws, above which a pair is always accepted as drawn from q
_GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples fill the unit interval evenly, whatever part of them is looked at


class _Past(NamedTuple):
    """One batch of draws: the q they came from and the rows of the store that hold them."""

    q: Array
    start: int
    stop: int


class _Before(NamedTuple):
    """Where the last step came from and what it promised."""

    q: Array
    bound: float
    bound_se: float
    gain: float
    kl: float
    is_bound: bool


class State(NamedTuple):
    """Everything evaluated so far, and the present q."""

    q: Array
    theta: Floats  # (N, d) all points so far, mirror pairs next to each other
    y: Floats  # (N,) log joint, -inf where the function failed
    told: Floats  # (N,) noise variances, as far as the function tells them
    crowd: Floats  # (N,) log of the sum over batches of n_b q_b(theta): how crowded the past draws are
    past: tuple[_Past, ...]
    hyper: Hyper
    most: int  # points regressed on at once
    radius: float  # bound on KL(new || old)
    before: _Before | None
    noise: float | None  # variance of the function's noise; None before it was looked for
    misfit: float  # share of the unexplained variance that is not the function's noise
    alike: float  # number of draws that are like the present q's


@dataclass(frozen=True)
class Regression:
    """The default: few evaluations, nothing to tune, stops by itself.

    Each step draws mirror pairs along orthogonal directions from the present q, regresses the residual of all points so far on the
    Hermite polynomials of the whitened draws, and moves q along the natural gradient as far as a trust region allows. The
    posterior variance of the natural gradient tells how many nats are still missing.

    Parameters
    ----------
    tol
        Stop when fewer nats than this are predicted to be missing.
    n_samples
        Draws per step; by default two for each dimension, and more once many have been made.
    initial_scale
        Standard deviation of the start relative to the prior's. Narrow: without noise, differences are as good as gradients.
    n_fresh
        Least number of fresh draws from the result, for its lower bound and k-hat; a tenth of all evaluations if that is more.

    Examples
    --------
    >>> import qbvi
    >>> fit = qbvi.fit(lambda x: -(x**4).sum(), qbvi.Normal(0, 1, shape=2), method=qbvi.Regression(tol=0.1), seed=1)
    >>> fit.n_evals < 200
    True
    """

    tol: float = 0.01
    n_samples: int | None = None
    initial_scale: float = 0.01
    n_fresh: int = 100
    window: int = 1
    keep: str = "last"

    def __post_init__(self) -> None:
        for name in ("tol", "initial_scale"):
            if not getattr(self, name) > 0:
                msg = f"`{name}` must be positive, got {getattr(self, name)}"
                raise ValueError(msg)
        if self.n_samples is not None and (self.n_samples < _TWICE or self.n_samples % 2):
            msg = (
                f"`n_samples` must be even, as draws come in mirror pairs, and at least {_TWICE}, got {self.n_samples}"
            )
            raise ValueError(msg)

    @property
    def stop(self) -> tuple[Rule, ...]:
        """Stop in nats."""
        return (GapBelow(self.tol),)

    def fresh_draws(self, n_evals: int) -> int:
        """A tenth of what was spent, but not too few."""
        return max(self.n_fresh, n_evals // 10)

    def default_budget(self, d: int) -> int:
        """Evaluations after which a fit that has not settled is given up."""
        return 200 * (d + 10) + 10 * d * (d + 3)

    def start_scale(self, scale: Array) -> Array:
        """A fraction of the prior's."""
        return self.initial_scale * scale

    def init(self, family: GaussianFamily, q: Array) -> State:
        """Nothing evaluated yet."""
        none, d = np.empty(0), family.dim
        # Four times the features for a hundredth of a nat, and more for less: what is missing falls as one over the points.
        most = min(max(400, round(2 * d * (d + 3) * max(1.0, 0.01 / self.tol))), 6000)
        return State(q, np.empty((0, d)), none, none, none, (), Hyper(), most, 2.0 * d, None, None, 1.0, 0.0)

    def ask(self, family: GaussianFamily, state: State, rng: np.random.Generator) -> Array:
        """Draw mirror pairs from q; the first time ask for two pairs twice, to see whether the function is noisy."""
        z = orthogonal_pairs(rng, self._batch(family.dim, state.alike), family.dim)
        theta = family.transport(state.q, z)
        return theta if state.noise is not None else np.concatenate([theta, theta[:_TWICE]])

    def tell(self, family: GaussianFamily, eta: Array, state: State, theta: Array, values: Values) -> tuple[State, Info]:
        """Add the values to what is known, and move."""
        y = np.where(values.ok & np.isfinite(values.log_joint), values.log_joint, -np.inf)
        told = np.asarray(values.noise_sd) ** 2
        if state.noise is None:
            noise = max(_noise_variance(y[:_TWICE], y[-_TWICE:]), float(np.mean(told)))
            # What is missing is then a matter of averaging: let all draws take part.
            state = state._replace(noise=noise, most=max(state.most, 1500) if noise else state.most)
            theta, y, told = theta[:-_TWICE], y[:-_TWICE], told[:-_TWICE]
        h = family.residual(state.q, theta, y)
        state = _stored(family, state, theta, y, told)
        if not _enough(family, state, y):
            return _retreat(family, state), _nothing_learnt(h)
        if state.before is None and _drowned(h, state):
            return state._replace(q=_scaled(family, state.q, 10.0)), _nothing_learnt(h)
        known = _checked(_fit(family, state), h)
        if state.before is not None:
            if _is_worse(known.surrogate, state.before):
                state = _returned(state)
                known = _fit(family, state)
            else:
                state = state._replace(radius=_new_radius(known.surrogate, state))
        step = take_step(known.surrogate, family, state.radius)
        repeated = _repeated(family, state, step)
        if repeated < 0:  # back and forth: the zero between two steps of opposite sign, by the secant rule
            step = take_step(known.surrogate, family, state.radius, longest=1 / (1 - repeated))
        gap = max(self._predicted_gap(family, known, step), _creep(step, repeated))
        return _moved(family, state, known, step), _info(known.surrogate, step, gap, h)

    def _predicted_gap(self, family: GaussianFamily, known: _Known, step: Step) -> float:
        """Nats that will be missing after the step; infinite while it is not the last one."""
        if step.is_bound or step.kl > 0.3 or not known.is_credible:
            return math.inf
        cost = cost_of_error(known.surrogate)
        rest = step.left_behind + 0.25 * step.kl + cost.mean
        gap = _MARGIN * max(2 * cost.precision, known.surrogate.white / known.alike) + rest
        if gap < self.tol:  # before saying so, ask what would be missing if C were as free as the draws allow
            bold = known.system.posterior(known.system.boldest(known.surrogate.hyper), family)
            gap = max(gap, _MARGIN * cost_of_error(bold).precision + rest)
        return gap

    def notes(self, state: State) -> tuple[str, ...]:
        """Say so if the function is noisy."""
        if not state.noise:
            return ()
        return (f"the log-likelihood is noisy, with a standard deviation of about {math.sqrt(state.noise):.2g}",)

    def _batch(self, d: int, alike: float) -> int:
        """One block of orthogonal pairs while walking, a sixth of the draws that count once there are many."""
        if self.n_samples is not None:
            return self.n_samples
        block = 2 * max(d, 4)
        return block * max(1, int(alike / (6 * block)))


def _stored(family: GaussianFamily, state: State, theta: Floats, y: Floats, told: Floats) -> State:
    """Add a batch, and keep count of how crowded the past draws are everywhere."""
    n = len(state.y)
    old = np.logaddexp(state.crowd, math.log(len(y)) + family.log_prob(state.q, state.theta)) if n else state.crowd
    past = (*state.past, _Past(state.q, n, n + len(y)))
    new = np.logaddexp.reduce([math.log(b.stop - b.start) + family.log_prob(b.q, theta) for b in past])
    return state._replace(
        theta=np.concatenate([state.theta, theta]),
        y=np.concatenate([state.y, y]),
        told=np.concatenate([state.told, told]),
        crowd=np.concatenate([old, new]),
        past=past,
    )


class _Chosen(NamedTuple):
    """Points to regress on."""

    rows: NDArray[np.int64]
    z: Floats
    squares: Floats
    log_density: Floats  # of q over that of the past draws


class _Known(NamedTuple):
    """A regression and its answer."""

    system: System
    surrogate: Surrogate
    weights: Floats  # (n,) of the points: density of q over that of the past draws, at most one
    is_credible: bool = True  # whether its bound agrees with the plain mean of the newest draws

    @property
    def alike(self) -> float:
        """Number of draws, those unlike q's counting less."""
        return max(1.0, float(np.sum(self.weights)))


def _choose(family: GaussianFamily, state: State) -> _Chosen:
    """The points that tell something about q: near enough, and once draws like q's suffice, only a sample of those."""
    z = family.whiten(state.q, state.theta)
    squares = np.sum(z**2, axis=1)
    density = family.log_prob(state.q, state.theta) - state.crowd + math.log(len(state.y))
    d, k = family.dim, family.dim * (family.dim + 3) // 2
    rows = np.flatnonzero(np.isfinite(state.y) & (squares < _FAR * (d + 2)))
    if np.sum(np.exp(np.minimum(density[rows], 0))) > 2 * k or len(rows) > state.most:
        rows, accepted = _thinned(rows, density, state.most)
        return _Chosen(rows, z[rows], squares[rows], density[rows] - accepted)
    return _Chosen(rows, z[rows], squares[rows], density[rows])


def _thinned(rows: NDArray[np.int64], density: Floats, most: int) -> tuple[NDArray[np.int64], Floats]:
    """Accept mirror pairs in proportion to their density, as rejection sampling does; also the log of each one's chance.

    Leaving out what is unlike q instead would cut its tails off. A pair keeps its lot, so that the choice changes little as q moves.
    """
    pair = rows // 2
    mean_density = np.logaddexp(density[2 * pair], density[np.minimum(2 * pair + 1, len(density) - 1)]) - math.log(2)
    lot = np.log((pair * _GOLDEN) % 1.0 + 1e-12) - mean_density
    limit = min(-math.log(_ALIKE), float(np.partition(lot, most - 1)[most - 1]) if len(rows) > most else math.inf)
    accepted = lot <= limit
    return rows[accepted], np.minimum(mean_density[accepted] + limit, 0.0)


def _fit(family: GaussianFamily, state: State) -> _Known:
    chosen = _choose(family, state)
    rows, d = chosen.rows, family.dim
    h = family.residual(state.q, state.theta[rows], state.y[rows])
    # What the surrogate does not model grows far out, and where points are crowded each counts less; true noise does neither.
    far = np.maximum(1.0, chosen.squares / _usual_square(d)) ** 4
    crowded = np.exp(np.minimum(-chosen.log_density, math.log(len(rows))))
    told = state.told[rows]
    noise = np.maximum(told / np.mean(told), 1e-3) if np.any(told > 0) else np.ones(len(rows))
    growth = state.misfit * np.maximum(far, crowded) + (1 - state.misfit) * noise
    # Four differences tell the noise to a factor of a few; from below, the regression finds it by itself.
    noise_floor = float(np.mean(told)) if np.any(told > 0) else 0.25 * (state.noise or 0.0)
    floor = max((_ROUNDING * float(np.abs(state.y[rows]).max())) ** 2, noise_floor)
    order, m = _newest_last(family, state, rows)
    system = System(Points(chosen.z[order], h[order], growth[order], rows[order][-m:] // 2, floor))
    hyper = system.search(state.hyper, _plan(len(rows), len(state.past)))
    weights = np.exp(np.minimum(chosen.log_density[order], 0))
    left_out = leave_pairs_out(system.solve(hyper), rows[order][-m:] // 2)
    draws = LeftOutDraws(chosen.z[order][-m:], left_out.residuals, weights[-m:], rows[order][-m:] // 2)
    return _Known(system, corrected(system.posterior(hyper, family), draws), weights)


def _checked(known: _Known, h: Floats) -> _Known:
    """Hold the surrogate's bound against the plain mean over the mirror pairs just drawn from the same q.

    Polynomials that fit too well promise too much: what the plain mean rules out is not believed.
    """
    pairs = 0.5 * (h[::2] + h[1::2])
    pairs = pairs[np.isfinite(pairs)]
    if pairs.size < 3:
        return known
    reach = _CREDIBLE * float(pairs.std(ddof=1)) / math.sqrt(pairs.size) + 3 * known.surrogate.bound_se
    bound = float(np.clip(known.surrogate.bound, pairs.mean() - reach, pairs.mean() + reach))
    if bound == known.surrogate.bound:
        return known
    return known._replace(surrogate=replace(known.surrogate, bound=bound), is_credible=False)


def _usual_square(d: int) -> float:
    """Squared radius within which 99 of 100 standard normal draws lie."""
    return 2 * float(gammaincinv(d / 2, 0.99))


def _plan(n: int, turn: int) -> Search:
    """A try costs n^3: many while that is little, every other turn when it is much."""
    if n >= 500 and turn % 2:
        return Search(tries=0, restart=False)
    tries = 24 if n < 150 else 14 if n < 400 else 5 if n < 1500 else 3
    return Search(tries, restart=n < 400 or turn % 4 == 0, turn=turn // 2)


def _newest_last(family: GaussianFamily, state: State, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """An order that puts last the points drawn from a q most like the present one, and their number: those to predict."""
    recent = state.past[-40:]
    unlike = [_divergence(family, batch.q, state.q) for batch in recent]
    want, chosen = max(2 * family.dim, 24), np.zeros(len(rows), dtype=bool)
    for j in np.argsort(unlike, kind="stable"):
        count = int(chosen.sum())
        if count and ((count >= want and unlike[j] > 1.0) or count >= 2 * want):
            break
        chosen |= (rows >= recent[j].start) & (rows < recent[j].stop)
    return np.argsort(chosen, kind="stable"), int(chosen.sum())


def _divergence(family: GaussianFamily, q: Array, other: Array) -> float:
    """Twice the symmetrised KL of two Gaussians, by what each makes of the other's axes."""
    frame = np.concatenate([np.zeros((1, family.dim)), np.eye(family.dim)])
    there = family.whiten(other, family.transport(q, frame))
    back = family.whiten(q, family.transport(other, frame))
    spread = sum(float(np.sum((seen[1:] - seen[0]) ** 2)) for seen in (there, back))
    return spread - 2 * family.dim + float(np.sum(there[0] ** 2) + np.sum(back[0] ** 2))


def _repeated(family: GaussianFamily, state: State, step: Step) -> float:
    """Share of the last step that this one repeats; negative where it goes back."""
    if state.before is None:
        return 0.0
    frame = np.concatenate([np.zeros((1, family.dim)), np.eye(family.dim)])
    was = family.whiten(state.q, family.transport(state.before.q, frame))  # the last q, as the present one sees it
    axes = was[1:] - was[0]
    shift, growth = -was[0], np.eye(family.dim) - axes.T @ axes
    length = float(shift @ shift + 0.5 * np.sum(growth**2))
    along = float(step.shift @ shift + 0.5 * np.sum(step.growth * growth))
    return along / length if length > 0 else 0.0


def _creep(step: Step, repeated: float) -> float:
    """Nats to be gained if this goes on, each step the same share of the one before: where the function flattens out, a step sees no further."""
    share = min(max(repeated, 0.0), 0.9)
    return step.kl * (share / (1 - share)) ** 2


def _is_worse(surrogate: Surrogate, before: _Before) -> bool:
    """Whether the step lost more than its noise and a tenth of what it promised."""
    noise = 2 * math.hypot(before.bound_se, surrogate.bound_se)
    return surrogate.bound < before.bound - noise - 0.1 * before.gain - 0.05


def _new_radius(surrogate: Surrogate, state: State) -> float:
    """Compare what the last step brought with what it promised."""
    before, radius = state.before, state.radius
    assert before is not None
    ratio = (surrogate.bound - before.bound) / max(before.gain, 1e-300)
    if before.gain > 2 * math.hypot(before.bound_se, surrogate.bound_se):
        error = abs(ratio - 1)
        if ratio < 0.25:
            radius = max(before.kl / 3, 0.1)
        elif ratio > 0.5 and before.is_bound:
            radius = max(radius, before.kl * (100 if error < 0.02 else 9 if error < 0.1 else 3))
    return radius if before.is_bound else min(radius, max(4 * before.kl, 1.0))


def _returned(state: State) -> State:
    """Back to where the last step came from, wiser by its points, with less trust."""
    assert state.before is not None
    return state._replace(q=state.before.q, radius=max(state.before.kl / 4, 0.02))


def _moved(family: GaussianFamily, state: State, known: _Known, step: Step) -> State:
    surrogate = known.surrogate
    before = _Before(state.q, surrogate.bound, surrogate.bound_se, step.gain, step.kl, step.is_bound)
    explained = (state.noise or 0.0) / (surrogate.hyper.noise * surrogate.scale)
    misfit = float(np.clip(1 - explained, 1e-3, 1.0))
    moved = step.apply(family, state.q)
    return state._replace(q=moved, hyper=surrogate.hyper, before=before, misfit=misfit, alike=known.alike)


def _info(surrogate: Surrogate, step: Step, gap: float, h: Floats) -> Info:
    norm = math.sqrt(float(np.sum(surrogate.b**2) + 0.5 * np.sum(surrogate.C**2)))
    return Info(
        bound=surrogate.bound,
        h=h[np.isfinite(h)],
        gap=gap,
        grad_norm=norm,
        step=step.beta,
        inside=True,
        refused=False,
    )


def _enough(family: GaussianFamily, state: State, y: Floats) -> bool:
    """Whether enough values are finite to regress on, and the last step did not walk off the support."""
    lost = state.before is not None and np.mean(np.isfinite(y)) < 0.25
    return not lost and len(_choose(family, state).rows) >= family.dim + 4


def _retreat(family: GaussianFamily, state: State) -> State:
    """Most values were not finite: back to the last good q, or another scale for the start."""
    if state.before is None:
        turn = len(state.past)
        return state._replace(
            q=_scaled(family, state.q, 8.0 ** (turn if turn % 2 else -turn))
        )  # wider, narrower, wider
    if state.before.kl > 0.1:
        state = _returned(state)
        known = _fit(family, state)
        return _moved(family, state, known, take_step(known.surrogate, family, state.radius))
    # Dark even where the last step began: start again, narrower, around the best point known.
    best = family.whiten(state.q, state.theta[[int(np.argmax(state.y))]])[0]
    eye = np.eye(family.dim)
    return state._replace(q=_scaled(family, family.deform(state.q, best, eye, eye), 0.25), before=None)


def _scaled(family: GaussianFamily, q: Array, factor: float) -> Array:
    """The same mean with standard deviations ``factor`` times as large."""
    eye = np.eye(family.dim)
    return family.deform(q, np.zeros(family.dim), factor * eye, eye / factor)


def _nothing_learnt(h: Floats) -> Info:
    finite = h[np.isfinite(h)]
    bound = float(finite.mean()) if finite.size else math.nan
    return Info(bound, finite, math.inf, math.nan, 0.0, True, True)


def _noise_variance(first: Floats, second: Floats) -> float:
    """Half the mean square difference of values asked for twice; zero where they agree to rounding."""
    both = np.isfinite(first) & np.isfinite(second)
    difference = (first - second)[both]
    rounding = 16 * _ROUNDING * np.abs(first[both])
    return float(np.mean(difference**2) / 2) if np.any(np.abs(difference) > rounding) else 0.0


def _drowned(h: Floats, state: State) -> bool:
    """Whether the start is so narrow that noise hides the function."""
    return bool(state.noise) and float(np.var(h[np.isfinite(h)])) < 100 * (state.noise or 0.0) and len(state.past) < 5
