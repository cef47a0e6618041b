"""Symmetries: exchanges of coordinates, and changes of sign, that leave the log joint unchanged.

Mixtures and hidden Markov models do not change when their components are numbered in another order.
Products and squares do not change with certain signs. The posterior then has copies of each mode,
and all of them have the same mass. Such a symmetry is proposed if the prior has it, which costs no
evaluation of the user's function. It is confirmed if the log joint has the same value at the images
of two points. From then on, the image of every point is known as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from qbvi.model import Model, Parameter
from qbvi.supports import Periodic

__all__ = ["Group", "Symmetry", "is_equal", "proposed"]

Floats = NDArray[np.float64]

_MOST_EXCHANGED = 3  # equal components up to which all exchanges of two are proposed
_MOST_SIGNS = 3  # coordinates up to which the sign of each one alone is proposed
_MOST_COPIES = 24
_EXACT = 1e-9  # largest relative difference between two equal log densities


class Symmetry(NamedTuple):
    """The map u -> sign * u[order].

    Examples
    --------
    >>> exchange = Symmetry((1, 0, 2), (1, 1, -1), "an exchange")
    >>> exchange(np.array([[1.0, 2.0, 3.0]]))
    array([[ 2.,  1., -3.]])
    """

    order: tuple[int, ...]  # (d,)
    sign: tuple[int, ...]  # (d,)
    name: str  # for the user, such as "mu[0] and mu[1] are exchanged"

    def __call__(self, u: Floats) -> Floats:
        """The images of points (n, d)."""
        return np.asarray(np.asarray(self.sign) * u[..., list(self.order)])

    def of_covariance(self, cov: Floats) -> Floats:
        """The covariance (d, d) of the image of a Gaussian."""
        rows, sign = list(self.order), np.asarray(self.sign)
        return np.asarray(cov[np.ix_(rows, rows)] * np.outer(sign, sign))

    def then(self, other: Symmetry) -> Symmetry:
        """The map that applies another one after this one."""
        order = tuple(self.order[i] for i in other.order)
        sign = tuple(s * self.sign[i] for s, i in zip(other.sign, other.order, strict=True))
        return Symmetry(order, sign, self.name)


class Group(NamedTuple):
    """All maps that follow from some symmetries, the identity first.

    Examples
    --------
    >>> exchange = Symmetry((1, 0), (1, 1), "x and y are exchanged")
    >>> Group.of(2, (exchange,)).images(np.array([[1.0, 2.0], [5.0, 4.0]]))
    array([[1., 2.],
           [2., 1.],
           [5., 4.],
           [4., 5.]])
    """

    maps: tuple[Symmetry, ...]

    @classmethod
    def of(cls, d: int, symmetries: Sequence[Symmetry]) -> Self:
        """The group that some symmetries generate, in d dimensions."""
        found = {(tuple(range(d)), (1,) * d): Symmetry(tuple(range(d)), (1,) * d, "")}
        edge = list(found.values())
        while edge and len(found) < _MOST_COPIES:
            products = [first.then(second) for first in edge for second in symmetries]
            edge = [product for product in products if product[:2] not in found]
            found |= {product[:2]: product for product in edge}
        return cls(tuple(found.values()))

    def __len__(self) -> int:
        return len(self.maps)

    def images(self, u: Floats) -> Floats:
        """All images of points (n, d), those of a point together: (n k, d)."""
        return np.asarray(np.stack([image(u) for image in self.maps], axis=1).reshape(-1, u.shape[1]))

    def canonical(self, u: Floats) -> Floats:
        """For each point (n, d) the image that stands for all of them."""
        if len(self) == 1:
            return u
        images = self.images(u).reshape(len(u), len(self), -1)
        # Any weights without a relation between them prefer one image to all others.
        weights = np.sqrt(2.0 + np.arange(u.shape[1])[::-1])
        return np.asarray(images[np.arange(len(u)), np.argmax(images @ weights, axis=1)])


def is_equal(y: float, other: float) -> bool:
    """Whether two log densities are equal but for rounding."""
    return abs(y - other) <= _EXACT * (1 + abs(y))


def proposed(model: Model) -> tuple[Symmetry, ...]:
    """Symmetries of the prior that the likelihood may share.

    - Exchanges of two or three equal components: entries of vectors, or numbers whose names differ
      by their last digits, that have the same prior. All components of one kind are exchanged at
      the same time, and in a second proposal probabilities of their own change sides.
    - The signs of all coordinates whose prior is symmetric about zero, and of single ones.

    Examples
    --------
    >>> import qbvi
    >>> model = Model({"mu": qbvi.Normal(0, 5, shape=2), "sd": qbvi.HalfNormal(1, shape=2)})
    >>> [symmetry.name for symmetry in proposed(model)][:1]
    ['mu[0] and mu[1], sd[0] and sd[1] are exchanged']
    """
    d = model.dim
    if any(p.is_native for p in model.parameters):
        return ()
    prior = _Prior(model)
    kinds = [kind for candidates in _alike(model) for kind in prior.exchangeable(candidates)]
    labels = [label for p in model.parameters for label in (p.labels if _is_plain(p) else [p.name] * _width(p))]
    odd = [i for i in range(d) if prior.is_odd[i]]
    return (*_exchanges(kinds, prior, labels), *_signs(odd, labels))


class _Prior:
    """Which exchanges and changes of sign leave the prior unchanged, by its values at one point."""

    def __init__(self, model: Model) -> None:
        d = model.dim
        self._model = model
        self._point = 0.3 + 0.7 * np.random.default_rng(0).random(d)
        zero = np.zeros((1, d))
        at_zero = [
            np.ravel(p.constrain(zero)) if _is_plain(p) else np.full(_width(p), np.nan) for p in model.parameters
        ]
        is_plain = np.concatenate([np.full(_width(p), _is_plain(p)) for p in model.parameters])
        self.is_even = is_plain & self._is_same(self._point * (1 - 2 * np.eye(d)))
        self.is_odd = self.is_even & (np.concatenate(at_zero) == 0.0)

    def exchangeable(self, candidates: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Classes of coordinates that the prior does not tell apart."""
        rest = list(candidates)
        while rest:
            exchanged = np.repeat(self._point[None], len(rest), axis=0)
            for row, j in zip(exchanged, rest, strict=True):
                row[[rest[0], j]] = row[[j, rest[0]]]
            same = self._is_same(exchanged)
            yield tuple(j for j, is_same in zip(rest, same, strict=True) if is_same)
            rest = [j for j, is_same in zip(rest, same, strict=True) if not is_same]

    def _is_same(self, points: Floats) -> NDArray[np.bool_]:
        y = np.asarray(self._model.log_prior(np.concatenate([self._point[None], points])))
        return np.asarray(np.abs(y[1:] - y[0]) <= _EXACT * (1 + np.abs(y[0])))


def _is_plain(parameter: Parameter) -> bool:
    """Whether each coordinate is one number of the user's, between fixed ends if any."""
    support = parameter.distribution.support
    return parameter.size == _width(parameter) and not support.is_discrete and not isinstance(support, Periodic)


def _width(parameter: Parameter) -> int:
    """Number of coordinates."""
    return int(parameter.columns.stop - parameter.columns.start)


def _alike(model: Model) -> list[list[int]]:
    """Coordinates that may be of one kind: entries of one vector, or numbered scalars."""
    kinds: dict[str, list[int]] = {}
    for p in filter(_is_plain, model.parameters):
        is_scalar = _width(p) == 1
        stem = re.sub(r"[\W_]*\d+$", "", p.name)
        kind = ("" if stem == p.name else stem) if is_scalar else f"{p.name}[]"
        kinds.setdefault(kind, []).extend(range(p.columns.start, p.columns.stop))
    return list(kinds.values())


def _exchanges(kinds: Sequence[tuple[int, ...]], prior: _Prior, labels: Sequence[str]) -> Iterator[Symmetry]:
    d = len(labels)
    alone = [kind[0] for kind in kinds if len(kind) == 1 and prior.is_even[kind[0]] and not prior.is_odd[kind[0]]]
    for size in range(2, _MOST_EXCHANGED + 1):
        together = [kind for kind in kinds if len(kind) == size]
        for i, j in combinations(range(size), 2) if together else ():
            order = np.arange(d)
            for kind in together:
                order[[kind[i], kind[j]]] = kind[j], kind[i]
            pairs = ", ".join(f"{labels[kind[i]]} and {labels[kind[j]]}" for kind in together)
            yield Symmetry(tuple(order.tolist()), (1,) * d, f"{pairs} are exchanged")
            if size == 2 and alone:  # of two components one number may be the weight
                sign = tuple(-1 if k in alone else 1 for k in range(d))
                sides = ", ".join(labels[k] for k in alone)
                yield Symmetry(tuple(order.tolist()), sign, f"{pairs} are exchanged, and the sides of {sides}")


def _signs(odd: Sequence[int], labels: Sequence[str]) -> Iterator[Symmetry]:
    d = len(labels)
    single = [[i] for i in odd] if 1 < len(odd) <= _MOST_SIGNS else []
    for chosen in [list(odd), *single] if odd else []:
        sign = tuple(-1 if k in chosen else 1 for k in range(d))
        names = ", ".join(labels[k] for k in chosen)
        yield Symmetry(tuple(range(d)), sign, f"{names} change{'s' if len(chosen) == 1 else ''} sign")
