"""Ready-made models: vectorised likelihood, prior, prediction and maximum likelihood."""

from qbvi.models.base import Prediction, StatisticalModel
from qbvi.models.binomial import Binomial
from qbvi.models.garch import GARCH
from qbvi.models.har import HAR
from qbvi.models.linear import Linear
from qbvi.models.logistic import Logistic
from qbvi.models.multinomial import MultinomialLogistic
from qbvi.models.network import Network
from qbvi.models.poisson import Poisson
from qbvi.models.scores import Scores

__all__ = [
    "GARCH",
    "HAR",
    "Binomial",
    "Linear",
    "Logistic",
    "MultinomialLogistic",
    "Network",
    "Poisson",
    "Prediction",
    "Scores",
    "StatisticalModel",
]
