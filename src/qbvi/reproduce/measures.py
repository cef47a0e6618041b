"""How well a model predicts: the paper's Table 1."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qbvi.reproduce.published import PERFORMANCE
from qbvi.reproduce.tables import Cell, Row, Table

__all__ = ["Performance", "classification", "log_likelihood", "performance_table"]

Performance = Mapping[str, Mapping[str, Mapping[str, float]]]  # part of the data, method, measure

Floats = NDArray[np.float64]


def classification(design: Floats, y: Floats, beta: Floats) -> dict[str, Floats]:
    """Measures of the more probable class, for one set of coefficients (d,) or many (T, d).

    Precision, recall and F1 are means over the two classes, as in the paper's training columns. The
    labels of its test columns are wrong: two of them hold the precision of one class. So these
    precisions are computed too.

    Examples
    --------
    >>> design = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    >>> found = classification(design, np.array([1.0, 0.0, 0.0, 0.0]), np.array([2.0]))
    >>> float(found["accuracy"]), float(found["precision of the zeros"])
    (0.75, 1.0)
    """
    chosen, is_one = (beta @ design.T) > 0, y > 0.5
    hits = [(chosen == side)[..., is_one == side].sum(axis=-1) for side in (True, False)]
    named = [(chosen == side).sum(axis=-1) for side in (True, False)]
    there = [np.sum(is_one == side) for side in (True, False)]
    precision = [hit / np.maximum(n, 1) for hit, n in zip(hits, named, strict=True)]
    recall = [hit / np.maximum(n, 1) for hit, n in zip(hits, there, strict=True)]
    f1 = [2 * hit / np.maximum(n + m, 1) for hit, n, m in zip(hits, named, there, strict=True)]
    return {
        "precision": np.mean(precision, axis=0),
        "recall": np.mean(recall, axis=0),
        "accuracy": sum(hits) / len(y),
        "F1": np.mean(f1, axis=0),
        "precision of the zeros": np.asarray(precision[1]),
        "precision of the ones": np.asarray(precision[0]),
    }


def log_likelihood(design: Floats, y: Floats, beta: Floats) -> Floats:
    """The log-likelihood of logistic regression: beta (d,) or (T, d) -> () or (T,).

    Examples
    --------
    >>> float(log_likelihood(np.ones((2, 1)), np.array([1.0, 0.0]), np.zeros(1)).round(4))
    -1.3863
    """
    return np.asarray(-np.logaddexp(0.0, (1 - 2 * y) * (beta @ design.T)).sum(axis=-1))


def performance_table(name: str, found: Performance, note: str) -> Table:
    """The part of Table 1 for one of the data sets, our measures beside the published ones."""
    columns = [(part, method) for part, methods in found.items() for method in methods]
    rows = []
    for measure in next(iter(next(iter(found.values())).values())):
        paper = dict(zip(_PUBLISHED, PERFORMANCE[name].get(measure, ()), strict=False))
        cells = tuple(Cell(found[part][method][measure], paper.get((part, method))) for part, method in columns)
        rows.append(Row(measure, cells, 2 if measure in PERFORMANCE["garch"] else 3))
    return Table(
        f"{name}-performance",
        "Performance at the posterior means (paper, Table 1)",
        tuple(f"{part}, {method}" for part, method in columns),
        tuple(rows),
        note=note,
    )


_PUBLISHED = (("train", "QBVI"), ("train", "ML"), ("test", "QBVI"), ("test", "ML"))
