"""How far a fit is from the posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter1d

from . import references
from .problem import Problem
from .references import N_DRAWS

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """Distances between a fit and the reference, in u.

    Attributes
    ----------
    mmtv, floor
        Mean over the marginals of the total variation between fit and posterior, and between two samples of the posterior.
    mean_error, log_sd_ratio
        Largest error of a mean in posterior standard deviations, and largest absolute log ratio of standard deviations.
    bound, bound_se
        The fit's lower bound from many fresh draws of the noiseless function.
    forbidden
        Share of the fit's draws at which the log joint is minus infinity. The bound is that of q without them.
    gap
        Bound of the best Gaussian less that of the fit; NaN where the best is not known. Negative if a family is wider.
    missing
        Log evidence less the fit's bound: KL(q || posterior).
    evidence_error, evidence_z
        Error of the fit's own log evidence, and that in standard errors; NaN if it offers none.
    """

    mmtv: float
    floor: float
    mean_error: float
    log_sd_ratio: float
    bound: float
    bound_se: float
    forbidden: float
    gap: float
    missing: float
    evidence_error: float
    evidence_z: float


def score(fit: Any, problem: Problem) -> Score:
    """Compare a fit with the reference of its problem."""
    reference = problem.reference
    draws = problem.model.unconstrain(fit.sample(N_DRAWS, seed=1), batched=True)
    exact, again = reference.draws, reference.again
    if problem.fold is not None:
        draws, exact, again = (problem.fold(u) for u in (draws, exact, again))
    sd = np.maximum(exact.std(axis=0), 1e-300)
    bound, se, forbidden = bound_of(fit, problem)
    gap, best = np.nan, reference.best
    if best is not None:
        is_gaussian = _is_gaussian(fit) and forbidden == 0
        gap = references.gap(problem.log_joint, best, *fit.unconstrained) if is_gaussian else best.elbo - bound
        if is_gaussian:
            bound, se = best.elbo - gap, best.se
    error, z = evidence_error(fit, reference)
    return Score(
        mmtv=mmtv(draws, exact),
        floor=mmtv(again, exact),
        mean_error=float(np.max(np.abs(draws.mean(axis=0) - exact.mean(axis=0)) / sd)),
        log_sd_ratio=float(np.max(np.abs(np.log(np.maximum(draws.std(axis=0), 1e-300) / sd)))),
        bound=bound,
        bound_se=se,
        forbidden=forbidden,
        gap=gap,
        missing=reference.log_evidence - bound,
        evidence_error=error,
        evidence_z=z,
    )


def bound_of(fit: Any, problem: Problem, n: int = 20_000) -> tuple[float, float, float]:
    """Bound of any fit from plain draws, its standard error, and the share of draws with a log joint of minus infinity."""
    x = fit.sample(n, seed=2)
    u = problem.model.unconstrain(x, batched=True)
    log_ratio = problem.log_joint(u) - fit.log_prob(x, batched=True) - problem.model.log_jacobian(u)
    usable = log_ratio[np.isfinite(log_ratio)]
    if not len(usable):
        return -np.inf, np.nan, 1.0
    share = len(usable) / n
    # q without the forbidden region has density q / share
    return float(usable.mean() + np.log(share)), float(usable.std() / np.sqrt(len(usable))), 1 - share


def evidence_error(fit: Any, reference: references.Reference) -> tuple[float, float]:
    """Error of ``fit.evidence`` in nats and in standard errors; NaN where a fit has none.

    It may be a number, an object that converts to one, or a pair; its standard error is ``se`` or the second of the pair.
    """
    found = getattr(fit, "evidence", None)
    if found is None:
        return np.nan, np.nan
    is_pair = isinstance(found, tuple) and len(found) > 1
    value = found[0] if is_pair else getattr(found, "log_evidence", getattr(found, "value", found))
    own = getattr(found, "se", found[1] if is_pair else getattr(fit, "evidence_se", np.nan))
    error = float(value) - reference.log_evidence
    return error, error / float(np.hypot(float(own), reference.log_evidence_se))


def mmtv(a: Array, b: Array) -> float:
    """Mean over the columns of the total variation between two samples."""
    return float(np.mean([total_variation(x, y) for x, y in zip(a.T, b.T, strict=True)]))


def total_variation(a: Array, b: Array) -> float:
    """Total variation between two samples of one number: of the frequencies if whole, else of kernel estimates.

    Both samples are smoothed with one kernel, whose width is a rule of thumb for the narrower of the two. What lies beyond
    the outermost 0.05 % of the pooled sample falls into the cells at the ends.
    """
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return 1.0
    if np.array_equal(a, np.round(a)) and np.array_equal(b, np.round(b)):
        values = np.union1d(a, b)
        return 0.5 * float(np.sum(np.abs([np.mean(a == v) - np.mean(b == v) for v in values])))
    low, high = np.quantile(np.concatenate([a, b]), [0.0005, 0.9995])
    width = 0.9 * min(_spread(a), _spread(b)) * min(len(a), len(b)) ** -0.2
    if width <= 1e-9 * (high - low):
        return 1.0
    cells = int(min(2**16, max(200, 4 * (high - low) / width)))
    edges = np.linspace(low - 4 * width, high + 4 * width, cells + 1)
    sigma = width / (edges[1] - edges[0])
    parts = [np.histogram(np.clip(x, low, high), edges)[0] / len(x) for x in (a, b)]
    return 0.5 * float(np.sum(np.abs(gaussian_filter1d(parts[0] - parts[1], sigma, mode="constant"))))


def _spread(x: Array) -> float:
    quarter, three = np.quantile(x, [0.25, 0.75])
    return float(min(x.std(), (three - quarter) / 1.34))


def _is_gaussian(fit: Any) -> bool:
    """Whether q is one Gaussian in u. Other families give a bound by plain draws."""
    return type(fit.family).__name__ in ("Gaussian", "DiagonalGaussian", "GaussianProduct", "OneGaussian")
