"""May this posterior be trusted? Pareto k-hat of the importance ratios."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["pareto_khat"]

_FEWEST = 25  # below this the tail that k-hat is fitted to holds fewer than five ratios


def pareto_khat(h: NDArray[np.float64]) -> tuple[float, tuple[str, ...]]:
    """Pareto k-hat of ``exp(h)``, ``h = log p(y, theta) - log q(theta)`` at independent draws from q, and what to note of it.

    Below 0.5 importance weighting would correct q at once, up to 0.7 with many draws; above, q misses mass of the posterior.

    Examples
    --------
    >>> import numpy as np
    >>> khat, notes = pareto_khat(np.zeros(100))
    >>> khat < 0.5
    True
    """
    if h.size < _FEWEST:
        return float("nan"), (f"k-hat was not computed: {h.size} draws are too few",)
    if np.ptp(h) < 1e-9:  # the ratios are constant: q is the posterior, there is no tail to fit
        return float("-inf"), ()
    # imported here: it takes longer than the rest of qbvi together
    from arviz_stats.base import array_stats

    _, khat = array_stats.psislw(h - h.max())
    return float(khat), ()
