r"""Positive parameters that may exchange their roles, while a third one makes up for it.

The concentration of a drug that is absorbed at a rate ka and eliminated at a rate ke is

.. math:: \frac{D}{V} \frac{k_a}{k_a - k_e} \left(e^{-k_e t} - e^{-k_a t}\right)

It is the same if the rates are exchanged and V is multiplied by ke / ka: the "flip-flop" of
pharmacokinetics. Any chain of processes of the first order has such images, and only the prior
tells them apart: the data show a process, and not which one it is. Between the images there is a
long, bent pass. So the second mode may be a shelf of the first one, which no straight line shows.

On the unconstrained scale these maps are linear, with determinant one or minus one. For any three
positive parameters p, q, r there are:

- p and q exchanged,
- p and q exchanged, and r multiplied by q / p or by p / q,
- p and r replaced by q / r and q / p: the absorption rate and the volume, if q is the clearance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product

import numpy as np
from numpy.typing import NDArray

from qbvi.free.symmetry import Slots, Symmetry
from qbvi.model import Model

__all__ = ["correlated", "exchanged_roles"]

Floats = NDArray[np.float64]

_CORRELATED = 0.3  # least correlation, at a mode, of parameters that make up for each other
_MOST = 12  # maps that are tested at most: all of three parameters


def exchanged_roles(model: Model) -> tuple[Symmetry, ...]:
    """Exchanges of the roles of positive parameters, which the likelihood may not notice.

    Examples
    --------
    >>> import qbvi
    >>> rates = {"ka": qbvi.LogNormal(0, 1), "ke": qbvi.LogNormal(-1, 1), "V": qbvi.LogNormal(2, 1)}
    >>> found = [symmetry.name for symmetry in exchanged_roles(Model(rates))]
    >>> "ka and ke are exchanged, and V is multiplied by ke / ka" in found
    True
    """
    if any(p.is_native for p in model.parameters):
        return ()
    slots = Slots.of(model)
    found = (symmetry for three in combinations(_logarithms(model), 3) for symmetry in _of(three, slots))
    return tuple({symmetry.key: symmetry for symmetry in found}.values())


def correlated(symmetries: Sequence[Symmetry], cov: Floats) -> list[int]:
    """Numbers of the maps whose parameters are correlated at a mode with covariance (d, d).

    The most correlated ones come first. Parameters that can make up for each other are correlated.
    The error of the measurements, which is positive too, is hardly correlated with the others.
    """
    sd = np.sqrt(np.diag(cov))
    R = np.abs(cov) / np.outer(sd, sd)
    least = {i: float(np.min(R[np.ix_(s.correlated, s.correlated)])) for i, s in enumerate(symmetries) if s.correlated}
    return sorted((i for i in least if least[i] > _CORRELATED), key=lambda i: -least[i])[:_MOST]


def _logarithms(model: Model) -> list[int]:
    """Coordinates that are the logarithm of a number of the user's."""
    zero, one = (np.full((1, model.dim), u) for u in (0.0, 1.0))
    plain = (
        p
        for p in model.parameters
        if p.size == p.columns.stop - p.columns.start and not p.distribution.support.is_discrete
    )
    return [
        i
        for p in plain
        for i, low, high in zip(
            range(model.dim)[p.columns], np.ravel(p.constrain(zero)), np.ravel(p.constrain(one)), strict=True
        )
        if low == 1.0 and math.isclose(high, math.e)
    ]


def _of(three: tuple[int, ...], slots: Slots) -> Iterator[Symmetry]:
    """All maps of three coordinates."""
    for often, (i, j, k) in product((0, 1, -1), permutations(three)):
        if i > j:
            continue
        p, q, r = (slots.of_coordinate[which] for which in (i, j, k))
        matrix = np.eye(len(slots.labels), dtype=np.int64)
        matrix[[p, q]] = matrix[[q, p]]
        matrix[r, [p, q]] = -often, often
        one, other, third = (slots.labels[which] for which in (p, q, r))
        ratio = f"{other} / {one}" if often > 0 else f"{one} / {other}"
        name = f"{one} and {other} are exchanged" + (f", and {third} is multiplied by {ratio}" if often else "")
        yield Symmetry.of_matrix(matrix, name, slots.blocks)._replace(correlated=(i, j, k) if often else (i, j))
        if not often:
            matrix = np.eye(len(slots.labels), dtype=np.int64)
            matrix[np.ix_([p, q], [p, r, q])] = [[0, 1, -1], [-1, 1, 0]]
            name = f"{one} becomes {third} / {other} and {other} becomes {third} / {one}"
            yield Symmetry.of_matrix(matrix, name, slots.blocks)._replace(correlated=(i, j, k))
