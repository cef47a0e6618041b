r"""A correction of the regression by left-out draws.

Polynomials of degree four cannot fit a kink or a heavy tail, and the natural gradient that they
give is then biased. Let :math:`e_i` be the prediction error of a draw, predicted without its mirror
pair. For any function,

.. math:: \delta_b = E[e z], \quad \delta_C = E[e (z z' - I)]

under q is the error of the regression's natural gradient. Its estimate is unbiased but noisy. The
correction is therefore shrunk towards zero by as much as its own noise explains (James and Stein).
It vanishes if the regression is right.
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
    """Draws that the regression predicts from all others."""

    z: Floats  # (m, d) whitened
    weight: Floats  # (m,) density of q over that of the past draws, at most one
    pair: NDArray[np.int64]  # (m,) number of the mirror pair; pairs are next to each other


def corrected(surrogate: Surrogate, draws: LeftOutDraws, spread: float = Holdout.spread) -> Surrogate:
    """Correct the natural gradient by the left-out draws, and add the correction's variance.

    ``spread`` is the number of standard deviations of the squared length of pure noise within which
    a correction counts as noise.

    Examples
    --------
    A surrogate that missed a slope is corrected:

    >>> import numpy as np
    >>> from qbvi.regression.surrogate import Variances
    >>> z = np.random.default_rng(2).standard_normal((200, 1))
    >>> z = np.stack([z, -z], axis=1).reshape(400, 1)
    >>> gradient = {"b": np.zeros(1), "C": np.zeros((1, 1)), "b_variance": np.zeros(1)}
    >>> variances = {"quadratic_variance": 0.0, "curvature_sd": 0.0, "variances": Variances()}
    >>> rest = {"bound": 0.0, "bound_se": 0.1, "white": 0.0, "scale": 1.0, "errors": 0.5 * z[:, 0]}
    >>> flat = Surrogate(**gradient, **variances, **rest)
    >>> draws = LeftOutDraws(z, np.ones(400), np.arange(400) // 2)
    >>> bool(abs(corrected(flat, draws).b[0] - 0.5) < 0.1)
    True
    """
    d = draws.z.shape[1]
    share = draws.weight / np.sum(draws.weight)
    # The mean error belongs to the bound, not to its gradient.
    error = share * (surrogate.errors - share @ surrogate.errors)
    starts = np.flatnonzero(np.r_[True, draws.pair[1:] != draws.pair[:-1]])
    slopes = np.add.reduceat(error[:, None] * draws.z, starts)  # (pairs, d), one for each pair
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
    """Share of an estimate of k numbers to keep, by James and Stein.

    ``square`` is its squared length and ``noise`` the variance of its noise. The squared length of
    pure noise has mean ``noise`` and relative standard deviation ``sqrt(2 / k)``. A length within
    ``spread`` of these counts as noise.
    """
    return max(0.0, 1 - (1 + spread * math.sqrt(2 / k)) * noise / square) if square > 0 else 0.0
