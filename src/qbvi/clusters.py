"""Points of unknown origin: their density, a few Gaussians, and the hills of a function on them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

__all__ = ["Cluster", "clusters", "hills", "log_density"]

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

_MOST = 100  # groups of consecutive points at the start
_FEWEST = 8  # points of a half, at least, and two for each dimension
_FLOOR = 1e-12  # least variance of a coordinate, relative to that of all points
_FLAT = 1e-9  # share of the variances that is added to each covariance
_CONSTANT = 1e-3  # standard deviation, relative to the prior's, if all points have the same value


class Cluster(NamedTuple):
    """Some of the points, with the mean and covariance of a Gaussian that they could be from."""

    rows: Rows  # (n,)
    mean: Floats  # (d,)
    cov: Floats  # (d, d)


def clusters(theta: Floats, batch: Rows, scale: Floats) -> list[Cluster]:
    """Divide points (N, d) into clusters that are about Gaussian.

    Points of one batch, or of a few consecutive batches if there are many, form a group. A group is
    cut in half, at the median of its longest principal axis, if two Gaussians describe its points
    better than one. "Better" is by the Bayesian information criterion. Each half is treated
    likewise.

    Parameters
    ----------
    theta
        The points (N, d).
    batch
        Number of each point's batch (N,).
    scale
        Standard deviations of the prior (d,), for a coordinate that is the same at all points.

    Examples
    --------
    Two clouds far apart, of 40 points each:

    >>> z = np.random.default_rng(1).standard_normal((40, 2))
    >>> found = clusters(np.concatenate([z, 50 + z]), np.zeros(80, dtype=int), np.ones(2))
    >>> [len(cluster.rows) for cluster in found], found[1].mean.round() - found[0].mean.round()
    ([40, 40], array([50., 50.]))
    """
    numbers, group = np.unique(batch, return_inverse=True)
    group = group * min(_MOST, len(numbers)) // max(len(numbers), 1)
    floor = np.where(np.ptp(theta, axis=0) > 0, _FLOOR * theta.var(axis=0), (_CONSTANT * scale) ** 2)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    return [part for rows in np.split(order, starts[1:]) for part in _halved(theta, rows, floor)]


def log_density(found: list[Cluster], theta: Floats) -> Floats:
    """Log of the sum over clusters of n N(theta; mean, cov): (N, d) -> (N,)."""
    terms = [math.log(len(c.rows)) + _log_normal(theta, c.mean, c.cov) for c in found]
    return np.asarray(np.logaddexp.reduce(terms))


def hills(z: Floats, y: Floats, valley: float) -> list[Rows]:
    """Divide points z (N, d) into the hills of a function with values y (N,).

    From the highest point downwards, each joins the hill of its highest neighbour, or is the top of
    a new one. Where a point joins two hills, the lower one is part of the higher one, unless its
    top is more than ``valley`` above the pass. The highest hill comes first.

    Examples
    --------
    >>> z = np.linspace(-4, 4, 80)[:, None]
    >>> y = np.logaddexp(-2 * (z[:, 0] + 2) ** 2, -2 * (z[:, 0] - 2) ** 2 - 1)
    >>> [len(rows) for rows in hills(z, y, valley=3.0)]
    [41, 39]
    >>> [len(rows) for rows in hills(z, y, valley=30.0)]
    [80]
    """
    n, n_near = len(z), min(2 * z.shape[1] + 1, len(z))
    near = np.reshape(scipy.spatial.cKDTree(z).query(z, n_near)[1], (n, n_near))
    order = np.argsort(-y, kind="stable")
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    neighbours: list[set[int]] = [set() for _ in range(n)]
    for i, j in zip(np.repeat(np.arange(n), n_near).tolist(), near.ravel().tolist(), strict=True):
        neighbours[i].add(j)
        neighbours[j].add(i)
    top = list(range(n))  # of the hill that a point belongs to, or a point nearer to it

    def top_of(i: int) -> int:
        while top[i] != i:
            top[i] = top[top[i]]
            i = top[i]
        return i

    for i in order.tolist():
        above = sorted({top_of(j) for j in neighbours[i] if rank[j] < rank[i]}, key=lambda j: rank[j])
        if not above:
            continue
        top[i] = above[0]
        for other in above[1:]:
            if y[other] - y[i] <= valley:
                top[other] = above[0]
    of = np.array([rank[top_of(i)] for i in range(n)])
    return [np.flatnonzero(of == first) for first in np.unique(of)]


def _halved(theta: Floats, rows: Rows, floor: Floats) -> Iterator[Cluster]:
    """One cluster, or those of its halves: a recursion without a stack of calls."""
    waiting = [_cluster(theta, rows, floor)]
    while waiting:
        whole = waiting.pop()
        halves = _cut(theta, whole, floor)
        if halves is None:
            yield whole
        else:
            waiting += halves[::-1]


def _cut(theta: Floats, whole: Cluster, floor: Floats) -> tuple[Cluster, Cluster] | None:
    n, d = len(whole.rows), theta.shape[1]
    if n < 2 * max(_FEWEST, 2 * (d + 1)):
        return None
    points = theta[whole.rows]
    axis = np.linalg.eigh(whole.cov)[1][:, -1]
    order = np.argsort((points - whole.mean) @ (axis * np.sign(axis[np.argmax(np.abs(axis))])), kind="stable")
    lower, upper = whole.rows[order[: n // 2]], whole.rows[order[n // 2 :]]
    halves = _cluster(theta, lower, floor), _cluster(theta, upper, floor)
    gain = np.sum(log_density(list(halves), points) - math.log(n) - _log_normal(points, whole.mean, whole.cov))
    n_more = 1 + d * (d + 3) / 2  # numbers that a second Gaussian and its weight have
    return halves if gain > 0.5 * n_more * math.log(n) else None


def _cluster(theta: Floats, rows: Rows, floor: Floats) -> Cluster:
    """Moments of some points; with few of them, correlations shrink towards zero."""
    points = theta[rows]
    n, d = points.shape
    mean = points.mean(axis=0)
    cov = (points - mean).T @ (points - mean) / n
    variances = np.maximum(np.diagonal(cov), floor)
    share = max(0.0, 1 - n / (2 * d))
    cov = (1 - share) * cov + share * np.diag(variances)
    # A little of the variances keeps a cloud that is flat in some direction positive definite.
    return Cluster(rows, mean, cov + _FLAT * np.diag(variances))


def _log_normal(theta: Floats, mean: Floats, cov: Floats) -> Floats:
    sd = np.sqrt(np.diagonal(cov))
    factor = np.linalg.cholesky(cov / np.outer(sd, sd))
    z = np.linalg.solve(factor, ((theta - mean) / sd).T)
    log_det = np.sum(np.log(np.diagonal(factor))) + np.sum(np.log(sd))
    return np.asarray(-0.5 * np.sum(z**2, axis=0) - log_det - 0.5 * len(mean) * math.log(2 * math.pi))
