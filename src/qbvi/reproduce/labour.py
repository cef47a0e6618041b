"""Labour-force participation.

These are the paper's tables par_labour and perf_meas, and its figures Labour_LB_mu and
Labour_marginals.
"""

from __future__ import annotations

from qbvi.reproduce import data
from qbvi.reproduce.logistic import LogisticExperiment
from qbvi.reproduce.published import LABOUR
from qbvi.reproduce.report import Report
from qbvi.reproduce.settings import Settings

__all__ = ["run"]


def run(settings: Settings) -> Report:
    """Fit the Labour data by every method."""
    return LogisticExperiment("labour", "Labour-force participation", data.labour(), LABOUR, settings).report()
