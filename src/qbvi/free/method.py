r"""The default method in few dimensions: find a Gaussian, then let the posterior take any shape.

The first part is `qbvi.Regression`. When its Gaussian is nearly the best one, rounds begin. A round

1. fits a surrogate of the log joint to all points so far (`qbvi.free.surface`),
2. draws a few points from the surrogate's density, which check it,
3. chooses as many again where the surrogate may miss mass, which extend it,
4. compares the values at the first with what the surrogate predicted before it saw them.

With r the log joint minus the surrogate's log density at draws from that density,

.. math:: \mathrm{KL} = \log E e^r - E r, \quad \log p(y) = \log Z + \log E e^r

where Z is the integral of the surrogate's density. The fit ends when this divergence, the change by
the last two rounds and the surrogate's own error are all below the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import positive_number
from qbvi.arrays import Array
from qbvi.diagnostics import failures_depend_on_place
from qbvi.ending import Stop, StopKind
from qbvi.families.base import Family
from qbvi.families.gaussian import Gaussian
from qbvi.free.ascent import Ascents
from qbvi.free.base import Base
from qbvi.free.cells import Cells
from qbvi.free.check import Check, Shown, joined
from qbvi.free.density import FreeDensity, Member
from qbvi.free.fold import Copies
from qbvi.free.needles import Hill, Looks, Needles, climbs, outstanding, spread
from qbvi.free.pool import Pool, integrated, most_informative, near_gaussian_moments
from qbvi.free.proposal import Proposal
from qbvi.free.roles import exchanged_roles
from qbvi.free.rules import FreeRules
from qbvi.free.search import Mode, Search, SearchState
from qbvi.free.state import Confirmed, Current, Exploring, FreeState, Paused, Settled
from qbvi.free.surface import Coordinates, Points, Surface
from qbvi.free.symmetry import Group, LogPrior, Symmetry, exact_part, proposed
from qbvi.free.warp import Given, Sample, fitted, found
from qbvi.model import Model
from qbvi.noise import NO_NOISE, Noise
from qbvi.protocol import Algorithm, Found, Info, Known, Outcome, Twice, Values
from qbvi.regression.base import finite_or_zero
from qbvi.regression.gaussian import Regression
from qbvi.regression.look import PriorScale
from qbvi.regression.rules import Weighting
from qbvi.stopping import History, MissingBelow, Rule

__all__ = ["Free", "FreeState"]

Floats = NDArray[np.float64]

_SPARE = 8  # draws kept for each one that a round evaluates
_TEMPERINGS = 20  # halvings of log weights, at most
_TINY = 1e-6  # relative variance that keeps a covariance positive definite
_WIDER = 1.5  # variance of the first proposal, relative to the base


@dataclass(frozen=True)
class Full(Rule):
    """Stop because further points do not improve a surrogate that has as many as it can have."""

    points: int
    rounds: int

    def __call__(self, history: History) -> Stop:
        """Whatever the history."""
        return Stop.of(StopKind.FULL, points=self.points, rounds=self.rounds)


@dataclass(frozen=True)
class Free(Algorithm):
    """The default method in up to sixteen dimensions: a posterior of any shape.

    Above twelve, it is one only if most coordinates are found to be Gaussian given one or two
    others, as in a hierarchical model. Else the result is the Gaussian of the first method.

    Parameters
    ----------
    tol
        Stop when fewer nats than this are missing of the posterior.
    first
        The method that finds the Gaussian to begin with.
    prior
        Centre and spread of the prior, which is surveyed for other modes. `qbvi.fit` sets it.
    rules
        The numbers behind all decisions, see `qbvi.free.rules`.
    cells
        The coordinates that stand for whole numbers. `qbvi.fit` sets it.
    is_hurried
        Whether the budget is so small that the survey waits until the posterior has settled.
        `qbvi.fit` sets it.
    most_searched
        Evaluations after which other modes are looked for only when the posterior has settled.
        `qbvi.fit` sets it.
    symmetries
        Symmetries that the likelihood may have. `qbvi.fit` sets them.
    log_prior
        Log prior density of points (n, d), for symmetries that the prior does not have. `qbvi.fit`
        sets it.
    needs_structure
        Whether there are so many dimensions that a shape is free only where a structure is found.
        `qbvi.fit` sets it.

    Examples
    --------
    A curved posterior that no Gaussian follows:

    >>> import qbvi
    >>> banana = lambda x: -((x[0] ** 2 - x[1]) ** 2) - (x[0] - 1) ** 2 / 100
    >>> fit = qbvi.fit(banana, qbvi.Normal(0, 3, shape=2), seed=2)
    >>> fit.converged, bool(abs(fit.evidence + 2.26) < 0.1)
    (True, True)
    """

    tol: float = 0.05
    first: Regression = field(default_factory=Regression, repr=False)
    prior: PriorScale | None = field(default=None, repr=False)
    rules: FreeRules = field(default_factory=FreeRules, repr=False)
    cells: Cells = field(default_factory=Cells, repr=False)
    is_hurried: bool = field(default=False, repr=False)
    most_searched: float = field(default=math.inf, repr=False)
    symmetries: tuple[Symmetry, ...] = field(default=(), repr=False)
    log_prior: LogPrior | None = field(default=None, repr=False)
    needs_structure: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        positive_number("tol", self.tol)

    @property
    def stop(self) -> tuple[Rule, ...]:
        """Stop when what is missing is below the tolerance."""
        return (MissingBelow(self.tol),)

    def stop_at(self, state: FreeState) -> tuple[Rule, ...]:
        """With noise, a larger tolerance. As the first part, as long as a structure is needed."""
        if self._is_first_alone(state):
            return self.first.stop_at(state.search.path)
        rules = self.rules.rounds
        full = (Full(rules.most_points, rules.stuck),) if state.n_stuck >= rules.stuck else ()
        return (MissingBelow(self._tolerance(state)), *full)

    @property
    def window(self) -> int:
        """As the first part."""
        return self.first.window

    @property
    def keep(self) -> str:
        """The last posterior is returned."""
        return "last"

    def fits(self, family: Family) -> bool:
        """One Gaussian over few coordinates, to begin with."""
        return isinstance(family, Gaussian) and family.dim <= self.rules.warp.most_dimensions

    def for_model(self, model: Model) -> Self:
        """As the first part."""
        needs_structure = model.dim > self.rules.rounds.most_dimensions
        return replace(self, first=self.first.for_model(model), cells=Cells.of(model), needs_structure=needs_structure)

    def looking_at(self, model: Model, max_evals: int | None, *, has_start: bool = False) -> Self:
        """The method that surveys this model's prior for other modes, also with a start."""
        if self.needs_structure:  # a survey of so many dimensions finds nothing
            return replace(self, first=self.first.looking_at(model, max_evals, has_start=has_start))
        prior = PriorScale.of(model)
        rule, budget = self.rules.survey, math.inf if max_evals is None else max_evals
        is_hurried = prior is not None and budget < rule.least_budget(model.dim)
        # Every mode of a periodic parameter has copies, which are no other modes.
        prior = None if np.isfinite(model.periods).any() else prior
        symmetries = () if prior is None or self.cells else _different(*proposed(model), *exchanged_roles(model))
        first = self.first if has_start else self.first.looking_at(model, max_evals)
        is_kept = all(symmetry.keeps_prior for symmetry in symmetries)
        log_prior = None if is_kept else model.log_prior
        return replace(
            self,
            first=first,
            prior=prior,
            is_hurried=is_hurried,
            most_searched=rule.most * budget,
            symmetries=symmetries,
            log_prior=log_prior,
        )

    def is_exploring(self, state: FreeState) -> bool:
        """Whether the next points are those of a survey, or of a look at the prior."""
        is_searching = state.current is None and self._search.is_exploring(state.search)
        return is_searching or state.looks.now is not None

    def fresh_draws(self, n_evals: int) -> int:
        """As the first part, if the fit ends before the rounds begin."""
        return self.first.fresh_draws(n_evals)

    def first_draws(self, n: int) -> int:
        """As the first part."""
        return self.first.first_draws(n)

    def reserved_draws(self, n_evals: int) -> int:
        """None if there are rounds for sure, which check themselves."""
        return self.first.reserved_draws(n_evals) if self.needs_structure else 0

    def start_scale(self, scale: Array) -> Array:
        """As the first part."""
        return self.first.start_scale(scale)

    def default_budget(self, d: int) -> int:
        """As the first part."""
        return self.first.default_budget(d)

    def notes(self, state: FreeState) -> tuple[str, ...]:
        """As the first part; whether noise forbids a free shape; whether there was no survey."""
        notes = self.first.notes(state.search.path)
        if self._is_noisy(state.search):
            notes = (*notes, "with so much noise other modes are not looked for")
        if self.needs_structure and state.current is not None:
            notes = (*notes, "in so many dimensions other modes are not looked for")
        if state.search.modes and not (state.best or state.settled or self.needs_structure):
            notes = (*notes, "the fit ended before any draws had checked its result")
        if state.search.is_sample:
            notes = (*notes, "the earlier evaluations are a sample of the posterior, so its modes are theirs")
        if state.search.survey is not None and not self.needs_structure and not self._is_searched(state):
            so_far = "the posterior of the known modes has settled, but " if state.settled else ""
            notes = (*notes, f"{so_far}the fit ended before it had looked everywhere for other modes")
        if self._search.is_full(state.search):
            n = len(self._search.worthy(state.search))
            notes = (*notes, f"the search for modes ended when it had found {n} of them: there may be more")
        if which := state.search.symmetries:
            notes = (*notes, *_names_of_changes([self.symmetries[i] for i in which]))
        return notes

    def close(self) -> None:
        """Free what the first part has kept."""
        self.first.close()

    def repeated_draws(self, state: FreeState, n: int) -> int:
        """As the first part."""
        return self.first.repeated_draws(state.search.path, n)

    def noise_at(self, family: Any, state: FreeState, q: Array, theta: Array, again: Twice | None = None) -> Noise:
        """As the first part."""
        return self.first.noise_at(family, state.search.path, q, theta, again)

    def log_density_around(self, family: Any, state: FreeState, theta: Array) -> Array:
        """As the first part."""
        return self.first.log_density_around(family, state.search.path, theta)

    def notes_on_family(self, model: Model, family: Any, state: FreeState, q: Array) -> tuple[str, ...]:
        """As the first part, if the result is its Gaussian."""
        return self.first.notes_on_family(model, family, state.search.path, q) if self._is_first_alone(state) else ()

    def init(self, family: Any, q: Array) -> FreeState:
        """State before the first iteration."""
        none = np.empty(0)
        search = self._search.init(family, q)._replace(is_postponed=self.is_hurried)
        return FreeState(np.asarray(q), search, np.empty((0, family.dim)), none, none, None, ())

    @property
    def uses_earlier(self) -> bool:
        """The search and the surrogate use all points."""
        return True

    def knowing(self, family: Any, state: FreeState, known: Known) -> FreeState:
        """Add earlier points to those of the search and of the surrogate.

        If they are those of a converged fit, the rounds begin at once.
        """
        state = state._replace(
            search=self._search.knowing(family, state.search, known),
            theta=np.concatenate([state.theta, known.theta]),
            y=np.concatenate([state.y, np.where(np.isneginf(known.log_joint), np.nan, known.log_joint)]),
            noise=np.concatenate([state.noise, np.asarray(known.noise_sd) ** 2]),
        )
        if not known.components or self.needs_structure:
            return state
        return self._renewed(family, state._replace(n_began=len(state.y)), self._search.base(state.search))

    def ask(self, family: Any, state: FreeState, rng: np.random.Generator) -> Array:
        """Points of the first part, or draws that check the posterior and points that extend it."""
        if state.looks.now is not None and self.prior is not None:
            return state.looks.now.ask(self.prior, self.rules.needles)
        if state.current is None:
            return self._search.ask(family, state.search, rng)
        n = len(state.current.exploring.points)
        some = rng.choice(len(state.current.draws), size=n, replace=False)
        draws, again = state.current.draws[some], self.repeated_draws(state, n)
        return np.concatenate([draws, state.current.exploring.points[: n - again], draws[:again]])

    def tell(self, family: Any, eta: Array, state: FreeState, theta: Array, values: Values) -> tuple[FreeState, Info]:
        """Make one iteration of the first part, or one round."""
        is_known = values.ok | _is_zero(values)
        y = np.where(is_known, finite_or_zero(values), np.nan)
        state = state._replace(
            theta=np.concatenate([state.theta, theta]),
            y=np.concatenate([state.y, y]),
            noise=np.concatenate([state.noise, np.asarray(values.noise_sd) ** 2]),
        )
        if state.looks.now is not None:
            return self._looked(family, state, state.looks.now, np.asarray(theta), y)
        if state.current is not None:
            return self._round(family, state, np.asarray(theta), y)
        return self._searched(family, eta, state, theta, values)

    def _searched(
        self, family: Any, eta: Array, state: FreeState, theta: Array, values: Values
    ) -> tuple[FreeState, Info]:
        """Make one iteration of the search for Gaussians, and begin rounds if it is over."""
        search, info = self._search.tell(family, eta, state.search, theta, values)
        # Lines and climbs would follow the noise, or leave no evaluations for the posterior itself.
        if self._is_noisy(search):
            search = self._search.unsurveyed(search)
        elif self._is_too_long(state, search):
            search = self._search.postponed(search)
        state = state._replace(q=np.asarray(search.path.q), search=search)
        if self.needs_structure:
            state = self._with_structure(family, state) if search.is_over else state
            return state, info if state.current is None else info._replace(gap=np.float64(math.inf))
        settled = state.settled
        if search.is_over and settled is not None and settled.holds(search):
            state = settled.restored(state)._replace(settled=None)
            state, gap = self._with_last_look(state, self._gap(state))
            return state, info._replace(bound=np.float64(settled.best.bound), gap=np.float64(gap))
        if search.is_over:
            state = self._begun(family, state)
        elif self._is_walled(family, state):
            state = self._renewed(family, state._replace(n_began=len(state.y)), self._spread(state))
        return state, info._replace(gap=np.float64(math.inf))

    def _begun(self, family: Any, state: FreeState) -> FreeState:
        """The first round with the modes of the search, or the next one if there is no new mode."""
        paused, search = state.paused, state.search
        if paused is not None and len(search.modes) <= paused.n_modes:
            state = state._replace(current=paused.current, paused=None)
            return self._renewed(family, state, paused.current.base)
        if paused is not None:
            state = state._replace(best=None, checks=(), paused=None)
        return self._renewed(family, state._replace(n_began=len(state.y)), self._search.base(search))

    def _is_first_alone(self, state: FreeState) -> bool:
        """Whether the first method is all there is, as long as no structure is found."""
        return self.needs_structure and state.current is None

    def _with_structure(self, family: Any, state: FreeState) -> FreeState:
        """Begin the rounds if a structure is found; else the first method goes on."""
        n = len(state.y)
        on = state._replace(search=state.search._replace(is_over=False, modes=()), n_tried=n)
        if n < self.rules.warp.again * state.n_tried or state.search.path.noise or self.cells:
            return on._replace(n_tried=state.n_tried)
        base = self._search.base(state.search)
        if not self._given(self._points(state)[0], base):
            return on
        return self._kept(self._renewed(family, state, base), on)

    def _kept(self, state: FreeState, otherwise: FreeState) -> FreeState:
        """The state, unless its surrogate has no structure and needs one."""
        has_none = state.current is not None and not state.current.density.n_given
        return otherwise if self.needs_structure and has_none else state

    def outcome(self, family: Any, state: FreeState) -> Outcome | None:
        """The posterior that its own draws confirmed best; None before the first mode.

        It is a Gaussian if that misses next to nothing, or if the rounds found nothing better.
        """
        if state.best is None and state.settled is not None:
            settled, bounds = state.settled, state.search.bounds
            # Without a mode there are walls, of which the bounds of a path know nothing.
            if settled.n_modes and max(bounds, default=-math.inf) > settled.best.bound + self.rules.survey.valley:
                return None
            state = settled.restored(state)
        if state.best is None:
            return self._unconfirmed(family, state)
        current, check = state.best.current, state.best.check
        is_settled = self._gap(state) < self._tolerance(state)
        shown = Shown.by(self._valid(state) if is_settled else (check,))
        evidence, error = self._evidence(current, shown)
        missing, missing_se = self._missing(current, shown)
        modes = state.search.modes
        # With noise, the bound of a Gaussian may be lucky.
        doubt = self.rules.rounds.errors * error if check.noise.mean else 0.0
        if modes and not is_settled and not evidence - missing + doubt >= max(mode.bound for mode in modes):
            return self._found_first(family, max(modes, key=lambda mode: mode.bound))
        density: Any = current.density
        q = current.member
        if not self.cells and current.gaussian < min(self.rules.rounds.gaussian, self.tol - missing):
            density, q, missing = family, current.nearest, missing + current.gaussian
        return Outcome(
            density=density,
            q=q,
            elbo=evidence - missing,
            elbo_se=math.hypot(shown.bound_se, current.sampling_error),
            evidence=evidence,
            evidence_se=error,
            missing=missing,
            missing_se=max(missing_se, error),
            n_draws=shown.n,
            failed=self._failed(family, state),
            modes=self._found(state, current.base.weights),
        )

    def _unconfirmed(self, family: Any, state: FreeState) -> Outcome | None:
        """The posterior by all points so far, if the fit ends before draws have checked it.

        The present Gaussian, on the way to another mode, may be anywhere. None before the first
        mode, or if that Gaussian is already above all modes. The surrogate counts if it expects to
        be wrong by less than a Gaussian would be.
        """
        search, modes = state.search, state.search.modes
        if self.needs_structure or not modes:
            return None
        best = max(modes, key=lambda mode: mode.bound)
        if state.current is None:
            if search.bounds and search.bounds[-1] > best.expected:
                return None
            state = self._renewed(family, state, self._search.base(search))
        current = state.current
        assert current is not None
        shares = current.error, current.hope / self.rules.rounds.hope
        evidence = float(current.density.unpack(current.member).log_z) + current.error
        if not max(shares) < current.gaussian or evidence < best.bound:
            return self._found_first(family, best)
        doubt = math.hypot(*shares, current.log_z_error)
        return Outcome(
            density=current.density,
            q=current.member,
            elbo=evidence - current.error,
            elbo_se=doubt,
            evidence=evidence,
            evidence_se=doubt,
            missing=current.error,
            missing_se=doubt,
            n_draws=0,
            failed=self._failed(family, state),
            modes=self._found(state, current.base.weights),
        )

    def _evidence(self, current: Current, shown: Shown, errors: float = 1.0, hopes: float = 1.0) -> tuple[float, float]:
        """The log evidence, and its error: by a surrogate, and by draws.

        Of the nats that the surrogate expects, shares count, as in `_doubt`.

        The surrogate knows all points, but not its own mistakes; draws are few, but right on
        average. Each counts by one over its variance. Both may miss the same mass, so the error is
        that of their sum, unless most of it is noise.
        """
        hope = hopes * min(current.hope, 2.0) / self.rules.rounds.hope
        nats = min(current.change, 1.0), errors * min(current.error, 1.0), hope
        open_nats = math.sqrt(current.log_z_error**2 + sum(part**2 for part in nats))
        # The claim is the prediction less half of its variance. The evidence needs no such caution.
        claimed = float(current.density.unpack(current.member).log_z) + min(current.error, 1.0)
        evidence, error = joined((shown.evidence, shown.evidence_se), (claimed, open_nats))
        return evidence, error if shown.is_noisy else math.hypot(shown.evidence_se, open_nats)

    def _missing(self, current: Current, shown: Shown) -> tuple[float, float]:
        """KL from the posterior to the truth, and its error.

        Without noise it is by draws. With noise these tell little, and what the surrogate expects
        of itself, which may be wrong by as much, takes part.
        """
        if not shown.is_noisy:
            return shown.missing, shown.missing_se
        missing, error = joined((shown.missing - shown.lost, shown.missing_se), (current.error, current.error))
        return missing + shown.lost, error

    def _failed(self, family: Any, state: FreeState) -> float:
        """Share of points near the posterior where the function fails; zero if at random."""
        z = np.asarray(family.whiten(state.q, state.theta))
        near = np.sum(z**2, axis=1) < Weighting().usual_square(family.dim)
        failed = np.isnan(state.y[near])
        if not failed.any() or not failures_depend_on_place(z[near], state.theta[near], failed):
            return 0.0
        return float(failed.mean())

    def _found_first(self, family: Any, mode: Mode) -> Outcome:
        """The Gaussian that the search found."""
        q = np.asarray(family.from_moments(mode.mean, mode.cov))
        return Outcome(family, q, mode.bound, math.nan, math.nan, math.inf, math.nan, math.inf, n_draws=0)

    def _found(self, state: FreeState, weights: Floats) -> tuple[Found, ...]:
        """The modes of the search, with the weights of their parts of the base."""
        worthy = self._search.worthy(state.search)
        if len(worthy) != len(weights):  # the rounds began without a mode
            return ()
        shares = [
            next((w for w, other in zip(weights, worthy, strict=True) if other is mode), 0.0)
            for mode in state.search.modes
        ]
        found = zip(state.search.modes, shares, strict=True)
        return tuple(Found(mode.mean, mode.bound, float(share), mode.n_evals) for mode, share in found)

    @property
    def _search(self) -> Search:
        return Search(self.first, self.prior, self.rules, self.cells, self.symmetries, self.log_prior)

    def _is_searched(self, state: FreeState) -> bool:
        """Whether the search for other modes is over."""
        return state.search.is_over and not state.search.is_postponed

    def _is_too_long(self, state: FreeState, search: SearchState) -> bool:
        """Whether the rounds should begin before other modes are looked for further."""
        is_looking = search.survey is not None and not (search.is_over or search.is_postponed)
        return is_looking and state.settled is None and bool(search.modes) and len(state.y) > self.most_searched

    def _is_noisy(self, search: SearchState) -> bool:
        """Whether noise may hide other modes, and what is missing of the posterior."""
        return math.sqrt(search.path.most_noise) > self.rules.rounds.noisy

    def _tolerance(self, state: FreeState) -> float:
        """Nats that may be missing: with noise, what it leaves at a reasonable cost."""
        n, d = state.theta.shape
        return max(self.tol, self.rules.rounds.noise_tolerance(state.search.path.finest, d, n))

    def _is_walled(self, family: Any, state: FreeState) -> bool:
        """Whether so much of the neighbourhood has zero likelihood that no Gaussian fits."""
        rule, d = self.rules.rounds, state.theta.shape[1]
        is_known = np.isfinite(state.y).sum() >= rule.walled_points * (d + 1)
        is_known &= np.isfinite(state.search.path.store.y).any()  # the survey may know more than the path
        near = np.sum(np.asarray(family.whiten(state.q, state.theta)) ** 2, axis=1) < Weighting().usual_square(d)
        if not is_known or self._search.is_exploring(state.search) or not near.any():
            return False
        return bool(np.isneginf(state.y[near]).mean() > rule.walled)

    def _spread(self, state: FreeState) -> Base:
        """A Gaussian around the finite points, by importance weights that are tempered if few."""
        store = state.search.path.store
        finite = np.isfinite(store.y)
        u, log_w = store.theta[finite], (store.y - store.log_mixture)[finite]
        for _ in range(_TEMPERINGS):
            w = np.exp(log_w - log_w.max())
            w /= w.sum()
            if np.sum(w**2) * self.rules.rounds.walled_points * u.shape[1] < 1:
                break
            log_w = log_w / 2
        mean = w @ u
        return Base.one(mean, ((u - mean).T * w) @ (u - mean) + _TINY * np.diag(u.var(axis=0)))

    def _round(self, family: Any, state: FreeState, theta: Floats, y: Floats) -> tuple[FreeState, Info]:
        current = state.current
        assert current is not None
        if again := self.repeated_draws(state, len(current.exploring.points)):
            twice = Twice(theta[:again], y[:again], y[-again:])
            path = self.first.measuring(family, state.search.path, state.q, twice)
            state = state._replace(search=state.search._replace(path=path))
        check = self._check(state, current, theta, y)
        state = state._replace(checks=(*state.checks, check)[-self.rules.rounds.checked :])
        shown = Shown.by((check,))
        bound, se = shown.bound, math.hypot(shown.bound_se, check.log_z_error)
        state = self._compared(state, Confirmed(current, check, bound, se))
        is_lost = self._is_void(state, check) or self._is_lost(state, shown)
        state = state._replace(n_lost=state.n_lost + 1 if is_lost else 0)
        state = self._advanced(family, state, (theta, y), bound - se, is_lost=is_lost)
        gap = self._gap(state)
        if state.current is not None and gap < self._tolerance(state):
            state, gap = self._settled(family, state, Confirmed(state.current, check, bound, se), gap)
        elif self._is_open(state):
            rule = self.rules.needles
            state = self._looking(state, round(rule.scanned * rule.share * len(state.y)), is_wide=True)
        bound = bound if shown.n_finite else math.nan
        # If the search goes on, these draws are not from the Gaussian that is the result meanwhile.
        h = shown.h if state.current is not None else np.empty(0)
        return state, Info(np.float64(bound), h, np.float64(gap), math.nan, 1.0, True, False)

    def _settled(self, family: Any, state: FreeState, best: Confirmed, gap: float) -> tuple[FreeState, float]:
        """The state that looks for other modes once more, and the gap: if it does not, it ends."""
        state = state._replace(best=best)
        if (search := self._searching(family, state)) is not None:
            settled = Settled(best, state.checks, state.q, len(search.modes), search.symmetries)
            return state._replace(search=search, current=None, checks=(), best=None, settled=settled), math.inf
        return self._with_last_look(state, gap)

    def _with_last_look(self, state: FreeState, gap: float) -> tuple[FreeState, float]:
        """The settled state that looks for needles before it ends, if it should, and the gap."""
        n, is_fine = self._last_points(state)
        if not n:
            return state, gap
        return self._looking(state, n, is_wide=False, is_fine=is_fine), math.inf

    def _advanced(
        self, family: Any, state: FreeState, newest: tuple[Floats, Floats], bound: float, *, is_lost: bool
    ) -> FreeState:
        """The state with the next surrogate, or the search if rounds left their mode behind.

        In the coordinates of a structure they arrive sooner. So that is sought first, and if there
        is one already, it is fitted again.
        """
        outgrown, current = self._outgrown(family, state, bound), state.current
        if outgrown is None or current is None:
            return self._continued(family, state, newest, is_lost=is_lost)
        if current.density.n_given:
            state = state._replace(current=current._replace(n_searched=0))
            return self._continued(family, state, newest, is_lost=is_lost)
        member = current.density.unpack(current.member)
        anew = self._renewed(family, state._replace(current=None), Base.one(member.mean, member.cov))
        return anew if anew.current is not None and anew.current.density.n_given else outgrown

    def _outgrown(self, family: Any, state: FreeState, bound: float) -> FreeState | None:
        """The search that goes on where the rounds are; None if they are near the posterior.

        Rounds extend the posterior by a few nats each. If their ``bound`` is far above that of the
        Gaussian which they began with, and they still expect to be far off, the best Gaussian is
        elsewhere, and a path leads there sooner.
        """
        rule, current, modes = self.rules.rounds, state.current, state.search.modes
        assert current is not None
        is_far = self._doubt(current) > rule.begin and not self.needs_structure
        if not modes or not is_far or not bound > max(mode.bound for mode in modes) + rule.lost:
            return None
        n, best = state.n_began, state.best
        search = self._search.outgrown(family, state.search, state.q, state.theta[n:], state.y[n:])
        if search is None or best is None:
            return None
        settled = Settled(best, state.checks, state.q, -1, search.symmetries)
        return state._replace(search=search, current=None, checks=(), best=None, n_lost=0, settled=settled)

    def _check(self, state: FreeState, current: Current, theta: Floats, y: Floats) -> Check:
        """What the log joints y of a round show at its draws, and at those of what may be."""
        n, log_z = len(current.exploring.points), current.density.unpack(current.member).log_z
        m = n + len(current.exploring.counts)
        seen = current.density.surface(current.member)(theta[:m])
        doubts = current.error, current.change, current.hope, current.log_z_error
        hoped = np.repeat(y[n:m] - seen.high[n:] + current.exploring.log_z, current.exploring.counts)
        noise, error = self._noise_at_draws(state, theta[:n]), current.exploring.log_z_error
        return Check(y[:n] - seen.low[:n], log_z, *doubts, noise, hoped, error)

    def _searching(self, family: Any, state: FreeState) -> SearchState | None:
        """The search that goes on: it was postponed, is old, or did not know what rounds found."""
        assert state.current is not None
        if state.search.is_postponed:
            return self._search.continued(state.search)
        is_later = len(state.y) > self.rules.survey.again * state.n_began and not self.needs_structure
        if is_later and (exploring := self._search.exploring(state.search)) is not None:
            return exploring
        current, member = state.current, state.current.density.unpack(state.current.member)
        if self.needs_structure or self._is_noisy(state.search):
            return None
        parts = [(1.0, member.mean, member.cov)]
        if len(current.base.weights) > 1:
            parts = list(zip(current.base.weights, current.base.means, current.base.covs, strict=True))
        for weight, mean, cov in parts:
            if weight < self.rules.survey.counts:
                continue
            mode = Mode(mean, cov, float(member.log_z + np.log(weight)), 0.0, -math.inf, 1)
            search = self._search.reopened(family, state.search, mode, state.theta, state.y)
            if search is not None:
                return search
        return None

    def _is_open(self, state: FreeState) -> bool:
        """Whether the rounds do not come near an end, so that needles may be what they miss."""
        rule, d = self.rules.needles, state.theta.shape[1]
        if state.current is None or not self._may_look(state):
            return False
        is_due = len(state.y) > max(rule.late * state.n_began, rule.again * state.looks.n_evals)
        is_due &= rule.share * len(state.y) > 2 * rule.fewest * (d + len(rule.along))
        return is_due and self._doubt(state.current) > rule.open

    def _last_points(self, state: FreeState) -> tuple[int, bool]:
        """Points to spread in a last look of a fit that has settled, and whether it is fine.

        Without such a look there are none. It is fine if the data say nothing of a coordinate.

        There may be a needle along a coordinate that is as free as in the prior, if the log joint
        is not known to be quadratic: then the Gaussian would be the result.
        """
        rule, current = self.rules.needles, state.current
        if current is None or self.prior is None or not self._may_look(state):
            return 0, False
        several, member = len(current.base.weights) > 1, current.density.unpack(current.member)
        covs = current.base.covs if several else member.cov[None]
        # Of a mode, not of all together.
        ratio = np.max(np.sqrt(np.diagonal(covs, axis1=1, axis2=2)), axis=0) / np.asarray(self.prior.scale)
        shift = np.abs(member.mean - np.asarray(self.prior.loc)) / np.asarray(self.prior.scale)
        n_untold = int(np.count_nonzero(np.maximum(shift, np.abs(ratio - 1)) < rule.as_prior))
        is_late = len(state.y) <= (1 + rule.last_share) * state.looks.n_evals
        is_quadratic = current.gaussian < self.rules.rounds.gaussian and not n_untold
        if is_late or is_quadratic or not np.any(ratio > rule.free):
            return 0, False
        n = max(
            round(rule.scanned * rule.last_share * len(state.y)), rule.fewest_spread * min(n_untold, rule.most_places)
        )
        return n, n_untold > 0

    def _may_look(self, state: FreeState) -> bool:
        """Whether needles can be found: climbs would follow noise, and steps of whole numbers."""
        is_told = state.search.is_sample or not state.search.modes
        return not (self.prior is None or self.cells or self.needs_structure or state.search.path.noise or is_told)

    def _looking(self, state: FreeState, n: int, *, is_wide: bool, is_fine: bool = False) -> FreeState:
        """The state that looks for needles next: it spreads n points, and then climbs.

        If it is not wide, what is known in the posterior is as good as known everywhere. If it is
        fine, small surprises count.
        """
        assert state.current is not None
        assert self.prior is not None
        rule, current, d = self.rules.needles, state.current, state.theta.shape[1]
        n_climbs = max(rule.fewest, int(n * (1 / rule.scanned - 1) / (3 * d + 2 * len(rule.along))))
        sd = np.sqrt(np.diag(current.density.unpack(current.member).cov))
        points = spread(current.draws, sd, self.prior, n, np.random.default_rng(len(state.y)), is_wide=is_wide)
        return state._replace(looks=state.looks._replace(now=Needles(points, None, n_climbs, is_fine)))

    def _looked(self, family: Any, state: FreeState, now: Needles, theta: Floats, y: Floats) -> tuple[FreeState, Info]:
        """Make one iteration of a look for needles."""
        looks, prior = state.looks, self.prior
        assert prior is not None
        if now.climbs is None:
            n = now.n_before + len(theta)
            theta, y = state.theta[-n:], state.y[-n:]
            mirrored = self._mirrored(state, theta, y) if now.is_fine and not now.n_before else theta[:0]
            if len(mirrored):
                now = now._replace(points=mirrored, n_before=n)
                return state._replace(looks=looks._replace(now=now)), _silent(state)
            begun = self._climbs(state, theta, y)
            starts = tuple(np.asarray(prior.loc) + np.asarray(prior.scale) * begun.z)
            now, looks = now._replace(climbs=begun), looks._replace(starts=(*looks.starts, *starts))
        else:
            now = now.climbed(y, self.rules.needles)
            now = now.without(self._is_explained(state, *now.at(prior)), looks.hills, prior, self.rules.needles)
        state = state._replace(looks=looks._replace(now=now))
        state = self._ended_look(family, state, now.ends(prior)) if now.is_over else state
        gap = math.inf if state.current is None or not now.is_over else self._gap(state)
        return state, _silent(state, gap)

    def _mirrored(self, state: FreeState, theta: Floats, y: Floats) -> Floats:
        """Images (k, d) of points that are lower than others predict; some of these are new (m, d).

        They are the points on the other side of the posterior in all coordinates but free ones: if
        an amplitude has the wrong sign near a needle, it has the right one there.
        """
        assert state.current is not None
        assert state.looks.now is not None
        assert self.prior is not None
        rule, scale = self.rules.needles, np.asarray(self.prior.scale)
        member = state.current.density.unpack(state.current.member)
        u, heights, surprise = self._surprising(state, theta, y)
        is_free = np.sqrt(np.diag(member.cov)) > rule.free * scale
        rows = outstanding(u / scale, heights, -surprise, state.looks.now.n_climbs, rule)
        return np.where(is_free, u[rows], 2 * member.mean - u[rows])

    def _surprising(self, state: FreeState, theta: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
        """Points of the surrogate and new ones (m, d), their log joints, and their surprises.

        A surprise is relative to what counts as one.
        """
        assert state.current is not None
        rule, current, is_finite = self.rules.needles, state.current, np.isfinite(y)
        theta, y = theta[is_finite], y[is_finite]
        surface = current.density.surface(current.member)
        surprise = np.concatenate([surface.surprise, surface.excess(theta, y)])
        is_fine = state.looks.now is not None and state.looks.now.is_fine
        least = rule.least_surprise(surface.usual_error) if is_fine else rule.surprising
        u, heights = np.concatenate([surface.points.theta, theta]), np.concatenate([surface.points.y, y])
        # What a surrogate that is nearly exact does not know are tails, which have no mass.
        is_tail = self._is_near_the_end(state) & (heights < heights.max() - self.rules.survey.worth)
        return u, heights, np.where(is_tail, 0.0, surprise / least)

    def _is_explained(self, state: FreeState, theta: Floats, y: Floats) -> NDArray[np.bool_]:
        """Whether a surrogate that is nearly exact expects the values y (k,) at points (k, d)."""
        assert state.current is not None
        if not self._is_near_the_end(state):
            return np.zeros(len(y), dtype=bool)
        surface = state.current.density.surface(state.current.member)
        least = self.rules.needles.least_surprise(surface.usual_error)
        return np.abs(surface.excess(theta, y)) < self.rules.needles.expected * least

    def _climbs(self, state: FreeState, theta: Floats, y: Floats) -> Ascents:
        """Climbs from points of the surrogate, or from new ones (m, d)."""
        assert state.current is not None
        assert self.prior is not None
        member = state.current.density.unpack(state.current.member)
        u, heights, surprise = self._surprising(state, theta, y)
        known: list[Mode | Hill] = [*state.search.modes, *state.looks.hills, Hill(member.mean, member.cov, 0.0)]
        near = self.rules.survey.apart**2 * theta.shape[1]
        is_inside = np.any([part.square(u) < near for part in known], axis=0)
        return climbs((u, heights, surprise), is_inside, state.looks, self.prior, self.rules.needles)

    def _ended_look(self, family: Any, state: FreeState, hills: tuple[Hill, ...]) -> FreeState:
        """The search that goes on from the hill of a look, or the rounds if it does not matter."""
        looks, modes = state.looks, state.search.modes
        state = state._replace(looks=Looks(None, len(state.y), looks.starts, (*looks.hills, *hills)))
        least = max(mode.bound for mode in modes) + self.rules.survey.valley
        if state.current is None or not hills or hills[0].log_mass < least or self._search.is_full(state.search):
            return state
        search = self._search.from_hill(family, state.search, hills[0].mean, hills[0].cov)
        paused = Paused(state.current, len(modes))
        return state._replace(search=search, q=np.asarray(search.path.q), paused=paused, current=None)

    def _compared(self, state: FreeState, newest: Confirmed) -> FreeState:
        """The state that knows the best round, and how many were no better than those before.

        If errors explain that the newest bound is lower, its surrogate is still the better one: it
        has more points. A full one has not, so the bound decides, less its error.
        """
        if self._is_void(state, newest.check):
            return state
        best = state.best
        if best is None:
            return state._replace(best=newest)
        lead, error = newest.bound - best.bound, math.hypot(newest.bound_se, best.bound_se)
        is_full = self._is_full(state, newest.current)
        least = newest.bound_se - best.bound_se if is_full else -error
        n_stuck = state.n_stuck + 1 if is_full and lead <= error else 0
        return state._replace(best=newest if lead >= least else best, n_stuck=n_stuck)

    def _is_full(self, state: FreeState, current: Current) -> bool:
        """Whether new points take the place of others that matter as much."""
        rule = self.rules.rounds
        is_cut = len(current.rows) >= rule.most_points and not state.search.path.noise
        return is_cut and current.density.surface(current.member).n_near > rule.full * rule.most_points

    def _continued(self, family: Any, state: FreeState, newest: tuple[Floats, Floats], *, is_lost: bool) -> FreeState:
        """The state with the next surrogate, after the ``newest`` points and their log joints.

        If it needs a structure and has none any more, the first method goes on.
        """
        assert state.current is not None
        search = state.search._replace(is_over=False, modes=())
        first = state._replace(q=np.asarray(search.path.q), search=search, current=None, checks=(), best=None)
        base = state.current.base
        state = self._recovered(family, state, *newest) if is_lost else self._renewed(family, state, base)
        return self._kept(state, first._replace(n_tried=len(state.y)))

    def _is_void(self, state: FreeState, check: Check) -> bool:
        """Whether a surrogate claims next to no mass: its ratios are rounding then."""
        bounds = [mode.bound for mode in state.search.modes]
        return bool(bounds) and check.log_z < max(bounds) - self.rules.rounds.far_below

    def _is_lost(self, state: FreeState, shown: Shown) -> bool:
        """Whether a surrogate is not believed: it misses much, or has less mass than a mode."""
        if not state.search.modes:
            return False
        lacking = max(mode.bound for mode in state.search.modes) - shown.evidence
        missing = shown.missing
        if shown.is_noisy:
            lacking, missing = lacking - shown.evidence_se, missing - shown.missing_se
        return max(missing, lacking) > self.rules.rounds.lost

    def _recovered(self, family: Any, state: FreeState, theta: Floats, y: Floats) -> FreeState:
        """Go back to the kernel and the coordinates that draws confirmed; if none are, begin anew.

        The search begins anew if the points of this round (n, d) refute its modes. It goes on where
        its path ended if several rounds were lost, and else the rounds begin anew.
        """
        best, n = state.best, len(state.y)
        if best is not None and Shown.by((best.check,)).missing < self.rules.rounds.lost:
            confirmed = best.current._replace(n_searched=n, n_warped=n)
            return self._renewed(family, state._replace(current=confirmed), confirmed.base)
        resumed = self._search.resumed(family, state.search, theta, y)
        if resumed is None and state.n_lost >= self.rules.rounds.lost_rounds:
            resumed = self._search.further(state.search)
        if resumed is not None:
            q = np.asarray(resumed.path.q)
            return state._replace(search=resumed, q=q, current=None, checks=(), best=None, n_lost=0)
        return self._renewed(family, state, self._search.base(state.search), anew=True)

    def _gap(self, state: FreeState) -> float:
        """Nats that may be missing: by the draws of some rounds, and by the last surrogates.

        The newest surrogate counts too, though no draws have checked it yet. With noise, draws can
        only contradict the surrogates.
        """
        checks, n = self._valid(state), self.rules.rounds.agreed
        if len(checks) < n or state.current is None or self._is_scattered(state.current):
            return math.inf
        shown = Shown.by(checks)
        shares = self._confirmed_shares(checks, shown)
        doubts = [*(self._doubt(check, *shares) for check in checks), self._doubt(state.current, *shares)]
        missing = max(shown.missing - shown.missing_se * shown.is_noisy, shown.least_beyond)
        is_known = shown.n_finite >= self.rules.rounds.confirming and not shown.is_noisy
        error = self._evidence(state.current, shown, *shares)[1] if is_known else 0.0
        return max(missing, error, *doubts[-n:])

    def _is_scattered(self, current: Current) -> bool:
        """Whether importance sampling in many dimensions tells too little of the surrogate."""
        return self.needs_structure and current.log_z_error > self.rules.rounds.scattered

    def _valid(self, state: FreeState) -> tuple[Check, ...]:
        """The last checks of what is still nearly the posterior: those since a large change."""
        if state.current is None:
            return ()
        later = [check.change for check in state.checks[1:]] + [state.current.change]
        most = self._tolerance(state)
        n = next((i for i, change in enumerate(reversed(later)) if change > most), len(later))
        return state.checks[len(state.checks) - n :]

    def _confirmed_shares(self, checks: tuple[Check, ...], shown: Shown) -> tuple[float, float]:
        """Shares, at most one, of the errors and the mass that surrogates expect and draws allow.

        What many draws measure is better known than what a surrogate expects.
        """
        rule = self.rules.rounds
        if self.needs_structure or shown.n_finite < rule.confirming or any(check.noise.mean for check in checks):
            return 1.0, 1.0
        error = float(np.mean([check.error for check in checks]))
        hope = float(np.mean([check.hope for check in checks])) / rule.hope
        seen = shown.missing + rule.errors * shown.missing_se, shown.beyond + rule.errors * shown.beyond_se
        return min(1.0, seen[0] / max(error, _TINY)), min(1.0, seen[1] / max(hope, _TINY))

    def _doubt(self, surrogate: Check | Current, errors: float = 1.0, hopes: float = 1.0) -> float:
        """Nats that a surrogate leaves open, of which shares of the expected ones count."""
        hope = surrogate.hope / self.rules.rounds.hope
        return max(errors * surrogate.error, surrogate.change, hopes * hope)

    def _raised(self, state: FreeState) -> float:
        """Nats by which noise in the values raises the log of the mean of their exponentials."""
        return (state.search.path.noise or 0.0) / 2

    def _renewed(self, family: Any, state: FreeState, base: Base, *, anew: bool = False) -> FreeState:
        """Fit the surrogate to all points, and choose the next ones.

        It follows the one before, unless it begins ``anew``.
        """
        rules, before = self.rules, state.current
        start = None if before is None or anew else before.density.unpack(before.member)
        points, rows = self._points(state)
        surface, n_searched, n_warped = self._surface(state, base, points, start)
        base, warp = surface.base, surface.warp
        # A search for the kernel gives new coordinates, if there are any.
        if start is None or (n_searched == len(state.y) and (warp or start.warp)):
            proposal = _first_proposal(surface.copies.one, rules.integration.centres)
        else:
            proposal = start.proposal
        group, is_closing = self._search.group(state.search), self._is_near_the_end(state)
        pool = integrated(surface, proposal, rules.integration, group, is_closing=is_closing)
        imaged = self._imaged(state)
        weights, n = pool.weights, rules.rounds.checks(family.dim, surface.n_near // len(imaged))
        mean, cov = self._moments(family, surface, pool)
        member = Member(surface.points, base, surface.shape, pool.proposal, warp, pool.log_z, mean, cov)
        density = FreeDensity.holding(member, rules.caution, rules.integration, surface.coordinates)
        q, gaussian = self._nearest_gaussian(family, state, pool, np.asarray(family.from_moments(mean, cov)))
        base = self._base(surface, pool)
        if surface.symmetries and len(base.weights) != len(surface.base.weights):
            state = state._replace(search=self._search.parted(state.search, base))
        rng = np.random.default_rng(len(state.y))
        current = Current(
            density=density,
            member=density.pack(member),
            draws=pool.u[rng.choice(len(pool.u), size=_SPARE * n, p=weights)],
            exploring=self._exploring(state, surface, pool, n),
            error=self._error(state, pool),
            change=self._change(family, state, pool),
            hope=pool.hope,
            log_z_error=math.hypot(pool.log_z_error, pool.level_error(surface, rules.integration)),
            sampling_error=pool.log_z_error,
            gaussian=gaussian,
            nearest=q,
            base=base,
            rows=rows,
            n_points=len(state.y) * len(imaged),
            n_searched=n_searched,
            n_warped=n_warped,
        )
        return state._replace(q=q, current=current)

    def _moments(self, family: Any, surface: Surface, pool: Pool) -> tuple[Floats, Floats]:
        """Mean (d,) and covariance (d, d) of the claimed density."""
        rule, weights, warp = self.rules.integration, pool.weights, surface.warp
        mean = weights @ pool.u
        mean = surface.copies.group.mean_of(mean) if surface.symmetries else mean
        cov = ((pool.u - mean).T * weights) @ (pool.u - mean)
        cov = surface.copies.group.cov_of(cov) if surface.symmetries else cov
        cov += _TINY * (np.diag(warp.scale**2) if warp else surface.base.within)
        nearly = pool.divergence(np.asarray(family.log_prob(family.from_moments(mean, cov), pool.u)))
        if nearly < rule.near and pool.n_effective > rule.fewest * family.dim:
            return near_gaussian_moments(surface, mean, cov, rule)
        return mean, cov

    def _base(self, surface: Surface, pool: Pool) -> Base:
        """The base of the next surrogate, by the draws of this one.

        If it has symmetries, by all their images, and with the modes beside a saddle.
        """
        w, weights = surface.warp.straight(pool.u)[0], pool.weights
        if surface.symmetries:
            group = surface.copies.group
            base = surface.base.updated(group.images(w), np.repeat(weights, len(group)) / len(group))
            parted = Copies.of(group, base).parted(w, weights, pool.low, self.rules.survey)
            return base if parted is None else parted
        return surface.base.updated(w, weights)

    def _error(self, state: FreeState, pool: Pool) -> float:
        """Nats by which the surrogate expects to be wrong."""
        nats = float(np.log(pool.weights @ np.exp(np.minimum(pool.variance / 2, self.rules.caution.most_hope))))
        return nats * (self.rules.rounds.noise_margin if self._is_noisy(state.search) else 1.0)

    def _exploring(self, state: FreeState, surface: Surface, pool: Pool, n: int) -> Exploring:
        """The n points that extend the posterior most; none of them is an image of another.

        In large rounds near the end, half of them are draws from where mass may be.
        """
        rule, makes_sense = self.rules.rounds, self._makes_sense(pool.u)
        canonical = pool._replace(u=self._search.group(state.search).canonical(pool.u))
        image_makes_sense = self._makes_sense(canonical.u)
        # Through noise, a few draws measure nothing.
        is_measurable = not self.cells and surface.border is None and makes_sense.any() and not state.search.path.noise
        if n < rule.measured or not self._is_near_the_end(state) or not is_measurable:
            return Exploring(most_informative(surface, canonical, n, rule.pool, image_makes_sense))
        drawn = pool.possible(np.random.default_rng(n + len(surface.points.y)), n // 2, makes_sense)
        others = most_informative(surface, canonical, n - len(drawn.u), rule.pool, image_makes_sense)
        return Exploring(np.concatenate([drawn.u, others]), *drawn[1:])

    def _is_near_the_end(self, state: FreeState) -> bool:
        """Whether the draws of the last round missed no more than the tolerance."""
        return bool(state.checks) and Shown.by(state.checks[-1:]).missing < self._tolerance(state)

    def _makes_sense(self, u: Floats) -> NDArray[np.bool_]:
        """Which points (n, d) are not so far out that the function may never end there."""
        prior = self.first.prior if self.needs_structure else self.prior
        if prior is None:
            return np.ones(len(u), dtype=bool)
        z = (u - np.asarray(prior.loc)) / np.asarray(prior.scale)
        return np.asarray(np.all(np.abs(z) < self.first.rules.ladder.proper, axis=1))

    def _surface(self, state: FreeState, base: Base, points: Points, held: Member | None) -> tuple[Surface, int, int]:
        """The surrogate of these points, and the number of all at the last searches for it.

        Kernel and coordinates are searched for when the points have grown enough. New coordinates
        are taken if the surrogate in them predicts each point better from all others. If the
        surrogate before is not to be ``held``, the coordinates are as they are.

        Modes that are apart have no such coordinates in common. Two paths that ended early, in a
        funnel or on a ridge, look like two modes until the rounds have filled what is between.
        """
        rules, before, n = self.rules, state.current, len(state.y)
        if before is not None and held is not None and n < rules.search.again * before.n_searched:
            surface = Surface(points, base, held.shape, rules.caution, before.density.coordinates(held.warp))
            return surface, before.n_searched, before.n_warped
        shape = None if held is None else held.shape if self.cells else held.shape[:4]
        straight = Base.one(held.mean, held.cov) if held is not None and held.warp else base
        structures = {() if held is None else held.warp.structure}
        is_due = before is None or (held is not None and n >= rules.warp.again * before.n_warped)
        symmetries = self._exact(state)
        is_copied = len(self._search.group(state.search)) > 1  # images of funnels have no coordinates in common
        is_due &= len(base.weights) == 1 or (not is_copied and base.is_connected(rules.survey.apart))
        is_due &= not symmetries
        if is_due and not self.cells:
            structures.add(self._given(points, straight))
        coordinates = Coordinates(self.cells, symmetries=symmetries)
        best = Surface.searched(points, straight, shape, rules.caution, rules.search, coordinates)
        if symmetries:
            folded = coordinates._replace(is_folded=True)
            best = min(best, Surface.searched(points, base, shape, rules.caution, rules.search, folded), key=_misfit)
        for given in sorted(structures - {()}):
            rows = self._near(points, held)
            warp = fitted(Sample.of(points.theta[rows], points.y[rows], straight.mean, straight.cov), given, rules.warp)
            warped = Surface.searched(
                points, Base.standard(len(straight.mean)), shape, rules.caution, rules.search, Coordinates(warp=warp)
            )
            best = min(best, warped, key=_misfit)
        best = self._with_jumps(state, best, straight)
        return best, n, n if is_due else 0 if before is None else before.n_warped

    def _with_jumps(self, state: FreeState, smooth: Surface, base: Base) -> Surface:
        """A surrogate of the same points that may jump along coordinates, if it predicts better.

        It may along one of them, such as the time of a change, or along all.
        """
        rules, d = self.rules, len(base.mean)
        known = () if state.current is None else state.current.density.jumping
        has_enough = smooth.n_near >= rules.search.known * (d + 1)
        is_torn = has_enough and smooth.unexplained >= 2 * self.tol
        if self.cells or smooth.symmetries or state.search.path.noise or not (is_torn or known):
            return smooth
        start, points = rules.search.start(d, is_rough=True), smooth.points
        start[: len(smooth.shape)] = smooth.shape
        tried = [(*range(d),), *((i,) for i in range(d))]
        along = [Coordinates(jumping=columns) for columns in dict.fromkeys(tried)]
        best = min((Surface(points, base, start, rules.caution, one) for one in along), key=_misfit)
        if _misfit(best) >= _misfit(smooth):  # a search costs as much as all of these together
            return smooth
        found = Coordinates(jumping=best.jumping)
        jumping = Surface.searched(points, base, start, rules.caution, rules.search, found)
        return min(smooth, jumping, key=_misfit)

    def _given(self, points: Points, base: Base) -> Given:
        """Coordinates given which the others seem Gaussian; none with too few points."""
        d = points.theta.shape[1]
        rows, k = self._near(points, None), (d + 1) * (d + 2) // 2
        if len(rows) < k:
            return ()
        rows = rows[: self.rules.warp.most_judges]
        return found(Sample.of(points.theta[rows], points.y[rows], base.mean, base.cov), self.rules.warp)

    def _near(self, points: Points, held: Member | None) -> NDArray[np.int64]:
        """Points whose density is high enough to count, in the coordinates held; the best first."""
        y = _in_coordinates(points.theta, points.y, held)
        order = np.argsort(-y, kind="stable")
        return np.asarray(order[y[order] > y.max() - self.rules.caution.depth(points.theta.shape[1])])

    def _nearest_gaussian(self, family: Any, state: FreeState, pool: Pool, moments: Floats) -> tuple[Floats, float]:
        """A Gaussian near the posterior, and the nats between them.

        It is the one of the search if the values themselves say that it is as good as exact, which
        neither the surrogate nor its ``moments`` are; else it is the one with those moments.
        """
        found = np.asarray(state.search.path.q)
        if self._is_noisy(state.search):  # the values say little
            return moments, pool.divergence(np.asarray(family.log_prob(moments, pool.u)))
        apart, sampled = (pool.divergence(np.asarray(family.log_prob(q, pool.u))) for q in (found, moments))
        seen = self._seen_nats(family, state, found)
        is_found = apart < self.tol and seen < min(sampled, self.rules.rounds.gaussian)
        return (found, seen) if is_found else (moments, sampled)

    def _seen_nats(self, family: Any, state: FreeState, q: Floats) -> float:
        """Nats between a Gaussian and the posterior, by the values at the points near it.

        To second order they are half the variance of log joint minus log q, without the noise.
        """
        finite = np.isfinite(state.y)
        theta, y = state.theta[finite], state.y[finite]
        near = np.sum(np.asarray(family.whiten(q, theta)) ** 2, axis=1) < Weighting().usual_square(family.dim)
        if np.count_nonzero(near) <= family.dim:
            return math.inf
        nats = float(np.var(y[near] - np.asarray(family.log_prob(q, theta[near])))) / 2
        return max(nats - self._raised(state), 0.0)

    def _exact(self, state: FreeState) -> tuple[Symmetry, ...]:
        """The symmetries that the surrogate has exactly."""
        return exact_part(state.theta.shape[1], tuple(self.symmetries[i] for i in state.search.symmetries))

    def _imaged(self, state: FreeState) -> Group:
        """The maps whose images of points are points of the surrogate. It needs none of its own."""
        return Group.of(state.theta.shape[1], ()) if self._exact(state) else self._search.group(state.search)

    def _points(self, state: FreeState) -> tuple[Points, NDArray[np.int64]]:
        """The points of the surrogate, each once, and their rows among all points and images."""
        group = self._imaged(state)
        at = group.images(state.theta)
        theta = self.cells.middle(at)
        y = group.log_joints(state.theta, state.y, self.log_prior) + self.cells.slope(theta) - self.cells.slope(at)
        returned = np.repeat(state.noise, len(group))
        finite = np.flatnonzero(np.isfinite(y))
        _, first, which, count = np.unique(
            theta[finite], axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        rows = finite[first]
        # Of a noisy function, a point has the mean of its values.
        y[rows] = np.bincount(which.ravel(), y[finite]) / count
        order = np.argsort(rows)
        rows, count = rows[order], count[order]
        if len(rows) > self.rules.rounds.most_points:
            worth = _worth(state.current, y)[rows]
            kept = np.sort(np.argsort(-worth, kind="stable")[: self.rules.rounds.most_points])
            rows, count = rows[kept], count[kept]
        noise = self._noise_variances(state, theta[rows], returned[rows]) / count
        return Points(theta[rows], y[rows], noise, theta[np.isneginf(y)]), rows

    def _noise_variances(self, state: FreeState, theta: Floats, returned: Floats) -> Floats:
        """Noise variances at points (n, d): as the function returned them, or as repeats imply."""
        implied = self._implied_noise(state, theta).variance
        return np.asarray(np.maximum(returned, implied if implied.size else state.search.path.noise or 0.0))

    def _implied_noise(self, state: FreeState, theta: Floats) -> Noise:
        """The noise at points (n, d) by repeated points; none if the function returns it."""
        path = state.search.path
        return self.first.noise_at(Gaussian(theta.shape[1]), path, path.q, theta)

    def _noise_at_draws(self, state: FreeState, draws: Floats) -> Noise:
        """The noise at the draws (n, d) of the last round.

        What the surrogate does not follow may be noise of which repeated points showed too little.
        """
        assert state.current is not None
        n = 2 * len(draws)
        variances = self._noise_variances(state, draws, state.noise[-n:][: len(draws)])
        if not np.any(variances > 0):
            return NO_NOISE
        jitter = state.current.density.surface(state.current.member).process.jitter
        return Noise(variances + jitter, self._implied_noise(state, draws).error)

    def _change(self, family: Any, state: FreeState, pool: Pool) -> float:
        """Nats between the new posterior and the one before, which was Gaussian at first."""
        if state.current is None:
            return pool.divergence(np.asarray(family.log_prob(state.q, pool.u)))
        pool = pool.thinned(self.rules.integration.compared)
        before = state.current.density.surface(state.current.member)(pool.u).low
        # Both integrals are over the same draws, so that most of their error cancels.
        return max(pool.divergence(before), abs(pool.log_z - pool.log_integral(before)))


def _silent(state: FreeState, gap: float = math.inf) -> Info:
    """What an iteration reports that says nothing of the posterior."""
    bound = math.nan if state.best is None else state.best.bound
    return Info(np.float64(bound), np.empty(0), np.float64(gap), math.nan, 0.0, True, True)


def _names_of_changes(symmetries: Sequence[Symmetry]) -> Iterator[str]:
    """Notes that name the changes that leave the posterior as it is, or the likelihood alone."""
    if kept := "; ".join(symmetry.name for symmetry in symmetries if symmetry.keeps_prior):
        cure = "an order or a sign in the prior would keep one of them"
        yield f"the posterior is the same if {kept}: its modes are copies, {cure}"
    if others := "; ".join(symmetry.name for symmetry in symmetries if not symmetry.keeps_prior):
        yield f"the likelihood is the same if {others}: only the prior tells such modes apart"


def _different(*symmetries: Symmetry) -> tuple[Symmetry, ...]:
    """The first of equal maps each."""
    found: dict[Any, Symmetry] = {}
    for symmetry in symmetries:
        found.setdefault(symmetry.key, symmetry)
    return tuple(found.values())


def _misfit(surface: Surface) -> float:
    """Minus twice the log density with which each point is predicted from all others."""
    return surface.process.misfit


def _in_coordinates(theta: Floats, y: Floats, held: Member | None) -> Floats:
    """Log densities y (n,) of points (n, d), in the coordinates that are held.

    The density of a funnel is highest in its neck, where there is next to no mass.
    """
    return y if held is None else y - held.warp.straight(theta)[1]


def _worth(current: Current | None, y: Floats) -> Floats:
    """How much each of all points matters to the surrogate, given their log joints y (N,).

    Low values matter where the other points do not exclude mass. A point that was left out once
    stays so, and new points are kept.
    """
    if current is None:
        return y
    worth = np.full(len(y), -np.inf)
    worth[current.rows] = current.density.surface(current.member).worth()
    worth[current.n_points :] = np.inf
    return worth


def _first_proposal(base: Base, n: int) -> Proposal:
    """A proposal that is wider than the base."""
    rng = np.random.default_rng(0)
    factors = np.linalg.cholesky(base.covs)
    which = rng.choice(len(base.weights), size=n, p=base.weights)
    z = rng.standard_normal((n, base.means.shape[1]))
    centres = base.means[which] + np.einsum("nij,nj->ni", factors[which], z)
    return Proposal.around(centres, base.mean, _WIDER * base.cov, _WIDER * base.within, float(n))


def _is_zero(values: Values) -> NDArray[np.bool_]:
    """Where the likelihood is zero (n,)."""
    return np.zeros(len(values.ok), dtype=bool) if values.zero is None else np.asarray(values.zero)
