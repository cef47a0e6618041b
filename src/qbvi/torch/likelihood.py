"""A module and a loss as a log-likelihood of named parameters, with predictions."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from qbvi.arguments import positive_number, whole_number
from qbvi.distributions import Distribution
from qbvi.torch.modules import activation_bytes, check_module, default_link, module_priors, per_row_loss
from qbvi.torch.prediction import Prediction
from qbvi.torch.tensors import (
    Floats,
    Tensor,
    Tensors,
    as_arguments,
    as_tensor,
    check_devices,
    chunks,
    device_of,
    first_point,
    input_and_target,
    is_one_point,
    joined,
    n_rows,
    refuse_broadcast,
    summed_by_row,
    tensors_in,
    to_host,
    vmap_errors_explained,
    with_first_axis,
)

__all__ = ["ModuleLikelihood", "module_likelihood"]

_CHUNK_BYTES = 2**25  # of activations: few enough for the processor's cache, enough to keep it busy
_CHUNK_BYTES_GPU = 2**30
# Largest layer, in weights, with a full covariance. The thousands of entries of a larger one are
# lost in the noise of the draws.
_LARGEST_BLOCK = 100


def module_likelihood(
    net: nn.Module,
    loss: Callable[[Any, Any], Any],
    *,
    prior: Mapping[str, float | Distribution] | None = None,
    scale: float = 1.0,
    chunk_size: int | None = None,
    compile: bool | str = False,
) -> ModuleLikelihood:
    r"""Turn a module and a loss into a log-likelihood of the module's parameters.

    .. math:: \log p(y | \theta) = -\text{scale} \sum_{i} \text{loss}(\text{net}_\theta(x_i), y_i)

    It evaluates all draws of a step at once. It takes no gradients, so activations may be steps,
    and weights may be compared, rounded or sorted.

    Parameters
    ----------
    net
        The module. Its parameters become named parameters, except those with
        ``requires_grad=False``, which are fixed. The module is copied. It computes on its own
        device and in its own dtype, whatever those of the draws. Sums over rows are float64.
    loss
        A module such as ``torch.nn.CrossEntropyLoss()``, a function of ``torch.nn.functional``, or
        any function of ``(output, target)`` that returns one loss per row. Losses are summed over
        the rows, whatever the ``reduction`` of the module or function.
    prior
        A standard deviation around zero, or a distribution of the parameter's shape, by the name of
        a parameter or by pattern (``"*.bias"``). Names take precedence over patterns, and earlier
        patterns over later ones. The defaults are ``Normal(0, 1 / sqrt(fan_in))`` for weights,
        ``Normal(0, 1)`` for biases and embeddings, and ``Normal(1, 1)`` for the factors of
        normalisation layers.
    scale
        Nats per unit of loss: 1 if the loss is minus a log-density (cross entropy),
        ``1 / (2 * sd**2)`` for a squared error with Gaussian noise of standard deviation ``sd``.
        Values below 1 temper the likelihood.
    chunk_size
        Number of draws per forward pass. By default the activations take some ten megabytes (a
        gigabyte on a GPU). With 1, draws are evaluated one by one without ``torch.vmap``. This is
        slower, but works for modules that ``torch.vmap`` cannot handle, such as recurrent ones.
    compile
        Whether to compile the pass with ``torch.compile``, or its mode; ``"reduce-overhead"`` uses
        CUDA graphs.

    Returns
    -------
    ModuleLikelihood
        Callable as ``f(params, (inputs, targets))``, with ``prior``, ``layers()``, ``predict`` and
        ``log_score``.

    Examples
    --------
    >>> import numpy as np, qbvi, qbvi.torch, torch
    >>> X = torch.linspace(-1, 1, 50)[:, None]
    >>> y = 2 * X
    >>> net, loss = torch.nn.Linear(1, 1), torch.nn.MSELoss()
    >>> likelihood = qbvi.torch.module_likelihood(net, loss, scale=50.0)
    >>> likelihood.prior
    {'weight': Normal(loc=0.0, scale=1.0, shape=(1, 1)),
    'bias': Normal(loc=0.0, scale=1.0, shape=(1,))}
    >>> fit = qbvi.fit(likelihood, likelihood.prior, vectorized=True, data=(X, y), seed=1)
    >>> bool(abs(fit.mean["weight"][0, 0] - 2) < 0.02)
    True
    >>> likelihood.predict(fit, torch.tensor([[0.5]])).mean.round(1)
    array([[1.]])
    """
    check_module(net)
    per_row = per_row_loss(loss)
    copied = copy.deepcopy(net)
    chosen = module_priors(copied, {} if prior is None else prior)
    return ModuleLikelihood(
        net=copied,
        loss=per_row,
        prior=chosen,
        scale=positive_number("scale", scale),
        chunk_size=None if chunk_size is None else whole_number("chunk_size", chunk_size),
        compile=compile,
    )


@dataclass(frozen=True, eq=False)
class ModuleLikelihood:
    """The log-likelihood of a module's parameters, created by `module_likelihood`.

    Attributes
    ----------
    net : torch.nn.Module
        A copy of the module.
    prior : dict
        Distributions by parameter name, for ``qbvi.fit(likelihood, likelihood.prior, ...)``.
    scale : float
        Nats per unit of loss.

    Examples
    --------
    >>> import torch, qbvi.torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    >>> likelihood = qbvi.torch.module_likelihood(net, torch.nn.CrossEntropyLoss())
    >>> likelihood
    ModuleLikelihood(Sequential, 51 parameters: 0.weight (8, 2), 0.bias (8,), 2.weight (3, 8),
    2.bias (3,))
    >>> rng = np.random.default_rng(1)
    >>> draws = {name: prior.sample(rng, 5) for name, prior in likelihood.prior.items()}
    >>> likelihood(draws, (torch.zeros(10, 2), torch.zeros(10, dtype=torch.int64))).shape
    torch.Size([5])
    """

    net: nn.Module
    loss: Callable[[Any, Any], Any]
    prior: dict[str, Distribution]
    scale: float = 1.0
    chunk_size: int | None = None
    compile: bool | str = False

    def __call__(self, params: Tensors, batch: Any) -> Tensor:
        """Log-likelihood of a batch ``(inputs, targets)``: (S,) for S draws, () for one point.

        Draws may be tensors or NumPy arrays. Values are float64 tensors on the device of the draws.
        """
        return (-self.scale * self._losses(params, batch)).sum(-1, dtype=torch.float64).to(device_of(params))

    def terms(self, params: Tensors, batch: Any) -> Tensor:
        """Log-likelihood of every row: (S, rows), or (rows,) for one point."""
        return -self.scale * self._losses(params, batch)

    def outputs(self, params: Tensors, inputs: Any) -> Tensor:
        """Outputs of the module for ``inputs``: (S, rows, ...), or (rows, ...) for one point.

        They are in tuples or dicts if the module returns such. ``inputs`` is a tensor or array, a
        tuple of them for a module with several arguments, or a dict by argument.
        """
        return self._mapped(self._forward, params, (self._to_net(inputs),))

    def layers(self, largest: int = _LARGEST_BLOCK) -> dict[tuple[str, ...], str]:
        """Independent blocks for ``qbvi.fit(family=...)``: one per layer.

        A layer has a full covariance, or a diagonal one if it is large.

        Parameters
        ----------
        largest
            Largest number of weights of a layer with a full covariance. Such a covariance has
            ``largest**2`` entries, and needs a few times as many draws.

        Examples
        --------
        >>> import torch, qbvi.torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        >>> qbvi.torch.module_likelihood(net, torch.nn.CrossEntropyLoss()).layers(largest=25)
        {('0.weight', '0.bias'): 'full', ('2.weight', '2.bias'): 'diagonal'}
        """
        owners: dict[str, list[str]] = {}
        for name in self.prior:
            owners.setdefault(name.rpartition(".")[0], []).append(name)
        sizes = {owner: sum(self.prior[name].dim for name in names) for owner, names in owners.items()}
        blocks = {tuple(names): "full" for owner, names in owners.items() if sizes[owner] <= largest}
        rest = tuple(name for owner, names in owners.items() if sizes[owner] > largest for name in names)
        return blocks | ({rest: "diagonal"} if rest else {})

    def predict(
        self,
        posterior: Any,
        inputs: Any,
        *,
        n_draws: int = 1000,
        seed: int = 0,
        link: Callable[[Tensor], Tensor] | None = None,
    ) -> Prediction:
        """Predict new rows: outputs at draws from the posterior, with their mean and spread.

        Parameters
        ----------
        posterior
            A `qbvi.Fit`, or a dict of draws along a first axis.
        inputs
            As for `outputs`.
        n_draws, seed
            Number of draws from a fit, and their seed.
        link
            Function from the result of `outputs`, (S, rows, ...), to the quantity to average. By
            default it gives probabilities if the loss is a cross entropy of logits, else the
            outputs themselves.
        """
        link = default_link(self.loss) if link is None else link
        outputs = self.outputs(self._drawn(posterior, n_draws, seed), inputs)
        return Prediction(to_host(link(outputs)))

    def log_score(self, posterior: Any, batch: Any, *, n_draws: int = 1000, seed: int = 0) -> Floats:
        r"""Log predictive density of each row of ``(inputs, targets)``; larger is better.

        .. math:: \log \frac1S \sum_s p(y_i | x_i, \theta_s)

        It is the log density of the data if ``scale * loss`` is minus a log-density. If the loss
        lacks the constant, as a squared error does, so does the score.
        """
        terms = self.terms(self._drawn(posterior, n_draws, seed), batch).double()
        return to_host(torch.logsumexp(terms, 0) - np.log(len(terms)))

    def __repr__(self) -> str:
        total = sum(prior.dim for prior in self.prior.values())
        shown = [f"{name} {prior.shape}" for name, prior in list(self.prior.items())[:6]]
        more = " ..." if len(self.prior) > 6 else ""
        return f"ModuleLikelihood({type(self.net).__name__}, {total:,} parameters: {', '.join(shown)}{more})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_made", "_bytes")}

    @functools.cached_property
    def _made(self) -> dict[str, Callable[..., Any]]:
        """Functions of many draws, by the name of the method for one draw."""
        return {}

    @functools.cached_property
    def _bytes(self) -> dict[str, int]:
        """Bytes of the activations of one draw, by the shapes of the inputs."""
        return {}

    def _losses(self, params: Tensors, batch: Any) -> Tensor:
        """Loss of every row: (S, rows), or (rows,)."""
        inputs, targets = input_and_target(batch)
        return self._mapped(self._row_losses, params, (self._to_net(inputs), self._to_net(targets)))

    def _row_losses(self, point: Tensors, inputs: Any, targets: Any) -> Tensor:
        losses = self.loss(self._forward(point, inputs), targets)
        refuse_broadcast(losses, targets)
        return summed_by_row(losses, n_rows(targets))

    def _forward(self, point: Tensors, inputs: Any) -> Tensor:
        args, kwargs = ((), inputs) if isinstance(inputs, dict) else (as_arguments(inputs), {})
        return torch.func.functional_call(self.net, dict(point), args, kwargs)

    def _mapped(self, function: Callable[..., Tensor], params: Tensors, args: tuple[Any, ...]) -> Tensor:
        """Evaluate a function of one point at one point, or at many in chunks."""
        points = self._on_net(params)
        with torch.no_grad():
            if is_one_point(points, self.prior):
                return function(points, *args)
            size = self._chunk(args[0])
            if size == 1:
                return joined([with_first_axis(function(first_point(one), *args)) for one in chunks(points, 1)])
            many = self._vectorised(function.__name__, len(args))
            with vmap_errors_explained():
                return joined([many(chunk, *args) for chunk in chunks(points, size)])

    def _vectorised(self, name: str, n_args: int) -> Callable[..., Tensor]:
        """A method of one point as a function of many; cached, so that it is compiled once."""
        if name not in self._made:
            in_dims = (0, *(None for _ in range(n_args)))
            many = torch.vmap(getattr(self, name), in_dims=in_dims, randomness="error")
            mode = self.compile if isinstance(self.compile, str) else None
            self._made[name] = torch.compile(many, mode=mode) if self.compile else many
        return self._made[name]

    def _on_net(self, params: Any) -> dict[str, Tensor]:
        """Draws as tensors of the module's dtype on its device."""
        if not isinstance(params, Mapping) or set(params) != set(self.prior):
            got = ", ".join(map(str, params)) if isinstance(params, Mapping) else type(params).__name__
            msg = f"`params` must be a dict by the names {', '.join(self.prior)}, got {got}; is the prior likelihood.prior?"
            raise ValueError(msg)
        own = dict(self.net.named_parameters())
        check_devices(params, own)
        return {name: as_tensor(params[name]).to(own[name]) for name in self.prior}

    def _to_net(self, data: Any) -> Any:
        """Inputs or targets on the module's device; floats in its dtype, integers unchanged."""
        if isinstance(data, dict):
            return {name: self._to_net(part) for name, part in data.items()}
        if isinstance(data, tuple | list):
            return tuple(self._to_net(part) for part in data)
        tensor = as_tensor(data)
        like = next(self.net.parameters())
        return tensor.to(like.device, like.dtype if tensor.is_floating_point() else None, non_blocking=True)

    def _chunk(self, inputs: Any) -> int:
        """Number of draws per pass, from the activations of one draw for these input shapes."""
        if self.chunk_size is not None:
            return self.chunk_size
        shapes = repr([part.shape for part in tensors_in(inputs)])
        if shapes not in self._bytes:
            self._bytes[shapes] = activation_bytes(self.net, lambda: self._forward({}, inputs))
        available = _CHUNK_BYTES if next(self.net.parameters()).device.type == "cpu" else _CHUNK_BYTES_GPU
        return max(1, available // max(1, self._bytes[shapes]))

    def _drawn(self, posterior: Any, n_draws: int, seed: int) -> Tensors:
        if isinstance(posterior, Mapping):
            return posterior
        drawn: Tensors = posterior.sample(n_draws, seed=seed)
        return drawn
