"""What `on_failure` means: which treatment a failure gets, and which number then stands for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qbvi.arguments import whole_number
from qbvi.arrays import Array, array_namespace
from qbvi.evaluate.failures import KINDS, Failure, full_name
from qbvi.naming import pick

__all__ = [
    "OnFailure",
    "Retry",
    "Treatment",
    "check_on_failure",
    "excluded_value",
    "floor_value",
    "replace_failed",
    "treatment_of",
    "tries_of",
]

# "raise", "exclude", "floor", or a function that gives a value instead.
Treatment = str | Callable[[Failure], float]

ZERO = "-inf"  # the kind of a likelihood of zero
_TREATMENTS = dict.fromkeys(("raise", "exclude", "floor"))
_NAMES = dict.fromkeys((*_TREATMENTS, "retry"))
# Nats by which a floored value lies below all others, however close to each other these are.
_LEAST_DROP = 1.0


@dataclass(frozen=True)
class Retry:
    """Make a failed call again, for failures that come by chance: a lost node, a full disk.

    Calls that are made again do not count as evaluations. So the result is the same, to the last
    bit, as if no call had failed.

    Parameters
    ----------
    tries
        Calls at one point, with the first one.
    then
        What to do with a point at which all of them failed: ``"exclude"``, ``"floor"``, ``"raise"``
        or a function of the `qbvi.Failure`.

    Examples
    --------
    A function that fails at random, at every third call:

    >>> import itertools, qbvi
    >>> number = itertools.count()
    >>> def flaky(x):
    ...     return float("nan") if next(number) % 3 == 0 else -0.5 * x**2
    >>> policy = {"nan": qbvi.Retry(tries=5), TimeoutError: "raise"}
    >>> fit = qbvi.fit(flaky, qbvi.Normal(0, 1), on_failure=policy, seed=1)
    >>> fit.n_failed, fit.converged
    (0, True)
    """

    tries: int = 3
    then: Treatment = "exclude"

    def __post_init__(self) -> None:
        whole_number("tries", self.tries)
        _check_treatment(self.then, _TREATMENTS)


OnFailure = Treatment | Retry | Mapping[str | type[BaseException], Treatment | Retry]


def check_on_failure(on_failure: Any) -> None:
    """Refuse anything that is not a policy."""
    if not isinstance(on_failure, Mapping):
        _check_policy(on_failure)
        return
    for key, treatment in on_failure.items():
        if not isinstance(key, str) and not (isinstance(key, type) and issubclass(key, Exception)):
            msg = (
                f"`on_failure` must have kinds of failure ({', '.join(KINDS)}) or exception types as keys, got {key!r}"
            )
            raise TypeError(msg)
        pick("on_failure", key, dict.fromkeys(KINDS))
        _check_policy(treatment)


def treatment_of(failure: Failure, on_failure: OnFailure) -> Treatment:
    """Look up the treatment of a failure, after all tries where the policy is `Retry`.

    A dict is searched by exception type first, the closest base class before others, then by kind.
    Failures that it does not list are raised. Minus infinity is the exception: a likelihood of zero
    is a value, so such a point is excluded unless a dict says otherwise for ``"-inf"``.

    Examples
    --------
    >>> import numpy as np
    >>> types = "builtins.ValueError", "builtins.Exception"
    >>> failure = Failure(np.zeros(2), "exception", "ValueError: no root", types=types)
    >>> treatment_of(failure, {ValueError: "exclude", "nan": "floor"})
    'exclude'
    >>> treatment_of(failure, {"nan": "floor"})
    'raise'
    >>> treatment_of(Failure(np.zeros(2), "-inf", "returned -inf"), "raise")
    'exclude'
    """
    policy = _policy_for(failure, on_failure)
    treatment = policy.then if isinstance(policy, Retry) else policy
    is_a_value = failure.kind == ZERO and not isinstance(on_failure, Mapping)
    return "exclude" if is_a_value and treatment == "raise" else treatment


def tries_of(failure: Failure, on_failure: OnFailure) -> int:
    """How many calls a point gets that fails in this way.

    It is one for minus infinity, which is a value, unless a dict lists ``"-inf"``.

    Examples
    --------
    >>> import numpy as np
    >>> tries_of(Failure(np.zeros(2), "died", "signal 9"), {"died": "retry"})
    3
    """
    policy = _policy_for(failure, on_failure)
    is_a_value = failure.kind == ZERO and not isinstance(on_failure, Mapping)
    return policy.tries if isinstance(policy, Retry) and not is_a_value else 1


def excluded_value(values: Array, ok: Array) -> Array:
    """The value of an excluded point, (): the mean of those that are fine.

    The point then pulls nowhere, and still counts in every denominator. ``values`` and ``ok`` are
    (n,).

    Examples
    --------
    >>> import numpy as np
    >>> float(excluded_value(np.array([-1.0, np.nan, -3.0]), np.array([True, False, True])))
    -2.0
    """
    xp = array_namespace(values)
    number = _number(ok, values)
    return xp.sum(xp.where(ok, values, xp.zeros_like(values))) / xp.maximum(number, xp.ones_like(number))


def floor_value(values: Array, ok: Array) -> Array:
    """The value of a floored point, (): below all fine ones by their range, and by a nat at least.

    Examples
    --------
    >>> import numpy as np
    >>> float(floor_value(np.array([-1.0, np.nan, -3.0]), np.array([True, False, True])))
    -5.0
    """
    xp = array_namespace(values)
    infinite = xp.full_like(values, xp.inf)
    low, high = xp.min(xp.where(ok, values, infinite)), xp.max(xp.where(ok, values, -infinite))
    return low - xp.maximum(high - low, xp.full_like(low, _LEAST_DROP))


def replace_failed(policy: str, values: Array, ok: Array) -> Array:
    """Replace the values (n,) of failed points by one policy for all, without a branch on values.

    Parameters
    ----------
    policy
        ``"floor"``, or another, which excludes the points. Whoever calls raises errors.
    values, ok
        The values, and which of them are fine.

    Returns
    -------
    values
        The new values, NaN where no value is fine.

    Examples
    --------
    >>> import numpy as np
    >>> replace_failed("floor", np.array([-1.0, np.nan, -3.0]), np.array([True, False, True]))
    array([-1., -5., -3.])
    """
    xp = array_namespace(values)
    some = _number(ok, values) > 0
    replacement = floor_value(values, ok) if policy == "floor" else excluded_value(values, ok)
    return xp.where(ok, values, xp.where(some, replacement, xp.full_like(replacement, xp.nan)))


def _policy_for(failure: Failure, on_failure: OnFailure) -> Treatment | Retry:
    if not isinstance(on_failure, Mapping):
        policy = on_failure
    else:
        by_type = {full_name(key): one for key, one in on_failure.items() if isinstance(key, type)}
        listed = [by_type[name] for name in failure.types if name in by_type]
        unlisted = "exclude" if failure.kind == ZERO else "raise"
        policy = listed[0] if listed else on_failure.get(failure.kind, unlisted)
    return Retry() if policy == "retry" else policy


def _number(ok: Array, values: Array) -> Array:
    """How many values are fine, as a floating-point number."""
    xp = array_namespace(values)
    return xp.sum(xp.astype(ok, values.dtype))


def _check_policy(policy: Any) -> None:
    if not isinstance(policy, Retry):
        _check_treatment(policy, _NAMES)


def _check_treatment(treatment: Any, names: Mapping[str, None]) -> None:
    if not (isinstance(treatment, str) or callable(treatment)):
        msg = (
            "`on_failure` must be 'raise', 'exclude', 'floor', 'retry', a qbvi.Retry, a function, or a dict of these by kind of failure "
            f"({', '.join(KINDS)}) or exception type, got {treatment!r}"
        )
        raise TypeError(msg)
    pick("on_failure", treatment, names)
