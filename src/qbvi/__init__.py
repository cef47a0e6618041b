"""Posteriors for log-likelihoods that cannot be differentiated, from function values alone.

>>> import numpy as np, qbvi
>>> y = np.array([1.2, 0.7, 1.9])
>>> fit = qbvi.fit(lambda m: -0.5 * np.sum((y - m) ** 2), prior=qbvi.Normal(0, 1), seed=1)
>>> fit.converged
True
"""

from qbvi import baselines, models
from qbvi._version import __version__ as __version__
from qbvi.algorithm import QBVI, paper
from qbvi.distributions import (
    Beta,
    Dirichlet,
    Exponential,
    Flat,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    LogNormal,
    LogPrior,
    MultivariateNormal,
    Normal,
    StudentT,
    Transformed,
    Uniform,
)
from qbvi.estimators import ControlVariate, LeaveOneOut, Residual, ScoreFunction
from qbvi.evaluate import EvaluationError, Failure
from qbvi.fit import fit
from qbvi.random import Antithetic, Independent, Sobol
from qbvi.regression import Regression
from qbvi.results import Fit
from qbvi.run import DomainError, Iterate
from qbvi.steps import BoundedRate, CholeskyLog, ExponentialMap, Plain, Retraction
from qbvi.stopping import MaxIterations, ParameterChange, Patience
from qbvi.storage import load
from qbvi.supports import Bijection, Interval, Ordered, Positive, Real, Simplex
from qbvi.updates import ClipByNorm, LearningRate, Momentum, SeparateRates

__all__ = [
    "QBVI",
    "Antithetic",
    "Beta",
    "Bijection",
    "BoundedRate",
    "CholeskyLog",
    "ClipByNorm",
    "ControlVariate",
    "Dirichlet",
    "DomainError",
    "EvaluationError",
    "Exponential",
    "ExponentialMap",
    "Failure",
    "Fit",
    "Flat",
    "Gamma",
    "HalfCauchy",
    "HalfNormal",
    "Independent",
    "Interval",
    "InverseGamma",
    "Iterate",
    "LearningRate",
    "LeaveOneOut",
    "LogNormal",
    "LogPrior",
    "MaxIterations",
    "Momentum",
    "MultivariateNormal",
    "Normal",
    "Ordered",
    "ParameterChange",
    "Patience",
    "Plain",
    "Positive",
    "Real",
    "Regression",
    "Residual",
    "Retraction",
    "ScoreFunction",
    "SeparateRates",
    "Simplex",
    "Sobol",
    "StudentT",
    "Transformed",
    "Uniform",
    "baselines",
    "fit",
    "load",
    "models",
    "paper",
]
