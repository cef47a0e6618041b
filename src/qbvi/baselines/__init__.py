"""Methods to compare with: three other variational ones, ensemble MCMC, maximum likelihood."""

from qbvi.baselines.bbvi import BBVI
from qbvi.baselines.cgvb import CGVB, jax_gradient
from qbvi.baselines.likelihood import MaximumLikelihood, maximum_likelihood
from qbvi.baselines.mcmc import Chains, mcmc
from qbvi.baselines.mgvb import MGVB
from qbvi.baselines.scalings import AdaGrad, RMSProp

__all__ = [
    "BBVI",
    "CGVB",
    "MGVB",
    "AdaGrad",
    "Chains",
    "MaximumLikelihood",
    "RMSProp",
    "jax_gradient",
    "maximum_likelihood",
    "mcmc",
]
