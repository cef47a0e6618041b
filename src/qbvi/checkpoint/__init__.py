"""Checkpoints: a run on the disk, which resumes bit for bit and repeats no evaluation."""

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
