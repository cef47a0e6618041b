"""Memory for large matrices that is used again.

The operating system clears every page that it hands out. A fit with thousands of points factors a
matrix of some hundred megabytes in each iteration, and new pages for it took up to a fifth of the
time. So the pages of one matrix are used for the next one, as soon as no array refers to them.
"""

from __future__ import annotations

import threading
import weakref

import numpy as np
from numpy.typing import NDArray

__all__ = ["release", "square"]

Floats = NDArray[np.float64]

_LEAST = 500_000  # numbers: the allocator keeps smaller blocks itself
_ROOM = 2.0  # size of a block, relative to its matrix: the next are larger, and unused pages cost nothing
_MOST = 3  # blocks that wait to be used

_lock = threading.Lock()
_free: list[Floats] = []


def square(n: int) -> Floats:
    """An (n, n) matrix whose entries may have any value."""
    if n * n < _LEAST:
        return np.empty((n, n))
    with _lock:
        large = [i for i, block in enumerate(_free) if len(block) >= n * n]
        block = _free.pop(min(large, key=lambda i: len(_free[i]))) if large else None
        if block is None:
            _free.clear()  # they are too small for this one, and for those that follow
    if block is None:
        block = np.empty(int(_ROOM * n * n))
    matrix = np.frombuffer(block.data, count=n * n)
    # All views of the matrix refer to this array, so it lives as long as they do.
    weakref.finalize(matrix, _give_back, block).atexit = False
    return matrix.reshape(n, n)


def release() -> None:
    """Return to the operating system what no matrix uses."""
    with _lock:
        _free.clear()


def _give_back(block: Floats) -> None:
    with _lock:
        _free.append(block)
        if len(_free) > _MOST:
            _free.pop(min(range(len(_free)), key=lambda i: len(_free[i])))
