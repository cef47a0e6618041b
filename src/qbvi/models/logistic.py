"""Logistic regression."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.exact import Expected, expected_softplus
from qbvi.models.inputs import as_target, refuse
from qbvi.models.predictor import LinearPredictor

__all__ = ["Logistic"]

Floats = NDArray[np.float64]


class Logistic(LinearPredictor):
    r"""Logistic regression of a binary target.

    .. math:: P(y_i = 1) = 1 / (1 + \exp(-\eta_i)), \qquad \eta = X \beta

    Parameters
    ----------
    X : array or frame (n, k)
        Covariates, without the column of ones.
    y : array (n,)
        Zeros and ones, or booleans.
    intercept : bool
        Whether to add a column of ones before the others.
    weights : array (n,), optional
        How often each row counts. By default once.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> rng = np.random.default_rng(1)
    >>> X = rng.standard_normal((200, 2))
    >>> y = rng.random(200) < 1 / (1 + np.exp(-X @ [1.0, -2.0]))
    >>> model = qbvi.models.Logistic(X, y)
    >>> fit = model.fit(seed=1)
    >>> fit.labels
    ('intercept', 'x1', 'x2')
    >>> model.predict(fit, [[2.0, 0.0]]).mean.round(1)
    array([0.9])
    """

    target_kind = "binary"

    def __init__(self, X: Any, y: Any, intercept: bool = True, weights: Any = None) -> None:
        super().__init__(X, intercept, weights)
        self.y = self._target_of(y, len(self.design))

    def _target_of(self, y: Any, n: int, *further: Floats) -> Floats:
        target = as_target(y, n)
        refuse("y", "hold zeros and ones only", target, (target != 0) & (target != 1))
        return target

    @property
    def data(self) -> tuple[Floats, ...]:
        """Design and target."""
        return self._rows_with_weights(self.design, self.y)

    def terms_of(self, eta: Floats, *data: Floats) -> Floats:
        """-log(1 + exp(-(2 y - 1) eta))."""
        return np.asarray(scipy.special.log_expit((2 * data[0] - 1) * eta))

    def slope_of(self, eta: Floats, *data: Floats) -> Floats:
        """The target less its probability."""
        return np.asarray(data[0] - scipy.special.expit(eta))

    def expected_of(self, mean: Floats, var: Floats, *data: Floats) -> Expected:
        """Minus the expected softplus of -(2 y - 1) eta."""
        sign = 1 - 2 * data[0]
        value, slope, curvature = expected_softplus(sign * mean, var)
        return Expected(-value, -sign * slope, -curvature)

    def predicted(self, flat: Floats, eta: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Probabilities, and the outcome of one trial per row."""
        probability = scipy.special.expit(eta)
        return probability, (rng.random(eta.shape) < probability).astype(float)
