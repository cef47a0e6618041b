"""A posterior behind UM-Bridge, by emcee and by qbvi: calls, seconds, moments.

``python benchmarks/from_umbridge.py`` prints the table of docs/from/umbridge.md. It needs umbridge
and emcee, and serves the model from a process of its own on this machine.
"""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import time

import emcee
import numpy as np
import requests
import umbridge
import umbridge.emcee
from coming_from import Counted, Row, Watch, show

import qbvi

NAMES = ["x", "y"]


class Posterior(umbridge.Model):
    """A log-density of two parameters, one near the square of the other."""

    def get_input_sizes(self, config):
        """One vector of two numbers."""
        return [2]

    def get_output_sizes(self, config):
        """One number."""
        return [1]

    def supports_evaluate(self):
        """It can be evaluated."""
        return True

    def __call__(self, parameters, config):
        """The log-density, with its constant: the log evidence is zero."""
        x, y = parameters[0]
        return [[-0.5 * (x**2 + ((y - x**2) / 0.5) ** 2) - math.log(math.pi)]]


def served() -> tuple[subprocess.Popen, str]:
    """A server in a process of its own, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process, url = subprocess.Popen([sys.executable, __file__, str(port)], **quiet), f"http://127.0.0.1:{port}"
    while True:
        try:
            requests.get(f"{url}/Info", timeout=1)
            return process, url
        except requests.ConnectionError:
            time.sleep(0.1)


def by_emcee(url: str) -> Row:
    """16 walkers, 1,000 steps, through UM-Bridge's own adapter."""
    counted = Counted(umbridge.emcee.UmbridgeLogProb(url, "posterior"))
    sampler = emcee.EnsembleSampler(16, 2, counted)
    sampler.random_state = np.random.RandomState(1).get_state()
    watch = Watch()
    sampler.run_mcmc(0.5 + 0.1 * np.random.default_rng(1).standard_normal((16, 2)), 1000)
    chain = sampler.get_chain(discard=200, flat=True)
    return Row("emcee, 16 walkers, 1,000 steps", counted.calls, watch.seconds, chain.mean(0), chain.std(0))


def main() -> None:
    """The table of the page."""
    process, url = served()
    try:
        problem = qbvi.umbridge(url, "posterior", init=[0.5, 0.5])
        exact = Row("exact", 0, 0.0, np.array([0.0, 1.0]), np.array([1.0, 1.5]), (0.0, 0.0))
        show(NAMES, [by_emcee(url), Row.of("`qbvi.umbridge`", problem), exact])
    finally:
        process.kill()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        umbridge.serve_models([Posterior("posterior")], int(sys.argv[1]))
    else:
        main()
