"""From a function and a prior to a posterior: the one call that users make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qbvi.algorithm import QBVI, Algorithm, paper
from qbvi.arrange import Groups, arrange
from qbvi.evaluate import Batches, BlackBox
from qbvi.families import Family, GaussianFamily
from qbvi.naming import pick
from qbvi.progress import Progress
from qbvi.regression import MeanFieldRegression, Regression
from qbvi.results import Fit
from qbvi.run import Iterate, Run
from qbvi.starts import run_all, starting_points
from qbvi.stopping import Budget, MaxIterations
from qbvi.updates import LearningRate

__all__ = ["fit"]


def fit(  # noqa: PLR0913 - the one call users make: every argument has a default that works
    log_likelihood: Callable[..., Any],
    prior: Any,
    *,
    vectorized: bool = False,
    method: str | Algorithm = "auto",
    family: str | Groups | Mapping[Any, str] = "auto",
    data: Any = None,
    batch_size: int | None = None,
    init: Any = None,
    n_starts: int = 1,
    tol: float = 0.01,
    max_evals: int | None = None,
    max_time: float | None = None,
    on_failure: str | Callable[[Any], float] = "raise",
    progress: bool | None = None,
    callback: Callable[[Iterate], bool | None] | None = None,
    seed: int | None = None,
) -> Fit:
    r"""Fit a posterior to a log-likelihood that can be evaluated but not differentiated.

    Parameters
    ----------
    log_likelihood
        ``log p(y | theta)``: a function of one point that returns a number. The point is an array of the prior's shape or, with a
        dict of priors, a dict of arrays, always on its own constrained scale. With ``data`` it is called as ``f(point, data)``.
    prior
        A distribution (`qbvi.Normal`, `qbvi.InverseGamma` ..., any frozen SciPy distribution, `qbvi.LogPrior` for a log-density of your
        own, `qbvi.Flat` where the function is a log-joint already), or a dict of them by name.
    vectorized
        The function takes points stacked along a first axis and returns one number for each.
    method
        ``"auto"``, ``"paper"``, a `qbvi.QBVI` put together from its parts, or a `qbvi.Regression`. Automatic is `qbvi.Regression` for Gaussian posteriors,
        `qbvi.MeanFieldRegression` for others, and `qbvi.QBVI` with the residual estimator for mini-batches and for more than 250 dimensions.
    family
        The form of the posterior. ``"auto"``: parameters whose prior is a gamma, inverse gamma, beta, Dirichlet, (inverse) Wishart or discrete law keep that law, independent of
        the rest; all others share one Gaussian with full covariance, through a transform where they are constrained. ``"full"`` or ``"diagonal"``: one Gaussian for all.
        A dict by parameter, such as ``{"sigma2": "gamma", "beta": "diagonal"}`` or ``{("a", "b"): "full"}``, says it for single ones; a list of groups of
        parameters (names, or column numbers where they have none) gives independent Gaussian blocks.
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
        What becomes of points where the function gives NaN, an infinity or an exception: ``"raise"``, ``"exclude"``, ``"floor"``, or a function
        of the `qbvi.Failure`.
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
    model, posterior = arrange(prior, family)
    batches = None if data is None else Batches(data, batch_size)
    if batches is None and batch_size is not None:
        msg = f"`batch_size` needs `data` to draw from, got batch_size={batch_size} and no data"
        raise ValueError(msg)
    if n_starts < 1:
        msg = f"`n_starts` must be at least 1, got {n_starts}"
        raise ValueError(msg)
    algorithm = _method(method, posterior, batches, tol)
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed

    def run(start: Any, own_seed: int) -> Fit:
        one = Run(
            model=model,
            family=posterior,
            black_box=BlackBox(log_likelihood, vectorized, on_failure),
            batches=batches,
            algorithm=algorithm,
            budget=_budget(algorithm, model.dim, max_evals, max_time, n_starts),
            seed=own_seed,
            callback=callback,
        )
        return one(start, Progress(progress, _max_iterations(algorithm), max_evals, max_time))

    if n_starts == 1:
        return run(init, seed)
    return run_all(run, init, starting_points(model, n_starts - 1, seed), seed)


_MOST_DIMENSIONS = 250  # of a regression: its cost grows as the cube of the number of draws, and those as d^2


def _method(method: str | Algorithm, family: Family, batches: Batches | None, tol: float) -> Algorithm:
    many = family.dim > _MOST_DIMENSIONS or (batches is not None and batches.is_partial)
    if not isinstance(method, str) and not (hasattr(method, "tell") and not isinstance(method, type)):
        msg = f"`method` must be 'auto', 'paper', a qbvi.QBVI(...) or a qbvi.Regression(...), got {method!r}"
        raise TypeError(msg)
    is_gaussian = isinstance(family, GaussianFamily)
    if isinstance(method, Regression) and not (is_gaussian or isinstance(method, MeanFieldRegression)):
        msg = (
            "`method` must be able to fit this posterior, which is not all Gaussian, got a qbvi.Regression: take qbvi.MeanFieldRegression, "
            "or family='full' for one Gaussian over all parameters"
        )
        raise TypeError(msg)
    regression = Regression if is_gaussian else MeanFieldRegression
    table: dict[str, Any] = {"auto": many_dimensional() if many else regression(tol=tol), "paper": paper()}
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
