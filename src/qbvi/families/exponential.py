r"""Independent copies of one exponential-family distribution.

.. math:: q(x) = h(x) \exp(\phi(x) \cdot \lambda - A(\lambda))

A subclass states a few facts about *one* copy, each a line or two from its textbook entry. Arrays
have any leading axes, so one call covers many copies and many draws. Copies, natural gradients,
steps and whitening are implemented here, once for all distributions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array, to_numpy
from qbvi.families.base import Curve, Family

__all__ = ["Advance", "ExponentialFamily"]

Floats = NDArray[np.float64]

_SHORT = 1e-5  # fraction of the distance to the boundary below which a curve equals its tangent
_HALVINGS = 60  # after as many halvings a step is below the rounding of the parameters


class Advance(NamedTuple):
    """A step along a natural gradient, with its predicted gain."""

    q: Array  # the new member
    kl: Array  # KL(new || old)
    gain: Array  # rise of the bound, if the function is what its coefficients say
    is_inside: bool  # whether it stays in the domain; if not, q is the old member


@dataclass(frozen=True)
class ExponentialFamily(Family):
    """``copies`` independent variables with one distribution.

    A member is the concatenation of their natural parameters.

    The facts use SciPy's special functions on the host, in double precision.

    Parameters
    ----------
    copies
        Number of independent variables.
    """

    copies: int = 1
    parameter_names: ClassVar[tuple[str, ...]]
    is_discrete: ClassVar[bool] = False
    event_axes: ClassVar[int] = 0  # axes of a value: number 0, vector 1, matrix 2

    # Facts about one copy.

    @property
    def n_coordinates(self) -> int:
        """How many numbers make up one value."""
        return 1

    @property
    @abstractmethod
    def n_statistics(self) -> int:
        """Number of natural parameters of one copy."""

    @abstractmethod
    def one_statistics(self, x: Floats) -> Floats:
        """Sufficient statistics phi: (..., n_coordinates) -> (..., n_statistics)."""

    @abstractmethod
    def one_log_normaliser(self, lam: Floats) -> Floats:
        """``A(lam)``: (..., n_statistics) -> (...)."""

    @abstractmethod
    def one_mean_parameter(self, lam: Floats) -> Floats:
        """Gradient of A, equal to E phi: (..., n_statistics) -> the same."""

    @abstractmethod
    def one_fisher(self, lam: Floats) -> Floats:
        """Hessian of A, equal to Cov phi: (..., k) -> (..., k, k) with k = n_statistics."""

    @abstractmethod
    def one_draw(self, lam: Floats, z: Floats) -> Floats:
        """Transform standard normals (..., n_coordinates) to draws; ``lam`` broadcasts."""

    @abstractmethod
    def one_is_inside(self, lam: Floats) -> NDArray[np.bool_]:
        """Whether this is the natural parameter of a member: (..., n_statistics) -> (...)."""

    @abstractmethod
    def one_way_out(self, lam: Floats, update: Floats) -> Floats:
        """Fraction of the distance to the boundary that ``update`` covers.

        Below one the update stays inside the domain. It is zero or less if the update moves away
        from the boundary: (..., n_statistics) -> (...).
        """

    @abstractmethod
    def one_moments(self, lam: Floats) -> tuple[Floats, Floats]:
        """Mean (..., n_coordinates) and covariance (..., n_coordinates, n_coordinates) of x.

        They are NaN or infinite if they do not exist.
        """

    @abstractmethod
    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """Natural parameter for about this mean and these sds, each (..., n_coordinates)."""

    @abstractmethod
    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """Natural parameter from the named textbook parameters, such as ``alpha`` and ``beta``."""

    @abstractmethod
    def one_parameters(self, lam: Floats) -> dict[str, Floats]:
        """Undo `one_natural`."""

    def one_defensive(self, lam: Floats) -> Floats:
        """The member to draw from when estimating ``lam``.

        It is ``lam`` itself, unless draws from it would miss some values.
        """
        return lam

    def one_saturated(self, lam: Floats) -> Floats:
        """``lam``, limited to what draws can distinguish; most distributions need no limit."""
        return lam

    def one_log_base(self, x: Floats) -> Floats:
        """``log h(x)``, zero for most distributions: (..., n_coordinates) -> (...)."""
        return np.zeros(x.shape[:-1])

    def one_entropy(self, lam: Floats) -> Floats:
        r"""Entropy (...): :math:`A(\lambda) - \lambda \cdot m` less the mean of ``log h``.

        The mean of ``log h`` is zero for most distributions.
        """
        entropy: Floats = self.one_log_normaliser(lam) - np.sum(lam * self.one_mean_parameter(lam), axis=-1)
        return entropy

    def one_centred(self, lam: Floats, x: Floats) -> Floats:
        """``phi - m`` (..., n_statistics).

        A subclass overrides it if the statistics round to their mean.
        """
        return self.one_statistics(x) - self.one_mean_parameter(lam)

    def one_whitener(self, lam: Floats) -> Floats:
        r"""Lower triangular W with :math:`W I(\lambda) W' = 1`: (..., k) -> (..., k, k)."""
        fisher = self.one_fisher(lam)
        # Scale to a unit diagonal first: statistics may differ by orders of magnitude.
        sd = np.sqrt(np.diagonal(fisher, axis1=-2, axis2=-1))
        root = safe_cholesky(fisher / (sd[..., :, None] * sd[..., None, :]))
        whitener: Floats = np.linalg.inv(root) / sd[..., None, :]
        return whitener

    def one_jacobian(self, lam: Floats) -> Floats:
        r"""Derivative of the natural by the textbook parameters: (..., k) -> (..., k, k).

        It is the identity if the two differ by a constant.
        """
        return np.broadcast_to(np.eye(self.n_statistics), (*lam.shape, self.n_statistics))

    def one_textbook(self, lam: Floats) -> Floats:
        """Free textbook parameters, concatenated: (..., n_statistics) -> the same."""
        parameters = self.one_parameters(lam)
        return np.stack([parameters[name] for name in self.parameter_names], axis=-1)

    def one_from_textbook(self, xi: Floats) -> Floats:
        """Undo `one_textbook`."""
        return self.one_natural(dict(zip(self.parameter_names, np.moveaxis(xi, -1, 0), strict=True)))

    @classmethod
    def one_fields(cls, parameters: Mapping[str, Any]) -> dict[str, int]:
        """Fields other than ``copies`` that follow from the textbook parameters.

        An example is the number of categories.
        """
        return {}

    # Methods that follow from the facts.

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Self:
        """The family that has these textbook parameters, with copies along their first axis.

        Examples
        --------
        >>> from qbvi.families import Dirichlet
        >>> Dirichlet.from_parameters({"concentration": np.ones((2, 3))})
        Dirichlet(copies=2, k=3)
        """
        copies = len(np.asarray(parameters[cls.parameter_names[0]]))
        return cls(copies=copies, **cls.one_fields(parameters))

    @property
    def dim(self) -> int:  # type: ignore[override]
        """Length of one draw of all copies."""
        return self.copies * self.n_coordinates

    @property
    def size(self) -> int:
        """Number of natural parameters of all copies."""
        return self.copies * self.n_statistics

    @property
    def n_stored(self) -> int:
        """Length of a member, which is its natural parameter."""
        return self.size

    def start(self, loc: Array, scale: Array) -> Array:
        """Return a member with about this mean and these standard deviations."""
        with np.errstate(all="ignore"):  # maybe no member has these moments; checked below
            lam = self.one_defensive(self.one_from_moments(self._values(loc), self._values(scale)))
            inside = np.all(np.isfinite(lam)) and np.all(self.one_is_inside(lam))
        if not inside:
            given = f"mean {np.asarray(loc).tolist()} and sd {np.asarray(scale).tolist()}"
            msg = (
                f"a start of {type(self).__name__} must be a mean inside of its support and a positive sd, got {given}"
            )
            raise ValueError(msg)
        return np.reshape(lam, (-1,))

    def from_moments(self, mean: Array, cov: Array) -> Array:
        """Return a member with about this mean and the variances on the diagonal of ``cov``."""
        return self.start(mean, np.sqrt(np.diagonal(to_numpy(cov))))

    def member(self, parameters: Mapping[str, Any]) -> Floats:
        """The member with these textbook parameters, one set per copy or one for all."""
        lam = np.asarray(self.one_natural(parameters), dtype=np.float64)
        if not np.all(self.one_is_inside(lam)):
            given = ", ".join(f"{name}={np.asarray(value).tolist()}" for name, value in parameters.items())
            msg = f"parameters of {type(self).__name__} must lie inside of their domain, got {given}"
            raise ValueError(msg)
        return np.reshape(np.broadcast_to(lam, (self.copies, self.n_statistics)), (-1,)).copy()

    def parameters(self, q: Array) -> dict[str, Floats]:
        """Textbook parameters by name, copies along the first axis."""
        return self.one_parameters(self._open(q))

    def transport(self, q: Array, z: Array) -> Array:
        """Transform standard normal draws (n, d) to draws from every copy."""
        return np.reshape(self.one_draw(self._open(q), self._values(z)), np.shape(z))

    def log_prob(self, q: Array, theta: Array) -> Array:
        """Sum over copies of ``log h + phi . lam - A``: (n, d) -> (n,)."""
        lam, x = self._open(q), self._values(theta)
        terms = np.sum(self.one_statistics(x) * lam, axis=-1) + self.one_log_base(x) - self.one_log_normaliser(lam)
        return np.sum(terms, axis=-1)

    def defensive(self, q: Array) -> Array:
        """`one_defensive` of each copy."""
        return np.reshape(self.one_defensive(self._open(q)), (-1,))

    def log_base(self, theta: Array) -> Array:
        """Sum over copies of ``log h``: (n, d) -> (n,)."""
        return np.sum(self.one_log_base(self._values(theta)), axis=-1)

    def entropy(self, q: Array) -> Array:
        """Sum over copies."""
        return np.sum(self.one_entropy(self._open(q)))

    def mean(self, q: Array) -> Array:
        """Mean (d,)."""
        return np.reshape(self.one_moments(self._open(q))[0], (-1,))

    def sd(self, q: Array) -> Array:
        """Standard deviations (d,)."""
        cov = self.one_moments(self._open(q))[1]
        return np.sqrt(np.reshape(np.diagonal(cov, axis1=-2, axis2=-1), (-1,)))

    def cov(self, q: Array) -> Array:
        """Covariance (d, d), zero between copies."""
        blocks = self.one_moments(self._open(q))[1]
        full = np.zeros((self.copies, self.n_coordinates) * 2)
        copy = np.arange(self.copies)
        full[copy, :, copy, :] = blocks
        return np.reshape(full, (self.dim, self.dim))

    def natural(self, q: Array) -> Array:
        """The member itself."""
        return q

    def mean_parameter(self, q: Array) -> Array:
        """Mean parameters of the copies, concatenated."""
        return np.reshape(self.one_mean_parameter(self._open(q)), (-1,))

    def log_normaliser(self, lam: Array) -> Array:
        """Sum over copies."""
        return np.sum(self.one_log_normaliser(self._open(lam)))

    def statistics(self, theta: Array) -> Array:
        """Statistics of the copies, concatenated: (n, d) -> (n, k)."""
        return np.reshape(self.one_statistics(self._values(theta)), (len(theta), self.size))

    def score(self, q: Array, theta: Array) -> Array:
        r"""Natural gradient of ``log q`` at each draw (paper, Algorithm 1): (n, d) -> (n, k).

        .. math:: \nabla_m \log q(x) = I(\lambda)^{-1} (\phi(x) - m)
        """
        whitener = self._whitener(q)
        solved = np.einsum("cji,ncj->nci", whitener, self._features(q, theta))
        return np.reshape(solved, (len(theta), self.size))

    def score_variance(self, q: Array) -> Array:
        """Variance under q of each entry of `score`: the diagonal of I(lam)^-1."""
        return np.reshape(np.sum(self._whitener(q) ** 2, axis=-2), (-1,))

    def features(self, q: Array, theta: Array) -> Array:
        r"""Orthonormal statistics under q: :math:`W (\phi - m)`: (n, d) -> (n, k).

        W satisfies :math:`W I(\lambda) W' = 1`.
        """
        return np.reshape(self._features(q, theta), (len(theta), self.size))

    def coordinates(self, q: Array, theta: Array) -> Array:
        """The features: in these coordinates a conjugate log-likelihood is linear."""
        return self.features(q, theta)

    @property
    def n_whitened(self) -> int:
        """One per natural parameter."""
        return self.size

    def advance(self, q: Array, w: Array, beta: float) -> Advance:
        r"""Move by ``beta`` times the natural gradient :math:`W' w` of a function.

        ``w`` are the coefficients of the function's regression on the features.
        """
        lam, whitener = self._open(q), self._whitener(q)
        coefficients = self._open(w)
        update = self.one_saturated(lam + beta * np.einsum("cji,cj->ci", whitener, coefficients)) - lam
        if not np.max(self.one_way_out(lam, update)) < 1:
            return Advance(q, np.inf, -np.inf, False)
        m, new = self.one_mean_parameter(lam), lam + update
        rise = self.one_mean_parameter(new) - m
        # KL(new || old) = update . m_new - A(new) + A(old), as a sum of small terms.
        fall = self.one_log_normaliser(new) - self.one_log_normaliser(lam) - np.sum(update * m, axis=-1)
        kl = float(np.sum(np.sum(update * rise, axis=-1) - fall))
        lift = float(np.einsum("ci,cij,cj->", coefficients, whitener, rise))
        return Advance(np.reshape(new, (-1,)), kl, lift - kl, bool(np.isfinite(kl)))

    def scale_parts(self, q: Array, direction: Array, mean_rate: float, precision_rate: float) -> Array:
        """Scale by the rate of the precision: no part of these families moves the mean alone."""
        return precision_rate * direction

    def move(self, q: Array, update: Array, curve: Curve) -> tuple[Array, Array]:
        r"""Move along ``update``, as far as the curve allows.

        Let :math:`c` be the fraction of the distance to the boundary that the update covers. The
        step leaves the fraction :math:`\rho(c)` of that distance, as it leaves :math:`\rho` of a
        Gaussian's precision.
        """
        lam, change = self._open(q), self._open(update)
        c = self.one_way_out(lam, change)
        rho, t = curve(c)
        # The curve is its tangent away from the boundary, and if 1 - rho is mere rounding.
        bends = c > _SHORT
        scale = np.where(bends, np.maximum(1 - rho, 0.0) / np.where(bends, c, 1.0), t)
        return np.reshape(lam + scale[..., None] * change, (-1,)), np.max(c) < 1

    def move_factor(self, q: Array, update: Array, limit: float) -> Array:
        """Move along the exponential curve: these families have no Cholesky factor."""
        return self.move(q, update, lambda c: (np.exp(-c * (t := limit / max(np.max(np.abs(c)), limit))), t))[0]

    def move_parameters(self, q: Array, update: Array, delta: float) -> Array:
        r"""Move the textbook parameters :math:`\xi` (paper, Appendix C, ii-b).

        Natural gradients of two parametrisations differ by the Jacobian:
        :math:`\Delta\xi = (\partial\lambda/\partial\xi)^{-1} \Delta\lambda`. This is the inverse
        Fisher information of :math:`\xi` times the Euclidean gradient. A step that covers more
        than the fraction ``delta`` of the distance to the boundary is halved until it does not.
        """
        lam = self._open(q)
        xi = self.one_textbook(lam)
        change = np.linalg.solve(self.one_jacobian(lam), self._open(update)[..., None])[..., 0]
        for _ in range(_HALVINGS):
            new, too_far = self._from_textbook(lam, xi + change, delta)
            if not np.any(too_far):
                break
            change = np.where(too_far[..., None], 0.5 * change, change)
        return np.reshape(np.where(too_far[..., None], lam, new), (-1,))

    def euclidean(self, q: Array, direction: Array) -> Array:
        r"""Euclidean gradient of the textbook parameters, as a direction in natural coordinates.

        It equals :math:`J J' I(\lambda) c` for a natural gradient c.
        """
        lam = self._open(q)
        jacobian = self.one_jacobian(lam)
        pulled = np.swapaxes(jacobian, -1, -2) @ self.one_fisher(lam) @ self._open(direction)[..., None]
        return np.reshape((jacobian @ pulled)[..., 0], (-1,))

    def _from_textbook(self, lam: Floats, xi: Floats, delta: float) -> tuple[Floats, NDArray[np.bool_]]:
        """Natural parameters, and which of them are outside the domain or too far from ``lam``."""
        with np.errstate(all="ignore"):  # outside the domain the formulas may give anything
            new = self.one_from_textbook(xi)
            known = np.all(np.isfinite(new), axis=-1)
            new = np.where(known[..., None], new, lam)
            inside = known & self.one_is_inside(new) & (self.one_way_out(lam, new - lam) <= delta)
        return new, ~inside

    def _open(self, flat: Array) -> Floats:
        """Split natural parameters or directions by copy: (k,) -> (copies, n_statistics)."""
        return np.reshape(np.asarray(flat), (self.copies, self.n_statistics))

    def _values(self, theta: Array) -> Floats:
        """Split values by copy: (..., d) -> (..., copies, n_coordinates)."""
        theta = np.asarray(theta)
        return np.reshape(theta, (*theta.shape[:-1], self.copies, self.n_coordinates))

    def _features(self, q: Array, theta: Array) -> Floats:
        """Features by copy: (n, copies, n_statistics)."""
        centred = self.one_centred(self._open(q), self._values(theta))
        return np.asarray(np.einsum("cij,ncj->nci", self._whitener(q), centred))

    def _whitener(self, q: Array) -> Floats:
        return self.one_whitener(self._open(q))


def safe_cholesky(correlation: Floats) -> Floats:
    """Cholesky factor of matrices with a unit diagonal.

    Rounding may have left them indefinite by a few units in the last digit.

    Examples
    --------
    >>> safe_cholesky(np.ones((2, 2))).round(6)
    array([[1., 0.],
           [1., 0.]])
    """
    k = correlation.shape[-1]
    lift = 4 * k * np.finfo(np.float64).eps
    return np.asarray(np.linalg.cholesky(correlation + lift * np.eye(k)), dtype=np.float64)
