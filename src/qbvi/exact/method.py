"""The method "exact": passes over the data of a generalised linear model instead of draws."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import positive_number
from qbvi.arrays import Array, to_numpy
from qbvi.distributions import InverseGamma as InverseGammaPrior
from qbvi.ending import Stop, StopKind
from qbvi.exact.bound import ExactBound, GaussianPrior, Noise, Point, Regression, Search
from qbvi.families import DiagonalGaussian, Family, Gaussian, InverseGamma
from qbvi.families.base import Part
from qbvi.model import Model
from qbvi.protocol import Algorithm, Info, Values
from qbvi.stopping import GapBelow, History, MaxIterations, Rule
from qbvi.supports import Real

__all__ = ["Columns", "Exact"]

Floats = NDArray[np.float64]

_TOL = 1e-8  # nats to the best member of the family: passes converge fast, so digits are cheap
_MOST_ITERATIONS = 500
_MOST_REJECTED = 20  # consecutive steps without a higher bound after which the fit gives up
# Fresh draws: so many that they read the design's numbers this often in all, within limits.
_FRESH_NUMBERS, _FEWEST_FRESH, _MOST_FRESH = 4 * 10**8, 64, 1_000


class Columns(NamedTuple):
    """Where the parameters of a regression are among the coordinates of u."""

    coefficients: NDArray[np.intp]  # (k,) in the order of the design
    noise: str | None = None  # name of the noise variance


class State(NamedTuple):
    """The current member, with the bound and the next step."""

    q: Floats
    search: Search


@dataclass(frozen=True)
class _Rejected(Rule):
    """Stop when the bound does not rise along the natural gradient any more."""

    most: int = _MOST_REJECTED

    def __call__(self, history: History) -> Stop | None:
        last = history.step[-self.most :]
        if len(last) < self.most or any(last):
            return None
        return Stop.of(StopKind.GAVE_UP, sentence="no step along the natural gradient raised the bound")


@dataclass(frozen=True, eq=False, repr=False)
class Exact(Algorithm):
    """The best Gaussian of a regression with one linear predictor, without draws.

    Each iteration is one pass over the data: it computes the bound and its gradients at a Gaussian
    by one-dimensional integrals, and the next Gaussian from them (`qbvi.exact.bound`). If the bound
    has not risen, the step is repeated with a smaller rate. The function is evaluated only at the
    fresh draws that judge the result.

    ``model.fit(method="exact")`` of a ready-made regression makes one of these.

    Parameters
    ----------
    regression : Regression
        Rows and their one-dimensional expectations.
    columns : Columns
        Where its parameters are among the coordinates of u.
    tol : float, optional
        Nats to the best member of the family at which to stop. By default 1e-8.
    bound : type
        What computes the integrals of the rows.
    """

    regression: Regression
    columns: Columns
    tol: float | None = None
    bound: type[ExactBound] = ExactBound
    prior: GaussianPrior | None = field(default=None, init=False)
    noise: Noise | None = field(default=None, init=False)

    def __repr__(self) -> str:
        return f"Exact(tol={self._tol:g})"

    @property
    def stop(self) -> tuple[Rule, ...]:
        """A predicted gain below the tolerance, or no further step, or 500 iterations."""
        return GapBelow(self._tol), _Rejected(), MaxIterations(_MOST_ITERATIONS)

    @property
    def window(self) -> int:
        """One: the bound has no noise."""
        return 1

    @property
    def keep(self) -> str:
        """The last iterate, because the bound never falls."""
        return "last"

    @property
    def asks(self) -> bool:
        """False: the iterations need no values of the function."""
        return False

    def fits(self, family: Family) -> bool:
        """Whether the family is a Gaussian or, with a noise variance, times an inverse gamma."""
        kinds = {type(part.family) for part in family.independent_parts}
        noise = set() if self.columns.noise is None else {InverseGamma}
        is_one_each = len(kinds) == len(family.independent_parts)
        return is_one_each and kinds in (noise | {Gaussian}, noise | {DiagonalGaussian})

    def objection(self, model: Model, family: Family) -> str:
        """Why this posterior cannot be had exactly, in a sentence; empty if it can."""
        noise = self.columns.noise
        for parameter in model.parameters:
            prior = parameter.distribution
            if parameter.name == noise and not isinstance(prior, InverseGammaPrior):
                return f"the prior of {noise!r} must be an InverseGamma, got {prior!r}"
            if parameter.name != noise and not (isinstance(prior.support, Real) and parameter.quadratic()):
                return f"the prior of {parameter.name!r} must be Normal, MultivariateNormal or Flat, got {prior!r}"
        if self.fits(family):
            return ""
        shape = "full or diagonal" if noise is None else f"full or diagonal, beside an inverse gamma for {noise!r}"
        return f"the family must be one Gaussian of all coefficients, {shape}, got {family!r}"

    def for_model(self, model: Model) -> Self:
        """The method with the prior of this model."""
        linear, precision = model.quadratic_prior()
        at, taken = self.columns.coefficients, [] if self.columns.noise is None else [self.columns.noise]
        noises = [p.distribution.parameters() or {} for p in model.parameters if p.name in taken]
        constant = float(to_numpy(model.remaining_log_prior(np.ones((1, model.dim)), taken))[0])
        own = precision[at] if precision.ndim == 1 else precision[np.ix_(at, at)]
        made = replace(self)
        object.__setattr__(made, "prior", GaussianPrior(linear[at], own, constant))
        object.__setattr__(
            made, "noise", Noise(*(noises[0][name].item() for name in Noise._fields)) if noises else None
        )
        return made

    def fresh_draws(self, n_evals: int) -> int:
        """1,000, and fewer for designs of more than 400,000 numbers."""
        return min(max(_FRESH_NUMBERS // self.regression.data[0].size, _FEWEST_FRESH), _MOST_FRESH)

    def start_scale(self, scale: Array) -> Array:
        """That of the prior; the first pass replaces it."""
        return scale

    def init(self, family: Any, q: Array) -> State:
        """Two passes: the curvature at the start, and the bound of the Gaussian that it gives."""
        bound, mean = self._bound_in(family), to_numpy(family.mean(q))[self.columns.coefficients]
        if bound.centre is not None:
            mean[0] += bound.centre @ mean
        search = bound.start(mean, _is_diagonal(family))
        return State(self._member(family, search.point), search)

    def ask(self, family: Any, state: Any, rng: Any) -> Array:
        """No points: see `asks`."""
        return np.empty((0, family.dim))

    def tell(self, family: Any, eta: Array, state: Any, theta: Array, values: Values) -> tuple[State, Info]:
        """Make one pass, at the next Gaussian, and move there if the bound is not lower."""
        here, search = state.search.point, self._bound_in(family).step(state.search)
        is_moved = search.point is not here
        after = State(self._member(family, search.point) if is_moved else state.q, search)
        info = Info(
            bound=np.float64(here.bound),
            h=np.full(2, np.nan),
            gap=np.float64(search.point.gap),
            grad_norm=np.linalg.norm(here.gradient),
            step=np.float64(state.search.rate if is_moved else 0.0),
            is_inside=np.True_,
            is_refused=np.bool_(not is_moved),
        )
        return after, info

    def exact_bound(self, state: Any) -> float | None:
        """The bound at ``state.q``, if its integrals are exact."""
        return float(state.search.point.bound) if self.bound.is_exact else None

    def notes(self, state: Any) -> tuple[str, ...]:
        """How often the data were read."""
        rows = len(self.regression.data[0])
        integrals = "exact integrals" if self.bound.is_exact else "integrals by fixed nodes"
        passes = f"{state.search.passes:,} passes over the {rows:,} rows computed {integrals}"
        return (f"{passes}; the evaluations are those of the fresh draws that judge the result",)

    @property
    def _tol(self) -> float:
        return _TOL if self.tol is None else positive_number("tol", self.tol)

    def _bound_in(self, family: Family) -> ExactBound:
        return self._uncentred if _is_diagonal(family) else self._centred

    @cached_property
    def _centred(self) -> ExactBound:
        assert self.prior is not None, "for_model comes first"
        return self.bound.centred(self.regression, self.prior, self.noise)

    @cached_property
    def _uncentred(self) -> ExactBound:
        """A diagonal covariance would not stay diagonal in other coordinates."""
        assert self.prior is not None, "for_model comes first"
        return self.bound(self.regression, self.prior, self.noise)

    def _member(self, family: Any, point: Point) -> Floats:
        """The point as a member of the family."""
        return np.concatenate([self._factor(part, point) for part in family.independent_parts])

    def _factor(self, part: Part, point: Point) -> Floats:
        if isinstance(part.family, InverseGamma):
            assert point.noise is not None
            return part.family.member(point.noise._asdict())
        coefficient = dict(zip(self.columns.coefficients.tolist(), range(len(point.mean)), strict=True))
        place = np.array([coefficient[column] for column in part.columns])
        if isinstance(part.family, DiagonalGaussian):
            return to_numpy(part.family.start(point.mean[place], point.spread.factor[place]))
        assert isinstance(part.family, Gaussian)
        mean, factor, inverse = point.mean.copy(), point.spread.factor.copy(), point.spread.inverse
        if self._centred.centre is not None:
            mean[0] -= self._centred.centre @ mean
            factor[0] -= self._centred.centre @ factor
            inverse = inverse + inverse[:, :1] * self._centred.centre
        return to_numpy(part.family.from_factor(mean[place], factor[place], inverse[:, place]))


def _is_diagonal(family: Family) -> bool:
    return any(isinstance(part.family, DiagonalGaussian) for part in family.independent_parts)
