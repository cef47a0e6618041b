"""The same fit by every array library that is here, on its GPU and on the CPU: same seed, same draws, how far apart.

Run: ``python benchmarks/gpu/agreement.py``.
"""

from __future__ import annotations

import importlib
import time

import numpy as np

import qbvi

RNG = np.random.default_rng(7)
X = RNG.standard_normal((500, 6))
Y = RNG.random(500) < 1 / (1 + np.exp(-X @ np.array([1.0, -1.0, 0.5, 0.0, 2.0, -0.5])))
PLACES = [("numpy", None), ("jax", "cpu"), ("jax", "gpu"), ("torch", "cpu"), ("torch", "cuda"), ("cupy", None)]
METHODS = {
    "Ridge": {"method": qbvi.Ridge()},
    "QBVI": {"method": qbvi.QBVI(stop=qbvi.MaxIterations(200))},
    "low rank": {"family": qbvi.LowRank(rank=2)},
}


def function_of(backend: str, device: str | None):
    """The log-likelihood with data where the fit is: (S, 6) -> (S,)."""
    if backend == "torch":
        import torch

        x, y = (torch.as_tensor(part, dtype=torch.float64, device=device) for part in (X, Y))
        return lambda beta: torch.sum(y * (beta @ x.T) - torch.nn.functional.softplus(beta @ x.T), axis=1)
    xp = importlib.import_module({"jax": "jax.numpy"}.get(backend, backend))
    if backend == "cupy":
        x, y = xp.asarray(X), xp.asarray(Y, dtype=float)
    else:
        x, y = X, Y.astype(float)  # NumPy arrays become part of JAX's program, in the fit's precision
    return lambda beta: xp.sum(y * (beta @ x.T) - xp.logaddexp(0.0, beta @ x.T), axis=1)


def main() -> None:
    """Print the table."""
    prior = qbvi.Normal(0, 5**0.5, shape=6)
    for name, chosen in METHODS.items():
        reference = None
        for backend, device in PLACES:
            try:
                function = function_of(backend, device)
                options = {"vectorized": True, "backend": backend, "device": device, "seed": 3} | chosen
                qbvi.fit(function, prior, **options)
                start = time.perf_counter()
                fit = qbvi.fit(function, prior, **options)
            except (ImportError, ValueError, RuntimeError, AssertionError) as error:
                print(f"{name:8s} {backend:6s} {device or '':5s} not here: {str(error)[:100]}")
                continue
            spent = time.perf_counter() - start
            reference = reference or fit
            apart = max(np.abs(fit.mean - reference.mean).max(), np.abs(fit.cov - reference.cov).max())
            print(
                f"{name:8s} {fit.record.backend:40s} {spent:7.3f} s, {fit.n_evals:6,} evaluations, from NumPy's {apart:.1e}"
            )


if __name__ == "__main__":
    main()
