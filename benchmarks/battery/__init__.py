"""A battery of posteriors of many shapes whose answers are known, and a score for fits of them.

    >>> import battery
    >>> problem = battery.problems(half="A")[0]
    >>> fit = qbvi.fit(problem.f, problem.prior, vectorized=True, seed=0)
    >>> battery.score(fit, problem)

`problems` lists random instances of every family; `Problem.reference` holds the evidence, draws and the best Gaussian.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from . import constructed, dynamics, models
from .problem import Exact, Problem
from .scores import Score, score

__all__ = ["Exact", "Problem", "Score", "families", "problems", "score"]


def families() -> dict:
    """Every family: the function that makes an instance, its shape class and the number of instances."""
    return constructed.FAMILIES | models.FAMILIES | dynamics.FAMILIES


def problems(half: str | None = None, only: Iterable[str] | str | None = None) -> list[Problem]:
    """All problems, or those of one half, or those with one of the given words as name, family, shape or tag."""
    words = [only] if isinstance(only, str) else list(only or ())
    made = []
    for make, (shape, count) in families().items():
        family = make.__name__
        for i in range(count):
            own = "AB"[(i + i // 2) % 2]  # so that even and odd instances, which differ in kind, are in both
            name = f"{family}-{i}"
            if (half is not None and own != half) or (words and not _wanted(make, shape, name, words)):
                continue
            problem = make(np.random.default_rng([zlib.crc32(family.encode()), i]), i)
            made.append(replace(problem, name=name, family=family, shape=shape, half=own))
    return made


def _wanted(make, shape: str, name: str, words: list[str]) -> bool:
    return bool({make.__name__, shape, name} & set(words))
