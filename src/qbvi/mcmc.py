"""The hand-over to an exact sampler: chains that start from a fit and take their steps from it."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi import archive
from qbvi.arguments import a_path, as_seed, flag, probability, whole_number
from qbvi.arrays import to_numpy
from qbvi.check import Source
from qbvi.checkpoint import CheckpointError
from qbvi.ending import Stop
from qbvi.evaluate import BlackBox, Failure, OnFailure
from qbvi.evaluate.black_box import calls_of
from qbvi.evaluate.executors import open_runner
from qbvi.families import Sample
from qbvi.model import Model
from qbvi.points import row
from qbvi.progress import Count
from qbvi.proposals import FromPosterior
from qbvi.report import Report
from qbvi.results import Fit
from qbvi.summary import Summary
from qbvi.supports import Elementwise
from qbvi.weighted import Expectation

__all__ = ["MCMC", "SampledRow", "SampledSummary", "mcmc"]

Floats = NDArray[np.float64]

_STREAM = 0x3C3C  # keeps these random numbers apart from those of the fit
_FEWEST_WALKERS, _WALKERS_EACH = 32, 4  # least number of walkers, and walkers for each dimension
_FEWEST_STEPS = 8  # of each walker: fewer have no autocorrelation to estimate
_WARMUP = 5  # one of so many steps is discarded, since walkers start from a posterior
# Shares of the moves: proposals from the posterior, differential evolution, stretch moves. The
# last two follow the walkers to where the posterior that they started from is wrong, so they have
# larger shares if it misses more nats than this.
_SHARES, _SHARES_FAR = (0.8, 0.15, 0.05), (0.2, 0.6, 0.2)
_NEAR = 0.5
_MOST_RHAT = 1.05  # R-hat below which many short chains agree ...
_FEWEST_ESS = 400.0  # ... and effective draws from which their quantiles are known
_SAVE_EVERY = 5.0  # seconds between two checkpoints
_FORMAT = "qbvi-mcmc-run"


class SampledRow(NamedTuple):
    """One line of a summary of chains; ``q_mean`` and ``q_sd`` are those of the fit before."""

    parameter: str
    mean: float
    sd: float
    lower: float
    upper: float
    q_mean: float
    q_sd: float
    ess: float
    rhat: float


@dataclass(frozen=True, repr=False)
class SampledSummary(Summary):
    """A table of chains, with the fit that they started from beside them."""

    sampled: tuple[SampledRow, ...] = ()

    def cells(self) -> list[tuple[str, ...]]:
        """The table as text, header first."""
        has_start = not all(math.isnan(one.q_mean) for one in self.sampled)
        head, *body = super().cells()
        extra = ("mean of q", "sd of q") if has_start else ()
        lines = [(*head, *extra, "ess", "r-hat")]
        for cells, one in zip(body, self.sampled, strict=True):
            decimals = len(cells[2].partition(".")[2])
            beside = (f"{one.q_mean:.{decimals}f}", f"{one.q_sd:.{decimals}f}") if has_start else ()
            lines.append((*cells, *beside, f"{one.ess:,.0f}", f"{one.rhat:.3f}"))
        return lines

    def to_pandas(self) -> Any:
        """The table as a pandas.DataFrame."""
        frame = super().to_pandas()
        for name in SampledRow._fields[5:]:
            frame[name] = [getattr(one, name) for one in self.sampled]
        return frame


@dataclass(frozen=True, eq=False, repr=False)
class MCMC(Fit):
    """A posterior by draws of Markov chains: a `qbvi.Fit` whose numbers are those of the draws.

    Means, standard deviations, quantiles, draws, predictions, plots, `save` and `to_arviz` are as
    for a fit. There is no density, lower bound or evidence.

    Attributes
    ----------
    start : Fit or None
        The fit that the chains started from; None if this was loaded from a file.
    """

    start: Fit | None = field(default=None, repr=False)

    @property
    def draws(self) -> Any:
        """All draws, constrained, in the structure of the prior: walkers one after the other."""
        return self.model.constrain(self._sample.draws(self.q))

    @property
    def log_joint(self) -> Floats:
        """Log prior plus log-likelihood on the unconstrained scale: (walkers, steps)."""
        return self._sample.log_joint(self.q)

    @property
    def n_walkers(self) -> int:
        """Number of walkers."""
        return self._sample.n_chains

    @property
    def n_steps(self) -> int:
        """Number of draws of each walker, after the warm-up."""
        return self._sample.n_steps

    @property
    def acceptance(self) -> float:
        """Share of the steps that moved a walker."""
        chains = self._sample.chains(self.q)
        return float(np.mean(np.any(chains[:, 1:] != chains[:, :-1], axis=-1)))

    @cached_property
    def ess(self) -> Floats:
        """Effective sample size of every entry (p,), from the autocorrelation of the walkers."""
        return np.asarray(array_stats().ess(self._by_walker, chain_axis=0, draw_axis=1))

    @cached_property
    def rhat(self) -> Floats:
        """Rank-normalised split R-hat of every entry (p,), over the walkers.

        The walkers depend on each other, so a value near one is necessary, not sufficient.
        """
        return np.asarray(array_stats().rhat(self._by_walker, chain_axis=0, draw_axis=1))

    def summary(self, interval: float = 0.95) -> SampledSummary:
        """Tabulate every entry: mean, sd, credible interval, those of q, ESS and R-hat.

        Parameters
        ----------
        interval : float
            Posterior probability of the interval.
        """
        table = super().summary(probability("interval", interval))
        nothing = np.full(len(self.labels), np.nan)
        beside = (nothing, nothing) if self.start is None else self.start.entry_moments()
        columns = zip(table.rows, *beside, self.ess, self.rhat, strict=True)
        rows = tuple(SampledRow(*one, *(float(x) for x in numbers)) for one, *numbers in columns)
        header = (self._title(), *self._lines())
        return SampledSummary(table.rows, interval, header, self.notes, rows)

    def expect(self, f: Callable[[Any], Any], vectorized: bool = False) -> Expectation:
        """Posterior expectation of any function of a point, with its standard error.

        Parameters
        ----------
        f : function
            A function of one constrained point that returns a number or an array.
        vectorized : bool
            Whether ``f`` takes all points, stacked along a first axis, and returns one value each.
        """
        draws, n = self.draws, self.n_walkers * self.n_steps
        values = f(draws) if vectorized else [f(row(draws, i)) for i in range(n)]
        array = np.asarray(values, dtype=np.float64)
        if array.ndim == 0 or len(array) != n:
            msg = f"`f` must return one value for each of the {n} points, got shape {array.shape}; for one point at a time pass vectorized=False"
            raise ValueError(msg)
        by_walker = array.reshape(self.n_walkers, self.n_steps, -1)
        ess = np.asarray(array_stats().ess(by_walker, chain_axis=0, draw_axis=1, method="mean")).reshape(
            array.shape[1:]
        )
        ess = np.where(np.isfinite(ess), ess, n)  # of constants
        mean, se = array.mean(axis=0), array.std(axis=0) / np.sqrt(ess)
        if array.ndim == 1:
            mean, se = float(mean), float(se)
        return Expectation(mean, se, float(ess.min()), True)

    def __repr__(self) -> str:
        return repr(self.summary())

    @property
    def _sample(self) -> Sample:
        assert isinstance(self.family, Sample)
        return self.family

    @cached_property
    def _by_walker(self) -> Floats:
        """Constrained entries: (walkers, steps, p)."""
        flat = to_numpy(self.model.flatten(self.draws))
        return flat.reshape(self.n_walkers, self.n_steps, -1)

    def _lines(self) -> list[str]:
        report = self.record
        failed = f", {len(report.failures):,} failed" if report.failures else ""
        return [
            f"draws        {self.n_walkers * self.n_steps:,} of {self.n_walkers} walkers, {self.acceptance:.0%} of the steps accepted",
            f"evaluations  {report.n_evals:,} in {report.n_iterations:,} steps, {report.seconds:.3g} s{failed}",
            f"converged    {'yes' if report.converged else 'NO'}: {report.stop_reason}",
        ]


def mcmc(  # noqa: PLR0913 - how to call a function, as for `qbvi.fit`, and how long to run
    fit: Fit,
    n: int = 10_000,
    log_likelihood: Callable[..., Any] | None = None,
    *,
    n_walkers: int | None = None,
    warmup: int | None = None,
    vectorized: bool | int = False,
    on_failure: OnFailure = "raise",
    executor: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    seed: int | np.random.Generator | None = None,
) -> MCMC:
    """Draw from the posterior itself by Markov chains that start from a fit.

    It runs the ensemble sampler of emcee (``pip install 'qbvi[mcmc]'``). The walkers start from
    draws of the fit. There are two kinds of steps:

    - Proposals from the fit, as independent draws. They are eight of ten steps, or two of ten if
      the fit misses more than half a nat.
    - Differential-evolution and stretch moves, which follow the walkers to where the fit is wrong.

    All of them leave the exact posterior unchanged, however wrong the fit is.

    Parameters
    ----------
    fit : Fit
        The posterior to start from.
    n : int
        Number of draws of all walkers together, after the warm-up. The evaluations are as many, and
        those of the warm-up.
    log_likelihood : function, optional
        The function, if this fit does not know it: it was loaded, pickled, or comes from
        `qbvi.Ask`. By default the function is called as `qbvi.fit` called it, with the same data,
        ``on_failure``, ``executor`` and ``timeout``.
    n_walkers : int, optional
        Number of walkers: even, and at least two for each dimension. By default four for each
        dimension, but at least 32.
    warmup : int, optional
        Steps of each walker to discard; by default a fifth of those that are kept.
    vectorized, on_failure, executor
        As for `qbvi.fit`. They belong to ``log_likelihood`` and have no effect without it. A point
        at which the function fails is rejected, unless failures raise.
    checkpoint : path, optional
        A file that saves the chains every few seconds. If it exists, the run continues from it, to
        the same draws as without the interruption.
    progress : bool, optional
        Whether to show a line of progress. The default shows it on a terminal only.
    seed : int, numpy.random.Generator or None
        Source of the random numbers; None takes them from the seed of the fit.

    Returns
    -------
    MCMC
        A `qbvi.Fit` by draws, with R-hat and effective sample sizes. Its table shows the fit beside
        it.

    Examples
    --------
    A posterior with light tails, in one Gaussian:

    >>> import pytest, qbvi
    >>> emcee = pytest.importorskip("emcee", reason="emcee is not installed")
    >>> fit = qbvi.fit(lambda x: -(x**4), qbvi.Normal(0, 1), family="full", seed=1)
    >>> chains = fit.mcmc(8000, seed=1)
    >>> bool(abs(fit.sd - 0.528) < 0.02), bool(abs(chains.sd - 0.528) < 0.02)
    (False, True)
    """
    emcee = _emcee()
    source = _source(fit, log_likelihood, vectorized, on_failure, executor)
    plan = _planned(fit, n, n_walkers, warmup)
    path = a_path("checkpoint", checkpoint, optional=True)
    if progress is not None:
        flag("progress", progress)
    seed = _seed(fit) if seed is None else as_seed(seed)
    began = time.monotonic()
    with open_runner(
        calls_of(source.function, source.vectorized, source.on_failure), source.executor, source.timeout
    ) as runner:
        box = BlackBox(source.function, source.vectorized, source.on_failure, runner=runner)
        target = _Target(fit, box, source.batch)
        run = _Run(emcee, target, plan, seed, path)
        line = Count("mcmc", plan.total, progress)
        for done in run.steps():
            line.update(done)
        line.close()
    return _result(fit, source, run, box, time.monotonic() - began)


class _Plan(NamedTuple):
    """How many walkers, and how many steps of each."""

    walkers: int
    warmup: int
    steps: int

    @property
    def total(self) -> int:
        return self.warmup + self.steps


class _Target:
    """Log prior plus log-likelihood of unconstrained points, minus infinity where it is zero."""

    def __init__(self, fit: Fit, box: BlackBox, batch: tuple[Any, ...]) -> None:
        self.fit, self.model, self._box, self._batch = fit, fit.model, box, batch
        self._centre = to_numpy(fit.family.mean(fit.q))

    @property
    def n_evals(self) -> int:
        return self._box.n_evals

    @property
    def failures(self) -> list[Failure]:
        return self._box.failures

    def __call__(self, u: Floats) -> Floats:
        found = np.full(len(u), -np.inf)
        inside = np.flatnonzero(self._inside(u))
        if not len(inside):
            return found
        at = u[inside]
        evaluated = self._box(self.model.constrain(at), *self._batch)
        if np.any(evaluated.noise_sd > 0):
            msg = "`log_likelihood` must have no noise for a Markov chain, got a standard deviation above zero: draws by importance weights have no such limit, as in fit.check(1000).weighted_draws()"
            raise ValueError(msg)
        found[inside] = np.where(evaluated.ok, evaluated.values + to_numpy(self.model.log_prior(at)), -np.inf)
        return found

    def _inside(self, u: Floats) -> NDArray[np.bool_]:
        """Points that the chains may visit: in the supports, and in one period of each angle."""
        inside: NDArray[np.bool_] = np.all(np.abs(u - self._centre) <= self.model.periods / 2, axis=1)
        for parameter in self.model.parameters:
            if parameter.is_native:
                support, x = parameter.distribution.support, parameter.constrain(u)
                inside &= np.array([support.contains(point, strict=True) for point in x])
        return inside


class _Run:
    """The chains while they grow, and their checkpoint."""

    def __init__(self, emcee: Any, target: _Target, plan: _Plan, seed: int, path: str) -> None:
        self.plan, self.target, self._path = plan, target, path
        fit = target.fit
        rng = np.random.default_rng([_STREAM, seed])
        self._sampler = emcee.EnsembleSampler(
            plan.walkers, fit.model.dim, target, vectorize=True, moves=_moves(emcee, fit)
        )
        # Not through the wrapper of emcee, which prints the traceback of every exception.
        self._sampler.log_prob_fn = target
        state = np.random.RandomState(rng.integers(2**32)).get_state()  # emcee has the legacy generator
        self._state = emcee.State(fit.draw_unconstrained(plan.walkers, rng), random_state=state)
        self._print = _fingerprint(fit, plan, seed)
        self.chain = np.empty((plan.total, plan.walkers, fit.model.dim))
        self.log_joint = np.empty((plan.total, plan.walkers))
        self.done, self.spent = 0, 0
        if path and os.path.exists(path):
            self._resume(emcee)

    def steps(self) -> Iterator[int]:
        """Make the steps that are left; yield how many are done."""
        left, saved = self.plan.total - self.done, time.monotonic()
        states = self._sampler.sample(self._state, iterations=left, skip_initial_state_check=True, store=False)
        for _ in range(left):
            with np.errstate(invalid="ignore"):  # a step from outside the support to outside it
                state = next(states)
            self.chain[self.done], self.log_joint[self.done] = state.coords, state.log_prob
            self.done, self._state = self.done + 1, state
            if self._path and (time.monotonic() - saved > _SAVE_EVERY or self.done == self.plan.total):
                self._save()
                saved = time.monotonic()
            yield self.done

    @property
    def n_evals(self) -> int:
        """Evaluations of all parts of the run."""
        return self.spent + self.target.n_evals

    def _save(self) -> None:
        _, keys, position, has_gauss, cached = self._state.random_state
        arrays = {
            "chain": self.chain[: self.done],
            "log_joint": self.log_joint[: self.done],
            "keys": np.asarray(keys),
            "place": np.array([position, has_gauss, cached], dtype=np.float64),
        }
        header = {"format": _FORMAT, "of": self._print, "n_evals": self.n_evals}
        archive.write(self._path, header, arrays)

    def _resume(self, emcee: Any) -> None:
        try:
            header, arrays = archive.read(self._path)
        except archive.ForeignFileError as error:
            raise CheckpointError(_not_ours(self._path)) from error
        if header.get("format") != _FORMAT:
            raise CheckpointError(_not_ours(self._path))
        if header.get("of") != self._print:
            msg = f"`checkpoint` {self._path!r} is of other chains: the fit, the seed, the walkers or the steps differ; give another file, or delete it"
            raise CheckpointError(msg)
        try:
            self.done, self.spent = len(arrays["chain"]), int(header["n_evals"])
            self.chain[: self.done], self.log_joint[: self.done] = arrays["chain"], arrays["log_joint"]
            position, has_gauss, cached = arrays["place"].tolist()
        except (KeyError, TypeError, ValueError) as error:
            msg = f"`checkpoint` {self._path!r} is damaged: {error!r}; delete it to start again"
            raise CheckpointError(msg) from error
        random_state = ("MT19937", arrays["keys"], int(position), int(has_gauss), cached)
        last = self.done - 1
        self._state = emcee.State(self.chain[last], log_prob=self.log_joint[last], random_state=random_state)


def _moves(emcee: Any, fit: Fit) -> list[tuple[Any, float]]:
    """Moves with their shares."""
    proposal = FromPosterior(fit.family, fit.q)

    def from_posterior(u: Floats, random: np.random.RandomState) -> tuple[Floats, Floats]:
        return proposal(u, np.random.default_rng(random.randint(2**32, dtype=np.uint64)))

    own = emcee.moves.MHMove(from_posterior)
    if not _is_open(fit.model):
        return [(own, 1.0)]
    # No snooker moves: those of emcee 3.1 use half of the correct exponent, which narrows the
    # posterior by a third.
    is_near = fit.missing < _NEAR and math.isfinite(fit.missing_se)
    shares = _SHARES if is_near else _SHARES_FAR
    return list(zip((own, emcee.moves.DEMove(), emcee.moves.StretchMove()), shares, strict=True))


def _is_open(model: Model) -> bool:
    """Whether steps in any direction make sense: not for whole numbers, simplexes or matrices."""
    supports = [p.distribution.support for p in model.parameters if p.is_native]
    return all(isinstance(support, Elementwise) and not support.is_discrete for support in supports)


def _planned(fit: Fit, n: Any, n_walkers: Any, warmup: Any) -> _Plan:
    d, n = fit.model.dim, whole_number("n", n)
    least = 2 * d
    count = max(_FEWEST_WALKERS, _WALKERS_EACH * d) if n_walkers is None else whole_number("n_walkers", n_walkers)
    if count % 2 or count < max(least, 2):
        msg = f"`n_walkers` must be even and at least {least}, two for each dimension, got {count}"
        raise ValueError(msg)
    steps = -(-n // count)
    if steps < _FEWEST_STEPS:
        msg = f"`n` must be at least {_FEWEST_STEPS * count}, {_FEWEST_STEPS} draws of each of the {count} walkers, got {n}"
        raise ValueError(msg)
    return _Plan(count, steps // _WARMUP if warmup is None else whole_number("warmup", warmup, 0), steps)


def _source(fit: Fit, function: Any, vectorized: Any, on_failure: OnFailure, executor: Any) -> Source:
    """How to call the function; refuses fits that have no density or see parts of the data."""
    if isinstance(fit.family, Sample):
        msg = "`mcmc` starts from a fit with a density, and this one is known by its draws alone: call it on chains.start with another n"
        raise TypeError(msg)
    source = fit._source if function is None else Source(function, vectorized, on_failure, executor)
    if source is None:
        msg = "`log_likelihood` must be given: this fit does not know its function, because it was loaded, pickled or not made by qbvi.fit"
        raise ValueError(msg)
    if source.is_partial:
        msg = "`log_likelihood` must be given: this fit used mini-batches, whose values are of different data; pass a function of all data"
        raise ValueError(msg)
    return source


def _result(fit: Fit, source: Source, run: _Run, box: BlackBox, seconds: float) -> MCMC:
    plan = run.plan
    chains = np.swapaxes(run.chain[plan.warmup :], 0, 1)
    log_joint = run.log_joint[plan.warmup :].T
    sample = Sample(fit.model.dim, plan.walkers, plan.steps)
    report = Report(
        n_evals=run.n_evals,
        n_iterations=plan.total,
        failures=tuple(box.failures),
        seconds=seconds,
        seed=fit.seed,
        method=f"emcee, {plan.walkers} walkers",
    )
    found = MCMC(fit.model, sample, sample.pack(chains, log_joint), report, source, fit)
    rhat, ess = float(np.max(found.rhat)), float(np.min(found.ess))
    is_good = rhat < _MOST_RHAT and ess >= _FEWEST_ESS
    verdict = f"R-hat is at most {rhat:.3f}, and the effective sample size at least {ess:,.0f}"
    stop = Stop.own(
        is_good,
        verdict if is_good else f"{verdict}; more draws are needed, as in fit.mcmc({2 * plan.walkers * plan.steps})",
    )
    return replace(found, record=report.ended(stop))


def _fingerprint(fit: Fit, plan: _Plan, seed: int) -> str:
    digest = hashlib.sha256(fit.q.tobytes())
    digest.update(repr((plan, seed, fit.labels)).encode())
    return digest.hexdigest()


def _seed(fit: Fit) -> int:
    return as_seed(None) if fit.seed is None else fit.seed


def _not_ours(path: str) -> str:
    return f"`checkpoint` {path!r} exists, but is not a checkpoint of `mcmc`; give another file"


def _emcee() -> Any:
    try:
        import emcee
    except ImportError as error:
        msg = "`mcmc` needs emcee and arviz-stats: pip install 'qbvi[mcmc]'"
        raise ImportError(msg) from error
    array_stats()  # also needed, but only after the steps
    return emcee


def array_stats() -> Any:
    """The module that has R-hat and effective sample sizes."""
    try:
        from arviz_stats.base import array_stats as found
    except ImportError as error:
        msg = "R-hat and effective sample sizes need arviz-stats: pip install 'qbvi[mcmc]'"
        raise ImportError(msg) from error
    return found
