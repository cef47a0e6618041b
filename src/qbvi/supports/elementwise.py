"""Supports that treat each entry separately: the real line, half lines, intervals and circles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qbvi.arguments import array_of
from qbvi.arrays import Array, array_namespace, device
from qbvi.supports.base import Elementwise, Shape, to_json
from qbvi.supports.maps import bounded_exp, bounded_log, flat, like, row_sum, shaped, softplus

__all__ = ["Interval", "Periodic", "Positive", "Real"]

# The unconstrained number of a periodic value stays within so many periods of the middle, on either
# side: far enough that no value is near an end, and near enough that q cannot spread for ever.
_TURNS = 1.5
_SOFT_END = 0.25  # standard deviation, in periods, of the Gaussian that ends this range


@dataclass(frozen=True)
class Real(Elementwise):
    """The real line: the identity map.

    Examples
    --------
    >>> import numpy as np
    >>> Real().constrain(np.array([[1.0, 2.0]]), (2,))
    array([[1., 2.]])
    """

    def bounds(self, shape: Shape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of every entry: two arrays (k,)."""
        return np.full(math.prod(shape), -np.inf), np.full(math.prod(shape), np.inf)

    def constrain(self, u: Array, shape: Shape) -> Array:
        """``x = u``, reshaped."""
        return shaped(u, shape)

    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """``u = x``, flattened."""
        return flat(x, shape)

    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """Zero."""
        return row_sum(array_namespace(u).zeros_like(u))


@dataclass(frozen=True)
class Positive(Elementwise):
    """Positive numbers: ``x = exp(u)``.

    Examples
    --------
    >>> import numpy as np
    >>> Positive().constrain(np.array([[0.0]]), ())
    array([1.])
    >>> Positive().log_jacobian(np.array([[0.5]]), ())
    array([0.5])
    """

    def bounds(self, shape: Shape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of every entry: two arrays (k,)."""
        return np.zeros(math.prod(shape)), np.full(math.prod(shape), np.inf)

    def constrain(self, u: Array, shape: Shape) -> Array:
        """``x = exp(u)``."""
        return shaped(bounded_exp(u), shape)

    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """``u = log(x)``."""
        return bounded_log(flat(x, shape))

    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """``sum(u)``."""
        return row_sum(u)


@dataclass(frozen=True)
class Interval(Elementwise):
    """Numbers between ``low`` and ``high``; either end, or both, may be infinite.

    - ``x = low + (high - low) / (1 + exp(-u))`` if both ends are finite,
    - ``x = low + exp(u)`` if only ``low`` is,
    - ``x = high - exp(u)`` if only ``high`` is.

    Parameters
    ----------
    low, high : float or array_like
        The ends; arrays broadcast against the parameter's shape.

    Examples
    --------
    >>> import numpy as np
    >>> Interval(-1.0, 3.0).constrain(np.array([[-800.0, 0.0, 800.0]]), (3,))
    array([[-1.,  1.,  3.]])
    """

    low: Any
    high: Any

    def __post_init__(self) -> None:
        low, high = array_of("low", self.low), array_of("high", self.high)
        both = np.isfinite(low) & np.isfinite(high)
        if not np.all(low < high) or np.any(both & (high / 2 - low / 2 > np.finfo(np.float64).max / 4)):
            msg = (
                f"`low` must be below `high`, at a distance that a float can hold, got low={self.low}, high={self.high}"
            )
            raise ValueError(msg)
        # Nested tuples instead of arrays, so that supports can be compared and hashed.
        object.__setattr__(self, "low", _as_tuples(low.tolist()))
        object.__setattr__(self, "high", _as_tuples(high.tolist()))

    def bounds(self, shape: Shape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of every entry: two arrays (k,)."""
        low, high = (_broadcast_end(end, shape) for end in (self.low, self.high))
        return low, high

    def constrain(self, u: Array, shape: Shape) -> Array:
        """The map of the class docstring, entry by entry."""
        xp = array_namespace(u)
        low, high, above, below = self._ends(u, shape)
        tail = xp.exp(-xp.abs(u))
        # sigmoid(-|u|), the distance from the nearer end: rounding cannot carry x across it.
        part = tail / (1 + tail)
        between = xp.where(u > 0, high - (high - low) * part, low + (high - low) * part)
        half = xp.where(above, low + bounded_exp(u), xp.where(below, high - bounded_exp(u), u))
        return shaped(xp.where(above & below, between, half), shape)

    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """``log(x - low) - log(high - x)``, or one of the two if only one end is finite."""
        xp = array_namespace(x)
        x = flat(x, shape)
        low, high, above, below = self._ends(x, shape)
        from_low, from_high = bounded_log(x - low), bounded_log(high - x)
        half = xp.where(above, from_low, xp.where(below, from_high, x))
        return xp.where(above & below, from_low - from_high, half)

    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """Log-Jacobian of the map: (n, k) -> (n,).

        ``sum(log(high - low) - softplus(u) - softplus(-u))`` if both ends are finite; ``sum(u)``
        if only one is.
        """
        xp = array_namespace(u)
        low, high, above, below = self._ends(u, shape)
        width = xp.where(above & below, high - low, xp.ones_like(u))
        between = xp.log(width) - softplus(u) - softplus(-u)
        return row_sum(xp.where(above & below, between, xp.where(above | below, u, xp.zeros_like(u))))

    def to_spec(self) -> dict[str, Any]:
        """Describe this support as plain data; infinite ends become strings, as JSON requires."""
        return {"kind": "Interval", "low": to_json(self.low), "high": to_json(self.high)}

    def _ends(self, u: Array, shape: Shape) -> tuple[Array, Array, Array, Array]:
        """Ends with zero for infinity, and whether each is finite; four arrays (k,) like ``u``."""
        xp = array_namespace(u)
        low, high = self.bounds(shape)
        above, below = np.isfinite(low), np.isfinite(high)
        ends = (like(u, np.where(finite, end, 0.0)) for end, finite in ((low, above), (high, below)))
        return *ends, xp.asarray(above, device=device(u)), xp.asarray(below, device=device(u))


@dataclass(frozen=True)
class Periodic(Elementwise):
    """Angles, phases and times of the day: numbers from ``low`` to ``low + period``, a circle.

    The unconstrained number ``u`` is the angle on the whole line, and ``x`` is ``u`` less as many
    whole periods as it takes. So there is no wall at which a posterior could be cut off. The
    Gaussian in ``u`` stands for one copy of the posterior. That is right if its standard deviation
    is below a sixth of the period; otherwise the fit does not count as converged.

    The prior has its density on the three copies around the middle and falls off beyond.

    Parameters
    ----------
    period : float or array_like
        The length of a period, positive; arrays broadcast against the parameter's shape.
    low : float or array_like
        Where a period begins.

    Examples
    --------
    >>> import numpy as np
    >>> Periodic(24.0).constrain(np.array([[-1.0, 25.0]]), (2,))
    array([[23.,  1.]])
    """

    period: Any
    low: Any = 0.0

    def __post_init__(self) -> None:
        period, low = np.asarray(self.period, dtype=np.float64), np.asarray(self.low, dtype=np.float64)
        if not np.all(np.isfinite(period) & (period > 0)) or not np.all(np.isfinite(low)):
            msg = f"`period` must be positive and finite, and `low` finite, got period={self.period}, low={self.low}"
            raise ValueError(msg)
        object.__setattr__(self, "period", _as_tuples(period.tolist()))
        object.__setattr__(self, "low", _as_tuples(low.tolist()))

    def bounds(self, shape: Shape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Begin and end of the period of every entry: two arrays (k,)."""
        low, period = (_broadcast_end(end, shape) for end in (self.low, self.period))
        return low, low + period

    def contains(self, x: ArrayLike, *, strict: bool = False) -> bool:
        """Whether every host value is in its period; the ends are values as all others."""
        return super().contains(x)

    def constrain(self, u: Array, shape: Shape) -> Array:
        """``x = u - period * floor((u - low) / period)``."""
        low, high = (like(u, end) for end in self.bounds(shape))
        xp = array_namespace(u)
        x = u - (high - low) * xp.floor((u - low) / (high - low))
        return shaped(xp.minimum(xp.maximum(x, low), high), shape)

    def unconstrain(self, x: Array, shape: Shape) -> Array:
        """``u = x``, flattened."""
        return flat(x, shape)

    def log_jacobian(self, u: Array, shape: Shape) -> Array:
        """Zero on the three periods around the middle, a Gaussian tail beyond: (n, k) -> (n,)."""
        return row_sum(self.log_end(u, shape))

    def log_end(self, u: Array, shape: Shape) -> Array:
        """The terms of `log_jacobian`: (n, k) -> (n, k)."""
        low, high = (like(u, end) for end in self.bounds(shape))
        xp = array_namespace(u)
        turns = xp.abs(u - (low + high) / 2) / (high - low)
        return -0.5 * (xp.maximum(turns - _TURNS, 0 * turns) / _SOFT_END) ** 2

    def to_spec(self) -> dict[str, Any]:
        """Describe this support as plain data."""
        return {"kind": "Periodic", "period": to_json(self.period), "low": to_json(self.low)}


def _broadcast_end(end: Any, shape: Shape) -> NDArray[np.float64]:
    try:
        return np.broadcast_to(np.asarray(end, dtype=np.float64), shape).reshape(-1)
    except ValueError:
        msg = f"the ends of an Interval or Periodic must broadcast to the parameter's shape {shape}, got shape {np.shape(end)}"
        raise ValueError(msg) from None


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list) else value
