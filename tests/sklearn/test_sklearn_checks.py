"""scikit-learn's own checks of estimators."""

import numpy as np
import pytest
import scipy

pytest.importorskip("sklearn")

from sklearn.utils.estimator_checks import parametrize_with_checks

import qbvi
from qbvi.sklearn import (
    BlackBoxClassifier,
    BlackBoxRegressor,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
)

# The checks are of the interface, so a fit may be rough; a short budget ends it.
QUICK = {"method": "regression", "family": "full", "tol": 0.5, "max_evals": 120}


class Named:
    """A callable whose representation is the same in every process, as names of tests must be."""

    def __repr__(self):
        return type(self).__name__


class Plane(Named):
    def __call__(self, theta, X):
        return theta[0] + X @ theta[1:]


class Softmax(Named):
    """Probabilities of as many classes as the parameters are for; the first has a predictor of zero."""

    def __call__(self, theta, X):
        beta = theta.reshape(-1, X.shape[1] + 1)
        eta = np.column_stack([np.zeros(len(X)), beta[:, 0] + X @ beta[:, 1:].T])
        return scipy.special.softmax(eta, axis=1)


class OnePerColumn(Named):
    def __call__(self, X, y):
        return qbvi.Normal(0.0, 3.0, shape=X.shape[1] + 1)


class OnePerClassAndColumn(Named):
    def __call__(self, X, y):
        return qbvi.Normal(0.0, 3.0, shape=(X.shape[1] + 1) * max(1, y.max()))


ESTIMATORS = [
    LinearRegression(),
    PoissonRegressor(),
    LogisticRegression(),
    BlackBoxRegressor(Plane(), OnePerColumn(), options=QUICK, n_draws=50),
    BlackBoxClassifier(Softmax(), OnePerClassAndColumn(), options=QUICK, n_draws=50),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_accepts(estimator, check):
    check(estimator)
