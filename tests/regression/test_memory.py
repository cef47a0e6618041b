"""Memory that is used again: never while an array refers to it, and by no fit that is over."""

import gc

import numpy as np

import qbvi
from qbvi.regression import memory
from qbvi.regression.memory import release, square

N = 800  # above the size of matrices that the allocator keeps itself


def address(array):
    return array.__array_interface__["data"][0]


def test_a_matrix_has_the_memory_of_one_that_is_gone():
    release()
    first = square(N)
    where = address(first)
    del first
    assert address(square(N + 1)) == where
    release()
    assert not memory._free


def test_memory_to_which_a_view_refers_is_not_used_again():
    first = square(N)
    view = first.T[: N // 2, ::2]
    where = address(first)
    del first
    second = square(N)
    assert address(second) != where
    second[:] = 1.0
    view[:] = 2.0
    assert np.all(second == 1.0)
    del view
    assert address(square(N)) == where


def test_smaller_blocks_are_given_up_when_matrices_grow():
    release()
    del_me = [square(N), square(N)]
    del_me.clear()
    assert len(memory._free) == 2
    large = square(4 * N)
    assert not memory._free
    assert large.shape == (4 * N, 4 * N)


def test_a_fit_that_is_over_keeps_no_memory():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((200, 20))
    y = rng.random(200) < 0.5
    sizes = []

    def log_likelihood(beta):
        sizes.append(len(memory._free))
        return float(y @ (X @ beta) - np.logaddexp(0, X @ beta).sum())

    qbvi.fit(
        log_likelihood, qbvi.Normal(0, 1, shape=20), family="full", tol=1e-4, max_evals=1200, seed=1, progress=False
    )
    gc.collect()
    assert max(sizes) > 0
    assert not memory._free


def test_matrices_in_cycles_are_given_back_while_another_one_is_made():
    """The garbage collector may run at any time, so giving back must never wait."""
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(20):
            cycle = [square(N)]
            cycle.append(cycle)
            del cycle
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert len(memory._free) <= 20
    release()


def test_what_is_given_back_after_a_release_does_not_wait():
    release()
    matrix = square(N)
    release()
    del matrix
    assert not memory._free
