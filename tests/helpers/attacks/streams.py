"""Standard streams that are closed, full, endless or broken off, and signals at any time."""

import json
import signal
import subprocess
import threading
import time

import numpy as np

import qbvi
from attacks import LIMIT, PYTHON, attack, complaint_of, end_group, ended

PRIOR = '[x]\ndistribution = "Normal"\nloc = 0\nscale = 2\nshape = [2]\n[fit]\nseed = 1\nmax_evals = 150\n'


def serve(folder):
    (folder / "prior.toml").write_text(PRIOR)
    return [
        PYTHON,
        "-m",
        "qbvi",
        "serve",
        "--prior",
        str(folder / "prior.toml"),
        "--out",
        str(folder / "posterior.npz"),
    ]


def started(command):
    """A server whose pipes are held here, and that is killed after a while at the latest."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    killer = threading.Timer(LIMIT, process.kill)
    killer.daemon = True
    killer.start()
    return process, killer


def finished(process, killer):
    """Exit status and streams of a server that is about to end, or None if it had to be killed."""
    try:
        out, errors = process.communicate()
    finally:
        killer.cancel()
        end_group(process)
    return None if process.returncode == -signal.SIGKILL else (process.returncode, out, errors)


@attack("serve: values and noise of any size", short=1, long=15)
def extreme_values(rng, folder):
    """The conversation ends with `done` and a reason."""
    sizes = (1.0, 1e150, 1e300, 1.7e308)
    noises = (0.0, 1e300, "inf", "nan")
    size, noise = (sizes[2], "inf") if not rng.integers(3) else (sizes[rng.integers(4)], noises[rng.integers(4)])
    process, killer = started(serve(folder))
    said = {}
    for line in process.stdout:
        said = json.loads(line)
        if said["type"] == "ask":
            value = float(np.clip(size * float(rng.standard_normal()), -1.7e308, 1.7e308))
            process.stdin.write(json.dumps({"id": said["id"], "value": value, "noise_sd": noise}) + "\n")
            process.stdin.flush()
        elif said["type"] == "done":
            break
    complaint = complaint_of(finished(process, killer), (0, 1))
    return complaint or ("" if said.get("stop_reason") else f"the last words were {said}")


def redirected(name, redirection, status, words):
    @attack(f"serve: {name}", short=1, long=2)
    def trial(rng, folder):
        command = " ".join(f"'{word}'" for word in serve(folder))
        return complaint_of(
            ended(["sh", "-c", f"exec {command} {redirection}"], stdin=subprocess.DEVNULL), (status,), words
        )


redirected("closed input", "<&-", 2, "the standard input is closed")
redirected("closed output", ">&-", 2, "the standard output is closed")
redirected("full output", ">/dev/full", 1, "the output cannot be written")
redirected("input that cannot be read", "0>/dev/null", 1, "the input cannot be read")
redirected("closed error stream", "2>&-", 1, "the input ended before the fit settled")


@attack("serve: an output that is closed while the input is open", short=1, long=5)
def output_closed(rng, folder):
    process, killer = started(serve(folder))
    for _ in range(int(rng.integers(1, 5))):
        process.stdout.readline()
    process.stdout.close()
    for number in range(300):  # values for the points that it wrote, so that it goes on to write more
        try:
            process.stdin.write(json.dumps({"id": number, "value": -1.0}) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            break
        time.sleep(0.001)
    errors = process.stderr.read()  # ends when the server does
    process.wait()
    killer.cancel()
    end_group(process)
    if process.returncode == -signal.SIGKILL:
        return "no end"
    return "a traceback:\n" + errors if "Traceback" in errors else ""


@attack("serve: two signals at any time", short=1, long=20)
def two_signals(rng, folder):
    process, killer = started(serve(folder))
    process.stdout.readline()
    for _ in range(2):
        time.sleep(float(rng.choice([0.0, 0.001, 0.01, 0.05])))
        process.send_signal(signal.SIGTERM if rng.random() < 0.5 else signal.SIGINT)
    return complaint_of(finished(process, killer), (1, 130, -signal.SIGTERM, -signal.SIGINT))


@attack("serve: lines of any length", short=1, long=4)
def long_lines(rng, folder):
    line = "[" * int(rng.integers(1, 64_000_000))
    given = f'{line}\n{{"id": 0, "value": "{line[:1000]}"}}\n{{"type": "stop"}}\n'
    (folder / "input").write_text(given)
    with open(folder / "input") as file:
        return complaint_of(ended(serve(folder), stdin=file), (1,), '"type": "error", "line": 2')


@attack("show: full output", short=1, long=2)
def show_to_full_device(rng, folder):
    path = folder / "posterior.npz"
    qbvi.fit(lambda x: -0.5 * np.sum(x**2), qbvi.Normal(0, 1, shape=2), seed=1).save(path)
    command = f"exec '{PYTHON}' -m qbvi show '{path}' >/dev/full"
    return complaint_of(ended(["sh", "-c", command], stdin=subprocess.DEVNULL), (1, 2), "qbvi show:")
