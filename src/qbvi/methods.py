"""Choose the method: the names that users write, and what ``"auto"`` means."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from qbvi.algorithm import QBVI, paper
from qbvi.arguments import positive_number, whole_number
from qbvi.backends import HOST, Backend
from qbvi.baselines import BBVI, CGVB, MGVB
from qbvi.evaluate import Batches
from qbvi.families import DiagonalGaussian, Family, GaussianFamily
from qbvi.model import Model
from qbvi.naming import pick
from qbvi.protocol import Algorithm
from qbvi.regression import MeanFieldRegression, Regression, Ridge
from qbvi.stopping import RESERVE, Budget
from qbvi.updates import LearningRate

__all__ = ["METHODS", "Task", "choose_budget", "choose_method", "many_dimensional"]

# Most dimensions d of a regression: it needs of the order of d^2 draws, and costs their cube.
_MOST_DIMENSIONS = 250
# The same for a ridge regression with a diagonal posterior: beyond, learning all of C does not pay.
_MOST_DIAGONAL = 20


class Task(NamedTuple):
    """What the choice of a method depends on."""

    family: Family
    tol: float  # predicted gain, in nats, below which to stop
    has_batches: bool = False  # whether the values come from mini-batches
    backend: Backend = HOST


def automatic(task: Task) -> Algorithm:
    """The default method for a task.

    - Mini-batches, or more dimensions than a regression can handle: the residual estimator.
    - A posterior that is not all Gaussian: `MeanFieldRegression`.
    - A Gaussian posterior: `Regression` on the host, `Ridge` on other backends.
    """
    family, on_host = task.family, task.backend.is_host
    most = _MOST_DIAGONAL if isinstance(family, DiagonalGaussian) and not on_host else _MOST_DIMENSIONS
    if task.has_batches or family.dim > most:
        return many_dimensional(family.dim)
    if not isinstance(family, GaussianFamily):
        return MeanFieldRegression(tol=task.tol)
    return Regression(tol=task.tol) if on_host else Ridge(tol=task.tol)


METHODS: dict[str, Callable[[Task], Algorithm]] = {
    "auto": automatic,
    "paper": lambda task: paper(),
    "regression": lambda task: Regression(tol=task.tol),
    "mean-field": lambda task: MeanFieldRegression(tol=task.tol),
    "ridge": lambda task: Ridge(tol=task.tol),
    "bbvi": lambda task: BBVI(),
    "cgvb": lambda task: CGVB(),
    "mgvb": lambda task: MGVB(),
}


def choose_method(
    method: str | Algorithm,
    model: Model,
    family: Family,
    batches: Batches | None,
    tol: float,
    backend: Backend = HOST,
) -> Algorithm:
    """Turn the argument ``method`` into a method for this family on this backend.

    Raises an error if the method cannot fit the family.
    """
    if isinstance(method, str):
        task = Task(family, tol, batches is not None and batches.is_partial, backend)
        chosen: Algorithm = pick("method", method, METHODS)(task)
    elif isinstance(method, Algorithm):
        chosen = method
    else:
        msg = (
            f"`method` must be one of {', '.join(map(repr, METHODS))}, or a method such as qbvi.QBVI(...) or "
            f"qbvi.Regression(...), which derives from qbvi.protocol.Algorithm, got {method!r}"
        )
        raise TypeError(msg)
    if not chosen.fits(family):
        msg = (
            f"`method` must be able to fit this posterior, which is not all Gaussian, got {type(chosen).__name__}; "
            "take 'auto' or a qbvi.QBVI, or family='full' for one Gaussian over all parameters"
        )
        raise TypeError(msg)
    return chosen.for_model(model)


def many_dimensional(d: int) -> QBVI:
    """The residual estimator with a decaying rate, for mini-batches and many dimensions.

    The noise of a step grows with the dimension. Each iteration therefore uses one draw for every
    four dimensions, at least 100 and at most 400. Above 250,000 dimensions memory limits it to
    fewer: 1e8 numbers in all, but never below 100 draws.
    """
    n = 2 * round(min(max(100, min(d / 4, 400)), max(100, 1e8 / d)) / 2)
    return QBVI(n_samples=n, learning_rate=LearningRate(0.1, decay_after=100), keep="last")


def choose_budget(algorithm: Algorithm, d: int, max_evals: int | None, max_time: float | None, n_starts: int) -> Budget:
    """Split the budget equally among the starts, and reserve a part for the fresh draws."""
    if max_evals is not None and whole_number("max_evals", max_evals) < n_starts:
        msg = f"`max_evals` must be at least 1 for each of the {n_starts} starts, got {max_evals}"
        raise ValueError(msg)
    if max_time is not None:
        positive_number("max_time", max_time)
    evals = algorithm.default_budget(d) if max_evals is None else max_evals // n_starts
    reserve = 0 if evals is None else min(algorithm.fresh_draws(evals), evals // RESERVE)
    return Budget(evals, None if max_time is None else max_time / n_starts, reserve)
