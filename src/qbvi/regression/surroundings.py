r"""What the log joint looks like around points far from the result.

The height of a log joint says nothing about mass: the neck of a funnel is high, but it has hardly
any volume. A batch of an earlier iteration tells the volume, if it was as wide as the log joint was
there: its q is then a Gaussian of about that shape. The ratio of the joint density to this Gaussian
is an estimate of the mass around a point, as an importance ratio is.

Let z be the whitened draws of a batch. The mean of the two values of a mirror pair has no linear
part, so least squares

.. math:: \tfrac12 (y(z) + y(-z)) \approx a - \tfrac12 c |z|^2

give the mean curvature c of the log joint, in units of the batch's own precision. With c = 1, the
batch is as wide as the log joint. With a small c it is narrower, in some directions or in all, and
the volume is not known.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from qbvi.families.base import GaussianFamily
from qbvi.regression.rules import SurroundingsRule
from qbvi.regression.store import Batch, Store

__all__ = ["curvature", "log_density_around"]

Floats = NDArray[np.float64]

_MIRROR = 1e-6  # largest relative error of a mirror image
_FEWEST_PAIRS = 4  # with two coefficients, fewer pairs have no standard error to speak of


def log_density_around(family: GaussianFamily, store: Store, theta: Floats, rule: SurroundingsRule) -> Floats:
    """Log density at points (n, d) of the Gaussian around each of them: (n,).

    Of the batches that are as wide as the log joint, it is the one with the highest density at the
    point. It is widened if the curvature is below one. Where there is none, the density is NaN.
    """
    highest = np.full(len(theta), -np.inf)
    for batch in store.past:
        c, error = curvature(family, store, batch)
        if not c - rule.errors * error > rule.least_curvature:
            continue
        square, c = np.sum(family.whiten(batch.q, theta) ** 2, axis=1), min(c, 1.0)
        density = family.log_prob(batch.q, theta) + 0.5 * (1 - c) * square + 0.5 * family.dim * math.log(c)
        highest = np.where(rule.covers(square, family.dim), np.maximum(highest, density), highest)
    return np.where(highest > -np.inf, highest, np.nan)


def curvature(family: GaussianFamily, store: Store, batch: Batch) -> tuple[float, float]:
    """Mean curvature of the log joint in a batch, and its standard error; NaN if not known.

    Examples
    --------
    A batch that is half as wide as the log joint:

    >>> from qbvi.families import Gaussian
    >>> from qbvi.random import orthogonal_pairs
    >>> family, z = Gaussian(2), orthogonal_pairs(np.random.default_rng(1), 16, 2)
    >>> q, y = family.start(np.zeros(2), np.full(2, 0.5)), -0.5 * np.sum((z / 2) ** 2, axis=1)
    >>> store = Store.empty(2).add(family, q, 0.5 * z, y, np.zeros(16))
    >>> round(curvature(family, store, store.past[0])[0], 6)
    0.25
    """
    unknown = math.nan, math.nan
    rows = slice(batch.start, batch.start + (batch.stop - batch.start) // 2 * 2)
    z, y = family.whiten(batch.q, store.theta[rows]), store.y[rows]
    size = np.linalg.norm(z[::2], axis=1)
    is_pair = np.linalg.norm(z[::2] + z[1::2], axis=1) <= _MIRROR * (1 + size)
    ok = is_pair & np.isfinite(y[::2]) & np.isfinite(y[1::2])
    if np.sum(ok) < _FEWEST_PAIRS:
        return unknown
    even, square = 0.5 * (y[::2] + y[1::2])[ok], size[ok] ** 2
    spread = square - square.mean()
    total = float(spread @ spread)
    if not total > 0:
        return unknown
    slope = float(spread @ even) / total
    rest = even - even.mean() - slope * spread
    return -2 * slope, 2 * math.sqrt(float(rest @ rest) / (len(even) - 2) / total)
