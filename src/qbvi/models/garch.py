"""GARCH(1,1) (Bollerslev, 1986), in the paper's unconstrained coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.arguments import number, positive_number
from qbvi.distributions import Normal, Transformed
from qbvi.models.base import Prediction, StatisticalModel
from qbvi.models.inputs import as_series, refuse_targets_of_series
from qbvi.results import Fit
from qbvi.supports import Bijection

__all__ = ["GARCH"]

Floats = NDArray[np.float64]


class GARCH(StatisticalModel):
    r"""GARCH(1,1) with Gaussian returns of mean zero.

    .. math::
        r_t \sim N(0, \sigma_t^2), \qquad
        \sigma_t^2 = \omega + \alpha r_{t-1}^2 + \beta \sigma_{t-1}^2

    The prior is Gaussian on the paper's unconstrained scale (Table par_GARCH). With the logistic
    function f,

    .. math::
        \omega = f(\psi_\omega), \quad \alpha = f(\psi_\alpha) (1 - f(\psi_\beta)), \quad
        \beta = f(\psi_\alpha) f(\psi_\beta)

    so :math:`\alpha + \beta < 1` always. ``fit.mean`` is the array (omega, alpha, beta), and tables
    and plots have these names. ``fit.unconstrained`` refers to the three psi.

    Parameters
    ----------
    returns : array (T,)
        Returns, oldest first, with their mean removed. Omega is below one, so give them as decimals
        or in percent, not in basis points.
    first_variance : float, optional
        Variance of the first return. By default the mean square of all returns.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> returns = 0.01 * np.random.default_rng(1).standard_normal(300)
    >>> model = qbvi.models.GARCH(returns)
    >>> model.names
    ('omega', 'alpha', 'beta')
    >>> model.variances([2e-4, 0.0, 0.0])[1:4]
    array([0.0002, 0.0002, 0.0002])
    """

    names = ("omega", "alpha", "beta")

    def __init__(self, returns: Any, first_variance: float | None = None) -> None:
        self.returns = as_series(returns, 3, argument="returns")
        mean_square = float(np.mean(self.returns**2))
        if not 0 < mean_square < 100:
            msg = f"`returns` must have a mean square in (0, 100), got {mean_square:g}; give them as decimals or in percent"
            raise ValueError(msg)
        if first_variance is not None:
            number("first_variance", positive_number("first_variance", first_variance))
        self.first_variance = mean_square if first_variance is None else float(first_variance)

    @property
    def prior(self) -> Transformed:
        """Independent normals for the three psi.

        The medians are about a tenth of the returns' variance for omega, and 0.88 for both
        alpha + beta and beta / (alpha + beta).
        """
        omega = float(scipy.special.logit(min(0.1 * float(np.mean(self.returns**2)), 0.5)))
        return _named(Normal(np.array([omega, 2.0, 2.0]), np.array([2.0, 1.5, 1.5])))

    def normal_prior(self, scale: float) -> Transformed:
        """Independent normals around zero for the three psi; the paper's scale is ``5**0.5``."""
        return _named(Normal(0.0, scale, shape=3))

    @property
    def data(self) -> tuple[Floats, ...]:
        """The returns; each depends on those before it, so there are no mini-batches."""
        return (self.returns,)

    def terms(self, flat: Floats, *data: Floats) -> Floats:
        """Log normal densities of the returns: (S, 3) -> (S, T)."""
        if len(data[0]) != len(self.returns):
            msg = f"GARCH needs all {len(self.returns)} returns in order, got {len(data[0])}: leave `batch_size` out"
            raise ValueError(msg)
        variance = self._variances(flat, data[0])[:, :-1]
        with np.errstate(invalid="ignore", divide="ignore"):  # parameters outside their domain: NaN
            return np.asarray(-0.5 * (data[0] ** 2 / variance + np.log(2 * np.pi * variance)))

    def variances(self, params: Any) -> Floats:
        """Conditional variances of the returns, and of the one after the last.

        (T + 1,) for one point, (S, T + 1) for many.
        """
        flat, is_one = self._laid_out(params)
        variance = self._variances(flat, self.returns)
        return variance[0] if is_one else variance

    def fit(self, prior: Any = None, *, batch_size: int | None = None, **options: Any) -> Fit:
        """Fit this model with `qbvi.fit`; a batch size is refused."""
        if batch_size is not None:
            msg = f"`batch_size` must be left out, got {batch_size}: every variance needs all returns before it"
            raise ValueError(msg)
        return super().fit(prior, **options)

    def predict(self, posterior: Any, X_new: Any = None, *, n_draws: int = 1000, seed: int = 0) -> Prediction:
        """Predict returns one step ahead, those of the data or later ones.

        Parameters
        ----------
        posterior, n_draws, seed
            As in the other models.
        X_new
            Returns that follow the series; each is predicted from those before it.

        Returns
        -------
        Prediction
            ``variance`` and ``sd`` of each return, ``variances`` at each draw, and ``outcomes``,
            new returns. The mean of a return is zero.
        """
        flat = self._draws(posterior, n_draws, seed)
        if X_new is None:
            return _prediction(self._variances(flat, self.returns)[:, :-1], seed)
        both = np.concatenate([self.returns, as_series(X_new, 1, argument="X_new")])
        return _prediction(self._variances(flat, both)[:, len(self.returns) : -1], seed)

    def forecast(self, posterior: Any, *, n_draws: int = 1000, seed: int = 0) -> Prediction:
        """Predict the return after the last: its ``variance``, ``sd`` and ``interval()``.

        Its mean is zero.
        """
        return _prediction(self._variances(self._draws(posterior, n_draws, seed), self.returns)[:, -1:], seed)

    def _new_terms(self, flat: Floats, X_new: Any, y_new: Any, weights: Mapping[str, Any]) -> tuple[Floats, Floats]:
        refuse_targets_of_series(y_new, weights)
        if X_new is None:
            return self.terms(flat, *self.data), self.returns
        later = as_series(X_new, 1, argument="X_new")
        whole = GARCH(np.concatenate([self.returns, later]), self.first_variance)
        return whole.log_likelihood_terms(flat)[:, -len(later) :], later

    def _variances(self, flat: Floats, returns: Floats) -> Floats:
        omega, alpha, beta = flat.T
        inputs = np.empty((len(returns) + 1, len(flat)))
        inputs[0] = self.first_variance
        np.multiply.outer(returns**2, alpha, out=inputs[1:])
        inputs[1:] += omega
        return recursion(inputs, beta).T


def recursion(inputs: Floats, decay: Floats) -> Floats:
    """Solve ``x_t = decay x_{t-1} + inputs_t`` for S draws: inputs (T, S), decay (S,) -> (T, S).

    This is a scan in two levels. The first runs all blocks of about sqrt(T) steps side by side. The
    second carries the last state of each block into the next. It takes 2 sqrt(T) array operations
    instead of T.

    Examples
    --------
    >>> recursion(np.ones((4, 1)), np.array([0.5]))[:, 0]
    array([1.   , 1.5  , 1.75 , 1.875])
    """
    T, S = inputs.shape
    length = max(1, round(T**0.5))
    blocks = -(-T // length)
    padded = np.zeros((blocks * length, S))
    padded[:T] = inputs
    x = padded.reshape(blocks, length, S)
    for j in range(1, length):
        x[:, j] += decay * x[:, j - 1]
    powers = decay ** np.arange(1, length + 1)[:, None]
    for i in range(1, blocks):
        x[i] += powers * x[i - 1, -1]
    return padded[:T]


def _prediction(variance: Floats, seed: int) -> Prediction:
    rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
    outcomes, zero = np.sqrt(variance) * rng.standard_normal(variance.shape), np.zeros_like(variance)
    return Prediction(zero[0], zero, outcomes, variance)


def _named(base: Normal) -> Transformed:
    return Transformed(base, _STATIONARY, names=GARCH.names)


def _forward(psi: Floats) -> Floats:
    omega, persistence, share = np.moveaxis(scipy.special.expit(psi), -1, 0)
    return np.stack([omega, persistence * (1 - share), persistence * share], axis=-1)


def _inverse(x: Floats) -> Floats:
    omega, alpha, beta = np.moveaxis(np.asarray(x, dtype=np.float64), -1, 0)
    # log(beta / alpha), because beta / (alpha + beta) may round to one before its logit is taken.
    return np.stack([scipy.special.logit(omega), scipy.special.logit(alpha + beta), np.log(beta / alpha)], axis=-1)


def _log_jacobian(psi: Floats) -> Floats:
    return np.asarray(
        np.sum(scipy.special.log_expit(psi) + scipy.special.log_expit(-psi), axis=-1)
        + scipy.special.log_expit(psi[..., 1])
    )


_STATIONARY = Bijection(_forward, _inverse, _log_jacobian, vectorized=True)
