"""A small feed-forward network without derivatives: any activation is allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.baselines import MaximumLikelihood
from qbvi.distributions import InverseGamma, Normal
from qbvi.models.base import Prediction, StatisticalModel
from qbvi.models.inputs import (
    as_classes,
    as_columns,
    as_known_classes,
    as_target,
    as_varying_target,
    drawn_classes,
    matching_columns,
)
from qbvi.naming import pick

__all__ = ["Network"]

Floats = NDArray[np.float64]
Activation = Callable[[Floats], Floats]

ACTIVATIONS: dict[str, Activation] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "sigmoid": lambda x: scipy.special.expit(x),
    "step": lambda x: (x > 0).astype(np.float64),
    "sign": lambda x: np.where(x > 0, 1.0, -1.0),
    "identity": lambda x: x,
}


class Network(StatisticalModel):
    """A feed-forward network for classification or regression, from forward passes alone.

    The parameters ``W1, b1, W2, b2 ...`` are weights (inputs, outputs) and biases of the layers. A
    regression also has the variance ``sigma2`` of its Gaussian noise. A classifier has one output
    per class except the first, whose output is zero.

    Parameters
    ----------
    X : array or frame (n, k)
        Covariates. The network standardises them, and new rows by the same means and scales.
    y : array (n,)
        Labels, or numbers for a regression.
    hidden : sequence of int
        Widths of the hidden layers.
    activation : str or callable
        ``"tanh"``, ``"relu"``, ``"sigmoid"``, ``"step"`` (0 or 1), ``"sign"``, ``"identity"``, or
        any function of an array, smooth or not.
    task : str
        ``"classification"`` or ``"regression"``.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> rng = np.random.default_rng(1)
    >>> X = rng.standard_normal((100, 2))
    >>> model = qbvi.models.Network(X, X[:, 0] > 0, hidden=(3,), activation="step")
    >>> {name: prior.shape for name, prior in model.prior.items()}
    {'W1': (2, 3), 'b1': (3,), 'W2': (3, 1), 'b2': (1,)}
    >>> model.log_likelihood_terms(np.zeros((5, model.n_parameters))).shape
    (5, 100)
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        hidden: Sequence[int] = (8,),
        activation: str | Activation = "tanh",
        task: str = "classification",
    ) -> None:
        columns = as_columns(X)
        self.columns = columns.names
        self.task = pick("task", task, {"classification": "classification", "regression": "regression"})
        self.activation = _checked_activation(pick("activation", activation, ACTIVATIONS))
        self.hidden = _checked_widths(hidden)
        sd = columns.values.std(axis=0)
        self._centre, self._unit = columns.values.mean(axis=0), np.where(sd > 0, sd, 1.0)
        self._inputs = self._standardised(columns.values)
        n = len(self._inputs)
        self.classes, self.y = as_classes(y, n) if self._classifies else ((), as_varying_target(y, n))
        self._shapes = self._layout()
        self.names = tuple(label for name, shape in self._shapes.items() for label in _labels(name, shape))

    @property
    def n_parameters(self) -> int:
        """Number of weights, biases and variances."""
        return len(self.names)

    @property
    def prior(self) -> dict[str, Any]:
        """Normals that keep the outputs of each layer at the scale of a few units.

        For a regression, the last layer has the units of the target.
        """
        priors: dict[str, Any] = {}
        last = len(self.hidden) + 1
        for layer in range(1, last + 1):
            centre, unit = self._scale_of_target() if layer == last else (0.0, 1.0)
            weights, biases = self._shapes[f"W{layer}"], self._shapes[f"b{layer}"]
            priors[f"W{layer}"] = Normal(0.0, 2.0 * unit / weights[0] ** 0.5, shape=weights)
            priors[f"b{layer}"] = Normal(centre, unit, shape=biases)
        return priors if self._classifies else priors | {"sigma2": InverseGamma(1.0, 0.05 * float(self.y.var()))}

    @property
    def data(self) -> tuple[Floats, ...]:
        """Standardised inputs, and the target or the indices of the classes."""
        return self._inputs, self.y

    def terms(self, flat: Floats, *data: Floats) -> Floats:
        """Log-likelihood of every row at every draw: (S, p) -> (S, rows)."""
        inputs, y = data
        output = self._forward(flat, inputs)
        if self._classifies:
            return np.asarray(scipy.special.log_softmax(output, axis=-1)[:, np.arange(len(y)), y.astype(int)])
        sigma2 = flat[:, -1:]
        with np.errstate(invalid="ignore", divide="ignore"):  # no density for a variance <= 0: NaN
            return np.asarray(-0.5 * ((y - output[:, :, 0]) ** 2 / sigma2 + np.log(2 * np.pi * sigma2)))

    def predict(self, posterior: Any, X_new: Any = None, *, n_draws: int = 1000, seed: int = 0) -> Prediction:
        """Predict the rows of ``X_new``, by default the data; see `qbvi.models.Logistic`."""
        flat = self._draws(posterior, n_draws, seed)
        inputs = self._inputs if X_new is None else self._standardised(matching_columns(X_new, self.columns))
        output = self._forward(flat, inputs)
        rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
        if self._classifies:
            probability = scipy.special.softmax(output, axis=-1)
            return Prediction(probability.mean(axis=0), probability, drawn_classes(probability, rng))
        mean = output[:, :, 0]
        noise = np.sqrt(flat[:, -1:]) * rng.standard_normal(mean.shape)
        return Prediction(mean.mean(axis=0), mean, mean + noise)

    @property
    def target_kind(self) -> str:  # type: ignore[override]
        """What scores suit the target."""
        return "classes" if self._classifies else "numbers"

    def _new_data(self, X_new: Any, y_new: Any, weights: Mapping[str, Any]) -> tuple[Floats, ...]:
        if weights:
            msg = f"Network takes no {', '.join(weights)}"
            raise TypeError(msg)
        inputs = self._standardised(matching_columns(X_new, self.columns))
        n = len(inputs)
        return inputs, as_known_classes(y_new, n, self.classes) if self._classifies else as_target(y_new, n)

    def maximum_likelihood(self, init: Any = None) -> MaximumLikelihood:
        """Raise an error: a network has no single maximum, and with steps no gradient.

        Exchanging hidden units leaves the likelihood unchanged.
        """
        msg = (
            "a network has no maximum-likelihood estimate with a covariance: exchanging two hidden units gives the same "
            "likelihood; use model.fit()"
        )
        raise TypeError(msg)

    @property
    def _classifies(self) -> bool:
        return bool(self.task == "classification")

    def _scale_of_target(self) -> tuple[float, float]:
        return (0.0, 1.0) if self._classifies else (float(self.y.mean()), float(self.y.std()))

    def _layout(self) -> dict[str, tuple[int, ...]]:
        outputs = len(self.classes) - 1 if self._classifies else 1
        widths = [len(self.columns), *self.hidden, outputs]
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (fan_in, fan_out) in enumerate(pairwise(widths), start=1):
            shapes |= {f"W{layer}": (fan_in, fan_out), f"b{layer}": (fan_out,)}
        return shapes if self._classifies else shapes | {"sigma2": ()}

    def _forward(self, flat: Floats, inputs: Floats) -> Floats:
        """Outputs of the last layer: (S, rows, outputs).

        For a classifier, a zero for the first class comes before them.
        """
        parts = self._parts(flat)
        x: Floats = inputs[None]
        for layer in range(1, len(self.hidden) + 1):
            x = np.asarray(self.activation(x @ parts[f"W{layer}"] + parts[f"b{layer}"][:, None]))
        last = len(self.hidden) + 1
        x = x @ parts[f"W{last}"] + parts[f"b{last}"][:, None]
        return np.concatenate([np.zeros_like(x[:, :, :1]), x], axis=-1) if self._classifies else x

    def _parts(self, flat: Floats) -> dict[str, Floats]:
        sizes = [int(np.prod(shape)) for shape in self._shapes.values()]
        pieces = np.split(flat, np.cumsum(sizes)[:-1], axis=1)
        named = zip(self._shapes.items(), pieces, strict=True)
        return {name: piece.reshape(len(flat), *shape) for (name, shape), piece in named}

    def _flat(self, params: Mapping[str, Any]) -> Floats:
        if set(params) != set(self._shapes):
            msg = f"`params` must have the names {', '.join(self._shapes)}, got {', '.join(map(str, params))}"
            raise ValueError(msg)
        arrays = {name: np.asarray(params[name], dtype=np.float64) for name in self._shapes}
        lead = arrays["b1"].shape[:-1]
        return np.concatenate([array.reshape(*lead, -1) for array in arrays.values()], axis=-1)

    def _standardised(self, X: Floats) -> Floats:
        return np.asarray((X - self._centre) / self._unit)


def _labels(name: str, shape: tuple[int, ...]) -> list[str]:
    return [f"{name}[{','.join(map(str, index))}]" if shape else name for index in np.ndindex(*shape)]


def _checked_activation(activation: Any) -> Activation:
    if not callable(activation):
        msg = f"`activation` must be a name or a function of an array, got {activation!r}"
        raise TypeError(msg)
    probe = np.zeros((1, 2, 3))
    if np.shape(activation(probe)) != probe.shape:
        msg = f"`activation` must return an array of its argument's shape, got {np.shape(activation(probe))} for {probe.shape}"
        raise ValueError(msg)
    return activation  # type: ignore[no-any-return]


def _checked_widths(hidden: Sequence[int]) -> tuple[int, ...]:
    widths = tuple(int(width) for width in hidden)
    if not widths or min(widths) < 1:
        msg = f"`hidden` must hold a positive width for each hidden layer, such as (8,), got {hidden!r}"
        raise ValueError(msg)
    return widths
