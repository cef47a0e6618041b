"""Save and load a fit: arrays and one JSON header in one ``.npz``; no code is stored or run."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from qbvi import archive
from qbvi.archive import Arrays, PathLike
from qbvi.arguments import a_path
from qbvi.arrays import to_numpy
from qbvi.ending import StopKind
from qbvi.evaluate.failures import Failure
from qbvi.evaluations import STAGES, Evaluations
from qbvi.families import LAWS, DiagonalGaussian, Family, Gaussian, LowRankGaussian, Mixture, Product, Sample, product
from qbvi.families.base import Density
from qbvi.free.cells import Cells
from qbvi.free.density import FreeDensity
from qbvi.free.rules import Caution, Integration
from qbvi.free.symmetry import Symmetry
from qbvi.model import Model
from qbvi.paths import Start
from qbvi.points import mapped, row
from qbvi.problem import Problem
from qbvi.report import Report, Trace
from qbvi.results import Fit
from qbvi.supports import UserDefinedError, WholeNumbers, support_from_spec

__all__ = ["load", "read_facts", "save"]

_KINDS: dict[str, Any] = {
    "Gaussian": Gaussian,
    "DiagonalGaussian": DiagonalGaussian,
    "LowRankGaussian": LowRankGaussian,
    "Sample": Sample,
    **LAWS,
}
SCHEMA = 1
_FORMAT = "qbvi-fit"
_FACTS = "facts"  # in the header: what the commands store with a fit
_NUMBERS = (
    "elbo",
    "elbo_se",
    "khat",
    "seconds",
    "evidence",
    "evidence_se",
    "missing",
    "missing_se",
)  # an array, as JSON has no NaN or infinity
_SIZES = (
    "dim",
    "rank",
    "copies",
    "k",
    "p",
    "n_points",
    "n_components",
    "n_centres",
    "n_chains",
    "n_steps",
)  # of families; none is more than the numbers of a member
_FIRST_NUMBERS = 4  # of them in files of older versions
_FAILURE_WORDS = ("kind", "message", "traceback", "worker", "types")
# Fields of a report in the header, each with the types that a file may hold for it.
_WORDS: dict[str, tuple[type, ...]] = {
    "converged": (bool,),
    "stop_reason": (str,),
    "n_evals": (int,),
    "n_iterations": (int,),
    "seed": (int, type(None)),
    "method": (str,),
    "notes": (list,),
    "khat_draws": (int, type(None)),
    "backend": (str,),
    "stop_kind": (str,),
}
_COUNTS = ("n_evals", "n_iterations", "khat_draws")
# Evaluations of more numbers (points times dimensions) are not saved with a fit: 8 MiB.
_MOST_NUMBERS = 2**20
_COLUMNS = ("unconstrained", "values", "noise_sd", "log_prior", "batch")


def save(fit: Fit, path: PathLike, facts: Mapping[str, Any] | None = None) -> None:
    """Write a fit to one file, as a whole or not at all.

    Parameters
    ----------
    fit : Fit
        The fit. Its evaluations are written too, if they are at most 2^20 numbers (points times
        dimensions); otherwise a note in the file says so, and ``fit.evaluations.save(...)`` writes
        them to a file of their own. User-defined functions (in a `LogPrior` or a `Bijection`) are
        not written; see `load`.
    path : str or path
        Name of the file, used as given.
    facts : dict, optional
        Further data to store, as JSON; see `read_facts`.

    Examples
    --------
    >>> import tempfile, qbvi
    >>> fit = qbvi.fit(lambda theta: -float(theta**2), qbvi.Normal(0, 1), seed=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(fit, f"{folder}/answer.qbvi")
    ...     load(f"{folder}/answer.qbvi").elbo == fit.elbo
    True
    """
    archive.write(a_path("path", path), _header(fit) | ({} if facts is None else {_FACTS: dict(facts)}), _arrays(fit))


def load(path: PathLike, prior: Any = None) -> Fit:
    """Read a fit that `save` wrote.

    Parameters
    ----------
    path : str or path
        The file.
    prior : distribution, dict or list of distributions, or Problem, optional
        The prior as given to `fit`, the `qbvi.Problem` that was fitted, or the part of the prior
        that contains user-defined functions. It is required if the map of a parameter is a
        function. If only a prior density is a function, it is needed only to evaluate that density.

    Returns
    -------
    Fit
        Equal to the saved fit, bit for bit.
    """
    header, arrays = _read(a_path("path", path))
    try:
        return _rebuilt(header, arrays, prior)
    except UserDefinedError:
        raise
    # The contents of a stranger's file can raise any error in the classes that it describes.
    except Exception as error:
        if prior is not None and isinstance(error, TypeError | ValueError):
            raise
        msg = f"{os.fspath(path)!r} is a qbvi file, but its contents do not fit together: {error}; it may be damaged"
        raise ValueError(msg) from error


def read_facts(path: PathLike) -> dict[str, Any]:
    """Read the data that was saved with a fit; empty if there was none.

    Examples
    --------
    >>> import tempfile, qbvi
    >>> fit = qbvi.fit(lambda theta: -float(theta**2), qbvi.Normal(0, 1), seed=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(fit, f"{folder}/answer.qbvi", facts={"rows": 12})
    ...     read_facts(f"{folder}/answer.qbvi")
    {'rows': 12}
    """
    facts = _read(path)[0].get(_FACTS, {})
    if type(facts) is not dict:
        msg = f"{os.fspath(path)!r} is a qbvi file, but its facts are {type(facts).__name__}; it may be damaged"
        raise ValueError(msg)
    return facts


def _header(fit: Fit) -> dict[str, Any]:
    from qbvi._version import __version__

    report = {name: getattr(fit.record, name) for name in _WORDS}
    return {
        "format": _FORMAT,
        "schema": SCHEMA,
        "written_by": __version__,
        "model": fit.model.to_spec(),
        "family": _family_spec(fit.family),
        "report": report
        | {"notes": [*fit.notes, *_left_out(fit)], "converged": bool(fit.converged), "stop_kind": fit.stop_kind.value},
        "failures": [{name: getattr(f, name) for name in _FAILURE_WORDS} for f in fit.failures],
    }


def _arrays(fit: Fit) -> Arrays:
    where = [fit.model.flatten(mapped(_with_leading_axis, failure.parameters)) for failure in fit.failures]
    return {
        "q": fit.q,
        "numbers": np.array([getattr(fit.record, name) for name in _NUMBERS]),
        "failure_parameters": np.concatenate([np.empty((0, len(fit.labels))), *where]),
        "failure_seconds": np.array([failure.seconds for failure in fit.failures], dtype=np.float64),
        **{f"trace_{name}": fit.trace[name] for name in Trace.names()},
        **_evaluation_arrays(fit),
        **_start_arrays(fit),
    }


def _start_arrays(fit: Fit) -> Arrays:
    starts = fit.record.starts
    if not starts:
        return {}
    return {
        "starts_mean": np.stack([start.mean for start in starts]),
        "starts_numbers": np.array([start[:-1] for start in starts], dtype=np.float64),
    }


def _starts(arrays: Arrays) -> tuple[Start, ...]:
    if "starts_numbers" not in arrays:
        return ()
    rows = zip(arrays["starts_numbers"].tolist(), arrays["starts_mean"], strict=True)
    return tuple(
        Start(int(mode), bound, weight, int(n_evals), bool(converged), mean)
        for (mode, bound, weight, n_evals, converged), mean in rows
    )


def _left_out(fit: Fit) -> list[str]:
    """A note for the file if the evaluations are too many to be saved."""
    table = fit.evaluations
    if table is None or table.unconstrained is None or table.unconstrained.size <= _MOST_NUMBERS:
        return []
    return [f"the {len(table):,} evaluations were not saved with the fit; fit.evaluations.save writes them"]


def _evaluation_arrays(fit: Fit) -> Arrays:
    table = fit.evaluations
    if table is None or table.unconstrained is None or _left_out(fit):
        return {}
    columns = {f"evaluations_{name}": getattr(table, name) for name in _COLUMNS}
    return columns | {"evaluations_stage": np.array([STAGES.index(s) for s in table.stage], dtype=np.int8)}


def _evaluations(arrays: Arrays, model: Model) -> Evaluations | None:
    if "evaluations_stage" not in arrays:
        return None
    columns: dict[str, Any] = {name: arrays[f"evaluations_{name}"] for name in _COLUMNS}
    points = to_numpy(model.flatten(model.constrain(columns["unconstrained"])))
    stage = np.array(STAGES)[arrays["evaluations_stage"]]
    return Evaluations(tuple(model.labels), points, stage=stage, **columns)


def _read(path: PathLike) -> tuple[dict[str, Any], Arrays]:
    try:
        header, arrays = archive.read(path)
    except archive.ForeignFileError as error:
        raise ValueError(_not_ours(path)) from error
    if header.get("format") != _FORMAT:
        raise ValueError(_not_ours(path))
    if header.get("schema") != SCHEMA:
        msg = (
            f"{os.fspath(path)!r} has schema {header.get('schema')}, written by qbvi {header.get('written_by')}; "
            f"this version reads schema {SCHEMA}: update qbvi"
        )
        raise ValueError(msg)
    return header, arrays


def _rebuilt(header: Mapping[str, Any], arrays: Arrays, prior: Any) -> Fit:
    _check_sizes(header, arrays)
    model = Model.from_spec(header["model"], priors=prior.prior if isinstance(prior, Problem) else prior)
    trace = Trace(**{name: arrays[f"trace_{name}"] for name in Trace.names()})
    words = _checked_words(header["report"])
    # Files of older versions have the first of these numbers only.
    if arrays["numbers"].shape not in ((_FIRST_NUMBERS,), (len(_NUMBERS),)):
        msg = f"`numbers` must be {len(_NUMBERS)} numbers, got shape {arrays['numbers'].shape}"
        raise ValueError(msg)
    numbers = dict(zip(_NUMBERS, arrays["numbers"].tolist(), strict=False))
    negative = [name for name, value in numbers.items() if name.endswith("_se") and value < 0]
    if negative:
        msg = f"{negative[0]} of its report is {numbers[negative[0]]:g}, and a standard error is not negative"
        raise ValueError(msg)
    failures, evaluations = _failures(header["failures"], arrays, model), _evaluations(arrays, model)
    starts = _starts(arrays)
    report = Report(**words, **numbers, trace=trace, failures=failures, evaluations=evaluations, starts=starts)
    family = _family_from_spec(header["family"])
    return _kind_of(family)(model, family, arrays["q"], report)


def _kind_of(family: Density) -> type[Fit]:
    """What holds a posterior of this family."""
    if not isinstance(family, Sample):
        return Fit
    from qbvi.mcmc import MCMC

    return MCMC


def _check_sizes(header: Mapping[str, Any], arrays: Arrays) -> None:
    """Refuse sizes that the arrays do not have, before anything of that size is built."""
    for name, array in arrays.items():
        if array.dtype.kind not in "fiu":
            msg = f"{name} holds {array.dtype}, not numbers"
            raise TypeError(msg)
    entries, stored = arrays["failure_parameters"].shape[1], arrays["q"].size
    shapes = [math.prod(shape) for shape in _declared(header["model"], "shape")]
    tops = [math.prod(p["prior"].get("shape", ())) for p in header["model"]["parameters"]]
    if sum(tops) > entries or max(shapes, default=0) > max(entries, stored):
        msg = f"its priors declare {max(sum(tops), max(shapes)):,} values, its arrays have {entries:,}"
        raise ValueError(msg)
    sizes = [n for part in _SIZES for n in _declared(header["family"], part)]
    if any(type(n) is not int or not 0 < n <= stored for n in sizes):
        msg = f"its family declares the sizes {sizes}, its posterior has {stored:,} numbers"
        raise ValueError(msg)


def _declared(tree: Any, name: str) -> Iterator[Any]:
    """All values under a name, anywhere in a tree of dicts and lists."""
    if isinstance(tree, dict) and name in tree:
        yield tree[name]
    for part in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _declared(part, name)


def _checked_words(said: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a report, each of its type."""
    # Files of before there were kinds have the sentence alone.
    unknown = StopKind.OWN_RULE if said["converged"] is True else StopKind.GAVE_UP
    words = {"stop_kind": unknown.value, **said}
    for name, kinds in _WORDS.items():
        if type(words[name]) not in kinds:
            msg = f"{name} of its report is {words[name]!r}"
            raise TypeError(msg)
        if name in _COUNTS and words[name] is not None and words[name] < 0:
            msg = f"{name} of its report is {words[name]}, and counts are not negative"
            raise ValueError(msg)
    if not all(type(note) is str for note in words["notes"]):
        msg = f"notes of its report are {words['notes']!r}"
        raise TypeError(msg)
    return words | {"notes": tuple(words["notes"]), "stop_kind": StopKind.named(words["stop_kind"])}


def _failures(words: list[dict[str, Any]], arrays: Arrays, model: Model) -> tuple[Failure, ...]:
    where, seconds = model.unflatten(arrays["failure_parameters"]), arrays["failure_seconds"].tolist()
    words = [said | {"types": tuple(said.get("types", ()))} for said in words]  # JSON knows lists only
    for said in words:
        texts = [*(text for name, text in said.items() if name != "types"), *said["types"]]
        if not all(type(text) is str for text in texts):
            msg = f"a failure is described by {said!r}"
            raise TypeError(msg)
    points = [row(where, i) for i in range(len(seconds))]
    return tuple(Failure(point, **said, seconds=took) for point, said, took in zip(points, words, seconds, strict=True))


def _family_spec(family: Density) -> dict[str, Any]:
    if isinstance(family, Product):
        factors = [_family_spec(factor) for factor in family.factors]
        return {"kind": "Product", "factors": factors, "columns": [list(columns) for columns in family.columns]}
    if isinstance(family, Mixture):
        return {"kind": "Mixture", "components": [_family_spec(component) for component in family.components]}
    if isinstance(family, FreeDensity):
        cells = [[column, support.to_spec()] for column, support in family.cells]
        return {"kind": "FreeDensity", **asdict(family), "cells": cells}
    if type(family) in _KINDS.values():
        return {"kind": type(family).__name__, **{part.name: getattr(family, part.name) for part in fields(family)}}  # type: ignore[arg-type]
    msg = f"`fit` must have one of the families {', '.join(_KINDS)}, or a product or mixture of them, to be saved, got {type(family).__name__}"
    raise TypeError(msg)


def _family_from_spec(spec: Mapping[str, Any]) -> Any:
    if spec["kind"] == "FreeDensity":
        rules = {
            "caution": Caution(**spec["caution"]),
            "integration": Integration(**spec["integration"]),
            "cells": _cells(spec.get("cells", [])),
            "jumping": tuple(int(column) for column in spec.get("jumping", [])),
            "symmetries": tuple(Symmetry.from_spec(symmetry) for symmetry in spec.get("symmetries", [])),
        }
        return FreeDensity(**{name: value for name, value in spec.items() if name != "kind"} | rules)
    if spec["kind"] == "Mixture":
        return Mixture(tuple(_family_from_spec(component) for component in spec["components"]))
    if spec["kind"] == "Product":
        columns = tuple(tuple(part) for part in spec["columns"])
        return product(tuple(_family_from_spec(factor) for factor in spec["factors"]), columns)
    family: Family = _KINDS[spec["kind"]](**{name: value for name, value in spec.items() if name != "kind"})
    return family


def _cells(spec: list[Any]) -> Cells:
    supports = [support_from_spec(support) for _, support in spec]
    wholes = tuple(support for support in supports if isinstance(support, WholeNumbers))
    if len(wholes) != len(supports):
        msg = f"cells of its posterior are of {supports!r}"
        raise TypeError(msg)
    return Cells(tuple(int(column) for column, _ in spec), wholes)


def _with_leading_axis(array: Any) -> Any:
    return np.asarray(array, dtype=np.float64)[None]


def _not_ours(path: PathLike) -> str:
    return f"{os.fspath(path)!r} is not a file written by qbvi.save; give the path of one"
