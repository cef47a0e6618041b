"""Every array test runs on every backend that is here; a skip says what is missing."""

import importlib

import numpy as np
import pytest

BACKENDS = {"numpy": "array_api_compat.numpy", "array-api-strict": "array_api_strict"}


@pytest.fixture(params=list(BACKENDS))
def xp(request):
    """The functions of one array library."""
    name = BACKENDS[request.param]
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"{request.param} is not installed")


@pytest.fixture
def rng():
    """A generator with a fixed seed, new for each test."""
    return np.random.default_rng(20221)
