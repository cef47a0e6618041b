"""Problems of nested samplers: a prior transform from the unit cube, and a log-likelihood."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import a_function, flag, shown, whole_number
from qbvi.distributions import Normal, Transformed
from qbvi.problem import Problem, with_arguments
from qbvi.supports import UnitCube

__all__ = ["from_cube", "unique_names"]

Floats = NDArray[np.float64]


def from_cube(  # noqa: PLR0913 - two functions, and what is to be known of them
    prior_transform: Callable[[Floats], Any],
    log_likelihood: Callable[..., Any],
    d: int,
    names: Sequence[str] | None = None,
    vectorized: bool = False,
    inverse: Callable[[Floats], Any] | None = None,
    args: Sequence[Any] = (),
) -> Problem:
    r"""A problem from a prior transform and a log-likelihood, as nested samplers take them.

    These are the two functions of dynesty, nautilus, UltraNest, PyMultiNest and others. The prior
    is that of ``theta = prior_transform(u)`` for ``u`` uniform on the unit cube.

    .. math:: \theta = T(\Phi(z)), \quad z \sim N(0, I)

    The fit is made in ``z``. Means, draws, quantiles and densities are those of ``theta``, and the
    evidence is the one that a nested sampler computes.

    Parameters
    ----------
    prior_transform : callable
        Array (d,) of numbers between 0 and 1 -> parameters (d,). Entries may depend on each other,
        as in conditional priors. If it returns a dict of numbers by name, the parameters have these
        names, and ``log_likelihood`` gets such a dict.
    log_likelihood : callable
        Parameters (d,) -> float.
    d : int
        Number of parameters.
    names : sequence of str, optional
        Names of the parameters, for tables and plots.
    vectorized : bool
        Whether both functions take many points at once: (n, d) -> (n, d), and (n, d) -> (n,).
    inverse : callable, optional
        The inverse of ``prior_transform``: parameters (d,) -> (d,) between 0 and 1. Without it, the
        transform is inverted one coordinate after another, where that is possible. ``log_prob``,
        ``init`` and ``evaluations`` need the inverse. The fit itself does not.
    args : sequence
        Further arguments of ``log_likelihood``, after the parameters.

    Returns
    -------
    Problem
        ``problem.fit(seed=1)`` fits it.

    Examples
    --------
    A line through three points; the slope is uniform, the intercept normal.

    >>> import numpy as np, qbvi
    >>> from scipy.special import ndtri
    >>> x, y = np.array([0.0, 1.0, 2.0]), np.array([0.9, 3.1, 5.0])
    >>> def prior_transform(u):
    ...     return np.array([10 * u[0] - 5, 2 * ndtri(u[1])])
    >>> def log_likelihood(theta):
    ...     return -0.5 * np.sum((y - theta[0] * x - theta[1]) ** 2) - 1.5 * np.log(2 * np.pi)
    >>> names = ["slope", "intercept"]
    >>> fit = qbvi.from_cube(prior_transform, log_likelihood, 2, names=names).fit(seed=1)
    >>> fit.converged, bool(np.abs(fit.mean - [2.148, 0.786]).max() < 0.02)
    (True, True)
    >>> bool(abs(fit.evidence + 5.925) < 0.05)
    True
    """
    a_function("prior_transform", prior_transform)
    a_function("log_likelihood", log_likelihood)
    a_function("inverse", inverse, optional=True)
    d, vectorized = whole_number("d", d), flag("vectorized", vectorized)
    named = None if names is None else unique_names(names, d)
    keys = _keys(prior_transform, d, vectorized)
    if keys:
        named = keys if named is None else _matching(named, keys)
        prior_transform, log_likelihood = _Flattened(prior_transform, keys), _ByName(log_likelihood, keys)
    support = UnitCube(prior_transform, d, inverse, vectorized, named or ())
    prior = Transformed(Normal(0.0, 1.0, shape=d), support)
    support.constrain(np.zeros((1, d)), (d,))  # refuses a transform of another shape
    return Problem(with_arguments(log_likelihood, args), prior, options={"vectorized": vectorized})


def unique_names(names: Sequence[str], d: int) -> tuple[str, ...]:
    """Names of ``d`` parameters, all different."""
    found = (names,) if isinstance(names, str) else tuple(names)
    is_text = all(isinstance(name, str) for name in found) and all(found)
    if not is_text or len(set(found)) != len(found) or len(found) != d:
        msg = f"`names` must be {d} different names, one for each parameter, got {shown(list(found))}"
        raise ValueError(msg)
    return found


def _keys(prior_transform: Callable[[Floats], Any], d: int, vectorized: bool) -> tuple[str, ...]:
    """Names of a transform that returns a dict; none if it returns an array."""
    middle = np.full((2, d) if vectorized else d, 0.5)
    theta = prior_transform(middle)
    if not isinstance(theta, Mapping):
        return ()
    sizes = {name: np.size(value) for name, value in theta.items()}
    if len(sizes) != d or any(size != (2 if vectorized else 1) for size in sizes.values()):
        msg = f"`prior_transform` must return {d} numbers by name, got {', '.join(map(repr, sizes))} with sizes {list(sizes.values())}"
        raise ValueError(msg)
    return tuple(map(str, theta))


def _matching(names: tuple[str, ...], keys: tuple[str, ...]) -> tuple[str, ...]:
    if names != keys:
        msg = f"`names` must be those of the dict that `prior_transform` returns, {list(keys)}, got {list(names)}; leave it out"
        raise ValueError(msg)
    return names


@dataclass(frozen=True, eq=False)
class _Flattened:
    """A transform that returns a dict, as one that returns an array."""

    transform: Callable[[Floats], Mapping[str, Any]]
    names: tuple[str, ...]

    def __call__(self, u: Floats) -> Floats:
        theta = self.transform(u)
        return np.stack([np.asarray(theta[name], dtype=np.float64).reshape(u.shape[:-1]) for name in self.names], -1)


@dataclass(frozen=True, eq=False)
class _ByName:
    """A log-likelihood of a dict, as one of an array."""

    log_likelihood: Callable[..., Any]
    names: tuple[str, ...]

    def __call__(self, theta: Floats, *args: Any) -> Any:
        return self.log_likelihood({name: theta[..., i] for i, name in enumerate(self.names)}, *args)
