"""Models with one linear predictor: what a generalised linear model implements and inherits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.exact import Expected
from qbvi.models.base import Prediction
from qbvi.models.design import DesignModel
from qbvi.models.inputs import Columns

__all__ = ["LinearPredictor"]

Floats = NDArray[np.float64]

_PORTION = 2**22  # values of rows at draws that are computed at once: 32 MB for each array of them


class LinearPredictor(DesignModel):
    """A model of rows through ``eta = design @ coefficients``.

    A subclass implements the log-likelihood of a row as a function of ``eta``, its derivative, its
    expectation for a Gaussian ``eta``, the mean, and new data. Parameters other than the
    coefficients follow the data, as columns (S, 1).
    """

    @abstractmethod
    def terms_of(self, eta: Floats, *data: Floats) -> Floats:
        """Log-likelihood of every row, given its predictor: (S, n) -> (S, n)."""

    @abstractmethod
    def slope_of(self, eta: Floats, *data: Floats) -> Floats:
        """Derivative of `terms_of` by the predictor: (S, n) -> (S, n)."""

    @abstractmethod
    def expected_of(self, mean: Floats, var: Floats, *data: Floats) -> Expected:
        """Expected log-likelihood of every row whose predictor is N(mean, var): (n,) -> (n,).

        With the first two derivatives by the mean, for ``method="exact"``.
        """

    @abstractmethod
    def predicted(self, flat: Floats, eta: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Means and new data, both (S, n), from parameters (S, p) and predictors (S, n)."""

    def normal_prior(self, scale: float | None = None) -> dict[str, Any]:
        """Independent normals for the coefficients, by name.

        Parameters
        ----------
        scale
            Their common standard deviation, around zero; ``5**0.5`` is the paper's. By default the
            effect of one standard deviation of each covariate has a standard deviation of 2.5, so
            that units and origin of the columns do not matter.
        """
        return dict(zip(self.coefficients, self._coefficient_priors(scale), strict=True))

    def terms(self, flat: Floats, *data: Floats) -> Floats:
        """Log-likelihood of every row at every draw: (S, p) -> (S, rows)."""
        (design, *rest), weights = self._apart(data)
        return np.asarray(weights * self.terms_of(self._predictors(flat, design), *rest, *self._others(flat)))

    def expected_terms(self, mean: Floats, var: Floats, *data: Floats) -> Expected:
        """`expected_of`, times the weights of the rows, if they are the last of ``data``."""
        own, weights = self._apart(data)
        found = self.expected_of(mean, var, *own)
        return found if self.weights is None else Expected(*(weights * part for part in found))

    def rows(self, params: Any, batch: tuple[Floats, ...]) -> Any:
        """Log-likelihood of a batch of the rows of `data`, in portions that fit into memory."""
        flat, is_one = self._laid_out(params)
        size = max(1, _PORTION // len(flat))
        portions = (tuple(part[i : i + size] for part in batch) for i in range(0, max(len(batch[0]), 1), size))
        total = sum(self.terms(flat, *portion).sum(axis=-1) for portion in portions)
        return float(total[0]) if is_one else total

    def _gradient(self, flat: Floats) -> Floats:
        (design, *rest), weights = self._apart(self.data)
        return np.asarray(
            (weights * self.slope_of(self._predictors(flat, design), *rest, *self._others(flat))) @ design
        )

    def _lay_out(self, columns: Columns, intercept: bool) -> None:
        super()._lay_out(columns, intercept)
        self.names = self.coefficients + self.further_names

    def _prediction(self, flat: Floats, design: Floats, rng: np.random.Generator) -> Prediction:
        expected, outcomes = self.predicted(flat, self._predictors(flat, design), rng)
        return Prediction(expected.mean(axis=0), expected, outcomes)

    def _predictors(self, flat: Floats, design: Floats) -> Floats:
        return np.asarray(flat[:, : len(self.coefficients)] @ design.T)

    def _others(self, flat: Floats) -> list[Floats]:
        return [flat[:, [j]] for j in range(len(self.coefficients), flat.shape[1])]

    def _flat(self, params: Mapping[str, Any]) -> Floats:
        """Also accepts all coefficients as one vector named ``beta``, for a joint prior."""
        others = self.names[len(self.coefficients) :]
        if not self._is_joint(params) or set(params) != {"beta", *others}:
            return super()._flat(params)
        rest = [np.asarray(params[name], dtype=np.float64)[..., None] for name in others]
        return np.concatenate([np.asarray(params["beta"], dtype=np.float64), *rest], axis=-1)

    def _structured(self, flat: Floats, like: Mapping[str, Any]) -> dict[str, Floats]:
        k = len(self.coefficients)
        if not self._is_joint(like):
            return super()._structured(flat, like)
        return {"beta": flat[..., :k]} | {name: flat[..., k + j] for j, name in enumerate(self.names[k:])}

    def _is_joint(self, params: Mapping[str, Any]) -> bool:
        return "beta" in params and "beta" not in self.coefficients
