"""From a function and a prior to a posterior: the only loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.algorithm import QBVI, Info, Values, paper
from qbvi.arrays import Array, to_numpy
from qbvi.diagnostics import pareto_khat
from qbvi.evaluate import Batches, BlackBox, EvaluationError
from qbvi.families import DiagonalGaussian, Family, Gaussian, Product
from qbvi.model import Model
from qbvi.naming import pick
from qbvi.progress import Progress
from qbvi.random import Independent
from qbvi.results import Fit, Report, Trace
from qbvi.stopping import Budget, History, MaxIterations, Stop

__all__ = ["DomainError", "fit"]

Floats = NDArray[np.float64]
Groups = Sequence[Sequence[str | int]]


class DomainError(RuntimeError):
    """A plain step left the set of positive definite covariances; ``fit`` holds the posterior before that step."""

    fit: Fit | None = None


def fit(  # noqa: PLR0913 - the one call users make: every argument has a default that works
    log_likelihood: Callable[..., Any],
    prior: Any,
    *,
    vectorized: bool = False,
    method: str | QBVI = "auto",
    family: str | Groups = "full",
    data: Any = None,
    batch_size: int | None = None,
    init: Any = None,
    max_evals: int | None = None,
    max_time: float | None = None,
    on_failure: str | Callable[[Any], float] = "raise",
    progress: bool | None = None,
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
        The function takes points stacked along a first axis and returns one number for each.
    method
        ``"auto"``, ``"paper"``, or a `qbvi.QBVI` put together from its parts.
    family
        The posterior's covariance: ``"full"``, ``"diagonal"``, or groups of parameters (names, or column numbers where they
        have none), independent of each other and with full covariance inside.
    data, batch_size
        Rows handed to the function: all of them, or ``batch_size`` at random, the same for all points of a step. The log-likelihood of a
        batch is scaled by N / M.
    init
        A point to start from, on the constrained scale, or an earlier `qbvi.Fit`; by default the centre of the prior.
    max_evals, max_time
        Budget in evaluations and in seconds.
    on_failure
        What becomes of points where the function gives NaN, an infinity or an exception: ``"raise"``, ``"exclude"``, ``"floor"``, or a function
        of the `qbvi.Failure`.
    progress
        Whether to show a line of progress; by default only on a terminal.
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
    batches = None if data is None else Batches(data, batch_size)
    if batches is None and batch_size is not None:
        msg = f"`batch_size` needs `data` to draw from, got batch_size={batch_size} and no data"
        raise ValueError(msg)
    algorithm = _method(method, batches)
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
    run = _Run(
        model=model,
        family=choose_family(family, model),
        black_box=BlackBox(log_likelihood, vectorized, on_failure),
        batches=batches,
        algorithm=algorithm,
        budget=Budget(max_evals, max_time, reserve=0 if max_evals is None else min(algorithm.n_fresh, max_evals // 4)),
        seed=seed,
    )
    return run(init, Progress(progress, _max_iterations(algorithm), max_evals, max_time))


class _Turn(NamedTuple):
    """One step as the loop sees it: the q that was left, and what its draws said."""

    q: Array
    info: Info


class _Kept(NamedTuple):
    """The q that a fit returns and the residuals at draws from it."""

    q: Array
    h: Floats


@dataclass
class _Run:
    """One fit, put together; calling it runs the loop to its end."""

    model: Model
    family: Family
    black_box: BlackBox
    batches: Batches | None
    algorithm: QBVI
    budget: Budget
    seed: int

    def __post_init__(self) -> None:
        # Streams of their own, so that how many numbers one part draws changes nothing for the others.
        self._draws, self._rows, self._fresh = (
            np.random.default_rng(s) for s in np.random.SeedSequence(self.seed).spawn(3)
        )
        quadratic = self.model.quadratic_prior()
        eta = self.family.embed(quadratic.linear, quadratic.precision)
        self._prior_is_known = eta is not None
        self.eta = np.zeros(self.family.size) if eta is None else eta

    def __call__(self, init: Any, progress: Progress) -> Fit:
        history, kept, stop = History(self.algorithm.window), None, None
        start = time.perf_counter()
        try:
            for turn in self._turns(self._start(init)):
                self._record(history, turn, time.perf_counter() - start)
                if self.algorithm.keep == "last" or history.best == len(history) - 1:
                    kept = _Kept(turn.q, to_numpy(turn.info.h))
                progress.update(history)
                stop = self._stop(history)
                if stop:
                    break
                self._check_domain(turn)
        except KeyboardInterrupt:
            if kept is None:
                raise
            stop = Stop(False, "interrupted (Ctrl-C) before the fit settled")
        except (EvaluationError, DomainError) as error:
            if kept is not None:
                error.fit = self._freeze(kept, history, Stop(False, f"ended by an error: {error}"), start)
            raise
        assert kept is not None
        assert stop is not None
        result = self._finish(kept, history, stop, start)
        progress.close(history, stop.reason)
        return result

    def _turns(self, q: Array) -> Iterator[_Turn]:
        """Yield each step after it was made, for ever: ask, evaluate, tell."""
        state = self.algorithm.init(self.family, q)
        while True:
            theta = self.algorithm.ask(self.family, state, self._draws)
            values = self._evaluate(theta, self._rows)
            left = state.q
            with np.errstate(all="ignore"):  # a step that overflows is refused, and counted, in `tell`
                state, info = self.algorithm.tell(self.family, self.eta, state, theta, values)
            yield _Turn(left, info)

    def _evaluate(self, theta: Array, rows: np.random.Generator) -> Values:
        points = self.model.constrain(theta)
        batch, scale = ((), 1.0) if self.batches is None else _as_argument(self.batches.draw(rows))
        likelihood = self.black_box(points, *batch, scale=scale).values
        log_prior = self.model.log_prior(theta)
        unknown = self.model.remaining_log_prior(theta) if self._prior_is_known else log_prior
        return Values(likelihood + unknown, likelihood + log_prior)

    def _start(self, init: Any) -> Array:
        loc, scale = self.model.initial()
        if isinstance(init, Fit):
            return self.family.from_moments(*init.unconstrained)
        if init is not None:
            loc = self.model.unconstrain(init)
        if self.algorithm.initial_sd is not None:
            scale = np.full_like(scale, self.algorithm.initial_sd)
        return self.family.start(loc, scale)

    def _record(self, history: History, turn: _Turn, seconds: float) -> None:
        history.append(
            elbo=float(turn.info.bound),
            n_evals=self.black_box.n_evals,
            step=float(turn.info.step),
            grad_norm=float(turn.info.grad_norm),
            seconds=seconds,
            mean=to_numpy(self.family.mean(turn.q)),
            sd=to_numpy(self.family.sd(turn.q)),
        )

    def _stop(self, history: History) -> Stop | None:
        rules = (*self.algorithm.stop, self.budget)
        return next((stop for stop in (rule(history) for rule in rules) if stop), None)  # type: ignore[operator]

    def _check_domain(self, turn: _Turn) -> None:
        if not bool(turn.info.inside):
            msg = (
                "the plain step left the domain: the new covariance would not be positive definite; take "
                'step="bounded-rate", "exponential" or "retraction", a smaller learning_rate, or more draws'
            )
            raise DomainError(msg)

    def _finish(self, kept: _Kept, history: History, stop: Stop, start: float) -> Fit:
        """Draw afresh from the chosen q, so that the reported bound is not the luck of the best step."""
        if "Ctrl-C" in stop.reason:
            return self._freeze(kept, history, stop, start)
        n = self.algorithm.n_fresh
        if self.budget.max_evals is not None:
            n = min(n, self.budget.max_evals - self.black_box.n_evals)
        if n < 2:
            return self._freeze(kept, history, stop, start)
        groups = 1 if self.batches is None or not self.batches.is_partial else min(10, n // 2)
        residuals = [self._fresh_residuals(kept.q, n // groups) for _ in range(groups)]
        return self._freeze(_Kept(kept.q, np.stack(residuals)), history, stop, start)

    def _fresh_residuals(self, q: Array, n: int) -> Floats:
        theta = self.family.transport(q, Independent().normal(self._fresh, n, self.family.dim))
        return to_numpy(self.family.residual(q, theta, self._evaluate(theta, self._fresh).log_joint))

    def _freeze(self, kept: _Kept, history: History, stop: Stop, start: float) -> Fit:
        h = np.atleast_2d(kept.h)
        # With mini-batches the draws of one batch share its error: the spread is that of the batches' means.
        means = h[0] if h.shape[0] == 1 else h.mean(axis=1)
        khat, notes = pareto_khat(h[0]) if h.shape[0] == 1 else (np.nan, ("k-hat is not told from mini-batches",))
        report = Report(
            elbo=float(h.mean()),
            elbo_se=float(means.std(ddof=1) / np.sqrt(means.size)),
            khat=khat,
            khat_draws=int(h[0].size),
            converged=stop.converged,
            stop_reason=stop.reason,
            n_evals=self.black_box.n_evals,
            n_iterations=len(history),
            failures=tuple(self.black_box.failures),
            trace=_trace(history),
            seconds=time.perf_counter() - start,
            seed=self.seed,
            method=repr(self.algorithm),
            notes=notes,
        )
        return Fit(self.model, self.family, to_numpy(kept.q), report)


def choose_family(family: str | Groups, model: Model) -> Family:
    """Turn what a user writes for ``family`` into a family over the model's unconstrained vector."""
    if isinstance(family, str):
        kind: Any = pick("family", family, {"full": Gaussian, "diagonal": DiagonalGaussian})
        return kind(model.dim)  # type: ignore[no-any-return]
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


def _method(method: str | QBVI, batches: Batches | None) -> QBVI:
    return pick("method", method, {"auto": QBVI(), "paper": paper()})  # type: ignore[no-any-return]


def _as_argument(drawn: tuple[Any, float]) -> tuple[tuple[Any], float]:
    return (drawn[0],), drawn[1]


def _max_iterations(algorithm: QBVI) -> int | None:
    limits = [rule.iterations for rule in algorithm.stop if isinstance(rule, MaxIterations)]
    return min(limits) if limits else None


def _trace(history: History) -> Trace:
    columns: Mapping[str, Any] = {
        name: np.asarray(values) for name, values in vars(history).items() if name != "window"
    }
    return Trace(**columns)
