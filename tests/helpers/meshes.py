"""Fits on four devices, virtual ones of the CPU, and what they were given: printed as JSON.

A script, because how many devices a CPU pretends to be is settled when JAX starts.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np

import qbvi
from qbvi.backends import BackendError
from qbvi.stopping import MaxIterations

N, D = 64, 3
rng = np.random.default_rng(0)
X = rng.standard_normal((N, D))
Y = (rng.random(N) < 0.5).astype(np.float64)
METHOD = qbvi.QBVI(n_samples=10, stop=(MaxIterations(20),), n_fresh=50)  # neither is a multiple of four
local = {"theta": set(), "x": set()}  # shapes that a device has of what the function is given


class Likelihood:
    """Logistic regression that notes how its arguments are laid out over the devices."""

    def __call__(self, theta, batch):
        x, y = batch
        for name, array in {"theta": theta, "x": x}.items():
            note = lambda sharding, name=name, shape=array.shape: local[name].add(sharding.shard_shape(shape))
            jax.debug.inspect_array_sharding(array, callback=note)
        eta = theta @ x.T
        return eta @ y - jnp.sum(jnp.logaddexp(eta, 0.0), axis=-1)


def one_point(theta, batch):
    x, y = batch
    return jnp.dot(x @ theta, y) - jnp.sum(jnp.logaddexp(x @ theta, 0.0))


class Compilations:
    """Counts what the compiler is asked for."""

    def __init__(self):
        self.number = 0
        jax.monitoring.register_event_duration_secs_listener(self)

    def __call__(self, event, seconds, **_):
        self.number += event.endswith("backend_compile_duration")


likelihood, compilations = Likelihood(), Compilations()


def fit(device, function=likelihood, **options):
    options = {"method": METHOD, "vectorized": True, "data": (X, Y), **options}
    return qbvi.fit(function, qbvi.Normal(0, 2, shape=D), backend="jax", device=device, seed=1, **options)


def told(post):
    numbers = {"mean": post.mean, "cov": post.cov, "elbo": post.elbo, "bounds": post.trace.elbo}
    return {name: np.asarray(value).tolist() for name, value in numbers.items()} | {"backend": post.record.backend}


def run(device, **options):
    for shapes in local.values():
        shapes.clear()
    return told(fit(device, **options)) | {"local": {name: sorted(shapes) for name, shapes in local.items()}}


def error_of(**options):
    try:
        fit(**options)
    except BackendError as error:
        return str(error)


MESHES = {
    "one": "cpu:0",
    "draws": jax.devices(),
    "data": jax.make_mesh((4,), ("data",)),
    "both": jax.make_mesh((2, 2), ("draws", "data")),
}
CASES = {  # meshes, and options
    "whole": (["one", "draws", "data", "both"], {}),
    "batches": (["one", "data", "both"], {"batch_size": 16, "family": "diagonal"}),
    "one point": (["one", "both"], {"function": one_point, "vectorized": False, "family": "diagonal"}),
    "host loop": (["one", "both"], {"method": qbvi.Regression(), "max_evals": 60}),
}


def again(device):
    """What a second fit compiles."""
    before = compilations.number
    fit(device)
    return compilations.number - before


found = {case: {name: run(MESHES[name], **options) for name in names} for case, (names, options) in CASES.items()}
found["again"] = {name: again(mesh) for name, mesh in MESHES.items()}
found["devices"] = len(jax.devices())
found["errors"] = {
    "axes": error_of(device=jax.make_mesh((4,), ("batch",))),
    "rows": error_of(device=MESHES["data"], data=(X[:-1], Y[:-1])),
    "batch": error_of(device=MESHES["data"], batch_size=10),
    "no data": error_of(device=MESHES["data"], data=None, function=lambda theta: -jnp.sum(theta**2, -1)),
    "twice": error_of(device=["cpu:0", "cpu:0"]),
}
print(json.dumps(found))
