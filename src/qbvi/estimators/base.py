"""What an estimator of the natural gradient receives and returns."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from qbvi.arrays import Array, array_namespace
from qbvi.families.base import Family, GaussianFamily

__all__ = ["Batch", "Estimator", "known", "leave_group_out", "mean_score"]


class Batch(NamedTuple):
    """The draws of one step and their values."""

    theta: Array  # (n, d) draws from q
    f: Array  # (n,) log-likelihood, plus the part of the log prior that `eta` does not contain
    h: Array  # (n,) residual log p(y, theta) - log q(theta)
    eta: Array  # (k,) the prior's natural parameter, zero for priors of another form
    group_size: int  # how many draws depend on each other, see `qbvi.random.Draws`
    is_mirrored: bool = False  # whether the second half mirrors the first one about the mean of q


class Estimator(Protocol):
    r"""Any estimator of :math:`\eta - \lambda + E_q[\nabla_m \log q(\theta)\, f(\theta)]`."""

    def init(self, family: Family, q: Array) -> Any:
        """Return the memory before the first batch."""
        ...

    def __call__(self, family: Family, q: Array, batch: Batch, memory: Any) -> tuple[Array, Any]:
        """Return the direction (k,) and the memory for the next batch."""
        ...


def known(family: Family, q: Array, batch: Batch) -> Array:
    r"""The part :math:`\eta - \lambda` of the natural gradient that needs no draws: (k,)."""
    return batch.eta - family.natural(q)


def mean_score(family: Family, q: Array, batch: Batch, weights: Array) -> Array:
    """Mean over the draws of score times weight (k,); of a mirror pair, only one draw is read."""
    if not batch.is_mirrored or not isinstance(family, GaussianFamily):
        return family.mean_score(q, batch.theta, weights)
    half = weights.shape[0] // 2
    return family.mirrored_mean_score(q, batch.theta[:half, :], weights[:half], weights[half:])


def leave_group_out(values: Array, group_size: int) -> Array:
    """For each draw, the mean over all draws that are independent of it: (n,) -> (n,).

    Examples
    --------
    >>> import numpy as np
    >>> leave_group_out(np.array([1.0, 2.0, 3.0]), 1)
    array([2.5, 2. , 1.5])
    """
    xp = array_namespace(values)
    n = values.shape[0]
    groups = xp.reshape(values, (group_size, n // group_size))
    others = (xp.sum(values) - xp.sum(groups, axis=0)) / (n - group_size)
    return xp.reshape(xp.broadcast_to(others[None, :], groups.shape), (n,))
