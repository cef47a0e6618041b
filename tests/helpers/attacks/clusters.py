"""A Dask cluster whose workers hang, are stopped or go, and whose client is closed."""

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest

import qbvi
from attacks import attack
from faults import Target

PRIOR = qbvi.Normal(1, 2, shape=3)
ON_DASK = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not __import__("importlib.util").util.find_spec("distributed"), reason="Dask is not installed"),
]
ENDLESS = qbvi.QBVI(n_samples=10, stop=(), n_fresh=20)


@contextlib.contextmanager
def cluster(processes):
    import dask
    import distributed

    with (
        dask.config.set({"logging.distributed": "critical", "distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=processes, dashboard_address="127.0.0.1:0"
        ) as started,
        distributed.Client(started) as client,
    ):
        yield started, client


def ended_by_error(client, words, callback=None, function=None, max_time=3.0):
    """Fit with a time limit; say what is wrong unless it ends with an error of ours that has the fit so far."""
    try:
        fit = qbvi.fit(
            function or Target(), PRIOR, method=ENDLESS, executor=client, max_time=max_time, seed=1, callback=callback
        )
    except qbvi.EvaluationError as error:
        if error.fit is None:
            return f"no fit with the error {error}"
        return "" if words in str(error) else f"no word of {words!r} in {error}"
    return f"no error: {fit.stop_reason}"


@attack("Dask: a worker that hangs", short=1, long=5, marks=ON_DASK)
def hangs(rng, folder):
    target = Target()

    def function(theta):
        while os.path.exists(flag):
            time.sleep(0.05)
        return target(theta)

    flag = str(folder / "flag")
    with cluster(processes=False) as (_, client):
        complaint = ended_by_error(client, "abandoned", lambda now: open(flag, "w").close(), function)
        os.unlink(flag)  # else the cluster waits for its threads
    return complaint


@attack("Dask: scaled to zero", short=1, long=5, marks=ON_DASK)
def scaled_to_zero(rng, folder):
    with cluster(processes=False) as (started, client):
        try:
            fit = qbvi.fit(
                Target(),
                PRIOR,
                method=ENDLESS,
                executor=client,
                max_time=3.0,
                seed=1,
                callback=lambda now: started.scale(0),
            )
        except qbvi.EvaluationError as error:
            return "" if error.fit is not None else f"no fit with the error {error}"
        return "" if fit.stop_kind.value == "seconds" else fit.stop_reason


@attack("Dask: no worker at all", short=1, long=2, marks=ON_DASK)
def no_worker(rng, folder):
    with cluster(processes=False) as (started, client):
        started.scale(0)
        while client.nthreads():
            time.sleep(0.05)
        try:
            qbvi.fit(Target(), PRIOR, executor=client, max_time=0.5)
        except qbvi.EvaluationError as error:
            return "" if "no Dask worker could be sent the function" in str(error) else str(error)
    return "no error"


@attack("Dask: a client that is closed", short=1, long=5, marks=ON_DASK)
def closed(rng, folder):
    with cluster(processes=False) as (_, client):
        if rng.random() < 0.5:
            return ended_by_error(client, "is closed", lambda now: client.close())
        timer = threading.Timer(0.5, client.close)
        started = threading.Event()

        def callback(now):
            if not started.is_set():
                started.set()
                timer.start()

        complaint = ended_by_error(client, "is closed", callback)
        timer.join()
        return complaint


@attack("Dask: workers that are stopped (SIGSTOP)", short=0, long=3, marks=ON_DASK)
def stopped(rng, folder):
    with cluster(processes=True) as (_, client):
        pids = list(client.run(os.getpid).values())
        once = qbvi.QBVI(n_samples=10, stop=qbvi.MaxIterations(1), n_fresh=20)
        qbvi.fit(Target(), PRIOR, method=once, executor=client, seed=1)  # after it the workers have imported all
        try:
            return ended_by_error(client, "", lambda now: [os.kill(pid, signal.SIGSTOP) for pid in pids], max_time=15.0)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)


@attack("Dask: parts on a worker that hangs", short=1, long=3, marks=ON_DASK)
def parts_hang(rng, folder):
    flag = str(folder / "flag")

    def function(theta, part):
        while os.path.exists(flag):
            time.sleep(0.05)
        return -0.5 * ((theta[:, :1] - part) ** 2).sum(axis=1)

    with cluster(processes=False) as (_, client):
        likelihood = qbvi.ShardedLikelihood(function, np.split(rng.standard_normal(100), 4), client=client)
        try:
            fit = qbvi.fit(
                likelihood,
                PRIOR,
                vectorized=True,
                method=ENDLESS,
                max_time=3.0,
                seed=1,
                callback=lambda now: open(flag, "w").close(),
            )
            return f"no error: {fit.stop_reason}"
        except qbvi.EvaluationError as error:
            return "" if error.fit is not None and "abandoned" in str(error) else repr(error)
        finally:
            os.unlink(flag)  # else the cluster waits for its threads
