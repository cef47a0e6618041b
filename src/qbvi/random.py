"""The only place where numbers are drawn: designs of the draws of one step, and their source.

A `Stream` gives the same draws on every array library and device, also inside compiled code, so a
seed means the same fit on all of them. Draws on the host, such as Sobol points, come from a NumPy
generator.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.arrays import Array, array_namespace, device
from qbvi.sobol import scrambled_sobol

__all__ = [
    "FIXED_SEED",
    "Antithetic",
    "Draws",
    "Independent",
    "Sobol",
    "Source",
    "Stream",
    "Streams",
    "drawn_generator",
    "matched_normals",
    "orthogonal_pairs",
    "seed_words",
    "systematic",
    "threefry",
]

FIXED_SEED = 20240229  # of samples that must be the same at every call
_SOBOL_MAX_DIM = 1024  # beyond it, a scrambled Sobol sequence costs memory and gains nothing


@dataclass
class Stream:
    r"""Standard normals that depend only on a seed and a step: the same on every array library.

    The counter-based generator Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random
    numbers: as easy as 1, 2, 3", 2011) maps the key and the counter ``(i, t)`` to two words. The
    Box-Muller transform maps these to two normals

    .. math:: \sqrt{-2 \log u} \, (\cos v, \sin v), \quad u \in (0, 1), \; v \in [-\pi, \pi).

    The words are the same to the last bit everywhere. The normals agree as far as the libraries'
    logarithm, sine and cosine do. Their largest absolute value is 6.66.

    Parameters
    ----------
    key
        Two words that identify the seed: an int32 array (2,) of the library that draws; see
        `seed_words`.
    t
        The step: an integer array (), below 2^24.
    dtype
        Type of the draws.

    Examples
    --------
    >>> import numpy as np
    >>> z = Stream(seed_words(1), np.asarray(0, dtype=np.int32), np.float64).standard_normal((3, 2))
    >>> z.round(3)
    array([[-0.449,  0.76 ],
           [ 0.629, -1.833],
           [-1.277, -0.346]])
    """

    key: Array
    t: Array
    dtype: Any
    _calls: int = field(default=0, init=False)  # each call within a step has its own counters

    def standard_normal(self, shape: tuple[int, ...]) -> Array:
        """Draw an array of the given shape; each call draws new numbers."""
        xp = array_namespace(self.key)
        call, self._calls = self._calls, self._calls + 1
        return xp.reshape(self._draw(call, math.prod(shape)), shape)

    def _draw(self, call: int, n: int) -> Array:
        xp = array_namespace(self.key)
        return _normals(self.key, xp.reshape(xp.astype(self.t, xp.int32), (1,)), call, n, self.dtype)


class Streams:
    """The streams of one key outside compiled code, drawn for several steps at once.

    Outside compiled code, an operation on few numbers costs as much as one on many.

    Parameters
    ----------
    key
        As for `Stream`.
    dtype
        Type of the draws.

    Examples
    --------
    >>> import numpy as np
    >>> key = seed_words(1)
    >>> alone = Stream(key, np.asarray(9, dtype=np.int32), np.float64).standard_normal((2,))
    >>> bool(np.all(Streams(key, np.float64).at(9).standard_normal((2,)) == alone))
    True
    """

    def __init__(self, key: Array, dtype: Any) -> None:
        self.key, self.dtype = key, dtype
        self._drawn: dict[tuple[int, int], tuple[int, Array]] = {}

    def at(self, t: int) -> Stream:
        """The stream of step ``t``."""
        return _Ahead(self.key, t, self.dtype, self)

    def draw(self, t: int, call: int, n: int) -> Array:
        """The ``n`` normals of one call of step ``t``."""
        xp = array_namespace(self.key)
        ahead = min(_MOST_AHEAD, max(1, _FEW // n))
        start, drawn = self._drawn.get((call, n), (t + 1, None))
        if drawn is None or not start <= t < start + ahead:
            steps = xp.arange(t, t + ahead, dtype=xp.int32, device=device(self.key))
            start, drawn = t, _normals(self.key, steps, call, n, self.dtype)
            self._drawn[call, n] = start, drawn
        return xp.asarray(drawn[t - start, :], copy=True)


@dataclass
class _Ahead(Stream):
    streams: Streams

    def _draw(self, call: int, n: int) -> Array:
        return self.streams.draw(self.t, call, n)


Source = np.random.Generator | Stream


class Draws(ABC):
    """Standard normal draws; rows ``s``, ``s + n / group_size`` and so on depend on each other."""

    on_host: ClassVar[bool] = False  # whether it needs a NumPy generator
    is_mirrored: ClassVar[bool] = False  # whether the second half is the first one, negated

    @abstractmethod
    def normal(self, rng: Any, n: int, d: int) -> Array:
        """Draw (n, d) standard normals; each row is standard normal by itself."""

    @abstractmethod
    def group_size(self, n: int) -> int:
        """How many of n draws form one group of dependent draws; groups are independent."""

    def check(self, n: int) -> None:
        """Refuse a number of draws that leaves no independent draws for a baseline."""
        if n < 2:
            msg = f"`n_samples` must be at least 2, got {n}; the baseline of one draw comes from the others"
            raise ValueError(msg)


@dataclass(frozen=True)
class Independent(Draws):
    """Independent draws.

    Examples
    --------
    >>> import numpy as np
    >>> Independent().normal(np.random.default_rng(1), 3, 2).shape
    (3, 2)
    """

    def normal(self, rng: Source, n: int, d: int) -> Array:
        """Draw (n, d) independent standard normals."""
        return rng.standard_normal((n, d))

    def group_size(self, n: int) -> int:
        """One."""
        return 1


@dataclass(frozen=True)
class Antithetic(Draws):
    """Pairs ``z, -z``: odd and even parts of the integrand do not disturb each other.

    Examples
    --------
    >>> import numpy as np
    >>> z = Antithetic().normal(np.random.default_rng(1), 4, 2)
    >>> bool(np.all(z[:2] == -z[2:]))
    True
    """

    is_mirrored: ClassVar[bool] = True

    def normal(self, rng: Source, n: int, d: int) -> Array:
        """Draw n / 2 standard normals and mirror them."""
        half = rng.standard_normal((n // 2, d))
        return array_namespace(half).concat([half, -half])

    def group_size(self, n: int) -> int:
        """Two."""
        return 2

    def check(self, n: int) -> None:
        """Refuse an odd number of draws, or a single pair."""
        if n % 2 or n < 4:
            msg = f"`n_samples` must be even and at least 4 for antithetic draws, got {n}; try {max(4, n + n % 2)}"
            raise ValueError(msg)


@dataclass(frozen=True)
class Sobol(Draws):
    """Two independently scrambled Sobol sequences, interleaved.

    There are two, so that each half has a baseline that is independent of it.

    Examples
    --------
    >>> import numpy as np
    >>> z = Sobol().normal(np.random.default_rng(1), 128, 3)
    >>> bool(np.all(np.abs(z.mean(axis=0)) < 0.02))
    True
    """

    on_host: ClassVar[bool] = True

    def normal(self, rng: np.random.Generator, n: int, d: int) -> NDArray[np.float64]:
        """Draw n / 2 points from each of two scrambled sequences, as normals."""
        return _sobol_halves(drawn_generator(rng), n, d)

    def group_size(self, n: int) -> int:
        """Half of the draws: they share one scramble."""
        return n // 2

    def check(self, n: int) -> None:
        """Refuse a number of draws that does not split into two halves."""
        if n % 2 or n < 4:
            msg = f"`n_samples` must be even and at least 4 for Sobol draws, got {n}; a power of two is best"
            raise ValueError(msg)


def orthogonal_pairs(rng: np.random.Generator, n: int, d: int) -> NDArray[np.float64]:
    """Draw n (even) standard normals as adjacent pairs ``z, -z`` along orthogonal directions.

    The radii are stratified. This is a design for regression: linear and quadratic terms are
    orthogonal, and d pairs span all directions. All draws depend on each other.

    Examples
    --------
    >>> import numpy as np
    >>> z = orthogonal_pairs(np.random.default_rng(1), 6, 3)
    >>> np.abs(z[::2] @ z[::2].T - np.diag(np.sum(z[::2] ** 2, axis=1))).max() < 1e-12
    np.True_
    """
    m = n // 2
    blocks = [np.linalg.qr(rng.standard_normal((d, d)))[0].T for _ in range(-(-m // d))]
    strata = (rng.permutation(m) + rng.uniform(size=m)) / m
    radii = np.sqrt(2 * scipy.special.gammaincinv(d / 2, strata))
    z = np.concatenate(blocks)[:m] * radii[:, None]
    return np.stack([z, -z], axis=1).reshape(n, d)


def drawn_generator(rng: np.random.Generator) -> np.random.Generator:
    """A generator whose seed is drawn from another.

    SciPy's sequences spawn a generator from the one they get. How often that was done is not part
    of a generator's saved state, so a resumed run would get other points.
    """
    return np.random.default_rng(int(rng.integers(2**63)))


def matched_normals(n: int, d: int) -> NDArray[np.float64]:
    """Fixed quasi-random normals (n, d): sample mean 0 and, if n >= 4 d, sample covariance I."""
    rng = np.random.default_rng(FIXED_SEED)
    z = _sobol_halves(rng, n, d) if d <= _SOBOL_MAX_DIM else Independent().normal(rng, n, d)
    z = np.asarray(z - z.mean(axis=0))
    if 4 * d > n:
        return z
    factor = np.linalg.cholesky(z.T @ z / n)
    return np.asarray(np.linalg.solve(factor, z.T).T)


def systematic(rng: np.random.Generator, weights: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """Systematic resampling: n indices, each as often as its weight says, up to one more or less.

    The weights have sum one, and the indices are in order.

    Examples
    --------
    >>> systematic(np.random.default_rng(1), np.array([0.25, 0.0, 0.75]), 4)
    array([0, 2, 2, 2])
    """
    at = (rng.random() + np.arange(n)) / n
    return np.minimum(np.searchsorted(np.cumsum(weights), at), len(weights) - 1)


def seed_words(seed: int | np.random.SeedSequence) -> NDArray[np.int32]:
    """The key of a `Stream` for a seed: int32 (2,).

    Examples
    --------
    >>> seed_words(1).dtype
    dtype('int32')
    """
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    return sequence.generate_state(2, np.uint32).view(np.int32)


def threefry(key: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds: key (2,), counters (m,), (m,) -> random words (m,), (m,).

    All are int32. The definition uses unsigned integers. Signed ones, which all libraries have,
    wrap in the same way.

    Examples
    --------
    >>> import numpy as np
    >>> zero = np.zeros(1, dtype=np.int32)
    >>> [hex(int(word[0]) % 2**32) for word in threefry(np.zeros(2, dtype=np.int32), zero, zero)]
    ['0x6b200159', '0x99ba4efe']
    """
    keys = (key[:1], key[1:], key[:1] ^ key[1:] ^ _PARITY)
    x, y = first + keys[0], second + keys[1]
    for group in range(5):
        for shift in _ROTATIONS[group % 2]:
            x = x + y
            y = ((y << shift) | ((y >> (32 - shift)) & ((1 << shift) - 1))) ^ x
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + (group + 1)
    return x, y


_PARITY = 0x1BD11BDA
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_MOST_STEPS = 2**24  # steps of one stream; the other bits of the counter number the calls of a step
_MOST_AHEAD, _FEW = 64, 160_000  # most steps, and most numbers, drawn at once outside compiled code


def _normals(key: Array, steps: Array, call: int, n: int, dtype: Any) -> Array:
    """The ``n`` normals of one call in each of several steps: key (2,), steps (k,) -> (k, n)."""
    xp = array_namespace(key)
    i = xp.arange((n + 1) // 2, dtype=xp.int32, device=device(key))[None, :]
    shape = (steps.shape[0], i.shape[1])
    t = (steps + call * _MOST_STEPS)[:, None]
    first, second = threefry(key, xp.broadcast_to(i, shape), xp.broadcast_to(t, shape))
    # The tails come from words near zero. Without its sign such a word is exact, in float32 too.
    positive = xp.astype((first >> 1) & 0x7FFFFFFF, dtype)
    radius = xp.sqrt(-2 * xp.log((positive + 0.5) * 2.0**-31))
    angle = xp.astype(second, dtype) * (math.pi * 2.0**-31)
    return xp.concat([radius * xp.cos(angle), radius * xp.sin(angle)], axis=-1)[:, :n]


_SMALLEST_UNIFORM = 2.0**-33  # half the grid of a 32-bit Sobol point: keeps ndtri finite


def _sobol_halves(rng: np.random.Generator, n: int, d: int) -> NDArray[np.float64]:
    """Interleave two scrambled sequences of n / 2 points each, as normals."""
    halves = [_sobol_normal(rng, n // 2, d) for _ in range(2)]
    return np.stack(halves, axis=1).reshape(n, d)


def _sobol_normal(rng: np.random.Generator, n: int, d: int) -> NDArray[np.float64]:
    uniform = scrambled_sobol(rng, n, d)
    normal: NDArray[np.float64] = scipy.special.ndtri(np.clip(uniform, _SMALLEST_UNIFORM, 1 - _SMALLEST_UNIFORM))
    return normal
