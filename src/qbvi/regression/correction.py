r"""A correction of the regression by draws that it did not see.

Polynomials of degree four follow no kink and no heavy tail. Where they fail, the natural gradient read off them is
biased. Let :math:`e_i` be the residual of a draw that is predicted without its mirror pair. Under q

.. math:: \delta_b = E[e z], \quad \delta_C = E[e (z z' - I)]

is the regression's error, whatever the function. Its estimate is unbiased but noisy, the regression neither. The
correction is therefore shrunk to zero as far as its own noise explains it (James and Stein), so that it vanishes
where the regression is right.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.regression.rules import Holdout
from qbvi.regression.surrogate import Surrogate

__all__ = ["LeftOutDraws", "corrected", "kept_share"]

Floats = NDArray[np.float64]


class LeftOutDraws(NamedTuple):
    """Draws that were predicted from all others."""

    z: Floats  # (m, d) whitened
    weight: Floats  # (m,) density of q over that of the draws, at most one
    pair: NDArray[np.int64]  # (m,) mirror pairs, next to each other


def corrected(surrogate: Surrogate, draws: LeftOutDraws, spread: float = Holdout.spread) -> Surrogate:
    """Add what the left-out draws prove, and what remains unknown of it to the variances.

    ``spread`` is how many standard deviations of the length of pure noise count as noise.

    Examples
    --------
    A surrogate that overlooked a slope is told so:

    >>> import numpy as np
    >>> from qbvi.regression.surrogate import Variances
    >>> z = np.random.default_rng(2).standard_normal((200, 1))
    >>> z = np.stack([z, -z], axis=1).reshape(400, 1)
    >>> flat = Surrogate(
    ...     0.0, 0.1, np.zeros(1), np.zeros((1, 1)), np.zeros(1), 0.0, 0.0, 0.0, 1.0, Variances(), 0.5 * z[:, 0]
    ... )
    >>> draws = LeftOutDraws(z, np.ones(400), np.arange(400) // 2)
    >>> bool(abs(corrected(flat, draws).b[0] - 0.5) < 0.1)
    True
    """
    d = draws.z.shape[1]
    share = draws.weight / np.sum(draws.weight)
    error = share * (surrogate.errors - share @ surrogate.errors)  # what is common to all is an error of the bound
    starts = np.flatnonzero(np.r_[True, draws.pair[1:] != draws.pair[:-1]])
    slopes = np.add.reduceat(error[:, None] * draws.z, starts)  # (pairs, d), each pair's part
    bends = np.add.reduceat(error, starts)
    radius = np.sum(draws.z[starts] ** 2, axis=1)
    delta_b, noise_b = slopes.sum(axis=0), np.sum(slopes**2)
    delta_C = (draws.z.T * error) @ draws.z - bends.sum() * np.eye(d)
    noise_C = 0.5 * float(np.sum(bends**2 * (radius**2 - 2 * radius + d)))
    keep_b = kept_share(float(delta_b @ delta_b), float(noise_b), d, spread)
    keep_C = kept_share(0.5 * float(np.sum(delta_C**2)), noise_C, d * (d + 1) // 2, spread)
    return replace(
        surrogate,
        b=surrogate.b + keep_b * delta_b,
        C=surrogate.C + keep_C * delta_C,
        b_variance=surrogate.b_variance + keep_b * noise_b / d,
        quadratic_variance=surrogate.quadratic_variance + keep_C * noise_C,
    )


def kept_share(square: float, noise: float, k: int, spread: float = Holdout.spread) -> float:
    """Share to keep of an estimate of k numbers, given its squared length and the variance of its noise (James and Stein).

    The squared length of noise alone is its variance, give or take a share of ``sqrt(2 / k)``; what is
    within ``spread`` times that is taken for noise.
    """
    return max(0.0, 1 - (1 + spread * math.sqrt(2 / k)) * noise / square) if square > 0 else 0.0
