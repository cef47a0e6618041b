"""A fit for ArviZ: InferenceData (ArviZ 0.x) or xarray.DataTree (arviz-base, ArviZ 1 and later)."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import as_generator, whole_number
from qbvi.naming import is_no_text, pick
from qbvi.results import Fit

__all__ = ["Described", "to_arviz"]

Groups = dict[str, Any]


class Described(NamedTuple):
    """Draws as the package shows them that a problem comes from.

    A log-likelihood with a method ``described(values)``, which takes draws stacked along a first
    axis, decides what `to_arviz` exports.
    """

    variables: dict[str, NDArray[Any]]  # draws by name, with quantities derived from them
    coords: dict[str, NDArray[Any]]  # labels along each dimension
    dims: dict[str, list[Any]]  # names of the dimensions of each variable
    observed: dict[str, NDArray[Any]]  # the data


def to_arviz(fit: Fit, kind: str = "auto", draws: int = 1000, seed: int | np.random.Generator | None = None) -> Any:
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

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Groups ``posterior``, ``sample_stats`` and, if the prior can be sampled, ``prior``. In
        ``sample_stats``, ``lp`` is the log density of the approximation at each draw. An unnamed
        parameter has the name ``theta``.

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
    return build(_groups(fit, whole_number("draws", draws), as_generator(seed)), _attributes(fit))


def _groups(fit: Fit, draws: int, rng: np.random.Generator) -> Groups:
    u = fit.draw_unconstrained(draws, rng)
    log_q = fit.family.log_prob(fit.q, u) - fit.model.log_jacobian(u)
    groups: Groups = {
        "posterior": _one_chain(fit, fit.model.constrain(u)),
        "sample_stats": {"lp": np.asarray(log_q)[None]},
    }
    prior = fit.model.sample_prior(rng, draws)
    if prior is not None:
        groups["prior"] = _one_chain(fit, prior)
    describe = getattr(getattr(fit._source, "function", None), "described", None)
    return groups if describe is None else _described(groups, describe)


def _described(groups: Groups, describe: Callable[[Any], Described]) -> Groups:
    """The groups in the words of the problem; its priors may not be those of its variables."""
    found = describe({name: array[0] for name, array in groups["posterior"].items()})
    return {
        "posterior": {name: array[None] for name, array in found.variables.items()},
        "sample_stats": groups["sample_stats"],
        "observed_data": found.observed,
        "labels": {"coords": found.coords, "dims": found.dims},
    }


def _one_chain(fit: Fit, values: Any) -> dict[str, NDArray[np.float64]]:
    return {name: np.asarray(array)[None] for name, array in fit.model.by_label(values).items()}


def _attributes(fit: Fit) -> dict[str, Any]:
    from qbvi._version import __version__

    return {
        "inference_library": "qbvi",
        "inference_library_version": __version__,
        "elbo": fit.elbo,
        "elbo_se": fit.elbo_se,
        "khat": fit.khat,
        "n_evals": fit.n_evals,
        "converged": int(fit.converged),  # netCDF has no booleans
        "stop_reason": fit.stop_reason,
        "sampling_time": fit.seconds,
    }


def _automatic(groups: Groups, attributes: dict[str, Any]) -> Any:
    return (_inference_data if _has_old_arviz() else _data_tree)(groups, attributes)


def _inference_data(groups: Groups, attributes: dict[str, Any]) -> Any:
    if not _has_old_arviz():
        msg = (
            'kind="inferencedata" needs ArviZ before 1.0: pip install "qbvi[arviz]" "arviz<1", or take kind="datatree"'
        )
        raise ImportError(msg)
    with warnings.catch_warnings():
        # ArviZ announces its next generation at every import.
        warnings.simplefilter("ignore", FutureWarning)
        arviz = importlib.import_module("arviz")
    labels = groups.pop("labels", {})
    return arviz.from_dict(**groups, **labels, posterior_attrs=attributes, attrs=attributes)


def _data_tree(groups: Groups, attributes: dict[str, Any]) -> Any:
    try:
        arviz_base = importlib.import_module("arviz_base")
    except ImportError as error:
        msg = 'export to ArviZ needs a package that is not installed: pip install "qbvi[arviz]" (or arviz-base alone)'
        raise ImportError(msg) from error
    labels = groups.pop("labels", {})
    return arviz_base.from_dict(groups, **labels, attrs={"/": attributes, "posterior": attributes})


def _has_old_arviz() -> bool:
    try:
        return importlib.util.find_spec("arviz") is not None and int(version("arviz").split(".")[0]) < 1
    except PackageNotFoundError:
        return False
