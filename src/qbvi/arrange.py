"""Turn ``prior`` and ``family``, as a user gives them, into a model and a family."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import shown, whole_number
from qbvi.arrays import Array
from qbvi.distributions import Distribution
from qbvi.families import (
    LAWS,
    DiagonalGaussian,
    ExponentialFamily,
    Family,
    Gaussian,
    GaussianFamily,
    LowRankGaussian,
    product,
)
from qbvi.model import Model, named_distributions
from qbvi.naming import pick
from qbvi.supports import Interval, Positive, PositiveDefinite, Simplex, Support, WholeNumbers

__all__ = ["MOST_JOINT", "Groups", "KnownPrior", "LowRank", "arrange", "size_note"]

Groups = Sequence[Sequence[str | int]]
Floats = NDArray[np.float64]

# Most dimensions d of a Gaussian that joins parameters whose priors have laws. Its covariance has
# of the order of d^2 entries, which no regression determines beyond.
MOST_JOINT = 250
# Most coordinates of a Gaussian that has full covariance by default. Beyond, its d^2 entries are
# more than an affordable number of evaluations determines, and every step costs their d^3.
_MOST_FULL_BY_DEFAULT = 1_000
# Fewest values of a whole number that counts as an ordered one. A number with fewer may be a label.
_MANY_VALUES = 8
_MOST_FULL = 5_000  # most coordinates of one on request: 200 MB for each copy of the covariance
# Most directions of a Gaussian of low rank whose rank is not given. Time and memory of a fit grow
# with this number, the evaluations with the directions that the data support.
_MOST_DIRECTIONS = 20
_GAUSSIAN: dict[str, Any] = {"full": Gaussian, "diagonal": DiagonalGaussian, "log-normal": DiagonalGaussian}
# An exponential distribution has no free width. As a posterior, a gamma distribution serves better.
_LAW_OF_PRIOR = {name: name for name in LAWS} | {"Exponential": "Gamma"}


@dataclass(frozen=True)
class LowRank:
    """One Gaussian over all parameters, whose covariance is a diagonal plus a matrix of low rank.

    As ``family=`` of a fit, ``"low-rank"`` is the same as ``qbvi.LowRank()``.

    Parameters
    ----------
    rank
        Most directions in which the covariance may differ from a diagonal. The fit uses as many of
        them as its evaluations support. The default is 20, or the number of coordinates if that is
        less.

    Examples
    --------
    >>> from qbvi.distributions import Normal
    >>> arrange(Normal(0, 1, shape=1000), LowRank(rank=10))[1]
    LowRankGaussian(dim=1000, rank=10)
    """

    rank: int | None = None

    def __post_init__(self) -> None:
        if self.rank is not None:
            object.__setattr__(self, "rank", whole_number("rank", self.rank))

    def gaussian(self, dim: int) -> LowRankGaussian:
        """The family for so many coordinates."""
        return LowRankGaussian(dim, min(dim, _MOST_DIRECTIONS) if self.rank is None else self.rank)


class _Factor(NamedTuple):
    """One factor of the posterior, as specified: its kind, and the parameters it covers."""

    kind: str  # a Gaussian kind, or the name of a distribution
    names: tuple[str, ...]


def arrange(
    prior: Any, family: str | Groups | Mapping[Any, str] | LowRank, most_joint_wholes: int = 0
) -> tuple[Model, Family]:
    """Turn ``prior`` and ``family`` into a model and a family over its flat vector.

    With ``family="auto"``, whole numbers of many values join all other parameters in up to
    ``most_joint_wholes`` dimensions.

    Examples
    --------
    >>> from qbvi.distributions import InverseGamma, Normal
    >>> prior = {"beta": Normal(0, 5, shape=2), "sigma2": InverseGamma(3, 1)}
    >>> model, family = arrange(prior, "auto")
    >>> family
    Gaussian(dim=3)
    >>> model, family = arrange(prior, {"sigma2": "inverse-gamma"})
    >>> [type(factor).__name__ for factor in family.factors]
    ['InverseGamma', 'Gaussian']
    """
    priors = named_distributions(prior)
    if isinstance(family, LowRank) or (isinstance(family, str) and family == "low-rank"):
        _check_gaussian(priors, set(priors))
        model = Model(prior)
        return model, (family if isinstance(family, LowRank) else LowRank()).gaussian(model.dim)
    if not isinstance(family, str | Mapping):
        return _grouped(prior, family)
    if isinstance(family, str) and family == "auto" and _joins_wholes(priors, most_joint_wholes):
        model = Model(prior)
        return model, Gaussian(model.dim)
    factors = _factors(priors, family)
    native = [name for factor in factors if factor.kind not in _GAUSSIAN for name in factor.names]
    _check_gaussian(priors, set(priors) - set(native))
    model = Model(prior, native)
    places = {p.name: tuple(range(p.columns.start, p.columns.stop)) for p in model.parameters}
    columns = tuple(tuple(c for name in factor.names for c in places[name]) for factor in factors)
    built = tuple(_built(f, priors, len(c)) for f, c in zip(factors, columns, strict=True))
    if len(built) == 1:
        return model, built[0]
    return model, product(built, columns)


def size_note(family: Any, posterior: Family) -> str:
    """Say that ``"auto"`` chose a diagonal covariance because of the size; else nothing."""
    is_chosen = isinstance(family, str) and family == "auto"
    parts = [posterior, *(part.family for part in posterior.independent_parts)]
    wide = [part.dim for part in parts if isinstance(part, DiagonalGaussian) and part.dim > _MOST_FULL_BY_DEFAULT]
    if not is_chosen or not wide:
        return ""
    return (
        f"the Gaussian of {wide[0]:,} coordinates has a diagonal covariance, as family='auto' chooses above "
        f"{_MOST_FULL_BY_DEFAULT:,}: correlations are not estimated, and standard deviations may be too small"
    )


class KnownPrior:
    """The part of the log prior that the family has in closed form, and the rest.

    ``log p(u) = phi(u) . eta + log h(u) + remaining(u)``. The entries of ``eta`` are zero for a
    factor whose prior has another form.

    Examples
    --------
    >>> from qbvi.distributions import InverseGamma
    >>> KnownPrior(*arrange(InverseGamma(3, 1), {"theta": "inverse-gamma"})).eta
    array([-4., -1.])
    """

    def __init__(self, model: Model, family: Family) -> None:
        self._model, self._family = model, family
        self._taken: list[str] = []
        eta = self._embed()
        self._is_known = eta is not None
        # Of a curved family, the whole prior remains: one zero stands for all of eta.
        self.eta = np.zeros(1 if _is_curved(family) else family.size) if eta is None else eta

    def remaining(self, u: Array) -> Array:
        """The part of the log prior that ``eta`` does not contain: (n, d) -> (n,)."""
        if not self._is_known:
            return self._model.log_prior(u) - self._family.log_base(u)
        rest = self._model.remaining_log_prior(u, self._taken)
        return rest - self._untaken_base(u)

    def _embed(self) -> Floats | None:
        quadratic = self._model.quadratic_prior()
        if _is_curved(self._family):
            return None
        if isinstance(self._family, GaussianFamily):
            return self._family.embed(quadratic.linear, quadratic.precision)
        parts = [self._embed_factor(factor, columns) for factor, columns in self._family.independent_parts]
        return None if any(part is None for part in parts) else np.concatenate([p for p in parts if p is not None])

    def _embed_factor(self, factor: Family, columns: Sequence[int]) -> Floats | None:
        linear, precision = self._model.quadratic_prior()
        if isinstance(factor, GaussianFamily):
            at = np.asarray(columns)
            others = np.setdiff1d(np.arange(self._model.dim), at)
            if precision.ndim == 2 and np.any(precision[np.ix_(at, others)]):
                return None
            return factor.embed(linear[at], precision[at] if precision.ndim == 1 else precision[np.ix_(at, at)])
        assert isinstance(factor, ExponentialFamily)
        parameter = next(p for p in self._model.parameters if p.columns.start == columns[0])
        known = _same_law(parameter.distribution, type(factor).__name__)
        if known is None:
            return np.zeros(factor.size)
        self._taken.append(parameter.name)
        return factor.member(known)

    def _untaken_base(self, u: Array) -> Array:
        """Log base measures of the factors whose prior has another form: (n, d) -> (n,).

        They are part of ``log q``, so the remaining prior must compensate for them.
        """
        starts = {p.columns.start: p.name for p in self._model.parameters}
        return sum(
            (
                factor.log_base(u[:, list(columns)])
                for factor, columns in self._family.independent_parts
                if not isinstance(factor, GaussianFamily) and starts.get(columns[0]) not in self._taken
            ),
            start=0.0 * u[:, 0],
        )


def _is_curved(family: Family) -> bool:
    return isinstance(family, GaussianFamily) and family.is_curved


def _joins_wholes(priors: Mapping[str, Distribution], most_dimensions: int) -> bool:
    """Whether whole numbers share one posterior with all other parameters.

    They do if there are some, if each of them has many values, and if there are few dimensions.
    """
    wholes = [prior.support for prior in priors.values() if prior.support.is_discrete]
    are_many = all(isinstance(support, WholeNumbers) and support.n_values >= _MANY_VALUES for support in wholes)
    return bool(wholes) and are_many and sum(prior.dim for prior in priors.values()) <= most_dimensions


def law_name(law: type[ExponentialFamily] | str) -> str:
    """``InverseGamma`` as users write it: ``inverse-gamma``."""
    name = law if isinstance(law, str) else law.__name__
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def _factors(priors: Mapping[str, Distribution], family: str | Mapping[Any, str]) -> list[_Factor]:
    if isinstance(family, str):
        kind = pick("family", family, {name: name for name in ("auto", "full", "diagonal", "low-rank")})
        return _automatic(priors) if kind == "auto" else [_Factor(kind, tuple(priors))]
    kinds = {**{kind: kind for kind in _GAUSSIAN}, **{law_name(law): law for law in LAWS}}
    listed = []
    for key, kind in family.items():
        names = key if isinstance(key, tuple) else (key,)
        other = next((name for name in names if not isinstance(name, str)), None)
        if other is not None or not names:
            msg = f"`family` must have names of parameters, or tuples of them, as keys, got {shown(key)}"
            raise TypeError(msg)
        for name in names:
            pick("family", name, {name: name for name in priors})
        if not isinstance(kind, str):
            msg = f"`family` must give a name for {key!r}, such as 'full' or 'gamma', got {kind!r}"
            raise TypeError(msg)
        if kind == "log-normal" and any(priors[name].support != Positive() for name in names):
            msg = f"`family` can be 'log-normal' only for positive parameters, got it for {', '.join(map(repr, names))}"
            raise ValueError(msg)
        listed.append(_Factor(pick("family", kind, kinds), names))
    _check_once([name for factor in listed for name in factor.names])
    seen = {name for factor in listed for name in factor.names}
    return listed + _automatic({name: prior for name, prior in priors.items() if name not in seen})


def _automatic(priors: Mapping[str, Distribution]) -> list[_Factor]:
    """All continuous parameters share one full-covariance Gaussian in u.

    Discrete parameters keep the law of their prior. The same
    holds for continuous ones with a law if the Gaussian would have more than `MOST_JOINT`
    dimensions.
    """
    d = sum(prior.dim for prior in priors.values() if not prior.support.is_discrete)
    laws = {name: _own_law(prior) for name, prior in priors.items() if prior.support.is_discrete or d > MOST_JOINT}
    own = [_Factor(law, (name,)) for name, law in laws.items() if law is not None]
    joint = tuple(name for name in priors if laws.get(name) is None)
    kind = "full" if sum(priors[name].dim for name in joint) <= _MOST_FULL_BY_DEFAULT else "diagonal"
    return ([_Factor(kind, joint)] if joint else []) + own


def _own_law(prior: Distribution) -> str | None:
    return _LAW_OF_PRIOR.get(prior.law or "")


def _built(factor: _Factor, priors: Mapping[str, Distribution], dim: int) -> Family:
    if factor.kind in _GAUSSIAN:
        _check_covariance(factor.kind, dim)
        gaussian: Family = _GAUSSIAN[factor.kind](dim)
        return gaussian
    if len(factor.names) > 1:
        msg = (
            f"`family` can put several parameters into one factor only if it is Gaussian ('full' or 'diagonal'), "
            f"got {factor.kind!r} for {factor.names}; give each its own entry"
        )
        raise ValueError(msg)
    prior = priors[factor.names[0]]
    known = _same_law(prior, factor.kind)
    if known is not None:
        return LAWS[factor.kind].from_parameters(known)
    _check_support(factor.names[0], prior, factor.kind)
    return _like(LAWS[factor.kind], prior.shape)


def _check_covariance(kind: str, dim: int) -> None:
    if kind == "full" and dim > _MOST_FULL:
        msg = (
            f"`family` must not ask for a full covariance of {dim:,} coordinates, which has {dim * (dim + 1) // 2:,} entries "
            f"({8 * dim**2 / 1e9:.1f} GB for each copy); the most is {_MOST_FULL:,}: take family='diagonal', or groups of parameters"
        )
        raise ValueError(msg)


def _like(law: type[ExponentialFamily], shape: tuple[int, ...]) -> ExponentialFamily:
    """The distribution for a parameter of this shape, whatever its prior."""
    fields = {"Dirichlet": "k", "Wishart": "p", "InverseWishart": "p"}
    event = {fields[law.__name__]: shape[-1]} if law.event_axes else {}
    return law(copies=math.prod(shape[: len(shape) - law.event_axes]), **event)


def _same_law(prior: Distribution, law: str) -> dict[str, Any] | None:
    """Textbook parameters of a prior with exactly this distribution, else None."""
    own = prior.parameters()
    if own is None:
        return None
    if prior.law == "Exponential" and law == "Gamma":
        return {"alpha": np.ones_like(own["rate"]), "beta": own["rate"]}
    return own if prior.law == law else None


_SUPPORTS: dict[str, Support] = {
    "Gamma": Positive(),
    "InverseGamma": Positive(),
    "Exponential": Positive(),
    "Beta": Interval(0, 1),
    "Dirichlet": Simplex(),
    "Wishart": PositiveDefinite(),
    "InverseWishart": PositiveDefinite(),
    "Bernoulli": WholeNumbers(0, 1),
    "Poisson": WholeNumbers(),
    "NegativeBinomial": WholeNumbers(),
}


def _check_support(name: str, prior: Distribution, law: str) -> None:
    """A family with another form than its prior must have the support of that prior."""
    if law not in ("Categorical", "NegativeBinomial") and prior.support == _SUPPORTS[law]:
        return
    msg = (
        f"`family` must give {name!r} a distribution with the support of its prior, {prior.support!r}, got {law_name(law)!r} with "
        f"{_SUPPORTS.get(law, 'categories')!r}; leave it out of `family` for the distribution of its prior, or a Gaussian"
    )
    raise ValueError(msg)


def _grouped(prior: Any, groups: Any) -> tuple[Model, Family]:
    """Independent Gaussian blocks over parameters or column numbers."""
    if not isinstance(groups, Sequence) or not all(isinstance(group, Sequence) for group in groups):
        msg = f"`family` must be 'auto', 'full', 'diagonal', 'low-rank', a qbvi.LowRank, a dict by parameter, or a list of groups such as [['a', 'b'], ['c']], got {groups!r}"
        raise TypeError(msg)
    _check_gaussian(named_distributions(prior), set(named_distributions(prior)))
    model = Model(prior)
    columns = [tuple(column for member in group for column in _columns(member, model)) for group in groups]
    counted = sorted(column for group in columns for column in group)
    if counted != list(range(model.dim)):
        msg = f"`family` must name each of the {model.dim} coordinates in exactly one group, got groups {columns}"
        raise ValueError(msg)
    for group in columns:
        _check_covariance("full", len(group))
    return model, product(tuple(Gaussian(len(group)) for group in columns), tuple(columns))


def _columns(member: str | int, model: Model) -> list[int]:
    if isinstance(member, str):
        places = {parameter.name: parameter.columns for parameter in model.parameters}
        place = pick("family", member, places)
        return list(range(place.start, place.stop))
    return [int(member)]


def _check_once(names: list[str]) -> None:
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        msg = f"`family` must name each parameter at most once, got {', '.join(map(repr, twice))} more than once"
        raise ValueError(msg)


def _check_gaussian(priors: Mapping[str, Distribution], names: set[str]) -> None:
    for name in names:
        if priors[name].support.is_discrete:
            msg = (
                f"{name!r} is discrete, {priors[name]!r}: it cannot have a Gaussian posterior; leave it out of `family`, or give it a distribution such as "
                f"family={{{name!r}: {law_name(priors[name].law or 'bernoulli')!r}}}"
            )
            raise ValueError(msg)
