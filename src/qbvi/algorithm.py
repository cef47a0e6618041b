"""QBVI: the paper's algorithm as init, ask and tell, composed of named parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from qbvi.arguments import number, positive_number, whole_number
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
from qbvi.families.base import Family, GaussianFamily
from qbvi.naming import is_no_text, pick, works_as
from qbvi.protocol import Algorithm, Info, Values
from qbvi.random import Antithetic, Draws, Independent, Sobol, Source
from qbvi.steps import BoundedRate, CholeskyLog, ExponentialMap, InParameters, Plain, Retraction, Step
from qbvi.stopping import MaxIterations, ParameterChange, Patience, Plateau, Rule, as_rule
from qbvi.updates import Chain, ClipByNorm, LearningRate, Momentum, Update, Where, as_rate, as_updates

__all__ = ["QBVI", "QBVIState", "paper"]

ESTIMATORS: dict[str, Estimator] = {
    "score-function": ScoreFunction(),
    "control-variate": ControlVariate(),
    "control-variate-centred": ControlVariate(centred=True),
    "control-variate-residual": ResidualControlVariate(),
    "leave-one-out": LeaveOneOut(),
    "residual": Residual(),
}
# Interpretations ("readings") of the paper's control variate; see `paper`.
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
    "plateau": Plateau(),
}


class QBVIState(NamedTuple):
    """The state between two steps."""

    q: Array  # the current member of the family
    t: Array  # () number of steps made
    memory: Any  # state of the estimator
    carry: Any  # state of the updates


@dataclass(frozen=True)
class QBVI(Algorithm):
    r"""Natural-gradient variational inference from function values, composed of named parts.

    One step (paper, Algorithm 1), for draws :math:`\theta_s \sim q_\lambda`, is

    .. math::

        \lambda \leftarrow \lambda
        + \beta\, [\eta - \lambda + \hat E_q(\nabla_m \log q(\theta)\, \log p(y|\theta))]

    Parameters
    ----------
    estimator
        How the expectation is estimated: ``"score-function"``, ``"control-variate"`` (as the paper
        prints it), ``"control-variate-centred"``, ``"control-variate-residual"`` (that of
        `qbvi.paper`), ``"leave-one-out"``, ``"residual"``, or an object such as
        `qbvi.ControlVariate`.
    draws
        ``"independent"``, ``"antithetic"`` or ``"sobol"``.
    n_samples
        Draws per step, the paper's :math:`N_s`.
    updates
        Transformations of the direction, applied in this order before the rate: `qbvi.ClipByNorm`,
        `qbvi.Momentum`, `qbvi.SeparateRates`.
    learning_rate
        The rate :math:`\beta`: a number, a `qbvi.LearningRate` with decay, or None if ``updates``
        hold one.
    step
        How the covariance stays positive definite: ``"plain"`` (it may not), ``"bounded-rate"``,
        ``"exponential"``, ``"retraction"``, ``"cholesky-log"``, or ``"parameters"`` for steps of
        the textbook parameters.
    stop
        Stopping rules; the first that applies ends the fit. `qbvi.Patience`, `qbvi.Plateau`,
        `qbvi.ParameterChange`, `qbvi.MaxIterations`, or their names ``"patience"``, ``"plateau"``,
        ``"parameter-change"``, ``"max-iterations"``.
    window
        Number of bounds that the smoothed bound averages.
    keep
        Which iterate is returned: the one with the ``"best"`` smoothed bound, or the ``"last"``.
    initial_sd
        Standard deviation of the start, on the unconstrained scale; None for that of the prior.
    n_fresh
        Number of fresh draws from the result that estimate its lower bound and k-hat.

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

    @property
    def is_array_api(self) -> bool:
        """It runs on every array library."""
        return True

    @property
    def for_independent_draws(self) -> QBVI:
        """The same without mirror pairs."""
        return replace(self, draws=Independent())

    @property
    def draws_on_host(self) -> bool:
        """Whether the draws need a NumPy generator, as Sobol points do."""
        return self._draws.on_host

    def __post_init__(self) -> None:
        fields = {
            "estimator": pick("estimator", self.estimator, ESTIMATORS, works_as("init", "__call__")),
            "draws": pick("draws", self.draws, DRAWS, lambda value: isinstance(value, Draws)),
            "step": pick("step", self.step, STEPS, works_as("__call__")),
            "stop": tuple(as_rule(pick("stop", rule, RULES)) for rule in _listed(self.stop)),
            "updates": as_updates(self.updates),
            "learning_rate": as_rate(self.learning_rate, optional=True),
            "keep": pick("keep", self.keep, {"best": "best", "last": "last"}, is_no_text),
            "n_samples": whole_number("n_samples", self.n_samples),
            "window": whole_number("window", self.window),
            "n_fresh": whole_number("n_fresh", self.n_fresh, least=0),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        fields["draws"].check(self.n_samples)
        if self.initial_sd is not None:
            number("initial_sd", positive_number("initial_sd", self.initial_sd))

    def fresh_draws(self, n_evals: int) -> int:
        """A fixed number, `n_fresh`."""
        return self.n_fresh

    def start_scale(self, scale: Array) -> Array:
        """Standard deviations of the initial q, given those of the prior."""
        return scale if self.initial_sd is None else array_namespace(scale).full_like(scale, self.initial_sd)

    def init(self, family: Family, q: Array) -> QBVIState:
        """State before the first step, given the initial q."""
        xp = array_namespace(q)
        direction = xp.zeros_like(family.natural(q))
        return QBVIState(q, xp.sum(xp.zeros_like(q)), self._estimator.init(family, q), self._chain.init(direction))

    def ask(self, family: Family, state: QBVIState, rng: Source) -> Array:
        """Draw the points at which to evaluate the function: (n, d)."""
        xp = array_namespace(state.q)
        z = self._draws.normal(rng, self.n_samples, family.dim)
        return family.transport(state.q, xp.asarray(z, dtype=state.q.dtype, device=device(state.q)))

    def tell(
        self, family: Family, eta: Array, state: QBVIState, theta: Array, values: Values
    ) -> tuple[QBVIState, Info]:
        """Estimate the natural gradient from the function's values, and make one step."""
        xp = array_namespace(state.q)
        is_mirrored = self._draws.is_mirrored and isinstance(family, GaussianFamily)
        h = values.log_joint - _log_prob(family, state.q, theta, is_mirrored)
        batch = Batch(theta, values.f, h, eta, self._draws.group_size(self.n_samples), is_mirrored)
        direction, memory = self._estimator(family, state.q, batch, state.memory)
        update, carry = self._chain(direction, state.carry, Where(family, state.q, state.t))
        finite = xp.all(xp.isfinite(update))
        safe = xp.where(finite, update, xp.zeros_like(update))
        moved, inside = self._step(family, state.q, safe)
        taken = finite & xp.all(xp.isfinite(moved)) & xp.all(family.sd(moved) > 0)
        q = xp.where(taken, moved, state.q)
        norm = xp.linalg.vector_norm(direction)
        rate = xp.linalg.vector_norm(safe) / xp.where(norm > 0, norm, xp.ones_like(norm))
        return QBVIState(q, state.t + 1, memory, carry), Info(xp.mean(h), h, xp.nan * norm, norm, rate, inside, ~taken)

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


def _log_prob(family: Family, q: Array, theta: Array, is_mirrored: bool) -> Array:
    """Log density at each draw (n,); a Gaussian's is the same at both draws of a mirror pair."""
    if not is_mirrored:
        return family.log_prob(q, theta)
    half = family.log_prob(q, theta[: theta.shape[0] // 2, :])
    return array_namespace(half).concat([half, half])


def _listed(value: Any) -> Sequence[Any]:
    """A sequence as it is; a single part as a sequence of one."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


def paper(reading: str = "nearest", **changes: Any) -> QBVI:
    """The paper's algorithm with its table of hyper-parameters.

    The text leaves open how the control variate is estimated. ``docs/reproduce.md`` lists the
    readings that were tried and how far from the best Gaussian each of them ends.

    The prior of that table, N(0, 5), is an argument of `qbvi.fit`:
    ``prior=qbvi.Normal(0, 5**0.5, shape=d)``. The step is `qbvi.BoundedRate`: the plain update,
    with a smaller rate if the update would come too near to the boundary of the domain.

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
        "estimator": pick("reading", reading, READINGS, is_no_text),
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
