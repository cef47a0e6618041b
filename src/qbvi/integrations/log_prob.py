"""Problems of ensemble samplers: the log of prior times likelihood, and where to start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import array_of, flag
from qbvi.distributions import Flat
from qbvi.integrations.cube import unique_names
from qbvi.model import Vector
from qbvi.problem import Problem, with_arguments

__all__ = ["from_log_prob"]

Floats = NDArray[np.float64]


def from_log_prob(
    log_prob: Callable[..., Any],
    init: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
    vectorized: bool = False,
) -> Problem:
    """A problem from the log of prior times likelihood, as emcee and zeus take it.

    Bounds are where ``log_prob`` is ``-inf``. The fit finds the scale of each parameter by itself.
    If ``log_prob`` has its constants, `qbvi.Fit.evidence` is the log evidence.

    Parameters
    ----------
    log_prob : callable
        Parameters (d,) -> float, ``-inf`` outside of bounds. If it returns a tuple or a list, all
        but the first entry are blobs, which are left out.
    init : array (d,) or array (n, d)
        Where to start: one point, or walkers. The scale of the first iteration is then their
        spread, and its centre is the walker in their middle.
    args, kwargs : sequence, mapping
        Further arguments of ``log_prob``, after the parameters.
    names : sequence of str, optional
        Names of the parameters, for tables and plots.
    vectorized : bool
        Whether ``log_prob`` takes (n, d) and returns (n,).

    Returns
    -------
    Problem
        ``problem.fit(seed=1)`` fits it.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> def log_prob(theta, mean, sd):
    ...     if not 0 < theta[1] < 10:
    ...         return -np.inf
    ...     return -0.5 * np.sum(((theta - mean) / sd) ** 2)
    >>> mean, sd = np.array([1.0, 5.0]), np.array([0.01, 0.5])
    >>> problem = qbvi.from_log_prob(log_prob, init=[0.9, 4.0], args=(mean, sd), names=["a", "b"])
    >>> fit = problem.fit(seed=1)
    >>> fit.converged, fit.mean.round(2), fit.sd.round(2)
    (True, array([1., 5.]), array([0.01, 0.5 ]))
    """
    vectorized = flag("vectorized", vectorized)
    start = _start(init)
    d = len(start.centre)
    labels = [f"theta[{i}]" for i in range(d)] if names is None else unique_names(names, d)
    prior = Vector({name: Flat((), scale=s) for name, s in zip(labels, start.scale.tolist(), strict=True)})
    function = WithoutBlobs(with_arguments(log_prob, args, kwargs), vectorized)
    return Problem(function, prior, start.centre, {"vectorized": vectorized})


class _Start(NamedTuple):
    centre: Floats  # (d,)
    scale: Floats  # (d,)


def _start(init: Any) -> _Start:
    given = array_of("init", getattr(init, "coords", init))
    if given.ndim not in (1, 2) or given.size == 0:
        msg = f"`init` must be one point (d,) or walkers (n, d), got shape {given.shape}"
        raise ValueError(msg)
    if not np.all(np.isfinite(given)):
        msg = f"`init` must be finite, got {given[~np.isfinite(given)][0]}"
        raise ValueError(msg)
    if given.ndim == 1:
        return _Start(given, np.ones(len(given)))
    spread = given.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    middle = np.argmin(np.sum(((given - np.median(given, axis=0)) / scale) ** 2, axis=1))
    return _Start(given[middle], scale)


@dataclass(frozen=True, eq=False)
class WithoutBlobs:
    """A log-density that may return further values after the first, as emcee allows."""

    function: Callable[..., Any]
    vectorized: bool = field(default=False)

    def __call__(self, theta: Floats, *args: Any) -> Any:
        """The log-density alone."""
        value = self.function(theta, *args)
        if self.vectorized:
            found = np.asarray(value)
            return found[:, 0] if found.ndim > 1 else found
        if isinstance(value, tuple | list):
            return value[0]
        if np.size(value) > 1:
            msg = (
                f"`log_prob` must return a number, or a tuple of a number and blobs, got an array of shape {np.shape(value)}; "
                "was a sum forgotten?"
            )
            raise TypeError(msg)
        return value
