"""Problem: a log-likelihood with its prior and all that a fit should know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qbvi.arguments import a_function, shown

if TYPE_CHECKING:
    from qbvi.ask import Ask
    from qbvi.results import Fit

__all__ = ["Arguments", "Problem", "with_arguments"]


@dataclass(frozen=True, eq=False)
class Problem:
    """A log-likelihood and its prior, ready to be fitted.

    `qbvi.from_cube`, `qbvi.from_log_prob` and the other functions that read the problems of other
    packages return one. ``problem.fit(...)`` and ``qbvi.fit(problem, ...)`` are the same.

    Parameters
    ----------
    log_likelihood : callable
        As for `qbvi.fit`.
    prior : Any
        As for `qbvi.fit`.
    init : Any
        Where a fit starts, unless it is given another ``init``, or ``evaluations``.
    options : mapping
        Further options of `qbvi.fit`, such as ``vectorized``; those that a fit is given come first.

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> y = np.array([1.2, 0.7, 1.9])
    >>> problem = qbvi.Problem(lambda m: -0.5 * np.sum((y - m) ** 2), qbvi.Normal(0, 1))
    >>> problem.fit(seed=1).elbo == qbvi.fit(problem, seed=1).elbo
    True
    """

    log_likelihood: Callable[..., Any]
    prior: Any
    init: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        a_function("log_likelihood", self.log_likelihood)

    def fit(self, **options: Any) -> Fit:
        """Fit the posterior.

        Parameters
        ----------
        **options
            Options of `qbvi.fit`: ``seed``, ``executor``, ``checkpoint``, ``max_evals`` ...
        """
        from qbvi.fit import fit

        _refuse(options, "log_likelihood", "prior")
        return fit(self.log_likelihood, self.prior, **self._start(options), **{**self.options, **options})

    def ask(self, **options: Any) -> Ask:
        """The same fit where the caller owns the loop, and calls `log_likelihood` at each point.

        Parameters
        ----------
        **options
            Options of `qbvi.Ask`.
        """
        from qbvi.ask import Ask

        _refuse(options, "prior")
        own = {name: value for name, value in self.options.items() if name not in _CALLS}
        return Ask(self.prior, **self._start(options), **{**own, **options})

    def _start(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The start of this problem, unless the options have one or earlier evaluations give it."""
        is_given = "init" in options or "init" in self.options or options.get("evaluations") is not None
        return {} if is_given else {"init": self.init}


# Options that say how the function is called, which `qbvi.Ask` leaves to the caller.
_CALLS = ("vectorized", "args", "executor", "timeout", "data", "backend", "device", "dtype")


def _refuse(options: Mapping[str, Any], *names: str) -> None:
    given = next((name for name in names if name in options), None)
    if given is not None:
        msg = f"`{given}` must be left out: a qbvi.Problem has its own; make another problem to change it"
        raise TypeError(msg)


@dataclass(frozen=True, eq=False)
class Arguments:
    """A function with further arguments after the point: ``function(point, *args, **kwargs)``."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *point: Any) -> Any:
        """The value at a point, which may have its data after it."""
        return self.function(*point, *self.args, **self.kwargs)


def with_arguments(
    function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The function with its further arguments; itself if there are none.

    Examples
    --------
    >>> with_arguments(lambda x, a, b: a * x + b, args=(2, 1))(5)
    11
    """
    if not isinstance(args, tuple | list):
        msg = f"`args` must be a tuple or list of further arguments, got {shown(args)}; for a single one write args=(value,)"
        raise TypeError(msg)
    if kwargs is not None and not isinstance(kwargs, Mapping):
        msg = f"`kwargs` must be a dict of further arguments by name, got {shown(kwargs)}"
        raise TypeError(msg)
    if not args and not kwargs:
        return function
    return Arguments(a_function("log_likelihood", function), tuple(args), dict(kwargs or {}))
