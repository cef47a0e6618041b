"""The tables of docs/from/scikit-learn.md: the estimators of qbvi.sklearn beside scikit-learn's own.

    OMP_NUM_THREADS=1 python benchmarks/from_scikit_learn.py

The data sets come with scikit-learn. Scores are means over ten folds that are the same for every
estimator. Seconds are those of one fit to all rows, the fastest of three.
"""

from __future__ import annotations

import time

import numpy as np
import scipy
from sklearn import linear_model
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.model_selection import KFold, StratifiedKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from qbvi import sklearn as qbvi_sklearn


def main() -> None:
    """Print both tables."""
    classes = StratifiedKFold(10, shuffle=True, random_state=0)
    print("data           estimator                            accuracy  log loss  seconds")
    for name, (X, y) in {
        "breast cancer": load_breast_cancer(return_X_y=True),
        "iris": load_iris(return_X_y=True),
    }.items():
        for title, estimator in classifiers().items():
            model = make_pipeline(StandardScaler(), estimator)
            scores = cross_validate(model, X, y, cv=classes, scoring=["accuracy", "neg_log_loss"])
            accuracy, loss = scores["test_accuracy"].mean(), -scores["test_neg_log_loss"].mean()
            print(f"{name:14} {title:36} {accuracy:8.4f}  {loss:8.4f}  {seconds(model, X, y):7.3f}")
    print()
    print("data           estimator                            log density  inside 90 %  seconds")
    X, y = load_diabetes(return_X_y=True)
    for title, estimator in regressors().items():
        model = make_pipeline(StandardScaler(), estimator)
        density, inside = predictive_scores(model, X, y)
        print(f"{'diabetes':14} {title:36} {density:11.4f}  {inside:11.3f}  {seconds(model, X, y):7.3f}")


def classifiers() -> dict:
    """Logistic regressions, each with the penalty or prior that its library has by default, and a chosen one."""
    return {
        "sklearn LogisticRegression()": linear_model.LogisticRegression(max_iter=10_000),
        "sklearn LogisticRegressionCV(10)": linear_model.LogisticRegressionCV(
            Cs=10, max_iter=10_000, scoring="neg_log_loss", use_legacy_attributes=False, l1_ratios=(0,)
        ),
        "qbvi LogisticRegression()": qbvi_sklearn.LogisticRegression(),
        "qbvi LogisticRegression(prior=1.0)": qbvi_sklearn.LogisticRegression(prior=1.0),
    }


def regressors() -> dict:
    """Linear regressions with a predictive standard deviation."""
    return {
        "sklearn BayesianRidge()": linear_model.BayesianRidge(),
        "qbvi LinearRegression()": qbvi_sklearn.LinearRegression(),
    }


def predictive_scores(model, X, y) -> tuple[float, float]:
    """Mean log density of held-out targets, and the share inside their 90 % intervals."""
    z = []
    density = []
    for train, test in KFold(10, shuffle=True, random_state=0).split(X):
        mean, sd = model.fit(X[train], y[train]).predict(X[test], return_std=True)
        density.extend(scipy.stats.norm.logpdf(y[test], mean, sd))
        z.extend((y[test] - mean) / sd)
    return float(np.mean(density)), float(np.mean(np.abs(z) < scipy.stats.norm.isf(0.05)))


def seconds(model, X, y) -> float:
    """Seconds of the fastest of three fits."""
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        model.fit(X, y)
        taken.append(time.perf_counter() - start)
    return min(taken)


if __name__ == "__main__":
    main()
