r"""The rule book of the default method: every rule once, with its numbers and their reasons.

Each rule is a frozen dataclass. Its fields are the numbers, its methods the rule as array functions, so
that the methods on the host (`gaussian`, `mean_field`) and the compiled one (`ridge`) share them.
`Rules` holds one of each. ``benchmarks/rules.py`` halves and doubles every number in turn and prints
what that costs in evaluations and in honesty; a number whose comment names no other source was chosen
by that table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from scipy.special import gammaincinv

from qbvi.arrays import Array, array_namespace

__all__ = [
    "Credibility",
    "Effort",
    "Escape",
    "GapPrediction",
    "Holdout",
    "LastStep",
    "NoiseCheck",
    "Retreat",
    "Rules",
    "SearchPlan",
    "Thinning",
    "TrustRegion",
    "VarianceSearch",
    "Weighting",
]


class LastStep(NamedTuple):
    """The step that led to the present q: where it began, and what the regression predicted for it."""

    q: Array  # where it began
    bound: Array  # () lower bound there; minus infinity where there was no step yet
    bound_se: Array  # () its standard error
    gain: Array  # () predicted rise of the bound
    kl: Array  # () KL(new || old)
    is_restricted: Array  # () whether the trust region, or doubt, kept it shorter than the full step


@dataclass(frozen=True)
class TrustRegion:
    """Which steps are accepted, how far a step may go, and how the radius, a bound on KL(new || old), changes.

    The scheme is the textbook one (Nocedal and Wright, Numerical Optimization, algorithm 4.1): compare
    the rise of the bound with the predicted rise, shrink the radius where the ratio is poor, enlarge it
    where it is good and the radius was what limited the step. The difference is that both bounds are
    estimates, so every comparison allows for their standard errors.

    Examples
    --------
    A step that promised one nat and lost two is rejected:

    >>> import numpy as np
    >>> last = LastStep(*np.array([0.0, -10.0, 0.1, 1.0, 0.5, 1.0]))
    >>> bool(TrustRegion().rejects(last, np.float64(-12.0), np.float64(0.1)))
    True
    """

    first_radius: float = 2.0  # nats for each whitened coordinate
    noise: float = 2.0  # standard errors of the change of the bound that count as noise
    lost_share: float = 0.1  # of the predicted gain that an accepted step may lose
    lost_nats: float = 0.05  # and nats: below them a step back teaches nothing
    poor: float = 0.25  # ratio of actual to predicted gain below which the radius shrinks (Nocedal and Wright)
    good: float = 0.5  # ratio above which it grows
    shrinkage: float = 3.0  # of the radius after a poor step, relative to the KL of that step
    smallest: float = 0.1  # nats: radius after a poor step, at least
    growth: float = 3.0  # of the radius after a good step, relative to the KL of that step
    close: float = 0.1  # error of the ratio up to which the prediction was close ...
    close_growth: float = 9.0  # ... and the growth then: two ordinary ones at once
    exact: float = 0.02  # error of the ratio up to which the function is quadratic as far as one can see ...
    exact_growth: float = 100.0  # ... and the growth then: one step to anywhere
    free_growth: float = 4.0  # bound on the radius after a step that nothing restricted, relative to its KL
    free_radius: float = 1.0  # nats: that bound is at least this
    return_shrinkage: float = 4.0  # of the radius after a rejected step, relative to the KL of that step
    return_radius: float = 0.02  # nats: radius after a rejected step, at least
    near: float = 1.5  # mean squared whitened radius, relative to q's own, within which no doubt shortens a step
    softest: float = 1e-3  # smallest whitened stiffness of the log joint that a step of the mean believes
    curvature_errors: float = 5.0  # of C's eigenvalues, in standard errors, below which no precision may fall ...
    least_precision: float = 1e-3  # ... within these two factors of the present precision
    most_precision: float = 1 / 16
    product_precision: float = 1 / 64  # the same factor for Gaussians in a product, where C's error is not known
    halvings: int = 30  # of a bisection for the longest step: shares of the full step down to 1e-9

    def rejects(self, last: LastStep, bound: Array, bound_se: Array) -> Array:
        """Whether the bound fell by more than noise and the tolerated loss explain."""
        return bound < last.bound - self._noise(last, bound_se) - self.lost_share * last.gain - self.lost_nats

    def next_radius(self, radius: Array, last: LastStep, bound: Array, bound_se: Array) -> Array:
        """The radius after an accepted step: compare what the step brought with what was predicted."""
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
        """The radius after a rejected step: the same points, with less trust."""
        xp = array_namespace(last.kl)
        return xp.maximum(last.kl / self.return_shrinkage, self.return_radius * xp.ones_like(last.kl))

    def smallest_precision(self, curvature_sd: Array, d: int) -> Array:
        """Factor below which a step may not shrink a precision, given the standard error of a coefficient of C (d, d)."""
        xp = array_namespace(curvature_sd)
        error, one = self.curvature_errors * curvature_sd * d**0.5, xp.ones_like(curvature_sd)
        return xp.minimum(xp.maximum(error, self.least_precision * one), self.most_precision * one)

    def _noise(self, last: LastStep, bound_se: Array) -> Array:
        """What chance explains of a change of the bound; the errors of two bounds are taken as independent."""
        return self.noise * (last.bound_se**2 + bound_se**2) ** 0.5


@dataclass(frozen=True)
class GapPrediction:
    """The nats that are predicted to be missing after a step, and when the prediction counts.

    Examples
    --------
    Steps that each repeat half of the one before would go as far again:

    >>> import numpy as np
    >>> float(GapPrediction().still_to_come(np.float64(0.1), np.float64(0.5)))
    0.1
    """

    margin: float = 2.5  # on the expected cost of estimation errors: most fits are to end below the prediction
    noise_margin: float = 0.3  # the same for the part that is the function's own noise, whose cost is known well
    curvature: float = 2.0  # weight of the posterior variance of C, which the smoothness prior tends to understate
    settled_kl: float = 0.3  # nats: no step longer than this is the last
    kl_share: float = 0.25  # of the last step's KL that is expected to be missing after it
    most_repeated: float = 0.999  # share of the last step that a step may seem to repeat

    def still_to_come(self, kl: Array, repeated: Array) -> Array:
        """Nats to be gained if each further step repeats the same share of the one before: a geometric series.

        Where the function flattens out, one step sees no further than its own points.
        """
        xp = array_namespace(repeated)
        one = xp.ones_like(repeated)
        share = xp.minimum(xp.maximum(repeated, 0.0 * one), self.most_repeated * one)
        return kl * (share / (1 - share)) ** 2

    def margin_for(self, misfit: float) -> float:
        """The margin where a share ``misfit`` of the unexplained variance is not the function's noise."""
        return self.margin * (misfit + self.noise_margin * (1 - misfit))


def secant_share(repeated: Array) -> Array:
    """Share of the full step to take where it goes back on the last one: the zero between two opposite steps."""
    xp = array_namespace(repeated)
    return 1 / (1 + xp.maximum(-repeated, 0 * repeated))


@dataclass(frozen=True)
class Weighting:
    """How much a point counts in the regression of a q that it was not drawn from.

    Degree four is the last that the regression has. What it leaves out grows like the next even power of
    the radius, hence the fourth power of the squared radius for a variance.
    """

    usual: float = 0.99  # probability of the ball within which a draw of q is not far out
    far_power: int = 4  # of the squared radius, beyond that ball, by which the variance grows
    least_noise: float = 1e-3  # smallest noise variance of one point, relative to the mean of all

    def far(self, squares: Array, d: int) -> Array:
        """Growth of the variance with the squared whitened radius: (n,) -> (n,)."""
        xp = array_namespace(squares)
        return xp.maximum(squares / self.usual_square(d), xp.ones_like(squares)) ** self.far_power

    def usual_square(self, d: int) -> float:
        """Squared radius of the ball that holds a share `usual` of the standard normal draws."""
        return 2 * float(gammaincinv(d / 2, self.usual))


@dataclass(frozen=True)
class Effort:
    """How many points: of an iteration, of a regression, of a whole fit."""

    pairs: int = 1  # mirror pairs for each whitened coordinate: every direction is seen
    fewest: int = 4  # coordinates that a batch counts at least: four pairs tell a noise level
    growth: int = 6  # a batch is a sixth of the draws that count for the present q, once that is more
    points: int = 4  # for each coefficient, in one regression: the error of C falls as one over the points
    tol: float = 0.01  # nats for which `points` are enough; more are used for a smaller tolerance
    fewest_points: int = 400
    most_points: int = 6000  # a regression costs their cube
    noisy_points: int = 1500  # with noise, accuracy comes from averaging
    fresh: int = 10  # one fresh draw of the result for so many evaluations
    budget: tuple[int, int, int] = (200, 10, 20)  # evaluations: 200 (d + 10) + 20 d (d + 3) / 2

    def batch(self, d: int, n_effective: float) -> int:
        """Draws of one iteration."""
        block = 2 * self.pairs * max(d, self.fewest)
        return block * max(1, int(n_effective / (self.growth * block)))

    def most(self, n_coefficients: int, tol: float) -> int:
        """Points of one regression."""
        wanted = round(self.points * n_coefficients * max(1.0, self.tol / tol))
        return min(max(self.fewest_points, wanted), self.most_points)

    def default_budget(self, d: int) -> int:
        """Evaluations after which a fit that has not settled is given up."""
        each, start, coefficient = self.budget
        return each * (d + start) + coefficient * (d * (d + 3) // 2)


@dataclass(frozen=True)
class NoiseCheck:
    """Whether the function is noisy, told from points of the first batch that are evaluated twice."""

    repeated: int = 4  # points that are evaluated twice: two mirror pairs
    rounding: float = 4e-16  # relative error of a value without noise: two units in the last place
    rounding_margin: float = 16.0  # differences up to so many of these are rounding
    floor: float = 0.25  # of the measured variance is certain: four differences tell it to a factor of a few
    hidden: float = 100.0  # variance of the residuals, relative to the noise, below which noise hides the function
    widening: float = 10.0  # of the start where it does ...
    most_widenings: int = 5  # ... at most so often
    least_misfit: float = 1e-3  # share of the unexplained variance that is never taken for noise


@dataclass(frozen=True)
class Holdout:
    """Which points are predicted from all others, to choose the prior variances and to correct the regression.

    They are the batches drawn from a q most like the present one: what matters is the error under q.
    """

    batches: int = 40  # newest batches that are looked at
    pairs: int = 1  # mirror pairs for each whitened coordinate, at least
    fewest: int = 24  # points, at least
    unlike: float = 0.5  # symmetric KL above which a further batch is not taken once there are enough
    most: int = 2  # times the number wanted, beyond which none is taken
    spread: float = 3.0  # standard deviations of the length of pure noise that count as noise in a correction


@dataclass(frozen=True)
class Credibility:
    """When the regression's bound is believed: it must agree with the plain mean of the newest draws."""

    mean_errors: float = 5.0  # standard errors of the plain mean ...
    bound_errors: float = 3.0  # ... and of the regression's bound, together the tolerated difference
    fewest_pairs: int = 3  # below which the mean has no standard error worth the name


@dataclass(frozen=True)
class Retreat:
    """What to do where most values are not finite."""

    fewest_finite: float = 0.25  # share of a batch below which the step has left the support
    spare: int = 4  # points beyond the whitened coordinates that a regression needs
    rescale: float = 8.0  # of the first q, wider and narrower by turns, each time by one power more
    small_kl: float = 0.1  # nats: a step as short as this did not cause the failures
    narrowing: float = 0.25  # of a q that starts again around the best point


@dataclass(frozen=True)
class Escape:
    """How a product of families leaves a saddle: each factor alone is at its best, but two together are not."""

    push: float = 0.7  # length of the step off the saddle: a quarter of a nat in KL
    coupling: float = 1.0  # eigenvalue of the coupling from which on a saddle is possible
    worth: float = 10.0  # tolerances that the bound must be predicted to rise


@dataclass(frozen=True)
class Thinning:
    """Which of all points take part in the regression of the present q."""

    far: float = 1e5  # squared whitened radius, for each coordinate, beyond which a point teaches nothing
    enough: float = 2.0  # effective draws for each natural parameter from which on only a sample is used
    certain: float = 0.2  # density of q, relative to that of the past draws, above which a pair is always used


class SearchPlan(NamedTuple):
    """How hard to look for the prior variances: a try costs one factorisation."""

    tries: int = 24
    restart: bool = True  # also from two corners: all noise, and all smooth
    turn: int = 0  # which variance comes first
    leap: bool = False  # double the stride as long as that helps, rather than try the next variance


@dataclass(frozen=True)
class VarianceSearch:
    """The pattern search for the three prior variances of the regression, over their logarithms.

    Tuples are in the order of the variances: degree four against three, degree two, noise.
    """

    lowest: tuple[float, float, float] = (0.02, 1e-6, 1e-10)
    highest: tuple[float, float, float] = (2.0, 1e12, 1e4)
    corners: tuple[tuple[float, float, float], ...] = ((0.3, 1.0, 1.0), (0.3, 1e3, 1e-4))  # all noise; all smooth
    centre: tuple[float, float, float] = (0.3, 1e2, 1e-2)  # of a weak prior ...
    width: tuple[float, float, float] = (1.0, 6.0, 4.0)  # ... of the logarithms, in nats
    strides: tuple[float, float, float] = (0.7, 2.3, 2.3)  # a factor of two, and twice a factor of ten
    finest: float = 0.4  # stride below which a search is over
    improvement: float = 1e-3  # of minus twice the log predictive density that counts as one
    slack: float = 4.0  # of the same, within which a variance is not refuted: two standard deviations
    bolder: float = 10.0  # factor of the variance of degree two when looking for the largest not refuted ...
    boldest: int = 10  # ... at most so often
    nuggets: tuple[float, ...] = tuple(10.0**e for e in range(-9, -1))  # relative; the first bounds the condition
    tries: tuple[tuple[int, int], ...] = ((150, 24), (400, 14), (1500, 5))  # fewer where a try is dear: up to n points
    fewest_tries: int = 3
    pause: int = 500  # points from which on only every third iteration searches
    every: int = 3
    restart: int = 400  # points from which on only every second search starts from the corners too
    leap: int = 1500  # points from which on a stride doubles as long as that helps

    def plan(self, n: int, turn: int) -> SearchPlan:
        """How hard to look with n points in iteration ``turn``: a try costs n^3."""
        if n >= self.pause and turn % self.every:
            return SearchPlan(tries=0, restart=False)
        tries = next((tries for most, tries in self.tries if n < most), self.fewest_tries)
        restart = n < self.restart or turn % (2 * self.every) == 0
        return SearchPlan(tries, restart, turn // self.every, leap=n >= self.leap)


@dataclass(frozen=True)
class Rules:
    """All rules of the default method; `qbvi.Regression` and its siblings take one as ``rules``."""

    trust_region: TrustRegion = field(default_factory=TrustRegion)
    gap: GapPrediction = field(default_factory=GapPrediction)
    weighting: Weighting = field(default_factory=Weighting)
    thinning: Thinning = field(default_factory=Thinning)
    search: VarianceSearch = field(default_factory=VarianceSearch)
    effort: Effort = field(default_factory=Effort)
    noise: NoiseCheck = field(default_factory=NoiseCheck)
    holdout: Holdout = field(default_factory=Holdout)
    credibility: Credibility = field(default_factory=Credibility)
    retreat: Retreat = field(default_factory=Retreat)
    escape: Escape = field(default_factory=Escape)
