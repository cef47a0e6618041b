"""A clock that calls of a function move on, so that tests of time limits neither wait nor depend on the machine."""

import time
from contextlib import contextmanager


class Clock:
    """The clocks of `time`, which stand still but for what `cost` adds."""

    def __init__(self):
        self.now = 1000.0
        self.points = []  # for functions that note where they were called

    def read(self):
        return self.now

    def costing(self, function, seconds):
        """The function, each call of which takes so many seconds; `seconds` may be a function of the number of the call."""

        def slow(*arguments):
            slow.n_calls += 1
            self.now += seconds(slow.n_calls) if callable(seconds) else seconds
            return function(*arguments)

        slow.n_calls = 0
        return slow


@contextmanager
def standing_still():
    """Replace the clocks by one that stands still; for code of a single thread."""
    clock = Clock()
    real = time.monotonic, time.perf_counter
    time.monotonic = time.perf_counter = clock.read
    try:
        yield clock
    finally:
        time.monotonic, time.perf_counter = real
