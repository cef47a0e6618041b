"""Every array test runs on every library that is here, on JAX compiled; a skip says what is missing."""

import importlib

import numpy as np
import pytest

BACKENDS = {
    "numpy": "array_api_compat.numpy",
    "array-api-strict": "array_api_strict",
    "jax": "jax.numpy",
    "torch": "array_api_compat.torch",
}


EAGER = [name for name in BACKENDS if name != "jax"]
on_eager_libraries = pytest.mark.parametrize("xp", EAGER, indirect=True)  # for what cannot be compiled


@pytest.fixture(params=list(BACKENDS))
def xp(request, monkeypatch):
    """The functions of one array library, with float64 as its default for the length of the test."""
    try:
        library = importlib.import_module(BACKENDS[request.param])
    except ImportError:
        pytest.skip(f"{request.param} is not installed")
    yield from _PREPARED.get(request.param, _as_it_is)(library, monkeypatch)


@pytest.fixture
def jax():
    """JAX in float64, for tests of what only JAX does."""
    library = pytest.importorskip("jax", reason="jax is not installed")
    with library.enable_x64(True):
        yield library


@pytest.fixture
def rng():
    """A generator with a fixed seed, new for each test."""
    return np.random.default_rng(20221)


def _as_it_is(library, monkeypatch):
    yield library


def _jax(library, monkeypatch):
    import jax

    from compiled import compiled, methods

    for owner, name, function in methods():
        monkeypatch.setattr(owner, name, compiled(function))
    with jax.enable_x64(True):
        yield library


def _torch(library, monkeypatch):
    before = library.get_default_dtype()
    library.set_default_dtype(library.float64)
    yield library
    library.set_default_dtype(before)


_PREPARED = {"jax": _jax, "torch": _torch}
