"""Evaluations: points on both scales, values, noise, and what each point was for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from qbvi.archive import PathLike

__all__ = ["STAGES", "Evaluations", "default_labels"]

Floats = NDArray[np.float64]

# What a point was for: an earlier fit or another program; a comparison with such a value; an
# iteration; a search of the prior for a better start; fresh draws from a result; draws from the
# posterior that the fit holds. Files hold the place in this tuple: new stages go to its end.
STAGES = ("given", "check", "step", "search", "fresh", "posterior")
_INDEXED = re.compile(r"^(.*)\[([0-9,]+)\]$")


@dataclass(frozen=True, eq=False, repr=False)
class Evaluations:
    """All points at which a function was evaluated, in order, with their values.

    ``fit.evaluations`` is such a table, and `qbvi.fit` takes one as ``evaluations=``. Use
    `from_arrays` for the points of another program: the trace of an optimiser, or an old chain.

    Parameters
    ----------
    labels : sequence of str
        Name of every column of ``points``, such as ``beta[0]``.
    points : array (N, p)
        The points on the parameters' own, constrained scale.
    values : array (N,)
        Value of the function at each point, as it was returned. NaN, or an infinity, where the
        function failed or the likelihood is zero.
    noise_sd : array (N,)
        Standard deviation of each value's noise; zero if it is unknown or there is none.
    with_prior : bool
        Whether the values are log densities of prior times likelihood on the parameters' own scale,
        not log-likelihoods. A constant may be missing.
    unconstrained : array (N, d), optional
        The points on the unconstrained scale of the fit.
    log_prior : array (N,), optional
        Log prior density on that scale, with the log-Jacobian.
    stage : array (N,) of str
        What each point was for:

        - ``"given"``: an earlier fit, or another program,
        - ``"check"``: a comparison of a given value with the function,
        - ``"step"``: an iteration,
        - ``"search"``: a search of the prior for a better start,
        - ``"fresh"``: fresh draws from a result, for its bound and k-hat,
        - ``"posterior"``: draws from the posterior of the fit, by `qbvi.Fit.check`.
    batch : array (N,) of int
        Number of the batch that each point was evaluated in.

    Examples
    --------
    >>> import qbvi
    >>> y = np.array([1.2, 0.7, 1.9])
    >>> f = lambda m: -0.5 * np.sum((y - m) ** 2)
    >>> first = qbvi.fit(f, qbvi.Normal(0, 1), family="full", seed=1)
    >>> len(first.evaluations) == first.n_evals
    True
    >>> again = qbvi.fit(f, qbvi.Normal(0, 1), family="full", evaluations=first, seed=2)
    >>> again.n_evals < first.n_evals and bool(abs(again.mean - first.mean) < 0.01)
    True

    Points and log-likelihoods of another program:

    >>> theta = np.linspace(-1, 3, 20)
    >>> old = qbvi.Evaluations.from_arrays(theta, [f(m) for m in theta])
    >>> old
    Evaluations of 20 points in 1 parameter: 20 finite, log_likelihood from -8.07 to -0.367
      given 20; best at theta = 1.316
    """

    labels: tuple[str, ...]
    points: Floats
    values: Floats
    noise_sd: Floats = None  # type: ignore[assignment]  # set in __post_init__
    with_prior: bool = False
    unconstrained: Floats | None = None
    log_prior: Floats | None = None
    stage: NDArray[np.str_] = None  # type: ignore[assignment]
    batch: NDArray[np.int64] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))
        points = _array("points", self.points)
        n, p = len(points), len(self.labels)
        if points.shape != (n, p) or p == 0:
            msg = f"`points` must have shape (N, {p}), a column for each label, got {points.shape}"
            raise ValueError(msg)
        given = {name: getattr(self, name) for name in _ROWS}
        defaults = {"noise_sd": np.zeros(n), "stage": [STAGES[0]] * n, "batch": np.zeros(n)}
        filled = {name: defaults.get(name) if column is None else column for name, column in given.items()}
        columns = {name: _array(name, column) for name, column in filled.items() if column is not None}
        self._check(columns, n)
        for name, column in columns.items():
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    @staticmethod
    def _check(columns: Mapping[str, NDArray[Any]], n: int) -> None:
        for name, column in columns.items():
            ndim = 2 if name in ("points", "unconstrained") else 1
            if column.ndim != ndim or len(column) != n:
                msg = f"`{name}` must have one entry for each of the {n} points, got shape {column.shape}"
                raise ValueError(msg)
        noise_sd, unknown = columns["noise_sd"], set(columns["stage"].tolist()) - set(STAGES)
        if not np.all(np.isfinite(noise_sd) & (noise_sd >= 0)):
            msg = f"`noise_sd` must be zero or positive, got {noise_sd.tolist()[:4]}"
            raise ValueError(msg)
        if unknown:
            msg = f"`stage` must be one of {', '.join(STAGES)}, got {min(unknown)!r}"
            raise ValueError(msg)

    @classmethod
    def from_arrays(cls, points: Any, values: ArrayLike, *, with_prior: bool = False, noise_sd: Any = 0.0) -> Self:
        """Evaluations that another program has made.

        Parameters
        ----------
        points : array (N, p), array (N,) or dict of arrays (N, ...)
            Constrained values: one row for each point or, by name, one array for each parameter.
            The columns of one array are in the order of the prior.
        values : array (N,)
            Log-likelihood at each point. NaN and infinities are failures.
        with_prior : bool
            Whether the values are log densities of prior times likelihood instead, such as the
            ``log_prob`` of a sampler. A constant may be missing.
        noise_sd : float or array (N,)
            Standard deviation of the noise of each value, if known.
        """
        labels, flat = _flat(points)
        if not np.isfinite(flat).all():
            msg = f"`points` must be finite, got {flat[~np.isfinite(flat).all(axis=1)][0].tolist()}"
            raise ValueError(msg)
        sd = np.full(len(flat), noise_sd) if np.ndim(noise_sd) == 0 else noise_sd
        return cls(tuple(labels), flat, np.asarray(values, dtype=np.float64), sd, with_prior)

    @classmethod
    def load(cls, path: PathLike) -> Self:
        """Read a table by the suffix of its file: ``.csv``, ``.parquet``, or ``.npz`` of `save`.

        A CSV or Parquet file of another program has one column for each parameter, such as ``beta``
        or ``beta[0]``, and a column ``log_likelihood`` or ``log_density`` (prior times likelihood).
        A column ``noise_sd`` is optional. Others are ignored.
        """
        from qbvi.evaluations.files import read

        return cls(**read(path))

    @classmethod
    def from_frame(cls, frame: Any) -> Self:
        """Evaluations from a pandas.DataFrame, with the columns that `load` describes."""
        from qbvi.evaluations.files import from_columns

        return cls(**from_columns({str(name): np.asarray(frame[name]) for name in frame.columns}, "the data frame"))

    @classmethod
    def from_sampler(cls, sampler: Any) -> Self:
        """Evaluations of a sampler that has run.

        Parameters
        ----------
        sampler : object
            One of

            - an ``emcee.EnsembleSampler``, or a backend of emcee such as ``HDFBackend``: every step
              of every walker, with values of prior times likelihood,
            - the ``results`` of dynesty, or its sampler,
            - a sampler of nautilus.

            The parameters are in the order of the prior. Take a part of a long chain by its rows,
            as in ``from_sampler(backend)[5000:]``.
        """
        from qbvi.evaluations.samplers import from_sampler

        found = from_sampler(sampler)
        if found is None:
            msg = f"`sampler` must be a sampler or backend of emcee, results of dynesty, or a sampler of nautilus, got {type(sampler).__name__}"
            raise TypeError(msg)
        return cls(**found)

    def save(self, path: PathLike) -> None:
        """Write the table to a ``.csv``, a ``.parquet`` (which needs pandas) or an ``.npz``.

        All of them keep every bit of the numbers.
        """
        from qbvi.evaluations.files import write

        write(self, path)

    def to_frame(self) -> Any:
        """The table as a pandas.DataFrame, with one row for each point."""
        from qbvi.evaluations.files import pandas, to_columns

        return pandas("`to_frame`").DataFrame(to_columns(self))

    @classmethod
    def joined(cls, tables: Sequence[Evaluations]) -> Evaluations:
        """The tables one after another; given points only once."""
        first, *others = tables
        parts = [first, *(table[table.stage != STAGES[0]] for table in others)]
        ends = np.cumsum([0, *(1 + int(part.batch.max(initial=-1)) for part in parts[:-1])])
        held = [name for name in _ROWS if all(getattr(part, name) is not None for part in parts)]
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in held}
        columns["batch"] = np.concatenate([part.batch + end for part, end in zip(parts, ends, strict=True)])
        return cls(first.labels, with_prior=first.with_prior, **columns)

    @property
    def log_likelihood(self) -> Floats:
        """Log-likelihood at each point (N,)."""
        if self.with_prior:
            msg = "these evaluations hold log densities of prior times likelihood: see `values`"
            raise AttributeError(msg)
        return self.values

    @property
    def log_joint(self) -> Floats:
        """Log prior plus log-likelihood on the unconstrained scale, with the log-Jacobian (N,)."""
        if self.log_prior is None:
            msg = "these evaluations have no prior: they do not come from a fit; see `values`"
            raise AttributeError(msg)
        return np.asarray(self.log_likelihood + self.log_prior)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Whether each value is a finite number (N,)."""
        return np.isfinite(self.values)

    @property
    def parameters(self) -> dict[str, Floats]:
        """The constrained values of every parameter by name: ``(N, *shape)``."""
        columns: dict[str, list[int]] = {}
        for i, label in enumerate(self.labels):
            columns.setdefault(_split(label)[0], []).append(i)
        shapes = {name: _shape([self.labels[i] for i in at]) for name, at in columns.items()}
        return {name: self.points[:, at].reshape(len(self), *shapes[name]) for name, at in columns.items()}

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, which: slice | NDArray[Any]) -> Evaluations:
        """Some of the evaluations, such as those after a burn-in."""
        if not isinstance(which, slice):
            which = np.atleast_1d(which)
        rows: dict[str, Any] = {name: held[which] for name in _ROWS if (held := getattr(self, name)) is not None}
        return Evaluations(self.labels, with_prior=self.with_prior, **rows)

    def __repr__(self) -> str:
        n, p, name = len(self), len(self.labels), "log_density" if self.with_prior else "log_likelihood"
        what = f"Evaluations of {n:,} point{'s' * (n != 1)} in {p} parameter{'s' * (p != 1)}"
        finite = self.values[self.ok]
        if not finite.size:
            return f"{what}: none finite"
        stages = {stage: int(np.sum(self.stage == stage)) for stage in STAGES}
        best = self.points[int(np.argmax(np.where(self.ok, self.values, -np.inf)))]
        where = ", ".join(f"{label} = {x:.4g}" for label, x in list(zip(self.labels, best, strict=True))[:4])
        return (
            f"{what}: {finite.size:,} finite, {name} from {finite.min():.3g} to {finite.max():.3g}\n"
            f"  {', '.join(f'{stage} {m:,}' for stage, m in stages.items() if m)}; "
            f"best at {where}{', ...' * (p > 4)}"
        )


# The columns with their dtypes.
_ROWS: dict[str, Any] = {
    "points": np.float64,
    "values": np.float64,
    "noise_sd": np.float64,
    "unconstrained": np.float64,
    "log_prior": np.float64,
    "stage": np.str_,
    "batch": np.int64,
}


def default_labels(shape: tuple[int, ...], name: str = "theta") -> list[str]:
    """One label for each entry of a parameter.

    Examples
    --------
    >>> default_labels((2,), "beta"), default_labels(())
    (['beta[0]', 'beta[1]'], ['theta'])
    """
    return [f"{name}[{','.join(map(str, index))}]" for index in product(*map(range, shape))] if shape else [name]


def _flat(points: Any) -> tuple[list[str], Floats]:
    """Labels and rows of points as a user gives them: an array, or a dict of arrays by name."""
    named = points if isinstance(points, Mapping) else {"theta": points}
    arrays = {name: _array("points" if name == "theta" else str(name), array) for name, array in named.items()}
    lengths = {name: array.shape[:1] for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or () in lengths.values():
        msg = f"`points` must have one array for each parameter, all with the same first axis, got {lengths}"
        raise ValueError(msg)
    labels = [label for name, array in arrays.items() for label in default_labels(array.shape[1:], str(name))]
    return labels, np.concatenate([array.reshape(len(array), -1) for array in arrays.values()], axis=1)


def _array(name: str, values: Any) -> NDArray[Any]:
    try:
        return np.array(values, dtype=_ROWS.get(name, np.float64))
    except (TypeError, ValueError) as error:
        msg = f"`{name}` must hold numbers: {error}"
        raise TypeError(msg) from error


def _split(label: str) -> tuple[str, tuple[int, ...]]:
    found = _INDEXED.match(label)
    return (found[1], tuple(map(int, found[2].split(",")))) if found else (label, ())


def _shape(labels: Sequence[str]) -> tuple[int, ...]:
    """Shape of a parameter whose entries have these labels; flat if they are not complete."""
    indices = [_split(label)[1] for label in labels]
    if indices == [()]:
        return ()
    full = tuple(max(axis) + 1 for axis in zip(*indices, strict=False))
    return full if list(product(*map(range, full))) == indices else (len(labels),)
