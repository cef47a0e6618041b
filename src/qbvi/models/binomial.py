"""Binomial regression: successes out of trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.exact import Expected, expected_softplus
from qbvi.models.base import Prediction
from qbvi.models.inputs import as_target, refuse
from qbvi.models.predictor import LinearPredictor

__all__ = ["Binomial"]

Floats = NDArray[np.float64]


class Binomial(LinearPredictor):
    r"""Logistic regression of successes out of a known number of trials.

    .. math:: y_i \sim \mathrm{Bin}(m_i, 1 / (1 + \exp(-\eta_i))), \qquad \eta = X \beta

    Parameters
    ----------
    X : array or frame (n, k)
        Covariates, without the column of ones.
    y : array (n,)
        Numbers of successes.
    trials : array (n,) or int
        Numbers of trials.
    intercept : bool
        Whether to add a column of ones before the others.
    weights : array (n,), optional
        How often each row counts. By default once.

    Examples
    --------
    >>> import qbvi
    >>> model = qbvi.models.Binomial([[-1.0], [0.0], [1.0]], [1, 5, 9], trials=10)
    >>> model.maximum_likelihood().estimate["x1"].round(2)
    np.float64(2.2)
    """

    trials: Floats = np.empty(0)

    def __init__(self, X: Any, y: Any, trials: Any, intercept: bool = True, weights: Any = None) -> None:
        super().__init__(X, intercept, weights)
        n = len(self.design)
        as_target(y, n)  # before the trials, so that a mistake in both is reported here
        self.trials = _trials(trials, n)
        self.y = self._target_of(y, n, self.trials)

    def _target_of(self, y: Any, n: int, *further: Floats) -> Floats:
        target = as_target(y, n)
        refuse("y", "hold whole numbers from 0", target, (target < 0) | (target % 1 != 0))
        refuse("y", "not exceed `trials`", target, target > further[0])
        return target

    def _new_weights(self, n: int, weights: Mapping[str, Any]) -> tuple[Floats, ...]:
        return (_trials(weights.get("trials", 1), n),)

    @property
    def data(self) -> tuple[Floats, ...]:
        """Design, successes and trials."""
        return self._rows_with_weights(self.design, self.y, self.trials)

    def terms_of(self, eta: Floats, *data: Floats) -> Floats:
        """Log binomial probabilities."""
        y, trials = data
        return np.asarray(
            _log_ways(y, trials) + y * scipy.special.log_expit(eta) + (trials - y) * scipy.special.log_expit(-eta)
        )

    def slope_of(self, eta: Floats, *data: Floats) -> Floats:
        """Successes less their expected number."""
        return np.asarray(data[0] - data[1] * scipy.special.expit(eta))

    def expected_of(self, mean: Floats, var: Floats, *data: Floats) -> Expected:
        """``y eta`` less the trials times the expected softplus of eta, plus a constant."""
        y, trials = data
        value, slope, curvature = expected_softplus(mean, var)
        return Expected(_log_ways(y, trials) + y * mean - trials * value, y - trials * slope, -trials * curvature)

    def predict(
        self, posterior: Any, X_new: Any = None, *, n_draws: int = 1000, seed: int = 0, trials: Any = 1
    ) -> Prediction:
        """Predict successes in the rows of ``X_new``, by default out of one trial.

        `mean` and `expected` then are probabilities.
        """
        flat, design = self._draws(posterior, n_draws, seed), self.design_of(X_new)
        of, probability = _trials(trials, len(design)), scipy.special.expit(self._predictors(flat, design))
        outcomes = self._noise(seed).binomial(of.astype(np.int64), probability).astype(float)
        return Prediction(of * probability.mean(axis=0), of * probability, outcomes)

    @property
    def _own_weights(self) -> dict[str, Any]:
        return {"trials": self.trials}

    def predicted(self, flat: Floats, eta: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Probabilities, and the outcome of one trial per row."""
        probability = scipy.special.expit(eta)
        return probability, (rng.random(eta.shape) < probability).astype(float)


def _log_ways(y: Floats, trials: Floats) -> Floats:
    """Logarithm of the number of ways to have y successes."""
    log_factorial = scipy.special.gammaln
    return np.asarray(log_factorial(trials + 1) - log_factorial(y + 1) - log_factorial(trials - y + 1))


def _trials(trials: Any, n: int) -> Floats:
    """One number of trials per row."""
    of = as_target(np.full(n, trials) if np.isscalar(trials) else trials, n, argument="trials")
    refuse("trials", "hold whole numbers from 1", of, (of < 1) | (of % 1 != 0))
    return of
