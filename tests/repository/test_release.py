"""What is released: the conda recipe and the release check follow pyproject.toml."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import qbvi

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPE = (ROOT / "conda" / "meta.yaml").read_text()


@pytest.fixture(scope="module")
def release_check():
    spec = importlib.util.spec_from_file_location("release_check", ROOT / "packaging" / "release_check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_package_says_that_it_is_typed():
    assert (Path(qbvi.__file__).parent / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_the_conda_recipe_has_the_version_and_the_dependencies():
    assert f'set version = "{qbvi.__version__}"' in RECIPE
    run = RECIPE.partition("  run:\n")[2].partition("  run_constrained:")[0]
    needed = {re.sub(r"\s", "", line.lstrip(" -")) for line in run.splitlines()}
    assert needed == {*PROJECT["dependencies"], f"python{PROJECT['requires-python']}"}


def test_every_extra_is_used_or_heavy_or_left_out_for_a_reason(release_check):
    known = {*release_check.USES, *release_check.HEAVY, *release_check.LEFT_OUT}
    assert set(PROJECT["optional-dependencies"]) <= known


def test_the_oldest_versions_are_those_of_the_project(release_check):
    pins = release_check.oldest_versions()
    assert len(pins) == len(PROJECT["dependencies"])
    assert "numpy==2.0.*" in pins
