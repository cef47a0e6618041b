"""The line of progress, and the evaluations that it expects to go."""

import io
import math
import re

import numpy as np
import pytest

import qbvi
from qbvi.progress import Progress, evaluations_to_go
from qbvi.stopping import History


def history(gaps, n_evals=None):
    made = History()
    n_evals = [100 * (i + 1) for i in range(len(gaps))] if n_evals is None else n_evals
    for n, gap in zip(n_evals, gaps, strict=True):
        made.append(
            elbo=-1.0, n_evals=n, step=0.5, grad_norm=1.0, seconds=0.1 * n, mean=np.zeros(1), sd=np.ones(1), gap=gap
        )
    return made


def test_a_power_of_the_evaluations_is_followed_to_the_tolerance():
    gaps = [100 / n for n in range(100, 900, 100)]  # 0.1 is reached at 1000
    assert evaluations_to_go(history(gaps), tol=0.1) == pytest.approx(200, abs=2)


def test_noise_leaves_the_order_of_magnitude():
    rng = np.random.default_rng(1)
    n = np.arange(200, 1200, 100)
    gaps = (100 / n) ** 2 * np.exp(0.1 * rng.standard_normal(len(n)))
    # 641 without noise; ten values determine the slope to 6 %, which is 13 % of the 1,741 at the end.
    assert 400 < evaluations_to_go(history(gaps.tolist(), n.tolist()), tol=0.0033) < 900


@pytest.mark.parametrize(
    "gaps",
    [
        [1.0, 0.5, 0.25],  # too few
        [1.0, 0.2, 1.4, 0.3, 1.1, 0.8],  # no trend
        [0.1, 0.2, 0.4, 0.8, 1.6],  # upwards
        [math.inf] * 6,
        [math.nan] * 6,
        [1.0, 0.5, 0.25, 0.12, math.inf],  # not known now
        [1.0, 0.99, 0.98, 0.97, 0.96],  # far ahead
        [1.0, 0.1, 0.01, 0.001, 0.0001],  # there
        [],
    ],
)
def test_without_a_clear_trend_nothing_is_promised(gaps):
    assert evaluations_to_go(history(gaps), tol=0.01) is None


def test_the_line():
    gaps = [100 / n for n in range(100, 900, 100)]
    line = Progress(shown=False, tol=0.1).line(history(gaps))
    assert "800 evaluations" in line
    assert "about 200 to go" in line
    assert "to go" not in Progress(shown=False).line(history(gaps))


def test_it_is_written_and_closed():
    stream = io.StringIO()
    progress = Progress(shown=True, tol=0.1, stream=stream)
    progress.update(history([100 / n for n in range(100, 900, 100)]))
    progress.close(history([1.0]), "done")
    assert "about 200 to go" in stream.getvalue()
    assert stream.getvalue().rstrip().endswith("| done")


def test_calls_are_counted_between_iterations_and_in_the_closing_check(monkeypatch, capsys):
    monkeypatch.setattr("qbvi.progress._EVERY", -1.0)  # every line is written
    qbvi.fit(lambda x: -0.5 * float(x @ x), qbvi.Normal(0, 1, shape=2), family="full", progress=True, seed=1)
    lines = capsys.readouterr().err.split("\r")
    counts = [int(found[1].replace(",", "")) for line in lines if (found := re.search(r"([\d,]+) evaluations", line))]
    assert counts[0] == 1
    assert set(np.diff(counts)) <= {0, 1}  # every call moves the line
    checks = [re.search(r"checking the result: (\d+) of (\d+) fresh draws", line) for line in lines]
    made = [(int(found[1]), int(found[2])) for found in checks if found]
    total = made[-1][1]
    assert made[-total:] == [(i + 1, total) for i in range(total)]
    assert "checking" not in lines[-1]  # the last line has the verdict
    assert "nats" in lines[-1]
