"""The numbers behind the free posterior, with their reasons."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Caution", "FreeRules", "Integration", "NeedleRule", "Rounds", "ShapeSearch", "SurveyRule", "WarpSearch"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Caution:
    """How far the surrogate is believed where it has few points.

    What is claimed is what was seen: the posterior uses the prediction minus half of its variance.
    Where to look is what may be: further points go where the prediction plus half of its variance
    has mass. That is the log of the expected density, if errors of the prediction are Gaussian.
    """

    # Most nats by which the density may be above the prediction, and above the base by more than
    # at any point so far: the region that is known grows step by step.
    most_hope: float = 3.0
    base: float = 1.5  # variance of the base, relative to that of the posterior so far
    # Depth, in nats below the best value, from which values count by their logarithm only: so low
    # a value says that there is no mass, and no more. The depth is `deep` plus `deep_each` d.
    deep: float = 10.0
    deep_each: float = 2.0
    blurred: float = 0.5  # share of that depth from which values may be missed ...
    blur: float = 0.1  # ... by so much for each nat below
    above: float = 2.0  # nats above the best value that may be claimed or hoped for
    # A place is remote if the nearest point is so many times the usual distance between points
    # away. A kernel of single coordinates may see mass there that no point confirms.
    remote: float = 3.0
    near: float = 0.5  # least usual distance, in standard deviations of the base
    lowered: float = 2.0  # nats by which the claim is lowered, for each square of the excess

    def depth(self, d: int) -> float:
        """Nats below the best value from which values count by their logarithm."""
        return self.deep + self.deep_each * d


@dataclass(frozen=True)
class ShapeSearch:
    """The search for the kernel: log length, log noise, log ratios of the parts of the kernel."""

    length: float = 1.5  # prior median of the length, for each root of the dimension ...
    length_width: float = 0.7  # ... and the standard deviation of its logarithm
    shortest: float = 0.3
    longest: float = 6.0  # for each root of the dimension
    noise: float = 1e-5  # prior median of the noise variance, relative to that of the function
    noise_width: float = 4.0
    least_noise: float = 1e-7  # keeps the factorisation stable
    share: float = -1.0  # prior mean of the log ratio of each simple part to the joint one
    share_width: float = 2.0
    widest_share: float = 5.0
    rough: float = 0.0  # prior mean of the log odds of rough functions of a coordinate ...
    rough_width: float = 2.0
    reach: float = 0.7  # ... and of their log length, relative to that of smooth ones
    reach_width: float = 1.0
    strides: tuple[float, ...] = (0.5, 2.0, 1.5, 1.5, 1.5, 0.7)
    finest: float = 0.15  # stride of the log length at which the search ends
    tries: int = 12  # after the starts
    more_tries: int = 8  # if functions may be rough
    # The log joint may jump if so many points for each dimension, and one more, are near the
    # posterior, and are predicted worse than the tolerance: a smooth function is known by then.
    known: int = 30
    improvement: float = 0.01
    again: float = 1.2  # factor by which the points must have grown before another search

    def start(self, d: int, is_rough: bool = False) -> Floats:
        """Prior medians of the numbers: (4,), or (6,) if functions may be rough."""
        start = [np.log(self.length * np.sqrt(d)), np.log(self.noise), self.share, self.share]
        return np.array([*start, self.rough, self.reach] if is_rough else start)

    def bounds(self, d: int, is_rough: bool = False) -> tuple[Floats, Floats]:
        """Least and largest values of the numbers."""
        low = [np.log(self.shortest), np.log(self.least_noise), -self.widest_share, -self.widest_share]
        high = [np.log(self.longest * np.sqrt(d)), 0.0, self.widest_share, self.widest_share]
        more = [self.widest_share, 3 * self.reach_width] if is_rough else []
        return np.array([*low, *(-limit for limit in more)]), np.array([*high, *more])

    def penalty(self, x: Floats, d: int, is_rough: bool = False) -> float:
        """Minus twice the log prior density of the numbers."""
        width = [self.length_width, self.noise_width, self.share_width, self.share_width]
        width += [self.rough_width, self.reach_width] if is_rough else []
        return float(np.sum(((x - self.start(d, is_rough)) / np.array(width)) ** 2))


@dataclass(frozen=True)
class Integration:
    """Importance sampling of the surrogate, which costs no evaluation of the user's function."""

    passes: int = 3  # adaptations of the proposal
    draws: int = 1000  # of one pass
    closing: int = 3000  # draws of the last pass, which gives the normalising constant ...
    enough: int = 500  # ... and is repeated, with further draws, if fewer of them are effective ...
    # ... or if so many are not, when the fit is about to end: then the log of the constant has a
    # standard error of 0.02, which should not be what keeps the fit from ending ...
    enough_to_close: int = 2000
    repeats: int = 3  # ... but not more often than this
    centres: int = 300  # components of the proposal
    fewest: int = 3  # effective draws for each dimension below which a proposal misses the density
    wide: float = 0.2  # share of the wide component, which covers what the others miss ...
    wide_scale: float = 1.3  # ... its scale, relative to the spread of the density ...
    wide_freedom: float = 5.0  # ... and its degrees of freedom
    near: float = 0.1  # nats from a Gaussian below which the moments are polished ...
    polishes: int = 2  # ... so often ...
    matched: int = 2048  # ... with so many draws
    compared: int = 100  # effective draws that compare two densities
    candidates: int = 8  # proposals for each draw that is resampled from them


@dataclass(frozen=True)
class Rounds:
    """The rounds of evaluations, and when they end."""

    # The rounds begin when the best Gaussian is so near, in nats ...
    begin: float = 1.0
    # ... or when the last step was so short, in nats, and the newest draws are on average so far
    # below the best value. Draws from a Gaussian posterior are half a nat below for each dimension.
    short: float = 2.0
    short_limited: float = 0.3  # instead of that, if a rule of the regression limited the step
    near: float = 3.0
    near_each: float = 1.0
    walled: float = 0.25  # share of points with zero likelihood from which no Gaussian is found ...
    walled_points: int = 4  # ... and rounds begin with so many finite points for each dimension
    fewest: int = 4  # draws of a round that check the posterior; as many more explore
    growth: int = 16  # a round has so many parts of the points that count, once that is more
    checked: int = 3  # rounds, at most, whose draws together estimate what is missing
    agreed: int = 2  # last surrogates that must agree, and rounds that must have confirmed them
    pool: int = 600  # candidates among which the exploring points are chosen
    most_points: int = 1200  # of one surrogate: it costs their cube
    # A surrogate is full if it has so many points, and this share of them where the density is
    # high: new ones take the place of others that were as useful. The fit ends after so many rounds
    # with a full one, none of which was better than the best by more than the errors of both.
    full: float = 0.9
    stuck: int = 8
    most_dimensions: int = 12  # beyond, no surrogate of the whole density pays, unless ...
    # ... it has a structure (`WarpSearch`). Then its integral must be known to within so many nats:
    # in many dimensions importance sampling may rest on a few draws.
    scattered: float = 0.1
    # Nats by which the expected mass is above the claimed one, relative to those that may be
    # missing: half of them are those by which the claim is below the prediction.
    hope: float = 2.0
    # Checking draws of a round from which, if they miss no more than the tolerance, half of the
    # other points are drawn from where mass may be: they measure that mass, which the surrogate can
    # only expect. Of errors and mass that it expects, no more counts than so many draws confirm,
    # and so many standard errors. So many draws must know the log evidence to within the tolerance.
    measured: int = 16
    confirming: int = 64
    errors: float = 2.0
    lost: float = 3.0  # nats missing in one round from which its surrogate is not believed
    # Consecutive rounds of this kind, without a better one before, after which the Gaussian of the
    # search counts as too poor to begin with: the search goes on where it ended.
    lost_rounds: int = 2
    far_below: float = 30.0  # nats below the mass of a mode from which a surrogate claims next to none
    gaussian: float = 0.01  # nats that a Gaussian may miss and still be the answer
    # Standard deviation of the function's noise from which the prior is not surveyed: valleys of a
    # nat on a line would be noise.
    noisy: float = 0.2
    # Nats that noise may leave missing: after so many evaluations for each dimension and two more
    # they grow with the evaluations, since half of them would take twice as many. Beyond this
    # limit, marginals may be off by a tenth.
    noise_nats: float = 0.1
    noise_evals: int = 100
    # Factor of the error that the surrogate expects of itself if noise leaves no other check of it:
    # the numbers of the kernel are estimates, too. With a factor of one, the missing nats of
    # 18 fits of the battery (half A, noisy) were 0.1 to 2.4 times those that were reported.
    noise_margin: float = 1.5

    def noise_tolerance(self, finest: float, d: int, n: int) -> float:
        """Nats that noise may leave missing after n evaluations: ``finest`` at first."""
        return min(finest * max(1.0, n / (self.noise_evals * (d + 2))), self.noise_nats)

    def checks(self, d: int, n_near: int) -> int:
        """Draws of a round that check the posterior, with so many points near it already."""
        return max(self.fewest, d, n_near // self.growth)


@dataclass(frozen=True)
class SurveyRule:
    """How many points a survey has, and what counts as a valley."""

    fewest: int = 6  # points spread over the prior, in addition to one for each dimension
    spreads: int = 2  # points are spread again if all of them are as the Gaussians predict ...
    further: int = 2  # ... so many times as many
    # Points from before the fit are spread over the prior if those farthest apart have so many of
    # its standard deviations, along each coordinate: half of what draws from it have.
    spread: float = 0.5
    # After each mode beyond the second they are spread once more, around the modes: standard
    # deviations of all modes together.
    around: float = 2.0
    # If the likelihood is zero at all points so far, more are spread, so many times as many each
    # time: 600 points in two dimensions before the fit gives up.
    blind: float = 1.5
    best: int = 1  # lines to the mode from the best of them ...
    surprising: int = 2  # ... and from those that exceed most what the Gaussians predict
    # Standard deviations of the prior from its centre beyond which a mode is at an end of it: an
    # eighth of a uniform prior. A mode reaches so many of its standard deviations from its mean.
    at_end: float = 1.2
    reach: float = 2.0
    inexact: float = 0.1  # error of that prediction, relative to its depth, that is no surprise
    # Median error of that prediction, likewise, below which the log joint is as good as quadratic.
    # A point that exceeds it by so many times this error is then on another hill.
    exact: float = 0.005
    unusual: float = 10.0
    poor: float = 0.5  # median error, likewise, above which lines lead from any points
    # Points on each line. More lines find more than more points on each: a valley or a hill that a
    # line crosses is wide, if the line is long.
    on_line: int = 3
    # Points that may be on other hills from which climbs begin, and the lengths of a climb, in
    # standard deviations of the prior for each root of the dimension.
    climbed: int = 1
    climbs: tuple[float, ...] = (0.1, 0.3, 0.9)
    explorations: int = 3  # iterations that look for other modes after the first one ...
    further_explorations: int = 1  # ... and after each later one
    # Another one follows if the rounds have settled after so many times the evaluations with which
    # they began. It costs a few percent of them, and the rounds have shown where no mode is.
    again: float = 2.0
    nats: float = 10.0  # depth below the best value from which only its order of magnitude counts
    # Heights that other modes are looked for, by turns: better modes, and as good ones. The unit is
    # that of t in `qbvi.free.explore`.
    heights: tuple[float, ...] = (0.3, 0.0)
    candidates: int = 1024  # places over the prior among which points are chosen, and half as many ...
    near_best: int = 20  # ... around the best points so far ...
    near_scale: float = 0.3  # ... at this distance, in standard deviations of the prior
    farthest: float = 3.0  # standard deviations of the prior within which they are
    most_regressed: int = 300  # points of that regression, the best ones: it costs their cube
    unprobed: int = 3  # iterations of a new path, after which each one draws a line to the mode ...
    on_probe: int = 3  # ... with so many points on it: it is given up if there is no valley
    valley: float = 1.0  # nats by which the log joint must fall, or bend upward, along a line ...
    shallow: float = 0.05  # ... and part of the nats from there to the mode, or of its rise
    behind: int = 6  # evaluations, likewise, after which a path far below the best point moves there
    # Steps without a rise of the first path after which it goes to a far better point, also one of
    # its own: values that differ by hundreds of nats may have bent its surrogate for good.
    stalled: int = 3
    hurry: int = 30  # evaluations, likewise, after which the first path may look at the prior
    unhurried: int = 15  # evaluations, likewise, that a further path may take until it no longer rises
    patience: int = 30  # evaluations, likewise, that a new start may take ...
    # ... and steps that must lead it to a mode that matters, each with the predicted gain of the
    # last one, or with the mean rise of the last two if that is less. If steps are limited,
    # predicted gains grow so many times, as the limit may.
    steps: float = 5.0
    growth: float = 3.0
    # Nats below the first mode down to which a later one is a rival. One between that and `worth`
    # is most often the end of a curved ridge, and one that is lower is another hill.
    rival: float = 5.0
    most_modes: int = 8  # that matter ...
    most_paths: int = 8  # ... and starts that may be tried for them
    most_resumed: int = 3  # times that the search may go on after rounds that refuted its modes
    apart: float = 3.0  # standard deviations between the means of two modes
    worth: float = 10.0  # nats below the best bound within which another mode matters
    # The same for the image of a mode under an exchange of roles. The prior at the best point of a
    # path tells its mass to a factor of a few: images with up to 9 % were 3.2 nats lower.
    role: float = 5.0
    # Share of the mass from which a part of the posterior that the rounds found is such a mode.
    counts: float = 0.02
    noisy: float = 5.0  # standard deviations of the noise that a better point must be better, too
    # A survey that finds nothing takes at most one part in so many of a budget, unless it waits ...
    budget: int = 3
    # ... and the search for all modes this share of it, if the rounds have not settled before: they
    # take about as many evaluations as the search, and without them there is no posterior.
    most: float = 0.5

    def size(self, d: int) -> int:
        """Points spread over the prior: an even number, half from each of two Sobol sequences."""
        return self.fewest + d + d % 2

    def least_budget(self, d: int) -> int:
        """Evaluations below which a survey waits until the posterior has settled.

        A survey that finds nothing has points spread over the prior, further ones or lines from
        them, and for each exploration a climb and a line.
        """
        spread = self.size(d) * (1 + self.further)
        return self.budget * (spread + self.explorations * self.climbed * (self.on_line + len(self.climbs)))


@dataclass(frozen=True)
class NeedleRule:
    """When needles are looked for, with how many evaluations, and how they are climbed."""

    # A surrogate that may miss so many nats is a reason to look, when the points are so many times
    # those with which the rounds began: rounds that can describe a posterior settle sooner. Another
    # look follows when the points have grown by this factor.
    open: float = 1.0
    late: float = 2.0
    again: float = 1.25
    share: float = 0.25  # evaluations of a look, relative to those before, if rounds do not settle ...
    # A posterior that has settled is looked at once, with this share, if a coordinate is as free as
    # in the prior, that is, has this part of its standard deviation: there is nothing on most.
    last_share: float = 0.15
    free: float = 0.5
    # The data say nothing of a coordinate whose mean and standard deviation are those of the prior,
    # to this part of the latter: a needle would be why it is in the model. For each of them at
    # least so many points are spread, also if the fit has settled at once.
    as_prior: float = 0.2
    fewest_spread: int = 30
    # All of them take part in each point. So more are needed only for the place of one signal, of
    # which so many coordinates count: effects that the data say little of have no needles.
    most_places: int = 2
    scanned: float = 0.6  # ... of which so many are spread, and the others climb
    fewest: int = 2  # climbs at least
    surprising: float = 1.0  # nats above what other points predict from which a point may be on a hill
    # Where the surrogate is nearly exact, so many of its errors are enough. The value need not be
    # above: the log joint falls towards a needle if an amplitude has the wrong sign.
    unusual: float = 5.0
    smallest: float = 0.2  # nats, which is a few times the tolerance ...
    expected: float = 0.25  # ... and part of the surprise below which a climb is back where it is known
    apart: float = 0.1  # least distance of two starts: prior deviations for each root of d
    # Differences that show the curvature first, in standard deviations of the prior: a needle of
    # this width fills a thousandth of the prior. Further ones, relative to the hill found so far.
    first: float = 0.003
    difference: float = 0.01
    along: tuple[float, ...] = (0.2, 1.0, 3.0)  # parts of a step that are tried
    longest: float = 1.0  # standard deviations of the prior that a step may have
    shorter: float = 0.1  # factor of the next step after one without a rise
    least_gain: float = 0.5  # nats that a step should gain: a climb ends after so many ...
    idle: int = 2  # ... in a row that do not, since one may only have taught its curvature
    most_steps: int = 25
    steps: float = 5.0  # steps like the last one that must lead a climb to the best value so far
    known: float = 2.0  # standard deviations from the end of an earlier climb where another one ends
    cliff: float = 10.0  # nats by which the log joint counts as lower where it is not finite

    def least_surprise(self, error: float) -> float:
        """Nats of surprise from which a climb begins, given the usual error of the surrogate."""
        return min(max(self.unusual * error, self.smallest), self.surprising)


@dataclass(frozen=True)
class WarpSearch:
    """The search for coordinates given which the others are Gaussian (`qbvi.free.warp`)."""

    # Functions of a coordinate u that are tried: with a rate of two exp(-2 u), as for effects whose
    # log scale is u, with a rate of one exp(-u) and exp(-2 u), with zero u and its square.
    rates: tuple[float, ...] = (0.0, 1.0, -1.0, 2.0, -2.0)
    most_given: int = 2
    # Dimensions up to which a posterior may take any shape if such coordinates are found. The
    # others are Gaussian then, and the surrogate has little to learn in them.
    most_dimensions: int = 16
    # Least fall of the misfit by one more such coordinate, for each point: half of it is the rise
    # of the log density of a value that is predicted from all others.
    gain: float = 1.0
    # Variances of functions of all coordinates, which the structure leaves out, that are tried ...
    others: tuple[float, ...] = (0.0, 1.0)
    length: float = 1.5  # ... and their length, for each root of the dimension
    of_s: float = 10.0  # variance of functions of s alone
    noises: tuple[float, ...] = (1e-8, 1e-4)  # relative variances of the noise, likewise
    most_points: int = 300  # the best ones, for the choice of s: each trial costs their cube ...
    most_judges: int = 800  # ... and for the decision whether there is a structure
    again: float = 1.5  # factor by which the points must have grown before another choice
    # Beyond the range of the points, extended by this part of it, b and P are constant.
    beyond: float = 0.5
    extreme: float = 0.02  # share of points at either end of s that are left out of b and P
    flattest: float = 1e-3  # least precision of v given s, where one is usual ...
    steps: int = 50  # ... which is examined at so many values of each s ...
    sides: int = 25  # ... and of several together: at the corners of their ranges, and between


@dataclass(frozen=True)
class FreeRules:
    """All rules of the free posterior: the argument ``rules`` of `qbvi.Free`."""

    caution: Caution = field(default_factory=Caution)
    search: ShapeSearch = field(default_factory=ShapeSearch)
    integration: Integration = field(default_factory=Integration)
    rounds: Rounds = field(default_factory=Rounds)
    survey: SurveyRule = field(default_factory=SurveyRule)
    warp: WarpSearch = field(default_factory=WarpSearch)
    needles: NeedleRule = field(default_factory=NeedleRule)
