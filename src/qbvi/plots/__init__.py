"""The plots of a fit: the bound over evaluations, marginals, pairs, intervals, and predictions.

Figures do not use pyplot, so none accumulates and no window opens. Notebooks display them, and
``figure.savefig("name.pdf")`` writes them. They are as wide as one column (3.4 inches) or two
(7 inches) of a journal.
"""

try:
    import matplotlib.figure  # noqa: F401  # first, so that the error of every plot names the remedy
except ImportError as error:
    _MSG = 'plots need matplotlib, which is not installed: pip install "qbvi[plots]"'
    raise ImportError(_MSG) from error

from qbvi.plots.forest import plot_forest
from qbvi.plots.marginals import plot_marginals
from qbvi.plots.pairs import plot_pairs
from qbvi.plots.predictive import plot_predictive
from qbvi.plots.trace import plot_trace

__all__ = ["plot_forest", "plot_marginals", "plot_pairs", "plot_predictive", "plot_trace"]
