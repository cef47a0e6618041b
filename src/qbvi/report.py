"""Report and Trace: how a posterior was found, and whether to trust it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.diagnostics import Khat, judge_khat, khat_error, khat_limit
from qbvi.ending import Stop, StopKind
from qbvi.evaluate.failures import Failure
from qbvi.evaluations import Evaluations
from qbvi.paths import Start

__all__ = ["Report", "Trace"]

Floats = NDArray[np.float64]

_MOST_EVALS = 1e18  # more do not fit into 64 bits


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """History of a fit, with one entry per iteration.

    Attributes
    ----------
    n_evals : array (T,)
        Evaluations of the user's function so far.
    elbo, elbo_smooth : array (T,)
        Estimate of the lower bound from the draws of the iteration, and its moving average.
    step, grad_norm, seconds : array (T,)
        Length of the step, norm of the direction, and time since the start.
    mean, sd : array (T, d)
        Moments of the approximation, on the unconstrained scale.
    gap : array (T,)
        Nats that the method expects to gain after the step; NaN if it makes no prediction.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.array([1.0, 2.0])
    >>> mean, sd = np.zeros((2, 3)), np.ones((2, 3))
    >>> trace = Trace(100 * one, -9 / one, -9 / one, one, one, one, mean, sd)
    >>> trace
    Trace of 2 iterations, 200 evaluations: elbo from -9 to -4.5
      n_evals, elbo, elbo_smooth, step, grad_norm, seconds, gap (2,); mean, sd (2, 3)
    >>> trace["elbo"]
    array([-9. , -4.5])
    """

    n_evals: NDArray[np.int64]
    elbo: Floats
    elbo_smooth: Floats
    step: Floats
    grad_norm: Floats
    seconds: Floats
    mean: Floats
    sd: Floats
    gap: Floats = None  # type: ignore[assignment]  # set in __post_init__

    def __post_init__(self) -> None:
        length = len(self.n_evals)
        if self.gap is None:
            object.__setattr__(self, "gap", np.full(length, np.nan))
        if not (np.abs(np.asarray(self.n_evals, dtype=np.float64)) < _MOST_EVALS).all():
            msg = f"`n_evals` must be whole numbers below {_MOST_EVALS:.0e}, got {np.max(self.n_evals)}"
            raise ValueError(msg)
        for name in self.names():
            array = np.array(getattr(self, name), dtype=np.int64 if name == "n_evals" else np.float64)
            if not array.size and length == 0:
                array = array.reshape(0, 0) if name in ("mean", "sd") else array
            if array.ndim != (2 if name in ("mean", "sd") else 1) or len(array) != length:
                msg = f"`{name}` must have one entry for each of the {length} iterations, got shape {array.shape}"
                raise ValueError(msg)
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @classmethod
    def empty(cls) -> Trace:
        """Return the trace of no iterations."""
        none = np.empty(0)
        return cls(np.empty(0, dtype=np.int64), none, none, none, none, none, none, none)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the arrays."""
        return tuple(item.name for item in fields(cls))

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.names():
            msg = f"a trace has {', '.join(self.names())}; got {name!r}"
            raise KeyError(msg)
        array: NDArray[Any] = getattr(self, name)
        return array

    def __len__(self) -> int:
        return len(self.n_evals)

    def __repr__(self) -> str:
        if not len(self):
            return "Trace of 0 iterations"
        flat = ", ".join(name for name in self.names() if self[name].ndim == 1)
        return (
            f"Trace of {len(self):,} iterations, {self.n_evals[-1]:,} evaluations: "
            f"elbo from {self.elbo[0]:.6g} to {self.elbo[-1]:.6g}\n"
            f"  {flat} ({len(self)},); mean, sd {self.mean.shape}"
        )


@dataclass(frozen=True, eq=False)
class Report:
    """Results and diagnostics of a fit, apart from the posterior.

    Attributes
    ----------
    elbo, elbo_se
        Lower bound and its standard error, from fresh draws of the final approximation.
    khat
        Pareto k-hat of the importance ratios of those draws; NaN if it is not known.
    converged, stop_reason, stop_kind
        Whether the stopping rule was satisfied, and why the fit ended: in a sentence, and as a kind
        that programs can compare.
    n_evals, n_iterations, seconds
        Numbers of evaluations and iterations, and run time.
    failures
        All evaluations without a usable number.
    trace
        One entry per iteration.
    seed, method
        Seed and method, to repeat the fit.
    notes
        Advice, in plain sentences.
    khat_draws
        Number of draws behind ``khat``. With few draws, ``khat`` must be lower to be good.
    evidence, evidence_se
        Log evidence (the log marginal likelihood) and its standard error.
    missing, missing_se
        Nats that are missing of the posterior, KL(q || posterior), and their standard error.
    backend
        Array library, device and dtype that the fit ran on.
    evaluations
        All points that the function was evaluated at, with their values; None if they were not
        kept.
    starts
        Where each of several starts, or each path of a search for modes, has ended.

    Examples
    --------
    >>> Report(elbo=-3.2, khat=0.68, khat_draws=1000).khat_verdict
    'doubtful, above 0.67: the tails of the posterior are not matched'
    >>> Report(elbo=-3.2, khat=1.1, khat_draws=100).khat_verdict
    'unknown: 100 draws determine it only to within about 0.5'
    """

    elbo: float = math.nan
    elbo_se: float = math.nan
    khat: float = math.nan
    converged: bool = False
    stop_reason: str = StopKind.BY_HAND.sentence
    n_evals: int = 0
    n_iterations: int = 0
    failures: tuple[Failure, ...] = ()
    trace: Trace = field(default_factory=lambda: Trace.empty())
    seconds: float = 0.0
    seed: int | None = None
    method: str = ""
    notes: tuple[str, ...] = ()
    khat_draws: int | None = None
    backend: str = "numpy on cpu, float64"
    stop_kind: StopKind = StopKind.BY_HAND
    evidence: float = math.nan
    evidence_se: float = math.nan
    missing: float = math.nan
    missing_se: float = math.nan
    evaluations: Evaluations | None = field(default=None, repr=False)
    starts: tuple[Start, ...] = field(default=(), repr=False)

    def ended(self, stop: Stop) -> Report:
        """The same report with another ending."""
        return replace(self, converged=stop.converged, stop_reason=stop.reason, stop_kind=stop.kind)

    @property
    def khat_limit(self) -> float:
        """Largest good k-hat: 0.7, and less with fewer than about 2,200 draws."""
        return khat_limit(self.khat_draws)

    @property
    def khat_verdict(self) -> str:
        """What k-hat means, in words; a fit that has converged is never called bad."""
        meaning = judge_khat(self.khat, self.khat_draws, self.missing)
        if meaning is Khat.GOOD:
            return f"good, below {self.khat_limit:.2g}"
        if meaning is Khat.NEGLIGIBLE:
            return f"of no consequence: only {max(self.missing, 0):.2g} nats are missing"
        if meaning is Khat.UNKNOWN:
            return "unknown" if math.isnan(self.khat) else self._undetermined()
        return f"{meaning.name.lower()}, above {self.khat_limit:.2g}: {meaning.value}"

    def _undetermined(self) -> str:
        assert self.khat_draws is not None
        error = khat_error(self.khat, self.khat_draws)
        return f"unknown: {self.khat_draws} draws determine it only to within about {error:.1f}"
