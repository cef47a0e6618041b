"""One regression: which points take part, how much each counts, and which are held out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.families.base import Family
from qbvi.regression.ladder import Ladder
from qbvi.regression.look import PriorLook
from qbvi.regression.rules import LastStep, Rules
from qbvi.regression.store import Chosen, Store
from qbvi.regression.surrogate import HermiteRegression, Sample, Variances

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
    noise: float | None  # variance of the function's noise; None before it is measured
    misfit: float  # share of the unexplained variance that is not the function's noise
    n_effective: float  # effective sample size of the last regression
    look: PriorLook | None = None  # at the prior, where there was one
    is_concave: bool = True  # whether no curvature of the log joint was seen to be positive
    n_before: int = 0  # batches before the present start
    ladder: Ladder | None = None  # the last search over orders of magnitude, where there was one
    n_limited: int = 0  # consecutive steps that a rule limited


class Regressed(NamedTuple):
    """A regression: its points, those held out last, and the variances that predict those best."""

    regression: HermiteRegression
    variances: Variances
    rows: NDArray[np.int64]  # (n,) of the store
    weights: Floats  # (n,) density of q over that of the past draws, at most one
    pair: NDArray[np.int64]  # (m,) number of the mirror pair of each point held out

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
    growth = _relative_variances(family, state, chosen, rules)
    order, m = _held_out_last(family, state, chosen.rows, rules)
    rows = chosen.rows[order]
    pair = rows[-m:] // 2
    x = chosen.x[order]
    points = Sample(x, h[order], growth[order], pair, _noise_floor(state, chosen.rows, rules))
    regression = HermiteRegression(points, None if free is None else free(x), rules.search)
    variances = regression.search(state.variances, rules.search.plan(len(rows), len(store.past)))
    return Regressed(regression, variances, rows, chosen.weights[order], pair)


def _relative_variances(family: Family, state: RegressionState, chosen: Chosen, rules: Rules) -> Floats:
    """Variance of each point's error, relative to that of a draw from q (n,).

    The error has two parts:

    - What the regression leaves out. It grows far from q. Points share it where many are close
      together, so each of them counts less there.
    - The function's own noise, which is independent between points.
    """
    far = rules.weighting.far(chosen.squares, family.n_whitened)
    crowded = np.exp(np.minimum(-chosen.log_density, math.log(len(chosen.rows))))
    known = state.store.noise[chosen.rows]
    is_known = np.any(known > 0)
    noise = np.maximum(known / np.mean(known), rules.weighting.least_noise) if is_known else np.ones(len(known))
    variances: Floats = state.misfit * np.maximum(far, crowded) + (1 - state.misfit) * noise
    return variances


def _noise_floor(state: RegressionState, rows: NDArray[np.int64], rules: Rules) -> float:
    """Least possible noise variance: that of rounding, or what is known about the function."""
    known = state.store.noise[rows]
    # A few repeated points measure the noise roughly. Above this floor the regression estimates it.
    measured = float(np.mean(known)) if np.any(known > 0) else rules.noise.floor * (state.noise or 0.0)
    return max((rules.noise.rounding * float(np.abs(state.store.y[rows]).max())) ** 2, measured)


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
