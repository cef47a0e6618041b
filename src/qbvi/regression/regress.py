"""One regression: which points take part, how much each counts, and which are held out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.families.base import Family, GaussianFamily
from qbvi.regression.descent import improved
from qbvi.regression.ladder import Ladder
from qbvi.regression.look import PriorLook
from qbvi.regression.noise import Repeats, law_around
from qbvi.regression.ridge import RidgeState
from qbvi.regression.rules import LastStep, Rules, StructureRule
from qbvi.regression.shrink import Shrink
from qbvi.regression.store import Chosen, Store
from qbvi.regression.structure import (
    Finding,
    Frame,
    StructuredRegression,
    find_structure,
    first_rows,
    update_structure,
)
from qbvi.regression.surrogate import HermiteRegression, Sample, Variances
from qbvi.regression.width import Width

__all__ = ["Regressed", "RegressionState", "regress"]

Floats = NDArray[np.float64]


class RegressionState(NamedTuple):
    """The current q, all points so far, and what the next iteration needs of the last one."""

    q: Floats
    store: Store
    variances: Variances  # of the last regression: where the next search starts
    most: int  # most points of one regression
    radius: np.float64  # bound on KL(new || old)
    last_step: LastStep | None
    noise: float | None  # variance of the function's noise at q; None before it is measured
    misfit: float  # share of the unexplained variance that is not the function's noise
    n_effective: float  # effective sample size of the last regression
    look: PriorLook | None = None  # at the prior, where there was one
    is_concave: bool = True  # whether no curvature of the log joint was seen to be positive
    n_before: int = 0  # batches before the present start
    ladder: Ladder | None = None  # the last search over orders of magnitude, where there was one
    n_limited: int = 0  # consecutive steps that a rule limited ...
    n_wild: int = 0  # ... and consecutive batches, of those after such steps, on a wrong scale
    repeats: Repeats | None = None  # points that were evaluated twice
    most_noise: float = 0.0  # upper confidence limit of `noise`
    finest: float = 0.0  # nats that noise leaves at a reasonable cost, or a full regression: the least tolerance
    finding: Finding = Finding()  # which parameters interact, as far as is known
    width: Width | None = None  # a search for the width of the start, where there was one
    shrink: Shrink | None = None  # a search for a narrower start, where there was one
    ridge: RidgeState | None = None  # once there are more points than can be factored


class Regressed(NamedTuple):
    """A regression: its points, those held out last, and the variances that predict those best."""

    regression: HermiteRegression
    variances: Variances
    rows: NDArray[np.int64]  # (n,) of the store
    weights: Floats  # (n,) density of q over that of the past draws, at most one
    pair: NDArray[np.int64]  # (m,) number of the mirror pair of each point held out
    following: Variances  # with which the next regression starts
    finding: Finding = Finding()  # which parameters interact, as far as is known

    @property
    def n_effective(self) -> float:
        """Effective sample size: draws that are unlikely under q count less."""
        return max(1.0, float(np.sum(self.weights)))


def regress(
    family: Family, state: RegressionState, rules: Rules, free: Callable[[Floats], Floats] | None = None
) -> Regressed:
    """Regress the residual on whitened coordinates; ``free`` gives the features without a prior."""
    store, reference = state.store, family.defensive(state.q)
    chosen = store.choose(family, reference, state.most, rules.thinning)
    h = family.residual(state.q, store.theta[chosen.rows], store.y[chosen.rows])
    noise = _noise_at(family, state, chosen, rules)
    growth = _relative_variances(family, state, chosen, noise, rules)
    order, m = _held_out_last(family, state, chosen.rows, rules)
    rows = chosen.rows[order]
    pair = rows[-m:] // 2
    x = chosen.x[order]
    points = Sample(x, h[order], growth[order], pair, _least_variance(noise, store.y[chosen.rows], rules))
    if free is None and isinstance(family, GaussianFamily):
        fitted = _fitted(points, Frame.of(family, state.q), state, rules)
    else:
        regression = HermiteRegression(points, None if free is None else free(x), rules.search)
        fitted = _Fitted(regression, _searched(regression, state, rules), Finding())
    weights, (now, following) = chosen.weights[order], fitted.variances
    return Regressed(fitted.regression, now, rows, weights, pair, following, fitted.finding)


class _Searched(NamedTuple):
    """Prior variances."""

    now: Variances
    following: Variances  # where the next iteration starts


class _Fitted(NamedTuple):
    """A regression with its prior."""

    regression: HermiteRegression
    variances: _Searched
    finding: Finding


def _searched(regression: HermiteRegression, state: RegressionState, rules: Rules) -> _Searched:
    (n, d), turn, rule = regression.points.z.shape, len(state.store.past), rules.search
    if rule.is_descent(n, d, turn):
        with_omega = turn % rule.every == 0
        return _Searched(state.variances, improved(regression, state.variances, with_omega=with_omega))
    found = regression.search(state.variances, rule.plan(n, turn))
    return _unchanged(found)


def _fitted(points: Sample, frame: Frame, state: RegressionState, rules: Rules) -> _Fitted:
    """The regression with a dense prior or, where it predicts better, with a structured one.

    - A structure that is in use, with enough points near q, stays as it is until a search is due.
    - Otherwise, if a structure is known or found, both priors predict the left-out points, and the
      better one is used.
    """
    rule, old, n, d = rules.structure, state.finding, len(state.store.y), points.z.shape[1]
    near, n_near = _near(points, rule), rule.n_near(points.growth)
    is_due = rule.is_due(n, d, n_near, old.due, is_known=old.structure is not None)
    if old.structure is not None and old.is_used and not is_due and not rule.has_moved(d, n_near):
        with_it = StructuredRegression(near, frame, old.structure, rules.search)
        return _Fitted(with_it, _unchanged(old.structure.variances), old)
    found = [] if old.structure is None else [update_structure(near, frame, rule, old.structure)]
    if is_due:
        first = first_rows(near, frame, rule)
        new = None if first is None else find_structure(near, frame, rule, first)
        found += [] if new is None else [new]
        old = old._replace(due=rule.next_search(n, is_likely=bool(found)))
    dense = HermiteRegression(points, None, rules.search)
    # The variances of a structured prior are no start for those of a dense one.
    start = state if old.dense is None else state._replace(variances=old.dense)
    variances = _searched(dense, start, rules)
    if not found:
        return _Fitted(dense, variances, old)
    tried = [StructuredRegression(near, frame, structure, rules.search) for structure in found]
    with_it = min(tried, key=lambda regression: regression.misfit(regression.structure.variances))
    # A comparison is fair if both have the best variances, also in an iteration without a search.
    best = dense.search(variances.now, rules.search.plan(len(points.h), 0))
    finding = old.compared(with_it.structure, dense.misfit(best) - with_it.misfit(with_it.structure.variances), rule)
    if finding.is_used:
        return _Fitted(with_it, _unchanged(with_it.structure.variances), finding._replace(dense=best))
    if finding.structure is None:
        # One that was in use may only have been found too far from the optimum.
        finding = Finding(rule.next_search(n, is_likely=old.n_won == rule.wins))
    return _Fitted(dense, _unchanged(best) if old.is_used else variances, finding)


def _unchanged(variances: Variances) -> _Searched:
    return _Searched(variances, variances)


def _near(points: Sample, rule: StructureRule) -> Sample:
    """The points near q, and those held out: few coefficients are to be found, so few points do.

    Far away, terms of higher degree are large, and a prior that allows few of them is wrong there.
    """
    n, d = points.z.shape
    is_near = np.zeros(n, dtype=bool)
    n_near = max(rule.n_near(points.growth), rule.fewest_near * d)
    is_near[np.argsort(points.growth, kind="stable")[:n_near]] = True
    is_near[n - len(points.pair) :] = True
    return points._replace(z=points.z[is_near], h=points.h[is_near], growth=points.growth[is_near])


def _relative_variances(family: Family, state: RegressionState, chosen: Chosen, noise: _Noise, rules: Rules) -> Floats:
    """Variance of each point's error, relative to that of a draw from q (n,).

    The error has two parts:

    - What the regression leaves out. It grows far from q. Points share it where many are close
      together, so each of them counts less there.
    - The function's own noise, which is independent between points.
    """
    far = rules.weighting.far(chosen.squares, family.n_whitened)
    crowded = np.exp(np.minimum(-chosen.log_density, math.log(len(chosen.rows))))
    variances: Floats = state.misfit * np.maximum(far, crowded) + (1 - state.misfit) * noise.growth
    return variances


class _Noise(NamedTuple):
    """The function's noise at the points of a regression."""

    growth: Floats  # (n,) variances, relative to that at q
    floor: float  # least variance at q


def _noise_at(family: Family, state: RegressionState, chosen: Chosen, rules: Rules) -> _Noise:
    """The noise that the function returned, or the law that repeated points imply."""
    known, weighting, rule = state.store.noise[chosen.rows], rules.weighting, rules.noise
    if np.any(known > 0):
        level = float(chosen.weights @ known / np.sum(chosen.weights)) or float(np.mean(known))
        return _Noise(np.clip(known / level, weighting.least_noise, rule.most_growth), level)
    # A few repeated points measure the noise roughly. Above this floor the regression estimates it.
    if not state.noise or state.repeats is None:
        return _Noise(np.ones(len(known)), rule.floor * (state.noise or 0.0))
    law = law_around(family, family.defensive(state.q), state.repeats, rule)
    return _Noise(np.minimum(law.at(chosen.squares) / law.level, rule.most_growth), rule.floor * law.level)


def _least_variance(noise: _Noise, y: Floats, rules: Rules) -> float:
    """Least possible noise variance: that of rounding, or what is known about the function."""
    return max((rules.noise.rounding * float(np.abs(y).max())) ** 2, noise.floor)


def _held_out_last(
    family: Family, state: RegressionState, rows: NDArray[np.int64], rules: Rules
) -> tuple[NDArray[np.int64], int]:
    """Order the points so that those to hold out come last, and return their number.

    The held-out batches are those whose q is most like the current one (`Holdout`).
    """
    rule, recent = rules.holdout, state.store.past[-rules.holdout.batches :]
    reference = family.defensive(state.q)
    unlike = [float(family.divergence(batch.q, reference)) for batch in recent]
    want, chosen = max(2 * rule.pairs * family.n_whitened, rule.fewest), np.zeros(len(rows), dtype=bool)
    for j in np.argsort(unlike, kind="stable"):
        count = int(chosen.sum())
        if count and ((count >= want and unlike[j] > rule.unlike) or count >= rule.most * want):
            break
        chosen |= (rows >= recent[j].start) & (rows < recent[j].stop)
    return np.argsort(chosen, kind="stable"), int(chosen.sum())
