"""Posteriors of any shape: a surrogate of the log joint, and rounds of points that teach it."""

from qbvi.free.density import FreeDensity
from qbvi.free.method import Free
from qbvi.free.rules import FreeRules

__all__ = ["Free", "FreeDensity", "FreeRules"]
