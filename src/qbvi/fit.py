"""From a function and a prior to a posterior: the one call that users make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qbvi.algorithm import QBVI, Algorithm, paper
from qbvi.evaluate import Batches, BlackBox, OnFailure, ShardedLikelihood
from qbvi.evaluate.black_box import calls_of
from qbvi.evaluate.executors import open_runner, warn_if_nothing_to_share
from qbvi.families import DiagonalGaussian, Family, Gaussian, Product
from qbvi.model import Model
from qbvi.naming import pick
from qbvi.progress import Progress
from qbvi.regression import Regression
from qbvi.results import Fit
from qbvi.run import Iterate, Run
from qbvi.starts import run_all, starting_points
from qbvi.stopping import Budget, MaxIterations
from qbvi.updates import LearningRate

__all__ = ["fit"]

Groups = Sequence[Sequence[str | int]]


def fit(  # noqa: PLR0913 - the one call users make: every argument has a default that works
    log_likelihood: Callable[..., Any],
    prior: Any,
    *,
    vectorized: bool | int = False,
    method: str | Algorithm = "auto",
    family: str | Groups = "full",
    data: Any = None,
    batch_size: int | None = None,
    init: Any = None,
    n_starts: int = 1,
    tol: float = 0.01,
    max_evals: int | None = None,
    max_time: float | None = None,
    on_failure: OnFailure = "raise",
    executor: Any = None,
    timeout: float | None = None,
    progress: bool | None = None,
    callback: Callable[[Iterate], bool | None] | None = None,
    seed: int | None = None,
) -> Fit:
    r"""Fit a Gaussian posterior to a log-likelihood that can be evaluated but not differentiated.

    Parameters
    ----------
    log_likelihood
        ``log p(y | theta)``: a function of one point that returns a number. The point is an array of the prior's shape or, with a
        dict of priors, a dict of arrays, always on its own constrained scale. With ``data`` it is called as ``f(point, data)``.
    prior
        A distribution (`qbvi.Normal`, `qbvi.InverseGamma` ..., any frozen SciPy distribution, `qbvi.LogPrior` for a log-density of your
        own, `qbvi.Flat` where the function is a log-joint already), or a dict of them by name.
    vectorized
        The function takes points stacked along a first axis and returns one number for each: all points of a step at once or, where a number is
        given, so many in each call.
    method
        ``"auto"``, ``"paper"``, a `qbvi.QBVI` put together from its parts, or a `qbvi.Regression`. Automatic is `qbvi.Regression`, and
        `qbvi.QBVI` with the residual estimator for mini-batches and for more than 250 dimensions.
    family
        The posterior's covariance: ``"full"``, ``"diagonal"``, or groups of parameters (names, or column numbers where they
        have none), independent of each other and with full covariance inside.
    data, batch_size
        Rows handed to the function: all of them, or ``batch_size`` at random, the same for all points of a step. The log-likelihood of a
        batch is scaled by N / M.
    init
        A point to start from, on the constrained scale, or an earlier `qbvi.Fit`; by default the centre of the prior.
    n_starts
        Fit from so many starts, the further ones drawn from the prior, and return the best; if others settle elsewhere with a bound
        within 10 nats, the fit is not called converged and says so.
    tol
        Stop when fewer nats than this are predicted to be missing from the bound (method ``"auto"``).
    max_evals, max_time
        Budget in evaluations and in seconds.
    on_failure
        What becomes of points where the function gives NaN, an infinity, an exception, no answer in time, or kills its process: ``"raise"``,
        ``"exclude"``, ``"floor"``, a function of the `qbvi.Failure`, or a dict of these by kind of failure (``"nan"``, ``"+inf"``, ``"-inf"``,
        ``"exception"``, ``"timeout"``, ``"died"``) or exception type, where what is not listed raises.
    executor
        Who makes the calls: a number of processes, any ``concurrent.futures`` executor, a Dask client, an MPI pool executor, or anything with
        ``submit`` or ``map``. It changes nothing about the result. What you built yourself is not shut down.
    timeout
        Seconds that a call may take; then its process is killed and the point has failed. Needs processes: ``executor`` a number, one by default.
    progress
        Whether to show a line of progress; by default only on a terminal.
    callback
        Called after each step with a `qbvi.Iterate`; a true answer ends the fit.
    seed
        Same seed, same result.

    Returns
    -------
    Fit
        The posterior, with what is needed to judge it: a fresh estimate of the lower bound, k-hat, and why the fit ended.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> y = np.array([1.2, 0.7, 1.9])
    >>> post = qbvi.fit(lambda m: -0.5 * np.sum((y - m) ** 2), prior=qbvi.Normal(0, 1), seed=1)
    >>> bool(abs(post.mean - y.sum() / 4) < 0.01)
    True
    """
    model = Model(prior)
    batches: Any = None if data is None else Batches(data, batch_size)
    if isinstance(log_likelihood, ShardedLikelihood):
        if data is not None:
            msg = "`data` must be left out with a qbvi.ShardedLikelihood, which holds its data in parts"
            raise ValueError(msg)
        batches = log_likelihood.batches
    if data is None and batch_size is not None:
        msg = f"`batch_size` needs `data` to draw from, got batch_size={batch_size} and no data"
        raise ValueError(msg)
    if n_starts < 1:
        msg = f"`n_starts` must be at least 1, got {n_starts}"
        raise ValueError(msg)
    algorithm = _method(method, model.dim, batches, tol)
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
    warn_if_nothing_to_share(executor, vectorized)
    if isinstance(batches, Batches) and (executor is not None or timeout is not None):
        log_likelihood, batches = batches.bound_to(log_likelihood)  # the data travel once, with the function

    def run(start: Any, own_seed: int) -> Fit:
        one = Run(
            model=model,
            family=choose_family(family, model),
            black_box=BlackBox(log_likelihood, vectorized, on_failure, runner=runner),
            batches=batches,
            algorithm=algorithm,
            budget=_budget(algorithm, model.dim, max_evals, max_time, n_starts),
            seed=own_seed,
            callback=callback,
        )
        return one(start, Progress(progress, _max_iterations(algorithm), max_evals, max_time))

    with open_runner(calls_of(log_likelihood, vectorized, on_failure), executor, timeout) as runner:
        if n_starts == 1:
            return run(init, seed)
        return run_all(run, init, starting_points(model, n_starts - 1, seed), seed)


def choose_family(family: str | Groups, model: Model) -> Family:
    """Turn what a user writes for ``family`` into a family over the model's unconstrained vector."""
    if isinstance(family, str):
        kind: Any = pick("family", family, {"full": Gaussian, "diagonal": DiagonalGaussian})
        return kind(model.dim)  # type: ignore[no-any-return]
    groups: Any = family
    if not isinstance(groups, Sequence) or not all(isinstance(group, Sequence) for group in groups):
        msg = f"`family` must be 'full', 'diagonal' or a list of groups such as [['a', 'b'], ['c']], got {family!r}"
        raise TypeError(msg)
    columns = [tuple(column for member in group for column in _columns(member, model)) for group in family]
    counted = sorted(column for group in columns for column in group)
    if counted != list(range(model.dim)):
        msg = f"`family` must name each of the {model.dim} coordinates in exactly one group, got groups {columns}"
        raise ValueError(msg)
    return Product(tuple(Gaussian(len(group)) for group in columns), tuple(columns))


def _columns(member: str | int, model: Model) -> list[int]:
    if isinstance(member, str):
        places = {parameter.name: parameter.columns for parameter in model.parameters}
        place = pick("family", member, places)
        return list(range(place.start, place.stop))
    return [int(member)]


_MOST_DIMENSIONS = 250  # of a regression: its cost grows as the cube of the number of draws, and those as d^2


def _method(method: str | Algorithm, d: int, batches: Batches | None, tol: float) -> Algorithm:
    many = d > _MOST_DIMENSIONS or (batches is not None and batches.is_partial)
    if not isinstance(method, str) and not (hasattr(method, "tell") and not isinstance(method, type)):
        msg = f"`method` must be 'auto', 'paper', a qbvi.QBVI(...) or a qbvi.Regression(...), got {method!r}"
        raise TypeError(msg)
    table: dict[str, Any] = {"auto": many_dimensional() if many else Regression(tol=tol), "paper": paper()}
    return pick("method", method, table)  # type: ignore[no-any-return]


def many_dimensional() -> QBVI:
    """The residual estimator with a rate that falls, for mini-batches and where a regression would cost too much."""
    return QBVI(learning_rate=LearningRate(0.1, decay_after=100), keep="last")


def _budget(algorithm: Algorithm, d: int, max_evals: int | None, max_time: float | None, n_starts: int) -> Budget:
    """Share the user's budget among the starts, and keep some of it for the fresh draws at the end."""
    if max_evals is not None and max_evals < n_starts:
        msg = f"`max_evals` must be at least 1 for each of the {n_starts} starts, got {max_evals}"
        raise ValueError(msg)
    if max_time is not None and not max_time > 0:
        msg = f"`max_time` must be a positive number of seconds, got {max_time}"
        raise ValueError(msg)
    evals = algorithm.default_budget(d) if max_evals is None else max_evals // n_starts
    reserve = 0 if evals is None else min(algorithm.fresh_draws(evals), evals // 4)
    return Budget(evals, None if max_time is None else max_time / n_starts, reserve)


def _max_iterations(algorithm: Algorithm) -> int | None:
    limits = [rule.iterations for rule in algorithm.stop if isinstance(rule, MaxIterations)]
    return min(limits) if limits else None
