"""Evaluations that were made before a fit: read, compared with the function, and given to it."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from qbvi.arrays import to_numpy
from qbvi.clusters import Cluster, clusters, hills, log_density
from qbvi.evaluate import EvaluationError
from qbvi.evaluations import STAGES, Evaluations, Recorded
from qbvi.evaluations.files import from_columns
from qbvi.evaluations.samplers import from_sampler
from qbvi.families.gaussian import Gaussian
from qbvi.free.base import Base
from qbvi.free.density import FreeDensity
from qbvi.free.rules import Caution
from qbvi.model import Model
from qbvi.protocol import Component, Known, Part
from qbvi.results import Fit

__all__ = ["Agreement", "Earlier", "Probed"]

Floats = NDArray[np.float64]

_PROBES = 2  # given points that are evaluated again; one more if a constant may be missing
# Nats that a value may differ by without being another function's: values from a text file are
# rounded, and so are their points.
_ROUNDED = 1e-3
# Relative error of a value without noise, summed over many observations, by dtype.
_ROUNDING = {"float64": 1e-10, "float32": 1e-5}
_FALSE_ALARM = 1e-4  # chance that values of the same noisy function are refused
# Relative difference between points that went through a map and back: rounding, much enlarged.
_SAME = 1e-9
# Points, for each dimension and two more, of which the surface of a density is made. Of 5 to 50,
# fits from chains take the fewest evaluations with 10 (benchmarks/from_emcee.py --points).
_FOR_A_SURFACE = 10
# Least effective sample size, for each dimension, of the points that the start is made from.
_ENOUGH = 3
_MOST = 2000  # points that are divided into hills
_DRAWN = 0.1  # effective sample size from which points are a sample, relative to their number
_VALLEY = 3.0  # nats of a valley that a single Gaussian may cover
_COUNTS = 0.02  # share of the mass from which a hill matters
_FLAT = 1e-6  # share of the variances that is added to each covariance


class Probed(NamedTuple):
    """What the function gives at the points that are evaluated again."""

    log_joint: Floats  # (n,) NaN where it failed
    noise_sd: Floats  # (n,) zero if unknown
    dtype: str = "float64"


class Agreement(NamedTuple):
    """What a comparison of given values with the function shows."""

    noise: float  # variance of the function's noise
    shift: float  # constant that was missing in the given values


@dataclass(frozen=True, eq=False)
class Earlier:
    """Earlier evaluations under the model of a fit.

    Parameters
    ----------
    theta
        The points on the unconstrained scale (N, d).
    values
        Log-likelihoods (N,); not finite where the function failed.
    noise_sd, batch
        As in `Evaluations` (N,).
    log_prior
        Log prior density of ``theta``, with the log-Jacobian (N,).
    scale
        Standard deviations of the prior (d,).
    is_shifted
        Whether a constant may be missing in all values.
    posterior
        Mean and covariance of the fit that made them, if there was one.
    is_foreign
        Whether another program chose the points, not a fit.
    components
        Gaussians whose mixture is near the posterior of a converged fit under the same prior.
    """

    theta: Floats
    values: Floats
    noise_sd: Floats
    batch: NDArray[np.int64]
    log_prior: Floats
    scale: Floats
    is_shifted: bool = False
    posterior: tuple[Floats, Floats] | None = None
    is_foreign: bool = False
    components: tuple[Component, ...] = ()

    @classmethod
    def of(cls, given: Any, model: Model) -> Earlier | None:
        """Read what a user gives as ``evaluations=``, or raise an error that says what is wrong."""
        if given is None:
            return None
        table = _table(given)
        points = _matched(table, model)
        u = _unconstrained(table, points, model)
        usable = np.isfinite(u).all(axis=1)
        u, values = u[usable], table.values[usable]
        log_prior = to_numpy(model.log_prior(u)) if len(u) else np.empty(0)
        if table.with_prior and len(u):
            values = values - (log_prior - to_numpy(model.log_jacobian(u)))
        if not np.isfinite(values + log_prior).any():
            msg = f"`evaluations` must have a finite value at one point at least, got none among {len(table)}"
            raise ValueError(msg)
        is_same = isinstance(given, Fit) and _layout(given.model) == _layout(model)
        posterior = given.unconstrained if is_same else None
        has_same_prior = is_same and np.array_equal(to_numpy(given.model.log_prior(u)), log_prior)
        return cls(
            u,
            values,
            table.noise_sd[usable],
            table.batch[usable],
            log_prior,
            model.initial()[1],
            table.with_prior,
            posterior,
            is_foreign=bool(np.all(table.stage == STAGES[0])),
            components=_components(given) if has_same_prior else (),
        )

    @cached_property
    def digest(self) -> str:
        """A hash of all points and values."""
        digest = hashlib.blake2b(digest_size=16)
        for column in (self.theta, self.values, self.noise_sd):
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    @cached_property
    def probes(self) -> NDArray[np.int64]:
        """Rows to evaluate again: the best point, and others in equal steps of sorted values."""
        fine = np.flatnonzero(np.isfinite(self.values + self.log_prior))
        order = fine[np.argsort(-(self.values + self.log_prior)[fine], kind="stable")]
        n = min(len(order), _PROBES + self.is_shifted)
        return order[[i * len(order) // n for i in range(n)]]

    def compare(self, now: Probed, again: Floats | None = None) -> Agreement | None:
        """Compare given log joints with those of the function at the `probes`.

        ``again`` are log joints at the same points once more (n,). Raises an `EvaluationError` if
        the given values are not those of the function. Returns None if they differ and it is not
        known whether that is noise: then the points must be evaluated again.
        """
        given, at, first = (self.values + self.log_prior)[self.probes], self.theta[self.probes], now.log_joint
        if np.all(np.isnan(first)):
            raise EvaluationError(_failing(at[0], given[0]))
        difference = first - given
        finite = difference[np.isfinite(difference)]
        shift = float(finite[0]) if self.is_shifted and finite.size else 0.0
        difference = np.where(np.isnan(first), 0.0, difference - shift)
        error, dof = self._errors(now.noise_sd, None if again is None else again - first)
        rounding = _ROUNDING[now.dtype] * np.maximum(np.abs(given), 1.0)
        if again is None and not dof and np.any(np.abs(difference) > _ROUNDED + rounding):
            return None
        allowed = _ROUNDED + rounding + _critical(dof) * error * (math.sqrt(2) if self.is_shifted else 1.0)
        i = int(np.argmax(np.abs(difference) - allowed))
        if abs(difference[i]) > allowed[i]:
            raise EvaluationError(_changed(at[i], given[i] + shift, first[i], self.is_shifted))
        seen = np.where(np.abs(difference) > rounding, difference, 0.0)
        return Agreement(float(max(np.mean(seen**2), np.mean(error**2))) / 2, shift)

    def _errors(self, noise_sd: Floats, repeats: Floats | None) -> tuple[Floats, float]:
        """Standard deviations of the differences at the probes (n,), and their degrees of freedom.

        These are zero if nothing is known about the noise.
        """
        variance = self.noise_sd[self.probes] ** 2 + noise_sd**2
        if np.any(variance):
            return np.sqrt(variance), math.inf
        # A chain that stays where it is repeats its value, whether or not there is noise.
        seen = self._repeats if np.any(self._repeats) else self._repeats[:0]
        seen = seen if repeats is None else np.concatenate([seen, repeats[np.isfinite(repeats)]])
        sd = math.sqrt(float(np.mean(seen**2))) if seen.size else 0.0
        return np.full(len(noise_sd), sd), float(seen.size)

    def known(self, agreement: Agreement) -> Known:
        """The evaluations as a method takes them: every point once, cluster after cluster.

        Of long chains without noise it takes a part: a method makes more calls the more points it
        has to agree with, and thousands of points of one chain say little more than hundreds.
        """
        theta, log_joint, variance, _ = self._distinct
        most = _most_points(theta.shape[1]) if self.is_foreign and not agreement.noise else len(theta)
        kept = _informative(log_joint, theta.shape[1], most)
        held = [cluster._replace(rows=cluster.rows[np.isin(cluster.rows, kept)]) for cluster in self._clusters]
        held = [cluster for cluster in held if len(cluster.rows)]
        rows = np.concatenate([cluster.rows for cluster in held])
        sizes = np.cumsum([0, *(len(cluster.rows) for cluster in held)]).tolist()
        parts = zip(held, sizes[:-1], sizes[1:], strict=True)
        value = np.where(np.isfinite(log_joint), log_joint + agreement.shift, -np.inf)
        return Known(
            theta[rows],
            value[rows],
            np.sqrt(variance[rows]),
            tuple(Part(c.mean, c.cov, start, stop) for c, start, stop in parts),
            agreement.noise,
            () if agreement.noise else self.components or self._by_weights(agreement.shift),
            self.is_sample,
        )

    def recorded(self, agreement: Agreement) -> Recorded:
        """The evaluations as the record of a run holds them."""
        n, stage = len(self.values), STAGES.index("given")
        batch = np.unique(self.batch, return_inverse=True)[1].astype(np.int64)
        value = self.values + agreement.shift
        return Recorded(self.theta, value, self.noise_sd, np.full(n, stage, np.int8), batch, 0, agreement.noise == 0)

    @property
    def is_sample(self) -> bool:
        """Whether the points are a sample of the posterior, as of a Markov chain.

        Then many have about the same weight, and half of them are about d / 2 nats below the best
        one. An optimiser has few points where its search began, and most at its end.
        """
        theta, log_joint, log_weights = self._weighted
        is_even = _effective(log_weights) > _DRAWN * len(theta)
        is_below = float(np.median(np.max(log_joint) - log_joint)) > theta.shape[1] / 4
        return self.is_foreign and is_even and is_below

    @cached_property
    def _weighted(self) -> tuple[Floats, Floats, Floats]:
        """The points with a log joint, and their log importance weights."""
        theta, log_joint, _, _ = self._distinct
        fine = np.isfinite(log_joint)
        return theta[fine], log_joint[fine], log_joint[fine] - log_density(self._clusters, theta[fine])

    def _by_weights(self, shift: float) -> tuple[Component, ...]:
        """A Gaussian for each hill, with the moments of its weighted points.

        None if too few of all points count, or if they are another program's but no sample.
        """
        theta, log_joint, log_weights = (part[:: -(-len(part) // _MOST)] for part in self._weighted)
        d = theta.shape[1]
        is_few = len(theta) < 2 * (d + 1) or _effective(log_weights) < _ENOUGH * (d + 1)
        if is_few or (self.is_foreign and not self.is_sample):
            return ()
        total = float(np.logaddexp.reduce(log_weights)) - math.log(len(log_weights)) + shift
        weights = np.exp(log_weights - np.logaddexp.reduce(log_weights))
        sd = np.sqrt(np.diag(_moments(theta, weights)[1]))
        # Draws are about d / 2 nats below the top of their hill, as are the passes between them.
        first, *others = hills(theta / sd, log_joint, d / 2 + _VALLEY)
        # A hill with too few points for a covariance is a far part of the first one.
        few = [rows for rows in others if np.sum(weights[rows]) ** 2 <= (d + 1) * np.sum(weights[rows] ** 2)]
        held = [np.concatenate([first, *few]), *[rows for rows in others if not any(rows is part for part in few)]]
        shares = [float(weights[rows].sum()) for rows in held]
        moments = [_moments(theta[rows], weights[rows] / share) for rows, share in zip(held, shares, strict=True)]
        return tuple(
            Component(mean, cov + _FLAT * np.diag(sd**2), total + math.log(share))
            for (mean, cov), share in zip(moments, shares, strict=True)
            if share > _COUNTS
        )

    @property
    def start(self) -> tuple[Floats, Floats | None]:
        """Where to start: a mean (d,) and a covariance (d, d); None if the points are too few.

        - The mean and covariance of the fit that made the evaluations, if there was one.
        - Otherwise moments of the points, with importance weights: log joint less the log density
          of the points. The weights are tempered until enough points count.
        """
        if self.posterior is not None:
            return self.posterior
        theta, log_joint, log_weights = self._weighted
        d = theta.shape[1]
        if len(theta) < 2 * (d + 1):
            return theta[int(np.argmax(log_joint))], None
        weights = _tempered(log_weights, _ENOUGH * (d + 1))
        mean, cov = _moments(theta, weights)
        share = (d + 1) / (d + 1 + 1 / np.sum(weights**2))
        variances = np.diagonal(cov)
        variances = np.where(variances > 0, variances, self.scale**2)
        return mean, (1 - share) * cov + share * np.diag(variances)

    @cached_property
    def _distinct(self) -> _Distinct:
        """Every point once, in the order of its first occurrence.

        The number of points is even, as the store of a method holds pairs: if it is odd, the worst
        point is left out.
        """
        _, first, group = np.unique(self.theta, axis=0, return_index=True, return_inverse=True)
        group, count = np.reshape(group, -1), np.bincount(np.reshape(group, -1))
        log_joint = self.values + self.log_prior
        with np.errstate(invalid="ignore"):
            mean = np.bincount(group, log_joint) / count if np.any(self._repeats) else log_joint[first]
        variance = np.bincount(group, self.noise_sd**2) / count**2
        order = np.argsort(first, kind="stable")
        if len(order) % 2 and len(order) > 1:
            worst = np.argmin(np.where(np.isfinite(mean[order]), mean[order], -np.inf))
            order = np.delete(order, worst)
        rows = first[order]
        return _Distinct(self.theta[rows], mean[order], variance[order], self.batch[rows])

    @cached_property
    def _repeats(self) -> Floats:
        """Differences between values of the same point: what is known about the noise (m,)."""
        order = np.lexsort(self.theta.T)
        theta, values = self.theta[order], self.values[order]
        with np.errstate(invalid="ignore"):
            difference = np.diff(values)
        same = np.all(theta[1:] == theta[:-1], axis=1) & np.isfinite(difference)
        return np.asarray(difference[same])

    @cached_property
    def _clusters(self) -> list[Cluster]:
        return clusters(self._distinct.theta, self._distinct.batch, self.scale)


def _moments(theta: Floats, weights: Floats) -> tuple[Floats, Floats]:
    mean = weights @ theta
    return mean, (theta - mean).T @ (weights[:, None] * (theta - mean))


class _Distinct(NamedTuple):
    theta: Floats  # (N, d)
    log_joint: Floats  # (N,) means over the evaluations of each point
    variance: Floats  # (N,) of their noise
    batch: NDArray[np.int64]  # (N,)


def _table(given: Any) -> Evaluations:
    if isinstance(given, Fit):
        return _held(given)
    if isinstance(given, Evaluations):
        return given
    if isinstance(given, str | os.PathLike):
        return Evaluations.load(given)
    if isinstance(given, Mapping):
        return Evaluations(**from_columns(given, "`evaluations`"))
    if hasattr(given, "columns"):
        return Evaluations.from_frame(given)
    if isinstance(given, tuple) and len(given) == 2:
        return Evaluations.from_arrays(*given)
    found = from_sampler(given)
    if found is not None:
        return Evaluations(**found)
    msg = (
        "`evaluations` must be a qbvi.Fit, a qbvi.Evaluations, a file, a pair (points, log-likelihoods), a dict or data frame with "
        f"'log_likelihood', or a sampler of emcee, dynesty or nautilus, got {type(given).__name__}"
    )
    raise TypeError(msg)


def _held(fit: Fit) -> Evaluations:
    if fit.evaluations is None:
        msg = (
            "`evaluations` must be a fit that holds its evaluations, got one without: its values were of mini-batches or stayed on a device, "
            "or its file does not have them; pass init=fit to start from its posterior"
        )
        raise ValueError(msg)
    return fit.evaluations


def _components(fit: Fit) -> tuple[Component, ...]:
    """Gaussians near the posterior of a converged fit.

    None of one whose modes are copies, or of another family, which may be a mixture.
    """
    if not fit.converged or any(not start.n_evals for start in fit.starts):
        return ()
    if not isinstance(fit.family, FreeDensity | Gaussian):
        return ()
    base = Base.one(*fit.unconstrained)
    if isinstance(fit.family, FreeDensity):
        member = fit.family.unpack(fit.q)
        base = base if member.warp else member.base
    weighted = zip(base.weights, base.means, base.covs, strict=True)
    return tuple(Component(mean, cov, fit.elbo + math.log(weight)) for weight, mean, cov in weighted if weight > 0)


def _matched(table: Evaluations, model: Model) -> Floats:
    """The columns of a table in the order of the model."""
    at = {label: i for i, label in enumerate(table.labels)}
    missing = [label for label in model.labels if label not in at]
    is_unnamed = all(label == "theta" or label.startswith("theta[") for label in table.labels)
    if missing and is_unnamed and len(table.labels) == len(model.labels):
        return table.points
    if missing:
        msg = f"`evaluations` must have all entries of the prior, {', '.join(model.labels[:8])}; missing {missing[0]!r} among {', '.join(table.labels[:8])}"
        raise ValueError(msg)
    return table.points[:, [at[label] for label in model.labels]]


def _unconstrained(table: Evaluations, points: Floats, model: Model) -> Floats:
    """The points on the scale of the model; those of an earlier fit keep every bit."""
    u = table.unconstrained
    if u is None:
        return _mapped(points, model)
    if u.shape[1] == model.dim and _is_same(to_numpy(model.flatten(model.constrain(u))), points):
        return u
    # A fit's own points may be beyond the largest number; those are left out.
    fine = np.isfinite(points).all(axis=1)
    mapped = np.full((len(points), model.dim), np.nan)
    mapped[fine] = _mapped(points[fine], model)
    return mapped


def _is_same(points: Floats, given: Floats) -> bool:
    """Whether points are the given ones, up to the rounding of a map there and back."""
    finite = np.isfinite(given).all(axis=1)
    spread = given[finite].std(axis=0) if finite.any() else np.zeros(given.shape[1])
    fine = np.abs(points - given) <= _SAME * (np.abs(given) + spread)
    return bool(np.all((points == given) | fine))


def _mapped(points: Floats, model: Model) -> Floats:
    try:
        with np.errstate(divide="ignore"):
            return model.unconstrain(model.unflatten(points), batched=True)
    except (ValueError, TypeError) as error:
        msg = f"`evaluations`: {error}"
        raise type(error)(msg) from error


def _layout(model: Model) -> list[tuple[Any, ...]]:
    return [(p.name, p.shape, p.is_native, repr(p.distribution.support)) for p in model.parameters]


def _most_points(d: int) -> int:
    """Points of another program that a method gets: enough for a surface, and for a quadratic."""
    return max(_FOR_A_SURFACE * (d + 2), (d + 1) * (d + 2))


def _informative(log_joint: Floats, d: int, most: int) -> NDArray[np.int64]:
    """At most so many rows: in equal steps of the sorted values that matter, or else the best."""
    if len(log_joint) <= most:
        return np.arange(len(log_joint))
    order = np.argsort(np.where(np.isfinite(log_joint), -log_joint, np.inf), kind="stable")
    n_near = int(np.sum(log_joint >= log_joint[order[0]] - Caution().depth(d)))
    n, most = max(n_near, most), most - most % 2  # pairs
    return order[np.arange(most) * n // most]


def _tempered(log_weights: Floats, least: float) -> Floats:
    """Weights proportional to exp(power log_weights), that add up to one.

    The power is the largest up to one for which the effective sample size is at least ``least``.
    """
    centred = log_weights - log_weights.max()

    def weights(power: float) -> Floats:
        raw = np.exp(power * centred)
        return np.asarray(raw / raw.sum())

    low, high = 0.0, 1.0
    if 1 / np.sum(weights(1.0) ** 2) >= least:
        return weights(1.0)
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if 1 / np.sum(weights(middle) ** 2) >= least else (low, middle)
    return weights(low)


def _effective(log_weights: Floats) -> float:
    """Effective sample size of points with these weights."""
    weights = np.exp(log_weights - np.max(log_weights))
    return float(np.sum(weights) ** 2 / np.sum(weights**2))


def _critical(dof: float) -> float:
    """Standard errors that a difference of values of the same function rarely exceeds."""
    return -float(scipy.special.stdtrit(min(dof, 1e6), _FALSE_ALARM / 2)) if dof else 0.0


def _failing(point: Floats, given: float) -> str:
    return (
        f"`evaluations` must be values of this function, which fails at the points that were evaluated again: at the unconstrained point "
        f"{np.round(point, 6).tolist()} the log joint was {given:.6g}; leave them out if the function has changed"
    )


def _changed(point: Floats, given: float, now: float, is_shifted: bool) -> str:
    constant = ", apart from a constant," if is_shifted else ""
    return (
        f"`evaluations` must be values of this function: at the unconstrained point {np.round(point, 6).tolist()} the log joint "
        f"was{constant} {given:.6g} and is now {now:.6g}; leave them out if the function or its data have changed, or pass init= to start from their posterior"
    )
