"""What the scripts ``from_*.py`` share: counted functions, and a table of one package beside another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import qbvi


@dataclass
class Counted:
    """A function that counts its calls."""

    function: Callable[..., Any]
    calls: int = 0

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        self.calls += 1
        return self.function(*args)


@dataclass
class Row:
    """One line of the table: who, at what cost, with which answer."""

    name: str
    calls: int
    seconds: float
    mean: np.ndarray
    sd: np.ndarray
    evidence: tuple[float, float] | None = None

    @classmethod
    def of(cls, name: str, problem: qbvi.Problem, **options: Any) -> Row:
        """A fit of qbvi."""
        watch = Watch()
        fit = problem.fit(seed=1, **options)
        return cls(name, fit.n_evals, watch.seconds, fit.mean, fit.sd, (fit.evidence, fit.evidence_se))


@dataclass
class Watch:
    """Seconds of this process's own computing since it was made: other processes do not count."""

    start: float = field(default_factory=time.process_time)

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return time.process_time() - self.start


def show(labels: Sequence[str], rows: Sequence[Row]) -> None:
    """Print a table in Markdown."""
    has_evidence = any(row.evidence for row in rows)
    heads = ["", "calls", "CPU seconds", *labels] + ["log evidence"] * has_evidence
    print("| " + " | ".join(heads) + " |")
    print("|" + " --- |" * len(heads))
    for row in rows:
        numbers = [f"{m:.4g} ± {s:.2g}" for m, s in zip(row.mean, row.sd, strict=True)]
        evidence = ["-" if row.evidence is None else "{:.2f} ± {:.2f}".format(*row.evidence)] * has_evidence
        print("| " + " | ".join([row.name, f"{row.calls:,}", f"{row.seconds:.1f}", *numbers, *evidence]) + " |")
    print()
