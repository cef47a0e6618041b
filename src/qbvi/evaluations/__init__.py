"""Every point that a fit has evaluated, as a table that a later fit can start from."""

from qbvi.evaluations.record import Record, Recorded
from qbvi.evaluations.table import STAGES, Evaluations

__all__ = ["STAGES", "Evaluations", "Record", "Recorded"]
