"""Priors of vectors and matrices whose entries depend on each other."""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from qbvi.arrays import Array, array_namespace, device
from qbvi.distributions.base import (
    Distribution,
    Spec,
    as_shape,
    brief,
    broadcast_shape,
    check_definite,
    check_positive,
    finite_numbers,
)
from qbvi.distributions.univariate import log_gamma_draws
from qbvi.supports import PositiveDefinite, Shape, Simplex, bounded_log, like

__all__ = ["Dirichlet", "InverseWishart", "Wishart"]


class Dirichlet(Distribution):
    r"""Dirichlet distribution along the last axis, :math:`p(x) \propto \prod_k x_k^{c_k - 1}`.

    Parameters
    ----------
    concentration : array_like (..., K)
        Positive; K is at least 2.
    shape : int or tuple of int, optional
        Shape of the parameter. By default that of ``concentration``.

    Examples
    --------
    >>> Dirichlet([1.0, 1.0, 1.0]).log_prob(np.array([[0.2, 0.3, 0.5]])).round(6)
    array([0.693147])
    """

    support: Simplex
    holds_code = False

    def __init__(self, concentration: ArrayLike, shape: int | Shape | None = None) -> None:
        self._given = finite_numbers("concentration", concentration)
        check_positive("concentration", self._given)
        self.shape = broadcast_shape(shape, {"concentration": self._given})
        self.support = Simplex()
        self.support.unconstrained_size(self.shape)  # refuses fewer than two categories
        self.concentration = np.broadcast_to(self._given, self.shape)

    @property
    def can_sample(self) -> bool:
        """True: the Dirichlet distribution is proper."""
        return True

    def log_prob(self, x: Array) -> Array:
        """Log-density of the first K - 1 entries, minus infinity outside the simplex.

        ``(n, *shape)`` -> (n,).
        """
        xp = array_namespace(x)
        terms = (like(x, self.concentration) - 1) * bounded_log(x)
        inside = xp.all(x >= 0, axis=-1) & (xp.abs(xp.sum(x, axis=-1) - 1) <= 1e-6)
        density = xp.where(inside, xp.sum(terms, axis=-1), xp.full_like(x[..., 0], -math.inf))
        return self._row_sum(density) + self._log_constant()

    def log_prob_unconstrained(self, u: Array) -> Array:
        """Log-density of ``u``, including the log-Jacobian: (n, k) -> (n,)."""
        xp = array_namespace(u)
        log_x = self.support.log_constrain(u, self.shape)
        jacobian = math.prod(self.shape[:-1]) * math.log(self.shape[-1]) / 2
        return self._row_sum(xp.sum(like(u, self.concentration) * log_x, axis=-1)) + self._log_constant() + jacobian

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw ``n`` values on the constrained scale: ``(n, *shape)``."""
        return np.asarray(self.support.constrain(self._draw(rng, n), self.shape))

    def parameters(self) -> dict[str, NDArray[np.float64]]:
        """The concentrations (copies, K)."""
        return {"concentration": self.concentration.reshape(-1, self.shape[-1]).copy()}

    def to_spec(self) -> Spec:
        """Describe this prior as plain data."""
        return {"kind": "Dirichlet", "concentration": self._given.tolist(), "shape": list(self.shape)}

    def __repr__(self) -> str:
        shape = "" if self.shape == self._given.shape else f", shape={self.shape}"
        return f"Dirichlet(concentration={brief(self._given)}{shape})"

    def _draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return self.support.unconstrain_log(log_gamma_draws(rng, self.concentration, n), self.shape)  # type: ignore[no-any-return]

    def _log_constant(self) -> float:
        total = scipy.special.gammaln(np.sum(self.concentration, axis=-1))
        return float(np.sum(total) - np.sum(scipy.special.gammaln(self.concentration)))

    @staticmethod
    def _row_sum(terms: Array) -> Array:
        xp = array_namespace(terms)
        return xp.sum(xp.reshape(terms, (terms.shape[0], math.prod(terms.shape[1:]))), axis=-1)


class MatrixPrior(Distribution):
    """Independent positive definite matrices, each with degrees of freedom and a scale.

    A subclass writes its density once, as a function of the Cholesky factor ``L`` of a matrix and
    the logarithms of its diagonal.
    """

    support: PositiveDefinite
    holds_code = False

    def __init__(self, df: ArrayLike, scale: ArrayLike, shape: int | Shape | None = None) -> None:
        self.df, self.scale = finite_numbers("df", df), check_definite("scale", scale)
        p = self.scale.shape[-1]
        if not np.all(self.df > p - 1):
            msg = f"`df` must be above {p - 1}, one less than the size of the {p} x {p} scale, got {float(np.min(self.df))}"
            raise ValueError(msg)
        self.support = PositiveDefinite()
        self.shape = self._matrices(shape, p)
        copies = math.prod(self.shape[:-2])
        self._df = np.broadcast_to(self.df, self.shape[:-2]).reshape(copies)
        self._scale = np.broadcast_to(self.scale, self.shape).reshape(copies, p, p)
        self._root = np.asarray(np.linalg.cholesky(self._scale), dtype=np.float64)
        self._constant = float(np.sum(self._log_constants()))

    @property
    def can_sample(self) -> bool:
        """True: these priors are proper."""
        return True

    @abstractmethod
    def _log_density(self, factor: Array, log_diagonal: Array) -> Array:
        """Log-density of each copy: (n, copies).

        The arguments are the Cholesky factors (n, copies, p, p) and the logarithms of their
        diagonals (n, copies, p).
        """

    @abstractmethod
    def _log_constants(self) -> NDArray[np.float64]:
        """The constant of each copy: (copies,)."""

    def log_prob(self, x: Array) -> Array:
        """Log-density of the entries on and below the diagonal: ``(n, *shape)`` -> (n,).

        It is minus infinity where a matrix is not positive definite.
        """
        xp = array_namespace(x)
        matrices = self._copies(x)
        inside = self.support.holds(matrices, strict=True)
        factor = xp.linalg.cholesky(xp.where(inside[..., None, None], matrices, like(x, np.eye(self.shape[-1]))))
        terms = self._log_density(factor, xp.log(xp.linalg.diagonal(factor)))
        density = xp.sum(xp.where(inside, terms, xp.full_like(terms, -math.inf)), axis=-1) + self._constant
        return xp.where(xp.any(xp.isnan(matrices), axis=(1, 2, 3)), xp.full_like(density, math.nan), density)

    def log_prob_unconstrained(self, u: Array) -> Array:
        """Log-density of ``u``, including the log-Jacobian: (n, k) -> (n,)."""
        xp = array_namespace(u)
        factor = self._copies(self.support.factor(u, self.shape))
        on_diagonal = np.flatnonzero(np.equal(*np.tril_indices(self.shape[-1])))
        entries = xp.reshape(u, (u.shape[0], len(self._df), -1))
        log_diagonal = xp.take(entries, xp.asarray(on_diagonal, device=device(u)), axis=-1)
        density = xp.sum(self._log_density(factor, log_diagonal), axis=-1) + self._constant
        return density + self.support.log_jacobian(u, self.shape)

    def parameters(self) -> dict[str, NDArray[np.float64]]:
        """Degrees of freedom (copies,) and scale (copies, p, p)."""
        return {"df": self._df.copy(), "scale": self._scale.copy()}

    def to_spec(self) -> Spec:
        """Describe this prior as plain data."""
        kind = type(self).__name__
        return {"kind": kind, "df": self.df.tolist(), "scale": self.scale.tolist(), "shape": list(self.shape)}

    def __repr__(self) -> str:
        given = np.broadcast_shapes(self.df.shape, self.scale.shape[:-2]) + self.scale.shape[-2:]
        shape = "" if self.shape == given else f", shape={self.shape}"
        return f"{type(self).__name__}(df={brief(self.df)}, scale={brief(self.scale)}{shape})"

    def _matrices(self, shape: int | Shape | None, p: int) -> Shape:
        """Shape of the parameter, which ends in (p, p); refuse one that does not."""
        leading = {"df": self.df, "scale": self.scale[..., 0, 0]}
        if shape is None:
            return (*broadcast_shape(None, leading), p, p)
        full = as_shape(shape)
        if full[-2:] != (p, p):
            msg = f"`shape` must end in {(p, p)}, the size of `scale`, got {shape}"
            raise ValueError(msg)
        return (*broadcast_shape(full[:-2], leading), p, p)

    def _copies(self, x: Array) -> Array:
        return array_namespace(x).reshape(x, (x.shape[0], len(self._df), *self.shape[-2:]))

    def _bartlett(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Lower triangular B such that B B' is Wishart with scale I: (n, copies, p, p)."""
        p = self.shape[-1]
        normals = rng.standard_normal((n, len(self._df), p, p))
        log_chi = (math.log(2) + log_gamma_draws(rng, (self._df[:, None] - np.arange(p)) / 2, n)) / 2
        return np.tril(normals, -1) + np.exp(np.maximum(log_chi, -200.0))[..., None] * np.eye(p)

    def _log_det_scale(self) -> NDArray[np.float64]:
        """Log-determinant of each copy's scale: (copies,)."""
        return np.asarray(2 * np.sum(np.log(np.diagonal(self._root, axis1=-2, axis2=-1)), axis=-1))

    def _of_factor(self, factor: NDArray[np.float64]) -> NDArray[np.float64]:
        x = factor @ np.swapaxes(factor, -1, -2)
        return np.asarray((x + np.swapaxes(x, -1, -2)) / 2).reshape(len(x), *self.shape)


class Wishart(MatrixPrior):
    r"""Wishart distribution.

    .. math:: p(X) \propto |X|^{(\mathrm{df} - p - 1) / 2} e^{-\mathrm{tr}(V^{-1} X) / 2}

    Parameters
    ----------
    df : array_like
        Degrees of freedom, above p - 1. The mean is ``df * scale``.
    scale : array_like (..., p, p)
        V, symmetric positive definite.
    shape : tuple of int, optional
        Shape of the parameter, which ends in (p, p). By default the broadcast shape of the others.

    Examples
    --------
    >>> Wishart(3, np.eye(2)).shape
    (2, 2)
    """

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw ``n`` values: ``(n, *shape)``."""
        return self._of_factor(self._root @ self._bartlett(rng, n))

    def _log_density(self, factor: Array, log_diagonal: Array) -> Array:
        trace = _sum_of_squares(like(factor, np.linalg.inv(self._root)) @ factor)  # tr V^-1 X
        power = like(factor, self._df - self.shape[-1] - 1)
        return power * array_namespace(factor).sum(log_diagonal, axis=-1) - trace / 2

    def _log_constants(self) -> NDArray[np.float64]:
        p = self.shape[-1]
        return np.asarray(
            -self._df / 2 * (p * math.log(2) + self._log_det_scale()) - _log_multivariate_gamma(self._df / 2, p)
        )


class InverseWishart(MatrixPrior):
    r"""Inverse Wishart distribution.

    .. math:: p(X) \propto |X|^{-(\mathrm{df} + p + 1) / 2} e^{-\mathrm{tr}(\Psi X^{-1}) / 2}

    Parameters
    ----------
    df : array_like
        Degrees of freedom, above p - 1. The mean is ``scale / (df - p - 1)``.
    scale : array_like (..., p, p)
        Psi, symmetric positive definite.
    shape : tuple of int, optional
        Shape of the parameter, which ends in (p, p). By default the broadcast shape of the others.

    Examples
    --------
    >>> InverseWishart(4, np.eye(2))
    InverseWishart(df=4.0, scale=[[1.0, 0.0], [0.0, 1.0]])
    """

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw ``n`` values: ``(n, *shape)``."""
        inverse = _solve_lower(self._bartlett(rng, n), np.eye(self.shape[-1]))
        return self._of_factor(self._root @ np.swapaxes(inverse, -1, -2))

    def _log_density(self, factor: Array, log_diagonal: Array) -> Array:
        xp = array_namespace(factor)
        with np.errstate(all="ignore"):
            trace = _sum_of_squares(_solve_lower(factor, like(factor, self._root)))  # tr Psi X^-1
        # Where the trace overflows in a far tail, the density is zero to every digit.
        trace = xp.where(xp.isnan(trace), xp.full_like(trace, math.inf), trace)
        return -like(factor, self._df + self.shape[-1] + 1) * xp.sum(log_diagonal, axis=-1) - trace / 2

    def _log_constants(self) -> NDArray[np.float64]:
        p = self.shape[-1]
        return np.asarray(
            self._df / 2 * (self._log_det_scale() - p * math.log(2)) - _log_multivariate_gamma(self._df / 2, p)
        )


def _solve_lower(factor: Array, right: Array) -> Array:
    """L^-1 R by forward substitution, infinite where LAPACK raises an error: (..., p, p)."""
    rows: list[Array] = []
    for i in range(factor.shape[-1]):
        known = sum(factor[..., i, j, None] * row for j, row in enumerate(rows))
        rows.append((right[..., i, :] - known) / factor[..., i, i, None])
    return array_namespace(factor).stack(rows, axis=-2)


def _sum_of_squares(matrix: Array) -> Array:
    return array_namespace(matrix).sum(matrix**2, axis=(-2, -1))


def _log_multivariate_gamma(a: NDArray[np.float64], p: int) -> NDArray[np.float64]:
    return np.array([scipy.special.multigammaln(value, p) for value in a])
