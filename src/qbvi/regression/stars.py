r"""Quadratic surrogates of low rank plus a diagonal, from stars of evaluations.

A star is a base point and d further points, each of which differs from it in one coordinate. The
differences of the log joint f along the axes are d slopes, and a quadratic f has the slopes

.. math::

    \frac{f(\theta) - f(\theta')}{\theta_i - \theta_i'} = g_i + \sum_j T_{ij} \bar\theta_j

at the midpoint :math:`\bar\theta` of the two points. So one star costs d + 1 evaluations and gives
one product of the Hessian T with a vector. Of a T with r directions beside its diagonal, r + 2
products are enough in principle, which is (r + 2) (d + 1) evaluations in place of d (d + 3) / 2.

Base points are draws from q. The new value of a coordinate is drawn from q given the others, with
a correlation to the old one. So every point of a star is a draw from q. The stars then estimate

.. math:: E_q \nabla f, \qquad E_q \nabla^2 f

without bias, whatever f is, as far as the model is free: its residuals R satisfy :math:`RB = 0` and
:math:`R_{ii} = 0` at its optimum, and these are the terms that the best member of the family
depends on.

The model :math:`T = \mathrm{diag}(t) + B \,\mathrm{diag}(w)\, B'` is not linear in B. Its tangent

.. math:: g + \mathrm{diag}(\delta t) + B\,W' + W B'

is linear in g, t and W. Each turn solves that least-squares problem with a damping (Levenberg and
Marquardt), by conjugate gradients whose products cost O(m d p), and keeps the p leading directions
of the result. New directions are the leading ones of the residuals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from qbvi.arrays import Array, array_namespace, device, repeat
from qbvi.families.low_rank import Form, LowRankGaussian

__all__ = ["Effort", "Stars", "Surrogate", "observed", "regress", "star_points"]

_CORRELATION = -0.5  # of the old and the new value of a coordinate: a move in most of the cases
_DAMPING = 1e-2  # at first, relative to the diagonal of the normal equations ...
_LESS, _MORE = 0.25, 8.0  # ... after a turn that reduced the errors, and after one that did not
_LEAST_DAMPING = 1e-9
_AHEAD = 8.0  # factor by which the errors of a known start are smaller than those of a new one ...
_NOISE = 1e-3  # ... unless they are more than this share of the variance of the slopes
_SMALL = 0.1  # weight of a slope, relative to the mean, that counts half in the search for directions


class Stars(NamedTuple):
    """Stars of evaluations, oldest first."""

    base: Array  # (m, d)
    half: Array  # (m, d) half of the move along each axis: midpoint minus base
    slope: Array  # (m, d) of the log joint; zero where a value is missing
    weight: Array  # (m, d) squared move, in units of the q it came from; zero where one is missing
    own: Array  # (m,) log density of the base under the q it came from
    peak: Array  # (m,) log density of that q at its mean

    def scaled(self, centre: Array, units: Array) -> Stars:
        """The stars around ``centre`` in these units, both (d,)."""
        return self._replace(base=(self.base - centre) / units, half=self.half / units, slope=self.slope * units)


class Surrogate(NamedTuple):
    """The quadratic function ``g'x + x'Tx / 2`` of ``x = theta - centre``."""

    centre: Array  # (d,)
    g: Array  # (d,)
    T: Form

    def scaled(self, centre: Array, units: Array) -> Surrogate:
        """The same function around ``centre``, in these units, both (d,)."""
        g = self.g + self.T.apply((centre - self.centre)[None, :])[0, :]
        return Surrogate(0 * centre, g * units, self.T.between(units))

    def errors(self, stars: Stars) -> Array:
        """Errors of the slopes (m, d), zero where one is missing."""
        xp = array_namespace(self.g)
        bent = self.T.apply(stars.base - self.centre) + stars.half * self.T.diagonal
        return xp.where(stars.weight > 0, stars.slope - self.g - bent, xp.zeros_like(bent))

    def missed(self, stars: Stars) -> tuple[Array, Array]:
        """Mean squared error of the slopes of other stars, and the same as a share.

        It is a share of what T explains, if the coordinates count alike, whatever their units.
        """
        xp = array_namespace(self.g)
        size = xp.abs(self.T.diagonal)
        size = xp.where(size > 0, size, xp.ones_like(size))
        left = stars.weight * self.errors(stars) ** 2
        bent = self.T.apply(stars.base - self.centre) + stars.half * self.T.diagonal
        explained = xp.sum(stars.weight * bent**2 / size)
        one = xp.ones_like(explained)
        share = xp.sum(left / size) / xp.where(explained > 0, explained, one)
        return xp.sum(left) / xp.sum(stars.weight), xp.where(explained > 0, share, one)


class Effort(NamedTuple):
    """How long a regression searches."""

    active: Array  # () directions that the number of stars supports
    spare: int  # of these, directions that start from the residuals each time
    turns: int  # of Levenberg and Marquardt
    products: int  # conjugate gradients of one turn


def star_points(family: LowRankGaussian, q: Array, z: Array, e: Array) -> Array:
    """Points of the stars whose bases are the standard normals z (m, d), moved by e (m, d).

    Bases come first, then the d points of each of them: (m + m d, d).
    """
    xp = array_namespace(q)
    m, d = z.shape
    base = family.transport(q, z)
    mu, spikes = family.open(q)
    # Given the other coordinates, x_i is normal with precision P_ii and mean x_i - (P x)_i / P_ii.
    precision = 1 + xp.sum(spikes.U**2 * (spikes.lam - 1), axis=1)
    off = spikes.power((base - mu) / spikes.s, 1.0) / precision
    moved = _CORRELATION * off + (1 - _CORRELATION**2) ** 0.5 * e * precision**-0.5
    there = base + spikes.s * (moved - off)
    axis = xp.eye(d, dtype=xp.bool, device=device(q))
    points = xp.where(axis, there[:, :, None], base[:, None, :])
    return xp.concat([base, xp.reshape(points, (m * d, d))])


def observed(family: LowRankGaussian, q: Array, points: Array, values: Array) -> Stars:
    """The stars of `star_points` with the log joint there, minus infinity where it is missing."""
    xp, d = array_namespace(q), family.dim
    m = points.shape[0] // (d + 1)
    base = points[:m, :]
    there = xp.linalg.diagonal(xp.reshape(points[m:, :], (m, d, d)))
    move = there - base
    is_there = xp.isfinite(values)
    values = xp.where(is_there, values, xp.zeros_like(values))
    difference = xp.reshape(values[m:], (m, d)) - values[:m, None]
    is_there = xp.reshape(is_there[m:], (m, d)) & is_there[:m, None] & (move != 0)
    slope = xp.where(is_there, difference, xp.zeros_like(move)) / xp.where(is_there, move, xp.ones_like(move))
    _, spikes = family.open(q)
    precision = (1 + xp.sum(spikes.U**2 * (spikes.lam - 1), axis=1)) / spikes.s**2
    weight = xp.where(is_there, move**2 * precision, xp.zeros_like(move))
    own = family.log_prob(q, base)
    return Stars(base, 0.5 * move, slope, weight, own, family.log_peak(q) * xp.ones_like(own))


def regress(stars: Stars, start: Surrogate, effort: Effort) -> Surrogate:
    """Fit the surrogate to the stars, from ``start``, whose number of directions it keeps.

    Stars and surrogate are in the units of q, around its mean.

    Examples
    --------
    A quadratic of one direction in 20 dimensions, from 8 stars:

    >>> import numpy as np
    >>> rng, u = np.random.default_rng(1), np.full(20, 20**-0.5)
    >>> base, half = rng.standard_normal((2, 8, 20))
    >>> slope = 1 - 3 * (base + half) + np.outer(base @ u, u) + half * u**2
    >>> stars = Stars(base, half, slope, half**2, *np.zeros((2, 8)))
    >>> T = Form(np.zeros(20), np.eye(20, 2), np.zeros(2))
    >>> nothing = Surrogate(np.zeros(20), np.zeros(20), T)
    >>> effort = Effort(np.array(2), spare=1, turns=10, products=30)
    >>> found = regress(stars, nothing, effort)
    >>> np.round(found.T.apply(u[None])[0, :2] / u[:2], 4), np.round(found.g[:2], 4)
    (array([-2., -2.]), array([1., 1.]))
    """
    xp = array_namespace(stars.base)
    size = xp.mean(stars.weight, axis=1, keepdims=True)
    centre = xp.sum(size * stars.base, axis=0) / xp.sum(size)
    alone = _along_axes(stars._replace(base=stars.base - centre))
    stars, start = stars.scaled(centre, alone.units), start.scaled(centre, alone.units)
    design = _Design(stars.base, stars.half, stars.weight)
    # Rounding must not decide: the number of stars is often a whole number.
    places = xp.arange(start.T.w.shape[0], dtype=centre.dtype, device=device(centre))
    is_active = places + 0.25 < effort.active
    known = _known(start, is_active, effort.spare)
    none = _Model(alone.g, alone.t, known.B, 0 * known.w)
    old, new = (_improved(design, stars.slope, first, is_active, effort) for first in (known, none))
    # The problem has local optima. If errors are not noise, a known start that is in the right one
    # is far ahead of a new one, after all its earlier turns.
    is_noise = old.error > _NOISE * xp.sum(design.weight * (stars.slope - alone.g) ** 2)
    is_ahead = xp.where(is_noise, old.error, _AHEAD * old.error) <= new.error
    model = _Model(*(xp.where(is_ahead, *pair) for pair in zip(old.model, new.model, strict=True)))
    found = Surrogate(0 * centre, model.g, Form(model.t, model.B, model.w))
    return found.scaled(-centre / alone.units, 1 / alone.units)


class _Model(NamedTuple):
    """Slopes ``g + t x + B w B'x``."""

    g: Array  # (d,)
    t: Array  # (d,)
    B: Array  # (d, p) orthonormal columns
    w: Array  # (p,)


class _Improved(NamedTuple):
    model: _Model
    error: Array  # () weighted sum of squares


class _Alone(NamedTuple):
    """Slopes ``g + t x`` along the own coordinate of each, in units in which |t| is about one."""

    g: Array  # (d,)
    t: Array  # (d,)
    units: Array  # (d,)


def _along_axes(stars: Stars) -> _Alone:
    xp = array_namespace(stars.weight)
    x, y, weight = stars.base + stars.half, stars.slope, stars.weight
    tiny = xp.finfo(weight.dtype).smallest_normal
    total = xp.sum(weight, axis=0) + tiny
    x_mean, y_mean = xp.sum(weight * x, axis=0) / total, xp.sum(weight * y, axis=0) / total
    square = xp.sum(weight * (x - x_mean) ** 2, axis=0) + tiny
    t = xp.sum(weight * (x - x_mean) * (y - y_mean), axis=0) / square
    g = y_mean - t * x_mean
    error = xp.sum(weight * (y - g - t * x) ** 2, axis=0) / square
    # A curvature below its error is as likely to be as large as the error.
    size = (t**2 + error) ** 0.5
    units = xp.where(size > 0, size, xp.ones_like(size)) ** -0.5
    return _Alone(g * units, t * units**2, units)


class _Design(NamedTuple):
    """The map from coefficients to slopes, and its adjoint."""

    x: Array  # (m, d) bases
    half: Array  # (m, d)
    weight: Array  # (m, d)

    def values(self, model: _Model) -> Array:
        """Slopes (m, d) of a model."""
        own = _sum(model.B**2 * model.w, 1)
        return model.g + (self.x + self.half) * model.t + ((self.x @ model.B) * model.w) @ model.B.T + self.half * own

    def tangent(self, B: Array, seen: Array, c: Array) -> Array:
        """Slopes of the coefficients c (d, 2 + p): g, t and W; ``seen`` is ``x B``."""
        W = c[:, 2:]
        bent = (self.x @ W) @ B.T + seen @ W.T + 2 * self.half * _sum(B * W, 1)
        return c[:, 0] + (self.x + self.half) * c[:, 1] + bent

    def adjoint(self, B: Array, seen: Array, e: Array) -> Array:
        """The adjoint map, of slopes e (m, d)."""
        xp = array_namespace(e)
        own = _sum(e * self.half, 0)
        W = self.x.T @ (e @ B) + e.T @ seen + 2 * B * own[:, None]
        lines = xp.stack([_sum(e, 0), _sum(e * (self.x + self.half), 0)], axis=1)
        return xp.concat([lines, W], axis=1)

    def diagonal(self, B: Array, seen: Array) -> Array:
        """About the diagonal of the normal equations (d, 2 + p)."""
        xp = array_namespace(B)
        lines = xp.stack([_sum(self.weight, 0), _sum(self.weight * (self.x + self.half) ** 2, 0)], axis=1)
        W = self.weight.T @ seen**2 + (self.x**2).T @ (self.weight @ B**2)
        return xp.concat([lines, W], axis=1)


def _known(start: Surrogate, is_active: Array, spare: int) -> _Model:
    """The leading directions of ``start``, without the spare ones."""
    xp, p = array_namespace(start.g), start.T.w.shape[0]
    B, w = start.T.compressed()
    order = xp.argsort(-xp.abs(w))[:p]
    B, w = xp.take(B, order, axis=1), xp.take(w, order)
    is_kept = xp.arange(p, device=device(w)) < xp.sum(xp.astype(is_active, xp.int64)) - spare
    return _Model(start.g, start.T.t, B, xp.where(is_kept, w, xp.zeros_like(w)))


def _extended(design: _Design, slope: Array, model: _Model) -> _Model:
    """The model with the leading directions of its residuals for those that it leaves out."""
    xp, p = array_namespace(slope), model.w.shape[0]
    # Weights that differ between the slopes of a star would hide directions, so they hardly do.
    usual = xp.sum(design.weight**2) / xp.sum(design.weight)
    counted = design.weight / (design.weight + _SMALL * usual)
    _, _, axes = xp.linalg.svd((slope - design.values(model)) * counted, full_matrices=False)
    more = axes[:p, :].T
    place = xp.concat([xp.where(model.w != 0, 0 * model.w - 1, 0 * model.w + 1), xp.zeros_like(more[0, :])])
    chosen = xp.argsort(place, stable=True)[:p]
    B = xp.linalg.qr(xp.take(xp.concat([model.B, more], axis=1), chosen, axis=1))[0]
    return model._replace(B=B, w=xp.take(xp.concat([model.w, xp.zeros_like(more[0, :])]), chosen))


def _improved(design: _Design, slope: Array, model: _Model, is_active: Array, effort: Effort) -> _Improved:
    """The model after turns of Levenberg and Marquardt, and its errors.

    A turn that increases the errors is not made.
    """
    xp = array_namespace(slope)
    model = _extended(design, slope, model)
    active = xp.astype(is_active, slope.dtype)

    def turn(i: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        old, (damping, error) = _Model(*state[:4]), state[4:]
        B = old.B * active
        seen = design.x @ B
        size = design.diagonal(B, seen)
        size = xp.where(size > 0, size, xp.ones_like(size))
        right = design.adjoint(B, seen, design.weight * (slope - design.values(old)))

        def product(c: Array) -> Array:
            return design.adjoint(B, seen, design.weight * design.tangent(B, seen, c)) + damping * size * c

        new = _moved(old, B, _conjugate_gradients(product, right, size, effort.products), active)
        new_error = xp.sum(design.weight * (slope - design.values(new)) ** 2)
        is_better = new_error < error
        after = (*new, xp.maximum(damping * _LESS, _LEAST_DAMPING * xp.ones_like(damping)), new_error)
        before = (*old, damping * _MORE, error)
        return tuple(xp.where(is_better, yes, no) for yes, no in zip(after, before, strict=True))

    error = xp.sum(design.weight * (slope - design.values(model)) ** 2)
    *parts, _, error = repeat(effort.turns, turn, (*model, _DAMPING * xp.ones_like(error), error), unrolled=1)
    return _Improved(_Model(*parts), error)


def _moved(old: _Model, B: Array, c: Array, active: Array) -> _Model:
    """The model after a step c along its tangent, with the leading directions of the result."""
    xp, p = array_namespace(c), old.w.shape[0]
    Q, R = xp.linalg.qr(xp.concat([old.B, c[:, 2:]], axis=1))
    along, W = R[:, :p], R[:, p:]
    cross = (along * active) @ W.T
    w, axes = xp.linalg.eigh((along * old.w) @ along.T + cross + cross.T)
    leading = xp.argsort(-xp.abs(w))[:p]
    return _Model(old.g + c[:, 0], old.t + c[:, 1], Q @ xp.take(axes, leading, axis=1), xp.take(w, leading) * active)


def _conjugate_gradients(product: Callable[[Array], Array], right: Array, size: Array, n: int) -> Array:
    """Solve ``product(c) = right`` in n steps, preconditioned by the diagonal ``size``."""
    xp = array_namespace(right)
    tiny = xp.finfo(right.dtype).smallest_normal

    def step(i: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        c, left, along, square = state
        seen = product(along)
        length = square / xp.maximum(xp.sum(along * seen), tiny * xp.ones_like(square))
        c, left = c + length * along, left - length * seen
        better = left / size
        new = xp.sum(left * better)
        return c, left, better + new / xp.maximum(square, tiny * xp.ones_like(square)) * along, new

    better = right / size
    return repeat(n, step, (xp.zeros_like(right), right, better, xp.sum(right * better)), unrolled=1)[0]


def _sum(array: Array, axis: int) -> Array:
    """Sum along an axis."""
    return array_namespace(array).sum(array, axis=axis)
