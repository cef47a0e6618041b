"""The registry of families that every law is tested on: a new family is one line here."""

from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from qbvi.arrays import pack_symmetric, to_numpy, unpack_symmetric
from qbvi.families import (
    Bernoulli,
    Beta,
    Categorical,
    DiagonalGaussian,
    Dirichlet,
    Exponential,
    Family,
    Gamma,
    Gaussian,
    GaussianFamily,
    GaussianProduct,
    InverseGamma,
    InverseWishart,
    LowRankGaussian,
    NegativeBinomial,
    Poisson,
    Product,
    Wishart,
)

SCALE = [[2.0, 0.6, -0.3], [0.6, 1.0, 0.2], [-0.3, 0.2, 0.5]]
OTHER_SCALE = [[1.0, -0.2, 0.1], [-0.2, 0.7, 0.3], [0.1, 0.3, 0.9]]


class Case(NamedTuple):
    """A family, and the textbook parameters of a generic member; Gaussian ones have random moments."""

    family: Family
    parameters: dict[str, Any] | None = None

    def member(self, xp, rng):
        return _generic(self, xp, rng)


CASES = {
    "full-1": Case(Gaussian(1)),
    "full-4": Case(Gaussian(4)),
    "low-rank-3": Case(LowRankGaussian(3, rank=3)),  # all Gaussians: of lower rank see test_low_rank_gaussian.py
    "diagonal-3": Case(DiagonalGaussian(3)),
    "blocks": Case(GaussianProduct((Gaussian(2), DiagonalGaussian(1), Gaussian(2)), ((3, 0), (4,), (1, 2)))),
    "gamma": Case(Gamma(2), {"alpha": [3.0, 0.8], "beta": [2.0, 5.0]}),
    "inverse-gamma": Case(InverseGamma(2), {"alpha": [9.0, 14.0], "beta": [2.0, 30.0]}),
    "exponential": Case(Exponential(2), {"rate": [0.4, 3.0]}),
    "beta": Case(Beta(2), {"alpha": [0.7, 3.0], "beta": [2.0, 1.5]}),
    "dirichlet": Case(Dirichlet(2, k=3), {"concentration": [[0.8, 2.0, 3.5], [4.0, 1.0, 1.5]]}),
    "wishart-1": Case(Wishart(p=1), {"df": [3.0], "scale": [[[0.5]]]}),
    "wishart-3": Case(Wishart(2, p=3), {"df": [4.5, 9.0], "scale": [SCALE, OTHER_SCALE]}),
    "inverse-wishart-1": Case(InverseWishart(p=1), {"df": [16.0], "scale": [[[0.5]]]}),
    "inverse-wishart-2": Case(InverseWishart(2, p=2), {"df": [18.0, 25.0], "scale": [np.eye(2) * 3, [[2, 1], [1, 4]]]}),
    "bernoulli": Case(Bernoulli(3), {"p": [0.2, 0.45, 0.7]}),
    "categorical": Case(Categorical(2, k=4), {"probs": [[0.1, 0.4, 0.3, 0.2], [0.6, 0.15, 0.05, 0.2]]}),
    "poisson": Case(Poisson(2), {"rate": [0.7, 6.0]}),
    "negative-binomial": Case(NegativeBinomial(2, count=3), {"p": [0.3, 0.8]}),
    "product": Case(
        Product(
            (Gaussian(2), InverseGamma(2), DiagonalGaussian(1), Dirichlet(k=3), Bernoulli()),
            ((4, 0), (7, 2), (1,), (3, 8, 5), (6,)),
        )
    ),
}
FAMILIES = {name: case.family for name, case in CASES.items()}
NAMES = list(CASES)
GAUSSIAN = [name for name, family in FAMILIES.items() if isinstance(family, GaussianFamily)]
LAW_NAMES = [name for name, case in CASES.items() if case.parameters is not None]
BY_CLASS = {type(case.family).__name__: case for case in reversed(CASES.values()) if case.parameters is not None}


def one_law(family, q):
    """SciPy's distributions of the copies of a law, one each."""
    parameters = family.parameters(q)
    copies = [{name: value[i] for name, value in parameters.items()} for i in range(family.copies)]
    return [_SCIPY[type(family).__name__](family, **copy) for copy in copies]


_SCIPY = {
    "Gamma": lambda f, alpha, beta: scipy.stats.gamma(alpha, scale=1 / beta),
    "InverseGamma": lambda f, alpha, beta: scipy.stats.invgamma(alpha, scale=beta),
    "Exponential": lambda f, rate: scipy.stats.expon(scale=1 / rate),
    "Beta": lambda f, alpha, beta: scipy.stats.beta(alpha, beta),
    "Dirichlet": lambda f, concentration: scipy.stats.dirichlet(concentration),
    "Wishart": lambda f, df, scale: scipy.stats.wishart(df, scale),
    "InverseWishart": lambda f, df, scale: scipy.stats.invwishart(df, scale),
    "Bernoulli": lambda f, p: scipy.stats.bernoulli(p),
    "Categorical": lambda f, probs: scipy.stats.rv_discrete(values=(np.arange(f.k), probs)),
    "Poisson": lambda f, rate: scipy.stats.poisson(rate),
    "NegativeBinomial": lambda f, p: scipy.stats.nbinom(f.count, p),
}


def factors(family, q):
    """The factors of a family with their members, or the family itself: [(family, q)]."""
    if isinstance(family, Product):
        return [pair for f, part in zip(family.factors, family._split(q), strict=True) for pair in factors(f, part)]
    return [(family, q)]


def textbook(family, q):
    """The parameters in which `Family.euclidean` is the gradient, as free numbers: mean and covariance of a Gaussian."""
    if isinstance(family, Product):
        return np.concatenate([textbook(f, part) for f, part in factors(family, q)])
    if isinstance(family, Gaussian | LowRankGaussian):
        return np.concatenate([family.mean(q), pack_symmetric(family.cov(q))])
    if isinstance(family, DiagonalGaussian):
        return np.concatenate([family.mean(q), family.sd(q) ** 2])
    return family.one_textbook(family._open(q)).reshape(-1)


def from_textbook(family, xi):
    """Undo `textbook`."""
    if isinstance(family, Product):
        ends = np.cumsum([0, *(f.size for f in family.factors)])
        parts = zip(family.factors, ends, ends[1:], strict=False)
        return np.concatenate([from_textbook(f, xi[a:b]) for f, a, b in parts])
    if isinstance(family, Gaussian | LowRankGaussian):
        return family.from_moments(xi[: family.dim], unpack_symmetric(xi[family.dim :], family.dim))
    if isinstance(family, DiagonalGaussian):
        return family.start(xi[: family.dim], np.sqrt(xi[family.dim :]))
    return family.one_from_textbook(xi.reshape(family.copies, -1)).reshape(-1)


def is_inside(family, q):
    """Whether every number of a member is finite and every factor in its domain."""
    laws = [(f, part) for f, part in factors(family, to_numpy(q)) if not isinstance(f, GaussianFamily)]
    return bool(np.all(np.isfinite(to_numpy(q)))) and all(np.all(f.one_is_inside(f._open(part))) for f, part in laws)


def _generic(case, xp, rng):
    family = case.family
    if case.parameters is not None:
        return family.member(case.parameters)
    if isinstance(family, Product) and not isinstance(family, GaussianProduct):
        parts = (Case(f).member(np, rng) if isinstance(f, GaussianFamily) else _alike(f) for f in family.factors)
        return np.concatenate(list(parts))
    d = family.dim
    root = rng.standard_normal((d, d)) / np.sqrt(d) + np.eye(d)
    return family.from_moments(xp.asarray(rng.standard_normal(d)), xp.asarray(root @ root.T))


def _alike(law):
    """The member of a factor that has the first parameters of that law in the registry."""
    parameters = BY_CLASS[type(law).__name__].parameters
    return law.member({name: np.asarray(value)[: law.copies] for name, value in parameters.items()})
