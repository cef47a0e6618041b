"""When to stop, and the sentence that says why. A rule reads the history and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from qbvi.arguments import whole_number

__all__ = ["Budget", "GapBelow", "History", "MaxIterations", "ParameterChange", "Patience", "Rule", "Stop"]


class Stop(NamedTuple):
    """How a fit ended: whether it may be called converged, and why it ended, in a sentence."""

    converged: bool
    reason: str


@dataclass
class History:
    """What happened so far: one entry per step, oldest first.

    Parameters
    ----------
    window
        Number of bounds that the smoothed bound averages.

    Examples
    --------
    >>> history = History(window=2)
    >>> for bound in (0.0, 1.0, 3.0):
    ...     history.append(elbo=bound, n_evals=10, step=0.1, grad_norm=1.0, seconds=0.0, mean=[0.0], sd=[1.0])
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
    _best: tuple[int, int] = (0, 0)  # steps looked at so far, and the best of them

    def append(self, **entry: object) -> None:
        """Add one step, and smooth its bound."""
        for name, value in entry.items():
            getattr(self, name).append(value)
        self.elbo_smooth.append(float(np.mean(self.elbo[-self.window :])))

    def __len__(self) -> int:
        return len(self.elbo)

    @property
    def best(self) -> int:
        """The step with the best smoothed bound; the first of several, and of none that is a number."""
        looked, best = self._best
        for step in range(looked, len(self)):
            if self.elbo_smooth[step] > self.elbo_smooth[best] or np.isnan(self.elbo_smooth[best]):
                best = step if not np.isnan(self.elbo_smooth[step]) else best
        self._best = len(self), best
        return best

    def recorded(self) -> dict[str, list[Any]]:
        """Everything that is recorded of the steps, by name."""
        return {name: values for name, values in vars(self).items() if name not in ("window", "_best")}


class Rule(Protocol):
    """Anything that reads the history and says when to stop.

    A rule may also have ``soonest(history)``: how many steps from now it could speak at the earliest, one or more. So many can be made
    in one compiled chunk; without it, one.
    """

    def __call__(self, history: History) -> Stop | None:
        """Return how to stop, or None to go on."""
        ...


@dataclass(frozen=True)
class Patience:
    """Stop when the smoothed bound has not improved for ``patience`` steps (paper, "LB smoothing and stopping criterion").

    Examples
    --------
    >>> history = History(window=1)
    >>> for bound in (1.0, 0.0, 0.0):
    ...     history.append(elbo=bound, n_evals=10, step=0.1, grad_norm=1.0, seconds=0.0, mean=[0.0], sd=[1.0])
    >>> Patience(2)(history)
    Stop(converged=True, reason='the smoothed lower bound did not improve for 2 iterations')
    """

    patience: int = 500

    def __call__(self, history: History) -> Stop | None:
        """Compare the present step with the best one."""
        if not len(history) or len(history) - 1 - history.best < self.patience:
            return None
        return Stop(True, f"the smoothed lower bound did not improve for {self.patience} iterations")

    def soonest(self, history: History) -> int:
        """When the patience is over if nothing improves."""
        since = len(history) - 1 - history.best if len(history) else -1
        return max(1, self.patience - since)


@dataclass(frozen=True)
class GapBelow:
    """Stop when two of the last three predictions of the nats still to be gained are below ``tol``, or the last is below a quarter of it.

    A prediction is a noisy number looked at many times: the first one below ``tol`` may be luck.

    Parameters
    ----------
    tol
        Nats.
    finest
        Where it is given, go on below ``tol`` down to this as long as the last two predictions are at most half of all before: digits that cost one step each.

    Examples
    --------
    >>> GapBelow(0.01)(History()) is None
    True
    """

    tol: float = 0.01
    finest: float | None = None

    def __call__(self, history: History) -> Stop | None:
        """Read the last prediction."""
        last = history.gap[-3:]
        below = [gap < self.tol for gap in last]
        if not below or not below[-1] or not (sum(below) >= 2 or last[-1] < self.tol / 4):
            return None
        if (
            self.finest is not None
            and last[-1] > self.finest
            and min(last[-2:]) < 0.5 * min([*history.gap[:-2], np.inf])
        ):
            return None
        return Stop(True, f"the gain still to be had is predicted to be below {self.tol:g} nats")


@dataclass(frozen=True)
class ParameterChange:
    """Stop when no mean moved, and no standard deviation changed, by more than ``tol`` standard deviations for a while.

    Parameters
    ----------
    tol
        Largest change, in units of the present standard deviation.
    steps
        Over how many steps.

    Examples
    --------
    >>> import numpy as np
    >>> history = History()
    >>> for _ in range(3):
    ...     history.append(elbo=0.0, n_evals=10, step=0.1, grad_norm=1.0, seconds=0.0, mean=np.zeros(2), sd=np.ones(2))
    >>> ParameterChange(0.01, steps=2)(history).converged
    True
    """

    tol: float = 1e-3
    steps: int = 20

    def __call__(self, history: History) -> Stop | None:
        """Compare the last steps with each other."""
        if len(history) <= self.steps:
            return None
        mean, sd = np.stack(history.mean[-self.steps - 1 :]), np.stack(history.sd[-self.steps - 1 :])
        change = max(np.max(np.abs(mean - mean[-1]) / sd[-1]), np.max(np.abs(sd - sd[-1]) / sd[-1]))
        if not change <= self.tol:
            return None
        return Stop(
            True, f"no parameter changed by more than {self.tol:g} standard deviations in {self.steps} iterations"
        )

    def soonest(self, history: History) -> int:
        """When there are enough steps to compare."""
        return max(1, self.steps + 1 - len(history))


@dataclass(frozen=True)
class MaxIterations:
    """Stop after a number of steps.

    Examples
    --------
    >>> MaxIterations(10)(History()) is None
    True
    """

    iterations: int = 1000

    def __post_init__(self) -> None:
        whole_number("iterations", self.iterations)

    def __call__(self, history: History) -> Stop | None:
        """Count."""
        if len(history) < self.iterations:
            return None
        return Stop(False, f"{self.iterations} iterations were made while the bound could still rise")

    def soonest(self, history: History) -> int:
        """When they are made."""
        return max(1, self.iterations - len(history))


@dataclass(frozen=True)
class Budget:
    """Stop before the next step would spend more evaluations or seconds than allowed.

    Parameters
    ----------
    max_evals, max_time
        Evaluations of the user's function, and seconds; None for no limit.
    reserve
        Evaluations kept for the fresh estimate at the end.

    Examples
    --------
    >>> Budget(max_evals=100)(History()) is None
    True
    """

    max_evals: int | None = None
    max_time: float | None = None
    reserve: int = 0

    def __call__(self, history: History) -> Stop | None:
        """Compare what the next step is expected to cost with what is left."""
        if not len(history):
            return None
        spent, before = history.n_evals[-1], history.n_evals[-2] if len(history) > 1 else 0
        if self.max_evals is not None and spent + (spent - before) + self.reserve > self.max_evals:
            return self.spent()
        if self.max_time is not None and history.seconds[-1] >= self.max_time:
            return Stop(False, f"the {self.max_time:g} seconds allowed were over before the fit settled")
        return None

    def soonest(self, history: History) -> int:
        """When evaluations or seconds run out at the pace of the last step."""
        if not len(history):
            return 1
        cost = history.n_evals[-1] - (history.n_evals[-2] if len(history) > 1 else 0)
        pace = history.seconds[-1] - (history.seconds[-2] if len(history) > 1 else 0.0)
        left = [] if self.max_evals is None else [(self.max_evals - self.reserve - history.n_evals[-1]) / max(cost, 1)]
        left += [] if self.max_time is None else [(self.max_time - history.seconds[-1]) / max(pace, 1e-9)]
        return max(1, int(min([*left, 1e9])))

    def spent(self) -> Stop:
        """How a fit ends that has no evaluations left."""
        return Stop(False, f"the budget of {self.max_evals:,} evaluations was spent before the fit settled")
