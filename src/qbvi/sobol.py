"""Scrambled Sobol points, the same to the last bit as SciPy's `scipy.stats.qmc.Sobol`.

`scipy.stats` takes longer to import than the rest of qbvi and a default fit take together, and that
fit needs a few hundred points. So the construction is here for the dimensions of most fits; beyond
them the points come from SciPy.
"""

from __future__ import annotations

import warnings

import numpy as np
import scipy
from numpy.typing import NDArray

__all__ = ["MOST_DIMENSIONS", "scrambled_sobol"]

_BITS = 30  # of a coordinate; SciPy's default


def scrambled_sobol(rng: np.random.Generator, n: int, d: int) -> NDArray[np.float64]:
    r"""The first n points of a Sobol sequence in [0, 1)^d, scrambled at random: (n, d).

    A point is a sum modulo two of direction numbers,

    .. math:: x_{i + 1} = x_i \oplus v_{c(i)}, \quad x_0 = s,

    where ``c(i)`` is the place of the lowest zero bit of ``i``. The scrambling multiplies the bits
    of each v, modulo two, by a random lower triangular matrix, and the shift ``s`` is random
    (Matousek, "On the L2-discrepancy for anchored boxes", 1998).

    Examples
    --------
    >>> import numpy as np
    >>> points = scrambled_sobol(np.random.default_rng(1), 8, 2)
    >>> np.sort(np.floor(8 * points[:, 0]))
    array([0., 1., 2., 3., 4., 5., 6., 7.])
    """
    if d > MOST_DIMENSIONS:
        return _from_scipy(rng, n, d)
    own = rng.spawn(1)[0]
    powers = 2 ** np.arange(_BITS, dtype=np.uint32)
    shift = own.integers(2, size=(d, _BITS), dtype=np.uint32) @ powers
    scramble = np.tril(own.integers(2, size=(d, _BITS, _BITS), dtype=np.uint32), k=-1) + np.eye(_BITS, dtype=np.uint32)
    highest_first = powers[::-1]
    directions = np.array([_directions(j) for j in range(d)], dtype=np.uint32)[:, :, None] // highest_first % 2
    v = (directions @ np.swapaxes(scramble, 1, 2) % 2) @ highest_first  # (d, bits)
    steps = np.arange(1, n, dtype=np.uint32)
    lowest_zero_bit = np.bitwise_count((steps & -steps) - 1)  # of ``steps - 1``
    points = np.bitwise_xor.accumulate(np.concatenate([shift[None, :], v.T[lowest_zero_bit]]), axis=0)
    return np.asarray(points[:n] * 2.0**-_BITS)


def _directions(j: int) -> list[int]:
    """Direction numbers of coordinate j, by the recurrence of its primitive polynomial."""
    if j == 0:
        return [2 ** (_BITS - 1 - i) for i in range(_BITS)]
    polynomial, *m = _INITIAL[j - 1]
    degree = len(m)
    for i in range(degree, _BITS):
        new = m[i - degree]
        for k in range(1, degree + 1):
            if polynomial >> (degree - k) & 1:
                new ^= m[i - k] << k
        m.append(new)
    return [number << (_BITS - 1 - i) for i, number in enumerate(m)]


def _from_scipy(rng: np.random.Generator, n: int, d: int) -> NDArray[np.float64]:
    points = scipy.stats.qmc.Sobol(d, scramble=True, rng=rng)
    with warnings.catch_warnings():  # SciPy warns unless n is a power of two, but any n is valid
        warnings.simplefilter("ignore", UserWarning)
        return np.asarray(points.random(n))


# For each coordinate after the first: the primitive polynomial as a number, then the initial
# direction numbers (Joe and Kuo, "Constructing Sobol sequences with better two-dimensional
# projections", 2008). These are all the polynomials up to degree seven.
_INITIAL: tuple[tuple[int, ...], ...] = (
    (3, 1),
    (7, 1, 3),
    (11, 1, 3, 1),
    (13, 1, 1, 1),
    (19, 1, 1, 3, 3),
    (25, 1, 3, 5, 13),
    (37, 1, 1, 5, 5, 17),
    (41, 1, 1, 5, 5, 5),
    (47, 1, 1, 7, 11, 19),
    (55, 1, 1, 5, 1, 1),
    (59, 1, 1, 1, 3, 11),
    (61, 1, 3, 5, 5, 31),
    (67, 1, 3, 3, 9, 7, 49),
    (91, 1, 1, 1, 15, 21, 21),
    (97, 1, 3, 1, 13, 27, 49),
    (103, 1, 1, 1, 15, 7, 5),
    (109, 1, 3, 1, 15, 13, 25),
    (115, 1, 1, 5, 5, 19, 61),
    (131, 1, 3, 7, 11, 23, 15, 103),
    (137, 1, 3, 7, 13, 13, 15, 69),
    (143, 1, 1, 3, 13, 7, 35, 63),
    (145, 1, 3, 5, 9, 1, 25, 53),
    (157, 1, 3, 1, 13, 9, 35, 107),
    (167, 1, 3, 1, 5, 27, 61, 31),
    (171, 1, 1, 5, 11, 19, 41, 61),
    (185, 1, 3, 5, 3, 3, 13, 69),
    (191, 1, 1, 7, 13, 1, 19, 1),
    (193, 1, 3, 7, 5, 13, 19, 59),
    (203, 1, 1, 3, 9, 25, 29, 41),
    (211, 1, 3, 5, 13, 23, 1, 55),
    (213, 1, 3, 7, 3, 13, 59, 17),
    (229, 1, 3, 1, 3, 5, 53, 69),
    (239, 1, 1, 5, 5, 23, 33, 13),
    (241, 1, 1, 7, 7, 1, 61, 123),
    (247, 1, 1, 7, 9, 13, 61, 49),
    (253, 1, 3, 3, 5, 3, 55, 33),
)
MOST_DIMENSIONS = 1 + len(_INITIAL)
