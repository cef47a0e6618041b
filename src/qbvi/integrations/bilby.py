"""A sampler of bilby: ``bilby.run_sampler(likelihood, priors, sampler="qbvi")``.

The entry point ``bilby.samplers`` of the package names `Qbvi`, so bilby finds it by itself.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from bilby.core.likelihood import _safe_likelihood_call
from bilby.core.prior import (
    ConditionalPriorDict,
    DiscreteValues,
    JointPrior,
    PriorDict,
    Uniform,
    WeightedDiscreteValues,
)
from bilby.core.sampler.base_sampler import Sampler, signal_wrapper
from bilby.core.utils import logger
from numpy.typing import NDArray

from qbvi import distributions
from qbvi.checkpoint import CheckpointError
from qbvi.ending import StopKind
from qbvi.problem import Problem
from qbvi.results import Fit
from qbvi.supports import UnitCube

__all__ = ["LogLikelihood", "Qbvi", "problem_of"]

Floats = NDArray[np.float64]

_CUBE = "cube"  # the parameter that holds all others than the periodic ones
_ZERO = -1e300  # below that, bilby means minus infinity
_DRAWS = 5000  # posterior samples, unless the user wants another number


class Qbvi(Sampler):  # type: ignore[misc]  # bilby has no types
    """Posterior and evidence by qbvi, from few evaluations of the likelihood.

    All options of `qbvi.fit` that do not belong to bilby are options of the sampler:
    ``max_evals``, ``max_time``, ``tol``, ``family``, ``method``, ``n_starts``, ``on_failure``,
    ``on_mismatch``, ``timeout``, ``progress`` and ``seed``. ``n_samples`` is the number of
    posterior samples. ``npool`` is the number of processes that evaluate the likelihood.

    - A run that was stopped continues where it was, without repeating an evaluation, if it is
      started again with the same ``outdir`` and ``label``. ``resume=False`` starts anew.
    - A uniform prior with ``boundary="periodic"`` is a circle. ``"reflective"`` is a wall.
    - A point that violates a `bilby.core.prior.Constraint` has a likelihood of zero, and costs no
      evaluation. The evidence is that of bilby's nested samplers: the priors are not normalised
      again.
    - Samples have no log-likelihoods, as each would cost an evaluation.
    """

    sampler_name = "qbvi"
    sampling_seed_key = "seed"
    default_kwargs: Mapping[str, Any] = {
        "family": "auto",
        "max_evals": None,
        "max_time": None,
        "method": "auto",
        "n_samples": _DRAWS,
        "n_starts": "auto",
        "on_failure": "raise",
        "on_mismatch": "raise",
        "progress": None,
        "resume": True,
        "seed": None,
        "timeout": None,
        "tol": None,
    }

    @signal_wrapper  # type: ignore[untyped-decorator]
    def run_sampler(self) -> Any:
        """Fit the posterior and fill bilby's result."""
        keys = self.search_parameter_keys
        problem = problem_of(self.likelihood, self.priors, keys, self.parameters, bool(self.use_ratio))
        options = {name: value for name, value in self.kwargs.items() if name not in ("n_samples", "resume")}
        processes = self.npool if self.npool is not None and self.npool > 1 else None
        try:
            fit = problem.fit(**options, executor=processes, checkpoint=self._checkpoint())
        except CheckpointError as error:
            msg = f"{error}; resume=False starts anew"
            raise CheckpointError(msg) from error
        if fit.stop_kind in (StopKind.INTERRUPTED, StopKind.INTERRUPTED_AT_END):
            self.write_current_state_and_exit()
        if not fit.converged:
            logger.warning(f"qbvi: not converged: {fit.stop_reason}")
        draws = fit.sample(self.kwargs["n_samples"], seed=fit.seed)
        self._fill(fit, problem.log_likelihood.theta(draws))  # type: ignore[attr-defined]
        return self.result

    def write_current_state_and_exit(self, signum: Any = None, frame: Any = None) -> None:
        """End the process. Every evaluation is on the disk as soon as it is made."""
        self._log_interruption(signum=signum)
        sys.exit(self.exit_code)

    def _time_likelihood(self, n_evaluations: int = 0) -> float:
        """No calls for timing: bilby would make a hundred, as many as a fit may need."""
        return float("nan")

    def _checkpoint(self) -> Path:
        folder = Path(self.outdir) / f"{self.sampler_name}_{self.label}"
        if not self.kwargs["resume"]:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "checkpoint"

    def _fill(self, fit: Fit, theta: Floats) -> None:
        self.result.samples = theta
        self.result.log_likelihood_evaluations = np.full(len(theta), np.nan)
        self.result.log_evidence, self.result.log_evidence_err = fit.evidence, fit.evidence_se
        self.result.num_likelihood_evaluations = fit.n_evals
        about = {"converged": fit.converged, "stop_reason": fit.stop_reason, "notes": list(fit.notes)}
        about |= {"elbo": fit.elbo, "missing": fit.missing, "missing_err": fit.missing_se}
        self.result.meta_data = {**(self.result.meta_data or {}), "qbvi": about}


def problem_of(
    likelihood: Any, priors: Any, keys: Sequence[str], fixed: Mapping[str, Any] | None = None, use_ratio: bool = False
) -> Problem:
    """A problem from a likelihood and priors of bilby.

    Parameters
    ----------
    likelihood : bilby.Likelihood
    priors : bilby.core.prior.PriorDict
    keys : sequence of str
        The parameters to fit.
    fixed : mapping
        Values of the others.
    use_ratio : bool
        Whether the function is the log-likelihood ratio to the noise model.
    """
    circles = [key for key in keys if getattr(priors[key], "boundary", None) == "periodic"]
    _check(priors, keys, circles)
    others = [key for key in keys if key not in circles]
    prior: dict[str, Any] = {}
    if others:
        cube = UnitCube(_Rescaled(_joinable(priors), tuple(keys), tuple(others)), len(others), names=tuple(others))
        prior[_CUBE] = distributions.Transformed(distributions.Normal(0.0, 1.0, shape=len(others)), cube)
        _check_transform(priors, others, cube)
    for key in circles:
        prior[key] = distributions.Uniform(priors[key].minimum, priors[key].maximum, periodic=True)
    function = LogLikelihood(likelihood, priors, tuple(keys), tuple(others), dict(fixed or {}), use_ratio)
    return Problem(function, prior)


@dataclass(eq=False)
class LogLikelihood:
    """A likelihood of bilby as a function of the values of a fit."""

    likelihood: Any
    priors: Any
    keys: tuple[str, ...]
    others: tuple[str, ...]  # those that are not periodic
    fixed: dict[str, Any]
    use_ratio: bool
    # What a checkpoint compares: the arrays of the likelihood, such as its data.
    arrays: dict[str, Floats] = field(init=False)

    def __post_init__(self) -> None:
        held = getattr(self.likelihood, "__dict__", {})
        self.arrays = {name: value for name, value in held.items() if isinstance(value, np.ndarray)}

    def __call__(self, values: Mapping[str, Any]) -> float:
        """The log-likelihood, or its ratio; minus infinity where a constraint is violated."""
        point = dict(zip(self.keys, self.theta(values).tolist(), strict=True))
        if self.priors.constraint_keys and not self.priors.evaluate_constraints(dict(point)):
            return -np.inf
        value = float(_safe_likelihood_call(self.likelihood, {**self.fixed, **point}, self.use_ratio))
        return -np.inf if value < _ZERO else value

    def theta(self, values: Mapping[str, Any]) -> Floats:
        """Values of one point, or of several, in the order of bilby: (..., d)."""
        column = {key: values[_CUBE][..., i] for i, key in enumerate(self.others)}
        column |= {key: values[key] for key in self.keys if key not in column}
        return np.stack([np.asarray(column[key], dtype=np.float64) for key in self.keys], axis=-1)


@dataclass(eq=False)
class _Rescaled:
    """The prior transform of some of the keys."""

    priors: Any
    keys: tuple[str, ...]
    wanted: tuple[str, ...]
    text: str = field(init=False)  # what a checkpoint compares

    def __post_init__(self) -> None:
        self.text = repr({key: self.priors[key] for key in self.keys})

    def __call__(self, u: Floats) -> Floats:
        cube = dict.fromkeys(self.keys, 0.5) | dict(zip(self.wanted, u.tolist(), strict=True))
        theta = dict(zip(self.keys, self.priors.rescale(list(self.keys), list(cube.values())), strict=True))
        return np.array([theta[key] for key in self.wanted], dtype=np.float64)


def _joinable(priors: Any) -> Any:
    """Priors whose `rescale` returns joint ones in order, which that of `PriorDict` does not."""
    if any(isinstance(prior, JointPrior) for prior in priors.values()) and not isinstance(priors, ConditionalPriorDict):
        return ConditionalPriorDict(dict(priors), conversion_function=priors.conversion_function)
    return priors


def _check(priors: PriorDict, keys: Sequence[str], circles: Sequence[str]) -> None:
    """Refuse priors that have no place in a fit, by name."""
    for key in keys:
        prior, kind = priors[key], type(priors[key]).__name__
        if isinstance(prior, DiscreteValues | WeightedDiscreteValues):
            msg = (
                f"the prior of {key!r} must be continuous, got {kind}; run once for each of its values, with {key} fixed, "
                "and weigh the results by their evidence"
            )
            raise TypeError(msg)
        if key in circles and type(prior) is not Uniform:
            msg = (
                f"the prior of {key!r} must be Uniform if its boundary is periodic, got {kind}; "
                "take boundary=None if its posterior is not near the ends"
            )
            raise ValueError(msg)
        needed = sorted(set(getattr(prior, "required_variables", [])) & set(circles))
        if needed:
            msg = (
                f"the prior of {key!r} must not depend on a parameter with a periodic boundary, got {needed[0]!r}; "
                f"take boundary=None for {needed[0]!r}"
            )
            raise ValueError(msg)


def _check_transform(priors: Any, keys: Sequence[str], cube: UnitCube) -> None:
    """Refuse a prior whose `rescale` gives no numbers, as that of bilby's base class does."""
    rescale: Callable[[Floats], Any] = cube.transform
    try:
        middle = rescale(np.full(len(keys), 0.5))
    except (TypeError, ValueError):
        middle = np.full(len(keys), np.nan)
    for key, value in zip(keys, middle, strict=True):
        if not np.isfinite(value):
            kind = type(priors[key]).__name__
            msg = f"the prior of {key!r} must have a `rescale` that maps (0, 1) to its values, got {kind}, which gives {value} at 0.5"
            raise ValueError(msg)
