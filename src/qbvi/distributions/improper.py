"""Flat priors, priors given by a user's log-density, and priors on the unconstrained scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qbvi.arguments import shown
from qbvi.arrays import Array, array_namespace, call_traced, is_traced, to_numpy
from qbvi.distributions.base import (
    Distribution,
    Quadratic,
    Spec,
    as_shape,
    brief,
    broadcast_shape,
    check_positive,
    finite_numbers,
)
from qbvi.supports import Positive, Real, Shape, Support, UserDefinedError, like, support_from_spec

__all__ = ["Flat", "LogPrior", "Transformed"]

Build = Callable[[Mapping[str, Any]], Distribution]
LogDensity = Callable[[NDArray[np.float64]], Any]


class Flat(Distribution):
    """Improper prior with density one on the constrained scale.

    Use it if the function to fit is already a log-joint density.

    Parameters
    ----------
    shape : int or tuple of int, optional
        Shape of the parameter. By default a single number, as for all other priors.
    support : Support
        The set of values of the parameter.
    scale : float or array_like
        A length on which the function is expected to change, on the unconstrained scale. The first
        iteration of a fit is proportional to it. The density does not depend on it, and a fit finds
        the right scale by itself.

    Examples
    --------
    >>> Flat(3).log_prob(np.ones((2, 3)))
    array([0., 0.])
    """

    def __init__(self, shape: int | Shape = (), support: Support | None = None, scale: ArrayLike = 1.0) -> None:
        self.shape, self.support = _placed(shape, support)
        self.scale = finite_numbers("scale", scale)
        check_positive("scale", self.scale)
        broadcast_shape(self.dim, {"scale": self.scale})

    def initial(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Starting point on the unconstrained scale, with the given scale."""
        loc, scale = super().initial()
        return loc, scale * np.broadcast_to(self.scale, scale.shape)

    @property
    def holds_code(self) -> bool:
        """Whether the support holds functions of the user's."""
        return self.support.holds_code

    def log_prob(self, x: Array) -> Array:
        """Zero for every value: ``(n, *shape)`` -> (n,)."""
        return array_namespace(x).zeros_like(x[(slice(None), *(0 for _ in self.shape))])

    def log_prob_unconstrained(self, u: Array) -> Array:
        """The log-Jacobian alone: (n, k) -> (n,)."""
        return self.support.log_jacobian(u, self.shape)

    def quadratic(self) -> Quadratic | None:
        """Zeros on the real line. On the half line the log-Jacobian ``u`` is linear."""
        if isinstance(self.support, Real | Positive):
            slope = float(isinstance(self.support, Positive))
            return np.full(self.dim, slope), np.zeros(self.dim)
        return None

    def to_spec(self) -> Spec:
        """Describe this prior as plain data."""
        scale = {} if self._has_unit_scale else {"scale": self.scale.tolist()}
        return {"kind": "Flat", "shape": list(self.shape), "support": self.support.to_spec(), **scale}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], build: Build) -> Self:
        """Undo `to_spec`."""
        return cls(tuple(spec["shape"]), support_from_spec(spec["support"]), spec.get("scale", 1.0))

    def __repr__(self) -> str:
        scale = "" if self._has_unit_scale else f", scale={brief(self.scale)}"
        return f"Flat({self.shape}, support={self.support!r}{scale})"

    @property
    def _has_unit_scale(self) -> bool:
        return bool(np.all(self.scale == 1.0))


class LogPrior(Distribution):
    """A user's own log-density, on the constrained scale and up to a constant.

    Parameters
    ----------
    log_prob : callable
        Array of ``shape`` -> float, which may be minus infinity. It uses NumPy, or jax.numpy if
        JAX compiles the fit.
    shape : int or tuple of int
    support : Support
        The set of values of the parameter.
    vectorized : bool
        Whether ``log_prob`` takes ``(n, *shape)`` and returns (n,).

    Examples
    --------
    >>> laplace = LogPrior(lambda x: -abs(x).sum(), shape=2)
    >>> laplace.log_prob(np.array([[1.0, -2.0]]))
    array([-3.])
    """

    def __init__(
        self, log_prob: LogDensity, shape: int | Shape, support: Support | None = None, vectorized: bool = False
    ) -> None:
        if not callable(log_prob):
            msg = f"`log_prob` must be a function of one parameter value, got {log_prob!r}"
            raise TypeError(msg)
        self.shape, self.support = _placed(shape, support)
        self.function, self.vectorized = log_prob, vectorized

    def log_prob(self, x: Array) -> Array:
        """The user's function at each value: ``(n, *shape)`` -> (n,)."""
        if is_traced(x):
            densities = call_traced(f"`log_prob` of {self!r}", self.function, x, vectorized=self.vectorized)
            self._check_shape(x, densities)
            return densities
        points = to_numpy(x)  # a copy, which the user's function may overwrite
        values = self.function(points) if self.vectorized else [self.function(point) for point in points]
        densities = np.asarray(values, dtype=np.float64)
        self._check_shape(x, densities)
        self._check_values(x, densities)
        return like(x, densities)

    def to_spec(self) -> Spec:
        """Shape and support, and a marker: functions are not stored."""
        return super().to_spec()

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], build: Build) -> Self:
        """Restore shape and support; `log_prob` then raises an error that says how to supply it."""
        return cls(_lost_log_density, tuple(spec["shape"]), support_from_spec(spec["support"]))

    def __repr__(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"LogPrior({name}, shape={self.shape}, support={self.support!r})"

    def _check_shape(self, x: Array, densities: Array) -> None:
        n = x.shape[0]
        if densities.shape != (n,):
            rule = f"shape ({n},) for {n} values" if self.vectorized else "one number per value"
            msg = f"`log_prob` of {self!r} must return {rule}, got shape {densities.shape[not self.vectorized :]}"
            raise ValueError(msg)

    def _check_values(self, x: Array, densities: NDArray[np.float64]) -> None:
        bad = np.isnan(densities) | (densities == np.inf)
        if np.any(bad):
            at = int(np.argmax(bad))
            msg = (
                f"`log_prob` of {self!r} must return a number or -inf, got {densities[at]} at {to_numpy(x)[at].tolist()}; "
                "if the parameter cannot take that value, give its `support`"
            )
            raise ValueError(msg)


class Transformed(Distribution):
    """A prior given on the unconstrained scale; the likelihood sees ``support.constrain(u)``.

    The log-density of ``u`` is that of ``base``, without a Jacobian.

    Parameters
    ----------
    base : Distribution
        A prior on the real line, with as many entries as ``support`` needs.
    support : Support
        The map to the values that the likelihood sees; often a `Bijection`.
    shape : int or tuple of int, optional
        Shape of those values. By default it follows from the map.
    names : sequence of str, optional
        Names of the entries of a vector, for labels: ``("omega", "alpha", "beta")``.

    Examples
    --------
    >>> from qbvi.distributions.normal import Normal
    >>> from qbvi.supports import Simplex
    >>> logistic_normal = Transformed(Normal(0.0, 1.0, shape=2), Simplex())
    >>> logistic_normal.shape
    (3,)
    """

    def __init__(
        self, base: Distribution, support: Support, shape: int | Shape | None = None, names: Sequence[str] = ()
    ) -> None:
        if not isinstance(getattr(base, "support", None), Real):
            msg = f"`base` must be a qbvi distribution on the real line, got {base!r}"
            raise TypeError(msg)
        self.base = base
        _check_support(support)
        self.shape, self.support = _placed(support.constrained_shape(base.shape) if shape is None else shape, support)
        if self.dim != base.dim:
            msg = f"`base` must have {self.dim} entries for {support!r} of shape {self.shape}, got {base.dim}"
            raise ValueError(msg)
        self._names = _checked_names(names, self.shape)

    @property
    def entry_names(self) -> tuple[str, ...]:
        """Names of the entries; empty if they have none."""
        return self._names

    @property
    def can_sample(self) -> bool:
        """Whether ``base`` can be sampled."""
        return self.base.can_sample

    def log_prob(self, x: Array) -> Array:
        """Log-density on the constrained scale: ``(n, *shape)`` -> (n,)."""
        u = self.support.unconstrain(x, self.shape)
        return self.base.log_prob_unconstrained(u) - self.support.log_jacobian(u, self.shape)

    def log_prob_unconstrained(self, u: Array) -> Array:
        """Log-density of ``base``: (n, k) -> (n,)."""
        return self.base.log_prob_unconstrained(u)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw ``n`` values on the constrained scale: ``(n, *shape)``."""
        return np.asarray(self.support.constrain(self._draw(rng, n), self.shape))

    def quadratic(self) -> Quadratic | None:
        """The coefficients of ``base``."""
        return self.base.quadratic()

    def initial(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The starting point of ``base``."""
        return self.base.initial()

    @property
    def holds_code(self) -> bool:
        """Whether the base or the map holds functions of the user's."""
        return self.base.holds_code or self.support.holds_code

    def to_spec(self) -> Spec:
        """Describe the base, the map and the shape as plain data."""
        parts = {"base": self.base.to_spec(), "support": self.support.to_spec()}
        names = {"names": list(self._names)} if self._names else {}
        return {"kind": "Transformed", **parts, "shape": list(self.shape), **names}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], build: Build) -> Self:
        """Undo `to_spec`."""
        return cls(build(spec["base"]), support_from_spec(spec["support"]), tuple(spec["shape"]), spec.get("names", ()))

    def __repr__(self) -> str:
        return f"Transformed({self.base!r}, {self.support!r})"

    def _draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return self.base.sample(rng, n).reshape(n, self.dim)


def _placed(shape: int | Shape, support: Support | None) -> tuple[Shape, Support]:
    placed = Real() if support is None else support
    _check_support(placed)
    size = as_shape(shape)
    placed.unconstrained_size(size)  # refuses shapes that the support cannot have
    return size, placed


def _checked_names(names: Any, shape: Shape) -> tuple[str, ...]:
    is_list = isinstance(names, Sequence) and not isinstance(names, str)
    if not is_list or not all(isinstance(name, str) and name for name in names):
        msg = f"`names` must be a sequence of names, got {shown(names)}"
        raise TypeError(msg)
    if names and ((len(names),) != shape or len(set(names)) < len(names)):
        msg = f"`names` must be different names of the entries of a vector, here of shape {shape}, got {list(names)}"
        raise ValueError(msg)
    return tuple(names)


def _check_support(support: object) -> None:
    if not isinstance(support, Support):
        msg = f"`support` must be a support such as qbvi.Positive(), got {support!r}"
        raise TypeError(msg)


def _lost_log_density(x: NDArray[np.float64]) -> float:
    msg = "the log-density of this prior was a Python function, which files do not hold; pass `prior=` when loading"
    raise UserDefinedError(msg)
