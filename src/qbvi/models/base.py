"""The interface that all ready-made models share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import shown
from qbvi.baselines import MaximumLikelihood, maximum_likelihood
from qbvi.fit import fit
from qbvi.points import is_named
from qbvi.results import Fit

__all__ = ["Prediction", "StatisticalModel"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Posterior predictive distribution of new rows.

    Attributes
    ----------
    mean : array (n,), or (n, classes)
        Posterior predictive mean; for classes, their probabilities.
    expected : array (draws, n), or (draws, n, classes)
        The mean given each draw of the parameters. Its spread is the uncertainty about the
        parameters.
    outcomes : array (draws, n)
        New data, one value per draw. Its spread includes the noise of the data.
    """

    mean: Floats
    expected: Floats
    outcomes: Floats

    def interval(self, probability: float = 0.9) -> Floats:
        """Equal-tailed predictive interval of the outcomes: (2, n)."""
        if not 0 < probability < 1:
            msg = f"`probability` must lie between 0 and 1, got {probability}"
            raise ValueError(msg)
        return np.quantile(self.outcomes, [(1 - probability) / 2, (1 + probability) / 2], axis=0)

    def __repr__(self) -> str:
        return f"Prediction of {self.mean.shape[0]} rows from {len(self.outcomes)} draws: mean, expected, outcomes, interval()"


class StatisticalModel(ABC):
    """A likelihood together with its data.

    A model implements its default ``prior``, its ``data``, the log-likelihood of rows (`terms`),
    and `predict`; the rest follows. Parameters have the structure of the prior, for one point or
    for many along a first axis. They may also be one array, in the order of `names`.
    """

    names: tuple[str, ...]  # one per number among the parameters

    @property
    @abstractmethod
    def prior(self) -> Any:
        """The default prior, which suits the units of the data; `fit` accepts another."""

    @property
    @abstractmethod
    def data(self) -> tuple[Floats, ...]:
        """Arrays with a common number of rows; `rows` gets a part of them."""

    @abstractmethod
    def terms(self, flat: Floats, *data: Floats) -> Floats:
        """Log-likelihood of every row at every draw: (S, p) -> (S, rows)."""

    @abstractmethod
    def predict(self, posterior: Any, X_new: Any = None, *, n_draws: int = 1000, seed: int = 0) -> Prediction:
        """Predict new rows."""

    def log_likelihood(self, params: Any) -> Any:
        """Log-likelihood: a number for one point, (S,) for many."""
        return self.rows(params, self.data)

    def log_likelihood_terms(self, params: Any) -> Floats:
        """Log-likelihood of every row: (rows,) at one point, (S, rows) at many."""
        flat, is_one = self._laid_out(params)
        terms = self.terms(flat, *self.data)
        return terms[0] if is_one else terms

    def rows(self, params: Any, batch: tuple[Floats, ...]) -> Any:
        """Log-likelihood of a batch of the rows of `data`.

        For ``qbvi.fit(model.rows, prior, data=model.data, batch_size=64, vectorized=True)``.
        """
        flat, is_one = self._laid_out(params)
        total = self.terms(flat, *batch).sum(axis=-1)
        return float(total[0]) if is_one else total

    def fit(self, prior: Any = None, *, batch_size: int | None = None, **options: Any) -> Fit:
        """Fit this model with `qbvi.fit`, which also takes ``options``.

        Parameters
        ----------
        prior
            Replaces the model's own prior: a dict by name, or one distribution over all of `names`.
        batch_size
            Number of rows of a mini-batch. By default all rows.
        options
            As for `qbvi.fit`. ``method="exact"`` finds the best Gaussian of a regression by passes
            over the data, without draws. It is the default where it can be had (docs/models.md).
            Any other name of a method is the black-box way.
        """
        chosen = self.prior if prior is None else prior
        if batch_size is None:
            return fit(self.log_likelihood, chosen, vectorized=True, **self._options(chosen, options))
        if options.get("method") == "exact":
            msg = f"`batch_size` must be left out with method='exact', which reads all rows, got {shown(batch_size)}"
            raise ValueError(msg)
        return fit(self.rows, chosen, vectorized=True, data=self.data, batch_size=batch_size, **options)

    def maximum_likelihood(self, init: Any = None) -> MaximumLikelihood:
        """The maximum of the likelihood, with its asymptotic covariance."""
        found = maximum_likelihood(self.log_likelihood, self.prior, vectorized=True, init=init)
        return replace(found, labels=self.names)

    def _options(self, prior: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with the method and the family that this model has by default."""
        if options.get("method") == "exact":
            msg = (
                "`method` can be 'exact' for regressions, Logistic, MultinomialLogistic, Binomial, Poisson, Linear and HAR, "
                f"got {type(self).__name__}; take method='auto'"
            )
            raise ValueError(msg)
        return dict(options)

    def __repr__(self) -> str:
        rows = len(self.data[0])
        return f"{type(self).__name__}({rows} rows; parameters {', '.join(self.names[:8])}{' ...' if len(self.names) > 8 else ''})"

    def _flat(self, params: Mapping[str, Any]) -> Floats:
        """Named parameters side by side: (p,) or (S, p)."""
        missing = [name for name in self.names if name not in params]
        if missing or len(params) != len(self.names):
            msg = f"`params` must have the names {', '.join(self.names)}, got {', '.join(map(str, params))}"
            raise ValueError(msg)
        return np.stack([np.asarray(params[name], dtype=np.float64) for name in self.names], axis=-1)

    def _laid_out(self, params: Any) -> tuple[Floats, bool]:
        """Parameters as (S, p), and whether they were one point."""
        flat = self._flat(params) if is_named(params) else np.asarray(params, dtype=np.float64)
        if flat.ndim not in (1, 2) or flat.shape[-1] != len(self.names):
            msg = f"`params` must have {len(self.names)} numbers for each point, {', '.join(self.names[:4])} ..., got shape {flat.shape}"
            raise ValueError(msg)
        return np.atleast_2d(flat), flat.ndim == 1

    def _draws(self, posterior: Any, n_draws: int, seed: int) -> Floats:
        """Parameters (S, p) from a fit, from chains, from an estimate, or from given draws."""
        if isinstance(posterior, Fit):
            posterior = posterior.sample(n_draws, seed)
        elif isinstance(posterior, MaximumLikelihood):
            posterior = posterior.estimate
        elif hasattr(posterior, "draws"):
            posterior = posterior.draws
        return self._laid_out(posterior)[0]
