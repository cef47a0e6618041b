"""The default method as init, ask and tell: regress on what is known, step as far as it can be trusted, stop in nats."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from qbvi.algorithm import Info, Values
from qbvi.arrays import Array
from qbvi.families.base import Family, GaussianFamily
from qbvi.random import orthogonal_pairs
from qbvi.regression.correction import LeftOutDraws, corrected
from qbvi.regression.store import Store
from qbvi.regression.surrogate import Hyper, Points, Search, Surrogate, System
from qbvi.regression.trust_region import Promise, Step, cost_of_error, take_step
from qbvi.stopping import GapBelow, Rule

__all__ = ["Regression"]

Floats = NDArray[np.float64]

_ROUNDING = 4e-16  # relative error of a value computed without noise
_TWICE = 4  # points of the first batch that are asked for twice
_CREDIBLE = 5.0  # standard errors of the plain mean within which the surrogate's bound is believed
MARGIN = 2.5  # on the predicted gap, which is an expectation: most fits are to end below it


class State(NamedTuple):
    """Everything evaluated so far, and the present q."""

    q: Array
    store: Store
    hyper: Hyper
    most: int  # points regressed on at once
    radius: float  # bound on KL(new || old)
    before: Promise | None
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
    is_array_api: ClassVar[bool] = False

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
        d = family.dim
        # Four times the features for a hundredth of a nat, and more for less: what is missing falls as one over the points.
        most = min(max(400, round(2 * d * (d + 3) * max(1.0, 0.01 / self.tol))), 6000)
        return State(q, Store.empty(d), Hyper(), most, 2.0 * d, None, None, 1.0, 0.0)

    def ask(self, family: GaussianFamily, state: State, rng: np.random.Generator) -> Array:
        """Draw mirror pairs from q; the first time ask for two pairs twice, to see whether the function is noisy."""
        z = orthogonal_pairs(rng, self._batch(family.dim, state.alike), family.dim)
        theta = family.transport(state.q, z)
        return twice(state, theta)

    def tell(
        self, family: GaussianFamily, eta: Array, state: State, theta: Array, values: Values
    ) -> tuple[State, Info]:
        """Add the values to what is known, and move."""
        state, h = received(family, state, theta, values)
        if not enough(family, state, h):
            return _retreat(family, state), nothing_learnt(h)
        if state.before is None and drowned(h, state):
            return state._replace(q=_scaled(family, state.q, 10.0)), nothing_learnt(h)
        known = _checked(_fit(family, state), h)
        promise = state.before
        if promise is not None:
            bound, bound_se = known.surrogate.bound, known.surrogate.bound_se
            if promise.is_broken(bound, bound_se):
                state = returned(state)
                known = _fit(family, state)
            else:
                state = state._replace(radius=promise.new_radius(state.radius, bound, bound_se))
        step = whole = take_step(known.surrogate, family, state.radius)
        repeated = _repeated(family, state, step)
        if repeated < 0:  # back and forth: the zero between two steps of opposite sign, by the secant rule
            step = take_step(known.surrogate, family, state.radius, longest=1 / (1 - repeated))
        # Back and forth is a sign of noise as long as the whole step, which a short one would hide.
        gap = max(self._predicted_gap(family, known, whole, state.misfit), creep(step.kl, repeated))
        return _moved(family, state, known, step), _info(known.surrogate, step, gap, h)

    def _predicted_gap(self, family: GaussianFamily, known: _Known, step: Step, misfit: float) -> float:
        """Nats that will be missing after the step; infinite while it is not the last one."""
        if step.is_bound or step.kl > 0.3 or not known.is_credible:
            return math.inf
        cost = cost_of_error(known.surrogate)
        rest = step.left_behind + 0.25 * step.kl + cost.mean
        # What polynomials do not follow may be anything; the function's own noise is just noise, and its cost known well.
        margin = MARGIN * (misfit + 0.3 * (1 - misfit))
        gap = margin * max(2 * cost.precision, known.surrogate.white / known.alike) + rest
        if gap < self.tol:  # before saying so, ask what would be missing if C were as free as the draws allow
            bold = known.system.posterior(known.system.boldest(known.surrogate.hyper), family)
            gap = max(gap, margin * cost_of_error(bold).precision + rest)
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


def twice(state: State, theta: Floats) -> Floats:
    """The first time, ask for two pairs twice, to see whether the function is noisy."""
    return theta if state.noise is not None else np.concatenate([theta, theta[:_TWICE]])


def received(family: Family, state: State, theta: Floats, values: Values) -> tuple[State, Floats]:
    """Store a batch; the first time, see from what was asked for twice whether the function is noisy. Also its residuals."""
    y = np.where(values.ok & np.isfinite(values.log_joint), values.log_joint, -np.inf)
    told = np.asarray(values.noise_sd) ** 2
    if state.noise is None:
        noise = max(_noise_variance(y[:_TWICE], y[-_TWICE:]), float(np.mean(told)))
        # What is missing is then a matter of averaging: let all draws take part.
        state = state._replace(noise=noise, most=max(state.most, 1500) if noise else state.most)
        theta, y, told = theta[:-_TWICE], y[:-_TWICE], told[:-_TWICE]
    store = state.store.add(family, family.defensive(state.q), theta, y, told)
    return state._replace(store=store), family.residual(state.q, theta, y)


class _Known(NamedTuple):
    """A regression and its answer."""

    system: System
    surrogate: Surrogate
    alike: float  # number of draws, those unlike q's counting less
    is_credible: bool = True  # whether its bound agrees with the plain mean of the newest draws


class Regressed(NamedTuple):
    """The points that were regressed on, those to be predicted last, with the variances that predict them best."""

    system: System
    hyper: Hyper
    rows: NDArray[np.int64]  # (n,) of the store
    weights: Floats  # (n,) density of q over that of the past draws, at most one
    pair: NDArray[np.int64]  # (m,) mirror pairs among the last points

    @property
    def alike(self) -> float:
        """Number of draws, those unlike q's counting less."""
        return max(1.0, float(np.sum(self.weights)))


def regress(family: Family, state: State, free: Callable[[Floats], Floats] | None = None) -> Regressed:
    """Regress all that is known on the whitened coordinates of q; ``free`` are the features that have no prior."""
    store, reference = state.store, family.defensive(state.q)
    chosen = store.choose(family, reference, state.most)
    rows = chosen.rows
    h = family.residual(state.q, store.theta[rows], store.y[rows])
    # What the surrogate does not model grows far out, and where points are crowded each counts less; true noise does neither.
    far = np.maximum(1.0, chosen.squares / _usual_square(family.n_whitened)) ** 4
    crowded = np.exp(np.minimum(-chosen.log_density, math.log(len(rows))))
    told = store.told[rows]
    noise = np.maximum(told / np.mean(told), 1e-3) if np.any(told > 0) else np.ones(len(rows))
    growth = state.misfit * np.maximum(far, crowded) + (1 - state.misfit) * noise
    # Four differences tell the noise to a factor of a few; from below, the regression finds it by itself.
    noise_floor = float(np.mean(told)) if np.any(told > 0) else 0.25 * (state.noise or 0.0)
    floor = max((_ROUNDING * float(np.abs(store.y[rows]).max())) ** 2, noise_floor)
    order, m = _newest_last(family, state, rows)
    pair = rows[order][-m:] // 2
    x = chosen.x[order]
    system = System(Points(x, h[order], growth[order], pair, floor), None if free is None else free(x))
    hyper = system.search(state.hyper, _plan(len(rows), len(store.past)))
    return Regressed(system, hyper, rows[order], chosen.weights[order], pair)


def _fit(family: GaussianFamily, state: State) -> _Known:
    found = regress(family, state)
    surrogate = found.system.posterior(found.hyper, family)
    m = len(found.pair)
    draws = LeftOutDraws(found.system.points.z[-m:], found.weights[-m:], found.pair)
    return _Known(found.system, corrected(surrogate, draws), found.alike)


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
    """A try costs n^3: many while that is little, every third turn when it is much."""
    if n >= 500 and turn % 3:
        return Search(tries=0, restart=False)
    tries = 24 if n < 150 else 14 if n < 400 else 5 if n < 1500 else 3
    return Search(tries, restart=n < 400 or turn % 6 == 0, turn=turn // 3, leap=n >= 1500)


def _newest_last(family: Family, state: State, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """An order that puts last the points drawn from a q most like the present one, and their number: those to predict."""
    recent = state.store.past[-40:]
    reference = family.defensive(state.q)
    unlike = [float(family.divergence(batch.q, reference)) for batch in recent]
    want, chosen = max(2 * family.n_whitened, 24), np.zeros(len(rows), dtype=bool)
    for j in np.argsort(unlike, kind="stable"):
        count = int(chosen.sum())
        if count and ((count >= want and unlike[j] > 0.5) or count >= 2 * want):
            break
        chosen |= (rows >= recent[j].start) & (rows < recent[j].stop)
    return np.argsort(chosen, kind="stable"), int(chosen.sum())


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


def creep(kl: float, repeated: float) -> float:
    """Nats to be gained if this goes on, each step the same share of the one before: where the function flattens out, a step sees no further."""
    share = min(max(repeated, 0.0), 0.999)
    return kl * (share / (1 - share)) ** 2


def returned(state: State) -> State:
    """Back to where the last step came from, wiser by its points, with less trust."""
    assert state.before is not None
    return state._replace(q=state.before.q, radius=max(state.before.kl / 4, 0.02))


def _moved(family: GaussianFamily, state: State, known: _Known, step: Step) -> State:
    surrogate = known.surrogate
    before = Promise(state.q, surrogate.bound, surrogate.bound_se, step.gain, step.kl, step.is_bound)
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


def enough(family: Family, state: State, h: Floats) -> bool:
    """Whether enough values are finite to regress on, and the last step did not walk off the support."""
    lost = state.before is not None and np.mean(np.isfinite(h)) < 0.25
    return (
        not lost
        and len(state.store.choose(family, family.defensive(state.q), state.most).rows) >= family.n_whitened + 4
    )


def _retreat(family: GaussianFamily, state: State) -> State:
    """Most values were not finite: back to the last good q, or another scale for the start."""
    if state.before is None:
        turn = len(state.store.past)
        return state._replace(
            q=_scaled(family, state.q, 8.0 ** (turn if turn % 2 else -turn))
        )  # wider, narrower, wider
    if state.before.kl > 0.1:
        state = returned(state)
        known = _fit(family, state)
        return _moved(family, state, known, take_step(known.surrogate, family, state.radius))
    # Dark even where the last step began: start again, narrower, around the best point known.
    best = family.whiten(state.q, state.store.theta[[int(np.argmax(state.store.y))]])[0]
    eye = np.eye(family.dim)
    return state._replace(q=_scaled(family, family.deform(state.q, best, eye, eye), 0.25), before=None)


def _scaled(family: GaussianFamily, q: Array, factor: float) -> Array:
    """The same mean with standard deviations ``factor`` times as large."""
    eye = np.eye(family.dim)
    return family.deform(q, np.zeros(family.dim), factor * eye, eye / factor)


def nothing_learnt(h: Floats) -> Info:
    finite = h[np.isfinite(h)]
    bound = float(finite.mean()) if finite.size else math.nan
    return Info(bound, finite, math.inf, math.nan, 0.0, True, True)


def _noise_variance(first: Floats, second: Floats) -> float:
    """Half the mean square difference of values asked for twice; zero where they agree to rounding."""
    both = np.isfinite(first) & np.isfinite(second)
    difference = (first - second)[both]
    rounding = 16 * _ROUNDING * np.abs(first[both])
    return float(np.mean(difference**2) / 2) if np.any(np.abs(difference) > rounding) else 0.0


def drowned(h: Floats, state: State) -> bool:
    """Whether the start is so narrow that noise hides the function."""
    return (
        bool(state.noise)
        and float(np.var(h[np.isfinite(h)])) < 100 * (state.noise or 0.0)
        and len(state.store.past) < 5
    )
