"""Starts: where each start of a fit, or each path of its search for modes, has ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.tables import import_pandas

__all__ = ["Start", "Starts"]

Floats = NDArray[np.float64]

_SHOWN = 4  # entries of the mean that are printed


class Start(NamedTuple):
    """Where one start has ended."""

    mode: int  # number of the mode that it ended in; 0 has the highest bound or evidence
    bound: float  # lower bound on the log evidence of that mode
    weight: float  # share of this mode in the posterior; zero if it is left out
    n_evals: int  # evaluations that it took
    converged: bool
    mean: Floats  # (p,) where it ended, on the parameters' own scale


@dataclass(frozen=True, eq=False, repr=False)
class Starts:
    """A table with one `Start` per row.

    Attributes
    ----------
    labels : tuple of str
        Name of every entry of a mean, such as ``beta[0]``.
    rows : tuple of Start
        The starts, in order.

    Examples
    --------
    >>> import numpy as np
    >>> first = Start(0, -21.6, 0.73, 40, True, np.array([-8.0]))
    >>> second = Start(1, -22.6, 0.27, 52, True, np.array([8.0]))
    >>> starts = Starts(("x",), (first, second))
    >>> starts
    mode  bound   weight  evaluations  converged   x
       0  -21.60    0.73           40        yes  -8
       1  -22.60    0.27           52        yes   8
    >>> [start.weight for start in starts]
    [0.73, 0.27]
    """

    labels: tuple[str, ...]
    rows: tuple[Start, ...]

    def __iter__(self) -> Iterator[Start]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Start:
        return self.rows[i]

    @property
    def n_modes(self) -> int:
        """Number of different modes."""
        return len({start.mode for start in self.rows})

    def to_pandas(self) -> Any:
        """The table as a pandas.DataFrame, with one column for each entry of the mean."""
        pd = import_pandas()
        columns = [*Start._fields[:-1], *self.labels]
        return pd.DataFrame([[*start[:-1], *start.mean] for start in self.rows], columns=columns)

    def __repr__(self) -> str:
        more = ["..."] if len(self.labels) > _SHOWN else []
        head = ["mode", "bound", "weight", "evaluations", "converged", *self.labels[:_SHOWN], *more]
        lines = [head, *([*_cells(start), *more] for start in self.rows)]
        widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def _cells(start: Start) -> list[str]:
    weight = f"{start.weight:.2f}" if start.weight == 0 or start.weight >= 0.01 else f"{start.weight:.0e}"
    words = [str(start.mode), f"{start.bound:.2f}", weight, f"{start.n_evals:,}", "yes" if start.converged else "NO"]
    return [*words, *(f"{entry:.4g}" for entry in start.mean[:_SHOWN])]
