"""Every array test runs on every library that is here, on JAX compiled; a skip says what is missing.

The folders are those of ``src/qbvi``; ``repository`` tests what lies beside the package (README, examples, the oracles of
these tests), and ``helpers`` holds what tests import and the scripts they run, no tests.
"""

import importlib
import signal
from importlib.util import find_spec

import numpy as np
import pytest

from attacks import show_table
from libraries import BACKENDS
from oracles import data_folder

pytest.register_assert_rewrite("comparison")
collect_ignore = ["helpers"]  # scripts among them do their work, or fail, when --doctest-modules imports them

BACKEND_NAMES = {"jax", "torch", "cupy"}
PACKAGES = {"jax": "JAX", "torch": "PyTorch"}  # what `make test-backends` installs


@pytest.fixture(autouse=True)
def default_signals():
    """Ctrl-C interrupts and SIGTERM ends, here and in the processes that a test starts, whatever our parent ignores.

    A signal that is ignored stays so in every process started from there (``nohup make test &``, some CI runners).
    """
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items):
    """Mark with `backends` what needs JAX or PyTorch by its parameters, its fixtures or its examples; the rest say so themselves."""
    for item in items:
        if _needs_a_backend(item):
            item.add_marker("backends")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Fail a test that was skipped for want of JAX or PyTorch and lacks the mark by which `make test-backends` finds it."""
    report = yield
    skip = call.excinfo is not None and call.excinfo.errisinstance(pytest.skip.Exception)
    reason = str(call.excinfo.value).lower() if skip else ""
    if _names_a_package(reason) and item.get_closest_marker("backends") is None:
        report.outcome, report.longrepr = "failed", f"needs @pytest.mark.backends, for it was skipped: {reason}"
    return report


def pytest_terminal_summary(terminalreporter):
    """Show what the attacks of this run tried, and what qbvi survived."""
    show_table(terminalreporter)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # so that the line is the last one
def pytest_sessionfinish(session):
    """After a run of the whole suite: one line for what it left out, and how to have it."""
    result = yield
    config = session.config
    terminal = config.pluginmanager.get_plugin("terminalreporter")  # a worker has none
    left_out = _left_out(config.option.markexpr)
    if terminal is not None and config.args_source is config.ArgsSource.TESTPATHS and left_out:
        terminal.write_line("left out: " + ", ".join(left_out))
    return result


def _needs_a_backend(item):
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    by_parameter = any(isinstance(value, str) and value in BACKEND_NAMES for value in parameters)
    by_fixture = not {"jax", "on_jax"}.isdisjoint(getattr(item, "fixturenames", ()))
    by_example = isinstance(item, pytest.DoctestItem) and any(_names_a_package(e.source) for e in item.dtest.examples)
    return by_parameter or by_fixture or by_example


def _names_a_package(text):
    return any(package in text for package in PACKAGES)


def _left_out(selected):
    missing = [name for package, name in PACKAGES.items() if find_spec(package) is None]
    return [
        *[f"the tests of {' and '.join(missing)} (make test-backends)"] * bool(missing),
        *["the long statistical sweeps (make soak)"] * ("not soak" in selected),
        *["the paper's data (set QBVI_DATA to their folder)"] * (data_folder("QBVI_DATA", "data") is None),
    ]


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
