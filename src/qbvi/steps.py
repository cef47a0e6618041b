r"""How to move and stay inside the domain.

In whitened coordinates the new precision is :math:`P = U \rho(c) U'` for the eigenvalues ``c`` of the change, so whether it
stays positive definite is a question about a scalar function :math:`\rho`. One class for each answer (paper, Appendix
"Positive definiteness of the covariance update").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from qbvi.arrays import Array, array_namespace
from qbvi.families.base import Family

__all__ = ["BoundedRate", "CholeskyLog", "ExponentialMap", "InParameters", "Plain", "Retraction", "Step"]


class Step(Protocol):
    """Anything that moves a member of a family by a change of its natural parameter."""

    def __call__(self, family: Family, q: Array, update: Array) -> tuple[Array, Array]:
        """Return the moved member, and whether it is inside the domain (a 0-d boolean array)."""
        ...


@dataclass(frozen=True)
class Plain:
    r"""The update as it stands, :math:`\rho(c) = 1 - c`: positive definite only while every ``c < 1``.

    A fit that takes it stops with an error, and the remedy, when a step leaves the domain.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import DiagonalGaussian
    >>> family = DiagonalGaussian(1)
    >>> q, inside = Plain()(family, family.start(np.zeros(1), np.ones(1)), np.array([0.0, 0.7]))
    >>> bool(inside)
    False
    """

    def __call__(self, family: Family, q: Array, update: Array) -> tuple[Array, Array]:
        """Move; a step that leaves the domain is not taken."""
        return family.move(q, update, _plain)


@dataclass(frozen=True)
class BoundedRate:
    r"""The plain update with its rate reduced to at most ``delta`` of the largest that is allowed.

    .. math:: \rho(c) = 1 - t c, \quad t = \min(1, \delta / \max c)

    The paper's explicit constraint for a diagonal covariance, which in whitened coordinates covers the full one too.

    Parameters
    ----------
    delta
        Share of the way to the boundary that a step may go, in (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import DiagonalGaussian
    >>> family = DiagonalGaussian(1)
    >>> q, inside = BoundedRate(0.5)(family, family.start(np.zeros(1), np.ones(1)), np.array([0.0, 0.7]))
    >>> family.cov(q)
    array([[2.]])
    """

    delta: float = 0.1

    def __post_init__(self) -> None:
        _check_share(self.delta)

    def __call__(self, family: Family, q: Array, update: Array) -> tuple[Array, Array]:
        """Move by as much of the update as the bound allows."""
        moved, _ = family.move(q, update, self._curve)
        return moved, _always(q)

    def _curve(self, c: Array) -> tuple[Array, Array]:
        xp = array_namespace(c)
        t = self.delta / xp.maximum(xp.max(c), self.delta * _one(c))
        return 1 - t * c, t


@dataclass(frozen=True)
class ExponentialMap:
    r"""Move the logarithm of the precision: :math:`\rho(c) = \exp(-c)`, always positive.

    For a diagonal covariance this is the paper's log-transform, for a full one the geodesic of the precision.

    Parameters
    ----------
    limit
        Largest ``|c|`` taken at its word; a longer step is shortened to it, so that none changes a variance by more than
        a factor ``exp(limit)``, however wild the draws of the start.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import DiagonalGaussian
    >>> family = DiagonalGaussian(1)
    >>> q, inside = ExponentialMap(limit=2.0)(family, family.start(np.zeros(1), np.ones(1)), np.array([0.0, 0.5]))
    >>> family.cov(q).round(3)
    array([[2.718]])
    """

    limit: float = 0.5

    def __call__(self, family: Family, q: Array, update: Array) -> tuple[Array, Array]:
        """Move along the exponential curve."""
        moved, _ = family.move(q, update, self._curve)
        return moved, _always(q)

    def _curve(self, c: Array) -> tuple[Array, Array]:
        xp = array_namespace(c)
        t = self.limit / xp.maximum(xp.max(xp.abs(c)), self.limit * _one(c))
        return xp.exp(-t * c), t


@dataclass(frozen=True)
class Retraction:
    r"""Second-order retraction :math:`\rho(c) = 1 - c + c^2 / 2 \ge 1/2` (Tran et al.; Lin et al., improved Bayesian rule).

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import DiagonalGaussian
    >>> family = DiagonalGaussian(1)
    >>> q, inside = Retraction()(family, family.start(np.zeros(1), np.ones(1)), np.array([0.0, 0.5]))
    >>> family.cov(q)
    array([[2.]])
    """

    def __call__(self, family: Family, q: Array, update: Array) -> tuple[Array, Array]:
        """Move along the retraction."""
        moved, _ = family.move(q, update, _retraction)
        return moved, _always(q)


@dataclass(frozen=True)
class CholeskyLog:
    """Move the Cholesky factor of S, its diagonal on the log scale (paper, Appendix "Updating the Cholesky factor").

    Parameters
    ----------
    limit
        Largest entry of the change in whitened coordinates; a longer step is shortened to it, since the factor is moved along
        a straight line and a long one would leave it nearly singular.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import Gaussian
    >>> family = Gaussian(1)
    >>> q, inside = CholeskyLog()(family, family.start(np.zeros(1), np.ones(1)), np.array([0.0, 0.5]))
    >>> family.sd(q).round(3)
    array([1.649])
    """

    limit: float = 1.0

    def __call__(self, family: Family, q: Array, update: Array) -> tuple[Array, Array]:
        """Move the factor."""
        return family.move_factor(q, update, self.limit), _always(q)


@dataclass(frozen=True)
class InParameters:
    r"""Move the textbook parameters :math:`\xi` of every factor by their own natural gradient (paper, Appendix C, ii-b).

    .. math:: \xi \leftarrow \xi + \beta I(\xi)^{-1} \nabla_\xi

    with :math:`I(\xi)` the Fisher information of those parameters, inverted: the shape and scale of an inverse gamma, the mean and precision of a
    Gaussian. It is the plain step where natural and textbook parameters are the same up to an affine map.

    Parameters
    ----------
    delta
        Share of the way to the boundary that a step may go, in (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import InverseGamma
    >>> family = InverseGamma()
    >>> q, inside = InParameters()(family, family.member({"alpha": 3.0, "beta": 1.0}), np.array([-0.5, 0.25]))
    >>> family.parameters(q)
    {'alpha': array([3.5]), 'beta': array([0.75])}
    """

    delta: float = 0.5

    def __post_init__(self) -> None:
        _check_share(self.delta)

    def __call__(self, family: Family, q: Array, update: Array) -> tuple[Array, Array]:
        """Move the textbook parameters."""
        return family.move_parameters(q, update, self.delta), _always(q)


def _check_share(delta: float) -> None:
    if not 0 < delta < 1:
        msg = f"`delta` must lie strictly between 0 and 1, got {delta}; the paper's 0 < delta < 1 keeps S definite"
        raise ValueError(msg)


def _plain(c: Array) -> tuple[Array, Array]:
    xp = array_namespace(c)
    inside = xp.max(c) < 1
    zero = xp.zeros_like(c)
    return 1 - xp.where(inside, c, zero), xp.where(inside, _one(c), xp.max(zero))


def _retraction(c: Array) -> tuple[Array, Array]:
    return 1 - c + 0.5 * c**2, _one(c)


def _one(c: Array) -> Array:
    xp = array_namespace(c)
    return xp.max(xp.ones_like(c))


def _always(q: Array) -> Array:
    xp = array_namespace(q)
    return xp.max(xp.abs(q)) >= 0
