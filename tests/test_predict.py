"""Predictions: any function of a point, anywhere, with the numbers of its draws."""

import concurrent.futures
import io

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

import qbvi
from qbvi.evaluate.push import Push, pushed
from qbvi.families import Gaussian
from qbvi.model import Model
from qbvi.predict import Predictive
from qbvi.progress import Count
from qbvi.results import Fit, Report

PRIOR = {"a": qbvi.Normal(0, 5), "b": qbvi.Normal(0, 5, shape=2), "s": qbvi.LogNormal(0, 1)}
LOC, SD = np.array([1.0, -2.0, 3.0, 0.1]), np.array([0.5, 0.1, 0.2, 0.05])


@pytest.fixture(scope="module")
def fit():
    model = Model(PRIOR)
    return Fit(model, Gaussian(4), Gaussian(4).start(LOC, SD), Report())


def line(p, x):
    return p["a"] + p["b"][0] * x


def simulated(p, x, rng):
    return rng.normal(line(p, x), p["s"])


def test_moments_and_quantiles_of_a_linear_function(fit):
    x = np.array([0.0, 1.0, 2.0])
    found = fit.predict(line, data=x, n=20_000, seed=1)
    mean, sd = 1 - 2 * x, np.sqrt(0.25 + 0.01 * x**2)
    assert found.draws.shape == (20_000, 3)
    # Five standard errors: sd / sqrt(n) of a mean, sd / sqrt(2 n) of an sd, 2.1 sd / sqrt(n) of these quantiles.
    assert_allclose(found.mean, mean, atol=5 * sd.max() / 20_000**0.5)
    assert_allclose(found.sd, sd, atol=5 * sd.max() / 40_000**0.5)
    ends = mean + np.outer(stats.norm.ppf([0.05, 0.95]), sd)
    assert_allclose(found.interval(0.9), ends, atol=5 * 2.1 * sd.max() / 20_000**0.5)
    assert_array_equal(found.quantiles(), found.quantiles([0.05, 0.5, 0.95]))
    assert_array_equal(found.quantiles(0.5), found.quantiles([0.5])[0])


def test_draws_are_those_of_the_fit(fit):
    draws = fit.sample(30, seed=4)
    assert_array_equal(fit.predict(lambda p: p["b"], n=30, seed=4).draws, draws["b"])
    assert fit.predict(lambda p: p["a"], seed=4).draws.shape == (1000,)


@pytest.mark.parametrize("form", [lambda a: a, lambda a: {"twice": 2 * a, "pair": np.stack([a, a])}])
def test_forms(fit, form):
    found = fit.predict(lambda p: form(p["a"]), n=50, seed=1)
    direct = form(fit.sample(50, seed=1)["a"].mean())
    for (name, mean), (_, other) in zip(_items(found.mean), _items(direct), strict=True):
        assert_allclose(mean, other, err_msg=name)
    frame = found.to_pandas()
    assert list(frame.columns) == ["mean", "sd", "5 %", "50 %", "95 %"]
    assert list(frame.index) == ([""] if len(frame) == 1 else ["twice", "pair[0]", "pair[1]"])


def _items(value):
    return value.items() if isinstance(value, dict) else [("", value)]


@pytest.mark.parametrize("executor", [2, "threads"])
def test_executors_and_random_numbers_give_the_same(fit, executor):
    def simulated(p, x, rng):  # one that travels by its code: the processes need not import this module
        return rng.normal(p["a"] + p["b"][0] * x, p["s"])

    x = np.arange(3.0)
    here = fit.predict(simulated, data=x, n=24, seed=7)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        there = fit.predict(simulated, data=x, n=24, seed=7, executor=threads if executor == "threads" else executor)
    assert_array_equal(here.draws, there.draws)
    noise = here.draws - fit.predict(line, data=x, n=24, seed=7).draws
    assert len(np.unique(noise)) == noise.size  # each draw has random numbers of its own
    assert not np.array_equal(here.draws, fit.predict(simulated, data=x, n=24, seed=8).draws)


def test_vectorized_in_blocks(fit):
    blocks = []

    def function(p):
        blocks.append(len(p["a"]))
        return p["a"] * p["b"][:, 1]

    found = fit.predict(function, n=10, vectorized=4, seed=2)
    assert blocks == [4, 4, 2]
    assert_array_equal(found.draws, fit.predict(lambda p: p["a"] * p["b"][1], n=10, seed=2).draws)


def test_after_a_check_the_draws_are_weighted():
    # exp(-x^4) times a standard normal: its sd is 0.528, that of the best Gaussian 0.50.
    fit = qbvi.fit(lambda x: -(x**4), qbvi.Normal(0, 1), family="full", seed=1).check(2000)
    found = fit.predict(lambda x: x**2)
    assert found.is_weighted
    assert_allclose(found.mean, fit.expect(lambda x: x**2).value)
    assert abs(found.mean - 0.279) < 0.015  # four standard errors
    assert abs(fit.predict(lambda x: x**2, n=2000, seed=1).mean - 0.251) < 0.02
    weights, draws = fit.weighted_draws().weights, fit.weighted_draws().draws
    below = weights[draws <= fit.predict(lambda x: x).quantiles(0.8)].sum()
    assert 0.8 <= below < 0.8 + 2 * weights.max()


def test_nan_is_shown(fit):
    found = fit.predict(lambda p: np.nan if p["a"] > 1 else p["a"], n=40, seed=1)
    assert f"{np.isnan(found.draws).sum()} of them have NaN" in repr(found)


def test_a_failure_names_the_draw_and_the_point(fit):
    def function(p):
        if p["a"] > 1.5:
            raise ArithmeticError("no root")
        return p["a"]

    place = int(np.argmax(fit.sample(40, seed=1)["a"] > 1.5))
    with pytest.raises(
        qbvi.EvaluationError, match=rf"`function` failed at draw {place} of 40: .*a=1\..*no root"
    ) as error:
        fit.predict(function, n=40, seed=1)
    assert "ArithmeticError" in error.value.__notes__[0]
    with pytest.raises(qbvi.EvaluationError, match=r"failed at draw .* in pid .*no root"):
        fit.predict(function, n=40, seed=1, executor=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda fit: fit.predict("x"), "`function` must be a function"),
        (lambda fit: fit.predict(lambda p: 1.0, n=0), "`n` must be at least 1"),
        (lambda fit: fit.predict(lambda p: 1.0, quantiles=(0.5, 2)), "`quantiles` must lie between 0 and 1"),
        (lambda fit: fit.predict(lambda p: "high"), "`function` failed: it must return numbers"),
        (lambda fit: fit.predict(lambda p: 1.0, vectorized=True), "first axis of 1000 for 1000 points"),
        (lambda fit: fit.predict(lambda p: 1.0, progress=3), "`progress` must be True or False"),
        (lambda fit: fit.predict(lambda p: p["b"][: int(p["a"] > 1) + 1]), "values of one form at all draws"),
    ],
)
def test_mistakes(fit, call, message):
    with pytest.raises((ValueError, TypeError, qbvi.EvaluationError), match=message):
        call(fit)


def test_a_lenient_push_leaves_failed_points_out():
    found, places = pushed(Push(lambda x: 1 // int(x)), np.array([1.0, 0.0, 1.0]), is_lenient=True)
    assert_array_equal(found, [1, 1])
    assert_array_equal(places, [0, 2])
    with pytest.raises(qbvi.EvaluationError, match="at one draw at least"):
        pushed(Push(lambda x: 1 // 0), np.array([1.0]), is_lenient=True)


def test_progress_counts_the_draws():
    stream = io.StringIO()
    count = Count("predict", 40, shown=True, stream=stream)
    count.update(10)
    count.update(40)
    count.close()
    assert "10 of 40 | about" in stream.getvalue()
    assert stream.getvalue().rstrip().endswith("40 of 40")


def test_long_tables_are_cut():
    table = repr(Predictive(np.zeros((3, 20)), np.full(3, 1 / 3)))
    assert table.endswith("... 12 more rows in to_pandas()")


class TestPlot:
    def test_bands_data_and_new_data(self, fit):
        x = np.array([3.0, 0.0, 1.0, 2.0])
        figure = fit.plot_predictive(x, line, (x, 1 - 2 * x), outcomes=simulated, n=400, labels=("x", "y"))
        ax = figure.axes[0]
        texts = [text.get_text() for text in figure.legends[0].get_texts()]
        assert texts == ["90 % of new data", "median", "50 %", "90 %", "data"]
        assert_array_equal(ax.lines[0].get_xdata(), np.sort(x))
        assert_allclose(ax.lines[0].get_ydata(), 1 - 2 * np.sort(x), atol=0.15)
        new, half, most = (np.ptp(c.get_paths()[0].vertices[:, 1]) for c in ax.collections)
        assert half < most < new
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "y")

    def test_what_was_predicted_already(self, fit):
        x = np.arange(3.0)
        found = fit.predict(line, data=x, n=100, seed=1)
        ax = fit.plot_predictive(x, found).axes[0]
        assert_array_equal(ax.lines[0].get_ydata(), found.quantiles(0.5))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"x": 1.0, "function": line}, "`x` must be one axis"),
            ({"x": [1.0, 2.0], "function": lambda p, x: p["a"]}, "one number for each of the 2 values of `x`"),
            ({"x": [1.0, 2.0], "function": line, "data": 3}, "`data` must be a pair of arrays"),
            ({"x": [1.0, 2.0], "function": line, "data": ([1.0], [1.0, 2.0])}, "two arrays of one length"),
            ({"x": [1.0, 2.0], "function": line, "probabilities": 1.5}, "`probabilities` must be a probability"),
        ],
    )
    def test_mistakes(self, fit, arguments, message):
        with pytest.raises((ValueError, TypeError), match=message):
            fit.plot_predictive(**arguments)
