"""When to stop, and why.

A stopping rule reads the history and nothing else. Its result is a `Stop`: a kind for programs, and
a sentence for people.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import positive_number, shown, whole_number
from qbvi.ending import Stop, StopKind

__all__ = [
    "Budget",
    "GapBelow",
    "History",
    "MaxIterations",
    "MissingBelow",
    "ParameterChange",
    "Patience",
    "Rule",
    "as_rule",
]

RESERVE = 4  # the fresh draws at the end take at most a quarter of the budget
_NEVER = 10**9  # steps: more than any run makes
_FASTEST = 1e-9  # least seconds of a step, to avoid a division by zero


@dataclass
class History:
    """The steps so far: one entry for each, oldest first.

    Parameters
    ----------
    window
        Number of bounds that the smoothed bound averages.

    Examples
    --------
    >>> history = History(window=2)
    >>> rest = {"n_evals": 9, "step": 1.0, "grad_norm": 1.0, "seconds": 0.0, "mean": [0], "sd": [1]}
    >>> for bound in (0.0, 1.0, 3.0):
    ...     history.append(elbo=bound, **rest)
    >>> history.elbo_smooth
    [0.0, 0.5, 2.0]
    """

    window: int = 30
    elbo: list[float] = field(default_factory=list)
    elbo_smooth: list[float] = field(default_factory=list)
    n_evals: list[int] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    grad_norm: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    mean: list[NDArray[np.float64]] = field(default_factory=list)
    sd: list[NDArray[np.float64]] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    _best: tuple[int, int] = (0, 0)  # number of steps compared so far, and the best of them

    def append(self, **entry: object) -> None:
        """Add one step, and smooth its bound."""
        for name, value in entry.items():
            getattr(self, name).append(value)
        self.elbo_smooth.append(float(np.mean(self.elbo[-self.window :])))

    def __len__(self) -> int:
        return len(self.elbo)

    @property
    def best(self) -> int:
        """The step with the best smoothed bound: the first if several are equal or all are NaN."""
        looked, best = self._best
        for step in range(looked, len(self)):
            if self.elbo_smooth[step] > self.elbo_smooth[best] or np.isnan(self.elbo_smooth[best]):
                best = step if not np.isnan(self.elbo_smooth[step]) else best
        self._best = len(self), best
        return best

    def recorded(self) -> dict[str, list[Any]]:
        """All records of the steps, by name."""
        return {name: values for name, values in vars(self).items() if name not in ("window", "_best")}


class Rule(ABC):
    """A stopping rule: it reads the history and decides when to stop.

    A new rule must define `__call__`. The two other members let a compiled loop make many steps
    before it calls the rule again. Their defaults are correct for every rule.
    """

    @abstractmethod
    def __call__(self, history: History) -> Stop | None:
        """Return a `Stop`, or None to continue."""

    def soonest(self, history: History) -> int:
        """Least number of further steps, one or more, after which the rule may apply."""
        return 1

    @property
    def pause_below(self) -> float:
        """Predicted gap, in nats, above which the rule never applies.

        Minus infinity if the rule does not depend on the gap.
        """
        return -math.inf


@dataclass(frozen=True)
class _Function(Rule):
    """A plain function as a rule."""

    function: Callable[[History], Stop | None]

    def __call__(self, history: History) -> Stop | None:
        stop = self.function(history)
        if stop is not None and not isinstance(getattr(stop, "kind", None), StopKind):
            msg = f"a rule must return None or a stop such as qbvi.stopping.Stop.own(True, 'done'), got {stop!r}"
            raise TypeError(msg)
        return stop


def as_rule(rule: Any) -> Rule:
    """Return a rule as it is, and a function of the history as a rule.

    Examples
    --------
    >>> rule = as_rule(lambda history: Stop.own(True, "enough") if len(history) > 9 else None)
    >>> rule(History()) is None
    True
    """
    if isinstance(rule, Rule):
        return rule
    if callable(rule) and not isinstance(rule, type):
        return _Function(rule)
    msg = (
        f"`stop` must hold rules, functions of the history that return a qbvi.stopping.Stop or None, got {shown(rule)}"
    )
    raise TypeError(msg)


@dataclass(frozen=True)
class Patience(Rule):
    """Stop when the smoothed bound has not improved for ``patience`` steps.

    This is the paper's rule ("LB smoothing and stopping criterion").

    Examples
    --------
    >>> history = History(window=1)
    >>> rest = {"n_evals": 9, "step": 1.0, "grad_norm": 1.0, "seconds": 0.0, "mean": [0], "sd": [1]}
    >>> for bound in (1.0, 0.0, 0.0):
    ...     history.append(elbo=bound, **rest)
    >>> Patience(2)(history).reason
    'the smoothed lower bound did not improve for 2 iterations'
    """

    patience: int = 500

    def __post_init__(self) -> None:
        object.__setattr__(self, "patience", whole_number("patience", self.patience))

    def __call__(self, history: History) -> Stop | None:
        """Count the steps since the best one."""
        if not len(history) or len(history) - 1 - history.best < self.patience:
            return None
        return Stop.of(StopKind.PATIENCE, patience=self.patience)

    def soonest(self, history: History) -> int:
        """Steps until the patience ends if nothing improves."""
        since = len(history) - 1 - history.best if len(history) else -1
        return max(1, self.patience - since)


@dataclass(frozen=True)
class Plateau(Rule):
    """Stop when the bound rises by no more than its noise.

    The mean bound of the last quarter of all steps is compared with that of the quarter before. The
    noise of one bound is estimated from the differences of successive ones, so that a slow rise
    does not count as noise. With a decaying learning rate and noisy bounds, `Patience` waits too
    long: the best of many noisy bounds is nearly always a recent one.

    Parameters
    ----------
    fewest
        Least number of steps.
    every
        The rule is applied once in so many steps.
    errors
        Standard errors of the rise, below which it counts as noise.

    Examples
    --------
    >>> import math
    >>> history = History()
    >>> rest = {"n_evals": 9, "step": 1.0, "grad_norm": 1.0, "seconds": 0.0, "mean": [0], "sd": [1]}
    >>> for t in range(500):
    ...     history.append(elbo=math.sin(9 * t) - 1e3 * math.exp(-t / 20), **rest)
    >>> Plateau()(history).reason
    'the lower bound rose by no more than its noise over the last 250 iterations'
    """

    fewest: int = 500
    every: int = 100
    errors: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "fewest", whole_number("fewest", self.fewest, least=_QUARTERS * 2))
        object.__setattr__(self, "every", whole_number("every", self.every))
        positive_number("errors", self.errors)

    def __call__(self, history: History) -> Stop | None:
        """Compare two quarters of the steps."""
        n = len(history)
        if n < self.fewest or n % self.every:
            return None
        w = n // _QUARTERS
        before, last = np.asarray(history.elbo[-2 * w : -w]), np.asarray(history.elbo[-w:])
        variance = np.mean(np.diff(history.elbo[-2 * w :]) ** 2) / 2
        if not last.mean() - before.mean() <= self.errors * math.sqrt(2 * variance / w):
            return None
        return Stop.of(StopKind.PLATEAU, steps=2 * w)

    def soonest(self, history: History) -> int:
        """Steps until the rule is applied next."""
        n = max(len(history) + 1, self.fewest)
        return -(-n // self.every) * self.every - len(history)


_QUARTERS = 4  # parts of all steps, of which a plateau compares the last two
_GAPS, _GAPS_BELOW = 3, 2  # two of the last three predictions must be below the tolerance, ...
_WELL_BELOW = 4  # ... or the last one below a quarter of it


@dataclass(frozen=True)
class GapBelow(Rule):
    """Stop when the predicted gain of further steps is below ``tol``.

    The last prediction must be below ``tol``, and one of these must hold:

    - two of the last three predictions are below ``tol``,
    - the last one is below a quarter of ``tol``.

    One prediction is not enough: predictions are noisy and there are many of them, so the first one
    below ``tol`` may be chance.

    Parameters
    ----------
    tol
        Tolerance in nats.
    finest
        If given, continue below ``tol`` down to this value while the predictions halve: the smaller
        of the last two is below half of all before. Digits then cost one step each.

    Examples
    --------
    >>> GapBelow(0.01)(History()) is None
    True
    """

    tol: float = 0.01
    finest: float | None = None

    def __call__(self, history: History) -> Stop | None:
        """Read the last predictions."""
        last = history.gap[-_GAPS:]
        below = [gap < self.tol for gap in last]
        if not below or not below[-1] or not (sum(below) >= _GAPS_BELOW or last[-1] < self.tol / _WELL_BELOW):
            return None
        if self.finest is not None and last[-1] > self.finest and _is_halving(history.gap):
            return None
        return Stop.of(StopKind.GAP, tol=self.tol)

    @property
    def pause_below(self) -> float:
        """The tolerance: a chunk of steps ends with the first step that predicts less."""
        return self.tol

    def soonest(self, history: History) -> int:
        """No limit: only a step that predicts less than the tolerance can be the last."""
        return _NEVER


@dataclass(frozen=True)
class MissingBelow(Rule):
    """Stop when fewer nats than ``tol`` are missing of the posterior.

    Unlike `GapBelow` it takes the method's word at once: the estimate is from draws that the
    posterior had not seen, over several rounds.

    Examples
    --------
    >>> MissingBelow(0.05)(History()) is None
    True
    """

    tol: float = 0.05

    def __call__(self, history: History) -> Stop | None:
        """Read the last estimate."""
        is_below = bool(history.gap) and history.gap[-1] < self.tol
        return Stop.of(StopKind.MISSING, tol=self.tol) if is_below else None


def _is_halving(gap: list[float]) -> bool:
    """Whether the smaller of the last two predictions is below half of all before."""
    return bool(min(gap[-2:]) < 0.5 * min([*gap[:-2], np.inf]))


@dataclass(frozen=True)
class ParameterChange(Rule):
    """Stop when means and standard deviations have hardly changed for a number of steps.

    Parameters
    ----------
    tol
        Largest change of a mean or standard deviation, in units of the current standard deviation.
    steps
        Number of steps over which the change is measured.

    Examples
    --------
    >>> import numpy as np
    >>> history = History()
    >>> moments = {"mean": np.zeros(2), "sd": np.ones(2)}
    >>> for _ in range(3):
    ...     history.append(elbo=0.0, n_evals=10, step=0.1, grad_norm=1.0, seconds=0.0, **moments)
    >>> ParameterChange(0.01, steps=2)(history).converged
    True
    """

    tol: float = 1e-3
    steps: int = 20

    def __post_init__(self) -> None:
        positive_number("tol", self.tol)
        object.__setattr__(self, "steps", whole_number("steps", self.steps))

    def __call__(self, history: History) -> Stop | None:
        """Compare the last steps with the current one."""
        if len(history) <= self.steps:
            return None
        mean, sd = np.stack(history.mean[-self.steps - 1 :]), np.stack(history.sd[-self.steps - 1 :])
        change = max(np.max(np.abs(mean - mean[-1]) / sd[-1]), np.max(np.abs(sd - sd[-1]) / sd[-1]))
        if not change <= self.tol:
            return None
        return Stop.of(StopKind.PARAMETERS, tol=self.tol, steps=self.steps)

    def soonest(self, history: History) -> int:
        """Steps until there are enough to compare."""
        return max(1, self.steps + 1 - len(history))


@dataclass(frozen=True)
class MaxIterations(Rule):
    """Stop after a number of steps.

    Examples
    --------
    >>> MaxIterations(10)(History()) is None
    True
    """

    iterations: int = 1000

    def __post_init__(self) -> None:
        object.__setattr__(self, "iterations", whole_number("iterations", self.iterations))

    def __call__(self, history: History) -> Stop | None:
        """Count the steps."""
        if len(history) < self.iterations:
            return None
        return Stop.of(StopKind.ITERATIONS, iterations=self.iterations)

    def soonest(self, history: History) -> int:
        """Steps that are left."""
        return max(1, self.iterations - len(history))


@dataclass(frozen=True)
class Budget(Rule):
    """Stop before the next step exceeds the evaluations, or once the time is over.

    Parameters
    ----------
    max_evals, max_time
        Largest number of evaluations of the user's function, and of seconds; None for no limit.
    reserve
        Evaluations reserved for the fresh draws at the end. Time is reserved too: for another step
        and so many evaluations, at the pace so far, but at most a quarter of ``max_time``.
    is_default
        Whether the method has chosen the number of evaluations, not the user.

    Examples
    --------
    >>> Budget(max_evals=100)(History()) is None
    True
    """

    max_evals: int | None = None
    max_time: float | None = None
    reserve: int = 0
    is_default: bool = False

    def __call__(self, history: History) -> Stop | None:
        """Compare the cost of another step like the last one with what is left."""
        if not len(history):
            return None
        spent, before = history.n_evals[-1], history.n_evals[-2] if len(history) > 1 else 0
        if self.max_evals is not None and spent + (spent - before) + self.reserve > self.max_evals:
            return self.spent()
        if self.max_time is not None and history.seconds[-1] >= self.max_time - self._reserved_time(history):
            return Stop.of(StopKind.SECONDS, seconds=self.max_time)
        return None

    def soonest(self, history: History) -> int:
        """Steps until evaluations or seconds run out, if all cost as much as the last one."""
        if not len(history):
            return 1
        cost = history.n_evals[-1] - (history.n_evals[-2] if len(history) > 1 else 0)
        pace = history.seconds[-1] - (history.seconds[-2] if len(history) > 1 else 0.0)
        left = [] if self.max_evals is None else [(self.max_evals - self.reserve - history.n_evals[-1]) / max(cost, 1)]
        left += (
            []
            if self.max_time is None
            else [(self.max_time - self._reserved_time(history) - history.seconds[-1]) / max(pace, _FASTEST)]
        )
        return max(1, int(min([*left, _NEVER])))

    def _reserved_time(self, history: History) -> float:
        """Seconds for the fresh draws at the end."""
        assert self.max_time is not None
        if not self.reserve:
            return 0.0
        each = history.seconds[-1] / max(history.n_evals[-1], 1)
        step = history.seconds[-1] - (history.seconds[-2] if len(history) > 1 else 0.0)
        return min(self.reserve * each + step, self.max_time / RESERVE)

    def spent(self) -> Stop:
        """The stop of a fit that has spent its evaluations."""
        words = "default budget (max_evals)" if self.is_default else "budget"
        return Stop.of(StopKind.EVALUATIONS, evaluations=self.max_evals, budget=words)
