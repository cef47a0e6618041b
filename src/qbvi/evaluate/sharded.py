"""Data in parts, for data too large for one machine: the points travel, the data do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from qbvi.evaluate.batches import n_rows_of, rows_of
from qbvi.evaluate.calls import ShapeError
from qbvi.points import Points, copied, count

__all__ = ["PartBatches", "Selection", "ShardedLikelihood", "value_on_part"]

Floats = NDArray[np.float64]
PartFunction = Callable[[Points, Any], Any]


class Selection(NamedTuple):
    """The parts that a step uses, the rows of each (None for all), and the seed of these rows."""

    parts: tuple[int, ...]
    rows_per_part: int | None
    seed: int


class ShardedLikelihood:
    r"""A log-likelihood that is a sum over parts of the data, each evaluated where it is stored.

    .. math:: \log p(y | \theta) = \sum_{k=1}^{P} f(\theta, \text{part}_k)

    A step sends its points (S x d numbers) to every part and receives S numbers from each. They are
    added in the order of the parts, so the result does not depend on the order in which workers
    finish. Pass it to `qbvi.fit` with ``vectorized=True``.

    Parameters
    ----------
    function
        ``f(points, part)`` returns the log-likelihood of a part at each of S stacked points: shape
        (S,).
    parts
        A Dask DataFrame, Array (cut along its first axis) or Bag, a list of Dask delayed values or
        futures, or a list of anything.
    client
        The `distributed.Client` whose workers hold the parts. For Dask parts the default is the
        current client. A plain list stays in this process unless a client is given.
    parts_per_step
        Number of parts that a step draws at random; the sum is scaled up. By default all parts.
    rows_per_part
        Number of rows that a step draws at random from each part; the sum is scaled up. By default
        all rows.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> y = np.random.default_rng(1).normal(2.0, 1.0, size=1000)
    >>> def f(mu, part):
    ...     return -0.5 * ((part - mu[:, None]) ** 2).sum(axis=1)
    >>> shards = qbvi.ShardedLikelihood(f, np.split(y, 4))
    >>> fit = qbvi.fit(shards, qbvi.Normal(0, 10), vectorized=True, seed=1)
    >>> bool(abs(fit.mean - y.sum() / 1000.01) < 1e-3)
    True
    """

    def __init__(
        self,
        function: PartFunction,
        parts: Any,
        *,
        client: Any = None,
        parts_per_step: int | None = None,
        rows_per_part: int | None = None,
    ) -> None:
        if not callable(function):
            msg = f"`function` must be a function of points and a part, got {type(function).__name__}"
            raise TypeError(msg)
        self._shards = _shards(function, parts, client)
        _check_between("parts_per_step", parts_per_step, len(self._shards))
        _check_between("rows_per_part", rows_per_part, None)
        self.parts_per_step, self.rows_per_part = parts_per_step, rows_per_part

    @property
    def n_parts(self) -> int:
        """Number of parts P."""
        return len(self._shards)

    @property
    def batches(self) -> PartBatches | None:
        """The mini-batches of `qbvi.fit`; None where every step uses all data."""
        if self.parts_per_step is None and self.rows_per_part is None:
            return None
        return PartBatches(self.n_parts, self.parts_per_step or self.n_parts, self.rows_per_part)

    def __call__(self, points: Points, selection: Selection | None = None) -> Floats:
        """Return the log-likelihood at stacked points, on all data or on a selection: (S,)."""
        chosen = selection or Selection(tuple(range(self.n_parts)), None, 0)
        values = self._shards.values(points, chosen)
        checked = [_checked(value, count(points), k) for k, value in zip(chosen.parts, values, strict=True)]
        total = np.zeros(count(points))
        for value in checked:
            total = total + value
        return total


class PartBatches(NamedTuple):
    """Mini-batches of parts, or of rows within parts, scaled up to all parts."""

    n_parts: int
    parts_per_step: int
    rows_per_part: int | None

    @property
    def is_partial(self) -> bool:
        """Whether a batch is less than all data."""
        return self.parts_per_step < self.n_parts or self.rows_per_part is not None

    def draw(self, rng: np.random.Generator) -> tuple[Selection, float]:
        """Return the selection for one step, and the factor P / p."""
        parts = np.sort(rng.choice(self.n_parts, self.parts_per_step, replace=False))
        seed = int(rng.integers(2**63))
        return Selection(tuple(parts.tolist()), self.rows_per_part, seed), self.n_parts / self.parts_per_step


def value_on_part(function: PartFunction, points: Points, part: Any, k: int, selection: Selection) -> Any:
    """Evaluate on part k, or on some of its rows.

    The selection and k alone determine which rows.
    """
    if selection.rows_per_part is None:
        return function(copied(points), part)
    n = n_rows_of(part)
    m = min(selection.rows_per_part, n)
    chosen = np.random.default_rng([selection.seed, k]).choice(n, m, replace=False)
    return n / m * np.asarray(function(copied(points), rows_of(part, chosen)))


class Shards(Protocol):
    """Parts in one place, and the values of the function on them."""

    def __len__(self) -> int: ...

    def values(self, points: Points, selection: Selection) -> list[Any]:
        """Return f(points, part) for each selected part, in order."""
        ...


class _Local:
    """Parts in this process."""

    def __init__(self, function: PartFunction, parts: Sequence[Any]) -> None:
        self._function, self._parts = function, parts

    def __len__(self) -> int:
        return len(self._parts)

    def values(self, points: Points, selection: Selection) -> list[Any]:
        return [value_on_part(self._function, points, self._parts[k], k, selection) for k in selection.parts]


def _shards(function: PartFunction, parts: Any, client: Any) -> Shards:
    in_dask = _is_from_dask(parts) or (isinstance(parts, Sequence) and any(_is_from_dask(part) for part in parts))
    if client is not None or in_dask:
        shards: Shards = _on_workers(function, parts, client)
    elif isinstance(parts, Iterable) and not isinstance(parts, str | bytes | dict):
        shards = _Local(function, list(parts))
    else:
        msg = f"`parts` must be a list of parts, or a Dask DataFrame, Array or Bag, got {type(parts).__name__}"
        raise TypeError(msg)
    if not len(shards):
        msg = "`parts` must hold at least one part, got none"
        raise ValueError(msg)
    return shards


def _on_workers(function: PartFunction, parts: Any, client: Any) -> Shards:
    try:
        from qbvi.evaluate.dask_shards import OnWorkers
    except ImportError as error:
        msg = "parts in Dask need the package distributed, which is not installed: pip install 'qbvi[dask]'"
        raise ImportError(msg) from error
    return OnWorkers(function, parts, client)


def _is_from_dask(thing: Any) -> bool:
    return any(
        kind.__module__.partition(".")[0] in ("dask", "distributed", "dask_expr") for kind in type(thing).__mro__
    )


def _check_between(name: str, value: int | None, most: int | None) -> None:
    if value is not None and (value < 1 or (most is not None and value > most)):
        limit = "at least 1" if most is None else f"between 1 and the {most} parts"
        msg = f"`{name}` must be {limit}, got {value}; leave it out to take all in every step"
        raise ValueError(msg)


def _checked(value: Any, n: int, k: int) -> Floats:
    array = np.asarray(value)
    if array.shape != (n,) or array.dtype.kind not in "fiu":
        msg = (
            f"the function of a ShardedLikelihood must return shape ({n},) for {n} points, got {array.shape} of dtype {array.dtype} "
            f"on part {k}; sum over the rows of the part only"
        )
        raise ShapeError(msg)
    return array.astype(np.float64)
