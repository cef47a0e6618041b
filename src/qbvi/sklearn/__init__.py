"""Estimators for scikit-learn: regressions and black boxes with a posterior."""

try:
    import sklearn  # noqa: F401  # scikit-learn itself, first: the error names the remedy
except ImportError as error:
    _MISSING = 'qbvi.sklearn needs scikit-learn, which is not installed: pip install "qbvi[sklearn]"'
    raise ImportError(_MISSING) from error

from qbvi.sklearn.black_box import BlackBoxClassifier, BlackBoxRegressor
from qbvi.sklearn.linear import LinearRegression, PoissonRegressor
from qbvi.sklearn.logistic import LogisticRegression

__all__ = ["BlackBoxClassifier", "BlackBoxRegressor", "LinearRegression", "LogisticRegression", "PoissonRegressor"]
