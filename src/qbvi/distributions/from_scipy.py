"""Priors from SciPy: frozen distributions, the newer ones, and objects with ``logpdf``, ``rvs``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.arguments import array_of
from qbvi.arrays import Array, refuse_traced, to_numpy
from qbvi.distributions.base import Distribution, Quadratic, Spec, as_shape, broadcast_shape
from qbvi.distributions.discrete import Bernoulli, NegativeBinomial, Poisson
from qbvi.distributions.improper import Flat
from qbvi.distributions.multivariate import Dirichlet, InverseWishart, Wishart
from qbvi.distributions.normal import MultivariateNormal, Normal
from qbvi.distributions.univariate import (
    Beta,
    Exponential,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    LogNormal,
    StudentT,
    Uniform,
)
from qbvi.supports import Elementwise, Interval, Positive, Real, Shape, like

__all__ = ["SciPyPrior", "as_distribution"]

# Their values fill no open set of R^k, so the real line cannot stand in for their support.
_CURVED = ("vonmises_fisher", "uniform_direction", "ortho_group", "unitary_group")


class SciPyPrior(Distribution):
    """A SciPy distribution as a prior.

    Where qbvi has the same distribution (``norm``, ``gamma``, ``invgamma``, ``beta``,
    ``multivariate_normal`` ...), its closed forms are used. ``support()`` gives the support. An
    object with only ``logpdf`` and ``rvs`` is taken to live on the real line.

    Parameters
    ----------
    frozen : object
        ``scipy.stats.norm(0, 2)``, ``scipy.stats.Normal(mu=0, sigma=2)``,
        ``scipy.stats.multivariate_t(...)``, or any object with ``logpdf`` and ``rvs``. Parameters
        may be arrays.
    shape : int or tuple of int, optional
        Shape of the parameter. By default that of the distribution's own parameters.

    Examples
    --------
    >>> from scipy import stats
    >>> prior = SciPyPrior(stats.weibull_min(1.5), shape=2)
    >>> prior.support
    Positive()
    """

    def __init__(self, frozen: Any, shape: int | Shape | None = None) -> None:
        _refuse_unusable(frozen)
        self.frozen = frozen
        self._parts = _parts(frozen, None if shape is None else as_shape(shape))
        self.shape, self.support = self._parts.shape, self._parts.support

    @property
    def can_sample(self) -> bool:
        """True: SciPy's distributions are proper."""
        return True

    def log_prob(self, x: Array) -> Array:
        """Log-density on the constrained scale: ``(n, *shape)`` -> (n,)."""
        return self._parts.log_prob(x)

    def log_prob_unconstrained(self, u: Array) -> Array:
        """Log-density of ``u``, including the log-Jacobian: (n, k) -> (n,)."""
        return self._parts.log_prob_unconstrained(u)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw ``n`` values on the constrained scale: ``(n, *shape)``."""
        return self._parts.sample(rng, n)

    def quadratic(self) -> Quadratic | None:
        """Coefficients for normal and log-normal distributions, else None."""
        return self._parts.quadratic()

    def parameters(self) -> dict[str, NDArray[np.float64]] | None:
        """Parameters of a distribution for which qbvi has a family, else None."""
        return self._parts.parameters()

    @property
    def law(self) -> str | None:
        """Name of the non-Gaussian family of posteriors with the form of this prior, if any."""
        return self._parts.law

    def initial(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Location and scale on the unconstrained scale, each (k,)."""
        return self._parts.initial()

    @property
    def holds_code(self) -> bool:
        """False for the distributions of ``scipy.stats`` that have a name and parameters."""
        return not _is_described_by_name(self.frozen) and self._parts.holds_code

    def to_spec(self) -> Spec:
        """Name and parameters in ``scipy.stats``; for other objects, what plain data can hold."""
        if not _is_described_by_name(self.frozen):
            return self._parts.to_spec()
        parameters = {name: np.asarray(value).tolist() for name, value in _named_parameters(self.frozen).items()}
        return {
            "kind": "SciPyPrior",
            "name": self.frozen.dist.name,
            "parameters": parameters,
            "shape": list(self.shape),
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], build: Callable[[Mapping[str, Any]], Distribution]) -> Self:
        """Undo `to_spec`, for continuous distributions of ``scipy.stats`` only."""
        distribution = getattr(scipy.stats, str(spec["name"]), None)
        if not isinstance(distribution, scipy.stats.rv_continuous):
            msg = f"`name` must be a continuous distribution of scipy.stats, got {spec['name']!r}"
            raise TypeError(msg)
        return cls(distribution(**spec["parameters"]), shape=tuple(spec["shape"]))

    def __repr__(self) -> str:
        return _described(self.frozen, self.shape)


def as_distribution(prior: Any) -> Distribution:
    """Read a prior as a user writes it: a distribution of qbvi or of SciPy, or a pair of bounds.

    Examples
    --------
    >>> as_distribution((0, 5))
    Uniform(low=0.0, high=5.0)
    >>> as_distribution((0, None))
    Flat((), support=Interval(low=0.0, high=inf))
    >>> from scipy import stats
    >>> as_distribution(stats.norm(0, 2)).quadratic()
    (array([0.]), array([0.25]))
    """
    if isinstance(prior, Distribution):
        return prior
    if isinstance(prior, type) and issubclass(prior, Distribution):
        msg = f"`prior` must be a distribution with its parameters, got the class {prior.__name__}; write {prior.__name__}(...)"
        raise TypeError(msg)
    if hasattr(prior, "logpdf") or hasattr(prior, "logpmf"):
        return SciPyPrior(prior)
    if isinstance(prior, tuple | list) and len(prior) == 2:
        return _between(*prior)
    if callable(prior):
        msg = "`prior` is a function, so its shape is unknown; write qbvi.LogPrior(f, shape=...)"
        raise TypeError(msg)
    msg = (
        f"`prior` must be a distribution of qbvi or a frozen one of SciPy, or a pair of bounds (low, high), got {prior!r}; "
        "for none write qbvi.Flat(shape=...)"
    )
    raise TypeError(msg)


def _between(low: Any, high: Any) -> Distribution:
    """A uniform distribution between two bounds; flat if one of them is None or infinite."""
    ends = array_of("bounds", [-np.inf if low is None else low, np.inf if high is None else high])
    if np.all(np.isfinite(ends)):
        return Uniform(*ends)
    return Flat((), Interval(*ends) if np.any(np.isfinite(ends)) else Real())


class _Univariate(Distribution):
    """Independent scalars through SciPy's own functions, on the host."""

    support: Elementwise

    def __init__(self, frozen: Any, shape: Shape) -> None:
        self.frozen, self.shape, self.support = frozen, shape, _support(*frozen.support())

    @property
    def can_sample(self) -> bool:
        return True

    def log_prob(self, x: Array) -> Array:
        refuse_traced(_described(self.frozen, self.shape), x)
        return like(x, self._log_prob(to_numpy(x)))

    def log_prob_unconstrained(self, u: Array) -> Array:
        refuse_traced(_described(self.frozen, self.shape), u)
        x = to_numpy(self.support.constrain(u, self.shape))
        # A saturated map gives the end, where a density may be infinite: move one float inside.
        low, high = (end.reshape(self.shape) for end in self.support.bounds(self.shape))
        inside = np.clip(x, np.nextafter(low, np.inf), np.nextafter(high, -np.inf))
        return like(u, self._log_prob(inside)) + self.support.log_jacobian(u, self.shape)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        if isinstance(self.frozen, _frozen().continuous):
            return np.asarray(self.frozen.rvs(size=(n, *self.shape), random_state=rng), dtype=np.float64)
        lead = self.shape[: len(self.shape) - np.ndim(self.frozen.support()[0])]
        return np.asarray(self.frozen.sample((n, *lead), rng=rng), dtype=np.float64)

    def _log_prob(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(all="ignore"):
            terms = np.asarray(self.frozen.logpdf(x), dtype=np.float64)
        # Where SciPy's formula fails in a far tail, the density is zero to every digit.
        terms = np.where(np.isnan(terms) & ~np.isnan(x), -np.inf, terms)
        return np.asarray(terms.reshape(len(x), -1).sum(axis=-1))


class _Joint(Distribution):
    """Any object with ``logpdf`` and ``rvs``, on the real line."""

    def __init__(self, frozen: Any, shape: Shape | None) -> None:
        draw = np.asarray(frozen.rvs(random_state=np.random.default_rng(0)), dtype=np.float64)
        self.frozen, self.shape, self.support = frozen, as_shape(draw.shape), Real()
        if shape not in (None, self.shape):
            msg = f"`shape` must be {self.shape}, the shape of a draw of {type(frozen).__name__}, got {shape}"
            raise ValueError(msg)

    @property
    def can_sample(self) -> bool:
        return True

    def log_prob(self, x: Array) -> Array:
        refuse_traced(_described(self.frozen, self.shape), x)
        points = to_numpy(x)
        with np.errstate(all="ignore"):
            return like(x, np.asarray([float(self.frozen.logpdf(point)) for point in points]))

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        draws = np.asarray(self.frozen.rvs(size=n, random_state=rng), dtype=np.float64)
        return draws.reshape(n, *self.shape)


class _Frozen(NamedTuple):
    """Classes of SciPy's frozen distributions."""

    continuous: Any
    discrete: Any
    normal: Any
    dirichlet: Any
    wishart: Any
    inverse_wishart: Any


@cache
def _frozen() -> _Frozen:
    laws = scipy.stats
    return _Frozen(
        continuous=type(laws.norm()),
        discrete=type(laws.poisson(1)),
        normal=type(laws.multivariate_normal()),
        dirichlet=type(laws.dirichlet([1.0, 1.0])),
        wishart=type(laws.wishart(1, 1)),
        inverse_wishart=type(laws.invwishart(1, 1)),
    )


def _parts(frozen: Any, shape: Shape | None) -> Distribution:
    """The distribution that does the work: a closed form of qbvi if there is one, else SciPy's."""
    if isinstance(frozen, _frozen().normal):
        return _of_shape(MultivariateNormal(frozen.mean, frozen.cov), shape)
    if isinstance(frozen, _frozen().dirichlet):
        return Dirichlet(frozen.alpha, shape)
    if isinstance(frozen, (_frozen().wishart, _frozen().inverse_wishart)):
        law = InverseWishart if isinstance(frozen, _frozen().inverse_wishart) else Wishart
        return law(frozen.df, frozen.scale, shape)
    if isinstance(frozen, _frozen().discrete):
        return _whole_numbers(frozen, shape)
    if not hasattr(frozen, "support"):
        return _Joint(frozen, shape)
    full = broadcast_shape(shape, _own_parameters(frozen))
    closed = _closed_form(frozen, full)
    return _Univariate(frozen, full) if closed is None else closed


def _closed_form(frozen: Any, shape: Shape) -> Distribution | None:
    if type(frozen) is getattr(scipy.stats, "Normal", None) or type(frozen).__name__ == "StandardNormal":
        return Normal(frozen.mean(), frozen.standard_deviation(), shape)
    if not _is_described_by_name(frozen):
        return None
    parameters = _named_parameters(frozen)
    loc, scale = (np.asarray(parameters.pop(name), dtype=np.float64) for name in ("loc", "scale"))
    unshifted = bool(np.all(loc == 0))
    build = _CLOSED.get(frozen.dist.name) or (_CLOSED_UNSHIFTED.get(frozen.dist.name) if unshifted else None)
    if build is None or (frozen.dist.name == "beta" and not np.all(scale == 1)):
        return None
    return build(shape, loc, scale, *parameters.values())


def _whole_numbers(frozen: Any, shape: Shape | None) -> Distribution:
    *parameters, _ = _named_parameters(frozen).values()  # the last is loc, which is zero
    return _DISCRETE[frozen.dist.name](shape, *parameters)


_Build = Callable[..., Distribution]
_CLOSED: dict[str, _Build] = {
    "norm": lambda shape, loc, scale: Normal(loc, scale, shape),
    "t": lambda shape, loc, scale, df: StudentT(df, loc, scale, shape),
    "cauchy": lambda shape, loc, scale: StudentT(1.0, loc, scale, shape),
    "uniform": lambda shape, loc, scale: Uniform(loc, loc + scale, shape),
}
_CLOSED_UNSHIFTED: dict[str, _Build] = {
    "lognorm": lambda shape, loc, scale, s: LogNormal(np.log(scale), s, shape),
    "gamma": lambda shape, loc, scale, a: Gamma(a, 1 / scale, shape),
    "invgamma": lambda shape, loc, scale, a: InverseGamma(a, scale, shape),
    "expon": lambda shape, loc, scale: Exponential(1 / scale, shape),
    "halfnorm": lambda shape, loc, scale: HalfNormal(scale, shape),
    "halfcauchy": lambda shape, loc, scale: HalfCauchy(scale, shape),
    "beta": lambda shape, loc, scale, a, b: Beta(a, b, shape),
}
_DISCRETE: dict[str, _Build] = {
    "bernoulli": lambda shape, p: Bernoulli(p, shape),
    "poisson": lambda shape, mu: Poisson(mu, shape),
    "nbinom": lambda shape, n, p: NegativeBinomial(n, p, shape),
}


def _described(frozen: Any, shape: Shape) -> str:
    if isinstance(frozen, (_frozen().continuous, _frozen().discrete)):
        parameters = ", ".join(f"{name}={value}" for name, value in _named_parameters(frozen).items())
        return f"SciPyPrior({frozen.dist.name}({parameters}), shape={shape})"
    return f"SciPyPrior({type(frozen).__name__}, shape={shape})"


def _refuse_unusable(frozen: Any) -> None:
    name = type(frozen).__name__
    if _is_ours_among_discrete(frozen):
        return
    discrete = any(parent.__name__ == "DiscreteDistribution" for parent in type(frozen).__mro__)
    if discrete or not hasattr(frozen, "logpdf"):
        msg = (
            f"`prior` must be a continuous distribution with a `logpdf`, or an unshifted {', '.join(_DISCRETE)}, got {name}; "
            "among whole numbers qbvi also has qbvi.Categorical(probs)"
        )
        raise TypeError(msg)
    if not (hasattr(frozen, "rvs") or hasattr(frozen, "sample")):
        msg = f"`prior` must have `rvs` beside `logpdf`, got {name}; write qbvi.LogPrior(frozen.logpdf, shape=...)"
        raise TypeError(msg)
    if callable(frozen):
        msg = f"`prior` must be frozen, got {name} without its parameters; write for example scipy.stats.norm(0, 1)"
        raise TypeError(msg)
    if name.removesuffix("_frozen") in _CURVED:
        msg = (
            f"`prior` of type {name} has values on a curved set; write qbvi.LogPrior(..., support=qbvi.Bijection(...))"
        )
        raise TypeError(msg)


def _is_ours_among_discrete(frozen: Any) -> bool:
    if not isinstance(frozen, _frozen().discrete) or not _is_scipys_own(frozen.dist):
        return False
    return frozen.dist.name in _DISCRETE and bool(np.all(_named_parameters(frozen)["loc"] == 0))


def _named_parameters(frozen: Any) -> dict[str, Any]:
    """Shape parameters, ``loc`` and ``scale`` of a frozen distribution by name, with defaults."""
    own = frozen.dist.shapes.split(", ") if frozen.dist.shapes else []
    names = [*own, "loc"] if isinstance(frozen, _frozen().discrete) else [*own, "loc", "scale"]
    given = dict(zip(names, frozen.args, strict=False)) | frozen.kwds
    return {name: given.get(name, float(name == "scale")) for name in names}


def _is_described_by_name(frozen: Any) -> bool:
    """Whether its name in ``scipy.stats`` and its parameters describe it completely."""
    return isinstance(frozen, _frozen().continuous) and _is_scipys_own(frozen.dist)


def _is_scipys_own(distribution: Any) -> bool:
    return type(getattr(scipy.stats, distribution.name or "", None)) is type(distribution)


def _own_parameters(frozen: Any) -> dict[str, NDArray[np.float64]]:
    """Parameters whose shapes give a univariate distribution its shape."""
    own = _named_parameters(frozen) if isinstance(frozen, _frozen().continuous) else {"support": frozen.support()[0]}
    return {name: np.asarray(value, dtype=np.float64) for name, value in own.items()}


def _of_shape(prior: Distribution, shape: Shape | None) -> Distribution:
    if shape not in (None, prior.shape):
        msg = f"`shape` must be {prior.shape}, that of the distribution, got {shape}"
        raise ValueError(msg)
    return prior


def _support(low: Any, high: Any) -> Elementwise:
    low, high = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    if np.any(np.isnan(low) | np.isnan(high)):
        msg = "`prior` has parameters outside of their domain: SciPy gives it no support"
        raise ValueError(msg)
    if np.all(low == -math.inf) and np.all(high == math.inf):
        return Real()
    if np.all(low == 0) and np.all(high == math.inf):
        return Positive()
    return Interval(low, high)
