r"""Ridge regression with fixed shapes and without a decision: the default where a call is for many points and the loop is compiled.

The natural gradient is read off a ridge regression of the residual on all quadratics of the whitened draws (`krylov`), past draws taking part by how likely the present q
makes them. The ridge is the one that predicts fresh pairs best which it did not see. What is still to be gained is known without any model: with
:math:`\psi` the features of q, orthonormal under it, and e the residuals h less their mean,

.. math:: \|w\|^2 = \|E[\psi h]\|^2 \approx \frac{1}{m (m - 1)} \sum_{i \ne j} e_i e_j\, \psi_i \cdot \psi_j

over fresh mirror pairs is unbiased, and half of it are the nats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from scipy.special import gammaincinv

from qbvi.algorithm import Info, Values
from qbvi.arrays import Array, array_namespace, device
from qbvi.families.base import GaussianFamily
from qbvi.regression.hermite import tail_variance
from qbvi.regression.krylov import Quadratic, Weighted, krylov
from qbvi.stopping import GapBelow, Rule

__all__ = ["Ridge"]

_RIDGES = tuple(10.0**e for e in range(-8, 4))  # relative to the number of draws that count
_SHARES = (*(1 - i / 64 for i in range(64)), *(2.0**-i for i in range(7, 40)))  # of the full step that are tried
_DIMENSIONS = 24  # of the Krylov space
_SOFTEST = 1e-3  # smallest whitened stiffness of the log joint that is believed
_MOST_JUDGED = 2048  # draws that the gap is told from: it costs the square of their number
_OMEGA = 0.3  # variance of degree four against degree three, of what is not quadratic
_MARGIN = 2.0  # on the predicted gap, which is an expectation


class Promise(NamedTuple):
    """Where the last step came from and what it promised."""

    q: Array
    bound: Array  # () minus infinity before the first step
    se: Array  # ()
    gain: Array  # ()
    kl: Array  # () KL(new || old)
    is_bound: Array  # () whether something held the step back


class State(NamedTuple):
    """The present q, and the draws that are remembered, oldest first."""

    q: Array
    t: Array  # () steps made
    theta: Array  # (n, d)
    log_joint: Array  # (n,) minus infinity where the function failed and where nothing was drawn yet
    own: Array  # (n,) log density of each draw under the q it came from
    radius: Array  # () bound on KL(new || old)
    before: Promise


@dataclass(frozen=True)
class Ridge:
    """Few steps of many draws each: nothing to tune, fixed shapes, no branch on a value.

    The method for functions that take many points at once and libraries that compile: `method="auto"` on JAX, PyTorch and CuPy.

    Parameters
    ----------
    tol
        Stop when fewer nats than this are predicted to be missing.
    n_samples
        Draws per step, a multiple of 8 and at least 16; by default as many as there are coefficients, d (d + 3) / 2, up to 1,024 and then a fifth of
        them up to 8,192, as a power of two and at least 128.
    n_remembered
        Draws that take part in a step; by default eight for each coefficient, within bounds.
    initial_scale
        Standard deviation of the start relative to the prior's.
    n_fresh
        Least number of fresh draws from the result, for its lower bound and k-hat.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> fit = qbvi.fit(
    ...     lambda x: -(x**4).sum(axis=1), qbvi.Normal(0, 1, shape=2), vectorized=True, method=qbvi.Ridge(), seed=1
    ... )
    >>> fit.converged
    True
    """

    tol: float = 0.01
    n_samples: int | None = None
    n_remembered: int | None = None
    initial_scale: float = 0.01
    n_fresh: int = 1000
    window: ClassVar[int] = 1
    keep: ClassVar[str] = "last"

    def __post_init__(self) -> None:
        for name in ("tol", "initial_scale"):
            if not getattr(self, name) > 0:
                msg = f"`{name}` must be positive, got {getattr(self, name)}"
                raise ValueError(msg)
        if self.n_samples is not None and (self.n_samples < 16 or self.n_samples % 8):
            msg = f"`n_samples` must be a multiple of 8, as a quarter of the pairs is set aside, and at least 16, got {self.n_samples}"
            raise ValueError(msg)
        if self.n_remembered is not None and self.n_remembered < (self.n_samples or 16):
            msg = f"`n_remembered` must be at least `n_samples`, {self.n_samples or 16}, got {self.n_remembered}"
            raise ValueError(msg)

    @property
    def stop(self) -> tuple[Rule, ...]:
        """Stop in nats."""
        return (GapBelow(self.tol),)

    @property
    def is_array_api(self) -> bool:
        """It runs on every array library."""
        return True

    def fresh_draws(self, n_evals: int) -> int:
        """About a tenth of what was spent, but not too few; a power of two times `n_fresh`, since each number is compiled for."""
        return int(self.n_fresh * 2 ** max(0, round(math.log2(max(n_evals, 1) / (10 * self.n_fresh)))))

    def default_budget(self, d: int) -> int:
        """Evaluations after which a fit that has not settled is given up."""
        return 200 * self._draws(d)

    def start_scale(self, scale: Array) -> Array:
        """A fraction of the prior's."""
        return self.initial_scale * scale

    def notes(self, state: State) -> tuple[str, ...]:
        """Nothing beyond what the report says."""
        return ()

    def init(self, family: GaussianFamily, q: Array) -> State:
        """Nothing evaluated yet."""
        xp = array_namespace(q)
        zero = xp.sum(xp.zeros_like(q))
        theta = xp.zeros((self._memory(family.dim), family.dim), dtype=q.dtype, device=device(q))
        nothing = xp.zeros_like(theta[:, 0])
        before = Promise(q, zero - math.inf, zero, zero, zero, zero > 1)
        return State(q, zero, theta, nothing - math.inf, nothing, zero + 2.0 * family.dim, before)

    def ask(self, family: GaussianFamily, state: State, rng: Any) -> Array:
        """Draw mirror pairs from q, next to each other."""
        n, d = self._draws(family.dim), family.dim
        half = rng.standard_normal((n // 2, d))
        xp = array_namespace(state.q)
        half = xp.asarray(half, dtype=state.q.dtype, device=device(state.q))
        return family.transport(state.q, xp.reshape(xp.stack([half, -half], axis=1), (n, d)))

    def tell(
        self, family: GaussianFamily, eta: Array, state: State, theta: Array, values: Values
    ) -> tuple[State, Info]:
        """Remember the values, and move."""
        fresh = _judge(family, state.q, theta, values)
        state = _remember(family, state, theta, values)
        base, radius = _trusted(state, fresh)
        known = _regress(family, base.q, state, theta.shape[0])
        step = _take_step(family, known, radius, base.q, state.before.q)
        after = _landed(family, state, fresh, step.apply(family, base.q), base.q)
        xp = array_namespace(state.q)
        gap = self._predicted_gap(family, known, step, fresh)
        gap = xp.where(xp.isfinite(state.before.bound), gap, xp.zeros_like(gap) + math.inf)  # one look is no proof
        norm = xp.sum(known.b**2 + 0.5 * xp.sum(known.C**2, axis=0)) ** 0.5
        promise = Promise(base.q, base.bound, base.se, step.gain, step.kl, step.is_bound)
        kept = state._replace(q=after, t=state.t + 1, radius=radius, before=promise)
        info = Info(fresh.bound, fresh.h, gap, norm, step.share, ~xp.isnan(state.t), fresh.is_dark)
        return kept, info

    def _draws(self, d: int) -> int:
        if self.n_samples is not None:
            return self.n_samples
        k = d * (d + 3) / 2
        return int(2 ** round(math.log2(min(max(min(k, 1024), k / 5, 128), 8192))))

    def _memory(self, d: int) -> int:
        """A whole number of batches."""
        k, n = d * (d + 3) // 2, self._draws(d)
        wanted = self.n_remembered or max(4096, min(8 * k, max(20480, 2 * k)))
        return n * max(1, math.ceil(wanted / n))

    def _predicted_gap(self, family: GaussianFamily, known: _Known, step: _Step, fresh: _Fresh) -> Array:
        """Nats that will be missing after the step; infinite while it is not the last one."""
        xp = array_namespace(known.b)
        # The ridge r leaves a share r / (1 + r) of what there was to be gained along C, and that much less of the noise.
        noise = 0.5 * known.unexplained / known.alike
        cost = noise * (family.dim + family.n_quadratic / (1 + known.ridge) ** 2)
        left = (known.ridge / (1 + known.ridge)) ** 2 * xp.maximum(fresh.gap + 2 * fresh.gap_se, 0.0 * fresh.gap)
        gap = _MARGIN * cost + left + step.left_behind + 0.25 * step.kl + step.creep
        gap = xp.maximum(gap, fresh.gap - 2 * fresh.gap_se)
        unsettled = step.is_bound | (step.kl > 0.3) | fresh.is_dark | ~xp.isfinite(gap)
        return xp.where(unsettled, xp.ones_like(gap) * math.inf, gap)


class _Fresh(NamedTuple):
    """What the newest draws say of the q they came from."""

    h: Array  # (n,) residuals
    bound: Array  # () their mean
    se: Array  # ()
    gap: Array  # () nats to be gained, unbiased
    gap_se: Array  # ()
    is_dark: Array  # () whether most values are missing


class _Known(NamedTuple):
    """A regression and its answer."""

    b: Array  # (d,)
    C: Array  # (d, d)
    unexplained: Array  # () mean square error at draws that it did not see
    alike: Array  # () number of draws, those unlike q's counting less
    ridge: Array  # () relative to that number


class _Step(NamedTuple):
    """A step along the natural gradient, in whitened coordinates."""

    shift: Array  # (d,) new mean
    axes: Array  # (d, d) eigenvectors of the new precision
    precision: Array  # (d,) its eigenvalues
    share: Array  # () of the full step
    kl: Array  # () KL(new || old)
    gain: Array  # () rise of the bound that the regression predicts
    left_behind: Array  # () nats of directions too soft to be trusted to their end
    is_bound: Array  # () whether something held it back
    creep: Array  # () nats to be gained if the last steps went on in the same proportion

    def apply(self, family: GaussianFamily, q: Array) -> Array:
        """The member it leads to."""
        root = self.precision**0.5
        return family.deform(q, self.shift, (self.axes / root) @ self.axes.T, (self.axes * root) @ self.axes.T)


def _judge(family: GaussianFamily, q: Array, theta: Array, values: Values) -> _Fresh:
    """Bound and gap at q from draws from it, two and two next to each other, which may be mirror images."""
    xp = array_namespace(theta)
    h = family.residual(q, theta, values.log_joint)
    ok = xp.astype(values.ok & xp.isfinite(h), h.dtype)
    one = xp.ones_like(ok[0])
    count = xp.maximum(xp.sum(ok), 2 * one)
    bound = xp.sum(xp.where(ok > 0, h, xp.zeros_like(h))) / count
    e = xp.where(ok > 0, h - bound, xp.zeros_like(h))
    largest = xp.maximum(xp.max(xp.abs(e)), xp.finfo(h.dtype).smallest_normal * one)
    pairs = xp.sum(xp.reshape(e / largest, (-1, 2)), axis=1)  # scaled: values may be large beyond squaring
    se = largest * xp.sum(pairs**2) ** 0.5 / count
    n = min(theta.shape[0], _MOST_JUDGED)
    gap, gap_se = _gap(family, family.whiten(q, theta[:n, :]), e[:n], ok[:n])
    is_dark = count < 0.25 * theta.shape[0]
    return _Fresh(h, xp.where(is_dark, bound - math.inf, bound), se, gap, gap_se, is_dark)


def _gap(family: GaussianFamily, z: Array, e: Array, ok: Array) -> tuple[Array, Array]:
    """Half of the unbiased squared length of the natural gradient, and its standard error, over all pairs of pairs."""
    xp = array_namespace(z)
    m = z.shape[0] // 2
    products = xp.reshape(e[:, None] * e * (z @ z.T + family.quadratic_kernel(z)), (m, 2, m, 2))
    products = xp.sum(xp.sum(products, axis=3), axis=1) * (1 - xp.eye(m, dtype=z.dtype, device=device(z)))
    number = xp.maximum(xp.sum(ok), 4 * xp.ones_like(e[0])) ** 2 * (1 - 1 / m)
    return 0.5 * xp.sum(products) / number, (0.5 * xp.sum(products**2)) ** 0.5 / number


def _remember(family: GaussianFamily, state: State, theta: Array, values: Values) -> State:
    """Forget the oldest draws for the new ones."""
    xp = array_namespace(theta)
    n = theta.shape[0]
    is_there = values.ok & xp.isfinite(values.log_joint)
    y = xp.where(is_there, values.log_joint, xp.zeros_like(values.log_joint) - math.inf)
    return state._replace(
        theta=xp.concat([state.theta, theta])[n:, :],
        log_joint=xp.concat([state.log_joint, y])[n:],
        own=xp.concat([state.own, family.log_prob(state.q, theta)])[n:],
    )


def _trusted(state: State, fresh: _Fresh) -> tuple[Promise, Array]:
    """Where to step from, the present q or, if the last step made it worse, the one before, and how far."""
    xp = array_namespace(state.q)
    before = state.before
    noise = 2 * (before.se + fresh.se)
    is_broken = fresh.bound < before.bound - noise - 0.1 * before.gain - 0.05
    ratio = (fresh.bound - before.bound) / xp.where(before.gain > 0, before.gain, xp.ones_like(before.gain))
    is_told = (before.gain > noise) & xp.isfinite(ratio)
    error = xp.abs(ratio - 1)
    one = xp.ones_like(error)
    growth = xp.where(error < 0.02, 100 * one, xp.where(error < 0.1, 9 * one, 3 * one))
    grown = xp.where(before.is_bound & (ratio > 0.5), xp.maximum(state.radius, before.kl * growth), state.radius)
    told = xp.where(ratio < 0.25, xp.maximum(before.kl / 3, 0.1 * one), grown)
    radius = xp.where(is_told, told, state.radius)
    is_first = ~xp.isfinite(before.bound)
    radius = xp.where(before.is_bound | is_first, radius, xp.minimum(radius, xp.maximum(4 * before.kl, one)))
    radius = xp.where(is_broken, xp.maximum(before.kl / 4, 0.02 * one), radius)
    here = Promise(state.q, fresh.bound, fresh.se, before.gain, before.kl, before.is_bound)
    chosen = Promise(*(xp.where(is_broken, old, new) for old, new in zip(before, here, strict=True)))
    return chosen, radius


def _regress(family: GaussianFamily, q: Array, state: State, n_new: int) -> _Known:
    """Regress what is remembered on the whitened coordinates of q, with the ridge that predicts a quarter of the newest draws best.

    That quarter takes part in the steps after.
    """
    xp = array_namespace(q)
    points, alike = _weighted(family, q, state)
    n = points.h.shape[0] - min(n_new, points.h.shape[0]) // 4
    seen, unseen = Weighted(*(part[:n, ...] for part in points)), Weighted(*(part[n:, ...] for part in points))
    m = min(_DIMENSIONS, family.dim * (family.dim + 1) // 2)
    ridges = alike * xp.asarray(_RIDGES, dtype=q.dtype, device=device(q))
    fits = krylov(seen, m).solve(ridges)
    error = (fits(unseen.z) - unseen.h) ** 2
    is_there = xp.astype(unseen.weight > 0, q.dtype)
    badness = error @ unseen.weight
    best = xp.reshape(xp.argmin(xp.where(xp.isnan(badness), xp.zeros_like(badness) + math.inf, badness)), (1,))
    ridge, error, free, C = (xp.take(part, best, axis=0)[0, ...] for part in (ridges, error, fits.free, fits.C))
    unexplained = xp.sum(error * is_there) / xp.maximum(xp.sum(is_there), xp.ones_like(alike))
    found = Quadratic(free, C)
    # Where rounding or too few values spoil the regression, nothing is known: no step rather than a wild one.
    b, C = found.b, found.curvature
    is_sound = xp.all(xp.isfinite(b)) & xp.all(xp.isfinite(C)) & xp.isfinite(unexplained)
    return _Known(
        xp.where(is_sound, b, xp.zeros_like(b)),
        xp.where(is_sound, 0.5 * (C + C.T), xp.zeros_like(C)),
        xp.where(is_sound, unexplained, xp.ones_like(unexplained) * math.inf),
        alike,
        ridge / alike,
    )


def _weighted(family: GaussianFamily, q: Array, state: State) -> tuple[Weighted, Array]:
    """What is remembered as q sees it, and the number of draws that count.

    A draw counts by how likely q makes it, compared with where it came from, and at most fully; those far out less, where
    quadratics follow least.
    """
    xp = array_namespace(q)
    z = family.whiten(q, state.theta)
    squares, density = xp.sum(z**2, axis=1), family.log_prob(q, state.theta)
    is_there = xp.isfinite(state.log_joint) & xp.isfinite(density)
    zero = xp.zeros_like(density)
    ratio = xp.where(is_there, xp.exp(xp.minimum(density - state.own, zero)), zero)
    far = xp.maximum(squares / _usual_square(family.dim), xp.ones_like(squares))
    h = xp.where(is_there, state.log_joint - density, zero)
    # Subtracting something near keeps digits where the log-likelihood is large.
    centre = xp.sum(ratio * h) / xp.maximum(xp.sum(ratio), xp.ones_like(zero[0]))
    counted = ratio > 0
    z = xp.where(counted[:, None], z, xp.zeros_like(z))
    alike = xp.maximum(xp.sum(ratio), xp.ones_like(centre))
    return Weighted(z, xp.where(counted, h - centre, zero), ratio / far**4), alike


def _usual_square(d: int) -> float:
    """Squared radius within which 99 of 100 standard normal draws lie."""
    return 2 * float(gammaincinv(d / 2, 0.99))


def _take_step(family: GaussianFamily, known: _Known, radius: Array, q: Array, previous: Array) -> _Step:
    """The longest step whose KL is within ``radius``, and shorter where it takes back part of the one before (secant rule).

    The mean follows all of C; the precision what the family can follow of it, and no variance grows by more than the error of C warrants.
    """
    xp = array_namespace(known.b)
    c, mean_axes = xp.linalg.eigh(known.C)
    followed = family.restrict(known.C)
    r, axes = (c, mean_axes) if followed is known.C else xp.linalg.eigh(followed)
    one = xp.ones_like(radius)
    error = 5 * (family.dim * known.unexplained / known.alike) ** 0.5  # of the eigenvalues of C
    smallest = xp.minimum(xp.maximum(error, 1e-3 * one), one / 16)
    line = _Line(mean_axes.T @ known.b, c, r, smallest, known.unexplained)
    shares = xp.asarray(_SHARES, dtype=c.dtype, device=device(c))
    first = _longest(line, shares, radius)
    repeated = _repeated(family, q, previous, mean_axes @ first.shift, (axes * (1 / first.precision - 1)) @ axes.T)
    longest = 1 / (1 + xp.maximum(-repeated, 0 * one))
    last = _longest(line, longest * shares, radius)
    soft = xp.maximum(1 - c, xp.ones_like(c) * _SOFTEST)
    left_behind = 0.5 * xp.sum(
        soft * (line.b / xp.maximum(1 - last.share * c, line.smallest * xp.ones_like(c)) - line.b / soft) ** 2
    )
    is_bound = (last.share < longest) | (xp.min(1 - r) < line.smallest) | (xp.max(c) >= 1)
    going_on = xp.minimum(xp.maximum(repeated, 0 * one), 0.999 * one)
    creep = last.kl * (going_on / (1 - going_on)) ** 2
    return _Step(
        mean_axes @ last.shift, axes, last.precision, last.share, last.kl, last.gain, left_behind, is_bound, creep
    )


class _Line(NamedTuple):
    """The natural gradient in the axes of C: everything about a step along it is a function of the share."""

    b: Array  # (d,)
    c: Array  # (d,) eigenvalues of C
    r: Array  # (d,) and of what the family follows of it
    smallest: Array  # () factor of the precision
    unexplained: Array  # () variance of what is not quadratic, at q


class _Along(NamedTuple):
    """One step along the line."""

    share: Array
    shift: Array
    precision: Array
    kl: Array
    gain: Array


def _longest(line: _Line, shares: Array, radius: Array) -> _Along:
    """The first of the shares whose KL is within the radius and whose gain is believable.

    Believable: above the standard deviation of what is not quadratic at the new place, were it of degrees three and four.
    """
    xp = array_namespace(shares)
    b, c, r, smallest, unexplained = line
    stiffness = xp.maximum(1 - shares[:, None] * c, smallest * xp.ones_like(c))
    precision = xp.maximum(1 - shares[:, None] * r, smallest * xp.ones_like(c))
    shift = shares[:, None] * b / stiffness
    kl = 0.5 * xp.sum(1 / precision - 1 + xp.log(precision) + shift**2, axis=1)
    gain = xp.sum(b * shift + 0.5 * (c * shift**2 + r * (1 / precision - 1)), axis=1) - kl
    d, reach = c.shape[0], xp.sum(shift**2 + 1 / precision, axis=1)
    doubt = unexplained * (tail_variance(reach, d, _OMEGA) - 1)
    is_near = reach < 1.5 * d
    first = xp.argmax(xp.astype((kl <= radius) & (is_near | (doubt <= gain * xp.abs(gain))), xp.int32))
    return _Along(
        *(xp.take(part, xp.reshape(first, (1,)), axis=0)[0, ...] for part in (shares, shift, precision, kl, gain))
    )


def _repeated(family: GaussianFamily, q: Array, previous: Array, shift: Array, growth: Array) -> Array:
    """Share of the last step, from ``previous`` to q, that the next one repeats; negative where it goes back."""
    xp = array_namespace(q)
    eye = xp.eye(family.dim, dtype=q.dtype, device=device(q))
    was = family.whiten(q, family.transport(previous, xp.concat([xp.zeros_like(eye[:1, :]), eye])))
    axes = was[1:, :] - was[:1, :]
    last_shift, last_growth = -was[0, :], eye - axes.T @ axes
    length = xp.sum(last_shift**2) + 0.5 * xp.sum(last_growth**2)
    along = xp.sum(shift * last_shift) + 0.5 * xp.sum(growth * last_growth)
    return xp.where(length > 0, along / xp.where(length > 0, length, xp.ones_like(length)), xp.zeros_like(length))


def _landed(family: GaussianFamily, state: State, fresh: _Fresh, moved: Array, base: Array) -> Array:
    """Where the step led; back if that is no member, and on another scale, wider and narrower by turns, while hardly anything was seen."""
    xp = array_namespace(moved)
    is_member = xp.all(xp.isfinite(moved)) & xp.all(family.sd(moved) > 0)
    eye = xp.eye(family.dim, dtype=moved.dtype, device=device(moved))
    turn = state.t + 1
    factor = 8.0 ** xp.where(turn % 2 == 1, turn, -turn)
    elsewhere = family.deform(state.q, xp.zeros_like(eye[0, :]), factor * eye, eye / factor)
    is_there = xp.isfinite(state.log_joint)
    is_lost = fresh.is_dark & (xp.sum(xp.astype(is_there, moved.dtype)) < 2 * (family.dim + 2))
    can_go = xp.all(xp.isfinite(elsewhere)) & xp.all(family.sd(elsewhere) > 0)
    return xp.where(is_lost & can_go, elsewhere, xp.where(is_member, moved, base))
