"""Normal priors: a Gaussian posterior uses them in closed form."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qbvi.arrays import Array, array_namespace
from qbvi.distributions.base import Distribution, Independent, Quadratic, Spec, check_definite, finite_numbers
from qbvi.supports import Real, Shape, like

__all__ = ["MultivariateNormal", "Normal"]


class GaussianInU(Independent):
    """Independent scalars that are Gaussian in ``u``; the two parameters are location and scale."""

    def _log_kernel(self, u: Array) -> Array:
        loc, scale = (like(u, value) for value in self._flat.values())
        z = (u - loc) / scale
        return -(z**2) / 2

    def _log_constant(self) -> NDArray[np.float64]:
        _, scale = self._flat.values()
        return -np.log(scale) - math.log(2 * math.pi) / 2

    def _draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        loc, scale = self._flat.values()
        return loc + scale * rng.standard_normal((n, self.dim))

    def quadratic(self) -> Quadratic:
        """``loc / scale**2`` and ``1 / scale**2``, each (k,)."""
        loc, scale = self._flat.values()
        return loc / scale**2, scale**-2

    def initial(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The location and the scale."""
        loc, scale = self._flat.values()
        return loc.copy(), scale.copy()


class Normal(GaussianInU):
    """Normal distribution, given by its standard deviation as in SciPy, PyMC and NumPyro.

    Parameters
    ----------
    loc : array_like
        Mean.
    scale : array_like
        Standard deviation, positive.
    shape : int or tuple of int, optional
        Shape of the parameter. By default the broadcast shape of ``loc`` and ``scale``.

    Examples
    --------
    >>> prior = Normal(0.0, 5**0.5, shape=8)
    >>> prior.shape
    (8,)
    >>> Normal([0.0, 1.0], 2.0)
    Normal(loc=[0.0, 1.0], scale=2.0)
    """

    loc: NDArray[np.float64]
    scale: NDArray[np.float64]

    def __init__(self, loc: ArrayLike = 0.0, scale: ArrayLike = 1.0, shape: int | Shape | None = None) -> None:
        super().__init__(Real(), shape, {"loc": loc, "scale": scale}, positive=("scale",))


class MultivariateNormal(Distribution):
    """Normal distribution of a vector with a full covariance matrix.

    Parameters
    ----------
    mean : array_like (d,) or float
    cov : array_like (d, d)
        Symmetric positive definite.

    Examples
    --------
    >>> MultivariateNormal([0.0, 1.0], [[2.0, 0.5], [0.5, 1.0]]).shape
    (2,)
    """

    holds_code = False

    def __init__(self, mean: ArrayLike, cov: ArrayLike) -> None:
        self.cov = _covariance(cov)
        self.shape = (len(self.cov),)
        self.support = Real()
        self.mean = _mean(mean, self.shape)
        self._whiten = np.linalg.inv(np.linalg.cholesky(self.cov))  # W with W cov W' = I
        self._precision = self._whiten.T @ self._whiten
        self._constant = float(np.sum(np.log(np.diag(self._whiten)))) - self.dim * math.log(2 * math.pi) / 2

    @property
    def can_sample(self) -> bool:
        """True: the normal distribution is proper."""
        return True

    def log_prob(self, x: Array) -> Array:
        """Log-density: (n, d) -> (n,)."""
        z = (x - like(x, self.mean)) @ like(x, self._whiten.T)
        return self._constant - array_namespace(x).sum(z**2, axis=-1) / 2

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw ``n`` vectors: (n, d)."""
        return self.mean + rng.standard_normal((n, self.dim)) @ np.linalg.cholesky(self.cov).T

    def quadratic(self) -> Quadratic:
        """``cov^-1 mean`` (d,) and ``cov^-1`` (d, d)."""
        return self._precision @ self.mean, self._precision.copy()

    def initial(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The mean and the standard deviations."""
        return self.mean.copy(), np.sqrt(np.diag(self.cov))

    def to_spec(self) -> Spec:
        """Describe this prior as plain data."""
        return {"kind": "MultivariateNormal", "mean": self.mean.tolist(), "cov": self.cov.tolist()}

    def __repr__(self) -> str:
        return f"MultivariateNormal(mean, cov; d={self.dim})"


def _covariance(cov: ArrayLike) -> NDArray[np.float64]:
    matrix = check_definite("cov", cov)
    if matrix.ndim != 2:
        msg = f"`cov` must be a square matrix of shape (d, d) with d at least 1, got shape {matrix.shape}"
        raise ValueError(msg)
    return matrix


def _mean(mean: ArrayLike, shape: Shape) -> NDArray[np.float64]:
    vector = finite_numbers("mean", mean)
    if vector.shape not in ((), shape):
        msg = f"`mean` must be one number or have shape {shape} to match `cov`, got shape {vector.shape}"
        raise ValueError(msg)
    return np.broadcast_to(vector, shape)
