"""Check numbers that users give; an error names the argument, the rule and the value got."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

__all__ = ["as_seed", "positive_number", "whole_number"]


def whole_number(name: str, value: Any, least: int = 1, otherwise: str = "") -> int:
    """Return ``value`` as an int of at least ``least``; ``otherwise`` names what else is allowed.

    Examples
    --------
    >>> whole_number("n_starts", 2.5)
    Traceback (most recent call last):
    ...
    TypeError: `n_starts` must be a whole number, got 2.5
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        msg = f"`{name}` must be a whole number{' or ' + otherwise if otherwise else ''}, got {value!r}"
        raise TypeError(msg)
    if value < least:
        msg = f"`{name}` must be at least {least}, got {value}"
        raise ValueError(msg)
    return int(value)


def positive_number(name: str, value: Any) -> float:
    """Return ``value`` as a positive float.

    Examples
    --------
    >>> positive_number("tol", "small")
    Traceback (most recent call last):
    ...
    TypeError: `tol` must be a number, got 'small'
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        msg = f"`{name}` must be a number, got {value!r}"
        raise TypeError(msg)
    if not float(value) > 0:
        msg = f"`{name}` must be positive, got {value}"
        raise ValueError(msg)
    return float(value)


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
        msg = f"`seed` must be a whole number from 0, a numpy.random.Generator, a SeedSequence or None, got {seed!r}"
        raise TypeError(msg)
    return int(seed)
