"""Which reading of the paper gives its tables: exact gaps in nats, all seeds of a reading in a batch.

The text of Magris, Shabani and Iosifidis (2022) leaves open how the control variate is estimated,
what it controls, where the iterations start, what clipping and momentum act on, how positive
definiteness is kept, and which iterate is reported. A `Reading` is one choice of each. `READINGS`
lists those that are tried, under the place in the paper that allows them.

Each cell of the table has three numbers:

- the exact gap of the reported iterate to the best member of the family, median of the seeds;
- in parentheses, the largest gap;
- after the slash, what the paper's way of reporting prints: the nats by which the best smoothed
  bound is below the best member, negative where it is above it.

Run: ``python benchmarks/paper_readings.py [--data DIR] [--seeds 10] [--workers 2] [--screen]``.
With ``--screen`` every reading runs on Labour alone with three seeds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import qmc

import qbvi
from qbvi.reproduce import data, exact, garch, har
from qbvi.reproduce.published import CREDIT, LABOUR
from qbvi.reproduce.settings import Settings

Floats = NDArray[np.float64]

FAMILIES = ("full", "diagonal")
PRIOR_VARIANCE, DRAWS, ITERATIONS, PATIENCE, WINDOW = 5.0, 100, 1000, 500, 30
_CHUNK = 64  # draws
RATE, DECAY_AFTER, MOMENTUM, LONGEST = 0.1, 800, 0.4, 1000.0  # paper, table of hyper-parameters


@dataclass(frozen=True)
class Reading:
    """One way to read the paper; the defaults take the text at its word."""

    controlled: str = "likelihood"  # or "residual": log p(y, theta) - log q(theta)
    coefficient: str = "previous"  # draws behind the coefficient: "previous", "same", or "none" for no control variate
    variance: str = "analytic"  # denominator: "analytic"; "centred" with f less its mean in the numerator; "sample"
    shared: str = "coordinate"  # one coefficient for each "coordinate", for each of the two "blocks", or for "all"
    variate: str = "m"  # the gradient of log q by the mean parameters "m", or by "mu and S"
    treated: str = "gradient"  # clipping and momentum act on the whole natural "gradient" or on its "likelihood" part
    coordinates: str = "lambda"  # in which they act: "lambda", or "mu and S" as in Algorithm 2
    order: str = "clip first"  # or "momentum first"
    first_norm: float | None = None  # another bound on the norm in the first iteration
    step: str = "bounded 0.1"  # share of the way to a singular precision; "plain"; "log" for diagonal covariances
    rate: float = RATE
    mean_rate: float | None = None  # the rate of the mean, where it differs from that of the precision
    start_variance: float = 0.1
    start_spread: float = 0.0  # standard deviation of the random start of the mean
    draws: str = "independent"  # or "sobol"
    momentum: float = MOMENTUM


class Problem(NamedTuple):
    """A log-likelihood with a Gaussian variational family, and its exact bound."""

    family: str
    d: int
    f: Callable[[Floats], Floats]  # (N, d) -> (N,), with the part of the log prior that is not Gaussian
    precision: Floats  # (d,) of the Gaussian prior, zero where the prior is part of f
    start: Floats  # (d,)
    bound: Callable[[Floats, Floats], float]
    best: exact.Best


class Runs(NamedTuple):
    """What the iterations of all seeds leave behind."""

    bound: Floats  # (T, R) estimates at the draws of each iteration
    mean: Floats  # (T, R, d)
    precision: Floats  # (T, R, d) or (T, R, d, d)
    lost: NDArray[np.int64]  # (R,) iterations that would have left the domain and were not taken


class Outcome(NamedTuple):
    """One seed: exact gaps of three iterates that a paper may report, and the bound it would print."""

    best: float  # gap of the iterate with the best smoothed bound
    last: float
    average: float  # of the mean of the natural parameters over the last window
    printed: float  # nats by which the best smoothed bound is below the best Gaussian; negative where above
    mean: float  # gap of the reported mean alone, with the best covariance
    lost: int


def iterate(problem: Problem, reading: Reading, seeds: int, iterations: int = ITERATIONS) -> Runs:
    """Run the paper's loop for all seeds at once."""
    rngs = [np.random.default_rng([seed, 2022]) for seed in range(seeds)]
    q = _Gaussians.start(problem, reading, np.stack([rng.standard_normal(problem.d) for rng in rngs]))
    normals = _normals(reading, rngs, problem.d)
    bounds, means, precisions = [], [], []
    coefficients: Any = (0.0, 0.0)
    memory: Any = None
    lost = np.zeros(seeds, dtype=np.int64)
    for t in range(iterations):
        z = next(normals)
        theta = q.mu[:, None, :] + q.scaled(z)
        f = problem.f(theta.reshape(-1, problem.d)).reshape(seeds, DRAWS)
        h = f + _log_prior(problem, theta) - q.log_density(z)
        bounds.append(h.mean(axis=1))
        means.append(q.mu)
        precisions.append(q.precision)
        (force, change), coefficients = _estimate(
            reading, q, z, h if reading.controlled == "residual" else f, coefficients
        )
        known = q.known(problem.precision) if reading.controlled == "likelihood" else (0 * force, 0 * change)
        (force, change), memory = _treated(reading, q, (force, change), known, memory, t)
        rate = min(1.0, DECAY_AFTER / (t + 1))
        q, refused = q.moved(
            rate * (reading.mean_rate or reading.rate) * force, rate * reading.rate * change, reading.step
        )
        lost += refused
    return Runs(np.stack(bounds), np.stack(means), np.stack(precisions), lost)


def outcomes(problem: Problem, runs: Runs) -> list[Outcome]:
    """Stop each seed by the paper's rule and judge what it would report."""
    return [_outcome(problem, runs, seed) for seed in range(runs.bound.shape[1])]


def _outcome(problem: Problem, runs: Runs, seed: int) -> Outcome:
    bound = runs.bound[:, seed]
    sums = np.cumsum(np.concatenate([[0.0], bound]))
    t = np.arange(1, len(bound) + 1)
    low = np.maximum(t - WINDOW, 0)
    smooth = np.where(t >= WINDOW, (sums[t] - sums[low]) / (t - low), -np.inf)
    best = 0
    end = len(bound) - 1
    for step in range(len(bound)):
        best = step if smooth[step] > smooth[best] else best
        if step - best >= PATIENCE and step >= WINDOW:
            end = step
            break
    window = slice(max(0, end - WINDOW + 1), end + 1)
    precision = runs.precision[window, seed].mean(axis=0)
    weighted = _apply(runs.precision[window, seed], runs.mean[window, seed]).mean(axis=0)
    gaps = [
        problem.best.bound - problem.bound(mean, _covariance(p))
        for mean, p in (
            (runs.mean[best, seed], runs.precision[best, seed]),
            (runs.mean[end, seed], runs.precision[end, seed]),
            (_apply(1 / precision if precision.ndim == 1 else np.linalg.inv(precision), weighted), precision),
        )
    ]
    mean = problem.best.bound - problem.bound(runs.mean[best, seed], problem.best.cov)
    return Outcome(*gaps, problem.best.bound - smooth[best], mean, int(runs.lost[seed]))


class _Gaussians(NamedTuple):
    """One Gaussian for each seed, full or diagonal."""

    mu: Floats  # (R, d)
    precision: Floats  # (R, d, d) or (R, d)
    L: Floats  # factor of the covariance, or standard deviations
    K: Floats  # its inverse

    @classmethod
    def start(cls, problem: Problem, reading: Reading, noise: Floats) -> _Gaussians:
        mu = problem.start + reading.start_spread * noise
        precision = np.full_like(mu, 1 / reading.start_variance)
        if problem.family == "full":
            precision = precision[:, :, None] * np.eye(problem.d)
        return cls(mu, precision, *_factors(precision))

    @property
    def is_full(self) -> bool:
        return self.precision.ndim == 3

    def scaled(self, z: Floats) -> Floats:
        return z @ self.L.transpose(0, 2, 1) if self.is_full else z * self.L[:, None, :]

    def score(self, z: Floats) -> Floats:
        """The gradient of log q by the mean, v = S^-1 (theta - mu): (R, n, d)."""
        return z @ self.K if self.is_full else z * self.K[:, None, :]

    def log_density(self, z: Floats) -> Floats:
        scales = np.diagonal(self.L, axis1=1, axis2=2) if self.is_full else self.L
        d = z.shape[-1]
        return -0.5 * np.sum(z**2, axis=-1) - np.sum(np.log(scales), axis=1)[:, None] - 0.5 * d * math.log(2 * math.pi)

    def outer(self, a: Floats, weights: Floats | None = None) -> Floats:
        """Mean over the draws of w a a', or of its diagonal."""
        weighted = a if weights is None else a * weights[:, :, None]
        return (weighted.transpose(0, 2, 1) @ a if self.is_full else np.sum(weighted * a, axis=1)) / a.shape[1]

    def known(self, prior: Floats) -> tuple[Floats, Floats]:
        """Prior and entropy: S0^-1 (mu0 - mu) and S0^-1 - S^-1."""
        return -prior * self.mu, (np.diag(prior) if self.is_full else prior) - self.precision

    def moved(self, force: Floats, change: Floats, step: str) -> tuple[_Gaussians, NDArray[np.bool_]]:
        """S^-1 + change, then mu + S force with the new S; seeds that would leave the domain stay."""
        if self.is_full:
            inner = self.L.transpose(0, 2, 1) @ change @ self.L
            inner = np.where(np.isfinite(inner), inner, 0.0)
            toward = -np.linalg.eigvalsh(0.5 * (inner + inner.transpose(0, 2, 1)))
        else:
            toward = -change * self.L**2
        largest = toward.max(axis=1)
        finite = np.isfinite(largest) & np.all(np.isfinite(force), axis=1)
        share = np.ones_like(largest)
        if step.startswith("bounded"):
            delta = float(step.split()[1])
            share = delta / np.maximum(largest, delta)
        allowed = finite & (share * largest < 1 - 1e-9) if step != "log" else finite
        share = np.where(allowed, share, 0.0)
        force, change = np.where(allowed[:, None], force, 0.0), np.where(_wide(allowed, change), change, 0.0)
        precision = self.precision + _wide(share, change) * change
        if step == "log":
            precision = self.precision * np.exp(change / self.precision)
        if self.is_full:
            precision = 0.5 * (precision + precision.transpose(0, 2, 1))
        singular = ~_is_regular(precision)
        precision = np.where(_wide(singular, precision), self.precision, precision)
        L, K = _factors(precision)
        cov = L @ L.transpose(0, 2, 1) if self.is_full else L**2
        shift = np.where(singular, 0.0, share)[:, None] * _apply(cov, force)
        return _Gaussians(self.mu + shift, precision, L, K), ~allowed | singular


def _is_regular(precision: Floats) -> NDArray[np.bool_]:
    """Whether each precision is finite and, in double precision, positive definite."""
    finite = np.all(np.isfinite(precision.reshape(len(precision), -1)), axis=1)
    safe = np.where(_wide(finite, precision), precision, 1.0)
    eigenvalues = np.linalg.eigvalsh(safe) if precision.ndim == 3 else safe
    return finite & (eigenvalues.min(axis=1) > 1e-13 * eigenvalues.max(axis=1))


def _factors(precision: Floats) -> tuple[Floats, Floats]:
    if precision.ndim == 2:
        sd = 1 / np.sqrt(precision)
        return sd, 1 / sd
    L = np.linalg.cholesky(np.linalg.inv(precision))
    return L, np.linalg.inv(L)


def _estimate(reading: Reading, q: _Gaussians, z: Floats, f: Floats, earlier: Any) -> tuple[Any, Any]:
    """The two parts of E[score f], less the control variate, and the coefficients of these draws."""
    v = q.score(z)
    n = z.shape[1]
    centre = f.mean(axis=1)
    fc = f - centre[:, None]
    squares = v**2
    A, B, A2, B2 = q.outer(v), q.outer(v, fc), q.outer(squares), q.outer(squares, fc)
    P = q.precision
    # second block: W = S^-1 - v v'
    second = _Moments(P - A, -B, P**2 - 2 * P * A + A2, -2 * P * B + B2)
    s = v
    diagonal = np.diagonal(P, axis1=1, axis2=2) if q.is_full else P
    spread = diagonal  # Var(v)
    pp = diagonal[:, :, None] * diagonal[:, None, :] if q.is_full else diagonal**2
    if reading.variate == "m":  # grad_m1 = v + W mu
        weighted = _apply(P, q.mu)
        if q.is_full:
            s = v + weighted[:, None, :] - v * np.sum(v * q.mu[:, None, :], axis=-1, keepdims=True)
            spread = (1 + np.sum(weighted * q.mu, axis=1))[:, None] * diagonal + weighted**2
        else:
            s = v + weighted[:, None, :] - squares * q.mu[:, None, :]
            spread = diagonal + 2 * weighted**2
    first = _Moments(s.mean(1), (s * fc[:, :, None]).mean(1), (s**2).mean(1), (s**2 * fc[:, :, None]).mean(1))
    found = _coefficients(reading, (first, second), (spread, P**2 + pp), centre, n)
    used = found if reading.coefficient == "same" else earlier
    if reading.coefficient == "none":
        used = (0.0, 0.0)
    g1, g2 = (
        block.product + (centre.reshape(-1, *[1] * (block.mean.ndim - 1)) - c) * block.mean
        for block, c in zip((first, second), used, strict=True)
    )
    return (g1 if reading.variate != "m" else g1 - _apply(g2, q.mu), g2), found


class _Moments(NamedTuple):
    """Means over the draws of a score s with f centred: s, s f, s^2, s^2 f."""

    mean: Floats
    product: Floats
    square: Floats
    squared_product: Floats


def _coefficients(reading: Reading, blocks: Any, analytic: Any, centre: Floats, n: int) -> Any:
    ratio = n / (n - 1)
    covariances = [ratio * (b.squared_product - b.product * b.mean) for b in blocks]
    sample = [ratio * (b.square - b.mean**2) for b in blocks]
    if reading.shared != "coordinate":
        covariances, sample, analytic = (_summed(x, reading.shared) for x in (covariances, sample, analytic))
    result = []
    for covariance, of_draws, closed in zip(covariances, sample, analytic, strict=True):
        middle = centre.reshape(-1, *[1] * (covariance.ndim - 1))
        if reading.variance == "sample":
            result.append(middle + covariance / of_draws)
        elif reading.variance == "centred":
            result.append(middle + covariance / closed)
        else:
            result.append((middle * of_draws + covariance) / closed)
    return tuple(result)


def _summed(parts: Any, shared: str) -> Any:
    """Sums over the coordinates of each block, or of both, kept in the shape of the blocks."""
    sums = [part.reshape(len(part), -1).sum(axis=1) for part in parts]
    sums[1] = sums[1] / 4  # the gradient by m_2 is minus half of W
    if shared == "all":
        sums = [sum(sums)] * len(sums)
    return [total.reshape(-1, *[1] * (part.ndim - 1)) for total, part in zip(sums, parts, strict=True)]


def _treated(reading: Reading, q: _Gaussians, likelihood: Any, known: Any, memory: Any, t: int) -> tuple[Any, Any]:
    """Clip and average the direction."""
    whole = reading.treated == "gradient"
    force, change = (a + b for a, b in zip(likelihood, known, strict=True)) if whole else likelihood
    if reading.coordinates == "lambda":
        force, change = force + _apply(change, q.mu), -0.5 * change
    longest = reading.first_norm if t == 0 and reading.first_norm is not None else LONGEST
    clip, average = (lambda x: _clipped(x, longest)), (lambda x: _averaged(reading, x, memory))
    if reading.order == "clip first":
        force, change = memory = average(clip((force, change)))
    else:
        memory = average((force, change))
        force, change = clip(memory)
    if reading.coordinates == "lambda":
        change = -2 * change
        force = force - _apply(change, q.mu)
    return ((force, change) if whole else tuple(a + b for a, b in zip((force, change), known, strict=True))), memory


def _clipped(direction: Any, longest: float) -> Any:
    norm = np.sqrt(sum(np.sum(part.reshape(len(part), -1) ** 2, axis=1) for part in direction))
    factor = longest / np.maximum(norm, longest)
    return tuple(part * _wide(factor, part) for part in direction)


def _averaged(reading: Reading, direction: Any, memory: Any) -> Any:
    if memory is None:
        return direction
    gamma = reading.momentum
    return tuple(gamma * old + (1 - gamma) * new for old, new in zip(memory, direction, strict=True))


def _normals(reading: Reading, rngs: list[np.random.Generator], d: int) -> Iterator[Floats]:
    """Draws (R, n, d) of one iteration after the other."""
    if reading.draws == "independent":
        while True:
            yield np.stack([rng.standard_normal((DRAWS, d)) for rng in rngs])
    points = [(qmc.Sobol(d, scramble=True, rng=rng).random_base2(7)[:DRAWS] * 2**32).astype(np.uint32) for rng in rngs]
    while True:  # a digital shift makes each iteration's points a fresh randomisation of the same net
        shifted = [p ^ rng.integers(0, 2**32, size=d, dtype=np.uint32) for p, rng in zip(points, rngs, strict=True)]
        yield ndtri((np.stack(shifted) + 0.5) / 2**32)


def _log_prior(problem: Problem, theta: Floats) -> Floats:
    tau = problem.precision
    constant = 0.5 * np.sum(np.log(tau[tau > 0] / (2 * math.pi)))
    return constant - 0.5 * np.sum(tau * theta**2, axis=-1)


def _apply(matrix: Floats, vector: Floats) -> Floats:
    """Matrices (..., d, d) or diagonals (..., d) times vectors (..., d)."""
    return matrix * vector if matrix.ndim == vector.ndim else np.einsum("...ij,...j->...i", matrix, vector)


def _covariance(precision: Floats) -> Floats:
    return np.diag(1 / precision) if precision.ndim == 1 else np.linalg.inv(precision)


def _wide(per_seed: Any, like: Floats) -> Any:
    return per_seed.reshape(-1, *[1] * (like.ndim - 1))


def problem(name: str, family: str, folder: Path | None) -> Problem:
    """One of the four data sets with a full or a diagonal Gaussian."""
    if name == "GARCH":
        return _garch(family, folder)
    if name == "HAR":
        return _har(family, folder)
    split = data.labour() if name == "Labour" else data.credit(folder)
    design = np.column_stack([np.ones(len(split.y)), split.X])
    bound = exact.LogisticBound(design, split.y, PRIOR_VARIANCE)
    flipped = (1 - 2 * split.y)[:, None] * design
    d = design.shape[1]

    def f(theta: Floats) -> Floats:
        """Minus the sum of log(1 + e^b), for a few draws at a time so that they stay in the cache."""
        folded = np.empty(len(theta))
        for first in range(0, len(theta), _CHUNK):
            part = slice(first, first + _CHUNK)
            size = np.abs(flipped @ theta[part].T)
            # every factor 1 + e^-|b| is at most 2, so the product over all rows cannot overflow
            folded[part] = 0.5 * size.sum(axis=0) + np.log(np.multiply.reduce(1 + np.exp(-size), axis=0))
        return -folded - 0.5 * theta @ flipped.sum(axis=0)

    best = bound.best(family == "diagonal")
    return Problem(family, d, f, np.full(d, 1 / PRIOR_VARIANCE), np.zeros(d), bound, best)


def _garch(family: str, folder: Path | None) -> Problem:
    experiment = garch._Experiment(data.returns(folder), Settings())
    start = garch._unconstrained(experiment.start[None])[0]
    best = exact.best_gaussian(
        experiment._log_joint, experiment.best.mean, experiment.best.cov, diagonal=family == "diagonal", nodes=15
    )

    def f(psi: Floats) -> Floats:
        values = np.asarray(experiment.model.log_likelihood(garch._parameters(psi)))
        return np.where(np.isfinite(values), values, -1e4)  # far from the data the variance under- or overflows

    def bound(mean: Floats, cov: Floats) -> float:
        return exact.gaussian_bound(experiment._log_joint, mean, cov, 15)

    return Problem(family, 3, f, np.full(3, 1 / PRIOR_VARIANCE), start, bound, best)


def _har(family: str, folder: Path | None) -> Problem:
    """One Gaussian over the coefficients and log sigma2, whose prior is not Gaussian and so is part of f."""
    experiment = har._Experiment(data.volatility(folder), Settings())
    precision = np.array([1 / PRIOR_VARIANCE] * 4 + [0.0])
    constant = 2 * math.log(2 * math.pi * PRIOR_VARIANCE)

    def f(u: Floats) -> Floats:
        return experiment._log_joint(u) + 0.5 * np.sum(u[:, :4] ** 2, axis=1) / PRIOR_VARIANCE + constant

    def bound(mean: Floats, cov: Floats) -> float:
        return exact.gaussian_bound(experiment._log_joint, mean, cov, 5)

    return Problem(family, 5, f, precision, np.zeros(5), bound, experiment.best_gaussians[family])


PRINTED = Reading()
SAMPLE = Reading(variance="sample")
RESIDUAL = Reading(variance="sample", controlled="residual")
ONE = replace(SAMPLE, shared="all")
NEAREST = replace(RESIDUAL, shared="all")

# Under each heading, the place in the paper that leaves the choice open.
READINGS: dict[str, dict[str, Reading]] = {
    'the coefficient (section "Gradient estimation and control variates", equation ci_star)': {
        "as printed: analytic variance, previous draws, each coordinate": PRINTED,
        "no control variate": replace(PRINTED, coefficient="none"),
        "log-likelihood centred first": replace(PRINTED, variance="centred"),
        "sample variance": SAMPLE,
        "sample variance, same draws": replace(SAMPLE, coefficient="same"),
        "sample variance, one coefficient for each of m_1 and m_2": replace(SAMPLE, shared="block"),
        "sample variance, one coefficient": ONE,
        "sample variance, one coefficient, same draws": replace(ONE, coefficient="same"),
        "sample variance, variates of Algorithm 2 (lines 6 and 7)": replace(SAMPLE, variate="mu and S"),
    },
    'what is controlled (Appendix A: "QBVI samples" the equation LB_gradient_generic, prior and entropy included)': {
        "residual, as printed otherwise": replace(PRINTED, controlled="residual"),
        "residual, sample variance": RESIDUAL,
        "residual, sample variance, same draws": replace(RESIDUAL, coefficient="same"),
        "residual, sample variance, variates of Algorithm 2": replace(RESIDUAL, variate="mu and S"),
        "residual, sample variance, coefficients for m_1 and m_2": replace(RESIDUAL, shared="block"),
        "residual, sample variance, one coefficient (nearest)": NEAREST,
        "nearest, same draws": replace(NEAREST, coefficient="same"),
    },
    "start (Algorithm 2, line 2: S_1 and mu_1 are not given)": {
        "nearest, start variance 0.01": replace(NEAREST, start_variance=0.01),
        "nearest, start variance 1": replace(NEAREST, start_variance=1.0),
        "nearest, start at the prior, variance 5": replace(NEAREST, start_variance=5.0),
        "nearest, start mean drawn from N(0, 0.01^2)": replace(NEAREST, start_spread=0.01),
    },
    'first iterations (Appendix B, "Gradient clipping": "especially at earlier iterations")': {
        "nearest, norm of the first gradient at most 10": replace(NEAREST, first_norm=10.0),
        "nearest, norm of the first gradient at most 100": replace(NEAREST, first_norm=100.0),
    },
    'clipping and momentum (Appendix B: on g_t of lambda; Algorithm 2: on the two sums; "before momentum")': {
        "nearest, in the coordinates of Algorithm 2": replace(NEAREST, coordinates="mu and S"),
        "nearest, momentum before clipping": replace(NEAREST, order="momentum first"),
        "one coefficient, on the likelihood's part alone": replace(ONE, treated="likelihood"),
        "one coefficient, the same in the coordinates of Algorithm 2": replace(
            ONE, treated="likelihood", coordinates="mu and S"
        ),
    },
    "positive definiteness (Appendix D: 0 < delta < 1 is not given; the text leaves the full covariance without a remedy)": {
        "nearest, delta 0.5": replace(NEAREST, step="bounded 0.5"),
        "nearest, delta 0.9": replace(NEAREST, step="bounded 0.9"),
        "nearest, plain update": replace(NEAREST, step="plain"),
        "nearest, log-transform (diagonal)": replace(NEAREST, step="log"),
        "as printed, plain update": replace(PRINTED, step="plain"),
        "one coefficient, delta 0.9": replace(ONE, step="bounded 0.9"),
        "one coefficient, plain update": replace(ONE, step="plain"),
    },
    "draws (Algorithm 2, line 5; Appendix E names a package that draws scrambled Sobol points)": {
        "nearest, Sobol points": replace(NEAREST, draws="sobol"),
        "residual, sample variance, Sobol points": replace(RESIDUAL, draws="sobol"),
        "one coefficient, Sobol points": replace(ONE, draws="sobol"),
    },
    "no reading, since the table of hyper-parameters has 0.1 (its caption names table par_labour only): smaller rates": {
        "one coefficient, rate 0.02": replace(ONE, rate=0.02),
        "one coefficient, rate 0.01": replace(ONE, rate=0.01),
        "one coefficient, rate 0.005": replace(ONE, rate=0.005),
        "nearest, rate 0.01": replace(NEAREST, rate=0.01),
        "nearest, rate 0.005": replace(NEAREST, rate=0.005),
    },
}
# All readings are screened on Labour; these run on every data set.
CHOSEN = (
    "as printed: analytic variance, previous draws, each coordinate",
    "log-likelihood centred first",
    "sample variance",
    "sample variance, one coefficient",
    "sample variance, variates of Algorithm 2 (lines 6 and 7)",
    "residual, as printed otherwise",
    "residual, sample variance",
    "residual, sample variance, variates of Algorithm 2",
    "residual, sample variance, one coefficient (nearest)",
    "nearest, same draws",
    "nearest, Sobol points",
    "one coefficient, rate 0.01",
    "one coefficient, rate 0.005",
)
MAIN = (CHOSEN[0], CHOSEN[1], CHOSEN[3], CHOSEN[8])  # on the time series, which have no published counterpart
MEAN_FIELD = {
    "as printed": qbvi.ControlVariate(),
    "log-likelihood centred first": qbvi.ControlVariate(centred=True),
    "residual, sample variance, one coefficient (nearest)": qbvi.ResidualControlVariate(),
}


def judged(name: str, family: str, folder: Path | None, reading: Reading, seeds: int) -> list[Outcome]:
    """Run one reading on one problem; nothing where the reading has no meaning for it."""
    if family == "full" and reading.step == "log":
        return []  # the paper has the log-transform for diagonal covariances only
    given = _problem(name, family, folder)
    with np.errstate(all="ignore"):  # wild readings overflow; such steps are refused and counted
        return outcomes(given, iterate(given, reading, seeds))


def mean_field(folder: Path | None, estimator: Any, column: str, seeds: int) -> list[float]:
    """Exact gaps of the library's own loop on HAR with a Gaussian times an inverse gamma (Algorithm 3)."""
    series = data.volatility(folder)
    method = qbvi.paper(estimator=estimator)
    return [har._Experiment(series, Settings(seed=seed))._mean_field(column, method).gap for seed in range(seeds)]


@cache
def _problem(name: str, family: str, folder: Path | None) -> Problem:
    return problem(name, family, folder)


def _cell(found: list[Outcome]) -> str:
    if not found:
        return ""
    gap, printed = (np.array([getattr(outcome, name) for outcome in found]) for name in ("best", "printed"))
    lost = sum(outcome.lost > 0 for outcome in found)
    text = f"{_number(np.median(gap))} ({_number(gap.max())}) / {_number(np.median(printed))}"
    return text + (f", lost in {lost}" if lost else "")


def _number(x: float) -> str:
    return f"{x:.4f}" if abs(x) < 0.01 else f"{x:.3f}" if abs(x) < 10 else f"{x:.0f}" if abs(x) < 1e4 else f"{x:.1g}"


def _table(columns: list[tuple[str, str]], labels: tuple[str, ...], futures: Any) -> None:
    names = [f"{name}, {family}" for name, family in columns]
    print(f"| reading | {' | '.join(names)} |\n| --- |{' ---: |' * len(names)}")
    for heading, group in READINGS.items():
        if any(label in labels for label in group):
            print(f"| *{heading}* |{' |' * len(names)}")
        for label in group:
            if label in labels:
                print(f"| {label} | {' | '.join(_cell(futures[label, c].result()) for c in columns)} |", flush=True)
    print()


def _reporting(columns: list[tuple[str, str]], futures: Any, label: str) -> None:
    print(f"Which iterate is reported, and what is printed of it ({label}): medians of the seeds")
    heads = (
        "best smoothed bound",
        "last",
        "mean of the last 30",
        "printed",
        "printed above its exact bound",
        "mean alone",
    )
    print(f"| | {' | '.join(heads)} |\n| --- |{' ---: |' * len(heads)}")
    for column in columns:
        found = np.array([outcome[:5] for outcome in futures[label, column].result()])
        best, last, average, printed, mean = np.median(found, axis=0)
        upward = np.median(found[:, 0] - found[:, 3])
        print(f"| {', '.join(column)} | {' | '.join(map(_number, (best, last, average, printed, upward, mean)))} |")
    print()


def unfinished(folder: Path | None, seeds: int) -> list[tuple[int, float]]:
    """When the diagonal means of Credit are nearest to the published ones, and how near."""
    given = _problem("Credit", "diagonal", folder)
    runs = iterate(given, NEAREST, seeds)
    off = np.abs(runs.mean - np.array(CREDIT["QBVI diagonal"][: given.d])).max(axis=2)
    return [(int(off[:, seed].argmin()) + 1, float(off[:, seed].min())) for seed in range(seeds)]


def same_draw_bias(reading: Reading, batches: int = 40_000) -> tuple[float, float]:
    """Nats of bias and of noise at the best Gaussian of Labour, where the gradient is zero.

    In whitened coordinates a gradient (b, C) is worth |b|^2 / 2 + |C|^2 / 4 nats. The first number
    is that of the mean of all batches, less what chance leaves of it; the second is the mean over
    single batches.
    """
    given = _problem("Labour", "full", None)
    rng = np.random.default_rng(1)
    mean, precision = given.best.mean, np.linalg.inv(given.best.cov)
    size = 500
    L, K = (np.broadcast_to(x, (size, *x.shape[1:])) for x in _factors(precision[None]))
    q = _Gaussians(np.tile(mean, (size, 1)), np.broadcast_to(precision, (size, *precision.shape)), L, K)
    worth, total = [], [np.zeros(given.d), np.zeros((given.d, given.d))]
    for _ in range(batches // size):
        z = rng.standard_normal((size, DRAWS, given.d))
        theta = q.mu[:, None, :] + q.scaled(z)
        f = given.f(theta.reshape(-1, given.d)).reshape(size, DRAWS)
        if reading.controlled == "residual":
            f = f + _log_prior(given, theta) - q.log_density(z)
        (force, change), _ = _estimate(reading, q, z, f, None)
        if reading.controlled == "likelihood":
            force, change = (a + b for a, b in zip((force, change), q.known(given.precision), strict=True))
        b, C = np.einsum("rji,rj->ri", q.L, force), q.L.transpose(0, 2, 1) @ change @ q.L
        worth.append(0.5 * np.sum(b**2, axis=1) + 0.25 * np.sum(C**2, axis=(1, 2)))
        total = [total[0] + b.sum(axis=0), total[1] + C.sum(axis=0)]
    b, C = (x / batches for x in total)
    noise = float(np.mean(worth))
    return float(0.5 * np.sum(b**2) + 0.25 * np.sum(C**2)) - noise / batches, noise


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--screen", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.data
    everything = {label: reading for group in READINGS.values() for label, reading in group.items()}
    with ProcessPoolExecutor(arguments.workers) as pool:
        if arguments.screen:
            columns = [("Labour", family) for family in FAMILIES]
            found = {(x, c): pool.submit(judged, *c, folder, r, 3) for x, r in everything.items() for c in columns}
            _table(columns, tuple(everything), found)
        else:
            _all(pool, folder, arguments.seeds, everything)


def _all(pool: ProcessPoolExecutor, folder: Path | None, seeds: int, everything: dict[str, Reading]) -> None:
    logistic = [(name, family) for name in ("Labour", "Credit") for family in FAMILIES]
    series = [("HAR", "full"), ("HAR", "diagonal"), ("GARCH", "full")]
    jobs = [(x, c) for x in CHOSEN for c in logistic] + [(x, c) for x in MAIN for c in series]
    futures = {(x, c): pool.submit(judged, *c, folder, everything[x], seeds) for x, c in jobs}
    same = [label for label, reading in everything.items() if reading.coefficient == "same"]
    biases = {label: pool.submit(same_draw_bias, everything[label]) for label in same}
    means = pool.submit(unfinished, folder, 2)
    products = {
        (label, column): pool.submit(mean_field, folder, estimator, column, seeds)
        for label, estimator in MEAN_FIELD.items()
        for column in ("mean-field", "mean-field diagonal")
    }
    for name, family in logistic:
        paper = {"Labour": LABOUR, "Credit": CREDIT}[name]["QBVI diagonal" if family == "diagonal" else "QBVI"][-1]
        best = _problem(name, family, folder).best.bound
        print(f"{name}, {family}: best {best:.3f}, published {paper:.3f}, {_number(best - paper)} below it")
    _table(logistic, CHOSEN, futures)
    for label in (CHOSEN[8], CHOSEN[3]):
        _reporting(logistic, futures, label)
    _table(series, MAIN, futures)
    print("Coefficients from the same draws, Labour, 100 draws: nats of bias, and of the noise of one estimate")
    for label, future in biases.items():
        bias, noise = future.result()
        print(f"| {label} | {bias:.2g} | {noise:.2g} |", flush=True)
    print(f"Credit, diagonal: iterations with the published means, and the largest difference: {means.result()}")
    print("\nHAR, Gaussian times inverse gamma: median of the exact gaps (largest)")
    for key, future in products.items():
        gaps = np.array(future.result())
        print(f"| {' | '.join(key)} | {_number(np.median(gaps))} ({_number(gaps.max())}) |", flush=True)


if __name__ == "__main__":
    main()
