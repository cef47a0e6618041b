"""Linear regression with Gaussian noise of unknown variance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.distributions import InverseGamma
from qbvi.exact import Expected
from qbvi.models.inputs import as_varying_target
from qbvi.models.predictor import LinearPredictor
from qbvi.points import is_named

__all__ = ["Linear"]

Floats = NDArray[np.float64]


class Linear(LinearPredictor):
    r"""Linear regression; the noise variance has an inverse-gamma prior.

    .. math::
        y_i = \eta_i + \varepsilon_i, \quad \varepsilon_i \sim N(0, \sigma^2), \qquad
        \eta = X \beta

    Parameters
    ----------
    X : array or frame (n, k)
        Covariates, without the column of ones.
    y : array (n,)
        The target.
    intercept : bool
        Whether to add a column of ones before the others.
    weights : array (n,), optional
        How often each row counts. By default once.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> x = np.arange(20.0)
    >>> noise = np.tile([0.5, -0.5], 10)
    >>> model = qbvi.models.Linear(x[:, None], 1 + 2 * x + noise)
    >>> fit = model.fit(seed=1)
    >>> fit.labels
    ('intercept', 'x1', 'sigma2')
    >>> round(float(fit.mean["x1"]), 1)
    2.0
    """

    further_names = ("sigma2",)

    def __init__(self, X: Any, y: Any, intercept: bool = True, weights: Any = None) -> None:
        super().__init__(X, intercept, weights)
        if "sigma2" in self.coefficients:
            msg = "`X` has a column named 'sigma2', the name of the noise variance: rename it"
            raise ValueError(msg)
        self.y = as_varying_target(y, len(self.design))

    @property
    def data(self) -> tuple[Floats, ...]:
        """Design and target."""
        return self._rows_with_weights(self.design, self.y)

    def normal_prior(self, scale: float | None = None) -> dict[str, Any]:
        """Independent normals for the coefficients, and an inverse gamma for the variance.

        The inverse gamma has the weight of two rows with a twentieth of the target's variance.
        """
        return super().normal_prior(scale) | {"sigma2": InverseGamma(1.0, 0.05 * float(self._moments(self.y)[1]) ** 2)}

    def terms_of(self, eta: Floats, *data: Floats) -> Floats:
        """Log normal densities, given the target and the variance (S, 1)."""
        y, sigma2 = data
        with np.errstate(invalid="ignore", divide="ignore"):  # no density for a variance <= 0: NaN
            return np.asarray(-0.5 * ((y - eta) ** 2 / sigma2 + np.log(2 * np.pi * sigma2)))

    def slope_of(self, eta: Floats, *data: Floats) -> Floats:
        """Residuals over the variance."""
        y, sigma2 = data
        return np.asarray((y - eta) / sigma2)

    def expected_of(self, mean: Floats, var: Floats, *data: Floats) -> Expected:
        """In closed form, for a variance of one, by which the method then divides."""
        residual = data[0] - mean
        return Expected(-0.5 * (residual**2 + var + math.log(2 * math.pi)), residual, np.full_like(mean, -1.0))

    def _exact_family(self, prior: Any, family: Any) -> Any:
        """An inverse gamma for the variance, which is its exact posterior given the coefficients.

        A Gaussian of its logarithm would be skewed away from that, and would gain nothing by being
        joint: variance and coefficients are dependent, but hardly correlated.
        """
        is_auto = isinstance(family, str) and family == "auto"
        is_conjugate = is_named(prior) and isinstance(prior.get("sigma2"), InverseGamma)
        return {"sigma2": "inverse-gamma"} if is_auto and is_conjugate else family

    def _gradient(self, flat: Floats) -> Floats:
        sigma2 = flat[:, -1:]
        residual = self.y - flat[:, :-1] @ self.design.T
        weights = 1.0 if self.weights is None else self.weights
        by_variance = 0.5 * np.sum(weights * (residual**2 / sigma2**2 - 1 / sigma2), axis=1, keepdims=True)
        return np.concatenate([super()._gradient(flat), by_variance], axis=1)

    def predicted(self, flat: Floats, eta: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Means, and means plus noise."""
        return eta, eta + np.sqrt(flat[:, -1:]) * rng.standard_normal(eta.shape)

    def _scale_of_target(self) -> tuple[float, float]:
        mean, sd = self._moments(self.y)
        return float(mean), float(sd)
