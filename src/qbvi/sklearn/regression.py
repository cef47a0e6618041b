"""What the regressions share: covariates, priors, and the posterior of a linear predictor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from numbers import Real
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from qbvi.arguments import positive_number, shown, whole_number
from qbvi.distributions import Distribution, Normal
from qbvi.families import DiagonalGaussian, Family, Gaussian, InverseGamma
from qbvi.models.design import DesignModel
from qbvi.models.inputs import Columns
from qbvi.naming import nearest
from qbvi.sklearn.inputs import checked_weights, new_rows, seed_of, warn_unless_converged

__all__ = ["Moments", "Regression"]

Floats = NDArray[np.float64]

_PORTION = 2**22  # predicted numbers that are held at once: 32 MB


class Moments(NamedTuple):
    """Mean and standard deviation of a prediction for each row: (n,), or (n, classes)."""

    mean: Floats
    sd: Floats


class Regression(BaseEstimator, ABC):
    """A ready-made model of `qbvi.models` as an estimator.

    A subclass gives the model of its data and its predictions. scikit-learn finds the parameters of
    an estimator in the signature of its ``__init__``, so this one serves all of them.
    """

    def __init__(
        self,
        prior: Any = None,
        *,
        fit_intercept: bool = True,
        method: str = "auto",
        n_draws: int = 1000,
        options: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.prior = prior
        self.fit_intercept = fit_intercept
        self.method = method
        self.n_draws = n_draws
        self.options = options
        self.random_state = random_state

    coef_: Floats
    coef_sd_: Floats
    intercept_: Any  # a number, or an array with one for each row of coef_
    intercept_sd_: Any

    @abstractmethod
    def _model(self, columns: Columns, y: Any, weights: Floats | None) -> DesignModel:
        """The model of the training rows."""

    @property
    def evidence_(self) -> float:
        """Log evidence of the training rows; ``fit_.evidence_se`` is its standard error."""
        check_is_fitted(self, "fit_")
        return float(self.fit_.evidence)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> NDArray[Any]:
        """Draw new targets for the rows of ``X``, one draw of the parameters for each.

        Parameters
        ----------
        X : array or frame (n, k)
            Rows.
        n_samples
            Number of draws.
        random_state
            Seed of the draws.

        Returns
        -------
        array (n, n_samples)
        """
        check_is_fitted(self, "fit_")
        n_draws, seed = whole_number("n_samples", n_samples), seed_of(random_state)
        return self._bare_model.predict(self.fit_, self._rows(X), n_draws=n_draws, seed=seed).outcomes.T

    def _fit(self, X: Floats, y: Any, sample_weight: Any) -> Self:
        weights = checked_weights(sample_weight, X)
        if weights is not None:
            X, y, weights = X[weights > 0], y[weights > 0], weights[weights > 0]
        self._varies = np.ptp(X, axis=0) > 0
        if not self._varies.any():
            msg = f"`X` must have a column that varies, got only constant ones in its rows (n_samples={len(X)})"
            raise ValueError(msg)
        self._names = tuple(map(str, getattr(self, "feature_names_in_", [f"x{j}" for j in range(X.shape[1])])))
        kept = tuple(name for name, varies in zip(self._names, self._varies, strict=True) if varies)
        model = self._model(Columns(X[:, self._varies], kept), y, weights)
        self._seed = seed_of(self.random_state)
        self.fit_ = model.fit(self._prior(model), seed=self._seed, **self._fit_options())
        warn_unless_converged(self.fit_)
        self._bare_model = self._without_data(model)
        self._set_coefficients()
        return self

    def _fit_options(self) -> dict[str, Any]:
        return {"method": self.method, **(self.options or {})}

    def _without_data(self, model: DesignModel) -> DesignModel:
        return type(model).without_data(model.columns, model.intercept)

    def _slopes(self, model: DesignModel) -> tuple[str, ...]:
        """Names of the coefficients of columns, without intercepts."""
        return model.columns

    def _prior(self, model: DesignModel) -> dict[str, Any]:
        """The model's own prior, with what the user has given in its place."""
        own: dict[str, Any] = model.prior
        if self.prior is None:
            return own
        if isinstance(self.prior, Real):
            return own | dict.fromkeys(self._slopes(model), Normal(0.0, positive_number("prior", self.prior)))
        if isinstance(self.prior, Distribution):
            return own | dict.fromkeys(self._slopes(model), self.prior)
        if isinstance(self.prior, Mapping):
            return own | {name: prior for name, prior in self.prior.items() if self._is_among(name, own)}
        msg = (
            "`prior` must be None, a standard deviation, a distribution for every coefficient, or a dict of distributions by "
            f"name, got {shown(self.prior)}"
        )
        raise TypeError(msg)

    def _is_among(self, name: Any, own: Mapping[str, Any]) -> bool:
        """Whether a name is a parameter's; a column that is constant in these rows has none."""
        if name not in own and name not in self._names:
            msg = f"`prior` must have names among {', '.join(own)}, got {name!r}{nearest(str(name), own)}"
            raise ValueError(msg)
        return name in own

    def _set_coefficients(self) -> None:
        """Posterior means and standard deviations, as scikit-learn names them."""
        k, first = len(self._bare_model.coefficients), int(self.fit_intercept)
        self._mean = np.array([float(self.fit_.mean[name]) for name in self._bare_model.coefficients])
        self._cov = self.fit_.cov_matrix[:k, :k]
        sd = np.sqrt(np.diagonal(self._cov))
        self.coef_, self.coef_sd_ = self._over_columns(self._mean[first:], 0.0), self._over_columns(sd[first:], np.nan)
        self.intercept_, self.intercept_sd_ = (float(self._mean[0]), float(sd[0])) if first else (0.0, 0.0)

    def _over_columns(self, values: Floats, otherwise: float) -> Floats:
        """Values of the columns of the model as values of all columns."""
        spread = np.full(len(self._varies), otherwise)
        spread[self._varies] = values
        return spread

    def _rows(self, X: Any) -> Floats:
        """New rows, without the columns that the model does not have."""
        return new_rows(self, X)[:, self._varies]

    def _predictor(self, X: Any) -> Moments:
        """Posterior mean and standard deviation of the linear predictor."""
        design = self._bare_model.design_of(self._rows(X))
        return Moments(design @ self._mean, np.sqrt(np.einsum("ij,jk,ik->i", design, self._cov, design)))

    @property
    def _is_gaussian(self) -> bool:
        """Whether the coefficients have a Gaussian posterior, whose integrals are known."""
        family = self.fit_.family
        kinds = (Gaussian, DiagonalGaussian, InverseGamma)
        return isinstance(family, Family) and all(isinstance(part.family, kinds) for part in family.independent_parts)

    def _by_draws(self, X: Any) -> Moments:
        """Mean and standard deviation, over draws of the posterior, of the expected target."""
        rows, draws = self._rows(X), self.fit_.sample(whole_number("n_draws", self.n_draws), self._seed)
        size = max(1, _PORTION // (self.n_draws * max(1, len(getattr(self, "classes_", ())))))
        parts = (self._bare_model.predict(draws, rows[i : i + size]).expected for i in range(0, len(rows), size))
        moments = [(part.mean(axis=0), part.std(axis=0)) for part in parts]
        return Moments(*(np.concatenate(column) for column in zip(*moments, strict=True)))
