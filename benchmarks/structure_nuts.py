"""Varying intercepts of many groups: the moments of a fit beside those of NUTS, which has gradients.

NUTS (NumPyro) runs four chains with 1,000 draws each after 1,000 steps of warm-up. For each model: evaluations of the function by
qbvi, with the seconds of CPU, and of its gradient by NUTS; the largest difference of a mean in standard deviations of NUTS, and the
largest log ratio of two standard deviations, for the shared parameters and for the effects. "Floor" is the largest Monte Carlo
error of a mean of NUTS, in the same units.

Run: ``pip install numpyro``, then ``python benchmarks/structure_nuts.py [--only normal-40] [--seeds 5]``.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS
from structure import PRIOR_SD, VaryingIntercepts, hierarchical

import qbvi

Array = NDArray[np.float64]
CHAINS, DRAWS = 4, 1000


def potential(model: VaryingIntercepts):
    """Minus the log joint of one flat point, for JAX."""
    y, x, group, w = (jnp.asarray(part) for part in model.data)
    k, at = len(model.hyper), {name: i for i, name in enumerate(model.hyper)}

    def minus_log_joint(theta):
        get = lambda name: theta[at[name]] if name in at else 0.0
        effect, centre, log_tau = theta[k:], get("mu") + get("of_groups") * w, get("log_tau")
        intercept = effect if model.is_centred else centre + jnp.exp(log_tau) * effect
        eta = intercept[group] + get("slope") * x
        s = get("log_sigma")
        normal = -s - 0.5 * ((y - eta) * jnp.exp(-s)) ** 2
        value = jnp.sum(normal if model.is_normal else y * eta - jnp.logaddexp(0.0, eta))
        z = (effect - centre) * jnp.exp(-log_tau) if model.is_centred else effect
        value += jnp.sum(-0.5 * z**2) - (model.groups * log_tau if model.is_centred else 0.0)
        return -value + 0.5 * sum((get(name) / PRIOR_SD[name]) ** 2 for name in model.hyper)

    return minus_log_joint


def chains(model: VaryingIntercepts, seed: int) -> tuple[Array, int]:
    """Draws (chains, n, d) of the posterior, and how often the gradient was evaluated."""
    sampler = MCMC(
        NUTS(potential_fn=potential(model)),
        num_warmup=1000,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )
    start = 0.1 * np.random.default_rng(seed).standard_normal((CHAINS, model.d))
    sampler.warmup(
        jax.random.PRNGKey(seed), init_params=jnp.asarray(start), extra_fields=("num_steps",), collect_warmup=True
    )
    n_gradients = int(np.sum(sampler.get_extra_fields()["num_steps"]))
    sampler.run(sampler.last_state.rng_key, extra_fields=("num_steps",))
    n_gradients += int(np.sum(sampler.get_extra_fields()["num_steps"]))
    return np.asarray(sampler.get_samples(group_by_chain=True), dtype=float), n_gradients


def row(name: str, model: VaryingIntercepts, seed: int, max_evals: int | None) -> str:
    """One line of the table."""
    fit_start = time.process_time()
    fit = qbvi.fit(model.log_likelihood, model.prior, vectorized=True, seed=seed, max_evals=max_evals, progress=False)
    fit_seconds = time.process_time() - fit_start
    nuts_start = time.process_time()
    draws, n_gradients = chains(model, seed)
    nuts_seconds = time.process_time() - nuts_start
    k, mean, sd = len(model.hyper), draws.mean((0, 1)), draws.std((0, 1))
    q_mean, q_cov = fit.unconstrained
    off, ratio = np.abs(q_mean - mean) / sd, np.abs(0.5 * np.log(np.diag(q_cov)) - np.log(sd))
    floor = np.max(effective_sample_size(draws) ** -0.5)
    largest = " | ".join(f"{part[:k].max():.2f}, {part[k:].max():.2f}" for part in (off, ratio))
    r_hat = np.max(split_gelman_rubin(draws))
    said = "yes" if fit.converged else "no"
    return (
        f"| {name} | {model.d} | {seed} | {fit.n_evals:,} | {said} | {fit_seconds:.0f} | {n_gradients:,} | {nuts_seconds:.0f} "
        f"| {r_hat:.3f} | {largest} | {floor:.2f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=["normal-40", "uneven-40", "bernoulli-40", "radon-85"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[5])
    parser.add_argument("--max-evals", type=int)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(
        "| model | d | seed | evaluations | converged | s | gradients of NUTS | s | R-hat | means: shared, effects | sds | floor |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for seed in args.seeds:
        models = hierarchical(seed)
        for name in args.only:
            print(row(name, models[name], seed, args.max_evals), flush=True)


if __name__ == "__main__":
    main()
