"""What a user would do instead, each at its documented defaults: one line for each peer that is installed."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator

import numpy as np
from problems import Problem
from scipy.optimize import minimize

Answer = tuple[int, np.ndarray, np.ndarray]  # evaluations, mean, covariance


class Counted:
    """A log density of one point that counts its calls."""

    def __init__(self, problem: Problem) -> None:
        self.log_joint, self.n_evals = problem.log_joint, 0

    def __call__(self, u: np.ndarray) -> float:
        """Log density at one point; a large negative number where it is not finite."""
        self.n_evals += 1
        value = float(self.log_joint(np.atleast_2d(u))[0])
        return value if np.isfinite(value) else -1e100


def rows(problem: Problem) -> Iterator[str]:
    """Run every peer that is here on one problem."""
    for name, (module, solve) in PEERS.items():
        if importlib.util.find_spec(module) is None:
            yield f"    {name}: {module} is not installed"
            continue
        start = time.perf_counter()
        try:
            evals, mean, cov = solve(problem)
        except NotImplementedError as reason:
            yield f"    {name}: left out, {reason}"
            continue
        except Exception as error:  # noqa: BLE001 - a peer that fails is a result
            yield f"    {name}: failed with {type(error).__name__}: {error}"
            continue
        seconds = time.perf_counter() - start
        yield f"    {name:40s} {evals:8,d} evaluations, {problem.gap(mean, cov).nats:9.4f} nats off, {seconds:7.1f} s"


def laplace(log_joint: Counted, mode: np.ndarray) -> Answer:
    """Gaussian at the mode with the finite-difference Hessian there."""
    d, hessian = len(mode), np.empty((len(mode), len(mode)))
    step = 1e-4 * np.maximum(1.0, np.abs(mode))
    eye = np.diag(step)
    centre = log_joint(mode)
    single = np.array([[log_joint(mode + s * eye[i]) for s in (1, -1)] for i in range(d)])
    for i in range(d):
        hessian[i, i] = (single[i].sum() - 2 * centre) / step[i] ** 2
        for j in range(i):
            both = log_joint(mode + eye[i] + eye[j]) + log_joint(mode - eye[i] - eye[j])
            hessian[i, j] = hessian[j, i] = (both - single[i].sum() - single[j].sum() + 2 * centre) / (
                2 * step[i] * step[j]
            )
    return log_joint.n_evals, mode, np.linalg.inv(-hessian)


def bfgs(problem: Problem) -> Answer:
    """SciPy's BFGS on finite differences, then a Laplace approximation."""
    log_joint = Counted(problem)
    found = minimize(lambda u: -log_joint(u), np.zeros(problem.d), method="BFGS")
    return laplace(log_joint, found.x)


def cma_es(problem: Problem) -> Answer:
    """CMA-ES from a standard deviation of one, then a Laplace approximation."""
    import cma

    log_joint = Counted(problem)
    found = cma.fmin2(lambda u: -log_joint(u), np.zeros(problem.d), 1.0, {"verbose": -9, "seed": 1})[0]
    return laplace(log_joint, np.asarray(found))


def ensemble(problem: Problem) -> Answer:
    """The stretch move with the moments of the second half of 2,000 steps."""
    import emcee

    log_joint, walkers = Counted(problem), 2 * problem.d + 2
    rng = np.random.default_rng(1)
    sampler = emcee.EnsembleSampler(walkers, problem.d, log_joint)
    sampler.random_state = np.random.RandomState(1).get_state()
    sampler.run_mcmc(0.1 * rng.standard_normal((walkers, problem.d)), 2000)
    draws = sampler.get_chain(discard=1000, flat=True)
    return log_joint.n_evals, draws.mean(0), np.cov(draws.T)


def vbmc(problem: Problem) -> Answer:
    """PyVBMC with plausible bounds of plus and minus two; the moments of its mixture."""
    from pyvbmc import VBMC

    log_joint, d = Counted(problem), problem.d
    if d > 10:
        msg = "its authors advise at most ten dimensions"
        raise NotImplementedError(msg)
    np.random.seed(1)  # noqa: NPY002 - its only way to be seeded
    posterior, _ = VBMC(
        log_joint, np.zeros((1, d)), None, None, np.full((1, d), -2.0), np.full((1, d), 2.0), {"display": "off"}
    ).optimize()
    mean, cov = posterior.moments(cov_flag=True)
    return log_joint.n_evals, np.ravel(mean), cov


def numpyro_svi(problem: Problem) -> Answer:
    """NumPyro's SVI with AutoMultivariateNormal and Adam, 2,000 steps of 10 particles; it sees gradients."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoMultivariateNormal

    if problem.regression is None:
        msg = "only the logistic regressions are written in JAX"
        raise NotImplementedError(msg)
    jax.config.update("jax_enable_x64", True)
    x, y = jnp.asarray(problem.regression.X), jnp.asarray(problem.regression.y)

    def model():
        beta = numpyro.sample("beta", dist.Normal(0, problem.prior_scale).expand([problem.d]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    guide = AutoMultivariateNormal(model)
    steps, particles = 2000, 10
    svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO(num_particles=particles))
    result = svi.run(jax.random.PRNGKey(1), steps, progress_bar=False)
    posterior = guide.get_posterior(result.params)
    return steps * particles, np.asarray(posterior.mean), np.asarray(posterior.covariance_matrix)


PEERS: dict[str, tuple[str, Callable[[Problem], Answer]]] = {
    "BFGS + Laplace (finite differences)": ("scipy", bfgs),
    "CMA-ES + Laplace": ("cma", cma_es),
    "emcee": ("emcee", ensemble),
    "PyVBMC": ("pyvbmc", vbmc),
    "NumPyro SVI (gradients)": ("numpyro", numpyro_svi),
}
