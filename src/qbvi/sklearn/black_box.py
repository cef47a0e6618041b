"""Estimators with a function of the user's: it predicts, and may bring its own likelihood."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from qbvi.arguments import shown, whole_number
from qbvi.distributions import HalfNormal
from qbvi.fit import fit
from qbvi.models.inputs import drawn_classes
from qbvi.points import is_named
from qbvi.sklearn.inputs import checked, new_rows, seed_of, warn_unless_converged

__all__ = ["BlackBoxClassifier", "BlackBoxRegressor"]

Floats = NDArray[np.float64]

_NOISE, _POINT = "sigma", "theta"  # names of the noise, and of parameters that have none
_NOISE_SCALE = 2.0  # prior scale of the noise, in standard deviations of the target


class _BlackBox(BaseEstimator, ABC):
    """What both have: a function, a prior, and draws of the posterior."""

    function: Any
    prior: Any
    log_likelihood: Any
    n_draws: Any
    options: Any
    random_state: Any

    @property
    def evidence_(self) -> float:
        """Log evidence of the training rows; ``fit_.evidence_se`` is its standard error."""
        check_is_fitted(self, "fit_")
        return float(self.fit_.evidence)

    @abstractmethod
    def _terms(self, params: Any, X: Floats, y: Any) -> Floats:
        """Log-likelihood of every row without a likelihood of the user's."""

    def _fit(self, X: Floats, y: Any) -> Self:
        if not callable(self.function):
            msg = f"`function` must be a function of the parameters and X, got {shown(self.function)}"
            raise TypeError(msg)
        if self.prior is None:
            msg = "`prior` must be a prior of the parameters as in qbvi.fit, or a function of X and y that returns one, got None"
            raise TypeError(msg)
        prior = self.prior(X, y) if callable(self.prior) else self.prior
        self._seed = seed_of(self.random_state)
        self.fit_ = fit(_Likelihood(self, X, y), self._whole_prior(prior, y), seed=self._seed, **(self.options or {}))
        warn_unless_converged(self.fit_)
        return self

    def _whole_prior(self, prior: Any, y: Any) -> Any:
        """The prior of all parameters of the likelihood."""
        return prior

    def _points(self, n: int, seed: int) -> Iterator[Any]:
        """Draws of the posterior, one at a time."""
        draws = self.fit_.sample(n, seed)
        for i in range(n):
            yield {name: values[i] for name, values in draws.items()} if is_named(draws) else draws[i]

    def _predicted(self, X: Any) -> Floats:
        """The function at draws of the posterior: (draws, n), or (draws, n, classes)."""
        check_is_fitted(self, "fit_")
        rows = new_rows(self, X)
        return np.array(
            [self._values(p, rows) for p in self._points(whole_number("n_draws", self.n_draws), self._seed)]
        )

    def _values(self, params: Any, X: Floats) -> Floats:
        """The function at one point, checked: (n,), or (n, classes)."""
        values = np.asarray(self.function(params, X), dtype=np.float64)
        if len(values) != len(X) or values.ndim not in (1, 2):
            msg = f"`function` must return one row for each of the {len(X)} rows of X, got shape {values.shape}"
            raise ValueError(msg)
        return values


class BlackBoxRegressor(RegressorMixin, _BlackBox):
    r"""A regression on any function, with a posterior of its parameters.

    Without ``log_likelihood`` the noise is normal, and its standard deviation is one more
    parameter, ``sigma``:

    .. math:: y_i \sim N(f(\theta, x_i), \sigma^2)

    Parameters
    ----------
    function : callable
        ``function(params, X)``: the expected target of every row, (n,). It may be any program.
    prior
        Prior of the parameters, as in `qbvi.fit`, or a function of ``X`` and ``y`` that returns
        one. A dict gives ``function`` a dict, a distribution an array.
    log_likelihood : callable, optional
        ``log_likelihood(params, X, y)``: a number, in place of normal noise.
    sample : callable, optional
        ``sample(params, X, rng)``: new targets (n,), for `sample_y` and ``return_std`` with a
        ``log_likelihood`` of your own.
    n_draws : int
        Draws of the posterior behind a prediction: as many calls of ``function``.
    options : dict, optional
        Further options of `qbvi.fit`.
    random_state : int, numpy.random.RandomState or None
        Seed of the fit and of the draws.

    Attributes
    ----------
    fit_ : qbvi.Fit
        The posterior.
    evidence_ : float
        Log evidence.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> from qbvi.sklearn import BlackBoxRegressor
    >>> def decay(p, X):
    ...     return p["height"] * np.exp(-p["rate"] * X[:, 0])
    >>> X = np.linspace(0, 4, 30)[:, None]
    >>> y = 2 * np.exp(-0.7 * X[:, 0]) + np.tile([0.05, -0.05], 15)
    >>> prior = {"height": qbvi.HalfNormal(5.0), "rate": qbvi.HalfNormal(2.0)}
    >>> model = BlackBoxRegressor(decay, prior).fit(X, y)
    >>> mean, sd = model.predict([[1.0]], return_std=True)
    >>> mean.round(1), sd.round(2)
    (array([1.]), array([0.06]))
    """

    def __init__(  # noqa: PLR0913 - scikit-learn finds the parameters in this signature
        self,
        function: Callable[[Any, Floats], Any] | None = None,
        prior: Any = None,
        log_likelihood: Callable[[Any, Floats, Floats], Any] | None = None,
        *,
        sample: Callable[[Any, Floats, np.random.Generator], Any] | None = None,
        n_draws: int = 500,
        options: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.function = function
        self.prior = prior
        self.log_likelihood = log_likelihood
        self.sample = sample
        self.n_draws = n_draws
        self.options = options
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the posterior to rows ``X`` and their targets ``y``."""
        return self._fit(*checked(self, X, y))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Posterior predictive mean of the target and, with ``return_std``, its standard deviation.

        The standard deviation is that of a new target. With a ``log_likelihood`` of your own it
        needs ``sample``.
        """
        values = self._predicted(X)
        if not return_std:
            return values.mean(axis=0)
        if self.log_likelihood is not None:
            return values.mean(axis=0), self.sample_y(X, self.n_draws, self._seed).std(axis=1)
        sigma = self.fit_.sample(self.n_draws, self._seed)[_NOISE]
        return values.mean(axis=0), np.sqrt(values.var(axis=0) + np.mean(sigma**2))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Floats:
        """Draw new targets, one draw of the parameters for each: (n, n_samples)."""
        check_is_fitted(self, "fit_")
        if self.log_likelihood is not None and self.sample is None:
            msg = "`sample` must be a function of params, X and rng to draw targets of your own likelihood, got None"
            raise ValueError(msg)
        rows, seed = new_rows(self, X), seed_of(random_state)
        rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
        points = self._points(whole_number("n_samples", n_samples), seed)
        if self.sample is not None:
            return np.column_stack([self.sample(p, rows, rng) for p in points])
        noisy = (self._values(p, rows) + p[_NOISE] * rng.standard_normal(len(rows)) for p in points)
        return np.column_stack(list(noisy))

    def _whole_prior(self, prior: Any, y: Any) -> Any:
        """With the noise, if it is the estimator's own."""
        if self.log_likelihood is not None:
            return prior
        named = dict(prior) if isinstance(prior, Mapping) else {_POINT: prior}
        if _NOISE in named:
            return named
        scale = float(np.std(y)) or max(1.0, float(np.abs(y).max()))
        return named | {_NOISE: HalfNormal(_NOISE_SCALE * scale)}

    def _values(self, params: Any, X: Floats) -> Floats:
        is_alone = self.log_likelihood is None and set(params) == {_POINT, _NOISE}
        return super()._values(params[_POINT] if is_alone else params, X)

    def _terms(self, params: Any, X: Floats, y: Any) -> Floats:
        sigma = float(params[_NOISE])
        residual = (y - self._values(params, X)) / sigma
        return np.asarray(-0.5 * (residual**2 + math.log(2 * math.pi)) - math.log(sigma))


class BlackBoxClassifier(ClassifierMixin, _BlackBox):
    """A classifier from any function that gives probabilities, with a posterior of its parameters.

    Parameters
    ----------
    function : callable
        ``function(params, X)``: the probability of the second class for every row, (n,), or the
        probabilities of all classes, (n, classes), in the order of ``classes_``.
    prior
        Prior of the parameters, as in `qbvi.fit`, or a function of ``X`` and ``y`` that returns
        one. In it and in ``log_likelihood``, ``y`` has the positions of the labels in ``classes_``.
    log_likelihood : callable, optional
        ``log_likelihood(params, X, y)``: a number, in place of the log probabilities of the
        classes.
    n_draws : int
        Draws of the posterior behind a prediction: as many calls of ``function``.
    options : dict, optional
        Further options of `qbvi.fit`.
    random_state : int, numpy.random.RandomState or None
        Seed of the fit and of the draws.

    Attributes
    ----------
    fit_ : qbvi.Fit
        The posterior.
    evidence_ : float
        Log evidence.
    classes_ : array
        The labels.

    Examples
    --------
    Detection of a signal, with lapses of attention:

    >>> import numpy as np, qbvi
    >>> from scipy.special import expit
    >>> from qbvi.sklearn import BlackBoxClassifier
    >>> def detection(p, X):
    ...     seen = expit((X[:, 0] - p["threshold"]) / p["width"])
    ...     return p["lapse"] / 2 + (1 - p["lapse"]) * seen
    >>> rng = np.random.default_rng(1)
    >>> X = rng.uniform(0, 10, (200, 1))
    >>> y = rng.random(200) < detection({"threshold": 4.0, "width": 0.5, "lapse": 0.1}, X)
    >>> prior = {
    ...     "threshold": qbvi.Uniform(0, 10),
    ...     "width": qbvi.HalfNormal(2),
    ...     "lapse": qbvi.Beta(1, 9),
    ... }
    >>> model = BlackBoxClassifier(detection, prior, options={"family": "full"}).fit(X, y)
    >>> model.predict([[2.0], [9.0]])
    array([False,  True])
    """

    def __init__(
        self,
        function: Callable[[Any, Floats], Any] | None = None,
        prior: Any = None,
        log_likelihood: Callable[[Any, Floats, NDArray[np.intp]], Any] | None = None,
        *,
        n_draws: int = 500,
        options: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.function = function
        self.prior = prior
        self.log_likelihood = log_likelihood
        self.n_draws = n_draws
        self.options = options
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the posterior to rows ``X`` and their labels ``y``."""
        X, y = checked(self, X, y, numeric=False)
        check_classification_targets(y)
        self.classes_, positions = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            msg = f"`y` must have two classes or more, got one class, {self.classes_[0]!r}"
            raise ValueError(msg)
        return self._fit(X, positions)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def predict_proba(self, X: Any, return_std: bool = False) -> Any:
        """Probabilities of the classes, averaged over the posterior: (n, classes).

        With ``return_std`` also their posterior standard deviations.
        """
        values = self._predicted(X)
        return (values.mean(axis=0), values.std(axis=0)) if return_std else values.mean(axis=0)

    def predict_log_proba(self, X: Any) -> Floats:
        """Logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> NDArray[Any]:
        """Draw classes, one draw of the parameters for each: (n, n_samples)."""
        check_is_fitted(self, "fit_")
        rows, seed = new_rows(self, X), seed_of(random_state)
        rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
        points = self._points(whole_number("n_samples", n_samples), seed)
        drawn = [drawn_classes(self._values(p, rows)[None], rng)[0].astype(int) for p in points]
        return np.asarray(self.classes_[np.column_stack(drawn)])

    def _values(self, params: Any, X: Floats) -> Floats:
        """Probabilities of all classes."""
        values = super()._values(params, X)
        both = np.column_stack([1 - values, values]) if values.ndim == 1 else values
        if both.shape[1] != len(self.classes_):
            msg = f"`function` must return a probability for each of the {len(self.classes_)} classes, got shape {values.shape}"
            raise ValueError(msg)
        return both

    def _terms(self, params: Any, X: Floats, y: Any) -> Floats:
        """Log probabilities of the labels; minus infinity where the function says zero."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self._values(params, X)[np.arange(len(y)), y]))


class _Likelihood:
    """The log-likelihood of rows as a function of the parameters."""

    def __init__(self, estimator: _BlackBox, X: Floats, y: Any) -> None:
        self.estimator, self.X, self.y = estimator, X, y

    def __call__(self, params: Any) -> float:
        if self.estimator.log_likelihood is not None:
            return float(self.estimator.log_likelihood(params, self.X, self.y))
        return float(self.estimator._terms(params, self.X, self.y).sum())
