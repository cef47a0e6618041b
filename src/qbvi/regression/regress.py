"""One regression: which points take part, how much each counts, and which are held out to judge it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.families.base import Family
from qbvi.regression.rules import LastStep, Rules
from qbvi.regression.store import Chosen, Store
from qbvi.regression.surrogate import HermiteRegression, Sample, Variances

__all__ = ["Regressed", "RegressionState", "regress"]

Floats = NDArray[np.float64]


class RegressionState(NamedTuple):
    """Everything evaluated so far, and the present q."""

    q: Floats
    store: Store
    variances: Variances
    most: int  # points of one regression
    radius: np.float64  # bound on KL(new || old)
    last_step: LastStep | None
    noise: float | None  # variance of the function's noise; None before it was looked for
    misfit: float  # share of the unexplained variance that is not the function's noise
    n_effective: float  # draws that count for the present q, those unlike its own counting less


class Regressed(NamedTuple):
    """The points of a regression, those held out last, with the variances that predict them best."""

    regression: HermiteRegression
    variances: Variances
    rows: NDArray[np.int64]  # (n,) of the store
    weights: Floats  # (n,) density of q over that of the past draws, at most one
    pair: NDArray[np.int64]  # (m,) mirror pairs among the points held out

    @property
    def n_effective(self) -> float:
        """Number of draws, those unlike q's own counting less."""
        return max(1.0, float(np.sum(self.weights)))


def regress(
    family: Family, state: RegressionState, rules: Rules, free: Callable[[Floats], Floats] | None = None
) -> Regressed:
    """Regress all that is known on the whitened coordinates of q; ``free`` are the features without a prior."""
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

    What the regression leaves out grows far from q, and counts less for each point where points are
    crowded. The function's own noise does neither.
    """
    far = rules.weighting.far(chosen.squares, family.n_whitened)
    crowded = np.exp(np.minimum(-chosen.log_density, math.log(len(chosen.rows))))
    known = state.store.noise[chosen.rows]
    is_known = np.any(known > 0)
    noise = np.maximum(known / np.mean(known), rules.weighting.least_noise) if is_known else np.ones(len(known))
    variances: Floats = state.misfit * np.maximum(far, crowded) + (1 - state.misfit) * noise
    return variances


def _noise_floor(state: RegressionState, rows: NDArray[np.int64], rules: Rules) -> float:
    """Smallest noise variance that is possible: of rounding, and of what is known about the function."""
    known = state.store.noise[rows]
    # A few differences tell the noise to a factor of a few; from below, the regression finds it by itself.
    measured = float(np.mean(known)) if np.any(known > 0) else rules.noise.floor * (state.noise or 0.0)
    return max((rules.noise.rounding * float(np.abs(state.store.y[rows]).max())) ** 2, measured)


def _held_out_last(
    family: Family, state: RegressionState, rows: NDArray[np.int64], rules: Rules
) -> tuple[NDArray[np.int64], int]:
    """An order that puts last the points drawn from a q most like the present one, and their number."""
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
