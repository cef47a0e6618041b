"""The default method: regress the residual on Hermite polynomials of the whitened draws, step in a trust region.

`hermite` has the kernels, `surrogate` the regression, `trust_region` the step, `method` the loop's init, ask and tell.
"""

from qbvi.regression.method import Regression

__all__ = ["Regression"]
