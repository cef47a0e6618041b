"""Summary: the table of a posterior, and the lines of diagnostics above it."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from qbvi.report import Report
from qbvi.tables import html_table, import_pandas

__all__ = ["Row", "Summary", "aligned", "cells_of", "decimals_of", "diagnostic_lines", "largest_error"]

_FINE = 0.01  # standard error, in nats, below which the missing nats have three decimals
_LEAST_ERROR, _MOST_ERROR = 0.01, 0.7  # of a probability: what is worth a word, and a number


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
        return [("", *self._columns()), *((row.parameter, *cells_of(row)) for row in self.rows)]

    def to_pandas(self) -> Any:
        """The table as a pandas.DataFrame, with columns mean, sd, lower, upper."""
        pd = import_pandas()
        return pd.DataFrame(self.rows, columns=list(Row._fields)).set_index("parameter")

    def __repr__(self) -> str:
        head, *body = self.cells()
        table = aligned(body, head)
        notes = [f"Note: {note}" for note in self.notes]
        return "\n".join(part for part in ("\n".join(self.header), "\n".join(table), "\n".join(notes)) if part)

    def _repr_html_(self) -> str:
        above = "<br>".join(html.escape(line) for line in self.header)
        below = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<p>{above}</p>{html_table(self.cells())}{below}"

    def _columns(self) -> tuple[str, ...]:
        ends = (50 * (1 - self.interval), 50 * (1 + self.interval))
        return ("mean", "sd", *(f"{end:.4g} %" for end in ends))


def diagnostic_lines(report: Report) -> list[str]:
    """The diagnostics, a line each; those that are not known are left out."""
    share = len(report.failures) / max(report.n_evals, 1)
    failed = f", {len(report.failures):,} failed ({share:.1%})" if report.failures else ""
    lines = [f"ELBO         {_with_error(report.elbo, report.elbo_se)}"]
    if not math.isnan(report.missing):
        lines += [f"log evidence {_evidence(report)}", f"missing      {_missing(report)}"]
    if not math.isnan(report.khat):
        lines.append(f"k-hat        {report.khat:.2f} ({report.khat_verdict})")
    return [
        *lines,
        f"evaluations  {report.n_evals:,} in {report.n_iterations:,} iterations, {report.seconds:.3g} s{failed}",
        f"converged    {'yes' if report.converged else 'NO'}: {report.stop_reason}",
    ]


def _evidence(report: Report) -> str:
    if not math.isfinite(report.evidence_se):
        return f"about {report.evidence:.1f} or more: the draws do not determine it"
    return _with_error(report.evidence, report.evidence_se)


def _missing(report: Report) -> str:
    """The nats that are missing, and the largest error of a probability that they allow."""
    if not math.isfinite(report.missing_se):
        return f"about {max(report.missing, 0):.2g} nats of the posterior or more: the draws do not determine it"
    decimals = 3 if report.missing_se < _FINE else 2
    nats = f"{max(report.missing, 0):.{decimals}f} ± {report.missing_se:.{decimals}f} nats of the posterior"
    error = largest_error(report.missing, report.missing_se)
    if error >= _MOST_ERROR:
        return f"{nats}: probabilities may be far off"
    return f"{nats}: probabilities are off by at most about {max(error, _LEAST_ERROR):.2f}"


def largest_error(missing: float, missing_se: float) -> float:
    """Largest error of a probability if so many nats are missing.

    By Pinsker's inequality no probability is wrong by more than the root of half the divergence,
    to which one standard error is added here.

    Examples
    --------
    >>> round(largest_error(0.015, 0.005), 3)
    0.1
    """
    return math.sqrt((max(missing, 0) + missing_se) / 2)


def _with_error(value: float, error: float) -> str:
    decimals = min(decimals_of(error, 2), 6)  # an exact fit has no error worth sixteen digits
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def decimals_of(scale: float, digits: int) -> int:
    """Decimals that show ``scale`` to ``digits`` significant digits."""
    if not (math.isfinite(scale) and scale > 0):
        return 3
    return max(0, digits - 1 - math.floor(math.log10(scale)))


def cells_of(row: Row) -> tuple[str, ...]:
    """Numbers of a row, to three significant digits of its standard deviation."""
    decimals = decimals_of(row.sd, 3)
    largest = max(abs(number) for number in row[1:])
    if decimals > 6 or largest >= 1e7:
        return tuple(f"{number:.4g}" for number in row[1:])
    return tuple(f"{number:.{decimals}f}" for number in row[1:])


def aligned(rows: Sequence[tuple[str, ...]], head: tuple[str, ...]) -> list[str]:
    """Align cells in columns: the first to the left, numbers at their decimal points."""
    names, *numbers = zip(*rows, strict=True)
    columns = [[head[0], *names], *([title, *_on_point(cells)] for title, cells in zip(head[1:], numbers, strict=True))]
    widths = [max(len(cell) for cell in column) for column in columns]
    lines = [zip(line, widths, strict=True) for line in zip(*columns, strict=True)]
    return ["  ".join(c.rjust(w) if j else c.ljust(w) for j, (c, w) in enumerate(line)).rstrip() for line in lines]


def _on_point(cells: Sequence[str]) -> list[str]:
    tails = [len(cell) - cell.find(".") if "." in cell else 0 for cell in cells]
    return [cell + " " * (max(tails) - tail) for cell, tail in zip(cells, tails, strict=True)]
