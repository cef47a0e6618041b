"""Model: names, shapes, supports and priors of all parameters as one density of flat ``u``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qbvi.arguments import array_of, shown
from qbvi.arrays import Array, array_namespace, to_numpy
from qbvi.distributions import Distribution, as_distribution, distribution_from_spec
from qbvi.points import items, nested, paths_of
from qbvi.supports import Elementwise, Interval, Periodic, Shape, UnitCube, UserDefinedError

__all__ = ["Model", "Parameter", "QuadraticPrior", "Vector", "named_distributions"]

_UNNAMED = "theta"


@dataclass(frozen=True, eq=False)
class Vector:
    """Priors of the entries of one vector, by name.

    The function gets the vector, and the names are those of its entries in tables and plots. A list
    of priors is such a vector without names.

    Parameters
    ----------
    priors : mapping of str to distribution
        The prior of each entry, a scalar.

    Examples
    --------
    >>> from qbvi.distributions import Normal, Uniform
    >>> model = Model(Vector({"slope": Normal(0, 5), "scatter": Uniform(0, 2)}))
    >>> model.labels
    ['slope', 'scatter']
    >>> model.constrain(np.zeros((1, 2)))
    array([[0., 1.]])
    """

    priors: Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a model: its prior, and the columns of ``u`` that hold it.

    ``u`` holds a *native* parameter on its own scale, because its posterior lives there: an inverse
    gamma for a variance, a Bernoulli for a switch. It holds all others unconstrained.
    """

    name: str
    distribution: Distribution
    columns: slice
    is_native: bool = False

    @property
    def shape(self) -> Shape:
        """Shape of one constrained value."""
        return self.distribution.shape

    @property
    def size(self) -> int:
        """Number of constrained scalars."""
        return math.prod(self.shape)

    @property
    def labels(self) -> list[str]:
        """One label per constrained scalar, such as ``A[0,1]``."""
        if not self.shape:
            return [self.name]
        if self.distribution.support.entry_names:
            return list(self.distribution.support.entry_names)
        if names := self.distribution.entry_names:
            return list(names) if self.name == _UNNAMED else [f"{self.name}[{name}]" for name in names]
        return [f"{self.name}[{','.join(map(str, index))}]" for index in product(*map(range, self.shape))]

    def constrain(self, u: Array) -> Array:
        """Constrained values of this parameter: (n, d) -> ``(n, *shape)``."""
        part = u[:, self.columns]
        if self.is_native:
            return array_namespace(u).reshape(part, (u.shape[0], *self.shape))
        return self.distribution.support.constrain(part, self.shape)

    def unconstrain(self, x: Array) -> Array:
        """Undo `constrain`, for this parameter's columns alone: ``(n, *shape)`` -> (n, k)."""
        if self.is_native:
            return array_namespace(x).reshape(x, (x.shape[0], self.size))
        return self.distribution.support.unconstrain(x, self.shape)

    def log_prior(self, u: Array) -> Array:
        """Log prior density of this parameter's columns of ``u``: (n, d) -> (n,)."""
        if self.is_native:
            return self.distribution.log_prob(self.constrain(u))
        return self.distribution.log_prob_unconstrained(u[:, self.columns])

    def log_jacobian(self, u: Array) -> Array:
        """Log absolute Jacobian determinant of `constrain`: (n, d) -> (n,)."""
        if self.is_native:
            return array_namespace(u).zeros_like(u[:, 0])
        return self.distribution.support.log_jacobian(u[:, self.columns], self.shape)

    @cached_property
    def constant(self) -> float:
        """Log density of a prior that is Gaussian in ``u``, less its quadratic form."""
        return float(self.distribution.log_prob_unconstrained(np.zeros((1, self.distribution.dim)))[0])

    def quadratic(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Coefficients of a prior that is Gaussian in ``u``, else None."""
        return None if self.is_native else self.distribution.quadratic()

    def initial(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Starting point suggested by the prior: location and scale of its columns of ``u``."""
        return self.distribution.initial_values() if self.is_native else self.distribution.initial()


class QuadraticPrior(NamedTuple):
    """The part of the log prior that is quadratic in ``u``: ``linear . u - u' precision u / 2``."""

    linear: NDArray[np.float64]  # (d,)
    precision: NDArray[np.float64]  # (d,) if diagonal, else (d, d)


class Model:
    """The map between the values that a user's function sees and the flat vectors ``u``.

    Parameters
    ----------
    prior : distribution, mapping of str to distribution, sequence of distributions, or Vector
        Distributions of qbvi or frozen ones of SciPy. The order of a mapping is the order of the
        columns of ``u``. Mappings may be nested; then values are nested dicts, and names have dots
        between those of the levels: ``{"a": {"b": ...}}`` has the name ``a.b``. A sequence, or a
        `Vector`, has the priors of the entries of one vector.
    native : collection of str
        Names of the parameters that ``u`` holds on their own scale. An unnamed parameter has the
        name ``theta``.

    Attributes
    ----------
    parameters : tuple of Parameter
    dim : int
        Length d of ``u``.
    is_named : bool
        Whether values are a dict of arrays, not one array.
    is_vector : bool
        Whether values are one vector whose entries are parameters of their own.
    paths : list of tuple of str
        Where each parameter is in nested dicts; a tuple of one name where they are not nested.
    labels : list of str
        One label per constrained scalar.

    Examples
    --------
    >>> from qbvi.distributions import InverseGamma, Normal
    >>> model = Model({"beta": Normal(0, 5, shape=2), "sigma2": InverseGamma(3, 1)})
    >>> model.labels
    ['beta[0]', 'beta[1]', 'sigma2']
    >>> model.constrain(np.zeros((1, 3)))
    {'beta': array([[0., 0.]]), 'sigma2': array([1.])}
    """

    def __init__(self, prior: Any, native: Collection[str] = ()) -> None:
        self.is_named = isinstance(prior, Mapping)
        self.is_vector = isinstance(prior, Vector | list | tuple)
        self.parameters = _lay_out(named_distributions(prior), frozenset(native))
        self.paths = paths_of(prior) if self.is_named else [(p.name,) for p in self.parameters]
        self.dim = self.parameters[-1].columns.stop
        self.labels = [label for parameter in self.parameters for label in parameter.labels]

    def __repr__(self) -> str:
        if not self.is_named and not self.is_vector:
            return f"Model({self.parameters[0].distribution!r})"
        by_name = {p.name: p.distribution for p in self.parameters}
        return f"Model({self.nest(by_name)!r})" if self.is_named else f"Model(Vector({by_name!r}))"

    def constrain(self, u: Array) -> Any:
        """Values that the user's function sees: a dict of arrays, or one array if unnamed.

        (n, d) -> ``(n, *shape)`` for each parameter.
        """
        return self._structured([p.constrain(u) for p in self.parameters])

    def unconstrain(self, values: Any, *, batched: bool = False) -> NDArray[np.float64]:
        """Check values and map them back: one point to (d,), with ``batched`` n points to (n, d).

        One point is a start, so it must lie strictly inside the support. A batch may touch the
        boundary, where draws saturate.
        """
        arrays = [_checked(p, value, batched) for p, value in zip(self.parameters, self._listed(values), strict=True)]
        _check_lengths(self.parameters, arrays)
        columns = [to_numpy(p.unconstrain(x)) for p, x in zip(self.parameters, arrays, strict=True)]
        u = np.concatenate(columns, axis=-1)
        return u if batched else u[0]

    def log_prior(self, u: Array) -> Array:
        """Log prior density of ``u``, including the log-Jacobian: (n, d) -> (n,)."""
        return _total(p.log_prior(u) for p in self.parameters)

    def log_jacobian(self, u: Array) -> Array:
        """Log absolute Jacobian determinant of `constrain`: (n, d) -> (n,)."""
        return _total(p.log_jacobian(u) for p in self.parameters)

    def quadratic_prior(self) -> QuadraticPrior:
        """The part of the log prior that is Gaussian in ``u``; zero for other priors."""
        blocks = [p.quadratic() or (np.zeros(p.columns.stop - p.columns.start),) * 2 for p in self.parameters]
        linear = np.concatenate([block[0] for block in blocks])
        if all(precision.ndim == 1 for _, precision in blocks):
            return QuadraticPrior(linear, np.concatenate([precision for _, precision in blocks]))
        matrix = np.zeros((self.dim, self.dim))
        for parameter, (_, precision) in zip(self.parameters, blocks, strict=True):
            matrix[parameter.columns, parameter.columns] = precision if precision.ndim == 2 else np.diag(precision)
        return QuadraticPrior(linear, matrix)

    def remaining_log_prior(self, u: Array, taken: Collection[str] = ()) -> Array:
        """Log prior less its quadratic part and less the priors named in ``taken``: (n, d) -> (n,).

        A parameter with a quadratic prior contributes only its constant, so no large numbers
        cancel.
        """
        return _total(_remainder(p, u) if p.name not in taken else 0.0 * u[:, 0] for p in self.parameters)

    def sample_prior(self, rng: np.random.Generator, n: int) -> Any:
        """Draw ``n`` values from the prior, in the form of `constrain`; None if it is improper."""
        if not all(p.distribution.can_sample for p in self.parameters):
            return None
        return self._structured([p.distribution.sample(rng, n) for p in self.parameters])

    def initial(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Starting point suggested by the prior: location (d,) and scale (d,) of ``u``."""
        starts = [p.initial() for p in self.parameters]
        return np.concatenate([loc for loc, _ in starts]), np.concatenate([scale for _, scale in starts])

    @property
    def is_discrete(self) -> NDArray[np.bool_]:
        """Which columns of ``u`` hold whole numbers: (d,)."""
        sizes = [p.columns.stop - p.columns.start for p in self.parameters]
        return np.repeat([p.distribution.support.is_discrete for p in self.parameters], sizes)

    def distance_to_edge(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Distance from each coordinate of a point (d,) to the nearer end of its support.

        It is finite only for native numbers on an interval or a half line.
        """
        distance = np.full(self.dim, np.inf)
        for p in self.parameters:
            if (
                p.is_native
                and isinstance(p.distribution.support, Elementwise)
                and not p.distribution.support.is_discrete
            ):
                low, high = p.distribution.support.bounds(p.shape)
                distance[p.columns] = np.minimum(u[p.columns] - low, high - u[p.columns])
        return distance

    @cached_property
    def periods(self) -> NDArray[np.float64]:
        """Period of each column of ``u``, infinite for columns that are not periodic: (d,)."""
        periods = np.full(self.dim, np.inf)
        for p in self.parameters:
            if isinstance(p.distribution.support, Periodic) and not p.is_native:
                low, high = p.distribution.support.bounds(p.shape)
                periods[p.columns] = high - low
        return periods

    @cached_property
    def is_walled(self) -> NDArray[np.bool_]:
        """Which columns of ``u`` stand for numbers between two ends: (d,)."""
        is_walled = np.zeros(self.dim, dtype=bool)
        for p in self.parameters:
            is_walled[p.columns] = isinstance(p.distribution.support, Interval | UnitCube) and not p.is_native
        return is_walled

    def nearest_copy(self, u: NDArray[np.float64], to: NDArray[np.float64]) -> NDArray[np.float64]:
        """Move periodic columns of (n, d) by whole periods to the copy that is nearest to (d,)."""
        is_periodic = np.isfinite(self.periods)
        period = np.where(is_periodic, self.periods, 1.0)
        return np.where(is_periodic, u + period * np.round((to - u) / period), u)

    def one_turn(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Move the periodic coordinates of one point (d,) into their period."""
        middle = np.zeros(self.dim)
        for p in self.parameters:
            if isinstance(p.distribution.support, Periodic) and not p.is_native:
                middle[p.columns] = np.mean(p.distribution.support.bounds(p.shape), axis=0)
        return self.nearest_copy(u, middle)

    def flatten(self, values: Any) -> Array:
        """Lay n constrained values side by side: ``(n, *shape)`` each -> (n, len(labels))."""
        arrays = self._listed(values)
        xp = array_namespace(*arrays)
        flat = [xp.reshape(x, (x.shape[0], p.size)) for p, x in zip(self.parameters, arrays, strict=True)]
        return xp.concat(flat, axis=-1)

    def unflatten(self, flat: Array) -> Any:
        """Undo `flatten`: (n, len(labels)) -> ``(n, *shape)`` for each parameter."""
        xp = array_namespace(flat)
        ends = np.cumsum([0, *(p.size for p in self.parameters)]).tolist()
        return self._structured(
            [
                xp.reshape(flat[:, start:stop], (flat.shape[0], *p.shape))
                for p, start, stop in zip(self.parameters, ends[:-1], ends[1:], strict=True)
            ]
        )

    def describe(self) -> dict[str, Any]:
        """Describe this model to a person, as plain data."""
        parameters = [
            {
                "name": p.name,
                "shape": list(p.shape),
                "support": repr(p.distribution.support),
                "prior": repr(p.distribution),
            }
            for p in self.parameters
        ]
        return {"named": self.is_named, "dim": self.dim, "parameters": parameters}

    def to_spec(self) -> dict[str, Any]:
        """Everything that `from_spec` needs, as plain data without code."""
        parameters = [
            {"name": p.name, "path": list(path), "prior": p.distribution.to_spec(), "native": p.is_native}
            for p, path in zip(self.parameters, self.paths, strict=True)
        ]
        return {"named": self.is_named, "vector": self.is_vector, "parameters": parameters}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], priors: Any = None) -> Self:
        """Rebuild a model from `to_spec`; runs no stored code.

        Parameters
        ----------
        spec : mapping
        priors : distribution or mapping of str to distribution, optional
            Priors that contain a user's functions, which the data cannot hold. For an unnamed
            model, the prior itself.

        Examples
        --------
        >>> from qbvi.distributions import LogNormal
        >>> Model.from_spec(Model({"tau": LogNormal(0, 1)}).to_spec())
        Model({'tau': LogNormal(mu=0.0, sigma=1.0)})
        """
        names = [entry["name"] for entry in spec["parameters"]]
        given = {} if priors is None else _by_name(priors)
        _check_names("priors", given, names, complete=False)
        rebuilt = {
            entry["name"]: _supplied(entry, given[entry["name"]]) if entry["name"] in given else _restored(entry)
            for entry in spec["parameters"]
        }
        native = [entry["name"] for entry in spec["parameters"] if entry.get("native", False)]
        if spec.get("vector", False):
            return cls(Vector(rebuilt), native)
        paths = [entry.get("path", [entry["name"]]) for entry in spec["parameters"]]
        return cls(nested(rebuilt, paths) if spec["named"] else rebuilt[_UNNAMED], native)

    def nest(self, by_name: Mapping[str, Any]) -> dict[str, Any]:
        """What belongs to each parameter, in dicts nested as the prior is."""
        return nested(by_name, self.paths)

    def by_name(self, values: Any) -> Mapping[str, Any]:
        """Values of one point, or stacked ones, as arrays by the names of the parameters."""
        if self.is_named:
            return dict(items(values))
        if not self.is_vector:
            return {self.parameters[0].name: values}
        array = values if hasattr(values, "shape") else np.asarray(values)
        if not array.shape or array.shape[-1] != len(self.parameters):
            shape = tuple(array.shape)
            msg = f"values must have {len(self.parameters)} entries along the last axis, one for each prior, got shape {shape}"
            raise ValueError(msg)
        return {p.name: array[..., i] for i, p in enumerate(self.parameters)}

    def by_label(self, values: Any) -> Mapping[str, Any]:
        """Stacked values as arrays for export: a vector whose entries have names is taken apart."""
        own = self.is_vector and self.labels[0] != f"{_UNNAMED}[0]"
        if not own and not self.parameters[0].distribution.support.entry_names:
            return self.by_name(values) if not self.is_vector else {_UNNAMED: values}
        return {label: values[..., i] for i, label in enumerate(self.labels)}

    def _structured(self, arrays: list[Any]) -> Any:
        if self.is_vector:
            return array_namespace(*arrays).stack(arrays, axis=-1)
        if not self.is_named:
            return arrays[0]
        return self.nest({p.name: array for p, array in zip(self.parameters, arrays, strict=True)})

    def _listed(self, values: Any) -> list[Any]:
        """The arrays of a structure in the order of the columns, with names checked."""
        if not self.is_named:
            return list(self.by_name(values).values())
        names = [p.name for p in self.parameters]
        if not isinstance(values, Mapping):
            msg = f"values must be a dict with the names {', '.join(names)}, got {type(values).__name__}"
            raise TypeError(msg)
        by_name = self.by_name(values)
        _check_names("values", by_name, names, complete=True)
        return [by_name[name] for name in names]


def named_distributions(prior: Any) -> dict[str, Distribution]:
    """Check what a user gives as ``prior=`` and return it by name."""
    priors, is_vector = _by_name(prior), isinstance(prior, Vector | list | tuple)
    if not priors:
        msg = "`prior` must have at least one parameter, got an empty list or dict"
        raise ValueError(msg)
    is_named = is_vector or isinstance(prior, Mapping)
    found = {name: _named_distribution(name, one, is_named) for name, one in priors.items()}
    other = next((name for name, one in found.items() if is_vector and one.shape), None)
    if other is not None:
        msg = (
            f"a list of priors must have one scalar prior for each entry of the vector, got shape {found[other].shape} for {other!r}; "
            "give parameters of other shapes names: prior={...}"
        )
        raise ValueError(msg)
    return found


def _by_name(prior: Any) -> dict[str, Any]:
    if isinstance(prior, list | tuple):
        return {f"{_UNNAMED}[{i}]": one for i, one in enumerate(prior)}
    if isinstance(prior, Vector):
        return dict(prior.priors)
    if not isinstance(prior, Mapping):
        return {_UNNAMED: prior}
    found = items(prior)
    twice = next((name for name, n in Counter(name for name, _ in found).items() if n > 1), None)
    if twice is not None:
        msg = f"`prior` must have one parameter of each name, got {twice!r} twice: by a dot, and in a nested dict"
        raise ValueError(msg)
    return dict(found)


def _lay_out(priors: Mapping[str, Distribution], native: frozenset[str]) -> tuple[Parameter, ...]:
    parameters: list[Parameter] = []
    start = 0
    for name, distribution in priors.items():
        stop = start + (math.prod(distribution.shape) if name in native else distribution.dim)
        parameters.append(Parameter(name, distribution, slice(start, stop), name in native))
        start = stop
    return tuple(parameters)


def _named_distribution(name: Any, prior: Any, is_named: bool) -> Distribution:
    if not isinstance(name, str) or not name:
        msg = f"`prior` must have non-empty strings as names of parameters, got {shown(name)}"
        raise TypeError(msg)
    try:
        return as_distribution(prior)
    except (TypeError, ValueError) as error:
        if not is_named:
            raise
        msg = f"prior of {name!r}: {error}"
        raise type(error)(msg) from error


def _check_names(what: str, given: Mapping[str, Any], names: list[str], *, complete: bool) -> None:
    known = set(names)
    missing = [name for name in names if name not in given] if complete else []
    unexpected = [_with_suggestion(name, names) for name in given if name not in known]
    problems = [f"missing {', '.join(map(repr, missing))}"] if missing else []
    problems += [f"unexpected {', '.join(unexpected)}"] if unexpected else []
    if problems:
        msg = f"{what} must have the names of the parameters, {', '.join(names)}: {'; '.join(problems)}"
        raise ValueError(msg)


def _with_suggestion(name: Any, names: list[str]) -> str:
    nearest = get_close_matches(str(name), names, n=1)
    return f"{name!r} (did you mean {nearest[0]!r}?)" if nearest else repr(name)


def _checked(parameter: Parameter, value: ArrayLike, batched: bool) -> NDArray[np.float64]:
    """Values of one parameter as ``(n, *shape)``, or an error that says what is wrong with them."""
    try:
        x = array_of(parameter.name, value) if np.ma.isMaskedArray(value) else to_numpy(value)
    except (TypeError, ValueError):
        msg = f"values of {parameter.name!r} must be numbers, got {shown(value)}"
        raise TypeError(msg) from None
    if x.ndim != len(parameter.shape) + batched or x.shape[int(batched) :] != parameter.shape:
        expected = f"(n, {', '.join(map(str, parameter.shape))})" if batched else str(parameter.shape)
        msg = f"values of {parameter.name!r} must have shape {expected}, got {x.shape}"
        raise ValueError(msg)
    x = x if batched else x[None]
    _check_inside(parameter, x, strict=not batched)
    return x


def _check_inside(parameter: Parameter, x: NDArray[np.float64], strict: bool) -> None:
    support = parameter.distribution.support
    if not np.all(np.isfinite(x)):
        msg = f"values of {parameter.name!r} must be finite, got {x[~np.isfinite(x)][0]}"
        raise ValueError(msg)
    if support.contains(x, strict=strict):
        return
    bad = next(point for point in x if not support.contains(point, strict=strict))
    where = "strictly inside of, not on the boundary of," if support.contains(bad) else "inside of"
    msg = f"values of {parameter.name!r} must lie {where} {support!r}, got {bad.tolist()}"
    raise ValueError(msg)


def _check_lengths(parameters: tuple[Parameter, ...], arrays: list[NDArray[np.float64]]) -> None:
    lengths = {p.name: len(x) for p, x in zip(parameters, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        msg = f"all parameters must have the same number of values along the first axis, got {lengths}"
        raise ValueError(msg)


def _remainder(parameter: Parameter, u: Array) -> Array:
    if parameter.quadratic() is None:
        return parameter.log_prior(u)
    return array_namespace(u).full_like(u[:, 0], parameter.constant)


def _total(terms: Iterable[Array]) -> Array:
    first, *others = terms
    return sum(others, start=first)


def _restored(entry: Mapping[str, Any]) -> Distribution:
    try:
        return distribution_from_spec(entry["prior"])
    except UserDefinedError as error:
        msg = f"the file's parameter {entry['name']!r} has a user-defined map or prior, which files do not hold: pass `prior=` to load"
        raise UserDefinedError(msg) from error


def _supplied(entry: Mapping[str, Any], prior: Any) -> Distribution:
    distribution = as_distribution(prior)
    stored = tuple(entry["prior"].get("shape", distribution.shape))
    if distribution.shape != stored:
        msg = f"the prior given for {entry['name']!r} must have the stored shape {stored}, got {distribution.shape}"
        raise ValueError(msg)
    return distribution
