"""The approximations q: one file per family, and products of them."""

from qbvi.families.base import Advance, Curve, Family, GaussianFamily
from qbvi.families.exponential import ExponentialFamily
from qbvi.families.gamma import Exponential, Gamma, InverseGamma
from qbvi.families.gaussian import DiagonalGaussian, Gaussian
from qbvi.families.product import GaussianProduct, Product, product

LAWS: dict[str, type[ExponentialFamily]] = {law.__name__: law for law in (Gamma, InverseGamma, Exponential)}

__all__ = [
    "LAWS",
    "Advance",
    "Curve",
    "DiagonalGaussian",
    "Exponential",
    "ExponentialFamily",
    "Family",
    "Gamma",
    "Gaussian",
    "GaussianFamily",
    "GaussianProduct",
    "InverseGamma",
    "Product",
    "product",
]
