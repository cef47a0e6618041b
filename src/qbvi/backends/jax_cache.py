"""Compiled programs on the disk: a second process does not compile what a first one has.

JAX can keep what it compiles in a folder. It does so for qbvi by default, in a folder of the user.
``QBVI_JAX_CACHE`` names another folder, or is ``off``. A folder that the user has given to JAX
(``jax_compilation_cache_dir``) stays.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import jax

__all__ = ["keep_programs", "kept"]

_VARIABLE = "QBVI_JAX_CACHE"
_OFF = {"off", "0", "no", "false"}
# Bytes above which the programs that were not used for longest are removed, down to half of it.
_LARGEST = 2**30
_SHORTEST = "jax_persistent_cache_min_compile_time_secs"


@lru_cache(maxsize=1)  # once in a process
def keep_programs() -> None:
    """Tell JAX where to keep programs, unless the user has decided otherwise."""
    is_decided = jax.config.jax_compilation_cache_dir is not None or not jax.config.jax_enable_compilation_cache
    if is_decided or os.environ.get(_VARIABLE, "").lower() in _OFF:
        return
    folder = Path(os.environ.get(_VARIABLE) or _default_folder())
    if _is_own(folder):
        _trim(folder)
        jax.config.update("jax_compilation_cache_dir", str(folder))


@contextmanager
def kept() -> Iterator[None]:
    """Context in which programs that compile quickly are kept too; JAX leaves them out."""
    before = getattr(jax.config, _SHORTEST)
    jax.config.update(_SHORTEST, 0.0)
    try:
        yield
    finally:
        jax.config.update(_SHORTEST, before)


def _default_folder() -> Path:
    """The folder for what programs may lose: by the conventions of the system."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "qbvi" / "jax"


def _is_own(folder: Path) -> bool:
    """Whether the folder exists, or can be made, and nobody else may write to it.

    What is in it will be executed.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except (OSError, RuntimeError):  # no home, no space, no permission
        return False
    if not os.access(folder, os.W_OK):
        return False
    return os.name == "nt" or (facts.st_uid == os.getuid() and not facts.st_mode & 0o022)


def _trim(folder: Path) -> None:
    """Remove the oldest programs if all of them take too much space."""
    try:
        files = [(file, file.stat()) for file in folder.iterdir() if file.is_file()]
        size = sum(facts.st_size for _, facts in files)
        if size <= _LARGEST:
            return
        for file, facts in sorted(files, key=lambda one: max(one[1].st_mtime, one[1].st_atime)):
            file.unlink(missing_ok=True)
            size -= facts.st_size
            if size <= _LARGEST / 2:
                return
    except OSError:  # another process removes them too
        return
