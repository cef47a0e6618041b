r"""Log importance ratios of a noisy function: what is noise, and what is q.

A noisy function gives ``h = r + e`` at draws from q: the log ratio ``r = log p(y, theta) - log q``,
and normal noise e of variance v. For normal r

.. math:: \log E e^r - E r = \tfrac12 \mathrm{Var}\, r = \tfrac12 (\mathrm{Var}\, h - v)

Otherwise ``E exp(h) = E exp(r + v / 2)``, so that h less half of v has the right mean. With much
noise this mean is determined by a few draws with large e, so the first formula is better.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["NO_NOISE", "Figures", "Noise"]

Floats = NDArray[np.float64]

_DOMINANT = 0.5  # share of noise in the variance of log ratios from which it hides their shape ...
_RELEVANT = 0.05  # ... if it is so large a variance: less has no effect on a ratio


class Figures(NamedTuple):
    """Log evidence and missing nats by draws of a noisy function."""

    evidence: float
    evidence_se: float
    missing: float
    missing_se: float


class Noise(NamedTuple):
    """The noise of a function at draws from q."""

    variance: Floats  # (n,) at each draw
    error: float = 0.0  # standard error of the variances, relative to them; zero if they are known

    @property
    def mean(self) -> float:
        """Mean variance."""
        return float(np.mean(self.variance)) if self.variance.size else 0.0

    def dominates(self, h: Floats) -> bool:
        """Whether noise hides the shape of the log ratios (n,), so that k-hat is not known.

        Examples
        --------
        >>> import numpy as np
        >>> h = np.linspace(-3, 3, 50)
        >>> Noise(np.full(50, 2.5)).dominates(h), Noise(np.full(50, 0.3)).dominates(h)
        (True, False)
        """
        return self.mean > max(_RELEVANT, _DOMINANT * float(np.var(h)))

    def removed(self, h: Floats) -> Floats:
        """Log ratios (n,) with the variance that they would have without noise, and its mean."""
        share = max(0.0, 1 - self.mean / max(float(np.var(h)), self.mean)) if self.mean else 1.0
        return np.asarray(h.mean() + math.sqrt(share) * (h - h.mean())) if share < 1 else h

    def figures(self, h: Floats) -> Figures:
        """Evidence and missing nats; neither error leaves out that the noise is an estimate.

        Examples
        --------
        >>> import numpy as np
        >>> h = -5.0 + 3.0 * np.random.default_rng(1).standard_normal(10_000)
        >>> found = Noise(np.full(10_000, 9.0)).figures(h)
        >>> bool(abs(found.evidence + 5.0) < 3 * found.evidence_se), found.evidence_se < 0.1
        (True, True)
        """
        n, mean = len(h), float(h.mean())
        doubt = 0.5 * self.mean * self.error
        squares = (h - mean) ** 2
        if self.dominates(h):
            missing, spread = 0.5 * (float(np.sum(squares)) / (n - 1) - self.mean), 0.5 * (squares - squares.mean())
        else:
            centred = h - self.variance / 2
            ratios = np.exp(centred - centred.max())
            missing = float(centred.max() + np.log(ratios.mean())) - mean
            spread = ratios / ratios.mean() - 1 - (h - mean)
        errors = (math.hypot(float(s.std(ddof=1)) / math.sqrt(n), doubt) for s in (spread + h - mean, spread))
        return Figures(mean + max(missing, 0.0), next(errors), max(missing, 0.0), next(errors))


NO_NOISE = Noise(np.empty(0))
