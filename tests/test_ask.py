"""Ask and tell: the same fit to the last bit, in whatever order and portions the values come."""

import contextlib
import json
import os
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import qbvi
from comparison import assert_same
from qbvi.ending import StopKind

PRIOR = {"beta": qbvi.Normal(0, 2, shape=2), "sigma": qbvi.HalfNormal(2)}
QUICK = qbvi.QBVI(n_samples=20, stop=qbvi.MaxIterations(4), n_fresh=30)
CASES = {
    "automatic": {},
    "qbvi": {"method": QUICK},
    "paper": {"method": qbvi.paper(stop=qbvi.MaxIterations(3), n_samples=30)},
    "full": {"family": "full"},  # quick, for what does not depend on the shape of the posterior
    "diagonal": {"family": "diagonal"},
    "budget": {"max_evals": 90},
    "init": {"init": {"beta": np.ones(2), "sigma": 0.5}, "family": "full"},
}


X = np.linspace(-1, 1, 30)
Y = 1.5 + X + 0.7 * np.sin(40 * X)


def density(point):
    residual = Y - point["beta"][0] - point["beta"][1] * X
    return float(-0.5 * np.sum(residual**2) / point["sigma"] ** 2 - len(X) * np.log(point["sigma"]))


@cache
def fitted(case="automatic"):
    """What `qbvi.fit` finds, to which several tests compare."""
    return qbvi.fit(density, PRIOR, seed=5, **CASES[case])


def finish(opt, function=density):
    while not opt.done:
        points = opt.ask()
        opt.tell(points, [function(point) for point in points])
    return opt.fit()


@pytest.mark.parametrize("case", CASES)
def test_the_same_as_fit_to_the_last_bit(case):
    opt = qbvi.Ask(PRIOR, seed=5, **CASES[case])
    assert_same(finish(opt), fitted(case))
    assert len(opt.ask()) == 0


def test_converged_is_about_the_posterior_beyond_twelve_dimensions_too(tmp_path):
    """Seventeen log rates, each with four counts: the best Gaussian misses about 0.3 nats."""

    def rates(x):
        return float(np.sum(4 * x - np.exp(np.minimum(x, 50))))

    prior, options = qbvi.Normal(0, 2, shape=17), {"seed": 1, "init": np.full(17, np.log(4.0))}
    qbvi.Ask(prior, **options).save(tmp_path / "begun.npz")
    expected = qbvi.fit(rates, prior, **options)
    assert expected.stop_kind is StopKind.FAMILY
    assert_same(finish(qbvi.Ask(prior, **options), rates), expected)
    assert_same(finish(qbvi.Ask.load(tmp_path / "begun.npz"), rates), expected)


def test_points_look_like_what_a_function_gets():
    seen = []

    def function(points):
        seen.append(points)
        return -np.sum(points["beta"] ** 2, axis=1)

    qbvi.fit(function, PRIOR, vectorized=True, seed=1, family="full")
    points = qbvi.Ask(PRIOR, seed=1, family="full").ask()
    for name in PRIOR:
        assert_array_equal(points.values[name], seen[0][name])
    assert_array_equal(points.ids, np.arange(len(points)))
    unnamed = qbvi.Ask(qbvi.Normal(0, 1, shape=3), seed=1, family="full").ask()
    assert unnamed.values.shape == (len(unnamed), 3)
    assert_array_equal(np.stack(list(unnamed)), unnamed.values)
    assert_array_equal(unnamed[2:4].values, unnamed.values[2:4])


def test_any_order_partly_late_and_twice(rng):
    opt = qbvi.Ask(PRIOR, seed=5, method=QUICK)
    late = []
    while not opt.done:
        points = opt.ask()
        some = points[rng.permutation(len(points))[: rng.integers(1, len(points) + 1)]]
        assert opt.tell(some, [density(point) for point in some]) == len(some)
        late.append(some)
        again = late[rng.integers(len(late))]
        assert opt.tell(again, np.zeros(len(again))) == 0  # the value told first counts
    assert_same(opt.fit(), fitted("qbvi"))


def test_digits_lost_in_a_text_file_do_not_matter(tmp_path):
    opt = qbvi.Ask(PRIOR, seed=5, method=QUICK)
    while not opt.done:
        points = opt.ask()
        jobs = [
            {"id": int(i), "beta": [f"{b:.3f}" for b in point["beta"]]}
            for i, point in zip(points.ids, points, strict=True)
        ]
        (tmp_path / "jobs").write_text("\n".join(map(json.dumps, jobs[::-1])))
        values = {int(i): density(point) for i, point in zip(points.ids, points, strict=True)}
        numbers = [json.loads(line)["id"] for line in (tmp_path / "jobs").read_text().splitlines()]
        opt.tell(numbers, [values[number] for number in numbers])
    assert_same(opt.fit(), fitted("qbvi"))


@pytest.mark.parametrize("case", ["budget", "paper"])
def test_saved_and_loaded_between_any_two_values(tmp_path, case, rng):
    opt = qbvi.Ask(PRIOR, seed=5, on_failure="exclude", **CASES[case])
    failing = lambda point: None if point["beta"][0] > 2.5 else density(point)
    while not opt.done:
        points = opt.ask()
        some = points[rng.permutation(len(points))[: rng.integers(1, 40)]]
        opt.tell(some, [failing(point) for point in some])
        opt.save(tmp_path / "ask.qbvi")
        opt = qbvi.Ask.load(tmp_path / "ask.qbvi")
    assert os.listdir(tmp_path) == ["ask.qbvi"]
    whole = qbvi.Ask(PRIOR, seed=5, on_failure="exclude", **CASES[case])
    assert_same(opt.fit(), finish(whole, failing))


@pytest.mark.parametrize("case", ["automatic", "full", "diagonal"])
def test_a_finished_one_can_be_loaded(tmp_path, case):
    opt = qbvi.Ask(PRIOR, seed=5, **CASES[case])
    result = finish(opt)
    opt.save(tmp_path / "ask.qbvi")
    again = qbvi.Ask.load(tmp_path / "ask.qbvi")
    assert again.done
    assert len(again.ask()) == 0
    assert_same(again.fit(), result)


# --- saved between any two requests, of which there may be several from one step to the next


def bent(theta, _):
    """A banana: fresh draws contradict the first convergence, and the fit goes on."""
    return float(-2 * theta[0] ** 2 - 2 * (theta[1] - 2 * theta[0] ** 2) ** 2 - theta[2] ** 2)


def rough(theta, _):
    """All portions of the fresh draws are needed."""
    return bent(theta, _) + 2 * np.sin(4 * theta[1] * theta[2])


def smooth(theta, _):
    return float(-np.sum((theta - 1) ** 2))


def noisy(theta, number):
    """Each call has noise of its own, so some of the fresh draws are called again."""
    return smooth(theta, number) + 0.3 * np.random.default_rng(number).standard_normal()


def failing(theta, number):
    """Each value where it fails is a failure however often it is told."""
    return np.nan if theta[0] > 1.2 else bent(theta, number)


@cache
def earlier():
    """Evaluations of an earlier fit, of which some are compared with the function, twice if that is noisy."""
    return qbvi.fit(lambda theta: smooth(theta, 0), qbvi.Normal(0, 2, shape=3), seed=9, family="full").evaluations


# Function, options, and how many requests there are at least beyond one for each step.
BETWEEN = {
    "full": (bent, {"family": "full"}, 4),
    "diagonal": (bent, {"family": "diagonal"}, 2),
    "low rank": (rough, {"family": qbvi.LowRank(1), "max_evals": 2000}, 1),
    "product": (bent, {"family": ["a", "b"]}, 2),
    "regression": (bent, {"method": qbvi.Regression(tol=0.3)}, 4),
    "ridge": (rough, {"method": qbvi.Ridge(n_fresh=100), "max_evals": 900}, 1),
    "qbvi": (rough, {"method": QUICK}, 1),
    "automatic": (bent, {"max_evals": 100}, 0),
    "noisy": (noisy, {"family": "full", "max_evals": 300}, 3),
    "failing": (failing, {"family": "full", "on_failure": "exclude"}, 2),
    "evaluations": (noisy, {"family": "diagonal", "evaluations": earlier}, 5),
}


def at(point):
    return np.append(point["a"], point["b"]) if isinstance(point, dict) else point


def converse(opt, function, some, between):
    """Tell what is asked for, in portions, to the end.

    Returns the fit, the numbers that were told, and how often something was asked.
    """
    told, n = [], 0
    while not opt.done:
        points = opt.ask()
        points, n = points[: some(len(points))], n + 1
        told += points.ids.tolist()
        assert len(told) == len(set(told))
        opt.tell(
            points, [function(at(point), number) for point, number in zip(points, points.ids.tolist(), strict=True)]
        )
        opt = between(opt)
    return opt, told, n


@pytest.mark.parametrize("case", BETWEEN)
def test_what_was_told_is_never_asked_for_again(tmp_path, case, rng):
    function, options, n_more = BETWEEN[case]
    prior = (
        {"a": qbvi.Normal(0, 2, shape=2), "b": qbvi.Normal(0, 2)} if case == "product" else qbvi.Normal(0, 2, shape=3)
    )
    options = {"seed": 3} | {name: value() if value is earlier else value for name, value in options.items()}
    whole, numbers, n = converse(qbvi.Ask(prior, **options), function, lambda n: n, lambda opt: opt)
    assert n - whole.fit().record.n_iterations >= n_more

    def saved(opt):
        opt.save(tmp_path / "ask.qbvi")
        return qbvi.Ask.load(tmp_path / "ask.qbvi")

    def closed(opt):
        opt.close()
        return qbvi.Ask(prior, **options, checkpoint=tmp_path / "run")

    some = lambda n: n if rng.random() < 0.7 else int(rng.integers(1, n + 1))
    for opt, between in (
        (qbvi.Ask(prior, **options), saved),
        (qbvi.Ask(prior, **options, checkpoint=tmp_path / "run"), closed),
    ):
        last, told, _ = converse(opt, function, some, between)
        assert told == numbers
        assert_same(last.fit(), whole.fit())
        assert last.fit().notes == whole.fit().notes
        last.close()


def test_saved_where_there_are_values_of_two_requests_and_failures_are_no_longer_excluded(tmp_path):
    """A failure that would now end the fit is asked for again, and nothing else."""
    opt = qbvi.Ask(qbvi.Normal(0, 2, shape=3), seed=3, family="full", on_failure="exclude")
    while len(opt.ask()) != 20:  # the first portion of fresh draws
        opt.tell(opt.ask(), [bent(point, 0) for point in opt.ask()])
    first, last = opt.ask(), opt.ask().ids[7]
    opt.tell(first, [None if number == last else bent(p, 0) for p, number in zip(first, first.ids, strict=True)])
    second = opt.ask()[:5]
    opt.tell(second, [bent(point, 0) for point in second])
    opt.save(tmp_path / "ask.qbvi")
    again = qbvi.Ask.load(tmp_path / "ask.qbvi", on_failure="raise")
    assert again.ask().ids.tolist() == [last]
    again.tell(last, bent(next(iter(again.ask())), 0))
    assert not set(again.ask().ids) & set(second.ids)


def test_tries_are_counted_across_files(tmp_path):
    opt = qbvi.Ask(qbvi.Normal(0, 2, shape=3), seed=3, family="full", on_failure="retry")
    for n_kept in (0, 0, 1):  # the third try is the last
        assert opt.tell(0, [np.nan]) == n_kept
        opt.save(tmp_path / "ask.qbvi")
        opt = qbvi.Ask.load(tmp_path / "ask.qbvi")
    assert 0 not in opt.ask().ids


def test_a_note_on_the_size_is_in_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("qbvi.arrange._MOST_FULL_BY_DEFAULT", 2)
    opt = qbvi.Ask(qbvi.Normal(0, 2, shape=3), seed=3, method=QUICK)
    opt.tell(opt.ask(), [bent(point, 0) for point in opt.ask()])
    opt.save(tmp_path / "ask.qbvi")
    assert "correlations are not estimated" in opt.fit().notes[0]
    assert qbvi.Ask.load(tmp_path / "ask.qbvi").fit().notes == opt.fit().notes


def test_what_files_do_not_hold_is_given_again(tmp_path):
    prior = qbvi.LogPrior(lambda x: -np.sum(x**2), shape=2)
    function = lambda theta: -np.sum((theta - 1) ** 2)
    opt = qbvi.Ask(prior, seed=5, family="full", on_failure=lambda failure: -1e3)
    opt.tell(opt.ask(), [function(theta) for theta in opt.ask()])
    opt.save(tmp_path / "ask.qbvi")
    with pytest.raises(qbvi.CheckpointError, match="pass on_failure= to load"):
        qbvi.Ask.load(tmp_path / "ask.qbvi")
    again = qbvi.Ask.load(tmp_path / "ask.qbvi", prior=prior, on_failure="exclude")
    assert_same(finish(again, function), qbvi.fit(function, prior, seed=5, family="full"))


def test_a_checkpoint_holds_what_was_told(tmp_path):
    with qbvi.Ask(PRIOR, seed=5, family="full", checkpoint=tmp_path / "run") as opt:
        for _ in range(2):
            opt.tell(opt.ask(), [density(point) for point in opt.ask()])
        some = opt.ask()[3:5]
        opt.tell(some, [density(point) for point in some])
        wanted = opt.ask().ids
    with qbvi.Ask(PRIOR, seed=5, family="full", checkpoint=tmp_path / "run") as again:
        assert_array_equal(again.ask().ids, wanted)
        assert_same(finish(again), fitted("full"))
    with pytest.raises(qbvi.CheckpointError, match="what differs: prior"):
        qbvi.Ask({"beta": qbvi.Normal(0, 1)}, seed=5, family="full", checkpoint=tmp_path / "run")


def test_a_checkpoint_of_fit_is_no_file_of_ask(tmp_path):
    qbvi.fit(density, PRIOR, seed=5, family="full", checkpoint=tmp_path / "run")
    with pytest.raises(qbvi.CheckpointError, match=r"do not fit together|was not written by Ask.save"):
        qbvi.Ask.load(tmp_path / "run")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, None, ArithmeticError("no root")], ids=str)
def test_failures_are_treated_as_fit_treats_them(value):
    def function(point):
        return value if point["beta"][0] > 2.2 else density(point)

    def raising(point):
        given = function(point)
        if given is None or isinstance(given, Exception):
            raise given or ValueError
        return given

    for policy in (
        "exclude",
        "floor",
        lambda failure: -200.0,
        {"nan": "floor", "+inf": "exclude", "-inf": "exclude", "exception": "floor"},
    ):
        options = {"seed": 5, "method": QUICK, "on_failure": policy}
        mine, its = finish(qbvi.Ask(PRIOR, **options), function), qbvi.fit(raising, PRIOR, **options)
        assert_same(mine, its)
        assert mine.n_failed > 0
        for one, other in zip(mine.failures, its.failures, strict=True):
            assert one.kind == other.kind
            assert_array_equal(one.parameters["beta"], other.parameters["beta"])


def test_a_failed_value_is_asked_for_again_until_its_tries_are_used_up():
    opt = qbvi.Ask(PRIOR, seed=5, family="full", on_failure="retry")
    points = opt.ask()
    assert opt.tell(points, [np.nan, *[density(point) for point in points[1:]]]) == len(points) - 1
    assert opt.ask().ids.tolist() == [0]
    assert opt.tell(0, [ConnectionError("node lost")]) == 0
    assert opt.tell(0, [None]) == 1  # the third try was the last
    assert opt.ask().ids.min() >= len(points)

    opt = qbvi.Ask(PRIOR, seed=5, family="full", on_failure="retry")
    opt.tell(opt.ask()[:1], [np.nan])
    assert_same(finish(opt), fitted("full"))


def test_a_value_that_raises_is_refused_and_may_be_told_again():
    opt = qbvi.Ask(PRIOR, seed=5, family="full")
    points = opt.ask()
    with pytest.raises(qbvi.EvaluationError, match=r"point 1 has the value .*nan"):
        opt.tell(points, [0.0, np.nan, *[1.0] * (len(points) - 2)])
    assert_same(finish(opt), fitted("full"))


@pytest.mark.parametrize("number", [-1, 10**6, 0.5, "one"])
def test_points_that_nobody_asked_for(number):
    opt = qbvi.Ask(PRIOR, seed=5)
    with pytest.raises(
        ValueError,
        match=r"`points` must be points that `ask` returned, got number .*; the largest number so far is \d+",
    ):
        opt.tell([number], [1.0])


def test_numbers_of_values_and_points_must_agree():
    opt = qbvi.Ask(PRIOR, seed=5)
    for values in ([1.0, 2.0], 3.0, None):
        with pytest.raises(ValueError, match=r"`values` must be one for each of the \d+ points"):
            opt.tell(opt.ask(), values)
    with pytest.raises(ValueError, match="must return one number"):
        opt.tell(0, [np.ones(2)])
    assert opt.ask().ids[0] == 0


def test_the_noise_is_told_too():
    prior = qbvi.Normal(0, 1, shape=2)
    opt = qbvi.Ask(prior, seed=5, family="full", max_evals=300)
    while not opt.done:
        points = opt.ask()
        opt.tell(points, -np.sum(points.values**2, axis=1), noise_sd=0.1)
    whole = qbvi.fit(lambda x: (-np.sum(x**2), 0.1), prior, seed=5, family="full", max_evals=300)
    assert_same(opt.fit(), whole)
    assert "noisy" in opt.fit().notes[0]


def test_the_fit_so_far():
    opt = qbvi.Ask(PRIOR, seed=5)
    with pytest.raises(RuntimeError, match=r"give the values of its \d+ points to `tell`"):
        opt.fit()
    opt.tell(opt.ask(), [density(point) for point in opt.ask()])
    assert not opt.fit().converged
    assert opt.fit().stop_reason == "the fit is not finished: values are still missing"


def test_a_step_out_of_the_domain_ends_it():
    opt = qbvi.Ask(qbvi.Normal(0, 1, shape=2), seed=1, method=qbvi.QBVI(step="plain", learning_rate=5.0, n_samples=10))
    with pytest.raises(qbvi.DomainError):
        finish(opt, lambda theta: float(np.sum(theta**2)))
    assert opt.done


# --- a fit that an error ends is done


def q(points):
    return -0.5 * np.sum((points.values - 1) ** 2, axis=1)


@pytest.mark.parametrize(("size", "noise_sd"), [(1.0, 1e300), (1e300, 0.0)], ids=["noise 1e300", "values 1e300"])
@pytest.mark.parametrize("method", ["auto", "regression"])
def test_a_step_that_cannot_be_computed_ends_the_fit_with_what_there_was(size, noise_sd, method):
    opt = qbvi.Ask(qbvi.Normal(0, 2, shape=2), method=method, seed=1, max_evals=200)
    points = opt.ask()
    opt.tell(points, q(points))
    with contextlib.suppress(qbvi.EvaluationError):
        while not opt.done:
            points = opt.ask()
            assert len(points)
            assert np.isfinite(points.values).all()
            opt.tell(points, size * q(points), noise_sd)
    assert opt.done
    assert len(opt.ask()) == 0
    assert not opt.fit().converged


def test_after_an_error_of_the_callback_the_fit_is_done_and_there():
    def callback(now):
        raise ZeroDivisionError

    opt = qbvi.Ask(qbvi.Normal(0, 2, shape=2), seed=1, callback=callback)
    points = opt.ask()
    with pytest.raises(ZeroDivisionError):
        opt.tell(points, q(points))
    assert opt.done
    assert opt.fit().stop_kind.value == "error"


def test_after_an_error_in_the_first_step_there_is_no_posterior_and_a_reason():
    opt = qbvi.Ask(qbvi.Normal(0, 2, shape=2), seed=1, on_failure=lambda failure: "low")
    points = opt.ask()
    with pytest.raises(TypeError, match="must return real numbers"):
        opt.tell(points, [np.nan] * len(points))
    assert opt.done
    with pytest.raises(RuntimeError, match="the first step ended with an error"):
        opt.fit()


def test_a_checkpoint_of_a_fit_that_has_spent_its_budget_opens_as_done(tmp_path):
    def ended(opt):
        while not opt.done:
            points = opt.ask()
            opt.tell(points, q(points))
        opt.close()
        return opt.fit()

    options = {"seed": 1, "max_evals": 30, "method": qbvi.QBVI(n_samples=30, n_fresh=2), "checkpoint": tmp_path / "run"}
    first = ended(qbvi.Ask(qbvi.Normal(0, 2, shape=2), **options))
    again = qbvi.Ask(qbvi.Normal(0, 2, shape=2), **options)
    assert (again.done, len(again.ask())) == (True, 0)
    np.testing.assert_array_equal(ended(again).q, first.q)
