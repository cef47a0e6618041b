"""The default method: regress the residual on the whitened draws, step in a trust region.

`rules` is the rule book and `base` the iteration that the methods on the host share. `gaussian` is
the method for Gaussian families, `mean_field` the one for products of other families, `ridge` the
one for any array library. The first two regress (`regress`, `surrogate`, `hermite`) on the `store`
of all points, with a `correction` by draws that the regression did not see. `ridge` regresses with
`krylov`. `line` has the steps of a Gaussian. `low_rank` is the method for covariances of low rank
plus a diagonal, and regresses with `stars`.
"""

from qbvi.regression.gaussian import Regression
from qbvi.regression.low_rank import LowRankRegression
from qbvi.regression.mean_field import MeanFieldRegression
from qbvi.regression.ridge import Ridge

__all__ = ["LowRankRegression", "MeanFieldRegression", "Regression", "Ridge"]
