"""QBVI: the paper's loop as init, ask and tell, put together from parts that go by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from qbvi.arrays import Array, array_namespace, device
from qbvi.estimators import (
    Batch,
    ControlVariate,
    Estimator,
    LeaveOneOut,
    Residual,
    ResidualControlVariate,
    ScoreFunction,
)
from qbvi.families.base import Family
from qbvi.naming import pick
from qbvi.random import Antithetic, Draws, Independent, Sobol, Source
from qbvi.steps import BoundedRate, CholeskyLog, ExponentialMap, InParameters, Plain, Retraction, Step
from qbvi.stopping import MaxIterations, ParameterChange, Patience, Rule
from qbvi.updates import Chain, ClipByNorm, LearningRate, Momentum, Update, Where

__all__ = ["QBVI", "Algorithm", "Info", "State", "Values", "paper"]

ESTIMATORS: dict[str, Estimator] = {
    "score-function": ScoreFunction(),
    "control-variate": ControlVariate(),
    "control-variate-centred": ControlVariate(centred=True),
    "control-variate-residual": ResidualControlVariate(),
    "leave-one-out": LeaveOneOut(),
    "residual": Residual(),
}
# How the paper's control variate is read; see `paper`.
READINGS: dict[str, Estimator] = {"nearest": ResidualControlVariate(), "literal": ControlVariate()}
DRAWS: dict[str, Draws] = {"independent": Independent(), "antithetic": Antithetic(), "sobol": Sobol()}
STEPS: dict[str, Step] = {
    "plain": Plain(),
    "bounded-rate": BoundedRate(),
    "exponential": ExponentialMap(),
    "retraction": Retraction(),
    "cholesky-log": CholeskyLog(),
    "parameters": InParameters(),
}
RULES: dict[str, Rule] = {
    "patience": Patience(),
    "parameter-change": ParameterChange(),
    "max-iterations": MaxIterations(),
}


class Values(NamedTuple):
    """What the black box and the model say of the draws of a step."""

    f: Array  # (n,) log-likelihood, with the part of the log prior that eta does not carry
    log_joint: Array  # (n,) log p(y, theta), Jacobian included
    ok: Array  # (n,) False where the function failed and the value was filled in
    noise_sd: Array  # (n,) standard deviation of the function's noise, as far as the function tells it


class Algorithm(Protocol):
    """Anything that can be asked for points and told the function's values there."""

    stop: Any
    window: int
    keep: str
    is_array_api: (
        bool  # whether `ask` and `tell` run on any array library; the ``rng`` of `ask` is then a `qbvi.random.Stream`
    )

    def fresh_draws(self, n_evals: int) -> int:
        """How many draws from the result to spend on its bound and k-hat, after so many evaluations."""
        ...

    def start_scale(self, scale: Array) -> Array:
        """Standard deviations to start from, given those of the prior."""
        ...

    def default_budget(self, d: int) -> int | None:
        """Evaluations after which to give up where the user set no budget."""
        ...

    def notes(self, state: Any) -> tuple[str, ...]:
        """Sentences for the user about what was found on the way."""
        ...

    def init(self, family: Family, q: Array) -> Any:
        """State before the first step; it has the present member as ``state.q``."""
        ...

    def ask(self, family: Family, state: Any, rng: Any) -> Array:
        """Points at which the function is wanted: (n, d)."""
        ...

    def tell(self, family: Family, eta: Array, state: Any, theta: Array, values: Values) -> tuple[Any, Info]:
        """The next state, and what there is to read about the step."""
        ...


class State(NamedTuple):
    """What the next step needs."""

    q: Array  # the present member of the family
    t: Array  # () number of steps made
    memory: Any  # carried by the estimator
    carry: Any  # carried by the updates


class Info(NamedTuple):
    """What a person reads about a step; every field is an array of the backend."""

    bound: Array  # () estimate of the lower bound at the q that was left
    h: Array  # (n,) residuals at the draws from it
    gap: Array  # () nats still to be gained after the step, NaN where the method does not say
    grad_norm: Array  # () norm of the natural gradient, in natural coordinates
    step: Array  # () norm of the change relative to the direction: the rate that was really applied
    inside: Array  # () whether the update ended inside the domain
    refused: Array  # () whether the step was refused because it was not finite


@dataclass(frozen=True)
class QBVI:
    r"""Natural-gradient variational inference from function values, as a sentence of named parts.

    One step (paper, Algorithm 1), for draws :math:`\theta_s \sim q_\lambda`:

    .. math:: \lambda \leftarrow \lambda + \beta\, [\eta - \lambda + \hat E_q(\nabla_m \log q(\theta)\, \log p(y|\theta))]

    Parameters
    ----------
    estimator
        How the expectation is estimated: ``"score-function"``, ``"control-variate"`` (the paper's), ``"control-variate-centred"``,
        ``"leave-one-out"``, ``"residual"``, or an object such as `qbvi.ControlVariate`.
    draws
        ``"independent"``, ``"antithetic"`` or ``"sobol"``.
    n_samples
        Draws per step, the paper's :math:`N_s`.
    updates
        What is done to the direction, in this order, before the rate: `qbvi.ClipByNorm`, `qbvi.Momentum`, `qbvi.SeparateRates`.
    learning_rate
        The rate :math:`\beta`: a number, a `qbvi.LearningRate` with decay, or None where ``updates`` hold one.
    step
        How positive definiteness is kept: ``"plain"``, ``"bounded-rate"``, ``"exponential"``, ``"retraction"``, ``"cholesky-log"``, or
        ``"parameters"`` for steps of the textbook parameters.
    stop
        Rules of which the first to speak ends the fit: `qbvi.Patience`, `qbvi.ParameterChange`, `qbvi.MaxIterations`, or their names.
    window
        Number of bounds averaged by the smoothed bound.
    keep
        Which iterate is returned: ``"best"`` smoothed bound, or the ``"last"``.
    initial_sd
        Standard deviation of the start, on the unconstrained scale; None for the prior's.
    n_fresh
        Fresh draws from the result, for its lower bound and k-hat.

    Examples
    --------
    >>> import qbvi
    >>> method = qbvi.QBVI(estimator="residual", step="retraction", n_samples=50)
    >>> method.step
    Retraction()
    """

    estimator: Estimator | str = "residual"
    draws: Draws | str = "antithetic"
    n_samples: int = 100
    updates: Sequence[Update] = ()
    learning_rate: float | LearningRate | None = 0.1
    step: Step | str = "exponential"
    stop: Sequence[Rule | str] = ("patience", "max-iterations")
    window: int = 30
    keep: str = "best"
    initial_sd: float | None = None
    n_fresh: int = 1000

    is_array_api: ClassVar[bool] = True

    @property
    def draws_on_host(self) -> bool:
        """Whether the draws need a NumPy generator, as Sobol points do."""
        return self._draws.on_host

    def __post_init__(self) -> None:
        rate = self.learning_rate
        fields = {
            "estimator": pick("estimator", self.estimator, ESTIMATORS),
            "draws": pick("draws", self.draws, DRAWS),
            "step": pick("step", self.step, STEPS),
            "stop": tuple(pick("stop", rule, RULES) for rule in _listed(self.stop)),
            "updates": tuple(_listed(self.updates)),
            "learning_rate": LearningRate(rate) if isinstance(rate, int | float) else rate,
            "keep": pick("keep", self.keep, {"best": "best", "last": "last"}),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        fields["draws"].check(self.n_samples)
        if self.window < 1:
            msg = f"`window` must be at least 1, got {self.window}; the paper averages 30 bounds"
            raise ValueError(msg)

    def notes(self, state: State) -> tuple[str, ...]:
        """Nothing beyond what the report says."""
        return ()

    def fresh_draws(self, n_evals: int) -> int:
        """A fixed number."""
        return self.n_fresh

    def default_budget(self, d: int) -> None:
        """None: the stopping rules decide."""
        return

    def start_scale(self, scale: Array) -> Array:
        """Standard deviations to start from, given those of the prior."""
        return scale if self.initial_sd is None else array_namespace(scale).full_like(scale, self.initial_sd)

    def init(self, family: Family, q: Array) -> State:
        """State before the first step, from a starting member of the family."""
        xp = array_namespace(q)
        direction = xp.zeros_like(family.natural(q))
        return State(q, xp.sum(xp.zeros_like(q)), self._estimator.init(family, q), self._chain.init(direction))

    def ask(self, family: Family, state: State, rng: Source) -> Array:
        """Draw the points at which the function is wanted: (n, d)."""
        xp = array_namespace(state.q)
        z = self._draws.normal(rng, self.n_samples, family.dim)
        return family.transport(state.q, xp.asarray(z, dtype=state.q.dtype, device=device(state.q)))

    def tell(self, family: Family, eta: Array, state: State, theta: Array, values: Values) -> tuple[State, Info]:
        """Turn the function's values at the draws into the next state."""
        xp = array_namespace(state.q)
        h = family.residual(state.q, theta, values.log_joint)
        batch = Batch(theta, values.f, h, eta, self._draws.group_size(self.n_samples))
        direction, memory = self._estimator(family, state.q, batch, state.memory)
        update, carry = self._chain(direction, state.carry, Where(family, state.q, state.t))
        finite = xp.all(xp.isfinite(update))
        safe = xp.where(finite, update, xp.zeros_like(update))
        moved, inside = self._step(family, state.q, safe)
        taken = finite & xp.all(xp.isfinite(moved)) & xp.all(family.sd(moved) > 0)
        q = xp.where(taken, moved, state.q)
        norm = xp.linalg.vector_norm(direction)
        rate = xp.linalg.vector_norm(safe) / xp.where(norm > 0, norm, xp.ones_like(norm))
        return State(q, state.t + 1, memory, carry), Info(xp.mean(h), h, xp.nan * norm, norm, rate, inside, ~taken)

    @property
    def _estimator(self) -> Estimator:
        return self.estimator  # type: ignore[return-value]

    @property
    def _draws(self) -> Draws:
        return self.draws  # type: ignore[return-value]

    @property
    def _step(self) -> Step:
        return self.step  # type: ignore[return-value]

    @property
    def _chain(self) -> Chain:
        rate = () if self.learning_rate is None else (self.learning_rate,)
        return Chain((*self.updates, *rate))


def _listed(value: Any) -> Sequence[Any]:
    """A single part where a list of them is asked for is a list of one."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


def paper(reading: str = "nearest", **changes: Any) -> QBVI:
    """The paper's algorithm with its table of hyper-parameters.

    The text leaves open how the control variate is estimated. ``docs/reproduce.md`` lists the
    readings that were tried and how far from the best Gaussian each of them ends.

    The prior of that table, N(0, 5), is an argument of `qbvi.fit`:
    ``prior=qbvi.Normal(0, 5**0.5, shape=d)``. The step is the paper's bound on the rate, which is
    the plain update wherever that one is valid.

    Parameters
    ----------
    reading
        - ``"nearest"``: the reading nearest to the published parameters. The control variate acts
          on the whole bound, and its coefficient is a ratio of sample moments
          (`qbvi.ResidualControlVariate`).
        - ``"literal"``: the control variate as printed, of the log-likelihood alone and with a
          closed-form variance (`qbvi.ControlVariate`).
    **changes
        Parts of `qbvi.QBVI` to replace.

    Examples
    --------
    >>> import qbvi
    >>> qbvi.paper().estimator
    ResidualControlVariate()
    >>> qbvi.paper("literal", n_samples=50).estimator
    ControlVariate(centred=False)
    >>> qbvi.paper(estimator="control-variate-centred").estimator
    ControlVariate(centred=True)
    """
    table: dict[str, Any] = {
        "estimator": pick("reading", reading, READINGS),
        "draws": Independent(),
        "n_samples": 100,
        "updates": (ClipByNorm(1000.0), Momentum(0.4)),
        "learning_rate": LearningRate(0.1, decay_after=800),
        "step": BoundedRate(0.1),
        "stop": (Patience(500), MaxIterations(1000)),
        "window": 30,
        "keep": "best",
        "initial_sd": math.sqrt(0.1),
    }
    return QBVI(**(table | changes))
