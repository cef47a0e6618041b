"""Several starts: return the best fit, and report whether the others agree with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.conversation import Unconstrained
from qbvi.ending import Stop, StopKind
from qbvi.evaluations import Evaluations
from qbvi.model import Model
from qbvi.results import Fit
from qbvi.run import OutOfTimeError

__all__ = ["best_of", "check_init", "run_all", "starting_points"]

# Nats below the best bound within which another mode still matters.
_COMPARABLE = 10.0
_APART = 3.0  # standard deviations between two means beyond which they are different modes


def starting_points(model: Model, n: int, seed: int) -> list[NDArray[np.float64]]:
    """Draw n starting points on the unconstrained scale.

    Parameters with a law of their own are drawn from the prior, if it can be sampled.
    All others are normal, with the location and scale of the prior on the unconstrained scale.
    """
    loc, scale = model.initial()
    rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(4)[3])
    points = loc + scale * rng.standard_normal((n, model.dim))
    for p in model.parameters:
        if p.is_native and p.distribution.can_sample:
            points[:, p.columns] = np.reshape(p.distribution.sample(rng, n), (n, -1))
    return list(points)


def best_of(fits: Sequence[Fit]) -> Fit:
    """Return the best fit, with a note about the others.

    The best fit is the converged one with the highest bound or, if none converged, the highest of
    all. It does not count as converged if another converged to a different place with a comparable
    bound.

    Examples
    --------
    Six starts find both modes:

    >>> import numpy as np, qbvi
    >>> two_modes = lambda x: np.logaddexp(-0.5 * (x - 9) ** 2, -0.5 * (x + 9) ** 2) - 20
    >>> fit = qbvi.fit(two_modes, qbvi.Normal(0, 10), n_starts=6, seed=1)
    >>> fit.converged, "starts disagree" in fit.stop_reason
    (False, True)
    """
    best = max(fits, key=lambda fit: (fit.converged, fit.elbo))
    rivals = [fit for fit in fits if fit is not best and fit.converged and _differs(fit, best)]
    close = [fit for fit in rivals if fit.elbo > best.elbo - _COMPARABLE]
    stop = Stop(best.stop_kind, best.stop_reason)
    if close and best.converged:
        stop = stop.but(StopKind.STARTS_DISAGREE, bounds=", ".join(f"{fit.elbo:.2f}" for fit in close))
    report = replace(
        best.report.ended(stop),
        n_evals=sum(fit.n_evals for fit in fits),
        failures=tuple(failure for fit in fits for failure in fit.failures),
        seconds=sum(fit.seconds for fit in fits),
        evaluations=_joined(fits),
        notes=(*best.notes, _tally(fits, best, rivals)),
    )
    return Fit(best.model, best.family, best.q, report)


def run_all(run: Callable[[Any, int, int], Fit], init: Any, points: Sequence[NDArray[np.float64]], seed: int) -> Fit:
    """Run from ``init`` and from each further point, and return the best fit.

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
    return best_of(fits)


def _joined(fits: Sequence[Fit]) -> Evaluations | None:
    tables = [fit.evaluations for fit in fits if fit.evaluations is not None]
    return Evaluations.joined(tables) if len(tables) == len(fits) else None


def _differs(fit: Fit, best: Fit) -> bool:
    mean, cov = fit.unconstrained
    other, _ = best.unconstrained
    return bool(np.max(np.abs(mean - other) / np.sqrt(np.diag(cov))) > _APART)


def _tally(fits: Sequence[Fit], best: Fit, rivals: Sequence[Fit]) -> str:
    settled = sum(fit.converged for fit in fits)
    return (
        f"{len(fits)} starts: {settled} converged, {settled - len(rivals)} of them where this one did "
        f"(bound {best.elbo:.2f}), {len(rivals)} elsewhere"
    )


def check_init(model: Model, init: Any) -> None:
    """Refuse a start that is not a point of the model, before anything is evaluated."""
    if init is None or isinstance(init, Fit):
        return
    try:
        model.unconstrain(init)
    except (TypeError, ValueError) as error:
        msg = f"`init` must be a point of the prior's shape, strictly inside its support: {error}"
        raise type(error)(msg) from error
