"""The user's function: called once per point, checked, and its failures kept."""

import numpy as np
import pytest

from qbvi.evaluate import Batches, BlackBox, EvaluationError

POINTS = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def test_one_by_one_and_all_at_once_agree_and_count():
    single, stacked = BlackBox(lambda x: -x.sum()), BlackBox(lambda x: -x.sum(axis=1), vectorized=True)
    np.testing.assert_array_equal(single(POINTS).values, stacked(POINTS).values)
    assert single.n_evals == stacked.n_evals == 3


def test_named_points_arrive_by_name_with_their_own_shapes():
    seen = []
    box = BlackBox(lambda p: seen.append({k: np.shape(v) for k, v in p.items()}) or 0.0)
    box({"beta": np.ones((2, 3)), "sigma": np.ones(2)})
    assert seen == [{"beta": (3,), "sigma": ()}] * 2


@pytest.mark.parametrize("vectorized", [False, True])
def test_a_function_that_overwrites_its_argument_changes_nothing(vectorized):
    def overwrite(x):
        value = -np.sum(x, axis=-1)
        x *= 0
        return value

    points = POINTS.copy()
    box = BlackBox(overwrite, vectorized)
    np.testing.assert_array_equal(box(points).values, -POINTS.sum(1))
    np.testing.assert_array_equal(points, POINTS)


@pytest.mark.parametrize("value", [1, np.float32(1.5), np.array(2.0), np.array([2.5])])
def test_any_single_real_number_will_do(value):
    assert BlackBox(lambda x: value)(POINTS[:1]).values[0] == float(np.ravel(value)[0])


@pytest.mark.parametrize(
    ("returned", "vectorized", "message"),
    [
        (np.zeros(7), False, r"one number for each point, got an array of shape \(7,\); sum over the observations"),
        (np.zeros((3, 7)), True, r"must return shape \(3,\) for 3 points, got \(3, 7\)"),
        (0.0, True, r"must return shape \(3,\) for 3 points, got \(\); .* vectorized=False"),
        (None, False, "must return real numbers, got NoneType"),
        ("a", False, "must return real numbers, got str"),
        (1j, False, "must return real numbers, got complex"),
    ],
)
@pytest.mark.parametrize("on_failure", ["raise", "exclude"])
def test_a_wrong_shape_or_type_is_an_error_whatever_the_policy(returned, vectorized, message, on_failure):
    with pytest.raises(ValueError, match=message):
        BlackBox(lambda x: returned, vectorized, on_failure)(POINTS)


@pytest.mark.parametrize(("bad", "kind"), [(np.nan, "nan"), (np.inf, r"\+inf"), (-np.inf, "-inf")])
def test_raise_names_the_point_and_the_ways_out(bad, kind):
    box = BlackBox(lambda x: bad if x[0] == 3 else 0.0, on_failure={"-inf": "raise"})
    with pytest.raises(EvaluationError, match=rf'{kind} .*\[3., 4.\].*on_failure="exclude"') as caught:
        box(POINTS)
    np.testing.assert_array_equal(caught.value.failure.parameters, [3.0, 4.0])


@pytest.mark.parametrize("on_failure", ["raise", {"nan": "raise"}])
def test_minus_infinity_is_a_likelihood_of_zero_and_no_error(on_failure):
    box = BlackBox(lambda x: -np.inf if x[0] == 3 else -1.0, on_failure=on_failure)
    result = box(POINTS)
    np.testing.assert_array_equal(result.ok, [True, False, True])
    np.testing.assert_array_equal(result.values, -1.0)
    assert [failure.kind for failure in box.failures] == ["-inf"]


def explode(x):
    if x[0] == 3:
        msg = "no root in [0, 1]"
        raise ArithmeticError(msg)
    return -float(x[0])


def test_an_exception_keeps_its_message_and_traceback():
    with pytest.raises(EvaluationError, match="ArithmeticError: no root") as caught:
        BlackBox(explode)(POINTS)
    assert "in explode" in caught.value.__notes__[0]
    box = BlackBox(explode, on_failure="exclude")
    result = box(POINTS)
    np.testing.assert_array_equal(result.ok, [True, False, True])
    assert box.failures[0].kind == "exception"
    assert "explode" in box.failures[0].traceback


@pytest.mark.parametrize(
    ("points", "told"), [(POINTS, r"an array of shape \(2,\)"), ({"b": POINTS}, r"a dict of 'b' of shape \(2,\)")]
)
def test_a_function_that_raises_everywhere_is_asked_about_the_priors_shape(points, told):
    with pytest.raises(EvaluationError, match=f"expect what the prior gives it, {told}"):
        BlackBox(lambda x: np.asarray(x["b"] if isinstance(x, dict) else x) @ np.ones(5))(points)


def test_exclude_takes_the_mean_of_the_others_so_that_the_point_pulls_nowhere():
    box = BlackBox(lambda x: np.nan if x[0] == 3 else -x[0], on_failure="exclude")
    np.testing.assert_array_equal(box(POINTS).values, [-1.0, -3.0, -5.0])
    assert len(box.failures) == 1


def test_floor_goes_below_even_where_all_others_are_equal():
    box = BlackBox(lambda x: -np.inf if x[0] == 3 else -2.0, on_failure="floor")
    np.testing.assert_array_equal(box(POINTS).values, [-2.0, -3.0, -2.0])


def test_floor_goes_below_all_others_by_their_range():
    box = BlackBox(lambda x: -np.inf if x[0] == 3 else -x[0], on_failure="floor")
    np.testing.assert_array_equal(box(POINTS).values, [-1.0, -9.0, -5.0])


def test_a_callable_policy_decides_for_itself():
    box = BlackBox(lambda x: np.nan if x[0] == 3 else -x[0], on_failure=lambda failure: -failure.parameters[1])
    np.testing.assert_array_equal(box(POINTS).values, [-1.0, -4.0, -5.0])


def test_the_failing_point_of_a_vectorised_call_does_not_take_the_others_with_it():
    def vector(x):
        if np.any(x[:, 0] == 3):
            msg = "singular"
            raise np.linalg.LinAlgError(msg)
        return -x[:, 0]

    box = BlackBox(vector, vectorized=True, on_failure="exclude")
    result = box(POINTS)
    np.testing.assert_array_equal(result.values, [-1.0, -3.0, -5.0])
    np.testing.assert_array_equal(result.ok, [True, False, True])
    assert box.n_evals == 6  # the lost call and the three that found out why


def test_a_step_without_one_finite_value_has_nothing_to_fill_in_from():
    result = BlackBox(lambda x: np.nan, on_failure="exclude")(POINTS)
    assert not result.ok.any()
    assert np.all(np.isnan(result.values))


@pytest.mark.parametrize("error", [TypeError, NameError, AttributeError])
def test_a_programming_error_in_the_first_step_is_never_a_failure(error):
    def broken(x):
        raise error("typo")

    with pytest.raises(error, match="typo"):
        BlackBox(broken, on_failure="exclude")(POINTS)


def test_likelihoods_instead_of_their_logarithms_are_noticed_in_the_first_step_only():
    box = BlackBox(lambda x: 0.3)
    with pytest.warns(UserWarning, match="is `log_likelihood` a likelihood"):
        box(POINTS)
    box(POINTS)  # a second warning would be an error here


def test_what_is_not_a_function_and_what_is_no_policy_are_refused():
    with pytest.raises(TypeError, match="`log_likelihood` must be a function, got"):
        BlackBox(3.0)
    with pytest.raises(ValueError, match="did you mean 'exclude'"):
        BlackBox(lambda x: 0.0, on_failure="exlude")


def test_batches_hold_matching_rows_and_make_up_for_the_others(rng):
    x = np.arange(10.0)
    batches = Batches({"x": x, "y": 2 * x}, batch_size=4)
    batch, scale = batches.draw(rng)
    np.testing.assert_array_equal(batch["y"], 2 * batch["x"])
    assert len(set(batch["x"])) == 4
    assert scale == 2.5


def test_every_row_is_as_likely_as_any_other(rng):
    batches = Batches(np.arange(5), batch_size=2)
    counts = np.bincount(np.concatenate([batches.draw(rng)[0] for _ in range(5000)]), minlength=5)
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(5000 * 0.4 * 0.6)


@pytest.mark.parametrize("whole", [Batches(np.arange(5)), Batches(np.arange(5), batch_size=5)])
def test_a_batch_of_everything_is_the_data_as_they_are(whole, rng):
    batch, scale = whole.draw(rng)
    np.testing.assert_array_equal(batch, np.arange(5))
    assert scale == 1.0
    assert not whole.is_partial


def test_pandas_rows_come_as_pandas(rng):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"a": range(6)}, index=list("abcdef"))
    assert Batches(frame, batch_size=2).draw(rng)[0].shape == (2, 1)


def test_bad_batches_are_refused():
    with pytest.raises(ValueError, match="`batch_size` must lie between 1 and the 5 rows of `data`, got 6"):
        Batches(np.arange(5), batch_size=6)
    with pytest.raises(ValueError, match=r"one common number of rows, got \[4, 5\]"):
        Batches((np.arange(5), np.arange(4)))


# ---------------------------------------------------------------- outcomes that are known, outcomes that arrive


def test_known_rows_are_not_asked_for_again_and_change_nothing():
    asked = []

    def function(x):
        asked.append(x[0])
        return np.nan if x[0] == 3 else -x[0]

    whole, part = (BlackBox(function, on_failure="exclude") for _ in range(2))
    done = {}
    expected = whole(POINTS, scale=2.0, on_done=done.__setitem__)
    assert list(done) == [0, 1, 2]
    asked.clear()
    fresh = []
    known = {i: done[i] for i in (0, 1)}
    result = part(POINTS, scale=2.0, known=known, on_done=lambda i, outcome: fresh.append((i, outcome.value)))
    assert asked == [5.0]
    assert fresh == [(2, -5.0)]
    for ours, theirs in zip(result, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert part.n_evals == whole.n_evals == 3
    assert [f.kind for f in part.failures] == [f.kind for f in whole.failures] == ["nan"]


def test_each_outcome_is_told_before_the_next_call():
    events = []
    box = BlackBox(lambda x: events.append("call") or -x[0])
    box(POINTS, on_done=lambda i, outcome: events.append((i, outcome.value)))
    assert events == ["call", (0, -1.0), "call", (1, -3.0), "call", (2, -5.0)]


def test_a_number_of_points_for_vectorized_makes_blocks_of_that_size():
    sizes = []
    box = BlackBox(lambda x: sizes.append(len(x)) or -x[:, 0], vectorized=2)
    np.testing.assert_array_equal(box(POINTS).values, -POINTS[:, 0])
    assert sizes == [2, 1]
    with pytest.raises(ValueError, match="`vectorized` must be True, False, or the number of points"):
        BlackBox(lambda x: 0.0, vectorized=0)
