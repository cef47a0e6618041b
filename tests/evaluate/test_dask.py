"""A real Dask cluster, a scheduler and two worker processes on loopback: draws spread over it, data that live on it, workers that die."""

import os
import re
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import qbvi
from faults import Faulty, Target
from sweeps import sweep

distributed = pytest.importorskip("distributed", reason="the extra qbvi[dask] is not installed")
dask = pytest.importorskip("dask")

PRIOR = qbvi.Normal(1, 2, shape=3)
quick_fit = partial(qbvi.fit, family="full")  # the shape of the posterior does not matter here
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # sockets of workers that were killed
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def connected():
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1, "logging.distributed": "critical"}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def client(connected):
    """A client of two living workers: those that the test before killed are back, or replaced."""
    try:
        connected.wait_for_workers(2, timeout=20)
    except TimeoutError:
        connected.cluster.scale(0)
        connected.cluster.scale(2)
        connected.wait_for_workers(2, timeout=60)
    return connected


def pids(client):
    return sorted(client.run(os.getpid).values())


# ---------------------------------------------------------------- draws spread over workers


def test_the_fit_is_that_of_one_process_to_the_last_bit(client):
    alone, spread = quick_fit(Target(), PRIOR, seed=1), quick_fit(Target(), PRIOR, seed=1, executor=client)
    np.testing.assert_array_equal(spread.q, alone.q)
    assert (spread.elbo, spread.n_evals) == (alone.elbo, alone.n_evals)


def test_nothing_listens_beyond_this_machine(client):
    addresses = [client.scheduler.address, *client.scheduler_info()["workers"]]
    assert all("127.0.0.1" in address for address in addresses)


def test_both_workers_make_calls_and_failures_name_them(client, tmp_path):
    log = tmp_path / "pids"
    function = Faulty("nan", 20, str(log))
    fit = quick_fit(function, PRIOR, on_failure="exclude", executor=client, seed=1)
    assert {int(pid) for pid in log.read_text().split()} == set(pids(client))
    assert len(log.read_text().split()) == fit.n_evals
    assert {failure.worker for failure in fit.failures} <= {"0", "1"}


def test_a_worker_killed_in_the_middle_of_a_step_costs_nothing_but_time(client, tmp_path):
    flag = tmp_path / "once"
    flag.touch()
    fit = quick_fit(dies_once(Target(), flag), PRIOR, executor=client, seed=1)
    assert not flag.exists()
    np.testing.assert_array_equal(fit.q, quick_fit(Target(), PRIOR, seed=1).q)
    assert fit.n_failed == 0


def test_a_point_that_kills_every_worker_is_given_up_and_no_other(client):
    function = Faulty("exit-later", 1)
    rng = np.random.default_rng(5)
    points = rng.standard_normal((200, 3))
    bad = [i for i, theta in enumerate(points) if function.is_bad(theta)][:1]
    points = points[[*range(3), *bad]]
    from qbvi.evaluate import BlackBox
    from qbvi.evaluate.calls import Calls
    from qbvi.evaluate.executors import open_runner

    with open_runner(Calls(function), client) as runner:
        box = BlackBox(function, on_failure="exclude", runner=runner)
        result = box(points)
    np.testing.assert_array_equal(result.ok, [True, True, True, False])
    np.testing.assert_array_equal(result.values[:3], [Target()(theta) for theta in points[:3]])
    assert [failure.kind for failure in box.failures] == ["died"]
    assert "the Dask workers that made this call died" in box.failures[0].message


def test_a_cluster_that_grows_on_demand():
    with (
        dask.config.set({"logging.distributed": "critical"}),
        distributed.LocalCluster(
            n_workers=0, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        cluster.adapt(minimum=0, maximum=2, interval="100ms")
        fit = quick_fit(Target(), PRIOR, executor=client, seed=1)
    np.testing.assert_array_equal(fit.q, quick_fit(Target(), PRIOR, seed=1).q)


def dies_once(function, flag):
    """The function; but the first worker to find the flag takes it away and dies."""
    path = str(flag)

    def wrapped(*args):
        try:  # two workers may see the flag at once: the one that removes it dies
            os.unlink(path)
        except FileNotFoundError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args)

    return wrapped


def test_the_page_on_scaling_runs_as_it_stands(client):
    page = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
    code = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    namespace = {"client": client}
    for block in code:
        exec(compile(block, "scaling.md", "exec"), namespace)  # noqa: S102 - our own text
    assert len(code) == 2
    assert abs(namespace["fit"].mean - 0.8).max() < 0.01


# ---------------------------------------------------------------- data that live on workers

ROWS = np.random.default_rng(7).standard_normal((600, 4))


def squares(theta, part):
    """Gaussian log-likelihood of y = X theta + noise; the last column is y."""
    rows = np.asarray(part)
    return -0.5 * np.sum((rows[:, 3] - theta @ rows[:, :3].T) ** 2, axis=1)


def squares_of_items(theta, part):
    return squares(theta, np.stack(part))


def as_frame():
    import dask.dataframe
    import pandas

    return dask.dataframe.from_pandas(pandas.DataFrame(ROWS), npartitions=4)


def as_array():
    import dask.array

    return dask.array.from_array(ROWS, chunks=(150, 2))


def as_bag():
    import dask.bag

    return dask.bag.from_sequence(list(ROWS), npartitions=4)


PLAIN = np.split(ROWS, 4)
PARTS = {
    "list": lambda client: {"parts": PLAIN, "client": client},
    "delayed": lambda client: {"parts": [dask.delayed(np.array)(part) for part in PLAIN]},
    "futures": lambda client: {"parts": client.scatter(PLAIN)},
    "array": lambda client: {"parts": as_array()},
    "frame": lambda client: {"parts": as_frame()},
    "bag": lambda client: {"parts": as_bag(), "function": squares_of_items},
}


@pytest.mark.parametrize("kind", PARTS)
def test_parts_of_any_kind_give_what_one_process_gives(client, kind):
    options = {"function": squares, **PARTS[kind](client)}
    sharded = quick_fit(qbvi.ShardedLikelihood(**options), PRIOR, vectorized=True, seed=1)
    local = quick_fit(qbvi.ShardedLikelihood(squares, PLAIN), PRIOR, vectorized=True, seed=1)
    np.testing.assert_array_equal(sharded.q, local.q)
    assert sharded.elbo == local.elbo


@pytest.mark.parametrize("options", [{"parts_per_step": 2}, {"rows_per_part": 50}])
def test_mini_batches_are_the_same_wherever_the_parts_are(client, options):
    method = qbvi.QBVI(n_samples=10, stop=(qbvi.MaxIterations(5),), n_fresh=20)
    fits = [
        quick_fit(
            qbvi.ShardedLikelihood(squares, PLAIN, client=where, **options),
            PRIOR,
            vectorized=True,
            method=method,
            seed=1,
        )
        for where in (None, client)
    ]
    np.testing.assert_array_equal(fits[0].q, fits[1].q)


@pytest.mark.parametrize("n_killed", sweep([1, 2], first=1))
def test_parts_that_were_sent_from_here_are_sent_again_when_their_worker_dies(client, n_killed):
    likelihood = qbvi.ShardedLikelihood(squares, PLAIN, client=client)
    theta = np.random.default_rng(1).standard_normal((5, 3))
    expected = qbvi.ShardedLikelihood(squares, PLAIN)(theta)
    np.testing.assert_array_equal(likelihood(theta), expected)
    holder = client.run(os.getpid)[next(worker for worker, held in client.has_what().items() if held)]
    # The other worker holds the parts of the first once that is dead.
    for pid in sorted(pids(client), key=lambda pid: pid != holder)[:n_killed]:
        os.kill(pid, signal.SIGKILL)
        np.testing.assert_array_equal(likelihood(theta), expected)


def test_an_exception_on_a_part_is_a_failure_of_the_point(client):
    def picky(theta, part):
        if np.any(theta[:, 0] > 1.02):
            msg = "no root"
            raise ValueError(msg)
        return squares(theta, part)

    likelihood = qbvi.ShardedLikelihood(picky, PLAIN, client=client)
    with pytest.raises(qbvi.EvaluationError, match="ValueError: no root"):
        quick_fit(likelihood, PRIOR, vectorized=True, seed=1)


@pytest.mark.parametrize("n", [50_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_many_rows_a_worker_lost_in_mid_step_and_the_answer_of_one_process(client, tmp_path, n):
    """Up to 1e7 rows in ten parts, each made where it lives; the exact posterior is that of the sums of squares."""
    n_parts = 10

    def made(k):
        rng = np.random.default_rng([k, 3])
        x = rng.standard_normal((n, 2), dtype=np.float32)
        return np.column_stack(
            [x, x @ np.array([0.5, -1.0], dtype=np.float32) + rng.standard_normal(n, dtype=np.float32)]
        )

    def log_likelihood(theta, part):
        gram = np.zeros((3, 3))
        for rows in np.array_split(part, 50):
            gram += np.asarray(rows, dtype=np.float64).T @ np.asarray(rows, dtype=np.float64)
        signed = np.column_stack([theta, -np.ones(len(theta))])
        return -0.5 * np.einsum("si,ij,sj->s", signed, gram, signed)

    flag = tmp_path / "once"
    prior = qbvi.Normal(0, 1, shape=2)
    parts = [dask.delayed(made)(k) for k in range(n_parts)]
    likelihood = qbvi.ShardedLikelihood(dies_once(log_likelihood, flag), parts)
    before = pids(client)

    def kill_in_third_step(iterate):
        if iterate.n_evals > 20 and not flag.with_suffix(".done").exists():
            flag.with_suffix(".done").touch()
            flag.touch()

    fit = quick_fit(likelihood, prior, vectorized=True, seed=1, callback=kill_in_third_step)
    assert flag.with_suffix(".done").exists()
    assert not flag.exists()
    assert pids(client) != before
    alone = qbvi.ShardedLikelihood(log_likelihood, [made(k) for k in range(n_parts)])
    np.testing.assert_array_equal(fit.q, quick_fit(alone, prior, vectorized=True, seed=1).q)
    assert fit.n_failed == 0
    np.testing.assert_allclose(fit.mean, [0.5, -1.0], atol=6 / np.sqrt(n_parts * n))
