"""German credit (paper, tables par_credit and perf_meas)."""

from __future__ import annotations

from qbvi.reproduce import data
from qbvi.reproduce.logistic import LogisticExperiment
from qbvi.reproduce.published import CREDIT
from qbvi.reproduce.report import Report
from qbvi.reproduce.settings import Settings

__all__ = ["run"]


def run(settings: Settings) -> Report:
    """Fit the Credit data by every method."""
    return LogisticExperiment("credit", "German credit", data.credit(settings.data), CREDIT, settings).report()
