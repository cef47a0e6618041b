"""Array functions that the maps share: clipped exponentials and logarithms, and reshaping."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from qbvi.arrays import Array, array_namespace, device

__all__ = ["Shape", "bounded_exp", "bounded_log", "flat", "like", "row_sum", "shaped", "softplus"]

Shape = tuple[int, ...]


def like(u: Array, host: ArrayLike) -> Array:
    """Copy host numbers to the namespace, dtype and device of ``u``."""
    numbers = np.asarray(host)
    if not numbers.flags.writeable:
        numbers = numbers.copy()  # PyTorch shares memory with it, and warns if it is read-only
    return array_namespace(u).asarray(numbers, dtype=u.dtype, device=device(u))


def bounded_exp(v: Array) -> Array:
    """``exp(v)``, clipped so that sums of thousands of such numbers stay finite in the dtype."""
    xp = array_namespace(v)
    limit = -math.log(float(xp.finfo(v.dtype).smallest_normal)) - 8.0
    return xp.exp(xp.clip(v, -limit, limit))


def bounded_log(v: Array) -> Array:
    """``log(v)``, with ``v`` raised to at least the smallest normal number of the dtype."""
    xp = array_namespace(v)
    return xp.log(xp.clip(v, float(xp.finfo(v.dtype).smallest_normal), None))


def softplus(v: Array) -> Array:
    """``log(1 + exp(v))`` without overflow; ``-softplus(-v)`` is the log of the sigmoid."""
    xp = array_namespace(v)
    return xp.logaddexp(v, xp.zeros_like(v))


def shaped(u: Array, shape: Shape) -> Array:
    """Reshape every row: (n, k) -> ``(n, *shape)``."""
    return array_namespace(u).reshape(u, (u.shape[0], *shape))


def flat(x: Array, shape: Shape) -> Array:
    """Undo `shaped`: ``(n, *shape)`` -> (n, k)."""
    return array_namespace(x).reshape(x, (x.shape[0], math.prod(shape)))


def row_sum(terms: Array) -> Array:
    """Sum of each row: (n, k) -> (n,)."""
    return array_namespace(terms).sum(terms, axis=-1)
