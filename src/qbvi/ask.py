"""Ask and tell: the same fit for those who own the loop, with a job queue, a laboratory or another program between question and answer."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from qbvi.archive import PathLike
from qbvi.arguments import positive_number
from qbvi.arrange import Groups, arrange
from qbvi.checkpoint import (
    Answers,
    Checkpoint,
    CheckpointError,
    Identity,
    Saved,
    fingerprint,
    read_saved,
    resumed_seed,
    write_saved,
)
from qbvi.evaluate import BlackBox, EvaluationError, OnFailure, Outcome
from qbvi.evaluate.calls import Calls, ShapeError
from qbvi.evaluate.policy import treatment_of
from qbvi.families import Family
from qbvi.methods import choose_budget, choose_method
from qbvi.model import Model
from qbvi.points import row, rows
from qbvi.progress import Progress
from qbvi.protocol import Algorithm
from qbvi.results import Fit
from qbvi.run import Conversation, DomainError, Iterate, Request, Run
from qbvi.stopping import Budget

__all__ = ["Ask", "Points"]


@dataclass(frozen=True, eq=False)
class Points:
    """Points at which the function is wanted, each with a number of its own.

    Attributes
    ----------
    values
        The points stacked along a first axis, as a vectorised function takes them: an array, or a dict of arrays.
    ids
        Their numbers, (n,): what to send along with a point, so that its value finds back whatever became of its digits.

    Examples
    --------
    >>> points = Points({"a": np.array([1.0, 2.0]), "b": np.zeros((2, 3))}, np.array([7, 8]))
    >>> len(points), points[1:].ids
    (2, array([8]))
    >>> [point["a"] for point in points]
    [np.float64(1.0), np.float64(2.0)]
    """

    values: Any
    ids: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Any]:
        """Each point as a function of one point takes it."""
        return (row(self.values, i) for i in range(len(self)))

    def __getitem__(self, which: slice | Sequence[int] | NDArray[Any]) -> Points:
        """Some of the points."""
        chosen = np.arange(len(self))[which]
        return Points(rows(self.values, np.atleast_1d(chosen).tolist()), np.atleast_1d(self.ids[which]))


class Ask:
    """A fit that asks for points and is told the function's values there.

    With the same seed it comes to the same posterior as `qbvi.fit`, to the last bit, in whatever order and portions the values come.

    Parameters
    ----------
    prior, method, family, init, tol, max_evals, on_failure, seed, callback, checkpoint, on_mismatch
        As for `qbvi.fit`. With ``on_failure="raise"`` a value that is none is refused, and may be told again.

    Examples
    --------
    >>> import qbvi
    >>> opt = qbvi.Ask(qbvi.Normal(0, 1, shape=2), seed=1)
    >>> while not opt.done:
    ...     points = opt.ask()
    ...     for point, number in zip(points, points.ids):  # in any order, by any means
    ...         _ = opt.tell(number, -0.5 * np.sum((point - 1.0) ** 2))
    >>> opt.fit().converged
    True
    >>> opt.fit().elbo == qbvi.fit(lambda x: -0.5 * np.sum((x - 1.0) ** 2), qbvi.Normal(0, 1, shape=2), seed=1).elbo
    True
    """

    def __init__(  # noqa: PLR0913 - as many as `fit` has, each with a default that works
        self,
        prior: Any,
        *,
        method: str | Algorithm = "auto",
        family: str | Groups | Mapping[Any, str] = "auto",
        init: Any = None,
        tol: float = 0.01,
        max_evals: int | None = None,
        on_failure: OnFailure = "raise",
        seed: int | np.random.Generator | np.random.SeedSequence | None = None,
        callback: Callable[[Iterate], bool | None] | None = None,
        checkpoint: PathLike | None = None,
        on_mismatch: str = "raise",
    ) -> None:
        model, posterior = arrange(prior, family)
        algorithm = choose_method(method, model, posterior, None, positive_number("tol", tol))
        self._run = Run(
            model=model,
            family=posterior,
            black_box=BlackBox(_somebody_else, on_failure=on_failure),
            batches=None,
            algorithm=algorithm,
            budget=choose_budget(algorithm, model.dim, max_evals, None, 1),
            seed=resumed_seed(seed, checkpoint),
            callback=callback,
        )
        self._checkpoint: Checkpoint | None = None
        if checkpoint is not None:
            given = {"prior": prior, "method": algorithm, "family": family, "init": init, "seed": self._run.seed}
            prints = {name: fingerprint(name, value) for name, value in given.items()}
            self._checkpoint = Checkpoint(checkpoint, self._run, prints, on_mismatch)
            init = self._checkpoint.begin(init)
        self._begin(init, Answers())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the checkpoint, where there is one; it holds all that was told."""
        if self._checkpoint is not None:
            self._checkpoint.__exit__()

    @property
    def done(self) -> bool:
        """Whether nothing more is wanted."""
        return self._request is None

    def ask(self) -> Points:
        """All points whose values are still wanted; the same again until they are told. None at all when the fit is done."""
        if self._request is None:
            return Points(rows(self._last.points, []), np.empty(0, dtype=np.int64))
        wanted = [i for i in range(self._request.size) if i not in self._told]
        return Points(rows(self._request.points, wanted), np.array(wanted, dtype=np.int64) + self._first_id)

    def tell(self, points: Points | Iterable[int] | int, values: Any, noise_sd: Any = 0.0) -> int:
        """Tell the function's values at points, or at their numbers, in any order and portions.

        Parameters
        ----------
        points
            What `ask` gave, or part of it, or the numbers of points.
        values
            One number for each. NaN, an infinity, None or an exception is a failure, of which ``on_failure`` says what becomes.
        noise_sd
            Standard deviation of each value's noise, where it is known; one for all, or one for each.

        Returns
        -------
        int
            How many of them were news: a point counts once, with the value told first.
        """
        ids = np.atleast_1d(points.ids if isinstance(points, Points) else np.asarray(_listed(points)))
        told = _one_each("values", values, len(ids))
        noises = [noise_sd] * len(ids) if np.ndim(noise_sd) == 0 else _one_each("noise_sd", noise_sd, len(ids))
        news = {}
        for number, value, noise in zip(ids.tolist(), told, noises, strict=True):
            i = self._row(number)
            if i is not None and i not in self._told and i not in news:
                news[i] = self._outcome(i, value, noise)
        self._accept(news)
        return len(news)

    def fit(self) -> Fit:
        """The posterior: the finished one, or what there is so far, which is then not called converged."""
        so_far = self._fit or self._run.so_far()
        if so_far is None:
            msg = f"no step was made yet: tell the values of the first {self._last.size} points"
            raise RuntimeError(msg)
        return so_far

    def save(self, path: PathLike) -> None:
        """Write all that was told, and where the fit stands, to one file without code in it; `load` goes on from there."""
        values = {"snapshot": self._snapshot, "family": self._run.family, "budget": self._run.budget}
        policy = self._run.black_box.on_failure
        setup = {"model": self._run.model.to_spec(), "on_failure": policy if isinstance(policy, str) else None}
        answers = Answers()
        if self._told:
            answers.add(self._last, self._told)
        identity = Identity(secrets.token_hex(8), self._run.seed, {})
        write_saved(path, identity, values | {"method": self._run.algorithm}, setup, answers)

    @classmethod
    def load(
        cls, path: PathLike, *, prior: Any = None, method: Algorithm | None = None, on_failure: OnFailure | None = None
    ) -> Self:
        """Go on from what `save` wrote.

        Parameters
        ----------
        path
            The file.
        prior, method, on_failure
            As they were given, if they hold functions or classes of your own, which are not in the file.
        """
        saved = read_saved(path)
        self = cls.__new__(cls)
        algorithm = saved.read("method", object) if method is None else method
        model, policy = _remembered(saved, prior, on_failure)
        self._run = Run(
            model,
            saved.read("family", Family),
            BlackBox(_somebody_else, on_failure=policy),
            None,
            algorithm,
            saved.read("budget", Budget),
            saved.seed,
        )
        saved.restore(self._run)
        self._checkpoint = None
        self._begin(None, saved.answers)
        return self

    def _begin(self, init: Any, answers: Answers) -> None:
        self._fit: Fit | None = None
        self._kept_answers, keep = answers, self._run.on_turn

        def remember(is_last: bool) -> None:
            self._snapshot = self._run.snapshot()
            if keep is not None:
                keep(is_last)

        self._run.on_turn = remember
        self._conversation: Conversation = self._run.requests(init, Progress(shown=False))
        self._wait_for(next(self._conversation))
        self._go_on()

    def _wait_for(self, request: Request) -> None:
        self._request: Request | None = request
        self._last = request
        self._first_id = self._run.black_box.n_evals
        self._told = self._checkpoint.known(request) if self._checkpoint is not None else self._kept_answers.to(request)

    def _accept(self, news: dict[int, Outcome]) -> None:
        if self._checkpoint is not None and news:
            self._checkpoint.note(self._last, news)
        self._told.update(news)
        self._go_on()

    def _go_on(self) -> None:
        """Take all the steps for which nothing is missing."""
        while self._request is not None and len(self._told) == self._request.size:
            evaluations = self._run.black_box(self._request.points, known=self._told)
            try:
                self._wait_for(self._conversation.send(evaluations))
            except StopIteration as end:
                self._request, self._fit = None, end.value
            except (EvaluationError, DomainError) as error:
                self._request, self._fit = None, error.fit
                raise

    def _row(self, number: Any) -> int | None:
        """Row of a point in the present request; None if it was told long ago."""
        i = number - self._first_id if isinstance(number, int) else self._last.size
        if i >= self._last.size or number < 0:
            msg = f"`points` must be such as `ask` gave, got number {number!r}; the last one given was {self._first_id + self._last.size - 1}"
            raise ValueError(msg)
        return i if i >= 0 and self._request is not None else None

    def _outcome(self, i: int, value: Any, noise_sd: Any) -> Outcome:
        """Judge a value as if the function had returned it, or raised."""

        def function(_: Any) -> Any:
            if value is None:
                raise _NoValueError
            if isinstance(value, BaseException):
                raise value
            return value, noise_sd

        (outcome,) = Calls(function)(rows(self._last.points, [i]), (), (ShapeError,))
        if outcome.failure is not None and treatment_of(outcome.failure, self._run.black_box.on_failure) == "raise":
            msg = f"point {self._first_id + i} was told {outcome.failure!r}; pass on_failure='exclude' or 'floor' to go on without such points"
            raise EvaluationError(msg, outcome.failure)
        return outcome


class _NoValueError(Exception):
    def __str__(self) -> str:
        return "None was told in place of a value"


def _somebody_else(*_: Any) -> float:
    msg = "values come by `tell`"
    raise AssertionError(msg)


def _remembered(saved: Saved, prior: Any, on_failure: OnFailure | None) -> tuple[Model, OnFailure]:
    policy = saved.setup.get("on_failure") if on_failure is None else on_failure
    if policy is None:
        msg = f"{str(saved.path)!r} was saved with an `on_failure` of yours, which files do not hold: pass on_failure= to load"
        raise CheckpointError(msg)
    try:
        return Model.from_spec(saved.setup["model"], priors=prior), policy
    except (KeyError, TypeError) as error:
        msg = f"{str(saved.path)!r} was not written by Ask.save; use it as checkpoint= where it comes from"
        raise CheckpointError(msg) from error


def _listed(points: Any) -> list[int]:
    return list(points) if isinstance(points, Iterable) else [points]


def _one_each(name: str, values: Any, n: int) -> list[Any]:
    is_one = not isinstance(values, Iterable) or isinstance(values, str) or getattr(values, "ndim", 1) == 0
    listed = [values] if is_one else list(values)
    if len(listed) != n:
        msg = f"`{name}` must be one for each of the {n} points, got {len(listed)}"
        raise ValueError(msg)
    return listed
