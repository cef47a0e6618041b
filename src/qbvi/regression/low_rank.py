r"""Regression for Gaussians of low rank plus a diagonal: evaluations grow like d, not like d^2.

Each iteration

1. evaluates stars of points drawn from q (`stars`), and some draws beside them for the bound,
2. fits a quadratic surrogate of low rank plus a diagonal to the slopes of all stars so far,
3. goes towards the maximum of the bound under this surrogate, as far as the trust region allows,
   and then to the nearest member of the family (`qbvi.families.low_rank`).

With g and T the surrogate's gradient at the mean and its Hessian, a step of share beta has

.. math::

    P_{new} = (1 - \beta) P + \beta P_*, \qquad
    \mu_{new} = \mu + \beta \left((1 - \beta) P - \beta T\right)^{-1} g.

Here :math:`P_*` is the member nearest to -T. So the mean makes Newton's step with all of T, and the
precision goes the way of the natural gradient within the family.

A star has a weight: the density of q at its base, relative to the q it came from, to the power tau.
With tau = 1 these are importance weights. In many dimensions they vanish after one step, so tau is
the largest power by which the stars are worth as many as the regression needs.

The rank that is used follows from the data. With a standard error v in each entry, the eigenvalues
of a symmetric matrix of pure noise reach :math:`2 v \sqrt{d}`, and such a direction seems to gain
:math:`d v^2` nats. A direction that gains less is left out, and so is one that gains less than a
share of the tolerance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from qbvi.arguments import instance_of
from qbvi.arrays import Array, array_namespace, device, repeat, to_numpy
from qbvi.families.base import Family
from qbvi.families.low_rank import Form, LowRankGaussian, Spikes, nearest, worth
from qbvi.protocol import Algorithm, Info, Values
from qbvi.regression.compiled import CompiledRegression, Trusted
from qbvi.regression.rules import LastStep, secant_share
from qbvi.regression.stars import Effort, Stars, Surrogate, observed, regress, star_points
from qbvi.stopping import GapBelow, Rule

__all__ = ["LowRankRegression", "LowRankRules"]


@dataclass(frozen=True)
class LowRankRules:
    """Numbers that only `qbvi.LowRankRegression` uses."""

    draws: int = 256  # about so many points of one iteration are stars, and at least one star
    beside: int = 64  # fewest draws beside the stars, ...
    beside_share: int = 8  # ... and one for so many coordinates
    fewest_beside: int = 8  # if the user gives the number of draws
    # Directions of the surrogate beyond the rank: those that it leaves out are noise to the others.
    # Up to so many coordinates it has them all, beyond so many numbers, but at least a few. More of
    # them than the function has make the search slower.
    most_full: int = 64
    extra_numbers: int = 2000
    fewest_extra: int = 2
    spare: int = 2  # of all directions, those that start from the residuals at each iteration
    support: float = 2.0  # stars for each row of coefficients that a regression needs at least
    turns: int = 8  # of Levenberg and Marquardt in one iteration ...
    products: int = 30  # ... and conjugate gradients in a turn
    # Stars that are remembered for each row of coefficients: so many, within 32 MB, but at least
    # the next number.
    remembered: int = 64
    usual_numbers: float = 1e6
    least_remembered: int = 8
    left_out: float = 0.1  # share of the nats left out by the family, to which a gap need not be known ...
    most_nats: float = 0.1  # ... but never more nats than this
    # Share of the variance of the slopes that may be unexplained. With more, and fewer stars for
    # each row of coefficients than `supporting`, q waits for more stars.
    unclear: float = 1e-5
    supporting: float = 4.0
    noise: float = 0.1  # errors of the newest slopes after a regression, relative to those before
    quadratic: float = 0.02  # share of the newest slopes' variance that the last surrogate may miss
    enough: float = 4.0  # effective stars for each row of coefficients, below which weights are flattened
    # Steps from tau = 1 down to 2 / d. With the last, the weight of a narrow star is the square of
    # its size relative to q, which is how much it says about the curvature there.
    powers: int = 16
    negligible: float = 1e-4  # weight of a star that need not take part
    quiet: float = 0.1  # nats that errors will cost after a step, relative to its gain
    least_share: float = 0.5  # of the tolerance: a direction that gains less is left out
    halvings: int = 16  # of the bisection for the longest step, on the log scale
    sweeps: int = 3  # alternations of directions and scales on the way to the nearest member
    doubt: float = 4.0  # factor of the predicted gap each time that fresh draws contradict it
    fewest_points: int = 2  # finite stars below which the start is rescaled
    iterations: int = 200  # after which a fit that has not converged ends
    window: int = 5  # bounds that are averaged: each is from few draws


class LowRankState(NamedTuple):
    """The current q, the stars that are remembered, and their surrogate."""

    q: Array
    t: Array  # () number of steps made
    stars: Stars  # oldest first
    surrogate: Surrogate
    radius: Array  # () bound on KL(new || old)
    last_step: LastStep
    left_out: Array  # () nats between q and the posterior that no member of the family could have
    doubt: Array  # () factor of the predicted gap


@dataclass(frozen=True)
class _Settled(GapBelow):
    """`GapBelow` with a tolerance that depends on the state."""

    @property
    def pause_below(self) -> float:
        """Any prediction may be below the tolerance."""
        return math.inf


@dataclass(frozen=True)
class LowRankRegression(CompiledRegression):
    """Regression for Gaussians whose covariance is a diagonal plus a matrix of low rank.

    It is what ``method="auto"`` chooses for ``family="low-rank"``, on every backend.

    The function should have little noise: each value informs about one row of the Hessian only. If
    the function returns standard deviations of its noise, the steps do not use them, and all values
    count alike. Only k-hat and the missing nats of the result use them.

    Parameters
    ----------
    tol
        Stop when fewer nats than this are predicted to be missing to the best member.
    n_samples
        Draws of one iteration, at least d + 9. A star has d + 1 of them, and at least 8 are beside
        the stars. The default is about 256 in stars, or one star if that is more, and 64 or d / 8
        beside them.
    n_remembered
        Draws in stars that take part in a step. The default depends on d and the rank.
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
    >>> mean, cov = fit.unconstrained
    >>> fit.converged, round(float(cov[0, 1]), 3)  # it is -1 / 31
    (True, -0.032)
    """

    low_rank_rules: LowRankRules = field(default_factory=LowRankRules, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        instance_of("low_rank_rules", self.low_rank_rules, LowRankRules, "a qbvi.regression.low_rank.LowRankRules")

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
        """Each bound is from few draws, so some are averaged."""
        return self.low_rank_rules.window

    @property
    def for_independent_draws(self) -> Algorithm:
        """Fresh draws are no stars. If they contradict a prediction, the next ones are larger."""
        return _Doubting(**{name: getattr(self, name) for name in self.__dataclass_fields__})

    def fits(self, family: Family) -> bool:
        """Gaussians of low rank plus a diagonal only."""
        return isinstance(family, LowRankGaussian)

    def default_budget(self, d: int) -> int:
        """Evaluations after which a fit that has not converged ends: 200 iterations."""
        n_stars, n_beside = self._batch(d)
        return self.low_rank_rules.iterations * (n_stars * (d + 1) + n_beside)

    def init(self, family: LowRankGaussian, q: Array) -> LowRankState:
        """State before the first iteration."""
        xp, d = array_namespace(q), family.dim
        zero = xp.sum(xp.zeros_like(q))
        rows = xp.zeros((self._memory(family), d), dtype=q.dtype, device=device(q))
        stars = Stars(rows, rows, rows, rows, rows[:, 0], rows[:, 0])
        B = xp.eye(d, self._count(family), dtype=q.dtype, device=device(q))
        nothing = Surrogate(rows[0, :], rows[0, :], Form(rows[0, :], B, 0 * B[0, :]))
        radius = zero + self.rules.trust_region.first_radius * d
        last = LastStep(q, zero - math.inf, zero, zero, zero, zero > 1)
        return LowRankState(q, zero, stars, nothing, radius, last, zero, zero + 1)

    def ask(self, family: LowRankGaussian, state: LowRankState, rng: Any) -> Array:
        """Draw points from q: those beside the stars, then the stars."""
        xp, d = array_namespace(state.q), family.dim
        n_stars, n_beside = self._batch(d)
        normal = (rng.standard_normal((n, d)) for n in (n_beside, n_stars, n_stars))
        beside, z, e = (xp.asarray(part, dtype=state.q.dtype, device=device(state.q)) for part in normal)
        return xp.concat([family.transport(state.q, beside), star_points(family, state.q, z, e)])

    def tell(
        self, family: LowRankGaussian, eta: Array, state: LowRankState, theta: Array, values: Values
    ) -> tuple[LowRankState, Info]:
        """Make one iteration: remember the values, regress, and step."""
        xp = array_namespace(state.q)
        n_stars, n_beside = self._batch(family.dim)
        fresh = judged(family, state, theta[: n_stars + n_beside, :], values, self.rules.retreat.fewest_finite)
        is_there = values.ok & xp.isfinite(values.log_joint)
        y = xp.where(is_there, values.log_joint, xp.zeros_like(values.log_joint) - math.inf)
        new = observed(family, state.q, theta[n_beside:, :], y[n_beside:])
        parts = zip(state.stars, new, strict=True)
        state = state._replace(stars=Stars(*(xp.concat([old, add])[n_stars:, ...] for old, add in parts)))
        base, radius = self._trusted(state, fresh)
        answer = self._regress(family, base.q, state, new)
        step, repeated = self._step(family, answer, radius, base.q, state.last_step.q)
        step = self._patient(family, answer, step, base.q)
        gap = self._predicted_gap(family, answer, step, fresh, self.rules.gap.still_to_come(step.kl, repeated))
        # The first batch alone is not enough to stop.
        gap = xp.where(xp.isfinite(state.last_step.bound), gap * state.doubt, xp.zeros_like(gap) + math.inf)
        # If q waits, there is no step to reject.
        bound = xp.where(step.is_made, base.bound, base.bound - math.inf)
        last = LastStep(base.q, bound, base.bound_se, step.gain, step.kl, step.is_restricted)
        norm = xp.linalg.vector_norm(answer.found.g)
        info = Info(fresh.bound, fresh.h, gap, norm, step.share, ~xp.isnan(state.t), fresh.is_dark)
        after = self._landed(family, state, fresh, step.q, base.q)
        mu, spikes = family.open(base.q)
        found = answer.found.scaled(0 * mu, 1 / spikes.s)._replace(centre=mu)
        state = state._replace(q=after, t=state.t + 1, surrogate=found, radius=radius, last_step=last)
        return state._replace(left_out=0.5 * answer.misfit(family.dim)), info

    def _batch(self, d: int) -> tuple[int, int]:
        """Stars of one iteration, and draws beside them."""
        rule = self.low_rank_rules
        if self.n_samples is None:
            return max(1, round(rule.draws / (d + 1))), max(rule.beside, d // rule.beside_share)
        least = d + 1 + rule.fewest_beside
        if self.n_samples < least:
            msg = f"`n_samples` must be at least {least}, for {d} coordinates and the draws beside them, got {self.n_samples}"
            raise ValueError(msg)
        n_stars = (self.n_samples - rule.fewest_beside) // (d + 1)
        return n_stars, self.n_samples - n_stars * (d + 1)

    def _count(self, family: LowRankGaussian) -> int:
        """Directions of the surrogate."""
        rule, d = self.low_rank_rules, family.dim
        extra = d if d <= rule.most_full else max(rule.fewest_extra, rule.extra_numbers // d)
        return min(family.rank + extra, d)

    def _memory(self, family: LowRankGaussian) -> int:
        """Stars to remember."""
        rule, d, rows = self.low_rank_rules, family.dim, 2 + self._count(family)
        wanted = max(min(rule.remembered * rows, rule.usual_numbers / d), rule.least_remembered * rows)
        if self.n_remembered is not None:
            wanted = self.n_remembered / (d + 1)
        return max(self._batch(d)[0], int(wanted))

    def _trusted(self, state: LowRankState, fresh: _Fresh) -> tuple[LastStep, Array]:
        """Accept or reject the last step: where the next step begins, and its radius."""
        here = state.last_step._replace(q=state.q, bound=fresh.bound, bound_se=fresh.se)
        base, radius, _ = Trusted.of(self.rules.trust_region, state.last_step, state.radius, here)
        return base, radius

    def _regress(self, family: LowRankGaussian, q: Array, state: LowRankState, new: Stars) -> _Answer:
        """Fit the surrogate in the units of q; if rounding spoils the result, keep the last one."""
        xp, rule = array_namespace(q), self.low_rank_rules
        mu, spikes = family.open(q)
        start = state.surrogate.scaled(mu, spikes.s)
        newest = new.scaled(mu, spikes.s)
        unexplained, unclear = start.missed(newest)
        stars, n_effective = self._weighted(family, q, state.stars, unclear < rule.quadratic)
        effort = Effort(n_effective / rule.support - 2, rule.spare, rule.turns, rule.products)
        found = regress(stars.scaled(mu, spikes.s), start, effort)
        is_sound = xp.isfinite(unexplained) & xp.all(xp.isfinite(found.g)) & xp.isfinite(xp.sum(found.T.diagonal))
        pairs = zip((found.g, *found.T), (start.g, *start.T), strict=True)
        g, *T = (xp.where(is_sound, new, old) for new, old in pairs)
        unexplained = xp.where(is_sound, unexplained, xp.ones_like(unexplained))
        found = Surrogate(found.centre, g, Form(*T))
        before, after = (
            xp.mean(xp.sum(spikes.power(part.errors(newest), -0.5) ** 2, axis=1)) for part in (start, found)
        )
        wrong = xp.where(after < rule.noise * before, 0.5 * before, 0 * before)
        return _Answer(found, unexplained, unclear, wrong, n_effective, is_sound)

    def _weighted(self, family: LowRankGaussian, q: Array, stars: Stars, is_quadratic: Array) -> tuple[Stars, Array]:
        """The stars with their weights for q, and how many they are worth.

        Of a quadratic function, all stars say the same about the curvature, whatever their size.
        They take part as long as there are too few others.
        """
        xp, rule = array_namespace(q), self.low_rank_rules
        count = xp.astype(stars.weight > 0, q.dtype)
        share = xp.mean(count, axis=1)
        zero = xp.zeros_like(share)
        ratio = xp.minimum(family.log_prob(q, stars.base) - stars.own, zero)
        ratio = xp.where((share > 0) & xp.isfinite(ratio), ratio, zero - math.inf)
        flattest = min(1.0, 2 / family.dim)
        powers = xp.asarray(
            [flattest ** (i / (rule.powers - 1)) for i in range(rule.powers)], dtype=q.dtype, device=device(q)
        )
        weights = share * xp.exp(powers[:, None] * ratio)
        sums = xp.sum(weights, axis=1)
        wanted = rule.enough * (2 + self._count(family))
        is_enough = sums >= xp.minimum(wanted * xp.ones_like(sums), 0.999 * sums[-1])
        weight = xp.take(weights, xp.reshape(xp.argmax(xp.astype(is_enough, xp.int32)), (1,)), axis=0)[0, :]
        takes_all = is_quadratic & (sums[-1] < wanted)
        weight = xp.where(takes_all, share, xp.where(weight > rule.negligible, weight, zero))
        size = xp.exp((family.log_peak(q) - stars.peak) / family.dim)
        factor = xp.where(takes_all & (share > 0), weight / size**2, weight)
        stars = stars._replace(weight=stars.weight * factor[:, None])
        if isinstance(weight, np.ndarray):  # on the host shapes may change from step to step
            stars = Stars(*(part[weight > 0] for part in stars))
        return stars, xp.sum(weight)

    def _step(
        self, family: LowRankGaussian, answer: _Answer, radius: Array, q: Array, previous: Array
    ) -> tuple[_Step, Array]:
        """The longest allowed step, and the share of the last step that it repeats.

        The step is shorter if it goes back on the last one.
        """
        line = _Line(family, q, answer, self)
        whole = line.step(line.longest(_one(radius), radius), _one(radius))
        repeated = _repeated_share(family, q, previous, whole.q)
        longest = secant_share(repeated)
        return line.step(line.longest(longest, radius), longest), repeated

    def _patient(self, family: LowRankGaussian, answer: _Answer, step: _Step, q: Array) -> _Step:
        """No step if the stars so far are too few to see the directions that there are."""
        xp, rule = array_namespace(q), self.low_rank_rules
        is_few = answer.n_effective < rule.supporting * (2 + family.rank)
        waits = (is_few & (answer.unclear > rule.unclear)) | ~answer.is_sound
        none = step._replace(q=q, kl=0 * step.kl, gain=0 * step.gain, is_restricted=step.kl >= 0, is_made=step.kl < 0)
        return _Step(*(xp.where(waits, stay, go) for stay, go in zip(none, step, strict=True)))

    def _predicted_gap(
        self, family: LowRankGaussian, answer: _Answer, step: _Step, fresh: _Fresh, to_come: Array
    ) -> Array:
        """Nats that will be missing after the step; infinite if it cannot be the last step."""
        xp, rule = array_namespace(step.q), self.rules.gap
        _, spikes = family.open(step.q)
        used = xp.sum(xp.astype(spikes.lam != 1, spikes.lam.dtype))
        cost = 0.5 * answer.curvature_sd**2 * family.dim * (2 + used)
        gap = xp.maximum(rule.margin * cost, answer.wrong) + rule.kl_share * step.kl + to_come
        is_unsettled = step.is_restricted | (step.kl > rule.settled_kl) | fresh.is_dark | ~xp.isfinite(gap)
        return xp.where(is_unsettled, xp.ones_like(gap) * math.inf, gap)

    def _landed(self, family: LowRankGaussian, state: LowRankState, fresh: _Fresh, moved: Array, base: Array) -> Array:
        """The q after the step, or the q where it began if the step leaves the family.

        If hardly any value so far is finite, the scale of q changes instead, wider and narrower by
        turns.
        """
        xp = array_namespace(moved)
        turn = state.t + 1
        factor = self.rules.retreat.rescale ** xp.where(turn % 2 == 1, turn, -turn)
        mu, spikes = family.open(state.q)
        elsewhere = family.member(mu, spikes._replace(s=factor * spikes.s))
        n_finite = xp.sum(xp.astype(xp.any(state.stars.weight > 0, axis=1), moved.dtype))
        is_lost = fresh.is_dark & (n_finite < self.low_rank_rules.fewest_points)
        after = xp.where(_is_member(family, moved), moved, base)
        return xp.where(is_lost & _is_member(family, elsewhere), elsewhere, after)


class _Doubting(LowRankRegression):
    """The method when fresh draws contradict its prediction: the next predictions are larger."""

    def tell(
        self, family: LowRankGaussian, eta: Array, state: LowRankState, theta: Array, values: Values
    ) -> tuple[LowRankState, Info]:
        """Report the bound of the draws, and expect less of the surrogate."""
        xp = array_namespace(state.q)
        fresh = judged(family, state, theta, values, self.rules.retreat.fewest_finite)
        zero = xp.zeros_like(state.t)
        info = Info(fresh.bound, fresh.h, zero + math.inf, zero, zero, zero == 0, fresh.is_dark)
        return state._replace(t=state.t + 1, doubt=self.low_rank_rules.doubt * state.doubt), info


class _Answer(NamedTuple):
    """The result of a regression, in the units of q and around its mean."""

    found: Surrogate
    unexplained: Array  # () mean squared error of the newest slopes by the surrogate before it
    unclear: Array  # () the same as a share, if all coordinates count alike
    # () nats that the surrogate before it was wrong by, if these errors were not noise: then the
    # new surrogate has the same ones.
    wrong: Array
    n_effective: Array  # () stars that it is worth
    is_sound: Array  # () whether it is usable

    @property
    def curvature_sd(self) -> Array:
        """Standard error of one entry of T, or of g."""
        xp = array_namespace(self.n_effective)
        return (self.unexplained / xp.maximum(self.n_effective, _one(self.n_effective))) ** 0.5

    def misfit(self, d: int) -> Array:
        """Variance of what the surrogate leaves out: the d slopes have each pair twice."""
        return 0.5 * d * self.unexplained


class _Step(NamedTuple):
    """A step to another member of the family."""

    q: Array  # where it leads to
    share: Array  # () length, relative to the full step
    kl: Array  # () KL(new || old)
    gain: Array  # () predicted rise of the bound
    is_restricted: Array  # () whether a rule limited its length or its precision
    is_made: Array  # () False if q waits for more stars


class _Moved(NamedTuple):
    """A Gaussian near q, in the units of q: its precision, and the shift of the mean."""

    precision: Spikes
    shift: Array  # (d,)


class _Line:
    """Steps from q towards the maximum of the bound under the surrogate, in the units of q."""

    def __init__(self, family: LowRankGaussian, q: Array, answer: _Answer, method: LowRankRegression) -> None:
        xp, rule = array_namespace(q), method.rules.trust_region
        self._family, self._q, self._answer = family, q, answer
        self._rule, self._numbers = rule, method.low_rank_rules
        self._mu, self._spikes = family.open(q)
        self._here = self._spikes._replace(s=xp.ones_like(self._mu))
        self._smallest = rule.smallest_precision(answer.curvature_sd, family.dim)
        nats = family.dim * answer.curvature_sd**2
        self._least = xp.maximum(nats, method.tol * self._numbers.least_share * _one(nats))
        t, K, w = _split(answer.found.T)
        # Eigenvalues of a symmetric matrix of pure noise reach this.
        is_noise = xp.abs(w) < 2 * answer.curvature_sd * family.dim**0.5
        self._target = Form(-t, K, xp.where(is_noise, xp.zeros_like(w), -w))
        bounded, self._is_bounded = self._bounded(self._target)
        self._close = nearest(bounded.form, family.rank, self._here.s, sweeps=self._numbers.sweeps)

    def longest(self, longest: Array, radius: Array) -> Array:
        """The longest allowed share of the full step, up to ``longest``: bisection of its log."""
        xp = array_namespace(radius)
        lowest = math.log2(float(xp.finfo(radius.dtype).smallest_normal)) / 2

        def halve(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = state
            middle = 0.5 * (low + high)
            is_allowed = self._is_allowed(longest * 2**middle, radius)
            return xp.where(is_allowed, middle, low), xp.where(is_allowed, high, middle)

        low, _ = repeat(self._numbers.halvings, halve, (lowest * _one(radius), 0 * radius), unrolled=1)
        return xp.where(self._is_allowed(longest, radius), longest, longest * 2**low)

    def step(self, share: Array, longest: Array) -> _Step:
        """The step of this share, to the nearest member; ``longest`` is the intended share."""
        xp, family, spikes = array_namespace(self._q), self._family, self._spikes
        moved = self._moved(share)
        close = nearest(moved.precision.form, family.rank, self._here.s, sweeps=self._numbers.sweeps)
        close = close._replace(lam=xp.where(worth(close.lam) < self._least, xp.ones_like(close.lam), close.lam))
        new = family.member(self._mu + spikes.s * moved.shift, close._replace(s=close.s * spikes.s))
        kl, gain = self._effect(close, moved.shift)
        return _Step(new, share, kl, gain, (share < longest) | self._is_bounded, share > 0)

    def _moved(self, share: Array) -> _Moved:
        """The Gaussian at a share of the full step, before the nearest member."""
        here = self._here.form.times(1 - share)
        newton, _ = self._bounded(here.plus(self._target.times(share)))
        precision, _ = self._bounded(here.plus(self._close.form.times(share)))
        return _Moved(precision, share * newton.solve(self._answer.found.g[None, :])[0, :])

    def _bounded(self, form: Form) -> tuple[Spikes, Array]:
        """The matrix with bounds relative to the precision of q, and whether they changed it.

        The bounds are for each coordinate, and for each direction of the part of low rank.
        """
        xp = array_namespace(form.t)
        t = xp.maximum(form.t, self._smallest * xp.ones_like(form.t))
        s = t**-0.5
        U, change = form.between(s).compressed()
        along = s[:, None] * U
        floor = self._smallest * xp.sum(along * self._here.form.apply(along.T).T, axis=0)
        return Spikes(s, U, xp.maximum(1 + change, floor)), xp.any(form.t < t) | xp.any(1 + change < floor)

    def _effect(self, precision: Spikes, shift: Array) -> tuple[Array, Array]:
        """KL(new || old) of a move, and the rise of the bound by the surrogate."""
        xp, found, here = array_namespace(shift), self._answer.found, self._here
        entropy = 0.5 * (here.log_det() - precision.log_det())
        length = xp.sum(shift * here.form.apply(shift[None, :])[0, :])
        kl = 0.5 * (here.form.trace_with(precision) - self._family.dim + length) - entropy
        bend = xp.sum(shift * found.T.apply(shift[None, :])[0, :])
        spread = found.T.trace_with(precision) - found.T.trace_with(here)
        return kl, xp.sum(found.g * shift) + 0.5 * (bend + spread) + entropy

    def _is_allowed(self, share: Array, radius: Array) -> Array:
        """Whether KL is within the radius and the predicted gain is believable."""
        xp, d, numbers = array_namespace(self._q), self._family.dim, self._numbers
        moved = self._moved(share)
        kl, gain = self._effect(moved.precision, moved.shift)
        variance = self._here.form.trace_with(moved.precision)
        reach = variance + xp.sum(moved.shift * self._here.form.apply(moved.shift[None, :])[0, :])
        # What a quadratic of low rank leaves out is mostly a quadratic: it grows as the variances.
        is_believable = self._answer.misfit(d) ** 0.5 * reach / d <= gain
        growth = xp.maximum(variance / d, _one(variance))
        noise = 0.5 * (self._answer.curvature_sd * growth) ** 2 * d * (2 + self._family.rank)
        is_quiet = noise <= numbers.quiet * gain
        return (kl <= radius) & ((is_believable & is_quiet) | (reach < self._rule.near * d))


class _Fresh(NamedTuple):
    """Estimates from independent draws, at the q they came from."""

    h: Array  # (n,) residuals
    bound: Array  # () their mean
    se: Array  # () standard error of the bound
    is_dark: Array  # () whether too few values are finite


def judged(family: LowRankGaussian, state: LowRankState, theta: Array, values: Values, fewest_finite: float) -> _Fresh:
    """Bound at q from independent draws (n, d), the first of the values.

    The surrogate is a control variate: its expectation under q is known, and it was fitted to other
    points. Of the estimates without it and with it, the one with the smaller standard error counts.
    """
    xp, q, n = array_namespace(theta), state.q, theta.shape[0]
    f = values.log_joint[:n]
    h = family.residual(q, theta, f)
    is_there = values.ok[:n] & xp.isfinite(h)
    mu, spikes = family.open(q)
    known = state.surrogate.scaled(mu, xp.ones_like(mu))
    x = theta - mu
    model = x @ known.g + 0.5 * xp.sum(x * known.T.apply(x), axis=1)
    plain, se = _mean(h, is_there)
    controlled, controlled_se = _mean(f - model, is_there)
    controlled = controlled + 0.5 * known.T.trace_with(spikes) + family.entropy(q)
    is_better = controlled_se < se
    bound, se = xp.where(is_better, controlled, plain), xp.where(is_better, controlled_se, se)
    is_dark = xp.sum(xp.astype(is_there, h.dtype)) < fewest_finite * n
    return _Fresh(h, xp.where(is_dark, bound - math.inf, bound), se, is_dark)


def _mean(values: Array, is_there: Array) -> tuple[Array, Array]:
    """Mean of the values that are there, and its standard error."""
    xp = array_namespace(values)
    zero = xp.zeros_like(values)
    count = xp.sum(xp.where(is_there, zero + 1, zero))
    count = xp.maximum(count, 2 * xp.ones_like(count))
    mean = xp.sum(xp.where(is_there, values, zero)) / count
    e = xp.where(is_there, values - mean, zero)
    largest = xp.maximum(xp.max(xp.abs(e)), xp.finfo(e.dtype).smallest_normal * xp.ones_like(count))
    return mean, largest * xp.sum((e / largest) ** 2) ** 0.5 / count  # scaled: squares might overflow


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


def _split(T: Form) -> Form:
    """A diagonal plus orthonormal directions.

    If there are as many directions as coordinates, the split is not unique, and the diagonal is
    that of the matrix.
    """
    xp, d = array_namespace(T.t), T.t.shape[0]
    if T.w.shape[0] < d:
        return Form(T.t, *T.compressed())
    eye = xp.eye(d, dtype=T.t.dtype, device=device(T.t))
    dense = T.apply(eye) - T.diagonal * eye
    w, axes = xp.linalg.eigh(0.5 * (dense + dense.T))
    return Form(T.diagonal, axes, w)


def _is_member(family: LowRankGaussian, q: Array) -> Array:
    xp = array_namespace(q)
    _, spikes = family.open(q)
    return xp.all(xp.isfinite(q)) & xp.all(spikes.s > 0) & xp.all(spikes.lam > 0) & xp.all(family.sd(q) > 0)


def _one(like: Array) -> Array:
    """One, as an array like this."""
    return array_namespace(like).ones_like(like)
