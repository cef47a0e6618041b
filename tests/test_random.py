"""Draws: right marginals, the promised dependence, the same numbers for the same seed."""

import numpy as np
import pytest
import scipy.stats

from qbvi.arrays import to_numpy
from qbvi.random import Antithetic, Independent, Sobol, Stream, Streams, seed_words, threefry

KINDS = [Independent(), Antithetic(), Sobol()]


@pytest.mark.parametrize("draws", KINDS, ids=lambda d: type(d).__name__)
def test_every_draw_is_standard_normal(draws):
    """Rows 0 and 1 of many independent steps."""
    z = np.stack([draws.normal(np.random.default_rng(seed), 8, 2) for seed in range(2000)])
    for row in (0, 5):
        for column in range(2):
            assert scipy.stats.kstest(z[:, row, column], "norm").pvalue > 1e-4


@pytest.mark.parametrize("draws", KINDS, ids=lambda d: type(d).__name__)
def test_groups_are_independent_of_each_other(draws):
    n = 8
    z = np.stack([draws.normal(np.random.default_rng(seed), n, 1)[:, 0] for seed in range(4000)])
    correlation = np.corrcoef(z**2 + z, rowvar=False)
    group = np.arange(n) % (n // draws.group_size(n))
    apart = correlation[group[:, None] != group[None, :]]
    assert np.abs(apart).max() < 5 / np.sqrt(4000)


@pytest.mark.parametrize("draws", KINDS, ids=lambda d: type(d).__name__)
def test_same_seed_same_draws(draws):
    first, second = (draws.normal(np.random.default_rng(5), 10, 3) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_sobol_integrates_better_than_independent_draws():
    error = {}
    for draws in (Independent(), Sobol()):
        means = [np.mean(draws.normal(np.random.default_rng(s), 256, 2) ** 2) for s in range(50)]
        error[type(draws).__name__] = np.std(means)
    assert error["Sobol"] < error["Independent"] / 3


@pytest.mark.parametrize(("draws", "n"), [(Independent(), 1), (Antithetic(), 5), (Sobol(), 3)])
def test_a_number_of_draws_that_cannot_work_is_refused(draws, n):
    with pytest.raises(ValueError, match=rf"`n_samples` must be .* got {n}"):
        draws.check(n)


def compiled(xp, function):
    """On JAX a stream is part of a compiled step; operation by operation it would take seconds."""
    if xp.__name__ != "jax.numpy":
        return function
    import jax

    return jax.jit(function)


def words(xp, *numbers):
    return xp.asarray(np.array(numbers, dtype=np.uint32).view(np.int32))


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_published_words(key, counter, expected, xp):
    """The known answers of the generator's authors, for Threefry-2x32 with 20 rounds."""
    made = compiled(xp, threefry)(words(xp, *key), *(words(xp, number) for number in counter))
    assert [int(word[0]) % 2**32 for word in made] == list(expected)


def stream(xp, t=0, seed=7, dtype="float64"):
    return Stream(xp.asarray(seed_words(seed)), xp.asarray(t, dtype=xp.int32), getattr(xp, dtype))


def drawn(xp, t, shape, dtype="float64"):
    def draw(key, t):
        return Stream(key, t, getattr(xp, dtype)).standard_normal(shape)

    return to_numpy(compiled(xp, draw)(xp.asarray(seed_words(7)), xp.asarray(t, dtype=xp.int32)))


def test_a_stream_is_the_same_on_every_library(xp):
    expected = Streams(seed_words(7), np.float64).at(3).standard_normal((5, 3))
    np.testing.assert_allclose(drawn(xp, 3, (5, 3)), expected, rtol=1e-13, atol=1e-15)


def test_a_stream_in_single_precision_is_the_same_to_its_digits(xp):
    double, single = (drawn(xp, 0, (1000,), dtype) for dtype in ("float64", "float32"))
    np.testing.assert_allclose(single, double, atol=2e-6)


def test_a_stream_is_standard_normal_to_its_tails():
    z = stream(np).standard_normal((200_001,))
    assert scipy.stats.kstest(z, "norm").pvalue > 1e-3
    assert scipy.stats.kstest(z[:-1:2] * z[1::2], "norm").pvalue < 1e-10  # which a product of normals is not
    assert 4.0 < np.abs(z).max() < 6.66
    assert len(np.unique(z)) == len(z)


def test_steps_calls_and_seeds_are_independent():
    """Twenty streams that differ in one number each: no correlation beyond chance."""
    n = 50_000
    streams = [stream(np, t) for t in range(8)] + [stream(np, 0, seed) for seed in range(4)]
    z = np.stack([one.standard_normal((n,)) for one in streams] + [streams[i].standard_normal((n,)) for i in range(8)])
    for transformed in (z, z**2):
        correlation = np.corrcoef(transformed) - np.eye(len(z))
        assert np.abs(correlation).max() < 5 / np.sqrt(n)


def test_steps_drawn_ahead_are_the_steps_drawn_alone():
    ahead = Streams(seed_words(7), np.float64)
    for t in (0, 1, 9, 3, 2**24 - 1):
        mine, alone = ahead.at(t), stream(np, t)
        for shape in ((3, 2), (3, 2), (5,)):
            np.testing.assert_array_equal(mine.standard_normal(shape), alone.standard_normal(shape))


def test_what_was_drawn_ahead_may_be_overwritten():
    ahead = Streams(seed_words(7), np.float64)
    first = ahead.at(0).standard_normal((4,))
    first[:] = 0.0
    np.testing.assert_array_equal(ahead.at(0).standard_normal((4,)), stream(np).standard_normal((4,)))
