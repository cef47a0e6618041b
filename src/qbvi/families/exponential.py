r"""Independent copies of one exponential-family law: what a law tells of itself, and what it receives.

.. math:: q(x) = h(x) \exp(\phi(x) \cdot \lambda - A(\lambda))

A law is a file with a few facts about *one* copy, each a line or two of its textbook entry; arrays carry any leading axes, so that many copies
and many draws are one call. Everything that has to do with copies, natural gradients, steps and whitening is here, written once.
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

_SHORT = 1e-5  # share of the way to the boundary below which a curve and its tangent are the same
_HALVINGS = 60  # after which a step is below the rounding of the parameters


class Advance(NamedTuple):
    """A step along a natural gradient, and what it is worth."""

    q: Array  # the member it leads to
    kl: Array  # KL(new || old)
    gain: Array  # rise of the bound, if the function is what its coefficients say
    is_inside: bool  # whether it stays in the domain; if not, q is the old member


@dataclass(frozen=True)
class ExponentialFamily(Family):
    """``copies`` independent variables of one law; a member is their natural parameters, copy by copy.

    The facts use SciPy's special functions and are computed on the host in double precision.

    Parameters
    ----------
    copies
        Number of independent variables.
    """

    copies: int = 1
    parameter_names: ClassVar[tuple[str, ...]]
    is_discrete: ClassVar[bool] = False
    event_axes: ClassVar[int] = 0  # axes of one value: none for a number, one for a vector, two for a matrix

    # The facts of one copy.

    @property
    def n_coordinates(self) -> int:
        """How many numbers one value of the law is made of."""
        return 1

    @property
    @abstractmethod
    def n_statistics(self) -> int:
        """How many natural parameters one copy has."""

    @abstractmethod
    def one_statistics(self, x: Floats) -> Floats:
        """Sufficient statistics phi: (..., n_coordinates) -> (..., n_statistics)."""

    @abstractmethod
    def one_log_normaliser(self, lam: Floats) -> Floats:
        """A(lam): (..., n_statistics) -> (...)."""

    @abstractmethod
    def one_mean_parameter(self, lam: Floats) -> Floats:
        """Gradient of A, which is E phi: (..., n_statistics) -> the same."""

    @abstractmethod
    def one_fisher(self, lam: Floats) -> Floats:
        """Hessian of A, which is Cov phi: (..., n_statistics) -> (..., n_statistics, n_statistics)."""

    @abstractmethod
    def one_draw(self, lam: Floats, z: Floats) -> Floats:
        """Turn standard normals (..., n_coordinates) into draws; ``lam`` broadcasts against their leading axes."""

    @abstractmethod
    def one_is_inside(self, lam: Floats) -> NDArray[np.bool_]:
        """Whether this is the natural parameter of a member: (..., n_statistics) -> (...)."""

    @abstractmethod
    def one_way_out(self, lam: Floats, update: Floats) -> Floats:
        """Share of the way to the boundary of the domain that ``update`` covers: (..., n_statistics) -> (...).

        Below one the update stays inside; zero or less where it leads away from the boundary.
        """

    @abstractmethod
    def one_moments(self, lam: Floats) -> tuple[Floats, Floats]:
        """Mean (..., n_coordinates) and covariance (..., n_coordinates, n_coordinates) of x; NaN or infinite where there is none."""

    @abstractmethod
    def one_from_moments(self, mean: Floats, sd: Floats) -> Floats:
        """Natural parameter of a member with about this mean and these standard deviations (..., n_coordinates)."""

    @abstractmethod
    def one_natural(self, parameters: Mapping[str, Any]) -> Floats:
        """Natural parameter from the textbook ones by name, such as ``alpha`` and ``beta``."""

    @abstractmethod
    def one_parameters(self, lam: Floats) -> dict[str, Floats]:
        """Undo `one_natural`."""

    def one_defensive(self, lam: Floats) -> Floats:
        """The member to draw from in order to learn about ``lam``: itself, unless some values would never be seen."""
        return lam

    def one_saturated(self, lam: Floats) -> Floats:
        """A natural parameter no further out than can be told from draws; most laws have no such limit."""
        return lam

    def one_log_base(self, x: Floats) -> Floats:
        """Log h(x), zero for most laws: (..., n_coordinates) -> (...)."""
        return np.zeros(x.shape[:-1])

    def one_entropy(self, lam: Floats) -> Floats:
        r"""Entropy (...): :math:`A(\lambda) - \lambda \cdot m` less the mean of log h, which is zero for most laws."""
        entropy: Floats = self.one_log_normaliser(lam) - np.sum(lam * self.one_mean_parameter(lam), axis=-1)
        return entropy

    def one_centred(self, lam: Floats, x: Floats) -> Floats:
        """Phi - m; a law whose statistics round to their mean says it without the difference: (..., n_statistics)."""
        return self.one_statistics(x) - self.one_mean_parameter(lam)

    def one_whitener(self, lam: Floats) -> Floats:
        r"""W with :math:`W I(\lambda) W' = 1`, lower triangular: (..., n_statistics) -> (..., n_statistics, n_statistics)."""
        fisher = self.one_fisher(lam)
        # Scaled to a unit diagonal first: statistics may differ by orders of magnitude.
        sd = np.sqrt(np.diagonal(fisher, axis1=-2, axis2=-1))
        root = safe_cholesky(fisher / (sd[..., :, None] * sd[..., None, :]))
        whitener: Floats = np.linalg.inv(root) / sd[..., None, :]
        return whitener

    def one_jacobian(self, lam: Floats) -> Floats:
        r"""Derivative of the natural by the textbook parameters: (..., k) -> (..., k, k); the identity where they are the same up to a constant."""
        return np.broadcast_to(np.eye(self.n_statistics), (*lam.shape, self.n_statistics))

    def one_textbook(self, lam: Floats) -> Floats:
        """Textbook parameters as free numbers, laid end to end: (..., n_statistics) -> the same."""
        parameters = self.one_parameters(lam)
        return np.stack([parameters[name] for name in self.parameter_names], axis=-1)

    def one_from_textbook(self, xi: Floats) -> Floats:
        """Undo `one_textbook`."""
        return self.one_natural(dict(zip(self.parameter_names, np.moveaxis(xi, -1, 0), strict=True)))

    @classmethod
    def one_fields(cls, parameters: Mapping[str, Any]) -> dict[str, int]:
        """Fields of the law other than ``copies`` that these textbook parameters tell, such as a number of categories."""
        return {}

    # What every law receives.

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Self:
        """The law of which these are the textbook parameters, copies along their first axis.

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
        """Numbers in one draw of all copies."""
        return self.copies * self.n_coordinates

    @property
    def size(self) -> int:
        """Number of natural parameters of all copies."""
        return self.copies * self.n_statistics

    @property
    def length(self) -> int:
        """A member is its natural parameter."""
        return self.size

    def start(self, loc: Array, scale: Array) -> Array:
        """Return a member with about this mean and these standard deviations."""
        with np.errstate(all="ignore"):  # moments that no member has may give anything
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
        """The member with these textbook parameters, copies along their first axis or all alike."""
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
        """Turn standard normal draws (n, d) into draws from every copy."""
        return np.reshape(self.one_draw(self._open(q), self._values(z)), np.shape(z))

    def log_prob(self, q: Array, theta: Array) -> Array:
        """Sum over copies of log h + phi . lam - A: (n, d) -> (n,)."""
        lam, x = self._open(q), self._values(theta)
        terms = np.sum(self.one_statistics(x) * lam, axis=-1) + self.one_log_base(x) - self.one_log_normaliser(lam)
        return np.sum(terms, axis=-1)

    def defensive(self, q: Array) -> Array:
        """Copy by copy."""
        return np.reshape(self.one_defensive(self._open(q)), (-1,))

    def log_base(self, theta: Array) -> Array:
        """Sum over copies of log h: (n, d) -> (n,)."""
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
        """Mean parameters of the copies, end to end."""
        return np.reshape(self.one_mean_parameter(self._open(q)), (-1,))

    def log_normaliser(self, lam: Array) -> Array:
        """Sum over copies."""
        return np.sum(self.one_log_normaliser(self._open(lam)))

    def statistics(self, theta: Array) -> Array:
        """Statistics of the copies, end to end: (n, d) -> (n, k)."""
        return np.reshape(self.one_statistics(self._values(theta)), (len(theta), self.size))

    def score(self, q: Array, theta: Array) -> Array:
        r"""Natural gradient of ``log q`` at each draw, copy by copy (paper, Algorithm 1): (n, d) -> (n, k).

        .. math:: \nabla_m \log q(x) = I(\lambda)^{-1} (\phi(x) - m)
        """
        whitener = self._whitener(q)
        solved = np.einsum("cji,ncj->nci", whitener, self._features(q, theta))
        return np.reshape(solved, (len(theta), self.size))

    def score_variance(self, q: Array) -> Array:
        """Variance under q of each entry of `score`: the diagonal of I(lam)^-1."""
        return np.reshape(np.sum(self._whitener(q) ** 2, axis=-2), (-1,))

    def features(self, q: Array, theta: Array) -> Array:
        r"""Statistics that are orthonormal under q: :math:`W (\phi - m)`, where :math:`W I(\lambda) W' = 1`: (n, d) -> (n, k)."""
        return np.reshape(self._features(q, theta), (len(theta), self.size))

    def coordinates(self, q: Array, theta: Array) -> Array:
        """The features: they are the coordinates in which a conjugate log-likelihood is a plane."""
        return self.features(q, theta)

    @property
    def n_whitened(self) -> int:
        """As many as there are natural parameters."""
        return self.size

    def advance(self, q: Array, w: Array, beta: float) -> Advance:
        r"""Move by beta times the natural gradient :math:`W' w` of a function whose features' coefficients are ``w``."""
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
        """Scale by the rate of the precision: these laws have no mean that moves on its own."""
        return precision_rate * direction

    def move(self, q: Array, update: Array, curve: Curve) -> tuple[Array, Array]:
        r"""Move along ``update``, as far as the curve leaves of the way to the boundary.

        With :math:`c` the share of that way which the update covers, a step keeps :math:`\rho(c)` of it, as it keeps
        :math:`\rho` of a Gaussian's precision.
        """
        lam, change = self._open(q), self._open(update)
        c = self.one_way_out(lam, change)
        rho, t = curve(c)
        # On the way away from the boundary, and for steps so short that 1 - rho is rounding, the curve is its tangent.
        bends = c > _SHORT
        scale = np.where(bends, np.maximum(1 - rho, 0.0) / np.where(bends, c, 1.0), t)
        return np.reshape(lam + scale[..., None] * change, (-1,)), np.max(c) < 1

    def move_factor(self, q: Array, update: Array, limit: float) -> Array:
        """Move along the exponential curve: these laws have no Cholesky factor."""
        return self.move(q, update, lambda c: (np.exp(-c * (t := limit / max(np.max(np.abs(c)), limit))), t))[0]

    def move_parameters(self, q: Array, update: Array, delta: float) -> Array:
        r"""Move the textbook parameters :math:`\xi` instead (paper, Appendix C, ii-b).

        Natural gradients of two parametrisations differ by the Jacobian: :math:`\Delta\xi = (\partial\lambda/\partial\xi)^{-1} \Delta\lambda`, which is
        the Fisher information of :math:`\xi`, inverted, times the Euclidean gradient. The step is shortened to the share ``delta`` of the way out.
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
        r"""The Euclidean gradient of the textbook parameters, as a direction of the natural ones: :math:`J J' I(\lambda) c`."""
        lam = self._open(q)
        jacobian = self.one_jacobian(lam)
        pulled = np.swapaxes(jacobian, -1, -2) @ self.one_fisher(lam) @ self._open(direction)[..., None]
        return np.reshape((jacobian @ pulled)[..., 0], (-1,))

    def _from_textbook(self, lam: Floats, xi: Floats, delta: float) -> tuple[Floats, NDArray[np.bool_]]:
        """Natural parameters, and which of them are no member or further than ``delta`` of the way out from ``lam``."""
        with np.errstate(all="ignore"):  # outside of the domain the formulas may give anything
            new = self.one_from_textbook(xi)
            known = np.all(np.isfinite(new), axis=-1)
            new = np.where(known[..., None], new, lam)
            inside = known & self.one_is_inside(new) & (self.one_way_out(lam, new - lam) <= delta)
        return new, ~inside

    def _open(self, flat: Array) -> Floats:
        """Natural parameters or directions, copy by copy: (k,) -> (copies, n_statistics)."""
        return np.reshape(np.asarray(flat), (self.copies, self.n_statistics))

    def _values(self, theta: Array) -> Floats:
        """Values copy by copy: (..., d) -> (..., copies, n_coordinates)."""
        theta = np.asarray(theta)
        return np.reshape(theta, (*theta.shape[:-1], self.copies, self.n_coordinates))

    def _features(self, q: Array, theta: Array) -> Floats:
        """Features copy by copy: (n, copies, n_statistics)."""
        centred = self.one_centred(self._open(q), self._values(theta))
        return np.asarray(np.einsum("cij,ncj->nci", self._whitener(q), centred))

    def _whitener(self, q: Array) -> Floats:
        return self.one_whitener(self._open(q))


def safe_cholesky(correlation: Floats) -> Floats:
    """Cholesky factor of matrices with a unit diagonal, which rounding may have left without definiteness by a few units of the last digit.

    Examples
    --------
    >>> safe_cholesky(np.ones((2, 2))).round(6)
    array([[1., 0.],
           [1., 0.]])
    """
    k = correlation.shape[-1]
    lift = 4 * k * np.finfo(np.float64).eps
    return np.asarray(np.linalg.cholesky(correlation + lift * np.eye(k)), dtype=np.float64)
