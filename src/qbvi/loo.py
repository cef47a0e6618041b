"""Leave-one-out cross-validation from draws of a posterior and the terms of its likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.arguments import as_seed, whole_number
from qbvi.arrays import to_numpy
from qbvi.check import Source
from qbvi.diagnostics import khat_limit, smoothed, smoothed_weights
from qbvi.evaluate.black_box import check_function
from qbvi.evaluate.push import Push, pushed
from qbvi.evaluate.terms import as_terms
from qbvi.families import Family, Sample
from qbvi.random import Sobol
from qbvi.results import Fit
from qbvi.summary import aligned

__all__ = ["Loo", "PointwiseDraws", "evaluated_terms", "loo", "loo_of", "terms_at"]

Floats = NDArray[np.float64]

_FEWEST = 25  # draws; with fewer there is no tail to fit
_STREAM = 0x100  # keeps these draws apart from those of the fit
_MOST_EVEN = 50  # dimensions in which Sobol points are more even than random ones
_KEPT = 2**24  # terms that are kept for a second use: 128 MB


@dataclass(frozen=True, eq=False, repr=False)
class PointwiseDraws:
    """Draws of q, with the terms of the log-likelihood and the log importance ratios there."""

    unconstrained: Floats  # (n, d)
    terms: Floats  # (n, m)
    log_prior_ratio: Floats  # (n,) log prior minus log q

    @property
    def log_ratios(self) -> Floats:
        """Log joint minus log q (n,), minus infinity where the likelihood is zero."""
        return np.asarray(self.terms.sum(axis=1) + self.log_prior_ratio)

    @property
    def weights(self) -> Floats:
        """Pareto-smoothed importance weights, with sum one: (n,)."""
        return smoothed_weights(self.log_ratios)

    @property
    def khat(self) -> float:
        """Pareto k-hat of the importance ratios."""
        return smoothed(self.log_ratios)[1]

    def log_ratios_without(self, i: int) -> Floats:
        """Log ratios of the posterior without observation i: (n,).

        At a draw where observation i alone is impossible, the posterior without it is not zero. So
        infinite terms are counted, not subtracted.
        """
        total, n_impossible = self._totals
        term = self.terms[:, i]
        is_impossible = term == -np.inf
        others = total - np.where(is_impossible, 0.0, term) + self.log_prior_ratio
        return np.asarray(np.where(n_impossible - is_impossible > 0, -np.inf, others))

    @cached_property
    def _totals(self) -> tuple[Floats, NDArray[np.int64]]:
        """Sum of the finite terms, and the number of the others: (n,), (n,)."""
        is_impossible = self.terms == -np.inf
        return np.where(is_impossible, 0.0, self.terms).sum(axis=1), is_impossible.sum(axis=1)


@dataclass(frozen=True, eq=False, repr=False)
class Loo:
    r"""Expected log predictive density of observations that were left out, one at a time.

    .. math:: \mathrm{elpd} = \sum_i \log p(y_i | y_{-i})

    Attributes
    ----------
    pointwise : array (m,)
        log p(y_i | y_-i) of each observation.
    khat : array (m,)
        Pareto k-hat of each observation. Above `khat_limit` its entry is not reliable.
    p_loo : float
        Effective number of parameters: how much better the data are predicted if they are not left
        out.
    mcse : float
        Standard error of `elpd` that is due to the number of draws.
    n_draws : int

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> y = np.random.default_rng(1).standard_normal(50)
    >>> terms = lambda m: -0.5 * (y - m) ** 2 - 0.919
    >>> fit = qbvi.fit(terms, qbvi.Normal(0, 10), pointwise=True, seed=1)
    >>> loo = fit.loo()
    >>> bool(0.5 < loo.p_loo < 1.5), len(loo)
    (True, 50)
    """

    pointwise: Floats
    khat: Floats
    p_loo: float
    mcse: float
    n_draws: int

    @property
    def elpd(self) -> float:
        """Sum over the observations; higher is better."""
        return float(self.pointwise.sum())

    @property
    def se(self) -> float:
        """Standard error of `elpd` as a prediction for new data: it is due to the observations."""
        return math.sqrt(len(self) * float(np.var(self.pointwise, ddof=1))) if len(self) > 1 else math.nan

    @property
    def khat_limit(self) -> float:
        """Largest good k-hat: 0.7, and less with fewer than about 2,200 draws."""
        return khat_limit(self.n_draws)

    @property
    def n_bad(self) -> int:
        """Number of observations with a k-hat that is too large."""
        return int(np.sum(self.khat > self.khat_limit))

    def __len__(self) -> int:
        return len(self.pointwise)

    def __repr__(self) -> str:
        rows = [
            ("elpd", f"{self.elpd:.2f}", f"{self.se:.2f}"),
            ("p_loo", f"{self.p_loo:.2f}", ""),
        ]
        bad = (
            f"k-hat is below {self.khat_limit:.2g} for all observations"
            if not self.n_bad
            else f"k-hat is above {self.khat_limit:.2g} for {self.n_bad} of {len(self)} observations: refit without each of them, or take more draws"
        )
        head = f"Leave-one-out of {len(self):,} observations, from {self.n_draws:,} draws (error {self.mcse:.2g})"
        return "\n".join([head, *aligned(rows, ("", "value", "se")), bad])


def loo(  # noqa: PLR0913 - how to call a function, as for `qbvi.fit`
    fit: Fit,
    n: int = 1000,
    log_likelihood: Callable[..., Any] | None = None,
    *,
    data: Any = None,
    vectorized: bool | int = False,
    executor: Any = None,
    seed: int | None = None,
) -> Loo:
    r"""Estimate how well the model predicts each observation from all others, without refitting.

    The draws of q get two weights at once: one that corrects the approximation, and one that
    leaves the observation out. With the terms :math:`\ell_i = \log p(y_i | \theta)`,

    .. math::
        r_i = \frac{p(\theta) \exp \sum_{j \ne i} \ell_j}{q(\theta)}, \qquad
        p(y_i | y_{-i}) = \frac{E_q r_i e^{\ell_i}}{E_q r_i}

    The weights are Pareto smoothed (Vehtari, Gelman and Gabry, 2017; Magnusson et al., 2019).

    Parameters
    ----------
    fit : Fit
        A fit of a function with ``pointwise=True``, or of a ready-made model.
    n : int
        Number of draws, and so of calls of the function. A second call with the same ``n`` and
        ``seed`` uses the first one's terms.
    log_likelihood : function, optional
        The function that returns the terms, for other fits. By default that of the fit, with its
        data and executor.
    data, vectorized, executor
        As for `qbvi.fit`. They belong to ``log_likelihood`` and have no effect without it.
    seed : int, optional
        Source of the draws; by default the seed of the fit.

    Returns
    -------
    Loo
    """
    source = None
    if log_likelihood is not None:
        check_function(log_likelihood, vectorized)
        source = Source(log_likelihood, vectorized, executor=executor, terms=log_likelihood)
    return loo_of(evaluated_terms(fit, n, source, seed, data))


def loo_of(drawn: PointwiseDraws) -> Loo:
    """Leave-one-out from draws and terms."""
    n, m = drawn.terms.shape
    predicted, khat, influence = np.empty(m), np.empty(m), np.zeros(n)
    for i in range(m):
        weights, khat[i] = smoothed(drawn.log_ratios_without(i))
        density = np.exp(drawn.terms[:, i] - drawn.terms[:, i].max())
        mean = float(weights @ density)
        predicted[i] = math.log(mean) + drawn.terms[:, i].max() if mean else -math.inf
        influence += weights * (density / mean - 1) if mean else 0.0
    with np.errstate(divide="ignore"):
        log_weights = np.log(drawn.weights)
    known = scipy.special.logsumexp(drawn.terms + log_weights[:, None], axis=0)
    return Loo(predicted, khat, float(np.sum(known - predicted)), float(np.sqrt(np.sum(influence**2))), n)


def evaluated_terms(
    fit: Fit, n: int, source: Source | None = None, seed: int | None = None, data: Any = None
) -> PointwiseDraws:
    """Draw from q, and evaluate the terms of the log-likelihood there."""
    n = whole_number("n", n, _FEWEST)
    seed = (fit.seed or 0) if seed is None else as_seed(seed)
    source, is_own = (fit._source, True) if source is None else (source, False)
    if source is None or source.terms is None:
        msg = (
            "`log_likelihood` must be given, a function that returns the terms: this fit does not know them; "
            "or fit with qbvi.fit(..., pointwise=True)"
        )
        raise ValueError(msg)
    if not is_own:
        return _evaluated(fit, n, source, seed, () if data is None else (data,))
    key = (n, seed, fit.q.tobytes())
    if key not in source.kept:
        source.kept.clear()
        found = _evaluated(fit, n, source, seed, source.batch)
        if found.terms.size > _KEPT:
            return found
        source.kept[key] = found
    kept: PointwiseDraws = source.kept[key]
    return kept


def _evaluated(fit: Fit, n: int, source: Source, seed: int, batch: tuple[Any, ...]) -> PointwiseDraws:
    u = _even_draws(fit, n, np.random.default_rng([_STREAM, seed]))
    terms, places = terms_at(fit, u, source, batch)
    return PointwiseDraws(u[places], terms, _prior_ratio(fit, u[places], terms))


def terms_at(fit: Fit, u: Floats, source: Source, batch: tuple[Any, ...]) -> tuple[Floats, NDArray[np.int64]]:
    """Terms at unconstrained points (n, d), and which of the points they are of: (m, terms), (m,).

    Points at which the function fails are left out, as in the fit, unless failures raise.
    """
    assert source.terms is not None
    # The shape is checked in the calls, where the form of what was returned is known.
    function = _Checked(source.terms, bool(source.vectorized))
    push = Push(function, batch, source.vectorized, source.executor, name="log_likelihood")
    terms, places = pushed(push, fit.model.constrain(u), is_lenient=source.on_failure != "raise")
    bad = np.isnan(terms) | (terms == np.inf)
    if bad.any() and source.on_failure == "raise":
        draw, term = np.argwhere(bad)[0]
        msg = f"`log_likelihood` must return numbers or -inf, got {terms[draw, term]} as term {term} at draw {draw}"
        raise ValueError(msg)
    fine = ~bad.any(axis=1)
    return terms[fine], places[fine]


def _prior_ratio(fit: Fit, u: Floats, terms: Floats) -> Floats:
    """Log prior minus log q (n,); for draws of the posterior itself, all log ratios are zero."""
    if isinstance(fit.family, Sample):
        return np.asarray(-terms.sum(axis=1))
    return to_numpy(fit.model.log_prior(u)) - to_numpy(fit.family.log_prob(fit.q, u))


def _even_draws(fit: Fit, n: int, rng: np.random.Generator) -> Floats:
    """Draws of q (n, d): quasi-random in random order if q is a transport of normals.

    Means over them have a fraction of the error of independent draws. `Loo.mcse`, which takes them
    for independent, is then too large.
    """
    if not isinstance(fit.family, Family) or fit.family.dim > _MOST_EVEN:
        return fit.draw_unconstrained(n, rng)
    z = Sobol().normal(rng, max(n + n % 2, 4), fit.family.dim)[rng.permutation(n)]
    return to_numpy(fit.family.transport(fit.q, z))


@dataclass(frozen=True)
class _Checked:
    """A function whose terms have the right shape."""

    terms: Callable[..., Any]
    vectorized: bool

    def __call__(self, points: Any, *batch: Any) -> Floats:
        returned = self.terms(points, *batch)
        return as_terms(
            returned[0] if isinstance(returned, tuple) and len(returned) == 2 else returned, self.vectorized
        )
