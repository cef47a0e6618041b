r"""How to move and stay inside the domain.

In whitened coordinates the new precision is :math:`P = U \rho(c) U'`, where ``c`` are the
eigenvalues of the change. Whether it stays positive definite depends only on the scalar function
:math:`\rho`. Each class below is one choice of it (paper, Appendix "Positive definiteness of the
covariance update").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from qbvi.arguments import number
from qbvi.arrays import Array, array_namespace
from qbvi.families.base import Family, bounded_curve

__all__ = ["BoundedRate", "CholeskyLog", "ExponentialMap", "InParameters", "Plain", "Retraction", "Step"]


class Step(Protocol):
    """Anything that moves a member of a family by a change of its natural parameter."""

    def __call__(self, family: Family, q: Array, update: Array) -> tuple[Array, Array]:
        """Return the moved member, and whether it is inside the domain (a 0-d boolean array)."""
        ...


@dataclass(frozen=True)
class Plain:
    r"""The plain update, :math:`\rho(c) = 1 - c`: positive definite only if every ``c < 1``.

    A fit stops with an error when such a step leaves the domain; the error names the remedy.

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
        """Move; do not take a step that leaves the domain."""
        return family.move(q, update, _plain)


@dataclass(frozen=True)
class BoundedRate:
    r"""The plain update, shortened to the fraction ``delta`` of the distance to the boundary.

    .. math:: \rho(c) = 1 - t c, \quad t = \min(1, \delta / \max c)

    This is the paper's explicit constraint for a diagonal covariance. In whitened coordinates it
    holds for a full one too.

    Parameters
    ----------
    delta
        Largest fraction of the distance to the boundary that one step may use, in (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import DiagonalGaussian
    >>> family = DiagonalGaussian(1)
    >>> start = family.start(np.zeros(1), np.ones(1))
    >>> q, inside = BoundedRate(0.5)(family, start, np.array([0.0, 0.7]))
    >>> family.cov(q)
    array([[2.]])
    """

    delta: float = 0.1

    def __post_init__(self) -> None:
        _check_share(self.delta)

    def __call__(self, family: Family, q: Array, update: Array) -> tuple[Array, Array]:
        """Move as far along the update as the bound allows."""
        moved, _ = family.move(q, update, bounded_curve(self.delta))
        return moved, _always(q)


@dataclass(frozen=True)
class ExponentialMap:
    r"""Move the logarithm of the precision: :math:`\rho(c) = \exp(-c)`, always positive.

    For a diagonal covariance this is the paper's log-transform. For a full one it is the geodesic
    of the precision.

    Parameters
    ----------
    limit
        Largest ``|c|`` of a step; longer steps are shortened to it. No step then changes a
        variance by more than a factor ``exp(limit)``, even if the first draws are extreme.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import DiagonalGaussian
    >>> family = DiagonalGaussian(1)
    >>> start = family.start(np.zeros(1), np.ones(1))
    >>> q, inside = ExponentialMap(limit=2.0)(family, start, np.array([0.0, 0.5]))
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
    r"""Second-order retraction :math:`\rho(c) = 1 - c + c^2 / 2 \ge 1/2`.

    It is due to Tran et al., and to Lin et al. (improved Bayesian learning rule).

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import DiagonalGaussian
    >>> family = DiagonalGaussian(1)
    >>> start = family.start(np.zeros(1), np.ones(1))
    >>> q, inside = Retraction()(family, start, np.array([0.0, 0.5]))
    >>> family.cov(q)
    array([[2.]])
    """

    def __call__(self, family: Family, q: Array, update: Array) -> tuple[Array, Array]:
        """Move along the retraction."""
        moved, _ = family.move(q, update, _retraction)
        return moved, _always(q)


@dataclass(frozen=True)
class CholeskyLog:
    """Move the Cholesky factor of S, with its diagonal on the log scale.

    See the paper, Appendix "Updating the Cholesky factor".

    Parameters
    ----------
    limit
        Largest entry of the change in whitened coordinates; longer steps are shortened to it. The
        factor moves along a straight line, so a long step could leave it nearly singular.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import Gaussian
    >>> family = Gaussian(1)
    >>> start = family.start(np.zeros(1), np.ones(1))
    >>> q, inside = CholeskyLog()(family, start, np.array([0.0, 0.5]))
    >>> family.sd(q).round(3)
    array([1.649])
    """

    limit: float = 1.0

    def __call__(self, family: Family, q: Array, update: Array) -> tuple[Array, Array]:
        """Move the factor."""
        return family.move_factor(q, update, self.limit), _always(q)


@dataclass(frozen=True)
class InParameters:
    r"""Move the textbook parameters :math:`\xi` of every factor by their own natural gradient.

    .. math:: \xi \leftarrow \xi + \beta I(\xi)^{-1} \nabla_\xi

    This is the paper's Appendix C, ii-b. :math:`I(\xi)` is the Fisher information of the textbook
    parameters: shape and scale of an inverse gamma, mean and precision of a Gaussian. The step is
    the plain one if natural and textbook parameters differ by an affine map.

    Parameters
    ----------
    delta
        Largest fraction of the distance to the boundary that one step may use, in (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import InverseGamma
    >>> family = InverseGamma()
    >>> start = family.member({"alpha": 3.0, "beta": 1.0})
    >>> q, inside = InParameters()(family, start, np.array([-0.5, 0.25]))
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
    if not 0 < number("delta", delta) < 1:
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
