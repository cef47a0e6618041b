"""What a module and its loss must be, and what follows from them: priors, link, memory."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import nn

from qbvi.arguments import positive_number
from qbvi.distributions import Distribution, Normal
from qbvi.naming import nearest
from qbvi.torch.tensors import Tensor, tensors_in

__all__ = ["activation_bytes", "check_module", "default_link", "module_priors", "per_row_loss"]

_ROW_DEPENDENT = (nn.modules.batchnorm._BatchNorm,)
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)
_NORMALISING = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)


def check_module(net: Any) -> None:
    """Refuse what is no module, has nothing to infer, or answers differently at every call."""
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


def per_row_loss(loss: Any) -> Callable[[Any, Any], Any]:
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


def module_priors(net: nn.Module, given: Mapping[str, float | Distribution]) -> dict[str, Distribution]:
    """The prior of every parameter: as given by name or pattern, else the default for its kind."""
    wanted = {name: tuple(p.shape) for name, p in net.named_parameters() if p.requires_grad}
    for pattern in given:
        if not any(fnmatchcase(name, pattern) for name in wanted):
            msg = f"`prior` must have names of the module's parameters, {', '.join(wanted)}, or patterns for them, got {pattern!r}{nearest(pattern, wanted)}"
            raise ValueError(msg)
    return {name: _prior(net, name, shape, given) for name, shape in wanted.items()}


def default_link(loss: Any) -> Callable[[Tensor], Tensor]:
    """Probabilities if the loss takes logits: (S, rows, classes, ...) or (S, rows, ...)."""
    called = loss.func if isinstance(loss, functools.partial) else loss
    if isinstance(called, nn.CrossEntropyLoss) or called is nn.functional.cross_entropy:
        return lambda outputs: torch.softmax(outputs, 2)
    if isinstance(called, nn.BCEWithLogitsLoss) or called is nn.functional.binary_cross_entropy_with_logits:
        return lambda outputs: torch.sigmoid(outputs)
    return lambda outputs: outputs


def activation_bytes(net: nn.Module, forward: Callable[[], Any]) -> int:
    """Bytes of the outputs of all leaf modules in one forward pass."""
    sizes: list[int] = []

    def count(_: nn.Module, __: Any, output: Any) -> None:
        sizes.extend(part.numel() * part.element_size() for part in tensors_in(output))

    leaves = [part for part in net.modules() if next(part.children(), None) is None]
    hooks = [leaf.register_forward_hook(count) for leaf in leaves]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    return sum(sizes)


def _argument_names(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a function built in C may have no signature
        return set()


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
