"""The default method for Gaussian families: the natural gradient is read off the regression's coefficients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.families.base import Family, GaussianFamily
from qbvi.regression.base import Move, RegressionMethod
from qbvi.regression.correction import LeftOutDraws, corrected
from qbvi.regression.line import Gradient, NaturalLine, WhitenedStep, longest_by_bisection, repeated_share
from qbvi.regression.regress import RegressionState, regress
from qbvi.regression.rules import TrustRegion, secant_share
from qbvi.regression.surrogate import HermiteRegression, Surrogate, Variances

__all__ = ["Regression", "longest_step"]

Floats = NDArray[np.float64]


class _Answer(NamedTuple):
    """A regression and its answer."""

    regression: HermiteRegression
    surrogate: Surrogate
    n_effective: float
    is_credible: bool = True  # whether its bound agrees with the plain mean of the newest draws

    @property
    def bound(self) -> float:
        return self.surrogate.bound

    @property
    def bound_se(self) -> float:
        return self.surrogate.bound_se

    @property
    def gradient_norm(self) -> float:
        return math.sqrt(float(np.sum(self.surrogate.b**2) + 0.5 * np.sum(self.surrogate.C**2)))

    @property
    def variances(self) -> Variances:
        return self.surrogate.variances

    @property
    def tail(self) -> float:
        return self.surrogate.scale


@dataclass(frozen=True)
class Regression(RegressionMethod):
    """The default: few evaluations, nothing to tune, stops by itself.

    Each iteration draws mirror pairs along orthogonal directions from the present q, regresses the
    residual of all points so far on the Hermite polynomials of the whitened draws, and moves q along the
    natural gradient as far as a trust region allows. The posterior variance of the natural gradient
    predicts how many nats are still missing.

    Parameters
    ----------
    tol
        Stop when fewer nats than this are predicted to be missing.
    n_samples
        Draws of one iteration; by default two for each dimension, and more once many have been made.
    initial_scale
        Standard deviation of the start relative to the prior's. Narrow: without noise, differences are as
        good as gradients.
    n_fresh
        Least number of fresh draws from the result, for its lower bound and k-hat; a tenth of all
        evaluations if that is more.
    window, keep
        As for `qbvi.QBVI`.
    rules
        The numbers behind all decisions, see `qbvi.regression.rules`.

    Examples
    --------
    >>> import qbvi
    >>> fit = qbvi.fit(lambda x: -(x**4).sum(), qbvi.Normal(0, 1, shape=2), method=qbvi.Regression(tol=0.1), seed=1)
    >>> fit.n_evals < 200
    True
    """

    def fits(self, family: Family) -> bool:
        """Gaussian families only."""
        return isinstance(family, GaussianFamily)

    def _n_coefficients(self, family: GaussianFamily) -> int:
        """Those of all quadratics, whatever the family follows: the mean follows all of C."""
        return family.dim * (family.dim + 3) // 2

    def _answer(self, family: GaussianFamily, state: RegressionState) -> _Answer:
        found = regress(family, state, self.rules)
        surrogate = found.regression.posterior(found.variances, family)
        m = len(found.pair)
        draws = LeftOutDraws(found.regression.points.z[-m:], found.weights[-m:], found.pair)
        surrogate = corrected(surrogate, draws, self.rules.holdout.spread)
        return _Answer(found.regression, surrogate, found.n_effective)

    def _checked(self, answer: _Answer, h: Floats) -> _Answer:
        """Hold the bound against the plain mean over the mirror pairs just drawn from the same q.

        Polynomials that fit too well promise too much: what the plain mean rules out is not believed. (A
        product of laws draws from a wider member than q, so that its plain mean is another one.)
        """
        rule = self.rules.credibility
        pairs = 0.5 * (h[::2] + h[1::2])
        pairs = pairs[np.isfinite(pairs)]
        if pairs.size < rule.fewest_pairs:
            return answer
        error = float(pairs.std(ddof=1)) / math.sqrt(pairs.size)
        reach = rule.mean_errors * error + rule.bound_errors * answer.bound_se
        bound = float(np.clip(answer.bound, pairs.mean() - reach, pairs.mean() + reach))
        if bound == answer.bound:
            return answer
        return answer._replace(surrogate=replace(answer.surrogate, bound=bound), is_credible=False)

    def _move(self, family: GaussianFamily, state: RegressionState, answer: _Answer) -> tuple[Move, float]:
        rule, repeated = self.rules.trust_region, np.float64(0.0)
        step = whole = longest_step(answer.surrogate, family, state.radius, rule)
        if state.last_step is not None:
            repeated = repeated_share(family, state.q, state.last_step.q, whole)
        if repeated < 0:
            step = longest_step(answer.surrogate, family, state.radius, rule, longest=float(secant_share(repeated)))
        # Back and forth is a sign of noise as long as the whole step, which a shortened one would hide.
        gap = self._predicted_gap(family, answer, whole, state.misfit)
        gap = max(gap, float(self.rules.gap.still_to_come(step.kl, repeated)))
        return _taken(family, state.q, step), gap

    def _predicted_gap(self, family: GaussianFamily, answer: _Answer, step: WhitenedStep, misfit: float) -> float:
        """Nats that will be missing after the step; infinite while it is not the last one."""
        rule = self.rules.gap
        if step.is_restricted or step.kl > rule.settled_kl or not answer.is_credible:
            return math.inf
        cost = self._cost_of_error(answer.surrogate)
        rest = float(step.left_behind) + rule.kl_share * float(step.kl) + cost.mean
        margin = rule.margin_for(misfit)
        white = answer.surrogate.white / answer.n_effective
        gap = margin * max(rule.curvature * cost.precision, white) + rest
        if gap < self.tol:  # before that is said, let C be as free as the draws allow: is it still true?
            bold = answer.regression.posterior(answer.regression.boldest(answer.variances), family)
            gap = max(gap, margin * self._cost_of_error(bold).precision + rest)
        return gap

    def _cost_of_error(self, surrogate: Surrogate) -> _Cost:
        """Nats that the error of the estimated gradient is expected to lose."""
        c, axes = np.linalg.eigh(surrogate.C)
        along = (axes**2).T @ surrogate.b_variance
        stiffness = np.maximum(1 - c, self.rules.trust_region.softest)
        return _Cost(0.5 * float(np.sum(along / stiffness)), 0.5 * surrogate.quadratic_variance)

    def _widened(self, family: GaussianFamily, q: Array, factor: float) -> Array:
        eye = np.eye(family.dim)
        return family.deform(q, np.zeros(family.dim), factor * eye, eye / factor)

    def _retreated(self, family: GaussianFamily, state: RegressionState) -> RegressionState:
        """Most values were not finite: back to the last good q, or another scale for the start."""
        rule = self.rules.retreat
        if state.last_step is None:
            turn = len(state.store.past)
            factor = rule.rescale ** (turn if turn % 2 else -turn)  # wider, narrower, wider
            return state._replace(q=self._widened(family, state.q, factor))
        if state.last_step.kl > rule.small_kl:
            state = self._returned(state)
            answer = self._answer(family, state)
            step = longest_step(answer.surrogate, family, state.radius, self.rules.trust_region)
            return self._moved(state, answer, _taken(family, state.q, step))
        # Few finite values even where the last step began: start again, narrower, around the best point.
        best = family.whiten(state.q, state.store.theta[[int(np.argmax(state.store.y))]])[0]
        eye = np.eye(family.dim)
        around = family.deform(state.q, best, eye, eye)
        return state._replace(q=self._widened(family, around, rule.narrowing), last_step=None)


class _Cost(NamedTuple):
    """Nats that the error of an estimated gradient is expected to lose."""

    mean: float  # half the variance of b, over the stiffness of the log joint in each direction
    precision: float  # half the variance of C


def longest_step(
    surrogate: Surrogate, family: GaussianFamily, radius: float, rules: TrustRegion, longest: float = 1.0
) -> WhitenedStep:
    """The longest step, up to the share ``longest`` of the whole, within the trust region and with a believable gain."""
    errors = np.float64(surrogate.curvature_sd), np.float64(surrogate.scale), surrogate.variances.omega
    line = NaturalLine(Gradient(surrogate.b, surrogate.C, *errors), family, rules)
    point = longest_by_bisection(line.at, lambda p: bool(line.is_allowed(p, radius)), longest, rules.halvings)
    return line.step(point, longest)


def _taken(family: GaussianFamily, q: Array, step: WhitenedStep) -> Move:
    return Move(step.apply(family, q), step.kl, step.gain, step.share, bool(step.is_restricted))
