"""Models with covariates: design matrix, names, and prior scales that suit the units."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import flag
from qbvi.arrange import arrange
from qbvi.distributions import Normal
from qbvi.exact import Columns as ExactColumns
from qbvi.exact import Exact, ExactBound
from qbvi.model import Model
from qbvi.models.base import Prediction, StatisticalModel
from qbvi.models.inputs import Columns, as_columns, as_target, as_weights, matching_columns
from qbvi.points import is_named

__all__ = ["DesignModel"]

Floats = NDArray[np.float64]

# Options that mean a black box: its earlier values, or where its calls are made.
_BLACK_BOX = ("evaluations", "executor", "timeout", "backend", "device", "dtype")
_WIDTH = 2.5  # prior standard deviation of the effect of one standard deviation of a covariate


class DesignModel(StatisticalModel):
    """A model of rows through ``design @ coefficients``, with a gradient.

    Attributes
    ----------
    design : array (n, k)
        Covariates, after a column of ones if there is an intercept.
    coefficients : tuple of str
        Their names: ``intercept``, then the columns of a frame, or ``x1, x2 ...``.
    weights : array (n,), optional
        How often each row counts; they need not be whole numbers. If given, they are the last
        array of `data`.
    """

    further_names: tuple[str, ...] = ()  # names of the parameters other than the coefficients
    bound: ClassVar[type[ExactBound]] = ExactBound  # what `method="exact"` integrates with
    y: Floats = np.empty(0)  # a model without data has no rows
    weights: Floats | None = None  # of the rows; None if each counts once

    def __init__(self, X: Any, intercept: bool, weights: Any = None) -> None:
        flag("intercept", intercept)
        columns = as_columns(X)
        self.weights = None if weights is None else as_weights(weights, len(columns.values))
        _check_constants(columns, intercept)
        if intercept and "intercept" in columns.names:
            msg = "`X` has a column named 'intercept': rename it, or pass intercept=False"
            raise ValueError(msg)
        self._lay_out(columns, intercept)

    @classmethod
    def without_data(cls, columns: Sequence[str], intercept: bool = True) -> Self:
        """Return a model without rows, to predict with an existing posterior, such as a saved one.

        Parameters
        ----------
        columns
            Names of the covariates, in the order of the coefficients.
        intercept
            Whether the first coefficient is the intercept.

        Examples
        --------
        >>> import qbvi
        >>> model = qbvi.models.Logistic.without_data(["age"])
        >>> model.predict({"intercept": -1.0, "age": 0.5}, [[2.0]]).mean
        array([0.5])
        """
        model = cls.__new__(cls)
        model._lay_out(Columns(np.empty((0, len(columns))), tuple(columns)), intercept)
        return model

    @property
    def prior(self) -> Any:
        """Independent normals that are wide in the units of the data; see `normal_prior`."""
        return self.normal_prior()

    @abstractmethod
    def normal_prior(self, scale: float | None = None) -> dict[str, Any]:
        """Independent normals for the coefficients, by name.

        Parameters
        ----------
        scale
            Their common standard deviation, around zero; ``5**0.5`` is the paper's. By default the
            effect of one standard deviation of each covariate has a standard deviation of 2.5, so
            that units and origin of the columns do not matter.
        """

    def gradient(self, params: Any) -> Any:
        """Gradient of `log_likelihood` by the parameters, in their structure.

        For `qbvi.baselines.CGVB` with ``vectorized=True``.
        """
        flat, is_one = self._laid_out(params)
        by_flat = self._gradient(flat)
        by_flat = by_flat[0] if is_one else by_flat
        return self._structured(by_flat, params) if is_named(params) else by_flat

    def predict(self, posterior: Any, X_new: Any = None, *, n_draws: int = 1000, seed: int = 0) -> Prediction:
        """Predict the rows of ``X_new``, by default those of the data.

        Parameters
        ----------
        posterior
            A `qbvi.Fit`, chains of `qbvi.baselines.mcmc`, a maximum-likelihood estimate, or draws
            of the parameters.
        X_new
            Covariates without the intercept: a frame with the column names of ``X``, or an array
            with its columns.
        n_draws, seed
            Number of draws from a fit, and the seed for them and for new data.
        """
        flat = self._draws(posterior, n_draws, seed)
        return self._prediction(flat, self.design_of(X_new), self._noise(seed))

    def design_of(self, X_new: Any = None) -> Floats:
        """Design matrix of new rows, with covariates as in `predict`; by default of the data."""
        return self.design if X_new is None else _with_intercept(matching_columns(X_new, self.columns), self.intercept)

    def _new_data(self, X_new: Any, y_new: Any, weights: Mapping[str, Any]) -> tuple[Floats, ...]:
        design = self.design_of(X_new)
        further = self._new_weights(len(design), weights)
        # A new row counts once, whatever the weights of the data are.
        once = () if self.weights is None else (np.ones(len(design)),)
        return design, self._target_of(y_new, len(design), *further), *further, *once

    def _target_of(self, y: Any, n: int, *further: Floats) -> Floats:
        """The checked target of n rows."""
        return as_target(y, n)

    def _new_weights(self, n: int, weights: Mapping[str, Any]) -> tuple[Floats, ...]:
        """The checked trials or exposures of n new rows, if the model has such a thing."""
        if weights:
            msg = f"{type(self).__name__} takes no {', '.join(weights)}"
            raise TypeError(msg)
        return ()

    def _options(self, prior: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        """With the method "exact", by name or by default if it can fit this posterior."""
        method = options.get("method", "auto")
        if not isinstance(method, str) or method not in ("auto", "exact"):
            return dict(options)
        family = self._exact_family(prior, options.get("family", "auto"))
        model, posterior = arrange(prior, family)
        exact = Exact(self, self._columns_of(model), options.get("tol"), self.bound)
        objection = exact.objection(model, posterior)
        is_black_box = any(options.get(name) is not None for name in _BLACK_BOX)
        if not objection and (method == "exact" or not is_black_box):
            return {**options, "method": exact, "family": family}
        if method == "exact":
            msg = f"`method` can be 'exact' only where all integrals are known: {objection}; take method='auto'"
            raise ValueError(msg)
        return dict(options)

    def _exact_family(self, prior: Any, family: Any) -> Any:
        """The family that "auto" means for the method "exact"."""
        return family

    def _columns_of(self, model: Model) -> ExactColumns:
        """Where the parameters are among the coordinates of the model.

        Each coordinate has its number over their number as its value: no map overflows there.
        """
        numbered, _ = self._laid_out(model.constrain(np.arange(model.dim)[None] / model.dim))
        coefficients = np.rint(model.dim * numbered[0, : len(self.names) - len(self.further_names)]).astype(np.intp)
        return ExactColumns(coefficients, *self.further_names)

    def _lay_out(self, columns: Columns, intercept: bool) -> None:
        self.columns, self.intercept = columns.names, intercept
        self.design = _with_intercept(columns.values, intercept)
        self.coefficients = (("intercept",) if intercept else ()) + columns.names

    def _noise(self, seed: int) -> np.random.Generator:
        """Generator of new data, independent of the draws of the parameters."""
        return np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])

    @property
    def total_weight(self) -> float:
        """Number of rows, each counted by its weight."""
        return float(len(self.design) if self.weights is None else self.weights.sum())

    def _rows_with_weights(self, *columns: Floats) -> tuple[Floats, ...]:
        """The arrays of `data`: these, and the weights if there are any."""
        return columns if self.weights is None else (*columns, self.weights)

    def _apart(self, data: tuple[Floats, ...]) -> tuple[tuple[Floats, ...], Floats | float]:
        """Undo `_rows_with_weights`: the arrays, and the weights or one."""
        return (data, 1.0) if self.weights is None else (data[:-1], data[-1])

    def _moments(self, values: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation over the rows, each with its weight."""
        mean = np.average(values, axis=0, weights=self.weights)
        return mean, np.sqrt(np.average((values - mean) ** 2, axis=0, weights=self.weights))

    @abstractmethod
    def _gradient(self, flat: Floats) -> Floats:
        """Gradient of the log-likelihood: (S, p) -> (S, p)."""

    @abstractmethod
    def _prediction(self, flat: Floats, design: Floats, rng: np.random.Generator) -> Prediction:
        """Means and new data for the rows of a design, given draws of the parameters (S, p)."""

    def _scale_of_target(self) -> tuple[float, float]:
        """Centre and unit of the predictor, estimated from the target where possible."""
        return 0.0, 1.0

    def _coefficient_priors(self, scale: float | None) -> list[Normal]:
        """One prior per coefficient; see `normal_prior`."""
        if scale is not None:
            return [Normal(0.0, scale) for _ in self.coefficients]
        if not len(self.design):
            msg = f"{type(self).__name__} without data has no units to take its prior from: give a `scale`"
            raise ValueError(msg)
        centre, unit = self._scale_of_target()
        columns = self.design[:, int(self.intercept) :]
        means, sd = self._moments(columns)
        scales = _WIDTH * unit / np.where(sd > 0, sd, np.abs(columns[0]) + (columns[0] == 0))
        priors = [Normal(0.0, float(s)) for s in scales]
        if not self.intercept:
            return priors
        # The intercept absorbs the columns' origin, so its scale includes their effects there.
        reach = float(np.sqrt((_WIDTH * unit) ** 2 + np.sum((scales * means) ** 2)))
        return [Normal(centre, reach), *priors]

    def _structured(self, flat: Floats, like: Mapping[str, Any]) -> dict[str, Floats]:
        """Numbers side by side as a dict with the structure of ``like``."""
        return {name: flat[..., j] for j, name in enumerate(self.names)}


def _with_intercept(columns: Floats, intercept: bool) -> Floats:
    design = np.column_stack([np.ones(len(columns)), columns]) if intercept else columns.copy()
    design.flags.writeable = False
    return design


def _check_constants(columns: Columns, intercept: bool) -> None:
    constant = [name for name, column in zip(columns.names, columns.values.T, strict=True) if np.ptp(column) == 0]
    if intercept and constant:
        msg = f"`X` must not have constant columns beside the intercept, got {', '.join(constant)}; drop them, or pass intercept=False"
        raise ValueError(msg)
    if len(constant) > 1:
        msg = f"`X` must have at most one constant column, got {', '.join(constant)}; their coefficients are not identified"
        raise ValueError(msg)
