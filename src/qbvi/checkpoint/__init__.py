"""Checkpoints: a run on the disk, resumed bit for bit, with every evaluation that was paid for."""

from qbvi.checkpoint.file import Checkpoint, Identity, Saved, read_saved, resumed_seed, write_saved
from qbvi.checkpoint.fingerprint import Fingerprint, fingerprint
from qbvi.checkpoint.journal import Answers, CheckpointError

__all__ = [
    "Answers",
    "Checkpoint",
    "CheckpointError",
    "Fingerprint",
    "Identity",
    "Saved",
    "fingerprint",
    "read_saved",
    "resumed_seed",
    "write_saved",
]
