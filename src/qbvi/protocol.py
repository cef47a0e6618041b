"""The interface of a method: init, ask and tell, and a few properties."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

import numpy as np

from qbvi.arrays import Array
from qbvi.families.base import Density, Family
from qbvi.model import Model
from qbvi.noise import NO_NOISE, Noise

__all__ = ["Algorithm", "Found", "Info", "Known", "Outcome", "Part", "Twice", "Values"]


class Values(NamedTuple):
    """Values of the log-likelihood and the prior at the draws of one iteration."""

    f: Array  # (n,) log-likelihood, plus the part of the log prior that is not in eta
    log_joint: Array  # (n,) log p(y, theta), Jacobian included
    ok: Array  # (n,) False where the function failed and another value stands in
    noise_sd: Array  # (n,) standard deviation of the function's noise; zero if unknown
    zero: Array | None = None  # (n,) where the likelihood is zero; None if that is not known


class Twice(NamedTuple):
    """Points that were evaluated twice."""

    theta: Array  # (m, d)
    first: Array  # (m,) log joint
    second: Array  # (m,) the same from the other call


class Info(NamedTuple):
    """What is reported about one iteration; every field is an array of the backend."""

    bound: Array  # () estimate of the lower bound at the q before the step
    h: Array  # (n,) residuals at the draws from that q
    gap: Array  # () predicted gain, in nats, of further steps; NaN if the method predicts none
    grad_norm: Array  # () norm of the natural gradient, in natural coordinates
    step: Array  # () norm of the update over that of the direction: the rate in effect
    is_inside: Array  # () whether the update ended inside the domain
    is_refused: Array  # () whether these values gave no usable step


class Found(NamedTuple):
    """A mode that the search of a method has found."""

    mean: Array  # (d,)
    bound: float  # lower bound there
    weight: float  # share in the posterior; zero if it is left out
    n_evals: int  # evaluations of the path that found it


class Outcome(NamedTuple):
    """A posterior that a method has checked itself, and the figures that belong to it."""

    density: Density
    q: Array  # its member
    elbo: float  # lower bound
    elbo_se: float
    evidence: float  # log evidence
    evidence_se: float
    missing: float  # nats from q to the posterior
    missing_se: float
    n_draws: int  # draws behind these figures
    failed: float = 0.0  # share of these draws at which the function failed
    modes: tuple[Found, ...] = ()  # what the search found


class Part(NamedTuple):
    """Rows of earlier points, and the moments of the Gaussian that they could be draws from."""

    mean: Array  # (d,)
    cov: Array  # (d, d)
    start: int
    stop: int


class Component(NamedTuple):
    """A Gaussian of a mixture, and the lower bound on the log integral of the posterior there."""

    mean: Array  # (d,)
    cov: Array  # (d, d)
    bound: float


class Known(NamedTuple):
    """Evaluations that were made before the fit, one `Part` after another."""

    theta: Array  # (N, d)
    log_joint: Array  # (N,) minus infinity where the function failed
    noise_sd: Array  # (N,) zero if unknown
    parts: tuple[Part, ...]
    noise: float  # variance of the function's noise; zero if it has none
    # A mixture near the posterior of a converged fit under the same prior, or near that of points
    # with enough weight; empty if there is none.
    components: tuple[Component, ...] = ()
    is_sample: bool = False  # whether the points are a sample of the posterior, as of a Markov chain


class Algorithm(ABC):
    """A method: it proposes points, receives the function's values there, and moves q.

    `ask` and `tell` are pure functions: everything that a method remembers is in the state. The
    current member of the family is ``state.q``.
    """

    @property
    @abstractmethod
    def stop(self) -> Any:
        """Stopping rules; the first that applies ends the fit."""

    def stop_at(self, state: Any) -> Any:
        """Stopping rules in this state: some depend on what the method has found out."""
        return self.stop

    @property
    @abstractmethod
    def window(self) -> int:
        """Number of bounds that the smoothed bound averages."""

    @property
    @abstractmethod
    def keep(self) -> str:
        """The iterate to return: the one with the ``"best"`` smoothed bound, or the ``"last"``."""

    @property
    def for_independent_draws(self) -> Algorithm:
        """The method whose `tell` takes independent draws, in place of those of `ask`."""
        return self

    @property
    def is_array_api(self) -> bool:
        """Whether `ask` and `tell` run on any array library and compile.

        That means fixed shapes, and no branch on a value.
        """
        return False

    @property
    def draws_on_host(self) -> bool:
        """Whether `ask` needs a NumPy generator; otherwise it takes a `qbvi.random.Stream`."""
        return not self.is_array_api

    def fits(self, family: Family) -> bool:
        """Whether the method can fit this family."""
        return True

    def for_model(self, model: Model) -> Self:
        """The method adapted to this model; most methods do not depend on it."""
        return self

    def looking_at(self, model: Model, max_evals: int | None, *, has_start: bool = False) -> Self:
        """The method with permission to search the model's prior.

        It may look there for a better start, unless it ``has_start``, and for other modes.
        ``max_evals`` is the budget of the fit. Most methods do not search: they begin at the start
        they are given.
        """
        return self

    @property
    def asks(self) -> bool:
        """Whether the iterations need values of the function.

        Otherwise `ask` returns no points, and only fresh draws from the result are evaluated.
        """
        return True

    def exact_bound(self, state: Any) -> float | None:
        """The lower bound at ``state.q`` if the method knows it exactly, as few methods do."""
        return None

    def is_exploring(self, state: Any) -> bool:
        """Whether the next points belong to a search for a start.

        A failure of the function at these points is no error.
        """
        return False

    @abstractmethod
    def fresh_draws(self, n_evals: int) -> int:
        """Number of fresh draws for the bound and k-hat, after ``n_evals`` evaluations."""

    def first_draws(self, n: int) -> int:
        """How many of n fresh draws come first: the others only if these leave something open."""
        return n

    def reserved_draws(self, n_evals: int) -> int:
        """Evaluations of a budget of ``n_evals`` that are kept for the fresh draws."""
        return self.fresh_draws(n_evals)

    @abstractmethod
    def start_scale(self, scale: Array) -> Array:
        """Standard deviations of the initial q, given those of the prior."""

    def default_budget(self, d: int) -> int | None:
        """Most evaluations if the user sets no budget; None for no limit."""
        return None

    def notes(self, state: Any) -> tuple[str, ...]:
        """Sentences for the user, such as that the function is noisy."""
        return ()

    def advice(self, family: Any, state: Any, own: float, function: float) -> tuple[str, ...]:
        """Sentences for the next fit, by the seconds of the method's own and of the function."""
        return ()

    def repeated_draws(self, state: Any, n: int) -> int:
        """How many of n fresh draws to evaluate twice, to tell noise from misfit."""
        return 0

    def noise_at(self, family: Any, state: Any, q: Array, theta: Array, again: Twice | None = None) -> Noise:
        """The function's noise at points near q (n, d), as far as the method has found it out."""
        return NO_NOISE

    def log_density_around(self, family: Any, state: Any, theta: Array) -> Array:
        """Log density at points (n, d) of a Gaussian with the shape of the log joint around them.

        NaN where the shape is not known.
        """
        return np.full(len(theta), np.nan)

    def outcome(self, family: Any, state: Any) -> Outcome | None:
        """The posterior of a method that checks itself.

        None, as for most methods: ``state.q`` is the result, and fresh draws check it.
        """
        return None

    def close(self) -> None:  # noqa: B027 - most methods keep nothing
        """Free what was kept from one iteration to the next; a run calls it when it is over."""

    def notes_on_family(self, model: Model, family: Any, state: Any, q: Array) -> tuple[str, ...]:
        """Sentences on what the family cannot represent, at the ``q`` that a fit returns."""
        return ()

    @abstractmethod
    def init(self, family: Any, q: Array) -> Any:
        """State before the first iteration."""

    @property
    def uses_earlier(self) -> bool:
        """Whether `knowing` uses evaluations that were made before the fit."""
        return False

    def knowing(self, family: Any, state: Any, known: Known) -> Any:
        """The state before the first iteration, with evaluations that were made before the fit."""
        return state

    @abstractmethod
    def ask(self, family: Any, state: Any, rng: Any) -> Array:
        """Points at which to evaluate the function: (n, d)."""

    @abstractmethod
    def tell(self, family: Any, eta: Array, state: Any, theta: Array, values: Values) -> tuple[Any, Info]:
        """The next state, given the values at these points, and a report of the iteration."""
