"""Data in parts, in this process: sums, selections, refusals."""

import numpy as np
import pytest

import qbvi
from oracles import gaussian_kl
from qbvi.evaluate.sharded import PartBatches, Selection, ShardedLikelihood

ROWS = np.random.default_rng(7).standard_normal((600, 3))
PARTS = np.split(ROWS, [100, 250, 450])  # of different sizes
THETA = np.random.default_rng(8).standard_normal((5, 2))
PRIOR = qbvi.Normal(0, 1, shape=2)


def squares(theta, part):
    """Gaussian log-likelihood of y = X theta + noise; the last column is y."""
    return -0.5 * np.sum((part[:, 2] - theta @ part[:, :2].T) ** 2, axis=1)


def test_the_sum_over_parts_is_the_whole_in_the_order_of_the_parts():
    likelihood = ShardedLikelihood(squares, PARTS)
    np.testing.assert_allclose(likelihood(THETA), squares(THETA, ROWS), rtol=1e-13)
    in_order = np.zeros(5)
    for part in PARTS:
        in_order = in_order + squares(THETA, part)
    np.testing.assert_array_equal(likelihood(THETA), in_order)


def test_the_posterior_is_exact():
    x, y = ROWS[:, :2], ROWS[:, 2]
    cov = np.linalg.inv(x.T @ x + np.eye(2))
    fit = qbvi.fit(ShardedLikelihood(squares, PARTS), PRIOR, vectorized=True, seed=1)
    assert gaussian_kl(*fit.unconstrained, cov @ x.T @ y, cov) < 0.01


def test_named_parameters_reach_the_parts():
    def named(p, part):
        return squares(np.column_stack([p["a"], p["b"]]), part)

    prior = {"a": qbvi.Normal(0, 1), "b": qbvi.Normal(0, 1)}
    by_name = qbvi.fit(ShardedLikelihood(named, PARTS), prior, vectorized=True, seed=1)
    plain = qbvi.fit(ShardedLikelihood(squares, PARTS), PRIOR, vectorized=True, seed=1)
    np.testing.assert_array_equal(by_name.q, plain.q)


def test_a_part_function_that_overwrites_the_points_does_not_reach_the_next_part():
    def overwrites(theta, part):
        value = squares(theta, part)
        theta *= np.nan
        return value

    np.testing.assert_array_equal(ShardedLikelihood(overwrites, PARTS)(THETA), ShardedLikelihood(squares, PARTS)(THETA))


@pytest.mark.parametrize(
    "options", [{"parts_per_step": 2}, {"rows_per_part": 30}, {"parts_per_step": 3, "rows_per_part": 40}]
)
def test_a_batch_is_right_on_average(options):
    """Unbiased: the mean over many selections meets the whole within five of its standard errors."""
    likelihood = ShardedLikelihood(squares, PARTS, **options)
    rng = np.random.default_rng(1)
    drawn = [likelihood.batches.draw(rng) for _ in range(3000)]
    values = np.array([scale * likelihood(THETA, selection) for selection, scale in drawn])
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    assert np.all(np.abs(values.mean(axis=0) - squares(THETA, ROWS)) < 5 * error)


def test_all_rows_of_a_part_at_most():
    likelihood = ShardedLikelihood(squares, PARTS, rows_per_part=10_000)
    selection, scale = likelihood.batches.draw(np.random.default_rng(1))
    np.testing.assert_allclose(scale * likelihood(THETA, selection), squares(THETA, ROWS), rtol=1e-12)


@pytest.mark.parametrize("options", [{"parts_per_step": 2}, {"rows_per_part": 50}])
def test_mini_batches_are_fitted_as_such_and_repeat_with_the_seed(options):
    likelihood = ShardedLikelihood(squares, PARTS, **options)
    first, second = (qbvi.fit(likelihood, PRIOR, vectorized=True, max_evals=4000, seed=1) for _ in range(2))
    np.testing.assert_array_equal(first.q, second.q)
    assert "Residual" in first.record.method  # the method for mini-batches, not the regression
    exact = np.linalg.solve(ROWS[:, :2].T @ ROWS[:, :2] + np.eye(2), ROWS[:, :2].T @ ROWS[:, 2])
    np.testing.assert_allclose(
        first.mean, exact, atol=0.1
    )  # 2.5 posterior standard deviations: the rate has not fallen far


def test_rows_of_pandas_and_of_tuples(rng):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame, pair = pandas.DataFrame(ROWS), (ROWS[:, :2], ROWS[:, 2])
    by_frame = ShardedLikelihood(lambda theta, part: squares(theta, part.to_numpy()), [frame], rows_per_part=20)
    by_pair = ShardedLikelihood(lambda theta, part: squares(theta, np.column_stack(part)), [pair], rows_per_part=20)
    chosen = Selection((0,), 20, 5)
    np.testing.assert_array_equal(by_frame(THETA, chosen), by_pair(THETA, chosen))


def test_selections_are_parts_in_order_without_repetition(rng):
    for _ in range(50):
        selection, scale = PartBatches(6, 4, None).draw(rng)
        assert list(selection.parts) == sorted(set(selection.parts))
        assert scale == 1.5


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((3, PARTS), TypeError, "`function` must be a function of points and a part, got int"),
        ((squares, []), ValueError, "`parts` must hold at least one part"),
        ((squares, 3), TypeError, "`parts` must be a list of parts, or a Dask"),
    ],
)
def test_what_is_no_likelihood_over_parts_is_refused(arguments, kind, message):
    with pytest.raises(kind, match=message):
        ShardedLikelihood(*arguments)


def test_too_many_parts_and_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="`parts_per_step` must be between 1 and the 4 parts, got 5"):
        ShardedLikelihood(squares, PARTS, parts_per_step=5)
    with pytest.raises(ValueError, match="`rows_per_part` must be at least 1, got 0"):
        ShardedLikelihood(squares, PARTS, rows_per_part=0)
    with pytest.raises(ValueError, match=r"must return shape \(5,\) for 5 points, got \(\) of dtype float64 on part 0"):
        ShardedLikelihood(lambda theta, part: 0.0, PARTS)(THETA)
    with pytest.raises(ValueError, match=r"`data` must be left out with a qbvi\.ShardedLikelihood"):
        qbvi.fit(ShardedLikelihood(squares, PARTS), PRIOR, vectorized=True, data=ROWS)
