"""One BLAS thread for qbvi's own linear algebra.

Its matrices are small, and threads that wait for each other cost more than they save.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["one_blas_thread"]


def one_blas_thread() -> AbstractContextManager[Any]:
    """Limit BLAS to one thread in a ``with`` block; results then do not depend on the cores.

    Examples
    --------
    >>> with one_blas_thread():
    ...     pass
    """
    limit: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limit


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    # Finding the libraries takes milliseconds, so do it once, after the ones in use are loaded.
    import scipy.linalg  # noqa: F401

    return ThreadpoolController()
