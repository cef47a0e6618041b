"""CGVB: the reparametrisation trick on a Cholesky factor (Titsias and Lazaro-Gredilla, 2014)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.arguments import a_function, flag, positive_number
from qbvi.arrays import Array, to_numpy
from qbvi.baselines.euclidean import Euclidean, EuclideanState
from qbvi.baselines.factor import FactorCoordinates
from qbvi.families.base import GaussianFamily
from qbvi.model import Model
from qbvi.points import count, mapped, row, stacked
from qbvi.protocol import Info, Values
from qbvi.updates import LearningRate

__all__ = ["CGVB", "jax_gradient"]

Floats = NDArray[np.float64]
Gradient = Callable[..., Any]

_TINY = 1e-6  # step of differences of qbvi's own maps, which are smooth at unit scale
_RATE = LearningRate(0.02, decay_after=200)


@dataclass(frozen=True)
class CGVB(Euclidean):
    r"""Cholesky Gaussian variational Bayes: the reparametrisation trick with the model's gradient.

    With :math:`\theta = \mu + L z` and :math:`h = \log p(y, \theta) - \log q(\theta)`:

    .. math::
        \nabla_\mu \mathcal{L} = E[\nabla_\theta h], \qquad
        \nabla_L \mathcal{L} = E[\mathrm{tril}(\nabla_\theta h\, z')]

    Parameters
    ----------
    n_samples, updates, learning_rate, stop, window, keep, initial_sd, n_fresh
        As in `qbvi.QBVI`; here they act on Euclidean gradients.
    gradient
        Gradient of the log-likelihood at a point, by the parameters that the log-likelihood sees,
        in the same structure: an array, or a dict of arrays. CGVB adds the chain rule to the
        unconstrained scale and the gradient of the prior. The default is central differences of
        the log-likelihood, which cost 2 d evaluations per draw; these are counted.
    vectorized
        Whether ``gradient`` takes points along a first axis.
    difference
        Step of the central differences, in standard deviations of q.
    scaling
        As in `qbvi.baselines.BBVI`.
    model
        The parameters of a given gradient; `qbvi.fit` sets it.

    Notes
    -----
    With mini-batches a given gradient is that of all data, because it does not know which rows were
    drawn. Differences follow the batch.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> stop = qbvi.MaxIterations(300)
    >>> method = qbvi.baselines.CGVB(gradient=lambda x: -2 * (x - 1), n_samples=10, stop=stop)
    >>> fit = qbvi.fit(lambda x: -((x - 1) ** 2).sum(), qbvi.Flat(shape=2), method=method, seed=1)
    >>> bool(np.all(np.abs(fit.mean - 1) < 0.1))
    True
    """

    n_samples: int = 10
    learning_rate: float | LearningRate = _RATE
    keep: str = "last"
    gradient: Gradient | None = None
    vectorized: bool = False
    difference: float = 1e-3
    model: Model | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        a_function("gradient", self.gradient, optional=True)  # None: central differences
        positive_number("difference", self.difference)
        flag("vectorized", self.vectorized)

    def for_model(self, model: Model) -> CGVB:
        """Return the method for ``model``, whose parameters a given gradient refers to."""
        return replace(self, model=model)

    def notes(self, state: EuclideanState) -> tuple[str, ...]:
        """State the cost of the gradients."""
        if self.gradient is None:
            return ("gradients are central differences; the evaluations include theirs",)
        return (f"{state.t * self.n_samples:,} gradients were computed in addition to the evaluations",)

    def ask(self, family: GaussianFamily, state: EuclideanState, rng: np.random.Generator) -> Array:
        """Independent draws from q: (n, d).

        For differences, also their neighbours on both sides: (n + 2 d n, d).
        """
        z = rng.standard_normal((self.n_samples, family.dim))
        mu, L = FactorCoordinates(family).open(state.x)
        draws = mu + z @ L.T
        if self.gradient is not None:
            return draws
        aside = self.difference * L.T[None]
        neighbours = [(draws[:, None] + side * aside).reshape(-1, family.dim) for side in (1, -1)]
        return np.concatenate([draws, *neighbours])

    def tell(
        self, family: GaussianFamily, eta: Array, state: EuclideanState, theta: Array, values: Values
    ) -> tuple[EuclideanState, Info]:
        """Take a step along the estimated gradient."""
        draws = theta[: self.n_samples]
        h = family.residual(state.q, draws, values.log_joint[: self.n_samples])
        slopes = self._differences(family, values) if self.gradient is None else self._given(family, state, draws)
        return self.climb(family, state, path_gradient(family, state.x, draws, slopes), h)

    def _differences(self, family: GaussianFamily, values: Values) -> Floats:
        """Gradients of the log joint in whitened coordinates (n, d); NaN if a value is missing."""
        y = np.where(values.ok, values.log_joint, np.nan)[self.n_samples :]
        ahead, behind = y.reshape(2, self.n_samples, family.dim)
        return np.asarray((ahead - behind) / (2 * self.difference))

    def _given(self, family: GaussianFamily, state: EuclideanState, u: Floats) -> Floats:
        """Gradients of the log joint in whitened coordinates, from the user's gradient: (n, d)."""
        if self.model is None:
            msg = "`gradient` refers to constrained values, so CGVB needs the model: call method.for_model(model) first"
            raise ValueError(msg)
        slopes = _likelihood_slopes(self, self.model, u) + _prior_slopes(self.model, u)
        return np.asarray(slopes @ FactorCoordinates(family).open(state.x).L)


def path_gradient(family: GaussianFamily, x: Floats, theta: Floats, slopes: Floats) -> Floats:
    """Gradient of the bound by the coordinates ``x``: (size,).

    ``slopes`` are the whitened gradients L' grad log p(y, theta) (n, d). Draws with an unknown
    gradient are left out.
    """
    coordinates = FactorCoordinates(family)
    mu, L = coordinates.open(x)
    known = np.all(np.isfinite(slopes), axis=1)
    if not known.any():
        return np.full(coordinates.size, np.nan)
    z = scipy.linalg.solve_triangular(L, (theta[known] - mu).T, lower=True).T
    # grad h = grad log p + L^-T z
    by_theta = scipy.linalg.solve_triangular(L, (slopes[known] + z).T, lower=True, trans="T").T
    return coordinates.gradient(x, by_theta.mean(axis=0), by_theta.T @ z / len(z))


def jax_gradient(log_likelihood: Callable[[Any], Any]) -> Gradient:
    """Gradient of a log-likelihood in JAX, for ``CGVB(gradient=..., vectorized=True)``.

    It is computed in double precision.

    Parameters
    ----------
    log_likelihood
        A function of one point, written in ``jax.numpy``, that returns a number.

    Examples
    --------
    >>> import pytest
    >>> jnp = pytest.importorskip("jax.numpy", reason="jax is not installed")
    >>> gradient = jax_gradient(lambda x: -jnp.sum(x**2))
    >>> gradient(np.array([[1.0, 2.0]]))
    array([[-2., -4.]])
    """
    try:
        import jax
    except ImportError as error:
        msg = "`jax_gradient` needs JAX: pip install 'qbvi[jax]', or give CGVB your own `gradient`"
        raise ImportError(msg) from error
    compiled = jax.jit(jax.vmap(jax.grad(log_likelihood)))

    def gradient(points: Any) -> Any:
        with _double_precision():
            return jax.tree.map(to_numpy, compiled(jax.tree.map(jax.numpy.asarray, points)))

    return gradient


def _double_precision() -> Any:
    try:
        from jax import enable_x64
    except ImportError:  # older versions have it elsewhere
        from jax.experimental import enable_x64
    return enable_x64(True)


def _likelihood_slopes(method: CGVB, model: Model, u: Floats) -> Floats:
    """Gradient of the log-likelihood by ``u``: the user's, times the derivative of the map."""
    points = model.constrain(u)
    by_values = _called(method, model, points)
    return np.asarray(np.einsum("np,npd->nd", by_values, _jacobian(model, u)))


def _called(method: CGVB, model: Model, points: Any) -> Floats:
    """The user's gradient at n points, side by side: (n, p)."""
    gradient = cast(Gradient, method.gradient)
    if method.vectorized:
        returned = gradient(points)
    else:
        returned = stacked([gradient(row(points, i)) for i in range(count(points))])
    try:
        flat = to_numpy(model.flatten(mapped(lambda value: np.asarray(value, dtype=np.float64), returned)))
    except (TypeError, ValueError, IndexError) as error:
        msg = f"`gradient` must return the structure of the parameters, {', '.join(model.labels[:4])} ..., got {returned!r}"
        raise ValueError(msg) from error
    if flat.shape != (len(flat), len(model.labels)):
        msg = f"`gradient` must return {len(model.labels)} numbers for each point, got {flat.shape[1:]}"
        raise ValueError(msg)
    return flat


def _jacobian(model: Model, u: Floats) -> Floats:
    """Derivative of the constrained values by ``u``, by central differences: (n, p, d)."""
    columns = []
    for aside in _TINY * np.eye(model.dim):
        ahead, behind = (to_numpy(model.flatten(model.constrain(u + side * aside))) for side in (1, -1))
        columns.append((ahead - behind) / (2 * _TINY))
    return np.stack(columns, axis=-1)


def _prior_slopes(model: Model, u: Floats) -> Floats:
    """Gradient of the log prior of ``u``: exact if quadratic, else by central differences."""
    linear, precision = model.quadratic_prior()
    quadratic = linear - (u * precision if precision.ndim == 1 else u @ precision)
    ahead, behind = (
        np.stack([model.remaining_log_prior(u + side * aside) for aside in _TINY * np.eye(model.dim)], axis=1)
        for side in (1, -1)
    )
    return np.asarray(quadratic + (ahead - behind) / (2 * _TINY))
