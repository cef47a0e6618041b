"""BBVI: score-function gradients in Euclidean coordinates (Ranganath, Gerrish and Blei, 2014)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import flag
from qbvi.arrays import Array
from qbvi.baselines.euclidean import Euclidean, EuclideanState
from qbvi.baselines.factor import FactorCoordinates
from qbvi.families.base import GaussianFamily
from qbvi.protocol import Info, Values

__all__ = ["BBVI"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BBVI(Euclidean):
    r"""Black-box variational inference: from function values, as QBVI, but Euclidean gradients.

    The coordinates ``x`` of q are its mean and its Cholesky factor with a log diagonal. For a
    diagonal covariance they are the mean and the log standard deviations.

    .. math::
        \nabla_x \mathcal{L} = E_q[\nabla_x \log q(\theta)\, (h(\theta) - a)], \qquad
        h = \log p(y, \theta) - \log q(\theta)

    The control variate ``a`` is :math:`E[g^2 h] / E[g^2]` for a score ``g``. Each coordinate and
    each draw has its own, computed from all other draws, so the estimate is unbiased. There is no
    Rao-Blackwellisation: it needs the terms of the log-joint that depend on each parameter, and a
    black box does not provide them.

    Parameters
    ----------
    n_samples, updates, learning_rate, stop, window, keep, initial_sd, n_fresh
        As in `qbvi.QBVI`; here they act on Euclidean gradients.
    scaling
        A step size for every coordinate: ``"rmsprop"``, ``"adagrad"``, ``"none"``, or your own
        `qbvi.baselines.RMSProp`. AdaGrad is the article's choice. It needs larger rates such as
        0.1, and did not settle in 25 dimensions with full covariance.
    control_variate
        Whether to use the control variate; False gives the naive estimator.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> stop = qbvi.MaxIterations(200)
    >>> method = qbvi.baselines.BBVI(scaling="adagrad", learning_rate=0.1, n_samples=50, stop=stop)
    >>> fit = qbvi.fit(lambda x: -((x - 1) ** 2).sum(), qbvi.Flat(shape=2), method=method, seed=1)
    >>> bool(np.all(np.abs(fit.mean - 1) < 0.1))
    True
    """

    control_variate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        flag("control_variate", self.control_variate)

    def ask(self, family: GaussianFamily, state: EuclideanState, rng: np.random.Generator) -> Array:
        """Independent draws from q: (n, d)."""
        return family.transport(state.q, rng.standard_normal((self.n_samples, family.dim)))

    def tell(
        self, family: GaussianFamily, eta: Array, state: EuclideanState, theta: Array, values: Values
    ) -> tuple[EuclideanState, Info]:
        """Take a step along the estimated gradient."""
        h = family.residual(state.q, theta, values.log_joint)
        gradient = self.gradient(family, state.x, theta, h)
        return self.climb(family, state, gradient, h)

    def gradient(self, family: GaussianFamily, x: Floats, theta: Floats, h: Floats) -> Floats:
        """Gradient of the bound by ``x``, estimated from residuals ``h`` at ``theta``: (size,).

        ``h`` has shape (n,) and ``theta`` (n, d).
        """
        score = FactorCoordinates(family).score(x, theta)
        baseline = _without_own_draw(score, h) if self.control_variate else 0.0
        return np.asarray(np.mean(score * (h[:, None] - baseline), axis=0))


def _without_own_draw(score: Floats, h: Floats) -> Floats:
    """The best coefficient E[g^2 h] / E[g^2] of each coordinate, from all other draws: (n, k)."""
    squares = score**2
    weighted = squares * h[:, None]
    rest = squares.sum(axis=0) - squares
    return np.asarray((weighted.sum(axis=0) - weighted) / np.where(rest > 0, rest, 1.0))
