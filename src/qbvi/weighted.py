"""Weighted draws: expectations under the posterior itself, from draws of its approximation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.points import count, mapped, row

__all__ = ["Expectation", "WeightedDraws"]

Floats = NDArray[np.float64]


class Expectation(NamedTuple):
    """An expectation, its standard error, and the effective sample size behind it.

    Examples
    --------
    >>> Expectation(1.25, 0.5, 90.0, True)
    1.25 ± 0.5, from 90 effective draws
    """

    value: Any  # a float, or an array of the function's shape
    se: Any  # likewise
    ess: float
    is_weighted: bool  # whether importance weights correct the approximation

    def __repr__(self) -> str:
        whose = "" if self.is_weighted else " of the approximation, without weights"
        return f"{_shown(self.value)} ± {_shown(self.se)}, from {self.ess:,.0f} effective draws{whose}"


@dataclass(frozen=True, eq=False, repr=False)
class WeightedDraws:
    """Draws from an approximation, with weights that make them draws from the posterior.

    Attributes
    ----------
    draws : dict of arrays or array
        Constrained values in the structure of the prior, draws along the first axis.
    weights : array (n,)
        Weights with sum one.
    is_weighted : bool
        Whether the weights are importance weights; otherwise all are equal.

    Examples
    --------
    >>> import numpy as np
    >>> draws = WeightedDraws(np.array([0.0, 1.0, 2.0]), np.array([0.25, 0.5, 0.25]))
    >>> draws
    3 weighted draws, effective sample size 2.7
    >>> draws.mean, draws.expect(lambda x: x**2).value
    (1.0, 1.5)
    """

    draws: Any
    weights: Floats
    is_weighted: bool = True

    @property
    def ess(self) -> float:
        """Effective sample size: one over the sum of the squared weights."""
        return float(1 / np.sum(self.weights**2))

    @property
    def mean(self) -> Any:
        """Mean of every parameter."""
        return mapped(lambda x: _plain(self._moments(x)[0]), self.draws)

    @property
    def sd(self) -> Any:
        """Standard deviation of every parameter."""
        return mapped(lambda x: _plain(np.sqrt(self._moments(x)[1])), self.draws)

    def expect(self, f: Callable[[Any], Any], vectorized: bool = False) -> Expectation:
        r"""Expectation of any function of a point.

        .. math:: \bar f = \sum_i w_i f_i, \quad \mathrm{se}^2 = \sum_i w_i^2 (f_i - \bar f)^2

        Parameters
        ----------
        f : function
            A function of one constrained point that returns a number or an array.
        vectorized : bool
            Whether ``f`` takes all points, stacked along a first axis, and returns one value each.
        """
        n = len(self.weights)
        values = f(self.draws) if vectorized else [f(row(self.draws, i)) for i in range(n)]
        array = np.asarray(values, dtype=np.float64)
        if array.ndim == 0 or len(array) != n:
            msg = f"`f` must return one value for each of the {n} points, got shape {array.shape}; for one point at a time pass vectorized=False"
            raise ValueError(msg)
        # A draw of weight zero may lie where the function is not defined.
        array = np.where(_along(self.weights, array) > 0, array, 0.0)
        mean = self._moments(array)[0]
        error = np.sqrt(np.sum((_along(self.weights, array) * (array - mean)) ** 2, axis=0))
        return Expectation(_plain(mean), _plain(error), self.ess, self.is_weighted)

    def __len__(self) -> int:
        return count(self.draws)

    def __repr__(self) -> str:
        return f"{len(self):,} weighted draws, effective sample size {self.ess:,.1f}"

    def _moments(self, x: Floats) -> tuple[Floats, Floats]:
        """Weighted mean and variance along the first axis."""
        weights = _along(self.weights, x)
        mean = np.sum(weights * x, axis=0)
        return mean, np.sum(weights * (x - mean) ** 2, axis=0)


def _along(weights: Floats, x: Floats) -> Floats:
    """The weights (n,) with as many axes as x (n, ...)."""
    return weights.reshape(-1, *(1 for _ in range(np.ndim(x) - 1)))


def _plain(x: Any) -> Any:
    return float(x) if np.ndim(x) == 0 else x


def _shown(x: Any) -> str:
    return f"{x:.4g}" if np.ndim(x) == 0 else np.array2string(np.asarray(x), precision=4)
