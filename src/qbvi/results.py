"""Fit: the posterior under the user's own names, how it was found, and whether to trust it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import array_of, as_generator, flag, interval_ends, probability, quantile_levels, whole_number
from qbvi.arrays import to_numpy
from qbvi.diagnostics import smoothed_weights
from qbvi.distributions import DISTRIBUTIONS, Distribution
from qbvi.ending import StopKind
from qbvi.evaluate.failures import Failure
from qbvi.evaluations import Evaluations
from qbvi.families import (
    DiagonalGaussian,
    ExponentialFamily,
    Family,
    Gaussian,
    GaussianProduct,
    LowRankGaussian,
    Mixture,
    NegativeBinomial,
    Sample,
)
from qbvi.families.base import Density
from qbvi.free.cells import Cells
from qbvi.free.density import FreeDensity
from qbvi.marginals import Block, Marginal
from qbvi.model import Model
from qbvi.paths import Start, Starts
from qbvi.points import items, mapped, row
from qbvi.report import Report, Trace
from qbvi.summary import Row, Summary, aligned, cells_of, diagnostic_lines
from qbvi.supports import Elementwise, Interval, Periodic, Real
from qbvi.weighted import Expectation, WeightedDraws

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from qbvi.check import Source
    from qbvi.evaluate import OnFailure
    from qbvi.loo import Loo
    from qbvi.mcmc import MCMC
    from qbvi.predict import Predictive

__all__ = [
    "Block",
    "Expectation",
    "Failure",
    "Fit",
    "Marginal",
    "Report",
    "Row",
    "Start",
    "Starts",
    "Summary",
    "Trace",
    "WeightedDraws",
]

Floats = NDArray[np.float64]
Structure = Any  # structure of the prior: a dict of arrays if parameters are named, else one array

_DRAWS = 2**13  # for moments that have no closed form


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """An approximate posterior, with its diagnostics and history.

    Means, standard deviations, draws and densities are on the parameters' own, constrained scale.
    They have the structure of the prior: a dict if parameters are named, else one array.

    Parameters
    ----------
    model : Model
        Names, shapes, supports and priors.
    family : Family
        The family that ``q`` belongs to.
    q : array
        The approximation, in its family's own coordinates.
    record : Report
        Results and diagnostics of the fit.

    Notes
    -----
    Moments of parameters on the whole real line are exact. Other moments use a fixed quasi-random
    sample, so they are the same at every call. On the unconstrained scale, the mean and covariance
    of that sample are exactly those of q.

    Examples
    --------
    A posterior put together by hand; `qbvi.fit` gives one with a report.

    >>> from qbvi.distributions import LogNormal, Normal
    >>> model = Model({"beta": Normal(0, 5, shape=2), "sigma": LogNormal(0, 1)})
    >>> q = Gaussian(3).start(np.array([1.0, 2.0, 0.0]), np.full(3, 0.1))
    >>> fit = Fit(model, Gaussian(3), q, Report())
    >>> fit.mean["beta"], fit.sd["beta"]
    (array([1., 2.]), array([0.1, 0.1]))
    >>> fit.sample(1000, seed=2)["beta"].shape
    (1000, 2)
    >>> round(fit.log_prob({"beta": [1.0, 2.0], "sigma": 1.0}), 3)
    4.151
    """

    model: Model
    family: Density
    q: Floats
    record: Report
    # How to call the user's function again. `qbvi.fit` sets it; files and pickles leave it out.
    _source: Source | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        q = to_numpy(self.q)
        if q.shape != (self.family.n_stored,) or self.family.dim != self.model.dim:
            msg = (
                f"`q` must have shape ({self.family.n_stored},) and the family {self.model.dim} dimensions, "
                f"got {q.shape} and {self.family.dim}"
            )
            raise ValueError(msg)
        q.flags.writeable = False
        object.__setattr__(self, "q", q)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the user's function, which often cannot be pickled."""
        return {name: value for name, value in vars(self).items() if name != "_source"}

    @property
    def mean(self) -> Structure:
        """Posterior mean of every parameter."""
        return self._structured(self._mean_and_sd[0])

    @property
    def sd(self) -> Structure:
        """Posterior standard deviation of every parameter."""
        return self._structured(self._mean_and_sd[1])

    @property
    def cov(self) -> Structure:
        """Posterior covariance of each parameter's entries, in C order: (size, size)."""
        parts = {b.name: self._moments[1][b.entries, b.entries].copy() for b in self.blocks}
        if self.model.is_vector:
            return self.cov_matrix
        return self.model.nest(parts) if self.model.is_named else next(iter(parts.values()))

    @property
    def cov_matrix(self) -> Floats:
        """Posterior covariance of all entries: (p, p), in the order of `labels`."""
        return self._moments[1].copy()

    @property
    def factors(self) -> dict[str, Distribution]:
        """Posterior distribution of every parameter with its own family.

        An example is ``InverseGamma(alpha=..., beta=...)``.
        """
        parts = zip(self.family.independent_parts, self.family.members(self.q), strict=True)
        starts = {block.columns.start: block for block in self.blocks if block.is_native}
        return {
            starts[columns[0]].name: _as_distribution(factor, q, starts[columns[0]].shape)
            for (factor, columns), q in parts
            if columns[0] in starts
        }

    @property
    def labels(self) -> tuple[str, ...]:
        """Name of every entry, such as ``beta[0]``."""
        return tuple(self.model.labels)

    @property
    def unconstrained(self) -> tuple[Floats, Floats]:
        """Mean (d,) and covariance (d, d) of q on the unconstrained scale."""
        return to_numpy(self.family.mean(self.q)), to_numpy(self.family.cov(self.q))

    @property
    def elbo(self) -> float:
        """Lower bound on the log evidence, from fresh draws."""
        return self.record.elbo

    @property
    def elbo_se(self) -> float:
        """Standard error of `elbo`."""
        return self.record.elbo_se

    @property
    def evidence(self) -> float:
        """Log evidence: the log of the marginal likelihood, for model comparison."""
        return self.record.evidence

    @property
    def evidence_se(self) -> float:
        """Standard error of `evidence`; infinite if the draws do not determine it."""
        return self.record.evidence_se

    @property
    def missing(self) -> float:
        """Nats that this posterior misses: KL(q || posterior), `evidence` minus `elbo`."""
        return self.record.missing

    @property
    def missing_se(self) -> float:
        """Standard error of `missing`; infinite if the draws do not determine it."""
        return self.record.missing_se

    @property
    def khat(self) -> float:
        """Pareto k-hat of the importance ratios of fresh draws; NaN if there are none.

        There are none with mini-batches, and if the method has checked the posterior itself.
        """
        return self.record.khat

    @property
    def converged(self) -> bool:
        """Whether fewer than ``tol`` nats are missing, of the posterior or to the best of a family.

        See ``tol`` of `qbvi.fit`. `stop_reason` says which of the two.
        """
        return self.record.converged

    @property
    def stop_reason(self) -> str:
        """Why the fit ended, in a sentence."""
        return self.record.stop_reason

    @property
    def stop_kind(self) -> StopKind:
        """Why the fit ended, as a kind that programs can compare."""
        return self.record.stop_kind

    @property
    def n_evals(self) -> int:
        """Number of evaluations of the user's function."""
        return self.record.n_evals

    @property
    def n_failed(self) -> int:
        """Number of evaluations without a usable number."""
        return len(self.record.failures)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """All failed evaluations: where, why, and how long they took."""
        return self.record.failures

    @property
    def evaluations(self) -> Evaluations | None:
        """All points that the function was evaluated at, in order, with their values.

        Given to a later fit as ``evaluations=``, they save evaluations. Evaluations that were given
        to this fit come first. None if they are not available:

        - values of mini-batches are of different data,
        - points of a loop on a device stay there,
        - `save` leaves out more than a million numbers.
        """
        return self.record.evaluations

    @property
    def starts(self) -> Starts:
        """Where each start has ended, with which bound and weight.

        A row is one of several starts (``n_starts``), or one of the modes that the search of a
        single start found. A fit that found one mode has one row.
        """
        one = Start(0, self.elbo, 1.0, self.n_evals, self.converged, self._moments[0])
        return Starts(self.labels, self.record.starts or (one,))

    @property
    def trace(self) -> Trace:
        """History of the fit, with one entry per iteration."""
        return self.record.trace

    @property
    def notes(self) -> tuple[str, ...]:
        """Advice, in plain sentences."""
        return self.record.notes

    @property
    def seconds(self) -> float:
        """Run time of the fit in seconds."""
        return self.record.seconds

    @property
    def seed(self) -> int | None:
        """The given seed."""
        return self.record.seed

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> Structure:
        """Draw from the posterior.

        Parameters
        ----------
        n : int
            Number of draws.
        seed : int, numpy.random.Generator or None
            Source of the draws; None gives different draws at every call.

        Returns
        -------
        dict of arrays or array
            Constrained values, draws along the first axis.
        """
        return self.model.constrain(self.draw_unconstrained(n, seed))

    def log_prob(self, theta: Structure, batched: bool | None = None) -> Any:
        """Log density of the posterior at constrained values.

        Parameters
        ----------
        theta : dict of arrays or array
            One point, or many along a first axis, such as those of `sample`.
        batched : bool, optional
            Whether ``theta`` has such an axis. By default its shape tells.

        Returns
        -------
        float or array (n,)
            Minus infinity outside the support.

        Examples
        --------
        >>> import qbvi
        >>> fit = qbvi.fit(lambda x: -0.5 * float(x @ x), qbvi.Normal(0, 1, shape=2), seed=1)
        >>> fit.log_prob(fit.sample(5, seed=1)).shape
        (5,)
        """
        is_batch = self._is_batch(theta) if batched is None else flag("batched", batched)
        values = theta if is_batch else mapped(lambda value: array_of("theta", value)[None], theta)
        log_q = self._log_prob(values)
        return log_q if is_batch else float(log_q[0])

    def summary(self, interval: float = 0.95) -> Summary:
        """Tabulate mean, standard deviation and an equal-tailed credible interval of every entry.

        Parameters
        ----------
        interval : float
            Posterior probability of the interval.
        """
        interval = probability("interval", interval)
        lower, upper = self._quantile_table(interval_ends("interval", interval))
        columns = zip(self.labels, *self._mean_and_sd, lower, upper, strict=True)
        rows = tuple(Row(label, *(float(number) for number in numbers)) for label, *numbers in columns)
        return Summary(rows, interval, (self._title(), *diagnostic_lines(self.record)), self.notes)

    def quantiles(self, levels: Any) -> Structure:
        """Posterior quantiles of every parameter.

        Parameters
        ----------
        levels : float or sequence of float
            Levels between 0 and 1.

        Returns
        -------
        dict of arrays or array
            In the structure of the prior, as `mean`: one level gives the shape of each parameter,
            m levels have a first axis of m.

        Examples
        --------
        >>> import qbvi
        >>> prior = {"beta": qbvi.Normal(0, 1, shape=2)}
        >>> fit = qbvi.fit(lambda p: -float(p["beta"] @ p["beta"]), prior, seed=1)
        >>> fit.quantiles(0.5)["beta"].shape, fit.quantiles([0.05, 0.95])["beta"].shape
        ((2,), (2, 2))
        """
        levels = quantile_levels("levels", levels)
        values = self.model.unflatten(self._quantile_table(np.atleast_1d(levels)))
        return values if levels.ndim else mapped(lambda value: value[0], values)

    def interval(self, probability: float = 0.95) -> Structure:
        """Equal-tailed credible interval of every parameter.

        Parameters
        ----------
        probability : float
            Posterior probability of the interval.

        Returns
        -------
        dict of arrays or array
            In the structure of the prior, with the lower and upper ends along a first axis of two.

        Examples
        --------
        >>> import qbvi
        >>> fit = qbvi.fit(lambda m: -0.5 * (m - 1.0) ** 2, qbvi.Normal(0, 1), seed=1)
        >>> fit.interval(0.95).round(1)
        array([-0.9,  1.9])
        """
        return self.quantiles(interval_ends("probability", probability))

    def check(
        self,
        n: int = 1000,
        log_likelihood: Callable[..., Any] | None = None,
        *,
        vectorized: bool | int = False,
        on_failure: OnFailure = "raise",
        executor: Any = None,
        seed: int | np.random.Generator | None = None,
    ) -> Fit:
        """Buy fresh draws from the posterior, and judge it by the function's values there.

        The result is the same posterior with better figures: `elbo`, `evidence`, `missing`, `khat`
        and their errors. Its `weighted_draws` and `expect` correct the posterior by importance
        weights. The draws are added to `evaluations`. A further check adds to those of earlier
        ones.

        Parameters
        ----------
        n : int
            Number of draws, and so of evaluations.
        log_likelihood : function, optional
            The function, if this fit does not know it: it was loaded, pickled, or comes from
            `qbvi.Ask`. By default the function is called as `qbvi.fit` called it, with the same
            data, ``on_failure``, ``executor`` and ``timeout``.
        vectorized, on_failure, executor
            As for `qbvi.fit`. They belong to ``log_likelihood`` and have no effect without it.
        seed : int, numpy.random.Generator or None
            Source of the draws; None takes them from the seed of the fit.

        Returns
        -------
        Fit
            The checked fit. It no longer counts as converged if the draws contradict it.

        Examples
        --------
        A posterior with light tails, in one Gaussian:

        >>> import qbvi
        >>> fit = qbvi.fit(lambda x: -(x**4), qbvi.Normal(0, 1), family="full", seed=1)
        >>> checked = fit.check(1000)
        >>> checked.evidence_se < fit.evidence_se
        True
        >>> bool(abs(checked.evidence + 0.4776) < 3 * checked.evidence_se)
        True
        >>> fit.sd.round(3), round(checked.weighted_draws().sd, 3)  # exact: 0.528
        (np.float64(0.501), 0.523)
        """
        from qbvi.check import Source, check

        source = self._source
        if log_likelihood is not None:
            source = Source(log_likelihood, vectorized, on_failure, executor)
        if source is None:
            msg = "`log_likelihood` must be given: this fit does not know its function, because it was loaded, pickled or not made by qbvi.fit"
            raise ValueError(msg)
        return check(self, n, source, seed)

    def weighted_draws(self) -> WeightedDraws:
        """The draws of `check`, with Pareto-smoothed importance weights.

        The weights correct the difference between this posterior and the true one, as far as k-hat
        is good. `sample` and `mean` are those of the posterior as it was fitted.

        Returns
        -------
        WeightedDraws
            Draws, weights, effective sample size, and the re-weighted mean and sd.
        """
        h, noise = self.log_ratios
        if not len(h):
            msg = "this fit has no draws to weight: `check` buys some, as in fit.check(1000).weighted_draws()"
            raise ValueError(msg)
        known = ~np.isnan(h)
        u = self._checked_points.unconstrained[known]
        return WeightedDraws(self.model.constrain(u), smoothed_weights(h[known] - noise[known] / 2))

    def expect(self, f: Callable[[Any], Any], vectorized: bool = False) -> Expectation:
        """Posterior expectation of any function of a point, with its standard error.

        After `check` it uses `weighted_draws`. Otherwise it is the expectation under the posterior
        as it was fitted, without a correction.

        Parameters
        ----------
        f : function
            A function of one constrained point, as the log-likelihood takes it, that returns a
            number or an array.
        vectorized : bool
            Whether ``f`` takes all points, stacked along a first axis, and returns one value each.

        Returns
        -------
        Expectation
            ``value``, ``se``, ``ess`` (effective sample size) and ``is_weighted``.

        Examples
        --------
        The probability that a parameter is positive:

        >>> import qbvi
        >>> fit = qbvi.fit(lambda m: -0.5 * (m - 1.0) ** 2, qbvi.Normal(0, 1), seed=1)
        >>> found = fit.check(1000).expect(lambda m: m > 0)
        >>> bool(abs(found.value - 0.76) < 4 * found.se + 0.01)
        True
        """
        if len(self.log_ratios[0]):
            return self.weighted_draws().expect(f, vectorized)
        draws = self.model.constrain(to_numpy(self.family.fixed_draws(self.q, _DRAWS)))
        return WeightedDraws(draws, np.full(_DRAWS, 1 / _DRAWS), is_weighted=False).expect(f, vectorized)

    def predict(  # noqa: PLR0913 - as `qbvi.predict.predict`
        self,
        function: Callable[..., Any],
        *,
        data: Any = None,
        n: int | None = None,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        vectorized: bool | int = False,
        executor: Any = None,
        progress: bool | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> Predictive:
        """Push draws through any function of a point; see `qbvi.predict.predict`."""
        from qbvi.predict import predict

        return predict(
            self,
            function,
            data=data,
            n=n,
            quantiles=quantiles,
            vectorized=vectorized,
            executor=executor,
            progress=progress,
            seed=seed,
        )

    def loo(
        self,
        n: int = 1000,
        log_likelihood: Callable[..., Any] | None = None,
        *,
        data: Any = None,
        vectorized: bool | int = False,
        executor: Any = None,
        seed: int | None = None,
    ) -> Loo:
        """Leave-one-out cross-validation without refitting; see `qbvi.loo.loo`."""
        from qbvi.loo import loo

        return loo(self, n, log_likelihood, data=data, vectorized=vectorized, executor=executor, seed=seed)

    def mcmc(  # noqa: PLR0913 - as `qbvi.mcmc.mcmc`
        self,
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
        """Draw from the posterior itself, by chains that start here; see `qbvi.mcmc.mcmc`."""
        from qbvi.mcmc import mcmc

        return mcmc(
            self,
            n,
            log_likelihood,
            n_walkers=n_walkers,
            warmup=warmup,
            vectorized=vectorized,
            on_failure=on_failure,
            executor=executor,
            checkpoint=checkpoint,
            progress=progress,
            seed=seed,
        )

    def walkers(self, n: int, seed: int | np.random.Generator | None = None) -> Floats:
        """Starting points for a sampler of your own: draws as an array (n, p).

        Columns are in the order of `labels`, on the constrained scale.
        """
        return to_numpy(self.model.flatten(self.sample(n, seed)))

    def to_pymc_start(self, chains: int = 4, seed: int | np.random.Generator | None = None) -> list[dict[str, Any]]:
        """Starting points for PyMC: ``pm.sample(chains=4, initvals=fit.to_pymc_start())``.

        Parameters
        ----------
        chains : int
            Number of chains, each with a draw of its own.
        seed : int, numpy.random.Generator or None
            Source of the draws.

        Returns
        -------
        list of dict
            Constrained values by name, which PyMC transforms. An unnamed parameter has the name
            ``theta``.

        Examples
        --------
        >>> import qbvi
        >>> fit = qbvi.fit(lambda p: -float(p["mu"] ** 2), {"mu": qbvi.Normal(0, 1)}, seed=1)
        >>> [sorted(start) for start in fit.to_pymc_start(2)]
        [['mu'], ['mu']]
        """
        n = whole_number("chains", chains)
        draws = self.sample(n, seed)
        return [dict(items(row(draws, i), unnamed="theta")) for i in range(n)]

    def to_arviz(
        self,
        kind: str = "auto",
        draws: int = 1000,
        seed: int | np.random.Generator | None = None,
        **options: Any,
    ) -> Any:
        """Export draws, log-likelihoods and predictions to ArviZ; see `qbvi.export.to_arviz`."""
        from qbvi.export import to_arviz

        return to_arviz(self, kind=kind, draws=draws, seed=seed, **options)

    def to_getdist(
        self,
        draws: int = 10_000,
        seed: int | np.random.Generator | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        label: str | None = None,
    ) -> Any:
        """Export draws with their weights to GetDist; see `qbvi.getdist.to_getdist`."""
        from qbvi.getdist import to_getdist

        return to_getdist(self, draws=draws, seed=seed, labels=labels, label=label)

    def plot_trace(self, reference: float | Mapping[str, float] | None = None, ax: Any = None) -> Any:
        """Plot lower bound and predicted gap over evaluations; see `qbvi.plots.plot_trace`."""
        from qbvi.plots import plot_trace

        return plot_trace(self, reference=reference, ax=ax)

    def plot_marginals(
        self,
        names: Sequence[str] | Mapping[str, str] | None = None,
        prior: bool = True,
        points: Mapping[str, Structure] | None = None,
        reference: Any = None,
        interval: float = 0.95,
    ) -> Any:
        """Plot the density of every entry; see `qbvi.plots.plot_marginals`."""
        from qbvi.plots import plot_marginals

        return plot_marginals(self, names=names, prior=prior, points=points, reference=reference, interval=interval)

    def plot_pairs(
        self,
        names: Sequence[str] | Mapping[str, str] | None = None,
        points: Mapping[str, Structure] | None = None,
        reference: Any = None,
        max_parameters: int = 10,
        interval: float = 0.95,
    ) -> Any:
        """Plot every pair of entries over a reference sample; see `qbvi.plots.plot_pairs`."""
        from qbvi.plots import plot_pairs

        options = {"reference": reference, "max_parameters": max_parameters, "interval": interval}
        return plot_pairs(self, names=names, points=points, **options)

    def plot_forest(
        self,
        names: Sequence[str] | Mapping[str, str] | None = None,
        points: Mapping[str, Structure] | None = None,
        reference: Any = None,
        interval: float = 0.95,
    ) -> Any:
        """Plot the intervals of all entries below each other; see `qbvi.plots.plot_forest`."""
        from qbvi.plots import plot_forest

        return plot_forest(self, names=names, points=points, reference=reference, interval=interval)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        title: str | None = None,
        names: Sequence[str] | Mapping[str, str] | None = None,
        reference: Any = None,
        figures: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a page with verdict, table and figures; see `qbvi.page.write_report`."""
        from qbvi.page import write_report

        return write_report(self, path, title=title, names=names, reference=reference, figures=figures)

    def plot_predictive(self, x: Any, function: Any, data: tuple[Any, Any] | None = None, **options: Any) -> Any:
        """Plot a curve with its intervals, and the data; see `qbvi.plots.plot_predictive`."""
        from qbvi.plots import plot_predictive

        return plot_predictive(self, x, function, data, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit to one file, for `qbvi.load`; see `qbvi.storage.save`."""
        from qbvi.storage import save

        save(self, path)

    def __repr__(self) -> str:
        lines = [self._title(), *diagnostic_lines(self.record)]
        shown = list(self.summary())[:3]
        lines += aligned([(row.parameter, *cells_of(row)[:2]) for row in shown], ("", "mean", "sd"))
        if len(self.labels) > len(shown):
            lines.append(f"... {len(self.labels) - len(shown)} more, and intervals, in summary()")
        return "\n".join([lines[0], *("  " + line for line in lines[1:])])

    def _repr_html_(self) -> str:
        from qbvi.page import notebook_html

        return notebook_html(self)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Position of each parameter in ``u`` and among the labels."""
        parameters = self.model.parameters
        ends = np.cumsum([0, *(p.size for p in parameters)]).tolist()
        places = [slice(start, stop) for start, stop in pairwise(ends)]
        return tuple(
            Block(p.name, p.shape, p.distribution, p.columns, at, p.is_native)
            for p, at in zip(parameters, places, strict=True)
        )

    @cached_property
    def marginals(self) -> dict[int, Marginal]:
        """The entries whose marginal has a closed form, by their index among the labels."""
        found: dict[int, Marginal] = {}
        if not isinstance(self.family, Family):  # of free shape, or a mixture
            return found
        loc, scale = self.model.one_turn(to_numpy(self.family.mean(self.q))), to_numpy(self.family.sd(self.q))
        for block in self.blocks:
            support = block.prior.support
            if isinstance(support, Elementwise) and not support.is_discrete and not block.is_native:
                ends = zip(*support.bounds(block.shape), strict=True)
                for j, (low, high) in enumerate(ends):
                    column = block.columns.start + j
                    # An angle is described on the line, so that its marginal is in one piece.
                    own = Interval(-np.inf, np.inf) if self._is_periodic(block) else Interval(low, high)
                    found[block.entries.start + j] = Marginal(column, float(loc[column]), float(scale[column]), own)
        return found

    @cached_property
    def fixed_draws(self) -> Floats:
        """The quasi-random sample for moments without a closed form, constrained: (n, p)."""
        u = to_numpy(self.family.fixed_draws(self.q, _DRAWS))
        draws = to_numpy(self.model.flatten(self.model.constrain(u)))
        mean = to_numpy(self.family.mean(self.q))
        turned = u - mean + self.model.one_turn(mean)
        for block in filter(self._is_periodic, self.blocks):
            draws[:, block.entries] = turned[:, block.columns]
        return draws

    @cached_property
    def log_ratios(self) -> tuple[Floats, Floats]:
        """Log joint minus log q at the draws of `check`, and the variances of their noise: (n,).

        Minus infinity where the likelihood is zero, NaN where the function failed.
        """
        table = self._checked_points
        if not len(table.values):
            return np.empty(0), np.empty(0)
        failed = np.isnan(table.values) | (table.values == np.inf)
        log_joint = np.where(failed, np.nan, table.log_joint)
        return log_joint - to_numpy(self.family.log_prob(self.q, table.unconstrained)), table.noise_sd**2

    @property
    def _checked_points(self) -> Any:
        """The evaluations that `check` made."""
        table = self.evaluations
        if table is None:
            return Evaluations(self.labels, np.empty((0, len(self.labels))), np.empty(0))
        return table[table.stage == "posterior"]

    def draw_unconstrained(self, n: int, seed: int | np.random.Generator | None = None) -> Floats:
        """Draw from q on the unconstrained scale: (n, d)."""
        return to_numpy(self.family.draw(self.q, as_generator(seed), whole_number("n", n)))

    def entry_moments(self) -> tuple[Floats, Floats]:
        """Means and standard deviations of all entries, in the order of `labels`: (p,), (p,)."""
        return self._mean_and_sd

    def _quantile_table(self, levels: Floats) -> Floats:
        """Quantiles of all entries at m levels: (m, p)."""
        return np.stack([self.entry_quantiles(i, levels) for i in range(len(self.labels))], axis=1)

    def entry_quantiles(self, i: int, levels: Floats) -> Floats:
        """Quantiles of one entry: (m,)."""
        if i in self.marginals:
            return self.marginals[i].quantile(levels)
        block = next(block for block in self.blocks if i < block.entries.stop)
        # A quantile of whole numbers is one of them.
        is_line = not block.prior.support.is_discrete
        method: Any = "linear" if is_line else "inverted_cdf"
        return np.asarray(np.quantile(self.fixed_draws[:, i], levels, method=method))

    @cached_property
    def _mean_and_sd(self) -> tuple[Floats, Floats]:
        """Mean and standard deviation of all entries (p,), without the covariance of (p, p)."""
        if not isinstance(self.family, DiagonalGaussian | LowRankGaussian):
            return self._moments[0], np.sqrt(np.diagonal(self._moments[1]))
        loc, scale = to_numpy(self.family.mean(self.q)), to_numpy(self.family.sd(self.q))
        real = [block for block in self.blocks if isinstance(block.prior.support, Real) or block.is_native]
        if len(real) == len(self.blocks):
            return loc, scale
        mean, sd = self.fixed_draws.mean(axis=0), self.fixed_draws.std(axis=0)
        for block in real:
            mean[block.entries], sd[block.entries] = loc[block.columns], scale[block.columns]
        return mean, sd

    @cached_property
    def _moments(self) -> tuple[Floats, Floats]:
        """Mean (p,) and covariance (p, p) of all entries."""
        loc, exact = self.unconstrained
        loc = self.model.one_turn(loc)
        real = [b for b in self.blocks if isinstance(b.prior.support, Real | Periodic) or b.is_native]
        if len(real) == len(self.blocks):
            return loc, exact
        mean, cov = self.fixed_draws.mean(axis=0), np.atleast_2d(np.cov(self.fixed_draws, rowvar=False, ddof=0))
        for block in real:
            mean[block.entries] = loc[block.columns]
            for other in real:
                cov[block.entries, other.entries] = exact[block.columns, other.columns]
        return mean, cov

    def _is_periodic(self, block: Block) -> bool:
        return isinstance(block.prior.support, Periodic) and not block.is_native

    def _structured(self, flat: Floats) -> Structure:
        """Arrange entries (p,) in the structure of the prior."""
        return mapped(lambda value: value[0], self.model.unflatten(flat[None].copy()))

    def _is_batch(self, theta: Structure) -> bool:
        """Whether values have an axis before those of their parameter."""
        given = self.model.by_name(theta)
        block = next((block for block in self.blocks if block.name in given), None)
        return block is not None and array_of("theta", given[block.name]).ndim > len(block.shape)

    def _log_prob(self, values: Structure) -> Floats:
        try:
            u = self.model.unconstrain(values, batched=True)
            u = self.model.nearest_copy(u, to_numpy(self.family.mean(self.q)))
        except ValueError:
            inside = self._inside(values)
            if inside.all():
                raise
            log_q = np.full(inside.shape, -np.inf)
            if inside.any():
                log_q[inside] = self._log_prob(mapped(lambda value: np.asarray(value)[inside], values))
            return log_q
        return self._log_density(self.family, self.q, u) - to_numpy(self.model.log_jacobian(u))

    def _log_density(self, family: Density, q: Floats, u: Floats) -> Floats:
        """Log density at unconstrained points (n, d); of whole numbers, in the middle of cells."""
        if isinstance(family, Mixture):
            weights, members = family.unpack(q)
            with np.errstate(divide="ignore"):
                parts = [
                    np.log(weight) + self._log_density(component, member, u)
                    for weight, component, member in zip(weights, family.components, members, strict=True)
                ]
            return np.asarray(np.logaddexp.reduce(parts, axis=0))
        if isinstance(family, Gaussian) and (cells := Cells.of(self.model)):
            return cells.log_prob(family, q, u)
        return to_numpy(family.log_prob(q, u))

    def _inside(self, values: Structure) -> NDArray[np.bool_]:
        """Which points lie in the support; True if the values are wrong in another way."""
        named = self.model.by_name(values)
        arrays = [np.asarray(named.get(b.name), dtype=np.float64) for b in self.blocks]
        fine = all(x.shape[1:] == b.shape and np.isfinite(x).all() for x, b in zip(arrays, self.blocks, strict=True))
        if not fine or len({x.shape[:1] for x in arrays}) > 1:
            return np.ones(1, dtype=bool)
        held = [[b.prior.support.contains(point) for point in x] for x, b in zip(arrays, self.blocks, strict=True)]
        return np.asarray(np.all(held, axis=0))

    def _title(self) -> str:
        shapes = [f"{b.name} {b.shape}" if b.shape else b.name for b in self.blocks]
        what = ", ".join(shapes[:4]) + (", ..." if len(shapes) > 4 else "")
        return f"Posterior of {what} in {_describe(self.family)}"


def _as_distribution(factor: Density, q: Floats, shape: tuple[int, ...]) -> Distribution:
    assert isinstance(factor, ExponentialFamily)
    copies = shape[: len(shape) - factor.event_axes]
    found = {name: np.reshape(value, copies + value.shape[1:]) for name, value in factor.parameters(q).items()}
    fixed = {"count": factor.count} if isinstance(factor, NegativeBinomial) else {}
    return DISTRIBUTIONS[type(factor).__name__](**fixed, **found)


def _describe(family: Density) -> str:
    if isinstance(family, FreeDensity):
        return f"{family.dim} dimensions, of free shape"
    if isinstance(family, Sample):
        return f"{family.dim} dimensions, by draws of Markov chains"
    if isinstance(family, Mixture):
        return f"{family.dim} dimensions, a mixture of {len(family.components)} modes"
    if isinstance(family, Gaussian):
        return f"{family.dim} dimensions, Gaussian with full covariance"
    if isinstance(family, DiagonalGaussian):
        return f"{family.dim} dimensions, Gaussian with diagonal covariance"
    if isinstance(family, LowRankGaussian):
        return f"{family.dim} dimensions, Gaussian with a covariance of rank {family.rank} plus a diagonal"
    if isinstance(family, GaussianProduct):
        return f"{family.dim} dimensions, Gaussian in {len(family.factors)} independent blocks"
    names = [type(part.family).__name__ for part in family.independent_parts]
    apart = ", independent of each other" if len(names) > 1 else ""
    return f"{family.dim} dimensions, {' x '.join(names)}{apart}"
