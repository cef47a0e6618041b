r"""Ridge regression with fixed shapes and no branches: the default method for compiled loops.

The natural gradient is given by a ridge regression of the residual on all quadratics of the
whitened draws (`krylov`). Past draws have weights: their density under the current q relative to
the q they came from. The ridge is the one that best predicts held-out pairs of the newest batch.

The gap needs no regression. Let :math:`\psi` be the features of q, orthonormal under q, and e the
residuals h minus their mean. Over the new mirror pairs

.. math::

    \|w\|^2 = \|E[\psi h]\|^2
    \approx \frac{1}{m (m - 1)} \sum_{i \ne j} e_i e_j\, \psi_i \cdot \psi_j

is unbiased, and half of it is the gap in nats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from qbvi.arguments import instance_of
from qbvi.arrays import Array, array_namespace, device
from qbvi.families.base import Family, GaussianFamily
from qbvi.protocol import Info, Values
from qbvi.regression.compiled import CompiledRegression, Trusted
from qbvi.regression.krylov import Quadratic, Weighted, krylov
from qbvi.regression.line import Gradient, NaturalLine, WhitenedStep, repeated_share
from qbvi.regression.rules import LastStep, secant_share
from qbvi.regression.store import Store
from qbvi.stopping import GapBelow, Rule

__all__ = ["Ridge", "RidgeRules"]


@dataclass(frozen=True)
class RidgeRules:
    """Numbers that only `qbvi.Ridge` uses; it shares `Rules` with the other methods."""

    # Ridges to choose from, relative to the effective sample size.
    ridges: tuple[float, ...] = tuple(10.0**e for e in range(-8, 4))
    even_shares: int = 64  # of the full step that are tried, evenly spaced, ...
    halved_shares: tuple[int, int] = (7, 40)  # ... below these, powers of one half, ...
    tiny_shares: tuple[int, int, int] = (48, 600, 8)  # ... and below these, every eighth power, for any units
    dimensions: int = 24  # of the Krylov space, ...
    # ... and with a full covariance: there C tends to zero, and its relative error matters less.
    full_dimensions: int = 12
    most_judged: int = 2048  # most draws for the estimate of the gap, which costs their square
    omega: float = 0.3  # variance of degree four, relative to degree three, in the residual
    held_out: int = 4  # a quarter of the newest draws is held out to choose the ridge
    gap_errors: float = 2.0  # standard errors of the unbiased gap that the prediction allows for
    fewest_points: int = 2  # finite values per free coefficient below which the start is rescaled
    # Draws of one iteration: one for each coefficient up to the first number, then a share of them,
    # within the next two. Below these a batch tells little, above them it is dear.
    every_coefficient: int = 1024
    coefficients_per_draw: int = 5
    fewest_draws: int = 128
    most_draws: int = 8192
    # Draws that are remembered: so many for each coefficient, within the bounds; but never fewer
    # than twice the coefficients.
    remembered: int = 8
    fewest_remembered: int = 4096
    most_remembered: int = 20480
    least_remembered: int = 2
    iterations: int = 200  # after which a fit that has not converged ends
    # Of a draw from a q at KL nats from the present one, cubic terms look like further quadratic
    # ones. The variance of these is about 6 KL / d times that of the cubic terms: they get it along
    # the shift between the means, whose square is 2 KL. So a draw loses weight as exp(-6 KL / d).
    elsewhere: float = 6.0
    # Whether the products of the regression are in single precision, which takes half the time. An
    # error relative to C does not stay: each step starts from new residuals, and C tends to zero.
    single: bool = False
    group: int = 8  # `n_samples` is a multiple: mirror pairs, of which a quarter is held out ...
    fewest_groups: int = 2  # ... and at least so many

    def density_power(self, d: int) -> float:
        """Power of the relative density of a draw that is its weight; one: importance weights."""
        return min(1.0, self.elsewhere / d)

    def of_quadratic(self) -> Self:
        """The numbers for a log joint that is a quadratic: all draws know the same one.

        Draws from another q than the present one are spread unevenly in its coordinates, so that
        the Krylov space needs more dimensions.
        """
        return replace(self, elsewhere=0.0, full_dimensions=self.dimensions)

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of the full step to try, longest first."""
        even = (1 - i / self.even_shares for i in range(self.even_shares))
        powers = (*range(*self.halved_shares), *range(*self.tiny_shares))
        return (*even, *(2.0**-i for i in powers))


class RidgeState(NamedTuple):
    """The current q, and the draws that are remembered, oldest first."""

    q: Array
    t: Array  # () number of steps made
    theta: Array  # (n, d)
    log_joint: Array  # (n,) minus infinity where the function failed, and in rows not yet filled
    own: Array  # (n,) log density of each draw under the q it came from
    noise: Array  # (n,) noise variance that the function returned; zero if it returns none
    radius: Array  # () bound on KL(new || old)
    last_step: LastStep
    peak: Array  # () log density of q at its mean, which each step changes without a determinant
    last_peak: Array  # () the same for `last_step.q`


@dataclass(frozen=True)
class Ridge(CompiledRegression):
    """Ridge regression: few steps of many draws each, with nothing to tune.

    It is for functions that take many points at once, and for libraries that compile: shapes are
    fixed, and no branch depends on a value. It is what ``method="auto"`` chooses for Gaussian
    posteriors on JAX, PyTorch and CuPy.

    Parameters
    ----------
    tol
        Stop when fewer nats than this are predicted to be missing.
    n_samples
        Draws of one iteration, a multiple of 8 and at least 16. The default is the power of two
        nearest to

        - the number of coefficients, d (d + 3) / 2, but at least 128 and at most 1,024,
        - a fifth of that number if it is more, but at most 8,192.
    n_remembered
        Draws that take part in a step. The default is eight for each coefficient, within limits.
    initial_scale
        Standard deviations of the start, relative to those of the prior.
    n_fresh
        Least number of fresh draws from the result, for its lower bound and k-hat.
    rules, ridge_rules
        The numbers behind all decisions, see `qbvi.regression.rules`.

    Examples
    --------
    >>> import qbvi
    >>> prior, method = qbvi.Normal(0, 1, shape=2), qbvi.Ridge()
    >>> fit = qbvi.fit(lambda x: -(x**4).sum(axis=1), prior, vectorized=True, method=method, seed=1)
    >>> fit.converged
    True
    """

    ridge_rules: RidgeRules = field(default_factory=RidgeRules, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        instance_of("ridge_rules", self.ridge_rules, RidgeRules, "a qbvi.regression.rules.RidgeRules")
        group = self.ridge_rules.group
        least = group * self.ridge_rules.fewest_groups
        if self.n_samples is not None and (self.n_samples < least or self.n_samples % group):
            msg = (
                f"`n_samples` must be a multiple of {group}, as a quarter of the pairs is held out, and at least {least}, "
                f"got {self.n_samples}"
            )
            raise ValueError(msg)
        if self.n_remembered is not None and self.n_remembered < (self.n_samples or least):
            msg = f"`n_remembered` must be at least `n_samples`, {self.n_samples or least}, got {self.n_remembered}"
            raise ValueError(msg)

    @property
    def stop(self) -> tuple[Rule, ...]:
        """Stop when the predicted gap is below the tolerance."""
        return (GapBelow(self.tol),)

    @property
    def window(self) -> int:
        """No smoothing: each bound is from many draws."""
        return 1

    def fits(self, family: Family) -> bool:
        """Gaussian families only."""
        return isinstance(family, GaussianFamily) and not family.is_curved

    def default_budget(self, d: int) -> int:
        """Evaluations after which a fit that has not converged ends: 200 iterations."""
        return self.ridge_rules.iterations * self.n_draws(d)

    def init(self, family: GaussianFamily, q: Array) -> RidgeState:
        """State before the first iteration."""
        xp = array_namespace(q)
        zero = xp.sum(xp.zeros_like(q))
        theta = xp.zeros((self._memory(family.dim), family.dim), dtype=q.dtype, device=device(q))
        nothing = xp.zeros_like(theta[:, 0])
        radius = zero + self.rules.trust_region.first_radius * family.dim
        peak = family.log_peak(q)
        return RidgeState(q, zero, theta, nothing - math.inf, nothing, nothing, radius, _no_step(q), peak, peak)

    def starting(self, family: GaussianFamily, q: Array, store: Store) -> RidgeState:
        """State before the first iteration at q, which remembers the newest points of a store."""
        state = self.init(family, q)
        for batch in store.past:
            rows = slice(batch.start, batch.stop)
            y, noise = store.y[rows], store.noise[rows] ** 0.5
            log_q = family.log_prob(batch.q, store.theta[rows])
            state = _remember(state, store.theta[rows], Values(y, y, np.isfinite(y), noise), log_q)
        return state

    def ask(self, family: GaussianFamily, state: RidgeState, rng: Any) -> Array:
        """Draw mirror pairs from q; the two draws of a pair are next to each other."""
        n, d = self.n_draws(family.dim), family.dim
        half = rng.standard_normal((n // 2, d))
        xp = array_namespace(state.q)
        half = xp.asarray(half, dtype=state.q.dtype, device=device(state.q))
        return family.transport(state.q, xp.reshape(xp.stack([half, -half], axis=1), (n, d)))

    def tell(
        self, family: GaussianFamily, eta: Array, state: RidgeState, theta: Array, values: Values
    ) -> tuple[RidgeState, Info]:
        """Make one iteration: remember the values, regress, and step."""
        xp, z = array_namespace(state.q), family.whiten(state.q, theta)
        log_q = state.peak - 0.5 * xp.sum(z**2, axis=1)
        fresh = judged(family, z, values.log_joint - log_q, values.ok, self)
        state = _remember(state, theta, values, log_q)
        base, radius, peak = self._trusted(state, fresh)
        answer = self._regress(family, base.q, peak, state, theta.shape[0])
        step, repeated = self._step(family, answer, radius, base.q, state.last_step.q)
        after, after_peak = self._landed(family, state, fresh, step, (base.q, peak))
        gap = self._predicted_gap(family, answer, step, fresh, self.rules.gap.still_to_come(step.kl, repeated))
        # The first batch alone is not enough to stop.
        gap = xp.where(xp.isfinite(state.last_step.bound), gap, xp.zeros_like(gap) + math.inf)
        norm = xp.sum(answer.b**2 + 0.5 * xp.sum(answer.C**2, axis=0)) ** 0.5
        last = LastStep(base.q, base.bound, base.bound_se, step.gain, step.kl, step.is_restricted)
        info = Info(fresh.bound, fresh.h, gap, norm, step.share, ~xp.isnan(state.t), fresh.is_dark)
        return state._replace(
            q=after, t=state.t + 1, radius=radius, last_step=last, peak=after_peak, last_peak=peak
        ), info

    def n_draws(self, d: int) -> int:
        """Draws of one iteration in d dimensions."""
        if self.n_samples is not None:
            return self.n_samples
        rule, k = self.ridge_rules, d * (d + 3) / 2
        wanted = max(min(k, rule.every_coefficient), k / rule.coefficients_per_draw, rule.fewest_draws)
        return int(2 ** round(math.log2(min(wanted, rule.most_draws))))

    def _memory(self, d: int) -> int:
        """Draws to remember: a whole number of batches."""
        rule, k, n = self.ridge_rules, d * (d + 3) // 2, self.n_draws(d)
        most = max(rule.most_remembered, rule.least_remembered * k)
        wanted = self.n_remembered or max(rule.fewest_remembered, min(rule.remembered * k, most))
        return n * max(1, math.ceil(wanted / n))

    def _trusted(self, state: RidgeState, fresh: _Fresh) -> tuple[LastStep, Array, Array]:
        """Accept or reject the last step.

        Returns where the next step begins, its radius, and the log density at the mean there.
        """
        xp, last = array_namespace(state.q), state.last_step
        here = last._replace(q=state.q, bound=fresh.bound, bound_se=fresh.se)
        base, radius, is_rejected = Trusted.of(self.rules.trust_region, last, state.radius, here)
        return base, radius, xp.where(is_rejected, state.last_peak, state.peak)

    def _regress(self, family: GaussianFamily, q: Array, peak: Array, state: RidgeState, n_new: int) -> _Answer:
        """Regress the remembered residuals on the whitened coordinates of q.

        The ridge is the one that best predicts a quarter of the newest draws. This quarter takes
        part in the regressions of later steps.
        """
        xp, rule = array_namespace(q), self.ridge_rules
        points, n_effective = self._weighted(family, q, peak, state)
        n = points.h.shape[0] - min(n_new, points.h.shape[0]) // rule.held_out
        seen, unseen = Weighted(*(part[:n, ...] for part in points)), Weighted(*(part[n:, ...] for part in points))
        most = family.dim * (family.dim + 1) // 2
        m = min(rule.full_dimensions if family.n_quadratic == most else rule.dimensions, most)
        ridges = n_effective * xp.asarray(rule.ridges, dtype=q.dtype, device=device(q))
        fits = _in_single(seen, m, ridges) if rule.single else krylov(seen.counted(), m).solve(ridges)
        error = (fits(unseen.z) - unseen.h) ** 2
        is_there = xp.astype(unseen.weight > 0, q.dtype)
        badness = error @ unseen.weight
        best = xp.reshape(xp.argmin(xp.where(xp.isnan(badness), xp.zeros_like(badness) + math.inf, badness)), (1,))
        ridge, error, free, C = (xp.take(part, best, axis=0)[0, ...] for part in (ridges, error, fits.free, fits.C))
        unexplained = xp.sum(error * is_there) / xp.maximum(xp.sum(is_there), xp.ones_like(n_effective))
        found = Quadratic(free, C)
        # If rounding or too few values spoil the regression, make no step.
        b, C = found.b, found.curvature
        is_sound = xp.all(xp.isfinite(b)) & xp.all(xp.isfinite(C)) & xp.isfinite(unexplained)
        return _Answer(
            xp.where(is_sound, b, xp.zeros_like(b)),
            xp.where(is_sound, 0.5 * (C + C.T), xp.zeros_like(C)),
            xp.where(is_sound, unexplained, xp.ones_like(unexplained) * math.inf),
            n_effective,
            ridge / n_effective,
        )

    def _weighted(self, family: GaussianFamily, q: Array, peak: Array, state: RidgeState) -> tuple[Weighted, Array]:
        """The remembered draws with their weights for q, and the effective sample size.

        The weight of a draw is its density under q relative to the q it came from, at most one, to
        a power. Draws far out have less weight, because a quadratic fits worst there. So have draws
        with more noise than is usual under q, if the function returns it.
        """
        xp = array_namespace(q)
        z = family.whiten(q, state.theta)
        squares = xp.sum(z**2, axis=1)
        density = peak - 0.5 * squares
        is_there = xp.isfinite(state.log_joint) & xp.isfinite(density)
        zero = xp.zeros_like(density)
        power = self.ridge_rules.density_power(family.dim)
        ratio = xp.where(is_there, xp.exp(power * xp.minimum(density - state.own, zero)), zero)
        h = xp.where(is_there, state.log_joint - density, zero)
        # Subtracting a typical value keeps precision if the log-likelihood is large.
        centre = xp.sum(ratio * h) / xp.maximum(xp.sum(ratio), xp.ones_like(zero[0]))
        is_counted = ratio > 0
        z = xp.where(is_counted[:, None], z, xp.zeros_like(z))
        n_effective = xp.maximum(xp.sum(ratio), xp.ones_like(centre))
        noise = xp.sum(ratio * state.noise) / n_effective
        growth = state.noise / xp.where(noise > 0, noise, xp.ones_like(noise))
        weight = ratio / (self.rules.weighting.far(squares, family.dim) * xp.maximum(growth, xp.ones_like(growth)))
        return Weighted(z, xp.where(is_counted, h - centre, zero), weight), n_effective

    def _step(
        self, family: GaussianFamily, answer: _Answer, radius: Array, q: Array, previous: Array
    ) -> tuple[WhitenedStep, Array]:
        """The longest allowed step, and the share of the last step that it repeats.

        The step is shorter if it goes back on the last one.
        """
        xp = array_namespace(answer.b)
        curvature_sd = (answer.unexplained / answer.n_effective) ** 0.5
        gradient = Gradient(answer.b, answer.C, curvature_sd, answer.unexplained, self.ridge_rules.omega)
        line = NaturalLine(gradient, family, self.rules.trust_region)
        shares = xp.asarray(self.ridge_rules.shares, dtype=q.dtype, device=device(q))
        whole = line.step(line.first_allowed(shares, radius), xp.ones_like(radius))
        repeated = repeated_share(family, q, previous, whole)
        longest = secant_share(repeated)
        return line.step(line.first_allowed(longest * shares, radius), longest), repeated

    def _predicted_gap(
        self, family: GaussianFamily, answer: _Answer, step: WhitenedStep, fresh: _Fresh, to_come: Array
    ) -> Array:
        """Nats that will be missing after the step; infinite if it cannot be the last step."""
        xp, rule, errors = array_namespace(answer.b), self.rules.gap, self.ridge_rules.gap_errors
        # A ridge r shrinks C by the factor 1 / (1 + r), and its noise by the same factor.
        noise = 0.5 * answer.unexplained / answer.n_effective
        cost = noise * (family.dim + family.n_quadratic / (1 + answer.ridge) ** 2)
        shrunk = (answer.ridge / (1 + answer.ridge)) ** 2
        left = shrunk * xp.maximum(fresh.gap + errors * fresh.gap_se, 0.0 * fresh.gap)
        gap = rule.margin * cost + left + step.left_behind + rule.kl_share * step.kl + to_come
        gap = xp.maximum(gap, fresh.gap - errors * fresh.gap_se)
        is_unsettled = step.is_restricted | (step.kl > rule.settled_kl) | fresh.is_dark | ~xp.isfinite(gap)
        return xp.where(is_unsettled, xp.ones_like(gap) * math.inf, gap)

    def _landed(
        self, family: GaussianFamily, state: RidgeState, fresh: _Fresh, step: WhitenedStep, base: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """The q after the step, or the q where it began if the step leaves the family.

        If hardly any value so far is finite, the scale of q changes instead, wider and narrower by
        turns. Members come with the log density at their mean.
        """
        xp = array_namespace(state.q)
        moved = step.apply(family, base[0])
        peak = family.deformed_peak(moved, base[1], -0.5 * xp.sum(xp.log(step.precision)))
        is_member = xp.all(xp.isfinite(moved)) & xp.all(family.sd(moved) > 0)
        eye = xp.eye(family.dim, dtype=moved.dtype, device=device(moved))
        turn = state.t + 1
        factor = self.rules.retreat.rescale ** xp.where(turn % 2 == 1, turn, -turn)
        elsewhere = family.deform(state.q, xp.zeros_like(eye[0, :]), factor * eye, eye / factor)
        its_peak = family.deformed_peak(elsewhere, state.peak, family.dim * xp.log(factor))
        n_finite = xp.sum(xp.astype(xp.isfinite(state.log_joint), moved.dtype))
        is_lost = fresh.is_dark & (n_finite < self.ridge_rules.fewest_points * (family.dim + 2))
        can_go = xp.all(xp.isfinite(elsewhere)) & xp.all(family.sd(elsewhere) > 0)
        choices = zip((elsewhere, its_peak), (moved, peak), base, strict=True)
        q, peak = (xp.where(is_lost & can_go, far, xp.where(is_member, near, stay)) for far, near, stay in choices)
        return q, peak


def _no_step(q: Array) -> LastStep:
    """The last step in the state before the first."""
    xp = array_namespace(q)
    zero = xp.sum(xp.zeros_like(q))
    return LastStep(q, zero - math.inf, zero, zero, zero, zero > 1)


class _Fresh(NamedTuple):
    """Estimates from the newest draws alone, at the q they came from."""

    h: Array  # (n,) residuals
    bound: Array  # () their mean
    se: Array  # () standard error of the bound
    gap: Array  # () unbiased estimate of the nats to be gained
    gap_se: Array  # () its standard error
    is_dark: Array  # () whether too few values are finite


class _Answer(NamedTuple):
    """The result of a regression."""

    b: Array  # (d,) linear part of the natural gradient
    C: Array  # (d, d) quadratic part
    unexplained: Array  # () mean squared error at held-out draws
    n_effective: Array  # () effective sample size
    ridge: Array  # () relative to the effective sample size


def _in_single(points: Weighted, m: int, ridges: Array) -> Quadratic:
    """The solutions in a Krylov space of m dimensions, by products in single precision.

    Residuals are divided by a power of two, which is exact: their squares would overflow.
    """
    xp, dtype = array_namespace(ridges), ridges.dtype
    points = points.counted()
    largest = xp.max(xp.abs(points.h))
    scale = 2.0 ** xp.ceil(xp.log2(xp.where(largest > 0, largest, xp.ones_like(largest))))
    single = Weighted(*(xp.astype(part, xp.float32) for part in (points.z, points.h / scale, points.weight)))
    found = krylov(single, m).solve(xp.astype(ridges, xp.float32))
    return Quadratic(scale * xp.astype(found.free, dtype), scale * xp.astype(found.C, dtype))


def judged(family: GaussianFamily, z: Array, h: Array, ok: Array, method: Ridge) -> _Fresh:
    """Bound and gap at q, estimated from whitened draws from q and their residuals.

    Neighbours may be mirror pairs.
    """
    xp = array_namespace(z)
    ok = xp.astype(ok & xp.isfinite(h), h.dtype)
    one = xp.ones_like(ok[0])
    count = xp.maximum(xp.sum(ok), 2 * one)
    bound = xp.sum(xp.where(ok > 0, h, xp.zeros_like(h))) / count
    e = xp.where(ok > 0, h - bound, xp.zeros_like(h))
    largest = xp.maximum(xp.max(xp.abs(e)), xp.finfo(h.dtype).smallest_normal * one)
    pairs = xp.sum(xp.reshape(e / largest, (-1, 2)), axis=1)  # scaled: squares might overflow
    se = largest * xp.sum(pairs**2) ** 0.5 / count
    n = min(z.shape[0], method.ridge_rules.most_judged)
    gap, gap_se = _gap(family, z[:n, :], e[:n], ok[:n])
    is_dark = count < method.rules.retreat.fewest_finite * z.shape[0]
    return _Fresh(h, xp.where(is_dark, bound - math.inf, bound), se, gap, gap_se, is_dark)


def _gap(family: GaussianFamily, z: Array, e: Array, ok: Array) -> tuple[Array, Array]:
    """Half the unbiased squared length of the natural gradient, and its standard error.

    The sum is over all pairs of different mirror pairs.
    """
    xp = array_namespace(z)
    m = z.shape[0] // 2
    products = xp.reshape(e[:, None] * e * (z @ z.T + family.quadratic_kernel(z)), (m, 2, m, 2))
    products = xp.sum(xp.sum(products, axis=3), axis=1) * (1 - xp.eye(m, dtype=z.dtype, device=device(z)))
    number = xp.maximum(xp.sum(ok), 4 * xp.ones_like(e[0])) ** 2 * (1 - 1 / m)
    return 0.5 * xp.sum(products) / number, (0.5 * xp.sum(products**2)) ** 0.5 / number


def _remember(state: RidgeState, theta: Array, values: Values, log_q: Array) -> RidgeState:
    """Replace the oldest draws by the new ones."""
    xp = array_namespace(theta)
    n = theta.shape[0]
    is_there = values.ok & xp.isfinite(values.log_joint)
    y = xp.where(is_there, values.log_joint, xp.zeros_like(values.log_joint) - math.inf)
    return state._replace(
        theta=xp.concat([state.theta, theta])[n:, :],
        log_joint=xp.concat([state.log_joint, y])[n:],
        own=xp.concat([state.own, log_q])[n:],
        noise=xp.concat([state.noise, xp.astype(values.noise_sd, state.noise.dtype) ** 2])[n:],
    )
