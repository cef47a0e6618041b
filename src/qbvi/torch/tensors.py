"""Tensors in tuples and dicts: draws in chunks, outputs joined, and the checks of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qbvi.distributions import Distribution

__all__ = [
    "Floats",
    "Tensor",
    "Tensors",
    "as_arguments",
    "as_tensor",
    "check_devices",
    "chunks",
    "device_of",
    "first_point",
    "input_and_target",
    "is_one_point",
    "joined",
    "n_rows",
    "refuse_broadcast",
    "summed_by_row",
    "tensors_in",
    "to_host",
    "vmap_errors_explained",
    "with_first_axis",
]

Tensor = Any
Floats = NDArray[np.float64]
Tensors = Mapping[str, Any]


def as_tensor(value: Any) -> Tensor:
    """Tensors as they are, arrays as tensors on the host."""
    if isinstance(value, torch.Tensor):
        return value
    array = np.asarray(value)
    return torch.as_tensor(
        array if array.flags.writeable else array.copy()
    )  # it shares memory with the array, and warns if that is read-only


def to_host(tensor: Tensor) -> Floats:
    """A tensor as a NumPy array of doubles."""
    return np.asarray(tensor.detach().cpu().double().numpy())


def device_of(params: Tensors) -> Any:
    """Device of the first parameter; arrays are on the host."""
    first = next(iter(params.values()))
    return first.device if isinstance(first, torch.Tensor) else "cpu"


def check_devices(params: Tensors, own: Tensors) -> None:
    """Refuse draws that are not on the device of the module."""
    devices = {value.device for value in params.values() if isinstance(value, torch.Tensor)}
    module = next(iter(own.values())).device
    if devices - {module}:
        msg = f"draws must be on the device of the module, {module}, got {devices.pop()}; move the module first: net.to(device)"
        raise ValueError(msg)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors of a tensor, tuple or dict, however nested."""
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return [tensor for part in inner for tensor in tensors_in(part)]


def n_rows(targets: Any) -> int:
    """Number of rows of a batch."""
    return len(tensors_in(targets)[0])


def as_arguments(inputs: Any) -> tuple[Any, ...]:
    """Inputs as the arguments of a call: a tuple as it is, else one."""
    return inputs if isinstance(inputs, tuple) else (inputs,)


def input_and_target(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch; refuse what is no pair."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    size = f" of length {len(batch)}" if isinstance(batch, tuple | list) else ""
    msg = (
        f"a batch must be (inputs, targets), got {type(batch).__name__}{size}; pass several inputs as a tuple or dict in the "
        "first position: data=((x1, x2), y)"
    )
    raise ValueError(msg)


def refuse_broadcast(losses: Any, targets: Any) -> None:
    """Refuse losses (N, N), which come from outputs (N, 1) and targets (N,)."""
    is_flat = isinstance(targets, torch.Tensor) and targets.ndim == 1 and len(targets) > 1
    if is_flat and isinstance(losses, torch.Tensor) and losses.shape[:2] == (len(targets), len(targets)):
        msg = (
            f"`loss` must compare each row with its own target, got losses of shape {tuple(losses.shape)} for {len(targets)} rows: outputs (N, 1) and targets (N,) were "
            "broadcast against each other; give targets the shape of the outputs, y[:, None]"
        )
        raise ValueError(msg)


def summed_by_row(losses: Any, rows: int) -> Tensor:
    """Losses of each row, summed over all its other axes: (rows, ...) -> (rows,)."""
    shape = getattr(losses, "shape", ())
    if not shape or shape[0] != rows:
        msg = (
            f"`loss` must return one loss for each of the {rows} rows, got shape {tuple(shape)}; remove the mean or sum over rows, "
            "qbvi takes the sum"
        )
        raise ValueError(msg)
    return losses.reshape(rows, -1).sum(1)


def is_one_point(points: Tensors, prior: Mapping[str, Distribution]) -> bool:
    """Whether parameters are those of one point; refuse them if neither one nor many."""
    extra = {points[name].ndim - len(prior[name].shape) for name in prior}
    fits = all(tuple(points[name].shape)[-len(p.shape) :] == p.shape for name, p in prior.items() if p.shape)
    if not fits or extra not in ({0}, {1}):
        shapes = {name: tuple(value.shape) for name, value in points.items()}
        msg = f"`params` must have the shapes of the module, stacked along a first axis or not, got {shapes}"
        raise ValueError(msg)
    return extra == {0}


def chunks(points: dict[str, Tensor], size: int) -> Iterator[dict[str, Tensor]]:
    """Points along a first axis in chunks of equal size, except the last."""
    n = len(next(iter(points.values())))
    portion = -(-n // max(1, -(-n // size)))
    for start in range(0, n, portion):
        yield {name: value[start : start + portion] for name, value in points.items()}


def first_point(points: dict[str, Tensor]) -> dict[str, Tensor]:
    """The first of several points."""
    return {name: value[0] for name, value in points.items()}


def with_first_axis(output: Any) -> Any:
    """The output of one draw, with a first axis of length one."""
    if isinstance(output, dict):
        return {name: with_first_axis(part) for name, part in output.items()}
    return tuple(map(with_first_axis, output)) if isinstance(output, tuple | list) else output[None]


def joined(parts: list[Any]) -> Any:
    """Join outputs of several chunks; a module may return tensors in tuples and dicts."""
    first = parts[0]
    if isinstance(first, dict):
        return {name: joined([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple | list):
        return tuple(joined(list(same)) for same in zip(*parts, strict=True))
    return torch.cat(parts)


@contextmanager
def vmap_errors_explained() -> Iterator[None]:
    """Explain what to do if `torch.vmap` cannot handle a module: evaluate draws one by one."""
    try:
        yield
    except RuntimeError as error:
        if "atching rule" not in str(error) and "vmap" not in str(error):
            raise
        msg = f"`net` or `loss` cannot be mapped over the draws by torch.vmap; pass chunk_size=1 to go through them one by one ({str(error).splitlines()[0]})"
        raise RuntimeError(msg) from error
