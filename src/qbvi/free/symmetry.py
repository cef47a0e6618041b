"""Symmetries: exchanges of coordinates, and changes of sign, that leave the likelihood unchanged.

Mixtures and hidden Markov models do not change when their components are numbered in another order.
Products and squares do not change with certain signs, and a curve between two levels is the same if
they change places and the slope its sign. The posterior then has an image of each mode. If the
prior is the same there too, it is a copy, of the same mass.

Symmetries are proposed by names and priors, which costs no evaluation of the user's function. One
is confirmed if the log-likelihood has the same value at the images of two points. From then on, the
image of every point is known as well, since the prior is known everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import Any, NamedTuple, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.model import Model, Parameter
from qbvi.supports import Periodic, Simplex

__all__ = ["Group", "Slots", "Symmetry", "exact_part", "is_equal", "proposed"]

Floats = NDArray[np.float64]
LogPrior = Callable[[Floats], Floats]

_MOST_EXCHANGED = 3  # equal components up to which all exchanges of two are proposed
_MOST_SIGNS = 3  # coordinates up to which the signs of each one and of each two are proposed
_MOST_COPIES = 24
# Four numbers of one prior may be those of two components of two numbers each, such as two lines.
_PAIRINGS = (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)))
_EXACT = 1e-9  # largest relative difference between two equal log densities of a prior ...
# ... and of a likelihood: a small number that guards a division, or an integrator, changes digits.
_SAME = 1e-7


class Block(NamedTuple):
    """Vectors that sum to one: their first coordinate in u, how many there are, and of what size.

    Each has one coordinate fewer than it has entries, and no entry has a coordinate of its own. But
    an exchange of entries is an exchange of the logarithms ``v = H' u`` (see `qbvi.Simplex`).
    """

    first: int
    rows: int
    size: int


class Symmetry(NamedTuple):
    """The map v -> sign * v[order], where v is u with all logarithms of vectors that sum to one.

    Then entries of v, each multiplied by a number, are added to others.

    Examples
    --------
    >>> exchange = Symmetry((1, 0, 2), (1, 1, -1), "an exchange")
    >>> exchange(np.array([[1.0, 2.0, 3.0]]))
    array([[ 2.,  1., -3.]])
    >>> twice = Symmetry((0, 1), (1, 1), "x is added to y twice", added=((1, 0, 2),))
    >>> twice(np.array([[1.0, 2.0]]))
    array([[1., 4.]])
    """

    order: tuple[int, ...]  # (k,)
    sign: tuple[int, ...]  # (k,)
    name: str  # for the user, such as "mu[0] and mu[1] are exchanged"
    blocks: tuple[Block, ...] = ()  # without any, v is u
    keeps_prior: bool = True  # whether the prior is the same at the image of every point
    added: tuple[tuple[int, int, int], ...] = ()  # to which entry of v, which one, and how often
    # Coordinates of u that are correlated at a mode if it is a symmetry (`qbvi.free.roles`).
    correlated: tuple[int, ...] = ()

    @classmethod
    def of_matrix(cls, matrix: NDArray[np.int64], name: str, blocks: tuple[Block, ...] = ()) -> Self:
        """The map v -> M v with whole numbers M (k, k). The prior is taken to change.

        Equal maps have equal parts: an order and signs if they are enough.
        """
        k = len(matrix)
        if np.all(np.count_nonzero(matrix, axis=1) == 1) and np.all(np.abs(matrix).sum(axis=0) == 1):
            order = np.argmax(np.abs(matrix), axis=1)
            sign = matrix[np.arange(k), order]
            return cls(tuple(order.tolist()), tuple(sign.tolist()), name, blocks, keeps_prior=False)
        rest = matrix - np.eye(k, dtype=np.int64)
        added = tuple((int(i), int(j), int(rest[i, j])) for i, j in np.argwhere(rest))
        return cls(tuple(range(k)), (1,) * k, name, blocks, keeps_prior=False, added=added)

    @classmethod
    def from_spec(cls, spec: Sequence[Any]) -> Self:
        """The map of which these are the parts, as a file has them."""
        order, sign, name, blocks, keeps_prior, added, correlated = spec
        parts = tuple(Block(*map(int, block)) for block in blocks)
        to = tuple((int(i), int(j), int(often)) for i, j, often in added)
        whole = (tuple(map(int, numbers)) for numbers in (order, sign, correlated))
        order, sign, correlated = whole
        return cls(order, sign, str(name), parts, bool(keeps_prior), to, correlated)

    @property
    def key(self) -> tuple[tuple[int, ...], ...]:
        """What tells two maps apart."""
        return self.order, self.sign, *self.added

    def __call__(self, u: Floats) -> Floats:
        """The images of points (n, d)."""
        if not self.blocks:
            return self.mapped(u)
        basis = _basis(u.shape[-1], self.blocks)
        return np.asarray(self.mapped(u @ basis) @ basis.T)

    def mapped(self, v: Floats) -> Floats:
        """The images of points with all logarithms (n, k)."""
        image = np.asarray(self.sign) * v[..., list(self.order)]
        for to, which, often in self.added:
            image[..., to] += often * v[..., which]
        return np.asarray(image)

    def of_covariance(self, cov: Floats) -> Floats:
        """The covariance (d, d) of the image of a Gaussian."""
        matrix = self(np.eye(len(cov)))
        return np.asarray(matrix.T @ cov @ matrix)

    def then(self, other: Symmetry) -> Symmetry:
        """The map that applies another one after this one."""
        if self.added or other.added:
            after = other.mapped(self.mapped(np.eye(len(self.order), dtype=np.int64)))
            keeps_prior = self.keeps_prior and other.keeps_prior
            return Symmetry.of_matrix(np.rint(after.T).astype(np.int64), self.name, self.blocks)._replace(
                keeps_prior=keeps_prior
            )
        order = tuple(self.order[i] for i in other.order)
        sign = tuple(s * self.sign[i] for s, i in zip(other.sign, other.order, strict=True))
        return Symmetry(order, sign, self.name, self.blocks, self.keeps_prior and other.keeps_prior)


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
        k, blocks = (len(symmetries[0].order), symmetries[0].blocks) if symmetries else (d, ())
        identity = Symmetry(tuple(range(k)), (1,) * k, "", blocks)
        found = {identity.key: identity}
        edge = list(found.values())
        while edge and len(found) < _MOST_COPIES:
            products = [first.then(second) for first in edge for second in symmetries]
            edge = [product for product in products if product.key not in found]
            found |= {product.key: product for product in edge}
        return cls(tuple(found.values()))

    def __len__(self) -> int:
        return len(self.maps)

    @property
    def is_orthogonal(self) -> bool:
        """Whether the maps form a group, keep the prior, and exchange entries or change signs."""
        keys = {image.key for image in self.maps}
        is_closed = all(first.then(second).key in keys for first in self.maps for second in self.maps)
        return is_closed and all(image.keeps_prior and not image.added for image in self.maps)

    def mean_of(self, mean: Floats) -> Floats:
        """The mean (d,) of all images of a point (d,)."""
        return np.asarray(self.images(mean[None]).mean(axis=0))

    def cov_of(self, cov: Floats) -> Floats:
        """The mean covariance (d, d) of all images of a Gaussian."""
        return np.asarray(np.mean([image.of_covariance(cov) for image in self.maps], axis=0))

    def whitening(self, cov: Floats) -> Floats:
        """A map W (k, d) to entries of unit variance that the maps exchange, as they do those of v.

        ``cov`` (d, d) is the same for all images. Then so is its root, and the maps turn points in
        units of the root as they turn points.
        """
        value, vector = np.linalg.eigh(cov)
        root = (vector / np.sqrt(value)) @ vector.T
        return np.asarray(_basis(len(cov), self.maps[0].blocks).T @ root)

    def exchanged(self, v: Floats) -> Floats:
        """All images of points in such entries (n, k): (m, n, k)."""
        return np.stack([image.mapped(v) for image in self.maps])

    def images(self, u: Floats) -> Floats:
        """All images of points (n, d), those of a point together: (n k, d)."""
        return np.asarray(np.stack([image(u) for image in self.maps], axis=1).reshape(-1, u.shape[1]))

    def scattered(self, u: Floats, rng: np.random.Generator) -> Floats:
        """A random image of each point (n, d), each map as often as all others."""
        if len(self) == 1:
            return u
        images = self.images(u).reshape(len(u), len(self), -1)
        return np.asarray(images[np.arange(len(u)), rng.permutation(np.arange(len(u)) % len(self))])

    def log_joints(self, u: Floats, y: Floats, log_prior: LogPrior | None) -> Floats:
        """Log joints at all images of points (n, d), given those at the points (n,): (n k,).

        Without ``log_prior``, the prior is the same at all images.
        """
        if log_prior is None or all(image.keeps_prior for image in self.maps):
            return np.repeat(y, len(self))
        with np.errstate(invalid="ignore"):  # where the likelihood is zero, the prior may be zero too
            likelihood = np.where(np.isneginf(y), -np.inf, y - log_prior(u))
        return np.repeat(likelihood, len(self)) + log_prior(self.images(u))

    def canonical(self, u: Floats) -> Floats:
        """For each point (n, d) the image that stands for all of them."""
        if len(self) == 1:
            return u
        images = self.images(u).reshape(len(u), len(self), -1)
        # Any weights without a relation between them prefer one image to all others.
        weights = np.sqrt(2.0 + np.arange(u.shape[1])[::-1])
        return np.asarray(images[np.arange(len(u)), np.argmax(images @ weights, axis=1)])


@lru_cache(maxsize=64)
def exact_part(d: int, symmetries: tuple[Symmetry, ...]) -> tuple[Symmetry, ...]:
    """The symmetries that a surrogate in d dimensions can have exactly; none if some cannot be.

    If their group is too large, it is a part of them. Signs and orders of three coordinates are 48
    maps, of which the signs are left.
    """
    if not all(Group.of(d, (symmetry,)).is_orthogonal for symmetry in symmetries):
        return ()
    chosen: tuple[Symmetry, ...] = ()
    for symmetry in symmetries:
        if Group.of(d, (*chosen, symmetry)).is_orthogonal:
            chosen = (*chosen, symmetry)
    return chosen


def is_equal(y: float, other: float) -> bool:
    """Whether two log densities are equal but for rounding."""
    return abs(y - other) <= _SAME * (1 + abs(y))


def proposed(model: Model) -> tuple[Symmetry, ...]:
    """Symmetries that the likelihood may have.

    - Exchanges of two or three equal components: entries of vectors, or numbers whose names differ
      by their last digits, whatever their priors; and other single numbers with the same prior. All
      components of one kind are exchanged at the same time. In a second proposal probabilities of
      their own change sides, and in further ones a coordinate whose prior is symmetric about zero
      changes its sign.
    - Since other single numbers may have the same prior by accident, their kinds are also exchanged
      one by one, and not at all. Four of one prior may be two components of two numbers each.
    - With them, entries of vectors that sum to one, such as the weights of a mixture, and whole
      vectors of this kind, such as the rows of a transition matrix. If there are as many vectors as
      entries, both are exchanged, or one of them.
    - The signs of all coordinates whose prior is symmetric about zero, and of single ones.

    Examples
    --------
    >>> import qbvi
    >>> model = Model({"mu": qbvi.Normal(0, 5, shape=2), "w": qbvi.Dirichlet([1.0, 1.0])})
    >>> [symmetry.name for symmetry in proposed(model)][:1]
    ['mu[0] and mu[1], w[0] and w[1] are exchanged']
    """
    if any(p.is_native for p in model.parameters):
        return ()
    prior, slots = _Prior(model), Slots.of(model)
    named, others = _alike(model)
    equal = [kind for candidates in named for kind in prior.exchangeable(candidates)]
    accidental = [kind for kind in prior.exchangeable(others) if len(kind) > 1]
    chosen = [[*equal, *accidental]]
    if accidental and (len(accidental) > 1 or any(len(kind) > 1 for kind in equal)):
        chosen += [equal, *([kind] for kind in accidental)]
    pairs = [kind for kind in (*equal, *accidental) if len(kind) == len(_PAIRINGS[0])]
    for kind in (kind for kind in accidental if len(kind) == 2 * len(_PAIRINGS[0])):
        chosen += [[*pairs, *(tuple(kind[i] for i in pair) for pair in pairing)] for pairing in _PAIRINGS]
    chosen.append([kind for candidates in named for kind in prior.on_one_scale(candidates)])
    odd = [i for i in range(model.dim) if prior.is_odd[i]]
    paired = {i for kinds in chosen for kind in kinds if len(kind) > 1 for i in kind}
    sided = [i for i in range(model.dim) if prior.is_sided[i] and i not in paired]
    found = [symmetry for kinds in chosen for symmetry in _exchanges(kinds, (sided, odd), prior, slots)]
    found += _signs(odd, slots)
    first = {symmetry[:2]: symmetry for symmetry in reversed(found)}  # of equal maps
    return tuple(s._replace(keeps_prior=prior.has(s)) for s in dict.fromkeys(first[s[:2]] for s in found))


class Slots(NamedTuple):
    """The entries of v: one for each coordinate, or for each entry of a vector that sums to one."""

    labels: list[str]  # (k,)
    of_coordinate: list[int]  # (d,) -1 for those of such vectors
    blocks: tuple[Block, ...]
    tables: list[NDArray[np.int64]]  # entries of vectors (rows, size) that sum to one, alike in name

    @classmethod
    def of(cls, model: Model) -> Self:
        """The entries for the parameters of a model."""
        labels: list[str] = []
        of_coordinate: list[int] = []
        blocks: list[Block] = []
        tables: dict[str, list[NDArray[np.int64]]] = {}
        for p in model.parameters:
            first, size = len(labels), p.shape[-1] if p.shape else 1
            if not isinstance(p.distribution.support, Simplex):
                labels += p.labels if _is_plain(p) else [p.name] * _width(p)
                of_coordinate += range(first, len(labels))
                continue
            labels += p.labels
            of_coordinate += [-1] * _width(p)
            blocks.append(Block(p.columns.start, p.size // size, size))
            # Vectors of one size are rows of a table, unless their names are numbered otherwise.
            stem = _stem(p.name)
            kind = p.name if len(p.shape) > 1 else f"{'' if stem == p.name else stem} {size}"
            tables.setdefault(kind, []).append(np.arange(first, len(labels)).reshape(-1, size))
        return cls(labels, of_coordinate, tuple(blocks), [np.concatenate(parts) for parts in tables.values()])

    def exchanged(
        self, kinds: Sequence[Sequence[int]], size: int, pair: tuple[int, int], prior: _Prior
    ) -> Iterator[NDArray[np.int64]]:
        """Orders of v that exchange two of ``size`` components: entries of kinds, parts of tables.

        A table whose prior tells the two components apart stays as it is.
        """
        identity = np.arange(len(self.labels))
        begin = identity.copy()
        for kind in kinds:
            begin[[kind[i] for i in pair]] = [kind[i] for i in pair[::-1]]
        choices = []
        for table in (table for table in self.tables if size in table.shape):
            swapped = list(_swapped(table, size, pair))
            orders = np.tile(identity, (len(swapped), 1))
            orders[:, table] = swapped
            choices.append([order for order in orders if prior.has(self.symmetry(order, (), ""))] or [identity])
        for chosen in product(*choices):
            order = begin
            for part in chosen:  # each moves other entries
                order = order[part]
            if np.any(order != identity):
                yield order

    def symmetry(self, order: NDArray[np.int64], turned: Sequence[int], name: str) -> Symmetry:
        """The map with this order and with these coordinates turned to the other side."""
        sign = np.ones(len(self.labels), dtype=np.int64)
        sign[[self.of_coordinate[i] for i in turned]] = -1
        return Symmetry(tuple(order.tolist()), tuple(sign.tolist()), name, self.blocks)


class _Prior:
    """Which exchanges and changes of sign leave the prior unchanged, by its values at one point."""

    def __init__(self, model: Model) -> None:
        d = model.dim
        self._model = model
        self._point = 0.3 + 0.7 * np.random.default_rng(0).random(d)
        at_zero, self._value = (self._constrained(np.full((1, d), u)) for u in (0.0, 0.7))
        is_plain = np.concatenate([np.full(_width(p), _is_plain(p)) for p in model.parameters])
        self.is_even = is_plain & self._is_same(self._point * (1 - 2 * np.eye(d)))
        self.is_odd = self.is_even & (at_zero == 0.0)
        # Numbers between two ends, such as a probability: v(u) + v(-u) is the same for all u.
        across = self._constrained(np.full((1, d), -0.7))
        with np.errstate(invalid="ignore"):
            self.is_sided = is_plain & (at_zero != 0.0) & np.isclose(across + self._value, 2 * at_zero, rtol=_EXACT)

    def _constrained(self, u: Floats) -> Floats:
        """The user's number for each coordinate of one point (1, d); NaN where it has none."""
        parts = [
            np.ravel(p.constrain(u)) if _is_plain(p) else np.full(_width(p), np.nan) for p in self._model.parameters
        ]
        return np.concatenate(parts)

    def exchangeable(self, candidates: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Classes of coordinates that the prior does not tell apart.

        All uniform priors are the same law in u. Their ends tell them apart.
        """
        rest = list(candidates)
        while rest:
            exchanged = np.repeat(self._point[None], len(rest), axis=0)
            for row, j in zip(exchanged, rest, strict=True):
                row[[rest[0], j]] = row[[j, rest[0]]]
            same = self._is_same(exchanged) & np.isclose(self._value[rest], self._value[rest[0]], rtol=_EXACT, atol=0)
            yield tuple(j for j, is_same in zip(rest, same, strict=True) if is_same)
            rest = [j for j, is_same in zip(rest, same, strict=True) if not is_same]

    def on_one_scale(self, candidates: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Classes of coordinates for which u means the same number of the user's."""
        rest = list(candidates)
        while rest:
            same = np.isclose(self._value[rest], self._value[rest[0]], rtol=_EXACT, atol=0)
            yield tuple(j for j, is_same in zip(rest, same, strict=True) if is_same)
            rest = [j for j, is_same in zip(rest, same, strict=True) if not is_same]

    def has(self, image: Symmetry) -> bool:
        """Whether a map leaves the prior unchanged."""
        return bool(self._is_same(image(self._point[None]))[0])

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


def _alike(model: Model) -> tuple[list[list[int]], list[int]]:
    """Coordinates alike by name (of one vector, or numbered scalars), and all other scalars."""
    kinds: dict[str, list[int]] = {}
    others: list[int] = []
    for p in filter(_is_plain, model.parameters):
        stem, columns = _stem(p.name), range(p.columns.start, p.columns.stop)
        if _width(p) > 1:
            kinds.setdefault(f"{p.name}[]", []).extend(columns)
        elif stem != p.name:
            kinds.setdefault(stem, []).extend(columns)
        else:
            others.extend(columns)
    return list(kinds.values()), others


def _stem(name: str) -> str:
    """A name without its last digits."""
    return re.sub(r"[\W_]*\d+$", "", name)


@lru_cache(maxsize=16)
def _basis(d: int, blocks: tuple[Block, ...]) -> Floats:
    """The matrix B (d, k) with v = u B, whose rows are orthonormal: u = v B'."""
    parts, at = [np.empty((0, 0))], 0
    for block in blocks:
        parts += [np.eye(block.first - at), *[scipy.linalg.helmert(block.size)] * block.rows]
        at = block.first + block.rows * (block.size - 1)
    return np.asarray(scipy.linalg.block_diag(*parts, np.eye(d - at)))


def _exchanges(
    kinds: Sequence[tuple[int, ...]], turned: tuple[list[int], list[int]], prior: _Prior, slots: Slots
) -> Iterator[Symmetry]:
    """Exchanges of the components of some kinds, with numbers that are ``turned``: sides, signs."""
    sided, odd = turned
    exchanged = {i for kind in kinds if len(kind) > 1 for i in kind}
    others = [i for i in odd if i not in exchanged]
    sides = ", ".join(slots.labels[slots.of_coordinate[i]] for i in sided)
    for size in range(2, _MOST_EXCHANGED + 1):
        columns = [[slots.of_coordinate[i] for i in kind] for kind in kinds if len(kind) == size]
        # Entries that sum to one are weights of components, which have other parameters.
        if not columns and not any(len(table) == size for table in slots.tables):
            continue
        for pair in combinations(range(size), 2):
            for order in slots.exchanged(columns, size, pair, prior):
                pairs = ", ".join(f"{slots.labels[k]} and {slots.labels[m]}" for k, m in enumerate(order) if k < m)
                yield slots.symmetry(order, (), f"{pairs} are exchanged")
                if size > 2:
                    continue
                if sided:  # of two components one number may be the weight
                    yield slots.symmetry(order, sided, f"{pairs} are exchanged, and the sides of {sides}")
                for i in others if len(others) <= _MOST_SIGNS else ():
                    name = slots.labels[slots.of_coordinate[i]]
                    yield slots.symmetry(order, [i], f"{pairs} are exchanged, and {name} changes sign")


def _swapped(table: NDArray[np.int64], size: int, pair: tuple[int, int]) -> Iterator[NDArray[np.int64]]:
    """The table with two rows, two columns or both exchanged, if it has ``size`` of them."""
    order = np.arange(size)
    order[list(pair)] = pair[::-1]
    axes = [axis for axis in (0, 1) if table.shape[axis] == size]
    for chosen in [axes, *([axis] for axis in axes if len(axes) > 1)]:
        swapped = table
        for axis in chosen:
            swapped = np.take(swapped, order, axis=axis)
        yield swapped


def _signs(odd: Sequence[int], slots: Slots) -> Iterator[Symmetry]:
    identity = np.arange(len(slots.labels))
    few = range(1, len(odd)) if len(odd) <= _MOST_SIGNS else ()
    some = [list(chosen) for k in few for chosen in combinations(odd, k)]
    for chosen in [list(odd), *some] if odd else []:
        names = ", ".join(slots.labels[slots.of_coordinate[k]] for k in chosen)
        name = f"{names} change{'s' if len(chosen) == 1 else ''} sign"
        yield slots.symmetry(identity, chosen, name)
