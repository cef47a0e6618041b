"""Start a server script of UM-Bridge on a free port of the loopback, and wait until it answers."""

import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@contextmanager
def served(script, port, *args):
    """The address of a server process, which ends with the block."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process, url = subprocess.Popen([sys.executable, str(script), *args], **quiet), f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/Info", timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, "the server has ended"
                time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()
