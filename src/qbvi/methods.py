"""Choose the method: the names that users write, and what ``"auto"`` means."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from qbvi.algorithm import QBVI, paper
from qbvi.arguments import positive_number, whole_number
from qbvi.arrange import MOST_JOINT
from qbvi.backends import HOST, Backend
from qbvi.baselines import BBVI, CGVB, MGVB
from qbvi.families import DiagonalGaussian, Family, GaussianFamily, LowRankGaussian
from qbvi.free import Free, FreeRules
from qbvi.model import Model
from qbvi.naming import pick
from qbvi.protocol import Algorithm
from qbvi.regression import LowRankRegression, MeanFieldRegression, Regression, Ridge
from qbvi.stopping import RESERVE, Budget, MaxIterations, Plateau
from qbvi.updates import LearningRate
from qbvi.verdict import Verdict

__all__ = [
    "METHODS",
    "Task",
    "choose_budget",
    "choose_method",
    "choose_verdict",
    "many_dimensional",
    "most_joint_wholes",
]

# Dimensions d up to which a regression always pays. It needs of the order of d^2 draws to converge.
_MOST_DIMENSIONS = MOST_JOINT
# Dimensions up to which it pays for some budgets (`_pays`); docs/benchmarks.md has the table.
# Beyond, a step costs the regression so much time that the residual estimator gets further in the
# same time: with a diagonal covariance at 600 dimensions already, with a full one at 1,000.
_MOST_BY_BUDGET = 600
_MOST_BY_BUDGET_DIAGONAL = 500
# Evaluations for each dimension: with fewer there are too few steps for a regression ...
_FEWEST_EVALS = 6
# ... and with more the residual estimator is as near for a diagonal posterior, in less time.
_MOST_EVALS_DIAGONAL = 30
# The same for a ridge regression with a diagonal posterior: beyond, learning all of C does not pay.
_MOST_DIAGONAL = 20
_GAP = 0.01  # default tolerance, in nats, of a fit in a given family ...
_MISSING = 0.05  # ... and of the posterior itself


class Task(NamedTuple):
    """What the choice of a method depends on."""

    family: Family
    tol: float | None = None  # nats below which to stop; None for the method's own
    has_batches: bool = False  # whether the values come from mini-batches
    backend: Backend = HOST
    is_free: bool = False  # whether the posterior may take any shape
    max_evals: int | None = None  # budget of the user ...
    max_time: float | None = None  # ... and in seconds

    @classmethod
    def of(cls, posterior: Family, family: Any, tol: float | None, max_evals: int | None) -> Task:
        """The task of a fit, with ``family``, ``tol`` and ``max_evals`` as the user gave them."""
        tol = None if tol is None else positive_number("tol", tol)
        return cls(posterior, tol, is_free=isinstance(family, str) and family == "auto", max_evals=max_evals)

    @property
    def gap(self) -> float:
        """Nats that may be missing to the best member of the family."""
        return _GAP if self.tol is None else self.tol

    @property
    def missing(self) -> float:
        """Nats that may be missing of the posterior."""
        return _MISSING if self.tol is None else self.tol


def automatic(task: Task) -> Algorithm:
    """The default method for a task.

    - Mini-batches, or more dimensions than a regression can handle with this budget: the residual
      estimator.
    - A Gaussian of low rank plus a diagonal, with values of all the data: `LowRankRegression`.
    - A posterior that is not all Gaussian: `MeanFieldRegression`.
    - A posterior that may take any shape, in few dimensions on the host: `Free`.
    - A Gaussian posterior: `Regression` on the host, `Ridge` on other backends.
    """
    family, on_host = task.family, task.backend.is_host
    if isinstance(family, LowRankGaussian) and not task.has_batches:
        return LowRankRegression(tol=task.gap)
    most = _MOST_DIAGONAL if isinstance(family, DiagonalGaussian) and not on_host else _MOST_DIMENSIONS
    if task.has_batches or (family.dim > most and not _pays(task)):
        return many_dimensional(family.dim, has_budget=task.max_evals is not None or task.max_time is not None)
    if not isinstance(family, GaussianFamily):
        return MeanFieldRegression(tol=task.gap)
    if task.is_free and on_host and Free().fits(family):
        return _free(task)
    return Regression(tol=task.gap) if on_host else Ridge(tol=task.gap)


def _free(task: Task) -> Free:
    """A posterior of any shape, or the best Gaussian within its own tolerance."""
    free = Free(tol=task.missing * _relative_tolerance(task))
    needs_structure = task.family.dim > free.rules.rounds.most_dimensions
    return replace(free, first=Regression(tol=task.gap)) if needs_structure else free


def _relative_tolerance(task: Task) -> float:
    """Tolerance of the posterior, relative to that in few dimensions."""
    return max(1.0, task.family.dim / FreeRules().rounds.most_dimensions)


def choose_verdict(method: Any, task: Task) -> Verdict:
    """The rules for what counts as converged, with ``method`` as the user gave it."""
    return Verdict(most_missing=_most_missing(method, task))


def _most_missing(method: Any, task: Task) -> float:
    """Nats of the posterior that a converged fit may miss; infinite for a method or family by name.

    It is the tolerance in up to twelve dimensions, and grows in proportion beyond: a tolerance for
    each parameter. `Free` by name asks for the posterior too.
    """
    if isinstance(method, Free):
        return method.tol
    is_asked_for = isinstance(method, str) and method in ("auto", "free")
    return task.missing * _relative_tolerance(task) if is_asked_for and task.is_free else math.inf


def _pays(task: Task) -> bool:
    """Whether a regression pays in many dimensions, for a Gaussian on the host and this budget."""
    d, evals = task.family.dim, task.max_evals
    is_diagonal = isinstance(task.family, DiagonalGaussian)
    most = _MOST_BY_BUDGET_DIAGONAL if is_diagonal else _MOST_BY_BUDGET
    if d > most or not task.backend.is_host or not isinstance(task.family, GaussianFamily):
        return False
    if is_diagonal:
        return evals is not None and _FEWEST_EVALS * d <= evals <= _MOST_EVALS_DIAGONAL * d
    return evals is None or evals >= _FEWEST_EVALS * d


def _of_a_model(task: Task) -> Algorithm:
    msg = (
        "`method` can be 'exact' only for a ready-made regression, as in qbvi.models.Logistic(X, y).fit(method='exact'): "
        "the integrals of a black box are not known"
    )
    raise ValueError(msg)


METHODS: dict[str, Callable[[Task], Algorithm]] = {
    "auto": automatic,
    "exact": _of_a_model,
    "paper": lambda task: paper(),
    "free": _free,
    "regression": lambda task: Regression(tol=task.gap),
    "mean-field": lambda task: MeanFieldRegression(tol=task.gap),
    "ridge": lambda task: Ridge(tol=task.gap),
    "low-rank": lambda task: LowRankRegression(tol=task.gap),
    "bbvi": lambda task: BBVI(),
    "cgvb": lambda task: CGVB(),
    "mgvb": lambda task: MGVB(),
}


def most_joint_wholes(method: Any, backend: Backend = HOST, has_batches: bool = False) -> int:
    """Most dimensions in which whole numbers of many values are joint with other parameters.

    Only `Free` can do that; zero means that each keeps a family of its own.
    """
    is_free = isinstance(method, Free) or (isinstance(method, str) and method in ("auto", "free"))
    return FreeRules().rounds.most_dimensions if is_free and backend.is_host and not has_batches else 0


def choose_method(method: str | Algorithm, model: Model, task: Task) -> Algorithm:
    """Turn the argument ``method`` into a method for this task.

    Raises an error if the method cannot fit the family.
    """
    if task.max_evals is not None:
        whole_number("max_evals", task.max_evals)
    if isinstance(method, str):
        chosen: Algorithm = pick("method", method, METHODS)(task)
    elif isinstance(method, Algorithm):
        chosen = method
    else:
        msg = (
            f"`method` must be one of {', '.join(map(repr, METHODS))}, or a method such as qbvi.QBVI(...) or "
            f"qbvi.Regression(...), which derives from qbvi.protocol.Algorithm, got {method!r}"
        )
        raise TypeError(msg)
    if not chosen.fits(task.family):
        _refuse_low_rank(chosen, task.family)
        msg = (
            f"`method` must be able to fit this posterior, which is not all Gaussian, got {type(chosen).__name__}; "
            "take 'auto' or a qbvi.QBVI, or family='full' for one Gaussian over all parameters"
        )
        raise TypeError(msg)
    return chosen.for_model(model)


def _refuse_low_rank(chosen: Algorithm, family: Family) -> None:
    """Say so if the method or the family, but not both, is of low rank."""
    if isinstance(family, LowRankGaussian):
        msg = (
            f"`method` must be 'auto', 'low-rank' or a qbvi.QBVI for a Gaussian of low rank plus a diagonal, got {type(chosen).__name__}; "
            "take family='full' for the other methods"
        )
        raise TypeError(msg)
    if isinstance(chosen, LowRankRegression):
        msg = f"`method` 'low-rank' must go with family='low-rank' or a qbvi.LowRank, got a {type(family).__name__}"
        raise TypeError(msg)


def many_dimensional(d: int, *, has_budget: bool = False) -> QBVI:
    """The residual estimator with a decaying rate, for mini-batches and many dimensions.

    The noise of a step grows with the dimension. Each iteration therefore uses one draw for every
    four dimensions, at least 100 and at most 400. Above 250,000 dimensions memory limits it to
    fewer: 1e8 numbers in all, but never below 100 draws.

    A fit ends when the bound rises by no more than its noise. Otherwise the budget of the user ends
    it, or 1,000 iterations if there is none.
    """
    n = 2 * round(min(max(100, min(d / 4, 400)), max(100, 1e8 / d)) / 2)
    stop = (Plateau(),) if has_budget else (Plateau(), MaxIterations())
    return QBVI(n_samples=n, learning_rate=LearningRate(0.1, decay_after=100), keep="last", stop=stop)


def choose_budget(algorithm: Algorithm, d: int, max_evals: int | None, max_time: float | None, n_starts: int) -> Budget:
    """Split the budget equally among the starts, and reserve a part for the fresh draws."""
    if max_evals is not None and whole_number("max_evals", max_evals) < n_starts:
        msg = f"`max_evals` must be at least 1 for each of the {n_starts} starts, got {max_evals}"
        raise ValueError(msg)
    if max_time is not None:
        positive_number("max_time", max_time)
    evals = algorithm.default_budget(d) if max_evals is None else max_evals // n_starts
    reserve = 0 if evals is None else min(algorithm.reserved_draws(evals), evals // RESERVE)
    return Budget(evals, None if max_time is None else max_time / n_starts, reserve, max_evals is None)
