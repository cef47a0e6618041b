"""The interface that all ready-made models share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import interval_ends, shown
from qbvi.baselines import MaximumLikelihood, maximum_likelihood
from qbvi.fit import fit
from qbvi.models.scores import (
    Scores,
    brier_score,
    continuous_ranked_probability,
    inside_interval,
    log_density,
    root_mean_square,
)
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
    variances : array (draws, n) or None
        The variance of the outcome given each draw, if that is what the model is about (GARCH).
    """

    mean: Floats
    expected: Floats
    outcomes: Floats
    variances: Floats | None = None

    @property
    def variance(self) -> Floats:
        """Predictive variance of the outcomes (n,)."""
        if self.variances is None:
            return np.asarray(self.outcomes.var(axis=0))
        return np.asarray(self.variances.mean(axis=0) + self.expected.var(axis=0))

    @property
    def sd(self) -> Floats:
        """Predictive standard deviation of the outcomes (n,)."""
        return np.sqrt(self.variance)

    def interval(self, probability: float = 0.9) -> Floats:
        """Equal-tailed predictive interval of the outcomes: (2, n)."""
        return np.quantile(self.outcomes, interval_ends("probability", probability), axis=0)

    def __repr__(self) -> str:
        return f"Prediction of {self.mean.shape[0]} rows from {len(self.outcomes)} draws: mean, expected, outcomes, interval()"


class StatisticalModel(ABC):
    """A likelihood together with its data.

    A model implements its default ``prior``, its ``data``, the log-likelihood of rows (`terms`),
    and `predict`; the rest follows. Parameters have the structure of the prior, for one point or
    for many along a first axis. They may also be one array, in the order of `names`.
    """

    names: tuple[str, ...]  # one per number among the parameters
    target_kind = "numbers"  # or "binary", or "classes": what scores suit the target

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
            return self._known(fit(self.log_likelihood, chosen, vectorized=True, **self._options(chosen, options)))
        if options.get("method") == "exact":
            msg = f"`batch_size` must be left out with method='exact', which reads all rows, got {shown(batch_size)}"
            raise ValueError(msg)
        return fit(self.rows, chosen, vectorized=True, data=self.data, batch_size=batch_size, **options)

    def score(
        self,
        posterior: Any,
        X_new: Any = None,
        y_new: Any = None,
        *,
        n_draws: int = 1000,
        seed: int = 0,
        interval: float = 0.9,
        **weights: Any,
    ) -> Scores:
        """Score the predictions of known targets.

        Parameters
        ----------
        posterior, X_new, n_draws, seed
            As for `predict`.
        y_new
            Targets of the rows of ``X_new``. Both are left out to score the data of the model,
            which the posterior has seen. HAR and GARCH take the days that follow as ``X_new``.
        interval : float
            Probability of the predictive interval.
        weights
            ``trials`` or ``exposure`` of the new rows.

        Returns
        -------
        Scores
            The log score, and further ones that suit the target.

        Examples
        --------
        >>> import numpy as np, qbvi
        >>> rng = np.random.default_rng(1)
        >>> X = rng.standard_normal((200, 1))
        >>> y = rng.random(200) < 1 / (1 + np.exp(-2 * X[:, 0]))
        >>> model = qbvi.models.Logistic(X[:150], y[:150])
        >>> scores = model.score(model.fit(seed=1), X[150:], y[150:])
        >>> scores["accuracy"] > 0.7, sorted(scores.measures)
        (True, ['accuracy', 'brier'])
        """
        flat = self._draws(posterior, n_draws, seed)
        terms, y = self._new_terms(flat, X_new, y_new, weights)
        own = self._own_weights if X_new is None else weights
        prediction = self.predict(flat, X_new, seed=seed, **own)
        return Scores(log_density(terms), self._measures(y, prediction, interval))

    def _new_terms(self, flat: Floats, X_new: Any, y_new: Any, weights: Mapping[str, Any]) -> tuple[Floats, Floats]:
        """Log-likelihoods of new rows at all draws (S, n), and their targets (n,)."""
        if (X_new is None) != (y_new is None):
            msg = f"`X_new` and `y_new` must be given together, got only {'`y_new`' if X_new is None else '`X_new`'}"
            raise ValueError(msg)
        data = self.data if X_new is None else self._new_data(X_new, y_new, weights)
        return self.terms(flat, *data), data[1]

    def _new_data(self, X_new: Any, y_new: Any, weights: Mapping[str, Any]) -> tuple[Floats, ...]:
        """New rows in the form of `data`."""
        msg = f"`X_new` must be left out: {type(self).__name__} has no rows apart from its data"
        raise TypeError(msg)

    def _measures(self, y: Floats, prediction: Prediction, interval: float) -> dict[str, float]:
        if self.target_kind == "numbers":
            inside = inside_interval(y, prediction.outcomes, interval)
            return {
                "rmse": root_mean_square(y - prediction.mean),
                "crps": float(np.mean(continuous_ranked_probability(y, prediction.outcomes))),
                f"inside {interval:.4g} interval": float(inside.mean()),
            }
        is_binary = self.target_kind == "binary"
        said = prediction.mean > 0.5 if is_binary else prediction.mean.argmax(axis=1)
        return {"brier": brier_score(y, prediction.mean), "accuracy": float(np.mean(said == y))}

    def simulated(self, params: Any, rng: np.random.Generator) -> Floats:
        """New data in the form of the observed ones, one set for each of S points: (S, rows)."""
        return self.predict(params, seed=int(rng.integers(2**32)), **self._own_weights).outcomes

    @property
    def observed(self) -> Floats:
        """The data that the model explains (rows,); labels as their indices."""
        return self.data[min(1, len(self.data) - 1)]

    @property
    def _own_weights(self) -> dict[str, Any]:
        """Arguments of `predict` that belong to the rows of the data."""
        return {}

    def _known(self, found: Fit) -> Fit:
        """A fit of all data that knows terms and new data, for leave-one-out and for ArviZ."""
        if found._source is None:
            return found
        source = replace(
            found._source,
            terms=self.log_likelihood_terms,
            simulate=self.simulated,
            observed={"y": self.observed},
        )
        return replace(found, _source=source)

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
