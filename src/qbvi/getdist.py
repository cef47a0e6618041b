"""A fit for GetDist: weighted samples with names, LaTeX labels and the bounds of the priors."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import as_generator, whole_number
from qbvi.arrays import to_numpy
from qbvi.naming import nearest
from qbvi.results import Fit
from qbvi.supports import Elementwise, Periodic

__all__ = ["to_getdist"]

Floats = NDArray[np.float64]

_GREEK = frozenset(
    [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "zeta",
        "eta",
        "theta",
        "iota",
        "kappa",
        "lambda",
        "mu",
        "nu",
        "xi",
        "pi",
        "rho",
        "sigma",
        "tau",
        "upsilon",
        "phi",
        "chi",
        "psi",
        "omega",
        "Gamma",
        "Delta",
        "Theta",
        "Lambda",
        "Xi",
        "Pi",
        "Sigma",
        "Upsilon",
        "Phi",
        "Psi",
        "Omega",
    ]
)


def to_getdist(
    fit: Fit,
    draws: int = 10_000,
    seed: int | np.random.Generator | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    label: str | None = None,
) -> Any:
    r"""Export draws to GetDist.

    After `qbvi.Fit.check`, the samples are the draws of the check with their importance weights.
    Otherwise they are ``draws`` independent draws of the posterior as it was fitted, with weights
    of one.

    Parameters
    ----------
    fit : Fit
        The posterior.
    draws : int
        Number of draws, unless the fit has draws with weights.
    seed : int, numpy.random.Generator or None
        Source of the draws.
    labels : dict of str to str, optional
        LaTeX labels by entry, without dollar signs: ``{"beta[0]": r"\beta_{\rm age}"}``. By default
        they follow from the names.
    label : str, optional
        Label of all samples, for legends.

    Returns
    -------
    getdist.MCSamples
        Names are those of the entries in letters that GetDist allows: ``beta[0]`` is ``beta_0``.
        ``loglikes`` are minus the log density of the posterior. ``ranges`` are the ends of the
        supports, so that densities end there.
    """
    try:
        getdist = importlib.import_module("getdist")
    except ImportError as error:
        msg = "`to_getdist` needs the package getdist, which is not installed: pip install 'qbvi[getdist]'"
        raise ImportError(msg) from error
    u, weights = _weighted(fit, whole_number("draws", draws), seed)
    log_q = to_numpy(fit.family.log_prob(fit.q, u)) - to_numpy(fit.model.log_jacobian(u))
    names = _names(fit.labels)
    return getdist.MCSamples(
        samples=to_numpy(fit.model.flatten(fit.model.constrain(u))),
        weights=weights,
        loglikes=-log_q,
        names=names,
        labels=_latex(fit.labels, labels or {}),
        ranges=_ranges(fit, names),
        label=label,
        sampler="uncorrelated",
    )


def _weighted(fit: Fit, draws: int, seed: Any) -> tuple[Floats, Floats]:
    """Unconstrained draws (n, d) and their weights (n,)."""
    if not len(fit.log_ratios[0]):
        return fit.draw_unconstrained(draws, as_generator(seed)), np.ones(draws)
    found = fit.weighted_draws()
    return fit.model.unconstrain(found.draws, batched=True), found.weights / found.weights.max()


def _names(entries: tuple[str, ...]) -> list[str]:
    """Names that GetDist takes: without blanks, and without the signs of its patterns."""
    names: list[str] = []
    for entry in entries:
        plain = re.sub(r"[^\w.]+", "_", entry).strip("_") or "theta"
        same = sum(name == plain or name.startswith(plain + "__") for name in names)
        names.append(f"{plain}__{same + 1}" if plain in names else plain)
    return names


def _latex(entries: tuple[str, ...], given: Mapping[str, str]) -> list[str]:
    unknown = next((name for name in given if name not in entries), None)
    if unknown is not None:
        msg = f"`labels` must have names of entries, got {unknown!r}{nearest(unknown, dict.fromkeys(entries))}"
        raise ValueError(msg)
    return [given.get(entry, _latex_of(entry)) for entry in entries]


def _latex_of(entry: str) -> str:
    r"""A label such as ``\beta_{0}``, or the name in upright letters."""
    name, _, index = entry.removesuffix("]").partition("[")
    words = rf"\{name}" if name in _GREEK else rf"\mathrm{{{re.sub(r'[^A-Za-z0-9.]+', '~', name)}}}"
    return f"{words}_{{{index}}}" if index else words


def _ranges(fit: Fit, names: list[str]) -> dict[str, list[Any]]:
    """The finite ends of the entries' supports, by name; a third entry marks a period."""
    found: dict[str, list[Any]] = {}
    for block in fit.blocks:
        support = block.prior.support
        if not isinstance(support, Elementwise) or support.is_discrete:
            continue
        for name, low, high in zip(names[block.entries], *support.bounds(block.shape), strict=True):
            ends: list[Any] = [float(end) if math.isfinite(end) else None for end in (low, high)]
            if ends != [None, None]:
                found[name] = [*ends, True] if isinstance(support, Periodic) else ends
    return found
