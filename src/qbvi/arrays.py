"""Tools for every array library: its namespace, traced functions, and symmetric packing."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

Array = Any

__all__ = [
    "Array",
    "array_namespace",
    "call_traced",
    "device",
    "eigh",
    "is_traced",
    "pack_symmetric",
    "refuse_traced",
    "repeat",
    "to_numpy",
    "unpack_symmetric",
]

device = array_api_compat.device


def array_namespace(*arrays: Array) -> Any:
    """Return the functions of the array library that ``arrays`` come from.

    Examples
    --------
    >>> import numpy as np
    >>> array_namespace(np.ones(2)).sum(np.ones(2))
    np.float64(2.0)
    """
    kinds = set(map(type, arrays))
    if len(kinds) > 1:
        return array_api_compat.array_namespace(*arrays)
    kind = kinds.pop()
    if kind not in _NAMESPACES:
        _NAMESPACES[kind] = array_api_compat.array_namespace(*arrays)
    return _NAMESPACES[kind]


_NAMESPACES: dict[type, Any] = {}  # by class: with few draws the look-up costs as much as the step


def to_numpy(array: Array) -> NDArray[np.float64]:
    """Copy an array of any library to a float64 NumPy array on the host."""
    if array_api_compat.is_torch_array(array):
        array = array.detach().cpu().numpy()
    elif array_api_compat.is_cupy_array(array):
        array = array.get()
    return np.array(array, dtype=np.float64)


def is_traced(array: Array) -> bool:
    """Whether this stands for an array in a function that JAX is compiling.

    Such an array has a shape but no values.
    """
    if not array_api_compat.is_jax_array(array):
        return False
    import jax

    return isinstance(array, jax.core.Tracer)


def call_traced(name: str, function: Callable[[Array], Any], points: Array, *, vectorized: bool) -> Array:
    """Make a user's function part of the code that JAX is compiling: points (n, ...) -> (n, ...).

    The function must be written in jax.numpy. If it needs actual values, the error contains
    ``name``.
    """
    import jax

    try:
        values = (function if vectorized else jax.vmap(function))(points)
        return jax.numpy.asarray(values, dtype=points.dtype)
    except jax.errors.JAXTypeError as error:
        msg = f"{name} must be written in jax.numpy to be compiled by JAX, got a function that needs the values of its argument; rewrite it, or fit with backend='numpy'"
        raise TypeError(msg) from error


def refuse_traced(name: str, array: Array) -> None:
    """Raise an error that contains ``name`` if JAX is compiling: this code runs on the host."""
    if is_traced(array):
        msg = (
            f"{name} is computed by SciPy on the host and cannot be compiled by JAX; "
            "fit with backend='numpy', or write its log-density in jax.numpy: qbvi.LogPrior(f, shape=..., support=...)"
        )
        raise TypeError(msg)


def eigh(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues (d,) in ascending order, and eigenvectors (d, d), of a symmetric matrix (d, d).

    In a program for an NVIDIA GPU the matrix is decomposed twice: the routine for several small
    matrices takes half the time of the one for a single matrix.

    Examples
    --------
    >>> import numpy as np
    >>> eigh(np.diag([2.0, 1.0]))[0]
    array([1., 2.])
    """
    if not array_api_compat.is_jax_array(matrix):
        values, vectors = array_namespace(matrix).linalg.eigh(matrix)
        return values, vectors
    import jax

    def alone(matrix: Array) -> tuple[Array, Array]:
        return tuple(jax.numpy.linalg.eigh(matrix))

    def as_one_of_two(matrix: Array) -> tuple[Array, Array]:
        values, vectors = jax.numpy.linalg.eigh(jax.numpy.stack([matrix, matrix]))
        return values[0], vectors[0]

    return jax.lax.platform_dependent(matrix, cuda=as_one_of_two, default=alone)  # type: ignore[no-any-return]


def repeat(n: int, body: Callable[[Any, Any], Any], state: tuple[Array, ...], *, unrolled: int = 4) -> Any:
    """Apply ``state = body(i, state)`` for i from 0 to n - 1, as one compiled loop in JAX.

    A turn of that loop makes four of them: on a GPU, a turn costs as much as some small operations.
    If the body is large, ``unrolled=1`` compiles faster.

    Examples
    --------
    >>> import numpy as np
    >>> repeat(3, lambda i, state: (state[0] + i,), (np.asarray(0.0),))
    (np.float64(3.0),)
    """
    if array_api_compat.is_jax_array(state[0]):
        import jax

        return jax.lax.fori_loop(0, n, body, state, unroll=min(n, unrolled))
    for i in range(n):
        state = body(i, state)
    return state


def pack_symmetric(matrix: Array) -> Array:
    r"""Pack a symmetric matrix into a vector: (..., d, d) -> (..., d (d + 1) / 2).

    The diagonal comes first, then the entries below it times sqrt 2. Inner products are then equal:
    :math:`\langle A, B \rangle_F = \mathrm{pack}(A) \cdot \mathrm{pack}(B)`.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.array([[1.0, 2.0], [2.0, 3.0]])
    >>> bool(np.isclose(pack_symmetric(a) @ pack_symmetric(a), np.sum(a * a)))
    True
    """
    xp = array_namespace(matrix)
    d = matrix.shape[-1]
    flat = xp.reshape(matrix, (*matrix.shape[:-2], d * d))
    take = xp.asarray(_packed_positions(d), device=device(matrix))
    return xp.take(flat, take, axis=-1) * xp.asarray(_packed_scales(d), dtype=matrix.dtype, device=device(matrix))


def unpack_symmetric(packed: Array, d: int) -> Array:
    """Undo `pack_symmetric`: (..., d (d + 1) / 2) -> (..., d, d).

    Examples
    --------
    >>> import numpy as np
    >>> unpack_symmetric(pack_symmetric(np.array([[1.0, 2.0], [2.0, 3.0]])), 2)
    array([[1., 2.],
           [2., 3.]])
    """
    xp = array_namespace(packed)
    scaled = packed / xp.asarray(_packed_scales(d), dtype=packed.dtype, device=device(packed))
    take = xp.asarray(_unpacked_positions(d), device=device(packed))
    return xp.reshape(xp.take(scaled, take, axis=-1), (*packed.shape[:-1], d, d))


# 32-bit positions: JAX caches what it has seen as 64 bits, and reuses it where 64 bits are off.
@lru_cache(maxsize=32)
def _packed_positions(d: int) -> NDArray[np.int32]:
    row, column = np.tril_indices(d, -1)
    return np.concatenate([np.arange(d) * (d + 1), row * d + column]).astype(np.int32)


@lru_cache(maxsize=32)
def _packed_scales(d: int) -> NDArray[np.float64]:
    return np.concatenate([np.ones(d), np.full(d * (d - 1) // 2, np.sqrt(2.0))])


@lru_cache(maxsize=32)
def _unpacked_positions(d: int) -> NDArray[np.int32]:
    position = np.zeros((d, d), dtype=np.int32)
    position[np.arange(d), np.arange(d)] = np.arange(d)
    row, column = np.tril_indices(d, -1)
    position[row, column] = position[column, row] = d + np.arange(row.size)
    return position.reshape(-1)
