"""Logistic regression with a million rows and a hundred coefficients on one GPU: time of a step against its floor, and seconds to the best bound.

The function computes all draws of a step at once, in three precisions. "centred" multiplies only the draws' differences from their mean in TF32, which
costs a rounding error of the differences in place of one of the coefficients. Floors are counted operations over measured rates (rates.py): the matrix
product of rows and draws, or softplus of every predictor, whichever takes longer. Beside it run methods that are given gradients: L-BFGS and
Newton's method with a Laplace approximation, and NumPyro's SVI. first_fit.py has the time of compilation.

Run: ``python benchmarks/gpu/logistic.py [--rows 1000000] [--dim 100] [--draws 1024] [--only float32] [--no-peers | --peers-only]``.
"""

from __future__ import annotations

import argparse
import math
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from rates import measure, seconds

import qbvi

PRIOR_VARIANCE = 5.0
ROWS_AT_ONCE = 100_000  # predictors of that many rows for all draws are in memory at a time
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
KINDS = {"float32": ("float32", "highest"), "centred": ("float32", "centred"), "float64": ("float64", "highest")}


class Problem:
    """Rows X (N, d), labels y in {0, 1} and the exact bound of any Gaussian."""

    def __init__(self, rows: int, dim: int) -> None:
        keys = jax.random.split(jax.random.key(0), 3)
        with jax.enable_x64(True):
            self.X = jax.random.normal(keys[0], (rows, dim), jnp.float32).at[:, 0].set(1.0)
            beta = 1.5 * jax.random.normal(keys[1], (dim,), jnp.float32) / math.sqrt(dim)
            self.y = (jax.random.uniform(keys[2], (rows,)) < jax.nn.sigmoid(self.X @ beta)).astype(jnp.float32)
            self.Xy = self.X.T.astype(jnp.float64) @ self.y.astype(jnp.float64)
            self._expected = jax.jit(partial(expected, blocks=blocks(self.X)))
            self.best = self._best()

    @property
    def dim(self) -> int:
        """The number of coefficients."""
        return self.X.shape[1]

    def bound(self, mean, cov) -> float:
        """E_q[log-likelihood] - KL(q || prior), by Gauss-Hermite quadrature over each predictor."""
        with jax.enable_x64(True):
            mean, cov = jnp.asarray(mean, jnp.float64), jnp.asarray(cov, jnp.float64)
            value, _, _ = self._expected(mean, cov)
            log_det = jnp.linalg.slogdet(cov)[1]
            square = (jnp.trace(cov) + mean @ mean) / PRIOR_VARIANCE
            divergence = 0.5 * (square - self.dim + self.dim * math.log(PRIOR_VARIANCE) - log_det)
            return float(mean @ self.Xy - value - divergence)

    def _best(self) -> float:
        """Newton steps on mean and precision, from a precision like the answer's."""
        mean, precision = jnp.zeros(self.dim), 0.2 * self.X.shape[0] * jnp.eye(self.dim)
        for _ in range(15):
            _, slope, curvature = self._expected(mean, jnp.linalg.inv(precision))
            precision = jnp.eye(self.dim) / PRIOR_VARIANCE + curvature
            mean = mean + jnp.linalg.solve(precision, self.Xy - slope - mean / PRIOR_VARIANCE)
        return self.bound(mean, jnp.linalg.inv(precision))


def blocks(X):
    """Rows in portions."""
    return X.reshape(-1, min(ROWS_AT_ONCE, X.shape[0]), X.shape[1])


def expected(mean, cov, blocks):
    """Expectations under q of the sum of softplus over the rows, of its gradient and of its Hessian."""

    def add(total, x):
        x = x.astype(jnp.float64)
        sd = jnp.sqrt(jnp.sum((x @ cov) * x, axis=1))
        b = (x @ mean)[:, None] + sd[:, None] * NODES
        p, w = jax.nn.sigmoid(b), WEIGHTS / WEIGHTS.sum()
        parts = jnp.sum(jax.nn.softplus(b) @ w), x.T @ (p @ w), (x.T * ((p * (1 - p)) @ w)) @ x
        return jax.tree.map(jnp.add, total, parts), None

    d = blocks.shape[2]
    return jax.lax.scan(add, (jnp.zeros(()), jnp.zeros(d), jnp.zeros((d, d))), blocks)[0]


def log_likelihood(problem: Problem, dtype: str, precision: str):
    """(S, d) -> (S,), portions of the rows one after the other."""
    with jax.enable_x64(dtype == "float64"):
        X, Xy = blocks(problem.X.astype(dtype)), problem.Xy.astype(dtype)

    def function(theta):
        centre = jnp.mean(theta, axis=0) if precision == "centred" else jnp.zeros_like(theta[0])
        product = "default" if precision == "centred" else "highest"

        def add(total, x):
            predictors = jnp.matmul(x, (theta - centre).T, precision=product)
            if precision == "centred":
                predictors = predictors + jnp.matmul(x, centre, precision="highest")[:, None]
            return total + jnp.sum(jax.nn.softplus(predictors), axis=0), None

        return theta @ Xy - jax.lax.scan(add, jnp.zeros_like(theta[:, 0]), X)[0]

    return function


def report(problem: Problem, kind: str, draws: int, rates) -> None:
    """Time the function, then whole fits: what a step takes, and when the bound is within 1 and 0.1 nats of the best."""
    dtype, precision = KINDS[kind]
    function = log_likelihood(problem, dtype, precision)
    rows, d = problem.X.shape
    with jax.enable_x64(dtype == "float64"):
        alone = seconds(function, 0.01 * jax.random.normal(jax.random.key(1), (draws, d), dtype))
    product = 2 * rows * d * draws / rates.flops["tf32" if precision == "centred" else dtype]
    floor = max(product, rows * draws / rates.softplus)
    options = {
        "prior": qbvi.Normal(0, PRIOR_VARIANCE**0.5, shape=d), "vectorized": True, "backend": "jax", "dtype": dtype,
        "method": qbvi.Ridge(n_samples=draws), "seed": 1, "progress": False, "max_evals": 40 * draws,
    }  # fmt: skip
    path: list[float] = []
    qbvi.fit(function, callback=lambda now: path.append(problem.best - problem.bound(now.mean, now.cov)), **options)
    qbvi.fit(function, **options)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        fit = qbvi.fit(function, **options)
        times.append(time.perf_counter() - start)
    each = min(times) / len(path)
    spent = np.diff(fit.trace.seconds, prepend=0.0)
    step = float(np.median(spent))
    gap = problem.best - problem.bound(*fit.unconstrained)
    reached = {level: next((i + 1 for i, nats in enumerate(path) if nats < level), None) for level in (1.0, 0.1)}
    print(
        f"\n{kind}: floor {1e3 * floor:.2f} ms, function alone {1e3 * alone:.2f} ms ({floor / alone:.0%} of it), step {1e3 * step:.2f} ms ({floor / step:.0%})"
    )
    print(
        f"  {len(path)} steps, {fit.n_evals:,} evaluations, {min(times):.3f} s in all ({each * 1e3:.1f} ms each); {fit.stop_reason}; {gap:.4f} nats off"
    )
    for level, steps in reached.items():
        when = (
            "never"
            if steps is None
            else f"{fit.trace.seconds[steps - 1]:.3f} s, {steps} steps, {steps * draws:,} evaluations"
        )
        print(f"  within {level:g} nats: {when}")
    print("  gap by step: " + " ".join(f"{nats:.3g}" for nats in path))


def laplace(problem: Problem) -> None:
    """What gradients are good for: a search for the mode, then the inverse of the Hessian there.

    Two searches: L-BFGS by Optax, and Newton's method, which a sum over rows of a function of one predictor makes easy.
    """
    for name, search in (("L-BFGS", by_lbfgs), ("Newton", by_newton)):
        compiled = jax.jit(partial(search, X=blocks(problem.X), Xy=problem.Xy.astype(jnp.float32)))
        times = []
        for _ in range(4):
            start = time.perf_counter()
            mode, hessian, steps = jax.block_until_ready(compiled(jnp.zeros(problem.dim)))
            times.append(time.perf_counter() - start)
        gap = problem.best - problem.bound(mode, np.linalg.inv(np.asarray(hessian, np.float64)))
        print(
            f"{name} + Laplace: {min(times):.4f} s ({int(steps)} steps), {times[0]:.1f} s with the compilation; {gap:.4f} nats off"
        )


def by_lbfgs(beta, X, Xy):
    """Mode, Hessian there and number of steps; until the slope is below 3, which is 1e-3 nats here."""
    import optax

    search, loss = optax.lbfgs(), partial(negative_log_posterior, X=X, Xy=Xy)
    evaluate = optax.value_and_grad_from_state(loss)

    def step(carry):
        beta, state = carry
        value, slope = evaluate(beta, state=state)
        updates, state = search.update(slope, state, beta, value=value, grad=slope, value_fn=loss)
        return optax.apply_updates(beta, updates), state

    def goes_on(carry):
        slope, count = (optax.tree.get(carry[1], name) for name in ("grad", "count"))
        return (count == 0) | ((count < 100) & (jnp.linalg.norm(slope) > 3.0))

    beta, state = jax.lax.while_loop(goes_on, step, (beta, search.init(beta)))
    return beta, derivatives(beta, X, Xy)[1], optax.tree.get(state, "count")


def by_newton(beta, X, Xy, steps: int = 6):
    """The same by Newton's method."""

    def step(_, beta):
        slope, curvature = derivatives(beta, X, Xy)
        return beta - jnp.linalg.solve(curvature, slope)

    beta = jax.lax.fori_loop(0, steps, step, beta)
    return beta, derivatives(beta, X, Xy)[1], jnp.asarray(steps)


def negative_log_posterior(beta, X, Xy):
    """Less log 2 for each row: float32 has seven digits, and the sum is near a million."""

    def add(total, x):
        return total + jnp.sum(jax.nn.softplus(jnp.matmul(x, beta, precision="highest")) - math.log(2)), None

    return jax.lax.scan(add, 0.0, X)[0] - beta @ Xy + 0.5 * beta @ beta / PRIOR_VARIANCE


def derivatives(beta, X, Xy):
    """Slope and Hessian of the negative log-posterior."""

    def add(total, x):
        p = jax.nn.sigmoid(jnp.matmul(x, beta, precision="highest"))
        slope = jnp.matmul(p, x, precision="highest")
        return (total[0] + slope, total[1] + jnp.matmul(x.T * (p * (1 - p)), x, precision="highest")), None

    d = beta.shape[0]
    slope, curvature = jax.lax.scan(add, (jnp.zeros(d), jnp.zeros((d, d))), X)[0]
    return slope - Xy + beta / PRIOR_VARIANCE, curvature + jnp.eye(d) / PRIOR_VARIANCE


def numpyro_svi(problem: Problem, most: float = 4.0) -> None:
    """NumPyro's SVI with ten particles, as it comes and with a tuned start and rate, until it is within 0.1 nats or the time is over."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

    d = problem.dim

    def model(X, y):
        beta = numpyro.sample("beta", dist.Normal(jnp.zeros(d), PRIOR_VARIANCE**0.5).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=X @ beta), obs=y)

    def falling(start: float, half_life: int):
        return numpyro.optim.Adam(lambda i: start * 0.5 ** (i / half_life))

    # The tuned ones start with standard deviations like the answer's; NumPyro's default is 0.1.
    schedules = {
        "Adam 0.01": (0.1, numpyro.optim.Adam(0.01)),
        "Adam 0.01 halved every 200 steps, start 0.003": (0.003, falling(0.01, 200)),
        "Adam 0.01 halved every 500 steps, start 0.003": (0.003, falling(0.01, 500)),
        "Adam 0.003 halved every 300 steps, start 0.003": (0.003, falling(0.003, 300)),
    }
    for kind in (AutoMultivariateNormal, AutoNormal):  # the second cannot reach the best bound
        for name, (scale, optimiser) in (
            schedules.items() if kind is AutoMultivariateNormal else [*schedules.items()][:2]
        ):
            svi = SVI(model, kind(model, init_scale=scale), optimiser, Trace_ELBO(num_particles=10))
            advance = jax.jit(
                lambda state, svi=svi: jax.lax.scan(
                    lambda s, _: svi.update(s, problem.X, problem.y), state, None, length=250
                )[0]
            )
            state = svi.init(jax.random.key(0), problem.X, problem.y)
            jax.block_until_ready(advance(state))
            spent, steps, line = 0.0, 0, {}
            while spent < most and 0.1 not in line:
                start = time.perf_counter()
                state = jax.block_until_ready(advance(state))
                spent, steps = spent + time.perf_counter() - start, steps + 250
                gap = problem.best - problem.bound(*moments(svi.get_params(state)))
                line |= {level: (spent, steps) for level in (1.0, 0.1) if gap < level and level not in line}
            reached = ", ".join(
                f"within {level:g} nats after {t:.2f} s ({n:,} steps)" for level, (t, n) in line.items()
            )
            print(
                f"NumPyro {kind.__name__}, {name}: {reached or 'never within 1 nat'}; {gap:.3f} nats off after {spent:.2f} s, {steps:,} steps"
            )


def moments(params):
    """Mean and covariance of an automatic guide."""
    if "auto_scale_tril" in params:
        factor = np.asarray(params["auto_scale_tril"], np.float64)
        return np.asarray(params["auto_loc"], np.float64), factor @ factor.T
    return np.asarray(params["beta_auto_loc"], np.float64), np.diag(
        np.asarray(params["beta_auto_scale"], np.float64) ** 2
    )


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--draws", type=int, default=1024)
    parser.add_argument("--only", choices=list(KINDS), default=None)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--peers-only", action="store_true")
    options = parser.parse_args()
    rates = measure()
    print(
        f"{jax.devices()[0].device_kind}: copy {rates.bytes / 1e12:.2f} TB/s, softplus {rates.softplus / 1e9:.0f} G/s, "
        + ", ".join(f"{k} {v / 1e12:.0f} TFLOP/s" for k, v in rates.flops.items())
    )
    problem = Problem(options.rows, options.dim)
    print(f"best bound {problem.best:.3f}")
    for kind in [] if options.peers_only else [options.only] if options.only else KINDS:
        report(problem, kind, options.draws, rates)
    print(f"peak memory {(jax.devices()[0].memory_stats() or {}).get('peak_bytes_in_use', math.nan) / 2**30:.2f} GiB")
    if options.peers_only or not options.no_peers:
        laplace(problem)
        numpyro_svi(problem)


if __name__ == "__main__":
    main()
