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
from qbvi.diagnostics import khat_limit
from qbvi.evaluate.push import Push, pushed
from qbvi.loo import evaluated_terms
from qbvi.naming import is_no_text, pick
from qbvi.points import items
from qbvi.results import Fit

__all__ = ["to_arviz"]

Groups = dict[str, dict[str, NDArray[np.float64]]]

_OBSERVED = "y"  # name of data that have none
_AXIS = "observation"
_MOST = 2**27  # numbers of one group for a ready-made model, 1 GB; more rows are left out


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
        Number of draws; they are independent and form one chain.
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
          approximation at each draw. An unnamed parameter has the name ``theta``.
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
    draws, rng = whole_number("draws", draws), as_generator(seed)
    u, terms, attributes = _draws(fit, draws, seed, rng)
    groups = _groups(fit, u, draws, rng)
    source = fit._source
    if predictive is None and source is not None and source.simulate is not None and not _is_too_large(fit, draws):
        predictive, vectorized, observed = source.simulate, True, source.observed if observed is None else observed
    if predictive is not None:
        push = Push(predictive, vectorized=vectorized, seed=as_seed(rng), name="predictive")
        groups["posterior_predictive"] = _one_chain(pushed(push, fit.model.constrain(u))[0], _OBSERVED)
    if observed is not None:
        groups["observed_data"] = {k: array_of("observed", v) for k, v in items(observed, unnamed=_OBSERVED)}
    if terms is not None:
        name = next(iter(groups.get("observed_data", {_OBSERVED: None})))
        groups["log_likelihood"] = {name: terms[None]}
    own_dims, own_coords = _axes(fit, groups)
    return build(_Export(groups, own_dims | _plain(dims), own_coords | _plain(coords), _attributes(fit) | attributes))


def _draws(
    fit: Fit, draws: int, seed: Any, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None, dict[str, Any]]:
    """Draws (n, d), and the terms of the log-likelihood there (n, m) if the fit knows them."""
    if fit._source is None or fit._source.terms is None or _is_too_large(fit, draws):
        return fit.draw_unconstrained(draws, rng), None, {}
    found = evaluated_terms(fit, draws, seed=None if seed is None else as_seed(seed))
    is_good = not found.khat > khat_limit(len(found.terms))
    # Systematic resampling: each draw as often as its weight says, up to one more or less.
    at = (rng.random() + np.arange(len(found.terms))) / len(found.terms)
    rows = np.minimum(np.searchsorted(np.cumsum(found.weights), at), len(found.terms) - 1)
    rows = rng.permutation(rows) if is_good else np.arange(len(found.terms))
    return found.unconstrained[rows], found.terms[rows], {"importance_resampled": int(is_good)}


def _is_too_large(fit: Fit, draws: int) -> bool:
    """Whether the terms of a ready-made model at all draws would not fit into memory."""
    observed = {} if fit._source is None or fit._source.observed is None else fit._source.observed
    return draws * max((np.size(array) for array in observed.values()), default=0) > _MOST


def _groups(fit: Fit, u: NDArray[np.float64], draws: int, rng: np.random.Generator) -> Groups:
    log_q = fit.family.log_prob(fit.q, u) - fit.model.log_jacobian(u)
    groups = {"posterior": _one_chain(fit.model.constrain(u)), "sample_stats": {"lp": np.asarray(log_q)[None]}}
    prior = fit.model.sample_prior(rng, draws)
    return groups if prior is None else {**groups, "prior": _one_chain(prior)}


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


def _one_chain(values: Any, unnamed: str = "theta") -> dict[str, NDArray[np.float64]]:
    return {name: np.asarray(array)[None] for name, array in items(values, unnamed=unnamed)}


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
    return arviz.from_dict(**export.groups, coords=export.coords, dims=export.dims, **attributes)


def _data_tree(export: _Export) -> Any:
    try:
        arviz_base = importlib.import_module("arviz_base")
    except ImportError as error:
        msg = 'export to ArviZ needs a package that is not installed: pip install "qbvi[arviz]" (or arviz-base alone)'
        raise ImportError(msg) from error
    attributes = {"/": export.attributes, "posterior": export.attributes}
    return arviz_base.from_dict(export.groups, coords=export.coords, dims=export.dims, attrs=attributes)


def _has_old_arviz() -> bool:
    try:
        return importlib.util.find_spec("arviz") is not None and int(version("arviz").split(".")[0]) < 1
    except PackageNotFoundError:
        return False
