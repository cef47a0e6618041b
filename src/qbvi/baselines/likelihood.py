"""Maximum likelihood by SciPy, with the asymptotic covariance from the observed information."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.arrays import to_numpy
from qbvi.baselines.tables import side_by_side, table
from qbvi.evaluate import BlackBox
from qbvi.model import Model
from qbvi.points import row

__all__ = ["MaximumLikelihood", "maximum_likelihood"]

Floats = NDArray[np.float64]

_STEP = 1e-4  # of first differences, in standard deviations of the prior, later of the estimate
_WIDE_STEP = 0.02  # of second differences, in standard deviations of the estimate
_SETTLED = 1e-6  # nats that a Newton step may still gain at the end
_LEAST_FALL = 0.01  # nats that the likelihood must fall within one standard error on any side


@dataclass(frozen=True, eq=False, repr=False)
class MaximumLikelihood:
    """The maximum of a likelihood, and its asymptotic covariance.

    Attributes
    ----------
    estimate : dict of arrays or array
        The estimate on the constrained scale, in the structure of the prior.
    sd : dict of arrays or array
        Asymptotic standard errors, in the same structure.
    cov : array (p, p)
        Asymptotic covariance of all entries, in the order of ``labels``.
    log_likelihood : float
        The log-likelihood at the estimate.
    labels : tuple of str
        Name of every entry.
    converged : bool
        Whether the gradient vanishes at the estimate and the curvature is negative definite.
    n_evals : int
        Number of evaluations of the log-likelihood.
    unconstrained : tuple of arrays (d,), (d, d)
        Estimate and covariance on the unconstrained scale.
    """

    estimate: Any
    sd: Any
    cov: Floats
    log_likelihood: float
    labels: tuple[str, ...]
    converged: bool
    n_evals: int
    unconstrained: tuple[Floats, Floats]

    def __repr__(self) -> str:
        head = f"Maximum likelihood: {self.log_likelihood:.3f}{'' if self.converged else ', not converged'}"
        return table(head, self.labels, {"estimate": side_by_side(self.estimate), "std. error": side_by_side(self.sd)})


def maximum_likelihood(
    log_likelihood: Callable[..., Any], prior: Any, *, vectorized: bool = False, init: Any = None
) -> MaximumLikelihood:
    """Maximise a log-likelihood, with the asymptotic covariance of the estimate.

    The prior gives names, shapes and supports. Unless ``init`` is given, it also gives the start
    and the scales of the parameters. Its density is not used. The search uses BFGS on the
    unconstrained scale with central differences, then Newton steps. The covariance is the inverse
    of the observed information, transformed to the constrained scale by the derivative of the map.

    Parameters
    ----------
    log_likelihood, prior, vectorized
        As in `qbvi.fit`.
    init
        A point to start from, on the constrained scale.

    Returns
    -------
    MaximumLikelihood

    Examples
    --------
    >>> import numpy as np, qbvi
    >>> y = np.array([1.2, 0.7, 1.9])
    >>> log_likelihood = lambda m: -0.5 * np.sum((y - m) ** 2)
    >>> ml = qbvi.baselines.maximum_likelihood(log_likelihood, qbvi.Normal(0, 10))
    >>> round(float(ml.estimate), 4), round(float(ml.sd) ** 2, 4)
    (1.2667, 0.3333)
    """
    model = Model(prior)
    climb = _Climb(model, BlackBox(log_likelihood, vectorized, on_failure={"-inf": "raise"}))
    loc, scale = model.initial()
    start = loc if init is None else model.unconstrain(init)
    peak = _settled(climb, _bfgs(climb, start, scale), scale)
    jacobian = _jacobian(model, peak.u)
    cov_u = peak.root @ peak.root.T
    cov = jacobian @ cov_u @ jacobian.T
    values = model.constrain(peak.u[None])
    errors = model.unflatten(np.sqrt(np.diag(cov))[None])
    return MaximumLikelihood(
        estimate=row(values, 0),
        sd=row(errors, 0),
        cov=cov,
        log_likelihood=float(climb(peak.u[None])[0]),
        labels=tuple(model.labels),
        converged=peak.is_maximum,
        n_evals=climb.black_box.n_evals,
        unconstrained=(peak.u, cov_u),
    )


class _Climb(NamedTuple):
    """The log-likelihood of unconstrained points, and its differences."""

    model: Model
    black_box: BlackBox

    def __call__(self, u: Floats) -> Floats:
        values: Floats = self.black_box(self.model.constrain(u)).values
        return values

    def gradient(self, u: Floats, root: Floats, step: float) -> Floats:
        """Derivatives along the columns of ``root`` (d, d): (d,)."""
        aside = step * root.T
        ahead, behind = np.split(self(np.concatenate([u + aside, u - aside])), 2)
        return (ahead - behind) / (2 * step)

    def hessian(self, u: Floats, root: Floats, step: float) -> Floats:
        """Second derivatives along the columns of ``root``: (d, d)."""
        d = len(u)
        i, j = np.tril_indices(d)
        corners = [u + step * (a * root.T[i] + b * root.T[j]) for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1))]
        both, left, right, neither = np.split(self(np.concatenate(corners)), 4)
        matrix = np.zeros((d, d))
        matrix[i, j] = matrix[j, i] = (both - left - right + neither) / (4 * step**2)
        return matrix


class _Peak(NamedTuple):
    """A maximum: its place, a factor (d, d) of its covariance, and whether it is a maximum."""

    u: Floats
    root: Floats
    is_maximum: bool


def _bfgs(climb: _Climb, start: Floats, scale: Floats) -> Floats:
    """Maximise by BFGS, in units of the prior's scales."""
    root = np.diag(scale)

    def value(w: Floats) -> float:
        return -float(climb((start + scale * w)[None])[0])

    def slope(w: Floats) -> Floats:
        return -climb.gradient(start + scale * w, root, _STEP)

    found = scipy.optimize.minimize(
        value, np.zeros(len(start)), jac=slope, method="BFGS", options={"gtol": 1e-6, "maxiter": 1000}
    )
    return np.asarray(start + scale * found.x)


def _settled(climb: _Climb, u: Floats, scale: Floats) -> _Peak:
    """Take Newton steps in coordinates in which the curvature is approximately the identity."""
    root = _whitening(np.diag(scale), climb.hessian(u, np.diag(scale), 1e-3))
    gain = np.inf
    for _ in range(5):
        root = _whitening(root, climb.hessian(u, root, _WIDE_STEP))
        slope = climb.gradient(u, root, _STEP * 10)
        gain = 0.5 * float(slope @ slope)
        u = u + root @ slope * min(1.0, 1.0 / max(float(np.linalg.norm(slope)), 1e-300))
        if gain < _SETTLED * 1e-6:
            break
    # If the likelihood is a parabola, it falls by half a nat within one standard error on any
    # side. On an endless slope it does not fall.
    around = climb(np.concatenate([u[None], u + root.T, u - root.T]))
    if np.max(around[1:]) > around[0] - _LEAST_FALL:
        raise ValueError(_NO_MAXIMUM)
    return _Peak(u, root, gain < _SETTLED)


_NO_MAXIMUM = (
    "the likelihood has no maximum with a definite curvature near the point reached: a parameter is not identified, or the likelihood grows "
    "without bound (as with perfectly separated classes); start elsewhere with `init`, or fit with a prior by qbvi.fit"
)


def _whitening(root: Floats, hessian: Floats) -> Floats:
    """A factor of the inverse information, from the Hessian along the columns of ``root``."""
    information = -hessian
    values = np.linalg.eigvalsh(information)
    if not np.all(np.isfinite(values)) or values.min() <= 1e-10 * max(values.max(), 1e-300):
        raise ValueError(_NO_MAXIMUM)
    factor = np.linalg.cholesky(information)
    return np.asarray(root @ scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True, trans="T"))


def _jacobian(model: Model, u: Floats) -> Floats:
    """Derivative of the constrained entries by ``u``: (p, d)."""
    aside = 1e-6 * np.eye(model.dim)
    ahead, behind = (to_numpy(model.flatten(model.constrain(u + side * aside))) for side in (1, -1))
    return (ahead - behind).T / 2e-6
