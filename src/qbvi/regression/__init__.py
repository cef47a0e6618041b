"""The default method: regress the residual on polynomials of the whitened draws, step in a trust region.

`method` is for Gaussians, `mean_field` for products of other families. They share the `store` of all points, the regression (`surrogate` on the kernels of `hermite`) and
what a step promises (`trust_region`); `correction` has what left-out draws say against it.
"""

from qbvi.regression.gaussian import Regression
from qbvi.regression.mean_field import MeanFieldRegression
from qbvi.regression.ridge import Ridge

__all__ = ["MeanFieldRegression", "Regression", "Ridge"]
