"""Proposals of a sampler that are as good as draws from a posterior, and leave a chain exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import to_numpy
from qbvi.families import Family, Mixture
from qbvi.families.base import Density
from qbvi.free.density import FreeDensity

__all__ = ["FromPosterior"]

Floats = NDArray[np.float64]

_INNER = 12  # steps on the surrogate for one proposal, none of which calls the user's function


class _Source(Protocol):
    """Independent draws from a density that is known exactly."""

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        """Draws: (n, d)."""
        ...

    def log_prob(self, u: Floats) -> Floats:
        """Log density: (n, d) -> (n,)."""
        ...


class FromPosterior:
    r"""Moves a point by draws from a posterior q, for a Metropolis step.

    - If q is a family with exact draws, the proposal is a draw u' of q.
    - If q is of free shape, its draws are only nearly those of its density. Then the proposal is
      the end of a short chain on that density. The chain is reversible for q, so the step is exact.

    In both cases a step is accepted with probability
    :math:`\min(1, p(u') q(u) / (p(u) q(u')))`.

    Examples
    --------
    >>> import numpy as np
    >>> from qbvi.families import Gaussian
    >>> proposal = FromPosterior(Gaussian(1), Gaussian(1).start(np.zeros(1), np.ones(1)))
    >>> moved, factor = proposal(np.zeros((4, 1)), np.random.default_rng(1))
    >>> bool(np.allclose(factor, 0.5 * moved[:, 0] ** 2))  # log q(u) - log q(u')
    True
    """

    def __init__(self, family: Density, q: Floats) -> None:
        self._log_q: Callable[[Floats], Floats] = lambda u: to_numpy(family.log_prob(q, u))
        self._is_exact = _has_exact_draws(family)
        self._source: _Source = _OfFamily(family, q) if self._is_exact else _source(family, q)

    def __call__(self, u: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Proposals (n, d) for points u (n, d), and log q(u) - log q(u') (n,)."""
        log_q = self._log_q(u)
        if self._is_exact:
            moved = self._source.draw(rng, len(u))
            return moved, _difference(log_q, self._log_q(moved))
        moved, at = self._chain(u, log_q, rng)
        return moved, _difference(log_q, at)

    def _chain(self, u: Floats, log_q: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Ends of chains on q that start at u, and log q there."""
        n, d = u.shape
        candidates = self._source.draw(rng, _INNER * n)
        log_ratio = _difference(self._log_q(candidates), self._source.log_prob(candidates)).reshape(_INNER, n)
        chance = np.log(rng.random((_INNER, n)))
        moved, ratio = u.copy(), _difference(log_q, self._source.log_prob(u))
        for k, new in enumerate(candidates.reshape(_INNER, n, d)):
            # A chain that starts outside of q goes to any candidate; the outer step rejects it.
            taken = (chance[k] < _difference(log_ratio[k], ratio)) | (ratio == -np.inf)
            moved[taken], ratio = new[taken], np.where(taken, log_ratio[k], ratio)
        return moved, self._log_q(moved)


def _difference(a: Floats, b: Floats) -> Floats:
    """a - b, and minus infinity where a is that."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(a == -np.inf, -np.inf, a - b))


def _has_exact_draws(family: Density) -> bool:
    if isinstance(family, Mixture):
        return all(_has_exact_draws(component) for component in family.components)
    return isinstance(family, Family)


def _source(family: Density, q: Floats) -> _Source:
    if isinstance(family, FreeDensity):
        return _OfFree(family, q)
    if isinstance(family, Mixture):
        weights, members = family.unpack(q)
        parts = zip(family.components, members, strict=True)
        return _OfMixture(weights, [_source(part, member) for part, member in parts])
    return _OfFamily(family, q)


@dataclass(frozen=True)
class _OfFamily:
    family: Density
    q: Any

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        return to_numpy(self.family.draw(self.q, rng, n))

    def log_prob(self, u: Floats) -> Floats:
        return to_numpy(self.family.log_prob(self.q, u))


class _OfFree:
    """The mixture that a free posterior draws its candidates from, in its own coordinates."""

    def __init__(self, family: FreeDensity, q: Floats) -> None:
        surface, self._rules = family.surface(q), family.integration
        self._proposal, self._warp = surface.sampled_by(family.unpack(q).proposal), surface.warp

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        # `Proposal.draw` has a fixed share of wide draws, and those come first. Here each draw
        # chooses by itself, so that they are independent.
        share = self._rules.wide
        m = int(np.ceil((n + 1) / min(share, 1 - share)))
        both = self._proposal.draw(rng, m, self._rules)
        first = int(np.ceil(share * m))
        w = np.where(rng.random((n, 1)) < share, both[:n], both[first : first + n])
        return np.asarray(self._warp.bent(w)[0])

    def log_prob(self, u: Floats) -> Floats:
        w, log_jacobian = self._warp.straight(u)
        return np.asarray(self._proposal.log_prob(w, self._rules) + log_jacobian)


@dataclass(frozen=True)
class _OfMixture:
    weights: Floats
    parts: list[_Source]

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        counts = rng.multinomial(n, self.weights / self.weights.sum())
        drawn = [part.draw(rng, m) for part, m in zip(self.parts, counts.tolist(), strict=True) if m]
        return np.concatenate(drawn)[rng.permutation(n)]

    def log_prob(self, u: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            log_weights = np.log(self.weights / self.weights.sum())
        parts = [part.log_prob(u) + log_weight for part, log_weight in zip(self.parts, log_weights, strict=True)]
        return np.asarray(np.logaddexp.reduce(parts, axis=0))
