r"""A change of coordinates that makes funnels and bent ridges straight.

Many posteriors are Gaussian in most coordinates v *given* one or two others s. The effects of a
hierarchical model are Gaussian given the log of their scale, and the bend of a banana is that of
the mean of v given s. Their log joint is

.. math:: f(s, v) = a(s) + b(s)^T v - \tfrac12 v^T P(s) v

With b and P sums of a few functions of s, this is a linear regression. With two coordinates s, the
functions are products of one of each: the precision of standardised effects is a prior's, plus that
of the data, which is the square of the scale of the effects over the variance of the noise. The
regression shows which coordinates to take as s, and from it follow the coordinates

.. math:: w = P(s)^{1/2} \{v - P(s)^{-1} b(s)\}

in which v is standard normal for every s. The surrogate is then fitted to the log density of s and
w. The change of coordinates is exact whatever b and P are, so an error in them costs evaluations,
not accuracy.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbvi.free.kernel import squared_distances
from qbvi.free.process import LeftOut
from qbvi.free.rules import WarpSearch

__all__ = ["Given", "Sample", "Warp", "fitted", "found"]

Floats = NDArray[np.float64]
Given = tuple[tuple[int, float], ...]  # coordinates s, each with its rate: see `_functions`

_TINY = 1e-300
_OVERFLOW = 30.0  # largest exponent of a function of s


class Warp(NamedTuple):
    """A change of coordinates; none if no coordinate is given.

    Examples
    --------
    >>> import numpy as np
    >>> theta = np.array([[0.5, -1.0], [2.0, 3.0]])
    >>> w, log_jacobian = Warp.none(2).straight(theta)
    >>> bool(np.all(w == theta)), log_jacobian
    (True, array([0., 0.]))
    """

    given: Floats  # (g,) the coordinates s ...
    rates: Floats  # (g,) ... and their rates
    centre: Floats  # (d,) ...
    scale: Floats  # (d,) ... of the coordinates
    low: Floats  # (g,) least values of s from which b and P vary ...
    high: Floats  # (g,) ... and largest ones
    linear: Floats  # (k, m) b for each of the k functions of s
    precision: Floats  # (k, m, m) P for each of them
    flattest: Floats  # () least eigenvalue of P

    @classmethod
    def none(cls, d: int) -> Warp:
        """Coordinates as they are."""
        none, linear, precision = np.empty(0), np.empty((0, d)), np.empty((0, d, d))
        return cls(none, none, np.zeros(d), np.ones(d), none, none, linear, precision, np.ones(()))

    def __bool__(self) -> bool:
        return len(self.given) > 0

    def straight(self, theta: Floats) -> tuple[Floats, Floats]:
        """The coordinates w of points (n, d), and the log determinant of dw / dtheta (n,)."""
        if not self:
            return theta, np.zeros(len(theta))
        z = (theta - self.centre) / self.scale
        s, v = self._parts
        middle, values, vectors = self._conditional(z[:, s])
        z[:, v] = _times(vectors, np.sqrt(values), z[:, v] - middle)
        return z, 0.5 * np.log(values).sum(axis=1) - np.log(self.scale).sum()

    def bent(self, w: Floats) -> tuple[Floats, Floats]:
        """Undo `straight`: points (n, d), and the log determinant of dw / dtheta there (n,)."""
        if not self:
            return w, np.zeros(len(w))
        z = np.array(w)
        s, v = self._parts
        middle, values, vectors = self._conditional(z[:, s])
        z[:, v] = middle + _times(vectors, 1 / np.sqrt(values), z[:, v])
        return self.centre + self.scale * z, 0.5 * np.log(values).sum(axis=1) - np.log(self.scale).sum()

    @property
    def structure(self) -> Given:
        """The coordinates s with their rates."""
        return tuple((int(j), float(rate)) for j, rate in zip(self.given, self.rates, strict=True))

    @property
    def _parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Indices of s and of v."""
        s = self.given.astype(np.int64)
        return s, np.setdiff1d(np.arange(len(self.centre)), s)

    def _conditional(self, s: Floats) -> tuple[Floats, Floats, Floats]:
        """Mean of v given s (n, g): (n, m).

        And the eigenvalues (n, m) and eigenvectors (n, m, m) of its precision.
        """
        columns = self.given.astype(np.int64)
        inside = np.clip(s, self.low, self.high)
        phi = _functions(inside, self.rates, self.scale[columns])
        values, vectors = np.linalg.eigh(np.tensordot(phi, self.precision, axes=1))
        values = np.maximum(values, self.flattest)
        return _times(vectors, 1 / values, phi @ self.linear), values, vectors


class Sample(NamedTuple):
    """Points on the scale of a Gaussian, with their log joints."""

    z: Floats  # (n, d) standardised points
    y: Floats  # (n,) log joint
    centre: Floats  # (d,) ...
    scale: Floats  # (d,) ... of the points
    precision: Floats  # (d, d) of the Gaussian on that scale

    @classmethod
    def of(cls, theta: Floats, y: Floats, mean: Floats, cov: Floats) -> Sample:
        """Points (n, d) with log joints (n,) on the scale of a Gaussian."""
        scale = np.sqrt(np.diagonal(cov))
        return cls((theta - mean) / scale, y, mean, scale, np.linalg.inv(cov / np.outer(scale, scale)))

    def first(self, n: int) -> Sample:
        """The first n points."""
        return self._replace(z=self.z[:n], y=self.y[:n])

    def within(self, columns: NDArray[np.int64], rules: WarpSearch) -> Sample:
        """The points whose coordinates in these columns are not extreme.

        The functions of s vary by orders of magnitude, so extreme points would decide the fit.
        """
        s = self.z[:, columns]
        low, high = np.quantile(s, [rules.extreme, 1 - rules.extreme], axis=0)
        rows = np.all((s >= low) & (s <= high), axis=1)
        return self._replace(z=self.z[rows], y=self.y[rows])


def found(sample: Sample, rules: WarpSearch) -> Given:
    """The coordinates s given which the others are nearly Gaussian; the best points come first.

    There are none if each point is not predicted better from all others with them. Two of them may
    be worth nothing one by one, so a first one is kept until there is a second. A few points say
    which ones are best, but b and P have hundreds of coefficients: more points are the judges.
    """
    d, n = sample.z.shape[1], len(sample.y)
    few, candidates = sample.first(rules.most_points), list[Given]()
    given: Given = ()
    for _ in range(min(rules.most_given, d - 1)):
        given = _extended(few, given, rules)
        candidates.append(given)
    chosen: Given = ()
    best = _least_misfit(sample, chosen, rules)
    for given in candidates:
        misfit = _least_misfit(sample, given, rules)
        if misfit < best - rules.gain * n * (len(given) - len(chosen)):
            chosen, best = given, misfit
    return chosen


def _extended(sample: Sample, given: Given, rules: WarpSearch) -> Given:
    """The best structure with one more coordinate.

    The rates of the others are chosen again, since the best ones depend on each other.
    """
    taken = {j for j, _ in given}
    others = [j for j in range(sample.z.shape[1]) if j not in taken]
    best = _best(sample, [(*given, (j, rate)) for j in others for rate in rules.rates], rules)
    for i, (j, _) in enumerate(given):
        best = _best(sample, [(*best[:i], (j, rate), *best[i + 1 :]) for rate in rules.rates], rules)
    return best


def _best(sample: Sample, trials: list[Given], rules: WarpSearch) -> Given:
    """The best of these structures."""
    return min(trials, key=lambda trial: _least_misfit(sample, trial, rules))


def fitted(sample: Sample, given: Given, rules: WarpSearch) -> Warp:
    """The change of coordinates with s ``given``.

    What the points do not show of P is as in the Gaussian.
    """
    d = len(sample.centre)
    if not given:
        return Warp.none(d)
    columns, rates = np.array([j for j, _ in given]), np.array([rate for _, rate in given])
    s = sample.z[:, columns]
    sample = sample.within(columns, rules)
    fit = _regression(sample, given, rules, other=0.0)
    others = np.setdiff1d(np.arange(d), columns)
    v: Floats = sample.z[:, others]
    raised, by_function = v @ _metric(sample, others), fit.functions * fit.alpha[:, None]
    linear = fit.units[:, None] * (by_function.T @ raised) * (2 / d)
    precision = fit.units[:, None, None] * np.einsum("nk,ni,nj->kij", by_function, raised, raised) * (-2 / d**2)
    precision[0] += sample.precision[np.ix_(others, others)]
    # Far out one function dominates: its P alone must be a precision, else an error would grow.
    dominant = _dominant(rates)
    precision[dominant] = _raised(precision[dominant], 0.0)
    precision[:1] = _raised(precision[:1], rules.flattest)
    warp = Warp(
        given=columns.astype(np.float64),
        rates=rates,
        centre=sample.centre,
        scale=sample.scale,
        low=s.min(axis=0) - rules.beyond * np.ptp(s, axis=0),
        high=s.max(axis=0) + rules.beyond * np.ptp(s, axis=0),
        linear=linear,
        precision=precision,
        flattest=np.array(rules.flattest),
    )
    warp = _credible(warp, np.median(s, axis=0), rules)
    return warp if len(given) == 1 else _jointly_credible(warp, np.median(s, axis=0), np.abs(v).max(axis=0), rules)


def _credible(warp: Warp, middle: Floats, rules: WarpSearch) -> Warp:
    """Limit the range of each s, around its ``middle``, to where P is a precision."""
    low, high = warp.low.copy(), warp.high.copy()
    for i in range(len(middle)):
        for end in (low, high):
            s = np.tile(middle, (rules.steps, 1))
            s[:, i] = np.linspace(middle[i], end[i], rules.steps)
            phi = _functions(s, warp.rates, warp.scale[warp.given.astype(np.int64)])
            least = np.linalg.eigvalsh(np.tensordot(phi, warp.precision, axes=1))[:, 0]
            bad = np.flatnonzero(least < warp.flattest)
            end[i] = s[max(int(bad[0]) - 1, 0), i] if len(bad) else end[i]
    return warp._replace(low=low, high=high)


def _jointly_credible(warp: Warp, middle: Floats, reach: Floats, rules: WarpSearch) -> Warp:
    """Limit the ranges of several s together to where v is no wider than the points.

    At a corner, where all are extrapolated, P may vanish though it does not along any axis. The
    mean of v is anywhere then, and so is next to no mass, which no draw shows: but it decides the
    variances. So neither the mean nor the width of v given s may exceed the ``reach`` (m,) of the
    points, their largest distances from the mean of the Gaussian.
    """
    warp = warp._replace(flattest=np.maximum(warp.flattest, 1 / reach.max() ** 2))
    sides = [np.linspace(*ends, rules.sides) for ends in zip(warp.low, warp.high, strict=True)]
    grid = np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, len(middle))
    shares = np.linspace(1, 0, rules.steps)
    share = next((t for t in shares if _is_within(warp, middle + t * (grid - middle), reach)), 0.0)
    return warp._replace(low=middle + share * (warp.low - middle), high=middle + share * (warp.high - middle))


def _is_within(warp: Warp, s: Floats, reach: Floats) -> bool:
    """Whether v is within reach at all s (n, g), which are inside all limits."""
    phi = _functions(s, warp.rates, warp.scale[warp.given.astype(np.int64)])
    values, vectors = np.linalg.eigh(np.tensordot(phi, warp.precision, axes=1))
    if np.any(values < warp.flattest):
        return False
    return bool(np.all(np.abs(_times(vectors, 1 / values, phi @ warp.linear)) <= reach))


def _raised(matrices: Floats, least: float) -> Floats:
    """Symmetric matrices (k, m, m) whose eigenvalues are raised to the least that is allowed."""
    values, vectors = np.linalg.eigh(matrices)
    return np.asarray((vectors * np.maximum(values, least)[:, None]) @ np.swapaxes(vectors, 1, 2))


class _Regression(NamedTuple):
    """A regression on functions of s times polynomials of degree two in v."""

    misfit: float  # minus twice the log density with which each point is predicted from all others
    alpha: Floats  # (n,) weights of the points in the prediction
    functions: Floats  # (n, k) functions of s at the points, each divided by its usual size
    units: Floats  # (k,) one over these sizes


def _least_misfit(sample: Sample, given: Given, rules: WarpSearch) -> float:
    return min(_regression(sample, given, rules, other).misfit for other in rules.others)


def _regression(sample: Sample, given: Given, rules: WarpSearch, other: float) -> _Regression:
    """The regression with the noise that predicts best.

    ``other`` is the variance of functions that are not Gaussian in v given s.
    """
    z, y, columns = sample.z, sample.y, [j for j, _ in given]
    d = z.shape[1]
    phi = _functions(z[:, columns], np.array([rate for _, rate in given]), sample.scale[columns])
    units = 1 / np.maximum(np.median(np.abs(phi), axis=0), _TINY)
    phi = phi * units
    others = np.setdiff1d(np.arange(d), columns)
    v: Floats = z[:, others]
    y = y + 0.5 * np.sum(v * (v @ sample.precision[np.ix_(others, others)]), axis=1)
    K = (phi @ phi.T) * (1 + v @ _metric(sample, others) @ v.T / d) ** 2
    if other > 0:
        K += other * np.exp(-0.5 / (rules.length**2 * d) * squared_distances(z, z))
    if columns:
        s = z[:, columns]
        K += rules.of_s * np.exp(-0.5 / len(columns) * squared_distances(s, s))
    size = float(np.median(np.diagonal(K)))
    misfit, alpha = min((_left_out(K / size, y, noise) for noise in rules.noises), key=lambda trial: trial[0])
    return _Regression(misfit, alpha / size, phi, units)


def _metric(sample: Sample, others: NDArray[np.int64]) -> Floats:
    """Inverse covariance (m, m) of v, the ``others``, in the Gaussian.

    With it as the metric, the prior of b and P is the same in all directions of the Gaussian. A
    slope of the year and the intercepts of groups are so closely correlated that the directions in
    which they differ are a hundred times narrower than either.
    """
    return np.asarray(np.linalg.inv(np.linalg.inv(sample.precision)[np.ix_(others, others)]))


def _left_out(K: Floats, y: Floats, noise: float) -> tuple[float, Floats]:
    """The misfit with this noise, and the weights of the points."""
    try:
        found = LeftOut.of(K + noise * np.eye(len(y)), y - np.median(y))
    except np.linalg.LinAlgError:  # some s are so far apart that rounding errors exceed the noise
        return math.inf, np.zeros(len(y))
    variance = max(float(np.mean(found.alpha**2 / found.diagonal)), _TINY)
    return float(np.sum(math.log(variance) - np.log(found.diagonal))), found.alpha


def _functions(s: Floats, rates: Floats, scale: Floats) -> Floats:
    """The functions of s (n, g) that b and P are sums of: (n, k).

    They are products of one function of each coordinate. For a rate of zero these are powers. A
    rate of one has exponentials of two speeds, as in a non-centred hierarchy; a rate of two has
    one, as for effects whose log scale is s.
    """
    products = np.ones((len(s), 1))
    for u, rate, unit in zip(s.T, rates, scale, strict=True):
        exponential = np.exp(np.clip(-rate * unit * u, -_OVERFLOW, _OVERFLOW))
        functions = [np.ones(len(s)), u, u**2] if rate == 0 else [np.ones(len(s)), exponential, exponential**2]
        of_one = np.stack(functions[: _count(rate)], axis=1)
        k = products.shape[1] * of_one.shape[1]
        products = (products[:, :, None] * of_one[:, None, :]).reshape(len(s), k)
    return products


def _count(rate: float) -> int:
    """Number of functions of one coordinate with this rate: the last one grows fastest."""
    return 3 if abs(rate) <= 1 else 2


def _dominant(rates: Floats) -> NDArray[np.int64]:
    """Which of the functions are products of the fastest ones and of constants."""
    dominant = np.zeros(1, dtype=np.int64)
    for rate in rates:
        k = _count(rate)
        dominant = np.concatenate([k * dominant, k * dominant + k - 1])
    return np.sort(dominant)


def _times(vectors: Floats, values: Floats, x: Floats) -> Floats:
    """Symmetric matrices times vectors x (n, m): by eigenvectors (n, m, m) and values (n, m)."""
    return np.asarray(np.einsum("nij,nj->ni", vectors, values * np.einsum("nji,nj->ni", vectors, x)))
