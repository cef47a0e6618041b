r"""The rule book of the default method: every rule once, with its numbers and their reasons.

Each rule is a frozen dataclass. Its fields are the numbers. Its methods are the rule as array
functions, which the methods on the host (`gaussian`, `mean_field`) and the compiled one (`ridge`)
share. `Rules` holds one of each. A number whose comment names no source was chosen on the problems
of ``benchmarks/evaluations.py``. ``benchmarks/rules.py`` shows how much each one matters. It halves
and doubles every number in turn, and prints three effects: on the evaluations, on the worst gap of
the fits that report convergence, and on the number of fits that do not.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import scipy

from qbvi.arrays import Array, array_namespace

__all__ = [
    "Credibility",
    "Effort",
    "Escape",
    "GapPrediction",
    "Holdout",
    "LadderRule",
    "LastStep",
    "LookRule",
    "NoiseCheck",
    "Retreat",
    "Rules",
    "SearchPlan",
    "StructureRule",
    "SurroundingsRule",
    "Thinning",
    "TrustRegion",
    "VarianceSearch",
    "Weighting",
    "WidthRule",
]


class LastStep(NamedTuple):
    """The step that led to the current q: where it began, and what was predicted for it."""

    q: Array  # where it began
    bound: Array  # () lower bound there; minus infinity if there was no step yet
    bound_se: Array  # () its standard error
    gain: Array  # () predicted rise of the bound
    kl: Array  # () KL(new || old)
    is_restricted: Array  # () whether a rule limited its length, its mean or its precision


@dataclass(frozen=True)
class TrustRegion:
    """Which steps are accepted, how far a step may go, and how the radius changes.

    The radius is a bound on KL(new || old). The scheme is the textbook one (Nocedal and Wright,
    Numerical Optimization, algorithm 4.1). It compares the rise of the bound with the predicted
    rise:

    - the radius shrinks if the ratio is poor,
    - it grows if the ratio is good and a rule limited the step.

    Here both bounds are estimates, so every comparison allows for their standard errors.

    Examples
    --------
    A step with a predicted gain of one nat that lost two is rejected:

    >>> import numpy as np
    >>> last = LastStep(*np.array([0.0, -10.0, 0.1, 1.0, 0.5, 1.0]))
    >>> bool(TrustRegion().rejects(last, np.float64(-12.0), np.float64(0.1)))
    True
    """

    first_radius: float = 2.0  # nats for each whitened coordinate
    noise: float = 2.0  # standard errors within which a change of the bound counts as noise
    lost_share: float = 0.1  # share of its predicted gain that an accepted step may lose ...
    lost_nats: float = 0.05  # ... plus so many nats: to reject a smaller loss teaches nothing
    # Ratio of actual to predicted gain below which the radius shrinks (Nocedal and Wright) ...
    poor: float = 0.25
    good: float = 0.5  # ... and above which it grows
    shrinkage: float = 3.0  # after a poor step the radius is its KL, divided by this ...
    smallest: float = 0.1  # ... and at least so many nats
    growth: float = 3.0  # after a good step the radius is at least its KL, times this
    close: float = 0.1  # error of the ratio below which the prediction was close ...
    close_growth: float = 9.0  # ... and the growth is that of two good steps
    exact: float = 0.02  # error of the ratio below which the function looks quadratic ...
    exact_growth: float = 100.0  # ... and the next step may go almost anywhere
    # After a step that nothing restricted, the radius is at most its KL, times this ...
    free_growth: float = 4.0
    free_radius: float = 1.0  # ... or so many nats, if that is more
    return_shrinkage: float = 4.0  # after a rejected step the radius is its KL, divided by this ...
    return_radius: float = 0.02  # ... and at least so many nats
    # Mean squared whitened radius of the new q, relative to that of the old one, below which every
    # predicted gain is believable.
    near: float = 1.5
    softest: float = 1e-3  # least whitened stiffness of the log joint for a step of the mean
    # A step multiplies a precision by at least so many standard errors of an eigenvalue of C ...
    curvature_errors: float = 5.0
    # With noise, an eigenvalue of C below zero shrinks by its standard error beyond this: otherwise
    # noise would narrow q, and the narrower q is, the more the noise hides the function.
    hidden_curvature: float = 0.5
    least_precision: float = 1e-3  # ... but this lower limit is never less than this ...
    most_precision: float = 1 / 16  # ... and never more than this
    # The same limit for Gaussians in a product of families, where the error of C is not known.
    product_precision: float = 1 / 64
    halvings: int = 30  # of a bisection for the longest step: down to 1e-9 of the full step

    def rejects(self, last: LastStep, bound: Array, bound_se: Array) -> Array:
        """Whether the bound fell by more than noise and the tolerated loss explain."""
        return bound < last.bound - self._noise(last, bound_se) - self.lost_share * last.gain - self.lost_nats

    def next_radius(self, radius: Array, last: LastStep, bound: Array, bound_se: Array) -> Array:
        """The radius after an accepted step, by the ratio of its actual to its predicted gain."""
        xp = array_namespace(bound)
        one = xp.ones_like(bound)
        ratio = (bound - last.bound) / xp.where(last.gain > 0, last.gain, one)
        error = xp.abs(ratio - 1)
        growth = xp.where(error < self.close, self.close_growth * one, self.growth * one)
        growth = xp.where(error < self.exact, self.exact_growth * one, growth)
        is_good = last.is_restricted & (ratio > self.good)
        changed = xp.where(is_good, xp.maximum(radius, last.kl * growth), radius)
        shrunk = xp.maximum(last.kl / self.shrinkage, self.smallest * one)
        changed = xp.where(ratio < self.poor, shrunk, changed)
        is_known = (last.gain > self._noise(last, bound_se)) & xp.isfinite(ratio)
        radius = xp.where(is_known, changed, radius)
        is_first = ~xp.isfinite(last.bound)
        free = xp.minimum(radius, xp.maximum(self.free_growth * last.kl, self.free_radius * one))
        return xp.where(last.is_restricted | is_first, radius, free)

    def radius_after_return(self, last: LastStep) -> Array:
        """The radius after a rejected step."""
        xp = array_namespace(last.kl)
        return xp.maximum(last.kl / self.return_shrinkage, self.return_radius * xp.ones_like(last.kl))

    def smallest_precision(self, curvature_sd: Array, d: int) -> Array:
        """Least factor by which a step may multiply a precision.

        It depends on ``curvature_sd``, the standard error of one coefficient of C (d, d).
        """
        xp = array_namespace(curvature_sd)
        error, one = self.curvature_errors * curvature_sd * d**0.5, xp.ones_like(curvature_sd)
        return xp.minimum(xp.maximum(error, self.least_precision * one), self.most_precision * one)

    def supported(self, C: Array, curvature_sd: float) -> Array:
        """The part of C that noise leaves: no variance shrinks by more than its error supports.

        Examples
        --------
        >>> import numpy as np
        >>> C, rule = np.array([[-3.0]]), TrustRegion()
        >>> rule.supported(C, 0.4), rule.supported(C, 2.0)
        (array([[-3.]]), array([[0.]]))
        """
        xp, d = array_namespace(C), C.shape[0]
        excess = 2 * max(curvature_sd * d**0.5 - self.hidden_curvature, 0.0)
        if not excess:
            return C
        c, axes = xp.linalg.eigh(C)
        c = xp.where(c < 0, xp.minimum(c + excess, xp.zeros_like(c)), c)
        return (axes * c) @ axes.T

    def _noise(self, last: LastStep, bound_se: Array) -> Array:
        """Change of the bound that chance explains, with independent errors of the two bounds."""
        return self.noise * (last.bound_se**2 + bound_se**2) ** 0.5


@dataclass(frozen=True)
class GapPrediction:
    """The gap: the nats that are predicted to be missing after a step.

    Examples
    --------
    If each step repeats half of the one before, all further steps together repeat the last one:

    >>> import numpy as np
    >>> float(GapPrediction().still_to_come(np.float64(0.1), np.float64(0.5)))
    0.1
    """

    # Factor of the expected cost of estimation errors: most fits should end below the prediction.
    margin: float = 2.5
    # Share of this margin for the cost of the function's own noise, which is known well.
    # Its own error matters: on the problems of ``benchmarks/noise.py`` a share of 0.3 left 6 of 40
    # fits with more than twice the predicted gap, and this one 1 of 40.
    noise_margin: float = 0.5
    # Weight of the posterior variance of C. The margin covers its error: in a logistic regression
    # with 15 coefficients, near the optimum, the squared error of C was 0.7 to 1.6 times as large.
    curvature: float = 1.0
    settled_kl: float = 0.3  # nats: a step with a larger KL cannot be the last
    kl_share: float = 0.25  # share of the last step's KL that is expected to be missing after it
    most_repeated: float = 0.999  # largest share of the last step that counts as repeated
    # Further steps on the same points, at most, while a step is worth more than the errors. Along a
    # curved log joint the natural gradient converges slowly: a step may repeat 0.8 of the last one.
    more_steps: int = 4
    # It must also be worth more than this share of the tolerance. A Gaussian log joint is known
    # without error, and each step gains something to the last digit.
    negligible: float = 0.1
    # They pay from so many dimensions on. In fewer, a batch costs few evaluations, and it shows
    # what no polynomial follows.
    many: int = 30

    def further_steps(self, d: int) -> int:
        """Steps on the same points after the first one, at most."""
        return self.more_steps if d >= self.many else 0

    def still_to_come(self, kl: Array, repeated: Array) -> Array:
        """Nats to be gained if each further step repeats the same share of the one before.

        The steps are then a geometric series. This matters where the function flattens out: one
        step reaches no further than its own points.
        """
        xp = array_namespace(repeated)
        one = xp.ones_like(repeated)
        share = xp.minimum(xp.maximum(repeated, 0.0 * one), self.most_repeated * one)
        return kl * (share / (1 - share)) ** 2

    def margin_for(self, misfit: float) -> float:
        """The margin if a share ``misfit`` of the unexplained variance is not noise."""
        return self.margin * (misfit + self.noise_margin * (1 - misfit))


def secant_share(repeated: Array) -> Array:
    """Share of the full step to take: one, or less if the step goes back on the last one.

    Between two opposite steps the gradient has a zero; the secant method finds it.
    """
    xp = array_namespace(repeated)
    return 1 / (1 + xp.maximum(-repeated, 0 * repeated))


@dataclass(frozen=True)
class Weighting:
    """How much a point counts in the regression for a q that it was not drawn from.

    The regression has terms up to degree four. What it leaves out grows with the radius, and the
    variance of a point's error with the fourth power of the squared radius.
    """

    usual: float = 0.99  # probability, under q, of the ball beyond which a point is far out
    far_power: int = 4  # power of the squared radius by which the variance grows beyond that ball
    least_noise: float = 1e-3  # least noise variance of one point, relative to the mean of all

    def far(self, squares: Array, d: int) -> Array:
        """Growth of the variance with the squared whitened radius: (n,) -> (n,)."""
        xp = array_namespace(squares)
        return xp.maximum(squares / self.usual_square(d), xp.ones_like(squares)) ** self.far_power

    def usual_square(self, d: int) -> float:
        """Squared radius of the ball with standard normal probability `usual`."""
        return 2 * float(scipy.special.gammaincinv(d / 2, self.usual))


@dataclass(frozen=True)
class Effort:
    """The number of points of an iteration, of a regression, and of a whole fit."""

    pairs: int = 1  # mirror pairs for each whitened coordinate, so that every direction is covered
    fewest: int = 4  # coordinates to count, at least: four pairs measure a noise level
    growth: int = 6  # a batch is a sixth of the effective sample size, once that is more
    # Points of one regression for each coefficient: the error of C falls as one over the points.
    points: int = 4
    tol: float = 0.01  # tolerance for which `points` are enough; a smaller one takes more
    # Factor of that limit each time that it leaves points out and their error is still too large.
    more_points: int = 2
    fewest_points: int = 400  # least limit on the points of one regression
    most_points: int = 6000  # largest limit: a regression costs the cube of its points
    # Points for each coefficient that the largest limit must allow. If it does not, it leaves out
    # points that are needed. Then the method goes on by ridge regression, which is less exact with
    # the same points, but takes any number of them.
    fewest_for_coefficient: int = 2
    # It does so when the last step was short, and was to gain little, in nats for each dimension.
    # Before, q is on its way, and a quadratic that is nearly exact leads there with fewer points
    # than coefficients. A step that promises much may be short after others that were rejected.
    short: float = 0.01
    # Variance of degree two, relative to that of degrees three and four, above which a log joint
    # counts as a quadratic: then few points more than coefficients are enough.
    exact: float = 1e6
    # Effective sample size, relative to that limit, from which a regression is full: further draws
    # only take the place of others, and the error of C stays.
    full: float = 0.9
    # Dimensions up to which a full regression reaches the tolerance. Errors in nats add up over
    # dimensions, so it is larger in proportion beyond.
    reached: int = 100
    noisy_points: int = 1500  # least limit with noise, where accuracy comes from averaging
    fresh: int = 10  # evaluations for each fresh draw from the result
    first: int = 5  # fresh draws for each one that comes first, and may be enough ...
    fewest_first: int = 20  # ... but not with fewer than these
    budget: tuple[int, int, int] = (200, 10, 20)  # evaluations: 200 (d + 10) + 20 d (d + 3) / 2

    def batch(self, d: int, n_effective: float) -> int:
        """Draws of one iteration."""
        block = 2 * self.pairs * max(d, self.fewest)
        return block * max(1, int(n_effective / (self.growth * block)))

    def is_quadratic(self, variances: tuple[float, float, float]) -> bool:
        """Whether a log joint counts as a quadratic."""
        return variances[1] > self.exact

    def most(self, n_coefficients: int, tol: float) -> int:
        """Most points of one regression."""
        wanted = round(self.points * n_coefficients * max(1.0, self.tol / tol))
        return min(max(self.fewest_points, wanted), self.most_points)

    def more(self, most: int, n: int) -> int:
        """The next limit on the points of one regression, with n points so far."""
        return max(most, min(self.more_points * most, self.most_points)) if n > most else most

    def finest(self, tol: float, d: int, n_effective: float) -> float:
        """Nats that may be missing if more draws do not help; zero if they do.

        Examples
        --------
        >>> Effort().finest(0.01, 200, 5_900.0), Effort().finest(0.01, 200, 3_000.0)
        (0.02, 0.0)
        """
        is_full = n_effective >= self.full * self.most_points
        return tol * d / self.reached if is_full and d > self.reached else 0.0

    def is_for_ridge(self, n: int, d: int, last: LastStep, variances: tuple[float, float, float]) -> bool:
        """Whether to go on by ridge regression, with n points, after this step.

        The coefficients must need more points than one regression can hold.

        - A quadratic, as the ``variances`` show it, is exact with few points more than
          coefficients. If even these are too many, the regression leads nowhere once it has to
          leave points out.
        - For others it is time once the steps are short.
        """
        n_coefficients, is_full = d * (d + 3) // 2, n > self.most_points
        if self.fewest_for_coefficient * n_coefficients <= self.most_points:
            return False
        is_short = bool(max(last.kl, last.gain) < self.short * d)
        if not self.is_quadratic(variances):
            return is_short
        return is_full and (is_short or n_coefficients > self.most_points)

    def default_budget(self, d: int) -> int:
        """Evaluations after which a fit that has not converged ends."""
        each, start, coefficient = self.budget
        return each * (d + start) + coefficient * (d * (d + 3) // 2)


@dataclass(frozen=True)
class NoiseCheck:
    """Whether the function is noisy, and how much where q is now: some points are evaluated twice.

    Some points of the first batch always are. If they show noise, points of later batches follow
    where q has moved to another place.
    """

    repeated: int = 4  # points that are evaluated twice: two mirror pairs
    # Fewest of them with a likelihood. Where there is none, values are equal, whatever the noise.
    fewest: int = 2
    draws: int = 20  # effective draws for each repeated point near q, once that is more
    steepest: float = 3.0  # largest power of the law of the noise (`qbvi.regression.noise`) ...
    power_step: float = 0.25  # ... the step of a search over powers ...
    power_width: float = 1.5  # ... and the standard deviation of their prior
    near_power: float = 2.0  # power by which the weight of a repeated point falls with its distance
    # Noise alone leaves a gap that falls as one over the draws. A fit stops at the gap that remains
    # after so many evaluations for each dimension and two more ...
    evals: int = 40
    tol: float = 0.01  # ... with this tolerance; a smaller one takes more ...
    most_nats: float = 0.25  # ... but never at more nats than this
    # One of so many fresh draws from the result is evaluated twice, if the noise is above ...
    fresh: int = 4
    little: float = 0.2  # ... this standard deviation: half its variance is 0.02 nats of evidence
    chance: float = 0.1  # that the noise is above its upper limit
    most_growth: float = 1e8  # largest noise variance of a point, relative to that at q
    rounding: float = 4e-16  # relative error of a value without noise: two units in the last place
    rounding_margin: float = 16.0  # multiple of this error up to which a difference is rounding
    # Share of the measured variance that is certain: four differences measure it only roughly.
    floor: float = 0.25
    # Variance of the residuals, relative to the noise, below which noise hides the function.
    hidden: float = 100.0
    widening: float = 10.0  # factor by which the start is then widened ...
    most_widenings: int = 5  # ... at most so often
    least_misfit: float = 1e-3  # least share of the unexplained variance that is not noise

    def wanted(self, n_effective: float) -> int:
        """Repeated points that are wanted near q, an even number."""
        return max(self.repeated, 2 * int(n_effective / (2 * self.draws)))

    def upper_limit(self, variance: float, n: int) -> float:
        """Confidence limit of a variance that n squared differences estimate.

        Examples
        --------
        >>> round(NoiseCheck().upper_limit(1.0, 4), 1), round(NoiseCheck().upper_limit(1.0, 100), 1)
        (3.8, 1.2)
        """
        n = max(n, self.repeated)
        return variance * n / (2 * float(scipy.special.gammaincinv(n / 2, self.chance)))

    def relative_error(self, n: int) -> float:
        """Standard error upward of a variance that n squared differences estimate, relative to it.

        It is larger than the one downward, because the distribution is skewed.

        Examples
        --------
        >>> round(NoiseCheck().relative_error(4), 1), round(NoiseCheck().relative_error(100), 2)
        (2.2, 0.17)
        """
        return (self.upper_limit(1.0, n) - 1) / -float(scipy.special.ndtri(self.chance))

    def finest(self, variance: float, size: int, d: int, tol: float) -> float:
        """Nats that noise of this variance alone leaves a family with ``size`` parameters.

        Examples
        --------
        >>> round(NoiseCheck().finest(9.0, size=5, d=2, tol=0.01), 3)
        0.141
        """
        evals = self.evals * (d + 2) * max(1.0, self.tol / tol)
        return min(0.5 * variance * size / evals, self.most_nats)


@dataclass(frozen=True)
class Holdout:
    """Which points are held out: the regression predicts them from all others.

    Their errors choose the prior variances and correct the regression. They are the batches whose q
    is most like the current one, because the error under the current q matters.
    """

    batches: int = 40  # newest batches that may be held out
    pairs: int = 1  # mirror pairs to hold out, at least, for each whitened coordinate ...
    fewest: int = 24  # ... and points, at least
    unlike: float = 0.5  # beyond that, no batch is added with a larger symmetric KL to q ...
    most: int = 2  # ... and none at all beyond this multiple of the number wanted
    # Standard deviations of the squared length of noise within which a correction counts as noise.
    spread: float = 3.0


@dataclass(frozen=True)
class Credibility:
    """When the regression's bound is credible: it agrees with the mean of the newest draws."""

    mean_errors: float = 5.0  # the difference may be so many standard errors of the plain mean ...
    bound_errors: float = 3.0  # ... plus so many of the regression's bound
    fewest_pairs: int = 3  # with fewer mirror pairs the standard error of the mean is useless


@dataclass(frozen=True)
class Retreat:
    """What to do if most values are not finite."""

    fewest_finite: float = 0.25  # share of finite values below which the step has left the support
    spare: int = 4  # a regression needs so many points more than whitened coordinates
    # Factor of the start's scale, wider and narrower by turns, with one power more each time.
    rescale: float = 8.0
    # Prior standard deviations that a start is widened to, at most: draws from it are then as far
    # out as draws from the prior, and farther out the prior says that there is nothing.
    widest: float = 1.0
    small_kl: float = 0.1  # nats: a step with a smaller KL is not the cause of the failures
    narrowing: float = 0.25  # factor of the scale of a q that starts again around the best point

    def scale(self, turn: int, first: float) -> float:
        """Scale of the start number ``turn``, in prior standard deviations; ``first`` is turn 0.

        Examples
        --------
        >>> [Retreat().scale(turn, first=0.01) for turn in range(4)]
        [0.01, 0.08, 0.00125, 0.64]
        """
        if turn % 2 == 0:
            return first * self.rescale ** (-turn // 2)
        return max(first, min(first * self.rescale ** (turn // 2 + 1), self.widest))


@dataclass(frozen=True)
class Escape:
    """How a product of families leaves a saddle.

    At a saddle each factor is optimal given the others, but two together are not.
    """

    push: float = 0.7  # length of the step off the saddle: about a quarter of a nat in KL
    coupling: float = 1.0  # least eigenvalue of the coupling at which a saddle is possible
    worth: float = 10.0  # least predicted rise of the bound, as a multiple of the tolerance


@dataclass(frozen=True)
class Thinning:
    """Which points take part in the regression for the current q."""

    far: float = 1e5  # squared whitened radius, per coordinate, beyond which a point is useless
    # Effective sample size, per natural parameter, above which a sample of the points is enough.
    enough: float = 2.0
    # Density of q, relative to that of the past draws, above which a pair is always in that sample.
    certain: float = 0.2
    # A quadratic with some range among the draws from q is, at a whitened distance r, at most r^2
    # times that range below them. A point so many times lower still is of another kind: the square
    # of its value would hide all others ...
    lower: float = 1e3
    least: float = 1e4  # ... but none within so many nats

    def lowest(self, y: Array, squares: Array, is_known: Array, d: int) -> Array:
        """Log joint (n,) below which a point is useless, by its squared whitened radius (n,).

        ``is_known`` tells which values y (n,) are there.

        Examples
        --------
        A function that is exponential towards the left:

        >>> import numpy as np
        >>> z = np.array([-12.0, -1.0, 0.0, 1.0])
        >>> y = -np.exp(-2 * z)
        >>> y > Thinning().lowest(y, z**2, np.full(4, True), 1)
        array([False,  True,  True,  True])
        """
        usual = y[is_known & (squares < 2 * (d + 2))]
        if len(usual) <= d:
            return y - 1.0
        range_ = usual.max() - usual.min()
        return usual.min() - (squares / d).clip(1.0) * (self.lower * range_).clip(self.least)


class SearchPlan(NamedTuple):
    """The effort of one search for the prior variances; a try costs one factorisation."""

    tries: int = 24  # most tries
    restart: bool = True  # whether to start also from two corners: all noise, and all smooth
    turn: int = 0  # decides which variance is searched first
    leap: bool = False  # whether to double the stride while that helps, before the next variance


@dataclass(frozen=True)
class VarianceSearch:
    """The pattern search for the three prior variances of the regression, over their logarithms.

    Tuples are in the order of `Variances`: degree four relative to degree three, degree two, noise.
    """

    lowest: tuple[float, float, float] = (0.02, 1e-6, 1e-10)  # lower bounds of the variances ...
    highest: tuple[float, float, float] = (2.0, 1e12, 1e4)  # ... and upper bounds
    # Further starts of the search: all noise, and all smooth ...
    corners: tuple[tuple[float, float, float], ...] = ((0.3, 1.0, 1.0), (0.3, 1e3, 1e-4))
    # ... and all quadratic, for more than `pause` points that are fewer than the coefficients. The
    # deviance of a quadratic then has a local minimum at large noise, which a few tries do not
    # leave: in 100 dimensions a Gaussian took 12,000 evaluations instead of 6,000.
    quadratic: tuple[float, float, float] = (0.3, 1e10, 1e-8)
    centre: tuple[float, float, float] = (0.3, 1e2, 1e-2)  # centre of a weak prior ...
    width: tuple[float, float, float] = (1.0, 6.0, 4.0)  # ... and its widths, for the logarithms
    strides: tuple[float, float, float] = (0.7, 2.3, 2.3)  # factors of two, ten and ten
    finest: float = 0.4  # stride below which a search ends
    # Least decrease of the deviance (minus twice the log predictive density) that counts as one.
    improvement: float = 1e-3
    slack: float = 4.0  # increase of the deviance that refutes a variance: two standard deviations
    # Factor of the variance of degree two in the search for the largest that is not refuted ...
    bolder: float = 10.0
    # ... with at most so many factors. If the draws determine C, its posterior variance does not
    # depend on a prior variance a thousand times as large; if not, they refute that one.
    boldest: int = 3
    # Relative additions to the diagonal, tried in turn until the covariance can be factored. The
    # first of them already bounds the condition number.
    nuggets: tuple[float, ...] = tuple(10.0**e for e in range(-9, -1))
    # Tries for fewer than so many points: with more points a try costs more.
    tries: tuple[tuple[int, int], ...] = ((150, 24), (400, 14), (1500, 5))
    fewest_tries: int = 3  # tries for more points than that
    pause: int = 500  # number of points from which not every iteration searches ...
    every: int = 3  # ... but one of so many
    restart: int = 400  # number of points from which only every second search uses the corners
    leap: int = 1500  # number of points from which a stride doubles while that helps
    # Number of points from which an iteration does not search. It takes the variances as they are,
    # and the slope of the deviance improves them for the next one. Fewer are enough if they are
    # more than `pause` and determine all coefficients: the slope is a local one, and before that
    # the deviance may have a second minimum at large noise ...
    descent: int = 1500
    longest: tuple[float, float, float] = (0.35, 0.7, 0.7)  # ... by steps of at most this

    def starts(self, n: int, d: int, *, restart: bool) -> tuple[tuple[float, float, float], ...]:
        """Where else to start with n points in d dimensions."""
        is_undetermined = self.pause <= n < d * (d + 3) // 2
        return (*(self.corners if restart else ()), *((self.quadratic,) if is_undetermined else ()))

    def thorough(self) -> VarianceSearch:
        """The same search with the effort of few points, whatever their number."""
        _, tries = self.tries[0]
        most = sys.maxsize
        return replace(self, tries=(), fewest_tries=tries, pause=most, restart=most, descent=most)

    def is_descent(self, n: int, d: int, turn: int) -> bool:
        """Whether iteration ``turn`` with n points takes its variances from the one before."""
        least = min(self.descent, max(self.pause, d * (d + 3) // 2))
        return n >= least and turn > self.every  # one iteration before has searched

    def resting(self) -> VarianceSearch:
        """No search at all: for another regression on the same points."""
        return replace(self, pause=0, every=sys.maxsize)

    def plan(self, n: int, turn: int) -> SearchPlan:
        """The effort for n points in iteration ``turn``; a try costs n^3."""
        if n >= self.pause and turn % self.every:
            return SearchPlan(tries=0, restart=False)
        tries = next((tries for most, tries in self.tries if n < most), self.fewest_tries)
        restart = n < self.restart or turn % (2 * self.every) == 0
        return SearchPlan(tries, restart, turn // self.every, leap=n >= self.leap)


@dataclass(frozen=True)
class StructureRule:
    """When the method looks for parameters that do not interact, and when it relies on that."""

    fewest: int = 30  # dimensions: below, a dense quadratic takes about as few evaluations
    # Points for each dimension before the first search. With fewer, nearly every prior with few
    # coefficients predicts better than a dense one ...
    points: int = 16
    growth: float = 2.0  # ... and the factor by which they grow before the next
    again: float = 1.3  # the same, if there seem to be hubs
    most_points: int = 1500  # that a search uses: it costs the cube of their number
    near: float = 10.0  # largest relative variance of a point that takes part ...
    fewest_near: int = 10  # ... unless there are fewer of them for each dimension
    # Near points for each dimension from which a structure holds until the next search is due. With
    # fewer, q has just moved, and each iteration updates it.
    enough: float = 3.0
    turns: int = 2  # batches, from then on, that cover all directions once: few coefficients are left
    # The first iterations take so many points for each dimension ...
    few: int = 6
    # ... and have stages: a number of iterations, and a share of all rows. The search ends if the
    # effective number of rows with a large variance is above that share.
    stages: tuple[tuple[int, float], ...] = ((5, 0.4), (3, 0.2))
    search_points: int = 8  # points for each dimension that the first choice of hubs takes
    iterations: int = 4  # for one choice of the hubs ...
    choices: int = 3  # ... and choices of a search; an update has one
    # Least noise, relative to degrees three and four: few points may seem to have none at all.
    least_noise: float = 1e-4
    hub: float = 0.01  # least variance of a hub, relative to that of the largest
    # Largest share of hubs: they have half of all coefficients.
    hubs: float = 0.25
    # Gain in deviance that a structure must bring for each dimension, as each has a variance ...
    gain: float = 1.0
    wins: int = 3  # ... and so often in a row, before it is used
    # Loss that a structure in use may have: two standard deviations, as for variances. So many
    # larger losses in a row end its use.
    loss: float = 4.0
    losses: int = 3
    # Share of a dense matrix in the variance of degree two above which a structure is only a part
    # of what there is. Where the structure is exact, the share falls to a thousandth and less.
    partial: float = 0.01

    def is_due(self, n: int, d: int, n_near: int, due: int, *, is_known: bool) -> bool:
        """Whether to search with n points so far, ``n_near`` of them near q.

        ``due`` is n at which the last search said that the next is due. If no structure is known,
        and there are as many near points as coefficients, a dense prior needs no help.
        """
        is_enough = d >= self.fewest and n >= max(self.points * d, due)
        return is_enough and (is_known or n_near < d * (d + 3) // 2)

    def is_soon_due(self, n: int, d: int, due: int) -> bool:
        """Whether the first search is still to come, or the next one is not far away."""
        return n < self.points * d or n < due < self.again * n

    def is_sparse(self, is_hub: Array) -> bool:
        """Whether few parameters are hubs (d,)."""
        return bool(is_hub.sum() <= self.hubs * len(is_hub))

    def next_search(self, n: int, *, is_likely: bool) -> int:
        """Points from which on the next search is due, after one with n points."""
        return math.ceil(n * (self.again if is_likely else self.growth))

    def has_moved(self, d: int, n_near: int) -> bool:
        """Whether few points are near q, so that a structure in use needs an update."""
        return n_near < self.enough * d

    def n_near(self, growth: Array) -> int:
        """Number of points near q, by their relative variances (n,)."""
        return int((growth <= self.near).sum())


@dataclass(frozen=True)
class LookRule:
    """When the method looks at the whole prior for a better start, and how long.

    The numbers of points are usual for the cross-entropy method in few dimensions. They are enough
    for the mean and the spread of the best points, and a small part of the cost of a fit.
    """

    # The log joint is not log-concave if it curves upward by so many standard errors of C.
    convex_errors: float = 5.0
    first: int = 2  # the first round, over the whole prior, has so many times the points of another
    fewest: int = 12  # points of one round, at least ...
    points: int = 2  # ... and for each dimension
    fewest_elite: int = 6  # best points that the next round is drawn around, at least ...
    spare: int = 2  # ... and beyond one for each dimension
    level: float = 3.0  # nats, for each dimension, within which the best points are equally good
    most_rounds: int = 10
    fewest_rounds: int = 2  # before a look may end because it closes in on the path
    # The fit starts again at the best point of the look if it is so many nats better than the path.
    better: float = 3.0
    noise_errors: float = 4.0  # standard deviations of the function's noise, added to that
    again: float = 3.0  # factor by which the evaluations must have grown before another look
    budget: int = 5  # the longest look takes at most one part in so many of a budget

    def batch(self, d: int) -> int:
        """Points of one round."""
        return max(self.fewest, self.points * d)

    def least_budget(self, d: int) -> int:
        """Evaluations below which a fit does not look."""
        return self.budget * (self.first + self.most_rounds - 1) * self.batch(d)

    def elite(self, d: int) -> int:
        """Points that the next round is drawn around."""
        return max(self.fewest_elite, d + self.spare)


@dataclass(frozen=True)
class LadderRule:
    """When the method searches over orders of magnitude, and how.

    A start on the scale of its problem has draws whose log joints differ by less than a few hundred
    nats, because it is narrow. If they differ by far more, units are wrong by orders of magnitude.
    If the function is quadratic all the same, a few steps are enough, so the search waits for them.
    """

    wild: float = 1e4  # nats between the draws of one batch beyond which their scale is wrong
    # Standard deviation of what a regression leaves unexplained, relative to that range, beyond
    # which the function is no quadratic on this scale, so that the scale is too wide ...
    unexplained: float = 0.1
    # ... or largest change on the other side of the mean from its lowest value, likewise: an
    # exponential falls on one side. A quadratic changes on both, or its slope and its curvature are
    # equal by chance ...
    one_sided: float = 1e-3
    narrowing: float = 0.01  # ... and the factor by which the next one is narrower ...
    narrowest: float = 1e-10  # ... down to this, relative to the first: a function may be all steps
    patience: int = 4  # consecutive steps on a wrong scale that a rule limited, before a search
    better: float = 10.0  # nats that a search must gain, or the fit goes on where it was
    axes: int = 3  # axes along which to search, next to the direction of the last step
    factor: float = 10.0  # from one length to the next: an order of magnitude
    rungs: int = 12  # lengths on each ray: a start is a hundredth wide, so up to 1e9 of its units
    between: int = 7  # lengths of a further round, between the neighbours of the best
    rounds: int = 3  # of one search
    # Distance that a coordinate may move if its prior is proper, in prior standard deviations ...
    proper: float = 6.0
    # ... or if it is the logarithm or the logit of a parameter with an improper prior: e^50 = 5e21.
    constrained: float = 50.0


@dataclass(frozen=True)
class WidthRule:
    """When the start is too narrow in coordinates with a flat prior, and how far to look.

    It is used by `qbvi.regression.width`.
    """

    # Nats by which the log joint rises over one standard deviation of the start, below which a
    # coordinate is flat. A start on the scale of its problem is a hundredth wide, and begins about
    # one standard deviation from the mode: then it is a hundredth.
    flat: float = 1e-4
    # ... or this share of the steepest slope, or the size of cubic terms, if that is so of half of
    # the coordinates with a flat prior: these disturb small slopes. Of many, some are small by
    # chance.
    beside: float = 1e-3
    rounding: float = 1e-13  # slope, relative to the values, that is none but rounding
    factor: float = 10.0  # from one length to the next
    rungs: int = 10  # lengths: up to 1e9 units of the start
    # Nats for each flat coordinate by which the log joint may change: as much as at one standard
    # deviation from the mode of a Gaussian.
    change: float = 0.5

    def is_flat(self, slopes: Array, has_flat_prior: Array, cubic: float) -> Array:
        """Which coordinates are flat, by the sizes of their slopes (d,), and of cubic terms."""
        below = has_flat_prior & (slopes < max(self.flat, self.beside * float(slopes.max()), cubic))
        is_common = 2 * int(below.sum()) >= int(has_flat_prior.sum())
        return below if is_common else has_flat_prior & (slopes < self.flat)


@dataclass(frozen=True)
class ShrinkRule:
    """How narrow a start is made where its draws show no scale.

    It is used by `qbvi.regression.shrink`.
    """

    # Nats by which the log joint may change at one standard deviation of the start, in one
    # coordinate. A Gaussian changes by half a nat over its own.
    change: float = 5.0
    blind: float = 0.01  # factor of a step to where there is no likelihood
    # Least and largest factor of any other step. The change may grow with the step, with its
    # square, or exponentially: one step tells no more than that.
    smallest: float = 0.03
    largest: float = 0.5
    rounds: int = 10  # of steps
    rounding: float = 1e-13  # of a value, relative to it: changes must be larger


@dataclass(frozen=True)
class SurroundingsRule:
    """When a batch tells how wide the log joint is around a point.

    It is used by `qbvi.regression.surroundings`.
    """

    # Least mean curvature, in units of the batch's precision. With a smaller one the batch is much
    # narrower than the log joint, and in unequal directions the mean curvature is no guide.
    least_curvature: float = 0.25
    errors: float = 2.0  # standard errors by which the curvature must exceed that
    outside: float = 3.0  # standard deviations outside the typical distance up to which it covers

    def covers(self, square: Array, d: int) -> Array:
        """Whether points at these squared whitened distances may be draws of a batch."""
        return square < (d**0.5 + self.outside) ** 2


@dataclass(frozen=True)
class Rules:
    """All rules of the default method: the argument ``rules`` of `qbvi.Regression`."""

    trust_region: TrustRegion = field(default_factory=TrustRegion)
    gap: GapPrediction = field(default_factory=GapPrediction)
    weighting: Weighting = field(default_factory=Weighting)
    thinning: Thinning = field(default_factory=Thinning)
    search: VarianceSearch = field(default_factory=VarianceSearch)
    structure: StructureRule = field(default_factory=StructureRule)
    effort: Effort = field(default_factory=Effort)
    noise: NoiseCheck = field(default_factory=NoiseCheck)
    holdout: Holdout = field(default_factory=Holdout)
    credibility: Credibility = field(default_factory=Credibility)
    retreat: Retreat = field(default_factory=Retreat)
    escape: Escape = field(default_factory=Escape)
    look: LookRule = field(default_factory=LookRule)
    ladder: LadderRule = field(default_factory=LadderRule)
    width: WidthRule = field(default_factory=WidthRule)
    shrink: ShrinkRule = field(default_factory=ShrinkRule)
    surroundings: SurroundingsRule = field(default_factory=SurroundingsRule)
