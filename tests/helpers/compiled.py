"""On JAX the tests call compiled code: public methods of the core go through `jax.jit` wherever they are given JAX arrays.

`methods` lists what is replaced for the length of a test on JAX. The tests themselves stay as they are for every other library.
"""

import functools
import inspect

import jax

from qbvi import estimators, steps, updates
from qbvi.algorithm import QBVI
from qbvi.distributions import Distribution
from qbvi.families import GaussianFamily
from qbvi.families.product import Product
from qbvi.model import Model, Parameter
from qbvi.regression import Ridge
from qbvi.supports import Support

ON_THE_HOST = {
    "ask": "draws come from a generator, which is no array",
    "embed": "asked once, when a fit is set up: whether the family can carry the prior depends on its numbers",
}
_ARRAY = object()  # stands for an array among the arguments that compiled code takes as constants


def compiled(function):
    """The same function, compiled, with arguments that are no JAX arrays as constants; as it is without JAX arrays."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        if not arrays or any(isinstance(array, jax.core.Tracer) for array in arrays):  # within compiled code already
            return function(*args, **kwargs)
        constants = tuple(_ARRAY if isinstance(leaf, jax.Array) else leaf for leaf in leaves)
        return _run(function, tree, constants, arrays)

    return call


def methods():
    """Every method that is compiled: (class, name, function)."""
    for owner in _classes():
        for name, function in vars(owner).items():
            if inspect.isfunction(function) and _is_public(name) and not _is_on_the_host(owner, name):
                yield owner, name, function


@functools.partial(jax.jit, static_argnums=(0, 1, 2))  # one cache for all tests of a process
def _run(function, tree, constants, arrays):
    rest = iter(arrays)
    args, kwargs = jax.tree.unflatten(tree, [next(rest) if leaf is _ARRAY else leaf for leaf in constants])
    return function(*args, **kwargs)


def _classes():
    parts = [getattr(module, name) for module in (estimators, steps, updates) for name in module.__all__]
    callables = [part for part in parts if inspect.isclass(part)]
    trees = [kind for root in (GaussianFamily, Support, Distribution) for kind in _with_subclasses(root)]
    return dict.fromkeys([*callables, *trees, *GaussianFamily.__mro__, Product, Model, Parameter, QBVI, Ridge])


def _with_subclasses(root):
    return [root, *(kind for child in root.__subclasses__() for kind in _with_subclasses(child))]


def _is_public(name):
    return not name.startswith("_") or name == "__call__"


def _is_on_the_host(owner, name):
    return name in ON_THE_HOST or (owner is Model and name == "unconstrain")  # which checks the user's values
