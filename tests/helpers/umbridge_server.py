"""A server of the package umbridge with small models; run as ``python umbridge_server.py PORT``."""

import math
import os
import sys
import threading
import time

import numpy as np
import umbridge


class Banana(umbridge.Model):
    """x is standard normal, and y is normal around x^2 with a standard deviation of 1/2."""

    def get_input_sizes(self, config):
        return [2]

    def get_output_sizes(self, config):
        return [1]

    def supports_evaluate(self):
        return True

    def __call__(self, parameters, config):
        x, y = parameters[0]
        return [[-0.5 * (x**2 + ((y - x**2) / config.get("sd", 0.5)) ** 2)]]


class Decay(umbridge.Model):
    """Predictions of an exponential decay, from inputs of two sizes."""

    def get_input_sizes(self, config):
        return [1, 2]

    def get_output_sizes(self, config):
        return [5]

    def supports_evaluate(self):
        return True

    def __call__(self, parameters, config):
        (offset,), (height, rate) = parameters
        return [[offset + height * math.exp(-rate * t) for t in range(5)]]


class Dying(Banana):
    """Ends its server at the tenth call."""

    calls = 0

    def __call__(self, parameters, config):
        Dying.calls += 1
        if Dying.calls == 10:
            os._exit(1)
        return super().__call__(parameters, config)


class Raising(Banana):
    def __call__(self, parameters, config):
        raise ValueError("the mesh is tangled")


class WrongSize(Banana):
    def __call__(self, parameters, config):
        return [[1.0, 2.0]]


class Slow(Banana):
    """Counts how many calls it has at a time."""

    now, peak, lock = 0, 0, threading.Lock()

    def __call__(self, parameters, config):
        with Slow.lock:
            Slow.now += 1
            Slow.peak = max(Slow.peak, Slow.now)
        time.sleep(0.02)
        with Slow.lock:
            Slow.now -= 1
        return super().__call__(parameters, config)


class Peak(Banana):
    def __call__(self, parameters, config):
        return [[float(Slow.peak)]]


class Unable(Banana):
    def supports_evaluate(self):
        return False


MODELS = {
    "posterior": Banana,
    "forward": Decay,
    "dying": Dying,
    "raising": Raising,
    "wrong-size": WrongSize,
    "slow": Slow,
    "peak": Peak,
    "unable": Unable,
}

if __name__ == "__main__":
    np.seterr(all="raise")
    umbridge.serve_models([kind(name) for name, kind in MODELS.items()], int(sys.argv[1]), max_workers=4)
