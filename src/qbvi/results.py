"""Fit: the posterior under the user's own names, how it was found, and whether to trust it."""

from __future__ import annotations

import html
import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from qbvi.arrays import to_numpy
from qbvi.diagnostics import khat_error
from qbvi.distributions import DISTRIBUTIONS, Distribution
from qbvi.evaluate.failures import Failure
from qbvi.families import (
    DiagonalGaussian,
    ExponentialFamily,
    Family,
    Gaussian,
    GaussianProduct,
    NegativeBinomial,
    Product,
)
from qbvi.model import Model
from qbvi.random import Independent, Sobol
from qbvi.supports import Elementwise, Interval, Real

if TYPE_CHECKING:
    import os

__all__ = ["Block", "Failure", "Fit", "Marginal", "Report", "Row", "Summary", "Trace"]

Floats = NDArray[np.float64]
Structure = Any  # structure of the prior: a dict of arrays if parameters are named, else one array

_DRAWS = 2**13  # for moments that have no closed form
_LARGEST_LOG = 300.0  # of a density: one concentrated at a boundary stays finite
_SOBOL_MAX_DIM = 1024  # beyond it, a scrambled Sobol sequence costs memory and gains nothing


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """History of a fit, with one entry per iteration.

    Attributes
    ----------
    n_evals : array (T,)
        Evaluations of the user's function so far.
    elbo, elbo_smooth : array (T,)
        Estimate of the lower bound from the draws of the iteration, and its moving average.
    step, grad_norm, seconds : array (T,)
        Length of the step, norm of the direction, and time since the start.
    mean, sd : array (T, d)
        Moments of the approximation, on the unconstrained scale.
    gap : array (T,)
        Nats that the method expects to gain after the step; NaN if it makes no prediction.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.array([1.0, 2.0])
    >>> mean, sd = np.zeros((2, 3)), np.ones((2, 3))
    >>> trace = Trace(100 * one, -9 / one, -9 / one, one, one, one, mean, sd)
    >>> trace
    Trace of 2 iterations, 200 evaluations: elbo from -9 to -4.5
      n_evals, elbo, elbo_smooth, step, grad_norm, seconds, gap (2,); mean, sd (2, 3)
    >>> trace["elbo"]
    array([-9. , -4.5])
    """

    n_evals: NDArray[np.int64]
    elbo: Floats
    elbo_smooth: Floats
    step: Floats
    grad_norm: Floats
    seconds: Floats
    mean: Floats
    sd: Floats
    gap: Floats = None  # type: ignore[assignment]  # set in __post_init__

    def __post_init__(self) -> None:
        length = len(self.n_evals)
        if self.gap is None:
            object.__setattr__(self, "gap", np.full(length, np.nan))
        for name in self.names():
            array = np.array(getattr(self, name), dtype=np.int64 if name == "n_evals" else np.float64)
            if not array.size and length == 0:
                array = array.reshape(0, 0) if name in ("mean", "sd") else array
            if array.ndim != (2 if name in ("mean", "sd") else 1) or len(array) != length:
                msg = f"`{name}` must have one entry for each of the {length} iterations, got shape {array.shape}"
                raise ValueError(msg)
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @classmethod
    def empty(cls) -> Trace:
        """Return the trace of no iterations."""
        none = np.empty(0)
        return cls(np.empty(0, dtype=np.int64), none, none, none, none, none, none, none)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the arrays."""
        return tuple(item.name for item in fields(cls))

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.names():
            msg = f"a trace has {', '.join(self.names())}; got {name!r}"
            raise KeyError(msg)
        array: NDArray[Any] = getattr(self, name)
        return array

    def __len__(self) -> int:
        return len(self.n_evals)

    def __repr__(self) -> str:
        if not len(self):
            return "Trace of 0 iterations"
        flat = ", ".join(name for name in self.names() if self[name].ndim == 1)
        return (
            f"Trace of {len(self):,} iterations, {self.n_evals[-1]:,} evaluations: "
            f"elbo from {self.elbo[0]:.6g} to {self.elbo[-1]:.6g}\n"
            f"  {flat} ({len(self)},); mean, sd {self.mean.shape}"
        )


@dataclass(frozen=True, eq=False)
class Report:
    """Results and diagnostics of a fit, apart from the posterior.

    Attributes
    ----------
    elbo, elbo_se
        Lower bound and its standard error, from fresh draws of the final approximation.
    khat
        Pareto k-hat of the importance ratios of those draws; NaN if not available.
    converged, stop_reason
        Whether the stopping rule was satisfied, and why the fit ended, in a sentence.
    n_evals, n_iterations, seconds
        Numbers of evaluations and iterations, and run time.
    failures
        All evaluations without a usable number.
    trace
        One entry per iteration.
    seed, method
        Seed and method, to repeat the fit.
    notes
        Advice, in plain sentences.
    khat_draws
        Number of draws behind ``khat``. With few draws, ``khat`` must be lower to be good.
    backend
        Array library, device and dtype that the fit ran on.

    Examples
    --------
    >>> Report(elbo=-3.2, khat=0.68, khat_draws=1000).khat_verdict
    'doubtful, above 0.67: the tails of the posterior are not matched'
    >>> Report(elbo=-3.2, khat=1.1, khat_draws=100).khat_verdict
    'unknown: 100 draws determine it only to within about 0.5'
    """

    elbo: float = math.nan
    elbo_se: float = math.nan
    khat: float = math.nan
    converged: bool = False
    stop_reason: str = "nothing was fitted: this posterior was constructed directly"
    n_evals: int = 0
    n_iterations: int = 0
    failures: tuple[Failure, ...] = ()
    trace: Trace = field(default_factory=lambda: Trace.empty())
    seconds: float = 0.0
    seed: int | None = None
    method: str = ""
    notes: tuple[str, ...] = ()
    khat_draws: int | None = None
    backend: str = "numpy on cpu, float64"

    @property
    def khat_limit(self) -> float:
        """Largest good k-hat: 0.7, and less with fewer than about 2,200 draws."""
        if self.khat_draws is None:
            return 0.7
        return min(1 - 1 / math.log10(max(self.khat_draws, 11)), 0.7)

    @property
    def khat_verdict(self) -> str:
        """What k-hat means, in words."""
        if math.isnan(self.khat):
            return "not available"
        if self.khat < self.khat_limit:
            return f"good, below {self.khat_limit:.2g}"
        if self.khat < 1:
            return f"doubtful, above {self.khat_limit:.2g}: the tails of the posterior are not matched"
        error = 0.0 if self.khat_draws is None else khat_error(self.khat, self.khat_draws)
        if self.khat - 1.5 * error <= 0.7:  # as in `qbvi.diagnostics.objection_to`
            return f"unknown: {self.khat_draws} draws determine it only to within about {error:.1f}"
        return "bad, above 1: means and intervals may be far off"


class Block(NamedTuple):
    """Position of one parameter: its columns of ``u`` and its entries among the labels."""

    name: str
    shape: tuple[int, ...]
    prior: Distribution
    columns: slice
    entries: slice
    is_native: bool = False  # whether q describes it on its own scale


class Marginal(NamedTuple):
    """An entry that is Gaussian in ``u`` and has its own map, so all results are closed forms."""

    column: int  # of u
    loc: float
    scale: float
    support: Interval

    def at(self, z: Floats) -> Floats:
        """Constrained values at standardised unconstrained ones: (n,) -> (n,)."""
        return np.asarray(self.support.constrain((self.loc + self.scale * z)[:, None], ()))

    def quantile(self, levels: Floats) -> Floats:
        """Quantiles on the constrained scale: (n,) -> (n,)."""
        # The map to an interval with only an upper end is decreasing.
        falling = math.isinf(self.support.low) and math.isfinite(self.support.high)
        return self.at(-ndtri(levels) if falling else ndtri(levels))

    def density(self, x: Floats) -> Floats:
        """Density at constrained values inside the support: (n,) -> (n,)."""
        return self.density_at((self.support.unconstrain(x, ())[:, 0] - self.loc) / self.scale)

    def density_at(self, z: Floats) -> Floats:
        """`density` at the values ``at(z)``, without rounding errors of the map: (n,) -> (n,)."""
        log_q = -0.5 * z**2 - math.log(self.scale) - 0.5 * math.log(2 * math.pi)
        stretch = self.support.log_jacobian((self.loc + self.scale * z)[:, None], ())
        return np.asarray(np.exp(np.minimum(log_q - stretch, _LARGEST_LOG)))


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
    report : Report
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
    family: Family
    q: Floats
    report: Report

    def __post_init__(self) -> None:
        q = to_numpy(self.q)
        if q.shape != (self.family.length,) or self.family.dim != self.model.dim:
            msg = (
                f"`q` must have shape ({self.family.length},) and the family {self.model.dim} dimensions, "
                f"got {q.shape} and {self.family.dim}"
            )
            raise ValueError(msg)
        q.flags.writeable = False
        object.__setattr__(self, "q", q)

    @property
    def mean(self) -> Structure:
        """Posterior mean of every parameter."""
        return self._structured(self._moments[0])

    @property
    def sd(self) -> Structure:
        """Posterior standard deviation of every parameter."""
        return self._structured(np.sqrt(np.diagonal(self._moments[1])))

    @property
    def cov(self) -> Structure:
        """Posterior covariance of each parameter's entries, in C order: (size, size)."""
        parts = {b.name: self._moments[1][b.entries, b.entries].copy() for b in self.blocks}
        return parts if self.model.is_named else next(iter(parts.values()))

    @property
    def cov_matrix(self) -> Floats:
        """Posterior covariance of all entries: (p, p), in the order of `labels`."""
        return self._moments[1].copy()

    @property
    def factors(self) -> dict[str, Distribution]:
        """Posterior distribution of every parameter with its own family.

        An example is ``InverseGamma(alpha=..., beta=...)``.
        """
        parts = zip(*_factors_of(self.family, self.q), strict=True)
        starts = {block.columns.start: block for block in self.blocks if block.is_native}
        return {
            starts[columns[0]].name: _as_distribution(factor, q, starts[columns[0]].shape)
            for factor, columns, q in parts
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
        return self.report.elbo

    @property
    def elbo_se(self) -> float:
        """Standard error of `elbo`."""
        return self.report.elbo_se

    @property
    def khat(self) -> float:
        """Pareto k-hat of the importance ratios: whether to trust this posterior."""
        return self.report.khat

    @property
    def converged(self) -> bool:
        """Whether the stopping rule was satisfied."""
        return self.report.converged

    @property
    def stop_reason(self) -> str:
        """Why the fit ended, in a sentence."""
        return self.report.stop_reason

    @property
    def n_evals(self) -> int:
        """Number of evaluations of the user's function."""
        return self.report.n_evals

    @property
    def n_failed(self) -> int:
        """Number of evaluations without a usable number."""
        return len(self.report.failures)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """All failed evaluations: where, why, and how long they took."""
        return self.report.failures

    @property
    def trace(self) -> Trace:
        """History of the fit, with one entry per iteration."""
        return self.report.trace

    @property
    def notes(self) -> tuple[str, ...]:
        """Advice, in plain sentences."""
        return self.report.notes

    @property
    def seconds(self) -> float:
        """Run time of the fit in seconds."""
        return self.report.seconds

    @property
    def seed(self) -> int | None:
        """The given seed."""
        return self.report.seed

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

    def log_prob(self, theta: Structure, batched: bool = False) -> Any:
        """Log density of the posterior at constrained values.

        Parameters
        ----------
        theta : dict of arrays or array
            One point or, with ``batched``, many along the first axis.
        batched : bool
            Whether ``theta`` has such an axis.

        Returns
        -------
        float or array (n,)
            Minus infinity outside the support.
        """
        values = theta if batched else _map(lambda value: np.asarray(value)[None], theta)
        log_q = self._log_prob(values)
        return log_q if batched else float(log_q[0])

    def summary(self, interval: float = 0.95) -> Summary:
        """Tabulate mean, standard deviation and an equal-tailed credible interval of every entry.

        Parameters
        ----------
        interval : float
            Posterior probability of the interval.
        """
        if not 0 < interval < 1:
            msg = f"`interval` must be a probability between 0 and 1, got {interval}; 0.95 is the default"
            raise ValueError(msg)
        lower, upper = self.quantiles(np.array([(1 - interval) / 2, (1 + interval) / 2]))
        mean, cov = self._moments
        columns = zip(self.labels, mean, np.sqrt(np.diagonal(cov)), lower, upper, strict=True)
        rows = tuple(Row(label, *(float(number) for number in numbers)) for label, *numbers in columns)
        return Summary(rows, interval, (self._title(), *_account(self.report)), self.notes)

    def quantiles(self, levels: Floats) -> Floats:
        """Posterior quantiles of every entry: (m,) -> (m, p), in the order of `labels`."""
        levels = np.asarray(levels, dtype=np.float64)
        if not np.all((levels > 0) & (levels < 1)):
            msg = f"`levels` must lie between 0 and 1, got {levels}"
            raise ValueError(msg)
        columns = [
            self.marginals[i].quantile(levels) if i in self.marginals else np.quantile(self.fixed_draws[:, i], levels)
            for i in range(len(self.labels))
        ]
        return np.stack(columns, axis=1)

    def to_arviz(self, kind: str = "auto", draws: int = 1000, seed: int | np.random.Generator | None = None) -> Any:
        """Export draws, log densities and diagnostics to ArviZ; see `qbvi.export.to_arviz`."""
        from qbvi.export import to_arviz

        return to_arviz(self, kind=kind, draws=draws, seed=seed)

    def plot_trace(self, reference: float | Mapping[str, float] | None = None, ax: Any = None) -> Any:
        """Plot the lower bound over evaluations; see `qbvi.plots.plot_trace`."""
        from qbvi.plots import plot_trace

        return plot_trace(self, reference=reference, ax=ax)

    def plot_marginals(
        self,
        names: Sequence[str] | Mapping[str, str] | None = None,
        prior: bool = True,
        points: Mapping[str, Structure] | None = None,
        reference: Structure = None,
    ) -> Any:
        """Plot the density of every entry; see `qbvi.plots.plot_marginals`."""
        from qbvi.plots import plot_marginals

        return plot_marginals(self, names=names, prior=prior, points=points, reference=reference)

    def plot_pairs(
        self,
        names: Sequence[str] | Mapping[str, str] | None = None,
        points: Mapping[str, Structure] | None = None,
        reference: Structure = None,
        max_parameters: int = 10,
    ) -> Any:
        """Plot every pair of entries; see `qbvi.plots.plot_pairs`."""
        from qbvi.plots import plot_pairs

        return plot_pairs(self, names=names, points=points, reference=reference, max_parameters=max_parameters)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit to one file, for `qbvi.load`; see `qbvi.storage.save`."""
        from qbvi.storage import save

        save(self, path)

    def __repr__(self) -> str:
        lines = [self._title(), *_account(self.report)]
        shown = list(self.summary())[:3]
        lines += _aligned([(row.parameter, *_cells(row)[:2]) for row in shown], ("", "mean", "sd"))
        if len(self.labels) > len(shown):
            lines.append(f"... {len(self.labels) - len(shown)} more, and intervals, in summary()")
        return "\n".join([lines[0], *("  " + line for line in lines[1:])])

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
        loc, scale = to_numpy(self.family.mean(self.q)), to_numpy(self.family.sd(self.q))
        found = {}
        for block in self.blocks:
            if isinstance(block.prior.support, Elementwise) and not block.is_native:
                ends = zip(*block.prior.support.bounds(block.shape), strict=True)
                for j, (low, high) in enumerate(ends):
                    column = block.columns.start + j
                    found[block.entries.start + j] = Marginal(
                        column, float(loc[column]), float(scale[column]), Interval(low, high)
                    )
        return found

    @cached_property
    def fixed_draws(self) -> Floats:
        """The quasi-random sample for moments without a closed form, constrained: (n, p)."""
        u = to_numpy(self.family.transport(self.q, _matched_normals(_DRAWS, self.model.dim)))
        return to_numpy(self.model.flatten(self.model.constrain(u)))

    def draw_unconstrained(self, n: int, seed: int | np.random.Generator | None = None) -> Floats:
        """Draw from q on the unconstrained scale: (n, d)."""
        if n < 1:
            msg = f"`n` must be at least 1, got {n}"
            raise ValueError(msg)
        z = Independent().normal(np.random.default_rng(seed), n, self.model.dim)
        return to_numpy(self.family.transport(self.q, z))

    @cached_property
    def _moments(self) -> tuple[Floats, Floats]:
        """Mean (p,) and covariance (p, p) of all entries."""
        loc, exact = self.unconstrained
        real = [block for block in self.blocks if isinstance(block.prior.support, Real) or block.is_native]
        if len(real) == len(self.blocks):
            return loc, exact
        mean, cov = self.fixed_draws.mean(axis=0), np.atleast_2d(np.cov(self.fixed_draws, rowvar=False, ddof=0))
        for block in real:
            mean[block.entries] = loc[block.columns]
            for other in real:
                cov[block.entries, other.entries] = exact[block.columns, other.columns]
        return mean, cov

    def _structured(self, flat: Floats) -> Structure:
        """Arrange entries (p,) in the structure of the prior."""
        return _map(lambda value: value[0], self.model.unflatten(flat[None].copy()))

    def _log_prob(self, values: Structure) -> Floats:
        try:
            u = self.model.unconstrain(values, batched=True)
        except ValueError:
            inside = self._inside(values)
            if inside.all():
                raise
            log_q = np.full(inside.shape, -np.inf)
            if inside.any():
                log_q[inside] = self._log_prob(_map(lambda value: np.asarray(value)[inside], values))
            return log_q
        return to_numpy(self.family.log_prob(self.q, u)) - to_numpy(self.model.log_jacobian(u))

    def _inside(self, values: Structure) -> NDArray[np.bool_]:
        """Which points lie in the support; True if the values are wrong in another way."""
        named = values if self.model.is_named else {self.blocks[0].name: values}
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


class Row(NamedTuple):
    """One line of a summary."""

    parameter: str
    mean: float
    sd: float
    lower: float
    upper: float


@dataclass(frozen=True, repr=False)
class Summary:
    """A table of the posterior, with one `Row` per entry; it prints the diagnostics above it.

    Examples
    --------
    >>> rows = (Row("beta", 1.234567, 0.5, 0.25, 2.25), Row("sigma", 20.0, 0.04, 19.9, 20.1))
    >>> table = Summary(rows, 0.95)
    >>> table
             mean     sd     2.5 %  97.5 %
    beta    1.235  0.500   0.250   2.250
    sigma  20.0000 0.0400 19.9000 20.1000
    >>> [row.parameter for row in table]
    ['beta', 'sigma']
    """

    rows: tuple[Row, ...]
    interval: float
    header: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, parameter: int | str) -> Row:
        if isinstance(parameter, int):
            return self.rows[parameter]
        for row in self.rows:
            if row.parameter == parameter:
                return row
        msg = f"no entry is called {parameter!r}; the first are {', '.join(row.parameter for row in self.rows[:5])}"
        raise KeyError(msg)

    def cells(self) -> list[tuple[str, ...]]:
        """The table as text, header first.

        Numbers have as many decimals as three significant digits of their row's standard
        deviation.
        """
        return [("", *self._columns()), *((row.parameter, *_cells(row)) for row in self.rows)]

    def to_pandas(self) -> Any:
        """The table as a pandas.DataFrame, with columns mean, sd, lower, upper."""
        try:
            pd = importlib.import_module("pandas")
        except ImportError as error:
            msg = "`to_pandas` needs the package pandas, which is not installed: pip install pandas"
            raise ImportError(msg) from error
        return pd.DataFrame(self.rows, columns=list(Row._fields)).set_index("parameter")

    def __repr__(self) -> str:
        head, *body = self.cells()
        table = _aligned(body, head)
        notes = [f"Note: {note}" for note in self.notes]
        return "\n".join(part for part in ("\n".join(self.header), "\n".join(table), "\n".join(notes)) if part)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in ("", *self._columns()))
        body = "".join(
            f"<tr><th>{html.escape(row.parameter)}</th>" + "".join(f"<td>{cell}</td>" for cell in _cells(row)) + "</tr>"
            for row in self.rows
        )
        above = "<br>".join(html.escape(line) for line in self.header)
        below = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<p>{above}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"

    def _columns(self) -> tuple[str, ...]:
        ends = (50 * (1 - self.interval), 50 * (1 + self.interval))
        return ("mean", "sd", *(f"{end:.4g} %" for end in ends))


def _map(function: Callable[[Any], Any], structure: Structure) -> Structure:
    if isinstance(structure, Mapping):
        return {name: function(value) for name, value in structure.items()}
    return function(structure)


def _matched_normals(n: int, d: int) -> Floats:
    """Fixed quasi-random normals (n, d): sample mean 0 and, if n >= 4 d, sample covariance I."""
    rng = np.random.default_rng(20240229)
    z = Sobol().normal(rng, n, d) if d <= _SOBOL_MAX_DIM else Independent().normal(rng, n, d)
    z = to_numpy(z - z.mean(axis=0))
    if 4 * d > n:
        return z
    factor = np.linalg.cholesky(z.T @ z / n)
    return to_numpy(np.linalg.solve(factor, z.T).T)


def _factors_of(family: Family, q: Floats) -> tuple[list[Family], list[tuple[int, ...]], list[Floats]]:
    if isinstance(family, Product):
        return list(family.factors), list(family.columns), family.members(q)
    return [family], [tuple(range(family.dim))], [q]


def _as_distribution(factor: Family, q: Floats, shape: tuple[int, ...]) -> Distribution:
    assert isinstance(factor, ExponentialFamily)
    copies = shape[: len(shape) - factor.event_axes]
    found = {name: np.reshape(value, copies + value.shape[1:]) for name, value in factor.parameters(q).items()}
    fixed = {"count": factor.count} if isinstance(factor, NegativeBinomial) else {}
    return DISTRIBUTIONS[type(factor).__name__](**fixed, **found)


def _describe(family: Family) -> str:
    if isinstance(family, Gaussian):
        return f"{family.dim} dimensions, Gaussian with full covariance"
    if isinstance(family, DiagonalGaussian):
        return f"{family.dim} dimensions, Gaussian with diagonal covariance"
    if isinstance(family, GaussianProduct):
        return f"{family.dim} dimensions, Gaussian in {len(family.factors)} independent blocks"
    factors = family.factors if isinstance(family, Product) else (family,)
    return f"{family.dim} dimensions, " + " x ".join(type(factor).__name__ for factor in factors)


def _account(report: Report) -> list[str]:
    """The diagnostics, in four lines."""
    share = len(report.failures) / max(report.n_evals, 1)
    failed = f", {len(report.failures):,} failed ({share:.1%})" if report.failures else ""
    return [
        f"ELBO         {_with_error(report.elbo, report.elbo_se)}",
        f"k-hat        {report.khat:.2f} ({report.khat_verdict})",
        f"evaluations  {report.n_evals:,} in {report.n_iterations:,} iterations, {report.seconds:.3g} s{failed}",
        f"converged    {'yes' if report.converged else 'NO'}: {report.stop_reason}",
    ]


def _with_error(value: float, error: float) -> str:
    decimals = min(_decimals(error, 2), 6)  # an exact fit has no error worth sixteen digits
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def _decimals(scale: float, digits: int) -> int:
    """Decimals that show ``scale`` to ``digits`` significant digits."""
    if not (math.isfinite(scale) and scale > 0):
        return 3
    return max(0, digits - 1 - math.floor(math.log10(scale)))


def _cells(row: Row) -> tuple[str, ...]:
    """Numbers of a row, to three significant digits of its standard deviation."""
    decimals = _decimals(row.sd, 3)
    largest = max(abs(number) for number in row[1:])
    if decimals > 6 or largest >= 1e7:
        return tuple(f"{number:.4g}" for number in row[1:])
    return tuple(f"{number:.{decimals}f}" for number in row[1:])


def _aligned(rows: Sequence[tuple[str, ...]], head: tuple[str, ...]) -> list[str]:
    """Align cells in columns: the first to the left, numbers at their decimal points."""
    names, *numbers = zip(*rows, strict=True)
    columns = [[head[0], *names], *([title, *_on_point(cells)] for title, cells in zip(head[1:], numbers, strict=True))]
    widths = [max(len(cell) for cell in column) for column in columns]
    lines = [zip(line, widths, strict=True) for line in zip(*columns, strict=True)]
    return ["  ".join(c.rjust(w) if j else c.ljust(w) for j, (c, w) in enumerate(line)).rstrip() for line in lines]


def _on_point(cells: Sequence[str]) -> list[str]:
    tails = [len(cell) - cell.find(".") if "." in cell else 0 for cell in cells]
    return [cell + " " * (max(tails) - tail) for cell, tail in zip(cells, tails, strict=True)]
