"""Ask and tell: the same fit where the caller owns the loop.

Use it when a job queue, a laboratory or another program stands between a point and its value.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from qbvi.archive import PathLike
from qbvi.arguments import a_function, a_path
from qbvi.arrange import Groups, LowRank, arrange, size_note
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
from qbvi.conversation import Conversation, Iterate, Request
from qbvi.earlier import Earlier
from qbvi.ending import Stop, StopKind
from qbvi.evaluate import BlackBox, EvaluationError, OnFailure, Outcome
from qbvi.evaluate.calls import Calls, ShapeError
from qbvi.families import Family
from qbvi.methods import Task, choose_budget, choose_method, choose_verdict, most_joint_wholes
from qbvi.model import Model
from qbvi.points import row, rows
from qbvi.progress import Progress
from qbvi.protocol import Algorithm
from qbvi.results import Fit
from qbvi.run import Run
from qbvi.starts import check_init
from qbvi.stopping import Budget
from qbvi.verdict import Verdict

__all__ = ["Ask", "Points"]

_NO_TRIES: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Points:
    """Points at which values of the function are needed, each with a number of its own.

    Attributes
    ----------
    values
        The points, stacked along a first axis: an array, or a dict of arrays by name.
    ids
        Their numbers, (n,). Send a number along with its point: it identifies the value, even if
        the point was rounded on the way.

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
        """Iterate over single points, as a function of one point takes them."""
        return (row(self.values, i) for i in range(len(self)))

    def __getitem__(self, which: slice | Sequence[int] | NDArray[Any]) -> Points:
        """Some of the points."""
        chosen = np.arange(len(self))[which]
        return Points(rows(self.values, np.atleast_1d(chosen).tolist()), np.atleast_1d(self.ids[which]))


class Ask:
    """A fit whose values come from the caller: `ask` gives the points, `tell` takes the values.

    With the same seed the posterior equals that of `qbvi.fit` to the last bit, whatever its shape.
    The order and the portions in which the values arrive do not matter. New points appear once
    every value of the current iteration is in. An iteration is a step of a Gaussian, a part of a
    survey of the prior, or a round that checks and extends the posterior.

    Parameters
    ----------
    prior, method, family, init, evaluations, tol, max_evals, seed, callback, checkpoint
        As for `qbvi.fit`. There is one start, as with ``n_starts="auto"``.
    on_failure, on_mismatch
        As for `qbvi.fit`. With ``on_failure="raise"`` a failed value raises an error and is not
        kept, so another value can be given for the same point.

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
    >>> f = lambda x: -0.5 * np.sum((x - 1.0) ** 2)
    >>> opt.fit().elbo == qbvi.fit(f, qbvi.Normal(0, 1, shape=2), seed=1).elbo
    True
    """

    def __init__(  # noqa: PLR0913 - as many as `fit` has, each with a default that works
        self,
        prior: Any,
        *,
        method: str | Algorithm = "auto",
        family: str | Groups | Mapping[Any, str] | LowRank = "auto",
        init: Any = None,
        evaluations: Any = None,
        tol: float | None = None,
        max_evals: int | None = None,
        on_failure: OnFailure = "raise",
        seed: int | np.random.Generator | np.random.SeedSequence | None = None,
        callback: Callable[[Iterate], bool | None] | None = None,
        checkpoint: PathLike | None = None,
        on_mismatch: str = "raise",
    ) -> None:
        a_path("checkpoint", checkpoint, optional=True)
        a_function("callback", callback, optional=True)
        model, posterior = arrange(prior, family, most_joint_wholes(method))
        check_init(model, init)
        task = Task.of(posterior, family, tol, max_evals)
        algorithm = choose_method(method, model, task)
        budget = choose_budget(algorithm, model.dim, max_evals, None, 1)
        given = {"prior": prior, "method": algorithm, "family": family, "init": init}
        earlier = Earlier.of(evaluations, model)
        given |= {} if earlier is None else {"evaluations": earlier.digest}
        has_start = init is not None or earlier is not None
        algorithm = algorithm.looking_at(model, budget.max_evals, has_start=has_start)
        self._run = Run(
            model=model,
            family=posterior,
            black_box=BlackBox(_no_function, on_failure=on_failure),
            batches=None,
            algorithm=algorithm,
            budget=budget,
            seed=resumed_seed(seed, checkpoint),
            verdict=choose_verdict(method, task),
            callback=callback,
            earlier=earlier,
            note=size_note(family, posterior),
        )
        self._checkpoint: Checkpoint | None = None
        if checkpoint is not None:
            prints = {name: fingerprint(name, value) for name, value in {**given, "seed": self._run.seed}.items()}
            self._checkpoint = Checkpoint(checkpoint, self._run, prints, on_mismatch)
            init = self._checkpoint.begin(init)
        self._begin(init, Answers())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the checkpoint, if there is one. It holds every value received so far."""
        if self._checkpoint is not None:
            self._checkpoint.__exit__()

    @property
    def done(self) -> bool:
        """Whether the fit has ended and needs no more values, also if an error ended it."""
        return self._request is None

    def ask(self) -> Points:
        """Return all points of the current step whose values are missing.

        Asking again returns the same points until `tell` receives their values. A finished fit
        returns no points.
        """
        if self._request is None:
            return Points(rows(self._last.points, []), np.empty(0, dtype=np.int64))
        wanted = [i for i in range(self._request.size) if i not in self._received]
        return Points(rows(self._request.points, wanted), np.array(wanted, dtype=np.int64) + self._first_id)

    def tell(self, points: Points | Iterable[int] | int, values: Any, noise_sd: Any = 0.0) -> int:
        """Give values of the function at points, in any order and in any portions.

        New points appear once every value of the current step is in.

        Parameters
        ----------
        points
            Points that `ask` returned, some of them, or their numbers.
        values
            One number for each point. NaN, an infinity, None or an exception is a failure, handled
            as ``on_failure`` says. With ``"retry"`` it is not kept: `ask` returns the point again,
            until its tries are used up.
        noise_sd
            Standard deviation of the noise of each value, if known: one number for all points, or
            one for each.

        Returns
        -------
        int
            The number of values that were new. The first value of a point counts; later ones are
            ignored.
        """
        ids = np.atleast_1d(points.ids if isinstance(points, Points) else np.asarray(_listed(points)))
        listed = _one_each("values", values, len(ids))
        noises = [noise_sd] * len(ids) if np.ndim(noise_sd) == 0 else _one_each("noise_sd", noise_sd, len(ids))
        news = {}
        for number, value, noise in zip(ids.tolist(), listed, noises, strict=True):
            i = self._row(number)
            if i is not None and i not in self._received and i not in news:
                outcome = self._outcome(i, value, noise)
                if not self._is_to_try_again(i, outcome):
                    news[i] = outcome
        self._receive(news)
        return len(news)

    def fit(self) -> Fit:
        """Return the posterior.

        Before the fit is done it is the current one, marked as not converged.
        """
        so_far = self._fit or self._run.so_far()
        if so_far is None and self._error is not None:
            msg = f"there is no posterior, as the first step ended with an error: {self._error}"
            raise RuntimeError(msg)
        if so_far is None:
            msg = f"there is no posterior before the first step: give the values of its {self._last.size} points to `tell`"
            raise RuntimeError(msg)
        return so_far

    def save(self, path: PathLike) -> None:
        """Write the state of the fit and all values received to one file; `load` continues from it.

        The file contains no code.
        """
        values = {"snapshot": self._snapshot, "family": self._run.family, "budget": self._run.budget}
        policy, most = self._run.black_box.on_failure, self._run.verdict.most_missing
        setup = {
            "model": self._run.model.to_spec(),
            "on_failure": policy if isinstance(policy, str) else None,
            "note": self._run.note,
            "most_missing": most if math.isfinite(most) else None,
            "tries": [list(tried) for tried in self._tries.items()],
        }
        identity = Identity(secrets.token_hex(8), self._run.seed, {})
        values |= {"method": self._run.algorithm, "earlier": self._run.earlier}
        write_saved(path, identity, values, setup, self._answers)

    @classmethod
    def load(
        cls, path: PathLike, *, prior: Any = None, method: Algorithm | None = None, on_failure: OnFailure | None = None
    ) -> Self:
        """Continue a fit from a file that `save` wrote.

        Parameters
        ----------
        path
            The file.
        prior, method, on_failure
            The arguments of the original fit. Needed only where they hold functions or classes of
            your own, which the file does not contain.
        """
        saved = read_saved(path)
        self = cls.__new__(cls)
        algorithm = saved.read("method", object) if method is None else method
        model, policy = _model_and_policy(saved, prior, on_failure)
        self._run = Run(
            model,
            saved.read("family", Family),
            BlackBox(_no_function, on_failure=policy),
            None,
            algorithm,
            saved.read("budget", Budget),
            saved.seed,
            _verdict(saved),
            earlier=saved.read("earlier", object),
            note=str(saved.setup.get("note", "")),
        )
        saved.restore(self._run)
        self._checkpoint = None
        self._begin(None, saved.answers, _tries(saved))
        return self

    def _begin(self, init: Any, answers: Answers, tries: Mapping[int, int] = _NO_TRIES) -> None:
        self._fit: Fit | None = None
        self._error: BaseException | None = None  # that ended the fit
        self._tries: Counter[int] = Counter(tries)  # failed tries by number of the point
        # All values since the snapshot: there may be several requests before the next one.
        self._answers, keep = answers, self._run.on_turn

        def remember(is_last: bool) -> None:
            self._snapshot = self._run.snapshot()
            self._answers.forget_before(self._snapshot.number)
            if keep is not None:
                keep(is_last)

        self._run.on_turn = remember
        self._conversation: Conversation = self._run.requests(init, Progress(shown=False))
        # Until there is a request: a checkpoint may hold a fit that is finished.
        self._request: Request | None = None
        self._last = Request(0, rows(self._run.model.constrain(self._run.model.initial()[0][None]), []))
        self._first_id, self._received = self._run.black_box.n_evals, dict[int, Outcome]()
        self._move(lambda: next(self._conversation))
        self._advance()

    def _wait_for(self, request: Request) -> None:
        self._request = self._last = request
        self._first_id = self._run.black_box.n_evals
        for number in [tried for tried in self._tries if tried < self._first_id]:
            del self._tries[number]
        self._received = (
            self._answers.known(request, self._run.black_box)
            if self._checkpoint is None
            else self._checkpoint.known(request)
        )
        self._answers.add(request, self._received)

    def _receive(self, news: dict[int, Outcome]) -> None:
        if self._checkpoint is not None and news:
            self._checkpoint.note(self._last, news)
        self._answers.add(self._last, news)
        self._received.update(news)
        self._advance()

    def _advance(self) -> None:
        """Take every step whose values are complete."""
        while self._request is not None and len(self._received) == self._request.size:
            self._move(self._answered)

    def _answered(self) -> Request:
        """Answer the current request with the values received, and return the next."""
        return self._conversation.send(self._run.black_box(self._last.points, known=self._received))

    def _move(self, step: Callable[[], Request]) -> None:
        """Go on to the next request, or to the end of the fit."""
        try:
            self._wait_for(step())
        except StopIteration as end:
            self._request, self._fit = None, end.value
        except BaseException as error:
            # The loop cannot go on after an error: the fit has ended with what there was before.
            self._request, self._error = None, error
            self._fit = self._run.so_far(Stop.of(StopKind.ERROR, error=error))
            raise

    def _row(self, number: Any) -> int | None:
        """Row of a point in the current request; None for a point of an earlier step."""
        i = number - self._first_id if isinstance(number, int) else self._last.size
        if i >= self._last.size or number < 0:
            msg = f"`points` must be points that `ask` returned, got number {number!r}; the largest number so far is {self._first_id + self._last.size - 1}"
            raise ValueError(msg)
        return i if i >= 0 and self._request is not None else None

    def _is_to_try_again(self, i: int, outcome: Outcome) -> bool:
        """Count a failed try, and say whether ``on_failure`` allows another one."""
        if outcome.failure is None:
            return False
        self._tries[self._first_id + i] += 1
        return self._tries[self._first_id + i] < self._run.black_box.tries(outcome.failure)

    def _outcome(self, i: int, value: Any, noise_sd: Any) -> Outcome:
        """Treat a value as if the function had returned it, or raised it."""

        def function(_: Any) -> Any:
            if value is None:
                raise _NoValueError
            if isinstance(value, BaseException):
                raise value
            return value, noise_sd

        (outcome,) = Calls(function)(rows(self._last.points, [i]), (), (ShapeError,))
        box, failure = self._run.black_box, outcome.failure
        is_last = failure is not None and self._tries[self._first_id + i] + 1 >= box.tries(failure)
        if failure is not None and is_last and box.treatment(failure) == "raise":
            msg = f"point {self._first_id + i} has the value {failure!r}; pass on_failure='exclude' or 'floor' to go on without such points"
            raise EvaluationError(msg, failure)
        return outcome


class _NoValueError(Exception):
    def __str__(self) -> str:
        return "None was given in place of a value"


def _no_function(*_: Any) -> float:
    msg = "values come by `tell`"
    raise AssertionError(msg)


def _model_and_policy(saved: Saved, prior: Any, on_failure: OnFailure | None) -> tuple[Model, OnFailure]:
    policy = saved.setup.get("on_failure") if on_failure is None else on_failure
    if policy is None:
        msg = f"{str(saved.path)!r} was saved with an `on_failure` of yours, which files do not hold: pass on_failure= to load"
        raise CheckpointError(msg)
    try:
        return Model.from_spec(saved.setup["model"], priors=prior), policy
    except (KeyError, TypeError) as error:
        msg = f"{str(saved.path)!r} was not written by Ask.save; use it as checkpoint= where it comes from"
        raise CheckpointError(msg) from error


def _tries(saved: Saved) -> dict[int, int]:
    try:
        return {int(number): int(n) for number, n in saved.setup.get("tries", [])}
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(saved.inconsistent(error)) from error


def _verdict(saved: Saved) -> Verdict:
    most = saved.setup.get("most_missing")
    try:
        return Verdict() if most is None else Verdict(most_missing=float(most))
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(saved.inconsistent(error)) from error


def _listed(points: Any) -> list[int]:
    return list(points) if isinstance(points, Iterable) else [points]


def _one_each(name: str, values: Any, n: int) -> list[Any]:
    is_one = not isinstance(values, Iterable) or isinstance(values, str) or getattr(values, "ndim", 1) == 0
    listed = [values] if is_one else list(values)
    if len(listed) != n:
        msg = f"`{name}` must be one for each of the {n} points, got {len(listed)}"
        raise ValueError(msg)
    return listed
