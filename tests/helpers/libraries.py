"""The array libraries that every array test runs on, by the name of their namespace."""

import pytest

BACKENDS = {
    "numpy": "array_api_compat.numpy",
    "array-api-strict": "array_api_strict",
    "jax": "jax.numpy",
    "torch": "array_api_compat.torch",
}


EAGER = [name for name in BACKENDS if name != "jax"]
on_eager_libraries = pytest.mark.parametrize("xp", EAGER, indirect=True)  # for what cannot be compiled
