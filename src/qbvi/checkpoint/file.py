"""The state of a run in one file, and the evaluations since then in a journal beside it."""

from __future__ import annotations

import os
import platform
import secrets
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from qbvi import archive
from qbvi._version import __version__
from qbvi.archive import PathLike
from qbvi.arguments import as_seed
from qbvi.arrays import to_numpy
from qbvi.checkpoint.fingerprint import Fingerprint
from qbvi.checkpoint.journal import Answers, CheckpointError, Journal
from qbvi.checkpoint.tree import Reader, Writer
from qbvi.conversation import Request, Snapshot, Unconstrained
from qbvi.evaluate import Evaluated, Outcome
from qbvi.evaluate.calls import blocks_of
from qbvi.families import Family
from qbvi.naming import pick
from qbvi.run import Run

__all__ = ["Checkpoint", "CheckpointError", "Identity", "Saved", "read_saved", "resumed_seed", "write_saved"]

SCHEMA = 2
_FORMAT = "qbvi-checkpoint"
_STATES = 0.04  # fraction of the run's time that writing states may take
_SYNCS = 0.01  # fraction of it that forcing the journal to the disk may take
_RESPONSES = dict.fromkeys(("raise", "keep", "re-evaluate"))


@dataclass(frozen=True)
class Saved:
    """The contents of a checkpoint."""

    path: Path
    run_id: str
    seed: int
    digests: Mapping[str, str]  # fingerprints by name
    python: str
    setup: Mapping[str, Any]  # further settings of the writer, as plain data
    tree: Any
    arrays: Mapping[str, NDArray[Any]]
    answers: Answers

    def read(self, what: str, kind: type, method: Any = None) -> Any:
        """Rebuild one of the values written.

        Its classes may come from qbvi and, if a ``method`` is given, from the package of that
        method.
        """
        own = type(method).__module__.split(".")[0]
        try:
            value = Reader(self.arrays, {"qbvi"} if method is None else {"qbvi", own}).read(self.tree[what])
        except Exception as error:
            raise CheckpointError(self.inconsistent(error)) from error
        if not isinstance(value, kind):
            raise CheckpointError(self.inconsistent(f"{what} is a {type(value).__name__}"))
        return value

    def restore(self, run: Run) -> int:
        """Restore the state of a run; return the number of its next request."""
        snapshot: Snapshot = self.read("snapshot", Snapshot, run.algorithm)
        try:
            run.restore(snapshot)
        except Exception as error:
            raise CheckpointError(self.inconsistent(error)) from error
        return snapshot.number

    def inconsistent(self, reason: object) -> str:
        """The message of an error about contents that contradict each other."""
        return f"{str(self.path)!r} is a checkpoint, but its contents do not fit together: {reason}"


class Identity(NamedTuple):
    """The run to which a checkpoint belongs."""

    run_id: str
    seed: int
    digests: Mapping[str, str]


def write_saved(
    path: PathLike,
    identity: Identity,
    values: Mapping[str, Any],
    setup: Mapping[str, Any] | None = None,
    answers: Answers | None = None,
) -> None:
    """Write a checkpoint, completely or not at all."""
    writer = Writer()
    header = {
        "format": _FORMAT,
        "schema": SCHEMA,
        "written_by": __version__,
        "python": platform.python_version(),
        **identity._asdict(),
        "setup": setup or {},
        "tree": {name: writer.write(value) for name, value in values.items()},
    }
    records = b"".join(answers.records() if answers is not None else ())
    arrays = {f"numbers_{dtype}": array for dtype, array in writer.arrays().items()}
    archive.write(path, header, {**arrays, "answers": np.frombuffer(records, dtype=np.uint8)})


def read_saved(path: PathLike) -> Saved:
    """Read a checkpoint without running any code from it."""
    path = Path(path)
    header, arrays = _read_archive(path)
    answers = Answers()
    try:
        answers.read(arrays["answers"].tobytes())
        numbers = {name.removeprefix("numbers_"): array for name, array in arrays.items() if name != "answers"}
        words = {name: header[name] for name in ("run_id", "seed", "digests", "python", "setup", "tree")}
        if (
            not all(isinstance(words[name], dict) for name in ("digests", "setup", "tree"))
            or type(words["seed"]) is not int
        ):
            raise TypeError
        return Saved(path, **words, arrays=numbers, answers=answers)
    except Exception as error:
        msg = f"{str(path)!r} is a checkpoint, but it is damaged; remove it and its journal to begin anew"
        raise CheckpointError(msg) from error


def resumed_seed(seed: Any, path: PathLike | None) -> int:
    """The seed of the user, else that of the checkpoint if there is one, else a new one."""
    if seed is None and path is not None and Path(path).exists():
        return read_saved(path).seed
    return as_seed(seed)


def _read_archive(path: Path) -> tuple[dict[str, Any], archive.Arrays]:
    try:
        header, arrays = archive.read(path)
    except archive.ForeignFileError as error:
        raise CheckpointError(_not_ours(path)) from error
    except ValueError as error:
        msg = f"{error}; remove it and its journal to begin anew"
        raise CheckpointError(msg) from error
    if header.get("format") != _FORMAT:
        raise CheckpointError(_not_ours(path))
    if header.get("schema") != SCHEMA:
        msg = f"{str(path)!r} has schema {header.get('schema')}, written by qbvi {header.get('written_by')}; this version reads schema {SCHEMA}"
        raise CheckpointError(msg)
    return header, arrays


class Checkpoint:
    """Keeps a run on the disk; pass `answer` to `qbvi.conversation.drive`.

    The state is written at the end, and after a step if all writing then stays below a twentieth of
    the run's time. The journal holds all evaluations since the last state. A resumed run repeats
    the steps since that state with the values of the journal, so no evaluation is made twice. If
    the disk fails or is full, the last good file remains and the run continues.

    Parameters
    ----------
    path
        The file; its journal has the same name with ``.journal`` at the end.
    run
        The run to keep.
    given
        Fingerprints of the arguments of the run.
    on_mismatch
        What to do if the file belongs to other arguments: ``"raise"`` an error, ``"keep"`` its
        state, or ``"re-evaluate"``: start from its posterior with new evaluations.
    """

    def __init__(self, path: PathLike, run: Run, given: Mapping[str, Fingerprint], on_mismatch: str = "raise") -> None:
        pick("on_mismatch", on_mismatch, _RESPONSES)
        self.path, self._run, self._given, self._on_mismatch = Path(path), run, given, on_mismatch
        self._identity = Identity(secrets.token_hex(8), run.seed, _digests(given))
        self._answers = Answers()  # of the interrupted run, to requests that will come again
        self._journal = Journal(_journal_of(self.path), self._identity.run_id)
        self._is_ours = False  # whether the file holds this run already
        self._is_warned = False
        self._is_cut = False  # whether the time was over before the last request was answered
        self._states, self._syncs = _Ration(_STATES), _Ration(_SYNCS)
        run.on_turn = self._turned

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            self._try(self._journal.flush)
            self._try(self._journal.sync)
        self._journal.close()

    def begin(self, init: Any) -> Any:
        """Restore the run from the file, if there is one; return the start of the run."""
        for name in (name for one in self._given.values() for name in one.unknown):
            self._run.remark(f"whether the {name} is the same when the checkpoint is resumed cannot be told")
        if self.path.exists():
            return self._resumed(read_saved(self.path), init)
        self._journal.claim()
        return init

    def known(self, request: Request) -> dict[int, Outcome]:
        """Outcomes of a request that the journal holds, and that need not be computed again."""
        if not self._answers.to(request) and request.number in self._answers.by_request:
            _, unused = self._answers.by_request.pop(request.number)
            self._run.remark(f"{len(unused)} evaluations of the checkpoint were for points that are not needed again")
        return self._answers.known(request, self._run.black_box)

    def note(self, request: Request, outcomes: Mapping[int, Outcome]) -> None:
        """Write new outcomes to the journal."""
        self._try(lambda: self._journal.append(request, outcomes))

    def answer(self, request: Request) -> Evaluated:
        """Evaluate all unknown points, and write each value to the journal as it arrives."""
        if not self._run.backend.is_host:  # values that stay on a device are not written
            return self._run.evaluate(request)
        box, known = self._run.black_box, self.known(request)
        blocks = [{i for i in block if i not in known} for block in blocks_of(request.size, box.vectorized)]
        awaited = {i: block for block in blocks for i in block}
        arrived: dict[int, Outcome] = {}

        def on_done(i: int, outcome: Outcome) -> None:
            arrived[i] = outcome
            awaited[i].discard(i)
            if not awaited[i]:  # all points of one call in one write
                self.note(request, arrived)
                arrived.clear()

        evaluations = box(request.points, *request.batch, scale=request.scale, known=known, on_done=on_done)
        self._is_cut = evaluations.rows is not None
        return evaluations

    def _turned(self, is_last: bool) -> None:
        if not self._is_ours:
            # Before any evaluation, so that a wrong path is reported at once.
            self._states.timed(self._write)
            self._is_ours = True
        elif is_last or self._states.is_due():
            self._try(lambda: self._states.timed(self._write))
        elif self._syncs.is_due():
            self._try(lambda: self._syncs.timed(self._journal.sync))

    def _write(self) -> None:
        snapshot = self._run.snapshot()
        write_saved(self.path, self._identity, {"snapshot": snapshot, "family": self._run.family})
        self._answers.forget_before(snapshot.number)
        # Otherwise the journal holds values for requests that are still to come.
        if not self._answers.by_request and not self._is_cut:
            self._journal.restart()

    def _try(self, write: Callable[[], None]) -> None:
        """Write; if the disk fails, warn once and continue the run."""
        try:
            write()
        except OSError as error:
            if not self._is_warned:
                self._is_warned = True
                msg = f"the checkpoint {str(self.path)!r} could not be written ({error}); the fit goes on, and its last good state stays there"
                warnings.warn(msg, RuntimeWarning, stacklevel=2)
                self._run.remark(msg)

    def _resumed(self, saved: Saved, init: Any) -> Any:
        changed = _changed(self._identity.digests, saved.digests)
        if changed and self._on_mismatch == "raise":
            raise CheckpointError(_mismatch(saved, changed))
        if changed and self._on_mismatch == "re-evaluate":
            return self._start_from(saved)
        run, snapshot = self._run, saved.read("snapshot", Snapshot, self._run.algorithm)
        state = run.algorithm.init(run.family, run.family.start(*run.model.initial()))
        if saved.read("family", Family) != run.family or type(snapshot.state) is not type(state):
            msg = f"{str(self.path)!r} holds a state of another family or method, which this one cannot keep; pass on_mismatch='re-evaluate' to start from its posterior"
            raise CheckpointError(msg)
        saved.restore(run)
        self._identity = self._identity._replace(run_id=saved.run_id)
        self._is_ours = not changed  # else the file must get the new fingerprints
        # The journal was last written when the last evaluation arrived.
        run.count_time(max(self._journal.written - os.stat(self.path).st_mtime, 0.0))
        self._answers, lost = self._journal.resume(saved.run_id)
        if lost:
            run.remark(lost)
        self._answers.forget_before(snapshot.number)
        return init

    def _start_from(self, saved: Saved) -> Unconstrained:
        family, snapshot = saved.read("family", Family), saved.read("snapshot", Snapshot, self._run.algorithm)
        if family.dim != self._run.family.dim:
            msg = f"{str(self.path)!r} holds a posterior of {family.dim} coordinates, the prior has {self._run.family.dim}: choose another file"
            raise CheckpointError(msg)
        self._journal.claim(saved.run_id)
        try:
            return Unconstrained(to_numpy(family.mean(snapshot.state.q)), to_numpy(family.cov(snapshot.state.q)))
        except Exception as error:
            raise CheckpointError(saved.inconsistent(error)) from error


@dataclass
class _Ration:
    """Allows an action again once its last cost is at most ``share`` of the time since."""

    share: float
    cost: float = 0.0
    ended: float = field(default_factory=time.perf_counter)

    def is_due(self) -> bool:
        return self.share * (time.perf_counter() - self.ended) >= self.cost

    def timed(self, act: Callable[[], None]) -> None:
        start = time.perf_counter()
        try:
            act()
        finally:
            self.ended = time.perf_counter()
            self.cost = self.ended - start


def _digests(given: Mapping[str, Fingerprint]) -> dict[str, str]:
    return {name: digest for one in given.values() for name, digest in one.digests.items()}


def _changed(now: Mapping[str, str], then: Mapping[str, str]) -> list[str]:
    return [name for name in {**now, **then} if now.get(name) != then.get(name)]


def _mismatch(saved: Saved, changed: list[str]) -> str:
    python = platform.python_version()
    newer = (
        ""
        if saved.python == python
        else f" (it was written under Python {saved.python}, this is {python}, which changes the code of functions)"
    )
    return (
        f"{str(saved.path)!r} was made with something else; what differs: {'; '.join(changed)}{newer}. To go on from it as if nothing had changed pass "
        "on_mismatch='keep', to start from its posterior but evaluate anew on_mismatch='re-evaluate', or choose another file"
    )


def _journal_of(path: Path) -> Path:
    return path.with_name(path.name + ".journal")


def _not_ours(path: Path) -> str:
    return f"{str(path)!r} is not a checkpoint of qbvi; choose another file, or remove it"
