"""Regressions of numbers: linear regression, and Poisson regression of counts and rates."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from qbvi.models import Linear, Poisson
from qbvi.models.inputs import Columns, as_target, refuse
from qbvi.sklearn.inputs import checked
from qbvi.sklearn.regression import Moments, Regression

__all__ = ["LinearRegression", "PoissonRegressor"]

Floats = NDArray[np.float64]


class _Regressor(RegressorMixin, Regression):
    """What both have: `fit`, and `predict` with a standard deviation."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the posterior.

        Parameters
        ----------
        X : array or frame (n, k)
            Covariates, as numbers.
        y : array (n,)
            The target.
        sample_weight : array (n,), optional
            How often each row counts. By default once.
        """
        X, y = checked(self, X, y)
        return self._fit(X, y, sample_weight)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Posterior predictive mean of the target and, with ``return_std``, its standard deviation.

        The standard deviation is that of a new target: it includes the noise of the data and the
        uncertainty about the parameters.
        """
        check_is_fitted(self, "fit_")
        mean, sd = self._target(X)
        return (mean, sd) if return_std else mean

    def _target(self, X: Any) -> Moments:
        """Mean and standard deviation of new targets."""
        raise NotImplementedError


class LinearRegression(_Regressor):
    r"""Linear regression with a posterior of coefficients and noise.

    .. math:: y_i = a + x_i'\beta + \varepsilon_i, \qquad \varepsilon_i \sim N(0, \sigma^2)

    It has the parameters and attributes of `LogisticRegression`. The posterior ``fit_`` also has
    the noise variance, ``sigma2``.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.sklearn import LinearRegression
    >>> x = np.arange(20.0)
    >>> y = 1 + 2 * x + np.tile([0.5, -0.5], 10)
    >>> model = LinearRegression().fit(x[:, None], y)
    >>> model.coef_.round(2), model.coef_sd_.round(2)
    (array([1.99]), array([0.04]))
    >>> mean, sd = model.predict([[30.0]], return_std=True)
    >>> mean.round(1), sd.round(1)
    (array([60.8]), array([1.3]))
    """

    def _model(self, columns: Columns, y: Any, weights: Floats | None) -> Linear:
        return Linear(columns, y, self.fit_intercept, weights)

    def _target(self, X: Any) -> Moments:
        eta = self._predictor(X)
        return Moments(eta.mean, np.sqrt(eta.sd**2 + float(self.fit_.mean["sigma2"])))


class PoissonRegressor(_Regressor):
    r"""Poisson regression with a posterior of its coefficients.

    .. math:: y_i \sim \mathrm{Poisson}(\exp(a + x_i'\beta))

    The target is a count, or a rate: claims per year with the years as ``sample_weight`` have the
    likelihood of the claims, except for a factor that does not depend on the coefficients. It has
    the parameters and attributes of `LogisticRegression`.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.sklearn import PoissonRegressor
    >>> rng = np.random.default_rng(1)
    >>> X, years = rng.standard_normal((500, 1)), rng.uniform(0.5, 2.0, 500)
    >>> claims = rng.poisson(years * np.exp(-1 + 0.5 * X[:, 0]))
    >>> model = PoissonRegressor().fit(X, claims / years, sample_weight=years)
    >>> model.coef_.round(1), round(model.intercept_, 1)
    (array([0.5]), -1.0)
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def _model(self, columns: Columns, y: Any, weights: Floats | None) -> Poisson:
        return _Rates(columns, y, intercept=self.fit_intercept, weights=weights)

    def _target(self, X: Any) -> Moments:
        rate, rate_sd = self._rate(X)
        return Moments(rate, np.sqrt(rate + rate_sd**2))

    def _rate(self, X: Any) -> Moments:
        """Posterior mean and standard deviation of the rate, log-normal if Gaussian."""
        if not self._is_gaussian:
            return self._by_draws(X)
        eta = self._predictor(X)
        mean = np.exp(eta.mean + eta.sd**2 / 2)
        return Moments(mean, mean * np.sqrt(np.expm1(eta.sd**2)))


class _Rates(Poisson):
    """Poisson regression of counts over exposures, with the exposures as weights."""

    def _target_of(self, y: Any, n: int, *further: Floats) -> Floats:
        target = as_target(y, n)
        refuse("y", "hold counts or rates, numbers from 0", target, target < 0)
        return target
