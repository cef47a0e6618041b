"""Poisson regression of counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.exact import Expected
from qbvi.models.base import Prediction
from qbvi.models.inputs import as_target, refuse
from qbvi.models.predictor import LinearPredictor

__all__ = ["Poisson"]

Floats = NDArray[np.float64]

_LARGEST_RATE = 1e18  # of new data; the generator has no Poisson numbers beyond it


class Poisson(LinearPredictor):
    r"""Poisson regression with a log link.

    .. math:: y_i \sim \mathrm{Poisson}(e_i \exp(\eta_i)), \qquad \eta = X \beta

    Parameters
    ----------
    X : array or frame (n, k)
        Covariates, without the column of ones.
    y : array (n,)
        Counts.
    exposure : array (n,) or float
        Time or population at risk :math:`e_i`. By default one.
    intercept : bool
        Whether to add a column of ones before the others.
    weights : array (n,), optional
        How often each row counts. By default once.

    Examples
    --------
    >>> import qbvi
    >>> model = qbvi.models.Poisson([[0.0], [1.0]], [2, 6])
    >>> model.maximum_likelihood().estimate["x1"].round(3)  # log 3
    np.float64(1.099)
    """

    exposure: Floats = np.empty(0)

    def __init__(self, X: Any, y: Any, exposure: Any = 1.0, intercept: bool = True, weights: Any = None) -> None:
        super().__init__(X, intercept, weights)
        n = len(self.design)
        as_target(y, n)  # before the exposures, so that a mistake in both is reported here
        self.exposure = _exposures(exposure, n)
        self.y = self._target_of(y, n)

    def _target_of(self, y: Any, n: int, *further: Floats) -> Floats:
        target = as_target(y, n)
        refuse("y", "hold counts, whole numbers from 0", target, (target < 0) | (target % 1 != 0))
        return target

    def _new_weights(self, n: int, weights: Mapping[str, Any]) -> tuple[Floats, ...]:
        return (_exposures(weights.get("exposure", 1.0), n),)

    @property
    def data(self) -> tuple[Floats, ...]:
        """Design, counts and exposures."""
        return self._rows_with_weights(self.design, self.y, self.exposure)

    def terms_of(self, eta: Floats, *data: Floats) -> Floats:
        """Log Poisson probabilities; minus infinity if the rate overflows."""
        y, exposure = data
        log_rate = eta + np.log(exposure)
        with np.errstate(over="ignore"):
            return np.asarray(y * log_rate - np.exp(log_rate) - scipy.special.gammaln(y + 1))

    def slope_of(self, eta: Floats, *data: Floats) -> Floats:
        """Counts less their rates."""
        with np.errstate(over="ignore"):
            return np.asarray(data[0] - data[1] * np.exp(eta))

    def expected_of(self, mean: Floats, var: Floats, *data: Floats) -> Expected:
        """In closed form: the expected rate is that of eta + var / 2."""
        y, exposure = data
        with np.errstate(over="ignore", invalid="ignore"):
            rate = exposure * np.exp(mean + var / 2)
            value = y * (mean + np.log(exposure)) - rate - scipy.special.gammaln(y + 1)
        return Expected(value, y - rate, -rate)

    def predict(
        self, posterior: Any, X_new: Any = None, *, n_draws: int = 1000, seed: int = 0, exposure: Any = 1.0
    ) -> Prediction:
        """Predict counts for the rows of ``X_new``, by default for an exposure of one."""
        flat, design = self._draws(posterior, n_draws, seed), self.design_of(X_new)
        eta = self._predictors(flat, design) + np.log(_exposures(exposure, len(design)))
        expected, outcomes = self.predicted(flat, eta, self._noise(seed))
        return Prediction(expected.mean(axis=0), expected, outcomes)

    @property
    def _own_weights(self) -> dict[str, Any]:
        return {"exposure": self.exposure}

    def predicted(self, flat: Floats, eta: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Rates and counts."""
        rate = np.exp(eta)
        return rate, rng.poisson(np.minimum(rate, _LARGEST_RATE)).astype(float)

    def _scale_of_target(self) -> tuple[float, float]:
        weights = np.ones_like(self.y) if self.weights is None else self.weights
        return math.log(max(float(weights @ self.y), 0.5) / float(weights @ self.exposure)), 1.0


def _exposures(exposure: Any, n: int) -> Floats:
    """One exposure per row."""
    exposures = as_target(np.full(n, exposure) if np.isscalar(exposure) else exposure, n, argument="exposure")
    refuse("exposure", "be positive", exposures, exposures <= 0)
    return exposures
