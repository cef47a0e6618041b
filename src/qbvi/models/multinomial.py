"""Multinomial logistic regression: a target of several classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.exact import MultinomialBound
from qbvi.models.base import Prediction
from qbvi.models.design import DesignModel
from qbvi.models.inputs import as_classes, as_known_classes, drawn_classes

__all__ = ["MultinomialLogistic"]

Floats = NDArray[np.float64]


class MultinomialLogistic(DesignModel):
    r"""Logistic regression of a target with several classes; the first is the reference class.

    .. math::
        P(y_i = c) = \exp(\eta_{ic}) / \sum_k \exp(\eta_{ik}), \qquad
        \eta_{ic} = x_i' \beta_c, \quad \beta_1 = 0

    Parameters
    ----------
    X : array or frame (n, k)
        Covariates, without the column of ones.
    y : array (n,)
        Labels of any sortable kind.
    intercept : bool
        Whether to add a column of ones before the others.
    weights : array (n,), optional
        How often each row counts. By default once.

    Attributes
    ----------
    classes : tuple
        The sorted labels. The ``outcomes`` of a prediction are indices of them.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> rng = np.random.default_rng(1)
    >>> x = rng.standard_normal((300, 1))
    >>> noisy = x[:, 0] + 0.5 * rng.standard_normal(300)
    >>> y = np.array(["low", "mid", "top"])[np.digitize(noisy, [-0.5, 0.5])]
    >>> model = qbvi.models.MultinomialLogistic(x, y)
    >>> model.names
    ('intercept[mid]', 'x1[mid]', 'intercept[top]', 'x1[top]')
    >>> model.predict(model.fit(seed=1), [[2.0]]).mean.round(1)
    array([[0., 0., 1.]])
    """

    target_kind = "classes"
    bound = MultinomialBound

    def __init__(self, X: Any, y: Any, intercept: bool = True, weights: Any = None) -> None:
        super().__init__(X, intercept, weights)
        self.classes, self.y = as_classes(y, len(self.design))
        self._name_parameters()

    @classmethod
    def without_data(cls, columns: Sequence[str], intercept: bool = True, classes: Sequence[Any] = ()) -> Self:
        """Return a model without rows, to predict with an existing posterior.

        Parameters
        ----------
        columns, intercept
            As in the other models.
        classes
            The labels in the order of the data's classes, reference class first.

        Examples
        --------
        >>> import qbvi
        >>> model = qbvi.models.MultinomialLogistic.without_data(["age"], classes=["no", "yes"])
        >>> model.predict({"intercept[yes]": -1.0, "age[yes]": 0.5}, [[2.0]]).mean
        array([[0.5, 0.5]])
        """
        if len(classes) < 2:
            msg = f"`classes` must be two labels or more, got {list(classes)}"
            raise ValueError(msg)
        model = super().without_data(columns, intercept)
        model.classes = tuple(classes)
        model._name_parameters()
        return model

    @property
    def data(self) -> tuple[Floats, ...]:
        """Design, and the index of each row's class."""
        return self._rows_with_weights(self.design, self.y)

    def normal_prior(self, scale: float | None = None) -> dict[str, Any]:
        """Independent normals, by name, for the coefficients of all classes except the first.

        See `qbvi.models.Logistic`.
        """
        return dict(zip(self.names, self._coefficient_priors(scale) * (len(self.classes) - 1), strict=True))

    def terms(self, flat: Floats, *data: Floats) -> Floats:
        """Log probability of each row's class: (S, p) -> (S, rows)."""
        (design, y), weights = self._apart(data)
        log_probability = scipy.special.log_softmax(self._predictors(flat, design), axis=-1)
        return np.asarray(weights * log_probability[:, np.arange(len(y)), y.astype(int)])

    def _target_of(self, y: Any, n: int, *further: Floats) -> Floats:
        return as_known_classes(y, n, self.classes)

    def _name_parameters(self) -> None:
        self.names = tuple(f"{name}[{label}]" for label in self.classes[1:] for name in self.coefficients)

    def _gradient(self, flat: Floats) -> Floats:
        is_class = self.y[:, None] == np.arange(len(self.classes))
        slope = is_class - scipy.special.softmax(self._predictors(flat, self.design), axis=-1)
        if self.weights is not None:
            slope = self.weights[:, None] * slope
        by_class = np.moveaxis(slope[:, :, 1:], 1, 2) @ self.design  # (S, classes - 1, k)
        return np.asarray(by_class.reshape(len(flat), -1))

    def _prediction(self, flat: Floats, design: Floats, rng: np.random.Generator) -> Prediction:
        probability = scipy.special.softmax(self._predictors(flat, design), axis=-1)
        return Prediction(probability.mean(axis=0), probability, drawn_classes(probability, rng))

    def _predictors(self, flat: Floats, design: Floats) -> Floats:
        """Predictors of all classes, zero for the first: (S, n, classes)."""
        beta = flat.reshape(len(flat), -1, design.shape[1])
        eta = np.moveaxis(beta @ design.T, 1, 2)
        return np.concatenate([np.zeros_like(eta[:, :, :1]), eta], axis=-1)
