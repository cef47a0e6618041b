"""Several starts: combine the modes that they settle in, by the weights of their evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.arrays import to_numpy
from qbvi.conversation import Unconstrained
from qbvi.diagnostics import Khat, judge_khat
from qbvi.ending import Stop, StopKind
from qbvi.evaluations import Evaluations
from qbvi.families import Mixture
from qbvi.model import Model
from qbvi.paths import Start
from qbvi.points import mapped
from qbvi.results import Fit
from qbvi.run import OutOfTimeError

__all__ = ["check_init", "combined", "run_all", "starting_points"]

# Nats below the best bound within which another mode still matters.
_COMPARABLE = 10.0
# Two fits are of different modes if their means are so many standard deviations apart ...
_APART = 3.0
_COMMON = 0.05  # ... and less than this is common to both, where a half is the same density,
_DRAWS = 512  # estimated from so many draws of each.
# Copies of a mode have the same evidence, within so many standard errors plus so many nats ...
_ERRORS, _ALIKE_NATS = 3.0, 0.05
_ALIKE_SD = 0.15  # ... and the same standard deviations, within this share: twice what fits differ


def starting_points(model: Model, n: int, seed: int) -> list[NDArray[np.float64]]:
    """Draw n starting points on the unconstrained scale.

    Parameters with a law of their own are drawn from the prior, if it can be sampled.
    All others are normal, with the location and scale of the prior on the unconstrained scale.
    """
    if n == 0:
        return []
    loc, scale = model.initial()
    rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(4)[3])
    points = loc + scale * rng.standard_normal((n, model.dim))
    for p in model.parameters:
        if p.is_native and p.distribution.can_sample:
            points[:, p.columns] = np.reshape(p.distribution.sample(rng, n), (n, -1))
    return list(points)


def combined(fits: Sequence[Fit]) -> Fit:
    """Combine fits from several starts: one component for each mode, weighted by its evidence.

    Only modes within 10 nats of the best one matter. The result counts as converged if all of these
    did. If there is one such mode, the result is the fit that found it best.

    Examples
    --------
    Six starts find both modes:

    >>> import numpy as np, qbvi
    >>> two_modes = lambda x: np.logaddexp(-0.5 * (x - 9) ** 2, -0.5 * (x + 9) ** 2) - 20
    >>> fit = qbvi.fit(two_modes, qbvi.Normal(0, 10), n_starts=6, family="full", seed=1)
    >>> fit.converged, bool(abs(fit.mean) < 0.5), bool(abs(fit.sd - 9) < 0.5)
    (True, True, True)
    """
    modes = _modes(fits)
    near = [mode for mode in modes if mode.level > modes[0].level - _COMPARABLE] or modes[:1]
    first = near[0].fit
    stop, unsettled = Stop(first.stop_kind, first.stop_reason), [m for m in near if not m.fit.converged]
    if unsettled and stop.converged:
        stop = stop.but(StopKind.STARTS_DISAGREE, bounds=", ".join(f"{m.fit.elbo:.2f}" for m in unsettled))
    report = replace(
        first.record.ended(stop),
        n_evals=sum(fit.n_evals for fit in fits),
        failures=tuple(failure for fit in fits for failure in fit.failures),
        seconds=sum(fit.seconds for fit in fits),
        evaluations=_joined(fits),
        notes=(*first.notes, *_words(fits, near)),
        starts=_table(fits, modes, near),
    )
    if len(near) == 1:
        return Fit(first.model, first.family, first.q, report)
    weights = _weights(near)
    family = Mixture(tuple(mode.fit.family for mode in near))
    q = family.pack(weights, [mode.fit.q for mode in near])
    return Fit(first.model, family, q, replace(report, **_figures(near, weights)))


def run_all(run: Callable[[Any, int, int], Fit], init: Any, points: Sequence[NDArray[np.float64]], seed: int) -> Fit:
    """Run from ``init`` and from each further point, if there are any, and combine the fits.

    Each run has its own seed and number. If the user ends one run, or there is no time for its
    first step, no further one begins.
    """
    seeds = [seed, *(int(s.generate_state(1)[0]) for s in np.random.SeedSequence(seed).spawn(len(points)))]
    fits: list[Fit] = []
    for start, own in zip([init, *(Unconstrained(point) for point in points)], seeds, strict=True):
        try:
            fits.append(run(start, own, len(fits) + 1))
        except OutOfTimeError:
            if not fits:
                raise
            break
        if fits[-1].stop_kind.is_by_user:
            break
    return combined(fits) if points else fits[0]


def _joined(fits: Sequence[Fit]) -> Evaluations | None:
    tables = [fit.evaluations for fit in fits if fit.evaluations is not None]
    return Evaluations.joined(tables) if len(tables) == len(fits) else None


class _Mode(NamedTuple):
    """A mode, and the best fit of it."""

    fit: Fit
    level: float  # log evidence, or the bound where it is not known


def _modes(fits: Sequence[Fit]) -> list[_Mode]:
    """The best fit of every mode, highest first; a fit that converged is better than others."""
    ranked = sorted(fits, key=lambda fit: (fit.converged, np.nan_to_num(fit.elbo, nan=-np.inf)), reverse=True)
    kept = ranked[:1]
    for fit in ranked[1:]:
        if np.isfinite(fit.elbo) and all(_is_apart(fit, other) for other in kept):
            kept.append(fit)
    modes = [_Mode(fit, fit.evidence if _is_known(fit) else fit.elbo) for fit in kept]
    return sorted(modes, key=lambda mode: mode.level, reverse=True)


def _is_known(fit: Fit) -> bool:
    """Whether fresh draws determine the evidence."""
    return bool(np.isfinite(fit.evidence) and np.isfinite(fit.evidence_se))


def _is_apart(fit: Fit, other: Fit) -> bool:
    """Whether two fits are of different modes: distant means, and next to no common mass.

    A fit that covers two modes has a mean far from those of fits of one of them, but common mass.
    """
    distance = np.abs(to_numpy(fit.family.mean(fit.q)) - to_numpy(other.family.mean(other.q)))
    sd = np.minimum(to_numpy(fit.family.sd(fit.q)), to_numpy(other.family.sd(other.q)))
    if not np.max(distance / sd) > _APART:
        return False
    return max(_common(fit, other), _common(other, fit)) < _COMMON


def _common(fit: Fit, other: Fit) -> float:
    """Mean of q' / (q + q') under q: a half if both are equal, zero if they have no common mass."""
    u = fit.family.fixed_draws(fit.q, _DRAWS)
    apart = to_numpy(fit.family.log_prob(fit.q, u)) - to_numpy(other.family.log_prob(other.q, u))
    return float(np.mean(scipy.special.expit(-apart)))


def _weights(modes: Sequence[_Mode]) -> NDArray[np.float64]:
    shares = np.exp([mode.level - modes[0].level for mode in modes])
    return np.asarray(shares / shares.sum())


def _figures(modes: Sequence[_Mode], weights: NDArray[np.float64]) -> dict[str, Any]:
    r"""Bound, evidence, missing nats and k-hat of a mixture without overlap, by their names.

    .. math:: L = \sum_k w_k (L_k - \log w_k), \quad p(y) = \sum_k p_k(y)
    """
    fits = [mode.fit for mode in modes]
    elbo = float(weights @ (np.array([fit.elbo for fit in fits]) - np.log(weights)))
    evidence = float(np.logaddexp.reduce([mode.level for mode in modes]))
    is_known = all(_is_known(fit) for fit in fits)
    worst = max(fits, key=_khat_that_counts)

    def error(name: str) -> float:
        return float(np.linalg.norm(weights * np.array([getattr(fit, name) for fit in fits])))

    return {
        "elbo": elbo,
        "elbo_se": error("elbo_se"),
        "evidence": evidence,
        "evidence_se": error("evidence_se") if is_known else float("inf"),
        "missing": max(evidence - elbo, 0.0),
        "missing_se": error("missing_se") if is_known else float("inf"),
        "khat": worst.khat,
        "khat_draws": worst.record.khat_draws,
    }


def _khat_that_counts(fit: Fit) -> float:
    """k-hat, or minus infinity if it is not known or of no consequence."""
    meaning = judge_khat(fit.khat, fit.record.khat_draws, fit.missing)
    return -math.inf if meaning in (Khat.NEGLIGIBLE, Khat.UNKNOWN) else fit.khat


def _table(fits: Sequence[Fit], modes: Sequence[_Mode], near: Sequence[_Mode]) -> tuple[Start, ...]:
    """Where each start ended: in the mode that its fit stands for, or has mass in common with."""
    weights = [*_weights(near).tolist(), *[0.0] * (len(modes) - len(near))]
    rows = []
    for fit in fits:
        k = next((k for k, mode in enumerate(modes) if mode.fit is fit), None)
        if k is None:
            k = int(np.argmax([max(_common(fit, mode.fit), _common(mode.fit, fit)) for mode in modes]))
        mean = to_numpy(fit.model.flatten(mapped(lambda x: np.asarray(x)[None], fit.mean)))[0]
        rows.append(Start(k, fit.elbo, weights[k], fit.n_evals, fit.converged, mean))
    return tuple(rows)


def _words(fits: Sequence[Fit], near: Sequence[_Mode]) -> list[str]:
    """How many starts ended where, and which modes look like copies of each other."""
    settled = [fit for fit in fits if fit.converged]
    tally = f"{len(fits)} starts: {len(settled)} converged"
    if len(near) == 1:
        best = near[0].fit
        elsewhere = sum(fit is not best and _is_apart(fit, best) for fit in settled)
        return [
            f"{tally}, {len(settled) - elsewhere} of them where this one did (bound {best.elbo:.2f}), {elsewhere} elsewhere"
        ]
    shares = ", ".join(f"{weight:.2g}" for weight in _weights(near))
    copies = max((sum(_is_copy(mode.fit, other.fit) for other in near) for mode in near), default=0)
    symmetric = (
        f"{copies} of the modes look like copies of each other: the same evidence and the same standard deviations, "
        "up to their order; exchanged labels or signs make such copies, and an order or a sign in the prior removes them"
    )
    return [f"{tally}; {len(near)} modes are combined, with weights {shares}", *([symmetric] if copies > 1 else [])]


def _is_copy(fit: Fit, other: Fit) -> bool:
    """Whether one mode may be a mirror image of the other: same evidence, same sorted sds."""
    both = _is_known(fit) and _is_known(other)
    level, se = ("evidence", "evidence_se") if both else ("elbo", "elbo_se")
    error = np.hypot(getattr(fit, se), getattr(other, se))
    is_level = abs(getattr(fit, level) - getattr(other, level)) < _ERRORS * error + _ALIKE_NATS
    mine, theirs = (np.sort(to_numpy(one.family.sd(one.q))) for one in (fit, other))
    return bool(is_level and np.allclose(mine, theirs, rtol=_ALIKE_SD, atol=0.0))


def check_init(model: Model, init: Any) -> None:
    """Refuse a start that is not a point of the model, before anything is evaluated."""
    if init is None or isinstance(init, Fit):
        return
    try:
        model.unconstrain(init)
    except (TypeError, ValueError) as error:
        msg = f"`init` must be a point of the prior's shape, strictly inside its support: {error}"
        raise type(error)(msg) from error
