"""Priors of vectors whose entries depend on each other."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from qbvi.arrays import Array, array_namespace
from qbvi.distributions.base import Distribution, Spec, brief, broadcast_shape, check_positive, finite_numbers
from qbvi.distributions.univariate import log_gamma_draws
from qbvi.supports import Shape, Simplex, bounded_log, like

__all__ = ["Dirichlet"]


class Dirichlet(Distribution):
    r"""Dirichlet distribution along the last axis, :math:`p(x) \propto \prod_k x_k^{c_k - 1}`.

    Parameters
    ----------
    concentration : array_like (..., K)
        Positive, K at least 2.
    shape : int or tuple of int, optional
        Shape of the parameter; that of ``concentration`` unless given.

    Examples
    --------
    >>> Dirichlet([1.0, 1.0, 1.0]).log_prob(np.array([[0.2, 0.3, 0.5]])).round(6)
    array([0.693147])
    """

    support: Simplex

    def __init__(self, concentration: ArrayLike, shape: int | Shape | None = None) -> None:
        self._given = finite_numbers("concentration", concentration)
        check_positive("concentration", self._given)
        self.shape = broadcast_shape(shape, {"concentration": self._given})
        self.support = Simplex()
        self.support.unconstrained_size(self.shape)  # refuses fewer than two categories
        self.concentration = np.broadcast_to(self._given, self.shape)

    @property
    def can_sample(self) -> bool:
        """True: it is proper."""
        return True

    def log_prob(self, x: Array) -> Array:
        """Log-density of the first K - 1 entries, minus infinity outside of the simplex: ``(n, *shape)`` -> (n,)."""
        xp = array_namespace(x)
        terms = (like(x, self.concentration) - 1) * bounded_log(x)
        inside = xp.all(x >= 0, axis=-1) & (xp.abs(xp.sum(x, axis=-1) - 1) <= 1e-6)
        density = xp.where(inside, xp.sum(terms, axis=-1), xp.full_like(x[..., 0], -math.inf))
        return self._row_sum(density) + self._log_constant()

    def log_prob_unconstrained(self, u: Array) -> Array:
        """Log-density of ``u``, with the log-Jacobian: (n, k) -> (n,)."""
        xp = array_namespace(u)
        log_x = self.support.log_constrain(u, self.shape)
        jacobian = math.prod(self.shape[:-1]) * math.log(self.shape[-1]) / 2
        return self._row_sum(xp.sum(like(u, self.concentration) * log_x, axis=-1)) + self._log_constant() + jacobian

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw ``n`` values on the constrained scale: ``(n, *shape)``."""
        return np.asarray(self.support.constrain(self._draw(rng, n), self.shape))

    def to_spec(self) -> Spec:
        """Describe this prior by plain data."""
        return {"kind": "Dirichlet", "concentration": self._given.tolist(), "shape": list(self.shape)}

    def __repr__(self) -> str:
        shape = "" if self.shape == self._given.shape else f", shape={self.shape}"
        return f"Dirichlet(concentration={brief(self._given)}{shape})"

    def _draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return self.support.unconstrain_log(log_gamma_draws(rng, self.concentration, n), self.shape)  # type: ignore[no-any-return]

    def _log_constant(self) -> float:
        total = gammaln(np.sum(self.concentration, axis=-1))
        return float(np.sum(total) - np.sum(gammaln(self.concentration)))

    @staticmethod
    def _row_sum(terms: Array) -> Array:
        xp = array_namespace(terms)
        return xp.sum(xp.reshape(terms, (terms.shape[0], math.prod(terms.shape[1:]))), axis=-1)
