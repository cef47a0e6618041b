"""PyTorch modules as models: named parameters, vectorised forward passes, and predictions."""

try:
    import torch  # noqa: F401  # PyTorch itself, first: the error names the remedy
except ImportError as error:
    _MISSING = 'qbvi.torch needs PyTorch, which is not installed: pip install "qbvi[torch]"'
    raise ImportError(_MISSING) from error

from qbvi.torch.likelihood import ModuleLikelihood, module_likelihood
from qbvi.torch.prediction import Prediction

__all__ = ["ModuleLikelihood", "Prediction", "module_likelihood"]
