"""How a fit ended: a kind for programs, with a sentence for people."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple, Self

__all__ = ["Stop", "StopKind"]


class StopKind(Enum):
    """Why a fit ended: a key for programs, whether it converged, and a sentence for people.

    Examples
    --------
    >>> StopKind.named("patience").is_converged
    True
    """

    # A stopping rule applied.
    GAP = "gap", True, "the predicted gain of further iterations is below {tol:g} nats"
    MISSING = "missing", True, "fewer than {tol:.3g} nats of the posterior are missing"
    PATIENCE = "patience", True, "the smoothed lower bound did not improve for {patience} iterations"
    PLATEAU = "plateau", True, "the lower bound rose by no more than its noise over the last {steps} iterations"
    PARAMETERS = (
        "parameters",
        True,
        "no parameter changed by more than {tol:g} standard deviations in {steps} iterations",
    )
    OWN_RULE = "own-rule", True, "{sentence}"
    # A limit was reached, or somebody ended the fit.
    ITERATIONS = "iterations", False, "the limit of {iterations} iterations was reached before the fit settled"
    EVALUATIONS = "evaluations", False, "the {budget} of {evaluations:,} evaluations was spent before the fit settled"
    SECONDS = "seconds", False, "the time limit of {seconds:g} seconds was reached before the fit settled"
    GAVE_UP = "gave-up", False, "{sentence}"
    FULL = (
        "full",
        False,
        (
            "{points:,} points are as many as can be used at once, and {rounds} rounds of further ones have not improved "
            "the posterior: fit.missing says what is missing; fit.mcmc goes on from here with an exact sampler"
        ),
    )
    CALLBACK = "callback", False, "stopped by the callback"
    INTERRUPTED = "interrupted", False, "interrupted ({by}) before the fit settled"
    INTERRUPTED_AT_END = "interrupted-at-end", False, "{so_far}, but interrupted ({by}) during the last draws"
    ERROR = "error", False, "ended by an error: {error}"
    UNFINISHED = "unfinished", False, "the fit is not finished: values are still missing"
    BY_HAND = "by-hand", False, "nothing was fitted: this posterior was built by hand"
    # A rule applied, but the closing verdict took the convergence back.
    FAILURES = "failures", False, "{so_far}, but the function fails at {share:.0%} of {draws}"
    STILL_TO_GAIN = (
        "still-to-gain",
        False,
        "{so_far}, but fresh draws show that further iterations would gain about {nats:.2g} nats",
    )
    LEFT_OPEN = (
        "left-open",
        False,
        "{so_far}, but fresh draws leave about {nats:.2g} nats undecided: a few draws outweigh all others",
    )
    BOUND_BELOW = (
        "bound-below",
        False,
        "{so_far}, but fresh draws put the bound {nats:.2g} nats lower: more draws are needed",
    )
    ORDER = (
        "order",
        False,
        (
            "{so_far}, but the values depend on the order of the calls: "
            "they change by about {nats:.2g} nats over {n} fresh draws"
        ),
    )
    ELSEWHERE = (
        "elsewhere",
        False,
        (
            "{so_far}, but a point {distance:.0f} standard deviations from the result has as high a log joint "
            "as draws from it, so the result leaves out a part of the posterior: it has other modes, or is curved, "
            "or the function jumps"
        ),
    )
    FAR_OFF = (
        "far-off",
        False,
        (
            "{so_far}, but log p / q varies by {nats:.2g} nats: the result is far from the posterior, "
            "and its bound is uncertain"
        ),
    )
    ONE_RATIO = (
        "one-ratio",
        False,
        (
            "{so_far}, but {n} draws have an effective sample size of {size:.2g}: "
            "a few importance ratios outweigh all others"
        ),
    )
    KHAT = (
        "khat",
        False,
        (
            "{so_far}, but k-hat is {khat:.2g}: this family does not match the posterior; "
            "try another one (family=) or a transform"
        ),
    )
    FAMILY = (
        "family",
        False,
        (
            "{so_far}, but about {nats:.2g} nats of the posterior are missing: its shape is not that of the family; "
            "fit.expect and fit.mcmc correct for that, and family='full' asks for the best Gaussian alone"
        ),
    )
    CONSTANT = (
        "constant",
        False,
        "{so_far}, but the function returned the same value at all {n} points: the result is the prior",
    )
    WRAPPED = (
        "wrapped",
        False,
        (
            "{so_far}, but the standard deviation of {names} is more than a sixth of its period: "
            "the posterior goes round the circle, and one Gaussian does not describe it"
        ),
    )
    CHECKED = "checked", False, "{so_far}, but a check by fresh draws shows that about {nats:.2g} nats are missing"
    STARTS_DISAGREE = (
        "starts-disagree",
        False,
        "{so_far}, but the starts disagree: others ended elsewhere and did not settle, at bounds of {bounds}",
    )

    is_converged: bool
    sentence: str

    def __new__(cls, key: str, is_converged: bool, sentence: str) -> Self:
        """Make the key the value of the member, and the rest its attributes."""
        kind = object.__new__(cls)
        kind._value_ = key
        kind.is_converged, kind.sentence = is_converged, sentence
        return kind

    @classmethod
    def named(cls, key: str) -> StopKind:
        """The kind with this key."""
        found = next((kind for kind in cls if kind.value == key), None)
        if found is None:
            msg = f"a kind of stop must be one of {', '.join(kind.value for kind in cls)}, got {key!r}"
            raise ValueError(msg)
        return found

    @property
    def is_by_user(self) -> bool:
        """Whether the user ended the fit, so that no further start begins."""
        return self in (StopKind.CALLBACK, StopKind.INTERRUPTED, StopKind.INTERRUPTED_AT_END)


class Stop(NamedTuple):
    """How a fit ended: the kind, and the reason as a sentence.

    Examples
    --------
    >>> stop = Stop.of(StopKind.PATIENCE, patience=500)
    >>> stop.converged, stop.reason
    (True, 'the smoothed lower bound did not improve for 500 iterations')
    >>> stop.but(StopKind.LEFT_OPEN, nats=3).reason.partition(", ")[2]
    'but fresh draws leave about 3 nats undecided: a few draws outweigh all others'
    """

    kind: StopKind
    reason: str

    @classmethod
    def of(cls, kind: StopKind, **numbers: Any) -> Stop:
        """A stop of this kind; ``numbers`` fill in its sentence."""
        return cls(kind, kind.sentence.format(**numbers))

    @classmethod
    def own(cls, converged: bool, reason: str) -> Stop:
        """The stop of a rule of your own, with your own sentence."""
        return cls.of(StopKind.OWN_RULE if converged else StopKind.GAVE_UP, sentence=reason)

    def but(self, kind: StopKind, **numbers: Any) -> Stop:
        """The same stop with a further reason, which takes the convergence back."""
        return Stop.of(kind, so_far=self.reason, **numbers)

    @property
    def converged(self) -> bool:
        """Whether the fit counts as converged."""
        return self.kind.is_converged
