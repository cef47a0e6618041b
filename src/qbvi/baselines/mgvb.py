"""MGVB: Gaussian variational Bayes on the manifold of covariances (Tran, Nguyen, Nguyen, 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import Array, to_numpy
from qbvi.baselines.base import Baseline, TakenStep, describe
from qbvi.families.base import GaussianFamily
from qbvi.protocol import Info, Values
from qbvi.stopping import MaxIterations, Patience, Rule
from qbvi.updates import ClipByNorm, LearningRate, Momentum, Where

__all__ = ["MGVB"]

Floats = NDArray[np.float64]


_RATE = LearningRate(0.01, decay_after=800)


class ManifoldState(NamedTuple):
    """State for the next step."""

    q: Array
    t: int
    coefficients: Floats  # (d + d^2,) of the control variates, from the previous draws
    shift: Floats  # (d,) averaged natural gradient of the mean
    growth: Floats  # (d, d) averaged natural gradient of the covariance, in whitened coordinates


@dataclass(frozen=True)
class MGVB(Baseline):
    r"""Manifold Gaussian variational Bayes.

    It uses function values and approximate natural gradients. The covariance stays positive
    definite. Gradients of the bound by ``mu`` and ``S`` are score-function estimates with control
    variates from the previous draws:

    .. math::
        \tilde\nabla_\mu = S \nabla_\mu \mathcal{L}, \quad
        \tilde\nabla_S = 2 S \nabla_S \mathcal{L}\, S, \qquad
        R_S(\xi) = S + \xi + \tfrac12 \xi S^{-1} \xi

    The mean moves by :math:`\beta \bar\nabla_\mu`, and the covariance to
    :math:`R_S(\beta \bar\nabla_S)`. The average
    :math:`\bar\nabla_S = \omega T(\bar\nabla_S) + (1 - \omega) \tilde\nabla_S` moves the past to
    the new covariance by the vector transport :math:`T(\xi) = E \xi E'`,
    :math:`E = (S_{new} S_{old}^{-1})^{1/2}`.

    Let the factor of the new covariance be :math:`L (I + C + C^2/2)^{1/2}`. Then the transport is
    the identity in whitened coordinates, so the averaged matrix needs no transport.

    Parameters
    ----------
    n_samples, learning_rate, stop, window, keep, initial_sd, n_fresh
        As in `qbvi.QBVI`. The defaults are those of the paper's table of hyper-parameters, except
        for the rate. With the paper's 0.1, a start away from the posterior has very long steps.
        The square in the retraction then widens the covariance whatever their sign, and the fit
        diverges.
    momentum
        Weight of the past natural gradients.
    max_norm
        Bound on the norm of the natural gradient; a longer one is shortened to it.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> method = qbvi.baselines.MGVB(learning_rate=0.1, stop=qbvi.MaxIterations(100))
    >>> fit = qbvi.fit(lambda x: -((x - 1) ** 2).sum(), qbvi.Flat(shape=2), method=method, seed=1)
    >>> bool(np.all(np.abs(fit.mean - 1) < 0.1))
    True
    """

    learning_rate: float | LearningRate = _RATE
    stop: Sequence[Rule | str] = (Patience(500), MaxIterations(1000))
    momentum: float = 0.4
    max_norm: float = 1000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        Momentum(self.momentum), ClipByNorm(self.max_norm)  # they check their own arguments
        if self.updates:
            msg = f"`updates` must be empty, got {self.updates!r}; MGVB has its own `max_norm` and `momentum`"
            raise ValueError(msg)

    def init(self, family: GaussianFamily, q: Array) -> ManifoldState:
        """State before the first step, given a starting member of the family."""
        d = family.dim
        return ManifoldState(q, 0, np.zeros(d + d**2), np.zeros(d), np.zeros((d, d)))

    def ask(self, family: GaussianFamily, state: ManifoldState, rng: np.random.Generator) -> Array:
        """Independent draws from q: (n, d)."""
        return family.transport(state.q, rng.standard_normal((self.n_samples, family.dim)))

    def tell(
        self, family: GaussianFamily, eta: Array, state: ManifoldState, theta: Array, values: Values
    ) -> tuple[ManifoldState, Info]:
        """Move the mean along its natural gradient, and the covariance along the retraction."""
        h = np.asarray(family.residual(state.q, theta, values.log_joint))
        natural, coefficients = natural_gradient(family, state, theta, h)
        if not np.isfinite(natural.flat @ natural.flat):
            return state, describe(h, TakenStep(natural.flat, np.zeros_like(natural.flat), taken=False))
        state = state._replace(t=state.t + 1, coefficients=coefficients)
        if state.t == 1:  # without control variates this gradient is mostly noise
            return state, describe(h, TakenStep(natural.flat, np.zeros_like(natural.flat), taken=True))
        average = self._averaged(self._clipped(natural, family, state), state)
        rate = self.learning_rate(np.ones(1), (), Where(family, state.q, state.t - 1))[0][0]  # type: ignore[operator]
        q = retracted(family, state.q, rate * average.shift, rate * average.growth)
        taken = bool(np.all(np.isfinite(q)) and np.all(family.sd(q) > 0))
        moved = state._replace(q=q, shift=average.shift, growth=average.growth) if taken else state
        return moved, describe(h, TakenStep(natural.flat, rate * average.flat, taken))

    def _clipped(self, natural: Natural, family: GaussianFamily, state: ManifoldState) -> Natural:
        """Shorten the gradient if its norm on the parameters' own scale exceeds ``max_norm``."""
        L = _factor(family, state.q)
        norm = np.hypot(np.linalg.norm(natural.shift), np.linalg.norm(L @ natural.growth @ L.T))
        return natural.scaled(self.max_norm / max(norm, self.max_norm))

    def _averaged(self, natural: Natural, state: ManifoldState) -> Natural:
        omega = self.momentum if state.t > 2 else 0.0
        past = Natural(state.shift, state.growth)
        return past.scaled(omega).plus(natural.scaled(1 - omega))


class Natural(NamedTuple):
    """A natural gradient: of the mean (d,), and of the whitened covariance (d, d)."""

    shift: Floats
    growth: Floats

    @property
    def flat(self) -> Floats:
        """Both parts, concatenated."""
        return np.concatenate([self.shift, self.growth.ravel()])

    def scaled(self, factor: float) -> Natural:
        """Both parts times a number."""
        return Natural(factor * self.shift, factor * self.growth)

    def plus(self, other: Natural) -> Natural:
        """The sum."""
        return Natural(self.shift + other.shift, self.growth + other.growth)


def natural_gradient(family: GaussianFamily, state: ManifoldState, theta: Floats, h: Floats) -> tuple[Natural, Floats]:
    """S grad_mu and 2 L' grad_S L, which is 2 S grad_S S whitened, and the next coefficients."""
    d, L = family.dim, _factor(family, state.q)
    K = to_numpy(family.whiten(state.q, to_numpy(family.mean(state.q)) + np.eye(d))).T
    v = to_numpy(family.whiten(state.q, theta)) @ K
    by_cov = 0.5 * (v[:, :, None] * v[:, None, :] - K.T @ K)
    score = np.concatenate([v, by_cov.reshape(len(v), -1)], axis=1)
    gradient = np.mean(score * (h[:, None] - state.coefficients), axis=0)
    growth = 2 * L.T @ to_numpy(family.restrict(gradient[d:].reshape(d, d))) @ L
    return Natural(L @ (L.T @ gradient[:d]), 0.5 * (growth + growth.T)), _coefficients(score, h)


def retracted(family: GaussianFamily, q: Array, shift: Floats, growth: Floats) -> Array:
    """The member with mean mu + shift and covariance S + xi + xi S^-1 xi / 2, xi = L growth L'."""
    c, U = np.linalg.eigh(growth)
    root = np.sqrt(1 + c + 0.5 * c**2)  # at least 1/sqrt 2
    whitened = to_numpy(family.whiten(q, (to_numpy(family.mean(q)) + shift)[None]))[0]
    return family.deform(q, whitened, (U * root) @ U.T, (U / root) @ U.T)


def _coefficients(score: Floats, h: Floats) -> Floats:
    """Cov(g h, g) / Var(g) of every coordinate g of the score: (k,)."""
    centred = score - score.mean(axis=0)
    variance = np.mean(centred**2, axis=0)
    return np.asarray(np.mean(centred * score * h[:, None], axis=0) / np.where(variance > 0, variance, 1.0))


def _factor(family: GaussianFamily, q: Array) -> Floats:
    """The factor L (d, d) that the family draws with."""
    return (to_numpy(family.transport(q, np.eye(family.dim))) - to_numpy(family.mean(q))).T
