r"""Regression for Gaussians of low rank plus a diagonal: evaluations grow like d, not like d^2.

Each iteration

1. draws points from q and evaluates the function there,
2. regresses the residuals of all remembered points on quadratics of low rank plus a diagonal
   (`few_directions`), which gives the natural gradient b and C in whitened coordinates,
3. goes along the natural gradient, :math:`P = I - \beta C` with :math:`\beta \le 1`, as far as the
   trust region allows, and then to the nearest member of the family (`qbvi.families.low_rank`).

Draws are not mirrored, unlike those of the other methods: the directions have r + 1 times as many
coefficients as the mean, and the two points of a mirror pair tell the same about them.

A remembered point has a weight: the density of q there, relative to the q it came from, to the
power tau. With tau = 1 these are importance weights. In many dimensions they vanish after one step,
so tau is the largest power by which the points are worth as many draws as the regression needs.
Near the end the q hardly move, and tau is one.

The rank that is used follows from the data. A direction of precision m, relative to the scales,
gains :math:`(m - 1 - \log m) / 2` nats. Its d coefficients lose nats by their errors. The
eigenvalues of a symmetric matrix of pure noise, with standard error v in each entry, reach
:math:`2 v \sqrt{d}`, and such a direction seems to gain :math:`d v^2` nats. A direction that gains
less is left out, and so is one that gains less than a share of the tolerance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from qbvi.arguments import instance_of, number, positive_number, whole_number
from qbvi.arrays import Array, array_namespace, device, repeat, to_numpy
from qbvi.families.base import Family
from qbvi.families.low_rank import Form, LowRankGaussian, Spikes, nearest, worth
from qbvi.protocol import Algorithm, Info, Values
from qbvi.regression.few_directions import Directions, Sample, Solution, bounded_precision, in_scales, regress
from qbvi.regression.hermite import tail_variance
from qbvi.regression.rules import LastStep, Rules, secant_share
from qbvi.stopping import GapBelow, Rule

__all__ = ["LowRankRegression", "LowRankRules"]


@dataclass(frozen=True)
class LowRankRules:
    """Numbers that only `qbvi.LowRankRegression` uses."""

    # Ridges to choose from, relative to the effective sample size.
    ridges: tuple[float, ...] = tuple(10.0**e for e in range(-8, 2))
    extra: int = 2  # directions of the regression beyond the rank
    krylov: int = 20  # dimensions of the Krylov space
    turns: int = 2  # regressions of one iteration, with better and better directions
    held_out: int = 4  # a quarter of the newest draws is held out to choose the ridge
    draws: int = 6  # draws of one iteration for each coordinate ...
    fewest_draws: int = 256  # ... at least ...
    most_draws: int = 8192  # ... and at most
    # Draws that are remembered for each coefficient: so many, within 40 MB, but at least the next
    # number, within 640 MB. With the first, the errors of the regression cost a tenth of the nats
    # that the family leaves out.
    remembered: int = 32
    usual_numbers: float = 5e6
    least_remembered: int = 6
    most_numbers: float = 8e7
    left_out: float = 0.1  # share of the nats left out by the family, to which a gap need not be known ...
    most_nats: float = 0.25  # ... but never more nats than this
    # Share of the variance of all quadratic terms that may be unexplained. With more, and fewer
    # draws for each coefficient than `supporting`, q waits for more draws.
    unclear: float = 1e-3
    # A step multiplies a precision by at least so many standard errors of an eigenvalue of C, but
    # this limit is never more than this: in many dimensions errors add up.
    most_precision: float = 0.5
    quiet: float = 0.1  # nats that errors will cost after a step, relative to its gain
    negligible: float = 1e-4  # weight of a draw that need not take part
    supporting: float = 2.5  # effective draws for each coefficient that a regression needs
    enough: float = 4.0  # effective draws for each coefficient, below which weights are flattened
    powers: tuple[float, ...] = tuple(2.0**-i for i in range(16))  # tau, largest first
    least_share: float = 0.5  # of the tolerance: a direction that gains less is left out
    omega: float = 0.3  # variance of degree four, relative to degree three, in the residual
    most_judged: int = 1024  # most draws for the estimate of the gap, which costs their square
    gap_errors: float = 2.0  # standard errors of the unbiased gap that the prediction allows for
    halvings: int = 16  # of the bisection for the longest step, on the log scale
    sweeps: int = 3  # alternations of directions and scales on the way to the nearest member
    fewest_points: int = 2  # finite values per coordinate below which the start is rescaled
    evals_per_fresh: int = 10  # evaluations for each fresh draw at the end
    iterations: int = 100  # after which a fit that has not converged ends


class LowRankState(NamedTuple):
    """The current q, and the draws that are remembered, oldest first."""

    q: Array
    t: Array  # () number of steps made
    theta: Array  # (n, d)
    log_joint: Array  # (n,) minus infinity where the function failed, and in rows not yet filled
    own: Array  # (n,) log density of each draw under the q it came from
    noise: Array  # (n,) noise variance that the function returned; zero if it returns none
    radius: Array  # () bound on KL(new || old)
    last_step: LastStep
    known: Array  # (d, p) directions of the last regression, as linear functions of theta
    left_out: Array  # () nats between q and the posterior that no member of the family could have


@dataclass(frozen=True)
class _Settled(GapBelow):
    """`GapBelow` with a tolerance that depends on the state."""

    @property
    def pause_below(self) -> float:
        """Any prediction may be below the tolerance."""
        return math.inf


@dataclass(frozen=True)
class LowRankRegression(Algorithm):
    """Regression for Gaussians whose covariance is a diagonal plus a matrix of low rank.

    It is what ``method="auto"`` chooses for ``family="low-rank"``, on every backend.

    Parameters
    ----------
    tol
        Stop when fewer nats than this are predicted to be missing to the best member.
    n_samples
        Draws of one iteration. The default is a power of two near four for each coordinate, at
        least 256 and at most 8,192.
    n_remembered
        Draws that take part in a step. The default is four for each coefficient, within limits.
    initial_scale
        Standard deviations of the start, relative to those of the prior.
    n_fresh
        Least number of fresh draws from the result, for its lower bound and k-hat.
    rules, low_rank_rules
        The numbers behind all decisions, see `qbvi.regression.rules`.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> f = lambda x: -0.5 * np.sum(x, axis=1) ** 2
    >>> prior, family = qbvi.Normal(0, 1, shape=30), qbvi.LowRank(rank=1)
    >>> fit = qbvi.fit(f, prior, family=family, vectorized=True, seed=1)
    >>> fit.converged, round(float(fit.correlation()[0, 1]), 4)
    (True, -0.0333)
    """

    tol: float = 0.01
    n_samples: int | None = None
    n_remembered: int | None = None
    initial_scale: float = 0.01
    n_fresh: int = 1000
    rules: Rules = field(default_factory=Rules, repr=False)
    low_rank_rules: LowRankRules = field(default_factory=LowRankRules, repr=False)

    def __post_init__(self) -> None:
        instance_of("rules", self.rules, Rules, "a qbvi.regression.rules.Rules")
        instance_of("low_rank_rules", self.low_rank_rules, LowRankRules, "a qbvi.regression.low_rank.LowRankRules")
        for name in ("tol", "initial_scale"):
            number(name, positive_number(name, getattr(self, name)), most=1e6)
        object.__setattr__(self, "n_fresh", whole_number("n_fresh", self.n_fresh))
        for name in ("n_samples", "n_remembered"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        least = 2 * self.low_rank_rules.held_out
        if self.n_samples is not None and self.n_samples < least:
            msg = f"`n_samples` must be at least {least}, as a quarter of the draws is held out, got {self.n_samples}"
            raise ValueError(msg)
        if self.n_remembered is not None and self.n_remembered < (self.n_samples or least):
            msg = f"`n_remembered` must be at least `n_samples`, {self.n_samples or least}, got {self.n_remembered}"
            raise ValueError(msg)

    @property
    def stop(self) -> tuple[Rule, ...]:
        """Stop when the predicted gap is below the tolerance."""
        return (_Settled(self.tol),)

    def stop_at(self, state: LowRankState) -> tuple[Rule, ...]:
        """A larger tolerance if the family leaves out far more nats than that."""
        rule = self.low_rank_rules
        coarse = min(rule.left_out * float(to_numpy(state.left_out)), rule.most_nats)
        return (_Settled(max(self.tol, coarse)),)

    @property
    def window(self) -> int:
        """No smoothing: each bound is from many draws."""
        return 1

    @property
    def keep(self) -> str:
        """The last iterate: steps that lowered the bound have been rejected."""
        return "last"

    @property
    def is_array_api(self) -> bool:
        """It runs on every array library."""
        return True

    def fits(self, family: Family) -> bool:
        """Gaussians of low rank plus a diagonal only."""
        return isinstance(family, LowRankGaussian)

    def fresh_draws(self, n_evals: int) -> int:
        """About a tenth of all evaluations, as `n_fresh` times a power of two.

        Few different numbers occur that way, and each of them is compiled once.
        """
        tenth = max(n_evals, 1) / (self.low_rank_rules.evals_per_fresh * self.n_fresh)
        return int(self.n_fresh * 2 ** max(0, round(math.log2(tenth))))

    def start_scale(self, scale: Array) -> Array:
        """A fraction of the prior's standard deviations."""
        return self.initial_scale * scale

    def init(self, family: LowRankGaussian, q: Array) -> LowRankState:
        """State before the first iteration."""
        xp = array_namespace(q)
        zero = xp.sum(xp.zeros_like(q))
        theta = xp.zeros((self._memory(family), family.dim), dtype=q.dtype, device=device(q))
        nothing = xp.zeros_like(theta[:, 0])
        radius = zero + self.rules.trust_region.first_radius * family.dim
        last = LastStep(q, zero - math.inf, zero, zero, zero, zero > 1)
        known = xp.zeros((family.dim, self._count(family)), dtype=q.dtype, device=device(q))
        return LowRankState(q, zero, theta, nothing - math.inf, nothing, nothing, radius, last, known, zero)

    def ask(self, family: LowRankGaussian, state: LowRankState, rng: Any) -> Array:
        """Draw points from q."""
        xp = array_namespace(state.q)
        z = rng.standard_normal((self._draws(family), family.dim))
        return family.transport(state.q, xp.asarray(z, dtype=state.q.dtype, device=device(state.q)))

    def tell(
        self, family: LowRankGaussian, eta: Array, state: LowRankState, theta: Array, values: Values
    ) -> tuple[LowRankState, Info]:
        """Make one iteration: remember the values, regress, and step."""
        xp = array_namespace(state.q)
        fresh = judged(family, state.q, theta, values, self)
        state = _remember(family, state, theta, values)
        base, radius = self._trusted(state, fresh)
        answer = self._regress(family, base.q, state, theta.shape[0])
        step, repeated = self._step(family, answer, radius, base.q, state.last_step.q)
        step = self._patient(family, answer, step, base.q)
        gap = self._predicted_gap(family, answer, step, fresh, self.rules.gap.still_to_come(step.kl, repeated))
        # The first batch alone is not enough to stop.
        gap = xp.where(xp.isfinite(state.last_step.bound), gap, xp.zeros_like(gap) + math.inf)
        last = LastStep(base.q, base.bound, base.bound_se, step.gain, step.kl, step.is_restricted)
        norm = xp.linalg.vector_norm(answer.found.b)
        info = Info(fresh.bound, fresh.h, gap, norm, step.share, ~xp.isnan(state.t), fresh.is_dark)
        after = self._landed(family, state, fresh, step.q, base.q)
        state = state._replace(radius=radius, last_step=last, known=answer.found.leading)
        return state._replace(q=after, t=state.t + 1, left_out=0.5 * answer.found.unexplained), info

    def default_budget(self, d: int) -> int:
        """Evaluations after which a fit that has not converged ends: 100 iterations."""
        return self.low_rank_rules.iterations * (self.n_samples or self._draws(LowRankGaussian(d, min(d, 20))))

    def _draws(self, family: LowRankGaussian) -> int:
        if self.n_samples is not None:
            return self.n_samples
        rule = self.low_rank_rules
        wanted = max(rule.fewest_draws, min(rule.draws * family.dim, rule.most_draws))
        return int(2 ** round(math.log2(wanted)))

    def _count(self, family: LowRankGaussian) -> int:
        """Directions of the regression."""
        return min(family.rank + self.low_rank_rules.extra, family.dim)

    def _memory(self, family: LowRankGaussian) -> int:
        """Draws to remember: a whole number of batches."""
        rule, n = self.low_rank_rules, self._draws(family)
        k, d = _coefficients(family), family.dim
        wanted = min(rule.remembered * k, max(rule.least_remembered * k, rule.usual_numbers / d))
        return n * max(1, math.ceil((self.n_remembered or min(wanted, rule.most_numbers / d)) / n))

    def _trusted(self, state: LowRankState, fresh: _Fresh) -> tuple[LastStep, Array]:
        """Accept or reject the last step: where the next step begins, and its radius."""
        xp, rule, last = array_namespace(state.q), self.rules.trust_region, state.last_step
        is_rejected = rule.rejects(last, fresh.bound, fresh.se)
        radius = rule.next_radius(state.radius, last, fresh.bound, fresh.se)
        radius = xp.where(is_rejected, rule.radius_after_return(last), radius)
        here = last._replace(q=state.q, bound=fresh.bound, bound_se=fresh.se)
        return LastStep(*(xp.where(is_rejected, old, new) for old, new in zip(last, here, strict=True))), radius

    def _regress(self, family: LowRankGaussian, q: Array, state: LowRankState, n_new: int) -> _Answer:
        """Regress the remembered residuals; if rounding spoils the result, make no step."""
        xp, rule = array_namespace(q), self.low_rank_rules
        sample, n_effective = self._sample(family, q, state, n_new)
        ridges = xp.asarray(rule.ridges, dtype=q.dtype, device=device(q))
        count, spikes = self._count(family), family.open(q)[1]
        m = min(rule.krylov, family.dim * (count + 2) + 1)
        supported = n_effective / (rule.supporting * family.dim) - 2
        known = spikes.power((state.known * spikes.s[:, None]).T, -0.5).T
        found = regress(sample, spikes, ridges, Directions(count, m, rule.turns, supported, known))
        is_sound = xp.isfinite(found.unexplained)
        for part in (found.b, *found.C, found.leading):
            is_sound = is_sound & xp.all(xp.isfinite(part))
        parts = (found.b, *found.C, found.leading)
        b, t, K, w, leading = (xp.where(is_sound, part, xp.zeros_like(part)) for part in parts)
        leading = spikes.power(leading.T, 0.5).T / spikes.s[:, None]
        unexplained = xp.where(is_sound, found.unexplained, xp.ones_like(n_effective) * math.inf)
        return _Answer(Solution(b, Form(t, K, w), unexplained, found.ridge, leading), n_effective)

    def _sample(self, family: LowRankGaussian, q: Array, state: LowRankState, n_new: int) -> tuple[Sample, Array]:
        """The remembered draws with their weights for q, and the effective sample size."""
        xp, rule, state = array_namespace(q), self.low_rank_rules, _filled(state)
        z = family.whiten(q, state.theta)
        squares = xp.sum(z**2, axis=1)
        density = family.log_prob(q, family.mean(q)[None, :])[0] - 0.5 * squares
        is_there = xp.isfinite(state.log_joint) & xp.isfinite(density)
        zero = xp.zeros_like(density)
        ratio = xp.where(is_there, xp.minimum(density - state.own, zero), zero - math.inf)
        weights = xp.exp(xp.asarray(rule.powers, dtype=q.dtype, device=device(q))[:, None] * ratio)
        sums = xp.sum(weights, axis=1)
        is_enough = sums >= xp.minimum(rule.enough * _coefficients(family) * xp.ones_like(sums), 0.999 * sums[-1])
        weight = xp.take(weights, xp.reshape(xp.argmax(xp.astype(is_enough, xp.int32)), (1,)), axis=0)[0, :]
        n_effective = xp.maximum(xp.sum(weight), xp.ones_like(zero[0]))
        h = xp.where(is_there, state.log_joint - density, zero)
        # Subtracting a typical value keeps precision if the log-likelihood is large.
        h = xp.where(is_there, h - xp.sum(weight * h) / n_effective, zero)
        noise = xp.sum(weight * state.noise) / n_effective
        growth = state.noise / xp.where(noise > 0, noise, xp.ones_like(noise))
        weight = weight / (self.rules.weighting.far(squares, family.dim) * xp.maximum(growth, zero + 1))
        weight = xp.where(weight > rule.negligible, weight, zero)
        z = xp.where((weight > 0)[:, None], z, xp.zeros_like(z))
        n = h.shape[0]
        is_newest = xp.arange(n, device=device(q)) >= n - n_new // rule.held_out
        return _compact(Sample(z, h, weight, is_newest & (weight > 0))), n_effective

    def _step(
        self, family: LowRankGaussian, answer: _Answer, radius: Array, q: Array, previous: Array
    ) -> tuple[_Step, Array]:
        """The longest allowed step, and the share of the last step that it repeats.

        The step is shorter if it goes back on the last one.
        """
        line = _Line(family, q, answer, self)
        whole = line.step(line.longest(xp_one(radius), radius), xp_one(radius))
        repeated = _repeated_share(family, q, previous, whole.q)
        longest = secant_share(repeated)
        return line.step(line.longest(longest, radius), longest), repeated

    def _patient(self, family: LowRankGaussian, answer: _Answer, step: _Step, q: Array) -> _Step:
        """No step if the draws so far are too few to see the directions that there are."""
        xp, rule, found = array_namespace(q), self.low_rank_rules, answer.found
        wanted = rule.supporting * family.dim * (2 + self._count(family))
        bent = found.C._replace(t=found.C.t - xp.mean(found.C.t))
        is_unclear = found.unexplained > rule.unclear * 0.5 * bent.square
        waits = is_unclear & (answer.n_effective < wanted)
        none = step._replace(q=q, kl=0 * step.kl, gain=0 * step.gain, is_restricted=step.kl >= 0)
        return _Step(*(xp.where(waits, stay, go) for stay, go in zip(none, step, strict=True)))

    def _predicted_gap(
        self, family: LowRankGaussian, answer: _Answer, step: _Step, fresh: _Fresh, to_come: Array
    ) -> Array:
        """Nats that will be missing after the step; infinite if it cannot be the last step."""
        xp, rule, errors = array_namespace(step.q), self.rules.gap, self.low_rank_rules.gap_errors
        _, spikes = family.open(step.q)
        used = xp.sum(xp.astype(spikes.lam != 1, spikes.lam.dtype))
        ridge = answer.found.ridge
        noise = 0.5 * answer.found.unexplained / answer.n_effective
        cost = noise * family.dim * (2 + used) / (1 + ridge) ** 2
        left = (ridge / (1 + ridge)) ** 2 * xp.maximum(fresh.gap + errors * fresh.gap_se, 0.0 * fresh.gap)
        gap = rule.margin * cost + left + rule.kl_share * step.kl + to_come
        gap = xp.maximum(gap, fresh.gap - errors * fresh.gap_se)
        is_unsettled = step.is_restricted | (step.kl > rule.settled_kl) | fresh.is_dark | ~xp.isfinite(gap)
        return xp.where(is_unsettled, xp.ones_like(gap) * math.inf, gap)

    def _landed(self, family: LowRankGaussian, state: LowRankState, fresh: _Fresh, moved: Array, base: Array) -> Array:
        """The q after the step, or the q where it began if the step leaves the family.

        If hardly any value so far is finite, the scale of q changes instead, wider and narrower by
        turns.
        """
        xp = array_namespace(moved)
        is_member = _is_member(family, moved)
        turn = state.t + 1
        factor = self.rules.retreat.rescale ** xp.where(turn % 2 == 1, turn, -turn)
        mu, spikes = family.open(state.q)
        elsewhere = family.member(mu, spikes._replace(s=factor * spikes.s))
        n_finite = xp.sum(xp.astype(xp.isfinite(state.log_joint), moved.dtype))
        is_lost = fresh.is_dark & (n_finite < self.low_rank_rules.fewest_points * (family.dim + 2))
        return xp.where(is_lost & _is_member(family, elsewhere), elsewhere, xp.where(is_member, moved, base))


class _Answer(NamedTuple):
    """The result of a regression."""

    found: Solution
    n_effective: Array  # () effective sample size

    @property
    def curvature_sd(self) -> Array:
        """Standard error of one coefficient of C."""
        return (self.found.unexplained / self.n_effective) ** 0.5


class _Step(NamedTuple):
    """A step to another member of the family."""

    q: Array  # where it leads to
    share: Array  # () length, relative to the full step
    kl: Array  # () KL(new || old)
    gain: Array  # () predicted rise of the bound
    is_restricted: Array  # () whether a rule limited its length or its precision


class _Line:
    """Steps along the natural gradient from q."""

    def __init__(self, family: LowRankGaussian, q: Array, answer: _Answer, method: LowRankRegression) -> None:
        rule = method.rules.trust_region
        self._family, self._q, self._answer = family, q, answer
        self._rule, self._numbers = rule, method.low_rank_rules
        self._mu, self._spikes = family.open(q)
        careful = replace(rule, most_precision=self._numbers.most_precision)
        self._smallest = careful.smallest_precision(answer.curvature_sd, family.dim)
        least = method.tol * self._numbers.least_share
        self._least = array_namespace(q).maximum(
            family.dim * answer.curvature_sd**2, least * xp_one(answer.n_effective)
        )

    def longest(self, longest: Array, radius: Array) -> Array:
        """The longest allowed share of the full step, up to ``longest``: bisection of its log."""
        xp = array_namespace(radius)
        lowest = math.log2(float(xp.finfo(radius.dtype).smallest_normal)) / 2

        def halve(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = state
            middle = 0.5 * (low + high)
            is_allowed = self._is_allowed(longest * 2**middle, radius)
            return xp.where(is_allowed, middle, low), xp.where(is_allowed, high, middle)

        low, _ = repeat(self._numbers.halvings, halve, (lowest * xp_one(radius), 0 * radius))
        return xp.where(self._is_allowed(longest, radius), longest, longest * 2**low)

    def step(self, share: Array, longest: Array) -> _Step:
        """The step of this share, to the nearest member; ``longest`` is the intended share."""
        xp, family = array_namespace(self._q), self._family
        found, spikes = self._answer.found, self._spikes
        precision, shift = self._precise(share)
        close = nearest(in_scales(precision.form, spikes), family.rank, sweeps=self._numbers.sweeps)
        lam = xp.where(worth(close.lam) < self._least, xp.ones_like(close.lam), close.lam)
        mu = self._mu + spikes.s * spikes.power(shift[None, :], -0.5)[0, :]
        new = family.member(mu, Spikes(close.s * spikes.s, close.U, lam))
        kl = family.kl(new, self._q)
        # Expectation of the quadratic under the new q: its covariance in whitened coordinates.
        moved = Spikes(close.s, close.U, lam)
        spread = in_scales(found.C, spikes).trace_with(moved) - xp.sum(found.C.diagonal)
        bend = xp.sum(shift * found.C.apply(shift[None, :])[0, :])
        gain = xp.sum(found.b * shift) + 0.5 * (bend + spread) - kl
        is_bounded = xp.min(1 - found.C.t) < self._smallest
        is_bounded = is_bounded | (xp.min(self._precise(xp_one(share))[0].lam) <= self._smallest)
        return _Step(new, share, kl, gain, (share < longest) | is_bounded)

    def _precise(self, share: Array) -> tuple[Spikes, Array]:
        """Precision and shift of a step in whitened coordinates, before the nearest member."""
        # Eigenvalues of a symmetric matrix of pure noise reach this.
        noise = 2 * self._answer.curvature_sd * self._family.dim**0.5
        precision = bounded_precision(self._answer.found.C, share, self._smallest, noise)
        return precision, share * precision.solve(self._answer.found.b[None, :])[0, :]

    def _is_allowed(self, share: Array, radius: Array) -> Array:
        """Whether KL is within the radius and the predicted gain is believable."""
        xp, found, d = array_namespace(self._q), self._answer.found, self._family.dim
        precision, shift = self._precise(share)
        variance = xp.sum(precision.inverse_diagonal)
        length = xp.sum(shift**2)
        kl = 0.5 * (variance - d + precision.log_det() + length)
        spread = found.C.trace_with(precision) - xp.sum(found.C.diagonal)
        bend = xp.sum(shift * found.C.apply(shift[None, :])[0, :])
        gain = xp.sum(found.b * shift) + 0.5 * (bend + spread) - kl
        reach = length + variance
        tail = found.unexplained * (tail_variance(reach, d, self._numbers.omega) - 1)
        is_believable = xp.maximum(tail, 0 * tail) ** 0.5 <= gain
        # What a quadratic of low rank leaves out is mostly a quadratic: it grows as the variances.
        growth = xp.maximum(variance / d, xp_one(variance))
        noise = 0.5 * (self._answer.curvature_sd * growth) ** 2 * _coefficients(self._family)
        is_quiet = noise <= self._numbers.quiet * gain
        return (kl <= radius) & ((is_believable & is_quiet) | (reach < self._rule.near * d))


class _Fresh(NamedTuple):
    """Estimates from the newest draws alone, at the q they came from."""

    h: Array  # (n,) residuals
    bound: Array  # () their mean
    se: Array  # () standard error of the bound
    gap: Array  # () unbiased estimate of the nats to be gained within the family
    gap_se: Array  # () its standard error
    is_dark: Array  # () whether too few values are finite


def judged(family: LowRankGaussian, q: Array, theta: Array, values: Values, method: LowRankRegression) -> _Fresh:
    """Bound and gap at q, estimated from independent draws from q."""
    xp = array_namespace(theta)
    h = family.residual(q, theta, values.log_joint)
    ok = xp.astype(values.ok & xp.isfinite(h), h.dtype)
    count = xp.maximum(xp.sum(ok), 2 * xp.ones_like(ok[0]))
    bound = xp.sum(xp.where(ok > 0, h, xp.zeros_like(h))) / count
    e = xp.where(ok > 0, h - bound, xp.zeros_like(h))
    largest = xp.maximum(xp.max(xp.abs(e)), xp.finfo(h.dtype).smallest_normal * xp.ones_like(count))
    se = largest * xp.sum((e / largest) ** 2) ** 0.5 / count  # scaled: squares might overflow
    n = min(theta.shape[0], method.low_rank_rules.most_judged)
    gap, gap_se = _gap(family, q, theta[:n, :], e[:n])
    is_dark = count < method.rules.retreat.fewest_finite * theta.shape[0]
    return _Fresh(h, xp.where(is_dark, bound - math.inf, bound), se, gap, gap_se, is_dark)


def _gap(family: LowRankGaussian, q: Array, theta: Array, e: Array) -> tuple[Array, Array]:
    """Half the unbiased squared length of the natural gradient within the family, and its error."""
    xp = array_namespace(theta)
    m = theta.shape[0]
    kernel = tangent_kernel(family, q, family.whiten(q, theta))
    products = e[:, None] * e * kernel * (1 - xp.eye(m, dtype=e.dtype, device=device(e)))
    return 0.5 * xp.sum(products) / (m * (m - 1)), (0.5 * xp.sum(products**2)) ** 0.5 / (m * (m - 1))


def tangent_kernel(family: LowRankGaussian, q: Array, z: Array) -> Array:
    r"""Sum of products of orthonormal features that change q within its family: (n, d) -> (n, n).

    With :math:`y = U'z` and the rest :math:`x = z - U y`, these are the linear features, all
    quadratics of y, the products of y and x, and the squares of x. The squares are orthonormal up
    to products :math:`(UU')_{ij}^2`, of the order of :math:`(r / d)^2`, which are left out.
    """
    xp = array_namespace(z)
    U = family.open(q)[1].U
    y = z @ U
    x = z - y @ U.T
    inner = y @ y.T
    lengths = xp.linalg.diagonal(inner)
    within = 0.5 * (inner**2 - lengths[:, None] - lengths[None, :] + family.rank)
    variance = 1 - xp.sum(U**2, axis=1)
    is_free = variance > 0.5
    squares = xp.where(is_free, x**2 / xp.where(is_free, variance, xp.ones_like(variance)) - 1, xp.zeros_like(x))
    return z @ z.T + within + inner * (x @ x.T) + 0.5 * squares @ squares.T


def _repeated_share(family: LowRankGaussian, q: Array, previous: Array, new: Array) -> Array:
    """Share of the last step, from ``previous`` to q, that the next step repeats.

    It is the projection of the next step on the last one, in mean and log standard deviations;
    negative if the next step goes back.
    """
    xp = array_namespace(q)

    def path(there: Array) -> Array:
        shift = family.whiten(q, family.mean(there)[None, :])[0, :]
        return xp.concat([shift, 2**0.5 * xp.log(family.sd(there) / family.sd(q))])

    last, step = -path(previous), path(new)
    length = xp.sum(last**2)
    is_step = (length > 0) & ~xp.all(q == previous)
    return xp.where(is_step, xp.sum(last * step) / xp.where(is_step, length, xp.ones_like(length)), 0 * length)


def _coefficients(family: LowRankGaussian) -> int:
    """Coefficients of the regression: mean, diagonal and directions."""
    return family.dim * (family.rank + 2)


def _compact(sample: Sample) -> Sample:
    """The points that take part; on the host alone, where shapes may change from step to step."""
    if not isinstance(sample.weight, np.ndarray):
        return sample
    keep = sample.weight > 0
    return Sample(*(part[keep] for part in sample))


def _filled(state: LowRankState) -> LowRankState:
    """The state without rows that are not yet filled; on the host alone, as `_compact`."""
    if not isinstance(state.log_joint, np.ndarray):
        return state
    first = int(np.argmax(state.log_joint > -math.inf))
    theta, log_joint, own, noise = (part[first:] for part in (state.theta, state.log_joint, state.own, state.noise))
    return state._replace(theta=theta, log_joint=log_joint, own=own, noise=noise)


def _is_member(family: LowRankGaussian, q: Array) -> Array:
    xp = array_namespace(q)
    _, spikes = family.open(q)
    return xp.all(xp.isfinite(q)) & xp.all(spikes.s > 0) & xp.all(spikes.lam > 0) & xp.all(family.sd(q) > 0)


def xp_one(like: Array) -> Array:
    """One, as an array like this."""
    return array_namespace(like).ones_like(like)


def _remember(family: LowRankGaussian, state: LowRankState, theta: Array, values: Values) -> LowRankState:
    """Replace the oldest draws by the new ones."""
    xp = array_namespace(theta)
    n = theta.shape[0]
    is_there = values.ok & xp.isfinite(values.log_joint)
    y = xp.where(is_there, values.log_joint, xp.zeros_like(values.log_joint) - math.inf)
    return state._replace(
        theta=xp.concat([state.theta, theta])[n:, :],
        log_joint=xp.concat([state.log_joint, y])[n:],
        own=xp.concat([state.own, family.log_prob(state.q, theta)])[n:],
        noise=xp.concat([state.noise, xp.astype(values.noise_sd, state.noise.dtype) ** 2])[n:],
    )
