"""The approximations q: one file per family."""

from qbvi.families.base import Curve, Family
from qbvi.families.gaussian import DiagonalGaussian, Gaussian
from qbvi.families.product import Product

__all__ = ["Curve", "DiagonalGaussian", "Family", "Gaussian", "Product"]
