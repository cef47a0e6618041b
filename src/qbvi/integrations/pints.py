"""Problems of PINTS: log-posteriors of time series, with their log-priors."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import shown
from qbvi.distributions import Normal, Transformed
from qbvi.integrations.cube import unique_names
from qbvi.integrations.log_prob import from_log_prob
from qbvi.model import Model
from qbvi.problem import Problem
from qbvi.supports import UnitCube

__all__ = ["from_pints"]

Floats = NDArray[np.float64]

_COMPARISONS = 8  # points at which the map from the unit cube is compared with the log-prior
_TOLERANCE = 1e-3  # nats that they may differ by there, after a constant; differences are exact to 1e-6


def from_pints(log_posterior: Any, init: Any = None, names: Sequence[str] | None = None) -> Problem:
    """A problem from a log-posterior of PINTS.

    The prior is reached through the unit cube (``LogPrior.convert_from_unit_cube``), so parameters
    stay within their boundaries, and no transformation is needed. `qbvi.Fit.evidence` is the log
    marginal likelihood.

    Parameters
    ----------
    log_posterior : pints.LogPosterior or pints.LogPDF
        The posterior, on the scale of the model's parameters. A ``LogPDF`` without a prior needs
        ``init``.
    init : array (d,) or array (n, d), optional
        Where to start: a point, or the starting points of chains. By default the middle of the
        prior. It is needed if the prior has no map from the unit cube, as with boundaries that are
        not rectangular.
    names : sequence of str, optional
        Names of the parameters, for tables and plots.

    Returns
    -------
    Problem
        ``problem.fit(seed=1)`` fits it.

    Examples
    --------
    Logistic growth, of which the growth rate and the capacity are unknown::

        model = pints.toy.LogisticModel()
        problem = pints.SingleOutputProblem(model, times, values)
        log_likelihood = pints.GaussianKnownSigmaLogLikelihood(problem, sigma)
        log_prior = pints.UniformLogPrior([0.01, 400], [0.02, 600])
        log_posterior = pints.LogPosterior(log_likelihood, log_prior)
        fit = qbvi.from_pints(log_posterior, names=["rate", "capacity"]).fit(seed=1)
    """
    pints = _package()
    _check(log_posterior, pints)
    d = int(log_posterior.n_parameters())
    if not isinstance(log_posterior, pints.LogPosterior):
        return _without_prior(log_posterior, init, names, f"a {type(log_posterior).__name__} has no prior")
    log_prior, likelihood = log_posterior.log_prior(), Value(log_posterior.log_likelihood())
    cube = UnitCube(FromCube(log_prior), d, names=() if names is None else unique_names(names, d))
    objection = _objection(cube, log_prior)
    if objection:
        return _without_prior(log_posterior, init, names, objection)
    prior = Transformed(Normal(0.0, 1.0, shape=d), cube)
    start = None if init is None else np.atleast_2d(np.asarray(init, dtype=np.float64))[0]
    return Problem(likelihood, prior, start)


@dataclass(frozen=True, eq=False)
class Value:
    """A log-density of PINTS as a function of one point."""

    log_pdf: Callable[[Any], Any]

    def __call__(self, theta: Floats, *args: Any) -> float:
        """The value as a Python float."""
        return float(self.log_pdf(theta, *args))


@dataclass(frozen=True, eq=False)
class FromCube:
    """The map of a log-prior from the unit cube, part by part.

    PINTS's own map of a composed prior takes parts of one parameter only.
    """

    log_prior: Any

    def __call__(self, u: Floats) -> Floats:
        """Parameters (d,) of a point (d,) of the cube."""
        parts = getattr(self.log_prior, "_priors", (self.log_prior,))
        ends = np.cumsum([part.n_parameters() for part in parts])[:-1]
        found = [_converted(part, own) for part, own in zip(parts, np.split(u, ends), strict=True)]
        return np.concatenate(found)


def _converted(log_prior: Any, u: Floats) -> Floats:
    if getattr(log_prior, "_priors", None) is not None:
        return FromCube(log_prior)(u)
    theta = log_prior.convert_from_unit_cube(float(u[0]) if len(u) == 1 else u)
    return np.ravel(np.asarray(theta, dtype=np.float64))


def _objection(cube: UnitCube, log_prior: Any) -> str:
    """Why the prior cannot be reached through the unit cube; empty if it can."""
    kind = type(log_prior).__name__
    z = np.random.default_rng(0).uniform(-1.5, 1.5, (_COMPARISONS, cube.size))
    try:
        theta = cube.constrain(z, (cube.size,))
        through_cube = -0.5 * np.sum(z**2 + math.log(2 * math.pi), axis=1) - cube.log_jacobian(z, (cube.size,))
    # Log-priors of users have no such map, or one that does not work: it is optional in PINTS.
    except Exception as error:  # noqa: BLE001
        return f"the prior, a {kind}, has no map from the unit cube ({type(error).__name__})"
    difference = np.array([float(log_prior(point)) for point in theta]) - through_cube
    if not np.ptp(difference) < _TOLERANCE:
        return f"the map of the prior, a {kind}, from the unit cube does not have its density"
    return ""


def _without_prior(log_pdf: Any, init: Any, names: Sequence[str] | None, reason: str) -> Problem:
    if init is None:
        msg = f"`init` must be given, because {reason}: a point where the density is positive, or starts of chains"
        raise ValueError(msg)
    problem = from_log_prob(Value(log_pdf), init, names=names)
    d, n = len(Model(problem.prior).labels), int(log_pdf.n_parameters())
    if d != n:
        msg = f"`init` must have {n} entries, as the density has parameters, got {d}"
        raise ValueError(msg)
    return problem


def _package() -> Any:
    try:
        return importlib.import_module("pints")
    except ImportError as error:
        msg = "`from_pints` needs the package pints, which is not installed: pip install 'qbvi[pints]'"
        raise ImportError(msg) from error


def _check(given: Any, pints: Any) -> None:
    if isinstance(given, pints.LogPosterior):
        return
    kind = type(given).__name__
    reasons: list[tuple[Any, str]] = [
        (pints.ErrorMeasure, "an error measure is no log-density; make a log-likelihood of the problem"),
        (pints.TransformedLogPDF, "it is on the scale of the search; pass the log-posterior that was transformed"),
        (
            pints.LogLikelihood,
            "a likelihood alone is no posterior; write pints.LogPosterior(log_likelihood, log_prior)",
        ),
        (pints.LogPrior, "a prior alone is no posterior; write pints.LogPosterior(log_likelihood, log_prior)"),
    ]
    for refused, way_out in reasons:
        if isinstance(given, refused):
            msg = f"`log_posterior` must be a pints.LogPosterior, got a {kind}: {way_out}"
            raise TypeError(msg)
    if not isinstance(given, pints.LogPDF):
        msg = (
            f"`log_posterior` must be a pints.LogPosterior or another pints.LogPDF, got {shown(given)}; "
            "qbvi.from_log_prob takes any function of one vector"
        )
        raise TypeError(msg)
