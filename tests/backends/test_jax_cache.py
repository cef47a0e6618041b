"""Compiled programs on the disk: a second process compiles nothing, and the user decides where they are, or that there are none."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from qbvi.backends import BackendError, find_backend

pytestmark = pytest.mark.backends

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
FIT = """
    import jax, qbvi
    hits = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
    shortest = jax.config.jax_persistent_cache_min_compile_time_secs
    method = qbvi.QBVI(n_samples=4, stop=qbvi.MaxIterations(2), n_fresh=4)
    prior = qbvi.Normal(0, 1, shape=2)
    fit = qbvi.fit(lambda b: -jax.numpy.sum(b**2, -1), prior, vectorized=True, method=method, backend="jax", seed=1)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == shortest
    print(len(hits), jax.config.jax_compilation_cache_dir, *fit.mean)
"""


@pytest.fixture(autouse=True)
def on_jax():
    try:
        find_backend("jax")
    except (ImportError, BackendError) as error:
        pytest.skip(str(error))


def fitted(**variables):
    """Hits, the folder and the mean that a process of its own prints."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "XLA_FLAGS") if name in os.environ}
    env = kept | {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCE} | variables
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FIT)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    hits, folder, *mean = done.stdout.split()
    return int(hits), folder, mean


def test_a_second_process_finds_the_programs_of_the_first(tmp_path):
    first = fitted(XDG_CACHE_HOME=str(tmp_path))
    again = fitted(XDG_CACHE_HOME=str(tmp_path))
    folder = tmp_path / "qbvi" / "jax"
    programs = [file.name for file in folder.iterdir()]
    assert first[:2] == (0, str(folder))
    assert any("qbvi_advance" in name for name in programs)
    assert again[0] >= len([name for name in programs if "qbvi_" in name and name.endswith("-cache")]) > 3
    assert again[2] == first[2]
    assert folder.stat().st_mode & 0o077 == 0


class Config:
    """What `keep_programs` reads and writes of JAX's configuration."""

    def __init__(self, folder=None, is_enabled=True):
        self.jax_compilation_cache_dir, self.jax_enable_compilation_cache = folder, is_enabled

    def update(self, name, value):
        setattr(self, name, value)


def chosen(monkeypatch, tmp_path, variable="", **options):
    """The folder that JAX is told to use."""
    from qbvi.backends import jax_cache

    config = Config(**options)
    monkeypatch.setattr(jax_cache, "jax", SimpleNamespace(config=config))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("QBVI_JAX_CACHE", variable)
    jax_cache.keep_programs.__wrapped__()
    return config.jax_compilation_cache_dir


def test_the_user_decides_where_programs_are_kept(monkeypatch, tmp_path):
    here, there = str(tmp_path / "qbvi" / "jax"), str(tmp_path / "there")
    assert chosen(monkeypatch, tmp_path) == here
    assert chosen(monkeypatch, tmp_path, there) == there
    assert chosen(monkeypatch, tmp_path, folder="own") == "own"


def test_the_user_decides_that_none_are_kept(monkeypatch, tmp_path):
    assert chosen(monkeypatch, tmp_path, "off") is None
    assert chosen(monkeypatch, tmp_path, is_enabled=False) is None
    assert not list(tmp_path.iterdir())


def test_a_folder_that_others_may_write_to_is_not_used(monkeypatch, tmp_path):
    """What is in it would be executed."""
    folder = tmp_path / "qbvi" / "jax"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert chosen(monkeypatch, tmp_path) is None
    folder.chmod(0o700)
    assert chosen(monkeypatch, tmp_path) == str(folder)


def test_a_folder_that_cannot_be_made_is_not_used(monkeypatch, tmp_path):
    (tmp_path / "qbvi").write_text("a file")
    assert chosen(monkeypatch, tmp_path) is None


def test_the_oldest_programs_make_room(tmp_path, monkeypatch):
    from qbvi.backends import jax_cache

    monkeypatch.setattr(jax_cache, "_LARGEST", 1000)
    for i in range(12):
        file = tmp_path / f"{i}-cache"
        file.write_bytes(bytes(100))
        os.utime(file, (i, i))
    jax_cache._trim(tmp_path)
    assert sorted(int(file.name.split("-")[0]) for file in tmp_path.iterdir()) == [7, 8, 9, 10, 11]
