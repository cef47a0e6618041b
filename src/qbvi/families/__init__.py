"""The approximations q: one file per group of distributions, products and mixtures of them."""

from qbvi.families.base import Curve, Family, GaussianFamily, Part
from qbvi.families.beta import Beta, Dirichlet
from qbvi.families.categories import Bernoulli, Categorical
from qbvi.families.counts import NegativeBinomial, Poisson
from qbvi.families.diagonal import DiagonalGaussian
from qbvi.families.exponential import ExponentialFamily
from qbvi.families.gamma import Exponential, Gamma, InverseGamma
from qbvi.families.gaussian import Gaussian
from qbvi.families.low_rank import LowRankGaussian
from qbvi.families.mixture import Mixture
from qbvi.families.product import GaussianProduct, Product, product
from qbvi.families.sample import Sample
from qbvi.families.wishart import InverseWishart, Wishart

LAWS: dict[str, type[ExponentialFamily]] = {
    law.__name__: law
    for law in (
        Gamma,
        InverseGamma,
        Exponential,
        Beta,
        Dirichlet,
        Wishart,
        InverseWishart,
        Bernoulli,
        Categorical,
        Poisson,
        NegativeBinomial,
    )
}

__all__ = [
    "LAWS",
    "Bernoulli",
    "Beta",
    "Categorical",
    "Curve",
    "DiagonalGaussian",
    "Dirichlet",
    "Exponential",
    "ExponentialFamily",
    "Family",
    "Gamma",
    "Gaussian",
    "GaussianFamily",
    "GaussianProduct",
    "InverseGamma",
    "InverseWishart",
    "LowRankGaussian",
    "Mixture",
    "NegativeBinomial",
    "Part",
    "Poisson",
    "Product",
    "Sample",
    "Wishart",
    "product",
]
