"""A Gaussian log-likelihood with an exact posterior that goes wrong at chosen points, in any process alike; nothing heavy is imported here."""

import os
import subprocess
import time
import zlib

import numpy as np


class Target:
    """log N(y | X theta, I) and its posterior under N(1, 2^2): closed form."""

    def __init__(self, d=3, n=20):
        rng = np.random.default_rng(11)
        self.x, self.y = rng.standard_normal((n, d)), rng.standard_normal(n)
        self.cov = np.linalg.inv(self.x.T @ self.x + np.eye(d) / 4)
        self.mean = self.cov @ (self.x.T @ self.y + np.ones(d) / 4)

    def __call__(self, theta):
        return -0.5 * np.sum((self.y - self.x @ theta) ** 2)


class Faulty(Target):
    """The target, and what happens instead at a share of the points; which ones, their bytes decide."""

    def __init__(self, what, percent, log=None):
        super().__init__()
        self.what, self.percent, self.log = what, percent, log

    def is_bad(self, theta):
        return zlib.crc32(np.ascontiguousarray(theta, dtype=np.float64).tobytes()) % 1000 < 10 * self.percent

    def __call__(self, theta):
        if self.log is not None:
            with open(self.log, "a") as file:
                file.write(f"{os.getpid()}\n")
        if self.is_bad(theta):
            return FAULTS[self.what](theta)
        return super().__call__(theta)


class LateFault(Faulty):
    """Fails once the search has come near the answer: not in the first step."""

    def __init__(self, what):
        super().__init__(what, 100)

    def is_bad(self, theta):
        return np.sum((theta - self.mean) ** 2) < 0.3


class FailsOnce(Target):
    """The target; the first call at every other point fails, in whatever process it is made."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def __call__(self, theta):
        key = zlib.crc32(np.ascontiguousarray(theta, dtype=np.float64).tobytes())
        path = os.path.join(self.folder, str(key))
        if key % 2 and not os.path.exists(path):
            open(path, "w").close()
            msg = "node lost"
            raise ConnectionError(msg)
        return super().__call__(theta)


def raise_value_error(theta):
    msg = "no root"
    raise ValueError(msg)


def exit_later(theta):
    """Die a moment after the call began: a Dask nanny does not replace a worker that dies while it starts."""
    time.sleep(1.0)
    os._exit(3)


FAULTS = {
    "nan": lambda theta: np.nan,
    "raise": raise_value_error,
    "abort": lambda theta: os.abort(),
    "exit": lambda theta: os._exit(3),
    "exit-later": exit_later,
    "hang": lambda theta: time.sleep(1000),
}


def is_alive(pid):
    """Whether a process exists and has not ended."""
    if not os.path.isdir("/proc/self"):  # not Linux: one that ended and was not waited for counts as alive
        return subprocess.run(["kill", "-0", str(pid)], check=False, capture_output=True).returncode == 0
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended before the file was opened, or while it was read
        return False


def wait_until_gone(pids, seconds=120.0):
    """Return those still there after so many seconds, at once if there are none."""
    end = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return [pid for pid in pids if is_alive(pid)]
