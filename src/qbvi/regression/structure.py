r"""A prior for log joints in which most parameters do not interact.

A dense quadratic has d (d + 1) / 2 coefficients. In a hierarchical model nearly all of them are
zero: a few *hubs* (a mean, scales, slopes) interact with all parameters, and the effects of the
groups interact with hubs only. The prior of this file learns which parameters are hubs, from d
variances. So the number of evaluations grows as d, not as its square.

*Coordinates.* In the whitened coordinates z of q, the zeros are not visible: z mixes all
parameters. They are visible in :math:`t = (\theta - \mu) / \mathrm{sd}`, whatever the correlations
of q are, but only in the log joint. The residual h also has the quadratic of log q, and an error of
q is dense. So this regression is one of the log joint:

.. math:: h(z) - \tfrac12 (|z|^2 - d) = a + b'z + \tfrac12 (t'Wt - \mathrm{tr}\, W\rho)
    + \text{degrees 3 and 4} + \text{noise}

Here :math:`t = Az` and :math:`\rho = AA'` is the correlation matrix of q. What was added has mean
zero under q. So a is the bound, b the linear part, and :math:`C = A'WA + I` the quadratic part of
the natural gradient, as in the dense regression.

*Degree two.* The prior is

.. math:: W_{ij} \sim N(0, v_i + v_j), \quad i \ne j, \qquad W_{ii} \sim N(0, 2 v_0)

and on top of it a dense matrix of small variance. A hub has a large :math:`v_i`. With
:math:`u_i = t_i s_i` for two points t and s, the covariance of the quadratic is a closed form,

.. math:: \sum_{i<j} (v_i + v_j) u_i u_j + \tfrac{v_0}{2} \sum_i u_i^2
    = (t's)(t'\mathrm{diag}(v)\, s) + \sum_i (\tfrac{v_0}{2} - v_i) u_i^2,

less the parts that make its mean under q zero.

*Degrees three and four.* A term of the log joint depends on the hubs and at most one other
parameter. So do its polynomials: for each degree, the prior has one variance for all of them that
contain hubs and one other coordinate. The coordinates are whitened in an order in which the hubs
come first. If parameters that are no hubs are independent given the hubs, each of these coordinates
depends on the hubs and one parameter only. Another variance is for other polynomials.

*Variances.* All of them maximise the restricted likelihood of the values, in which the linear part
is integrated out. With V the covariance of the values, P its inverse with the free features
projected out, and :math:`K_c` the kernel of a component with variance c,

.. math:: c \leftarrow c \, \frac{h'P K_c P h}{\mathrm{tr}(P K_c)}

has the maximum as its fixed point (MacKay's update). For the row variances both terms are matrix
products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.families.base import GaussianFamily
from qbvi.regression.hermite import Covariance, kernels
from qbvi.regression.memory import square
from qbvi.regression.rules import StructureRule, VarianceSearch
from qbvi.regression.surrogate import (
    HermiteRegression,
    PriorCovariance,
    Quadratic,
    Sample,
    Solved,
    Surrogate,
    Variances,
    explained,
    n_not_refuted,
)

__all__ = ["Finding", "Structure", "StructuredRegression", "find_structure", "first_rows", "update_structure"]

Floats = NDArray[np.float64]

_PROBES = 100  # random combinations of coefficients that estimate a trace
_COUNTS = 20  # random quadratics that estimate how many coefficients the points determine
_ROWS = 256  # of a covariance that are added to at a time: they fit the cache
_SMALLEST = 1e-300  # keeps a zero out of a denominator
_LEAST_DENSE = 1e-8  # least share of a dense matrix: what is impossible could never be refuted
_REVIVED = 1e-3  # least relative variance at the start of a search: an update cannot leave zero


class Structure(NamedTuple):
    """Which parameters interact: the prior variances, relative to that of degree two.

    All are for parameters in units of q's standard deviations.
    """

    rows: Floats  # (d,) v, one for each parameter
    own: float  # v_0, of the diagonal
    dense: float  # of a dense matrix, as a share
    hubs: NDArray[np.bool_]  # (d,) parameters that interact with all others
    cubic: float  # share of degree three that is structured ...
    quartic: float  # ... and of degree four
    variances: Variances  # of degrees and noise


class Finding(NamedTuple):
    """What is known about the structure of a log joint."""

    due: int = 0  # points in the store from which on the next search is due
    structure: Structure | None = None  # None if there is none
    n_won: int = 0  # how often in a row it predicted better than a dense prior ...
    n_lost: int = 0  # ... or worse, after it was in use
    is_used: bool = False  # whether the last regression had a structured prior ...
    dense: Variances | None = None  # ... and then, the variances of a dense one

    def compared(self, found: Structure, gain: float, rule: StructureRule) -> Finding:
        """The finding after a comparison: ``gain`` is what a structure gains over a dense prior.

        Far from the optimum, a dense prior may lose once. So a new structure has to win several
        times in a row before it is used. One in use is given up after several losses in a row.
        """
        if self.n_won < rule.wins:
            is_won = gain > rule.gain * len(found.rows)
            return Finding(self.due, found, self.n_won + 1, 0, self.n_won + 1 == rule.wins) if is_won else Finding()
        if gain > -rule.loss:
            return Finding(self.due, found, rule.wins, 0, True)
        return Finding(self.due, found, rule.wins, self.n_lost + 1) if self.n_lost + 1 < rule.losses else Finding()

    def is_promising(self, rule: StructureRule) -> bool:
        """Whether a structure was found that, as far as is known, leaves out little."""
        return self.structure is not None and (self.n_won < rule.wins or self.structure.dense <= rule.partial)


class Frame(NamedTuple):
    """The coordinates in which a structure is visible."""

    A: Floats  # (d, d): t = A z
    rho: Floats  # (d, d) correlations of q

    @classmethod
    def of(cls, family: GaussianFamily, q: Floats) -> Frame:
        """The frame of a Gaussian."""
        factor = (family.transport(q, np.eye(family.dim)) - family.mean(q)).T
        A = factor / np.sqrt(np.sum(factor**2, axis=1, keepdims=True))
        return cls(A, A @ A.T)

    def conditional(self, z: Floats, hubs: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Whitened coordinates of the hubs (n, k), and of the others given the hubs (n, d - k)."""
        order = np.argsort(~hubs, kind="stable")
        factor = np.linalg.cholesky(self.rho[np.ix_(order, order)] + 1e-12 * np.eye(len(order)))
        turned = scipy.linalg.solve_triangular(factor, self.A[order], lower=True) @ z.T
        k = int(np.sum(hubs))
        return turned[:k].T, turned[k:].T


def quadratic_kernel(
    t: Floats, structure: Structure, rho: Floats, gram: Floats | None = None, *, upper: bool = False
) -> Floats:
    """Prior covariance of ``t'Wt / 2``, less its mean under q, between all points (n, d).

    ``gram`` is ``t @ t.T``, if it is known. With ``upper``, the entries below the blocks of the
    diagonal may have any value.
    """
    v, own = structure.rows, structure.own
    left, squares = t * v, t**2
    own_left = squares * (0.5 * own - v)
    M = pair_variances(structure) * rho
    mean = 0.5 * np.sum(t @ M * t, axis=1)
    level = 0.5 * np.sum(M * rho)
    kernel = square(len(t))
    for rows, columns in _blocks(len(t), upper=upper):
        part = left[rows] @ t[columns].T
        part *= t[rows] @ t[columns].T if gram is None else gram[rows, columns]
        part += own_left[rows] @ squares[columns].T
        part += level - mean[rows, None]
        np.subtract(part, mean[columns], out=kernel[rows, columns])
    return kernel


def _blocks(n: int, *, upper: bool) -> Iterator[tuple[slice, slice]]:
    """Blocks of rows of an (n, n) matrix, with all columns, or those from the diagonal on."""
    for part in np.array_split(np.arange(n), max(1, n // _ROWS)):
        yield slice(part[0], part[-1] + 1), slice(part[0] if upper else 0, n)


def pair_variances(structure: Structure) -> Floats:
    """Prior variance of each entry of W (d, d); half of it on the diagonal."""
    w = structure.rows[:, None] + structure.rows[None, :]
    np.fill_diagonal(w, structure.own)
    return w


class LocalKernels(NamedTuple):
    """Covariances of random polynomials of all hubs and one other parameter."""

    third: Floats  # (n, n)
    fourth: Floats  # (n, n)


def local_kernels(hubs: Floats, others: Floats, *, upper: bool = False) -> LocalKernels:
    r"""Kernels of random polynomials of the hubs (n, k) and one of the others (n, d - k).

    Let :math:`H_m` be the sum of ``he_a(x) he_a(y)`` over all orthonormal Hermite polynomials of
    degree m in the hubs, and :math:`S_m` the sum over the others of that polynomial of one
    coordinate. A Hermite polynomial of several coordinates is a product of those of its parts. So
    all polynomials of degree m of the hubs and one other have the kernel
    :math:`H_m + H_{m-1} S_1 + \dots + H_1 S_{m-1} + S_m`, entry by entry. All have the same
    variance. ``upper`` is as for `quadratic_kernel`.

    Examples
    --------
    >>> x = np.array([[0.5, 1.0], [2.0, -1.0]])
    >>> kernel = local_kernels(x[:, :1], x[:, 1:]).third
    >>> he = lambda x: np.stack([1 + 0 * x, x, (x**2 - 1) / 2**0.5, (x**3 - 3 * x) / 6**0.5])
    >>> features = np.stack([he(x[:, 0])[3 - m] * he(x[:, 1])[m] for m in range(4)], axis=1)
    >>> bool(np.allclose(kernel, features @ features.T / 4))
    True
    """
    n, k, n_others = len(hubs), hubs.shape[1], others.shape[1]
    third, fourth = square(n), square(n)
    scaled = _polynomials(others)[1:]
    # By blocks of rows, as ten sums are needed at a time.
    for rows, columns in _blocks(n, upper=upper):
        _, H1, H2, H3, H4 = _hub_sums(hubs[rows], hubs[columns])
        S1, S2, S3, S4 = (x[rows] @ x[columns].T for x in scaled)
        third[rows, columns] = (H3 + H2 * S1 + H1 * S2 + S3) / _n_local(k, n_others, 3)
        fourth[rows, columns] = (H4 + H3 * S1 + H2 * S2 + H1 * S3 + S4) / _n_local(k, n_others, 4)
    return LocalKernels(third, fourth)


def _hub_sums(x: Floats, y: Floats) -> list[Floats]:
    """Sums of ``he_a(x) he_a(y)`` over all polynomials of degree zero to four (m, n)."""
    k, squares = x.shape[1], (np.sum(x**2, axis=1), np.sum(y**2, axis=1))
    g = x @ y.T
    s = k - squares[0][:, None] - squares[1]
    second = 0.5 * (g**2 + s)
    third = g * (g**2 + 3 * s + 6) / 6
    fourth = (g**2 * (g**2 + 6 * s + 24) + 3 * (s * (s + 4) - 2 * k)) / 24
    return [np.ones_like(g), g, second, third, fourth]


def _polynomials(z: Floats) -> list[Floats]:
    """Orthonormal Hermite polynomials of each coordinate, of the degrees zero to four (n, d)."""
    square = z**2
    second, third, fourth = square - 1, z * (square - 3), square * (square - 6) + 3
    return [np.ones_like(z), z, second / math.sqrt(2), third / math.sqrt(6), fourth / math.sqrt(24)]


def _n_local(k: int, n_others: int, degree: int) -> int:
    """Polynomials of this degree in k hubs and at most one of the others."""
    alone, with_one = (math.comb(n + degree - 1, degree) for n in (k, k + 1))
    return alone + n_others * (with_one - alone)


@dataclass(frozen=True, eq=False)
class StructuredCovariance:
    """Prior covariance of the polynomials of degree two to four, with a structure."""

    plain: Covariance  # without a structure
    quadratic: Floats  # (n, n) kernel of the structured matrix
    local: LocalKernels  # of the structured polynomials of degrees three and four
    structure: Structure  # the shares

    @classmethod
    def of(cls, z: Floats, frame: Frame, structure: Structure) -> StructuredCovariance:
        """The covariance of points z (n, d)."""
        quadratic = quadratic_kernel(z @ frame.A.T, structure, frame.rho, upper=True)
        local = local_kernels(*frame.conditional(z, structure.hubs), upper=True)
        return cls(Covariance(z), quadratic, local, structure)

    def write(self, quadratic: float, omega: float, out: Floats) -> None:
        """Write degree two with variance ``quadratic``, plus the tail, into ``out`` (n, n)."""
        shares, tail = self.structure, np.array([1.0, omega]) / (1 + omega)
        structured = np.array([shares.cubic, shares.quartic])
        self.plain.write_sum(np.array([quadratic * shares.dense, *((1 - structured) * tail)]), out)
        cubic, quartic = structured * tail
        for tile in _blocks(len(out), upper=True):
            out[tile] += quadratic * self.quadratic[tile]
            out[tile] += cubic * self.local.third[tile]
            out[tile] += quartic * self.local.fourth[tile]


class StructuredRegression(HermiteRegression):
    """The regression of one set of points with a structured prior of degrees two and three.

    Parameters
    ----------
    points
        Draws, residuals and their relative noise.
    frame
        The coordinates of the parameters.
    structure
        The prior variances.
    rules
        The search for the variances of degrees and noise.
    """

    def __init__(self, points: Sample, frame: Frame, structure: Structure, rules: VarianceSearch | None = None) -> None:
        self._frame, self.structure = frame, structure
        d = points.z.shape[1]
        log_joint = points.h - 0.5 * (np.sum(points.z**2, axis=1) - d)
        super().__init__(points._replace(h=log_joint), rules=rules)

    def _prior(self) -> PriorCovariance:
        return StructuredCovariance.of(self.points.z, self._frame, self.structure)

    def _free_features(self) -> Floats:
        """A constant and z: the prior of degree two covers the squared radius."""
        return np.column_stack([np.ones(len(self.points.z)), self.points.z])

    def boldest_posterior(self, variances: Variances, family: GaussianFamily) -> Surrogate:
        """The posterior with the largest variance of a dense matrix that the draws do not refute.

        It answers what the prior takes for granted: that other parameters do not interact.
        """
        limit, least = self.misfit(variances) + self._rules.slack, self.structure.dense
        shares = least * self._rules.bolder ** np.arange(1, self._rules.boldest + 1)
        shares = shares[shares <= 1]
        n = n_not_refuted(len(shares), lambda i: self._bolder(shares[i]).misfit(variances) > limit)
        return (self._bolder(shares[n - 1]) if n else self).posterior(variances, family)

    def _bolder(self, dense: float) -> StructuredRegression:
        """The same regression with another share of a dense matrix."""
        other = copy(self)
        other.structure = self.structure._replace(dense=dense)
        assert isinstance(self._covariance, StructuredCovariance)
        other._covariance = replace(self._covariance, structure=other.structure)
        other._factored, other._misfits = {}, {}
        return other

    def _quadratic(
        self, solved: Solved, variances: Variances, family: GaussianFamily, free_variance: Floats
    ) -> Quadratic:
        z, d, A = self.points.z, family.dim, self._frame.A
        w = variances.quadratic * pair_variances(self.structure)
        dense = variances.quadratic * self.structure.dense / (d * (d + 1) / 2)
        M = (z.T * solved.alpha) @ z
        C = A.T @ (w * (A @ M @ A.T)) @ A + dense * M + np.eye(d)
        variance = self._uncertain(solved, family, w, dense)
        return Quadratic(C, variance, self._n_uncertain(family), self._n_determined(solved, w))

    def _n_uncertain(self, family: GaussianFamily) -> float:
        """Number of coefficients that share the error of C: those in the rows of the hubs.

        The error of an eigenvalue of C is that of one row. With few hubs it is larger than if all
        coefficients had the same error.
        """
        return min(family.dim * max(1, int(np.sum(self.structure.hubs))), family.n_quadratic)

    def _uncertain(self, solved: Solved, family: GaussianFamily, w: Floats, dense: float) -> float:
        """Posterior variance of C, summed over the family's coefficients.

        Let u be the coefficients of a random combination, G its matrix in z. Its prior covariance
        with W is ``w * (A G A')``, entry by entry.
        """
        d, A = family.dim, self._frame.A
        rows, columns = np.nonzero(np.tril(family.restrict(np.ones((d, d)))))
        u = _combinations(len(rows))
        G = np.zeros((len(u), d, d))
        G[:, rows, columns] = u * np.where(rows == columns, np.sqrt(0.5), 1.0)
        G = G + G.transpose(0, 2, 1)
        seen = A @ G @ A.T
        features = np.stack([self._values(w * s, dense * g) for s, g in zip(seen, G, strict=True)], axis=1)
        prior = 0.5 * float(np.sum(seen**2 * w)) + dense * float(np.sum(u**2))
        return max(prior - explained(solved, features), 0.0)

    def _n_determined(self, solved: Solved, w: Floats) -> float:
        """Effective number of coefficients of degree two: the trace of P K, by random draws."""
        d = len(w)
        sd = np.sqrt(np.tril(w)) * np.where(np.eye(d), np.sqrt(0.5), 1.0)
        W = np.random.default_rng(0).standard_normal((_COUNTS, d, d)) * sd
        features = np.stack([self._values(x + x.T) for x in W], axis=1)
        return explained(solved, features) / _COUNTS

    def _values(self, W: Floats, G: Floats | None = None) -> Floats:
        """``t'Wt / 2 + z'Gz / 2`` at the points (n,)."""
        # The sum of both is one quadratic form in z.
        A = self._frame.A
        form = A.T @ W @ A if G is None else A.T @ W @ A + G
        values: Floats = 0.5 * np.sum(self.points.z @ form * self.points.z, axis=1)
        return values


def _combinations(p: int) -> Floats:
    """An orthonormal basis of p coefficients, or random signs that have its mean products."""
    if p <= _PROBES:
        return np.eye(p)
    signs: Floats = np.random.default_rng(0).choice([-1.0, 1.0], (_PROBES, p)) / np.sqrt(_PROBES)
    return signs


class _Components(NamedTuple):
    """Variances of the parts of the log joint, in nats squared."""

    rows: Floats  # (d,)
    own: float
    dense: float
    third: float
    local_third: float
    fourth: float
    local_fourth: float
    noise: float

    @property
    def tail(self) -> float:
        """Variance of degrees three and four."""
        return self.third + self.local_third + self.fourth + self.local_fourth


def first_rows(points: Sample, frame: Frame, rule: StructureRule) -> _Components | None:
    """Variances from a few iterations on few points; None if no rows stand out."""
    d = points.z.shape[1]
    few = _RestrictedLikelihood(points, frame, rule.few * d, is_quadratic=True)
    found = few.start()
    for iterations, share in rule.stages:
        for _ in range(iterations):
            found = few.improved(found)
        if np.sum(found.rows) ** 2 > share * d * np.sum(found.rows**2):
            return None
    return found


def find_structure(points: Sample, frame: Frame, rule: StructureRule, first: _Components) -> Structure | None:
    """The structure with the highest restricted likelihood; None if it has many hubs.

    ``first`` is from `first_rows`. Held-out points take part.
    """
    d, most = points.z.shape[1], rule.search_points * points.z.shape[1]
    found = _RestrictedLikelihood(points, frame, most).start()._replace(rows=first.rows, own=first.own)
    hubs = np.ones(d, dtype=bool)
    for most_points in (most, *(rule.choices - 1) * (rule.most_points,)):
        hubs = found.rows > rule.hub * np.max(found.rows)
        found = _improved(_RestrictedLikelihood(points, frame, most_points), found, hubs, rule)
        if not rule.is_sparse(found.rows > rule.hub * np.max(found.rows)):
            return None
    return _relative(found, hubs, frame.rho)


def update_structure(points: Sample, frame: Frame, rule: StructureRule, last: Structure) -> Structure:
    """The structure with the highest restricted likelihood, near the one of the last search.

    Far from the optimum, terms of higher degree may make hubs of many parameters. With too many of
    them, the hubs stay as they were.
    """
    likelihood, old = _RestrictedLikelihood(points, frame, rule.most_points), _absolute(last)
    is_hub = old.rows > rule.hub * np.max(old.rows)
    hubs = is_hub if rule.is_sparse(is_hub) else last.hubs
    return _relative(_improved(likelihood, old, hubs, rule), hubs, frame.rho)


def _improved(
    likelihood: _RestrictedLikelihood, found: _Components, hubs: NDArray[np.bool_], rule: StructureRule
) -> _Components:
    """Improve all components for these hubs."""
    likelihood.assume(hubs)
    found = likelihood.rescaled(found)
    for _ in range(rule.iterations):
        found = likelihood.improved(found)
        found = found._replace(noise=max(found.noise, rule.least_noise * found.tail))
    return found


def _absolute(structure: Structure) -> _Components:
    """The components of a structure, up to a common factor."""
    s, v = structure, structure.variances
    third, fourth = 1 / (1 + v.omega), max(v.omega, _REVIVED) / (1 + v.omega)
    return _Components(
        rows=np.maximum(s.rows, _REVIVED * np.max(s.rows)) * v.quadratic,
        own=s.own * v.quadratic,
        dense=s.dense * v.quadratic,
        third=third * max(1 - s.cubic, _REVIVED),
        local_third=third * max(s.cubic, _REVIVED),
        fourth=fourth * max(1 - s.quartic, _REVIVED),
        local_fourth=fourth * max(s.quartic, _REVIVED),
        noise=v.noise,
    )


def _relative(found: _Components, hubs: NDArray[np.bool_], rho: Floats) -> Structure:
    """Variances relative to those of their degree, as the regression has them."""
    raw = Structure(found.rows, found.own, 0.0, hubs, 0.0, 0.0, Variances())
    # Mean variance of the quadratic under q: each feature has variance 1 + rho^2.
    level = 0.5 * float(np.sum(pair_variances(raw) * (1 + rho**2)))
    third, fourth = found.third + found.local_third, found.fourth + found.local_fourth
    variances = Variances(fourth / third, level / found.tail, found.noise / found.tail)
    return Structure(
        found.rows / level,
        found.own / level,
        max(found.dense / level, _LEAST_DENSE),
        hubs,
        found.local_third / third,
        found.local_fourth / fourth,
        variances,
    )


class _RestrictedLikelihood:
    """Variance components of the last points, at most so many, and their update.

    With ``is_quadratic``, the only components are the rows, the diagonal and the noise.
    """

    def __init__(self, points: Sample, frame: Frame, most: int, *, is_quadratic: bool = False) -> None:
        self._z, self._growth, self._frame = points.z[-most:], points.growth[-most:], frame
        y = points.h[-most:] - 0.5 * (np.sum(self._z**2, axis=1) - points.z.shape[1])
        self._y = y - np.median(y)
        self._t = self._z @ frame.A.T
        self._gram = self._t @ self._t.T
        self._free = np.column_stack([np.ones(len(self._z)), self._z])
        plain = None if is_quadratic else kernels(self._z)
        # The kernels that are matrices, by the name of their component.
        self._parts = {} if plain is None else {"dense": plain.second, "third": plain.third, "fourth": plain.fourth}

    def assume(self, hubs: NDArray[np.bool_]) -> None:
        """Let structured polynomials be those of these hubs and one other parameter."""
        local = local_kernels(*self._frame.conditional(self._z, hubs))
        self._parts |= {"local_third": local.third, "local_fourth": local.fourth}

    def start(self) -> _Components:
        """Components of about the right size."""
        d = self._z.shape[1]
        size = float(np.var(self._y)) / float(np.mean(np.sum(self._t**2, axis=1) / d)) ** 2
        rows, own = np.full(d, 0.1 * size / d**2), size / d
        if not self._parts:
            return _Components(rows, own, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1 * size)
        tail = 0.05 * size, 0.05 * size, 0.02 * size, 0.02 * size
        return _Components(rows, own, 1e-3 * size, *tail, 1e-3 * size)

    def rescaled(self, c: _Components) -> _Components:
        """The same components times the factor of the highest likelihood."""
        _, alpha = self._projected(self._covariance(c))
        factor = float(self._y @ alpha) / (len(self._y) - self._free.shape[1])
        return _Components(*(factor * part for part in c))

    def _covariance(self, c: _Components) -> Floats:
        s = Structure(c.rows, c.own, 0.0, np.zeros(0, dtype=bool), 0.0, 0.0, Variances())
        V = quadratic_kernel(self._t, s, self._frame.rho, self._gram)
        for name, kernel in self._parts.items():
            V += getattr(c, name) * kernel
        np.einsum("ii->i", V)[:] += c.noise * self._growth
        return V

    def improved(self, c: _Components) -> _Components:
        """One update of all components."""
        P, alpha = self._projected(self._covariance(c))
        M = (self._t.T * alpha) @ self._t
        weighted = P * self._gram
        squares = self._t**2
        fourth = np.sum(squares * (P @ squares), axis=0)  # of t_i^2, for each i
        rows = np.sum(self._t * (weighted @ self._t), axis=0) - fourth
        inner = np.sum(M**2, axis=1) - np.diag(M) ** 2
        new = {name: getattr(c, name) * _ratio(alpha @ k @ alpha, np.sum(P * k)) for name, k in self._parts.items()}
        new["noise"] = c.noise * _ratio(self._growth @ alpha**2, self._growth @ np.diag(P))
        new["own"] = c.own * _ratio(np.sum(np.diag(M) ** 2), np.sum(fourth))
        return c._replace(rows=c.rows * _ratio(inner, rows), **new)

    def _projected(self, V: Floats) -> tuple[Floats, Floats]:
        """P and P y; V is overwritten."""
        diagonal = np.einsum("ii->i", V)
        diagonal *= 1 + 1e-9
        factor = scipy.linalg.lapack.dpotrf(V.T, lower=1, clean=1, overwrite_a=1)[0]
        Q = np.linalg.qr(scipy.linalg.blas.dtrsm(1.0, factor, self._free, lower=1))[0]
        H = scipy.linalg.blas.dtrsm(1.0, factor, Q, lower=1, trans_a=1)
        inverse = scipy.linalg.lapack.dpotri(factor, lower=1, overwrite_c=1)[0]
        P: Floats = inverse + inverse.T  # the upper triangle was zero, and the diagonal is now twice
        np.einsum("ii->i", P)[:] *= 0.5
        P -= H @ H.T
        return P, P @ self._y


def _ratio(data: Floats | float, expected: Floats | float) -> Floats | float:
    return np.clip(np.asarray(data) / np.maximum(expected, _SMALLEST), 1e-4, 1e4)
