"""What `import qbvi` and a first fit load: heavy modules wait until something uses them."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
import qbvi
imported = sorted(sys.modules)
qbvi.fit(lambda x: -0.5 * float(((x - 1) ** 2).sum()), qbvi.Normal(0, 3, shape=3), seed=1)
qbvi.fit(lambda x: -0.5 * float(((x - 1) ** 2).sum()), qbvi.Normal(0, 3, shape=3), family="full", seed=1)
print(json.dumps([imported, sorted(sys.modules)]))
"""
NEVER_BY_ITSELF = {"arviz_stats", "asyncio", "emcee", "matplotlib", "pandas", "scipy.optimize", "scipy.stats", "xarray"}
ON_FIRST_USE = {
    "array_api_compat.numpy",
    "numpy.f2py",
    "numpy.testing",
    "scipy.linalg",
    "scipy.spatial",
    "scipy.special",
}


@pytest.fixture(scope="module")
def loaded() -> list[set[str]]:
    printed = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    return [set(names) for names in json.loads(printed)]


def test_import_loads_no_heavy_module(loaded):
    assert not loaded[0] & (NEVER_BY_ITSELF | ON_FIRST_USE)


def test_a_default_fit_loads_only_what_it_computes_with(loaded):
    assert {"scipy.linalg", "scipy.special"} <= loaded[1]
    assert not loaded[1] & NEVER_BY_ITSELF
