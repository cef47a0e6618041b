"""What a prior is: a shape, a support, a log-density and, if it is proper, a sampler."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from operator import index
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qbvi.arguments import array_of
from qbvi.arrays import Array, array_namespace, to_numpy
from qbvi.supports import Elementwise, Interval, Periodic, Positive, Shape, Simplex, Support, like

__all__ = [
    "Distribution",
    "InFamily",
    "Independent",
    "Parametric",
    "Quadratic",
    "Spec",
    "as_shape",
    "brief",
    "broadcast_shape",
    "check_definite",
    "check_positive",
    "check_probability",
    "finite_numbers",
]

Spec = dict[str, Any]
Quadratic = tuple[NDArray[np.float64], NDArray[np.float64]]

_START_DRAWS = 1000
_NORMAL_RANGE = 1.349  # interquartile range of a standard normal
# Interquartile range, on a log or logit scale, of a prior that is vague: four orders of magnitude.
_VAGUE = math.log(1e4)
_START_LIMIT = 700.0  # the largest unconstrained number that every support maps without saturating


class Distribution(ABC):
    """A prior for one parameter of ``shape`` on ``support``.

    A subclass sets ``shape`` and ``support`` and implements `log_prob`. A proper prior also
    implements `sample` and sets `can_sample`. Everything else follows from these; a subclass
    overrides it only to give a closed form.
    """

    shape: Shape
    support: Support

    @property
    def dim(self) -> int:
        """Number of unconstrained coordinates, k."""
        return self.support.unconstrained_size(self.shape)

    @property
    def entry_names(self) -> tuple[str, ...]:
        """Names of the entries of a vector; empty if they have none."""
        return ()

    @property
    def can_sample(self) -> bool:
        """Whether `sample` works. It does not for improper priors and bare log-densities."""
        return False

    @property
    def holds_code(self) -> bool:
        """Whether it holds functions of the user, which `to_spec` cannot describe.

        True unless a class overrides it.
        """
        return True

    @abstractmethod
    def log_prob(self, x: Array) -> Array:
        """Log-density on the constrained scale: ``(n, *shape)`` -> (n,)."""

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw ``n`` values on the constrained scale: ``(n, *shape)``."""
        msg = f"{self!r} cannot be sampled: it is improper, or only its log-density is known"
        raise ValueError(msg)

    def log_prob_unconstrained(self, u: Array) -> Array:
        """Log-density of ``u``, including the log-Jacobian: (n, k) -> (n,)."""
        x = self.support.constrain(u, self.shape)
        return self.log_prob(x) + self.support.log_jacobian(u, self.shape)

    def quadratic(self) -> Quadratic | None:
        """Coefficients of a prior that is Gaussian in ``u``, else None.

        Returns
        -------
        linear : ndarray (k,)
        precision : ndarray (k,) if diagonal, else (k, k)
            Such that ``log p(u) = linear . u - u' precision u / 2 + constant``.
        """
        return None

    def parameters(self) -> dict[str, NDArray[np.float64]] | None:
        """Textbook parameters, named as in the family of the same distribution; else None.

        The first axis runs over copies: the leading axes of the prior's shape, flattened.
        """
        return None

    @property
    def law(self) -> str | None:
        """Name of the non-Gaussian family of posteriors with the form of this prior, if any."""
        return None if self.parameters() is None else type(self).__name__

    def initial(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Starting point on the unconstrained scale: location (k,) and scale (k,), always finite.

        These are the median and the rescaled interquartile range of a thousand prior draws from a
        fixed seed. They are zeros and ones if the prior cannot be sampled. A positive number starts
        at one, and a probability at a half, if the quartiles of its prior are more than four orders
        of magnitude apart, because the median of such a prior says nothing: that of Gamma(0.01,
        0.01) is below 1e-28. On a circle they
        are the middle and a quarter of the period.
        """
        if not self.can_sample and isinstance(self.support, Periodic):
            low, high = self.support.bounds(self.shape)
            return (low + high) / 2, (high - low) / 4
        if not self.can_sample:
            return np.zeros(self.dim), np.ones(self.dim)
        loc, scale = _location_and_scale(self._draw(np.random.default_rng(0), _START_DRAWS))
        if not isinstance(self.support, Positive | Interval | Simplex):
            return loc, scale
        most = _VAGUE / _NORMAL_RANGE
        return np.where(scale > most, 0.0, loc), np.minimum(scale, most)

    def initial_values(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Starting point on the constrained scale: location and scale per entry, always finite.

        Both come from a thousand prior draws. On a half line or an interval they are the median
        and the rescaled interquartile range, otherwise the mean and the standard deviation. A
        positive number starts at one if the quartiles of its prior are more than four orders of
        magnitude apart, because the median of such a prior says nothing.
        """
        size = math.prod(self.shape)
        if not self.can_sample:
            return np.ones(size), np.ones(size)
        x = np.reshape(self.sample(np.random.default_rng(0), _START_DRAWS), (_START_DRAWS, size))
        if not isinstance(self.support, Elementwise) or self.support.is_discrete:
            return np.mean(x, axis=0), np.std(x, axis=0)
        lower, median, upper = np.quantile(x, [0.25, 0.5, 0.75], axis=0)
        vague = (lower >= 0) & (upper > math.exp(_VAGUE) * np.maximum(lower, 1e-300))
        return np.where(vague, 1.0, median), np.where(vague | (upper == lower), 1.0, (upper - lower) / _NORMAL_RANGE)

    def to_spec(self) -> Spec:
        """Describe this prior as plain data.

        By default only the shape and the support are kept, which draws need; a marker says that
        the log-density was code.
        """
        return {
            "kind": "LogPrior",
            "shape": list(self.shape),
            "support": self.support.to_spec(),
            "user_defined": True,
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], build: Callable[[Mapping[str, Any]], Distribution]) -> Self:
        """Undo `to_spec`; ``build`` turns the specification of a component into a distribution."""
        return cls(**{name: value for name, value in spec.items() if name != "kind"})

    def _draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw on the unconstrained scale: (n, k)."""
        return to_numpy(self.support.unconstrain(self.sample(rng, n), self.shape))


class Parametric(Distribution):
    """Independent scalars whose parameters broadcast to ``shape``.

    Parameters
    ----------
    support : Support
        A support that treats each entry separately.
    shape : int, tuple of int or None
        None means the broadcast shape of the parameters.
    parameters : dict
        The parameters by name, as the user gave them.
    positive : tuple of str
        Names of the parameters that must be positive.
    """

    support: Elementwise
    holds_code = False

    def __init__(
        self,
        support: Elementwise,
        shape: int | Shape | None,
        parameters: dict[str, ArrayLike],
        positive: tuple[str, ...] = (),
    ) -> None:
        self._given = {name: finite_numbers(name, value) for name, value in parameters.items()}
        for name in positive:
            check_positive(name, self._given[name])
        self.shape = broadcast_shape(shape, self._given)
        self.support = support
        vars(self).update(self._given)  # so that InverseGamma(3, 1).alpha is as the user gave it
        self._flat = {name: np.broadcast_to(value, self.shape).reshape(-1) for name, value in self._given.items()}

    @property
    def can_sample(self) -> bool:
        """True: these priors are proper."""
        return True

    def to_spec(self) -> Spec:
        """Describe this prior as plain data."""
        numbers = {name: value.tolist() for name, value in self._given.items()}
        return {"kind": type(self).__name__, **numbers, "shape": list(self.shape)}

    def __repr__(self) -> str:
        parts = [f"{name}={brief(value)}" for name, value in self._given.items()]
        if self.shape != np.broadcast_shapes(*(value.shape for value in self._given.values())):
            parts.append(f"shape={self.shape}")
        return f"{type(self).__name__}({', '.join(parts)})"


class InFamily(Parametric):
    """Scalars whose distribution is also a family of posteriors, with the same parameters."""

    def parameters(self) -> dict[str, NDArray[np.float64]]:
        """The parameters of every entry, each (copies,)."""
        return {name: value.copy() for name, value in self._flat.items()}


class Independent(Parametric):
    """Independent scalars on a continuous support.

    A subclass writes its density once, in the unconstrained coordinate with its Jacobian. There
    it neither overflows nor loses digits at the boundary. The density on the constrained scale
    follows from it.
    """

    @abstractmethod
    def _log_kernel(self, u: Array) -> Array:
        """Log-density of each entry of ``u``, with Jacobian, up to a constant: (n, k) -> (n, k)."""

    @abstractmethod
    def _log_constant(self) -> NDArray[np.float64]:
        """The constant of each entry: (k,)."""

    @cached_property
    def _constant(self) -> float:
        return float(np.sum(self._log_constant()))

    @abstractmethod
    def _draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw on the unconstrained scale: (n, k)."""

    def log_prob_entries(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log-density of each entry of ``u`` separately, with its Jacobian: (n, k) -> (n, k)."""
        return to_numpy(self._log_kernel(u)) + self._log_constant()

    def log_prob_unconstrained(self, u: Array) -> Array:
        """Log-density of ``u``, including the log-Jacobian: (n, k) -> (n,)."""
        return array_namespace(u).sum(self._log_kernel(u), axis=-1) + self._constant

    def log_prob(self, x: Array) -> Array:
        """Log-density on the constrained scale, minus infinity outside the support.

        ``(n, *shape)`` -> (n,).
        """
        xp = array_namespace(x)
        u = self.support.unconstrain(x, self.shape)
        density = self.log_prob_unconstrained(u) - self.support.log_jacobian(u, self.shape)
        flat = xp.reshape(x, (x.shape[0], self.dim))
        low, high = (like(x, end) for end in self.support.bounds(self.shape))
        outside = xp.any((flat < low) | (flat > high), axis=-1)
        return xp.where(outside, xp.full_like(density, -math.inf), density)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw ``n`` values on the constrained scale: ``(n, *shape)``."""
        return np.asarray(self.support.constrain(self._draw(rng, n), self.shape))


def as_shape(shape: int | Shape) -> Shape:
    """Read a shape as a user writes it, ``8`` or ``(2, 3)``; refuse axes of length zero.

    Examples
    --------
    >>> as_shape(8)
    (8,)
    """
    try:
        entries = tuple(map(index, shape)) if isinstance(shape, Iterable) else (index(shape),)
    except TypeError:
        entries = (0,)
    if any(axis < 1 for axis in entries):
        msg = (
            f"`shape` must be a whole number or a tuple of them, each at least 1, got {shape!r}; a scalar has shape ()"
        )
        raise ValueError(msg)
    return entries


def finite_numbers(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """Copy a parameter to a read-only float array; refuse anything but finite numbers."""
    numbers = array_of(name, value)
    if not np.all(np.isfinite(numbers)):
        msg = f"`{name}` must be finite, got {brief(numbers)}"
        raise ValueError(msg)
    numbers.flags.writeable = False
    return numbers


def check_positive(name: str, value: NDArray[np.float64]) -> None:
    """Refuse a parameter unless all its entries are positive."""
    if not np.all(value > 0):
        msg = f"`{name}` must be positive, got {float(np.min(value))}"
        raise ValueError(msg)


def check_probability(name: str, value: NDArray[np.float64]) -> None:
    """Refuse a parameter unless all its entries lie in [0, 1]."""
    outside = (value < 0) | (value > 1)
    if np.any(outside):
        msg = f"`{name}` must lie in [0, 1], got {float(value[outside].flat[0])}"
        raise ValueError(msg)


def check_definite(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """Copy symmetric positive definite matrices (..., d, d) and make them exactly symmetric."""
    matrix = finite_numbers(name, value)
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2] or matrix.size == 0:
        msg = f"`{name}` must be a square matrix of shape (d, d) with d at least 1, got shape {matrix.shape}"
        raise ValueError(msg)
    mirror = np.swapaxes(matrix, -1, -2)
    asymmetry = float(np.max(np.abs(matrix - mirror)))
    if asymmetry > 1e-8 * float(np.max(np.abs(matrix))):
        msg = f"`{name}` must be symmetric, got entries that differ from their mirror by up to {asymmetry:.3g}"
        raise ValueError(msg)
    for eigenvalues in np.linalg.eigvalsh(matrix).reshape(-1, matrix.shape[-1]):
        if eigenvalues[0] <= len(eigenvalues) * np.finfo(np.float64).eps * eigenvalues[-1]:
            msg = (
                f"`{name}` must be positive definite, got a smallest eigenvalue of {eigenvalues[0]:.3g} "
                f"(the largest is {eigenvalues[-1]:.3g}); a small multiple of the identity may be added"
            )
            raise ValueError(msg)
    symmetric: NDArray[np.float64] = (matrix + mirror) / 2
    symmetric.flags.writeable = False
    return symmetric


def broadcast_shape(shape: int | Shape | None, parameters: dict[str, NDArray[np.float64]]) -> Shape:
    """Shape given by the user, or else by the parameters; refuse parameters that do not fit it."""
    shapes = {name: value.shape for name, value in parameters.items()}
    try:
        common = np.broadcast_shapes(*shapes.values())
        target = as_shape(common if shape is None else shape)
        fits = np.broadcast_shapes(common, target) == target
    except ValueError as error:
        if "`shape`" in str(error):
            raise
        fits, target = False, ()
    if not fits:
        listed = ", ".join(f"`{name}` {given}" for name, given in shapes.items())
        rule = "to one shape" if shape is None else f"to `shape` {shape}"
        msg = f"parameters must broadcast {rule}, got {listed}"
        raise ValueError(msg)
    return target


def _location_and_scale(u: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Median, and interquartile range over that of a standard normal; the latter is positive."""
    u = np.clip(np.nan_to_num(u, nan=0.0), -_START_LIMIT, _START_LIMIT)
    lower, median, upper = np.quantile(u, [0.25, 0.5, 0.75], axis=0)
    scale = (upper - lower) / _NORMAL_RANGE
    return median, np.where(scale > 0, scale, 1.0)


def brief(value: NDArray[np.float64]) -> str:
    """Print small arrays in full and large ones by their shape."""
    return repr(value.tolist()) if value.size <= 6 else f"<array of shape {value.shape}>"
