"""A sampler of Cobaya: ``sampler: {qbvi: {...}}`` in an input file.

Cobaya looks for a module with the name of the sampler and calls its ``get_cobaya_class``, which is
also ``qbvi.get_cobaya_class``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cobaya import mpi
from cobaya.collection import SampleCollection
from cobaya.log import LoggedError
from cobaya.model import LogPosterior
from cobaya.sampler import Sampler
from numpy.typing import NDArray

from qbvi._version import __version__
from qbvi.checkpoint import CheckpointError
from qbvi.distributions import Distribution, Uniform, as_distribution
from qbvi.problem import Problem
from qbvi.results import Fit

__all__ = ["QBVI", "LogLikelihood", "get_cobaya_class", "problem_of"]

Floats = NDArray[np.float64]

# Options of `qbvi.fit` that are options of the sampler.
_OPTIONS = (
    *("max_evals", "max_time", "tol", "family", "method", "n_starts"),
    *("on_failure", "on_mismatch", "executor", "timeout", "progress", "seed"),
)
_CHECKPOINT = ".qbvi"  # after the prefix of the output
_EVIDENCE = ".logZ"  # as Cobaya's nested samplers have it


class QBVI(Sampler):  # type: ignore[misc]  # Cobaya has no types
    """Posterior and evidence by qbvi, from few evaluations of the likelihoods.

    Its options are those of `qbvi.fit`, and three of its own:

    - ``n_samples``: number of samples in the chain.
    - ``evaluate_samples``: whether to evaluate the model at each of them. Only then the chain has
      derived parameters that a theory or likelihood computes, and the chi-squared of each of
      several likelihoods. Otherwise its log-posterior is that of the fit.
    - ``start_at_ref``: whether to start from the ``ref`` of the parameters. Otherwise the fit looks
      at the whole prior.

    A run with an ``output`` continues with ``resume: True`` where it was stopped, without repeating
    an evaluation.
    """

    supports_periodic_params = True

    n_samples: int = 2000
    evaluate_samples: bool = False
    start_at_ref: bool = False
    max_evals: int | None = None
    max_time: float | None = None
    tol: float | None = None
    family: str = "auto"
    method: str = "auto"
    n_starts: int | str = "auto"
    on_failure: str = "raise"
    on_mismatch: str = "raise"
    executor: int | None = None
    timeout: float | None = None
    progress: bool | None = None
    seed: int | None = None

    def initialize(self) -> None:
        """Read the priors of the model."""
        try:
            self._problem = problem_of(self.model)
        except (TypeError, ValueError) as error:
            raise LoggedError(self.log, str(error)) from error
        self.fit: Fit | None = None
        self._chain: Any = None

    def run(self) -> None:
        """Fit the posterior, and fill the chain with draws from it."""
        if not mpi.is_main_process():
            return
        init = None
        if self.start_at_ref:
            at = self.model.prior.reference(random_state=self._rng)
            init = dict(zip(self.model.prior.params, np.asarray(at, dtype=np.float64), strict=True))
        try:
            self.fit = self._problem.fit(init=init, checkpoint=self._file(_CHECKPOINT), **self._options())
        except CheckpointError as error:
            raise LoggedError(self.log, f"{error}; 'force: True' starts anew") from error
        self.mpi_info("%s", self.fit)
        if not self.fit.converged:
            self.mpi_warning("Not converged: %s", self.fit.stop_reason)
        self._fill(self.fit)
        if (evidence := self._file(_EVIDENCE)) is not None:
            evidence.write_text(f"logZ: {self.fit.evidence}\nlogZstd: {self.fit.evidence_se}\n", encoding="utf-8")

    def samples(self, combined: bool = False, skip_samples: float = 0, to_getdist: bool = False) -> Any:
        """The chain: a ``SampleCollection``, or ``getdist.MCSamples``.

        Parameters
        ----------
        combined : bool
            Whether all MPI processes get the chain.
        skip_samples : float
            No effect: the samples are independent draws.
        to_getdist : bool
            Whether to convert it for GetDist.
        """
        chain = self._chain
        if combined or to_getdist:
            chain = mpi.share_mpi(chain)
        return chain.to_getdist(model=self.model) if to_getdist else chain

    def products(self, combined: bool = False, skip_samples: float = 0, to_getdist: bool = False) -> dict[str, Any]:
        """Chain ``sample``, log evidence ``logZ`` and its error ``logZstd``, and the ``fit``."""
        if self.fit is None:
            return {}
        sample = self.samples(combined, skip_samples, to_getdist)
        return {"sample": sample, "logZ": self.fit.evidence, "logZstd": self.fit.evidence_se, "fit": self.fit}

    @classmethod
    def output_files_regexps(
        cls, output: Any, info: Any = None, minimal: bool = False
    ) -> list[tuple[re.Pattern[str], None]]:
        """Names of the files of a run: the checkpoint, the chain and the evidence."""
        prefix = re.escape(output.prefix)
        checkpoint = [(re.compile(rf"{prefix}{re.escape(_CHECKPOINT)}(\..*)?$"), None)]
        if minimal:
            return checkpoint
        return [
            *checkpoint,
            (output.collection_regexp(name=None), None),
            (re.compile(rf"{prefix}{re.escape(_EVIDENCE)}$"), None),
        ]

    @classmethod
    def get_version(cls) -> str:
        """Version of qbvi."""
        return __version__

    @classmethod
    def is_installed(cls, **_: Any) -> bool:
        """True: it comes with qbvi."""
        return True

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _OPTIONS}

    def _file(self, extension: str) -> Path | None:
        return Path(self.output.folder) / f"{self.output.prefix}{extension}" if self.output else None

    def _fill(self, fit: Fit) -> None:
        """Draws from the posterior as a collection of Cobaya."""
        self._chain = SampleCollection(self.model, self.output, name="1", sample_type="mcmc", check_logp_sums=False)
        draws = fit.sample(int(self.n_samples), seed=fit.seed)
        log_post = np.asarray(fit.log_prob(draws, batched=True)) + fit.evidence
        theta = np.column_stack([draws[name] for name in self.model.prior.params])
        for point, log_q in zip(theta, log_post.tolist(), strict=True):
            found = self.model.logposterior(point) if self.evaluate_samples else self._by_the_fit(point, log_q)
            if found.logpost > -np.inf:
                self._chain.add(point, logpost=found)
        self._chain.out_update()

    def _by_the_fit(self, point: Floats, log_post: float) -> Any:
        """Priors and derived parameters at a sample, without an evaluation of the likelihoods."""
        self.model.parameterization.to_input(point)
        unknown = dict.fromkeys(self.model.parameterization.output_params(), np.nan)
        derived = list(self.model.parameterization.to_derived(unknown).values())
        log_priors = [float(value) for value in self.model.prior.logps(point)]
        if len(self.model.likelihood) > 1:
            return LogPosterior(logpost=log_post, logpriors=log_priors, derived=derived)
        return LogPosterior(logpriors=log_priors, loglikes=[log_post - sum(log_priors)], derived=derived)


def get_cobaya_class() -> type[QBVI]:
    """The class behind ``sampler: {qbvi: ...}``."""
    return QBVI


def problem_of(model: Any) -> Problem:
    """A problem from a model of Cobaya.

    Priors of single parameters are those of the fit. Priors of the block ``prior``, which are not
    normalised, multiply the likelihood.

    Parameters
    ----------
    model : cobaya.model.Model
        As `cobaya.model.get_model` returns it.
    """
    periodic = {name for name, info in model.parameterization.sampled_params_info().items() if info.get("periodic")}
    prior = {
        name: _prior(name, pdf, name in periodic) for name, pdf in zip(model.prior.params, model.prior.pdf, strict=True)
    }
    return Problem(LogLikelihood(model), prior)


@dataclass(eq=False)
class LogLikelihood:
    """The likelihoods of a model, and its priors of several parameters, as one function."""

    model: Any
    info: str = field(init=False)  # what a checkpoint compares

    def __post_init__(self) -> None:
        self.info = repr(self.model.info())

    def __call__(self, values: Mapping[str, Any]) -> float:
        """Their sum at one point."""
        point = {name: float(values[name]) for name in self.model.prior.params}
        found = self.model.logposterior(point, return_derived=False)
        if found.logpost == -np.inf:
            return -np.inf
        return float(found.loglike) + float(sum(found.logpriors[1:]))


def _prior(name: str, pdf: Any, is_periodic: bool) -> Distribution:
    if not is_periodic:
        return _named(name, as_distribution, pdf)
    if pdf.dist.name != "uniform":
        msg = (
            f"the prior of {name!r} must be uniform if it is periodic, got {pdf.dist.name}; "
            "leave out periodic: True if its posterior is not near the ends"
        )
        raise ValueError(msg)
    low, high = pdf.support()
    return Uniform(low, high, periodic=True)


def _named(name: str, read: Callable[[Any], Distribution], pdf: Any) -> Distribution:
    try:
        return read(pdf)
    except (TypeError, ValueError) as error:
        msg = f"prior of {name!r}: {error}"
        raise type(error)(msg) from error
