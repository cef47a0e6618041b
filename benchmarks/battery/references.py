"""What is known of a posterior: its evidence, draws from it, and the Gaussian with the highest bound.

Evidence and draws come from a closed form where there is one, otherwise from adaptive importance sampling with a mixture of
Student t distributions. `grid` is a second way for one and two dimensions, which the tests compare with the first.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.special import gammaln, logsumexp, ndtri
from scipy.stats import qmc

if TYPE_CHECKING:
    from .problem import Problem

Array = NDArray[np.float64]
Density = Callable[[Array], Array]

N_DRAWS = 4000
ESS_WANTED, MOST_DRAWS, ROUND = 20_000, 1_500_000, 50_000
LARGEST_BEST = 45  # dimensions in which the best Gaussian is computed
FOLDER = Path(os.environ.get("QBVI_BATTERY", Path(__file__).parent / "cache"))


class Gauss(NamedTuple):
    """The Gaussian of highest bound: its moments, and that bound with its standard error."""

    mean: Array
    cov: Array
    elbo: float
    se: float


@dataclass(frozen=True)
class Reference:
    """What is known of a posterior over u.

    Attributes
    ----------
    log_evidence, log_evidence_se
        Log marginal likelihood and its standard error, zero where it is exact.
    draws, again
        Two independent samples, (4000, d) each. The distance between them is the floor of every comparison.
    best
        The Gaussian with the highest bound; None where it is not computed.
    ess
        Effective sample size behind the importance sample; infinite where draws are exact.
    """

    log_evidence: float
    log_evidence_se: float
    draws: Array
    again: Array
    best: Gauss | None
    ess: float = np.inf


def load_or_make(problem: Problem) -> Reference:
    """The stored reference if it belongs to this very density, else a new one."""
    path = FOLDER / f"{problem.name}-{_digest(problem)}.npz"
    if path.is_file():
        return _load(path)
    made = make(problem)
    if problem.exact is None or (made.best is not None and problem.best is None):
        _store(path, made)
    return made


def make(problem: Problem) -> Reference:
    """Compute the reference."""
    rng = np.random.default_rng([7, problem.d])
    if problem.exact is not None:
        log_evidence, draw = problem.exact
        found = Reference(log_evidence, 0.0, draw(rng, N_DRAWS), draw(rng, N_DRAWS), None)
    elif problem.best is not None:
        mean, cov = problem.best()
        found = importance_sample(problem.log_joint, Mixture(np.ones(1), mean[None], 1.1 * cov[None]), rng, rounds=0)
    else:
        found = importance_sample(problem.log_joint, starts(problem, rng), rng)
    best = None
    if problem.best is not None:
        best = Gauss(*problem.best(), *bound(problem.log_joint, *problem.best()))
    elif problem.has_best and problem.d <= LARGEST_BEST:
        best = best_gaussian(problem.log_joint, found.draws)
    return Reference(found.log_evidence, found.log_evidence_se, found.draws, found.again, best, found.ess)


# --- the best Gaussian ---------------------------------------------------------------------------------------------


def best_gaussian(log_joint: Density, draws: Array) -> Gauss | None:
    """The Gaussian with the highest bound, from several starts; None if every one meets a log joint of minus infinity.

    A start has the moments of all draws, or sits on one draw with a part of their spread, for targets with several modes.
    """
    rng = np.random.default_rng(3)
    cov = np.atleast_2d(np.cov(_without_outliers(draws), rowvar=False))
    centre = np.median(draws, axis=0)
    begin = [(centre, cov), (centre, 0.1 * cov)]
    if len(centre) <= 25:
        begin += [(draws[k], 0.05 * cov) for k in rng.choice(len(draws), 4, replace=False)]
    ends = [_climb(log_joint, *start, normals_for(len(centre), 512, 4), least=1e-3) for start in begin]
    ends = [end for end in ends if np.isfinite(end[2])]
    if not ends:
        return None
    mean, cov, _ = max(ends, key=lambda end: end[2])
    many = normals_for(len(centre), 4096 if len(centre) <= 8 else 16_384, 32)
    mean, cov, _ = _climb(log_joint, mean, cov, many, least=1e-6)
    return Gauss(mean, cov, *bound(log_joint, mean, cov))


def bound(log_joint: Density, mean: Array, cov: Array) -> tuple[float, float]:
    """Bound of N(mean, cov) and its standard error, from independent scrambles of a Sobol sequence."""
    z = normals(len(mean), 11 if len(mean) <= 10 else 9)
    factor = np.linalg.cholesky(cov)
    parts = log_joint(mean + z @ factor.T) + 0.5 * np.sum(z**2, axis=1)
    scrambles = parts.reshape(SCRAMBLES, -1).mean(axis=1) + _log_scale(factor)
    return float(scrambles.mean()), float(scrambles.std(ddof=1) / np.sqrt(SCRAMBLES))


def gap(log_joint: Density, best: Gauss, mean: Array, cov: Array, log2_points: int = 8) -> float:
    """Bound of the best Gaussian less that of N(mean, cov), from draws that both share."""
    z = normals(len(mean), log2_points)
    try:
        factor, own = np.linalg.cholesky(best.cov), np.linalg.cholesky(cov)
    except np.linalg.LinAlgError:
        return np.inf
    there = log_joint(best.mean + z @ factor.T)
    here = log_joint(mean + z @ own.T)
    return float(np.mean(there - here) + _log_scale(factor) - _log_scale(own))


SCRAMBLES = 16


@lru_cache(maxsize=32)
def normals(d: int, log2_points: int = 8, first: int = 0) -> Array:
    """Standard normals (16 * 2 * 2^log2_points, d): independent Sobol scrambles, each with its mirror image."""
    scrambles = [qmc.Sobol(d, rng=np.random.default_rng([d, first + k])) for k in range(SCRAMBLES)]
    half = [scramble.random_base2(log2_points) for scramble in scrambles]
    z = ndtri(np.clip(np.stack(half), 1e-12, 1 - 1e-12))
    return np.concatenate([z, -z], axis=1).reshape(-1, d)


def normals_for(d: int, fewest: int, each: int) -> Array:
    """At least so many normals, and so many for each coefficient of a quadratic: other ones than those that judge."""
    wanted = max(fewest, each * (d + 1) * (d + 2) // 2)
    return normals(d, int(np.ceil(np.log2(wanted / (2 * SCRAMBLES)))), first=SCRAMBLES)


def _climb(log_joint: Density, mean: Array, cov: Array, z: Array, least: float) -> tuple[Array, Array, float]:
    """Natural-gradient ascent of the bound with the same quasi-random normals in every step.

    In coordinates that whiten q, the quadratic regression of the log joint on the draws has gradient g and Hessian H. The
    step takes the precision a share of the way from I to -H and the mean along the new covariance times g; the share is
    halved until the bound rises. It ends when a step gains less than ``least`` nats.
    """
    d = len(mean)
    rows, columns = np.triu_indices(d)
    features = np.column_stack([np.ones(len(z)), z, (z[:, rows] * z[:, columns]) - (rows == columns)])
    solve = cho_factor(features.T @ features)
    now, values = _value(log_joint, mean, cov, z)
    share = 1.0
    for _ in range(200):
        if not np.isfinite(now):
            break
        coefficients = cho_solve(solve, features.T @ values)
        g, hessian = coefficients[1 : d + 1], np.zeros((d, d))
        hessian[rows, columns] = coefficients[d + 1 :]
        hessian += hessian.T  # a squared term's coefficient is half the second derivative
        moved = _step(log_joint, mean, cov, z, (g, hessian, share, now))
        if moved is None:
            break
        gain = moved[2] - now
        mean, cov, now, values, share = moved
        share = min(1.0, 2 * share)
        if gain < least:
            break
    return mean, cov, now


def _step(log_joint: Density, mean: Array, cov: Array, z: Array, model: tuple) -> tuple | None:
    """The longest step, halved as often as needed, that raises the bound; None if none does."""
    g, hessian, share, now = model
    factor, d = np.linalg.cholesky(cov), len(mean)
    while share > 1e-6:
        values, vectors = np.linalg.eigh((1 - share) * np.eye(d) - share * hessian)
        spread = (vectors / np.clip(values, 0.1, 10.0)) @ vectors.T  # no direction grows or shrinks tenfold in one step
        new_mean = mean + factor @ (spread @ (share * g))
        new_cov = factor @ spread @ factor.T
        new_cov = 0.5 * (new_cov + new_cov.T)
        try:
            there, values = _value(log_joint, new_mean, new_cov, z)
        except np.linalg.LinAlgError:
            there = -np.inf
        if there > now:
            return new_mean, new_cov, there, values, share
        share /= 2
    return None


def _value(log_joint: Density, mean: Array, cov: Array, z: Array) -> tuple[float, Array]:
    """Bound of N(mean, cov) from the given normals, and the log joint at the draws."""
    factor = np.linalg.cholesky(cov)
    values = log_joint(mean + z @ factor.T)
    return float(values.mean() + 0.5 * np.mean(np.sum(z**2, axis=1)) + _log_scale(factor)), values


def _log_scale(factor: Array) -> float:
    """Log normaliser of N(., F F'): bound = mean of (log joint + z'z/2) + this."""
    return float(np.sum(np.log(np.diagonal(factor))) + 0.5 * len(factor) * np.log(2 * np.pi))


def _without_outliers(draws: Array) -> Array:
    """Draws within ten interquartile ranges of the median in every coordinate: heavy tails have no covariance."""
    low, middle, high = np.quantile(draws, [0.25, 0.5, 0.75], axis=0)
    return draws[np.all(np.abs(draws - middle) <= 10 * (high - low), axis=1)]


# --- importance sampling -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixture:
    """Mixture of multivariate Student t distributions with five degrees of freedom."""

    weights: Array
    means: Array  # (k, d)
    covs: Array  # (k, d, d)

    DF = 5.0

    def sample(self, rng: np.random.Generator, n: int) -> Array:
        """Draws (n, d)."""
        d = self.means.shape[1]
        which = rng.choice(len(self.weights), n, p=self.weights)
        z = rng.standard_normal((n, d)) / np.sqrt(rng.chisquare(self.DF, n) / self.DF)[:, None]
        factors = np.linalg.cholesky(self.covs)
        u = np.empty((n, d))
        for k, factor in enumerate(factors):
            u[which == k] = self.means[k] + z[which == k] @ factor.T
        return u

    def log_prob(self, u: Array) -> Array:
        """(n, d) -> (n,)."""
        return logsumexp(self.log_parts(u), axis=1)

    def log_parts(self, u: Array) -> Array:
        """Log density of each part times its weight: (n, k)."""
        d, df = u.shape[1], self.DF
        constant = gammaln((df + d) / 2) - gammaln(df / 2) - 0.5 * d * np.log(df * np.pi)
        parts = []
        for weight, mean, cov in zip(self.weights, self.means, self.covs, strict=True):
            factor = np.linalg.cholesky(cov)
            square = np.sum(np.linalg.solve(factor, (u - mean).T) ** 2, axis=0)
            scale = np.sum(np.log(np.diagonal(factor)))
            parts.append(np.log(weight) + constant - scale - 0.5 * (df + d) * np.log1p(square / df))
        return np.column_stack(parts)


def importance_sample(log_joint: Density, begin: Mixture, rng: np.random.Generator, rounds: int = 14) -> Reference:
    """Evidence and draws by importance sampling from a mixture that is fitted to the weighted draws of each round."""
    mixture, size = begin, 8 if begin.means.shape[1] > 1 else 4
    for turn in range(rounds):
        u = mixture.sample(rng, 20_000)
        log_ratio = log_joint(u) - mixture.log_prob(u)
        weights, power = _tempered(log_ratio, 1500)
        if turn >= 3 and power == 1 and effective(weights) > 0.6 * len(u):
            break
        chosen = u[rng.choice(len(u), 5000, p=weights)]
        mixture = _fitted(chosen, min(size + turn, 16), rng)
    us, logs, ess = [], [], 0.0
    while ess < ESS_WANTED and ROUND * len(us) < MOST_DRAWS:
        us.append(mixture.sample(rng, ROUND))
        logs.append(log_joint(us[-1]) - mixture.log_prob(us[-1]))
        log_ratio = np.concatenate(logs)
        weights = np.exp(log_ratio - logsumexp(log_ratio))
        ess = effective(weights)
    u = np.concatenate(us)
    picked = u[rng.choice(len(u), 2 * N_DRAWS, p=weights)]
    scaled = np.exp(log_ratio - log_ratio.max())
    log_evidence = log_ratio.max() + np.log(scaled.mean())
    se = scaled.std() / scaled.mean() / np.sqrt(len(scaled))
    return Reference(float(log_evidence), float(se), picked[:N_DRAWS], picked[N_DRAWS:], None, ess)


def starts(problem: Problem, rng: np.random.Generator) -> Mixture:
    """Laplace approximations at the modes found from the best of many prior draws and from the known point."""
    model, points = problem.model, []
    draws = model.sample_prior(rng, 4000)
    if draws is not None:
        u = model.unconstrain(draws, batched=True)
        u = u[np.all(np.abs(u) < 100, axis=1) | (np.abs(u) < 1e9).all(axis=1)]
        points += list(u[np.argsort(-problem.log_joint(u))[:6]])
    if problem.near is not None:
        points += list(np.atleast_2d(problem.near))
    peaks = [_peak(problem.log_joint, point) for point in points]
    top = max(value for _, value, _ in peaks)
    kept: list[tuple[Array, Array]] = []
    for u, value, cov in sorted(peaks, key=lambda peak: -peak[1]):
        near = any(np.all(np.abs(u - v) < 0.5 * np.sqrt(np.diagonal(c))) for v, c in kept)
        if value > top - 25 and not near:
            kept.append((u, cov))
    means, covs = (np.stack(part) for part in zip(*kept, strict=True))
    return Mixture(np.full(len(kept), 1 / len(kept)), means, 2 * covs)


def effective(weights: Array) -> float:
    """Effective sample size of normalised weights."""
    return float(1 / np.sum(weights**2))


def _peak(log_joint: Density, start: Array) -> tuple[Array, float, Array]:
    """A local maximum, its height, and the covariance of the Laplace approximation, clipped where it is not one."""
    d = len(start)
    width = np.maximum(1.0, 0.1 * np.abs(start))

    def downhill(v: Array) -> float:
        value = float(-log_joint((start + width * v)[None])[0])
        return value if np.isfinite(value) else 1e300

    def slope(v: Array) -> Array:
        steps = 1e-5 * np.eye(d)
        values = -log_joint(start + width * (v + np.concatenate([steps, -steps])))
        change = (values[:d] - values[d:]) / 2e-5
        return np.where(np.isfinite(change), change, 0.0)

    found = minimize(downhill, np.zeros(d), jac=slope, method="BFGS", options={"maxiter": 40 * d})
    found = minimize(downhill, found.x, method="Nelder-Mead", options={"maxfev": 40 * d})
    peak = start + width * np.atleast_1d(found.x)
    return peak, -float(found.fun), _curvature(log_joint, peak, width)


def _curvature(log_joint: Density, peak: Array, width: Array) -> Array:
    """Covariance from steps along each axis that lose about half a nat."""
    d, top = len(peak), float(log_joint(peak[None])[0])
    steps = 1e-6 * width
    for i in range(d):
        for _ in range(60):
            sides = np.stack([peak, peak])
            sides[:, i] += [steps[i], -steps[i]]
            if not np.mean(top - log_joint(sides)) < 0.5:
                break
            steps[i] *= 1.7
    pairs = np.array([(i, j) for i in range(d) for j in range(d)])
    shifts = np.zeros((4, d * d, d))
    for k, (a, b) in enumerate(((0.5, 0.5), (0.5, -0.5), (-0.5, 0.5), (-0.5, -0.5))):
        shifts[k, np.arange(d * d), pairs[:, 0]] += a * steps[pairs[:, 0]]
        shifts[k, np.arange(d * d), pairs[:, 1]] += b * steps[pairs[:, 1]]
    values = log_joint((peak + shifts).reshape(-1, d)).reshape(4, d, d)
    hessian = values[0] - values[1] - values[2] + values[3]
    if not np.isfinite(hessian).all():
        return np.diag(steps**2)
    values, vectors = np.linalg.eigh(-0.5 * (hessian + hessian.T))
    cov = (vectors / np.clip(values, 0.05, None)) @ vectors.T
    return steps[:, None] * cov * steps


def _tempered(log_ratio: Array, wanted: float) -> tuple[Array, float]:
    """Weights of the ratios to the largest power of at most one that leaves the wanted effective sample size."""
    usable = np.where(np.isfinite(log_ratio), log_ratio, -np.inf)
    low, high = 0.0, 1.0

    def weights(power: float) -> Array:
        logs = np.where(np.isfinite(usable), power * usable, -np.inf)
        return np.exp(logs - logsumexp(logs))

    if effective(weights(1.0)) >= wanted:
        return weights(1.0), 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if effective(weights(middle)) >= wanted else (low, middle)
    return weights(low), low


def _fitted(u: Array, size: int, rng: np.random.Generator) -> Mixture:
    """A mixture fitted to draws by a few rounds of expectation-maximisation, and one wide part for safety."""
    d = u.shape[1]
    whole = np.atleast_2d(np.cov(u, rowvar=False)) + 1e-14 * np.diag(np.var(u, axis=0) + 1e-300)
    whitened = np.linalg.solve(np.linalg.cholesky(whole), u.T).T
    centres = [int(rng.integers(len(u)))]
    for _ in range(size - 1):  # spread out as in k-means++
        far = np.min([np.sum((whitened - whitened[c]) ** 2, axis=1) for c in centres], axis=0)
        centres.append(int(rng.choice(len(u), p=far / far.sum())))
    mixture = Mixture(np.full(size, 1 / size), u[centres], np.repeat(whole[None] / size ** (2 / d), size, axis=0))
    for _ in range(15):
        logs = mixture.log_parts(u)
        shares = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
        total = shares.sum(axis=0)
        kept = total > 10 * d + 10
        shares, total = shares[:, kept], total[kept]
        means = shares.T @ u / total[:, None]
        covs = np.stack([_spread(u - mean, share, whole) for mean, share in zip(means, shares.T, strict=True)])
        mixture = Mixture(total / total.sum(), means, covs)
    weights = np.append(0.95 * mixture.weights, 0.05)
    return Mixture(
        weights, np.vstack([mixture.means, u.mean(0)]), np.concatenate([1.1 * mixture.covs, 3 * whole[None]])
    )


def _spread(centred: Array, share: Array, whole: Array) -> Array:
    return (centred * share[:, None]).T @ centred / share.sum() + 1e-6 * whole


# --- quadrature ----------------------------------------------------------------------------------------------------


def grid(log_joint: Density, low: Array, high: Array, size: int = 400) -> tuple[float, Array, Array]:
    """Log evidence, mean and covariance by the midpoint rule on a box, for one to three dimensions."""
    axes = [a + (b - a) * (np.arange(size) + 0.5) / size for a, b in zip(low, high, strict=True)]
    u = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    logs = np.concatenate([log_joint(part) for part in np.array_split(u, max(1, len(u) // 50_000))])
    log_evidence = logsumexp(logs) + np.sum(np.log((np.asarray(high) - low) / size))
    weights = np.exp(logs - logsumexp(logs))
    mean = weights @ u
    return float(log_evidence), mean, ((u - mean) * weights[:, None]).T @ (u - mean)


# --- storage -------------------------------------------------------------------------------------------------------


def _digest(problem: Problem) -> str:
    """A hash of the log joint at a few points, which changes when the problem does."""
    u = np.random.default_rng(5).standard_normal((8, problem.d))
    if problem.near is not None:
        u = np.atleast_2d(problem.near)[0] + 0.1 * u
    elif problem.exact is not None:
        u = problem.exact.draw(np.random.default_rng(5), 8)
    with np.errstate(all="ignore"):
        values = np.round(problem.log_joint(u), 6)
    return hashlib.blake2b(values.tobytes(), digest_size=5).hexdigest()


def _store(path: Path, made: Reference) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    best = () if made.best is None else (made.best.mean, made.best.cov, np.array([made.best.elbo, made.best.se]))
    numbers = np.array([made.log_evidence, made.log_evidence_se, made.ess])
    temporary = path.with_suffix(f".{os.getpid()}.npz")
    np.savez(temporary, *best, numbers=numbers, draws=made.draws, again=made.again)
    temporary.replace(path)


def _load(path: Path) -> Reference:
    with np.load(path) as file:
        best = Gauss(file["arr_0"], file["arr_1"], *map(float, file["arr_2"])) if "arr_0" in file else None
        log_evidence, se, ess = map(float, file["numbers"])
        return Reference(log_evidence, se, file["draws"], file["again"], best, ess)
