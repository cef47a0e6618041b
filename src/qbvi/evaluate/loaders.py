"""Mini-batches from a PyTorch ``DataLoader``, with its own workers, transforms and order."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from qbvi.backends import HOST, Backend
from qbvi.backends.base import mapped_tree
from qbvi.evaluate.batches import n_rows_of

__all__ = ["LoaderBatches", "is_loader"]


def is_loader(data: Any) -> bool:
    """Whether ``data`` is a ``torch.utils.data.DataLoader``; PyTorch is not imported to find out.

    Examples
    --------
    >>> is_loader([1.0, 2.0])
    False
    """
    loaded = sys.modules.get("torch.utils.data")
    return loaded is not None and isinstance(data, loaded.DataLoader)


class LoaderBatches:
    """The batches of a loader, epoch after epoch, each with its factor N / M.

    The log-likelihood of a batch of M rows, times N / M, is an unbiased estimate of that of all N
    rows if the loader shuffles. The last batch of an epoch may be smaller; its factor is larger.
    All random numbers of the loader (order, seeds of its workers) follow from the generator given
    to `draw`: the same seed gives the same batches. The loader's own generators are left as they
    were.

    Parameters
    ----------
    loader
        A ``torch.utils.data.DataLoader`` over a data set that has a length.
    backend
        Where batches go. On NumPy they stay tensors.
    """

    def __init__(self, loader: Any, backend: Backend = HOST) -> None:
        self.loader, self.backend = loader, backend
        self.n_rows = _n_rows(loader)
        self.is_partial = _n_batches(loader) > 1 or _leaves_rows_out(loader, self.n_rows)
        self._epoch: Iterator[Any] | None = None
        if self.is_partial and type(loader.sampler).__name__ in ("SequentialSampler", "WeightedRandomSampler"):
            msg = (
                f"`data` is a DataLoader with a {type(loader.sampler).__name__}: its batches are no even samples of the data, and the posterior may be off; "
                "pass shuffle=True to it, unless the rows are in random order already"
            )
            warnings.warn(msg, UserWarning, stacklevel=4)

    def draw(self, rng: np.random.Generator) -> tuple[Any, float]:
        """Return the next batch, and the factor N / M."""
        with _seeded(self.loader, int(rng.integers(2**63))):
            batch = None if self._epoch is None else next(self._epoch, None)
            if batch is None:
                self._epoch = iter(self.loader)
                batch = next(self._epoch)
        return mapped_tree(self._there, batch), self.n_rows / n_rows_of(batch)

    def on(self, backend: Backend) -> LoaderBatches:
        """The same batches for a fit on a backend: each step copies its own batch to the device."""
        if backend.name != "torch":
            msg = f"`data` can be a DataLoader with backend='torch' or 'numpy', got backend={backend.name!r}; pass arrays, with batch_size"
            raise ValueError(msg)
        return LoaderBatches(self.loader, backend)

    def _there(self, part: Any) -> Any:
        is_tensor = not self.backend.is_host and self.backend.owns(part)
        return part.to(self.backend.device, non_blocking=True) if is_tensor else part


def _n_rows(loader: Any) -> int:
    """Number of rows that an epoch chooses from."""
    chosen = getattr(loader.sampler, "indices", None)
    if chosen is not None:
        return len(chosen)
    try:
        return len(loader.dataset)
    except TypeError:
        msg = (
            f"`data` must be a DataLoader over a data set with a length, by which the likelihood of a batch is scaled, "
            f"got one over {type(loader.dataset).__name__}; give it a __len__"
        )
        raise TypeError(msg) from None


def _leaves_rows_out(loader: Any, n_rows: int) -> bool:
    """Whether the only batch of an epoch is less than all data."""
    size = getattr(loader, "batch_size", None) or n_rows
    drawn = len(loader.sampler) if hasattr(loader.sampler, "__len__") else n_rows
    return bool(loader.drop_last and size < n_rows) or drawn < n_rows


def _n_batches(loader: Any) -> int:
    n = len(loader)
    if not n:
        msg = f"`data` must be a DataLoader with at least one batch, got none from {len(loader.dataset)} rows; leave drop_last out"
        raise ValueError(msg)
    return n


@contextmanager
def _seeded(loader: Any, seed: int) -> Iterator[None]:
    """Seed all random numbers of the loader, and restore the generators afterwards."""
    import torch

    own = (part.generator for part in (loader, loader.sampler, loader.batch_sampler) if hasattr(part, "generator"))
    with ExitStack() as stack:
        for generator in {torch.default_generator, *own} - {None}:
            stack.callback(generator.set_state, generator.get_state())
            generator.manual_seed(seed)
        yield
