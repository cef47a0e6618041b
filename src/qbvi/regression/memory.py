"""Memory for large matrices that is used again.

The operating system clears every page that it hands out. A fit with thousands of points factors a
matrix of some hundred megabytes in each iteration, and new pages for it took up to a fifth of the
time. So the pages of one matrix are used for the next one, as soon as no array refers to them.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

__all__ = ["release", "square"]

Floats = NDArray[np.float64]

_LEAST = 500_000  # numbers: the allocator keeps smaller blocks itself
_ROOM = 2.0  # size of a block, relative to its matrix: the next ones are larger
_MOST = 3  # blocks that wait to be used

# The garbage collector may give a block back at any time, in any thread, so there is no lock: to
# append to a deque and to take from it are atomic.
_free: deque[Floats] = deque()
_releases = [0]  # how often memory was released


def square(n: int) -> Floats:
    """An (n, n) matrix whose entries may have any value."""
    size = n * n
    if size < _LEAST:
        return np.empty((n, n))
    large = sorted((block for block in _taken() if len(block) >= size), key=len)
    _free.extend(large[1 : 1 + _MOST])  # smaller ones are of no use: matrices grow
    block = large[0] if large else np.empty(int(_ROOM * size))
    matrix = np.frombuffer(block.data, count=size)
    # All views of the matrix refer to this array, so it lives as long as they do.
    weakref.finalize(matrix, _give_back, block, _releases[0]).atexit = False
    return matrix.reshape(n, n)


def release() -> None:
    """Return to the operating system what no matrix uses, and later what is used now."""
    _releases[0] += 1
    _free.clear()


def _taken() -> list[Floats]:
    """All blocks that wait to be used; they wait no more."""
    blocks = []
    while _free:
        try:
            blocks.append(_free.pop())
        except IndexError:  # another thread took it
            break
    return blocks


def _give_back(block: Floats, releases: int) -> None:
    if releases == _releases[0]:
        _free.append(block)
