"""Read a prior and fit options from TOML: one table per parameter, and one called ``fit``."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from qbvi.distributions import DISTRIBUTIONS
from qbvi.naming import nearest
from qbvi.supports import SUPPORTS, Support, support_from_spec

__all__ = ["PriorFile", "PriorFileError", "read_prior"]

_NEED_CODE = ("LogPrior", "Transformed", "SciPyPrior")
_KINDS = {name: kind for name, kind in DISTRIBUTIONS.items() if name not in _NEED_CODE}


class PriorFileError(ValueError):
    """A prior file is invalid."""


class PriorFile(NamedTuple):
    """The contents of a prior file."""

    prior: dict[str, Any]  # distributions by name; nested dicts for tables of tables
    options: dict[str, Any]  # the table ``fit``


def read_prior(path: str | Path, known: tuple[str, ...]) -> PriorFile:
    r"""Read a prior file.

    Parameters
    ----------
    path
        The file: tables such as ``[beta]`` with ``distribution = "Normal"``, ``loc = 0``,
        ``scale = 5``, ``shape = [4]``. Tables of tables, such as ``[disc.radius]``, give nested
        parameters.
    known
        Options that the table ``[fit]`` may have.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
    ...     _ = file.write('[tau]\ndistribution = "Gamma"\nalpha = 2\nbeta = 1\n[fit]\nseed = 1\n')
    ...     file.flush()
    ...     read_prior(file.name, known=("seed",))
    PriorFile(prior={'tau': Gamma(alpha=2.0, beta=1.0)}, options={'seed': 1})
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        msg = f"{str(path)!r} cannot be read as TOML: {error}"
        raise PriorFileError(msg) from error
    options = tables.pop("fit", {})
    unknown = [name for name in options if name not in known]
    if unknown:
        msg = f"[fit] of {str(path)!r} may have {', '.join(known)}; got {unknown[0]!r}{nearest(unknown[0], dict.fromkeys(known))}"
        raise PriorFileError(msg)
    if not tables:
        msg = (
            f'{str(path)!r} must have a table for each parameter, such as [beta] with distribution = "Normal"; got none'
        )
        raise PriorFileError(msg)
    return PriorFile({name: _distribution(name, table) for name, table in tables.items()}, options)


def _distribution(name: str, table: Any) -> Any:
    """The distribution that a table describes; for a table of tables, a dict of them."""
    if not isinstance(table, Mapping) or "distribution" not in table:
        if _has_only_tables(table):
            return {inner: _distribution(f"{name}.{inner}", below) for inner, below in table.items()}
        meant = "".join(nearest(key, {"distribution": None}) for key in table) if isinstance(table, Mapping) else ""
        msg = f'[{name}] must be a table with a distribution, such as distribution = "Normal"; got {table!r}{meant}'
        raise PriorFileError(msg)
    kind, arguments = table["distribution"], {key: value for key, value in table.items() if key != "distribution"}
    if kind not in _KINDS:
        msg = f"distribution of [{name}] must be one of {', '.join(_KINDS)}; got {kind!r}{nearest(str(kind), _KINDS)}"
        raise PriorFileError(msg)
    _check_keys(name, kind, arguments)
    if "shape" in arguments:
        arguments["shape"] = tuple(arguments["shape"]) if isinstance(arguments["shape"], list) else arguments["shape"]
    try:
        if "support" in arguments:
            arguments["support"] = _support(arguments["support"])
        return _KINDS[kind](**arguments)
    except (TypeError, ValueError, KeyError) as error:
        msg = f"[{name}] does not describe a {kind}: {error}"
        raise PriorFileError(msg) from error


def _has_only_tables(table: Any) -> bool:
    return isinstance(table, Mapping) and len(table) > 0 and all(isinstance(one, Mapping) for one in table.values())


def _check_keys(name: str, kind: str, arguments: Mapping[str, Any]) -> None:
    """Refuse keys that the distribution does not have, and name those that it has."""
    known = inspect.signature(_KINDS[kind]).parameters
    needed = [key for key, parameter in known.items() if parameter.default is parameter.empty]
    keys = ", ".join(key if key in needed else f"{key} (optional)" for key in known)
    unknown = next((key for key in arguments if key not in known), None)
    if unknown is not None:
        msg = f"[{name}] has the key {unknown!r}, which {kind} does not have; its keys are {keys}{nearest(unknown, known)}"
        raise PriorFileError(msg)
    missing = [key for key in needed if key not in arguments]
    if missing:
        msg = f"[{name}] must have the key {missing[0]!r}; the keys of {kind} are {keys}"
        raise PriorFileError(msg)


def _support(words: Any) -> Support:
    """A support by name, or as a table such as ``{kind = "Interval", low = 0, high = 1}``."""
    spec = {"kind": words} if isinstance(words, str) else dict(words)
    if spec.get("kind") not in SUPPORTS:
        msg = f"`support` must be one of {', '.join(SUPPORTS)}, got {spec.get('kind')!r}"
        raise ValueError(msg)
    return support_from_spec(spec)
