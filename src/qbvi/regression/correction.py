r"""What draws that the surrogate did not see say against it.

Polynomials of degree four follow no kink and no heavy tail, and where they fail the natural gradient read off them is biased. Let
:math:`e_i` be the residual of a draw predicted without its mirror pair. Under q

.. math:: \delta_b = E[e z], \quad \delta_C = E[e (z z' - I)]

is the surrogate's error, whatever the function; its estimate is unbiased and noisy where the surrogate is neither. The two are weighed by shrinking the correction
to zero as far as its own noise explains it (James and Stein), so that it vanishes where the surrogate is right.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.regression.surrogate import Surrogate

__all__ = ["LeftOutDraws", "believed", "corrected"]

Floats = NDArray[np.float64]


class LeftOutDraws(NamedTuple):
    """Draws that were predicted from all others."""

    z: Floats  # (m, d) whitened
    weight: Floats  # (m,) density of q over that of the draws, at most one
    pair: NDArray[np.int64]  # (m,) mirror pairs, next to each other


def corrected(surrogate: Surrogate, draws: LeftOutDraws) -> Surrogate:
    """Add what the left-out draws prove, and what remains unknown of it to the variances.

    Examples
    --------
    A surrogate that overlooked a slope is told so:

    >>> import numpy as np
    >>> from qbvi.regression.surrogate import Hyper
    >>> z = np.random.default_rng(2).standard_normal((200, 1))
    >>> z = np.stack([z, -z], axis=1).reshape(400, 1)
    >>> flat = Surrogate(
    ...     0.0, 0.1, np.zeros(1), np.zeros((1, 1)), np.zeros(1), 0.0, 0.0, 0.0, 1.0, Hyper(), 0.5 * z[:, 0]
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
    keep_b = believed(float(delta_b @ delta_b), float(noise_b), d)
    keep_C = believed(0.5 * float(np.sum(delta_C**2)), noise_C, d * (d + 1) // 2)
    return replace(
        surrogate,
        b=surrogate.b + keep_b * delta_b,
        C=surrogate.C + keep_C * delta_C,
        b_variance=surrogate.b_variance + keep_b * noise_b / d,
        quadratic_variance=surrogate.quadratic_variance + keep_C * noise_C,
    )


def believed(square: float, noise: float, k: int) -> float:
    """Share to keep of an estimate of k numbers with this squared length, given the variance of its noise (James and Stein).

    Noise alone is as long as its variance says give or take a share of sqrt(2 / k); what is within three times that is taken for noise.
    """
    return max(0.0, 1 - (1 + 3 * math.sqrt(2 / k)) * noise / square) if square > 0 else 0.0
