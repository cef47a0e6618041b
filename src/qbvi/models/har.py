"""HAR: the heterogeneous autoregressive model of realized volatility (Corsi, 2009)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from qbvi.arguments import flag
from qbvi.models.base import Prediction
from qbvi.models.inputs import Columns, as_series, refuse, refuse_targets_of_series
from qbvi.models.linear import Linear

__all__ = ["HAR"]

Floats = NDArray[np.float64]

_SPANS = {"daily": 1, "weekly": 5, "monthly": 22}


class HAR(Linear):
    r"""Volatility of a day from averages over the last day, week and month, with Gaussian noise.

    .. math::
        \log v_t = \beta_0 + \beta_1 \log v_{t-1} + \beta_2 \log \bar v_{t-5:t-1}
            + \beta_3 \log \bar v_{t-22:t-1} + \varepsilon_t

    Parameters
    ----------
    volatility : array (T,)
        Realized volatility, one number per trading day, oldest first. The first 22 days serve only
        as regressors.
    log : bool
        Whether to take logarithms of the volatility and of the averages.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> rng = np.random.default_rng(1)
    >>> volatility = np.exp(rng.standard_normal(100))
    >>> model = qbvi.models.HAR(volatility)
    >>> model
    HAR(78 rows; parameters intercept, daily, weekly, monthly, sigma2)
    >>> model.forecast(model.maximum_likelihood()).mean.shape  # the day after the last
    (1,)
    """

    def __init__(self, volatility: Any, log: bool = True) -> None:
        longest = max(_SPANS.values())
        self.log = flag("log", log)
        self.volatility = self._checked(volatility, longest + 2)
        columns = Columns(_averages(self.volatility, log)[:-1], tuple(_SPANS))
        target = self._scaled(self.volatility[longest:])
        super().__init__(columns, target)

    @classmethod
    def without_data(cls, columns: Sequence[str], intercept: bool = True) -> Self:
        """Raise an error: a prediction needs the days before it."""
        msg = "HAR predicts from the last 22 days of its series: build it with HAR(volatility)"
        raise TypeError(msg)

    def predict(self, posterior: Any, X_new: Any = None, *, n_draws: int = 1000, seed: int = 0) -> Prediction:
        """Predict one day ahead, on the scale of the regression, for the data or for later days.

        Parameters
        ----------
        posterior, n_draws, seed
            As in the other models.
        X_new
            Volatility of the days that follow the series; each is predicted from the days before
            it.
        """
        averages = None if X_new is None else self._averages_after(self._checked(X_new, 1))[:-1]
        return super().predict(posterior, averages, n_draws=n_draws, seed=seed)

    def forecast(self, posterior: Any, *, n_draws: int = 1000, seed: int = 0) -> Prediction:
        """Predict the day after the last, on the scale of the regression."""
        return super().predict(posterior, self._averages_after(np.empty(0)), n_draws=n_draws, seed=seed)

    def _new_terms(self, flat: Floats, X_new: Any, y_new: Any, weights: Mapping[str, Any]) -> tuple[Floats, Floats]:
        if X_new is None and y_new is None:
            return super()._new_terms(flat, None, None, weights)
        refuse_targets_of_series(y_new, weights)
        later = self._checked(X_new, 1)
        whole = type(self)(np.concatenate([self.volatility, later]), log=self.log)
        return whole.log_likelihood_terms(flat)[:, -len(later) :], self._scaled(later)

    def _averages_after(self, later: Floats) -> Floats:
        return _averages(np.concatenate([self.volatility[-max(_SPANS.values()) :], later]), self.log)

    def _checked(self, volatility: Any, least: int) -> Floats:
        series = as_series(volatility, least, argument="volatility")
        if self.log:
            refuse("volatility", "be positive, as its logarithm is taken (else log=False),", series, series <= 0)
        return series

    def _scaled(self, values: Floats) -> Floats:
        return np.log(values) if self.log else values


def _averages(series: Floats, log: bool) -> Floats:
    """Averages over the last day, week and month before each day: (T - 21, 3).

    The days are those from the 23rd on, and the one after the last.
    """
    longest = max(_SPANS.values())
    windows = [sliding_window_view(series[longest - span :], span).mean(axis=1) for span in _SPANS.values()]
    averages = np.column_stack(windows)
    return np.log(averages) if log else averages
