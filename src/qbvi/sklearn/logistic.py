"""Logistic regression of two classes or more."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from qbvi.exact import expected_softplus
from qbvi.models import Logistic, MultinomialLogistic
from qbvi.models.design import DesignModel
from qbvi.models.inputs import Columns
from qbvi.sklearn.inputs import checked
from qbvi.sklearn.regression import Moments, Regression

__all__ = ["LogisticRegression"]

Floats = NDArray[np.float64]


class LogisticRegression(ClassifierMixin, Regression):
    r"""Logistic regression with a posterior of its coefficients.

    Two classes have one linear predictor. Of three classes or more, each except the first has one,
    and the coefficients of the first are zero (`qbvi.models.MultinomialLogistic`).

    Parameters
    ----------
    prior : float, distribution, dict, or None
        Prior of the coefficients, except the intercept:

        - None: wide in the units of the data. The effect of one standard deviation of a column has
          a standard deviation of 2.5.
        - A number: the standard deviation of normal priors around zero.
        - A distribution, such as ``qbvi.StudentT(3, 0, 1)``: that of every coefficient.
        - A dict of distributions by the name of a column, or ``"intercept"``; the others keep
          theirs.
    fit_intercept : bool
        Whether there is an intercept.
    method : str
        As in `qbvi.models`: ``"auto"`` is the best Gaussian by integrals over the rows if the
        priors are normal, and the default of `qbvi.fit` otherwise.
    n_draws : int
        Draws of the posterior behind a prediction, where its integral is not known in closed form.
    options : dict, optional
        Further options of `qbvi.fit`, such as ``{"tol": 0.1, "max_evals": 2000}``.
    random_state : int, numpy.random.RandomState or None
        Seed of the fit and of ``n_draws``.

    Attributes
    ----------
    coef_, coef_sd_ : array (1, k), or (classes, k)
        Posterior means and standard deviations. A column that is constant in the training rows has
        a coefficient of zero, and a standard deviation of NaN.
    intercept_, intercept_sd_ : array (1,), or (classes,)
        Those of the intercept.
    evidence_ : float
        Log evidence, to compare estimators that were fitted to the same rows.
    fit_ : qbvi.Fit
        The posterior, with all its diagnostics.
    classes_ : array
        The labels.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.sklearn import LogisticRegression
    >>> rng = np.random.default_rng(1)
    >>> X = rng.standard_normal((200, 2))
    >>> y = np.where(rng.random(200) < 1 / (1 + np.exp(-X @ [1.0, -2.0])), "yes", "no")
    >>> model = LogisticRegression(prior=2.5).fit(X, y)
    >>> model.coef_.round(1), model.coef_sd_.round(1)
    (array([[ 1.3, -2. ]]), array([[0.3, 0.3]]))
    >>> model.predict_proba([[2.0, 0.0]]).round(2)
    array([[0.08, 0.92]])
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the posterior.

        Parameters
        ----------
        X : array or frame (n, k)
            Covariates, as numbers.
        y : array (n,)
            Labels.
        sample_weight : array (n,), optional
            How often each row counts. By default once.
        """
        X, y = checked(self, X, y, numeric=False)
        check_classification_targets(y)
        self.classes_, positions = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            msg = f"`y` must have two classes or more, got one class, {self.classes_[0]!r}"
            raise ValueError(msg)
        return self._fit(X, positions, sample_weight)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def predict_proba(self, X: Any, return_std: bool = False) -> Any:
        """Probabilities of the classes, averaged over the posterior: (n, classes).

        With ``return_std`` also their posterior standard deviations.
        """
        check_is_fitted(self, "fit_")
        mean, sd = self._by_draws(X) if self._is_multinomial else self._two(X)
        return (mean, sd) if return_std else mean

    def predict_log_proba(self, X: Any) -> Floats:
        """Logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> NDArray[Any]:
        """Draw classes for the rows of ``X``: (n, n_samples)."""
        positions = super().sample_y(X, n_samples, random_state)
        return np.asarray(self.classes_[positions.astype(int)])

    @property
    def _is_multinomial(self) -> bool:
        return len(self.classes_) > 2

    def _model(self, columns: Columns, y: Any, weights: Floats | None) -> DesignModel:
        if self._is_multinomial:
            return MultinomialLogistic(columns, y, self.fit_intercept, weights)
        return Logistic(columns, y, self.fit_intercept, weights)

    def _without_data(self, model: DesignModel) -> DesignModel:
        if not isinstance(model, MultinomialLogistic):
            return super()._without_data(model)
        return MultinomialLogistic.without_data(model.columns, model.intercept, model.classes)

    def _slopes(self, model: DesignModel) -> tuple[str, ...]:
        if not isinstance(model, MultinomialLogistic):
            return super()._slopes(model)
        return tuple(f"{name}[{label}]" for label in model.classes[1:] for name in model.columns)

    def _set_coefficients(self) -> None:
        if not self._is_multinomial:
            super()._set_coefficients()
            self.coef_, self.coef_sd_ = self.coef_[None], self.coef_sd_[None]
            self.intercept_, self.intercept_sd_ = np.array([self.intercept_]), np.array([self.intercept_sd_])
            return
        first, shape = int(self.fit_intercept), (len(self.classes_) - 1, -1)
        means, sds = (
            np.array([float(part[name]) for name in self._bare_model.names]).reshape(shape)
            for part in (self.fit_.mean, self.fit_.sd)
        )
        zero = np.zeros((1, len(self._varies)))
        self.coef_ = np.vstack([zero, *(self._over_columns(row[first:], 0.0) for row in means)])
        self.coef_sd_ = np.vstack([zero, *(self._over_columns(row[first:], np.nan) for row in sds)])
        self.intercept_, self.intercept_sd_ = (
            np.append(0.0, part[:, 0] if first else np.zeros(len(part))) for part in (means, sds)
        )

    def _two(self, X: Any) -> Moments:
        """Both classes: integrals over the Gaussian of the predictor, or draws."""
        mean, sd = self._gaussian(X) if self._is_gaussian else self._by_draws(X)
        return Moments(np.column_stack([1 - mean, mean]), np.column_stack([sd, sd]))

    def _gaussian(self, X: Any) -> Moments:
        """Moments of p = expit(eta). As p' = p - p^2, the second moment is E p less E p'."""
        eta = self._predictor(X)
        _, mean, slope = expected_softplus(eta.mean, eta.sd**2)
        return Moments(mean, np.sqrt(np.maximum(mean - slope - mean**2, 0.0)))
