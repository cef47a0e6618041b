"""What a problem of the battery is: a function and a prior as a user writes them, and what is known of the posterior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import qbvi
from qbvi.model import Model

from . import references

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Array]


class Exact(NamedTuple):
    """A posterior known in closed form: its log evidence, and independent draws u (n, d)."""

    log_evidence: float
    draw: Draw


@dataclass(frozen=True, eq=False)
class Problem:
    """One posterior.

    Attributes
    ----------
    name, family, shape, tags
        Its name, the family that it is a random instance of, the class that tables group by, and words for ``--only``.
    half
        "A" or "B". Every family has instances in both halves, so that one half can be kept for checking.
    prior
        What `qbvi.fit` gets as prior.
    likelihood
        The log-likelihood without noise, for many points in one call.
    exact
        The posterior in closed form; None if it must be computed.
    best
        Gives mean and covariance of the Gaussian of highest bound, where they are known; None if they must be searched.
    near
        A point u (d,) of high density from which the computation may start, such as the values that made the data.
    noise
        Standard deviation of the noise of `f`: a function of the noiseless values; None if there is no noise.
    has_best
        Whether the bound of the best Gaussian exists and is computed: not for discrete parameters, for targets that are
        zero where every Gaussian has mass, nor where it would take too long.
    fold
        Maps symmetric copies of a mode onto one of them: u (n, d) -> (n, d).
    options
        Further arguments of `qbvi.fit`.
    """

    name: str
    family: str
    shape: str
    prior: Any
    likelihood: Callable[[Any], Array]
    exact: Exact | None = None
    best: Callable[[], tuple[Array, Array]] | None = None
    near: Array | None = None
    noise: Callable[[Array], Array] | None = None
    has_best: bool = True
    fold: Callable[[Array], Array] | None = None
    tags: tuple[str, ...] = ()
    half: str = "A"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def f(self) -> Callable[[Any], Array]:
        """What `qbvi.fit` gets, with ``vectorized=True``; each access starts the noise afresh."""
        return self.likelihood if self.noise is None else _Noisy(self.likelihood, self.noise)

    @property
    def d(self) -> int:
        """Dimension of u."""
        return self.model.dim

    @cached_property
    def model(self) -> Model:
        """The map between u and the values that the function sees. Discrete parameters stay as they are."""
        discrete = (qbvi.Categorical, qbvi.Bernoulli, qbvi.Poisson, qbvi.NegativeBinomial)
        named = self.prior if isinstance(self.prior, dict) else {"theta": self.prior}
        return Model(self.prior, native=[name for name, law in named.items() if isinstance(law, discrete)])

    def log_joint(self, u: Array) -> Array:
        """Log density of u without noise, up to the evidence: (n, d) -> (n,)."""
        with np.errstate(all="ignore"):
            values = np.asarray(self.likelihood(self.model.constrain(u)), dtype=np.float64) + self.model.log_prior(u)
        return np.where(np.isnan(values), -np.inf, values)

    @cached_property
    def reference(self) -> references.Reference:
        """What is known of the posterior. Where it takes long to compute, the result is stored and read back."""
        return references.load_or_make(self)


class _Noisy:
    """A likelihood with Gaussian noise, different at every call and the same in every run."""

    def __init__(self, likelihood: Callable[[Any], Array], noise: Callable[[Array], Array]) -> None:
        self.likelihood, self.noise, self.rng = likelihood, noise, np.random.default_rng(20261116)

    def __call__(self, values: Any) -> Array:
        quiet = self.likelihood(values)
        return quiet + self.noise(quiet) * self.rng.standard_normal(len(quiet))
