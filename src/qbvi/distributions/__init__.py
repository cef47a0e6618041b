"""Priors: the distributions to pass as ``prior=``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qbvi.distributions.base import Distribution
from qbvi.distributions.discrete import Bernoulli, Categorical, NegativeBinomial, Poisson
from qbvi.distributions.from_scipy import SciPyPrior, as_distribution
from qbvi.distributions.improper import Flat, LogPrior, Transformed
from qbvi.distributions.multivariate import Dirichlet, InverseWishart, Wishart
from qbvi.distributions.normal import MultivariateNormal, Normal
from qbvi.distributions.univariate import (
    Beta,
    Exponential,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    LogNormal,
    StudentT,
    Uniform,
)

__all__ = [
    "DISTRIBUTIONS",
    "Bernoulli",
    "Beta",
    "Categorical",
    "Dirichlet",
    "Distribution",
    "Exponential",
    "Flat",
    "Gamma",
    "HalfCauchy",
    "HalfNormal",
    "InverseGamma",
    "InverseWishart",
    "LogNormal",
    "LogPrior",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "Poisson",
    "SciPyPrior",
    "StudentT",
    "Transformed",
    "Uniform",
    "Wishart",
    "as_distribution",
    "distribution_from_spec",
]

DISTRIBUTIONS: dict[str, type[Distribution]] = {
    kind.__name__: kind
    for kind in (
        Normal,
        MultivariateNormal,
        InverseGamma,
        Gamma,
        Beta,
        Exponential,
        LogNormal,
        HalfNormal,
        HalfCauchy,
        StudentT,
        Uniform,
        Dirichlet,
        Wishart,
        InverseWishart,
        Bernoulli,
        Categorical,
        Poisson,
        NegativeBinomial,
        Flat,
        LogPrior,
        Transformed,
        SciPyPrior,
    )
}


def distribution_from_spec(spec: Mapping[str, Any]) -> Distribution:
    """Rebuild a distribution from the output of `Distribution.to_spec`; runs no stored code.

    Examples
    --------
    >>> distribution_from_spec(InverseGamma(3, 1).to_spec())
    InverseGamma(alpha=3.0, beta=1.0)
    """
    kind = spec.get("kind")
    if kind not in DISTRIBUTIONS:
        msg = f"`kind` of a distribution must be one of {', '.join(DISTRIBUTIONS)}, got {kind!r}"
        raise ValueError(msg)
    try:
        return DISTRIBUTIONS[kind].from_spec(spec, distribution_from_spec)
    except (KeyError, TypeError) as error:
        msg = f"the specification of a {kind} is damaged: {error}"
        raise ValueError(msg) from error
