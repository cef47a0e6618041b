"""The journal of a run: a file to which every evaluation is appended as it arrives.

A file is the name of its run, followed by records, each with its length and a checksum. Reading
passes over damaged records to the next good one, and counts the bytes that it passed over.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qbvi.conversation import Request
from qbvi.evaluate import BlackBox, Failure, Outcome
from qbvi.evaluate.calls import blocks_of
from qbvi.points import row

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Answers", "CheckpointError", "Journal"]

_FRAME = struct.Struct("<II")  # length of the record, its checksum
# Request, row, digest of the request's points, value and noise; a failure follows as JSON.
_RECORD = struct.Struct("<II16sdd")
_MOST_SEARCHED = 2**28  # bytes of checksums, so that no file can make the search for a record long
_FLIPPED = 2  # bits by which the name of a run may differ; two names differ by about 30
_in_use: dict[Path, int] = {}  # journals that are open, each with the process that opened it
_guard = threading.Lock()


class CheckpointError(ValueError):
    """A checkpoint is damaged, in use, not a checkpoint at all, or belongs to other arguments."""


@dataclass
class Answers:
    """Outcomes by request and row, of all requests since a snapshot.

    There may be several requests before the next snapshot: fresh draws come in portions. A run that
    is restored makes them all again, and finds their outcomes here. A request is identified by its
    number and a digest of its points.

    Examples
    --------
    >>> answers, request = Answers(), Request(3, np.zeros((2, 1)))
    >>> answers.add(request, {1: Outcome(-0.5, 0.0, None)})
    >>> answers.to(request)
    {1: Outcome(value=-0.5, noise_sd=0.0, failure=None)}
    >>> answers.to(Request(3, np.ones((2, 1))))
    {}
    """

    by_request: dict[int, tuple[bytes, dict[int, Outcome]]] = field(default_factory=dict)

    def add(self, request: Request, outcomes: Mapping[int, Outcome]) -> None:
        """Add outcomes of a request."""
        self._section(request.number, request.digest).update(outcomes)

    def to(self, request: Request) -> dict[int, Outcome]:
        """All outcomes known for the points of a request."""
        digest, outcomes = self.by_request.get(request.number, (b"", {}))
        return {i: _at(o, row(request.points, i)) for i, o in outcomes.items()} if digest == request.digest else {}

    def known(self, request: Request, box: BlackBox) -> dict[int, Outcome]:
        """Outcomes of a request that a black box need not compute again.

        Failures that would end the run are left out, so that they are tried again.
        """
        fine = {
            i: outcome
            for i, outcome in self.to(request).items()
            if outcome.failure is None or box.treatment(outcome.failure) != "raise"
        }
        # A vectorised call may round differently for fewer points, so a call is kept whole or not
        # at all.
        blocks = blocks_of(request.size, box.vectorized)
        return {i: fine[i] for block in blocks if all(i in fine for i in block) for i in block}

    def forget_before(self, number: int) -> None:
        """Drop the requests before this one, whose values are part of the state."""
        for old in [known for known in self.by_request if known < number]:
            del self.by_request[old]

    def records(self) -> Iterator[bytes]:
        """All outcomes as a journal holds them."""
        for number, (digest, outcomes) in self.by_request.items():
            yield from (_framed(number, i, digest, outcome) for i, outcome in outcomes.items())

    def read(self, content: bytes) -> Reading:
        """Add all good records."""
        at, end, lost, searched = 0, 0, 0, 0
        while at + _FRAME.size + _RECORD.size <= len(content) and searched < _MOST_SEARCHED:
            length, record = _record_at(content, at)
            if record is None:
                searched += length
                at += 1
                continue
            self._take(record)
            lost += at - end
            at = end = at + _FRAME.size + length
        # A crash leaves the beginning of one record; more than that, or a whole one, is damage.
        is_torn = end + _FRAME.size > len(content) or _declared(content, end) > len(content) - end - _FRAME.size
        return Reading(end, lost + (0 if is_torn else len(content) - end))

    def _take(self, record: bytes) -> None:
        number, i, digest, value, noise_sd = _RECORD.unpack_from(record)
        failure = _failure(record[_RECORD.size :])
        self._section(number, digest)[i] = Outcome(value, noise_sd, failure)

    def _section(self, number: int, digest: bytes) -> dict[int, Outcome]:
        """Outcomes of a request. Outcomes of other points under the same number are dropped."""
        if self.by_request.get(number, (b"",))[0] != digest:
            self.by_request[number] = (digest, {})
        return self.by_request[number][1]


class Reading(NamedTuple):
    """What a journal gave, in bytes."""

    end: int  # where the last good record ends
    lost: int  # bytes of damaged records

    @property
    def n_lost(self) -> int:
        """Most records that were lost: each takes at least these bytes."""
        return -(-self.lost // (_FRAME.size + _RECORD.size))


class Journal:
    """An append-only file of outcomes.

    Each outcome goes to the operating system at once, so it survives the end of the process. An
    outcome that cannot be written is kept and written with the next one.

    Parameters
    ----------
    path
        The file, which is created if it is missing and locked against other processes.
    run_id
        Name of the run, at the start of the file.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self._path = path
        self._key = _reserved(path)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
            _lock(self._file, path)
        except BaseException:
            _in_use.pop(self._key)
            raise
        self._name = run_id.encode()
        self._good = 0  # length of the file up to which all records are complete
        self._is_torn = True  # whether the file may be longer than that
        self._waiting: list[bytes] = []

    def resume(self, run_id: str) -> tuple[Answers, str]:
        """Continue the journal of a run: its outcomes, and a sentence on what was lost, if any."""
        self._name, answers = run_id.encode(), Answers()
        content = _read_all(self._file)
        if len(content) < len(self._name):
            self.restart()
            return answers, ""
        self._refuse_others(content, run_id)
        try:
            found = answers.read(content[len(self._name) :])
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            msg = f"{str(self._path)!r} is damaged: {error}; remove it, and the evaluations since the last state are paid again"
            raise CheckpointError(msg) from error
        self._good = len(self._name) + found.end
        if not found.lost:
            return answers, ""
        return answers, (
            f"{found.lost:,} bytes of the journal {str(self._path)!r} are damaged; up to {found.n_lost:,} evaluations "
            "are lost and made again"
        )

    @property
    def written(self) -> float:
        """When something was last written to the file, in seconds since the epoch."""
        return os.fstat(self._file).st_mtime

    def claim(self, *run_ids: str) -> None:
        """Refuse to write over the evaluations of a run other than these."""
        self._refuse_others(_read_all(self._file), *run_ids)

    def _refuse_others(self, content: bytes, *run_ids: str) -> None:
        name, others = content[: len(self._name)], Answers()
        if any(_differing_bits(name, run_id.encode()) <= _FLIPPED for run_id in run_ids):
            return
        others.read(content[len(self._name) :])
        n = sum(len(outcomes) for _, outcomes in others.by_request.values())
        if n or run_ids:
            msg = (
                f"{str(self._path)!r} holds {n:,} evaluations of another run than its checkpoint; "
                "move it away if you need them, remove it if not, or choose another file"
            )
            raise CheckpointError(msg)

    def restart(self) -> None:
        """Empty the journal: the state holds all its outcomes."""
        self._good, self._is_torn, self._waiting = 0, True, [self._name]
        self.flush()

    def append(self, request: Request, outcomes: Mapping[int, Outcome]) -> None:
        """Add outcomes in one write."""
        self._waiting += [_framed(request.number, i, request.digest, outcome) for i, outcome in outcomes.items()]
        self.flush()

    def flush(self) -> None:
        """Write all waiting outcomes, or leave the file as it was and raise an OSError."""
        if not self._waiting:
            return
        content = b"".join(self._waiting)
        try:
            if self._is_torn:
                os.ftruncate(self._file, self._good)
            self._is_torn = True  # until everything is written
            written = 0
            while written < len(content):
                written += _write_at(self._file, self._good + written, content[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._good)
            raise
        self._good += len(content)
        self._waiting, self._is_torn = [], False

    def sync(self) -> None:
        """Force the file to the disk, so that it survives a power failure."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file; remove it if it is empty."""
        is_empty = os.fstat(self._file).st_size == 0
        os.close(self._file)
        _in_use.pop(self._key, None)
        if is_empty:
            with contextlib.suppress(OSError):
                self._path.unlink()


def _write_at(file: int, at: int, content: bytes) -> int:
    os.lseek(file, at, os.SEEK_SET)
    return os.write(file, content)


def _read_all(file: int) -> bytes:
    """The content of a file, as long as the system says it is: a device may have no end."""
    os.lseek(file, 0, os.SEEK_SET)
    left, parts = os.fstat(file).st_size, [b""]
    while left > 0:
        parts.append(os.read(file, min(left, 2**24)))
        left = left - len(parts[-1]) if parts[-1] else 0
    return b"".join(parts)


def _record_at(content: bytes, at: int) -> tuple[int, bytes | None]:
    """Length of the record that begins here, and the record; None if it is not a good one."""
    length = _declared(content, at)
    if length < _RECORD.size or at + _FRAME.size + length > len(content):
        return 0, None
    record = content[at + _FRAME.size : at + _FRAME.size + length]
    return length, record if zlib.crc32(record) == _FRAME.unpack_from(content, at)[1] else None


def _declared(content: bytes, at: int) -> int:
    return int(_FRAME.unpack_from(content, at)[0])


def _differing_bits(one: bytes, other: bytes) -> int:
    """Bits that differ between two names of runs."""
    return (int.from_bytes(one, "little") ^ int.from_bytes(other, "little")).bit_count()


def _reserved(path: Path) -> Path:
    """Reserve a journal for one thread of this process; locks of files are for processes alone."""
    key = path.resolve()
    with _guard:
        if _in_use.get(key) == os.getpid():  # a forked process inherits entries that are not its own
            msg = f"{str(path)!r} is in use by another fit of this process; wait for it, or choose another file"
            raise CheckpointError(msg)
        _in_use[key] = os.getpid()
    return key


def _lock(file: int, path: Path) -> None:
    """Lock the journal, or raise if another process holds it.

    The system unlocks it when a process ends.
    """
    if fcntl is None:
        return
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        os.close(file)
        msg = f"{str(path)!r} is in use by another process that runs the same checkpoint; wait for it, or choose another file"
        raise CheckpointError(msg) from error
    except OSError:  # a file system without locks
        return


def _framed(number: int, i: int, digest: bytes, outcome: Outcome) -> bytes:
    record = _RECORD.pack(number, i, digest, outcome.value, outcome.noise_sd)
    if outcome.failure is not None:
        words = {f.name: getattr(outcome.failure, f.name) for f in fields(Failure) if f.name != "parameters"}
        record += json.dumps(words).encode()
    return _FRAME.pack(len(record), zlib.crc32(record)) + record


def _failure(content: bytes) -> Failure | None:
    """A failure without its parameters, which come from the request."""
    if not content:
        return None
    words: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(content).items()}
    return Failure(np.empty(0), **words)


def _at(outcome: Outcome, point: Any) -> Outcome:
    if outcome.failure is None:
        return outcome
    words = {f.name: getattr(outcome.failure, f.name) for f in fields(Failure) if f.name != "parameters"}
    return outcome._replace(failure=Failure(point, **words))
