"""What `fit` asks of a method: init, ask and tell, and a few facts about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

from qbvi.arrays import Array
from qbvi.families.base import Family
from qbvi.model import Model

__all__ = ["Algorithm", "Info", "Values"]


class Values(NamedTuple):
    """What the black box and the model say about the draws of one iteration."""

    f: Array  # (n,) log-likelihood, with the part of the log prior that eta does not carry
    log_joint: Array  # (n,) log p(y, theta), Jacobian included
    ok: Array  # (n,) False where the function failed and the value was filled in
    noise_sd: Array  # (n,) standard deviation of the function's noise, zero where it is not known


class Info(NamedTuple):
    """What a person reads about one iteration; every field is an array of the backend."""

    bound: Array  # () estimate of the lower bound at the q before the step
    h: Array  # (n,) residuals at the draws from that q
    gap: Array  # () nats still to be gained after the step, NaN where the method does not predict it
    grad_norm: Array  # () norm of the natural gradient, in natural coordinates
    step: Array  # () norm of the change relative to the direction: the rate that was really applied
    is_inside: Array  # () whether the update ended inside the domain
    is_refused: Array  # () whether the step was refused because it was not finite


class Algorithm(ABC):
    """A method: it proposes points, receives the function's values there, and moves q.

    `ask` and `tell` are pure: the state goes in and comes out, and nothing else is kept. A state has the
    present member of the family as ``state.q``.
    """

    @property
    @abstractmethod
    def stop(self) -> Any:
        """Stopping rules; the first that applies ends the fit."""

    @property
    @abstractmethod
    def window(self) -> int:
        """Number of bounds that the smoothed bound averages."""

    @property
    @abstractmethod
    def keep(self) -> str:
        """Which iterate is returned: ``"best"`` smoothed bound, or the ``"last"``."""

    @property
    def is_array_api(self) -> bool:
        """Whether `ask` and `tell` run on any array library, with fixed shapes and no branch on a value."""
        return False

    @property
    def draws_on_host(self) -> bool:
        """Whether `ask` needs a NumPy generator; otherwise it takes a `qbvi.random.Stream`."""
        return not self.is_array_api

    def fits(self, family: Family) -> bool:
        """Whether the method can fit this family."""
        return True

    def for_model(self, model: Model) -> Self:
        """The method as it fits this model; most do not depend on it."""
        return self

    @abstractmethod
    def fresh_draws(self, n_evals: int) -> int:
        """Number of draws from the result for its bound and k-hat, after ``n_evals`` evaluations."""

    @abstractmethod
    def start_scale(self, scale: Array) -> Array:
        """Standard deviations of the first q, given those of the prior."""

    def default_budget(self, d: int) -> int | None:
        """Evaluations after which to give up where the user set no budget; None for no limit."""
        return None

    def notes(self, state: Any) -> tuple[str, ...]:
        """Sentences for the user about what the method found on the way."""
        return ()

    @abstractmethod
    def init(self, family: Any, q: Array) -> Any:
        """State before the first iteration."""

    @abstractmethod
    def ask(self, family: Any, state: Any, rng: Any) -> Array:
        """Points at which the function is wanted: (n, d)."""

    @abstractmethod
    def tell(self, family: Any, eta: Array, state: Any, theta: Array, values: Values) -> tuple[Any, Info]:
        """The next state, and what there is to read about the iteration."""
