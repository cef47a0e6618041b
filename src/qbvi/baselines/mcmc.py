"""Draws from the exact posterior, by the ensemble sampler of emcee."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.arrays import to_numpy
from qbvi.baselines.tables import side_by_side, table
from qbvi.evaluate import BlackBox
from qbvi.model import Model
from qbvi.points import row

__all__ = ["Chains", "mcmc"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Chains:
    """Draws of an ensemble of walkers, after the warm-up.

    Attributes
    ----------
    draws : dict of arrays or array
        Constrained values in the structure of the prior: draws of all walkers along the first axis.
    mean, sd : dict of arrays or array
        Posterior moments, in the same structure.
    labels : tuple of str
        Name of every entry.
    acceptance : float
        Fraction of proposals accepted, over all walkers.
    ess : array (p,)
        Effective sample size of every entry, from the autocorrelation of the walkers (arviz-stats,
        bulk).
    rhat : array (p,)
        Rank-normalised split R-hat over the walkers. The walkers depend on each other, so a value
        near one is necessary for convergence, not sufficient.
    n_evals : int
        Number of evaluations of the log-likelihood, including the warm-up.
    seed : int or None
    """

    draws: Any
    mean: Any
    sd: Any
    labels: tuple[str, ...]
    acceptance: float
    ess: Floats
    rhat: Floats
    n_evals: int
    seed: int | None

    def __repr__(self) -> str:
        head = f"MCMC: {self.n_evals:,} evaluations, {self.acceptance:.0%} of the proposals accepted"
        moments = {"mean": side_by_side(self.mean), "sd": side_by_side(self.sd)}
        return table(head, self.labels, moments | {"ess": self.ess, "r-hat": self.rhat})


def mcmc(  # noqa: PLR0913 - the arguments of qbvi.fit, and those of a sampler
    log_likelihood: Callable[..., Any],
    prior: Any,
    *,
    vectorized: bool = False,
    init: Any = None,
    n_walkers: int | None = None,
    n_steps: int = 2000,
    warmup: int = 1000,
    seed: int | None = None,
) -> Chains:
    """Sample the posterior with emcee's affine-invariant ensemble: ``pip install 'qbvi[mcmc]'``.

    It runs on the unconstrained scale, with the log-Jacobian. Four of five proposals are
    differential-evolution moves, the others stretch moves. The log-likelihood may fail or be minus
    infinity outside its domain; such a proposal is rejected.

    Parameters
    ----------
    log_likelihood, prior, vectorized, seed
        As in `qbvi.fit`.
    init
        Where the walkers start: a `qbvi.Fit` (draws from it), or a point on the constrained scale.
        By default the centre of the prior.
    n_walkers
        Number of walkers: even, and at least two per dimension. By default four per dimension, but
        at least 32.
    n_steps, warmup
        Steps of each walker to keep, and steps before them to discard.

    Returns
    -------
    Chains

    Examples
    --------
    >>> import pytest, qbvi
    >>> emcee = pytest.importorskip("emcee", reason="emcee is not installed")
    >>> chains = qbvi.baselines.mcmc(
    ...     lambda x: -0.5 * x**2,
    ...     qbvi.Normal(0, 1),
    ...     n_steps=500,
    ...     warmup=100,
    ...     seed=1,
    ... )
    >>> bool(abs(chains.sd**2 - 0.5) < 0.05)
    True
    """
    emcee = _emcee()
    model = Model(prior)
    walkers = max(32, 4 * model.dim) if n_walkers is None else n_walkers
    _check(walkers, n_steps, warmup, model.dim)
    rng = np.random.default_rng(seed)
    start = _start(model, init, walkers, rng)
    black_box = BlackBox(log_likelihood, vectorized, on_failure="exclude")

    def log_posterior(u: Floats) -> Floats:
        evaluated = black_box(model.constrain(u))
        return np.where(evaluated.ok, evaluated.values + model.log_prior(u), -np.inf)

    # No snooker moves: those of emcee 3.1 use half of the correct exponent, which narrows the
    # posterior by a third.
    moves = [(emcee.moves.DEMove(), 0.8), (emcee.moves.StretchMove(), 0.2)]
    sampler = emcee.EnsembleSampler(walkers, model.dim, log_posterior, vectorize=True, moves=moves)
    # emcee accepts only the state of the legacy NumPy generator.
    state = np.random.RandomState(rng.integers(2**32)).get_state()
    first = emcee.State(start, random_state=state)
    burnt = sampler.run_mcmc(first, warmup, skip_initial_state_check=True)
    sampler.reset()
    sampler.run_mcmc(burnt if warmup else first, n_steps, skip_initial_state_check=True)
    return _chains(model, sampler, black_box.n_evals, seed)


def _chains(model: Model, sampler: Any, n_evals: int, seed: int | None) -> Chains:
    u = np.swapaxes(sampler.get_chain(), 0, 1)  # (walkers, steps, d)
    draws = model.constrain(u.reshape(-1, model.dim))
    flat = to_numpy(model.flatten(draws))
    moments = np.stack([flat.mean(axis=0), flat.std(axis=0, ddof=1)])
    stats: Any = _array_stats()
    by_walker = flat.reshape(*u.shape[:2], -1)
    return Chains(
        draws=draws,
        mean=row(model.unflatten(moments), 0),
        sd=row(model.unflatten(moments), 1),
        labels=tuple(model.labels),
        acceptance=float(np.mean(sampler.acceptance_fraction)),
        ess=np.asarray(stats.ess(by_walker, chain_axis=0, draw_axis=1)),
        rhat=np.asarray(stats.rhat(by_walker, chain_axis=0, draw_axis=1)),
        n_evals=n_evals,
        seed=seed,
    )


def _start(model: Model, init: Any, walkers: int, rng: np.random.Generator) -> Floats:
    """Draws from a fit, or from a ball of a tenth of the prior's scales: (walkers, d)."""
    if hasattr(init, "draw_unconstrained"):
        return to_numpy(init.draw_unconstrained(walkers, rng))
    loc, scale = model.initial()
    centre = loc if init is None else model.unconstrain(init)
    return centre + 0.1 * scale * rng.standard_normal((walkers, model.dim))


def _check(walkers: int, n_steps: int, warmup: int, d: int) -> None:
    if walkers % 2 or walkers < 2 * d:
        msg = f"`n_walkers` must be even and at least {2 * d}, two for each dimension, got {walkers}"
        raise ValueError(msg)
    if n_steps < 4 or warmup < 0:
        msg = f"`n_steps` must be at least 4 and `warmup` at least 0, got {n_steps} and {warmup}"
        raise ValueError(msg)


def _emcee() -> Any:
    try:
        import arviz_stats  # noqa: F401  # also needed, but only after the steps
        import emcee
    except ImportError as error:
        msg = "`mcmc` needs emcee and arviz-stats: pip install 'qbvi[mcmc]'"
        raise ImportError(msg) from error
    return emcee


def _array_stats() -> Any:
    from arviz_stats.base import array_stats

    return array_stats
