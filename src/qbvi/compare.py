"""Compare models of the same data: by their evidence, and by leave-one-out."""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from qbvi.arguments import shown
from qbvi.distributions import Flat
from qbvi.loo import Loo, loo
from qbvi.results import Fit
from qbvi.summary import aligned
from qbvi.tables import html_table, import_pandas

__all__ = ["Compared", "Comparison", "compare"]


class Compared(NamedTuple):
    """One model of a comparison; differences are to the best one, which has zeros."""

    model: str
    evidence: float
    evidence_se: float
    evidence_difference: float
    evidence_difference_se: float
    elpd: float
    elpd_se: float
    elpd_difference: float
    elpd_difference_se: float
    p_loo: float


@dataclass(frozen=True, repr=False)
class Comparison:
    """A table of models, best first: by leave-one-out if all have it, else by their evidence.

    Attributes
    ----------
    rows : tuple of Compared
    notes : tuple of str
        What to keep in mind, in plain sentences.
    """

    rows: tuple[Compared, ...]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, model: int | str) -> Compared:
        if isinstance(model, int):
            return self.rows[model]
        found = next((row for row in self.rows if row.model == model), None)
        if found is None:
            msg = f"no model is called {model!r}; there are {', '.join(row.model for row in self.rows)}"
            raise KeyError(msg)
        return found

    def to_pandas(self) -> Any:
        """The table as a pandas.DataFrame."""
        pd = import_pandas()
        return pd.DataFrame(self.rows, columns=list(Compared._fields)).set_index("model")

    def __repr__(self) -> str:
        head, *body = self.cells()
        return "\n".join([*aligned(body, head), *(f"Note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        return html_table(self.cells()) + "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)

    def cells(self) -> list[tuple[str, ...]]:
        """The table as text, header first."""
        head: tuple[str, ...] = ("", "log evidence", "difference")
        lines: list[tuple[str, ...]] = [
            (
                row.model,
                _with_error(row.evidence, row.evidence_se),
                _with_error(row.evidence_difference, row.evidence_difference_se),
            )
            for row in self.rows
        ]
        if not all(math.isnan(row.elpd) for row in self.rows):
            head = (*head, "LOO", "difference", "p_loo")
            lines = [
                (
                    *line,
                    _with_error(row.elpd, row.elpd_se),
                    _with_error(row.elpd_difference, row.elpd_difference_se),
                    "" if math.isnan(row.p_loo) else f"{row.p_loo:.1f}",
                )
                for line, row in zip(lines, self.rows, strict=True)
            ]
        return [head, *lines]


def compare(fits: Mapping[str, Any], n: int = 1000, seed: int | None = None) -> Comparison:
    """Compare models of the same data.

    The evidence is the probability of the data before they were seen, so it depends on the prior.
    Leave-one-out (LOO) is the log density of each observation given all others, so it depends on
    the prior only as far as the posterior does.

    Parameters
    ----------
    fits : mapping of str to Fit
        Fits by name. A `qbvi.Loo` stands for a fit of which only that is known.
    n : int
        Draws for leave-one-out, and so evaluations of each function; see `qbvi.Fit.loo`.
    seed : int, optional
        Source of the draws; by default the seeds of the fits.

    Returns
    -------
    Comparison
        Evidence and LOO of each model, and differences to the best one, with standard errors.
        Errors of evidences are those of their computation. Errors of LOO and of its differences
        are those of predictions for new data: with few observations, they are large.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> y = 1 + np.random.default_rng(1).standard_normal(100)
    >>> free = lambda m: -0.5 * (y - m) ** 2
    >>> zero = lambda m: -0.5 * (y - 0.01 * m) ** 2
    >>> prior = qbvi.Normal(0, 3)
    >>> a = qbvi.fit(zero, prior, pointwise=True, seed=1)
    >>> b = qbvi.fit(free, prior, pointwise=True, seed=1)
    >>> [row.model for row in qbvi.compare({"zero": a, "free": b})]
    ['free', 'zero']
    """
    _check(fits)
    known = {name: _loo(fit, n, seed) for name, fit in fits.items()}
    notes = _notes(fits, known)
    if len({len(one) for one in known.values() if one is not None}) > 1:
        known = dict.fromkeys(known)  # sums of different numbers of terms cannot be compared
    has_loo = all(one is not None for one in known.values())
    evidences = {name: _evidence(fit) for name, fit in fits.items()}
    rank = {name: one.elpd if has_loo and one is not None else evidences[name][0] for name, one in known.items()}
    # A model without the number that decides comes last.
    order = sorted(fits, key=lambda name: (math.isnan(rank[name]), -rank[name]))
    rows = tuple(_row(name, order[0], evidences, known) for name in order)
    return Comparison(rows, notes)


def _check(fits: Any) -> None:
    if not isinstance(fits, Mapping) or len(fits) < 2:
        msg = f'`fits` must be a dict of two fits or more, such as {{"a": fit_a, "b": fit_b}}, got {shown(fits)}'
        raise TypeError(msg)
    for name, fit in fits.items():
        if not isinstance(fit, Fit | Loo):
            msg = f"`fits` must hold fits, got {shown(fit)} for {name!r}"
            raise TypeError(msg)


def _loo(fit: Fit | Loo, n: int, seed: int | None) -> Loo | None:
    if isinstance(fit, Loo):
        return fit
    return loo(fit, n, seed=seed) if fit._source is not None and fit._source.terms is not None else None


def _evidence(fit: Fit | Loo) -> tuple[float, float]:
    return (fit.evidence, fit.evidence_se) if isinstance(fit, Fit) else (math.nan, math.nan)


def _row(
    name: str, best: str, evidences: Mapping[str, tuple[float, float]], known: Mapping[str, Loo | None]
) -> Compared:
    (evidence, se), (other, other_se) = evidences[name], evidences[best]
    # The fits have draws of their own, so their errors are independent.
    difference_se = 0.0 if name == best else math.hypot(se, other_se)
    return Compared(name, evidence, se, evidence - other, difference_se, *_loo_parts(known[name], known[best]))


def _loo_parts(one: Loo | None, best: Loo | None) -> tuple[float, float, float, float, float]:
    """LOO, its difference to the best one, their errors, and the number of parameters."""
    if one is None or best is None:
        return (math.nan,) * 5 if one is None else (one.elpd, one.se, math.nan, math.nan, one.p_loo)
    if one is best:
        return one.elpd, one.se, 0.0, 0.0, one.p_loo
    # Most of the variation of the terms is common to both models, so pairs count. The draws of
    # both fits add their own error.
    gap = one.pointwise - best.pointwise
    paired = math.sqrt(len(one) * float(gap.var(ddof=1))) if len(one) > 1 else math.nan
    return one.elpd, one.se, float(gap.sum()), math.hypot(paired, one.mcse, best.mcse), one.p_loo


def _notes(fits: Mapping[str, Any], known: Mapping[str, Loo | None]) -> tuple[str, ...]:
    notes = []
    sizes = {name: len(one) for name, one in known.items() if one is not None}
    if len(set(sizes.values())) > 1:
        msg = "the models have different numbers of observations: " + ", ".join(f"{k} {v}" for k, v in sizes.items())
        warnings.warn(f"{msg}; neither evidence nor leave-one-out can be compared", UserWarning, stacklevel=3)
        notes.append(f"{msg}; nothing here can be compared")
    without = [name for name, one in known.items() if one is None]
    if without and len(without) < len(known):
        notes.append(f"{', '.join(without)}: no leave-one-out; fit with pointwise=True")
    notes += [
        f"{name}: k-hat is above {one.khat_limit:.2g} for {one.n_bad} of {len(one)} observations, so LOO is not reliable"
        for name, one in known.items()
        if one is not None and one.n_bad
    ]
    for name, fit in fits.items():
        if isinstance(fit, Fit) and not math.isfinite(fit.evidence_se):
            notes.append(f"{name}: its draws do not determine the evidence; see fit.check")
        if isinstance(fit, Fit) and any(isinstance(block.prior, Flat) for block in fit.blocks):
            notes.append(f"{name}: its prior is flat; its evidence means nothing unless the function is a log-joint")
    return tuple(notes)


def _with_error(value: float, error: float) -> str:
    if math.isnan(value):
        return ""
    if not math.isfinite(error):
        return f"{value:.2f} ± ?"
    decimals = min(max(1, 1 - math.floor(math.log10(error))), 4) if error > 0 else 2
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"
