"""Draws in, values out: the only place where the user's function is called."""

from qbvi.evaluate.batches import Batches
from qbvi.evaluate.black_box import BlackBox, Evaluated, EvaluationError
from qbvi.evaluate.calls import Outcome
from qbvi.evaluate.failures import Failure
from qbvi.evaluate.on_device import DeviceBatches, DeviceBox, FromHost, clear_cache
from qbvi.evaluate.policy import OnFailure, Retry
from qbvi.evaluate.sharded import ShardedLikelihood

__all__ = [
    "Batches",
    "BlackBox",
    "DeviceBatches",
    "DeviceBox",
    "Evaluated",
    "EvaluationError",
    "Failure",
    "FromHost",
    "OnFailure",
    "Outcome",
    "Retry",
    "ShardedLikelihood",
    "clear_cache",
]
