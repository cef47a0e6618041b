"""Estimators of the natural gradient from function values: one file each."""

from qbvi.estimators.base import Batch, Estimator
from qbvi.estimators.control_variate import ControlVariate
from qbvi.estimators.leave_one_out import LeaveOneOut
from qbvi.estimators.residual import Residual
from qbvi.estimators.residual_control_variate import ResidualControlVariate
from qbvi.estimators.score_function import ScoreFunction

__all__ = [
    "Batch",
    "ControlVariate",
    "Estimator",
    "LeaveOneOut",
    "Residual",
    "ResidualControlVariate",
    "ScoreFunction",
]
