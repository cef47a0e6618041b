"""Check what users give, before anything is paid.

Every error names the argument, the rule and the value got.
"""

from __future__ import annotations

import os
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "a_function",
    "a_path",
    "array_of",
    "as_generator",
    "as_seed",
    "flag",
    "instance_of",
    "interval_ends",
    "number",
    "one_of",
    "positive_number",
    "probability",
    "quantile_levels",
    "shown",
    "text_of",
    "whole_number",
]

_LONGEST = 200  # characters of a value in a message
_MOST = 2**53  # a larger whole number is a slip, and no array has as many entries


def whole_number(name: str, value: Any, least: int = 1, otherwise: str = "", most: int = _MOST) -> int:
    """Return ``value`` as an int from ``least`` to ``most``.

    ``otherwise`` names what else the argument may be, for the message. A float that is a whole
    number, such as 1e3, is one.

    Examples
    --------
    >>> whole_number("n", 1e3)
    1000
    >>> whole_number("n_starts", 2.5)
    Traceback (most recent call last):
    ...
    TypeError: `n_starts` must be a whole number, got 2.5
    """
    is_whole = isinstance(value, Integral) or (isinstance(value, Real) and float(value).is_integer())
    if isinstance(value, bool) or not is_whole:
        msg = f"`{name}` must be a whole number{' or ' + otherwise if otherwise else ''}, got {shown(value)}"
        raise TypeError(msg)
    if not least <= value <= most:
        rule = f"at least {least}" if value < least else f"at most {most:,}"
        msg = f"`{name}` must be {rule}, got {value}"
        raise ValueError(msg)
    return int(value)


def number(name: str, value: Any, least: float = -np.inf, most: float = np.inf) -> float:
    """Return ``value`` as a finite float from ``least`` to ``most``.

    Examples
    --------
    >>> number("decay", float("nan"))
    Traceback (most recent call last):
    ...
    ValueError: `decay` must be finite, got nan
    """
    as_float = _as_float(name, value)
    if not np.isfinite(as_float):
        msg = f"`{name}` must be finite, got {as_float}"
        raise ValueError(msg)
    if not least <= as_float <= most:
        rule = f"at least {least:g}" if as_float < least else f"at most {most:g}"
        msg = f"`{name}` must be {rule}, got {as_float}"
        raise ValueError(msg)
    return as_float


def positive_number(name: str, value: Any) -> float:
    """Return ``value`` as a positive float, which may be infinite.

    Examples
    --------
    >>> positive_number("tol", "small")
    Traceback (most recent call last):
    ...
    TypeError: `tol` must be a number, got 'small'
    """
    as_float = _as_float(name, value)
    if not as_float > 0:
        msg = f"`{name}` must be positive, got {as_float}"
        raise ValueError(msg)
    return as_float


def probability(name: str, value: Any) -> float:
    """Return ``value`` as a float between 0 and 1, both excluded."""
    as_float = _as_float(name, value)
    if not 0 < as_float < 1:
        msg = f"`{name}` must be a probability between 0 and 1, got {as_float}"
        raise ValueError(msg)
    return as_float


def interval_ends(name: str, value: Any) -> NDArray[np.float64]:
    """Levels of the two ends of an equal-tailed interval of this probability.

    Examples
    --------
    >>> interval_ends("interval", 0.5)
    array([0.25, 0.75])
    """
    share = probability(name, value)
    return np.array([(1 - share) / 2, (1 + share) / 2])


def quantile_levels(name: str, value: Any) -> NDArray[np.float64]:
    """Levels of quantiles, each between 0 and 1: a number, or one axis of them."""
    levels = array_of(name, value)
    if levels.ndim > 1 or not levels.size:
        msg = f"`{name}` must be a number or one-dimensional, got shape {levels.shape}"
        raise ValueError(msg)
    if not np.all((levels > 0) & (levels < 1)):
        msg = f"`{name}` must lie between 0 and 1, got {levels}"
        raise ValueError(msg)
    return levels


def flag(name: str, value: Any) -> bool:
    """Return ``value``, True or False.

    Examples
    --------
    >>> flag("batched", "yes")
    Traceback (most recent call last):
    ...
    TypeError: `batched` must be True or False, got 'yes'
    """
    if not isinstance(value, bool | np.bool_):
        msg = f"`{name}` must be True or False, got {shown(value)}"
        raise TypeError(msg)
    return bool(value)


def a_function(name: str, value: Any, optional: bool = False) -> Any:
    """Return ``value``, anything that can be called; None too if it is ``optional``."""
    if optional and value is None:
        return None
    if not callable(value) or isinstance(value, type):
        msg = f"`{name}` must be a function{' or None' if optional else ''}, got {shown(value)}"
        raise TypeError(msg)
    return value


def a_path(name: str, value: Any, optional: bool = False) -> str:
    """Return the name of a file, given as text or as a path object; "" for None if ``optional``."""
    if optional and value is None:
        return ""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str) or not os.fspath(value):
        msg = f"`{name}` must be the path of a file, as text or as a pathlib.Path, got {shown(value)}"
        raise TypeError(msg)
    return os.fspath(value)


def instance_of(name: str, value: Any, kind: type | tuple[type, ...], rule: str) -> Any:
    """Return ``value`` if it is an instance of ``kind``; ``rule`` says what that is."""
    if not isinstance(value, kind):
        msg = f"`{name}` must be {rule}, got {shown(value)}"
        raise TypeError(msg)
    return value


def one_of(name: str, value: Any, *choices: str) -> str:
    """Return ``value``, one of a few words."""
    if not isinstance(value, str) or value not in choices:
        msg = f"`{name}` must be one of {', '.join(map(repr, choices))}, got {shown(value)}"
        raise ValueError(msg)
    return value


def array_of(name: str, value: Any, dtype: Any = np.float64) -> NDArray[Any]:
    """Return ``value`` as an array of numbers; refuse masked entries, text and ragged lists.

    Examples
    --------
    >>> array_of("y", np.ma.masked_array([1.0, 2.0], mask=[False, True]))
    Traceback (most recent call last):
    ...
    ValueError: `y` must have no masked entries, got 1; drop them, or fill them yourself
    """
    if np.ma.isMaskedArray(value):
        masked = int(np.ma.getmaskarray(value).sum())
        if masked:
            msg = f"`{name}` must have no masked entries, got {masked}; drop them, or fill them yourself"
            raise ValueError(msg)
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf" and array.dtype != object:
            raise TypeError
        return array.astype(dtype)
    except (TypeError, ValueError, OverflowError):
        msg = f"`{name}` must be a number or an array of numbers, got {shown(value)}"
        raise TypeError(msg) from None


def as_seed(seed: Any) -> int:
    """Return the whole number behind a seed: a generator draws its next one, None a random one.

    Examples
    --------
    >>> as_seed(7), as_seed(np.random.default_rng(1)) == as_seed(np.random.default_rng(1))
    (7, True)
    """
    if seed is None:
        seed = np.random.SeedSequence()
    if isinstance(seed, np.random.SeedSequence):
        return int(seed.generate_state(1)[0])
    if isinstance(seed, np.random.Generator):
        return int(seed.integers(2**32))
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        msg = (
            f"`seed` must be a whole number from 0, a numpy.random.Generator, a SeedSequence or None, got {shown(seed)}"
        )
        raise TypeError(msg)
    return int(seed)


def as_generator(seed: Any) -> np.random.Generator:
    """Return a generator from what `as_seed` takes; one that is given is used as it is."""
    if isinstance(seed, np.random.Generator):
        return seed
    if seed is None or isinstance(seed, np.random.SeedSequence):
        return np.random.default_rng(seed)
    return np.random.default_rng(as_seed(seed))


def shown(value: Any) -> str:
    """A value as text, cut short; never an error, whatever the value's own class does.

    Examples
    --------
    >>> shown("x" * 1000)[-8:]
    'xxxx ...'
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a user's class may do anything
        text = f"an object of {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def text_of(error: BaseException) -> str:
    """The text of an exception; never another one, whatever its class does."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a user's class may do anything
        return "(its text cannot be read)"


def _as_float(name: str, value: Any) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        msg = f"`{name}` must be a number, got {shown(value)}"
        raise TypeError(msg)
    try:
        return float(value)
    except OverflowError:  # a whole number beyond all floats
        return np.inf if value > 0 else -np.inf  # type: ignore[operator]
