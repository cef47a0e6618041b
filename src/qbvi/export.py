"""A fit for ArviZ: InferenceData (ArviZ 0.x) or xarray.DataTree (arviz-base, ArviZ 1 and later)."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import array_of, as_generator, as_seed, shown, whole_number
from qbvi.arrays import to_numpy
from qbvi.diagnostics import khat_limit
from qbvi.evaluate.push import Push, pushed
from qbvi.families import Sample
from qbvi.loo import evaluated_terms, terms_at
from qbvi.naming import is_no_text, pick
from qbvi.points import items
from qbvi.random import systematic
from qbvi.results import Fit

__all__ = ["Described", "to_arviz"]

Floats = NDArray[np.float64]
Groups = dict[str, dict[str, Floats]]

_OBSERVED = "y"  # name of data that have none
_AXIS = "observation"
_MOST = 2**27  # numbers of one group for a ready-made model, 1 GB; more rows are left out


class Described(NamedTuple):
    """Draws as the package shows them that a problem comes from.

    A log-likelihood with a method ``described(values)``, which takes draws stacked along a first
    axis, decides what `to_arviz` exports.
    """

    variables: dict[str, NDArray[Any]]  # draws by name, with quantities derived from them
    coords: dict[str, NDArray[Any]]  # labels along each dimension
    dims: dict[str, list[Any]]  # names of the dimensions of each variable
    observed: dict[str, NDArray[Any]]  # the data


class _Export(NamedTuple):
    """What is exported, and how its axes are called."""

    groups: Groups
    dims: dict[str, list[str]]
    coords: dict[str, Any]
    attributes: dict[str, Any]


def to_arviz(  # noqa: PLR0913 - what to export, each with a default
    fit: Fit,
    kind: str = "auto",
    draws: int = 1000,
    seed: int | np.random.Generator | None = None,
    *,
    predictive: Callable[..., Any] | None = None,
    observed: Any = None,
    vectorized: bool = False,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Export draws, log densities and diagnostics to ArviZ.

    Parameters
    ----------
    fit : Fit
        The posterior.
    kind : {"auto", "inferencedata", "datatree"}
        ``"auto"`` gives InferenceData if ArviZ before 1.0 is installed, else a DataTree.
    draws : int
        Number of draws; they are independent and form one chain. Of a `qbvi.MCMC` all draws are
        exported, as chains or, where the terms of the log-likelihood are, about so many.
    seed : int, numpy.random.Generator or None
        Source of the draws.
    predictive : function, optional
        Simulates new data at one point, as for `qbvi.Fit.predict`:
        ``lambda p, rng: rng.normal(p["mu"], p["sigma"], size=n)``. It returns an array or a dict of
        them. Ready-made models have one.
    observed : array or dict of arrays, optional
        The observed data, with the names and shapes of ``predictive``.
    vectorized : bool
        Whether ``predictive`` takes stacked points.
    coords, dims : dict, optional
        Coordinates by dimension, and dimensions by variable, as ArviZ takes them.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        - ``posterior`` and ``sample_stats``, in which ``lp`` is the log density of the
          approximation at each draw, for chains the log joint density. An unnamed parameter has the
          name ``theta``.
        - ``prior``, if it can be sampled.
        - ``log_likelihood``, if the fit knows the terms (``pointwise=True``): the function is
          called at each draw. Then the draws are of the posterior itself, as far as importance
          weights can correct q: they are resampled by these weights unless their k-hat is too
          large. The attribute ``importance_resampled`` says whether.
        - ``posterior_predictive`` and ``observed_data``, if they are given or known.

        Ready-made models with many rows leave the last two out, if rows times draws exceed 2^27.

    Examples
    --------
    >>> import qbvi
    >>> prior = {"beta": qbvi.Normal(0, 1, shape=2)}
    >>> fit = qbvi.fit(lambda theta: -float(theta["beta"] @ theta["beta"]), prior, seed=1)
    >>> to_arviz(fit, draws=100, seed=1).posterior["beta"].shape
    (1, 100, 2)
    """
    kinds = {"auto": _automatic, "inferencedata": _inference_data, "datatree": _data_tree}
    build = pick("kind", kind, kinds, is_no_text)
    drawn = _drawn(fit, whole_number("draws", draws), seed, as_generator(seed))
    groups, source = _groups(fit, drawn), fit._source
    if predictive is None and source is not None and source.simulate is not None and not _is_too_large(fit, draws):
        predictive, vectorized, observed = source.simulate, True, source.observed if observed is None else observed
    if predictive is not None:
        push = Push(predictive, vectorized=vectorized, seed=as_seed(drawn.rng), name="predictive")
        values, _ = pushed(push, fit.model.constrain(drawn.u))
        groups["posterior_predictive"] = _in_chains(values, drawn.chains, _OBSERVED)
    if observed is not None:
        groups["observed_data"] = {k: array_of("observed", v) for k, v in items(observed, unnamed=_OBSERVED)}
    if drawn.terms is not None:
        name = next(iter(groups.get("observed_data", {_OBSERVED: None})))
        groups["log_likelihood"] = _in_chains({name: drawn.terms}, drawn.chains)
    groups, own_dims, own_coords = _labelled(fit, groups)
    attributes = _attributes(fit) | drawn.attributes
    return build(_Export(groups, own_dims | _plain(dims), own_coords | _plain(coords), attributes))


class _Drawn(NamedTuple):
    """Draws to export, with what is known about them."""

    u: Floats  # (n, d)
    chains: int  # into which they divide
    log_density: Floats  # (n,)
    terms: Floats | None  # (n, m) of the log-likelihood
    attributes: dict[str, Any]
    rng: np.random.Generator


def _drawn(fit: Fit, draws: int, seed: Any, rng: np.random.Generator) -> _Drawn:
    """Draws of the fit, with the terms of the log-likelihood if it knows them."""
    knows = fit._source is not None and fit._source.terms is not None and not _is_too_large(fit, draws)
    if isinstance(fit.family, Sample):
        return _of_chains(fit, fit.family, draws if knows else None, rng)
    if not knows:
        return _Drawn(u := fit.draw_unconstrained(draws, rng), 1, _log_q(fit, u), None, {}, rng)
    found = evaluated_terms(fit, draws, seed=None if seed is None else as_seed(seed))
    is_good = not found.khat > khat_limit(len(found.terms))
    rows = systematic(rng, found.weights, len(found.terms))
    rows = rng.permutation(rows) if is_good else np.arange(len(found.terms))
    u = found.unconstrained[rows]
    return _Drawn(u, 1, _log_q(fit, u), found.terms[rows], {"importance_resampled": int(is_good)}, rng)


def _of_chains(fit: Fit, sample: Sample, draws: int | None, rng: np.random.Generator) -> _Drawn:
    """All draws of chains or, where the function is called again for its terms, about so many."""
    every = 1 if draws is None else max(1, sample.n_chains * sample.n_steps // draws)
    u = sample.chains(fit.q)[:, ::every].reshape(-1, sample.dim)
    log_joint = sample.log_joint(fit.q)[:, ::every].reshape(-1)
    terms = None
    if draws is not None and fit._source is not None:
        terms, places = terms_at(fit, u, fit._source, fit._source.batch)
        terms = terms if len(places) == len(u) else None  # a function that now fails has no terms
    return _Drawn(u, sample.n_chains, log_joint, terms, {}, rng)


def _log_q(fit: Fit, u: Floats) -> Floats:
    return to_numpy(fit.family.log_prob(fit.q, u)) - to_numpy(fit.model.log_jacobian(u))


def _is_too_large(fit: Fit, draws: int) -> bool:
    """Whether the terms of a ready-made model at all draws would not fit into memory."""
    observed = {} if fit._source is None or fit._source.observed is None else fit._source.observed
    return draws * max((np.size(array) for array in observed.values()), default=0) > _MOST


def _groups(fit: Fit, drawn: _Drawn) -> Groups:
    groups = {
        "posterior": _in_chains(fit.model.by_label(fit.model.constrain(drawn.u)), drawn.chains),
        "sample_stats": _in_chains({"lp": drawn.log_density}, drawn.chains),
    }
    prior = fit.model.sample_prior(drawn.rng, len(drawn.u))
    return groups if prior is None else {**groups, "prior": _in_chains(fit.model.by_label(prior), 1)}


def _labelled(fit: Fit, groups: Groups) -> tuple[Groups, dict[str, list[str]], dict[str, Any]]:
    """The groups with their dimensions and coordinates, in the words of the problem if it has any.

    The priors of such a problem may not be those of its variables, so they are left out.
    """
    describe = getattr(getattr(fit._source, "function", None), "described", None)
    if describe is None:
        return groups, *_axes(fit, groups)
    chains = next(iter(groups["posterior"].values())).shape[0]
    found: Described = describe({k: v.reshape(-1, *v.shape[2:]) for k, v in groups["posterior"].items()})
    own = {"posterior": _in_chains(found.variables, chains), "observed_data": dict(found.observed)}
    return {**{k: v for k, v in groups.items() if k != "prior"}, **own}, dict(found.dims), dict(found.coords)


def _axes(fit: Fit, groups: Groups) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Dimensions of the data, and of parameters whose entries have names."""
    dims: dict[str, list[str]] = {}
    coords: dict[str, Any] = {}
    for group in ("log_likelihood", "observed_data", "posterior_predictive"):
        for name, array in groups.get(group, {}).items():
            if array.ndim == (1 if group == "observed_data" else 3):
                dims[name] = [_AXIS]
    lengths = {array.shape[-1] for group, names in groups.items() for name, array in names.items() if name in dims}
    if len(lengths) > 1:  # arrays of several lengths have axes of their own
        dims = {name: [f"{name}_{_AXIS}"] for name in dims}
    for block in fit.blocks:
        if entries := block.prior.entry_names:
            dims[block.name], coords[f"{block.name}_entry"] = [f"{block.name}_entry"], list(entries)
    return dims, coords


def _plain(given: Any) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        msg = f"`coords` and `dims` must be dicts, got {shown(given)}"
        raise TypeError(msg)
    return dict(given or {})


def _in_chains(values: Any, chains: int, unnamed: str = "theta") -> dict[str, Floats]:
    """Stacked values as (chains, draws, ...), by name."""
    arrays = {name: np.asarray(array) for name, array in items(values, unnamed=unnamed)}
    return {name: array.reshape(chains, -1, *array.shape[1:]) for name, array in arrays.items()}


def _attributes(fit: Fit) -> dict[str, Any]:
    from qbvi._version import __version__

    return {
        "inference_library": "qbvi",
        "inference_library_version": __version__,
        "elbo": fit.elbo,
        "elbo_se": fit.elbo_se,
        "evidence": fit.evidence,
        "evidence_se": fit.evidence_se,
        "missing": fit.missing,
        "missing_se": fit.missing_se,
        "khat": fit.khat,
        "n_evals": fit.n_evals,
        "converged": int(fit.converged),  # netCDF has no booleans
        "stop_reason": fit.stop_reason,
        "sampling_time": fit.seconds,
    }


def _automatic(export: _Export) -> Any:
    return (_inference_data if _has_old_arviz() else _data_tree)(export)


def _inference_data(export: _Export) -> Any:
    if not _has_old_arviz():
        msg = (
            'kind="inferencedata" needs ArviZ before 1.0: pip install "qbvi[arviz]" "arviz<1", or take kind="datatree"'
        )
        raise ImportError(msg)
    with warnings.catch_warnings():
        # ArviZ announces its next generation at every import.
        warnings.simplefilter("ignore", FutureWarning)
        arviz = importlib.import_module("arviz")
    attributes = {"posterior_attrs": export.attributes, "attrs": export.attributes}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "More chains")  # walkers are many, and may be short
        return arviz.from_dict(**export.groups, coords=export.coords, dims=export.dims, **attributes)


def _data_tree(export: _Export) -> Any:
    try:
        arviz_base = importlib.import_module("arviz_base")
    except ImportError as error:
        msg = 'export to ArviZ needs a package that is not installed: pip install "qbvi[arviz]" (or arviz-base alone)'
        raise ImportError(msg) from error
    attributes = {"/": export.attributes, "posterior": export.attributes}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "More chains")
        return arviz_base.from_dict(export.groups, coords=export.coords, dims=export.dims, attrs=attributes)


def _has_old_arviz() -> bool:
    try:
        return importlib.util.find_spec("arviz") is not None and int(version("arviz").split(".")[0]) < 1
    except PackageNotFoundError:
        return False
