"""Scalar priors other than the normal, as arrays of independent entries."""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from qbvi.arguments import flag
from qbvi.arrays import Array, array_namespace
from qbvi.distributions.base import Independent, InFamily, Spec
from qbvi.distributions.normal import GaussianInU
from qbvi.supports import Interval, Periodic, Positive, Real, Shape, bounded_exp, like, softplus

__all__ = [
    "Beta",
    "Exponential",
    "Gamma",
    "HalfCauchy",
    "HalfNormal",
    "InverseGamma",
    "LogNormal",
    "StudentT",
    "Uniform",
]


class InverseGamma(InFamily, Independent):
    r"""Inverse gamma distribution, :math:`p(x) \propto x^{-\alpha - 1} e^{-\beta / x}`.

    Parameters
    ----------
    alpha : array_like
        Shape parameter, positive. The mean is ``beta / (alpha - 1)``.
    beta : array_like
        Scale, positive.
    shape : int or tuple of int, optional
        Shape of the parameter. By default the broadcast shape of the others.

    Examples
    --------
    >>> InverseGamma(3, 1)
    InverseGamma(alpha=3.0, beta=1.0)
    """

    alpha: NDArray[np.float64]
    beta: NDArray[np.float64]

    def __init__(self, alpha: ArrayLike, beta: ArrayLike, shape: int | Shape | None = None) -> None:
        super().__init__(Positive(), shape, {"alpha": alpha, "beta": beta}, positive=("alpha", "beta"))

    def _log_kernel(self, u: Array) -> Array:
        return -like(u, self._flat["alpha"]) * u - bounded_exp(like(u, np.log(self._flat["beta"])) - u)

    def _log_constant(self) -> NDArray[np.float64]:
        return _gamma_constant(self._flat["alpha"], self._flat["beta"])

    def _draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return np.log(self._flat["beta"]) - log_gamma_draws(rng, self._flat["alpha"], n)


class Gamma(InFamily, Independent):
    r"""Gamma distribution, given by its rate: :math:`p(x) \propto x^{\alpha - 1} e^{-\beta x}`.

    Parameters
    ----------
    alpha : array_like
        Shape parameter, positive. The mean is ``alpha / beta``.
    beta : array_like
        Rate, positive, as in PyMC. It is one over SciPy's scale.
    shape : int or tuple of int, optional
        Shape of the parameter. By default the broadcast shape of the others.

    Examples
    --------
    >>> Gamma(2.0, 0.5, shape=3)
    Gamma(alpha=2.0, beta=0.5, shape=(3,))
    """

    alpha: NDArray[np.float64]
    beta: NDArray[np.float64]

    def __init__(self, alpha: ArrayLike, beta: ArrayLike, shape: int | Shape | None = None) -> None:
        super().__init__(Positive(), shape, {"alpha": alpha, "beta": beta}, positive=("alpha", "beta"))

    def _log_kernel(self, u: Array) -> Array:
        return like(u, self._flat["alpha"]) * u - bounded_exp(like(u, np.log(self._flat["beta"])) + u)

    def _log_constant(self) -> NDArray[np.float64]:
        return _gamma_constant(self._flat["alpha"], self._flat["beta"])

    def _draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return log_gamma_draws(rng, self._flat["alpha"], n) - np.log(self._flat["beta"])


class Exponential(InFamily, Independent):
    r"""Exponential distribution, :math:`p(x) = \mathrm{rate}\, e^{-\mathrm{rate}\, x}`.

    Parameters
    ----------
    rate : array_like
        One over the mean, positive.
    shape : int or tuple of int, optional
        Shape of the parameter. By default that of ``rate``.

    Examples
    --------
    >>> Exponential(2.0).sample(np.random.default_rng(0), 3).shape
    (3,)
    """

    rate: NDArray[np.float64]

    def __init__(self, rate: ArrayLike = 1.0, shape: int | Shape | None = None) -> None:
        super().__init__(Positive(), shape, {"rate": rate}, positive=("rate",))

    def _log_kernel(self, u: Array) -> Array:
        return u - bounded_exp(like(u, np.log(self._flat["rate"])) + u)

    def _log_constant(self) -> NDArray[np.float64]:
        return np.log(self._flat["rate"])

    def _draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return _log_exponential_draws(rng, (n, self.dim)) - np.log(self._flat["rate"])


class Beta(InFamily, Independent):
    r"""Beta distribution on (0, 1), :math:`p(x) \propto x^{\alpha - 1} (1 - x)^{\beta - 1}`.

    Parameters
    ----------
    alpha, beta : array_like
        Positive. The mean is ``alpha / (alpha + beta)``.
    shape : int or tuple of int, optional
        Shape of the parameter. By default the broadcast shape of the others.

    Examples
    --------
    >>> Beta(2.0, 2.0).support
    Interval(low=0.0, high=1.0)
    """

    alpha: NDArray[np.float64]
    beta: NDArray[np.float64]

    def __init__(self, alpha: ArrayLike, beta: ArrayLike, shape: int | Shape | None = None) -> None:
        super().__init__(Interval(0.0, 1.0), shape, {"alpha": alpha, "beta": beta}, positive=("alpha", "beta"))

    def _log_kernel(self, u: Array) -> Array:
        return -like(u, self._flat["alpha"]) * softplus(-u) - like(u, self._flat["beta"]) * softplus(u)

    def _log_constant(self) -> NDArray[np.float64]:
        return np.asarray(-scipy.special.betaln(self._flat["alpha"], self._flat["beta"]))

    def _draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return log_gamma_draws(rng, self._flat["alpha"], n) - log_gamma_draws(rng, self._flat["beta"], n)


class LogNormal(GaussianInU):
    """Log-normal distribution: ``log x`` is normal, so a Gaussian posterior has its closed form.

    Parameters
    ----------
    mu, sigma : array_like
        Mean and standard deviation of ``log x``; ``sigma`` is positive.
    shape : int or tuple of int, optional
        Shape of the parameter. By default the broadcast shape of the others.

    Examples
    --------
    >>> LogNormal(0.0, 0.5).initial()
    (array([0.]), array([0.5]))
    """

    mu: NDArray[np.float64]
    sigma: NDArray[np.float64]

    def __init__(self, mu: ArrayLike = 0.0, sigma: ArrayLike = 1.0, shape: int | Shape | None = None) -> None:
        super().__init__(Positive(), shape, {"mu": mu, "sigma": sigma}, positive=("sigma",))


class HalfNormal(Independent):
    """Absolute value of a normal variable with mean zero.

    Parameters
    ----------
    scale : array_like
        Standard deviation of that normal variable, positive.
    shape : int or tuple of int, optional
        Shape of the parameter. By default that of ``scale``.

    Examples
    --------
    >>> HalfNormal(2.0)
    HalfNormal(scale=2.0)
    """

    scale: NDArray[np.float64]

    def __init__(self, scale: ArrayLike = 1.0, shape: int | Shape | None = None) -> None:
        super().__init__(Positive(), shape, {"scale": scale}, positive=("scale",))

    def _log_kernel(self, u: Array) -> Array:
        return u - bounded_exp(2 * (u - like(u, np.log(self._flat["scale"])))) / 2

    def _log_constant(self) -> NDArray[np.float64]:
        return math.log(2 / math.pi) / 2 - np.log(self._flat["scale"])

    def _draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return np.log(self._flat["scale"]) + _log_absolute_normal_draws(rng, (n, self.dim))


class HalfCauchy(Independent):
    """Absolute value of a Cauchy variable centred at zero.

    Parameters
    ----------
    scale : array_like
        The median, positive.
    shape : int or tuple of int, optional
        Shape of the parameter. By default that of ``scale``.

    Examples
    --------
    >>> HalfCauchy(5.0)
    HalfCauchy(scale=5.0)
    """

    scale: NDArray[np.float64]

    def __init__(self, scale: ArrayLike = 1.0, shape: int | Shape | None = None) -> None:
        super().__init__(Positive(), shape, {"scale": scale}, positive=("scale",))

    def _log_kernel(self, u: Array) -> Array:
        return u - softplus(2 * (u - like(u, np.log(self._flat["scale"]))))

    def _log_constant(self) -> NDArray[np.float64]:
        return math.log(2 / math.pi) - np.log(self._flat["scale"])

    def _draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        ratio = _log_absolute_normal_draws(rng, (n, self.dim)) - _log_absolute_normal_draws(rng, (n, self.dim))
        return np.log(self._flat["scale"]) + ratio


class StudentT(Independent):
    """Student's t distribution, shifted and scaled.

    Parameters
    ----------
    df : array_like
        Degrees of freedom, positive.
    loc, scale : array_like
        Centre and scale; ``scale`` is positive.
    shape : int or tuple of int, optional
        Shape of the parameter. By default the broadcast shape of the others.

    Examples
    --------
    >>> StudentT(4, scale=2.5, shape=2)
    StudentT(df=4.0, loc=0.0, scale=2.5, shape=(2,))
    """

    df: NDArray[np.float64]
    loc: NDArray[np.float64]
    scale: NDArray[np.float64]

    def __init__(
        self, df: ArrayLike, loc: ArrayLike = 0.0, scale: ArrayLike = 1.0, shape: int | Shape | None = None
    ) -> None:
        super().__init__(Real(), shape, {"df": df, "loc": loc, "scale": scale}, positive=("df", "scale"))

    def _log_kernel(self, u: Array) -> Array:
        df, loc, scale = (like(u, self._flat[name]) for name in ("df", "loc", "scale"))
        return -(df + 1) / 2 * array_namespace(u).log1p(((u - loc) / scale) ** 2 / df)

    def _log_constant(self) -> NDArray[np.float64]:
        df = self._flat["df"]
        return np.asarray(
            scipy.special.gammaln((df + 1) / 2)
            - scipy.special.gammaln(df / 2)
            - np.log(df * np.pi) / 2
            - np.log(self._flat["scale"])
        )

    def _draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        df = self._flat["df"]
        # By the logarithm of the chi-square: with few degrees of freedom the draw underflows.
        log_inflation = (np.log(df / 2) - log_gamma_draws(rng, df / 2, n)) / 2
        t: NDArray[np.float64] = rng.standard_normal((n, self.dim)) * np.asarray(bounded_exp(log_inflation))
        return self._flat["loc"] + self._flat["scale"] * t


class Uniform(Independent):
    """Uniform distribution between two finite ends.

    Parameters
    ----------
    low, high : array_like
        The finite ends; ``low`` is below ``high``.
    shape : int or tuple of int, optional
        Shape of the parameter. By default the broadcast shape of the others.
    periodic : bool
        Whether the two ends are the same value, as for an angle or a phase; see `qbvi.Periodic`.

    Examples
    --------
    >>> Uniform(-1.0, 1.0, shape=2).log_prob(np.zeros((1, 2))).round(6)
    array([-1.386294])
    >>> Uniform(0.0, 24.0, periodic=True).support
    Periodic(period=24.0, low=0.0)
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def __init__(
        self, low: ArrayLike = 0.0, high: ArrayLike = 1.0, shape: int | Shape | None = None, periodic: bool = False
    ) -> None:
        super().__init__(Real(), shape, {"low": low, "high": high})
        ends = self._given["low"], self._given["high"]
        self.support = Interval(*ends)  # also refuses ends in the wrong order
        self.periodic = flag("periodic", periodic)
        if self.periodic:
            self.support = Periodic(ends[1] - ends[0], ends[0])

    def to_spec(self) -> Spec:
        """Describe this prior as plain data."""
        return {**super().to_spec(), **({"periodic": True} if self.periodic else {})}

    def __repr__(self) -> str:
        return super().__repr__()[:-1] + (", periodic=True)" if self.periodic else ")")

    def _log_kernel(self, u: Array) -> Array:
        if isinstance(self.support, Periodic):
            return self.support.log_end(u, self.shape)
        return -softplus(u) - softplus(-u)

    def _log_constant(self) -> NDArray[np.float64]:
        return -np.log(self._flat["high"] - self._flat["low"]) if self.periodic else np.zeros(self.dim)

    def _draw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        if self.periodic:
            return rng.uniform(self._flat["low"], self._flat["high"], (n, self.dim))
        return _log_exponential_draws(rng, (n, self.dim)) - _log_exponential_draws(rng, (n, self.dim))


def log_gamma_draws(rng: np.random.Generator, alpha: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Logarithms of gamma variables, ``(n, *alpha.shape)``; exact for small ``alpha`` too.

    There the gamma variables themselves underflow. If ``g`` is gamma with shape parameter
    ``alpha + 1`` and ``e`` is exponential, ``g exp(-e / alpha)`` has shape parameter ``alpha``.
    """
    size = (n, *alpha.shape)
    return np.log(rng.standard_gamma(alpha + 1, size)) - rng.standard_exponential(size) / alpha


def _gamma_constant(alpha: NDArray[np.float64], beta: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(alpha * np.log(beta) - scipy.special.gammaln(alpha))


def _log_exponential_draws(rng: np.random.Generator, size: Shape) -> NDArray[np.float64]:
    return log_gamma_draws(rng, np.ones(size[1:]), size[0])


def _log_absolute_normal_draws(rng: np.random.Generator, size: Shape) -> NDArray[np.float64]:
    tiny = np.finfo(np.float64).tiny  # a draw of exactly zero has no logarithm
    return np.log(np.maximum(np.abs(rng.standard_normal(size)), tiny))
