"""Mini-batches: rows of the user's data, drawn without replacement, and their factor N / M."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import shown

__all__ = ["Batches", "WithData", "mapped_parts", "n_rows_of", "rows_of"]


@dataclass(frozen=True)
class Batches:
    r"""The data of the log-likelihood, whole or in mini-batches (paper, "Mini-batches").

    .. math:: \log p(y | \theta) \approx \frac{N}{M} \sum_{i \in \text{batch}} \log p(y_i | \theta)

    Parameters
    ----------
    data
        An array, a pandas object, or a tuple, list or dict of them, all with the same number N of
        rows.
    batch_size
        Rows M of a batch; None for all rows at once.
    as_rows
        Draw row numbers instead of rows, for a function that holds the data; see `bound_to`.

    Examples
    --------
    >>> import numpy as np
    >>> batches = Batches((np.arange(6.0), np.ones((6, 2))), batch_size=3)
    >>> (x, y), scale = batches.draw(np.random.default_rng(1))
    >>> x.shape, y.shape, scale
    ((3,), (3, 2), 2.0)
    """

    data: Any
    batch_size: int | None = None
    as_rows: bool = False

    def __post_init__(self) -> None:
        parts = _parts(self.data)
        other = next((part for part in parts if not _has_rows(part)), None)
        if other is not None or not parts:
            msg = f"`data` must be an array, a table, or a tuple, list or dict of them, got {shown(self.data)}"
            raise TypeError(msg)
        rows = {len(part) for part in parts}
        if rows == {0}:
            msg = "`data` must have at least one row, got none"
            raise ValueError(msg)
        if len(rows) != 1:
            msg = f"`data` must hold arrays with one common number of rows, got {sorted(rows)}"
            raise ValueError(msg)
        if self.batch_size is not None and not 1 <= self.batch_size <= self.n_rows:
            msg = (
                f"`batch_size` must lie between 1 and the {self.n_rows} rows of `data`, got {self.batch_size}; "
                "leave it out to use all rows in every step"
            )
            raise ValueError(msg)

    @property
    def n_rows(self) -> int:
        """Number of rows N."""
        return n_rows_of(self.data)

    @property
    def is_partial(self) -> bool:
        """Whether a batch is less than all data."""
        return self.batch_size is not None and self.batch_size < self.n_rows

    def draw(self, rng: np.random.Generator) -> tuple[Any, float]:
        """Return the rows for one step, and the factor N / M."""
        if self.batch_size is None or not self.is_partial:
            return (None if self.as_rows else self.data), 1.0
        rows = rng.choice(self.n_rows, self.batch_size, replace=False)
        return (rows if self.as_rows else rows_of(self.data, rows)), self.n_rows / self.batch_size

    def bound_to(self, function: Callable[..., Any]) -> tuple[WithData, Batches]:
        """Return the function with its data, and batches of row numbers.

        Workers receive the data once, with the function; a step sends row numbers only.
        """
        return WithData(function, self.data), replace(self, as_rows=True)


@dataclass
class WithData:
    """A function with its data, which is called with the numbers of the rows to use; None for all.

    Examples
    --------
    >>> import numpy as np
    >>> rows_in_twos = Batches(np.arange(6.0), batch_size=2)
    >>> function, batches = rows_in_twos.bound_to(lambda m, y: np.sum(y - m))
    >>> rows, _ = batches.draw(np.random.default_rng(1))
    >>> bool(function(1.0, rows) == np.sum(np.arange(6.0)[rows] - 1.0))
    True
    """

    function: Callable[..., Any]
    data: Any
    # Row numbers and rows of the last call: all points of a step have the same.
    _last: tuple[Any, Any] = field(default=(None, None), repr=False)

    def __call__(self, point: Any, rows: NDArray[np.int64] | None) -> Any:
        """Call the function on some rows of the data."""
        if rows is None:
            return self.function(point, self.data)
        last, taken = self._last
        if last is not rows:
            taken = rows_of(self.data, rows)
            self._last = (rows, taken)
        return self.function(point, taken)


def n_rows_of(data: Any) -> int:
    """Number of rows of an array, a pandas object, or a tuple, list or dict of them."""
    return len(_parts(data)[0])


def rows_of(data: Any, rows: NDArray[np.int64]) -> Any:
    """Some rows of an array, a pandas object, or a tuple, list or dict of them."""
    return mapped_parts(lambda part: _take_part(part, rows), data)


def mapped_parts(function: Callable[[Any], Any], data: Any) -> Any:
    """Apply a function to the user's data, or to every part of a tuple, list or dict of data.

    Examples
    --------
    >>> mapped_parts(len, ([1.0, 2.0], [3.0])), mapped_parts(len, [1.0, 2.0])
    ((2, 1), 2)
    """
    if isinstance(data, dict):
        return {name: function(part) for name, part in data.items()}
    return type(data)(map(function, data)) if _is_several(data) else function(data)


def _parts(data: Any) -> list[Any]:
    if isinstance(data, dict):
        return list(data.values())
    return list(data) if _is_several(data) else [data]


def _has_rows(part: Any) -> bool:
    return hasattr(part, "__len__") and not isinstance(part, str | bytes | set) and np.ndim(part) > 0


def _is_several(data: Any) -> bool:
    """Whether a tuple or list holds several arrays, rather than the numbers of one."""
    return isinstance(data, tuple | list) and len(data) > 0 and hasattr(data[0], "__len__")


def _take_part(part: Any, rows: NDArray[np.int64]) -> Any:
    return part.iloc[rows] if hasattr(part, "iloc") else np.asarray(part)[rows]
