"""PyTorch modules as models: named parameters, vectorised forward passes, and predictions."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import positive_number, whole_number
from qbvi.distributions import Distribution, Normal
from qbvi.naming import nearest

try:
    import torch
    from torch import nn
except ImportError as error:
    _MISSING = 'qbvi.torch needs PyTorch, which is not installed: pip install "qbvi[torch]"'
    raise ImportError(_MISSING) from error

__all__ = ["ModuleLikelihood", "Prediction", "module_likelihood"]

Tensor = Any
Floats = NDArray[np.float64]
Tensors = Mapping[str, Any]

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
    _check_module(net)
    per_row = _unreduced(loss)
    copied = copy.deepcopy(net)
    chosen = _priors(copied, {} if prior is None else prior)
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
        return (-self.scale * self._losses(params, batch)).sum(-1, dtype=torch.float64).to(_device_of(params))

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
        link = _default_link(self.loss) if link is None else link
        outputs = self.outputs(self._drawn(posterior, n_draws, seed), inputs)
        return Prediction(_to_host(link(outputs)))

    def log_score(self, posterior: Any, batch: Any, *, n_draws: int = 1000, seed: int = 0) -> Floats:
        r"""Log predictive density of each row of ``(inputs, targets)``; larger is better.

        .. math:: \log \frac1S \sum_s p(y_i | x_i, \theta_s)

        It is the log density of the data if ``scale * loss`` is minus a log-density. If the loss
        lacks the constant, as a squared error does, so does the score.
        """
        terms = self.terms(self._drawn(posterior, n_draws, seed), batch).double()
        return _to_host(torch.logsumexp(terms, 0) - np.log(len(terms)))

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
        inputs, targets = _pair(batch)
        return self._mapped(self._row_losses, params, (self._to_net(inputs), self._to_net(targets)))

    def _row_losses(self, point: Tensors, inputs: Any, targets: Any) -> Tensor:
        losses = self.loss(self._forward(point, inputs), targets)
        _refuse_broadcast(losses, targets)
        return _summed_by_row(losses, _n_rows(targets))

    def _forward(self, point: Tensors, inputs: Any) -> Tensor:
        args, kwargs = ((), inputs) if isinstance(inputs, dict) else (_listed(inputs), {})
        return torch.func.functional_call(self.net, dict(point), args, kwargs)

    def _mapped(self, function: Callable[..., Tensor], params: Tensors, args: tuple[Any, ...]) -> Tensor:
        """Evaluate a function of one point at one point, or at many in chunks."""
        points = self._on_net(params)
        with torch.no_grad():
            if _is_one(points, self.prior):
                return function(points, *args)
            size = self._chunk(args[0])
            if size == 1:
                return _joined([_stacked(function(_first(one), *args)) for one in _chunks(points, 1)])
            many = self._vectorised(function.__name__, len(args))
            with _explained():
                return _joined([many(chunk, *args) for chunk in _chunks(points, size)])

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
        _check_devices(params, own)
        return {name: _tensor(params[name]).to(own[name]) for name in self.prior}

    def _to_net(self, data: Any) -> Any:
        """Inputs or targets on the module's device; floats in its dtype, integers unchanged."""
        if isinstance(data, dict):
            return {name: self._to_net(part) for name, part in data.items()}
        if isinstance(data, tuple | list):
            return tuple(self._to_net(part) for part in data)
        tensor = _tensor(data)
        like = next(self.net.parameters())
        return tensor.to(like.device, like.dtype if tensor.is_floating_point() else None, non_blocking=True)

    def _chunk(self, inputs: Any) -> int:
        """Number of draws per pass, from the activations of one draw for these input shapes."""
        if self.chunk_size is not None:
            return self.chunk_size
        shapes = repr([part.shape for part in _parts(inputs)])
        if shapes not in self._bytes:
            self._bytes[shapes] = _activation_bytes(self.net, lambda: self._forward({}, inputs))
        available = _CHUNK_BYTES if next(self.net.parameters()).device.type == "cpu" else _CHUNK_BYTES_GPU
        return max(1, available // max(1, self._bytes[shapes]))

    def _drawn(self, posterior: Any, n_draws: int, seed: int) -> Tensors:
        if isinstance(posterior, Mapping):
            return posterior
        drawn: Tensors = posterior.sample(n_draws, seed=seed)
        return drawn


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Posterior predictions of new rows.

    Attributes
    ----------
    draws : array (S, rows, ...)
        One prediction per draw of the parameters. Its spread is the uncertainty about them.

    Examples
    --------
    >>> Prediction(np.array([[[0.2], [0.9]], [[0.4], [0.9]]])).mean
    array([[0.3],
           [0.9]])
    """

    draws: Floats

    @property
    def mean(self) -> Floats:
        """Mean over the draws: (rows, ...)."""
        return np.asarray(self.draws.mean(axis=0))

    @property
    def sd(self) -> Floats:
        """Standard deviation over the draws: (rows, ...)."""
        return np.asarray(self.draws.std(axis=0, ddof=1))

    def interval(self, probability: float = 0.9) -> Floats:
        """Equal-tailed interval over the draws: (2, rows, ...)."""
        if not 0 < probability < 1:
            msg = f"`probability` must lie between 0 and 1, got {probability}"
            raise ValueError(msg)
        return np.quantile(self.draws, [(1 - probability) / 2, (1 + probability) / 2], axis=0)

    def __repr__(self) -> str:
        return f"Prediction of {self.draws.shape[1]} rows from {len(self.draws)} draws: draws, mean, sd, interval()"


_ROW_DEPENDENT = (nn.modules.batchnorm._BatchNorm,)
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)
_NORMALISING = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)


def _check_module(net: Any) -> None:
    if not isinstance(net, nn.Module):
        msg = f"`net` must be a torch.nn.Module, got {type(net).__name__}"
        raise TypeError(msg)
    if not any(parameter.requires_grad for parameter in net.parameters()):
        msg = f"`net` must have parameters to infer, with requires_grad=True, got {type(net).__name__} without any"
        raise ValueError(msg)
    for name, part in net.named_modules():
        where = f"{name or 'the module itself'} ({type(part).__name__})"
        if isinstance(part, _ROW_DEPENDENT) and not part.track_running_stats:
            msg = f"`net` must treat every row by itself, but {where} normalises by the batch; pass track_running_stats=True to it"
            raise ValueError(msg)
        if isinstance(part, (*_ROW_DEPENDENT, *_RANDOM)) and part.training:
            msg = (
                f"`net` must give the same answer at every call, but {where} is in training mode; call net.eval() first: dropout is then "
                "off, the posterior takes its place, and batch norm uses its running statistics"
            )
            raise ValueError(msg)


def _unreduced(loss: Any) -> Callable[[Any, Any], Any]:
    """The loss of each row or element, whatever its reduction."""
    if isinstance(loss, nn.Module):
        single: Callable[[Any, Any], Any] = copy.deepcopy(loss)
        if hasattr(single, "reduction"):
            single.reduction = "none"
        return single
    if not callable(loss):
        msg = f"`loss` must be a module such as torch.nn.CrossEntropyLoss(), or a function of (output, target), got {loss!r}"
        raise TypeError(msg)
    if "reduction" in _argument_names(loss):
        return functools.partial(loss, reduction="none")
    return loss  # type: ignore[no-any-return]


def _argument_names(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a function built in C may have no signature
        return set()


def _priors(net: nn.Module, given: Mapping[str, float | Distribution]) -> dict[str, Distribution]:
    wanted = {name: tuple(p.shape) for name, p in net.named_parameters() if p.requires_grad}
    for pattern in given:
        if not any(fnmatchcase(name, pattern) for name in wanted):
            msg = f"`prior` must have names of the module's parameters, {', '.join(wanted)}, or patterns for them, got {pattern!r}{nearest(pattern, wanted)}"
            raise ValueError(msg)
    return {name: _prior(net, name, shape, given) for name, shape in wanted.items()}


def _prior(
    net: nn.Module, name: str, shape: tuple[int, ...], given: Mapping[str, float | Distribution]
) -> Distribution:
    if name in given:
        return _as_prior(name, shape, given[name])
    for pattern, value in given.items():
        if fnmatchcase(name, pattern):
            return _as_prior(name, shape, value)
    owner, _, own = name.rpartition(".")
    part = net.get_submodule(owner)
    if isinstance(part, _NORMALISING) and own == "weight":
        return Normal(1.0, 1.0, shape=shape)
    if len(shape) < 2 or isinstance(part, nn.Embedding | nn.EmbeddingBag):
        return Normal(0.0, 1.0, shape=shape)
    return Normal(0.0, float(np.prod(shape[1:])) ** -0.5, shape=shape)


def _as_prior(name: str, shape: tuple[int, ...], value: Any) -> Distribution:
    if isinstance(value, Real) and not isinstance(value, bool):
        return Normal(0.0, positive_number(f"prior[{name!r}]", value), shape=shape)
    if not isinstance(value, Distribution):
        msg = f"`prior` must give {name!r} a standard deviation or a distribution such as qbvi.Normal(0, 1, shape={shape}), got {value!r}"
        raise TypeError(msg)
    if value.shape != shape:
        msg = f"`prior` must give {name!r} a distribution of its shape {shape}, got {value!r} of shape {value.shape}"
        raise ValueError(msg)
    return value


def _default_link(loss: Any) -> Callable[[Tensor], Tensor]:
    """Probabilities if the loss takes logits: (S, rows, classes, ...) or (S, rows, ...)."""
    called = loss.func if isinstance(loss, functools.partial) else loss
    if isinstance(called, nn.CrossEntropyLoss) or called is nn.functional.cross_entropy:
        return lambda outputs: torch.softmax(outputs, 2)
    if isinstance(called, nn.BCEWithLogitsLoss) or called is nn.functional.binary_cross_entropy_with_logits:
        return lambda outputs: torch.sigmoid(outputs)
    return lambda outputs: outputs


def _pair(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    size = f" of length {len(batch)}" if isinstance(batch, tuple | list) else ""
    msg = (
        f"a batch must be (inputs, targets), got {type(batch).__name__}{size}; pass several inputs as a tuple or dict in the "
        "first position: data=((x1, x2), y)"
    )
    raise ValueError(msg)


def _refuse_broadcast(losses: Any, targets: Any) -> None:
    """Refuse losses (N, N), which come from outputs (N, 1) and targets (N,)."""
    is_flat = isinstance(targets, torch.Tensor) and targets.ndim == 1 and len(targets) > 1
    if is_flat and isinstance(losses, torch.Tensor) and losses.shape[:2] == (len(targets), len(targets)):
        msg = (
            f"`loss` must compare each row with its own target, got losses of shape {tuple(losses.shape)} for {len(targets)} rows: outputs (N, 1) and targets (N,) were "
            "broadcast against each other; give targets the shape of the outputs, y[:, None]"
        )
        raise ValueError(msg)


def _summed_by_row(losses: Any, rows: int) -> Tensor:
    shape = getattr(losses, "shape", ())
    if not shape or shape[0] != rows:
        msg = (
            f"`loss` must return one loss for each of the {rows} rows, got shape {tuple(shape)}; remove the mean or sum over rows, "
            "qbvi takes the sum"
        )
        raise ValueError(msg)
    return losses.reshape(rows, -1).sum(1)


def _check_devices(params: Tensors, own: Tensors) -> None:
    devices = {value.device for value in params.values() if isinstance(value, torch.Tensor)}
    module = next(iter(own.values())).device
    if devices - {module}:
        msg = f"draws must be on the device of the module, {module}, got {devices.pop()}; move the module first: net.to(device)"
        raise ValueError(msg)


def _tensor(value: Any) -> Tensor:
    if isinstance(value, torch.Tensor):
        return value
    array = np.asarray(value)
    return torch.as_tensor(
        array if array.flags.writeable else array.copy()
    )  # it shares memory with the array, and warns if that is read-only


def _device_of(params: Tensors) -> Any:
    first = next(iter(params.values()))
    return first.device if isinstance(first, torch.Tensor) else "cpu"


def _is_one(points: Tensors, prior: Mapping[str, Distribution]) -> bool:
    """Whether parameters are those of one point; refuse them if neither one nor many."""
    extra = {points[name].ndim - len(prior[name].shape) for name in prior}
    fits = all(tuple(points[name].shape)[-len(p.shape) :] == p.shape for name, p in prior.items() if p.shape)
    if not fits or extra not in ({0}, {1}):
        shapes = {name: tuple(value.shape) for name, value in points.items()}
        msg = f"`params` must have the shapes of the module, stacked along a first axis or not, got {shapes}"
        raise ValueError(msg)
    return extra == {0}


def _chunks(points: dict[str, Tensor], size: int) -> Iterator[dict[str, Tensor]]:
    """Points along a first axis in chunks of equal size, except the last."""
    n = len(next(iter(points.values())))
    portion = -(-n // max(1, -(-n // size)))
    for start in range(0, n, portion):
        yield {name: value[start : start + portion] for name, value in points.items()}


def _first(points: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value[0] for name, value in points.items()}


def _stacked(output: Any) -> Any:
    """The output of one draw, with a first axis of length one."""
    if isinstance(output, dict):
        return {name: _stacked(part) for name, part in output.items()}
    return tuple(map(_stacked, output)) if isinstance(output, tuple | list) else output[None]


@contextmanager
def _explained() -> Iterator[None]:
    """Explain what to do if `torch.vmap` cannot handle a module: evaluate draws one by one."""
    try:
        yield
    except RuntimeError as error:
        if "atching rule" not in str(error) and "vmap" not in str(error):
            raise
        msg = f"`net` or `loss` cannot be mapped over the draws by torch.vmap; pass chunk_size=1 to go through them one by one ({str(error).splitlines()[0]})"
        raise RuntimeError(msg) from error


def _joined(parts: list[Any]) -> Any:
    """Join outputs of several chunks; a module may return tensors in tuples and dicts."""
    first = parts[0]
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple | list):
        return tuple(_joined(list(same)) for same in zip(*parts, strict=True))
    return torch.cat(parts)


def _activation_bytes(net: nn.Module, forward: Callable[[], Any]) -> int:
    """Bytes of the outputs of all leaf modules in one forward pass."""
    sizes: list[int] = []

    def count(_: nn.Module, __: Any, output: Any) -> None:
        sizes.extend(part.numel() * part.element_size() for part in _parts(output))

    leaves = [part for part in net.modules() if next(part.children(), None) is None]
    hooks = [leaf.register_forward_hook(count) for leaf in leaves]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    return sum(sizes)


def _parts(value: Any) -> list[Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return [tensor for part in inner for tensor in _parts(part)]


def _n_rows(targets: Any) -> int:
    return len(_parts(targets)[0])


def _listed(inputs: Any) -> tuple[Any, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)


def _to_host(tensor: Tensor) -> Floats:
    return np.asarray(tensor.detach().cpu().double().numpy())
