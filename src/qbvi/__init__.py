"""Posteriors for log-likelihoods that cannot be differentiated, from function values alone.

>>> import numpy as np, qbvi
>>> y = np.array([1.2, 0.7, 1.9])
>>> fit = qbvi.fit(lambda m: -0.5 * np.sum((y - m) ** 2), prior=qbvi.Normal(0, 1), seed=1)
>>> fit.converged
True
"""

import importlib
from typing import TYPE_CHECKING, Any

from qbvi import baselines
from qbvi._version import __version__ as __version__
from qbvi.algorithm import QBVI, paper
from qbvi.arrange import LowRank
from qbvi.ask import Ask
from qbvi.backends import BackendError
from qbvi.checkpoint import CheckpointError
from qbvi.compare import Comparison, compare
from qbvi.conversation import Iterate
from qbvi.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    Dirichlet,
    Exponential,
    Flat,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    InverseWishart,
    LogNormal,
    LogPrior,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
    Transformed,
    Uniform,
    Wishart,
)
from qbvi.estimators import ControlVariate, LeaveOneOut, Residual, ResidualControlVariate, ScoreFunction
from qbvi.evaluate import EvaluationError, Failure, Retry, ShardedLikelihood, clear_cache
from qbvi.evaluations import Evaluations
from qbvi.fit import fit
from qbvi.free import Free
from qbvi.loo import Loo
from qbvi.mcmc import MCMC
from qbvi.predict import Predictive
from qbvi.problem import Problem
from qbvi.random import Antithetic, Independent, Sobol
from qbvi.regression import LowRankRegression, MeanFieldRegression, Regression, Ridge
from qbvi.results import Fit
from qbvi.run import DomainError
from qbvi.steps import BoundedRate, CholeskyLog, ExponentialMap, InParameters, Plain, Retraction
from qbvi.stopping import MaxIterations, ParameterChange, Patience, Plateau
from qbvi.storage import load
from qbvi.supports import (
    Bijection,
    Interval,
    Ordered,
    Periodic,
    Positive,
    PositiveDefinite,
    Real,
    Simplex,
    WholeNumbers,
)
from qbvi.updates import ClipByNorm, Euclidean, LearningRate, Momentum, SeparateRates

if TYPE_CHECKING:
    from qbvi import models
    from qbvi.integrations.cube import from_cube
    from qbvi.integrations.log_prob import from_log_prob
    from qbvi.integrations.pints import from_pints
    from qbvi.integrations.pymc import from_pymc
    from qbvi.integrations.umbridge import umbridge

__all__ = [
    "MCMC",
    "QBVI",
    "Antithetic",
    "Ask",
    "BackendError",
    "Bernoulli",
    "Beta",
    "Bijection",
    "BoundedRate",
    "Categorical",
    "CheckpointError",
    "CholeskyLog",
    "ClipByNorm",
    "Comparison",
    "ControlVariate",
    "Dirichlet",
    "DomainError",
    "Euclidean",
    "EvaluationError",
    "Evaluations",
    "Exponential",
    "ExponentialMap",
    "Failure",
    "Fit",
    "Flat",
    "Free",
    "Gamma",
    "HalfCauchy",
    "HalfNormal",
    "InParameters",
    "Independent",
    "Interval",
    "InverseGamma",
    "InverseWishart",
    "Iterate",
    "LearningRate",
    "LeaveOneOut",
    "LogNormal",
    "LogPrior",
    "Loo",
    "LowRank",
    "LowRankRegression",
    "MaxIterations",
    "MeanFieldRegression",
    "Momentum",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "Ordered",
    "ParameterChange",
    "Patience",
    "Periodic",
    "Plain",
    "Plateau",
    "Poisson",
    "Positive",
    "PositiveDefinite",
    "Predictive",
    "Problem",
    "Real",
    "Regression",
    "Residual",
    "ResidualControlVariate",
    "Retraction",
    "Retry",
    "Ridge",
    "ScoreFunction",
    "SeparateRates",
    "ShardedLikelihood",
    "Simplex",
    "Sobol",
    "StudentT",
    "Transformed",
    "Uniform",
    "WholeNumbers",
    "Wishart",
    "baselines",
    "clear_cache",
    "compare",
    "fit",
    "from_cube",
    "from_log_prob",
    "from_pints",
    "from_pymc",
    "load",
    "models",
    "paper",
    "umbridge",
]

# Ready-made models, and problems of other packages: fits of functions do not need them.
_ON_USE = {
    "from_cube": "cube",
    "from_log_prob": "log_prob",
    "from_pymc": "pymc",
    "get_cobaya_class": "cobaya",  # by this name Cobaya finds the class for `sampler: {qbvi: ...}`
    "from_pints": "pints",
    "umbridge": "umbridge",
}


def __getattr__(name: str) -> Any:
    if name == "models":
        return importlib.import_module("qbvi.models")
    if name not in _ON_USE:
        msg = f"module 'qbvi' has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(f"qbvi.integrations.{_ON_USE[name]}"), name)
