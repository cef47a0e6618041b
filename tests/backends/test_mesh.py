"""Several devices on JAX: the same result as on one, from arrays that really are shared."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax", reason="jax is not installed")

pytestmark = pytest.mark.backends

SHARES = {"draws": (4, 1), "data": (1, 4), "both": (2, 2)}  # of draws, of rows


@pytest.fixture(scope="module")
def found():
    """What tests/helpers/meshes.py prints."""
    settings = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    script = str(Path(__file__).parents[1] / "helpers" / "meshes.py")
    done = subprocess.run(
        [sys.executable, "-W", "error", script], check=False, capture_output=True, text=True, env=settings
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("case", "mesh"),
    [
        *(("whole", mesh) for mesh in SHARES),
        ("batches", "data"),
        *((c, "both") for c in ("batches", "one point", "host loop")),
    ],
)
def test_several_devices_come_to_the_result_of_one(found, case, mesh):
    one, several = found[case]["one"], found[case][mesh]
    assert found["devices"] == 4
    np.testing.assert_allclose(several["mean"], one["mean"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(several["cov"], one["cov"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(several["elbo"], one["elbo"], rtol=0, atol=1e-8)
    np.testing.assert_allclose(several["bounds"], one["bounds"], rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("case", "rows", "mesh"),
    [*(("whole", 64, mesh) for mesh in SHARES), ("batches", 16, "data"), ("batches", 16, "both")],
)
def test_each_device_has_its_share(found, case, rows, mesh):
    """Of the 10 draws of a step and the 50 fresh ones, which come in groups of 5 with mini-batches; shares are made equal."""
    draws, data = SHARES[mesh]
    shares = [[-(-n // draws), 3] for n in ((10, 50) if case == "whole" else (5, 10))]
    assert found[case][mesh]["local"] == {"theta": shares, "x": [[rows // data, 3]]}


def test_a_second_fit_compiles_nothing(found):
    assert found["again"] == dict.fromkeys(("one", *SHARES), 0)


def test_the_report_says_what_is_shared(found):
    assert found["whole"]["both"]["backend"] == "jax on 4 devices (cpu) sharing draws and data, float64"


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("axes", "axes named 'draws', 'data' or both, for what its devices share, got ('batch',)"),
        ("rows", "must be a multiple of the 4 devices that share them, got shape (63, 3); leave out 3 rows"),
        ("batch", "must be a multiple of the 4 devices that share them, got shape (10, 3); leave out 2 rows"),
        ("no data", "`device` shares data, but `fit` has none: pass `data`"),
        ("twice", "a list of different devices, got ['cpu:0', 'cpu:0']"),
    ],
)
def test_what_cannot_be_shared_is_refused(found, case, message):
    assert message in found["errors"][case]
