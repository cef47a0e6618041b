"""The best Gaussian of a generalised linear model, from one-dimensional integrals."""

from qbvi.exact.bound import ExactBound, GaussianPrior, Noise, Point
from qbvi.exact.method import Columns, Exact
from qbvi.exact.multinomial import MultinomialBound
from qbvi.exact.quadrature import Expected, expected_softplus, hermite

__all__ = [
    "Columns",
    "Exact",
    "ExactBound",
    "Expected",
    "GaussianPrior",
    "MultinomialBound",
    "Noise",
    "Point",
    "expected_softplus",
    "hermite",
]
