"""Files of arrays and one JSON header, in a ``.npz``.

They are written as a whole or not at all. Reading runs no code and trusts no size in the file.
"""

from __future__ import annotations

import contextlib
import glob
import io
import json
import math
import os
import secrets
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Arrays", "ForeignFileError", "PathLike", "read", "write"]

try:
    import fcntl
except ImportError:  # Windows, where a file in use cannot be removed
    fcntl = None  # type: ignore[assignment]

Arrays = dict[str, NDArray[Any]]
PathLike = str | os.PathLike[str]

_HEADER = "header"
_LONGEST_NAME = 4096  # bytes of an array's own header; qbvi writes shorter ones
_STALE = 60.0  # seconds after which an unfinished file that nobody writes is removed


class ForeignFileError(ValueError):
    """The file is intact, but qbvi did not write it."""


def write(path: PathLike, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a temporary file beside ``path``, force it to disk, then rename it to ``path``.

    Whatever happens, ``path`` is the old file or the whole new one. Temporary files that killed
    processes left for the same ``path`` are removed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/file", {"format": "ours"}, {"x": np.ones(2)})
    ...     read(f"{folder}/file")
    ({'format': 'ours'}, {'x': array([1., 1.])})
    """
    path = Path(path)
    _refuse_objects(arrays)
    words = np.frombuffer(json.dumps(header, allow_nan=False).encode(), dtype=np.uint8)
    contents: dict[str, Any] = {_HEADER: words, **arrays}
    _remove_stale(path)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            _try_lock(file.fileno())
            np.savez(file, **contents)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: PathLike) -> tuple[dict[str, Any], Arrays]:
    """Return header and arrays.

    Nothing is unpickled. Reading takes no more memory than the file has bytes, whatever sizes it
    declares, because qbvi does not compress.

    Raises
    ------
    ForeignFileError
        If the file is not an archive with a JSON header.
    ValueError
        If the file is damaged or malicious.
    """
    path = Path(path)
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise ForeignFileError(str(path))
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                _refuse_bombs(members, path.stat().st_size)
                arrays = {member.filename.removesuffix(".npy"): _array(archive.read(member)) for member in members}
        # The bytes of a stranger's file can raise any error in the libraries that read them.
        except Exception as error:
            msg = f"{str(path)!r} cannot be read: {error}; it was cut short, damaged, or not written by qbvi.save"
            raise ValueError(msg) from error
    return _words(arrays.pop(_HEADER, None), path), arrays


def _refuse_bombs(members: list[zipfile.ZipInfo], file_size: int) -> None:
    packed = [member.filename for member in members if member.compress_type != zipfile.ZIP_STORED]
    if packed:
        msg = f"{packed[0]!r} is compressed"
        raise ValueError(msg)
    declared = sum(member.file_size for member in members)
    if declared > file_size:
        msg = f"it declares {declared:,} bytes of arrays in a file of {file_size:,}"
        raise ValueError(msg)


def _array(content: bytes) -> NDArray[Any]:
    """Read one ``.npy``; its shape and dtype must match the number of bytes exactly."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        msg = f"an array has format {version}"
        raise ValueError(msg)
    shape, in_columns, dtype = readers[version](stream, max_header_size=_LONGEST_NAME)
    if dtype.hasobject:
        msg = "an array holds Python objects"
        raise ValueError(msg)
    if math.prod(shape) * dtype.itemsize != len(content) - stream.tell():
        msg = f"an array of shape {shape} has {len(content) - stream.tell():,} bytes"
        raise ValueError(msg)
    flat = np.frombuffer(content, dtype=dtype, offset=stream.tell())
    return flat.reshape(shape, order="F" if in_columns else "C").copy()


def _refuse_objects(arrays: Mapping[str, Any]) -> None:
    """Refuse arrays of objects, which would be pickled.

    `numpy.savez` refuses them itself from NumPy 2.1 on; NumPy 2.0 has no such option.
    """
    objects = [name for name, array in arrays.items() if np.asarray(array).dtype.hasobject]
    if objects:
        msg = f"`arrays` must hold numbers, got objects in {objects[0]!r}"
        raise ValueError(msg)


def _remove_stale(path: Path) -> None:
    """Remove the unfinished files of ``path`` that no process is writing."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.partial"):
        with contextlib.suppress(OSError):
            if time.time() - partial.stat().st_mtime > _STALE and _is_free(partial):
                partial.unlink()


def _is_free(partial: Path) -> bool:
    with partial.open("rb") as file:
        return _try_lock(file.fileno())


def _try_lock(file: int) -> bool:
    """Lock a file until it is closed; False if somebody else has locked it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: only the age of the file counts
        return True
    return True


def _words(header: NDArray[Any] | None, path: Path) -> dict[str, Any]:
    try:
        words = json.loads((np.empty(0) if header is None else header).tobytes())
    except (ValueError, RecursionError) as error:
        raise ForeignFileError(str(path)) from error
    if not isinstance(words, dict):
        raise ForeignFileError(str(path))
    return words
