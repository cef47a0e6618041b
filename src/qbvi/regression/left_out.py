r"""Correlations that a family leaves out, and what that costs in nats.

A product of independent blocks has no term that couples two of them. The regression has: near the
best product q, the residual is

.. math:: h(\psi) = a + \tfrac12 \psi'C\psi + \dots,

with :math:`\psi` the whitened coordinates of q and C zero within each block. The nats between q and
the posterior are then

.. math::

    \mathrm{KL}(q \,\|\, p) = \log E_q[e^h] - E_q[h]
    = \tfrac12 \mathrm{Var}_q(h) + \dots = \tfrac14 \mathrm{tr}\, C^2 + \dots,

which is half the sum of the squared coefficients of all pairs. If the coordinates are normal, the
expectation has a closed form, and the cost is exactly

.. math:: -\tfrac12 \log\det(I - C).

The covariance of the coordinates is :math:`(I - C)^{-1}` then. For two numbers with correlation r,
C has the entry r, and the cost is :math:`-\tfrac12 \log(1 - r^2)`. This form serves all continuous
coordinates. Those of discrete parameters are bounded or nearly so, and the cost of their pairs is
that of the second order, which is exact for a fair switch that shifts a normal.

Terms of higher order, such as those of a curved ridge, cost more. They are not counted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array
from qbvi.families.base import Family, GaussianFamily
from qbvi.families.exponential import ExponentialFamily
from qbvi.model import Model
from qbvi.random import Sobol

__all__ = ["LeftOut", "is_product", "left_out"]

Floats = NDArray[np.float64]

_NODES = 2048  # least number of draws from q that relate its coordinates to the parameters ...
_NODES_EACH = 8  # ... and least number for each coordinate
_SOFTEST = 1e-3  # least eigenvalue of I - C: below, C is an error of the regression
_NAMED = 3  # most pairs that a sentence names
_WEAK = 0.1  # correlation below which a pair is not named
_WIDER = 1.1  # ratio of standard deviations below which it is not mentioned


class LeftOut(NamedTuple):
    """Correlations that a member of a family leaves out."""

    nats: float  # their cost: KL(q || p) to second order, and exactly if p is normal
    correlation: Floats  # (d, d) of the posterior, between columns that q makes independent
    stretch: Floats  # (d,) standard deviations of the posterior, relative to those of q

    def sentence(self, model: Model) -> str:
        """What is left out, in words."""
        labels = _labels(model)
        strength = np.abs(np.triu(self.correlation))
        order = np.argsort(-strength, axis=None, kind="stable")[: int(np.sum(strength >= _WEAK))]
        pairs = list(zip(*np.unravel_index(order, strength.shape), strict=True))
        named = [f"{labels[i]} and {labels[j]} ({self.correlation[i, j]:.2f})" for i, j in pairs[:_NAMED]]
        if len(pairs) > _NAMED:
            named.append(f"{len(pairs) - _NAMED} more")
        parts = [f"the family leaves out correlations, which costs about {self.nats:.2g} nats or more"]
        parts[0] += f": {', '.join(named)}" if named else ", all of them small"
        widest = int(np.argmax(self.stretch))
        if self.stretch[widest] >= _WIDER:
            times = f"{self.stretch[widest]:.2g} times that of this fit"
            parts.append(f"the posterior standard deviation of {labels[widest]} is about {times}")
        if any(not (model.is_discrete[i] or model.is_discrete[j]) for i, j in pairs):
            parts.append("the default family has the correlations of all continuous parameters")
        return "; ".join(parts)


def is_product(family: Family) -> bool:
    """Whether the family makes some coordinates independent of others."""
    of_column, _ = _membership(family)
    return len(set(of_column.tolist())) > 1


def left_out(family: Family, q: Array, C: Floats, is_discrete: NDArray[np.bool_]) -> LeftOut:
    """Compute what the best member q leaves out.

    Parameters
    ----------
    family, q
        A product of independent blocks, and its best member.
    C
        Coefficients of ``x'Cx / 2`` in the residual (n_whitened, n_whitened), with x the whitened
        coordinates of ``family.defensive(q)``.
    is_discrete
        Which columns hold whole numbers (d,).

    Examples
    --------
    A normal with correlation 0.8 and its best product, with variances of 0.36:

    >>> from qbvi.families import DiagonalGaussian
    >>> family = DiagonalGaussian(2)
    >>> q = family.start(np.zeros(2), np.full(2, 0.6))
    >>> found = left_out(family, q, np.array([[0.0, 0.8], [0.8, 0.0]]), np.zeros(2, dtype=bool))
    >>> round(found.nats, 4), round(float(found.correlation[0, 1]), 4), found.stretch.round(4)
    (0.5108, 0.8, array([1.6667, 1.6667]))
    """
    of_column, of_coordinate = _membership(family)
    A, T, rest = _relations(family, q)
    C = np.where(of_coordinate[:, None] != of_coordinate[None, :], T.T @ C @ T, 0.0)
    discrete = np.isin(of_coordinate, of_column[is_discrete])
    mixed = discrete[:, None] | discrete[None, :]
    stiffness = np.maximum(1 - np.linalg.eigvalsh(np.where(mixed, 0.0, C)), _SOFTEST)
    nats = -0.5 * float(np.sum(np.log(stiffness))) + 0.25 * float(np.sum(C[mixed] ** 2))
    c, axes = np.linalg.eigh(C)
    root = A @ (axes / np.sqrt(np.maximum(1 - c, _SOFTEST)))
    cov = root @ root.T + rest
    sd = np.sqrt(np.diag(cov))
    apart = of_column[:, None] != of_column[None, :]
    correlation = np.where(apart, cov / np.outer(sd, sd), 0.0)
    return LeftOut(nats, correlation, sd / np.sqrt(np.diag(A @ A.T + rest)))


def _relations(family: Family, q: Array) -> tuple[Floats, Floats, Floats]:
    """How columns of theta and defensive coordinates depend on the coordinates of q.

    Returns the linear parts (d, n_whitened) and (n_whitened, n_whitened), and the covariance of
    what is not linear in the columns (d, d). All are least squares over draws from q; they are
    exact for Gaussians.
    """
    n = 1 << math.ceil(math.log2(max(_NODES, _NODES_EACH * family.n_whitened)))
    theta = family.transport(q, Sobol().normal(np.random.default_rng(0), n, family.dim))
    x, psi = family.coordinates(family.defensive(q), theta), family.coordinates(q, theta)
    design = np.column_stack([np.ones(n), psi])
    slopes = np.linalg.lstsq(design, np.column_stack([theta, x]), rcond=None)[0]
    rest = theta - design @ slopes[:, : family.dim]
    # A tiny number keeps the correlations of a column finite that has one value only.
    noise = rest.T @ rest / n + 1e-300 * np.eye(family.dim)
    return slopes[1:, : family.dim].T, slopes[1:, family.dim :].T, noise


def _membership(family: Family) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number of the independent block of each column (d,) and each coordinate (n_whitened,)."""
    of_column, of_coordinate, n = np.empty(family.dim, dtype=np.int64), [], 0
    for factor, columns in family.independent_parts:
        here, there = _numbered(factor)
        of_column[list(columns)] = n + here
        of_coordinate.append(n + there)
        n += int(here.max()) + 1
    return of_column, np.concatenate(of_coordinate)


def _numbered(factor: Family) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same for one factor: a block is a copy of a law, or a block of a covariance."""
    if isinstance(factor, ExponentialFamily):
        copies = np.arange(factor.copies)
        return np.repeat(copies, factor.n_coordinates), np.repeat(copies, factor.n_statistics)
    assert isinstance(factor, GaussianFamily)
    first = np.argmax(factor.restrict(np.ones((factor.dim, factor.dim))) != 0, axis=1)
    return first, first


def _labels(model: Model) -> list[str]:
    """One label for each column of u."""
    widths = [p.columns.stop - p.columns.start for p in model.parameters]
    parts = [p.labels if p.size == k else [p.name] * k for p, k in zip(model.parameters, widths, strict=True)]
    return [label for part in parts for label in part]
